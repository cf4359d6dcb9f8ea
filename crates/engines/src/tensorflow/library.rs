//! The C interface of TensorFlow (`tensorflow/c/c_api.h`, `tf_tensor.h`, `tf_tstring.h`), as far as
//! it is used, and owners of its objects.

#![expect(unsafe_code, reason = "calls into the library")]
#![expect(non_snake_case, reason = "its functions keep their names")]

use std::alloc::Layout;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};

use bytes::Bytes;

use crate::c_library::{CLibrary, c_functions};
use base::limits::TENSOR_ALIGNMENT;
use base::tensor::strings::{Strings, encode};
use base::tensor::{Datatype, Shape, byte_size, element_count};
use model::tensorflow::{datatype_of, number_of};

/// A pointer to one of the library's objects.
type TfPointer = *mut c_void;

/// `TF_Output`: an output of an operation of a graph.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct TfOutput {
    operation: TfPointer,
    index: c_int,
}

/// `TF_TString`, of which only the size is known here.
#[repr(C, align(8))]
struct TfString([u8; 24]);

type New = unsafe extern "C" fn() -> TfPointer;
type Delete = unsafe extern "C" fn(TfPointer);
type Deallocator = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);
type Measure = unsafe extern "C" fn(TfPointer) -> usize;

c_functions! {
    /// The functions.
    TfFunctions {
        TF_Version: unsafe extern "C" fn() -> *const c_char,
        TF_NewStatus: New,
        TF_DeleteStatus: Delete,
        TF_GetCode: unsafe extern "C" fn(TfPointer) -> c_int,
        TF_Message: unsafe extern "C" fn(TfPointer) -> *const c_char,
        TF_NewGraph: New,
        TF_DeleteGraph: Delete,
        TF_NewSessionOptions: New,
        TF_DeleteSessionOptions: Delete,
        TF_SetConfig: unsafe extern "C" fn(TfPointer, *const c_void, usize, TfPointer),
        TF_NewBufferFromString: unsafe extern "C" fn(*const c_void, usize) -> TfPointer,
        TF_DeleteBuffer: Delete,
        TF_NewImportGraphDefOptions: New,
        TF_DeleteImportGraphDefOptions: Delete,
        TF_GraphImportGraphDef: unsafe extern "C" fn(TfPointer, TfPointer, TfPointer, TfPointer),
        TF_NewSession: unsafe extern "C" fn(TfPointer, TfPointer, TfPointer) -> TfPointer,
        TF_LoadSessionFromSavedModel: unsafe extern "C" fn(
            TfPointer,
            TfPointer,
            *const c_char,
            *const *const c_char,
            c_int,
            TfPointer,
            TfPointer,
            TfPointer,
        ) -> TfPointer,
        TF_DeleteSession: unsafe extern "C" fn(TfPointer, TfPointer),
        TF_GraphOperationByName: unsafe extern "C" fn(TfPointer, *const c_char) -> TfPointer,
        TF_OperationNumOutputs: unsafe extern "C" fn(TfPointer) -> c_int,
        TF_OperationOutputType: unsafe extern "C" fn(TfOutput) -> c_int,
        TF_SessionRun: unsafe extern "C" fn(
            TfPointer,
            TfPointer,
            *const TfOutput,
            *const TfPointer,
            c_int,
            *const TfOutput,
            *mut TfPointer,
            c_int,
            *const TfPointer,
            c_int,
            TfPointer,
            TfPointer,
        ),
        TF_AllocateTensor: unsafe extern "C" fn(c_int, *const i64, c_int, usize) -> TfPointer,
        TF_NewTensor:
            unsafe extern "C" fn(c_int, *const i64, c_int, *mut c_void, usize, Deallocator, *mut c_void) -> TfPointer,
        TF_DeleteTensor: Delete,
        TF_TensorType: unsafe extern "C" fn(TfPointer) -> c_int,
        TF_NumDims: unsafe extern "C" fn(TfPointer) -> c_int,
        TF_Dim: unsafe extern "C" fn(TfPointer, c_int) -> i64,
        TF_TensorByteSize: Measure,
        TF_TensorData: unsafe extern "C" fn(TfPointer) -> *mut c_void,
        TF_StringInit: unsafe extern "C" fn(*mut TfString),
        TF_StringCopy: unsafe extern "C" fn(*mut TfString, *const c_char, usize),
        TF_StringGetDataPointer: unsafe extern "C" fn(*const TfString) -> *const c_char,
        TF_StringGetSize: unsafe extern "C" fn(*const TfString) -> usize,
        TF_StringDealloc: unsafe extern "C" fn(*mut TfString),
    }
}

