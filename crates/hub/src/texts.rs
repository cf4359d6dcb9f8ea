//! The step `tokenize` of a folder with a network for texts: files, lengths, padding and prompts, as transformers and
//! sentence-transformers read them.

use base::error::Error;
use base::tensor::Datatype;
use wire::placed::PlacedValue;

use crate::config_file::ConfigFile;
use crate::folder::HubFolder;
use crate::graph::HubGraph;
use crate::limits::HUB_TOKENS_MAX;
use crate::sentence::{self, Modules};
use crate::write::StepText;

/// The file of the tokenizer.
const TOKENIZER: &str = "tokenizer.json";
/// Its settings in transformers.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Its special tokens, in folders of early releases.
pub const SPECIAL_TOKENS: &str = "special_tokens_map.json";

/// Networks whose positions start behind the number of the padding token.
const OFFSET_POSITIONS: [&str; 10] = [
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
];

/// The tokens of texts.
#[derive(Debug)]
pub struct TokenizeText {
    step: StepText,
    outputs: Vec<(&'static str, String)>,
    /// The tensor that is 1 for a token and 0 for padding.
    pub mask: String,
    /// The datatype of all tensors that the step writes.
    pub datatype: Datatype,
    /// Most tokens of a row, if the files say.
    pub length_max: Option<usize>,
}

/// Inputs of networks for texts, with the port of the step that makes each.
const INPUTS: [(&str, &str); 6] = [
    ("input_ids", "ids"),
    ("attention_mask", "mask"),
    ("token_type_ids", "type_ids"),
    ("input_type", "type_ids"),
    ("segment_ids", "type_ids"),
    ("position_ids", "positions"),
];

impl TokenizeText {
    /// Derives the step. `inputs` are its ports that read tensors.
    ///
    /// # Errors
    /// `InvalidArgument` if a file is missing or malformed, or the graph has an input that no step makes.
    pub fn new(
        folder: &HubFolder<'_>,
        modules: &Modules,
        config: &ConfigFile,
        graph: &HubGraph,
        inputs: &[(&str, &str)],
    ) -> Result<Self, Error> {
        Self::of_at_most(None, folder, modules, config, graph, inputs)
    }

    /// The same with rows of at most `most` tokens, even if the network takes longer ones.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_at_most(
        most: Option<usize>,
        folder: &HubFolder<'_>,
        modules: &Modules,
        config: &ConfigFile,
        graph: &HubGraph,
        inputs: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let tokenizer = modules.place(TOKENIZER);
        if !folder.has(&tokenizer) {
            return Err(Error::invalid(format!(
                "{tokenizer}: the folder has no such file, which the tokens of texts need: \
                 `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` of transformers writes it"
            )));
        }
        let (outputs, mask, datatype) = connected(graph)?;
        check_case(folder, modules)?;
        let mut step = StepText::new("tokenize").ports("inputs", inputs).with("file", &tokenizer);
        let settings = ConfigFile::read(folder, &modules.place(TOKENIZER_CONFIG))?;
        if settings.is_some() {
            step = step.with("config", &modules.place(TOKENIZER_CONFIG));
        }
        let length_max = max_length(folder, modules, config, settings.as_ref())?.into_iter().chain(most).min();
        if let Some(length) = length_max {
            step = step.raw("max_length", &length.to_string());
        }
        let first_position = first_position(config)?;
        if first_position > 0 && outputs.iter().any(|(port, _)| *port == "positions") {
            step = step.raw("first_position", &first_position.to_string());
        }
        match padding(folder, modules, config, settings.as_ref())? {
            Pad::OfFiles => {}
            Pad::Token(token) => step = step.with("pad_token", &token),
            Pad::Id(id) => step = step.raw("pad_id", &id.to_string()),
        }
        if datatype == Datatype::Int32 {
            step = step.with("datatype", "INT32");
        }
        Ok(Self { step, outputs, mask, datatype, length_max })
    }

    /// Adds a parameter that is a string.
    pub fn with(self, name: &str, value: &str) -> Self {
        Self { step: self.step.with(name, value), ..self }
    }

    /// Adds a parameter that is a JSON text.
    pub fn raw(self, name: &str, value: &str) -> Self {
        Self { step: self.step.raw(name, value), ..self }
    }

    /// Has the step write another tensor.
    pub fn also(mut self, port: &'static str, name: &str) -> Self {
        self.outputs.push((port, name.to_owned()));
        self
    }

    /// The step.
    pub fn into_step(self) -> StepText {
        let outputs: Vec<_> = self.outputs.iter().map(|(port, name)| (*port, name.as_str())).collect();
        self.step.ports("outputs", &outputs)
    }
}

