//! The cases of the suite, by clause.

use super::Case;

/// A request that needs no model.
const LIVE: &str = "GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n";
const INFER: &str = "/v2/models/identity_fp32/infer";
const BODY: &str = r#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}"#;

/// The table as it grows.
#[derive(Default)]
struct Table(Vec<Case>);

impl Table {
    fn add(&mut self, clause: &'static str, name: impl Into<String>, request: impl Into<Vec<u8>>, want: &str) {
        self.0.push(Case { clause, name: name.into(), request: request.into(), want: want.to_owned() });
    }

    /// Cases of one clause, each a name, a request and the expected outcome.
    fn rows(&mut self, clause: &'static str, rows: &[(&str, String, &str)]) {
        for (name, request, want) in rows {
            self.add(clause, *name, request.clone(), want);
        }
    }
}

/// All cases.
pub fn all() -> Vec<Case> {
    let mut table = Table::default();
    request_lines(&mut table);
    targets(&mut table);
    hosts(&mut table);
    fields(&mut table);
    lengths(&mut table);
    codings(&mut table);
    chunks(&mut table);
    trailers(&mut table);
    persistence(&mut table);
    expectations(&mut table);
    methods(&mut table);
    limits(&mut table);
    table.0
}

/// A request of the live endpoint with this request line.
fn line(line: &str) -> String {
    format!("{line}\r\nHost: a\r\n\r\n")
}

