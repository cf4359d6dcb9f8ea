//! The batches that a process has and has not answered: which of them run, which were sent ahead, and whether it takes
//! another. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::PYTHON_COROUTINES_DEFAULT;
use crate::python::sent_request::SentRequest;
use base::time::Instant;

/// A second batch is sent ahead only while batches take less: after a long one it would wait while
/// another instance might run it, or more requests could still join it.
const SEND_AHEAD_RUN_MAX: Duration = Duration::from_millis(2);
/// Batches that compute in turn that the process has at once: one that it runs and one that it finds when it comes back.
const BATCHES_SENT_MAX: usize = 2;

/// The batches that a process runs at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RunOrder {
    /// This many, in threads.
    AtOnce(usize),
    /// One computes, and others await something: this many in all. The process says when a batch awaits.
    Awaiting(usize),
    /// One after the other.
    #[default]
    InTurn,
}

impl RunOrder {
    /// The order of a Python model whose `execute` is a coroutine or a function, and that says how many batches may run
    /// (`execute_concurrency`).
    pub(super) const fn new(concurrency: Option<usize>, is_async: bool, is_decoupled: bool) -> Self {
        match (is_async, concurrency) {
            // Its coroutines are not waited for: the next batch begins at once.
            (true, _) if is_decoupled => Self::InTurn,
            (true, None) => Self::Awaiting(PYTHON_COROUTINES_DEFAULT),
            (_, None | Some(..=1)) => Self::InTurn,
            (true, Some(most)) => Self::Awaiting(most),
            (false, Some(most)) => Self::AtOnce(most),
        }
    }

    /// The batches that may run.
    pub(super) const fn bound(self) -> usize {
        match self {
            Self::AtOnce(most) | Self::Awaiting(most) => most,
            Self::InTurn => 1,
        }
    }

    /// Those of them that do not await.
    const fn computing_max(self) -> usize {
        match self {
            Self::AtOnce(most) => most,
            Self::Awaiting(_) | Self::InTurn => 1,
        }
    }
}

/// The batches of a process, in the order in which they were sent. They begin in this order.
pub(super) struct Flights {
    batches: VecDeque<BatchInFlight>,
    order: RunOrder,
    /// Run time of recent batches.
    run_time: Duration,
}

/// A batch that the process has.
pub(super) struct BatchInFlight {
    pub(super) number: u64,
    /// The number of its first request; the others follow.
    pub(super) first: u64,
    slot: u32,
    pub(super) rows: u32,
    pub(super) requests: Vec<SentRequest>,
    /// The instant at which the process began it, as far as the server can tell.
    pub(super) began: Instant,
    /// No other batch ran at the same time.
    pub(super) is_alone: bool,
    /// It has begun, and awaits something.
    is_awaiting: bool,
    /// An earlier process ended before it began this batch. Another such end fails it: the batch
    /// may be the cause.
    pub(super) is_resumed: bool,
}

impl BatchInFlight {
    /// A batch that is sent now. `first` is the number of its first request.
    pub(super) fn new(
        number: u64,
        first: u64,
        (slot, rows): (u32, u32),
        requests: Vec<SentRequest>,
        now: Instant,
    ) -> Self {
        let (is_alone, is_awaiting, is_resumed) = (true, false, false);
        Self { number, first, slot, rows, requests, began: now, is_alone, is_awaiting, is_resumed }
    }

    /// Its request of this number.
    pub(super) fn get(&self, key: u64) -> Option<&SentRequest> {
        self.requests.get(usize::try_from(key.checked_sub(self.first)?).ok()?)
    }
}

impl Default for Flights {
    fn default() -> Self {
        // Nothing is sent ahead of a run whose time is not known: another instance may be idle.
        Self { batches: VecDeque::new(), order: RunOrder::InTurn, run_time: SEND_AHEAD_RUN_MAX }
    }
}

impl Flights {
    /// Sets the order, before the first batch.
    pub(super) fn set_order(&mut self, order: RunOrder) {
        self.order = order;
    }

    /// A batch was sent.
    pub(super) fn push(&mut self, batch: BatchInFlight) {
        self.batches.push_back(batch);
        self.mark_shared();
    }

    /// A batch is one that the last process had not begun.
    pub(super) fn set_resumed(&mut self, number: u64) {
        self.batches.iter_mut().filter(|batch| batch.number == number).for_each(|batch| batch.is_resumed = true);
    }

    /// The slot of the inputs of a batch that runs; `None` if it does not run.
    pub(super) fn running_slot(&self, number: u64) -> Option<u32> {
        self.running().find(|batch| batch.number == number).map(|batch| batch.slot)
    }

