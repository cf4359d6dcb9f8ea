//! One instance: gathers a batch, runs the engine on it, cuts its outputs apart.
//!
//! A batch whose run fails is run again request by request, so that a bad request fails alone.
//! A panic of the engine is a failed run: the model's own state is not changed by runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rten::{DataType, NodeId, RunErrorKind, RunOptions, Value, ValueOrView};
use smallvec::SmallVec;

use crate::backend::batch::{Gather, answer_all, check_output, scatter};
use crate::backend::batch_input::BatchInputs;
use crate::backend::{Batch, Instance, Request, Threads};
use crate::error::Error;
use crate::tensor::{Shape, Tensor};
use crate::time::Clock;

use super::bind::{BatchBinding, RtenBinding};
use super::{SharedGraph, datatype};

/// An instance; it lives on one thread.
pub(super) struct RtenInstance {
    shared: Arc<SharedGraph>,
    gather: Gather,
    batch_inputs: BatchInputs,
    options: RunOptions,
}

impl RtenInstance {
    pub(super) fn new(shared: Arc<SharedGraph>, threads: &Threads) -> Self {
        let feeds = shared.inputs.iter().map(|port| datatype::feed(port.datatype));
        let gather = Gather::new(Arc::clone(&shared.spec), feeds);
        let batch_inputs = BatchInputs::new(Arc::clone(&shared.spec));
        Self { shared, gather, batch_inputs, options: options(threads) }
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
        let outcome = self.compute(&requests);
        let infer_end = clock();
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
            Err(_) if requests.len() > 1 => self.run_apart(requests, clock),
            Err(error) => answer_all(requests, &error),
        }
    }

    /// Runs each request as a batch of its own.
    fn run_apart(&mut self, requests: Vec<Request>, clock: Clock) {
        for mut request in requests {
            request.responder.set_batch(request.rows, true);
            self.run_together(vec![request], clock);
        }
    }

    /// One run of the engine.
    fn compute(&self, requests: &[Request]) -> Result<Vec<Value>, Error> {
        let ports = self.shared.inputs.iter().enumerate().map(|(index, port)| self.input(index, *port, requests));
        let made = self.shared.batch_inputs.iter().enumerate().map(|(index, port)| self.batch_input(index, *port));
        let inputs = ports.chain(made).collect::<Result<_, _>>()?;
        let run = || self.shared.model.run(inputs, &self.shared.output_nodes, Some(self.options.clone()));
        let name = &self.shared.spec.name;
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(values)) => Ok(values),
            Ok(Err(error)) if error.kind() == RunErrorKind::InvalidInput => {
                Err(Error::invalid(format!("model '{name}': {error}")))
            }
            Ok(Err(error)) => Err(Error::internal(format!("model '{name}': {error}"))),
            Err(_) => Err(Error::internal(format!("model '{name}': the embedded engine panicked on this request"))),
        }
    }

    fn input<'a>(
        &'a self,
        index: usize,
        port: RtenBinding,
        requests: &'a [Request],
    ) -> Result<(NodeId, ValueOrView<'a>), Error> {
        let shape = self.gather.shape(index);
        let rank = shape.len() - usize::from(port.is_squeezed && !shape.is_empty());
        let shape = shape.get(..rank).unwrap_or_default();
        let view = view(port.held, shape, self.gather.contents(index, requests));
        view.map(|view| (port.node, view)).ok_or_else(|| {
            Error::internal(format!("input {index} of model '{}' was not staged", self.shared.spec.name))
        })
    }

    fn batch_input(&self, index: usize, port: BatchBinding) -> Result<(NodeId, ValueOrView<'_>), Error> {
        let view = view(port.held, self.batch_inputs.shape(index), self.batch_inputs.contents(index));
        view.map(|view| (port.node, view)).ok_or_else(|| {
            Error::internal(format!("batch input {index} of model '{}' was not made", self.shared.spec.name))
        })
    }

    /// Puts the model's own value where a request left an input out.
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

    /// The outputs as the configuration says they are.
    fn outputs(&self, values: Vec<Value>, requests: &[Request]) -> Result<Vec<Tensor>, Error> {
        let ports = self.shared.outputs.iter().enumerate();
        ports.zip(values).map(|((index, port), value)| self.output(index, *port, value, requests)).collect()
    }

    fn output(&self, index: usize, port: RtenBinding, value: Value, requests: &[Request]) -> Result<Tensor, Error> {
        let spec = &self.shared.spec;
        let shape: Shape = datatype::shape(&value).chain(port.is_squeezed.then_some(1)).collect();
        let kind = value.dtype();
        let contents = datatype::contents(value, port.datatype).ok_or_else(|| {
            let name = spec.outputs.get(index).map_or("", |output| &output.name);
            let (want, came) = (port.datatype.name(), datatype::kind_name(kind));
            Error::internal(format!("output '{name}' of model '{}' must be {want} but came as {came}", spec.name))
        })?;
        let output = Tensor { datatype: port.datatype, shape, contents };
        check_output(spec, index, &output, self.gather.rows(), requests)?;
        Ok(output)
    }
}

impl Instance for RtenInstance {
    fn run(&mut self, mut batch: Batch) {
        self.fill_defaults(&mut batch.requests);
        if batch.requests.len() > 1 && !self.shared.spec.has_batch_axis() {
            self.run_apart(batch.requests, batch.clock);
        } else {
            self.run_together(batch.requests, batch.clock);
        }
    }

    fn set_threads(&mut self, threads: &Threads) {
        self.options = options(threads);
    }
}

fn options(threads: &Threads) -> RunOptions {
    RunOptions::default().with_thread_pool(Some(Arc::clone(threads.pool())))
}

fn view<'a>(held: DataType, shape: &[i64], contents: &'a [u8]) -> Option<ValueOrView<'a>> {
    let sizes: Option<SmallVec<[usize; 6]>> = shape.iter().map(|dimension| usize::try_from(*dimension).ok()).collect();
    datatype::view(held, &sizes?, contents).map(ValueOrView::from)
}
