//! Failed requests: their reasons and counts. Pure. Every request that was sent counts either as a
//! success or as one failure.

use std::collections::BTreeMap;
use std::fmt;

/// The kind of a failure. Each kind is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// The connection ended before the answer did.
    Closed,
    /// No connection could be made.
    Connect,
    /// A gRPC status other than 0.
    Grpc(u32),
    /// An HTTP status other than 200.
    Http(u16),
    /// The answer breaks HTTP/1.1, HTTP/2 or gRPC.
    Malformed,
    /// No answer within `--client-timeout`.
    Timeout,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("connection closed"),
            Self::Connect => f.write_str("no connection"),
            Self::Grpc(code) => write!(f, "gRPC {code} {}", grpc_name(*code)),
            Self::Http(status) => write!(f, "HTTP {status}"),
            Self::Malformed => f.write_str("malformed answer"),
            Self::Timeout => f.write_str("timeout"),
        }
    }
}

/// The name of a gRPC status code.
fn grpc_name(code: u32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    usize::try_from(code).ok().and_then(|code| NAMES.get(code)).copied().unwrap_or("?")
}

/// One failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFailure {
    /// Its kind.
    pub kind: FailureKind,
    /// The message of the server or of the operating system.
    pub text: String,
}

impl RequestFailure {
    /// A failure with a message, cut to `TEXT_CHARS_MAX` characters.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        let mut text: String = text.into();
        if let Some((end, _)) = text.char_indices().nth(TEXT_CHARS_MAX) {
            text.truncate(end);
        }
        Self { kind, text }
    }
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.as_str() {
            "" => write!(f, "{}", self.kind),
            text => write!(f, "{}: {text}", self.kind),
        }
    }
}

/// Characters kept of a failure's message: it is printed on one line.
const TEXT_CHARS_MAX: usize = 200;

/// Counts of failures by kind, each with the message of the first. A failing server would fill a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureCounts {
    kinds: BTreeMap<FailureKind, (u64, String)>,
}

impl FailureCounts {
    /// Counts a failure.
    pub fn add(&mut self, failure: RequestFailure) {
        let entry = self.kinds.entry(failure.kind).or_insert_with(|| (0, failure.text));
        entry.0 += 1;
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (kind, (count, text)) in &other.kinds {
            self.kinds.entry(*kind).or_insert_with(|| (0, text.clone())).0 += count;
        }
    }

    /// The number of all failures.
    pub fn total(&self) -> u64 {
        self.kinds.values().map(|(count, _)| count).sum()
    }

    /// Each kind with its count and its first message.
    pub fn iter(&self) -> impl Iterator<Item = (FailureKind, u64, &str)> {
        self.kinds.iter().map(|(kind, (count, text))| (*kind, *count, text.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_kind_with_the_first_text() {
        let mut failures = FailureCounts::default();
        for (kind, text) in
            [(FailureKind::Http(503), "full"), (FailureKind::Grpc(14), "gone"), (FailureKind::Http(503), "later")]
        {
            failures.add(RequestFailure::new(kind, text));
        }
        let mut twice = failures.clone();
        twice.merge(&failures);
        let got: Vec<_> = twice.iter().map(|(kind, count, text)| format!("{kind} x{count}: {text}")).collect();
        assert_eq!(got, ["gRPC 14 UNAVAILABLE x2: gone", "HTTP 503 x4: full"]);
        assert_eq!(twice.total(), 6);
        assert_eq!(RequestFailure::new(FailureKind::Closed, "é".repeat(300)).text.chars().count(), TEXT_CHARS_MAX);
        assert_eq!(FailureKind::Grpc(99).to_string(), "gRPC 99 ?");
    }
}
