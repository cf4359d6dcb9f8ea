//! Unpacks a packed Python environment (`.tar.gz` of conda-pack or venv-pack) into an empty directory. No entry is
//! written outside of it, or through a link: a fault in an archive must not cost more than the load of its model.
//!
//! That holds because every directory on the way to an entry was made here: a name that leads
//! through anything else is refused. A link may only begin with `..` and not climb above the
//! directory; the rest can pass other links, which follow the same rule.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use flate2::read::MultiGzDecoder;
use tar::{Entry, EntryType};

use crate::limits::ARCHIVE_SIZE_MAX;

/// Entries of a packed Python environment: four times those of the largest that are in use.
const ARCHIVE_ENTRIES_MAX: usize = 2_000_000;
/// Bytes between the contents of two entries of a packed Python environment, which are kept in memory: names and
/// attributes. Paths have at most 4 KiB.
const ARCHIVE_HEADER_SIZE_MAX: u64 = 1024 * 1024;

/// The limits on an archive's contents.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArchiveBounds {
    pub(super) entries: usize,
    /// Bytes of all files together.
    pub(super) size: u64,
}

impl ArchiveBounds {
    pub(super) const fn new() -> Self {
        Self { entries: ARCHIVE_ENTRIES_MAX, size: ARCHIVE_SIZE_MAX }
    }
}

/// The reason why an archive was not unpacked.
#[derive(Debug)]
pub(super) enum UnpackError {
    /// It is not gzip, not tar, or ends early.
    Broken(io::Error),
    Entries,
    /// An entry that no environment has.
    Entry(String, EntryFault),
    Size,
    /// The file system refuses an entry.
    Write(String, io::Error),
}

/// The fault of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryFault {
    /// Its name leads through a link, or a file.
    Below,
    /// Neither a file, nor a directory, nor a link.
    Kind,
    /// A link that leads out of the archive, or to an entry that is not in it.
    Link,
    /// Its name is absolute or has `..`.
    Outside,
    Twice,
}

impl fmt::Display for UnpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(error) => write!(f, "it is not a complete .tar.gz archive: {error}"),
            Self::Entries => write!(f, "it has more than {ARCHIVE_ENTRIES_MAX} entries"),
            Self::Entry(name, fault) => write!(f, "its entry '{name}' {fault}"),
            Self::Size => write!(f, "its files have more than {ARCHIVE_SIZE_MAX} bytes"),
            Self::Write(name, error) => write!(f, "its entry '{name}' could not be written: {error}"),
        }
    }
}

impl fmt::Display for EntryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Below => "lies below a link or a file",
            Self::Kind => "is neither a file, nor a directory, nor a link",
            Self::Link => "is a link that leads out of the archive, or to a file that does not come before it",
            Self::Outside => "has an absolute name or one with '..'",
            Self::Twice => "is there twice, first as a directory",
        })
    }
}

/// Unpacks an archive into `root`, an empty directory that has no other writer. On an error, files
/// that were written stay.
pub(super) fn unpack(archive: impl Read, root: &Path, bounds: ArchiveBounds) -> Result<(), UnpackError> {
    let left = Arc::new(AtomicU64::new(ARCHIVE_HEADER_SIZE_MAX));
    let metered = MeteredReader { inner: MultiGzDecoder::new(archive), left: Arc::clone(&left) };
    let mut archive = tar::Archive::new(metered);
    let mut target = UnpackTarget { root, directories: HashSet::new() };
    let mut size: u64 = 0;
    for (index, entry) in archive.entries().map_err(UnpackError::Broken)?.enumerate() {
        let mut entry = entry.map_err(UnpackError::Broken)?;
        if index >= bounds.entries {
            return Err(UnpackError::Entries);
        }
        size = size.saturating_add(entry.size());
        if size > bounds.size {
            return Err(UnpackError::Size);
        }
        left.store(entry.size().saturating_add(ARCHIVE_HEADER_SIZE_MAX), Ordering::Relaxed);
        target.write(&mut entry)?;
    }
    // To the end, where gzip has its checksum.
    left.store(ARCHIVE_HEADER_SIZE_MAX, Ordering::Relaxed);
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(UnpackError::Broken)?;
    Ok(())
}

/// Reads only up to the allowed size: the reader of tar keeps long names in memory, as long as a
/// header says they are.
struct MeteredReader<R> {
    inner: R,
    left: Arc<AtomicU64>,
}

impl<R: Read> Read for MeteredReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::Relaxed);
        let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if room == 0 && !buffer.is_empty() {
            return Err(io::Error::other("more bytes between two entries than names take"));
        }
        let size = self.inner.read(buffer.get_mut(..room).unwrap_or_default())?;
        self.left.store(left.saturating_sub(size as u64), Ordering::Relaxed);
        Ok(size)
    }
}

/// The directory that is written to.
struct UnpackTarget<'a> {
    root: &'a Path,
    /// The directories that were made in it.
    directories: HashSet<PathBuf>,
}

