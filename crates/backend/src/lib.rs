//! The interface of engines: a [`Backend`] loads a model version, the [`LoadedModel`] makes instances, an
//! [`Instance`] runs batches. Each request of a batch carries its own [`Responder`], which may be
//! used from any thread, so that an engine may answer later or from its own threads. A backend
//! never sees a queue or a socket.

pub mod batch;
pub mod batch_input;
pub mod bits;
pub mod blame;
pub mod builtin;
pub mod custom_metrics;
pub mod details;
pub mod engine_run;
pub mod ensemble;
pub mod gateway;
pub mod gpu;
pub mod kernel;
mod limits;
pub mod run_memory;
pub mod run_watch;
pub mod stateful;
pub mod stepped;
pub mod text;
pub mod threads;

#[cfg(any(test, feature = "testing"))]
pub mod trial;

pub use self::details::RequestDetails;
pub use self::ensemble::EnsembleModel;
pub use self::run_memory::RunMemory;
pub use self::run_watch::{RunObserver, RunWatch, RunWatches};
pub use self::threads::Threads;
pub use crate::builtin::accumulate::Accumulate;
pub use crate::builtin::decoupled::Decoupled;
pub use crate::builtin::identity::Identity;
pub use crate::builtin::iterative::Iterative;
pub use crate::stateful::{SequenceRow, StatefulModel};
pub use crate::stepped::{StepCaller, SteppedModel, Steps};

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use base::error::Error;
use base::metrics::{BatchCells, Gauge, PaddingCells, WorkReport};
use base::tensor::Tensor;
use base::time::{Clock, Stamps};
use model::parameters::Parameters;
use model::{InstanceSeat, ModelSpec};

/// Code that runs models of one kind.
pub trait Backend: Send + Sync {
    /// The name in logs (`rten`, `ONNX Runtime 1.31`).
    fn name(&self) -> &str;

    /// Loads one version of a model. `directory` is the version's own directory; the file inside
    /// it is `spec.default_model_filename`.
    ///
    /// # Errors
    ///
    /// If the file is missing or broken, or does not fit the configuration; the text names what was
    /// expected.
    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error>;

    /// Loads one version of a model from its opened file, since the path may lead to another file by now. The file
    /// refers to no other files. The directory is for engines that cannot read an open file.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    fn load_opened(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        _file: BorrowedFd<'_>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        self.load(spec, directory)
    }
}

/// One loaded model version, whose weights its instances share if the engine can.
pub trait LoadedModel: Send + Sync {
    /// Makes one instance, whose engine computes on `threads`, or on their GPU if they have one.
    ///
    /// # Errors
    ///
    /// If the engine or the GPU has no room for another, or the GPU is lost.
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error>;

    /// Instances are about to be added beside those that serve, in these seats of `spec`, which differs from the loaded
    /// configuration in its instance groups alone. A model that makes its instances when it is loaded makes the new ones
    /// now, for [`Self::new_instance`] to hand out.
    ///
    /// # Errors
    ///
    /// The reason why one cannot be made. Then none of them is asked for.
    fn prepare_instances(&self, spec: &ModelSpec, seats: &[InstanceSeat]) -> Result<(), Error> {
        let _ = (spec, seats);
        Ok(())
    }

    /// Returns true if an instance may run inside a shard if it is fast enough, because it neither
    /// sleeps nor waits for another thread, and the shapes of its inputs determine its duration.
    fn may_run_inline(&self) -> bool;

    /// The reason why it may not, for the log.
    fn why_not_inline(&self) -> &str {
        "it sleeps or waits"
    }

    /// The length of its runs, as far as known without one.
    fn computation(&self) -> Computation {
        Computation::Short
    }

    /// The model between its steps, if it has steps around another model: that one is measured and tried.
    fn between_steps(&self) -> Option<(&Arc<ModelSpec>, &dyn LoadedModel)> {
        None
    }

    /// The counters of its instances on GPUs, if it has any.
    fn gpu_figures(&self) -> Option<Arc<gpu::GpuInstanceFigures>> {
        None
    }

    /// The padding of its runs, if its inputs are padded.
    fn padding(&self) -> Option<&PaddingCells> {
        None
    }

    /// The memory of its processes in bytes, if its instances run in processes of their own. Another thread measures it.
    fn process_memory(&self) -> Option<&Gauge> {
        None
    }

