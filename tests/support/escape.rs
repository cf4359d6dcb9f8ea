//! Bytes as readable text, different for different byte strings: printable UTF-8 stays, the rest is `\xNN`, and a
//! backslash is doubled.

use std::fmt::Write as _;

/// The readable text of `bytes`, on one line.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|letter| escape_char(letter, &mut text));
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

fn escape_char(letter: char, text: &mut String) {
    match letter {
        '\\' => text.push_str("\\\\"),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        letter if letter.is_control() || (letter.is_whitespace() && letter != ' ') => {
            let mut buffer = [0; 4];
            for byte in letter.encode_utf8(&mut buffer).bytes() {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
        letter => text.push(letter),
    }
}

#[test]
fn escaped_text_is_one_line_and_tells_bytes_apart() {
    let check = |bytes: &[u8], want| assert_eq!(escape(bytes), want);
    check(b"{\"a\":1}", "{\"a\":1}");
    check("h\u{e9}".as_bytes(), "h\u{e9}");
    check(b"\xff\x00\n\\x00", "\\xff\\x00\\n\\\\x00");
    check("\u{2028}".as_bytes(), "\\xe2\\x80\\xa8");
}
