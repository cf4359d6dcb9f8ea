//! The blocks that encoders are made of: linear layers, normalization, feed-forward networks and attention, in
//! the form that the engine runs best.

use base::error::Error;
use model::onnx::message::{AttributeMessage, element};

use crate::config::{HiddenActivation, TransformerConfig};
use crate::graph::{ConstantSource, OnnxDraft};
use crate::operators::Operators;
use crate::weights::WeightView;

/// A linear layer of a file: its name, its sizes, and whether it has a bias.
#[derive(Clone, Copy)]
pub(crate) struct LinearLayer<'n> {
    pub(crate) name: &'n str,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) has_bias: bool,
}

impl<'n> LinearLayer<'n> {
    pub(crate) const fn new(name: &'n str, inputs: usize, outputs: usize) -> Self {
        Self { name, inputs, outputs, has_bias: true }
    }

    /// The product with the weights, without the bias.
    fn product(self, draft: &mut OnnxDraft<'_>, input: &str) -> Result<String, Error> {
        let weight = format!("{}.weight", self.name);
        let view = draft.tensor(&weight, &[self.outputs, self.inputs])?;
        Ok(product_with(draft, input, &weight, view, self.inputs))
    }

    fn bias(self, draft: &mut OnnxDraft<'_>) -> Result<Option<String>, Error> {
        self.has_bias.then(|| vector(draft, &format!("{}.bias", self.name), self.outputs)).transpose()
    }

    pub(crate) fn apply(self, draft: &mut OnnxDraft<'_>, input: &str) -> Result<String, Error> {
        let weight = format!("{}.weight", self.name);
        let view = draft.tensor(&weight, &[self.outputs, self.inputs])?;
        let bias = self.bias(draft)?;
        Ok(linear(draft, input, (&weight, view, self.inputs), bias.as_deref()))
    }

    /// The layer, and an activation behind it.
    pub(crate) fn activate(
        self,
        draft: &mut OnnxDraft<'_>,
        input: &str,
        activation: HiddenActivation,
    ) -> Result<String, Error> {
        // ONNX Runtime joins the bias with GELU instead, if it is an operator of its own.
        let sum = match activation {
            HiddenActivation::Gelu => {
                let product = self.product(draft, input)?;
                let bias = self.bias(draft)?;
                add_bias(draft, product, bias.as_deref())
            }
            _ => self.apply(draft, input)?,
        };
        Ok(activate(draft, &sum, activation))
    }
}

/// A layer normalization of a file.
#[derive(Clone, Copy)]
pub(crate) struct NormLayer<'n> {
    pub(crate) name: &'n str,
    pub(crate) width: usize,
    pub(crate) epsilon: f32,
    pub(crate) has_bias: bool,
}

impl<'n> NormLayer<'n> {
    pub(crate) const fn new(name: &'n str, width: usize, config: &TransformerConfig) -> Self {
        Self { name, width, epsilon: config.norm_epsilon, has_bias: true }
    }

    fn constants(self, draft: &mut OnnxDraft<'_>) -> Result<(String, Option<String>), Error> {
        let scale = vector(draft, &format!("{}.weight", self.name), self.width)?;
        let bias = self.has_bias.then(|| vector(draft, &format!("{}.bias", self.name), self.width)).transpose()?;
        Ok((scale, bias))
    }

    pub(crate) fn apply(self, draft: &mut OnnxDraft<'_>, input: &str) -> Result<String, Error> {
        let (scale, bias) = self.constants(draft)?;
        let attributes = vec![AttributeMessage::integer("axis", -1), AttributeMessage::float("epsilon", self.epsilon)];
        let inputs: Vec<&str> = [input, &scale].into_iter().chain(bias.as_deref()).collect();
        Ok(draft.node("LayerNormalization", &inputs, attributes))
    }

    /// The normalized sum of a linear layer and of the value around it.
    pub(crate) fn around(
        self,
        draft: &mut OnnxDraft<'_>,
        linear: LinearLayer<'_>,
        input: &str,
        around: &str,
    ) -> Result<String, Error> {
        let product = linear.apply(draft, input)?;
        let sum = draft.node("Add", &[&product, around], Vec::new());
        self.apply(draft, &sum)
    }
}

/// The tokens that a token may look at, as a number that is added to their scores: 0 or the lowest one.
pub(crate) struct AttentionMask {
    /// FP32 `[batch, 1, 1, sequence]`; of a window, of pairs or with a bias `[batch, 1 or heads, sequence, sequence]`.
    pub(crate) scores: String,
}

impl AttentionMask {
    /// A mask that hides padding. `bias` is added to the scores.
    pub(crate) fn new(draft: &mut OnnxDraft<'_>, bias: Option<String>) -> Self {
        let is_token = tokens(draft);
        let scores = hide(draft, &is_token);
        Self { scores: add_bias(draft, scores, bias.as_deref()) }
    }

