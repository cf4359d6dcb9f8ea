//! Bodies of inferences whose content type says that they are binary, without the field that says where JSON ends: an
//! image or a raw tensor, for models with one input. Pure.

use crate::rest::HeaderLength;
use base::error::Error;

/// The length of the JSON in a body without the field of it: 0, for a raw body, if the content type says that it is binary
/// and it is not a request in JSON, which some clients send with this type.
pub fn deduced_length(content_type: Option<&[u8]>, body: &[u8]) -> HeaderLength {
    let is_raw = content_type.is_some_and(is_binary) && !is_request(body);
    if is_raw { HeaderLength::Size(0) } else { HeaderLength::Absent }
}

/// Returns true for an image or bytes of an unknown kind, with or without parameters of the type.
pub fn is_binary(content_type: &[u8]) -> bool {
    let kind = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is_image = kind.get(..IMAGE.len()).is_some_and(|start| start.eq_ignore_ascii_case(IMAGE));
    is_image || kind.eq_ignore_ascii_case(b"application/octet-stream")
}

/// Returns true if the field `Accept` names JSON: the answer to a raw body then has its outputs in JSON, and otherwise as binary
/// data.
pub fn wants_json(accept: Option<&[u8]>) -> bool {
    let mut kinds = accept.unwrap_or_default().split(|byte| *byte == b',');
    kinds.any(|kind| {
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        kind.eq_ignore_ascii_case(b"application/json")
    })
}

const IMAGE: &[u8] = b"image/";

/// Returns true if a body begins with an object and names its inputs. The numbers of a tensor do not do both by chance.
fn is_request(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'{') && body.windows(INPUTS.len()).any(|part| part == INPUTS)
}

const INPUTS: &[u8] = b"\"inputs\"";

/// Adds to the fault of a binary body that the field is missing which says where its JSON ends.
pub fn with_missing_length(error: Error) -> Error {
    error.with_suffix(
        "; the content type says that the body is binary, and the header Inference-Header-Content-Length is missing, \
         which says how many bytes at the beginning are JSON (0: the body is one raw tensor)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_answered_where_it_is_asked_for() {
        let check = |accept: &str, want| assert_eq!(wants_json(Some(accept.as_bytes())), want, "{accept}");
        check("application/json", true);
        check("image/*, Application/JSON; q=0.5", true);
        check("*/*", false);
        check("application/octet-stream", false);
        assert!(!wants_json(None));
    }

    #[test]
    fn images_and_raw_bytes_are_raw_and_requests_in_json_are_not() {
        let raw = |kind: &str, body: &[u8]| deduced_length(Some(kind.as_bytes()), body) == HeaderLength::Size(0);
        assert!(
            raw("image/png", b"\x89PNG") && raw("Image/JPEG; q=1", b"") && raw("application/octet-stream", b"{\"x\"")
        );
        assert!(raw("APPLICATION/octet-stream ; a=b", &[0; 4]));
        for kind in ["application/json", "image", "application/octet-streams", "text/plain", ""] {
            assert!(!raw(kind, &[0; 4]), "{kind}");
        }
        assert!(!raw("application/octet-stream", br#" {"id":"a","inputs":[]}"#));
        assert!(!raw("application/octet-stream", b"{\"inputs\":[{]}\0\0"), "binary data follows JSON");
        assert!(raw("application/octet-stream", b"\0{\"inputs\""));
        assert_eq!(deduced_length(None, &[0; 4]), HeaderLength::Absent);
    }
}
