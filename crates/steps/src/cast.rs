//! `cast`: numbers in another datatype.

use base::error::Error;
use base::tensor::{Datatype, Tensor};
use half::{bf16, f16};

use crate::fields::{Field, FieldDefault, FieldKind, Fields};
use crate::kind::{Port, Step, StepKind};
use crate::tensors::{floats, integers, of_numbers};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "cast",
    about: "Converts numbers to another datatype, as numpy's `astype`. A float becomes an integer towards zero; one beyond the \
            integer's range becomes its nearest value.",
    inputs: &[Port { name: "input", about: "Numbers of any shape.", is_optional: false }],
    outputs: &[Port { name: "output", about: "The same shape in the new datatype.", is_optional: false }],
    fields: &[Field {
        name: "datatype",
        kind: FieldKind::Choice(&["FP32", "FP16", "BF16", "INT64", "INT32", "UINT8"]),
        default: FieldDefault::Required,
        about: "The datatype of the output.",
    }],
    is_short: true,
    build: |fields| Ok(Box::new(Cast { datatype: datatype(fields) })),
};

struct Cast {
    datatype: Datatype,
}

fn datatype(fields: &Fields<'_>) -> Datatype {
    Datatype::from_name(&fields.text("datatype")).unwrap_or(Datatype::Fp32)
}

impl Step for Cast {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(vec![None]) };
        let contents = if input.datatype == self.datatype { Some(input.contents.clone()) } else { None };
        let output = match contents {
            Some(contents) => Tensor { datatype: self.datatype, shape: input.shape.clone(), contents },
            None => Tensor { shape: input.shape.clone(), ..converted(input, self.datatype)? },
        };
        Ok(vec![Some(output)])
    }
}

/// The elements in another datatype, in one dimension.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "documented: nearest value")]
fn converted(input: &Tensor, datatype: Datatype) -> Result<Tensor, Error> {
    let from_floats = matches!(input.datatype, Datatype::Fp16 | Datatype::Bf16 | Datatype::Fp32 | Datatype::Fp64);
    let tensor = match datatype {
        Datatype::Fp16 => {
            of_numbers(datatype, &[], floats("input", input)?.iter().map(|v| f16::from_f32(*v)).collect())
        }
        Datatype::Bf16 => {
            of_numbers(datatype, &[], floats("input", input)?.iter().map(|v| bf16::from_f32(*v)).collect())
        }
        Datatype::Int64 if from_floats => {
            of_numbers(datatype, &[], floats("input", input)?.iter().map(|v| *v as i64).collect())
        }
        Datatype::Int64 => of_numbers(datatype, &[], integers("input", input)?.into_owned()),
        Datatype::Int32 if from_floats => {
            of_numbers(datatype, &[], floats("input", input)?.iter().map(|v| *v as i32).collect())
        }
        Datatype::Int32 => of_numbers(datatype, &[], integers("input", input)?.iter().map(|v| *v as i32).collect()),
        Datatype::Uint8 => of_numbers(datatype, &[], floats("input", input)?.iter().map(|v| *v as u8).collect()),
        _ => of_numbers(Datatype::Fp32, &[], floats("input", input)?.into_owned()),
    };
    Ok(tensor)
}
