//! Opens backends: first a library of ours under the name of Triton's, whose symbols are our
//! functions, then the backend itself, whose dependency is thereby resolved. Both stay open until
//! the process ends, as in Triton: a library that has started threads cannot be closed.

#![expect(unsafe_code, reason = "libraries that are opened by name, and calls into them")]
#![expect(clippy::disallowed_types, reason = "taken when a library is opened")]

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library as SharedObject, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::triton::elf::{self, AbsoluteSymbol};
use crate::triton::error::{ErrorHandle, outcome};
use crate::triton::object::{AnyHandle, Handle};
use base::error::Error;

type BackendCall = unsafe extern "C" fn(AnyHandle) -> ErrorHandle;
type AttributeCall = unsafe extern "C" fn(AnyHandle, AnyHandle) -> ErrorHandle;
type ModelCall = unsafe extern "C" fn(AnyHandle) -> ErrorHandle;
type InstanceCall = unsafe extern "C" fn(AnyHandle) -> ErrorHandle;
type ExecuteCall = unsafe extern "C" fn(AnyHandle, *mut c_void, u32) -> ErrorHandle;
type ActionCall = unsafe extern "C" fn(AnyHandle, AnyHandle, u32) -> ErrorHandle;
type BatcherInitializeCall = unsafe extern "C" fn(*mut *mut c_void, AnyHandle) -> ErrorHandle;
type PointerCall = unsafe extern "C" fn(*mut c_void) -> ErrorHandle;
type BatchInitializeCall = unsafe extern "C" fn(*const c_void, *mut *mut c_void) -> ErrorHandle;
type CacheInitializeCall = unsafe extern "C" fn(*mut *mut c_void, *const c_char) -> ErrorHandle;
type CacheCall = unsafe extern "C" fn(*mut c_void, *const c_char, AnyHandle, AnyHandle) -> ErrorHandle;
type IncludeCall = unsafe extern "C" fn(AnyHandle, *mut c_void, *mut bool) -> ErrorHandle;

/// An opened backend: the functions that it exports, of which only `Execute` must be there.
pub(super) struct BackendLibrary {
    initialize: Option<BackendCall>,
    finalize: Option<BackendCall>,
    attribute: Option<AttributeCall>,
    model_initialize: Option<ModelCall>,
    model_finalize: Option<ModelCall>,
    instance_initialize: Option<InstanceCall>,
    instance_finalize: Option<InstanceCall>,
    instance_ready: Option<InstanceCall>,
    execute: ExecuteCall,
    /// Never dropped, which would close it.
    _object: ManuallyDrop<SharedObject>,
}

/// An opened library with a strategy for batches (`TRITON_BATCH_STRATEGY_PATH`).
pub(super) struct BatchLibrary {
    batcher_initialize: BatcherInitializeCall,
    batcher_finalize: PointerCall,
    batch_initialize: BatchInitializeCall,
    batch_finalize: PointerCall,
    include: IncludeCall,
    _object: ManuallyDrop<SharedObject>,
}

impl BackendLibrary {
    /// Opens it; `functions` are ours.
    ///
    /// # Errors
    /// `NotFound` in Triton's words (`shared_library.cc`) for a file that is not a library of this machine, that the loader
    /// refuses, or that lacks a function.
    pub(super) fn open(path: &Path, functions: &[AbsoluteSymbol]) -> Result<Self, Error> {
        let object = open(path, functions)?;
        let execute = symbol::<ExecuteCall>(&object, path, "TRITONBACKEND_ModelInstanceExecute")?;
        Ok(Self {
            initialize: find(&object, "TRITONBACKEND_Initialize"),
            finalize: find(&object, "TRITONBACKEND_Finalize"),
            attribute: find(&object, "TRITONBACKEND_GetBackendAttribute"),
            model_initialize: find(&object, "TRITONBACKEND_ModelInitialize"),
            model_finalize: find(&object, "TRITONBACKEND_ModelFinalize"),
            instance_initialize: find(&object, "TRITONBACKEND_ModelInstanceInitialize"),
            instance_finalize: find(&object, "TRITONBACKEND_ModelInstanceFinalize"),
            instance_ready: find(&object, "TRITONBACKEND_ModelInstanceReady"),
            execute,
            _object: ManuallyDrop::new(object),
        })
    }

