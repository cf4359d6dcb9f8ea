//! Turns the text of a model configuration into a [`ModelSpec`], in two steps, because only the configuration
//! names the other files that are needed: a [`ConfigDraft`] names them, the caller reads them, and
//! [`ConfigDraft::complete`] fills in defaults, checks, and converts. An unsupported field is refused by name.

mod agents;
mod batch_axis;
mod batch_io;
pub(crate) mod complete;
mod frameworks;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod hosted;
mod hub;
mod instances;
mod metrics;
mod optimization;
mod python;
mod pytorch;
mod sequence_batching;
mod steps;
mod tensors;
mod trees;
pub(crate) mod validate;
mod versions;
pub mod warm_up;
pub mod write;

#[cfg(any(test, feature = "fuzz"))]
pub use self::fuzz::check_any_text;
pub use crate::config::agents::{AgentStep, FileChecksum, repository_agents};
pub use crate::config::hosted::{PreferredInstances, completed};
pub use crate::config::python::AnyBackendFile;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;

use crate::config::batch_axis::KnownAxis;
use crate::config::python::NO_BACKEND_FILES;
use crate::config::tensors::TensorIo;
use crate::labels::Labels;
use crate::onnx::OnnxSignature;
use crate::parse::text::{ConfigText, Notation};
use crate::parse::{json, supported};
use crate::platform::{ONNX_BACKEND, PYTHON_FILENAME, STEPS_FILENAME};
use crate::signature::ModelSignature;
use crate::spec::{
    Batching, InstanceGroup, InstanceKind, ModelSpec, QueueRules, RateRules, ResourceRules, TensorSpec, VersionPolicy,
};
use crate::trees::TreeModel;
use crate::{HostedLibrary, PythonModel, datatype, ensemble, name};
use base::error::Error;
use wire::proto::inference::model_config::SchedulingChoice;
use wire::proto::inference::model_instance_group::Kind;
use wire::proto::inference::model_queue_policy::TimeoutAction;
use wire::proto::inference::model_rate_limiter::Resource;
use wire::proto::inference::model_version_policy::PolicyChoice;
use wire::proto::inference::{ModelConfig, ModelInstanceGroup, ModelParameter, ModelQueuePolicy};

/// A configuration that was parsed but not yet completed from the model file.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use model::config::{CompletionRules, ConfigDraft};
///
/// let text = "backend: 'identity' max_batch_size: 8
///     input { name: 'x' data_type: TYPE_FP32 dims: 4 }
///     output { name: 'y' data_type: TYPE_FP32 dims: 4 }";
/// let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
/// let spec = draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap();
/// assert_eq!(spec.rows_max, 8);
/// assert_eq!(spec.inputs[0].shape.as_slice(), [-1, 4]);
/// ```
#[derive(Clone, Debug)]
pub struct ConfigDraft {
    config: ModelConfig,
    notes: Vec<String>,
    /// Contents of the initial state files, by name.
    states: BTreeMap<String, Arc<[u8]>>,
    gpus: GpuSupport,
    /// The file of the shared library that runs it, if the server has no backend of its own for it.
    library: Option<String>,
    /// The refusal of a load if there is no such backend.
    missing_backend: Option<Error>,
    /// True if it has a `steps.json`.
    has_steps: bool,
    /// True if its tensors and steps are to be derived from a folder of the hub.
    is_of_hub: bool,
    /// True if its outputs were filled in from the model's signature.
    are_outputs_filled: bool,
    axis: KnownAxis,
}

/// The GPUs of the machine that a configuration may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuSupport {
    /// The numbers of the devices.
    pub devices: Vec<u32>,
    /// The reason why there are no devices; empty if unknown.
    pub why_absent: String,
    /// True if `KIND_AUTO` may choose GPUs (`--gpu-auto`).
    pub takes_auto: bool,
    /// True if the model is run by a shared library, which may use GPUs under any backend name.
    pub is_for_library: bool,
}

/// Why no GPU may be used by a model with steps.
const NO_GPU_WITH_STEPS: &str =
    "a model with steps runs on the CPU; serve the steps as models of their own, in an ensemble with this one";

