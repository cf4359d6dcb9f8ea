//! The key that `deuteron key` is to make. Pure: arguments are passed in.

use clap::{Arg, ArgAction, ArgMatches};

use base::limits::API_KEY_NAME_SIZE_MAX;
use base::policy::KeyClass;

/// A key that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    /// The name of the client that gets it.
    pub name: String,
    /// Its classes.
    pub classes: Vec<KeyClass>,
}

/// Returns the arguments of the command.
pub fn key_arguments() -> [Arg; 2] {
    [
        Arg::new("name").value_name("NAME").required(true).help("The client's name, for logs and metrics"),
        Arg::new("class")
            .long("class")
            .value_name("CLASS")
            .action(ArgAction::Append)
            .help("Class of the key: infer, read, metrics or admin; may be given more than once [default: infer]"),
    ]
}

impl NewKey {
    /// Reads the arguments. The error is one line for a person.
    pub fn read(matches: &ArgMatches) -> Result<Self, String> {
        let name = matches.get_one::<String>("name").cloned().unwrap_or_default();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
        if !(1..=API_KEY_NAME_SIZE_MAX).contains(&name.len()) || !name.bytes().all(plain) {
            return Err(format!(
                "'{name}' is no name: expected 1 to {API_KEY_NAME_SIZE_MAX} letters, digits, '-', '_', '.', ':' and '@'"
            ));
        }
        let words = matches.get_many::<String>("class").into_iter().flatten().flat_map(|words| words.split(','));
        let mut classes = Vec::new();
        for word in words {
            let class = KeyClass::from_name(word);
            classes.push(class.ok_or_else(|| format!("--class={word}: expected {}", KeyClass::names()))?);
        }
        if classes.is_empty() {
            classes.push(KeyClass::Infer);
        }
        Ok(Self { name, classes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_asked_for_by_a_name_and_classes() {
        let read = |words: &str| {
            let command = clap::Command::new("key").args(key_arguments());
            let words = std::iter::once("key").chain(words.split_whitespace());
            NewKey::read(&command.get_matches_from(words)).map(|new| {
                let classes: Vec<_> = new.classes.iter().map(|class| class.name()).collect();
                format!("{} {}", new.name, classes.join(","))
            })
        };
        assert_eq!(read("team-a").unwrap(), "team-a infer");
        assert_eq!(read("a --class read --class=admin,infer").unwrap(), "a read,admin,infer");
        assert_eq!(read("a --class=write").unwrap_err(), "--class=write: expected admin, infer, metrics, read");
        assert!(read("a\"b").unwrap_err().starts_with("'a\"b' is no name"));
    }
}
