//! A model as its server describes it: inputs, batching, sequences. Decoded from JSON or from gRPC messages. Pure. The
//! configuration is an extension of Triton; without it, a first dimension of -1 on every input counts as the batch axis.

use prost::Message;

use crate::tensor::Datatype;
use crate::wire::json::{Document, JsonValue, ValueKind};
use crate::wire::proto::inference as proto;

/// A model's inputs and configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDescription {
    /// The inputs, in the server's order.
    pub inputs: Vec<InputDescription>,
    /// The configuration; `None` if the server does not offer it.
    pub config: Option<DescribedConfig>,
}

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputDescription {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its dimensions with the batch axis, if there is one; -1 for a variable size.
    pub shape: Vec<i64>,
}

/// The part of Triton's model configuration that the load generator needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribedConfig {
    /// `max_batch_size`.
    pub rows_max: i64,
    /// True if it has `sequence_batching`.
    pub is_sequence: bool,
    /// True if it is decoupled: a request may have any number of answers.
    pub is_decoupled: bool,
    /// Names of the optional inputs.
    pub optional: Vec<String>,
}

impl ModelDescription {
    /// Decodes the metadata of the HTTP protocol.
    ///
    /// # Errors
    /// A line for the user: no JSON, no inputs, or an unknown datatype.
    pub fn from_json(body: &[u8]) -> Result<Self, String> {
        let document =
            Document::parse(body, &[]).map_err(|error| format!("the model's metadata is no JSON: {error}"))?;
        let inputs = document.root().get("inputs").ok_or("the model's metadata names no inputs")?;
        let inputs = inputs.elements().map(|input| {
            let text = |name| input.get(name).and_then(JsonValue::as_str).unwrap_or_default();
            let shape = input.get("shape").map(integers).unwrap_or_default();
            new_input(text("name"), text("datatype"), shape)
        });
        Ok(Self { inputs: inputs.collect::<Result<_, _>>()?, config: None })
    }

    /// Decodes the metadata of the gRPC protocol.
    ///
    /// # Errors
    /// A line for the user: no such message, or an unknown datatype.
    pub fn from_message(message: &[u8]) -> Result<Self, String> {
        let response = proto::ModelMetadataResponse::decode(message)
            .map_err(|error| format!("the model's metadata is no ModelMetadataResponse: {error}"))?;
        let inputs = response.inputs.into_iter().map(|input| new_input(&input.name, &input.datatype, input.shape));
        Ok(Self { inputs: inputs.collect::<Result<_, _>>()?, config: None })
    }

    /// Returns true if requests have a batch axis: by the configuration, or without one, if the
    /// first dimension of every input is -1.
    pub fn is_batching(&self) -> bool {
        match &self.config {
            Some(config) => config.rows_max > 0,
            None => !self.inputs.is_empty() && self.inputs.iter().all(|input| input.shape.first() == Some(&-1)),
        }
    }
}

impl DescribedConfig {
    /// Decodes the configuration of the HTTP protocol. `None` if it is not one.
    pub fn from_json(body: &[u8]) -> Option<Self> {
        let document = Document::parse(body, &[]).ok()?;
        let root = document.root();
        let rows_max = root.get("max_batch_size").map_or(0, integer);
        root.get("input")?;
        let is_true = |value: Option<JsonValue<'_, '_>>| value.and_then(JsonValue::as_bool).unwrap_or(false);
        let optional = root.get("input")?.elements().filter(|input| is_true(input.get("optional")));
        let policy = root.get("model_transaction_policy");
        Some(Self {
            rows_max,
            is_sequence: root.get("sequence_batching").is_some_and(|value| *value.kind() == ValueKind::Object),
            is_decoupled: is_true(policy.and_then(|policy| policy.get("decoupled"))),
            optional: optional.filter_map(|input| input.get("name")?.as_str().map(str::to_owned)).collect(),
        })
    }

    /// Decodes the configuration of the gRPC protocol. `None` if it is not one.
    pub fn from_message(message: &[u8]) -> Option<Self> {
        use proto::model_config::SchedulingChoice;

        let config = proto::ModelConfigResponse::decode(message).ok()?.config?;
        let optional = config.input.into_iter().filter(|input| input.optional);
        Some(Self {
            rows_max: i64::from(config.max_batch_size),
            is_sequence: matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))),
            is_decoupled: config.model_transaction_policy.is_some_and(|policy| policy.decoupled),
            optional: optional.map(|input| input.name).collect(),
        })
    }
}

