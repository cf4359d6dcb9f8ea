//! The requests of a run and their outcomes: each request has exactly one. Code that finds a broken
//! promise reports it here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::runtime::clock;
use crate::runtime::simulation::note;
use crate::shard::simulation::plan::{Deed, ScriptedRequest, Target};
use crate::time::Instant;

/// The outcome of a request for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// With the expected answer.
    Answered,
    /// With an error, by its HTTP or gRPC status.
    Refused(u16),
    /// Without an answer, as the protocol allows here: the client left, the connection was lost, or
    /// the server announced that it takes no further requests.
    Lost,
}

struct LedgerEntry {
    client: u16,
    ask: ScriptedRequest,
    /// The instant at which its last byte was on its way.
    sent_at: Option<Instant>,
    outcome: Option<RequestOutcome>,
}

/// The ledger of one run.
pub struct Ledger {
    is_calm: bool,
    entries: RefCell<BTreeMap<i32, LedgerEntry>>,
    broken: RefCell<Vec<String>>,
    pub counts: LedgerCounts,
}

/// Outcomes of inference requests.
#[derive(Debug, Default)]
pub struct LedgerCounts {
    pub answered: Cell<u64>,
    pub refused: Cell<u64>,
    pub lost: Cell<u64>,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct RunResult {
    /// The promises that were broken.
    pub broken: Vec<String>,
    /// Inference requests that were answered, refused and lost.
    pub counts: [u64; 3],
}

impl Ledger {
    pub fn new(is_calm: bool) -> Self {
        Self { is_calm, entries: RefCell::default(), broken: RefCell::default(), counts: LedgerCounts::default() }
    }

    /// A promise was broken.
    pub fn broke(&self, text: String) {
        note(|| format!("BROKEN: {text}"));
        self.broken.borrow_mut().push(text);
    }

    /// A client begins to send a request.
    pub fn open(&self, client: u16, ask: ScriptedRequest) {
        note(|| format!("c{client} asks {ask:?}"));
        self.entries.borrow_mut().insert(ask.nonce, LedgerEntry { client, ask, sent_at: None, outcome: None });
    }

    /// Its last byte is on its way.
    pub fn handle_sent(&self, nonce: i32) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(&nonce) {
            entry.sent_at = Some(clock::now());
        }
    }

    /// A request has ended; `echo` is the nonce in its answer.
    pub fn settle(&self, nonce: i32, outcome: RequestOutcome, echo: Option<i32>) {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(&nonce) else {
            drop(entries);
            return self.broke(format!("an answer to request {nonce}, which nobody sent"));
        };
        let (client, ask, before) = (entry.client, entry.ask, entry.outcome.replace(outcome));
        drop(entries);
        note(|| format!("c{client} request {nonce}: {outcome:?}"));
        if let Some(before) = before {
            self.broke(format!("request {nonce} of c{client} has two outcomes: {before:?} and {outcome:?}"));
        }
        self.count(&ask, outcome);
        match outcome {
            RequestOutcome::Answered if ask.target != Target::Live && echo != Some(nonce) => {
                self.broke(format!("request {nonce} of c{client} has the answer of {echo:?}"));
            }
            RequestOutcome::Answered if ask.target == Target::Missing || !may_succeed(&ask) => {
                self.broke(format!("request {nonce} of c{client} cannot succeed and did"));
            }
            RequestOutcome::Refused(_) | RequestOutcome::Lost if self.is_calm => {
                self.broke(format!("request {nonce} of c{client} failed, and nothing was wrong"));
            }
            RequestOutcome::Answered | RequestOutcome::Refused(_) | RequestOutcome::Lost => {}
        }
    }

    fn count(&self, ask: &ScriptedRequest, outcome: RequestOutcome) {
        let counter = match outcome {
            _ if ask.target == Target::Live => return,
            RequestOutcome::Answered => &self.counts.answered,
            RequestOutcome::Refused(_) => &self.counts.refused,
            RequestOutcome::Lost => &self.counts.lost,
        };
        counter.set(counter.get() + 1);
    }

    /// The time from a request's last byte, or from when its connection was accepted, until its
    /// answer began.
    pub fn age(&self, nonce: i32, accepted_at: Option<Instant>, began_at: Instant) -> Duration {
        let sent_at = self.entries.borrow().get(&nonce).and_then(|entry| entry.sent_at);
        sent_at.max(accepted_at).map_or(Duration::ZERO, |since| began_at.since(since))
    }

    /// The result, with the promises that were broken silently.
    pub fn close(&self) -> RunResult {
        let mut broken = self.broken.take();
        for (nonce, entry) in self.entries.borrow().iter().filter(|(_, entry)| entry.outcome.is_none()) {
            broken.push(format!("request {nonce} of c{} has no outcome", entry.client));
        }
        let LedgerCounts { answered, refused, lost } = &self.counts;
        RunResult { broken, counts: [answered, refused, lost].map(Cell::get) }
    }
}

/// Returns true if the model may answer such a request with its echo.
fn may_succeed(ask: &ScriptedRequest) -> bool {
    match ask.deed {
        Deed::Echo => true,
        Deed::Hang => ask.target != Target::Flight,
        Deed::Fail | Deed::Drop | Deed::Panic | Deed::WrongShape => ask.target == Target::Live,
    }
}