/// Ports of the step with the tensors that they write, the name of the mask, and the datatype.
type Connected = (Vec<(&'static str, String)>, String, Datatype);

fn connected(graph: &HubGraph) -> Result<Connected, Error> {
    let mut outputs: Vec<(&'static str, String)> = Vec::new();
    let mut datatype = None;
    for input in &graph.inputs {
        let name = &input.name;
        let known = INPUTS.iter().find(|(known, _)| known == name);
        let Some((_, port)) = known.filter(|(_, port)| outputs.iter().all(|(have, _)| have != port)) else {
            let names: Vec<_> = INPUTS.iter().map(|(name, _)| *name).collect();
            return Err(graph.wrong(&format!(
                "no step makes the input '{name}'; it has {}, and known are {}",
                HubGraph::listed(&graph.inputs),
                names.join(", ")
            )));
        };
        let is_other = *datatype.get_or_insert(input.datatype) != input.datatype;
        if is_other || !matches!(input.datatype, Datatype::Int32 | Datatype::Int64) {
            return Err(graph.wrong(&format!(
                "its inputs must all be INT64 or all INT32, but '{name}' is {}",
                input.datatype.name()
            )));
        }
        outputs.push((*port, name.clone()));
    }
    if outputs.iter().all(|(port, _)| *port != "ids") {
        let listed = HubGraph::listed(&graph.inputs);
        return Err(graph.wrong(&format!("it has no input 'input_ids': it has {listed}")));
    }
    let mask = outputs.iter().find(|(port, _)| *port == "mask").map(|(_, name)| name.clone());
    let mask = mask.unwrap_or_else(|| {
        outputs.push(("mask", "attention_mask".to_owned()));
        "attention_mask".to_owned()
    });
    Ok((outputs, mask, datatype.unwrap_or(Datatype::Int64)))
}

/// Refuses a module that writes texts in small letters before a tokenizer that does not.
fn check_case(folder: &HubFolder<'_>, modules: &Modules) -> Result<(), Error> {
    let Some(module) = sentence::settings(folder, modules)?.filter(|file| file.value("do_lower_case").is_some()) else {
        return Ok(());
    };
    let settings = ConfigFile::read(folder, &modules.place(TOKENIZER_CONFIG))?;
    let is_small = settings.map_or(Ok(false), |settings| settings.flag("do_lower_case"))?;
    if module.flag("do_lower_case")? && !is_small {
        let why = format!("is true, but that of {TOKENIZER_CONFIG} is not: small letters are the tokenizer's work");
        return Err(module.unsupported("do_lower_case", &why));
    }
    Ok(())
}

/// Most tokens of a text: the least of what the files say.
fn max_length(
    folder: &HubFolder<'_>,
    modules: &Modules,
    config: &ConfigFile,
    settings: Option<&ConfigFile>,
) -> Result<Option<usize>, Error> {
    let stated = sentence::length(folder, modules)?;
    let of_tokenizer = match settings.and_then(|settings| Some((settings, settings.value("model_max_length")?))) {
        None => None,
        Some((settings, PlacedValue::Number(number))) => {
            let value: f64 = number.parse().unwrap_or(f64::NAN);
            // transformers writes a huge number for "no limit".
            let is_limit = value <= HUB_TOKENS_MAX as f64;
            if is_limit { settings.count("model_max_length", HUB_TOKENS_MAX)? } else { None }
        }
        Some((settings, _)) => return Err(settings.wrong("model_max_length", "must be a number")),
    };
    let positions = match config.count("max_position_embeddings", usize::MAX)? {
        Some(positions) => Some(positions),
        None => config.count("n_positions", usize::MAX)?,
    };
    let offset = first_position(config)?;
    let positions = match positions {
        Some(positions) if positions <= offset => {
            let why = format!("is {positions}, which leaves no position for a token");
            return Err(config.wrong("max_position_embeddings", &why));
        }
        Some(positions) => Some(positions - offset).filter(|positions| *positions <= HUB_TOKENS_MAX),
        None => None,
    };
    let of_documents = if modules.is_late { Some(sentence::document_length(folder)?) } else { None };
    let length = [stated, of_tokenizer, positions, of_documents].into_iter().flatten().min();
    match length {
        Some(0) => Err(Error::invalid(format!("{TOKENIZER_CONFIG}: the most tokens of a text are 0"))),
        length => Ok(length),
    }
}

/// The position of the first token.
fn first_position(config: &ConfigFile) -> Result<usize, Error> {
    let is_offset = config.text("model_type")?.is_some_and(|kind| OFFSET_POSITIONS.contains(&kind));
    Ok(if is_offset { config.count("pad_token_id", HUB_TOKENS_MAX)?.unwrap_or(1) + 1 } else { 0 })
}

/// The token that pads.
enum Pad {
    /// The step finds it in the tokenizer's files.
    OfFiles,
    Token(String),
    Id(usize),
}

fn padding(
    folder: &HubFolder<'_>,
    modules: &Modules,
    config: &ConfigFile,
    settings: Option<&ConfigFile>,
) -> Result<Pad, Error> {
    if settings.is_some_and(|settings| settings.value("pad_token").is_some()) {
        return Ok(Pad::OfFiles);
    }
    if let Some(special) = ConfigFile::read(folder, &modules.place(SPECIAL_TOKENS))? {
        let content = match special.value("pad_token") {
            None => None,
            Some(PlacedValue::String(text)) => Some(text.clone()),
            Some(PlacedValue::Table(members)) => match members.iter().find(|member| member.name == "content") {
                Some(member) if let PlacedValue::String(text) = &member.value.value => Some(text.clone()),
                _ => return Err(special.wrong("pad_token", "must have a string 'content'")),
            },
            Some(_) => return Err(special.wrong("pad_token", "must be a string, or an object with 'content'")),
        };
        if let Some(token) = content {
            return Ok(Pad::Token(token));
        }
    }
    let id = config.count("pad_token_id", u32::MAX as usize)?;
    Ok(id.map_or(Pad::OfFiles, Pad::Id))
}
