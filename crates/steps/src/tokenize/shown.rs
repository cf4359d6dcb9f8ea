//! The tokens of a text and the text of tokens, for interfaces that show them.

use base::error::Error;

use super::Tokenize;
use super::file::guarded;
use crate::limits::{DETOKENIZED_SIZE_MAX, TEXT_SIZE_MAX, TOKENS_MAX};
use crate::shown_token::{ShownToken, ShowsTokens};

impl ShowsTokens for Tokenize {
    fn shown(
        &self,
        text: &str,
        prompt_name: Option<&str>,
        adds_special_tokens: bool,
    ) -> Result<Vec<ShownToken>, Error> {
        let prefix = prompt_name.map_or(Ok(self.prefix.as_str()), |name| self.prompts.find(name))?;
        if text.len().saturating_add(prefix.len()) > TEXT_SIZE_MAX {
            return Err(Error::invalid(format!("a text has {} bytes, more than {TEXT_SIZE_MAX}", text.len())));
        }
        let text = format!("{prefix}{text}");
        let encoded = guarded(|| self.encoder.shown(&text, adds_special_tokens));
        let encoded = encoded.map_err(|why| Error::invalid(format!("the text cannot be tokenized: {why}")))?;
        let marks = encoded.get_special_tokens_mask().iter().zip(encoded.get_tokens());
        let tokens = encoded.get_ids().iter().zip(encoded.get_offsets()).zip(marks);
        let shown = tokens.map(|((id, (start, end)), (mark, name))| match *mark != 0 {
            true => ShownToken { id: *id, text: name.clone(), is_special: true, span: None },
            false => {
                let part = text.as_bytes().get(*start..*end).unwrap_or_default();
                let part = String::from_utf8_lossy(part).into_owned();
                ShownToken { id: *id, text: part, is_special: false, span: Some((*start, *end)) }
            }
        });
        Ok(shown.collect())
    }

    fn decoded(&self, ids: &[u32], skips_special_tokens: bool) -> Result<String, Error> {
        let tokenizer = self.encoder.tokenizer();
        let size = |id: &u32| tokenizer.id_to_token(*id).map_or(0, |token| token.len().saturating_add(1));
        if ids.len() > TOKENS_MAX || ids.iter().map(size).fold(0_usize, usize::saturating_add) > DETOKENIZED_SIZE_MAX {
            return Err(Error::invalid(format!(
                "the ids stand for more than {DETOKENIZED_SIZE_MAX} bytes of text, or are more than {TOKENS_MAX}"
            )));
        }
        let decoded = guarded(|| tokenizer.decode(ids, skips_special_tokens).map_err(|why| why.to_string()));
        decoded.map_err(|why| Error::invalid(format!("the ids cannot be decoded: {why}")))
    }

