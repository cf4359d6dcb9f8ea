//! Fills in the fields that a configuration leaves out, as Triton does: the backend from the files
//! of a version, inputs and outputs from the ONNX file, and the defaults that `GET /config` shows.
//! Called by [`crate::config`] between reading and checking.

use crate::config::Notation;
use crate::config::batch_axis::{BatchAxis, fill_batching, lists_rows};
use crate::config::frameworks;
use crate::config::pytorch;
use crate::config::sequence_batching;
use crate::config::trees;
use crate::config::write;
use crate::config::{CompletionRules, GpuSupport};
use crate::datatype;
use crate::onnx::{OnnxSignature, OnnxTensor};
use crate::platform::ENSEMBLE_PLATFORM;
use crate::platform::FIL_BACKEND;
use crate::platform::ONNX_BACKEND;
use crate::platform::ONNX_FILENAME;
use crate::platform::ONNX_PLATFORM;
use crate::platform::PYTHON_BACKEND;
use crate::platform::PYTHON_FILENAME;
use crate::platform::PYTORCH_BACKEND;
use crate::platform::PYTORCH_FILENAME;
use crate::platform::STEPS_BACKEND;
use crate::platform::STEPS_FILENAME;
use crate::platform::TORCH_AOTI_FILENAME;
use crate::platform::backend_of;
use crate::platform::pickle_advice;
use base::error::Error;
use wire::proto::inference::model_config::SchedulingChoice;
use wire::proto::inference::model_instance_group::Kind;
use wire::proto::inference::model_optimization_policy::PinnedMemoryBuffer;
use wire::proto::inference::model_version_policy::{Latest, PolicyChoice};
use wire::proto::inference::{
    ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput, ModelTensorReshape, ModelVersionPolicy,
};

/// Default of `max_sequence_idle_microseconds`, as in Triton.
const SEQUENCE_IDLE_MICROS: u64 = 1_000_000;
/// Default count of an instance group of an ONNX model on the CPU, as in Triton.
pub const ONNX_INSTANCES_DEFAULT: u8 = 2;

/// File names in a version's directory and the backends they imply, in Triton's order.
const FILES: [(&str, &str); 8] = [
    ("model.savedmodel", "tensorflow"),
    ("model.graphdef", "tensorflow"),
    ("model.plan", "tensorrt"),
    (ONNX_FILENAME, ONNX_BACKEND),
    ("model.xml", "openvino"),
    (PYTORCH_FILENAME, PYTORCH_BACKEND),
    (TORCH_AOTI_FILENAME, PYTORCH_BACKEND),
    (PYTHON_FILENAME, PYTHON_BACKEND),
];

/// Drops an output that repeats another one, as Triton keeps the first. Returns a note for each.
pub fn merge_outputs(config: &mut ModelConfig) -> Vec<String> {
    let mut notes = Vec::new();
    let mut kept: Vec<ModelOutput> = Vec::with_capacity(config.output.len());
    for output in config.output.drain(..) {
        // Outputs of one name that differ are refused later.
        if kept.contains(&output) {
            notes.push(format!("output '{}' is listed twice; the first one is used", output.name));
        } else {
            kept.push(output);
        }
    }
    config.output = kept;
    notes
}

/// Fills in name, backend, platform and file name. `files` are the names in the first version's directory; `None`
/// if the backend must not be derived from them. A renamed model has the directory's name in any case.
///
/// # Errors
/// `InvalidArgument` if the backend cannot be determined.
pub fn fill_backend(
    config: &mut ModelConfig,
    directory: &str,
    files: Option<&[String]>,
    is_renamed: bool,
) -> Result<(), Error> {
    if is_renamed || config.name.is_empty() {
        directory.clone_into(&mut config.name);
    }
    let is_ensemble = matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    if is_ensemble && config.platform.is_empty() && config.backend.is_empty() {
        ENSEMBLE_PLATFORM.clone_into(&mut config.platform);
    }
    if config.platform == ENSEMBLE_PLATFORM {
        return Ok(());
    }
    if files.is_none() && config.backend.is_empty() && config.platform.is_empty() {
        return Err(Error::invalid(format!("must specify 'platform' or 'backend' for '{directory}'")));
    }
    if config.backend.is_empty() {
        config.backend = find_backend(config, files.unwrap_or_default()).map_or_else(String::new, str::to_owned);
    }
    if config.backend == ONNX_BACKEND {
        if config.platform.is_empty() {
            ONNX_PLATFORM.clone_into(&mut config.platform);
        }
        if config.default_model_filename.is_empty() {
            ONNX_FILENAME.clone_into(&mut config.default_model_filename);
        }
    }
    pytorch::fill(config, files);
    trees::fill_filename(config, files);
    frameworks::fill_filename(config, files);
    if config.backend == PYTHON_BACKEND && config.default_model_filename.is_empty() {
        PYTHON_FILENAME.clone_into(&mut config.default_model_filename);
    }
    if config.backend.is_empty() && config.platform.is_empty() && config.default_model_filename.is_empty() {
        let Some((_, backend)) = directory.split_once('.') else {
            let found: Vec<_> = files.unwrap_or_default().iter().map(|file| format!("'{file}'")).collect();
            let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
            let advice = files.unwrap_or_default().iter().find_map(|file| pickle_advice(file)).unwrap_or_else(|| {
                format!("rename the file, or set 'backend' and 'default_model_filename' in {directory}/config.pbtxt")
            });
            return Err(Error::invalid(format!(
                "nothing tells the backend of model '{directory}': expected model.onnx or model.py in its version's \
                 directory, as in {directory}/1/model.onnx, and found {found}; {advice}"
            )));
        };
        backend.clone_into(&mut config.backend);
        config.default_model_filename = format!("model.{backend}");
    }
    Ok(())
}

