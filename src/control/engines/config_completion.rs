//! The checked configuration of a model version: the draft from its configuration file, completed
//! from its model file, its label files and its initial states.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::Backend;
use crate::control::engines::frameworks::Frameworks;
use crate::control::machine::{cores, thread_watch};
use crate::control::repository::hub_folder;
use crate::control::repository::hub_graph::{self, OnnxPart};
use crate::control::repository::model_source::ModelSource;
use crate::control::repository::pinned_files::{PinnedFiles, open_python_file};
use crate::error::Error;
use crate::limits::{CONFIG_SIZE_MAX, LABELS_SIZE_MAX, MODEL_SIZE_MAX, PYTHON_FILE_SIZE_MAX, SEQUENCE_STATE_BYTES_MAX};
use crate::log;
use crate::model::config::{CompletionRules, ConfigDraft, PreferredInstances, namespace_label};
use crate::model::labels::{ClassNames, Labels};
use crate::model::name::qualified;
use crate::model::onnx::OnnxSignature;
use crate::model::parse::text::Notation;
use crate::model::platform::{STEPS_BACKEND, STEPS_FILENAME, TENSORFLOW_BACKEND, pickle_advice};
use crate::model::repository::ModelDirectory;
use crate::model::signature::ModelSignature;
use crate::model::spec::steps::ModelSteps;
use crate::model::tensorflow::{GRAPH_TAG, SAVED_MODEL_FILE, SIGNATURE_DEF, SavedModel};
use crate::model::trees;
use crate::model::{ModelSpec, PythonModel};
use crate::process::python::ModelProcess;
use crate::process::triton::{HostedChanges, HostedDraft, PreferredGroup, TritonHost};
use crate::settings::{Compat, Settings};
use crate::steps::StepList;
use crate::transformer::Operators;

/// Completes configurations. Runs on load threads, because a Python model may take its time.
#[derive(Clone, Copy)]
pub struct ConfigCompletion<'a> {
    /// The server's settings.
    pub settings: &'a Settings,
    /// Runs `auto_complete_config`; `None` if no Python is run.
    pub python: Option<&'a dyn PythonEngine>,
    /// Has hosted backends complete it; `None` if no foreign code is run.
    pub host: Option<&'a TritonHost>,
    /// The same for backends in processes of their own.
    pub isolated: Option<&'a dyn LibraryCompletion>,
    /// Has OpenVINO read its models.
    pub frameworks: &'a Frameworks,
    /// True for a folder of the hub whose rows depend on each other: each of them runs alone.
    pub is_row_by_row: bool,
}

/// Has backends in processes of their own complete configurations.
pub trait LibraryCompletion: Send + Sync {
    /// Returns the backend's changes of a configuration; `None` if the model does not run in a
    /// process of its own. Blocks until the process has ended.
    ///
    /// # Errors
    /// The backend's error, or the reason that there was no process.
    fn complete(&self, draft: &ConfigDraft, hosted: &HostedDraft<'_>) -> Result<Option<HostedChanges>, Error>;
}

/// Runs Python models: loads them as any [`Backend`], and has them complete their configuration.
pub trait PythonEngine: Backend {
    /// Runs the model's `auto_complete_config` in a process of its own and returns the configuration that it made, in
    /// JSON. Blocks until the process has ended. Called on load threads, for several models at a time.
    ///
    /// # Errors
    /// The error of the load: the function's own exception, or the reason that there was no
    /// process.
    fn complete_config(&self, model: &PythonDraft<'_>) -> Result<String, Error>;

    /// Returns true if any model finalizes now. Each does for a limited time.
    fn is_finalizing(&self) -> bool {
        false
    }

    /// The processes of its models.
    fn processes(&self) -> Vec<ModelProcess> {
        Vec::new()
    }
}

/// A Python model whose configuration is to be completed.
pub struct PythonDraft<'a> {
    /// The model's name.
    pub name: &'a str,
    /// The number of the version.
    pub version: u64,
    /// The directory of the version.
    pub version_directory: PathBuf,
    /// The name of its backend, which is also the name of a Python-based backend's directory.
    pub backend: &'a str,
    /// The code that its process runs.
    pub python: &'a PythonModel,
    /// The configuration so far: JSON with all defaults, as clients see it.
    pub config: String,
}

impl ConfigCompletion<'_> {
    /// Completes and checks the configuration of one version.
    ///
    /// # Errors
    /// When the model file or the file of an initial state cannot be read, the configuration does not fit them, or
    /// `auto_complete_config` of a Python model fails.
    pub fn complete(
        &self,
        source: &ModelSource,
        directory: &ModelDirectory,
        version: u64,
        draft: &ConfigDraft,
        labels: &BTreeMap<String, Arc<Labels>>,
    ) -> Result<ModelSpec, Error> {
        if draft.is_of_hub() {
            return self.complete_hub_folder(source, directory, version, draft);
        }
        if draft.has_steps() {
            return self.complete_with_steps(source, directory, version, draft, labels);
        }
        if let Some(draft) = self.complete_by_model(source, directory, version, draft)? {
            let labels = read_labels(source, directory, &draft)?;
            return self.finish(source, directory, version, &draft, &labels);
        }
        self.finish(source, directory, version, draft, labels)
    }

