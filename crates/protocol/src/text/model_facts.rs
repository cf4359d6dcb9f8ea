//! A model as TEI's `/info` describes it.

use base::error::Error;
use bytes::Bytes;
use model::ModelSpec;
use wire::json::writer;
use wire::proto::tei;

use crate::framing::framed;

use super::path::TextTask;
use super::task::tokenizer;

/// The facts about a model of texts. TEI's others, such as hashes of a build, are null.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextModelFacts {
    /// Its name.
    pub name: String,
    /// Its task.
    pub task: TextTask,
    /// Requests that may wait for it: of all of its priority levels; 0 if only memory bounds them.
    pub requests_max: u32,
    /// Most tokens of a text; `None` without a bound.
    pub length_max: Option<usize>,
    /// Texts of one request, and of a batch.
    pub rows_max: u32,
    /// Its instances, which make the tokens too.
    pub instances: u64,
    /// The names of its classes; empty if they are not known.
    pub classes: Vec<String>,
    /// The version of the server.
    pub version: &'static str,
}

impl TextModelFacts {
    /// The facts of a model; `None` if it is no model of texts.
    pub fn new(spec: &ModelSpec, version: &'static str) -> Option<Self> {
        let groups = spec.instance_groups.iter().filter(|group| !group.is_passive);
        Some(Self {
            name: spec.name.clone(),
            task: TextTask::of(spec)?,
            requests_max: spec.batching.as_ref().map_or(0, |batching| batching.queue_default.entries_max),
            length_max: tokenizer(spec).and_then(|tokenizer| tokenizer.length_max()),
            rows_max: spec.rows_max,
            instances: groups.map(|group| group.instance_count()).sum(),
            classes: spec.steps.as_ref().map(|steps| steps.list.classes().to_vec()).unwrap_or_default(),
            version,
        })
    }

    /// The tokens of a batch with full rows; 0 without a bound of their length.
    fn batch_tokens_max(&self) -> u64 {
        let length = self.length_max.and_then(|length| u64::try_from(length).ok()).unwrap_or_default();
        length.saturating_mul(u64::from(self.rows_max))
    }

    /// The JSON of `/info`.
    pub fn json(&self) -> Vec<u8> {
        let mut json = b"{\"model_id\":".to_vec();
        writer::string(&self.name, &mut json);
        json.extend_from_slice(b",\"model_sha\":null,\"model_dtype\":\"float32\",\"model_type\":");
        match self.task {
            TextTask::Embed => json.extend_from_slice(br#"{"embedding":{}}"#),
            TextTask::SparseEmbed => json.extend_from_slice(br#"{"embedding":{"pooling":"splade"}}"#),
            TextTask::Classify => self.write_classes("classifier", &mut json),
            TextTask::Rerank => self.write_classes("reranker", &mut json),
        }
        let length = self.length_max.map_or_else(|| "null".to_owned(), |length| length.to_string());
        let rest = format!(
            ",\"max_concurrent_requests\":{},\"max_input_length\":{length},\"max_batch_tokens\":{},\
             \"max_batch_requests\":{},\"max_client_batch_size\":{},\"auto_truncate\":true,\"tokenization_workers\":{},\
             \"version\":\"{}\",\"sha\":null,\"docker_label\":null}}",
            self.requests_max,
            self.batch_tokens_max(),
            self.rows_max,
            self.rows_max,
            self.instances,
            self.version
        );
        json.extend_from_slice(rest.as_bytes());
        json
    }

    fn write_classes(&self, task: &str, json: &mut Vec<u8>) {
        json.extend_from_slice(format!("{{\"{task}\":{{\"id2label\":{{").as_bytes());
        for (index, class) in self.classes.iter().enumerate() {
            writer::comma(index, json);
            json.extend_from_slice(format!("\"{index}\":").as_bytes());
            writer::string(class, json);
        }
        json.extend_from_slice(b"},\"label2id\":{");
        for (index, class) in self.classes.iter().enumerate() {
            writer::comma(index, json);
            writer::string(class, json);
            json.extend_from_slice(format!(":{index}").as_bytes());
        }
        json.extend_from_slice(b"}}}");
    }

    /// The framed message of `tei.v1.Info`.
    ///
    /// # Errors
    /// Never: the message is small.
    pub fn framed(&self) -> Result<Bytes, Error> {
        framed(&self.message())
    }

    fn message(&self) -> tei::InfoResponse {
        let kind = match self.task {
            TextTask::Classify => tei::ModelType::Classifier,
            TextTask::Embed | TextTask::SparseEmbed => tei::ModelType::Embedding,
            TextTask::Rerank => tei::ModelType::Reranker,
        };
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        tei::InfoResponse {
            version: self.version.to_owned(),
            sha: None,
            docker_label: None,
            model_id: self.name.clone(),
            model_sha: None,
            model_dtype: "float32".to_owned(),
            model_type: kind.into(),
            max_concurrent_requests: self.requests_max,
            max_input_length: number(self.length_max.unwrap_or_default() as u64),
            max_batch_tokens: number(self.batch_tokens_max()),
            max_batch_requests: Some(self.rows_max),
            max_client_batch_size: self.rows_max,
            tokenization_workers: number(self.instances),
        }
    }
}
