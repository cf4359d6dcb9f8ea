//! A server of two shards without listeners, whose models are closures, for tests of calls between models. The test is
//! the control thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backend::gateway::{CallState, Gateway, NestedCall, NestedOrder, NestedReply, OrderKind, ReplySink};
use crate::backend::trial::{spec, tensor};
use crate::backend::{Batch, Instance, LoadedModel, ReadyReply, RequestDetails, Threads, threads};
use crate::error::Error;
use crate::model::ModelSpec;
use crate::model::repository::index::RepositoryOverview;
use crate::queue::model_queue::ModelQueue;
use crate::queue::model_queue::queue_producer::QueueProducer;
use crate::queue::served_model::{Placement, ServedModel};
use crate::queue::worker::{self, WorkerPlace};
use crate::runtime::clock;
use crate::runtime::executor::IoPath;
use crate::scheduler::{Policy, QueueBounds};
use crate::shard::ListeningSockets;
use crate::shard::gateway::ShardGateway;
use crate::shard::mailbox::{ControlEvent, ControlSender};
use crate::shard::server_context::{RuntimeOptions, ServerContext};
use crate::shard::thread::{self, ShardParts};
use crate::shard::trial::server_context;
use crate::tensor::{Datatype, Tensor};

const SHARDS: usize = 2;
/// Longer than any test takes: reached only when one hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A model whose instances run a closure, which gets the instance's number.
pub struct TrialModel {
    pub spec: ModelSpec,
    /// The place of its instances; `None` for an ensemble.
    pub site: TrialSite,
    pub run: Arc<dyn Fn(usize, Batch) + Send + Sync>,
    /// The answer of its own readiness check.
    pub is_ready: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TrialSite {
    Ensemble,
    Inline,
    Workers(usize),
}

struct TrialLoaded {
    run: Arc<dyn Fn(usize, Batch) + Send + Sync>,
    made: AtomicUsize,
    is_ready: Option<bool>,
}

struct TrialInstance {
    run: Arc<dyn Fn(usize, Batch) + Send + Sync>,
    index: usize,
}

/// A model on `workers` workers, with the input `x` and the outputs `y` and `z`, all vectors.
pub fn model(name: &str, workers: usize, run: impl Fn(usize, Batch) + Send + Sync + 'static) -> TrialModel {
    let vector = |name| (name, Datatype::Fp32, &[-1_i64][..]);
    let spec = ModelSpec { name: name.to_owned(), ..spec(0, &[vector("x")], &[vector("y"), vector("z")]) };
    TrialModel { spec, site: TrialSite::Workers(workers), run: Arc::new(run), is_ready: None }
}

/// Answers each request with twice and three times its input.
pub fn multiply(batch: Batch) {
    for request in batch.requests {
        let times = |factor: f32| vector(&values(&request.inputs[0]).iter().map(|x| x * factor).collect::<Vec<_>>());
        let outputs = vec![times(2.0), times(3.0)];
        request.responder.send(Ok(outputs));
    }
}

pub fn vector(values: &[f32]) -> Tensor {
    tensor(&[values.len() as i64], values)
}

pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.contents.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

impl LoadedModel for TrialLoaded {
    fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
        let index = self.made.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(TrialInstance { run: Arc::clone(&self.run), index }))
    }

    fn may_run_inline(&self) -> bool {
        true
    }

    fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
        match self.is_ready {
            Some(is_ready) => {
                std::thread::spawn(move || reply(is_ready));
                None
            }
            None => Some(reply),
        }
    }
}

impl Instance for TrialInstance {
    fn run(&mut self, batch: Batch) {
        (self.run)(self.index, batch);
    }
}

pub struct TrialServer {
    pub context: Arc<ServerContext>,
    pub gateway: Arc<ShardGateway>,
    pub served: Vec<Arc<ServedModel>>,
    pub events: Receiver<ControlEvent>,
    shards: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
}

impl TrialServer {
    /// Starts the server. `gateway` was perhaps given to models before.
    pub fn start(gateway: &Arc<ShardGateway>, models: Vec<TrialModel>, is_controlled: bool) -> Self {
        let (sender, events) = channel();
        let control: ControlSender = Arc::new(move |event| drop(sender.send(event)));
        let context = Arc::new(context(&control, is_controlled));
        let (mut parts, mut served, mut workers) = ([Vec::new(), Vec::new()], Vec::new(), Vec::new());
        for model in models {
            let (one, producers, own) = start_model(model);
            for (parts, producer) in parts.iter_mut().zip(producers) {
                parts.push((Arc::clone(&one), producer));
            }
            served.push(one);
            workers.extend(own);
        }
        let (started, ready) = channel();
        let shards = parts.into_iter().enumerate().map(|(index, models)| {
            let server_context = Arc::clone(&context);
            let started = started.clone();
            std::thread::spawn(move || {
                let (overview, sockets) = (Arc::new(RepositoryOverview::default()), ListeningSockets::default());
                let parts = ShardParts {
                    index,
                    core: None,
                    spin: Default::default(),
                    server_context,
                    models,
                    overview,
                    sockets,
                };
                threads::enter(1, move |threads| {
                    thread::run(parts, threads, move |outcome| drop(started.send(outcome.map(drop)))).unwrap();
                });
            })
        });
        let shards: Vec<_> = shards.collect();
        shards.iter().for_each(|_| ready.recv().unwrap().unwrap());
        context.lifecycle.start();
        gateway.connect(&context);
        Self { context, gateway: Arc::clone(gateway), served, events, shards, workers }
    }

