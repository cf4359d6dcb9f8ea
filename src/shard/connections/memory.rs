//! The things that a shard gives up as the memory of the process fills: `pressure` has the steps,
//! and this module the shard's part of each. A message costs a look at one number; the sweeping
//! task does the rest.

use crate::error::{Code, Error};
use crate::metrics::MemoryLoss;
use crate::policy::ApiCategory;
use crate::pressure::MemoryStep;
use crate::shard::Shard;
use crate::shard::connections::ReservedFor;
use crate::time::Instant;

impl Shard {
    /// Returns true if this is given up now.
    pub fn gives_up(&self, step: MemoryStep) -> bool {
        self.server_context.memory.board.gives_up(step)
    }

    /// Refuses requests that a reserved slot is not for, or that there is no memory for.
    pub fn check_capacity(
        &self,
        reserved_for: Option<ReservedFor>,
        category: Option<ApiCategory>,
    ) -> Result<(), Error> {
        if !matches!(category, Some(ApiCategory::Inference | ApiCategory::SharedMemory)) {
            return Ok(());
        }
        match reserved_for {
            None => self.check_memory(),
            Some(ReservedFor::Count) => {
                let most = self.server_context.connection_limits.connections_max;
                Err(Error::unavailable(format!(
                    "too many connections: each shard has --connections-max={most}, and none of them is idle"
                )))
            }
            Some(ReservedFor::Memory) => Err(self.memory_refusal()),
        }
    }

    /// Refuses an inference request that there is no memory for.
    pub fn check_memory(&self) -> Result<(), Error> {
        if self.gives_up(MemoryStep::Requests) { Err(self.memory_refusal()) } else { Ok(()) }
    }

    fn memory_refusal(&self) -> Error {
        self.cells.count_memory_loss(MemoryLoss::Request);
        Error::new(Code::Exhausted, self.server_context.memory.board.refusal())
    }

    /// Gives up the shard's own memory as the step asks. Called now and then.
    pub(in crate::shard) fn give_up(&self, now: Instant) {
        if !self.gives_up(MemoryStep::KeepAlive) {
            return;
        }
        self.sessions.buffers.borrow_mut().clear();
        self.caches.clear(&self.cells.cache);
        for _ in 0..self.connections.evict_resting(now) {
            self.cells.count_memory_loss(MemoryLoss::IdleConnection);
        }
        if self.gives_up(MemoryStep::Heaviest) {
            self.close_heaviest();
        }
    }

    /// Closes the connection that holds the most, one after the other, as long as there is an
    /// excess and no other shard has a heavier one.
    fn close_heaviest(&self) {
        let board = &self.server_context.memory.board;
        loop {
            let heaviest = self.connections.heaviest();
            let size = heaviest.as_ref().map_or(0, |(_, size)| *size);
            let is_closed = board.poll_close(self.index, size);
            match heaviest.filter(|_| is_closed) {
                Some((watch, _)) => watch.close_for_weight(),
                None => break,
            }
        }
        // The bytes that streams hold are known by the next time.
        self.connections.weigh();
    }
}
