//! The balancers' files in `deploy`, as they are shipped, before three servers that are drained and killed under load
//! (`tests/balancers/balancers.py`): HAProxy, Envoy, and gRPC that balances in the client. No client waits longer than
//! 0.3 s.

use std::path::Path;
use std::process::Command;

use crate::support::python::Environment;
use crate::support::skipped::skip_unless_ci;
use crate::turn;

/// Number of lines that the program prints, one for each check that holds.
const CHECKS: usize = 43;

#[test]
fn replicas_behind_a_balancer_are_drained_and_killed_and_no_request_is_lost() {
    // Both turns: three servers, a balancer and their clients need all cores.
    let _alone = [turn(), turn()];
    if Command::new("/usr/sbin/haproxy").arg("-v").output().is_err() {
        return skip_unless_ci("no haproxy");
    }
    let list = "tests/balancers/requirements.txt";
    let Some(environment) = Environment::create("balancers", list, &["python3"]) else { return };
    let output = Command::new(environment.python())
        .arg("-B")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/balancers/balancers.py"))
        // One of three: `.ci/run balancers` drains all.
        .arg("--drains=1")
        .arg(env!("CARGO_BIN_EXE_deuteron"))
        .output()
        .expect("the interpreter starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), CHECKS, "{text}");
}
