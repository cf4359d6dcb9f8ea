//! W3C Trace Context: the position of a caller in a distributed trace, as the header fields `traceparent` and
//! `tracestate` have it (§3.2, §3.3). The same over gRPC, as metadata.

use std::fmt::Write;

/// The contents of `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace; never 0.
    pub trace_id: u128,
    /// The caller's span; never 0.
    pub span_id: u64,
}

/// The contents of both fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The caller's span.
    pub parent: TraceParent,
    /// `tracestate`, unread; empty without one.
    pub state: String,
}

impl TraceParent {
    /// Decodes the field. `None` for an invalid value, which a receiver ignores (§3.2.2.2).
    ///
    /// ```
    /// use wire::trace_context::TraceParent;
    ///
    /// let field = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// let parent = TraceParent::decode(field).unwrap();
    /// assert_eq!(parent.span_id, 0xb7ad6b7169203331);
    /// assert_eq!(parent.encode().as_bytes(), field);
    /// ```
    pub fn decode(field: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(field).ok()?;
        let mut parts = text.split('-');
        let version = hex(parts.next()?, 2)?;
        let trace_id = hex(parts.next()?, 32)?;
        let span_id = u64::try_from(hex(parts.next()?, 16)?).ok()?;
        hex(parts.next()?, 2)?;
        // A later version may have further parts (§3.2.4); this one may not.
        let is_whole = parts.next().is_none() || version > 0;
        (version < 0xff && trace_id != 0 && span_id != 0 && is_whole).then_some(Self { trace_id, span_id })
    }

    /// Encodes the field of a span that is recorded.
    pub fn encode(self) -> String {
        let mut text = String::with_capacity(55);
        // A String takes everything.
        let _ = write!(text, "00-{:032x}-{:016x}-01", self.trace_id, self.span_id);
        text
    }
}

impl TraceContext {
    /// From both fields; `None` without a valid `traceparent`.
    #[inline]
    pub fn decode(parent: Option<&[u8]>, state: Option<&[u8]>) -> Option<Self> {
        let parent = TraceParent::decode(parent?)?;
        let state = state.and_then(|state| std::str::from_utf8(state).ok()).unwrap_or_default().to_owned();
        Some(Self { parent, state })
    }
}

/// The value of `count` digits, which are lower case (§3.2.1).
fn hex(text: &str, count: usize) -> Option<u128> {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_right = text.len() == count && text.bytes().all(is_digit);
    u128::from_str_radix(text, 16).ok().filter(|_| is_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_traceparent_is_none() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let check = |field: String, is_right| {
            assert_eq!(TraceParent::decode(field.as_bytes()).is_some(), is_right, "{field}");
        };
        check(format!("00-{trace}-{span}-00"), true);
        check(format!("cc-{trace}-{span}-01-more"), true);
        check(format!("00-{trace}-{span}-01-more"), false);
        check(format!("ff-{trace}-{span}-01"), false);
        check(format!("00-{}-{span}-01", "0".repeat(32)), false);
        check(format!("00-{trace}-{}-01", "0".repeat(16)), false);
        check(format!("00-{}-{span}-01", trace.to_uppercase()), false);
        check(format!("00-{trace}-{span}"), false);
        check(format!("00-{trace}-{span}-1"), false);
        check(format!("00-+{}-{span}-01", &trace[1..]), false);
        check(String::new(), false);
        let context = TraceContext::decode(Some(format!("00-{trace}-{span}-01").as_bytes()), Some(b"a=b"));
        assert_eq!(context.map(|context| context.state).as_deref(), Some("a=b"));
        assert_eq!(TraceContext::decode(None, Some(b"a=b")), None);
    }
}
