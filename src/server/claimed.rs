//! The second state of the server: its share of the machine and of other services is claimed, before the models load, so
//! that a port in use, an unreadable certificate or a login that Redis refuses is reported at once.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use crate::control::engines::hosted_backends;
use crate::control::engines::model_services::ModelServices;
use crate::control::engines::python;
use crate::control::loading::agents;
use crate::control::loading::load_trial::LoadTrials;
use crate::control::loading::model_loader::ModelLoader;
use crate::control::outside::access_files::AccessFiles;
use crate::control::outside::cache_library::{LibraryCache, SharedCacheLink};
use crate::control::outside::redis;
use crate::control::repository::repositories::Repositories;
use crate::control::repository::uploaded_files;
use crate::control::serving::rate_limit::{self, SharedRateLimiter};
use crate::control::thread::ControlMessage;
use crate::error::Error;
use crate::log;
use crate::server::begun::BegunServer;
use crate::server::listeners::Listeners;
use crate::settings::{ControlMode, Settings, Supervision};

/// The server before its models are loaded.
pub(super) struct ClaimedServer {
    /// The rate limiter; `None` without `--rate-limit`.
    pub(super) limiter: Option<SharedRateLimiter>,
    /// The model repositories, which are open.
    pub(super) repositories: Arc<Repositories>,
    /// Loads models: now, and while the server serves.
    pub(super) loader: Arc<ModelLoader>,
    pub(super) settings: Arc<Settings>,
    /// The link to the response cache in Redis or in a library, if there is one.
    pub(super) shared_cache: Option<SharedCacheLink>,
    /// The library that is the response cache, before its threads run.
    pub(super) cache_library: Option<LibraryCache>,
    /// The files of TLS and of API keys.
    pub(super) files: AccessFiles,
    /// The addresses, which are bound and do not listen yet.
    pub(super) listeners: Listeners,
    pub(super) begun: BegunServer,
}

impl BegunServer {
    /// Claims the addresses and what is outside of the process.
    ///
    /// # Errors
    /// `Unavailable` if an address is in use or a service cannot be reached, `InvalidArgument` if a flag names something
    /// that cannot be used.
    pub(super) fn claim(
        self,
        settings: &Settings,
        supervision: &Supervision,
        inherited: io::Result<Vec<OwnedFd>>,
    ) -> Result<ClaimedServer, Error> {
        settings.warnings.iter().for_each(|warning| log::warning(warning));
        let no_paths = |why| Error::invalid(format!("failed to start Vertex AI service: {why}"));
        settings.foreign.vertex_ai.check().map_err(no_paths)?;
        let listeners = Listeners::claim(settings, supervision, inherited)?;
        let files = AccessFiles::load(settings)?;
        let redis = redis::start(settings)?;
        let settings = Arc::new(settings.clone());
        let loader = Arc::new(model_loader(&settings, &self.messages)?);
        let cache_library = hosted_backends::cache(&settings, loader.services())?.map(LibraryCache::new);
        let repositories = Arc::new(Repositories::open(&settings)?);
        let limiter = rate_limit::limiter(&settings);
        Ok(ClaimedServer {
            limiter,
            repositories,
            loader,
            settings,
            shared_cache: redis.or_else(|| cache_library.as_ref().map(LibraryCache::link)),
            cache_library,
            files,
            listeners,
            begun: self,
        })
    }
}

/// Returns the loader of models, after the files that earlier servers left behind are removed.
fn model_loader(settings: &Arc<Settings>, messages: &mpsc::Sender<ControlMessage>) -> Result<ModelLoader, Error> {
    python::remove_stale();
    if settings.control_mode == ControlMode::Explicit {
        match uploaded_files::remove_stale() {
            0 => {}
            count => log::info(&format!("removed the files of {count} loads that another server left behind")),
        }
    }
    if settings.allows_agents {
        agents::remove_stale();
    }
    let messages = messages.clone();
    let trials = LoadTrials::new(settings, Box::new(move || drop(messages.send(ControlMessage::LoadSlow))));
    let services = ModelServices::beside_cache(&settings.cache).for_clients_of(settings.compat);
    let loader = ModelLoader::new(settings, services)?.with_trials(trials);
    loader.run_watcher().start()?;
    Ok(loader)
}
