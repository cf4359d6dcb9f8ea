//! The log. Any thread logs lines; if the log's thread runs, it writes them, so that no shard and
//! no decision waits for a disk or for the reader of the pipe. Too many lines are dropped and
//! counted. Commands that end soon have no such thread: they write at once.

pub mod cause;
pub mod format;
mod output;
mod queue;
mod tail;
mod terminal;
mod thread;

use std::io::{self, Write};
use std::panic::Location;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

pub use crate::log::format::{AccessLine, Severity, duration_text, size_text};
pub use crate::log::queue::PlainTarget;
pub use crate::log::terminal::LogTerminal;
pub use crate::settings::{LogFormat, LogSettings};

use crate::limits::{LOG_FLUSH_STEP, LOG_MODEL_STEPS_MAX, LOG_TEXT_SIZE_MAX};
use crate::log::cause::Cause;
use crate::log::format::{LineHead, push_text};
use crate::log::queue::{LogQueue, LogRecord, Said};
use crate::log::thread::{LIMITED, LogThread, UNWRITTEN};

/// The time that the end of the process waits for lines that are not yet written: a disk needs
/// milliseconds, and a pipe without a reader forever.
const LOG_FLUSH_MAX: Duration = Duration::from_millis(500);

/// [`LogSettings`] in one word, so that they change together. Until they are set, all levels but the verbose one are
/// logged.
static SETTINGS: AtomicU64 = AtomicU64::new(INFO | WARNING | ERROR);
const INFO: u64 = 1;
const WARNING: u64 = 2;
const ERROR: u64 = 4;
const FORMAT_SHIFT: u32 = 8;
const VERBOSE_SHIFT: u32 = 32;

/// The log's thread, once it runs.
static STARTED: OnceLock<StartedLog> = OnceLock::new();

/// The queue of the log's thread, and its target.
struct StartedLog {
    queue: Arc<LogQueue>,
    /// The name of its file; empty for standard error.
    file: String,
    /// The terminal of standard error, if a person reads it and the log goes there.
    terminal: Option<LogTerminal>,
}

/// Sets the levels and the format.
pub fn start(settings: LogSettings) {
    SETTINGS.store(pack(settings), Ordering::Relaxed);
}

/// Sets the levels and the format, and starts the thread that writes lines from now on; panics are
/// logged too. Only for the first call of a process.
///
/// # Errors
/// If the file cannot be opened, or the system refuses another thread.
pub fn start_thread(
    settings: LogSettings,
    file: Option<&Path>,
    terminal: Option<LogTerminal>,
) -> Result<LogGuard, String> {
    start(settings);
    let name = file.map(|path| path.display().to_string()).unwrap_or_default();
    let thread =
        LogThread::open(file, terminal).map_err(|error| format!("cannot open --log-file '{name}': {error}"))?;
    let (sender, receiver) = std::sync::mpsc::channel::<Arc<LogQueue>>();
    // It ends at once if the queue never comes.
    let body = move || {
        if let Ok(queue) = receiver.recv() {
            thread.run(&queue);
        }
    };
    let spawned = std::thread::Builder::new().name("log".to_owned()).spawn(body);
    let spawned = spawned.map_err(|error| format!("cannot start the log's thread: {error}"))?;
    let queue = Arc::new(LogQueue::new(spawned.thread().clone()));
    let terminal = terminal.filter(|_| file.is_none());
    if STARTED.set(StartedLog { queue: Arc::clone(&queue), file: name, terminal }).is_ok() {
        // Its receiver waits.
        let _ = sender.send(queue);
        std::panic::set_hook(Box::new(log_panic));
    }
    Ok(LogGuard(()))
}

/// Flushes the log when it is dropped.
#[must_use]
pub struct LogGuard(());

impl Drop for LogGuard {
    fn drop(&mut self) {
        flush();
    }
}

/// Waits until all logged lines are written, for `LOG_FLUSH_MAX` at most. Called before the
/// process ends.
#[expect(clippy::disallowed_methods, reason = "a bound on a wait at the end of the process; nothing else asks")]
pub fn flush() {
    let Some(StartedLog { queue, .. }) = STARTED.get() else { return };
    let (pushed, began) = (queue.pushed(), Instant::now());
    while !queue.is_settled(pushed) && began.elapsed() < LOG_FLUSH_MAX {
        std::thread::park_timeout(LOG_FLUSH_STEP);
    }
}

