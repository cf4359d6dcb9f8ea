//! `answer`: the scores of begin and end of each token to the answer in a context.

use std::borrow::Cow;

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::tensors::{floats, integers, of_numbers, rows_and, shape_of, strings, trailing};
use crate::texts::TextWriter;
use crate::vector::softmax;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "answer",
    about: "Finds the answer to a question in its context, as the pipeline `question-answering` of transformers: \
            the span of the context's tokens with the highest product of the probabilities of its begin and its end, to the \
            borders of words. The first token, `[CLS]`, has a share of the probabilities too. Of several windows of a context the \
            best span counts; each has its own probabilities. Without a span, the answer is empty with score 0.",
    inputs: &[
        port("starts", "Numbers [.., tokens]: the score of each token as begin of the answer."),
        port("ends", "Numbers [.., tokens]: the score of each token as end."),
        port("texts", "Integers [.., tokens]: 2 for the tokens of the context, as `tokenize` writes them."),
        port("words", "Integers [.., tokens]: the word of a token, as `tokenize` writes it."),
        port("offsets", "Integers [.., tokens, 2]: where each token begins and ends in its text, in characters."),
        port("context", "BYTES [..]: the contexts."),
        StepPort {
            is_optional: true,
            ..port(
                "window_of",
                "Integers [..]: the element of `context` that each row is of, if rows are windows, as `tokenize` writes it.",
            )
        },
    ],
    outputs: &[
        port("answer", "BYTES [..]: the answer."),
        port("score", "FP32 [..]: its probability."),
        port("start", "INT64 [..]: where it begins in the context, in characters."),
        port("end", "INT64 [..]: where it ends."),
    ],
    fields: &[Field {
        name: "max_tokens",
        kind: FieldKind::Integer(1, 65_536),
        default: FieldDefault::Json("15"),
        about: "Tokens that an answer has at most: transformers' `max_answer_len`.",
    }],
    is_short: false,
    build: |fields| Ok(Box::new(AnswerSearch::build(fields))),
};

const fn port(name: &'static str, about: &'static str) -> StepPort {
    StepPort { name, about, is_optional: false }
}

struct AnswerSearch {
    tokens_max: usize,
}

/// The tokens of a row.
struct AnswerRow<'a> {
    texts: &'a [i64],
    words: &'a [i64],
    offsets: &'a [[i64; 2]],
}

/// The text of `tokenize` that is the context.
const CONTEXT: i64 = 2;
/// The score of other tokens, as transformers has it: no share is left of it.
const LEFT_OUT: f32 = -10_000.0;

impl AnswerSearch {
    fn build(fields: &StepFields<'_>) -> Self {
        Self { tokens_max: fields.count("max_tokens").unwrap_or(15) }
    }

    /// The tokens at which the answer begins and ends, and its probability.
    fn span(&self, starts: &[f32], ends: &[f32], row: &AnswerRow<'_>) -> Option<(usize, usize, f32)> {
        let [starts, ends] = [starts, ends].map(|scores| probabilities(scores, row));
        let mut best: Option<(usize, usize, f32)> = None;
        for (start, of_start) in starts.iter().enumerate().filter(|(_, score)| **score > 0.0) {
            let near = ends.iter().enumerate().skip(start).take(self.tokens_max);
            for (end, of_end) in near {
                let score = of_start * of_end;
                if score > best.map_or(0.0, |(.., score)| score) {
                    best = Some((start, end, score));
                }
            }
        }
        best
    }
}

/// The probabilities of the context's tokens; 0 for all others.
fn probabilities(scores: &[f32], row: &AnswerRow<'_>) -> Vec<f32> {
    let mut scores = scores.to_vec();
    for (place, (score, text)) in scores.iter_mut().zip(row.texts).enumerate() {
        if place > 0 && *text != CONTEXT {
            *score = LEFT_OUT;
        }
    }
    let mut shares = Vec::new();
    softmax(&scores, &mut shares);
    shares.first_mut().into_iter().for_each(|first| *first = 0.0);
    shares
}

