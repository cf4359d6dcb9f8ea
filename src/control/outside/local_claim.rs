//! The listening Unix socket of a path, for this user alone. Used by the thread that starts the
//! server and at its end; waits only for another server that does the same at this moment.
//!
//! A socket's file stays when its process is killed, and does not show whether a process listens: a
//! connection does. A file without a listener is removed. A process that is about to listen holds
//! the lock of the directory from that check on, so that one of two servers that start together
//! finds the other.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FlockOperation, Mode, OFlags, access, fchmod, flock, open};
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that may wait in the kernel to be accepted.
const BACKLOG: i32 = 128;
/// The permissions of the file: users with write permission may connect.
const MODE: u32 = 0o600;

/// A Unix socket that this process listens on, and its file.
#[derive(Debug)]
pub struct LocalClaim {
    path: PathBuf,
    socket: Socket,
    /// The file's device and number: a later file at the path may be another's.
    file: (u64, u64),
    /// True if another process keeps it, and its file.
    is_lent: bool,
}

impl LocalClaim {
    /// Checks whether a process listens there already, the file is not a socket, or the directory
    /// takes no files, before anything is done.
    ///
    /// # Errors
    /// `AddrInUse` if a server listens or starts, `AlreadyExists` if the file is not a socket, or
    /// the reason that this cannot be found out.
    pub fn check(path: &Path) -> io::Result<()> {
        is_stale(path)?;
        Ok(access(directory_of(path), Access::WRITE_OK | Access::EXEC_OK)?)
    }

    /// Listens. A file that an earlier process left behind is removed.
    ///
    /// # Errors
    /// Those of [`Self::check`], and why the file cannot be made.
    pub fn new(path: &Path) -> io::Result<Self> {
        let _guard = lock_directory(path)?;
        if is_stale(path)? {
            fs::remove_file(path)?;
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // The file gets the permissions of the socket (unix(7)): there is no moment in which others
        // could connect.
        fchmod(socket.as_fd(), Mode::from_raw_mode(MODE))?;
        socket.bind(&SockAddr::unix(path)?)?;
        fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
        socket.listen(BACKLOG)?;
        let file = identity(path)?;
        Ok(Self { path: path.to_owned(), socket, file, is_lent: false })
    }

    /// Takes a socket that listens already, from a process that ends, or that lends and keeps it.
    ///
    /// # Errors
    /// `InvalidInput`, with the reason, if it is not a Unix socket that listens at the path.
    pub fn of_passed(descriptor: OwnedFd, path: &Path, is_lent: bool) -> io::Result<Self> {
        let invalid = |text: String| io::Error::new(ErrorKind::InvalidInput, text);
        let socket = Socket::from(descriptor);
        if !socket.is_listener().unwrap_or(false) {
            return Err(invalid("it is no socket that listens".to_owned()));
        }
        let own = socket.local_addr()?;
        if own.as_pathname() != Some(path) {
            return Err(invalid(format!("its path is not '{}'", path.display())));
        }
        let file = identity(path)?;
        Ok(Self { path: path.to_owned(), socket, file, is_lent })
    }

    /// Returns the path on which it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if another process keeps it.
    pub const fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Returns a copy for the thread that accepts.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        Ok(OwnedFd::from(self.socket.try_clone()?))
    }