    /// The device that all its instances are on, if they take and give tensors there
    /// ([`RequestDetails::on_device`]).
    fn tensor_device(&self) -> Option<&Arc<gpu::Gpu>> {
        None
    }

    /// Asks the model's own code if it is ready, and has `reply` called with the answer, at once or
    /// later, from any thread. Returns `reply` unused if the model has no such code, and then
    /// always: it is not asked again. A reply that is dropped counts as no. Never blocks.
    fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
        Some(reply)
    }

    /// The model is unloaded: waits for an instance that is being made or replaced should end soon.
    /// Never blocks.
    fn handle_unload(&self) {}

    /// Bytes of memory that processes of its own had after the load; 0 without such processes.
    fn process_size(&self) -> u64 {
        0
    }

    /// Returns true if requests are refused at once while no instance is left, and not kept until
    /// one is replaced: the model's own code may fail at every start.
    fn refuses_while_lost(&self) -> bool {
        false
    }
}

/// Expectation of a model's runs before one is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computation {
    /// They compute in a process or on threads that are not the worker's, which waits for them.
    Elsewhere,
    /// They may take any time.
    OfAnyLength,
    /// They are short, or on a GPU.
    Short,
}

/// Takes the answer of a model that was asked whether it is ready.
pub type ReadyReply = Box<dyn FnOnce(bool) + Send>;

/// One loaded copy of a model version, used by one thread at a time: it may be made on the loading
/// thread and dropped on another.
///
/// ```
/// use backend::{Batch, Instance};
///
/// /// Answers each request with its own inputs.
/// struct Echo;
///
/// impl Instance for Echo {
///     fn run(&mut self, batch: Batch) {
///         for request in batch.requests {
///             request.responder.send(Ok(request.inputs));
///         }
///     }
/// }
/// ```
pub trait Instance: Send {
    /// Runs one batch and answers its requests through their responders, now or later. Blocks
    /// while it computes. A request whose responder is dropped unanswered is answered with an
    /// internal error. An instance that answers later reports its batches in [`Self::poll_flight`].
    fn run(&mut self, batch: Batch);

    /// Answers the batches in flight that are done, and reports the rest. Never blocks. The caller
    /// runs another batch only if [`InFlightState::has_room`].
    fn poll_flight(&mut self, _clock: Clock) -> InFlightState {
        InFlightState::default()
    }

    /// Makes its engine compute on these threads from now on. An instance of a shard is made and
    /// warmed up by a loading thread, which hands it the shard's threads at the end.
    fn set_threads(&mut self, _threads: &Threads) {}

    /// Sets the waker to call, from any thread, when [`Self::poll_flight`] may have something new.
    fn set_waker(&mut self, _waker: Waker) {}

    /// Sets the watch of its runs, which have a time limit. An instance that bounds them itself
    /// ignores it.
    fn set_watch(&mut self, _watch: Arc<RunWatch>) {}

    /// Returns true if it has run the samples of `model_warmup`. An instance that a trial at load borrows serves
    /// afterwards, and is not warmed up again.
    fn is_warm(&self) -> bool {
        false
    }

    /// It has run the samples.
    fn set_warm(&mut self) {}

    /// A descriptor that is readable while [`Self::poll_flight`] has something new, for an instance that waits for
    /// another process: its thread sleeps on this and on its queue at once.
    fn event_source(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}

/// The work that an instance has in flight: batches that it began and has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightState {
    /// The number of batches in flight.
    pub batches: usize,
    /// True if it may begin another.
    pub has_room: bool,
    /// The longest time until the next poll, if the waker may not be called. A broken CUDA context
    /// runs no callbacks.
    pub look_again: Option<Duration>,
    /// The rows and the duration of the batch that ended last since the previous poll.
    pub ended_batch: Option<(u32, Duration)>,
    /// True if the instance computed nothing else during that.
    pub was_alone: bool,
    /// Its device is lost: it has answered all its requests and must be replaced by a new instance.
    pub is_lost: bool,
    /// Requests of the batches in flight that have not begun: they were sent ahead, and still wait.
    pub ahead: usize,
    /// Batches that run at the same time once it takes another; 1 for an instance that runs them in turn.
    pub at_once: usize,
}

/// Nothing in flight: the state of an instance that answers inside [`Instance::run`].
impl Default for InFlightState {
    fn default() -> Self {
        Self {
            batches: 0,
            has_room: true,
            look_again: None,
            ended_batch: None,
            was_alone: false,
            is_lost: false,
            ahead: 0,
            at_once: 1,
        }
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
        // The instance's waker, if any, is that of another thread: only the timeout ends this.
        std::thread::park_timeout(flight.look_again.unwrap_or(POLL_PAUSE).min(POLL_PAUSE));
    }
}

