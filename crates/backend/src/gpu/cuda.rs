//! The CUDA driver behind [`super::driver`], by cudarc, which loads `libcuda` at first use. Every
//! call of cudarc panics if the library or a symbol is missing: [`find`] looks for the library and
//! for each of `SYMBOLS` first.
//!
//! Contexts are our own and not the primary one, so that a broken one can be replaced while the
//! others of the process go on. The primary one is for libraries on CUDA's runtime, which know no
//! other.

#![expect(unsafe_code, reason = "the interface of the CUDA driver")]

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use cudarc::driver::{result, sys};

use crate::gpu::blas::{CublasLt, Library};
use crate::gpu::driver::{
    Blas, ContextMemory, DevicePointer, DeviceProperties, DriverError, GpuContext, GpuContextHandle, GpuDriver,
    GpuEvent, GpuFunction, GpuModule, GpuStream, KernelValue, LaunchShape, SharedHandle,
};
use crate::limits::GPU_KERNEL_ARGUMENTS_MAX;

/// The oldest driver that has all symbols: that of CUDA 11.4.
const DRIVER_VERSION_MIN: i32 = 11_040;

/// The functions of the driver that are called here, by the names that cudarc loads them by.
/// `tests/it/software_gpu.rs` removes one after another.
const SYMBOLS: [&str; 38] = [
    "cuCtxCreate_v2",
    "cuCtxDestroy_v2",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuIpcCloseMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetAddressRange_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyPeerAsync",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
];

/// The functions that only a primary context needs; a driver without them runs everything else.
const PRIMARY_SYMBOLS: [&str; 5] = [
    "cuCtxSynchronize",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxSetFlags_v2",
];

/// The driver of this machine, with its devices.
pub struct Cuda {
    devices: Vec<DeviceProperties>,
    /// cuBLASLt, or the reason why it is missing.
    blas: Result<Arc<Library>, String>,
}

/// A context on one device.
struct CudaContext {
    context: sys::CUcontext,
    number: u64,
    properties: DeviceProperties,
    blas: Result<Arc<Library>, String>,
    /// The device whose primary context it is, if it is one.
    primary_of: Option<sys::CUdevice>,
}

// SAFETY: a context may be used by any thread that has made it current, which every call does; the
// driver locks internally.
unsafe impl Send for CudaContext {}
// SAFETY: as above.
unsafe impl Sync for CudaContext {}

/// The number of the next context.
static CONTEXTS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The number of the context that we made current on this thread; 0 for none. Not its address,
    /// which a later context may reuse.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Finds the driver and its devices, or returns the reason why they cannot be used. Called once.
pub fn find() -> Result<Arc<dyn GpuDriver>, String> {
    // SAFETY: it loads a library by its usual names; any program may load the CUDA driver.
    if !unsafe { sys::is_culib_present() } {
        return Err("the CUDA driver (libcuda.so.1) is not installed".to_owned());
    }
    // SAFETY: the library is there.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol is not called.
    let is_absent = |name: &&&str| unsafe { library.get::<*const c_void>(name.as_bytes()) }.is_err();
    if let Some(name) = SYMBOLS.iter().find(is_absent) {
        return Err(format!("the CUDA driver is too old: it lacks '{name}', which CUDA 11.4 has"));
    }
    // For a symbol that cudarc needs and that the list lacks.
    let probed = catch_unwind(AssertUnwindSafe(probe));
    probed.unwrap_or_else(|_| Err("the CUDA driver is too old: it lacks a function that CUDA 11.4 has".to_owned()))
}

fn probe() -> Result<Arc<dyn GpuDriver>, String> {
    result::init().map_err(|error| reason(error, "cuInit"))?;
    let mut version = 0;
    // SAFETY: it writes one number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .map_err(|error| reason(error, "cuDriverGetVersion"))?;
    if version < DRIVER_VERSION_MIN {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(format!("the CUDA driver is too old: it is of CUDA {major}.{minor}, 11.4 is needed"));
    }
    let count = result::device::get_count().map_err(|error| reason(error, "cuDeviceGetCount"))?;
    let mut devices = Vec::new();
    for index in 0..u32::try_from(count).unwrap_or_default() {
        devices.push(properties(index).map_err(|error| format!("device {index}: {}", error.text))?);
    }
    if devices.is_empty() {
        return Err("the CUDA driver has no device".to_owned());
    }
    Ok(Arc::new(Cuda { devices, blas: Library::find().map(Arc::new) }))
}

