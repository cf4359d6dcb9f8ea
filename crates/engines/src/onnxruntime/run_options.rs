//! The options of an instance's runs, which the thread that watches the time limit shares with it, to stop a run.

#![expect(unsafe_code, reason = "the crate shares no options that select outputs")]

use ort::session::{HasSelectedOutputs, RunOptions};

/// Options that select outputs and allocate none.
pub(super) struct SharedRunOptions(RunOptions<HasSelectedOutputs>);

// SAFETY: the crate withholds `Sync` because several runs could write to one output that was
// allocated before. Here none is allocated, and another thread only sets the flag, which the
// library reads between two operators.
unsafe impl Sync for SharedRunOptions {}

impl SharedRunOptions {
    /// Wraps options without allocated outputs ([`super::options::SessionOptions::run_options`]).
    pub(super) const fn new(options: RunOptions<HasSelectedOutputs>) -> Self {
        Self(options)
    }

    /// The options for a run of the instance.
    pub(super) const fn get(&self) -> &RunOptions<HasSelectedOutputs> {
        &self.0
    }

    /// Ends the run before its next operator.
    pub(super) fn stop(&self) {
        // The library's function cannot fail.
        let _ = self.0.terminate();
    }

    /// Lets the next run begin.
    pub(super) fn reset(&self) {
        let _ = self.0.unterminate();
    }
}
