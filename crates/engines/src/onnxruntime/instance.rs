//! One instance: runs a session on gathered inputs.
//!
//! The reason for a plain run with borrowed inputs, without `IoBinding`: on the CPU a binding
//! copies borrowed inputs, and it would save only the copy of the outputs, which is saved here by
//! sharing their memory. On a GPU it is the same run: the library copies inputs from the host and
//! outputs to it. A device that fails costs the instance ([`super::fence`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use ort::session::{Session, SessionInputValue};
use ort::value::{DynValue, ValueType};
use smallvec::SmallVec;

use backend::batch::InputConversion;
use backend::engine_run::{EngineInputs, EngineInstance};
use backend::run_watch::RunStopper;
use backend::text::output_differs;
use base::error::Error;
use base::tensor::{AlignedBuffer, Datatype, Shape, Tensor};
use model::ModelSpec;

use super::bind::{InputSource, OrtBinding};
use super::fence::DeviceFence;
use super::run_options::SharedRunOptions;
use super::session::{SessionTarget, SharedSession};
use super::{datatype, run_failure, told};

/// One instance: a session and the state shared with the model's others.
pub(super) struct OnnxruntimeInstance {
    shared: Arc<SharedSession>,
    options: Arc<SharedRunOptions>,
    /// `None` only while the instance is dropped.
    session: Option<Session>,
    threads: usize,
    /// The fence, if it is on a GPU. Declared, and so dropped, after the session, which needs its
    /// context.
    fence: Option<DeviceFence>,
}

/// The outputs of a run, in the order of the configuration.
type SessionOutputs = SmallVec<[DynValue; 4]>;

impl OnnxruntimeInstance {
    /// Takes or opens a session on this many threads; on the fence's device if there is one.
    pub(super) fn new(shared: Arc<SharedSession>, threads: usize, fence: Option<DeviceFence>) -> Result<Self, Error> {
        let target = match &fence {
            Some(fence) => SessionTarget::Gpu(fence.opened(), threads, None),
            None => SessionTarget::Cpu(threads),
        };
        let session = Some(shared.take_session(target)?);
        let options = shared.recipe.options.run_options(shared.spec.outputs.iter().map(|output| output.name.as_str()));
        let options = Arc::new(SharedRunOptions::new(options.map_err(|error| told(&error))?));
        Ok(Self { shared, options, session, threads, fence })
    }

    fn output(&self, port: OrtBinding, value: DynValue, inputs: EngineInputs<'_>) -> Result<Tensor, Error> {
        let (spec, index) = (&self.shared.spec, port.index);
        let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
            return Err(output_differs(spec, index, "no tensor"));
        };
        let Some(datatype) = datatype::natural(*ty).filter(|datatype| *datatype == port.datatype) else {
            return Err(output_differs(spec, index, &ty.to_string()));
        };
        // A configuration cannot express a scalar: it declares a last dimension of 1. Compared with the value
        // and not with the file, which need not declare an output's shape.
        let lacks_one = spec.outputs.get(index).is_some_and(|output| {
            output.scatter_source.is_none() && output.may_be_scalar() && shape.len() + 1 == output.model_shape.len()
        });
        let shape: Shape = shape.iter().copied().chain(lacks_one.then_some(1)).collect();
        let Some(session) = &self.session else { return Err(Error::internal("the instance is being dropped")) };
        let contents = datatype::contents(value, datatype, &session.inner())?;
        // A graph may hand an input through as an output: its memory is the request's, and freed before
        // the answer is written.
        let is_input = |input: usize| contains(inputs.contents(input), &contents);
        let is_batch_input = |input: usize| contains(inputs.batch_input(input).1, &contents);
        let is_borrowed = (0..spec.inputs.len()).any(is_input) || (0..spec.batch_inputs.len()).any(is_batch_input);
        // The shared memory keeps the session alive, and with it the device's context. A broken
        // context cannot be replaced before all instances have released it, so answers of GPU
        // instances are copied.
        let contents = if is_borrowed || self.fence.is_some() { copied(&contents) } else { contents };
        Ok(Tensor { datatype, shape, contents })
    }
}

impl EngineInstance for OnnxruntimeInstance {
    type Outputs = SessionOutputs;

    fn conversion(datatype: Datatype) -> InputConversion {
        datatype::conversion(datatype)
    }

    fn spec(&self) -> &Arc<ModelSpec> {
        &self.shared.spec
    }

