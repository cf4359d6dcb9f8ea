//! `TRITONBACKEND_Request*`.

use std::ffi::c_void;

use crate::triton::abi::functions;
use crate::triton::object::{Handle, Out, Text};
use crate::triton::request::{InputObject, RequestObject, beyond};
use crate::triton::trace::TraceObject;
use crate::triton::types::{MEMORY_CPU, RELEASE_ALL, RELEASE_RESCHEDULE};
use base::error::Error;

functions! {
    TRITONBACKEND_RequestId(request: Handle<RequestObject>, id: Out<Text>) { id.set(Text::of(request.get()?.id())) }

    TRITONBACKEND_RequestCorrelationId(request: Handle<RequestObject>, id: Out<u64>) {
        let number = request.get()?.correlation_number();
        id.set(number.ok_or_else(|| Error::invalid("correlation ID in request is not an unsigned int"))?)
    }

    TRITONBACKEND_RequestCorrelationIdString(request: Handle<RequestObject>, id: Out<Text>) {
        let text = request.get()?.correlation_text();
        id.set(Text::of(text.ok_or_else(|| Error::invalid("correlation ID in request is not a string"))?))
    }

    TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request: Handle<RequestObject>, timeout: Out<u64>) {
        let details = request.get()?.details.as_deref();
        let micros = details.map_or(0, |details| u64::try_from(details.timeout.as_micros()).unwrap_or(u64::MAX));
        timeout.set(micros)
    }

    TRITONBACKEND_RequestFlags(request: Handle<RequestObject>, flags: Out<u32>) {
        flags.set(request.get()?.details.as_deref().map_or(0, |details| details.flags))
    }

    TRITONBACKEND_RequestIsCancelled(request: Handle<RequestObject>, is_cancelled: Out<bool>) {
        is_cancelled.set(request.get()?.answers.is_cancelled())
    }

    TRITONBACKEND_RequestParameterCount(request: Handle<RequestObject>, count: Out<u32>) {
        count.set(u32::try_from(request.get()?.parameters().len()).unwrap_or(u32::MAX))
    }

    TRITONBACKEND_RequestParameter(
        request: Handle<RequestObject>, index: u32, key: Out<Text>, kind: Out<u32>, value: Out<*const c_void>
    ) {
        let parameters = request.get()?.parameters();
        let parameter =
            parameters.get(index as usize).ok_or_else(|| beyond(index, parameters.len(), "parameters"))?;
        key.set(Text::of(&parameter.name))?;
        kind.set(parameter.value.kind())?;
        value.set(parameter.value.pointer())
    }

    TRITONBACKEND_RequestInputCount(request: Handle<RequestObject>, count: Out<u32>) {
        count.set(u32::try_from(request.get()?.inputs.len()).unwrap_or(u32::MAX))
    }

    TRITONBACKEND_RequestInputName(request: Handle<RequestObject>, index: u32, name: Out<Text>) {
        name.set(Text::null())?;
        name.set(Text::of(request.get()?.input(index)?.name()))
    }

    TRITONBACKEND_RequestInput(request: Handle<RequestObject>, name: Text, input: Out<Handle<InputObject>>) {
        input.set(Handle::null())?;
        let request = request.get()?;
        let wanted = name.bytes().ok_or_else(|| Error::invalid("the name of the input is a null pointer"))?;
        let found = request.inputs.iter().find(|input| input.name().to_bytes() == wanted);
        let found = found.ok_or_else(|| {
            Error::invalid(format!("unknown request input name {}", String::from_utf8_lossy(wanted)))
        })?;
        input.set(found.handle())
    }

    TRITONBACKEND_RequestInputByIndex(request: Handle<RequestObject>, index: u32, input: Out<Handle<InputObject>>) {
        input.set(Handle::null())?;
        input.set(request.get()?.input(index)?.handle())
    }

    TRITONBACKEND_RequestOutputCount(request: Handle<RequestObject>, count: Out<u32>) {
        count.set(u32::try_from(request.get()?.outputs().count()).unwrap_or(u32::MAX))
    }

    TRITONBACKEND_RequestOutputName(request: Handle<RequestObject>, index: u32, name: Out<Text>) {
        name.set(Text::null())?;
        let request = request.get()?;
        let output = request.outputs().nth(index as usize);
        let output = output.ok_or_else(|| beyond(index, request.outputs().count(), "requested outputs"))?;
        name.set(request.tensors.outputs.get(output).map_or(Text::null(), |output| Text::of(&output.name)))
    }

    // An output is sent from the memory of the host, independent of where it is made; its size is
    // not known before.
    TRITONBACKEND_RequestOutputBufferProperties(
        request: Handle<RequestObject>, name: Text, _size: Out<usize>, kind: Out<u32>, id: Out<i64>
    ) {
        let request = request.get()?;
        // The name may be left out.
        if let Some(name) = name.bytes().filter(|name| request.tensors.output(name).is_none()) {
            let name = String::from_utf8_lossy(name);
            return Err(Error::invalid(format!("unknown request output name {name}")));
        }
        kind.set(MEMORY_CPU)?;
        id.set(0)
    }

    TRITONBACKEND_RequestRelease(request: Handle<RequestObject>, flags: u32) {
        if flags & RELEASE_RESCHEDULE != 0 {
            let held = request.get()?;
            held.answers.check_reschedules()?;
            let request = request.take()?;
            request.answers.reschedule();
            return Ok(());
        }
        if flags & RELEASE_ALL == 0 {
            return Err(Error::invalid(format!(
                "a request is released with TRITONSERVER_REQUEST_RELEASE_ALL or _RESCHEDULE, and not with {flags}"
            )));
        }
        let request = request.take()?;
        request.answers.handle_released();
        Ok(())
    }

    TRITONBACKEND_RequestTrace(request: Handle<RequestObject>, trace: Out<Handle<TraceObject>>) {
        trace.set(request.get()?.trace().map_or_else(Handle::null, |trace| trace.handle()))
    }
}
