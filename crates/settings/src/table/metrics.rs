//! The flags of metrics.

use std::time::Duration;

use crate::Settings;
use base::policy::ConsoleAudience;
use flags::Fallback::{Absent, Value};
use flags::Takes::{Many, One, Switch};
use flags::{Flag, parse, parse_bool, set, set_one_of};

const BOOL: &str = "true|false";

pub(super) const FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["console"],
        takes: One("loopback|all|off"),
        default: Value("loopback"),
        help: "Access to the console, a page at / of the metrics port: from this machine only, from anywhere, or off. \
               It shows models, load, limits and the log's last lines, and sends requests to models; it changes \
               nothing",
        apply: |settings, value| {
            let audiences = [
                ("loopback", ConsoleAudience::Loopback),
                ("all", ConsoleAudience::All),
                ("off", ConsoleAudience::None),
            ];
            set_one_of(&mut settings.console, value, &audiences)
        },
    },
    Flag {
        names: &["metrics-config"],
        takes: Many("SETTING=VALUE"),
        default: Absent,
        help: "counter_latencies=true|false (durations as counters, on by default), summary_latencies=true|false (as \
               quantiles of the last minute), summary_quantiles=0.5:0.05,0.9:0.01,… (quantiles with the errors they \
               may have), histogram_latencies=true|false (first responses of decoupled models); may be given more than \
               once",
        apply: |settings, value| settings.metrics_config.apply(value),
    },
    Flag {
        names: &["metrics-interval-ms"],
        takes: One("MS"),
        default: Value("2000"),
        help: "Interval at which the metrics of the machine, of its GPUs and of the load are collected",
        apply: |settings, value| {
            let interval = parse(value).and_then(|millis| match millis {
                0 => Err("must be greater than 0.".to_owned()),
                _ => Ok(Duration::from_millis(millis)),
            });
            set(&mut settings.metrics_config.interval, interval)
        },
    },
    Flag {
        names: &["load-reports"],
        takes: Switch,
        default: Absent,
        help: "Answer every inference with a load report for balancers (ORCA; over gRPC a trailer), not only to clients \
               that send 'endpoint-load-metrics-format: text' or 'json'",
        apply: |settings, _| {
            settings.metrics_config.tells_load = true;
            Ok(())
        },
    },
    Flag {
        names: &["allow-cpu-metrics"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Show the CPUs and the memory of the machine in the metrics",
        apply: |settings, value| set(&mut settings.metrics_config.shows_cpu, parse_bool(value)),
    },
    Flag {
        names: &["allow-gpu-metrics"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Show the GPUs that are used in the metrics",
        apply: |settings, value| set(&mut settings.metrics_config.shows_gpus, parse_bool(value)),
    },
];
