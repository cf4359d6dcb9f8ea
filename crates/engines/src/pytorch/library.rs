//! The opened shim: a library that was compiled from `shim.cpp` against the torch of this machine, and so brings torch into
//! the process. It stays open until the process ends: torch starts threads, and cannot be closed. Every failure inside it
//! comes back as a text.

#![expect(unsafe_code, reason = "a library that is opened by name, and calls into it")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use libloading::os::unix::{Library as SharedObject, RTLD_LOCAL, RTLD_NOW};
use smallvec::SmallVec;

use base::tensor::{Shape, byte_size};

use super::datatype::{STRINGS, TorchType};
use super::names::{ForwardArgument, ForwardKind};
use super::parameters::RunOptions;

/// The version of the interface; the same as in `shim.cpp`.
const INTERFACE: u32 = 1;

type NumberCall = unsafe extern "C" fn() -> u32;
type TextCall = unsafe extern "C" fn() -> *const c_char;
type FailureCall = unsafe extern "C" fn(*mut u64) -> *const c_char;
type LoadCall = unsafe extern "C" fn(*const c_void, u64, u32) -> *mut c_void;
type HandleCall = unsafe extern "C" fn(*mut c_void);
type CountCall = unsafe extern "C" fn(*const c_void) -> u64;
type ArgumentCall = unsafe extern "C" fn(*const c_void, u64, *mut *const c_char, *mut *const c_char) -> i32;
type OutputCountCall = unsafe extern "C" fn(*const c_void) -> i32;
type RunCall = unsafe extern "C" fn(*mut c_void, *const RawInput, u64, u32, i32) -> *mut c_void;
type TakeCall = unsafe extern "C" fn(*mut c_void, u64, *mut RawOutput) -> bool;
type InteropCall = unsafe extern "C" fn(i32) -> bool;

/// `DeuteronTorchInput`.
#[repr(C)]
struct RawInput {
    contents: *const c_void,
    size: u64,
    shape: *const i64,
    rank: u64,
    element: i32,
    name: *const c_char,
}

/// `DeuteronTorchOutput`.
#[repr(C)]
struct RawOutput {
    handle: *mut c_void,
    contents: *const c_void,
    size: u64,
    shape: *const i64,
    rank: u64,
    element: i32,
}

/// The functions of an opened shim.
pub(super) struct TorchLibrary {
    version: String,
    failure: FailureCall,
    load: LoadCall,
    unload: HandleCall,
    argument_count: CountCall,
    argument: ArgumentCall,
    output_count: OutputCountCall,
    run: RunCall,
    run_count: CountCall,
    take: TakeCall,
    end_run: HandleCall,
    free: HandleCall,
    set_interop_threads: InteropCall,
    /// Never dropped, which would close it.
    _object: ManuallyDrop<SharedObject>,
}

/// A loaded module. Several threads may run it at a time, if it does not change itself.
pub(super) struct TorchModule {
    library: Arc<TorchLibrary>,
    handle: NonNull<c_void>,
    options: RunOptions,
    /// The arguments of `forward`.
    pub(super) arguments: Vec<ForwardArgument>,
    /// The outputs that `forward` declares; `None` if it leaves that open.
    pub(super) output_count: Option<usize>,
}

/// An input of a run.
pub(super) struct TorchInput<'a> {
    /// Its key, if the module takes a dictionary.
    pub(super) name: &'a CStr,
    /// The type of its elements.
    pub(super) element: TorchType,
    /// Its shape.
    pub(super) shape: &'a [i64],
    /// Its elements; of strings each after its length.
    pub(super) contents: &'a [u8],
}

/// An output of a run.
#[derive(Clone, Debug)]
pub(super) struct TorchOutput {
    /// The type of its elements.
    pub(super) element: TorchType,
    /// Its shape; of a list of strings their number.
    pub(super) shape: Shape,
    /// Its elements, in torch's memory, which is freed with the last part of it.
    pub(super) contents: Bytes,
}

