//! The console in a real browser (`tests/console/console.mjs`), with 46 models: by the keyboard, the filter, addresses,
//! requests from its form, files and pictures, charts, an ensemble, dark and narrow. The screenshots stay in
//! `target/tmp/console` for a person to look at.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::folder::{Folder, target};
use crate::support::python::Environment;
use crate::support::server::Server;
use crate::support::skipped::skip_unless_ci;
use crate::support::{http, repository};

mod texts;

const KEY: &str = "s3cret-console";
const KEYS: &str = "[[key]]\nname = \"console\"\nclasses = [\"admin\", \"infer\", \"read\"]\n\
                    sha256 = \"70c04a1519a6a78bddd7e2b01cc9517e79ff4863483753ac5b066c98306afa8d\"\n";

/// A browser and its driver.
struct Browser {
    program: &'static str,
    node: PathBuf,
    /// The working directory of scripts.
    folder: Folder,
    /// Takes the screenshots.
    pictures: PathBuf,
}

impl Browser {
    fn find(name: &str) -> Option<Self> {
        let mut programs = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].into_iter();
        let Some(program) = programs.find(|path| Path::new(path).exists()) else {
            skip_unless_ci("no chromium");
            return None;
        };
        let environment = Environment::create("console", "tests/console/requirements.txt", &["python3"])?;
        let driver = environment.packages().join("playwright/driver");
        let folder = Folder::new(name);
        fs::create_dir(folder.path().join("node_modules")).unwrap();
        symlink(driver.join("package"), folder.path().join("node_modules/playwright-core")).unwrap();
        let pictures = target().join("tmp/console");
        fs::create_dir_all(&pictures).unwrap();
        Some(Self { program, node: driver.join("node"), folder, pictures })
    }

    /// Runs a script of `tests/console` on a server; returns the count of its checks, which must all hold.
    fn run(&self, script: &str, server: &Server, arguments: &[&str]) -> usize {
        let output = Command::new(&self.node)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/console").join(script))
            .arg(format!("http://{}", server.metrics()))
            .args([self.program.as_ref(), self.pictures.as_path()])
            .args(arguments)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.lines().all(|line| line.starts_with("ok ")), "{text}");
        text.lines().count()
    }

    fn check_pictures(&self, names: &[&str]) {
        for name in names {
            assert!(fs::metadata(self.pictures.join(name)).unwrap().len() > 10_000, "{name}");
        }
    }
}

#[test]
fn a_browser_shows_the_server_and_asks_a_model_without_a_mouse() {
    let Some(browser) = Browser::find("console") else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let models = Folder::new("console-models");
    let copied = Command::new("cp").arg("-rT").arg(root.join("examples/models")).arg(models.path()).status();
    assert!(copied.expect("cp starts").success());
    let copied = Command::new("cp").arg("-rT").arg(root.join("examples/ensemble")).arg(models.path()).status();
    assert!(copied.expect("cp starts").success());
    for name in ["README.md", "make.py", "request.json"] {
        let _ = fs::remove_file(models.path().join(name));
    }
    let add = |name: &str, config: &str| repository::add(models.path(), name, config, None);
    add("<img src=x onerror=alert(1)>", &copies("TYPE_STRING", "1"));
    add("large", &copies("TYPE_FP32", "3, 224, 224"));
    add("image", &copies("TYPE_FP32", "3, -1, -1"));
    add("list", &copies("TYPE_FP32", "-1, 2"));
    for number in 1..=36 {
        add(&format!("copy_{number}"), &copies("TYPE_FP32", "4"));
    }
    add("broken", "backend: \"none\"");
    repository::add(models.path(), "cut_short", "platform: \"onnxruntime_onnx\"", Some(b"no ONNX"));
    let server = Server::deuteron(models.path(), &["--shards=1", "--exit-on-error=false", "--strict-readiness=false"]);
    let keys = browser.folder.path().join("keys.toml");
    fs::write(&keys, KEYS).unwrap();
    let keys = format!("--api-keys-file={}", keys.display());
    let explicit = ["--model-control-mode=explicit", "--load-model=*"];
    let with_keys = Server::deuteron(&root.join("examples/models"), &["--shards=1", &keys, explicit[0], explicit[1]]);
    let request = root.join("examples/models/digits/request.json");
    let keys_url = format!("http://{}", with_keys.metrics());
    let checks = browser.run("console.mjs", &server, &[request.to_str().unwrap(), &keys_url, KEY]);
    assert!(checks > 50, "{checks}");
    let names = ["light.png", "dark.png", "narrow.png", "models.png", "image.png", "ensemble.png", "phone.png"];
    browser.check_pictures(&names);
}

/// The configuration of a model that copies its input.
fn copies(datatype: &str, dims: &str) -> String {
    let tensor =
        |kind: &str, name: &str| format!("{kind} {{ name: \"{name}\" data_type: {datatype} dims: [ {dims} ] }} ");
    format!("backend: \"identity\" {}{}", tensor("input", "x"), tensor("output", "y"))
}

#[test]
fn the_page_has_its_policy_and_is_shown_to_whom_the_flag_says() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    let get = |server: &Server, path: &str, fields: &[(&str, &str)]| {
        http::exchange(server.metrics(), &http::request("GET", path, fields, b"")).unwrap()
    };
    let server = Server::deuteron(&models, &["--shards=1"]);
    let page = get(&server, "/", &[]);
    let policy = page.header("Content-Security-Policy").unwrap();
    assert!(policy.starts_with("default-src 'self';"), "{policy}");
    assert_eq!((page.status, page.header("X-Content-Type-Options")), (200, Some("nosniff")));
    let told: serde_json::Value = serde_json::from_slice(&get(&server, "/console/server", &[]).body).unwrap();
    assert_eq!(told["http_port"], server.http().port());
    let refused = [
        ("X-Forwarded-For", "10.0.0.7"),
        ("Via", "1.1 proxy"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Origin", "http://evil.example"),
    ];
    for (name, value) in refused {
        assert_eq!(get(&server, "/console/logs/0", &[(name, value)]).status, 403, "{name}");
    }
    for (host, status) in [("127.0.0.1", 200), ("[::1]:8002", 200), ("evil.example", 403), ("10.0.0.7:8002", 403)] {
        let request = format!("GET /console/logs/0 HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(http::exchange(server.metrics(), request.as_bytes()).unwrap().status, status, "{host}");
    }
    assert_eq!(get(&server, "/metrics", &[("Via", "1.1 proxy")]).status, 200);

    // The lines of the log belong to the same part of the interface as its settings.
    let restricted = Server::deuteron(&models, &["--shards=1", "--http-restricted-api=logging:own=v"]);
    assert_eq!(get(&restricted, "/console/logs/0", &[]).status, 403);
    assert_eq!(get(&restricted, "/console/logs/0", &[("own", "v")]).status, 200);

    let without = Server::deuteron(&models, &["--shards=1", "--console=off"]);
    let page = get(&without, "/", &[]);
    assert!(page.header("Content-Security-Policy").is_none() && page.body.is_empty(), "{page:?}");
}
