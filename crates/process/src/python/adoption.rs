//! The time in which this process adopts orphans (`PR_SET_CHILD_SUBREAPER`): while a template forks the process of an
//! instance, whose parent between the two ends at once. So the new process is a child of the server, as one that it has
//! started. It is not so for longer: what a model has started and left would stay as a zombie until the server ends.

#![expect(clippy::disallowed_types, reason = "taken when a process starts, never for a batch")]

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{getpid, set_child_subreaper};

/// The windows that are open.
static OPEN: Mutex<usize> = Mutex::new(0);

/// As long as it exists, orphans of processes of models become children of this process.
pub(super) struct AdoptionWindow(());

impl AdoptionWindow {
    /// Opens a window.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub(super) fn open() -> io::Result<Self> {
        let mut open = lock();
        if *open == 0 {
            set_child_subreaper(Some(getpid()))?;
        }
        *open += 1;
        Ok(Self(()))
    }
}

impl Drop for AdoptionWindow {
    fn drop(&mut self) {
        let mut open = lock();
        *open -= 1;
        if *open == 0 {
            // It was allowed before.
            let _ = set_child_subreaper(None);
        }
    }
}

fn lock() -> MutexGuard<'static, usize> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use rustix::process::child_subreaper;

    use super::*;

    #[test]
    fn orphans_are_adopted_while_any_window_is_open() {
        let is_open = || child_subreaper().unwrap().is_some();
        assert!(!is_open());
        let one = AdoptionWindow::open().unwrap();
        let other = AdoptionWindow::open().unwrap();
        drop(one);
        assert!(is_open());
        drop(other);
        assert!(!is_open());
    }
}
