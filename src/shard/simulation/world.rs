//! A whole server in one thread: shards, workers and a control thread that loads, replaces and drains, with clients around
//! it. Everything is a task of the simulated runtime.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crossbeam_queue::SegQueue;
use futures_lite::FutureExt;

use crate::backend::Threads;
use crate::metrics::{Counter, ShardCells};
use crate::model::repository::index::RepositoryOverview;
use crate::policy::ConnectionTimeouts;
use crate::queue::model_queue::queue_producer::QueueProducer;
use crate::queue::model_queue::{ModelQueue, NextWork, WorkPoll};
use crate::queue::served_model::{Placement, ServedModel};
use crate::queue::worker::{Worker, WorkerPlace, WorkerStep};
use crate::runtime::clock;
use crate::runtime::executor::{self, Task};
use crate::runtime::simulation::{self, SimulatedFault, is_planted, note};
use crate::scheduler::QueueBounds;
use crate::shard::connections::receive_budget::ProcessReceiveBudget;
use crate::shard::mailbox::{ControlEvent, ControlSender, HandleRoute, ModelChange, ModelHandle, ShardNews};
use crate::shard::simulation::backend::{SimulatedModel, echo_spec};
use crate::shard::simulation::ledger::{Ledger, RunResult};
use crate::shard::simulation::plan::{ClientPlan, ClientProtocol, RunPlan};
use crate::shard::simulation::{grpc_client, http1_client};
use crate::shard::thread::ShardParts;
use crate::shard::{ListeningSocket, ListeningSockets, ServerContext, Shard, trial};

/// The time that a drain may take: longer than all timers of connections and models together.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that a run may take.
const RUN_MAX: Duration = Duration::from_secs(200);
/// The time that a thread takes to wake up.
const WAKE_TIME: Duration = Duration::from_micros(5);
/// Times that a worker may wake up without work in between: more is a thread that spins.
const IDLE_TURNS_MAX: usize = 2_000;
/// The pause before an attempt to make a lost instance again.
const RENEW_PAUSE: Duration = Duration::from_millis(100);

/// Timers of connections, short so that scripts reach them.
const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
    head: Duration::from_secs(2),
    body: Duration::from_secs(3),
    write: Duration::from_secs(4),
    idle: Duration::from_secs(5),
};

/// One run.
pub struct World {
    plan: RunPlan,
    threads: Threads,
    ledger: Rc<Ledger>,
    context: Arc<ServerContext>,
    events: Arc<SegQueue<ControlEvent>>,
    ports: Vec<RawFd>,
    shards: Vec<Rc<Shard>>,
    models: Vec<Arc<ServedModel>>,
    workers: Vec<Task<()>>,
}

/// A model on workers, and a producer for each shard.
struct FreshModel {
    served: Arc<ServedModel>,
    producers: Vec<QueueProducer>,
}

/// Runs a plan.
pub async fn run(plan: RunPlan, threads: Threads, sockets: Vec<OwnedFd>) -> RunResult {
    let ledger = Rc::new(Ledger::new(plan.is_calm));
    let mut world = World::new(plan, threads, Rc::clone(&ledger));
    let running = world.play(sockets);
    let late = async {
        simulation::sleep(RUN_MAX).await;
        ledger.broke("the run does not end".to_owned());
    };
    running.or(late).await;
    ledger.close()
}

impl World {
    fn new(plan: RunPlan, threads: Threads, ledger: Rc<Ledger>) -> Self {
        let events = Arc::new(SegQueue::new());
        let sent = Arc::clone(&events);
        let control: ControlSender = Arc::new(move |event| sent.push(event));
        let mut context = trial::server_context(plan.shards, control);
        context.connection_limits.connections_max = plan.connections_max;
        context.connection_limits.timeouts = TIMEOUTS;
        let memory = Arc::get_mut(&mut context.memory).expect("nobody else has it yet");
        memory.receive = Arc::new(ProcessReceiveBudget::new(plan.receive_size, plan.shards));
        context.runtime.exit_timeout = EXIT_TIMEOUT;
        context.warn = |text| note(|| format!("log: {text}"));
        let context = Arc::new(context);
        let (ports, shards, models, workers) = Default::default();
        Self { plan, threads, ledger, context, events, ports, shards, models, workers }
    }