fn new_input(name: &str, datatype: &str, shape: Vec<i64>) -> Result<InputDescription, String> {
    let known = Datatype::from_name(datatype);
    let datatype = known.ok_or_else(|| format!("input '{name}' has the unknown datatype '{datatype}'"))?;
    Ok(InputDescription { name: name.to_owned(), datatype, shape })
}

/// The integers of a JSON array; 0 for other elements.
pub fn integers(value: JsonValue<'_, '_>) -> Vec<i64> {
    value.elements().map(integer).collect()
}

fn integer(value: JsonValue<'_, '_>) -> i64 {
    match value.kind() {
        ValueKind::Integer(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_protocols_describe_the_same_model() {
        let text = r#"{"name":"m","versions":["1"],"platform":"p","inputs":[
            {"name":"A","datatype":"FP32","shape":[-1,16]},{"name":"B","datatype":"BYTES","shape":[-1,1]}],"outputs":[]}"#;
        let input = |name: &str, datatype: &str, shape: &[i64]| proto::model_metadata_response::TensorMetadata {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: shape.to_vec(),
        };
        let message = proto::ModelMetadataResponse {
            inputs: vec![input("A", "FP32", &[-1, 16]), input("B", "BYTES", &[-1, 1])],
            ..Default::default()
        };
        let want = ModelDescription::from_json(text.as_bytes()).unwrap();
        assert_eq!(ModelDescription::from_message(&message.encode_to_vec()), Ok(want.clone()));
        assert_eq!(
            want.inputs[1],
            InputDescription { name: "B".to_owned(), datatype: Datatype::Bytes, shape: vec![-1, 1] }
        );
        assert!(want.is_batching());
    }

    #[test]
    fn both_protocols_tell_the_same_configuration() {
        let text = r#"{"name":"m","max_batch_size":8,"input":[{"name":"A"},{"name":"B","optional":true}],
            "sequence_batching":{"direct":{}},"model_transaction_policy":{"decoupled":true}}"#;
        let want =
            DescribedConfig { rows_max: 8, is_sequence: true, is_decoupled: true, optional: vec!["B".to_owned()] };
        assert_eq!(DescribedConfig::from_json(text.as_bytes()), Some(want.clone()));
        let input = |name: &str, optional| proto::ModelInput { name: name.to_owned(), optional, ..Default::default() };
        let config = proto::ModelConfig {
            max_batch_size: 8,
            input: vec![input("A", false), input("B", true)],
            scheduling_choice: Some(proto::model_config::SchedulingChoice::SequenceBatching(Default::default())),
            model_transaction_policy: Some(proto::ModelTransactionPolicy { decoupled: true }),
            ..Default::default()
        };
        let message = proto::ModelConfigResponse { config: Some(config) }.encode_to_vec();
        assert_eq!(DescribedConfig::from_message(&message), Some(want));
        assert_eq!(DescribedConfig::from_json(br#"{"error":"not found"}"#), None);
    }

    #[test]
    fn the_configuration_decides_whether_there_is_a_batch_axis() {
        let mut model =
            ModelDescription::from_json(br#"{"inputs":[{"name":"A","datatype":"FP32","shape":[-1,16]}]}"#).unwrap();
        model.config = Some(DescribedConfig::default());
        assert!(!model.is_batching(), "max_batch_size: 0");
        model.config = Some(DescribedConfig { rows_max: 1, ..DescribedConfig::default() });
        assert!(model.is_batching());
    }

    #[test]
    fn what_cannot_be_served_is_said() {
        let check =
            |text: &str, want: &str| assert_eq!(ModelDescription::from_json(text.as_bytes()).unwrap_err(), want);
        check("{}", "the model's metadata names no inputs");
        check("x", "the model's metadata is no JSON: Invalid value. at 0");
        check(r#"{"inputs":[{"name":"A","datatype":"FP8"}]}"#, "input 'A' has the unknown datatype 'FP8'");
    }
}
