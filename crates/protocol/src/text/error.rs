//! Replies: answers, and errors in TEI's forms.

use base::error::{Code, Error};
use bytes::Bytes;
use wire::json::writer;
use wire::message::Reply;

use super::path::TextPath;

const JSON: &str = "application/json";

/// The reply with an answer.
pub fn reply(json: Vec<u8>) -> Reply {
    Reply::new(200, JSON, json)
}

/// The reply for an error: `{"error", "error_type"}`, or `{"message", "code", "type"}` on the paths of OpenAI.
pub fn error_reply(path: TextPath, error: &Error) -> Reply {
    let (status, kind) = match error.code() {
        Code::Unavailable if error.is_overload() => OVERLOADED,
        Code::InvalidArgument if error.text().contains("cannot be empty") => (400, "Empty"),
        Code::InvalidArgument | Code::MalformedJson | Code::Unsupported => (422, "Validation"),
        Code::Internal => (424, "Backend"),
        Code::Exhausted | Code::RateLimited => OVERLOADED,
        Code::Unavailable => (503, "Unhealthy"),
        code => (code.on_wire().0, "Validation"),
    };
    let mut json = Vec::new();
    let text = shown_text(error);
    if path.is_of_openai() {
        json.extend_from_slice(b"{\"message\":");
        writer::string(text, &mut json);
        json.extend_from_slice(format!(",\"code\":{status},\"type\":\"{kind}\"}}").as_bytes());
    } else {
        json.extend_from_slice(b"{\"error\":");
        writer::string(text, &mut json);
        json.extend_from_slice(format!(",\"error_type\":\"{kind}\"}}").as_bytes());
    }
    let mut reply = Reply::new(status, JSON, json);
    if let Some(wait) = error.retry_after() {
        reply.fields.push(("Retry-After", Bytes::from(wait.seconds().to_string())));
    }
    reply
}

/// The status and the kind of a refusal of a call that would be taken at another time, as TEI, OpenAI and Cohere have it.
const OVERLOADED: (u16, &str) = (429, "Overloaded");

/// The reply of `/health`.
pub fn health_reply(is_ready: bool) -> Reply {
    match is_ready {
        true => Reply { status: 200, ..Reply::default() },
        false => Reply::new(503, JSON, &br#"{"error":"unhealthy","error_type":"Unhealthy"}"#[..]),
    }
}

/// The text of an error. That of a full queue is TEI's, and one about the length of a text begins as TEI's does, without the
/// place of the step.
pub fn shown_text(error: &Error) -> &str {
    let text = error.text();
    if error.is_overload() && text.ends_with(Error::QUEUE_FULL) {
        return "Model is overloaded";
    }
    text.find("`inputs` must have").and_then(|at| text.get(at..)).unwrap_or(text)
}
