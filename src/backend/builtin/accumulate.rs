//! The built-ins `sequence` and `dyna_sequence`: models that add up the inputs of a sequence, as the
//! backends of those names in Triton's tests (`sequence.cc`, `dyna_sequence.cc`). `sequence` has a sum
//! for each row of its batches. `dyna_sequence` has one for each correlation id, and adds the id to the
//! answer to the last request. One INT32 input and output, and the controls `START` and `READY`; the second
//! also has `END` and `CORRID`. Bounded by the rows of a batch, or by the sequences of an instance.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::backend::{Backend, Batch, Instance, LoadedModel, Request, Threads};
use crate::error::Error;
use crate::model::ModelSpec;
use crate::tensor::{Datatype, Tensor};

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
        let is_sum = |tensor: Option<&crate::model::TensorSpec>| {
            tensor.is_some_and(|tensor| tensor.datatype == Datatype::Int32 && tensor.dims.as_slice() == [1])
        };
        let controls = if is_by_id { 4 } else { 2 };
        if !is_sum(spec.inputs.first()) || !is_sum(spec.outputs.first()) || spec.inputs.len() != controls + 1 {
            return Err(fault("must have one input and one output, of TYPE_INT32 with dims [ 1 ]".to_owned()));
        }
        Ok(Box::new(AccumulateInputs { kind: *self, spec: Arc::clone(spec), start, ready, end, id }))
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
        for (row, mut request) in requests.into_iter().enumerate() {
            let sum = self.add(row, &request);
            let stamps = &mut request.responder.stamps;
            (stamps.input_end, stamps.infer_end, stamps.output_end) = (input_end, input_end, clock());
            let output = |sum: i32| {
                let contents = Bytes::copy_from_slice(&sum.to_ne_bytes());
                let shape = request.inputs.first().map(|input| input.shape.clone()).unwrap_or_default();
                vec![Tensor { datatype: Datatype::Int32, shape, contents }]
            };
            request.responder.send(sum.map(output));
        }
    }
}

impl SequenceSums {
    /// Adds a row's input to the sum of its sequence, and returns the output.
    fn add(&mut self, row: usize, request: &Request) -> Result<i32, Error> {
        let AccumulateInputs { kind, start, ready, end, id, spec } = &self.model;
        let first = |index: usize| request.inputs.get(index).and_then(|tensor| tensor.contents.first_chunk::<4>());
        let number = first(0)
            .map(|bytes| i32::from_ne_bytes(*bytes))
            .ok_or_else(|| Error::internal(format!("model '{}' takes one INT32, and none came", spec.name)))?;
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
    use crate::backend::threads::enter;
    use crate::backend::trial::{TrialAnswers, spec, tensor};

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
}
