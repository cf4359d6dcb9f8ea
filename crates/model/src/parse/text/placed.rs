//! Converts `config.json` and `config.toml`, parsed into a document with offsets, to an `inference.ModelConfig`, by
//! protobuf's JSON mapping: fields by their names in the `.proto` file (or in lowerCamelCase), 64-bit integers as numbers
//! or strings, enums by name or number, maps as tables, one value for a list of one. `null` sets nothing.

use std::collections::BTreeMap;

use prost_reflect::{DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

use crate::limits::CONFIG_DEPTH_MAX;
use crate::parse::text::{TextRefusal, expected_names, shown};
use wire::placed::{Placed, PlacedMember, PlacedValue};

/// Returns the message and the byte offsets of its fields by path.
pub(super) fn read(
    document: &Placed,
    descriptor: &MessageDescriptor,
) -> Result<(DynamicMessage, BTreeMap<String, usize>), TextRefusal> {
    let mut reader = DocumentReader::default();
    let message = reader.message(document, descriptor, 0)?;
    Ok((message, reader.offsets))
}

#[derive(Default)]
struct DocumentReader {
    path: String,
    offsets: BTreeMap<String, usize>,
}

fn refuse<T>(offset: usize, text: String) -> Result<T, TextRefusal> {
    Err(TextRefusal { offset, text })
}

impl DocumentReader {
    fn message(
        &mut self,
        value: &Placed,
        descriptor: &MessageDescriptor,
        depth: usize,
    ) -> Result<DynamicMessage, TextRefusal> {
        let PlacedValue::Table(members) = &value.value else {
            return refuse(value.offset, format!("expected a table of \"{}\", {}", descriptor.name(), got(value)));
        };
        if depth > CONFIG_DEPTH_MAX {
            return refuse(value.offset, format!("messages are nested deeper than {CONFIG_DEPTH_MAX}"));
        }
        let mut message = DynamicMessage::new(descriptor.clone());
        let mut seen: Vec<FieldDescriptor> = Vec::new();
        for member in members {
            let name = &member.name;
            let found = descriptor.get_field_by_name(name).or_else(|| descriptor.get_field_by_json_name(name));
            let Some(field) = found else {
                let (kind, name) = (descriptor.full_name(), shown(name));
                return refuse(member.offset, format!("message type \"{kind}\" has no field named \"{name}\""));
            };
            if seen.contains(&field) {
                let text = format!("field \"{}\" is specified multiple times", field.name());
                return refuse(member.offset, text);
            }
            if member.value.value == PlacedValue::Null {
                continue;
            }
            let oneof = field.containing_oneof();
            let other = oneof.as_ref().and_then(|oneof| oneof.fields().find(|other| seen.contains(other)));
            if let (Some(oneof), Some(other)) = (oneof, other) {
                let (field, other, oneof) = (field.name(), other.name(), oneof.name());
                let text = format!("\"{field}\" is specified along with \"{other}\", another member of \"{oneof}\"");
                return refuse(member.offset, text);
            }
            seen.push(field.clone());
            let outside = self.enter(field.name(), member.offset);
            let value = self.field(&field, &member.value, depth)?;
            self.path.truncate(outside);
            message.set_field(&field, value);
        }
        Ok(message)
    }

    /// Appends a field to the path and records its first offset. Returns the path's length before, to truncate it to.
    fn enter(&mut self, name: &str, offset: usize) -> usize {
        let outside = self.path.len();
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
        self.offsets.entry(self.path.clone()).or_insert(offset);
        outside
    }

    fn field(&mut self, field: &FieldDescriptor, value: &Placed, depth: usize) -> Result<Value, TextRefusal> {
        if field.is_map() {
            return self.map(field, value, depth);
        }
        if !field.is_list() {
            return self.single(&field.kind(), field, value, depth);
        }
        // Protobuf's own reader accepts one value for a list of it.
        let elements = match &value.value {
            PlacedValue::List(elements) => elements.as_slice(),
            _ => std::slice::from_ref(value),
        };
        let outside = self.path.len();
        let mut list = Vec::with_capacity(elements.len());
        for (index, element) in elements.iter().enumerate() {
            self.path.push_str(&format!("[{index}]"));
            self.offsets.insert(self.path.clone(), element.offset);
            list.push(self.single(&field.kind(), field, element, depth)?);
            self.path.truncate(outside);
        }
        Ok(Value::List(list))
    }

    fn map(&mut self, field: &FieldDescriptor, value: &Placed, depth: usize) -> Result<Value, TextRefusal> {
        let PlacedValue::Table(members) = &value.value else {
            return refuse(value.offset, format!("expected a table for \"{}\", {}", field.name(), got(value)));
        };
        let kind = field.kind();
        let Some(entry) = kind.as_message() else { return Ok(Value::Map(Default::default())) };
        let (key_kind, value_kind) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
        let mut map = std::collections::HashMap::new();
        for member in members {
            let key = map_key(&key_kind, field, member)?;
            let outside = self.enter("value", member.offset);
            let value = self.single(&value_kind, field, &member.value, depth)?;
            self.path.truncate(outside);
            if map.insert(key, value).is_some() {
                let text = format!("\"{}\" has the key {} twice", field.name(), shown(&member.name));
                return refuse(member.offset, text);
            }
        }
        Ok(Value::Map(map))
    }

    fn single(
        &mut self,
        kind: &Kind,
        field: &FieldDescriptor,
        value: &Placed,
        depth: usize,
    ) -> Result<Value, TextRefusal> {
        match kind {
            Kind::Message(descriptor) => self.message(value, descriptor, depth + 1).map(Value::Message),
            Kind::String => match &value.value {
                PlacedValue::String(text) => Ok(Value::String(text.clone())),
                _ => refuse(value.offset, format!("expected a string for \"{}\", {}", field.name(), got(value))),
            },
            Kind::Bytes => refuse(value.offset, format!("\"{}\" cannot be given here", field.name())),
            Kind::Bool => match &value.value {
                PlacedValue::Bool(is_true) => Ok(Value::Bool(*is_true)),
                _ => refuse(value.offset, format!("expected true or false for \"{}\", {}", field.name(), got(value))),
            },
            Kind::Enum(descriptor) => enumeration(descriptor, field, value),
            Kind::Float => float(field, value).map(|number| Value::F32(number as f32)),
            Kind::Double => float(field, value).map(Value::F64),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => integer(field, value).map(Value::I32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => integer(field, value).map(Value::I64),
            Kind::Uint32 | Kind::Fixed32 => integer(field, value).map(Value::U32),
            Kind::Uint64 | Kind::Fixed64 => integer(field, value).map(Value::U64),
        }
    }
}

fn map_key(kind: &Kind, field: &FieldDescriptor, member: &PlacedMember) -> Result<MapKey, TextRefusal> {
    let name = &member.name;
    let key = match kind {
        Kind::Uint64 => name.parse().ok().map(MapKey::U64),
        Kind::Int32 => name.parse().ok().map(MapKey::I32),
        Kind::String => Some(MapKey::String(name.clone())),
        _ => None,
    };
    match key {
        Some(key) => Ok(key),
        None => refuse(member.offset, format!("'{}' cannot be a key of \"{}\"", shown(name), field.name())),
    }
}

fn enumeration(descriptor: &EnumDescriptor, field: &FieldDescriptor, value: &Placed) -> Result<Value, TextRefusal> {
    let found = match &value.value {
        PlacedValue::String(name) => descriptor.get_value_by_name(name),
        PlacedValue::Number(number) => number.parse().ok().and_then(|number| descriptor.get_value(number)),
        _ => None,
    };
    let text = match (&found, &value.value) {
        (Some(found), _) => return Ok(Value::EnumNumber(found.number())),
        (None, PlacedValue::String(text) | PlacedValue::Number(text)) => format!("unknown value \"{}\"", shown(text)),
        (None, _) => "unknown value".to_owned(),
    };
    let given = if let PlacedValue::String(text) = &value.value { text } else { "" };
    refuse(value.offset, format!("{text} for \"{}\", {}", field.name(), expected_names(descriptor, given)))
}

/// An integer as a number or a string: programs whose JSON numbers are doubles must write large integers as strings.
fn integer<T: TryFrom<i128>>(field: &FieldDescriptor, value: &Placed) -> Result<T, TextRefusal> {
    let (PlacedValue::Number(text) | PlacedValue::String(text)) = &value.value else {
        return refuse(value.offset, format!("expected an integer for \"{}\", {}", field.name(), got(value)));
    };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return refuse(value.offset, format!("expected an integer for \"{}\", {}", field.name(), got(value)));
    }
    match text.parse::<i128>().ok().and_then(|number| T::try_from(number).ok()) {
        Some(number) => Ok(number),
        None => refuse(value.offset, format!("integer out of range ({})", shown(text))),
    }
}

fn float(field: &FieldDescriptor, value: &Placed) -> Result<f64, TextRefusal> {
    let number = match &value.value {
        PlacedValue::Number(text) => text.parse().ok(),
        // Protobuf's JSON mapping and our own writer have these as strings.
        PlacedValue::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "inf" | "Infinity" => Some(f64::INFINITY),
            "-inf" | "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    };
    match number {
        Some(number) => Ok(number),
        None => refuse(value.offset, format!("expected a number for \"{}\", {}", field.name(), got(value))),
    }
}

fn got(value: &Placed) -> String {
    match &value.value {
        PlacedValue::Bool(is_true) => format!("got {is_true}"),
        PlacedValue::List(_) => "got a list".to_owned(),
        PlacedValue::Null => "got null".to_owned(),
        PlacedValue::Number(text) => format!("got {}", shown(text)),
        PlacedValue::String(text) => format!("got \"{}\"", shown(text)),
        PlacedValue::Table(_) => "got a table".to_owned(),
    }
}
