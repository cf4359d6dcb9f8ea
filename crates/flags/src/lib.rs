//! The flag engine. A flag is declared once, as data: its entry gives the argument that clap reads,
//! its help, its completions and its environment variable. Generic over the settings that flags
//! write into, so that the server and the load generator share this and nothing else. Pure: the
//! caller passes arguments and variables.

mod file;
mod refusal;

use std::ffi::{OsStr, OsString};

use clap::builder::{PossibleValue, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, ValueHint};

pub use crate::file::apply_file;
pub use crate::refusal::{explain, nearest_command};

/// One flag that writes into an `S`.
pub struct Flag<S: 'static> {
    /// The names without dashes, the main name first; one letter is a short form.
    pub names: &'static [&'static str],
    /// The value that it takes.
    pub takes: Takes,
    /// The default without it.
    pub default: Fallback,
    /// Its effect, for `--help`.
    pub help: &'static str,
    /// Reads a value into the settings. The error says what was expected; a switch gets "".
    pub apply: fn(&mut S, &str) -> Result<(), String>,
}

/// The value that a flag takes. A name such as `none|poll` lists all valid values; the values of
/// one that ends with `SECRET` are shown in no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// One value; a later one replaces it.
    One(&'static str),
    /// A value each time it is given; all count.
    Many(&'static str),
    /// No value: it switches something on. As with tritonserver's, `=true` and `=false` may follow.
    Switch,
}

/// The default of a flag that is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The same as with this value.
    Value(&'static str),
    /// A text, for a default that no value expresses.
    Text(&'static str),
    /// No default: the flag adds something or switches it on.
    Absent,
}

/// A heading of the help and the flags beneath it.
pub struct Section<S: 'static> {
    /// The heading.
    pub title: &'static str,
    /// The flags, in the order of the help.
    pub flags: &'static [Flag<S>],
}

/// The variables of the environment, by their names.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

impl<S> Flag<S> {
    /// The main name, without dashes.
    pub fn name(&self) -> &'static str {
        self.names.iter().copied().find(|name| name.len() > 1).unwrap_or_default()
    }

    /// The environment variable that replaces it: `DEUTERON_HTTP_PORT` for `--http-port`.
    pub fn variable(&self) -> String {
        format!("DEUTERON_{}", self.name().replace('-', "_").to_ascii_uppercase())
    }

    fn argument(&self, heading: &'static str) -> Arg {
        let name = self.name();
        let mut arg = Arg::new(name).long(name).help(self.help_text()).help_heading(heading).next_line_help(true);
        for other in self.names.iter().filter(|other| **other != name) {
            arg = match other.as_bytes() {
                [letter] => arg.short(char::from(*letter)),
                _ => arg.visible_alias(*other),
            };
        }
        match self.takes {
            Takes::Switch => {
                let arg = arg.action(ArgAction::Append).num_args(0..=1).require_equals(true);
                arg.default_missing_value(TRUE).value_name(BOOL).value_parser(AnyOf(BOOL)).hide_possible_values(true)
            }
            Takes::One(value) | Takes::Many(value) => {
                let parser = AnyOf(if value.contains('|') { value } else { "" });
                let arg = arg.action(ArgAction::Append).value_name(value).value_parser(parser).value_hint(hint(value));
                // The name of the value lists them. A value may begin with a dash: an address, a text.
                arg.hide_possible_values(true).allow_hyphen_values(true)
            }
        }
    }

    fn help_text(&self) -> String {
        match self.default {
            Fallback::Value(text) | Fallback::Text(text) => format!("{} [default: {text}]", self.help),
            Fallback::Absent => self.help.to_owned(),
        }
    }

    fn read(&self, settings: &mut S, value: &OsStr) -> Result<(), String> {
        let name = self.name();
        let outcome = value.to_str().ok_or_else(not_utf8).and_then(|text| self.take(settings, text));
        outcome.map_err(|why| format!("--{name}{}: {why}", self.shown(value)))
    }

    /// Reads a value as the command line has it. The error does not name the flag.
    ///
    /// # Errors
    /// The expected value.
    pub fn take(&self, settings: &mut S, text: &str) -> Result<(), String> {
        match self.takes {
            Takes::Switch if parse_bool(text)? => (self.apply)(settings, ""),
            Takes::Switch => Ok(()),
            Takes::One(_) | Takes::Many(_) => (self.apply)(settings, text),
        }
    }

    /// Reads the value of its variable. An empty one counts as unset: that is how a compose file
    /// leaves one out.
    fn read_variable(&self, settings: &mut S, value: &OsStr) -> Result<(), String> {
        let name = self.variable();
        let outcome = value.to_str().ok_or_else(not_utf8).and_then(|text| match self.takes {
            Takes::Many(_) => {
                let mut values = text.split(';').filter(|value| !value.is_empty());
                values.try_for_each(|value| self.take(settings, value))
            }
            Takes::One(_) | Takes::Switch => self.take(settings, text),
        });
        outcome.map_err(|why| format!("{name}{}: {why}", self.shown(value)))
    }

    /// A value as an error shows it; empty if it contains a secret.
    fn shown(&self, value: &OsStr) -> String {
        match self.takes {
            Takes::One(kind) | Takes::Many(kind) if kind.ends_with("SECRET") => String::new(),
            _ => format!("={}", value.display()),
        }
    }
}

