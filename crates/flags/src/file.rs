//! Flags from a TOML file: each key is the name of a flag, with the flag's value. A flag that may
//! be given more than once takes a list. Pure: the caller reads the file and passes its text.
//!
//! ```toml
//! model-repository = ["/srv/models", "/srv/more"]
//! http-port = 9000
//! tls-handshake-timeout = 10
//! admission = "deadline"
//! ```

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::{Flag, Section, Takes, flags, refusal};
use wire::placed::{Placed, PlacedError, PlacedMember, PlacedValue};
use wire::toml;

/// Reads the flags of a text that `takes` accepts, and returns the number of its keys. Other flags
/// are checked all the same, so that a file is valid or not by itself.
///
/// # Errors
/// All faults, each as `line N: …`, in the order of the text. Values of secrets are not repeated.
pub fn apply_file<S: Clone>(
    sections: &'static [Section<S>],
    text: &str,
    takes: &dyn Fn(&Flag<S>) -> bool,
    settings: &mut S,
) -> Result<usize, Vec<String>> {
    let located = |PlacedError { offset, text: why }: PlacedError| {
        let before = text.get(..offset).unwrap_or(text);
        format!("line {}: {why}", before.matches('\n').count() + 1)
    };
    let document = toml::read(text).map_err(|error| vec![located(error)])?;
    let PlacedValue::Table(members) = document.value else { return Ok(0) };
    let (mut faults, mut seen, count) = (Vec::new(), BTreeSet::new(), members.len());
    for member in members {
        let (name, offset) = (member.name.clone(), member.offset);
        let outcome = flag_of(sections, &member).and_then(|flag| {
            if !seen.insert(flag.name()) {
                return Err(PlacedError {
                    offset,
                    text: format!("'{name}' is --{}, which is there twice", flag.name()),
                });
            }
            let values = values_of(flag, &name, member.value)?;
            let mut unused = settings.clone();
            let settings = if takes(flag) { &mut *settings } else { &mut unused };
            values.iter().try_for_each(|(offset, value)| {
                let outcome = flag.take(settings, value);
                let shown = flag.shown(&OsString::from(value));
                outcome.map_err(|why| PlacedError { offset: *offset, text: format!("{name}{shown}: {why}") })
            })
        });
        faults.extend(outcome.map_err(located).err());
    }
    if faults.is_empty() { Ok(count) } else { Err(faults) }
}

