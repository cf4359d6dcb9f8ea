//! `TRITONBACKEND_Input*`. An input is one buffer in the memory of the host, for any host policy.

use std::ffi::c_void;
use std::ptr::null;

use crate::triton::abi::functions;
use crate::triton::memory::BufferAttributesObject;
use crate::triton::object::{Handle, Items, Out, Text};
use crate::triton::request::InputObject;
use crate::triton::types::{MEMORY_CPU, datatype_number};
use base::error::Error;
use base::tensor::mapped;

/// The places for the properties of an input; each may be a null pointer.
struct PropertyPlaces {
    name: Out<Text>,
    datatype: Out<u32>,
    shape: Out<Items<i64>>,
    dims: Out<u32>,
    size: Out<u64>,
    buffers: Out<u32>,
}

impl PropertyPlaces {
    fn fill(&self, input: &InputObject) {
        let tensor = &input.tensor;
        self.name.set_if_asked(Text::of(input.name()));
        self.datatype.set_if_asked(datatype_number(tensor.datatype));
        self.shape.set_if_asked(Items::of(&tensor.shape));
        self.dims.set_if_asked(u32::try_from(tensor.shape.len()).unwrap_or(u32::MAX));
        self.size.set_if_asked(tensor.contents.len() as u64);
        self.buffers.set_if_asked(1);
    }
}

functions! {
    TRITONBACKEND_InputProperties(
        input: Handle<InputObject>, name: Out<Text>, datatype: Out<u32>, shape: Out<Items<i64>>, dims: Out<u32>,
        size: Out<u64>, buffers: Out<u32>
    ) {
        PropertyPlaces { name, datatype, shape, dims, size, buffers }.fill(input.get()?);
        Ok(())
    }

    TRITONBACKEND_InputPropertiesForHostPolicy(
        input: Handle<InputObject>, _policy: Text, name: Out<Text>, datatype: Out<u32>, shape: Out<Items<i64>>,
        dims: Out<u32>, size: Out<u64>, buffers: Out<u32>
    ) {
        PropertyPlaces { name, datatype, shape, dims, size, buffers }.fill(input.get()?);
        Ok(())
    }

    TRITONBACKEND_InputBuffer(
        input: Handle<InputObject>, index: u32, buffer: Out<*const c_void>, size: Out<u64>, kind: Out<u32>,
        id: Out<i64>
    ) {
        give_buffer(input, index, buffer, size, kind, id)
    }

    TRITONBACKEND_InputBufferForHostPolicy(
        input: Handle<InputObject>, _policy: Text, index: u32, buffer: Out<*const c_void>, size: Out<u64>,
        kind: Out<u32>, id: Out<i64>
    ) {
        give_buffer(input, index, buffer, size, kind, id)
    }

    TRITONBACKEND_InputBufferAttributes(
        input: Handle<InputObject>, index: u32, buffer: Out<*const c_void>,
        attributes: Out<Handle<BufferAttributesObject>>
    ) {
        buffer.set(null())?;
        attributes.set(Handle::null())?;
        let input = input.get()?;
        check_index(input, index)?;
        buffer.set(mapped(&input.tensor.contents).as_ptr().cast())?;
        attributes.set(input.attributes().handle())
    }
}

fn give_buffer(
    input: Handle<InputObject>,
    index: u32,
    buffer: Out<*const c_void>,
    size: Out<u64>,
    kind: Out<u32>,
    id: Out<i64>,
) -> Result<(), Error> {
    buffer.set(null())?;
    size.set(0)?;
    let input = input.get()?;
    check_index(input, index)?;
    let contents = mapped(&input.tensor.contents);
    buffer.set(contents.as_ptr().cast())?;
    size.set(contents.len() as u64)?;
    kind.set(MEMORY_CPU)?;
    id.set(0)
}

fn check_index(input: &InputObject, index: u32) -> Result<(), Error> {
    if index == 0 {
        return Ok(());
    }
    let name = input.name().to_string_lossy();
    Err(Error::invalid(format!("out of bounds index {index} for input '{name}', which has 1 buffer")))
}
