//! A repository agent and its models as its own code sees them: parameters, state, and the place of a model's files.

#![expect(clippy::disallowed_types, reason = "taken when a model is loaded or unloaded")]

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::private_directory::PrivateDirectory;
use crate::triton::error::c_text;
use crate::triton::object::hosted_object;
use base::error::Error;

/// The beginning of the names of temporary directories of agents.
pub const AGENT_PREFIX: &str = "deuteron-agent-";

/// A `TRITONREPOAGENT_Agent`.
#[derive(Default)]
pub(super) struct AgentObject {
    pub(super) state: AtomicPtr<c_void>,
}

hosted_object!(AgentObject, "repository agent", 25);

/// A `TRITONREPOAGENT_AgentModel`.
pub(super) struct AgentModelObject {
    pub(super) parameters: Vec<(CString, CString)>,
    /// The configuration as JSON.
    pub(super) config: Box<str>,
    pub(super) state: AtomicPtr<c_void>,
    pub(super) place: Mutex<AgentPlace>,
}

hosted_object!(AgentModelObject, "model of a repository agent", 26);

/// The place of a model's files.
pub(super) struct AgentPlace {
    pub(super) action: Option<AgentAction>,
    /// All places so far, the current one last: an agent keeps pointers to them.
    pub(super) locations: Vec<CString>,
    /// The directory that the agent may write to.
    pub(super) acquired: Option<(PrivateDirectory, CString)>,
}

/// `TRITONREPOAGENT_ActionType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgentAction {
    Load,
    LoadComplete,
    LoadFail,
    Unload,
    UnloadComplete,
}

impl AgentAction {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Load => "TRITONREPOAGENT_ACTION_LOAD",
            Self::LoadComplete => "TRITONREPOAGENT_ACTION_LOAD_COMPLETE",
            Self::LoadFail => "TRITONREPOAGENT_ACTION_LOAD_FAIL",
            Self::Unload => "TRITONREPOAGENT_ACTION_UNLOAD",
            Self::UnloadComplete => "TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE",
        }
    }
}

impl AgentModelObject {
    /// Gives the current place to the agent, by `give`.
    ///
    /// # Errors
    /// `Internal` without a place, in Triton's words.
    pub(super) fn with_location<T>(&self, give: impl FnOnce(&CString) -> T) -> Result<T, Error> {
        let place = self.place();
        let location = place.locations.last();
        location.map(give).ok_or_else(|| Error::internal("Model repository location is not set"))
    }

    /// Gives a directory that the agent may write to, and that lives as long as the model.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be made.
    pub(super) fn with_acquired<T>(&self, give: impl FnOnce(&CString) -> T) -> Result<T, Error> {
        let mut place = self.place();
        if place.acquired.is_none() {
            let made = PrivateDirectory::new(&std::env::temp_dir(), AGENT_PREFIX);
            let made =
                made.map_err(|error| Error::unavailable(format!("no directory for a repository agent: {error}")))?;
            let path = c_text(&made.path().to_string_lossy());
            place.acquired = Some((made, path));
        }
        let acquired = place.acquired.as_ref().map(|(_, path)| give(path));
        acquired.ok_or_else(|| Error::internal("no directory for a repository agent"))
    }

    /// Removes the directory that the agent was given.
    ///
    /// # Errors
    /// `Unavailable` if it was given none, in Triton's words.
    pub(super) fn release(&self) -> Result<(), Error> {
        let acquired = self.place().acquired.take();
        acquired.map(drop).ok_or_else(|| Error::unavailable("No mutable location to be deleted"))
    }

    /// Has the model loaded from another place.
    ///
    /// # Errors
    /// `InvalidArgument` at any other time than during LOAD, in Triton's words.
    pub(super) fn set_location(&self, location: &str) -> Result<(), Error> {
        let mut place = self.place();
        if place.action != Some(AgentAction::Load) {
            return Err(Error::invalid(format!(
                "location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action type is {}",
                place.action.map_or("not set", AgentAction::name)
            )));
        }
        place.locations.push(c_text(location));
        Ok(())
    }

    pub(super) fn state(&self) -> *mut c_void {
        self.state.load(Ordering::Acquire)
    }

    pub(super) fn place(&self) -> MutexGuard<'_, AgentPlace> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
