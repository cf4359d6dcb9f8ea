//! The open connections of one shard: their slots, deadlines and wakers. One periodic sweep checks all deadlines: they
//! are moved with every request, and a timer per connection would cost more than it is worth for timeouts of seconds.
//!
//! At the bound a new connection takes the place of the one that has been idle longest. If there is
//! no idle one, it gets one of a few reserved slots, in which everything but inference is answered,
//! so that probes of liveness get through. `docs/decisions/0028-slots-of-connections.md` has the
//! reasons.

pub mod connection_spread;
pub mod delivery;
pub mod linger;
pub mod listener_kind;
mod memory;
pub mod receive_budget;
pub mod tls_configs;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use slab::Slab;

use crate::limits::{
    ADMIN_CONNECTIONS_MAX, CONNECTION_NOTICE_PAUSE, CONNECTIONS_LEAVING_MAX, CONNECTIONS_RESERVED, DRAIN_GRACE,
    EVICTION_CANDIDATES_MAX, MEMORY_HEAVY_SIZE, METRICS_CONNECTIONS_MAX, REST_TIMEOUT,
};
#[cfg(test)]
use crate::runtime::simulation::{SimulatedFault, is_planted};
use crate::time::Instant;

/// The reason why a connection was woken although its socket has no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The server drains: finish and accept no further requests.
    Drain,
    /// A new connection takes its place: close, unless a request has come.
    Evicted,
    /// Its deadline has passed.
    Timeout,
    /// It is asked for the bytes that it holds, or is to be closed because of them
    /// ([`ConnectionWatch::is_too_heavy`]).
    Weighed,
}

/// The kind of connection that asks for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// A client of the Unix socket of `--admin-socket`, which has slots of its own.
    Admin,
    /// A client of the HTTP or gRPC port.
    Client,
    /// A client of the metrics port, which has slots of its own.
    Metrics,
}

/// The slot of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// One of the admin socket.
    Admin,
    /// One of the metrics port.
    Metrics,
    /// A slot for any request.
    Open,
    /// One beyond the bound, for everything but inference.
    Reserved,
}

/// The reason why a connection may ask for anything but inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservedFor {
    /// The maximum number of connections is reached.
    Count,
    /// The process is near its memory limit.
    Memory,
}

/// The reason why a connection gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotRefusal {
    /// Its client's address has its maximum number of slots.
    Address,
    /// All are taken, the reserved ones too.
    Full,
}

/// The way in which a slot was found, for the counters and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotGrant {
    /// There was room.
    Free,
    /// A connection gives up its place after being idle for this long.
    Evicted(Duration),
    /// The connection has a reserved slot.
    Reserved(ReservedFor),
}

/// The notices in the log, each at most once in [`CONNECTION_NOTICE_PAUSE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The system has no descriptor for a new connection.
    Accept,
    /// A connection was refused because of its client's address.
    Address,
    /// An idle connection was closed for a new one.
    Evicted,
    /// A connection was refused.
    Full,
    /// A connection got a reserved slot.
    Reserved,
}

/// The rights of a connection, independent of the clients that send requests on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionRights {
    /// The reason for its reserved slot, in which inference is refused; `None` if it has another
    /// slot.
    pub reserved_for: Option<ReservedFor>,
    /// True if it came by the Unix socket of `--admin-socket`: the file's permissions have
    /// authenticated it.
    pub is_admin: bool,
}

/// One connection's slot, deadline, waker and last wake reason, shared by the connection and the sweep.
pub struct ConnectionWatch {
    slot: Slot,
    /// The reason for its reserved slot; `None` if it has another slot.
    reserved_for: Option<ReservedFor>,
    /// Bytes of requests and answers that it holds, or that the heaviest of its streams does.
    held: Cell<usize>,
    /// True if it, or that stream, is to be closed because of the bytes held.
    is_too_heavy: Cell<bool>,
    active_at: Cell<Instant>,
    /// The instant since which it waits for a request; `None` while it has one.
    idle_since: Cell<Option<Instant>>,
    /// The instant at which it was told to give up its slot.
    evicted_at: Cell<Option<Instant>>,
    deadline: Cell<Option<Instant>>,
    wake_reason: Cell<Option<WakeReason>>,
    waker: RefCell<Option<Waker>>,
}

