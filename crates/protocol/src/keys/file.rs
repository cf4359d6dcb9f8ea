//! The file of API keys (`--api-keys-file`), in TOML: a `[[key]]` for each client, and
//! `[anonymous]` for those without a key. Pure: the caller reads the file and passes its text in.
//! Errors are one line that names the line of the text, and never repeat a value: it may be a
//! misplaced key.
//!
//! ```toml
//! [[key]]
//! name = "team-a"                # for logs and metrics
//! sha256 = "9f86…"               # of the key, or a list while one replaces another
//! classes = ["infer", "read"]
//! rate = 100                     # requests a second, as a mean
//! burst = 200                    # at once; a second's worth if it is not said
//! concurrency = 8                # at a time
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use crate::keys::rate::KeyRate;
use crate::keys::{ClassSet, KeyDigest};
use crate::limits::{API_KEY_BURST_MAX, API_KEY_CONCURRENCY_MAX, API_KEY_INTERVAL_MAX};
use base::limits::{API_KEY_NAME_SIZE_MAX, API_KEYS_MAX};
use base::policy::KeyClass;
use wire::placed::{Placed, PlacedError, PlacedMember, PlacedValue};
use wire::toml;

/// Requests a second that a client may be given: more than a machine serves.
const API_KEY_RATE_MAX: u32 = 1_000_000;

/// The name of clients without a key, in metrics and errors.
pub const ANONYMOUS: &str = "anonymous";

/// The contents of a file of API keys.
#[derive(Clone, Debug)]
pub struct KeyFile {
    /// The clients with keys, in their order.
    pub entries: Vec<KeyEntry>,
    /// The entry of clients without a key, if they have any access.
    pub anonymous: Option<KeyEntry>,
}

/// The entry of one client.
#[derive(Clone, Debug)]
pub struct KeyEntry {
    /// Its name.
    pub name: String,
    /// Its keys.
    pub digests: Vec<KeyDigest>,
    /// The classes that they give access to.
    pub classes: ClassSet,
    /// The maximum rate of its requests; `None` for no limit.
    pub rate: Option<KeyRate>,
    /// The maximum number of its requests in flight; `None` for no limit.
    pub concurrency_max: Option<u32>,
    /// The maximum rate of the tokens of its texts; `None` for no limit.
    pub token_rate: Option<KeyRate>,
}

impl KeyFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// `line N: …` for the first mistake.
    pub fn read(text: &str) -> Result<Self, String> {
        let read = toml::read(text).and_then(document_of);
        read.map_err(|PlacedError { offset, text: why }| {
            let before = text.get(..offset).unwrap_or(text);
            format!("line {}: {why}", before.matches('\n').count() + 1)
        })
    }
}

fn fault(offset: usize, text: impl Into<String>) -> PlacedError {
    PlacedError { offset, text: text.into() }
}

fn document_of(document: Placed) -> Result<KeyFile, PlacedError> {
    let mut file = KeyFile { entries: Vec::new(), anonymous: None };
    let mut names = BTreeSet::from([ANONYMOUS.to_owned()]);
    for PlacedMember { name, offset, value } in members(document, "a table")? {
        match (name.as_str(), value.value) {
            ("key", PlacedValue::List(entries)) => {
                for entry in entries {
                    let at = entry.offset;
                    let entry = entry_of(entry, true)?;
                    if !names.insert(entry.name.clone()) {
                        return Err(fault(at, format!("the name '{}' is taken", entry.name)));
                    }
                    let known = |digest| file.entries.iter().find(|other| other.digests.contains(digest));
                    if let Some(other) = entry.digests.iter().find_map(known) {
                        let (one, two) = (&entry.name, &other.name);
                        return Err(fault(at, format!("'{one}' has a sha256 that '{two}' has")));
                    }
                    file.entries.push(entry);
                }
            }
            ("key", _) => return Err(fault(offset, "expected [[key]], with two brackets, before each key")),
            ("anonymous", value @ PlacedValue::Table(_)) => {
                file.anonymous = Some(entry_of(Placed { offset, value }, false)?);
            }
            ("anonymous", _) => return Err(fault(offset, "expected [anonymous], a table")),
            _ => return Err(fault(offset, format!("'{name}' is not known here: expected [[key]] or [anonymous]"))),
        }
    }
    if file.entries.is_empty() && file.anonymous.is_none() {
        return Err(fault(0, "there is no [[key]]: every request would be refused"));
    }
    if file.entries.iter().map(|entry| entry.digests.len()).sum::<usize>() > API_KEYS_MAX {
        return Err(fault(0, format!("more than {API_KEYS_MAX} keys")));
    }
    Ok(file)
}

