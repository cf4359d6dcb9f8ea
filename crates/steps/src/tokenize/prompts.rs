//! The prompts of `tokenize`: texts by name, of which a request chooses one for each row.

use base::error::Error;
use wire::placed::PlacedValue;

use crate::fields::{StepFields, quoted};
use crate::limits::{PROMPTS_MAX, TEXT_SIZE_MAX};

/// Texts by name.
#[derive(Debug, Default)]
pub struct Prompts {
    members: Vec<(String, String)>,
}

impl Prompts {
    /// Reads the parameter `prompts`.
    ///
    /// # Errors
    /// If it is not an object of strings, or it is needed and not given.
    pub fn read(fields: &StepFields<'_>) -> Result<Self, Error> {
        let wrong = |why: &str| fields.error("prompts", why);
        let Some(PlacedValue::Table(members)) = fields.json("prompts") else {
            return Err(wrong("must be an object from names to texts"));
        };
        if members.len() > PROMPTS_MAX {
            return Err(wrong(&format!("must have at most {PROMPTS_MAX} members")));
        }
        let mut prompts = Self::default();
        for member in members {
            let PlacedValue::String(text) = member.value.value else {
                return Err(wrong(&format!("must have a string for \"{}\"", member.name)));
            };
            if text.len() > TEXT_SIZE_MAX {
                return Err(wrong(&format!("has a text of {} bytes, more than {TEXT_SIZE_MAX}", text.len())));
            }
            prompts.members.push((member.name, text));
        }
        match (fields.is_connected(2), prompts.members.is_empty()) {
            (true, true) => Err(wrong("must be given: the input \"prompt_name\" chooses one of its texts")),
            (false, false) => Err(wrong("needs the input \"prompt_name\", which chooses one of its texts")),
            _ => Ok(prompts),
        }
    }

    /// The text of a prompt.
    ///
    /// # Errors
    /// `InvalidArgument` with the known names.
    pub fn find(&self, name: &str) -> Result<&str, Error> {
        let found = self.members.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str());
        found.ok_or_else(|| {
            let known: Vec<_> = self.members.iter().map(|(name, _)| name.as_str()).collect();
            Error::invalid(format!("'prompt_name' has \"{}\"; known are {}", name.escape_debug(), quoted(&known)))
        })
    }

    /// Bytes of the longest text.
    pub fn size_max(&self) -> usize {
        self.members.iter().map(|(_, text)| text.len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::StepList;
    use crate::tensors::{integers, of_strings};
    use crate::trial_tokenizer::tokenizer_json;

    fn list(ports: &str, members: &str) -> Result<StepList, String> {
        let text = format!(
            r#"{{"steps": [{{"step": "tokenize", "inputs": {{"text": "text"{ports}}}, "output": "ids", "file": "t.json",
            "pad_token": "[PAD]"{members}}}]}}"#
        );
        let list = StepList::read(&text, &|_, _| Ok(tokenizer_json("").into_bytes()));
        list.map_err(|why| why.text().split_once("\"prompts\": ").unwrap().1.to_owned())
    }

    #[test]
    fn a_request_chooses_a_prompt_for_each_row() {
        let members = r#", "prefix": "a ", "prompts": {"query": "hello ", "none": ""}"#;
        let list = list(r#", "prompt_name": "prompt_name""#, members).unwrap();
        let ids = |names: Option<&[&str]>| {
            let names = names.map(|names| of_strings(&[names.len()], names));
            let input =
                |name: &str| if name == "text" { Some(of_strings(&[2], ["b", "world"])) } else { names.clone() };
            let got = list.run(input, &["ids"]).map_err(|why| why.text().to_owned())?;
            Ok::<_, String>(integers("ids", got[0].as_ref().unwrap()).unwrap().into_owned())
        };
        assert_eq!(ids(None).unwrap(), [2, 7, 8, 3, 2, 7, 5, 3]);
        assert_eq!(ids(Some(&["query", "none"])).unwrap(), [2, 4, 8, 3, 2, 5, 3, 0]);
        let unknown = ids(Some(&["query", "no\n"])).unwrap_err();
        assert_eq!(unknown, "step 1 (tokenize): 'prompt_name' has \"no\\n\"; known are \"query\", \"none\"");
        let short = ids(Some(&["query"])).unwrap_err();
        assert_eq!(short, "step 1 (tokenize): 'prompt_name' must have 2 elements as 'text' has, but it has 1");
    }

    #[test]
    fn prompts_and_their_input_belong_together() {
        let check = |ports: &str, members: &str, want: &str| assert_eq!(list(ports, members).err().unwrap(), want);
        let port = r#", "prompt_name": "prompt_name""#;
        check(port, "", "must be given: the input \"prompt_name\" chooses one of its texts");
        let needs = "needs the input \"prompt_name\", which chooses one of its texts";
        check("", r#", "prompts": {"a": "b"}"#, needs);
        check(port, r#", "prompts": ["b"]"#, "must be an object from names to texts");
        check(port, r#", "prompts": {"a": 1}"#, "must have a string for \"a\"");
        let many: Vec<_> = (0..=PROMPTS_MAX).map(|index| format!("\"{index}\": \"\"")).collect();
        let many = format!(", \"prompts\": {{{}}}", many.join(", "));
        check(port, &many, "must have at most 256 members");
        let long = format!(", \"prompts\": {{\"a\": \"{}\"}}", "x".repeat(TEXT_SIZE_MAX + 1));
        check(port, &long, "has a text of 1048577 bytes, more than 1048576");
    }
}
