//! `detokenize`: texts of tokens, as Python's `tokenizers` decodes them.

use base::error::Error;
use base::tensor::Tensor;
use tokenizers::Tokenizer;

use crate::clean_up::cleaned;
use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{DETOKENIZED_SIZE_MAX, TOKENS_MAX};
use crate::tensors::{integers, of_strings, trailing};
use crate::tokenize::file::{guarded, read_tokenizer};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "detokenize",
    about: "Turns tokens into texts by a `tokenizer.json`, as `decode(ids, skip_special_tokens)` of the Python package \
            `tokenizers`. Ids that the vocabulary does not have are passed over.",
    inputs: &[
        StepPort { name: "ids", about: "Integers [.., T].", is_optional: false },
        StepPort { name: "length", about: "Integers [..]: the first tokens of a row that count.", is_optional: true },
        StepPort { name: "mask", about: "Integers [.., T]: tokens with 0 are passed over.", is_optional: true },
    ],
    outputs: &[StepPort { name: "text", about: "BYTES [..].", is_optional: false }],
    fields: &[
        Field { name: "file", kind: FieldKind::File, default: FieldDefault::Required, about: "The `tokenizer.json`." },
        Field {
            name: "skip_special_tokens",
            kind: FieldKind::Bool,
            default: FieldDefault::Json("true"),
            about: "Leaves out tokens that the file marks as special, such as `[CLS]`.",
        },
        Field {
            name: "clean_up_tokenization_spaces",
            kind: FieldKind::Bool,
            default: FieldDefault::Json("false"),
            about: "Takes the space away before punctuation and English contractions, as `transformers` does; its release 5 \
                    only for tokenizers that are not BPE.",
        },
    ],
    is_short: false,
    build: |fields| Ok(Box::new(Detokenize::build(fields)?)),
};

struct Detokenize {
    tokenizer: Tokenizer,
    skips_special_tokens: bool,
    cleans_up: bool,
    /// Bytes of the longest token.
    token_size_max: usize,
}

impl Detokenize {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let tokenizer = read_tokenizer(fields)?.tokenizer;
        let token_size_max = tokenizer.get_vocab(true).keys().map(String::len).max().unwrap_or(0);
        Ok(Self {
            tokenizer,
            skips_special_tokens: fields.flag("skip_special_tokens"),
            cleans_up: fields.flag("clean_up_tokenization_spaces"),
            token_size_max,
        })
    }

    /// The texts of rows.
    fn decoded(&self, rows: &[Vec<u32>]) -> Result<Vec<String>, String> {
        let too_large =
            || format!("'ids' stand for more than {DETOKENIZED_SIZE_MAX} bytes of text, the most of a request");
        let mut left = DETOKENIZED_SIZE_MAX;
        let mut texts = Vec::with_capacity(rows.len());
        for row in rows {
            if self.size(row) > left {
                return Err(too_large());
            }
            let decoded = self.tokenizer.decode(row, self.skips_special_tokens);
            let text = decoded.map_err(|why| format!("'ids' cannot be decoded: {why}"))?;
            left = left.checked_sub(text.len()).ok_or_else(too_large)?;
            texts.push(if self.cleans_up { cleaned(text) } else { text });
        }
        Ok(texts)
    }

    /// Bytes of all tokens of a row and a space between; where even the longest one is short enough, a
    /// bound above that.
    fn size(&self, row: &[u32]) -> usize {
        let bound = row.len().saturating_mul(self.token_size_max.saturating_add(1));
        if bound <= ROW_SIZE {
            return 0;
        }
        row.iter().map(|id| self.tokenizer.id_to_token(*id).map_or(0, |token| token.len().saturating_add(1))).sum()
    }
}

/// Bytes of a row that are decoded without a look at its tokens.
const ROW_SIZE: usize = 1 << 20;

impl Step for Detokenize {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(ids)) = inputs.first() else { return Ok(Vec::new()) };
        let rows = rows(ids, inputs.get(1).copied().flatten(), inputs.get(2).copied().flatten())?;
        let texts = guarded(|| self.decoded(&rows)).map_err(Error::invalid)?;
        let mut text = of_strings(&[], texts);
        text.shape = ids.shape.iter().copied().take(ids.shape.len().saturating_sub(1)).collect();
        Ok(vec![Some(text)])
    }
}

