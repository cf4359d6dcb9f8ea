//! The process of a model of Triton's backends ([`crate::process::triton_process`]): limits itself,
//! and serves the server on the socket that is standard input at its start.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use rustix::process::{Resource, Rlimit};

use crate::log;
use crate::process::triton_process::worker;
use crate::runtime::clock;
use crate::settings::LogSettings;

/// Serves until the server ends it. Returns the exit status of the process.
pub fn run() -> i32 {
    // Its output goes to the server's log.
    log::start(LogSettings::SILENT);
    // A crash leaves no copy of the model behind.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(Resource::Core, none);
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { return 1 };
    // A backend that reads its standard input must not take the server's messages.
    let Ok(nothing) = File::open("/dev/null") else { return 1 };
    if rustix::stdio::dup2_stdin(&nothing).is_err() {
        return 1;
    }
    let Err(error) = worker::serve(socket, clock::now) else { return 0 };
    // The server logs it.
    let _ = writeln!(std::io::stderr(), "{error}");
    1
}
