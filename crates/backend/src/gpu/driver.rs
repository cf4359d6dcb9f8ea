//! The part of CUDA that the GPU executor needs: the one trait between it and [`super::cuda`], or
//! the fake driver of the tests. Handles are numbers that only drivers make, since CUDA follows
//! them; [`super::memory`] and `engines::gpu::slot` own the objects behind them. No call for a batch
//! waits for the device.

#![expect(unsafe_code, reason = "calls that are given host memory by its address")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use base::error::Error;

/// CUDA on this machine, with at least one device. Shared by all threads.
pub trait GpuDriver: Send + Sync {
    /// The devices, by number.
    fn devices(&self) -> &[DeviceProperties];

    /// Makes a separate context on a device: a fault in it breaks no other.
    fn new_context(&self, device: u32) -> Result<Arc<dyn GpuContext>, DriverError>;

    /// Returns the context of a device that libraries share which choose none, those on CUDA's
    /// runtime. A broken one is recreated when it is given back, by its last user.
    fn primary_context(&self, device: u32) -> Result<Arc<dyn GpuContext>, DriverError>;
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Its number, as in `gpus` of an instance group.
    pub index: u32,
    /// The name, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// `GPU-` and a UUID.
    pub uuid: String,
    /// Its memory in bytes.
    pub memory: usize,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Its multiprocessors.
    pub multiprocessors: u32,
}

/// An address in the memory of a device.
pub type DevicePointer = u64;

/// The handle by which another process opens memory of a device (`cudaIpcMemHandle_t`).
pub type SharedHandle = [u8; 64];

/// Declares the handles of a context: numbers that only a driver makes, without arithmetic.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(usize);

        impl $name {
            /// The handle of a number.
            ///
            /// # Safety
            /// The driver that gets it made the number for such an object, in the context that it
            /// is used with.
            pub const unsafe fn from_raw(number: usize) -> Self {
                Self(number)
            }

            /// Its number.
            pub const fn as_raw(self) -> usize {
                self.0
            }
        }
    )*};
}

handles! {
    /// A context, for calls that name two.
    GpuContextHandle;
    /// Work in order; two streams run side by side.
    GpuStream;
    /// A point in a stream that was or will be passed.
    GpuEvent;
    /// Loaded kernels.
    GpuModule;
    /// One kernel of a module.
    GpuFunction;
}

/// The value of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelValue {
    /// An address in device memory.
    Pointer(DevicePointer),
    /// `.u32`.
    U32(u32),
    /// `.u64`.
    U64(u64),
}

/// The threads that run a kernel, and the shared memory of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x and y.
    pub grid: [u32; 2],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_size: u32,
}

/// `output[rows, columns] = input[rows, inner] x weight[inner, columns] (+ bias[columns])`, in
/// FP32, row major, with a ReLU if asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixProduct {
    /// Rows of the input.
    pub rows: usize,
    /// Columns of the input.
    pub inner: usize,
    /// Columns of the output.
    pub columns: usize,
    /// True if the weight is laid out as `[columns, inner]`.
    pub is_transposed: bool,
    /// True if a ReLU follows.
    pub has_relu: bool,
    /// The input.
    pub input: DevicePointer,
    /// The weight.
    pub weight: DevicePointer,
    /// The bias, if there is one.
    pub bias: Option<DevicePointer>,
    /// The output.
    pub output: DevicePointer,
}

/// Memory of a device, with the context that it belongs to.
#[derive(Clone, Copy)]
pub struct ContextMemory<'a> {
    /// The context.
    pub context: &'a dyn GpuContext,
    /// The first byte.
    pub pointer: DevicePointer,
}

/// A context on one device. Any thread may call it. A wrong address of device memory breaks the
/// context and nothing else; only `unsafe` calls take addresses of host memory.
pub trait GpuContext: Send + Sync {
    /// The device.
    fn device(&self) -> &DeviceProperties;

    /// Bytes of device memory that are free.
    fn free_memory(&self) -> Result<usize, DriverError>;

    /// Reports a call of a library on this thread that may have made another context current.
    fn handle_foreign_call(&self);

    /// Takes device memory.
    fn alloc(&self, size: usize) -> Result<DevicePointer, DriverError>;

    /// Gives device memory back.
    fn free(&self, pointer: DevicePointer);

