//! Configurations of models with a `steps.json`: a list of steps that is the model (`backend: "steps"`), that stands for a
//! `model.py`, or that stands around the model of another backend.

use base::error::Error;
use wire::proto::inference::ModelConfig;
use wire::proto::inference::model_config::SchedulingChoice;

use crate::config::ConfigSurroundings;
use crate::platform::{
    FIL_BACKEND, FRAMEWORK_BACKENDS, ONNX_BACKEND, ONNX_FILENAME, ONNX_PLATFORM, PYTHON_BACKEND, STEPS_BACKEND,
    STEPS_FILENAME,
};

/// The parameter of a configuration that turns its `steps.json` off.
const STEPS: &str = "steps";

/// Returns true if the model has steps: its backend is theirs, or its version has the file and the configuration does not turn
/// them off. A Python model becomes one of steps, which is run instead of its `model.py`; or, if its list stands around a
/// `model.onnx` that the `model.py` runs by itself, a model of ONNX.
///
/// # Errors
/// `InvalidArgument` for another value of the parameter, and for a configuration that steps do not go with.
pub(super) fn fill(config: &mut ModelConfig, surroundings: &ConfigSurroundings<'_>) -> Result<bool, Error> {
    let has_file = surroundings.has_steps;
    let parameter = config.parameters.get(STEPS).map_or("on", |parameter| parameter.string_value.as_str());
    let (name, is_list) = (&config.name, config.backend == STEPS_BACKEND);
    match parameter {
        "off" if !is_list => return Ok(false),
        "off" | "on" => {}
        other => {
            return Err(Error::invalid(format!(
                "model '{name}': the parameter '{STEPS}' must be 'on' or 'off', but is '{other}'"
            )));
        }
    }
    let is_python = config.backend == PYTHON_BACKEND;
    let may_have =
        |backend: &str| [ONNX_BACKEND, FIL_BACKEND].contains(&backend) || FRAMEWORK_BACKENDS.contains(&backend);
    if !is_list && (!has_file || !(is_python || may_have(&config.backend))) {
        return Ok(false);
    }
    if let Some(SchedulingChoice::SequenceBatching(_)) = config.scheduling_choice {
        return Err(Error::invalid(format!(
            "model '{name}' has {STEPS_FILENAME} and 'sequence_batching', which do not go together: steps keep no state; \
             serve the steps as a model of their own, in an ensemble with this one"
        )));
    }
    if config.model_transaction_policy.is_some_and(|policy| policy.decoupled) {
        return Err(Error::invalid(format!(
            "model '{name}' has {STEPS_FILENAME} and is decoupled, which do not go together: a list of steps answers once"
        )));
    }
    if is_python && surroundings.has_onnx_between_steps {
        ONNX_BACKEND.clone_into(&mut config.backend);
        ONNX_PLATFORM.clone_into(&mut config.platform);
        ONNX_FILENAME.clone_into(&mut config.default_model_filename);
        return Ok(true);
    }
    if is_python {
        STEPS_BACKEND.clone_into(&mut config.backend);
    }
    if is_python || (is_list && config.default_model_filename.is_empty()) {
        STEPS_FILENAME.clone_into(&mut config.default_model_filename);
    }
    Ok(true)
}

/// The configuration of the model between the steps: inputs and outputs follow from its file.
pub(super) fn engine(config: &ModelConfig) -> ModelConfig {
    ModelConfig {
        input: Vec::new(),
        output: Vec::new(),
        model_warmup: Vec::new(),
        response_cache: None,
        scheduling_choice: None,
        ..config.clone()
    }
}
