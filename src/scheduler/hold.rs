//! The first batch of a model, held back until so many requests wait: tests of batching need them together, whatever the
//! machine does meanwhile. As tritonserver's `TRITONSERVER_DELAY_SCHEDULER` and `TRITONSERVER_BACKLOG_DELAY_SCHEDULER`; the
//! model queue asks it only in a build with the feature `test-hooks`. Pure: the numbers come with the policy.

/// What the first batch waits for; the default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstBatchHold {
    /// Requests that may run, of which at least so many must wait.
    pub requests: usize,
    /// Requests of sequences without a slot, likewise.
    pub backlogged: usize,
}

impl FirstBatchHold {
    /// Whether the batch is held, with so many requests waiting. Once it is not, it never is again.
    pub const fn poll_held(&mut self, requests: usize, backlogged: usize) -> bool {
        if requests < self.requests || self.requests > 0 && backlogged < self.backlogged {
            return true;
        }
        self.requests = 0;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_batch_waits_for_its_requests_and_no_other_does() {
        // Requests and backlog at each poll, and what comes of it.
        let script = |requests, backlogged, polls: &[(usize, usize)]| {
            let mut hold = FirstBatchHold { requests, backlogged };
            let held = polls.iter().map(|(waiting, behind)| hold.poll_held(*waiting, *behind));
            held.map(|held| if held { 'h' } else { '.' }).collect::<String>()
        };
        assert_eq!(script(0, 0, &[(0, 0), (5, 0)]), "..");
        assert_eq!(script(3, 0, &[(0, 0), (2, 9), (3, 0), (0, 0), (1, 0)]), "hh...");
        assert_eq!(script(2, 1, &[(2, 0), (1, 1), (2, 1), (0, 0)]), "hh..");
        assert_eq!(script(0, 4, &[(1, 0)]), ".", "the backlog alone holds nothing, as in tritonserver");
    }
}
