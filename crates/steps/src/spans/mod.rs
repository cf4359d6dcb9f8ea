//! `spans`: a label for each token to entities in the text.

mod aggregate;

use std::borrow::Cow;

use base::error::Error;
use base::tensor::{Datatype, Tensor, element_count};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::labels;
use crate::limits::TEXTS_SIZE_MAX;
use crate::python_json::{float, string};
use crate::tensors::{floats, integers, of_numbers, rows_and, strings, trailing};
use crate::texts::TextWriter;
use crate::vector::softmax;

use self::aggregate::{Entity, SpanRules, SpanToken, Strategy, aggregated};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "spans",
    about: "Finds entities in a text by a label for each token, as the pipeline `token-classification` of \
            transformers. The text of an entity is that between its offsets. Texts can have different counts of \
            entities: the shorter rows are filled up with empty strings, score 0 and offsets -1, and `counts` has the \
            count of each.",
    inputs: &[
        StepPort { name: "logits", about: "Numbers [.., tokens, labels].", is_optional: false },
        StepPort {
            name: "offsets",
            about: "Integers [.., tokens, 2]: where each token begins and ends in the text, in characters.",
            is_optional: false,
        },
        StepPort { name: "text", about: "BYTES [..]: the texts.", is_optional: false },
        StepPort {
            name: "special_mask",
            about: "Numbers [.., tokens]: 1 for tokens that are left out, such as [CLS]. Without it, tokens of no \
                    length are left out.",
            is_optional: true,
        },
        StepPort {
            name: "mask",
            about: "Numbers [.., tokens]: 0 for padding, which is left out too.",
            is_optional: true,
        },
        StepPort {
            name: "tokens",
            about: "BYTES [.., tokens]: the tokens as the vocabulary has them, for `subwords` `length`.",
            is_optional: true,
        },
    ],
    outputs: &[
        output("json", "BYTES [..]: a list of objects for each text, as `json.dumps` writes them."),
        output("labels", "BYTES [.., n]: the labels."),
        output("scores", "FP32 [.., n]: the scores."),
        output("words", "BYTES [.., n]: the texts of the entities."),
        output("starts", "INT64 [.., n]: where they begin, in characters."),
        output("ends", "INT64 [.., n]: where they end."),
        output("counts", "INT64 [..]: the count of entities of each text."),
    ],
    fields: FIELDS,
    is_short: true,
    build: |fields| Ok(Box::new(Spans::build(fields)?)),
};

const fn output(name: &'static str, about: &'static str) -> StepPort {
    StepPort { name, about, is_optional: false }
}

const FIELDS: &[Field] = &[
    Field {
        name: "strategy",
        kind: FieldKind::Choice(&["none", "simple", "first", "average", "max"]),
        default: FieldDefault::Json("\"simple\""),
        about: "transformers' `aggregation_strategy`. `none`: each token by itself. `simple`: tokens of one label that \
                follow each other, by B- and I-. The others give the tokens of a word one label before: that of its \
                first token, that of the highest mean, or that of the token with the highest score.",
    },
    Field {
        name: "subwords",
        kind: FieldKind::Choice(&["space", "space_before", "length"]),
        default: FieldDefault::Json("\"space\""),
        about: "Which tokens continue a word. `space`: those without a space before them or as their first character, as \
                transformers 5 does for tokenizers without a prefix for subwords. `space_before`: those without a space \
                before them, as early releases. `length`: those whose token is longer than its text, by the input \
                `tokens`, as it does for WordPiece.",
    },
    Field {
        name: "group_label",
        kind: FieldKind::Choice(&["first_hyphen", "last_hyphen"]),
        default: FieldDefault::Json("\"first_hyphen\""),
        about: "The label of grouped tokens: what follows the first hyphen, as in transformers 5, or the last one, as in \
                early releases. It matters for labels such as `B-geo-loc`.",
    },
    Field {
        name: "unknown_token",
        kind: FieldKind::Text,
        default: FieldDefault::Json("\"[UNK]\""),
        about: "The token of unknown words, which never continues one.",
    },
    Field {
        name: "activation",
        kind: FieldKind::Choice(&["softmax", "none"]),
        default: FieldDefault::Json("\"softmax\""),
        about: "`none` if the network ends with a softmax already.",
    },
    Field {
        name: "ignore_labels",
        kind: FieldKind::Texts,
        default: FieldDefault::Json("[\"O\"]"),
        about: "Labels that are left out.",
    },
    Field {
        name: "ascii",
        kind: FieldKind::Bool,
        default: FieldDefault::Json("true"),
        about: "Writes other characters in `json` as `\\u` and four digits, as `json.dumps` does unless `ensure_ascii` is false.",
    },
    labels::LABELS,
    labels::LABELS_FILE,
];

