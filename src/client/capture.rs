//! Requests for a comparison from a trace file with tensors (`--trace-config=level=TENSORS`): a list of objects in Triton's form. Pure.

use std::collections::BTreeMap;

use crate::loadgen::description::InputDescription;
use crate::tensor::Datatype;
use crate::wire::json::{Document, JsonValue, writer};

/// The requests of a trace file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedRequests {
    /// Bodies of infer requests in JSON, in the order of the file.
    pub bodies: Vec<Vec<u8>>,
    /// Requests that a trace does not hold whole: strings that are not UTF-8, such as pictures, and FP16 and BF16.
    pub left_out: usize,
}

/// Returns true if a file is a trace, and no request: a list.
pub fn is_trace(file: &[u8]) -> bool {
    file.trim_ascii_start().starts_with(b"[")
}

/// Reads the requests of a model. A trace without timestamps does not name models: those with this model's inputs are taken.
///
/// # Errors
/// A line for a person if the file is no JSON, or has no request of the model.
pub fn requests(file: &[u8], model: &str, inputs: &[InputDescription]) -> Result<CapturedRequests, String> {
    let document = Document::parse(file, &[]).map_err(|error| format!("the trace is no JSON: {error}"))?;
    let mut models = BTreeMap::new();
    // By the number of the trace, which counts requests.
    let mut tensors: BTreeMap<u64, Vec<JsonValue<'_, '_>>> = BTreeMap::new();
    for record in document.root().elements() {
        let Some(id) = record.get("id").and_then(JsonValue::as_u64) else { continue };
        if let Some(name) = record.get("model_name").and_then(JsonValue::as_str) {
            models.insert(id, name);
        }
        let is_input = record.get("activity").and_then(JsonValue::as_str) == Some("TENSOR_QUEUE_INPUT");
        if let Some(tensor) = record.get("tensor").filter(|_| is_input) {
            tensors.entry(id).or_default().push(tensor);
        }
    }
    let is_known = |tensor: &JsonValue<'_, '_>| {
        let name = tensor.get("name").and_then(JsonValue::as_str);
        inputs.iter().any(|input| Some(&input.name[..]) == name)
    };
    let mut captured = CapturedRequests::default();
    for (id, tensors) in tensors {
        let is_own = models.get(&id).map_or_else(|| tensors.iter().all(is_known), |name| *name == model);
        match body(&tensors) {
            _ if !is_own => {}
            Some(body) => captured.bodies.push(body),
            None => captured.left_out += 1,
        }
    }
    if captured.bodies.is_empty() {
        let why = if captured.left_out > 0 {
            format!(
                "none of its {} requests of '{model}' is whole: traces hold no pictures and no FP16",
                captured.left_out
            )
        } else {
            format!("it has no inputs of '{model}': record with --trace-config=level=TENSORS")
        };
        return Err(format!("the trace cannot be compared: {why}"));
    }
    Ok(captured)
}

/// The body of a request; `None` if a tensor is not whole.
fn body(tensors: &[JsonValue<'_, '_>]) -> Option<Vec<u8>> {
    let mut body = b"{\"inputs\":[".to_vec();
    for (index, tensor) in tensors.iter().enumerate() {
        let text = |name: &str| tensor.get(name).and_then(JsonValue::as_str);
        let (name, data, shape) = (text("name")?, text("data")?, text("shape")?);
        let datatype = Datatype::from_name(text("dtype")?)?;
        let is_empty = shape.split(',').any(|size| size == "0");
        if data.contains(char::REPLACEMENT_CHARACTER) || (data.is_empty() && !is_empty) {
            return None;
        }
        writer::comma(index, &mut body);
        body.extend_from_slice(b"{\"name\":");
        writer::string(name, &mut body);
        let data = match datatype {
            Datatype::Bool => data.replace('0', "false").replace('1', "true"),
            _ => data.to_owned(),
        };
        let rest = format!(",\"datatype\":\"{}\",\"shape\":[{shape}],\"data\":[{data}]}}", datatype.name());
        body.extend_from_slice(rest.as_bytes());
    }
    body.extend_from_slice(b"],\"parameters\":{\"binary_data_output\":true}}");
    Some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(id: u64, name: &str, data: &str, shape: &str, datatype: &str) -> String {
        format!(
            r#"{{"id":{id},"activity":"TENSOR_QUEUE_INPUT","tensor":{{"name":"{name}","data":{data:?},"shape":"{shape}","dtype":"{datatype}"}}}}"#
        )
    }

    fn read(records: &[String]) -> Result<CapturedRequests, String> {
        let input = |name: &str| InputDescription { name: name.to_owned(), datatype: Datatype::Fp32, shape: vec![-1] };
        requests(format!("[{}]", records.join(",")).as_bytes(), "m", &[input("A"), input("B")])
    }

    #[test]
    fn a_trace_has_the_requests_of_its_model() {
        assert!(is_trace(b" [{}]") && !is_trace(b"{}"));
        let head = |id: u64, model: &str| format!(r#"{{"id":{id},"model_name":"{model}","model_version":1}}"#);
        let output = tensor(1, "A", "9", "1", "FP32").replace("TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT");
        let records = [
            head(2, "other"),
            tensor(2, "A", "7", "1", "FP32"),
            head(1, "m"),
            tensor(1, "A", "0.5,2.0", "1,2", "FP32"),
            tensor(1, "B", r#""x\"","é""#, "2", "BYTES"),
            output,
            tensor(3, "B", "1,0", "2", "BOOL"),
            tensor(4, "C", "1", "1", "FP32"),
            tensor(5, "A", "", "2", "FP16"),
            tensor(6, "A", "", "0", "FP32"),
            tensor(7, "A", "\"\u{fffd}\"", "1", "BYTES"),
        ];
        let got = read(&records).unwrap();
        let bodies: Vec<_> = got.bodies.iter().map(|body| std::str::from_utf8(body).unwrap()).collect();
        let end = r#"],"parameters":{"binary_data_output":true}}"#;
        let want = [
            r#"{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data":[0.5,2.0]},{"name":"B","datatype":"BYTES","shape":[2],"data":["x\"","é"]}"#,
            r#"{"inputs":[{"name":"B","datatype":"BOOL","shape":[2],"data":[true,false]}"#,
            r#"{"inputs":[{"name":"A","datatype":"FP32","shape":[0],"data":[]}"#,
        ];
        assert_eq!(bodies, want.map(|body| format!("{body}{end}")));
        assert_eq!(got.left_out, 2);
        let missing = read(&[tensor(4, "C", "1", "1", "FP32")]).unwrap_err();
        assert_eq!(
            missing,
            "the trace cannot be compared: it has no inputs of 'm': record with --trace-config=level=TENSORS"
        );
        let partial = read(&[tensor(5, "A", "", "2", "FP16")]).unwrap_err();
        assert!(
            partial.ends_with("none of its 1 requests of 'm' is whole: traces hold no pictures and no FP16"),
            "{partial}"
        );
        assert!(requests(b"[", "m", &[]).unwrap_err().starts_with("the trace is no JSON: "));
    }
}
