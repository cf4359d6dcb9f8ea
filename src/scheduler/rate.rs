//! Which instances may run: Triton's rate limiter over all models, as a pure state machine. An
//! instance with work asks; it runs once its resources are free and nobody who wants any of them
//! comes before it; it gives them back when its run is over. How much of each resource there is
//! follows from the instances that are registered, and is found anew whenever a model comes or goes.
//! Asks no clock and takes no lock. Bounded by the instances that are registered.
//!
//! Triton takes the lowest count of executions × priority first, and lets nobody pass it. Here the
//! same product is kept as a *pass* that never lags behind those who run, so that an instance
//! which was idle for an hour does not have that hour to itself afterwards; and who waits is
//! passed by those who want nothing that it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// What `--rate-limit-resource` says there is of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supply {
    /// Its name, in any case.
    pub name: String,
    /// How much.
    pub count: u64,
    /// On which device; `None` for each.
    pub device: Option<u32>,
}

/// What an instance needs to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The device that it runs on.
    pub device: u32,
    /// Of two that want the same, one with 2 runs half as often as one with 1; 0 is 1.
    pub priority: u32,
    /// Its resources.
    pub needs: Vec<Need>,
}

/// So much of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its name.
    pub name: String,
    /// Whether all devices share it.
    pub is_global: bool,
    /// How much.
    pub count: u64,
}

/// Why instances cannot be registered; the texts are Triton's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateError {
    /// One list has the resource as a device's own, another as shared by all devices.
    Both {
        /// The resource.
        name: String,
    },
    /// There is less of the resource than one instance needs.
    Short {
        /// The resource.
        name: String,
        /// How much there is.
        limit: u64,
        /// How much there must be.
        required: u64,
    },
}

impl fmt::Display for RateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Both { name } => write!(
                formatter,
                "Resource \"{name}\" is present as both global and device-specific resource in the model configuration."
            ),
            Self::Short { name, limit, required } => write!(
                formatter,
                "Resource count for \"{name}\" is limited to {limit} which will prevent scheduling of one or more model \
                 instances, the minimum required count is {required}"
            ),
        }
    }
}

/// Where a resource is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ResourceSite {
    Device(u32),
    Global,
}

type ResourceKey = (ResourceSite, String);

impl Demand {
    /// Of a resource that is listed twice the last count holds, as in Triton.
    fn keyed(&self) -> BTreeMap<ResourceKey, u64> {
        let site = |need: &Need| if need.is_global { ResourceSite::Global } else { ResourceSite::Device(self.device) };
        self.needs.iter().map(|need| ((site(need), need.name.clone()), need.count)).collect()
    }
}

/// Who runs, who waits, and what is taken.
#[derive(Clone, Debug, Default)]
pub struct Rate {
    supplies: Vec<Supply>,
    /// How much there is of each resource that a registered instance needs, and what is taken of it.
    resources: Vec<(ResourceKey, Resource)>,
    instances: BTreeMap<usize, RateInstance>,
    /// By pass, then by when they asked.
    waiting: BTreeSet<(u64, u64, usize)>,
    /// The pass of whoever began to run last.
    clock: u64,
    asked: u64,
    /// Ids that were given. None is given twice: a worker that ends late speaks for nobody else.
    registered: usize,
}

#[derive(Clone, Copy, Debug)]
struct Resource {
    limit: u64,
    /// More than the limit where that shrank under those who run; none of it is granted until they end.
    taken: u64,
}

#[derive(Clone, Debug)]
struct RateInstance {
    priority: u64,
    demand: BTreeMap<ResourceKey, u64>,
    /// The same by index among the resources.
    needs: Vec<(usize, u64)>,
    state: RateState,
    pass: u64,
    number: u64,
}

/// `Idle` → `Waiting` → `Granted` → `Running` → `Idle`; what waits or was granted may give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RateState {
    Idle,
    Waiting,
    Granted,
    Running,
}

impl Rate {
    /// Nothing is registered. Without a supply there is as much of each resource as the instance
    /// that needs most of it needs; with one, there is nothing of what no supply names.
    pub fn new(supplies: Vec<Supply>) -> Self {
        Self { supplies, ..Self::default() }
    }

