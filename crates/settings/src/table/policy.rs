//! The flags of the operator's policy: the clients that have keys, the parts of the interface that
//! ask for a header, and the header fields that reach models.

use std::path::PathBuf;

use crate::Settings;
use base::policy::{HeaderPattern, PolicyProtocol};
use flags::Fallback::{Absent, Text};
use flags::Flag;
use flags::Takes::{Many, One};

/// A key whose value is a secret, which no error shows.
const KEY: &str = "APIS:KEY=SECRET";

pub(super) const FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["api-keys-file"],
        takes: One("FILE"),
        default: Text("none"),
        help: "Require an API key of this file for everything but health, as Authorization: Bearer KEY or X-API-Key: \
               KEY. The file has the SHA-256 of each key, its classes (infer, read, metrics, admin) and its limits; it \
               is reloaded when it changes. deuteron key NAME makes a key",
        apply: |settings, value| {
            settings.api_keys_file = path(value);
            Ok(())
        },
    },
    Flag {
        names: &["admin-socket"],
        takes: One("PATH"),
        default: Text("none"),
        help: "Unix socket for administration without a key, protected by its file permissions: it alone serves loads, \
               unloads, traces, log settings and shared memory, which are then refused on every port",
        apply: |settings, value| {
            settings.admin_socket = path(value);
            Ok(())
        },
    },
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
        names: &["cors-origin"],
        takes: Many("ORIGINS"),
        default: Absent,
        help: "Pages of these origins may read answers in browsers (CORS): one or more, with commas, such as \
               https://app.example.com, or * for all; may be given more than once",
        apply: |settings, value| settings.http_policy.cors.add(value),
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

/// Reads the path of a flag; `None` for an empty one.
fn path(value: &str) -> Option<PathBuf> {
    Some(PathBuf::from(value)).filter(|path| !path.as_os_str().is_empty())
}

/// Reads the pattern of a flag; `None` for an empty one, as in tritonserver.
fn pattern(value: &str) -> Result<Option<HeaderPattern>, String> {
    if value.is_empty() { Ok(None) } else { HeaderPattern::new(value).map(Some) }
}
