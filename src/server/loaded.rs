//! The third state of the server: its first models are loaded, and a signal drains it from now on. Until the shards serve,
//! a stand-in may answer on its ports (`--listen-first`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::control::loading::loaded_version::LoadedVersion;
use crate::control::serving::plan::{ContextSources, choose_default_model};
use crate::control::thread::initial_load::{self, InitialLoad, StartWatch};
use crate::control::thread::model_record::ModelRecords;
use crate::error::Error;
use crate::model::repository::index::StartProgress;
use crate::server::begun::end_on_failure;
use crate::server::claimed::ClaimedServer;
use crate::server::stand_in::StandIn;

/// The server before its threads are planned.
pub(super) struct LoadedServer {
    /// The records of all models, also of those that failed.
    pub(super) models: ModelRecords,
    /// The versions that will serve.
    pub(super) loaded: Vec<LoadedVersion>,
    /// The models that failed, as a part of a sentence; empty if none did.
    pub(super) but_failed: String,
    /// The shard that answers until the server is ready.
    pub(super) stand_in: Option<StandIn>,
    pub(super) claimed: ClaimedServer,
}

impl ClaimedServer {
    /// Loads the models that the flags ask for.
    ///
    /// # Errors
    /// Those of the loads if `--exit-on-error` is on, and those of the stand-in.
    pub(super) fn load(mut self) -> Result<LoadedServer, Error> {
        let start = Arc::new(StartProgress::default());
        let stand_in = self.settings.listens_first.then(|| self.start_stand_in(&start)).transpose()?;
        let found = |overview: &_| stand_in.iter().for_each(|stand_in| stand_in.show(overview));
        let watch = StartWatch { start: &start, found: &found };
        let limiter = self.limiter.as_ref();
        let initial = initial_load::load(&self.settings, &self.loader, &self.repositories, limiter, watch)?;
        let but_failed = initial.but_failed();
        let InitialLoad { loaded, models, .. } = initial;
        choose_default_model(Arc::make_mut(&mut self.settings), &loaded)?;
        self.handle_loaded();
        Ok(LoadedServer { models, loaded, but_failed, stand_in, claimed: self })
    }

    fn start_stand_in(&mut self, start: &Arc<StartProgress>) -> Result<StandIn, Error> {
        let failure = end_on_failure(&self.begun.messages, &self.begun.deadline);
        let sockets = self.listeners.listen_first()?;
        let sources = ContextSources::new(&self.loader, &self.files);
        StandIn::start(&self.settings, sources, sockets, start, &failure)
    }

    /// The first models are loaded: from now on a signal drains the server.
    fn handle_loaded(&self) {
        self.begun.deadline.wait_for_finalizing(&self.loader);
        self.begun.are_loaded.store(true, Ordering::SeqCst);
        self.loader.handle_started();
    }
}
