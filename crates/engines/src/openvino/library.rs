//! The C interface of OpenVINO (`openvino/c/openvino.h`), as far as it is used, and owners of its
//! objects.

#![expect(unsafe_code, reason = "calls into the library")]
#![expect(
    clippy::disallowed_types,
    reason = "the request that is to be cancelled, locked when a run has failed or takes too long"
)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::c_library::{CLibrary, c_functions};
use base::tensor::{Datatype, Shape, byte_size};

/// `ov_status_e`; 0 is success.
type Status = i32;
/// A pointer to one of the library's objects.
type OvPointer = *mut c_void;

/// `ov_shape_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct OvShape {
    rank: i64,
    dims: *mut i64,
}

/// `ov_dimension_t`, which is also `ov_rank_t`: the smallest and the largest size; equal if it is
/// fixed.
#[derive(Clone, Copy)]
#[repr(C)]
struct OvDimension {
    min: i64,
    max: i64,
}

/// `ov_partial_shape_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct OvPartialShape {
    rank: OvDimension,
    dims: *mut OvDimension,
}

/// `ov_version_t`.
#[repr(C)]
struct OvVersion {
    build: *const c_char,
    description: *const c_char,
}

type Free = unsafe extern "C" fn(OvPointer);
type Make = unsafe extern "C" fn(OvPointer, *mut OvPointer) -> Status;
type Count = unsafe extern "C" fn(OvPointer, *mut usize) -> Status;
type ByIndex = unsafe extern "C" fn(OvPointer, usize, *mut OvPointer) -> Status;
type ByName = unsafe extern "C" fn(OvPointer, *const c_char, *mut OvPointer) -> Status;
/// `ov_core_compile_model`: the properties follow as pairs of texts, `property_args_size` of them.
type Compile = unsafe extern "C" fn(OvPointer, OvPointer, *const c_char, usize, *mut OvPointer, ...) -> Status;

c_functions! {
    /// The functions.
    OvFunctions {
        ov_get_openvino_version: unsafe extern "C" fn(*mut OvVersion) -> Status,
        ov_version_free: unsafe extern "C" fn(*mut OvVersion),
        ov_get_error_info: unsafe extern "C" fn(Status) -> *const c_char,
        ov_get_last_err_msg: unsafe extern "C" fn() -> *const c_char,
        ov_free: unsafe extern "C" fn(*const c_char),
        ov_core_create: unsafe extern "C" fn(*mut OvPointer) -> Status,
        ov_core_free: Free,
        ov_core_add_extension: unsafe extern "C" fn(OvPointer, *const c_char) -> Status,
        ov_core_read_model: unsafe extern "C" fn(OvPointer, *const c_char, *const c_char, *mut OvPointer) -> Status,
        ov_core_compile_model: Compile,
        ov_model_free: Free,
        ov_model_inputs_size: Count,
        ov_model_outputs_size: Count,
        ov_model_const_input_by_index: ByIndex,
        ov_model_const_output_by_index: ByIndex,
        ov_model_const_input_by_name: ByName,
        ov_model_const_output_by_name: ByName,
        ov_model_reshape_by_port_indexes:
            unsafe extern "C" fn(OvPointer, *const usize, *const OvPartialShape, usize) -> Status,
        ov_port_get_any_name: unsafe extern "C" fn(OvPointer, *mut *mut c_char) -> Status,
        ov_port_get_element_type: unsafe extern "C" fn(OvPointer, *mut u32) -> Status,
        ov_port_get_partial_shape: unsafe extern "C" fn(OvPointer, *mut OvPartialShape) -> Status,
        ov_partial_shape_free: unsafe extern "C" fn(*mut OvPartialShape),
        ov_output_const_port_free: Free,
        ov_preprocess_prepostprocessor_create: Make,
        ov_preprocess_prepostprocessor_free: Free,
        ov_preprocess_prepostprocessor_get_input_info_by_index: ByIndex,
        ov_preprocess_input_info_free: Free,
        ov_preprocess_input_info_get_tensor_info: Make,
        ov_preprocess_input_tensor_info_free: Free,
        ov_preprocess_input_tensor_info_set_element_type: unsafe extern "C" fn(OvPointer, u32) -> Status,
        ov_preprocess_prepostprocessor_build: Make,
        ov_compiled_model_free: Free,
        ov_compiled_model_create_infer_request: Make,
        ov_infer_request_free: Free,
        ov_infer_request_set_input_tensor_by_index: unsafe extern "C" fn(OvPointer, usize, OvPointer) -> Status,
        ov_infer_request_set_output_tensor_by_index: unsafe extern "C" fn(OvPointer, usize, OvPointer) -> Status,
        ov_infer_request_start_async: unsafe extern "C" fn(OvPointer) -> Status,
        ov_infer_request_wait: unsafe extern "C" fn(OvPointer) -> Status,
        ov_infer_request_cancel: unsafe extern "C" fn(OvPointer) -> Status,
        ov_tensor_create: unsafe extern "C" fn(u32, OvShape, *mut OvPointer) -> Status,
        ov_tensor_create_from_host_ptr: unsafe extern "C" fn(u32, OvShape, *mut c_void, *mut OvPointer) -> Status,
        ov_tensor_get_shape: unsafe extern "C" fn(OvPointer, *mut OvShape) -> Status,
        ov_tensor_get_element_type: unsafe extern "C" fn(OvPointer, *mut u32) -> Status,
        ov_tensor_get_size: Count,
        ov_tensor_get_byte_size: Count,
        ov_tensor_data: unsafe extern "C" fn(OvPointer, *mut *mut c_void) -> Status,
        ov_tensor_free: Free,
        ov_shape_free: unsafe extern "C" fn(*mut OvShape) -> Status,
    }
}

