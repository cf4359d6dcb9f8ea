//! The arguments of `deuteron steps compare`. Pure.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, ValueHint, value_parser};

/// The comparison of a `model.py` with the `steps.json` beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepsComparison {
    /// The directory of the model, which has its `config.pbtxt`.
    pub directory: PathBuf,
    /// Files with the bodies of infer requests, in JSON, and trace files; empty to generate requests.
    pub requests: Vec<PathBuf>,
    /// Files that are the only input of a request, such as images.
    pub inputs: Vec<PathBuf>,
    /// The number of generated requests.
    pub count: u64,
    /// The seed of their contents.
    pub seed: u64,
    /// The greatest difference of two floats that are equal, relative to the greater one, and absolute below 1.
    pub tolerance: f64,
}

const DIRECTORY: &str = "DIRECTORY";
const REQUESTS: &str = "REQUEST";

/// Returns the arguments of the command.
pub fn arguments() -> [Arg; 6] {
    let number = |name: &'static str, value: &'static str| Arg::new(name).long(name).value_name(value);
    [
        Arg::new(DIRECTORY)
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::DirPath)
            .help("The model's directory"),
        Arg::new(REQUESTS)
            .action(ArgAction::Append)
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::FilePath)
            .help("Files with bodies of infer requests, as curl sends them, or traces with tensors"),
        Arg::new("input")
            .long("input")
            .short('i')
            .value_name("FILE")
            .action(ArgAction::Append)
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::FilePath)
            .help("A file that is the model's only input, such as an image; may be given more than once"),
        number("count", "N").value_parser(value_parser!(u64).range(1..=1_000_000)).default_value("100").help(
            "Requests to generate from the model's inputs, without files: numbers, texts of all kinds of characters, pictures \
             for an image step",
        ),
        number("seed", "N").value_parser(value_parser!(u64)).default_value("1").help("Seed of their contents"),
        number("tolerance", "X")
            .value_parser(value_parser!(f64))
            .default_value("1e-6")
            .help("Difference of floats that counts as equal: relative, and absolute below 1"),
    ]
}

impl StepsComparison {
    /// Reads the arguments. The error is one line for a person.
    pub fn read(matches: &ArgMatches) -> Result<Self, String> {
        let paths = |name: &str| -> Vec<PathBuf> { matches.get_many(name).unwrap_or_default().cloned().collect() };
        let tolerance = matches.get_one::<f64>("tolerance").copied().unwrap_or_default();
        if !(0.0..1.0).contains(&tolerance) {
            return Err(format!("--tolerance={tolerance}: expected a number from 0 to below 1"));
        }
        Ok(Self {
            directory: matches.get_one::<PathBuf>(DIRECTORY).cloned().unwrap_or_default(),
            requests: paths(REQUESTS),
            inputs: paths("input"),
            count: matches.get_one("count").copied().unwrap_or_default(),
            seed: matches.get_one("seed").copied().unwrap_or_default(),
            tolerance,
        })
    }
}
