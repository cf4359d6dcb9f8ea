//! `deuteron ask`: one request to a model, from the command line, or the names of the models. Pure: reads the arguments.

use clap::{Arg, ArgAction, ArgMatches, ValueHint};

use crate::loadgen::flags::tls::{self, Variables};
use crate::loadgen::settings::TlsFiles;
use crate::settings::AskedServer;

/// A question to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelQuestion {
    /// The server.
    pub server: AskedServer,
    /// The files of its TLS.
    pub tls: TlsFiles,
    /// The model; `None` if the names of the models are asked for.
    pub model: Option<String>,
    /// The inputs, in the order of the arguments.
    pub inputs: Vec<GivenInput>,
    /// Header fields of the request, each `NAME: VALUE`.
    pub headers: Vec<String>,
}

/// An input of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenInput {
    /// Its name; `None` if it is for the model's only input.
    pub name: Option<String>,
    /// A file, a JSON value or a text.
    pub value: String,
}

const MODEL: &str = "MODEL";
const LIST: &str = "list";

/// Returns the arguments of the command, without those of TLS.
pub fn arguments() -> [Arg; 5] {
    [
        Arg::new(MODEL).required_unless_present(LIST).help("The model's name"),
        Arg::new(LIST)
            .long(LIST)
            .action(ArgAction::SetTrue)
            .conflicts_with_all([MODEL, "input"])
            .help("Print the names of the models that serve, a line each, instead of a request to one"),
        Arg::new("input")
            .long("input")
            .short('i')
            .value_name("[NAME=]VALUE")
            .action(ArgAction::Append)
            .value_hint(ValueHint::FilePath)
            .help("An input: the path of a file (an image, a text), a JSON value or a text; may be given more than once"),
        Arg::new("header")
            .long("header")
            .short('H')
            .value_name("NAME: VALUE")
            .action(ArgAction::Append)
            .help("A header field, such as 'Authorization: Bearer KEY'; may be given more than once"),
        Arg::new("url").long("url").short('u').value_name("URL").help(
            "Where the server is; https:// for TLS [default: http://127.0.0.1:8000, or the port without TLS that the variables \
             and the file of DEUTERON_CONFIG say]",
        ),
    ]
}

impl ModelQuestion {
    /// Reads the arguments. `local` is the server that was started in the same surroundings, if that is not the usual one. The
    /// error is one line for a person.
    pub fn read(matches: &ArgMatches, local: Option<String>, variables: Variables<'_>) -> Result<Self, String> {
        let server = match matches.get_one::<String>("url") {
            Some(url) => AskedServer::read(url)?,
            None => AskedServer { authority: local.unwrap_or_else(|| "127.0.0.1:8000".to_owned()), has_tls: false },
        };
        let tls = tls::read(matches, server.has_tls, variables)?;
        let model = matches.get_one::<String>(MODEL).cloned();
        let inputs = model.as_ref().map_or_else(|| Ok(Vec::new()), |model| read_inputs(matches, model))?;
        let headers: Vec<String> = matches.get_many::<String>("header").unwrap_or_default().cloned().collect();
        let is_field = |text: &String| text.contains(':') && !text.bytes().any(|byte| byte.is_ascii_control());
        if let Some(wrong) = headers.iter().find(|text| !is_field(text)) {
            return Err(format!("--header={wrong}: expected NAME: VALUE"));
        }
        Ok(Self { server, tls, model, inputs, headers })
    }
}

/// The inputs of a request to a model.
fn read_inputs(matches: &ArgMatches, model: &str) -> Result<Vec<GivenInput>, String> {
    if model.is_empty() || !model.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/') {
        return Err(format!("'{model}' is no name of a model"));
    }
    let values = matches.get_many::<String>("input").unwrap_or_default();
    let inputs: Vec<_> = values.map(|text| GivenInput::of(text)).collect();
    if inputs.is_empty() {
        return Err(format!(
            "an input is missing, as in `deuteron ask {model} --input 'a text'` or `--input picture.jpg`"
        ));
    }
    if inputs.len() > 1 && inputs.iter().any(|input| input.name.is_none()) {
        return Err("several inputs need their names, as in --input NAME=VALUE".to_owned());
    }
    Ok(inputs)
}

impl GivenInput {
    /// Reads `NAME=VALUE`, or a value alone: a name is a word, so that most texts and paths need no quotes.
    fn of(text: &str) -> Self {
        let is_word = |name: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
            name.bytes().all(is_part) && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
        };
        match text.split_once('=') {
            Some((name, value)) if is_word(name) => Self { name: Some(name.to_owned()), value: value.to_owned() },
            _ => Self { name: None, value: text.to_owned() },
        }
    }
}