struct Spans {
    rules: SpanRules,
    subwords: Subwords,
    unknown_token: String,
    is_softmax: bool,
    ignored: Vec<String>,
    is_ascii: bool,
    labels: Vec<String>,
}

/// Which tokens continue a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subwords {
    Length,
    Space,
    SpaceBefore,
}

impl Spans {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let labels = labels::read(fields)?;
        if labels.is_empty() {
            return Err(fields.error("labels", "the step needs \"labels\" or \"labels_file\""));
        }
        let subwords = match fields.text("subwords").as_str() {
            "length" => Subwords::Length,
            "space_before" => Subwords::SpaceBefore,
            _ => Subwords::Space,
        };
        if (subwords == Subwords::Length) != fields.is_connected(TOKENS) {
            return Err(fields.error("subwords", "\"length\" and the input \"tokens\" need each other"));
        }
        let strategy = match fields.text("strategy").as_str() {
            "none" => Strategy::None,
            "first" => Strategy::First,
            "average" => Strategy::Average,
            "max" => Strategy::Max,
            _ => Strategy::Simple,
        };
        Ok(Self {
            rules: SpanRules { strategy, takes_last_part: fields.text("group_label") == "last_hyphen" },
            subwords,
            unknown_token: fields.text("unknown_token"),
            is_softmax: fields.text("activation") == "softmax",
            ignored: fields.texts("ignore_labels"),
            is_ascii: fields.flag("ascii"),
            labels,
        })
    }
}

/// The place of `tokens` among the inputs.
const TOKENS: usize = 5;

/// The sizes of a request.
#[derive(Clone, Copy)]
struct SpanSizes {
    rows: usize,
    tokens: usize,
    labels: usize,
}

impl Step for Spans {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let [Some(logits), Some(offsets), Some(text), special, mask, tokens] = inputs else { return Ok(Vec::new()) };
        let (rows, [count, labels]) = trailing("logits", "[tokens, labels]", logits)?;
        if labels != self.labels.len() || count == 0 {
            let (shape, known) = (&logits.shape[..], self.labels.len());
            return Err(Error::invalid(format!(
                "'logits' must have a token and {known} labels, as \"labels\" has, but its shape is {shape:?}"
            )));
        }
        let sizes = SpanSizes { rows, tokens: count, labels };
        let offset_values = integers("offsets", offsets)?;
        check_count(
            "offsets",
            offsets,
            offset_values.len(),
            rows.checked_mul(count).and_then(|all| all.checked_mul(2)),
            sizes,
        )?;
        let texts = strings("text", text)?;
        check_count("text", text, texts.len(), Some(rows), sizes)?;
        let special = special.map(|tensor| numbers_of_tokens("special_mask", tensor, sizes)).transpose()?;
        let mask = mask.map(|tensor| numbers_of_tokens("mask", tensor, sizes)).transpose()?;
        let tokens = tokens.map(|tensor| tokens_of(tensor, sizes)).transpose()?;
        let scores = self.scores(logits, sizes)?;

