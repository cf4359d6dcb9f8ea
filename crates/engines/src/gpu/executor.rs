//! The GPU executor: one instance of a model on a device. Its worker's thread stages a batch,
//! enqueues upload, program and download on the stream of a free slot, and goes back to the queue:
//! the next batch is uploaded while this one computes. The driver wakes it when a batch is done; it
//! then reads the results and answers. Nothing waits for the device, and no batch allocates device
//! memory.
//!
//! A failure that breaks the context costs the instance: its batches in flight are answered with
//! 503, and the worker recreates it in a new context. A batch that never ends has the same effect.
//!
//! Bounded by `GPU_FLIGHTS_MAX` batches, [`GPU_RUN_MAX`] for one unless a flag sets another
//! limit, and the accounts of memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::gpu::answer;
use crate::gpu::program::{GpuProgram, ProgramSource};
use crate::gpu::slot::{BatchSlot, InFlightBatch, OutputTransfer};
use crate::gpu::slot_sizes::SlotSizes;
use crate::limits::{GPU_FLIGHTS_MAX, GPU_POLL};
use backend::batch::{answer_all, check_request, check_tensors};
use backend::gpu::device::OpenDevice;
use backend::gpu::driver::{DriverError, GpuFault};
use backend::gpu::figures::GpuInstanceFigures;
use backend::{Batch, InFlightState, Instance, OutputNeed, Request};
use base::error::Error;
use base::limits::GPU_RUN_MAX;
use base::time::Clock;
use model::ModelSpec;

/// One instance on a device; it lives on one thread.
pub struct GpuInstance {
    /// Ended before the program, whose weights their batches read.
    slots: Vec<BatchSlot>,
    spec: Arc<ModelSpec>,
    program: Arc<dyn GpuProgram>,
    opened: Arc<OpenDevice>,
    figures: Arc<GpuInstanceFigures>,
    sizes: Arc<SlotSizes>,
    /// The slots with a batch, the oldest first.
    order: VecDeque<usize>,
    /// Requests of a failed batch, each of which runs alone.
    apart: VecDeque<Request>,
    refuses_inputs: bool,
    waker: Arc<Waker>,
    batch_output: Option<(u32, Duration)>,
    run_max: Duration,
    is_lost: bool,
}

impl GpuInstance {
    /// Allocates the memory of its slots.
    pub fn new(
        spec: &Arc<ModelSpec>,
        blueprint: &dyn ProgramSource,
        program: Arc<dyn GpuProgram>,
        opened: &Arc<OpenDevice>,
        figures: &Arc<GpuInstanceFigures>,
    ) -> Result<Self, DriverError> {
        let sizes = blueprint.sizes();
        let mut slots = Vec::with_capacity(GPU_FLIGHTS_MAX);
        for _ in 0..GPU_FLIGHTS_MAX {
            let blas = if blueprint.needs_blas() { Some(opened.context().new_blas()?) } else { None };
            let mut slot = BatchSlot::new(opened, &sizes, blas)?;
            slot.prepare(&*program)?;
            slots.push(slot);
        }
        Ok(Self {
            spec: Arc::clone(spec),
            program,
            opened: Arc::clone(opened),
            figures: Arc::clone(figures),
            sizes,
            slots,
            order: VecDeque::with_capacity(GPU_FLIGHTS_MAX),
            apart: VecDeque::new(),
            refuses_inputs: blueprint.refuses_inputs(),
            waker: Arc::new(Waker::noop().clone()),
            batch_output: None,
            run_max: GPU_RUN_MAX,
            is_lost: false,
        })
    }

    /// The same with another limit on the run of a batch.
    pub fn with_run_max(self, run_max: Duration) -> Self {
        Self { run_max, ..self }
    }