impl ConnectionWatch {
    fn new(slot: Slot, reserved_for: Option<ReservedFor>, now: Instant) -> Self {
        Self {
            slot,
            reserved_for,
            held: Cell::new(0),
            is_too_heavy: Cell::new(false),
            active_at: Cell::new(now),
            idle_since: Cell::new(Some(now)),
            evicted_at: Cell::new(None),
            deadline: Cell::new(None),
            wake_reason: Cell::new(None),
            waker: RefCell::default(),
        }
    }

    /// The connection was answered: its client may be about to send a request.
    pub fn set_active(&self, now: Instant) {
        self.active_at.set(now);
    }

    /// Returns the instant at which the connection was opened or last answered.
    pub fn active_at(&self) -> Instant {
        self.active_at.get()
    }

    /// Returns the instant from which on a drain may close it silently: right after an answer the
    /// next request may already be on its way.
    pub fn quiet_at(&self) -> Instant {
        self.active_at.get() + DRAIN_GRACE
    }

    /// Sets the instant since which the connection waits for a request, or `None` while it has one
    /// and must not be closed for another.
    pub fn set_idle(&self, since: Option<Instant>) {
        self.idle_since.set(since);
    }

    /// Returns the instant at which the connection was told to give its place to a new one.
    pub fn evicted_at(&self) -> Option<Instant> {
        self.evicted_at.get()
    }

    /// The reason for its reserved slot, for everything but inference; `None` if it has another
    /// slot.
    pub const fn reserved_for(&self) -> Option<ReservedFor> {
        self.reserved_for
    }

    /// The rights of the connection itself.
    pub fn rights(&self) -> ConnectionRights {
        ConnectionRights { reserved_for: self.reserved_for(), is_admin: self.slot == Slot::Admin }
    }

    /// Returns true if it ends with its next answer: it has a reserved slot, or another waits for
    /// its place.
    pub fn is_last_answer(&self) -> bool {
        self.reserved_for.is_some() || self.evicted_at.get().is_some()
    }

    /// Sets the bytes of requests and answers that it holds, or that the heaviest of its streams
    /// does.
    pub fn set_held(&self, size: usize) {
        self.held.set(size);
    }

    /// Returns true if it, or the heaviest of its streams, is to be closed because of the bytes
    /// held.
    pub fn is_too_heavy(&self) -> bool {
        self.is_too_heavy.get()
    }

    /// The heaviest of its streams was closed, so that it may stay.
    pub fn handle_lightened(&self) {
        self.held.set(0);
        self.is_too_heavy.set(false);
    }

    /// Sets the instant at which to wake the connection if nothing happens. Discards a timeout of
    /// the previous deadline.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        if self.wake_reason.get() == Some(WakeReason::Timeout) {
            self.wake_reason.set(None);
        }
        self.deadline.set(deadline);
    }

    /// Takes the reason why the connection was woken by the sweep, the drain or an eviction;
    /// returned once.
    pub fn take_wake_reason(&self) -> Option<WakeReason> {
        self.wake_reason.take()
    }

    /// Registers the task to wake; cheap when it is the same as before.
    pub fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|have| have.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    /// Marks it, or the heaviest of its streams, to be closed because of the bytes held.
    pub fn close_for_weight(&self) {
        self.is_too_heavy.set(true);
        self.wake(WakeReason::Weighed);
    }

    fn wake(&self, wake_reason: WakeReason) {
        // A question must not replace a reason that is due.
        if wake_reason != WakeReason::Weighed || self.wake_reason.get().is_none() {
            self.wake_reason.set(Some(wake_reason));
        }
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

/// The maximum numbers of connections of a shard.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBounds {
    /// For any request (`--connections-max`).
    pub count_max: usize,
    /// Of one client address (`--connections-per-address-max`); 0 for no limit.
    pub address_count_max: usize,
}

