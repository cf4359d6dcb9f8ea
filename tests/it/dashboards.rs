//! The Grafana board, the alerts and the scrape configuration of `deploy`, against a server under load that a real
//! Prometheus scrapes. The checks are in `tests/deploy/check.py`.

use std::path::Path;
use std::process::Command;

use crate::support::skipped::skip_unless_ci;

#[test]
fn every_expression_of_board_and_alerts_has_a_series_of_a_server_under_load() {
    if ["prometheus", "promtool"].iter().any(|program| Command::new(program).arg("--version").output().is_err()) {
        return skip_unless_ci("no prometheus with its promtool");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("python3")
        .arg("-B")
        .arg(root.join("tests/deploy/check.py"))
        .arg(env!("CARGO_BIN_EXE_deuteron"))
        .output()
        .expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.lines().count() > 5, "it says what it has checked: {text}");
}
