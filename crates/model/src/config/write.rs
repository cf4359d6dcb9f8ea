//! Writes a configuration in each notation that can be read: `config.pbtxt` and `config.toml` with the fields that
//! are set, JSON with all fields and their defaults, as Triton shows it. Walks the descriptor, so that no field can
//! be forgotten.

use std::fmt::Write;

use prost::Message;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, Value};

use crate::parse::text::{Notation, key_text};
use crate::parse::{json, schema};
use wire::proto::inference::ModelConfig;

/// The text of a configuration.
pub fn encode(config: &ModelConfig, notation: Notation) -> String {
    let mut message = DynamicMessage::new(schema::model_config().clone());
    message.merge(config.encode_to_vec().as_slice()).expect("both have the same schema");
    let mut out = String::new();
    match notation {
        Notation::Json => return json::encode(config) + "\n",
        Notation::Text => text_fields(&message, 0, &mut out),
        Notation::Toml => toml_document(&message, &mut out),
    }
    out
}

/// The fields that are set, in the order of the `.proto` file.
fn fields(message: &DynamicMessage) -> Vec<(FieldDescriptor, Value)> {
    let descriptor = message.descriptor();
    let declared = descriptor.descriptor_proto().field.clone();
    let number = |number: i32| u32::try_from(number).ok();
    let declared = declared.iter().filter_map(|field| descriptor.get_field(number(field.number())?));
    let set = declared.filter(|field| message.has_field(field));
    set.map(|field| (field.clone(), message.get_field(&field).into_owned())).collect()
}

/// The entries of a map, sorted by key, so that the output is always the same.
fn entries(value: &Value) -> Vec<(MapKey, Value)> {
    let Value::Map(entries) = value else { return Vec::new() };
    let mut entries: Vec<_> = entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    entries
}

fn map_kinds(field: &FieldDescriptor) -> Option<(Kind, Kind)> {
    let kind = field.kind();
    let entry = kind.as_message().filter(|_| field.is_map())?;
    Some((entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind()))
}

/// Writes a value that is neither a message nor a list. Text format and TOML differ in strings and
/// enums only.
fn scalar(value: &Value, kind: &Kind, notation: Notation, out: &mut String) {
    let quote = if notation == Notation::Toml { toml_string } else { text_string };
    let float = |is_finite: bool, number: f64, shortest: &str, out: &mut String| match () {
        () if is_finite => out.push_str(shortest),
        () if number.is_nan() => out.push_str("nan"),
        () => out.push_str(if number > 0.0 { "inf" } else { "-inf" }),
    };
    match value {
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::I32(value) => out.push_str(itoa::Buffer::new().format(*value)),
        Value::I64(value) => out.push_str(itoa::Buffer::new().format(*value)),
        Value::U32(value) => out.push_str(itoa::Buffer::new().format(*value)),
        Value::U64(value) => out.push_str(itoa::Buffer::new().format(*value)),
        Value::F32(value) => float(value.is_finite(), (*value).into(), zmij::Buffer::new().format(*value), out),
        Value::F64(value) => float(value.is_finite(), *value, zmij::Buffer::new().format(*value), out),
        Value::String(value) => quote(value, out),
        Value::EnumNumber(number) => match kind.as_enum().and_then(|kind| kind.get_value(*number)) {
            Some(name) if notation == Notation::Toml => quote(name.name(), out),
            Some(name) => out.push_str(name.name()),
            None => out.push_str(itoa::Buffer::new().format(*number)),
        },
        // `ModelConfig` has no bytes fields; the others are not scalars.
        Value::Bytes(_) | Value::Message(_) | Value::List(_) | Value::Map(_) => {}
    }
}

