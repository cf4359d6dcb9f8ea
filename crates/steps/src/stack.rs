//! `stack`: tensors of one shape side by side, along a new axis.

use base::error::Error;
use base::tensor::Tensor;

use crate::axes::{axis_field, join, place};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::RANK_MAX;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "stack",
    about: "Joins tensors of one shape along a new axis, as `np.stack`: columns [rows] to a table [rows, columns].",
    inputs: &[StepPort {
        name: "columns[]",
        about: "A list of tensors of numbers, of one shape and datatype.",
        is_optional: false,
    }],
    outputs: &[StepPort { name: "output", about: "The tensors along the new axis.", is_optional: false }],
    fields: &[axis_field("-1", "The place of the new axis; a negative one counts from the end.")],
    is_short: true,
    build: |fields| Ok(Box::new(Stack { axis: fields.integer("axis").unwrap_or(-1) })),
};

struct Stack {
    axis: i64,
}

impl Step for Stack {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let mut tensors: Vec<_> = inputs.iter().flatten().map(|tensor| (*tensor).clone()).collect();
        let rank = tensors.first().map_or(0, |first| first.shape.len());
        if let Some(index) = tensors.iter().position(|tensor| tensor.shape.len() != rank || rank >= RANK_MAX) {
            let shape = tensors.get(index).map(|tensor| tensor.shape.to_vec()).unwrap_or_default();
            let limit = RANK_MAX - 1;
            return Err(Error::invalid(format!(
                "'columns[{index}]' must have the shape of 'columns[0]', and at most {limit} dimensions, but its shape \
                 is {shape:?}"
            )));
        }
        let axis = place("axis", "output", self.axis, rank + 1)?;
        for tensor in &mut tensors {
            tensor.shape.insert(axis, 1);
        }
        Ok(vec![Some(join("columns", &tensors, axis)?)])
    }
}

#[cfg(test)]
mod tests {
    use base::tensor::Datatype;

    use super::*;
    use crate::list::StepList;
    use crate::tensors::{of_floats, of_numbers, of_strings};

    fn fault(second: Tensor, axis: i64) -> String {
        let text = format!(
            r#"{{"steps": [{{"step": "stack", "inputs": {{"columns": ["a", "b"]}}, "output": "y", "axis": {axis}}}]}}"#
        );
        let list = StepList::read(&text, &|_, _| Err(String::new())).unwrap();
        let first = of_floats(&[2], vec![1.0, 2.0]);
        let tensor = |name: &str| Some(if name == "a" { first.clone() } else { second.clone() });
        list.run(tensor, &["y"]).unwrap_err().text().replace("step 1 (stack): ", "")
    }

    #[test]
    fn faults_are_named() {
        let shape =
            "'columns[1]' must have the shape of 'columns[0]', and at most 15 dimensions, but its shape is [1, 2]";
        assert_eq!(fault(of_floats(&[1, 2], vec![0.0; 2]), -1), shape);
        let shape = "'columns[1]' has the shape [3, 1], which must be equal to [2, 1] but for axis 1";
        assert_eq!(fault(of_floats(&[3], vec![0.0; 3]), -1), shape);
        let datatype = "'columns[1]' must hold FP32, as columns[0] does, but it is INT64";
        assert_eq!(fault(of_numbers(Datatype::Int64, &[2], vec![0_i64; 2]), -1), datatype);
        assert_eq!(fault(of_strings(&[2], ["a", "b"]), -1), "'columns[1]' must hold numbers, but it is BYTES");
        let axis = "'output' has no axis 2, which \"axis\" names: it has 2 dimensions";
        assert_eq!(fault(of_floats(&[2], vec![0.0; 2]), 2), axis);
    }

    #[test]
    fn a_list_of_tensors_is_read_with_its_faults() {
        let read = |inputs: &str| {
            let text = format!("{{\"steps\": [{{\"step\": \"stack\", {inputs}, \"output\": \"y\"}}]}}");
            StepList::read(&text, &|_, _| Err(String::new()))
        };
        let list = read(r#""input": ["a", "b", "a"]"#).unwrap();
        assert_eq!(list.inputs().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(read(r#""input": "a""#).unwrap().inputs().count(), 1);
        let check = |inputs: &str, want: &str| assert_eq!(read(inputs).err().unwrap().text(), want);
        let names = "must be the name of a tensor, or a list of 1 to 256 names";
        check(r#""input": []"#, &format!("step 1: line 1: \"input\" {names}"));
        let many = |count: usize| format!("\"input\": [{}]", vec![r#""a""#; count].join(","));
        assert!(read(&many(256)).is_ok());
        check(&many(257), &format!("step 1: line 1: \"input\" {names}"));
        check(r#""inputs": {"columns": ["a", 1]}"#, &format!("step 1: line 1: \"inputs\": \"columns\" {names}"));
        check(r#""inputs": {}"#, "step 1: line 1: \"inputs\": the tensor of \"columns\" is missing");
    }
}
