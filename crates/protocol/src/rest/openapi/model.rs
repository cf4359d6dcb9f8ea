//! The OpenAPI document of one model: its operations, with its tensors as schemas for `infer` and `generate`.

use std::fmt::Write as _;

use super::EndpointContent::{Events, Json, Probe, Tensors};
use super::{COMPONENTS, RestEndpoint};
use crate::rest::encode::JSON;
use crate::route::ModelPath;
use base::tensor::Datatype;
use model::{ModelSpec, TensorSpec};
use wire::json::writer;
use wire::message::Reply;

/// The endpoints of a model that the document describes.
const ENDPOINTS: [RestEndpoint; 5] = [
    RestEndpoint::get("/v2/models/{model}", "modelMetadata", "Inputs and outputs", Json("ModelMetadata")),
    RestEndpoint::get("/v2/models/{model}/ready", "modelReady", "Whether the model can serve", Probe("ModelReady")),
    RestEndpoint::post(
        "/v2/models/{model}/infer",
        "infer",
        "Runs the model",
        Tensors("ModelInferRequest"),
        Tensors("ModelInferResponse"),
    ),
    RestEndpoint::post(
        "/v2/models/{model}/generate",
        "generate",
        "Runs the model on plain JSON",
        Json("ModelGenerateRequest"),
        Json("ModelGenerateResponse"),
    ),
    RestEndpoint::post(
        "/v2/models/{model}/generate_stream",
        "generateStream",
        "The same with any number of responses, each an event",
        Json("ModelGenerateRequest"),
        Events,
    ),
];

/// The document of a model, or of the version that the path names, as a reply. With `has_keys`
/// clients need API keys.
pub fn model_reply(version: &str, has_keys: bool, path: ModelPath<'_>, spec: &ModelSpec) -> Reply {
    Reply::new(200, JSON, document(version, has_keys, path, spec))
}

