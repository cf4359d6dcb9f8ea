//! Splits the output of a process into lines. Pure.

use crate::limits::PYTHON_LINE_SIZE_MAX;

/// The start of a line whose end has not come.
#[derive(Debug, Default)]
pub(super) struct LineCutter {
    partial: Vec<u8>,
}

impl LineCutter {
    /// Hands on each line that `bytes` complete. A longer one than [`PYTHON_LINE_SIZE_MAX`] is
    /// handed on in pieces, an empty one not at all. Bytes that are not UTF-8 are replaced.
    pub(super) fn handle_bytes(&mut self, bytes: &[u8], mut line: impl FnMut(&str)) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = PYTHON_LINE_SIZE_MAX - self.partial.len();
            let window = rest.get(..room).unwrap_or(rest);
            let end = window.iter().position(|byte| *byte == b'\n');
            let (taken, after) = rest.split_at(end.unwrap_or(window.len()));
            self.partial.extend_from_slice(taken);
            rest = if end.is_some() { after.get(1..).unwrap_or_default() } else { after };
            if end.is_some() {
                self.handle_end(&mut line);
            } else if self.partial.len() == PYTHON_LINE_SIZE_MAX {
                let kept = self.partial.split_off(whole_characters(&self.partial));
                self.handle_end(&mut line);
                self.partial = kept;
            }
        }
    }

    /// The line, or the output, has ended.
    pub(super) fn handle_end(&mut self, mut line: impl FnMut(&str)) {
        let partial = std::mem::take(&mut self.partial);
        let text = partial.strip_suffix(b"\r").unwrap_or(&partial);
        if !text.is_empty() {
            line(&String::from_utf8_lossy(text));
        }
    }
}

/// The place to cut so that no character of UTF-8 is cut in two: before a last character that is
/// not complete.
fn whole_characters(bytes: &[u8]) -> usize {
    let start =
        (bytes.len().saturating_sub(3)..bytes.len()).rev().find(|at| bytes.get(*at).is_some_and(|b| *b >= 0xC0));
    let Some(start) = start.filter(|start| *start > 0) else { return bytes.len() };
    let size = match bytes.get(start) {
        Some(0xC0..=0xDF) => 2,
        Some(0xE0..=0xEF) => 3,
        _ => 4,
    };
    if start + size > bytes.len() { start } else { bytes.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<String> {
        let (mut cutter, mut lines) = (LineCutter::default(), Vec::new());
        parts.iter().for_each(|part| cutter.handle_bytes(part, |line| lines.push(line.to_owned())));
        cutter.handle_end(|line| lines.push(line.to_owned()));
        lines
    }

    #[test]
    fn lines_are_the_same_wherever_the_reads_end() {
        let text = "one\r\n\n\ntwo \u{e4}\nthree".as_bytes();
        for at in 0..=text.len() {
            assert_eq!(lines(&[&text[..at], &text[at..]]), ["one", "two \u{e4}", "three"], "{at}");
        }
        assert_eq!(lines(&[b"a\xff\xfeb\n"]), ["a\u{fffd}\u{fffd}b"]);
        assert_eq!(lines(&[b"\n\r\n"]), Vec::<String>::new());
    }

    #[test]
    fn a_long_line_comes_in_pieces_of_whole_characters() {
        let text = "\u{e4}".repeat(PYTHON_LINE_SIZE_MAX);
        let got = lines(&[b"x", text.as_bytes(), b"\n"]);
        assert!(got.len() >= 2 && got.iter().all(|line| line.len() <= PYTHON_LINE_SIZE_MAX), "{}", got.len());
        assert_eq!(got.concat(), format!("x{text}"));
        let exact = "y".repeat(PYTHON_LINE_SIZE_MAX);
        assert_eq!(lines(&[exact.as_bytes(), b"\n"]), [exact.as_str()]);
        let broken = vec![0xC3; PYTHON_LINE_SIZE_MAX + 1];
        assert_eq!(lines(&[&broken]).concat().chars().count(), broken.len());
    }
}