        let mut found = Vec::with_capacity(rows);
        let each_scores = scores.chunks_exact(count.saturating_mul(labels));
        let each_offsets = offset_values.chunks_exact(count.saturating_mul(2));
        for (row, ((scores, offsets), text)) in each_scores.zip(each_offsets).zip(&texts).enumerate() {
            let text = SpanCharacters::of(row, text)?;
            let start = row.saturating_mul(count);
            let is_left_out = |token: usize, offset: &[i64; 2]| {
                let at = start.saturating_add(token);
                let of = |values: &Option<Cow<'_, [f32]>>| values.as_ref().and_then(|values| values.get(at)).copied();
                of(&special).map_or(offset[0] == offset[1], |special| special != 0.0) || of(&mask) == Some(0.0)
            };
            let mut kept = Vec::new();
            for (index, (scores, offset)) in scores.chunks_exact(labels).zip(offsets.as_chunks::<2>().0).enumerate() {
                if !is_left_out(index, offset) {
                    let token = tokens.as_ref().and_then(|tokens| tokens.get(start.saturating_add(index))).copied();
                    kept.push(self.token(index, scores, *offset, &text, token)?);
                }
            }
            let mut entities = aggregated(&kept, self.rules, &self.labels);
            entities.retain(|entity| !self.ignored.contains(&entity.label));
            found.push((text, entities));
        }
        self.outputs(text, &found)
    }
}

impl Spans {
    fn scores<'a>(&self, logits: &'a Tensor, sizes: SpanSizes) -> Result<Cow<'a, [f32]>, Error> {
        let values = floats("logits", logits)?;
        if !self.is_softmax {
            return Ok(values);
        }
        let mut scores = Vec::with_capacity(values.len());
        for token in values.chunks_exact(sizes.labels) {
            softmax(token, &mut scores);
        }
        Ok(Cow::Owned(scores))
    }

    fn token<'a>(
        &self,
        index: usize,
        scores: &'a [f32],
        [start, end]: [i64; 2],
        text: &SpanCharacters<'_>,
        token: Option<&[u8]>,
    ) -> Result<SpanToken<'a>, Error> {
        let range = text.range(start, end).ok_or_else(|| {
            let count = text.count();
            Error::invalid(format!(
                "'offsets' has {start} to {end} for token {index}, but the text has {count} characters"
            ))
        })?;
        let has_space_before = || range.start.checked_sub(1).is_none_or(|before| text.at(before) == Some(' '));
        let continues = match self.subwords {
            Subwords::Length => {
                let token = token.unwrap_or_default();
                let count = String::from_utf8_lossy(token).chars().count();
                count != range.len() && token != self.unknown_token.as_bytes()
            }
            Subwords::Space => !has_space_before() && text.at(range.start) != Some(' '),
            Subwords::SpaceBefore => !has_space_before(),
        };
        Ok(SpanToken { index, scores, start: range.start, end: range.end, continues })
    }

    fn outputs(
        &self,
        text: &Tensor,
        found: &[(SpanCharacters<'_>, Vec<Entity>)],
    ) -> Result<Vec<Option<Tensor>>, Error> {
        let width = found.iter().map(|(_, entities)| entities.len()).max().unwrap_or(0);
        let (mut json, mut labels, mut words) = (TextWriter::default(), TextWriter::default(), TextWriter::default());
        let cells = || {
            found.iter().flat_map(move |(text, entities)| {
                (0..width).map(move |place| entities.get(place).map(|entity| (text, entity)))
            })
        };
        for (text, entities) in found {
            json.push("json", self.json(text, entities)?.as_bytes())?;
        }
        for cell in cells() {
            labels.push("labels", cell.map_or(&[], |(_, entity)| entity.label.as_bytes()))?;
            words.push("words", cell.map_or("", |(text, entity)| text.slice(entity.start, entity.end)).as_bytes())?;
        }
        let (shape, one) = (rows_and(text, 0, &[width]), rows_and(text, 0, &[]));
        let long = |of: fn(&Entity) -> usize| {
            let values: Vec<i64> = cells().map(|cell| cell.map_or(-1, |(_, entity)| of(entity) as i64)).collect();
            Some(Tensor { shape: shape.clone(), ..of_numbers(Datatype::Int64, &[], values) })
        };
        let scores: Vec<f32> = cells().map(|cell| cell.map_or(0.0, |(_, entity)| entity.score)).collect();
        let counts: Vec<i64> = found.iter().map(|(_, entities)| entities.len() as i64).collect();
        Ok(vec![
            Some(json.into_tensor(one.clone())),
            Some(labels.into_tensor(shape.clone())),
            Some(Tensor { shape: shape.clone(), ..of_numbers(Datatype::Fp32, &[], scores) }),
            Some(words.into_tensor(shape.clone())),
            long(|entity| entity.start),
            long(|entity| entity.end),
            Some(Tensor { shape: one, ..of_numbers(Datatype::Int64, &[], counts) }),
        ])
    }

    fn json(&self, text: &SpanCharacters<'_>, entities: &[Entity]) -> Result<String, Error> {
        let mut out = String::from("[");
        for (place, entity) in entities.iter().enumerate() {
            // Offsets come from clients: each entity can be the whole text.
            if out.len() > TEXTS_SIZE_MAX {
                return Err(Error::invalid(format!("'json' would be larger than {TEXTS_SIZE_MAX} bytes")));
            }
            out.push_str(if place == 0 { "{\"" } else { ", {\"" });
            out.push_str(if self.rules.strategy == Strategy::None { "entity\": " } else { "entity_group\": " });
            string(&entity.label, self.is_ascii, &mut out);
            out.push_str(", \"score\": ");
            float(f64::from(entity.score), &mut out);
            if self.rules.strategy == Strategy::None {
                out.push_str(&format!(", \"index\": {}", entity.index));
            }
            out.push_str(", \"word\": ");
            string(text.slice(entity.start, entity.end), self.is_ascii, &mut out);
            out.push_str(&format!(", \"start\": {}, \"end\": {}}}", entity.start, entity.end));
        }
        out.push(']');
        Ok(out)
    }
}

/// A text by its characters, which offsets count.
struct SpanCharacters<'a> {
    text: &'a str,
    /// The first byte of each character, and the size of the text.
    starts: Vec<usize>,
}

