//! The shard that answers while the models are loaded (`--listen-first`): without models, on the
//! server's ports. It is live and not ready, reports the progress of the loads, and refuses the
//! rest. It ends before the server is ready, so that no client that knows the server is ready meets
//! it.

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::control::serving::plan::{ContextSources, server_context};
use crate::control::serving::threads::{FatalHook, start_shards};
use crate::error::Error;
use crate::limits::STAND_IN_EXIT_TIMEOUT;
use crate::model::repository::index::{RepositoryOverview, StartProgress};
use crate::runtime::ring::spin::Spin;
use crate::settings::{Io, Settings};
use crate::shard::mailbox::{ControlEvent, ControlSender, ModelChange, ShardNews};
use crate::shard::thread::ShardParts;
use crate::shard::{ListeningSockets, ServerContext};

/// The shard, from its start to its end.
pub struct StandIn {
    server_context: Arc<ServerContext>,
    shards: Vec<JoinHandle<()>>,
}

impl StandIn {
    /// Listens, and refuses requests for models with the text of `start` at that time.
    ///
    /// # Errors
    /// `Unavailable` when it cannot listen.
    pub fn start(
        settings: &Settings,
        sources: ContextSources<'_>,
        sockets: ListeningSockets,
        start: &Arc<StartProgress>,
        failure: &FatalHook,
    ) -> Result<Self, Error> {
        let told = Arc::clone(start);
        let control: ControlSender = Arc::new(move |event| {
            if let ControlEvent::Ordered(_, reply) = event {
                reply.send(Err(told.refusal()));
            }
        });
        // It gives its sockets up to the shards, which glommio cannot.
        let io = if settings.io == Io::Glommio { Io::Epoll } else { settings.io };
        let exit_timeout = settings.exit_timeout.min(STAND_IN_EXIT_TIMEOUT);
        let settings = Settings { exit_timeout, io, ..settings.clone() };
        let server_context = Arc::new(server_context(&settings, 1, &control, sources));
        let overview = RepositoryOverview { models: Vec::new(), start: Some(Arc::clone(start)) };
        let parts = ShardParts {
            index: 0,
            core: None,
            spin: Spin::Off,
            server_context: Arc::clone(&server_context),
            models: Vec::new(),
            overview: Arc::new(overview),
            sockets,
        };
        Ok(Self { shards: start_shards(vec![parts], &(Arc::new(|| ()) as _), failure)?, server_context })
    }

    /// Shows the state of the models from now on.
    pub fn show(&self, overview: &RepositoryOverview) {
        let overview = Arc::new(overview.clone());
        let change = ModelChange { number: 0, overview, removed: Vec::new(), added: Vec::new() };
        if let [mailbox] = &*self.server_context.control_link.mailboxes {
            mailbox.push(ShardNews::Models(change));
        }
    }

    /// Gives up its listeners and closes its connections: new connections go to the serving shards.
    pub fn end(self) {
        self.server_context.lifecycle.drain();
        // A panic was logged when it happened.
        self.shards.into_iter().for_each(|shard| drop(shard.join()));
    }
}
