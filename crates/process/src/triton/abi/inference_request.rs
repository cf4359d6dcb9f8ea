//! `TRITONSERVER_InferenceRequest*`.

use std::ffi::c_void;

use crate::triton::abi::functions;
use crate::triton::abi::response::read_shape;
use crate::triton::callback::{ReleaseCallback, ReleaseFn, ResponseAllocatorObject, ResponseCallback, ResponseFn};
use crate::triton::error::c_text;
use crate::triton::inference_request::InferenceRequestObject;
use crate::triton::memory::BufferAttributesObject;
use crate::triton::object::{Handle, Items, Out, Owned, Text};
use crate::triton::server_object::ServerObject;
use crate::triton::types::datatype;
use base::error::Error;
use model::CorrelationId;
use model::parameters::ParameterValue;

/// A request as it is passed.
type RequestHandle = Handle<InferenceRequestObject>;

functions! {
    TRITONSERVER_InferenceRequestNew(
        request: Out<RequestHandle>, server: Handle<ServerObject>, model: Text, version: i64
    ) {
        server.get()?;
        let owned = Owned::new(InferenceRequestObject::new(&model.get("name of the model")?, version)?);
        request.set(owned.handle())?;
        owned.into_handle();
        Ok(())
    }

    TRITONSERVER_InferenceRequestDelete(request: RequestHandle) {
        if request.get_if_given()?.is_some_and(|request| request.is_sent()) {
            return Err(Error::invalid("the inference request is on its way: delete it in its release callback"));
        }
        request.delete()
    }

    TRITONSERVER_InferenceRequestId(request: RequestHandle, id: Out<Text>) {
        id.set(Text::of(&request.get()?.lock().id))
    }

    TRITONSERVER_InferenceRequestSetId(request: RequestHandle, id: Text) {
        let id = c_text(&id.get("id")?);
        request.get()?.change(|fields| fields.id = id)
    }

    TRITONSERVER_InferenceRequestFlags(request: RequestHandle, flags: Out<u32>) {
        flags.set(request.get()?.lock().flags)
    }

    TRITONSERVER_InferenceRequestSetFlags(request: RequestHandle, flags: u32) {
        request.get()?.change(|fields| fields.flags = flags)
    }

    TRITONSERVER_InferenceRequestCorrelationId(request: RequestHandle, id: Out<u64>) {
        match &request.get()?.lock().correlation_id {
            None => id.set(0),
            Some(CorrelationId::Number(number) | CorrelationId::Own(number)) => id.set(*number),
            Some(CorrelationId::Text(_)) => Err(Error::invalid("given request's correlation id is not an unsigned int")),
        }
    }

    TRITONSERVER_InferenceRequestCorrelationIdString(request: RequestHandle, id: Out<Text>) {
        let fields = request.get()?.lock();
        match &fields.correlation_id {
            Some(CorrelationId::Text(_)) => id.set(Text::of(&fields.correlation_text)),
            _ => Err(Error::invalid("given request's correlation id is not a string")),
        }
    }

    TRITONSERVER_InferenceRequestSetCorrelationId(request: RequestHandle, id: u64) {
        request.get()?.change(|fields| fields.correlation_id = CorrelationId::from_number(id))
    }

    TRITONSERVER_InferenceRequestSetCorrelationIdString(request: RequestHandle, id: Text) {
        let id = id.get("correlation id")?;
        request.get()?.change(|fields| {
            fields.correlation_id = CorrelationId::from_text(&id);
            fields.correlation_text = c_text(&id);
        })
    }

    TRITONSERVER_InferenceRequestCancel(request: RequestHandle) {
        request.get()?.cancel();
        Ok(())
    }

    TRITONSERVER_InferenceRequestIsCancelled(request: RequestHandle, is_cancelled: Out<bool>) {
        is_cancelled.set(request.get()?.is_cancelled())
    }

    TRITONSERVER_InferenceRequestPriority(request: RequestHandle, priority: Out<u32>) {
        priority.set(u32::try_from(request.get()?.lock().priority).unwrap_or(u32::MAX))
    }

    TRITONSERVER_InferenceRequestPriorityUInt64(request: RequestHandle, priority: Out<u64>) {
        priority.set(request.get()?.lock().priority)
    }

    TRITONSERVER_InferenceRequestSetPriority(request: RequestHandle, priority: u32) {
        request.get()?.change(|fields| fields.priority = u64::from(priority))
    }

    TRITONSERVER_InferenceRequestSetPriorityUInt64(request: RequestHandle, priority: u64) {
        request.get()?.change(|fields| fields.priority = priority)
    }

    TRITONSERVER_InferenceRequestTimeoutMicroseconds(request: RequestHandle, timeout: Out<u64>) {
        timeout.set(request.get()?.lock().timeout_us)
    }

    TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request: RequestHandle, timeout: u64) {
        request.get()?.change(|fields| fields.timeout_us = timeout)
    }

    TRITONSERVER_InferenceRequestAddInput(
        request: RequestHandle, name: Text, kind: u32, shape: Items<i64>, dims: u64
    ) {
        let dims = u32::try_from(dims).unwrap_or(u32::MAX);
        request.get()?.add_input(&name.get("name of the input")?, datatype(kind)?, read_shape(shape, dims)?)
    }

    TRITONSERVER_InferenceRequestRemoveInput(request: RequestHandle, name: Text) {
        let name = name.get("name of the input")?;
        let removed = request.get()?.change(|fields| {
            let found = fields.inputs.iter().position(|input| input.name == name);
            found.map(|found| drop(fields.inputs.remove(found)))
        })?;
        removed.ok_or_else(|| Error::invalid(format!("input '{name}' does not exist in request")))
    }

    TRITONSERVER_InferenceRequestRemoveAllInputs(request: RequestHandle) {
        request.get()?.change(|fields| fields.inputs.clear())
    }

    TRITONSERVER_InferenceRequestAppendInputData(
        request: RequestHandle, name: Text, base: *const c_void, size: usize, memory_type: u32, _id: i64
    ) {
        request.get()?.append(&name.get("name of the input")?, base, size, memory_type)
    }

    TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
        request: RequestHandle, name: Text, base: *const c_void, size: usize, memory_type: u32, _id: i64, _policy: Text
    ) {
        request.get()?.append(&name.get("name of the input")?, base, size, memory_type)
    }

    TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
        request: RequestHandle, name: Text, base: *const c_void, attributes: Handle<BufferAttributesObject>
    ) {
        let attributes = attributes.get()?.get();
        request.get()?.append(&name.get("name of the input")?, base, attributes.size, attributes.memory_type)
    }

    TRITONSERVER_InferenceRequestRemoveAllInputData(request: RequestHandle, name: Text) {
        request.get()?.remove_contents(&name.get("name of the input")?)
    }

    TRITONSERVER_InferenceRequestAddRequestedOutput(request: RequestHandle, name: Text) {
        let name = name.get("name of the output")?.into_owned();
        request.get()?.change(|fields| {
            if !fields.outputs.contains(&name) {
                fields.outputs.push(name);
            }
        })
    }

    TRITONSERVER_InferenceRequestRemoveRequestedOutput(request: RequestHandle, name: Text) {
        let name = name.get("name of the output")?;
        request.get()?.change(|fields| fields.outputs.retain(|output| *output != name))
    }

    TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(request: RequestHandle) {
        request.get()?.change(|fields| fields.outputs.clear())
    }

    TRITONSERVER_InferenceRequestSetReleaseCallback(
        request: RequestHandle, function: Option<ReleaseFn>, user: *mut c_void
    ) {
        let function = function.ok_or_else(|| Error::invalid("the release callback is a null pointer"))?;
        request.get()?.change(|fields| fields.release = Some(ReleaseCallback { function, user: user as usize }))
    }

    TRITONSERVER_InferenceRequestSetResponseCallback(
        request: RequestHandle, allocator: Handle<ResponseAllocatorObject>, allocator_user: *mut c_void,
        function: Option<ResponseFn>, user: *mut c_void
    ) {
        allocator.get()?;
        let function = function.ok_or_else(|| Error::invalid("the response callback is a null pointer"))?;
        let (allocator, allocator_user, user) = (allocator.address(), allocator_user as usize, user as usize);
        let callback = ResponseCallback { allocator, allocator_user, function, user };
        request.get()?.change(|fields| fields.response = Some(callback))
    }

    TRITONSERVER_InferenceRequestSetStringParameter(request: RequestHandle, key: Text, value: Text) {
        let value = value.get("value of the parameter")?.into_owned();
        set_parameter(request, key, ParameterValue::Text(value))
    }

    TRITONSERVER_InferenceRequestSetIntParameter(request: RequestHandle, key: Text, value: i64) {
        set_parameter(request, key, ParameterValue::Int64(value))
    }

    TRITONSERVER_InferenceRequestSetBoolParameter(request: RequestHandle, key: Text, value: bool) {
        set_parameter(request, key, ParameterValue::Bool(value))
    }

    TRITONSERVER_InferenceRequestSetDoubleParameter(request: RequestHandle, key: Text, value: f64) {
        set_parameter(request, key, ParameterValue::Double(value))
    }
}

fn set_parameter(request: RequestHandle, key: Text, value: ParameterValue) -> Result<(), Error> {
    let key = key.get("name of the parameter")?;
    request.get()?.change(|fields| fields.set_parameter(&key, value))
}