    /// A mask that hides padding from tokens and tokens from padding.
    pub(crate) fn pairs(draft: &mut OnnxDraft<'_>) -> Self {
        let keys = tokens(draft);
        let queries = transpose(draft, &keys, &[0, 1, 3, 2]);
        let is_seen = draft.node("And", &[&keys, &queries], Vec::new());
        Self { scores: hide(draft, &is_seen) }
    }

    /// A mask that hides all tokens beyond `reach` to either side.
    pub(crate) fn window(draft: &mut OnnxDraft<'_>, reach: Option<usize>) -> Self {
        let mut is_seen = tokens(draft);
        if let Some(reach) = reach {
            let distance = distances(draft);
            let distance = draft.node("Abs", &[&distance], Vec::new());
            let reach = draft.long(reach as i64);
            let is_near = draft.node("LessOrEqual", &[&distance, &reach], Vec::new());
            is_seen = draft.node("And", &[&is_seen, &is_near], Vec::new());
        }
        Self { scores: hide(draft, &is_seen) }
    }
}

/// The input that says which tokens are no padding.
pub(crate) const ATTENTION_MASK: &str = "attention_mask";

/// The projections of queries, keys and values: views of weights `[width, width]`, and of biases.
pub(crate) struct Projections<'a> {
    pub(crate) weights: [WeightView<'a>; 3],
    pub(crate) biases: Option<[WeightView<'a>; 3]>,
}

impl<'a> Projections<'a> {
    /// Those of three linear layers.
    pub(crate) fn new(draft: &mut OnnxDraft<'a>, names: [&str; 3], width: usize) -> Result<Self, Error> {
        let [query, key, value] = names;
        let mut weight = |name: &str| draft.tensor(&format!("{name}.weight"), &[width, width]);
        let weights = [weight(query)?, weight(key)?, weight(value)?];
        let mut bias = |name: &str| draft.tensor(&format!("{name}.bias"), &[width]);
        let biases = Some([bias(query)?, bias(key)?, bias(value)?]);
        Ok(Self { weights, biases })
    }

    /// Attention of all heads, `[batch, sequence, width]`, without the layer behind it.
    pub(crate) fn attend(
        self,
        draft: &mut OnnxDraft<'a>,
        input: &str,
        mask: &AttentionMask,
        config: &TransformerConfig,
    ) -> String {
        let [query, key, value] = self.project(draft, input, config.width);
        let [query, key, value] = [query, key, value].map(|each| split_heads(draft, &each, config));
        attend_to(draft, [&query, &key, &value], &mask.scores, config)
    }

    /// Queries, keys and values, `[batch, sequence, width]` each.
    pub(crate) fn project(self, draft: &mut OnnxDraft<'a>, input: &str, width: usize) -> [String; 3] {
        let mut biases = self.biases.map(|biases| biases.into_iter());
        self.weights.map(|weight| {
            let bias = biases.as_mut().and_then(Iterator::next);
            let bias = bias.map(|view| draft.constant("projection_bias", &[width], ConstantSource::Plain(view)));
            linear(draft, input, ("projection", weight, width), bias.as_deref())
        })
    }
}

/// `[batch, sequence, width]` to `[batch, heads, sequence, head width]`.
pub(crate) fn split_heads(draft: &mut OnnxDraft<'_>, input: &str, config: &TransformerConfig) -> String {
    let shape = tokens_by(draft, &[config.heads as i64, config.head_width() as i64]);
    let split = draft.node("Reshape", &[input, &shape], Vec::new());
    transpose(draft, &split, &[0, 2, 1, 3])
}

/// Attention over values `[batch, heads, sequence, head width]`; the heads side by side again.
pub(crate) fn attend_to(
    draft: &mut OnnxDraft<'_>,
    [query, key, value]: [&str; 3],
    mask: &str,
    config: &TransformerConfig,
) -> String {
    let keys = transpose(draft, key, &[0, 1, 3, 2]);
    let scores = draft.node("MatMul", &[query, &keys], Vec::new());
    let scale = draft.scalar((config.head_width() as f32).sqrt().recip());
    let scores = draft.node("Mul", &[&scores, &scale], Vec::new());
    attend_by(draft, &scores, value, mask, config)
}

/// The values by their scores `[batch, heads, sequence, sequence]`; the heads side by side again.
pub(crate) fn attend_by(
    draft: &mut OnnxDraft<'_>,
    scores: &str,
    value: &str,
    mask: &str,
    config: &TransformerConfig,
) -> String {
    let scores = draft.node("Add", &[scores, mask], Vec::new());
    let shares = draft.node("Softmax", &[&scores], vec![AttributeMessage::integer("axis", -1)]);
    let sum = draft.node("MatMul", &[&shares, value], Vec::new());
    let sum = transpose(draft, &sum, &[0, 2, 1, 3]);
    let rows: &[i64] = if draft.operators == Operators::OnnxRuntime { &[-1] } else { &[0, 0] };
    let shape = draft.longs(&[rows, &[config.width as i64]].concat());
    draft.node("Reshape", &[&sum, &shape], Vec::new())
}

/// The shape `[batch, sequence]` and sizes behind it, for a value of tokens.
fn tokens_by(draft: &mut OnnxDraft<'_>, sizes: &[i64]) -> String {
    if draft.operators == Operators::Standard {
        return draft.longs(&[&[0, 0], sizes].concat());
    }
    draft.once(&format!("tokens by {sizes:?}"), |draft| {
        let tokens = draft.once("tokens", |draft| draft.node("Shape", &[INPUT_IDS], Vec::new()));
        let sizes = draft.longs(sizes);
        draft.node("Concat", &[&tokens, &sizes], vec![AttributeMessage::integer("axis", 0)])
    })
}

/// `[batch, sequence, width]` to the form of hidden states: a matrix of all tokens for ONNX Runtime.
pub(crate) fn flatten(draft: &mut OnnxDraft<'_>, value: String, width: usize) -> String {
    if draft.operators == Operators::Standard {
        return value;
    }
    let shape = draft.longs(&[-1, width as i64]);
    draft.node("Reshape", &[&value, &shape], Vec::new())
}

/// The form of hidden states to `[batch, sequence, width]`.
pub(crate) fn unflatten(draft: &mut OnnxDraft<'_>, value: String, width: usize) -> String {
    if draft.operators == Operators::Standard {
        return value;
    }
    let shape = tokens_by(draft, &[width as i64]);
    draft.node("Reshape", &[&value, &shape], Vec::new())
}

/// A linear layer: its name, its weights `[outputs, inputs]` and the number of inputs.
fn linear<'a>(
    draft: &mut OnnxDraft<'a>,
    input: &str,
    (name, view, inputs): (&str, WeightView<'a>, usize),
    bias: Option<&str>,
) -> String {
    match bias {
        Some(bias) if draft.operators == Operators::OnnxRuntime => {
            let columns = ConstantSource::Columns { view, inputs };
            let weight = draft.constant(name, &[inputs, view.len() / inputs], columns);
            draft.node("Gemm", &[input, &weight, bias], Vec::new())
        }
        bias => {
            let product = product_with(draft, input, name, view, inputs);
            add_bias(draft, product, bias)
        }
    }
}

/// The product with weights `[outputs, inputs]`.
pub(crate) fn product_with<'a>(
    draft: &mut OnnxDraft<'a>,
    input: &str,
    name: &str,
    view: WeightView<'a>,
    inputs: usize,
) -> String {
    let columns = ConstantSource::Columns { view, inputs };
    let weight = draft.constant(name, &[inputs, view.len() / inputs], columns);
    draft.node("MatMul", &[input, &weight], Vec::new())
}

