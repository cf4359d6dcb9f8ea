//! gRPC's keep-alive and the age of connections, with grpcio's channel arguments. The checks are in
//! `tests/python/keep_alive.py`; the timelines are in `connection::http2::keep_alive`.

use std::path::Path;
use std::process::Command;

use crate::support::metrics::metric;
use crate::support::python::Environment;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

/// Plays a case of the script against a server with these flags.
fn play(case: &str, flags: &[&str]) -> Option<Server> {
    let environment = Environment::shared()?;
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), flags);
    let output = Command::new(environment.python())
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/keep_alive.py"))
        .args([case, &server.grpc().to_string()])
        .output()
        .expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.trim() == "ok",
        "{case} {flags:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(server)
}

const STRIKES: &str = "deuteron_http2_calmed_total{limit=\"ping_strikes\"}";

#[test]
fn a_client_that_pings_too_often_is_told_so_and_one_that_may_is_not() {
    let strict = "--grpc-http2-min-recv-ping-interval-without-data=300000";
    for flag in [strict, "--compat=triton"] {
        let Some(strict) = play("too_many_pings", &[flag]) else { return };
        assert!(metric(strict.metrics(), STRIKES) >= 1, "{flag}");
    }
    let short = "--grpc-http2-min-recv-ping-interval-without-data=10";
    for flags in [&[][..], &[short], &[strict, "--grpc-http2-max-ping-strikes=0"]] {
        let lenient = play("enough_pings", flags).unwrap();
        assert_eq!(metric(lenient.metrics(), STRIKES), 0, "{flags:?}");
    }
}

#[test]
fn a_client_that_answers_pings_keeps_its_connection() {
    let flags = ["--grpc-keepalive-time=300", "--grpc-keepalive-timeout=2000", "--grpc-http2-max-pings-without-data=0"];
    let Some(server) = play("quiet_stream", &flags) else { return };
    assert_eq!(metric(server.metrics(), "deuteron_timeouts_total"), 0);
}

#[test]
fn a_connection_of_age_is_replaced_and_what_stays_open_ends_after_its_grace() {
    let flags = ["--grpc-max-connection-age=600", "--grpc-max-connection-age-grace=600"];
    let Some(server) = play("age", &flags) else { return };
    assert!(metric(server.metrics(), "deuteron_connections_total") >= 5);
    assert!(metric(server.metrics(), "deuteron_timeouts_total") >= 1, "the watch was ended");
}
