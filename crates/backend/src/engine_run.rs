//! One run of a batch, for both ONNX engines: gathers the inputs, runs the engine, checks the
//! outputs and cuts them apart. The engine-specific part is an [`EngineInstance`].
//!
//! A batch whose run fails is run again request by request, so that a bad request fails alone.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::batch::{Gather, InputConversion, OutputRows, answer_all, check_output, scatter};
use crate::batch_input::BatchInputs;
use crate::blame;
use crate::run_watch::{RunEnd, RunStopper, RunWatch, WatchedRun};
use crate::{Batch, InFlightState, Instance, Request, Threads};
use base::error::{Code, Error};
use base::tensor::{Datatype, Tensor, mapped};
use base::time::{Clock, Instant};
use model::ModelSpec;

/// One loaded copy of a model in an engine, which runs gathered inputs.
pub trait EngineInstance: Send {
    /// The result of a run.
    type Outputs;

    /// The conversion of inputs of a datatype for the engine.
    fn conversion(datatype: Datatype) -> InputConversion;

    /// The model.
    fn spec(&self) -> &Arc<ModelSpec>;

    /// Sets the inputs that requests left out, if the engine has no default of its own.
    fn fill_defaults(&self, _requests: &mut [Request]) {}

    /// Runs the engine once. A panic of the engine is caught here and returned as an error.
    ///
    /// # Errors
    ///
    /// If the engine does not take an input, or the run failed; the text names the model.
    fn compute(&mut self, inputs: EngineInputs<'_>) -> Result<Self::Outputs, Error>;

    /// Returns the outputs of a run in the order of the configuration, each in the configured
    /// datatype and rank, or [`output_differs`](crate::text::output_differs) for one of another. The caller checks their shapes.
    fn outputs(&self, values: Self::Outputs, inputs: EngineInputs<'_>) -> impl Iterator<Item = Result<Tensor, Error>>;

    /// A run ended. Returns the outcome for its requests: an engine on a device may replace the
    /// error by the device's own.
    fn handle_end(&mut self, outcome: Result<Self::Outputs, Error>, _took: Duration) -> Result<Self::Outputs, Error> {
        outcome
    }

    /// Returns true if a run or a poll found the device lost, so that requests must not be tried
    /// again.
    fn is_lost(&self) -> bool {
        false
    }

    /// Returns the reason why the instance can no longer run, if it cannot.
    fn poll_lost(&mut self) -> Option<Error> {
        None
    }

    /// Makes the engine compute on these threads from now on.
    fn set_threads(&mut self, _threads: &Threads) {}

    /// Sets the waker to call when the device is lost.
    fn set_waker(&mut self, _waker: Waker) {}

    /// Stops a run from another thread; `None` if the engine cannot be stopped.
    fn stopper(&self) -> Option<RunStopper> {
        None
    }

    /// A run was stopped and has returned: the next one must not be stopped.
    fn handle_stopped(&mut self) {}
}

/// The gathered inputs of one run, by their places in the configuration.
#[derive(Clone, Copy)]
pub struct EngineInputs<'a> {
    gather: &'a Gather,
    batch_inputs: &'a BatchInputs,
    requests: &'a [Request],
}

impl<'a> EngineInputs<'a> {
    /// The shape of an input; empty if an optional input was left out.
    pub fn shape(&self, index: usize) -> &'a [i64] {
        self.gather.shape(index)
    }

    /// The shape of an input as the model has it: without the last dimension of 1 if `is_squeezed`.
    pub fn model_shape(&self, index: usize, is_squeezed: bool) -> &'a [i64] {
        let shape = self.shape(index);
        let rank = shape.len() - usize::from(is_squeezed && !shape.is_empty());
        shape.get(..rank).unwrap_or_default()
    }

    /// The bytes of an input, in the engine's datatype; at a mapped address even if it is empty.
    pub fn contents(&self, index: usize) -> &'a [u8] {
        mapped(self.gather.contents(index, self.requests))
    }

    /// The shape and the bytes of a batch input; at a mapped address even if it is empty.
    pub fn batch_input(&self, index: usize) -> (&'a [i64], &'a [u8]) {
        (self.batch_inputs.shape(index), mapped(self.batch_inputs.contents(index)))
    }
}

/// The [`Instance`] of an ONNX engine: gathers each batch, runs the engine's own instance on it and answers the
/// requests before [`Instance::run`] returns.
pub struct BatchedInstance<E> {
    engine: E,
    spec: Arc<ModelSpec>,
    gather: Gather,
    batch_inputs: BatchInputs,
    /// The watch, if its runs have a time limit, and the run that is lent to it.
    watch: Option<(Arc<RunWatch>, Box<WatchedRun>)>,
    /// True if an output once came without the rows of its batch: no batch of this model can be cut
    /// apart.
    runs_apart: bool,
}