fn members(placed: Placed, what: &str) -> Result<Vec<PlacedMember>, PlacedError> {
    match placed.value {
        PlacedValue::Table(members) => Ok(members),
        _ => Err(fault(placed.offset, format!("expected {what}"))),
    }
}

/// The parts of an entry that were read, before it is complete.
#[derive(Default)]
struct KeyDraft {
    name: Option<String>,
    digests: Vec<KeyDigest>,
    classes: Option<ClassSet>,
    /// The rate in requests per second, and its offset in the text.
    rate: Option<(f64, usize)>,
    burst: Option<(u32, usize)>,
    concurrency_max: Option<u32>,
    /// The same for the tokens of texts.
    token_rate: Option<(f64, usize)>,
    token_burst: Option<(u32, usize)>,
}

impl KeyDraft {
    /// The rates of requests and of tokens.
    fn rates(&self, name: &str) -> Result<[Option<KeyRate>; 2], PlacedError> {
        let rate = |field: &str, rate: Option<(f64, usize)>, burst: Option<(u32, usize)>| match (rate, burst) {
            (None, Some((_, offset))) if field == "rate" => {
                Err(fault(offset, format!("'{name}' has a burst and no rate")))
            }
            (None, Some((_, offset))) => Err(fault(offset, format!("'{name}' has a token_burst and no token_rate"))),
            (None, None) => Ok(None),
            (Some((rate, _)), burst) => {
                let burst = burst.map_or_else(|| second_of(rate), |(burst, _)| burst);
                Ok(Some(KeyRate::new(Duration::from_secs_f64(1.0 / rate), burst)))
            }
        };
        Ok([rate("rate", self.rate, self.burst)?, rate("token_rate", self.token_rate, self.token_burst)?])
    }
}

fn entry_of(entry: Placed, has_key: bool) -> Result<KeyEntry, PlacedError> {
    let at = entry.offset;
    let mut draft = KeyDraft::default();
    for PlacedMember { name, offset, value } in members(entry, "a table for each key")? {
        match name.as_str() {
            "name" if has_key => draft.name = Some(name_of(&value)?),
            "sha256" if has_key => draft.digests = digests_of(&value)?,
            "classes" => draft.classes = Some(classes_of(&value)?),
            "rate" => draft.rate = Some((rate_of(&value, "requests")?, offset)),
            "token_rate" => draft.token_rate = Some((rate_of(&value, "tokens")?, offset)),
            "token_burst" => {
                draft.token_burst = Some((count_of(&value, "token_burst", API_KEY_BURST_MAX)?, offset));
            }
            "burst" => draft.burst = Some((count_of(&value, "burst", API_KEY_BURST_MAX)?, offset)),
            "concurrency" => draft.concurrency_max = Some(count_of(&value, "concurrency", API_KEY_CONCURRENCY_MAX)?),
            _ => {
                let own = if has_key { "name, sha256, " } else { "" };
                return Err(fault(
                    offset,
                    format!(
                        "'{name}' is not known here: expected {own}classes, rate, burst, token_rate, token_burst or \
                         concurrency; a key itself stands nowhere"
                    ),
                ));
            }
        }
    }
    if has_key && draft.name.is_none() {
        return Err(fault(at, "a key has no name"));
    }
    let name = draft.name.take().unwrap_or_else(|| ANONYMOUS.to_owned());
    if has_key && draft.digests.is_empty() {
        return Err(fault(at, format!("'{name}' has no sha256: `deuteron key {name}` makes a key and prints it")));
    }
    let Some(classes) = draft.classes else {
        return Err(fault(at, format!("'{name}' has no classes: expected a list of {}", KeyClass::names())));
    };
    let [rate, token_rate] = draft.rates(&name)?;
    Ok(KeyEntry { name, digests: draft.digests, classes, rate, concurrency_max: draft.concurrency_max, token_rate })
}

/// The requests per second, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is positive and has a bound")]
fn second_of(rate: f64) -> u32 {
    rate.ceil().clamp(1.0, f64::from(API_KEY_BURST_MAX)) as u32
}

fn name_of(value: &Placed) -> Result<String, PlacedError> {
    match &value.value {
        PlacedValue::String(name) if is_name(name) => Ok(name.clone()),
        _ => Err(fault(
            value.offset,
            format!("a name has 1 to {API_KEY_NAME_SIZE_MAX} letters, digits, '-', '_', '.', ':' and '@'"),
        )),
    }
}

