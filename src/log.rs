//! Log lines on standard error, in tritonserver's format. Control characters are escaped, so that text from a client
//! cannot forge a line or control a terminal.

use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use crate::settings::LogSettings;

/// Until [`start`], all levels but the verbose one are logged.
static SETTINGS: OnceLock<LogSettings> = OnceLock::new();

/// Sets what is logged. Only the first call counts.
pub fn start(settings: LogSettings) {
    SETTINGS.get_or_init(|| settings);
}

/// Logs normal operation.
pub fn info(text: &str) {
    if SETTINGS.get().is_none_or(|settings| settings.info) {
        write('I', text);
    }
}

/// Logs what somebody should look into, though the server goes on.
pub fn warning(text: &str) {
    if SETTINGS.get().is_none_or(|settings| settings.warning) {
        write('W', text);
    }
}

/// Logs a failure.
pub fn error(text: &str) {
    if SETTINGS.get().is_none_or(|settings| settings.error) {
        write('E', text);
    }
}

/// Logs details, with `--log-verbose`.
pub fn verbose(text: &str) {
    if SETTINGS.get().is_some_and(|settings| settings.verbose > 0) {
        write('I', text);
    }
}

#[expect(clippy::disallowed_methods, reason = "a log line has the time of day; nothing is decided by it")]
fn write(level: char, text: &str) {
    let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = line(level, now, std::process::id(), text);
    // Errors are ignored: a full disk or a closed pipe must not end the server.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Formats a line: `I1121 10:03:25.829575 3355 deuteron] text`.
fn line(level: char, since_epoch: Duration, process: u32, text: &str) -> String {
    let seconds = since_epoch.as_secs();
    let (month, day) = month_and_day(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since_epoch.subsec_micros();
    let text: String = text.chars().flat_map(escape).collect();
    format!("{level}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} {process} deuteron] {text}\n")
}

fn escape(character: char) -> Box<dyn Iterator<Item = char>> {
    if character.is_control() { Box::new(character.escape_default()) } else { Box::new(std::iter::once(character)) }
}

/// The month and day of a number of days since 1970-01-01 (proleptic Gregorian).
fn month_and_day(days: u64) -> (u64, u64) {
    // Years start in March here, so that the leap day is the last day of its year.
    let day_of_era = (days + 719_468) % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    (if month < 10 { month + 3 } else { month - 9 }, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_form_that_scripts_look_for() {
        let at = Duration::from_secs(1_716_235_405) + Duration::from_micros(829_575);
        let got = line('I', at, 3355, "Started HTTPService at 0.0.0.0:8000");
        assert_eq!(got, "I0520 20:03:25.829575 3355 deuteron] Started HTTPService at 0.0.0.0:8000\n");
    }

    #[test]
    fn nobody_writes_a_second_line_into_the_log() {
        assert!(line('E', Duration::ZERO, 1, "a\nI0101 b\u{1b}[31m").ends_with("a\\nI0101 b\\u{1b}[31m\n"));
    }

    #[test]
    fn days_have_their_month_leap_years_too() {
        for (days, want) in
            [(0, (1, 1)), (58, (2, 28)), (59, (3, 1)), (789, (2, 29)), (11_016, (2, 29)), (20_778, (11, 21))]
        {
            assert_eq!(month_and_day(days), want, "{days}");
        }
    }
}
