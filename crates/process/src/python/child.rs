//! Starts a program without a copy of this process: fork would copy the page tables of the server, tens of milliseconds
//! for one that has loaded gigabytes, and its pages would fault once more afterwards. The new process shares the memory
//! of this one until its program runs, and the calling thread sleeps until then, as in `posix_spawn`, which cannot ask
//! for a signal at the end of the parent.

#![expect(unsafe_code, reason = "a process that shares memory until exec, and the calls between the two")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Signal, WaitOptions, waitpid};
use rustix::thread::CpuSet;

/// A program with its arguments and variables.
pub(super) struct ChildProgram {
    /// Its file; a name without a slash is looked up in the folders of its `PATH`.
    pub(super) path: PathBuf,
    /// Its arguments, with its own name as the first.
    pub(super) arguments: Vec<OsString>,
    /// Its variables, all of them.
    pub(super) variables: BTreeMap<OsString, OsString>,
}

/// The descriptors 0, 1 and 2 of a new process. Those of this process are at least 3, as std opens the first three.
pub(super) struct ChildStreams<'a> {
    pub(super) stdin: BorrowedFd<'a>,
    pub(super) stdout: BorrowedFd<'a>,
    pub(super) stderr: BorrowedFd<'a>,
}

/// Starts a program on these cores (`None`: those of the calling thread), as the leader of a group of its own. It is
/// killed when the calling thread ends. The caller reaps it.
///
/// # Errors
/// Those of the system where the program cannot be run; no process is left then.
pub(super) fn start(program: &ChildProgram, streams: &ChildStreams<'_>, cores: Option<CpuSet>) -> io::Result<Pid> {
    let files = candidates(program)?;
    let arguments = strings(program.arguments.iter().map(|argument| argument.as_bytes().to_vec()))?;
    let variables = strings(program.variables.iter().map(|(name, value)| {
        let mut line = name.clone().into_vec();
        line.push(b'=');
        line.extend_from_slice(value.as_bytes());
        line
    }))?;
    let child = Child {
        files: &files,
        arguments: &pointers(&arguments),
        variables: &pointers(&variables),
        streams,
        cores,
        server: rustix::process::getpid(),
        failure: AtomicI32::new(0),
    };
    // SAFETY: `child`, and all that it points to, outlives the call.
    let pid = unsafe { run_beside(&child)? };
    match child.failure.load(Ordering::Relaxed) {
        0 => Ok(pid),
        failure => {
            let _ = waitpid(Some(pid), WaitOptions::empty());
            Err(io::Error::from_raw_os_error(failure))
        }
    }
}

/// The files that may be the program, in the order in which they are tried.
fn candidates(program: &ChildProgram) -> io::Result<Vec<CString>> {
    let path = program.path.as_os_str().as_bytes();
    if path.contains(&b'/') {
        return strings([path.to_vec()].into_iter());
    }
    let folders = program.variables.get(OsStr::new("PATH")).map_or(FOLDERS, |folders| folders.as_bytes());
    strings(folders.split(|byte| *byte == b':').map(|folder| match folder {
        [] => [b"./", path].concat(),
        folder => [folder, b"/", path].concat(),
    }))
}

/// The folders of programs where no `PATH` is set, as in the C library.
const FOLDERS: &[u8] = b"/bin:/usr/bin";

fn strings(lines: impl Iterator<Item = Vec<u8>>) -> io::Result<Vec<CString>> {
    lines.map(|line| CString::new(line).map_err(|_| Errno::INVAL.into())).collect()
}

/// The array of exec: pointers to the strings, and a null behind them.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|line| line.as_ptr()).chain([ptr::null()]).collect()
}

/// A new process until its program runs: its orders, and a place for its error, in memory that it shares with this one.
struct Child<'a> {
    files: &'a [CString],
    arguments: &'a [*const c_char],
    variables: &'a [*const c_char],
    streams: &'a ChildStreams<'a>,
    cores: Option<CpuSet>,
    server: Pid,
    /// The number of its error; 0 if its program runs.
    failure: AtomicI32,
}

/// Starts a process that shares the memory of this one, and returns when its program runs or it has ended.
///
/// # Safety
/// `child` holds valid arrays for exec, each with a null at its end.
unsafe fn run_beside(child: &Child<'_>) -> io::Result<Pid> {
    let mut stack = vec![0_u128; STACK_WORDS];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: all zeros is a valid set for both, and the calls write only to them. A handler of a signal that ran in the
    // new process would write to the memory of this one, so none may come until the new process has reset them.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    // SAFETY: `enter` gets the `Child` that it expects. This thread sleeps until the new process has called exec or has
    // ended (CLONE_VFORK), so the stack, which is aligned to 16 bytes, and `child` outlive their use.
    let pid = unsafe {
        libc::clone(enter, stack.as_mut_ptr_range().end.cast(), flags, ptr::from_ref(child).cast_mut().cast())
    };
    let outcome = if pid < 0 { Err(io::Error::last_os_error()) } else { Pid::from_raw(pid).ok_or(Errno::SRCH.into()) };
    // SAFETY: the mask that the call above has written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    outcome
}

/// The stack of a new process until its program runs, in units of 16 bytes: 64 KiB, of which its few system calls take a
/// small part.
const STACK_WORDS: usize = 4_096;