/// The result of an engine's run, and the ends of its inputs and of the run.
type EngineRun<T> = (Result<T, Error>, Instant, Instant);

impl<E: EngineInstance> BatchedInstance<E> {
    /// Wraps an engine's instance.
    pub fn new(engine: E) -> Self {
        let spec = Arc::clone(engine.spec());
        let conversions = spec.inputs.iter().map(|input| E::conversion(input.datatype));
        let gather = Gather::new(Arc::clone(&spec), conversions);
        let batch_inputs = BatchInputs::new(Arc::clone(&spec));
        Self { engine, spec, gather, batch_inputs, watch: None, runs_apart: false }
    }

    /// Runs requests as one batch.
    fn run_together(&mut self, requests: Vec<Request>, clock: Clock) {
        let mut requests = self.gather.gather(requests);
        if requests.is_empty() {
            // All were refused, and answered with their errors.
            return;
        }
        if let Err(error) = self.batch_inputs.make(&requests) {
            return answer_all(requests, &error);
        }
        let Some((outcome, input_end, infer_end)) = self.compute(&mut requests, clock) else { return };
        match outcome {
            Ok(values) => {
                let outputs = self.outputs(values, &requests);
                let output_end = clock();
                for request in &mut requests {
                    let stamps = &mut request.responder.stamps;
                    (stamps.input_end, stamps.infer_end, stamps.output_end) = (input_end, infer_end, output_end);
                }
                self.runs_apart |= matches!(outputs, Ok((_, OutputRows::Unknown)));
                match outputs {
                    Ok((_, OutputRows::Unknown)) if requests.len() > 1 => self.run_apart(requests, clock),
                    Ok((outputs, _)) => scatter(&self.spec, outputs, requests),
                    Err(error) => answer_all(requests, &error),
                }
            }
            // One bad request fails the whole run, and the engine does not name it. Each of them
            // could take as long as the limit again.
            Err(error) if requests.len() > 1 && !self.engine.is_lost() && error.code() != Code::DeadlineExceeded => {
                self.run_apart(requests, clock);
            }
            Err(error) => {
                let error = match requests.as_slice() {
                    [request] => blame::with_inputs(error, &self.spec, request),
                    _ => error,
                };
                answer_all(requests, &error);
            }
        }
    }

    /// Runs the engine on gathered requests; `None` if the run took so long that they were answered
    /// meanwhile.
    fn compute(&mut self, requests: &mut [Request], clock: Clock) -> Option<EngineRun<E::Outputs>> {
        let Self { engine, gather, batch_inputs, watch, .. } = self;
        let input_end = clock();
        if let Some((watch, run)) = watch {
            watch.handle_begin(std::mem::take(run), requests, input_end);
        }
        let outcome = engine.compute(EngineInputs { gather, batch_inputs, requests });
        let infer_end = clock();
        let outcome = engine.handle_end(outcome, infer_end.since(input_end));
        let Some((watch, run)) = watch else { return Some((outcome, input_end, infer_end)) };
        let (ended, end) = watch.handle_end(requests);
        *run = ended;
        match end {
            RunEnd::Finished => Some((outcome, input_end, infer_end)),
            RunEnd::GivenUp => None,
            RunEnd::Stopped(error) => {
                engine.handle_stopped();
                Some((Err(error), input_end, infer_end))
            }
        }
    }

    /// Runs each request as a batch of its own.
    fn run_apart(&mut self, mut requests: Vec<Request>, clock: Clock) {
        // If a run is given up, the requests after it are answered too.
        if let Some((_, run)) = &mut self.watch {
            run.put_behind(&mut requests);
        }
        for mut request in requests {
            if let Some((_, run)) = &mut self.watch {
                let Some(responder) = run.take_behind() else { return };
                request.responder = responder;
            }
            // An earlier run may have broken the device.
            if let Some(error) = self.engine.poll_lost() {
                request.responder.send(Err(error));
                continue;
            }
            // Each of these runs counts as an execution of its own.
            request.responder.set_batch(request.rows, true);
            self.run_together(vec![request], clock);
        }
    }

