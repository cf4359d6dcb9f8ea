//! The heads: from the last hidden states to the outputs of the graph.

use base::error::Error;
use model::onnx::message::{AttributeMessage, element};

use crate::blocks::{
    ATTENTION_MASK, LinearLayer, NormLayer, add_bias, cast, first_token, product_with, table, transpose, unflatten,
    vector,
};
use crate::config::{Family, HiddenActivation, ModelHead, TransformerConfig};
use crate::embeddings::WORDS;
use crate::family::modernbert::{TOKENS, norm};
use crate::graph::OnnxDraft;

/// Writes the head of a model, and the outputs of the graph.
pub(crate) fn finish(draft: &mut OnnxDraft<'_>, config: &TransformerConfig, hidden: &str) -> Result<(), Error> {
    let width = config.width;
    // Outputs of each token are computed in the form of hidden states, and get their own shape afterwards.
    match config.head {
        ModelHead::Encoder => {
            let hidden = unflatten(draft, hidden.to_owned(), width);
            draft.output(&hidden, LAST_HIDDEN_STATE, true, &[width]);
        }
        ModelHead::Pooler => {
            let hidden = unflatten(draft, hidden.to_owned(), width);
            let pooled = pool(draft, config, &hidden)?;
            draft.output(&hidden, LAST_HIDDEN_STATE, true, &[width]);
            draft.output(&pooled, "pooler_output", false, &[width]);
        }
        ModelHead::MaskedLm => {
            let logits = score_words(draft, config, hidden)?;
            let logits = unflatten(draft, logits, config.vocabulary);
            draft.output(&logits, LOGITS, true, &[config.vocabulary]);
        }
        ModelHead::QuestionAnswering => answer(draft, config, hidden)?,
        ModelHead::SequenceClassification => {
            let hidden = unflatten(draft, hidden.to_owned(), width);
            let logits = classify_text(draft, config, &hidden)?;
            draft.output(&logits, LOGITS, false, &[config.labels]);
        }
        ModelHead::TokenClassification => {
            let hidden = predict(draft, config, hidden)?;
            let logits = LinearLayer::new("classifier", width, config.labels).apply(draft, &hidden)?;
            let logits = unflatten(draft, logits, config.labels);
            draft.output(&logits, LOGITS, true, &[config.labels]);
        }
    }
    Ok(())
}

const LAST_HIDDEN_STATE: &str = "last_hidden_state";
const LOGITS: &str = "logits";

/// BERT's pooler: a layer behind the first token.
fn pool(draft: &mut OnnxDraft<'_>, config: &TransformerConfig, hidden: &str) -> Result<String, Error> {
    if matches!(config.family, Family::DebertaV2 | Family::Distilbert | Family::Electra | Family::Modernbert) {
        return Err(Error::unsupported(format!("a {:?} model has no pooler", config.family)));
    }
    let first = first_token(draft, hidden);
    LinearLayer::new("pooler.dense", config.width, config.width).activate(draft, &first, HiddenActivation::Tanh)
}

/// The scores of a text's classes, by the family's own head.
fn classify_text(draft: &mut OnnxDraft<'_>, config: &TransformerConfig, hidden: &str) -> Result<String, Error> {
    let width = config.width;
    let (dense, activation, last) = match config.family {
        Family::Modernbert => {
            let pooled = if config.rotary()?.is_mean_pooled { mean(draft, hidden) } else { first_token(draft, hidden) };
            let pooled = predict(draft, config, &pooled)?;
            return LinearLayer::new("classifier", width, config.labels).apply(draft, &pooled);
        }
        Family::Bert => ("pooler.dense", HiddenActivation::Tanh, "classifier"),
        Family::Camembert | Family::Mpnet | Family::Roberta | Family::XlmRoberta => {
            ("classifier.dense", HiddenActivation::Tanh, "classifier.out_proj")
        }
        Family::DebertaV2 => ("pooler.dense", config.disentangled()?.pooler_activation, "classifier"),
        Family::Distilbert => ("pre_classifier", HiddenActivation::Relu, "classifier"),
        Family::Electra => ("classifier.dense", HiddenActivation::Gelu, "classifier.out_proj"),
    };
    let first = first_token(draft, hidden);
    let inner = LinearLayer::new(dense, width, width).activate(draft, &first, activation)?;
    LinearLayer::new(last, width, config.labels).apply(draft, &inner)
}

/// The mean over the tokens that are not padding.
fn mean(draft: &mut OnnxDraft<'_>, hidden: &str) -> String {
    let mask = cast(draft, ATTENTION_MASK, element::BOOL);
    let mask = cast(draft, &mask, element::FLOAT);
    let (last, tokens) = (draft.longs(&[-1]), draft.longs(&[1]));
    let mask = draft.node("Unsqueeze", &[&mask, &last], Vec::new());
    let seen = draft.node("Mul", &[hidden, &mask], Vec::new());
    let mut sum =
        |value: &str| draft.node("ReduceSum", &[value, &tokens], vec![AttributeMessage::integer("keepdims", 0)]);
    let (sum, count) = (sum(&seen), sum(&mask));
    draft.node("Div", &[&sum, &count], Vec::new())
}

/// `ModernBERT`'s layer before each of its heads; the value itself in other families.
fn predict(draft: &mut OnnxDraft<'_>, config: &TransformerConfig, input: &str) -> Result<String, Error> {
    if config.family != Family::Modernbert {
        return Ok(input.to_owned());
    }
    let own = config.rotary()?;
    let linear = LinearLayer::new("head.dense", config.width, config.width);
    let linear = LinearLayer { has_bias: own.has_classifier_bias, ..linear };
    let inner = linear.activate(draft, input, own.classifier_activation)?;
    norm(config, own, "head.norm").apply(draft, &inner)
}

