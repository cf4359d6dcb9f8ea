//! A body to a call: its texts and options.

use base::error::Error;
use wire::json::{Document, JsonValue, ValueKind};

use super::path::TextPath;
use crate::limits::{TEXT_DIMENSIONS_MAX, TEXTS_MAX};

/// A call, checked as far as its model does not matter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextRequest {
    /// Its path.
    pub path: TextPath,
    /// The model that it names; `None` for the only one.
    pub model: Option<String>,
    /// The texts, a row for each.
    pub texts: Vec<String>,
    /// The first text of each pair; `None` for single texts.
    pub queries: Option<Vec<String>>,
    /// The tokens of each row in place of its text; an empty list for a row with a text, and `None` if all have texts.
    pub ids: Option<Vec<Vec<u32>>>,
    /// The prompt that goes before each text.
    pub prompt_name: Option<String>,
    /// The way in which texts that are too long are cut off; `None` as the model does by itself.
    pub truncation: Option<TextTruncation>,
    /// The first numbers of each vector that are wanted; `None` for all.
    pub dimensions: Option<usize>,
    /// True if the answer is not a list of lists: the request had one text.
    pub is_single: bool,
    /// True if vectors are wanted as base64.
    pub is_base64: bool,
    /// True if the answer repeats the texts.
    pub returns_texts: bool,
    /// True if the body was in the form of Cohere and Jina.
    pub has_documents: bool,
    /// The best results that are wanted; `None` for all.
    pub top_n: Option<usize>,
    /// True if scores are wanted as the network gives them, before softmax or sigmoid.
    pub has_raw_scores: bool,
    /// True if vectors are wanted as long as they are, and not with the length 1.
    pub has_raw_vectors: bool,
    /// True if special tokens are left out: they are not added to texts, or not decoded.
    pub is_without_special: bool,
}

/// The cut of texts that are too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextTruncation {
    /// Their beginning is cut off.
    Left,
    /// They are refused.
    Off,
    /// Their end is cut off.
    Right,
}

impl TextTruncation {
    /// The name in the input `truncation` of a model.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Off => "off",
            Self::Right => "right",
        }
    }
}

