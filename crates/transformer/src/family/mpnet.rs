//! MPNet: BERT's layers, with a bias by the distance of two tokens, which all layers share.

use base::error::Error;

use crate::blocks::{AttentionMask, LinearLayer, NormLayer, Projections, distances, gather};
use crate::config::TransformerConfig;
use crate::embeddings::{PositionCount, embed};
use crate::family::bert::feed_forward;
use crate::graph::{ConstantSource, OnnxDraft};

pub(super) fn encode(draft: &mut OnnxDraft<'_>, config: &TransformerConfig) -> Result<String, Error> {
    let mut hidden = embed(draft, config, PositionCount::BehindPadding)?;
    let bias = distance_bias(draft, config)?;
    let mask = AttentionMask::new(draft, Some(bias));
    let width = config.width;
    for layer in 0..config.layers {
        let name = format!("encoder.layer.{layer}");
        let names = ["q", "k", "v"].map(|part| format!("{name}.attention.attn.{part}"));
        let projections = Projections::new(draft, [&names[0], &names[1], &names[2]], width)?;
        let attended = projections.attend(draft, &hidden, &mask, config);
        let (linear, norm) = (format!("{name}.attention.attn.o"), format!("{name}.attention.LayerNorm"));
        let linear = LinearLayer::new(&linear, width, width);
        hidden = NormLayer::new(&norm, width, config).around(draft, linear, &attended, &hidden)?;
        hidden = feed_forward(draft, config, &name, &hidden)?;
    }
    Ok(hidden)
}

/// Buckets of distances; its code has the number, whatever its configuration says.
const BUCKETS: usize = 32;
/// Distances from which on all share the last bucket.
const DISTANCE_MAX: f32 = 128.0;

/// The bias of each head, `[1, heads, sequence, sequence]`. The table of buckets becomes one of distances, as long as the
/// longest text.
fn distance_bias(draft: &mut OnnxDraft<'_>, config: &TransformerConfig) -> Result<String, Error> {
    let (heads, last) = (config.heads, config.positions - 1);
    let buckets = draft.tensor("encoder.relative_attention_bias.weight", &[BUCKETS, heads])?.floats();
    let mut table = Vec::with_capacity(heads * (2 * last + 1));
    for head in 0..heads {
        let offsets = (-(last as i64)..=last as i64).map(|distance| bucket(distance) * heads + head);
        table.extend(offsets.map(|offset| buckets.get(offset).copied().unwrap_or_default()));
    }
    let table = draft.constant("distance_bias", &[1, heads, 2 * last + 1], ConstantSource::Floats(table));
    let distance = distances(draft);
    let last = draft.long(last as i64);
    let place = draft.node("Add", &[&distance, &last], Vec::new());
    Ok(gather(draft, &table, &place, 2))
}

/// The bucket of a key's position less the query's, by `relative_position_bucket` of transformers, in FP32 as there.
fn bucket(distance: i64) -> usize {
    let half = BUCKETS / 2;
    let exact = half / 2;
    let steps = distance.unsigned_abs() as usize;
    let side = if distance > 0 { half } else { 0 };
    if steps < exact {
        return side + steps;
    }
    let exact_steps = exact as f32;
    let share = (steps as f32 / exact_steps).ln() / (DISTANCE_MAX / exact_steps).ln();
    let beyond = (share * (half - exact) as f32) as usize;
    side + (exact + beyond).min(half - 1)
}
