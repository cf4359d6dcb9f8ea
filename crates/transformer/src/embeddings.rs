//! The embeddings of tokens: words, kinds of tokens, positions, and their normalization.

use base::error::Error;
use model::onnx::message::{AttributeMessage, element};

use crate::blocks::{INPUT_IDS, LinearLayer, NormLayer, cast, first_rows, flatten, gather, sequence, table};
use crate::config::{Family, TransformerConfig};
use crate::graph::{ConstantSource, OnnxDraft};

/// The input of the kinds of tokens.
const TOKEN_TYPE_IDS: &str = "token_type_ids";

/// The way in which a token gets its position.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PositionCount {
    /// From 0, over all tokens.
    All,
    /// From the padding's id + 1, over the tokens that are not padding; padding has its id as position.
    BehindPadding,
    /// The model has no table of positions.
    None,
}

/// The table of word embeddings, which heads of masked language models share.
pub(crate) const WORDS: &str = "embeddings.word_embeddings.weight";

/// Normalized embeddings, in the form of hidden states.
pub(crate) fn embed(
    draft: &mut OnnxDraft<'_>,
    config: &TransformerConfig,
    positions: PositionCount,
) -> Result<String, Error> {
    let width = config.embedding_width;
    let words = table(draft, WORDS, config.vocabulary, width)?;
    let mut sum = gather(draft, &words, INPUT_IDS, 0);
    if config.has_token_types() {
        let types = table(draft, TYPES, config.token_types, width)?;
        let types = gather(draft, &types, TOKEN_TYPE_IDS, 0);
        sum = draft.node("Add", &[&sum, &types], Vec::new());
    }
    if positions != PositionCount::None {
        let table = positions_table(draft, config)?;
        let rows = match positions {
            PositionCount::BehindPadding => {
                let ids = positions_behind_padding(draft, config.pad_token as i64);
                gather(draft, &table, &ids, 0)
            }
            _ => {
                let sequence = sequence(draft);
                first_rows(draft, &table, &sequence)
            }
        };
        sum = draft.node("Add", &[&sum, &rows], Vec::new());
    } else if config.token_types == 1 {
        let row = draft.tensor(TYPES, &[1, width])?;
        let row = draft.constant(TYPES, &[width], ConstantSource::Plain(row));
        sum = draft.node("Add", &[&sum, &row], Vec::new());
    }
    if config.family == Family::DebertaV2 && width != config.width {
        // DeBERTa widens its embeddings before it normalizes them, and without a bias.
        let linear = LinearLayer::new("embeddings.embed_proj", width, config.width);
        sum = LinearLayer { has_bias: false, ..linear }.apply(draft, &sum)?;
        let normalized = NormLayer::new("embeddings.LayerNorm", config.width, config).apply(draft, &sum)?;
        return Ok(flatten(draft, normalized, config.width));
    }
    let normalized = NormLayer::new("embeddings.LayerNorm", width, config).apply(draft, &sum)?;
    Ok(flatten(draft, normalized, width))
}

const TYPES: &str = "embeddings.token_type_embeddings.weight";

/// The table of positions. The only kind of tokens, where there is one, is added to each row: it needs no operator.
fn positions_table(draft: &mut OnnxDraft<'_>, config: &TransformerConfig) -> Result<String, Error> {
    const POSITIONS: &str = "embeddings.position_embeddings.weight";
    let (rows, width) = (config.positions, config.embedding_width);
    if config.token_types != 1 {
        return table(draft, POSITIONS, rows, width);
    }
    let kind = draft.tensor(TYPES, &[1, width])?.floats();
    let mut floats = draft.tensor(POSITIONS, &[rows, width])?.floats();
    for (value, kind) in floats.iter_mut().zip(kind.iter().cycle()) {
        *value += kind;
    }
    Ok(draft.constant(POSITIONS, &[rows, width], ConstantSource::Floats(floats)))
}

/// Positions as RoBERTa counts them (`create_position_ids_from_input_ids`), INT64 `[batch, sequence]`.
fn positions_behind_padding(draft: &mut OnnxDraft<'_>, padding: i64) -> String {
    let padding = draft.long(padding);
    let is_padding = draft.node("Equal", &[INPUT_IDS, &padding], Vec::new());
    let is_token = draft.node("Not", &[&is_padding], Vec::new());
    let is_token = cast(draft, &is_token, element::INT64);
    let axis = draft.long(1);
    let count = draft.node("CumSum", &[&is_token, &axis], vec![AttributeMessage::integer("exclusive", 0)]);
    let count = draft.node("Mul", &[&count, &is_token], Vec::new());
    draft.node("Add", &[&count, &padding], Vec::new())
}

/// Adds the inputs of the graph.
pub(crate) fn add_inputs(draft: &mut OnnxDraft<'_>, config: &TransformerConfig) {
    draft.input(INPUT_IDS);
    draft.input(crate::blocks::ATTENTION_MASK);
    if config.has_token_types() {
        draft.input(TOKEN_TYPE_IDS);
    }
}
