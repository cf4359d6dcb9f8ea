//! The models of the trials, in two flavours: built-in backends for Deuteron, the same as Python for a server with only
//! that. `faulty` is Python in both.

use std::fs;
use std::path::Path;

/// The model of the good client alone: its counters are the good client's.
pub const GOOD: &str = "good";
/// The model of abuse and load.
pub const ECHO: &str = "echo";
/// 0.2 s for a batch of up to 8.
pub const SLOW: &str = "slow";
/// 0.2 s for one request; a request may have a timeout.
pub const JOB: &str = "job";
/// 2 ms for one request, 64 of which may wait.
pub const QUEUED: &str = "queued";
/// Its versions answer the same.
pub const VERSIONED: &str = "versioned";
/// Adds up the inputs of a sequence, on 8 slots.
pub const SUMS: &str = "sums";
/// Longest pause in a sequence of [`SUMS`].
pub const SEQUENCE_IDLE_MS: u64 = 1_000;
/// Fails as its input says.
pub const FAULTY: &str = "faulty";

/// Echoes one tensor: its name, datatype, rows of a batch, delay, and the rest of its configuration.
type Echo = (&'static str, &'static str, u32, u32, &'static str);

const BATCHED: &str = "dynamic_batching { }";
const TIMED: &str = "dynamic_batching { default_queue_policy { allow_timeout_override: true
    default_timeout_microseconds: 60000000 } }";
const QUEUE: &str = "dynamic_batching { default_queue_policy { allow_timeout_override: true max_queue_size: 64
    default_timeout_microseconds: 60000000 } }";

const ECHOES: [Echo; 12] = [
    (GOOD, "INT64", 8, 0, BATCHED),
    (ECHO, "INT64", 8, 0, BATCHED),
    (SLOW, "INT64", 8, 200, BATCHED),
    (JOB, "INT64", 1, 200, TIMED),
    (QUEUED, "INT64", 1, 2, QUEUE),
    (VERSIONED, "INT64", 8, 0, ""),
    ("identity_fp32", "FP32", 8, 0, ""),
    ("whole", "INT32", 8, 0, ""),
    ("tiny", "INT8", 8, 0, ""),
    ("natural", "UINT8", 8, 0, ""),
    ("logical", "BOOL", 8, 0, ""),
    ("texts", "STRING", 8, 0, ""),
];

/// Writes them all; `is_for_python` for a server with only the Python backend.
pub fn write(repository: &Path, is_for_python: bool) {
    for (name, datatype, rows_max, delay_ms, more) in ECHOES {
        let backend = if is_for_python { "python" } else { "identity" };
        let delay = match delay_ms {
            0 => String::new(),
            _ => format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{delay_ms}\" }} }}\n"),
        };
        let config = format!(
            "backend: \"{backend}\"\nmax_batch_size: {rows_max}\ninstance_group {{ count: 1 kind: KIND_CPU }}\n\
             input {{ name: \"INPUT0\" data_type: TYPE_{datatype} dims: -1 }}\n\
             output {{ name: \"OUTPUT0\" data_type: TYPE_{datatype} dims: -1 }}\n{delay}{more}\n"
        );
        add(repository, name, &config, is_for_python.then_some(include_str!("../oracle/identity.py")));
    }
    let backend = if is_for_python { "python" } else { "sequence" };
    let control = |name: &str| {
        format!("{{ name: '{name}' control {{ kind: CONTROL_SEQUENCE_{name} int32_false_true: [ 0, 1 ] }} }}")
    };
    let sums = format!(
        "backend: '{backend}' max_batch_size: 4 instance_group {{ count: 2 kind: KIND_CPU }}
        input {{ name: 'INPUT' data_type: TYPE_INT32 dims: 1 }} output {{ name: 'OUTPUT' data_type: TYPE_INT32 dims: 1 }}
        sequence_batching {{ max_sequence_idle_microseconds: {} control_input [ {}, {} ] }}",
        SEQUENCE_IDLE_MS * 1_000,
        control("START"),
        control("READY")
    );
    add(repository, SUMS, &sums, is_for_python.then_some(include_str!("../oracle/accumulate.py")));
}

/// Adds the failing model, which needs an interpreter with numpy.
pub fn write_faulty(repository: &Path) {
    let config = "backend: \"python\"\nmax_batch_size: 8\ninstance_group { count: 1 kind: KIND_CPU }\n\
        input { name: \"INPUT0\" data_type: TYPE_INT64 dims: 1 }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT64 dims: 1 }\n\
        parameters { key: \"execute_timeout_ms\" value { string_value: \"1000\" } }\n\
        dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 100000 }\n";
    add(repository, FAULTY, config, Some(include_str!("faulty.py")));
}

fn add(repository: &Path, name: &str, config: &str, program: Option<&str>) {
    let version = repository.join(name).join("1");
    fs::create_dir_all(&version).expect("the folder is ours");
    fs::write(version.with_file_name("config.pbtxt"), config).expect("the folder is ours");
    if let Some(program) = program {
        fs::write(version.join("model.py"), program).expect("the folder is ours");
    }
}
