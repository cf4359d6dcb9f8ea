//! Engines: a [`Backend`] loads a model version, the [`LoadedModel`] makes instances, an
//! [`Instance`] runs batches. Each request of a batch carries its own [`Responder`], which may be
//! used from any thread, so that an engine that answers later, or from threads of its own, fits
//! the same trait. A backend never sees a queue or a socket.

pub mod batch;
pub mod batch_input;
pub mod builtin;
mod engine_run;
pub mod ensemble;
pub mod gpu;
pub mod kernel;
mod model_file;
pub mod onnxruntime;
pub mod rten;
pub mod stateful;
pub mod text;
pub mod threads;

#[cfg(test)]
pub(crate) mod onnx_builder;
#[cfg(test)]
pub(crate) mod trial;

pub use self::ensemble::EnsembleModel;
pub use self::onnxruntime::{Onnxruntime, OnnxruntimeOnGpus};
pub use self::rten::Rten;
pub use self::threads::Threads;
pub use crate::backend::builtin::accumulate::Accumulate;
pub use crate::backend::builtin::decoupled::Decoupled;
pub use crate::backend::builtin::identity::Identity;
pub use crate::backend::builtin::iterative::Iterative;
pub use crate::backend::stateful::{SequenceRow, StatefulModel};

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use crate::error::Error;
use crate::model::ModelSpec;
use crate::tensor::Tensor;
use crate::time::{Clock, Stamps};

/// Code that runs models of one kind.
pub trait Backend: Send + Sync {
    /// The name in logs (`rten`, `ONNX Runtime 1.31`).
    fn name(&self) -> &str;

    /// Loads one version of a model. `directory` is the version's own directory; the file inside
    /// it is `spec.default_model_filename`. Fails with a text that names what was expected.
    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error>;

    /// The same from the model's file as it was opened, which refers to no others: what its path leads to
    /// may be another by now. The directory is for engines that take nothing else.
    fn load_opened(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        _file: BorrowedFd<'_>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        self.load(spec, directory)
    }
}

/// One loaded model version, whose weights its instances share where the engine can.
pub trait LoadedModel: Send + Sync {
    /// Makes one instance, whose engine computes on `threads`: those of the thread that will run it;
    /// or on their GPU, where they have one.
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error>;

    /// Whether an instance may run inside a shard if it is fast enough: it neither sleeps nor
    /// waits.
    fn may_run_inline(&self) -> bool;

    /// What its instances on GPUs count, where it has any.
    fn gpu_figures(&self) -> Option<Arc<gpu::GpuInstanceFigures>> {
        None
    }
}

/// One loaded copy of a model version, used by one thread at a time: it may be made on the thread
/// that loads, and end on another.
pub trait Instance: Send {
    /// Runs one batch and answers its requests through their responders, now or later. Blocks
    /// while it computes. A request whose responder is dropped unanswered is answered with an
    /// internal error. An instance that answers later tells so by [`Self::poll_flight`].
    fn run(&mut self, batch: Batch);

    /// Answers what is done of the batches that it began, and says what is left. Never blocks. A batch
    /// is run only where there is room for it.
    fn poll_flight(&mut self, _clock: Clock) -> InFlightState {
        InFlightState::default()
    }

    /// From now on its engine computes on these threads, and no more on those that it was made with: one
    /// that was made and warmed by a loading thread goes to the shard that it runs inside of.
    fn set_threads(&mut self, _threads: &Threads) {}

    /// Gives it what to call, from any thread, when [`Self::poll_flight`] may have something new.
    fn set_waker(&mut self, _waker: Waker) {}
}

/// What an instance has in flight: batches that it began and whose requests are not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightState {
    /// How many.
    pub batches: usize,
    /// Whether it may begin another.
    pub has_room: bool,
    /// It wants to be asked again after so long, though nobody wakes it.
    pub look_again: Option<Duration>,
    /// The rows of the batch that ended last since it was asked before, and how long it took.
    pub ended_batch: Option<(u32, Duration)>,
    /// It can run nothing any more, has answered for all that it had, and is to be made anew.
    pub is_lost: bool,
}

/// Nothing: its runs answer.
impl Default for InFlightState {
    fn default() -> Self {
        Self { batches: 0, has_room: true, look_again: None, ended_batch: None, is_lost: false }
    }
}

