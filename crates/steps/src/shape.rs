//! `shape`: the same elements in other dimensions.

use base::error::Error;
use base::tensor::{Tensor, element_count};

use crate::axes::{element_size, place, transposed};
use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::RANK_MAX;
use crate::tensors::check_size;

const AXES: FieldKind = FieldKind::Integers { count: RANK_MAX, least: -(RANK_MAX as i64), most: RANK_MAX as i64 - 1 };

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "shape",
    about: "Gives a tensor other dimensions, as numpy's functions of these names. It has one of the four parameters.",
    inputs: &[StepPort {
        name: "input",
        about: "A tensor of any shape; `transpose` needs numbers.",
        is_optional: false,
    }],
    outputs: &[StepPort { name: "output", about: "The same datatype.", is_optional: false }],
    fields: &[
        Field {
            name: "reshape",
            kind: FieldKind::Integers { count: RANK_MAX, least: -1, most: i64::MAX },
            default: FieldDefault::Unset,
            about: "The new dimensions; one can be -1, which is then what remains.",
        },
        Field {
            name: "squeeze",
            kind: AXES,
            default: FieldDefault::Unset,
            about: "Drops these axes, which have size 1; an empty list drops all of that size.",
        },
        Field {
            name: "unsqueeze",
            kind: AXES,
            default: FieldDefault::Unset,
            about: "Inserts axes of size 1, which have these places in the result, as `np.expand_dims`.",
        },
        Field {
            name: "transpose",
            kind: AXES,
            default: FieldDefault::Unset,
            about: "The axes of the input in their new order; an empty list reverses them.",
        },
    ],
    is_short: true,
    build: |fields| Ok(Box::new(ShapeChange::build(fields)?)),
};

enum ShapeChange {
    Reshape(Vec<i64>),
    Squeeze(Vec<i64>),
    Transpose(Vec<i64>),
    Unsqueeze(Vec<i64>),
}

impl ShapeChange {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let names = ["reshape", "squeeze", "unsqueeze", "transpose"];
        let mut given = names.into_iter().filter(|name| fields.is_given(name));
        let (Some(name), None) = (given.next(), given.next()) else {
            return Err(fields.error(
                "reshape",
                "the step must have one of \"reshape\", \"squeeze\", \"unsqueeze\" and \"transpose\"",
            ));
        };
        let list = fields.integers(name);
        Ok(match name {
            "reshape" if list.iter().filter(|size| **size == -1).count() > 1 => {
                return Err(fields.error(name, "only one dimension can be -1"));
            }
            "reshape" => Self::Reshape(list),
            "squeeze" => Self::Squeeze(list),
            "unsqueeze" => Self::Unsqueeze(list),
            _ => Self::Transpose(list),
        })
    }
}

impl Step for ShapeChange {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        check_size("input", input)?;
        let output = match self {
            Self::Reshape(sizes) => reshaped(input, sizes)?,
            Self::Squeeze(axes) => squeezed(input, axes)?,
            Self::Unsqueeze(axes) => unsqueezed(input, axes)?,
            Self::Transpose(order) => {
                let size = element_size("input", input)?;
                transposed(input, &order_of(input, order)?, size)
            }
        };
        Ok(vec![Some(output)])
    }
}

fn reshaped(input: &Tensor, sizes: &[i64]) -> Result<Tensor, Error> {
    let shape = &input.shape[..];
    let wrong = || Error::invalid(format!("'input' has the shape {shape:?}, which cannot become {sizes:?}"));
    let count = element_count(shape).map_err(|_| wrong())?;
    let known: Vec<_> = sizes.iter().copied().filter(|size| *size != -1).collect();
    let known_count = element_count(&known).map_err(|_| wrong())?;
    let mut output = input.clone();
    output.shape = sizes.into();
    if let Some(open) = output.shape.iter_mut().find(|size| **size == -1) {
        let rest = count.checked_div(known_count).and_then(|rest| i64::try_from(rest).ok());
        *open = rest.ok_or_else(wrong)?;
    }
    if element_count(&output.shape) == Ok(count) { Ok(output) } else { Err(wrong()) }
}

