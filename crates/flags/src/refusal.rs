//! The error for a command line that clap refuses: one line with the argument, the expected and the
//! actual value, and the names that may have been meant.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Names of other programs' flags, with the flags here of the same meaning.
const MEANINGS: &[(&[&str], &[&str])] = &[
    (&["port", "ports"], &["http-port", "grpc-port"]),
    (&["addr", "address", "bind", "host", "ip", "listen"], &["http-address", "grpc-address", "url"]),
    (&["endpoint", "server"], &["url"]),
    (&["model", "models", "model-dir", "model-path", "models-dir", "repository"], &["model-repository", "model-name"]),
    (&["debug", "log-level", "loglevel", "verbose", "verbosity"], &["log-verbose"]),
    (&["cuda", "device", "gpus", "use-gpu"], &["gpu"]),
    (&["api-key", "auth", "key", "token"], &["api-keys-file"]),
    (&["https", "ssl", "tls"], &["http-use-ssl", "grpc-use-ssl"]),
    (&["ssl-cert", "tls-cert"], &["http-server-cert", "grpc-server-cert"]),
    (&["ssl-key", "tls-key"], &["http-server-key", "grpc-server-key"]),
    (&["clients", "users"], &["concurrency-range"]),
    (&["qps", "rate", "rps"], &["request-rate-range"]),
    (&["duration", "time"], &["measurement-interval"]),
    (&["count", "requests"], &["request-count"]),
    (&["data", "file", "input"], &["input-data"]),
    (&["slo"], &["search-slo"]),
];
/// Flags that a suggestion names, at most.
const SUGGESTED_MAX: usize = 3;

/// One line for a person, without `error:`. `command` is the one that refused the arguments.
pub fn explain(error: &clap::Error, command: &clap::Command) -> String {
    let given = first(error, ContextKind::InvalidArg).unwrap_or_default();
    let value = first(error, ContextKind::InvalidValue).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let names = flag_names(command);
            let meant = abbreviated(given, &names);
            if meant.len() > 1 {
                let meant: Vec<_> = meant.iter().map(|name| format!("'--{name}'")).collect();
                let meant = either(&meant.iter().map(String::as_str).collect::<Vec<_>>());
                return format!("flag '{given}' is ambiguous: it may be {meant}");
            }
            let near = near_flags(given, &names);
            let near = if near.is_empty() {
                ";".to_owned()
            } else {
                let near: Vec<_> = near.iter().map(|name| format!("'--{name}'")).collect();
                format!(": did you mean {}?", either(&near.iter().map(String::as_str).collect::<Vec<_>>()))
            };
            let kind = if given.starts_with('-') { "unknown flag" } else { "unexpected" };
            format!("{kind} '{given}'{near} --help lists the flags")
        }
        ErrorKind::InvalidSubcommand => {
            let given = first(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            let near = near(nearest_command(error));
            format!("unknown command '{given}'{near} --help lists the commands")
        }
        ErrorKind::MissingSubcommand => {
            let commands = all(error, ContextKind::ValidSubcommand);
            format!("a command is missing: expected {}", either(&commands))
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{given}: expected a value"),
        ErrorKind::InvalidValue => {
            let name = given.split_whitespace().next().unwrap_or_default();
            format!("{name} {value}: expected {}", either(&all(error, ContextKind::ValidValue)))
        }
        ErrorKind::MissingRequiredArgument => {
            format!("{} is missing; --help tells more", all(error, ContextKind::InvalidArg).join(", "))
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        }
    }
}

/// The command most similar to a mistyped one.
pub fn nearest_command(error: &clap::Error) -> Option<&str> {
    // clap sorts them by similarity, the best last.
    all(error, ContextKind::SuggestedSubcommand).last().copied()
}

/// `a, b or c`.
pub(super) fn either(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn near(name: Option<&str>) -> String {
    name.map_or(";".to_owned(), |name| format!(": did you mean '{name}'?"))
}

/// The long names of a command's flags, without dashes.
pub(super) fn flag_names(command: &clap::Command) -> Vec<&str> {
    command.get_arguments().flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default()).collect()
}

/// The flags that an abbreviation may stand for; empty for a short form.
pub(super) fn abbreviated<'a>(given: &str, names: &[&'a str]) -> Vec<&'a str> {
    let Some(given) = given.strip_prefix("--").filter(|given| !given.is_empty()) else { return Vec::new() };
    let given = given.split_once('=').map_or(given, |(name, _)| name);
    names.iter().copied().filter(|name| name.starts_with(given)).collect()
}

