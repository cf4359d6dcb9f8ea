//! Reads a model configuration from text, `config.pbtxt` (text-format protobuf), `config.json` or `config.toml`, into an
//! `inference.ModelConfig`, driven by its descriptor. Called by [`crate::config`] and the fuzz target `config`.
//! Every error is one line that begins with file, line and column in the user's text. Bounded by `CONFIG_SIZE_MAX` and
//! `CONFIG_DEPTH_MAX`; an unknown field is an error, never skipped.

mod placed;

use std::collections::BTreeMap;
use std::fmt;

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};

use crate::datatype;
use crate::limits::CONFIG_DEPTH_MAX;
use crate::parse::schema;
use crate::parse::token::{Token, TokenError, TokenKind, Tokens, unquote};
use base::error::Error;
use base::limits::CONFIG_SIZE_MAX;
use base::tensor::Datatype;
use wire::placed::{Placed, PlacedError};
use wire::{json, toml};

/// The notation of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// Text-format protobuf.
    Text,
    /// JSON.
    Json,
    /// TOML.
    Toml,
}

impl Notation {
    /// All notations, in the order in which their files are searched.
    pub const ALL: [Self; 3] = [Self::Text, Self::Json, Self::Toml];

    /// The name of the file in a model's directory.
    pub const fn filename(self) -> &'static str {
        match self {
            Self::Text => "config.pbtxt",
            Self::Json => "config.json",
            Self::Toml => "config.toml",
        }
    }
}

/// A position in the text; line and column count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPosition {
    /// The file.
    pub notation: Notation,
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// The reason why a text is not a valid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// The position of the mistake.
    pub position: TextPosition,
    /// The reason, in one line.
    pub text: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.position, self.text)
    }
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.notation.filename(), self.line, self.column)
    }
}

impl From<TextError> for Error {
    fn from(error: TextError) -> Self {
        Self::invalid(error.to_string())
    }
}

/// A parsed configuration with the positions of its fields.
///
/// ```
/// use model::parse::text::{ConfigText, Notation};
///
/// let config = ConfigText::decode(Notation::Text, b"max_batch_size: 8\nbackend: 'identity'").unwrap();
/// let position = config.position("backend").unwrap();
/// assert_eq!((position.line, position.column), (2, 1));
///
/// let error = ConfigText::decode(Notation::Text, b"max_batch: 8").unwrap_err();
/// assert!(error.to_string().starts_with("config.pbtxt:1:1: "));
/// ```
#[derive(Clone, Debug)]
pub struct ConfigText {
    /// The fields.
    pub message: DynamicMessage,
    notation: Notation,
    text: String,
    /// Byte offsets of fields by path (`input[1].reshape`). Positions are computed only for errors.
    offsets: BTreeMap<String, usize>,
}

impl ConfigText {
    /// Reads a configuration.
    ///
    /// # Errors
    /// [`TextError`] for the first mistake: syntax, an unknown field, a value of the wrong type, or a limit.
    pub fn decode(notation: Notation, text: &[u8]) -> Result<Self, TextError> {
        Self::decode_as(notation, text, schema::model_config())
    }

    fn decode_as(notation: Notation, bytes: &[u8], descriptor: &MessageDescriptor) -> Result<Self, TextError> {
        if bytes.len() > CONFIG_SIZE_MAX {
            let text = format!("the file has {} bytes, more than the {CONFIG_SIZE_MAX} allowed", bytes.len());
            return Err(TextError { position: TextPosition { notation, line: 1, column: 1 }, text });
        }
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let valid = std::str::from_utf8(valid).unwrap_or_default();
            TextError { position: position(notation, valid, valid.len()), text: "the text is not UTF-8".to_owned() }
        })?;
        let outcome = match notation {
            Notation::Text => {
                let mut parser = TextParser::new(text);
                parser.read_all(descriptor).map(|message| (message, parser.offsets))
            }
            Notation::Json => read_placed(json::placed::read(text), descriptor),
            Notation::Toml => read_placed(toml::read(text), descriptor),
        };
        let (message, offsets) = outcome
            .map_err(|refusal| TextError { position: position(notation, text, refusal.offset), text: refusal.text })?;
        Ok(Self { message, notation, text: text.to_owned(), offsets })
    }

    /// The position of a field, by its path (`input[1].reshape`); `None` if it is not set.
    pub fn position(&self, path: &str) -> Option<TextPosition> {
        self.offsets.get(path).map(|offset| position(self.notation, &self.text, *offset))
    }
}