    fn length_max(&self) -> Option<usize> {
        self.encoder.length_max()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use base::tensor::{Datatype, Tensor};

    use crate::tensors::{integers, of_numbers, of_strings};
    use crate::trial_tokenizer::tokenizer_json;
    use crate::{ShownToken, StepList};

    fn list() -> StepList {
        let text = r#"{"steps": [{"step": "tokenize", "inputs": {"text": "text", "prompt_name": "prompt_name", "truncation": "cut",
            "given_ids": "given"}, "outputs": {"ids": "ids", "length": "length"}, "file": "t.json", "pad_token": "[PAD]",
            "max_length": 5, "prefix": "a ", "prompts": {"query": "hello ", "none": ""}}]}"#;
        StepList::read(text, &|_, _| Ok(tokenizer_json("").into_bytes())).unwrap()
    }

    #[test]
    fn tokens_have_their_texts_and_their_bytes_and_are_not_cut_off() {
        let list = list();
        let tokenizer = list.tokenizer().unwrap();
        assert_eq!(tokenizer.length_max(), Some(5));
        let shown = |text: &str, prompt, adds| {
            let tokens = tokenizer.shown(text, prompt, adds).map_err(|why| why.text().to_owned())?;
            let text = |token: &ShownToken| match token.span {
                Some((start, stop)) => format!("{}:{}:{start}-{stop}", token.id, token.text),
                None => format!("{}:{}", token.id, token.text),
            };
            Ok::<_, String>(tokens.iter().map(text).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(shown("Caf\u{e9}", Some("none"), true).unwrap(), "2:[CLS] 11:Caf\u{e9}:0-5 3:[SEP]");
        assert_eq!(shown("b", None, false).unwrap(), "7:a:0-1 8:b:2-3");
        assert_eq!(shown("b b b b b", Some("query"), true).unwrap().split(' ').count(), 8);
        assert_eq!(shown("b", Some("x"), true).unwrap_err(), "'prompt_name' has \"x\"; known are \"query\", \"none\"");
        assert_eq!(shown("", Some("none"), false).unwrap(), "");
        assert!(shown(&"b".repeat(1 << 20), None, true).unwrap_err().contains("1048576"));
        assert_eq!(tokenizer.decoded(&[2, 7, 8, 3, 4_000_000], true).unwrap(), "a b");
        assert_eq!(tokenizer.decoded(&[2, 7, 3], false).unwrap(), "[CLS] a [SEP]");
        assert!(tokenizer.decoded(&vec![7; (1 << 21) + 1], true).unwrap_err().text().contains("2097152"));
    }

    #[test]
    fn a_request_says_how_its_rows_are_cut_off() {
        let list = list();
        let ids = |texts: &[&str], prompts: Option<&[&str]>, cuts: Option<&[&str]>, given: Option<Tensor>| {
            let strings = |texts: &[&str]| of_strings(&[texts.len()], texts);
            let input = |name: &str| match name {
                "text" => Some(strings(texts)),
                "prompt_name" => prompts.map(strings),
                "cut" => cuts.map(strings),
                _ => given.clone(),
            };
            let got = list.run(input, &["ids"]).map_err(|why| why.text().replace("step 1 (tokenize): ", ""))?;
            Ok::<_, String>(integers("ids", got[0].as_ref().unwrap()).unwrap().into_owned())
        };
        let (long, none) = ("hello a b world", Some(&["none"][..]));
        assert_eq!(ids(&[long], none, None, None).unwrap(), [2, 4, 7, 8, 3]);
        assert_eq!(ids(&[long], none, Some(&["right"]), None).unwrap(), [2, 4, 7, 8, 3]);
        assert_eq!(ids(&[long], none, Some(&["left"]), None).unwrap(), [2, 7, 8, 5, 3]);
        let refused =
            "'text' has the element 0 that cannot be tokenized: `inputs` must have less than 5 tokens. Given: 6";
        assert_eq!(ids(&[long], none, Some(&["off"]), None).unwrap_err(), refused);
        assert_eq!(ids(&["hello a b"], none, Some(&["off"]), None).unwrap(), [2, 4, 7, 8, 3]);
        let wrong = "'truncation' has \"middle\": must be left, right or off";
        assert_eq!(ids(&["a"], none, Some(&["middle"]), None).unwrap_err(), wrong);
        let given =
            |width: usize, ids: &[i64]| Some(of_numbers(Datatype::Int64, &[ids.len() / width, width], ids.to_vec()));
        assert_eq!(ids(&["", "b"], None, None, given(3, &[4, 5, -1, -1, 9, 9])).unwrap(), [4, 5, 0, 0, 2, 7, 8, 3]);
        let six = given(6, &[4, 5, 6, 7, 8, 9]);
        assert_eq!(ids(&[""], None, None, six.clone()).unwrap(), [4, 5, 6, 7, 8]);
        assert_eq!(ids(&[""], None, Some(&["left"]), six.clone()).unwrap(), [5, 6, 7, 8, 9]);
        assert_eq!(ids(&[""], None, Some(&["off"]), six).unwrap_err(), refused);
        for unknown in [12, -2, 1 << 40] {
            let want =
                format!("'text' has the element 0 that cannot be tokenized: the id {unknown} is not in the vocabulary");
            assert_eq!(ids(&[""], None, None, given(1, &[unknown])).unwrap_err(), want);
        }
        let rows = "'given_ids' must have 1 rows as 'text' has, and at most 2097152 tokens, but its shape is [2, 1]";
        assert_eq!(ids(&[""], None, None, given(1, &[4, 5])).unwrap_err(), rows);
        let floats = "'given_ids' must hold integers of at most 64 bits with a sign, but it is FP32";
        assert_eq!(ids(&[""], None, None, Some(crate::tensors::of_floats(&[1, 1], vec![1.0]))).unwrap_err(), floats);
    }
}