impl TextRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// `MalformedJson`; `InvalidArgument` with the member, the expected form, and the value's kind.
    pub fn read(path: TextPath, body: &[u8]) -> Result<Self, Error> {
        Self::of_object(path, document(body)?.root())
    }

    /// Reads a body that was parsed.
    pub(super) fn of_object(path: TextPath, root: JsonValue<'_, '_>) -> Result<Self, Error> {
        if *root.kind() != ValueKind::Object {
            return Err(Error::malformed_json("the body must be a JSON object"));
        }
        let path = of_own_task(path, root);
        let mut call = Self { path, model: text(root, "model")?, ..Self::default() };
        call.read_options(root)?;
        call.read_inputs(root)?;
        call.check_inputs()?;
        Ok(call)
    }

    fn read_options(&mut self, root: JsonValue<'_, '_>) -> Result<(), Error> {
        // `/similarity` has them in an object of their own.
        let options = root.given("parameters").filter(|_| self.path == TextPath::Similarity).unwrap_or(root);
        self.has_raw_scores = flag(root, "raw_scores", false)?;
        self.has_raw_vectors = !flag(root, "normalize", true)?;
        let direction = match text(options, "truncation_direction")?.map(|text| text.to_ascii_lowercase()).as_deref() {
            None => None,
            Some("left") => Some(TextTruncation::Left),
            Some("right") => Some(TextTruncation::Right),
            Some(other) => {
                return Err(Error::invalid(format!("'truncation_direction' is '{other}': must be 'left' or 'right'")));
            }
        };
        self.truncation = if flag(options, "truncate", true)? { direction } else { Some(TextTruncation::Off) };
        self.prompt_name = text(options, "prompt_name")?;
        self.dimensions = count(root, "dimensions", TEXT_DIMENSIONS_MAX)?;
        self.is_base64 = match text(root, "encoding_format")?.filter(|_| self.path == TextPath::Embeddings).as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => {
                return Err(Error::invalid(format!("'encoding_format' is '{other}': must be 'float' or 'base64'")));
            }
        };
        Ok(())
    }

    fn read_inputs(&mut self, root: JsonValue<'_, '_>) -> Result<(), Error> {
        match self.path {
            TextPath::Embed | TextPath::EmbedAll | TextPath::EmbedSparse | TextPath::Own => {
                self.take_inputs(required(root, "inputs")?, "inputs")
            }
            TextPath::Vertex => Err(Error::internal("the bodies of /vertex are read one by one")),
            TextPath::Embeddings => self.take_inputs(required(root, "input")?, "input"),
            TextPath::Classify => self.take_texts(required(root, "input")?, "input"),
            TextPath::Predict => self.take_sequences(required(root, "inputs")?),
            TextPath::Tokenize => {
                self.is_without_special = !flag(root, "add_special_tokens", true)?;
                self.take_texts(required(root, "inputs")?, "inputs")
            }
            TextPath::Decode => {
                self.is_without_special = flag(root, "skip_special_tokens", true)?;
                self.take_ids(required(root, "ids")?)
            }
            TextPath::Similarity => {
                let inputs = required(root, "inputs")?;
                let source = text(inputs, "source_sentence")?;
                let source = source.ok_or_else(|| Error::invalid("'inputs' must have a string 'source_sentence'"))?;
                self.take_texts(required(inputs, "sentences")?, "sentences")?;
                self.texts.insert(0, source);
                Ok(())
            }
            TextPath::Rerank if root.given("texts").is_some() => {
                self.take_ranked(root, "texts")?;
                self.returns_texts = flag(root, "return_text", false)?;
                Ok(())
            }
            TextPath::Rerank | TextPath::RerankDocuments => {
                self.has_documents = true;
                self.take_ranked(root, "documents")?;
                self.returns_texts = flag(root, "return_documents", false)?;
                self.top_n = count(root, "top_n", TEXTS_MAX)?;
                Ok(())
            }
        }
    }

    /// Checks the texts of a call, however it came.
    ///
    /// # Errors
    /// `InvalidArgument` if the body has no texts or too many, a text is empty, or a prompt goes before tokens.
    pub fn check_inputs(&self) -> Result<(), Error> {
        let ids = self.ids.as_deref().unwrap_or_default();
        let is_empty = |(row, text): (usize, &String)| text.is_empty() && ids.get(row).is_none_or(Vec::is_empty);
        if self.texts.is_empty() || self.texts.iter().enumerate().any(is_empty) {
            return Err(Error::invalid("'inputs' cannot be empty: a text has no characters"));
        }
        if self.texts.len() > TEXTS_MAX {
            let count = self.texts.len();
            return Err(Error::invalid(format!("'inputs' has {count} texts, more than the {TEXTS_MAX} allowed")));
        }
        if let Some(name) = self.prompt_name.as_ref().filter(|_| self.ids.is_some()) {
            return Err(Error::invalid(format!(
                "'prompt_name' is '{name}', but there are token ids, which are taken as they are: send the text"
            )));
        }
        Ok(())
    }

    /// Characters of the texts, and numbers of tokens that came in place of texts.
    pub fn character_count(&self) -> usize {
        let texts = self.texts.iter().chain(self.queries.iter().flatten());
        let ids = self.ids.iter().flatten().map(Vec::len);
        texts.map(|text| text.chars().count()).chain(ids).sum()
    }

    /// Takes a text or its ids, or a list of these.
    fn take_inputs(&mut self, value: JsonValue<'_, '_>, name: &str) -> Result<(), Error> {
        if value.elements().next().is_some_and(|first| matches!(first.kind(), ValueKind::Integer(_))) {
            self.is_single = true;
            return self.push_ids(value, name);
        }
        if value.elements().all(|element| element.as_str().is_some()) {
            return self.take_texts(value, name);
        }
        check_list(value, name)?;
        value.elements().try_for_each(|element| match (element.as_str(), element.kind()) {
            (Some(text), _) => {
                self.push_text(text);
                Ok(())
            }
            (None, ValueKind::Array) => self.push_ids(element, name),
            (None, _) => Err(not_texts(name, element, "texts or lists of token ids")),
        })
    }

    /// Takes a list of ids, or a list of such lists.
    fn take_ids(&mut self, value: JsonValue<'_, '_>) -> Result<(), Error> {
        const NAME: &str = "ids";
        check_list(value, NAME)?;
        if value.elements().any(|element| *element.kind() == ValueKind::Array) {
            return value.elements().try_for_each(|element| self.push_ids(element, NAME));
        }
        self.is_single = true;
        self.push_ids(value, NAME)
    }

    fn push_text(&mut self, text: &str) {
        self.texts.push(text.to_owned());
        if let Some(ids) = &mut self.ids {
            ids.push(Vec::new());
        }
    }

    fn push_ids(&mut self, value: JsonValue<'_, '_>, name: &str) -> Result<(), Error> {
        let id = |element: JsonValue<'_, '_>| {
            let id = element.as_u64().and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| not_texts(name, element, "token ids, integers from 0 to 4294967295"))
        };
        if *value.kind() != ValueKind::Array {
            return Err(not_texts(name, value, "lists of token ids"));
        }
        let row: Vec<u32> = value.elements().map(id).collect::<Result<_, _>>()?;
        if row.is_empty() {
            return Err(Error::invalid(format!("'{name}' cannot be empty: a list has no token ids")));
        }
        let rows = self.texts.len();
        self.ids.get_or_insert_with(|| vec![Vec::new(); rows]).push(row);
        self.texts.push(String::new());
        Ok(())
    }

    /// Takes a text, or a list of texts.
    fn take_texts(&mut self, value: JsonValue<'_, '_>, name: &str) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            self.is_single = true;
            self.push_text(text);
            return Ok(());
        }
        check_list(value, name)?;
        for element in value.elements() {
            self.push_text(element.as_str().ok_or_else(|| not_texts(name, element, "texts"))?);
        }
        Ok(())
    }

    /// Takes a text, a pair `[a, b]`, or a list of lists of one or two texts.
    fn take_sequences(&mut self, value: JsonValue<'_, '_>) -> Result<(), Error> {
        let is_batch = value.elements().any(|element| *element.kind() == ValueKind::Array);
        if !is_batch {
            self.is_single = true;
            return match value.as_str() {
                Some(text) => {
                    self.push_text(text);
                    Ok(())
                }
                None => self.take_sequence(value),
            };
        }
        check_list(value, "inputs")?;
        value.elements().try_for_each(|sequence| self.take_sequence(sequence))?;
        let pairs = self.queries.as_ref().map_or(0, Vec::len);
        if pairs != 0 && pairs != self.texts.len() {
            return Err(Error::invalid("'inputs' must be all single texts or all pairs"));
        }
        Ok(())
    }

    fn take_sequence(&mut self, value: JsonValue<'_, '_>) -> Result<(), Error> {
        let texts: Option<Vec<_>> = value.elements().take(3).map(JsonValue::as_str).collect();
        match texts.as_deref() {
            Some([text]) => self.push_text(text),
            Some([query, text]) => {
                self.push_text(text);
                self.queries.get_or_insert_default().push((*query).to_owned());
            }
            _ => {
                return Err(Error::invalid(
                    "'inputs' must be a text, a pair [\"a\", \"b\"], or a list of lists with one or two texts each",
                ));
            }
        }
        Ok(())
    }

    /// Takes a query and the texts or documents that it is compared with.
    fn take_ranked(&mut self, root: JsonValue<'_, '_>, name: &str) -> Result<(), Error> {
        let query = text(root, "query")?.filter(|query| !query.is_empty());
        let query = query.ok_or_else(|| Error::invalid("'query' must be a text with characters"))?;
        let list = required(root, name)?;
        check_list(list, name)?;
        for element in list.elements() {
            // A document may be an object with its text.
            let text = element.as_str().or_else(|| element.get("text").and_then(JsonValue::as_str));
            self.push_text(text.ok_or_else(|| not_texts(name, element, "texts"))?);
        }
        self.queries = Some(vec![query; self.texts.len()]);
        Ok(())
    }
}

