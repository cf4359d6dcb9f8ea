//! The sequences of a load: the sequence and the request to send next. Pure. The requests of a
//! sequence are ordered, so at most one is in flight. A failed request does not end its sequence.

use crate::loadgen::random::Random;
use crate::loadgen::schedule::ThreadShare;

/// The plan of sequences.
#[derive(Clone, Debug, PartialEq)]
pub struct SequencePlan {
    /// Concurrent sequences of all threads.
    pub count: usize,
    /// Requests in a sequence; `None` for the length of its stream.
    pub length: Option<usize>,
    /// Percent by which lengths vary.
    pub length_variation: f64,
    /// The first id.
    pub id_first: u64,
    /// The last id; the next is the first again.
    pub id_last: u64,
}

/// One request of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceStep {
    /// The sequence's slot, for [`LoadSequences::handle_done`].
    pub slot: usize,
    /// `sequence_id`.
    pub id: u64,
    /// The index of the stream of samples.
    pub stream: usize,
    /// The index of the sample in the stream, which may be beyond its end: samples start again.
    pub index: usize,
    /// `sequence_start`.
    pub is_start: bool,
    /// `sequence_end`.
    pub is_end: bool,
}

/// The sequences of one thread.
#[derive(Clone, Debug)]
pub struct LoadSequences {
    plan: SequencePlan,
    share: ThreadShare,
    /// Number of samples in each stream.
    stream_lengths: Vec<usize>,
    /// One sequence in each slot.
    active: Vec<ActiveSequence>,
    /// Sequences made so far.
    begun: u64,
    /// The slot to look at next, so that sequences take turns.
    cursor: usize,
    random: Random,
}

#[derive(Clone, Copy, Debug)]
struct ActiveSequence {
    id: u64,
    stream: usize,
    length: usize,
    sent: usize,
    is_in_flight: bool,
}

impl LoadSequences {
    /// The sequences of one thread, `count` at a time, over streams of the given lengths.
    pub fn new(plan: SequencePlan, count: usize, stream_lengths: Vec<usize>, share: ThreadShare, seed: u64) -> Self {
        let random = Random::new(seed ^ 0x05e9_0e9c);
        let mut sequences = Self { plan, share, stream_lengths, active: Vec::new(), begun: 0, cursor: 0, random };
        for _ in 0..count {
            let fresh = sequences.begin();
            sequences.active.push(fresh);
        }
        sequences
    }

    /// The next request, of a sequence without one in flight. The sequences take turns.
    pub fn poll_step(&mut self) -> Option<SequenceStep> {
        let slot = self.find_idle(|_| true)?;
        let active = self.active.get_mut(slot)?;
        let is_end = active.sent + 1 >= active.length;
        Some(active.take_step(slot, is_end))
    }

    /// The last request of a sequence that has started and has no request in flight. At the end of a load: otherwise its
    /// sequences would stay open in the server.
    pub fn poll_final_step(&mut self) -> Option<SequenceStep> {
        let slot = self.find_idle(|active| active.sent > 0)?;
        Some(self.active.get_mut(slot)?.take_step(slot, true))
    }

    /// The request of a sequence has ended, by an answer or a failure. If it was the last one, a new sequence takes the slot.
    pub fn handle_done(&mut self, slot: usize) {
        let Some(active) = self.active.get_mut(slot) else { return };
        active.is_in_flight = false;
        if active.sent >= active.length {
            let fresh = self.begin();
            if let Some(active) = self.active.get_mut(slot) {
                *active = fresh;
            }
        }
    }

    fn find_idle(&mut self, is_wanted: impl Fn(&ActiveSequence) -> bool) -> Option<usize> {
        let count = self.active.len();
        let mut slots = (0..count).map(|offset| (self.cursor + offset) % count);
        let slot = slots
            .find(|slot| self.active.get(*slot).is_some_and(|active| !active.is_in_flight && is_wanted(active)))?;
        self.cursor = slot + 1;
        Some(slot)
    }

    /// Makes the next sequence. Numbers are dealt round robin among the threads, so no two threads share an id.
    fn begin(&mut self) -> ActiveSequence {
        let number = self.begun * self.share.count.max(1) as u64 + self.share.index as u64;
        self.begun += 1;
        let ids = self.plan.id_last.saturating_sub(self.plan.id_first).saturating_add(1);
        let streams = self.stream_lengths.len().max(1);
        let stream = usize::try_from(number % streams as u64).unwrap_or(0);
        let usual = self.plan.length.or_else(|| self.stream_lengths.get(stream).copied()).unwrap_or(1);
        let spread = self.plan.length_variation / 100.0 * usual as f64;
        let length = (2.0 * self.random.next_unit() - 1.0).mul_add(spread, usual as f64).round().max(1.0) as usize;
        ActiveSequence { id: self.plan.id_first + number % ids, stream, length, sent: 0, is_in_flight: false }
    }
}

