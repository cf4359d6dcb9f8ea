//! The log on a terminal: errors and warnings in colour, and below the lines one that changes, such
//! as the models that still load. Pure, except for [`LogTerminal::find`].

use std::ffi::OsString;
use std::io::IsTerminal;

/// Goes back to the beginning of the line that changes, and clears it.
pub const CLEAR_LINE: &str = "\r\x1b[K";
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const PLAIN: &str = "\x1b[0m";

/// The terminal of standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTerminal {
    /// True if it has colours.
    pub has_colours: bool,
    /// The number of characters in a line.
    pub columns: usize,
}

impl LogTerminal {
    /// Returns the terminal of this process; `None` if standard error goes elsewhere.
    pub fn find(variables: &dyn Fn(&str) -> Option<OsString>) -> Option<Self> {
        // Its size may change later; the lines at the start of a server are short.
        let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        Self::new(std::io::stderr().is_terminal(), columns, variables)
    }

    /// `None` for a terminal that cannot move its cursor (`TERM=dumb`). No colours if `NO_COLOR`
    /// has a value (no-color.org).
    fn new(is_terminal: bool, columns: usize, variables: &dyn Fn(&str) -> Option<OsString>) -> Option<Self> {
        let is_dumb = variables("TERM").is_none_or(|term| term == "dumb");
        let has_colours = variables("NO_COLOR").is_none_or(|value| value.is_empty());
        let columns = if columns == 0 { COLUMNS } else { columns };
        (is_terminal && !is_dumb).then_some(Self { has_colours, columns })
    }

    /// Returns a word for a person, such as `error:`, as it is to be printed.
    pub fn emphasized(terminal: Option<Self>, word: &str) -> String {
        if terminal.is_some_and(|terminal| terminal.has_colours) {
            format!("{RED}{word}{PLAIN}")
        } else {
            word.to_owned()
        }
    }
}

/// The characters of a line if the terminal does not report them.
const COLUMNS: usize = 80;

/// Returns lines of the log with colours around errors and warnings, and with the line breaks of their texts, such as of
/// a traceback of Python. Lines of JSON stay as they are.
pub fn coloured(lines: &str) -> String {
    let mut text = String::with_capacity(lines.len());
    for line in lines.split_inclusive('\n') {
        let colour = colour(line);
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        let lines = if line.starts_with('{') { line.to_owned() } else { unfolded(line) };
        for part in [colour, &lines, if colour.is_empty() { "" } else { PLAIN }, end] {
            text.push_str(part);
        }
    }
    text
}

/// Returns a line with the line breaks that its text has, which are quoted in it. Lines behind the first are indented, so
/// that a text cannot look like another line of the log.
fn unfolded(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        match (character, rest.as_str().chars().next()) {
            ('\\', Some('n')) => {
                rest.next();
                out.push_str("\n    ");
            }
            ('\\', Some(quoted)) => {
                rest.next();
                out.extend(['\\', quoted]);
            }
            _ => out.push(character),
        }
    }
    out
}

/// Returns the colour of a line by its letter: the first in tritonserver's default form, behind the
/// time in that of ISO 8601.
fn colour(line: &str) -> &'static str {
    let letter = match line.as_bytes() {
        [letter @ (b'E' | b'W'), b'0'..=b'9', ..] => *letter,
        [b'0'..=b'9', ..] => line.as_bytes().get(ISO_LETTER).copied().unwrap_or_default(),
        _ => 0,
    };
    match letter {
        b'E' => RED,
        b'W' => YELLOW,
        _ => "",
    }
}

/// The place of the letter in a line that begins with `2026-11-25T03:00:00Z`.
const ISO_LETTER: usize = 21;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::format::{LineHead, Severity, push_text};
    use crate::settings::LogFormat;

    #[test]
    fn colours_and_a_line_that_changes_are_for_terminals_that_have_them() {
        let check = |is_terminal, term: Option<&str>, no_color: Option<&str>, want: Option<bool>| {
            let variables = |name: &str| match name {
                "TERM" => term.map(OsString::from),
                "NO_COLOR" => no_color.map(OsString::from),
                _ => None,
            };
            let terminal = LogTerminal::new(is_terminal, 0, &variables);
            assert_eq!(terminal.map(|terminal| terminal.has_colours), want, "{is_terminal} {term:?} {no_color:?}");
        };
        check(true, Some("xterm"), None, Some(true));
        check(true, Some("xterm"), Some(""), Some(true));
        check(true, Some("xterm"), Some("0"), Some(false));
        check(true, Some("dumb"), None, None);
        check(true, None, None, None);
        check(false, Some("xterm"), None, None);
    }

    #[test]
    fn errors_and_warnings_have_colours_in_the_forms_for_people() {
        let line = |format, severity| {
            let mut line = String::new();
            let head = LineHead { severity, at: std::time::Duration::ZERO, process: 1, source: ("a.rs", 2) };
            push_text(format, head, "2 W", &mut line);
            coloured(&line).starts_with(RED).then_some('r').or(coloured(&line).starts_with(YELLOW).then_some('y'))
        };
        for format in [LogFormat::Default, LogFormat::Iso8601] {
            let got = [Severity::Error, Severity::Warning, Severity::Info].map(|severity| line(format, severity));
            assert_eq!(got, [Some('r'), Some('y'), None], "{format:?}");
        }
        assert_eq!(line(LogFormat::Json, Severity::Error), None);
        let traceback = "E1 \"Traceback:\\n  File \\\"a.py\\\"\\nValueError: C:\\\\new\"\n";
        let want = "\x1b[31mE1 \"Traceback:\n      File \\\"a.py\\\"\n    ValueError: C:\\\\new\"\x1b[0m\n";
        assert_eq!(coloured(traceback), want);
        assert_eq!(coloured("{\"message\":\"a\\nb\"}\n"), "{\"message\":\"a\\nb\"}\n");
        assert_eq!(coloured("E1 x\nI1 y\n"), "\x1b[31mE1 x\x1b[0m\nI1 y\n");
    }
}
