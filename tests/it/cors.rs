//! Pages of browsers on the server as a process: preflights, and the fields of answers, refusals and streams.

use crate::support::folder::Folder;
use crate::support::http::{self, Response};
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

const PAGE: &str = "https://app.example.com";

fn serve(flags: &[&str]) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    repository::add(folder.path(), "square", repository::SQUARE, None);
    let server = Server::deuteron(folder.path(), &[&["--shards=1"], flags].concat());
    (folder, server)
}

fn ask(server: &Server, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Response {
    http::exchange(server.http(), &http::request(method, path, fields, body.as_bytes())).unwrap()
}

fn allowed(answer: &Response) -> (u16, Option<&str>, Option<&str>) {
    (answer.status, answer.header("access-control-allow-origin"), answer.header("vary"))
}

#[test]
fn a_listed_origin_reads_answers_refusals_and_streams_and_no_other_does() {
    let flags = [
        "--cors-origin=https://app.example.com,http://localhost:3000",
        "--http-restricted-api=statistics:own-key=v",
        "--http-max-input-size=4096",
    ];
    let (_folder, server) = serve(&flags);
    let large = "x".repeat(5_000);
    for (method, path, body, status) in [
        ("GET", "/v2", "", 200),
        ("POST", "/v2/models/identity_fp32/generate", r#"{"INPUT0":1}"#, 200),
        ("POST", "/v2/models/square/generate_stream", r#"{"IN":2}"#, 200),
        ("POST", "/v1/models/identity_fp32:predict", r#"{"instances":[1]}"#, 200),
        ("POST", "/v2/models/nope/infer", "{}", 404),
        ("POST", "/v2/models/identity_fp32/infer", "{", 400),
        ("GET", "/v2/models/stats", "", 403),
        ("GET", "/v2/models/identity_fp32/infer", "", 405),
        ("POST", "/v2/models/identity_fp32/infer", large.as_str(), 413),
        ("GET", "/nothing", "", 404),
    ] {
        for page in [PAGE, "http://localhost:3000"] {
            let answer = ask(&server, method, path, &[("Origin", page)], body);
            assert_eq!(allowed(&answer), (status, Some(page), Some("Origin")), "{method} {path}");
            let exposed = answer.header("access-control-expose-headers").unwrap();
            assert!(exposed.contains("Inference-Header-Content-Length"), "{exposed}");
        }
        for fields in [&[("Origin", "https://evil.example.com")][..], &[("Origin", "null")], &[]] {
            let answer = ask(&server, method, path, fields, body);
            assert_eq!(allowed(&answer), (status, None, Some("Origin")), "{method} {path} {fields:?}");
        }
    }
}

#[test]
fn a_preflight_needs_no_key_and_a_listed_origin() {
    let (_folder, server) =
        serve(&["--cors-origin=https://app.example.com", "--http-restricted-api=inference:own-key=v"]);
    let path = "/v2/models/identity_fp32/infer";
    let preflight = |page| {
        let fields =
            [("Origin", page), ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "x")];
        ask(&server, "OPTIONS", path, &fields, "")
    };
    let answer = preflight(PAGE);
    assert_eq!(allowed(&answer), (204, Some(PAGE), Some("Origin")));
    assert_eq!(answer.header("access-control-allow-methods"), Some("GET, HEAD, POST"));
    let fields = answer.header("access-control-allow-headers").unwrap();
    for name in
        ["Inference-Header-Content-Length", "Content-Type", "Authorization", "Traceparent", "X-API-Key", "own-key"]
    {
        assert!(fields.split(", ").any(|field| field == name), "{name}: {fields}");
    }
    assert_eq!(answer.header("access-control-max-age"), Some("600"));
    let refused = preflight("https://evil.example.com");
    assert_eq!(allowed(&refused), (403, None, Some("Origin")));
    assert_eq!(refused.header("access-control-allow-methods"), None);
    let plain = ask(&server, "OPTIONS", "/v2", &[("Origin", PAGE)], "");
    assert_eq!(allowed(&plain), (405, Some(PAGE), Some("Origin")), "no preflight");
}

#[test]
fn a_star_is_every_origin_and_without_the_flag_there_are_no_fields() {
    let (_folder, server) = serve(&["--cors-origin=*"]);
    assert_eq!(allowed(&ask(&server, "GET", "/v2", &[("Origin", "null")], "")), (200, Some("*"), None));
    assert_eq!(allowed(&ask(&server, "GET", "/v2", &[], "")), (200, None, None));
    let (_folder, server) = serve(&[]);
    let fields = [("Origin", PAGE), ("Access-Control-Request-Method", "GET")];
    assert_eq!(allowed(&ask(&server, "GET", "/v2", &fields, "")), (200, None, None));
    assert_eq!(allowed(&ask(&server, "OPTIONS", "/v2", &fields, "")), (405, None, None));
}
