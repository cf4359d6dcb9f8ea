//! The log settings extension over REST.

use crate::logging::{LogState, LogUpdate, file_is_fixed, format_of};
use crate::rest::encode::JSON;
use crate::rest::fault::json_error;
use crate::rest::misspelt;
use base::error::Error;
use wire::json::{Document, JsonValue, writer};
use wire::message::Reply;

/// The update that the body of `POST /v2/logging` asks for. As in Triton, unknown keys and nulls ask for nothing; one
/// that is near to a known one is a mistake.
///
/// # Errors
///
/// `InvalidArgument` for a body that is not JSON or a value of another type, `Unsupported` for another file.
pub fn update(body: &[u8]) -> Result<LogUpdate, Error> {
    let document = Document::parse(body, &[]).map_err(json_error)?;
    misspelt::refuse_in(document.root(), MEMBERS)?;
    let given = |name| document.root().given(name);
    let flag = |name| given(name).map(|value| value.as_bool().ok_or_else(|| mistyped("boolean"))).transpose();
    if given("log_file").is_some() {
        return Err(file_is_fixed());
    }
    Ok(LogUpdate {
        info: flag("log_info")?,
        warning: flag("log_warning")?,
        error: flag("log_error")?,
        verbose: given("log_verbose_level").map(level).transpose()?,
        format: given("log_format").map(format).transpose()?,
    })
}

/// The members of a body.
const MEMBERS: &[&str] = &["log_error", "log_file", "log_format", "log_info", "log_verbose_level", "log_warning"];

fn level(value: JsonValue<'_, '_>) -> Result<u32, Error> {
    value.as_u64().and_then(|level| u32::try_from(level).ok()).ok_or_else(|| mistyped("unsigned-integer"))
}

fn format(value: JsonValue<'_, '_>) -> Result<&'static str, Error> {
    let name = value.as_str().ok_or_else(|| mistyped("string"))?;
    format_of(name).ok_or_else(|| Error::invalid(format!("invalid argument for --log_format, got: {name}")))
}

fn mistyped(kind: &str) -> Error {
    Error::malformed_json(format!("attempt to access JSON non-{kind} as {kind}"))
}

/// The reply with the settings of the log, with Triton's keys in its order.
pub fn reply(state: &LogState) -> Reply {
    let mut json = Vec::from(b"{\"log_file\":");
    writer::string(state.file, &mut json);
    for (name, value) in [("log_info", state.info), ("log_warning", state.warning), ("log_error", state.error)] {
        json.extend_from_slice(format!(",\"{name}\":{value}").as_bytes());
    }
    json.extend_from_slice(format!(",\"log_verbose_level\":{},\"log_format\":", state.verbose).as_bytes());
    writer::string(state.format, &mut json);
    json.push(b'}');
    Reply::new(200, JSON, json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_becomes_an_update_or_tritons_error() {
        let check = |body: &str, want: &str| {
            let got = match update(body.as_bytes()) {
                Ok(update) => format!("{update:?}"),
                Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
            };
            assert_eq!(got, want, "{body}");
        };
        let nothing = "LogUpdate { info: None, warning: None, error: None, verbose: None, format: None }";
        for body in ["{}", "[]", "\"x\"", "{\"other\":1}", "{\"log_info\":null,\"log_file\":null}"] {
            check(body, nothing);
        }
        check(
            "{\"log_info\":false,\"log_warning\":true,\"log_error\":false,\"log_verbose_level\":2,\"log_format\":\"json\"}",
            "LogUpdate { info: Some(false), warning: Some(true), error: Some(false), verbose: Some(2), format: \
             Some(\"json\") }",
        );
        check("", "400 failed to parse the request JSON buffer: The document is empty. at 0");
        check("{\"log_inof\":true}", "400 unknown member 'log_inof': did you mean 'log_info'?");
        check("{\"log_info\":1}", "400 attempt to access JSON non-boolean as boolean");
        for value in ["-1", "1.5", "\"1\"", "true", "4294967296"] {
            let body = format!("{{\"log_verbose_level\":{value}}}");
            check(&body, "400 attempt to access JSON non-unsigned-integer as unsigned-integer");
        }
        check("{\"log_format\":1}", "400 attempt to access JSON non-string as string");
        check("{\"log_format\":\"iso8601\"}", "400 invalid argument for --log_format, got: iso8601");
        let fixed = "501 log file location can not be updated through network protocol";
        check("{\"log_info\":1,\"log_file\":5}", fixed);
    }

    #[test]
    fn a_reply_has_tritons_keys_in_its_order() {
        let state = LogState { file: "a\"b", info: true, warning: false, error: true, verbose: 3, format: "ISO8601" };
        let body = String::from_utf8(reply(&state).body.concat()).unwrap();
        assert_eq!(
            body,
            r#"{"log_file":"a\"b","log_info":true,"log_warning":false,"log_error":true,"log_verbose_level":3,"log_format":"ISO8601"}"#
        );
    }
}
