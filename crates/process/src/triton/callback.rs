//! Functions of a backend that are called for its own calls: its response allocator, and the
//! callbacks for responses and released requests.

#![expect(unsafe_code, reason = "calls into functions of a backend")]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use crate::triton::error::{ErrorHandle, outcome};
use crate::triton::memory::BufferAttributesObject;
use crate::triton::object::{AnyHandle, Handle, hosted_object};
use crate::triton::services::log_error;
use crate::triton::types::{MEMORY_CPU, MEMORY_GPU};
use base::error::Error;

/// `TRITONSERVER_ResponseAllocatorAllocFn_t`.
pub(super) type AllocateFn = unsafe extern "C" fn(
    Handle<ResponseAllocatorObject>,
    *const c_char,
    usize,
    u32,
    i64,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut u32,
    *mut i64,
) -> ErrorHandle;
/// `TRITONSERVER_ResponseAllocatorReleaseFn_t`.
pub(super) type FreeFn =
    unsafe extern "C" fn(Handle<ResponseAllocatorObject>, *mut c_void, *mut c_void, usize, u32, i64) -> ErrorHandle;
/// `TRITONSERVER_ResponseAllocatorStartFn_t`.
pub(super) type StartFn = unsafe extern "C" fn(Handle<ResponseAllocatorObject>, *mut c_void) -> ErrorHandle;
/// `TRITONSERVER_ResponseAllocatorQueryFn_t`, which names the preferred memory of outputs; the
/// server makes them elsewhere.
pub(super) type QueryFn = unsafe extern "C" fn(
    Handle<ResponseAllocatorObject>,
    *mut c_void,
    *const c_char,
    *mut usize,
    *mut u32,
    *mut i64,
) -> ErrorHandle;
/// `TRITONSERVER_ResponseAllocatorBufferAttributesFn_t`.
pub(super) type AttributesFn = unsafe extern "C" fn(
    Handle<ResponseAllocatorObject>,
    *const c_char,
    Handle<BufferAttributesObject>,
    *mut c_void,
    *mut c_void,
) -> ErrorHandle;
/// `TRITONSERVER_InferenceResponseCompleteFn_t`.
pub(super) type ResponseFn = unsafe extern "C" fn(AnyHandle, u32, *mut c_void);
/// `TRITONSERVER_InferenceRequestReleaseFn_t`.
pub(super) type ReleaseFn = unsafe extern "C" fn(AnyHandle, u32, *mut c_void);

/// A `TRITONSERVER_ResponseAllocator`.
pub(super) struct ResponseAllocatorObject {
    pub(super) allocate: AllocateFn,
    pub(super) free: FreeFn,
    pub(super) start: Option<StartFn>,
}

hosted_object!(ResponseAllocatorObject, "response allocator", 23);

/// Takes responses.
#[derive(Clone, Copy)]
pub(super) struct ResponseCallback {
    pub(super) allocator: usize,
    pub(super) allocator_user: usize,
    pub(super) function: ResponseFn,
    pub(super) user: usize,
}

/// Takes a request that is released.
#[derive(Clone, Copy)]
pub(super) struct ReleaseCallback {
    pub(super) function: ReleaseFn,
    pub(super) user: usize,
}

/// The functions of an allocator, which may be deleted once its requests are sent.
#[derive(Clone, Copy)]
pub(super) struct AllocatorCalls {
    handle: usize,
    user: usize,
    allocate: AllocateFn,
    free: FreeFn,
    start: Option<StartFn>,
}

/// Memory of an allocator.
pub(super) struct AllocatedOutput {
    calls: AllocatorCalls,
    pub(super) pointer: usize,
    /// The allocator's own, which goes back to it.
    pub(super) user: usize,
    size: usize,
    pub(super) memory_type: u32,
    pub(super) memory_type_id: i64,
}

impl ResponseCallback {
    /// The functions of its allocator.
    ///
    /// # Errors
    /// `InvalidArgument` if it no longer exists.
    pub(super) fn allocator(&self) -> Result<AllocatorCalls, Error> {
        let object = Handle::<ResponseAllocatorObject>::of_address(self.allocator).get()?;
        Ok(AllocatorCalls {
            handle: self.allocator,
            user: self.allocator_user,
            allocate: object.allocate,
            free: object.free,
            start: object.start,
        })
    }

    pub(super) fn call(&self, response: AnyHandle, flags: u32) {
        // SAFETY: the backend gave the function for this, with a pointer of its own; the response is its from now on.
        unsafe { (self.function)(response, flags, self.user as *mut c_void) };
    }
}

impl ReleaseCallback {
    pub(super) fn call(&self, request: AnyHandle, flags: u32) {
        // SAFETY: the backend gave the function for this, with a pointer of its own; the request is its from now on.
        unsafe { (self.function)(request, flags, self.user as *mut c_void) };
    }
}

impl AllocatorCalls {
    /// A response begins.
    ///
    /// # Errors
    /// The allocator's error.
    pub(super) fn start(&self) -> Result<(), Error> {
        let Some(start) = self.start else { return Ok(()) };
        // SAFETY: the backend gave the function for this, with a pointer of its own.
        outcome(unsafe { start(Handle::of_address(self.handle), self.user as *mut c_void) })
    }

    /// Memory for an output.
    ///
    /// # Errors
    /// The allocator's error, or the refusal of memory that the server cannot write.
    pub(super) fn allocate(&self, name: &CStr, size: usize) -> Result<AllocatedOutput, Error> {
        let (mut pointer, mut user) = (null_mut(), null_mut());
        let (mut memory_type, mut memory_type_id) = (MEMORY_CPU, 0);
        // SAFETY: the backend gave the function for this; all places live as long as the call.
        outcome(unsafe {
            (self.allocate)(
                Handle::of_address(self.handle),
                name.as_ptr(),
                size,
                MEMORY_CPU,
                0,
                self.user as *mut c_void,
                &raw mut pointer,
                &raw mut user,
                &raw mut memory_type,
                &raw mut memory_type_id,
            )
        })?;
        let (pointer, user) = (pointer as usize, user as usize);
        let output = AllocatedOutput { calls: *self, pointer, user, size, memory_type, memory_type_id };
        if memory_type >= MEMORY_GPU {
            return Err(Error::unsupported(
                "the response allocator gave memory of a GPU, which this host does not write",
            ));
        }
        Ok(output)
    }
}

impl Drop for AllocatedOutput {
    fn drop(&mut self) {
        let handle = Handle::of_address(self.calls.handle);
        let (pointer, user) = (self.pointer as *mut c_void, self.user as *mut c_void);
        // SAFETY: the allocator gave this memory, and gets it back once.
        let freed =
            unsafe { (self.calls.free)(handle, pointer, user, self.size, self.memory_type, self.memory_type_id) };
        if let Err(error) = outcome(freed) {
            log_error(&format!("a response allocator did not take memory back: {error}"));
        }
    }
}
