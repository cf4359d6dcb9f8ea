//! Names in a path, percent-decoded, since clients encode them (`a,b` as `a%2Cb`; RFC 3986 §2.1). Nothing else of a path is
//! decoded: a proxy in front that looks at paths sees what the server sees.

use std::borrow::Cow;

/// Decodes the names of models and shared memory regions in a path: the part after `models` or
/// `region`. A name that would not be one part of a path, is not text, or has control characters,
/// stays as it is.
///
/// ```
/// use protocol::path::decode_names;
///
/// assert_eq!(decode_names(b"/v2/models/a%2Cb/infer").as_ref(), b"/v2/models/a,b/infer");
/// assert_eq!(decode_names(b"/v2/models/a%2Fb/%69nfer").as_ref(), b"/v2/models/a%2Fb/%69nfer");
/// ```
pub fn decode_names(path: &[u8]) -> Cow<'_, [u8]> {
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let mut is_name = false;
    let parts = path.split(|byte| *byte == b'/').map(|part| {
        let decoded = if is_name { decode(part) } else { None };
        is_name = matches!(part, b"models" | b"region");
        decoded.map_or(Cow::Borrowed(part), Cow::Owned)
    });
    Cow::Owned(parts.collect::<Vec<_>>().join(&b'/'))
}

/// Decodes the escapes in a part of a path; `None` if an escape is malformed, or the result is not
/// text that can be shown, or has a slash.
fn decode(part: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        decoded.push(if byte == b'%' {
            let (digits, after) = rest.split_first_chunk::<2>()?;
            rest = after;
            let [high, low] =
                digits.map(|digit| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok()));
            high? << 4 | low?
        } else {
            byte
        });
    }
    let is_shown = |character: char| character != '/' && !character.is_control();
    std::str::from_utf8(&decoded).is_ok_and(|name| name.chars().all(is_shown)).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded_and_nothing_else_is() {
        let check = |path: &str, want: &str| {
            assert_eq!(std::str::from_utf8(&decode_names(path.as_bytes())), Ok(want), "{path}");
        };
        check("/v2/models/m/infer", "/v2/models/m/infer");
        check("/v2/models/nop_FP32_-1%2C-1/infer", "/v2/models/nop_FP32_-1,-1/infer");
        check("/v2/models/na%20me/versions/%31", "/v2/models/na me/versions/%31");
        check("/v2/repository/models/%C3%A9/load", "/v2/repository/models/é/load");
        check("/v2/systemsharedmemory/region/a%2bb/status", "/v2/systemsharedmemory/region/a+b/status");
        check("/v2/%6dodels/a%2Cb", "/v2/%6dodels/a%2Cb");
        check("/v2/models/a%2fb", "/v2/models/a%2fb");
        // Not text, and malformed escapes.
        for path in [
            "/v2/models/a%ff",
            "/v2/models/a%2",
            "/v2/models/a%",
            "/v2/models/a%+1",
            "/v2/models/%zz",
            "/v2/models/%00",
        ] {
            check(path, path);
        }
        // Once: a name that was encoded twice keeps a percent sign.
        check("/v2/models/a%252Cb", "/v2/models/a%2Cb");
    }
}
