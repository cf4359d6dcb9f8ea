//! Folders of the Hugging Face hub as models: [`derive()`] turns the files of a folder, and the inputs and outputs of its ONNX
//! file, into the text of a `config.pbtxt` and of a `steps.json`, which is all that the server needs. Both texts can be kept and
//! edited. Opens no files: the caller lists them and reads those that are asked for.
//!
//! A folder is derived whole or refused: an error names the file and the member.

mod answer;
mod classify;
mod config_file;
mod embed;
pub mod folder;
pub mod graph;
mod image;
mod kind;
mod late;
pub mod limits;
mod sentence;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
mod texts;
mod write;
mod zero_shot;

use base::error::Error;

use crate::config_file::ConfigFile;
pub use crate::folder::HubFolder;
pub use crate::graph::{CpuFeatures, GraphSource, GraphTensor, HubGraph};
pub use crate::kind::HubTask;
use crate::sentence::Modules;
pub use crate::write::skeleton;

/// The configuration of transformers in a folder.
pub const CONFIG: &str = "config.json";

/// The settings of sentence-transformers in a folder.
const SETTINGS: &str = "config_sentence_transformers.json";

/// A model as derived from a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// Its task.
    pub task: HubTask,
    /// The text of a `config.pbtxt`.
    pub config: String,
    /// The text of a `steps.json`.
    pub steps: String,
}

/// Derives the model of a folder. `graph` has the inputs and outputs of the file `graph.file` of the folder.
///
/// # Errors
/// `InvalidArgument` with the file and the member if the folder is incomplete or contradicts itself; `Unsupported` if it is of
/// a kind that is not served.
pub fn derive(folder: &HubFolder<'_>, graph: &HubGraph) -> Result<Derived, Error> {
    let modules = Modules::read(folder)?;
    let config = ConfigFile::required(folder, &modules.place(CONFIG))?;
    let task = kind::task(folder, &modules, &config, graph)?;
    match task {
        HubTask::ImageClassify | HubTask::ImageEmbed => image::derive(folder, &config, graph, task),
        HubTask::Classify | HubTask::Rerank | HubTask::TokenClassify => {
            classify::derive(folder, &modules, &config, graph, task)
        }
        HubTask::AnswerQuestion => answer::derive(folder, &modules, &config, graph),
        HubTask::LateEmbed => late::derive(folder, &modules, &config, graph),
        HubTask::ZeroShotClassify => zero_shot::derive(folder, &modules, &config, graph),
        HubTask::Embed | HubTask::SparseEmbed => embed::derive(folder, &modules, &config, graph, task),
    }
}

/// Returns true if the text of a `config.json` is that of transformers, and not the configuration of a model of this server.
pub fn is_hub_config(text: &[u8]) -> bool {
    let read = std::str::from_utf8(text).ok().and_then(|text| wire::json::placed::read(text).ok());
    let Some(wire::placed::PlacedValue::Table(members)) = read.map(|read| read.value) else { return false };
    members.iter().any(|member| ["architectures", "model_type", "transformers_version"].contains(&member.name.as_str()))
}