impl AnswerRow<'_> {
    /// The characters of the context from the word of one token to that of another.
    fn characters(&self, first: usize, last: usize) -> [i64; 2] {
        let tokens = || self.texts.iter().zip(self.words).zip(self.offsets);
        let own = |place: usize| self.offsets.get(place).copied().unwrap_or_default();
        let in_word = |place: usize| {
            let word = self.words.get(place).copied().filter(|word| *word > 0);
            tokens().filter(move |((text, of), _)| **text == CONTEXT && Some(**of) == word).map(|(_, offsets)| *offsets)
        };
        let [start, _] = in_word(first).next().unwrap_or_else(|| own(first));
        let [_, end] = in_word(last).next_back().unwrap_or_else(|| own(last));
        [start, end]
    }
}

/// The windows of a request.
struct AnswerWindows<'a> {
    /// Tokens of each.
    width: usize,
    starts: Cow<'a, [f32]>,
    ends: Cow<'a, [f32]>,
    texts: Cow<'a, [i64]>,
    words: Cow<'a, [i64]>,
    offsets: Cow<'a, [i64]>,
    /// For each, its context.
    contexts: Vec<usize>,
}

impl<'a> AnswerWindows<'a> {
    /// # Errors
    /// `InvalidArgument` if the tensors do not fit each other.
    fn read(inputs: [&'a Tensor; 6], window_of: Option<&Tensor>, contexts: usize) -> Result<Self, Error> {
        let [starts, ends, texts, words, offsets, context] = inputs;
        let (rows, [width]) = trailing("starts", "[tokens]", starts)?;
        let of = Self {
            width,
            starts: floats("starts", starts)?,
            ends: floats("ends", ends)?,
            texts: integers("texts", texts)?,
            words: integers("words", words)?,
            offsets: integers("offsets", offsets)?,
            contexts: match window_of {
                Some(tensor) => window_places(tensor, rows, contexts)?,
                None => (0..rows).collect(),
            },
        };
        let count = rows.saturating_mul(width);
        let sizes = [
            ("ends", ends, of.ends.len(), count),
            ("texts", texts, of.texts.len(), count),
            ("words", words, of.words.len(), count),
            ("offsets", offsets, of.offsets.len(), count.saturating_mul(2)),
            ("context", context, contexts, if window_of.is_some() { contexts } else { rows }),
        ];
        match sizes.iter().find(|(.., have, want)| have != want) {
            Some((port, tensor, ..)) => {
                let shape = &tensor.shape[..];
                Err(Error::invalid(format!(
                    "'{port}' must fit the {rows} rows of {width} tokens that 'starts' has, but its shape is {shape:?}"
                )))
            }
            None => Ok(of),
        }
    }

    /// For each context the characters of its answer and their probability: of its best window, the first of equals.
    fn answers(&self, search: &AnswerSearch, contexts: usize) -> Vec<([i64; 2], f32)> {
        let mut best = vec![([0, 0], 0.0); contexts];
        for (window, context) in self.contexts.iter().enumerate() {
            let place = window * self.width..(window + 1) * self.width;
            let row = AnswerRow {
                texts: self.texts.get(place.clone()).unwrap_or_default(),
                words: self.words.get(place.clone()).unwrap_or_default(),
                offsets: self.offsets.as_chunks().0.get(place.clone()).unwrap_or_default(),
            };
            let [starts, ends] = [&self.starts, &self.ends].map(|scores| scores.get(place.clone()).unwrap_or_default());
            if let (Some((first, last, score)), Some(best)) = (search.span(starts, ends, &row), best.get_mut(*context))
                && score > best.1
            {
                *best = (row.characters(first, last), score);
            }
        }
        best
    }
}

/// The context of each window.
fn window_places(tensor: &Tensor, rows: usize, contexts: usize) -> Result<Vec<usize>, Error> {
    let places = integers("window_of", tensor)?;
    let place = |place: &i64| usize::try_from(*place).ok().filter(|place| *place < contexts);
    let found: Option<Vec<_>> = places.iter().map(place).collect();
    found.filter(|found| found.len() == rows).ok_or_else(|| {
        let shape = &tensor.shape[..];
        Error::invalid(format!(
            "'window_of' must have for each of {rows} rows one of the {contexts} elements of 'context', from 0, but its shape is \
             {shape:?} and its largest number {}",
            places.iter().max().copied().unwrap_or_default()
        ))
    })
}

impl Step for AnswerSearch {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let [Some(starts), Some(ends), Some(texts), Some(words), Some(offsets), Some(context), window_of] = inputs
        else {
            return Ok(Vec::new());
        };
        let contexts = strings("context", context)?;
        let windows =
            AnswerWindows::read([*starts, *ends, *texts, *words, *offsets, *context], *window_of, contexts.len())?;
        let (mut answers, mut scores) = (TextWriter::default(), Vec::with_capacity(contexts.len()));
        let [mut begins, mut stops] = [const { Vec::new() }; 2];
        for ((index, text), ([start, end], score)) in
            contexts.iter().enumerate().zip(windows.answers(self, contexts.len()))
        {
            let text = std::str::from_utf8(text);
            let text =
                text.map_err(|_| Error::invalid(format!("'context' has the element {index} that is not UTF-8")))?;
            let part = characters(text, start, end).ok_or_else(|| {
                Error::invalid(format!(
                    "'offsets' has {start} to {end}, which element {index} of 'context' does not have"
                ))
            })?;
            answers.push("answer", part.as_bytes())?;
            scores.push(score);
            begins.push(start);
            stops.push(end);
        }
        let shape = match window_of {
            Some(_) => shape_of(&[contexts.len()]),
            None => rows_and(starts, 1, &[]),
        };
        let numbers = |values| Some(Tensor { shape: shape.clone(), ..of_numbers(Datatype::Int64, &[], values) });
        Ok(vec![
            Some(answers.into_tensor(shape.clone())),
            Some(Tensor { shape: shape.clone(), ..of_numbers(Datatype::Fp32, &[], scores) }),
            numbers(begins),
            numbers(stops),
        ])
    }
}