/// Returns true if a client can have this name: one that needs no escapes in a label of metrics or
/// in a log.
pub fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    (1..=API_KEY_NAME_SIZE_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

fn list(value: &Placed) -> &[Placed] {
    match &value.value {
        PlacedValue::List(all) => all,
        _ => std::slice::from_ref(value),
    }
}

fn digests_of(value: &Placed) -> Result<Vec<KeyDigest>, PlacedError> {
    let mut digests = Vec::new();
    for one in list(value) {
        let PlacedValue::String(text) = &one.value else {
            return Err(fault(one.offset, "sha256 is a text of 64 hexadecimal digits, or a list of such"));
        };
        let digest = KeyDigest::from_hex(text).ok_or_else(|| {
            fault(one.offset, "sha256 has 64 hexadecimal digits, as `deuteron key` and `sha256sum` print them, and is not the key itself")
        })?;
        if digests.contains(&digest) {
            return Err(fault(one.offset, "the same sha256 stands twice"));
        }
        digests.push(digest);
    }
    Ok(digests)
}

fn classes_of(value: &Placed) -> Result<ClassSet, PlacedError> {
    let mut classes = ClassSet::default();
    for one in list(value) {
        let class = match &one.value {
            PlacedValue::String(text) => KeyClass::from_name(text),
            _ => None,
        };
        match class {
            Some(class) => classes.add(class),
            None => return Err(fault(one.offset, format!("a class is one of {}", KeyClass::names()))),
        }
    }
    if classes == ClassSet::default() {
        return Err(fault(value.offset, format!("no class: expected some of {}", KeyClass::names())));
    }
    Ok(classes)
}

fn rate_of(value: &Placed, what: &str) -> Result<f64, PlacedError> {
    let least = 1.0 / API_KEY_INTERVAL_MAX.as_secs_f64();
    let most = f64::from(API_KEY_RATE_MAX);
    let rate = if let PlacedValue::Number(text) = &value.value { text.replace('_', "").parse().ok() } else { None };
    rate.filter(|rate| (least..=most).contains(rate))
        .ok_or_else(|| fault(value.offset, format!("a rate is a number of {what} a second, from {least} to {most}")))
}

fn count_of(value: &Placed, what: &str, most: u32) -> Result<u32, PlacedError> {
    let count =
        if let PlacedValue::Number(text) = &value.value { text.replace('_', "").parse::<u32>().ok() } else { None };
    count
        .filter(|count| (1..=most).contains(count))
        .ok_or_else(|| fault(value.offset, format!("{what} is a whole number from 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_file_has_its_clients_in_order() {
        let other = HEX.replace('b', "c");
        let third = HEX.replace('b', "d");
        let text = format!(
            "# who\n[[key]]\nname = \"a\"\nsha256 = \"{HEX}\"\nclasses = \"infer\"\n\n[[key]]\nname = \"b.c:d@e_f-1\"\n\
             sha256 = [\"{other}\", \"{third}\"]\nclasses = [\"read\", \"admin\"]\nrate = 0.5\nconcurrency = 3\n\
             token_rate = 1000\ntoken_burst = 60_000\n\
             [anonymous]\nclasses = [\"metrics\"]\nrate = 10\nburst = 7\n"
        );
        let file = KeyFile::read(&text).unwrap();
        let [a, b] = &file.entries[..] else { panic!("{file:?}") };
        assert_eq!((a.name.as_str(), a.digests.len(), a.rate, a.concurrency_max), ("a", 1, None, None));
        assert!(a.classes.has(KeyClass::Infer) && !a.classes.has(KeyClass::Read));
        assert_eq!((b.name.as_str(), b.digests.len(), b.concurrency_max), ("b.c:d@e_f-1", 2, Some(3)));
        assert_eq!(b.rate, Some(KeyRate::new(Duration::from_secs(2), 1)));
        assert_eq!((a.token_rate, b.token_rate), (None, Some(KeyRate::new(Duration::from_millis(1), 60_000))));
        let anonymous = file.anonymous.unwrap();
        assert_eq!((anonymous.name.as_str(), anonymous.digests.len()), ("anonymous", 0));
        assert_eq!(anonymous.rate, Some(KeyRate::new(Duration::from_millis(100), 7)));
    }

    #[test]
    fn a_burst_that_is_not_said_is_what_a_second_brings() {
        let check = |rate: &str, want: u32| {
            let text = format!("[[key]]\nname='a'\nsha256='{HEX}'\nclasses='infer'\nrate={rate}");
            let interval = Duration::from_secs_f64(1.0 / rate.parse::<f64>().unwrap());
            assert_eq!(KeyFile::read(&text).unwrap().entries[0].rate, Some(KeyRate::new(interval, want)), "{rate}");
        };
        check("1", 1);
        check("0.001", 1);
        check("2.5", 3);
        check("1000000", 1_000_000);
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_without_its_value() {
        let s = "dt_s3cret";
        let entry = |lines: &str| format!("# comment\n[[key]]\nname = \"a\"\n{lines}");
        let good = format!("sha256 = \"{HEX}\"\nclasses = [\"infer\"]\n");
        let check = |text: &str, want: &str| {
            let error = KeyFile::read(text).unwrap_err();
            assert!(error.starts_with(want), "{text}\ngave: {error}\nwant: {want}");
            assert!(!error.contains("s3cret"), "{error}");
        };
        check("", "line 1: there is no [[key]]");
        check("a = ", "line 1: ");
        check("\n[[key]\n", "line 2: ");
        check("[key]\nname = \"a\"", "line 1: expected [[key]], with two brackets");
        check("keys = 1", "line 1: 'keys' is not known here: expected [[key]] or [anonymous]");
        check("anonymous = true", "line 1: expected [anonymous], a table");
        check(&format!("[[key]]\n{good}"), "line 1: a key has no name");
        check(&format!("[[key]]\nname = \"a b\"\n{good}"), "line 2: a name has 1 to 64 letters");
        check(&format!("[[key]]\nname = \"\"\n{good}"), "line 2: a name has 1 to 64");
        check(&format!("[[key]]\nname = \"{}\"\n{good}", "a".repeat(65)), "line 2: a name has 1 to 64");
        check(&format!("[[key]]\nname = \"anonymous\"\n{good}"), "line 1: the name 'anonymous' is taken");
        check(&entry("classes = [\"infer\"]"), "line 2: 'a' has no sha256: `deuteron key a` makes a key");
        check(&entry(&format!("sha256 = \"{HEX}\"")), "line 2: 'a' has no classes: expected a list of admin, infer,");
        check(&entry(&format!("sha256 = \"{s}\"\nclasses = [\"infer\"]")), "line 4: sha256 has 64 hexadecimal digits");
        check(&entry("sha256 = 7"), "line 4: sha256 is a text of 64");
        check(&entry(&format!("sha256 = [\"{HEX}\",\n  \"{HEX}\"]")), "line 5: the same sha256 stands twice");
        check(&entry(&format!("key = \"{s}\"\n{good}")), "line 4: 'key' is not known here: expected name, sha256,");
        check(&entry(&format!("sha256 = \"{HEX}\"\nclasses = [\"infer\",\n\"write\"]")), "line 6: a class is one of");
        check(&entry(&format!("sha256 = \"{HEX}\"\nclasses = []")), "line 5: no class: expected some of");
        for wrong in ["0", "-1", "1000001", "\"10\"", "nan", "inf", "0.0001"] {
            check(
                &entry(&format!("{good}rate = {wrong}")),
                "line 6: a rate is a number of requests a second, from 0.001",
            );
        }
        for wrong in ["0", "-1", "1.5", "1000001", "true"] {
            check(&entry(&format!("{good}rate = 1\nburst = {wrong}")), "line 7: burst is a whole number from 1 to");
            check(&entry(&format!("{good}concurrency = {wrong}")), "line 6: concurrency is a whole number from 1");
            check(&entry(&format!("{good}token_burst = {wrong}")), "line 6: token_burst is a whole number from 1 to");
        }
        check(&entry(&format!("{good}token_rate = 0")), "line 6: a rate is a number of tokens a second, from 0.001");
        check(&entry(&format!("{good}token_burst = 2")), "line 6: 'a' has a token_burst and no token_rate");
        check(&entry(&format!("{good}burst = 2")), "line 6: 'a' has a burst and no rate");
        check(
            &entry(&format!("{good}[[key]]\nname = \"a\"\n{}", good.replace('b', "c"))),
            "line 6: the name 'a' is taken",
        );
        check(&entry(&format!("{good}[[key]]\nname = \"b\"\n{good}")), "line 6: 'b' has a sha256 that 'a' has");
        check(
            "[anonymous]\nname = \"a\"",
            "line 2: 'name' is not known here: expected classes, rate, burst, token_rate,",
        );
        check("[anonymous]\n", "line 1: 'anonymous' has no classes");
    }

    #[test]
    fn there_are_no_more_keys_than_are_compared_in_a_moment() {
        let digests = |count: usize| {
            let all: Vec<_> =
                (0..count).map(|index| format!("'{}'", KeyDigest::of_key(&index.to_be_bytes()).hex())).collect();
            format!("[[key]]\nname = 'a'\nclasses = 'infer'\nsha256 = [{}]", all.join(","))
        };
        assert_eq!(KeyFile::read(&digests(API_KEYS_MAX)).unwrap().entries[0].digests.len(), API_KEYS_MAX);
        assert_eq!(KeyFile::read(&digests(API_KEYS_MAX + 1)).unwrap_err(), "line 1: more than 1024 keys");
    }
}
