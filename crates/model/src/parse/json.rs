//! Writes a model configuration as JSON, as Triton shows it: names and order of the `.proto` file, defaults written out,
//! 64-bit integers as numbers (protobuf's own JSON mapping writes them as strings). Walks the descriptor, so that no
//! field can be forgotten.

use std::collections::HashMap;

use prost::Message;
use prost_reflect::{DynamicMessage, Kind, MapKey, ReflectMessage, Value};

use crate::parse::schema;
use crate::parse::text::key_text;
use wire::proto::inference::ModelConfig;

/// The JSON of `GET /v2/models/M/config`.
pub fn encode(config: &ModelConfig) -> String {
    let mut message = DynamicMessage::new(schema::model_config().clone());
    message.merge(config.encode_to_vec().as_slice()).expect("both have the same schema");
    let mut json = String::new();
    write_message(&message, &mut json);
    json
}

fn write_message(message: &DynamicMessage, json: &mut String) {
    let descriptor = message.descriptor();
    let mut separator = '{';
    for declared in &descriptor.descriptor_proto().field {
        let field = u32::try_from(declared.number()).ok().and_then(|number| descriptor.get_field(number));
        let Some(field) = field.filter(|field| !field.supports_presence() || message.has_field(field)) else {
            continue;
        };
        json.push(separator);
        separator = ',';
        write_string(field.name(), json);
        json.push(':');
        match message.get_field(&field).as_ref() {
            Value::Map(entries) => {
                let kind = field.kind();
                let kind = kind.as_message().map(|entry| entry.map_entry_value_field().kind());
                write_map(entries, &kind.unwrap_or(Kind::String), json);
            }
            value => write_value(value, &field.kind(), json),
        }
    }
    json.push_str(if separator == '{' { "{}" } else { "}" });
}

fn write_map(entries: &HashMap<MapKey, Value>, kind: &Kind, json: &mut String) {
    let mut entries: Vec<_> = entries.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    json.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        json.push_str(if index == 0 { "" } else { "," });
        write_string(&key_text(key), json);
        json.push(':');
        write_value(value, kind, json);
    }
    json.push('}');
}

fn write_value(value: &Value, kind: &Kind, json: &mut String) {
    match value {
        Value::Bool(value) => json.push_str(if *value { "true" } else { "false" }),
        Value::I32(value) => write_integer(*value, json),
        Value::I64(value) => write_integer(*value, json),
        Value::U32(value) => write_integer(*value, json),
        Value::U64(value) => write_integer(*value, json),
        Value::F32(value) => write_float(value.is_finite(), zmij::Buffer::new().format(*value), json),
        Value::F64(value) => write_float(value.is_finite(), zmij::Buffer::new().format(*value), json),
        Value::String(value) => write_string(value, json),
        // `ModelConfig` has no bytes fields.
        Value::Bytes(_) | Value::Map(_) => json.push_str("null"),
        Value::EnumNumber(number) => {
            let name = kind.as_enum().and_then(|kind| kind.get_value(*number));
            match name {
                Some(name) => write_string(name.name(), json),
                None => write_integer(*number, json),
            }
        }
        Value::Message(message) => write_message(message, json),
        Value::List(items) => {
            json.push('[');
            for (index, item) in items.iter().enumerate() {
                json.push_str(if index == 0 { "" } else { "," });
                write_value(item, kind, json);
            }
            json.push(']');
        }
    }
}

fn write_integer(value: impl itoa::Integer, json: &mut String) {
    json.push_str(itoa::Buffer::new().format(value));
}

/// Numbers that are not finite are written as strings: JSON has no others.
fn write_float(is_finite: bool, text: &str, json: &mut String) {
    if is_finite { json.push_str(text) } else { write_string(text, json) }
}

fn write_string(text: &str, json: &mut String) {
    json.push('"');
    for next in text.chars() {
        match next {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\0'..='\u{1f}' => json.push_str(&format!("\\u{:04X}", u32::from(next))),
            _ => json.push(next),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::text::{ConfigText, Notation};

    fn json(text: &str) -> String {
        let config = ConfigText::decode(Notation::Text, text.as_bytes()).unwrap().message.transcode_to().unwrap();
        encode(&config)
    }

    #[test]
    fn an_empty_configuration_shows_its_defaults_in_order() {
        let want = concat!(
            r#"{"name":"","platform":"","backend":"","runtime":"","max_batch_size":0,"input":[],"output":[],"#,
            r#""batch_input":[],"batch_output":[],"instance_group":[],"default_model_filename":"","#,
            r#""cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}"#
        );
        assert_eq!(json(""), want);
    }

    #[test]
    fn values_are_written_as_triton_writes_them() {
        let check = |text: &str, want: &str| assert!(json(text).contains(want), "{text}: {}", json(text));
        check("name: 'a\"\\\\b\\n\\001é/'", r#""name":"a\"\\b\n\u0001é/""#);
        check(
            "version_policy { specific { versions: 9007199254740993 } }",
            r#"{"specific":{"versions":[9007199254740993]}}"#,
        );
        check("version_policy { all { } }", r#""version_policy":{"all":{}}"#);
        check(
            "parameters { key: 'b' value { string_value: '2' } } parameters { key: 'a' }",
            r#""parameters":{"a":{"string_value":""},"b":{"string_value":"2"}}"#,
        );
        check(
            "dynamic_batching { priority_queue_policy { key: 10 } priority_queue_policy { key: 9 } }",
            concat!(
                r#""priority_queue_policy":{"9":{"timeout_action":"REJECT","default_timeout_microseconds":0,"#,
                r#""allow_timeout_override":false,"max_queue_size":0},"10":{"#
            ),
        );
        check("sequence_batching { direct { minimum_slot_utilization: 0.1 } }", r#""minimum_slot_utilization":0.1"#);
        check(
            "model_metrics { metric_control { histogram_options { buckets: [ 1, 2.5, inf ] } } }",
            r#"{"buckets":[1.0,2.5,"inf"]}"#,
        );
        check(
            "input { dims: -1 reshape { } }",
            concat!(
                r#""input":[{"name":"","data_type":"TYPE_INVALID","format":"FORMAT_NONE","dims":[-1],"#,
                r#""reshape":{"shape":[]},"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"#,
                r#""is_non_linear_format_io":false}]"#
            ),
        );
    }
}
