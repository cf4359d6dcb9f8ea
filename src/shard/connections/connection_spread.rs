//! Chooses the shard that serves a new connection. The kernel gives it to a shard by a hash of its
//! addresses, which puts a few connections on one shard by chance; that shard accepts it and hands
//! it over if another has less to do. Any shard pushes into another's [`ConnectionInbox`]; the
//! owner polls. Written when connections begin and end, never by a request. Bounded by the
//! connections that the kernel lets a shard accept: each push was an accept, and the owner takes
//! all in a turn.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::queue::closable_queue::ClosableQueue;
use crate::runtime::socket::Socket;
use crate::shard::connections::listener_kind::ListenerKind;

/// From this part of its time on, in thousandths, a shard counts as busy.
pub const BUSY_FROM: usize = 500;
/// A busy shard counts as if it had a connection more, and this part of its connections.
const BUSY_PART: usize = 4;
/// Connections that a shard may have beyond the least loaded before it hands one over: one, and this part of those. Each
/// hand-over wakes another thread, and short connections level out by themselves.
const SLACK_PART: usize = 32;

/// A connection that another shard has accepted.
pub struct HandedConnection {
    /// Its socket, from which nothing has been read.
    pub socket: OwnedFd,
    /// The kind of its listener.
    pub kind: ListenerKind,
    /// Its place among the connections of the shard that gets it.
    pub place: ConnectionPlace,
}

/// Counts one connection of a shard, from the choice of the shard until this is dropped.
pub struct ConnectionPlace(Arc<CachePadded<AtomicUsize>>);

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connections that other shards hand over to one shard, and the load of that shard.
#[derive(Default)]
pub struct ConnectionInbox {
    waiting: ClosableQueue<HandedConnection>,
    /// Its connections of clients, and those on their way to it.
    count: Arc<CachePadded<AtomicUsize>>,
    /// The share of its recent time in which it worked, in thousandths.
    busy: AtomicUsize,
}

impl ConnectionInbox {
    /// The shard runs and polls from now on.
    pub fn open(&self) {
        self.waiting.open();
    }

    /// The shard takes no further connections from others. It polls once more afterwards.
    pub fn close(&self) {
        self.waiting.close();
    }

    /// Its connections of clients, and those on their way to it.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Sets the share of its recent time in which the shard worked, in thousandths.
    pub fn set_busy(&self, busy: usize) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Counts a connection that the shard will get.
    pub fn enter(&self) -> ConnectionPlace {
        self.count.fetch_add(1, Ordering::Relaxed);
        ConnectionPlace(Arc::clone(&self.count))
    }

    /// Gives a connection to the shard, which must be woken then.
    ///
    /// # Errors
    /// A connection, perhaps another one, if the shard no longer takes any.
    pub fn push(&self, arrival: HandedConnection) -> Result<(), HandedConnection> {
        self.waiting.push(arrival)
    }

    /// The next connection, in the order they came.
    pub fn poll(&self) -> Option<HandedConnection> {
        self.waiting.poll()
    }

    /// The weight by which shards are compared; `None` for one that takes nothing from others.
    fn weight(&self) -> Option<usize> {
        self.waiting.is_open().then(|| weight(self.count(), self.busy.load(Ordering::Relaxed)))
    }
}

/// A connection to serve here, with its place if it is a client's.
pub type PlacedConnection = (Socket, ListenerKind, Option<ConnectionPlace>);

/// The shard that serves a connection which the shard `own` has accepted: another one only if `own`
/// has clearly more to do. Among shards with equally little to do, it is the next one after `own`.
pub fn choose<'a>(own: usize, inboxes: impl Iterator<Item = &'a ConnectionInbox>) -> usize {
    choose_by_weight(own, &inboxes.map(ConnectionInbox::weight).collect::<smallvec::SmallVec<[_; 64]>>())
}

