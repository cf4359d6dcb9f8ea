//! Cross-origin requests of browsers (CORS, Fetch standard §3.2): the answer to a preflight, and the fields that let a page
//! of an allowed origin read an answer, also a refusal. An origin that is not allowed is never repeated.

use std::collections::BTreeSet;

use bytes::Bytes;

use base::policy::{ApiCategory, ApiKey, ApiRestrictions, CorsOrigins};
use wire::http1::is_token_byte;
use wire::message::{Fields, Method, Reply};

/// The header fields that a page may send beside those that it always may.
const ALLOWED_FIELDS: &str = "Authorization, Content-Encoding, Content-Type, Endpoint-Load-Metrics-Format, \
                              Inference-Header-Content-Length, Sequence-Id, Traceparent, Tracestate, Want-Server-Timing, \
                              X-API-Key";

/// The header fields of an answer that a page may read beside those that it always may.
const EXPOSED_FIELDS: &str = "Endpoint-Load-Metrics, Inference-Header-Content-Length, Retry-After, Server-Timing, \
                              WWW-Authenticate";

/// The methods of the port.
const METHODS: &str = "GET, HEAD, POST";

/// Seconds for which a browser remembers an answer to a preflight: the lowest bound of browsers.
const MAX_AGE: &str = "600";

/// The fields about origins in the answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsMark {
    /// The value of `Access-Control-Allow-Origin`, if the page may read the answer.
    allowed: Option<Bytes>,
    /// True if the answer depends on the origin.
    varies: bool,
}

impl CorsMark {
    /// The fields for a request with these fields; `None` if no other origin may read answers.
    pub fn of(origins: &CorsOrigins, fields: &Fields) -> Option<Self> {
        if origins.is_empty() {
            return None;
        }
        let is_any = origins.is_any();
        let origin = fields.get("origin").filter(|origin| origins.allows(origin));
        let value = |origin: &[u8]| if is_any { Bytes::from_static(b"*") } else { Bytes::copy_from_slice(origin) };
        Some(Self { allowed: origin.map(value), varies: !is_any })
    }

    /// Adds the fields to an answer.
    pub fn apply(&self, reply: &mut Reply) {
        if self.varies {
            reply.fields.push(("Vary", Bytes::from_static(b"Origin")));
        }
        if let Some(allowed) = &self.allowed {
            reply.fields.push(("Access-Control-Allow-Origin", allowed.clone()));
            reply.fields.push(("Access-Control-Expose-Headers", Bytes::from_static(EXPOSED_FIELDS.as_bytes())));
        }
    }

    /// The answer to a preflight of an allowed origin; `None` for any other request. Only OPTIONS has
    /// `Access-Control-Request-Method`.
    pub fn preflight(&self, method: Method, fields: &Fields, restrictions: &ApiRestrictions) -> Option<Reply> {
        if method != Method::Other || fields.get("access-control-request-method").is_none() {
            return None;
        }
        let allowed = self.allowed.clone()?;
        let mut reply = Reply { status: 204, ..Reply::default() };
        if self.varies {
            reply.fields.push(("Vary", Bytes::from_static(b"Origin")));
        }
        reply.fields.push(("Access-Control-Allow-Origin", allowed));
        reply.fields.push(("Access-Control-Allow-Methods", Bytes::from_static(METHODS.as_bytes())));
        reply.fields.push(("Access-Control-Allow-Headers", Bytes::from(allowed_fields(restrictions))));
        reply.fields.push(("Access-Control-Max-Age", Bytes::from_static(MAX_AGE.as_bytes())));
        Some(reply)
    }
}

/// The header fields that a page may send, those that open restricted categories included. A name that is no token
/// (RFC 9110 §5.6.2) cannot be sent, and must not break the list.
fn allowed_fields(restrictions: &ApiRestrictions) -> String {
    let keys = ApiCategory::ALL.into_iter().filter_map(|category| restrictions.key(category)).map(ApiKey::header);
    let keys: BTreeSet<_> = keys.filter(|header| header.bytes().all(is_token_byte)).collect();
    let mut list = ALLOWED_FIELDS.to_owned();
    for key in keys {
        list.push_str(", ");
        list.push_str(key);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::policy::PolicyProtocol;

    fn fields(lines: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        lines.iter().for_each(|(name, value)| fields.push(name, value));
        fields
    }

    fn text(reply: &Reply) -> String {
        let field = |(name, value): &(&str, Bytes)| format!("{name}: {}", String::from_utf8_lossy(value));
        let fields: Vec<_> = reply.fields.iter().map(field).collect();
        format!("{} {}", reply.status, fields.join("; "))
    }

    fn origins(list: &str) -> CorsOrigins {
        let mut origins = CorsOrigins::default();
        origins.add(list).unwrap();
        origins
    }

    #[test]
    fn only_an_allowed_origin_may_read_an_answer() {
        let marked = |origins: &CorsOrigins, origin: Option<&str>| {
            let lines: Vec<_> = origin.map(|origin| ("Origin", origin)).into_iter().collect();
            let mut reply = Reply { status: 200, ..Reply::default() };
            if let Some(mark) = CorsMark::of(origins, &fields(&lines)) {
                mark.apply(&mut reply);
            }
            text(&reply)
        };
        let listed = origins("https://a,https://b");
        let expose = format!("Access-Control-Expose-Headers: {EXPOSED_FIELDS}");
        let want = format!("200 Vary: Origin; Access-Control-Allow-Origin: https://b; {expose}");
        assert_eq!(marked(&listed, Some("https://b")), want);
        for other in [Some("https://c"), Some("null"), Some("*"), None] {
            assert_eq!(marked(&listed, other), "200 Vary: Origin", "{other:?}");
        }
        let any = format!("200 Access-Control-Allow-Origin: *; {expose}");
        assert_eq!(marked(&origins("*"), Some("https://c")), any);
        assert_eq!(marked(&origins("*"), None), "200 ");
        assert_eq!(marked(&CorsOrigins::default(), Some("https://a")), "200 ");
    }

    #[test]
    fn a_preflight_is_answered_to_an_allowed_origin_alone() {
        let ask = |origin: &str, method: Method, more: &[(&str, &str)]| {
            let fields = fields(&[&[("Origin", origin)], more].concat());
            let mark = CorsMark::of(&origins("https://a"), &fields).unwrap();
            mark.preflight(method, &fields, &ApiRestrictions::default()).map(|reply| text(&reply))
        };
        let wanted = [("Access-Control-Request-Method", "POST")];
        let want = format!(
            "204 Vary: Origin; Access-Control-Allow-Origin: https://a; Access-Control-Allow-Methods: GET, HEAD, POST; \
             Access-Control-Allow-Headers: {ALLOWED_FIELDS}; Access-Control-Max-Age: 600"
        );
        assert_eq!(ask("https://a", Method::Other, &wanted), Some(want));
        assert_eq!(ask("https://b", Method::Other, &wanted), None);
        assert_eq!(ask("https://a", Method::Post, &wanted), None);
        assert_eq!(ask("https://a", Method::Other, &[]), None);
    }

    #[test]
    fn a_page_may_send_the_fields_that_open_restricted_categories() {
        let mut restrictions = ApiRestrictions::default();
        for text in ["inference,health:my-key=v", "statistics:a-key=v", "trace:my-key=w", "logging:no token=v"] {
            restrictions.restrict(PolicyProtocol::Http, text).unwrap();
        }
        assert_eq!(allowed_fields(&restrictions), format!("{ALLOWED_FIELDS}, a-key, my-key"));
        assert_eq!(allowed_fields(&ApiRestrictions::default()), ALLOWED_FIELDS);
    }
}
