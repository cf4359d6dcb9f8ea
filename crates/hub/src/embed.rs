//! Embedders of texts: dense by the pipeline of sentence-transformers, and sparse (SPLADE).

use base::error::Error;
use base::tensor::Datatype;
use wire::placed::PlacedValue;

use crate::config_file::ConfigFile;
use crate::folder::HubFolder;
use crate::graph::{GraphTensor, HubGraph};
use crate::kind::HubTask;
use crate::limits::{HUB_DIMENSIONS_MAX, HUB_PROMPTS_MAX};
use crate::sentence::{Module, ModuleKind, Modules, in_directory};
use crate::texts::TokenizeText;
use crate::write::{self, IoText, StepText, StepsText};
use crate::{Derived, SETTINGS};

/// Derives the model.
///
/// # Errors
/// As [`crate::derive`].
pub fn derive(
    folder: &HubFolder<'_>,
    modules: &Modules,
    config: &ConfigFile,
    graph: &HubGraph,
    task: HubTask,
) -> Result<Derived, Error> {
    let prompts = HubPrompts::read(folder)?;
    let mut inputs = vec![IoText::scalar("text", "STRING")];
    let mut ports = vec![("text", "text")];
    if !prompts.members.is_empty() {
        inputs.push(IoText::scalar("prompt_name", "STRING").optional());
        ports.push(("prompt_name", "prompt_name"));
    }
    inputs.push(IoText::scalar("truncation", "STRING").optional());
    inputs.push(IoText::list("token_ids", "INT64", None).optional());
    ports.extend([("truncation", "truncation"), ("given_ids", "token_ids")]);
    let tokens = prompts.add(TokenizeText::new(folder, modules, config, graph, &ports)?);
    let tokens = tokens.also("length", "token_count");
    let count = IoText::scalar("token_count", if tokens.datatype == Datatype::Int32 { "INT32" } else { "INT64" });
    let mask = tokens.mask.clone();
    let mut steps = StepsText::default();
    steps.push(tokens.into_step());
    steps.push_model();
    let mut on_request = Vec::new();
    let mut outputs = if task == HubTask::SparseEmbed {
        sparse(folder, modules, config, graph, &mask, &mut steps)?
    } else {
        let dense = dense(folder, modules, config, graph, (&mask, prompts.has_text()), &mut steps)?;
        let mut outputs = vec![IoText::list("embedding", "FP32", dense.size)];
        if dense.is_normalised {
            outputs.push(IoText::list(RAW_EMBEDDING, "FP32", dense.size));
            on_request.push(RAW_EMBEDDING);
        }
        outputs
    };
    outputs.push(count);
    if task == HubTask::Embed
        && let Some((states, size)) = token_states(config, graph)?
    {
        let cast = |from: &str, to: &str, datatype| StepText::new("cast").between(from, to).with("datatype", datatype);
        steps.push(cast(&states, TOKEN_VECTORS, "FP32"));
        steps.push(cast(&mask, TOKEN_MASK, "INT64"));
        outputs.push(IoText::table(TOKEN_VECTORS, "FP32", size));
        outputs.push(IoText::list(TOKEN_MASK, "INT64", None));
        on_request.extend([TOKEN_VECTORS, TOKEN_MASK]);
    }
    let config = write::config(&graph.file, &inputs, &outputs) + &write::on_request(&on_request);
    Ok(Derived { task, config, steps: steps.into_text() })
}

/// The vector before it is normalised.
const RAW_EMBEDDING: &str = "raw_embedding";
/// The vectors of all tokens of a text.
const TOKEN_VECTORS: &str = "token_embedding";
/// The tokens of a text that are not padding.
const TOKEN_MASK: &str = "token_mask";

/// The output with the vectors of tokens, and the size of one. Only of FP32: another datatype would be converted for requests
/// that do not ask for it.
fn token_states(config: &ConfigFile, graph: &HubGraph) -> Result<Option<(String, Option<usize>)>, Error> {
    let hidden = hidden_size(config)?;
    let states = graph.output(&STATES, 3, |output| is_state(output, hidden)).ok();
    let states = states.filter(|states| states.datatype == Datatype::Fp32);
    Ok(states.map(|states| (states.name.clone(), HubGraph::last_dimension(states).or(hidden))))
}

