//! Scripts and tables for the connection.

use std::path::Path;

use bytes::Bytes;

use super::fuzz::{PlainBody, fuzz_connection, transcript};
use super::*;
use crate::http1::incoming::{SPACE_SIZE_MAX, SPACE_SIZE_MIN};
use base::budget::testing;
use base::limits::{
    BODY_CLAIM_MAX, CHUNK_EXTENSIONS_SIZE_MAX, CHUNKS_MAX, HEAD_FIELDS_MAX, INPUT_SIZE_MIN, TARGET_SIZE_MAX,
};

const SMALL: Http1Settings = Http1Settings {
    head_size_max: 2_000,
    body_size_max: 100,
    aligned_after: None,
    head_timeout: Duration::from_secs(10),
    body_timeout: Duration::from_secs(30),
    idle_timeout: Duration::from_secs(75),
};

/// The messages without their fields, and the refusal as its status.
fn outcome(settings: Http1Settings, input: &[u8], piece_size: impl FnMut() -> usize) -> Vec<String> {
    let short = |line: String| match line.split_once(" | ") {
        Some((message, _)) => message.replace(" b\"", " \""),
        None => line.get(..3).unwrap_or_default().to_owned(),
    };
    transcript(settings, input, piece_size).into_iter().map(short).collect()
}

/// The outcome of one write, after checking that every way to cut it in two, and byte by byte,
/// gives the same.
fn cut_everywhere(input: &[u8]) -> Vec<String> {
    let whole = outcome(SMALL, input, || usize::MAX);
    assert_eq!(outcome(SMALL, input, || 1), whole, "byte by byte: {}", input.escape_ascii());
    for at in 1..input.len() {
        let mut pieces = [at].into_iter();
        let cut = outcome(SMALL, input, || pieces.next().unwrap_or(usize::MAX));
        assert_eq!(cut, whole, "cut at {at}: {}", input.escape_ascii());
    }
    whole
}

fn post(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}")
}

fn chunked(body: &str) -> String {
    post("Transfer-Encoding: chunked\r\n", body)
}