impl UnpackTarget<'_> {
    fn write(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), UnpackError> {
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            return Ok(());
        }
        let name = entry.path_bytes().into_owned();
        let fault = |fault| UnpackError::Entry(String::from_utf8_lossy(&name).into_owned(), fault);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => fault(EntryFault::Twice),
            _ => UnpackError::Write(String::from_utf8_lossy(&name).into_owned(), error),
        };
        let path = plain_path(&name).ok_or_else(|| fault(EntryFault::Outside))?;
        let full = self.root.join(&path);
        // Before POSIX a directory was a file whose name ends with a slash.
        let is_directory = kind.is_dir() || kind.is_file() && name.ends_with(b"/");
        if is_directory {
            self.make_directories(&path).map_err(|error| error.map_or_else(|| fault(EntryFault::Below), failed))?;
            // The root has a mode that only its owner can read.
            return if path.as_os_str().is_empty() { Ok(()) } else { set_mode(&full, entry, 0o700).map_err(failed) };
        }
        let parent = path.parent().unwrap_or(Path::new(""));
        self.make_directories(parent).map_err(|error| error.map_or_else(|| fault(EntryFault::Below), failed))?;
        match kind {
            EntryType::Regular => write_file(&full, entry, &failed),
            EntryType::Symlink => {
                let link = entry.link_name_bytes().filter(|link| stays_inside(&path, link));
                let link = link.ok_or_else(|| fault(EntryFault::Link))?;
                replacing(&full, || std::os::unix::fs::symlink(OsStr::from_bytes(&link), &full)).map_err(failed)
            }
            EntryType::Link => {
                let link = entry.link_name_bytes().and_then(|link| self.written_file(&link));
                let link = link.ok_or_else(|| fault(EntryFault::Link))?;
                // A link to itself leaves the file as it is, as with tar.
                if link == full { Ok(()) } else { replacing(&full, || fs::hard_link(&link, &full)).map_err(failed) }
            }
            _ => Err(fault(EntryFault::Kind)),
        }
    }

    /// Makes a directory and those that it lies in; refuses without an error of the system if one of them is something
    /// else.
    fn make_directories(&mut self, path: &Path) -> Result<(), Option<io::Error>> {
        if path.as_os_str().is_empty() || self.directories.contains(path) {
            return Ok(());
        }
        let mut made = PathBuf::new();
        for name in path {
            made.push(name);
            if self.directories.contains(&made) {
                continue;
            }
            match fs::create_dir(self.root.join(&made)) {
                Ok(()) => self.directories.insert(made.clone()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(None),
                Err(error) => return Err(Some(error)),
            };
        }
        Ok(())
    }

    /// The file that a hard link names, if it was unpacked before. A link to a symbolic link would
    /// move that to another directory, from which it may lead out.
    fn written_file(&self, link: &[u8]) -> Option<PathBuf> {
        let path = plain_path(link)?;
        let parent = path.parent()?;
        let is_known = parent.as_os_str().is_empty() || self.directories.contains(parent);
        let full = self.root.join(&path);
        (is_known && fs::symlink_metadata(&full).ok()?.is_file()).then_some(full)
    }
}

/// Makes a file or link; one that is there already is removed first, so that of two entries of a name the later holds, as
/// with tar. venv-pack writes `pyvenv.cfg` twice. A directory stays, and nothing is written through a link.
fn replacing<T>(path: &Path, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match make() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Fails for a directory.
            fs::remove_file(path).map_err(|_| error)?;
            make()
        }
        outcome => outcome,
    }
}

fn write_file(
    path: &Path,
    entry: &mut Entry<'_, impl Read>,
    failed: &dyn Fn(io::Error) -> UnpackError,
) -> Result<(), UnpackError> {
    let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = replacing(path, create).map_err(failed)?;
    copy(entry, &mut file, failed)?;
    set_mode(path, entry, 0o400).map_err(failed)?;
    // Python compiles a source again if its time is not the one recorded in the compiled file.
    let modified = entry.header().mtime().ok().and_then(|secs| UNIX_EPOCH.checked_add(Duration::from_secs(secs)));
    modified.map_or(Ok(()), |modified| file.set_modified(modified)).map_err(failed)
}

/// Copies the contents. A read that fails is the archive's fault, a write the file system's.
fn copy(
    entry: &mut Entry<'_, impl Read>,
    file: &mut File,
    failed: &dyn Fn(io::Error) -> UnpackError,
) -> Result<(), UnpackError> {
    let (mut left, mut buffer) = (entry.size(), vec![0; COPY_SIZE]);
    while left > 0 {
        let got = entry.read(&mut buffer).map_err(UnpackError::Broken)?;
        if got == 0 {
            return Err(UnpackError::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
        io::Write::write_all(file, buffer.get(..got).unwrap_or_default()).map_err(failed)?;
        left = left.saturating_sub(got as u64);
    }
    Ok(())
}

/// Bytes that are copied at once.
const COPY_SIZE: usize = 128 * 1024;

/// Sets the mode from the archive, with the bits of `least`. The owner is the server's user, and no
/// other user gets rights.
fn set_mode(path: &Path, entry: &Entry<'_, impl Read>, least: u32) -> io::Result<()> {
    let mode = entry.header().mode().unwrap_or(0o755);
    fs::set_permissions(path, Permissions::from_mode(mode & 0o777 | least))
}

/// A name as a path beneath the root; `None` if it is absolute or has `..`.
fn plain_path(name: &[u8]) -> Option<PathBuf> {
    let parts = name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let is_plain = !name.starts_with(b"/") && parts.clone().all(|part| part != b"..");
    is_plain.then(|| parts.map(OsStr::from_bytes).collect())
}

/// Returns true if a symbolic link at `path` stays inside. Only the interpreter may be elsewhere:
/// venv-pack links to that of the system.
fn stays_inside(path: &Path, link: &[u8]) -> bool {
    let is_interpreter = path.parent() == Some(Path::new("bin"))
        && path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"));
    if link.starts_with(b"/") {
        return is_interpreter;
    }
    let parts = || link.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let climbed = parts().take_while(|part| *part == b"..").count();
    let depth = path.components().count().saturating_sub(1);
    climbed <= depth && parts().skip(climbed).all(|part| part != b"..")
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
