//! Flags of tritonserver that this server takes so that its command lines work, and that change nothing here. Those
//! that would have to change something are refused, unless their value asks for nothing.

use crate::flags::Fallback::{Absent, Text, Value};
use crate::flags::Flag;
use crate::flags::Takes::{Many, One};
use crate::settings::Settings;

/// The heading of the help.
pub const TITLE: &str = "Of tritonserver: without effect here, or not built";

const BOOL: &str = "true|false";

/// Warns once of a flag that has no effect.
fn warn(settings: &mut Settings, warning: &str) -> Result<(), String> {
    if !settings.warnings.iter().any(|have| have == warning) {
        settings.warnings.push(warning.to_owned());
    }
    Ok(())
}

/// A flag that changes nothing whatever it says, and why.
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

/// The same of a flag that may come several times.
macro_rules! inert_many {
    ($name:literal, $takes:expr, $why:literal) => {
        Flag { takes: Many($takes), default: Absent, ..inert!($name, $takes, $why) }
    };
}

/// A switch for what this server has not: it may be off.
macro_rules! absent {
    ($name:literal, $why:literal) => {
        Flag {
            names: &[$name],
            takes: One(BOOL),
            default: Value("false"),
            help: $why,
            apply: |_, value| match crate::flags::parse_bool(value)? {
                true => Err(concat!("this server has it not: ", $why).to_owned()),
                false => Ok(()),
            },
        }
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
    absent!("model-namespacing", "models of one name in several repositories; --model-name names one"),
    absent!("allow-sagemaker", "the endpoints of SageMaker"),
    absent!("allow-vertex-ai", "the endpoints of Vertex AI"),
    inert!("repoagent-directory", "DIRECTORY", "there are no repository agents; a model that names one is refused"),
    inert!("cache-directory", "DIRECTORY", "the cache is built in; --cache-config says how large it is"),
    inert!("model-load-retry-count", "COUNT", "a load that failed fails again; poll mode tries when the files change"),
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
        for flag in FLAGS.iter().filter(|flag| flag.default != Value("false")) {
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
        assert_eq!(names.len(), 14, "{names:?}");
    }

    #[test]
    fn what_cannot_be_left_out_without_harm_is_refused_unless_it_asks_for_nothing() {
        let mut names = Vec::new();
        for flag in FLAGS {
            let (asks, asks_not) = if flag.default == Value("false") { ("true", "false") } else { ("x", "") };
            let mut settings = Settings::default();
            let Err(why) = (flag.apply)(&mut settings, asks) else { continue };
            assert!(why.starts_with("this server has it not: "), "{why}");
            assert_eq!((flag.apply)(&mut settings, asks_not), Ok(()));
            assert_eq!(settings, Settings::default());
            names.push(flag.name());
        }
        assert_eq!(names.len(), 3, "{names:?}");
    }
}
