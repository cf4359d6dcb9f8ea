//! Checks a configuration, with Triton's texts if Triton refuses the same. Called by [`crate::config`]:
//! [`backend`] before the model file is read, [`config`] and [`agreement`] when everything is filled
//! in.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::GpuSupport;
use crate::config::python::{self, AnyBackendFile};
use crate::config::tensors::TensorIo;
use crate::config::{batch_io, hosted, metrics, pytorch, sequence_batching, tensors};
use crate::datatype;
use crate::ensemble;
use crate::onnx::{OnnxSignature, OnnxTensor};
use crate::platform::{self, ENSEMBLE_PLATFORM, FIL_BACKEND};
use crate::platform::{
    BUILT_IN_BACKENDS, IDENTITY_BACKEND, ONNX_BACKEND, ONNX_PLATFORM, OPENVINO_BACKEND, PYTHON_BACKEND,
    PYTORCH_BACKEND, TENSORFLOW_BACKEND,
};
use crate::spec::rows::SPLIT_ROWS;
use base::error::Error;
use base::limits::{INSTANCES_MAX, PRIORITY_LEVELS_MAX};
use wire::proto::inference::model_config::SchedulingChoice;
use wire::proto::inference::model_instance_group::Kind;
use wire::proto::inference::model_queue_policy::TimeoutAction;
use wire::proto::inference::model_version_policy::PolicyChoice;
use wire::proto::inference::{
    DataType, ModelConfig, ModelDynamicBatching, ModelInput, ModelInstanceGroup, ModelQueuePolicy,
};

const LATENCY_TARGET: &str = "target_latency_us";

/// Checks that platform and backend match. Returns the refusal of a load if this server does not have the backend: as in
/// Triton such a configuration is valid, and its versions cannot be loaded.
///
/// # Errors
/// `InvalidArgument` if they do not match; `Unsupported` for a kind of model that the backend cannot run.
pub fn backend(config: &ModelConfig, has_backend_file: AnyBackendFile<'_>) -> Result<Option<Error>, Error> {
    platform(config)?;
    let missing = match config.backend.as_str() {
        "" => None,
        _ if python::is_backend(config) => python::check_backend(config, has_backend_file).err(),
        ONNX_BACKEND | OPENVINO_BACKEND | PYTHON_BACKEND | TENSORFLOW_BACKEND => None,
        built_in if BUILT_IN_BACKENDS.contains(&built_in) => None,
        PYTORCH_BACKEND => pytorch::check(config).map(|()| None)?,
        _ => Some(missing_backend(config)),
    };
    if missing.is_none() {
        runtime(config)?;
    }
    Ok(missing)
}

/// Checks that platform and backend match.
///
/// # Errors
/// `InvalidArgument` if they do not.
pub fn platform(config: &ModelConfig) -> Result<(), Error> {
    let ModelConfig { name, platform, backend, .. } = config;
    // The platform `custom` goes with any backend.
    let expected = platform::backend_of(platform).filter(|_| platform != "custom");
    let is_onnx = (platform == ONNX_PLATFORM) == (backend == ONNX_BACKEND);
    match backend.as_str() {
        "" if platform == ENSEMBLE_PLATFORM => Ok(()),
        _ if platform == ENSEMBLE_PLATFORM => Err(Error::invalid(format!(
            "Ensemble model '{name}' must have platform type '{platform}' and empty backend type"
        ))),
        "" => Err(Error::invalid(format!("unexpected platform type '{platform}' for {name}"))),
        _ if !is_onnx || expected.is_some_and(|expected| expected != backend) => {
            Err(Error::invalid(format!("unexpected 'platform' and 'backend' pair, got:{platform}, {backend}")))
        }
        _ => Ok(()),
    }
}

/// Begins with Triton's words (`backend_model.cc`).
fn missing_backend(config: &ModelConfig) -> Error {
    let ModelConfig { name, platform, backend, .. } = config;
    let wanted = match platform.as_str() {
        "" => String::new(),
        platform => format!("platform '{platform}' needs "),
    };
    let advice = match backend.as_str() {
        "custom" => "name a built-in backend, as in backend: \"identity\", or export the model to ONNX",
        _ => {
            "export the model to ONNX, and give platform: \"onnxruntime_onnx\", or run it in a model.py, and give \
             backend: \"python\""
        }
    };
    Error::invalid(format!(
        "{}; model '{name}': {wanted}backend '{backend}', which this server does not have (it has '{FIL_BACKEND}', \
         '{IDENTITY_BACKEND}', '{ONNX_BACKEND}', '{OPENVINO_BACKEND}', '{PYTHON_BACKEND}', '{PYTORCH_BACKEND}' and \
         '{TENSORFLOW_BACKEND}'; {}); copy the backend there, or {advice}",
        hosted::not_found(config),
        hosted::places(config)
    ))
}