/// The usual names of that output.
const STATES: [&str; 2] = ["last_hidden_state", "token_embeddings"];

fn is_state(output: &GraphTensor, hidden: Option<usize>) -> bool {
    let size = HubGraph::last_dimension(output);
    size.is_none() || hidden.is_none() || size == hidden
}

/// The texts that go before a text, by name.
#[derive(Debug, Default)]
struct HubPrompts {
    members: Vec<(String, String)>,
    /// The text of the default prompt.
    default: Option<String>,
}

impl HubPrompts {
    fn read(folder: &HubFolder<'_>) -> Result<Self, Error> {
        let Some(settings) = ConfigFile::read(folder, SETTINGS)? else { return Ok(Self::default()) };
        let given = settings.table("prompts")?.unwrap_or_default();
        if given.len() > HUB_PROMPTS_MAX {
            let why = format!("has {} prompts, more than the {HUB_PROMPTS_MAX} that may be", given.len());
            return Err(settings.wrong("prompts", &why));
        }
        let mut members: Vec<(String, String)> = Vec::new();
        for member in given {
            let PlacedValue::String(text) = &member.value.value else {
                return Err(settings.wrong("prompts", &format!("must have a string for \"{}\"", member.name)));
            };
            members.retain(|(name, _)| *name != member.name);
            members.push((member.name.clone(), text.clone()));
        }
        let default = match settings.text("default_prompt_name")? {
            None => None,
            Some(name) => match members.iter().find(|(have, _)| have == name) {
                Some((_, text)) => Some(text.clone()).filter(|text| !text.is_empty()),
                None => {
                    return Err(settings.wrong("default_prompt_name", &format!("is \"{name}\", which 'prompts' lacks")));
                }
            },
        };
        // Releases from 5 write two empty prompts to every folder.
        let has_text = members.iter().any(|(_, text)| !text.is_empty());
        Ok(Self { members: if has_text { members } else { Vec::new() }, default })
    }

    fn has_text(&self) -> bool {
        !self.members.is_empty()
    }

    fn add(&self, tokens: TokenizeText) -> TokenizeText {
        let tokens = self.default.iter().fold(tokens, |tokens, text| tokens.with("prefix", text));
        if self.members.is_empty() {
            return tokens;
        }
        let members: Vec<_> = self
            .members
            .iter()
            .map(|(name, text)| format!("{}: {}", write::quoted(name), write::quoted(text)))
            .collect();
        tokens.raw("prompts", &format!("{{{}}}", members.join(", ")))
    }
}

