//! The shards' counters for clients with API keys, and for requests that the operator's policy
//! refuses.

use std::fmt::Write;

use crate::metrics::{Counter, ReloadCells, ShardCells, head};

/// The reason why the operator's policy refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRefusal {
    /// It is served on the Unix socket of `--admin-socket` alone.
    AdminSocket,
    /// The key does not allow it.
    Class,
    /// The client has too many requests in flight.
    Concurrency,
    /// It has no key.
    Missing,
    /// The client asks too often.
    Rate,
    /// It lacks the header of a restricted API.
    Restricted,
    /// The texts of the client have too many tokens.
    Tokens,
    /// No client has the key.
    Unknown,
}

impl KeyRefusal {
    /// In the order of `/metrics`.
    pub const ALL: [Self; 8] = [
        Self::AdminSocket,
        Self::Class,
        Self::Concurrency,
        Self::Missing,
        Self::Rate,
        Self::Restricted,
        Self::Tokens,
        Self::Unknown,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::AdminSocket => "admin_socket",
            Self::Class => "class",
            Self::Concurrency => "concurrency",
            Self::Missing => "missing",
            Self::Rate => "rate",
            Self::Restricted => "restricted",
            Self::Tokens => "tokens",
            Self::Unknown => "unknown",
        }
    }
}

/// The counters of one shard for one client. On a cache line of its own: other shards write beside
/// it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct KeyCells {
    /// Requests that were let in.
    pub requests: Counter,
    /// Tokens of its texts, if they have a rate.
    pub tokens: Counter,
    refused: [Counter; KeyRefusal::ALL.len()],
}

impl KeyCells {
    /// Counts a request that was refused.
    pub fn count_refusal(&self, reason: KeyRefusal) {
        if let Some(counter) = self.refused.get(reason as usize) {
            counter.add(1);
        }
    }
}

/// The counters of one shard for all refusals.
#[derive(Debug, Default)]
pub struct RefusalCells([Counter; KeyRefusal::ALL.len()]);

impl RefusalCells {
    /// Counts a request that was refused.
    pub fn count(&self, reason: KeyRefusal) {
        if let Some(counter) = self.0.get(reason as usize) {
            counter.add(1);
        }
    }
}

const REQUESTS: &str = "deuteron_api_key_requests_total";
const REFUSED: &str = "deuteron_api_key_refused_total";
const TOKENS: &str = "deuteron_api_key_tokens_total";
const RELOADS: &str = "deuteron_api_keys_reloads_total";

/// The names of the families that a server without keys does not have.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    [REQUESTS, REFUSED, TOKENS, RELOADS].into_iter()
}

/// Appends the clients by their names, each with the counters of all shards.
pub fn encode_keys<'a>(
    out: &mut String,
    clients: impl Iterator<Item = (&'a str, &'a [KeyCells])> + Clone,
    reloads: &ReloadCells,
) {
    head(out, REQUESTS, "counter", "Requests that were let in, by the name of their API key");
    for (name, cells) in clients.clone() {
        let count: u64 = cells.iter().map(|cells| cells.requests.get()).sum();
        let _ = writeln!(out, "{REQUESTS}{{key=\"{name}\"}} {count}");
    }
    head(out, REFUSED, "counter", "Requests that were refused, by the name of their API key and the reason");
    for (name, cells) in clients.clone() {
        for reason in [KeyRefusal::Class, KeyRefusal::Concurrency, KeyRefusal::Rate, KeyRefusal::Tokens] {
            let count: u64 =
                cells.iter().filter_map(|cells| cells.refused.get(reason as usize)).map(Counter::get).sum();
            let _ = writeln!(out, "{REFUSED}{{key=\"{name}\",reason=\"{}\"}} {count}", reason.label());
        }
    }
    head(out, TOKENS, "counter", "Tokens of texts, by the name of the API key; of keys with a token_rate alone");
    for (name, cells) in clients {
        let count: u64 = cells.iter().map(|cells| cells.tokens.get()).sum();
        let _ = writeln!(out, "{TOKENS}{{key=\"{name}\"}} {count}");
    }
    reloads.encode(out, RELOADS, "Changes of the file of API keys, by whether it is in use");
}

/// Appends the refusals of all shards.
pub(super) fn encode(out: &mut String, shards: &[&ShardCells]) {
    let name = "deuteron_access_refused_total";
    head(out, name, "counter", "Requests that the operator's policy has refused, by reason");
    for reason in KeyRefusal::ALL {
        let of_shard = |cells: &&ShardCells| cells.access_refused.0.get(reason as usize).map_or(0, Counter::get);
        let count: u64 = shards.iter().map(of_shard).sum();
        let _ = writeln!(out, "{name}{{reason=\"{}\"}} {count}", reason.label());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_counter_and_its_line() {
        let shard = ShardCells::default();
        KeyRefusal::ALL.into_iter().for_each(|reason| shard.access_refused.count(reason));
        let mut text = String::new();
        encode(&mut text, &[&shard, &shard]);
        for (index, reason) in KeyRefusal::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            let line = format!("deuteron_access_refused_total{{reason=\"{}\"}} 2\n", reason.label());
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn clients_have_the_sum_of_all_shards() {
        let (one, two) = ([KeyCells::default(), KeyCells::default()], [KeyCells::default(), KeyCells::default()]);
        one.iter().for_each(|cells| cells.requests.add(3));
        one[1].count_refusal(KeyRefusal::Rate);
        one[0].count_refusal(KeyRefusal::Tokens);
        one.iter().for_each(|cells| cells.tokens.add(20));
        let mut text = String::new();
        encode_keys(&mut text, [("a", &one[..]), ("b", &two[..])].into_iter(), &ReloadCells::default());
        for line in [
            "deuteron_api_key_requests_total{key=\"a\"} 6\n",
            "deuteron_api_key_requests_total{key=\"b\"} 0\n",
            "deuteron_api_key_refused_total{key=\"a\",reason=\"rate\"} 1\n",
            "deuteron_api_key_refused_total{key=\"a\",reason=\"tokens\"} 1\n",
            "deuteron_api_key_tokens_total{key=\"a\"} 40\n",
            "deuteron_api_key_refused_total{key=\"b\",reason=\"class\"} 0\n",
            "deuteron_api_keys_reloads_total{result=\"failed\"} 0\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
