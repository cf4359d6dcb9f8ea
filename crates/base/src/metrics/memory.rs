//! The memory of the process: its use, its limit (`--memory-limit`), and the losses for that limit.

use std::fmt::Write;

use crate::metrics::{Counter, ShardCells, head};
use crate::pressure::{MemoryBoard, MemoryStep};

/// The things that a shard gives up as memory fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLoss {
    /// A connection that ended with its answer.
    AnsweredConnection,
    /// The connection that held the most.
    HeaviestConnection,
    /// The stream that held the most.
    HeaviestStream,
    /// A connection that was idle.
    IdleConnection,
    /// A new connection that got answers to everything but inference, or was closed.
    NewConnection,
    /// A request that was refused.
    Request,
}

impl MemoryLoss {
    /// In the order of `/metrics`.
    pub const ALL: [Self; 6] = [
        Self::AnsweredConnection,
        Self::HeaviestConnection,
        Self::HeaviestStream,
        Self::IdleConnection,
        Self::NewConnection,
        Self::Request,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::AnsweredConnection => "answered_connection",
            Self::HeaviestConnection => "heaviest_connection",
            Self::HeaviestStream => "heaviest_stream",
            Self::IdleConnection => "idle_connection",
            Self::NewConnection => "new_connection",
            Self::Request => "request",
        }
    }
}

impl ShardCells {
    /// Counts a thing that was given up for memory.
    pub fn count_memory_loss(&self, loss: MemoryLoss) {
        if let Some(counter) = self.memory_losses.get(loss as usize) {
            counter.add(1);
        }
    }
}

/// Appends the series of the process and of all its shards.
pub fn encode(out: &mut String, board: &MemoryBoard, shards: &[&ShardCells]) {
    let mut single = |name: &str, help: &str, value: usize| {
        head(out, name, "gauge", help);
        let _ = writeln!(out, "{name} {value}");
    };
    single("deuteron_memory_limit_bytes", "Memory that the process may have (--memory-limit)", board.limit());
    single("deuteron_memory_used_bytes", "Memory of it that is used", board.used());
    let help =
        "What is given up for memory: 0 nothing, 1 keep-alive, 2 new connections, 3 new requests, 4 the heaviest";
    single("deuteron_memory_step", help, board.step() as usize);
    let name = "deuteron_memory_steps_total";
    head(out, name, "counter", "How often each of these steps has begun");
    for step in MemoryStep::ALL {
        let _ = writeln!(out, "{name}{{step=\"{}\"}} {}", step.label(), board.begun(step));
    }
    let name = "deuteron_memory_losses_total";
    head(out, name, "counter", "Connections, streams, requests and loads that were given up for memory");
    for loss in MemoryLoss::ALL {
        let cells = shards.iter().filter_map(|cells| cells.memory_losses.get(loss as usize));
        let _ = writeln!(out, "{name}{{what=\"{}\"}} {}", loss.label(), cells.map(Counter::get).sum::<u64>());
    }
    let _ = writeln!(out, "{name}{{what=\"load\"}} {}", board.loads_refused());
}

/// Appends the count of runs that the embedded engine refused.
pub fn encode_run_memory(out: &mut String, refused: u64) {
    let name = "deuteron_run_memory_refused_total";
    head(out, name, "counter", "Runs of the embedded engine refused for their memory (--run-memory-bytes-max)");
    let _ = writeln!(out, "{name} {refused}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::MemoryPressure;
    use crate::time::Instant;

    #[test]
    fn each_loss_and_step_has_a_row() {
        let (mut pressure, board) = (MemoryPressure::new(1_000), MemoryBoard::new(1_000, 1));
        pressure.handle_look(900, Instant::ZERO);
        board.show(&pressure);
        board.count_load_refused();
        let cells = ShardCells::default();
        for (index, loss) in MemoryLoss::ALL.into_iter().enumerate() {
            (0..=index).for_each(|_| cells.count_memory_loss(loss));
        }
        let mut out = String::new();
        encode(&mut out, &board, &[&cells]);
        let rows: Vec<_> = out.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            rows.join("\n"),
            "deuteron_memory_limit_bytes 1000\ndeuteron_memory_used_bytes 900\ndeuteron_memory_step 2\n\
             deuteron_memory_steps_total{step=\"keep_alive\"} 1\ndeuteron_memory_steps_total{step=\"connections\"} 1\n\
             deuteron_memory_steps_total{step=\"requests\"} 0\ndeuteron_memory_steps_total{step=\"heaviest\"} 0\n\
             deuteron_memory_losses_total{what=\"answered_connection\"} 1\n\
             deuteron_memory_losses_total{what=\"heaviest_connection\"} 2\n\
             deuteron_memory_losses_total{what=\"heaviest_stream\"} 3\n\
             deuteron_memory_losses_total{what=\"idle_connection\"} 4\n\
             deuteron_memory_losses_total{what=\"new_connection\"} 5\n\
             deuteron_memory_losses_total{what=\"request\"} 6\ndeuteron_memory_losses_total{what=\"load\"} 1"
        );
    }
}
