//! `TRITONCACHE_*`: the functions of `tritoncache.h` that a response cache calls, and the two that Triton exports beside it
//! (`tritoncache.cc`).

use std::ffi::c_void;

use crate::triton::abi::functions;
use crate::triton::cache_object::{CacheAllocatorObject, CacheEntryObject};
use crate::triton::memory::BufferAttributesObject;
use crate::triton::object::{Handle, Out, Owned};
use crate::triton::types::MEMORY_CPU;

/// The version of `tritoncache.h`.
const CACHE_API: (u32, u32) = (0, 1);

functions! {
    TRITONCACHE_ApiVersion(major: Out<u32>, minor: Out<u32>) {
        major.set(CACHE_API.0)?;
        minor.set(CACHE_API.1)
    }

    TRITONCACHE_CacheEntryNew(entry: Out<Handle<CacheEntryObject>>) {
        let owned = Owned::new(CacheEntryObject::default());
        entry.set(owned.handle())?;
        owned.into_handle();
        Ok(())
    }

    TRITONCACHE_CacheEntryDelete(entry: Handle<CacheEntryObject>) { entry.take().map(drop) }

    TRITONCACHE_CacheEntryBufferCount(entry: Handle<CacheEntryObject>, count: Out<usize>) {
        count.set(entry.get()?.count())
    }

    TRITONCACHE_CacheEntryAddBuffer(
        entry: Handle<CacheEntryObject>, base: *mut c_void, attributes: Handle<BufferAttributesObject>
    ) {
        entry.get()?.add(base, attributes.get()?.get())
    }

    TRITONCACHE_CacheEntryGetBuffer(
        entry: Handle<CacheEntryObject>,
        index: usize,
        base: Out<*mut c_void>,
        attributes: Handle<BufferAttributesObject>,
    ) {
        let (address, size) = entry.get()?.buffer(index)?;
        let attributes = attributes.get()?;
        base.set(address)?;
        attributes.change(|attributes| {
            (attributes.size, attributes.memory_type, attributes.memory_type_id) = (size, MEMORY_CPU, 0);
        });
        Ok(())
    }

    TRITONCACHE_CacheEntrySetBuffer(
        entry: Handle<CacheEntryObject>, index: usize, base: *mut c_void, attributes: Handle<BufferAttributesObject>
    ) {
        let attributes = attributes.get_if_given()?.map(BufferAttributesObject::get);
        entry.get()?.set(index, base, attributes)
    }

    TRITONCACHE_Copy(allocator: Handle<CacheAllocatorObject>, entry: Handle<CacheEntryObject>) {
        allocator.get()?.copy(entry.get()?)
    }
}