/// The longest pause between two polls of [`run_to_end`].
const POLL_PAUSE: Duration = Duration::from_millis(1);

/// Requests that left the queue together.
pub struct Batch {
    /// The requests, in queue order. All have the same inputs, of the same shapes except for the batch
    /// axis and for ragged inputs.
    pub requests: Vec<Request>,
    /// The sum of their rows.
    pub rows: u32,
    /// The clock for the stamps.
    pub clock: Clock,
    /// Slots whose sequences ended without a last request (timeout, cancelled): their state is dropped.
    pub ended: Vec<usize>,
}

impl Batch {
    /// The ids that clients gave the requests.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.requests.iter().filter_map(Request::id)
    }
}

/// One request of a batch.
pub struct Request {
    /// The tensors in the order of the model's inputs; see [`Tensor::is_given`] for those left out.
    pub inputs: Vec<Tensor>,
    /// Its size along the batch axis.
    pub rows: u32,
    /// Sends its answer.
    pub responder: Responder,
    /// Its slot, if the model serves sequences.
    pub sequence: Option<SequenceRow>,
    /// Its details beside its tensors, of which models that do not look have only the id; `None` without any.
    pub details: Option<Arc<RequestDetails>>,
}

impl Request {
    /// The id that its client gave it.
    #[inline]
    pub fn id(&self) -> Option<&str> {
        self.details.as_ref().map(|details| details.id.as_str()).filter(|id| !id.is_empty())
    }

    /// Its tensors that lie on a device, if any do.
    #[inline]
    pub fn on_device(&self) -> Option<&gpu::DeviceTensors> {
        self.details.as_ref()?.on_device.as_deref()
    }
}

/// The answer of a backend to one request.
pub struct Answer {
    /// The outputs in the order of the model's outputs, or the error.
    pub outputs: Result<Vec<Tensor>, Error>,
    /// `batched` is set when the batch is formed; the backend sets `input_end`, `infer_end` and
    /// `output_end`.
    pub stamps: Stamps,
    /// Rows of the batch that it was part of; 0 if it was refused before it ran.
    pub batch_rows: u32,
    /// True if the request is the first of its batch.
    pub is_first: bool,
    /// The part of the request's answers that this is.
    pub part: AnswerPart,
    /// The parameters of the response; `None` for most.
    pub parameters: Option<Box<Parameters>>,
}

/// The error of a request that a backend reschedules although the model's sequences are not iterative,
/// in Triton's words.
pub fn reschedule_refused() -> Error {
    Error::invalid(
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle \
         such a flag",
    )
}

impl Answer {
    /// Returns true if the request ran in a batch. Otherwise it was refused before.
    pub const fn has_run(&self) -> bool {
        self.batch_rows > 0
    }
}

/// The part of a request's answers that this is. A request has one answer, the last, except with
/// decoupled models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerPart {
    /// No answer: the request runs again in a later batch (iterative sequences). The outputs are
    /// the new values of its states, if there are any. It reaches the completion queue only if the
    /// model's sequences are not iterative, and becomes [`reschedule_refused`] there.
    Again,
    /// The end, without outputs: the request has none, or earlier answers had them.
    End,
    /// The last answer.
    #[default]
    Last,
    /// Others follow.
    More,
}

/// Counts the batches that ran: each once, as soon as one of its requests is known to be answered with outputs, as
/// Triton's backends do. A batch whose requests all fail is not counted.
pub trait ExecutionCounter: Send + Sync {
    /// A request of a batch has its first answer. Returns true if the batch is counted with it.
    fn handle_answer(&self, answer: &AnswerOfBatch<'_>) -> bool;

    /// A backend has reported on its own work, which is then counted instead.
    fn handle_report(&self, report: &WorkReport);
}

/// Workers count a batch, not shards: the clients of its requests may have left by then. This is for a batch of one request.
impl ExecutionCounter for BatchCells {
    fn handle_answer(&self, answer: &AnswerOfBatch<'_>) -> bool {
        let is_counted = answer.is_first && answer.has_outputs;
        if is_counted {
            self.count_shared(answer.rows, answer.stamps);
        }
        is_counted
    }

