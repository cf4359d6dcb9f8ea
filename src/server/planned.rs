//! The fourth state of the server: each thread has its place, and the part that all threads share is made. No shard and no
//! worker runs yet.

use std::sync::Arc;

use crate::control::loading::model_loader::ModelLoader;
use crate::control::outside::access_files::AccessFiles;
use crate::control::outside::cache_library::LibraryCache;
use crate::control::outside::shared_memory::{self, SharedMemoryReceivers};
use crate::control::repository::repositories::Repositories;
use crate::control::serving::plan::{ContextLinks, ContextSources, ServerPlan};
use crate::control::serving::rate_limit::SharedRateLimiter;
use crate::control::thread::model_record::ModelRecords;
use crate::error::Error;
use crate::server::begun::BegunServer;
use crate::server::listeners::Listeners;
use crate::server::loaded::LoadedServer;
use crate::server::stand_in::StandIn;
use crate::settings::Settings;

/// The server before its threads start. The plan has the loaded versions and the link to the response cache.
pub(super) struct PlannedServer {
    /// The queues, the cores, and the part that all threads share.
    pub(super) plan: ServerPlan,
    /// The channels to the threads of shared memory, if clients may register regions.
    pub(super) receivers: Option<SharedMemoryReceivers>,
    /// The library that is the response cache, before its threads run.
    pub(super) cache_library: Option<LibraryCache>,
    pub(super) models: ModelRecords,
    pub(super) but_failed: String,
    pub(super) stand_in: Option<StandIn>,
    pub(super) limiter: Option<SharedRateLimiter>,
    pub(super) repositories: Arc<Repositories>,
    pub(super) loader: Arc<ModelLoader>,
    pub(super) settings: Arc<Settings>,
    pub(super) files: AccessFiles,
    pub(super) listeners: Listeners,
    pub(super) begun: BegunServer,
}

impl LoadedServer {
    /// Plans the queues of the models and the cores of shards and workers.
    ///
    /// # Errors
    /// `InvalidArgument` if a flag names a core that this process may not use, `Unavailable` if a thread is refused.
    pub(super) fn plan(self) -> Result<PlannedServer, Error> {
        // Fields are moved one by one, so that the others are dropped in their order if the plan fails.
        let settings = &self.claimed.settings;
        let (shared_memory_client, receivers) = shared_memory::shared_memory_client(settings).unzip();
        let sources = ContextSources::new(&self.claimed.loader, &self.claimed.files);
        let links = ContextLinks {
            shared_memory: shared_memory_client,
            shared_cache: self.claimed.shared_cache,
            stores: self.claimed.repositories.store_cells(),
        };
        let control = self.claimed.begun.control_sender();
        let plan = ServerPlan::new(settings, self.loaded, &control, sources, links)?;
        Ok(PlannedServer {
            plan,
            receivers,
            cache_library: self.claimed.cache_library,
            models: self.models,
            but_failed: self.but_failed,
            stand_in: self.stand_in,
            limiter: self.claimed.limiter,
            repositories: self.claimed.repositories,
            loader: self.claimed.loader,
            settings: self.claimed.settings,
            files: self.claimed.files,
            listeners: self.claimed.listeners,
            begun: self.claimed.begun,
        })
    }
}
