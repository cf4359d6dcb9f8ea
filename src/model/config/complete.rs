//! What a configuration leaves out, filled in as Triton does: the backend from the files of a
//! version, inputs and outputs from the ONNX file, and the defaults that `GET /config` shows.
//! Called by [`crate::model::config`] between reading and checking.

use crate::error::Error;
use crate::model::config::GpuSupport;
use crate::model::config::sequence_batching;
use crate::model::ensemble;
use crate::model::onnx::{OnnxSignature, OnnxTensor};
use crate::tensor::Datatype;
use crate::wire::proto::inference::model_config::SchedulingChoice;
use crate::wire::proto::inference::model_instance_group::Kind;
use crate::wire::proto::inference::model_optimization_policy::PinnedMemoryBuffer;
use crate::wire::proto::inference::model_version_policy::{Latest, PolicyChoice};
use crate::wire::proto::inference::{
    DataType, ModelConfig, ModelDynamicBatching, ModelInput, ModelInstanceGroup, ModelOutput, ModelTensorReshape,
    ModelVersionPolicy,
};

/// The backend of ONNX files.
pub const ONNX_BACKEND: &str = "onnxruntime";
/// The platform of ONNX files.
pub const ONNX_PLATFORM: &str = "onnxruntime_onnx";
/// The built-in backend that returns its inputs.
pub const IDENTITY_BACKEND: &str = "identity";
/// The built-in backends of Triton's tests: one that returns its inputs, those that add up what a
/// sequence brings, and those that answer a request any number of times.
pub const BUILT_IN_BACKENDS: [&str; 6] =
    ["dyna_sequence", IDENTITY_BACKEND, "iterative_sequence", "repeat", "sequence", "square"];
/// A sequence that brings no request for so long is over, where the configuration does not say.
const SEQUENCE_IDLE_MICROS: u64 = 1_000_000;
/// The file of an ONNX model where the configuration names none.
pub const ONNX_FILENAME: &str = "model.onnx";
/// Instances of an ONNX model on the CPU, where the configuration does not say.
const ONNX_INSTANCES_DEFAULT: i32 = 2;

/// Platforms of the model configuration's documents, with their backends; empty where Triton has
/// none any more.
const PLATFORMS: [(&str, &str); 8] = [
    ("caffe2_netdef", "caffe2"),
    ("custom", "custom"),
    (ONNX_PLATFORM, ONNX_BACKEND),
    ("pytorch_libtorch", "pytorch"),
    ("tensorflow_graphdef", "tensorflow"),
    ("tensorflow_savedmodel", "tensorflow"),
    ("tensorrt_plan", "tensorrt"),
    ("torch_aoti", "torch_aoti"),
];

/// Files of a version's directory that tell the backend, in the order in which Triton looks.
const FILES: [(&str, &str); 8] = [
    ("model.savedmodel", "tensorflow"),
    ("model.graphdef", "tensorflow"),
    ("model.plan", "tensorrt"),
    (ONNX_FILENAME, ONNX_BACKEND),
    ("model.xml", "openvino"),
    ("model.pt", "pytorch"),
    ("model.pt2", "torch_aoti"),
    ("model.py", "python"),
];

/// The backend of a platform.
pub fn backend_of(platform: &str) -> Option<&'static str> {
    PLATFORMS.iter().find(|(known, _)| *known == platform).map(|(_, backend)| *backend)
}

/// Fills name, backend, platform and file name. `files` are what the first version's directory
/// holds; `None` where nothing may be told from them.
pub fn fill_backend(config: &mut ModelConfig, directory: &str, files: Option<&[String]>) -> Result<(), Error> {
    if config.name.is_empty() {
        directory.clone_into(&mut config.name);
    }
    let is_ensemble = matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    if is_ensemble && config.platform.is_empty() && config.backend.is_empty() {
        ensemble::PLATFORM.clone_into(&mut config.platform);
    }
    if config.platform == ensemble::PLATFORM {
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
    if config.backend.is_empty() && config.platform.is_empty() && config.default_model_filename.is_empty() {
        let Some((_, backend)) = directory.split_once('.') else {
            return Err(Error::invalid(format!(
                "Invalid model name: Could not determine backend for model '{directory}' with no backend in model \
                 configuration. Expected model name of the form 'model.<backend_name>'."
            )));
        };
        backend.clone_into(&mut config.backend);
        config.default_model_filename = format!("model.{backend}");
    }
    Ok(())
}

fn find_backend(config: &ModelConfig, files: &[String]) -> Option<&'static str> {
    if !config.platform.is_empty() {
        return backend_of(&config.platform);
    }
    let is_there = |name: &str| match config.default_model_filename.as_str() {
        "" => files.iter().any(|file| file == name),
        filename => filename == name,
    };
    FILES.iter().find(|(name, _)| is_there(name)).map(|(_, backend)| *backend)
}

