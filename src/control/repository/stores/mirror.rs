//! The mirror of a store on disk: a directory that the rest of the server uses as a model
//! repository. Scans, loads and listings of a store come here, on threads that may wait.
//!
//! A model changes as a whole: its new files are fetched beside it, the others are linked, and then
//! both directories are exchanged, unless a load reads the old one. Locks of files separate servers
//! that share the cache: `turn` to fetch a model, `load` to read or exchange one, `index` for the
//! index. Nothing is kept in memory: another server may have done the work. Bounds:
//! `--model-store-bytes-max`, and those of `limits` for waiting.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::control::repository::stores::fault::StoreFault;
use crate::error::Error;
use crate::log;
use crate::metrics::StoreCells;
use crate::model::store::index::StoreIndex;
use crate::model::store::plan::{self, GroupPlan};
use crate::model::store::{StoreObject, check_path};
use crate::runtime::clock;
use crate::settings::{StoreSettings, StoreUrl};

/// Open files of one store's fetches: a model may have thousands.
const STORE_FILES_MAX: usize = 256;
/// The time that a server waits for another one that fetches the same model into the same cache:
/// enough for tens of gigabytes. After it the load fails.
const STORE_TURN_MAX: Duration = Duration::from_secs(900);
/// The time that new files of a model wait for loads of the old ones; then the next poll retries.
const STORE_SWAP_MAX: Duration = Duration::from_secs(30);
/// The interval of tries to lock what another server has: locks of files wake no waiter.
const STORE_LOCK_STEP: Duration = Duration::from_millis(50);

/// The source of the objects of a repository.
pub trait ObjectSource: Send + Sync {
    /// Lists all objects beneath a directory of the repository; an empty one is the repository.
    ///
    /// # Errors
    /// The reason that they cannot be listed.
    fn list(&self, directory: &str) -> Result<Vec<StoreObject>, StoreFault>;

    /// Lists the names in the repository alone.
    ///
    /// # Errors
    /// The reason that they cannot be listed.
    fn names(&self) -> Result<StoreNames, StoreFault>;

    /// Fetches objects into files, and checks them.
    ///
    /// # Errors
    /// The path of an object, and the reason that it could not be fetched.
    fn fetch(&self, wanted: Vec<WantedObject>) -> Result<(), (String, StoreFault)>;
}

/// The names in a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreNames {
    /// Names with objects beneath them.
    pub directories: Vec<String>,
    /// Names of objects.
    pub files: Vec<String>,
}

/// An object, and the file that is to have its contents.
pub struct WantedObject {
    /// The object.
    pub object: StoreObject,
    /// An empty file.
    pub file: File,
}

/// The mirror of one store.
pub struct StoreMirror {
    url: StoreUrl,
    source: Box<dyn ObjectSource>,
    /// The directory of this store in the cache.
    root: PathBuf,
    bytes_max: u64,
    /// `STORE_TURN_MAX` and `STORE_SWAP_MAX`, but in tests.
    turn_max: Duration,
    swap_max: Duration,
    cells: Arc<StoreCells>,
}

/// While it lives, the model's files in the mirror stay as they are.
pub struct StoreLease {
    _lock: File,
}

impl StoreMirror {
    /// Makes the directories of a store's mirror.
    ///
    /// # Errors
    /// `Internal` if the cache cannot be written.
    pub fn open(
        url: StoreUrl,
        source: Box<dyn ObjectSource>,
        settings: &StoreSettings,
        cells: Arc<StoreCells>,
    ) -> Result<Self, Error> {
        let root = settings.cache_of(url.kind).join(directory_name(&url.text));
        let (turn_max, swap_max) = (STORE_TURN_MAX, STORE_SWAP_MAX);
        let mirror = Self { url, source, root, bytes_max: settings.bytes_max, turn_max, swap_max, cells };
        mirror.make().map_err(|error| StoreFault::of_disk(&error).error(&mirror.url, ""))?;
        Ok(mirror)
    }

    /// Returns the directory that mirrors the store.
    pub fn tree(&self) -> PathBuf {
        // A single model has the name of the last part of its URL.
        let last = [&self.url.prefix, &self.url.bucket].into_iter().find(|part| !part.is_empty());
        let last = last.and_then(|part| part.rsplit('/').next()).unwrap_or("models");
        self.root.join("tree").join(last)
    }

    /// Returns the figures of the store.
    pub const fn cells(&self) -> &Arc<StoreCells> {
        &self.cells
    }