    /// Removes the file, if it is still that of this socket and no other server examines it now: a
    /// later one removes it. Its number belongs to no other file while the socket is open.
    pub fn remove(self) {
        let is_own = || identity(&self.path).is_ok_and(|file| file == self.file);
        if let (Ok(_guard), true) = (lock_directory(&self.path), is_own()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns true if the file is of a socket without a listener; false if there is no file.
fn is_stale(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(true),
        // It has gone meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Locks out others that would examine the same file, until it is dropped. It does not wait: a user
/// with read permission for the directory may hold its lock forever. `AddrInUse` if it is locked; a
/// starting server retries that for a while.
fn lock_directory(path: &Path) -> io::Result<OwnedFd> {
    let directory = open(directory_of(path), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => ErrorKind::AddrInUse.into(),
        error => io::Error::from(error),
    })?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("deuteron-local-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("admin")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Retries like a starting server. A process that another test starts has copies of lock and
    /// socket until its program runs.
    fn soon<T>(attempt: impl Fn() -> io::Result<T>) -> T {
        for _ in 0..2_000 {
            match attempt() {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    std::thread::park_timeout(std::time::Duration::from_millis(1));
                }
                done => return done.unwrap(),
            }
        }
        panic!("it is in use for two seconds");
    }

    #[test]
    fn a_socket_is_for_its_user_and_goes_with_its_server() {
        let place = Place::new("mode");
        let claim = soon(|| LocalClaim::new(&place.socket()));
        assert_eq!(fs::metadata(place.socket()).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(place.socket()).unwrap();
        assert_eq!((claim.path(), claim.is_lent()), (&*place.socket(), false));
        claim.remove();
        assert!(!place.socket().exists());
    }

    #[test]
    fn a_file_that_nobody_listens_on_is_taken_over_and_one_of_a_live_server_is_not() {
        let place = Place::new("stale");
        let path = place.socket();
        soon(|| LocalClaim::check(&path));
        drop(soon(|| LocalClaim::new(&path)));
        assert!(path.exists(), "as after a kill");
        soon(|| LocalClaim::check(&path));
        let live = soon(|| LocalClaim::new(&path));
        let kind = |outcome: io::Result<()>| outcome.unwrap_err().kind();
        assert_eq!(kind(LocalClaim::check(&path)), ErrorKind::AddrInUse);
        assert_eq!(kind(LocalClaim::new(&path).map(drop)), ErrorKind::AddrInUse);
        drop(live);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        assert_eq!(kind(LocalClaim::new(&path).map(drop)), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert_eq!(kind(LocalClaim::new(&place.0.join("none/admin")).map(drop)), ErrorKind::NotFound);
    }

    #[test]
    fn the_file_of_a_later_server_is_not_removed() {
        let place = Place::new("later");
        let path = place.socket();
        let first = soon(|| LocalClaim::new(&path));
        first.socket.shutdown(std::net::Shutdown::Both).unwrap();
        let second = soon(|| LocalClaim::new(&path));
        first.remove();
        UnixStream::connect(&path).unwrap();
        second.remove();
        assert!(!path.exists());
    }

    #[test]
    fn who_holds_the_lock_of_the_directory_keeps_nobody_waiting() {
        let place = Place::new("lock");
        let claim = soon(|| LocalClaim::new(&place.socket()));
        let held = soon(|| lock_directory(&place.socket()));
        assert_eq!(LocalClaim::new(&place.socket()).map(drop).unwrap_err().kind(), ErrorKind::AddrInUse);
        claim.remove();
        assert!(place.socket().exists(), "it is left to who comes next");
        drop(held);
        soon(|| LocalClaim::new(&place.socket())).remove();
        assert!(!place.socket().exists());
    }

    #[test]
    fn of_many_that_start_together_one_listens() {
        let place = Place::new("race");
        let path = place.socket();
        for _ in 0..20 {
            let together = || {
                let listening: Vec<_> = std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| LocalClaim::new(&path).ok())).collect();
                    threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
                });
                if listening.is_empty() { Err(ErrorKind::AddrInUse.into()) } else { Ok(listening) }
            };
            let listening = soon(together);
            assert_eq!(listening.len(), 1);
            UnixStream::connect(&path).unwrap();
        }
    }

    #[test]
    fn a_passed_socket_must_be_that_of_the_flag() {
        let place = Place::new("passed");
        let path = place.socket();
        let claim = soon(|| LocalClaim::new(&path));
        let passed = LocalClaim::of_passed(claim.copy().unwrap(), &path, true).unwrap();
        assert!(passed.is_lent());
        let other = LocalClaim::of_passed(claim.copy().unwrap(), &place.0.join("other"), false).unwrap_err();
        assert!(other.to_string().contains("its path is not"), "{other}");
        let connected = OwnedFd::from(UnixStream::connect(&path).unwrap());
        assert!(LocalClaim::of_passed(connected, &path, false).is_err());
    }
}
