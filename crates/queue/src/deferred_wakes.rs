//! Defers the wake-ups of instances to the end of a shard's turn, so that a burst of requests costs one wake-up per
//! queue instead of one per request, and forms larger batches.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::model_queue::ModelQueue;

/// The queues to wake at the end of this turn.
#[derive(Default)]
pub struct DeferredWakes {
    model_queues: RefCell<Vec<Arc<ModelQueue>>>,
    waker: RefCell<Option<Waker>>,
}

impl DeferredWakes {
    /// A request was queued, and an instance of this queue must be woken.
    pub fn handle_submission(&self, model_queue: &Arc<ModelQueue>) {
        let mut model_queues = self.model_queues.borrow_mut();
        if model_queues.iter().any(|have| Arc::ptr_eq(have, model_queue)) {
            return;
        }
        model_queues.push(Arc::clone(model_queue));
        // The executor runs woken tasks in order: tasks that are ready now, and may queue more, run before this one.
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Wakes the instances at the end of each turn, for as long as the shard lives.
    pub async fn run(&self) {
        poll_fn::<(), _>(|context| {
            *self.waker.borrow_mut() = Some(context.waker().clone());
            for model_queue in self.model_queues.take() {
                model_queue.wake();
            }
            Poll::Pending
        })
        .await;
    }
}
