//! Holds back the first batch of a model until enough requests wait: tests of batching need them
//! together, whatever the machine does meanwhile. Corresponds to tritonserver's
//! `TRITONSERVER_DELAY_SCHEDULER` and `TRITONSERVER_BACKLOG_DELAY_SCHEDULER`. The model queue asks
//! it only in a build with the feature `test-hooks`. Pure: the numbers come with the policy.

/// The numbers of requests that the first batch waits for; by default it does not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstBatchHold {
    /// The least number of waiting requests that may run.
    pub requests: usize,
    /// The least number of waiting requests of sequences without a slot.
    pub backlogged: usize,
}

impl FirstBatchHold {
    /// Returns true if the batch is held, with `requests` and `backlogged` requests waiting. Once
    /// false, it stays false.
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
        // Requests and backlog at each poll, and the outcome.
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
