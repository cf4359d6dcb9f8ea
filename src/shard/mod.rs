//! The shards: the only place with sockets, clocks, io_uring and glommio. A shard moves bytes between its
//! connections, the protocol and the models; it decides nothing itself.

pub mod body_buffer;
pub mod connections;
pub mod control_request;
pub mod deferred_wakes;
pub mod ensemble;
pub mod ensemble_steps;
pub mod grpc;
pub mod http1;
pub mod http2;
pub mod http2_link;
pub mod infer;
pub mod infer_pipeline;
pub mod lifecycle;
pub mod linger;
pub mod mailbox;
pub mod metrics_endpoint;
pub mod model_table;
pub mod receive_budget;
pub mod request_slots;
pub mod response_cache;
pub mod rest;
pub mod server_context;
pub mod session;
pub mod shared_memory;
pub mod stream;
pub mod supervisor;
pub mod thread;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_lite::FutureExt;

use crate::backend::Threads;
use crate::budget::{ReceiveBudget, ReceiveReservation};
use crate::limits::{DRAIN_HANDSHAKES, DRAIN_LISTEN};
use crate::metrics::ShardCells;
use crate::protocol::shared_memory::Regions;
use crate::runtime::clock;
use crate::runtime::executor::{self, Task};
use crate::runtime::socket::{Listener, Socket};
use crate::shard::connections::Connections;
use crate::shard::deferred_wakes::DeferredWakes;
use crate::shard::mailbox::ControlEvent;
use crate::shard::model_table::ModelTable;
use crate::shard::receive_budget::ShardReceiveBudget;
use crate::shard::request_slots::RequestSlots;
use crate::shard::response_cache::ResponseCache;
pub use crate::shard::server_context::ServerContext;

/// How often the timers of connections are looked at: a tenth of the shortest of them at most.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// How often a draining shard looks whether its last connection has gone.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);
/// The pause after an accept that failed: no descriptor will be free sooner.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How soon an answer from a worker must be looked at while connections keep the shard busy.
const ANSWER_LATENCY: Duration = Duration::from_millis(1);

/// Where a shard listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    /// HTTP first; gRPC is understood too.
    pub http: Option<SocketAddr>,
    /// gRPC first; HTTP is understood too.
    pub grpc: Option<SocketAddr>,
    /// Metrics, on one shard only.
    pub metrics: Option<SocketAddr>,
}

/// One pinned core with its own connections, tickets and share of every model's queue.
pub struct Shard {
    /// Its place among the shards.
    pub index: usize,
    /// What all threads share.
    pub server_context: Arc<ServerContext>,
    /// What it counts.
    pub cells: Arc<ShardCells>,
    /// Its hold on the models.
    pub models: ModelTable,
    /// Its requests that wait for an answer.
    pub request_slots: Rc<RequestSlots>,
    /// Its connections.
    pub connections: Rc<Connections>,
    /// The engine's threads for what runs inline.
    pub threads: Threads,
    /// The instances to wake at the end of this turn.
    pub deferred_wakes: DeferredWakes,
    /// Answers that may be given again, where the server has a cache.
    pub cache: Option<RefCell<ResponseCache>>,
    /// The regions of shared memory, where clients may have any.
    pub regions: RefCell<Option<Arc<Regions>>>,
    /// The memory for requests that come in.
    pub receive_budget: Rc<ShardReceiveBudget>,
    /// Buffers for replies, between two uses.
    pub buffers: RefCell<Vec<Vec<u8>>>,
}

impl Shard {
    /// Listens, calls `listening`, serves until the server drains, and returns when the last
    /// connection has gone or the drain took too long. Runs inside a [`executor::Runtime`].
    pub async fn run(self: Rc<Self>, addresses: Addresses, listening: impl FnOnce(std::io::Result<()>)) {
        let listeners = match listen(addresses) {
            Ok(listeners) => listeners,
            Err(error) => return listening(Err(error)),
        };
        let completion = executor::spawn_urgent(ANSWER_LATENCY, self.keep("complete", complete));
        let waking = executor::spawn(self.keep("wake", |shard| async move { shard.deferred_wakes.run().await }));
        let sweeper = executor::spawn(self.keep("sweep", sweep));
        let changing = executor::spawn(self.keep("change", change));
        let accepting: Vec<_> = listeners
            .iter()
            .map(|(listener, kind)| {
                let (listener, kind) = (Rc::clone(listener), *kind);
                executor::spawn(self.keep("accept", move |shard| accept(shard, Rc::clone(&listener), kind)))
            })
            .collect();
        listening(Ok(()));
        self.server_context.lifecycle.drained(self.index).await;
        let give_up_at = clock::now() + self.server_context.runtime.exit_timeout;
        self.connections.drain();
        self.accept_last(listeners, accepting).await;
        while !self.connections.is_empty() && clock::now() < give_up_at {
            executor::sleep(DRAIN_INTERVAL).await;
            self.connections.sweep(clock::now());
        }
        waking.cancel().await;
        sweeper.cancel().await;
        changing.cancel().await;
        completion.cancel().await;
    }
}

