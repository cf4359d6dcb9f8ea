//! `DistilBERT`: BERT's layers under names of their own.

use base::error::Error;

use crate::blocks::{AttentionMask, LinearLayer, NormLayer, Projections};
use crate::config::TransformerConfig;
use crate::embeddings::{PositionCount, embed};
use crate::graph::OnnxDraft;

pub(super) fn encode(draft: &mut OnnxDraft<'_>, config: &TransformerConfig) -> Result<String, Error> {
    let mut hidden = embed(draft, config, PositionCount::All)?;
    let mask = AttentionMask::new(draft, None);
    let (width, inner_width) = (config.width, config.inner_width);
    for layer in 0..config.layers {
        let of = |part: &str| format!("transformer.layer.{layer}.{part}");
        let names = ["attention.q_lin", "attention.k_lin", "attention.v_lin"].map(of);
        let projections = Projections::new(draft, [&names[0], &names[1], &names[2]], width)?;
        let attended = projections.attend(draft, &hidden, &mask, config);
        let (linear, norm) = (of("attention.out_lin"), of("sa_layer_norm"));
        let linear = LinearLayer::new(&linear, width, width);
        hidden = NormLayer::new(&norm, width, config).around(draft, linear, &attended, &hidden)?;
        let inner =
            LinearLayer::new(&of("ffn.lin1"), width, inner_width).activate(draft, &hidden, config.activation)?;
        let (linear, norm) = (of("ffn.lin2"), of("output_layer_norm"));
        let linear = LinearLayer::new(&linear, inner_width, width);
        hidden = NormLayer::new(&norm, width, config).around(draft, linear, &inner, &hidden)?;
    }
    Ok(hidden)
}