/// Runs a batch and waits until its requests are answered.
pub fn run_to_end(instance: &mut dyn Instance, batch: Batch) {
    let clock = batch.clock;
    instance.run(batch);
    loop {
        let flight = instance.poll_flight(clock);
        if flight.batches == 0 {
            return;
        }
        // Whom it wakes is somebody else.
        std::thread::park_timeout(flight.look_again.unwrap_or(POLL_PAUSE).min(POLL_PAUSE));
    }
}

/// The longest pause between two looks of [`run_to_end`].
const POLL_PAUSE: Duration = Duration::from_millis(1);

/// Requests that left the queue together.
pub struct Batch {
    /// The requests, in queue order; all with the same inputs, of the same shapes but for the batch
    /// axis and for ragged inputs.
    pub requests: Vec<Request>,
    /// The sum of their rows.
    pub rows: u32,
    /// What to stamp with.
    pub clock: Clock,
    /// Slots whose sequences ended otherwise than by a request: what is kept of them goes.
    pub ended: Vec<usize>,
}

/// One request of a batch.
pub struct Request {
    /// The tensors in the order of the model's inputs; see [`Tensor::is_given`] for what was left
    /// out.
    pub inputs: Vec<Tensor>,
    /// Its rows.
    pub rows: u32,
    /// Takes its answer.
    pub responder: Responder,
    /// Its place, where the model serves sequences.
    pub sequence: Option<SequenceRow>,
}

/// The answer of a backend to one request.
pub struct Answer {
    /// The outputs in the order of the model's outputs, or why there are none.
    pub outputs: Result<Vec<Tensor>, Error>,
    /// `batched` is set when the batch is formed; the backend sets `input_end`, `infer_end` and
    /// `output_end`.
    pub stamps: Stamps,
    /// Rows of the batch that it was part of.
    pub batch_rows: u32,
    /// Whether this request counts the execution: the first of its batch does.
    pub is_first: bool,
    /// Whether others follow.
    pub part: AnswerPart,
}

/// The error of a request that is to run again where its model's sequences are not iterative, in
/// Triton's words.
pub fn reschedule_refused() -> Error {
    Error::invalid(
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle \
         such a flag",
    )
}

impl Answer {
    /// Whether a batch ran that had the request; it was refused before otherwise.
    pub const fn has_run(&self) -> bool {
        self.batch_rows > 0
    }
}

/// Which of a request's answers one is. All but those of decoupled models have one answer, the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerPart {
    /// None: the request is to run again in a later batch (iterative sequences). The outputs are what
    /// its states become, if there are any. It never reaches a shard but where nobody has it run again.
    Again,
    /// The end alone, without outputs: there are none, or they came before.
    End,
    /// The last.
    #[default]
    Last,
    /// Others follow.
    More,
}

/// Where the batches that ran are counted: each once, by the first of its requests that is answered
/// with outputs, as Triton's backends do. A batch of which all requests fail is not counted.
pub trait ExecutionCounter: Send + Sync {
    /// A batch of so many rows ran.
    fn count(&self, rows: u32, stamps: &Stamps);
}

/// Where answers go: the shard that holds the request's ticket.
pub trait AnswerSink: Send + Sync {
    /// Takes the answer of a ticket. Never blocks.
    fn push(&self, ticket: Ticket, answer: Answer);

    /// Sees to it that the shard looks at its answers. Never blocks.
    fn wake(&self);

    /// Whether the answers of a ticket that are not read yet are few enough for another.
    fn has_room(&self, _ticket: Ticket) -> bool {
        true
    }

    /// Whether nobody waits for the answers of a ticket any more.
    fn has_left(&self, _ticket: Ticket) -> bool {
        false
    }
}

/// The inboxes that a thread answered inside [`answering`], each once.
type AnsweredInboxes = RefCell<Option<SmallVec<[Arc<dyn AnswerSink>; 2]>>>;

#[cfg(not(all(test, feature = "loom")))]
thread_local! {
    static ANSWERED: AnsweredInboxes = const { RefCell::new(None) };
}

// Loom runs all threads on one.
#[cfg(all(test, feature = "loom"))]
loom::thread_local! {
    static ANSWERED: AnsweredInboxes = RefCell::new(None);
}

/// Runs `body`, in which requests are answered on this thread, and wakes each shard that got an
/// answer once, afterwards: a burst costs one wake-up. Answers from other threads wake at once.
pub fn answering<T>(body: impl FnOnce() -> T) -> T {
    collect(true, body)
}