    fn handle_report(&self, report: &WorkReport) {
        self.report(report);
    }
}

/// The facts about a request's first answer for an [`ExecutionCounter`].
#[derive(Debug)]
pub struct AnswerOfBatch<'a> {
    /// The request is the first of its batch, or ran alone after the batch had failed.
    pub is_first: bool,
    /// It is answered with outputs.
    pub has_outputs: bool,
    /// Rows of the batch.
    pub rows: u32,
    /// The stamps of the batch's run.
    pub stamps: &'a Stamps,
}

/// The destination of answers: the completion queue of the shard that has the request's ticket.
pub trait AnswerSink: Send + Sync {
    /// Puts the answer of a ticket into the queue. Never blocks.
    fn push(&self, ticket: Ticket, answer: Answer);

    /// Wakes the shard, so that it takes its answers. Never blocks.
    fn wake(&self);

    /// Returns true if the ticket's unread answers are few enough for another (backpressure of
    /// decoupled models).
    fn has_room(&self, _ticket: Ticket) -> bool {
        true
    }

    /// Returns true if the request was cancelled, so that no answer is needed.
    fn has_left(&self, _ticket: Ticket) -> bool {
        false
    }
}

/// The sinks that a thread pushed answers to inside [`answering`], each once.
type AnsweredSinks = RefCell<Option<Answered>>;

struct Answered {
    sinks: SmallVec<[Arc<dyn AnswerSink>; 2]>,
    /// False if the caller takes the answers itself.
    wakes: bool,
}

#[cfg(not(feature = "loom"))]
thread_local! {
    static ANSWERED: AnsweredSinks = const { RefCell::new(None) };
}

// Loom runs all threads on one.
#[cfg(feature = "loom")]
loom::thread_local! {
    static ANSWERED: AnsweredSinks = RefCell::new(None);
}

/// Runs `body`, in which this thread answers requests, and then wakes each shard that got an answer
/// once: a burst costs one wake-up. Answers from other threads wake at once.
pub fn answering<T>(body: impl FnOnce() -> T) -> T {
    collect(true, body)
}

/// As [`answering`], for a caller that takes the answers itself: no shard is woken.
pub fn answering_myself<T>(body: impl FnOnce() -> T) -> T {
    collect(false, body)
}

fn collect<T>(wakes: bool, body: impl FnOnce() -> T) -> T {
    ANSWERED.with(|answered| answered.replace(Some(Answered { sinks: SmallVec::new(), wakes })));
    let _burst = WakeBatch;
    body()
}

/// Wakes the answered shards when it is dropped, also after a panic of the engine.
struct WakeBatch;

impl Drop for WakeBatch {
    fn drop(&mut self) {
        let answered = ANSWERED.with(RefCell::take).filter(|answered| answered.wakes);
        answered.iter().flat_map(|answered| &answered.sinks).for_each(|sink| sink.wake());
    }
}

/// Wakes the shards that got answers so far inside [`answering`]: an instance calls it between two runs of a batch.
pub fn announce_answers() {
    let announced = ANSWERED.with(|answered| {
        answered
            .borrow_mut()
            .as_mut()
            .filter(|answered| answered.wakes)
            .map(|answered| std::mem::take(&mut answered.sinks))
    });
    announced.iter().flatten().for_each(|sink| sink.wake());
}

/// Returns true if the calling thread is inside [`answering`], and so takes or announces the
/// answers afterwards.
#[inline]
pub fn is_answering() -> bool {
    ANSWERED.with(|answered| answered.borrow().is_some())
}

/// Wakes the shard of an answer at the end of [`answering`], or at once if this thread is not
/// inside it.
pub fn wake_afterwards(sink: Arc<dyn AnswerSink>) {
    ANSWERED.with(|answered| match &mut *answered.borrow_mut() {
        Some(answered) if answered.sinks.iter().any(|have| Arc::ptr_eq(have, &sink)) => {}
        Some(answered) => answered.sinks.push(sink),
        None => sink.wake(),
    });
}

/// Names a request inside its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Its index in the shard's table of requests.
    pub index: u32,
    /// Distinguishes it from earlier requests at the same index.
    pub generation: u32,
}

/// The part of one output that a request's answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputNeed {
    /// The best classes, this many. The whole output is accepted too: then the encoder finds them.
    Classes(u32),
    /// Nothing: an empty tensor is accepted.
    Nothing,
    /// All of it.
    Whole,
}