    fn finish(
        &self,
        source: &ModelSource,
        directory: &ModelDirectory,
        version: u64,
        draft: &ConfigDraft,
        labels: &BTreeMap<String, Arc<Labels>>,
    ) -> Result<ModelSpec, Error> {
        let onnx = match draft.onnx_filename() {
            Some(file) => {
                let folder = directory.version_path(version);
                let bytes = hub_graph::read_onnx(&source.repository, &folder, file, OnnxPart::Signature);
                let missing = |error| draft.stated_fault().unwrap_or_else(|| with_files(&error, file, directory));
                let bytes = bytes.map_err(missing)?;
                let mut signature = OnnxSignature::decode(&bytes)?;
                // Triton has the labels of `label_filename` alone.
                if self.settings.compat != Compat::Triton {
                    signature.add_class_names(&bytes, class_names_beside(source, directory, &folder).as_ref());
                }
                Some(signature)
            }
            None => None,
        };
        let rules = completion_rules(self.settings, draft.backend());
        let trees = match draft.tree_filename_to_complete().filter(|_| rules.is_on) {
            Some(file) => {
                let path = format!("{}/{file}", directory.version_path(version));
                let bytes = source.read(&path, MODEL_SIZE_MAX).map_err(|error| with_files(&error, file, directory))?;
                let model = trees::decode(&bytes, None);
                Some(model.map_err(|error| error.with_prefix(&format!("unable to load model '{}': ", draft.name())))?)
            }
            None => None,
        };
        let signature = match draft.framework_filename_to_complete().filter(|_| rules.is_on) {
            Some(file) => Some(self.signature(source, &directory.version_path(version), draft, file)?),
            None => None,
        };
        let states = read_states(source, directory, draft)?;
        let draft = draft.clone().with_state_files(states);
        let draft = match (&trees, &signature) {
            (Some(model), _) => draft.with_trees(model, rules),
            (None, Some(signature)) => draft.with_signature(signature, rules)?,
            (None, None) => draft,
        };
        let mut spec = draft.clone().complete(onnx.as_ref(), labels, rules)?;
        if spec.is_batch_axis_derived
            && let Some(differ) = Self::first_axes_that_differ(source, directory, version, &draft, onnx.as_ref())?
        {
            log::info(&format!(
                "'{}' is not batched: the first axes of {differ} have different names in its file; max_batch_size above 0 \
                 in its configuration says that they are its batch axis",
                spec.name
            ));
            spec = draft.without_batch_axis().complete(onnx.as_ref(), labels, rules)?;
        }
        self.settle(&mut spec, directory);
        Ok(spec)
    }

