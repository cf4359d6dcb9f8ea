//! File access beneath the directory of a model repository. `..` never leads out of it. Symbolic links are followed
//! out of a repository that the operator names, as its links are the operator's too (DVC, caches of the Hugging Face
//! hub, shared disks); otherwise they do not lead out either (`openat2` with `RESOLVE_BENEATH`, or one component at a
//! time if the system forbids or lacks that call).

use std::collections::hash_map::DefaultHasher;
use std::ffi::CString;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, readlinkat};
use rustix::io::Errno;

use crate::limits::MODEL_ENTRIES_MAX;
use crate::model::repository::{Listing, ListingEntry, version};

/// Names in one model repository: each poll lists them all.
const MODELS_MAX: usize = 16_384;

/// Levels below a model's directory that are listed: enough for a version's files and the files that these
/// refer to.
const LEVELS: usize = 6;
/// Levels below the repository's at which a link to a directory is followed. Mounts of models and versions are
/// often links; a deeper link could lead back up and make the listing endless.
const LINKED_LEVELS: usize = 1;
/// The same if links may lead out of the repository: a model that is a directory may be a link in its version's.
const FOLLOWED_LEVELS: usize = 2;

/// Links that one path may lead through, as in Linux.
const LINKS_MAX: usize = 40;

/// Names by which a Python environment is known: of venv and of conda. Nothing below it is listed.
const ENVIRONMENT_MARKS: [&str; 2] = ["pyvenv.cfg", "conda-meta"];

/// An open model repository. All paths are relative to it.
pub struct RepositoryRoot {
    directory: OwnedFd,
    /// True if the kernel resolves paths beneath it in one call. Sandboxes forbid that call, since
    /// they cannot look at its arguments: gVisor, systemd's `RestrictSUIDSGID=`.
    has_openat2: bool,
    links: LinkPolicy,
}

/// The treatment of symbolic links that lead out of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPolicy {
    /// Refused: the files are those of a client or of a store.
    Confined,
    /// Followed.
    Followed,
    /// Refused by `--follow-links=false`.
    Refused,
}

