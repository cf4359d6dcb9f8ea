//! Tries a load in a process of its own first: an ONNX file that crashes its engine, or keeps it for ever, then fails
//! alone. The process is this program once more, with the same flags, that loads the one version as the server would,
//! up to the runs that choose its placement. It is ended after `--load-timeout-secs`, and may have as many bytes of
//! data as `--load-memory-bytes-max` says. It then runs the model on inputs that engines may not survive
//! ([`crate::control::loading::load_probe`]). Called on load threads.
//!
//! Not tried: models on GPUs, since two processes would need the memory for two, and Python models, which run in
//! processes of their own.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::control::loading::load_probe::{self, ProbeFindings};
use crate::control::machine::process_memory;
use crate::control::repository::beneath::LinkPolicy;
use crate::control::repository::model_source::ModelSource;
use crate::error::{Code, Error};
use crate::limits::LOAD_PLACE_MAX;
use crate::log;
use crate::model::parse::text::Notation;
use crate::model::repository::ModelDirectory;
use crate::runtime::clock;
use crate::settings::{Settings, TRIAL_COMMAND, TrialLoads};
use crate::time::Instant;

/// Trials that take longer and do not count, at a time: each is a process.
const LOADS_SLOW_MAX: usize = 16;
/// Time in which the process of a trial that was killed must be gone; after it, it is left to the system.
const TRIAL_END_MAX: Duration = Duration::from_secs(5);
/// Bytes that are read of what the process of a trial wrote, at the end: an error's text, or an engine's last words.
const TRIAL_REPORT_SIZE_MAX: u64 = 64 * 1024;

/// The processes that try loads.
pub struct LoadTrials {
    arguments: Vec<OsString>,
    /// The file of `--config` as it was at the start.
    config: Option<File>,
    loads: TrialLoads,
    timeout: Duration,
    memory: u64,
    /// Trials that take so long that others load meanwhile.
    slow: AtomicUsize,
    /// Called when a trial becomes slow.
    handle_slow: Box<dyn Fn() + Send + Sync>,
}

/// The load that a process is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialOrder {
    /// The process that waits for it.
    pub parent: u32,
    /// The bytes of data that it may have.
    pub memory: u64,
    /// The path of the repository, or of the one model.
    pub path: PathBuf,
    /// True if it is the repository.
    pub is_repository: bool,
    /// True if links may lead out of it.
    pub follows_links: bool,
    /// The model's name.
    pub name: String,
    /// The path of its directory in the repository, if that has another name; empty otherwise.
    pub renamed_from: String,
    /// The version to load.
    pub version: u64,
    /// Findings so far, if the process was started before.
    pub findings: ProbeFindings,
    /// A configuration in the place of that in the files.
    pub given: Option<(Notation, String)>,
}

/// Files that a process writes: its answer, the output of its libraries, and, behind its order, the inputs that it
/// tries.
struct TrialFiles {
    report: File,
    noise: File,
    progress: File,
    order_size: u64,
}

/// The end of a trial.
enum TrialEnd {
    Exited(ExitStatus),
    TimedOut,
}

/// The exit status of a trial whose load failed with an error that it reports.
pub const FAILED: i32 = 3;

impl LoadTrials {
    /// Trials by this program, with the arguments of this process. `handle_slow` is called when one
    /// takes so long that it should no longer count as a load. A trial has the flags of this
    /// server: a later change of the file of `--config` does not count for it either.
    pub fn new(settings: &Settings, handle_slow: Box<dyn Fn() + Send + Sync>) -> Self {
        let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
        if arguments.first().is_some_and(|word| word == "serve") {
            arguments.remove(0);
        }
        let config = settings.config_text.as_ref().and_then(|text| keep(text.reveal()).ok());
        let memory = settings.load_memory_bytes_max.unwrap_or_else(|| process_memory::limit(settings)) as u64;
        // If a failed load ends the server at its start, a crash does the same.
        let unasked = if settings.exit_on_error { TrialLoads::AfterStart } else { TrialLoads::All };
        let (loads, timeout) = (settings.trial_loads.unwrap_or(unasked), settings.load_timeout);
        Self { arguments, config, loads, timeout, memory, slow: AtomicUsize::new(0), handle_slow }
    }

