//! The built-ins `sequence` and `dyna_sequence`: models that add up the inputs of a sequence, as the
//! backends of those names in Triton's tests (`sequence.cc`, `dyna_sequence.cc`). `sequence` has a sum
//! for each row of its batches. `dyna_sequence` has one for each correlation id, and adds the id to the
//! answer to the last request. One INT32 vector comes in, whose elements are all added, and one of its size goes out, each
//! element the sum; the controls are `START` and `READY`, for the second also `END` and `CORRID`. The parameter
//! `execute_delay_ms` is the duration of an execution. Bounded by the rows of a batch, or by the sequences of an instance.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::builtin::identity::{delay, wait};
use crate::{Backend, Batch, Instance, LoadedModel, Request, Threads};
use base::error::Error;
use base::tensor::{Datatype, Tensor};
use model::ModelSpec;

/// The backend of either name.
#[derive(Clone, Copy, Debug)]
pub enum Accumulate {
    /// `sequence`.
    ByRow,
    /// `dyna_sequence`.
    ById,
}

/// A loaded model: the indices of its control inputs.
#[derive(Clone, Debug)]
struct AccumulateInputs {
    kind: Accumulate,
    spec: Arc<ModelSpec>,
    start: usize,
    ready: usize,
    /// `dyna_sequence` only, as is `id`.
    end: Option<usize>,
    id: Option<usize>,
    delay: Duration,
}

struct SequenceSums {
    model: AccumulateInputs,
    by_row: Vec<i32>,
    by_id: HashMap<Bytes, i32>,
}

impl Backend for Accumulate {
    fn name(&self) -> &str {
        match self {
            Self::ByRow => "sequence",
            Self::ById => "dyna_sequence",
        }
    }

    fn load(&self, spec: &Arc<ModelSpec>, _directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        let fault = |text: String| Error::invalid(format!("model '{}': {text}", spec.name));
        let find = |name: &str| {
            spec.input_index(name).ok_or_else(|| {
                let backend = self.name();
                fault(format!("backend '{backend}' needs 'sequence_batching' with the control input '{name}'"))
            })
        };
        let (start, ready) = (find("START")?, find("READY")?);
        let is_by_id = matches!(self, Self::ById);
        let (end, id) = if is_by_id { (Some(find("END")?), Some(find("CORRID")?)) } else { (None, None) };
        let is_sum = |tensor: Option<&model::TensorSpec>| {
            tensor.is_some_and(|tensor| tensor.datatype == Datatype::Int32 && tensor.dims.len() == 1)
        };
        let controls = if is_by_id { 4 } else { 2 };
        let (input, output) = (spec.inputs.first(), spec.outputs.first());
        let are_alike = input.zip(output).is_some_and(|(input, output)| input.dims == output.dims);
        if !is_sum(input) || !is_sum(output) || !are_alike || spec.inputs.len() != controls + 1 {
            return Err(fault("must have one input and one output, vectors of TYPE_INT32 of one size".to_owned()));
        }
        let delay = delay(spec)?;
        Ok(Box::new(AccumulateInputs { kind: *self, spec: Arc::clone(spec), start, ready, end, id, delay }))
    }
}

impl LoadedModel for AccumulateInputs {
    fn new_instance(&self, _threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(SequenceSums { model: self.clone(), by_row: Vec::new(), by_id: HashMap::new() }))
    }

    fn may_run_inline(&self) -> bool {
        false
    }
}

impl Instance for SequenceSums {
    fn run(&mut self, batch: Batch) {
        let Batch { requests, clock, .. } = batch;
        let input_end = clock();
        let infer_end = if self.model.delay.is_zero() { input_end } else { wait(clock, self.model.delay) };
        for (row, mut request) in requests.into_iter().enumerate() {
            let sum = self.add(row, &request);
            let stamps = &mut request.responder.stamps;
            (stamps.input_end, stamps.infer_end, stamps.output_end) = (input_end, infer_end, clock());
            let output = |sum: i32| {
                let input = request.inputs.first();
                let count = input.map_or(0, |input| input.contents.len() / size_of::<i32>());
                let contents = Bytes::from(sum.to_ne_bytes().repeat(count));
                let shape = input.map(|input| input.shape.clone()).unwrap_or_default();
                vec![Tensor { datatype: Datatype::Int32, shape, contents }]
            };
            request.responder.send(sum.map(output));
        }
    }
}

