//! The rate limit as the instances of all models share it: [`Rate`] behind one lock, taken by
//! instance threads, twice for a batch, and never while anything runs; and the waking of those
//! whose resources come free. It is there only with `--rate-limit=execution_count`. Models register
//! when they are loaded, on threads of their loads, and are forgotten with their queue. Where a queue is
//! locked too, the queue's lock is taken first.

#![expect(clippy::disallowed_types, reason = "per batch, among instance threads, and only where a rate limit is set")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::queue::model_queue::Parking;
use crate::scheduler::rate::{Demand, Rate, RateError, Supply};

/// Who may run, of all instances that take resources.
pub struct RateLimiter {
    shares: Mutex<RateShares>,
}

struct RateShares {
    rate: Rate,
    /// By the ids of `rate`.
    parkings: BTreeMap<usize, Arc<Parking>>,
}

/// The instances of one model version among those that take resources, for as long as it is held.
pub struct RateRegistration {
    limiter: Arc<RateLimiter>,
    ids: Range<usize>,
}

type GrantedInstances = SmallVec<[(usize, Arc<Parking>); 4]>;

impl RateLimiter {
    /// Nothing is registered. Without a supply there is as much of each resource as the instance that
    /// needs most of it needs.
    pub fn new(supplies: Vec<Supply>) -> Self {
        Self { shares: Mutex::new(RateShares { rate: Rate::new(supplies), parkings: BTreeMap::new() }) }
    }

    /// Registers the instances of a model version, all or none. Those of others that wait may run by
    /// what that adds.
    pub fn register(self: &Arc<Self>, demands: &[Demand]) -> Result<RateRegistration, RateError> {
        let mut shares = self.lock();
        let ids = shares.rate.register(demands)?;
        let granted = shares.grant();
        drop(shares);
        wake(&granted);
        Ok(RateRegistration { limiter: Arc::clone(self), ids })
    }

    /// The last run of an instance, if there was one, is over, and it has work or has none.
    /// Answers whether it may run it; if not, it is woken when it may.
    pub fn ask(&self, id: usize, is_ready: bool) -> bool {
        let mut shares = self.lock();
        shares.rate.handle_end(id);
        if is_ready {
            shares.rate.handle_ask(id);
        } else {
            shares.rate.handle_withdraw(id);
        }
        let mut granted = shares.grant();
        let is_granted = shares.rate.is_granted(id);
        debug_assert!(is_ready || !(is_granted || shares.rate.is_waiting(id)), "who has no work holds nothing");
        shares.set_blocked(id, shares.rate.is_waiting(id));
        drop(shares);
        granted.retain(|(granted, _)| *granted != id);
        wake(&granted);
        is_granted
    }

    /// An instance that may run begins to, and these others of its model have no work any more.
    /// Answers whether any of them had been waiting.
    pub fn start(&self, id: usize, siblings: impl Iterator<Item = usize>) -> bool {
        let mut shares = self.lock();
        shares.rate.handle_start(id);
        debug_assert!(!shares.rate.is_granted(id), "what was granted is used once");
        if let Some(parking) = shares.parkings.get(&id) {
            parking.set_turn(shares.rate.pass(id));
        }
        let mut is_any_idle = false;
        for sibling in siblings.filter(|sibling| *sibling != id) {
            is_any_idle |= shares.rate.is_waiting(sibling) || shares.rate.is_granted(sibling);
            shares.rate.handle_withdraw(sibling);
            shares.set_blocked(sibling, false);
        }
        let granted = shares.grant();
        drop(shares);
        wake(&granted);
        is_any_idle
    }

    fn lock(&self) -> MutexGuard<'_, RateShares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RateRegistration {
    /// The ids of the instances, in the order of their demands.
    pub fn ids(&self) -> Range<usize> {
        self.ids.clone()
    }

    /// The limiter.
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Where the instances sleep: before any of them asks. Those that have no id are not registered.
    pub fn sit<'a>(&self, parkings: impl IntoIterator<Item = &'a Arc<Parking>>) {
        let by_id = parkings.into_iter().filter_map(|parking| Some((parking.rate_id()?, Arc::clone(parking))));
        self.limiter.lock().parkings.extend(by_id);
    }
}

impl Drop for RateRegistration {
    fn drop(&mut self) {
        let mut shares = self.limiter.lock();
        shares.rate.unregister(self.ids.clone());
        shares.parkings.retain(|id, _| !self.ids.contains(id));
        let granted = shares.grant();
        drop(shares);
        wake(&granted);
    }
}

impl RateShares {
    fn grant(&mut self) -> GrantedInstances {
        let mut granted = GrantedInstances::new();
        while let Some(id) = self.rate.poll_grant() {
            self.set_blocked(id, false);
            debug_assert!(self.parkings.contains_key(&id), "who asks has a seat to be woken in");
            granted.extend(self.parkings.get(&id).map(|parking| (id, Arc::clone(parking))));
        }
        granted
    }

    fn set_blocked(&self, id: usize, is_blocked: bool) {
        if let Some(parking) = self.parkings.get(&id) {
            parking.set_blocked(is_blocked);
        }
    }
}

/// An instance that was about to sleep is not asleep yet, and asks once more before it is.
fn wake(granted: &GrantedInstances) {
    for (_, parking) in granted {
        parking.unpark();
    }
}