/// Checks everything that does not depend on the model file. Defaults are filled in already.
///
/// # Errors
/// `InvalidArgument` for the first mistake; `Unsupported` for a value that this server cannot honour.
pub fn config(config: &ModelConfig, gpus: &GpuSupport) -> Result<(), Error> {
    rows(config)?;
    version_policy(config)?;
    if let Some(SchedulingChoice::DynamicBatching(batching)) = &config.scheduling_choice {
        dynamic_batching(config, batching)?;
    }
    if let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice {
        sequence_batching::check(config, batching)?;
    }
    latency_target(config)?;
    split_rows(config)?;
    ensemble::check(config)?;
    if config.platform != ENSEMBLE_PLATFORM {
        instance_groups(config, gpus)?;
    }
    // A hosted backend reads the configuration itself.
    if !gpus.is_for_library {
        accelerators(config)?;
    }
    metric_tags(config)?;
    metrics::check(config)?;
    response_cache(config)?;
    if !gpus.is_for_library {
        pytorch::check_tensors(config)?;
    }
    tensors::check(config)?;
    batch_io::check(config)
}

fn rows(config: &ModelConfig) -> Result<(), Error> {
    let (name, rows) = (&config.name, config.max_batch_size);
    // Any number: memory is bounded by the bytes of requests instead.
    if rows >= 0 {
        return Ok(());
    }
    Err(Error::invalid(format!("'max_batch_size' must be non-negative value for {name}")))
}

fn version_policy(config: &ModelConfig) -> Result<(), Error> {
    let choice = config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref());
    let Some(PolicyChoice::Specific(specific)) = choice else { return Ok(()) };
    match specific.versions.iter().find(|version| **version < 1) {
        None => Ok(()),
        Some(version) => Err(Error::invalid(format!(
            "model '{}': 'version_policy' names version {version}; a version is 1 or more",
            config.name
        ))),
    }
}

fn dynamic_batching(config: &ModelConfig, batching: &ModelDynamicBatching) -> Result<(), Error> {
    let name = &config.name;
    let refuse = |text: String| Err(Error::invalid(format!("{text} for {name}")));
    for size in &batching.preferred_batch_size {
        if *size <= 0 {
            return refuse("dynamic batching preferred size must be positive".to_owned());
        }
        if *size > config.max_batch_size {
            return refuse("dynamic batching preferred size must be <= max batch size".to_owned());
        }
    }
    let levels = batching.priority_levels;
    let is_level = |level: u64| (1..=levels).contains(&level);
    if levels > 0 && !is_level(batching.default_priority_level) {
        return refuse(format!("default priority level must be in range [1, {levels}]"));
    }
    if levels > 0 && !batching.priority_queue_policy.keys().all(|level| is_level(*level)) {
        return refuse(format!("priority queue policy must have priority level in range [1, {levels}]"));
    }
    let default_size = batching.default_queue_policy.as_ref().map_or(0, |policy| policy.max_queue_size);
    if levels > PRIORITY_LEVELS_MAX && default_size > 0 {
        return Err(Error::unsupported(format!(
            "model '{name}': 'max_queue_size' in 'default_queue_policy' with {levels} priority levels is not supported: \
             {PRIORITY_LEVELS_MAX} levels can have a bound of their own; give it in 'priority_queue_policy'"
        )));
    }
    preserve_ordering(name, batching)
}