    /// Registers the instances of a model, all or none, and returns their ids. Where that makes
    /// more of a resource, instances that wait may run by that.
    pub fn register(&mut self, demands: &[Demand]) -> Result<Range<usize>, RateError> {
        let ids = self.registered..self.registered + demands.len();
        self.instances.extend(ids.clone().zip(demands.iter().map(RateInstance::new)));
        match self.limits() {
            Ok(limits) => {
                self.registered = ids.end;
                self.deal(limits);
                self.invariants();
                Ok(ids)
            }
            Err(error) => {
                self.instances.retain(|id, _| !ids.contains(id));
                Err(error)
            }
        }
    }

    /// Instances are gone, whatever they were at: what they held is free, and there is no more of a
    /// resource than the others need. Those that waited behind them may run by that.
    pub fn unregister(&mut self, ids: Range<usize>) {
        self.waiting.retain(|(_, _, id)| !ids.contains(id));
        self.instances.retain(|id, _| !ids.contains(id));
        // Fewer instances need no more and contradict each other no more than all did.
        if let Ok(limits) = self.limits() {
            self.deal(limits);
        }
        self.invariants();
    }

    /// An instance has work, and asks to run it.
    pub fn handle_ask(&mut self, id: usize) {
        let (clock, number) = (self.clock, self.asked);
        let Some(instance) = self.instances.get_mut(&id).filter(|instance| instance.state == RateState::Idle) else {
            return;
        };
        instance.state = RateState::Waiting;
        instance.pass = instance.pass.max(clock);
        instance.number = number;
        self.asked += 1;
        self.waiting.insert((instance.pass, number, id));
        self.invariants();
    }

    /// An instance that may run begins to.
    pub fn handle_start(&mut self, id: usize) {
        let Some(instance) = self.instances.get_mut(&id).filter(|instance| instance.state == RateState::Granted) else {
            return;
        };
        instance.state = RateState::Running;
        self.clock = self.clock.max(instance.pass);
        instance.pass = instance.pass.saturating_add(instance.priority);
    }

    /// The run of an instance is over.
    pub fn handle_end(&mut self, id: usize) {
        if self.state(id) == Some(RateState::Running) {
            self.free(id);
        }
    }

    /// An instance that asked has no work any more, whether or not it may run by now.
    pub fn handle_withdraw(&mut self, id: usize) {
        match self.state(id) {
            Some(RateState::Granted) => self.free(id),
            Some(RateState::Waiting) => self.forget(id),
            _ => {}
        }
    }

    /// The next instance that may run: its resources are taken.
    pub fn poll_grant(&mut self) -> Option<usize> {
        let mut wanted = BTreeSet::new();
        let id = self.waiting.iter().map(|(_, _, id)| *id).find(|id| {
            let needs = self.instances.get(id).map_or(&[][..], |instance| &instance.needs);
            let is_free = needs.iter().all(|(index, count)| {
                let resource = self.resources.get(*index);
                resource.is_some_and(|(_, resource)| resource.has(*count)) && (*count == 0 || !wanted.contains(index))
            });
            if !is_free {
                wanted.extend(needs.iter().filter(|(_, count)| *count > 0).map(|(index, _)| *index));
            }
            is_free
        })?;
        self.forget(id);
        let instance = self.instances.get_mut(&id)?;
        instance.state = RateState::Granted;
        for (index, count) in &instance.needs {
            if let Some((_, resource)) = self.resources.get_mut(*index) {
                resource.taken += count;
                debug_assert!(*count == 0 || resource.taken <= resource.limit, "nothing is granted that is not there");
            }
        }
        self.invariants();
        Some(id)
    }

    /// Whether an instance may run and has not begun.
    pub fn is_granted(&self, id: usize) -> bool {
        self.state(id) == Some(RateState::Granted)
    }

    /// Whether an instance asked and may not run yet.
    pub fn is_waiting(&self, id: usize) -> bool {
        self.state(id) == Some(RateState::Waiting)
    }

    /// Of instances that are idle, the one with the least should be asked to work.
    pub fn pass(&self, id: usize) -> u64 {
        self.instances.get(&id).map_or(0, |instance| instance.pass)
    }