/// The modes of pooling, in the order in which sentence-transformers joins those of early releases: the member of early releases, the name of
/// later ones, and the mode of the step `pool`.
const MODES: [(&str, &str, &str); 6] = [
    ("pooling_mode_cls_token", "cls", "cls"),
    ("pooling_mode_max_tokens", "max", "max"),
    ("pooling_mode_mean_tokens", "mean", "mean"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", "mean_sqrt_len"),
    ("pooling_mode_weightedmean_tokens", "weightedmean", "weighted_mean"),
    ("pooling_mode_lasttoken", "lasttoken", "last"),
];

/// The vector that the steps of an embedder end with.
struct DenseVector {
    /// Its size; `None` if neither the configuration nor the graph states it.
    size: Option<usize>,
    /// True if it has the length 1, and [`RAW_EMBEDDING`] is the one before.
    is_normalised: bool,
}

/// Writes the steps to one vector.
fn dense(
    folder: &HubFolder<'_>,
    modules: &Modules,
    config: &ConfigFile,
    graph: &HubGraph,
    (mask, has_prompt): (&str, bool),
    steps: &mut StepsText,
) -> Result<DenseVector, Error> {
    let hidden = hidden_size(config)?;
    let states = graph.output(&STATES, 3, |output| is_state(output, hidden));
    let states = match (states, graph.output(&["sentence_embedding"], 2, |_| false)) {
        (Ok(states), _) => states,
        // A graph that has the whole pipeline in it.
        (Err(_), Ok(vector)) => {
            steps.push(StepText::new("cast").between(&vector.name, "embedding").with("datatype", "FP32"));
            return Ok(DenseVector { size: HubGraph::last_dimension(vector), is_normalised: false });
        }
        (Err(error), Err(_)) => return Err(error),
    };
    let mut size = HubGraph::last_dimension(states).or(hidden);
    let (modes, rest) = pooling(folder, modules, has_prompt)?;
    let is_normalised = rest.last().is_some_and(|module| module.kind == ModuleKind::Normalize);
    let name_behind = |count: usize| match rest.len() - count {
        0 => "embedding".to_owned(),
        1 if is_normalised => RAW_EMBEDDING.to_owned(),
        _ => format!("vector_{count}"),
    };
    let mut vector = name_behind(0);
    if let [mode] = modes.as_slice() {
        steps.push(pool(&states.name, mask, &vector, mode));
    } else {
        let parts: Vec<String> = modes.iter().map(|mode| format!("pooled_{mode}")).collect();
        for (mode, part) in modes.iter().zip(&parts) {
            steps.push(pool(&states.name, mask, part, mode));
        }
        let parts: Vec<_> = parts.iter().map(|part| write::quoted(part)).collect();
        let inputs = format!("{{\"tensors\": [{}]}}", parts.join(", "));
        steps.push(StepText::new("concat").raw("inputs", &inputs).with("output", &vector));
        size = size.map(|size| size.saturating_mul(modes.len()));
    }
    for (index, module) in rest.iter().enumerate() {
        let output = name_behind(index + 1);
        if module.kind == ModuleKind::Normalize {
            steps.push(StepText::new("normalize").between(&vector, &output));
        } else {
            let (step, out_size) = dense_layer(folder, module, size)?;
            steps.push(step.between(&vector, &output));
            size = Some(out_size);
        }
        vector = output;
    }
    Ok(DenseVector { size, is_normalised })
}

fn pool(states: &str, mask: &str, vector: &str, mode: &str) -> StepText {
    let inputs = [("states", states), ("mask", mask)];
    StepText::new("pool").ports("inputs", &inputs).with("output", vector).with("mode", mode)
}

/// The modes of pooling, and the modules behind it.
fn pooling<'m>(
    folder: &HubFolder<'_>,
    modules: &'m Modules,
    has_prompt: bool,
) -> Result<(Vec<&'static str>, &'m [Module]), Error> {
    let Some((first, rest)) = modules.behind.split_first() else {
        // As sentence-transformers does with the folder of a plain network.
        return Ok((vec!["mean"], &[]));
    };
    let wrong = |why: &str| Err(Error::unsupported(format!("modules.json: {why}")));
    if first.kind != ModuleKind::Pooling {
        return wrong("the module behind the network must be Pooling: vectors of tokens are not served");
    }
    if rest.iter().any(|module| !matches!(module.kind, ModuleKind::Dense | ModuleKind::Normalize)) {
        return wrong("there may be one module Pooling, and behind it Dense and Normalize");
    }
    let config = ConfigFile::required(folder, &in_directory(&first.path, crate::CONFIG))?;
    if has_prompt && config.value("include_prompt").is_some() && !config.flag("include_prompt")? {
        return Err(
            config.unsupported("include_prompt", "is false: pooling without the tokens of a prompt is not served")
        );
    }
    let mut modes = named_modes(&config)?;
    if modes.is_empty() {
        for (member, _, mode) in MODES {
            if config.flag(member)? {
                modes.push(mode);
            }
        }
    }
    if modes.is_empty() {
        // The default of the class.
        modes.push("mean");
    }
    Ok((modes, rest))
}

/// The modes in `pooling_mode`, a name or a list of names; empty if it is absent.
fn named_modes(config: &ConfigFile) -> Result<Vec<&'static str>, Error> {
    const MEMBER: &str = "pooling_mode";
    let known = || MODES.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ");
    let mode = |value: &PlacedValue| {
        let found = match value {
            PlacedValue::String(name) => MODES.iter().find(|(_, have, _)| have == name),
            _ => None,
        };
        found
            .map(|(.., mode)| *mode)
            .ok_or_else(|| config.wrong(MEMBER, &format!("has an unknown mode: known are {}", known())))
    };
    match config.value(MEMBER) {
        None => Ok(Vec::new()),
        Some(PlacedValue::List(list)) if list.len() <= MODES.len() => {
            list.iter().map(|value| mode(&value.value)).collect()
        }
        Some(value) => Ok(vec![mode(value)?]),
    }
}