    /// Returns true if a load is tried. `is_initial`: before the server serves.
    pub fn wants(&self, is_initial: bool) -> bool {
        match self.loads {
            TrialLoads::AfterStart => !is_initial,
            TrialLoads::All => true,
            TrialLoads::Off => false,
        }
    }

    /// Returns the number of slow trials, beside which as many other loads may run.
    pub fn slow(&self) -> usize {
        self.slow.load(Ordering::SeqCst).min(LOADS_SLOW_MAX)
    }

    /// Returns true if a model that is likely to need it is tried, though others are not.
    pub fn wants_doubtful(&self) -> bool {
        self.loads != TrialLoads::Off
    }

    /// Has a process load a version, and try inputs that engines may not survive. After one that it did not, another
    /// process tries the rest.
    ///
    /// # Errors
    /// The error of that load, or how its process ended.
    pub fn run(&self, source: &ModelSource, directory: &ModelDirectory, version: u64) -> Result<ProbeFindings, Error> {
        let (path, is_repository) = source.path();
        let mut order = TrialOrder {
            parent: std::process::id(),
            memory: self.memory,
            path: path.to_owned(),
            is_repository,
            follows_links: source.repository.links() == LinkPolicy::Followed,
            name: directory.name.clone(),
            renamed_from: if directory.is_renamed { directory.path.clone() } else { String::new() },
            version,
            findings: ProbeFindings::default(),
            given: directory.given.clone(),
        };
        loop {
            let (child, files) = match self.start(&order) {
                Ok(started) => started,
                Err(error) => {
                    // Better than no model at all: the machine may lack what a trial needs, and most files are good.
                    log::warning(&format!(
                        "'{}' is loaded without a trial, whose process cannot start: {error}",
                        order.name
                    ));
                    return Ok(order.findings);
                }
            };
            let outcome = self.settle(child, &files, &order);
            match (outcome, load_probe::unfinished(&files.progress, files.order_size)) {
                (Ok(()), _) => return Ok(order.findings),
                (Err(_), Some((index, probe))) => order.findings.handle_crash(index, probe),
                // It was loaded before: what was found then holds.
                (Err(_), None) if !order.findings.is_clean() => return Ok(order.findings),
                (Err(error), None) => return Err(error),
            }
            if order.findings.is_over() {
                return Ok(order.findings);
            }
        }
    }

    /// Starts the process.
    fn start(&self, order: &TrialOrder) -> io::Result<(Child, TrialFiles)> {
        let file = |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
        let (mut input, report, noise) = (file("order")?, file("report")?, file("noise")?);
        let encoded = order.encode();
        input.write_all(&encoded)?;
        input.rewind()?;
        let progress = input.try_clone()?;
        // Behind all flags, of which the last one holds, and before the end of them.
        let mut arguments = self.arguments.clone();
        if let Some(config) = &self.config {
            let path = format!("--config=/proc/{}/fd/{}", order.parent, config.as_raw_fd());
            let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
            arguments.insert(end, path.into());
        }
        let mut command = Command::new("/proc/self/exe");
        // Nothing is set between fork and exec: the process has no copy of this one's memory, and
        // sets its own limits.
        command.arg0("deuteron").arg(TRIAL_COMMAND).args(arguments).process_group(0);
        command.stdin(input).stdout(report.try_clone()?).stderr(noise.try_clone()?);
        let child = command.spawn()?;
        Ok((child, TrialFiles { report, noise, progress, order_size: encoded.len() as u64 }))
    }