fn find_backend(config: &ModelConfig, files: &[String]) -> Option<&'static str> {
    // As in Triton, an unknown platform leaves the choice to the file's name, and is refused beside
    // that backend.
    if let Some(backend) = backend_of(&config.platform) {
        return Some(backend);
    }
    // A configured file name decides instead of the files in the directory.
    let is_there = |name: &str| match config.default_model_filename.as_str() {
        "" if !config.platform.is_empty() => false,
        "" => files.iter().any(|file| file == name),
        filename => filename == name,
    };
    let found = FILES.iter().find(|(name, _)| is_there(name)).map(|(_, backend)| *backend);
    let has_module = || config.platform.is_empty() && pytorch::is_filename(&config.default_model_filename);
    found
        .or_else(|| trees::is_there(&config.name, is_there).then_some(FIL_BACKEND))
        .or_else(|| has_module().then_some(PYTORCH_BACKEND))
        .or_else(|| is_there(STEPS_FILENAME).then_some(STEPS_BACKEND))
}

/// Fills in missing inputs or outputs, and batching; nothing if the configuration has both. Returns whether the outputs
/// are the file's.
///
/// # Errors
/// `InvalidArgument` if the file cannot provide what is missing: its shapes contradict `max_batch_size`, are unknown,
/// or an output cannot be served.
pub(super) fn fill_from_onnx(config: &mut ModelConfig, onnx: &OnnxSignature, axis: BatchAxis) -> Result<bool, Error> {
    let has_inputs = !config.input.is_empty() || !config.batch_input.is_empty();
    let is_derived = config.output.is_empty();
    if has_inputs && !is_derived {
        return Ok(false);
    }
    if let Some((_, reason)) = onnx.outputs_refused.first().filter(|_| is_derived) {
        return Err(Error::invalid(format!(
            "autofill failed for model '{}': output {reason}; {}",
            config.name,
            outputs_to_list(config, onnx, axis)
        )));
    }
    // As in Triton a model can batch if the first dimension of every input and output has variable size.
    let has_batch_axis = |tensor: &OnnxTensor| matches!(tensor.shape.as_deref(), Some([-1, ..]));
    let is_batching = onnx.inputs.iter().chain(&onnx.outputs).all(has_batch_axis);
    if !is_batching && config.max_batch_size != 0 {
        return Err(Error::invalid(format!(
            "autofill failed for model '{}': model does not support batching while non-zero max_batch_size is \
             specified",
            config.name
        )));
    }
    let axis = if is_batching { axis } else { BatchAxis::Stated };
    fill_batching(config, axis, lists_rows(config, onnx));
    let is_batching = config.max_batch_size > 0;
    if !has_inputs {
        // Control and state inputs are the server's, not the client's.
        let server_inputs = sequence_batching::input_names(config);
        for tensor in onnx.inputs.iter().filter(|tensor| !server_inputs.contains(&tensor.name)) {
            let (dims, reshape) = fill_dims(&config.name, "input", tensor, is_batching)?;
            let (name, data_type) = (tensor.name.clone(), datatype::to_config(tensor.datatype).into());
            config.input.push(ModelInput { name, data_type, dims, reshape, ..ModelInput::default() });
        }
    }
    if is_derived {
        let states = sequence_batching::output_names(config);
        for tensor in onnx.outputs.iter().filter(|tensor| !states.contains(&tensor.name)) {
            let (dims, reshape) = fill_dims(&config.name, "output", tensor, is_batching)?;
            let (name, data_type) = (tensor.name.clone(), datatype::to_config(tensor.datatype).into());
            config.output.push(ModelOutput { name, data_type, dims, reshape, ..ModelOutput::default() });
        }
    }
    Ok(is_derived)
}

