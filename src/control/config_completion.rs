//! The checked configuration of a model version: the draft from its configuration file, completed by what its
//! model file, its label files and its initial states say.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::control::model_source::ModelSource;
use crate::error::Error;
use crate::limits::{LABELS_SIZE_MAX, MODEL_SIZE_MAX, SEQUENCE_STATE_BYTES_MAX};
use crate::log;
use crate::model::ModelSpec;
use crate::model::config::{CompletionRules, ConfigDraft};
use crate::model::labels::Labels;
use crate::model::onnx::OnnxSignature;
use crate::model::repository::ModelDirectory;
use crate::settings::Settings;

/// Completes and checks the configuration of one version.
///
/// # Errors
/// When the model file or the file of an initial state cannot be read, or the configuration does not fit them.
pub fn complete(
    source: &ModelSource,
    directory: &ModelDirectory,
    version: u64,
    draft: &ConfigDraft,
    labels: &BTreeMap<String, Arc<Labels>>,
    settings: &Settings,
) -> Result<ModelSpec, Error> {
    let onnx = match draft.onnx_filename() {
        Some(file) => {
            let bytes = source.read(&format!("{}/{file}", directory.version_path(version)), MODEL_SIZE_MAX)?;
            Some(OnnxSignature::decode(&bytes)?)
        }
        None => None,
    };
    let states = read_states(source, directory, draft)?;
    let draft = draft.clone().with_state_files(states);
    let rules = completion_rules(settings, draft.backend());
    let mut spec = draft.complete(onnx.as_ref(), labels, rules)?;
    if spec.is_cached && settings.cache_size == 0 {
        let name = &spec.name;
        log::warning(&format!("'{name}' has a response cache, but the server has none: see --cache-config"));
        spec.is_cached = false;
    }
    Ok(spec)
}

fn completion_rules(settings: &Settings, backend: &str) -> CompletionRules {
    let default = CompletionRules::default();
    let rows_max_default = settings.backend_config.rows_max_default(backend).unwrap_or(default.rows_max_default);
    CompletionRules { is_on: settings.auto_complete, rows_max_default }
}

/// Reads the label files that a configuration names.
///
/// # Errors
/// When a file cannot be read, is larger than `LABELS_SIZE_MAX`, or is not UTF-8.
pub fn read_labels(
    source: &ModelSource,
    directory: &ModelDirectory,
    draft: &ConfigDraft,
) -> Result<BTreeMap<String, Arc<Labels>>, Error> {
    let mut labels = BTreeMap::new();
    for name in draft.label_filenames() {
        let path = directory.file(name);
        let text = String::from_utf8(source.read(&path, LABELS_SIZE_MAX)?);
        let text = text.map_err(|_| Error::invalid(format!("'{path}' is not UTF-8")))?;
        labels.insert(name.to_owned(), Arc::new(Labels::from_text(&text)));
    }
    Ok(labels)
}

/// Reads the initial states of sequences from the files that the configuration names.
fn read_states(
    source: &ModelSource,
    directory: &ModelDirectory,
    draft: &ConfigDraft,
) -> Result<BTreeMap<String, Arc<[u8]>>, Error> {
    let mut states = BTreeMap::new();
    for name in draft.state_filenames() {
        let path = directory.file(&format!("initial_state/{name}"));
        states.insert(name, source.read(&path, SEQUENCE_STATE_BYTES_MAX)?.into());
    }
    Ok(states)
}