    /// Completes a model with a `steps.json`: the model between the steps from its own file, and what clients see from the
    /// configuration alone.
    fn complete_with_steps(
        &self,
        source: &ModelSource,
        directory: &ModelDirectory,
        version: u64,
        draft: &ConfigDraft,
        labels: &BTreeMap<String, Arc<Labels>>,
    ) -> Result<ModelSpec, Error> {
        let folder = directory.version_path(version);
        let file = match draft.backend() {
            STEPS_BACKEND => draft.model_filename(),
            _ => STEPS_FILENAME,
        };
        let path = format!("{folder}/{file}");
        let in_file = |error: Error| error.with_prefix(&format!("{path}: "));
        let text = source.read(&path, CONFIG_SIZE_MAX)?;
        let text = std::str::from_utf8(&text).map_err(|_| in_file(Error::invalid("the file is not UTF-8")))?;
        // Labels lie beside the configuration in most repositories, tokenizers beside the model.
        let read = |name: &str, size_max: usize| {
            let beside = source.read(&format!("{folder}/{name}"), size_max);
            beside.or_else(|error| source.read(&directory.file(name), size_max).map_err(|_| error.to_string()))
        };
        let list = StepList::read(text, &read).map_err(in_file)?;
        let engine = match (list.has_model(), draft.backend()) {
            (true, STEPS_BACKEND) => {
                let text = "the step \"model\" needs a model of ONNX, a framework or trees beside this file; a model.py is not run \
                            between steps";
                return Err(in_file(Error::invalid(text)));
            }
            (false, STEPS_BACKEND) => None,
            (false, _) => {
                let text = "a step {\"step\": \"model\"} must say where the model beside this file runs";
                return Err(in_file(Error::invalid(text)));
            }
            (true, _) => {
                let engine = self.complete(source, directory, version, &draft.of_engine(), &BTreeMap::new());
                Some(engine.map_err(|error| error.with_prefix("the model between its steps: "))?)
            }
        };
        let mut spec = self.complete_around(directory, draft.clone(), engine.as_ref(), labels)?;
        let steps = ModelSteps::new(text, list, &spec, engine.map(Arc::new)).map_err(in_file)?;
        spec.steps = Some(Arc::new(steps));
        Ok(spec)
    }

    /// The spec of a model with steps as clients see it; `engine` is the model between them.
    fn complete_around(
        &self,
        directory: &ModelDirectory,
        draft: ConfigDraft,
        engine: Option<&ModelSpec>,
        labels: &BTreeMap<String, Arc<Labels>>,
    ) -> Result<ModelSpec, Error> {
        let draft = engine.iter().fold(draft, |draft, engine| draft.with_rows_of(engine));
        let rules = CompletionRules { is_on: false, ..completion_rules(self.settings, draft.backend()) };
        let mut spec = draft.complete(None, labels, rules)?;
        self.settle(&mut spec, directory);
        Ok(spec)
    }

    /// Completes the model of a folder of the hub: its ONNX file first, then what is derived from the folder and that file.
    fn complete_hub_folder(
        &self,
        source: &ModelSource,
        directory: &ModelDirectory,
        version: u64,
        draft: &ConfigDraft,
    ) -> Result<ModelSpec, Error> {
        let folder = directory.version_path(version);
        let labels = BTreeMap::new();
        let in_folder = |error: Error| error.with_prefix("its folder of the Hugging Face hub: ");
        let engine = self.complete(source, directory, version, &draft.of_engine(), &labels);
        let mut engine =
            engine.map_err(|error| in_folder(error.with_prefix(&format!("{}: ", draft.model_filename()))))?;
        let mut derived = hub_folder::derive(&source.repository, &folder, draft, &engine).map_err(in_folder)?;
        if self.is_row_by_row {
            (engine.rows_max, engine.batching) = (1, None);
            derived.config = hub_folder::row_by_row(&derived.config).map_err(in_folder)?;
        }
        let read = |name: &str, size_max: usize| {
            source.read(&format!("{folder}/{name}"), size_max).map_err(|error| error.to_string())
        };
        let in_steps = |error: Error| in_folder(error.with_prefix("its steps: "));
        let list = StepList::read(&derived.steps, &read).map_err(in_steps)?;
        let around = draft.clone().with_derived(&derived.config)?;
        let mut spec = self.complete_around(directory, around.clone(), Some(&engine), &labels)?;
        // The requests have no rows: the steps choose those of the graph.
        let engine = if spec.has_batch_axis() {
            engine
        } else {
            self.complete(source, directory, version, &around.of_engine(), &labels).map_err(in_folder)?
        };
        let (name, task, file) = (&spec.name, derived.task.name(), draft.model_filename());
        log::info(&format!("'{name}' is a folder of the Hugging Face hub for {task}, run from {file}"));
        let steps = ModelSteps::new(&derived.steps, list, &spec, Some(Arc::new(engine))).map_err(in_steps)?;
        spec.steps = Some(Arc::new(steps));
        Ok(spec)
    }