    pub(super) fn initialize(&self, backend: AnyHandle) -> Result<(), Error> {
        // SAFETY: the signature is that of `tritonbackend.h`, the object outlives the backend's use of it.
        self.initialize.map_or(Ok(()), |call| outcome(unsafe { call(backend) }))
    }

    pub(super) fn finalize(&self, backend: AnyHandle) -> Result<(), Error> {
        // SAFETY: as for `initialize`; it is called once, when no model is left.
        self.finalize.map_or(Ok(()), |call| outcome(unsafe { call(backend) }))
    }

    pub(super) fn attributes(&self, backend: AnyHandle, attributes: AnyHandle) -> Result<(), Error> {
        // SAFETY: as for `initialize`.
        self.attribute.map_or(Ok(()), |call| outcome(unsafe { call(backend, attributes) }))
    }

    pub(super) fn model_initialize(&self, model: AnyHandle) -> Result<(), Error> {
        // SAFETY: as for `initialize`.
        self.model_initialize.map_or(Ok(()), |call| outcome(unsafe { call(model) }))
    }

    pub(super) fn model_finalize(&self, model: AnyHandle) -> Result<(), Error> {
        // SAFETY: as for `initialize`; it is called once, when no instance is left.
        self.model_finalize.map_or(Ok(()), |call| outcome(unsafe { call(model) }))
    }

    pub(super) fn instance_initialize(&self, instance: AnyHandle) -> Result<(), Error> {
        // SAFETY: as for `initialize`.
        self.instance_initialize.map_or(Ok(()), |call| outcome(unsafe { call(instance) }))
    }

    pub(super) fn instance_finalize(&self, instance: AnyHandle) -> Result<(), Error> {
        // SAFETY: as for `initialize`; it is called once, after the last run.
        self.instance_finalize.map_or(Ok(()), |call| outcome(unsafe { call(instance) }))
    }

    /// Checks that an instance is ready; `None` if the backend has no such function.
    pub(super) fn instance_ready(&self, instance: AnyHandle) -> Option<Result<(), Error>> {
        // SAFETY: as for `initialize`.
        self.instance_ready.map(|call| outcome(unsafe { call(instance) }))
    }

    pub(super) const fn has_ready(&self) -> bool {
        self.instance_ready.is_some()
    }

    pub(super) fn execute<T>(&self, instance: AnyHandle, requests: &mut [Handle<T>]) -> Result<(), Error> {
        let count = u32::try_from(requests.len()).map_err(|_| Error::internal("a batch has too many requests"))?;
        // SAFETY: as for `initialize`; the list outlives the call, and its requests are the backend's if it succeeds.
        outcome(unsafe { (self.execute)(instance, requests.as_mut_ptr().cast(), count) })
    }
}

impl BatchLibrary {
    /// Opens it.
    ///
    /// # Errors
    /// As [`BackendLibrary::open`].
    pub(super) fn open(path: &Path, functions: &[AbsoluteSymbol]) -> Result<Self, Error> {
        let object = open(path, functions)?;
        Ok(Self {
            batcher_initialize: symbol(&object, path, "TRITONBACKEND_ModelBatcherInitialize")?,
            batcher_finalize: symbol(&object, path, "TRITONBACKEND_ModelBatcherFinalize")?,
            batch_initialize: symbol(&object, path, "TRITONBACKEND_ModelBatchInitialize")?,
            batch_finalize: symbol(&object, path, "TRITONBACKEND_ModelBatchFinalize")?,
            include: symbol(&object, path, "TRITONBACKEND_ModelBatchIncludeRequest")?,
            _object: ManuallyDrop::new(object),
        })
    }

    pub(super) fn begin(&self, model: AnyHandle) -> Result<usize, Error> {
        let mut batcher = std::ptr::null_mut();
        // SAFETY: the signature is that of `tritonbackend.h`.
        outcome(unsafe { (self.batcher_initialize)(&raw mut batcher, model) })?;
        Ok(batcher as usize)
    }

    pub(super) fn end(&self, batcher: usize) -> Result<(), Error> {
        // SAFETY: the pointer is the one that `begin` got.
        outcome(unsafe { (self.batcher_finalize)(batcher as *mut c_void) })
    }

