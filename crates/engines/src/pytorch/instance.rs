//! One instance: runs a module on gathered inputs. The module's outputs are compared with the
//! configuration on each run: the file does not declare them.

use std::ffi::CString;
use std::sync::Arc;

use smallvec::SmallVec;

use backend::Threads;
use backend::batch::InputConversion;
use backend::blame;
use backend::engine_run::{EngineInputs, EngineInstance};
use backend::text::config_name;
use base::error::Error;
use base::tensor::{Datatype, Tensor};
use model::{ModelSpec, TensorSpec};

use super::SharedModule;
use super::datatype::{self, TorchType};
use super::library::{self, TorchInput, TorchModule, TorchOutput};
use super::names::{ModuleInput, TensorNames, no_such_output};

/// One instance: a module and the names of its inputs and outputs.
pub(super) struct PytorchInstance {
    shared: Arc<SharedModule>,
    module: Arc<TorchModule>,
    names: Arc<TensorNames>,
    /// The keys of a dictionary, and the types of the elements, in the order of the arguments.
    inputs: Vec<(ModuleInput, CString, TorchType)>,
    threads: u16,
}

impl PytorchInstance {
    /// Makes an instance on these threads, unless the model's parameter sets another number.
    pub(super) fn new(
        shared: Arc<SharedModule>,
        module: Arc<TorchModule>,
        names: Arc<TensorNames>,
        threads: &Threads,
    ) -> Result<Self, Error> {
        let inputs = names.inputs.iter().map(|input| named_input(&shared.spec, *input)).collect::<Result<_, _>>()?;
        let threads = threads_of(&shared, threads);
        Ok(Self { shared, module, names, inputs, threads })
    }

    fn output(&self, index: usize, outputs: &mut [Option<TorchOutput>]) -> Result<Tensor, Error> {
        let spec = &self.shared.spec;
        let Some((expected, place)) = spec.outputs.get(index).zip(self.names.outputs.get(index)) else {
            return Err(Error::internal(format!("model '{}' has no output {index}", spec.name)));
        };
        let count = outputs.len();
        // Two outputs of the configuration may be one of the module.
        let is_asked_again = self.names.outputs.iter().skip(index + 1).any(|other| other == place);
        let taken =
            outputs.get_mut(*place).and_then(|output| if is_asked_again { output.clone() } else { output.take() });
        let Some(TorchOutput { element, shape, contents }) = taken else {
            return Err(Error::internal(no_such_output(&expected.name, count)));
        };
        let datatype = element.datatype().filter(|datatype| *datatype == expected.datatype);
        let Some(datatype) = datatype else { return Err(datatype_differs(spec, expected, element)) };
        if shape.is_empty() {
            return Err(Error::internal(format!("output '{}' is a scalar which is not supported.", expected.name)));
        }
        Ok(Tensor { datatype, shape, contents })
    }
}

impl EngineInstance for PytorchInstance {
    type Outputs = Vec<TorchOutput>;

    fn conversion(datatype: Datatype) -> InputConversion {
        datatype::conversion(datatype)
    }

    fn spec(&self) -> &Arc<ModelSpec> {
        &self.shared.spec
    }

    fn compute(&mut self, batch: EngineInputs<'_>) -> Result<Vec<TorchOutput>, Error> {
        let mut inputs: SmallVec<[TorchInput<'_>; 4]> = SmallVec::with_capacity(self.inputs.len());
        for (input, name, element) in &self.inputs {
            let (shape, contents) = match *input {
                ModuleInput::Batch(index) => batch.batch_input(index),
                ModuleInput::Request(index) => (batch.shape(index), batch.contents(index)),
            };
            inputs.push(TorchInput { name, element: *element, shape, contents });
        }
        let outputs = self.module.run(&inputs, self.threads);
        outputs.map_err(|why| match blame::torch(&why) {
            Some(why) => Error::invalid(format!("model '{}': PyTorch execute failure: {why}", self.shared.spec.name)),
            None => Error::internal(format!("PyTorch execute failure: {why}")),
        })
    }

    fn outputs(
        &self,
        outputs: Vec<TorchOutput>,
        _inputs: EngineInputs<'_>,
    ) -> impl Iterator<Item = Result<Tensor, Error>> {
        let mut outputs: Vec<_> = outputs.into_iter().map(Some).collect();
        (0..self.shared.spec.outputs.len()).map(move |index| self.output(index, &mut outputs))
    }

    fn set_threads(&mut self, threads: &Threads) {
        self.threads = threads_of(&self.shared, threads);
    }
}

/// The module's threads: those of the parameter, or else those of the instance.
fn threads_of(shared: &SharedModule, threads: &Threads) -> u16 {
    shared.parameters.threads.unwrap_or_else(|| u16::try_from(threads.count()).unwrap_or(u16::MAX))
}

/// An input with its key and its element type for a run.
fn named_input(spec: &ModelSpec, input: ModuleInput) -> Result<(ModuleInput, CString, TorchType), Error> {
    let known = match input {
        ModuleInput::Batch(index) => spec.batch_inputs.get(index).map(|input| (&input.name, input.datatype)),
        ModuleInput::Request(index) => spec.inputs.get(index).map(|input| (&input.name, input.datatype)),
    };
    let (name, datatype) = known.ok_or_else(|| Error::internal("a model's argument has no input"))?;
    let element =
        TorchType::of(datatype).ok_or_else(|| Error::internal("torch does not have the datatype of an input"))?;
    let name = library::key(name).map_err(Error::invalid)?;
    Ok((input, name, element))
}

/// The error of an output whose elements are of another type, in Triton's words.
fn datatype_differs(spec: &ModelSpec, expected: &TensorSpec, came: TorchType) -> Error {
    let came = came.datatype().map_or_else(|| "TYPE_INVALID".to_owned(), config_name);
    Error::internal(format!(
        "configuration expects datatype {} for output '{}', model provides {came}",
        config_name(expected.datatype),
        expected.name
    ))
    .with_prefix(&format!("model '{}': ", spec.name))
}
