//! The address of a tensor without elements. Rust gives an empty slice any aligned address, and engines read there all
//! the same: ONNX Runtime's InstanceNormalization ends the process on one that is not mapped. Every engine gets the
//! address of one block of memory instead, which is mapped, aligned, and zero.

use std::sync::LazyLock;

use crate::limits::EMPTY_TENSOR_BLOCK_SIZE;
use crate::tensor::AlignedBuffer;

/// The block. It is on the heap, so that an engine which writes a value there ends nothing either.
static BLOCK: LazyLock<AlignedBuffer> = LazyLock::new(|| AlignedBuffer::zeroed(EMPTY_TENSOR_BLOCK_SIZE));

/// The bytes of a tensor as a foreign engine may have them: empty ones begin at the block.
///
/// ```
/// use base::tensor::mapped;
///
/// assert_eq!(mapped(&[]).as_ptr().addr() % 64, 0);
/// assert_eq!(mapped(&[7]), [7]);
/// ```
pub fn mapped(contents: &[u8]) -> &[u8] {
    if !contents.is_empty() {
        return contents;
    }
    BLOCK.as_slice().get(..0).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TENSOR_ALIGNMENT;

    #[test]
    fn all_empty_tensors_begin_at_one_mapped_and_aligned_block() {
        let block = BLOCK.as_slice().as_ptr();
        let empty = AlignedBuffer::default();
        for contents in [&[][..], empty.as_slice(), &[1, 2][..0]] {
            let got = mapped(contents);
            assert_eq!((got.len(), got.as_ptr()), (0, block));
        }
        assert_eq!(block.addr() % TENSOR_ALIGNMENT, 0);
        assert!(BLOCK.as_slice().iter().all(|byte| *byte == 0) && BLOCK.len() >= TENSOR_ALIGNMENT);
        let some = [1, 2, 3];
        assert_eq!(mapped(&some).as_ptr(), some.as_ptr());
    }
}
