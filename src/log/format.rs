//! The text of a line: tritonserver's two forms, and JSON. Text of clients is escaped in all of them, so that it can
//! neither forge a line nor control a terminal. Pure.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use crate::settings::LogFormat;

/// The importance of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// A failure.
    Error,
    /// Normal operation.
    Info,
    /// Details.
    Verbose,
    /// A matter that should be looked into.
    Warning,
}

impl Severity {
    /// Returns tritonserver's letter; its details have that of normal operation.
    const fn letter(self) -> char {
        match self {
            Self::Error => 'E',
            Self::Info | Self::Verbose => 'I',
            Self::Warning => 'W',
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Info => "info",
            Self::Verbose => "verbose",
            Self::Warning => "warning",
        }
    }
}

/// The beginning of every line.
#[derive(Clone, Copy, Debug)]
pub struct LineHead<'a> {
    /// Its importance.
    pub severity: Severity,
    /// Its time, since the Unix epoch.
    pub at: Duration,
    /// The process.
    pub process: u32,
    /// The file and line of its source; `access` for the access log.
    pub source: (&'a str, u32),
}

/// One request, as the access log shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLine {
    /// `http` or `grpc`.
    pub protocol: &'static str,
    /// Method and path, or the path of the RPC.
    pub request: String,
    /// The model; empty if the request names none.
    pub model: String,
    /// Its version, if it is known.
    pub version: Option<u64>,
    /// The request's id; empty without one.
    pub id: String,
    /// The name of the client's API key; empty without one.
    pub client: String,
    /// The status of HTTP or of gRPC; 499 or 1 for a client that left before its answer.
    pub status: u16,
    /// The time from its last byte to its answer.
    pub duration: Duration,
    /// Bytes of its body or message.
    pub bytes_in: usize,
    /// Bytes of the body or messages of the answer.
    pub bytes_out: usize,
    /// The client.
    pub peer: Option<SocketAddr>,
}

/// Appends a line with a text.
pub fn push_text(format: LogFormat, head: LineHead<'_>, text: &str, out: &mut String) {
    push_head(format, head, out);
    if format == LogFormat::Json {
        out.push_str(",\"message\":");
    }
    push_quoted(text, out);
    push_end(format, out);
}

/// Appends a line of the access log. In JSON each value is a field of its own.
pub fn push_access(format: LogFormat, head: LineHead<'_>, line: &AccessLine, out: &mut String) {
    push_head(format, head, out);
    let is_json = format == LogFormat::Json;
    out.push_str(if is_json { ",\"message\":\"request\"" } else { "request" });
    let mut field = |name: &str, is_quoted: bool, value: &dyn std::fmt::Display| {
        let _ = if is_json { write!(out, ",\"{name}\":") } else { write!(out, " {name}=") };
        if is_quoted {
            push_quoted(&value.to_string(), out);
        } else {
            let _ = write!(out, "{value}");
        }
    };
    field("protocol", is_json, &line.protocol);
    field("request", true, &line.request);
    if !line.model.is_empty() {
        field("model", true, &line.model);
    }
    if let Some(version) = line.version {
        field("version", false, &version);
    }
    if !line.id.is_empty() {
        field("id", true, &line.id);
    }
    if !line.client.is_empty() {
        field("key", true, &line.client);
    }
    field("status", false, &line.status);
    field("duration_us", false, &line.duration.as_micros());
    field("bytes_in", false, &line.bytes_in);
    field("bytes_out", false, &line.bytes_out);
    if let Some(peer) = line.peer {
        field("peer", is_json, &peer);
    }
    push_end(format, out);
}

