//! The command line: the commands, and the request that arguments and environment make. Pure,
//! except for [`init`]'s writes, [`read_file`] and the [`pager`]: `main` passes both in and acts on the result.
//! The server's flags are in [`crate::settings`], those of the load generator in
//! [`crate::loadgen::flags`].

mod check;
mod document;
pub mod init;
mod meaning;
pub mod pager;
mod sbom;
mod short_help;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, ValueHint, value_parser};

use crate::cli::init::{NewModel, NewModelKind};
use crate::client::comparison::{self, StepsComparison};
use crate::client::health::HealthCheck;
use crate::client::question::{self, ModelQuestion};
use crate::flags::{self, Variables};
use crate::loadgen;
use crate::settings::deployment::CheckOrder;
use crate::settings::{self, ConfigForm, ReadFile};
use crate::steps;

/// The request of a command line.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Send a request to a model.
    Ask(ModelQuestion),
    /// Measure a server.
    Bench(Box<loadgen::BenchSettings>),
    /// Print which models would be served, and how.
    Check(Box<CheckOrder>),
    /// Compare a model.py with its steps.
    CompareSteps(StepsComparison),
    /// Report the faults of files of flags, a line each.
    Complain(Vec<String>),
    /// Print what this machine offers a server with these settings.
    Doctor(Box<settings::Settings>),
    /// Print a help that may be longer than a screen.
    Help(String),
    /// Ask a server whether it is ready.
    Health(HealthCheck),
    /// Write a model to begin with.
    Init(NewModel),
    /// Make an API key and print it.
    MakeKey(settings::NewKey),
    /// Print this text.
    Print(String),
    /// Run the engine of one model, for the server that started this process. Not for people, and
    /// not in the help.
    RunEngine,
    /// Run a backend of Triton's, for a server.
    RunBackend,
    /// Serve models.
    Serve(Box<settings::Settings>),
    /// Print the effective configuration of the model in the only path, in this form.
    ShowConfig(Box<settings::Settings>, ConfigForm),
    /// Propose a steps.json for the model in the only path, and write it if that is asked for.
    SuggestSteps(Box<settings::Settings>, bool),
    /// Try a load, for a server that waits for it. Not for people, and not in the help.
    TryLoad(Box<settings::Settings>),
}

/// The environment in which a command line is read.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// The variables.
    pub variables: Variables<'a>,
    /// True if a path exists.
    pub has_path: &'a dyn Fn(&OsStr) -> bool,
    /// Reads a file of flags.
    pub read_file: ReadFile<'a>,
}

const PROGRAM: &str = "deuteron";
/// The version from `build.rs`, with the commit and its day if there is one.
const VERSION: &str = concat!("deuteron ", env!("DEUTERON_VERSION"), "\n");

/// Reads a command line, the program's name left out. The error is one line for a person.
pub fn parse<I>(arguments: I, environment: Environment) -> Result<Command, String>
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let words: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    if words == [OsString::from(settings::ENGINE_COMMAND)] {
        return Ok(Command::RunEngine);
    }
    if words == [OsString::from(settings::BACKEND_COMMAND)] {
        return Ok(Command::RunBackend);
    }
    if let Some(flags) = words.strip_prefix(&[OsString::from(settings::TRIAL_COMMAND)]) {
        let words = std::iter::once(OsStr::new("serve")).chain(flags.iter().map(OsString::as_os_str));
        return match parse(words, environment)? {
            Command::Serve(settings) => Ok(Command::TryLoad(settings)),
            other => Ok(other),
        };
    }
    let mut program = program_command();
    if let Some(word) = words.first().filter(|word| program.find_subcommand(word).is_none()) {
        check_command(word, environment)?;
    }
    let name = std::iter::once(OsString::from(PROGRAM));
    match program.try_get_matches_from_mut(name.chain(words.iter().cloned())) {
        Ok(matches) => read(&matches, environment),
        Err(error) => {
            let (command, path) = command_of(&program, &words);
            match error.kind() {
                ErrorKind::DisplayHelp if short_help::is_asked_for(&words) => {
                    Ok(Command::Print(short_help::text(command, &path).unwrap_or_else(|| error.to_string())))
                }
                ErrorKind::DisplayHelp => Ok(Command::Help(error.to_string())),
                ErrorKind::DisplayVersion => Ok(Command::Print(VERSION.to_owned())),
                _ => Err(explain(&error, command)),
            }
        }
    }
}

