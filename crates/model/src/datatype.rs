//! Maps the datatypes of a model configuration (`TYPE_FP32`) to those of the protocol (`FP32`) and back.

use base::tensor::Datatype;
use wire::proto::inference::DataType;

/// The protocol's datatype; `None` for `TYPE_INVALID`, which means unset.
pub const fn from_config(data_type: DataType) -> Option<Datatype> {
    Some(match data_type {
        DataType::TypeInvalid => return None,
        DataType::TypeBool => Datatype::Bool,
        DataType::TypeUint8 => Datatype::Uint8,
        DataType::TypeUint16 => Datatype::Uint16,
        DataType::TypeUint32 => Datatype::Uint32,
        DataType::TypeUint64 => Datatype::Uint64,
        DataType::TypeInt8 => Datatype::Int8,
        DataType::TypeInt16 => Datatype::Int16,
        DataType::TypeInt32 => Datatype::Int32,
        DataType::TypeInt64 => Datatype::Int64,
        DataType::TypeFp16 => Datatype::Fp16,
        DataType::TypeFp32 => Datatype::Fp32,
        DataType::TypeFp64 => Datatype::Fp64,
        DataType::TypeString => Datatype::Bytes,
        DataType::TypeBf16 => Datatype::Bf16,
    })
}

/// The configuration's datatype.
pub const fn to_config(datatype: Datatype) -> DataType {
    match datatype {
        Datatype::Bool => DataType::TypeBool,
        Datatype::Uint8 => DataType::TypeUint8,
        Datatype::Uint16 => DataType::TypeUint16,
        Datatype::Uint32 => DataType::TypeUint32,
        Datatype::Uint64 => DataType::TypeUint64,
        Datatype::Int8 => DataType::TypeInt8,
        Datatype::Int16 => DataType::TypeInt16,
        Datatype::Int32 => DataType::TypeInt32,
        Datatype::Int64 => DataType::TypeInt64,
        Datatype::Fp16 => DataType::TypeFp16,
        Datatype::Bf16 => DataType::TypeBf16,
        Datatype::Fp32 => DataType::TypeFp32,
        Datatype::Fp64 => DataType::TypeFp64,
        Datatype::Bytes => DataType::TypeString,
    }
}
