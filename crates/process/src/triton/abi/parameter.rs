//! `TRITONSERVER_Parameter*`.

use std::ffi::c_void;

use crate::triton::abi::{ExportedFunction, values};
use crate::triton::error::c_text;
use crate::triton::memory::read_value;
use crate::triton::object::{Handle, Items, Owned, Text};
use crate::triton::parameter::{ParameterContents, ParameterObject};
use base::error::Error;

values! {
    TRITONSERVER_ParameterNew(name: Text, kind: u32, value: *const c_void) -> Handle<ParameterObject>,
        or Handle::null() => {
        new_parameter(name, kind, value).map_or_else(|_| Handle::null(), |object| Owned::new(object).into_handle())
    }

    TRITONSERVER_ParameterBytesNew(name: Text, bytes: Items<u8>, size: u64) -> Handle<ParameterObject>,
        or Handle::null() => {
        match (name.get_if_given(), bytes.get(size, "bytes of the parameter")) {
            (Some(name), Ok(bytes)) => {
                let value = ParameterContents::Bytes(bytes.into());
                Owned::new(ParameterObject { name: c_text(&name), value }).into_handle()
            }
            _ => Handle::null(),
        }
    }

    TRITONSERVER_ParameterDelete(parameter: Handle<ParameterObject>) -> (), or () => { drop(parameter.take()) }
}

/// The interface has no error here: an invalid parameter becomes a null pointer, as in Triton.
fn new_parameter(name: Text, kind: u32, value: *const c_void) -> Result<ParameterObject, Error> {
    let name = c_text(&name.get("name of the parameter")?);
    let value = match kind {
        0 => ParameterContents::Text(c_text(&Text::of_pointer(value).get("value of the parameter")?)),
        1 => ParameterContents::Int(read_value(value)?),
        2 => ParameterContents::Bool(read_value::<u8>(value)? != 0),
        3 => ParameterContents::Double(read_value(value)?),
        _ => return Err(Error::invalid("bytes are made by TRITONSERVER_ParameterBytesNew")),
    };
    Ok(ParameterObject { name, value })
}

pub(super) fn exports() -> Vec<ExportedFunction> {
    values()
}