impl RepositoryRoot {
    /// Opens a repository's directory.
    ///
    /// # Errors
    /// The error of `open` when the path is not a readable directory.
    pub fn open(path: &Path, links: LinkPolicy) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())?;
        let has_openat2 = !matches!(open_at_once(&directory, ".", flags), Err(Errno::NOSYS | Errno::PERM));
        Ok(Self { directory, has_openat2, links })
    }

    /// Returns the treatment of links that lead out.
    pub const fn links(&self) -> LinkPolicy {
        self.links
    }

    /// Lists the repository and each model's directory. A model that cannot be listed has the reason in its entry's
    /// `fault` and does not fail the others.
    ///
    /// # Errors
    /// When the repository itself cannot be listed, or has more than `MODELS_MAX` names.
    pub fn list(&self) -> io::Result<Listing> {
        let entry = |entry: ListingEntry| match entry.is_directory && !entry.name.starts_with('.') {
            true => self.list_model(&entry.name),
            false => entry,
        };
        Ok(Listing { entries: self.names()?.into_iter().map(entry).collect() })
    }

    /// Lists the names in the repository, each with its kind (directory or not).
    ///
    /// # Errors
    /// When the repository cannot be listed, or has more than `MODELS_MAX` names.
    pub fn names(&self) -> io::Result<Vec<ListingEntry>> {
        let mut count = MODELS_MAX;
        self.entries(".", 0, &mut count)
    }

    /// Returns a number that changes when the file changes; 0 when there is no such file.
    pub fn stamp(&self, path: &str) -> u64 {
        let status = self.open_beneath(path, OFlags::PATH).and_then(|file| Ok(rustix::fs::fstat(file)?));
        status.as_ref().map_or(0, stamp)
    }

    /// Returns the absolute path of a file or directory, without links; `None` if there is no such file, or no `/proc`.
    pub fn real_path(&self, path: &str) -> Option<PathBuf> {
        let opened = self.open_beneath(path, OFlags::PATH).ok()?;
        std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).ok()
    }

    /// Returns the identity that tells the file from every other, and from itself after a write.
    ///
    /// # Errors
    /// When there is no such file beneath the repository.
    pub fn identity(&self, path: &str) -> io::Result<FileIdentity> {
        FileIdentity::of(self.open_told(path, OFlags::PATH)?)
    }

    /// Returns true if the repository has a directory of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.open_beneath(name, OFlags::RDONLY | OFlags::DIRECTORY).is_ok()
    }

    /// Returns true if a path leads to a directory.
    pub fn is_directory(&self, path: &str) -> bool {
        self.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY).is_ok()
    }

    /// Lists one model's directory, with the stamps by which a change is detected.
    pub fn list_model(&self, name: &str) -> ListingEntry {
        let mut count = MODEL_ENTRIES_MAX;
        let listed = self.entries(name, LEVELS, &mut count);
        let (children, fault) = match listed {
            Ok(children) => (children, None),
            Err(error) => (Vec::new(), Some(format!("its directory cannot be listed: {error}"))),
        };
        ListingEntry { name: name.to_owned(), is_directory: true, children, stamp: 0, fault }
    }

    /// Lists a directory as deep as that of a model.
    ///
    /// # Errors
    /// When it cannot be listed, or has too many names.
    pub fn list_beneath(&self, path: &str) -> io::Result<Vec<ListingEntry>> {
        let mut count = MODEL_ENTRIES_MAX;
        self.entries(path, LEVELS, &mut count)
    }

    /// Reads a file of at most `size_max` bytes.
    ///
    /// # Errors
    /// When the file cannot be opened, is not a regular file, or is larger; a larger file is not read.
    pub fn read(&self, path: &str, size_max: usize) -> io::Result<Vec<u8>> {
        let file = self.open_file(path)?;
        let too_large = || io::Error::other(format!("it is larger than {size_max} bytes"));
        let limit = u64::try_from(size_max).unwrap_or(u64::MAX);
        if file.metadata()?.len() > limit {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        // The file may grow while it is read.
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() > size_max { Err(too_large()) } else { Ok(bytes) }
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// When the file cannot be opened beneath the repository, or is not a regular file.
    pub fn open_file(&self, path: &str) -> io::Result<File> {
        let file = File::from(self.open_told(path, OFlags::RDONLY)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
    }

    fn open_beneath(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        // Without O_NONBLOCK the open of a pipe blocks until it has a writer. `openat2` refuses the flag together
        // with O_PATH, which opens nothing that could block.
        let extra = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        let flags = flags | OFlags::CLOEXEC | extra;
        // A path may come from a configuration, which a client may send; a link in the repository does not.
        let is_plain = !path.starts_with('/') && path.split('/').all(|part| part != "..");
        let opened = match self.has_openat2 {
            _ if is_plain && self.links == LinkPolicy::Followed => openat(&self.directory, path, flags, Mode::empty()),
            true => open_at_once(&self.directory, path, flags),
            false => open_by_component(&self.directory, path, flags),
        };
        Ok(opened?)
    }

    /// Opens a path; the error names a link that cannot be followed.
    fn open_told(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        self.open_beneath(path, flags).map_err(|error| self.link_fault(path).map_or(error, io::Error::other))
    }

    /// Returns the reason why a link on a path cannot be followed; `None` if there is no such link.
    pub fn link_fault(&self, path: &str) -> Option<String> {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        ends.filter_map(|end| path.get(..end)).filter(|part| !part.is_empty()).find_map(|part| self.fault_of_link(part))
    }

    fn fault_of_link(&self, path: &str) -> Option<String> {
        let (above, name) = path.rsplit_once('/').unwrap_or((".", path));
        let directory = self.open_beneath(above, OFlags::PATH | OFlags::DIRECTORY).ok()?;
        let target = readlinkat(&directory, name, Vec::new()).ok()?;
        let error = self.open_beneath(path, OFlags::PATH).err()?;
        let why = match (Errno::from_io_error(&error), self.links) {
            (Some(Errno::NOENT), _) => ", which does not exist".to_owned(),
            (Some(Errno::LOOP), _) => ": it leads in a circle".to_owned(),
            (Some(Errno::XDEV), LinkPolicy::Refused) => {
                ", out of the repository, which --follow-links=false refuses".to_owned()
            }
            (Some(Errno::XDEV), _) => ", out of the model's files, which is refused".to_owned(),
            _ => format!(", which cannot be opened: {error}"),
        };
        // Clients, who may see the text, learn nothing of the machine.
        let is_shown = self.links != LinkPolicy::Confined && !target.as_bytes().starts_with(b"/");
        let target =
            if is_shown { format!("'{}'", target.to_string_lossy().escape_debug()) } else { "a place".to_owned() };
        Some(format!("symbolic link '{}' leads to {target}{why}", path.escape_debug()))
    }

    /// Lists a directory and `levels` levels below it. `left` is the number of names that may still be listed.
    fn entries(&self, path: &str, levels: usize, left: &mut usize) -> io::Result<Vec<ListingEntry>> {
        let directory = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for found in Dir::read_from(&directory)? {
            let found = found?;
            // A name that is not UTF-8 cannot be a model or a version.
            let Ok(name) = found.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            *left = left.checked_sub(1).ok_or_else(|| io::Error::other("it has more names than are listed"))?;
            let below = if path == "." { name.to_owned() } else { format!("{path}/{name}") };
            let linked_levels = if self.links == LinkPolicy::Followed { FOLLOWED_LEVELS } else { LINKED_LEVELS };
            let is_followed = path == "." || levels + linked_levels > LEVELS;
            entries.push(self.entry(&below, name, &directory, is_followed)?);
        }
        // A Python environment has tens of thousands of files, which are not edited one by one.
        if entries.iter().any(|(entry, _)| ENVIRONMENT_MARKS.contains(&entry.name.as_str())) {
            return Ok(entries.into_iter().map(|(entry, _)| entry).collect());
        }
        // In a second pass, so that a directory with too many names is refused before any of them is opened.
        for (entry, is_link) in entries.iter_mut().filter(|(entry, _)| entry.is_directory && levels > 0) {
            let mut rest = *left;
            match self.entries(&format!("{path}/{}", entry.name), levels - 1, &mut rest) {
                Ok(children) => (entry.children, *left) = (children, rest),
                // A link may lead to data of any size, which are not the model's files.
                Err(_) if *is_link && version(&entry.name).is_none() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries.into_iter().map(|(entry, _)| entry).collect())
    }

    /// Returns the entry of one name in a directory, a file with its stamp or a directory, and true if it is a link.
    /// A link counts as its target if it may be followed; a link to a directory counts as a directory only if
    /// `is_followed`.
    fn entry(
        &self,
        path: &str,
        name: &str,
        directory: &OwnedFd,
        is_followed: bool,
    ) -> io::Result<(ListingEntry, bool)> {
        let plain = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(plain) => plain,
            // Removed between the listing and now.
            Err(Errno::NOENT) => return Ok((ListingEntry { name: name.to_owned(), ..ListingEntry::default() }, false)),
            Err(error) => return Err(error.into()),
        };
        let is_link = FileType::from_raw_mode(plain.st_mode) == FileType::Symlink;
        let target = || self.open_beneath(path, OFlags::PATH).and_then(|file| Ok(rustix::fs::fstat(file)?));
        let followed = if is_link { target().ok() } else { Some(plain) };
        // A link that cannot be followed may stand for a model or a version, unless it leads to a file.
        let leads_to_file = || {
            rustix::fs::statat(directory, name, AtFlags::empty())
                .is_ok_and(|status| FileType::from_raw_mode(status.st_mode) != FileType::Directory)
        };
        let fault = match followed {
            None if is_followed && !leads_to_file() => self.link_fault(path),
            _ => None,
        };
        let status = followed.unwrap_or(plain);
        let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory && (!is_link || is_followed);
        let stamp = if is_directory { 0 } else { stamp(&status) };
        Ok((ListingEntry { name: name.to_owned(), is_directory, stamp, fault, ..ListingEntry::default() }, is_link))
    }
}

/// The identity of a file and the time of its last write. Unlike [`RepositoryRoot::stamp`] it has
/// the time of the last change, which no program can set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    file: (u64, u64),
    size: i64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl FileIdentity {
    /// Returns the identity of an open file.
    ///
    /// # Errors
    /// The error of `fstat`.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        let status = rustix::fs::fstat(file)?;
        let time = |seconds, nanos| (seconds, i64::try_from(nanos).unwrap_or_default());
        Ok(Self {
            file: (status.st_dev, status.st_ino),
            size: status.st_size,
            written: time(status.st_mtime, status.st_mtime_nsec),
            changed: time(status.st_ctime, status.st_ctime_nsec),
        })
    }

    /// Returns the time of the last change, in nanoseconds since the epoch.
    pub fn changed_nanos(&self) -> u64 {
        let (seconds, nanos) = self.changed;
        u64::try_from(seconds.saturating_mul(1_000_000_000).saturating_add(nanos)).unwrap_or_default()
    }
}

fn open_at_once(directory: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat2(directory, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
}

/// Opens a path without `openat2`: the kernel follows no component, so each link is read here and
/// its target walked like the rest. A rename meanwhile leads nowhere else: every step is from an
/// open directory to a name in it, and `..` back to the directory that it was reached from.
fn open_by_component(directory: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let step_flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut here = openat(directory, ".", step_flags | OFlags::DIRECTORY, Mode::empty())?;
    let mut links = 0;
    let mut left: Vec<CString> = Vec::new();
    push_components(&mut left, path.as_bytes())?;
    while let Some(name) = left.pop() {
        match name.as_bytes() {
            b"." => continue,
            b".." => {
                here = above.pop().ok_or(Errno::XDEV)?;
                continue;
            }
            _ => {}
        }
        let next = openat(&here, &*name, step_flags, Mode::empty())?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode);
        if kind == FileType::Symlink {
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP);
            }
            push_components(&mut left, readlinkat(&next, "", Vec::new())?.as_bytes())?;
        } else if left.is_empty() && kind != FileType::Directory {
            return openat(&here, &*name, flags | OFlags::NOFOLLOW, Mode::empty());
        } else {
            // A step from a file that is not a directory fails.
            above.push(std::mem::replace(&mut here, next));
        }
    }
    openat(&here, ".", flags, Mode::empty())
}

