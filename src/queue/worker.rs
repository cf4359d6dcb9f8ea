//! The thread of one instance: takes batches from the feed of its model version and runs them,
//! until the feed stops. Blocks in the engine; knows no socket and no shard.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::backend::{InFlightState, Instance, Threads, answering};
use crate::runtime::clock;
use crate::queue::model_queue::{ModelQueue, NextWork};
use crate::shard::model_table::{RunOutcome, ServedModel, renew_guarded, run_guarded};

/// The first pause after an instance could not be made anew; it doubles up to the last.
const RENEW_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two tries.
const RENEW_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Serves batches with an instance until the feed stops. An instance that dies is made anew, with
/// pauses; meanwhile its model version is not ready. A panic outside of a batch is a fault of this
/// server's: it costs the instance for good, and its text is the error.
pub fn run(
    served: &ServedModel,
    feed: &Arc<ModelQueue>,
    seat: usize,
    instance: Box<dyn Instance>,
    threads: &Threads,
    warn: fn(&str),
) -> Result<(), String> {
    guard(served, feed, seat, || serve(served, feed, seat, instance, threads, warn))
}

fn guard(served: &ServedModel, feed: &ModelQueue, seat: usize, body: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        served.handle_death();
        // Others must not wait for what it holds. What panics here did so before, and is told.
        let _ = catch_unwind(AssertUnwindSafe(|| feed.retire(seat)));
        panic_text(&*panic)
    })
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text").to_owned()
}

fn serve(
    served: &ServedModel,
    feed: &Arc<ModelQueue>,
    seat: usize,
    mut instance: Box<dyn Instance>,
    threads: &Threads,
    warn: fn(&str),
) {
    let name = feed.seats().get(seat).map_or("", |seat| seat.name());
    if feed.seats().get(seat).is_some_and(|seat| seat.is_passive()) {
        return feed.wait_stopped(seat, clock::now);
    }
    let waker = feed.seats().get(seat).map_or_else(|| Waker::noop().clone(), |seat| Waker::from(Arc::clone(seat)));
    let make = || {
        let mut new = served.loaded.new_instance(threads)?;
        new.set_waker(waker.clone());
        Ok(new)
    };
    instance.set_waker(waker.clone());
    loop {
        let mut poll_flight = || answering(|| poll_guarded(&mut *instance));
        let ran = match feed.next_beside(seat, clock::now, &mut poll_flight) {
            NextWork::Batch(batch) => answering(|| run_guarded(&mut instance, batch, make)),
            NextWork::Lost => {
                warn(&format!("instance '{name}' of '{}' was lost and is made anew", served.spec.name));
                renew_guarded(&mut instance, make)
            }
            NextWork::Ended => return,
        };
        match ran {
            RunOutcome::Well => continue,
            RunOutcome::Renewed => {
                feed.handle_death(seat, true, clock::now());
                continue;
            }
            RunOutcome::Dead => {}
        }
        feed.rest(seat);
        feed.handle_death(seat, false, clock::now());
        served.handle_death();
        warn(&format!("instance '{name}' of '{}' died and cannot be made anew for now", served.spec.name));
        let mut pause = RENEW_PAUSE_MIN;
        while !feed.is_stopped() {
            std::thread::park_timeout(pause);
            pause = pause.saturating_mul(2).min(RENEW_PAUSE_MAX);
            if let Ok(Ok(new)) = catch_unwind(AssertUnwindSafe(make)) {
                instance = new;
                served.handle_revival();
                feed.handle_revival(seat, clock::now());
                warn(&format!("instance '{name}' of '{}' serves again", served.spec.name));
                break;
            }
        }
    }
}