/// Returns the command that the first words name, and the names of its path.
fn command_of<'a>(program: &'a clap::Command, words: &[OsString]) -> (&'a clap::Command, Vec<&'a str>) {
    let (mut command, mut path) = (program, Vec::new());
    for word in words {
        let Some(next) = command.find_subcommand(word) else { break };
        command = next;
        path.push(next.get_name());
    }
    (command, path)
}

fn read(matches: &ArgMatches, environment: Environment) -> Result<Command, String> {
    let server = |matches| settings::read(matches, environment.variables, environment.read_file).map(Box::new);
    match matches.subcommand() {
        None => server(matches).map(Command::Serve).map_err(|why| match matches.args_present() {
            false if why.starts_with(settings::NO_REPOSITORY) => format!("{why}\n\n{NEXT_STEPS}"),
            _ => why,
        }),
        Some(("serve", matches)) => server(matches).map(Command::Serve),
        Some(("ask", matches)) => {
            let local = settings::local_address(false, environment.variables, environment.read_file);
            ModelQuestion::read(matches, local, environment.variables).map(Command::Ask)
        }
        Some(("bench", matches)) => {
            let local = |protocol| {
                let is_grpc = protocol == loadgen::target::Protocol::Grpc;
                settings::local_address(is_grpc, environment.variables, environment.read_file)
            };
            loadgen::flags::read(matches, &local, environment.variables)
                .map(|settings| Command::Bench(Box::new(settings)))
        }
        Some(("check", matches)) => check::read(matches, environment).map(Box::new).map(Command::Check),
        Some(("config", matches)) => {
            let (name, matches) = matches.subcommand().ok_or("expected `deuteron config show PATH`")?;
            if name == "check" {
                let file = matches.get_one::<PathBuf>(FILE).ok_or("expected `deuteron config check FILE`")?;
                let outcome = settings::check_file(file, environment.read_file);
                return Ok(outcome.map_or_else(Command::Complain, Command::Print));
            }
            let settings = server(matches)?;
            if settings.repositories.len() > 1 {
                return Err("one path at a time, as in `deuteron config show m`".to_owned());
            }
            Ok(Command::ShowConfig(settings, form(matches)?))
        }
        Some(("doctor", matches)) => {
            let settings = settings::read_any(matches, environment.variables, environment.read_file)?;
            Ok(Command::Doctor(Box::new(settings)))
        }
        Some(("health", matches)) => {
            HealthCheck::read(matches, environment.variables, environment.read_file).map(Command::Health)
        }
        Some(("init", matches)) => {
            let (kind, matches) = matches.subcommand().ok_or("expected `deuteron init python NAME`")?;
            init::read(kind, matches).map(Command::Init)
        }
        Some(("key", matches)) => settings::NewKey::read(matches).map(Command::MakeKey),
        Some(("completions", matches)) => Ok(Command::Print(document::completions(matches))),
        Some(("man", matches)) => Ok(Command::Print(document::man(matches))),
        Some(("steps", matches)) => match matches.subcommand() {
            Some(("compare", matches)) => StepsComparison::read(matches).map(Command::CompareSteps),
            Some(("suggest", matches)) => {
                let settings = server(matches)?;
                if settings.repositories.len() > 1 {
                    return Err("one model at a time, as in `deuteron steps suggest models/m`".to_owned());
                }
                Ok(Command::SuggestSteps(settings, matches.get_flag(WRITE)))
            }
            _ => Ok(Command::Print(steps::reference::schema())),
        },
        Some(("sbom", _)) => Ok(Command::Print(sbom::document())),
        Some(_) => Ok(Command::Print(VERSION.to_owned())),
    }
}

