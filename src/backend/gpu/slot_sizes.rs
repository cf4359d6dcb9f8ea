//! How large the buffers of a slot are, from what a program needs for its largest batch.

use smallvec::SmallVec;

use crate::limits::{CLASSES_MAX, GPU_TOPK_COUNT_MAX};
use crate::tensor::Datatype;

/// Bytes of an element of an output whose best are found on the device.
pub(super) const ELEMENT_SIZE: usize = size_of::<f32>();
/// Bytes of one of the best: its value and its index.
pub(super) const BEST_SIZE: usize = ELEMENT_SIZE + size_of::<u32>();

/// How much memory the slots of an instance need: bytes of a row of each tensor, and rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotSizes {
    /// Rows of the largest batch.
    pub rows_max: usize,
    /// Bytes of a row of each input.
    pub inputs: SmallVec<[usize; 2]>,
    /// Bytes of a row of each output.
    pub outputs: SmallVec<[usize; 2]>,
    /// The datatype of each output.
    pub datatypes: SmallVec<[Datatype; 2]>,
    /// Bytes that the program works in.
    pub scratch: usize,
    /// Whether the inputs stay where they are staged, on the host, and the program brings them to the
    /// device: a library may want some of them on the host.
    pub keeps_staged: bool,
}

impl SlotSizes {
    /// How many of the best of a row of an output are found on the device where so many are asked for;
    /// `None` where the whole output is not much more, too much for a kernel, or not FP32, which the best
    /// of an output are read as.
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
