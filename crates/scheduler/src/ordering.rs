//! Keeps responses in the order of their requests (`preserve_ordering`): an early response is held
//! until all requests before it have finished. Pure; used by the sender of responses. A request may
//! have any number of responses. Bounded by the number of held responses.

use std::collections::VecDeque;

/// The place of one request in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseTurn(u64);

/// Holds responses until it is their turn.
#[derive(Debug)]
pub struct Ordering<R> {
    /// One element per request from the first unfinished one on, in order.
    turns: VecDeque<HeldResponse<R>>,
    /// The turn of the front element.
    first: u64,
    /// Responses that are held.
    count: usize,
    responses_max: usize,
}

#[derive(Debug)]
struct HeldResponse<R> {
    responses: VecDeque<R>,
    is_finished: bool,
}

impl<R> Ordering<R> {
    /// Empty; holds at most `responses_max` responses.
    #[inline]
    pub const fn new(responses_max: usize) -> Self {
        Self { turns: VecDeque::new(), first: 0, count: 0, responses_max }
    }

    /// A request was queued: its turn comes after all before it.
    #[inline]
    pub fn handle_request(&mut self) -> ResponseTurn {
        self.turns.push_back(HeldResponse { responses: VecDeque::new(), is_finished: false });
        self.invariants();
        ResponseTurn(self.first + (self.turns.len() as u64 - 1))
    }

    /// A request has a response.
    ///
    /// # Errors
    /// The response, if too many are held or its request has finished already.
    pub fn handle_response(&mut self, turn: ResponseTurn, response: R) -> Result<(), R> {
        let is_full = self.count >= self.responses_max;
        match self.held(turn) {
            Some(held) if !held.is_finished && !is_full => held.responses.push_back(response),
            _ => return Err(response),
        }
        self.count += 1;
        self.invariants();
        Ok(())
    }

    /// A request has no further responses: it was answered or cancelled.
    #[inline]
    pub fn handle_finished(&mut self, turn: ResponseTurn) {
        if let Some(held) = self.held(turn) {
            held.is_finished = true;
        }
    }

    /// The next response to send.
    pub fn poll_response(&mut self) -> Option<R> {
        while let Some(held) = self.turns.front_mut() {
            if let Some(response) = held.responses.pop_front() {
                self.count -= 1;
                self.invariants();
                return Some(response);
            }
            if !held.is_finished {
                return None;
            }
            self.turns.pop_front();
            self.first += 1;
        }
        self.invariants();
        debug_assert_eq!(self.count, 0, "no turn is left, and no response");
        None
    }

    /// Responses that are held.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns true if no response is held.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn invariants(&self) {
        debug_assert!(self.count <= self.responses_max, "the bound on responses holds");
        debug_assert!(self.count == 0 || !self.turns.is_empty(), "a response belongs to a request");
        // Only some of them: there may be thousands.
        let some = self.turns.iter().take(INVARIANT_TURNS_MAX).map(|held| held.responses.len());
        debug_assert!(some.sum::<usize>() <= self.count, "each response that is held is counted");
    }

    fn held(&mut self, turn: ResponseTurn) -> Option<&mut HeldResponse<R>> {
        let index = usize::try_from(turn.0.checked_sub(self.first)?).ok()?;
        self.turns.get_mut(index)
    }
}

/// Turns whose responses a debug build recounts after each change.
const INVARIANT_TURNS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script: `a` queues a request, `a1` is its response, `a.` its end. Returns the
    /// responses sent after each step that sent any.
    fn script(responses_max: usize, steps: &str) -> String {
        let (mut ordering, mut turns, mut out) = (Ordering::new(responses_max), Vec::new(), Vec::new());
        for step in steps.split_whitespace() {
            let name = &step[..1];
            let turn = turns.iter().find(|(known, _)| *known == name).map(|(_, turn)| *turn);
            match &step[1..] {
                "" => turns.push((name, ordering.handle_request())),
                "." => ordering.handle_finished(turn.unwrap()),
                _ => {
                    if ordering.handle_response(turn.unwrap(), step).is_err() {
                        out.push(format!("{step} refused"));
                    }
                }
            }
            let sent: Vec<_> = std::iter::from_fn(|| ordering.poll_response()).collect();
            if !sent.is_empty() {
                out.push(format!("{step}: {}", sent.join(" ")));
            }
        }
        assert!(ordering.is_empty(), "{} are left", ordering.len());
        out.join("\n")
    }

    #[test]
    fn responses_leave_in_the_order_of_their_requests() {
        assert_eq!(script(9, "a b c c1 c. b1 b. a1 a."), "a1: a1\na.: b1 c1");
        assert_eq!(script(9, "a a1 a. b b1 b."), "a1: a1\nb1: b1");
    }

    #[test]
    fn several_responses_of_the_first_request_leave_at_once() {
        assert_eq!(script(9, "a b a1 b1 a2 b2 a. b3 b."), "a1: a1\na2: a2\na.: b1 b2\nb3: b3");
    }

    #[test]
    fn a_request_that_has_gone_holds_nobody_up() {
        assert_eq!(script(9, "a b c b1 b. c1 a. c."), "a.: b1 c1");
        assert_eq!(script(9, "a b b. a. c c1"), "c1: c1");
    }

    #[test]
    fn a_response_too_many_or_too_late_is_given_back() {
        assert_eq!(script(2, "a b b1 b2 b3 a. b4"), "b3 refused\na.: b1 b2\nb4: b4");
        assert_eq!(script(9, "a a1 a. a2 b b. b1"), "a1: a1\na2 refused\nb1 refused");
    }

    #[test]
    fn a_count_that_is_wrong_is_noticed_where_it_changes() {
        let check = |count: usize, want: &str| {
            let mut ordering = Ordering::new(2);
            let turn = ordering.handle_request();
            ordering.handle_response(turn, 1).unwrap();
            ordering.handle_response(turn, 2).unwrap();
            ordering.count = count;
            let told = crate::tests::tripped(|| {
                ordering.handle_request();
            });
            assert!(told.contains(want), "{told}, not {want}");
        };
        check(1, "each response that is held is counted");
        check(3, "the bound on responses holds");
    }
}
