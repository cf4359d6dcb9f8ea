//! Messages between the control thread and the shards when models change. The control thread loads a model version in
//! the background, then pushes a [`ModelChange`] into every shard's mailbox; a task of the shard applies it between two
//! requests and acknowledges it ([`ControlEvent::Changed`]). When the last request of a removed version has its answer,
//! the shard sends its handle back ([`ControlEvent::Released`]): freeing a model takes long, and no shard does it. The
//! path of a request takes no lock for this and allocates nothing. Calls of models to other models come by the mailbox
//! too, from any thread, and connections that other shards have accepted.

use std::sync::Arc;
use std::sync::OnceLock;
use std::task::Waker;

use crate::backend::{Instance, Threads};
use crate::model::repository::index::RepositoryOverview;
use crate::protocol::keys::KeyTable;
use crate::protocol::repository::RepositoryOrder;
use crate::protocol::trace::TraceOrder;
use crate::queue::model_queue::queue_producer::QueueProducer;
use crate::queue::served_model::ServedModel;
use crate::queue::sync::{AtomicWaker, SegQueue};
use crate::shard::connections::connection_spread::{ConnectionInbox, HandedConnection};
use crate::shard::connections::tls_configs::TlsConfigs;
use crate::shard::nested_queue::{NestedQueue, NestedWork, PushOutcome};
use crate::shard::services::control_request::ControlReply;
use crate::shard::services::shared_memory::PublishedRegions;
use crate::shard::services::trace_settings::{PublishedTraces, TraceReply};

/// A change of the models, as one shard receives it.
pub struct ModelChange {
    /// Identifies the change in the shard's acknowledgement.
    pub number: u64,
    /// The state of all models from now on.
    pub overview: Arc<RepositoryOverview>,
    /// Versions that stop serving.
    pub removed: Vec<Arc<ServedModel>>,
    /// Versions that begin to serve. One that has the name and number of a serving version replaces it.
    pub added: Vec<ModelHandle>,
}

/// A shard's handle of a model version, on its way from the control thread or back.
pub struct ModelHandle {
    /// The model version.
    pub served: Arc<ServedModel>,
    /// The shard's route to an instance.
    pub route: HandleRoute,
}

/// The route of a shard to an instance.
pub enum HandleRoute {
    /// An instance of its own, made on the thread that loaded the model. Runs inside the shard.
    Instance(Box<dyn Instance>),
    /// No instance: an ensemble's steps run on other models.
    Ensemble,
    /// The workers' instances, through a producer of the model queue.
    Queue(QueueProducer),
}

/// An event that a shard sends to the control thread.
pub enum ControlEvent {
    /// A client's control request: load, unload or index.
    Ordered(RepositoryOrder, ControlReply),
    /// A shard has applied the change of this number.
    Changed(u64),
    /// A shard has released a model version: none of its requests waits for an answer there.
    Released(ModelHandle),
    /// A request waits for the model of this name, which does not serve.
    Wanted(String, ControlReply),
    /// A client's change of the trace settings.
    TraceOrdered(TraceOrder, TraceReply),
}

/// Sends to the control thread; never blocks.
pub type ControlSender = Arc<dyn Fn(ControlEvent) + Send + Sync>;

/// A change that the control thread tells a shard.
pub enum ShardNews {
    /// The clients with keys from now on.
    Keys(Arc<KeyTable>),
    /// A change of the models.
    Models(ModelChange),
    /// The regions of shared memory that are valid from now on.
    Regions(Arc<PublishedRegions>),
    /// The certificates of connections from now on.
    Tls(Arc<TlsConfigs>),
    /// The trace settings that are valid from now on.
    Traces(Arc<PublishedTraces>),
}

/// The news that one shard has not applied yet, and work of other threads for it. Bounded although the queue of news is
/// not: the control thread pushes at most one change per control request, load and repository scan, one set of regions per
/// region request, one table per change of trace settings, and one set of certificates or keys per change of their files;
/// the number of those in flight is limited.
#[derive(Default)]
pub struct ShardMailbox {
    news: SegQueue<ShardNews>,
    nested: NestedQueue,
    connections: ConnectionInbox,
    waker: AtomicWaker,
    threads: OnceLock<Threads>,
}

impl ShardMailbox {
    /// Pushes news, and wakes the shard.
    pub fn push(&self, news: ShardNews) {
        self.news.push(news);
        self.waker.wake();
    }

    /// The next news, in the order they came.
    pub fn poll_news(&self) -> Option<ShardNews> {
        self.news.pop()
    }

    /// The shard has ended, as it should or not: connections and calls for it are dropped, which answers the calls, and
    /// further ones go to other shards.
    pub fn close(&self) {
        self.connections.close();
        while let Some(arrival) = self.connections.poll() {
            drop(arrival);
        }
        self.nested.close();
        while let Some(work) = self.nested.poll() {
            drop(work);
        }
    }

    /// Pushes a call or an order of a model, and wakes the shard.
    pub fn push_nested(&self, work: NestedWork) -> PushOutcome {
        let outcome = self.nested.push(work);
        self.waker.wake();
        outcome
    }

    /// Pushes a connection that another shard has accepted, and wakes the shard.
    ///
    /// # Errors
    /// A connection, perhaps another one, if the shard no longer takes any.
    pub fn push_connection(&self, arrival: HandedConnection) -> Result<(), HandedConnection> {
        self.connections.push(arrival)?;
        self.waker.wake();
        Ok(())
    }

    /// The connections that other shards hand over.
    pub const fn connections(&self) -> &ConnectionInbox {
        &self.connections
    }

    /// The calls and orders of models.
    pub const fn nested(&self) -> &NestedQueue {
        &self.nested
    }

    /// Registers the task to wake when something is pushed. The caller must poll once more
    /// afterwards: a push before the waker was registered has woken no task.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// The shard publishes its engine threads, for instances that the control thread makes for it.
    pub fn set_threads(&self, threads: &Threads) {
        self.threads.get_or_init(|| threads.clone());
    }

    /// The engine threads of the shard, once it runs.
    pub fn threads(&self) -> Option<&Threads> {
        self.threads.get()
    }
}

const fn assert_sendable<T: Send + 'static>() {}
const _: () = assert_sendable::<ShardNews>();
const _: () = assert_sendable::<ControlEvent>();
