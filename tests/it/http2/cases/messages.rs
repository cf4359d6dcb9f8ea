//! RFC 9113 section 8: requests that are well-formed, and those that are not.

use super::Table;
use crate::http2::case::{CONTENT, PROTOCOL, REQUEST, Want, block, body, fields, head, with, without};
use crate::http2::frame::{DATA, END_HEADERS, END_STREAM, HEADERS, field, frame};

pub fn add(table: &mut Table) {
    framing(table);
    names_and_values(table);
    pseudo(table);
}

fn malformed(table: &mut Table, clause: &'static str, name: impl Into<String>, block: &[u8]) {
    let part = [head(1, block), body(1)].concat();
    table.add(clause, name, vec![part], Want::Stream(1, &[PROTOCOL]));
}

fn framing(table: &mut Table) {
    let begun = head(1, &block(&[]));
    let trailers = |flags, block: &[u8]| frame(HEADERS, END_HEADERS | flags, 1, block);
    let part =
        [&begun[..], &frame(DATA, 0, 1, CONTENT), &trailers(END_STREAM, &fields(&[("x-checksum", "1")]))].concat();
    table.add("9113 §8.1", "trailers", vec![part], Want::Answers(vec![1]));
    let part = [&begun[..], &frame(DATA, 0, 1, CONTENT), &trailers(0, &fields(&[("x-checksum", "1")]))].concat();
    table.add("9113 §8.1", "trailers that do not end the stream", vec![part], Want::Stream(1, &[PROTOCOL]));
    for (name, line) in [
        ("a pseudo-header field", (":path", "/")),
        ("a field of connections", ("connection", "close")),
        ("a name in upper case", ("X-A", "b")),
    ] {
        let part = [&begun[..], &frame(DATA, 0, 1, CONTENT), &trailers(END_STREAM, &fields(&[line]))].concat();
        table.add("9113 §8.1", format!("{name} in trailers"), vec![part], Want::Stream(1, &[PROTOCOL]));
    }
    let sized = |length: &str, part: Vec<u8>| vec![[head(1, &block(&[("content-length", length)])), part].concat()];
    table.add("9113 §8.1.1", "Content-Length of the content's size", sized("5", body(1)), Want::Answers(vec![1]));
    let pieces = [frame(DATA, 0, 1, &CONTENT[..2]), frame(DATA, 1, 1, &CONTENT[2..])].concat();
    table.add("9113 §8.1.1", "Content-Length of content in pieces", sized("5", pieces), Want::Answers(vec![1]));
    table.add("9113 §8.1.1", "less content than Content-Length", sized("6", body(1)), Want::Stream(1, &[PROTOCOL]));
    table.add("9113 §8.1.1", "more content than Content-Length", sized("4", body(1)), Want::Stream(1, &[PROTOCOL]));
    let long = [frame(DATA, 0, 1, CONTENT), frame(DATA, 0, 1, CONTENT)].concat();
    table.add(
        "9113 §8.1.1",
        "more content than Content-Length in pieces",
        sized("5", long),
        Want::Stream(1, &[PROTOCOL]),
    );
    let alone = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("content-length", "5")]));
    table.add("9113 §8.1.1", "Content-Length and no content", vec![alone], Want::Stream(1, &[PROTOCOL]));
    for (name, lines) in [
        ("two Content-Length that differ", vec![("content-length", "5"), ("content-length", "6")]),
        ("Content-Length that is no number", vec![("content-length", "five")]),
        ("Content-Length with a sign", vec![("content-length", "+5")]),
    ] {
        malformed(table, "9113 §8.1.1", name, &block(&lines));
    }
}

