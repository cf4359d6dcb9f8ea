//! The flags of TLS: those of the gRPC port have tritonserver's names, those of the other ports are their twins.

use std::path::PathBuf;
use std::time::Duration;

use crate::Settings;
use crate::table::BOOL;
use crate::value::set_count;
use flags::Fallback::{Text, Value};
use flags::Takes::One;
use flags::{Flag, parse_bool, set};

/// A switch of a port.
macro_rules! switch {
    ($port:ident, $field:ident, $name:expr, $help:expr) => {
        Flag {
            names: &[$name],
            takes: One(BOOL),
            default: Value("false"),
            help: $help,
            apply: |settings, value| set(&mut settings.tls.$port.$field, parse_bool(value)),
        }
    };
}

/// A file of a port.
macro_rules! file {
    ($port:ident, $field:ident, $name:expr, $help:expr) => {
        Flag {
            names: &[$name],
            takes: One("FILE"),
            default: Text("none"),
            help: $help,
            apply: |settings, value| {
                settings.tls.$port.$field = Some(PathBuf::from(value)).filter(|path| !path.as_os_str().is_empty());
                Ok(())
            },
        }
    };
}

/// The flags of a port.
macro_rules! port {
    ($port:ident, $name:literal) => {
        [
            switch!(
                $port,
                is_on,
                concat!($name, "-use-ssl"),
                concat!("TLS 1.2 and 1.3 on this port, with --", $name, "-server-cert and --", $name, "-server-key")
            ),
            switch!(
                $port,
                is_mutual,
                concat!($name, "-use-ssl-mutual"),
                concat!("The same, only for clients whose certificates --", $name, "-root-cert certifies")
            ),
            file!(
                $port,
                certificate,
                concat!($name, "-server-cert"),
                "The server's certificate chain in PEM; reloaded when it changes"
            ),
            file!(
                $port,
                key,
                concat!($name, "-server-key"),
                "Its private key in PEM, without a passphrase; reloaded when it changes"
            ),
            file!(
                $port,
                client_roots,
                concat!($name, "-root-cert"),
                "CA certificates for clients in PEM; reloaded when they change"
            ),
        ]
    };
}

pub(super) const HTTP_FLAGS: &[Flag<Settings>] = &port!(http, "http");
pub(super) const GRPC_FLAGS: &[Flag<Settings>] = &port!(grpc, "grpc");
pub(super) const METRICS_FLAGS: &[Flag<Settings>] = &port!(metrics, "metrics");

pub(super) const HANDSHAKE_FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["tls-handshake-timeout-secs"],
        takes: One("SECONDS"),
        default: Value("10"),
        help: "How long a client may take for its TLS handshake; then its connection is closed",
        apply: |settings, value| {
            let mut seconds = 0;
            set_count(&mut seconds, value)?;
            settings.tls.handshake_timeout = Duration::from_secs(seconds);
            Ok(())
        },
    },
    Flag {
        names: &["tls-handshakes-max"],
        takes: One("COUNT"),
        default: Value("1000"),
        help: "TLS handshakes in progress on one shard; beyond it new connections are closed",
        apply: |settings, value| set_count(&mut settings.tls.handshakes_max, value),
    },
];