impl TorchLibrary {
    /// Opens a shim.
    ///
    /// # Errors
    /// The loader's text if it, or the torch that it was compiled against, cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: the initialisers of torch run, which the user has installed to be used.
        let object = unsafe { SharedObject::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let object = object.map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            format!("it cannot be loaded: {}", cause.unwrap_or_else(|| error.to_string()))
        })?;
        let interface = symbol::<NumberCall>(&object, "deuteron_torch_interface")?;
        // SAFETY: the signature is that of `shim.cpp`; so are those below.
        let interface = unsafe { interface() };
        if interface != INTERFACE {
            return Err(format!("it has interface {interface}, expected {INTERFACE}"));
        }
        let version = symbol::<TextCall>(&object, "deuteron_torch_version")?;
        // SAFETY: it returns a constant text.
        let version = unsafe { CStr::from_ptr(version()) };
        Ok(Self {
            version: version.to_string_lossy().into_owned(),
            failure: symbol(&object, "deuteron_torch_failure")?,
            load: symbol(&object, "deuteron_torch_load")?,
            unload: symbol(&object, "deuteron_torch_unload")?,
            argument_count: symbol(&object, "deuteron_torch_argument_count")?,
            argument: symbol(&object, "deuteron_torch_argument")?,
            output_count: symbol(&object, "deuteron_torch_output_count")?,
            run: symbol(&object, "deuteron_torch_run")?,
            run_count: symbol(&object, "deuteron_torch_run_count")?,
            take: symbol(&object, "deuteron_torch_take")?,
            end_run: symbol(&object, "deuteron_torch_end_run")?,
            free: symbol(&object, "deuteron_torch_free")?,
            set_interop_threads: symbol(&object, "deuteron_torch_set_interop_threads")?,
            _object: ManuallyDrop::new(object),
        })
    }

    /// The version of torch.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Sets the threads for parts of modules that run side by side, once in a process.
    ///
    /// # Errors
    /// If it was set before, or is in use.
    pub(super) fn set_interop_threads(&self, threads: u16) -> Result<(), String> {
        // SAFETY: a plain number.
        let is_set = unsafe { (self.set_interop_threads)(threads.into()) };
        if is_set { Ok(()) } else { Err(self.failure()) }
    }

    /// The reason why the last call of this thread failed.
    fn failure(&self) -> String {
        let mut size = 0;
        // SAFETY: the text belongs to this thread, and lives until its next call.
        let bytes = unsafe {
            let text = (self.failure)(&raw mut size);
            borrowed(text.cast(), size)
        };
        let text = String::from_utf8_lossy(bytes);
        if text.is_empty() { "it does not say why".to_owned() } else { shortened(&text) }
    }
}

impl TorchModule {
    /// Loads a TorchScript file.
    ///
    /// # Errors
    /// Torch's text.
    pub(super) fn load(library: &Arc<TorchLibrary>, file: &[u8], options: RunOptions) -> Result<Self, String> {
        // SAFETY: `file.len()` bytes are read before it returns.
        let handle = unsafe { (library.load)(file.as_ptr().cast(), file.len() as u64, options.0) };
        let handle = NonNull::new(handle).ok_or_else(|| library.failure())?;
        let library = Arc::clone(library);
        let mut module = Self { library, handle, options, arguments: Vec::new(), output_count: None };
        module.describe();
        Ok(module)
    }

    fn describe(&mut self) {
        let Self { library, handle, .. } = self;
        let model = handle.as_ptr().cast_const();
        // SAFETY: the module is alive; so it is below.
        let count = unsafe { (library.argument_count)(model) };
        let argument = |index| {
            let (mut name, mut type_name) = (std::ptr::null(), std::ptr::null());
            // SAFETY: the index is below the count; the texts live as long as the module, and are copied.
            let (kind, name, type_name) = unsafe {
                let kind = (library.argument)(model, index, &raw mut name, &raw mut type_name);
                (kind, CStr::from_ptr(name), CStr::from_ptr(type_name))
            };
            let text = |text: &CStr| text.to_string_lossy().into_owned();
            let kind = match kind {
                1 => ForwardKind::Tensor,
                2 => ForwardKind::Strings,
                3 => ForwardKind::TensorsByName,
                _ => ForwardKind::Other,
            };
            ForwardArgument { name: text(name), type_name: text(type_name), kind }
        };
        self.arguments = (0..count).map(argument).collect();
        // SAFETY: as above.
        self.output_count = usize::try_from(unsafe { (library.output_count)(model) }).ok();
    }

