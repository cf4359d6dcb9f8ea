//! Wakes the instances that a shard queued requests for: once when it has looked at all that came,
//! not once for each request. Lives on its shard.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::queue::model_queue::ModelQueue;

/// The queues to wake at the end of this turn.
#[derive(Default)]
pub struct DeferredWakes {
    model_queues: RefCell<Vec<Arc<ModelQueue>>>,
    waker: RefCell<Option<Waker>>,
}

impl DeferredWakes {
    /// A request was queued whose instances must be woken.
    pub fn handle_submission(&self, model_queue: &Arc<ModelQueue>) {
        let mut model_queues = self.model_queues.borrow_mut();
        if model_queues.iter().any(|have| Arc::ptr_eq(have, model_queue)) {
            return;
        }
        model_queues.push(Arc::clone(model_queue));
        // Its task comes after all that are ready now, those that will queue more among them.
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Wakes, for as long as the shard lives.
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
