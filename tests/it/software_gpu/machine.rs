//! A machine with a software GPU: its environment variables, its log, and a server there.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::libraries;
use crate::support::folder::Folder;
use crate::support::server::{Ports, Server};

/// Generous time limit for steps that take milliseconds.
const WAIT_MAX: Duration = Duration::from_secs(30);

pub struct Machine {
    folder: Folder,
    libraries: &'static Path,
    variables: Vec<(String, String)>,
}

impl Machine {
    /// One with a device. `None` without a compiler that makes it.
    pub fn new() -> Option<Self> {
        Some(Self { folder: Folder::new("machine"), libraries: libraries::built()?, variables: Vec::new() })
    }

    /// The same with a variable.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((format!("SOFTWARE_GPU_{name}"), value.to_owned()));
        self
    }

    /// Lets a program find the libraries of a folder, with their settings.
    pub fn prepare_with(&self, command: &mut Command, libraries: &Path) {
        let before = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        command.env("LD_LIBRARY_PATH", format!("{}:{before}", libraries.display()));
        command.env("SOFTWARE_GPU_LOG", self.folder.path().join("log"));
        command.env("SOFTWARE_GPU_FAULTS_FILE", self.folder.path().join("faults"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// The same, with all the libraries.
    pub fn prepare(&self, command: &mut Command) {
        self.prepare_with(command, self.libraries);
    }

    /// A server on it, on one shard.
    pub fn serve(&self, repository: &Path, flags: &[&str]) -> Server {
        self.serve_with(repository, flags, self.libraries)
    }

    /// A server on it with other libraries.
    pub fn serve_with(&self, repository: &Path, flags: &[&str], libraries: &Path) -> Server {
        let ports = Ports::free();
        let mut command = Server::command(repository, &[&["--shards=1"], flags].concat(), ports);
        self.prepare_with(&mut command, libraries);
        Server::start(command, ports)
    }

    /// Lets a step fail from now on: `kind@n`.
    pub fn fail(&self, what: &str) {
        // The file is read as soon as it exists.
        let (new, path) = (self.folder.path().join("new"), self.folder.path().join("faults"));
        fs::write(&new, what).expect("the folder is ours");
        fs::rename(new, path).expect("the folder is ours");
    }

    /// The log that it wrote.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Checks that a stopped server misused nothing and released everything to the driver.
    pub fn check_clean(&self) {
        let log = self.log();
        let is_fault = |line: &&str| ["misuse:", "leak:", "illegal:"].iter().any(|kind| line.starts_with(kind));
        assert_eq!(log.lines().find(is_fault), None, "{log}");
        assert!(log.trim_end().ends_with(" 0 contexts left"), "{log}");
    }
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX, "not in {WAIT_MAX:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
