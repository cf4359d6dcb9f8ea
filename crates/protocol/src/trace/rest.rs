//! The trace settings over REST. Layout and texts are those of Triton's `http_server.cc`.

use crate::rest::encode::JSON;
use crate::rest::fault::json_error;
use crate::rest::misspelt;
use crate::rest::server::write_list;
use crate::trace::{TraceOrder, count, file_is_fixed, level, told, unsigned};
use base::error::Error;
use trace::{SettingChange, SettingUpdate, TraceTable};
use wire::json::{Document, JsonValue, ValueKind, writer};
use wire::message::Reply;

/// The change that a body asks for.
///
/// # Errors
/// `InvalidArgument` for a body that is not JSON or a value that is not as expected, `Unsupported`
/// for `trace_file`.
pub fn order(model: &str, body: &[u8]) -> Result<TraceOrder, Error> {
    let document = Document::parse(body, &[]).map_err(json_error)?;
    let root = document.root();
    misspelt::refuse_in(root, MEMBERS)?;
    if root.given("trace_file").is_some() {
        return Err(file_is_fixed());
    }
    let mut change = SettingChange::default();
    if let Some(value) = root.get("trace_level") {
        change.level = if matches!(value.kind(), ValueKind::Null) {
            SettingUpdate::Clear
        } else if matches!(value.kind(), ValueKind::Array) {
            let names = value.elements().map(string).collect::<Result<Vec<_>, _>>()?;
            level(names.into_iter())?.map_or(SettingUpdate::Keep, SettingUpdate::Set)
        } else {
            return Err(Error::malformed_json("attempt to access JSON non-array as array"));
        };
    }
    change.rate = update(root, "trace_rate", |text| unsigned("trace_rate", text))?;
    change.count = update(root, "trace_count", |text| count(text, ""))?;
    change.log_frequency = update(root, "log_frequency", |text| unsigned("log_frequency", text))?;
    Ok(TraceOrder { model: model.to_owned(), change })
}

/// The members of a body.
const MEMBERS: &[&str] = &["log_frequency", "trace_count", "trace_file", "trace_level", "trace_rate"];

/// The setting of a model, or the global one where `model` is empty.
pub fn reply(table: &TraceTable, model: &str) -> Reply {
    let (levels, fields) = told(table, model);
    let mut json = Vec::from(b"{\"trace_level\":");
    write_list(levels.into_iter(), &mut json, writer::string);
    for (name, value) in fields {
        json.push(b',');
        writer::string(&name, &mut json);
        json.push(b':');
        writer::string(&value, &mut json);
    }
    json.push(b'}');
    Reply::new(200, JSON, json)
}

fn update<T>(
    root: JsonValue<'_, '_>,
    name: &str,
    read: impl FnOnce(&str) -> Result<T, Error>,
) -> Result<SettingUpdate<T>, Error> {
    match root.get(name) {
        None => Ok(SettingUpdate::Keep),
        Some(value) if matches!(value.kind(), ValueKind::Null) => Ok(SettingUpdate::Clear),
        Some(value) => read(string(value)?).map(SettingUpdate::Set),
    }
}

fn string<'d>(value: JsonValue<'d, '_>) -> Result<&'d str, Error> {
    value.as_str().ok_or_else(|| Error::malformed_json("attempt to access JSON non-string as string"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{TraceLevel, TraceMode, TraceSetting};

    #[test]
    fn bodies_are_changes_or_are_refused_with_tritons_texts() {
        let check = |body: &str, want: &str| {
            let got = match order("m", body.as_bytes()) {
                Ok(TraceOrder { change, .. }) => {
                    format!("{:?} {:?} {:?} {:?}", change.level, change.rate, change.count, change.log_frequency)
                }
                Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
            };
            assert_eq!(got.replace("TraceLevel ", ""), want, "{body}");
        };
        check("{}", "Keep Keep Keep Keep");
        check(
            r#"{"trace_level":["TIMESTAMPS","NEW"],"trace_rate":"7","trace_count":"-1","log_frequency":"0"}"#,
            "Set({ timestamps: true, tensors: false }) Set(7) Set(-1) Set(0)",
        );
        check(
            r#"{"trace_level":null,"trace_rate":null,"trace_count":null,"log_frequency":null}"#,
            "Clear Clear Clear Clear",
        );
        check(r#"{"trace_file":null,"trace_mode":"triton"}"#, "Keep Keep Keep Keep");
        check(r#"{"trace_rates":"7"}"#, "400 unknown member 'trace_rates': did you mean 'trace_rate'?");
        check(r#"{"trace_level":["OFF"]}"#, "Set({ timestamps: false, tensors: false }) Keep Keep Keep");
        check(r#"{"trace_level":["NEW"]}"#, "Keep Keep Keep Keep");
        check(r#"{"trace_level":["OFF","TENSORS"]}"#, "400 Expect only one trace level 'OFF' is specified");
        check(r#"{"trace_level":"OFF"}"#, "400 attempt to access JSON non-array as array");
        check(r#"{"trace_level":[1]}"#, "400 attempt to access JSON non-string as string");
        check(r#"{"trace_rate":7}"#, "400 attempt to access JSON non-string as string");
        check(r#"{"trace_rate":"abc"}"#, "400 Unable to parse 'trace_rate', got: abc");
        let range = "value is out of range [ 0, 4294967295 ], got: ";
        check(r#"{"trace_rate":"4294967296"}"#, &format!("400 Unable to parse 'trace_rate', {range}4294967296"));
        check(r#"{"log_frequency":"-1"}"#, &format!("400 Unable to parse 'log_frequency', {range}-1"));
        check(r#"{"trace_count":"-5"}"#, "400 Unable to parse 'trace_count'. Expecting value >= -1, got:-5");
        check(
            r#"{"trace_count":"99999999999"}"#,
            "400 Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 99999999999",
        );
        check(
            r#"{"trace_file":"x","trace_rate":"abc"}"#,
            "501 trace file location can not be updated through network protocol",
        );
        check("", "400 failed to parse the request JSON buffer: The document is empty. at 0");
    }

    #[test]
    fn replies_have_tritons_fields_in_its_order() {
        let text = |table: &TraceTable| String::from_utf8(reply(table, "").body.concat()).unwrap();
        assert_eq!(
            text(&TraceTable::default()),
            r#"{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"","trace_mode":"triton"}"#
        );
        let level = TraceLevel { timestamps: true, tensors: true };
        let setting = TraceSetting::new(level, 1, 5, 0, TraceMode::OpenTelemetry);
        let table = TraceTable::new(setting, "", vec![("url".to_owned(), "h:1".to_owned())]);
        assert_eq!(
            text(&table),
            r#"{"trace_level":["TIMESTAMPS","TENSORS"],"trace_rate":"1","trace_count":"5","trace_mode":"opentelemetry","url":"h:1"}"#
        );
    }
}