/// The opened library. It stays open for good.
pub(super) struct TfLibrary {
    functions: TfFunctions,
    /// Its version, as `2.21.0`.
    pub(super) version: String,
}

/// The reason why a call failed: the number of `TF_Code`, and the library's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TfError {
    pub(super) code: i32,
    pub(super) text: String,
}

/// `TF_INVALID_ARGUMENT`.
pub(super) const INVALID_ARGUMENT: i32 = 3;
/// `TF_OUT_OF_RANGE`.
pub(super) const OUT_OF_RANGE: i32 = 11;
/// `TF_UNIMPLEMENTED`.
pub(super) const UNIMPLEMENTED: i32 = 12;
/// `TF_INTERNAL`.
const INTERNAL: i32 = 13;

impl TfError {
    fn internal(text: &str) -> Self {
        Self { code: INTERNAL, text: text.to_owned() }
    }
}

impl TfLibrary {
    /// Opens it.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub(super) fn open(path: &Path) -> Result<&'static Self, String> {
        let functions = TfFunctions::find(&CLibrary::open(path)?)?;
        // SAFETY: it returns a text that the library owns permanently.
        let version = unsafe { NonNull::new((functions.TF_Version)().cast_mut()) };
        let version = version.ok_or("it does not tell its version")?;
        // SAFETY: it ends with a zero.
        let version = unsafe { CStr::from_ptr(version.as_ptr()) }.to_string_lossy().into_owned();
        Ok(Box::leak(Box::new(Self { functions, version })))
    }
}

/// An object of the library with one owner.
struct TfOwned {
    library: &'static TfLibrary,
    pointer: NonNull<c_void>,
    delete: Delete,
}

// SAFETY: the library binds none of its objects to a thread.
unsafe impl Send for TfOwned {}
// SAFETY: through a shared reference objects are read or run, which the library allows from several
// threads; a status has one owner, which does not share it.
unsafe impl Sync for TfOwned {}

impl TfOwned {
    fn new(library: &'static TfLibrary, pointer: TfPointer, delete: Delete) -> Result<Self, TfError> {
        let pointer = NonNull::new(pointer).ok_or_else(|| TfError::internal("the library returned nothing"))?;
        Ok(Self { library, pointer, delete })
    }

    fn get(&self) -> TfPointer {
        self.pointer.as_ptr()
    }
}

impl Drop for TfOwned {
    fn drop(&mut self) {
        // SAFETY: it came from the library, has one owner, and is the kind of object that this function deletes.
        unsafe { (self.delete)(self.pointer.as_ptr()) }
    }
}

/// The status of a call (`TF_Status`).
struct TfStatus(TfOwned);

impl TfStatus {
    fn new(library: &'static TfLibrary) -> Result<Self, TfError> {
        // SAFETY: it takes nothing.
        let status = unsafe { (library.functions.TF_NewStatus)() };
        TfOwned::new(library, status, library.functions.TF_DeleteStatus).map(Self)
    }

    fn outcome(&self) -> Result<(), TfError> {
        let functions = &self.0.library.functions;
        // SAFETY: the status lives.
        let code = unsafe { (functions.TF_GetCode)(self.0.get()) };
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the status lives, and keeps the text, which ends with a zero.
        let text = unsafe { NonNull::new((functions.TF_Message)(self.0.get()).cast_mut()) };
        // SAFETY: as above.
        let text = text.map(|text| unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned());
        Err(TfError { code, text: text.unwrap_or_default() })
    }
}

/// The threads of a model (`ConfigProto`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionThreads {
    /// `intra_op_parallelism_threads`; 0 for the library's choice.
    pub(super) intra: u32,
    /// `inter_op_parallelism_threads`; 0 for the library's choice, and `None` to run operations on
    /// the calling thread.
    pub(super) inter: Option<u32>,
    /// `use_per_session_threads`.
    pub(super) are_own: bool,
}

