//! Numbers of the C interface that more than one file needs: datatypes, memory types, kinds of instances, flags.

use std::ffi::CStr;

use base::error::Error;
use base::tensor::Datatype;

/// `TRITONSERVER_DataType` by its number: name, bytes of an element (0 for strings), and ours.
pub(super) const DATATYPES: [(&CStr, u32, Option<Datatype>); 15] = [
    (c"<invalid>", 0, None),
    (c"BOOL", 1, Some(Datatype::Bool)),
    (c"UINT8", 1, Some(Datatype::Uint8)),
    (c"UINT16", 2, Some(Datatype::Uint16)),
    (c"UINT32", 4, Some(Datatype::Uint32)),
    (c"UINT64", 8, Some(Datatype::Uint64)),
    (c"INT8", 1, Some(Datatype::Int8)),
    (c"INT16", 2, Some(Datatype::Int16)),
    (c"INT32", 4, Some(Datatype::Int32)),
    (c"INT64", 8, Some(Datatype::Int64)),
    (c"FP16", 2, Some(Datatype::Fp16)),
    (c"FP32", 4, Some(Datatype::Fp32)),
    (c"FP64", 8, Some(Datatype::Fp64)),
    (c"BYTES", 0, Some(Datatype::Bytes)),
    (c"BF16", 2, Some(Datatype::Bf16)),
];

/// `TRITONSERVER_InstanceGroupKind` by its number.
pub(super) const INSTANCE_KINDS: [&CStr; 4] = [c"AUTO", c"CPU", c"GPU", c"MODEL"];

/// `TRITONSERVER_MEMORY_CPU`.
pub(super) const MEMORY_CPU: u32 = 0;
/// `TRITONSERVER_MEMORY_CPU_PINNED`.
pub(super) const MEMORY_CPU_PINNED: u32 = 1;
/// `TRITONSERVER_MEMORY_GPU`, the last of them.
pub(super) const MEMORY_GPU: u32 = 2;

/// `TRITONSERVER_REQUEST_RELEASE_ALL`.
pub(super) const RELEASE_ALL: u32 = 1;
/// `TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`.
pub(super) const RELEASE_RESCHEDULE: u32 = 2;
/// `TRITONSERVER_RESPONSE_COMPLETE_FINAL`.
pub(super) const RESPONSE_FINAL: u32 = 1;

/// The datatype of a number.
///
/// # Errors
/// `InvalidArgument` for an invalid number.
pub(super) fn datatype(number: u32) -> Result<Datatype, Error> {
    let known = DATATYPES.get(number as usize).and_then(|(_, _, datatype)| *datatype);
    known.ok_or_else(|| Error::invalid(format!("{number} is no TRITONSERVER_DataType")))
}

/// The number of a datatype.
pub(super) fn datatype_number(datatype: Datatype) -> u32 {
    let found = DATATYPES.iter().position(|(_, _, known)| *known == Some(datatype));
    found.and_then(|found| u32::try_from(found).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datatype_has_its_number_name_and_size() {
        for datatype_of_ours in Datatype::ALL {
            let number = datatype_number(datatype_of_ours);
            let (name, size, _) = DATATYPES[number as usize];
            assert_eq!(datatype(number), Ok(datatype_of_ours));
            assert_eq!(name.to_str(), Ok(datatype_of_ours.name()));
            assert_eq!(size as usize, datatype_of_ours.size().unwrap_or(0));
        }
        assert!(datatype(0).is_err() && datatype(15).is_err());
    }
}