/// The scores of each token as begin and end of the answer.
fn answer(draft: &mut OnnxDraft<'_>, config: &TransformerConfig, hidden: &str) -> Result<(), Error> {
    let hidden = predict(draft, config, hidden)?;
    let name = if config.family == Family::Modernbert { "classifier" } else { "qa_outputs" };
    let logits = LinearLayer::new(name, config.width, 2).apply(draft, &hidden)?;
    let logits = unflatten(draft, logits, 2);
    let last = draft.longs(&[-1]);
    for (part, name) in draft.split(&logits, 1, 2).iter().zip(["start_logits", "end_logits"]) {
        let scores = draft.node("Squeeze", &[part, &last], Vec::new());
        draft.output(&scores, name, true, &[]);
    }
    Ok(())
}

/// The names of a masked language model's head.
struct WordHead {
    dense: &'static str,
    norm: &'static str,
    activation: HiddenActivation,
    decoder: &'static str,
    /// The names that its bias may have, that of the layer first: transformers computes with it.
    biases: &'static [&'static str],
}

impl WordHead {
    fn of(config: &TransformerConfig) -> Result<Self, Error> {
        let activation = config.activation;
        Ok(match config.family {
            Family::DebertaV2 if !config.disentangled()?.is_legacy => Self {
                dense: "lm_predictions.lm_head.dense",
                norm: "lm_predictions.lm_head.LayerNorm",
                activation,
                decoder: "lm_predictions.lm_head.decoder",
                biases: &["lm_predictions.lm_head.bias"],
            },
            Family::Bert | Family::DebertaV2 | Family::Modernbert => Self {
                dense: "cls.predictions.transform.dense",
                norm: "cls.predictions.transform.LayerNorm",
                activation,
                decoder: "cls.predictions.decoder",
                biases: &["cls.predictions.decoder.bias", "cls.predictions.bias"],
            },
            Family::Camembert | Family::Mpnet | Family::Roberta | Family::XlmRoberta => Self {
                dense: "lm_head.dense",
                norm: "lm_head.layer_norm",
                activation: HiddenActivation::Gelu,
                decoder: "lm_head.decoder",
                biases: &["lm_head.decoder.bias", "lm_head.bias"],
            },
            Family::Distilbert => Self {
                dense: "vocab_transform",
                norm: "vocab_layer_norm",
                activation,
                decoder: "vocab_projector",
                biases: &["vocab_projector.bias"],
            },
            Family::Electra => Self {
                dense: "generator_predictions.dense",
                norm: "generator_predictions.LayerNorm",
                activation: HiddenActivation::Gelu,
                decoder: "generator_lm_head",
                biases: &["generator_lm_head.bias"],
            },
        })
    }
}

/// The scores of all words at each token.
fn score_words(draft: &mut OnnxDraft<'_>, config: &TransformerConfig, hidden: &str) -> Result<String, Error> {
    if config.family == Family::Modernbert {
        let hidden = predict(draft, config, hidden)?;
        let has_bias = config.rotary()?.has_decoder_bias;
        return decode(draft, config, &hidden, "decoder", if has_bias { &["decoder.bias"] } else { &[] });
    }
    let head = WordHead::of(config)?;
    let dense = LinearLayer::new(head.dense, config.width, config.embedding_width);
    let inner = dense.activate(draft, hidden, head.activation)?;
    let inner = NormLayer::new(head.norm, config.embedding_width, config).apply(draft, &inner)?;
    decode(draft, config, &inner, head.decoder, head.biases)
}

/// The product with the decoder's weights, which are those of the word embeddings if the two are tied.
fn decode(
    draft: &mut OnnxDraft<'_>,
    config: &TransformerConfig,
    input: &str,
    name: &str,
    biases: &[&str],
) -> Result<String, Error> {
    let (words, weight) = (if config.family == Family::Modernbert { TOKENS } else { WORDS }, format!("{name}.weight"));
    let shape = [config.vocabulary, config.embedding_width];
    let tied = draft.tensor(words, &shape)?;
    let own = (draft.has(&weight) || !config.is_tied).then(|| draft.tensor(&weight, &shape)).transpose()?;
    let product = match own.filter(|own| !own.is_same(tied)) {
        Some(_) if config.is_tied => {
            return Err(Error::invalid(format!(
                "tensor '{weight}' differs from '{words}', and by 'tie_word_embeddings' in config.json they are one"
            )));
        }
        Some(own) => product_with(draft, input, &weight, own, config.embedding_width),
        None => {
            let words = table(draft, words, config.vocabulary, config.embedding_width)?;
            let columns = transpose(draft, &words, &[1, 0]);
            draft.node("MatMul", &[input, &columns], Vec::new())
        }
    };
    let Some(first) = biases.first() else { return Ok(product) };
    let bias = biases.iter().find(|name| draft.has(name)).unwrap_or(first);
    let bias = vector(draft, bias, config.vocabulary)?;
    Ok(add_bias(draft, product, Some(&bias)))
}

/// The begins of names, without the encoder's prefix, of tensors that only another head than the model's has, or that
/// are no weights: transformers ignores them too.
pub(crate) const IDLE: &[&str] = &[
    "classifier.",
    "cls.",
    "decoder.",
    "discriminator_predictions.",
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "generator_lm_head.",
    "generator_predictions.",
    "head.",
    "lm_head.",
    "lm_predictions.",
    "mask_predictions.",
    "pooler.",
    "pre_classifier.",
    "qa_outputs.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "vocab_transform.",
];