fn read_placed(
    document: Result<Placed, PlacedError>,
    descriptor: &MessageDescriptor,
) -> Result<(DynamicMessage, BTreeMap<String, usize>), TextRefusal> {
    let document = document.map_err(|PlacedError { offset, text }| TextRefusal { offset, text })?;
    placed::read(&document, descriptor)
}

fn position(notation: Notation, text: &str, offset: usize) -> TextPosition {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = text.get(..offset).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
    TextPosition { notation, line, column: 1 + before.get(start..).unwrap_or_default().chars().count() }
}

/// An error at a byte offset.
struct TextRefusal {
    offset: usize,
    text: String,
}

impl From<TokenError> for TextRefusal {
    fn from(error: TokenError) -> Self {
        Self { offset: error.offset, text: error.text.to_owned() }
    }
}

fn refuse<T>(token: Token<'_>, text: String) -> Result<T, TextRefusal> {
    Err(TextRefusal { offset: token.offset, text })
}

struct TextParser<'a> {
    tokens: Tokens<'a>,
    peeked: Option<Token<'a>>,
    path: String,
    offsets: BTreeMap<String, usize>,
}

impl<'a> TextParser<'a> {
    fn new(text: &'a str) -> Self {
        Self { tokens: Tokens::new(text), peeked: None, path: String::new(), offsets: BTreeMap::new() }
    }

    fn read_all(&mut self, descriptor: &MessageDescriptor) -> Result<DynamicMessage, TextRefusal> {
        self.read_fields(descriptor, None, 0)
    }

    /// Reads fields up to the closing bracket, or up to the end of the text if `close` is `None`.
    fn read_fields(
        &mut self,
        descriptor: &MessageDescriptor,
        close: Option<&str>,
        depth: usize,
    ) -> Result<DynamicMessage, TextRefusal> {
        let mut message = DynamicMessage::new(descriptor.clone());
        let mut seen = Vec::new();
        loop {
            let token = self.take()?;
            match (token.kind, close) {
                (TokenKind::End, None) => return Ok(message),
                (TokenKind::Symbol, Some(close)) if token.text == close => return Ok(message),
                (TokenKind::Identifier, _) => self.read_field(&mut message, token, &mut seen, depth)?,
                (TokenKind::Symbol, _) if token.text == "[" => {
                    return refuse(token, "extensions and Any are not part of a model configuration".to_owned());
                }
                (_, Some(close)) => {
                    return refuse(token, format!("expected a field name or '{close}', {}", got(token)));
                }
                (_, None) => return refuse(token, format!("expected a field name, {}", got(token))),
            }
        }
    }

