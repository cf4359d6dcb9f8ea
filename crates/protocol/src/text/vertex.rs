//! TEI's path for Vertex AI: `{"instances": [body, …]}` to `{"predictions": [answer, …]}`. A body with a query is one of `/rerank`,
//! and any other is for the task of the model. As in TEI, the first failure is the answer.

use base::error::Error;
use wire::json::{JsonValue, ValueKind, writer};

use super::call::{TextRequest, document, required, text};
use super::path::{TextPath, TextTask};
use crate::limits::TEXTS_MAX;

/// The model that a call names; `None` for the only one.
///
/// # Errors
/// `MalformedJson`; `InvalidArgument` if the name is no text.
pub fn named_model(body: &[u8]) -> Result<Option<String>, Error> {
    text(document(body)?.root(), "model")
}

/// The calls of the instances, to a model of this task.
///
/// # Errors
/// `MalformedJson`; `InvalidArgument` with the number of the instance, its member, the expected form, and the value's kind.
pub fn instances(body: &[u8], task: TextTask) -> Result<Vec<TextRequest>, Error> {
    let document = document(body)?;
    let list = required(document.root(), "instances")?;
    if *list.kind() != ValueKind::Array {
        return Err(Error::invalid("'instances' must be a list of bodies"));
    }
    match list.elements().count() {
        0 => return Err(Error::invalid("'instances' cannot be empty")),
        count if count > TEXTS_MAX => {
            return Err(Error::invalid(format!("'instances' has {count} bodies, more than the {TEXTS_MAX} allowed")));
        }
        _ => {}
    }
    let call = |(index, instance): (usize, JsonValue<'_, '_>)| {
        let call = TextRequest::of_object(path(instance, task), instance);
        call.map_err(|error| error.with_prefix(&format!("instance {index}: ")))
    };
    list.elements().enumerate().map(call).collect()
}

fn path(instance: JsonValue<'_, '_>, task: TextTask) -> TextPath {
    match task {
        _ if instance.given("query").is_some() => TextPath::Rerank,
        TextTask::Classify | TextTask::Rerank => TextPath::Predict,
        TextTask::Embed => TextPath::Embed,
        TextTask::SparseEmbed => TextPath::EmbedSparse,
    }
}

/// The answer with those of the instances.
pub fn predictions(answers: &[Vec<u8>]) -> Vec<u8> {
    let mut json = b"{\"predictions\":[".to_vec();
    for (index, answer) in answers.iter().enumerate() {
        writer::comma(index, &mut json);
        json.extend_from_slice(answer);
    }
    json.extend_from_slice(b"]}");
    json
}