/// The same where the caller looks at the answers itself: nobody is woken.
pub fn answering_myself<T>(body: impl FnOnce() -> T) -> T {
    collect(false, body)
}

fn collect<T>(wakes: bool, body: impl FnOnce() -> T) -> T {
    ANSWERED.with(|answered| answered.replace(Some(SmallVec::new())));
    let _burst = WakeBatch { wakes };
    body()
}

/// The end of a burst, by a panic too.
struct WakeBatch {
    wakes: bool,
}

impl Drop for WakeBatch {
    fn drop(&mut self) {
        let answered = ANSWERED.with(RefCell::take).unwrap_or_default();
        answered.iter().filter(|_| self.wakes).for_each(|inbox| inbox.wake());
    }
}

/// Whether the calling thread is inside [`answering`]: it looks at what came of it afterwards.
pub fn is_answering() -> bool {
    ANSWERED.with(|answered| answered.borrow().is_some())
}

/// Wakes a shard that was answered: at the end of [`answering`], or now where this thread is not
/// inside it.
pub fn wake_afterwards(inbox: Arc<dyn AnswerSink>) {
    ANSWERED.with(|answered| match &mut *answered.borrow_mut() {
        Some(answered) if answered.iter().any(|have| Arc::ptr_eq(have, &inbox)) => {}
        Some(answered) => answered.push(inbox),
        None => inbox.wake(),
    });
}

/// Names a request inside its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Its place in the shard's table.
    pub index: u32,
    /// Tells it from earlier requests in the same place.
    pub generation: u32,
}

/// What of one output a request's answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputNeed {
    /// Its so many best classes. The whole will do: then they are found where the answer is written.
    Classes(u32),
    /// Nothing: an empty tensor will do.
    Nothing,
    /// All of it.
    Whole,
}

/// What of each output a request's answer needs, in the order of the model's outputs; all of those that
/// are not here. An instance may do as it likes with it: nobody needs to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputNeeds(pub SmallVec<[OutputNeed; 2]>);

impl OutputNeeds {
    /// What of one output is needed.
    pub fn of(&self, index: usize) -> OutputNeed {
        self.0.get(index).copied().unwrap_or(OutputNeed::Whole)
    }
}

/// Answers one request exactly once: when it is dropped unanswered, it answers for the backend.
pub struct Responder {
    inbox: Option<Arc<dyn AnswerSink>>,
    ticket: Ticket,
    /// The stamps so far; the backend completes them.
    pub stamps: Stamps,
    /// What the answer needs.
    pub output_needs: OutputNeeds,
    batch_rows: u32,
    is_first: bool,
    executions: Option<Arc<dyn ExecutionCounter>>,
}

impl Responder {
    /// A responder for a ticket of a shard.
    pub fn new(inbox: Arc<dyn AnswerSink>, ticket: Ticket, stamps: Stamps) -> Self {
        Self {
            inbox: Some(inbox),
            ticket,
            stamps,
            output_needs: OutputNeeds::default(),
            batch_rows: 0,
            is_first: false,
            executions: None,
        }
    }

    /// A responder that answers nobody: for a row without a request.
    pub fn nobody() -> Self {
        let ticket = Ticket { index: 0, generation: 0 };
        Self {
            inbox: None,
            ticket,
            stamps: Stamps::default(),
            output_needs: OutputNeeds::default(),
            batch_rows: 0,
            is_first: false,
            executions: None,
        }
    }

    /// Has the answer pass by another inbox, if there will be one.
    pub fn answer_through(&mut self, wrap: impl FnOnce(Arc<dyn AnswerSink>) -> Arc<dyn AnswerSink>) {
        self.inbox = self.inbox.take().map(wrap);
    }

    /// Says what batch the request became part of, and whether it is its first.
    pub fn set_batch(&mut self, rows: u32, is_first: bool) {
        self.batch_rows = rows;
        self.is_first = is_first;
    }

    /// Says where its batch is counted, if it is to be.
    pub fn count_in(&mut self, executions: Arc<dyn ExecutionCounter>) {
        self.executions = Some(executions);
    }

    /// The ticket it answers.
    pub const fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Whether nobody waits for the answer any more: what is still to come is for nothing.
    pub fn has_left(&self) -> bool {
        self.inbox.as_ref().is_none_or(|inbox| inbox.has_left(self.ticket))
    }