/// A first word may be a path. If no such path exists and the word has the form of a command, a command was meant.
fn check_command(word: &OsStr, environment: Environment) -> Result<(), String> {
    let is_word = word.as_encoded_bytes().iter().all(|byte| byte.is_ascii_alphabetic() || *byte == b'-');
    if !is_word || word.as_encoded_bytes().starts_with(b"-") || (environment.has_path)(word) {
        return Ok(());
    }
    let word = word.to_str().unwrap_or_default();
    // Without positional paths, clap reports the similar command.
    let commands = clap::Command::new(PROGRAM).subcommands(commands());
    let refused = commands.try_get_matches_from([PROGRAM, word]).err();
    // `help` is clap's own.
    if refused.as_ref().is_none_or(|error| error.kind() != ErrorKind::InvalidSubcommand) {
        return Ok(());
    }
    let near = match (meaning::of_command(word), refused.as_ref().and_then(flags::nearest_command)) {
        (Some(meant), _) => format!(", did you mean {meant}?"),
        // Words of a letter or two resemble too much.
        (None, _) if word.len() < WORD_LETTERS_MIN => return Ok(()),
        (None, Some(near)) => format!(", did you mean '{near}'?"),
        (None, None) => ";".to_owned(),
    };
    Err(format!(
        "unknown command '{word}'{near} --help lists the commands; there is no path of that name either, which \
         `deuteron serve ./{word}` would serve"
    ))
}

/// Letters of a word that counts as a command without being one of the known words.
const WORD_LETTERS_MIN: usize = 3;

fn explain(error: &clap::Error, command: &clap::Command) -> String {
    if command.get_name() == "bench"
        && error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg)
    {
        if let Some(text) = loadgen::flags::explain_absent(given) {
            return text;
        }
        if !given.starts_with('-') {
            return format!("unexpected '{given}': a model is named with -m, as in `deuteron bench -m {given}`");
        }
    }
    flags::explain(error, command)
}

fn program_command() -> clap::Command {
    clap::Command::new(PROGRAM)
        .version(env!("DEUTERON_VERSION"))
        .propagate_version(true)
        .about("A light inference server")
        .override_usage(
            "deuteron [serve] PATH... [FLAGS]\n       deuteron --model-repository=DIRECTORY [FLAGS]\n       deuteron COMMAND",
        )
        // The first word is a command or a path; behind a path or a flag all words are paths.
        .args_conflicts_with_subcommands(true)
        .args(settings::arguments())
        // As getopt_long of tritonserver and perf_analyzer takes them; commands inherit it.
        .infer_long_args(true)
        .subcommands(commands())
        .after_help(format!("{AFTER_HELP}\n\n{EXIT_CODES}"))
        .args_override_self(true)
        .max_term_width(100)
}

const AFTER_HELP: &str = "Environment:\n  Each flag of the server is also read from a variable: DEUTERON_HTTP_PORT=9000 \
     for --http-port=9000. A flag overrides its variable, a variable the file of --config; an empty variable counts as \
     unset. Where a flag may be given more than once, ';' separates the values of the variable.";

const EXIT_CODES: &str = "Exit codes:\n  0: success; a server has drained after a signal. 1: failure, with the reason on \
     standard error; `deuteron health`: the server is not ready; `deuteron bench`: a request failed; `deuteron check`: a \
     model is not served; `deuteron doctor`: a server with these flags cannot run. 2: a command, a flag, a variable or the file of --config is not valid. 128 and \
     the signal's number: a signal ended a server before its models were loaded, or a second one ended its drain.";

/// The next commands to type, for a user who types only the program's name.
const NEXT_STEPS: &str = "  deuteron serve DIRECTORY     serve a directory of models, or one model.onnx\n  \
     deuteron init python NAME    write a Python model to start from\n  \
     deuteron doctor              what this machine has: engines, Python, GPUs\n  \
     deuteron bench -m NAME       measure a server\n  \
     deuteron --help              all commands and flags";

