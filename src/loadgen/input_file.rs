//! Inputs from a JSON file in perf_analyzer's format. Pure. `{"data": [SAMPLE, …]}` is one stream,
//! `{"data": [[SAMPLE, …], …]}` several. In a sample, each input is an array, `{"content": …}` with an optional
//! `"shape"`, or `{"b64": "…"}`.

use crate::budget::ReceiveReservation;
use crate::loadgen::description::{InputDescription, integers};
use crate::loadgen::input::{InputLayout, InputSample, Inputs, one_element};
use crate::protocol::rest;
use crate::tensor::Tensor;
use crate::wire::base64;
use crate::wire::json::{Document, JsonValue, RawArray, ValueKind};

impl InputLayout<'_> {
    /// Decodes the text of a file.
    ///
    /// # Errors
    /// A line for the user: the fault of the file, or of its fit to the model.
    pub fn from_json(&self, text: &[u8]) -> Result<Inputs, String> {
        let document = Document::parse(text, &["data"]).map_err(|error| error.to_string())?;
        if document.root().get("validation_data").is_some() {
            return Err("validation_data is not supported: answers are not compared".to_owned());
        }
        let samples = document.root().get("data").map(JsonValue::kind);
        let Some(ValueKind::Raw(RawArray { text, .. })) = samples else {
            return Err("expected an object with an array 'data'".to_owned());
        };
        // A second parse for the array alone: an input may be named "data" too, and the parser leaves every member with
        // that name undecoded.
        let mut raw_names = vec!["content"];
        raw_names.extend(self.inputs.iter().map(|(input, _)| input.name.as_str()));
        let document = Document::parse(text, &raw_names).map_err(|error| format!("in 'data': {error}"))?;
        let root = document.root();
        let streams: Vec<Vec<InputSample>> = if root.elements().any(|element| *element.kind() == ValueKind::Array) {
            let stream = |stream: JsonValue<'_, '_>| stream.elements().map(|sample| self.sample(sample)).collect();
            root.elements().map(stream).collect::<Result<_, String>>()?
        } else {
            vec![root.elements().map(|sample| self.sample(sample)).collect::<Result<_, _>>()?]
        };
        if streams.is_empty() || streams.iter().any(Vec::is_empty) {
            return Err("'data' holds a stream without inputs".to_owned());
        }
        Ok(Inputs { streams, is_batching: self.is_batching })
    }

    fn sample(&self, sample: JsonValue<'_, '_>) -> Result<InputSample, String> {
        if *sample.kind() != ValueKind::Object {
            return Err("expected an object with a member for each input".to_owned());
        }
        if let Some((name, _)) =
            sample.members().find(|(name, _)| self.inputs.iter().all(|(input, _)| input.name != *name))
        {
            return Err(format!("'{name}' is not an input of the model"));
        }
        let tensor = |(input, shape): &(&InputDescription, Vec<i64>)| match sample.get(&input.name) {
            Some(value) => self.value(input, shape, value).map(Some),
            None if self.optional.contains(&input.name) => Ok(None),
            None => Err(format!("a sample has no '{}'", input.name)),
        };
        self.inputs.iter().map(tensor).collect()
    }

    fn value(&self, input: &InputDescription, shape: &[i64], value: JsonValue<'_, '_>) -> Result<Tensor, String> {
        let given = value.get("shape").map(integers);
        let shape = given.as_deref().unwrap_or(shape);
        let content = value.get("content").unwrap_or(value);
        let encoded = content.get("b64").and_then(JsonValue::as_str);
        if let Some(text) = encoded {
            let bytes = base64::decode(text).ok_or_else(|| format!("'b64' of input '{}' is no base64", input.name))?;
            // perf_analyzer sends the bytes as they are: strings behind their lengths. Others are one string.
            let outcome = self.checked(input, shape, bytes.clone());
            return match self.one_string(input, shape, &bytes).filter(|_| outcome.is_err()) {
                Some(contents) => self.checked(input, &one_element(shape), contents),
                None => outcome,
            };
        }
        self.count(input, shape)?;
        match content.kind() {
            ValueKind::Raw(_) => {
                let mut memory = ReceiveReservation::default();
                let contents = rest::data::decode(&input.name, Some(input.datatype), shape, content, &mut memory);
                let contents = contents.map_err(|error| format!("input '{}': {}", input.name, error.text()))?;
                self.checked(input, shape, contents)
            }
            _ => Err(format!("input '{}' is neither an array nor has it 'content' or 'b64'", input.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::description::{DescribedConfig, ModelDescription};
    use crate::loadgen::input::InputPlan;
    use crate::tensor::Datatype;

    fn read(text: &str) -> Result<Inputs, String> {
        let input = |name: &str, datatype, shape: &[i64]| InputDescription {
            name: name.to_owned(),
            datatype,
            shape: shape.to_vec(),
        };
        let config = DescribedConfig { rows_max: 8, optional: vec!["S".to_owned()], ..DescribedConfig::default() };
        let inputs = vec![input("A", Datatype::Int32, &[-1, 2]), input("S", Datatype::Bytes, &[-1, -1])];
        let model = ModelDescription { inputs, config: Some(config) };
        let plan = InputPlan { rows: 1, shapes: vec![], string: None, string_length: 1, seed: 1 };
        InputLayout::new(&model, &plan)?.from_json(text.as_bytes())
    }

    /// `stream.index input shape bytes` of all samples.
    fn show(inputs: &Inputs) -> String {
        let mut out = String::new();
        for (stream, samples) in inputs.streams.iter().enumerate() {
            for (index, sample) in samples.iter().enumerate() {
                for (input, tensor) in sample.iter().enumerate() {
                    let text =
                        tensor.as_ref().map_or("-".to_owned(), |t| format!("{:?} {:?}", &t.shape[..], &t.contents[..]));
                    out += &format!("{stream}.{index} {input} {text}\n");
                }
            }
        }
        out
    }

    #[test]
    fn every_form_of_the_format_is_read() {
        let text = r#"{"data": [
            [{"A": [1, 2], "S": {"content": ["x", "yz"], "shape": [2]}}, {"A": {"content": [[3], [4]]}}],
            [{"A": {"b64": "AQAAAAIAAAA="}}, {"A": {"content": {"b64": "AQAAAAIAAAA="}, "shape": [2]}}]
        ]}"#;
        expect_test::expect![[r#"
            0.0 0 [2] [1, 0, 0, 0, 2, 0, 0, 0]
            0.0 1 [2] [1, 0, 0, 0, 120, 2, 0, 0, 0, 121, 122]
            0.1 0 [2] [3, 0, 0, 0, 4, 0, 0, 0]
            0.1 1 -
            1.0 0 [2] [1, 0, 0, 0, 2, 0, 0, 0]
            1.0 1 -
            1.1 0 [2] [1, 0, 0, 0, 2, 0, 0, 0]
            1.1 1 -
        "#]]
        .assert_eq(&show(&read(text).unwrap()));
        assert_eq!(read(r#"{"data":[{"A":[1,2]},{"A":[3,4]}]}"#).unwrap().streams.len(), 1);
        // A string alone, as of an image, and behind its length, as perf_analyzer sends it.
        for string in ["aGk=", "AgAAAGhp"] {
            let text = format!(r#"{{"data":[{{"A":[1,2],"S":{{"b64":"{string}","shape":[1]}}}}]}}"#);
            let shown = show(&read(&text).unwrap());
            assert!(shown.ends_with("0.0 1 [1] [2, 0, 0, 0, 104, 105]\n"), "{shown}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let check = |text: &str, want: &str| assert_eq!(read(text).unwrap_err(), want, "{text}");
        check("[]", "expected an object with an array 'data'");
        check("{", "Missing a name for object member. at 1");
        check(r#"{"data":[]}"#, "'data' holds a stream without inputs");
        check(r#"{"data":[[]]}"#, "'data' holds a stream without inputs");
        check(r#"{"data":[1]}"#, "expected an object with a member for each input");
        check(r#"{"data":[{"B":[1]}]}"#, "'B' is not an input of the model");
        check(r#"{"data":[{}]}"#, "a sample has no 'A'");
        check(r#"{"data":[{"A":5}]}"#, "input 'A' is neither an array nor has it 'content' or 'b64'");
        check(r#"{"data":[{"A":{"b64":"!"}}]}"#, "'b64' of input 'A' is no base64");
        check(r#"{"data":[{"A":{"b64":"AQ=="}}]}"#, "input 'A' of shape [2] needs 8 bytes, got 1");
        check(r#"{"data":[{"A":[1]}]}"#, "input 'A': Failed to parse 'data' field: shape does not match true shape");
        check(
            r#"{"data":[{"A":[1,2],"S":["x"]}]}"#,
            "input 'S' has the variable shape [-1]: give it one with --shape S:…",
        );
        check(
            r#"{"data":[{"A":[1,2]}],"validation_data":[]}"#,
            "validation_data is not supported: answers are not compared",
        );
    }
}
