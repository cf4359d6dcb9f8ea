//! The server that a trial is played against: started for it, or running already, and the figures of its process.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use crate::form::Who;
use crate::models;
use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::server::{Ports, Server};
use crate::support::{http, triton};
use crate::trial::{NotApplicable, Trial};

/// A trial's wishes for the start of its server.
#[derive(Clone, Copy, Default)]
pub struct Wish<'a> {
    pub deuteron: &'a [&'a str],
    pub triton: &'a [&'a str],
    /// Shell commands that the server's process runs before it becomes the server.
    pub shell: &'a str,
    /// True if a running server can be tried as well.
    pub may_be_attached: bool,
    /// True if the failing model is needed.
    pub has_faulty: bool,
}

/// A server without special wishes.
pub const PLAIN: Wish<'_> = Wish { deuteron: &[], triton: &[], shell: "", may_be_attached: true, has_faulty: false };
/// A server that the trial must start itself.
pub const OWN: Wish<'_> = Wish { may_be_attached: false, ..PLAIN };

/// A server.
pub struct Subject {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub metrics: SocketAddr,
    pub pid: u32,
    pub server: Option<Server>,
    pub repository: Option<Folder>,
}

impl Subject {
    /// Starts a server for a trial, or takes the running one.
    pub fn start(trial: &Trial<'_>, wish: Wish<'_>) -> Result<Self, NotApplicable> {
        if let Who::Attached { http, grpc, metrics, pid } = trial.form.who {
            if !wish.may_be_attached {
                return Err(NotApplicable("needs a server of its own: --launch".to_owned()));
            }
            return Ok(Self { http, grpc, metrics, pid, server: None, repository: None });
        }
        let folder = Folder::new("trials");
        models::write(folder.path(), trial.form.is_for_python);
        if wish.has_faulty {
            models::write_faulty(folder.path());
        }
        let (command, ports) = command(trial, wish, &folder)?;
        Ok(Self::run(command, ports, folder))
    }

    /// Runs the server of this command.
    pub fn run(command: Command, ports: Ports, folder: Folder) -> Self {
        let server = Server::start(command, ports);
        let (http, grpc, metrics, pid) = (server.http(), server.grpc(), server.metrics(), server.id());
        Self { http, grpc, metrics, pid, server: Some(server), repository: Some(folder) }
    }

    /// Bytes that the process holds in memory.
    pub fn resident(&self) -> i64 {
        self.status("VmRSS:") * 1024
    }

    /// The most memory that it held since [`Subject::reset_peak`].
    pub fn peak(&self) -> i64 {
        self.status("VmHWM:") * 1024
    }

    /// Forgets the peak: proc(5), `clear_refs`.
    pub fn reset_peak(&self) {
        let _ = fs::write(format!("/proc/{}/clear_refs", self.pid), "5");
    }

    /// Descriptors that are open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }

    /// CPU time that the process has used.
    pub fn cpu(&self) -> Duration {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let ticks: u64 = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second())
    }

    /// Returns true if the process runs.
    pub fn is_running(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    pub fn signal(&self, name: &str) {
        let _ = Command::new("kill").args(["-s", name, &self.pid.to_string()]).status();
    }

    /// Its log, if the trial started it.
    pub fn log(&self) -> String {
        self.server.as_ref().map(Server::log).unwrap_or_default()
    }

    /// Returns true if it answers that it is live.
    pub fn is_live(&self) -> bool {
        http::get(self.http, "/v2/health/live").is_ok_and(|answer| answer.status == 200)
    }

    /// Waits until a condition holds. Returns false if it did not in time.
    pub fn waits(&self, most: Duration, is_so: impl Fn(&Self) -> bool) -> bool {
        let start = Instant::now();
        while !is_so(self) {
            if start.elapsed() > most {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Asks it to end, and waits for the end.
    pub fn stop(&mut self) -> Option<ExitStatus> {
        self.server.as_mut().map(Server::stop)
    }

    fn status(&self, name: &str) -> i64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }
}

/// The command that starts a server on this repository.
pub fn command(trial: &Trial<'_>, wish: Wish<'_>, folder: &Folder) -> Result<(Command, Ports), NotApplicable> {
    let (command, ports) = match &trial.form.who {
        Who::Attached { .. } => return Err(NotApplicable("needs a server of its own: --launch".to_owned())),
        Who::Deuteron => {
            let mut flags: Vec<String> = wish.deuteron.iter().map(|flag| (*flag).to_owned()).collect();
            flags.push("--shards=1".to_owned());
            if wish.has_faulty {
                let Some(environment) = Environment::of_models() else {
                    return Err(NotApplicable("there is no Python with numpy".to_owned()));
                };
                flags.push(format!("--backend-config=python,interpreter={}", environment.python().display()));
            }
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let ports = Ports::free();
            (Server::command(folder.path(), &flags, ports), ports)
        }
        Who::Launched(line) => {
            let ports = Ports::free();
            let line = line.replace("{http}", &ports.http.to_string()).replace("{grpc}", &ports.grpc.to_string());
            let line = line.replace("{metrics}", &ports.metrics.to_string());
            let line = line.replace("{repository}", &folder.path().display().to_string());
            let mut command = Command::new("sh");
            command.args(["-c", &format!("exec {line}")]);
            (command, ports)
        }
        Who::Triton => triton::command(folder.path(), wish.triton)
            .ok_or_else(|| NotApplicable("there is no Python that tritonserver runs with".to_owned()))?,
    };
    Ok((wrapped(command, wish.shell, trial.form.is_long), ports))
}

/// The same behind shell commands, and on a core of its own if times are checked against the row.
fn wrapped(command: Command, shell: &str, has_core: bool) -> Command {
    let core = if has_core { "taskset -c 0 " } else { "" };
    let semicolon = if shell.is_empty() { "" } else { "; " };
    let mut outer = Command::new("sh");
    outer.args(["-c", &format!("{shell}{semicolon}exec {core}\"$@\""), "sh"]);
    outer.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}