fn reason(error: result::DriverError, call: &str) -> String {
    let code = error.0 as u32;
    match code {
        100 => "the CUDA driver has no device".to_owned(),
        // INSUFFICIENT_DRIVER of compat libraries, SYSTEM_DRIVER_MISMATCH,
        // COMPAT_NOT_SUPPORTED_ON_DEVICE.
        35 | 803 | 804 => format!("libcuda does not go with the kernel's driver ({})", failed(error, call).text),
        // OPERATING_SYSTEM and NOT_PERMITTED: the device files may not be opened.
        304 | 800 => format!("no permission to use the devices ({})", failed(error, call).text),
        _ => failed(error, call).text,
    }
}

fn properties(index: u32) -> Result<DeviceProperties, DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let device = device(index)?;
    let attribute = |attribute| {
        // SAFETY: the device came from the driver.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        let value = value.map_err(|error| failed(error, "cuDeviceGetAttribute"))?;
        Ok::<_, DriverError>(u32::try_from(value).unwrap_or_default())
    };
    let uuid = result::device::get_uuid(device).map_err(|error| failed(error, "cuDeviceGetUuid"))?;
    // SAFETY: the device came from the driver.
    let memory = unsafe { result::device::total_mem(device) };
    Ok(DeviceProperties {
        index,
        name: result::device::get_name(device).map_err(|error| failed(error, "cuDeviceGetName"))?,
        // C's char is signed on x86-64, and not on aarch64.
        uuid: uuid_text(uuid.bytes.map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()))),
        memory: memory.map_err(|error| failed(error, "cuDeviceTotalMem"))?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
    })
}

/// `GPU-` and the UUID, as in `nvidia-smi -L` and Triton's metrics.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn device(index: u32) -> Result<sys::CUdevice, DriverError> {
    let index = i32::try_from(index).map_err(|_| DriverError::transient("no such device"))?;
    result::device::get(index).map_err(|error| failed(error, "cuDeviceGet"))
}

fn failed(error: result::DriverError, call: &str) -> DriverError {
    let name = error.error_name().ok().and_then(|name| name.to_str().ok()).unwrap_or("CUDA_ERROR");
    DriverError::from_code(error.0 as u32, name, call)
}

fn checked(outcome: sys::CUresult, call: &str) -> Result<(), DriverError> {
    outcome.result().map_err(|error| failed(error, call))
}

impl GpuDriver for Cuda {
    fn devices(&self) -> &[DeviceProperties] {
        &self.devices
    }

    fn new_context(&self, index: u32) -> Result<Arc<dyn GpuContext>, DriverError> {
        let unknown = || DriverError::transient(format!("there is no GPU {index}"));
        let properties = self.devices.iter().find(|device| device.index == index).ok_or_else(unknown)?.clone();
        let mut context = null_mut();
        let flags = sys::CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC as u32;
        // SAFETY: it writes one pointer; the device came from the driver.
        checked(unsafe { sys::cuCtxCreate_v2(&raw mut context, flags, device(index)?) }, "cuCtxCreate")?;
        let number = CONTEXTS.fetch_add(1, Ordering::Relaxed);
        // It is current on this thread from now on.
        CURRENT.set(number);
        Ok(Arc::new(CudaContext { context, number, properties, blas: self.blas.clone(), primary_of: None }))
    }

    fn primary_context(&self, index: u32) -> Result<Arc<dyn GpuContext>, DriverError> {
        let unknown = || DriverError::transient(format!("there is no GPU {index}"));
        let properties = self.devices.iter().find(|device| device.index == index).ok_or_else(unknown)?.clone();
        // SAFETY: the library is there, and the symbols are not called.
        let is_absent = |name: &&&str| unsafe { sys::culib().get::<*const c_void>(name.as_bytes()) }.is_err();
        if let Some(name) = PRIMARY_SYMBOLS.iter().find(is_absent) {
            return Err(DriverError::transient(format!("the CUDA driver lacks '{name}'")));
        }
        let device = device(index)?;
        // A waiting thread sleeps in it, as in ours. Best effort: the context may have other flags.
        // SAFETY: the device came from the driver.
        let _ =
            unsafe { sys::cuDevicePrimaryCtxSetFlags_v2(device, sys::CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC as u32) };
        // SAFETY: as above.
        let context = unsafe { result::primary_ctx::retain(device) };
        let context = context.map_err(|error| failed(error, "cuDevicePrimaryCtxRetain"))?;
        let number = CONTEXTS.fetch_add(1, Ordering::Relaxed);
        let (blas, primary_of) = (self.blas.clone(), Some(device));
        Ok(Arc::new(CudaContext { context, number, properties, blas, primary_of }))
    }
}

