//! What the GPU executor needs of CUDA and nothing more: the one trait between it and
//! [`super::cuda`], or the fake driver of the tests. Handles are numbers that drivers alone make, since
//! CUDA follows them; [`super::memory`] and [`super::slot`] own what they name. No call that a batch makes waits for
//! the device.

#![expect(unsafe_code, reason = "calls that are given host memory by its address")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::error::Error;

/// CUDA on this machine, with at least one device. Shared by all threads.
pub trait GpuDriver: Send + Sync {
    /// The devices, by their number.
    fn devices(&self) -> &[DeviceProperties];

    /// A context of its own on a device: what breaks in it breaks in no other.
    fn new_context(&self, device: u32) -> Result<Arc<dyn GpuContext>, DriverError>;

    /// The context of a device that all libraries share which choose none by themselves, those on CUDA's
    /// runtime. One that broke is recreated by whoever gives it back, who must be the last that has it.
    fn primary_context(&self, device: u32) -> Result<Arc<dyn GpuContext>, DriverError>;
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Its number, as `gpus` of an instance group has it.
    pub index: u32,
    /// `NVIDIA H100 80GB HBM3`.
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

/// A place in the memory of a device.
pub type DevicePointer = u64;

/// By what one process lets another open its memory of a device (`cudaIpcMemHandle_t`).
pub type SharedHandle = [u8; 64];

/// Declares the handles of a context: numbers that only a driver makes, and nobody computes with.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(usize);

        impl $name {
            /// The handle of a number.
            ///
            /// # Safety
            /// The driver that is handed it made the number for such a thing, in the context that it is used with.
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
    /// Work in order; that of two streams goes side by side.
    GpuStream;
    /// A place in a stream that was, or will be, passed.
    GpuEvent;
    /// Kernels that were loaded.
    GpuModule;
    /// One kernel of them.
    GpuFunction;
}

/// The value of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelValue {
    /// A place in device memory.
    Pointer(DevicePointer),
    /// `.u32`.
    U32(u32),
    /// `.u64`.
    U64(u64),
}

/// How many threads run a kernel, and what a block of them shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x and y.
    pub grid: [u32; 2],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_size: u32,
}

/// `output[rows, columns] = input[rows, inner] x weight[inner, columns] (+ bias[columns])`, in FP32,
/// row major, and what is below zero cut off where asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixProduct {
    /// Rows of the input.
    pub rows: usize,
    /// Columns of the input.
    pub inner: usize,
    /// Columns of the output.
    pub columns: usize,
    /// Whether the weight lies in memory as `[columns, inner]`.
    pub is_transposed: bool,
    /// Whether a ReLU follows.
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

/// A context on one device. Its calls may be made by any thread. Memory of the device that a call
/// names wrongly breaks the context and nothing else; host memory is named to `unsafe` calls alone.
pub trait GpuContext: Send + Sync {
    /// The device.
    fn device(&self) -> &DeviceProperties;

    /// Bytes of device memory that are free.
    fn free_memory(&self) -> Result<usize, DriverError>;

    /// Says that a library was called on this thread which may have made another context its own.
    fn handle_foreign_call(&self);

    /// Takes device memory.
    fn alloc(&self, size: usize) -> Result<DevicePointer, DriverError>;

    /// Gives device memory back.
    fn free(&self, pointer: DevicePointer);

    /// Takes host memory that the device reads and writes by itself.
    fn alloc_pinned(&self, size: usize) -> Result<NonNull<u8>, DriverError>;

    /// Gives it back.
    ///
    /// # Safety
    /// It came from [`Self::alloc_pinned`] of this context, and no stream will use it any more.
    unsafe fn free_pinned(&self, pointer: NonNull<u8>);

    /// Makes a stream.
    fn new_stream(&self) -> Result<GpuStream, DriverError>;

    /// Ends a stream; what it began goes on to its end.
    ///
    /// # Safety
    /// It came from [`Self::new_stream`] of this context, and nobody uses it any more.
    unsafe fn end_stream(&self, stream: GpuStream);

    /// Makes an event, which keeps the time if asked.
    fn new_event(&self, is_timed: bool) -> Result<GpuEvent, DriverError>;

    /// Ends an event.
    ///
    /// # Safety
    /// It came from [`Self::new_event`] of this context, and nobody uses it any more.
    unsafe fn end_event(&self, event: GpuEvent);

    /// Loads kernels from the text of PTX.
    fn load_module(&self, ptx: &str) -> Result<GpuModule, DriverError>;

    /// Finds a kernel by the name of its entry.
    fn function(&self, module: GpuModule, name: &str) -> Result<GpuFunction, DriverError>;

