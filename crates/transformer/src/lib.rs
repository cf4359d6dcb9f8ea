//! From a Hugging Face `config.json` and safetensors to an ONNX model, for folders of text encoders that have no ONNX file.
//! Pure: it takes the bytes of files and returns those of a file. Every size is bounded by `limits` and checked against
//! the tensors' shapes before memory is taken for it.
//!
//! The graph computes in FP32. Its inputs are INT64 `[batch, sequence]`: `input_ids`, `attention_mask`, and
//! `token_type_ids` if the model has several kinds of tokens. Its outputs are those of [`ModelHead`].

mod blocks;
mod config;
mod embeddings;
mod family;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod graph;
mod heads;
mod limits;
mod operators;
mod weights;

use base::error::Error;

pub use config::{Family, ModelHead, TransformerConfig};
pub use operators::Operators;
pub use weights::{SafeTensors, indexed_files};

use graph::OnnxDraft;

/// Writes the ONNX file of a model. The result is the only large memory that it takes: weights are read from
/// where they are.
///
/// # Errors
/// `InvalidArgument`, with file, tensor and shapes, if a tensor is missing, misshapen or not part of the model;
/// `Unsupported` for a head that the family lacks; `TooLarge` beyond protobuf's 2 GiB.
///
/// ```
/// use transformer::{ModelHead, Operators, SafeTensors, TransformerConfig, onnx_from_safetensors};
///
/// let text = br#"{"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 3, "hidden_size": 2,
///     "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 2, "max_position_embeddings": 4}"#;
/// let config = TransformerConfig::parse(text)?.with_head(ModelHead::Encoder);
/// let header = br#"{"embeddings.word_embeddings.weight":{"dtype":"F32","shape":[3,1],"data_offsets":[0,12]}}"#;
/// let file = [&(header.len() as u64).to_le_bytes(), &header[..], &[0; 12]].concat();
/// let weights = SafeTensors::read(&[("model.safetensors", &file)])?;
/// let error = onnx_from_safetensors(&config, &weights, Operators::Standard).unwrap_err();
/// assert_eq!(error.text(), "model.safetensors: tensor 'embeddings.word_embeddings.weight' has shape [3, 1], \
///     expected [3, 2] by config.json");
/// # Ok::<(), base::error::Error>(())
/// ```
pub fn onnx_from_safetensors(
    config: &TransformerConfig,
    weights: &SafeTensors<'_>,
    operators: Operators,
) -> Result<Vec<u8>, Error> {
    graph(config, weights, operators)?.into_bytes()
}

/// Writes the same file without its constants: enough for the inputs and outputs of the model, in a few kilobytes.
///
/// # Errors
/// As [`onnx_from_safetensors`].
pub fn signature_from_safetensors(config: &TransformerConfig, weights: &SafeTensors<'_>) -> Result<Vec<u8>, Error> {
    graph(config, weights, Operators::default())?.without_constants().into_bytes()
}

fn graph<'a>(
    config: &TransformerConfig,
    weights: &'a SafeTensors<'a>,
    operators: Operators,
) -> Result<OnnxDraft<'a>, Error> {
    let mut draft = OnnxDraft::new(operators, weights, family::prefix(config.family()));
    embeddings::add_inputs(&mut draft, config);
    let hidden = family::encode(&mut draft, config)?;
    heads::finish(&mut draft, config, &hidden)?;
    draft.check_unused(|name| heads::IDLE.iter().any(|idle| name.starts_with(idle)))?;
    Ok(draft)
}