    /// Sets what depends on the server.
    fn settle(&self, spec: &mut ModelSpec, directory: &ModelDirectory) {
        if spec.is_cached && !self.settings.cache.is_on() {
            let name = &spec.name;
            log::warning(&format!("'{name}' has a response cache, but the server has none: see --cache-config"));
            spec.is_cached = false;
        }
        spec.follows_triton = self.settings.compat == Compat::Triton;
        spec.namespace.clone_from(&directory.namespace);
        spec.metric_labels.push_str(&namespace_label(&directory.namespace));
    }

    /// Two tensors of an ONNX file, which OpenVINO reads too, whose first axes have different names.
    fn first_axes_that_differ(
        source: &ModelSource,
        directory: &ModelDirectory,
        version: u64,
        draft: &ConfigDraft,
        onnx: Option<&OnnxSignature>,
    ) -> Result<Option<String>, Error> {
        if let Some(onnx) = onnx {
            return Ok(onnx.first_axes_that_differ());
        }
        let Some(file) = draft.framework_filename().filter(|file| file.ends_with(".onnx")) else { return Ok(None) };
        let bytes = source.read(&format!("{}/{file}", directory.version_path(version)), MODEL_SIZE_MAX)?;
        // A file that only OpenVINO can read has no names that are known.
        Ok(OnnxSignature::decode(&bytes).ok().and_then(|onnx| onnx.first_axes_that_differ()))
    }

    /// The inputs and outputs that a model of OpenVINO's or TensorFlow's has in its file.
    fn signature(
        &self,
        source: &ModelSource,
        folder: &str,
        draft: &ConfigDraft,
        file: &str,
    ) -> Result<ModelSignature, Error> {
        if draft.backend() == TENSORFLOW_BACKEND {
            let file = source.read(&format!("{folder}/{file}/{SAVED_MODEL_FILE}"), MODEL_SIZE_MAX)?;
            let choose =
                |model: SavedModel| model.choose(draft.parameter(GRAPH_TAG.0), draft.parameter(SIGNATURE_DEF.0));
            let chosen = SavedModel::decode(&file).and_then(choose);
            let chosen =
                chosen.map_err(|error| error.with_prefix(&format!("unable to load model '{}': ", draft.name())))?;
            return Ok(chosen.tensors());
        }
        // Files that the library opens by path must be beneath the repository.
        let _pinned = PinnedFiles::new(source, folder, draft, Operators::default())?;
        let openvino = self.frameworks.openvino();
        let openvino =
            openvino.map_err(|why| Error::unavailable(format!("model '{}' needs OpenVINO: {why}", draft.name())))?;
        openvino.signature(draft.name(), &source.root.join(folder).join(file))
    }

    /// Returns the draft as the model's own code completes it; `None` if it has no such code or
    /// must not be asked.
    fn complete_by_model(
        &self,
        source: &ModelSource,
        directory: &ModelDirectory,
        version: u64,
        draft: &ConfigDraft,
    ) -> Result<Option<ConfigDraft>, Error> {
        if let Some(library) = draft.library() {
            return self.complete_by_library(source, directory, version, draft, library).map(Some);
        }
        let folder = directory.version_path(version);
        let Some(python) = self.python_to_ask(source, &folder, draft)? else { return Ok(None) };
        let model = PythonDraft {
            name: draft.name(),
            version,
            version_directory: source.root.join(&folder),
            backend: draft.backend(),
            python: &python,
            config: draft.shown(),
        };
        let engine = self.python.ok_or_else(|| no_python(draft.name()))?;
        let returned = engine.complete_config(&model)?;
        if returned.len() > CONFIG_SIZE_MAX {
            let name = draft.name();
            return Err(Error::invalid(format!(
                "auto_complete_config of model '{name}' made a configuration of {} bytes, more than the {CONFIG_SIZE_MAX} \
                 allowed",
                returned.len()
            )));
        }
        draft.clone().with_completion(returned.as_bytes()).map(Some)
    }