/// The ids of each row that count.
fn rows(ids: &Tensor, length: Option<&Tensor>, mask: Option<&Tensor>) -> Result<Vec<Vec<u32>>, Error> {
    let (count, [width]) = trailing("ids", "[tokens]", ids)?;
    if count.saturating_mul(width.max(1)) > TOKENS_MAX {
        return Err(Error::invalid(format!("'ids' has the shape {:?}, more than {TOKENS_MAX} tokens", &ids.shape[..])));
    }
    let numbers = integers("ids", ids)?;
    let lengths = length.map(|length| lengths(length, ids)).transpose()?;
    let mask = mask.map(|mask| mask_of(mask, ids)).transpose()?;
    let mut rows = Vec::with_capacity(count);
    for index in 0..count {
        let start = index.saturating_mul(width);
        let all = numbers.get(start..).and_then(|rest| rest.get(..width)).unwrap_or_default();
        let row = match lengths.as_ref().and_then(|lengths| lengths.get(index)) {
            Some(length) => {
                let wanted = usize::try_from(*length).ok().and_then(|length| all.get(..length));
                wanted.ok_or_else(|| {
                    Error::invalid(format!("'length' has {length} for row {index}, which has {width} tokens"))
                })?
            }
            None => all,
        };
        let marks = mask.as_ref().map(|mask| mask.get(start..).unwrap_or_default());
        let id = |(place, id): (usize, &i64)| {
            if marks.is_some_and(|marks| marks.get(place).is_some_and(|mark| *mark == 0)) {
                return None;
            }
            let wrong = |_| Error::invalid(format!("'ids' has {id} in row {index}: an id is from 0 to {}", u32::MAX));
            Some(u32::try_from(*id).map_err(wrong))
        };
        rows.push(row.iter().enumerate().filter_map(id).collect::<Result<_, _>>()?);
    }
    Ok(rows)
}

fn lengths<'a>(length: &'a Tensor, ids: &Tensor) -> Result<std::borrow::Cow<'a, [i64]>, Error> {
    let wanted = ids.shape.get(..ids.shape.len().saturating_sub(1)).unwrap_or_default();
    if length.shape[..] != *wanted || !length.has_its_size() {
        let shape = &length.shape[..];
        return Err(Error::invalid(format!(
            "'length' must have the shape {wanted:?} of rows, but its shape is {shape:?}"
        )));
    }
    integers("length", length)
}