    /// Starts the server, lets the clients play, and ends it.
    async fn play(&mut self, sockets: Vec<OwnedFd>) {
        let running = self.start(sockets);
        let clients: Vec<_> = self.plan.clients.clone().into_iter().map(|plan| self.client(plan)).collect();
        let reloading = self.plan.reload_at.map(|at| simulation::spawn(self.reload(at)));
        let lifecycle = Arc::clone(&self.context);
        let drain_at = self.plan.drain_at;
        let mut clients = Some(clients);
        if drain_at.is_none() {
            for client in clients.take().into_iter().flatten() {
                client.await;
            }
        }
        simulation::sleep(drain_at.unwrap_or_default()).await;
        note(|| "the server drains".to_owned());
        lifecycle.lifecycle.drain();
        for shard in running {
            shard.await;
        }
        note(|| "the shards have ended".to_owned());
        if let Some(reloading) = reloading {
            let (model, workers) = reloading.await;
            self.models.push(model);
            self.workers.extend(workers);
        }
        self.stop().await;
        for client in clients.into_iter().flatten() {
            client.await;
        }
        self.check();
    }

    fn start(&mut self, sockets: Vec<OwnedFd>) -> Vec<Task<()>> {
        let new = self.model("worker", None);
        let flight = self.model("flight", Some(self.plan.run_max));
        self.workers = [&new, &flight].iter().flat_map(|new| self.start_workers(&new.served)).collect();
        let mut parts: Vec<Vec<_>> = (0..self.plan.shards).map(|_| Vec::new()).collect();
        for FreshModel { served, producers } in [new, flight] {
            for (parts, producer) in parts.iter_mut().zip(producers) {
                parts.push((Arc::clone(&served), Some(producer)));
            }
            self.models.push(served);
        }
        let loaded = SimulatedModel { flight: None, failures: AtomicU64::new(0) };
        let inline = ServedModel::new(echo_spec("inline"), 1, Arc::new(loaded), Placement::Inline, self.plan.shards);
        let inline = Arc::new(inline);
        parts.iter_mut().for_each(|parts| parts.push((Arc::clone(&inline), None)));
        self.models.push(inline);
        let mut running = Vec::new();
        for ((index, models), descriptor) in parts.into_iter().enumerate().zip(sockets) {
            simulation::open_port(descriptor.as_raw_fd(), self.plan.accept_failures);
            self.ports.push(descriptor.as_raw_fd());
            let (server_context, overview) = (Arc::clone(&self.context), Arc::new(RepositoryOverview::default()));
            let parts = ShardParts {
                index,
                core: None,
                spin: Default::default(),
                server_context,
                models,
                overview,
                sockets: Default::default(),
            };
            let shard = Rc::new(Shard::new(parts, &self.threads).expect("its models have instances"));
            self.shards.push(Rc::clone(&shard));
            let socket = ListeningSocket { descriptor, is_lent: false, group: Arc::from([]) };
            let sockets = ListeningSockets { http: vec![socket], ..ListeningSockets::default() };
            running.push(executor::spawn(shard.run(sockets, |outcome| outcome.expect("it listens"))));
        }
        self.context.lifecycle.start();
        running
    }

    /// A model on workers.
    fn model(&self, name: &str, flight: Option<Duration>) -> FreshModel {
        let plan = &self.plan;
        let bounds = QueueBounds { requests: plan.waiting_max, bytes: 1 << 20 };
        let (model_queue, producers) = ModelQueue::new(plan.policy.clone(), bounds, plan.shards, plan.workers);
        let loaded = Arc::new(SimulatedModel { flight, failures: AtomicU64::new(plan.renew_failures) });
        let placement = Placement::Worker(model_queue);
        let served = Arc::new(ServedModel::new(echo_spec(name), 1, loaded, placement, plan.shards));
        FreshModel { served, producers }
    }

