//! `TRITONSERVER_InferenceResponse*` and `TRITONSERVER_ResponseAllocator*`.

use std::ffi::c_void;

use crate::triton::abi::{ExportedFunction, answer, functions, values};
use crate::triton::callback::{AllocateFn, AttributesFn, FreeFn, QueryFn, ResponseAllocatorObject, StartFn};
use crate::triton::error::ErrorHandle;
use crate::triton::inference_response::InferenceResponseObject;
use crate::triton::object::{Handle, Items, Out, Owned, Text};
use crate::triton::request::beyond;
use crate::triton::types::datatype_number;
use base::error::Error;

mod allocator {
    use super::*;

    functions! {
        TRITONSERVER_ResponseAllocatorNew(
            allocator: Out<Handle<ResponseAllocatorObject>>, allocate: Option<AllocateFn>, free: Option<FreeFn>,
            start: Option<StartFn>
        ) {
            let lacks = |what: &str| Error::invalid(format!("the {what} function is a null pointer"));
            let owned = Owned::new(ResponseAllocatorObject {
                allocate: allocate.ok_or_else(|| lacks("allocation"))?,
                free: free.ok_or_else(|| lacks("release"))?,
                start,
            });
            allocator.set(owned.handle())?;
            owned.into_handle();
            Ok(())
        }

        // Both name the preferred memory of an output. The server copies outputs to the allocator's
        // memory.
        TRITONSERVER_ResponseAllocatorSetQueryFunction(
            allocator: Handle<ResponseAllocatorObject>, query: Option<QueryFn>
        ) {
            query.ok_or_else(|| Error::invalid("the query function is a null pointer"))?;
            allocator.get().map(drop)
        }

        TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
            allocator: Handle<ResponseAllocatorObject>, attributes: Option<AttributesFn>
        ) {
            attributes.ok_or_else(|| Error::invalid("the attributes function is a null pointer"))?;
            allocator.get().map(drop)
        }

        TRITONSERVER_ResponseAllocatorDelete(allocator: Handle<ResponseAllocatorObject>) { allocator.delete() }

        TRITONSERVER_InferenceResponseDelete(response: Handle<InferenceResponseObject>) { response.delete() }

        TRITONSERVER_InferenceResponseModel(
            response: Handle<InferenceResponseObject>, model: Out<Text>, version: Out<i64>
        ) {
            let response = response.get()?;
            model.set(Text::of(&response.model))?;
            version.set(response.version)
        }

        TRITONSERVER_InferenceResponseId(response: Handle<InferenceResponseObject>, id: Out<Text>) {
            id.set(Text::of(&response.get()?.id))
        }

        TRITONSERVER_InferenceResponseParameterCount(response: Handle<InferenceResponseObject>, count: Out<u32>) {
            count.set(u32::try_from(response.get()?.parameters.len()).unwrap_or(u32::MAX))
        }

        TRITONSERVER_InferenceResponseParameter(
            response: Handle<InferenceResponseObject>, index: u32, name: Out<Text>, kind: Out<u32>,
            value: Out<*const c_void>
        ) {
            let parameters = &response.get()?.parameters;
            let parameter =
                parameters.get(index as usize).ok_or_else(|| beyond(index, parameters.len(), "parameters"))?;
            name.set(Text::of(&parameter.name))?;
            kind.set(parameter.value.kind())?;
            value.set(parameter.value.pointer())
        }

        TRITONSERVER_InferenceResponseOutputCount(response: Handle<InferenceResponseObject>, count: Out<u32>) {
            count.set(u32::try_from(response.get()?.outputs.len()).unwrap_or(u32::MAX))
        }

        TRITONSERVER_InferenceResponseOutput(
            response: Handle<InferenceResponseObject>, index: u32, name: Out<Text>, kind: Out<u32>,
            shape: Out<Items<i64>>, dims: Out<u64>, base: Out<*const c_void>, size: Out<usize>, memory_type: Out<u32>,
            memory_type_id: Out<i64>, user: Out<*mut c_void>
        ) {
            let outputs = &response.get()?.outputs;
            let output = outputs.get(index as usize).ok_or_else(|| beyond(index, outputs.len(), "outputs"))?;
            name.set(Text::of(output.name()))?;
            kind.set(datatype_number(output.datatype))?;
            shape.set(Items::of(&output.shape))?;
            dims.set(output.shape.len() as u64)?;
            base.set(output.memory.pointer as *const c_void)?;
            size.set(output.size)?;
            memory_type.set(output.memory.memory_type)?;
            memory_type_id.set(output.memory.memory_type_id)?;
            user.set(output.memory.user as *mut c_void)
        }
    }
}

values! {
    // The error is the response's: a caller that deletes it anyhow finds it gone, and nothing is freed twice.
    TRITONSERVER_InferenceResponseError(response: Handle<InferenceResponseObject>) -> ErrorHandle,
        or ErrorHandle::null() => {
        match response.get() {
            Ok(response) => response.error.as_ref().map_or_else(Handle::null, |error| error.handle()),
            Err(error) => answer("TRITONSERVER_InferenceResponseError", || Err(error)),
        }
    }
}

pub(super) fn exports() -> Vec<ExportedFunction> {
    let mut all = allocator::exports();
    all.extend(values());
    all
}
