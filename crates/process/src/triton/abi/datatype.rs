//! Datatypes and the other enumerations by name, and the versions of both interfaces.

use std::ffi::CStr;

use crate::triton::abi::{BACKEND_API, ExportedFunction, SERVER_API, answer, values};
use crate::triton::error::ErrorHandle;
use crate::triton::object::{Out, Text};
use crate::triton::types::{DATATYPES, INSTANCE_KINDS};

const MEMORY_TYPES: [&CStr; 3] = [c"CPU", c"CPU_PINNED", c"GPU"];
const PARAMETER_TYPES: [&CStr; 5] = [c"STRING", c"INT", c"BOOL", c"DOUBLE", c"BYTES"];
const TRACE_ACTIVITIES: [&CStr; 11] = [
    c"REQUEST_START",
    c"QUEUE_START",
    c"COMPUTE_START",
    c"COMPUTE_INPUT_END",
    c"COMPUTE_OUTPUT_START",
    c"COMPUTE_END",
    c"REQUEST_END",
    c"TENSOR_QUEUE_INPUT",
    c"TENSOR_BACKEND_INPUT",
    c"TENSOR_BACKEND_OUTPUT",
    c"CUSTOM_ACTIVITY",
];

values! {
    TRITONSERVER_ApiVersion(major: Out<u32>, minor: Out<u32>) -> ErrorHandle, or ErrorHandle::null() => {
        answer("TRITONSERVER_ApiVersion", || major.set(SERVER_API.0).and_then(|()| minor.set(SERVER_API.1)))
    }

    TRITONBACKEND_ApiVersion(major: Out<u32>, minor: Out<u32>) -> ErrorHandle, or ErrorHandle::null() => {
        answer("TRITONBACKEND_ApiVersion", || major.set(BACKEND_API.0).and_then(|()| minor.set(BACKEND_API.1)))
    }

    TRITONSERVER_DataTypeString(datatype: u32) -> Text, or Text::null() => {
        Text::of(DATATYPES.get(datatype as usize).map_or(c"<invalid>", |(name, _, _)| name))
    }

    TRITONSERVER_StringToDataType(name: Text) -> u32, or 0 => {
        let name = name.bytes().unwrap_or_default();
        let found = DATATYPES.iter().position(|(known, _, _)| known.to_bytes() == name);
        // The first stands for no datatype, whatever its name.
        found.and_then(|found| u32::try_from(found).ok()).unwrap_or(0)
    }

    TRITONSERVER_DataTypeByteSize(datatype: u32) -> u32, or 0 => {
        DATATYPES.get(datatype as usize).map_or(0, |(_, size, _)| *size)
    }

    TRITONSERVER_MemoryTypeString(kind: u32) -> Text, or Text::null() => { name_of(&MEMORY_TYPES, kind) }

    TRITONSERVER_ParameterTypeString(kind: u32) -> Text, or Text::null() => { name_of(&PARAMETER_TYPES, kind) }

    TRITONSERVER_InferenceTraceLevelString(level: u32) -> Text, or Text::null() => {
        Text::of(match level {
            0 => c"DISABLED",
            1 => c"MIN",
            2 => c"MAX",
            4 => c"TIMESTAMPS",
            8 => c"TENSORS",
            _ => c"<unknown>",
        })
    }

    TRITONSERVER_InferenceTraceActivityString(activity: u32) -> Text, or Text::null() => {
        name_of(&TRACE_ACTIVITIES, activity)
    }

    TRITONSERVER_InstanceGroupKindString(kind: u32) -> Text, or Text::null() => { name_of(&INSTANCE_KINDS, kind) }
}

fn name_of(names: &[&'static CStr], number: u32) -> Text {
    Text::of(names.get(number as usize).copied().unwrap_or(c"<invalid>"))
}

pub(super) fn exports() -> Vec<ExportedFunction> {
    values()
}