    /// Returns the name of the store.
    pub fn name(&self) -> &str {
        &self.url.text
    }

    /// Returns true if anything was mirrored, now or earlier.
    pub fn has_copy(&self) -> bool {
        !self.index().is_empty()
    }

    /// Returns the names in the store.
    ///
    /// # Errors
    /// The reason that they cannot be listed.
    pub fn names(&self) -> Result<StoreNames, Error> {
        let names = self.source.names().map_err(|fault| fault.error(&self.url, ""));
        self.cells.reachable.set(Some(u64::from(names.is_ok())));
        names
    }

    /// Mirrors the store. Returns the models that could not be mirrored, each with the reason;
    /// their copies stay as they were.
    ///
    /// # Errors
    /// The reason that the store cannot be listed; the mirror is as it was.
    pub fn mirror_all(&self) -> Result<Vec<(String, Error)>, Error> {
        let listing = self.list("")?;
        let plan = plan::plan(&listing, &self.index(), self.bytes_max);
        plan.ignored
            .iter()
            .for_each(|why| log::warning(&format!("'{}' has an object that is ignored: {why}", self.url.text)));
        let mut refused = Vec::new();
        for name in plan.gone {
            refused.extend(self.remove(&name).err().map(|error| (name, error)));
        }
        for (name, group) in plan.groups {
            let outcome = match group {
                Ok(_) => self.mirror_group(&name, &listing),
                Err(why) => Err(Error::invalid(format!("model repository '{}': {why}", self.url.text))),
            };
            refused.extend(outcome.err().map(|error| (name, error)));
        }
        self.cells.models_refused.set(Some(refused.len() as u64));
        Ok(refused)
    }

    /// Mirrors one model of the store.
    ///
    /// # Errors
    /// The reason that it cannot be mirrored; the mirror is as it was.
    pub fn mirror_model(&self, name: &str) -> Result<(), Error> {
        // It must be a directory of the store and of the mirror.
        if name.contains('/') || check_path(name).is_err() {
            return Ok(());
        }
        let listing = self.list(name)?;
        if listing.is_empty() { self.remove(name) } else { self.mirror_group(name, &listing) }
    }

    /// Keeps the files of a model unchanged until the lease is dropped. It waits while they are
    /// exchanged.
    ///
    /// # Errors
    /// `Internal` if the cache cannot be written.
    pub fn lease(&self, name: &str) -> Result<StoreLease, Error> {
        let lock = self.lock("load", name, FlockOperation::NonBlockingLockShared, self.swap_max);
        let lock = lock.map_err(|error| StoreFault::of_disk(&error).error(&self.url, name))?;
        let late = || Error::unavailable(format!("model '{name}': its files are being exchanged by another server"));
        lock.map(|lock| StoreLease { _lock: lock }).ok_or_else(late)
    }

    fn list(&self, directory: &str) -> Result<Vec<StoreObject>, Error> {
        let listing = self.source.list(directory).map_err(|fault| fault.error(&self.url, directory));
        self.cells.reachable.set(Some(u64::from(listing.is_ok())));
        listing
    }

    /// Mirrors one model by a listing that has all of it.
    fn mirror_group(&self, name: &str, listing: &[StoreObject]) -> Result<(), Error> {
        let disk = |error: io::Error| StoreFault::of_disk(&error).error(&self.url, name);
        let (turn, index) = self.turn(name)?;
        let Some(plan) = plan::plan_model(name, listing, &index, self.bytes_max) else { return Ok(()) };
        let plan = plan.map_err(|why| Error::invalid(format!("model repository '{}': {why}", self.url.text)))?;
        let plan = self.with_lost(plan);
        if plan.is_done() {
            return Ok(());
        }
        let new = self.staging(name);
        remove(&new).and_then(|()| fs::create_dir_all(&new)).map_err(disk)?;
        let fetched = self.fetch(&new, &plan);
        let outcome = fetched.and_then(|()| self.exchange(name, &new, &plan));
        // Half of a model is of no use: the next attempt begins anew.
        let _ = remove(&new);
        outcome?;
        self.change_index(|index| index.replace(name, &plan.objects())).map_err(disk)?;
        drop(turn);
        if !name.is_empty() && !plan.fetch.is_empty() {
            let (files, bytes) = (plan.fetch.len(), plan.fetch.iter().fold(0, |sum: u64, object| sum + object.size));
            log::info(&format!("fetched {files} files ({bytes} bytes) of '{name}' from '{}'", self.url.text));
        }
        Ok(())
    }

