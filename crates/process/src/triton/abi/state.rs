//! `TRITONBACKEND_State*`.

use std::ffi::c_void;

use crate::triton::abi::functions;
use crate::triton::abi::response::read_shape;
use crate::triton::memory::BufferAttributesObject;
use crate::triton::object::{Handle, Items, Out, Owned, Text};
use crate::triton::request::RequestObject;
use crate::triton::state::StateObject;
use crate::triton::types::{MEMORY_CPU, datatype};
use base::error::Error;

functions! {
    TRITONBACKEND_StateNew(
        state: Out<Handle<StateObject>>, request: Handle<RequestObject>, name: Text, kind: u32, shape: Items<i64>,
        dims: u32
    ) {
        state.set(Handle::null())?;
        let request = request.get()?;
        let name = name.bytes().ok_or_else(|| Error::invalid("the name of the state is a null pointer"))?;
        let owned = Owned::new(StateObject::new(&request.answers, name, datatype(kind)?, read_shape(shape, dims)?)?);
        state.set(owned.handle())?;
        request.keep_state(owned);
        Ok(())
    }

    TRITONBACKEND_StateUpdate(state: Handle<StateObject>) { state.get()?.update() }

    TRITONBACKEND_StateBuffer(
        state: Handle<StateObject>, buffer: Out<*mut c_void>, size: u64, kind: Out<u32>, id: Out<i64>
    ) {
        buffer.set(std::ptr::null_mut())?;
        let pointer = state.get()?.allocate(size)?;
        kind.set(MEMORY_CPU)?;
        id.set(0)?;
        buffer.set(pointer)
    }

    TRITONBACKEND_StateBufferAttributes(state: Handle<StateObject>, attributes: Out<Handle<BufferAttributesObject>>) {
        attributes.set(state.get()?.attributes().handle())
    }
}