fn squeezed(input: &Tensor, axes: &[i64]) -> Result<Tensor, Error> {
    let rank = input.shape.len();
    let axes = axes.iter().map(|axis| place("squeeze", "input", *axis, rank)).collect::<Result<Vec<_>, _>>()?;
    if let Some(axis) = axes.iter().find(|axis| input.shape.get(**axis) != Some(&1)) {
        let shape = &input.shape[..];
        return Err(Error::invalid(format!(
            "'input' has the shape {shape:?}, of which axis {axis} cannot be dropped: its size is not 1"
        )));
    }
    let mut output = input.clone();
    let is_kept = |(place, size): &(usize, &i64)| if axes.is_empty() { **size != 1 } else { !axes.contains(place) };
    output.shape = input.shape.iter().enumerate().filter(is_kept).map(|(_, size)| *size).collect();
    Ok(output)
}

fn unsqueezed(input: &Tensor, axes: &[i64]) -> Result<Tensor, Error> {
    let rank = input.shape.len().saturating_add(axes.len());
    let mut places =
        axes.iter().map(|axis| place("unsqueeze", "output", *axis, rank)).collect::<Result<Vec<_>, _>>()?;
    places.sort_unstable();
    if rank > RANK_MAX || places.windows(2).any(|pair| pair.first() == pair.last()) {
        return Err(Error::invalid(format!(
            "\"unsqueeze\" must have different axes and lead to at most {RANK_MAX} dimensions, but it is {axes:?}"
        )));
    }
    let mut output = input.clone();
    for place in places {
        output.shape.insert(place, 1);
    }
    Ok(output)
}

fn order_of(input: &Tensor, axes: &[i64]) -> Result<Vec<usize>, Error> {
    let rank = input.shape.len();
    if axes.is_empty() {
        return Ok((0..rank).rev().collect());
    }
    let order = axes.iter().map(|axis| place("transpose", "input", *axis, rank)).collect::<Result<Vec<_>, _>>()?;
    let has_all = order.len() == rank && (0..rank).all(|axis| order.contains(&axis));
    if !has_all {
        return Err(Error::invalid(format!(
            "'input' has {rank} dimensions, of which \"transpose\" must name each once: {axes:?}"
        )));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{of_floats, of_strings};
    use crate::trial::{built, fault, run};

    #[test]
    fn strings_take_other_dimensions_too() {
        let input = of_strings(&[2], ["a", "b"]);
        let got = run("shape", &[("input", &input)], &["output"], r#""unsqueeze": [-1]"#).unwrap();
        assert_eq!((&got[0].shape[..], &got[0].contents), (&[2, 1][..], &input.contents));
    }

    #[test]
    fn faults_are_named() {
        let check = |tensor: Tensor, members: &str, want: &str| {
            assert_eq!(fault("shape", &[("input", &tensor)], &["output"], members), want);
        };
        let input = || of_floats(&[2, 3], vec![0.0; 6]);
        check(input(), r#""reshape": [4, -1]"#, "'input' has the shape [2, 3], which cannot become [4, -1]");
        check(input(), r#""reshape": [0, -1]"#, "'input' has the shape [2, 3], which cannot become [0, -1]");
        check(
            input(),
            r#""reshape": [9223372036854775807, 4]"#,
            "'input' has the shape [2, 3], which cannot become [9223372036854775807, 4]",
        );
        let size = "'input' has the shape [2, 3], of which axis 0 cannot be dropped: its size is not 1";
        check(input(), r#""squeeze": [0]"#, size);
        check(input(), r#""squeeze": [2]"#, "'input' has no axis 2, which \"squeeze\" names: it has 2 dimensions");
        let twice = "\"unsqueeze\" must have different axes and lead to at most 16 dimensions, but it is [0, -4]";
        check(input(), r#""unsqueeze": [0, -4]"#, twice);
        let order = "'input' has 2 dimensions, of which \"transpose\" must name each once: [0, 0]";
        check(input(), r#""transpose": [0, 0]"#, order);
        check(of_strings(&[1], ["a"]), r#""transpose": []"#, "'input' must hold numbers, but it is BYTES");
        let one = "step 1: line 1: \"reshape\": the step must have one of \"reshape\", \"squeeze\", \"unsqueeze\" \
                   and \"transpose\"";
        for members in ["", r#""reshape": [1], "squeeze": []"#] {
            assert_eq!(built("shape", &["input"], &["output"], members).err().unwrap(), one);
        }
        let open = "step 1: line 1: \"reshape\": only one dimension can be -1";
        assert_eq!(built("shape", &["input"], &["output"], r#""reshape": [-1, -1]"#).err().unwrap(), open);
    }
}
