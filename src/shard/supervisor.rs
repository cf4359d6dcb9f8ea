//! The tasks that a shard runs for as long as it lives: accepting, sweeping, completing, waking.
//! A panic in one is a fault of this server's. Left alone it would end the executor, and every
//! connection with it; so it is counted and told, and the task begins anew. A task that goes on
//! panicking ends the shard after all, and the shard the server.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_lite::FutureExt;

use crate::limits::TASK_PANICS_MAX;
use crate::metrics::ShardCells;
use crate::queue::worker::panic_text;

/// Runs a task to its end, anew after each of a few panics.
pub async fn keep<F: Future<Output = ()>>(cells: &ShardCells, warn: fn(&str), name: &str, task: impl Fn() -> F) {
    let mut panics = 0;
    while let Err(panic) = AssertUnwindSafe(async { task().await }).catch_unwind().await {
        cells.panics.add(1);
        panics += 1;
        if panics > TASK_PANICS_MAX {
            resume_unwind(panic);
        }
        warn(&format!("the task '{name}' of a shard panicked and goes on: {}", panic_text(&*panic)));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::catch_unwind;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        glommio::LocalExecutor::default().run(future)
    }

    #[test]
    fn a_task_that_panics_is_told_and_counted_and_goes_on() {
        static WARNINGS: AtomicUsize = AtomicUsize::new(0);
        let warn = |text: &str| {
            assert_eq!(text, "the task 'sweep' of a shard panicked and goes on: on purpose 0");
            WARNINGS.fetch_add(1, Ordering::SeqCst);
        };
        let (cells, runs) = (ShardCells::default(), Cell::new(0));
        run(keep(&cells, warn, "sweep", || async {
            let count = runs.replace(runs.get() + 1);
            assert!(count > 0, "on purpose {count}");
        }));
        assert_eq!((runs.get(), cells.panics.get(), WARNINGS.load(Ordering::SeqCst)), (2, 1, 1));
    }

    #[test]
    fn a_task_that_goes_on_panicking_ends_its_shard() {
        let counts = Arc::new((ShardCells::default(), AtomicUsize::new(0)));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let counts = Arc::clone(&counts);
            let task = async move {
                let (cells, runs) = &*counts;
                let task = || async {
                    runs.fetch_add(1, Ordering::SeqCst);
                    panic!("on purpose");
                };
                keep(cells, |_| {}, "accept", task).await;
            };
            // In a task of its own, as the shard has them.
            run(async { glommio::spawn_local(task).await });
        }));
        assert_eq!(panic_text(&*outcome.unwrap_err()), "on purpose");
        let (cells, runs) = &*counts;
        assert_eq!(runs.load(Ordering::SeqCst), TASK_PANICS_MAX as usize + 1);
        assert_eq!(cells.panics.get(), u64::from(TASK_PANICS_MAX) + 1);
    }
}