    /// Returns true if the configuration is complete only after code of the model or a library of its framework has
    /// run.
    ///
    /// # Errors
    /// When the file of a Python model cannot be read.
    pub fn needs_code(&self, source: &ModelSource, folder: &str, draft: &ConfigDraft) -> Result<bool, Error> {
        let draft = if draft.has_steps() { &draft.of_engine() } else { draft };
        let rules = completion_rules(self.settings, draft.backend());
        let is_framework = draft.framework_filename_to_complete().is_some_and(|_| rules.is_on);
        let needs_library = is_framework && draft.backend() != TENSORFLOW_BACKEND;
        Ok(draft.library().is_some() || needs_library || self.python_to_ask(source, folder, draft)?.is_some())
    }

    /// Returns the Python model whose code completes the configuration; `None` if there is no such code or it must not
    /// be asked.
    fn python_to_ask(
        &self,
        source: &ModelSource,
        folder: &str,
        draft: &ConfigDraft,
    ) -> Result<Option<PythonModel>, Error> {
        let python = draft.python()?.filter(|python| self.settings.auto_complete && !python.is_own());
        let Some(python) = python else { return Ok(None) };
        let text = self.read_python_file(source, folder, draft.backend(), &python)?;
        let is_long = text.len() as u64 > PYTHON_FILE_SIZE_MAX;
        // One more process would start, import the model and end; few models have the function.
        Ok((is_long || may_complete(&text)).then_some(python))
    }

    /// Returns the draft as the model's backend completes it, which initializes the model.
    fn complete_by_library(
        &self,
        source: &ModelSource,
        directory: &ModelDirectory,
        version: u64,
        draft: &ConfigDraft,
        library: &str,
    ) -> Result<ConfigDraft, Error> {
        let host = self.host.ok_or_else(|| no_host(draft.name()))?;
        let hosted = HostedDraft {
            name: draft.name(),
            qualified_name: &qualified(&directory.namespace, draft.name()),
            version,
            version_directory: &source.root.join(directory.version_path(version)),
            backend: draft.backend(),
            file: library,
            config: &draft.shown(),
        };
        let isolated = self.isolated.map(|isolated| isolated.complete(draft, &hosted)).transpose()?.flatten();
        let changes = isolated.map_or_else(|| host.complete(&hosted), Ok)?;
        let prefers =
            |group: PreferredGroup| PreferredInstances { kind: group.kind, count: group.count, gpus: group.gpus };
        let preferred: Vec<_> = changes.preferred.into_iter().map(prefers).collect();
        let draft = match changes.config.as_deref() {
            Some(config) if config.len() > CONFIG_SIZE_MAX => {
                let (name, size) = (draft.name(), config.len());
                return Err(Error::invalid(format!(
                    "the backend of model '{name}' made a configuration of {size} bytes, more than the {CONFIG_SIZE_MAX} \
                     allowed"
                )));
            }
            Some(config) => draft.clone().with_completion(config.as_bytes())?,
            None => draft.clone(),
        };
        draft.with_preferred(&preferred)
    }

    /// Reads the file that the processes of a model begin with; only the beginning if it is too
    /// long.
    fn read_python_file(
        &self,
        source: &ModelSource,
        folder: &str,
        backend: &str,
        python: &PythonModel,
    ) -> Result<Vec<u8>, Error> {
        let folder = if python.is_backend { backend } else { folder };
        let path = format!("{folder}/{}", python.file);
        let cannot_read = |error: std::io::Error| Error::invalid(format!("cannot read '{path}': {error}"));
        let file = match python.is_backend {
            // The operator put it there: a link may lead anywhere.
            true => File::open(self.settings.backend_directory.join(&path)).map_err(cannot_read)?,
            false => open_python_file(source, &path)?,
        };
        let mut text = Vec::new();
        file.take(PYTHON_FILE_SIZE_MAX + 1).read_to_end(&mut text).map_err(cannot_read)?;
        Ok(text)
    }
}

