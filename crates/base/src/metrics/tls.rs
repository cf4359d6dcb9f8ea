//! The shards' counters for TLS handshakes, and the board of the thread that reads the
//! certificates.

use std::fmt::Write;

use crate::metrics::gpus::Gauge;
use crate::metrics::{Counter, ReloadCells, ShardCells, head};

/// The reason why a TLS handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The client ended it by an alert.
    Alert,
    /// The client has no certificate that is trusted.
    Certificate,
    /// The client left.
    Closed,
    /// No version, cipher suite or protocol is common to both.
    Incompatible,
    /// Too many were in progress.
    Limit,
    /// The bytes were not TLS.
    Malformed,
    /// The client sent plain text.
    Plain,
    /// It was not done in time.
    Timeout,
}

impl HandshakeFailure {
    /// In the order of `/metrics`.
    pub const ALL: [Self; 8] = [
        Self::Alert,
        Self::Certificate,
        Self::Closed,
        Self::Incompatible,
        Self::Limit,
        Self::Malformed,
        Self::Plain,
        Self::Timeout,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Alert => "alert",
            Self::Certificate => "certificate",
            Self::Closed => "closed",
            Self::Incompatible => "incompatible",
            Self::Limit => "limit",
            Self::Malformed => "malformed",
            Self::Plain => "plain",
            Self::Timeout => "timeout",
        }
    }
}

/// The counters of one shard for TLS.
#[derive(Debug, Default)]
pub struct TlsCells {
    /// Handshakes that made a session.
    pub full: Counter,
    /// Handshakes that resumed a session.
    pub resumed: Counter,
    failed: [Counter; HandshakeFailure::ALL.len()],
}

impl TlsCells {
    /// Counts a handshake that failed.
    pub fn count_failure(&self, reason: HandshakeFailure) {
        if let Some(counter) = self.failed.get(reason as usize) {
            counter.add(1);
        }
    }
}

/// The end of the validity of a port's certificate.
#[derive(Debug)]
pub struct PortExpiry {
    /// The port, as its flags name it.
    pub port: &'static str,
    /// Seconds since the Unix epoch.
    pub at: Gauge,
}

/// The board of the thread that reads the certificates; only that thread writes.
#[derive(Debug, Default)]
pub struct TlsBoard {
    /// The ports with TLS.
    pub ports: Vec<PortExpiry>,
    /// Changes of their files.
    pub reloads: ReloadCells,
}

const EXPIRY: &str = "deuteron_tls_certificate_expiry_seconds";
const RELOADS: &str = "deuteron_tls_reloads_total";

/// The names of the families of [`TlsBoard`].
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    [EXPIRY, RELOADS].into_iter()
}

impl TlsBoard {
    /// Appends the series; nothing if no port has TLS.
    pub fn encode(&self, out: &mut String) {
        if self.ports.is_empty() {
            return;
        }
        head(out, EXPIRY, "gauge", "End of the validity of a port's certificate, in seconds since the epoch");
        for PortExpiry { port, at } in &self.ports {
            if let Some(at) = at.get() {
                let _ = writeln!(out, "{EXPIRY}{{port=\"{port}\"}} {at}");
            }
        }
        self.reloads.encode(out, RELOADS, "Changes of the files with certificates, by whether they are in use");
    }
}

/// Appends the metrics of all shards.
pub(super) fn encode(out: &mut String, shards: &[&ShardCells]) {
    let sum = |counter: &dyn Fn(&TlsCells) -> u64| shards.iter().map(|cells| counter(&cells.tls)).sum::<u64>();
    let name = "deuteron_tls_handshakes_total";
    head(out, name, "counter", "TLS handshakes that succeeded, by whether they resumed a session");
    let _ = writeln!(out, "{name}{{kind=\"full\"}} {}", sum(&|cells| cells.full.get()));
    let _ = writeln!(out, "{name}{{kind=\"resumed\"}} {}", sum(&|cells| cells.resumed.get()));
    let name = "deuteron_tls_handshakes_failed_total";
    head(out, name, "counter", "TLS handshakes that failed, by reason");
    for reason in HandshakeFailure::ALL {
        let count = sum(&|cells| cells.failed.get(reason as usize).map_or(0, Counter::get));
        let _ = writeln!(out, "{name}{{reason=\"{}\"}} {count}", reason.label());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_counter_and_its_line() {
        let shard = ShardCells::default();
        HandshakeFailure::ALL.into_iter().for_each(|reason| shard.tls.count_failure(reason));
        let mut text = String::new();
        encode(&mut text, &[&shard, &shard]);
        for reason in HandshakeFailure::ALL {
            let line = format!("deuteron_tls_handshakes_failed_total{{reason=\"{}\"}} 2\n", reason.label());
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn a_server_without_tls_shows_nothing_of_certificates() {
        let mut text = String::new();
        TlsBoard::default().encode(&mut text);
        assert_eq!(text, "");
        let at = Gauge::default();
        at.set(Some(7));
        TlsBoard { ports: vec![PortExpiry { port: "grpc", at }], ..TlsBoard::default() }.encode(&mut text);
        assert!(text.contains("deuteron_tls_certificate_expiry_seconds{port=\"grpc\"} 7\n"), "{text}");
    }
}
