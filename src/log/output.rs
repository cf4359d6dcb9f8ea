//! The target of lines, which are collected and written together. Lines that cannot be written are
//! lost and counted, which is reported when writing works again. Owned by the log's thread.

use std::io::{ErrorKind, Write};

use crate::limits::LOG_WRITE_SIZE;
use crate::log::terminal::{CLEAR_LINE, LogTerminal, coloured};

/// A place for lines.
#[derive(Debug)]
pub struct LogOutput<W> {
    target: W,
    lines: String,
    /// The last write ended within a line.
    is_torn: bool,
    /// Lines that were lost and not reported yet.
    untold: u64,
    /// The terminal that the target is, if a person reads it.
    terminal: Option<LogTerminal>,
    /// The line below all others, on a terminal.
    status: Option<Box<str>>,
    /// It has changed since it was written.
    is_status_due: bool,
    /// It is there now, or an older one.
    has_status: bool,
}

impl<W: Write> LogOutput<W> {
    /// Writes to `target`.
    pub const fn new(target: W) -> Self {
        Self::on_terminal(target, None)
    }

    /// The same for a target that may be a terminal.
    pub const fn on_terminal(target: W, terminal: Option<LogTerminal>) -> Self {
        Self {
            target,
            lines: String::new(),
            is_torn: false,
            untold: 0,
            terminal,
            status: None,
            is_status_due: false,
            has_status: false,
        }
    }

    /// Sets the line below all others from now on; without effect but on a terminal.
    pub fn set_status(&mut self, status: Option<Box<str>>) {
        self.is_status_due = self.terminal.is_some();
        self.status = status.filter(|_| self.is_status_due);
    }

    /// Replaces the target, after the collected lines are written to the old one.
    pub fn set_target(&mut self, target: W) {
        self.target = target;
        self.is_torn = false;
    }

    /// Returns the lines collected so far; another may be appended.
    pub const fn lines(&mut self) -> &mut String {
        &mut self.lines
    }

    /// Returns true if enough is collected to be written.
    pub const fn is_full(&self) -> bool {
        self.lines.len() >= LOG_WRITE_SIZE
    }

    /// `count` lines were lost elsewhere.
    pub const fn handle_lost(&mut self, count: u64) {
        self.untold += count;
    }

    /// Writes the collected lines; `tell` appends the line with the number of lines lost before.
    /// Returns the number of lines that could not be written.
    pub fn flush(&mut self, tell: impl FnOnce(u64, &mut String)) -> u64 {
        if self.lines.is_empty() && !std::mem::take(&mut self.is_status_due) {
            return 0;
        }
        let mut bytes = String::new();
        if std::mem::take(&mut self.has_status) {
            bytes.push_str(CLEAR_LINE);
        }
        if self.is_torn {
            bytes.push('\n');
        }
        if self.untold > 0 {
            tell(self.untold, &mut bytes);
        }
        let told_at = bytes.len();
        if self.terminal.is_some_and(|terminal| terminal.has_colours) {
            bytes.push_str(&coloured(&self.lines));
        } else {
            bytes.push_str(&self.lines);
        }
        self.lines.clear();
        let lines_size = bytes.len();
        bytes.push_str(self.status.as_deref().unwrap_or_default());
        let written = write_some(&mut self.target, bytes.as_bytes());
        let lines_in = |from: usize| bytes.as_bytes().get(from..).unwrap_or_default().iter().filter(|b| **b == b'\n');
        let lost = lines_in(written.max(told_at)).count() as u64;
        self.untold = if written < told_at { self.untold + lost } else { lost };
        if let Some(last) = written.min(lines_size).checked_sub(1).and_then(|last| bytes.as_bytes().get(last)) {
            self.is_torn = *last != b'\n' && lines_size > told_at;
        }
        self.has_status = written > lines_size;
        lost
    }
}

/// Writes as much as possible; an error ends it, since a retry would fail again.
fn write_some(target: &mut impl Write, bytes: &[u8]) -> usize {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match target.write(rest) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Takes `space` bytes, and has no room for more.
    #[derive(Default)]
    struct Disk {
        held: Vec<u8>,
        space: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.space);
            if count == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.space -= count;
            self.held.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn push(output: &mut LogOutput<Disk>, lines: &str) -> u64 {
        output.lines().push_str(lines);
        output.flush(|count, out| *out += &format!("({count} lost)\n"))
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_told_when_something_can() {
        let mut output = LogOutput::new(Disk { space: 100, ..Disk::default() });
        assert_eq!(push(&mut output, "a\nb\n"), 0);
        output.target.space = 0;
        assert_eq!((push(&mut output, "c\nd\n"), push(&mut output, "e\n")), (2, 1));
        // Its own line about the loss is torn: it is reported again.
        output.target.space = 3;
        assert_eq!(push(&mut output, "f\n"), 1);
        output.target.space = 100;
        output.handle_lost(10);
        assert_eq!(push(&mut output, "g\n"), 0);
        // The second of these is cut.
        output.target.space = 3;
        assert_eq!(push(&mut output, "h\nij\n"), 1);
        output.target.space = 100;
        assert_eq!(push(&mut output, ""), 0, "nothing to say, nothing to write");
        assert_eq!(push(&mut output, "k\n"), 0);
        let held = String::from_utf8(output.target.held).unwrap();
        assert_eq!(held, "a\nb\n(3 \n(14 lost)\ng\nh\ni\n(1 lost)\nk\n");
    }

    #[test]
    fn another_target_begins_with_a_whole_line() {
        let mut output = LogOutput::new(Disk { space: 1, ..Disk::default() });
        assert_eq!(push(&mut output, "ab\n"), 1);
        output.set_target(Disk { space: 100, ..Disk::default() });
        assert_eq!(push(&mut output, "c\n"), 0);
        assert_eq!(output.target.held, b"(1 lost)\nc\n");
    }
}