impl<'a> SpanCharacters<'a> {
    fn of(row: usize, text: &'a [u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(text).map_err(|error| {
            Error::invalid(format!("'text' must be UTF-8, but byte {} of element {row} is not", error.valid_up_to()))
        })?;
        let starts = text.char_indices().map(|(start, _)| start).chain([text.len()]).collect();
        Ok(Self { text, starts })
    }

    fn count(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// The characters between two offsets, if there are such.
    fn range(&self, start: i64, end: i64) -> Option<std::ops::Range<usize>> {
        let (start, end) = (usize::try_from(start).ok()?, usize::try_from(end).ok()?);
        (start <= end && end <= self.count()).then_some(start..end)
    }

    fn at(&self, place: usize) -> Option<char> {
        self.text.get(*self.starts.get(place)?..)?.chars().next()
    }

    fn slice(&self, start: usize, end: usize) -> &'a str {
        let bytes = self.starts.get(start).zip(self.starts.get(end));
        bytes.and_then(|(start, end)| self.text.get(*start..*end)).unwrap_or_default()
    }
}

/// A number for each token.
fn numbers_of_tokens<'a>(port: &str, tensor: &'a Tensor, sizes: SpanSizes) -> Result<Cow<'a, [f32]>, Error> {
    let values = floats(port, tensor)?;
    check_count(port, tensor, values.len(), sizes.rows.checked_mul(sizes.tokens), sizes)?;
    Ok(values)
}

fn tokens_of(tensor: &Tensor, sizes: SpanSizes) -> Result<Vec<&[u8]>, Error> {
    let tokens = strings("tokens", tensor)?;
    check_count("tokens", tensor, tokens.len(), sizes.rows.checked_mul(sizes.tokens), sizes)?;
    Ok(tokens)
}