/// The connections of one shard.
pub struct Connections {
    watches: RefCell<Slab<Rc<ConnectionWatch>>>,
    bounds: ConnectionBounds,
    /// Connections by slot that were not told to give it up, and those that were.
    taken: [Cell<usize>; 4],
    leaving: Cell<usize>,
    /// The connections idle for the longest time, found by a scan: the instant at which each became
    /// idle, and its key. One that has had a request meanwhile has another instant.
    candidates: RefCell<VecDeque<(Instant, usize)>>,
    /// The instant at which a scan found fewer than it looks for: the next one waits a little.
    scanned_at: Cell<Option<Instant>>,
    /// The keys of reserved, metrics and admin slots, the oldest first.
    few: RefCell<VecDeque<usize>>,
    /// Connections by client address, if they are bounded.
    addresses: RefCell<HashMap<IpAddr, usize>>,
    told_at: [Cell<Option<Instant>>; 5],
    is_draining: Cell<bool>,
}

/// An entry in the table, removed when this is dropped.
pub struct ConnectionGuard {
    connections: Rc<Connections>,
    key: usize,
    watch: Rc<ConnectionWatch>,
    address: Option<IpAddr>,
}

/// The pause after a scan that found little, for each connection that it looked at: twenty times
/// the scan's duration.
const SCAN_PAUSE: Duration = Duration::from_nanos(200);

impl Connections {
    /// A table with these bounds.
    pub fn new(bounds: ConnectionBounds) -> Self {
        Self {
            watches: RefCell::default(),
            bounds,
            taken: Default::default(),
            leaving: Cell::new(0),
            candidates: RefCell::default(),
            scanned_at: Cell::new(None),
            few: RefCell::default(),
            addresses: RefCell::default(),
            told_at: Default::default(),
            is_draining: Cell::new(false),
        }
    }

    /// Enters a connection that was opened just now, from the address that `peer` looks up, and
    /// returns the way in which it got its slot. If memory is short that is a reserved one.
    ///
    /// # Errors
    /// The reason why it gets no slot.
    pub fn enter(
        self: &Rc<Self>,
        kind: SlotKind,
        peer: impl FnOnce() -> Option<IpAddr>,
        is_memory_short: bool,
        now: Instant,
    ) -> Result<(ConnectionGuard, SlotGrant), SlotRefusal> {
        let is_bounded = kind == SlotKind::Client && self.bounds.address_count_max > 0;
        let address = if is_bounded { peer().map(client_of) } else { None };
        if let Some(address) = &address
            && self.addresses.borrow().get(address).is_some_and(|count| *count >= self.bounds.address_count_max)
        {
            return Err(SlotRefusal::Address);
        }
        let (slot, admission) = self.find_slot(kind, is_memory_short, now).ok_or(SlotRefusal::Full)?;
        let reserved_for = if let SlotGrant::Reserved(why) = admission { Some(why) } else { None };
        let watch = Rc::new(ConnectionWatch::new(slot, reserved_for, now));
        if self.is_draining() {
            watch.wake(WakeReason::Drain);
        }
        let key = self.watches.borrow_mut().insert(Rc::clone(&watch));
        self.count(slot, 1);
        if slot != Slot::Open {
            self.few.borrow_mut().push_back(key);
        }
        if let Some(address) = address {
            *self.addresses.borrow_mut().entry(address).or_default() += 1;
        }
        Ok((ConnectionGuard { connections: Rc::clone(self), key, watch, address }, admission))
    }

    /// Makes the connection that is idle for the longest time close, if the process has no
    /// descriptors left. Returns true if there is one.
    pub fn evict(&self, now: Instant) -> bool {
        self.evict_idle(Duration::ZERO, now).is_some()
    }

    /// Makes idle connections close if memory is short: as many as may leave at a time. Returns
    /// their number.
    pub fn evict_resting(&self, now: Instant) -> u64 {
        (0..).take_while(|_| self.evict_idle(REST_TIMEOUT, now).is_some()).count() as u64
    }

