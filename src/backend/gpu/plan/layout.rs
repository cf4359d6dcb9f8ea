//! Where the values of a plan lie: what the model gives in the outputs, all others in memory that the
//! program works in, each place used again when nobody reads its value any more.

use crate::backend::gpu::plan::compile::ValueName;
use crate::backend::gpu::plan::{PlanStep, StepWork, ValueLocation};
use crate::backend::kernel::pointwise::Activation;
use crate::limits::GPU_BUFFER_ALIGNMENT;

/// The steps with places, and the bytes of scratch. `sizes` are the bytes of each buffer in the largest
/// batch; the first are the inputs; `outputs` are those that the model gives, with their elements.
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
            // An input as it came, or what another output is too.
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

/// A part of the scratch.
struct ScratchRegion {
    offset: usize,
    size: usize,
    /// The last step that reads what is in it.
    until: usize,
}

fn copy(input: ValueLocation, output: ValueLocation, columns: usize) -> PlanStep<ValueLocation> {
    PlanStep { work: StepWork::Activate(Activation::None), per_row: 1, columns, input, output }
}
