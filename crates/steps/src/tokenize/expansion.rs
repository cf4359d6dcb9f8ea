//! Tokens that `tokenize` adds to the rows of a prompt or passes over, as late-interaction models (`ColBERT`) have them.

use base::error::Error;
use wire::placed::PlacedValue;

use super::file::TokenizerFile;
use super::rows::{RowToken, TokenRows};
use crate::fields::StepFields;
use crate::limits::{SKIPPED_TOKENS_MAX, TOKENS_MAX};

/// The expansion of queries, and the tokens of other rows that have no vector.
#[derive(Debug, Default)]
pub struct Expansion {
    query: Option<QueryForm>,
    skipped: Vec<u32>,
}

/// Rows of one prompt, which all have the same length.
#[derive(Debug)]
struct QueryForm {
    prompt: String,
    length: usize,
    /// The token that is appended; `None` to shorten alone.
    token: Option<RowToken>,
}

impl Expansion {
    /// Reads the parameters.
    ///
    /// # Errors
    /// If one is malformed, or a token is not in the vocabulary.
    pub fn read(fields: &StepFields<'_>, file: &TokenizerFile) -> Result<Self, Error> {
        let mut skipped = Vec::new();
        for token in fields.texts("skip_tokens") {
            let id = file.tokenizer.token_to_id(&token);
            skipped.push(id.ok_or_else(|| {
                fields.error("skip_tokens", &format!("the token {token:?} is not in the vocabulary"))
            })?);
        }
        if skipped.len() > SKIPPED_TOKENS_MAX {
            return Err(fields.error("skip_tokens", &format!("must have at most {SKIPPED_TOKENS_MAX} tokens")));
        }
        skipped.sort_unstable();
        Ok(Self { query: QueryForm::read(fields, file)?, skipped })
    }

    /// Completes a row, whose prompt has this name.
    pub fn apply(&self, prompt: Option<&str>, rows: &mut TokenRows) {
        match &self.query {
            Some(query) if prompt == Some(&query.prompt) => {
                rows.shorten_row(query.length);
                let missing = query.length.saturating_sub(rows.row_mut().len());
                if let Some(token) = query.token {
                    rows.extend(std::iter::repeat_n(token, missing));
                }
            }
            _ if self.skipped.is_empty() => {}
            _ => {
                for token in rows.row_mut() {
                    token.is_skipped = self.skipped.binary_search(&token.id).is_ok();
                }
            }
        }
    }
}

impl QueryForm {
    fn read(fields: &StepFields<'_>, file: &TokenizerFile) -> Result<Option<Self>, Error> {
        const NAME: &str = "expansion";
        let wrong = |why: &str| fields.error(NAME, why);
        let shape = "must be an object with \"prompt\", \"length\", and \"token\" and \"is_seen\" to append tokens";
        let Some(PlacedValue::Table(members)) = fields.json(NAME) else { return Err(wrong(shape)) };
        if members.is_empty() {
            return Ok(None);
        }
        let (mut prompt, mut length, mut token, mut is_seen) = (None, None, None, false);
        for member in members {
            match (member.name.as_str(), member.value.value) {
                ("prompt", PlacedValue::String(name)) => prompt = Some(name),
                ("length", PlacedValue::Number(number)) => length = number.parse::<usize>().ok(),
                ("token", PlacedValue::String(text)) => token = Some(text),
                ("is_seen", PlacedValue::Bool(flag)) => is_seen = flag,
                _ => return Err(wrong(shape)),
            }
        }
        let (Some(prompt), Some(length)) = (prompt, length) else { return Err(wrong(shape)) };
        if !(1..=TOKENS_MAX).contains(&length) {
            return Err(wrong(&format!("must have a \"length\" from 1 to {TOKENS_MAX}")));
        }
        let token = match token {
            None => None,
            Some(text) => {
                let id = file.tokenizer.token_to_id(&text);
                let id = id.ok_or_else(|| wrong(&format!("the token {text:?} is not in the vocabulary")))?;
                Some(RowToken { id, is_special: true, is_hidden: !is_seen, ..RowToken::default() })
            }
        };
        Ok(Some(Self { prompt, length, token }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use crate::StepList;
    use crate::limits::SKIPPED_TOKENS_MAX;
    use crate::tensors::{integers, of_strings};
    use crate::trial_tokenizer::tokenizer_json;

    fn list(members: &str) -> Result<StepList, String> {
        let text = format!(
            r#"{{"steps": [{{"step": "tokenize", "inputs": {{"text": "text", "prompt_name": "prompt"}},
            "outputs": {{"ids": "ids", "mask": "mask", "keep": "keep", "positions": "positions", "length": "length"}},
            "file": "t.json", "pad_token": "[PAD]", "prompts": {{"q": "", "d": ""}}{members}}}]}}"#
        );
        let list = StepList::read(&text, &|_, _| Ok(tokenizer_json("").into_bytes()));
        list.map_err(|why| {
            why.text().rsplit_once("line 3: ").map_or_else(|| why.text().to_owned(), |(_, why)| why.to_owned())
        })
    }

    #[test]
    fn queries_get_tokens_up_to_a_length_and_documents_lose_those_that_are_skipped() {
        let members =
            r#", "skip_tokens": [","], "expansion": {"prompt": "q", "length": 5, "token": "b", "is_seen": false}"#;
        let list = list(members).unwrap();
        let inputs = [of_strings(&[3], ["a", "a, a", "hello a a world"]), of_strings(&[3], ["q", "d", "q"])];
        let input = |name: &str| Some(inputs[usize::from(name == "prompt")].clone());
        let got = list.run(input, &["ids", "mask", "keep", "positions", "length"]).unwrap();
        let got: Vec<_> = got.iter().map(|tensor| integers("", tensor.as_ref().unwrap()).unwrap().to_vec()).collect();
        assert_eq!(got[0], [2, 7, 3, 8, 8, 2, 7, 9, 7, 3, 2, 4, 7, 7, 3]);
        assert_eq!(got[1], [1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(got[2], [1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(got[3], [0, 1, 2, 3, 4].repeat(3));
        assert_eq!(got[4], [5, 5, 5]);
    }

    #[test]
    fn wrong_members_are_named() {
        let check = |members: &str, want: &str| {
            let error = list(members).err().unwrap();
            assert!(error.contains(want), "{members}: {error}");
        };
        let shape = "must be an object with \"prompt\"";
        check(r#", "expansion": []"#, shape);
        check(r#", "expansion": {"prompt": "q"}"#, shape);
        check(r#", "expansion": {"prompt": "q", "length": "x"}"#, shape);
        check(r#", "expansion": {"prompt": "q", "length": 0}"#, "must have a \"length\" from 1 to 2097152");
        check(
            r#", "expansion": {"prompt": "q", "length": 4, "token": "[MASK]"}"#,
            "\"[MASK]\" is not in the vocabulary",
        );
        check(r#", "skip_tokens": ["?"]"#, "\"skip_tokens\": the token \"?\" is not in the vocabulary");
        let many = vec!["\"a\""; SKIPPED_TOKENS_MAX + 1].join(",");
        check(&format!(", \"skip_tokens\": [{many}]"), "must have at most 1024 tokens");
    }
}
