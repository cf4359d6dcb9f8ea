//! A model version that was loaded and not yet placed: its instances are still to be made.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::LoadedModel;
use crate::control::placement::{InstanceSite, PlacementChoice};
use crate::model::{InstanceGroup, ModelSpec, QueueRules, SequenceStrategy};
use crate::queue::rate_limiter::RateRegistration;
use crate::scheduler::sequence::{SequencePolicy, SlotStrategy};
use crate::scheduler::{Policy, QueuePolicy, TimeoutAction};

/// One model version, ready to be placed.
pub struct LoadedVersion {
    /// Its checked configuration.
    pub spec: Arc<ModelSpec>,
    /// Its version.
    pub version: u64,
    /// Where its instances come from.
    pub model: Arc<dyn LoadedModel>,
    /// Where they run.
    pub choice: PlacementChoice,
    /// How long its load took.
    pub took: Duration,
    /// Those that take resources, where there is a rate limit.
    pub registration: Option<RateRegistration>,
}

impl LoadedVersion {
    /// The groups whose instances have a worker thread each, those that are passive last.
    pub fn worker_groups(&self) -> impl Iterator<Item = &InstanceGroup> {
        let groups = || self.spec.instance_groups.iter().filter(|_| self.choice.site == InstanceSite::Worker);
        groups().filter(|group| !group.is_passive).chain(groups().filter(|group| group.is_passive))
    }

    /// How it serves sequences, where it does; the number of instances is the queue's.
    pub fn sequence_policy(&self) -> Option<SequencePolicy> {
        let sequence = self.spec.sequence.as_ref()?;
        let rows_max = self.spec.rows_max;
        let rows = usize::try_from(rows_max).unwrap_or(usize::MAX).max(1);
        let (strategy, slots) = match &sequence.strategy {
            SequenceStrategy::Direct { queue_delay_max, utilization_min } => {
                // The least count whose share of the slots is enough.
                let least = (0..=rows).find(|count| *count as f64 >= f64::from(*utilization_min) * rows as f64);
                (SlotStrategy::Direct { queue_delay_max: *queue_delay_max, slots_least: least.unwrap_or(rows) }, rows)
            }
            SequenceStrategy::Oldest { candidates_max, rows_preferred, queue_delay_max } => {
                let (rows_preferred, queue_delay_max) = (rows_preferred.clone(), *queue_delay_max);
                let is_batched = rows_max > 0;
                let policy = Policy { rows_max, is_batched, rows_preferred, queue_delay_max, ..Policy::default() };
                (SlotStrategy::Oldest(policy), usize::try_from(*candidates_max).unwrap_or(usize::MAX))
            }
        };
        let (idle_max, is_iterative) = (sequence.idle_max, sequence.is_iterative);
        Some(SequencePolicy { strategy, instances: 0, slots, idle_max, is_iterative })
    }

    /// How it batches.
    pub fn policy(&self) -> Policy {
        let rows_max = self.spec.rows_max;
        let Some(batching) = &self.spec.batching else { return Policy { rows_max, ..Policy::default() } };
        // The largest batch alone is what is preferred where nothing is.
        let rows_preferred = Some(batching.rows_preferred.clone()).filter(|sizes| *sizes != [rows_max]);
        Policy {
            rows_max,
            is_batched: true,
            rows_preferred: rows_preferred.unwrap_or_default(),
            queue_delay_max: batching.queue_delay_max,
            latency_target: batching.latency_target,
            preserves_order: batching.preserves_order,
            priority_levels: batching.priority_levels,
            priority_default: batching.priority_default,
            queue_default: queue_policy(&batching.queue_default),
            queue_by_level: batching
                .queue_by_level
                .iter()
                .map(|(level, rules)| (*level, queue_policy(rules)))
                .collect(),
            ..Policy::default()
        }
    }
}

fn queue_policy(rules: &QueueRules) -> QueuePolicy {
    QueuePolicy {
        timeout_action: if rules.is_delaying { TimeoutAction::Delay } else { TimeoutAction::Reject },
        timeout_default: rules.timeout_default,
        may_override: rules.may_override,
        entries_max: usize::try_from(rules.entries_max).unwrap_or(usize::MAX),
    }
}