/// The opened library. It stays open for good.
pub(super) struct OvLibrary {
    functions: OvFunctions,
    /// Its version, as `2026.4.1`.
    pub(super) version: String,
    /// The number that it has for BOOL: other datatypes follow at fixed distances, but releases
    /// differ in the first number.
    boolean: u32,
}

/// The numbers that releases have for BOOL.
const BOOLEANS: [u32; 2] = [1, 2];

/// The place of a datatype after BOOL in `ov_element_type_e`; `None` for strings, which Triton's
/// backend refuses too.
const fn place(datatype: Datatype) -> Option<u32> {
    Some(match datatype {
        Datatype::Bool => 0,
        Datatype::Bf16 => 1,
        Datatype::Fp16 => 2,
        Datatype::Fp32 => 3,
        Datatype::Fp64 => 4,
        Datatype::Int8 => 6,
        Datatype::Int16 => 7,
        Datatype::Int32 => 8,
        Datatype::Int64 => 9,
        Datatype::Uint8 => 15,
        Datatype::Uint16 => 16,
        Datatype::Uint32 => 17,
        Datatype::Uint64 => 18,
        Datatype::Bytes => return None,
    })
}

impl OvLibrary {
    /// Opens it.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub(super) fn open(path: &Path) -> Result<&'static Self, String> {
        let functions = OvFunctions::find(&CLibrary::open(path)?)?;
        let mut library = Self { functions, version: String::new(), boolean: 0 };
        library.version = library.read_version()?;
        // An older release would take one datatype for another: the sizes tell.
        let fits = |boolean: &u32| Datatype::ALL.into_iter().all(|datatype| library.has_size(*boolean, datatype));
        library.boolean = BOOLEANS.into_iter().find(fits).ok_or_else(|| {
            format!(
                "OpenVINO {} numbers its datatypes as this server does not know; 2024.6 to 2026.4 are known",
                library.version
            )
        })?;
        Ok(Box::leak(Box::new(library)))
    }

    fn read_version(&self) -> Result<String, String> {
        let mut version = OvVersion { build: null(), description: null() };
        // SAFETY: it writes two pointers.
        let status = unsafe { (self.functions.ov_get_openvino_version)(&raw mut version) };
        if status != 0 || version.build.is_null() {
            return Err("it does not tell its version".to_owned());
        }
        // SAFETY: it wrote a text, which lives until it is freed, once.
        let build = unsafe {
            let build = CStr::from_ptr(version.build).to_string_lossy().into_owned();
            (self.functions.ov_version_free)(&raw mut version);
            build
        };
        // `2026.4.1-22106-a2f5bcf2a82-releases/2026/4`
        Ok(build.split('-').next().unwrap_or_default().to_owned())
    }

    /// Returns true if a tensor of one element has the size of the datatype, given this number for
    /// BOOL.
    fn has_size(&self, boolean: u32, datatype: Datatype) -> bool {
        let (Some(place), Some(size)) = (place(datatype), datatype.size()) else { return true };
        let mut one = [1_i64];
        let shape = OvShape { rank: 1, dims: one.as_mut_ptr() };
        let mut tensor = null_mut();
        // SAFETY: the shape lives and is read; it writes one pointer.
        let status = unsafe { (self.functions.ov_tensor_create)(boolean + place, shape, &raw mut tensor) };
        let Some(tensor) = NonNull::new(tensor).filter(|_| status == 0) else { return false };
        let mut bytes = 0;
        // SAFETY: the tensor lives, and is freed once, afterwards.
        let status = unsafe {
            let status = (self.functions.ov_tensor_get_byte_size)(tensor.as_ptr(), &raw mut bytes);
            (self.functions.ov_tensor_free)(tensor.as_ptr());
            status
        };
        status == 0 && bytes == size
    }

    /// Returns true if a compiled model keeps state of a failed run in its operators: `TopK` of 2024.6 and 2025.4
    /// answers the next request with the size that the failed one asked for. 2026.4 does not.
    pub(super) fn keeps_failures(&self) -> bool {
        let mut numbers = self.version.split('.').map(|number| number.parse::<u32>().unwrap_or_default());
        (numbers.next(), numbers.next()) < (Some(2026), Some(4))
    }

    fn number(&self, datatype: Datatype) -> Option<u32> {
        place(datatype).map(|place| self.boolean + place)
    }

    fn datatype(&self, number: u32) -> Option<Datatype> {
        Datatype::ALL.into_iter().find(|datatype| self.number(*datatype) == Some(number))
    }

    /// Converts the status of a call. The library keeps one message for all threads: if two calls
    /// fail at once, one may report the other's reason.
    fn outcome(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it returns a text of the caller's, or null; the text is freed once, and not used
        // afterwards.
        let message = unsafe {
            let message = (self.functions.ov_get_last_err_msg)();
            NonNull::new(message.cast_mut()).map(|message| {
                let text = CStr::from_ptr(message.as_ptr()).to_string_lossy().into_owned();
                (self.functions.ov_free)(message.as_ptr());
                text
            })
        };
        let kind = || {
            // SAFETY: it returns a text that the library owns permanently, or null.
            let kind = unsafe { NonNull::new((self.functions.ov_get_error_info)(status).cast_mut()) };
            // SAFETY: it ends with a zero.
            kind.map(|kind| unsafe { CStr::from_ptr(kind.as_ptr()) }.to_string_lossy().into_owned())
        };
        let text = message.filter(|text| !text.trim().is_empty()).or_else(kind).unwrap_or_default();
        Err(brief(&text))
    }
}