/// The surroundings of a configuration that decide its meaning.
#[derive(Clone, Copy)]
pub struct ConfigSurroundings<'a> {
    /// The names in the first version's directory, from which the backend is derived if the
    /// configuration does not name it. `None` if it must name it
    /// (`--disable-auto-complete-config`).
    pub files: Option<&'a [String]>,
    /// The files that the directory of backends has; of libraries also those beside the model.
    pub has_backend_file: AnyBackendFile<'a>,
    /// Backends that are run by their shared library though the server has its own
    /// (`--backend-config=NAME,host=triton`).
    pub forced_libraries: &'a [String],
    /// True if the model is served by another name than its directory and configuration have.
    pub is_renamed: bool,
    /// True if the first version's directory has a `steps.json` and the server uses these.
    pub has_steps: bool,
    /// True if that list has a step for the model, and a `model.onnx` lies beside it: both together stand for a `model.py`.
    pub has_onnx_between_steps: bool,
    /// True if it may name repository agents that are libraries (`--allow-agents`).
    pub allows_agents: bool,
}

impl<'a> ConfigSurroundings<'a> {
    /// A version's directory with these files, on a server without a directory of backends.
    pub const fn of_files(files: Option<&'a [String]>) -> Self {
        Self {
            files,
            has_backend_file: NO_BACKEND_FILES,
            forced_libraries: &[],
            is_renamed: false,
            has_steps: false,
            has_onnx_between_steps: false,
            allows_agents: false,
        }
    }
}

/// The rules for filling in a configuration from the model file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionRules {
    /// True if anything is filled in (off with `--disable-auto-complete-config`).
    pub is_on: bool,
    /// `max_batch_size` of a model that can batch and whose configuration does not set it
    /// (`default-max-batch-size`).
    pub rows_max_default: u16,
    /// Instances of an ONNX model on the CPU whose configuration does not set their count.
    pub onnx_instances: u8,
}

impl Default for CompletionRules {
    fn default() -> Self {
        Self { is_on: true, rows_max_default: 4, onnx_instances: complete::ONNX_INSTANCES_DEFAULT }
    }
}