#[test]
fn good_requests_come_out_the_same_however_they_are_cut() {
    let check = |input: &str, want: &[&str]| assert_eq!(cut_everywhere(input.as_bytes()), want, "{input:?}");
    check("", &[]);
    check("\r\n\r\n", &[]);
    check("GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n", &["Get \"/v2\" \"\""]);
    check("\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", &["Get \"/\" \"\""]);
    check("HEAD /v2/health/live?x HTTP/1.1\r\nhost:a\r\n\r\n", &["Head \"/v2/health/live\" \"\""]);
    check("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", &["Other \"*\" \"\""]);
    check("GET http://a/v2 HTTP/1.1\r\nHost: b\r\n\r\n", &["Get \"/v2\" \"\""]);
    check("GET / HTTP/1.0\r\n\r\n", &["Get \"/\" \"\""]);
    check(&post("Content-Length: 5\r\n", "hello"), &["Post \"/\" \"hello\""]);
    check(&post("Content-Length: 0\r\n", ""), &["Post \"/\" \"\""]);
    check("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab", &["Get \"/\" \"ab\""]);
    check(&post("Expect: 100-continue\r\nContent-Length: 2\r\n", "ab"), &["Post \"/\" \"ab\""]);
    check(&chunked("5\r\nhello\r\n0\r\n\r\n"), &["Post \"/\" \"hello\""]);
    check(&chunked("0\r\n\r\n"), &["Post \"/\" \"\""]);
    check(&chunked("00a;x=\"y\"\r\nhellohello\r\n1 ;z\r\n!\r\n000;x\r\n\r\n"), &["Post \"/\" \"hellohello!\""]);
    check(&chunked("2\r\n\r\n\r\n0\r\nA: b\r\nContent-Length: 9\r\n\r\n"), &["Post \"/\" \"\\r\\n\""]);
    let two = ["Post \"/\" \"ab\"", "Get \"/\" \"\""];
    check(&post("Content-Length: 2\r\n", "abGET / HTTP/1.1\r\nHost: a\r\n\r\n"), &two);
    check(&post("Content-Length: 2\r\n", "ab\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), &two);
    check(&chunked("2\r\nab\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), &two);
    // Input behind a request that ends the connection is not looked at (RFC 9112 §9.6).
    check("GET /1 HTTP/1.0\r\n\r\nGET /2 HTTP/1.0\r\n\r\n", &["Get \"/1\" \"\""]);
    check("GET /1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /2 HTTP/1.0\r\n\r\n", &["Get \"/1\" \"\""]);
    check(
        "GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /2 HTTP/1.0\r\n\r\n",
        &["Get \"/1\" \"\"", "Get \"/2\" \"\""],
    );
}

#[test]
fn bad_requests_are_refused_once_and_nothing_after_them_is_answered() {
    let check = |input: &str, status: &str| {
        let smuggled = format!("{input}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(cut_everywhere(smuggled.as_bytes()), [status], "{input:?}");
    };
    // Framing.
    check(&post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), "400");
    check(&post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), "400");
    check(&post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), "400");
    check(&post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), "400");
    check(&post("Content-Length: 5, 5\r\n", "hello"), "400");
    check(&post("Content-Length: +5\r\n", "hello"), "400");
    check(&post("Content-Length: -1\r\n", ""), "400");
    check(&post("Content-Length: 9223372036854775808\r\n", ""), "400");
    check(&post("Content-Length: 9223372036854775807\r\n", ""), "413");
    check(&post("Content-Length : 5\r\n", "hello"), "400");
    check(&post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), "501");
    check(&post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"), "400");
    check(&post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n"), "400");
    check(&post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"), "400");
    check(&post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"), "400");
    check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400");
    // Heads.
    check("GET / HTTP/1.1\nHost: a\n\n", "400");
    check("GET / HTTP/1.1\r\nHost: a\n\r\n", "400");
    check("GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", "400");
    check("GET / HTTP/1.1\rHost: a\r\r", "400");
    check("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400");
    check("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400");
    check("\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400");
    check("GET /live\0x HTTP/1.1\r\nHost: a\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\nHost: a\r\nA: b\0c\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\nHost: a\r\nA\0: b\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\nHost: a\r\nA b: c\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\nHost: a\r\n: c\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\nHost: a\r\nA\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\n Host: a\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400");
    check("GET /\r\n\r\n", "400");
    check("GET / HTTP/1.1 x\r\nHost: a\r\n\r\n", "400");
    check("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", "400");
    check("GET /#a HTTP/1.1\r\nHost: a\r\n\r\n", "400");
    check("GET / HTTP/9.9\r\nHost: a\r\n\r\n", "505");
    check("\x16\x03\x01\x02\0\x01\0\x01", "400");
    check(&post("Expect: tea\r\nContent-Length: 2\r\n", "ab"), "417");
    // Chunks.
    for line in ["g", "", "-1", "+1", "0x1", " 1", "1 ", "1\t", "00000000000000001", "1;a\x01", "1;a\nb"] {
        check(&chunked(&format!("{line}\r\na\r\n0\r\n\r\n")), "400");
    }
    check(&chunked("1\na\r\n0\r\n\r\n"), "400");
    check(&chunked("1\ra\r\n0\r\n\r\n"), "400");
    check(&chunked("1\r\nab\r\n0\r\n\r\n"), "400");
    check(&chunked("1\r\na\n0\r\n\r\n"), "400");
    check(&chunked("1\r\na\r0\r\n\r\n"), "400");
    check(&chunked("0\r\n\n"), "400");
    check(&chunked("0\r\nA\r\n\r\n"), "400");
    check(&chunked("0\r\nA : b\r\n\r\n"), "400");
    check(&chunked("0\r\nA: b\n\r\n"), "400");
    check(&chunked("ffffffffffffffff\r\n"), "413");
    check(&chunked("8000000000000000\r\n"), "413");
}

#[test]
fn a_request_that_the_peer_cuts_short_is_refused() {
    let inputs = [
        "G".to_owned(),
        "\r".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\r\n".to_owned(),
        post("Content-Length: 5\r\n", "hell"),
        post("Content-Length: 5\r\n", ""),
        chunked("5\r\nhello\r\n"),
        chunked("5\r\nhello\r\n0\r\n"),
    ];
    for input in inputs {
        assert_eq!(cut_everywhere(input.as_bytes()), ["400"], "{input:?}");
    }
}

#[test]
fn many_requests_in_one_write_come_out_in_order() {
    let one = |index: usize| match index % 3 {
        0 => (format!("GET /{index} HTTP/1.1\r\nHost: a\r\n\r\n"), format!("Get \"/{index}\" \"\"")),
        1 => (
            format!("POST /{index} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{index:03}"),
            format!("Post \"/{index}\" \"{index:03}\""),
        ),
        _ => (
            format!(
                "POST /{index} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{index:03}\r\n0\r\n\r\n"
            ),
            format!("Post \"/{index}\" \"{index:03}\""),
        ),
    };
    for count in 1..=64 {
        let (mut input, mut want): (String, Vec<String>) = (0..count).map(one).unzip();
        for piece_size in [usize::MAX, 1, 7, 100] {
            assert_eq!(outcome(SMALL, input.as_bytes(), || piece_size), want, "{count} {piece_size}");
        }
        input.push_str("BAD\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
        want.push("400".to_owned());
        assert_eq!(outcome(SMALL, input.as_bytes(), || usize::MAX), want, "{count} and a bad one");
    }
    let (input, want): (String, Vec<String>) = (0..6).map(one).unzip();
    assert_eq!(cut_everywhere(input.as_bytes()), want);
}

#[test]
fn every_size_fits_at_its_bound_and_not_one_past_it() {
    let check = |input: &str, settings: Http1Settings, want: &str| {
        for piece_size in [usize::MAX, 1_000] {
            let got = outcome(settings, input.as_bytes(), || piece_size);
            let status = got.last().map(String::as_str).filter(|line| line.len() == 3).unwrap_or("fits");
            assert_eq!((got.len(), status), (1, want), "{}", &input[..input.len().min(200)]);
        }
    };
    let usual = Http1Settings::default();
    let head = |size: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "b".repeat(size - 32));
    check(&head(2_000), SMALL, "fits");
    check(&head(2_001), SMALL, "431");
    check(&head(HEAD_SIZE_MAX), usual, "fits");
    check(&head(HEAD_SIZE_MAX + 1), usual, "431");
    let fields = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(count - 1));
    check(&fields(HEAD_FIELDS_MAX), usual, "fits");
    check(&fields(HEAD_FIELDS_MAX + 1), usual, "431");
    check(&fields(100_000), usual, "431");
    let target = |size: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "b".repeat(size - 1));
    check(&target(TARGET_SIZE_MAX), usual, "fits");
    check(&target(TARGET_SIZE_MAX + 1), usual, "414");
    check(&target(100_000), usual, "414");
    let sized = |size: usize| post(&format!("Content-Length: {size}\r\n"), &"b".repeat(size));
    check(&sized(100), SMALL, "fits");
    check(&sized(101), SMALL, "413");
    let chunks = |size: usize| chunked(&format!("32\r\n{}\r\n{size:x}\r\n{0:.size$}\r\n0\r\n\r\n", "b".repeat(50)));
    check(&chunks(50), SMALL, "fits");
    check(&chunked(&format!("32\r\n{}\r\n33\r\n", "b".repeat(50))), SMALL, "413");
    let many = |count: usize| chunked(&format!("{}0\r\n\r\n", "1\r\na\r\n".repeat(count)));
    check(&many(CHUNKS_MAX), usual, "fits");
    check(&many(CHUNKS_MAX + 1), usual, "400");
    let extension = |size: usize| chunked(&format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(size - 1)));
    check(&extension(CHUNK_EXTENSIONS_SIZE_MAX), usual, "fits");
    check(&extension(CHUNK_EXTENSIONS_SIZE_MAX + 1), usual, "400");
    let trailers = |size: usize| chunked(&format!("0\r\nA: {}\r\n\r\n", "b".repeat(size - 7)));
    check(&trailers(2_000), SMALL, "fits");
    check(&trailers(2_001), SMALL, "431");
    let trailer_count = |count: usize| chunked(&format!("0\r\n{}\r\n", "A: b\r\n".repeat(count)));
    check(&trailer_count(HEAD_FIELDS_MAX), usual, "fits");
    check(&trailer_count(HEAD_FIELDS_MAX + 1), usual, "431");
    let blank = |count: usize| format!("{}GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\r\n".repeat(count));
    check(&blank(BLANK_LINES_MAX), usual, "fits");
    check(&blank(BLANK_LINES_MAX + 1), usual, "400");
}

#[test]
fn the_texts_of_bounds_name_the_bound_and_the_flag() {
    let refusal =
        |settings: Http1Settings, input: &str| transcript(settings, input.as_bytes(), || usize::MAX).pop().unwrap();
    let too_large = "413 request JSON size of 101 bytes exceeds the maximum allowed input size of 100 bytes. \
                     Use --http-max-input-size to increase the limit.";
    assert_eq!(refusal(SMALL, &post("Content-Length: 101\r\n", "")), too_large);
    assert_eq!(refusal(SMALL, &chunked(&format!("1\r\na\r\n{:x}\r\n", 100))), too_large);
    let too_many = "400 Chunked request body exceeds maximum of 65536 non-empty chunks. \
                    Send fewer or larger HTTP chunks.";
    assert_eq!(refusal(Http1Settings::default(), &chunked(&"1\r\na\r\n".repeat(CHUNKS_MAX + 1))), too_many);
}

// One connection, step by step.

fn connection() -> Http1Connection<PlainBody> {
    Http1Connection::new(Http1Settings::default())
}

/// Writes all of `input`; returns the number of bytes that fitted.
fn write(connection: &mut Http1Connection<PlainBody>, input: &[u8], now: Instant) -> usize {
    let mut from = 0;
    while from < input.len() {
        let space = connection.input_space(usize::MAX);
        let count = space.len().min(input.len() - from);
        if count == 0 {
            break;
        }
        space[..count].copy_from_slice(&input[from..from + count]);
        connection.handle_input(count, now);
        from += count;
    }
    from
}

fn request(connection: &mut Http1Connection<PlainBody>, input: &str) -> Message {
    write(connection, input.as_bytes(), Instant::ZERO);
    connection.poll_message(Instant::ZERO).unwrap().unwrap()
}

/// The head of a reply with a body of two bytes, and true if the body follows.
fn answer(connection: &mut Http1Connection<PlainBody>) -> (String, bool) {
    let mut out = Vec::new();
    let has_body = connection.encode_head(&Reply::new(200, "text/plain", "ok"), &mut out);
    (String::from_utf8(out).unwrap(), has_body)
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_reply_says_what_becomes_of_the_connection() {
    let check = |input: &str, option: &str| {
        let mut connection = connection();
        request(&mut connection, input);
        let is_closing = option == "Connection: close\r\n";
        assert_eq!(connection.is_closing(), is_closing, "{input:?}");
        let want = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n{option}\r\n");
        assert_eq!(answer(&mut connection), (want, true), "{input:?}");
        assert_eq!(connection.is_closing(), is_closing, "{input:?}");
    };
    check(GET, "");
    check("GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", "");
    check("GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n", "Connection: close\r\n");
    check("GET / HTTP/1.0\r\n\r\n", "Connection: close\r\n");
    check("GET / HTTP/1.0\r\nConnection: x, Keep-Alive\r\n\r\n", "Connection: keep-alive\r\n");
    check("GET / HTTP/1.0\r\nConnection: close, keep-alive\r\n\r\n", "Connection: close\r\n");
}

#[test]
fn a_reply_in_parts_ends_with_its_last_chunk_or_with_the_connection() {
    let mut connection = connection();
    let mut stream = |version: &str| {
        request(&mut connection, &format!("GET / HTTP/{version}\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"));
        let mut out = Vec::new();
        connection.begin_stream(&Reply { status: 200, ..Reply::default() }, &mut out);
        assert!(!connection.takes_interim(), "an interim response comes before the reply");
        for part in ["abc", "", "d"] {
            connection.encode_part(part.as_bytes(), &mut out);
        }
        connection.end_stream(&mut out);
        assert!(!connection.takes_chunks());
        (String::from_utf8(out).unwrap(), connection.is_closing())
    };
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
    assert_eq!(stream("1.1"), (chunks.to_owned(), false));
    assert_eq!(stream("1.0"), ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcd".to_owned(), true));
}

#[test]
fn a_head_request_is_answered_without_its_body() {
    let mut connection = connection();
    request(&mut connection, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (head, has_body) = answer(&mut connection);
    assert!(head.contains("Content-Length: 2\r\n") && !has_body);
    request(&mut connection, GET);
    assert!(answer(&mut connection).1, "the next reply has one again");
    request(&mut connection, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    answer(&mut connection);
    write(&mut connection, b"GET", Instant::ZERO);
    assert_eq!(connection.handle_timeout(Instant::ZERO + HEAD_TIMEOUT).map(|refusal| refusal.status()), Some(408));
    assert!(answer(&mut connection).1, "what was too late is not known to be HEAD");
}

#[test]
fn a_refused_head_request_is_answered_without_a_body() {
    let mut connection = connection();
    write(&mut connection, b"HEAD / HTTP/9.9\r\n\r\n", Instant::ZERO);
    assert_eq!(connection.poll_message(Instant::ZERO).unwrap_err().status(), 505);
    let (head, has_body) = answer(&mut connection);
    assert!(head.contains("Connection: close\r\n") && !has_body);
}

#[test]
fn the_next_message_waits_for_the_reply_to_the_one_before() {
    let mut connection = connection();
    write(&mut connection, GET.repeat(2).as_bytes(), Instant::ZERO);
    assert!(connection.poll_message(Instant::ZERO).unwrap().is_some());
    assert!(connection.poll_message(Instant::ZERO).unwrap().is_none());
    answer(&mut connection);
    assert!(connection.poll_message(Instant::ZERO).unwrap().is_some());
}

#[test]
fn what_arrives_during_a_reply_is_kept_to_a_bound() {
    let mut connection = connection();
    request(&mut connection, GET);
    let flood = GET.repeat(10_000);
    let taken = write(&mut connection, flood.as_bytes(), Instant::ZERO);
    assert_eq!((taken, connection.held_size()), (READ_SIZE, READ_SIZE));
    assert!(connection.input_space(usize::MAX).is_empty());
    let mut count = 0;
    answer(&mut connection);
    while connection.poll_message(Instant::ZERO).unwrap().is_some() {
        count += 1;
        answer(&mut connection);
    }
    assert_eq!(count, READ_SIZE / GET.len());
}

#[test]
fn a_client_that_waits_is_told_to_go_on_once() {
    let check = |input: &str, want: bool| {
        let mut connection = connection();
        write(&mut connection, input.as_bytes(), Instant::ZERO);
        assert_eq!(connection.take_interim(), None, "before the head is looked at");
        let _ = connection.poll_message(Instant::ZERO);
        assert_eq!(connection.take_interim(), want.then_some(CONTINUE), "{input:?}");
        assert_eq!(connection.take_interim(), None, "{input:?}");
    };
    check(&post("Expect: 100-continue\r\nContent-Length: 5\r\n", ""), true);
    check(&post("Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", ""), true);
    check(&post("Content-Length: 5\r\n", ""), false);
    check(&post("Expect: 100-continue\r\nContent-Length: 5\r\n", "h"), false);
    check(&post("Expect: 100-continue\r\nContent-Length: 5\r\n", "hello"), false);
    check(&post("Expect: 100-continue\r\nContent-Length: 0\r\n", ""), false);
    check(&post("Expect: 100-continue\r\n", ""), false);
    check(&post("Expect: 100-continue\r\nContent-Length: 99999999999\r\n", ""), false);
    check("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", false);
    let mut late = connection();
    write(&mut late, post("Expect: 100-continue\r\nContent-Length: 5\r\n", "").as_bytes(), Instant::ZERO);
    assert!(late.poll_message(Instant::ZERO).unwrap().is_none());
    write(&mut late, b"h", Instant::ZERO);
    assert_eq!(late.take_interim(), None, "the client did not wait");
}

#[test]
fn a_large_body_is_received_into_its_buffer_and_memory_follows_what_came() {
    let mut connection = connection();
    write(&mut connection, post(&format!("Content-Length: {BODY_SIZE_MAX}\r\n"), "").as_bytes(), Instant::ZERO);
    assert!(connection.poll_message(Instant::ZERO).unwrap().is_none());
    assert!(connection.held_size() <= INPUT_SIZE_MIN, "nothing came, nothing is held");
    let (mut received, mut most) = (0, [0; 3]);
    while received < 3 * BODY_CLAIM_MAX {
        // The caller may want less.
        for (size_max, most) in [0, 64 * 1024, usize::MAX].into_iter().zip(&mut most) {
            let space = connection.input_space(size_max);
            assert!((SPACE_SIZE_MIN..=SPACE_SIZE_MAX).contains(&space.len()), "what is shown is cleared before");
            *most = space.len().max(*most);
        }
        let space = connection.input_space(usize::MAX);
        let count = space.len().min(10_000);
        space[..count].fill(7);
        connection.handle_input(count, Instant::ZERO);
        received += count;
        assert!(connection.poll_message(Instant::ZERO).unwrap().is_none());
        assert!(connection.held_size() <= INPUT_SIZE_MIN + SPACE_SIZE_MIN + 4 * received);
    }
    assert_eq!(most, [READ_SIZE, 64 * 1024, SPACE_SIZE_MAX]);
}

#[test]
fn a_body_of_any_size_comes_out_whole_with_what_follows_it() {
    for size in [1, 100, INPUT_SIZE_MIN, READ_SIZE - 1, READ_SIZE + 1, 100_000, 3_000_000] {
        let body: Vec<u8> = (0..size).map(|value| (value % 253) as u8).collect();
        let mut input = post(&format!("Content-Length: {size}\r\n"), "").into_bytes();
        input.extend_from_slice(&body);
        input.extend_from_slice(GET.as_bytes());
        for piece_size in [usize::MAX, 1_400, 70_000] {
            let (mut connection, mut rest, mut bodies) = (connection(), &input[..], Vec::new());
            while !rest.is_empty() {
                let space = connection.input_space(usize::MAX);
                let count = space.len().min(rest.len()).min(piece_size);
                space[..count].copy_from_slice(&rest[..count]);
                connection.handle_input(count, Instant::ZERO);
                rest = &rest[count..];
                while let Some(message) = connection.poll_message(Instant::ZERO).unwrap() {
                    bodies.push(message.body);
                    answer(&mut connection);
                }
            }
            assert_eq!(bodies, [Bytes::from(body.clone()), Bytes::new()], "{size} in {piece_size}");
        }
    }
}

#[test]
fn an_idle_connection_gives_its_memory_back() {
    let mut connection = connection();
    request(&mut connection, &format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "b".repeat(60_000)));
    answer(&mut connection);
    assert!(connection.held_size() > 60_000);
    assert!(connection.poll_message(Instant::ZERO).unwrap().is_none());
    assert!(connection.held_size() <= INPUT_SIZE_MIN);
}

/// Second by second: `+bytes` are written, `.` polls, `!` answers; returns the outcomes.
fn timeline(steps: &[(u64, &str)]) -> String {
    let (mut connection, mut out) = (Http1Connection::<PlainBody>::new(SMALL), String::new());
    let second = |now: Instant| now.as_nanos() / 1_000_000_000;
    for (at, step) in steps {
        let now = Instant::ZERO + Duration::from_secs(*at);
        let came = match (connection.handle_timeout(now), connection.is_closing()) {
            (Some(refusal), _) => format!("{at}: {refusal}\n"),
            (None, true) => format!("{at}: closed\n"),
            (None, false) => String::new(),
        };
        out.push_str(&came);
        match step.strip_prefix('+') {
            Some(bytes) => assert_eq!(write(&mut connection, bytes.as_bytes(), now), bytes.len()),
            None if *step == "!" => drop(answer(&mut connection)),
            None => {}
        }
        if connection.poll_message(now).unwrap().is_some() {
            out.push_str(&format!("{at}: message\n"));
        }
        match connection.poll_timeout() {
            Some(deadline) => out.push_str(&format!("{at}: until {}\n", second(deadline))),
            None => out.push_str(&format!("{at}: no deadline\n")),
        }
    }
    out
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    let got = timeline(&[(0, "."), (74, "."), (75, ".")]);
    assert_eq!(got, "0: until 75\n74: until 75\n75: closed\n75: no deadline\n");
    let got = timeline(&[(0, "+GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), (3, "!"), (70, "."), (78, ".")]);
    assert_eq!(got, "0: message\n0: no deadline\n3: until 78\n70: until 78\n78: closed\n78: no deadline\n");
}

#[test]
fn a_head_that_drips_is_refused_ten_seconds_after_its_first_byte() {
    let got = timeline(&[(0, "."), (5, "+GET"), (10, "+ / H"), (14, "+TTP/1.1\r\n"), (15, ".")]);
    let refusal = "408 the request head did not arrive in time";
    assert_eq!(got, format!("0: until 75\n5: until 15\n10: until 15\n14: until 15\n15: {refusal}\n15: no deadline\n"));
}

#[test]
fn a_head_that_came_with_the_request_before_has_its_time_from_then_on() {
    let got = timeline(&[(0, "+GET / HTTP/1.1\r\nHost: a\r\n\r\nGET"), (20, "!"), (29, "."), (30, ".")]);
    let refusal = "408 the request head did not arrive in time";
    assert_eq!(
        got,
        format!("0: message\n0: no deadline\n20: until 30\n29: until 30\n30: {refusal}\n30: no deadline\n")
    );
}

#[test]
fn a_body_that_drips_is_refused_and_one_that_moves_is_not() {
    let head = "+POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n";
    let got = timeline(&[(0, head), (29, "+a"), (30, ".")]);
    let refusal = "408 the request body did not arrive in time";
    assert_eq!(got, format!("0: until 30\n29: until 30\n30: {refusal}\n30: no deadline\n"));
    let mut moving = connection();
    write(&mut moving, post("Content-Length: 1000000\r\n", "").as_bytes(), Instant::ZERO);
    assert!(moving.poll_message(Instant::ZERO).unwrap().is_none());
    for step in 0..4 {
        let now = Instant::ZERO + Duration::from_secs(20 * step);
        let want = Instant::ZERO + Duration::from_secs(30 + 20 * step.saturating_sub(1));
        assert_eq!(moving.poll_timeout(), Some(want), "step {step}");
        write(&mut moving, &vec![7; BODY_STEP_SIZE - usize::from(step == 0)], now);
        // The first step is one byte short of progress.
        let want = if step == 0 { want } else { now + BODY_TIMEOUT };
        assert_eq!(moving.poll_timeout(), Some(want), "step {step}");
    }
}

#[test]
fn a_draining_connection_answers_what_came_and_ends() {
    let mut idle = connection();
    idle.close_after_reply();
    assert!(idle.is_closing());
    let mut busy = connection();
    request(&mut busy, &format!("{GET}{GET}"));
    busy.close_after_reply();
    assert!(!busy.is_closing(), "another request is here");
    assert!(!answer(&mut busy).0.contains("Connection"));
    assert!(busy.poll_message(Instant::ZERO).unwrap().is_some());
    assert!(answer(&mut busy).0.contains("Connection: close\r\n"));
    assert!(busy.is_closing());
    let mut partial = connection();
    write(&mut partial, b"GET / HTTP/1.1\r\n", Instant::ZERO);
    partial.close_after_reply();
    assert!(!partial.is_closing() && partial.is_within_message());
    request(&mut partial, "Host: a\r\n\r\n");
    assert!(answer(&mut partial).0.contains("Connection: close\r\n"));
}

#[test]
fn a_half_closed_client_is_still_answered() {
    let mut connection = connection();
    write(&mut connection, GET.as_bytes(), Instant::ZERO);
    connection.handle_end();
    assert!(connection.poll_message(Instant::ZERO).unwrap().is_some());
    assert!(answer(&mut connection).0.contains("Connection: close\r\n"));
    assert!(connection.is_closing());
}

#[test]
fn what_follows_a_refusal_is_thrown_away() {
    let mut connection = connection();
    write(&mut connection, b"BAD\r\n\r\n", Instant::ZERO);
    assert_eq!(connection.poll_message(Instant::ZERO).unwrap_err().status(), 400);
    assert_eq!(write(&mut connection, &[b'a'; 100_000], Instant::ZERO), 100_000);
    assert!(connection.poll_message(Instant::ZERO).unwrap().is_none());
    assert!(connection.is_closing() && connection.held_size() <= READ_SIZE);
}

#[test]
fn the_corpus_of_the_fuzz_target_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/http1");
    let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(seeds.len() >= 8);
    for seed in seeds {
        let input = std::fs::read(&seed).unwrap();
        fuzz_connection(&input);
        // A fuzzer's first attempts: one byte changed, one byte gone.
        for at in 0..input.len().min(250) {
            for byte in *b"\r\n \0;:0g" {
                let mut mutant = input.clone();
                mutant[at] = byte;
                fuzz_connection(&mutant);
            }
            let mut mutant = input.clone();
            mutant.remove(at);
            fuzz_connection(&mutant);
        }
    }
}

// The memory of bodies.

fn bounded(size_max: usize) -> (Http1Connection<PlainBody>, Rc<testing::Bytes>) {
    let memory = testing::Bytes::new(size_max);
    (connection().with_memory(Rc::clone(&memory) as Rc<dyn ReceiveBudget>), memory)
}

#[test]
fn a_body_takes_what_it_brings_up_to_the_bound_and_no_byte_more() {
    const SIZE: usize = 100_000;
    let chunks = |size: usize| chunked(&format!("{size:x}\r\n{}\r\n0\r\n\r\n", "b".repeat(size)));
    let sized = |size: usize| post(&format!("Content-Length: {size}\r\n"), &"b".repeat(size));
    for (size, is_chunked) in [(SIZE, false), (SIZE + 1, false), (SIZE - 100, true), (2 * SIZE, true)] {
        let (mut connection, memory) = bounded(SIZE);
        let input = if is_chunked { chunks(size) } else { sized(size) };
        let (mut from, mut outcome, mut most) = (0, Ok(None), 0);
        while from < input.len() && matches!(outcome, Ok(None)) && connection.poll_timeout() != Some(Instant::ZERO) {
            let end = input.len().min(from + 3_000);
            from += write(&mut connection, &input.as_bytes()[from..end], Instant::ZERO);
            outcome = connection.poll_message(Instant::ZERO);
            most = most.max(memory.reserved.get());
        }
        assert!(most <= SIZE, "{size}");
        match outcome {
            Ok(Some(message)) => {
                assert_eq!((size <= SIZE, message.body.len()), (true, size));
                let taken = connection.take_memory();
                assert_eq!((taken.size(), memory.reserved.get()), (size, size));
                drop(taken);
            }
            outcome => {
                let refusal = outcome.unwrap_err();
                let has_flag = refusal.text().contains("--receive-memory-bytes-max");
                assert_eq!((size > SIZE, refusal.status(), has_flag, refusal.is_of_memory()), (true, 413, true, true));
            }
        }
        assert_eq!(memory.reserved.get(), 0, "{size}");
    }
}

#[test]
fn a_body_without_memory_is_not_read_until_there_is_some() {
    let (mut connection, memory) = bounded(10_000);
    assert!(memory.reserve(9_000));
    let expecting = post("Expect: 100-continue\r\nContent-Length: 5000\r\n", "");
    write(&mut connection, expecting.as_bytes(), Instant::ZERO);
    assert!(connection.poll_message(Instant::ZERO).unwrap().is_none());
    assert!(connection.input_space(usize::MAX).is_empty() && connection.take_interim().is_none());
    assert_eq!(connection.poll_timeout(), Some(Instant::ZERO), "it looks again");
    let later = Instant::ZERO + RECEIVE_WAIT_MAX - Duration::from_millis(1);
    assert_eq!(connection.handle_timeout(later), None);
    assert!(connection.poll_message(later).unwrap().is_none() && connection.input_space(usize::MAX).is_empty());
    memory.release(9_000);
    assert_eq!(connection.handle_timeout(later), None);
    assert!(connection.poll_message(later).unwrap().is_none());
    assert_eq!(connection.take_interim(), Some(CONTINUE));
    assert_eq!(connection.poll_timeout(), Some(later + BODY_TIMEOUT));
    assert_eq!(write(&mut connection, &[b'b'; 5_000], later), 5_000);
    assert_eq!(connection.poll_message(later).unwrap().unwrap().body.len(), 5_000);
    drop(connection);
    assert_eq!(memory.reserved.get(), 0, "what nobody took");
}

#[test]
fn a_body_that_gets_no_memory_is_refused_and_told_when_to_come_again() {
    let (mut connection, memory) = bounded(10_000);
    assert!(memory.reserve(4_000));
    let head = post("Content-Length: 8000\r\n", "");
    write(&mut connection, head.as_bytes(), Instant::ZERO);
    write(&mut connection, &[b'b'; 7_000], Instant::ZERO);
    assert!(connection.poll_message(Instant::ZERO).unwrap().is_none());
    assert!(connection.input_space(usize::MAX).is_empty() && memory.reserved.get() <= 10_000);
    connection.handle_end();
    assert!(connection.poll_message(Instant::ZERO).unwrap().is_none() && connection.is_starved(), "it still waits");
    let refusal = connection.handle_timeout(Instant::ZERO + RECEIVE_WAIT_MAX).unwrap();
    assert_eq!((refusal.status(), refusal.is_of_memory(), memory.reserved.get()), (503, true, 4_000));
    let reply = refusal.into_reply();
    assert!(reply.fields.iter().any(|(name, value)| *name == "Retry-After" && value == "1"));
    let text = String::from_utf8_lossy(&reply.body[0]).into_owned();
    assert!(text.contains("--receive-memory-bytes-max") && text.contains("10000 bytes"), "{text}");
}
