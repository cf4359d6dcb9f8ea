//! Paths, verbs, health, metadata and configuration over HTTP, and how requests are framed.

use crate::oracle::case::{Case, Table, one_input};

/// The cases of this group.
pub fn cases() -> Vec<Case> {
    [health(), server(), models(), versions(), paths(), verbs(), framing(), later(), trace()].concat()
}

fn health() -> Vec<Case> {
    let mut table = Table::new("health");
    table.get(&[
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/health/ready?verbose=1",
        "/v2/health",
        "/v2/health/",
        "/v2/health/live/",
        "/v2/health/nope",
        "/v2/models/identity_fp32/ready",
        "/v2/models/identity_fp32/versions/1/ready",
        "/v2/models/identity_fp32/versions/2/ready",
        "/v2/models/identity_fp32/versions/0/ready",
        "/v2/models/identity_fp32/versions/abc/ready",
        "/v2/models/identity_fp32/versions/99999999999999999999/ready",
        "/v2/models/nope/ready",
        "/v2/models/nope/versions/1/ready",
    ]);
    table.into_cases()
}

fn server() -> Vec<Case> {
    let mut table = Table::new("server");
    table.get(&["/v2", "/v2?x=1", "/v2/", "//v2", "/", "/v1", "/V2", "/v2x"]);
    table.into_cases()
}

fn models() -> Vec<Case> {
    let mut table = Table::new("model");
    table.get(&[
        "/v2/models/identity_bool",
        "/v2/models/identity_bf16",
        "/v2/models/identity_fp32",
        "/v2/models/identity_bytes",
        "/v2/models/identity_two",
        "/v2/models/identity_square",
        "/v2/models/identity_nobatch",
        "/v2/models/classify",
        "/v2/models/addsub",
        "/v2/models/identity_fp32/config",
        "/v2/models/identity_nobatch/config",
        "/v2/models/identity_two/config",
        "/v2/models/identity_bytes/config",
        "/v2/models/classify/config",
        "/v2/models/slow/config",
        "/v2/models/addsub/config",
        "/v2/models/nope",
        "/v2/models/nope/config",
        "/v2/models/IDENTITY_FP32",
    ]);
    table.into_cases()
}

