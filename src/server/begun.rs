//! The first state of the server: signals reach it, and its supervisor knows that it starts.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::control::outside::notify::ServiceNotifier;
use crate::control::outside::watched_files::FileWaker;
use crate::control::serving::threads::{FatalHook, ThreadHooks};
use crate::control::thread::ControlMessage;
use crate::error::Error;
use crate::log;
use crate::runtime::clock;
use crate::server::end_deadline::EndDeadline;
use crate::server::signals::forward_signals;
use crate::settings::{Settings, Supervision};
use crate::shard::mailbox::ControlSender;
use crate::time::Instant;

/// The server before it owns anything: its links to the process, and the channel to the control thread.
pub(super) struct BegunServer {
    /// The start of the server, from which the log counts the time of the loads.
    pub(super) began: Instant,
    /// The interval at which the supervisor expects to hear that the server works, if it does.
    pub(super) watchdog: Option<Duration>,
    /// The supervisor that started the server.
    pub(super) notifier: ServiceNotifier,
    /// The path of the program, taken first since its file may be replaced while the server runs.
    pub(super) program: io::Result<PathBuf>,
    /// Wakes the thread that reads the files of access control again.
    pub(super) waker: FileWaker,
    /// Ends the process if its threads do not end.
    pub(super) deadline: EndDeadline,
    /// True once a signal drains the server; until then it ends the process at once.
    pub(super) are_loaded: Arc<AtomicBool>,
    /// The messages that the control thread will handle.
    pub(super) receiver: mpsc::Receiver<ControlMessage>,
    /// The channel to it.
    pub(super) messages: mpsc::Sender<ControlMessage>,
}

impl BegunServer {
    /// Has signals reach the server, and tells its supervisor that it loads models.
    ///
    /// # Errors
    /// `Internal` if the handlers of signals are refused, `Unavailable` if a thread is.
    pub(super) fn begin(settings: &Settings, supervision: &Supervision) -> Result<Self, Error> {
        let (messages, receiver) = mpsc::channel();
        let are_loaded = Arc::new(AtomicBool::new(false));
        let deadline = EndDeadline::new(settings.exit_timeout);
        // First of all: until the handlers are in place, a signal kills the process.
        let waker = FileWaker::default();
        forward_signals(settings, &messages, &are_loaded, &waker, deadline.clone())?;
        let program = std::env::current_exe();
        let notifier = ServiceNotifier::new(supervision.notify_socket.as_deref());
        notifier.tell("STATUS=Loading models");
        let (began, watchdog) = (clock::now(), supervision.watchdog);
        Ok(Self { began, watchdog, notifier, program, waker, deadline, are_loaded, receiver, messages })
    }

    /// Returns the shards' sender to the control thread.
    pub(super) fn control_sender(&self) -> ControlSender {
        let sender = self.messages.clone();
        // Sending fails only when the control thread has ended.
        Arc::new(move |event| drop(sender.send(ControlMessage::Shard(event))))
    }

    /// Returns the hooks for the workers, and the receiver whose channel closes when the last worker has ended.
    pub(super) fn thread_hooks(&self) -> (ThreadHooks, mpsc::Receiver<Infallible>) {
        let (running, ended) = mpsc::channel();
        let messages = self.messages.clone();
        (ThreadHooks { running, ended: Arc::new(move || drop(messages.send(ControlMessage::WorkerEnded))) }, ended)
    }
}

/// Returns the hook for a shard that fails: the server drains the other shards and ends, as after a
/// signal, but with an error.
pub(super) fn end_on_failure(messages: &mpsc::Sender<ControlMessage>, deadline: &EndDeadline) -> FatalHook {
    let (messages, deadline) = (messages.clone(), deadline.clone());
    Arc::new(move |text: &str| {
        log::error(text);
        deadline.start(Duration::ZERO);
        drop(messages.send(ControlMessage::Failed));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_any_thread_reaches_the_control_thread() {
        let (messages, receiver) = mpsc::channel();
        let failure = end_on_failure(&messages, &EndDeadline::new(Duration::from_secs(3_600)));
        let thread = std::thread::spawn(move || failure("a thread of the tests fails, as it should"));
        assert!(matches!(receiver.recv(), Ok(ControlMessage::Failed)));
        thread.join().unwrap();
    }
}