pub(crate) fn add_bias(draft: &mut OnnxDraft<'_>, product: String, bias: Option<&str>) -> String {
    match bias {
        Some(bias) => draft.node("Add", &[&product, bias], Vec::new()),
        None => product,
    }
}

/// A tensor of one dimension as a constant.
pub(crate) fn vector(draft: &mut OnnxDraft<'_>, name: &str, size: usize) -> Result<String, Error> {
    let view = draft.tensor(name, &[size])?;
    Ok(draft.constant(name, &[size], ConstantSource::Plain(view)))
}

/// A tensor of two dimensions as a constant.
pub(crate) fn table(draft: &mut OnnxDraft<'_>, name: &str, rows: usize, width: usize) -> Result<String, Error> {
    let view = draft.tensor(name, &[rows, width])?;
    Ok(draft.table(name, &[rows, width], view))
}

pub(crate) fn transpose(draft: &mut OnnxDraft<'_>, input: &str, axes: &[i64]) -> String {
    draft.node("Transpose", &[input], vec![AttributeMessage::integers("perm", axes)])
}

pub(crate) fn cast(draft: &mut OnnxDraft<'_>, input: &str, datatype: i32) -> String {
    draft.node("Cast", &[input], vec![AttributeMessage::integer("to", datatype.into())])
}

pub(crate) fn gather(draft: &mut OnnxDraft<'_>, input: &str, indices: &str, axis: i64) -> String {
    draft.node("Gather", &[input, indices], vec![AttributeMessage::integer("axis", axis)])
}