    /// Runs `forward` on borrowed inputs, on this many threads.
    ///
    /// # Errors
    /// Torch's text.
    pub(super) fn run(&self, inputs: &[TorchInput<'_>], threads: u16) -> Result<Vec<TorchOutput>, String> {
        let raw = inputs.iter().map(raw_input).collect::<Result<SmallVec<[RawInput; 4]>, _>>()?;
        let (library, model) = (&self.library, self.handle.as_ptr());
        // SAFETY: the module is alive; inputs are borrowed until it returns, and tensors that still
        // refer to them then have copies. A module that changes itself belongs to one instance, so
        // to one thread at a time.
        let run = unsafe { (library.run)(model, raw.as_ptr(), raw.len() as u64, self.options.0, threads.into()) };
        let run = NonNull::new(run).ok_or_else(|| library.failure())?;
        // SAFETY: the run is alive until it is ended below.
        let count = unsafe { (library.run_count)(run.as_ptr().cast_const()) };
        let outputs = (0..count).map(|index| self.take(run, index)).collect();
        // SAFETY: it came from `run`, and nothing refers to it: outputs were taken out of it.
        unsafe { (library.end_run)(run.as_ptr()) };
        outputs
    }

    fn take(&self, run: NonNull<c_void>, index: u64) -> Result<TorchOutput, String> {
        let nothing = std::ptr::null();
        let mut raw = RawOutput {
            handle: std::ptr::null_mut(),
            contents: nothing,
            size: 0,
            shape: nothing.cast(),
            rank: 0,
            element: STRINGS.0,
        };
        // SAFETY: the run is alive, and the index below its count; it writes one structure.
        let is_taken = unsafe { (self.library.take)(run.as_ptr(), index, &raw mut raw) };
        let handle = NonNull::new(raw.handle).filter(|_| is_taken).ok_or_else(|| self.library.failure())?;
        let owned = OwnedOutput { library: Arc::clone(&self.library), handle, contents: raw.contents, size: raw.size };
        // SAFETY: `rank` numbers live as long as the handle, and are copied.
        let shape = unsafe { borrowed(raw.shape, raw.rank) };
        let shape = Shape::from_slice(shape);
        let contents = if raw.size == 0 { Bytes::new() } else { Bytes::from_owner(owned) };
        Ok(TorchOutput { element: TorchType(raw.element), shape, contents })
    }
}

impl Drop for TorchModule {
    fn drop(&mut self) {
        // SAFETY: it came from `load`, and is dropped once.
        unsafe { (self.library.unload)(self.handle.as_ptr()) };
    }
}

// SAFETY: a module is bound to no thread. `Sync`: one that is shared is run by `forward` alone, which torch allows at the
// same time for a module that does not change itself; sharing is what the model's parameter asks for.
unsafe impl Send for TorchModule {}
// SAFETY: as above.
unsafe impl Sync for TorchModule {}

/// The memory of an output.
struct OwnedOutput {
    library: Arc<TorchLibrary>,
    handle: NonNull<c_void>,
    contents: *const c_void,
    size: u64,
}

impl AsRef<[u8]> for OwnedOutput {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the memory is the output's alone, nothing writes to it, and it lives as long as
        // its handle.
        unsafe { borrowed(self.contents.cast(), self.size) }
    }
}

impl Drop for OwnedOutput {
    fn drop(&mut self) {
        // SAFETY: it came from `take`, and is freed once.
        unsafe { (self.library.free)(self.handle.as_ptr()) };
    }
}

// SAFETY: a tensor of the host's memory is bound to no thread, and is only read.
unsafe impl Send for OwnedOutput {}
// SAFETY: as above.
unsafe impl Sync for OwnedOutput {}