fn text_fields(message: &DynamicMessage, depth: usize, out: &mut String) {
    for (field, value) in fields(message) {
        match (&value, map_kinds(&field)) {
            (_, Some((key_kind, value_kind))) => {
                for (key, value) in entries(&value) {
                    let key = TypedValue { value: &key.into(), kind: &key_kind };
                    text_entry(&field, key, TypedValue { value: &value, kind: &value_kind }, depth, out);
                }
            }
            (Value::List(items), None) if !matches!(field.kind(), Kind::Message(_)) => {
                indent(depth, out);
                let _ = write!(out, "{}: [ ", field.name());
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    scalar(item, &field.kind(), Notation::Text, out);
                }
                out.push_str(" ]\n");
            }
            (Value::List(items), None) => {
                items.iter().for_each(|item| text_value(field.name(), item, &field.kind(), depth, out))
            }
            (value, None) => text_value(field.name(), value, &field.kind(), depth, out),
        }
    }
}

/// A value with the kind that its field declares.
#[derive(Clone, Copy)]
struct TypedValue<'a> {
    value: &'a Value,
    kind: &'a Kind,
}

fn text_entry(field: &FieldDescriptor, key: TypedValue<'_>, value: TypedValue<'_>, depth: usize, out: &mut String) {
    indent(depth, out);
    let _ = writeln!(out, "{} {{", field.name());
    text_value("key", key.value, key.kind, depth + 1, out);
    text_value("value", value.value, value.kind, depth + 1, out);
    indent(depth, out);
    out.push_str("}\n");
}

fn text_value(name: &str, value: &Value, kind: &Kind, depth: usize, out: &mut String) {
    indent(depth, out);
    match value {
        Value::Message(message) => {
            let _ = writeln!(out, "{name} {{");
            text_fields(message, depth + 1, out);
            indent(depth, out);
            out.push_str("}\n");
        }
        value => {
            let _ = write!(out, "{name}: ");
            scalar(value, kind, Notation::Text, out);
            out.push('\n');
        }
    }
}

fn indent(depth: usize, out: &mut String) {
    (0..depth).for_each(|_| out.push_str("  "));
}

fn text_string(text: &str, out: &mut String) {
    quoted(text, out, |control, out| {
        let _ = write!(out, "\\{control:03o}");
    });
}

/// A quoted string; `escape` writes the control characters that have no short escape, which differ by notation.
fn quoted(text: &str, out: &mut String, escape: impl Fn(u32, &mut String)) {
    out.push('"');
    for next in text.chars() {
        match next {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' | '\u{7f}' => escape(next.into(), out),
            _ => out.push(next),
        }
    }
    out.push('"');
}

/// Scalars first, then a table for each message: in TOML every line after a table header belongs to that table.
fn toml_document(message: &DynamicMessage, out: &mut String) {
    let fields = fields(message);
    let is_table = |field: &FieldDescriptor| matches!(field.kind(), Kind::Message(_));
    for (field, value) in fields.iter().filter(|(field, _)| !is_table(field)) {
        toml_line(field, value, out);
    }
    for (field, value) in fields.iter().filter(|(field, _)| is_table(field)) {
        match value {
            Value::Message(message) => {
                let _ = writeln!(out, "\n[{}]", field.name());
                self::fields(message).iter().for_each(|(field, value)| toml_line(field, value, out));
            }
            Value::List(items) => {
                for message in items.iter().filter_map(Value::as_message) {
                    let _ = writeln!(out, "\n[[{}]]", field.name());
                    self::fields(message).iter().for_each(|(field, value)| toml_line(field, value, out));
                }
            }
            value => {
                let _ = writeln!(out, "\n[{}]", field.name());
                let kind = map_kinds(field).map_or(Kind::String, |(_, kind)| kind);
                for (key, value) in entries(value) {
                    toml_key(&key_text(&key), out);
                    out.push_str(" = ");
                    toml_value(&value, &kind, out);
                    out.push('\n');
                }
            }
        }
    }
}

fn toml_line(field: &FieldDescriptor, value: &Value, out: &mut String) {
    let _ = write!(out, "{} = ", field.name());
    toml_field(field, value, out);
    out.push('\n');
}

fn toml_field(field: &FieldDescriptor, value: &Value, out: &mut String) {
    let Some((_, kind)) = map_kinds(field) else {
        return toml_value(value, &field.kind(), out);
    };
    let mut separator = "{ ";
    for (key, value) in entries(value) {
        out.push_str(std::mem::replace(&mut separator, ", "));
        toml_key(&key_text(&key), out);
        out.push_str(" = ");
        toml_value(&value, &kind, out);
    }
    out.push_str(if separator == "{ " { "{}" } else { " }" });
}

