//! The shards: threads that each own a core, its connections and its requests. A shard moves bytes
//! between sockets, the protocol code and the models; `protocol`, `connection` and `scheduler`,
//! which have no sockets and no clock, decide the meaning of bytes and the order of requests.
//!
//! A folder imports only those below it:
//!
//! ```text
//! sessions                connections, each from its first bytes to its last reply
//! requests                from a message to its answer
//! models                  handles of model versions, caches of answers
//! services  connections   metrics, settings, shared memory; slots, listeners, receive memory
//! ```

pub mod connections;
pub mod deadline;
pub mod gateway;
pub mod lifecycle;
mod load_watch;
pub mod mailbox;
pub mod models;
pub mod nested_queue;
pub mod requests;
pub mod server_context;
pub mod services;
pub mod sessions;
#[cfg(test)]
mod simulation;
pub mod supervisor;
pub mod thread;
#[cfg(test)]
pub mod trial;

pub use self::server_context::ServerContext;

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::backend::Threads;
use crate::budget::ReceiveReservation;
use crate::limits::MEMORY_LOOK_INTERVAL_NEAR;
use crate::metrics::ShardCells;
use crate::pressure::MemoryStep;
use crate::runtime::clock;
use crate::runtime::executor;
use crate::shard::connections::Connections;
use crate::shard::connections::connection_spread::ConnectionInbox;
use crate::shard::mailbox::{ControlEvent, ShardMailbox, ShardNews};
use crate::shard::models::model_table::ModelTable;
use crate::shard::models::shard_caches::ShardCaches;
use crate::shard::requests::nested;
use crate::shard::requests::shard_requests::ShardRequests;
use crate::shard::services::shard_services::ShardServices;
use crate::shard::sessions::accept::{accept, listen};
use crate::shard::sessions::shard_sessions::ShardSessions;

/// The interval at which the deadlines of connections are checked: at most a tenth of the shortest
/// of them.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// The same while memory is short: the interval at which memory is measured.
const SWEEP_INTERVAL_SHORT: Duration = MEMORY_LOOK_INTERVAL_NEAR;
/// The interval at which a draining shard checks for open connections.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);
/// The time that an answer from a worker may wait while connections keep the shard busy.
const ANSWER_LATENCY: Duration = Duration::from_millis(1);

/// The sockets that a shard listens on.
#[derive(Debug, Default)]
pub struct ListeningSockets {
    /// HTTP first; gRPC is understood too.
    pub http: Vec<ListeningSocket>,
    /// gRPC first; HTTP is understood too.
    pub grpc: Vec<ListeningSocket>,
    /// For metrics: on one shard only.
    pub metrics: Vec<ListeningSocket>,
    /// The Unix socket of `--admin-socket`: on one shard only.
    pub admin: Vec<ListeningSocket>,
    /// For the paths of SageMaker, over HTTP/1.1.
    pub sagemaker: Vec<ListeningSocket>,
    /// For the paths of Vertex AI, over HTTP/1.1.
    pub vertex_ai: Vec<ListeningSocket>,
}

/// A listening socket.
#[derive(Debug)]
pub struct ListeningSocket {
    /// The socket, which listens.
    pub descriptor: OwnedFd,
    /// True if another process keeps it: it is left as it is when the shard ends.
    pub is_lent: bool,
    /// The sockets of all shards on its address.
    pub group: Arc<[OwnedFd]>,
}

/// One pinned core with its own connections and requests, and a producer of every model queue.
pub struct Shard {
    /// Its place among the shards.
    pub index: usize,
    /// The context that all threads share.
    pub server_context: Arc<ServerContext>,
    /// Its counters.
    pub cells: Arc<ShardCells>,
    /// Its handles of the models.
    pub models: ModelTable,
    /// Its requests, their admission, compression and log.
    pub requests: ShardRequests,
    /// Its connections.
    pub connections: Rc<Connections>,
    /// The engine's threads for inline runs.
    pub threads: Threads,
    /// The response caches that it looks into.
    pub caches: ShardCaches,
    /// Its part of the server's services.
    pub services: ShardServices,
    /// The settings, buffers and receive memory of its connections.
    pub sessions: ShardSessions,
}

