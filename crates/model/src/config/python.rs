//! Python models in a configuration: their recognition, the meaning of their parameters, and the
//! fields that `auto_complete_config` may change. Texts and rules are those of Triton
//! (`backend_model.cc`, `python_be.cc`, `pb_stub.cc`). Called by [`crate::config`],
//! [`crate::config::complete`] and [`crate::config::validate`].

use std::time::Duration;

use crate::PythonModel;
use crate::name::is_plain_name;
use crate::platform::{
    BUILT_IN_BACKENDS, CAFFE2_BACKEND, FRAMEWORK_BACKENDS, ONNX_BACKEND, PYTHON_BACKEND, PYTHON_FILENAME,
    PYTORCH_BACKEND,
};
use crate::spec::python::{CAFFE2_MODULE, PYTORCH_MODULE};
use base::error::Error;
use base::limits::PYTHON_CONCURRENCY_MAX;
use wire::proto::inference::ModelConfig;
use wire::proto::inference::model_config::SchedulingChoice;

/// Returns true if the directory of backends (`--backend-directory`) has a file in the folder of a
/// backend: the arguments are the backend and the file, both plain names.
pub type AnyBackendFile<'a> = &'a dyn Fn(&str, &str) -> bool;

/// The lookup without a directory of backends.
pub const NO_BACKEND_FILES: AnyBackendFile<'static> = &|_, _| false;

/// The parameter with the path of the interpreter's environment.
const ENVIRONMENT: &str = "EXECUTION_ENV_PATH";
/// The parameter that keeps inputs in the host's memory.
const CPU_INPUTS: &str = "FORCE_CPU_ONLY_INPUT_TENSORS";
/// The parameter that bounds the run of a batch: an extension of this server.
const EXECUTE_TIMEOUT: &str = "execute_timeout_ms";
/// The parameter that has a process run several batches at once: an extension of this server.
const CONCURRENCY: &str = "execute_concurrency";
/// The parameter that has outputs compared with their declaration: an extension of this server.
const CHECK_OUTPUTS: &str = "check_outputs";
/// The parameter that says whether instances are forked from one process: an extension of this server.
const FORK_INSTANCES: &str = "fork_instances";

/// Returns true if the model runs in Python processes.
pub(super) fn is_python(config: &ModelConfig) -> bool {
    config.backend == PYTHON_BACKEND || is_backend(config)
}

/// Returns true if the model's backend is Python-based: [`fill_runtime`] or the user set that.
pub(super) fn is_backend(config: &ModelConfig) -> bool {
    let is_ours = config.backend == ONNX_BACKEND || BUILT_IN_BACKENDS.contains(&config.backend.as_str());
    // PyTorch has such a runtime of its own, which is the server's, and Caffe2 has only this one.
    (config.runtime == PYTHON_FILENAME || config.backend == CAFFE2_BACKEND) && !config.backend.is_empty() && !is_ours
}

/// Sets `runtime` of a model whose backend exists only in Python, as Triton does. A library comes
/// first, which this server cannot run: then the configuration must ask for the Python file by
/// `runtime`.
pub(super) fn fill_runtime(config: &mut ModelConfig, has_backend_file: AnyBackendFile<'_>) {
    let backend = config.backend.as_str();
    let is_open = config.runtime.is_empty() && is_plain_name(backend) && backend != PYTHON_BACKEND;
    let is_ours = BUILT_IN_BACKENDS.contains(&backend) || FRAMEWORK_BACKENDS.contains(&backend);
    if !is_open || backend == ONNX_BACKEND || is_ours {
        return;
    }
    let has_library = has_backend_file(backend, &format!("libtriton_{backend}.so"));
    if !has_library && has_backend_file(backend, PYTHON_FILENAME) {
        PYTHON_FILENAME.clone_into(&mut config.runtime);
    }
}

/// Checks that a Python-based backend is there.
pub(super) fn check_backend(config: &ModelConfig, has_backend_file: AnyBackendFile<'_>) -> Result<(), Error> {
    let ModelConfig { name, backend, .. } = config;
    // A name that is not a directory's must not be looked for.
    if FRAMEWORK_BACKENDS.contains(&backend.as_str())
        || (is_plain_name(backend) && has_backend_file(backend, PYTHON_FILENAME))
    {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "unable to find Python backend based backend library '{PYTHON_FILENAME}' for model '{name}', searched: \
         '{}/{PYTHON_FILENAME}' beneath --backend-directory",
        backend.escape_debug()
    )))
}

/// Fields without effect for a Python model, for the log.
pub(super) fn notes(config: &ModelConfig) -> Vec<String> {
    let given = [("batch_input", config.batch_input.is_empty()), ("batch_output", config.batch_output.is_empty())];
    let given = given.into_iter().filter(|(_, is_empty)| is_python(config) && !is_empty);
    given
        .map(|(field, _)| format!("'{field}' has no effect here: a Python model gets its requests one by one"))
        .collect()
}