/// Reads the parameter `target_latency_us`, which is an extension of this server.
///
/// # Errors
/// `InvalidArgument` if it is not a positive number or the model has no `dynamic_batching`.
pub fn latency_target(config: &ModelConfig) -> Result<Option<Duration>, Error> {
    let Some(parameter) = config.parameters.get(LATENCY_TARGET) else { return Ok(None) };
    let (name, value) = (&config.name, &parameter.string_value);
    let micros = value.parse::<u64>().ok().filter(|micros| *micros > 0).ok_or_else(|| {
        Error::invalid(format!(
            "parameter '{LATENCY_TARGET}' of model '{name}' is '{value}', expected microseconds, 1 or more"
        ))
    })?;
    if !matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))) {
        return Err(Error::invalid(format!(
            "parameter '{LATENCY_TARGET}' of model '{name}' needs 'dynamic_batching {{ }}' in the configuration"
        )));
    }
    Ok(Some(Duration::from_micros(micros)))
}

/// Checks the parameter `split_rows`.
///
/// # Errors
/// `InvalidArgument` if it is neither `on` nor `off`.
fn split_rows(config: &ModelConfig) -> Result<(), Error> {
    match config.parameters.get(SPLIT_ROWS).map(|parameter| parameter.string_value.as_str()) {
        None | Some("on" | "off") => Ok(()),
        Some(other) => {
            let name = &config.name;
            Err(Error::invalid(format!(
                "parameter '{SPLIT_ROWS}' of model '{name}' is '{other}', expected 'on' or 'off'"
            )))
        }
    }
}

fn preserve_ordering(name: &str, batching: &ModelDynamicBatching) -> Result<(), Error> {
    if !batching.preserve_ordering {
        return Ok(());
    }
    if batching.priority_levels > 1 {
        let text = format!("Only one priority level is allowed when 'preserve_ordering' is true for {name}");
        return Err(Error::invalid(text));
    }
    let is_delaying = |policy: &ModelQueuePolicy| {
        policy.default_timeout_microseconds != 0 && policy.timeout_action() == TimeoutAction::Delay
    };
    if batching.default_queue_policy.iter().chain(batching.priority_queue_policy.values()).any(is_delaying) {
        return Err(Error::invalid(format!(
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"
        )));
    }
    Ok(())
}

pub fn instance_groups(config: &ModelConfig, gpus: &GpuSupport) -> Result<(), Error> {
    for group in &config.instance_group {
        instance_group(config, group, gpus)
            .map_err(|text| Error::invalid(format!("instance group {} of model {} {text}", group.name, config.name)))?;
    }
    instance_group_names(config)?;
    let of_group = |group: &ModelInstanceGroup| {
        u64::from(group.count.unsigned_abs()).saturating_mul(group.gpus.len().max(1) as u64)
    };
    let count = config.instance_group.iter().map(of_group).fold(0, u64::saturating_add);
    if count <= INSTANCES_MAX as u64 {
        return Ok(());
    }
    let name = &config.name;
    Err(Error::invalid(format!("model '{name}' has {count} instances, more than the {INSTANCES_MAX} allowed")))
}

/// The response cache cannot keep answers that depend on earlier requests (sequences) or that may be any number
/// (decoupled models; an ensemble is one by its steps, which are not known here).
fn response_cache(config: &ModelConfig) -> Result<(), Error> {
    let is_decoupled = config.model_transaction_policy.is_some_and(|policy| policy.decoupled);
    let with = match &config.scheduling_choice {
        _ if !config.response_cache.is_some_and(|cache| cache.enable) => return Ok(()),
        Some(SchedulingChoice::SequenceBatching(_)) => "sequence batching",
        _ if is_decoupled => "'decoupled' transaction policy",
        _ => return Ok(()),
    };
    Err(ensemble::no_response_cache(&config.name, with))
}

/// Tags become metric labels: one with an invalid name would make all of `/metrics` unreadable for Prometheus.
fn metric_tags(config: &ModelConfig) -> Result<(), Error> {
    let is_label = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let mut keys: Vec<_> = config.metric_tags.keys().collect();
    keys.sort_unstable();
    match keys.into_iter().find(|key| !is_label(key)) {
        None => Ok(()),
        Some(key) => Err(Error::invalid(format!(
            "model '{}': 'metric_tags' has the key '{}'; a key has letters, digits and '_' alone, as labels of Prometheus",
            config.name,
            key.escape_debug()
        ))),
    }
}