/// Opens the log's file again: it was renamed.
pub fn reopen() {
    STARTED.get().into_iter().for_each(|log| log.queue.reopen());
}

/// Logs normal operation.
#[track_caller]
pub fn info(text: &str) {
    if SETTINGS.load(Ordering::Relaxed) & INFO != 0 {
        say(Severity::Info, Location::caller(), true, text);
    }
}

/// Logs a matter that should be looked into, though the server goes on.
#[track_caller]
pub fn warning(text: &str) {
    if SETTINGS.load(Ordering::Relaxed) & WARNING != 0 {
        say(Severity::Warning, Location::caller(), true, text);
    }
}

/// Logs a failure.
#[track_caller]
pub fn error(text: &str) {
    if SETTINGS.load(Ordering::Relaxed) & ERROR != 0 {
        say(Severity::Error, Location::caller(), true, text);
    }
}

/// Logs details, with `--log-verbose`.
#[track_caller]
pub fn verbose(text: &str) {
    if is_verbose() {
        say(Severity::Verbose, Location::caller(), true, text);
    }
}

/// Logs the whole output of a model's own code: a flood waits here until the log's thread catches
/// up, and only the model waits with it. If that takes too long the log has no reader, and the rest
/// is dropped. Not for a shard.
#[track_caller]
pub fn from_model(severity: Severity, text: &str) {
    static IS_UNREAD: AtomicBool = AtomicBool::new(false);
    if let Some(StartedLog { queue, .. }) = STARTED.get() {
        let steps = if IS_UNREAD.load(Ordering::Relaxed) { 0 } else { LOG_MODEL_STEPS_MAX };
        (0..steps).take_while(|_| !queue.has_room()).for_each(|_| std::thread::park_timeout(LOG_FLUSH_STEP));
        IS_UNREAD.store(!queue.has_room(), Ordering::Relaxed);
    }
    unlimited(severity, text);
}

/// Returns true if lines of models have room. Without a log's thread they have.
pub fn has_room() -> bool {
    STARTED.get().is_none_or(|log| log.queue.has_room())
}

/// Logs what comes as often as its author wants, such as a line for each request.
#[track_caller]
pub fn unlimited(severity: Severity, text: &str) {
    let settings = settings();
    let is_on = match severity {
        Severity::Error => settings.error,
        Severity::Info => settings.info,
        Severity::Verbose => settings.verbose > 0,
        Severity::Warning => settings.warning,
    };
    if is_on {
        say(severity, Location::caller(), false, text);
    }
}

/// Logs a request in the access log.
pub fn access(line: Box<AccessLine>) {
    if let Some(StartedLog { queue, .. }) = STARTED.get() {
        queue.push(LogRecord { at: since_epoch(), said: Said::Access(line) });
    }
}

/// Writes a text as it is to standard output or error, wherever the log goes.
pub fn plain(target: PlainTarget, text: &str) {
    let Some(StartedLog { queue, .. }) = STARTED.get() else {
        // Errors are ignored: a closed pipe must not end the process.
        let _ = match target {
            PlainTarget::Error => io::stderr().write_all(text.as_bytes()),
            PlainTarget::Output => io::stdout().write_all(text.as_bytes()),
        };
        return;
    };
    queue.push(LogRecord { at: since_epoch(), said: Said::Plain(target, text.into()) });
}

/// Shows a line below all others on a terminal, in place of the previous one; `None` removes it.
/// Without effect if the log goes elsewhere.
pub fn show_status(line: Option<&str>) {
    if let Some(StartedLog { queue, .. }) = STARTED.get() {
        let line = line.map(Into::into);
        queue.push(LogRecord { at: since_epoch(), said: Said::Status(line) });
    }
}

/// Returns true if details are logged.
pub fn is_verbose() -> bool {
    SETTINGS.load(Ordering::Relaxed) >> VERBOSE_SHIFT != 0
}