/// The characters of a text from one place to another; `None` if it has no such.
fn characters(text: &str, start: i64, end: i64) -> Option<&str> {
    let place = |index: i64| {
        let index = usize::try_from(index).ok()?;
        text.char_indices().map(|(place, _)| place).chain([text.len()]).nth(index)
    };
    text.get(place(start)?..place(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{of_floats, of_strings};
    use crate::trial::{fault, run};

    fn longs(shape: &[usize], values: Vec<i64>) -> Tensor {
        of_numbers(Datatype::Int64, shape, values)
    }

    /// `[CLS] who [SEP] Zoë Müll ##er [SEP] [PAD]`.
    fn inputs(starts: [f32; 8], ends: [f32; 8], context: &str) -> [(&'static str, Tensor); 6] {
        let offsets = vec![0, 0, 0, 3, 0, 0, 0, 3, 4, 8, 8, 10, 0, 0, 0, 0];
        [
            ("starts", of_floats(&[1, 8], starts.to_vec())),
            ("ends", of_floats(&[1, 8], ends.to_vec())),
            ("texts", longs(&[1, 8], vec![0, 1, 0, 2, 2, 2, 0, 0])),
            ("words", longs(&[1, 8], vec![0, 1, 0, 1, 2, 2, 0, 0])),
            ("offsets", longs(&[1, 8, 2], offsets)),
            ("context", of_strings(&[1, 1], [context])),
        ]
    }

    const OUTPUTS: [&str; 4] = ["answer", "score", "start", "end"];

    #[test]
    fn the_best_span_of_the_context_reaches_to_the_borders_of_words() {
        let check = |starts: [f32; 8], ends: [f32; 8], members: &str, want: (&str, [i64; 2])| {
            let tensors = inputs(starts, ends, "Zoë Müller.");
            let tensors: Vec<_> = tensors.iter().map(|(port, tensor)| (*port, tensor)).collect();
            let got = run("answer", &tensors, &OUTPUTS, members).unwrap();
            let place = [&got[2], &got[3]].map(|tensor| integers("", tensor).unwrap()[0]);
            assert_eq!((strings("", &got[0]).unwrap()[0], place), (want.0.as_bytes(), want.1));
            floats("", &got[1]).unwrap()[0]
        };
        let low = [0.0; 8];
        // The question and special tokens are no answers, whatever their scores.
        let mut high = [9.0, 99.0, 99.0, 0.0, 0.0, 7.0, 99.0, 99.0];
        let score = check(high, low, "", ("Müller", [4, 10]));
        let share = 7_f32.exp() / (9_f32.exp() + 2.0 + 7_f32.exp()) / 4.0;
        assert!((score - share).abs() < 1e-6, "{score} {share}");
        high[3] = 8.0;
        check(high, [0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0], "", ("Zoë Müller", [0, 10]));
        check(high, [0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0], "\"max_tokens\": 1", ("Müller", [4, 10]));
    }

    #[test]
    fn the_best_window_of_a_context_has_its_answer() {
        let low = [0.0; 8];
        let high = |place: usize, score: f32| std::array::from_fn(|index| if index == place { score } else { 0.0 });
        let rows = [inputs(high(3, 2.0), low, ""), inputs(high(5, 7.0), low, ""), inputs(high(3, 7.0), low, "")];
        let joined = |port: usize| {
            let first = &rows[0][port].1;
            let contents = rows.iter().map(|row| &row[port].1.contents[..]).collect::<Vec<_>>().concat();
            let shape = std::iter::once(3).chain(first.shape[1..].iter().copied()).collect();
            Tensor { shape, contents: contents.into(), ..first.clone() }
        };
        let tensors: Vec<_> = (0..5).map(joined).collect();
        let contexts = of_strings(&[2], ["Zoë Müller.", "Max Meier."]);
        let run_of = |window_of: Vec<i64>| {
            let window_of = longs(&[window_of.len()], window_of);
            let names = ["starts", "ends", "texts", "words", "offsets"];
            let mut given: Vec<_> = names.into_iter().zip(&tensors).collect();
            given.extend([("context", &contexts), ("window_of", &window_of)]);
            run("answer", &given, &OUTPUTS, "")
        };
        let got = run_of(vec![0, 0, 1]).unwrap();
        assert_eq!(strings("", &got[0]).unwrap(), ["Müller".as_bytes(), b"Max"]);
        assert_eq!(got[0].shape[..], [2]);
        let scores = floats("", &got[1]).unwrap();
        assert!(scores[0] == scores[1], "each window has its own probabilities: {scores:?}");
        // A context without a window.
        let got = run_of(vec![0, 0, 0]).unwrap();
        assert_eq!(strings("", &got[0]).unwrap()[1], b"");
        for (window_of, largest) in [(vec![0, 0], 0), (vec![0, 0, 2], 2), (vec![0, -1, 1], 1)] {
            let shape = [window_of.len()];
            let want = format!(
                "'window_of' must have for each of 3 rows one of the 2 elements of 'context', from 0, but its shape is \
                 {shape:?} and its largest number {largest}"
            );
            assert_eq!(run_of(window_of).unwrap_err(), want);
        }
    }

    #[test]
    fn a_row_without_a_context_has_an_empty_answer() {
        let mut tensors = inputs([1.0; 8], [1.0; 8], "");
        tensors[2].1 = longs(&[1, 8], vec![0; 8]);
        let tensors: Vec<_> = tensors.iter().map(|(port, tensor)| (*port, tensor)).collect();
        let got = run("answer", &tensors, &OUTPUTS, "").unwrap();
        assert_eq!((strings("", &got[0]).unwrap()[0].len(), floats("", &got[1]).unwrap()[0]), (0, 0.0));
    }

    #[test]
    fn faults_are_named() {
        let check = |place: usize, tensor: Tensor, want: &str| {
            let mut tensors = inputs([1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 1.0, 1.0], [1.0; 8], "Zoë Müller");
            tensors[place].1 = tensor;
            let tensors: Vec<_> = tensors.iter().map(|(port, tensor)| (*port, tensor)).collect();
            assert_eq!(fault("answer", &tensors, &OUTPUTS, ""), want);
        };
        let fit = |port: &str, shape: &str| {
            format!("'{port}' must fit the 1 rows of 8 tokens that 'starts' has, but its shape is {shape}")
        };
        check(1, of_floats(&[1, 7], vec![0.0; 7]), &fit("ends", "[1, 7]"));
        check(4, longs(&[1, 8], vec![0; 8]), &fit("offsets", "[1, 8]"));
        check(5, of_strings(&[2], ["a", "b"]), &fit("context", "[2]"));
        check(5, of_strings(&[1], [b"\xff"]), "'context' has the element 0 that is not UTF-8");
        check(5, of_strings(&[1], ["Zoë"]), "'offsets' has 4 to 10, which element 0 of 'context' does not have");
        let floats = of_floats(&[1, 8], vec![0.0; 8]);
        check(2, floats, "'texts' must hold integers of at most 64 bits with a sign, but it is FP32");
    }
}
