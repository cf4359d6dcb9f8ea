//! The server: loads the models, starts workers and shards, and turns the main thread into the control thread until a
//! signal ends the server. No inference request passes through here.
//!
//! The start is a chain of states. Each owns all that the server has by then, and its file has the step that leads to
//! it, which consumes the state before. A step that fails drops the rest in the order of the fields, the newest first.
//!
//! ```text
//! begun     signals reach the server, the supervisor knows that it starts
//! claimed   addresses, files of access control, Redis, model repositories
//! loaded    the first models; a signal drains the server from now on
//! planned   queues and cores, and the part that all threads share
//! started   the threads: watches, owners, workers, and the shards, which listen
//! ready     clients, log and supervisor know; the control thread runs to the end
//! ```

mod admin_socket;
mod begun;
pub mod check;
mod claimed;
pub mod doctor;
mod end_deadline;
pub mod key;
mod listeners;
mod loaded;
mod planned;
mod ready;
pub mod show;
mod signals;
mod stand_in;
mod start_summary;
mod started;
mod stop_signals;
pub mod suggest;

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use signal_hook::low_level::exit;

use crate::control::engines::{isolated_backend, isolated_engine};
use crate::control::loading::trial_process;
use crate::crash;
use crate::crash::signal::CrashOutput;
use crate::error::Error;
use crate::log::{self, LogTerminal, PlainTarget};
use crate::server::begun::BegunServer;
use crate::settings::{LogFormat, Settings, Supervision};

/// Serves until a signal or a failure ends the server. Returns the exit code for `main`. `terminal`
/// receives the log without a file, `purge` makes the allocator return free pages.
pub fn run(settings: &Settings, supervision: &Supervision, terminal: Option<LogTerminal>, purge: fn()) -> ExitCode {
    let inherited = listeners::inherit(supervision);
    // Held to the end: the last lines are written then.
    let guard = log::start_thread(settings.log, settings.log_file.as_deref(), terminal).map_err(Error::unavailable);
    let is_json = settings.log.format == LogFormat::Json;
    crash::signal::install(CrashOutput { file: settings.log_file.as_deref(), is_json });
    match guard.as_ref().map_err(Clone::clone).and_then(|_| serve(settings, supervision, inherited, purge)) {
        Ok(code) => code,
        Err(error) => {
            tell_failure(settings, &error);
            ExitCode::FAILURE
        }
    }
}

/// Reports once the reason that the server did not start: on standard error like tritonserver. A
/// log in a file has it too, and one in JSON has only lines of JSON.
fn tell_failure(settings: &Settings, error: &Error) {
    let has_file = settings.log_file.is_some();
    let is_json = !has_file && settings.log.error && settings.log.format == LogFormat::Json;
    if has_file || is_json {
        log::error(&format!("creating server: {error}"));
    }
    if !is_json {
        log::plain(PlainTarget::Error, &format!("error: creating server: {error}\n"));
    }
}

/// Ends the process without exit handlers, but for its log.
fn end_at_once(code: i32) -> ! {
    log::flush();
    exit(code)
}

/// Tries a load for a server that waits for it, and ends the process at once: without exit
/// handlers, in which an engine may spend a while.
pub fn try_load(settings: &Settings) -> ! {
    exit(trial_process::run(settings))
}

/// Runs the engine of an isolated model, and ends the process at once.
pub fn run_engine() -> ! {
    crash::signal::install(CrashOutput { file: None, is_json: false });
    exit(isolated_engine::run())
}

/// Runs a backend of Triton's in the process of its instance, and ends the process.
pub fn run_backend() -> ! {
    crash::signal::install(CrashOutput { file: None, is_json: false });
    exit(isolated_backend::run())
}

/// Starts the server, one state after the other, and serves to the end.
fn serve(
    settings: &Settings,
    supervision: &Supervision,
    inherited: io::Result<Vec<OwnedFd>>,
    purge: fn(),
) -> Result<ExitCode, Error> {
    let begun = BegunServer::begin(settings, supervision)?;
    let claimed = begun.claim(settings, supervision, inherited)?;
    let loaded = claimed.load()?;
    let planned = loaded.plan()?;
    let started = planned.start(purge)?;
    let ready = started.serve();
    Ok(ready.run())
}
