//! `DeBERTa` versions 2 and 3: a score has a part by the contents of two tokens, and parts by the contents of one and
//! the distance to the other.

use base::error::Error;
use model::onnx::message::{AttributeMessage, element};

use crate::blocks::{
    ATTENTION_MASK, AttentionMask, LinearLayer, NormLayer, Projections, attend_by, cast, distances, flatten, gather,
    split_heads, table, transpose,
};
use crate::config::{DisentangledSettings, TransformerConfig};
use crate::embeddings::{PositionCount, embed};
use crate::family::bert::{close_attention, feed_forward};
use crate::graph::{ConstantSource, OnnxDraft};

pub(super) fn encode(draft: &mut OnnxDraft<'_>, config: &TransformerConfig) -> Result<String, Error> {
    let settings = config.disentangled()?;
    let positions = if settings.has_positions { PositionCount::All } else { PositionCount::None };
    let mut hidden = embed(draft, config, positions)?;
    // Padding has the embedding 0.
    let mask = cast(draft, ATTENTION_MASK, element::FLOAT);
    let last = draft.longs(&[-1]);
    let mask = draft.node("Unsqueeze", &[&mask, &last], Vec::new());
    let mask = flatten(draft, mask, 1);
    hidden = draft.node("Mul", &[&hidden, &mask], Vec::new());
    let mask = AttentionMask::pairs(draft);
    let distance = DistanceRows::new(draft, config, settings)?;
    for layer in 0..config.layers {
        let name = format!("encoder.layer.{layer}");
        let attended = attend(draft, config, &name, &hidden, (&mask, &distance))?;
        hidden = close_attention(draft, config, &name, &attended, &hidden)?;
        hidden = feed_forward(draft, config, &name, &hidden)?;
    }
    Ok(hidden)
}

/// The table of distances, and the row of each pair of tokens.
struct DistanceRows {
    /// `[2 × span, width]`.
    table: String,
    /// For each query and key, INT64 `[sequence, sequence]`.
    of_queries: String,
    /// For each key and query.
    of_keys: String,
}

impl DistanceRows {
    fn new(
        draft: &mut OnnxDraft<'_>,
        config: &TransformerConfig,
        settings: &DisentangledSettings,
    ) -> Result<Self, Error> {
        let span = settings.span();
        let mut rows = table(draft, "encoder.rel_embeddings.weight", 2 * span, config.width)?;
        if settings.has_distance_norm {
            rows = NormLayer::new("encoder.LayerNorm", config.width, config).apply(draft, &rows)?;
        }
        let last = config.positions as i64 - 1;
        let row = |distance: i64| (distance + span as i64).clamp(0, 2 * span as i64 - 1);
        let distance = distances(draft);
        let first = draft.long(last);
        let place = draft.node("Add", &[&distance, &first], Vec::new());
        let mut rows_by = |row: &dyn Fn(i64) -> i64| {
            let rows = (-last..=last).map(row).collect();
            let rows = draft.constant("distance_rows", &[2 * config.positions - 1], ConstantSource::Longs(rows));
            gather(draft, &rows, &place, 0)
        };
        let of_queries = rows_by(&|distance| row(bucket(-distance, settings)));
        let of_keys = rows_by(&|distance| row(bucket(distance, settings)));
        Ok(Self { table: rows, of_queries, of_keys })
    }
}

/// `make_log_bucket_position` of transformers, in FP32 as there: small distances as they are, larger ones in steps that
/// grow.
fn bucket(distance: i64, settings: &DisentangledSettings) -> i64 {
    let middle = settings.buckets as i64 / 2;
    if settings.buckets == 0 || distance.abs() <= middle {
        return distance;
    }
    let middle_steps = middle as f32;
    let share =
        (distance.abs() as f32 / middle_steps).ln() / ((settings.distance_max as f32 - 1.0) / middle_steps).ln();
    let steps = (share * (middle_steps - 1.0)).ceil() as i64 + middle;
    steps * distance.signum()
}

fn attend(
    draft: &mut OnnxDraft<'_>,
    config: &TransformerConfig,
    layer: &str,
    hidden: &str,
    (mask, distance): (&AttentionMask, &DistanceRows),
) -> Result<String, Error> {
    let settings = config.disentangled()?;
    let names = ["query_proj", "key_proj", "value_proj"].map(|part| format!("{layer}.attention.self.{part}"));
    let [query, key, value] =
        Projections::new(draft, [&names[0], &names[1], &names[2]], config.width)?.project(draft, hidden, config.width);
    let [query, key, value] = [query, key, value].map(|each| split_heads(draft, &each, config));
    let keys = transpose(draft, &key, &[0, 1, 3, 2]);
    let contents = draft.node("MatMul", &[&query, &keys], Vec::new());
    let shape = draft.node("Shape", &[&contents], Vec::new());
    let [query_name, key_name, _] = &names;
    let own = |part: &str| format!("{layer}.attention.self.{part}");
    let mut scores = contents;
    let mut factor = 1.0_f32;
    if settings.has_content_to_position {
        factor += 1.0;
        let name = if settings.shares_keys { key_name.clone() } else { own("pos_key_proj") };
        let part = score_distances(draft, config, &name, &query, (distance, &distance.of_queries, &shape))?;
        scores = draft.node("Add", &[&scores, &part], Vec::new());
    }
    if settings.has_position_to_content {
        factor += 1.0;
        let name = if settings.shares_keys { query_name.clone() } else { own("pos_query_proj") };
        let part = score_distances(draft, config, &name, &key, (distance, &distance.of_keys, &shape))?;
        let part = transpose(draft, &part, &[0, 1, 3, 2]);
        scores = draft.node("Add", &[&scores, &part], Vec::new());
    }
    let scale = draft.scalar((config.head_width() as f32 * factor).sqrt().recip());
    let scores = draft.node("Mul", &[&scores, &scale], Vec::new());
    Ok(attend_by(draft, &scores, &value, &mask.scores, config))
}

/// The product of contents with the projected rows of distances, for each pair of tokens, `[batch, heads, sequence,
/// sequence]`. The projection has only constants, so that engines compute it once.
fn score_distances(
    draft: &mut OnnxDraft<'_>,
    config: &TransformerConfig,
    name: &str,
    contents: &str,
    (distance, rows, shape): (&DistanceRows, &str, &str),
) -> Result<String, Error> {
    let (width, heads) = (config.width, config.heads as i64);
    let projected = LinearLayer::new(name, width, width).apply(draft, &distance.table)?;
    let sizes = draft.longs(&[0, heads, config.head_width() as i64]);
    let projected = draft.node("Reshape", &[&projected, &sizes], Vec::new());
    let projected = transpose(draft, &projected, &[1, 2, 0]);
    let products = draft.node("MatMul", &[contents, &projected], Vec::new());
    let rows = draft.node("Expand", &[rows, shape], Vec::new());
    Ok(draft.node("GatherElements", &[&products, &rows], vec![AttributeMessage::integer("axis", -1)]))
}
