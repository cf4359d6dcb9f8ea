//! `config.json` of a text encoder: its family, its head and its sizes, all bounded. Settings under which the model
//! computes something else than this crate writes are refused by name.

mod disentangled;
mod fields;
mod rotary;

use base::error::Error;
use wire::json::JsonValue;

use crate::limits::{HEADS_MAX, LABELS_MAX, LAYERS_MAX, POSITIONS_MAX, TABLE_ELEMENTS_MAX, VOCABULARY_MAX, WIDTH_MAX};
pub(crate) use disentangled::DisentangledSettings;
use fields::{ConfigFields, shown, unexpected};
pub(crate) use rotary::RotarySettings;

/// The architecture of an encoder, `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// BERT.
    Bert,
    /// `CamemBERT`: RoBERTa for French.
    Camembert,
    /// `DeBERTa` versions 2 and 3.
    DebertaV2,
    /// `DistilBERT`.
    Distilbert,
    /// ELECTRA.
    Electra,
    /// `ModernBERT`.
    Modernbert,
    /// MPNet.
    Mpnet,
    /// RoBERTa.
    Roberta,
    /// XLM-RoBERTa.
    XlmRoberta,
}

impl Family {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "bert" => Self::Bert,
            "camembert" => Self::Camembert,
            "deberta-v2" => Self::DebertaV2,
            "distilbert" => Self::Distilbert,
            "electra" => Self::Electra,
            "modernbert" => Self::Modernbert,
            "mpnet" => Self::Mpnet,
            "roberta" => Self::Roberta,
            "xlm-roberta" => Self::XlmRoberta,
            _ => return None,
        })
    }

    /// Returns true for RoBERTa and those that differ from it in vocabulary alone.
    pub(crate) const fn is_roberta(self) -> bool {
        matches!(self, Self::Camembert | Self::Roberta | Self::XlmRoberta)
    }
}

/// The part of a model behind its encoder, from `architectures`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelHead {
    /// None: the encoder's last hidden states, `last_hidden_state` `[batch, sequence, width]`.
    Encoder,
    /// A score for each word of the vocabulary at each token, `logits` `[batch, sequence, vocabulary]`.
    MaskedLm,
    /// The encoder's last hidden states, and `pooler_output` `[batch, width]` behind the first of them.
    Pooler,
    /// Scores of each token as begin and end of an answer, `start_logits` and `end_logits` `[batch, sequence]`.
    QuestionAnswering,
    /// A score for each class of a text, `logits` `[batch, classes]`.
    SequenceClassification,
    /// A score for each class of a token, `logits` `[batch, sequence, classes]`.
    TokenClassification,
}

/// The function between the two layers of a feed-forward network, `hidden_act`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HiddenActivation {
    Gelu,
    GeluTanh,
    QuickGelu,
    Relu,
    Silu,
    Tanh,
}

/// A checked `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerConfig {
    pub(crate) family: Family,
    pub(crate) head: ModelHead,
    pub(crate) vocabulary: usize,
    pub(crate) positions: usize,
    /// Kinds of tokens by `token_type_ids`; 0 without such a table.
    pub(crate) token_types: usize,
    /// The width of the embeddings; that of the hidden states in all families but ELECTRA.
    pub(crate) embedding_width: usize,
    pub(crate) width: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) inner_width: usize,
    pub(crate) activation: HiddenActivation,
    pub(crate) norm_epsilon: f32,
    pub(crate) pad_token: usize,
    pub(crate) labels: usize,
    /// The head of a masked language model has the table of word embeddings as its weights.
    pub(crate) is_tied: bool,
    /// `ModernBERT`'s own settings.
    rotary: Option<RotarySettings>,
    /// `DeBERTa`'s own settings.
    disentangled: Option<DisentangledSettings>,
}