impl SessionThreads {
    /// A `ConfigProto`: threads, and operations without a kernel for their device run on another (`allow_soft_placement`),
    /// as in Triton.
    fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |number: u8, mut value: u64| {
            out.push(number << 3);
            while value >= 0x80 {
                out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
                value >>= 7;
            }
            out.push(u8::try_from(value).unwrap_or_default());
        };
        put(2, self.intra.into());
        // -1, as protobuf writes it.
        put(5, self.inter.map_or(u64::MAX, u64::from));
        put(7, 1);
        put(9, self.are_own.into());
        out
    }
}

/// A loaded graph and its session, which any thread may run.
pub(super) struct TfSession {
    library: &'static TfLibrary,
    session: NonNull<c_void>,
    /// Deleted after the session.
    graph: TfOwned,
}

// SAFETY: the library allows any thread to run a session, and several at once; the graph is no
// longer changed.
unsafe impl Send for TfSession {}
// SAFETY: as above.
unsafe impl Sync for TfSession {}

/// A tensor of a session's graph. Only of use with the session that it came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct TfPlace {
    output: TfOutput,
    /// Its datatype; `None` if the protocol does not have it.
    pub(super) datatype: Option<Datatype>,
}

// SAFETY: the operation belongs to the graph, and is only read.
unsafe impl Send for TfPlace {}
// SAFETY: as above.
unsafe impl Sync for TfPlace {}

impl TfSession {
    /// Loads the graph with a tag out of a SavedModel's directory.
    pub(super) fn of_saved_model(
        library: &'static TfLibrary,
        directory: &Path,
        tag: &str,
        threads: SessionThreads,
    ) -> Result<Self, TfError> {
        let functions = &library.functions;
        let zero = |_| TfError::internal("its path or tag has a zero byte");
        let directory = CString::new(directory.as_os_str().as_bytes()).map_err(zero)?;
        let tag = CString::new(tag).map_err(zero)?;
        let tags = [tag.as_ptr()];
        Self::open(library, threads, |graph, options, status| {
            // SAFETY: all objects live; the texts end with a zero, and there is one tag; no run options and no buffer for
            // the description are given.
            Ok(unsafe {
                (functions.TF_LoadSessionFromSavedModel)(
                    options.get(),
                    null_mut(),
                    directory.as_ptr(),
                    tags.as_ptr(),
                    1,
                    graph.get(),
                    null_mut(),
                    status.0.get(),
                )
            })
        })
    }

    /// Loads a frozen graph: the bytes of a `GraphDef`.
    pub(super) fn of_graph(library: &'static TfLibrary, file: &[u8], threads: SessionThreads) -> Result<Self, TfError> {
        let functions = &library.functions;
        Self::open(library, threads, |graph, options, status| {
            // SAFETY: `file.len()` bytes begin there, and are copied.
            let buffer = unsafe { (functions.TF_NewBufferFromString)(file.as_ptr().cast(), file.len()) };
            let buffer = TfOwned::new(library, buffer, functions.TF_DeleteBuffer)?;
            // SAFETY: it takes nothing.
            let import = unsafe { (functions.TF_NewImportGraphDefOptions)() };
            let import = TfOwned::new(library, import, functions.TF_DeleteImportGraphDefOptions)?;
            // SAFETY: all objects live.
            unsafe { (functions.TF_GraphImportGraphDef)(graph.get(), buffer.get(), import.get(), status.0.get()) };
            status.outcome()?;
            // SAFETY: all objects live.
            Ok(unsafe { (functions.TF_NewSession)(graph.get(), options.get(), status.0.get()) })
        })
    }