/// The function of a Python model that completes its configuration.
const AUTO_COMPLETE: &[u8] = b"auto_complete_config";
/// Beginnings of a model's class whose functions are all in the file: it is neither imported nor
/// has it a base.
const WHOLE_CLASSES: [&[u8]; 3] =
    [b"class TritonPythonModel:", b"class TritonPythonModel():", b"class TritonPythonModel(object):"];

/// Returns true if the model of a file may have the function.
fn may_complete(text: &[u8]) -> bool {
    let has = |want: &[u8]| text.windows(want.len()).any(|word| word == want);
    has(AUTO_COMPLETE) || !WHOLE_CLASSES.iter().any(|class| has(class))
}

/// Returns the refusal of a Python model by a server that runs no Python.
pub fn no_python(model: &str) -> Error {
    Error::unavailable(format!("model '{model}' is a Python model, and this server runs no Python"))
}

/// Returns the refusal of a shared library's model by a server that runs no shared libraries.
pub fn no_host(model: &str) -> Error {
    Error::unavailable(format!("model '{model}' is run by a library of Triton's, and this process opens none"))
}

/// Returns the error of a file that cannot be read, with the files that are there instead. The
/// files of the first version are known.
fn with_files(error: &Error, file: &str, directory: &ModelDirectory) -> Error {
    let files = &directory.files;
    if directory.versions.len() != 1 || files.iter().any(|have| have == file) {
        return error.clone();
    }
    let names: Vec<_> = files.iter().take(5).map(|name| format!("'{name}'")).collect();
    let pickle = files.iter().find_map(|name| pickle_advice(name));
    let found = match names.as_slice() {
        _ if let Some(advice) = pickle => advice,
        [] => "its directory is empty".to_owned(),
        names => format!("its directory has {}: rename the file, or set 'default_model_filename'", names.join(", ")),
    };
    Error::new(error.code(), format!("{error}; {found}"))
}

/// The rules for models of a backend.
pub fn completion_rules(settings: &Settings, backend: &str) -> CompletionRules {
    let default = CompletionRules::default();
    let rows_max_default = settings.backend_config.rows_max_default(backend).unwrap_or(default.rows_max_default);
    let cores = thread_watch::quota().unwrap_or(usize::MAX).min(cores::available().len());
    let onnx_instances = onnx_instances(settings.compat, cores);
    CompletionRules { is_on: settings.auto_complete, rows_max_default, onnx_instances }
}

/// Two, as in Triton, but not more than cores: instances that share one evict each other's weights from its caches, and each holds its
/// own memory.
fn onnx_instances(compat: Compat, cores: usize) -> u8 {
    let default = CompletionRules::default().onnx_instances;
    match compat {
        Compat::Triton => default,
        Compat::Protocol | Compat::Tei => default.min(u8::try_from(cores.max(1)).unwrap_or(default)),
    }
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

/// The names of classes in the `config.json` of Hugging Face's libraries that lies beside the model, or in its directory.
fn class_names_beside(source: &ModelSource, directory: &ModelDirectory, folder: &str) -> Option<ClassNames> {
    let name = Notation::Json.filename();
    let read = |path: String| source.read(&path, CONFIG_SIZE_MAX).ok();
    let beside = read(format!("{folder}/{name}")).or_else(|| read(directory.file(name)))?;
    ClassNames::from_hub_config(&beside)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_no_more_instances_by_default_than_cores() {
        for (cores, want) in [(0, 1), (1, 1), (2, 2), (64, 2)] {
            assert_eq!(onnx_instances(Compat::Protocol, cores), want, "{cores}");
            assert_eq!(onnx_instances(Compat::Triton, cores), 2, "{cores}");
        }
    }
}
