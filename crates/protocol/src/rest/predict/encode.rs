//! The outputs of a model as predictions: rows if the request had rows, otherwise whole tensors.

use smallvec::SmallVec;

use crate::check::shape_text;
use crate::infer::{PredictForm, ResponsePlan};
use crate::outputs::{SentOutput, StringForm, planned_outputs};
use crate::rest::encode::JSON;
use crate::rest::generate::write_rows;
use base::error::Error;
use base::tensor::{Tensor, element_count};
use model::ModelSpec;
use wire::json::{parts, writer};
use wire::message::Reply;

/// The end of the names of outputs whose strings are written as bytes, as in TensorFlow Serving.
const BYTES_SUFFIX: &str = "_bytes";

/// Encodes the answer to a prediction.
///
/// # Errors
///
/// `InvalidArgument` if an output has another number of rows than the request; others as [`crate::rest::encode()`].
pub fn encode(spec: &ModelSpec, plan: &ResponsePlan, outputs: Vec<Tensor>) -> Result<Reply, Error> {
    let mut sent = planned_outputs(spec, plan, outputs)?;
    for output in &mut sent {
        let is_bytes = output.spec.name.ends_with(BYTES_SUFFIX);
        output.strings = if is_bytes { StringForm::Object } else { StringForm::ObjectUnlessText };
    }
    let json = match plan.predict {
        PredictForm::Columns => columns(&sent)?,
        PredictForm::Rows(count) => rows(&sent, count)?,
    };
    Ok(Reply::new(200, JSON, json))
}