fn document(version: &str, has_keys: bool, path: ModelPath<'_>, spec: &ModelSpec) -> String {
    let mut name = percent_encoded(path.name);
    if let Some(version) = path.version {
        let _ = write!(name, "/versions/{version}");
    }
    let path_of = |endpoint: &RestEndpoint| {
        let path = endpoint.path.replace("{model}", &name);
        let operation = endpoint.operation(&path, endpoint.name, has_keys);
        format!(r#""{path}":{{{operation}}}"#)
    };
    let paths: Vec<_> = ENDPOINTS.iter().map(path_of).collect();
    let own = [
        ("ModelInferRequest", infer_request(spec)),
        ("ModelInferResponse", infer_response(spec)),
        ("ModelGenerateRequest", generate_request(spec)),
        ("ModelGenerateResponse", generate_response(spec)),
    ];
    let own = own.map(|(name, schema)| format!(r#""{name}":{schema},"#)).concat();
    let title = quoted(&format!("Deuteron: {}", path.name));
    format!(
        r#"{{"openapi":"3.0.3","info":{{"title":{title},"version":"{version}"}},"paths":{{{}}},"components":{}}}"#,
        paths.join(","),
        COMPONENTS.replacen(SCHEMAS, &format!("{SCHEMAS}{own}"), 1)
    )
}

/// The beginning of the shared schemas in `components.json`.
const SCHEMAS: &str = r#""schemas": {"#;

fn infer_request(spec: &ModelSpec) -> String {
    let required = spec.inputs.iter().filter(|input| !input.is_optional).count();
    let inputs = tensors(&spec.inputs, &format!(r#""minItems":{required},"maxItems":{}"#, spec.inputs.len()));
    let names: Vec<_> = spec.outputs.iter().map(|output| quoted(&output.name)).collect();
    let output = format!(
        r##"{{"type":"object","required":["name"],"properties":{{"name":{{"type":"string","enum":[{}]}},"parameters":{PARAMETERS}}}}}"##,
        names.join(",")
    );
    object(
        &["inputs"],
        &[
            ("id", TEXT.to_owned()),
            ("parameters", PARAMETERS.to_owned()),
            ("inputs", inputs),
            ("outputs", format!(r#"{{"type":"array","items":{output}}}"#)),
        ],
        false,
    )
}

fn infer_response(spec: &ModelSpec) -> String {
    let outputs = tensors(&spec.outputs, &format!(r#""maxItems":{}"#, spec.outputs.len()));
    let own = ["model_name", "model_version", "id"].map(|name| (name, TEXT.to_owned()));
    let others = [("parameters", PARAMETERS.to_owned()), ("outputs", outputs)];
    object(&["model_name", "model_version", "outputs"], &[own.as_slice(), &others].concat(), false)
}

fn generate_request(spec: &ModelSpec) -> String {
    let required: Vec<_> = spec.inputs.iter().filter(|input| !input.is_optional).map(|input| &*input.name).collect();
    let mut members: Vec<_> = spec.inputs.iter().map(|input| (&*input.name, value(input))).collect();
    let has_input = |name: &str| spec.inputs.iter().any(|input| input.name == name);
    for (name, schema) in [("id", TEXT), ("parameters", PARAMETERS)] {
        if !has_input(name) {
            members.push((name, schema.to_owned()));
        }
    }
    object(&required, &members, true)
}

fn generate_response(spec: &ModelSpec) -> String {
    let own = ["model_name", "model_version", "id"];
    let mut members: Vec<_> = own.iter().map(|name| (*name, TEXT.to_owned())).collect();
    // The members of the response itself come before outputs of the same names.
    let outputs = spec.usual_outputs().filter(|output| !own.contains(&&*output.name));
    members.extend(outputs.map(|output| (&*output.name, value(output))));
    object(&["model_name", "model_version"], &members, true)
}

const TEXT: &str = r#"{"type":"string"}"#;
const PARAMETERS: &str = r##"{"$ref":"#/components/schemas/Parameters"}"##;

/// An object with members; an open one may have others.
fn object(required: &[&str], members: &[(&str, String)], is_open: bool) -> String {
    let mut text = r#"{"type":"object""#.to_owned();
    if !required.is_empty() {
        let required: Vec<_> = required.iter().map(|name| quoted(name)).collect();
        let _ = write!(text, r#","required":[{}]"#, required.join(","));
    }
    let members: Vec<_> = members.iter().map(|(name, schema)| format!("{}:{schema}", quoted(name))).collect();
    let _ = write!(text, r#","properties":{{{}}},"additionalProperties":{is_open}}}"#, members.join(","));
    text
}

/// A list of tensors, each one of these.
fn tensors(specs: &[TensorSpec], bounds: &str) -> String {
    let all: Vec<_> = specs.iter().map(tensor).collect();
    let items = match all.as_slice() {
        [one] => one.clone(),
        [] => "{}".to_owned(),
        all => format!(r#"{{"oneOf":[{}]}}"#, all.join(",")),
    };
    format!(r#"{{"type":"array",{bounds},"items":{items}}}"#)
}

/// A tensor of an inference.
fn tensor(spec: &TensorSpec) -> String {
    let (rank, datatype) = (spec.shape.len(), spec.datatype.name());
    let shape = format!(
        r#"{{"type":"array","items":{{"type":"integer","format":"int64"}},"minItems":{rank},"maxItems":{rank},"description":"{}"}}"#,
        shape_text(spec)
    );
    let mut members = vec![
        ("name", format!(r#"{{"type":"string","enum":[{}]}}"#, quoted(&spec.name))),
        ("datatype", format!(r#"{{"type":"string","enum":["{datatype}"]}}"#)),
        ("shape", shape),
        ("parameters", PARAMETERS.to_owned()),
    ];
    if has_json(spec.datatype) {
        members.push(("data", any_of(lists(spec), "")));
    }
    let title = quoted(&format!("Tensor {}", spec.name));
    object(&["name", "datatype", "shape"], &members, false).replacen('{', &format!(r#"{{"title":{title},"#), 1)
}

/// The value of a tensor in a generate request or response: an element, a list, or lists within lists.
fn value(spec: &TensorSpec) -> String {
    let description = format!(r#","description":"{} {}""#, spec.datatype.name(), shape_text(spec));
    if !has_json(spec.datatype) {
        return format!(r#"{{"nullable":true{description}}}"#);
    }
    let elements = spec.shape.iter().filter(|size| **size != -1).product::<i64>();
    let scalar = (elements == 1).then(|| element(spec.datatype).to_owned());
    any_of(scalar.into_iter().chain(lists(spec)).collect(), &description)
}

/// Any of several schemas.
fn any_of(mut schemas: Vec<String>, description: &str) -> String {
    match schemas.pop() {
        Some(schema) if schemas.is_empty() => {
            format!("{}{description}}}", schema.strip_suffix('}').unwrap_or_default())
        }
        last => {
            schemas.extend(last);
            format!(r#"{{"anyOf":[{}]{description}}}"#, schemas.join(","))
        }
    }
}

/// The lists that hold a tensor's elements: a flat one and, with several axes, nested ones.
fn lists(spec: &TensorSpec) -> Vec<String> {
    let flat = format!(r#"{{"type":"array","items":{}}}"#, element(spec.datatype));
    let nested = spec.shape.iter().rev().fold(element(spec.datatype).to_owned(), |items, size| {
        let bounds = if *size == -1 { String::new() } else { format!(r#","minItems":{size},"maxItems":{size}"#) };
        format!(r#"{{"type":"array"{bounds},"items":{items}}}"#)
    });
    if spec.shape.len() > 1 { vec![flat, nested] } else { vec![flat] }
}

/// Returns true if JSON can hold elements of the datatype.
const fn has_json(datatype: Datatype) -> bool {
    !matches!(datatype, Datatype::Fp16 | Datatype::Bf16)
}

/// One element of a tensor.
const fn element(datatype: Datatype) -> &'static str {
    match datatype {
        Datatype::Bool => r#"{"type":"boolean"}"#,
        Datatype::Bytes => TEXT,
        Datatype::Fp32 => r#"{"type":"number","format":"float"}"#,
        Datatype::Fp64 | Datatype::Fp16 | Datatype::Bf16 => r#"{"type":"number","format":"double"}"#,
        Datatype::Int64 => r#"{"type":"integer","format":"int64"}"#,
        Datatype::Uint64 | Datatype::Uint32 => r#"{"type":"integer","minimum":0}"#,
        Datatype::Uint8 => r#"{"type":"integer","minimum":0,"maximum":255}"#,
        Datatype::Uint16 => r#"{"type":"integer","minimum":0,"maximum":65535}"#,
        Datatype::Int8 => r#"{"type":"integer","minimum":-128,"maximum":127}"#,
        Datatype::Int16 => r#"{"type":"integer","minimum":-32768,"maximum":32767}"#,
        Datatype::Int32 => r#"{"type":"integer","format":"int32"}"#,
    }
}

fn shape_text(spec: &TensorSpec) -> String {
    let open = if spec.shape.contains(&-1) { "; -1 is any size" } else { "" };
    format!("{:?}{open}", spec.shape.as_slice())
}

/// A text as JSON.
fn quoted(text: &str) -> String {
    let mut json = Vec::new();
    writer::string(text, &mut json);
    String::from_utf8_lossy(&json).into_owned()
}

/// A name as a part of a path: all but the unreserved characters are encoded (RFC 3986 §2.3).
fn percent_encoded(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{input, output, spec};

    fn read(name: &str, version: Option<u64>, spec: &ModelSpec) -> Value {
        serde_json::from_str(&document("1.2.3", false, ModelPath { name, version }, spec)).unwrap()
    }

    #[test]
    fn the_tensors_of_a_model_are_schemas() {
        let mut model = spec(
            8,
            vec![input("x", Datatype::Fp32, &[4]), input("opt\"", Datatype::Fp16, &[1])],
            vec![output("y", Datatype::Bytes, &[1]), output("id", Datatype::Bool, &[2])],
        );
        model.inputs[1].is_optional = true;
        let document = read("m", Some(3), &model);
        assert_eq!(document["info"]["title"], "Deuteron: m");
        assert!(document["paths"]["/v2/models/m/versions/3/infer"]["post"]["parameters"].is_array());
        let schemas = &document["components"]["schemas"];
        let tensors = &schemas["ModelInferRequest"]["properties"]["inputs"];
        assert_eq!((&tensors["minItems"], &tensors["maxItems"]), (&Value::from(1), &Value::from(2)));
        let x = &tensors["items"]["oneOf"][0]["properties"];
        assert_eq!((&x["name"]["enum"][0], &x["datatype"]["enum"][0]), (&"x".into(), &"FP32".into()));
        assert_eq!(
            (&x["shape"]["minItems"], &x["shape"]["description"]),
            (&2.into(), &"[-1, 4]; -1 is any size".into())
        );
        assert_eq!(x["data"]["anyOf"][1]["items"]["minItems"], 4);
        let generate = &schemas["ModelGenerateRequest"];
        assert_eq!(generate["required"], serde_json::json!(["x"]));
        assert_eq!(generate["properties"]["opt\""]["nullable"], true, "JSON has no half floats");
        let answer = &schemas["ModelGenerateResponse"]["properties"];
        assert_eq!(answer["y"]["anyOf"][0]["type"], "string", "one element is a scalar");
        assert_eq!(answer["id"]["type"], "string", "the response's own comes first");
    }

    #[test]
    fn names_are_encoded_in_paths_and_quoted_in_texts() {
        let model = spec(0, vec![input("x", Datatype::Int8, &[2])], vec![]);
        let document = read("a \"{b}", None, &model);
        assert_eq!(document["info"]["title"], "Deuteron: a \"{b}");
        assert!(document["paths"]["/v2/models/a%20%22%7Bb%7D/generate"]["post"]["operationId"] == "generate");
        let x = &document["components"]["schemas"]["ModelGenerateRequest"]["properties"]["x"];
        assert_eq!((&x["type"], &x["items"]["minimum"]), (&"array".into(), &(-128).into()));
    }
}