/// The flag that a key names, by any of its long names.
fn flag_of<S>(sections: &'static [Section<S>], member: &PlacedMember) -> Result<&'static Flag<S>, PlacedError> {
    let (name, offset) = (member.name.as_str(), member.offset);
    let is_named = |flag: &&Flag<S>| name.len() > 1 && flag.names.contains(&name);
    flags(sections).find(is_named).ok_or_else(|| {
        let names: Vec<_> =
            flags(sections).flat_map(|flag| flag.names).filter(|name| name.len() > 1).copied().collect();
        let near: Vec<_> = refusal::near_flags(name, &names).into_iter().map(|near| format!("'{near}'")).collect();
        let near = match near.as_slice() {
            [] => ";".to_owned(),
            near => {
                format!(": did you mean {}?", refusal::either(&near.iter().map(String::as_str).collect::<Vec<_>>()))
            }
        };
        PlacedError {
            offset,
            text: format!("unknown key '{name}'{near} a key is the name of a flag; --help lists them"),
        }
    })
}

/// The values of a key as a command line would give them, each with its offset.
fn values_of<S>(flag: &Flag<S>, name: &str, placed: Placed) -> Result<Vec<(usize, String)>, PlacedError> {
    let is_list = matches!(placed.value, PlacedValue::List(_));
    let elements = match placed.value {
        PlacedValue::List(elements) if matches!(flag.takes, Takes::Many(_)) => elements,
        value => vec![Placed { offset: placed.offset, value }],
    };
    let value_of = |element: Placed| match element.value {
        PlacedValue::Bool(is_true) => Ok((element.offset, is_true.to_string())),
        PlacedValue::Number(text) | PlacedValue::String(text) => Ok((element.offset, text)),
        PlacedValue::List(_) | PlacedValue::Null | PlacedValue::Table(_) => {
            let what = match flag.takes {
                Takes::Many(_) => "a text, a number, true or false, or a list of them",
                _ if is_list => "one value and not a list, since the flag may be given once",
                _ => "a text, a number, true or false",
            };
            Err(PlacedError { offset: element.offset, text: format!("{name}: expected {what}") })
        }
    };
    elements.into_iter().map(value_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fallback::Absent;
    use crate::{parse, parse_bool, set};

    #[derive(Clone, Debug, Default, PartialEq)]
    struct Kitchen {
        ovens: u8,
        is_open: bool,
        dishes: Vec<String>,
        code: String,
    }

    const KITCHEN: &[Section<Kitchen>] = &[Section {
        title: "Kitchen",
        flags: &[
            Flag {
                names: &["ovens", "stoves"],
                takes: Takes::One("COUNT"),
                default: Absent,
                help: "",
                apply: |kitchen, value| set(&mut kitchen.ovens, parse(value)),
            },
            Flag {
                names: &["open"],
                takes: Takes::Switch,
                default: Absent,
                help: "",
                apply: |kitchen, _| set(&mut kitchen.is_open, parse_bool("true")),
            },
            Flag {
                names: &["dish"],
                takes: Takes::Many("NAME"),
                default: Absent,
                help: "",
                apply: |kitchen, value| {
                    kitchen.dishes.push(value.to_owned());
                    Ok(())
                },
            },
            Flag {
                names: &["code"],
                takes: Takes::One("SECRET"),
                default: Absent,
                help: "",
                apply: |_, _| Err("expected ten letters".to_owned()),
            },
        ],
    }];

    fn read(text: &str) -> Result<Kitchen, Vec<String>> {
        let mut kitchen = Kitchen::default();
        apply_file(KITCHEN, text, &|_| true, &mut kitchen).map(|_| kitchen)
    }

    #[test]
    fn a_key_is_a_flag_and_a_list_is_one_given_more_than_once() {
        let kitchen = read("ovens = 3\nopen = true\ndish = [\"soup\", \"pie\"]\n").unwrap();
        let dishes = vec!["soup".to_owned(), "pie".to_owned()];
        assert_eq!(kitchen, Kitchen { ovens: 3, is_open: true, dishes, code: String::new() });
        assert_eq!(read("stoves = \"4\"\ndish = \"soup\"\nopen = false").unwrap().ovens, 4);
        assert_eq!(read("# nothing\n").unwrap(), Kitchen::default());
    }

    #[test]
    fn what_is_left_out_is_checked_and_changes_nothing() {
        let mut kitchen = Kitchen::default();
        let takes = |flag: &Flag<Kitchen>| flag.name() != "ovens";
        assert_eq!(apply_file(KITCHEN, "ovens = 3\ndish = \"pie\"", &takes, &mut kitchen), Ok(2));
        assert_eq!((kitchen.ovens, kitchen.dishes.len()), (0, 1));
        let faults = apply_file(KITCHEN, "ovens = \"three\"", &takes, &mut kitchen).unwrap_err();
        assert_eq!(faults, ["line 1: ovens=three: expected a whole number"]);
    }

    #[test]
    fn all_faults_are_told_with_their_lines_and_no_secret() {
        let text = "oven = 1\n\novens = [1, 2]\nstoves = 2\ncode = \"hush\"\nopen = 1979-05-27\n";
        assert_eq!(read(text).unwrap_err(), ["line 6: dates and times are not supported; quote the value"]);
        let text = "oven = 1\n\novens = [1, 2]\nstoves = 2\ncode = \"hush\"\nopen = \"no\"\n[dish]\nx = 1\n";
        assert_eq!(
            read(text).unwrap_err(),
            [
                "line 1: unknown key 'oven': did you mean 'ovens'? a key is the name of a flag; --help lists them",
                "line 3: ovens: expected one value and not a list, since the flag may be given once",
                "line 4: 'stoves' is --ovens, which is there twice",
                "line 5: code: expected ten letters",
                "line 6: open=no: expected true or false",
                "line 7: dish: expected a text, a number, true or false, or a list of them",
            ]
        );
    }
}
