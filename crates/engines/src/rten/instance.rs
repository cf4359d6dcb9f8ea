//! One instance: runs the engine on gathered inputs.
//!
//! A panic of the engine is a failed run, and the instance goes on: a run changes nothing in the model.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rten::{DataType, NodeId, RunErrorKind, RunOptions, Value, ValueOrView};
use smallvec::SmallVec;

use backend::batch::InputConversion;
use backend::engine_run::{EngineInputs, EngineInstance};
use backend::text::output_differs;
use backend::{Request, Threads};
use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor};
use model::ModelSpec;

use super::bind::{BatchBinding, RtenBinding};
use super::datatype::ALTERNATIVE;
use super::estimate::{RunCheck, RunInput};
use super::lower::BEYOND;
use super::{SharedGraph, datatype};

/// One instance: the shared model and the threads of its runs.
pub(super) struct RtenInstance {
    shared: Arc<SharedGraph>,
    options: RunOptions,
    check: RunCheck,
}

impl RtenInstance {
    pub(super) fn new(shared: Arc<SharedGraph>, threads: &Threads) -> Self {
        let check = RunCheck::new(Arc::clone(&shared.estimate));
        Self { shared, options: options(threads), check }
    }

    fn input<'a>(
        &self,
        index: usize,
        port: RtenBinding,
        inputs: EngineInputs<'a>,
    ) -> Result<(NodeId, ValueOrView<'a>), Error> {
        let view = view(port.held, inputs.model_shape(index, port.is_squeezed), inputs.contents(index));
        view.map(|view| (port.node, view)).ok_or_else(|| {
            Error::internal(format!(
                "input {index} of model '{}' was not gathered as the engine takes it",
                self.shared.spec.name
            ))
        })
    }

    fn batch_input<'a>(
        &self,
        index: usize,
        port: BatchBinding,
        inputs: EngineInputs<'a>,
    ) -> Result<(NodeId, ValueOrView<'a>), Error> {
        let (shape, contents) = inputs.batch_input(index);
        view(port.held, shape, contents).map(|view| (port.node, view)).ok_or_else(|| {
            Error::internal(format!("batch input {index} of model '{}' was not made", self.shared.spec.name))
        })
    }

    fn output(&self, index: usize, port: RtenBinding, value: Value) -> Result<Tensor, Error> {
        let mut shape: Shape = datatype::shape(&value).collect();
        let wanted = self.shared.spec.outputs.get(index).map(|output| output.model_shape.len());
        if port.is_squeezed && Some(shape.len() + 1) == wanted {
            shape.push(1);
        }
        let kind = value.dtype();
        let contents = datatype::contents(value, port.datatype)
            .ok_or_else(|| output_differs(&self.shared.spec, index, datatype::kind_name(kind)))?;
        Ok(Tensor { datatype: port.datatype, shape, contents })
    }
}

impl EngineInstance for RtenInstance {
    type Outputs = Vec<Value>;

    fn conversion(datatype: Datatype) -> InputConversion {
        datatype::conversion(datatype)
    }

    fn spec(&self) -> &Arc<ModelSpec> {
        &self.shared.spec
    }

    /// The model was loaded without its initial values, so each run must bring them.
    fn fill_defaults(&self, requests: &mut [Request]) {
        if self.shared.defaults.is_empty() {
            return;
        }
        for request in requests {
            for (tensor, default) in request.inputs.iter_mut().zip(&self.shared.defaults) {
                if let Some(default) = default
                    && !tensor.is_given()
                {
                    tensor.clone_from(default);
                }
            }
        }
    }

    fn compute(&mut self, inputs: EngineInputs<'_>) -> Result<Vec<Value>, Error> {
        let Self { shared, check, .. } = self;
        check.check(run_inputs(shared, inputs))?;
        let ports = self.shared.inputs.iter().enumerate().map(|(index, port)| self.input(index, *port, inputs));
        let made =
            self.shared.batch_inputs.iter().enumerate().map(|(index, port)| self.batch_input(index, *port, inputs));
        let inputs = ports.chain(made).collect::<Result<_, _>>()?;
        let run = || self.shared.model.run(inputs, &self.shared.output_nodes, Some(self.options.clone()));
        let name = &self.shared.spec.name;
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(values)) => Ok(values),
            Ok(Err(error)) if error.kind() == RunErrorKind::InvalidInput => {
                Err(Error::invalid(format!("model '{name}': {error}")))
            }
            Ok(Err(error)) => Err(failed(name, &error.to_string())),
            Err(_) => Err(Error::internal(format!("model '{name}': the embedded engine panicked on this request"))),
        }
    }

    fn outputs(&self, values: Vec<Value>, _inputs: EngineInputs<'_>) -> impl Iterator<Item = Result<Tensor, Error>> {
        let ports = self.shared.outputs.iter().enumerate();
        ports.zip(values).map(|((index, port), value)| self.output(index, *port, value))
    }

    fn set_threads(&mut self, threads: &Threads) {
        self.options = options(threads);
    }
}

/// The error of a run that failed. A check that was added to the graph at load fails if the request
/// asks for a number that the engine does not have.
fn failed(model: &str, text: &str) -> Error {
    match text.split_once(BEYOND) {
        Some((before, _)) => {
            let operator = before.trim_end().rsplit(|letter: char| !letter.is_ascii_alphanumeric()).next();
            let operator = operator.unwrap_or_default();
            Error::invalid(format!("model '{model}': operator {operator} {BEYOND}; {ALTERNATIVE}"))
        }
        None if BLAMES.iter().any(|words| text.contains(words)) => Error::invalid(format!("model '{model}': {text}")),
        None => Error::internal(format!("model '{model}': {text}")),
    }
}

/// The engine's words for tensors of a run that do not fit an operator (`OpError`): it read the graph before, so that the
/// request brought them.
const BLAMES: [&str; 3] = [
    "failed: conversion error for input",
    "failed: incompatible input shapes",
    "failed: input or attribute has invalid value",
];

/// The inputs, on which the memory of a run depends.
fn run_inputs<'a>(shared: &'a SharedGraph, inputs: EngineInputs<'a>) -> impl Iterator<Item = RunInput<'a>> + Clone {
    let of = |held: DataType, shape, contents| {
        let datatype = datatype::natural(held).unwrap_or(Datatype::Bytes);
        RunInput { shape, datatype, contents }
    };
    let ports =
        shared.inputs.iter().enumerate().map(move |(index, port)| {
            of(port.held, inputs.model_shape(index, port.is_squeezed), inputs.contents(index))
        });
    let made = shared.batch_inputs.iter().enumerate().map(move |(index, port)| {
        let (shape, contents) = inputs.batch_input(index);
        of(port.held, shape, contents)
    });
    ports.chain(made)
}

fn options(threads: &Threads) -> RunOptions {
    RunOptions::default().with_thread_pool(Some(Arc::clone(threads.pool())))
}

fn view<'a>(held: DataType, shape: &[i64], contents: &'a [u8]) -> Option<ValueOrView<'a>> {
    let sizes: Option<SmallVec<[usize; 6]>> = shape.iter().map(|dimension| usize::try_from(*dimension).ok()).collect();
    datatype::view(held, &sizes?, contents).map(ValueOrView::from)
}
