//! Writes a line before a signal of a crash ends the process: what the thread ran, by [`crate::crash`]. The handler
//! calls only what may be called from one (`write`, `open`, `sigaction`, `tgkill`), allocates nothing and takes no lock.
//! The process then dies of the same signal: the handler that was there before is put back, and the instruction runs
//! again, or the signal is sent again.

#![expect(unsafe_code, reason = "signal handlers are set and run through the C interface")]

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use libc::{c_int, c_void, siginfo_t};

use crate::crash::{NoteSlot, SLOTS};
use crate::limits::{CRASH_LINES_MAX, CRASH_TEXT_SIZE};

/// Destination of the lines.
#[derive(Clone, Copy, Debug)]
pub struct CrashOutput<'a> {
    /// The file of the log, which gets them beside standard error.
    pub file: Option<&'a Path>,
    /// True if the log has lines of JSON.
    pub is_json: bool,
}

/// The handler's data, set before it can run.
struct Installed {
    file: Option<CString>,
    is_json: bool,
    /// The handlers from before, in the order of [`SIGNALS`]: that of Rust tells a stack overflow.
    before: [libc::sigaction; SIGNALS.len()],
}

/// The signals of a crash, and their names.
const SIGNALS: [(c_int, &str); 5] = [
    (libc::SIGABRT, "SIGABRT"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGSEGV, "SIGSEGV"),
];

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// Sets the handler, for the rest of the process; only the first call counts.
pub fn install(output: CrashOutput<'_>) {
    let file = output.file.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
    let before = SIGNALS.map(|(signal, _)| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: it writes one structure, for which there is room; all zeros are a valid one.
        unsafe {
            libc::sigaction(signal, null(), action.as_mut_ptr());
            action.assume_init()
        }
    });
    if INSTALLED.set(Installed { file, is_json: output.is_json, before }).is_err() {
        return;
    }
    for (signal, _) in SIGNALS {
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = handle;
        // SAFETY: all zeros are a valid structure, with an empty mask; it is read by the call. The handler calls nothing
        // that may not be called from one, and its stack is the alternative one where the thread has one.
        unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, null_mut());
        }
    }
}

/// Runs on the thread that crashed, wherever it was.
extern "C" fn handle(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    let Some(installed) = INSTALLED.get() else { return };
    let name = SIGNALS.iter().find(|(known, _)| *known == signal).map_or("", |(_, name)| name);
    tell(installed, signal, name);
    // SAFETY: the kernel hands a valid structure to a handler with `SA_SIGINFO`.
    let code = if info.is_null() { 0 } else { unsafe { (*info).si_code } };
    let before = SIGNALS.iter().zip(&installed.before).find(|((known, _), _)| *known == signal);
    // A fault of an instruction, which runs again after this handler: a positive code is the kernel's.
    if let (Some((_, before)), true) = (before, code > 0 && signal != libc::SIGABRT) {
        // SAFETY: the structure is one that the call gave before.
        unsafe { libc::sigaction(signal, before, null_mut()) };
        return;
    }
    // SAFETY: all zeros are the default action. The signal is sent to this thread, where it is blocked until the next
    // call; both have no effect on memory.
    unsafe {
        let action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        libc::sigaction(signal, &raw const action, null_mut());
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal);
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut());
        libc::_exit(128 + signal);
    }
}

/// Writes what this thread runs, or else what all threads run, or else what they ran last.
fn tell(installed: &Installed, signal: c_int, name: &str) {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let mut text = [0; CRASH_TEXT_SIZE];
    let own = SLOTS.iter().find(|slot| slot.thread.load(Ordering::Acquire) == thread);
    if let Some(text) = own.and_then(|slot| slot.read(false, &mut text)) {
        return write_line(installed, signal, name, " while it ran ", text);
    }
    for (is_over, how) in [(false, " in a thread of an engine while another ran "), (true, " after it had run ")] {
        let told = |slot: &&NoteSlot| {
            let mut text = [0; CRASH_TEXT_SIZE];
            let found = slot.read(is_over, &mut text);
            found.inspect(|text| write_line(installed, signal, name, how, text)).is_some()
        };
        if SLOTS.iter().filter(told).take(CRASH_LINES_MAX).count() > 0 {
            return;
        }
    }
    write_line(installed, signal, name, " before it ran ", b"a model");
}

/// Writes one line to standard error and to the log's file.
fn write_line(installed: &Installed, signal: c_int, name: &str, how: &str, text: &[u8]) {
    let mut line = [0; LINE_SIZE_MAX];
    let mut size = 0;
    let (mut process_digits, mut signal_digits) = ([0; DIGITS_MAX], [0; DIGITS_MAX]);
    let process = decimal(u64::from(std::process::id()), &mut process_digits);
    let number = decimal(u64::from(signal.unsigned_abs()), &mut signal_digits);
    let (begin, middle, end): (&str, &str, &str) = match installed.is_json {
        true => ("{\"severity\":\"error\",\"process\":", ",\"message\":\"", "\"}\n"),
        false => ("deuteron[", "]: ", "\n"),
    };
    let parts = [
        begin.as_bytes(),
        process,
        middle.as_bytes(),
        b"crashed with signal ",
        number,
        b" (",
        name.as_bytes(),
        b")",
        how.as_bytes(),
        text,
        end.as_bytes(),
    ];
    for byte in parts.into_iter().flatten() {
        if let Some(place) = line.get_mut(size) {
            *place = *byte;
            size += 1;
        }
    }
    let line = line.get(..size).unwrap_or_default();
    // SAFETY: the line has that many bytes; the path ends with a zero; the descriptor is this function's own.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        let Some(path) = &installed.file else { return };
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let file = libc::open(path.as_ptr(), flags);
        if file >= 0 {
            libc::write(file, line.as_ptr().cast(), line.len());
            libc::close(file);
        }
    }
}

/// Digits of the largest number.
pub(super) const DIGITS_MAX: usize = 20;
/// A text, and what is written around it.
const LINE_SIZE_MAX: usize = CRASH_TEXT_SIZE + 192;

/// The digits of a number, without an allocation.
pub(super) fn decimal(mut number: u64, place: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut begin = DIGITS_MAX;
    for (index, digit) in place.iter_mut().enumerate().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        (number, begin) = (number / 10, index);
        if number == 0 {
            break;
        }
    }
    place.get(begin..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 7, 10, 4_294_967_296, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; DIGITS_MAX]), number.to_string().as_bytes());
        }
    }
}