impl CudaContext {
    /// Makes it the context of this thread.
    fn enter(&self) -> Result<(), DriverError> {
        if CURRENT.get() != self.number {
            // SAFETY: the context lives as long as `self`.
            checked(unsafe { sys::cuCtxSetCurrent(self.context) }, "cuCtxSetCurrent")?;
            CURRENT.set(self.number);
        }
        Ok(())
    }
}

impl CudaContext {
    /// Gives the primary context back, after a reset if it is broken, so that its next user, the
    /// runtime among them, gets one that works.
    fn release(&self, device: sys::CUdevice) {
        // SAFETY: it waits for enqueued work; a context that hangs is never dropped.
        let outcome = self.enter().and_then(|()| checked(unsafe { sys::cuCtxSynchronize() }, "cuCtxSynchronize"));
        if outcome.is_err_and(|error| error.is_sticky()) {
            // SAFETY: nothing of ours has it any longer, and nothing else in this process uses
            // CUDA.
            let _ = unsafe { sys::cuDevicePrimaryCtxReset_v2(device) };
        }
        // SAFETY: it was retained once for `self`.
        let _ = unsafe { result::primary_ctx::release(device) };
        CURRENT.set(0);
    }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        if let Some(device) = self.primary_of {
            return self.release(device);
        }
        // SAFETY: nothing refers to it any longer: every user that enqueues in it holds it. A call
        // that fails here was broken before.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.context) };
        CURRENT.set(0);
    }
}

const fn stream_of(stream: GpuStream) -> sys::CUstream {
    stream.as_raw() as sys::CUstream
}

const fn event_of(event: GpuEvent) -> sys::CUevent {
    event.as_raw() as sys::CUevent
}

impl GpuContext for CudaContext {
    fn device(&self) -> &DeviceProperties {
        &self.properties
    }

    fn free_memory(&self) -> Result<usize, DriverError> {
        self.enter()?;
        let (free, _) = result::mem_get_info().map_err(|error| failed(error, "cuMemGetInfo"))?;
        Ok(free)
    }

    fn handle_foreign_call(&self) {
        CURRENT.set(0);
    }

    fn alloc(&self, size: usize) -> Result<DevicePointer, DriverError> {
        self.enter()?;
        // SAFETY: its contents are not read before they were written: programs write before they
        // read.
        unsafe { result::malloc_sync(size) }.map_err(|error| failed(error, "cuMemAlloc"))
    }

    fn free(&self, pointer: DevicePointer) {
        if self.enter().is_ok() {
            // SAFETY: `DeviceBuffer` frees what it took, once. In a broken context nothing is left to free.
            let _ = unsafe { result::free_sync(pointer) };
        }
    }

    fn alloc_pinned(&self, size: usize) -> Result<NonNull<u8>, DriverError> {
        self.enter()?;
        // SAFETY: it writes one pointer. No flags: the host reads outputs from it, so it is cached.
        let pointer = unsafe { result::malloc_host(size, 0) }.map_err(|error| failed(error, "cuMemHostAlloc"))?;
        NonNull::new(pointer.cast()).ok_or_else(|| DriverError::transient("cuMemHostAlloc gave no memory"))
    }

    // SAFETY: the callers uphold the conditions of the trait.
    unsafe fn free_pinned(&self, pointer: NonNull<u8>) {
        if self.enter().is_ok() {
            // SAFETY: the caller guarantees that it came from `alloc_pinned` and is not in use.
            let _ = unsafe { result::free_host(pointer.as_ptr().cast()) };
        }
    }

    fn new_stream(&self) -> Result<GpuStream, DriverError> {
        self.enter()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = stream.map_err(|error| failed(error, "cuStreamCreate"))?;
        // SAFETY: CUDA made it just now, in this context.
        Ok(unsafe { GpuStream::from_raw(stream as usize) })
    }

    // SAFETY: the callers uphold the conditions of the trait.
    unsafe fn end_stream(&self, stream: GpuStream) {
        if self.enter().is_ok() {
            // SAFETY: the caller guarantees that it came from `new_stream` and is not in use.
            let _ = unsafe { result::stream::destroy(stream_of(stream)) };
        }
    }

