//! Arguments of the program: the trials, their form, and the server.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// The server of the trials.
#[derive(Clone, Debug, PartialEq)]
pub enum Who {
    /// Already running: its addresses and its process.
    Attached { http: SocketAddr, grpc: SocketAddr, metrics: SocketAddr, pid: u32 },
    /// This project's, one for each trial.
    Deuteron,
    /// Started by a shell command, in which `{http}`, `{grpc}`, `{metrics}` and `{repository}` are replaced.
    Launched(String),
    /// A tritonserver from PyPI, one for each trial.
    Triton,
}

/// The arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// The full sizes and times of each row, one trial after the other, server and clients on a core each; otherwise
    /// small sizes, several trials at a time, and time limits for a busy machine.
    pub is_long: bool,
    /// Instead of the trials: load and faults for this time.
    pub soak: Option<Duration>,
    /// Instead of the trials: writes the models for a server that is started elsewhere.
    pub write_repository: Option<PathBuf>,
    pub who: Who,
    /// Numbers or parts of names; empty for all.
    pub only: Vec<String>,
    /// The models are written for a server that has only the Python backend.
    pub is_for_python: bool,
    pub is_list: bool,
}

pub const USAGE: &str = "\
usage: trials [--long] [--soak SECONDS] [--server deuteron|triton] [NUMBER or part of a name]...
  against a server that runs:  --http HOST:PORT --grpc HOST:PORT --metrics HOST:PORT --pid PID
  that a command starts:       --launch 'COMMAND {http} {grpc} {metrics} {repository}'
  the models for either:       --write-repository DIRECTORY [--python-models]
";

impl Form {
    /// Reads the arguments. Other arguments of libtest are ignored: `cargo test` gives every program the same.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut form = Self {
            is_long: false,
            soak: None,
            write_repository: None,
            who: Who::Deuteron,
            only: Vec::new(),
            is_for_python: false,
            is_list: false,
        };
        let (mut addresses, mut pid) = ([None; 3], None);
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n{USAGE}"));
            match argument.as_str() {
                "--long" => form.is_long = true,
                "--soak" => form.soak = Some(Duration::from_secs(number(&value()?)?)),
                "--server" => {
                    form.who = match value()?.as_str() {
                        "deuteron" => Who::Deuteron,
                        "triton" => Who::Triton,
                        other => return Err(format!("--server is deuteron or triton, not '{other}'")),
                    }
                }
                "--launch" => form.who = Who::Launched(value()?),
                "--http" => addresses[0] = Some(address(&value()?)?),
                "--grpc" => addresses[1] = Some(address(&value()?)?),
                "--metrics" => addresses[2] = Some(address(&value()?)?),
                "--pid" => pid = Some(number(&value()?)?),
                "--write-repository" => form.write_repository = Some(value()?.into()),
                "--python-models" => form.is_for_python = true,
                "--list" => form.is_list = true,
                "--help" | "-h" => return Err(USAGE.to_owned()),
                "--skip" | "--test-threads" | "--color" | "--format" => drop(value()?),
                flag if flag.starts_with("--") => {}
                name => form.only.push(name.to_owned()),
            }
        }
        match (addresses, pid) {
            ([None, None, None], None) => {}
            ([Some(http), Some(grpc), Some(metrics)], Some(pid)) => {
                form.who =
                    Who::Attached { http, grpc, metrics, pid: u32::try_from(pid).map_err(|error| error.to_string())? };
            }
            _ => return Err(format!("--http, --grpc, --metrics and --pid come together\n{USAGE}")),
        }
        form.is_for_python |= form.who == Who::Triton;
        Ok(form)
    }

    /// The size of the form.
    pub fn size<T>(&self, short: T, long: T) -> T {
        if self.is_long { long } else { short }
    }

    /// Returns true if a trial is asked for.
    pub fn wants(&self, number: u32, name: &str) -> bool {
        let matches =
            |only: &String| only.parse().map_or_else(|_| name.contains(only.as_str()), |it: u32| it == number);
        self.only.is_empty() || self.only.iter().flat_map(|only| only.split(',')).any(|one| matches(&one.to_owned()))
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{text}' is no whole number"))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let text = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let found = text.to_socket_addrs().map_err(|error| format!("'{text}' is no HOST:PORT: {error}"))?.next();
    found.ok_or_else(|| format!("'{text}' has no address"))
}
