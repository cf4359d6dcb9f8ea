//! Supervises the tasks that a shard runs for as long as it lives: accepting, sweeping, completing, waking. A panic in
//! one is a bug of this server. Uncaught, it would end the executor and with it every connection; so it is counted and
//! logged, and the task is restarted. After [`TASK_PANICS_MAX`] panics the task ends its shard, and the shard the
//! server.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_lite::FutureExt;

use crate::limits::TASK_PANICS_MAX;
use crate::metrics::ShardCells;
use crate::queue::worker::panic_text;

/// Runs a task to its end, and restarts it after a panic, at most [`TASK_PANICS_MAX`] times.
pub async fn supervise<F: Future<Output = ()>>(cells: &ShardCells, warn: fn(&str), name: &str, task: impl Fn() -> F) {
    let mut panics = 0;
    while let Err(panic) = AssertUnwindSafe(async { task().await }).catch_unwind().await {
        cells.panics.add(1);
        panics += 1;
        if panics > TASK_PANICS_MAX {
            resume_unwind(panic);
        }
        warn(&format!("the task '{name}' of a shard panicked and was restarted: {}", panic_text(&*panic)));
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
    fn a_task_that_panics_is_logged_counted_and_restarted() {
        static WARNINGS: AtomicUsize = AtomicUsize::new(0);
        let warn = |text: &str| {
            assert_eq!(text, "the task 'sweep' of a shard panicked and was restarted: on purpose 0");
            WARNINGS.fetch_add(1, Ordering::SeqCst);
        };
        let (cells, runs) = (ShardCells::default(), Cell::new(0));
        run(supervise(&cells, warn, "sweep", || async {
            let count = runs.replace(runs.get() + 1);
            assert!(count > 0, "on purpose {count}");
        }));
        assert_eq!((runs.get(), cells.panics.get(), WARNINGS.load(Ordering::SeqCst)), (2, 1, 1));
    }

    #[test]
    fn a_task_that_keeps_panicking_ends_its_shard() {
        let counts = Arc::new((ShardCells::default(), AtomicUsize::new(0)));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let counts = Arc::clone(&counts);
            let task = async move {
                let (cells, runs) = &*counts;
                let task = || async {
                    runs.fetch_add(1, Ordering::SeqCst);
                    panic!("on purpose");
                };
                supervise(cells, |_| {}, "accept", task).await;
            };
            // Spawned, as the shard spawns its tasks.
            run(async { glommio::spawn_local(task).await });
        }));
        assert_eq!(panic_text(&*outcome.unwrap_err()), "on purpose");
        let (cells, runs) = &*counts;
        assert_eq!(runs.load(Ordering::SeqCst), TASK_PANICS_MAX as usize + 1);
        assert_eq!(cells.panics.get(), u64::from(TASK_PANICS_MAX) + 1);
    }
}
