//! Servers whose model repository is in a store, on stand-ins for these and a proxy that has faults. A program of its
//! own: it needs a build with the feature `stores` (`.ci/run stores`).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test waits, on the real clock, shares, and fails by panicking"
)]

#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod faults;
mod kinds;
mod proxy;
mod scripted;
mod stand_in;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::server::{Ports, Server};
use crate::support::{http, repository};

/// Time limit for a change to show.
const WAIT_MAX: Duration = Duration::from_secs(40);

/// A secret that must not be in any log.
const SECRET: &str = "wJalrXUtnFEMIsecret";

/// A model that answers with its input.
const MODEL: &str = "backend: 'identity' max_batch_size: 8 version_policy { all {} }
    input { name: 'INPUT0' data_type: TYPE_FP32 dims: 2 } output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: 2 }";

/// A repository with these models; each has one version, with a file of weights that is only fetched.
fn models(names: &[&str]) -> Folder {
    let folder = Folder::new("stores-models");
    for name in names {
        repository::add(folder.path(), name, MODEL, None);
        fs::write(folder.path().join(name).join("1/weights"), format!("weights of {name}")).unwrap();
    }
    folder
}

/// A server on a store, and its cache.
struct Setup {
    url: String,
    cache: Folder,
    variables: Vec<(String, String)>,
}

impl Setup {
    /// On S3 at this host.
    fn s3(host: &str) -> Self {
        let setup = Self::new(format!("s3://{host}/bucket/models"));
        setup.with("AWS_ACCESS_KEY_ID", "AKIAPLAIN").with("AWS_SECRET_ACCESS_KEY", SECRET)
    }

    fn new(url: String) -> Self {
        Self { url, cache: Folder::new("stores-cache"), variables: Vec::new() }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self, flags: &[&str], ports: Ports) -> Command {
        let cache = format!("--model-store-cache={}", self.cache.path().display());
        let mut command = Server::command(Path::new(&self.url), &[&["--shards=1", &cache], flags].concat(), ports);
        for name in [
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_ENDPOINT",
            "AWS_ENDPOINT_URL",
            "TRITON_CLOUD_CREDENTIAL_PATH",
            "HTTP_PROXY",
        ] {
            command.env_remove(name).env_remove(name.to_lowercase());
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value))).env("NO_PROXY", "127.0.0.1");
        command
    }

    fn serve(&self, flags: &[&str]) -> Server {
        let ports = Ports::free();
        Server::start(self.command(flags, ports), ports)
    }

    /// The same, which looks at the store each second.
    fn poll(&self, flags: &[&str]) -> Server {
        self.serve(&[&["--model-control-mode=poll", "--repository-poll-secs=1"], flags].concat())
    }

    /// Message of a server that does not start.
    fn refused(&self, flags: &[&str]) -> String {
        let mut command = self.command(flags, Ports::free());
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success(), "{text}");
        assert!(!text.contains(SECRET) && !text.contains("secret-of-the-store"), "{text}");
        text
    }

    /// The files in the cache, without those of the server's own.
    fn cached(&self) -> Vec<String> {
        let all = stand_in::files(self.cache.path()).into_iter().map(|path| path.display().to_string());
        let mut cached: Vec<_> = all.filter_map(|path| Some(path.split_once("/tree/models/")?.1.to_owned())).collect();
        cached.sort();
        cached
    }
}

fn status(server: &Server, path: &str) -> u16 {
    http::get(server.http(), path).unwrap().status
}

/// Returns true if a model answers a request.
fn answers(server: &Server, model: &str) -> bool {
    let body = br#"{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","data":[1,2]}]}"#;
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body).unwrap();
    answer.status == 200 && String::from_utf8_lossy(&answer.body).contains("\"data\":[1.0,2.0]")
}

fn load(server: &Server, model: &str) -> (u16, String) {
    let answer = http::post(server.http(), &format!("/v2/repository/models/{model}/load"), b"{}").unwrap();
    (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
}

/// A figure of the only store.
fn figure(server: &Server, name: &str) -> u64 {
    let text = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
    let begin = format!("deuteron_store_{name}{{store=\"");
    let row = text.lines().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("no {name} in {text}"));
    row.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A count of failures.
fn failures(server: &Server, reason: &str) -> u64 {
    let text = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
    let end = format!("reason=\"{reason}\"}} ");
    let row =
        text.lines().find_map(|line| line.split_once(&end).filter(|_| line.starts_with("deuteron_store_failures")));
    row.unwrap_or_else(|| panic!("no {reason} in {text}")).1.parse().unwrap()
}

/// Waits until the condition holds.
fn wait_for(server: &Server, what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < WAIT_MAX, "{what}:\n{}", server.log());
        thread::sleep(Duration::from_millis(50));
    }
}

/// The log, without secrets.
fn log(server: &Server) -> String {
    let log = server.log();
    assert!(!log.contains(SECRET) && !log.contains("secret-of-the-store"), "{log}");
    log
}
