//! Forming batches: a pure state machine between the queue of one model version and its instances.
//! It is told what arrives and what time it is; an instance that becomes idle asks it for a batch.
//! It knows no tensors, reads no clock and takes no lock. Bounds: `Policy::entries_max`.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::limits::QUEUE_REQUESTS_MAX;
use crate::time::Instant;

/// How one model version batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rows in one batch; 0 or 1 where every request runs alone.
    pub rows_max: u32,
    /// Whether entries may share a batch (`dynamic_batching`).
    pub is_batched: bool,
    /// Entries that may wait.
    pub entries_max: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self { rows_max: 0, is_batched: false, entries_max: QUEUE_REQUESTS_MAX }
    }
}

/// What two entries must share to be in one batch: the shapes of their inputs but for the batch
/// axis. Empty where the model's shapes are fixed.
pub type ShapeKey = SmallVec<[i64; 4]>;

/// One request in the queue.
#[derive(Clone, Debug)]
pub struct Entry<T> {
    /// The caller's name for it.
    pub token: T,
    /// Its rows, at least 1.
    pub rows: u32,
    /// What it may be batched with.
    pub shape_key: ShapeKey,
    /// When it arrived.
    pub queued_at: Instant,
}

/// The queue of one model version and the rule by which batches leave it.
#[derive(Debug)]
pub struct Scheduler<T> {
    policy: Policy,
    entries: VecDeque<Entry<T>>,
}

impl<T> Scheduler<T> {
    /// An empty queue.
    pub const fn new(policy: Policy) -> Self {
        Self { policy, entries: VecDeque::new() }
    }

    /// A request arrived. Entries come in arrival order. Gives the entry back where the queue is
    /// full.
    pub fn handle_request(&mut self, entry: Entry<T>, _now: Instant) -> Result<(), Entry<T>> {
        if self.entries.len() >= self.policy.entries_max {
            return Err(entry);
        }
        self.entries.push_back(entry);
        Ok(())
    }

    /// An instance is idle: the batch it should run, in arrival order, or `None` when nothing
    /// waits. `claim` takes an entry for the batch, once; where it refuses, the entry has gone
    /// (its client left, its deadline passed) and is forgotten.
    pub fn poll_batch(&mut self, _now: Instant, mut claim: impl FnMut(&T) -> bool) -> Option<Vec<T>> {
        let mut batch = Vec::new();
        let mut rows = 0_u32;
        let mut shape_key = ShapeKey::new();
        while let Some(entry) = self.entries.front() {
            let joins = batch.is_empty() || (self.policy.is_batched && entry.shape_key == shape_key);
            let fits = batch.is_empty() || rows.saturating_add(entry.rows) <= self.policy.rows_max;
            if !(joins && fits) {
                break;
            }
            let Some(entry) = self.entries.pop_front() else { break };
            if claim(&entry.token) {
                rows = rows.saturating_add(entry.rows);
                shape_key = entry.shape_key;
                batch.push(entry.token);
            }
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// When [`Self::poll_batch`] must be called even if nothing arrives: never, while no delay is
    /// configured, since an idle instance takes whatever waits.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Entries that wait, those that have gone included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// Runs a script: `name rows [shape]` queues an entry, `-name` lets it go, `poll` asks for a
    /// batch. Answers one line for each poll.
    fn script(policy: Policy, lines: &str) -> String {
        let mut scheduler = Scheduler::new(policy);
        let (mut gone, mut out) = (Vec::new(), String::new());
        for (tick, line) in lines.lines().map(str::trim).enumerate() {
            let now = Instant::from_micros(tick as u64);
            let words: Vec<&str> = line.split_whitespace().collect();
            if line == "poll" {
                let batch = scheduler.poll_batch(now, |token: &String| !gone.contains(token));
                writeln!(out, "{}", batch.map_or_else(|| "-".to_owned(), |batch| batch.join("+"))).unwrap();
            } else if let Some(name) = line.strip_prefix('-') {
                gone.push(name.to_owned());
            } else {
                let shape_key = words.get(2).map(|size| size.parse().unwrap()).into_iter().collect();
                let entry =
                    Entry { token: words[0].to_owned(), rows: words[1].parse().unwrap(), shape_key, queued_at: now };
                if let Err(entry) = scheduler.handle_request(entry, now) {
                    writeln!(out, "{} refused", entry.token).unwrap();
                }
            }
        }
        out
    }

    fn batched(rows_max: u32) -> Policy {
        Policy { rows_max, is_batched: true, ..Policy::default() }
    }

    #[test]
    fn an_idle_instance_takes_what_waits_up_to_the_largest_batch() {
        let got = script(batched(8), "poll\n a 4\n b 3\n c 2\n d 1\n poll\n poll\n poll");
        assert_eq!(got, "-\na+b\nc+d\n-\n");
    }

    #[test]
    fn without_dynamic_batching_requests_run_alone_in_order() {
        let policy = Policy { rows_max: 8, ..Policy::default() };
        assert_eq!(script(policy, "a 1\n b 1\n poll\n poll\n poll"), "a\nb\n-\n");
    }

    #[test]
    fn a_model_without_a_batch_axis_runs_one_request_at_a_time() {
        assert_eq!(script(Policy::default(), "a 1\n b 1\n poll\n poll"), "a\nb\n");
    }

    #[test]
    fn shapes_that_differ_never_share_a_batch_and_order_is_kept() {
        let got = script(batched(8), "a 1 16\n b 1 16\n c 1 24\n d 1 16\n poll\n poll\n poll");
        assert_eq!(got, "a+b\nc\nd\n");
    }

    #[test]
    fn an_entry_that_has_gone_takes_no_place_in_a_batch() {
        let got = script(batched(2), "a 1\n b 1\n c 1\n -a\n -b\n poll\n poll");
        assert_eq!(got, "c\n-\n");
        assert_eq!(script(batched(4), "a 1 9\n b 1 16\n c 1 16\n -a\n poll"), "b+c\n");
    }

    #[test]
    fn an_entry_larger_than_the_largest_batch_runs_alone() {
        assert_eq!(script(batched(2), "a 1\n b 5\n c 1\n poll\n poll\n poll"), "a\nb\nc\n");
    }

    #[test]
    fn a_full_queue_gives_the_entry_back() {
        let policy = Policy { entries_max: 2, ..batched(8) };
        assert_eq!(script(policy, "a 1\n b 1\n c 1\n poll\n d 1\n poll"), "c refused\na+b\nd\n");
    }
}