/// The library's error, without the places in its source and the check that found it.
fn brief(text: &str) -> String {
    let is_said = |line: &&str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("Exception from ") && !line.starts_with("Check '")
    };
    let lines: Vec<_> = text.lines().filter(is_said).map(str::trim).collect();
    if lines.is_empty() { text.trim().to_owned() } else { lines.join(" ") }
}

/// An object of the library with one owner.
struct OvOwned {
    library: &'static OvLibrary,
    pointer: NonNull<c_void>,
    free: Free,
}

// SAFETY: the library binds none of its objects to a thread.
unsafe impl Send for OvOwned {}
// SAFETY: through a shared reference only what the library allows from several threads is called: reading, compiling,
// making requests, and the cancellation of a run. What changes an object takes it by `&mut`.
unsafe impl Sync for OvOwned {}

impl OvOwned {
    /// Takes the pointer that a call wrote.
    fn new(
        library: &'static OvLibrary,
        free: Free,
        make: impl FnOnce(*mut OvPointer) -> Status,
    ) -> Result<Self, String> {
        let mut pointer = null_mut();
        library.outcome(make(&raw mut pointer))?;
        let pointer = NonNull::new(pointer).ok_or("OpenVINO returned nothing")?;
        Ok(Self { library, pointer, free })
    }

    fn get(&self) -> OvPointer {
        self.pointer.as_ptr()
    }
}

impl Drop for OvOwned {
    fn drop(&mut self) {
        // SAFETY: it came from the library, has one owner, and is the kind of object that this function frees.
        unsafe { (self.free)(self.pointer.as_ptr()) }
    }
}

/// Reads and compiles models (`ov_core_t`).
pub(super) struct OvCore(OvOwned);

/// A model that was read (`ov_model_t`).
pub(super) struct OvModel(OvOwned);

/// A model as it is run (`ov_compiled_model_t`).
pub(super) struct OvCompiled(OvOwned);

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OvPort {
    /// One of its names; `None` if the model has none.
    pub(super) name: Option<String>,
    /// Its datatype; `None` if the protocol does not have it, or tensors of it are not taken.
    pub(super) datatype: Option<Datatype>,
    /// Its dimensions, -1 for a variable size; `None` if the rank is variable.
    pub(super) shape: Option<Shape>,
}

/// Inputs or outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OvSide {
    Input,
    Output,
}