/// The Python model that its processes run; `None` for any other model.
pub(super) fn model(config: &ModelConfig) -> Result<Option<PythonModel>, Error> {
    if !is_python(config) {
        return Ok(None);
    }
    let is_backend = is_backend(config);
    let file = match is_backend {
        true if config.backend == CAFFE2_BACKEND => CAFFE2_MODULE,
        true if config.backend == PYTORCH_BACKEND => PYTORCH_MODULE,
        true => PYTHON_FILENAME,
        false => &config.default_model_filename,
    };
    if !file.ends_with(".py") {
        let file = file.escape_debug();
        return Err(Error::invalid(format!("Model name must end with '.py'. Model name is \"{file}\".")));
    }
    let parameter = |key: &str| config.parameters.get(key).map(|parameter| parameter.string_value.as_str());
    // Inputs are in the host's memory either way. The quote at the end of the text is Triton's.
    if let Some(other) = parameter(CPU_INPUTS).filter(|value| !matches!(*value, "yes" | "no")) {
        let other = other.escape_debug();
        return Err(Error::unsupported(format!("Incorrect value for {CPU_INPUTS}: {other}'")));
    }
    let choice =
        |name: &str, words| parameter(name).map(|value| is_first(&config.name, name, value, words)).transpose();
    Ok(Some(PythonModel {
        file: file.to_owned(),
        is_backend,
        environment: parameter(ENVIRONMENT).filter(|path| !path.is_empty()).map(str::to_owned),
        execute_timeout: parameter(EXECUTE_TIMEOUT).map(|value| execute_timeout(&config.name, value)).transpose()?,
        concurrency: concurrency(config, parameter(CONCURRENCY))?,
        checks_outputs: choice(CHECK_OUTPUTS, ["yes", "no"])?,
        is_batched: config.scheduling_choice.is_some(),
        forks: choice(FORK_INSTANCES, ["on", "off"])?,
    }))
}

/// The batches of one process that may run at once. Those of sequences run in turn: the next request of a sequence needs the
/// state that the last one left.
fn concurrency(config: &ModelConfig, value: Option<&str>) -> Result<Option<usize>, Error> {
    let refuse = |expected: &str| {
        let (name, value) = (&config.name, value.unwrap_or_default().escape_debug());
        Error::invalid(format!("parameter '{CONCURRENCY}' of model '{name}' is '{value}', expected {expected}"))
    };
    let given =
        value.map(|value| value.parse::<usize>().ok().filter(|count| (1..=PYTHON_CONCURRENCY_MAX).contains(count)));
    let given = given.map(|count| count.ok_or_else(|| refuse(&format!("a number from 1 to {PYTHON_CONCURRENCY_MAX}"))));
    let given = given.transpose()?;
    match (&config.scheduling_choice, given) {
        (Some(SchedulingChoice::SequenceBatching(_)), Some(2..)) => {
            Err(refuse("1, because its requests belong to sequences ('sequence_batching'), which run in turn"))
        }
        (Some(SchedulingChoice::SequenceBatching(_)), _) => Ok(Some(1)),
        (_, given) => Ok(given),
    }
}

/// True for the first of two words.
fn is_first(model: &str, parameter: &str, value: &str, [first, second]: [&str; 2]) -> Result<bool, Error> {
    if value == first || value == second {
        return Ok(value == first);
    }
    Err(Error::invalid(format!(
        "parameter '{parameter}' of model '{model}' is '{}', expected {first} or {second}",
        value.escape_debug()
    )))
}

fn execute_timeout(model: &str, value: &str) -> Result<Duration, Error> {
    let millis = value.parse().ok().filter(|millis| *millis > 0);
    millis.map(Duration::from_millis).ok_or_else(|| {
        Error::invalid(format!(
            "parameter '{EXECUTE_TIMEOUT}' of model '{model}' is '{}', expected milliseconds, 1 or more",
            value.escape_debug()
        ))
    })
}

/// Takes over the fields that `auto_complete_config` may set, as Triton's core does
/// (`TritonModel::UpdateModelConfig`): everything else of the returned configuration is ignored.
pub(super) fn merge(config: &mut ModelConfig, returned: ModelConfig) -> Result<(), Error> {
    let number = |choice: &Option<SchedulingChoice>| match choice {
        None => 0,
        Some(SchedulingChoice::DynamicBatching(_)) => 11,
        Some(SchedulingChoice::SequenceBatching(_)) => 13,
        Some(SchedulingChoice::EnsembleScheduling(_)) => 15,
    };
    let (from, to) = (number(&config.scheduling_choice), number(&returned.scheduling_choice));
    if from == 0 {
        config.scheduling_choice = returned.scheduling_choice;
    } else if from != to {
        let text = format!("Cannot update scheduling choice from {from} to {to} when auto-completing.");
        return Err(Error::internal(text));
    }
    config.max_batch_size = returned.max_batch_size;
    config.input = returned.input;
    config.output = returned.output;
    if returned.model_transaction_policy.is_some() {
        config.model_transaction_policy = returned.model_transaction_policy;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