    /// Allocates host memory that the device accesses directly.
    fn alloc_pinned(&self, size: usize) -> Result<NonNull<u8>, DriverError>;

    /// Gives it back.
    ///
    /// # Safety
    /// It came from [`Self::alloc_pinned`] of this context, and no stream will use it any longer.
    unsafe fn free_pinned(&self, pointer: NonNull<u8>);

    /// Makes a stream.
    fn new_stream(&self) -> Result<GpuStream, DriverError>;

    /// Ends a stream; work that it began is completed.
    ///
    /// # Safety
    /// It came from [`Self::new_stream`] of this context, and is no longer used.
    unsafe fn end_stream(&self, stream: GpuStream);

    /// Makes an event, which records the time if asked.
    fn new_event(&self, is_timed: bool) -> Result<GpuEvent, DriverError>;

    /// Ends an event.
    ///
    /// # Safety
    /// It came from [`Self::new_event`] of this context, and is no longer used.
    unsafe fn end_event(&self, event: GpuEvent);

    /// Loads kernels from the text of PTX.
    fn load_module(&self, ptx: &str) -> Result<GpuModule, DriverError>;

    /// Finds a kernel by the name of its entry.
    fn function(&self, module: GpuModule, name: &str) -> Result<GpuFunction, DriverError>;

    /// Returns the multiplier of matrices in this context; fails if no library provides one.
    fn new_blas(&self) -> Result<Box<dyn Blas>, DriverError>;

    /// Enqueues a copy to the device.
    ///
    /// # Safety
    /// `from` is pinned memory of `size` bytes, which is neither written nor freed until the stream
    /// has passed the copy.
    unsafe fn copy_in(
        &self,
        stream: GpuStream,
        from: *const u8,
        to: DevicePointer,
        size: usize,
    ) -> Result<(), DriverError>;

    /// Enqueues a copy from the device.
    ///
    /// # Safety
    /// `to` is pinned memory of `size` bytes, which is neither read, written nor freed until the
    /// stream has passed the copy.
    unsafe fn copy_out(
        &self,
        stream: GpuStream,
        from: DevicePointer,
        to: *mut u8,
        size: usize,
    ) -> Result<(), DriverError>;

    /// Copies to the device and returns when the copy is complete: for weights, never for a batch.
    fn upload(&self, from: &[u8], to: DevicePointer) -> Result<(), DriverError>;

    /// Copies from the device and returns when the copy is complete: for memory of clients, never
    /// for a batch.
    fn download(&self, from: DevicePointer, to: &mut [u8]) -> Result<(), DriverError>;

    /// Returns the handle by which a call in another context names it.
    fn handle(&self) -> GpuContextHandle;

    /// Copies between memory of two contexts, and returns when the copy is complete: for memory of
    /// clients, never for a batch. It is work of this context: a failure breaks no other.
    fn copy_across(&self, from: ContextMemory<'_>, to: ContextMemory<'_>, size: usize) -> Result<(), DriverError>;

    /// Opens memory of the device that another process shares; returns its address and its size.
    fn open_shared(&self, handle: &SharedHandle) -> Result<(DevicePointer, usize), DriverError>;

    /// Closes memory opened by [`Self::open_shared`].
    fn close_shared(&self, pointer: DevicePointer);

    /// Enqueues a kernel.
    fn launch(
        &self,
        stream: GpuStream,
        function: GpuFunction,
        shape: LaunchShape,
        values: &[KernelValue],
    ) -> Result<(), DriverError>;

    /// Enqueues the record of an event.
    fn record(&self, event: GpuEvent, stream: GpuStream) -> Result<(), DriverError>;

    /// Returns true if a recorded event was passed.
    fn is_passed(&self, event: GpuEvent) -> Result<bool, DriverError>;

    /// Returns the time between two passed events that record the time.
    fn elapsed(&self, begin: GpuEvent, end: GpuEvent) -> Result<Duration, DriverError>;

    /// Enqueues a call of a waker on a thread of the driver, which holds a reference until then. If
    /// the context breaks before, the call is never made and the reference is lost.
    fn wake(&self, stream: GpuStream, waker: &Arc<Waker>) -> Result<(), DriverError>;
}

/// Multiplies matrices. Used by one thread; keeps its own state for each shape.
pub trait Blas: Send {
    /// Enqueues a product.
    fn enqueue(&mut self, stream: GpuStream, matmul: &MatrixProduct) -> Result<(), DriverError>;
}