/// Checks `runtime`, the library of the backend: backends are built in here, so only Triton's default name is accepted,
/// and `model.py` for a Python-based backend.
///
/// # Errors
/// `Unsupported` for any other library.
fn runtime(config: &ModelConfig) -> Result<(), Error> {
    let ModelConfig { name, runtime, backend, .. } = config;
    let usual = format!("libtriton_{backend}.so");
    if runtime.is_empty() || *runtime == usual || python::is_backend(config) {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "model '{name}': 'runtime' is '{}', but backend '{backend}' is built in; remove it, or name '{usual}'",
        runtime.escape_debug()
    )))
}

fn accelerators(config: &ModelConfig) -> Result<(), Error> {
    let lists = config.optimization.as_ref().and_then(|policy| policy.execution_accelerators.as_ref());
    // Those of GPUs have no effect if instances are on the CPU, as all are of a backend without GPU
    // support.
    let named = lists.and_then(|lists| lists.cpu_execution_accelerator.first());
    match named {
        Some(accelerator) if config.backend != ONNX_BACKEND => Err(Error::unsupported(format!(
            "model '{}': backend '{}' has no execution accelerator '{}'; remove it",
            config.name, config.backend, accelerator.name
        ))),
        _ => Ok(()),
    }
}

/// Checks that a group that is not passive exists, and that instance names are unique: metrics use them as labels.
fn instance_group_names(config: &ModelConfig) -> Result<(), Error> {
    let (name, groups) = (&config.name, &config.instance_group);
    if groups.iter().all(|group| group.passive) {
        let text = "every instance group is passive, so no request would ever run";
        return Err(Error::invalid(format!("model '{name}': {text}")));
    }
    let mut names = BTreeSet::new();
    match groups.iter().find(|group| !names.insert(&group.name)) {
        None => Ok(()),
        Some(group) => Err(Error::invalid(format!(
            "model '{name}': two instance groups are named '{}'; give each a name of its own",
            group.name.escape_debug()
        ))),
    }
}

/// Checks one group. The error is the end of a text that begins with the names of group and model.
fn instance_group(config: &ModelConfig, group: &ModelInstanceGroup, gpus: &GpuSupport) -> Result<(), String> {
    let kind = group.kind();
    match kind {
        Kind::Gpu => gpu_group(config, group, gpus)?,
        Kind::Cpu | Kind::Model if !group.gpus.is_empty() => {
            let hint = if kind == Kind::Cpu { "; --gpu=off serves it on the CPU" } else { "" };
            return Err(format!("has kind {} but specifies one or more GPUs{hint}", kind.as_str_name()));
        }
        // KIND_MODEL leaves the device to the backend: ours choose the CPU.
        Kind::Auto | Kind::Cpu | Kind::Model => {}
    }
    let has_profiles = gpus.is_for_library && config.platform == "tensorrt_plan";
    if !group.profile.is_empty() && !has_profiles {
        return Err(format!(
            "and platform {}specifies profile field which is only supported for TensorRT models",
            config.platform
        ));
    }
    if group.count < 1 {
        return Err(format!("has a count of {}; it must be 1 or more", group.count));
    }
    Ok(())
}

fn gpu_group(config: &ModelConfig, group: &ModelInstanceGroup, gpus: &GpuSupport) -> Result<(), String> {
    let GpuSupport { devices, why_absent, .. } = gpus;
    if devices.is_empty() {
        // Triton has the first text for a build without GPU support, and the second if it finds no device.
        return Err(match why_absent.as_str() {
            "" => "has kind KIND_GPU but server does not support GPUs".to_owned(),
            why => format!("has kind KIND_GPU but no GPUs are available: {why}; --gpu=off serves it on the CPU"),
        });
    }
    if config.backend != ONNX_BACKEND && !python::is_python(config) && !gpus.is_for_library {
        let backend = &config.backend;
        return Err(format!(
            "has kind KIND_GPU but backend '{backend}' runs on the CPU alone: give it KIND_CPU; --gpu=off serves it on the CPU"
        ));
    }
    let is_there = |gpu: &i32| u32::try_from(*gpu).is_ok_and(|gpu| devices.contains(&gpu));
    let mut seen = BTreeSet::new();
    if let Some(twice) = group.gpus.iter().find(|gpu| !seen.insert(**gpu)) {
        return Err(format!("names GPU {twice} twice; raise its count instead"));
    }
    match group.gpus.iter().find(|gpu| !is_there(gpu)) {
        None => Ok(()),
        Some(gpu) => {
            let there: Vec<_> = devices.iter().map(u32::to_string).collect();
            Err(format!("specifies invalid or unsupported gpu id {gpu}; the GPUs are: {}", there.join(", ")))
        }
    }
}

