//! The events of a simulation, for a person: its last lines are printed if it fails.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write as _;

use crate::runtime::simulation::current;

/// Lines that are kept.
const LINES_MAX: usize = 40;

thread_local! {
    /// The last lines of the last simulation of this thread.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The last lines.
#[derive(Default)]
pub(super) struct Timeline {
    lines: VecDeque<String>,
    /// The digest of all lines: two runs of the same seed have the same.
    digest: u64,
}

/// Adds an event, with the time.
pub fn note(text: impl FnOnce() -> String) {
    let Some(simulation) = current() else { return };
    let line = format!("{:>12.6} {}", simulation.now.get().as_nanos() as f64 / 1e9, text());
    let timeline = &mut *simulation.timeline.borrow_mut();
    timeline.digest = line.bytes().fold(timeline.digest, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    if timeline.lines.len() == LINES_MAX {
        timeline.lines.pop_front();
    }
    timeline.lines.push_back(line);
}

/// The last lines of the last simulation of this thread, and a digest of all.
pub fn recent() -> String {
    LAST.with_borrow(Clone::clone)
}

pub(super) fn keep(timeline: Timeline) {
    let mut text = String::new();
    for line in &timeline.lines {
        text.push_str(line);
        text.push('\n');
    }
    let _ = write!(text, "{:>12} of all lines: {:016x}", "digest", timeline.digest);
    LAST.set(text);
}
