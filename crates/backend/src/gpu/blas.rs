//! cuBLASLt, loaded by name once the driver was found: cudarc would search only the releases that
//! it knows, and panic if a symbol is missing. Only the functions for a product in FP32 are
//! declared; the interface is the same from CUDA 11.4 to 13.
//!
//! Matrices of cuBLASLt are column major. Ours are row major, which is the transposed matrix to it:
//! `output^T = weight^T x input^T`, so that nothing is moved.

#![expect(unsafe_code, reason = "the interface of cuBLASLt")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use libloading::Library as SharedObject;

use crate::gpu::driver::{Blas, DevicePointer, DriverError, GpuFault, GpuStream, MatrixProduct};
use crate::limits::GPU_MATMULS_KEPT_MAX;

/// `cublasStatus_t`; 0 is success.
type CublasStatus = c_int;
/// `cublasLtHandle_t`, descriptors and layouts: all opaque.
type Opaque = *mut c_void;

/// `cublasLtMatmulAlgo_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Heuristic {
    algorithm: Algorithm,
    workspace_size: usize,
    state: CublasStatus,
    waves: f32,
    reserved: [c_int; 4],
}

type Create = unsafe extern "C" fn(*mut Opaque) -> CublasStatus;
type Destroy = unsafe extern "C" fn(Opaque) -> CublasStatus;
type CreateLayout = unsafe extern "C" fn(*mut Opaque, c_int, u64, u64, i64) -> CublasStatus;
type CreateDescription = unsafe extern "C" fn(*mut Opaque, c_int, c_int) -> CublasStatus;
type SetAttribute = unsafe extern "C" fn(Opaque, c_int, *const c_void, usize) -> CublasStatus;
type FindAlgorithm = unsafe extern "C" fn(
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    c_int,
    *mut Heuristic,
    *mut c_int,
) -> CublasStatus;
type Multiply = unsafe extern "C" fn(
    Opaque,
    Opaque,
    *const c_void,
    *const c_void,
    Opaque,
    *const c_void,
    Opaque,
    *const c_void,
    *const c_void,
    Opaque,
    *mut c_void,
    Opaque,
    *const Algorithm,
    *mut c_void,
    usize,
    *mut c_void,
) -> CublasStatus;

/// Declares the functions that are used, each by its name in the library.
macro_rules! symbols {
    ($($field:ident: $type:ty = $name:literal,)*) => {
        /// cuBLASLt.
        pub struct Library {
            $($field: $type,)*
            /// Unloaded last.
            _object: SharedObject,
        }

        impl Library {
            fn of_object(object: SharedObject) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is that of `cublasLt.h`, the same since CUDA 11.
                        let symbol = unsafe { object.get::<$type>($name.as_bytes()) };
                        *symbol.map_err(|_| format!("cuBLASLt has no '{}'", $name))?
                    },)*
                    _object: object,
                })
            }
        }
    };
}

symbols! {
    create: Create = "cublasLtCreate",
    destroy: Destroy = "cublasLtDestroy",
    create_layout: CreateLayout = "cublasLtMatrixLayoutCreate",
    destroy_layout: Destroy = "cublasLtMatrixLayoutDestroy",
    create_description: CreateDescription = "cublasLtMatmulDescCreate",
    destroy_description: Destroy = "cublasLtMatmulDescDestroy",
    set_description: SetAttribute = "cublasLtMatmulDescSetAttribute",
    create_preference: Create = "cublasLtMatmulPreferenceCreate",
    destroy_preference: Destroy = "cublasLtMatmulPreferenceDestroy",
    find_algorithm: FindAlgorithm = "cublasLtMatmulAlgoGetHeuristic",
    multiply: Multiply = "cublasLtMatmul",
}

/// The names of the library, the latest release first.
const NAMES: [&str; 4] = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", "libcublasLt.so"];

/// `CUDA_R_32F`.
const TYPE_F32: c_int = 0;
/// `CUBLAS_COMPUTE_32F`: true FP32, no TF32.
const COMPUTE_F32: c_int = 68;
/// `CUBLASLT_MATMUL_DESC_TRANSA`.
const ATTRIBUTE_TRANSPOSE: c_int = 3;
/// `CUBLASLT_MATMUL_DESC_EPILOGUE`.
const ATTRIBUTE_EPILOGUE: c_int = 7;
/// `CUBLASLT_MATMUL_DESC_BIAS_POINTER`.
const ATTRIBUTE_BIAS: c_int = 8;
/// `CUBLAS_OP_T`.
const OPERATION_TRANSPOSE: c_int = 1;
/// `CUBLASLT_EPILOGUE_DEFAULT`; other epilogues combine the bits below.
const EPILOGUE_NONE: c_int = 1;
/// The bit of a ReLU.
const EPILOGUE_RELU: c_int = 2;
/// The bit of a bias.
const EPILOGUE_BIAS: c_int = 4;

