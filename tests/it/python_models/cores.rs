//! The cores and the thread counts of Python processes: fixed before `model.py` is imported, equal, and overridden by
//! the user's variables. Nothing is timed.

use super::zoo::{CASES, Models, Zoo};
use crate::support::server::Server;

/// Reports the variables that a library sees when it is imported, and the cores of the process when it runs.
const CORES: &str = r#"
import os

import numpy as np
import triton_python_backend_utils as pb_utils

AT_IMPORT = sorted(os.sched_getaffinity(0))
COUNTS = (
    "BLIS_NUM_THREADS LOKY_MAX_CPU_COUNT MKL_NUM_THREADS NUMBA_NUM_THREADS NUMEXPR_NUM_THREADS OMP_NUM_THREADS "
    "OPENBLAS_NUM_THREADS OPENCV_FOR_THREADS_NUM POLARS_MAX_THREADS RAYON_NUM_THREADS TF_NUM_INTEROP_THREADS "
    "TF_NUM_INTRAOP_THREADS VECLIB_MAXIMUM_THREADS"
).split()


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        self.in_initialize = sorted(os.sched_getaffinity(0))

    def execute(self, requests):
        now = sorted(os.sched_getaffinity(0))
        same = AT_IMPORT == self.in_initialize == now
        counts = " ".join(sorted({os.environ.get(name, "unset") for name in COUNTS}))
        own = os.environ.get("OMP_NUM_THREADS", "unset")
        cores = ",".join(map(str, AT_IMPORT))
        lines = [f"{cores} {'kept' if same else now}", counts, own]
        result = pb_utils.Tensor("result", np.array(lines, dtype=object))
        return [pb_utils.InferenceResponse([result]) for _ in requests]
"#;

/// The cores that this process, and so its server, may use.
fn available() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

fn list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// A server with `count` instances of the model, these flags and these variables.
fn serve(count: usize, flags: &[&str], variables: &[(&str, &str)]) -> Option<Zoo> {
    let config = CASES.replace("kind: KIND_CPU", &format!("kind: KIND_CPU count: {count}"));
    let models = Models::new()?.add("m", &config, CORES);
    let (mut command, ports) = models.command(flags);
    for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    Some(Zoo { server: Server::start(command, ports), models })
}

#[test]
fn a_process_has_its_cores_and_as_many_threads_before_its_model_is_imported() {
    let all = available();
    let last = list(&all[all.len() - 1..]);
    let check = |count: usize, flags: &[&str], cores: &str, threads: usize| {
        let Some(zoo) = serve(count, flags, &[]) else { return };
        let threads = threads.to_string();
        let want = [format!("{cores} kept"), threads.clone(), threads];
        assert_eq!(zoo.case("m", "any").unwrap(), want, "{count} instances, {flags:?}\n{}", zoo.server.log());
    };
    let every = list(&all);
    check(1, &[], &every, all.len());
    check(2, &[], &every, (all.len() / 2).max(1));
    check(1, &[&format!("--worker-cores={last}")], &last, 1);
    check(1, &["--shards=1", &format!("--worker-cores={every}")], &every, all.len());
    // Cores that a host policy gives are not for other models, and its processes have no others.
    check(1, &[&format!("--host-policy=cpu,cpu-cores={last}")], &last, 1);
}

#[test]
fn a_variable_of_the_user_goes_before_the_servers_in_all_libraries() {
    let all = available().len().to_string();
    let check = |variables: &[(&str, &str)], counts: &str, own: &str| {
        let Some(zoo) = serve(1, &[], variables) else { return };
        let told = zoo.case("m", "any").unwrap();
        assert_eq!(told[1..], [counts.to_owned(), own.to_owned()], "{variables:?}");
    };
    // Not MKL_NUM_THREADS, which torch reads first, with another number.
    check(&[("OMP_NUM_THREADS", "7")], "7", "7");
    let mut both = [all.as_str(), "9"];
    both.sort_unstable();
    check(&[("MKL_NUM_THREADS", "9")], &both.join(" "), &all);
}

#[test]
fn the_worker_of_a_process_takes_no_core_from_the_shards() {
    let all = available();
    let Some(zoo) = serve(2, &[], &[]) else { return };
    let log = zoo.server.log();
    assert!(log.contains(&format!("{} shards on cores ", all.len())), "{log}");
}