impl OvCore {
    pub(super) fn new(library: &'static OvLibrary) -> Result<Self, String> {
        let functions = &library.functions;
        // SAFETY: it writes one pointer.
        OvOwned::new(library, functions.ov_core_free, |core| unsafe { (functions.ov_core_create)(core) }).map(Self)
    }

    /// Opens a library with operators of the user's.
    pub(super) fn add_extension(&self, path: &str) -> Result<(), String> {
        let path = text(path)?;
        // SAFETY: the core lives; the text ends with a zero.
        let status = unsafe { (self.0.library.functions.ov_core_add_extension)(self.0.get(), path.as_ptr()) };
        self.0.library.outcome(status)
    }

    /// Reads a model from its file or directory; the weights of an IR lie beside it.
    pub(super) fn read(&self, path: &Path) -> Result<OvModel, String> {
        let functions = &self.0.library.functions;
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| "its path has a zero byte")?;
        OvOwned::new(self.0.library, functions.ov_model_free, |model| {
            // SAFETY: the core lives; the path ends with a zero; no file of weights is named; it writes one pointer.
            unsafe { (functions.ov_core_read_model)(self.0.get(), path.as_ptr(), null(), model) }
        })
        .map(OvModel)
    }

    /// Compiles a model with these properties, of which there may be [`PROPERTIES_MAX`].
    pub(super) fn compile(
        &self,
        model: &OvModel,
        device: &str,
        properties: &[(&str, String)],
    ) -> Result<OvCompiled, String> {
        let functions = &self.0.library.functions;
        let device = text(device)?;
        let mut texts = Vec::new();
        for (key, value) in properties {
            texts.extend([text(key)?, text(value)?]);
        }
        if texts.len() > 2 * PROPERTIES_MAX {
            return Err("it has more properties than are handed over".to_owned());
        }
        let mut p = [null::<c_char>(); 2 * PROPERTIES_MAX];
        p.iter_mut().zip(&texts).for_each(|(place, text)| *place = text.as_ptr());
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, q] = p;
        OvOwned::new(self.0.library, functions.ov_compiled_model_free, |compiled| {
            // SAFETY: core and model live; the texts end with a zero; it reads the given number of
            // them, which are pairs of a key and a value; it writes one pointer.
            unsafe {
                (functions.ov_core_compile_model)(
                    self.0.get(),
                    model.0.get(),
                    device.as_ptr(),
                    texts.len(),
                    compiled,
                    a,
                    b,
                    c,
                    d,
                    e,
                    f,
                    g,
                    h,
                    i,
                    j,
                    k,
                    l,
                    m,
                    n,
                    o,
                    q,
                )
            }
        })
        .map(OvCompiled)
    }
}

/// Properties that a model may be compiled with.
const PROPERTIES_MAX: usize = 8;

impl OvModel {
    /// The inputs or outputs, in the model's order.
    pub(super) fn ports(&self, side: OvSide) -> Result<Vec<OvPort>, String> {
        let (library, functions) = (self.0.library, &self.0.library.functions);
        let (count_of, by_index) = match side {
            OvSide::Input => (functions.ov_model_inputs_size, functions.ov_model_const_input_by_index),
            OvSide::Output => (functions.ov_model_outputs_size, functions.ov_model_const_output_by_index),
        };
        let mut count = 0;
        // SAFETY: the model lives; it writes one number.
        library.outcome(unsafe { count_of(self.0.get(), &raw mut count) })?;
        let port = |index| {
            // SAFETY: the model lives and the index is below the count; it writes one pointer.
            self.port(|port| unsafe { by_index(self.0.get(), index, port) })
        };
        (0..count).map(|index| port(index).and_then(|port| port_facts(&port))).collect()
    }

    /// One of the names of the input or output that has this name; `None` if there is no such input
    /// or output.
    pub(super) fn any_name(&self, side: OvSide, name: &str) -> Option<String> {
        let functions = &self.0.library.functions;
        let by_name = match side {
            OvSide::Input => functions.ov_model_const_input_by_name,
            OvSide::Output => functions.ov_model_const_output_by_name,
        };
        let name = text(name).ok()?;
        // SAFETY: the model lives; the name ends with a zero; it writes one pointer.
        let port = self.port(|port| unsafe { by_name(self.0.get(), name.as_ptr(), port) }).ok()?;
        port_name(&port)
    }

    fn port(&self, make: impl FnOnce(*mut OvPointer) -> Status) -> Result<OvOwned, String> {
        OvOwned::new(self.0.library, self.0.library.functions.ov_output_const_port_free, make)
    }

