//! The things that a shard gives up as the memory of the process fills: `pressure` has the steps,
//! and this module the shard's part of each. A message costs a look at one number; the sweeping
//! task does the rest.

use crate::metrics::MemoryLoss;
use crate::pressure::MemoryStep;
use crate::shard::Shard;
use crate::time::Instant;

impl Shard {
    /// Gives up the shard's own memory as the step asks. Called now and then.
    pub(in crate::shard) fn give_up(&self, now: Instant) {
        if !self.server_context.memory.gives_up(MemoryStep::KeepAlive) {
            return;
        }
        self.sessions.buffers.borrow_mut().clear();
        self.caches.clear();
        for _ in 0..self.connections.evict_resting(now) {
            self.cells.count_memory_loss(MemoryLoss::IdleConnection);
        }
        if self.server_context.memory.gives_up(MemoryStep::Heaviest) {
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
