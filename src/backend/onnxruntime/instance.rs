//! One instance: gathers a batch, runs a session on it, cuts its outputs apart.
//!
//! A plain run with borrowed inputs, rather than an `IoBinding`: on the CPU a binding copies
//! borrowed inputs, and what it saves, the copy of the outputs, is saved here by sharing their
//! memory. A batch whose run fails is run again request by request, so that a bad request fails
//! alone. On a GPU it is the same run: the library takes inputs from the host and brings outputs there;
//! a device that fails costs the instance ([`super::fence`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use ort::session::{HasSelectedOutputs, RunOptions, Session, SessionInputValue};
use ort::value::{DynValue, ValueType};
use smallvec::SmallVec;

use crate::backend::batch::{Gather, answer_all, check_output, scatter};
use crate::backend::batch_input::BatchInputs;
use crate::backend::{Batch, InFlightState, Instance, Request};
use crate::error::Error;
use crate::tensor::{AlignedBuffer, Shape, Tensor};
use crate::time::Clock;

use super::bind::{InputSource, OrtBinding};
use super::fence::DeviceFence;
use super::session::{SessionTarget, SharedSession};
use super::{datatype, told};

/// An instance; it lives on one thread.
pub(super) struct OnnxruntimeInstance {
    shared: Arc<SharedSession>,
    gather: Gather,
    batch_inputs: BatchInputs,
    options: RunOptions<HasSelectedOutputs>,
    /// Until the instance is dropped.
    session: Option<Session>,
    threads: usize,
    /// Where it is on a GPU; given back after the session.
    fence: Option<DeviceFence>,
}

/// What a session gave, by the places of the configuration's outputs.
type SessionOutputs = SmallVec<[DynValue; 4]>;

impl OnnxruntimeInstance {
    /// With a session on so many threads, or beyond a fence.
    pub(super) fn new(shared: Arc<SharedSession>, threads: usize, fence: Option<DeviceFence>) -> Result<Self, Error> {
        let seat = match &fence {
            Some(fence) => SessionTarget::Gpu(fence.opened(), threads, None),
            None => SessionTarget::Cpu(threads),
        };
        let session = Some(shared.take_session(seat)?);
        let options = shared.recipe.options.run_options(shared.spec.outputs.iter().map(|output| output.name.as_str()));
        let options = options.map_err(|error| told(&error))?;
        let feeds = shared.spec.inputs.iter().map(|input| datatype::feed(input.datatype));
        let gather = Gather::new(Arc::clone(&shared.spec), feeds);
        let batch_inputs = BatchInputs::new(Arc::clone(&shared.spec));
        Ok(Self { shared, gather, batch_inputs, options, session, threads, fence })
    }

    /// Runs requests as one batch.
    fn run_together(&mut self, requests: Vec<Request>, clock: Clock) {
        let mut requests = self.gather.gather(requests);
        if requests.is_empty() {
            return;
        }
        if let Err(error) = self.batch_inputs.make(&requests) {
            return answer_all(requests, &error);
        }
        let input_end = clock();
        if let Some(fence) = &self.fence {
            fence.handle_begin();
        }
        let outcome = self.compute(&requests);
        let infer_end = clock();
        let outcome = match &mut self.fence {
            None => outcome,
            Some(fence) => outcome
                .inspect(|_| fence.handle_success(infer_end.since(input_end)))
                .map_err(|error| fence.handle_failure(error)),
        };
        match outcome {
            Ok(values) => {
                let outputs = self.outputs(values, &requests);
                let output_end = clock();
                for request in &mut requests {
                    let stamps = &mut request.responder.stamps;
                    (stamps.input_end, stamps.infer_end, stamps.output_end) = (input_end, infer_end, output_end);
                }
                match outputs {
                    Ok(outputs) => scatter(&self.shared.spec, outputs, requests),
                    Err(error) => answer_all(requests, &error),
                }
            }
            Err(_) if requests.len() > 1 && !self.is_lost() => self.run_apart(requests, clock),
            Err(error) => answer_all(requests, &error),
        }
    }

    /// Runs each request as a batch of its own.
    fn run_apart(&mut self, requests: Vec<Request>, clock: Clock) {
        for mut request in requests {
            if let Some(error) = self.fence.as_mut().and_then(DeviceFence::poll_lost) {
                request.responder.send(Err(error));
                continue;
            }
            request.responder.set_batch(request.rows, true);
            self.run_together(vec![request], clock);
        }
    }

    fn is_lost(&self) -> bool {
        self.fence.as_ref().is_some_and(DeviceFence::is_lost)
    }

