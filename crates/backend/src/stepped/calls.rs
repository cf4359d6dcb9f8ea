//! The calls of other models that the steps of one instance make ([`StepCall`](steps::list::StepCall)). A request whose step makes one waits
//! here; replies come from any thread, into an inbox that the instance's thread empties. A call has all rows, or a few of
//! them: then it is several at the same time, at most [`STEP_CALLS_MAX`] for a request, whose outputs are joined.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use crossbeam_queue::SegQueue;

use crate::InFlightState;
use crate::details::RequestDetails;
use crate::gateway::{CallState, NestedCall, NestedReply, ReplySink};
use crate::limits::{STEP_CALLS_MAX, STEP_REQUESTS_MAX};
use crate::stepped::StepCaller;
use crate::stepped::progress::{Progress, ResumeAnswer};
use crate::stepped::shares::Shares;

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
struct Inbox {
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

impl Calls {
    pub(super) fn new(caller: StepCaller, instance: &str) -> Self {
        let (inbox, waker) = (Arc::default(), Waker::noop().clone());
        Self { caller, instance: instance.into(), inbox, waker, waiting: HashMap::new(), next: 0 }
    }

    /// Takes answers of the model between the steps, for steps behind it that run other models.
    pub(super) fn resume_answer(&self) -> ResumeAnswer {
        let inbox = Arc::clone(&self.inbox);
        Arc::new(move |progress| inbox.push(Item::Answer(Box::new(progress))))
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