    fn compute(&mut self, batch: EngineInputs<'_>) -> Result<SessionOutputs, Error> {
        let Self { shared, options, session, fence, .. } = self;
        if let Some(fence) = fence {
            fence.handle_begin();
        }
        let inputs = shared.inputs.iter().map(|source| match *source {
            InputSource::Batch { index, datatype } => {
                let (shape, contents) = batch.batch_input(index);
                datatype::value(datatype, shape, contents)
            }
            InputSource::Request(port) => input(port, batch),
        });
        let inputs: SmallVec<[SessionInputValue<'_>; 4]> = inputs.collect::<Result<_, _>>()?;
        // An optional input that was left out is not passed, as in Triton's backend.
        let given = shared.optional.iter().filter(|port| !batch.shape(port.index).is_empty());
        let given = given.map(|port| Ok((*port, input(*port, batch)?))).collect::<Result<Vec<_>, Error>>()?;
        let session = session.as_mut().ok_or_else(|| Error::internal("the instance is being dropped"))?;
        let run = || -> ort::Result<SessionOutputs> {
            let outputs = if given.is_empty() {
                session.run_with_options(&inputs[..], options.get())?
            } else {
                let names = session.inputs().iter().map(|outlet| outlet.name().to_owned()).collect::<Vec<_>>();
                let spec = &shared.spec;
                let name =
                    |port: OrtBinding| spec.inputs.get(port.index).map_or_else(String::new, |input| input.name.clone());
                let given = given.into_iter().map(|(port, value)| (name(port), value));
                session
                    .run_with_options(names.into_iter().zip(inputs).chain(given).collect::<Vec<_>>(), options.get())?
            };
            Ok(outputs.into_iter().map(|(_, value)| value).collect())
        };
        // The crate panics if the library returns values that its interface does not allow.
        let outcome = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(outcome) => outcome.map_err(|error| run_failure(&error)),
            Err(_) => Err(Error::internal("ONNX Runtime returned what its interface does not allow")),
        };
        outcome.map_err(|error| error.with_prefix(&format!("model '{}': ", shared.spec.name)))
    }

    fn outputs(&self, values: SessionOutputs, inputs: EngineInputs<'_>) -> impl Iterator<Item = Result<Tensor, Error>> {
        self.shared.outputs.iter().zip(values).map(move |(port, value)| self.output(*port, value, inputs))
    }

    fn handle_end(&mut self, outcome: Result<SessionOutputs, Error>, took: Duration) -> Result<SessionOutputs, Error> {
        match &mut self.fence {
            None => outcome,
            Some(fence) => outcome.inspect(|_| fence.handle_success(took)).map_err(|error| fence.handle_failure(error)),
        }
    }

    fn is_lost(&self) -> bool {
        self.fence.as_ref().is_some_and(DeviceFence::is_lost)
    }

    fn poll_lost(&mut self) -> Option<Error> {
        self.fence.as_mut().and_then(DeviceFence::poll_lost)
    }

    fn set_waker(&mut self, waker: Waker) {
        if let Some(fence) = &mut self.fence {
            fence.set_waker(waker);
        }
    }

    fn stopper(&self) -> Option<RunStopper> {
        let options = Arc::clone(&self.options);
        Some(Box::new(move || options.stop()))
    }

    fn handle_stopped(&mut self) {
        self.options.reset();
    }
}

impl Drop for OnnxruntimeInstance {
    fn drop(&mut self) {
        let session = self.session.take();
        if let Some(fence) = &self.fence {
            drop(session);
            return fence.opened().context().handle_foreign_call();
        }
        // A session that a panic unwound through may be broken: it is closed, not reused.
        if let Some(session) = session.filter(|_| !std::thread::panicking()) {
            self.shared.keep_session(self.threads, session);
        }
    }
}

fn copied(contents: &[u8]) -> bytes::Bytes {
    let mut buffer = AlignedBuffer::with_capacity(contents.len());
    buffer.extend_from_slice(contents);
    buffer.freeze()
}

fn input<'a>(port: OrtBinding, batch: EngineInputs<'a>) -> Result<SessionInputValue<'a>, Error> {
    let shape = batch.model_shape(port.index, port.is_squeezed);
    datatype::value(port.datatype, shape, batch.contents(port.index))
}

/// Returns true if some bytes lie inside others.
fn contains(whole: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && whole.as_ptr_range().contains(&part.as_ptr())
}