fn push_head(format: LogFormat, head: LineHead<'_>, out: &mut String) {
    let LineHead { severity, at, process, source: (file, line) } = head;
    let seconds = at.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (letter, micros) = (severity.letter(), at.subsec_micros());
    let _ = match format {
        LogFormat::Default => {
            write!(out, "{letter}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} {process} {file}")
        }
        LogFormat::Iso8601 => {
            write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z {letter} {process} {file}")
        }
        LogFormat::Json => {
            let name = severity.name();
            let time = format_args!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z");
            write!(out, "{{\"time\":\"{time}\",\"level\":\"{name}\",\"process\":{process},\"source\":\"{file}")
        }
    };
    if line > 0 {
        let _ = write!(out, ":{line}");
    }
    out.push_str(if format == LogFormat::Json { "\"" } else { "] " });
}

fn push_end(format: LogFormat, out: &mut String) {
    out.push_str(if format == LogFormat::Json { "}\n" } else { "\n" });
}

/// Appends a text as a JSON string, which tritonserver's forms have too. Escapes more than JSON
/// requires: all control characters, those that turn the direction of text, and the line breaks of
/// Unicode.
fn push_quoted(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ if character.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// Formats a duration for a person: `547 ms`, `12.3 s`, and `12 us` for less than a millisecond.
pub fn duration_text(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        ..0.001 => format!("{:.0} us", seconds * 1e6),
        ..10.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

/// Formats a size for a person, in units of a thousand: `25.3 GB`.
pub fn size_text(bytes: u64) -> String {
    let size = bytes as f64;
    match size {
        ..1e3 => format!("{bytes} B"),
        ..1e6 => format!("{:.1} kB", size / 1e3),
        ..1e9 => format!("{:.1} MB", size / 1e6),
        _ => format!("{:.1} GB", size / 1e9),
    }
}

/// Formats a number with a comma before every three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the year, month and day of a number of days since 1970-01-01 (proleptic Gregorian).
const fn date(days: u64) -> (u64, u64, u64) {
    // Years start in March here, so that the leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [LogFormat; 3] = [LogFormat::Default, LogFormat::Iso8601, LogFormat::Json];

    fn head(severity: Severity) -> LineHead<'static> {
        let at = Duration::from_secs(1_716_235_405) + Duration::from_micros(829_575);
        LineHead { severity, at, process: 3355, source: ("server/mod.rs", 310) }
    }

    fn text(format: LogFormat, severity: Severity, text: &str) -> String {
        let mut out = String::new();
        push_text(format, head(severity), text, &mut out);
        out
    }

    #[test]
    fn durations_and_sizes_are_for_people() {
        let durations = [12, 547_123, 9_999_000, 12_345_678].map(|micros| duration_text(Duration::from_micros(micros)));
        assert_eq!(durations, ["12 us", "547 ms", "9999 ms", "12.3 s"]);
        let sizes = [999, 1_500, 2_000_000, 25_298_534_400].map(size_text);
        assert_eq!(sizes, ["999 B", "1.5 kB", "2.0 MB", "25.3 GB"]);
    }

    #[test]
    fn a_line_has_the_form_that_scripts_look_for() {
        let started = "Started HTTPService at 0.0.0.0:8000";
        let check = |format, severity, want: &str| assert_eq!(text(format, severity, started), want);
        check(
            LogFormat::Default,
            Severity::Info,
            "I0520 20:03:25.829575 3355 server/mod.rs:310] \"Started HTTPService at 0.0.0.0:8000\"\n",
        );
        check(
            LogFormat::Iso8601,
            Severity::Warning,
            "2024-05-20T20:03:25Z W 3355 server/mod.rs:310] \"Started HTTPService at 0.0.0.0:8000\"\n",
        );
        check(
            LogFormat::Json,
            Severity::Verbose,
            "{\"time\":\"2024-05-20T20:03:25.829575Z\",\"level\":\"verbose\",\"process\":3355,\
             \"source\":\"server/mod.rs:310\",\"message\":\"Started HTTPService at 0.0.0.0:8000\"}\n",
        );
        assert!(text(LogFormat::Default, Severity::Error, "").starts_with('E'));
    }

    #[test]
    fn a_request_shows_what_is_known_of_it() {
        let head = LineHead { source: ("access", 0), ..head(Severity::Info) };
        let full = AccessLine {
            protocol: "http",
            request: "POST /v2/models/m/infer".to_owned(),
            model: "m".to_owned(),
            version: Some(3),
            id: "a b".to_owned(),
            client: "team-a".to_owned(),
            status: 200,
            duration: Duration::from_nanos(1_234_567),
            bytes_in: 10,
            bytes_out: 20,
            peer: Some(([127, 0, 0, 1], 5).into()),
        };
        let bare = AccessLine { protocol: "grpc", request: "/a/b".to_owned(), status: 1, ..AccessLine::default() };
        let mut out = String::new();
        for line in [&full, &bare] {
            push_access(LogFormat::Default, head, line, &mut out);
            push_access(LogFormat::Json, head, line, &mut out);
        }
        let want = "I0520 20:03:25.829575 3355 access] request protocol=http request=\"POST /v2/models/m/infer\" model=\"m\" version=3 id=\"a b\" key=\"team-a\" status=200 duration_us=1234 bytes_in=10 bytes_out=20 peer=127.0.0.1:5\n\
            {\"time\":\"2024-05-20T20:03:25.829575Z\",\"level\":\"info\",\"process\":3355,\"source\":\"access\",\"message\":\"request\",\"protocol\":\"http\",\"request\":\"POST /v2/models/m/infer\",\"model\":\"m\",\"version\":3,\"id\":\"a b\",\"key\":\"team-a\",\"status\":200,\"duration_us\":1234,\"bytes_in\":10,\"bytes_out\":20,\"peer\":\"127.0.0.1:5\"}\n\
            I0520 20:03:25.829575 3355 access] request protocol=grpc request=\"/a/b\" status=1 duration_us=0 bytes_in=0 bytes_out=0\n\
            {\"time\":\"2024-05-20T20:03:25.829575Z\",\"level\":\"info\",\"process\":3355,\"source\":\"access\",\"message\":\"request\",\"protocol\":\"grpc\",\"request\":\"/a/b\",\"status\":1,\"duration_us\":0,\"bytes_in\":0,\"bytes_out\":0}\n";
        assert_eq!(out, want);
    }

    #[test]
    fn nobody_writes_a_second_line_or_controls_a_terminal() {
        for (given, want) in [
            ("a\nI0101 b\u{1b}[31m", "a\\nI0101 b\\u001b[31m"),
            ("\"\\\r\t\0\u{7f}", "\\\"\\\\\\r\\t\\u0000\\u007f"),
            ("\u{9b}0m\u{85}\u{2028}\u{202e}\u{2066}", "\\u009b0m\\u0085\\u2028\\u202e\\u2066"),
            ("schön 日本 🦀", "schön 日本 🦀"),
        ] {
            for format in FORMATS {
                let line = text(format, Severity::Error, given);
                assert!(line.contains(&format!("\"{want}\"")), "{line}");
                assert_eq!(line.chars().filter(|c| c.is_control()).collect::<String>(), "\n");
            }
            let read: serde_json::Value = serde_json::from_str(&text(LogFormat::Json, Severity::Info, given)).unwrap();
            assert_eq!(read["message"], given);
        }
    }

    #[test]
    fn days_have_their_date_leap_years_too() {
        for (days, want) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (364, (1970, 12, 31)),
            (789, (1972, 2, 29)),
            (11_016, (2000, 2, 29)),
            (20_778, (2026, 11, 21)),
        ] {
            assert_eq!(date(days), want, "{days}");
        }
    }

    #[test]
    fn large_numbers_are_read_by_threes() {
        for (number, want) in [(0, "0"), (999, "999"), (1_234, "1,234"), (1_000_000, "1,000,000")] {
            assert_eq!(grouped(number), want);
        }
    }
}
