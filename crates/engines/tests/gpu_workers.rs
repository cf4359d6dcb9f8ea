//! A worker with an instance on a GPU, which has batches in flight and may lose its context: the queue, the worker and the
//! executor together, on the fake driver.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use backend::gpu::Gpu;
use backend::gpu::driver::GpuFault;
use backend::gpu::fake::Fake;
use backend::{Instance, LoadedModel, Threads, threads};
use base::error::Error;
use base::time::Instant;
use engines::gpu::trial;
use model::config::{CompletionRules, ConfigDraft};
use queue::completions::Completions;
use queue::model_queue::ModelQueue;
use queue::model_queue::queue_producer::QueueProducer;
use queue::queued_request::QueuedRequest;
use queue::request_slots::RequestSlots;
use queue::served_model::{Placement, ServedModel};
use queue::worker::{WorkerPlace, run};
use scheduler::{Entry, Policy, QueueBounds, ShapeKey};

#[expect(clippy::disallowed_methods, reason = "a clock for tests")]
fn now() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap())
}

/// A served model version with one instance, its queue, and the producers of its shard.
fn served(model: Arc<dyn LoadedModel>) -> (Arc<ServedModel>, Arc<ModelQueue>, Vec<QueueProducer>) {
    let text = "backend: 'identity' input { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }\n\
                output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }";
    let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
    let spec = draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap();
    let (model_queue, producers) = ModelQueue::new(Policy::default(), QueueBounds { requests: 8, bytes: 8 }, 1, 1);
    let served = ServedModel::new(Arc::new(spec), 1, model, Placement::Worker(Arc::clone(&model_queue)), 1);
    (Arc::new(served), model_queue, producers)
}

/// Starts a thread with the only instance of a model; it ends when the queue is stopped.
fn spawn_worker<'scope>(
    scope: &'scope Scope<'scope, '_>,
    served: &Arc<ServedModel>,
    model_queue: &Arc<ModelQueue>,
) -> ScopedJoinHandle<'scope, Result<(), String>> {
    let (served, model_queue) = (Arc::clone(served), Arc::clone(model_queue));
    let place = WorkerPlace { served, model_queue, parking: 0, clock: now, warn: |_| {} };
    scope.spawn(move || {
        threads::enter(1, |threads| run(&place, place.served.loaded.new_instance(threads).unwrap(), threads))
    })
}

fn answer(request_slots: &RequestSlots) -> bool {
    loop {
        if let Some((_, answer)) = request_slots.completions().poll_answer() {
            return answer.outputs.is_ok();
        }
        std::thread::yield_now();
    }
}
/// A model of one product, on a fake GPU, whose instances can be made a limited number of
/// times.
struct OnGpu {
    gpu: Arc<Gpu>,
    left: AtomicUsize,
}

impl LoadedModel for OnGpu {
    fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
        let take = |left: usize| left.checked_sub(1);
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        left.map_err(|_| Error::unavailable("too often"))?;
        Ok(Box::new(trial::instance(&self.gpu, 1, &Arc::default())?))
    }

    fn may_run_inline(&self) -> bool {
        false
    }
}

fn submit_row(producer: &mut QueueProducer, request_slots: &Rc<RequestSlots>) {
    let (ticket, completions) = (request_slots.open().unwrap(), Arc::clone(request_slots.completions()));
    let token = QueuedRequest { inputs: vec![trial::row(1.0, 2.0)], ..QueuedRequest::plain(ticket, completions) };
    let (shape_key, queued_at) = (ShapeKey::new(), now());
    let (priority, timeout, deadline) = (0, Duration::ZERO, None);
    let entry = Entry { token, rows: 1, shape_key, queued_at, priority, timeout, deadline };
    if producer.submit(entry).ok().unwrap() {
        producer.model_queue().wake();
    }
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

#[test]
fn two_batches_are_in_flight_and_the_third_waits_in_the_queue() {
    let fake = Fake::new(1);
    let model = Arc::new(OnGpu { gpu: fake.gpu(1 << 20, 1 << 20), left: AtomicUsize::new(1) });
    let (served, model_queue, mut producers) = served(Arc::clone(&model) as Arc<dyn LoadedModel>);
    fake.hold();
    std::thread::scope(|scope| {
        let worker = spawn_worker(scope, &served, &model_queue);
        let request_slots = Rc::new(RequestSlots::new(Arc::new(Completions::new())));
        (0..3).for_each(|_| submit_row(&mut producers[0], &request_slots));
        until(|| model_queue.executions() == 2);
        std::thread::park_timeout(Duration::from_millis(5));
        assert_eq!((model_queue.executions(), model_queue.waiting()), (2, 1), "it may grow there, and be withdrawn");
        fake.finish(0);
        assert!(answer(&request_slots));
        until(|| model_queue.executions() == 3);
        fake.finish(1);
        assert!(answer(&request_slots));
        model_queue.stop();
        std::thread::park_timeout(Duration::from_millis(5));
        assert!(!worker.is_finished(), "what is in flight is waited for");
        until(|| fake.step(0));
        fake.finish(0);
        assert!(answer(&request_slots));
        assert_eq!(worker.join().unwrap(), Ok(()));
    });
}

#[test]
fn an_instance_whose_context_broke_is_made_anew_until_that_is_refused() {
    let fake = Fake::new(1);
    let model = Arc::new(OnGpu { gpu: fake.gpu(1 << 20, 1 << 20), left: AtomicUsize::new(2) });
    let (served, model_queue, mut producers) = served(Arc::clone(&model) as Arc<dyn LoadedModel>);
    std::thread::scope(|scope| {
        let worker = spawn_worker(scope, &served, &model_queue);
        let request_slots = Rc::new(RequestSlots::new(Arc::new(Completions::new())));
        fake.fail_next("matmul", GpuFault::Sticky);
        submit_row(&mut producers[0], &request_slots);
        assert!(!answer(&request_slots), "it was in flight");
        submit_row(&mut producers[0], &request_slots);
        assert!(answer(&request_slots));
        assert!(served.is_ready());
        fake.break_contexts();
        submit_row(&mut producers[0], &request_slots);
        assert!(!answer(&request_slots));
        until(|| !served.is_ready());
        model.left.store(1, Ordering::SeqCst);
        submit_row(&mut producers[0], &request_slots);
        assert!(answer(&request_slots), "what waited meanwhile is answered");
        assert!(served.is_ready());
        model_queue.stop();
        assert_eq!(worker.join().unwrap(), Ok(()));
    });
    assert_eq!(fake.contexts(), 3);
}