    fn settle(&self, mut child: Child, files: &TrialFiles, order: &TrialOrder) -> Result<(), Error> {
        let (name, TrialFiles { report, noise, .. }) = (&order.name, files);
        let unable = |text: String| Error::internal(format!("unable to load model '{name}': {text}"));
        let alone = "in a process of its own that tried it (--trial-loads)";
        let end = self.wait(&mut child).map_err(|error| unable(format!("its trial cannot be watched: {error}")))?;
        let status = match end {
            TrialEnd::TimedOut => {
                return Err(unable(format!(
                    "its load took longer than {:?} (--load-timeout-secs), {alone}, and was given up",
                    self.timeout
                )));
            }
            TrialEnd::Exited(status) => status,
        };
        if let Some(error) = (status.code() == Some(FAILED)).then(|| decode_report(&read_end(report))).flatten() {
            return Err(error);
        }
        let how = match (status.signal(), status.code()) {
            (Some(signal), _) => format!("signal {signal}{}", signal_name(signal)),
            (None, Some(0)) => return Ok(()),
            (None, code) => format!("exit status {}", code.unwrap_or_default()),
        };
        let noise = read_end(noise);
        if let Some(line) = String::from_utf8_lossy(&noise).lines().rev().find(|line| !line.trim().is_empty()) {
            log::warning(&format!("last output of the engine that loaded '{name}' version {}: {line}", order.version));
        }
        Err(unable(format!(
            "the engine ended with {how} on this file, {alone} with at most {} bytes of memory (--load-memory-bytes-max)",
            self.memory
        )))
    }

    /// Waits for the end of the process, and ends it if it takes too long.
    fn wait(&self, child: &mut Child) -> io::Result<TrialEnd> {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
        let pidfd = match pidfd {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error.into());
            }
        };
        let began = clock::now();
        let limit = if self.timeout.is_zero() { Duration::MAX } else { self.timeout };
        let mut slow = None;
        if !has_ended(&pidfd, began + limit.min(LOAD_PLACE_MAX))? {
            slow = Some(SlowTrial::new(self));
        }
        let is_late = slow.is_some() && !has_ended(&pidfd, began + limit)?;
        if is_late {
            child.kill()?;
            // A process that waits for a file system may outlive its end.
            if !has_ended(&pidfd, clock::now() + TRIAL_END_MAX)? {
                return Ok(TrialEnd::TimedOut);
            }
        }
        let status = child.wait()?;
        Ok(if is_late { TrialEnd::TimedOut } else { TrialEnd::Exited(status) })
    }
}

/// Counts a trial as slow while it lives.
struct SlowTrial<'a>(&'a LoadTrials);

impl<'a> SlowTrial<'a> {
    fn new(trials: &'a LoadTrials) -> Self {
        trials.slow.fetch_add(1, Ordering::SeqCst);
        (trials.handle_slow)();
        Self(trials)
    }
}

