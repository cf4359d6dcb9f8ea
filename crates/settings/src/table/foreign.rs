//! Flags of tritonserver that this server accepts so that its command lines work, and that change
//! nothing here.

use crate::Settings;
use flags::Fallback::{Absent, Text};
use flags::Flag;
use flags::Takes::{Many, One};

/// The heading of the help.
pub const TITLE: &str = "Of tritonserver: ignored here";

const BOOL: &str = "true|false";

/// Warns once of a flag that has no effect.
fn warn(settings: &mut Settings, warning: &str) -> Result<(), String> {
    if !settings.warnings.iter().any(|have| have == warning) {
        settings.warnings.push(warning.to_owned());
    }
    Ok(())
}

/// A flag that changes nothing whatever its value, and the reason.
macro_rules! inert {
    ($name:literal, $takes:expr, $why:literal) => {
        Flag {
            names: &[$name],
            takes: One($takes),
            default: Text("no effect"),
            help: $why,
            apply: |settings, _| warn(settings, concat!("--", $name, " has no effect here: ", $why)),
        }
    };
}

/// The same for a flag that may come several times.
macro_rules! inert_many {
    ($name:literal, $takes:expr, $why:literal) => {
        Flag { takes: Many($takes), default: Absent, ..inert!($name, $takes, $why) }
    };
}

pub(super) const FLAGS: &[Flag<Settings>] = &[
    inert!("http-thread-count", "COUNT", "each shard serves both protocols; --shards says how many there are"),
    inert!("grpc-infer-thread-count", "COUNT", "each shard serves both protocols; --shards says how many there are"),
    inert!("grpc-infer-allocation-pool-size", "COUNT", "there is no pool of requests that could be sized"),
    inert!("grpc-max-response-pool-size", "COUNT", "there is no pool of responses that could be sized"),
    inert!("buffer-manager-thread-count", "COUNT", "no thread is there to copy tensors"),
    inert!("reuse-http-port", BOOL, "the shards share their port in any case"),
    inert!("reuse-grpc-port", BOOL, "the shards share their port in any case"),
    inert!("sagemaker-thread-count", "COUNT", "each shard serves all ports; --shards says how many there are"),
    inert!("vertex-ai-thread-count", "COUNT", "each shard serves all ports; --shards says how many there are"),
    inert_many!("model-load-gpu-limit", "GPU:FRACTION", "--gpu-memory-bytes-max bounds the memory of GPUs"),
    inert!("min-supported-compute-capability", "VERSION", "kernels are compiled for the GPU that is there"),
    inert!("enable-peer-access", BOOL, "no GPU reads the memory of another"),
    inert_many!("cuda-virtual-address-size", "GPU:BYTES", "no output grows on a GPU"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_without_effect_warns_once_and_changes_nothing_else() {
        let mut names = Vec::new();
        for flag in FLAGS {
            let mut settings = Settings::default();
            if (flag.apply)(&mut settings, "x").is_err() {
                continue;
            }
            (flag.apply)(&mut settings, "y").unwrap();
            let warnings = std::mem::take(&mut settings.warnings);
            assert_eq!(settings, Settings::default(), "{}", flag.name());
            let [warning] = &warnings[..] else { panic!("{warnings:?}") };
            assert!(warning.starts_with(&format!("--{} has no effect here: ", flag.name())), "{warning}");
            names.push(flag.name());
        }
        assert_eq!(names.len(), 13, "{names:?}");
    }
}