    pub(super) fn begin_batch(&self, batcher: usize) -> Result<usize, Error> {
        let mut batch = std::ptr::null_mut();
        // SAFETY: the pointer is the one that `begin` got.
        outcome(unsafe { (self.batch_initialize)(batcher as *const c_void, &raw mut batch) })?;
        Ok(batch as usize)
    }

    pub(super) fn end_batch(&self, batch: usize) -> Result<(), Error> {
        // SAFETY: the pointer is the one that `begin_batch` got.
        outcome(unsafe { (self.batch_finalize)(batch as *mut c_void) })
    }

    pub(super) fn includes(&self, request: AnyHandle, batch: usize) -> Result<bool, Error> {
        let mut includes = false;
        // SAFETY: the pointer is the one that `begin_batch` got, the request is alive.
        outcome(unsafe { (self.include)(request, batch as *mut c_void, &raw mut includes) })?;
        Ok(includes)
    }
}

/// An opened repository agent: the functions that it exports, of which only `ModelAction` must be there.
pub(super) struct AgentLibrary {
    initialize: Option<BackendCall>,
    finalize: Option<BackendCall>,
    model_initialize: Option<AttributeCall>,
    model_finalize: Option<AttributeCall>,
    model_action: ActionCall,
    _object: ManuallyDrop<SharedObject>,
}

impl AgentLibrary {
    /// Opens it.
    ///
    /// # Errors
    /// As [`BackendLibrary::open`].
    pub(super) fn open(path: &Path, functions: &[AbsoluteSymbol]) -> Result<Self, Error> {
        let object = open(path, functions)?;
        Ok(Self {
            initialize: find(&object, "TRITONREPOAGENT_Initialize"),
            finalize: find(&object, "TRITONREPOAGENT_Finalize"),
            model_initialize: find(&object, "TRITONREPOAGENT_ModelInitialize"),
            model_finalize: find(&object, "TRITONREPOAGENT_ModelFinalize"),
            model_action: symbol(&object, path, "TRITONREPOAGENT_ModelAction")?,
            _object: ManuallyDrop::new(object),
        })
    }

    pub(super) fn initialize(&self, agent: AnyHandle) -> Result<(), Error> {
        // SAFETY: the signature is that of `tritonrepoagent.h`, the object outlives the agent's use of it.
        self.initialize.map_or(Ok(()), |call| outcome(unsafe { call(agent) }))
    }

    pub(super) fn finalize(&self, agent: AnyHandle) -> Result<(), Error> {
        // SAFETY: as above; it is called once, when no model is left.
        self.finalize.map_or(Ok(()), |call| outcome(unsafe { call(agent) }))
    }

    pub(super) fn model_initialize(&self, agent: AnyHandle, model: AnyHandle) -> Result<(), Error> {
        // SAFETY: as above.
        self.model_initialize.map_or(Ok(()), |call| outcome(unsafe { call(agent, model) }))
    }

    pub(super) fn model_finalize(&self, agent: AnyHandle, model: AnyHandle) -> Result<(), Error> {
        // SAFETY: as above; it is called once, after the last action.
        self.model_finalize.map_or(Ok(()), |call| outcome(unsafe { call(agent, model) }))
    }

    pub(super) fn model_action(&self, agent: AnyHandle, model: AnyHandle, action: u32) -> Result<(), Error> {
        // SAFETY: as above.
        outcome(unsafe { (self.model_action)(agent, model, action) })
    }
}

/// An opened response cache: the functions that it exports, all of which must be there.
pub(super) struct CacheLibrary {
    initialize: CacheInitializeCall,
    finalize: PointerCall,
    look_up: CacheCall,
    insert: CacheCall,
    _object: ManuallyDrop<SharedObject>,
}

impl CacheLibrary {
    /// Opens it.
    ///
    /// # Errors
    /// As [`BackendLibrary::open`].
    pub(super) fn open(path: &Path, functions: &[AbsoluteSymbol]) -> Result<Self, Error> {
        let object = open(path, functions)?;
        Ok(Self {
            initialize: symbol(&object, path, "TRITONCACHE_CacheInitialize")?,
            finalize: symbol(&object, path, "TRITONCACHE_CacheFinalize")?,
            look_up: symbol(&object, path, "TRITONCACHE_CacheLookup")?,
            insert: symbol(&object, path, "TRITONCACHE_CacheInsert")?,
            _object: ManuallyDrop::new(object),
        })
    }