/// Fills what is missing of inputs and outputs, and batching, unless both are there. Like
/// Triton, an explicit `max_batch_size: 0` is then taken as not given.
pub fn fill_from_onnx(config: &mut ModelConfig, onnx: &OnnxSignature, rows_max_default: i32) -> Result<(), Error> {
    let has_inputs = !config.input.is_empty() || !config.batch_input.is_empty();
    if has_inputs && !config.output.is_empty() {
        return Ok(());
    }
    if let Some((_, reason)) = onnx.outputs_refused.first().filter(|_| config.output.is_empty()) {
        return Err(Error::invalid(format!(
            "autofill failed for model '{}': output {reason}; list the outputs to serve in config.pbtxt",
            config.name
        )));
    }
    let has_batch_axis = |tensor: &OnnxTensor| matches!(tensor.shape.as_deref(), Some([-1, ..]));
    let is_batching = onnx.inputs.iter().chain(&onnx.outputs).all(has_batch_axis);
    if !is_batching && config.max_batch_size != 0 {
        return Err(Error::invalid(format!(
            "autofill failed for model '{}': model does not support batching while non-zero max_batch_size is \
             specified",
            config.name
        )));
    }
    if is_batching && config.max_batch_size == 0 {
        config.max_batch_size = rows_max_default;
    }
    if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(ModelDynamicBatching::default()));
    }
    let is_batching = config.max_batch_size > 0;
    if !has_inputs {
        let made = sequence_batching::input_names(config);
        for tensor in onnx.inputs.iter().filter(|tensor| !made.contains(&tensor.name)) {
            let (dims, reshape) = fill_dims(&config.name, "input", tensor, is_batching)?;
            let (name, data_type) = (tensor.name.clone(), data_type(tensor.datatype).into());
            config.input.push(ModelInput { name, data_type, dims, reshape, ..ModelInput::default() });
        }
    }
    if config.output.is_empty() {
        let kept = sequence_batching::output_names(config);
        for tensor in onnx.outputs.iter().filter(|tensor| !kept.contains(&tensor.name)) {
            let (dims, reshape) = fill_dims(&config.name, "output", tensor, is_batching)?;
            let (name, data_type) = (tensor.name.clone(), data_type(tensor.datatype).into());
            config.output.push(ModelOutput { name, data_type, dims, reshape, ..ModelOutput::default() });
        }
    }
    Ok(())
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
        // Triton shows a scalar as one element, and one value a row with the reshape that takes the element away.
        [] => (vec![1], is_batching.then(ModelTensorReshape::default)),
        dims => (dims.to_vec(), None),
    })
}

/// The defaults that do not depend on the model file.
pub fn normalize(config: &mut ModelConfig, gpus: &GpuSupport) {
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
    // Triton fills nothing in of what an ensemble may not have.
    if config.platform == ensemble::PLATFORM {
        return;
    }
    let optimization = config.optimization.get_or_insert_default();
    optimization.input_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    optimization.output_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    normalize_instance_groups(config, gpus);
}

/// As Triton: a group that does not say where it is, is on GPUs if all that it names are there, and
/// on all of them if it names none.
fn normalize_instance_groups(config: &mut ModelConfig, gpus: &GpuSupport) {
    let devices: Vec<i32> = gpus.devices.iter().filter_map(|device| i32::try_from(*device).ok()).collect();
    let takes_auto = gpus.takes_auto && config.backend == ONNX_BACKEND && !devices.is_empty();
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
            group.count = if is_onnx_on_cpu { ONNX_INSTANCES_DEFAULT } else { 1 };
        }
    }
}

/// The datatype of a configuration's.
pub const fn datatype(data_type: DataType) -> Option<Datatype> {
    Some(match data_type {
        DataType::TypeInvalid => return None,
        DataType::TypeBool => Datatype::Bool,
        DataType::TypeUint8 => Datatype::Uint8,
        DataType::TypeUint16 => Datatype::Uint16,
        DataType::TypeUint32 => Datatype::Uint32,
        DataType::TypeUint64 => Datatype::Uint64,
        DataType::TypeInt8 => Datatype::Int8,
        DataType::TypeInt16 => Datatype::Int16,
        DataType::TypeInt32 => Datatype::Int32,
        DataType::TypeInt64 => Datatype::Int64,
        DataType::TypeFp16 => Datatype::Fp16,
        DataType::TypeFp32 => Datatype::Fp32,
        DataType::TypeFp64 => Datatype::Fp64,
        DataType::TypeString => Datatype::Bytes,
        DataType::TypeBf16 => Datatype::Bf16,
    })
}

/// The configuration's name of a datatype.
pub const fn data_type(datatype: Datatype) -> DataType {
    match datatype {
        Datatype::Bool => DataType::TypeBool,
        Datatype::Uint8 => DataType::TypeUint8,
        Datatype::Uint16 => DataType::TypeUint16,
        Datatype::Uint32 => DataType::TypeUint32,
        Datatype::Uint64 => DataType::TypeUint64,
        Datatype::Int8 => DataType::TypeInt8,
        Datatype::Int16 => DataType::TypeInt16,
        Datatype::Int32 => DataType::TypeInt32,
        Datatype::Int64 => DataType::TypeInt64,
        Datatype::Fp16 => DataType::TypeFp16,
        Datatype::Bf16 => DataType::TypeBf16,
        Datatype::Fp32 => DataType::TypeFp32,
        Datatype::Fp64 => DataType::TypeFp64,
        Datatype::Bytes => DataType::TypeString,
    }
}
