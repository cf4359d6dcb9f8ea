//! `tokenize`: texts as tokens of a `tokenizer.json`, as Python's `tokenizers` and the fast tokenizers of
//! `transformers` give them.
//!
//! The crate `tokenizers` does the work, one row after the other on the calling thread: its own batches run
//! on a pool of threads, which a server with pinned cores has no room for. A panic of the crate ends the
//! request.

mod bert;
mod characters;
mod encoder;
mod expansion;
pub(crate) mod file;
mod prompts;
mod rows;
mod rules;
mod settings;
mod shown;
mod template;
mod windows;

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use self::encoder::TextEncoder;
use self::expansion::Expansion;
use self::file::{guarded, read_config, read_tokenizer};
use self::prompts::Prompts;
use self::rows::{Form, TokenRows};
use self::rules::{EncodingRules, RowCut};
use self::settings::{Padding, Width, read_padding, read_truncation};
use self::windows::Windows;
use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPadding, StepPort};
use crate::limits::{TEXT_SIZE_MAX, TOKENS_MAX};
use crate::shown_token::ShowsTokens;
use crate::tensors::{integers, strings, trailing};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "tokenize",
    about: "Turns texts into tokens by a `tokenizer.json`, as `tokenizer(text, padding=True, truncation=True)` of the Python \
            package `transformers` with a fast tokenizer. Of the files only what the parameters name is read: the classes of \
            `transformers` that change a tokenizer after they load it are not asked.",
    inputs: &[
        StepPort { name: "text", about: "BYTES [N] or [N, 1] in UTF-8: each element is a row.", is_optional: false },
        StepPort {
            name: "pair",
            about: "BYTES with as many elements: the second text of each row.",
            is_optional: true,
        },
        StepPort {
            name: "prompt_name",
            about: "BYTES with as many elements: the name of the prompt of each row, one of `prompts`. Requests without it get \
                    `prefix`.",
            is_optional: true,
        },
        StepPort {
            name: "truncation",
            about: "BYTES with as many elements: how a row that is too long is cut off, in place of the parameters: `left`, \
                    `right`, or `off`, which refuses it. Requests may leave it out.",
            is_optional: true,
        },
        StepPort {
            name: "given_ids",
            about: "INT64 [N, T] with as many rows: the tokens of a row, which are taken as they are in place of its text. They end \
                    at the first -1; a row without any has its text. Requests may leave it out.",
            is_optional: true,
        },
    ],
    outputs: &[
        StepPort { name: "ids", about: "[N, T]: the tokens (`input_ids`).", is_optional: false },
        StepPort {
            name: "mask",
            about: "[N, T]: 1 for a token, 0 for padding (`attention_mask`).",
            is_optional: false,
        },
        StepPort {
            name: "type_ids",
            about: "[N, T]: the text that a token is from (`token_type_ids`).",
            is_optional: false,
        },
        StepPort {
            name: "special_mask",
            about: "[N, T]: 1 for padding and the tokens that were added to the text (`special_tokens_mask`).",
            is_optional: false,
        },
        StepPort {
            name: "offsets",
            about: "[N, T, 2]: the first character of a token and the one after its last, as indices of a Python `str` \
                    (`offset_mapping`); zeros for special tokens and padding. A `prefix` counts.",
            is_optional: false,
        },
        StepPort { name: "length", about: "[N]: the number of tokens without padding.", is_optional: false },
        StepPort {
            name: "positions",
            about: "[N, T]: the places of tokens in their row (`position_ids`), from `first_position`; the place before it \
                    for padding, but at least 0.",
            is_optional: false,
        },
        StepPort {
            name: "texts",
            about: "[N, T]: 1 for a token of `text`, 2 for one of `pair`, 0 for special tokens and padding.",
            is_optional: false,
        },
        StepPort {
            name: "words",
            about: "[N, T]: the word of its text that a token is a part of, from 1 (`word_ids` and 1); 0 for special tokens \
                    and padding.",
            is_optional: false,
        },
        StepPort {
            name: "keep",
            about: "[N, T]: 1 for a token whose vector counts, 0 for one of `skip_tokens` and padding.",
            is_optional: false,
        },
        StepPort {
            name: "window_of",
            about: "[N]: the row of `text` that each row of the outputs is from, from 0 (`overflow_to_sample_mapping`). With `stride` \
                    all outputs have a row for each window.",
            is_optional: false,
        },
    ],
    fields: FIELDS,
    is_short: false,
    build: |fields| Ok(Box::new(Tokenize::build(fields)?)),
};