impl Drop for SlowTrial<'_> {
    fn drop(&mut self) {
        self.0.slow.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns a file in memory that has this text.
fn keep(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("config", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// Waits until a process has ended; returns false if it has not by then.
fn has_ended(pidfd: &impl AsFd, by: Instant) -> io::Result<bool> {
    loop {
        let left = by.since(clock::now());
        let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) if by <= clock::now() => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the last bytes that a process wrote.
fn read_end(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    let begin = io::SeekFrom::Start(size.saturating_sub(TRIAL_REPORT_SIZE_MAX));
    // Output that cannot be read is left out.
    let _ = file.seek(begin).and_then(|_| file.take(TRIAL_REPORT_SIZE_MAX).read_to_end(&mut bytes));
    bytes
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGKILL => " (SIGKILL: memory may have run out)",
        libc::SIGSEGV => " (SIGSEGV)",
        _ => "",
    }
}

/// Encodes an error as the last output of a process: a zero, the number of its code from one, its
/// text. A library may have written before.
pub fn encode_report(error: &Error) -> Vec<u8> {
    let text = error.text().replace('\0', " ");
    [&[0, error.code().number()], text.as_bytes()].concat()
}

fn decode_report(report: &[u8]) -> Option<Error> {
    let begin = report.iter().rposition(|byte| *byte == 0)?;
    let [_, number, text @ ..] = report.get(begin..)? else { return None };
    Some(Error::new(Code::of_number(*number)?, String::from_utf8_lossy(text).into_owned()))
}

impl TrialOrder {
    /// Encodes the fields with a zero behind each; the configuration is the last.
    fn encode(&self) -> Vec<u8> {
        let notation = |notation| Notation::ALL.iter().position(|have| *have == notation).unwrap_or_default();
        let (given, text) = match &self.given {
            Some((kind, text)) => (notation(*kind).to_string(), text.as_str()),
            None => (String::new(), ""),
        };
        let flags = [self.is_repository, self.follows_links].map(u64::from);
        let numbers = [self.parent.into(), self.memory, self.version].into_iter().chain(flags);
        let mut bytes: Vec<u8> = numbers.flat_map(|number| format!("{number}\0").into_bytes()).collect();
        let (path, renamed_from) = (self.path.as_os_str().as_bytes(), self.renamed_from.as_bytes());
        let findings = self.findings.encode();
        for field in [path, self.name.as_bytes(), renamed_from, findings.as_bytes(), given.as_bytes()] {
            bytes.extend_from_slice(field);
            bytes.push(0);
        }
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    /// Returns `None` if the bytes are not an order.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.splitn(11, |byte| *byte == 0);
        let mut text = || String::from_utf8(fields.next()?.to_vec()).ok();
        let (parent, memory, version) = (text()?.parse().ok()?, text()?.parse().ok()?, text()?.parse().ok()?);
        let (is_repository, follows_links) = (text()? == "1", text()? == "1");
        let path = PathBuf::from(OsString::from_vec(fields.next()?.to_vec()));
        let mut text = || String::from_utf8(fields.next()?.to_vec()).ok();
        let (name, renamed_from) = (text()?, text()?);
        let findings = ProbeFindings::decode(&text()?)?;
        let (notation, config) = (text()?, text()?);
        let given = match notation.as_str() {
            "" => None,
            number => Some((*Notation::ALL.get(number.parse::<usize>().ok()?)?, config)),
        };
        Some(Self { parent, memory, path, is_repository, follows_links, name, renamed_from, version, findings, given })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_and_a_report_come_as_they_were_sent() {
        let plain = TrialOrder {
            parent: 7,
            memory: 1 << 40,
            path: PathBuf::from(OsString::from_vec(b"/a b/\xff\n".to_vec())),
            is_repository: true,
            follows_links: false,
            name: "m".to_owned(),
            renamed_from: String::new(),
            version: u64::MAX,
            findings: ProbeFindings::default(),
            given: None,
        };
        let given = TrialOrder {
            is_repository: false,
            follows_links: true,
            renamed_from: ".".to_owned(),
            given: Some((Notation::Json, "{\"a\":\"\u{0}\"}".to_owned())),
            ..plain.clone()
        };
        for order in [plain, given] {
            assert_eq!(TrialOrder::decode(&order.encode()), Some(order));
        }
        assert_eq!(TrialOrder::decode(b"1\x002\0"), None);
        for code in Code::ALL {
            let error = Error::new(code, "a \u{e9}\ntext");
            let report = [b"a library's own words\n".to_vec(), encode_report(&error)].concat();
            assert_eq!(decode_report(&report), Some(error));
        }
        assert_eq!((decode_report(b""), decode_report(b"words"), decode_report(b"\0")), (None, None, None));
    }

    #[test]
    fn which_loads_are_tried_is_what_the_flag_says() {
        let wants = |trial_loads, exit_on_error| {
            let settings = Settings { trial_loads, exit_on_error, ..Settings::default() };
            let trials = LoadTrials::new(&settings, Box::new(|| {}));
            [true, false].map(|is_initial| trials.wants(is_initial))
        };
        for exit_on_error in [true, false] {
            assert_eq!(wants(Some(TrialLoads::Off), exit_on_error), [false, false]);
            assert_eq!(wants(Some(TrialLoads::AfterStart), exit_on_error), [false, true]);
            assert_eq!(wants(Some(TrialLoads::All), exit_on_error), [true, true]);
        }
        assert_eq!((wants(None, true), wants(None, false)), ([false, true], [true, true]));
    }
}
