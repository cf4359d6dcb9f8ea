//! The error for a command line that clap refuses: one line with the argument, the expected and the
//! actual value.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// One line for a person, without `error:`.
pub fn explain(error: &clap::Error) -> String {
    let given = first(error, ContextKind::InvalidArg).unwrap_or_default();
    let value = first(error, ContextKind::InvalidValue).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let near = near(first(error, ContextKind::SuggestedArg));
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

pub(super) fn first(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    all(error, kind).first().copied()
}

fn all(error: &clap::Error, kind: ContextKind) -> Vec<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}