    /// How much there is of each resource that somebody needs.
    fn limits(&self) -> Result<BTreeMap<ResourceKey, u64>, RateError> {
        let mut limits: BTreeMap<ResourceKey, u64> = BTreeMap::new();
        for (key, count) in self.instances.values().flat_map(|instance| &instance.demand) {
            let most = limits.entry(key.clone()).or_default();
            *most = (*most).max(*count);
        }
        if !self.supplies.is_empty() {
            for ((site, name), required) in &mut limits {
                let limit = self.supply(*site, name);
                if limit < *required {
                    return Err(RateError::Short { name: name.clone(), limit, required: *required });
                }
                *required = limit;
            }
        }
        let is_on_device =
            |name: &String| limits.keys().any(|(site, have)| *site != ResourceSite::Global && have == name);
        match limits.keys().find(|(site, name)| *site == ResourceSite::Global && is_on_device(name)) {
            Some((_, name)) => Err(RateError::Both { name: name.clone() }),
            None => Ok(limits),
        }
    }

    /// The largest that is said; a shared resource has no device.
    fn supply(&self, site: ResourceSite, name: &str) -> u64 {
        let is_here = |supply: &&Supply| match (site, supply.device) {
            (ResourceSite::Global, _) | (_, None) => true,
            (ResourceSite::Device(device), Some(there)) => device == there,
        };
        let named = self.supplies.iter().filter(|supply| supply.name.eq_ignore_ascii_case(name));
        named.filter(is_here).map(|supply| supply.count).max().unwrap_or(0)
    }

    /// There is so much of each resource from now on; who holds some of it goes on.
    fn deal(&mut self, limits: BTreeMap<ResourceKey, u64>) {
        self.resources = limits.into_iter().map(|(key, limit)| (key, Resource { limit, taken: 0 })).collect();
        for instance in self.instances.values_mut() {
            let index = |key: &ResourceKey| self.resources.binary_search_by(|(have, _)| have.cmp(key)).ok();
            let needs = instance.demand.iter().filter_map(|(key, count)| Some((index(key)?, *count)));
            instance.needs = needs.collect();
            if matches!(instance.state, RateState::Granted | RateState::Running) {
                for (index, count) in &instance.needs {
                    if let Some((_, resource)) = self.resources.get_mut(*index) {
                        resource.taken += count;
                    }
                }
            }
        }
    }

    fn state(&self, id: usize) -> Option<RateState> {
        self.instances.get(&id).map(|instance| instance.state)
    }

    fn forget(&mut self, id: usize) {
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.state = RateState::Idle;
            let was_waiting = self.waiting.remove(&(instance.pass, instance.number, id));
            debug_assert!(was_waiting, "who waits is among those who wait, by its pass");
        }
    }

    fn free(&mut self, id: usize) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.state = RateState::Idle;
        for (index, count) in &instance.needs {
            if let Some((_, resource)) = self.resources.get_mut(*index) {
                debug_assert!(resource.taken >= *count, "who ends gives back what it took");
                resource.taken = resource.taken.saturating_sub(*count);
            }
        }
        self.invariants();
    }

    /// Counts anew what is taken and who waits: there are as many instances as a server has.
    fn invariants(&self) {
        let having = |state: RateState| self.instances.values().filter(move |instance| instance.state == state);
        debug_assert_eq!(self.waiting.len(), having(RateState::Waiting).count(), "who waits is waited for");
        let last = self.instances.last_key_value().map(|(id, _)| *id);
        debug_assert!(last.is_none_or(|last| last < self.registered), "an id was given before");
        debug_assert!(
            self.resources.iter().enumerate().all(|(index, (_, resource))| {
                let needs =
                    having(RateState::Granted).chain(having(RateState::Running)).flat_map(|instance| &instance.needs);
                needs.filter(|(need, _)| *need == index).map(|(_, count)| count).sum::<u64>() == resource.taken
            }),
            "what is taken is what those hold who may run"
        );
    }
}

impl RateInstance {
    fn new(demand: &Demand) -> Self {
        Self {
            priority: demand.priority.max(1).into(),
            demand: demand.keyed(),
            needs: Vec::new(),
            state: RateState::Idle,
            pass: 0,
            number: 0,
        }
    }
}

impl Resource {
    fn has(&self, count: u64) -> bool {
        count <= self.limit.saturating_sub(self.taken)
    }
}

#[cfg(test)]
mod tests;
