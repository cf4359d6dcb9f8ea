//! Late-interaction embedders (ColBERT) as pylate saves them: a vector of each token.

use base::error::Error;
use base::tensor::Datatype;
use wire::placed::PlacedValue;

use crate::config_file::ConfigFile;
use crate::embed::{dense_layer, hidden_size};
use crate::folder::HubFolder;
use crate::graph::HubGraph;
use crate::kind::HubTask;
use crate::limits::{HUB_SKIPPED_MAX, HUB_TOKENS_MAX};
use crate::sentence::{ModuleKind, Modules, document_length};
use crate::texts::{SPECIAL_TOKENS, TOKENIZER_CONFIG, TokenizeText};
use crate::write::{self, IoText, StepText, StepsText};
use crate::{Derived, SETTINGS};

/// Tokens of a query without a setting, as in pylate.
const QUERY_LENGTH: usize = 32;

/// Signs whose tokens have no vector without a setting: Python's `string.punctuation`.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// Derives the model.
///
/// # Errors
/// As [`crate::derive`].
pub fn derive(
    folder: &HubFolder<'_>,
    modules: &Modules,
    config: &ConfigFile,
    graph: &HubGraph,
) -> Result<Derived, Error> {
    let form = LateForm::read(folder, modules)?;
    let states = graph.output(&["last_hidden_state", "token_embeddings"], 3, |_| true)?;
    let mut size = HubGraph::last_dimension(states).or(hidden_size(config)?);
    let ports = [("text", "text"), ("prompt_name", "prompt_name")];
    let tokens = form.add(TokenizeText::new(folder, modules, config, graph, &ports)?);
    let tokens = tokens.also("keep", "keep").also("length", "token_count");
    let datatype = if tokens.datatype == Datatype::Int32 { "INT32" } else { "INT64" };
    let mut steps = StepsText::default();
    steps.push(tokens.into_step());
    steps.push_model();
    let mut vector = states.name.clone();
    for (index, module) in modules.behind.iter().enumerate() {
        let output = format!("vector_{index}");
        match module.kind {
            ModuleKind::Dense => {
                let (step, out_size) = dense_layer(folder, module, size)?;
                steps.push(step.between(&vector, &output));
                size = Some(out_size);
            }
            // The vectors are normalised at the end in any case.
            ModuleKind::Normalize => continue,
            _ => {
                return Err(Error::unsupported(
                    "modules.json: only Dense and Normalize may be in a pipeline of pylate",
                ));
            }
        }
        vector = output;
    }
    steps.push(StepText::new("normalize").between(&vector, "normal"));
    let inputs = [("states", "normal"), ("keep", "keep")];
    let outputs = [("vectors", "vectors"), ("counts", "vector_count")];
    steps.push(StepText::new("token_vectors").ports("inputs", &inputs).ports("outputs", &outputs));
    let inputs = [IoText::scalar("text", "STRING"), IoText::scalar("prompt_name", "STRING").optional()];
    let outputs = [
        IoText::table("vectors", "FP32", size),
        IoText::scalar("vector_count", "INT64"),
        IoText::scalar("token_count", datatype),
    ];
    let config = write::config(&graph.file, &inputs, &outputs);
    Ok(Derived { task: HubTask::LateEmbed, config, steps: steps.into_text() })
}

/// The forms of queries and documents.
struct LateForm {
    query_prefix: String,
    document_prefix: String,
    query_length: usize,
    /// The token that fills queries up; `None` if they are not.
    expansion: Option<String>,
    is_seen: bool,
    skipped: Vec<String>,
}

impl LateForm {
    fn read(folder: &HubFolder<'_>, modules: &Modules) -> Result<Self, Error> {
        let punctuation = || PUNCTUATION.chars().map(String::from).collect();
        let Some(settings) = ConfigFile::read(folder, SETTINGS)? else {
            return Err(Error::invalid(format!(
                "{SETTINGS}: the folder has no such file, which a pipeline of pylate needs"
            )));
        };
        let prefix = |name: &str, default: &str| settings.text(name).map(|text| text.unwrap_or(default).to_owned());
        let skipped = match settings.value("skiplist_words") {
            None => punctuation(),
            Some(PlacedValue::List(list)) if list.len() <= HUB_SKIPPED_MAX => {
                let word = |value: &PlacedValue| match value {
                    PlacedValue::String(text) => Ok(text.clone()),
                    _ => Err(settings.wrong("skiplist_words", "must be a list of strings")),
                };
                list.iter().map(|value| word(&value.value)).collect::<Result<_, _>>()?
            }
            Some(_) => {
                let why = format!("must be a list of at most {HUB_SKIPPED_MAX} strings");
                return Err(settings.wrong("skiplist_words", &why));
            }
        };
        let query_length = settings.count("query_length", HUB_TOKENS_MAX)?.unwrap_or(QUERY_LENGTH);
        if query_length == 0 {
            return Err(settings.wrong("query_length", "must be at least 1"));
        }
        let document_length = document_length(folder)?;
        if query_length > document_length {
            let why = format!("is {query_length}, more than the {document_length} tokens of a document");
            return Err(settings.unsupported("query_length", &why));
        }
        let expands = settings.value("do_query_expansion").is_none() || settings.flag("do_query_expansion")?;
        Ok(Self {
            query_prefix: prefix("query_prefix", "[Q] ")?,
            document_prefix: prefix("document_prefix", "[D] ")?,
            query_length,
            expansion: if expands { Some(mask_token(folder, modules)?) } else { None },
            is_seen: settings.flag("attend_to_expansion_tokens")?,
            skipped,
        })
    }

    fn add(&self, tokens: TokenizeText) -> TokenizeText {
        let (query, document) = (write::quoted(&self.query_prefix), write::quoted(&self.document_prefix));
        let tokens = tokens.with("prefix", &self.document_prefix);
        let tokens = tokens.raw("prompts", &format!("{{\"query\": {query}, \"document\": {document}}}"));
        let skipped: Vec<_> = self.skipped.iter().map(|word| write::quoted(word)).collect();
        let tokens = match skipped.is_empty() {
            true => tokens,
            false => tokens.raw("skip_tokens", &format!("[{}]", skipped.join(", "))),
        };
        let filler = self.expansion.as_ref().map_or_else(String::new, |token| {
            format!(", \"token\": {}, \"is_seen\": {}", write::quoted(token), self.is_seen)
        });
        let length = self.query_length;
        tokens.raw("expansion", &format!("{{\"prompt\": \"query\", \"length\": {length}{filler}}}"))
    }
}

/// The token that pylate fills queries up with.
fn mask_token(folder: &HubFolder<'_>, modules: &Modules) -> Result<String, Error> {
    for name in [TOKENIZER_CONFIG, SPECIAL_TOKENS] {
        let Some(file) = ConfigFile::read(folder, &modules.place(name))? else { continue };
        match file.value("mask_token") {
            None => {}
            Some(PlacedValue::String(text)) => return Ok(text.clone()),
            Some(PlacedValue::Table(members)) => match members.iter().find(|member| member.name == "content") {
                Some(member) if let PlacedValue::String(text) = &member.value.value => return Ok(text.clone()),
                _ => return Err(file.wrong("mask_token", "must have a string 'content'")),
            },
            Some(_) => return Err(file.wrong("mask_token", "must be a string, or an object with 'content'")),
        }
    }
    Err(Error::invalid(format!("{TOKENIZER_CONFIG}: 'mask_token' is missing, which fills the queries of pylate up")))
}