pub(super) fn document(body: &[u8]) -> Result<Document<'_>, Error> {
    Document::parse(body, &[]).map_err(|error| Error::malformed_json(error.to_string()))
}

/// The path of a call to the address of the server or of a model alone, which is for the model's own task.
fn of_own_task(path: TextPath, root: JsonValue<'_, '_>) -> TextPath {
    let is_object = |name: &str| root.given(name).is_some_and(|value| *value.kind() == ValueKind::Object);
    match path {
        TextPath::Own if root.given("query").is_some() => TextPath::Rerank,
        TextPath::Own if is_object("inputs") => TextPath::Similarity,
        path => path,
    }
}

fn check_list(value: JsonValue<'_, '_>, name: &str) -> Result<(), Error> {
    if *value.kind() != ValueKind::Array {
        return Err(Error::invalid(format!("'{name}' must be a text or a list of texts, but is {}", kind(value))));
    }
    match value.elements().count() {
        0 => Err(Error::invalid(format!("'{name}' cannot be empty"))),
        count if count > TEXTS_MAX && name != "ids" => {
            Err(Error::invalid(format!("'{name}' has {count} texts, more than the {TEXTS_MAX} allowed")))
        }
        _ => Ok(()),
    }
}

fn not_texts(name: &str, element: JsonValue<'_, '_>, wanted: &str) -> Error {
    Error::invalid(format!("'{name}' must have {wanted}, but has {}", kind(element)))
}

