//! Triton's rate limiter over all models, as a pure state machine: it decides which instances may
//! run. An instance with work asks for its resources. It is granted them once they are free and no
//! instance ahead of it waits for any of them, and frees them at the end of its run. The limit of
//! each resource follows from the registered instances, and is recomputed whenever a model is
//! loaded or unloaded. Reads no clock and takes no lock. Bounded by the registered instances.
//!
//! Triton picks the lowest product of executions and priority, and lets no instance overtake it. Two differences here.
//! The product is a *pass* as in stride scheduling: it never lags behind the running ones, so an instance that was idle
//! for an hour does not get that hour to itself afterwards. And a waiting instance is overtaken by those that need none
//! of the resources it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// The amount of a resource (`--rate-limit-resource`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supply {
    /// Its name; upper and lower case are the same.
    pub name: String,
    /// Its amount.
    pub count: u64,
    /// Its device; `None` for every device.
    pub device: Option<u32>,
}

/// The requirements of an instance for a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The device that it runs on.
    pub device: u32,
    /// An instance with priority 2 runs half as often as one with 1 that needs the same; 0 counts as 1.
    pub priority: u32,
    /// Its resources.
    pub needs: Vec<Need>,
}

/// An amount of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its name.
    pub name: String,
    /// True if all devices share it.
    pub is_global: bool,
    /// Its amount.
    pub count: u64,
}

/// The reason why instances cannot be registered; the texts are Triton's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateError {
    /// One instance needs the resource per device, another one as shared by all devices.
    Both {
        /// The resource.
        name: String,
    },
    /// There is less of the resource than one instance needs.
    Short {
        /// The resource.
        name: String,
        /// The available amount.
        limit: u64,
        /// The needed amount.
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

/// The scope of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ResourceSite {
    Device(u32),
    Global,
}

type ResourceKey = (ResourceSite, String);

impl Demand {
    /// If a resource is listed twice, the last count holds, as in Triton.
    fn keyed(&self) -> BTreeMap<ResourceKey, u64> {
        let site = |need: &Need| if need.is_global { ResourceSite::Global } else { ResourceSite::Device(self.device) };
        self.needs.iter().map(|need| ((site(need), need.name.clone()), need.count)).collect()
    }
}

/// The instances that run and wait, and the amount of each resource that is taken.
#[derive(Clone, Debug, Default)]
pub struct Rate {
    supplies: Vec<Supply>,
    /// Each resource that a registered instance needs, sorted by key.
    resources: Vec<(ResourceKey, Resource)>,
    instances: BTreeMap<usize, RateInstance>,
    /// Waiting instances as (pass, order of asking, id).
    waiting: BTreeSet<(u64, u64, usize)>,
    /// The highest pass of an instance that began to run.
    clock: u64,
    /// Requests for resources so far.
    asked: u64,
    /// Ids given so far. No id is given twice, so a worker that ends late cannot act for another
    /// instance.
    registered: usize,
}

#[derive(Clone, Copy, Debug)]
struct Resource {
    limit: u64,
    /// May exceed a limit that was lowered while instances run; nothing is granted until enough of them end.
    taken: u64,
}

#[derive(Clone, Debug)]
struct RateInstance {
    priority: u64,
    demand: BTreeMap<ResourceKey, u64>,
    /// `demand` by index into the resources.
    needs: Vec<(usize, u64)>,
    state: RateState,
    pass: u64,
    /// Its place among those that asked.
    number: u64,
}

/// `Idle` → `Waiting` → `Granted` → `Running` → `Idle`; from `Waiting` and `Granted` it may withdraw to `Idle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RateState {
    Idle,
    Waiting,
    Granted,
    Running,
}

impl Rate {
    /// Without instances. If `supplies` is empty, the limit of each resource is the largest need of one instance;
    /// otherwise a resource that no supply names does not exist.
    #[inline]
    pub fn new(supplies: Vec<Supply>) -> Self {
        Self { supplies, ..Self::default() }
    }

    /// Registers the instances of a model, all or none, and returns their ids. That may raise limits, so the caller
    /// polls for grants afterwards.
    ///
    /// # Errors
    /// [`RateError`] where a resource is scarcer than one instance needs, or both global and of a device.
    pub fn register(&mut self, demands: &[Demand]) -> Result<Range<usize>, RateError> {
        let ids = self.registered..self.registered + demands.len();
        self.instances.extend(ids.clone().zip(demands.iter().map(RateInstance::new)));
        match self.limits() {
            Ok(limits) => {
                self.registered = ids.end;
                self.set_limits(limits);
                self.invariants();
                Ok(ids)
            }
            Err(error) => {
                self.instances.retain(|id, _| !ids.contains(id));
                Err(error)
            }
        }
    }

    /// Removes instances in any state: frees their resources, and lowers limits to the needs of the
    /// others. The caller polls for grants afterwards.
    pub fn unregister(&mut self, ids: Range<usize>) {
        self.waiting.retain(|(_, _, id)| !ids.contains(id));
        self.instances.retain(|id, _| !ids.contains(id));
        // Cannot fail: fewer instances neither need nor conflict more than all of them did.
        if let Ok(limits) = self.limits() {
            self.set_limits(limits);
        }
        self.invariants();
    }