impl Library {
    /// Loads the latest installed release, or returns the reason why it cannot be used.
    pub fn find() -> Result<Self, String> {
        for name in NAMES {
            // SAFETY: loading cuBLASLt runs its own initialisers, which any CUDA program runs.
            if let Ok(object) = unsafe { SharedObject::new(name) } {
                return Self::of_object(object).map_err(|why| format!("{name} cannot be used: {why}"));
            }
        }
        Err("cuBLASLt (libcublasLt.so.11 to .13) is not installed".to_owned())
    }
}

/// The key of a kind of product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ProductKind {
    rows: usize,
    inner: usize,
    columns: usize,
    is_transposed: bool,
    has_relu: bool,
    has_bias: bool,
}

/// The objects of cuBLASLt for a kind of product, made at its first use.
struct PreparedProduct {
    library: Arc<Library>,
    description: Opaque,
    weight: Opaque,
    input: Opaque,
    output: Opaque,
    algorithm: Option<Algorithm>,
}

/// cuBLASLt in one context, for one thread.
pub struct CublasLt {
    library: Arc<Library>,
    handle: Opaque,
    prepared: HashMap<ProductKind, PreparedProduct>,
}

// SAFETY: the handle and the descriptors have one owner; cuBLASLt binds them to no thread.
unsafe impl Send for CublasLt {}

fn checked(status: CublasStatus, call: &str) -> Result<(), DriverError> {
    match status {
        0 => Ok(()),
        // ALLOC_FAILED; EXECUTION_FAILED and INTERNAL_ERROR are faults of a kernel or of the
        // context.
        3 => Err(DriverError { fault: GpuFault::Memory, text: format!("CUBLAS_STATUS {status} in {call}") }),
        13 | 14 => Err(DriverError { fault: GpuFault::Sticky, text: format!("CUBLAS_STATUS {status} in {call}") }),
        _ => Err(DriverError::transient(format!("CUBLAS_STATUS {status} in {call}"))),
    }
}

impl CublasLt {
    /// For the context that is current on this thread.
    pub fn new(library: &Arc<Library>) -> Result<Self, DriverError> {
        let mut handle = null_mut();
        // SAFETY: it writes one pointer.
        checked(unsafe { (library.create)(&raw mut handle) }, "cublasLtCreate")?;
        Ok(Self { library: Arc::clone(library), handle, prepared: HashMap::new() })
    }

    fn prepare(&mut self, kind: ProductKind, bias: Option<DevicePointer>) -> Result<&PreparedProduct, DriverError> {
        if !self.prepared.contains_key(&kind) {
            if self.prepared.len() >= GPU_MATMULS_KEPT_MAX {
                self.prepared.clear();
            }
            let prepared = PreparedProduct::new(&self.library, self.handle, kind, bias)?;
            self.prepared.insert(kind, prepared);
        }
        self.prepared.get(&kind).ok_or_else(|| DriverError::transient("a product was not prepared"))
    }
}

impl Blas for CublasLt {
    fn enqueue(&mut self, stream: GpuStream, matmul: &MatrixProduct) -> Result<(), DriverError> {
        let MatrixProduct { rows, inner, columns, is_transposed, has_relu, input, weight, bias, output } = *matmul;
        let has_bias = bias.is_some();
        let handle = self.handle;
        let prepared = self.prepare(ProductKind { rows, inner, columns, is_transposed, has_relu, has_bias }, bias)?;
        if let Some(bias) = bias {
            prepared.set::<DevicePointer>(ATTRIBUTE_BIAS, &bias)?;
        }
        let (one, zero) = (1.0_f32, 0.0_f32);
        let algorithm = prepared.algorithm.as_ref().map_or(null(), std::ptr::from_ref);
        // SAFETY: handle and descriptors live; the scalars are read before it returns (host pointer mode);
        // device memory is checked by the device; no workspace is needed, as the preference said.
        let status = unsafe {
            (prepared.library.multiply)(
                handle,
                prepared.description,
                std::ptr::from_ref(&one).cast(),
                weight as *const c_void,
                prepared.weight,
                input as *const c_void,
                prepared.input,
                std::ptr::from_ref(&zero).cast(),
                output as *const c_void,
                prepared.output,
                output as *mut c_void,
                prepared.output,
                algorithm,
                null_mut(),
                0,
                stream.as_raw() as *mut c_void,
            )
        };
        checked(status, "cublasLtMatmul")
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.prepared.clear();
        // SAFETY: it came from `cublasLtCreate`, and nothing uses it any longer.
        let _ = unsafe { (self.library.destroy)(self.handle) };
    }
}

