//! The check, at load, that a model computes the same on a GPU as on the CPU: one row and the largest batch, of random
//! numbers from a fixed seed. A model that fails it does not run on the GPU, so a wrong layout or a faulty driver shows
//! in the log and not in an answer. The CPU runs once for all GPUs.

use std::sync::Arc;

use crate::backend::{Batch, Instance, LoadedModel, Request, run_to_end, threads};
use crate::control::engines::internal_sink::InternalSink;
use crate::error::Error;
use crate::limits::GPU_CHECK_TOLERANCE;
use crate::model::{ModelSpec, TensorSpec};
use crate::runtime::clock;
use crate::tensor::{AlignedBuffer, Datatype, Shape, Tensor, element_count};

/// Compares the outputs of instances on GPUs, given with their GPU's index, with those of an instance of the model that
/// `on_cpu` loads. Inputs must be FP32 with known dimensions, as the GPU plan requires.
///
/// # Errors
/// `Internal` when an output differs by more than [`GPU_CHECK_TOLERANCE`]; otherwise the error of the run that failed.
pub fn check(
    spec: &ModelSpec,
    on_gpus: Vec<(u32, Box<dyn Instance>)>,
    on_cpu: impl FnOnce() -> Result<Box<dyn LoadedModel>, Error> + Send,
) -> Result<(), Error> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let batches: Vec<_> = row_counts(spec).into_iter().map(|rows| (rows, inputs(spec, rows))).collect();
    let expected = threads::enter(cores, |threads| {
        let mut instance = on_cpu()?.new_instance(threads)?;
        let outputs = batches.iter().map(|(rows, inputs)| run(&mut *instance, *rows, inputs.clone()));
        outputs.collect::<Result<Vec<_>, Error>>()
    });
    let expected = expected.map_err(|error| error.with_prefix("it cannot be compared with the CPU: "))?;
    for (gpu, mut instance) in on_gpus {
        for ((rows, inputs), want) in batches.iter().zip(&expected) {
            let got = run(&mut *instance, *rows, inputs.clone())
                .map_err(|error| error.with_prefix(&format!("a batch of {rows} rows on GPU {gpu} failed: ")))?;
            if let Some(difference) = difference(spec, &got, want) {
                return Err(Error::internal(format!(
                    "a batch of {rows} rows on GPU {gpu} gives other numbers than on the CPU: {difference}"
                )));
            }
        }
    }
    Ok(())
}

/// Returns the batch sizes to check: 1 and the largest; only 1 for a model without a batch axis.
fn row_counts(spec: &ModelSpec) -> Vec<u32> {
    let mut counts = vec![1, spec.rows_max.max(1)];
    counts.dedup();
    counts
}

/// Returns inputs of `rows` rows with values from -1 to 1.
fn inputs(spec: &ModelSpec, rows: u32) -> Vec<Tensor> {
    let mut seed = SEED;
    let input = |tensor: &TensorSpec| {
        let shape = shape(spec, tensor, rows);
        let count = element_count(&shape).unwrap_or_default();
        let mut contents = AlignedBuffer::with_capacity(count.saturating_mul(size_of::<f32>()));
        for _ in 0..count {
            contents.extend_from_slice(&draw(&mut seed).to_le_bytes());
        }
        Tensor { datatype: tensor.datatype, shape, contents: contents.freeze() }
    };
    spec.inputs.iter().map(input).collect()
}

