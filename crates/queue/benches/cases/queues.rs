//! Queues: the scheduler alone, and the way of requests from a shard to a worker and back, on one thread.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use backend::{Answer, AnswerPart, AnswerSink as _, OutputNeeds, Ticket, answering_myself};
use base::limits::IN_FLIGHT_MAX;
use base::time::{Instant, Stamps};
use queue::completions::Completions;
use queue::model_queue::ModelQueue;
use queue::queued_request::QueuedRequest;
use scheduler::{Claims, Entry, Policy, QueueBounds, Scheduler, ShapeKey};

use super::Work;

/// Requests in one run.
const COUNT: u32 = 64;

fn policy() -> Policy {
    Policy { rows_max: COUNT, is_batched: true, ..Policy::default() }
}

fn entry<T>(token: T) -> Entry<T> {
    let (shape_key, timeout) = (ShapeKey::new(), Duration::ZERO);
    Entry { token, rows: 1, shape_key, queued_at: Instant::ZERO, priority: 0, timeout, deadline: None }
}

/// Clients that never go away.
struct All;

impl Claims<u32> for All {
    fn is_waiting(&mut self, _: &u32) -> bool {
        true
    }

    fn claim(&mut self, _: &u32) -> bool {
        true
    }
}

pub fn scheduler() -> (Work, usize) {
    let mut scheduler = Scheduler::new(policy());
    let work = move || {
        for token in 0..COUNT {
            assert!(scheduler.handle_request(entry(token), Instant::ZERO).is_ok());
        }
        let batch = scheduler.poll_batch(Instant::ZERO, &mut All).expect("it is full");
        assert_eq!(black_box(batch).rows, COUNT);
    };
    (Box::new(work), 0)
}

pub fn model_queue() -> (Work, usize) {
    let bounds = QueueBounds { requests: IN_FLIGHT_MAX, bytes: 1 << 20 };
    let (model_queue, mut producers) = ModelQueue::new(policy(), bounds, 1, 1);
    let completions = Arc::new(Completions::new());
    let mut generation = 0;
    let work = move || {
        generation += 1;
        let producer = producers.first_mut().expect("there is one");
        for index in 0..COUNT {
            let (ticket, completions) = (Ticket { index, generation }, Arc::clone(&completions));
            completions.open(ticket);
            let waiting = QueuedRequest {
                completions,
                ticket,
                inputs: Vec::new(),
                rows: 1,
                size: 64,
                level: 0,
                mark: None,
                stamps: Stamps::default(),
                details: None,
                again: None,
                output_needs: OutputNeeds::default(),
            };
            assert!(producer.submit(entry(waiting)).is_ok());
        }
        let batch = model_queue.next_batch(0, || Instant::ZERO).expect("it is full");
        answering_myself(|| batch.requests.into_iter().for_each(|request| request.responder.send(Ok(Vec::new()))));
        let answers = std::iter::from_fn(|| completions.poll_answer()).count();
        assert_eq!(black_box(answers), COUNT as usize);
    };
    (Box::new(work), 0)
}

pub fn completions() -> (Work, usize) {
    let completions = Completions::new();
    let work = move || {
        for index in 0..COUNT {
            let answer = Answer {
                outputs: Ok(Vec::new()),
                stamps: Stamps::default(),
                batch_rows: 1,
                is_first: index == 0,
                part: AnswerPart::Last,
                parameters: None,
            };
            completions.push(Ticket { index, generation: 1 }, answer);
        }
        let answers = std::iter::from_fn(|| completions.poll_answer()).count();
        assert_eq!(black_box(answers), COUNT as usize);
    };
    (Box::new(work), 0)
}