/// One with these fields, each with its line's end.
fn with(fields: &str) -> String {
    format!("GET /v2/health/live HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

/// An inference with these fields and this body.
fn post(fields: &str, body: &str) -> String {
    format!("POST {INFER} HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}")
}

fn sized() -> String {
    post(&format!("Content-Length: {}\r\n", BODY.len()), BODY)
}

/// An inference in chunks, from a text in which `@` stands for the body's two halves.
fn chunked(text: &str) -> String {
    let (first, second) = BODY.split_at(20);
    let body = text.replacen("@1", first, 1).replacen("@2", second, 1);
    post("Transfer-Encoding: chunked\r\n", &body)
}

/// The body in two chunks, with `last` behind the last one.
fn in_chunks(last: &str) -> String {
    chunked(&format!("14\r\n@1\r\n{:x}\r\n@2\r\n{last}", BODY.len() - 20))
}

fn request_lines(table: &mut Table) {
    let clause = "9112 §2.2";
    table.rows(
        clause,
        &[
            ("a request", LIVE.to_owned(), "200 open"),
            ("an empty line before it", format!("\r\n{LIVE}"), "200 open"),
            ("four empty lines before it", format!("\r\n\r\n\r\n\r\n{LIVE}"), "200 open"),
            ("more empty lines", format!("\r\n\r\n\r\n\r\n\r\n{LIVE}"), "400 close"),
            ("a bare LF before it", format!("\n{LIVE}"), "400 close"),
            ("a bare CR before it", format!("\r{LIVE}"), "400 close"),
            ("a space before it", format!(" {LIVE}"), "400 close"),
            ("lines that end with LF", LIVE.replace("\r\n", "\n"), "400 close"),
            ("a request line that ends with LF", LIVE.replacen("\r\n", "\n", 1), "400 close"),
            ("a bare CR in the request line", LIVE.replacen(" HTTP", "\rHTTP", 1), "400 close"),
            ("a NUL in the request line", LIVE.replacen(" HTTP", "\0 HTTP", 1), "400 close"),
            ("white space between the request line and the fields", LIVE.replacen("\nHost", "\n Host", 1), "400 close"),
            ("half a request line", "GET /v2/health".to_owned(), "waits"),
            ("a head without its empty line", LIVE.trim_end().to_owned() + "\r\n", "waits"),
        ],
    );
    let clause = "9112 §3";
    for (name, text) in [
        ("two spaces before the target", "GET  /v2/health/live HTTP/1.1"),
        ("two spaces before the version", "GET /v2/health/live  HTTP/1.1"),
        ("a space at the end", "GET /v2/health/live HTTP/1.1 "),
        ("tabs for spaces", "GET\t/v2/health/live\tHTTP/1.1"),
        ("no version, as HTTP/0.9", "GET /v2/health/live"),
        ("no target", "GET HTTP/1.1"),
        ("an empty target", "GET  HTTP/1.1"),
        ("nothing but a method", "GET"),
        ("no method", " /v2/health/live HTTP/1.1"),
        ("a fourth word", "GET /v2/health/live HTTP/1.1 x"),
        ("a method that is no token", "G(T /v2/health/live HTTP/1.1"),
        ("a method with a colon", "GET: /v2/health/live HTTP/1.1"),
        ("a quoted method", "\"GET\" /v2/health/live HTTP/1.1"),
    ] {
        table.add(clause, name, line(text), "400 close");
    }
    let clause = "9112 §2.3";
    for version in
        ["http/1.1", "HTTP/1.1x", "HTTP/11", "HTTP/1.", "HTTP/.1", "HTTP/1.10", "HTTP/01.1", "HTP/1.1", "1.1"]
    {
        table.add(clause, format!("version {version}"), line(&format!("GET /v2/health/live {version}")), "400 close");
    }
    for version in ["HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/3.0"] {
        let text = format!("GET /v2/health/live {version}");
        table.add("9110 §15.6.6", format!("version {version}"), line(&text), "505 close");
    }
}

fn targets(table: &mut Table) {
    let clause = "9112 §3.2";
    for (name, target, want) in [
        ("a query", "/v2/health/live?x=1", "200 open"),
        ("an empty query", "/v2/health/live?", "200 open"),
        ("a second question mark", "/v2/health/live?a?b", "200 open"),
        ("an encoded letter", "/v2/health/%6cive", "404 open"),
        ("a path that there is not", "/nothing", "404 open"),
        ("an absolute target", "http://a/v2/health/live", "200 open"),
        ("an absolute target of another host", "http://other:80/v2/health/live", "200 open"),
        ("an absolute target, its scheme in capitals", "HTTP://a/v2/health/live", "200 open"),
        ("an absolute target of IPv6", "http://[::1]:8000/v2/health/live", "200 open"),
        ("an absolute target without a host", "http:///v2/health/live", "400 close"),
        ("an absolute target with a user", "http://me@a/v2/health/live", "400 close"),
        ("an absolute target with a bad port", "http://a:x/v2/health/live", "400 close"),
        ("an absolute target of another scheme", "ftp://a/v2/health/live", "400 close"),
        ("a fragment", "/v2/health/live#x", "400 close"),
        ("a target without a slash", "v2/health/live", "400 close"),
        ("an asterisk with GET", "*", "400 close"),
        ("an authority with GET", "a:80", "400 close"),
        ("a control byte", "/v2/\u{1}", "400 close"),
        ("DEL", "/v2/\u{7f}", "400 close"),
        ("a letter that is not ASCII", "/v2/\u{e9}", "400 close"),
    ] {
        table.add(clause, name, line(&format!("GET {target} HTTP/1.1")), want);
    }
}

fn hosts(table: &mut Table) {
    let clause = "9112 §3.2";
    let host = |fields: &str| format!("GET /v2/health/live HTTP/1.1\r\n{fields}\r\n");
    table.rows(
        clause,
        &[
            ("no Host", host(""), "400 close"),
            ("two Hosts", host("Host: a\r\nHost: b\r\n"), "400 close"),
            ("the same Host twice", host("Host: a\r\nHost: a\r\n"), "400 close"),
            ("an empty Host", host("Host:\r\n"), "200 open"),
            ("HOST in capitals", host("HOST: a\r\n"), "200 open"),
            (
                "no Host with an absolute target",
                line("GET http://a/v2/health/live HTTP/1.1").replace("Host: a\r\n", ""),
                "400 close",
            ),
            ("no Host in HTTP/1.0", host("").replace("1.1", "1.0"), "200 close"),
            ("two Hosts in HTTP/1.0", host("Host: a\r\nHost: b\r\n").replace("1.1", "1.0"), "400 close"),
        ],
    );
    for (value, want) in [
        ("a:80", "200 open"),
        ("127.0.0.1:8000", "200 open"),
        ("[::1]", "200 open"),
        ("[::1]:80", "200 open"),
        ("a:", "200 open"),
        ("a:b", "400 close"),
        ("a:80:80", "400 close"),
        ("[::1", "400 close"),
        ("[::1]x", "400 close"),
        ("me@a", "400 close"),
        ("a/b", "400 close"),
        ("a b", "400 close"),
        ("a?b", "400 close"),
        ("a#b", "400 close"),
        ("a\\b", "400 close"),
    ] {
        table.add("9110 §7.2", format!("Host {value}"), host(&format!("Host: {value}\r\n")), want);
    }
}

fn fields(table: &mut Table) {
    let clause = "9112 §5";
    for (name, field, want) in [
        ("a field", "X: y", "200 open"),
        ("no space after the colon", "X:y", "200 open"),
        ("spaces and tabs around a value", "X: \t y \t", "200 open"),
        ("a tab in a value", "X: a\tb", "200 open"),
        ("an empty value", "X:", "200 open"),
        ("a value that has colons", "X: a:b:c", "200 open"),
        ("a space before the colon", "X : y", "400 close"),
        ("a tab before the colon", "X\t: y", "400 close"),
        ("no colon", "X", "400 close"),
        ("no name", ": y", "400 close"),
        ("a name with a bracket", "X(: y", "400 close"),
        ("a name with an at sign", "X@: y", "400 close"),
        ("a name with a slash", "X/: y", "400 close"),
        ("a name with a space", "X Y: y", "400 close"),
        ("a name that is not ASCII", "\u{e9}: y", "400 close"),
        ("NUL in a value", "X: a\0b", "400 close"),
        ("NUL in a name", "X\0: y", "400 close"),
        ("a bare CR in a value", "X: a\rb", "400 close"),
        ("a bare LF in a value", "X: a\nb", "400 close"),
        ("a line that ends with LF", "X: a\nY: b", "400 close"),
        ("a control byte in a value", "X: a\u{1}b", "400 close"),
        ("DEL in a value", "X: a\u{7f}b", "400 close"),
        ("a value that is not ASCII", "X: \u{e9}", "200 open"),
        ("a value folded by a space", "X: a\r\n b", "400 close"),
        ("a value folded by a tab", "X: a\r\n\tb", "400 close"),
        ("a fold of nothing", "X: a\r\n \r\nY: b", "400 close"),
    ] {
        table.add(clause, name, with(&format!("{field}\r\n")), want);
    }
    table.add(
        clause,
        "a first field that is folded",
        "GET /v2/health/live HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n",
        "400 close",
    );
}

fn lengths(table: &mut Table) {
    let clause = "9112 §6.2";
    let length = |value: &str| post(&format!("Content-Length:{value}\r\n"), BODY);
    let size = BODY.len();
    table.rows(
        clause,
        &[
            ("a body", sized(), "200 open"),
            ("spaces around a length", length(&format!("  {size} ")), "200 open"),
            ("a length with zeros before it", length(&format!(" 000{size}")), "200 open"),
            ("a length of 0 with GET", with("Content-Length: 0\r\n"), "200 open"),
            ("a body with GET", with("Content-Length: 5\r\n") + "hello", "200 open"),
            ("POST without a length has no body", post("", "") + LIVE, "200 200 open"),
            ("a body that is not complete", post("Content-Length: 500\r\n", BODY), "waits"),
            ("a body that ends early", post("Content-Length: 500\r\n", BODY) + "$", "400 close"),
            ("a head that ends early", "GET /v2 HTTP/1.1\r\nHost$".to_owned(), "400 close"),
            ("nothing at all", "$".to_owned(), "close"),
        ],
    );
    for value in
        ["", " +73", " -73", " 0x49", " 73;", " 73,73", " 73, 73", " 7 3", " 7.3e1", " 73\u{b}", " \"73\"", " ٧٣", " a"]
    {
        table.add("9112 §6.3", format!("Content-Length:{value}"), length(value), "400 close");
    }
    for value in [" 9223372036854775808", " 18446744073709551616", " 99999999999999999999999999"] {
        table.add("9112 §6.3", format!("Content-Length:{value}"), length(value), "400 close");
    }
    for value in [" 67108865", " 9223372036854775807"] {
        table.add(
            "9110 §15.5.14",
            format!("Content-Length:{value}"),
            post(&format!("Content-Length:{value}\r\n"), ""),
            "413 close",
        );
    }
    let twice =
        |first: usize, second: usize| post(&format!("Content-Length: {first}\r\nContent-Length: {second}\r\n"), BODY);
    table.rows(
        "9112 §6.3",
        &[
            ("the same length twice", twice(size, size), "400 close"),
            ("two lengths", twice(size, 3), "400 close"),
            ("what hides behind a second length", twice(0, size) + LIVE, "400 close"),
            ("a name with an underscore is another", post("Content_Length: 5\r\n", "") + LIVE, "200 200 open"),
        ],
    );
}

fn codings(table: &mut Table) {
    let coded = |fields: &str| in_chunks("0\r\n\r\n").replace("Transfer-Encoding: chunked\r\n", fields);
    for (value, want) in [
        ("chunked", "200 open"),
        ("Chunked", "200 open"),
        ("CHUNKED", "200 open"),
        (" \tchunked\t ", "200 open"),
        ("chunked, chunked", "400 close"),
        ("gzip, chunked", "501 close"),
        ("x-unknown, chunked", "501 close"),
        ("gzip", "400 close"),
        ("identity", "400 close"),
        ("chunked, identity", "400 close"),
        ("chunked, gzip", "400 close"),
        ("xchunked", "400 close"),
        ("chunkedx", "400 close"),
        ("chun ked", "400 close"),
        ("\"chunked\"", "400 close"),
        ("chunked;q=1", "400 close"),
        ("\u{b}chunked", "400 close"),
        ("", "400 close"),
    ] {
        table.add(
            "9112 §6.1",
            format!("Transfer-Encoding {value:?}"),
            coded(&format!("Transfer-Encoding: {value}\r\n")),
            want,
        );
    }
    let chunked = "Transfer-Encoding: chunked\r\n";
    table.rows(
        "9112 §6.1",
        &[
            ("both lengths", coded(&format!("{chunked}Content-Length: 4\r\n")), "400 close"),
            ("both lengths, the other first", coded(&format!("Content-Length: 4\r\n{chunked}")), "400 close"),
            ("both lengths, of 0", coded(&format!("Content-Length: 0\r\n{chunked}")), "400 close"),
            ("two codings", coded(&format!("{chunked}{chunked}")), "400 close"),
            ("two codings in two fields", coded(&format!("Transfer-Encoding: gzip\r\n{chunked}")), "400 close"),
            ("a coding in HTTP/1.0", coded(chunked).replacen("1.1", "1.0", 1), "400 close"),
            ("a space before the colon", coded("Transfer-Encoding : chunked\r\n"), "400 close"),
            ("a folded coding", coded("Transfer-Encoding:\r\n chunked\r\n"), "400 close"),
            ("chunks with GET", with(chunked) + "5\r\nhello\r\n0\r\n\r\n", "200 open"),
        ],
    );
}

fn chunks(table: &mut Table) {
    let clause = "9112 §7.1";
    let size = BODY.len();
    let rest = size - 20;
    let of = |first: &str| chunked(&format!("{first}@1\r\n{rest:x}\r\n@2\r\n0\r\n\r\n"));
    table.rows(
        clause,
        &[
            ("two chunks", in_chunks("0\r\n\r\n"), "200 open"),
            ("a size in capitals", chunked(&format!("{rest:X}\r\n@2\r\n0\r\n\r\n").replace("@2", "@1@2")), "400 close"),
            ("a size with zeros before it", of("00014\r\n"), "200 open"),
            ("a last chunk of many zeros", in_chunks("00000\r\n\r\n"), "200 open"),
            ("chunks that are not complete", in_chunks("0\r\n"), "waits"),
            ("a chunk that is not complete", chunked("14\r\n@1"), "waits"),
            ("chunks that end early", chunked("14\r\n@1\r\n$"), "400 close"),
            ("no chunk at all", post("Transfer-Encoding: chunked\r\n", "0\r\n\r\n") + LIVE, "200 200 open"),
        ],
    );
    for (name, first) in [
        ("an extension", "14;a=b\r\n"),
        ("an extension without a value", "14;a\r\n"),
        ("a quoted extension", "14;a=\"b\"\r\n"),
        ("two extensions", "14;a=b;c=d\r\n"),
    ] {
        table.add("9112 §7.1.1", name, of(first), "200 open");
    }
    for (name, first) in [
        ("no size", "\r\n"),
        ("a size that is no number", "g\r\n"),
        ("a size with 0x", "0x14\r\n"),
        ("a size with a plus", "+14\r\n"),
        ("a size with a minus", "-14\r\n"),
        ("a space before a size", " 14\r\n"),
        ("a size with a point", "14.0\r\n"),
        ("a size with an underscore", "1_4\r\n"),
        ("an extension without a size", ";a=b\r\n"),
        ("a size line that ends with LF", "14\n"),
        ("a size line that ends with CR", "14\r"),
        ("an LF in an extension", "14;a\nb\r\n"),
        ("a CR in an extension", "14;a\rb\r\n"),
        ("a NUL in an extension", "14;a\0b\r\n"),
        ("a size of 65 bits", "10000000000000000\r\n"),
    ] {
        table.add(clause, name, of(first), "400 close");
    }
    table.rows(
        clause,
        &[
            ("a size beyond the largest body", chunked("4000001\r\n@1"), "413 close"),
            ("a size of 64 bits", chunked("ffffffffffffffff\r\n@1"), "413 close"),
            ("a chunk longer than its size", chunked(&format!("13\r\n@1\r\n{rest:x}\r\n@2\r\n0\r\n\r\n")), "400 close"),
            ("a chunk that ends with LF", chunked(&format!("14\r\n@1\n{rest:x}\r\n@2\r\n0\r\n\r\n")), "400 close"),
            ("a chunk without an end", chunked(&format!("14\r\n@1{rest:x}\r\n@2\r\n0\r\n\r\n")), "400 close"),
            ("extensions of 4 KiB and more", chunked(&format!("14;{}\r\n@1", "a".repeat(4_100))), "400 close"),
            ("a request behind the chunks", in_chunks("0\r\n\r\n") + LIVE, "200 200 open"),
            ("what hides in a chunk", chunked(&format!("{:x}\r\n{LIVE}\r\n0\r\n\r\n", LIVE.len())), "400 open"),
        ],
    );
}

fn trailers(table: &mut Table) {
    let clause = "9112 §7.1.2";
    for (name, last, want) in [
        ("a trailer", "0\r\nX: y\r\n\r\n", "200 open"),
        ("two trailers", "0\r\nX: y\r\nZ: w\r\n\r\n", "200 open"),
        ("a length as a trailer changes nothing", "0\r\nContent-Length: 5\r\n\r\n", "200 open"),
        ("a Host as a trailer changes nothing", "0\r\nHost: b\r\n\r\n", "200 open"),
        ("a trailer with a space before the colon", "0\r\nX : y\r\n\r\n", "400 close"),
        ("a trailer without a colon", "0\r\nX\r\n\r\n", "400 close"),
        ("a folded trailer", "0\r\nX: y\r\n z\r\n\r\n", "400 close"),
        ("a trailer that ends with LF", "0\r\nX: y\n\r\n", "400 close"),
        ("a NUL in a trailer", "0\r\nX: \0\r\n\r\n", "400 close"),
        ("trailers that end with LF", "0\r\n\n", "400 close"),
    ] {
        table.add(clause, name, in_chunks(last), want);
    }
}

fn persistence(table: &mut Table) {
    let clause = "9112 §9.3";
    for (value, want) in [
        ("close", "200 close"),
        ("Close", "200 close"),
        ("keep-alive, close", "200 close"),
        ("close, x", "200 close"),
        (",,close,", "200 close"),
        ("keep-alive", "200 open"),
        ("x", "200 open"),
        ("closed", "200 open"),
        ("", "200 open"),
    ] {
        table.add(clause, format!("Connection {value:?}"), with(&format!("Connection: {value}\r\n")), want);
    }
    let old = LIVE.replace("1.1", "1.0");
    let kept = with("Connection: keep-alive\r\n").replace("1.1", "1.0");
    let closing = with("Connection: close\r\n");
    table.rows(
        clause,
        &[
            ("HTTP/1.0", old.clone(), "200 close"),
            ("HTTP/1.0 that asks to be kept", kept, "200 open"),
            ("HTTP/1.0 and a request behind it", old + LIVE, "200 close"),
            ("a request behind the last", closing.clone() + LIVE, "200 close"),
            ("a client that closes its side", format!("{LIVE}$"), "200 close"),
            ("a client that closes its side behind two", format!("{LIVE}{LIVE}$"), "200 200 close"),
        ],
    );
    let clause = "9112 §9.3.2";
    let head = LIVE.replacen("GET", "HEAD", 1);
    let none = LIVE.replacen("/v2/health/live", "/nothing", 1);
    table.rows(
        clause,
        &[
            ("two in a row", format!("{LIVE}{LIVE}"), "200 200 open"),
            ("different ones in a row", format!("{LIVE}{none}{}{head}{LIVE}", sized()), "200 404 200 200h 200 open"),
            ("an empty line between", format!("{}\r\n{LIVE}", sized()), "200 200 open"),
            ("the last of a row closes", format!("{LIVE}{}{closing}", sized()), "200 200 200 close"),
            ("a malformed one in a row", format!("{LIVE}GET\r\n\r\n{LIVE}"), "200 400 close"),
            ("a malformed one first", format!("X\r\n\r\n{LIVE}"), "400 close"),
            ("a row of chunks and lengths", in_chunks("0\r\n\r\n") + &sized() + LIVE, "200 200 200 open"),
        ],
    );
    let many = ["200 "; 64].concat() + "open";
    table.add(clause, "64 in a row", LIVE.repeat(64), &many);
}

fn expectations(table: &mut Table) {
    let clause = "9110 §10.1.1";
    let size = BODY.len();
    let expecting = |value: &str, length: usize, body: &str| {
        post(&format!("Expect: {value}\r\nContent-Length: {length}\r\n"), body)
    };
    table.rows(
        clause,
        &[
            ("a body that waits", expecting("100-continue", size, &format!("!{BODY}")), "100 200 open"),
            ("a body that waits, in capitals", expecting("100-Continue", size, &format!("!{BODY}")), "100 200 open"),
            (
                "chunks that wait",
                in_chunks("0\r\n\r\n").replacen("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n!", 1),
                "100 200 open",
            ),
            ("a body that is too large", expecting("100-continue", 67_108_865, ""), "413 close"),
            ("a body that there is not", with("Expect: 100-continue\r\n"), "200 open"),
            ("HTTP/1.0", expecting("100-continue", size, BODY).replacen("1.1", "1.0", 1), "200 close"),
            ("another expectation", with("Expect: tea\r\n"), "417 close"),
            ("two expectations", with("Expect: 100-continue\r\nExpect: tea\r\n"), "417 close"),
        ],
    );
}

fn methods(table: &mut Table) {
    let clause = "9110 §9";
    let live = |method: &str| LIVE.replacen("GET", method, 1);
    table.rows(
        clause,
        &[
            ("HEAD", live("HEAD"), "200h open"),
            ("HEAD of nothing", live("HEAD").replacen("/v2/health/live", "/nothing", 1), "404h open"),
            ("HEAD of an inference", live("HEAD").replacen("/v2/health/live", INFER, 1), "405h open"),
            ("GET of an inference", LIVE.replacen("/v2/health/live", INFER, 1), "405 open"),
            ("a malformed HEAD", "HEAD /v2 HTTP/1.1\r\n\r\n".to_owned(), "400h close"),
            ("CONNECT", "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n".to_owned(), "501 close"),
            ("CONNECT and what follows", format!("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n{LIVE}"), "501 close"),
            ("CONNECT without a port", "CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "400 close"),
            ("CONNECT of a path", "CONNECT /v2 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "405 open"),
        ],
    );
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "get", "BREW", "M-SEARCH"] {
        table.add(clause, method, live(method), "405 open");
    }
    for (name, field) in [
        ("h2c", "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n"),
        ("websocket", "Upgrade: websocket\r\nConnection: upgrade\r\n"),
    ] {
        table.add("9110 §7.8", format!("an upgrade to {name} is not taken"), with(field), "200 open");
    }
    let coded = post(&format!("Content-Encoding: br\r\nContent-Length: {}\r\n", BODY.len()), BODY);
    table.add("9110 §15.5.16", "a coding that is not known", coded, "415 open");
    table.add("9113 §3.4", "half a preface and then no HTTP/2", "PRI * HTTP/2.0\r\n\r\nSX\r\n\r\n", "505 close");
}

fn limits(table: &mut Table) {
    let names = |count: usize| (0..count).map(|index| format!("X{index}: y\r\n")).collect::<String>();
    let value = |size: usize| with(&format!("X: {}\r\n", "y".repeat(size)));
    let target = |size: usize| line(&format!("GET /{} HTTP/1.1", "a".repeat(size - 1)));
    table.rows(
        "9110 §15.5.15",
        &[
            ("the longest target", target(16 * 1024), "404 open"),
            ("a longer target", target(16 * 1024 + 1), "414 close"),
        ],
    );
    table.rows(
        "6585 §5",
        &[
            ("the most fields", with(&names(127)), "200 open"),
            ("more fields", with(&names(128)), "431 close"),
            ("a long value", value(60_000), "200 open"),
            ("a longer head", value(66_000), "431 close"),
            ("a head without an end", "GET /v2 HTTP/1.1\r\nX: ".to_owned() + &"y".repeat(70_000), "431 close"),
            ("a request line without an end", "GET /".to_owned() + &"y".repeat(70_000), "414 close"),
            ("trailers without an end", in_chunks("0\r\nX: ") + &"y".repeat(70_000), "431 close"),
        ],
    );
}
