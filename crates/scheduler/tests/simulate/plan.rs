//! One schedule: a policy, instances and their run times, and requests with their cancels and
//! timeouts.

use std::collections::BTreeMap;
use std::time::Duration;

use base::policy::AdmissionRule;
use base::time::Instant;
use scheduler::{Policy, QueueBounds, QueuePolicy, TimeoutAction};

use super::random::Random;

/// All events except the scheduler's decisions.
#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub policy: Policy,
    pub bounds: QueueBounds,
    pub instance_count: usize,
    /// Run time of a batch, without the part of each row.
    pub run: Duration,
    pub run_row: Duration,
    /// Percent of batches at whose end the instance dies, and the time that it is dead.
    pub deaths: u64,
    pub death: Duration,
    /// Percent of claims that are lost to the shard at the last moment.
    pub claims_lost: u64,
    /// True if the shards keep the timers, as they do in the server; false if the scheduler's are
    /// used.
    pub is_timed_by_shards: bool,
    /// By arrival.
    pub arrivals: Vec<Arrival>,
}

#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Instant,
    pub rows: u32,
    pub size: usize,
    pub shape: i64,
    pub priority: u64,
    pub timeout: Duration,
    pub deadline: Option<Instant>,
    pub cancelled_at: Option<Instant>,
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let bounds = QueueBounds { requests: random.one_of(&[2, 6, 12, 100]), bytes: random.one_of(&[40, 1_000]) };
        let policy = policy(&mut random, bounds);
        let spread = random.one_of(&[5, 40, 200]);
        let shapes = random.one_of(&[1, 1, 2]);
        let (timeouts, deadlines, cancels) =
            (random.one_of(&[0, 60]), random.one_of(&[0, 20, 60]), random.one_of(&[0, 0, 30]));
        let mut at = 1;
        let mut arrival = |random: &mut Random| {
            // Bursts: half of the requests come together with the one before.
            at += random.below(2) * random.below(spread);
            let later = |random: &mut Random| Instant::from_micros(at + 1 + random.below(300));
            Arrival {
                at: Instant::from_micros(at),
                rows: 1 + random.below(policy.rows_max.clamp(1, 4).into()) as u32,
                size: random.below(10) as usize,
                shape: random.below(shapes) as i64,
                priority: random.below(policy.priority_levels.min(4) + 2),
                timeout: Duration::from_micros(if random.percent(timeouts) { random.below(150) } else { 0 }),
                deadline: random.percent(deadlines).then(|| later(random)),
                cancelled_at: random.percent(cancels).then(|| later(random)),
            }
        };
        let count = 4 + random.below(28);
        let arrivals = (0..count).map(|_| arrival(&mut random)).collect();
        Self {
            seed,
            policy,
            bounds,
            instance_count: 1 + random.below(3) as usize,
            run: micros(random.one_of(&[0, 10, 60, 300])),
            run_row: micros(random.one_of(&[0, 5])),
            deaths: random.one_of(&[0, 0, 20]),
            death: micros(random.below(500)),
            claims_lost: random.one_of(&[0, 0, 5]),
            is_timed_by_shards: random.percent(50),
            arrivals,
        }
    }
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn policy(random: &mut Random, bounds: QueueBounds) -> Policy {
    let rows_max = random.one_of(&[0, 1, 4, 8, 8]);
    let preferred = if random.percent(50) { 0 } else { 30 };
    let rows_preferred = (1..=rows_max).filter(|_| random.percent(preferred)).collect();
    // The order of responses excludes several levels and delayed requests.
    let preserves_order = random.percent(40);
    let priority_levels = if preserves_order { random.below(2) } else { random.one_of(&[0, 0, 1, 3, u64::MAX]) };
    let queue_default = queue(random, !preserves_order);
    let levels: Vec<_> = (1..=priority_levels.min(3)).filter(|_| random.percent(50)).collect();
    let queue_by_level: BTreeMap<_, _> =
        levels.into_iter().map(|level| (level, queue(random, !preserves_order))).collect();
    // Tight enough that cancelled requests must be swept out: four levels have bounds.
    let own = queue_by_level.values().map(|queue| queue.entries_max).sum::<usize>() + 4 * queue_default.entries_max;
    Policy {
        rows_max,
        is_batched: rows_max > 0 && random.percent(85),
        entries_max: bounds.requests + own + 1,
        rows_preferred,
        queue_delay_max: micros(random.one_of(&[0, 30, 150])),
        latency_target: None,
        admission: AdmissionRule::None,
        splits_rows: false,
        rows_differ: false,
        preserves_order,
        priority_levels,
        priority_default: if priority_levels > 0 { 1 + random.below(priority_levels.min(3)) } else { 0 },
        queue_default,
        queue_by_level,
    }
}

fn queue(random: &mut Random, may_delay: bool) -> QueuePolicy {
    QueuePolicy {
        timeout_action: if may_delay && random.percent(50) { TimeoutAction::Delay } else { TimeoutAction::Reject },
        timeout_default: micros(random.one_of(&[0, 0, 40, 200])),
        may_override: random.percent(50),
        entries_max: random.one_of(&[0, 0, 1, 3, 5]),
    }
}