    /// Returns the outputs as the configuration declares them, and whether all have the rows of the
    /// batch.
    fn outputs(&self, values: E::Outputs, requests: &[Request]) -> Result<(Vec<Tensor>, OutputRows), Error> {
        let Self { engine, spec, gather, batch_inputs, .. } = self;
        let inputs = EngineInputs { gather, batch_inputs, requests };
        let mut rows = OutputRows::AsExpected;
        let check = |(index, output): (usize, Result<Tensor, Error>)| {
            let output = output?;
            rows = rows.max(check_output(spec, index, &output, gather.rows(), requests)?);
            Ok(output)
        };
        let outputs = engine.outputs(values, inputs).enumerate().map(check).collect::<Result<Vec<_>, Error>>()?;
        if outputs.len() != spec.outputs.len() {
            let (name, want, came) = (&spec.name, spec.outputs.len(), outputs.len());
            return Err(Error::internal(format!("a run of model '{name}' gave {came} outputs of {want}")));
        }
        Ok((outputs, rows))
    }
}

impl<E: EngineInstance> Instance for BatchedInstance<E> {
    fn run(&mut self, mut batch: Batch) {
        if let Some(error) = self.engine.poll_lost() {
            return answer_all(batch.requests, &error);
        }
        self.engine.fill_defaults(&mut batch.requests);
        if batch.requests.len() > 1 && (self.runs_apart || !self.spec.has_batch_axis()) {
            self.run_apart(batch.requests, batch.clock);
        } else {
            self.run_together(batch.requests, batch.clock);
        }
    }

    fn poll_flight(&mut self, _clock: Clock) -> InFlightState {
        InFlightState { is_lost: self.engine.poll_lost().is_some(), ..InFlightState::default() }
    }

    fn set_threads(&mut self, threads: &Threads) {
        self.engine.set_threads(threads);
    }

    fn set_waker(&mut self, waker: Waker) {
        self.engine.set_waker(waker);
    }

    fn set_watch(&mut self, watch: Arc<RunWatch>) {
        watch.set_stopper(self.engine.stopper());
        self.watch = Some((watch, Box::default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{TrialAnswers, spec, tensor};

    /// Returns the values of `x` that are not zero; its file declares one for each row.
    struct Filter {
        spec: Arc<ModelSpec>,
        runs: usize,
    }

    impl EngineInstance for Filter {
        type Outputs = Tensor;

        fn conversion(_: Datatype) -> InputConversion {
            InputConversion { alignment: 1, convert: None }
        }

        fn spec(&self) -> &Arc<ModelSpec> {
            &self.spec
        }

        fn compute(&mut self, inputs: EngineInputs<'_>) -> Result<Tensor, Error> {
            self.runs += 1;
            let kept: Vec<u8> = inputs.contents(0).iter().copied().filter(|value| *value > 0).collect();
            Ok(tensor(&[kept.len() as i64], &kept))
        }

        fn outputs(&self, output: Tensor, _: EngineInputs<'_>) -> impl Iterator<Item = Result<Tensor, Error>> {
            std::iter::once(Ok(output))
        }
    }

    #[test]
    fn a_batch_that_cannot_be_cut_apart_runs_request_by_request_from_then_on() {
        let mut spec = spec(8, &[("x", Datatype::Uint8, &[])], &[("y", Datatype::Uint8, &[])]);
        spec.outputs[0].is_derived = true;
        let spec = Arc::new(spec);
        let instance = || BatchedInstance::new(Filter { spec: Arc::clone(&spec), runs: 0 });
        let answers = TrialAnswers::default();
        let check = |instance: &mut BatchedInstance<Filter>, parts: &[&[u8]], want: &[&[u8]], runs: usize| {
            let request = |part: &&[u8]| (vec![tensor(&[part.len() as i64], part)], part.len() as u32);
            instance.run(answers.batch(parts.iter().map(request).collect()));
            let got = answers.outputs(parts.len() as u32);
            let want: Vec<_> = want.iter().map(|part| Ok(vec![tensor(&[part.len() as i64], part)])).collect();
            assert_eq!(got, want, "{parts:?}");
            assert_eq!(std::mem::take(&mut instance.engine.runs), runs, "{parts:?}");
        };
        let mut first = instance();
        check(&mut first, &[&[1, 2], &[3]], &[&[1, 2], &[3]], 1);
        check(&mut first, &[&[1, 0], &[3, 4]], &[&[1], &[3, 4]], 3);
        check(&mut first, &[&[1, 2], &[3]], &[&[1, 2], &[3]], 2);
        // A single request shows it too.
        let mut second = instance();
        check(&mut second, &[&[1, 0, 2]], &[&[1, 2]], 1);
        check(&mut second, &[&[1, 0], &[3, 4]], &[&[1], &[3, 4]], 2);
    }
}
