//! The static table (RFC 7541 Appendix A).

use super::field::{FieldName, HeaderField};

/// Number of entries; the indices of the dynamic table follow them (§2.3.3).
pub(super) const COUNT: usize = ENTRIES.len();

/// The entry with an index, counted from 1.
pub(super) fn get(index: usize) -> Option<HeaderField<'static>> {
    let (name, value) = ENTRIES.get(index.checked_sub(1)?)?;
    let known = NAMES.get(index - 1)?;
    // All of them are valid, which a test checks.
    Some(HeaderField { name: *known, name_text: name.as_bytes(), value: value.as_bytes(), is_valid: true })
}

/// Returns the index of an entry with this name, and true if its value is the same too.
pub(super) fn find(name: &[u8], value: &[u8]) -> Option<(usize, bool)> {
    let first = ENTRIES.iter().position(|(have, _)| have.as_bytes() == name)?;
    let same = ENTRIES.iter().skip(first).take_while(|(have, _)| have.as_bytes() == name);
    let whole = same.into_iter().position(|(_, have)| have.as_bytes() == value);
    Some(whole.map_or((first + 1, false), |offset| (first + offset + 1, true)))
}

/// The entries' names as [`FieldName`]s.
static NAMES: [FieldName; COUNT] = names();

#[expect(clippy::indexing_slicing, reason = "evaluated when the crate is compiled")]
const fn names() -> [FieldName; COUNT] {
    let mut names = [FieldName::Other; COUNT];
    let known = [
        (0, FieldName::Authority),
        (1, FieldName::Method),
        (2, FieldName::Method),
        (3, FieldName::Path),
        (4, FieldName::Path),
        (5, FieldName::Scheme),
        (6, FieldName::Scheme),
        (27, FieldName::ContentLength),
        (30, FieldName::ContentType),
        (34, FieldName::Expect),
        (37, FieldName::Host),
        (56, FieldName::TransferEncoding),
    ];
    let mut index = 0;
    while index < known.len() {
        names[known[index].0] = known[index].1;
        index += 1;
    }
    // `:status` is a response's (RFC 9113 §8.3.2).
    let mut status = 7;
    while status < 14 {
        names[status] = FieldName::UnknownPseudo;
        status += 1;
    }
    names
}

#[rustfmt::skip]
const ENTRIES: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_entries_are_found_by_their_text_and_known_by_their_names() {
        for index in 1..=COUNT {
            let entry = get(index).unwrap();
            assert_eq!(find(entry.name_text, entry.value), Some((index, true)));
            assert_eq!(HeaderField::new(entry.name_text, entry.value), entry, "{index}");
        }
        assert_eq!((get(0), get(COUNT + 1)), (None, None));
        assert_eq!(find(b":status", b"201"), Some((8, false)));
        assert_eq!(find(b"content-type", b"application/grpc"), Some((31, false)));
        assert_eq!(find(b"grpc-status", b"0"), None);
    }
}
