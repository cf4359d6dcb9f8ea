//! Deuteron's refusals where Triton does not refuse, in the words of the case: a number, a header.

use crate::oracle::case::{Ask, Case};

/// The refusal of a request whose first element is invalid for its datatype.
pub fn number(case: &Case) -> String {
    let text = case.ask.text();
    let datatype = between(&text, "\"datatype\":\"", &['"']);
    let element = between(&text, "\"data\":[", &[',', ']']);
    let is_integer = !element.contains(['.', 'e']);
    let fault = if is_integer || datatype.starts_with("FP") {
        format!("out of the range of {datatype}")
    } else {
        format!("not an integer as {datatype} requires")
    };
    error(400, &format!("Unable to parse 'data': element 0 of input 'INPUT0' is {element}, which is {fault}"))
}

/// The refusal of a request whose datatype has a name of another program.
pub fn datatype(case: &Case) -> String {
    let text = case.ask.text();
    let stated = between(&text, "\"datatype\":\"", &['"']);
    let meant = if stated == "STRING" { "BYTES" } else { "FP32" };
    error(400, &format!("invalid datatype for input INPUT0: '{stated}' is no datatype, did you mean {meant}?"))
}

/// The refusal of a request whose `Inference-Header-Content-Length` is not a number, or too large.
pub fn header_length(case: &Case) -> String {
    let text = format!("{}\n", case.ask.text());
    let length = between(&text, "Inference-Header-Content-Length:", &['\n']).trim();
    let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let range = if is_number { " value is out of range [ -2147483648, 2147483647 ]," } else { "" };
    error(400, &format!("Unable to parse Inference-Header-Content-Length,{range} got: {length}"))
}

fn error(status: u16, text: &str) -> String {
    format!("{status} application/json\n{{\"error\":\"{text}\"}}")
}

fn between<'a>(text: &'a str, start: &str, ends: &[char]) -> &'a str {
    let (_, rest) = text.split_once(start).expect("the case has it");
    rest.split(ends).next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::http;

    fn case(name: &str, headers: &[(&str, &str)], body: &str) -> Case {
        Case { name: name.to_owned(), ask: Ask::Http(http::request("POST", "/x", headers, body.as_bytes())) }
    }

    #[test]
    fn a_refusal_names_what_the_case_sent() {
        let check = |datatype: &str, data: &str, want: &str| {
            let body = format!(r#"{{"datatype":"{datatype}","data":[{data}]}}"#);
            assert!(number(&case("", &[], &body)).contains(want), "{body}");
        };
        check("INT8", "-129,0", "is -129, which is out of the range of INT8");
        check("INT8", "1e2", "is 1e2, which is not an integer as INT8 requires");
        check("FP32", "1e39", "is 1e39, which is out of the range of FP32");
        let check = |length: &str, want: &str| {
            let got = header_length(&case("", &[("Inference-Header-Content-Length", length)], "{}"));
            assert_eq!(got, format!("400 application/json\n{{\"error\":\"{want}\"}}"));
        };
        check("", "Unable to parse Inference-Header-Content-Length, got: ");
        check("+9", "Unable to parse Inference-Header-Content-Length, got: +9");
        let range = "value is out of range [ -2147483648, 2147483647 ]";
        check("2147483648", &format!("Unable to parse Inference-Header-Content-Length, {range}, got: 2147483648"));
    }
}
