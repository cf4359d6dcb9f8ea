//! The file of `--config`: flags by their names, in TOML. A flag of the command line goes before its variable, a variable
//! before the file.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use clap::ArgMatches;

use crate::table::SECTIONS;
use crate::{REPOSITORY, Secret, Settings, cache, check};
use flags::{self, Flag, Variables};

/// Reads a file that a flag names.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// The name of the flag. A file cannot name another.
const CONFIG: &str = "config";

/// Reads the file, if one is named, after the command line and the variables. Returns the flags
/// that are taken from it.
pub(super) fn apply(
    matches: &ArgMatches,
    variables: Variables,
    has_paths: bool,
    read_file: ReadFile,
    settings: &mut Settings,
) -> Result<BTreeSet<&'static str>, String> {
    let given = matches.get_raw(CONFIG).and_then(|mut values| values.next_back()).map(ToOwned::to_owned);
    let named = given.or_else(|| variables(&variable(CONFIG)).filter(|value| !value.is_empty()));
    let Some(path) = named else { return Ok(BTreeSet::new()) };
    let is_set = |flag: &Flag<Settings>| {
        flags::is_given(matches, flag.name())
            || flags::has_variable(flag, variables)
            || (has_paths && flag.name() == REPOSITORY.0)
    };
    let path = Path::new(&path);
    let taken = RefCell::new(BTreeSet::new());
    let takes = |flag: &Flag<Settings>| {
        let takes = !is_set(flag);
        takes.then(|| taken.borrow_mut().insert(flag.name()));
        takes
    };
    match read(path, read_file, &takes, settings)? {
        Ok(_) => Ok(taken.take()),
        Err(faults) => {
            let (first, more) = (faults.first().map_or("", String::as_str), faults.len().saturating_sub(1));
            let path = path.display();
            let rest = if more == 0 {
                String::new()
            } else {
                format!(", and {more} more: see `deuteron config check {path}`")
            };
            Err(format!("--config={path}: {first}{rest}"))
        }
    }
}

/// Returns the text of `deuteron config check` on a file.
///
/// # Errors
/// All its faults, a line for each.
pub fn check_file(path: &Path, read_file: ReadFile) -> Result<String, Vec<String>> {
    let mut settings = Settings::default();
    let count = read(path, read_file, &|_| true, &mut settings).map_err(|why| vec![why])?;
    let located = |why: String| format!("{}: {why}", path.display());
    let count = count.map_err(|faults| faults.into_iter().map(located).collect::<Vec<_>>())?;
    // A login may come from variables of the server, which are not here.
    cache::check(&mut settings.cache, settings.allows_agents, &|_| None).map_err(|why| vec![located(why)])?;
    let checked = check(settings).map_err(|why| vec![located(why)])?;
    let warnings = checked.warnings.iter().map(|warning| format!("{}: warning: {warning}\n", path.display()));
    let flags = if count == 1 { "flag" } else { "flags" };
    Ok(format!("{}{}: {count} {flags}, no fault\n", warnings.collect::<String>(), path.display()))
}

/// Returns the number of flags in a file, or its faults; fails if it cannot be read.
fn read(
    path: &Path,
    read_file: ReadFile,
    takes: &dyn Fn(&Flag<Settings>) -> bool,
    settings: &mut Settings,
) -> Result<Result<usize, Vec<String>>, String> {
    let text = read_file(path).map_err(|error| format!("--config={}: cannot be read: {error}", path.display()))?;
    let before = settings.config_file.take();
    let outcome = flags::apply_file(SECTIONS, &text, &|flag| flag.name() == CONFIG || takes(flag), settings);
    let names_another = settings.config_file.is_some();
    settings.config_file = before;
    settings.config_text = Some(Secret::new(text));
    Ok(if names_another { Err(vec!["config: one file cannot name another".to_owned()]) } else { outcome })
}

