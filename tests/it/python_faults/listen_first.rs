//! `--listen-first`: while a model starts, the ports report the server's progress. A client never meets a closed port,
//! nor a server that is not ready after it was reported ready.

use std::thread;
use std::time::Duration;

use crate::python_faults::{Deed, interpreter, until};
use crate::support::folder::Folder;
use crate::support::http;
use crate::support::repository::add_example;
use crate::support::server::{Ports, Server};

const START_MAX: Duration = Duration::from_secs(60);

/// A repository of an example, and of a model that starts once a file exists.
fn repository() -> Folder {
    let folder = Folder::new("listen-first");
    let file = folder.path().join("go-on");
    let initialize = format!("while not os.path.exists('{}'):\n    time.sleep(0.01)", file.display());
    Deed { initialize: &initialize, ..Deed::named("waits") }.write(folder.path());
    add_example(folder.path(), "digits");
    folder
}

#[test]
fn the_ports_answer_while_the_models_are_loaded_and_change_hands_without_a_gap() {
    let Some(flag) = interpreter() else { return };
    let folder = repository();
    let request = std::fs::read(folder.path().join("digits/request.json")).unwrap();
    let ports = Ports::free();
    let (address, metrics) = (([127, 0, 0, 1], ports.http).into(), ([127, 0, 0, 1], ports.metrics).into());
    let flags = [&*flag, "--listen-first", "--exit-timeout-secs=20"];
    let command = Server::command(folder.path(), &flags, ports);
    let starter = thread::spawn(move || Server::start_within(START_MAX, command, ports));
    let status = |path: &str| http::get(address, path).map_or(0, |answer| answer.status);
    until("it listens", START_MAX, || status("/v2/health/live") == 200);
    let ready = || String::from_utf8(http::get(address, "/v2/health/ready").unwrap().body).unwrap();
    until("one is loaded", START_MAX, || ready().contains(r#""ready":false,"models_loaded":1,"models":2,"#));
    until("it loads", START_MAX, || ready().contains(r#""loading":[{"name":"waits","stage":"loading""#));
    for path in ["/v2/models/digits/infer", "/v2/repository/index", "/v2/models/unknown/infer"] {
        let answer = http::post(address, path, &request).unwrap();
        let text = String::from_utf8_lossy(&answer.body);
        assert!(answer.status == 503 && text.contains("1 of 2 are loaded"), "{path}: {} {text}", answer.status);
    }
    assert_eq!((status("/v2/models/digits/ready"), status("/v2/health/live")), (503, 200));
    assert_eq!(http::get(metrics, "/metrics").unwrap().status, 200);
    std::fs::write(folder.path().join("go-on"), "").unwrap();
    // Each of these is a connection of its own.
    let (mut was_ready, mut asked) = (false, 0);
    while asked < 50 {
        let is_ready = status("/v2/health/ready");
        assert!(is_ready == 200 || (is_ready == 503 && !was_ready), "{is_ready} after it was ready: {was_ready}");
        was_ready |= is_ready == 200;
        if was_ready {
            assert_eq!(http::post(address, "/v2/models/digits/infer", &request).unwrap().status, 200);
            asked += 1;
        }
    }
    let mut server = starter.join().unwrap();
    assert!(server.stop().success(), "{}", server.log());
}

#[test]
fn without_the_flag_nobody_listens_until_the_models_are_loaded() {
    let Some(flag) = interpreter() else { return };
    let folder = repository();
    let ports = Ports::free();
    let address = ([127, 0, 0, 1], ports.http).into();
    let command = Server::command(folder.path(), &[&flag], ports);
    let starter = thread::spawn(move || Server::start_within(START_MAX, command, ports));
    thread::sleep(Duration::from_millis(500));
    assert!(http::get(address, "/v2/health/live").is_err());
    std::fs::write(folder.path().join("go-on"), "").unwrap();
    let mut server = starter.join().unwrap();
    assert!(server.log().contains("loaded 'waits' version 1 with python in "), "{}", server.log());
    assert!(server.stop().success());
}