    fn read_field(
        &mut self,
        message: &mut DynamicMessage,
        name: Token<'a>,
        seen: &mut Vec<FieldDescriptor>,
        depth: usize,
    ) -> Result<(), TextRefusal> {
        let descriptor = message.descriptor();
        let Some(field) = descriptor.get_field_by_name(name.text) else {
            let text =
                format!("message type \"{}\" has no field named \"{}\"", descriptor.full_name(), shown(name.text));
            return refuse(name, text);
        };
        if !field.is_list() && !field.is_map() {
            check_single(&field, seen, name)?;
            seen.push(field.clone());
        }
        let colon = self.take_symbol(":")?;
        let is_message = matches!(field.kind(), Kind::Message(_));
        if colon.is_none() && !is_message {
            let token = self.peek()?;
            return refuse(token, format!("expected ':' after \"{}\", {}", field.name(), got(token)));
        }
        let outside = self.enter(field.name(), name.offset);
        self.read_values(message, &field, name, depth)?;
        self.path.truncate(outside);
        if self.take_symbol(",")?.is_none() {
            self.take_symbol(";")?;
        }
        Ok(())
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

    fn read_values(
        &mut self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        name: Token<'a>,
        depth: usize,
    ) -> Result<(), TextRefusal> {
        let is_repeated = field.is_list() || field.is_map();
        let Some(open) = self.take_symbol("[")? else { return self.read_item(message, field, name, depth) };
        if !is_repeated {
            return refuse(open, format!("\"{}\" takes one value, not a list", field.name()));
        }
        if self.take_symbol("]")?.is_some() {
            return Ok(());
        }
        loop {
            let at = self.peek()?;
            self.read_item(message, field, at, depth)?;
            if self.take_symbol(",")?.is_some() {
                continue;
            }
            if self.take_symbol("]")?.is_some() {
                return Ok(());
            }
            let token = self.peek()?;
            return refuse(token, format!("expected ',' or ']' in the list of \"{}\", {}", field.name(), got(token)));
        }
    }

    /// Reads one value and stores it in the message; records the offsets of list elements.
    fn read_item(
        &mut self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        at: Token<'a>,
        depth: usize,
    ) -> Result<(), TextRefusal> {
        let outside = self.path.len();
        if field.is_list() {
            let index = message.get_field(field).as_list().map_or(0, <[Value]>::len);
            self.path.push_str(&format!("[{index}]"));
            self.offsets.insert(self.path.clone(), at.offset);
        }
        let value = self.read_value(field, depth)?;
        self.path.truncate(outside);
        if field.is_map() {
            return put_entry(message, field, value, at);
        }
        match message.get_field_mut(field) {
            Value::List(list) if field.is_list() => list.push(value),
            place => *place = value,
        }
        Ok(())
    }

    fn read_value(&mut self, field: &FieldDescriptor, depth: usize) -> Result<Value, TextRefusal> {
        match field.kind() {
            Kind::Message(descriptor) => self.read_message(&descriptor, field, depth).map(Value::Message),
            Kind::String => {
                let at = self.peek()?;
                let bytes = self.read_string()?;
                let Ok(text) = String::from_utf8(bytes) else {
                    return refuse(at, format!("the value of \"{}\" is not UTF-8", field.name()));
                };
                Ok(Value::String(text))
            }
            Kind::Bytes => Ok(Value::Bytes(self.read_string()?.into())),
            Kind::Bool => self.read_bool(field),
            Kind::Enum(_) => self.read_enum(field),
            Kind::Float => Ok(Value::F32(self.read_float()? as f32)),
            Kind::Double => Ok(Value::F64(self.read_float()?)),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => self.read_integer().map(Value::I32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => self.read_integer().map(Value::I64),
            Kind::Uint32 | Kind::Fixed32 => self.read_integer().map(Value::U32),
            Kind::Uint64 | Kind::Fixed64 => self.read_integer().map(Value::U64),
        }
    }

    fn read_message(
        &mut self,
        descriptor: &MessageDescriptor,
        field: &FieldDescriptor,
        depth: usize,
    ) -> Result<DynamicMessage, TextRefusal> {
        let open = self.take()?;
        let close = match open.text {
            "{" => "}",
            "<" => ">",
            _ => return refuse(open, format!("expected '{{' after \"{}\", {}", field.name(), got(open))),
        };
        if depth >= CONFIG_DEPTH_MAX {
            return refuse(open, format!("messages are nested deeper than {CONFIG_DEPTH_MAX}"));
        }
        self.read_fields(descriptor, Some(close), depth + 1)
    }

    /// Adjacent strings are concatenated, as in protobuf's text format.
    fn read_string(&mut self) -> Result<Vec<u8>, TextRefusal> {
        let first = self.peek()?;
        if first.kind != TokenKind::String {
            return refuse(first, format!("expected a string, {}", got(first)));
        }
        let mut bytes = Vec::new();
        while self.peek()?.kind == TokenKind::String {
            let token = self.take()?;
            unquote(token.text, &mut bytes)
                .map_err(|(inside, text)| TextRefusal { offset: token.offset + inside, text: text.to_owned() })?;
        }
        Ok(bytes)
    }

    fn read_bool(&mut self, field: &FieldDescriptor) -> Result<Value, TextRefusal> {
        let token = self.take()?;
        match token.text {
            "true" | "True" | "t" | "1" => Ok(Value::Bool(true)),
            "false" | "False" | "f" | "0" => Ok(Value::Bool(false)),
            _ => refuse(token, format!("expected true or false for \"{}\", {}", field.name(), got(token))),
        }
    }

    fn read_enum(&mut self, field: &FieldDescriptor) -> Result<Value, TextRefusal> {
        let Kind::Enum(descriptor) = field.kind() else { return Ok(Value::EnumNumber(0)) };
        let token = self.peek()?;
        let value = if token.kind == TokenKind::Identifier {
            self.take()?;
            descriptor.get_value_by_name(token.text)
        } else {
            descriptor.get_value(self.read_integer()?)
        };
        match value {
            Some(value) => Ok(Value::EnumNumber(value.number())),
            None => {
                let (field, expected) = (field.name(), expected_names(&descriptor, token.text));
                refuse(token, format!("unknown value \"{}\" for \"{field}\", {expected}", shown(token.text)))
            }
        }
    }

    fn read_integer<T: TryFrom<i128>>(&mut self) -> Result<T, TextRefusal> {
        let sign = self.take_symbol("-")?;
        let token = self.take()?;
        let at = sign.unwrap_or(token);
        let digits = token.text;
        let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(hex) => (hex, 16),
            None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
            None => (digits, 10),
        };
        let is_integer = token.kind == TokenKind::Number && digits.chars().all(|digit| digit.is_digit(radix));
        if !is_integer || digits.is_empty() {
            return refuse(token, format!("expected an integer, {}", got(token)));
        }
        let number = i128::from_str_radix(digits, radix).ok();
        let signed = number.map(|number| if sign.is_some() { -number } else { number });
        match signed.and_then(|number| T::try_from(number).ok()) {
            Some(number) => Ok(number),
            None => refuse(at, format!("integer out of range ({}{})", sign.map_or("", |_| "-"), shown(token.text))),
        }
    }

    fn read_float(&mut self) -> Result<f64, TextRefusal> {
        let sign = if self.take_symbol("-")?.is_some() { -1.0 } else { 1.0 };
        let token = self.take()?;
        let is_known = match token.kind {
            TokenKind::Number => true,
            TokenKind::Identifier => matches!(token.text, "inf" | "infinity" | "nan"),
            _ => false,
        };
        let number = token.text.strip_suffix(['f', 'F']).filter(|_| token.text != "inf").unwrap_or(token.text);
        match number.parse::<f64>().ok().filter(|_| is_known) {
            Some(number) => Ok(sign * number),
            None => refuse(token, format!("expected a number, {}", got(token))),
        }
    }

    fn peek(&mut self) -> Result<Token<'a>, TextRefusal> {
        let token = self.take()?;
        self.peeked = Some(token);
        Ok(token)
    }