impl SequenceSums {
    /// Adds a row's input to the sum of its sequence, and returns the output.
    fn add(&mut self, row: usize, request: &Request) -> Result<i32, Error> {
        let AccumulateInputs { kind, start, ready, end, id, spec, .. } = &self.model;
        let input = request.inputs.first();
        let input =
            input.ok_or_else(|| Error::internal(format!("model '{}' takes INT32, and none came", spec.name)))?;
        let numbers = input.contents.as_chunks::<4>().0.iter().map(|bytes| i32::from_ne_bytes(*bytes));
        let number = numbers.fold(0, i32::wrapping_add);
        let is_set = |index: usize| {
            request.inputs.get(index).is_some_and(|tensor| tensor.contents.iter().any(|byte| *byte != 0))
        };
        if !is_set(*ready) {
            return Ok(0);
        }
        let before = match kind {
            Accumulate::ByRow => {
                if self.by_row.len() <= row {
                    self.by_row.resize(row + 1, 0);
                }
                self.by_row.get(row).copied()
            }
            Accumulate::ById => id.and_then(|id| self.by_id.get(&request.inputs.get(id)?.contents).copied()),
        };
        let before = before.filter(|_| !is_set(*start)).unwrap_or(0);
        let sum = before.wrapping_add(number);
        match kind {
            Accumulate::ByRow => {
                if let Some(stored) = self.by_row.get_mut(row) {
                    *stored = sum;
                }
                Ok(sum)
            }
            Accumulate::ById => {
                let key = id.and_then(|id| request.inputs.get(id)).map(|tensor| tensor.contents.clone());
                let key = key.unwrap_or_default();
                if end.is_some_and(is_set) {
                    self.by_id.remove(&key);
                    return Ok(sum.wrapping_add(id_number(request, *id)));
                }
                self.by_id.insert(key, sum);
                Ok(sum)
            }
        }
    }
}