    /// Asks connections with streams for the bytes that the heaviest stream holds; others have
    /// reported it.
    pub fn weigh(&self) {
        for (_, watch) in self.watches.borrow().iter().filter(|(_, watch)| watch.idle_since.get().is_none()) {
            watch.wake(WakeReason::Weighed);
        }
    }

    /// The connection that holds the most bytes, if closing it is worth it, and their number.
    pub fn heaviest(&self) -> Option<(Rc<ConnectionWatch>, usize)> {
        let watches = self.watches.borrow();
        let others = watches.iter().filter(|(_, watch)| !watch.is_too_heavy.get());
        let (_, heaviest) = others.max_by_key(|(_, watch)| watch.held.get())?;
        let held = heaviest.held.get();
        (held >= MEMORY_HEAVY_SIZE).then(|| (Rc::clone(heaviest), held))
    }

    /// Returns true if a notice of this kind is due now; the next one is then due after a pause.
    pub fn is_notice_due(&self, notice: Notice, now: Instant) -> bool {
        let Some(told_at) = self.told_at.get(notice as usize) else { return false };
        let is_due = told_at.get().is_none_or(|at| now.since(at) >= CONNECTION_NOTICE_PAUSE);
        if is_due {
            told_at.set(Some(now));
        }
        is_due
    }

    /// The number of open connections.
    pub fn len(&self) -> usize {
        self.watches.borrow().len()
    }

