//! The thread `signals`, which hears the signals of the process and passes them on to the control thread, and the thread
//! that waits for the end of standard input. [`StopSignals`] decides which signals end the server.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::Thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::control::machine::spawn::spawn;
use crate::control::outside::watched_files::FileWaker;
use crate::control::thread::ControlMessage;
use crate::error::Error;
use crate::log;
use crate::runtime::clock;
use crate::server::end_at_once;
use crate::server::end_deadline::EndDeadline;
use crate::server::stop_signals::{StopSignals, StopStep};
use crate::settings::{Compat, Settings};

/// Time after which a second signal counts (`--second-signal-after-ms`): wrappers forward theirs in milliseconds.
const SECOND_SIGNAL_AFTER: Duration = Duration::from_secs(1);

/// Starts the thread that forwards signals to the control thread. Until the models are loaded, a signal that ends the
/// server ends it at once: no client is served yet, and a model's own code may take for ever. So does a second one
/// later, after a grace period ([`StopSignals`]). The end of standard input counts as a first one with
/// `--exit-with-stdin`. SIGHUP reloads, and has the files of TLS read again; where the log goes to a terminal, that was
/// closed, and the server drains.
pub(super) fn forward_signals(
    settings: &Settings,
    messages: &mpsc::Sender<ControlMessage>,
    are_loaded: &Arc<AtomicBool>,
    waker: &FileWaker,
    deadline: EndDeadline,
) -> Result<(), Error> {
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2]);
    let mut signals = signals.map_err(|error| Error::internal(error.to_string()))?;
    let has_input_ended = Arc::new(AtomicBool::new(false));
    // It raises one of them.
    if settings.exits_with_stdin {
        let has_ended = Arc::clone(&has_input_ended);
        spawn("stdin".to_owned(), move || end_with_stdin(&has_ended))?;
    }
    let (messages, are_loaded, delay) = (messages.clone(), Arc::clone(are_loaded), settings.drain_delay);
    let waker = Arc::clone(waker);
    let has_terminal = settings.log_file.is_none() && std::io::stderr().is_terminal();
    let again_after = second_signal_after(settings);
    let body = move || {
        let mut stop_signals = StopSignals::new(again_after);
        for signal in signals.forever() {
            let message = match signal {
                SIGUSR1 => ControlMessage::StateAsked,
                SIGUSR2 => ControlMessage::HandOverOrdered,
                SIGHUP if !has_terminal => {
                    log::reopen();
                    waker.get().into_iter().for_each(Thread::unpark);
                    ControlMessage::Reload
                }
                // Like a shell's code for an end by a signal, which the first process of a
                // container could not have otherwise.
                _ if !are_loaded.load(Ordering::SeqCst) => {
                    log::info(&format!("ended by signal {signal} before the models were loaded"));
                    end_at_once(128 + signal);
                }
                _ => {
                    let step = match has_input_ended.swap(false, Ordering::SeqCst) {
                        true => stop_signals.handle_end_of_input(clock::now()),
                        false => stop_signals.handle_signal(clock::now()),
                    };
                    match step {
                        StopStep::Drain => deadline.start(delay),
                        StopStep::End => {
                            log::warning(&format!("ended at once by a second signal ({signal})"));
                            end_at_once(128 + signal);
                        }
                        StopStep::Ignored(left) => log::info(&ignored_text(signal, left)),
                    }
                    ControlMessage::Signal(signal)
                }
            };
            if messages.send(message).is_err() {
                return;
            }
        }
    };
    spawn("signals".to_owned(), body).map(drop)
}

/// Ends the server as SIGTERM does once standard input has ended, which it does with the process at its other side.
fn end_with_stdin(has_ended: &AtomicBool) {
    // The input is ignored; an error is an end too.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    log::info("standard input has ended, and the server with it (--exit-with-stdin)");
    has_ended.store(true, Ordering::SeqCst);
    let _ = signal_hook::low_level::raise(SIGTERM);
}

/// The grace period after the first signal that ends the server; `None` where the others are ignored, as by tritonserver.
fn second_signal_after(settings: &Settings) -> Option<Duration> {
    settings.second_signal_after.or_else(|| (settings.compat != Compat::Triton).then_some(SECOND_SIGNAL_AFTER))
}

/// Says that a signal changed nothing, and what would.
fn ignored_text(signal: i32, left: Option<Duration>) -> String {
    match left {
        None => format!(
            "signal {signal} is ignored, as by tritonserver: the server ends already (--second-signal-after-ms=0 lets a \
             second one end it at once)"
        ),
        Some(left) => format!(
            "signal {signal} is ignored: the server ends already, and wrappers forward a signal that its process group \
             has received too; one more, {} ms from now or later, ends it at once (--second-signal-after-ms)",
            left.as_millis()
        ),
    }
}
