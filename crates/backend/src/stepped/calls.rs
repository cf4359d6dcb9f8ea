//! The calls of other models that the steps of one instance make ([`ModelCall`]). A request whose step makes one waits
//! here; replies come from any thread, into an inbox that the instance's thread empties. A call has all rows, or a few of
//! them: then it is several at the same time, at most [`STEP_CALLS_MAX`] for a request, whose outputs are joined.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use crossbeam_queue::SegQueue;

use crate::InFlightState;
use crate::batch::{join_rows, split_rows};
use crate::details::RequestDetails;
use crate::gateway::{CallState, NestedCall, NestedReply, ReplySink};
use crate::limits::{STEP_CALLS_MAX, STEP_REQUESTS_MAX};
use crate::stepped::StepCaller;
use crate::stepped::progress::Progress;
use base::error::Error;
use base::tensor::Tensor;
use steps::list::{ModelCall, PendingCall};

/// The longest time until an instance notices that the client of a request that waits has left.
const DEPARTURE_CHECK: Duration = Duration::from_millis(100);

/// The requests of an instance that wait for other models.
pub(super) struct Calls {
    caller: StepCaller,
    /// The name of the instance.
    instance: Arc<str>,
    inbox: Arc<Inbox>,
    waker: Waker,
    waiting: HashMap<u64, WaitingRequest>,
    /// The number of the next request that waits.
    next: u64,
}

/// The items that other threads leave for an instance.
#[derive(Default)]
pub(super) struct Inbox {
    items: SegQueue<Item>,
    waker: AtomicWaker,
}

enum Item {
    /// The model between the steps has answered, and steps behind it run other models.
    Answer(Box<Progress>),
    /// The reply to a call, of these rows of this request.
    Reply { request: u64, share: usize, reply: NestedReply },
}

struct WaitingRequest {
    progress: Progress,
    shares: Shares,
    states: Vec<Arc<CallState>>,
}

/// One call of a step in shares of its rows.
pub(super) struct Shares {
    call: ModelCall,
    /// The rows of each; empty if all rows are one call.
    rows: Vec<u32>,
    /// The inputs of those that have not begun, with their places.
    unsent: VecDeque<(usize, Vec<Tensor>)>,
    outputs: Vec<Option<Vec<Option<Tensor>>>>,
    /// Those without a reply.
    left: usize,
}

impl Shares {
    /// Divides a call by its rows.
    ///
    /// # Errors
    /// `InvalidArgument` if the inputs have different numbers of rows.
    pub(super) fn new(pending: PendingCall<'_>) -> Result<Self, Error> {
        let PendingCall { call, inputs } = pending;
        let rows = match call.rows {
            Some(rows) => rows_of_shares(call, &inputs, rows)?,
            None => Vec::new(),
        };
        let parts = if rows.is_empty() { vec![inputs] } else { split_rows(&inputs, &rows)? };
        let (left, outputs) = (parts.len(), parts.iter().map(|_| None).collect());
        Ok(Self { call: call.clone(), rows, unsent: parts.into_iter().enumerate().collect(), outputs, left })
    }

    /// The outputs of the whole call.
    fn join(self) -> Result<Vec<Option<Tensor>>, Error> {
        let mut outputs = self.outputs.into_iter().flatten();
        if self.rows.is_empty() {
            return Ok(outputs.next().unwrap_or_default());
        }
        let whole: Option<Vec<Vec<Tensor>>> = outputs.map(|share| share.into_iter().collect()).collect();
        let joined = whole.and_then(|shares| join_rows(&shares, &self.rows));
        let joined = joined.ok_or_else(|| {
            let (model, rows) = (&self.call.model, self.call.rows.unwrap_or_default());
            Error::internal(format!(
                "the outputs of the model '{model}' for {rows} rows at a time do not fit together: each must have its rows \
                 first, and otherwise one shape; without \"rows\", one call has all of them"
            ))
        })?;
        Ok(joined.into_iter().map(Some).collect())
    }
}

/// The rows of each share, at most `rows_max`; empty for a single one.
fn rows_of_shares(call: &ModelCall, inputs: &[Tensor], rows_max: u32) -> Result<Vec<u32>, Error> {
    let rows_of = |tensor: &Tensor| tensor.shape.first().copied().unwrap_or(1);
    let mut named = call.inputs.iter().zip(inputs.iter().map(rows_of));
    let Some((first, rows)) = named.next() else { return Ok(Vec::new()) };
    if let Some((other, others)) = named.find(|(_, others)| *others != rows) {
        let text = format!("the inputs must have the same rows, but '{first}' has {rows} and '{other}' has {others}");
        return Err(Error::invalid(text));
    }
    let rows = u32::try_from(rows).map_err(|_| Error::invalid(format!("'{first}' has too many rows: {rows}")))?;
    if rows <= rows_max {
        return Ok(Vec::new());
    }
    let begins = (0..rows).step_by(usize::try_from(rows_max).unwrap_or(usize::MAX));
    Ok(begins.map(|begin| rows_max.min(rows - begin)).collect())
}

impl Calls {
    pub(super) fn new(caller: StepCaller, instance: &str) -> Self {
        let (inbox, waker) = (Arc::default(), Waker::noop().clone());
        Self { caller, instance: instance.into(), inbox, waker, waiting: HashMap::new(), next: 0 }
    }