    fn start_workers(&self, served: &Arc<ServedModel>) -> Vec<Task<()>> {
        start_workers(served, &self.threads, self.plan.run_max, &self.ledger)
    }

    /// Replaces the model on workers at a time, as the control thread does.
    fn reload(&self, at: Duration) -> impl Future<Output = (Arc<ServedModel>, Vec<Task<()>>)> + use<> {
        let FreshModel { served, producers } = self.model("worker", None);
        let (old, context, events) = (Arc::clone(&self.models[0]), Arc::clone(&self.context), Arc::clone(&self.events));
        let (threads, run_max, ledger) = (self.threads.clone(), self.plan.run_max, Rc::clone(&self.ledger));
        async move {
            simulation::sleep(at).await;
            let workers = start_workers(&served, &threads, run_max, &ledger);
            note(|| "the model is replaced".to_owned());
            let mut left = producers.len();
            for (mailbox, producer) in context.control_link.mailboxes.iter().zip(producers) {
                let added = ModelHandle { served: Arc::clone(&served), route: HandleRoute::Queue(producer) };
                let (overview, removed) = (Arc::default(), vec![Arc::clone(&old)]);
                let change = ModelChange { number: 1, overview, removed, added: vec![added] };
                mailbox.push(ShardNews::Models(change));
            }
            while left > 0 && !context.lifecycle.is_draining() {
                let (come, of_drain) = (Arc::clone(&events), Arc::clone(&context));
                simulation::until(move || !come.is_empty() || of_drain.lifecycle.is_draining(), None).await;
                while let Some(event) = events.pop() {
                    left -= usize::from(matches!(event, ControlEvent::Changed(1)));
                }
            }
            if left == 0
                && let Placement::Worker(model_queue) = &old.placement
            {
                model_queue.stop();
            }
            (served, workers)
        }
    }

    fn client(&self, plan: ClientPlan) -> Task<()> {
        let (ledger, port) = (Rc::clone(&self.ledger), self.ports[plan.shard.min(self.ports.len() - 1)]);
        executor::spawn(async move {
            simulation::sleep(plan.start).await;
            let number = plan.number;
            let Some(end) = simulation::connect(port, number, plan.rules) else {
                return note(|| format!("c{number} is refused"));
            };
            note(|| format!("c{number} connects to shard {}: {:?}, {:?}", plan.shard, plan.protocol, plan.manner));
            match plan.protocol {
                ClientProtocol::Http1 => http1_client::play(plan, ledger, end).await,
                ClientProtocol::Unary | ClientProtocol::Stream => grpc_client::play(plan, ledger, end).await,
            }
            note(|| format!("c{number} has ended"));
        })
    }

    /// Stops the workers, as the control thread does when the shards have ended.
    async fn stop(&mut self) {
        for served in &self.models {
            if let Placement::Worker(model_queue) = &served.placement {
                model_queue.stop();
            }
        }
        for worker in std::mem::take(&mut self.workers) {
            worker.await;
        }
    }