/// What an instance says of its batches in flight; one that panics is lost.
fn poll_guarded(instance: &mut dyn Instance) -> InFlightState {
    let polled = catch_unwind(AssertUnwindSafe(|| instance.poll_flight(clock::now)));
    polled.unwrap_or(InFlightState { is_lost: true, ..InFlightState::default() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::backend::gpu::driver::GpuFault;
    use crate::backend::gpu::fake::Fake;
    use crate::backend::{Batch, LoadedModel, gpu, threads};
    use crate::error::Error;
    use crate::model::ModelSpec;
    use crate::model::config::{CompletionRules, ConfigDraft};
    use crate::scheduler::{Entry, Policy, QueueBounds, ShapeKey};
    use crate::queue::model_queue::{QueueProducer, QueuedRequest};
    use crate::queue::completions::Completions;
    use crate::shard::model_table::Placement;
    use crate::shard::request_slots::RequestSlots;

    /// A model whose first run panics, and which then cannot be made so many times.
    struct Mortal {
        failures: AtomicUsize,
        made: AtomicUsize,
    }

    struct Life {
        is_first: bool,
    }

    impl LoadedModel for Mortal {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            let is_first = self.made.load(Ordering::SeqCst) == 0;
            let fail = |left: usize| left.checked_sub(1);
            if !is_first && self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fail).is_ok() {
                return Err(Error::internal("on purpose"));
            }
            self.made.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Life { is_first }))
        }

        fn may_run_inline(&self) -> bool {
            false
        }
    }

    impl Instance for Life {
        fn run(&mut self, batch: Batch) {
            assert!(!self.is_first, "on purpose");
            batch.requests.into_iter().for_each(|request| request.responder.send(Ok(Vec::new())));
        }
    }

    fn spec() -> ModelSpec {
        let text = "backend: 'identity' input { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }\n\
                    output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }";
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap()
    }

    fn served(model: Arc<dyn LoadedModel>) -> (Arc<ServedModel>, Arc<ModelQueue>, Vec<QueueProducer>) {
        let (feed, lanes) = ModelQueue::new(Policy::default(), QueueBounds { requests: 8, bytes: 8 }, 1, 1);
        let served = ServedModel::new(Arc::new(spec()), 1, model, Placement::Worker(Arc::clone(&feed)), 1);
        (Arc::new(served), feed, lanes)
    }

    fn submit(lane: &mut QueueProducer, tickets: &Rc<RequestSlots>) {
        let (ticket, inbox) = (tickets.open().unwrap(), Arc::clone(tickets.inbox()));
        let token = QueuedRequest::plain(ticket, inbox);
        let (shape_key, queued_at) = (ShapeKey::new(), clock::now());
        let (priority, timeout, deadline) = (0, Duration::ZERO, None);
        let entry = Entry { token, rows: 1, shape_key, queued_at, priority, timeout, deadline };
        if lane.submit(entry).ok().unwrap() {
            lane.feed().wake();
        }
    }

    fn answer(tickets: &RequestSlots) -> bool {
        loop {
            if let Some((_, answer)) = tickets.inbox().poll_answer() {
                return answer.outputs.is_ok();
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_model_is_not_ready_while_an_instance_cannot_be_made_anew() {
        static WARNINGS: AtomicUsize = AtomicUsize::new(0);
        let warn = |_: &str| {
            WARNINGS.fetch_add(1, Ordering::SeqCst);
        };
        let mortal = Arc::new(Mortal { failures: AtomicUsize::new(2), made: AtomicUsize::new(0) });
        let (served, feed, mut lanes) = served(Arc::clone(&mortal) as Arc<dyn LoadedModel>);
        std::thread::scope(|scope| {
            let (loaded, of_worker) = (&*served.loaded, Arc::clone(&feed));
            let served = &*served;
            let worker = scope.spawn(move || {
                threads::enter(1, |threads| {
                    let instance = loaded.new_instance(threads).unwrap();
                    run(served, &of_worker, 0, instance, threads, warn)
                })
            });
            let tickets = Rc::new(RequestSlots::new(Arc::new(Completions::new())));
            assert!(served.is_ready());
            submit(&mut lanes[0], &tickets);
            assert!(!answer(&tickets), "its batch died with it");
            while served.is_ready() {
                std::thread::yield_now();
            }
            submit(&mut lanes[0], &tickets);
            assert!(answer(&tickets), "what waited meanwhile is answered");
            assert!(served.is_ready());
            feed.stop();
            assert_eq!(worker.join().unwrap(), Ok(()));
        });
        assert_eq!((mortal.made.load(Ordering::SeqCst), WARNINGS.load(Ordering::SeqCst)), (2, 2));
    }

    /// A model of one product, on a fake GPU, whose instances can be made so many times.
    struct OnGpu {
        gpu: Arc<gpu::Gpu>,
        left: AtomicUsize,
    }

    impl LoadedModel for OnGpu {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            let take = |left: usize| left.checked_sub(1);
            let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
            left.map_err(|_| Error::unavailable("too often"))?;
            Ok(Box::new(gpu::trial::instance(&self.gpu, 1, &Arc::default())?))
        }

        fn may_run_inline(&self) -> bool {
            false
        }
    }

    fn submit_row(lane: &mut QueueProducer, tickets: &Rc<RequestSlots>) {
        let (ticket, inbox) = (tickets.open().unwrap(), Arc::clone(tickets.inbox()));
        let token = QueuedRequest { inputs: vec![gpu::trial::row(1.0, 2.0)], ..QueuedRequest::plain(ticket, inbox) };
        let (shape_key, queued_at) = (ShapeKey::new(), clock::now());
        let (priority, timeout, deadline) = (0, Duration::ZERO, None);
        let entry = Entry { token, rows: 1, shape_key, queued_at, priority, timeout, deadline };
        if lane.submit(entry).ok().unwrap() {
            lane.feed().wake();
        }
    }

    fn until(condition: impl Fn() -> bool) {
        while !condition() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn two_batches_are_in_flight_and_the_third_waits_in_the_queue() {
        let fake = Fake::new(1);
        let model = Arc::new(OnGpu { gpu: fake.gpu(1 << 20, 1 << 20), left: AtomicUsize::new(1) });
        let (served, feed, mut lanes) = served(Arc::clone(&model) as Arc<dyn LoadedModel>);
        fake.hold();
        std::thread::scope(|scope| {
            let (served, of_worker) = (&*served, Arc::clone(&feed));
            let worker = scope.spawn(move || {
                threads::enter(1, |threads| {
                    let instance = served.loaded.new_instance(threads).unwrap();
                    run(served, &of_worker, 0, instance, threads, |_| {})
                })
            });
            let tickets = Rc::new(RequestSlots::new(Arc::new(Completions::new())));
            (0..3).for_each(|_| submit_row(&mut lanes[0], &tickets));
            until(|| feed.executions() == 2);
            std::thread::park_timeout(Duration::from_millis(5));
            assert_eq!((feed.executions(), feed.waiting()), (2, 1), "it may grow there, and be withdrawn");
            fake.finish(0);
            assert!(answer(&tickets));
            until(|| feed.executions() == 3);
            fake.finish(1);
            assert!(answer(&tickets));
            feed.stop();
            std::thread::park_timeout(Duration::from_millis(5));
            assert!(!worker.is_finished(), "what is in flight is waited for");
            until(|| fake.step(0));
            fake.finish(0);
            assert!(answer(&tickets));
            assert_eq!(worker.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn an_instance_whose_context_broke_is_made_anew_until_that_is_refused() {
        let fake = Fake::new(1);
        let model = Arc::new(OnGpu { gpu: fake.gpu(1 << 20, 1 << 20), left: AtomicUsize::new(2) });
        let (served, feed, mut lanes) = served(Arc::clone(&model) as Arc<dyn LoadedModel>);
        std::thread::scope(|scope| {
            let (served, of_worker) = (&*served, Arc::clone(&feed));
            let worker = scope.spawn(move || {
                threads::enter(1, |threads| {
                    let instance = served.loaded.new_instance(threads).unwrap();
                    run(served, &of_worker, 0, instance, threads, |_| {})
                })
            });
            let tickets = Rc::new(RequestSlots::new(Arc::new(Completions::new())));
            fake.fail_next("matmul", GpuFault::Sticky);
            submit_row(&mut lanes[0], &tickets);
            assert!(!answer(&tickets), "it was in flight");
            submit_row(&mut lanes[0], &tickets);
            assert!(answer(&tickets));
            assert!(served.is_ready());
            fake.break_contexts();
            submit_row(&mut lanes[0], &tickets);
            assert!(!answer(&tickets));
            until(|| !served.is_ready());
            model.left.store(1, Ordering::SeqCst);
            submit_row(&mut lanes[0], &tickets);
            assert!(answer(&tickets), "what waited meanwhile is answered");
            assert!(served.is_ready());
            feed.stop();
            assert_eq!(worker.join().unwrap(), Ok(()));
        });
        assert_eq!(fake.contexts(), 3);
    }

    #[test]
    fn a_panic_outside_of_a_batch_costs_the_instance_and_is_told() {
        let (served, feed, _lanes) = served(Arc::new(Mortal { failures: 0.into(), made: 0.into() }));
        let outcome = guard(&served, &feed, 0, || panic!("on {}", "purpose"));
        assert_eq!((outcome, served.is_ready()), (Err("on purpose".to_owned()), false));
        assert_eq!(panic_text(&7), "no text");
    }
}