    fn open(
        library: &'static TfLibrary,
        threads: SessionThreads,
        load: impl FnOnce(&TfOwned, &TfOwned, &TfStatus) -> Result<TfPointer, TfError>,
    ) -> Result<Self, TfError> {
        let functions = &library.functions;
        let status = TfStatus::new(library)?;
        // SAFETY: they take nothing.
        let (graph, options) = unsafe { ((functions.TF_NewGraph)(), (functions.TF_NewSessionOptions)()) };
        let graph = TfOwned::new(library, graph, functions.TF_DeleteGraph)?;
        let options = TfOwned::new(library, options, functions.TF_DeleteSessionOptions)?;
        let config = threads.encode();
        // SAFETY: the objects live; `config.len()` bytes begin there.
        unsafe { (functions.TF_SetConfig)(options.get(), config.as_ptr().cast(), config.len(), status.0.get()) };
        status.outcome()?;
        let session = load(&graph, &options, &status)?;
        status.outcome()?;
        let session = NonNull::new(session).ok_or_else(|| TfError::internal("the library made no session"))?;
        Ok(Self { library, session, graph })
    }

    /// The tensor of a name: `operation`, or `operation:index`. `None` if the graph does not have
    /// it.
    pub(super) fn place(&self, name: &str) -> Option<TfPlace> {
        let functions = &self.library.functions;
        let (name, index) = match name.rsplit_once(':') {
            Some((name, index)) => (name, index.parse::<c_int>().ok()?),
            None => (name, 0),
        };
        let name = CString::new(name).ok()?;
        // SAFETY: the graph lives; the name ends with a zero.
        let operation = unsafe { (functions.TF_GraphOperationByName)(self.graph.get(), name.as_ptr()) };
        // SAFETY: the operation is the graph's.
        let count = NonNull::new(operation).map(|one| unsafe { (functions.TF_OperationNumOutputs)(one.as_ptr()) })?;
        if !(0..count).contains(&index) {
            return None;
        }
        let output = TfOutput { operation, index };
        // SAFETY: the operation has such an output.
        let number = unsafe { (functions.TF_OperationOutputType)(output) };
        Some(TfPlace { output, datatype: u64::try_from(number).ok().and_then(datatype_of) })
    }

    /// Runs an operation for its effect.
    pub(super) fn run_operation(&self, name: &str) -> Result<(), TfError> {
        let functions = &self.library.functions;
        let status = TfStatus::new(self.library)?;
        let absent = || TfError { code: INVALID_ARGUMENT, text: format!("it has no operation '{name}'") };
        let text = CString::new(name).map_err(|_| absent())?;
        // SAFETY: the graph lives; the name ends with a zero.
        let operation = unsafe { (functions.TF_GraphOperationByName)(self.graph.get(), text.as_ptr()) };
        if operation.is_null() {
            return Err(absent());
        }
        // SAFETY: session, status and the one operation live; there are no tensors.
        unsafe {
            (functions.TF_SessionRun)(
                self.session.as_ptr(),
                null_mut(),
                null(),
                null(),
                0,
                null(),
                null_mut(),
                0,
                &raw const operation,
                1,
                null_mut(),
                status.0.get(),
            );
        }
        status.outcome()
    }

    /// Runs the graph: these tensors are fed to these places, and the tensors of the others are
    /// returned.
    pub(super) fn run(&self, inputs: &[(TfPlace, TfTensor)], outputs: &[TfPlace]) -> Result<Vec<TfTensor>, TfError> {
        let functions = &self.library.functions;
        let status = TfStatus::new(self.library)?;
        let feeds: Vec<_> = inputs.iter().map(|(place, _)| place.output).collect();
        let values: Vec<_> = inputs.iter().map(|(_, tensor)| tensor.0.get()).collect();
        let fetches: Vec<_> = outputs.iter().map(|place| place.output).collect();
        let mut fetched = vec![null_mut(); outputs.len()];
        let count = |count: usize| c_int::try_from(count).map_err(|_| TfError::internal("it has too many tensors"));
        // SAFETY: the session lives, and the places are its graph's: the caller got them from it.
        // There are as many values as feeds and as many places for results as fetches; the values
        // are borrowed for the call.
        unsafe {
            (functions.TF_SessionRun)(
                self.session.as_ptr(),
                null_mut(),
                feeds.as_ptr(),
                values.as_ptr(),
                count(feeds.len())?,
                fetches.as_ptr(),
                fetched.as_mut_ptr(),
                count(fetches.len())?,
                null(),
                0,
                null_mut(),
                status.0.get(),
            );
        }
        // Owned first, so that all are freed if one is missing.
        let owned: Vec<_> = fetched.into_iter().map(|tensor| TfTensor::of(self.library, tensor)).collect();
        status.outcome()?;
        owned.into_iter().collect()
    }
}

