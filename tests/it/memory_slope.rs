//! Growth of the server's memory over a million requests of three kinds, after a warm-up: it must keep nothing of
//! answered requests. `.ci/run slope` runs it; a plain `cargo test` sends none.

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::repository::{self, Flavour};
use crate::support::server::Server;
use crate::support::skipped::skip;

/// The variable that sets the number of requests.
const VARIABLE: &str = "DEUTERON_SLOPE_REQUESTS";
/// Number of looks at the memory, each after the same number of requests of each kind.
const LOOKS: u64 = 20;
/// Bytes that a million requests may leave behind.
const SLOPE_MAX: f64 = 1024.0 * 1024.0;

/// Sends `count` requests of each kind.
fn send(server: &Server, count: u64) {
    let kinds: [(SocketAddr, &[&str]); 3] =
        [(server.http(), &["--json"]), (server.http(), &["--binary"]), (server.grpc(), &["-i", "grpc"])];
    for (address, flags) in kinds {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        command.args(["bench", "-m", "identity_fp32", "--shape=INPUT0:64", "--concurrency=16"]).args(flags);
        command.arg(format!("--url={address}")).arg(format!("--request-count={count}"));
        let status = command.stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "{flags:?}");
    }
}

/// Memory of the process that the kernel cannot reclaim, once free pages are back.
fn resident(server: &Server) -> f64 {
    thread::sleep(Duration::from_secs(5));
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

/// The slope of the best line through these points, by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    let both = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum::<f64>();
    both / points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum::<f64>()
}

#[test]
fn a_million_requests_leave_no_memory_behind() {
    let Some(count) = env::var(VARIABLE).ok().and_then(|count| count.parse::<u64>().ok()) else {
        return skip(&format!("it sends as many requests as {VARIABLE} says"));
    };
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let each = count / LOOKS / 3;
    send(&server, 2 * each);
    let mut points = vec![(0.0, resident(&server))];
    for look in 1..=LOOKS {
        send(&server, each);
        points.push(((look * each * 3) as f64, resident(&server)));
    }
    let slope = slope(&points) * 1e6;
    let kib: Vec<_> = points.iter().map(|(_, bytes)| (bytes / 1024.0) as u64).collect();
    println!("{slope:.0} bytes in a million requests; KiB: {kib:?}");
    assert!(slope <= SLOPE_MAX, "{slope} bytes in a million requests: {kib:?}");
}

#[test]
fn the_slope_of_a_line_is_found() {
    assert_eq!(slope(&[(0.0, 5.0), (1.0, 7.0), (2.0, 9.0)]), 2.0);
    assert_eq!(slope(&[(0.0, 5.0), (1.0, 9.0), (2.0, 5.0)]), 0.0);
}