/// The step of a Dense module, and the size of its output.
///
/// # Errors
/// As [`crate::derive`].
pub fn dense_layer(folder: &HubFolder<'_>, module: &Module, size: Option<usize>) -> Result<(StepText, usize), Error> {
    let config = ConfigFile::required(folder, &in_directory(&module.path, crate::CONFIG))?;
    let (Some(input), Some(output)) =
        (config.count("in_features", HUB_DIMENSIONS_MAX)?, config.count("out_features", HUB_DIMENSIONS_MAX)?)
    else {
        return Err(config.wrong("in_features", "or 'out_features' is missing"));
    };
    if size.is_some_and(|size| size != input) {
        let size = size.unwrap_or_default();
        return Err(config.wrong("in_features", &format!("is {input}, but the vector before it has {size} numbers")));
    }
    if config.flag("use_residual")? {
        return Err(config.unsupported("use_residual", "is true, which is not served"));
    }
    if let Some(name) = config.text("module_input_name")?.filter(|name| *name != "sentence_embedding") {
        return Err(config.unsupported("module_input_name", &format!("is \"{name}\": known is sentence_embedding")));
    }
    let class = config.text("activation_function")?.unwrap_or("torch.nn.modules.activation.Tanh");
    let activation = match class.rsplit('.').next().unwrap_or_default() {
        "Identity" => "none",
        "Tanh" => "tanh",
        "ReLU" => "relu",
        "Sigmoid" => "sigmoid",
        _ => {
            let why = format!("is \"{class}\": known are Identity, Tanh, ReLU and Sigmoid of torch");
            return Err(config.unsupported("activation_function", &why));
        }
    };
    let weights = in_directory(&module.path, "model.safetensors");
    if !folder.has(&weights) {
        return Err(Error::invalid(format!(
            "{weights}: the folder has no such file: `SentenceTransformer(FOLDER).save(FOLDER)` writes the weights of Dense as \
             safetensors"
        )));
    }
    let step = StepText::new("dense").with("file", &weights).with("activation", activation);
    Ok((step, output))
}

/// The size of the vectors of tokens, if the configuration states it.
///
/// # Errors
/// `InvalidArgument` for a malformed member.
pub fn hidden_size(config: &ConfigFile) -> Result<Option<usize>, Error> {
    for name in ["hidden_size", "dim", "d_model", "n_embd"] {
        if let Some(size) = config.count(name, HUB_DIMENSIONS_MAX)? {
            return Ok(Some(size));
        }
    }
    Ok(None)
}

/// Writes the steps to the scores of tokens; returns the outputs.
fn sparse(
    folder: &HubFolder<'_>,
    modules: &Modules,
    config: &ConfigFile,
    graph: &HubGraph,
    mask: &str,
    steps: &mut StepsText,
) -> Result<Vec<IoText>, Error> {
    let vocabulary = config.count("vocab_size", HUB_DIMENSIONS_MAX)?;
    let is_scores = |output: &GraphTensor| HubGraph::last_dimension(output) == vocabulary;
    let logits = graph.output(&["logits"], 3, is_scores)?;
    let mode = match modules.behind.as_slice() {
        [] => "splade_max",
        [only] if only.kind == ModuleKind::SpladePooling => {
            let pooling = ConfigFile::required(folder, &in_directory(&only.path, crate::CONFIG))?;
            if let Some(function) = pooling.text("activation_function")?.filter(|function| *function != "relu") {
                return Err(pooling.unsupported("activation_function", &format!("is \"{function}\": known is relu")));
            }
            match pooling.text("pooling_strategy")? {
                None | Some("max") => "splade_max",
                Some("sum") => "splade_sum",
                Some(other) => return Err(pooling.wrong("pooling_strategy", &format!("is \"{other}\": max or sum"))),
            }
        }
        _ => return Err(Error::unsupported("modules.json: only SpladePooling may be behind MLMTransformer")),
    };
    steps.push(pool(&logits.name, mask, "weights", mode));
    let outputs = [("indices", "index"), ("scores", "value"), ("counts", "count")];
    steps.push(StepText::new("head").with("input", "weights").ports("outputs", &outputs).raw("threshold", "0"));
    Ok(vec![
        IoText::list("index", "INT64", None),
        IoText::list("value", "FP32", None),
        IoText::scalar("count", "INT64"),
    ])
}
