//! The model repository extension over REST: bodies to [`RepositoryOrder`]s, and the index to a reply. Layout and
//! texts are those of Triton's `http_server.cc` and `tritonserver.cc`.

use bytes::Bytes;

use crate::repository::{LoadOrder, RepositoryOrder, file_path, model_name};
use crate::rest::encode::JSON;
use crate::rest::misspelt;
use crate::rest::server::write_list;
use base::error::Error;
use base::limits::ORDER_PARAMETERS_MAX;
use model::repository::index::IndexEntry;
use wire::base64;
use wire::json::{Document, JsonValue, ValueKind, writer};
use wire::message::Reply;

/// The operation of `POST /v2/repository/index`; the body may be empty.
///
/// # Errors
///
/// `InvalidArgument` if the body is not a JSON object, or `ready` not a boolean.
pub fn index_order(body: &[u8]) -> Result<RepositoryOrder, Error> {
    let Some(document) = parse(body)? else { return Ok(RepositoryOrder::Index { only_ready: false }) };
    misspelt::refuse_in(document.root(), &["ready"])?;
    let only_ready = match document.root().given("ready") {
        None => false,
        Some(ready) => {
            ready.as_bool().ok_or_else(|| Error::malformed_json("Invalid value for 'ready': expected a boolean"))?
        }
    };
    Ok(RepositoryOrder::Index { only_ready })
}

/// The operation of `POST /v2/repository/models/M/load`; the body may be empty.
///
/// # Errors
///
/// `InvalidArgument` for a bad name, body, path or parameter.
pub fn load_order(name: &str, body: &[u8]) -> Result<RepositoryOrder, Error> {
    let mut load = LoadOrder { name: model_name(name)?, ..LoadOrder::default() };
    let document = parse(body)?;
    document.as_ref().map_or(Ok(()), |document| misspelt::refuse_in(document.root(), &["parameters"]))?;
    // One more than the limit is read, to notice that there are too many.
    for (key, value) in document.iter().flat_map(|document| parameters(document)).take(ORDER_PARAMETERS_MAX + 1) {
        if *value.kind() == ValueKind::Null && key == "config" {
            continue;
        }
        let text = value.as_str().ok_or_else(|| {
            Error::malformed_json(format!("Unable to parse '{key}': attempt to access JSON non-string as string"))
        })?;
        if load.files.len() >= ORDER_PARAMETERS_MAX {
            return Err(Error::invalid(format!("a load has at most {ORDER_PARAMETERS_MAX} parameters")));
        }
        if key == "config" {
            load.config = Some(text.to_owned());
        } else if key.starts_with("file:") {
            let contents = base64::decode(text)
                .ok_or_else(|| Error::invalid(format!("load parameter '{key}' is not valid base64")))?;
            load.files.push((file_path(key)?, Bytes::from(contents)));
        } else {
            return Err(Error::invalid(format!("unrecognized load parameter '{key}'.")));
        }
    }
    Ok(RepositoryOrder::Load(load))
}

/// The operation of `POST /v2/repository/models/M/unload`; the body may be empty.
///
/// # Errors
///
/// `InvalidArgument` for a bad name, body or parameter.
pub fn unload_order(name: &str, body: &[u8]) -> Result<RepositoryOrder, Error> {
    let name = model_name(name)?;
    let document = parse(body)?;
    let root = document.as_ref().map(Document::root);
    root.map_or(Ok(()), |root| misspelt::refuse_in(root, &["parameters"]))?;
    let parameters = root.and_then(|root| root.given("parameters"));
    parameters.map_or(Ok(()), |parameters| misspelt::refuse_in(parameters, &["unload_dependents"]))?;
    let flag = parameters.and_then(|parameters| parameters.given("unload_dependents"));
    let with_dependents = match flag {
        None => false,
        Some(flag) => flag.as_bool().ok_or_else(|| {
            Error::malformed_json("Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean")
        })?,
    };
    Ok(RepositoryOrder::Unload { name, with_dependents })
}

/// The reply to an index request.
pub fn index_reply(entries: &[IndexEntry]) -> Reply {
    let mut json = Vec::new();
    write_list(entries.iter(), &mut json, |entry, json| {
        let mut member = |key: &str, value: &str| {
            json.push(if key == "name" { b'{' } else { b',' });
            writer::string(key, json);
            json.push(b':');
            writer::string(value, json);
        };
        member("name", &entry.name);
        if let Some(version) = entry.version {
            member("version", &version.to_string());
        }
        if let Some(state) = entry.state {
            member("state", state.as_str());
        }
        if !entry.reason.is_empty() {
            member("reason", &entry.reason);
        }
        json.push(b'}');
    });
    Reply::new(200, JSON, json)
}

/// The reply to a load or unload that succeeded: an empty body.
pub fn done_reply() -> Reply {
    Reply::new(200, JSON, Bytes::new())
}

