//! The models of a simulation. A request names its own fate, so that instances have no state.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::backend::trial::{spec, tensor};
use crate::backend::{Batch, InFlightState, Instance, LoadedModel, Request, Threads};
use crate::error::Error;
use crate::model::ModelSpec;
use crate::runtime::simulation::{self, SimulatedFault, is_planted, percent};
use crate::shard::simulation::plan::Deed;
use crate::tensor::{Datatype, Tensor};
use crate::time::{Clock, Instant};

/// The time after which a device that does not answer is given up.
const FENCE: Duration = Duration::from_secs(3);
/// Batches in flight on one instance.
const FLIGHTS_MAX: usize = 2;

/// The model of this name: vectors of numbers; the first is a nonce and the second the deed.
pub fn echo_spec(name: &str) -> Arc<ModelSpec> {
    let vector = |name| (name, Datatype::Int32, &[-1_i64][..]);
    Arc::new(ModelSpec { name: name.to_owned(), ..spec(4, &[vector("x")], &[vector("y")]) })
}

/// A loaded model.
pub struct SimulatedModel {
    /// The longest time of a batch, if batches are in flight beside the worker.
    pub flight: Option<Duration>,
    /// New instances of a hundred that cannot be made.
    pub failures: AtomicU64,
}

impl LoadedModel for SimulatedModel {
    fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
        let failures = self.failures.load(Ordering::Relaxed);
        if failures > 0 && percent(failures) {
            return Err(Error::unavailable("no room for another instance"));
        }
        Ok(match self.flight {
            Some(run_max) => Box::new(FlightInstance { run_max, flights: VecDeque::new() }),
            None => Box::new(EchoInstance),
        })
    }

    fn may_run_inline(&self) -> bool {
        true
    }
}

/// Answers while it runs.
struct EchoInstance;

impl Instance for EchoInstance {
    fn run(&mut self, mut batch: Batch) {
        swap_answers(&mut batch);
        let clock = batch.clock;
        batch.requests.into_iter().for_each(|request| answer(request, clock));
    }
}

/// Begins batches, and answers them when they are polled.
struct FlightInstance {
    run_max: Duration,
    flights: VecDeque<Flight>,
}

struct Flight {
    began: Instant,
    /// `None` if it hangs.
    done_at: Option<Instant>,
    batch: Batch,
}

impl Instance for FlightInstance {
    fn run(&mut self, batch: Batch) {
        let began = (batch.clock)();
        let hangs = batch.requests.iter().any(|request| deed(request) == Deed::Hang);
        let took = Duration::from_nanos(simulation::below(self.run_max.as_nanos() as u64));
        self.flights.push_back(Flight { began, done_at: (!hangs).then_some(began + took), batch });
    }

    fn poll_flight(&mut self, clock: Clock) -> InFlightState {
        let (now, mut ended_batch) = (clock(), None);
        let is_hung = |flight: &Flight| flight.done_at.is_none() && now.since(flight.began) >= FENCE;
        if self.flights.iter().any(is_hung) {
            self.flights.clear();
            return InFlightState { is_lost: true, ..InFlightState::default() };
        }
        // A stream: batches after one that hangs wait too.
        while let Some(flight) = self.flights.pop_front_if(|flight| flight.done_at.is_some_and(|at| at <= now)) {
            ended_batch = Some((flight.batch.rows, now.since(flight.began)));
            flight.batch.requests.into_iter().for_each(|request| answer(request, clock));
        }
        let next = self.flights.front().map(|first| first.done_at.unwrap_or(first.began + FENCE));
        InFlightState {
            batches: self.flights.len(),
            has_room: self.flights.len() < FLIGHTS_MAX,
            look_again: next.map(|at| at.since(now)),
            ended_batch,
            was_alone: false,
            is_lost: false,
            ahead: 0,
            at_once: 1,
        }
    }
}

fn numbers(request: &Request) -> Vec<i32> {
    let contents = request.inputs.first().map_or(&[][..], |input| &input.contents[..]);
    contents.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect()
}

fn deed(request: &Request) -> Deed {
    Deed::from_number(numbers(request).get(1).copied().unwrap_or(0))
}

/// Does what a request asks for.
fn answer(mut request: Request, clock: Clock) {
    if is_planted(SimulatedFault::AnswerForgotten) && request.responder.has_left() {
        return std::mem::forget(request.responder);
    }
    let (now, deed) = (clock(), deed(&request));
    let stamps = &mut request.responder.stamps;
    (stamps.input_end, stamps.infer_end, stamps.output_end) = (now, now, now);
    match deed {
        Deed::Echo | Deed::Hang => request.responder.send(Ok(request.inputs)),
        Deed::Fail => request.responder.send(Err(Error::internal("on purpose"))),
        Deed::Drop => drop(request.responder),
        // Without output on the terminal.
        Deed::Panic => resume_unwind(Box::new("on purpose")),
        Deed::WrongShape => request.responder.send(Ok(vec![wrong()])),
    }
}

fn wrong() -> Tensor {
    Tensor { shape: [1, 9].into_iter().collect(), ..tensor(&[1, 2], &[0_i32; 2]) }
}

/// The planted fault: the first two requests get each other's answers.
fn swap_answers(batch: &mut Batch) {
    if let [first, second, ..] = &mut batch.requests[..]
        && is_planted(SimulatedFault::AnswersSwapped)
    {
        std::mem::swap(&mut first.inputs, &mut second.inputs);
    }
}