fn columns(sent: &[SentOutput<'_>]) -> Result<Vec<u8>, Error> {
    let mut json = b"{\"outputs\":".to_vec();
    if let [output] = sent {
        json.extend(nested(output)?);
    } else {
        json.push(b'{');
        for (index, output) in sent.iter().enumerate() {
            writer::comma(index, &mut json);
            writer::string(&output.spec.name, &mut json);
            json.push(b':');
            json.extend(nested(output)?);
        }
        json.push(b'}');
    }
    json.push(b'}');
    Ok(json)
}

fn rows(sent: &[SentOutput<'_>], count: usize) -> Result<Vec<u8>, Error> {
    let mut texts: SmallVec<[Vec<u8>; 2]> = SmallVec::new();
    for output in sent {
        let shape = &output.tensor.shape;
        if shape.first().is_none_or(|first| usize::try_from(*first) != Ok(count)) {
            return Err(Error::invalid(format!(
                "output '{}' has the shape {} and not {count} rows, as the request has: send 'inputs' for whole tensors",
                output.spec.name,
                shape_text(shape)
            )));
        }
        texts.push(nested(output)?);
    }
    let mut values: SmallVec<[_; 2]> = texts.iter().map(|text| parts::elements(text)).collect();
    let mut json = b"{\"predictions\":[".to_vec();
    for row in 0..count {
        writer::comma(row, &mut json);
        if let [values] = values.as_mut_slice() {
            json.extend_from_slice(values.next().unwrap_or(b"[]"));
            continue;
        }
        json.push(b'{');
        for (index, (output, values)) in sent.iter().zip(&mut values).enumerate() {
            writer::comma(index, &mut json);
            writer::string(&output.spec.name, &mut json);
            json.push(b':');
            // A row of a tensor without elements is missing in its text.
            json.extend_from_slice(values.next().unwrap_or(b"[]"));
        }
        json.push(b'}');
    }
    json.extend_from_slice(b"]}");
    Ok(json)
}

/// An output as lists within lists, which have its shape; `[]` for one without elements.
fn nested(output: &SentOutput<'_>) -> Result<Vec<u8>, Error> {
    let shape = &output.tensor.shape;
    let mut elements = Vec::with_capacity(output.size_expected());
    output.write_data(&mut elements)?;
    if shape.is_empty() {
        return Ok(elements);
    }
    let mut json = Vec::with_capacity(elements.len().saturating_mul(2));
    json.push(b'[');
    if element_count(shape).is_ok_and(|count| count > 0) {
        write_rows(&elements, shape, &mut json);
    }
    json.push(b']');
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::OutputPlan;
    use crate::testing::{output, spec};
    use base::tensor::{Datatype, Shape, strings};
    use bytes::Bytes;

    fn tensor(datatype: Datatype, shape: &[i64], contents: Vec<u8>) -> Tensor {
        Tensor { datatype, shape: Shape::from_slice(shape), contents: Bytes::from(contents) }
    }

    fn texts(elements: &[&[u8]]) -> Vec<u8> {
        let mut contents = Vec::new();
        elements.iter().for_each(|element| strings::encode(element, &mut contents));
        contents
    }

    /// The answer with outputs of these names, or the error.
    fn answer(predict: PredictForm, outputs: Vec<(&str, Tensor)>) -> String {
        let specs = outputs.iter().map(|(name, tensor)| output(name, tensor.datatype, &[-1])).collect();
        let planned = |index| OutputPlan { index, is_binary: false, is_base64: false, class_count: 0 };
        let plan =
            ResponsePlan { outputs: (0..outputs.len()).map(planned).collect(), predict, ..ResponsePlan::default() };
        let tensors = outputs.into_iter().map(|(_, tensor)| tensor).collect();
        match encode(&spec(0, vec![], specs), &plan, tensors) {
            Ok(reply) => String::from_utf8(reply.body.concat()).unwrap(),
            Err(error) => format!("{} {error}", error.code().on_wire().0),
        }
    }

    #[test]
    fn one_output_is_a_value_and_several_are_an_object() {
        let y = || ("y", tensor(Datatype::Uint8, &[2, 2], vec![1, 2, 3, 4]));
        let z = || ("z", tensor(Datatype::Bool, &[2, 1], vec![1, 0]));
        assert_eq!(answer(PredictForm::Rows(2), vec![y()]), r#"{"predictions":[[1,2],[3,4]]}"#);
        assert_eq!(answer(PredictForm::Columns, vec![y()]), r#"{"outputs":[[1,2],[3,4]]}"#);
        let rows = r#"{"predictions":[{"y":[1,2],"z":[true]},{"y":[3,4],"z":[false]}]}"#;
        assert_eq!(answer(PredictForm::Rows(2), vec![y(), z()]), rows);
        let columns = r#"{"outputs":{"y":[[1,2],[3,4]],"z":[[true],[false]]}}"#;
        assert_eq!(answer(PredictForm::Columns, vec![y(), z()]), columns);
        let flat = || ("y", tensor(Datatype::Uint8, &[3], vec![1, 2, 3]));
        assert_eq!(answer(PredictForm::Rows(3), vec![flat()]), r#"{"predictions":[1,2,3]}"#);
        let scalar = ("y", tensor(Datatype::Uint8, &[], vec![7]));
        assert_eq!(answer(PredictForm::Columns, vec![scalar]), r#"{"outputs":7}"#);
    }

    #[test]
    fn bytes_are_objects_by_the_name_of_the_output_and_where_they_are_not_text() {
        let some = || tensor(Datatype::Bytes, &[2, 1], texts(&[b"a,\"]", b"\xff\x00"]));
        let mixed = r#"{"predictions":[["a,\"]"],[{"b64":"/wA="}]]}"#;
        assert_eq!(answer(PredictForm::Rows(2), vec![("y", some())]), mixed);
        let all = r#"{"outputs":[[{"b64":"YSwiXQ=="}],[{"b64":"/wA="}]]}"#;
        assert_eq!(answer(PredictForm::Columns, vec![("y_bytes", some())]), all);
    }

    #[test]
    fn rows_without_elements_are_empty_lists() {
        let none = |shape: &[i64]| vec![("y", tensor(Datatype::Uint8, shape, vec![]))];
        assert_eq!(answer(PredictForm::Rows(2), none(&[2, 0])), r#"{"predictions":[[],[]]}"#);
        assert_eq!(answer(PredictForm::Columns, none(&[2, 0])), r#"{"outputs":[]}"#);
        let both = [none(&[1, 0]), vec![("z", tensor(Datatype::Uint8, &[1], vec![1]))]].concat();
        assert_eq!(answer(PredictForm::Rows(1), both), r#"{"predictions":[{"y":[],"z":1}]}"#);
        assert_eq!(answer(PredictForm::Rows(1), vec![]), r#"{"predictions":[{}]}"#);
    }

    #[test]
    fn an_output_with_other_rows_is_refused_with_the_way_to_get_it() {
        let shape = tensor(Datatype::Uint8, &[3], vec![1, 2, 3]);
        let want =
            "400 output 'y' has the shape [3] and not 2 rows, as the request has: send 'inputs' for whole tensors";
        assert_eq!(answer(PredictForm::Rows(2), vec![("y", shape)]), want);
        let scalar = tensor(Datatype::Uint8, &[], vec![1]);
        assert!(answer(PredictForm::Rows(1), vec![("y", scalar)]).starts_with("400 output 'y' has the shape []"));
    }
}
