//! Sequences, streams and decoupled models by `tritonclient`, sync and asyncio, and silero-vad whose state the server
//! keeps, held against the model driven by hand. The checks are in `tests/sequences/`.

use std::path::Path;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::repository::{REPEAT, SQUARE, SUMS};
use crate::support::server::Server;
use crate::support::{metrics, repository};

const ITERATIVE: &str = "backend: 'iterative_sequence' max_batch_size: 4
    input { name: 'INPUT' data_type: TYPE_INT32 dims: 1 } output { name: 'OUTPUT' data_type: TYPE_INT32 dims: 1 }
    model_transaction_policy { decoupled: true } sequence_batching { iterative_sequence: true }";

#[test]
fn tritonclient_has_sequences_streams_and_decoupled_models() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("tests/sequences");
    let Some(environment) = Environment::shared() else { return };
    let repository = Folder::new("sequence-clients");
    for (name, config) in [("sums", SUMS), ("repeat", REPEAT), ("square", SQUARE), ("iterative", ITERATIVE)] {
        repository::add(repository.path(), name, config, None);
    }
    let run = |arguments: &[&str]| {
        let output = Command::new(environment.python())
            .arg(folder.join("check.py"))
            .args(arguments)
            .output()
            .expect("the interpreter starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), text, errors)
    };
    let example = root.join("examples/speech/silero_vad");
    let (is_written, _, errors) =
        run(&["write", &repository.path().display().to_string(), &example.display().to_string()]);
    assert!(is_written, "{errors}");
    let server = Server::deuteron(repository.path(), &["--shards=2"]);
    let (is_well, text, errors) = run(&["check", &server.http().to_string(), &server.grpc().to_string()]);
    println!("{text}{errors}");
    assert!(is_well, "{text}{errors}\n{}", server.log());
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 11, "{text}");
    // All that were left are counted, and nothing is under way.
    let start = std::time::Instant::now();
    while metrics::metric(server.metrics(), "deuteron_requests_in_flight") != 0 {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "something is under way still");
        std::thread::yield_now();
    }
}
