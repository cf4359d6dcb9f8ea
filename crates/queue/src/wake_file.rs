//! A sleep on a descriptor and on other threads at once: an eventfd that they write to, and `poll`
//! over it and the descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};

/// An eventfd: any thread wakes the one that sleeps on it.
#[derive(Debug)]
pub struct WakeFile(OwnedFd);

/// The reason why [`WakeFile::sleep`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepEnd {
    /// The other descriptor is readable.
    Readable,
    /// The time is over, or a signal came.
    Timeout,
    /// Another thread called [`WakeFile::wake`].
    Woken,
}

impl WakeFile {
    /// Opens an eventfd.
    ///
    /// # Errors
    /// If the process has reached its limit of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes the thread that sleeps, or the next that will.
    pub fn wake(&self) {
        // It fails only if 2^64 - 1 wake-ups are unread; then the thread wakes anyway.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Sleeps until another thread wakes it, `source` is readable, or the time is over.
    pub fn sleep(&self, source: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> SleepEnd {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // Without a source it waits for itself twice, which costs nothing.
        let source = source.unwrap_or_else(|| self.0.as_fd());
        let mut files = [PollFd::new(&self.0, PollFlags::IN), PollFd::from_borrowed_fd(source, PollFlags::IN)];
        if poll(&mut files, timeout.as_ref()).is_err() {
            return SleepEnd::Timeout;
        }
        let [own, other] = files.map(|file| !file.revents().is_empty());
        if own {
            // One read clears all wake-ups so far.
            let _ = read(&self.0, &mut [0; 8]);
            return SleepEnd::Woken;
        }
        if other { SleepEnd::Readable } else { SleepEnd::Timeout }
    }
}

impl AsFd for WakeFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_returns_for_a_wake_up_a_readable_file_or_the_time() {
        let (wake_file, source) = (WakeFile::new().unwrap(), WakeFile::new().unwrap());
        let sleep = || wake_file.sleep(Some(source.as_fd()), Some(Duration::from_millis(2)));
        assert_eq!(sleep(), SleepEnd::Timeout);
        wake_file.wake();
        wake_file.wake();
        assert_eq!((sleep(), sleep()), (SleepEnd::Woken, SleepEnd::Timeout), "one sleep takes all wake-ups so far");
        source.wake();
        assert_eq!((sleep(), sleep()), (SleepEnd::Readable, SleepEnd::Readable), "the file stays readable");
        let other = WakeFile::new().unwrap();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| wake_file.sleep(Some(other.as_fd()), None));
            wake_file.wake();
            assert_eq!(sleeper.join().unwrap(), SleepEnd::Woken);
        });
        wake_file.wake();
        let sleep_alone = || wake_file.sleep(None, Some(Duration::from_millis(2)));
        assert_eq!((sleep_alone(), sleep_alone()), (SleepEnd::Woken, SleepEnd::Timeout));
    }
}
