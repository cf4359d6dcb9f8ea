//! `DeBERTa`'s settings: attention by the contents and by the distance of two tokens, apart from one another.

use base::error::Error;

use super::fields::{ConfigFields, unexpected};
use super::{HiddenActivation, activation, texts};
use crate::limits::POSITIONS_MAX;

/// `DeBERTa`'s settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DisentangledSettings {
    /// Buckets of distances to either side; 0 if each distance has a row of its own.
    pub(crate) buckets: usize,
    /// The largest distance.
    pub(crate) distance_max: usize,
    /// Distances are projected by the layers of queries and keys.
    pub(crate) shares_keys: bool,
    /// Attention of contents to distances.
    pub(crate) has_content_to_position: bool,
    /// Attention of distances to contents.
    pub(crate) has_position_to_content: bool,
    pub(crate) has_distance_norm: bool,
    /// The model has a table of positions too.
    pub(crate) has_positions: bool,
    pub(crate) pooler_activation: HiddenActivation,
    /// The head of masked words is BERT's.
    pub(crate) is_legacy: bool,
}

impl DisentangledSettings {
    pub(super) fn read(fields: ConfigFields<'_, '_>) -> Result<Self, Error> {
        if !fields.is_set("relative_attention", false)? {
            return Err(Error::unsupported("config.json: 'relative_attention' is expected to be true for deberta-v2"));
        }
        for name in ["conv_kernel_size", "attention_head_size"] {
            if let Some(value) = fields.find(name).filter(|value| value.as_u64() != Some(0)) {
                let error = unexpected(name, value, "0 or absent: export the model to ONNX");
                return Err(Error::unsupported(error.text().to_owned()));
            }
        }
        let positions = fields.size("max_position_embeddings", POSITIONS_MAX)?;
        let types = attention_types(fields)?;
        Ok(Self {
            // -1 stands for "not given" in both.
            buckets: if is_negative(fields, "position_buckets") {
                0
            } else {
                fields.count_or("position_buckets", POSITIONS_MAX, 0)?
            },
            distance_max: if is_negative(fields, "max_relative_positions") {
                positions
            } else {
                fields.size_or("max_relative_positions", POSITIONS_MAX, positions)?
            },
            shares_keys: fields.is_set("share_att_key", false)?,
            has_content_to_position: types.contains(&"c2p"),
            has_position_to_content: types.contains(&"p2c"),
            has_distance_norm: fields.text_or("norm_rel_ebd", "none")?.contains("layer_norm"),
            has_positions: fields.is_set("position_biased_input", true)?,
            pooler_activation: activation(fields, "pooler_hidden_act")?,
            is_legacy: fields.is_set("legacy", true)?,
        })
    }

    /// Rows of the table of distances to either side.
    pub(crate) const fn span(&self) -> usize {
        if self.buckets > 0 { self.buckets } else { self.distance_max }
    }
}

fn is_negative(fields: ConfigFields<'_, '_>, name: &str) -> bool {
    fields.find(name).and_then(wire::json::JsonValue::as_i64).is_some_and(|number| number < 0)
}

/// `pos_att_type`, as a list or as one text with bars.
fn attention_types<'d>(fields: ConfigFields<'d, '_>) -> Result<Vec<&'d str>, Error> {
    let Some(value) = fields.find("pos_att_type") else { return Ok(Vec::new()) };
    let types: Vec<&str> = match value.as_str() {
        Some(text) => text.split('|').map(str::trim).filter(|kind| !kind.is_empty()).collect(),
        None => texts(value),
    };
    match types.iter().find(|kind| !["c2p", "p2c"].contains(kind)) {
        None => Ok(types),
        Some(_) => Err(unexpected("pos_att_type", value, "c2p and p2c")),
    }
}