    pub fn model(&self, name: &str) -> &Arc<ServedModel> {
        self.served.iter().find(|served| served.spec.name == name).unwrap()
    }

    pub fn queue(&self, name: &str) -> &Arc<ModelQueue> {
        match &self.model(name).placement {
            Placement::Worker(model_queue) => model_queue,
            _ => panic!("'{name}' has no queue"),
        }
    }

    /// Drains the server, and waits for its threads.
    pub fn stop(self) {
        self.context.lifecycle.drain();
        self.shards.into_iter().for_each(|shard| shard.join().unwrap());
        for mailbox in &self.context.control_link.mailboxes {
            assert_eq!(mailbox.nested().in_flight(), 0, "all are answered");
        }
        for served in &self.served {
            if let Placement::Worker(model_queue) = &served.placement {
                model_queue.stop();
            }
        }
        self.workers.into_iter().for_each(|worker| worker.join().unwrap());
    }
}

fn start_model(model: TrialModel) -> (Arc<ServedModel>, Vec<Option<QueueProducer>>, Vec<JoinHandle<()>>) {
    let TrialModel { spec, site, run, is_ready } = model;
    let loaded = Arc::new(TrialLoaded { run, made: AtomicUsize::new(0), is_ready });
    let bounds = QueueBounds { requests: 8, bytes: 1 << 20 };
    let (placement, producers): (_, Vec<_>) = match site {
        TrialSite::Ensemble => (Placement::Ensemble(Arc::new([])), (0..SHARDS).map(|_| None).collect()),
        TrialSite::Inline => (Placement::Inline, (0..SHARDS).map(|_| None).collect()),
        TrialSite::Workers(count) => {
            let (model_queue, producers) = ModelQueue::new(Policy::default(), bounds, SHARDS, count);
            (Placement::Worker(model_queue), producers.into_iter().map(Some).collect())
        }
    };
    let served = Arc::new(ServedModel::new(Arc::new(spec), 1, loaded, placement, SHARDS));
    let count = if let TrialSite::Workers(count) = site { count } else { 0 };
    let workers = (0..count).map(|parking| {
        let served = Arc::clone(&served);
        std::thread::spawn(move || {
            let Placement::Worker(model_queue) = &served.placement else { return };
            let (clock, model_queue) = (clock::now, Arc::clone(model_queue));
            let place = WorkerPlace { served: Arc::clone(&served), model_queue, parking, clock, warn: |_| {} };
            threads::enter(1, |threads| {
                let instance = served.loaded.new_instance(threads).unwrap();
                worker::run(&place, instance, threads).unwrap();
            });
        })
    });
    let workers = workers.collect();
    (served, producers, workers)
}

fn context(control: &ControlSender, is_controlled: bool) -> ServerContext {
    let mut context = server_context(SHARDS, Arc::clone(control));
    context.service.is_controlled = is_controlled;
    context.runtime = RuntimeOptions { io: IoPath::Epoll, exit_timeout: PATIENCE };
    context
}

/// A call in progress, and its replies.
pub struct TrialCall {
    pub state: Arc<CallState>,
    replies: Receiver<NestedReply>,
}

struct TrialReplies(Sender<NestedReply>);

impl ReplySink for TrialReplies {
    fn push(&self, reply: NestedReply) {
        // Fails where the test does not look.
        let _ = self.0.send(reply);
    }
}

/// Calls a model with the input `x`; `change` may modify the call.
pub fn call(gateway: &ShardGateway, model: &str, x: &[f32], change: impl FnOnce(&mut NestedCall)) -> TrialCall {
    let (sender, replies) = channel();
    let state = Arc::new(CallState::default());
    let mut call = NestedCall {
        model: model.to_owned(),
        version: None,
        inputs: vec![("x".to_owned(), vector(x))],
        outputs: Vec::new(),
        is_decoupled: false,
        allows_no_rows: false,
        details: RequestDetails::default(),
        replies: Arc::new(TrialReplies(sender)),
        state: Arc::clone(&state),
    };
    change(&mut call);
    gateway.infer(call);
    TrialCall { state, replies }
}

impl TrialCall {
    /// The next reply.
    pub fn next(&self) -> NestedReply {
        self.replies.recv_timeout(PATIENCE).expect("a call is answered")
    }

    /// The only reply: the values of the outputs by name.
    pub fn answer(&self) -> Result<Vec<(String, Vec<f32>)>, Error> {
        let reply = self.next();
        assert!(reply.is_final);
        assert!(self.replies.recv_timeout(Duration::ZERO).is_err(), "one reply is final, and the last");
        Ok(reply.outputs?.into_iter().map(|(name, tensor)| (name, values(&tensor))).collect())
    }

    pub fn refusal(&self) -> Error {
        self.answer().unwrap_err()
    }

    /// Returns the next reply if it has come.
    pub fn poll(&self) -> Option<NestedReply> {
        self.replies.try_recv().ok()
    }
}

/// Gives an order; the receiver gets the outcome.
pub fn order(
    gateway: &ShardGateway,
    model: &str,
    kind: OrderKind,
    details: RequestDetails,
) -> Receiver<Result<bool, Error>> {
    let (sender, outcome) = channel();
    let reply = Box::new(move |outcome| drop(sender.send(outcome)));
    gateway.control(NestedOrder { kind, model: model.to_owned(), details, reply });
    outcome
}

/// Waits until a condition holds.
pub fn until(condition: impl Fn() -> bool) {
    let began = clock::now();
    while !condition() {
        assert!(clock::now().since(began) < PATIENCE, "it never holds");
        std::thread::yield_now();
    }
}
