//! The reason why a process has ended.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;

/// The reason why a process has ended, in words for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// The kernel did not say.
    Unknown,
}

impl ExitReason {
    /// The kernel's report on a process that was reaped.
    pub fn from_status(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Killed(signal),
            (None, None) => Self::Unknown,
        }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit status {code}"),
            Self::Killed(signal) => match SIGNAL_NAMES.iter().find(|(number, _)| number.as_raw() == *signal) {
                Some((_, name)) => write!(f, "killed by signal {signal} ({name})"),
                None => write!(f, "killed by signal {signal}"),
            },
            Self::Unknown => f.write_str("ended for an unknown reason"),
        }
    }
}

/// The signals that end processes.
const SIGNAL_NAMES: &[(Signal, &str)] = &[
    (Signal::ABORT, "SIGABRT"),
    (Signal::ALARM, "SIGALRM"),
    (Signal::BUS, "SIGBUS"),
    (Signal::FPE, "SIGFPE"),
    (Signal::HUP, "SIGHUP"),
    (Signal::ILL, "SIGILL"),
    (Signal::INT, "SIGINT"),
    (Signal::KILL, "SIGKILL"),
    (Signal::PIPE, "SIGPIPE"),
    (Signal::QUIT, "SIGQUIT"),
    (Signal::SEGV, "SIGSEGV"),
    (Signal::SYS, "SIGSYS"),
    (Signal::TERM, "SIGTERM"),
    (Signal::TRAP, "SIGTRAP"),
    (Signal::USR1, "SIGUSR1"),
    (Signal::USR2, "SIGUSR2"),
    (Signal::XCPU, "SIGXCPU"),
    (Signal::XFSZ, "SIGXFSZ"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_said_in_words() {
        let says = |status| ExitReason::from_status(ExitStatus::from_raw(status)).to_string();
        assert_eq!(says(3 << 8), "exit status 3");
        assert_eq!(says(11), "killed by signal 11 (SIGSEGV)");
        assert_eq!(says(35), "killed by signal 35");
        assert_eq!(says(0x7f), "ended for an unknown reason");
    }
}