    /// Checks that a request is as configured, and that its tensors on a device are in this
    /// context.
    fn check(&self, request: &Request) -> Result<(), Error> {
        let Some(tensors) = request.on_device().filter(|_| !self.sizes.keeps_staged) else {
            return check_request(&self.spec, request);
        };
        if tensors.leases().any(|lease| !Arc::ptr_eq(lease.opened(), &self.opened)) {
            // The context was replaced while the request waited: its address belongs to other
            // memory here.
            return Err(lost("tensors of the request were in its last context"));
        }
        let rows = usize::try_from(request.rows).unwrap_or(usize::MAX);
        let rows = if self.spec.has_batch_axis() { rows } else { 1 };
        let size = |index: usize| self.sizes.outputs.get(index).and_then(|row| row.checked_mul(rows));
        if tensors.outputs.iter().any(|(index, lease)| size(*index) != Some(lease.size())) {
            return Err(Error::internal("memory for an output is not of its size"));
        }
        check_tensors(&self.spec, request)
    }

    /// Begins a batch in a free slot, if one becomes free in time.
    fn begin(&mut self, requests: Vec<Request>, clock: Clock) {
        while !self.is_lost && self.order.len() == self.slots.len() {
            // Only for a caller that did not check for room.
            std::thread::park_timeout(GPU_POLL);
            self.look(clock);
        }
        if self.is_lost {
            return answer_all(requests, &lost("it failed before"));
        }
        let rows = requests.iter().map(|request| usize::try_from(request.rows).unwrap_or(usize::MAX));
        let rows = if self.spec.has_batch_axis() { rows.fold(0, usize::saturating_add) } else { 1 };
        if rows > self.sizes.rows_max {
            let (name, most) = (&self.spec.name, self.sizes.rows_max);
            let text = format!("a batch of {rows} rows came to an instance of model '{name}' that takes {most}");
            return answer_all(requests, &Error::internal(text));
        }
        let Some(index) = self.slots.iter().position(BatchSlot::is_free) else {
            return answer_all(requests, &lost("none of its slots is free"));
        };
        let wanted = (0..self.spec.outputs.len()).map(|output| wanted(&self.sizes, output, &requests)).collect();
        let in_flight = InFlightBatch { requests, rows, began: clock(), wanted, failure: None };
        let Some(slot) = self.slots.get_mut(index) else { return };
        self.order.push_back(index);
        self.figures.batches_begun.add(1);
        self.figures.flights_peak.raise(self.order.len() as u64);
        if let Err(error) = slot.begin(in_flight, &*self.program, &self.waker) {
            // The end of the batch will never be known.
            self.lose(&DriverError { fault: GpuFault::Sticky, ..error });
        }
    }

    /// Answers the batches that are done.
    fn look(&mut self, clock: Clock) {
        if self.is_lost {
            return;
        }
        if self.opened.is_broken() {
            return self.lose(&DriverError {
                fault: GpuFault::Sticky,
                text: "another instance broke the context that they share".to_owned(),
            });
        }
        let mut place = 0;
        while let Some(index) = self.order.get(place).copied() {
            let Some(slot) = self.slots.get_mut(index) else { return };
            match slot.is_done() {
                Ok(true) => {
                    self.order.remove(place);
                    self.land(index, clock);
                    if self.is_lost {
                        return;
                    }
                }
                Err(error) if error.is_sticky() => return self.lose(&error),
                // If the driver could not tell, the next look may, but not without limit.
                Ok(false) | Err(_) => {
                    let now = clock();
                    if slot.began().is_some_and(|began| now.since(began) > self.run_max) {
                        return self.give_up();
                    }
                    place += 1;
                }
            }
        }
        while !self.is_lost && self.order.len() < self.slots.len() {
            let Some(mut request) = self.apart.pop_front() else { return };
            request.responder.set_batch(request.rows, true);
            self.begin(vec![request], clock);
        }
    }

