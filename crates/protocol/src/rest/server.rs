//! Replies about the server and its models: health, metadata, configuration. Metadata has Triton's keys, in
//! its order.

use bytes::Bytes;

use crate::rest::encode::{JSON, PLAIN, write_shape};
use model::repository::index::StartCounts;
use model::{ModelSpec, TensorSpec};
use wire::json::writer;
use wire::message::Reply;

/// The protocol extensions that the server supports, in Triton's order.
pub const EXTENSIONS: [&str; 12] = [
    "classification",
    "sequence",
    "sequence(string_id)",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

/// The protocol extensions if client shared memory is enabled, in Triton's order. `cuda_shared_memory` is listed even
/// without a GPU, as in Triton: registering a region then fails with a reason.
pub const EXTENSIONS_WITH_SHARED_MEMORY: [&str; 14] = [
    "classification",
    "sequence",
    "sequence(string_id)",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

/// The reply to a liveness probe: a process that can answer is live.
pub fn live_reply() -> Reply {
    Reply::new(200, JSON, Bytes::from_static(b"{\"live\":true}"))
}

/// The reply to a readiness probe: the readiness of the server, the number of models loaded so far
/// if it is starting, and the loads in progress.
pub fn ready_reply(is_ready: bool, start: Option<StartCounts>, loads: &[LoadNote]) -> Reply {
    let mut json = Vec::from(b"{\"live\":true,\"ready\":");
    writer::boolean(is_ready, &mut json);
    if let Some(StartCounts { done, all }) = start {
        json.extend_from_slice(b",\"models_loaded\":");
        writer::integer(done, &mut json);
        json.extend_from_slice(b",\"models\":");
        writer::integer(all, &mut json);
    }
    if !loads.is_empty() {
        json.extend_from_slice(b",\"loading\":");
        write_list(loads.iter(), &mut json, |load, json| {
            json.extend_from_slice(b"{\"name\":");
            writer::string(&load.name, json);
            json.extend_from_slice(b",\"stage\":");
            writer::string(load.stage, json);
            json.extend_from_slice(b",\"versions_loaded\":");
            writer::integer(load.done, json);
            json.extend_from_slice(b",\"versions\":");
            writer::integer(load.versions, json);
            json.extend_from_slice(b",\"seconds\":");
            writer::integer(load.seconds, json);
            json.push(b'}');
        });
    }
    json.push(b'}');
    Reply::new(status_of(is_ready), JSON, json)
}

/// A load in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadNote {
    /// The model.
    pub name: String,
    /// Its current stage.
    pub stage: &'static str,
    /// Versions loaded so far.
    pub done: u32,
    /// Versions to load in total; 0 until known.
    pub versions: u32,
    /// Seconds since it began.
    pub seconds: u64,
}

/// tritonserver's reply to a health probe of the server (`http_server.cc`): the status says all.
pub fn bare_health_reply(is_well: bool) -> Reply {
    Reply::new(if is_well { 200 } else { 400 }, PLAIN, Bytes::new())
}

/// tritonserver's reply to a readiness probe of one model, which may be unknown.
pub fn bare_model_ready_reply(is_ready: bool) -> Reply {
    let text: &[u8] = if is_ready { b"" } else { b"{\"error\":\"Model version not ready\"}" };
    Reply::new(if is_ready { 200 } else { 400 }, PLAIN, Bytes::from_static(text))
}

/// The reply to a readiness probe of one model.
pub fn model_ready_reply(name: &str, is_ready: bool) -> Reply {
    let mut json = Vec::from(b"{\"name\":");
    writer::string(name, &mut json);
    json.extend_from_slice(b",\"ready\":");
    writer::boolean(is_ready, &mut json);
    json.push(b'}');
    Reply::new(status_of(is_ready), JSON, json)
}

/// The status of a readiness probe, which is all that most probes read.
const fn status_of(is_ready: bool) -> u16 {
    if is_ready { 200 } else { 503 }
}

/// The server's metadata: its name (`--id`), version and extensions.
pub fn metadata_reply(name: &str, version: &str, extensions: &[&str]) -> Reply {
    let mut json = Vec::from(b"{\"name\":");
    writer::string(name, &mut json);
    json.extend_from_slice(b",\"version\":");
    writer::string(version, &mut json);
    json.extend_from_slice(b",\"extensions\":");
    write_list(extensions.iter(), &mut json, |extension, json| writer::string(extension, json));
    json.push(b'}');
    Reply::new(200, JSON, json)
}

/// The links at the root of the HTTP port, as JSON or as a page. `console` is an address without
/// characters that need quoting.
pub fn links_reply(console: Option<&str>, is_html: bool) -> Reply {
    let own = [("server", "/v2"), ("docs", "/v2/docs"), ("openapi", "/v2/docs/openapi.json")];
    let links = own.into_iter().chain(console.map(|console| ("console", console)));
    if is_html {
        let items: String = links.map(|(name, link)| format!("<li>{name}: <a href=\"{link}\">{link}</a>\n")).collect();
        let page = format!("<!doctype html>\n<html lang=\"en\">\n<title>Deuteron</title>\n<ul>\n{items}</ul>\n");
        return Reply::new(200, "text/html; charset=utf-8", page);
    }
    let members: Vec<_> = links.map(|(name, link)| format!("\"{name}\":\"{link}\"")).collect();
    Reply::new(200, JSON, format!("{{{}}}", members.join(",")))
}

/// Returns true if the field `Accept` names HTML before JSON, as browsers do.
pub fn prefers_html(accept: Option<&[u8]>) -> bool {
    let kinds = accept.unwrap_or_default().split(|byte| *byte == b',');
    let mut names = kinds.map(|kind| kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii());
    names.find(|name| [&b"text/html"[..], b"application/json"].contains(name)) == Some(b"text/html")
}

/// A model's metadata: its ready versions, and its tensors with their full shapes.
pub fn model_metadata_reply(spec: &ModelSpec, versions: &[u64]) -> Reply {
    let mut json = Vec::from(b"{\"name\":");
    writer::string(&spec.name, &mut json);
    json.extend_from_slice(b",\"versions\":");
    write_list(versions.iter(), &mut json, |version, json| {
        json.push(b'"');
        writer::integer(*version, json);
        json.push(b'"');
    });
    json.extend_from_slice(b",\"platform\":");
    writer::string(&spec.platform, &mut json);
    json.extend_from_slice(b",\"inputs\":");
    write_list(spec.inputs.iter(), &mut json, write_tensor);
    json.extend_from_slice(b",\"outputs\":");
    write_list(spec.usual_outputs(), &mut json, write_tensor);
    json.push(b'}');
    Reply::new(200, JSON, json)
}

/// The names of the models that serve, as KServe's servers list them.
pub fn models_reply(names: &[&str]) -> Reply {
    let mut json = b"{\"models\":".to_vec();
    write_list(names.iter(), &mut json, |name, json| writer::string(name, json));
    json.push(b'}');
    Reply::new(200, JSON, json)
}

/// A model's effective configuration, as stored in its specification.
pub fn model_config_reply(spec: &ModelSpec) -> Reply {
    Reply::new(200, JSON, Bytes::copy_from_slice(spec.config_json.as_bytes()))
}

/// Writes a JSON array.
pub(crate) fn write_list<T>(items: impl Iterator<Item = T>, json: &mut Vec<u8>, write: impl Fn(T, &mut Vec<u8>)) {
    json.push(b'[');
    for (index, item) in items.enumerate() {
        writer::comma(index, json);
        write(item, json);
    }
    json.push(b']');
}

fn write_tensor(tensor: &TensorSpec, json: &mut Vec<u8>) {
    json.extend_from_slice(b"{\"name\":");
    writer::string(&tensor.name, json);
    json.extend_from_slice(b",\"datatype\":\"");
    json.extend_from_slice(tensor.datatype.name().as_bytes());
    json.extend_from_slice(b"\",\"shape\":");
    write_shape(&tensor.shape, json);
    json.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{input, output, spec};
    use base::tensor::Datatype;

    fn text(reply: &Reply) -> String {
        assert_eq!(reply.fields.as_slice(), [("Content-Type", Bytes::from_static(b"application/json"))]);
        format!("{} {}", reply.status, String::from_utf8(reply.body.concat()).unwrap())
    }

    #[test]
    fn health_is_in_the_status_and_in_the_body() {
        assert_eq!(text(&live_reply()), r#"200 {"live":true}"#);
        assert_eq!(text(&ready_reply(true, None, &[])), r#"200 {"live":true,"ready":true}"#);
        assert_eq!(text(&ready_reply(false, None, &[])), r#"503 {"live":true,"ready":false}"#);
        let load = LoadNote { name: "m".to_owned(), stage: "loading", done: 1, versions: 3, seconds: 12 };
        assert_eq!(
            text(&ready_reply(false, Some(StartCounts { done: 1, all: 3 }), &[load])),
            r#"503 {"live":true,"ready":false,"models_loaded":1,"models":3,"loading":[{"name":"m","stage":"loading","versions_loaded":1,"versions":3,"seconds":12}]}"#
        );
        let bare = [true, false].map(bare_health_reply);
        assert_eq!(bare.map(|reply| (reply.status, reply.body.concat())), [(200, Vec::new()), (400, Vec::new())]);
        assert_eq!(text(&model_ready_reply("m", true)), r#"200 {"name":"m","ready":true}"#);
        assert_eq!(text(&model_ready_reply("m", false)), r#"503 {"name":"m","ready":false}"#);
    }

    #[test]
    fn metadata_has_tritons_keys_in_its_order() {
        assert_eq!(
            text(&metadata_reply("deuteron", "0.1.0", &EXTENSIONS)),
            r#"200 {"name":"deuteron","version":"0.1.0","extensions":["classification","sequence","sequence(string_id)","model_repository","model_repository(unload_dependents)","schedule_policy","model_configuration","binary_tensor_data","parameters","statistics","trace","logging"]}"#
        );
        let others = EXTENSIONS_WITH_SHARED_MEMORY.iter().filter(|name| !name.ends_with("_shared_memory"));
        assert!(others.eq(EXTENSIONS.iter()), "shared memory is all that is between");
        let model = spec(8, vec![input("IN", Datatype::Fp32, &[-1, 4])], vec![output("OUT", Datatype::Bytes, &[1])]);
        assert_eq!(
            text(&model_metadata_reply(&model, &[1, 12])),
            r#"200 {"name":"m","versions":["1","12"],"platform":"identity","inputs":[{"name":"IN","datatype":"FP32","shape":[-1,-1,4]}],"outputs":[{"name":"OUT","datatype":"BYTES","shape":[-1,1]}]}"#
        );
        assert_eq!(text(&model_config_reply(&model)), "200 {}");
        assert_eq!(text(&models_reply(&["a", "b\""])), r#"200 {"models":["a","b\""]}"#);
    }

    #[test]
    fn the_root_has_links_as_json_or_as_a_page() {
        let want = r#"200 {"server":"/v2","docs":"/v2/docs","openapi":"/v2/docs/openapi.json"}"#;
        assert_eq!(text(&links_reply(None, false)), want);
        let json = text(&links_reply(Some("http://localhost:8002/"), false));
        assert!(json.ends_with(r#","console":"http://localhost:8002/"}"#), "{json}");
        let page = links_reply(Some("http://localhost:8002/"), true);
        assert_eq!(page.fields[0].1, "text/html; charset=utf-8");
        let page = String::from_utf8(page.body.concat()).unwrap();
        assert!(page.contains(r#"<a href="http://localhost:8002/">"#) && page.contains(r#"<a href="/v2">"#), "{page}");
        for (accept, want) in [
            ("text/html,application/xhtml+xml,*/*;q=0.8", true),
            ("application/xhtml+xml, text/html;q=0.9", true),
            ("application/json, text/html", false),
            ("*/*", false),
            ("", false),
        ] {
            assert_eq!(prefers_html(Some(accept.as_bytes())), want, "{accept}");
        }
        assert!(!prefers_html(None));
    }
}
