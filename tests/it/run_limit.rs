//! Runs that take too long: they are stopped, or their instance is given up, and the process always ends in time.

use std::time::{Duration, Instant};

use crate::onnxruntime::{environment, flag, parameters};
use crate::support::folder::Folder;
use crate::support::http::{self, Response};
use crate::support::server::Server;
use crate::support::{onnx, repository};

/// Far more than a test waits for.
const TRIPS: i64 = 2_000_000_000;
/// Rows of a request to a heavy model: each of its products takes a good part of a second.
const ROWS: usize = 2_048;
/// From SIGTERM to the end with `--exit-timeout-secs=1`, on a busy machine.
const END_MAX: Duration = Duration::from_secs(8);

fn infer(server: &Server, model: &str, body: &str) -> (u16, String) {
    text(http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap())
}

fn text(response: Response) -> (u16, String) {
    (response.status, String::from_utf8(response.body).unwrap())
}

fn get(server: &Server, path: &str) -> u16 {
    http::get(server.http(), path).unwrap().status
}

/// A request to a model that counts; `None` for one with the count in its file.
fn count(server: &Server, model: &str, trips: Option<i64>) -> (u16, String) {
    let x = r#"{"name":"X","shape":[2],"datatype":"FP32","data":[0.5,1.5]}"#;
    let trips = trips.map(|trips| format!(r#",{{"name":"TRIPS","shape":[1],"datatype":"INT64","data":[{trips}]}}"#));
    infer(server, model, &format!(r#"{{"inputs":[{x}{}]}}"#, trips.unwrap_or_default()))
}

fn heavy_body() -> String {
    let zeros = vec!["0"; ROWS].join(",");
    format!(r#"{{"inputs":[{{"name":"X","shape":[{ROWS},1],"datatype":"FP32","data":[{zeros}]}}]}}"#)
}

/// A model whose run time grows with its rows.
fn add_heavy(folder: &Folder, products: usize, more: &[(&str, &str)]) {
    let config = format!("max_batch_size: {ROWS}\n{}", parameters(more));
    repository::add(folder.path(), "heavy", &config, Some(&onnx::heavy(products)));
}

/// Stops a server in which only endless runs are left. Returns the time that it took.
fn stop(server: &mut Server) -> Duration {
    let began = Instant::now();
    server.stop();
    began.elapsed()
}

#[test]
fn a_run_of_the_embedded_engine_that_takes_too_long_costs_its_model_and_nothing_else() {
    let folder = Folder::new("run-limit");
    let worker = parameters(&[("placement", "worker"), ("run_timeout_secs", "1")]);
    add_heavy(&folder, 200, &[("placement", "worker"), ("run_timeout_secs", "1")]);
    repository::add(folder.path(), "short", &worker, Some(&onnx::adding_up_to(3)));
    let flags = ["--exit-timeout-secs=1", "--shards=1", "--strict-readiness=true"];
    let mut server = Server::deuteron(folder.path(), &flags);
    let began = Instant::now();
    let (status, text) = infer(&server, "heavy", &heavy_body());
    assert_eq!(status, 504, "{text}");
    let (status, _) = infer(&server, "heavy", &heavy_body());
    assert_eq!(status, 504, "as Triton's, a model on the CPU has two instances");
    let want = "model 'heavy': the run took longer than 1s (--run-timeout-secs, or the model's parameter \
                'run_timeout_secs') and cannot be stopped: its instance is given up until the run ends";
    assert!(text.contains(want), "{text}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((get(&server, "/v2/models/heavy/ready"), get(&server, "/v2/health/ready")), (503, 503));
    assert_eq!(get(&server, "/v2/health/live"), 200);
    for _ in 0..3 {
        let (status, text) = infer(&server, "heavy", &heavy_body());
        assert!(status == 503 && text.contains("model 'heavy' is not ready: a run takes longer"), "{status} {text}");
    }
    let (status, text) = count(&server, "short", None);
    assert!(status == 200 && text.contains("[3.5,4.5]"), "{status} {text}");
    let log = server.log();
    let line = log.lines().find(|line| line.contains("cannot be stopped")).unwrap_or(&log);
    assert!(line.contains("a run of 'heavy' takes longer than 1s (--run-timeout-secs)"), "{line}");
    let took = stop(&mut server);
    assert!(took < END_MAX, "{took:?}");
}

#[test]
fn a_run_that_is_given_up_and_ends_after_all_has_its_instance_serve_again() {
    let folder = Folder::new("run-limit");
    add_heavy(&folder, 8, &[("placement", "worker"), ("run_timeout_secs", "1")]);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let (status, text) = infer(&server, "heavy", &heavy_body());
    assert_eq!(status, 504, "{text}");
    let began = Instant::now();
    while get(&server, "/v2/models/heavy/ready") != 200 {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let one = r#"{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1]}]}"#;
    let (status, text) = infer(&server, "heavy", one);
    assert!(status == 200 && text.contains(r#""data":[1.0]"#) || text.contains(r#""data":[1]"#), "{status} {text}");
}

#[test]
fn a_shard_that_computes_for_ever_does_not_keep_the_process() {
    let folder = Folder::new("run-limit");
    add_heavy(&folder, 200, &[("placement", "inline")]);
    let mut server = Server::deuteron(folder.path(), &["--exit-timeout-secs=1", "--shards=1"]);
    let request = http::request("POST", "/v2/models/heavy/infer", &[], heavy_body().as_bytes());
    let mut connection = http::Connection::open(server.http()).unwrap();
    connection.send(&request).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let took = stop(&mut server);
    assert!(took < END_MAX, "{took:?}");
    assert!(
        server.log().contains("a shard still runs a model --exit-timeout-secs after the signal"),
        "{}",
        server.log()
    );
}

#[test]
fn onnx_runtime_is_stopped_and_its_instance_goes_on() {
    let Some(environment) = environment() else { return };
    let folder = Folder::new("run-limit");
    let worker = parameters(&[("placement", "worker")]);
    repository::add(folder.path(), "counting", &worker, Some(&onnx::adding_up()));
    add_heavy(&folder, 200, &[("placement", "inline"), ("run_timeout_secs", "2")]);
    let flags = [flag(environment), "--run-timeout-secs=1".to_owned(), "--exit-timeout-secs=1".to_owned()];
    let mut server = Server::deuteron(folder.path(), &flags.each_ref().map(String::as_str));
    for _ in 0..2 {
        let (status, text) = count(&server, "counting", Some(TRIPS));
        assert!(status == 504 && text.contains("the run took longer than 1s (--run-timeout-secs"), "{status} {text}");
        assert!(text.contains("and was stopped"), "{text}");
        let (status, text) = count(&server, "counting", Some(3));
        assert!(status == 200 && text.contains("[3.5,4.5]"), "{status} {text}");
    }
    let (status, text) = infer(&server, "heavy", &heavy_body());
    assert!(
        status == 504 && text.contains("took longer than 2s") && text.contains("and was stopped"),
        "{status} {text}"
    );
    assert_eq!((get(&server, "/v2/models/counting/ready"), get(&server, "/v2/models/heavy/ready")), (200, 200));
    assert!(server.log().contains("a run of 'heavy' took longer than 2s (--run-timeout-secs) and is stopped"));
    let took = stop(&mut server);
    assert!(took < END_MAX, "{took:?}");
}