impl Drop for TfSession {
    fn drop(&mut self) {
        let Ok(status) = TfStatus::new(self.library) else { return };
        // SAFETY: the session has one owner, and nothing runs it.
        unsafe { (self.library.functions.TF_DeleteSession)(self.session.as_ptr(), status.0.get()) };
    }
}

/// A tensor of the library's (`TF_Tensor`).
pub(super) struct TfTensor(TfOwned);

impl TfTensor {
    /// A copy of a tensor of the protocol's. The library may keep it beyond a run, as in a variable.
    pub(super) fn new(
        library: &'static TfLibrary,
        datatype: Datatype,
        shape: &[i64],
        contents: &[u8],
    ) -> Result<Self, TfError> {
        let size = match byte_size(datatype, shape) {
            Ok(Some(size)) if size == contents.len() => size,
            Ok(None) => return Self::of_strings(library, shape, contents),
            _ => return Err(TfError::internal("an input has not the bytes of its shape")),
        };
        let number = c_int::try_from(number_of(datatype)).unwrap_or_default();
        let rank = c_int::try_from(shape.len()).unwrap_or_default();
        // SAFETY: `rank` dimensions begin there, and are read.
        let made = unsafe { (library.functions.TF_AllocateTensor)(number, shape.as_ptr(), rank, size) };
        let tensor = Self::of(library, made)?;
        if size > 0 {
            // SAFETY: the tensor lives.
            let data = unsafe { (library.functions.TF_TensorData)(tensor.0.get()) };
            let data = NonNull::new(data).ok_or_else(|| TfError::internal("no memory was allocated for an input"))?;
            // SAFETY: `size` bytes were allocated there, which have no other user.
            unsafe { data.cast::<u8>().as_ptr().copy_from_nonoverlapping(contents.as_ptr(), size) };
        }
        Ok(tensor)
    }

    fn of_strings(library: &'static TfLibrary, shape: &[i64], contents: &[u8]) -> Result<Self, TfError> {
        let wrong = || TfError::internal("an input has not the strings of its shape");
        let strings: Result<Vec<_>, _> = Strings::new(contents).collect();
        let strings = strings.map_err(|_| wrong())?;
        if element_count(shape) != Ok(strings.len()) {
            return Err(wrong());
        }
        let layout = strings_layout(strings.len()).ok_or_else(wrong)?;
        // SAFETY: the layout is not of size 0.
        let first = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<TfString>();
        let first = NonNull::new(first).ok_or_else(|| TfError::internal("no memory is left for an input"))?;
        for (index, string) in strings.iter().enumerate() {
            // SAFETY: there is room for all strings; the first call makes the memory a string, the
            // second copies its bytes.
            unsafe {
                let place = first.as_ptr().add(index);
                (library.functions.TF_StringInit)(place);
                (library.functions.TF_StringCopy)(place, string.as_ptr().cast(), string.len());
            }
        }
        let (number, size) = (number_of(Datatype::Bytes), strings.len().saturating_mul(size_of::<TfString>()));
        let (number, rank) = (c_int::try_from(number), c_int::try_from(shape.len()));
        let argument = std::ptr::from_ref(library).cast_mut().cast();
        // SAFETY: all dimensions and strings begin there; the library hands the strings to the
        // function once, when they are no longer needed, even if it makes no tensor.
        let made = unsafe {
            (library.functions.TF_NewTensor)(
                number.unwrap_or_default(),
                shape.as_ptr(),
                rank.unwrap_or_default(),
                first.as_ptr().cast(),
                size,
                free_strings,
                argument,
            )
        };
        Self::of(library, made)
    }

    fn of(library: &'static TfLibrary, pointer: TfPointer) -> Result<Self, TfError> {
        TfOwned::new(library, pointer, library.functions.TF_DeleteTensor).map(Self)
    }

    /// Its datatype; `None` if the protocol does not have it.
    pub(super) fn datatype(&self) -> Option<Datatype> {
        // SAFETY: the tensor lives.
        let number = unsafe { (self.0.library.functions.TF_TensorType)(self.0.get()) };
        u64::try_from(number).ok().and_then(datatype_of)
    }