/// Parses a body that must be an object; `None` if it is empty.
fn parse(body: &[u8]) -> Result<Option<Document<'_>>, Error> {
    if body.is_empty() {
        return Ok(None);
    }
    let document = Document::parse(body, &[])
        .map_err(|error| Error::malformed_json(format!("failed to parse the request JSON buffer: {error}")))?;
    match document.root().kind() {
        ValueKind::Object => Ok(Some(document)),
        _ => Err(Error::malformed_json("failed to parse the request JSON buffer: expected an object")),
    }
}

fn parameters<'d, 'a>(document: &'d Document<'a>) -> impl Iterator<Item = (&'d str, JsonValue<'d, 'a>)> {
    document.root().get("parameters").into_iter().flat_map(JsonValue::members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::repository::index::VersionState;

    fn text(outcome: Result<RepositoryOrder, Error>) -> String {
        match outcome {
            Ok(order) => format!("{order:?}"),
            Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
        }
    }

    #[test]
    fn bodies_become_orders() {
        let check = |got: Result<RepositoryOrder, Error>, want: &str| assert_eq!(text(got), want);
        check(index_order(b""), "Index { only_ready: false }");
        check(index_order(b"{}"), "Index { only_ready: false }");
        check(index_order(b"{\"ready\":true}"), "Index { only_ready: true }");
        check(index_order(b"{\"ready\":null,\"more\":1}"), "Index { only_ready: false }");
        check(index_order(b"{\"redy\":true}"), "400 unknown member 'redy': did you mean 'ready'?");
        check(index_order(b"{\"ready\":1}"), "400 Invalid value for 'ready': expected a boolean");
        check(index_order(b"[]"), "400 failed to parse the request JSON buffer: expected an object");
        check(index_order(b"{"), "400 failed to parse the request JSON buffer: Missing a name for object member. at 1");
        check(load_order("m", b""), "Load(LoadOrder { name: \"m\", config: None, files: [], place: Repositories })");
        let body = br#"{"parameters":{"config":"{}","file:1/a":"Zm9v"}}"#;
        check(
            load_order("m", body),
            r#"Load(LoadOrder { name: "m", config: Some("{}"), files: [("1/a", b"foo")], place: Repositories })"#,
        );
        check(load_order("m", br#"{"parameters":{"x":"1"}}"#), "400 unrecognized load parameter 'x'.");
        let plain = r#"Load(LoadOrder { name: "m", config: None, files: [], place: Repositories })"#;
        check(load_order("m", br#"{"parameters":null,"id":1}"#), plain);
        check(load_order("m", br#"{"parameters":{"config":null}}"#), plain);
        let misspelt = "400 unknown member 'parameter': did you mean 'parameters'?";
        check(load_order("m", br#"{"parameter":{"config":"{}"}}"#), misspelt);
        check(unload_order("m", br#"{"parameter":{}}"#), misspelt);
        check(
            unload_order("m", br#"{"parameters":{"unload_dependent":true}}"#),
            "400 unknown member 'unload_dependent': did you mean 'unload_dependents'?",
        );
        for body in [&br#"{"parameters":null}"#[..], br#"{"parameters":{"unload_dependents":null,"own":1}}"#] {
            check(unload_order("m", body), "Unload { name: \"m\", with_dependents: false }");
        }
        check(
            load_order("m", br#"{"parameters":{"config":{}}}"#),
            "400 Unable to parse 'config': attempt to access JSON non-string as string",
        );
        check(
            load_order("m", br#"{"parameters":{"file:1/a":"?"}}"#),
            "400 load parameter 'file:1/a' is not valid base64",
        );
        assert!(
            text(load_order("m", br#"{"parameters":{"file:../a":""}}"#)).starts_with("400 '../a' is not a file path")
        );
        assert!(text(load_order("..", b"")).contains("path traversal"));
        check(unload_order("m", b""), "Unload { name: \"m\", with_dependents: false }");
        let body = br#"{"parameters":{"unload_dependents":true}}"#;
        check(unload_order("m", body), "Unload { name: \"m\", with_dependents: true }");
        assert!(text(unload_order("m", br#"{"parameters":{"unload_dependents":1}}"#)).starts_with("400 Unable"));
        let many: Vec<_> = (0..=ORDER_PARAMETERS_MAX).map(|index| format!("\"file:1/{index}\":\"\"")).collect();
        let body = format!("{{\"parameters\":{{{}}}}}", many.join(","));
        check(load_order("m", body.as_bytes()), "400 a load has at most 1024 parameters");
    }

    #[test]
    fn the_index_has_tritons_keys_and_leaves_out_what_is_not_known() {
        let entry = |version, state, reason: &str| IndexEntry {
            name: "m".to_owned(),
            version,
            state,
            reason: reason.to_owned(),
        };
        let entries = [
            entry(None, None, ""),
            entry(Some(2), Some(VersionState::Ready), ""),
            entry(Some(1), Some(VersionState::Unavailable), "unloaded"),
        ];
        let body = String::from_utf8(index_reply(&entries).body.concat()).unwrap();
        assert_eq!(
            body,
            r#"[{"name":"m"},{"name":"m","version":"2","state":"READY"},{"name":"m","version":"1","state":"UNAVAILABLE","reason":"unloaded"}]"#
        );
        assert_eq!(index_reply(&[]).body.concat(), b"[]");
    }
}