impl ConfigDraft {
    /// Reads the `config.pbtxt` of a model, or an empty configuration without one. `directory` is the model's
    /// name; `files` are the names in its first version directory, from which the backend is derived if the
    /// configuration does not name it.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn new(directory: &str, text: Option<&[u8]>, files: &[String]) -> Result<Self, Error> {
        Self::read(directory, Notation::Text, text.unwrap_or_default(), ConfigSurroundings::of_files(Some(files)))
    }

    /// Reads a configuration in any notation.
    ///
    /// # Errors
    /// `InvalidArgument` if the text does not parse, a name is not valid, or the backend cannot be determined;
    /// `Unsupported` if a field or the backend is not supported.
    pub fn read(
        directory: &str,
        notation: Notation,
        text: &[u8],
        surroundings: ConfigSurroundings<'_>,
    ) -> Result<Self, Error> {
        let ConfigSurroundings { files, has_backend_file, forced_libraries, is_renamed, .. } = surroundings;
        name::check_model_name(directory)?;
        let text = ConfigText::decode(notation, text)?;
        let mut config: ModelConfig = text.message.transcode_to().map_err(|error| {
            Error::internal(format!("model '{directory}': its configuration cannot be decoded: {error}"))
        })?;
        let mut notes = complete::merge_outputs(&mut config);
        complete::fill_backend(&mut config, directory, files, is_renamed)?;
        python::fill_runtime(&mut config, has_backend_file);
        // Before the check of fields: a configuration for another backend has many fields that are
        // not supported, and the backend is the better error.
        let library = hosted::library(&config, has_backend_file, forced_libraries);
        let is_python = python::is_python(&config);
        let has_steps = library.is_none() && steps::fill(&mut config, &surroundings)?;
        let missing_backend = match &library {
            Some(_) => validate::platform(&config).map(|()| None)?,
            None => validate::backend(&config, has_backend_file)?,
        };
        if missing_backend.is_none() {
            notes.extend(supported::check_supported(directory, &text)?);
        }
        if has_steps && is_python {
            let network = if config.backend == ONNX_BACKEND { " around model.onnx" } else { "" };
            notes.push(format!("{STEPS_FILENAME} is run{network} instead of {PYTHON_FILENAME}: --steps=off runs that"));
        }
        notes.extend(optimization::note(&config, library.is_some()));
        if library.is_none() {
            notes.extend(python::notes(&config));
            if let Some(note) = trees::gpu_note(&config) {
                notes.push(note);
                complete::remove_gpus(&mut config);
            }
        }
        check_filenames(&config)?;
        agents::checksums(&config, surroundings.allows_agents)?;
        let mut gpus = GpuSupport { is_for_library: library.is_some(), ..GpuSupport::default() };
        if has_steps {
            NO_GPU_WITH_STEPS.clone_into(&mut gpus.why_absent);
        }
        // A model.py without a batch axis has none in its twin either.
        let has_rows_max = text.position("max_batch_size").is_some() || (has_steps && is_python);
        let draft = Self {
            config,
            notes,
            states: BTreeMap::new(),
            gpus,
            library,
            missing_backend,
            has_steps,
            is_of_hub: false,
            are_outputs_filled: false,
            axis: KnownAxis { has_rows_max, ..KnownAxis::default() },
        };
        if draft.config.name == directory {
            return Ok(draft);
        }
        // Last, as in Triton: other faults of a copied configuration are reported first, but for those of GPUs.
        Err(draft.clone().without_gpus().stated_fault().unwrap_or_else(|| {
            Error::invalid(format!(
                "unexpected directory name '{directory}' for model '{}', directory name must equal model name",
                draft.config.name
            ))
        }))
    }

    /// The Python model that a process runs; `None` if the model is not a Python model.
    ///
    /// # Errors
    /// `InvalidArgument` or `Unsupported` if its file or one of its parameters is not valid.
    pub fn python(&self) -> Result<Option<PythonModel>, Error> {
        if self.library.is_some() { Ok(None) } else { python::model(&self.config) }
    }

    /// The file of the shared library that runs the model; `None` if the server's own backends run
    /// it.
    pub fn library(&self) -> Option<&str> {
        self.library.as_deref()
    }

    /// Checks that the server has its backend.
    ///
    /// # Errors
    /// `InvalidArgument` in Triton's words if it has not.
    pub fn check_backend(&self) -> Result<(), Error> {
        self.missing_backend.clone().map_or(Ok(()), Err)
    }

    /// Adds the instance groups that its backend prefers, if the configuration has none.
    ///
    /// # Errors
    /// `InvalidArgument` for invalid groups.
    pub fn with_preferred(mut self, preferred: &[PreferredInstances]) -> Result<Self, Error> {
        hosted::add_preferred(&mut self.config, preferred, &self.gpus)?;
        Ok(self)
    }

    /// The configuration as `auto_complete_config` of a Python model gets it: JSON with all defaults, as clients see it
    /// once it is loaded.
    pub fn shown(&self) -> String {
        let mut config = self.config.clone();
        complete::fill_defaults(&mut config, &self.gpus, CompletionRules::default());
        json::encode(&config)
    }

    /// Takes over the result of a Python model's `auto_complete_config`.
    ///
    /// # Errors
    /// As [`Self::read`], or if it contradicts the configuration.
    pub fn with_completion(mut self, returned: &[u8]) -> Result<Self, Error> {
        let text = ConfigText::decode(Notation::Json, returned).map_err(|error| {
            let by = if self.library.is_some() {
                "TRITONBACKEND_ModelSetConfig set"
            } else {
                "its auto_complete_config returned"
            };
            Error::invalid(format!("what {by}: {error}"))
        })?;
        let returned: ModelConfig = text.message.transcode_to().map_err(|error| {
            Error::internal(format!("model '{}': its configuration cannot be decoded: {error}", self.config.name))
        })?;
        python::merge(&mut self.config, returned)?;
        supported::check_supported(&self.config.name, &text)?;
        check_filenames(&self.config)?;
        Ok(self)
    }

    /// Fields that the configuration sets and that have no effect in this server, each with the reason; for the log.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The name of the model.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The value of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.config.parameters.get(name).map(|parameter| parameter.string_value.as_str())
    }

    /// The name of its backend.
    pub fn backend(&self) -> &str {
        &self.config.backend
    }

    /// The files that must have a checksum before anything is loaded (`model_repository_agents`).
    ///
    /// # Errors
    /// None for a draft that was read: faults in them are reported then.
    pub fn checksums(&self) -> Result<Vec<FileChecksum>, Error> {
        agents::checksums(&self.config, true)
    }

    /// The composing models of an ensemble, each once; empty for any other model.
    pub fn composing(&self) -> Vec<String> {
        let ensemble = ensemble::read(&self.config);
        ensemble.map(|ensemble| ensemble.models().into_iter().map(str::to_owned).collect()).unwrap_or_default()
    }

    /// The versions to serve.
    pub fn version_policy(&self) -> VersionPolicy {
        version_policy(&self.config)
    }

    /// The name of the model's file in a version's directory; empty if it needs none.
    pub fn model_filename(&self) -> &str {
        &self.config.default_model_filename
    }

    /// The libraries with operators that it names, if it is an ONNX model.
    pub fn operator_libraries(&self) -> Vec<String> {
        optimization::libraries(&self.config, self.library.is_some())
    }

    /// The name of the ONNX file in a version's directory, if the backend needs one.
    pub fn onnx_filename(&self) -> Option<&str> {
        let is_onnx = self.config.backend == ONNX_BACKEND && self.library.is_none();
        is_onnx.then_some(self.config.default_model_filename.as_str())
    }

    /// The name of the file of a tree model in a version's directory; `None` for any other model.
    pub fn tree_filename(&self) -> Option<&str> {
        let is_trees = trees::is_trees(&self.config) && self.library.is_none();
        is_trees.then_some(self.config.default_model_filename.as_str())
    }

    /// The name of the file of a PyTorch model in a version's directory, if the server runs it;
    /// `None` for any other model.
    pub fn pytorch_filename(&self) -> Option<&str> {
        let is_pytorch = pytorch::is_module(&self.config) && self.library.is_none();
        is_pytorch.then_some(self.config.default_model_filename.as_str())
    }

    /// The same if inputs or outputs are left to it.
    pub fn tree_filename_to_complete(&self) -> Option<&str> {
        self.tree_filename().filter(|_| trees::is_incomplete(&self.config))
    }

    /// Fills in the inputs and outputs of a tree model, from the file that [`Self::tree_filename_to_complete`] names.
    pub fn with_trees(mut self, model: &TreeModel, rules: CompletionRules) -> Self {
        if rules.is_on {
            trees::fill(&mut self.config, model, rules.rows_max_default, self.axis.has_rows_max);
        }
        self
    }

    /// The name of the file or directory of a model of OpenVINO's or TensorFlow's in a version's
    /// directory; `None` for any other model.
    pub fn framework_filename(&self) -> Option<&str> {
        let is_own = self.library.is_none() && !python::is_python(&self.config);
        let is_framework = is_own && frameworks::is_framework(&self.config);
        is_framework.then_some(self.config.default_model_filename.as_str())
    }

    /// The same if inputs or outputs are left to it.
    pub fn framework_filename_to_complete(&self) -> Option<&str> {
        self.framework_filename().filter(|_| frameworks::is_incomplete(&self.config))
    }

    /// The platform that it names, or that was found.
    pub fn platform(&self) -> &str {
        &self.config.platform
    }

    /// Fills in inputs and outputs from the model's file.
    ///
    /// # Errors
    /// `InvalidArgument` if the file does not have the missing parts.
    pub fn with_signature(mut self, signature: &ModelSignature, rules: CompletionRules) -> Result<Self, Error> {
        if rules.is_on {
            let (before, rule) = (self.config.max_batch_size, self.axis.rule(rules));
            self.are_outputs_filled = frameworks::fill(&mut self.config, signature, rule)?;
            self.axis.note(rule, before, self.config.max_batch_size);
        }
        Ok(self)
    }

    /// The label files to read from the model's directory, each once.
    pub fn label_filenames(&self) -> Vec<&str> {
        let names = self.config.output.iter().map(|output| output.label_filename.as_str());
        let mut names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The initial state files to read from `initial_state/` in the model's directory, each once.
    pub fn state_filenames(&self) -> Vec<String> {
        sequence_batching::state_filenames(&self.config)
    }

    /// Sets the contents of the files that [`Self::state_filenames`] names.
    pub fn with_state_files(self, states: BTreeMap<String, Arc<[u8]>>) -> Self {
        Self { states, ..self }
    }

    /// Returns true if an instance may be placed on a GPU: a group has `KIND_GPU`, or the backend
    /// supports GPUs and a group leaves the kind open. The server looks for GPUs only then.
    pub fn may_use_gpu(&self) -> bool {
        let groups = &self.config.instance_group;
        let may = |group: &ModelInstanceGroup| matches!(group.kind(), Kind::Auto | Kind::Gpu);
        let is_open = groups.iter().any(|group| group.kind() == Kind::Gpu)
            || (self.config.backend == ONNX_BACKEND && (groups.is_empty() || groups.iter().any(may)));
        is_open && !self.has_steps
    }

    /// Returns true if it asks for a GPU: by a group of `KIND_GPU`, or one that names GPUs.
    pub fn asks_for_gpu(&self) -> bool {
        self.config.instance_group.iter().any(|group| group.kind() == Kind::Gpu || !group.gpus.is_empty())
    }

    /// The configuration without GPUs (`--gpu=off`): groups for them are for the CPU.
    pub fn without_gpus(mut self) -> Self {
        complete::remove_gpus(&mut self.config);
        self
    }

    /// Returns true if the model has a `steps.json`.
    pub const fn has_steps(&self) -> bool {
        self.has_steps
    }

    /// The draft of the model between the steps: its inputs and outputs follow from its file.
    pub fn of_engine(&self) -> Self {
        let config = steps::engine(&self.config);
        Self { config, has_steps: false, is_of_hub: false, notes: Vec::new(), ..self.clone() }
    }

    /// Takes over the batch axis of the model between the steps, if the configuration does not state one.
    pub fn with_rows_of(mut self, engine: &ModelSpec) -> Self {
        if !self.axis.has_rows_max {
            self.config.max_batch_size = i32::try_from(engine.rows_max).unwrap_or(i32::MAX);
            self.axis.is_derived = engine.is_batch_axis_derived;
        }
        self
    }

    /// Sets the GPUs of the machine.
    pub fn with_gpus(self, gpus: GpuSupport) -> Self {
        let gpus = GpuSupport { is_for_library: self.library.is_some(), ..gpus };
        Self { gpus, ..self }
    }

    /// The fault of the configuration by itself, if it leaves nothing to the model's file. It is
    /// reported before a missing file, as in Triton, which checks a configuration first.
    pub fn stated_fault(&self) -> Option<Error> {
        let mut config = self.config.clone();
        if config.input.is_empty() || config.output.is_empty() {
            return None;
        }
        complete::fill_defaults(&mut config, &self.gpus, CompletionRules::default());
        validate::config(&config, &self.gpus).err()
    }

    /// Fills in defaults, checks the configuration, and converts it. `onnx` is the signature of the file that
    /// [`Self::onnx_filename`] names, `labels` has the files that [`Self::label_filenames`] names.
    ///
    /// # Errors
    /// `InvalidArgument` if the configuration is wrong or disagrees with the ONNX file; `Unsupported` if it asks for
    /// something this server does not have; `Internal` if a label file was not read.
    pub fn complete(
        mut self,
        onnx: Option<&OnnxSignature>,
        labels: &BTreeMap<String, Arc<Labels>>,
        completion: CompletionRules,
    ) -> Result<ModelSpec, Error> {
        self.check_backend()?;
        let is_filled = match onnx.filter(|_| completion.is_on) {
            Some(onnx) => {
                let (before, rule) = (self.config.max_batch_size, self.axis.rule(completion));
                let is_filled = complete::fill_from_onnx(&mut self.config, onnx, rule)?;
                self.axis.note(rule, before, self.config.max_batch_size);
                is_filled
            }
            None => self.are_outputs_filled,
        };
        // Parts of a `batch_output` are cut by configured shapes, and states keep theirs.
        let is_filled = is_filled && self.config.batch_output.is_empty();
        let outputs = self.config.output.iter().filter(|_| is_filled);
        let derived: BTreeSet<String> = outputs.map(|output| output.name.clone()).collect();
        complete::fill_defaults(&mut self.config, &self.gpus, completion);
        validate::config(&self.config, &self.gpus)?;
        let engine = sequence_batching::engine_config(&self.config);
        if let Some(onnx) = onnx {
            validate::agreement(engine.as_ref().unwrap_or(&self.config), onnx)?;
        }
        let into_spec = |config: &ModelConfig| {
            let mut spec = into_spec(config, labels, self.library.as_deref())?;
            for output in &mut spec.outputs {
                output.is_derived = derived.contains(&output.name);
                if output.labels.is_none() {
                    output.labels = onnx.and_then(|onnx| onnx.labels.get(&output.name)).cloned();
                }
            }
            Ok::<_, Error>(spec)
        };
        let spec = into_spec(&self.config)?;
        let sequence = engine.map(|engine| {
            // A model that reads its configuration sees the user's: controls and states are in it as such.
            let (config_json, config_message) = (Arc::clone(&spec.config_json), Arc::clone(&spec.config_message));
            let mut engine = ModelSpec { config_json, config_message, ..into_spec(&engine)? };
            engine.library =
                engine.library.map(|library| Arc::new(hosted::of_sequences(&self.config, &library, &engine.outputs)));
            let engine = Arc::new(engine);
            sequence_batching::sequence(&self.config, engine, &self.states).map(Arc::new)
        });
        let is_batch_axis_derived = self.axis.is_derived;
        Ok(ModelSpec { sequence: sequence.transpose()?, is_batch_axis_derived, ..spec })
    }
}

