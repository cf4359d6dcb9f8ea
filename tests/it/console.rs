//! The console in a real browser (`tests/console/console.mjs`): by the keyboard, a request from its form, a picture, dark and
//! narrow. The screenshots stay in `target/tmp/console` for a person to look at.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::support::folder::{Folder, target};
use crate::support::python::Environment;
use crate::support::server::Server;
use crate::support::skipped::skip_unless_ci;

#[test]
fn a_browser_shows_the_server_and_asks_a_model_without_a_mouse() {
    let browser = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].into_iter().find(|path| Path::new(path).exists());
    let Some(browser) = browser else { return skip_unless_ci("no chromium") };
    let Some(environment) = Environment::create("console", "tests/console/requirements.txt", &["python3"]) else {
        return;
    };
    let driver = environment.packages().join("playwright/driver");
    let folder = Folder::new("console");
    fs::create_dir(folder.path().join("node_modules")).unwrap();
    symlink(driver.join("package"), folder.path().join("node_modules/playwright-core")).unwrap();
    let pictures = target().join("tmp/console");
    fs::create_dir_all(&pictures).unwrap();

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let server = Server::deuteron(&root.join("examples/models"), &["--shards=1"]);
    let output = Command::new(driver.join("node"))
        .arg(root.join("tests/console/console.mjs"))
        .arg(format!("http://{}", server.metrics()))
        .args([browser.as_ref(), pictures.as_path()])
        .arg(root.join("examples/models/digits/request.json"))
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.lines().count() > 15 && text.lines().all(|line| line.starts_with("ok ")), "{text}");
    for name in ["light.png", "dark.png", "narrow.png"] {
        assert!(fs::metadata(pictures.join(name)).unwrap().len() > 10_000, "{name}");
    }
}