/// The part of each output that a request's answer needs, in the order of the model's outputs.
/// Outputs beyond the end of the list are needed whole. A hint: an instance may ignore it and give
/// all of each output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputNeeds(pub SmallVec<[OutputNeed; 2]>);

impl OutputNeeds {
    /// The part of one output that is needed.
    #[inline]
    pub fn of(&self, index: usize) -> OutputNeed {
        self.0.get(index).copied().unwrap_or(OutputNeed::Whole)
    }
}

/// Answers one request exactly once: when it is dropped unanswered, it sends an internal error.
pub struct Responder {
    /// `None` once the last answer is sent.
    sink: Option<Arc<dyn AnswerSink>>,
    ticket: Ticket,
    /// The stamps so far; the backend completes them.
    pub stamps: Stamps,
    /// The part of each output that the answer needs.
    pub output_needs: OutputNeeds,
    batch_rows: u32,
    is_first: bool,
    executions: Option<Arc<dyn ExecutionCounter>>,
    parameters: Option<Box<Parameters>>,
}

impl Responder {
    /// A responder for a ticket of a shard.
    pub fn new(sink: Arc<dyn AnswerSink>, ticket: Ticket, stamps: Stamps) -> Self {
        Self {
            sink: Some(sink),
            ticket,
            stamps,
            output_needs: OutputNeeds::default(),
            batch_rows: 0,
            is_first: false,
            executions: None,
            parameters: None,
        }
    }

    /// A responder without a sink, for a row that has no request.
    pub fn nobody() -> Self {
        let ticket = Ticket { index: 0, generation: 0 };
        Self {
            sink: None,
            ticket,
            stamps: Stamps::default(),
            output_needs: OutputNeeds::default(),
            batch_rows: 0,
            is_first: false,
            executions: None,
            parameters: None,
        }
    }

    /// Wraps the sink, so that the answer passes through another first. Does nothing without a
    /// sink.
    pub fn answer_through(&mut self, wrap: impl FnOnce(Arc<dyn AnswerSink>) -> Arc<dyn AnswerSink>) {
        self.sink = self.sink.take().map(wrap);
    }

    /// Sets the rows of the request's batch, and if it is the first of the batch.
    pub fn set_batch(&mut self, rows: u32, is_first: bool) {
        self.batch_rows = rows;
        self.is_first = is_first;
    }

    /// Sets the counter of its batch, which the other requests of the batch share.
    #[inline]
    pub fn count_in(&mut self, executions: Arc<dyn ExecutionCounter>) {
        self.executions = Some(executions);
    }

    /// Returns the counter of its batch, until its first answer.
    pub fn executions(&self) -> Option<&Arc<dyn ExecutionCounter>> {
        self.executions.as_ref()
    }

    /// Sets the parameters of the next answer.
    #[inline]
    pub fn set_parameters(&mut self, parameters: Parameters) {
        self.parameters = (!parameters.is_empty()).then(|| Box::new(parameters));
    }

    /// The ticket it answers.
    pub const fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Returns true if the request was cancelled, so that further work on it is wasted.
    #[inline]
    pub fn has_left(&self) -> bool {
        self.sink.as_ref().is_none_or(|sink| sink.has_left(self.ticket))
    }