/// Returns the current levels and format.
pub fn settings() -> LogSettings {
    unpack(SETTINGS.load(Ordering::Relaxed))
}

/// Returns the file that the log goes to; empty for standard error.
pub fn file() -> &'static str {
    STARTED.get().map_or("", |log| &log.file)
}

/// Returns the terminal that the log goes to, if any.
pub fn terminal() -> Option<LogTerminal> {
    STARTED.get().and_then(|log| log.terminal)
}

/// Changes the levels and the format.
pub fn change(change: impl Fn(&mut LogSettings)) {
    let changed = |word| {
        let mut settings = unpack(word);
        change(&mut settings);
        Some(pack(settings))
    };
    // Never an error: there is always a changed word.
    let _ = SETTINGS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
}

/// Returns the last lines from a number on, and the number of the next; `None` while the log's
/// thread has them, which is for microseconds.
pub fn last_lines(number: u64) -> Option<(Vec<Box<str>>, u64)> {
    thread::TAIL.try_lock().ok().map(|tail| tail.since(number))
}

/// Returns the lines that were not written, by reason.
pub fn losses() -> [(&'static str, u64); 3] {
    let dropped = STARTED.get().map_or(0, |log| log.queue.dropped());
    let (limited, unwritten) = (LIMITED.load(Ordering::Relaxed), UNWRITTEN.load(Ordering::Relaxed));
    [("queue_full", dropped), ("repeated", limited), ("write_failed", unwritten)]
}

fn say(severity: Severity, cause: Cause, is_limited: bool, text: &str) {
    let at = since_epoch();
    let end = text.floor_char_boundary(LOG_TEXT_SIZE_MAX);
    let text = text.get(..end).unwrap_or_default();
    if let Some(StartedLog { queue, .. }) = STARTED.get() {
        return queue.push(LogRecord { at, said: Said::Text(severity, cause, is_limited, text.into()) });
    }
    let source = (thread::source(cause.file()), cause.line());
    let mut line = String::new();
    push_text(settings().format, LineHead { severity, at, process: std::process::id(), source }, text, &mut line);
    // Errors are ignored: a full disk or a closed pipe must not end the process.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Replaces std's hook, which writes to standard error and waits for its reader.
fn log_panic(info: &std::panic::PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let mut text = format!("thread '{}' {info}", thread.name().unwrap_or("<unnamed>"));
    let trace = std::backtrace::Backtrace::capture();
    if trace.status() == std::backtrace::BacktraceStatus::Captured {
        text.push_str(&format!("\n{trace}"));
    }
    say(Severity::Error, Location::caller(), true, &text);
}

#[expect(clippy::disallowed_methods, reason = "a log line has the time of day; nothing is decided by it")]
fn since_epoch() -> Duration {
    std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn pack(settings: LogSettings) -> u64 {
    let flag = |is_on: bool, bit: u64| if is_on { bit } else { 0 };
    let format = LogFormat::NAMES.iter().position(|(_, format)| *format == settings.format).unwrap_or_default();
    flag(settings.info, INFO)
        | flag(settings.warning, WARNING)
        | flag(settings.error, ERROR)
        | (format as u64) << FORMAT_SHIFT
        | u64::from(settings.verbose) << VERBOSE_SHIFT
}

fn unpack(word: u64) -> LogSettings {
    let [_, format, ..] = word.to_le_bytes();
    LogSettings {
        info: word & INFO != 0,
        warning: word & WARNING != 0,
        error: word & ERROR != 0,
        verbose: u32::try_from(word >> VERBOSE_SHIFT).unwrap_or(u32::MAX),
        format: LogFormat::NAMES.get(usize::from(format)).map_or(LogFormat::Default, |(_, format)| *format),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_being_one_word() {
        let some = LogSettings { warning: true, verbose: u32::MAX, format: LogFormat::Json, ..LogSettings::SILENT };
        let other = LogSettings { info: true, error: true, format: LogFormat::Iso8601, ..LogSettings::SILENT };
        for settings in [LogSettings::SILENT, LogSettings::default(), some, other] {
            assert_eq!(unpack(pack(settings)), settings);
        }
        assert_eq!(unpack(INFO | WARNING | ERROR), LogSettings::default());
    }
}