/// Checks a configuration against the ONNX file: the same inputs, outputs that the file has, the same datatypes, and
/// dims that are the file's or narrower.
///
/// # Errors
/// `InvalidArgument` for the first disagreement.
pub fn agreement(config: &ModelConfig, onnx: &OnnxSignature) -> Result<(), Error> {
    let model = &config.name;
    inputs_agree(config, onnx)?;
    for output in &config.output {
        if let Some((_, reason)) = onnx.outputs_refused.iter().find(|(name, _)| *name == output.name) {
            return Err(Error::invalid(format!("unable to load model '{model}', output {reason}; leave it out")));
        }
        let tensor = find("output", &output.name, &onnx.outputs)?;
        same_datatype(model, "output", output.data_type(), tensor)?;
        // The parts of a `batch_output` have the configured shape, the model's output need not.
        if batch_io::scatter_source(config, &output.name).is_none() {
            same_shape(config, &TensorIo::of_output(output), tensor)?;
        }
    }
    Ok(())
}

fn inputs_agree(config: &ModelConfig, onnx: &OnnxSignature) -> Result<(), Error> {
    let model = &config.name;
    let refuse = |text: String| Err(Error::invalid(format!("unable to load model '{model}', {text}")));
    for ModelInput { name, .. } in config.input.iter().filter(|input| input.optional) {
        if config.max_batch_size != 0 {
            return refuse(format!("optional input '{name}' is not supported for models that support batching"));
        }
        // Triton only reports that the number of inputs differs, without a name.
        if onnx.inputs.iter().any(|tensor| tensor.name == *name) {
            return refuse(format!(
                "input '{name}' is optional but has no initial value in the model, which cannot run without it"
            ));
        }
    }
    let computed = config.batch_input.iter().map(|batch| batch.target_name.len()).sum::<usize>();
    let given = config.input.iter().filter(|input| !input.optional).count() + computed;
    let there = onnx.inputs.len();
    if given != there {
        return refuse(format!("configuration expects {given} inputs, model provides {there}"));
    }
    let all: Vec<_> = onnx.inputs.iter().chain(&onnx.initialized).cloned().collect();
    for input in &config.input {
        let tensor = find("input", &input.name, &all)?;
        same_datatype(model, "input", input.data_type(), tensor)?;
        if input.allow_ragged_batch {
            ragged_shape(config, input, tensor)?;
        } else {
            same_shape(config, &TensorIo::of_input(input), tensor)?;
        }
    }
    for batch in &config.batch_input {
        for name in &batch.target_name {
            let tensor = find("input", name, &onnx.inputs)?;
            same_datatype(model, "input", batch.data_type(), tensor)?;
            let shape = batch_io::model_shape(config, batch);
            if tensor.shape.as_ref().is_some_and(|there| !is_within(there, &shape)) {
                let (kind, there) = (batch.kind().as_str_name(), tensor.shape.as_deref().unwrap_or_default());
                let (want, there) = (shown(&shape), shown(there));
                return refuse(format!("batch input '{name}' of kind '{kind}' is {want}, model provides {there}"));
            }
        }
    }
    Ok(())
}

/// A ragged input must have one dimension in the model, for the concatenated elements of all requests.
fn ragged_shape(config: &ModelConfig, input: &ModelInput, tensor: &OnnxTensor) -> Result<(), Error> {
    let (model, name) = (&config.name, &input.name);
    // Triton's text has two spaces in one of the two cases.
    let (space, there) = match &tensor.shape {
        _ if input.optional => ("", ", which is not supported for optional input".to_owned()),
        Some(there) if there.as_slice() != [-1] => (" ", format!(", model provides {}", shown(there))),
        _ => return Ok(()),
    };
    Err(Error::invalid(format!(
        "unable to load model '{model}', configuration expects model provides input with shape [-1] {space}for ragged \
         input '{name}'{there}"
    )))
}

/// Returns true if the model, of shape `there`, accepts every shape that fits `given`; -1 is any
/// size.
fn is_within(there: &[i64], given: &[i64]) -> bool {
    there.len() == given.len() && there.iter().zip(given).all(|(there, given)| *there == -1 || there == given)
}

