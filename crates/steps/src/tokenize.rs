//! `tokenize`: texts as tokens of a `tokenizer.json`, as Python's `tokenizers` and the fast tokenizers of `transformers` give them.
//!
//! The crate `tokenizers` does the work, one row after the other on the calling thread: its own batches run on a pool of threads,
//! which a server with pinned cores has no room for. A panic of the crate ends the request.

mod bert;
mod characters;
mod encoder;
pub(crate) mod file;
mod rows;
mod settings;
mod template;

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use self::encoder::{Encoder, Rules};
use self::file::{guarded, read_config, read_tokenizer};
use self::rows::{Form, Rows};
use self::settings::{Padding, read_padding, read_truncation};
use crate::fields::{Field, FieldDefault, FieldKind, Fields};
use crate::kind::{Port, Step, StepKind};
use crate::limits::{TEXT_SIZE_MAX, TOKENS_MAX};
use crate::tensors::strings;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "tokenize",
    about: "Turns texts into tokens by a `tokenizer.json`, as `tokenizer(text, padding=True, truncation=True)` of the Python \
            package `transformers` with a fast tokenizer. Of the files only what the parameters name is read: the classes of \
            `transformers` that change a tokenizer after they load it are not asked.",
    inputs: &[
        Port { name: "text", about: "BYTES [N] or [N, 1] in UTF-8: each element is a row.", is_optional: false },
        Port { name: "pair", about: "BYTES with as many elements: the second text of each row.", is_optional: true },
    ],
    outputs: &[
        Port { name: "ids", about: "[N, T]: the tokens (`input_ids`).", is_optional: false },
        Port { name: "mask", about: "[N, T]: 1 for a token, 0 for padding (`attention_mask`).", is_optional: false },
        Port {
            name: "type_ids",
            about: "[N, T]: the text that a token is from (`token_type_ids`).",
            is_optional: false,
        },
        Port {
            name: "special_mask",
            about: "[N, T]: 1 for padding and the tokens that were added to the text (`special_tokens_mask`).",
            is_optional: false,
        },
        Port {
            name: "offsets",
            about: "[N, T, 2]: the first character of a token and the one after its last, as indices of a Python `str` \
                    (`offset_mapping`); zeros for special tokens and padding. A `prefix` counts.",
            is_optional: false,
        },
        Port { name: "length", about: "[N]: the number of tokens without padding.", is_optional: false },
    ],
    fields: FIELDS,
    build: |fields| Ok(Box::new(Tokenize::build(fields)?)),
};

const SIDES: FieldKind = FieldKind::Choice(&["left", "right"]);

const FIELDS: &[Field] = &[
    Field { name: "file", kind: FieldKind::File, default: FieldDefault::Required, about: "The `tokenizer.json`." },
    Field {
        name: "config",
        kind: FieldKind::File,
        default: FieldDefault::Unset,
        about: "The `tokenizer_config.json` beside it, for `model_max_length`, `pad_token`, `pad_token_type_id`, `padding_side` and \
                `truncation_side`.",
    },
    Field {
        name: "padding",
        kind: FieldKind::Choice(&["longest", "max_length", "off", "file"]),
        default: FieldDefault::Json("\"longest\""),
        about: "Pads rows to the longest one of the request, or to `max_length`; `file` does as the `tokenizer.json` says. Without \
                padding, rows of different lengths are an error.",
    },
    Field {
        name: "pad_to_multiple_of",
        kind: FieldKind::Integer(1, 65_536),
        default: FieldDefault::Unset,
        about: "Rounds the length of padded rows up to a multiple.",
    },
    Field {
        name: "padding_side",
        kind: SIDES,
        default: FieldDefault::Unset,
        about: "The side that is padded: if not given, that of `config`, then that of `file`, then the right one.",
    },
    Field {
        name: "pad_token",
        kind: FieldKind::Text,
        default: FieldDefault::Unset,
        about: "The token that pads: if not given, that of `config`, then that of `file`.",
    },
    Field {
        name: "pad_id",
        kind: FieldKind::Integer(0, u32::MAX as i64),
        default: FieldDefault::Unset,
        about: "The id of the token that pads, in place of `pad_token`.",
    },
    Field {
        name: "truncation",
        kind: FieldKind::Choice(&["longest_first", "only_first", "only_second", "off", "file"]),
        default: FieldDefault::Json("\"longest_first\""),
        about: "The text of a pair that is shortened if a row has more than `max_length` tokens; `file` does as the \
                `tokenizer.json` says. If no length is known, nothing is shortened.",
    },
    Field {
        name: "max_length",
        kind: FieldKind::Integer(1, TOKENS_MAX as i64),
        default: FieldDefault::Unset,
        about: "Most tokens of a row with special ones: if not given, `model_max_length` of `config`, then the length in the \
                truncation of `file`.",
    },
    Field {
        name: "truncation_side",
        kind: SIDES,
        default: FieldDefault::Unset,
        about: "The side that is cut off: if not given, that of `config`, then that of `file`, then the right one.",
    },
    Field {
        name: "add_special_tokens",
        kind: FieldKind::Bool,
        default: FieldDefault::Json("true"),
        about: "Adds the tokens of the post-processor, such as `[CLS]`.",
    },
    Field {
        name: "prefix",
        kind: FieldKind::Text,
        default: FieldDefault::Unset,
        about: "Is put before each `text`, such as `query: `.",
    },
    Field {
        name: "datatype",
        kind: FieldKind::Choice(&["INT64", "INT32"]),
        default: FieldDefault::Json("\"INT64\""),
        about: "The datatype of all outputs.",
    },
];