/// The completions of a value, by its name: shells offer files only where one is expected.
fn hint(value: &str) -> ValueHint {
    match value {
        "/DIRECTORY" | "DIRECTORY" => ValueHint::DirPath,
        "FILE" | "FILE.pem" | "FILE.svg" | "PATH" | "SOURCE" => ValueHint::FilePath,
        _ => ValueHint::Other,
    }
}

fn not_utf8() -> String {
    "expected UTF-8".to_owned()
}

/// The values that may follow a switch, and its value without one.
const BOOL: &str = "true|false";
const TRUE: &str = "true";

/// The arguments of all flags.
pub fn arguments<S>(sections: &'static [Section<S>]) -> impl Iterator<Item = Arg> {
    sections.iter().flat_map(|section| section.flags.iter().map(|flag| flag.argument(section.title)))
}

/// All flags.
pub fn flags<S>(sections: &'static [Section<S>]) -> impl Iterator<Item = &'static Flag<S>> {
    sections.iter().flat_map(|section| section.flags)
}

/// Reads the flags of a command line into the settings, in its order: of flags with the same
/// meaning, the last one holds.
pub fn apply<S>(sections: &'static [Section<S>], matches: &ArgMatches, settings: &mut S) -> Result<(), String> {
    let mut given = Vec::new();
    for flag in flags(sections).filter(|flag| is_given(matches, flag.name())) {
        let indices = matches.indices_of(flag.name()).unwrap_or_default();
        let values = matches.get_raw(flag.name()).unwrap_or_default();
        given.extend(indices.zip(values).map(|(index, value)| (index, flag, value)));
    }
    given.sort_by_key(|(index, ..)| *index);
    given.into_iter().try_for_each(|(_, flag, value)| flag.read(settings, value))
}

/// Reads the variables of the flags that are not on the command line. Returns warnings.
pub fn apply_variables<S>(
    sections: &'static [Section<S>],
    matches: &ArgMatches,
    variables: Variables,
    settings: &mut S,
) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();
    for flag in flags(sections).filter(|flag| !is_given(matches, flag.name())) {
        let variable = flag.variable();
        let Some(value) = variables(&variable).filter(|value| !value.is_empty()) else { continue };
        if is_service_link(&variable, &value) {
            warnings.push(format!(
                "{variable}={} is what Kubernetes says of a service, and is not read; enableServiceLinks: false keeps \
                 it out of the pod",
                value.display()
            ));
        } else {
            flag.read_variable(settings, &value)?;
        }
    }
    Ok(warnings)
}

/// Returns true if a flag is read from its variable.
pub fn has_variable<S>(flag: &Flag<S>, variables: Variables) -> bool {
    let variable = flag.variable();
    variables(&variable).is_some_and(|value| !value.is_empty() && !is_service_link(&variable, &value))
}

/// Returns true if an argument is on the command line, and not only a default.
pub fn is_given(matches: &ArgMatches, name: &str) -> bool {
    matches.value_source(name) == Some(ValueSource::CommandLine)
}

/// Returns true if Kubernetes made a variable: a service named `deuteron-http` brings every pod of
/// its namespace `DEUTERON_HTTP_PORT=tcp://10.0.0.1:80`.
fn is_service_link(variable: &str, value: &OsStr) -> bool {
    let value = value.as_encoded_bytes();
    variable.ends_with("_PORT") && ["tcp://", "udp://", "sctp://"].iter().any(|kind| value.starts_with(kind.as_bytes()))
}

/// Reads a whole number.
pub fn parse<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| "expected a whole number".to_owned())
}

/// As tritonserver reads them: true, false, 1, 0 in any case.
pub fn parse_bool(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// Stores a value that was read.
pub fn set<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

/// Stores the choice that a name stands for. Case is ignored, as in tritonserver.
pub fn set_one_of<T: Copy>(place: &mut T, value: &str, choices: &[(&str, T)]) -> Result<(), String> {
    let found = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(value));
    let names = || choices.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    set(place, found.map(|(_, choice)| *choice).ok_or_else(|| format!("expected {}", refusal::either(&names()))))
}

/// Accepts any value, and lists the valid ones for completions. [`Flag::apply`] refuses the others,
/// since it also reads variables.
#[derive(Clone)]
struct AnyOf(&'static str);

impl TypedValueParser for AnyOf {
    type Value = OsString;

    fn parse_ref(&self, _: &clap::Command, _: Option<&Arg>, value: &OsStr) -> Result<OsString, clap::Error> {
        Ok(value.to_owned())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        if self.0.is_empty() { None } else { Some(Box::new(self.0.split('|').map(PossibleValue::new))) }
    }
}