const SIDES: FieldKind = FieldKind::Choice(&["left", "right"]);

const FIELDS: &[Field] = &[
    Field { name: "file", kind: FieldKind::File, default: FieldDefault::Required, about: "The `tokenizer.json`." },
    Field {
        name: "config",
        kind: FieldKind::File,
        default: FieldDefault::Unset,
        about: "The `tokenizer_config.json` beside it, for `model_max_length`, `pad_token`, `padding_side` and \
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
        kind: FieldKind::Choice(&["longest_first", "only_first", "only_second", "off", "file", "refuse"]),
        default: FieldDefault::Json("\"longest_first\""),
        about: "The text of a pair that is shortened if a row has more than `max_length` tokens; `file` does as the \
                `tokenizer.json` says, and `refuse` makes it an error. If no length is known, nothing is shortened.",
    },
    Field {
        name: "stride",
        kind: FieldKind::Integer(0, TOKENS_MAX as i64),
        default: FieldDefault::Unset,
        about: "Makes windows of a pair that is too long, in place of cutting it off: each row has the first text and a part of the \
                second, which shares this number of tokens with the part before (`return_overflowing_tokens`). Needs \
                `\"truncation\": \"only_second\"` and the output `window_of`.",
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
        name: "prompts",
        kind: FieldKind::Json,
        default: FieldDefault::Json("{}"),
        about: "An object from names to texts, of which `prompt_name` chooses the one that is put before a `text`, in place of \
                `prefix`.",
    },
    Field {
        name: "first_position",
        kind: FieldKind::Integer(0, TOKENS_MAX as i64),
        default: FieldDefault::Json("0"),
        about: "The first of `positions`: that of RoBERTa's networks is `pad_token_id` and 1.",
    },
    Field {
        name: "skip_tokens",
        kind: FieldKind::Texts,
        default: FieldDefault::Unset,
        about: "Tokens of the vocabulary without a vector, for `keep`: pylate's `skiplist_words`.",
    },
    Field {
        name: "expansion",
        kind: FieldKind::Json,
        default: FieldDefault::Json("{}"),
        about: "`{\"prompt\": \"query\", \"length\": 32, \"token\": \"[MASK]\", \"is_seen\": false}`: rows of this prompt are \
                shortened to a length, and filled up to it with a token, which `mask` has if it is seen; all their tokens \
                count in `keep`. pylate's query expansion.",
    },
    Field {
        name: "datatype",
        kind: FieldKind::Choice(&["INT64", "INT32"]),
        default: FieldDefault::Json("\"INT64\""),
        about: "The datatype of all outputs.",
    },
];

struct Tokenize {
    encoder: TextEncoder,
    padding: Padding,
    prefix: String,
    prompts: Prompts,
    datatype: Datatype,
    expansion: Expansion,
    first_position: u32,
    /// Rows with more tokens are refused.
    refused_above: Option<usize>,
    windows: Option<Windows>,
    /// For each output, true if the list connects it.
    wanted: [bool; 11],
}

const OFFSETS: usize = 4;
const LENGTH: usize = 5;
const WINDOW_OF: usize = 10;