impl TransformerConfig {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// `InvalidArgument` if it is malformed, lacks a field or has a value out of bounds; `Unsupported` for a family, a
    /// head or a setting that this crate does not write. Both name the field.
    ///
    /// ```
    /// use transformer::{Family, ModelHead, TransformerConfig};
    ///
    /// let text = br#"{"model_type": "bert", "architectures": ["BertForTokenClassification"], "vocab_size": 30522,
    ///     "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536,
    ///     "max_position_embeddings": 512, "id2label": {"0": "O", "1": "PERSON", "2": "PLACE"}}"#;
    /// let config = TransformerConfig::parse(text).unwrap();
    /// assert_eq!((config.family(), config.head()), (Family::Bert, ModelHead::TokenClassification));
    /// ```
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let document = fields::parse(text)?;
        let fields = ConfigFields { value: document.root() };
        let name = fields.text_or("model_type", "")?;
        let family = Family::named(name).ok_or_else(|| {
            Error::unsupported(format!(
                "config.json: 'model_type' is '{name}'; graphs are written for bert, camembert, deberta-v2, distilbert, \
                 electra, modernbert, mpnet, roberta and xlm-roberta: export others to ONNX"
            ))
        })?;
        check_settings(fields, family)?;
        let head = read_head(fields, family)?;
        let config = Self::read(fields, family, head)?;
        config.check_sizes()?;
        Ok(config)
    }

    fn read(fields: ConfigFields<'_, '_>, family: Family, head: ModelHead) -> Result<Self, Error> {
        let names = FieldNames::of(family);
        let width = fields.size(names.width, WIDTH_MAX)?;
        let embedding_width = match family {
            Family::Electra => fields.size_or("embedding_size", WIDTH_MAX, 128)?,
            Family::DebertaV2 => fields.size_or("embedding_size", WIDTH_MAX, width)?,
            _ => width,
        };
        let types = match family {
            Family::Distilbert | Family::Modernbert | Family::Mpnet => 0,
            Family::DebertaV2 => fields.count_or("type_vocab_size", VOCABULARY_MAX, 0)?,
            _ => fields.count_or("type_vocab_size", VOCABULARY_MAX, 2)?,
        };
        let epsilon = match family {
            Family::Distilbert => 1e-12,
            Family::Modernbert => fields.positive_or("norm_eps", 1e-5)?,
            Family::DebertaV2 => fields.positive_or("layer_norm_eps", 1e-7)?,
            _ => fields.positive_or("layer_norm_eps", 1e-12)?,
        };
        let layers = fields.size(names.layers, LAYERS_MAX)?;
        let disentangled = (family == Family::DebertaV2).then(|| DisentangledSettings::read(fields)).transpose()?;
        let pad = if family.is_roberta() { 1 } else { 0 };
        Ok(Self {
            family,
            head,
            vocabulary: fields.size("vocab_size", VOCABULARY_MAX)?,
            positions: fields.size("max_position_embeddings", POSITIONS_MAX)?,
            token_types: types,
            embedding_width,
            width,
            layers,
            heads: fields.size(names.heads, HEADS_MAX)?,
            inner_width: fields.size(names.inner_width, WIDTH_MAX)?,
            activation: activation(fields, names.activation)?,
            norm_epsilon: epsilon as f32,
            // MPNet's code has the number, whatever its configuration says.
            pad_token: if family == Family::Mpnet {
                1
            } else {
                fields.count_or("pad_token_id", VOCABULARY_MAX, pad)?
            },
            labels: label_count(fields)?,
            is_tied: fields.is_set("tie_word_embeddings", true)?
                || disentangled.as_ref().is_some_and(|own| !own.is_legacy),
            disentangled,
            rotary: (family == Family::Modernbert).then(|| RotarySettings::read(fields, layers)).transpose()?,
        })
    }

    /// The architecture.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// The head that `architectures` names.
    pub const fn head(&self) -> ModelHead {
        self.head
    }

    /// The same encoder with another head: sentence-transformers uses the encoder of a folder whatever its
    /// `architectures` are. The file must have the tensors of the head.
    #[must_use]
    pub fn with_head(self, head: ModelHead) -> Self {
        Self { head, ..self }
    }

    /// Returns true if the model has the input `token_type_ids`. RoBERTa's models have one kind of token, which needs
    /// no input.
    pub const fn has_token_types(&self) -> bool {
        self.token_types > 1
    }

    /// `DeBERTa`'s own settings.
    pub(crate) fn disentangled(&self) -> Result<&DisentangledSettings, Error> {
        self.disentangled.as_ref().ok_or_else(|| Error::internal("a DeBERTa without its settings"))
    }

    /// `ModernBERT`'s own settings.
    pub(crate) fn rotary(&self) -> Result<&RotarySettings, Error> {
        self.rotary.as_ref().ok_or_else(|| Error::internal("a ModernBERT without its settings"))
    }

    /// Width of one attention head.
    pub(crate) const fn head_width(&self) -> usize {
        self.width / self.heads
    }

    fn check_sizes(&self) -> Result<(), Error> {
        let Self { width, heads, labels, .. } = self;
        let names = FieldNames::of(self.family);
        if width % heads != 0 {
            let (width_name, heads_name) = (names.width, names.heads);
            return Err(Error::invalid(format!(
                "config.json: '{width_name}' {width} is not a multiple of '{heads_name}' {heads}"
            )));
        }
        if self.rotary.is_some() && (width / heads) % 2 != 0 {
            let text =
                format!("config.json: heads of width {} cannot be rotated: expected an even width", width / heads);
            return Err(Error::invalid(text));
        }
        let table = match self.family {
            Family::Modernbert => self.positions * self.head_width(),
            Family::Mpnet => self.positions * 2 * heads,
            _ => 0,
        };
        if table > TABLE_ELEMENTS_MAX {
            return Err(Error::invalid(format!(
                "config.json: tables by 'max_position_embeddings' {} would have {table} elements; at most \
                 {TABLE_ELEMENTS_MAX} are written",
                self.positions
            )));
        }
        if (self.family.is_roberta() || self.family == Family::Mpnet) && self.pad_token + 1 >= self.positions {
            return Err(Error::invalid(format!(
                "config.json: 'max_position_embeddings' {} leaves no position behind 'pad_token_id' {}",
                self.positions, self.pad_token
            )));
        }
        if self.head == ModelHead::QuestionAnswering && *labels != 2 {
            let text = format!("config.json: {labels} labels; question answering has 2, the begin and the end");
            return Err(Error::invalid(text));
        }
        Ok(())
    }
}