fn mask_of<'a>(mask: &'a Tensor, ids: &Tensor) -> Result<std::borrow::Cow<'a, [i64]>, Error> {
    if mask.shape != ids.shape || !mask.has_its_size() {
        let (wanted, shape) = (&ids.shape[..], &mask.shape[..]);
        return Err(Error::invalid(format!(
            "'mask' must have the shape {wanted:?} of 'ids', but its shape is {shape:?}"
        )));
    }
    integers("mask", mask)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use base::tensor::Datatype;
    use base::tensor::strings::Strings;

    use super::*;
    use crate::StepList;
    use crate::tensors::{of_floats, of_numbers};

    const FILE: &str = r#"{"version": "1.0", "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "vocab": {"<s>": 0, "a": 1, "b": 2}, "unk_token": "a"}}"#;

    fn run(parameters: &str, tensors: [Option<Tensor>; 3]) -> Result<Tensor, String> {
        let names = ["ids", "length", "mask"];
        let given = names.iter().zip(&tensors).filter(|(_, tensor)| tensor.is_some());
        let inputs: Vec<_> = given.map(|(name, _)| format!("\"{name}\": \"{name}\"")).collect();
        let text = format!(
            r#"{{"steps": [{{"step": "detokenize", "inputs": {{{}}}, "output": "text", "file": "t.json"{parameters}}}]}}"#,
            inputs.join(", ")
        );
        let list = StepList::read(&text, &|_, _| Ok(FILE.as_bytes().to_vec())).map_err(|why| why.text().to_owned())?;
        let input = |name: &str| tensors[names.iter().position(|known| *known == name).unwrap()].clone();
        let output = list.run(input, &["text"]).map_err(|why| why.text().replace("step 1 (detokenize): ", ""))?;
        Ok(output.into_iter().next().flatten().unwrap())
    }

    fn of_ids(shape: &[usize], ids: &[i64]) -> Tensor {
        of_numbers(Datatype::Int64, shape, ids.to_vec())
    }

    #[test]
    fn tokens_that_count_become_texts() {
        let check = |parameters: &str, tensors: [Option<Tensor>; 3], shape: &[i64], want: &[&str]| {
            let text = run(parameters, tensors).unwrap();
            assert_eq!(text.shape[..], *shape);
            let texts: Vec<_> = Strings::new(&text.contents).map(|text| text.unwrap().to_vec()).collect();
            assert_eq!(texts, want.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>());
        };
        let ids = || Some(of_ids(&[2, 3], &[0, 1, 2, 2, 9, 1]));
        check("", [ids(), None, None], &[2], &["a b", "b a"]);
        check(r#", "skip_special_tokens": false"#, [ids(), None, None], &[2], &["<s> a b", "b a"]);
        check("", [ids(), Some(of_ids(&[2], &[2, 0])), None], &[2], &["a", ""]);
        check("", [ids(), None, Some(of_ids(&[2, 3], &[1, 0, 1, 0, 0, 1]))], &[2], &["b", "a"]);
        check("", [Some(of_ids(&[2], &[1, 2])), None, None], &[], &["a b"]);
        check("", [Some(of_ids(&[1, 2, 0], &[])), None, None], &[1, 2], &["", ""]);
    }

    #[test]
    fn wrong_tensors_are_named() {
        let check =
            |tensors: [Option<Tensor>; 3], want: &str| assert_eq!(run("", tensors).err().as_deref(), Some(want));
        let ids = || Some(of_ids(&[1, 2], &[1, 2]));
        let scalar = "'ids' must have a shape that ends with [tokens], but its shape is []";
        check([Some(of_ids(&[], &[1])), None, None], scalar);
        let floats = "'ids' must hold integers of at most 64 bits with a sign, but it is FP32";
        check([Some(of_floats(&[1], vec![1.0])), None, None], floats);
        check([Some(of_ids(&[1], &[-1])), None, None], "'ids' has -1 in row 0: an id is from 0 to 4294967295");
        let length = "'length' must have the shape [1] of rows, but its shape is [2]";
        check([ids(), Some(of_ids(&[2], &[1, 1])), None], length);
        check([ids(), Some(of_ids(&[1], &[3])), None], "'length' has 3 for row 0, which has 2 tokens");
        check([ids(), Some(of_ids(&[1], &[-1])), None], "'length' has -1 for row 0, which has 2 tokens");
        check(
            [ids(), None, Some(of_ids(&[2], &[1, 1]))],
            "'mask' must have the shape [1, 2] of 'ids', but its shape is [2]",
        );
        let many = TOKENS_MAX + 1;
        let large = format!("'ids' has the shape [{many}], more than {TOKENS_MAX} tokens");
        check([Some(of_ids(&[many], &vec![1; many])), None, None], &large);
    }

    #[test]
    fn spaces_are_taken_away_one_kind_after_the_other() {
        let check = |text: &str, want: &str| assert_eq!(cleaned(text.to_owned()), want);
        check("it 's , do n't ! I 'm here ?", "it's, don't! I'm here?");
        check("a  . b ' . we 've you 're", "a . b '. we've you're");
        check("", "");
    }

    #[test]
    fn texts_are_bounded_before_they_are_made() {
        let mut step = Detokenize {
            tokenizer: Tokenizer::from_bytes(FILE).unwrap(),
            skips_special_tokens: false,
            cleans_up: false,
            token_size_max: 1 << 30,
        };
        let row = vec![1; 1000];
        assert_eq!(step.size(&row), 2000);
        step.token_size_max = 3;
        assert_eq!(step.size(&row), 0);
        let long = FILE.replace("\"a\"", &format!("\"{}\"", "a".repeat(1 << 20)));
        step.tokenizer = Tokenizer::from_bytes(long).unwrap();
        step.token_size_max = 1 << 20;
        let error = step.decoded(&[vec![1; 100]]).unwrap_err();
        assert_eq!(
            error,
            format!("'ids' stand for more than {DETOKENIZED_SIZE_MAX} bytes of text, the most of a request")
        );
    }
}