impl Tokenize {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let file = read_tokenizer(fields)?;
        let config = read_config(fields)?;
        let is_pair = fields.is_connected(1);
        let truncation = read_truncation(fields, &file, &config, is_pair)?;
        let padding = read_padding(fields, &file, &config, truncation.length)?;
        let windows = Windows::read(fields, truncation.length)?;
        let rules = EncodingRules {
            // Windows have all tokens.
            truncation: truncation.params.filter(|_| windows.is_none()),
            adds_special_tokens: fields.flag("add_special_tokens"),
            has_offsets: fields.is_wanted(OFFSETS),
            is_pair,
        };
        let expansion = Expansion::read(fields, &file)?;
        let encoder = TextEncoder::new(file.tokenizer, rules).map_err(|why| fields.error("file", &why))?;
        Ok(Self {
            encoder,
            padding,
            prefix: fields.text("prefix"),
            prompts: Prompts::read(fields)?,
            datatype: Datatype::from_name(&fields.text("datatype")).unwrap_or(Datatype::Int64),
            expansion,
            first_position: fields.count("first_position").and_then(|first| u32::try_from(first).ok()).unwrap_or(0),
            refused_above: truncation.refused_above,
            windows,
            wanted: std::array::from_fn(|output| fields.is_wanted(output)),
        })
    }

    /// The rows of a request, and the text that each is from.
    fn encoded(&self, given: &GivenRows<'_>) -> Result<(TokenRows, Vec<usize>), String> {
        let mut rows = TokenRows::new(given.texts.len());
        let mut sources = Vec::with_capacity(given.texts.len());
        let mut prefixed = String::new();
        for (index, text) in given.texts.iter().enumerate() {
            let cut = given.cuts.get(index).copied().unwrap_or_default();
            let ids = given.ids.get(index).copied().unwrap_or_default();
            let encoded = if ids.is_empty() {
                let prefix = given.prompts.get(index).map_or(&self.prefix[..], |(_, prefix)| prefix);
                let text = if prefix.is_empty() {
                    text
                } else {
                    prefixed.clear();
                    prefixed.push_str(prefix);
                    prefixed.push_str(text);
                    &prefixed[..]
                };
                let pair = given.pairs.as_ref().and_then(|pairs| pairs.get(index)).copied();
                self.encoder.encode_cut(text, pair, cut, &mut rows)
            } else {
                self.encoder.take_ids(ids, cut, &mut rows)
            };
            let encoded = encoded.and_then(|()| self.windows.map_or(Ok(()), |windows| windows.divide(&mut rows)));
            encoded.map_err(|why| format!("'text' has the element {index} that cannot be tokenized: {why}"))?;
            let length = rows.row_mut().len();
            if let Some(most) = self.refused_above.filter(|most| length > *most) {
                return Err(format!(
                    "'text' has the element {index} with {length} tokens, more than the {most} that may be"
                ));
            }
            let name = given.prompts.get(index).map(|(name, _)| *name);
            self.expansion.apply(name, &mut rows);
            rows.end_row()?;
            sources.resize(rows.count(), index);
        }
        Ok((rows, sources))
    }

    fn outputs(&self, form: &Form, rows: &TokenRows, sources: &[usize]) -> Vec<Option<Tensor>> {
        let [ids, mask, type_ids, special_mask, offsets, length, positions, texts, words, keep, window_of] =
            self.wanted;
        vec![
            ids.then(|| form.tensor(rows, |token| token.id)),
            mask.then(|| form.mask(rows)),
            type_ids.then(|| form.tensor(rows, |token| token.type_id)),
            special_mask.then(|| form.tensor(rows, |token| u32::from(token.is_special))),
            offsets.then(|| form.offsets(rows)),
            (length || self.padding().is_some()).then(|| form.lengths(rows)),
            positions.then(|| form.positions(rows, self.first_position)),
            texts.then(|| form.tensor(rows, |token| token.text)),
            words.then(|| form.tensor(rows, |token| token.word)),
            keep.then(|| form.kept(rows)),
            window_of.then(|| form.counts(sources)),
        ]
    }
}

impl Step for Tokenize {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(text)) = inputs.first() else { return Ok(Vec::new()) };
        let texts = texts("text", text, self.prefix.len().max(self.prompts.size_max()))?;
        let beside = |index: usize, port: &str| {
            let Some(Some(tensor)) = inputs.get(index) else { return Ok(None) };
            let elements = self::texts(port, tensor, 0)?;
            if elements.len() != texts.len() {
                let (count, wanted) = (elements.len(), texts.len());
                return Err(Error::invalid(format!(
                    "'{port}' must have {wanted} elements as 'text' has, but it has {count}"
                )));
            }
            Ok(Some(elements))
        };
        let pairs = beside(1, "pair")?;
        let prompts = beside(2, "prompt_name")?.unwrap_or_default();
        let prompt = |name| self.prompts.find(name).map(|text| (name, text));
        let prompts = prompts.into_iter().map(prompt).collect::<Result<Vec<_>, _>>()?;
        let cuts = beside(3, "truncation")?.unwrap_or_default();
        let cuts = cuts.into_iter().map(cut_of).collect::<Result<Vec<_>, _>>()?;
        let numbers = match inputs.get(4).copied().flatten() {
            Some(tensor) => Some((integers("given_ids", tensor)?, width_of_ids(tensor, texts.len())?)),
            None => None,
        };
        let ids = numbers.as_ref().map_or_else(Vec::new, |(numbers, width)| rows_of_ids(numbers, *width));
        let given = GivenRows { texts, pairs, prompts, cuts, ids };
        let (rows, sources) = guarded(|| self.encoded(&given)).map_err(Error::invalid)?;
        let form = self.padding.form(&rows, self.datatype)?;
        Ok(self.outputs(&form, &rows, &sources))
    }

    fn padding(&self) -> Option<StepPadding> {
        let Padding { width: Width::Longest, multiple, is_left, pad } = self.padding else { return None };
        let before_first = f64::from(self.first_position.saturating_sub(1));
        let numbers = [f64::from(pad.id), 0.0, f64::from(pad.type_id), 1.0, 0.0].map(Some).into_iter().chain([None]);
        let numbers = numbers.chain([before_first, 0.0, 0.0, 0.0].map(Some)).chain([None]).collect();
        Some(StepPadding { numbers, lengths: LENGTH, multiple: u32::try_from(multiple).unwrap_or(u32::MAX), is_left })
    }

    fn row_sources(&self) -> Option<usize> {
        self.windows.is_some().then_some(WINDOW_OF)
    }

    fn tokenizer(&self) -> Option<&dyn ShowsTokens> {
        Some(self)
    }
}