fn versions() -> Vec<Case> {
    let mut table = Table::new("version");
    table.get(&[
        "/v2/models/identity_fp32/versions/1",
        "/v2/models/identity_fp32/versions/2",
        "/v2/models/identity_fp32/versions/0",
        "/v2/models/identity_fp32/versions/01",
        "/v2/models/identity_fp32/versions/-1",
        "/v2/models/identity_fp32/versions/abc",
        "/v2/models/identity_fp32/versions/1.0",
        "/v2/models/identity_fp32/versions/",
        "/v2/models/identity_fp32/versions",
        "/v2/models/identity_fp32/versions/9223372036854775807",
        "/v2/models/identity_fp32/versions/9223372036854775808",
        "/v2/models/identity_fp32/versions/99999999999999999999",
        "/v2/models/identity_fp32/versions/1/config",
        "/v2/models/identity_fp32/versions/2/config",
        "/v2/models/nope/versions/1",
        "/v2/models/nope/versions/1/config",
        "/v2/models/nope/versions/99999999999999999999",
    ]);
    let body = one_input("FP32", "[1,2]", r#""data":[1,2]"#);
    let mut infer = |version: &str| {
        let path = format!("/v2/models/identity_fp32/versions/{version}/infer");
        table.post(&format!("infer in version {version}"), &path, &[], body.as_bytes());
    };
    infer("1");
    infer("2");
    infer("0");
    infer("x");
    infer("99999999999999999999");
    table.into_cases()
}

fn paths() -> Vec<Case> {
    let mut table = Table::new("path");
    table.get(&[
        "/v2/models",
        "/v2/models/",
        "/v2/models//",
        "/v2/models//ready",
        "/v2/models//config",
        "/v2/models/identity_fp32/",
        "/v2/models/identity_fp32/ready/",
        "/v2/models/identity_fp32/nope",
        "/v2/models/identity_fp32/ready/nope",
        "/v2/models/identity_fp32/versions/1/nope",
        "/v2/models/identity_fp32/config?x=y",
        "/v2/models/identity%5Ffp32",
        "/v2/models/identity_fp32%2Fready",
        "/v2/models/%00",
        "/v2/models/..",
        "/v2/models/../models/identity_fp32",
        "/v2/models/.",
        "/v2/models/identity fp32",
        "/v2/models/\"quoted\"",
        "/favicon.ico",
    ]);
    let body = one_input("FP32", "[1,2]", r#""data":[1,2]"#);
    let mut infer = |path: &str| table.post(&format!("POST {path}"), path, &[], body.as_bytes());
    infer("/v2/models/identity_fp32/infer?verbose=1");
    infer("/v2/models/identity_fp32/infer/");
    infer("/v2/models/identity_fp32/inferx");
    infer("/v2/models/identity%5Ffp32/infer");
    infer("/v2/models/nope/infer");
    infer("/v2/models/nope/versions/1/infer");
    infer("/v2/nope");
    table.into_cases()
}

fn verbs() -> Vec<Case> {
    let mut table = Table::new("verb");
    let rows = [
        ("POST", "/v2"),
        ("DELETE", "/v2"),
        ("POST", "/v2/health/live"),
        ("PUT", "/v2/health/ready"),
        ("HEAD", "/v2/health/live"),
        ("OPTIONS", "/v2/health/live"),
        ("POST", "/v2/models/identity_fp32"),
        ("POST", "/v2/models/identity_fp32/ready"),
        ("PATCH", "/v2/models/identity_fp32/config"),
        ("GET", "/v2/models/identity_fp32/infer"),
        ("PUT", "/v2/models/identity_fp32/infer"),
        ("DELETE", "/v2/models/identity_fp32/versions/1/infer"),
        ("GET", "/v2/models/nope/infer"),
        ("POST", "/v2/models/nope/config"),
        ("POST", "/nope"),
        ("DELETE", "/nope"),
    ];
    rows.iter().for_each(|(method, path)| table.verb(method, path));
    table.into_cases()
}

fn framing() -> Vec<Case> {
    let mut table = Table::new("framing");
    let json = one_input("FP32", "[1,2]", r#""data":[1,2]"#);
    let head = "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\n";
    let (left, right) = json.split_at(10);
    table.raw(
        "a body in two chunks",
        format!(
            "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{left}\r\n{:x}\r\n{right}\r\n0\r\n\r\n",
            left.len(),
            right.len()
        ),
    );
    table.raw(
        "a body in one chunk with a binary tail",
        {
            let json = one_input("FP32", "[1,1]", r#""parameters":{"binary_data_size":4}"#);
            let size = json.len();
            format!("{head}Inference-Header-Content-Length: {size}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{json}abcd\r\n0\r\n\r\n", size + 4)
        },
    );
    table.raw(
        "a body after 100 Continue",
        format!("{head}Expect: 100-continue\r\nContent-Length: {}\r\n\r\n{json}", json.len()),
    );
    table.raw("a POST without a length", "POST /v2/models/identity_raw/infer HTTP/1.1\r\nHost: localhost\r\n\r\n");
    table.raw("header names in any case", format!("{head}CONTENT-length: {}\r\n\r\n{json}", json.len()));
    table.raw(
        "a GET with a body",
        "GET /v2/models/identity_fp32 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    );
    for (name, value) in [("text/plain", "text/plain"), ("octet-stream", "application/octet-stream"), ("none", "")] {
        let headers: &[(&str, &str)] = if value.is_empty() { &[] } else { &[("Content-Type", value)] };
        let name = format!("the content type of the request does not matter: {name}");
        table.post(&name, "/v2/models/identity_fp32/infer", headers, json.as_bytes());
    }
    let encoded = [("Content-Encoding", "br")];
    table.post("an unknown content encoding", "/v2/models/identity_fp32/infer", &encoded, json.as_bytes());
    let identity = [("Content-Encoding", "identity")];
    table.post("the identity content encoding", "/v2/models/identity_fp32/infer", &identity, json.as_bytes());
    table.into_cases()
}

/// The settings of traces, which are reset at the end.
fn trace() -> Vec<Case> {
    let mut table = Table::new("trace");
    table.get(&["/v2/models/identity_fp32/trace/setting", "/v2/models/nope/trace/setting"]);
    for (name, model, body) in [
        ("not a number", "", r#"{"trace_rate":"abc"}"#),
        ("no string", "", r#"{"trace_rate":7}"#),
        ("a rate out of range", "", r#"{"trace_rate":"4294967296"}"#),
        ("a count below -1", "", r#"{"trace_count":"-5"}"#),
        ("the file", "", r#"{"trace_file":"x"}"#),
        ("OFF and another level", "", r#"{"trace_level":["OFF","TENSORS"]}"#),
        ("a level without a file", "", r#"{"trace_level":["TIMESTAMPS"]}"#),
        ("a level that is no list", "", r#"{"trace_level":"OFF"}"#),
        ("an unknown level", "", r#"{"trace_level":["NEW"]}"#),
        ("of a model", "identity_fp32", r#"{"trace_rate":"12","log_frequency":"34"}"#),
        ("of a model, cleared", "identity_fp32", r#"{"trace_rate":null,"log_frequency":null}"#),
        ("of an unknown model", "nope", r#"{}"#),
        ("an empty body", "", r#""#),
    ] {
        let model = if model.is_empty() { String::new() } else { format!("/models/{model}") };
        table.post(name, &format!("/v2{model}/trace/setting"), &[], body.as_bytes());
    }
    table.into_cases()
}

/// Parts of Triton's interface that this server does not have, or only behind a flag.
fn later() -> Vec<Case> {
    let mut table = Table::new("later");
    table.get(&[
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/nope/stats",
        "/v2/systemsharedmemory/status",
        "/v2/cudasharedmemory/status",
        "/v2/repository/index",
    ]);
    table.post("POST /v2/repository/index", "/v2/repository/index", &[], b"{}");
    table.post("POST /v2/repository/models/slow/load", "/v2/repository/models/slow/load", &[], b"");
    table.post("POST /v2/models/nope/generate", "/v2/models/nope/generate", &[], b"{}");
    table.into_cases()
}