    /// One run of the session.
    fn compute(&mut self, requests: &[Request]) -> Result<SessionOutputs, Error> {
        let Self { shared, gather, batch_inputs, options, session, .. } = self;
        let inputs = shared.inputs.iter().map(|source| match *source {
            InputSource::Batch { index, datatype } => {
                datatype::value(datatype, batch_inputs.shape(index), batch_inputs.contents(index))
            }
            InputSource::Request(port) => input(gather, port, requests),
        });
        let inputs: SmallVec<[SessionInputValue<'_>; 4]> = inputs.collect::<Result<_, _>>()?;
        // An optional input that was left out is not bound, as in Triton's backend.
        let given = shared.optional.iter().filter(|port| !gather.shape(port.index).is_empty());
        let given =
            given.map(|port| Ok((*port, input(gather, *port, requests)?))).collect::<Result<Vec<_>, Error>>()?;
        let session = session.as_mut().ok_or_else(|| Error::internal("the instance is being dropped"))?;
        let run = || -> ort::Result<SessionOutputs> {
            let outputs = if given.is_empty() {
                session.run_with_options(&inputs[..], options)?
            } else {
                let names = session.inputs().iter().map(|outlet| outlet.name().to_owned()).collect::<Vec<_>>();
                let spec = &shared.spec;
                let name =
                    |port: OrtBinding| spec.inputs.get(port.index).map_or_else(String::new, |input| input.name.clone());
                let given = given.into_iter().map(|(port, value)| (name(port), value));
                session.run_with_options(names.into_iter().zip(inputs).chain(given).collect::<Vec<_>>(), options)?
            };
            Ok(outputs.into_iter().map(|(_, value)| value).collect())
        };
        // The crate panics where the library breaks its own rules.
        let outcome = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(outcome) => outcome.map_err(|error| told(&error)),
            Err(_) => Err(Error::internal("ONNX Runtime gave what its interface does not allow")),
        };
        outcome.map_err(|error| error.with_prefix(&format!("model '{}': ", shared.spec.name)))
    }

    /// The outputs as the configuration says they are.
    fn outputs(&self, values: SessionOutputs, requests: &[Request]) -> Result<Vec<Tensor>, Error> {
        let ports = self.shared.outputs.iter().zip(values);
        ports.map(|(port, value)| self.output(*port, value, requests)).collect()
    }

    fn output(&self, port: OrtBinding, value: DynValue, requests: &[Request]) -> Result<Tensor, Error> {
        let (spec, index) = (&self.shared.spec, port.index);
        let ValueType::Tensor { ty, shape, .. } = value.dtype() else { return Err(self.differs(port, "no tensor")) };
        let Some(datatype) = datatype::natural(*ty).filter(|datatype| *datatype == port.datatype) else {
            return Err(self.differs(port, &ty.to_string()));
        };
        // The configuration shows a scalar as one element; what the file says of an output's shape
        // may be nothing.
        let lacks_one = spec.outputs.get(index).is_some_and(|output| {
            output.scatter_source.is_none() && output.may_be_scalar() && shape.len() + 1 == output.model_shape.len()
        });
        let shape: Shape = shape.iter().copied().chain(lacks_one.then_some(1)).collect();
        let Some(session) = &self.session else { return Err(Error::internal("the instance is being dropped")) };
        let contents = datatype::contents(value, datatype, &session.inner())?;
        // An output that is an input would be gone with the request.
        let is_input = |input: usize| contains(self.gather.contents(input, requests), &contents);
        let is_made = |input: usize| contains(self.batch_inputs.contents(input), &contents);
        let is_borrowed = (0..spec.inputs.len()).any(is_input) || (0..spec.batch_inputs.len()).any(is_made);
        // An answer keeps the session, and with it the device's context, beyond the instance.
        let contents = if is_borrowed || self.fence.is_some() { copied(&contents) } else { contents };
        let output = Tensor { datatype, shape, contents };
        check_output(spec, index, &output, self.gather.rows(), requests)?;
        Ok(output)
    }

    fn differs(&self, port: OrtBinding, came: &str) -> Error {
        let spec = &self.shared.spec;
        let name = spec.outputs.get(port.index).map_or("", |output| &output.name);
        let want = port.datatype.name();
        Error::internal(format!("output '{name}' of model '{}' must be {want} but came as {came}", spec.name))
    }
}

impl Drop for OnnxruntimeInstance {
    fn drop(&mut self) {
        let session = self.session.take();
        if let Some(fence) = &self.fence {
            drop(session);
            return fence.opened().context().handle_foreign_call();
        }
        // What a panic went through is not used again.
        if let Some(session) = session.filter(|_| !std::thread::panicking()) {
            self.shared.keep_session(self.threads, session);
        }
    }
}

impl Instance for OnnxruntimeInstance {
    fn run(&mut self, batch: Batch) {
        if let Some(error) = self.fence.as_mut().and_then(DeviceFence::poll_lost) {
            return answer_all(batch.requests, &error);
        }
        if batch.requests.len() > 1 && !self.shared.spec.has_batch_axis() {
            self.run_apart(batch.requests, batch.clock);
        } else {
            self.run_together(batch.requests, batch.clock);
        }
    }

    fn poll_flight(&mut self, _clock: Clock) -> InFlightState {
        let is_lost = self.fence.as_mut().and_then(DeviceFence::poll_lost).is_some();
        InFlightState { is_lost, ..InFlightState::default() }
    }

    fn set_waker(&mut self, waker: Waker) {
        if let Some(fence) = &mut self.fence {
            fence.set_waker(waker);
        }
    }
}

fn copied(contents: &[u8]) -> bytes::Bytes {
    let mut buffer = AlignedBuffer::with_capacity(contents.len());
    buffer.extend_from_slice(contents);
    buffer.freeze()
}

fn input<'a>(gather: &'a Gather, port: OrtBinding, requests: &'a [Request]) -> Result<SessionInputValue<'a>, Error> {
    let shape = gather.shape(port.index);
    let rank = shape.len() - usize::from(port.is_squeezed && !shape.is_empty());
    let shape = shape.get(..rank).unwrap_or_default();
    datatype::value(port.datatype, shape, gather.contents(port.index, requests))
}

/// Whether some bytes lie inside others.
fn contains(whole: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && whole.as_ptr_range().contains(&part.as_ptr())
}