fn shape(spec: &ModelSpec, tensor: &TensorSpec, rows: u32) -> Shape {
    let mut shape = tensor.model_shape.clone();
    if let Some(first) = shape.first_mut().filter(|_| spec.has_batch_axis()) {
        *first = i64::from(rows);
    }
    shape
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the next number from -1 to 1 (xorshift64*).
fn draw(seed: &mut u64) -> f32 {
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    let bits = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40;
    bits as f32 / (1 << 23) as f32 - 1.0
}

fn run(instance: &mut dyn Instance, rows: u32, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
    let sink = Arc::new(InternalSink::default());
    let request = Request { inputs, rows, responder: sink.responder(0, rows), sequence: None, details: None };
    run_to_end(instance, Batch { requests: vec![request], rows, clock: clock::now, ended: Vec::new() });
    let answer = sink.pop().ok_or_else(|| Error::internal("a batch was not answered"))?;
    answer.outputs
}

/// Returns the first element that differs by more than [`GPU_CHECK_TOLERANCE`], as a text. The
/// tolerance is relative to the largest value of the output: sums are taken in another order on a
/// GPU, so small elements of a large output differ much by themselves. A NaN equals a NaN.
fn difference(spec: &ModelSpec, got: &[Tensor], want: &[Tensor]) -> Option<String> {
    for (index, (output, want)) in spec.outputs.iter().zip(want).enumerate() {
        let name = &output.name;
        let Some(got) = got.get(index) else { return Some(format!("output '{name}' is missing")) };
        if got.shape != want.shape || got.datatype != want.datatype || got.datatype != Datatype::Fp32 {
            return Some(format!("output '{name}' is {:?} and not {:?}", got.shape, want.shape));
        }
        let (got, want) = (floats(got), floats(want));
        let scale = want.iter().filter(|value| value.is_finite()).fold(0.0_f32, |most, value| most.max(value.abs()));
        let allowed = scale * GPU_CHECK_TOLERANCE;
        let is_other = |(got, want): (&f32, &f32)| {
            let is_same = got == want || (got.is_nan() && want.is_nan());
            let is_near = (got - want).abs() <= allowed;
            !is_same && !is_near
        };
        let pairs = got.iter().zip(&want);
        if let Some((at, (got, want))) = pairs.enumerate().find(|(_, pair)| is_other(*pair)) {
            return Some(format!("element {at} of output '{name}' is {got} and not {want}"));
        }
        if got.len() != want.len() {
            return Some(format!("output '{name}' has {} elements and not {}", got.len(), want.len()));
        }
    }
    None
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.contents.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Threads;
    use crate::model::config::{CompletionRules, ConfigDraft};

    fn spec(rows_max: u32) -> ModelSpec {
        let text = format!(
            "backend: 'onnxruntime' max_batch_size: {rows_max} input {{ name: 'x' data_type: TYPE_FP32 dims: 3 }} \
             output {{ name: 'y' data_type: TYPE_FP32 dims: 3 }}"
        );
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        draft.complete(None, &Default::default(), CompletionRules::default()).unwrap()
    }

    /// Returns its input, but another value for a batch of `wrong_rows` rows.
    #[derive(Clone, Copy)]
    struct Copies {
        wrong_rows: u32,
        by: f32,
    }

    impl Instance for Copies {
        fn run(&mut self, batch: Batch) {
            for mut request in batch.requests {
                let (mut output, rows) = (request.inputs.remove(0), request.rows);
                let mut values = floats(&output);
                if rows == self.wrong_rows {
                    *values.last_mut().unwrap() += self.by;
                }
                output.contents = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>().into();
                request.responder.send(if self.by.is_infinite() {
                    Err(Error::internal("no"))
                } else {
                    Ok(vec![output])
                });
            }
        }
    }

    impl LoadedModel for Copies {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Ok(Box::new(*self))
        }

        fn may_run_inline(&self) -> bool {
            true
        }
    }

    fn checked(rows_max: u32, wrong_rows: u32, by: f32) -> String {
        let right = Copies { wrong_rows: 0, by: 0.0 };
        let on_gpus: Vec<(u32, Box<dyn Instance>)> =
            vec![(3, Box::new(right)), (7, Box::new(Copies { wrong_rows, by }))];
        check(&spec(rows_max), on_gpus, || Ok(Box::new(right)))
            .map_or_else(|error| error.text().to_owned(), |()| "the same".to_owned())
    }

    #[test]
    fn one_row_and_the_largest_batch_are_held_to_the_cpu_within_the_tolerance() {
        assert_eq!(checked(16, 0, 0.0), "the same");
        assert_eq!(checked(16, 16, 0.5e-3), "the same", "sums in another order");
        let text = checked(16, 16, 2e-3);
        assert!(
            text.starts_with("a batch of 16 rows on GPU 7 gives other numbers than on the CPU: element 47 of"),
            "{text}"
        );
        let text = checked(16, 1, f32::NAN);
        assert!(text.starts_with("a batch of 1 rows on GPU 7") && text.contains("is NaN and not "), "{text}");
        assert!(checked(0, 1, 1.0).contains("element 2 of output 'y'"), "no batch axis");
        assert_eq!(checked(16, 16, f32::INFINITY), "a batch of 1 rows on GPU 7 failed: no");
    }

    #[test]
    fn what_the_cpu_cannot_run_is_not_trusted() {
        let on_gpus: Vec<(u32, Box<dyn Instance>)> = vec![(0, Box::new(Copies { wrong_rows: 0, by: 0.0 }))];
        let error = check(&spec(2), on_gpus, || Err(Error::unsupported("it is odd"))).unwrap_err();
        assert_eq!(error.text(), "it cannot be compared with the CPU: it is odd");
    }

    #[test]
    fn rows_are_the_same_each_time_and_fill_their_range() {
        let values = floats(&inputs(&spec(256), 256)[0]);
        assert_eq!(values, floats(&inputs(&spec(256), 256)[0]));
        assert!(values.iter().all(|value| (-1.0..1.0).contains(value)));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!(
            mean.abs() < 0.1 && values.iter().any(|value| *value > 0.9) && values.iter().any(|value| *value < -0.9)
        );
    }
}
