//! Requests of clients to the control thread (load, unload, index), and their answers on the way back, each by a
//! one-shot channel. Bounded by [`ControlRequests`] in number and in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;
use crate::limits::ORDERS_SIZE_MAX;
use crate::model::repository::index::IndexEntry;
use crate::protocol::repository::RepositoryOrder;
use crate::queue::one_shot::{Lease, OneShotReceiver, OneShotSender, one_shot};

/// Model control requests (load, unload, index) that wait at a time; beyond it clients get 503.
const ORDERS_MAX: usize = 256;

/// Answers one request, with the repository index if it asked for that, else with nothing.
pub type ControlReply = OneShotSender<Vec<IndexEntry>, ControlLease>;

/// Counts the requests that wait for the control thread, over all shards, and bounds their number and bytes.
#[derive(Default)]
pub struct ControlRequests {
    budget: Arc<RequestBudget>,
}

#[derive(Default)]
struct RequestBudget {
    count: AtomicUsize,
    size: AtomicUsize,
}

/// One request's share of the bounds, returned when the request is answered or dropped.
pub struct ControlLease {
    budget: Arc<RequestBudget>,
    size: usize,
    origin: Option<Arc<OrderOrigin>>,
}

/// The models that wait for an order given by one of them. Lives until the order is answered.
#[derive(Debug)]
pub struct OrderOrigin {
    /// Their names: the one that gave the order, and those that wait for it in turn.
    pub callers: Vec<String>,
}

impl ControlLease {
    /// The origin of the order; `None` for a client's.
    pub const fn origin(&self) -> Option<&Arc<OrderOrigin>> {
        self.origin.as_ref()
    }
}

impl ControlRequests {
    /// Admits a request of a client, or of a model, which is its origin: the end that the control thread answers
    /// through, and the end that is awaited.
    ///
    /// # Errors
    /// Unavailable if too many wait already, or hold too many bytes.
    pub fn admit(
        &self,
        order: &RepositoryOrder,
        origin: Option<Arc<OrderOrigin>>,
    ) -> Result<(ControlReply, OneShotReceiver<Vec<IndexEntry>>), Error> {
        let (budget, size) = (&self.budget, order.size());
        let take = |have: &AtomicUsize, more: usize, max: usize| {
            let within = |have: usize| have.checked_add(more).filter(|sum| *sum <= max);
            have.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
        };
        if !take(&budget.count, 1, ORDERS_MAX) {
            let text = format!("{ORDERS_MAX} model control requests wait (the limit); try again later");
            return Err(Error::unavailable(text));
        }
        if !take(&budget.size, size, ORDERS_SIZE_MAX) {
            budget.count.fetch_sub(1, Ordering::Relaxed);
            let text = format!("the model control requests that wait hold {ORDERS_SIZE_MAX} bytes (the limit)");
            return Err(Error::unavailable(text));
        }
        Ok(one_shot(ControlLease { budget: Arc::clone(budget), size, origin }))
    }
}

impl ControlRequests {
    /// Admits a request that waits for a model, if fewer than `count_max` do.
    pub fn admit_wait(&self, count_max: usize) -> Option<(ControlReply, OneShotReceiver<Vec<IndexEntry>>)> {
        let within = |have: usize| have.checked_add(1).filter(|sum| *sum <= count_max);
        self.budget.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).ok()?;
        Some(one_shot(ControlLease { budget: Arc::clone(&self.budget), size: 0, origin: None }))
    }
}

impl Drop for ControlLease {
    fn drop(&mut self) {
        self.budget.count.fetch_sub(1, Ordering::Relaxed);
        self.budget.size.fetch_sub(self.size, Ordering::Relaxed);
    }
}

impl Lease for ControlLease {
    fn closed() -> Error {
        Error::unavailable("server is stopping; model control requests are refused")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::repository::LoadOrder;

    fn load(size: usize) -> RepositoryOrder {
        let files = vec![("1/model.onnx".to_owned(), vec![0; size].into())];
        RepositoryOrder::Load(LoadOrder { name: "m".to_owned(), config: None, files, ..LoadOrder::default() })
    }

    #[test]
    fn requests_are_bounded_in_number_and_bytes_and_return_their_share() {
        let requests = ControlRequests::default();
        let held: Vec<_> = (0..ORDERS_MAX).map(|_| requests.admit(&load(0), None).unwrap()).collect();
        let error = requests.admit(&load(0), None).err().unwrap();
        assert!(error.text().contains("256 model control requests wait"), "{error}");
        drop(held);
        let large = requests.admit(&load(ORDERS_SIZE_MAX - 100), None).unwrap();
        let error = requests.admit(&load(200), None).err().unwrap();
        assert!(error.text().contains("hold 268435456 bytes"), "{error}");
        drop(large);
        assert!(requests.admit(&load(200), None).is_ok());
        assert_eq!(requests.budget.count.load(Ordering::Relaxed), 0);
        let waiting: Vec<_> = (0..3).map_while(|_| requests.admit_wait(2)).collect();
        assert_eq!((waiting.len(), requests.admit_wait(3).is_some()), (2, true));
        drop(waiting);
        assert_eq!(requests.budget.count.load(Ordering::Relaxed), 0);
        assert_eq!(requests.budget.size.load(Ordering::Relaxed), 0);
    }
}