/// The rows of a request. The lists behind the texts are empty if it does not have them.
struct GivenRows<'a> {
    texts: Vec<&'a str>,
    pairs: Option<Vec<&'a str>>,
    /// The name and the text of each.
    prompts: Vec<(&'a str, &'a str)>,
    cuts: Vec<RowCut>,
    ids: Vec<&'a [i64]>,
}

fn cut_of(name: &str) -> Result<RowCut, Error> {
    let wrong = || Error::invalid(format!("'truncation' has \"{}\": must be left, right or off", name.escape_debug()));
    RowCut::from_name(name).ok_or_else(wrong)
}

/// The width of the tokens that a request has in place of texts.
fn width_of_ids(tensor: &Tensor, rows: usize) -> Result<usize, Error> {
    let (count, [width]) = trailing("given_ids", "[tokens]", tensor)?;
    if count != rows || count.saturating_mul(width) > TOKENS_MAX {
        let shape = &tensor.shape[..];
        return Err(Error::invalid(format!(
            "'given_ids' must have {rows} rows as 'text' has, and at most {TOKENS_MAX} tokens, but its shape is {shape:?}"
        )));
    }
    Ok(width)
}

/// The tokens of each row: up to the first -1.
fn rows_of_ids(numbers: &[i64], width: usize) -> Vec<&[i64]> {
    let own = |row: &'_ [i64]| row.iter().position(|id| *id == NO_ID).unwrap_or(row.len());
    numbers.chunks(width.max(1)).map(|row| row.get(..own(row)).unwrap_or_default()).collect()
}

