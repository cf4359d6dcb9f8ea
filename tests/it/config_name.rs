//! `--model-config-name`: which configuration a model has, and that a poll sees it change.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::server::{Ports, Server};

fn config(rows: u32) -> String {
    format!(
        "backend: 'identity' max_batch_size: {rows} input {{ name: 'INPUT0' data_type: TYPE_FP32 dims: 1 }}
        output {{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: 1 }}"
    )
}

/// Models `named`, which has `configs/small.pbtxt`, `plain`, which has another, and `bare`, which has only that.
fn repository() -> Folder {
    let folder = Folder::new("named");
    for (model, files) in [
        ("named", &[("config.pbtxt", 8), ("configs/small.pbtxt", 2)][..]),
        ("plain", &[("config.pbtxt", 8), ("configs/large.pbtxt", 64)]),
        ("bare", &[("configs/small.pbtxt", 3)]),
    ] {
        for directory in ["1", "configs"] {
            fs::create_dir_all(folder.path().join(model).join(directory)).expect("the folder is ours");
        }
        for (file, rows) in files {
            fs::write(folder.path().join(model).join(file), config(*rows)).expect("the folder is ours");
        }
    }
    folder
}

fn rows(server: &Server, model: &str) -> Option<u64> {
    let answer = http::get(server.http(), &format!("/v2/models/{model}/config")).ok()?;
    serde_json::from_slice::<serde_json::Value>(&answer.body).ok()?["max_batch_size"].as_u64()
}

#[test]
fn a_model_that_has_the_configuration_of_the_name_takes_it_and_a_poll_sees_it_change() {
    let folder = repository();
    let flags = ["--model-config-name=small", "--model-control-mode=poll", "--repository-poll-secs=1"];
    let server = Server::deuteron(folder.path(), &flags);
    assert_eq!(["named", "plain", "bare"].map(|model| rows(&server, model)), [Some(2), Some(8), Some(3)]);
    fs::write(folder.path().join("named/configs/small.pbtxt"), config(4)).expect("the folder is ours");
    let start = Instant::now();
    while rows(&server, "named") != Some(4) {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn without_the_flag_the_usual_configuration_is_read_and_a_wrong_one_is_told_by_its_name() {
    let folder = repository();
    fs::remove_dir_all(folder.path().join("bare")).expect("the folder is ours");
    let server = Server::deuteron(folder.path(), &[]);
    assert_eq!(["named", "plain"].map(|model| rows(&server, model)), [Some(8), Some(8)]);
    fs::write(folder.path().join("named/configs/small.pbtxt"), "nonsense").expect("the folder is ours");
    let output = Server::command(folder.path(), &["--model-config-name=small"], Ports::free()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("in configs/small.pbtxt: "), "{text}");
}
