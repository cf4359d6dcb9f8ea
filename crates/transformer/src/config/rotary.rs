//! `ModernBERT`'s settings: its rotated positions, and the layers that look at a window of tokens only.

use base::error::Error;

use super::fields::{ConfigFields, unexpected};
use super::{HiddenActivation, activation, texts};
use crate::limits::{LAYERS_MAX, POSITIONS_MAX};

/// `ModernBERT`'s settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RotarySettings {
    /// The base of the angles in layers that look at all tokens.
    pub(crate) global_theta: f64,
    /// The base of the angles in layers with a window.
    pub(crate) local_theta: f64,
    /// True for each layer with a window.
    pub(crate) is_local: Vec<bool>,
    /// Tokens to either side of one that it looks at, in layers with a window.
    pub(crate) reach: usize,
    pub(crate) has_norm_bias: bool,
    pub(crate) has_attention_bias: bool,
    pub(crate) has_inner_bias: bool,
    pub(crate) has_decoder_bias: bool,
    pub(crate) has_classifier_bias: bool,
    pub(crate) classifier_activation: HiddenActivation,
    /// A text's class is read from the mean over its tokens, and not from its first token.
    pub(crate) is_mean_pooled: bool,
}

impl RotarySettings {
    pub(super) fn read(fields: ConfigFields<'_, '_>, layers: usize) -> Result<Self, Error> {
        let global_theta = theta(fields, "full_attention", "global_rope_theta", 160_000.0)?;
        // transformers 4 wrote `null` for "as in the other layers".
        let is_shared = fields.value.get("local_rope_theta").is_some() && fields.find("local_rope_theta").is_none();
        let default = if is_shared { global_theta } else { 10_000.0 };
        let local_theta = theta(fields, "sliding_attention", "local_rope_theta", default)?;
        let is_mean_pooled = match fields.text_or("classifier_pooling", "cls")? {
            "cls" => false,
            "mean" => true,
            other => {
                let text = format!("config.json: 'classifier_pooling' is '{other}', expected 'cls' or 'mean'");
                return Err(Error::unsupported(text));
            }
        };
        Ok(Self {
            global_theta,
            local_theta,
            is_local: local_layers(fields, layers)?,
            reach: fields.size_or("local_attention", POSITIONS_MAX, 128)? / 2,
            has_norm_bias: fields.is_set("norm_bias", false)?,
            has_attention_bias: fields.is_set("attention_bias", false)?,
            has_inner_bias: fields.is_set("mlp_bias", false)?,
            has_decoder_bias: fields.is_set("decoder_bias", true)?,
            has_classifier_bias: fields.is_set("classifier_bias", false)?,
            classifier_activation: activation(fields, "classifier_activation")?,
            is_mean_pooled,
        })
    }
}

/// The base of the angles for one kind of layer: since transformers 5 in `rope_parameters`, before in a field of its own.
fn theta(fields: ConfigFields<'_, '_>, kind: &str, old: &str, default: f64) -> Result<f64, Error> {
    if let Some(value) = fields.find("rope_scaling") {
        return Err(Error::unsupported(unexpected("rope_scaling", value, "no scaling of positions").text().to_owned()));
    }
    let all = fields.object("rope_parameters")?;
    let Some(own) = all.map(|all| all.object(kind)).transpose()?.flatten() else {
        return fields.positive_or(old, default);
    };
    match own.text_or("rope_type", "default")? {
        "default" => own.positive_or("rope_theta", default),
        other => {
            let text = format!("config.json: 'rope_type' of '{kind}' is '{other}', expected 'default'");
            Err(Error::unsupported(text))
        }
    }
}

/// The layers with a window: since transformers 5 by `layer_types`, before all but every nth.
fn local_layers(fields: ConfigFields<'_, '_>, layers: usize) -> Result<Vec<bool>, Error> {
    let Some(value) = fields.find("layer_types") else {
        let every = fields.size_or("global_attn_every_n_layers", LAYERS_MAX, 3)?;
        return Ok((0..layers).map(|layer| layer % every != 0).collect());
    };
    let types = texts(value);
    let is_known = types.iter().all(|kind| ["full_attention", "sliding_attention"].contains(kind));
    if types.len() != layers || value.elements().count() != layers || !is_known {
        return Err(Error::invalid(format!(
            "config.json: 'layer_types' is expected to be full_attention or sliding_attention for each of {layers} layers"
        )));
    }
    Ok(types.iter().map(|kind| *kind == "sliding_attention").collect())
}
