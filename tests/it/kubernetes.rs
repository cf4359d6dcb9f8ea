//! The YAML of `deploy/kserve` and `deploy/helm`, held to schemas and played as a node, KServe, Knative and Prometheus would
//! (`tests/kubernetes/contract.py`). No cluster runs.

use std::path::Path;
use std::process::Command;

use crate::support::python::Environment;
use crate::support::skipped::skip_unless_ci;

/// Number of lines that the program prints, one for each check that holds.
const CHECKS: usize = 24;

/// It takes 15 to 30.
const SECONDS_MAX: &str = "300";

#[test]
fn the_yaml_is_what_kubernetes_and_kserve_expect_and_its_containers_keep_the_contract() {
    if Command::new("promtool").arg("--version").output().is_err() {
        return skip_unless_ci("no promtool");
    }
    // A user without root is root within namespaces of its own.
    let mapped: &[_] = if rustix::process::geteuid().is_root() { &[] } else { &["--map-root-user"] };
    let tried = Command::new("unshare").args(["--net", "--mount"]).args(mapped).args(["--", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        return skip_unless_ci("no network of its own can be made (unshare)");
    }
    let list = "tests/kubernetes/requirements.txt";
    let Some(environment) = Environment::create("kubernetes", list, &["python3"]) else { return };
    let output = Command::new("timeout")
        .args(["--kill-after=10", SECONDS_MAX])
        .arg(environment.python())
        .arg("-B")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/contract.py"))
        .arg(env!("CARGO_BIN_EXE_deuteron"))
        .output()
        .expect("the interpreter starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), CHECKS, "{text}");
}