/// The names of the sizes; those of `DistilBERT` are its own.
struct FieldNames {
    width: &'static str,
    layers: &'static str,
    heads: &'static str,
    inner_width: &'static str,
    activation: &'static str,
}

impl FieldNames {
    const fn of(family: Family) -> Self {
        match family {
            Family::Distilbert => Self {
                width: "dim",
                layers: "n_layers",
                heads: "n_heads",
                inner_width: "hidden_dim",
                activation: "activation",
            },
            Family::Modernbert => Self { activation: "hidden_activation", ..Self::of(Family::Bert) },
            _ => Self {
                width: "hidden_size",
                layers: "num_hidden_layers",
                heads: "num_attention_heads",
                inner_width: "intermediate_size",
                activation: "hidden_act",
            },
        }
    }
}

/// Settings that lead to another computation, each with the value that is supported; any other is refused.
const FIXED: &[(&str, Option<&str>)] = &[
    ("auto_map", None),
    ("quantization_config", None),
    ("pruned_heads", None),
    ("is_decoder", Some("false")),
    ("is_encoder_decoder", Some("false")),
    ("add_cross_attention", Some("false")),
    ("position_embedding_type", Some("'absolute'")),
];

fn check_settings(fields: ConfigFields<'_, '_>, family: Family) -> Result<(), Error> {
    for (name, supported) in FIXED {
        let Some(value) = fields.find(name) else { continue };
        let is_empty = value.members().next().is_none() && value.elements().next().is_none();
        let is_supported = match supported {
            Some(supported) => shown(value) == *supported,
            // An empty list of heads to remove is common.
            None => is_empty && matches!(shown(value).as_str(), "an object" | "a list"),
        };
        // ModernBERT has no such table; some of its files carry the field.
        let is_without = family == Family::Modernbert && *name == "position_embedding_type";
        if !is_supported && !is_without {
            let expected = supported.map_or("absent".to_owned(), |supported| format!("{supported} or absent"));
            return Err(Error::unsupported(format!(
                "config.json: '{name}' is {}, and graphs are written only if it is {expected}: export the model to ONNX",
                shown(value)
            )));
        }
    }
    Ok(())
}