    fn new_event(&self, is_timed: bool) -> Result<GpuEvent, DriverError> {
        self.enter()?;
        let flags = match is_timed {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        let event = result::event::create(flags).map_err(|error| failed(error, "cuEventCreate"))?;
        // SAFETY: CUDA made it just now, in this context.
        Ok(unsafe { GpuEvent::from_raw(event as usize) })
    }

    // SAFETY: the callers uphold the conditions of the trait.
    unsafe fn end_event(&self, event: GpuEvent) {
        if self.enter().is_ok() {
            // SAFETY: the caller guarantees that it came from `new_event` and is not in use.
            let _ = unsafe { result::event::destroy(event_of(event)) };
        }
    }

    fn load_module(&self, ptx: &str) -> Result<GpuModule, DriverError> {
        self.enter()?;
        let text = CString::new(ptx).map_err(|_| DriverError::transient("a module holds a zero byte"))?;
        // SAFETY: the text ends with a zero, by which the driver distinguishes PTX from a binary.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) };
        let module = module.map_err(|error| failed(error, "cuModuleLoadData"))?;
        // SAFETY: CUDA made it just now, in this context.
        Ok(unsafe { GpuModule::from_raw(module as usize) })
    }

    fn function(&self, module: GpuModule, name: &str) -> Result<GpuFunction, DriverError> {
        self.enter()?;
        let text = CString::new(name).map_err(|_| DriverError::transient("a kernel's name holds a zero byte"))?;
        // SAFETY: modules are never unloaded before their context.
        let function = unsafe { result::module::get_function(module.as_raw() as sys::CUmodule, text) };
        let function = function.map_err(|error| failed(error, &format!("cuModuleGetFunction of '{name}'")))?;
        // SAFETY: CUDA found it just now, in a module of this context.
        Ok(unsafe { GpuFunction::from_raw(function as usize) })
    }

    fn new_blas(&self) -> Result<Box<dyn Blas>, DriverError> {
        self.enter()?;
        let library = self.blas.as_ref().map_err(DriverError::transient)?;
        Ok(Box::new(CublasLt::new(library)?))
    }

    // SAFETY: the callers uphold the conditions of the trait.
    unsafe fn copy_in(
        &self,
        stream: GpuStream,
        from: *const u8,
        to: DevicePointer,
        size: usize,
    ) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: the caller keeps the host's side; the device's side is checked by the device.
        let outcome = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), size, stream_of(stream)) };
        checked(outcome, "cuMemcpyHtoDAsync")
    }

    // SAFETY: the callers uphold the conditions of the trait.
    unsafe fn copy_out(
        &self,
        stream: GpuStream,
        from: DevicePointer,
        to: *mut u8,
        size: usize,
    ) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: as above.
        let outcome = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, size, stream_of(stream)) };
        checked(outcome, "cuMemcpyDtoHAsync")
    }

    fn upload(&self, from: &[u8], to: DevicePointer) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: it returns when the bytes were read.
        unsafe { result::memcpy_htod_sync(to, from) }.map_err(|error| failed(error, "cuMemcpyHtoD"))?;
        // The bytes may still be in transit, and our streams do not wait for the default one.
        // SAFETY: the default stream always exists.
        let outcome = unsafe { result::stream::synchronize(result::stream::null()) };
        outcome.map_err(|error| failed(error, "cuStreamSynchronize"))
    }

    fn download(&self, from: DevicePointer, to: &mut [u8]) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: it returns when the bytes were written; the device's side is checked by the device.
        unsafe { result::memcpy_dtoh_sync(to, from) }.map_err(|error| failed(error, "cuMemcpyDtoH"))
    }

    fn handle(&self) -> GpuContextHandle {
        // SAFETY: it is the number of this context.
        unsafe { GpuContextHandle::from_raw(self.context as usize) }
    }

    fn copy_across(&self, from: ContextMemory<'_>, to: ContextMemory<'_>, size: usize) -> Result<(), DriverError> {
        self.enter()?;
        let context_of = |context: &dyn GpuContext| context.handle().as_raw() as sys::CUcontext;
        let (source, target) = (context_of(from.context), context_of(to.context));
        // The call without a stream would wait for all work of both contexts, batches among it.
        let stream = result::stream::null();
        // SAFETY: both contexts are borrowed, so they live; the device's side is checked by the
        // device.
        let outcome = unsafe { sys::cuMemcpyPeerAsync(to.pointer, target, from.pointer, source, size, stream) };
        checked(outcome, "cuMemcpyPeerAsync")?;
        // SAFETY: the default stream always exists.
        unsafe { result::stream::synchronize(stream) }.map_err(|error| failed(error, "cuStreamSynchronize"))
    }

    fn open_shared(&self, handle: &SharedHandle) -> Result<(DevicePointer, usize), DriverError> {
        self.enter()?;
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as std::ffi::c_char) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let (mut pointer, mut base, mut size) = (0, 0, 0);
        // SAFETY: it writes one number. The driver checks the owner of the handle's memory.
        checked(unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut pointer, handle, flags) }, "cuIpcOpenMemHandle")?;
        // SAFETY: it writes two numbers.
        let range = unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, pointer) };
        if let Err(error) = checked(range, "cuMemGetAddressRange") {
            self.close_shared(pointer);
            return Err(error);
        }
        // The memory that another process shares begins at its pointer; the part of the allocation
        // before it is not ours.
        Ok((pointer, size.saturating_sub(usize::try_from(pointer.saturating_sub(base)).unwrap_or(usize::MAX))))
    }

    fn close_shared(&self, pointer: DevicePointer) {
        if self.enter().is_ok() {
            // SAFETY: `SharedMemory` closes what it opened, once.
            let _ = unsafe { sys::cuIpcCloseMemHandle(pointer) };
        }
    }

    fn launch(
        &self,
        stream: GpuStream,
        function: GpuFunction,
        shape: LaunchShape,
        values: &[KernelValue],
    ) -> Result<(), DriverError> {
        self.enter()?;
        if values.len() > GPU_KERNEL_ARGUMENTS_MAX {
            return Err(DriverError::transient(format!("a kernel takes {} arguments", values.len())));
        }
        let mut words = [0_u64; GPU_KERNEL_ARGUMENTS_MAX];
        let mut pointers = [null_mut::<c_void>(); GPU_KERNEL_ARGUMENTS_MAX];
        for ((word, pointer), value) in words.iter_mut().zip(&mut pointers).zip(values) {
            // Little-endian: the driver reads only as many bytes as the parameter has.
            *word = match *value {
                KernelValue::Pointer(number) | KernelValue::U64(number) => number,
                KernelValue::U32(number) => number.into(),
            };
            *pointer = std::ptr::from_mut(word).cast();
        }
        let ([x, y], threads) = (shape.grid, shape.threads);
        // SAFETY: the function is of a module of this context; the table of kernels has the number
        // and the size of its values, which the driver reads before it returns. The kernel's use of
        // device memory is checked by the device.
        let outcome = unsafe {
            sys::cuLaunchKernel(
                function.as_raw() as sys::CUfunction,
                x,
                y,
                1,
                threads,
                1,
                1,
                shape.shared_size,
                stream_of(stream),
                pointers.as_mut_ptr(),
                null_mut(),
            )
        };
        checked(outcome, "cuLaunchKernel")
    }

    fn record(&self, event: GpuEvent, stream: GpuStream) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: only drivers make handles, and only their owner ends them, when nothing else uses
        // them: both live.
        let outcome = unsafe { result::event::record(event_of(event), stream_of(stream)) };
        outcome.map_err(|error| failed(error, "cuEventRecord"))
    }

    fn is_passed(&self, event: GpuEvent) -> Result<bool, DriverError> {
        self.enter()?;
        // SAFETY: as for `record`.
        match unsafe { result::event::query(event_of(event)) } {
            Ok(()) => Ok(true),
            Err(result::DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(failed(error, "cuEventQuery")),
        }
    }

    fn elapsed(&self, begin: GpuEvent, end: GpuEvent) -> Result<Duration, DriverError> {
        self.enter()?;
        // SAFETY: as for `record`.
        let millis = unsafe { result::event::elapsed(event_of(begin), event_of(end)) };
        let millis = millis.map_err(|error| failed(error, "cuEventElapsedTime"))?;
        Ok(Duration::try_from_secs_f32(millis / 1e3).unwrap_or_default())
    }

    fn wake(&self, stream: GpuStream, waker: &Arc<Waker>) -> Result<(), DriverError> {
        self.enter()?;
        // Left to the driver even if this fails: the failure may be that of earlier work.
        let shared = Arc::into_raw(Arc::clone(waker));
        // SAFETY: `call_waker` takes the pointer given here, and is called once at most.
        let outcome =
            unsafe { result::stream::launch_host_function(stream_of(stream), call_waker, shared.cast_mut().cast()) };
        outcome.map_err(|error| failed(error, "cuLaunchHostFunc"))
    }
}

/// Called by a thread of the driver, through which no panic may pass.
unsafe extern "C" fn call_waker(waker: *mut c_void) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `CudaContext::wake` made it of an `Arc` for this call alone.
        unsafe { Arc::from_raw(waker.cast_const().cast::<Waker>()) }.wake_by_ref();
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_does() {
        let bytes = std::array::from_fn(|index| index as u8 * 17);
        assert_eq!(uuid_text(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_machine_without_a_driver_or_a_device_is_told_why_and_nothing_panics() {
        match find() {
            Ok(driver) => assert!(!driver.devices().is_empty()),
            Err(why) => assert!(why.contains("CUDA") || why.contains("libcuda") || why.contains("device"), "{why}"),
        }
    }
}
