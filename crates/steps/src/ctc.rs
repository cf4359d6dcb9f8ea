//! `ctc`: the steps of a recogniser of speech or writing to text.

use base::error::Error;
use base::tensor::{Datatype, Tensor};
use wire::json::Document;

use crate::clean_up::cleaned;
use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::tensors::{floats, of_numbers, rows_and, trailing};
use crate::texts::TextWriter;
use crate::vector::{argmax, exp, mean_as_numpy, sum};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "ctc",
    about: "Decodes the output of a network that was trained with CTC, greedily: takes the best symbol of each time \
            step, drops those that repeat the one before, drops blanks, and joins the others.",
    inputs: &[StepPort {
        name: "logits",
        about: "Numbers [.., time, symbols]: logits or probabilities.",
        is_optional: false,
    }],
    outputs: &[
        StepPort { name: "text", about: "BYTES [..]: the text.", is_optional: false },
        StepPort {
            name: "score",
            about: "FP32 [..]: the mean of the highest values of the time steps that are kept, as PP-OCR; 0 for an \
                    empty text.",
            is_optional: false,
        },
    ],
    fields: &[
        Field {
            name: "vocabulary",
            kind: FieldKind::Texts,
            default: FieldDefault::Unset,
            about: "The symbols: a list, or an object from indices to symbols.",
        },
        Field {
            name: "vocabulary_file",
            kind: FieldKind::File,
            default: FieldDefault::Unset,
            about: "A file with the symbols: a line each, of which only the end of the line is dropped, as PP-OCR \
                    reads its dictionaries; or a `vocab.json`, an object from symbols to indices.",
        },
        Field {
            name: "append_space",
            kind: FieldKind::Bool,
            default: FieldDefault::Json("false"),
            about: "Appends a space to the vocabulary: PP-OCR's `use_space_char`.",
        },
        Field {
            name: "has_blank",
            kind: FieldKind::Bool,
            default: FieldDefault::Json("true"),
            about: "False if the vocabulary lacks the blank, as PP-OCR's does: its symbols then make room for it.",
        },
        Field {
            name: "blank",
            kind: FieldKind::Integer(-(1 << 24), 1 << 24),
            default: FieldDefault::Json("0"),
            about: "The index of the blank; a negative one counts from the end.",
        },
        Field {
            name: "activation",
            kind: FieldKind::Choice(&["none", "softmax"]),
            default: FieldDefault::Json("\"none\""),
            about: "`softmax` makes probabilities of logits, for `score`.",
        },
        Field {
            name: "separator",
            kind: FieldKind::Text,
            default: FieldDefault::Json("\"\""),
            about: "Text between two symbols.",
        },
        Field {
            name: "word_delimiter",
            kind: FieldKind::Text,
            default: FieldDefault::Json("\"\""),
            about: "A symbol that becomes a space; white space around the text is then dropped: `|` of wav2vec2.",
        },
        Field {
            name: "clean_up",
            kind: FieldKind::Bool,
            default: FieldDefault::Json("false"),
            about: "Drops the space before punctuation and before parts such as `n't` and `'s`, as transformers' \
                    `clean_up_tokenization`.",
        },
    ],
    is_short: false,
    build: |fields| Ok(Box::new(Ctc::build(fields)?)),
};

struct Ctc {
    /// The symbols, with one in the place of the blank.
    vocabulary: Vec<String>,
    blank: usize,
    is_softmax: bool,
    separator: String,
    word_delimiter: String,
    cleans_up: bool,
}

impl Ctc {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let file = fields.file("vocabulary_file")?;
        if file.is_some() == fields.is_given("vocabulary") {
            return Err(fields.error("vocabulary", "the step must have either \"vocabulary\" or \"vocabulary_file\""));
        }
        let mut vocabulary = match file {
            Some(file) => symbols_of(&file).map_err(|why| fields.error("vocabulary_file", &why))?,
            None => fields.texts("vocabulary"),
        };
        if fields.flag("append_space") {
            vocabulary.push(" ".to_owned());
        }
        let has_blank = fields.flag("has_blank");
        let count = vocabulary.len() + usize::from(!has_blank);
        let blank = fields.integer("blank").unwrap_or(0);
        let signed = i64::try_from(count).unwrap_or(i64::MAX);
        let place = usize::try_from(if blank < 0 { blank.saturating_add(signed) } else { blank });
        let Some(place) = place.ok().filter(|place| *place < count) else {
            return Err(fields.error("blank", &format!("there are only {count} symbols")));
        };
        if !has_blank {
            vocabulary.insert(place, String::new());
        }
        Ok(Self {
            vocabulary,
            blank: place,
            is_softmax: fields.text("activation") == "softmax",
            separator: fields.text("separator"),
            word_delimiter: fields.text("word_delimiter"),
            cleans_up: fields.flag("clean_up"),
        })
    }

    /// The text of a row, and the highest values of the time steps that are kept.
    fn decode(&self, row: &[f32], symbols: usize) -> (String, Vec<f32>) {
        let (mut text, mut values, mut last) = (String::new(), Vec::new(), None);
        for step in row.chunks_exact(symbols) {
            let best = argmax(step);
            if best != self.blank && last != Some(best) {
                if !values.is_empty() {
                    text.push_str(&self.separator);
                }
                let symbol = self.vocabulary.get(best).map_or("", String::as_str);
                let is_delimiter = !self.word_delimiter.is_empty() && symbol == self.word_delimiter;
                text.push_str(if is_delimiter { " " } else { symbol });
                values.push(self.value(step, best));
            }
            last = Some(best);
        }
        if !self.word_delimiter.is_empty() {
            text = text.trim().to_owned();
        }
        if self.cleans_up {
            text = cleaned(text);
        }
        (text, values)
    }

    fn value(&self, step: &[f32], best: usize) -> f32 {
        let highest = step.get(best).copied().unwrap_or(f32::NAN);
        if !self.is_softmax {
            return highest;
        }
        let powers: Vec<_> = step.iter().map(|value| exp(*value - highest)).collect();
        #[expect(clippy::cast_possible_truncation, reason = "numpy divides by a sum in FP32")]
        let total = sum(&powers) as f32;
        1.0 / total
    }
}