    /// Objects of the index whose files are missing, or have another size, are fetched again.
    fn with_lost(&self, mut plan: GroupPlan) -> GroupPlan {
        let tree = self.tree();
        let is_there = |object: &StoreObject| {
            let found = fs::symlink_metadata(tree.join(&object.path));
            let is_directory = object.path.ends_with('/');
            found.is_ok_and(|file| file.is_dir() == is_directory && (is_directory || file.len() == object.size))
        };
        let (keep, lost): (Vec<_>, Vec<_>) = plan.keep.into_iter().partition(is_there);
        (plan.keep, plan.fetch) = (keep, plan.fetch.into_iter().chain(lost).collect());
        plan
    }

    /// Fetches new objects into a directory.
    fn fetch(&self, new: &Path, plan: &GroupPlan) -> Result<(), Error> {
        let disk = |path: &str, error: io::Error| StoreFault::of_disk(&error).error(&self.url, path);
        for objects in plan.fetch.chunks(STORE_FILES_MAX) {
            let (mut wanted, mut files) = (Vec::new(), Vec::new());
            for object in objects {
                let file = create(new, object).map_err(|error| disk(&object.path, error))?;
                files
                    .extend(file.as_ref().map(File::try_clone).transpose().map_err(|error| disk(&object.path, error))?);
                wanted.extend(file.map(|file| WantedObject { object: object.clone(), file }));
            }
            self.source.fetch(wanted).map_err(|(path, fault)| fault.error(&self.url, &path))?;
            // The index will name these files, also after a loss of power.
            files.iter().try_for_each(File::sync_data).map_err(|error| disk("", error))?;
        }
        Ok(())
    }

    /// Replaces a model's directory by the new one, with the files that it keeps.
    fn exchange(&self, name: &str, new: &Path, plan: &GroupPlan) -> Result<(), Error> {
        let disk = |error: io::Error| StoreFault::of_disk(&error).error(&self.url, name);
        let lock = self.lock("load", name, FlockOperation::NonBlockingLockExclusive, self.swap_max).map_err(disk)?;
        let busy =
            || Error::unavailable(format!("model '{name}': its update waits for a load that reads the old files"));
        let _lock = lock.ok_or_else(busy)?;
        let tree = self.tree();
        if name.is_empty() {
            return self.exchange_files(new, plan).map_err(disk);
        }
        for object in &plan.keep {
            keep(&tree.join(&object.path), &new.join(&object.path)).map_err(disk)?;
        }
        exchange(&new.join(name), &tree.join(name)).map_err(disk)
    }

    /// Does the same for files beside models, one by one.
    fn exchange_files(&self, new: &Path, plan: &GroupPlan) -> io::Result<()> {
        let tree = self.tree();
        let index = self.index();
        let kept: BTreeSet<String> = plan.objects().into_iter().map(|object| object.path).collect();
        for (path, ..) in index.of_group("").filter(|(path, ..)| !kept.contains(*path)) {
            remove(&tree.join(path))?;
        }
        plan.fetch.iter().try_for_each(|object| fs::rename(new.join(&object.path), tree.join(&object.path)))
    }

    /// Removes a model that is no longer in the store.
    fn remove(&self, name: &str) -> Result<(), Error> {
        let disk = |error: io::Error| StoreFault::of_disk(&error).error(&self.url, name);
        let (_turn, index) = self.turn(name)?;
        if index.of_group(name).next().is_none() {
            return Ok(());
        }
        let old = self.staging(name);
        let lock = self.lock("load", name, FlockOperation::NonBlockingLockExclusive, self.swap_max).map_err(disk)?;
        let busy =
            || Error::unavailable(format!("model '{name}': a load reads its files, which the store no longer has"));
        let _lock = lock.ok_or_else(busy)?;
        // First the index: files without an entry are fetched again, and an entry without files is a lie.
        self.change_index(|index| index.replace(name, &[])).map_err(disk)?;
        if name.is_empty() {
            return index.of_group("").try_for_each(|(path, ..)| remove(&self.tree().join(path))).map_err(disk);
        }
        let moved = remove(&old).and_then(|()| fs::create_dir_all(&old));
        moved.and_then(|()| missing_is_well(fs::rename(self.tree().join(name), old.join(name)))).map_err(disk)?;
        let _ = remove(&old);
        log::info(&format!("'{name}' is no longer in '{}'", self.url.text));
        Ok(())
    }