    /// What multiplies matrices in this context; fails where no library does.
    fn new_blas(&self) -> Result<Box<dyn Blas>, DriverError>;

    /// Enqueues a copy to the device.
    ///
    /// # Safety
    /// `from` is pinned memory of `size` bytes, which nobody writes or gives back until the stream
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
    /// `to` is pinned memory of `size` bytes, which nobody reads, writes or gives back until the
    /// stream has passed the copy.
    unsafe fn copy_out(
        &self,
        stream: GpuStream,
        from: DevicePointer,
        to: *mut u8,
        size: usize,
    ) -> Result<(), DriverError>;

    /// Copies to the device and returns when the bytes are there: for weights, never for a batch.
    fn upload(&self, from: &[u8], to: DevicePointer) -> Result<(), DriverError>;

    /// Copies from the device and returns when the bytes are here: for memory of clients, never for a batch.
    fn download(&self, from: DevicePointer, to: &mut [u8]) -> Result<(), DriverError>;

    /// What a call in another context names it by.
    fn handle(&self) -> GpuContextHandle;

    /// Copies between memory of two contexts, and returns when the bytes are there: for memory of clients, never for a
    /// batch. It is work of this context: a failure breaks no other.
    fn copy_across(
        &self,
        from: (&dyn GpuContext, DevicePointer),
        to: (&dyn GpuContext, DevicePointer),
        size: usize,
    ) -> Result<(), DriverError>;

    /// Opens memory of the device that another process shares: where it begins, and how large it is.
    fn open_shared(&self, handle: &SharedHandle) -> Result<(DevicePointer, usize), DriverError>;

    /// Closes what [`Self::open_shared`] gave.
    fn close_shared(&self, pointer: DevicePointer);

    /// Enqueues a kernel.
    fn launch(
        &self,
        stream: GpuStream,
        function: GpuFunction,
        shape: LaunchShape,
        values: &[KernelValue],
    ) -> Result<(), DriverError>;

    /// Enqueues the passing of an event.
    fn record(&self, event: GpuEvent, stream: GpuStream) -> Result<(), DriverError>;

    /// Whether an event that was recorded was passed.
    fn is_passed(&self, event: GpuEvent) -> Result<bool, DriverError>;

    /// The time between two events that were passed and keep the time.
    fn elapsed(&self, begin: GpuEvent, end: GpuEvent) -> Result<Duration, DriverError>;

    /// Enqueues a call of a waker, on a thread of the driver's, which shares it until then. It is never
    /// made where the context breaks before: then its share is lost.
    fn wake(&self, stream: GpuStream, waker: &Arc<Waker>) -> Result<(), DriverError>;
}

/// Multiplies matrices. Used by one thread; knows by itself what it needs for which shape.
pub trait Blas: Send {
    /// Enqueues a product.
    fn enqueue(&mut self, stream: GpuStream, matmul: &MatrixProduct) -> Result<(), DriverError>;
}

/// What a failure of CUDA leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuFault {
    /// There was no memory for this; all is as before.
    Memory,
    /// The call failed; all is as before.
    Transient,
    /// The context is broken: every later call in it fails, and what it had begun never ends.
    Sticky,
}

/// A failure of CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// What it leaves behind.
    pub fault: GpuFault,
    /// CUDA's name of it, and what was tried.
    pub text: String,
}

impl DriverError {
    /// A failure that leaves all as it was.
    pub fn transient(text: impl Into<String>) -> Self {
        Self { fault: GpuFault::Transient, text: text.into() }
    }

    /// A failure by its number (`CUresult`) and name, of a call by its.
    pub fn from_code(code: u32, name: &str, call: &str) -> Self {
        Self { fault: fault(code), text: format!("{name} ({code}) in {call}") }
    }

    /// A failure that a library tells by a number of CUDA's runtime, which are those of the driver, and
    /// in its own words.
    pub fn told(code: u32, text: impl Into<String>) -> Self {
        Self { fault: fault(code), text: text.into() }
    }

    /// Whether the context is broken.
    pub fn is_sticky(&self) -> bool {
        self.fault == GpuFault::Sticky
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a client is told: it may try again where nothing but the moment was wrong.
impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        match error.fault {
            GpuFault::Memory | GpuFault::Sticky => Self::unavailable(format!("the GPU failed: {}", error.text)),
            GpuFault::Transient => Self::internal(format!("the GPU failed: {}", error.text)),
        }
    }
}

/// What a `CUresult` leaves behind. `cuda.h` says of each of the sticky ones that the context cannot
/// be used any more; what is not known is taken for one, since a broken context that is used on
/// answers nothing, and one that is replaced for nothing costs a second.
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
    use crate::error::Code;

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
