//! Real clients from PyPI against a real server: `tritonclient` over HTTP and gRPC, sync and
//! asyncio. Their checks are in `tests/python/`.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::support::python::Environment;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

#[test]
fn tritonclient_gets_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    let Some(environment) = Environment::shared() else { return };
    let repository = repository::write(Flavour::Deuteron);
    repository::add_example(repository.path(), "digits");
    repository::add_configured(repository.path());
    let mut server = Server::deuteron(repository.path(), &[]);
    let output = Command::new(environment.python())
        .arg(folder.join("clients.py"))
        .args(["--http", &server.http().to_string(), "--grpc", &server.grpc().to_string()])
        .output()
        .expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    let failed: Vec<&str> = text.lines().filter(|line| line.starts_with("FAILED")).collect();
    assert!(
        output.status.success(),
        "{failed:#?}\n{}\nthe server runs: {}, its log:\n{}",
        String::from_utf8_lossy(&output.stderr),
        server.is_running(),
        server.log()
    );
    let passed = text.lines().last().and_then(|line| line.split(' ').next()?.parse::<u32>().ok());
    assert!(passed.is_some_and(|passed| passed > 350), "{text}");
}

#[test]
fn a_client_of_a_test_that_fails_while_a_stream_is_open_ends() {
    let Some(environment) = Environment::shared() else { return };
    // The peer never answers on it, so the stream stays.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let program = format!("import streams; kept = streams.Stream('{}'); assert False", silent.local_addr().unwrap());
    let output = Command::new(environment.python())
        .args(["-c", &program])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python"))
        .output()
        .expect("the interpreter starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && errors.contains("AssertionError"), "{errors}");
}
