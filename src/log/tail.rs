//! The last lines of the log, for the console.

use std::collections::VecDeque;

use crate::limits::{LOG_TAIL_LINE_SIZE_MAX, LOG_TAIL_LINES};

/// The last [`LOG_TAIL_LINES`] lines, each with its number: the first of the process is 0.
#[derive(Debug, Default)]
pub struct LogTail {
    lines: VecDeque<Box<str>>,
    /// Lines that came in all.
    count: u64,
}

impl LogTail {
    /// Creates an empty tail.
    pub const fn new() -> Self {
        Self { lines: VecDeque::new(), count: 0 }
    }

    /// Takes in lines that end as lines do. Long ones are cut, since each reader is sent all of
    /// them.
    pub fn extend(&mut self, text: &str) {
        // Of a flood only the last lines are copied.
        let count = text.lines().count();
        self.count += count as u64;
        for line in text.lines().skip(count.saturating_sub(LOG_TAIL_LINES)) {
            if self.lines.len() >= LOG_TAIL_LINES {
                self.lines.pop_front();
            }
            let end = line.floor_char_boundary(LOG_TAIL_LINE_SIZE_MAX);
            let (kept, cut) = line.split_at(end);
            let line = if cut.is_empty() { kept.into() } else { format!("{kept}…").into() };
            self.lines.push_back(line);
        }
    }

    /// Returns the lines from a number on, as far as they are kept, and the number of the next
    /// line.
    pub fn since(&self, number: u64) -> (Vec<Box<str>>, u64) {
        let first = self.count - self.lines.len() as u64;
        let skipped = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
        (self.lines.iter().skip(skipped).cloned().collect(), self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(tail: &LogTail, number: u64) -> (Vec<String>, u64) {
        let (lines, next) = tail.since(number);
        (lines.iter().map(ToString::to_string).collect(), next)
    }

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let mut tail = LogTail::new();
        assert_eq!(texts(&tail, 0), (vec![], 0));
        tail.extend("a\nb\n");
        assert_eq!(texts(&tail, 0), (vec!["a".to_owned(), "b".to_owned()], 2));
        tail.extend("c\n");
        assert_eq!(texts(&tail, 2), (vec!["c".to_owned()], 3));
        assert_eq!(texts(&tail, 3), (vec![], 3));
        // After a restart of the server a reader asks for lines that do not exist yet.
        assert_eq!(texts(&tail, u64::MAX), (vec![], 3));
    }

    #[test]
    fn lines_and_their_lengths_are_bounded() {
        let mut tail = LogTail::new();
        let many: String = (0..LOG_TAIL_LINES + 10).map(|index| format!("{index}\n")).collect();
        tail.extend(&many);
        tail.extend(&"é".repeat(LOG_TAIL_LINE_SIZE_MAX));
        let (lines, next) = texts(&tail, 0);
        assert_eq!((lines.len(), next), (LOG_TAIL_LINES, LOG_TAIL_LINES as u64 + 11));
        assert_eq!(lines[0], "11");
        assert_eq!(lines.last().unwrap().len(), LOG_TAIL_LINE_SIZE_MAX + "…".len());
    }
}