impl ModelSpec {
    /// The spec by which an engine in another process loads a model: from the effective
    /// configuration ([`Self::config_message`]) and the names of the outputs whose shape was read
    /// from the model's file. It has the parts that engines look at: no labels, no samples, no
    /// instances, and of sequences the controls and states as plain tensors.
    ///
    /// # Errors
    /// `Internal` if the message is not that of a spec.
    pub fn of_engine(message: &[u8], derived: &[String]) -> Result<Self, Error> {
        let mut config = ModelConfig::decode(message)
            .map_err(|error| Error::internal(format!("an effective configuration cannot be decoded: {error}")))?;
        config.output.iter_mut().for_each(|output| output.label_filename.clear());
        config.model_warmup.clear();
        let engine = sequence_batching::engine_config(&config);
        let mut spec = into_spec(engine.as_ref().unwrap_or(&config), &BTreeMap::new(), None)?;
        spec.outputs.iter_mut().for_each(|output| output.is_derived = derived.contains(&output.name));
        spec.instance_groups.clear();
        Ok(spec)
    }

    /// A copy with parameters set, also in the configuration that clients see: they show decisions
    /// of this server, which tritonserver does not make.
    ///
    /// # Errors
    /// `Internal` if `config_message` does not decode, which cannot happen for a spec that was built here.
    pub fn with_parameters(&self, parameters: &[(&str, &str)]) -> Result<Self, Error> {
        let decoded = ModelConfig::decode(&*self.config_message);
        let mut config = decoded.map_err(|error| {
            Error::internal(format!("model '{}': its effective configuration cannot be decoded: {error}", self.name))
        })?;
        let mut spec = self.clone();
        for (key, value) in parameters {
            config.parameters.insert((*key).to_owned(), ModelParameter { string_value: (*value).to_owned() });
            spec.parameters.insert((*key).to_owned(), (*value).to_owned());
        }
        if !self.follows_triton {
            spec.config_json = json::encode(&config).into();
            spec.config_message = config.encode_to_vec().into();
        }
        Ok(spec)
    }
}