    /// Takes out a batch that has ended. The next one begins.
    pub(super) fn take(&mut self, number: u64, now: Instant) -> Option<BatchInFlight> {
        let index = self.batches.iter().position(|batch| batch.number == number)?;
        let batch = self.batches.remove(index)?;
        self.run_time = (self.run_time * 7 + now.since(batch.began)) / 8;
        if !batch.is_awaiting {
            self.handle_place(now);
        }
        Some(batch)
    }

    /// The batch that computes awaits something: the next one begins. Returns false if it is another.
    pub(super) fn handle_await(&mut self, number: u64, now: Instant) -> bool {
        let is_known = matches!(self.order, RunOrder::Awaiting(_));
        let computing = self.batches.iter_mut().find(|batch| !batch.is_awaiting);
        let Some(batch) = computing.filter(|batch| is_known && batch.number == number) else { return false };
        batch.is_awaiting = true;
        self.handle_place(now);
        true
    }

    /// One batch computes no longer: the first that was sent ahead begins.
    fn handle_place(&mut self, now: Instant) {
        let last = self.order.computing_max() - 1;
        if let Some(next) = self.batches.iter_mut().filter(|batch| !batch.is_awaiting).nth(last) {
            next.began = now;
        }
        self.mark_shared();
    }

    /// A batch may have begun: if others run, none of them has run alone.
    fn mark_shared(&mut self) {
        if self.running().nth(1).is_some() {
            let mut left = self.order.computing_max();
            self.batches.iter_mut().filter(|batch| begins(batch, &mut left)).for_each(|batch| batch.is_alone = false);
        }
    }

    /// Returns true if the process takes another batch.
    pub(super) fn has_room(&self) -> bool {
        let computing = self.batches.iter().filter(|batch| !batch.is_awaiting).count();
        if computing < self.order.computing_max() {
            return self.batches.len() < self.order.bound();
        }
        let most = BATCHES_SENT_MAX.max(self.order.bound());
        let is_in_turn = self.order.computing_max() == 1;
        is_in_turn && self.run_time < SEND_AHEAD_RUN_MAX && computing < BATCHES_SENT_MAX && self.batches.len() < most
    }

    /// The batches that run at the same time once the process has another.
    pub(super) fn at_once(&self) -> usize {
        let awaiting = self.batches.iter().filter(|batch| batch.is_awaiting).count();
        awaiting + (self.batches.len() - awaiting + 1).min(self.order.computing_max())
    }

    /// The batches that run.
    pub(super) fn running(&self) -> impl Iterator<Item = &BatchInFlight> {
        let mut left = self.order.computing_max();
        self.batches.iter().filter(move |batch| begins(batch, &mut left))
    }

    /// The batch that runs for longest.
    pub(super) fn oldest(&self) -> Option<&BatchInFlight> {
        self.running().min_by_key(|batch| batch.began)
    }

    /// The requests of the batches that were sent ahead.
    pub(super) fn requests_ahead(&self) -> usize {
        let count = |batch: &BatchInFlight| batch.requests.len();
        self.batches.iter().map(count).sum::<usize>() - self.running().map(count).sum::<usize>()
    }

    /// The batch of a request.
    pub(super) fn batch_of(&self, key: u64) -> Option<&BatchInFlight> {
        self.batches.iter().find(|batch| batch.get(key).is_some())
    }

    /// A request.
    pub(super) fn find(&mut self, key: u64) -> Option<&mut SentRequest> {
        let batch = self.batches.iter_mut().find(|batch| batch.get(key).is_some())?;
        batch.requests.get_mut(usize::try_from(key - batch.first).ok()?)
    }

    /// All batches.
    pub(super) fn iter(&self) -> impl Iterator<Item = &BatchInFlight> {
        self.batches.iter()
    }

    /// Takes all batches out.
    pub(super) fn take_all(&mut self) -> VecDeque<BatchInFlight> {
        std::mem::take(&mut self.batches)
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }
}