fn find<'a>(kind: &str, name: &str, tensors: &'a [OnnxTensor]) -> Result<&'a OnnxTensor, Error> {
    tensors.iter().find(|tensor| tensor.name == name).ok_or_else(|| {
        let allowed: BTreeSet<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let allowed = allowed.into_iter().collect::<Vec<_>>().join(", ");
        Error::invalid(format!("unexpected inference {kind} '{name}', allowed {kind}s are: {allowed}"))
    })
}

fn same_datatype(model: &str, kind: &str, given: DataType, tensor: &OnnxTensor) -> Result<(), Error> {
    let there = datatype::to_config(tensor.datatype);
    if given == there {
        return Ok(());
    }
    let (given, there, name) = (given.as_str_name(), there.as_str_name(), &tensor.name);
    Err(Error::invalid(format!(
        "unable to load model '{model}', configuration expects datatype {given} for {kind} '{name}', model provides \
         {there}"
    )))
}

/// Triton requires the dims of an output to equal the engine's, which has run shape inference. The file alone often
/// leaves dimensions open, so here an open dimension accepts any size.
fn same_shape(config: &ModelConfig, io: &TensorIo<'_>, tensor: &OnnxTensor) -> Result<(), Error> {
    let Some(there) = &tensor.shape else { return Ok(()) };
    let (model, name) = (&config.name, &tensor.name);
    let is_batching = config.max_batch_size > 0;
    if is_batching && !io.is_shape_tensor && there.first() != Some(&-1) {
        return Err(Error::invalid(format!(
            "model '{model}', tensor '{name}': for the model to support batching the shape should have at least 1 \
             dimension and the first dimension must be -1; but shape expected by the model is {}",
            shown(there)
        )));
    }
    // A scalar of the file is written as dims [1] in the configuration.
    if !is_batching && there.is_empty() && io.model_dims().iter().all(|dimension| *dimension == 1) {
        return Ok(());
    }
    let full = io.model_shape(config.max_batch_size);
    if is_within(there, &full) {
        return Ok(());
    }
    if io.is_shape_tensor {
        return Err(Error::invalid(format!(
            "model '{model}', shape tensor '{name}': the model expects shape {} but the model configuration makes it {}",
            shown(there),
            shown(&full)
        )));
    }
    let why = if is_batching {
        "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete \
         shape"
    } else {
        "shape"
    };
    Err(Error::invalid(format!(
        "model '{model}', tensor '{name}': the model expects {} dimensions (shape {}) but the model configuration \
         specifies {} dimensions ({why} {})",
        there.len(),
        shown(there),
        full.len(),
        shown(&full)
    )))
}

fn shown(shape: &[i64]) -> String {
    let dimensions: Vec<_> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", dimensions.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::proto::inference::{ModelEnsembling, ModelResponseCache, ModelSequenceBatching, ModelTransactionPolicy};

    #[test]
    fn answers_of_sequences_and_decoupled_models_cannot_be_cached() {
        let plain = |enable| ModelConfig {
            name: "m".to_owned(),
            response_cache: Some(ModelResponseCache { enable }),
            ..ModelConfig::default()
        };
        let check = |config: &ModelConfig, want: &str| {
            let got = response_cache(config).err().map(|error| error.text().to_owned()).unwrap_or_default();
            let text = "Response Cache does not currently support model m with";
            let want = if want.is_empty() {
                String::new()
            } else {
                format!("{text} {want}. Please disable the response cache.")
            };
            assert_eq!(got, want);
        };
        let sequences = SchedulingChoice::SequenceBatching(ModelSequenceBatching::default());
        let ensemble = SchedulingChoice::EnsembleScheduling(ModelEnsembling::default());
        let decoupled = Some(ModelTransactionPolicy { decoupled: true });
        check(&plain(true), "");
        check(&ModelConfig { scheduling_choice: Some(sequences.clone()), ..plain(true) }, "sequence batching");
        check(&ModelConfig { scheduling_choice: Some(ensemble), ..plain(true) }, "");
        check(&ModelConfig { model_transaction_policy: decoupled, ..plain(true) }, "'decoupled' transaction policy");
        check(
            &ModelConfig { scheduling_choice: Some(sequences), model_transaction_policy: decoupled, ..plain(false) },
            "",
        );
    }
}