impl ActiveSequence {
    const fn take_step(&mut self, slot: usize, is_end: bool) -> SequenceStep {
        let step =
            SequenceStep { slot, id: self.id, stream: self.stream, index: self.sent, is_start: self.sent == 0, is_end };
        self.sent += 1;
        self.is_in_flight = true;
        if is_end {
            self.length = self.sent;
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: ThreadShare = ThreadShare { index: 0, count: 1 };

    fn plan(length: Option<usize>, variation: f64) -> SequencePlan {
        SequencePlan { count: 2, length, length_variation: variation, id_first: 10, id_last: 12 }
    }

    /// `id stream.index flags` of a step.
    fn show(step: Option<SequenceStep>) -> String {
        step.map_or("-".to_owned(), |step| {
            let flags = [(step.is_start, "start"), (step.is_end, "end")];
            let flags: Vec<_> = flags.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
            format!("{} {}.{} {}", step.id, step.stream, step.index, flags.join("+"))
        })
    }

    #[test]
    fn sequences_take_turns_with_one_request_in_flight_each() {
        let mut sequences = LoadSequences::new(plan(Some(3), 0.0), 2, vec![5, 5], ALONE, 1);
        assert_eq!(show(sequences.poll_step()), "10 0.0 start");
        assert_eq!(show(sequences.poll_step()), "11 1.0 start");
        assert_eq!(show(sequences.poll_step()), "-", "both wait for their answers");
        sequences.handle_done(1);
        assert_eq!(show(sequences.poll_step()), "11 1.1 ");
        sequences.handle_done(0);
        sequences.handle_done(1);
        assert_eq!(show(sequences.poll_step()), "10 0.1 ");
        assert_eq!(show(sequences.poll_step()), "11 1.2 end");
        sequences.handle_done(1);
        assert_eq!(show(sequences.poll_step()), "12 0.0 start", "the next id and the next stream");
    }

    #[test]
    fn ids_begin_again_and_a_length_of_one_both_starts_and_ends() {
        let mut sequences = LoadSequences::new(plan(None, 0.0), 1, vec![1], ALONE, 1);
        let ids: Vec<_> = (0..4)
            .map(|_| {
                let text = show(sequences.poll_step());
                sequences.handle_done(0);
                text
            })
            .collect();
        assert_eq!(ids, ["10 0.0 start+end", "11 0.0 start+end", "12 0.0 start+end", "10 0.0 start+end"]);
    }

    #[test]
    fn threads_never_share_an_id() {
        let mut wide = plan(Some(1), 0.0);
        wide.id_last = 1000;
        for index in 0..2 {
            let mut sequences = LoadSequences::new(wide.clone(), 1, vec![1], ThreadShare { index, count: 2 }, 1);
            for round in 0..3 {
                let id = sequences.poll_step().unwrap().id;
                assert_eq!(id, 10 + round * 2 + index as u64);
                sequences.handle_done(0);
            }
        }
    }

    #[test]
    fn what_was_begun_is_closed_and_nothing_else() {
        let mut sequences = LoadSequences::new(plan(Some(9), 0.0), 2, vec![9], ALONE, 1);
        let first = sequences.poll_step().unwrap();
        assert_eq!(show(sequences.poll_final_step()), "-", "one is in flight, the other was not begun");
        sequences.handle_done(first.slot);
        assert_eq!(show(sequences.poll_final_step()), "10 0.1 end");
        sequences.handle_done(first.slot);
        assert_eq!(show(sequences.poll_final_step()), "-");
    }

    #[test]
    fn lengths_vary_by_so_many_percent_and_no_more() {
        let mut sequences = LoadSequences::new(plan(Some(100), 20.0), 1, vec![1], ALONE, 3);
        let lengths: Vec<usize> = (0..500).map(|_| sequences.begin().length).collect();
        assert!(lengths.iter().all(|length| (80..=120).contains(length)));
        assert!(lengths.contains(&80) || lengths.contains(&81), "{lengths:?}");
        assert!(lengths.contains(&120) || lengths.contains(&119));
    }
}
