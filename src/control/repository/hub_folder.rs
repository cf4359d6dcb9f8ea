//! Folders of the Hugging Face hub in a repository: the first draft of a configuration names the ONNX file, and when that was
//! read, its inputs and outputs decide the rest ([`crate::hub`]).

use crate::control::repository::beneath::RepositoryRoot;
use crate::control::repository::hub_graph;
use crate::error::Error;
use crate::hub::graph::{choose, no_graph};
use crate::hub::{CpuFeatures, Derived, GraphSource, GraphTensor, HubFolder, HubGraph, is_hub_config};
use crate::model::ModelSpec;
use crate::model::config::{ConfigDraft, ConfigSurroundings};
use crate::model::parse::text::Notation;
use crate::model::repository::ListingEntry;
use crate::model::spec::TensorSpec;
use crate::wire::json::Document;

/// Returns the draft of a folder at a path of the repository: with steps if `surroundings` says that the server uses them,
/// otherwise that of the ONNX file alone.
///
/// # Errors
/// `InvalidArgument` if the folder has no ONNX file, or cannot be listed.
pub fn draft(
    repository: &RepositoryRoot,
    name: &str,
    path: &str,
    surroundings: ConfigSurroundings<'_>,
) -> Result<ConfigDraft, Error> {
    let names = files(repository, path)?;
    let folder = HubFolder { names: &names, read: &|file, size_max| read(repository, path, file, size_max) };
    let file = match choose(&folder, cpu_features())? {
        GraphSource::File(file) => file,
        GraphSource::Weights(weights) => match hub_graph::weights(&folder) {
            Some(file) => file.to_owned(),
            None => return Err(no_graph(&weights)),
        },
    };
    let text = hub::skeleton(&file, surroundings.has_steps);
    Ok(ConfigDraft::read(name, Notation::Text, text.as_bytes(), surroundings)?.of_hub_folder())
}

/// Derives the model of a folder; `engine` is the one of its ONNX file, with the inputs and outputs of that.
///
/// # Errors
/// As [`crate::hub::derive`].
pub fn derive(
    repository: &RepositoryRoot,
    path: &str,
    draft: &ConfigDraft,
    engine: &ModelSpec,
) -> Result<Derived, Error> {
    let names = files(repository, path)?;
    let folder = HubFolder { names: &names, read: &|file, size_max| read(repository, path, file, size_max) };
    let tensors = |tensors: &[TensorSpec]| -> Vec<GraphTensor> {
        let required = tensors.iter().filter(|tensor| !tensor.is_optional);
        let shown = required.map(|tensor| GraphTensor {
            name: tensor.name.clone(),
            datatype: tensor.datatype,
            shape: tensor.shape.to_vec(),
        });
        shown.collect()
    };
    let file = draft.model_filename().to_owned();
    let graph = HubGraph { file, inputs: tensors(&engine.inputs), outputs: tensors(&engine.outputs) };
    hub::derive(&folder, &graph)
}

/// The text of a derived configuration for a network whose rows depend on each other: a row for each request, which runs alone.
///
/// # Errors
/// `InvalidArgument` if one request has several rows of the network, such as the labels of zero-shot classification.
pub fn row_by_row(config: &str) -> Result<String, Error> {
    if config.lines().any(|line| line == "max_batch_size: 0") {
        return Err(Error::invalid("the rows of its network depend on each other, and its requests have several"));
    }
    let line = |line: &str| match line {
        "dynamic_batching { }" => String::new(),
        line if line.starts_with("max_batch_size: ") => "max_batch_size: 1\n".to_owned(),
        line => format!("{line}\n"),
    };
    Ok(config.lines().map(line).collect())
}

/// Returns true if the text of a `config.json` is a JSON object that is not transformers': the configuration of a model of this
/// server.
pub fn is_own_config(text: &[u8]) -> bool {
    let document = Document::parse(text, &[]);
    document.is_ok_and(|document| document.root().members().next().is_some()) && !is_hub_config(text)
}

/// The paths of all files of a folder, relative to it.
fn files(repository: &RepositoryRoot, path: &str) -> Result<Vec<String>, Error> {
    fn add(entries: &[ListingEntry], above: &str, names: &mut Vec<String>) {
        for entry in entries.iter().filter(|entry| !entry.name.starts_with('.')) {
            let name = format!("{above}{}", entry.name);
            if entry.is_directory {
                add(&entry.children, &format!("{name}/"), names);
            } else {
                names.push(name);
            }
        }
    }
    let listed = repository.list_beneath(path);
    let listed = listed.map_err(|error| Error::invalid(format!("cannot list '{path}': {error}")))?;
    let mut names = Vec::new();
    add(&listed, "", &mut names);
    Ok(names)
}

fn read(repository: &RepositoryRoot, path: &str, file: &str, size_max: usize) -> Result<Vec<u8>, String> {
    repository.read(&format!("{path}/{file}"), size_max).map_err(|error| error.to_string())
}

/// The instructions of this processor.
fn cpu_features() -> CpuFeatures {
    #[cfg(target_arch = "x86_64")]
    {
        let has_avx512 = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vl")
            && std::is_x86_feature_detected!("avx512dq");
        CpuFeatures {
            has_avx2: std::is_x86_feature_detected!("avx2"),
            has_avx512,
            has_avx512_vnni: has_avx512 && std::is_x86_feature_detected!("avx512vnni"),
            is_arm64: false,
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    CpuFeatures { is_arm64: cfg!(target_arch = "aarch64"), ..CpuFeatures::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_depend_on_each_other_run_one_by_one_or_not_at_all() {
        let config = "backend: \"onnxruntime\"\nmax_batch_size: 32\ndynamic_batching { }\n";
        assert_eq!(row_by_row(config).unwrap(), "backend: \"onnxruntime\"\nmax_batch_size: 1\n");
        let several = row_by_row("max_batch_size: 0\n").unwrap_err();
        assert_eq!(several.text(), "the rows of its network depend on each other, and its requests have several");
    }
}
