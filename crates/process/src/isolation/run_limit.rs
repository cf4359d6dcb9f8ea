//! The bound on the memory of a run in the process of an isolated model (`--run-memory-bytes-max`). An engine of foreign
//! code allocates what the values of a request ask for. Beyond the bound its allocator fails, and the request is
//! refused; without it the machine's memory would fill first.

use std::fs;

use base::error::{Code, Error};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Memory of a process during runs beside their tensors: the stacks of threads that start late, caches of allocators.
const BESIDE_RUNS: u64 = 256 * 1024 * 1024;

/// Texts of engines whose allocator failed. In lower case.
const FAILED: [&str; 7] = [
    "bad_alloc",
    "failed to allocate",
    "can't allocate",
    "cannot allocate",
    "could not allocate",
    "not enough memory",
    "oom when allocating",
];

/// Lets the process take as much as it may: an instance is made, with weights of its own.
pub(super) fn lift() {
    let maximum = getrlimit(Resource::Data).maximum;
    let _ = setrlimit(Resource::Data, Rlimit { current: maximum, maximum });
}

/// Bounds what runs add to the memory that the process has now, in bytes.
pub(super) fn set(run_max: u64) {
    // Unit tests run the worker on a thread, and the bound would be that of all tests in the process.
    if cfg!(test) {
        return;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let maximum = getrlimit(Resource::Data).maximum;
    let wanted = data_bytes(&status).map(|used| used.saturating_add(run_max).saturating_add(BESIDE_RUNS));
    let current = match (wanted, maximum) {
        (Some(wanted), Some(maximum)) => Some(wanted.min(maximum)),
        (wanted, maximum) => wanted.or(maximum),
    };
    // If the kernel refuses it, only the bounds of the machine apply.
    let _ = setrlimit(Resource::Data, Rlimit { current, maximum });
}

/// The bytes that count for the limit, in `/proc/self/status`.
fn data_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A run whose allocator failed is refused by the bound; other errors stay as they are.
pub(super) fn explain(error: Error, model: &str, run_max: u64) -> Error {
    let lower = error.text().to_lowercase();
    if error.code() == Code::InvalidArgument || !FAILED.iter().any(|text| lower.contains(text)) {
        return error;
    }
    Error::invalid(format!(
        "model '{model}': a run on these inputs takes more memory than it may have, {run_max} bytes; send less, or increase \
         --run-memory-bytes-max"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_that_fails_is_refused_by_the_flag_and_other_errors_stay() {
        let allocation = "onnx runtime error 6: Failed to allocate memory for requested buffer of size 8589934592";
        for text in [allocation, "Exception from inference: std::bad_alloc"] {
            let error = explain(Error::internal(text), "m", 1000);
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.text().contains("1000 bytes; send less, or increase --run-memory-bytes-max"), "{error}");
        }
        for error in [Error::internal("no kernel"), Error::invalid("the axis cannot allocate")] {
            assert_eq!(explain(error.clone(), "m", 1000), error);
        }
    }

    #[test]
    fn the_bytes_that_count_are_read_from_the_kernels_table() {
        assert_eq!(data_bytes("VmPeak:\t  9 kB\nVmData:\t  1234 kB\n"), Some(1_263_616));
        assert_eq!(data_bytes("VmPeak: 1 kB"), None);
    }
}
