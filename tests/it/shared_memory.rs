//! Shared memory of clients by `tritonclient` and its own helpers, over HTTP and gRPC. The checks are in
//! `tests/shared_memory/`.

use std::path::Path;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::server::Server;
use crate::support::{metrics, repository};

const PAIR: &str =
    "input { name: 'INPUT0' data_type: TYPE_FP32 dims: -1 } output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: -1 }";
const REPEAT: &str = "backend: 'repeat' model_transaction_policy { decoupled: true }
    input [ { name: 'IN' data_type: TYPE_INT32 dims: -1 }, { name: 'DELAY' data_type: TYPE_UINT32 dims: -1 },
    { name: 'WAIT' data_type: TYPE_UINT32 dims: 1 } ]
    output [ { name: 'OUT' data_type: TYPE_INT32 dims: 1 }, { name: 'IDX' data_type: TYPE_UINT32 dims: 1 } ]";

fn models() -> Folder {
    let folder = Folder::new("shared-memory");
    let add = |name: &str, config: &str| repository::add(folder.path(), name, config, None);
    add("identity", &format!("backend: 'identity' max_batch_size: 8 {PAIR}"));
    let delay = "parameters { key: 'execute_delay_ms' value { string_value: '600' } }";
    add("slow", &format!("backend: 'identity' max_batch_size: 8 instance_group {{ count: 1 }} {delay} {PAIR}"));
    // A batch has four requests, whenever they arrive.
    let batching = "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 20000000 }";
    add(
        "batched",
        &format!(
            "backend: 'identity' max_batch_size: 4 instance_group {{ count: 1 }} {batching} {PAIR}
        parameters {{ key: 'placement' value {{ string_value: 'worker' }} }}"
        ),
    );
    let second = PAIR.replace("INPUT0", "INPUT1").replace("OUTPUT0", "OUTPUT1");
    add("two", &format!("backend: 'identity' max_batch_size: 8 {PAIR} {second}"));
    add("names", &format!("backend: 'identity' max_batch_size: 8 {}", PAIR.replace("FP32", "STRING")));
    add("repeat", REPEAT);
    add("cached", &format!("backend: 'identity' max_batch_size: 8 response_cache {{ enable: true }} {PAIR}"));
    let step = |input: &str, output: &str| {
        format!(
            "{{ model_name: 'identity' model_version: -1 input_map {{ key: 'INPUT0' value: '{input}' }}
            output_map {{ key: 'OUTPUT0' value: '{output}' }} }}"
        )
    };
    let steps = [step("INPUT0", "between"), step("between", "OUTPUT0")].join(",");
    add(
        "ensemble",
        &format!("platform: 'ensemble' max_batch_size: 8 {PAIR} ensemble_scheduling {{ step [ {steps} ] }}"),
    );
    folder
}

fn run(environment: &Environment, server: &mut Server, more: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shared_memory/check.py");
    let mut command = Command::new(environment.python());
    command.arg(script).args([server.http().to_string(), server.grpc().to_string()]).args(more);
    let output = command.output().expect("the interpreter starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{text}{errors}");
    let is_well = output.status.success() && text.contains("ok ") && !text.contains("FAILED");
    assert!(is_well, "{text}{errors}\nthe server runs: {}, its log:\n{}", server.is_running(), server.log());
}

#[test]
fn tritonclient_has_tensors_in_shared_memory() {
    let Some(environment) = Environment::shared() else { return };
    let models = models();
    let mut flags = vec!["--shards=2", "--allow-client-shm=true", "--client-shm-bytes-max=65536"];
    flags.push("--cache-config=local,size=1048576");
    let mut server = Server::deuteron(models.path(), &flags);
    run(&environment, &mut server, &[]);
    // Every request was answered once, and no request is left.
    assert_eq!(metrics::metric(server.metrics(), "deuteron_requests_in_flight"), 0);
    assert!(server.stop().success(), "{}", server.log());
}

#[test]
fn shared_memory_is_refused_unless_a_flag_allows_it() {
    let Some(environment) = Environment::shared() else { return };
    let models = models();
    let mut server = Server::deuteron(models.path(), &["--shards=1"]);
    run(&environment, &mut server, &["refused"]);
}
