//! The sizes of a slot's buffers, from the program's largest batch.

use smallvec::SmallVec;

use backend::kernel::reshape::CopyPart;
use base::limits::{CLASSES_MAX, GPU_TOPK_COUNT_MAX};
use base::tensor::Datatype;

/// Bytes of an element of an output whose best classes are found on the device (FP32).
pub(super) const ELEMENT_SIZE: usize = size_of::<f32>();
/// Bytes of one best class: its value and its index.
pub(super) const BEST_SIZE: usize = ELEMENT_SIZE + size_of::<u32>();

/// The memory that the slots of an instance need: bytes per row of each tensor, and rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotSizes {
    /// Rows of the largest batch.
    pub rows_max: usize,
    /// Bytes per row of each input.
    pub inputs: SmallVec<[usize; 2]>,
    /// Bytes per row of each output.
    pub outputs: SmallVec<[usize; 2]>,
    /// The datatype of each output.
    pub datatypes: SmallVec<[Datatype; 2]>,
    /// Bytes of the program's scratch memory on the device, for the largest batch.
    pub scratch: usize,
    /// Bytes of the tables that the program's kernels read, behind the inputs of each batch.
    pub table: usize,
    /// True if inputs stay in pinned host memory and the program copies them to the device: a
    /// library may need some of them on the host.
    pub keeps_staged: bool,
}

impl SlotSizes {
    /// Returns the bytes of the tables of all parts that a batch gathers and scatters on the
    /// device: a request has at least one row.
    pub(super) fn parts_size_max(&self) -> usize {
        let tensors = if self.keeps_staged { 0 } else { self.inputs.len() + self.outputs.len() };
        self.rows_max.saturating_mul(tensors * size_of::<CopyPart>())
    }

    /// Returns the count of best classes of an output's rows to find on the device, if `asked` are
    /// asked for. `None` if the whole output is downloaded instead: it is not FP32, it is too large
    /// for the top-k kernel, or the best classes are more than half as many bytes.
    pub fn best_count(&self, output: usize, asked: u32) -> Option<usize> {
        if *self.datatypes.get(output)? != Datatype::Fp32 {
            return None;
        }
        let classes = self.outputs.get(output)? / ELEMENT_SIZE;
        let count = usize::try_from(asked).ok()?.min(classes);
        let is_worth_it = count > 0 && 2 * count * BEST_SIZE <= classes * ELEMENT_SIZE;
        (is_worth_it && count <= GPU_TOPK_COUNT_MAX && classes <= CLASSES_MAX).then_some(count)
    }
}