/// The symbols in the contents of a file.
pub(crate) fn symbols_of(file: &[u8]) -> Result<Vec<String>, String> {
    let text = std::str::from_utf8(file).map_err(|error| format!("byte {} is not UTF-8", error.valid_up_to()))?;
    if !text.trim_start().starts_with('{') || Document::parse(file, &[]).is_err() {
        let text = text.strip_suffix('\n').unwrap_or(text);
        return Ok(text.split('\n').map(|line| line.trim_matches(['\r', '\n']).to_owned()).collect());
    }
    let document = Document::parse(file, &[]).map_err(|error| error.to_string())?;
    let mut symbols = vec![None; document.root().members().count()];
    for (symbol, index) in document.root().members() {
        let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
        let place = index.and_then(|index| symbols.get_mut(index));
        *place.ok_or_else(|| format!("the index of \"{symbol}\" must be below the count of symbols"))? =
            Some(symbol.to_owned());
    }
    let symbols: Option<Vec<_>> = symbols.into_iter().collect();
    symbols.ok_or_else(|| "two symbols have the same index".to_owned())
}

impl Step for Ctc {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let (rows, [time, symbols]) = trailing("logits", "[time, symbols]", input)?;
        // Without a row there is nothing to decode: the output of a network that had nothing to read.
        if symbols != self.vocabulary.len() || (time == 0 && rows > 0) {
            let (shape, count) = (&input.shape[..], self.vocabulary.len());
            return Err(Error::invalid(format!(
                "'logits' must have {count} symbols, as the vocabulary with its blank has, and a time step, but its \
                 shape is {shape:?}"
            )));
        }
        let values = floats("logits", input)?;
        let (mut texts, mut scores) = (TextWriter::default(), Vec::with_capacity(rows));
        for row in values.chunks_exact(time.saturating_mul(symbols).max(1)) {
            let (text, values) = self.decode(row, symbols);
            texts.push("text", text.as_bytes())?;
            scores.push(mean_as_numpy(&values));
        }
        let shape = rows_and(input, 2, &[]);
        let scores = Tensor { shape: shape.clone(), ..of_numbers(Datatype::Fp32, &[], scores) };
        Ok(vec![Some(texts.into_tensor(shape)), Some(scores)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{of_floats, of_strings};
    use crate::trial::{built, fault, run};

    #[test]
    fn symbols_are_lines_or_an_object() {
        let check = |text: &str, want: &[&str]| assert_eq!(symbols_of(text.as_bytes()).unwrap(), want, "{text}");
        check("a\r\n \n\u{3000}\n\nb\n", &["a", " ", "\u{3000}", "", "b"]);
        check("{\n}\n[\n", &["{", "}", "["]);
        check("{\"|\": 1, \"<pad>\": 0}", &["<pad>", "|"]);
        let bad = |text: &[u8], want: &str| assert_eq!(symbols_of(text).unwrap_err(), want);
        bad(b"{\"a\": 1}", "the index of \"a\" must be below the count of symbols");
        bad(b"{\"a\": 1, \"b\": 1}", "two symbols have the same index");
        bad(b"a\xff", "byte 1 is not UTF-8");
    }

    #[test]
    fn no_rows_have_no_texts() {
        for shape in [[0, 0, 2], [0, 5, 2]] {
            let logits = of_floats(&shape, vec![]);
            let outputs = run("ctc", &[("logits", &logits)], &["text", "score"], r#""vocabulary": ["", "a"]"#).unwrap();
            assert!(outputs.iter().all(|output| output.shape[..] == [0] && output.contents.is_empty()));
        }
    }

    #[test]
    fn faults_are_named() {
        let check = |tensor: Tensor, want: &str| {
            assert_eq!(fault("ctc", &[("logits", &tensor)], &["text"], r#""vocabulary": ["", "a"]"#), want);
        };
        let symbols =
            "'logits' must have 2 symbols, as the vocabulary with its blank has, and a time step, but its shape is ";
        check(of_floats(&[1, 2, 3], vec![0.0; 6]), &format!("{symbols}[1, 2, 3]"));
        check(of_floats(&[1 << 40, 0, 2], vec![]), &format!("{symbols}[1099511627776, 0, 2]"));
        check(of_strings(&[1, 2], ["a", "b"]), "'logits' must hold numbers, but it is BYTES");
        let bad = |members: &str, want: &str| {
            let error = built("ctc", &["logits"], &["text"], members).err().unwrap();
            assert_eq!(error, format!("step 1: line 1: {want}"));
        };
        bad("", "\"vocabulary\": the step must have either \"vocabulary\" or \"vocabulary_file\"");
        bad(r#""vocabulary": ["a"], "blank": 1"#, "\"blank\": there are only 1 symbols");
        bad(r#""vocabulary": ["a"], "blank": -2"#, "\"blank\": there are only 1 symbols");
    }
}