    fn take(&mut self) -> Result<Token<'a>, TextRefusal> {
        match self.peeked.take() {
            Some(token) => Ok(token),
            None => Ok(self.tokens.read()?),
        }
    }

    fn take_symbol(&mut self, symbol: &str) -> Result<Option<Token<'a>>, TextRefusal> {
        let token = self.peek()?;
        if token.kind != TokenKind::Symbol || token.text != symbol {
            return Ok(None);
        }
        self.take().map(Some)
    }
}

fn check_single(field: &FieldDescriptor, seen: &[FieldDescriptor], name: Token<'_>) -> Result<(), TextRefusal> {
    if seen.contains(field) {
        return refuse(name, format!("non-repeated field \"{}\" is specified multiple times", field.name()));
    }
    let Some(oneof) = field.containing_oneof() else { return Ok(()) };
    let Some(other) = oneof.fields().find(|other| seen.contains(other)) else { return Ok(()) };
    let (field, other, oneof) = (field.name(), other.name(), oneof.name());
    refuse(name, format!("\"{field}\" is specified along with \"{other}\", another member of \"{oneof}\""))
}

/// Adds an entry to a map. Protobuf lets a later entry replace an earlier one with the same key; here that is an error, so
/// that nothing the user wrote is ignored.
fn put_entry(
    message: &mut DynamicMessage,
    field: &FieldDescriptor,
    entry: Value,
    at: Token<'_>,
) -> Result<(), TextRefusal> {
    let Value::Message(entry) = entry else { return Ok(()) };
    let [key, value] = [1, 2].map(|number| entry.get_field_by_number(number).map(|part| part.into_owned()));
    let (Some(key), Some(value)) = (key.and_then(Value::into_map_key), value) else { return Ok(()) };
    let Value::Map(map) = message.get_field_mut(field) else { return Ok(()) };
    if map.contains_key(&key) {
        return refuse(at, format!("\"{}\" has the key {} twice", field.name(), shown(&key_text(&key))));
    }
    map.insert(key, value);
    Ok(())
}

/// The key of a map as text, without quotes.
pub fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

fn got(token: Token<'_>) -> String {
    match token.kind {
        TokenKind::End => "got the end of the file".to_owned(),
        TokenKind::String => format!("got {}", shown(token.text)),
        _ => format!("got '{}'", shown(token.text)),
    }
}

/// A piece of the user's text that is safe for one line of a log: at most 80 characters, without control characters.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    let plain = |next: char| if next.is_control() { '\u{fffd}' } else { next };
    text.chars().take(SHOWN_MAX).map(plain).collect()
}

/// The names of an enumeration, behind the one that an unknown name means if it is a datatype of another program.
fn expected_names(descriptor: &EnumDescriptor, given: &str) -> String {
    let names: Vec<_> = descriptor.values().map(|value| value.name().to_owned()).collect();
    let meant = Datatype::meant_by(given).map(|meant| datatype::to_config(meant).as_str_name());
    let near = meant.filter(|meant| names.iter().any(|name| name == meant));
    let near = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
    format!("{near}expected one of {}", names.join(", "))
}

#[cfg(test)]
mod tests;