fn check_count(port: &str, tensor: &Tensor, have: usize, want: Option<usize>, sizes: SpanSizes) -> Result<(), Error> {
    if Some(have) == want && element_count(&tensor.shape) == Ok(have) {
        return Ok(());
    }
    let (shape, SpanSizes { rows, tokens, .. }) = (&tensor.shape[..], sizes);
    let text =
        format!("'{port}' must fit the {rows} texts of {tokens} tokens that 'logits' has, but its shape is {shape:?}");
    Err(Error::invalid(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{of_floats, of_strings};
    use crate::trial::{built, fault, run};

    const MEMBERS: &str = r#""labels": ["O", "B-A", "I-A"]"#;

    #[test]
    fn offsets_count_characters() {
        let logits = of_floats(&[1, 4, 3], vec![9.0, 0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 9.0, 9.0, 0.0, 0.0]);
        let offsets = of_numbers(Datatype::Int64, &[1, 4, 2], vec![0_i64, 0, 1, 2, 3, 5, 0, 0]);
        let text = of_strings(&[1, 1], ["éü 𝄞x"]);
        let inputs = [("logits", &logits), ("offsets", &offsets), ("text", &text)];
        let got = run("spans", &inputs, &["words", "starts", "ends", "counts"], MEMBERS).unwrap();
        assert_eq!(strings("", &got[0]).unwrap(), ["ü 𝄞x".as_bytes()]);
        assert_eq!([&got[1], &got[2], &got[3]].map(|tensor| integers("", tensor).unwrap()[0]), [1, 5, 1]);
    }

    #[test]
    fn overlapping_tokens_cannot_multiply_a_text() {
        let (count, size) = (2048_usize, 1 << 17);
        let logits = of_floats(&[1, count, 3], [0.0, 9.0, 0.0].repeat(count));
        let offsets = of_numbers(Datatype::Int64, &[1, count, 2], [0_i64, size as i64].repeat(count));
        let text = of_strings(&[1], ["x".repeat(size)]);
        let inputs = [("logits", &logits), ("offsets", &offsets), ("text", &text)];
        let want = "'json' would be larger than 67108864 bytes";
        assert_eq!(fault("spans", &inputs, &["json"], MEMBERS), want);
    }

    #[test]
    fn faults_are_named() {
        let logits = of_floats(&[1, 2, 3], vec![0.0; 6]);
        let offsets = |values: Vec<i64>| of_numbers(Datatype::Int64, &[1, values.len() / 2, 2], values);
        let text = of_strings(&[1], ["abc"]);
        let check = |logits: &Tensor, offsets: &Tensor, text: &Tensor, want: &str| {
            let inputs = [("logits", logits), ("offsets", offsets), ("text", text)];
            assert_eq!(fault("spans", &inputs, &["json"], MEMBERS), want);
        };
        let fit = |port: &str, shape: &str| {
            format!("'{port}' must fit the 1 texts of 2 tokens that 'logits' has, but its shape is {shape}")
        };
        check(&logits, &offsets(vec![0, 1]), &text, &fit("offsets", "[1, 1, 2]"));
        check(&logits, &offsets(vec![0, 1, 1, 2]), &of_strings(&[2], ["a", "b"]), &fit("text", "[2]"));
        let range =
            |from: i64, to: i64| format!("'offsets' has {from} to {to} for token 1, but the text has 3 characters");
        for [from, to] in [[2, 4], [-1, 1], [2, 1]] {
            check(&logits, &offsets(vec![0, 1, from, to]), &text, &range(from, to));
        }
        let labels = "'logits' must have a token and 3 labels, as \"labels\" has, but its shape is [1, 2, 2]";
        check(&of_floats(&[1, 2, 2], vec![0.0; 4]), &offsets(vec![0, 1, 1, 2]), &text, labels);
        let utf8 = "'text' must be UTF-8, but byte 1 of element 0 is not";
        check(&logits, &offsets(vec![0, 1, 1, 2]), &of_strings(&[1], [b"a\xff"]), utf8);
        let integer = "'offsets' must hold integers of at most 64 bits with a sign, but it is FP32";
        check(&logits, &of_floats(&[1, 2, 2], vec![0.0; 4]), &text, integer);
        let error = built("spans", &["logits", "offsets", "text"], &["json"], "").err().unwrap();
        assert_eq!(error, "step 1: line 1: \"labels\": the step needs \"labels\" or \"labels_file\"");
        let members = format!("{MEMBERS}, \"subwords\": \"length\"");
        let error = built("spans", &["logits", "offsets", "text"], &["json"], &members).err().unwrap();
        assert_eq!(error, "step 1: line 1: \"subwords\": \"length\" and the input \"tokens\" need each other");
    }
}
