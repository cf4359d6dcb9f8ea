//! Triton's response caches, unmodified: shared libraries that are written against `tritoncache.h`. A cache keeps encoded
//! answers under keys, in any way it likes. It runs in the server's process, on threads that may wait for it, and never on a
//! shard. Its life, as in Triton (`cache_manager.cc`):
//!
//! ```text
//! CacheInitialize ─► CacheLookup, CacheInsert, from several threads at once ─► CacheFinalize
//! ```

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::triton::abi;
use crate::triton::cache_object::{CacheAllocatorObject, CacheEntryObject, CacheTransfer};
use crate::triton::error::c_text;
use crate::triton::library::CacheLibrary;
use crate::triton::object::Owned;
use crate::triton::services::{self, FinalizeMark, HostServices, log_error};
use base::error::{Code, Error};

/// An opened cache. Dropped, it is finalized; its library stays open.
pub struct HostedCache {
    library: CacheLibrary,
    /// The pointer that the cache gave, which only it understands.
    cache: usize,
}

impl HostedCache {
    /// Opens the cache NAME of a directory, with its settings as JSON.
    ///
    /// # Errors
    /// As [`Self::find`]; `NotFound` for a file that is no library or lacks a function; the cache's own error.
    pub fn open(services: &HostServices, directory: &Path, name: &str, config: &str) -> Result<Self, Error> {
        let path = Self::find(directory, name)?;
        services::set(services);
        let library = CacheLibrary::open(&path, &abi::symbols())?;
        match library.initialize(&c_text(config))? {
            0 => Err(Error::internal("Failed to initialize cache implementation")),
            cache => Ok(Self { library, cache }),
        }
    }

    /// Returns the file of the cache NAME in a directory.
    ///
    /// # Errors
    /// `InvalidArgument` in Triton's words without such a file.
    pub fn find(directory: &Path, name: &str) -> Result<PathBuf, Error> {
        let path = directory.join(name).join(format!("libtritoncache_{name}.so"));
        if model::name::is_plain_name(name) && path.is_file() {
            return Ok(path);
        }
        let name = name.escape_debug();
        Err(Error::invalid(format!(
            "unable to find 'libtritoncache_{name}.so' for cache, searched: '{name}' beneath --cache-directory"
        )))
    }

    /// Returns the bytes that are stored under a key; `None` if the cache has none. Blocks as long as the cache does.
    ///
    /// # Errors
    /// The cache's error; `Internal` if it has more than `size_max` bytes, or says that it has some and gives none.
    pub fn look_up(&self, key: &str, size_max: usize) -> Result<Option<Bytes>, Error> {
        let entry = Owned::new(CacheEntryObject::default());
        let allocator = Owned::new(CacheAllocatorObject::new(CacheTransfer::Load(size_max, None)));
        match self.library.look_up(self.cache, &c_text(key), entry.handle().any(), allocator.handle().any()) {
            Ok(()) => {}
            Err(error) if error.code() == Code::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let value = allocator.into_handle().take()?.into_value();
        value.map(Some).ok_or_else(|| Error::internal("the cache found an entry and has not copied it"))
    }

    /// Stores bytes under a key, unless the cache has some. Blocks as long as the cache does.
    ///
    /// # Errors
    /// The cache's error.
    pub fn store(&self, key: &str, value: Bytes) -> Result<(), Error> {
        let entry = Owned::new(CacheEntryObject::of_size(value.len()));
        let allocator = Owned::new(CacheAllocatorObject::new(CacheTransfer::Store(value)));
        match self.library.insert(self.cache, &c_text(key), entry.handle().any(), allocator.handle().any()) {
            Err(error) if error.code() == Code::AlreadyExists => Ok(()),
            outcome => outcome,
        }
    }
}

impl Drop for HostedCache {
    fn drop(&mut self) {
        let _mark = FinalizeMark::new();
        if let Err(error) = self.library.finalize(self.cache) {
            log_error(&format!("a response cache failed to finalize: {error}"));
        }
    }
}
