//! How the models of a running server change. The control thread loads beside, then leaves a
//! [`ModelChange`] in every shard's mailbox; a task of the shard takes it up between two requests and
//! says so. What a shard serves no more goes back to the control thread when the last of its
//! requests has its answer, so that no shard frees a model. A request takes no lock for this, and
//! allocates nothing.

use std::sync::Arc;
use std::sync::OnceLock;
use std::task::Waker;

use crate::backend::{Instance, Threads};
use crate::model::repository::index::RepositoryOverview;
use crate::protocol::repository::RepositoryOrder;
use crate::queue::queue_producer::QueueProducer;
use crate::queue::served_model::ServedModel;
use crate::queue::sync::{AtomicWaker, SegQueue};
use crate::shard::control_request::ControlReply;
use crate::shard::shared_memory::PublishedRegions;

/// What one shard is told.
pub struct ModelChange {
    /// Names it when the shard has taken it up.
    pub number: u64,
    /// What is known of all models from now on.
    pub overview: Arc<RepositoryOverview>,
    /// Versions that serve no more.
    pub gone: Vec<Arc<ServedModel>>,
    /// Versions that serve from now on, instead of those of their name and number.
    pub come: Vec<ModelHandle>,
}

/// A shard's part of a model version, on its way to the shard or back.
pub struct ModelHandle {
    /// The model version.
    pub served: Arc<ServedModel>,
    /// How the shard reaches an instance.
    pub route: HandleRoute,
}

/// How a shard reaches an instance.
pub enum HandleRoute {
    /// Its own, made on the thread that loaded.
    Instance(Box<dyn Instance>),
    /// By those of other models.
    Ensemble,
    /// The workers', by a producer.
    Lane(QueueProducer),
}

/// What the control thread is told.
pub enum ControlEvent {
    /// A client orders something.
    Ordered(RepositoryOrder, ControlReply),
    /// A shard has taken up a change.
    Changed(u64),
    /// A shard holds a model version no more: nothing of it waits there for an answer.
    Released(ModelHandle),
}

/// Tells the control thread; never blocks.
pub type ControlSender = Arc<dyn Fn(ControlEvent) + Send + Sync>;

/// The changes that one shard has not taken up yet. Bounded: the control thread has one on its way
/// for each order, load and look at the repositories, and their number is; and so are orders of regions.
#[derive(Default)]
pub struct ShardMailbox {
    changes: SegQueue<ModelChange>,
    regions: SegQueue<Arc<PublishedRegions>>,
    waker: AtomicWaker,
    threads: OnceLock<Threads>,
}

impl ShardMailbox {
    /// Leaves a change.
    pub fn push(&self, change: ModelChange) {
        self.changes.push(change);
        self.waker.wake();
    }

    /// Leaves the regions of shared memory that there are from now on.
    pub fn push_regions(&self, published: Arc<PublishedRegions>) {
        self.regions.push(published);
        self.waker.wake();
    }

    /// The next regions.
    pub fn poll_regions(&self) -> Option<Arc<PublishedRegions>> {
        self.regions.pop()
    }

    /// The next change.
    pub fn poll_change(&self) -> Option<ModelChange> {
        self.changes.pop()
    }

    /// Who to wake when a change comes. Poll once more afterwards.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// The shard says what engine threads it has, for instances that are made for it elsewhere.
    pub fn set_threads(&self, threads: &Threads) {
        self.threads.get_or_init(|| threads.clone());
    }

    /// The engine threads of the shard, once it runs.
    pub fn threads(&self) -> Option<&Threads> {
        self.threads.get()
    }
}

const fn assert_sendable<T: Send + 'static>() {}
const _: () = assert_sendable::<ModelChange>();
const _: () = assert_sendable::<ControlEvent>();
