//! Loads every model of the repositories: listing, configuration, labels, engine, placement. Runs
//! once at start, on the control thread. A model that does not load says why and, unless
//! `--exit-on-error=false`, ends the server.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::{LoadedModel, Threads, threads};
use crate::config::{RateResource, Settings};
use crate::error::Error;
use crate::limits::{LABELS_SIZE_MAX, MODEL_SIZE_MAX};
use crate::model::config::{Completion, Draft};
use crate::model::labels::Labels;
use crate::model::onnx::OnnxSignature;
use crate::model::repository::ModelDirectory;
use crate::model::{InstanceGroup, ModelSpec, QueueRules, RateRules, VersionPolicy};
use crate::scheduler::rate::{Demand, Need, Pools, Supply};
use crate::scheduler::{Policy, QueuePolicy, TimeoutAction};
use crate::server::engine::Engines;
use crate::server::log;
use crate::server::placement::{self, Choice, Site};
use crate::server::source::Source;
use crate::server::warm_up;
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
        let source = Source::open(path, settings)?;
        for (name, error) in &source.found.refused {
            failures += 1;
            log::error(&format!("'{name}' is no model: {error}"));
        }
        for directory in &source.found.models {
            let outcome = if names.contains(&directory.name) {
                Err(Error::invalid("it is not unique: another repository has a model of this name"))
            } else {
                load_model(&source, directory, settings, &engines)
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
    source: &Source,
    directory: &ModelDirectory,
    settings: &Settings,
    engines: &Engines,
) -> Result<Vec<Loaded>, Error> {
    let name = &directory.name;
    let draft = source.draft(directory, settings)?;
    draft.notes().iter().for_each(|note| log::info(&format!("'{name}': {note}")));
    let labels = read_labels(source, directory, &draft)?;
    let choice = directory.choose_versions(&draft.version_policy())?;
    if let VersionPolicy::Specific(_) = draft.version_policy() {
        for version in &choice.missing {
            log::warning(&format!("'{name}' has no version {version}, which its version policy names"));
        }
    }
    let mut loaded = Vec::new();
    for version in choice.versions {
        let spec = Arc::new(complete(source, directory, version, &draft, &labels, settings)?);
        loaded.push(load_version(spec, version, (source, directory), settings, engines)?);
    }
    Ok(loaded)
}

/// The configuration of a version with what its file says, checked.
pub fn complete(
    source: &Source,
    directory: &ModelDirectory,
    version: u64,
    draft: &Draft,
    labels: &BTreeMap<String, Arc<Labels>>,
    settings: &Settings,
) -> Result<ModelSpec, Error> {
    let onnx = match draft.onnx_filename() {
        Some(file) => {
            let bytes = source.read(&format!("{}/{file}", directory.version_path(version)), MODEL_SIZE_MAX)?;
            Some(OnnxSignature::decode(&bytes)?)
        }
        None => None,
    };
    let mut spec = draft.clone().complete(onnx.as_ref(), labels, completion(settings, draft.backend()))?;
    if spec.is_cached && settings.cache_size == 0 {
        let name = &spec.name;
        log::warning(&format!("'{name}' has a response cache, but the server has none: see --cache-config"));
        spec.is_cached = false;
    }
    Ok(spec)
}

fn completion(settings: &Settings, backend: &str) -> Completion {
    let default = Completion::default();
    let rows_max_default = settings.backend_config.rows_max_default(backend).unwrap_or(default.rows_max_default);
    Completion { is_on: settings.auto_complete, rows_max_default }
}

fn load_version(
    spec: Arc<ModelSpec>,
    version: u64,
    (source, directory): (&Source, &ModelDirectory),
    settings: &Settings,
    engines: &Engines,
) -> Result<Loaded, Error> {
    let began = clock::now();
    let backend = engines.choose(&spec)?;
    let path = source.root.join(directory.version_path(version));
    let (model, choice) = threads::enter(1, |threads: &Threads| {
        let model = backend.load(&spec, &path)?;
        let model = warm_up::warmed(model, &spec, |path, size_max| source.read(&directory.file(path), size_max))?;
        if !spec.warm_ups.is_empty() {
            // What fails is to fail the load, and not the first worker.
            drop(model.new_instance(threads)?);
        }
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

/// The label files that a configuration names.
pub fn read_labels(
    source: &Source,
    directory: &ModelDirectory,
    draft: &Draft,
) -> Result<BTreeMap<String, Arc<Labels>>, Error> {
    let mut labels = BTreeMap::new();
    for name in draft.label_filenames() {
        let path = directory.file(name);
        let text = String::from_utf8(source.read(&path, LABELS_SIZE_MAX)?);
        let text = text.map_err(|_| Error::invalid(format!("'{path}' is not UTF-8")))?;
        labels.insert(name.to_owned(), Arc::new(Labels::from_text(&text)));
    }
    Ok(labels)
}