/// The model name in a configuration; `None` if it has none.
///
/// # Errors
/// `InvalidArgument` if the text does not parse.
pub fn configured_name(notation: Notation, text: &[u8]) -> Result<Option<String>, Error> {
    let text = ConfigText::decode(notation, text)?;
    let name = text.message.get_field_by_name("name");
    Ok(name.and_then(|name| name.as_str().map(str::to_owned)).filter(|name| !name.is_empty()))
}

fn check_filenames(config: &ModelConfig) -> Result<(), Error> {
    let check = |field: &str, file: &str| name::check_filename(&config.name, field, file);
    check("default_model_filename", &config.default_model_filename)?;
    let mut filenames: Vec<_> = config.cc_model_filenames.values().collect();
    filenames.sort_unstable();
    filenames.into_iter().try_for_each(|file| check("cc_model_filenames", file))?;
    config.output.iter().try_for_each(|output| check("label_filename", &output.label_filename))
}

fn version_policy(config: &ModelConfig) -> VersionPolicy {
    match config.version_policy.as_ref().map(|policy| &policy.policy_choice) {
        None => VersionPolicy::Latest(1),
        // As in Triton: a policy without a choice means all versions.
        Some(None | Some(PolicyChoice::All(_))) => VersionPolicy::All,
        Some(Some(PolicyChoice::Latest(latest))) => VersionPolicy::Latest(latest.num_versions),
        Some(Some(PolicyChoice::Specific(specific))) => VersionPolicy::Specific(
            specific.versions.iter().filter_map(|version| u64::try_from(*version).ok()).collect(),
        ),
    }
}