/// The correlation id as a number; that of a string if it is decimal digits, else 0.
fn id_number(request: &Request, id: Option<usize>) -> i32 {
    let Some(tensor) = id.and_then(|id| request.inputs.get(id)) else { return 0 };
    if tensor.datatype == Datatype::Bytes {
        let text = tensor.contents.get(4..).and_then(|bytes| std::str::from_utf8(bytes).ok());
        return text.and_then(|text| text.parse().ok()).unwrap_or(0);
    }
    tensor.contents.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::enter;
    use crate::trial::{TrialAnswers, spec, tensor};

    /// Rows `START END READY CORRID value`, and their sums.
    fn run(instance: &mut Box<dyn Instance>, is_by_id: bool, rows: &[[i32; 5]]) -> Vec<i32> {
        let answers = TrialAnswers::default();
        let rows: Vec<_> = rows
            .iter()
            .map(|[start, end, ready, id, value]| {
                let mut inputs: Vec<_> = [value, start, ready].map(|number| tensor(&[1, 1], &[*number])).into();
                if is_by_id {
                    inputs.extend([tensor(&[1, 1], &[*end]), tensor(&[1, 1], &[i64::from(*id)])]);
                }
                (inputs, 1)
            })
            .collect();
        let count = rows.len() as u32;
        instance.run(answers.batch(rows));
        let sum = |outputs: Result<Vec<Tensor>, Error>| {
            i32::from_ne_bytes(outputs.unwrap()[0].contents[..].try_into().unwrap())
        };
        answers.outputs(count).into_iter().map(sum).collect()
    }

    fn with_instance(way: Accumulate, body: impl FnOnce(&mut Box<dyn Instance>) + Send) {
        let (int, long) = (Datatype::Int32, Datatype::Int64);
        let mut inputs: Vec<(&str, _, &[i64])> = vec![("INPUT", int, &[1]), ("START", int, &[1]), ("READY", int, &[1])];
        if matches!(way, Accumulate::ById) {
            inputs.extend([("END", int, &[1][..]), ("CORRID", long, &[1][..])]);
        }
        let model = spec(4, &inputs, &[("OUTPUT", int, &[1])]);
        let model = way.load(&Arc::new(model), Path::new("")).unwrap();
        enter(1, |threads| body(&mut model.new_instance(threads).unwrap()));
    }

    #[test]
    fn sums_are_kept_by_row_and_begin_anew() {
        with_instance(Accumulate::ByRow, |model| {
            assert_eq!(run(model, false, &[[1, 0, 1, 0, 5], [1, 0, 1, 0, 7]]), [5, 7]);
            assert_eq!(run(model, false, &[[0, 0, 0, 0, 9], [0, 0, 1, 0, 1]]), [0, 8], "an empty row adds nothing");
            assert_eq!(run(model, false, &[[0, 0, 1, 0, 1], [1, 0, 1, 0, 1]]), [6, 1]);
        });
    }

    #[test]
    fn sums_are_kept_by_id_in_whatever_row_and_the_last_adds_the_id() {
        with_instance(Accumulate::ById, |model| {
            assert_eq!(run(model, true, &[[1, 0, 1, 40, 5], [1, 0, 1, 50, 7]]), [5, 7]);
            assert_eq!(run(model, true, &[[0, 0, 1, 50, 1], [0, 1, 1, 40, 1]]), [8, 46]);
            assert_eq!(run(model, true, &[[0, 0, 1, 40, 1]]), [1], "it is forgotten");
        });
    }

    #[test]
    fn a_configuration_without_the_controls_is_refused_by_name() {
        let model = spec(4, &[("INPUT", Datatype::Int32, &[1])], &[("OUTPUT", Datatype::Int32, &[1])]);
        let error = Accumulate::ById.load(&Arc::new(model), Path::new("")).err().unwrap();
        let want = "model 'm': backend 'dyna_sequence' needs 'sequence_batching' with the control input 'START'";
        assert_eq!(error, Error::invalid(want));
    }

    #[test]
    fn all_elements_of_a_vector_are_added_and_the_answer_has_its_size() {
        let int = Datatype::Int32;
        let load = |dims: &[i64], output: &[i64]| {
            let inputs = [("INPUT", int, dims), ("START", int, &[1][..]), ("READY", int, &[1])];
            Accumulate::ByRow.load(&Arc::new(spec(4, &inputs, &[("OUTPUT", int, output)])), Path::new(""))
        };
        let model = load(&[-1], &[-1]).unwrap();
        let sums = enter(1, |threads| {
            let mut instance = model.new_instance(threads).unwrap();
            let mut run = |values: &[i32], start: i32| {
                let answers = TrialAnswers::default();
                let controls = [start, 1].map(|control| tensor(&[1, 1], &[control]));
                let inputs = std::iter::once(tensor(&[1, values.len() as i64], values)).chain(controls).collect();
                instance.run(answers.batch(vec![(inputs, 1)]));
                answers.outputs(1).remove(0).unwrap().remove(0)
            };
            [run(&[1, 2, 3], 1), run(&[4, -1], 0), run(&[], 0), run(&[i32::MAX], 0)]
        });
        let want: [&[i32]; 4] = [&[6, 6, 6], &[9, 9], &[], &[9_i32.wrapping_add(i32::MAX)]];
        assert_eq!(sums, want.map(|values| tensor(&[1, values.len() as i64], values)));
        for (dims, output) in [(&[2][..], &[3][..]), (&[1, 2], &[1, 2])] {
            let text = load(dims, output).err().unwrap();
            assert!(text.text().ends_with("vectors of TYPE_INT32 of one size"), "{text}");
        }
    }
}
