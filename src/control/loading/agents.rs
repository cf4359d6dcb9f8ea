//! Repository agents that are libraries (`model_repository_agents`, with `--allow-agents`): they run before the files of a
//! model are read, may have it loaded from another directory, and hear of its end. The agent `checksum` is built in
//! (`checksum`). Runs on load threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::{Instance, Threads};
use crate::control::loading::checksum::VerifiedFiles;
use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::loaded_version::LoadedVersion;
use crate::control::loading::vetted_model::{InstanceCheck, VettedModel};
use crate::control::repository::beneath::LinkPolicy;
use crate::control::repository::model_source::ModelSource;
use crate::error::Error;
use crate::log;
use crate::model::config::{AgentStep, repository_agents};
use crate::model::parse::text::Notation;
use crate::model::repository::ModelDirectory;
use crate::process::private_directory;
use crate::process::triton::{AGENT_PREFIX, AgentHost, AgentModel, AgentOrder};
use crate::settings::Settings;

/// The agents of one load. Dropped, the load has failed.
pub struct StartedAgents {
    models: Arc<AgentModels>,
    /// The place that the model is loaded from, if the agents have chosen one.
    place: Option<(ModelSource, ModelDirectory)>,
}

impl StartedAgents {
    /// Has the agents of a model begin its load, in their order; `None` if it has none.
    ///
    /// # Errors
    /// An agent's error; the place that it names cannot be read; a file before it has another checksum.
    pub fn begin(
        host: Option<&AgentHost>,
        (source, directory): (&ModelSource, &ModelDirectory),
        settings: &Settings,
    ) -> Result<Option<Self>, LoadFailure> {
        let Some(host) = host else { return Ok(None) };
        let Some((notation, text)) = source.config_text(directory, settings)? else { return Ok(None) };
        let (steps, config) = repository_agents(notation, &text)?;
        let Some(last) = steps.iter().rposition(|step| matches!(step, AgentStep::Library { .. })) else {
            return Ok(None);
        };
        let own = source.root.join(&directory.path);
        let text = String::from_utf8(text).map_err(|_| Error::invalid("its configuration is not UTF-8"))?;
        let moved = |place: &Path| moved(place, directory, (notation, text.clone()), settings);
        let (mut models, mut place) = (AgentModels(Vec::new()), own.clone());
        // Checksums behind the last agent are verified when the model is opened.
        for step in steps.into_iter().take(last + 1) {
            match step {
                AgentStep::Checksums(sums) if place == own => drop(VerifiedFiles::verify(source, directory, &sums)?),
                AgentStep::Checksums(sums) => {
                    let (source, directory) = moved(&place)?;
                    VerifiedFiles::verify(&source, &directory, &sums)?;
                }
                AgentStep::Library { name, parameters } => {
                    let order = AgentOrder { agent: &name, parameters: &parameters, config: &config, location: &place };
                    let model = host.begin(&order)?;
                    place = model.location();
                    models.0.push(model);
                }
            }
        }
        let own = std::path::absolute(&own).unwrap_or(own);
        let place = if place == own { None } else { Some(moved(&place)?) };
        Ok(Some(Self { models: Arc::new(models), place }))
    }

    /// The place that the model is loaded from, if the agents have chosen one.
    pub const fn place(&self) -> Option<&(ModelSource, ModelDirectory)> {
        self.place.as_ref()
    }

    /// The versions are loaded: their agents hear of the end of the last one.
    pub fn handle_loaded(self, loaded: &mut [LoadedVersion]) {
        self.models.0.iter().rev().for_each(AgentModel::handle_loaded);
        for version in loaded {
            let check = AgentHold(Arc::clone(&self.models));
            version.model = Arc::new(VettedModel { model: Arc::clone(&version.model), check });
        }
    }
}

/// Removes the directories of agents that killed servers have left.
pub fn remove_stale() {
    let count = private_directory::remove_stale(&std::env::temp_dir(), AGENT_PREFIX);
    if count > 0 {
        log::info(&format!("removed {count} directories of repository agents, whose servers were killed"));
    }
}

/// The files of a model at the place that its agent names, with the configuration of the repository.
fn moved(
    place: &Path,
    own: &ModelDirectory,
    config: (Notation, String),
    settings: &Settings,
) -> Result<(ModelSource, ModelDirectory), Error> {
    let cannot = |error: std::io::Error| {
        Error::unavailable(format!(
            "the place that a repository agent names for '{}' cannot be read: {error}",
            own.name
        ))
    };
    let links = if settings.repository_rules.refuses_links { LinkPolicy::Confined } else { LinkPolicy::Followed };
    let source = ModelSource::of_directory_with(PathBuf::from(place), links).map_err(cannot)?;
    let listing = source.repository.list().map_err(cannot)?;
    let found = ModelDirectory::of_listing(own.name.clone(), listing)?;
    let directory = ModelDirectory {
        is_renamed: own.is_renamed,
        namespace: own.namespace.clone(),
        given: Some(config),
        mark: own.mark.clone(),
        ..found
    };
    Ok((source, directory))
}

/// Agents in their order. They end in the reverse one, as in Triton.
struct AgentModels(Vec<AgentModel>);

impl Drop for AgentModels {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// Keeps the agents of a version until its model is gone.
struct AgentHold(#[expect(dead_code, reason = "held until it is dropped")] Arc<AgentModels>);

impl InstanceCheck for AgentHold {
    fn check(&self, _: &mut dyn Instance, _: &Threads) -> Result<(), Error> {
        Ok(())
    }
}