fn into_spec(
    config: &ModelConfig,
    labels: &BTreeMap<String, Arc<Labels>>,
    library: Option<&str>,
) -> Result<ModelSpec, Error> {
    let mut inputs = Vec::with_capacity(config.input.len());
    for input in &config.input {
        let spec = tensor_spec(config, &TensorIo::of_input(input))?;
        inputs.push(TensorSpec { is_optional: input.optional, is_ragged: input.allow_ragged_batch, ..spec });
    }
    let mut outputs = Vec::with_capacity(config.output.len());
    for output in &config.output {
        let mut spec = tensor_spec(config, &TensorIo::of_output(output))?;
        spec.labels = output_labels(&config.name, &output.label_filename, labels)?;
        spec.scatter_source = batch_io::scatter_source(config, &output.name);
        outputs.push(spec);
    }
    let warm_ups = warm_up::samples(config, &inputs)?;
    let python = if library.is_some() { None } else { python::model(config)?.map(Arc::new) };
    let optimization = optimization::read(config, library.is_some());
    let library = library.map(|file| {
        Arc::new(HostedLibrary { file: file.to_owned(), outputs_asked: outputs.len(), ..HostedLibrary::default() })
    });
    let platform = if config.platform.is_empty() { &config.backend } else { &config.platform };
    Ok(ModelSpec {
        name: config.name.clone(),
        platform: platform.clone(),
        backend: config.backend.clone(),
        rows_max: config.max_batch_size.unsigned_abs(),
        is_batch_axis_derived: false,
        inputs,
        outputs,
        batch_inputs: batch_io::inputs(config),
        batching: batching(config),
        ensemble: ensemble::read(config).map(Arc::new),
        python,
        library,
        sequence: None,
        steps: None,
        instance_groups: config.instance_group.iter().map(instance_group).collect(),
        version_policy: version_policy(config),
        default_model_filename: config.default_model_filename.clone(),
        parameters: config.parameters.iter().map(|(key, value)| (key.clone(), value.string_value.clone())).collect(),
        optimization,
        warm_ups,
        metric_labels: metric_labels(config),
        first_response_bounds: metrics::first_response_bounds(config),
        is_cached: config.response_cache.is_some_and(|cache| cache.enable),
        identity: None,
        refused_axes: Vec::new(),
        is_decoupled: config.model_transaction_policy.is_some_and(|policy| policy.decoupled),
        follows_triton: false,
        namespace: String::new(),
        config_json: json::encode(config).into(),
        config_message: config.encode_to_vec().into(),
    })
}

