//! Loads every model of the repositories: listing, configuration, labels, engine, placement. Runs
//! once at start, on the control thread. A model that does not load says why and, unless
//! `--exit-on-error=false`, ends the server.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::backend::{LoadedModel, Sequential, Threads, threads};
use crate::config::{RateResource, Settings};
use crate::error::Error;
use crate::limits::{CONFIG_SIZE_MAX, LABELS_SIZE_MAX, MODEL_SIZE_MAX, SEQUENCE_STATE_BYTES_MAX};
use crate::model::config::{Completion, Draft};
use crate::model::labels::Labels;
use crate::model::onnx::OnnxSignature;
use crate::model::repository::ModelDirectory;
use crate::model::{InstanceGroup, ModelSpec, QueueRules, RateRules, SequenceStrategy, VersionPolicy};
use crate::scheduler::rate::{Demand, Need, Pools, Supply};
use crate::scheduler::sequence::{SequencePolicy, Strategy};
use crate::scheduler::{Policy, QueuePolicy, TimeoutAction};
use crate::server::beneath::Repository;
use crate::server::engine::Engines;
use crate::server::log;
use crate::server::placement::{self, Choice, Site};
use crate::shard::clock;

/// One model version, ready to be placed.
pub struct Loaded {
    /// Its checked configuration.
    pub spec: Arc<ModelSpec>,
    /// Its version.
    pub version: u64,
    /// Where its instances come from.
    pub model: Arc<dyn LoadedModel>,
    /// Where they run.
    pub choice: Choice,
    /// The ids of those that take resources, where there is a rate limit; none where there is not.
    pub rate_ids: Range<usize>,
}

impl Loaded {
    /// The groups whose instances have a worker thread each, those that are passive last.
    pub fn worker_groups(&self) -> impl Iterator<Item = &InstanceGroup> {
        let groups = || self.spec.instance_groups.iter().filter(|_| self.choice.site == Site::Worker);
        groups().filter(|group| !group.is_passive).chain(groups().filter(|group| group.is_passive))
    }

    /// What each instance needs that takes batches, in their order.
    fn demands(&self) -> impl Iterator<Item = Demand> {
        let active = self.worker_groups().filter(|group| !group.is_passive);
        active.flat_map(|group| group.instance_names().map(|_| demand(&group.rate)))
    }