impl Shard {
    /// Listens, calls `listening`, serves until the server drains, and returns when the last
    /// connection has closed or the exit timeout has passed. Runs inside a [`executor::Runtime`].
    pub async fn run(self: Rc<Self>, sockets: ListeningSockets, listening: impl FnOnce(std::io::Result<()>)) {
        let listeners = match listen(sockets, self.server_context.connection_limits.timeouts.write) {
            Ok(listeners) => listeners,
            Err(error) => return listening(Err(error)),
        };
        let completion = executor::spawn_urgent(ANSWER_LATENCY, self.supervise("complete", complete));
        self.set_reachable(true);
        self.inbox().inspect(|inbox| inbox.open());
        let waking =
            executor::spawn(self.supervise("wake", |shard| async move { shard.requests.deferred_wakes.run().await }));
        let sweeper = executor::spawn(self.supervise("sweep", sweep));
        let changing = executor::spawn(self.supervise("change", change));
        let looking = (self.index == 0).then(|| executor::spawn(self.supervise("load", load_watch::run)));
        let accepting: Vec<_> = listeners
            .iter()
            .map(|(listener, kind)| {
                let (listener, kind) = (Rc::clone(listener), *kind);
                executor::spawn(self.supervise("accept", move |shard| accept(shard, Rc::clone(&listener), kind)))
            })
            .collect();
        listening(Ok(()));
        self.server_context.lifecycle.drained(self.index).await;
        let give_up_at = clock::now() + self.server_context.runtime.exit_timeout;
        executor::without_hurry(|| self.connections.drain());
        self.inbox().inspect(|inbox| inbox.close());
        // Connections that another shard pushed just before.
        self.admit_arrivals();
        self.accept_last(listeners, accepting).await;
        while (!self.connections.is_empty() || self.nested_in_flight() > 0) && clock::now() < give_up_at {
            executor::sleep(DRAIN_INTERVAL).await;
            self.connections.sweep(clock::now());
        }
        self.set_reachable(false);
        // Calls that another thread pushed just before.
        self.begin_nested();
        while self.nested_in_flight() > 0 && clock::now() < give_up_at {
            executor::sleep(DRAIN_INTERVAL).await;
        }
        waking.cancel().await;
        sweeper.cancel().await;
        changing.cancel().await;
        if let Some(looking) = looking {
            looking.cancel().await;
        }
        completion.cancel().await;
    }
}

impl Shard {
    /// Returns true if the server is ready, as its readiness endpoints report it.
    pub fn is_ready(&self) -> bool {
        let are_models_ready = || self.models.overview().is_ready() && self.models.are_alive();
        self.server_context.lifecycle.is_serving()
            && (!self.server_context.service.strict_readiness || are_models_ready())
    }

    /// Counts a request that was refused because decoding it needed more receive memory than was
    /// left.
    fn count_shortage(&self, memory: &ReceiveReservation) {
        self.cells.receive_memory_refused.add(u64::from(memory.is_short()));
    }

    /// Applies the news in the mailbox.
    fn apply_changes(&self) {
        let Some(mailbox) = self.server_context.control_link.mailboxes.get(self.index) else { return };
        while let Some(news) = mailbox.poll_news() {
            match news {
                ShardNews::Keys(table) => self.requests.admission.set_keys(&table),
                ShardNews::Models(change) => {
                    let number = change.number;
                    self.models.handle_change(change);
                    (self.server_context.control_link.control)(ControlEvent::Changed(number));
                }
                ShardNews::Regions(published) => {
                    *self.services.regions.borrow_mut() = Some(Arc::clone(&published.regions));
                }
                ShardNews::Tls(configs) => self.sessions.tls.set(&configs),
                ShardNews::Traces(published) => self.services.traces.set(&published.table),
            }
        }
    }