    /// Whether the client has read so much that another answer of several should be sent. A model that
    /// sends all the same is cut off where too much is unread.
    pub fn has_room(&self) -> bool {
        self.inbox.as_ref().is_none_or(|inbox| inbox.has_room(self.ticket))
    }

    /// Answers, for the last time. The stamps are those of [`Self::stamps`].
    pub fn send(mut self, outputs: Result<Vec<Tensor>, Error>) {
        self.answer(outputs, AnswerPart::Last);
    }

    /// One answer of several: a decoupled model may have any number. The last is [`Self::send`] or
    /// [`Self::end`].
    pub fn send_more(&mut self, outputs: Vec<Tensor>) {
        let inbox = self.inbox.clone();
        self.answer(Ok(outputs), AnswerPart::More);
        self.inbox = inbox;
    }

    /// The request is to run again, in a later batch of its sequence, as TRITONBACKEND_RequestRelease
    /// with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE. `outputs` are what its states become, in the places
    /// of the model's outputs, or none where they stay. Where the model's sequences are not iterative it
    /// is answered with an error.
    pub fn reschedule(mut self, outputs: Vec<Tensor>) {
        self.answer(Ok(outputs), AnswerPart::Again);
    }

    /// No answer comes any more.
    pub fn end(mut self) {
        self.answer(Ok(Vec::new()), AnswerPart::End);
    }

    fn answer(&mut self, outputs: Result<Vec<Tensor>, Error>, part: AnswerPart) {
        if let Some(inbox) = self.inbox.take() {
            if let Some(executions) = self.executions.take().filter(|_| self.is_first && outputs.is_ok()) {
                executions.count(self.batch_rows, &self.stamps);
            }
            let Self { stamps, batch_rows, is_first, .. } = *self;
            let answer = Answer { outputs, stamps, batch_rows, is_first, part };
            inbox.push(self.ticket, answer);
            wake_afterwards(inbox);
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.answer(Err(Error::internal("the model gave no answer to this request")), AnswerPart::Last);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::Code;

    /// Counts what happens to it.
    #[derive(Default)]
    struct Counts {
        pushed: AtomicUsize,
        woken: AtomicUsize,
    }

    impl AnswerSink for Counts {
        fn push(&self, _: Ticket, _: Answer) {
            self.pushed.fetch_add(1, Ordering::SeqCst);
        }

        fn wake(&self) {
            self.woken.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_burst_of_answers_wakes_each_shard_once_even_where_the_engine_panics() {
        let shards = [Arc::new(Counts::default()), Arc::new(Counts::default())];
        let responders = || -> Vec<Responder> {
            let of = |index: usize| Arc::clone(&shards[index % 2]) as Arc<dyn AnswerSink>;
            let ticket = Ticket { index: 0, generation: 0 };
            (0..8).map(|index| Responder::new(of(index), ticket, Stamps::default())).collect()
        };
        let counts = || {
            shards
                .each_ref()
                .map(|shard| (shard.pushed.swap(0, Ordering::SeqCst), shard.woken.swap(0, Ordering::SeqCst)))
        };
        let batch = responders();
        answering(|| batch.into_iter().for_each(|responder| responder.send(Ok(vec![]))));
        assert_eq!(counts(), [(4, 1), (4, 1)]);
        let batch = responders();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            answering(move || {
                let _dropped = batch;
                panic!("on purpose")
            })
        }));
        assert!(outcome.is_err());
        assert_eq!(counts(), [(4, 1), (4, 1)]);
        let batch = responders();
        answering_myself(|| drop(batch));
        assert_eq!(counts(), [(4, 0), (4, 0)]);
        drop(responders());
        assert_eq!(counts(), [(4, 4), (4, 4)], "outside, each answer wakes");
    }

    #[test]
    fn a_request_that_a_backend_forgets_is_answered_with_an_internal_error() {
        let answers = trial::TrialAnswers::default();
        let mut requests = answers.batch(vec![(vec![], 1), (vec![], 1)]).requests;
        requests.remove(0).responder.send(Ok(vec![]));
        drop(requests);
        let got = answers.outputs(2);
        assert_eq!(got[0], Ok(vec![]));
        assert_eq!(got[1].as_ref().map_err(Error::code), Err(Code::Internal));
    }
}