/// The flags that an unknown one may have meant, at most [`SUGGESTED_MAX`]: by its meaning, by a part of their names,
/// or because it is mistyped. Empty if none is near.
pub(super) fn near_flags<'a>(given: &str, names: &[&'a str]) -> Vec<&'a str> {
    let given = given.trim_start_matches('-');
    let given = given.split_once('=').map_or(given, |(name, _)| name);
    let mistyped = names.iter().map(|name| (distance(given, name), *name));
    let mistyped = mistyped.filter(|(distance, _)| distance * MISTYPED_PART <= given.chars().count());
    if let Some((_, name)) = mistyped.min_by_key(|(distance, _)| *distance) {
        return vec![name];
    }
    let meant = MEANINGS.iter().filter(|(words, _)| words.contains(&given)).flat_map(|(_, meant)| *meant);
    let meant: Vec<_> = meant.filter_map(|meant| names.iter().copied().find(|name| name == meant)).collect();
    if !meant.is_empty() {
        return meant;
    }
    let parts: Vec<_> = given.split('-').collect();
    let has_all = |name: &&&str| parts.iter().all(|part| name.split('-').any(|own| own == *part));
    let longer: Vec<_> = names.iter().filter(has_all).copied().collect();
    if given.is_empty() || longer.len() > SUGGESTED_MAX { Vec::new() } else { longer }
}

/// The part of the letters of a name that may be mistyped: a third.
const MISTYPED_PART: usize = 3;

/// The number of letters to change, add, leave out or swap with their neighbours between two words (the distance of
/// Damerau and Levenshtein, of optimal alignments).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, against) in other.iter().enumerate() {
            let at = |line: &[usize], index: usize| line.get(index).copied().unwrap_or(usize::MAX - 1);
            let changed = at(&last, column) + usize::from(letter != against);
            let mut least = changed.min(at(&last, column + 1) + 1).min(at(&next, column) + 1);
            let is_swapped =
                row > 0 && column > 0 && one.get(row - 1) == Some(against) && other.get(column - 1) == Some(letter);
            if is_swapped {
                least = least.min(at(&before, column - 1) + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut last, next);
    }
    last.last().copied().unwrap_or_default()
}

fn first(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    all(error, kind).first().copied()
}

fn all(error: &clap::Error, kind: ContextKind) -> Vec<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 9] = [
        "http-port",
        "grpc-port",
        "metrics-port",
        "log-verbose",
        "gpu",
        "http-server-cert",
        "grpc-server-cert",
        "min-supported-compute-capability",
        "exit-timeout-secs",
    ];

    #[test]
    fn a_flag_is_suggested_by_meaning_by_a_part_of_its_name_or_when_mistyped() {
        let check = |given: &str, want: &[&str]| assert_eq!(near_flags(given, &NAMES), want, "{given}");
        check("--port", &["http-port", "grpc-port"]);
        check("--port=8000", &["http-port", "grpc-port"]);
        check("--log-level", &["log-verbose"]);
        check("--verbos", &[]);
        check("--cert", &["http-server-cert", "grpc-server-cert"]);
        check("--htp-port", &["http-port"]);
        check("--http-prot", &["http-port"]);
        check("--gpus", &["gpu"]);
        check("--exit-timeout", &["exit-timeout-secs"]);
        check("--nope", &[]);
        check("--", &[]);
    }

    #[test]
    fn an_abbreviation_stands_for_the_names_that_begin_with_it() {
        let check = |given: &str, want: &[&str]| assert_eq!(abbreviated(given, &NAMES), want, "{given}");
        check("--http", &["http-port", "http-server-cert"]);
        check("--http-p=8000", &["http-port"]);
        check("--port", &[]);
        check("-h", &[]);
        check("--", &[]);
    }

    #[test]
    fn the_distance_counts_changes_and_swaps() {
        let check = |one: &str, other: &str, want| assert_eq!(distance(one, other), want, "{one} {other}");
        check("", "abc", 3);
        check("port", "port", 0);
        check("prot", "port", 1);
        check("htp", "http", 1);
        check("kitten", "sitting", 3);
    }
}