    pub(super) fn shape(&self) -> Shape {
        let (functions, tensor) = (&self.0.library.functions, self.0.get());
        // SAFETY: the tensor lives.
        let rank = unsafe { (functions.TF_NumDims)(tensor) };
        // SAFETY: the tensor lives and has `rank` dimensions.
        (0..rank).map(|index| unsafe { (functions.TF_Dim)(tensor, index) }).collect()
    }

    fn bytes(&self) -> &[u8] {
        let (functions, tensor) = (&self.0.library.functions, self.0.get());
        // SAFETY: the tensor lives.
        let (data, size) = unsafe { ((functions.TF_TensorData)(tensor), (functions.TF_TensorByteSize)(tensor)) };
        match data.is_null() || size == 0 {
            true => &[],
            // SAFETY: `size` bytes begin there and belong to the tensor, which does not change: the
            // library copies a tensor that has other users before it writes.
            false => unsafe { std::slice::from_raw_parts(data.cast(), size) },
        }
    }

    /// Its elements: the library's own memory, which is released when the last answer that has a part of it is dropped.
    /// Strings are copied.
    pub(super) fn contents(self) -> Result<Bytes, TfError> {
        if self.datatype() == Some(Datatype::Bytes) {
            return self.strings().map(Bytes::from);
        }
        if self.bytes().is_empty() { Ok(Bytes::new()) } else { Ok(Bytes::from_owner(TensorBytes(self))) }
    }

    fn strings(&self) -> Result<Vec<u8>, TfError> {
        let functions = &self.0.library.functions;
        let count = element_count(&self.shape()).map_err(|_| TfError::internal("an output has an impossible shape"))?;
        let bytes = self.bytes();
        if count.checked_mul(size_of::<TfString>()) != Some(bytes.len()) {
            return Err(TfError::internal("an output has not the strings of its shape"));
        }
        let first = bytes.as_ptr().cast::<TfString>();
        let mut out = Vec::new();
        for index in 0..count {
            // SAFETY: all strings begin there, and the tensor owns them; each has the address and
            // the number of its bytes.
            let string = unsafe {
                let string = first.add(index);
                let (data, size) = ((functions.TF_StringGetDataPointer)(string), (functions.TF_StringGetSize)(string));
                if data.is_null() || size == 0 { &[][..] } else { std::slice::from_raw_parts(data.cast::<u8>(), size) }
            };
            encode(string, &mut out);
        }
        Ok(out)
    }
}

/// The memory of `count` strings, aligned as the library prefers; at least one.
fn strings_layout(count: usize) -> Option<Layout> {
    let size = count.max(1).checked_mul(size_of::<TfString>())?;
    Layout::from_size_align(size, TENSOR_ALIGNMENT).ok()
}

/// Frees the strings of a tensor that [`TfTensor::of_strings`] made.
///
/// # Safety
/// `data` are the strings of `size` bytes that were handed over with the library as `argument`.
unsafe extern "C" fn free_strings(data: *mut c_void, size: usize, argument: *mut c_void) {
    let count = size / size_of::<TfString>();
    // SAFETY: it is the library, which is never freed.
    let library = unsafe { &*argument.cast_const().cast::<TfLibrary>() };
    for index in 0..count {
        // SAFETY: all strings begin there, and are no longer used.
        unsafe { (library.functions.TF_StringDealloc)(data.cast::<TfString>().add(index)) };
    }
    if let Some(layout) = strings_layout(count) {
        // SAFETY: it was allocated with this layout.
        unsafe { std::alloc::dealloc(data.cast(), layout) };
    }
}

/// The owner of an output's bytes.
struct TensorBytes(TfTensor);

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_written_as_the_configuration_of_a_session() {
        let threads = SessionThreads { intra: 300, inter: Some(2), are_own: true };
        assert_eq!(threads.encode(), [0x10, 0xac, 0x02, 0x28, 2, 0x38, 1, 0x48, 1]);
        let calling = SessionThreads { intra: 0, inter: None, are_own: false }.encode();
        let all = [0xff; 9];
        assert_eq!(calling, [&[0x10, 0, 0x28][..], &all, &[1, 0x38, 1, 0x48, 0]].concat());
    }
}