/// The text for `config.pbtxt` that lists the outputs that can be served.
fn outputs_to_list(config: &ModelConfig, onnx: &OnnxSignature, axis: BatchAxis) -> String {
    let served = OnnxSignature { outputs_refused: Vec::new(), ..onnx.clone() };
    let mut filled = config.clone();
    let outcome = fill_from_onnx(&mut filled, &served, axis);
    if outcome.is_err() || filled.output.is_empty() {
        return "it has no other output that can be served".to_owned();
    }
    let outputs = ModelConfig { output: filled.output, ..ModelConfig::default() };
    let text = write::encode(&outputs, Notation::Text);
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    format!("to serve the others, write into config.pbtxt: {}", lines.join(" "))
}

fn fill_dims(
    model: &str,
    kind: &str,
    tensor: &OnnxTensor,
    is_batching: bool,
) -> Result<(Vec<i64>, Option<ModelTensorReshape>), Error> {
    let name = &tensor.name;
    let Some(shape) = &tensor.shape else {
        return Err(Error::invalid(format!(
            "autofill failed for model '{model}': the ONNX file does not say the shape of {kind} '{name}'; list the \
             {kind}s with their dims in config.pbtxt"
        )));
    };
    Ok(match shape.get(usize::from(is_batching)..).unwrap_or_default() {
        // Dims cannot be empty. Triton shows a scalar as dims [1], and one value a row as dims [1] with a reshape to
        // no dims.
        [] => (vec![1], is_batching.then(ModelTensorReshape::default)),
        dims => (dims.to_vec(), None),
    })
}

/// Fills in the defaults that do not depend on the model file.
pub fn fill_defaults(config: &mut ModelConfig, gpus: &GpuSupport, rules: CompletionRules) {
    let latest = || ModelVersionPolicy { policy_choice: Some(PolicyChoice::Latest(Latest { num_versions: 1 })) };
    config.version_policy.get_or_insert_with(latest);
    if let Some(SchedulingChoice::DynamicBatching(batching)) = &mut config.scheduling_choice
        && batching.preferred_batch_size.is_empty()
        && config.max_batch_size > 0
    {
        batching.preferred_batch_size.push(config.max_batch_size);
    }
    if let Some(SchedulingChoice::SequenceBatching(batching)) = &mut config.scheduling_choice
        && batching.max_sequence_idle_microseconds == 0
    {
        batching.max_sequence_idle_microseconds = SEQUENCE_IDLE_MICROS;
    }
    // The fields below are not allowed for an ensemble, so nothing is filled in.
    if config.platform == ENSEMBLE_PLATFORM {
        return;
    }
    let optimization = config.optimization.get_or_insert_default();
    optimization.input_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    optimization.output_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    fill_instance_groups(config, gpus, rules);
}

/// Makes groups for GPUs groups for the CPU, with as many instances as each would have had on one
/// GPU, and removes the settings for GPUs alone.
pub fn remove_gpus(config: &mut ModelConfig) {
    for group in &mut config.instance_group {
        if group.kind() != Kind::Model {
            group.set_kind(Kind::Cpu);
            group.gpus.clear();
        }
    }
    let policy = config.optimization.as_mut();
    if let Some(lists) = policy.and_then(|policy| policy.execution_accelerators.as_mut()) {
        lists.gpu_execution_accelerator.clear();
    }
}

/// As in Triton, a `KIND_AUTO` group is placed on GPUs if every GPU it names exists; a GPU group that names none is
/// placed on all.
pub fn fill_instance_groups(config: &mut ModelConfig, gpus: &GpuSupport, rules: CompletionRules) {
    let devices: Vec<i32> = gpus.devices.iter().filter_map(|device| i32::try_from(*device).ok()).collect();
    let has_gpus = config.backend == ONNX_BACKEND || gpus.is_for_library;
    let takes_auto = gpus.takes_auto && has_gpus && !devices.is_empty();
    if config.instance_group.is_empty() {
        config.instance_group.push(ModelInstanceGroup { name: config.name.clone(), ..ModelInstanceGroup::default() });
    }
    for (index, group) in config.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{index}", config.name);
        }
        if group.kind() == Kind::Auto {
            let is_on_gpu = takes_auto && group.gpus.iter().all(|gpu| devices.contains(gpu));
            group.set_kind(if is_on_gpu { Kind::Gpu } else { Kind::Cpu });
        }
        if group.kind() == Kind::Gpu && group.gpus.is_empty() {
            group.gpus.clone_from(&devices);
        }
        if group.count == 0 {
            let is_onnx_on_cpu = config.backend == ONNX_BACKEND && group.kind() == Kind::Cpu;
            group.count = if is_onnx_on_cpu { rules.onnx_instances.into() } else { 1 };
        }
    }
}
