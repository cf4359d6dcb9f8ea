//! `TRITONBACKEND_Response*`, `TRITONBACKEND_ResponseFactory*`, `TRITONBACKEND_Output*`.

use std::ffi::c_void;

use crate::triton::abi::functions;
use crate::triton::error::ErrorHandle;
use crate::triton::memory::BufferAttributesObject;
use crate::triton::object::{Handle, Items, Out, Owned, Text};
use crate::triton::request::RequestObject;
use crate::triton::response::{FactoryObject, OutputObject, ResponseObject};
use crate::triton::types::{MEMORY_CPU, datatype, datatype_number};
use base::error::{Code, Error};
use base::limits::RANK_MAX;
use base::tensor::Shape;
use model::parameters::ParameterValue;

/// The places for the description of an output.
type OutputPlaces = (Out<u32>, Out<Items<i64>>, Out<u64>);

functions! {
    TRITONBACKEND_ResponseFactoryNew(factory: Out<Handle<FactoryObject>>, request: Handle<RequestObject>) {
        let owned = Owned::new(FactoryObject { answers: request.get()?.answers.clone() });
        factory.set(owned.handle())?;
        owned.into_handle();
        Ok(())
    }

    TRITONBACKEND_ResponseFactoryDelete(factory: Handle<FactoryObject>) { factory.delete() }

    TRITONBACKEND_ResponseFactorySendFlags(factory: Handle<FactoryObject>, flags: u32) {
        factory.get()?.answers.send_flags(flags)
    }

    TRITONBACKEND_ResponseFactoryIsCancelled(factory: Handle<FactoryObject>, is_cancelled: Out<bool>) {
        is_cancelled.set(factory.get()?.answers.is_cancelled())
    }

    TRITONBACKEND_ResponseNew(response: Out<Handle<ResponseObject>>, request: Handle<RequestObject>) {
        response.set(Handle::null())?;
        response.set(Owned::new(ResponseObject::new(&request.get()?.answers)).into_handle())
    }

    TRITONBACKEND_ResponseNewFromFactory(response: Out<Handle<ResponseObject>>, factory: Handle<FactoryObject>) {
        response.set(Handle::null())?;
        response.set(Owned::new(ResponseObject::new(&factory.get()?.answers)).into_handle())
    }

    TRITONBACKEND_ResponseDelete(response: Handle<ResponseObject>) { response.delete() }

    TRITONBACKEND_ResponseSetStringParameter(response: Handle<ResponseObject>, name: Text, value: Text) {
        let value = value.get("value of the parameter")?.into_owned();
        set_parameter(response, name, ParameterValue::Text(value))
    }

    TRITONBACKEND_ResponseSetIntParameter(response: Handle<ResponseObject>, name: Text, value: i64) {
        set_parameter(response, name, ParameterValue::Int64(value))
    }

    TRITONBACKEND_ResponseSetBoolParameter(response: Handle<ResponseObject>, name: Text, value: bool) {
        set_parameter(response, name, ParameterValue::Bool(value))
    }

    TRITONBACKEND_ResponseSetDoubleParameter(response: Handle<ResponseObject>, name: Text, value: f64) {
        set_parameter(response, name, ParameterValue::Double(value))
    }

    TRITONBACKEND_ResponseOutput(
        response: Handle<ResponseObject>, output: Out<Handle<OutputObject>>, name: Text, kind: u32,
        shape: Items<i64>, dims: u32
    ) {
        output.set(Handle::null())?;
        let name = name.bytes().ok_or_else(|| Error::invalid("the name of the output is a null pointer"))?;
        output.set(response.get()?.add_output(name, datatype(kind)?, read_shape(shape, dims)?)?)
    }

    TRITONBACKEND_ResponseSend(response: Handle<ResponseObject>, flags: u32, error: ErrorHandle) {
        let error = error.get_if_given()?.map(|error| error.to_error());
        response.take()?.send(flags, error)
    }

    TRITONBACKEND_OutputBuffer(
        output: Handle<OutputObject>, buffer: Out<*mut c_void>, size: u64, kind: Out<u32>, id: Out<i64>
    ) {
        buffer.set(std::ptr::null_mut())?;
        let pointer = output.get()?.allocate(size)?;
        kind.set(MEMORY_CPU)?;
        id.set(0)?;
        buffer.set(pointer)
    }

    TRITONBACKEND_OutputBufferAttributes(
        output: Handle<OutputObject>, attributes: Out<Handle<BufferAttributesObject>>
    ) {
        attributes.set(output.get()?.attributes().handle())
    }

    TRITONBACKEND_InferenceResponseOutput(
        response: Handle<ResponseObject>, index: u32, name: Out<Text>, kind: Out<u32>, shape: Out<Items<i64>>,
        dims: Out<u64>
    ) {
        let response = response.get()?;
        let describe = |output: &OutputObject| {
            name.set(Text::of(output.name()))?;
            describe(output, (kind, shape, dims))
        };
        let found = response.read_output(|at, _| at == index as usize, describe);
        let count = response.output_count();
        found.unwrap_or_else(|| {
            Err(Error::invalid(format!("out of bounds index {index}: response has {count} outputs")))
        })
    }

    TRITONBACKEND_InferenceResponseOutputByName(
        response: Handle<ResponseObject>, name: Text, kind: Out<u32>, shape: Out<Items<i64>>, dims: Out<u64>
    ) {
        let response = response.get()?;
        let name = name.bytes().ok_or_else(|| Error::invalid("the name of the output is a null pointer"))?;
        let found = response
            .read_output(|_, output| output.name().to_bytes() == name, |output| describe(output, (kind, shape, dims)));
        found.unwrap_or_else(|| {
            let name = String::from_utf8_lossy(name);
            Err(Error::new(Code::NotFound, format!("Output name {name} not found.")))
        })
    }
}

fn describe(output: &OutputObject, (kind, shape, dims): OutputPlaces) -> Result<(), Error> {
    kind.set(datatype_number(output.datatype))?;
    shape.set(Items::of(&output.shape))?;
    dims.set(output.shape.len() as u64)
}

fn set_parameter(response: Handle<ResponseObject>, name: Text, value: ParameterValue) -> Result<(), Error> {
    let name = name.get("name of the parameter")?;
    response.get()?.set_parameter(&name, value);
    Ok(())
}

/// A shape that a backend gives.
///
/// # Errors
/// `InvalidArgument` for more dimensions than the protocol's, or one below zero.
pub(super) fn read_shape(shape: Items<i64>, dims: u32) -> Result<Shape, Error> {
    if dims as usize > RANK_MAX {
        return Err(Error::invalid(format!("a shape has {dims} dimensions, more than the {RANK_MAX} allowed")));
    }
    let shape = shape.get(u64::from(dims), "dimensions of the shape")?;
    match shape.iter().find(|size| **size < 0) {
        Some(size) => Err(Error::invalid(format!("a dimension of the shape is {size}"))),
        None => Ok(Shape::from_slice(shape)),
    }
}