/// The state after a failure of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuFault {
    /// There was no memory for this; the state is unchanged.
    Memory,
    /// The call failed; the state is unchanged.
    Transient,
    /// The context is broken: every later call in it fails, and work that it had begun never ends.
    Sticky,
}

/// A failure of CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The state that it leaves.
    pub fault: GpuFault,
    /// CUDA's name of it, and the call.
    pub text: String,
}

impl DriverError {
    /// A failure that leaves the state unchanged.
    pub fn transient(text: impl Into<String>) -> Self {
        Self { fault: GpuFault::Transient, text: text.into() }
    }

    /// A failure by its number (`CUresult`) and name, and the name of the call.
    pub fn from_code(code: u32, name: &str, call: &str) -> Self {
        Self { fault: fault(code), text: format!("{name} ({code}) in {call}") }
    }

    /// A failure that a library reports by a number of CUDA's runtime, which equals the driver's,
    /// and in its own words.
    pub fn told(code: u32, text: impl Into<String>) -> Self {
        Self { fault: fault(code), text: text.into() }
    }

    /// Returns true if the context is broken.
    pub fn is_sticky(&self) -> bool {
        self.fault == GpuFault::Sticky
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The error for a client, which may try again if only the moment was wrong.
impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        match error.fault {
            GpuFault::Memory | GpuFault::Sticky => Self::unavailable(format!("the GPU failed: {}", error.text)),
            GpuFault::Transient => Self::internal(format!("the GPU failed: {}", error.text)),
        }
    }
}

/// Returns the state after a `CUresult`. For each of the sticky ones `cuda.h` says that the context
/// can no longer be used. Unknown ones count as sticky: using a broken context answers nothing,
/// while replacing an intact one costs a second.
const fn fault(code: u32) -> GpuFault {
    match code {
        2 => GpuFault::Memory,
        // DEINITIALIZED; ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE; CONTEXT_IS_DESTROYED.
        4 | 214 | 220 | 709 => GpuFault::Sticky,
        // LAUNCH_OUT_OF_RESOURCES, LAUNCH_INCOMPATIBLE_TEXTURING, PEER_ACCESS_*, PRIMARY_CONTEXT_ACTIVE,
        // TOO_MANY_PEERS, HOST_MEMORY_*, COOPERATIVE_LAUNCH_TOO_LARGE; the rest of 7xx are exceptions of
        // a kernel.
        701 | 703 | 704 | 705 | 708 | 711 | 712 | 713 | 720 => GpuFault::Transient,
        700..=799 => GpuFault::Sticky,
        // NOT_PERMITTED, NOT_SUPPORTED, and the capture of graphs.
        0..=699 | 800..=804 | 900..=998 => GpuFault::Transient,
        _ => GpuFault::Sticky,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::error::Code;

    #[test]
    fn an_exception_of_a_kernel_is_sticky_and_a_refused_call_is_not() {
        let check = |codes: &[u32], want| {
            for code in codes {
                assert_eq!(fault(*code), want, "{code}");
            }
        };
        check(&[2], GpuFault::Memory);
        // INVALID_VALUE, NO_DEVICE, INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, NOT_FOUND, NOT_READY.
        check(&[1, 100, 200, 209, 218, 500, 600, 701, 720, 800, 801, 900], GpuFault::Transient);
        // ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, ASSERT, ILLEGAL_INSTRUCTION, MISALIGNED_ADDRESS, LAUNCH_FAILED, UNKNOWN.
        check(&[214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999], GpuFault::Sticky);
        check(&[805, 5_000], GpuFault::Sticky);
    }

    #[test]
    fn a_client_is_told_to_come_again_where_that_may_help() {
        let code = |number| Error::from(DriverError::from_code(number, "CUDA_ERROR", "cuMemAlloc")).code();
        assert_eq!((code(2), code(700), code(1)), (Code::Unavailable, Code::Unavailable, Code::Internal));
        let error = Error::from(DriverError::from_code(2, "CUDA_ERROR_OUT_OF_MEMORY", "cuMemAlloc"));
        assert_eq!(error.text(), "the GPU failed: CUDA_ERROR_OUT_OF_MEMORY (2) in cuMemAlloc");
    }
}
