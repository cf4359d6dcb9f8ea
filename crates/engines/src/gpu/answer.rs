//! Answers the requests of a batch from its downloaded outputs. Each gets its rows, or its best
//! classes if the device found those and no request of the batch needs more.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::gpu::slot::BatchOutput;
use backend::batch::scatter;
use backend::{OutputNeed, Request};
use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor, element_count};
use model::classes::{ClassForm, STRING_SIZE_EXPECTED, write_selected};
use model::{ModelSpec, TensorSpec};

/// Answers every request of a batch.
pub(super) fn answer(spec: &ModelSpec, outputs: SmallVec<[BatchOutput; 2]>, requests: Vec<Request>) {
    let rows = requests.iter().fold(0_u32, |sum, request| sum.saturating_add(request.rows));
    if outputs.iter().all(|output| matches!(output, BatchOutput::Whole(_))) {
        let tensor = |(expected, batch_output): (&TensorSpec, BatchOutput)| match batch_output {
            BatchOutput::Whole(contents) => whole(spec, expected, rows, contents),
            BatchOutput::Best(..) | BatchOutput::Nothing => whole(spec, expected, rows, Bytes::new()),
        };
        return scatter(spec, spec.outputs.iter().zip(outputs).map(tensor).collect(), requests);
    }
    let mut before = 0_usize;
    for request in requests {
        let own = usize::try_from(request.rows).unwrap_or_default();
        let (first, count) = if spec.has_batch_axis() { (before, own) } else { (0, 1) };
        before += own;
        let parts = spec.outputs.iter().zip(&outputs).enumerate().map(|(index, (expected, batch_output))| {
            let output_need = request.responder.output_needs.of(index);
            part(spec, expected, batch_output, RequestRows { first, count }, output_need)
        });
        let parts = parts.collect::<Option<Vec<_>>>();
        let missing = || Error::internal("a batch on the GPU gave fewer bytes than its requests have rows");
        request.responder.send(parts.ok_or_else(missing));
    }
}

/// The rows of one request among those of its batch.
#[derive(Clone, Copy)]
struct RequestRows {
    first: usize,
    count: usize,
}

/// A request's part of an output.
fn part(
    spec: &ModelSpec,
    expected: &TensorSpec,
    batch_output: &BatchOutput,
    rows: RequestRows,
    output_need: OutputNeed,
) -> Option<Tensor> {
    let request_rows = u32::try_from(rows.count).ok()?;
    let (count, values, indices) = match batch_output {
        BatchOutput::Nothing => return Some(whole(spec, expected, request_rows, Bytes::new())),
        BatchOutput::Whole(contents) => {
            let mut part = whole(spec, expected, request_rows, Bytes::new());
            let size = element_count(&part.shape).ok()?.checked_mul(part.datatype.size()?)?;
            let begin = size.checked_div(rows.count)?.checked_mul(rows.first)?;
            part.contents =
                contents.get(begin..begin.checked_add(size)?).map(|_| contents.slice(begin..begin + size))?;
            return Some(part);
        }
        BatchOutput::Best(count, values, indices) => (*count, values, indices),
    };
    // A request that did not ask for this output gets an empty list of classes.
    let asked = if let OutputNeed::Classes(asked) = output_need { usize::try_from(asked).ok()?.min(count) } else { 0 };
    let mut contents = Vec::with_capacity(rows.count * asked * STRING_SIZE_EXPECTED);
    for row in rows.first..rows.first + rows.count {
        let (begin, end) = (row * count * ELEMENT_SIZE, (row * count + asked) * ELEMENT_SIZE);
        let form = ClassForm { text: spec.score_text(), labels: expected.labels.as_deref() };
        write_selected(values.get(begin..end)?, indices.get(begin..end)?, form, &mut contents);
    }
    let mut shape: Shape = spec.has_batch_axis().then_some(i64::from(request_rows)).into_iter().collect();
    shape.push(i64::try_from(asked).ok()?);
    Some(Tensor { datatype: Datatype::Bytes, shape, contents: contents.into() })
}

/// An output of this many rows.
fn whole(spec: &ModelSpec, expected: &TensorSpec, rows: u32, contents: Bytes) -> Tensor {
    let mut shape = expected.model_shape.clone();
    if let Some(first) = shape.first_mut().filter(|_| spec.has_batch_axis()) {
        *first = i64::from(rows);
    }
    Tensor { datatype: expected.datatype, shape, contents }
}

/// Bytes of a value (FP32), and of an index (`u32`).
const ELEMENT_SIZE: usize = 4;
