//! Exemplars of OpenMetrics: for each bucket of a histogram the last traced request in it. The shard that owns the
//! histogram writes, any thread reads, without a lock.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// A traced request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// Its trace.
    pub trace_id: u128,
    /// Its span.
    pub span_id: u64,
    /// The time at which it ended, in milliseconds since the Unix epoch.
    pub epoch_millis: u64,
}

/// The exemplar of one bucket. A sequence lock: the version is odd while the words are written, and 0 before the first.
#[derive(Debug, Default)]
pub(super) struct ExemplarCell {
    version: AtomicU64,
    words: [AtomicU64; 5],
}

impl ExemplarCell {
    /// Replaces the exemplar. Only the shard that owns the cell may call this.
    pub(super) fn set(&self, exemplar: &Exemplar, nanos: u64) {
        let Exemplar { trace_id, span_id, epoch_millis } = *exemplar;
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees one of the words also sees the odd version.
        fence(Ordering::Release);
        let half = |bits: u32| u64::try_from((trace_id >> bits) & u128::from(u64::MAX)).unwrap_or_default();
        for (word, value) in self.words.iter().zip([half(64), half(0), span_id, epoch_millis, nanos]) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns the exemplar and its value in nanoseconds. `None` before the first, and while it is being replaced.
    pub(super) fn read(&self) -> Option<(Exemplar, u64)> {
        let version = self.version.load(Ordering::Acquire);
        let [high, low, span_id, epoch_millis, nanos] = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version != 0 && version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        let trace_id = u128::from(high) << 64 | u128::from(low);
        is_whole.then_some((Exemplar { trace_id, span_id, epoch_millis }, nanos))
    }
}

/// Appends an exemplar to the line of a bucket (OpenMetrics 1.0, "Exemplars"); the value is in microseconds.
pub(super) fn encode(out: &mut String, exemplar: &Exemplar, nanos: u64) {
    let Exemplar { trace_id, span_id, epoch_millis } = exemplar;
    let (value, at) = (Duration::from_nanos(nanos).as_secs_f64(), Duration::from_millis(*epoch_millis));
    let _ = write!(out, " # {{trace_id=\"{trace_id:032x}\",span_id=\"{span_id:016x}\"}} {value:.9}");
    let _ = write!(out, " {}.{:03}", at.as_secs(), at.subsec_millis());
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_cell_has_the_last_exemplar_and_none_before_the_first() {
        let cell = ExemplarCell::default();
        assert_eq!(cell.read(), None);
        let exemplar = |id| Exemplar { trace_id: 5 << 64 | u128::from(id), span_id: id, epoch_millis: 1_500 };
        cell.set(&exemplar(1), 10);
        cell.set(&exemplar(2), 2_500);
        assert_eq!(cell.read(), Some((exemplar(2), 2_500)));
        let mut line = String::from("x 1");
        let (last, nanos) = cell.read().unwrap();
        encode(&mut line, &last, nanos);
        let ids = "trace_id=\"00000000000000050000000000000002\",span_id=\"0000000000000002\"";
        assert_eq!(line, format!("x 1 # {{{ids}}} 0.000002500 1.500"));
    }

    #[test]
    fn a_reader_never_sees_parts_of_two_exemplars() {
        let (cell, has_ended) = (ExemplarCell::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for id in 1..200_000 {
                    let exemplar =
                        Exemplar { trace_id: u128::from(id) << 64 | u128::from(id), span_id: id, epoch_millis: id };
                    cell.set(&exemplar, id);
                }
                has_ended.store(true, Ordering::Release);
            });
            while !has_ended.load(Ordering::Acquire) {
                let Some((Exemplar { trace_id, span_id, epoch_millis }, nanos)) = cell.read() else { continue };
                assert_eq!(trace_id, u128::from(nanos) << 64 | u128::from(nanos));
                assert_eq!((span_id, epoch_millis), (nanos, nanos));
            }
        });
    }
}