impl PreparedProduct {
    fn new(
        library: &Arc<Library>,
        handle: Opaque,
        kind: ProductKind,
        bias: Option<DevicePointer>,
    ) -> Result<Self, DriverError> {
        let library = Arc::clone(library);
        // The objects made so far are destroyed if the next fails; null ones are skipped.
        let mut new = Self {
            library: Arc::clone(&library),
            description: null_mut(),
            weight: null_mut(),
            input: null_mut(),
            output: null_mut(),
            algorithm: None,
        };
        // SAFETY: it writes one pointer.
        let status = unsafe { (library.create_description)(&raw mut new.description, COMPUTE_F32, TYPE_F32) };
        checked(status, "cublasLtMatmulDescCreate")?;
        if kind.is_transposed {
            new.set(ATTRIBUTE_TRANSPOSE, &OPERATION_TRANSPOSE)?;
        }
        let bits = if kind.has_relu { EPILOGUE_RELU } else { 0 } | if kind.has_bias { EPILOGUE_BIAS } else { 0 };
        new.set(ATTRIBUTE_EPILOGUE, if bits == 0 { &EPILOGUE_NONE } else { &bits })?;
        // A bias like those to come: the choice of algorithm may depend on its alignment.
        if let Some(bias) = bias {
            new.set::<DevicePointer>(ATTRIBUTE_BIAS, &bias)?;
        }
        let ProductKind { rows, inner, columns, .. } = kind;
        new.weight =
            if kind.is_transposed { layout(&library, inner, columns) } else { layout(&library, columns, inner) }?;
        new.input = layout(&library, inner, rows)?;
        new.output = layout(&library, columns, rows)?;
        new.algorithm = Some(new.find_algorithm(handle)?);
        Ok(new)
    }

    fn set<T>(&self, attribute: c_int, value: &T) -> Result<(), DriverError> {
        let value: *const T = value;
        // SAFETY: the description lives, and `size_of::<T>()` bytes are read before it returns.
        let status =
            unsafe { (self.library.set_description)(self.description, attribute, value.cast(), size_of::<T>()) };
        checked(status, "cublasLtMatmulDescSetAttribute")
    }

    /// Returns the algorithm that cuBLASLt ranks best, without a workspace: that is the default of
    /// a preference.
    fn find_algorithm(&self, handle: Opaque) -> Result<Algorithm, DriverError> {
        let mut preference = null_mut();
        // SAFETY: it writes one pointer.
        checked(unsafe { (self.library.create_preference)(&raw mut preference) }, "cublasLtMatmulPreferenceCreate")?;
        let (mut found, mut count) = (MaybeUninit::<Heuristic>::uninit(), 0);
        // SAFETY: all descriptors live; it writes one result if it counts one.
        let status = unsafe {
            let Self { description, weight, input, output, .. } = *self;
            let find = self.library.find_algorithm;
            let status = find(
                handle,
                description,
                weight,
                input,
                output,
                output,
                preference,
                1,
                found.as_mut_ptr(),
                &raw mut count,
            );
            (self.library.destroy_preference)(preference);
            status
        };
        checked(status, "cublasLtMatmulAlgoGetHeuristic")?;
        if count < 1 {
            return Err(DriverError::transient("cuBLASLt has no algorithm for a product"));
        }
        // SAFETY: it counted one, so it wrote one.
        let found = unsafe { found.assume_init() };
        checked(found.state, "cublasLtMatmulAlgoGetHeuristic")?;
        Ok(found.algorithm)
    }
}

impl Drop for PreparedProduct {
    fn drop(&mut self) {
        // SAFETY: each came from its own call and is destroyed once; null ones are skipped.
        unsafe {
            for layout in [self.weight, self.input, self.output] {
                if !layout.is_null() {
                    (self.library.destroy_layout)(layout);
                }
            }
            if !self.description.is_null() {
                (self.library.destroy_description)(self.description);
            }
        }
    }
}

/// A matrix as cuBLASLt sees it: column major, without gaps.
fn layout(library: &Library, rows: usize, columns: usize) -> Result<Opaque, DriverError> {
    let mut layout = null_mut();
    let too_large = || DriverError::transient("a matrix is too large");
    let leading = i64::try_from(rows).map_err(|_| too_large())?;
    // SAFETY: it writes one pointer.
    let status = unsafe { (library.create_layout)(&raw mut layout, TYPE_F32, rows as u64, columns as u64, leading) };
    checked(status, "cublasLtMatrixLayoutCreate")?;
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_library_is_told_which_it_may_be() {
        match Library::find() {
            Ok(_) => {}
            Err(why) => assert!(why.contains("libcublasLt.so"), "{why}"),
        }
    }

    #[test]
    fn a_failure_of_a_kernel_breaks_the_context_and_others_do_not() {
        let fault = |status| checked(status, "call").err().map(|error| error.fault);
        assert_eq!(
            [0, 1, 3, 7, 13, 14, 15].map(fault),
            [
                None,
                Some(GpuFault::Transient),
                Some(GpuFault::Memory),
                Some(GpuFault::Transient),
                Some(GpuFault::Sticky),
                Some(GpuFault::Sticky),
                Some(GpuFault::Transient),
            ]
        );
    }
}
