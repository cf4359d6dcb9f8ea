//! The datatypes of PyTorch and their counterparts of the protocol, as Triton's backend has them:
//! `UINT16` to `UINT64` and `BF16` are refused there, too. Strings are not a datatype of tensors:
//! they come in a list.

use backend::batch::InputConversion;
use base::error::Error;
use base::tensor::{AlignedBuffer, Datatype};

/// The number of an element's type (`c10::ScalarType`), or that of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TorchType(pub(super) i32);

/// A list of strings; the shim's own number.
pub(super) const STRINGS: TorchType = TorchType(-1);

/// The types that have a datatype. The numbers are part of every saved model, and never change.
const TYPES: [(Datatype, TorchType); 10] = [
    (Datatype::Uint8, TorchType(0)),
    (Datatype::Int8, TorchType(1)),
    (Datatype::Int16, TorchType(2)),
    (Datatype::Int32, TorchType(3)),
    (Datatype::Int64, TorchType(4)),
    (Datatype::Fp16, TorchType(5)),
    (Datatype::Fp32, TorchType(6)),
    (Datatype::Fp64, TorchType(7)),
    (Datatype::Bool, TorchType(11)),
    (Datatype::Bytes, STRINGS),
];

impl TorchType {
    /// The type of a datatype; `None` if PyTorch, as Triton has it, lacks it.
    pub(super) fn of(datatype: Datatype) -> Option<Self> {
        TYPES.iter().find(|(known, _)| *known == datatype).map(|(_, number)| *number)
    }

    /// The datatype; `None` for a type that the protocol, or Triton's backend, lacks.
    pub(super) fn datatype(self) -> Option<Datatype> {
        TYPES.iter().find(|(_, number)| *number == self).map(|(datatype, _)| *datatype)
    }
}

/// The conversion of inputs of a datatype: none, if their address is aligned for its elements. A
/// BOOL becomes 0 or 1, since any other value is undefined behaviour in C++.
pub(super) fn conversion(datatype: Datatype) -> InputConversion {
    match datatype {
        Datatype::Bool => InputConversion { alignment: 1, convert: Some(bools_to_bits) },
        _ => InputConversion { alignment: datatype.size().unwrap_or(1), convert: None },
    }
}

fn bools_to_bits(contents: &[u8], out: &mut AlignedBuffer) -> Result<(), Error> {
    let from = out.len();
    out.extend_from_slice(contents);
    out.as_mut_slice().iter_mut().skip(from).for_each(|byte| *byte = u8::from(*byte != 0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_datatype_that_torch_has_is_told_from_the_others() {
        for datatype in Datatype::ALL {
            let back = TorchType::of(datatype).and_then(TorchType::datatype);
            let is_refused = [Datatype::Uint16, Datatype::Uint32, Datatype::Uint64, Datatype::Bf16].contains(&datatype);
            assert_eq!(back, (!is_refused).then_some(datatype));
        }
        assert_eq!(TorchType(9).datatype(), None, "complex numbers");
    }

    #[test]
    fn a_bool_is_0_or_1_for_torch() {
        let mut out = AlignedBuffer::default();
        out.extend_from_slice(&[7]);
        bools_to_bits(&[0, 1, 2, 255], &mut out).unwrap();
        assert_eq!(out.as_slice(), [7, 0, 1, 1, 1]);
    }
}
