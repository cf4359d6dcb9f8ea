//! A server's answer as lines of text: the same text is compared, recorded and read by a person.
//!
//! HTTP: `STATUS CONTENT-TYPE`, then the body on one line; with `Inference-Header-Content-Length`, the JSON part on one
//! line and `binary SIZE: BYTES` on the next. gRPC: `OK` and the dump of the message, or `CODE: text`; of a stream,
//! each message, and how it ended. A model's failure in Python names its file: where the repository is, `REPOSITORY`
//! stands.

use std::path::Path;

use crate::{
    oracle::case::{Ask, STREAM},
    support::{escape::escape, grpc, http, protobuf, server::Server},
};

/// Asks one server.
pub struct Client<'a> {
    server: &'a Server,
    grpc: grpc::Client,
    repository: String,
}

impl<'a> Client<'a> {
    /// A client of this server, which serves that repository.
    pub fn new(server: &'a Server, repository: &Path) -> Self {
        Self { server, grpc: grpc::Client::new(server.grpc()), repository: repository.display().to_string() }
    }

    /// Sends the case and returns the answer as text.
    pub fn ask(&self, ask: &Ask) -> String {
        let text = match ask {
            Ask::Grpc { method, message } => grpc_text(self.grpc.call(method, message)),
            Ask::Http(bytes) => match http::exchange(self.server.http(), bytes) {
                Ok(response) => http_text(&response),
                Err(error) => format!("no answer: {:?}", error.kind()),
            },
            Ask::Stream(message) => {
                let (came, end) = self.grpc.stream(STREAM, &[], vec![message.clone()]);
                let mut text: String =
                    came.iter().map(|message| format!("message\n{}", protobuf::dump(message))).collect();
                text.push_str(&grpc_text(end.map(|()| Vec::new())));
                text
            }
        };
        // Either of two idle instances may take a batch.
        let text = text.replace(&self.repository, "REPOSITORY").replace("_0_1', message", "_0_0', message");
        without_module_lines(&text)
    }
}

/// The text without the path of the module `triton_python_backend_utils`, and without its line number in an exception.
fn without_module_lines(text: &str) -> String {
    const MODULE: &str = "triton_python_backend_utils.py(";
    let mut parts = text.split(MODULE);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.truncate(shown.rfind(' ').map_or(0, |space| space + 1));
        shown.push_str(MODULE);
        shown.push_str(part.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    }
    shown
}

fn http_text(response: &http::Response) -> String {
    let mut text = format!("{} {}", response.status, response.header("content-type").unwrap_or("-"));
    if response.header("transfer-encoding").is_some() {
        text.push_str(" chunked");
    }
    let header_length = response.header("inference-header-content-length");
    let Some(header_length) = header_length else {
        if !response.body.is_empty() {
            text.push('\n');
            text.push_str(&escape(&response.body));
        }
        return text;
    };
    let split = header_length.parse().ok().and_then(|length| response.body.split_at_checked(length));
    match split {
        Some((json, tensors)) => {
            format!("{text}\n{}\nbinary {}: {}", escape(json), tensors.len(), escape(tensors))
        }
        None => format!("{text}\nheader length {header_length:?} of {}", escape(&response.body)),
    }
}

fn grpc_text(answer: Result<Vec<u8>, tonic::Status>) -> String {
    match answer {
        Ok(message) => format!("OK\n{}", protobuf::dump(&message)).trim_end().to_owned(),
        Err(status) => format!("{:?}: {}", status.code(), escape(status.message().as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(headers: &[(&str, &str)], body: &[u8]) -> http::Response {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        http::Response { status: 200, reason: "OK".to_owned(), headers, body: body.to_vec() }
    }

    #[test]
    fn an_http_answer_shows_its_type_and_its_two_parts() {
        let check = |headers: &[(&str, &str)], body: &[u8], want| {
            assert_eq!(http_text(&response(headers, body)), want);
        };
        check(&[], b"", "200 -");
        check(&[("content-TYPE", "text/plain")], b"{}", "200 text/plain\n{}");
        let length = "Inference-Header-Content-Length";
        check(&[(length, "2")], b"{}\x00", "200 -\n{}\nbinary 1: \\x00");
        check(&[(length, "4")], b"{}\x00", "200 -\nheader length \"4\" of {}\\x00");
    }

    #[test]
    fn the_lines_of_the_module_are_not_shown() {
        let text = "At:\\n  /a/b/triton_python_backend_utils.py(335): f\\n  /d/model.py(28): g";
        let want = "At:\\n  triton_python_backend_utils.py(): f\\n  /d/model.py(28): g";
        assert_eq!(without_module_lines(text), want);
        assert_eq!(without_module_lines("none of it"), "none of it");
    }

    #[test]
    fn a_grpc_answer_shows_its_code() {
        assert_eq!(grpc_text(Ok(b"\x0a\x01m".to_vec())), "OK\n1: \"m\"");
        assert_eq!(grpc_text(Err(tonic::Status::not_found("gone"))), "NotFound: gone");
    }
}
