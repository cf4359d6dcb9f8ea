//! The log's thread: gives lines their form and writes them. It alone waits for a disk or for the
//! reader of the pipe.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::log::cause::CauseLimits;
use crate::log::format::{LineHead, Severity, grouped, push_access, push_text};
use crate::log::output::LogOutput;
use crate::log::queue::{LogQueue, LogRecord, PlainTarget, Said};
use crate::log::tail::LogTail;
use crate::log::terminal::LogTerminal;
use crate::log::{settings, since_epoch};

/// Lines that could not be written: the disk is full, or the pipe has no reader.
pub static UNWRITTEN: AtomicU64 = AtomicU64::new(0);
/// The last lines. The log's thread waits for a reader that copies them; a reader never waits.
#[expect(clippy::disallowed_types, reason = "the log's thread may wait, and shards only try it")]
pub static TAIL: std::sync::Mutex<LogTail> = std::sync::Mutex::new(LogTail::new());
/// Lines left out because their cause logged too many.
pub static LIMITED: AtomicU64 = AtomicU64::new(0);

/// The state of the thread.
pub struct LogThread {
    path: Option<PathBuf>,
    output: LogOutput<File>,
    limits: CauseLimits,
    process: u32,
    /// Dropped records of the queue, as far as this thread knows.
    dropped: u64,
    /// Records popped.
    popped: u64,
}

impl LogThread {
    /// Opens the file, to append to it; without one, lines go to standard error, which may be a terminal.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: Option<&Path>, terminal: Option<LogTerminal>) -> io::Result<Self> {
        let output = match path {
            Some(path) => LogOutput::new(open_file(path)?),
            None => LogOutput::on_terminal(plain_target(PlainTarget::Error)?, terminal),
        };
        Ok(Self {
            path: path.map(Path::to_path_buf),
            output,
            limits: CauseLimits::default(),
            process: std::process::id(),
            dropped: 0,
            popped: 0,
        })
    }

    /// Writes pushed records, for as long as the process lives.
    pub fn run(mut self, queue: &Arc<LogQueue>) -> ! {
        loop {
            while let Some(record) = queue.pop() {
                self.popped += 1;
                // It bypasses the collected lines, and belongs behind them.
                if matches!(record.said, Said::Plain(..)) {
                    self.flush(queue);
                }
                self.handle_record(record);
                self.handle_time();
                if self.output.is_full() {
                    self.flush(queue);
                }
            }
            self.handle_time();
            self.flush(queue);
            queue.set_settled(self.popped);
            if queue.take_reopen() {
                self.reopen();
            }
            match self.limits.poll_timeout() {
                None => std::thread::park(),
                Some(at) => std::thread::park_timeout(at.saturating_sub(since_epoch())),
            }
        }
    }

    fn handle_record(&mut self, record: LogRecord) {
        let LogRecord { at, said } = record;
        let format = settings().format;
        match said {
            Said::Text(severity, cause, is_limited, text) => {
                if is_limited && !self.limits.handle_line(cause, severity, at) {
                    LIMITED.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                let head = self.head(severity, at, (source(cause.file()), cause.line()));
                push_text(format, head, &text, self.output.lines());
            }
            Said::Access(line) => {
                let head = self.head(Severity::Info, at, ("access", 0));
                push_access(format, head, &line, self.output.lines());
            }
            Said::Status(line) => self.output.set_status(line),
            Said::Plain(target, text) => {
                // Errors are ignored: if it has no reader, it is not missed.
                let _ = plain_target(target).and_then(|mut target| target.write_all(text.as_bytes()));
            }
        }
    }

    /// Logs the number of lines that were left out of the windows that have ended.
    fn handle_time(&mut self) {
        while let Some((cause, severity, more)) = self.limits.poll_more(since_epoch()) {
            let head = self.head(severity, since_epoch(), (source(cause.file()), cause.line()));
            let text = format!("… and {} more like these", grouped(more));
            push_text(settings().format, head, &text, self.output.lines());
        }
    }

    fn flush(&mut self, queue: &LogQueue) {
        let dropped = queue.dropped();
        self.output.handle_lost(dropped - std::mem::replace(&mut self.dropped, dropped));
        let head = self.head(Severity::Warning, since_epoch(), ("log", 0));
        let tell = |count, out: &mut String| {
            push_text(settings().format, head, &format!("{} lines were dropped", grouped(count)), out);
        };
        if let Ok(mut tail) = TAIL.lock() {
            tail.extend(self.output.lines());
        }
        UNWRITTEN.fetch_add(self.output.flush(tell), Ordering::Relaxed);
    }

    /// Opens the file again: it was renamed, and the next lines belong into a new one. If that
    /// fails, it goes on with the old one.
    fn reopen(&mut self) {
        let Some(path) = &self.path else { return };
        match open_file(path) {
            Ok(target) => self.output.set_target(target),
            Err(error) => {
                let head = self.head(Severity::Error, since_epoch(), ("log", 0));
                let text = format!("cannot open --log-file again, the log stays where it was: {error}");
                push_text(settings().format, head, &text, self.output.lines());
            }
        }
    }

    const fn head<'a>(&self, severity: Severity, at: Duration, source: (&'a str, u32)) -> LineHead<'a> {
        LineHead { severity, at, process: self.process, source }
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Returns a descriptor of its own: other writers to standard error must not wait for a lock that
/// this thread holds.
fn plain_target(target: PlainTarget) -> io::Result<File> {
    let descriptor = match target {
        PlainTarget::Error => io::stderr().as_fd().try_clone_to_owned()?,
        PlainTarget::Output => io::stdout().as_fd().try_clone_to_owned()?,
    };
    Ok(File::from(descriptor))
}

/// Returns the path of a source within the crate.
pub fn source(file: &str) -> &str {
    file.strip_prefix("src/").unwrap_or(file)
}