    /// How it serves sequences, where it does; the number of instances is the feed's.
    pub fn sequence_policy(&self) -> Option<SequencePolicy> {
        let sequence = self.spec.sequence.as_ref()?;
        let rows_max = self.spec.rows_max;
        let rows = usize::try_from(rows_max).unwrap_or(usize::MAX).max(1);
        let (strategy, slots) = match &sequence.strategy {
            SequenceStrategy::Direct { queue_delay_max, utilization_min } => {
                // The least count whose share of the slots is enough.
                let least = (0..=rows).find(|count| *count as f64 >= f64::from(*utilization_min) * rows as f64);
                (Strategy::Direct { queue_delay_max: *queue_delay_max, slots_least: least.unwrap_or(rows) }, rows)
            }
            SequenceStrategy::Oldest { candidates_max, rows_preferred, queue_delay_max } => {
                let (rows_preferred, queue_delay_max) = (rows_preferred.clone(), *queue_delay_max);
                let is_batched = rows_max > 0;
                let policy = Policy { rows_max, is_batched, rows_preferred, queue_delay_max, ..Policy::default() };
                (Strategy::Oldest(policy), usize::try_from(*candidates_max).unwrap_or(usize::MAX))
            }
        };
        Some(SequencePolicy { strategy, instances: 0, slots, idle_max: sequence.idle_max })
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

/// All instances are on the CPU, which is device 0.
fn demand(rules: &RateRules) -> Demand {
    let needs = rules.resources.iter().map(|resource| Need {
        name: resource.name.clone(),
        is_global: resource.is_global,
        count: resource.count.into(),
    });
    Demand { device: 0, priority: rules.priority, needs: needs.collect() }
}

fn queue_policy(rules: &QueueRules) -> QueuePolicy {
    QueuePolicy {
        timeout_action: if rules.is_delaying { TimeoutAction::Delay } else { TimeoutAction::Reject },
        timeout_default: rules.timeout_default,
        may_override: rules.may_override,
        entries_max: usize::try_from(rules.entries_max).unwrap_or(usize::MAX),
    }
}

/// Loads all models of all repositories, by name, the highest version of each first; and the
/// resources that they share.
pub fn load_all(settings: &Settings) -> Result<(Vec<Loaded>, Pools), Error> {
    let engines = Engines::new(&settings.backend_config.onnxruntime)?;
    let mut loaded = Vec::new();
    let mut pools = Pools::new(supplies(settings));
    let mut failures = 0;
    let mut names: Vec<String> = Vec::new();
    for path in &settings.repositories {
        let repository = Repository::open(path).map_err(|error| {
            Error::invalid(format!("cannot open the model repository '{}': {error}", path.display()))
        })?;
        let listing =
            repository.list().map_err(|error| Error::invalid(format!("cannot list '{}': {error}", path.display())))?;
        let found = listing.find_models();
        for (name, error) in &found.refused {
            failures += 1;
            log::error(&format!("'{name}' is no model: {error}"));
        }
        for directory in &found.models {
            let outcome = if names.contains(&directory.name) {
                Err(Error::invalid("it is not unique: another repository has a model of this name"))
            } else {
                load_model(&repository, path, directory, settings, &engines)
            };
            names.push(directory.name.clone());
            match outcome.and_then(|versions| register(versions, &mut pools, settings)) {
                Ok(versions) => loaded.extend(versions),
                Err(error) => {
                    failures += 1;
                    log::error(&format!("failed to load '{}': {error}", directory.name));
                }
            }
        }
    }
    if failures > 0 && settings.exit_on_error {
        return Err(Error::internal("Internal - failed to load all models"));
    }
    loaded.sort_by(|a, b| (&a.spec.name, b.version).cmp(&(&b.spec.name, a.version)));
    Ok((loaded, pools))
}

fn supplies(settings: &Settings) -> Vec<Supply> {
    let supply = |resource: &RateResource| Supply {
        name: resource.name.clone(),
        count: resource.count,
        device: resource.device,
    };
    settings.rate_resources.iter().map(supply).collect()
}

/// Sees to it that every instance of a model can have what it needs.
fn register(mut versions: Vec<Loaded>, pools: &mut Pools, settings: &Settings) -> Result<Vec<Loaded>, Error> {
    if !settings.is_rate_limited {
        return Ok(versions);
    }
    let demands: Vec<_> = versions.iter().flat_map(Loaded::demands).collect();
    let mut ids = pools.register(&demands).map_err(|error| Error::invalid(error.to_string()))?;
    for loaded in &mut versions {
        let end = ids.start + loaded.demands().count();
        loaded.rate_ids = ids.start..end;
        ids.start = end;
    }
    Ok(versions)
}

fn load_model(
    repository: &Repository,
    path: &Path,
    directory: &ModelDirectory,
    settings: &Settings,
    engines: &Engines,
) -> Result<Vec<Loaded>, Error> {
    let name = &directory.name;
    let config = directory.has_config.then(|| read(repository, &format!("{name}/config.pbtxt"), CONFIG_SIZE_MAX));
    let draft = Draft::new(name, config.transpose()?.as_deref(), &directory.files)?;
    let labels = read_labels(repository, name, &draft)?;
    let states = read_states(repository, name, &draft)?;
    let draft = draft.with_state_files(states);
    let choice = directory.choose_versions(&draft.version_policy())?;
    if let VersionPolicy::Specific(_) = draft.version_policy() {
        for version in &choice.missing {
            log::warning(&format!("'{name}' has no version {version}, which its version policy names"));
        }
    }
    let mut loaded = Vec::new();
    for version in choice.versions {
        let onnx = match draft.onnx_filename() {
            Some(file) => {
                let bytes = read(repository, &format!("{name}/{version}/{file}"), MODEL_SIZE_MAX)?;
                Some(OnnxSignature::decode(&bytes)?)
            }
            None => None,
        };
        let completion = completion(settings, draft.backend());
        let spec = Arc::new(draft.clone().complete(onnx.as_ref(), &labels, completion)?);
        let directory = path.join(name).join(version.to_string());
        loaded.push(load_version(spec, version, &directory, settings, engines)?);
    }
    Ok(loaded)
}

fn completion(settings: &Settings, backend: &str) -> Completion {
    let default = Completion::default();
    let rows_max_default = settings.backend_config.rows_max_default(backend).unwrap_or(default.rows_max_default);
    Completion { is_on: settings.auto_complete, rows_max_default }
}

fn load_version(
    spec: Arc<ModelSpec>,
    version: u64,
    directory: &Path,
    settings: &Settings,
    engines: &Engines,
) -> Result<Loaded, Error> {
    let began = clock::now();
    let backend = engines.choose(&spec)?;
    let (model, choice) = threads::enter(1, |threads: &Threads| {
        let model = match &spec.sequence {
            None => backend.load(&spec, directory)?,
            Some(sequence) => {
                let inner = backend.load(&sequence.engine, directory)?;
                let bytes_max = settings.sequence_state_bytes_max;
                Box::new(Sequential::new(inner, &spec, Arc::clone(sequence), bytes_max)) as Box<dyn LoadedModel>
            }
        };
        let choice = placement::choose(&spec, &*model, threads, placement::bound_by(&spec, settings))?;
        Ok::<_, Error>((model, choice))
    })?;
    let took = clock::now().since(began);
    let place = match choice.site {
        Site::Inline => "inline",
        Site::Worker => "on workers",
    };
    log::info(&format!(
        "loaded '{}' version {version} with {} in {took:?}, runs {place} ({})",
        spec.name,
        backend.name(),
        choice.why
    ));
    let spec = Arc::new(spec.with_parameter(placement::PARAMETER, choice.site.as_str())?);
    Ok(Loaded { spec, version, model: Arc::from(model), choice, rate_ids: 0..0 })
}

fn read(repository: &Repository, path: &str, size_max: usize) -> Result<Vec<u8>, Error> {
    // The path is the model's own, relative to the repository.
    repository.read(path, size_max).map_err(|error| Error::invalid(format!("cannot read '{path}': {error}")))
}

fn read_labels(repository: &Repository, name: &str, draft: &Draft) -> Result<BTreeMap<String, Arc<Labels>>, Error> {
    let mut labels = BTreeMap::new();
    for file in draft.label_filenames() {
        let bytes = read(repository, &format!("{name}/{file}"), LABELS_SIZE_MAX)?;
        let text = String::from_utf8(bytes).map_err(|_| Error::invalid(format!("'{name}/{file}' is not UTF-8")))?;
        labels.insert(file.to_owned(), Arc::new(Labels::from_text(&text)));
    }
    Ok(labels)
}

/// The initial states of sequences, from the files that the configuration names.
fn read_states(repository: &Repository, name: &str, draft: &Draft) -> Result<BTreeMap<String, Arc<[u8]>>, Error> {
    let mut states = BTreeMap::new();
    for file in draft.state_filenames() {
        let bytes = read(repository, &format!("{name}/initial_state/{file}"), SEQUENCE_STATE_BYTES_MAX)?;
        states.insert(file, bytes.into());
    }
    Ok(states)
}
