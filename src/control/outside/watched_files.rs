//! Files that are read again when they change, or at once when SIGHUP comes. A thread of its own reads them, since a file
//! system may be slow; what has changed reaches shards by their mailboxes.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use crate::control::machine::spawn::spawn;
use crate::log;
use crate::shard::ServerContext;

/// The interval at which the files of certificates and keys are read: a new one is in use within
/// seconds, and reading some kilobytes costs nothing.
const WATCHED_FILES_INTERVAL: Duration = Duration::from_secs(5);
/// The time that changed files must stay the same until they are used: the certificate of TLS and
/// its key are two files, written one after the other.
const WATCHED_FILES_SETTLED: Duration = Duration::from_millis(500);

/// Wakes the thread that reads the files, once it runs.
pub type FileWaker = Arc<OnceLock<Thread>>;

/// Files that are read again when they change.
pub trait WatchedFiles: Send {
    /// Reads the files again.
    fn read(&mut self);

    /// Returns a number for the contents read last, which differs for other contents.
    fn fingerprint(&self) -> u64;

    /// Uses the contents read last, if they are valid.
    fn apply(&mut self, server_context: &ServerContext);
}

/// Starts the thread that reads these again. It ends when the server does.
pub fn watch(all: Vec<Box<dyn WatchedFiles>>, server_context: &Arc<ServerContext>, waker: &FileWaker) {
    if all.is_empty() {
        return;
    }
    let mut all: Vec<_> = all.into_iter().map(WatchedSet::new).collect();
    let (waker, server_context) = (Arc::clone(waker), Arc::downgrade(server_context));
    let started = spawn("access-files".to_owned(), move || {
        let _ = waker.set(std::thread::current());
        loop {
            let is_settled = all.iter().all(WatchedSet::is_settled);
            let pause = if is_settled { WATCHED_FILES_INTERVAL } else { WATCHED_FILES_SETTLED };
            std::thread::park_timeout(pause);
            let Some(server_context) = server_context.upgrade() else { return };
            all.iter_mut().for_each(|set| set.look(&server_context));
        }
    });
    if let Err(error) = started {
        log::warning(&format!("certificates and API keys are not read again when they change: {error}"));
    }
}

/// Files that change together, with their contents.
struct WatchedSet {
    files: Box<dyn WatchedFiles>,
    in_use: u64,
    /// The fingerprint seen last; the contents are used when it is seen again.
    seen: u64,
}

impl WatchedSet {
    fn new(files: Box<dyn WatchedFiles>) -> Self {
        let in_use = files.fingerprint();
        Self { files, in_use, seen: in_use }
    }

    const fn is_settled(&self) -> bool {
        self.seen == self.in_use
    }

    fn look(&mut self, server_context: &ServerContext) {
        self.files.read();
        let now = self.files.fingerprint();
        let is_same = std::mem::replace(&mut self.seen, now) == now;
        if is_same && now != self.in_use {
            self.in_use = now;
            self.files.apply(server_context);
        }
    }
}

/// Reads the contents of a file of at most `size_max` bytes. An error is the end of a sentence that
/// begins with its path.
pub(super) fn read_file(path: &Path, size_max: u64) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(cannot)?;
    let mut contents = Vec::new();
    // One byte beyond the limit shows that the file is larger.
    file.take(size_max + 1).read_to_end(&mut contents).map_err(cannot)?;
    if contents.len() as u64 > size_max {
        return Err(format!("has more than {size_max} bytes"));
    }
    Ok(contents)
}