    /// Allows or forbids calls of models to other models on this shard.
    fn set_reachable(&self, is_reachable: bool) {
        match self.server_context.control_link.mailboxes.get(self.index).map(ShardMailbox::nested) {
            Some(nested) if is_reachable => nested.open(),
            Some(nested) => nested.close(),
            None => {}
        }
    }

    /// Calls and orders of models that wait or run here.
    fn nested_in_flight(&self) -> usize {
        self.server_context.control_link.mailboxes.get(self.index).map_or(0, |mailbox| mailbox.nested().in_flight())
    }

    /// The inbox in which other shards leave the connections that they hand over to this one.
    fn inbox(&self) -> Option<&ConnectionInbox> {
        self.server_context.control_link.mailboxes.get(self.index).map(ShardMailbox::connections)
    }

    /// Starts the calls and orders of models that wait in the mailbox.
    fn begin_nested(self: &Rc<Self>) {
        let Some(mailbox) = self.server_context.control_link.mailboxes.get(self.index) else { return };
        while let Some(work) = mailbox.nested().poll() {
            nested::begin(self, work);
        }
    }

    /// A task of this shard that is restarted after a panic, a few times.
    fn supervise<F: Future<Output = ()>, T: Fn(Rc<Self>) -> F>(
        self: &Rc<Self>,
        name: &'static str,
        task: T,
    ) -> impl Future<Output = ()> + use<F, T> {
        let shard = Rc::clone(self);
        async move {
            let warn = shard.server_context.warn;
            supervisor::supervise(&shard.cells, warn, name, || task(Rc::clone(&shard))).await;
        }
    }
}

/// Delivers the answers of workers to the tasks that await them, for as long as the shard lives.
async fn complete(shard: Rc<Shard>) {
    poll_fn::<(), _>(|context| {
        if shard.requests.slots.drain_and_register(context.waker()) {
            shard.cells.wakes.add(1);
        }
        Poll::Pending
    })
    .await;
}

/// Applies changes to the models, starts the calls and orders of models and serves the connections
/// that other shards hand over, for as long as the shard lives.
async fn change(shard: Rc<Shard>) {
    poll_fn::<(), _>(|context| {
        shard.apply_changes();
        shard.admit_arrivals();
        shard.begin_nested();
        if let Some(mailbox) = shard.server_context.control_link.mailboxes.get(shard.index) {
            mailbox.register(context.waker());
        }
        // A change that was pushed before the waker was registered has woken no task: check again.
        shard.apply_changes();
        shard.admit_arrivals();
        shard.begin_nested();
        Poll::Pending
    })
    .await;
}

async fn sweep(shard: Rc<Shard>) {
    let mut swept_at = clock::now();
    let mut idle_before = executor::idle_time();
    loop {
        let is_short = shard.server_context.memory.gives_up(MemoryStep::KeepAlive);
        executor::sleep(if is_short { SWEEP_INTERVAL_SHORT } else { SWEEP_INTERVAL }).await;
        let now = clock::now();
        shard.give_up(now);
        let elapsed = now.since(swept_at);
        if elapsed >= SWEEP_INTERVAL {
            swept_at = now;
            let idle = executor::idle_time();
            if let (Some(idle), Some(before), Some(inbox)) = (idle, idle_before, shard.inbox()) {
                inbox.set_busy(busy_part(elapsed.saturating_sub(idle.saturating_sub(before)), elapsed));
            }
            idle_before = idle;
            shard.server_context.lifecycle.beat(shard.index);
            executor::without_hurry(|| shard.connections.sweep(now));
        }
    }
}

/// A part of a time in thousandths.
fn busy_part(worked: Duration, elapsed: Duration) -> usize {
    let part = (worked.as_micros() * 1_000).checked_div(elapsed.as_micros());
    part.and_then(|part| usize::try_from(part).ok()).unwrap_or(0).min(1_000)
}

#[cfg(test)]
mod tests;
