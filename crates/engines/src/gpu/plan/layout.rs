//! Assigns locations to the values of a plan: the model's outputs in the batch's output buffers, all
//! others in scratch memory, where a region is reused after the last step that reads its value.

use crate::gpu::plan::{PlanStep, StepWork, ValueLocation};
use backend::kernel::pointwise::Activation;
use base::limits::GPU_BUFFER_ALIGNMENT;

/// Returns the steps with locations, and the bytes of scratch memory. `sizes` are the bytes of each
/// buffer in the largest batch, inputs first; `outputs` are the buffers of the model's outputs,
/// with their elements per row. `None` if a size overflows.
pub(super) fn place(
    mut steps: Vec<PlanStep<ValueName>>,
    sizes: &[usize],
    input_count: usize,
    outputs: &[(usize, usize)],
) -> Option<(Vec<PlanStep<ValueLocation>>, usize)> {
    let mut places: Vec<Option<ValueLocation>> =
        (0..sizes.len()).map(|index| (index < input_count).then_some(ValueLocation::Input(index))).collect();
    let mut copies = Vec::new();
    for (index, (buffer, count)) in outputs.iter().enumerate() {
        match places.get_mut(*buffer)? {
            free @ None => *free = Some(ValueLocation::Output(index)),
            // An input that is also an output, or one value as two outputs: a copy step is needed.
            Some(taken) => copies.push(copy(*taken, ValueLocation::Output(index), *count)),
        }
    }
    let last_read =
        |buffer: usize| steps.iter().rposition(|step| step.reads().any(|name| name == ValueName::Buffer(buffer)));
    let ends: Vec<_> = (0..sizes.len()).map(last_read).collect();
    let mut regions: Vec<ScratchRegion> = Vec::new();
    let mut scratch = 0_usize;
    for (index, step) in steps.iter().enumerate() {
        let ValueName::Buffer(buffer) = step.output else { return None };
        if places.get(buffer)?.is_some() {
            continue;
        }
        let size = sizes.get(buffer)?.checked_next_multiple_of(GPU_BUFFER_ALIGNMENT)?;
        let until = ends.get(buffer).copied().flatten().unwrap_or(index);
        // Best fit: the smallest region that is large enough and whose value is no longer read.
        let free = regions.iter_mut().filter(|region| region.size >= size && region.until < index);
        let offset = match free.min_by_key(|region| region.size) {
            Some(region) => {
                region.until = until;
                region.offset
            }
            None => {
                let offset = scratch;
                scratch = scratch.checked_add(size)?;
                regions.push(ScratchRegion { offset, size, until });
                offset
            }
        };
        *places.get_mut(buffer)? = Some(ValueLocation::Scratch(offset));
    }
    let at = |name| match name {
        ValueName::Buffer(buffer) => places.get(buffer).copied().flatten().unwrap_or(ValueLocation::Scratch(0)),
        ValueName::Weight(offset) => ValueLocation::Weight(offset),
    };
    let mut placed: Vec<_> = steps.drain(..).map(|step| step.map(at)).collect();
    placed.extend(copies);
    Some((placed, scratch))
}

/// A part of the scratch memory; sizes and offsets in bytes.
struct ScratchRegion {
    offset: usize,
    size: usize,
    /// The index of the last step that reads its current value.
    until: usize,
}

fn copy(input: ValueLocation, output: ValueLocation, columns: usize) -> PlanStep<ValueLocation> {
    PlanStep { work: StepWork::Activate(Activation::None), per_row: 1, columns, input, output }
}

/// A value's name, before its location is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueName {
    /// An input or a computed value, by its index.
    Buffer(usize),
    /// An offset in bytes into the weights.
    Weight(usize),
}
