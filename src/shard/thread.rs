//! A shard's thread from start to end: pins itself to its core, makes the async runtime and runs the shard in it.

use std::rc::Rc;
use std::sync::Arc;

use crate::backend::Threads;
use crate::error::Error;
use crate::model::repository::index::RepositoryOverview;
use crate::queue::model_queue::queue_producer::QueueProducer;
use crate::queue::served_model::ServedModel;
use crate::runtime::executor::{self, Runtime};
use crate::runtime::ring::spin::Spin;
use crate::shard::connections::receive_budget::ShardReceiveBudget;
use crate::shard::connections::{ConnectionBounds, Connections};
use crate::shard::models::model_table::{LocalModel, ModelTable};
use crate::shard::models::shard_caches::ShardCaches;
use crate::shard::requests::shard_requests::ShardRequests;
use crate::shard::server_context::ShardContext;
use crate::shard::services::shard_services::ShardServices;
use crate::shard::sessions::shard_sessions::ShardSessions;
use crate::shard::{ListeningSockets, ServerContext, Shard};

/// The parts that a shard is built from.
pub struct ShardParts {
    /// Its place among the shards.
    pub index: usize,
    /// The core it is pinned to.
    pub core: Option<usize>,
    /// The time for which it looks for work before it sleeps.
    pub spin: Spin,
    /// The context that all threads share.
    pub server_context: Arc<ServerContext>,
    /// The models that serve from the start, with the shard's producer of each one that runs on workers.
    pub models: Vec<(Arc<ServedModel>, Option<QueueProducer>)>,
    /// The state of all models.
    pub overview: Arc<RepositoryOverview>,
    /// The sockets that it listens on.
    pub sockets: ListeningSockets,
}

/// Runs a shard on this thread until the server has drained. `started` is called once: with the name of the I/O path
/// when the shard listens, or with the reason why it does not.
///
/// # Errors
/// Unavailable if the runtime fails before the server has drained. A shard that did not start
/// reports to `started` only.
pub fn run(
    mut parts: ShardParts,
    threads: &Threads,
    started: impl Fn(Result<&'static str, Error>) + 'static,
) -> Result<(), Error> {
    let index = parts.index;
    let options = &parts.server_context.runtime;
    if let Some(core) = parts.core
        && let Err(error) = executor::pin(&[core])
    {
        let text = format!("shard {index} cannot be pinned to core {core} and runs where it may: {error}");
        (parts.server_context.warn)(&text);
    }
    let runtime = match Runtime::new(options.io, parts.spin) {
        Ok(runtime) => runtime,
        Err(error) => {
            started(Err(Error::unavailable(format!(
                "cannot start the sockets of shard {index}: {error}; --io=ring needs Linux 6.1 or later, --io=glommio \
                 Linux 5.8 and a memory-lock limit of at least 512 KiB (ulimit -l), both that io_uring is not \
                 forbidden (a container's seccomp profile may do so); --io=epoll needs neither"
            ))));
            return Ok(());
        }
    };
    let sockets = std::mem::take(&mut parts.sockets);
    let _mailbox = MailboxGuard { server_context: Arc::clone(&parts.server_context), index };
    let shard = match Shard::new(parts, threads) {
        Ok(shard) => Rc::new(shard),
        Err(error) => {
            started(Err(error));
            return Ok(());
        }
    };
    let started = Rc::new(started);
    let name = runtime.name();
    let listening = Rc::clone(&started);
    let outcome = runtime.run(shard.run(sockets, move |outcome| {
        let outcome = outcome.map(|()| name);
        listening(outcome.map_err(|error| Error::unavailable(format!("cannot listen: {error}"))));
    }));
    outcome.map_err(|error| Error::unavailable(format!("its sockets failed: {error}")))
}

/// Closes a shard's mailbox when its thread ends, also if it fails: other shards then keep their connections and calls of
/// models, connections on their way to this one are closed, and calls on their way are answered.
struct MailboxGuard {
    server_context: Arc<ServerContext>,
    index: usize,
}

impl Drop for MailboxGuard {
    fn drop(&mut self) {
        if let Some(mailbox) = self.server_context.control_link.mailboxes.get(self.index) {
            mailbox.close();
        }
    }
}

impl Shard {
    /// A shard that has not begun to run.
    pub(super) fn new(parts: ShardParts, threads: &Threads) -> Result<Self, Error> {
        let ShardParts { index, server_context, models, overview, .. } = parts;
        if let Some(mailbox) = server_context.control_link.mailboxes.get(index) {
            mailbox.set_threads(threads);
        }
        let local =
            |(served, producer)| LocalModel::begin(served, producer, threads, &server_context.control_link.control);
        let models: Vec<_> = models.into_iter().map(local).collect::<Result<_, _>>()?;
        let own = ShardContext::new(&server_context, index);
        let cells = Arc::clone(&own.cells);
        let receive_budget = ShardReceiveBudget::new(Arc::clone(&server_context.memory.receive), Arc::clone(&cells));
        Ok(Self {
            index,
            cells,
            connections: Rc::new(Connections::new(ConnectionBounds {
                count_max: server_context.connection_limits.connections_max,
                address_count_max: server_context.connection_limits.address_connections_max,
            })),
            sessions: ShardSessions::new(&server_context, receive_budget),
            requests: ShardRequests::new(own.clone()),
            models: ModelTable::new(models, overview, own.clone()),
            caches: ShardCaches::new(own),
            services: ShardServices::new(server_context.shared_memory.as_ref(), &server_context.traces),
            threads: threads.clone(),
            server_context,
        })
    }
}
