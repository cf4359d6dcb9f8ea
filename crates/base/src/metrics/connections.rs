//! Connections: the open ones, those that were refused or closed to make room, and those that
//! timers ended.

use std::fmt::Write;

use crate::metrics::{Counter, ShardCells, head};

/// The timers that end a connection, request or answer when its client stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTimer {
    /// A body came too slowly (`--http-body-timeout`).
    Body,
    /// A head or a frame came too slowly, or a new connection sent none (`--http-head-timeout`).
    Head,
    /// No request came for long (`--http-idle-timeout`).
    Idle,
    /// A PING was not answered (`--grpc-keepalive-timeout`), or the connection was too old.
    KeepAlive,
    /// An answer was taken too slowly (`--http-write-timeout`).
    Write,
}

/// The counters of one shard for connections of clients, without those of metrics and of the admin
/// socket.
#[derive(Debug, Default)]
pub struct ClientCells {
    /// Connections that it has served.
    pub opened: Counter,
    /// Served connections that ended.
    pub closed: Counter,
    /// Connections that it accepted and handed over to another shard, which had less to do.
    pub handed_over: Counter,
}

impl ClientTimer {
    /// In the order of `/metrics`.
    pub const ALL: [Self; 5] = [Self::Body, Self::Head, Self::Idle, Self::KeepAlive, Self::Write];

    const fn label(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Head => "head",
            Self::Idle => "idle",
            Self::KeepAlive => "keep_alive",
            Self::Write => "write",
        }
    }
}

/// Appends the bound on connections, over all shards.
#[inline]
pub fn encode_connections_max(out: &mut String, most: usize) {
    let name = "deuteron_connections_max";
    head(out, name, "gauge", "Connections that there may be (--connections-max, for each shard)");
    let _ = writeln!(out, "{name} {most}");
}

/// Appends the series of all shards together.
pub(super) fn encode(out: &mut String, shards: &[&ShardCells]) {
    let sum = |counter: fn(&ShardCells) -> &Counter| shards.iter().map(|cells| counter(cells).get()).sum::<u64>();
    let of_timer = |timer: ClientTimer| -> u64 {
        shards.iter().filter_map(|cells| cells.timeouts.get(timer as usize)).map(Counter::get).sum()
    };
    let mut single = |name: &str, kind: &str, help: &str, value: u64| {
        head(out, name, kind, help);
        let _ = writeln!(out, "{name} {value}");
    };
    let opened = sum(|cells| &cells.connections_opened);
    let open = opened.saturating_sub(sum(|cells| &cells.connections_closed));
    single("deuteron_connections_open", "gauge", "Connections that are open", open);
    single("deuteron_connections_total", "counter", "Connections accepted", opened);
    let help = "Connections that were handed over to another shard than the one that accepted them";
    single("deuteron_connections_handed_over_total", "counter", help, sum(|cells| &cells.clients.handed_over));
    let refused = sum(|cells| &cells.connections_refused);
    single("deuteron_connections_refused_total", "counter", "Connections closed because there were too many", refused);
    let name = "deuteron_connections_refused_by_address_total";
    let help = "Connections closed because their client's address had too many (--connections-per-address-max)";
    single(name, "counter", help, sum(|cells| &cells.connections_refused_by_address));
    let help = "Idle connections closed to make room for new ones (--connections-max)";
    single("deuteron_connections_evicted_total", "counter", help, sum(|cells| &cells.connections_evicted));
    let help = "Connections beyond --connections-max that were answered all but inference";
    single("deuteron_connections_reserved_total", "counter", help, sum(|cells| &cells.connections_reserved));
    let timeouts = ClientTimer::ALL.into_iter().map(of_timer).sum();
    single("deuteron_timeouts_total", "counter", "Connections, requests and answers ended by a timer", timeouts);
    let name = "deuteron_shard_connections_open";
    head(out, name, "gauge", "Open connections of clients, by the shard that serves them");
    for (index, cells) in shards.iter().enumerate() {
        let open = cells.clients.opened.get().saturating_sub(cells.clients.closed.get());
        let _ = writeln!(out, "{name}{{shard=\"{index}\"}} {open}");
    }
    let name = "deuteron_timeouts_by_timer_total";
    head(out, name, "counter", "Connections, requests and answers ended by a timer, by which");
    for timer in ClientTimer::ALL {
        let _ = writeln!(out, "{name}{{timer=\"{}\"}} {}", timer.label(), of_timer(timer));
    }
}