    /// Waits until no other thread or server fetches the model. The index is read after the wait.
    fn turn(&self, name: &str) -> Result<(File, StoreIndex), Error> {
        let lock = |wait| self.lock("turn", name, FlockOperation::NonBlockingLockExclusive, wait);
        let turn = lock(Duration::ZERO).and_then(|turn| {
            if turn.is_some() {
                return Ok(turn);
            }
            log::info(&format!("waits for another server or load that fetches '{name}' into the same cache"));
            lock(self.turn_max)
        });
        let turn = turn.map_err(|error| StoreFault::of_disk(&error).error(&self.url, name))?;
        let late = || {
            let waited = self.turn_max.as_secs();
            Error::unavailable(format!(
                "model '{name}': another server has fetched it for {waited} s into the same cache"
            ))
        };
        Ok((turn.ok_or_else(late)?, self.index()))
    }

    /// Takes a lock of this name for one model; `None` if others have it for `wait`.
    fn lock(&self, kind: &str, name: &str, how: FlockOperation, wait: Duration) -> io::Result<Option<File>> {
        // No model has the name of the other directory.
        let path = match name {
            "" => self.root.join(format!("locks/{kind}-files")),
            name => self.root.join("locks").join(kind).join(name),
        };
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let end = clock::now() + wait;
        loop {
            match flock(&file, how) {
                Ok(()) => return Ok(Some(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) if clock::now() < end => {
                    std::thread::park_timeout(STORE_LOCK_STEP)
                }
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn index(&self) -> StoreIndex {
        // If it is missing or damaged, all is fetched again.
        fs::read_to_string(self.root.join("index")).ok().and_then(|text| StoreIndex::decode(&text)).unwrap_or_default()
    }

    /// Changes the index, which several threads and servers may do.
    fn change_index(&self, change: impl FnOnce(&mut StoreIndex)) -> io::Result<()> {
        let lock = self.lock("index", "", FlockOperation::NonBlockingLockExclusive, self.swap_max)?;
        let _lock = lock.ok_or_else(|| io::Error::other("another server has locked the index"))?;
        let mut index = self.index();
        change(&mut index);
        let new = self.root.join("index.new");
        let mut file = File::create(&new)?;
        file.write_all(index.encode().as_bytes())?;
        file.sync_data()?;
        fs::rename(new, self.root.join("index"))
    }

    /// Returns the directory in which a model is put together.
    fn staging(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.join("new/files") } else { self.root.join("new/models").join(name) }
    }

    fn make(&self) -> io::Result<()> {
        // The contents of a store may be private.
        DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
        for directory in ["locks/turn", "locks/load", "new/models"] {
            fs::create_dir_all(self.root.join(directory))?;
        }
        fs::create_dir_all(self.tree())?;
        // For a person who looks into the cache.
        fs::write(self.root.join("url"), format!("{}\n", self.url.text))
    }
}

/// Returns the name of a store's directory: readable, and unique.
fn directory_name(url: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || ".-_".contains(letter) { letter } else { '-' };
    let readable: String = url.replace("://", "-").chars().map(plain).take(64).collect();
    let digest = Sha256::digest(url.as_bytes());
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{readable}-{hash}")
}

/// Makes the file of an object beneath a directory, or the directory that it stands for.
fn create(new: &Path, object: &StoreObject) -> io::Result<Option<File>> {
    let path = new.join(&object.path);
    if object.path.ends_with('/') {
        return fs::create_dir_all(&path).map(|()| None);
    }
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    OpenOptions::new().read(true).write(true).create_new(true).open(&path).map(Some)
}

/// Gives a file that does not change a second name, or copies it if the file system has no hard
/// links.
fn keep(old: &Path, new: &Path) -> io::Result<()> {
    if old.is_dir() {
        return fs::create_dir_all(new);
    }
    new.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::hard_link(old, new).or_else(|_| fs::copy(old, new).map(drop))
}

/// Puts `new` in the place of `old`, and the old one in the place of the new one. A reader sees one
/// or the other.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) => fs::rename(new, old),
        // A file system without exchange, such as one over a network: for a moment there is
        // neither.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            let aside = new.with_extension("old");
            fs::rename(old, &aside)?;
            fs::rename(new, old)?;
            remove(&aside)
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes a file or a directory, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    missing_is_well(match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    })
}

fn missing_is_well(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests;