/// As in Triton each key gets an underscore in front, so that it cannot collide with a label of the server's.
fn metric_labels(config: &ModelConfig) -> String {
    let tags: BTreeMap<_, _> = config.metric_tags.iter().collect();
    tags.into_iter().map(|(key, value)| format!("_{key}=\"{}\",", label_value(value))).collect()
}

/// The label of a model's namespace, as Triton names it, with a comma after it; empty without one.
pub fn namespace_label(namespace: &str) -> String {
    if namespace.is_empty() { String::new() } else { format!("namespace=\"{}\",", label_value(namespace)) }
}

fn label_value(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn instance_group(group: &ModelInstanceGroup) -> InstanceGroup {
    // The default host policy depends on the kind and the first GPU.
    let gpus: Vec<u32> = group.gpus.iter().filter_map(|gpu| u32::try_from(*gpu).ok()).collect();
    let policy = match (group.kind(), gpus.first()) {
        (Kind::Model, _) => "model".to_owned(),
        (Kind::Gpu, Some(gpu)) => format!("gpu_{gpu}"),
        _ => "cpu".to_owned(),
    };
    let rate = group.rate_limiter.as_ref();
    let resource = |resource: &Resource| ResourceRules {
        name: resource.name.clone(),
        is_global: resource.global,
        count: resource.count,
    };
    InstanceGroup {
        name: group.name.clone(),
        kind: match group.kind() {
            Kind::Gpu => InstanceKind::Gpu,
            Kind::Model => InstanceKind::Model,
            Kind::Auto | Kind::Cpu => InstanceKind::Cpu,
        },
        count: group.count.unsigned_abs(),
        is_passive: group.passive,
        profiles: group.profile.clone(),
        gpus: if group.kind() == Kind::Gpu { gpus } else { Vec::new() },
        host_policy: if group.host_policy.is_empty() { policy } else { group.host_policy.clone() },
        rate: RateRules {
            priority: rate.map_or(0, |rate| rate.priority),
            resources: rate.map(|rate| rate.resources.iter().map(resource).collect()).unwrap_or_default(),
        },
    }
}

fn batching(config: &ModelConfig) -> Option<Batching> {
    let Some(SchedulingChoice::DynamicBatching(batching)) = &config.scheduling_choice else { return None };
    let mut rows_preferred: Vec<_> = batching.preferred_batch_size.iter().map(|size| size.unsigned_abs()).collect();
    rows_preferred.sort_unstable();
    rows_preferred.dedup();
    let policies = &batching.priority_queue_policy;
    Some(Batching {
        rows_preferred,
        queue_delay_max: Duration::from_micros(batching.max_queue_delay_microseconds),
        latency_target: validate::latency_target(config).ok().flatten(),
        preserves_order: batching.preserve_ordering,
        priority_levels: batching.priority_levels,
        priority_default: batching.default_priority_level,
        queue_default: batching.default_queue_policy.as_ref().map(queue_rules).unwrap_or_default(),
        queue_by_level: policies.iter().map(|(level, policy)| (*level, queue_rules(policy))).collect(),
    })
}

fn queue_rules(policy: &ModelQueuePolicy) -> QueueRules {
    QueueRules {
        is_delaying: policy.timeout_action() == TimeoutAction::Delay,
        timeout_default: Duration::from_micros(policy.default_timeout_microseconds),
        may_override: policy.allow_timeout_override,
        entries_max: policy.max_queue_size,
    }
}

fn tensor_spec(config: &ModelConfig, io: &TensorIo<'_>) -> Result<TensorSpec, Error> {
    let datatype = datatype::from_config(io.data_type)
        .ok_or_else(|| Error::internal(format!("model '{}': '{}' has no datatype", config.name, io.name)))?;
    let is_batching = config.max_batch_size > 0;
    let is_shape_tensor = io.is_shape_tensor && is_batching;
    let spec = TensorSpec::new(io.name, datatype, io.dims, is_batching && !is_shape_tensor);
    Ok(TensorSpec { model_shape: io.model_shape(config.max_batch_size).into(), is_shape_tensor, ..spec })
}

fn output_labels(
    model: &str,
    filename: &str,
    labels: &BTreeMap<String, Arc<Labels>>,
) -> Result<Option<Arc<Labels>>, Error> {
    if filename.is_empty() {
        return Ok(None);
    }
    let found = labels.get(filename).cloned();
    found.map(Some).ok_or_else(|| Error::internal(format!("model '{model}': the label file '{filename}' was not read")))
}

#[cfg(test)]
mod tests;