    /// Returns true if the client has read enough for a decoupled model to send another answer. A
    /// request whose model sends regardless is ended when too much is unread.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.sink.as_ref().is_none_or(|sink| sink.has_room(self.ticket))
    }

    /// Sends the last answer, with the stamps in [`Self::stamps`].
    #[inline]
    pub fn send(mut self, outputs: Result<Vec<Tensor>, Error>) {
        self.answer(outputs, AnswerPart::Last);
    }

    /// Sends one answer of several: a decoupled model may have any number. [`Self::send`] or
    /// [`Self::end`] sends the last.
    #[inline]
    pub fn send_more(&mut self, outputs: Vec<Tensor>) {
        self.send_part(Ok(outputs));
    }

    /// Sends one answer of several, which may be an error: the request goes on after it.
    #[inline]
    pub fn send_part(&mut self, outcome: Result<Vec<Tensor>, Error>) {
        let sink = self.sink.clone();
        self.answer(outcome, AnswerPart::More);
        self.sink = sink;
    }

    /// Has the request run again in a later batch of its sequence, as TRITONBACKEND_RequestRelease
    /// with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE. `outputs` are the new values of its states, in
    /// the order of the model's outputs, or empty if the states do not change. If the model's
    /// sequences are not iterative, the request is answered with an error.
    #[inline]
    pub fn reschedule(mut self, outputs: Vec<Tensor>) {
        self.answer(Ok(outputs), AnswerPart::Again);
    }

    /// Ends the request without another answer.
    #[inline]
    pub fn end(mut self) {
        self.answer(Ok(Vec::new()), AnswerPart::End);
    }

    /// Sends an answer. A tensor whose bytes do not match its shape makes it an error: the next
    /// reader, a step of an ensemble or a client, would read other numbers.
    fn answer(&mut self, outputs: Result<Vec<Tensor>, Error>, part: AnswerPart) {
        if let Some(sink) = self.sink.take() {
            let outputs = outputs.and_then(|outputs| check_sizes(outputs, &self.output_needs));
            let Self { stamps, batch_rows, is_first, .. } = *self;
            if let Some(executions) = self.executions.take() {
                let has_outputs = outputs.is_ok();
                executions.handle_answer(&AnswerOfBatch { is_first, has_outputs, rows: batch_rows, stamps: &stamps });
            }
            let parameters = self.parameters.take();
            let answer = Answer { outputs, stamps, batch_rows, is_first, part, parameters };
            // Pushed before the wake-up: a shard that wakes finds the answer.
            sink.push(self.ticket, answer);
            wake_afterwards(sink);
        }
    }
}

/// The outputs, if each has its size, is left out, or is not needed.
fn check_sizes(outputs: Vec<Tensor>, needs: &OutputNeeds) -> Result<Vec<Tensor>, Error> {
    let is_wrong = |(index, output): (usize, &Tensor)| {
        !output.has_its_size() && !output.is_missing() && needs.of(index) != OutputNeed::Nothing
    };
    match outputs.iter().enumerate().position(is_wrong) {
        None => Ok(outputs),
        Some(index) => Err(wrong_size(index, &outputs)),
    }
}

#[cold]
fn wrong_size(index: usize, outputs: &[Tensor]) -> Error {
    let Some(Tensor { datatype, shape, contents }) = outputs.get(index) else {
        return Error::internal("no such output");
    };
    Error::internal(format!(
        "the model's output {index}, {} {shape:?}, has {} bytes, which is not the size of that shape",
        datatype.name(),
        contents.len()
    ))
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
    use base::error::Code;
    use base::tensor::Datatype;

    /// Counts its calls.
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
        answering_myself(|| {
            drop(batch);
            announce_answers();
        });
        assert_eq!(counts(), [(4, 0), (4, 0)]);
        let mut batch = responders();
        answering(|| {
            let rest = batch.split_off(4);
            drop(batch);
            announce_answers();
            assert_eq!(counts(), [(2, 1), (2, 1)], "between two runs");
            drop(rest);
        });
        assert_eq!(counts(), [(2, 1), (2, 1)]);
        announce_answers();
        drop(responders());
        assert_eq!(counts(), [(4, 4), (4, 4)], "outside, each answer wakes");
    }

    #[test]
    fn outputs_whose_bytes_are_not_those_of_their_shape_are_an_error_and_what_is_left_out_is_not() {
        let check = |datatype, shape: &[i64], size: usize, is_right: bool| {
            let answers = trial::TrialAnswers::default();
            let tensor = Tensor { datatype, shape: shape.into(), contents: vec![0; size].into() };
            let request = answers.batch(vec![(vec![], 1)]).requests.remove(0);
            request.responder.send(Ok(vec![tensor]));
            let got = answers.outputs(1).remove(0);
            assert_eq!(
                got.as_ref().map(Vec::len).map_err(Error::code),
                if is_right { Ok(1) } else { Err(Code::Internal) },
                "{shape:?} {size}"
            );
        };
        check(Datatype::Fp32, &[2, 2], 16, true);
        check(Datatype::Fp32, &[2, 2], 12, false);
        check(Datatype::Fp32, &[2, 2], 20, false);
        check(Datatype::Fp32, &[1, -1], 4, false);
        check(Datatype::Fp32, &[0, i64::MAX], 0, true);
        check(Datatype::Fp32, &[i64::MAX, i64::MAX], 0, false);
        check(Datatype::Fp32, &[], 4, true);
        check(Datatype::Fp32, &[], 0, true);
        check(Datatype::Bytes, &[2], 8, true);
        check(Datatype::Bytes, &[2], 7, false);
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