    /// An instance has work and asks for its resources.
    pub fn handle_ask(&mut self, id: usize) {
        let (clock, number) = (self.clock, self.asked);
        let Some(instance) = self.instances.get_mut(&id).filter(|instance| instance.state == RateState::Idle) else {
            return;
        };
        instance.state = RateState::Waiting;
        // No credit for idle time.
        instance.pass = instance.pass.max(clock);
        instance.number = number;
        self.asked += 1;
        self.waiting.insert((instance.pass, number, id));
        self.invariants();
    }

    /// A granted instance begins its run.
    pub fn handle_start(&mut self, id: usize) {
        let Some(instance) = self.instances.get_mut(&id).filter(|instance| instance.state == RateState::Granted) else {
            return;
        };
        instance.state = RateState::Running;
        self.clock = self.clock.max(instance.pass);
        instance.pass = instance.pass.saturating_add(instance.priority);
    }

    /// The run of an instance ended.
    #[inline]
    pub fn handle_end(&mut self, id: usize) {
        if self.state(id) == Some(RateState::Running) {
            self.free(id);
        }
    }

    /// An instance that asked no longer has work, whether or not it was granted its resources.
    pub fn handle_withdraw(&mut self, id: usize) {
        match self.state(id) {
            Some(RateState::Granted) => self.free(id),
            Some(RateState::Waiting) => self.stop_waiting(id),
            _ => {}
        }
    }

    /// Grants the next instance its resources.
    pub fn poll_grant(&mut self) -> Option<usize> {
        // Resources that an instance further ahead waits for: granting them to a later one could starve it.
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
        self.stop_waiting(id);
        let instance = self.instances.get_mut(&id)?;
        instance.state = RateState::Granted;
        for (index, count) in &instance.needs {
            if let Some((_, resource)) = self.resources.get_mut(*index) {
                resource.taken += count;
                debug_assert!(*count == 0 || resource.taken <= resource.limit, "no more is granted than there is");
            }
        }
        self.invariants();
        Some(id)
    }

    /// Returns true if an instance was granted its resources and has not begun its run.
    #[inline]
    pub fn is_granted(&self, id: usize) -> bool {
        self.state(id) == Some(RateState::Granted)
    }

    /// Returns true if an instance asked and was not granted its resources yet.
    #[inline]
    pub fn is_waiting(&self, id: usize) -> bool {
        self.state(id) == Some(RateState::Waiting)
    }

    /// The pass of an instance. Of the idle ones, the one with the lowest should get the next work.
    #[inline]
    pub fn pass(&self, id: usize) -> u64 {
        self.instances.get(&id).map_or(0, |instance| instance.pass)
    }

    /// The limit of each resource that an instance needs.
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

    /// The largest supply of a resource. A global resource counts supplies of any device.
    fn supply(&self, site: ResourceSite, name: &str) -> u64 {
        let is_here = |supply: &&Supply| match (site, supply.device) {
            (ResourceSite::Global, _) | (_, None) => true,
            (ResourceSite::Device(device), Some(there)) => device == there,
        };
        let named = self.supplies.iter().filter(|supply| supply.name.eq_ignore_ascii_case(name));
        named.filter(is_here).map(|supply| supply.count).max().unwrap_or(0)
    }

    /// Sets new limits, and recounts the resources that running and granted instances have taken.
    fn set_limits(&mut self, limits: BTreeMap<ResourceKey, u64>) {
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

    fn stop_waiting(&mut self, id: usize) {
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.state = RateState::Idle;
            let was_waiting = self.waiting.remove(&(instance.pass, instance.number, id));
            debug_assert!(was_waiting, "a waiting instance is listed by its pass");
        }
    }

    fn free(&mut self, id: usize) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.state = RateState::Idle;
        for (index, count) in &instance.needs {
            if let Some((_, resource)) = self.resources.get_mut(*index) {
                debug_assert!(resource.taken >= *count, "a run frees what it took");
                resource.taken = resource.taken.saturating_sub(*count);
            }
        }
        self.invariants();
    }

    /// Recounts everything: cheap, since a server has few instances.
    fn invariants(&self) {
        let having = |state: RateState| self.instances.values().filter(move |instance| instance.state == state);
        debug_assert_eq!(
            self.waiting.len(),
            having(RateState::Waiting).count(),
            "each waiting instance is listed once"
        );
        let last = self.instances.last_key_value().map(|(id, _)| *id);
        debug_assert!(last.is_none_or(|last| last < self.registered), "an id was given before");
        debug_assert!(
            self.resources.iter().enumerate().all(|(index, (_, resource))| {
                let needs =
                    having(RateState::Granted).chain(having(RateState::Running)).flat_map(|instance| &instance.needs);
                needs.filter(|(need, _)| *need == index).map(|(_, count)| count).sum::<u64>() == resource.taken
            }),
            "what is taken belongs to granted and running instances"
        );
    }
}

/// Triton makes an instance and warms it up as two runs under the limiter, whether or not it has samples, and counts
/// them: of two that are loaded, the one of the lower priority number begins, and its first runs come before the other's.
const RUNS_AT_LOAD: u64 = 2;

impl RateInstance {
    fn new(demand: &Demand) -> Self {
        Self {
            priority: demand.priority.max(1).into(),
            demand: demand.keyed(),
            needs: Vec::new(),
            state: RateState::Idle,
            pass: RUNS_AT_LOAD.saturating_mul(demand.priority.max(1).into()),
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
