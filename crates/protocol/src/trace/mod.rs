//! Triton's trace extension: the settings that clients change and read ([`rest`], [`grpc`]), and
//! the two formats of written records ([`mod@file`], [`otlp`]).

pub mod file;
pub mod grpc;
pub mod otlp;
pub mod rest;

use std::num::IntErrorKind;
use std::ops::RangeInclusive;

use base::error::Error;
use trace::{SettingChange, TraceLevel, TraceMode, TraceTable};

/// A change that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOrder {
    /// The model; empty for the global setting.
    pub model: String,
    /// The change.
    pub change: SettingChange,
}

/// Triton's refusal of `trace_file`: a client must not choose where the server writes.
fn file_is_fixed() -> Error {
    Error::unsupported("trace file location can not be updated through network protocol")
}

/// The level that a list of names asks for; `None` if none of them is known, which changes nothing,
/// as in Triton.
fn level<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Result<Option<TraceLevel>, Error> {
    let (count, mut level) = (names.len(), None);
    for name in names {
        match name {
            "OFF" if count > 1 => return Err(Error::invalid("Expect only one trace level 'OFF' is specified")),
            "OFF" => level = Some(TraceLevel::OFF),
            "TIMESTAMPS" => level.get_or_insert(TraceLevel::OFF).timestamps = true,
            "TENSORS" => level.get_or_insert(TraceLevel::OFF).tensors = true,
            _ => {}
        }
    }
    Ok(level)
}

/// A rate or a frequency.
fn unsigned(name: &str, text: &str) -> Result<u32, Error> {
    let range = 0..=i64::from(u32::MAX);
    let value = integer(name, text, &range)?;
    u32::try_from(value).map_err(|_| out_of_range(name, text, &range))
}

/// A count: -1 for no limit. `space` is Triton's text before the value in its refusal: empty over
/// REST.
fn count(text: &str, space: &str) -> Result<i64, Error> {
    let value = integer("trace_count", text, &(-1..=i64::from(i32::MAX)))?;
    if value < -1 {
        return Err(Error::invalid(format!("Unable to parse 'trace_count'. Expecting value >= -1, got:{space}{text}")));
    }
    Ok(value)
}

/// A number that fits into 32 bits with a sign, which is all that Triton reads.
fn integer(name: &str, text: &str, range: &RangeInclusive<i64>) -> Result<i64, Error> {
    let value = text.parse::<i32>();
    value.map(i64::from).map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => out_of_range(name, text, range),
        _ => Error::invalid(format!("Unable to parse '{name}', got: {text}")),
    })
}

fn out_of_range(name: &str, text: &str, range: &RangeInclusive<i64>) -> Error {
    let (least, most) = (range.start(), range.end());
    Error::invalid(format!("Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}"))
}

/// A setting as clients see it, in Triton's order: the levels, then everything else.
fn told(table: &TraceTable, model: &str) -> (Vec<&'static str>, Vec<(String, String)>) {
    let setting = table.setting(model);
    let mut fields = vec![
        ("trace_rate".to_owned(), setting.rate.to_string()),
        ("trace_count".to_owned(), setting.remaining().to_string()),
    ];
    if setting.mode == TraceMode::Triton {
        fields.push(("log_frequency".to_owned(), setting.log_frequency.to_string()));
        fields.push(("trace_file".to_owned(), table.file().to_owned()));
    }
    fields.push(("trace_mode".to_owned(), setting.mode.name().to_owned()));
    fields.extend_from_slice(table.options());
    (setting.level.names().collect(), fields)
}
