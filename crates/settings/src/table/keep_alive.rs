//! The flags of gRPC's keep-alive, with the names and defaults of tritonserver.

use std::time::Duration;

use crate::Settings;
use crate::table::BOOL;
use flags::Fallback::{Text, Value};
use flags::Takes::One;
use flags::{Flag, parse, parse_bool, set};

pub(super) const FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["grpc-keepalive-time"],
        takes: One("MS"),
        default: Value("7200000"),
        help: "How long a gRPC client may send nothing before it gets a PING; 2147483647 for no limit",
        apply: |settings, value| match millis(value)? {
            Duration::ZERO => Err("must be greater than 0.".to_owned()),
            time => set(&mut settings.grpc_keep_alive.time, Ok(Some(time).filter(|time| *time < NEVER))),
        },
    },
    Flag {
        names: &["grpc-keepalive-timeout"],
        takes: One("MS"),
        default: Value("20000"),
        help: "How long it may then send nothing before its connection is closed",
        apply: |settings, value| set(&mut settings.grpc_keep_alive.timeout, millis(value)),
    },
    Flag {
        names: &["grpc-keepalive-permit-without-calls"],
        takes: One(BOOL),
        default: Value("false"),
        help: "Send PINGs, and take them as often, also while the client has no call open",
        apply: |settings, value| set(&mut settings.grpc_keep_alive.permits_without_calls, parse_bool(value)),
    },
    Flag {
        names: &["grpc-http2-max-pings-without-data"],
        takes: One("COUNT"),
        default: Value("2"),
        help: "PINGs that a gRPC client gets without anything else in between; 0 for no limit",
        apply: |settings, value| set(&mut settings.grpc_keep_alive.pings_without_data_max, parse(value)),
    },
    Flag {
        names: &["grpc-http2-min-recv-ping-interval-without-data"],
        takes: One("MS"),
        default: Text("any while a call is open, else 300000; with --compat=triton 300000"),
        help: "Time between two PINGs of a gRPC client that is sent nothing; one that comes earlier is a strike",
        apply: |settings, value| set(&mut settings.grpc_keep_alive.ping_interval_min, millis(value).map(Some)),
    },
    Flag {
        names: &["grpc-http2-max-ping-strikes"],
        takes: One("COUNT"),
        default: Value("2"),
        help: "Strikes that a gRPC client may have, 0 for no limit; beyond it GOAWAY",
        apply: |settings, value| set(&mut settings.grpc_keep_alive.ping_strikes_max, parse(value)),
    },
    Flag {
        names: &["grpc-max-connection-age"],
        takes: One("MS"),
        default: Text("any age"),
        help: "Age at which the connection of a gRPC client drains, a tenth more or less; 0 for no limit",
        apply: |settings, value| set(&mut settings.grpc_keep_alive.age_max, some_millis(value)),
    },
    Flag {
        names: &["grpc-max-connection-age-grace"],
        takes: One("MS"),
        default: Text("any time"),
        help: "How long its calls then have to end; 0 for no limit",
        apply: |settings, value| set(&mut settings.grpc_keep_alive.age_grace, some_millis(value)),
    },
];

/// The largest `int`, which is gRPC's word for never.
const NEVER: Duration = Duration::from_millis(i32::MAX as u64);

fn millis(value: &str) -> Result<Duration, String> {
    parse(value).map(Duration::from_millis)
}

/// Reads milliseconds; as in tritonserver 0 gives `None`.
fn some_millis(value: &str) -> Result<Option<Duration>, String> {
    millis(value).map(|time| Some(time).filter(|time| !time.is_zero()))
}