/// The hidden state of the first token, `[batch, width]`.
pub(crate) fn first_token(draft: &mut OnnxDraft<'_>, hidden: &str) -> String {
    let zero = draft.long(0);
    gather(draft, hidden, &zero, 1)
}

/// The length of the batch's texts, INT64 `[1]`.
pub(crate) fn sequence(draft: &mut OnnxDraft<'_>) -> String {
    draft.node("Shape", &[INPUT_IDS], vec![AttributeMessage::integer("start", 1), AttributeMessage::integer("end", 2)])
}

/// The input of token ids.
pub(crate) const INPUT_IDS: &str = "input_ids";

/// The first rows of a table, one for each position.
pub(crate) fn first_rows(draft: &mut OnnxDraft<'_>, table: &str, sequence: &str) -> String {
    let zero = draft.longs(&[0]);
    draft.node("Slice", &[table, &zero, sequence, &zero], Vec::new())
}

/// The position of each key less that of each query, INT64 `[sequence, sequence]`.
pub(crate) fn distances(draft: &mut OnnxDraft<'_>) -> String {
    let sequence = sequence(draft);
    let none = draft.longs(&[0]);
    let length = draft.node("Squeeze", &[&sequence, &none], Vec::new());
    let (zero, one) = (draft.long(0), draft.long(1));
    let positions = draft.node("Range", &[&zero, &length, &one], Vec::new());
    let rows = draft.longs(&[1]);
    let queries = draft.node("Unsqueeze", &[&positions, &rows], Vec::new());
    draft.node("Sub", &[&positions, &queries], Vec::new())
}

/// The tokens that are no padding, BOOL `[batch, 1, 1, sequence]`.
fn tokens(draft: &mut OnnxDraft<'_>) -> String {
    let mask = cast(draft, ATTENTION_MASK, element::BOOL);
    let axes = draft.longs(&[1, 2]);
    draft.node("Unsqueeze", &[&mask, &axes], Vec::new())
}

/// 0 for what is seen, and the lowest number for what is not.
fn hide(draft: &mut OnnxDraft<'_>, is_seen: &str) -> String {
    let (seen, hidden) = (draft.scalar(0.0), draft.scalar(f32::MIN));
    draft.node("Where", &[is_seen, &seen, &hidden], Vec::new())
}

/// An activation, written as the optimizers of both engines recognise it.
pub(crate) fn activate(draft: &mut OnnxDraft<'_>, input: &str, activation: HiddenActivation) -> String {
    match activation {
        HiddenActivation::Gelu => gelu(draft, input),
        HiddenActivation::GeluTanh => gelu_tanh(draft, input),
        HiddenActivation::QuickGelu => {
            let factor = draft.scalar(1.702);
            let scaled = draft.node("Mul", &[input, &factor], Vec::new());
            let share = draft.node("Sigmoid", &[&scaled], Vec::new());
            draft.node("Mul", &[input, &share], Vec::new())
        }
        HiddenActivation::Relu => draft.node("Relu", &[input], Vec::new()),
        HiddenActivation::Silu => {
            let share = draft.node("Sigmoid", &[input], Vec::new());
            draft.node("Mul", &[input, &share], Vec::new())
        }
        HiddenActivation::Tanh => draft.node("Tanh", &[input], Vec::new()),
    }
}

/// `x (1 + erf(x / √2)) / 2`.
fn gelu(draft: &mut OnnxDraft<'_>, input: &str) -> String {
    let (root, one, half) = (draft.scalar(2_f32.sqrt()), draft.scalar(1.0), draft.scalar(0.5));
    let scaled = draft.node("Div", &[input, &root], Vec::new());
    let error = draft.node("Erf", &[&scaled], Vec::new());
    let sum = draft.node("Add", &[&error, &one], Vec::new());
    let product = draft.node("Mul", &[input, &sum], Vec::new());
    draft.node("Mul", &[&product, &half], Vec::new())
}

/// `x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`.
fn gelu_tanh(draft: &mut OnnxDraft<'_>, input: &str) -> String {
    let (three, share, root) = (
        draft.scalar(3.0),
        draft.scalar(0.044_715),
        draft.scalar(std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2),
    );
    let (one, half) = (draft.scalar(1.0), draft.scalar(0.5));
    let cube = draft.node("Pow", &[input, &three], Vec::new());
    let cube = draft.node("Mul", &[&cube, &share], Vec::new());
    let sum = draft.node("Add", &[input, &cube], Vec::new());
    let scaled = draft.node("Mul", &[&sum, &root], Vec::new());
    let tanh = draft.node("Tanh", &[&scaled], Vec::new());
    let sum = draft.node("Add", &[&tanh, &one], Vec::new());
    let halved = draft.node("Mul", &[input, &half], Vec::new());
    draft.node("Mul", &[&halved, &sum], Vec::new())
}