    /// Makes a cache; returns its pointer, 0 if it gave none.
    pub(super) fn initialize(&self, config: &CStr) -> Result<usize, Error> {
        let mut cache = std::ptr::null_mut();
        // SAFETY: the signature is that of `tritoncache.h`, the text outlives the call.
        outcome(unsafe { (self.initialize)(&raw mut cache, config.as_ptr()) })?;
        Ok(cache as usize)
    }

    pub(super) fn finalize(&self, cache: usize) -> Result<(), Error> {
        // SAFETY: the pointer is the one that `initialize` got; it is called once, when no thread is in the cache.
        outcome(unsafe { (self.finalize)(cache as *mut c_void) })
    }

    pub(super) fn look_up(
        &self,
        cache: usize,
        key: &CStr,
        entry: AnyHandle,
        allocator: AnyHandle,
    ) -> Result<(), Error> {
        // SAFETY: the pointer is the one that `initialize` got; the text and both objects outlive the call.
        outcome(unsafe { (self.look_up)(cache as *mut c_void, key.as_ptr(), entry, allocator) })
    }

    pub(super) fn insert(&self, cache: usize, key: &CStr, entry: AnyHandle, allocator: AnyHandle) -> Result<(), Error> {
        // SAFETY: as for `look_up`.
        outcome(unsafe { (self.insert)(cache as *mut c_void, key.as_ptr(), entry, allocator) })
    }
}

/// Opens a library that is written against the interface.
fn open(path: &Path, functions: &[AbsoluteSymbol]) -> Result<SharedObject, Error> {
    let refuse = |why: String| Error::not_found(format!("unable to load shared library: {why}"));
    let file = std::fs::read(path).map_err(|error| refuse(format!("{}: {error}", file_name(path))))?;
    let needed = elf::needed_libraries(&file).map_err(|why| refuse(format!("{} is {why}", file_name(path))))?;
    let hosts = needed.iter().filter(|name| elf::is_host_library(name)).map(String::as_str);
    // A backend that names no host finds the functions too, as it does inside tritonserver.
    hosts.chain(["libtritonserver.so"]).try_for_each(|name| provide(name, functions))?;
    // SAFETY: its initialisers run, as the user who installed it intends.
    let object = unsafe { SharedObject::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    object.map_err(|error| refuse(without_directory(&error, path)))
}

fn file_name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// The loader's text, without the place of the file on this machine.
fn without_directory(error: &libloading::Error, path: &Path) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    match path.parent().and_then(Path::to_str) {
        Some(directory) if !directory.is_empty() => text.replace(&format!("{directory}/"), ""),
        _ => text,
    }
}

/// Makes our functions known under the name of a library, once for each name.
fn provide(soname: &str, functions: &[AbsoluteSymbol]) -> Result<(), Error> {
    static PROVIDED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut provided = PROVIDED.lock().unwrap_or_else(PoisonError::into_inner);
    if provided.contains(soname) {
        return Ok(());
    }
    let library = elf::encode_library(soname, functions);
    let refuse = |why: &dyn std::fmt::Display| Error::internal(format!("the host of backends cannot be made: {why}"));
    let file = sealed(&library).map_err(|error| refuse(&error))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: it is our own, without code and initialisers; its symbols are functions of this program.
    let object = unsafe { SharedObject::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    // Never closed: backends are bound to it.
    std::mem::forget(object.map_err(|error| refuse(&error))?);
    provided.insert(soname.to_owned());
    Ok(())
}

/// A file without a name that has these bytes, sealed against changes.
fn sealed(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("deuteron-host", flags)?);
    file.write_all(bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

fn find<T: Copy>(object: &SharedObject, name: &str) -> Option<T> {
    // SAFETY: callers name the type that `tritonbackend.h` gives the function.
    unsafe { object.get::<T>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

fn symbol<T: Copy>(object: &SharedObject, path: &Path, name: &str) -> Result<T, Error> {
    find(object, name).ok_or_else(|| {
        let file = file_name(path);
        Error::not_found(format!(
            "unable to find required entrypoint '{name}' in shared library: {file}: undefined symbol: {name}"
        ))
    })
}