fn choose_by_weight(own: usize, weights: &[Option<usize>]) -> usize {
    let Some(Some(have)) = weights.get(own) else { return own };
    let (before, after) = weights.split_at_checked(own).unwrap_or_default();
    let in_turn = (own..).zip(after).chain((0..).zip(before));
    let others = in_turn.filter_map(|(index, weight)| weight.map(|weight| (index, weight)));
    let Some((index, least)) = others.min_by_key(|(_, weight)| *weight) else { return own };
    if *have > least + 1 + least / SLACK_PART { index } else { own }
}

const fn weight(count: usize, busy: usize) -> usize {
    if busy < BUSY_FROM { count } else { count + 1 + count / BUSY_PART }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens connections one after another, each accepted by the shard of a generator that prefers
    /// some shards, and returns the connections of each shard and the number of those handed over.
    fn spread(shards: usize, count: usize, mut seed: u64, busy: &[usize]) -> (Vec<usize>, usize) {
        let mut have = vec![0; shards];
        let mut moved = 0;
        for _ in 0..count {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let own = usize::try_from(seed >> 60).unwrap() * usize::try_from(seed >> 56 & 15).unwrap() % shards;
            let weights: Vec<_> = have.iter().zip(busy).map(|(count, busy)| Some(weight(*count, *busy))).collect();
            let chosen = choose_by_weight(own, &weights);
            moved += usize::from(chosen != own);
            have[chosen] += 1;
        }
        (have, moved)
    }

    #[test]
    fn a_few_connections_and_many_are_spread_whatever_the_kernel_does() {
        for seed in 0..200 {
            let (have, _) = spread(4, 16, seed, &[0; 4]);
            assert!(have.iter().all(|count| (2..=6).contains(count)), "seed {seed}: {have:?}");
            let (have, moved) = spread(4, 1_000, seed, &[0; 4]);
            assert!(have.iter().all(|count| (225..=275).contains(count)), "seed {seed}: {have:?}");
            assert!(moved < 600, "seed {seed}: {moved} were handed over");
        }
    }

    #[test]
    fn a_busy_shard_gets_fewer_and_is_not_starved() {
        for seed in 0..200 {
            let (have, _) = spread(4, 16, seed, &[0, 900, 0, 0]);
            assert!(have.iter().all(|count| (2..=6).contains(count)), "seed {seed}: {have:?}");
            let (have, _) = spread(4, 1_000, seed, &[0, 900, 0, 0]);
            assert!((195..230).contains(&have[1]), "seed {seed}: {have:?}");
        }
    }

    #[test]
    fn a_connection_stays_where_it_was_accepted_unless_another_shard_has_clearly_less() {
        let check = |own: usize, weights: &[Option<usize>], want: usize| {
            assert_eq!(choose_by_weight(own, weights), want, "{own} of {weights:?}");
        };
        check(0, &[Some(1), Some(0)], 0);
        check(0, &[Some(2), Some(0)], 1);
        check(1, &[Some(2), Some(2), Some(0), Some(0)], 2); // the next of equals
        check(3, &[Some(0), Some(2), Some(0), Some(2)], 0);
        check(0, &[Some(67), Some(64)], 0); // one and a 32nd part more may stay
        check(0, &[Some(68), Some(64)], 1);
        check(0, &[Some(9), None], 0); // the other one takes none
        check(0, &[None, Some(0)], 0); // a drain: no shard hands over
        check(0, &[], 0);
    }

    #[test]
    fn a_shard_that_closed_gives_back_what_comes_and_counts_it_no_more() {
        let inbox = ConnectionInbox::default();
        let arrival = || {
            let socket = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
            HandedConnection { socket, kind: ListenerKind::Http, place: inbox.enter() }
        };
        assert!(inbox.push(arrival()).is_err(), "it has not begun");
        assert_eq!(inbox.count(), 0);
        inbox.open();
        assert!(inbox.push(arrival()).is_ok());
        assert_eq!(inbox.count(), 1);
        inbox.close();
        assert!(inbox.push(arrival()).is_err());
        assert!(inbox.poll().is_some() && inbox.poll().is_none());
        assert_eq!(inbox.count(), 0);
    }
}