/// Ends the tokens of a row.
const NO_ID: i64 = -1;

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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::StepList;
    use crate::tensors::{integers, of_floats, of_strings};
    use crate::trial_tokenizer::tokenizer_json;

    /// The list of one step that writes all outputs, or the error without the place of the step.
    fn list(parameters: &str, file: &str, config: &str, has_pair: bool) -> Result<StepList, String> {
        let pair = if has_pair { r#", "pair": "pair""# } else { "" };
        let outputs =
            KIND.outputs.iter().map(|port| format!("\"{0}\": \"{0}\"", port.name)).collect::<Vec<_>>().join(", ");
        let text = format!(
            r#"{{"steps": [{{"step": "tokenize", "inputs": {{"text": "text"{pair}}}, "outputs": {{{outputs}}},
            "file": "t.json"{parameters}}}]}}"#
        );
        let read = |name: &str, _| match name {
            "t.json" => Ok(file.as_bytes().to_vec()),
            "c.json" => Ok(config.as_bytes().to_vec()),
            _ => Err("no such file".to_owned()),
        };
        StepList::read(&text, &read).map_err(|why| {
            let text = why.text().replace("step 1: line 2: ", "");
            text.replace("step 1: line 1: ", "")
        })
    }

    fn run(list: &StepList, text: &Tensor, pair: Option<&Tensor>) -> Result<Vec<Tensor>, String> {
        let names: Vec<_> = KIND.outputs.iter().map(|port| port.name).collect();
        let input = |name: &str| if name == "text" { Some(text.clone()) } else { pair.cloned() };
        let outputs = list.run(input, &names).map_err(|why| why.text().replace("step 1 (tokenize): ", ""))?;
        Ok(outputs.into_iter().map(Option::unwrap).collect())
    }

    fn numbers(tensor: &Tensor) -> Vec<i64> {
        integers("output", tensor).unwrap().into_owned()
    }

    #[test]
    fn rows_are_padded_and_each_token_has_its_place_in_the_text() {
        let step = list(r#", "pad_token": "[PAD]""#, &tokenizer_json(""), "", false).unwrap();
        let text = of_strings(&[2, 1], ["Hellos, \u{4e2d} CAF\u{c9}", "b"]);
        let got = run(&step, &text, None).unwrap();
        assert_eq!(got[0].shape[..], [2, 7]);
        assert_eq!(numbers(&got[0]), [2, 4, 6, 9, 10, 11, 3, 2, 8, 3, 0, 0, 0, 0]);
        assert_eq!(numbers(&got[1]), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(numbers(&got[3]), [1, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1]);
        assert_eq!(got[4].shape[..], [2, 7, 2]);
        assert_eq!(numbers(&got[4])[..16], [0, 0, 0, 5, 5, 6, 6, 7, 8, 9, 10, 14, 0, 0, 0, 0]);
        assert_eq!(numbers(&got[5]), [7, 3]);
    }

    #[test]
    fn pairs_are_shortened_and_typed() {
        let parameters = r#", "padding": "off", "max_length": 7, "datatype": "INT32""#;
        let step = list(parameters, &tokenizer_json(""), "", true).unwrap();
        let (text, pair) = (of_strings(&[1], ["a a a a"]), of_strings(&[1], ["b b b"]));
        let got = run(&step, &text, Some(&pair)).unwrap();
        assert_eq!(got[0].datatype, Datatype::Int32);
        assert_eq!(numbers(&got[0]), [2, 7, 7, 3, 8, 8, 3]);
        assert_eq!(numbers(&got[2]), [0, 0, 0, 0, 1, 1, 1]);
        // Without the second text, which is optional.
        assert_eq!(numbers(&run(&step, &text, None).unwrap()[0]), [2, 7, 7, 7, 7, 3]);
    }

    #[test]
    fn a_pair_that_is_too_long_becomes_windows() {
        let windows = r#", "pad_id": 0, "max_length": 7, "truncation": "only_second", "stride": "#;
        let step = list(&format!("{windows}1"), &tokenizer_json(""), "", true).unwrap();
        let (text, pair) = (of_strings(&[2], ["a a", "a"]), of_strings(&[2], ["b hello b b", "b"]));
        let got = run(&step, &text, Some(&pair)).unwrap();
        let rows = [2, 7, 7, 3, 8, 4, 3, 2, 7, 7, 3, 4, 8, 3, 2, 7, 7, 3, 8, 8, 3, 2, 7, 3, 8, 3, 0, 0];
        assert_eq!((&got[0].shape[..], numbers(&got[0])), (&[4, 7][..], rows.to_vec()));
        assert_eq!(numbers(&got[4])[22..26], [2, 7, 8, 9], "places are those in the whole text");
        assert_eq!(numbers(&got[5]), [7, 7, 7, 5]);
        assert_eq!(numbers(&got[10]), [0, 0, 0, 1]);
        let check = |text: &str, want: &str| {
            let got = run(&step, &of_strings(&[1], [text]), Some(&of_strings(&[1], ["b b b"])));
            let want = format!("'text' has the element 0 that cannot be tokenized: {want}");
            assert_eq!(got.err(), Some(want), "{text}");
        };
        check("a a a", "the first text leaves 1 tokens for the second, of which windows share 1");
        check(&"a ".repeat(9), "the first text leaves 0 tokens for the second, of which windows share 1");
        let fault = |parameters: &str, want: &str| {
            let got = list(parameters, &tokenizer_json(""), "", true).err();
            assert_eq!(got, Some(format!("\"stride\": {want}")), "{parameters}");
        };
        fault(&format!("{windows}7"), "must be less than the 7 tokens of a row");
        fault(r#", "pad_id": 0, "stride": 1"#, "needs \"truncation\": \"only_second\", the text that windows divide");
        let expansion = r#", "expansion": {"prompt": "q", "length": 4}"#;
        fault(&format!("{windows}1{expansion}"), "cannot be given with \"expansion\"");
    }

    #[test]
    fn lengths_and_sides_come_from_the_list_then_the_config_then_the_file() {
        let file = tokenizer_json(
            r#""truncation": {"direction": "Left", "max_length": 5, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 6}, "direction": "Left", "pad_to_multiple_of": 4, "pad_id": 0, "pad_type_id": 0,
            "pad_token": "[PAD]"},"#,
        );
        let config = r#"{"model_max_length": 4, "pad_token": {"content": "b"}, "padding_side": "right", "truncation_side": "right"}"#;
        let text = of_strings(&[1], ["hello a b world"]);
        let ids = |parameters: &str| {
            let step = list(parameters, &file, config, false).unwrap_or_else(|why| panic!("{parameters}: {why}"));
            numbers(&run(&step, &text, None).unwrap()[0])
        };
        assert_eq!(ids(""), [2, 7, 8, 5, 3]);
        assert_eq!(ids(r#", "padding": "file""#), [0, 0, 0, 2, 7, 8, 5, 3]);
        assert_eq!(ids(r#", "config": "c.json""#), [2, 4, 7, 3]);
        assert_eq!(ids(r#", "config": "c.json", "truncation": "file""#), [2, 4, 7, 8, 3]);
        assert_eq!(ids(r#", "config": "c.json", "pad_to_multiple_of": 6"#), [2, 4, 7, 3, 8, 8]);
        assert_eq!(ids(r#", "config": "c.json", "padding_side": "left", "pad_to_multiple_of": 5"#), [8, 2, 4, 7, 3]);
        assert_eq!(ids(r#", "config": "c.json", "truncation_side": "left""#), [2, 8, 5, 3]);
        assert_eq!(ids(r#", "padding": "max_length", "max_length": 7, "pad_id": 9"#), [9, 2, 4, 7, 8, 5, 3]);
        assert_eq!(ids(r#", "truncation": "off", "padding": "off""#), [2, 4, 7, 8, 5, 3]);
        assert_eq!(
            ids(r#", "truncation": "off", "padding": "off", "add_special_tokens": false, "prefix": "a ""#),
            [7, 4, 7, 8, 5]
        );
        let unlimited = list(
            r#", "config": "c.json""#,
            &tokenizer_json(""),
            r#"{"model_max_length": 1e30, "pad_token": "a"}"#,
            false,
        );
        assert_eq!(run(&unlimited.unwrap(), &of_strings(&[1], ["a ".repeat(2000)]), None).unwrap()[0].shape[1], 2002);
    }

    #[test]
    fn wrong_parameters_and_files_are_named() {
        let file = tokenizer_json("");
        let check = |parameters: &str, config: &str, want: &str| {
            let got = list(parameters, &file, config, false).err();
            assert_eq!(got.as_deref(), Some(want), "{parameters} {config}");
        };
        check("", "", "\"padding\": needs \"pad_token\" or \"pad_id\": neither file names a padding token");
        check(r#", "pad_token": "x""#, "", "\"pad_token\": the padding token \"x\" is not in the vocabulary");
        check(r#", "pad_token": "a", "pad_id": 1"#, "", "\"pad_id\": cannot be given with \"pad_token\"");
        let needs = "needs the parameter \"max_length\": neither file has a length";
        check(r#", "padding": "max_length""#, "", &format!("\"padding\": {needs}"));
        check(r#", "truncation": "longest_first""#, "", &format!("\"truncation\": {needs}"));
        check(r#", "truncation": "only_second""#, "", "\"truncation\": \"only_second\" needs the input \"pair\"");
        check(r#", "max_length": 1"#, "", "\"max_length\": is 1, but 2 special tokens are added to each row");
        check(r#", "config": "x.json""#, "", "\"config\": cannot read 'x.json': no such file");
        let bad = |config: &str, why: &str| {
            let want = format!("\"config\": 'c.json' is not a valid tokenizer_config.json: {why}");
            check(r#", "config": "c.json""#, config, &want);
        };
        bad("[]", "it is not an object");
        bad(r#"{"model_max_length": "x"}"#, "\"model_max_length\" must be a number");
        bad(r#"{"model_max_length": -1}"#, "\"model_max_length\" must be an integer from 0, but it is -1");
        bad(r#"{"padding_side": "up"}"#, "\"padding_side\" must be \"left\" or \"right\"");
        bad(r#"{"pad_token": 1}"#, "\"pad_token\" must be a string, or an object with \"content\"");
        bad(r#"{"pad_token": {}}"#, "\"pad_token\" has no \"content\"");
        let why = list("", "{}", "", false).err().unwrap();
        assert!(why.starts_with("\"file\": 't.json' is not a valid tokenizer.json: "), "{why}");
        let panics = file.replace("{\"type\": \"BertPreTokenizer\"}", "{\"type\": \"FixedLength\", \"length\": 0}");
        let why = list("", &panics, "", false).err().unwrap();
        assert!(why.contains("the tokenizer panicked: "), "{why}");
        let wide = tokenizer_json(
            r#""padding": {"strategy": {"Fixed": 9000000}, "direction": "Left", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": ""},"#,
        );
        let why = list(r#", "padding": "file""#, &wide, "", false).err().unwrap();
        assert_eq!(why, "\"padding\": pads to more than 2097152 tokens, the most of a request");
    }

    #[test]
    fn wrong_tensors_are_named() {
        let file = tokenizer_json("");
        let check = |parameters: &str, text: &Tensor, pair: Option<&Tensor>, want: &str| {
            let step = list(parameters, &file, "", true).unwrap();
            assert_eq!(run(&step, text, pair).err().as_deref(), Some(want));
        };
        let one = of_strings(&[1], ["a"]);
        let bare = r#", "padding": "off""#;
        check(bare, &of_floats(&[1], vec![1.0]), None, "'text' must hold BYTES, but it is FP32");
        let shape = "'text' must have the shape [N] or [N, 1] with N elements, but its shape is [1, 2] and it has 2";
        check(bare, &of_strings(&[1, 2], ["a", "b"]), None, shape);
        let shape = "'text' must have the shape [N] or [N, 1] with N elements, but its shape is [3] and it has 1";
        check(bare, &of_strings(&[3], ["a"]), None, shape);
        check(bare, &of_strings(&[2], [&b"a"[..], b"\xff"]), None, "'text' has the element 1 that is not UTF-8");
        check(bare, &one, Some(&of_strings(&[1], [b"\xff"])), "'pair' has the element 0 that is not UTF-8");
        let count = "'pair' must have 1 elements as 'text' has, but it has 2";
        check(bare, &one, Some(&of_strings(&[2], ["a", "b"])), count);
        let ragged = "'text' has elements of different numbers of tokens without padding: 3 in the first, 4 in element 1; \
                      \"padding\" can be \"longest\"";
        check(bare, &of_strings(&[2], ["a", "a b"]), None, ragged);
        let long =
            "'text' has an element of 5 tokens, more than the 4 that rows are padded to; \"truncation\" shortens it";
        let fixed = r#", "padding": "max_length", "max_length": 4, "truncation": "off", "pad_id": 0"#;
        check(fixed, &of_strings(&[1], ["a b a"]), None, long);
        let size = TEXT_SIZE_MAX - 1;
        let large = format!("'text' has the element 0 of {TEXT_SIZE_MAX} bytes, more than {size}");
        check(r#", "padding": "off", "prefix": "a""#, &of_strings(&[1], ["a".repeat(TEXT_SIZE_MAX)]), None, &large);
        let wide = format!(
            "'text' has 65536 elements of 100 tokens with padding, more than the {TOKENS_MAX} tokens that one request may have"
        );
        let fixed = r#", "padding": "max_length", "max_length": 100, "pad_id": 0"#;
        check(fixed, &of_strings(&[65_536], vec!["a"; 65_536]), None, &wide);
        let many = format!("the request has more than {TOKENS_MAX} tokens, the most that one may have");
        check(bare, &of_strings(&[5], vec!["a ".repeat(500_000); 5]), None, &many);
        let id = "the id 4294967295 does not fit INT32; \"datatype\" can be \"INT64\"";
        check(r#", "pad_id": 4294967295, "datatype": "INT32""#, &one, None, id);
    }

    #[test]
    fn no_rows_have_no_tokens() {
        let step = list(r#", "pad_id": 0"#, &tokenizer_json(""), "", false).unwrap();
        let got = run(&step, &of_strings::<&str>(&[0], []), None).unwrap();
        assert_eq!(
            got.iter().map(|output| output.shape[..].to_vec()).collect::<Vec<_>>()[..2],
            [vec![0, 0], vec![0, 0]]
        );
    }
}
