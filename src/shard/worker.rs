//! The thread of one instance: takes batches from the feed of its model version and runs them,
//! until the feed stops. Blocks in the engine; knows no socket and no shard.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Instance, Threads, answering};
use crate::shard::clock;
use crate::shard::feed::Feed;
use crate::shard::models::{Ran, Served, run_guarded};

/// The first pause after an instance could not be made anew; it doubles up to the last.
const RENEW_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two tries.
const RENEW_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Serves batches with an instance until the feed stops. An instance that dies is made anew, with
/// pauses; meanwhile its model version is not ready. A panic outside of a batch is a fault of this
/// server's: it costs the instance for good, and its text is the error.
pub fn run(
    served: &Served,
    feed: &Arc<Feed>,
    seat: usize,
    instance: Box<dyn Instance>,
    threads: &Threads,
    warn: fn(&str),
) -> Result<(), String> {
    guard(served, feed, seat, || serve(served, feed, seat, instance, threads, warn))
}

fn guard(served: &Served, feed: &Feed, seat: usize, body: impl FnOnce()) -> Result<(), String> {
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
    served: &Served,
    feed: &Arc<Feed>,
    seat: usize,
    mut instance: Box<dyn Instance>,
    threads: &Threads,
    warn: fn(&str),
) {
    let name = feed.seats().get(seat).map_or("", |seat| seat.name());
    if feed.seats().get(seat).is_some_and(|seat| seat.is_passive()) {
        return feed.wait_stopped(seat, clock::now);
    }
    while let Some(batch) = feed.next_batch(seat, clock::now) {
        match answering(|| run_guarded(&mut instance, batch, || served.loaded.new_instance(threads))) {
            Ran::Well => continue,
            Ran::Renewed => {
                feed.handle_death(seat, true, clock::now());
                continue;
            }
            Ran::Dead => {}
        }
        feed.rest(seat);
        feed.handle_death(seat, false, clock::now());
        served.handle_death();
        warn(&format!("instance '{name}' of '{}' died and cannot be made anew for now", served.spec.name));
        let mut pause = RENEW_PAUSE_MIN;
        while !feed.is_stopped() {
            std::thread::park_timeout(pause);
            pause = pause.saturating_mul(2).min(RENEW_PAUSE_MAX);
            let renewed = catch_unwind(AssertUnwindSafe(|| served.loaded.new_instance(threads)));
            if let Ok(Ok(new)) = renewed {
                instance = new;
                served.handle_revival();
                feed.handle_revival(seat, clock::now());
                warn(&format!("instance '{name}' of '{}' serves again", served.spec.name));
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::backend::{Batch, LoadedModel, threads};
    use crate::error::Error;
    use crate::model::ModelSpec;
    use crate::model::config::{Completion, Draft};
    use crate::scheduler::{Bounds, Entry, Policy, ShapeKey};
    use crate::shard::feed::{Hold, Lane, Waiting};
    use crate::shard::inbox::Inbox;
    use crate::shard::models::Placement;
    use crate::shard::ticket::Tickets;
    use crate::time::Stamps;

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
        let draft = Draft::new("m", Some(text.as_bytes()), &[]).unwrap();
        draft.complete(None, &BTreeMap::new(), Completion::default()).unwrap()
    }

    fn served(model: Arc<dyn LoadedModel>) -> (Arc<Served>, Arc<Feed>, Vec<Lane>) {
        let (feed, lanes) = Feed::new(Policy::default(), Bounds { requests: 8, bytes: 8 }, 1, 1);
        let served = Served::new(Arc::new(spec()), 1, model, Placement::Worker(Arc::clone(&feed)), 1);
        (Arc::new(served), feed, lanes)
    }

    fn submit(lane: &mut Lane, tickets: &Rc<Tickets>) {
        let (ticket, inbox) = (tickets.open().unwrap(), Arc::clone(tickets.inbox()));
        let (stamps, hold) = (Stamps::default(), Hold::default());
        let (inputs, mark, again) = (Vec::new(), None, None);
        let token = Waiting { inbox, ticket, inputs, rows: 1, size: 1, level: 0, mark, stamps, hold, again };
        let (shape_key, queued_at) = (ShapeKey::new(), clock::now());
        let (priority, timeout, deadline) = (0, Duration::ZERO, None);
        let entry = Entry { token, rows: 1, shape_key, queued_at, priority, timeout, deadline };
        if lane.submit(entry).ok().unwrap() {
            lane.feed().wake();
        }
    }

    fn answer(tickets: &Tickets) -> bool {
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
            let tickets = Rc::new(Tickets::new(Arc::new(Inbox::new())));
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

    #[test]
    fn a_panic_outside_of_a_batch_costs_the_instance_and_is_told() {
        let (served, feed, _lanes) = served(Arc::new(Mortal { failures: 0.into(), made: 0.into() }));
        let outcome = guard(&served, &feed, 0, || panic!("on {}", "purpose"));
        assert_eq!((outcome, served.is_ready()), (Err("on purpose".to_owned()), false));
        assert_eq!(panic_text(&7), "no text");
    }
}