fn toml_value(value: &Value, kind: &Kind, out: &mut String) {
    match value {
        Value::Message(message) => {
            let mut separator = "{ ";
            for (field, value) in fields(message) {
                out.push_str(std::mem::replace(&mut separator, ", "));
                let _ = write!(out, "{} = ", field.name());
                toml_field(&field, &value, out);
            }
            out.push_str(if separator == "{ " { "{}" } else { " }" });
        }
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                toml_value(item, kind, out);
            }
            out.push(']');
        }
        // TOML integers are signed: larger ones are written as strings, which the reader takes for any integer.
        Value::U64(value) if i64::try_from(*value).is_err() => {
            let _ = write!(out, "\"{value}\"");
        }
        value => scalar(value, kind, Notation::Toml, out),
    }
}

fn toml_key(key: &str, out: &mut String) {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !key.is_empty() && key.bytes().all(is_bare) { out.push_str(key) } else { toml_string(key, out) }
}

fn toml_string(text: &str, out: &mut String) {
    quoted(text, out, |control, out| {
        let _ = write!(out, "\\u{control:04X}");
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::text::ConfigText;

    fn read(notation: Notation, text: &str) -> ModelConfig {
        let config = ConfigText::decode(notation, text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        config.message.transcode_to().unwrap()
    }

    const ALL_KINDS: &str = r#"name: "m\"\\\n\001é\177"
version_policy {
  specific {
    versions: [ 1, 9223372036854775807 ]
  }
}
max_batch_size: 8
input {
  name: "x"
  data_type: TYPE_FP32
  format: FORMAT_NCHW
  dims: [ 3, -1, -1 ]
  reshape {
  }
}
input {
  name: "n"
}
dynamic_batching {
  default_priority_level: 18446744073709551615
  priority_queue_policy {
    key: 1
    value {
      timeout_action: DELAY
    }
  }
  priority_queue_policy {
    key: 10
    value {
    }
  }
}
instance_group {
  kind: KIND_CPU
  count: 2
}
metric_tags {
  key: "a b"
  value: "c"
}
parameters {
  key: "k"
  value {
    string_value: "v"
  }
}
model_warmup {
  name: "w"
  inputs {
    key: "x"
    value {
      data_type: TYPE_FP32
      dims: [ 3, 1, 1 ]
      zero_data: false
    }
  }
}
response_cache {
}
model_metrics {
  metric_control {
    metric_identifier {
      family: "f"
    }
    histogram_options {
      buckets: [ 0.1, 1e+22, inf, -inf, nan ]
    }
  }
}
"#;

    #[test]
    fn what_is_written_in_each_notation_reads_back_the_same() {
        let config = read(Notation::Text, ALL_KINDS);
        let text = encode(&config, Notation::Text);
        assert_eq!(text, ALL_KINDS);
        for notation in Notation::ALL {
            let written = encode(&config, notation);
            assert_eq!(encode(&read(notation, &written), Notation::Text), text, "{notation:?}\n{written}");
        }
    }

    #[test]
    fn toml_is_written_as_a_person_would() {
        let config = read(Notation::Text, ALL_KINDS);
        let text = encode(&config, Notation::Toml);
        for line in [
            "max_batch_size = 8",
            "[[input]]",
            "format = \"FORMAT_NCHW\"",
            "dims = [3, -1, -1]",
            "reshape = {}",
            "[version_policy]",
            "specific = { versions = [1, 9223372036854775807] }",
            "default_priority_level = \"18446744073709551615\"",
            "priority_queue_policy = { 1 = { timeout_action = \"DELAY\" }, 10 = {} }",
            "\"a b\" = \"c\"",
            "k = { string_value = \"v\" }",
            "inputs = { x = { data_type = \"TYPE_FP32\", dims = [3, 1, 1], zero_data = false } }",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
}
