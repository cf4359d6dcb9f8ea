//! A body to a call: its texts and options.

use base::error::Error;
use wire::json::{Document, JsonValue, ValueKind};

use crate::limits::{TEXT_DIMENSIONS_MAX, TEXTS_MAX};

/// A path of the text interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextPath {
    /// `/embed` of TEI.
    #[default]
    Embed,
    /// `/embed_sparse` of TEI.
    EmbedSparse,
    /// `/v1/embeddings` of OpenAI, and `/embeddings`.
    Embeddings,
    /// `/predict` of TEI.
    Predict,
    /// `/rerank`: of TEI with `texts`, of Cohere and Jina with `documents`.
    Rerank,
    /// `/v1/rerank` and `/v2/rerank` of Cohere and Jina.
    RerankDocuments,
    /// `/similarity` of TEI.
    Similarity,
}

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
    /// The prompt that goes before each text.
    pub prompt_name: Option<String>,
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
}

impl TextPath {
    /// The path, for errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embed => "/embed",
            Self::EmbedSparse => "/embed_sparse",
            Self::Embeddings => "/v1/embeddings",
            Self::Predict => "/predict",
            Self::Rerank => "/rerank",
            Self::RerankDocuments => "/v2/rerank",
            Self::Similarity => "/similarity",
        }
    }
}

impl TextRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// `MalformedJson`; `InvalidArgument` with the member, the expected form, and the value's kind.
    pub fn read(path: TextPath, body: &[u8]) -> Result<Self, Error> {
        let document = Document::parse(body, &[]).map_err(|error| Error::malformed_json(error.to_string()))?;
        let root = document.root();
        if *root.kind() != ValueKind::Object {
            return Err(Error::malformed_json("the body must be a JSON object"));
        }
        let mut call = Self { path, model: text(root, "model")?, ..Self::default() };
        refuse_unlike(root, "truncate", true, "long texts are truncated to what the model takes")?;
        refuse_unlike(root, "raw_scores", false, "scores are those of the model's head")?;
        refuse_unlike(root, "normalize", true, "vectors are those of the model, most of which are normalised")?;
        if let Some(direction) =
            text(root, "truncation_direction")?.filter(|direction| !direction.eq_ignore_ascii_case("right"))
        {
            return Err(Error::invalid(format!(
                "'truncation_direction' is '{direction}': texts are truncated on the right"
            )));
        }
        call.prompt_name = text(root, "prompt_name")?;
        call.dimensions = count(root, "dimensions", TEXT_DIMENSIONS_MAX)?;
        match path {
            TextPath::Embed | TextPath::EmbedSparse => call.take_texts(required(root, "inputs")?, "inputs")?,
            TextPath::Embeddings => {
                call.take_texts(required(root, "input")?, "input")?;
                call.is_base64 = match text(root, "encoding_format")?.as_deref() {
                    None | Some("float") => false,
                    Some("base64") => true,
                    Some(other) => {
                        return Err(Error::invalid(format!(
                            "'encoding_format' is '{other}': must be 'float' or 'base64'"
                        )));
                    }
                };
            }
            TextPath::Predict => call.take_sequences(required(root, "inputs")?)?,
            TextPath::Similarity => {
                let inputs = required(root, "inputs")?;
                let source = text(inputs, "source_sentence")?;
                let source = source.ok_or_else(|| Error::invalid("'inputs' must have a string 'source_sentence'"))?;
                call.take_texts(required(inputs, "sentences")?, "sentences")?;
                call.texts.insert(0, source);
            }
            TextPath::Rerank if root.given("texts").is_some() => {
                call.take_ranked(root, "texts")?;
                call.returns_texts = flag(root, "return_text")?;
            }
            TextPath::Rerank | TextPath::RerankDocuments => {
                call.has_documents = true;
                call.take_ranked(root, "documents")?;
                call.returns_texts = flag(root, "return_documents")?;
                call.top_n = count(root, "top_n", TEXTS_MAX)?;
            }
        }
        if call.texts.iter().any(String::is_empty) {
            return Err(Error::invalid("'inputs' cannot be empty: a text has no characters"));
        }
        Ok(call)
    }

    /// Takes a text, or a list of texts.
    fn take_texts(&mut self, value: JsonValue<'_, '_>, name: &str) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            self.is_single = true;
            self.texts.push(text.to_owned());
            return Ok(());
        }
        check_list(value, name)?;
        for element in value.elements() {
            let text = element.as_str().ok_or_else(|| not_texts(name, element))?;
            self.texts.push(text.to_owned());
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
                    self.texts.push(text.to_owned());
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
            Some([text]) => self.texts.push((*text).to_owned()),
            Some([query, text]) => {
                self.texts.push((*text).to_owned());
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
            self.texts.push(text.ok_or_else(|| not_texts(name, element))?.to_owned());
        }
        self.queries = Some(vec![query; self.texts.len()]);
        Ok(())
    }
}

fn check_list(value: JsonValue<'_, '_>, name: &str) -> Result<(), Error> {
    if *value.kind() != ValueKind::Array {
        return Err(Error::invalid(format!("'{name}' must be a text or a list of texts, but is {}", kind(value))));
    }
    match value.elements().count() {
        0 => Err(Error::invalid(format!("'{name}' cannot be empty"))),
        count if count > TEXTS_MAX => {
            Err(Error::invalid(format!("'{name}' has {count} texts, more than the {TEXTS_MAX} allowed")))
        }
        _ => Ok(()),
    }
}

fn not_texts(name: &str, element: JsonValue<'_, '_>) -> Error {
    let advice = match element.kind() {
        ValueKind::Integer(_) | ValueKind::Array => ": token ids are not taken, send the text",
        _ => "",
    };
    Error::invalid(format!("'{name}' must have texts, but has {}{advice}", kind(element)))
}

fn required<'d, 'a>(root: JsonValue<'d, 'a>, name: &str) -> Result<JsonValue<'d, 'a>, Error> {
    root.given(name).ok_or_else(|| Error::invalid(format!("'{name}' is missing")))
}

fn text(root: JsonValue<'_, '_>, name: &str) -> Result<Option<String>, Error> {
    let Some(value) = root.given(name) else { return Ok(None) };
    let text =
        value.as_str().ok_or_else(|| Error::invalid(format!("'{name}' must be a text, but is {}", kind(value))))?;
    Ok(Some(text.to_owned()))
}

fn flag(root: JsonValue<'_, '_>, name: &str) -> Result<bool, Error> {
    let Some(value) = root.given(name) else { return Ok(false) };
    value.as_bool().ok_or_else(|| Error::invalid(format!("'{name}' must be true or false, but is {}", kind(value))))
}

fn count(root: JsonValue<'_, '_>, name: &str, most: usize) -> Result<Option<usize>, Error> {
    let Some(value) = root.given(name) else { return Ok(None) };
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| (1..=most).contains(count));
    let text = || format!("'{name}' must be an integer from 1 to {most}");
    count.map(Some).ok_or_else(|| Error::invalid(text()))
}

/// Refuses a flag whose value the server cannot follow.
fn refuse_unlike(root: JsonValue<'_, '_>, name: &str, served: bool, why: &str) -> Result<(), Error> {
    let Some(value) = root.given(name) else { return Ok(()) };
    match value.as_bool() {
        Some(value) if value == served => Ok(()),
        Some(value) => Err(Error::invalid(format!("'{name}' is {value}, which is not served: {why}"))),
        None => Err(Error::invalid(format!("'{name}' must be true or false, but is {}", kind(value)))),
    }
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