/// Puts the components of a path before those that are left. An absolute one leads out.
fn push_components(left: &mut Vec<CString>, path: &[u8]) -> Result<(), Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    if path.starts_with(b"/") {
        return Err(Errno::XDEV);
    }
    // A path that ends in a slash names a directory.
    let ends = if path.ends_with(b"/") { &b"."[..] } else { &b""[..] };
    for name in path.split(|byte| *byte == b'/').chain([ends]).rev().filter(|name| !name.is_empty()) {
        left.push(CString::new(name).map_err(|_| Errno::INVAL)?);
    }
    Ok(())
}

/// Returns a hash of what changes when a file is replaced or written: device, inode, size and time
/// of the last write.
fn stamp(status: &Stat) -> u64 {
    let mut hasher = DefaultHasher::new();
    (status.st_dev, status.st_ino, status.st_size, status.st_mtime, status.st_mtime_nsec).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn python_environments_are_not_looked_into() {
        let root = std::env::temp_dir().join(format!("deuteron-environment-{}", std::process::id()));
        for (folder, mark) in [("venv", "pyvenv.cfg"), ("conda", "conda-meta/history"), ("plain", "x")] {
            let mark = root.join("m").join(folder).join(mark);
            std::fs::create_dir_all(mark.parent().unwrap()).unwrap();
            std::fs::write(mark, "").unwrap();
            std::fs::create_dir_all(root.join("m").join(folder).join("lib/deep")).unwrap();
        }
        let model = RepositoryRoot::open(&root, LinkPolicy::Followed).unwrap().list_model("m");
        let below = |folder: &str| {
            let folder = model.children.iter().find(|entry| entry.name == folder).unwrap();
            let lib = folder.children.iter().find(|entry| entry.name == "lib").unwrap();
            (folder.children.len(), lib.children.len())
        };
        assert_eq!([below("venv"), below("conda"), below("plain")], [(2, 0), (2, 0), (2, 1)]);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn nothing_outside_the_repository_is_read() {
        let root = std::env::temp_dir().join(format!("deuteron-beneath-{}", std::process::id()));
        let inside = root.join("models");
        std::fs::create_dir_all(inside.join("m/1")).unwrap();
        std::fs::write(root.join("secret"), "s").unwrap();
        std::fs::write(inside.join("m/labels.txt"), "one\n").unwrap();
        symlink("../../secret", inside.join("m/out")).unwrap();
        symlink(root.join("secret"), inside.join("m/absolute")).unwrap();
        symlink("labels.txt", inside.join("m/near")).unwrap();
        for has_openat2 in [true, false] {
            let repository =
                RepositoryRoot { has_openat2, ..RepositoryRoot::open(&inside, LinkPolicy::Confined).unwrap() };
            read_all(&repository);
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    fn read_all(repository: &RepositoryRoot) {
        let read = |path: &str, size_max| repository.read(path, size_max).ok();
        assert_eq!(read("m/labels.txt", 4), Some(b"one\n".to_vec()));
        assert_eq!(read("m/near", 4), Some(b"one\n".to_vec()));
        assert_eq!(read("m/labels.txt", 3), None, "one byte more than allowed");
        for path in ["../secret", "m/out", "m/absolute", "m/../../secret", "/etc/hostname"] {
            assert_eq!(read(path, 100), None, "{path}");
        }
        let stamps = ["m/near", "m/labels.txt", "m/out", "m/none"].map(|path| repository.stamp(path));
        assert!(stamps[0] != 0 && stamps[0] == stamps[1] && stamps[2..] == [0, 0], "{stamps:?}");
        let listing = repository.list().unwrap();
        let model = listing.entries.iter().find(|entry| entry.name == "m").unwrap();
        assert!(model.children.iter().any(|child| child.name == "1" && child.is_directory));
    }

    #[test]
    fn a_link_out_is_followed_or_named_and_dots_are_never_followed_out() {
        let root = std::env::temp_dir().join(format!("deuteron-links-{}", std::process::id()));
        let inside = root.join("models");
        std::fs::create_dir_all(inside.join("m/1")).unwrap();
        std::fs::create_dir_all(root.join("else/2/saved/variables")).unwrap();
        std::fs::write(root.join("blob"), "b").unwrap();
        let blob = root.join("blob").display().to_string();
        let folder = root.join("else").display().to_string();
        for (target, link) in [
            (blob.as_str(), "m/out"),
            (&folder, "linked"),
            (&format!("{folder}/2"), "m/2"),
            (&format!("{folder}/2/saved"), "m/1/saved"),
            ("gone", "m/3"),
            ("/gone", "dangling"),
            ("loop", "loop"),
            (&blob, "README.md"),
        ] {
            symlink(target, inside.join(link)).unwrap();
        }
        let open = |links| RepositoryRoot::open(&inside, links).unwrap();
        let text = |links, path: &str| match open(links).read(path, 9) {
            Ok(bytes) => String::from_utf8(bytes).unwrap(),
            Err(error) => error.to_string(),
        };
        let leads = "symbolic link 'm/out' leads to a place";
        assert_eq!(text(LinkPolicy::Followed, "m/out"), "b");
        let refused = ", out of the repository, which --follow-links=false refuses";
        assert_eq!(text(LinkPolicy::Refused, "m/out"), format!("{leads}{refused}"));
        let confined = "symbolic link 'm/out' leads to a place, out of the model's files, which is refused";
        assert_eq!(text(LinkPolicy::Confined, "m/out"), confined);
        assert_eq!(text(LinkPolicy::Followed, "m/3"), "symbolic link 'm/3' leads to 'gone', which does not exist");
        assert_eq!(text(LinkPolicy::Followed, "loop/x"), "symbolic link 'loop' leads to 'loop': it leads in a circle");
        for path in ["../blob", "m/../../blob", "linked/../blob", &blob] {
            assert!(open(LinkPolicy::Followed).read(path, 9).is_err(), "{path}");
        }
        let shown = |links| {
            let entries = open(links).list().unwrap().entries;
            let mut shown: Vec<_> = entries.iter().flat_map(|entry| entry.children.iter().chain([entry])).collect();
            shown.sort_by(|one, other| one.name.cmp(&other.name));
            let kind = |entry: &ListingEntry| match (entry.is_directory, &entry.fault) {
                (true, _) => "/",
                (false, Some(_)) => "!",
                (false, None) => "",
            };
            let shown: Vec<_> = shown.into_iter().map(|entry| format!("{}{}", entry.name, kind(entry))).collect();
            shown.join(" ")
        };
        assert_eq!(shown(LinkPolicy::Followed), "1/ 2/ 2/ 3! README.md dangling! linked/ loop! m/ out");
        assert_eq!(shown(LinkPolicy::Refused), "1/ 2! 3! README.md dangling! linked! loop! m/ out");
        let model = open(LinkPolicy::Followed).list_model("m");
        let one = model.children.iter().find(|entry| entry.name == "1").unwrap();
        assert_eq!(one.children[0].children[0].name, "variables", "a linked directory in a version is listed");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_link_to_more_files_than_are_listed_counts_as_empty() {
        let root = std::env::temp_dir().join(format!("deuteron-large-{}", std::process::id()));
        std::fs::create_dir_all(root.join("models/m/1")).unwrap();
        std::fs::create_dir_all(root.join("data")).unwrap();
        for index in 0..=MODEL_ENTRIES_MAX {
            symlink("x", root.join(format!("data/{index}"))).unwrap();
        }
        symlink(root.join("data"), root.join("models/m/data")).unwrap();
        let repository = RepositoryRoot::open(&root.join("models"), LinkPolicy::Followed).unwrap();
        let model = repository.list_model("m");
        let data = model.children.iter().find(|entry| entry.name == "data").unwrap();
        assert!(model.fault.is_none() && data.is_directory && data.children.is_empty(), "{:?}", model.fault);
        std::fs::rename(root.join("models/m/data"), root.join("models/m/2")).unwrap();
        assert!(repository.list_model("m").fault.is_some(), "a version is not left out");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn both_ways_to_open_answer_alike() {
        let root = std::env::temp_dir().join(format!("deuteron-alike-{}", std::process::id()));
        let inside = root.join("models");
        std::fs::create_dir_all(inside.join("a/b")).unwrap();
        std::fs::write(root.join("secret"), "s").unwrap();
        std::fs::write(inside.join("a/b/file"), "deep").unwrap();
        std::fs::write(inside.join("file"), "near").unwrap();
        for (target, link) in [
            ("a/b", "short"),
            ("../file", "a/up"),
            ("../../secret", "a/out"),
            ("../models/file", "back"),
            ("/etc/hostname", "absolute"),
            ("loop", "loop"),
            ("nothing", "dangling"),
            ("short/../b/./file", "winding"),
            ("file", "first"),
            ("first", "second"),
        ] {
            symlink(target, inside.join(link)).unwrap();
        }
        let open = || RepositoryRoot::open(&inside, LinkPolicy::Confined).unwrap();
        let roots = [true, false].map(|has_openat2| RepositoryRoot { has_openat2, ..open() });
        let paths = [
            "file",
            "a/b/file",
            "short/file",
            "a/up",
            "a/out",
            "back",
            "absolute",
            "loop",
            "dangling",
            "winding",
            "second",
            "second/",
            "file/",
            "file/.",
            "a/../file",
            "..",
            "../secret",
            "a/../../secret",
            "/etc/hostname",
            "",
            ".",
            "a//b///file",
            "a/b/file/x",
            "a/none",
            "a",
            "a/b/",
            "short",
            "short/",
            "a/b/..",
            "short/..",
            "x\0y",
        ];
        for path in paths {
            for flags in [OFlags::RDONLY, OFlags::PATH, OFlags::RDONLY | OFlags::DIRECTORY] {
                let [at_once, by_component] = [0, 1].map(|index: usize| {
                    let opened = roots[index].open_beneath(path, flags);
                    opened.map(|file| rustix::fs::fstat(file).unwrap().st_ino).map_err(|error| error.raw_os_error())
                });
                assert_eq!(by_component, at_once, "{path:?} with {flags:?}");
            }
        }
        let listings = roots.each_ref().map(|root| format!("{:?}", root.list().unwrap()));
        assert_eq!(listings[0], listings[1]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
