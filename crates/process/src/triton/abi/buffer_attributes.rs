//! `TRITONSERVER_BufferAttributes*`.

use std::ffi::c_void;

use crate::triton::abi::functions;
use crate::triton::memory::BufferAttributesObject;
use crate::triton::object::{Handle, Out, Owned};

functions! {
    TRITONSERVER_BufferAttributesNew(attributes: Out<Handle<BufferAttributesObject>>) {
        let owned = Owned::new(BufferAttributesObject::of_host(0));
        attributes.set(owned.handle())?;
        owned.into_handle();
        Ok(())
    }

    TRITONSERVER_BufferAttributesDelete(attributes: Handle<BufferAttributesObject>) { attributes.delete() }

    TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes: Handle<BufferAttributesObject>, id: i64) {
        attributes.get()?.change(|attributes| attributes.memory_type_id = id);
        Ok(())
    }

    TRITONSERVER_BufferAttributesSetMemoryType(attributes: Handle<BufferAttributesObject>, kind: u32) {
        attributes.get()?.change(|attributes| attributes.memory_type = kind);
        Ok(())
    }

    TRITONSERVER_BufferAttributesSetCudaIpcHandle(attributes: Handle<BufferAttributesObject>, handle: *mut c_void) {
        attributes.get()?.change(|attributes| attributes.cuda_ipc_handle = handle as usize);
        Ok(())
    }

    TRITONSERVER_BufferAttributesSetByteSize(attributes: Handle<BufferAttributesObject>, size: usize) {
        attributes.get()?.change(|attributes| attributes.size = size);
        Ok(())
    }

    TRITONSERVER_BufferAttributesMemoryTypeId(attributes: Handle<BufferAttributesObject>, id: Out<i64>) {
        id.set(attributes.get()?.get().memory_type_id)
    }

    TRITONSERVER_BufferAttributesMemoryType(attributes: Handle<BufferAttributesObject>, kind: Out<u32>) {
        kind.set(attributes.get()?.get().memory_type)
    }

    TRITONSERVER_BufferAttributesCudaIpcHandle(attributes: Handle<BufferAttributesObject>, handle: Out<*mut c_void>) {
        handle.set(attributes.get()?.get().cuda_ipc_handle())
    }

    TRITONSERVER_BufferAttributesByteSize(attributes: Handle<BufferAttributesObject>, size: Out<usize>) {
        size.set(attributes.get()?.get().size)
    }
}