    pub(super) const fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    pub(super) fn set_waker(&mut self, waker: Waker) {
        self.waker = waker;
    }

    /// Makes the calls of a step. The request waits for them.
    pub(super) fn begin(&mut self, progress: Progress, shares: Shares) {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, WaitingRequest { progress, shares, states: Vec::new() });
        (0..STEP_CALLS_MAX).for_each(|_| self.send(number));
    }

    /// Makes the next call of a request, if there is one.
    fn send(&mut self, number: u64) {
        let Self { caller, instance, inbox, waiting, .. } = self;
        let Some(WaitingRequest { progress, shares, states }) = waiting.get_mut(&number) else { return };
        let Some((share, inputs)) = shares.unsent.pop_front() else { return };
        let state = Arc::new(CallState::default());
        states.push(Arc::clone(&state));
        let call = &shares.call;
        caller.gateway.infer(NestedCall {
            model: call.model.clone(),
            version: call.version,
            inputs: call.inputs.iter().cloned().zip(inputs).collect(),
            outputs: call.outputs.clone(),
            is_decoupled: false,
            allows_no_rows: true,
            details: inherited(progress.details(), caller, instance),
            replies: Arc::new(ShareReplies { inbox: Arc::clone(inbox), request: number, share }),
            state,
        });
    }

    /// Returns the next request that goes on.
    pub(super) fn poll(&mut self) -> Option<Progress> {
        // First: an item that comes after the last look wakes the instance.
        self.inbox.waker.register(&self.waker);
        while let Some(item) = self.inbox.items.pop() {
            let resumed = match item {
                Item::Answer(progress) => Some(*progress),
                Item::Reply { request, share, reply } => self.handle_reply(request, share, reply),
            };
            if resumed.is_some() {
                return resumed;
            }
        }
        None
    }

    fn handle_reply(&mut self, number: u64, share: usize, reply: NestedReply) -> Option<Progress> {
        let waiting = self.waiting.get_mut(&number)?;
        let outputs = match reply.outputs {
            Ok(outputs) => outputs,
            Err(error) => {
                let WaitingRequest { progress, states, .. } = self.waiting.remove(&number)?;
                states.iter().for_each(|state| state.cancel());
                return progress.resume(Err(error));
            }
        };
        let mut outputs: HashMap<_, _> = outputs.into_iter().collect();
        let shares = &mut waiting.shares;
        let in_order = shares.call.outputs.iter().map(|name| outputs.remove(name)).collect();
        if let Some(place) = shares.outputs.get_mut(share).filter(|place| place.is_none()) {
            *place = Some(in_order);
            shares.left = shares.left.saturating_sub(1);
        }
        if shares.left > 0 {
            self.send(number);
            return None;
        }
        let WaitingRequest { progress, shares, .. } = self.waiting.remove(&number)?;
        progress.resume(shares.join())
    }

    /// The work in flight, with that of the engine between the steps. Calls whose clients have left are cancelled: their
    /// replies still come.
    pub(super) fn state_beside(&self, engine: InFlightState) -> InFlightState {
        let waiting = self.waiting.len().saturating_add(self.inbox.items.len());
        if waiting == 0 {
            return engine;
        }
        let departed = self.waiting.values().filter(|waiting| waiting.progress.has_left());
        departed.flat_map(|waiting| &waiting.states).for_each(|state| state.cancel());
        InFlightState {
            batches: engine.batches.saturating_add(waiting),
            has_room: engine.has_room && waiting < STEP_REQUESTS_MAX,
            look_again: Some(engine.look_again.map_or(DEPARTURE_CHECK, |time| time.min(DEPARTURE_CHECK))),
            ..engine
        }
    }
}

/// The instance is gone: nothing waits for the replies.
impl Drop for Calls {
    fn drop(&mut self) {
        self.waiting.values().flat_map(|waiting| &waiting.states).for_each(|state| state.cancel());
    }
}

impl Inbox {
    /// Leaves an answer of the model between the steps.
    pub(super) fn push_answer(&self, progress: Progress) {
        self.push(Item::Answer(Box::new(progress)));
    }

    fn push(&self, item: Item) {
        self.items.push(item);
        self.waker.wake();
    }
}

/// Takes the reply to one share of a call.
struct ShareReplies {
    inbox: Arc<Inbox>,
    request: u64,
    share: usize,
}

impl ReplySink for ShareReplies {
    fn push(&self, reply: NestedReply) {
        // A model that is not decoupled answers once.
        if reply.is_final {
            self.inbox.push(Item::Reply { request: self.request, share: self.share, reply });
        }
    }
}

/// The details of a call: its callers, and the deadline, priority and trace of its request.
fn inherited(request: Option<&RequestDetails>, caller: &StepCaller, instance: &Arc<str>) -> RequestDetails {
    let parent = request.cloned().unwrap_or_default();
    let RequestDetails { deadline, priority, trace, active_trace, chain, .. } = parent;
    let chain = chain.with(Arc::clone(&caller.model), caller.version, Arc::clone(instance));
    RequestDetails { chain, deadline, priority, trace, active_trace, ..RequestDetails::default() }
}
