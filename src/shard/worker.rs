//! The thread of one instance: takes batches from the feed of its model version and runs them,
//! until the feed stops. Blocks in the engine; knows no socket and no shard.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Instance, Threads, answering};
use crate::shard::clock;
use crate::shard::feed::Feed;
use crate::shard::models::{Served, run_guarded};

/// The first pause after an instance could not be made anew; it doubles up to the last.
const RENEW_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two tries.
const RENEW_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Serves batches with an instance until the feed stops. An instance that dies is made anew, with
/// pauses; meanwhile its model version is not ready.
pub fn run(served: &Served, feed: &Arc<Feed>, seat: usize, mut instance: Box<dyn Instance>, threads: &Threads) {
    while let Some(batch) = feed.next_batch(seat, clock::now) {
        if answering(|| run_guarded(&mut instance, batch, || served.loaded.new_instance(threads))) {
            continue;
        }
        feed.handle_death(seat);
        served.handle_death();
        let mut pause = RENEW_PAUSE_MIN;
        while !feed.is_stopped() {
            std::thread::park_timeout(pause);
            pause = pause.saturating_mul(2).min(RENEW_PAUSE_MAX);
            let renewed = catch_unwind(AssertUnwindSafe(|| served.loaded.new_instance(threads)));
            if let Ok(Ok(new)) = renewed {
                instance = new;
                served.handle_revival();
                break;
            }
        }
    }
}
