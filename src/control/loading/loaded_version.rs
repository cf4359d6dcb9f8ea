//! A loaded model version whose instances do not exist yet, and the scheduling policy that its configuration asks for.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{EnsembleModel, LoadedModel};
use crate::control::loading::placement::{InstanceSite, PlacementChoice, WorkerLoad};
use crate::limits::BATCH_REQUESTS_MAX;
use crate::model::config::ConfigDraft;
use crate::model::{InstanceGroup, ModelSpec, QueueRules, SequenceStrategy};
use crate::queue::rate_limiter::RateRegistration;
use crate::queue::run_limit::RunLimit;
use crate::scheduler::sequence::{SequencePolicy, SlotStrategy};
use crate::scheduler::{Policy, QueuePolicy, TimeoutAction};

/// The facts of a load by which a later one decides that only the instances have changed.
#[derive(Clone)]
pub struct LoadBasis {
    /// The configuration as read.
    pub draft: ConfigDraft,
    /// The checked configuration without the server's decisions, as the model's code was told it.
    pub configured: Arc<ModelSpec>,
    /// The mark of the files beside the version directories, but for the configuration.
    pub files: u64,
    /// The cores that the workers need.
    pub load: WorkerLoad,
}

impl LoadBasis {
    /// The basis of a load of this draft, which was completed to `configured`.
    pub fn new(draft: &ConfigDraft, configured: &Arc<ModelSpec>, files: u64, load: WorkerLoad) -> Self {
        Self { draft: draft.clone(), configured: Arc::clone(configured), files, load }
    }
}

/// One loaded model version.
pub struct LoadedVersion {
    /// Its checked configuration, with the server's decisions.
    pub spec: Arc<ModelSpec>,
    /// Its checked configuration without them.
    pub configured: Arc<ModelSpec>,
    /// Its version number.
    pub version: u64,
    /// Makes its instances.
    pub model: Arc<dyn LoadedModel>,
    /// The place where its instances will run.
    pub choice: PlacementChoice,
    /// The duration of its load.
    pub took: Duration,
    /// The bytes of the files that its engine has read; 0 if the server does not know them.
    pub files_size: u64,
    /// The registration of its instances with the rate limiter; `None` without `--rate-limit`.
    pub registration: Option<RateRegistration>,
    /// The basis of updates of its instances; `None` if it has none.
    pub basis: Option<Arc<LoadBasis>>,
    /// The time limit of its runs; `None` for `--run-timeout-secs=0`, and for an ensemble.
    pub run_limit: Option<RunLimit>,
}

impl LoadedVersion {
    /// A Python model, or one of a shared library, of which only the configuration is asked for.
    pub fn not_loaded(spec: &Arc<ModelSpec>, version: u64, run_limit: Option<RunLimit>) -> Self {
        Self {
            spec: Arc::clone(spec),
            configured: Arc::clone(spec),
            version,
            // Any model without instances of its own will do.
            model: Arc::new(EnsembleModel),
            choice: PlacementChoice::new(InstanceSite::Worker, "it is not loaded"),
            took: Duration::ZERO,
            files_size: 0,
            registration: None,
            basis: None,
            run_limit,
        }
    }

    /// The instance groups that get worker threads, passive ones last.
    pub fn worker_groups(&self) -> impl Iterator<Item = &InstanceGroup> {
        let groups = || self.spec.instance_groups.iter().filter(|_| self.choice.site == InstanceSite::Worker);
        groups().filter(|group| !group.is_passive).chain(groups().filter(|group| group.is_passive))
    }

    /// Returns its scheduling of sequences, if it serves any. The queue fills in the number of
    /// instances.
    pub fn sequence_policy(&self) -> Option<SequencePolicy> {
        let sequence = self.spec.sequence.as_ref()?;
        let rows_max = self.spec.rows_max;
        let rows = usize::try_from(rows_max).unwrap_or(usize::MAX).clamp(1, BATCH_REQUESTS_MAX);
        let (strategy, slots) = match &sequence.strategy {
            SequenceStrategy::Direct { queue_delay_max, utilization_min } => {
                // The smallest number of busy slots that reaches minimum_slot_utilization.
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

    /// Returns its batching policy.
    pub fn policy(&self) -> Policy {
        let rows_max = self.spec.rows_max;
        let Some(batching) = &self.spec.batching else { return Policy { rows_max, ..Policy::default() } };
        // A preference for the largest batch alone has no effect.
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
