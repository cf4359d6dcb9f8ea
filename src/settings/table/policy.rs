//! The flags of the operator's policy: which parts of the interface ask for a key, and which header fields reach models.

use crate::flags::Fallback::{Absent, Text};
use crate::flags::Flag;
use crate::flags::Takes::{Many, One};
use crate::policy::{HeaderPattern, PolicyProtocol};
use crate::settings::Settings;

/// A key whose value is a secret, which no error shows.
const KEY: &str = "APIS:KEY=SECRET";

pub(super) const FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["http-restricted-api"],
        takes: Many(KEY),
        default: Absent,
        help: "Over HTTP these APIs answer only requests with the header KEY: SECRET, others get 403: one or more, with \
               commas, of health, metadata, inference, shared-memory, model-config, model-repository, statistics, \
               trace and logging; may be given more than once",
        apply: |settings, value| settings.http_policy.restrictions.restrict(PolicyProtocol::Http, value),
    },
    Flag {
        names: &["grpc-restricted-protocol"],
        takes: Many(KEY),
        default: Absent,
        help: "The same over gRPC, with the metadata triton-grpc-protocol-KEY; others get UNAVAILABLE. Health also is \
               grpc.health.v1, metadata also reflection",
        apply: |settings, value| settings.grpc_policy.restrictions.restrict(PolicyProtocol::Grpc, value),
    },
    Flag {
        names: &["http-header-forward-pattern"],
        takes: One("REGEX"),
        default: Text("none"),
        help: "HTTP headers with this in their name, in any case of its letters, become parameters of the request, \
               which Python models see",
        apply: |settings, value| {
            settings.http_policy.forwarded = pattern(value)?;
            Ok(())
        },
    },
    Flag {
        names: &["grpc-header-forward-pattern"],
        takes: One("REGEX"),
        default: Text("none"),
        help: "The same of gRPC metadata",
        apply: |settings, value| {
            settings.grpc_policy.forwarded = pattern(value)?;
            Ok(())
        },
    },
];

/// The pattern of a flag; an empty one is none, as in tritonserver.
fn pattern(value: &str) -> Result<Option<HeaderPattern>, String> {
    if value.is_empty() { Ok(None) } else { HeaderPattern::new(value).map(Some) }
}
