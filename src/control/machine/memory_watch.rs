//! The thread that reads the memory use of the process and shows the shards what to give up
//! ([`MemoryPressure`]). A check reads one or two files of the kernel, which takes some tens of
//! microseconds, ten times a second; fifty times if little is left.
//!
//! It counts the memory that the kernel cannot take back. For a process alone that is its anonymous
//! and shared memory. If the limit is that of a control group it is the kernel's count for the
//! group, above which the kernel ends a process there: with the buffers of sockets, and with the
//! processes of Python models, but without cached files.

use std::sync::Arc;
use std::time::Duration;

use crate::control::machine::process_memory::{self, MemoryLimit, MemoryUsage};
use crate::control::machine::spawn::spawn;
use crate::log;
use crate::pressure::{MemoryBoard, MemoryPressure, MemoryStep};
use crate::runtime::clock;
use crate::shard::server_context::MemoryBudgets;
use crate::time::Instant;

/// The interval at which free pages are returned at once while memory is short: taking a page again
/// costs half a microsecond, too much after each request.
const MEMORY_PURGE_PAUSE: Duration = Duration::from_millis(100);
/// Time in which a step of the memory is logged once, unless it is higher than the last.
const MEMORY_NOTICE_PAUSE: Duration = Duration::from_secs(10);

/// Starts the thread. It ends when the budgets have been dropped. `purge` makes the allocator
/// return free pages.
pub fn start(limit: &MemoryLimit, budgets: &Arc<MemoryBudgets>, purge: fn()) {
    let mut watch = match MemoryUsage::open(limit) {
        Ok(usage) => MemoryWatch::new(limit.size, usage, purge),
        Err(error) => {
            return log::warning(&format!(
                "--memory-limit is not kept: the memory of the process cannot be read: {error}"
            ));
        }
    };
    let weak = Arc::downgrade(budgets);
    let started = spawn("memory-watch".to_owned(), move || {
        while let Some(budgets) = weak.upgrade() {
            watch.look(&budgets);
            drop(budgets);
            std::thread::park_timeout(watch.pressure.pause());
        }
    });
    if let Err(error) = started {
        log::warning(&format!("--memory-limit is not kept: {error}"));
    }
}

struct MemoryWatch {
    pressure: MemoryPressure,
    usage: MemoryUsage,
    purge: fn(),
    /// The instant at which free pages were returned last.
    purged_at: Instant,
    /// The step that was logged last, and the instant.
    told: Option<(MemoryStep, Instant)>,
}

impl MemoryWatch {
    fn new(limit: usize, usage: MemoryUsage, purge: fn()) -> Self {
        Self { pressure: MemoryPressure::new(limit), usage, purge, purged_at: Instant::ZERO, told: None }
    }

    fn look(&mut self, budgets: &MemoryBudgets) {
        let (board, now) = (&budgets.board, clock::now());
        let mut used = self.usage.read().unwrap_or_else(|_| board.used());
        let is_due = board.gives_up(MemoryStep::KeepAlive) && now.since(self.purged_at) >= MEMORY_PURGE_PAUSE;
        // Free pages that were not returned yet are no reason to give anything up.
        if is_due || board.gives_up(MemoryStep::Heaviest) || self.pressure.would_rise(used) {
            if board.step() == MemoryStep::Nothing {
                // The heap of engines' libraries.
                process_memory::trim();
            }
            self.purged_at = now;
            (self.purge)();
            used = self.usage.read().unwrap_or(used);
        }
        let step = self.pressure.handle_look(used, now);
        board.show(&self.pressure);
        budgets.receive.set_room(self.pressure.room());
        self.tell(step, board, now);
    }

    /// Logs a new step; soon after another message only if it lasts.
    fn tell(&mut self, step: MemoryStep, board: &MemoryBoard, now: Instant) {
        let before = self.told.map_or(MemoryStep::Nothing, |(step, _)| step);
        let is_due = self.told.is_none_or(|(_, at)| now.since(at) >= MEMORY_NOTICE_PAUSE) || step > before;
        if step == before || !is_due {
            return;
        }
        self.told = Some((step, now));
        let (used, limit, text) = (board.used(), board.limit(), step.text());
        let line = format!("memory: {used} bytes of {limit} are used (--memory-limit): {text}");
        if step > before { log::warning(&line) } else { log::info(&line) }
    }
}