/// Returns the commands, in the order of the help.
fn commands() -> Vec<clap::Command> {
    let show = command("show", "Print the configuration that a model would be served with")
        .override_usage("deuteron config show PATH [--format=pbtxt|json|toml] [FLAGS]")
        .args(settings::arguments())
        .arg(
            Arg::new("format")
                .long("format")
                .value_name("pbtxt|json|toml|steps")
                .value_parser(["pbtxt", "json", "toml", "steps"])
                .hide_possible_values(true)
                .help("The notation, or the steps of the model as a steps.json [default: pbtxt]"),
        )
        .after_help(AFTER_HELP);
    let check = command("check", "Check a file of flags (--config) and report its errors")
        .override_usage("deuteron config check FILE")
        .arg(file_argument());
    vec![
        command("serve", "Serve models")
            .override_usage("deuteron serve PATH... [FLAGS]")
            .args(settings::arguments())
            .after_help(AFTER_HELP),
        command("ask", "Send a request to a model and print its answer")
            .override_usage("deuteron ask MODEL --input [NAME=]VALUE... [--url=http[s]://HOST:PORT]\n       deuteron ask --list [--url=http[s]://HOST:PORT]")
            .args(question::arguments())
            .args(loadgen::flags::tls::arguments()),
        command(
            "check",
            "List the models of a repository: served or not, why, and the cure; also of a Dockerfile of Triton's",
        )
        .override_usage("deuteron check PATH... [--json] [FLAGS] [-- tritonserver FLAGS]")
        .args(settings::arguments())
        .args(check::arguments())
        .after_help(AFTER_HELP),
        command("config", "Show and check configurations").subcommand_required(true).subcommands([show, check]),
        command("doctor", "Check this machine, the flags, files and models of a server, without starting one")
            .override_usage("deuteron doctor [PATH]... [FLAGS]")
            .args(settings::arguments())
            .after_help(AFTER_HELP),
        command("health", "Ask a server whether it is ready: exits with 0 or 1, for the health checks of containers")
            .override_usage("deuteron health [--url=http[s]://HOST:PORT] [--live]")
            .args(settings::health_arguments())
            .args(loadgen::flags::tls::arguments()),
        command("init", "Create a model").subcommand_required(true).subcommands(NewModelKind::ALL.map(|kind| {
            let (name, about) = kind.command();
            command(name, about)
                .override_usage(format!("deuteron init {name} NAME [--path=DIRECTORY]"))
                .args(init::arguments())
        })),
        command("key", "Make an API key and print it, with its entry for --api-keys-file")
            .override_usage("deuteron key NAME [--class=infer|read|metrics|admin]...")
            .args(settings::key_arguments()),
        command("bench", "Measure any server of the Open Inference Protocol v2")
            .override_usage("deuteron bench -m MODEL [-u HOST:PORT] [-i http|grpc] [FLAGS]")
            .args(loadgen::flags::arguments()),
        command("completions", "Print the completion script of a shell").arg(document::shell_argument()),
        command("man", "Print a page of the manual").arg(document::page_argument()),
        steps_command(),
        command("sbom", "Print the components of the program, as a CycloneDX document"),
        command("version", "Print the version"),
    ]
}

/// The commands on lists of steps.
fn steps_command() -> clap::Command {
    command("steps", "Propose steps for a model.py, compare both, and print the schema of a steps.json")
        .subcommand_required(true)
        .subcommands([
            command("compare", "Send the same requests to a model.py and to the steps.json beside it")
                .override_usage("deuteron steps compare DIRECTORY [REQUEST.json]... [FLAGS]")
                .args(comparison::arguments()),
            command("schema", "Print the JSON schema of a steps.json"),
            command("suggest", "Propose a steps.json that does what a model.py does, or say why there is none")
                .override_usage("deuteron steps suggest DIRECTORY [--write] [FLAGS]")
                .args(settings::arguments())
                .arg(
                    Arg::new(WRITE)
                        .long(WRITE)
                        .action(ArgAction::SetTrue)
                        .help("Write a complete proposal beside the model.py, unless there is a steps.json"),
                )
                .after_help(AFTER_HELP),
        ])
}

/// Reads a file of flags: for [`Environment::read_file`].
///
/// # Errors
/// The error of the file.
pub fn read_file(path: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

/// The flag of `deuteron steps suggest`.
const WRITE: &str = "write";

/// The argument of `deuteron config check`.
const FILE: &str = "FILE";

fn file_argument() -> Arg {
    Arg::new(FILE).required(true).value_parser(value_parser!(PathBuf)).value_hint(ValueHint::FilePath).help("The file")
}

fn command(name: &'static str, about: &'static str) -> clap::Command {
    clap::Command::new(name).about(about).args_override_self(true).max_term_width(100)
}

fn form(matches: &ArgMatches) -> Result<ConfigForm, String> {
    match matches.get_one::<String>("format").map(String::as_str) {
        None => Ok(ConfigForm::default()),
        Some("json") => Ok(ConfigForm::Json),
        Some("pbtxt") => Ok(ConfigForm::Pbtxt),
        Some("steps") => Ok(ConfigForm::Steps),
        Some("toml") => Ok(ConfigForm::Toml),
        Some(form) => Err(format!("--format={form}: expected pbtxt, json, toml or steps")),
    }
}

#[cfg(test)]
mod tests;