struct Tokenize {
    encoder: Encoder,
    padding: Padding,
    prefix: String,
    datatype: Datatype,
    /// For each output, true if the list connects it.
    wanted: [bool; 6],
}

const OFFSETS: usize = 4;

impl Tokenize {
    fn build(fields: &Fields<'_>) -> Result<Self, Error> {
        let file = read_tokenizer(fields)?;
        let config = read_config(fields)?;
        let is_pair = fields.is_connected(1);
        let truncation = read_truncation(fields, &file, &config, is_pair)?;
        let padding = read_padding(fields, &file, &config, truncation.length)?;
        let rules = Rules {
            truncation: truncation.params,
            adds_special_tokens: fields.flag("add_special_tokens"),
            has_offsets: fields.is_wanted(OFFSETS),
            is_pair,
        };
        let encoder = Encoder::new(file.tokenizer, rules).map_err(|why| fields.error("file", &why))?;
        Ok(Self {
            encoder,
            padding,
            prefix: fields.text("prefix"),
            datatype: Datatype::from_name(&fields.text("datatype")).unwrap_or(Datatype::Int64),
            wanted: std::array::from_fn(|output| fields.is_wanted(output)),
        })
    }

    fn encoded(&self, texts: &[&str], pairs: Option<&[&str]>) -> Result<Rows, String> {
        let mut rows = Rows::new(texts.len());
        let mut prefixed = String::new();
        let mut pairs = pairs.into_iter().flatten();
        for (index, text) in texts.iter().enumerate() {
            let text = if self.prefix.is_empty() {
                text
            } else {
                prefixed.clear();
                prefixed.push_str(&self.prefix);
                prefixed.push_str(text);
                &prefixed[..]
            };
            let encoded = self.encoder.encode(text, pairs.next().copied(), &mut rows);
            encoded.map_err(|why| format!("'text' has the element {index} that cannot be tokenized: {why}"))?;
            rows.end_row()?;
        }
        Ok(rows)
    }

    fn outputs(&self, form: &Form, rows: &Rows) -> Vec<Option<Tensor>> {
        let [ids, mask, type_ids, special_mask, offsets, length] = self.wanted;
        vec![
            ids.then(|| form.tensor(rows, |token| token.id)),
            mask.then(|| form.mask(rows)),
            type_ids.then(|| form.tensor(rows, |token| token.type_id)),
            special_mask.then(|| form.tensor(rows, |token| u32::from(token.is_special))),
            offsets.then(|| form.offsets(rows)),
            length.then(|| form.lengths(rows)),
        ]
    }
}

impl Step for Tokenize {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(text)) = inputs.first() else { return Ok(Vec::new()) };
        let texts = texts("text", text, self.prefix.len())?;
        let pairs = match inputs.get(1) {
            Some(Some(pair)) => Some(self::texts("pair", pair, 0)?),
            _ => None,
        };
        if let Some(pairs) = pairs.as_ref().filter(|pairs| pairs.len() != texts.len()) {
            let (count, wanted) = (pairs.len(), texts.len());
            return Err(Error::invalid(format!(
                "'pair' must have {wanted} elements as 'text' has, but it has {count}"
            )));
        }
        let rows = guarded(|| self.encoded(&texts, pairs.as_deref())).map_err(Error::invalid)?;
        let form = self.padding.form(&rows, self.datatype)?;
        Ok(self.outputs(&form, &rows))
    }
}

/// The elements of a tensor of texts, [N] or [N, 1].
fn texts<'a>(port: &str, tensor: &'a Tensor, prefix_size: usize) -> Result<Vec<&'a str>, Error> {
    let elements = strings(port, tensor)?;
    let shape = &tensor.shape[..];
    let count = match shape {
        [count] | [count, 1] => usize::try_from(*count).ok(),
        _ => None,
    };
    if count != Some(elements.len()) {
        return Err(Error::invalid(format!(
            "'{port}' must have the shape [N] or [N, 1] with N elements, but its shape is {shape:?} and it has {}",
            elements.len()
        )));
    }
    let room = TEXT_SIZE_MAX.saturating_sub(prefix_size);
    let text = |(index, element): (usize, &&'a [u8])| {
        if element.len() > room {
            let size = element.len();
            return Err(Error::invalid(format!("'{port}' has the element {index} of {size} bytes, more than {room}")));
        }
        let broken = |_| Error::invalid(format!("'{port}' has the element {index} that is not UTF-8"));
        std::str::from_utf8(element).map_err(broken)
    };
    elements.iter().enumerate().map(text).collect()
}