/// The first function of a new process. It ends the process when it returns.
extern "C" fn enter(child: *mut c_void) -> c_int {
    // SAFETY: the pointer that `run_beside` was given, whose thread sleeps meanwhile.
    let child = unsafe { &*child.cast::<Child<'_>>() };
    child.failure.store(child.run().raw_os_error(), Ordering::Relaxed);
    EXIT_WITHOUT_PROGRAM
}

/// The exit status of a process whose program could not be run, as a shell has it. The caller reads the error instead.
const EXIT_WITHOUT_PROGRAM: c_int = 127;

impl Child<'_> {
    /// Becomes the program; returns only with an error. Allocates nothing and takes no lock: other threads of the server
    /// may hold any.
    fn run(&self) -> Errno {
        match self.prepare() {
            Ok(()) => self.exec(),
            Err(failure) => failure,
        }
    }

    fn prepare(&self) -> Result<(), Errno> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The server may have ended before that call.
        if rustix::process::getppid() != Some(self.server) {
            return Err(Errno::SRCH);
        }
        rustix::process::setpgid(None, None)?;
        rustix::stdio::dup2_stdin(self.streams.stdin)?;
        rustix::stdio::dup2_stdout(self.streams.stdout)?;
        rustix::stdio::dup2_stderr(self.streams.stderr)?;
        reset_signals();
        close_descriptors();
        if let Some(cores) = &self.cores {
            // The cores may be forbidden by now: the process is slower then, not wrong.
            let _ = rustix::thread::sched_setaffinity(None, cores);
        }
        Ok(())
    }

    /// Runs the first of the files that can be run, as `execvp` does.
    fn exec(&self) -> Errno {
        let mut refused = Errno::NOENT;
        for file in self.files {
            match exec(file, self.arguments, self.variables) {
                Errno::NOENT | Errno::NOTDIR => {}
                Errno::ACCESS => refused = Errno::ACCESS,
                failure => return failure,
            }
        }
        refused
    }
}

/// Runs a file; returns only with an error.
fn exec(file: &CStr, arguments: &[*const c_char], variables: &[*const c_char]) -> Errno {
    // SAFETY: a string of C, and two arrays of such strings with a null at their end (`pointers`).
    unsafe { libc::execve(file.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::NOEXEC)
}

/// Resets ignored and blocked signals: both would outlast exec, and the server or its parent may
/// have set them.
fn reset_signals() {
    for signal in 1..=SIGNAL_MAX {
        // SAFETY: `signal` is a system call behind a thin wrapper. It refuses SIGKILL, SIGSTOP and
        // numbers that are not signals. The new process has handlers of its own.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: all zeros is the empty set, and the calls write only to `none`.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// The highest signal of Linux.
const SIGNAL_MAX: c_int = 64;

/// Descriptors that are closed one by one for a new process if the kernel cannot close all
/// (before Linux 5.11). Some systems allow a process a billion.
const DESCRIPTORS_MAX: c_int = 1024 * 1024;

/// Closes all descriptors but the first three when the program starts: libraries of the server may open some that exec
/// does not close.
fn close_descriptors() {
    // SAFETY: a system call that only changes flags of descriptors of the new process, which has a copy of the table.
    let outcome = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if outcome == 0 {
        return;
    }
    // Before Linux 5.11.
    let open_max = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    for descriptor in 3..c_int::try_from(open_max).unwrap_or(c_int::MAX).min(DESCRIPTORS_MAX) {
        // SAFETY: as above; a descriptor that is not open is refused.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    /// Runs `program` with these folders as its `PATH`, and returns what it prints.
    fn printed(program: &str, folders: &str) -> io::Result<String> {
        let (mut out, end) = io::pipe()?;
        let null = fs::File::open("/dev/null")?;
        let program = ChildProgram {
            path: program.into(),
            arguments: vec!["named".into(), "argument".into()],
            variables: [("PATH".into(), folders.into()), ("COLOUR".into(), "green".into())].into(),
        };
        let streams = ChildStreams { stdin: null.as_fd(), stdout: end.as_fd(), stderr: end.as_fd() };
        // A process that another test starts has the file open for writing until its own program runs.
        let pid = loop {
            match start(&program, &streams, None) {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                outcome => break outcome?,
            }
        };
        drop(end);
        let mut text = String::new();
        out.read_to_string(&mut text)?;
        waitpid(Some(pid), WaitOptions::empty())?;
        Ok(text)
    }

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_name_is_looked_up_in_the_folders_of_its_own_path() {
        let folder = std::env::temp_dir().join(format!("child-{}", std::process::id()));
        let at = |name: &str| folder.join(name);
        for name in ["empty", "forbidden", "good"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        write(&at("forbidden/probe"), "no program", 0o644);
        write(&at("good/probe"), "#!/bin/sh\necho $1 $COLOUR", 0o755);
        write(&at("good/garbage"), "\u{1}\u{2}", 0o755);
        let folders = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| at(name).display().to_string()).collect();
            names.join(":")
        };
        assert_eq!(printed("probe", &folders(&["empty", "forbidden", "good"])).unwrap(), "argument green\n");
        assert_eq!(printed(at("good/probe").to_str().unwrap(), "").unwrap(), "argument green\n");
        let refused = |program: &str, names: &[&str]| printed(program, &folders(names)).unwrap_err();
        assert_eq!(refused("probe", &["empty"]).kind(), io::ErrorKind::NotFound);
        assert_eq!(refused("probe", &["forbidden", "empty"]).kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(refused("garbage", &["good"]).raw_os_error(), Some(libc::ENOEXEC));
        assert_eq!(refused("nul\0", &["good"]).kind(), io::ErrorKind::InvalidInput);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_caller_keeps_its_blocked_signals() {
        let blocked = || {
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find(|line| line.starts_with("SigBlk:")).unwrap().to_owned()
        };
        let before = blocked();
        assert_eq!(printed("/bin/true", "").unwrap(), "");
        assert!(printed("/nowhere", "").is_err());
        assert_eq!(blocked(), before);
    }
}