    /// Checks that nothing is left, and all is counted.
    fn check(&self) {
        let ledger = &self.ledger;
        let expect = |what: &str, index: usize, got: u64, want: u64| {
            if got != want {
                ledger.broke(format!("shard {index}: {what} is {got}, expected {want}"));
            }
        };
        let mut succeeded = 0;
        for (index, shard) in self.shards.iter().enumerate() {
            // Answers of workers that ended after the shard.
            shard.requests.slots.drain();
            let cells: &ShardCells = &shard.cells;
            let refused: u64 = cells.refused.iter().map(Counter::get).sum();
            let cancelled: u64 = cells.cancelled.iter().map(Counter::get).sum();
            expect("received", index, cells.received.get(), cells.succeeded.get() + refused + cancelled);
            expect("open connections", index, shard.connections.len() as u64, 0);
            expect("taken slots", index, shard.connections.taken() as u64, 0);
            expect("closed connections", index, cells.connections_closed.get(), cells.connections_opened.get());
            expect("closed connections of clients", index, cells.clients.closed.get(), cells.clients.opened.get());
            let inbox = self.context.control_link.mailboxes[index].connections();
            expect("places of connections", index, inbox.count() as u64, 0);
            expect("receive memory", index, cells.receive_memory.get(), 0);
            expect("request slots in use", index, shard.requests.slots.in_use() as u64, 0);
            expect("panics", index, cells.panics.get(), 0);
            succeeded += cells.succeeded.get();
        }
        for served in &self.models {
            if let Placement::Worker(model_queue) = &served.placement {
                expect("requests waiting", 0, model_queue.waiting() as u64, 0);
                expect("bytes waiting", 0, model_queue.held() as u64, 0);
            }
        }
        let answered = ledger.counts.answered.get();
        if answered > succeeded {
            ledger.broke(format!("clients have {answered} answers, and {succeeded} were counted"));
        }
    }
}

fn start_workers(
    served: &Arc<ServedModel>,
    threads: &Threads,
    run_max: Duration,
    ledger: &Rc<Ledger>,
) -> Vec<Task<()>> {
    let Placement::Worker(model_queue) = &served.placement else { return Vec::new() };
    let count = model_queue.parkings().count();
    let start = |parking| {
        let (served, model_queue, threads) = (Arc::clone(served), Arc::clone(model_queue), threads.clone());
        executor::spawn(work(served, model_queue, parking, threads, run_max, Rc::clone(ledger)))
    };
    (0..count).map(start).collect()
}

/// A worker: the loop of [`crate::queue::worker`] with sleeps of the simulation.
async fn work(
    served: Arc<ServedModel>,
    model_queue: Arc<ModelQueue>,
    parking: usize,
    threads: Threads,
    run_max: Duration,
    ledger: Rc<Ledger>,
) {
    let instance = loop {
        if let Ok(instance) = served.loaded.new_instance(&threads) {
            break instance;
        }
    };
    let warn = |text: &str| note(|| format!("log: {text}"));
    let place = WorkerPlace {
        served: Arc::clone(&served),
        model_queue: Arc::clone(&model_queue),
        parking,
        clock: clock::now,
        warn,
    };
    let worker = Worker::new(place, instance, &threads);
    let worker = Rc::new(std::cell::RefCell::new(worker));
    let mut turns = 0;
    loop {
        let polled = worker.borrow_mut().poll_next();
        let work = match polled {
            WorkPoll::Work(work) => work,
            WorkPoll::Sleep(until) => {
                let sleeper = Rc::clone(&worker);
                let is_deaf = is_planted(SimulatedFault::WakeLost) && simulation::percent(20);
                simulation::until(move || !sleeper.borrow().is_parked() && !is_deaf, until).await;
                worker.borrow().end_sleep();
                turns += 1;
                if turns > IDLE_TURNS_MAX {
                    let name = &served.spec.name;
                    return ledger.broke(format!("worker {parking} of '{name}' turns without work; until {until:?}"));
                }
                // The time that a thread takes to wake up.
                simulation::sleep(WAKE_TIME).await;
                continue;
            }
        };
        turns = 0;
        if let NextWork::Batch(batch) = &work {
            let is_flight = served.spec.name == "flight";
            note(|| format!("worker {parking} of '{}' takes a batch of {}", served.spec.name, batch.rows));
            if !is_flight {
                simulation::sleep(Duration::from_nanos(simulation::below(run_max.as_nanos() as u64))).await;
            }
        }
        let step = worker.borrow_mut().handle_work(work);
        match step {
            WorkerStep::Next => {}
            WorkerStep::Ended => return,
            WorkerStep::Renew => loop {
                let model_queue = Arc::clone(&model_queue);
                let until = Some(clock::now() + RENEW_PAUSE);
                if simulation::until(move || model_queue.is_stopped(), until).await {
                    break;
                }
                if worker.borrow_mut().try_renew() {
                    break;
                }
            },
        }
    }
}