    /// Slots that are taken or about to be given up.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.taken.iter().map(Cell::get).sum::<usize>() + self.leaving.get()
    }

    /// Returns true if no connection is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the server drains.
    pub fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    /// Wakes the connections whose deadline has passed.
    pub fn sweep(&self, now: Instant) {
        for (_, watch) in self.watches.borrow().iter() {
            if watch.deadline.get().is_some_and(|deadline| deadline <= now) {
                watch.deadline.set(None);
                watch.wake(WakeReason::Timeout);
            }
        }
    }

    /// Wakes all connections, to finish their requests and close.
    pub fn drain(&self) {
        self.is_draining.set(true);
        for (_, watch) in self.watches.borrow().iter() {
            watch.wake(WakeReason::Drain);
        }
    }

    fn find_slot(&self, kind: SlotKind, is_memory_short: bool, now: Instant) -> Option<(Slot, SlotGrant)> {
        let own = match kind {
            SlotKind::Admin => Some((Slot::Admin, ADMIN_CONNECTIONS_MAX)),
            SlotKind::Client => None,
            SlotKind::Metrics => Some((Slot::Metrics, METRICS_CONNECTIONS_MAX)),
        };
        if let Some((slot, most)) = own {
            let has_room = self.taken_of(slot) < most;
            let evicted = if has_room { None } else { Some(self.evict_oldest(slot, now)?) };
            return Some((slot, evicted.map_or(SlotGrant::Free, SlotGrant::Evicted)));
        }
        if !is_memory_short && self.taken_of(Slot::Open) < self.bounds.count_max {
            return Some((Slot::Open, SlotGrant::Free));
        }
        if !is_memory_short && let Some(idle) = self.evict_idle(Duration::ZERO, now) {
            return Some((Slot::Open, SlotGrant::Evicted(idle)));
        }
        if self.taken_of(Slot::Reserved) >= CONNECTIONS_RESERVED {
            self.evict_oldest(Slot::Reserved, now)?;
        }
        let why = if is_memory_short { ReservedFor::Memory } else { ReservedFor::Count };
        Some((Slot::Reserved, SlotGrant::Reserved(why)))
    }

    /// Tells the connection in an open slot that is idle for the longest time to close, if it is
    /// idle for at least `least`. Returns its idle time.
    fn evict_idle(&self, least: Duration, now: Instant) -> Option<Duration> {
        if self.leaving.get() >= CONNECTIONS_LEAVING_MAX {
            return None;
        }
        loop {
            while let Some((since, key)) = self.pop_candidate(least, now) {
                let watch = self.watches.borrow().get(key).map(Rc::clone);
                let is_idle = |watch: &Rc<ConnectionWatch>| {
                    watch.slot == Slot::Open && watch.idle_since.get() == Some(since) && watch.evicted_at().is_none()
                };
                if let Some(watch) = watch.filter(is_idle) {
                    self.begin_eviction(&watch, now);
                    return Some(now.since(since));
                }
            }
            let pause = SCAN_PAUSE.saturating_mul(u32::try_from(self.len()).unwrap_or(u32::MAX));
            let is_recent = self.scanned_at.get().is_some_and(|at| now.since(at) < pause);
            // The ones that are left are younger.
            if is_recent || !self.candidates.borrow().is_empty() || !self.scan(now) {
                return None;
            }
        }
    }

    fn pop_candidate(&self, least: Duration, now: Instant) -> Option<(Instant, usize)> {
        let mut candidates = self.candidates.borrow_mut();
        let is_old = candidates.front().is_some_and(|(since, _)| now.since(*since) >= least);
        if is_old { candidates.pop_front() } else { None }
    }

    /// Looks for the connections that are idle for the longest time. Returns true if it found any.
    fn scan(&self, now: Instant) -> bool {
        let watches = self.watches.borrow();
        let open = watches.iter().filter(|(_, watch)| watch.slot == Slot::Open && watch.evicted_at().is_none());
        let mut idle: Vec<_> = open.filter_map(|(key, watch)| Some((watch.idle_since.get()?, key))).collect();
        if idle.len() > EVICTION_CANDIDATES_MAX {
            idle.select_nth_unstable(EVICTION_CANDIDATES_MAX);
            idle.truncate(EVICTION_CANDIDATES_MAX);
        }
        idle.sort_unstable();
        self.scanned_at.set((idle.len() < EVICTION_CANDIDATES_MAX).then_some(now));
        *self.candidates.borrow_mut() = idle.into();
        !self.candidates.borrow().is_empty()
    }

    /// Tells the oldest connection in a slot of this kind to close, preferring idle ones. Returns
    /// the time for which it was open.
    fn evict_oldest(&self, slot: Slot, now: Instant) -> Option<Duration> {
        if self.leaving.get() >= CONNECTIONS_LEAVING_MAX + CONNECTIONS_RESERVED {
            return None;
        }
        let watches = self.watches.borrow();
        let few = self.few.borrow();
        let all = || {
            let watches = few.iter().filter_map(|key| watches.get(*key));
            watches.filter(|watch| watch.slot == slot && watch.evicted_at().is_none())
        };
        let oldest = all().find(|watch| watch.idle_since.get().is_some()).or_else(|| all().next());
        let watch = oldest.map(Rc::clone)?;
        self.begin_eviction(&watch, now);
        Some(now.since(watch.active_at()))
    }

    fn begin_eviction(&self, watch: &ConnectionWatch, now: Instant) {
        debug_assert!(watch.evicted_at().is_none(), "a connection gives its slot up once");
        watch.evicted_at.set(Some(now));
        self.count(watch.slot, -1);
        self.leaving.set(self.leaving.get() + 1);
        watch.wake(WakeReason::Evicted);
    }

    fn taken_of(&self, slot: Slot) -> usize {
        self.taken.get(slot as usize).map_or(0, Cell::get)
    }

    fn count(&self, slot: Slot, by: isize) {
        if let Some(taken) = self.taken.get(slot as usize) {
            debug_assert!(by > 0 || taken.get() > 0, "only a slot that was taken is given up");
            taken.set(taken.get().saturating_add_signed(by));
        }
    }
}

/// The client behind an address: of IPv6, the network of 64 bits that one customer has (RFC 6177).
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address @ IpAddr::V4(_) => address,
    }
}