/// Returns true if a batch runs: it awaits, or has one of the places of those that compute. Asked for each in order.
fn begins(batch: &BatchInFlight, left: &mut usize) -> bool {
    let has_place = batch.is_awaiting || *left > 0;
    *left -= usize::from(has_place && !batch.is_awaiting);
    has_place
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Instant {
        Instant::from_micros(millis * 1000)
    }

    /// Runs a script of steps, each a millisecond and what happens then: `+` a batch is sent, `~N` batch N awaits, `-N` it
    /// ends. Writes after each step which batches run (`*` for alone so far, with the time of their begin), which were sent
    /// ahead, and whether there is room.
    fn script(order: RunOrder, run_time: u64, steps: &str) -> String {
        let mut flights = Flights { run_time: Duration::from_millis(run_time), ..Flights::default() };
        flights.set_order(order);
        let (mut out, mut next) = (String::new(), 1);
        for step in steps.split(", ") {
            let (millis, event) = step.split_once(' ').unwrap();
            let now = at(millis.parse().unwrap());
            let number = event[1..].parse().unwrap_or(next);
            let is_known = match &event[..1] {
                "+" => {
                    flights.push(BatchInFlight::new(next, next * 10, (7, 1), Vec::new(), now));
                    next += 1;
                    true
                }
                "~" => flights.handle_await(number, now),
                _ => flights.running_slot(number) == Some(7) && flights.take(number, now).is_some(),
            };
            if !is_known {
                out += &format!("{step}: unknown; ");
                continue;
            }
            let running: Vec<_> = flights.running().map(|batch| batch.number).collect();
            let shown = flights.iter().map(|batch| match running.contains(&batch.number) {
                true => {
                    let mark = if batch.is_alone { "*" } else { "" };
                    format!(" {}{mark}@{}", batch.number, batch.began.since(at(0)).as_millis())
                }
                false => format!(" ({})", batch.number),
            });
            let room = if flights.has_room() { " room" } else { "" };
            out += &format!("{step}:{}{room}; ", shown.collect::<String>());
        }
        out
    }

    #[test]
    fn coroutines_overlap_by_themselves_and_functions_where_the_model_says_so() {
        let orders = |is_async, is_decoupled| {
            [None, Some(1), Some(8)].map(|concurrency| RunOrder::new(concurrency, is_async, is_decoupled))
        };
        let default = RunOrder::Awaiting(PYTHON_COROUTINES_DEFAULT);
        assert_eq!(orders(true, false), [default, RunOrder::InTurn, RunOrder::Awaiting(8)]);
        assert_eq!(orders(true, true), [RunOrder::InTurn; 3]);
        assert_eq!(orders(false, false), [RunOrder::InTurn, RunOrder::InTurn, RunOrder::AtOnce(8)]);
        assert_eq!(orders(false, true), orders(false, false));
        assert_eq!(orders(true, false).map(RunOrder::bound), [PYTHON_COROUTINES_DEFAULT, 1, 8]);
    }

    #[test]
    fn batches_in_turn_have_one_ahead_of_them_while_they_are_short() {
        let got = script(RunOrder::InTurn, 1, "0 +, 1 +, 2 -2, 3 -1, 4 -2, 5 ~1");
        let want = "0 +: 1*@0 room; 1 +: 1*@0 (2); 2 -2: unknown; 3 -1: 2*@3 room; 4 -2: room; 5 ~1: unknown; ";
        assert_eq!(got, want);
        assert_eq!(script(RunOrder::InTurn, 9, "0 +, 1 -1"), "0 +: 1*@0; 1 -1: room; ");
    }

    #[test]
    fn a_batch_that_awaits_makes_room_for_the_next_up_to_the_bound() {
        let got =
            script(RunOrder::Awaiting(3), 9, "0 +, 1 ~1, 2 +, 3 ~1, 4 ~2, 5 +, 6 ~3, 7 -2, 8 +, 9 -4, 10 -1, 11 -3");
        let want = "0 +: 1*@0; 1 ~1: 1*@0 room; 2 +: 1@0 2@2; 3 ~1: unknown; 4 ~2: 1@0 2@2 room; 5 +: 1@0 2@2 3@5; \
                    6 ~3: 1@0 2@2 3@5; 7 -2: 1@0 3@5 room; 8 +: 1@0 3@5 4@8; 9 -4: 1@0 3@5 room; 10 -1: 3@5 room; \
                    11 -3: room; ";
        assert_eq!(got, want);
        // One is sent ahead of short ones, and begins when the one before it awaits or ends.
        let got = script(RunOrder::Awaiting(3), 0, "0 +, 0 +, 0 -2, 0 ~2, 1 ~1, 1 ~2, 1 +, 1 ~3");
        let want = "0 +: 1*@0 room; 0 +: 1*@0 (2); 0 -2: unknown; 0 ~2: unknown; 1 ~1: 1@0 2@1 room; \
                    1 ~2: 1@0 2@1 room; 1 +: 1@0 2@1 3@1; 1 ~3: 1@0 2@1 3@1; ";
        assert_eq!(got, want);
    }

    #[test]
    fn batches_in_threads_run_at_once_and_end_in_any_order() {
        let got = script(RunOrder::AtOnce(2), 0, "0 +, 1 +, 2 ~1, 3 -2, 4 +, 5 -1, 6 -3, 7 +, 8 -9");
        let want = "0 +: 1*@0 room; 1 +: 1@0 2@1; 2 ~1: unknown; 3 -2: 1@0 room; 4 +: 1@0 3@4; 5 -1: 3@4 room; 6 -3: room; \
                    7 +: 4*@7 room; 8 -9: unknown; ";
        assert_eq!(got, want);
    }
}