/// An input for the shim, which reads as many bytes as the shape says.
fn raw_input(input: &TorchInput<'_>) -> Result<RawInput, String> {
    let datatype = input.element.datatype().ok_or("the protocol does not have the type of an input")?;
    let size = byte_size(datatype, input.shape).map_err(|_| "an input's shape is too large")?;
    if size.is_some_and(|size| size != input.contents.len()) {
        return Err("an input has not the bytes of its shape".to_owned());
    }
    Ok(RawInput {
        contents: input.contents.as_ptr().cast(),
        size: input.contents.len() as u64,
        shape: input.shape.as_ptr(),
        rank: input.shape.len() as u64,
        element: input.element.0,
        name: input.name.as_ptr(),
    })
}

/// A key of a dictionary.
///
/// # Errors
/// For a name with a zero byte, which C cannot take.
pub(super) fn key(name: &str) -> Result<CString, String> {
    CString::new(name).map_err(|_| format!("the name '{}' has a zero byte", name.escape_debug()))
}

/// `count` elements in memory of another owner.
///
/// # Safety
///
/// They live as long as the result, or the pointer is null.
unsafe fn borrowed<'a, T>(from: *const T, count: u64) -> &'a [T] {
    let count = usize::try_from(count).unwrap_or_default();
    if from.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller says so.
    unsafe { slice::from_raw_parts(from, count) }
}

fn symbol<T: Copy>(object: &SharedObject, name: &str) -> Result<T, String> {
    // SAFETY: callers name the type that `shim.cpp` gives the function.
    let found = unsafe { object.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|_| format!("it has no function '{name}'"))
}

/// Characters of torch's texts that go to clients: they come with the whole traceback through the
/// model's code.
const FAILURE_CHARACTERS_MAX: usize = 2000;

/// A text of torch's without the places in torch's own code and in memory, and without the
/// traceback through the model's code, which names files of the machine where the model was made:
/// its last error.
fn shortened(text: &str) -> String {
    let own = text.find("Exception raised from");
    let text = text.get(..own.unwrap_or(text.len())).unwrap_or(text).trim_end();
    let last = text.lines().rev().find(|line| names_error(line));
    let from = last.map_or(0, |line| line.as_ptr().addr().saturating_sub(text.as_ptr().addr()));
    let text = text.get(from..).unwrap_or(text);
    match text.char_indices().nth(FAILURE_CHARACTERS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} …", text.get(..end).unwrap_or_default()),
    }
}

/// Returns true if a line begins as `RuntimeError: …` does.
fn names_error(line: &str) -> bool {
    let kind = line.split_once(": ").map_or("", |(kind, _)| kind);
    let is_name = kind.chars().all(|letter| letter.is_ascii_alphanumeric() || "._".contains(letter));
    is_name && (kind.ends_with("Error") || kind.ends_with("Exception"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_its_last_error_without_places_in_memory_and_in_files() {
        let check = |text: &str, want: &str| assert_eq!(shortened(text), want, "{text}");
        check("no\nException raised from f at /build/x.cpp:3 (most recent call first):\nframe #0", "no");
        check("Exception raised from f", "");
        let traced = "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript (most recent call \
                      last):\n/home/me/export.py(13): forward\nRuntimeError: mat1 and mat2\nof two lines\n";
        check(traced, "RuntimeError: mat1 and mat2\nof two lines");
        check("a: b\n/home/x.py: ValueError", "a: b\n/home/x.py: ValueError");
        let long = format!("begin {} end", "é".repeat(FAILURE_CHARACTERS_MAX));
        let short = shortened(&long);
        assert!(short.starts_with("begin é") && short.ends_with("é …"), "{short}");
        assert_eq!(short.chars().count(), FAILURE_CHARACTERS_MAX + 2);
    }

    #[test]
    fn a_key_has_no_zero_byte() {
        assert_eq!(key("x").as_deref(), Ok(c"x"));
        assert_eq!(key("a\0b"), Err("the name 'a\\0b' has a zero byte".to_owned()));
    }
}