pub(super) fn required<'d, 'a>(root: JsonValue<'d, 'a>, name: &str) -> Result<JsonValue<'d, 'a>, Error> {
    root.given(name).ok_or_else(|| Error::invalid(format!("'{name}' is missing")))
}

pub(super) fn text(root: JsonValue<'_, '_>, name: &str) -> Result<Option<String>, Error> {
    let Some(value) = root.given(name) else { return Ok(None) };
    let text =
        value.as_str().ok_or_else(|| Error::invalid(format!("'{name}' must be a text, but is {}", kind(value))))?;
    Ok(Some(text.to_owned()))
}

fn flag(root: JsonValue<'_, '_>, name: &str, default: bool) -> Result<bool, Error> {
    let Some(value) = root.given(name) else { return Ok(default) };
    value.as_bool().ok_or_else(|| Error::invalid(format!("'{name}' must be true or false, but is {}", kind(value))))
}

fn count(root: JsonValue<'_, '_>, name: &str, most: usize) -> Result<Option<usize>, Error> {
    let Some(value) = root.given(name) else { return Ok(None) };
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| (1..=most).contains(count));
    let text = || format!("'{name}' must be an integer from 1 to {most}");
    count.map(Some).ok_or_else(|| Error::invalid(text()))
}

fn kind(value: JsonValue<'_, '_>) -> &'static str {
    match value.kind() {
        ValueKind::Array | ValueKind::Raw(_) => "a list",
        ValueKind::Bool(_) => "true or false",
        ValueKind::Decimal(_) | ValueKind::Integer(_) => "a number",
        ValueKind::Null => "null",
        ValueKind::Object => "an object",
        ValueKind::String(_) => "a text",
    }
}