fn read_head(fields: ConfigFields<'_, '_>, family: Family) -> Result<ModelHead, Error> {
    let Some(architectures) = fields.find("architectures") else { return Ok(ModelHead::Encoder) };
    let name = match architectures.elements().next() {
        Some(name) => name.as_str().ok_or_else(|| unexpected("architectures", name, "names of classes"))?,
        None => return Ok(ModelHead::Encoder),
    };
    let head = match name.rsplit_once("For") {
        None if name.ends_with("Model") => Some(ModelHead::Encoder),
        Some((_, "MaskedLM")) => Some(ModelHead::MaskedLm),
        Some((_, "QuestionAnswering")) => Some(ModelHead::QuestionAnswering),
        Some((_, "SequenceClassification")) => Some(ModelHead::SequenceClassification),
        Some((_, "TokenClassification")) => Some(ModelHead::TokenClassification),
        // ELECTRA's discriminator is used for its encoder; BERT's first head is that of masked words.
        Some((_, "PreTraining")) if family == Family::Electra => Some(ModelHead::Encoder),
        Some((_, "PreTraining")) if family == Family::Bert => Some(ModelHead::MaskedLm),
        _ => None,
    };
    head.ok_or_else(|| {
        Error::unsupported(format!(
            "config.json: 'architectures' is '{name}'; graphs are written for …Model, …ForMaskedLM, …ForQuestionAnswering, \
             …ForSequenceClassification and …ForTokenClassification: export others to ONNX"
        ))
    })
}

fn label_count(fields: ConfigFields<'_, '_>) -> Result<usize, Error> {
    match fields.object("id2label")? {
        None => fields.size_or("num_labels", LABELS_MAX, 2),
        Some(labels) => match labels.value.members().take(LABELS_MAX + 1).count() {
            0 => Err(Error::invalid("config.json: 'id2label' is empty, expected the names of the classes")),
            count if count > LABELS_MAX => {
                Err(Error::invalid(format!("config.json: 'id2label' has more than {LABELS_MAX} classes")))
            }
            count => Ok(count),
        },
    }
}

/// The activation that a field names, by the table of transformers (`ACT2FN`).
fn activation(fields: ConfigFields<'_, '_>, name: &str) -> Result<HiddenActivation, Error> {
    match fields.text_or(name, "gelu")? {
        "gelu" | "gelu_python" => Ok(HiddenActivation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(HiddenActivation::GeluTanh),
        "quick_gelu" => Ok(HiddenActivation::QuickGelu),
        "relu" => Ok(HiddenActivation::Relu),
        "silu" | "swish" => Ok(HiddenActivation::Silu),
        "tanh" => Ok(HiddenActivation::Tanh),
        other => Err(Error::unsupported(format!(
            "config.json: '{name}' is '{other}', expected gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, quick_gelu, relu, \
             silu or tanh"
        ))),
    }
}

/// The elements of a list that are texts.
fn texts<'d>(value: JsonValue<'d, '_>) -> Vec<&'d str> {
    value.elements().filter_map(JsonValue::as_str).collect()
}

#[cfg(test)]
mod tests;