impl Shard {
    /// Whether the server can serve.
    pub fn is_ready(&self) -> bool {
        let are_models_ready = || self.models.overview().is_ready() && self.models.are_alive();
        self.server_context.lifecycle.is_serving()
            && (!self.server_context.service.strict_readiness || are_models_ready())
    }

    /// Where the memory of what a connection receives is counted.
    pub fn receive_memory(&self) -> Rc<dyn ReceiveBudget> {
        Rc::clone(&self.receive_budget) as Rc<dyn ReceiveBudget>
    }

    /// Counts a request that was refused because it was to become more than there was memory for.
    fn count_shortage(&self, memory: &ReceiveReservation) {
        self.cells.receive_memory_refused.add(u64::from(memory.is_short()));
    }

    /// Takes up the changes to the models that have come.
    fn take_changes(&self) {
        let Some(mailbox) = self.server_context.control_link.mailboxes.get(self.index) else { return };
        while let Some(change) = mailbox.poll_change() {
            let number = change.number;
            self.models.handle_change(change);
            (self.server_context.control_link.control)(ControlEvent::Changed(number));
        }
        while let Some(published) = mailbox.poll_regions() {
            *self.regions.borrow_mut() = Some(Arc::clone(&published.regions));
        }
    }

    /// A task of this shard, which survives a few panics.
    fn keep<F: Future<Output = ()>, T: Fn(Rc<Self>) -> F>(
        self: &Rc<Self>,
        name: &'static str,
        task: T,
    ) -> impl Future<Output = ()> + use<F, T> {
        let shard = Rc::clone(self);
        async move { supervisor::keep(&shard.cells, shard.server_context.warn, name, || task(Rc::clone(&shard))).await }
    }

    /// Serves those who connect before they can know that the server is not ready any more, as probes
    /// do that are to see it. Then takes in the connections that are being made before the listeners
    /// close: closing would reset them, with the requests that they brought. An accept that is under way is never cancelled,
    /// for the ring may have taken a connection for it already.
    async fn accept_last(self: &Rc<Self>, listeners: Vec<(Rc<Listener>, ListenerKind)>, accepting: Vec<Task<()>>) {
        executor::sleep(DRAIN_LISTEN).await;
        for (listener, _) in &listeners {
            listener.stop_handshakes();
        }
        executor::sleep(DRAIN_HANDSHAKES).await;
        for (listener, _) in &listeners {
            listener.stop();
        }
        for task in accepting {
            task.await;
        }
    }
}

/// What a listener is for.
#[derive(Clone, Copy)]
enum ListenerKind {
    Inference,
    Metrics,
}

fn listen(addresses: Addresses) -> std::io::Result<Vec<(Rc<Listener>, ListenerKind)>> {
    let inference =
        [addresses.http, addresses.grpc].into_iter().flatten().map(|address| (address, ListenerKind::Inference));
    let all = inference.chain(addresses.metrics.map(|address| (address, ListenerKind::Metrics)));
    all.map(|(address, kind)| Ok((Rc::new(Listener::bind(address)?), kind))).collect()
}

/// Hands the answers of the workers to those who wait for them, for as long as the shard lives.
async fn complete(shard: Rc<Shard>) {
    poll_fn::<(), _>(|context| {
        if shard.request_slots.drain_and_register(context.waker()) {
            shard.cells.wakes.add(1);
        }
        Poll::Pending
    })
    .await;
}

/// Takes up changes to the models, for as long as the shard lives.
async fn change(shard: Rc<Shard>) {
    poll_fn::<(), _>(|context| {
        shard.take_changes();
        if let Some(mailbox) = shard.server_context.control_link.mailboxes.get(shard.index) {
            mailbox.register(context.waker());
        }
        // One that came before the waker was there has woken nobody.
        shard.take_changes();
        Poll::Pending
    })
    .await;
}

async fn sweep(shard: Rc<Shard>) {
    loop {
        executor::sleep(SWEEP_INTERVAL).await;
        shard.connections.sweep(clock::now());
    }
}

async fn accept(shard: Rc<Shard>, listener: Rc<Listener>, kind: ListenerKind) {
    let mut failures = 0_u64;
    loop {
        match listener.accept().await {
            Ok(socket) => {
                failures = 0;
                admit(&shard, socket, kind);
            }
            // What the listener answers once it was stopped.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return,
            Err(error) => {
                if failures == 0 {
                    (shard.server_context.warn)(&format!("cannot accept connections for now: {error}"));
                }
                failures += 1;
                executor::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn admit(shard: &Rc<Shard>, socket: Socket, kind: ListenerKind) {
    let Some(connection_guard) = shard.connections.enter(clock::now()) else {
        shard.cells.connections_refused.add(1);
        return;
    };
    shard.cells.connections_opened.add(1);
    let shard = Rc::clone(shard);
    executor::spawn(async move {
        let cells = Arc::clone(&shard.cells);
        let session = async {
            match kind {
                ListenerKind::Inference => session::run(&shard, socket, &connection_guard).await,
                ListenerKind::Metrics => metrics_endpoint::run(&shard, socket, &connection_guard).await,
            }
        };
        // A panic in a task would end the whole executor.
        if AssertUnwindSafe(session).catch_unwind().await.is_err() {
            cells.panics.add(1);
        }
        cells.connections_closed.add(1);
    })
    .detach();
}