    /// Sets the shapes of inputs, by their indexes; -1 is a variable size.
    pub(super) fn reshape(&mut self, shapes: &[(usize, Shape)]) -> Result<(), String> {
        let dimension = |size: &i64| match *size {
            -1 => OvDimension { min: 0, max: -1 },
            size => OvDimension { min: size, max: size },
        };
        let mut dims: Vec<Vec<_>> = shapes.iter().map(|(_, shape)| shape.iter().map(dimension).collect()).collect();
        let rank = |dims: &Vec<OvDimension>| i64::try_from(dims.len()).unwrap_or(i64::MAX);
        let shape = |dims: &mut Vec<OvDimension>| OvPartialShape {
            rank: OvDimension { min: rank(dims), max: rank(dims) },
            dims: dims.as_mut_ptr(),
        };
        let partial: Vec<_> = dims.iter_mut().map(shape).collect();
        let indexes: Vec<_> = shapes.iter().map(|(index, _)| *index).collect();
        // SAFETY: the model lives; there are as many indexes as shapes, whose dimensions live in `dims`; all are read.
        let status = unsafe {
            (self.0.library.functions.ov_model_reshape_by_port_indexes)(
                self.0.get(),
                indexes.as_ptr(),
                partial.as_ptr(),
                partial.len(),
            )
        };
        self.0.library.outcome(status)
    }

    /// The model with these inputs, by their indexes, taken in other datatypes and converted.
    pub(super) fn converting(self, inputs: &[(usize, Datatype)]) -> Result<Self, String> {
        let (library, functions) = (self.0.library, &self.0.library.functions);
        let steps = OvOwned::new(library, functions.ov_preprocess_prepostprocessor_free, |steps| {
            // SAFETY: the model lives; it writes one pointer.
            unsafe { (functions.ov_preprocess_prepostprocessor_create)(self.0.get(), steps) }
        })?;
        for (index, datatype) in inputs {
            let number = library.number(*datatype).ok_or("strings are not taken")?;
            let input = OvOwned::new(library, functions.ov_preprocess_input_info_free, |input| {
                // SAFETY: the steps live; it writes one pointer.
                unsafe {
                    (functions.ov_preprocess_prepostprocessor_get_input_info_by_index)(steps.get(), *index, input)
                }
            })?;
            let tensor = OvOwned::new(library, functions.ov_preprocess_input_tensor_info_free, |tensor| {
                // SAFETY: the input lives; it writes one pointer.
                unsafe { (functions.ov_preprocess_input_info_get_tensor_info)(input.get(), tensor) }
            })?;
            // SAFETY: the tensor's description lives.
            let status = unsafe { (functions.ov_preprocess_input_tensor_info_set_element_type)(tensor.get(), number) };
            library.outcome(status)?;
        }
        OvOwned::new(library, functions.ov_model_free, |model| {
            // SAFETY: the steps live; it writes one pointer.
            unsafe { (functions.ov_preprocess_prepostprocessor_build)(steps.get(), model) }
        })
        .map(Self)
    }
}

fn port_name(port: &OvOwned) -> Option<String> {
    let functions = &port.library.functions;
    let mut name = null_mut();
    // SAFETY: the port lives; it writes one pointer.
    let status = unsafe { (functions.ov_port_get_any_name)(port.get(), &raw mut name) };
    let name = NonNull::new(name).filter(|_| status == 0)?;
    // SAFETY: it wrote a text, which is freed once, after it was copied.
    unsafe {
        let text = CStr::from_ptr(name.as_ptr()).to_str().ok().map(str::to_owned);
        (functions.ov_free)(name.as_ptr());
        text
    }
}

fn port_facts(port: &OvOwned) -> Result<OvPort, String> {
    let (library, functions) = (port.library, &port.library.functions);
    let mut number = 0;
    // SAFETY: the port lives; it writes one number.
    library.outcome(unsafe { (functions.ov_port_get_element_type)(port.get(), &raw mut number) })?;
    let none = OvDimension { min: 0, max: 0 };
    let mut partial = OvPartialShape { rank: none, dims: null_mut() };
    // SAFETY: the port lives; it writes one shape.
    library.outcome(unsafe { (functions.ov_port_get_partial_shape)(port.get(), &raw mut partial) })?;
    let rank = usize::try_from(partial.rank.min).ok().filter(|_| partial.rank.min == partial.rank.max);
    let size = |dimension: &OvDimension| if dimension.min == dimension.max { dimension.min } else { -1 };
    let shape = rank.map(|rank| match partial.dims.is_null() || rank == 0 {
        true => Shape::new(),
        // SAFETY: a shape of a fixed rank has `rank` dimensions, and is freed after this.
        false => unsafe { std::slice::from_raw_parts(partial.dims, rank) }.iter().map(size).collect(),
    });
    // SAFETY: it was written by the library and is freed once.
    unsafe { (functions.ov_partial_shape_free)(&raw mut partial) };
    Ok(OvPort { name: port_name(port), datatype: library.datatype(number), shape })
}

