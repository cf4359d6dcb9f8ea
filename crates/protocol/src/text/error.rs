//! Replies: answers, and errors in TEI's forms.

use base::error::{Code, Error};
use wire::json::writer;
use wire::message::Reply;

use super::call::TextPath;

const JSON: &str = "application/json";

/// The reply with an answer.
pub fn reply(json: Vec<u8>) -> Reply {
    Reply::new(200, JSON, json)
}

/// The reply for an error: `{"error", "error_type"}`, or `{"message", "code", "type"}` on the paths of OpenAI.
pub fn error_reply(path: TextPath, error: &Error) -> Reply {
    let (status, kind) = match error.code() {
        Code::InvalidArgument if error.text().contains("cannot be empty") => (400, "Empty"),
        Code::InvalidArgument | Code::MalformedJson | Code::Unsupported => (422, "Validation"),
        Code::Internal => (424, "Backend"),
        Code::Exhausted => (429, "Overloaded"),
        Code::Unavailable => (503, "Unhealthy"),
        code => (code.on_wire().0, "Validation"),
    };
    let mut json = Vec::new();
    if path == TextPath::Embeddings {
        json.extend_from_slice(b"{\"message\":");
        writer::string(error.text(), &mut json);
        json.extend_from_slice(format!(",\"code\":{status},\"type\":\"{kind}\"}}").as_bytes());
    } else {
        json.extend_from_slice(b"{\"error\":");
        writer::string(error.text(), &mut json);
        json.extend_from_slice(format!(",\"error_type\":\"{kind}\"}}").as_bytes());
    }
    Reply::new(status, JSON, json)
}