impl ConnectionGuard {
    /// This connection's entry.
    pub const fn watch(&self) -> &Rc<ConnectionWatch> {
        &self.watch
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let connections = &self.connections;
        connections.watches.borrow_mut().try_remove(self.key);
        #[cfg(test)]
        if is_planted(SimulatedFault::SlotKept) {
            return;
        }
        match self.watch.evicted_at() {
            Some(_) => connections.leaving.set(connections.leaving.get().saturating_sub(1)),
            None => connections.count(self.watch.slot, -1),
        }
        if self.watch.slot != Slot::Open {
            connections.few.borrow_mut().retain(|key| *key != self.key);
        }
        if let Some(address) = self.address {
            let mut addresses = connections.addresses.borrow_mut();
            if let Some(count) = addresses.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    addresses.remove(&address);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn table(count_max: usize, address_count_max: usize) -> Rc<Connections> {
        Rc::new(Connections::new(ConnectionBounds { count_max, address_count_max }))
    }

    fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    fn client(connections: &Rc<Connections>, micros: u64) -> Result<(ConnectionGuard, SlotGrant), SlotRefusal> {
        connections.enter(SlotKind::Client, || None, false, at(micros))
    }

    /// A connection that has a request.
    fn busy(connections: &Rc<Connections>, micros: u64) -> ConnectionGuard {
        let (guard, _) = client(connections, micros).unwrap();
        guard.watch().set_idle(None);
        guard
    }

    #[test]
    fn at_the_bound_the_longest_idle_one_gives_its_place_up() {
        let connections = table(3, 0);
        let (young, old) = (client(&connections, 2).unwrap().0, client(&connections, 1).unwrap().0);
        let working = busy(&connections, 0);
        let (new, admission) = client(&connections, 10).unwrap();
        assert_eq!(admission, SlotGrant::Evicted(Duration::from_micros(9)));
        assert_eq!(old.watch().take_wake_reason(), Some(WakeReason::Evicted));
        assert_eq!((young.watch().take_wake_reason(), working.watch().take_wake_reason()), (None, None));
        // One that was answered meanwhile is idle from then on only.
        young.watch().set_idle(Some(at(20)));
        new.watch().set_idle(Some(at(15)));
        assert_eq!(client(&connections, 21).unwrap().1, SlotGrant::Evicted(Duration::from_micros(6)));
        assert!(new.watch().evicted_at().is_some() && young.watch().evicted_at().is_none());
        assert!(new.watch().is_last_answer() && new.watch().reserved_for().is_none());
    }

    #[test]
    fn where_none_is_idle_a_few_more_are_for_all_but_inference_and_the_oldest_of_them_goes() {
        let connections = table(1, 0);
        let _working = busy(&connections, 0);
        let mut reserved = Vec::new();
        for index in 0..CONNECTIONS_RESERVED as u64 {
            let (guard, admission) = client(&connections, index).unwrap();
            assert!(guard.watch().reserved_for().is_some() && admission == SlotGrant::Reserved(ReservedFor::Count));
            reserved.push(guard);
        }
        let more = client(&connections, 1_000).unwrap().0;
        assert!(more.watch().reserved_for().is_some());
        let evicted: Vec<_> = reserved.iter().map(|guard| guard.watch().evicted_at().is_some()).collect();
        assert_eq!(evicted.iter().filter(|is_evicted| **is_evicted).count(), 1);
        assert!(evicted[0], "the oldest");
        // A connection that was told to close is not told again: the loop ends.
        let mut held = vec![more];
        let refusal = (0..).find_map(|index| match client(&connections, 2_000 + index) {
            Ok((guard, _)) => {
                held.push(guard);
                None
            }
            Err(refusal) => Some((refusal, held.len())),
        });
        let most = CONNECTIONS_LEAVING_MAX + CONNECTIONS_RESERVED;
        assert_eq!(refusal, Some((SlotRefusal::Full, most)));
        assert!(connections.len() <= 1 + CONNECTIONS_LEAVING_MAX + 2 * CONNECTIONS_RESERVED);
        drop(held);
        assert!(client(&connections, 3_000).is_ok());
    }

    #[test]
    fn the_metrics_port_has_slots_of_its_own() {
        let connections = table(1, 0);
        let _working = busy(&connections, 0);
        let enter = |micros| connections.enter(SlotKind::Metrics, || None, false, at(micros)).unwrap();
        let held: Vec<_> = (0..METRICS_CONNECTIONS_MAX as u64).map(|index| enter(index).0).collect();
        assert_eq!(enter(500).1, SlotGrant::Evicted(Duration::from_micros(500)));
        assert!(held[0].watch().evicted_at().is_some() && held[1].watch().evicted_at().is_none());
        assert_eq!(client(&connections, 501).unwrap().1, SlotGrant::Reserved(ReservedFor::Count));
    }

    #[test]
    fn an_address_has_so_many_and_of_ipv6_its_network() {
        let connections = table(100, 2);
        let enter = |address: IpAddr| {
            connections.enter(SlotKind::Client, || Some(address), false, at(0)).map(|(guard, _)| guard)
        };
        let v4 = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        let (one, _two) = (enter(v4(1)).unwrap(), enter(v4(1)).unwrap());
        assert_eq!(enter(v4(1)).err(), Some(SlotRefusal::Address));
        assert_eq!(enter("::ffff:10.0.0.1".parse().unwrap()).err(), Some(SlotRefusal::Address), "the same client");
        assert!(enter(v4(2)).is_ok());
        drop(one);
        assert!(enter(v4(1)).is_ok());
        let v6 = |text: &str| text.parse::<IpAddr>().unwrap();
        let _of_net = [enter(v6("2001:db8:0:1::1")).unwrap(), enter(v6("2001:db8:0:1:ffff::2")).unwrap()];
        assert_eq!(enter(v6("2001:db8:0:1:1:2:3:4")).err(), Some(SlotRefusal::Address));
        assert!(enter(v6("2001:db8:0:2::1")).is_ok());
        assert_eq!(connections.addresses.borrow().len(), 2, "those that left are forgotten");
    }

    #[test]
    fn a_scan_serves_many_evictions_and_a_vain_one_is_not_repeated_at_once() {
        let count = 2 * EVICTION_CANDIDATES_MAX;
        let connections = table(count, 0);
        let held: Vec<_> = (0..count as u64).map(|index| client(&connections, index).unwrap().0).collect();
        let mut new = Vec::new();
        for (index, oldest) in held.iter().enumerate().take(CONNECTIONS_LEAVING_MAX) {
            let (guard, admission) = client(&connections, 1_000_000).unwrap();
            guard.watch().set_idle(None);
            new.push(guard);
            assert!(matches!(admission, SlotGrant::Evicted(_)), "{index}");
            assert!(oldest.watch().evicted_at().is_some(), "{index}");
        }
        drop(new);
        drop(held);
        let connections = table(count, 0);
        let working: Vec<_> = (0..count).map(|_| busy(&connections, 0)).collect();
        assert_eq!(client(&connections, 1).unwrap().1, SlotGrant::Reserved(ReservedFor::Count));
        working[7].watch().set_idle(Some(at(2)));
        assert_eq!(client(&connections, 3).unwrap().1, SlotGrant::Reserved(ReservedFor::Count), "a scan was just made");
        let later = 2 + u64::try_from(SCAN_PAUSE.as_nanos()).unwrap() * count as u64 / 1_000;
        assert!(matches!(client(&connections, later).unwrap().1, SlotGrant::Evicted(_)));
    }

    #[test]
    fn where_memory_is_short_new_ones_are_for_all_but_inference_though_there_is_room() {
        let connections = table(100, 0);
        let enter = |kind, is_short| connections.enter(kind, || None, is_short, at(0)).unwrap();
        let (new, grant) = enter(SlotKind::Client, true);
        assert_eq!(
            (grant, new.watch().reserved_for()),
            (SlotGrant::Reserved(ReservedFor::Memory), Some(ReservedFor::Memory))
        );
        assert!(new.watch().is_last_answer());
        assert_eq!(enter(SlotKind::Metrics, true).1, SlotGrant::Free);
        assert_eq!(enter(SlotKind::Client, false).1, SlotGrant::Free);
    }

    #[test]
    fn where_memory_is_short_those_close_that_rest_and_no_younger_ones() {
        let rest = u64::try_from(REST_TIMEOUT.as_micros()).unwrap();
        let connections = table(10, 0);
        let held: Vec<_> = [0, 5, 6, rest].map(|micros| client(&connections, micros).unwrap().0).into();
        let _working = busy(&connections, 0);
        let closed = || held.iter().map(|guard| guard.watch().evicted_at().is_some()).collect::<Vec<_>>();
        assert_eq!((connections.evict_resting(at(rest + 5)), closed()), (2, vec![true, true, false, false]));
        assert_eq!((connections.evict_resting(at(rest + 5)), connections.evict_resting(at(rest + 6))), (0, 1));
        assert_eq!(closed(), [true, true, true, false]);
    }

    #[test]
    fn the_one_that_holds_the_most_is_closed_once_where_it_is_worth_it() {
        let connections = table(10, 0);
        let held: Vec<_> = (0..4).map(|_| busy(&connections, 0)).collect();
        let sizes = [MEMORY_HEAVY_SIZE - 1, 3 * MEMORY_HEAVY_SIZE, MEMORY_HEAVY_SIZE, 0];
        held.iter().zip(sizes).for_each(|(guard, size)| guard.watch().set_held(size));
        let close = || {
            let (watch, size) = connections.heaviest()?;
            watch.close_for_weight();
            Some(size)
        };
        assert_eq!((close(), close(), close()), (Some(sizes[1]), Some(sizes[2]), None));
        let heavy: Vec<_> = held.iter().map(|guard| guard.watch().is_too_heavy()).collect();
        assert_eq!(heavy, [false, true, true, false]);
        // A connection whose stream was reset stays, and those that work are asked for the bytes
        // that they hold.
        held[1].watch().handle_lightened();
        assert!(!held[1].watch().is_too_heavy() && connections.heaviest().is_none());
        held[3].watch().set_idle(Some(at(0)));
        held[0].watch().wake(WakeReason::Drain);
        connections.weigh();
        let asked: Vec<_> = held.iter().map(|guard| guard.watch().take_wake_reason()).collect();
        let (drain, weighed) = (Some(WakeReason::Drain), Some(WakeReason::Weighed));
        assert_eq!(asked, [drain, weighed, weighed, None], "what is due is not forgotten");
    }

    #[test]
    fn a_thing_is_said_once_in_a_while() {
        let connections = table(1, 0);
        let pause = u64::try_from(CONNECTION_NOTICE_PAUSE.as_micros()).unwrap();
        let said: Vec<_> = [5, 6, 4 + pause, 5 + pause, 6 + pause]
            .into_iter()
            .map(|micros| connections.is_notice_due(Notice::Evicted, at(micros)))
            .collect();
        assert_eq!(said, [true, false, false, true, false]);
        assert!(connections.is_notice_due(Notice::Full, at(6)));
    }

    #[test]
    fn the_sweep_wakes_those_that_are_due_once_and_the_drain_all() {
        let connections = table(2, 0);
        let (due, later) = (client(&connections, 0).unwrap().0, client(&connections, 0).unwrap().0);
        due.watch().set_deadline(Some(Instant::from_micros(5)));
        later.watch().set_deadline(Some(Instant::from_micros(6)));
        connections.sweep(Instant::from_micros(5));
        assert_eq!(
            (due.watch().take_wake_reason(), later.watch().take_wake_reason()),
            (Some(WakeReason::Timeout), None)
        );
        connections.sweep(Instant::from_micros(5));
        assert_eq!(due.watch().take_wake_reason(), None);
        connections.sweep(Instant::from_micros(6));
        later.watch().set_deadline(Some(Instant::from_micros(9)));
        assert_eq!(later.watch().take_wake_reason(), None, "another wait has begun");
        connections.drain();
        assert!(connections.is_draining());
        assert_eq!(
            (due.watch().take_wake_reason(), later.watch().take_wake_reason()),
            (Some(WakeReason::Drain), Some(WakeReason::Drain))
        );
        drop((due, later));
        assert!(connections.is_empty());
    }
}