impl OvCompiled {
    /// Makes a request, which runs it.
    pub(super) fn request(&self) -> Result<OvRequest, String> {
        let functions = &self.0.library.functions;
        let request = OvOwned::new(self.0.library, functions.ov_infer_request_free, |request| {
            // SAFETY: the compiled model lives; it writes one pointer.
            unsafe { (functions.ov_compiled_model_create_infer_request)(self.0.get(), request) }
        });
        request.map(|request| {
            let request = Arc::new(request);
            OvRequest { current: Arc::new(Mutex::new(Arc::clone(&request))), request }
        })
    }
}

/// Runs a compiled model (`ov_infer_request_t`), one batch at a time.
pub(super) struct OvRequest {
    request: Arc<OvOwned>,
    /// The same, for its cancellers.
    current: Arc<Mutex<Arc<OvOwned>>>,
}

/// Stops the run of a request from another thread.
pub(super) struct OvCanceller(Arc<Mutex<Arc<OvOwned>>>);

impl OvCanceller {
    pub(super) fn cancel(&self) {
        let request = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the request lives; this call is allowed while it runs, and does nothing while it does not.
        let _ = unsafe { (request.library.functions.ov_infer_request_cancel)(request.get()) };
    }
}

/// An output that a run is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OvAsked {
    /// Its name in the configuration.
    pub(super) name: String,
    /// Its index in the model.
    pub(super) index: usize,
    /// Its datatype in the model.
    pub(super) datatype: Datatype,
    /// Its dimensions, -1 for a variable size.
    pub(super) shape: Shape,
}

/// An output of a run, in memory that was made for this run alone.
pub(super) struct OvOutput {
    /// `None` if the protocol lacks it.
    pub(super) datatype: Option<Datatype>,
    pub(super) shape: Shape,
    /// The library's memory, which is freed with the last part of it.
    pub(super) contents: Bytes,
}

/// A tensor of the library's (`ov_tensor_t`).
struct OvTensor(OvOwned);

impl OvRequest {
    pub(super) fn canceller(&self) -> OvCanceller {
        OvCanceller(Arc::clone(&self.current))
    }

    /// Takes the place of this one with a request of another compiled model. Its cancellers stop the new one.
    pub(super) fn renew(&mut self, compiled: &OvCompiled) -> Result<(), String> {
        let OvRequest { request, .. } = compiled.request()?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&request);
        self.request = request;
        Ok(())
    }

    /// Runs the model on inputs, by their indexes, and returns the outputs that are asked for. All inputs of the model must
    /// be there: those of an earlier run are not kept.
    ///
    /// Each output is written to a new tensor that is filled with [`UNWRITTEN`], so an answer never holds numbers of an
    /// earlier run. The library runs on a thread of its own: with one thread, `ov_infer_request_infer` of 2025.4 to 2026.4
    /// returns success for a run that failed; `ov_infer_request_wait` returns the failure.
    pub(super) fn run<'a>(
        &mut self,
        inputs: impl Iterator<Item = (usize, Datatype, &'a [i64], &'a [u8])>,
        outputs: impl Iterator<Item = &'a OvAsked>,
    ) -> Result<SmallVec<[OvOutput; 2]>, String> {
        let (library, functions) = (self.request.library, &self.request.library.functions);
        let mut fresh = SmallVec::<[(OvTensor, Shape, &str); 2]>::new();
        for OvAsked { name, index, datatype, shape } in outputs {
            let (tensor, shape) = OvTensor::fresh(library, *datatype, shape)?;
            // SAFETY: request and tensor live. The request keeps the tensor until the next one is set here, and writes to it
            // only while it runs.
            let set = functions.ov_infer_request_set_output_tensor_by_index;
            library.outcome(unsafe { set(self.request.get(), *index, tensor.0.get()) })?;
            fresh.push((tensor, shape, name));
        }
        for (index, datatype, shape, contents) in inputs {
            let tensor = OvTensor::view(library, datatype, shape, contents)?;
            // SAFETY: request and tensor live. The request keeps the tensor, and reads the contents only while it runs,
            // below, during which they are borrowed.
            let set = functions.ov_infer_request_set_input_tensor_by_index;
            library.outcome(unsafe { set(self.request.get(), index, tensor.0.get()) })?;
        }
        // SAFETY: the request lives and is borrowed exclusively: no other thread runs it.
        library.outcome(unsafe { (functions.ov_infer_request_start_async)(self.request.get()) })?;
        // SAFETY: the request lives. The run has ended when this returns, cancelled or not.
        library.outcome(unsafe { (functions.ov_infer_request_wait)(self.request.get()) })?;
        let taken = fresh.into_iter().map(|(tensor, shape, name)| {
            let output = tensor.into_output()?;
            match output.shape == shape && is_unwritten(&output.contents) {
                true => Err(format!("the run did not write output '{name}'")),
                false => Ok(output),
            }
        });
        taken.collect()
    }
}

