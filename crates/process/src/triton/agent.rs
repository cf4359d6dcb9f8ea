//! Triton's repository agents, unmodified: shared libraries that are written against `tritonrepoagent.h`. An agent sees a
//! model before it is loaded, may have it loaded from another directory, and hears of its end. It runs on load threads, in
//! the server's process. The life of an agent's model, as in Triton (`repo_agent.cc`):
//!
//! ```text
//! ModelInitialize ─► LOAD ─┬─► LOAD_COMPLETE ─► UNLOAD ─► UNLOAD_COMPLETE ─┬─► ModelFinalize
//!                          └─► LOAD_FAIL ──────────────────────────────────┘
//! ```

#![expect(clippy::disallowed_types, reason = "taken when a model is loaded or unloaded")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::triton::abi;
use crate::triton::agent_object::{AgentAction, AgentModelObject, AgentObject, AgentPlace};
use crate::triton::error::c_text;
use crate::triton::library::AgentLibrary;
use crate::triton::object::Owned;
use crate::triton::services::{self, HostServices, log_error};
use base::error::Error;

/// The host of repository agents. One per server.
pub struct AgentHost {
    /// `--repoagent-directory`.
    directory: PathBuf,
    /// Agents that models use, by their file.
    agents: Mutex<BTreeMap<PathBuf, Weak<HostedAgent>>>,
}

/// A model as an agent is told of it.
pub struct AgentOrder<'a> {
    /// The agent's name.
    pub agent: &'a str,
    /// Its parameters.
    pub parameters: &'a [(String, String)],
    /// The model's configuration in JSON.
    pub config: &'a str,
    /// The directory of the model.
    pub location: &'a Path,
}

impl AgentHost {
    /// A host with these services, for the agents in a directory. Opens nothing yet.
    pub fn new(services: &HostServices, directory: PathBuf) -> Self {
        services::set(services);
        Self { directory, agents: Mutex::default() }
    }

    /// Has an agent begin the load of a model.
    ///
    /// # Errors
    /// `InvalidArgument` in Triton's words without such a library; the agent's error.
    pub fn begin(&self, order: &AgentOrder<'_>) -> Result<AgentModel, Error> {
        let agent = self.agent(order.agent)?;
        let location = std::path::absolute(order.location).unwrap_or_else(|_| order.location.to_owned());
        let parameters = order.parameters.iter().map(|(name, value)| (c_text(name), c_text(value))).collect();
        let place = AgentPlace { action: None, locations: vec![c_text(&location.to_string_lossy())], acquired: None };
        let object = Owned::new(AgentModelObject {
            parameters,
            config: order.config.into(),
            state: AtomicPtr::new(null_mut()),
            place: Mutex::new(place),
        });
        // Before it is initialized: as in Triton one that fails is finalized too.
        let model = AgentModel { object, agent };
        let (agent, object) = (model.agent.object.handle().any(), model.object.handle().any());
        model.agent.library.model_initialize(agent, object)?;
        model.act(AgentAction::Load)?;
        Ok(model)
    }

    fn agent(&self, name: &str) -> Result<Arc<HostedAgent>, Error> {
        let file = format!("libtritonrepoagent_{name}.so");
        let path = self.directory.join(name).join(&file);
        let mut agents = lock(&self.agents);
        if let Some(agent) = agents.get(&path).and_then(Weak::upgrade) {
            return Ok(agent);
        }
        if !model::name::is_plain_name(name) || !path.is_file() {
            let name = name.escape_debug();
            return Err(Error::invalid(format!(
                "unable to find 'libtritonrepoagent_{name}.so' for repo agent '{name}', searched: '{name}' beneath \
                 --repoagent-directory"
            )));
        }
        let library = AgentLibrary::open(&path, &abi::symbols())?;
        // Before it is initialized: one that fails is finalized too, as a backend is.
        let agent = HostedAgent { object: Owned::new(AgentObject::default()), library };
        agent.library.initialize(agent.object.handle().any())?;
        let agent = Arc::new(agent);
        agents.insert(path, Arc::downgrade(&agent));
        Ok(agent)
    }
}

/// An opened agent. Finalized with its last model; its library stays open.
struct HostedAgent {
    object: Owned<AgentObject>,
    library: AgentLibrary,
}

impl Drop for HostedAgent {
    fn drop(&mut self) {
        if let Err(error) = self.library.finalize(self.object.handle().any()) {
            log_error(&format!("a repository agent failed to finalize: {error}"));
        }
    }
}

/// A model in the care of an agent, from its load to its end. Dropped, the load has failed, or the model is unloaded.
pub struct AgentModel {
    object: Owned<AgentModelObject>,
    agent: Arc<HostedAgent>,
}

impl AgentModel {
    /// The directory that the model is to be loaded from.
    pub fn location(&self) -> PathBuf {
        let place = self.object.place();
        place.locations.last().map(|location| PathBuf::from(&*location.to_string_lossy())).unwrap_or_default()
    }

    /// The model is loaded.
    pub fn handle_loaded(&self) {
        self.act_or_log(AgentAction::LoadComplete);
    }

    fn act(&self, action: AgentAction) -> Result<(), Error> {
        self.object.place().action = Some(action);
        let (agent, model) = (self.agent.object.handle().any(), self.object.handle().any());
        self.agent.library.model_action(agent, model, action as u32)
    }

    fn act_or_log(&self, action: AgentAction) {
        if let Err(error) = self.act(action) {
            log_error(&format!("a repository agent returned an error on {}: {error}", action.name()));
        }
    }
}

impl Drop for AgentModel {
    fn drop(&mut self) {
        let action = self.object.place().action;
        let last: &[AgentAction] = match action {
            Some(AgentAction::Load) => &[AgentAction::LoadFail],
            Some(AgentAction::LoadComplete) => &[AgentAction::Unload, AgentAction::UnloadComplete],
            Some(AgentAction::Unload) => &[AgentAction::UnloadComplete],
            Some(AgentAction::LoadFail | AgentAction::UnloadComplete) | None => &[],
        };
        last.iter().for_each(|action| self.act_or_log(*action));
        let (agent, model) = (self.agent.object.handle().any(), self.object.handle().any());
        if let Err(error) = self.agent.library.model_finalize(agent, model) {
            log_error(&format!("a repository agent failed to finalize a model: {error}"));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