fn names_and_values(table: &mut Table) {
    for (name, text) in [
        ("upper case", &b"X-Upper"[..]),
        ("a blank", b"x y"),
        ("a colon", b"x:y"),
        ("NUL", b"x\0"),
        ("CR", b"x\ry"),
        ("LF", b"x\ny"),
        ("DEL", b"x\x7f"),
        ("a byte above 0x7f", b"x\xe4"),
        ("no byte", b""),
        ("a control byte", b"x\x01"),
    ] {
        let lines = [block(&[]), field(text, b"value")].concat();
        malformed(table, "9113 §8.2.1", format!("a name with {name}"), &lines);
    }
    for (name, text) in [("NUL", &b"a\0b"[..]), ("CR", b"a\rb"), ("LF", b"a\nb")] {
        let lines = [block(&[]), field(b"x-value", text)].concat();
        malformed(table, "9113 §8.2.1", format!("a value with {name}"), &lines);
    }
    // Metadata of gRPC may have them, and gRPC's clients send them.
    for (name, text) in
        [("a blank before", &b" a"[..]), ("a blank behind", b"a "), ("a tab before", b"\ta"), ("a tab behind", b"a\t")]
    {
        let lines = [block(&[]), field(b"x-value", text)].concat();
        let messages = vec![[head(1, &lines), body(1)].concat()];
        table.add("gRPC ASCII-Value", format!("metadata with {name}"), messages, Want::Answers(vec![1]));
        let lines = [block(&[("content-type", "text/plain")]), field(b"x-value", text)].concat();
        malformed(table, "9113 §8.2.1", format!("a value with {name}"), &lines);
    }
    let lines = [block(&[]), field(b"x-value", b"a \t\xe4\xff~"), field(b"x-empty", b"")].concat();
    table.add(
        "9113 §8.2.1",
        "values of any text and of none",
        vec![[head(1, &lines), body(1)].concat()],
        Want::Answers(vec![1]),
    );
    for name in ["connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"] {
        let value = if name == "transfer-encoding" { "chunked" } else { "x" };
        malformed(table, "9113 §8.2.2", format!("the field {name}"), &block(&[(name, value)]));
    }
    malformed(table, "9113 §8.2.2", "TE of something else than trailers", &with("te", "trailers, deflate"));
    let cookies = block(&[("cookie", "a=b"), ("cookie", "c=d")]);
    table.add("9113 §8.2.3", "a cookie in pieces", vec![[head(1, &cookies), body(1)].concat()], Want::Answers(vec![1]));
}

fn pseudo(table: &mut Table) {
    let lines = |extra: &[(&str, &str)]| fields(&[extra, &REQUEST[..]].concat());
    malformed(table, "9113 §8.3", "an unknown pseudo-header field", &lines(&[(":unknown", "x")]));
    malformed(table, "9113 §8.3", "a response's pseudo-header field", &lines(&[(":status", "200")]));
    malformed(
        table,
        "9113 §8.3",
        "a pseudo-header field behind a regular one",
        &[without(":path"), fields(&[(":path", "/")])].concat(),
    );
    for name in [":method", ":scheme", ":path"] {
        malformed(table, "9113 §8.3.1", format!("no {name}"), &without(name));
    }
    for (name, value) in [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "localhost")] {
        malformed(table, "9113 §8.3.1", format!("{name} twice"), &lines(&[(name, value)]));
    }
    for (name, path) in [("empty", ""), ("without a slash", "v2"), ("an asterisk for another verb than OPTIONS", "*")] {
        malformed(table, "9113 §8.3.1", format!(":path is {name}"), &with(":path", path));
    }
    malformed(table, "9113 §8.3.1", "Host that differs from :authority", &block(&[("host", "elsewhere")]));
    malformed(table, "9113 §8.3.1", "a user in :authority", &with(":authority", "me@localhost"));
    let host = [without(":authority"), fields(&[("host", "localhost")])].concat();
    table.add(
        "9113 §8.3.1",
        "Host in place of :authority",
        vec![[head(1, &host), body(1)].concat()],
        Want::Answers(vec![1]),
    );
    let options = fields(&[(":method", "OPTIONS"), (":scheme", "http"), (":path", "*"), (":authority", "localhost")]);
    let part = frame(HEADERS, END_HEADERS | END_STREAM, 1, &options);
    table.add("9113 §8.3.1", "OPTIONS of an asterisk is answered", vec![part], Want::Answers(vec![1]));
    let get = fields(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "localhost")]);
    let part = frame(HEADERS, END_HEADERS | END_STREAM, 1, &get);
    table.add("9113 §8.1", "GET is answered", vec![part], Want::Answers(vec![1]));
    let connect = |more: &[(&str, &str)]| fields(&[&[(":method", "CONNECT")][..], more].concat());
    for (name, lines) in [
        ("CONNECT with :path", vec![(":authority", "a:1"), (":path", "/")]),
        ("CONNECT with :scheme", vec![(":authority", "a:1"), (":scheme", "http")]),
        ("CONNECT without :authority", vec![]),
    ] {
        malformed(table, "9113 §8.5", name, &connect(&lines));
    }
}
