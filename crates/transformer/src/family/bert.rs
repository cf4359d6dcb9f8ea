//! BERT, and RoBERTa, XLM-R, CamemBERT and ELECTRA, which differ from it in their embeddings alone.

use base::error::Error;

use crate::blocks::{AttentionMask, LinearLayer, NormLayer, Projections};
use crate::config::{Family, TransformerConfig};
use crate::embeddings::{PositionCount, embed};
use crate::graph::OnnxDraft;

pub(super) fn encode(draft: &mut OnnxDraft<'_>, config: &TransformerConfig) -> Result<String, Error> {
    let is_roberta = config.family.is_roberta();
    let positions = if is_roberta { PositionCount::BehindPadding } else { PositionCount::All };
    let mut hidden = embed(draft, config, positions)?;
    if config.family == Family::Electra && config.embedding_width != config.width {
        hidden = LinearLayer::new("embeddings_project", config.embedding_width, config.width).apply(draft, &hidden)?;
    }
    let mask = AttentionMask::new(draft, None);
    for layer in 0..config.layers {
        let name = format!("encoder.layer.{layer}");
        let names = ["query", "key", "value"].map(|part| format!("{name}.attention.self.{part}"));
        let projections = Projections::new(draft, [&names[0], &names[1], &names[2]], config.width)?;
        let attended = projections.attend(draft, &hidden, &mask, config);
        hidden = close_attention(draft, config, &name, &attended, &hidden)?;
        hidden = feed_forward(draft, config, &name, &hidden)?;
    }
    Ok(hidden)
}

/// The layer behind attention, with the sum and its normalization.
pub(super) fn close_attention(
    draft: &mut OnnxDraft<'_>,
    config: &TransformerConfig,
    layer: &str,
    attended: &str,
    hidden: &str,
) -> Result<String, Error> {
    let name = format!("{layer}.attention.output.dense");
    let norm = format!("{layer}.attention.output.LayerNorm");
    let linear = LinearLayer::new(&name, config.width, config.width);
    NormLayer::new(&norm, config.width, config).around(draft, linear, attended, hidden)
}

/// The feed-forward network of a layer, with the sum and its normalization.
pub(super) fn feed_forward(
    draft: &mut OnnxDraft<'_>,
    config: &TransformerConfig,
    layer: &str,
    hidden: &str,
) -> Result<String, Error> {
    let name = format!("{layer}.intermediate.dense");
    let inner = LinearLayer::new(&name, config.width, config.inner_width);
    let inner = inner.activate(draft, hidden, config.activation)?;
    let (name, norm) = (format!("{layer}.output.dense"), format!("{layer}.output.LayerNorm"));
    let linear = LinearLayer::new(&name, config.inner_width, config.width);
    NormLayer::new(&norm, config.width, config).around(draft, linear, &inner, hidden)
}