/// Contents of an output's memory before a run: as FP32, a NaN that no operator gives.
const UNWRITTEN: [u8; 4] = [0xe1, 0xc3, 0xa5, 0x7f];

/// The least bytes of an output whose size is open before its run.
const UNWRITTEN_SIZE_MIN: usize = 16;

/// Returns true if memory is as it was before the run. Fewer bytes than the pattern has may be a result.
fn is_unwritten(contents: &[u8]) -> bool {
    contents.len() >= UNWRITTEN.len() && contents.chunks(UNWRITTEN.len()).all(|chunk| UNWRITTEN.starts_with(chunk))
}

/// The shape of an output's memory before a run, which sets the variable sizes: a few elements.
fn fresh_shape(datatype: Datatype, shape: &[i64]) -> Shape {
    let mut fresh: Shape = shape.iter().map(|size| if *size < 0 { 1 } else { *size }).collect();
    let size = byte_size(datatype, &fresh).ok().flatten().unwrap_or_default();
    let open = shape.iter().position(|size| *size < 0);
    if let (Some(open), Some(times)) = (open, UNWRITTEN_SIZE_MIN.checked_div(size)) {
        fresh.iter_mut().skip(open).take(1).for_each(|size| *size = i64::try_from(times.max(1)).unwrap_or(1));
    }
    fresh
}

/// The shape of a tensor. The library has none for a scalar, and refuses to tell it.
fn tensor_shape(tensor: &OvOwned) -> Result<Shape, String> {
    let (library, functions) = (tensor.library, &tensor.library.functions);
    let (mut shape, mut count) = (OvShape { rank: 0, dims: null_mut() }, 0);
    // SAFETY: the tensor lives; it writes one shape.
    if let Err(why) = library.outcome(unsafe { (functions.ov_tensor_get_shape)(tensor.get(), &raw mut shape) }) {
        // SAFETY: the tensor lives; it writes one number.
        let status = unsafe { (functions.ov_tensor_get_size)(tensor.get(), &raw mut count) };
        return if status == 0 && count == 1 { Ok(Shape::new()) } else { Err(why) };
    }
    let rank = usize::try_from(shape.rank).unwrap_or_default();
    let dims = match shape.dims.is_null() || rank == 0 {
        true => Shape::new(),
        // SAFETY: a shape has as many dimensions as its rank, and is freed after this.
        false => Shape::from_slice(unsafe { std::slice::from_raw_parts(shape.dims, rank) }),
    };
    // SAFETY: it was written by the library and is freed once.
    unsafe { (functions.ov_shape_free)(&raw mut shape) };
    Ok(dims)
}

