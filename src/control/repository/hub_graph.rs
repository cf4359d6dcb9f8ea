//! The ONNX file of a hub folder that has safetensors and none: written in memory when an engine loads it
//! ([`crate::transformer`]); its inputs and outputs alone when they are asked for.

use crate::control::repository::beneath::RepositoryRoot;
use crate::error::Error;
use crate::hub::HubFolder;
use crate::limits::{CONFIG_SIZE_MAX, MODEL_SIZE_MAX};
use crate::transformer::{
    ModelHead, Operators, SafeTensors, TransformerConfig, indexed_files, onnx_from_safetensors,
    signature_from_safetensors,
};
use crate::wire::json::{Document, ValueKind};

/// The list of the files of weights, where they are several.
const INDEX: &str = "model.safetensors.index.json";
/// Weights, by the path in a folder: of transformers, and of sentence-transformers' early releases.
const WEIGHTS: [&str; 4] =
    ["model.safetensors", INDEX, "0_Transformer/model.safetensors", "0_Transformer/model.safetensors.index.json"];
/// The networks of sentence-transformers.
const MODULES: &str = "modules.json";

/// Returns the file of a folder that its graph is written from.
pub fn weights<'f>(folder: &HubFolder<'f>) -> Option<&'f str> {
    folder.first(&WEIGHTS)
}

/// Returns true if a graph is written from this file of a version.
pub fn is_written(file: &str) -> bool {
    WEIGHTS.contains(&file)
}

/// The part of an ONNX file that is wanted.
#[derive(Clone, Copy, Debug)]
pub enum OnnxPart {
    /// Its inputs and outputs: a file that is written has no weights then.
    Signature,
    /// All of it, with these operators if it is written.
    Whole(Operators),
}

/// Reads the ONNX file of a version: the file itself, or what is written from its weights.
///
/// # Errors
/// `InvalidArgument` when a file cannot be read, or its weights are not those of its `config.json`; `Unsupported` for a network
/// that is not known.
pub fn read_onnx(repository: &RepositoryRoot, folder: &str, file: &str, part: OnnxPart) -> Result<Vec<u8>, Error> {
    let read = |path: &str, size_max| {
        let bytes = repository.read(path, size_max);
        bytes.map_err(|error| Error::invalid(format!("cannot read '{path}': {error}")))
    };
    if !is_written(file) {
        return read(&format!("{folder}/{file}"), MODEL_SIZE_MAX);
    }
    let beside = file.rsplit_once('/').map_or(String::new(), |(beside, _)| format!("{beside}/"));
    let config = read(&format!("{folder}/{beside}config.json"), CONFIG_SIZE_MAX)?;
    let config = TransformerConfig::parse(&config)?;
    let modules = read(&format!("{folder}/{MODULES}"), CONFIG_SIZE_MAX).ok();
    let config = match (modules, config.head()) {
        (Some(modules), _) if !is_masked_lm(&modules) => config.with_head(ModelHead::Encoder),
        // The checkpoint of a plain encoder: its scores of words are for training alone.
        (None, ModelHead::MaskedLm) => config.with_head(ModelHead::Encoder),
        _ => config,
    };
    let names = if file.ends_with(INDEX) {
        indexed_files(&read(&format!("{folder}/{file}"), CONFIG_SIZE_MAX)?)?
    } else {
        vec![file.strip_prefix(&beside).unwrap_or(file).to_owned()]
    };
    let of_weights = |name: &String| read(&format!("{folder}/{beside}{name}"), MODEL_SIZE_MAX);
    let files = names.iter().map(of_weights).collect::<Result<Vec<_>, _>>()?;
    let named: Vec<_> = names.iter().map(String::as_str).zip(files.iter().map(Vec::as_slice)).collect();
    let weights = SafeTensors::read(&named)?;
    match part {
        OnnxPart::Signature => signature_from_safetensors(&config, &weights),
        OnnxPart::Whole(operators) => onnx_from_safetensors(&config, &weights, operators),
    }
}

/// Returns true if the first module is a network with its scores of words: SPLADE.
fn is_masked_lm(modules: &[u8]) -> bool {
    let document = Document::parse(modules, &[]);
    document.is_ok_and(|document| {
        let root = document.root();
        let kind = root.elements().next().and_then(|first| first.get("type"));
        *root.kind() == ValueKind::Array
            && kind.and_then(|kind| kind.as_str()).is_some_and(|kind| kind.ends_with("MLMTransformer"))
    })
}