fn variable(name: &str) -> String {
    format!("DEUTERON_{}", name.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{arguments, read_any};

    /// Returns the settings of a line and variables, with a file that has this text.
    fn serve(line: &str, variables: &[(&str, &str)], text: &str) -> Result<Settings, String> {
        let command = clap::Command::new("deuteron").no_binary_name(true).args_override_self(true).args(arguments());
        let matches = command.try_get_matches_from(line.split_whitespace()).unwrap();
        let variable = |name: &str| variables.iter().find(|(have, _)| *have == name).map(|(_, value)| value.into());
        read_any(&matches, &variable, &|path| match path.to_str() {
            Some("f") => Ok(text.to_owned()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        })
    }

    #[test]
    fn a_flag_goes_before_its_variable_and_a_variable_before_the_file() {
        let text = "http-port = 81\nmodel-repository = [\"a\", \"b\"]\nid = \"of-file\"\n";
        let port = |line: &str, variables: &[(&str, &str)]| {
            serve(line, variables, text).unwrap().http.map(|(_, port)| port).unwrap()
        };
        assert_eq!(port("", &[]), 8000);
        assert_eq!(port("--config=f", &[]), 81);
        assert_eq!(port("", &[("DEUTERON_CONFIG", "f")]), 81);
        assert_eq!(port("--config=f", &[("DEUTERON_HTTP_PORT", "82")]), 82);
        assert_eq!(port("--config=f --http-port=83", &[("DEUTERON_HTTP_PORT", "82")]), 83);
        assert_eq!(port("--config=f", &[("DEUTERON_HTTP_PORT", "tcp://10.0.0.1:80")]), 81, "what Kubernetes says");
        let repositories = |line: &str, variables: &[(&str, &str)]| serve(line, variables, text).unwrap().repositories;
        assert_eq!(repositories("--config=f", &[]), ["a", "b"].map(PathBuf::from));
        assert_eq!(repositories("--config=f c", &[]), [PathBuf::from("c")]);
        assert_eq!(repositories("--config=f --model-store=c", &[]), [PathBuf::from("c")]);
        assert_eq!(repositories("--config=f", &[("DEUTERON_MODEL_REPOSITORY", "c")]), [PathBuf::from("c")]);
        assert_eq!(serve("--config=f", &[], text).unwrap().id, "of-file");
    }

    #[test]
    fn what_a_file_asks_for_is_asked_for() {
        let of_host: &[_] = &[("AIP_MODE", "PREDICTION"), ("AIP_HTTP_PORT", "9001")];
        let is_served = |text: &str| serve("--config=f", of_host, text).unwrap().http.is_some();
        assert_eq!([is_served("id = \"x\""), is_served("allow-http = true")], [false, true]);
    }

    #[test]
    fn the_text_is_kept_and_shown_to_nobody() {
        let text = "id = \"x\"\ncache-config = [\"redis,host=h\", \"redis,port=1\", \"redis,password=key\"]\n";
        let settings = serve("--config=f", &[], text).unwrap();
        assert_eq!(settings.config_text.as_ref().map(Secret::reveal), Some(text));
        assert!(!format!("{settings:?}").contains("key\\"), "{settings:?}");
    }

    #[test]
    fn a_file_with_faults_stops_the_server_and_the_check_tells_all_of_them() {
        let text = "htp-port = 81\nid = \"x\"\ngrpc-port = \"y\"\n";
        let why = serve("--config=f", &[], text).unwrap_err();
        assert_eq!(
            why,
            "--config=f: line 1: unknown key 'htp-port': did you mean 'http-port'? a key is the name of a flag; --help \
             lists them, and 1 more: see `deuteron config check f`"
        );
        let check = |text: &'static str| check_file(Path::new("f"), &|_| Ok(text.to_owned()));
        assert_eq!(check("http-port = \"y\"\ngrpc-port = \"y\"\n").unwrap_err().len(), 2);
        assert_eq!(check("http-port = 1\nid = \"x\"\n").unwrap(), "f: 2 flags, no fault\n");
        assert_eq!(check("config = \"g\"\n").unwrap_err(), ["f: config: one file cannot name another"]);
        assert_eq!(check("cache-config = \"redis,host=h\"\n").unwrap_err().len(), 1, "it lacks the port");
        assert!(serve("--config=f", &[], "config = \"g\"\n").unwrap_err().contains("one file cannot name another"));
        let same = check("http-port = 81\ngrpc-port = 81\n").unwrap_err();
        assert!(same[0].starts_with("f: The server cannot listen"), "{same:?}");
        let absent = serve("--config=g", &[], "").unwrap_err();
        assert_eq!(absent, "--config=g: cannot be read: entity not found");
    }
}