    /// Answers the batch in a slot, whose last event was passed.
    fn land(&mut self, index: usize, clock: Clock) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        let Some((in_flight, outputs)) = slot.land() else { return };
        let InFlightBatch { mut requests, rows, began, failure, .. } = in_flight;
        let now = clock();
        if let Some(error) = failure {
            self.figures.count_failure(error.fault);
            let is_sticky = error.is_sticky();
            if error.fault == GpuFault::Transient && self.refuses_inputs && requests.len() > 1 {
                // One of them alone may have caused it.
                return self.apart.extend(requests);
            }
            let told = Error::from(error.clone()).with_prefix(&format!("model '{}': ", self.spec.name));
            answer_all(requests, &told);
            if is_sticky {
                self.lose(&error);
            }
            return;
        }
        requests.iter().filter_map(Request::on_device).flat_map(|tensors| &tensors.outputs).for_each(|(_, lease)| {
            lease.set_written();
        });
        let times = slot.times();
        self.figures.handle_success(&times);
        self.batch_output = Some((u32::try_from(rows).unwrap_or(u32::MAX), now.since(began)));
        let infer_end = now - times.download;
        let input_end = (infer_end - times.compute).max(began);
        let output_end = clock();
        for request in &mut requests {
            let stamps = &mut request.responder.stamps;
            (stamps.input_end, stamps.infer_end, stamps.output_end) = (input_end, infer_end.max(began), output_end);
        }
        answer::answer(&self.spec, outputs, requests);
    }

    /// The context is broken: answers all batches in flight.
    fn lose(&mut self, error: &DriverError) {
        self.opened.set_broken();
        self.end(&error.text);
        self.figures.count_failure(GpuFault::Sticky);
    }

    /// A batch does not end: the memory that the device may still write to is left to it.
    fn give_up(&mut self) {
        self.opened.set_hung();
        self.end(&format!("a batch was not done within {:?}", self.run_max));
        self.figures.hangs.add(1);
    }

    fn end(&mut self, why: &str) {
        self.is_lost = true;
        let error = lost(why).with_prefix(&format!("model '{}': ", self.spec.name));
        self.order.clear();
        for slot in &mut self.slots {
            answer_all(slot.abandon(), &error);
        }
        answer_all(self.apart.drain(..).collect(), &error);
    }
}

impl Instance for GpuInstance {
    fn run(&mut self, batch: Batch) {
        let Batch { requests, clock, .. } = batch;
        let offered = requests.len();
        let mut accepted = Vec::with_capacity(offered);
        for request in requests {
            match self.check(&request) {
                Ok(()) => accepted.push(request),
                Err(error) => request.responder.send(Err(error)),
            }
        }
        if !self.spec.has_batch_axis() {
            for mut request in accepted {
                request.responder.set_batch(request.rows, true);
                self.begin(vec![request], clock);
            }
            return;
        }
        if accepted.len() < offered {
            let rows = accepted.iter().fold(0_u32, |sum, request| sum.saturating_add(request.rows));
            for (index, request) in accepted.iter_mut().enumerate() {
                request.responder.set_batch(rows, index == 0);
            }
        }
        if !accepted.is_empty() {
            self.begin(accepted, clock);
        }
    }

    fn poll_flight(&mut self, clock: Clock) -> InFlightState {
        self.look(clock);
        InFlightState {
            batches: self.order.len() + self.apart.len(),
            has_room: self.apart.is_empty() && self.order.len() < self.slots.len(),
            look_again: (!self.order.is_empty()).then_some(GPU_POLL),
            ended_batch: self.batch_output.take(),
            // Copies of one batch overlap with the program of another.
            was_alone: false,
            is_lost: self.is_lost,
            ahead: 0,
            at_once: 1,
        }
    }

    fn set_waker(&mut self, waker: Waker) {
        self.waker = self.opened.keep(waker);
    }
}

/// Returns the part of an output to download: the largest that a request needs.
fn wanted(sizes: &SlotSizes, output: usize, requests: &[Request]) -> OutputTransfer {
    let mut most = 0;
    for request in requests {
        match request.responder.output_needs.of(output) {
            OutputNeed::Whole => return OutputTransfer::Whole,
            OutputNeed::Classes(count) => most = most.max(count),
            OutputNeed::Nothing => {}
        }
    }
    match most {
        0 => OutputTransfer::Nothing,
        most => sizes.best_count(output, most).map_or(OutputTransfer::Whole, OutputTransfer::Best),
    }
}

/// Returns the error for requests of a lost instance, which did not cause the loss.
pub(crate) fn lost(why: &str) -> Error {
    Error::unavailable(format!("its instance on the GPU was lost and is recreated: {why}; try again"))
}

#[cfg(test)]
mod tests;