impl OvTensor {
    /// A new tensor for an output, filled with [`UNWRITTEN`], and its shape.
    fn fresh(library: &'static OvLibrary, datatype: Datatype, shape: &[i64]) -> Result<(Self, Shape), String> {
        let number = library.number(datatype).ok_or("strings are not taken")?;
        let mut dims = fresh_shape(datatype, shape);
        let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        let shape = OvShape { rank, dims: dims.as_mut_ptr() };
        let functions = &library.functions;
        let tensor = OvOwned::new(library, functions.ov_tensor_free, |tensor| {
            // SAFETY: the shape lives and is read; it writes one pointer.
            unsafe { (functions.ov_tensor_create)(number, shape, tensor) }
        })?;
        let tensor = Self(tensor);
        let (data, size) = tensor.memory()?;
        if let Some(data) = data {
            // SAFETY: `size` bytes begin there and belong to the tensor, which nothing else refers to yet.
            let contents = unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), size) };
            let (whole, rest) = contents.as_chunks_mut();
            whole.fill(UNWRITTEN);
            rest.iter_mut().zip(UNWRITTEN).for_each(|(place, byte)| *place = byte);
        }
        Ok((tensor, dims))
    }

    /// The start of its memory, `None` if it is empty, and its size. It must have no strings.
    fn memory(&self) -> Result<(Option<NonNull<u8>>, usize), String> {
        let (library, functions) = (self.0.library, &self.0.library.functions);
        let (mut size, mut data) = (0, null_mut());
        // SAFETY: the tensor lives; it writes one number.
        library.outcome(unsafe { (functions.ov_tensor_get_byte_size)(self.0.get(), &raw mut size) })?;
        if size == 0 {
            return Ok((None, 0));
        }
        // SAFETY: the tensor lives and is not empty; it writes one pointer.
        library.outcome(unsafe { (functions.ov_tensor_data)(self.0.get(), &raw mut data) })?;
        let data = NonNull::new(data.cast()).ok_or("a tensor has no memory")?;
        Ok((Some(data), size))
    }

    /// The output that a run wrote to this tensor.
    fn into_output(self) -> Result<OvOutput, String> {
        let library = self.0.library;
        let mut number = 0;
        // SAFETY: the tensor lives; it writes one number.
        let status = unsafe { (library.functions.ov_tensor_get_element_type)(self.0.get(), &raw mut number) };
        library.outcome(status)?;
        let (datatype, shape) = (library.datatype(number), tensor_shape(&self.0)?);
        // An empty tensor need not have memory.
        let (data, size) = if datatype.is_none() || shape.contains(&0) { (None, 0) } else { self.memory()? };
        let contents = match data {
            None => Bytes::new(),
            Some(data) => Bytes::from_owner(OvContents { data, size, _tensor: self }),
        };
        Ok(OvOutput { datatype, shape, contents })
    }

    /// A tensor that reads its elements where they lie.
    fn view(library: &'static OvLibrary, datatype: Datatype, shape: &[i64], contents: &[u8]) -> Result<Self, String> {
        let number = library.number(datatype).ok_or("strings are not taken")?;
        if byte_size(datatype, shape) != Ok(Some(contents.len())) {
            return Err("an input has not the bytes of its shape".to_owned());
        }
        let mut dims = Shape::from_slice(shape);
        let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        let shape = OvShape { rank, dims: dims.as_mut_ptr() };
        let functions = &library.functions;
        OvOwned::new(library, functions.ov_tensor_free, |tensor| {
            // SAFETY: the shape lives and is read. The contents have its size, and are aligned for their elements, as the
            // instance's conversion says; the library writes only to outputs. It writes one pointer.
            unsafe {
                (functions.ov_tensor_create_from_host_ptr)(number, shape, contents.as_ptr().cast_mut().cast(), tensor)
            }
        })
        .map(Self)
    }
}

/// The memory of an output whose run has ended.
struct OvContents {
    data: NonNull<u8>,
    size: usize,
    _tensor: OvTensor,
}

// SAFETY: the library binds its tensors to no thread, and the memory is only read.
unsafe impl Send for OvContents {}
// SAFETY: as above.
unsafe impl Sync for OvContents {}

impl AsRef<[u8]> for OvContents {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `size` bytes begin there, which the tensor keeps. Nothing writes to them: the next run of the request has
        // other tensors.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.size) }
    }
}

fn text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("'{}' has a zero byte", text.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_an_output_is_known_from_what_a_run_writes() {
        let check = |datatype, shape: &[i64], want: &[i64]| assert_eq!(fresh_shape(datatype, shape).as_slice(), want);
        check(Datatype::Fp32, &[2, 3], &[2, 3]);
        check(Datatype::Fp32, &[], &[]);
        check(Datatype::Fp32, &[-1], &[4]);
        check(Datatype::Int8, &[-1, 3, -1], &[5, 3, 1]);
        check(Datatype::Int64, &[7, -1], &[7, 1]);
        check(Datatype::Int64, &[0, -1], &[0, 1]);
        assert!(is_unwritten(&UNWRITTEN.repeat(3)) && is_unwritten(&UNWRITTEN.repeat(2)[..7]));
        assert!(!is_unwritten(&[]) && !is_unwritten(&UNWRITTEN[..3]), "too short to tell");
        assert!(!is_unwritten(&[&UNWRITTEN[..], &[0]].concat()));
        assert!(f32::from_le_bytes(UNWRITTEN).is_nan());
    }

    #[test]
    fn an_error_is_told_without_the_places_that_found_it() {
        let text = "Exception from src/inference/src/cpp/core.cpp:84:\nCheck 'x == y' failed at src/a.cpp:117:\n\
                    FrontEnd API failed with GeneralFailure:\nir: Could not open the file\n\n";
        assert_eq!(brief(text), "FrontEnd API failed with GeneralFailure: ir: Could not open the file");
        assert_eq!(brief("general error"), "general error");
        assert_eq!(brief("Check 'x' failed at a.cpp:1:\n"), "Check 'x' failed at a.cpp:1:");
    }
}
