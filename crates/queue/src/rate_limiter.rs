//! The rate limit that the instances of all models share: [`Rate`] behind one lock, and the wake-ups of instances whose
//! resources become free. Instance threads take the lock twice per batch, never while a batch runs. Exists only with
//! `--rate-limit=execution_count`. A model registers when it is loaded, on its load's thread, and is unregistered with
//! its queue. Lock order: a model queue's lock first, then this one.

#![expect(clippy::disallowed_types, reason = "per batch, among instance threads, and only where a rate limit is set")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::parking::Parking;
use scheduler::rate::{Demand, Rate, RateError, Supply};

/// Decides which of the instances that need resources may run.
pub struct RateLimiter {
    shares: Mutex<RateShares>,
}

struct RateShares {
    rate: Rate,
    /// By the ids of `rate`.
    parkings: BTreeMap<usize, Arc<Parking>>,
}

/// The registration of one model version's instances; dropping it unregisters them.
pub struct RateRegistration {
    limiter: Arc<RateLimiter>,
    ids: Range<usize>,
}

type GrantedInstances = SmallVec<[(usize, Arc<Parking>); 4]>;

impl RateLimiter {
    /// Creates it without registrations. Without a supply, there is as much of each resource as the
    /// instance with the largest need requires.
    pub fn new(supplies: Vec<Supply>) -> Self {
        Self { shares: Mutex::new(RateShares { rate: Rate::new(supplies), parkings: BTreeMap::new() }) }
    }

    /// Registers the instances of a model version, all or none. That may raise a limit, so waiting
    /// instances of other models may be granted their needs.
    ///
    /// # Errors
    /// [`RateError`] if a resource is scarcer than one instance needs, or both global and of a
    /// device.
    pub fn register(self: &Arc<Self>, demands: &[Demand]) -> Result<RateRegistration, RateError> {
        let mut shares = self.lock();
        let ids = shares.rate.register(demands)?;
        let granted = shares.grant();
        drop(shares);
        wake(&granted);
        Ok(RateRegistration { limiter: Arc::clone(self), ids })
    }

    /// An instance is between two runs: frees the resources of its last run, and asks for its
    /// resources if it has work (`is_ready`). Returns true if it may run now; otherwise it is woken
    /// when it may.
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
        debug_assert!(
            is_ready || !(is_granted || shares.rate.is_waiting(id)),
            "an instance without work has no resources"
        );
        shares.set_blocked(id, shares.rate.is_waiting(id));
        drop(shares);
        granted.retain(|(granted, _)| *granted != id);
        wake(&granted);
        is_granted
    }

    /// An instance that was granted its resources begins a run, and these siblings of its model
    /// have no work left. Returns true if any of them had asked for resources.
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
    /// Returns the ids of the instances, in the order of their demands.
    pub fn ids(&self) -> Range<usize> {
        self.ids.clone()
    }

    /// Returns the limiter.
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Sets the parkings of the instances, before any of them asks. Parkings without a rate id are
    /// skipped.
    pub fn set_parkings<'a>(&self, parkings: impl IntoIterator<Item = &'a Arc<Parking>>) {
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
            debug_assert!(self.parkings.contains_key(&id), "an instance that asks has a parking to be woken in");
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

/// Wakes granted instances, without a fence: one that is about to sleep has not announced it yet, and asks once more
/// after it has, under the same lock.
fn wake(granted: &GrantedInstances) {
    for (_, parking) in granted {
        parking.unpark();
    }
}
