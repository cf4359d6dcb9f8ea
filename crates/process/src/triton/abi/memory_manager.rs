//! `TRITONBACKEND_MemoryManager*`.

use std::ffi::c_void;

use crate::triton::abi::functions;
use crate::triton::memory::MemoryManagerObject;
use crate::triton::object::{Handle, Out};

functions! {
    TRITONBACKEND_MemoryManagerAllocate(
        manager: Handle<MemoryManagerObject>, buffer: Out<*mut c_void>, kind: u32, _id: i64, size: u64
    ) {
        buffer.set(std::ptr::null_mut())?;
        buffer.set(manager.get()?.allocate(kind, size)?)
    }

    TRITONBACKEND_MemoryManagerFree(manager: Handle<MemoryManagerObject>, buffer: *mut c_void, kind: u32, _id: i64) {
        manager.get()?.free(buffer, kind)
    }
}
