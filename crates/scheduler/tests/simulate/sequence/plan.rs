//! One schedule: a policy, instances and their run times, and the actions of the clients of 200 sequences.

use std::time::Duration;

use base::time::Instant;
use scheduler::Policy;
use scheduler::sequence::{SequencePolicy, SlotStrategy};

use crate::random::Random;

/// Number of ids.
const IDS: u64 = 200;

/// All events except the batcher's decisions.
#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub policy: SequencePolicy,
    /// Run time of a batch.
    pub run: Duration,
    /// Percent of batches at whose end the instance dies, percent of instances that are made again at once, and the
    /// time that it takes otherwise.
    pub deaths: u64,
    pub renewals: u64,
    pub death: Duration,
    /// Percent of runs of iterative sequences after which the model says only later whether it wants another.
    pub late: u64,
    /// Percent of claims that are lost to the shard at the last moment.
    pub claims_lost: u64,
    /// By arrival.
    pub arrivals: Vec<Arrival>,
}

#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Instant,
    pub id: u64,
    pub is_start: bool,
    pub is_end: bool,
    pub shape: i64,
    pub timeout: Duration,
    /// The number that the model adds to the state.
    pub value: u64,
    /// Number of runs, if sequences are iterative.
    pub runs: u64,
    /// The instant at which its client leaves it, if it still waits.
    pub cancelled_at: Option<Instant>,
    /// The instant at which its client leaves the sequence, as by the end of a stream.
    pub left_at: Option<Instant>,
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let policy = policy(&mut random);
        let mut arrivals = Vec::new();
        let clients = 2 + random.below(8);
        let (cancels, lefts, timeouts) =
            (random.one_of(&[0, 0, 8]), random.one_of(&[0, 0, 5]), random.one_of(&[0, 0, 30]));
        let (ids, shapes, gap) = (random.one_of(&[2, 5, IDS]), random.one_of(&[1, 1, 2]), random.one_of(&[5, 40, 150]));
        for _ in 0..clients {
            let id = 1 + random.below(ids);
            let mut at = random.below(300);
            let count = 1 + random.below(7);
            // One of five vanishes without an end; some begin twice, or in the middle.
            let vanishes = random.percent(20);
            for place in 0..count {
                at += random.below(gap);
                let later = |random: &mut Random| Instant::from_micros(at + 1 + random.below(200));
                let is_start = if place == 0 { random.percent(95) } else { random.percent(10) };
                arrivals.push(Arrival {
                    at: Instant::from_micros(at),
                    id,
                    is_start,
                    is_end: place + 1 == count && !vanishes,
                    shape: random.below(shapes) as i64,
                    timeout: micros(if random.percent(timeouts) { 1 + random.below(150) } else { 0 }),
                    value: random.below(u64::MAX),
                    runs: 1 + random.below(4),
                    cancelled_at: random.percent(cancels).then(|| later(&mut random)),
                    left_at: random.percent(lefts).then(|| later(&mut random)),
                });
            }
        }
        arrivals.sort_by_key(|arrival| arrival.at);
        Self {
            seed,
            policy,
            run: micros(random.one_of(&[1, 10, 60, 200])),
            deaths: random.one_of(&[0, 0, 10]),
            renewals: random.one_of(&[0, 50, 100]),
            death: micros(1 + random.below(300)),
            late: random.one_of(&[0, 20]),
            claims_lost: random.one_of(&[0, 0, 5]),
            arrivals,
        }
    }
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn policy(random: &mut Random) -> SequencePolicy {
    let slots = random.one_of(&[1, 2, 4]);
    let delay = micros(random.one_of(&[0, 30, 90]));
    let strategy = if random.percent(50) {
        SlotStrategy::Direct { queue_delay_max: delay, slots_least: random.below(slots as u64 + 1) as usize }
    } else {
        let rows_max = random.one_of(&[0, 1, 2, 4]);
        let rows_preferred = (1..=rows_max).filter(|_| random.percent(25)).collect();
        let is_batched = rows_max > 0;
        SlotStrategy::Oldest(Policy {
            rows_max,
            is_batched,
            rows_preferred,
            queue_delay_max: delay,
            ..Policy::default()
        })
    };
    let idle_max = micros(random.one_of(&[50, 150, 1_000]));
    let instances = 1 + random.below(3) as usize;
    SequencePolicy { strategy, instances, slots, idle_max, is_iterative: random.percent(30) }
}
