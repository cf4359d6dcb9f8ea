//! `ModernBERT`: normalization before each part, rotated positions, gated feed-forward networks, and layers that look
//! at a window of tokens.

use base::error::Error;
use model::onnx::message::AttributeMessage;

use crate::blocks::{
    AttentionMask, INPUT_IDS, LinearLayer, NormLayer, Projections, activate, attend_to, first_rows, flatten, gather,
    sequence, split_heads, table,
};
use crate::config::{RotarySettings, TransformerConfig};
use crate::graph::{ConstantSource, OnnxDraft};

/// The table of word embeddings, which the head of a masked language model shares.
pub(crate) const TOKENS: &str = "embeddings.tok_embeddings.weight";

pub(super) fn encode(draft: &mut OnnxDraft<'_>, config: &TransformerConfig) -> Result<String, Error> {
    let settings = config.rotary()?;
    let width = config.width;
    let words = table(draft, TOKENS, config.vocabulary, width)?;
    let words = gather(draft, &words, INPUT_IDS, 0);
    let normalized = norm(config, settings, "embeddings.norm").apply(draft, &words)?;
    let mut hidden = flatten(draft, normalized, width);
    let kinds = LayerKinds::new(draft, config, settings);
    for (layer, is_local) in settings.is_local.iter().enumerate() {
        let of = |part: &str| format!("layers.{layer}.{part}");
        let input = match layer {
            0 => hidden.clone(),
            _ => norm(config, settings, &of("attn_norm")).apply(draft, &hidden)?,
        };
        let attended = attend(draft, config, settings, &of("attn.Wqkv"), &input, kinds.of(*is_local))?;
        let name = of("attn.Wo");
        let linear = LinearLayer { has_bias: settings.has_attention_bias, ..LinearLayer::new(&name, width, width) };
        let attended = linear.apply(draft, &attended)?;
        hidden = draft.node("Add", &[&hidden, &attended], Vec::new());
        let input = norm(config, settings, &of("mlp_norm")).apply(draft, &hidden)?;
        let inner = feed_forward(draft, config, settings, layer, &input)?;
        hidden = draft.node("Add", &[&hidden, &inner], Vec::new());
    }
    norm(config, settings, "final_norm").apply(draft, &hidden)
}

pub(crate) const fn norm<'n>(config: &TransformerConfig, settings: &RotarySettings, name: &'n str) -> NormLayer<'n> {
    NormLayer { has_bias: settings.has_norm_bias, ..NormLayer::new(name, config.width, config) }
}

/// The masks and angles of the two kinds of layers; `None` if the model has no such layer.
struct LayerKinds {
    global: Option<LayerKind>,
    local: Option<LayerKind>,
}

struct LayerKind {
    mask: AttentionMask,
    cosines: String,
    sines: String,
}

impl LayerKinds {
    fn new(draft: &mut OnnxDraft<'_>, config: &TransformerConfig, settings: &RotarySettings) -> Self {
        let mut kind = |is_local: bool, theta: f64, reach: Option<usize>| {
            settings.is_local.contains(&is_local).then(|| LayerKind::new(draft, config, theta, reach))
        };
        let global = kind(false, settings.global_theta, None);
        Self { global, local: kind(true, settings.local_theta, Some(settings.reach)) }
    }

    const fn of(&self, is_local: bool) -> Option<&LayerKind> {
        if is_local { self.local.as_ref() } else { self.global.as_ref() }
    }
}

impl LayerKind {
    fn new(draft: &mut OnnxDraft<'_>, config: &TransformerConfig, theta: f64, reach: Option<usize>) -> Self {
        let mask = AttentionMask::window(draft, reach);
        let half = config.head_width() / 2;
        // In FP32, as transformers has them.
        let frequencies: Vec<f32> = (0..half)
            .map(|index| (theta as f32).powf((2 * index) as f32 / config.head_width() as f32).recip())
            .collect();
        let angles =
            || (0..config.positions).flat_map(|position| frequencies.iter().map(move |each| position as f32 * each));
        let sequence = sequence(draft);
        let shape = [config.positions, half];
        let mut rows = |name: &str, values: Vec<f32>| {
            let table = draft.constant(name, &shape, ConstantSource::Floats(values));
            first_rows(draft, &table, &sequence)
        };
        let cosines = rows("cosines", angles().map(f32::cos).collect());
        let sines = rows("sines", angles().map(f32::sin).collect());
        Self { mask, cosines, sines }
    }
}

fn attend<'a>(
    draft: &mut OnnxDraft<'a>,
    config: &TransformerConfig,
    settings: &RotarySettings,
    name: &str,
    input: &str,
    kind: Option<&LayerKind>,
) -> Result<String, Error> {
    let kind = kind.ok_or_else(|| Error::internal("a layer whose mask was not written"))?;
    let width = config.width;
    let all = draft.tensor(&format!("{name}.weight"), &[3 * width, width])?;
    let weights = [0, 1, 2].map(|part| all.rows(part * width, width, width));
    let biases = match settings.has_attention_bias {
        true => {
            let all = draft.tensor(&format!("{name}.bias"), &[3 * width])?;
            Some([0, 1, 2].map(|part| all.rows(part * width, width, 1)))
        }
        false => None,
    };
    let [query, key, value] = Projections { weights, biases }.project(draft, input, width);
    let [query, key, value] = [query, key, value].map(|each| split_heads(draft, &each, config));
    let [query, key] = [query, key].map(|each| rotate(draft, &each, kind, config.head_width() / 2));
    Ok(attend_to(draft, [&query, &key, &value], &kind.mask.scores, config))
}

/// Rotates each pair of elements, one from either half of a head, by the angle of its position.
fn rotate(draft: &mut OnnxDraft<'_>, input: &str, kind: &LayerKind, half: usize) -> String {
    let halves = draft.split(input, half as i64, 2);
    let [first, second] = halves.as_slice() else { return String::new() };
    let mut times = |value: &str, factor: &str| draft.node("Mul", &[value, factor], Vec::new());
    let (kept, moved) = (times(first, &kind.cosines), times(second, &kind.sines));
    let (second_kept, second_moved) = (times(second, &kind.cosines), times(first, &kind.sines));
    let first = draft.node("Sub", &[&kept, &moved], Vec::new());
    let second = draft.node("Add", &[&second_kept, &second_moved], Vec::new());
    draft.node("Concat", &[&first, &second], vec![AttributeMessage::integer("axis", -1)])
}

/// The gated feed-forward network: one half of the inner layer, activated, times the other.
fn feed_forward(
    draft: &mut OnnxDraft<'_>,
    config: &TransformerConfig,
    settings: &RotarySettings,
    layer: usize,
    input: &str,
) -> Result<String, Error> {
    let (width, inner_width, has_bias) = (config.width, config.inner_width, settings.has_inner_bias);
    let name = format!("layers.{layer}.mlp.Wi");
    let inner = LinearLayer { has_bias, ..LinearLayer::new(&name, width, 2 * inner_width) }.apply(draft, input)?;
    let halves = draft.split(&inner, inner_width as i64, 2);
    let [activated, gate] = halves.as_slice() else { return Ok(String::new()) };
    let activated = activate(draft, activated, config.activation);
    let gated = draft.node("Mul", &[&activated, gate], Vec::new());
    let name = format!("layers.{layer}.mlp.Wo");
    LinearLayer { has_bias, ..LinearLayer::new(&name, inner_width, width) }.apply(draft, &gated)
}
