//! `select`: some places along an axis, such as columns of a table.

use base::error::Error;
use base::tensor::Tensor;

use crate::axes::{axis_field, element_size, gather, place};
use crate::fields::{Field, FieldDefault, FieldKind};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::COLUMNS_MAX;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "select",
    about: "Takes places along an axis, in the order given, as `np.take`: `x[:, [2, 0]]`.",
    inputs: &[StepPort { name: "input", about: "Numbers of any shape.", is_optional: false }],
    outputs: &[StepPort { name: "output", about: "The same datatype, with the chosen places.", is_optional: false }],
    fields: &[
        Field {
            name: "indices",
            kind: FieldKind::Integers { count: COLUMNS_MAX, least: i32::MIN as i64, most: i32::MAX as i64 },
            default: FieldDefault::Required,
            about: "The places, from 0; a negative one counts from the end.",
        },
        axis_field("-1", "The axis; a negative one counts from the end."),
    ],
    is_short: true,
    build: |fields| {
        Ok(Box::new(Select { indices: fields.integers("indices"), axis: fields.integer("axis").unwrap_or(-1) }))
    },
};

struct Select {
    indices: Vec<i64>,
    axis: i64,
}

impl Step for Select {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        element_size("input", input)?;
        let axis = place("axis", "input", self.axis, input.shape.len())?;
        let length = input.shape.get(axis).copied().unwrap_or(0);
        let place = |index: &i64| {
            let from_start = if *index < 0 { index.saturating_add(length) } else { *index };
            let place = usize::try_from(from_start).ok().filter(|_| from_start < length);
            place.ok_or_else(|| {
                Error::invalid(format!(
                    "'input' has no index {index}, which \"indices\" names: axis {axis} has {length}"
                ))
            })
        };
        let places = self.indices.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        Ok(vec![Some(gather("input", input, axis, &places)?)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{of_floats, of_strings};
    use crate::trial::fault;

    #[test]
    fn a_result_has_a_bound() {
        let input = of_floats(&[1 << 20, 1], vec![0.0; 1 << 20]);
        let members = format!("\"indices\": {:?}", [0; 300]);
        let want = "'input' would become larger than 1073741824 bytes";
        assert_eq!(fault("select", &[("input", &input)], &["output"], &members), want);
    }

    #[test]
    fn faults_are_named() {
        let check = |tensor: Tensor, members: &str, want: &str| {
            assert_eq!(fault("select", &[("input", &tensor)], &["output"], members), want);
        };
        let input = || of_floats(&[2, 3], vec![0.0; 6]);
        check(input(), r#""indices": [3]"#, "'input' has no index 3, which \"indices\" names: axis 1 has 3");
        check(input(), r#""indices": [-4]"#, "'input' has no index -4, which \"indices\" names: axis 1 has 3");
        let axis = "'input' has no axis 2, which \"axis\" names: it has 2 dimensions";
        check(input(), r#""indices": [0], "axis": 2"#, axis);
        check(of_strings(&[1], ["a"]), r#""indices": [0]"#, "'input' must hold numbers, but it is BYTES");
        let size = "'input' has contents of another size than its shape [2, 2]";
        check(of_floats(&[2, 2], vec![0.0; 3]), r#""indices": [0]"#, size);
        let rank = "'input' has 17 dimensions, but at most 16 are supported";
        check(of_floats(&[1; 17], vec![0.0]), r#""indices": [0]"#, rank);
    }
}
