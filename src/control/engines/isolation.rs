//! The models of ONNX and of frameworks that run in processes of their own, and the start of these
//! processes.

use std::ffi::OsString;
use std::sync::{Arc, OnceLock};

use crate::backend::Backend;
use crate::control::engines::engine::Engines;
use crate::control::engines::python;
use crate::control::machine::process_memory;
use crate::control::repository::model_source::ModelSource;
use crate::control::repository::pinned_files::PinnedFiles;
use crate::error::Error;
use crate::log;
use crate::model::ModelSpec;
use crate::model::platform::{ENGINE_BACKENDS, PYTHON_BACKEND};
use crate::process::isolation::{IsolatedBackend, IsolationOptions};
use crate::process::python::ModelProcess;
use crate::process::python::host::PythonHost;
use crate::runtime::clock;
use crate::settings::{ENGINE_COMMAND, Isolation, Settings};

/// The parameter of a model that overrides `--model-isolation`.
pub const ISOLATION: &str = "isolation";

/// Starts the processes of isolated models. Shared by all load threads.
#[derive(Default)]
pub struct EngineProcesses {
    /// Set by the first such model.
    host: OnceLock<Result<Arc<PythonHost>, Error>>,
}

/// The variables of the dynamic loader, of all that the server has: an engine finds its libraries as it does in the server.
fn loader_variables() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"LD_")).collect()
}

impl EngineProcesses {
    /// Returns the backend of one model version, whose engine this server chose.
    ///
    /// # Errors
    /// If the engine, or the thread that starts processes, does not exist.
    pub fn backend(
        &self,
        settings: &Settings,
        engines: &Engines,
        engine: &dyn Backend,
        source: &ModelSource,
        pinned: &PinnedFiles,
    ) -> Result<IsolatedBackend, Error> {
        let start = || PythonHost::start("engine-host", python::HOST_LOG, clock::now, loader_variables());
        let options = IsolationOptions {
            command: ENGINE_COMMAND,
            host: self.host.get_or_init(start).clone()?,
            log: python::log_line,
            clock: clock::now,
            load_timeout: Some(settings.load_timeout).filter(|timeout| !timeout.is_zero()),
            run_memory_max: process_memory::run_max(settings) as u64,
        };
        let (name, library) = (engine.name().to_owned(), engines.library(engine));
        Ok(IsolatedBackend { options, name, library, check_files: pinned.later_check(source)? })
    }

    /// The processes that run.
    pub fn running(&self) -> Vec<ModelProcess> {
        self.host.get().and_then(|host| host.as_ref().ok()).map(|host| host.processes()).unwrap_or_default()
    }
}

/// Returns true if a model runs in processes of its own.
///
/// # Errors
/// `InvalidArgument` for another value of the parameter, or if it cannot be isolated: a model of
/// another backend, or one with instances on GPUs.
pub fn is_isolated(spec: &ModelSpec, settings: &Settings) -> Result<bool, Error> {
    if spec.library.is_some() {
        // `library_isolation` decides.
        return Ok(false);
    }
    let named = spec.parameters.get(ISOLATION).filter(|_| spec.backend != PYTHON_BACKEND && spec.python.is_none());
    let refused = |value: &str, why: &str| {
        Err(Error::invalid(format!("parameter '{ISOLATION}' of model '{}' is '{value}', {why}", spec.name)))
    };
    let isolation = match named {
        None => settings.model_isolation,
        Some(value) => match Isolation::from_name(value) {
            Ok(isolation) => isolation,
            Err(why) => return refused(value, &why),
        },
    };
    let why_not = match (isolation, ENGINE_BACKENDS.contains(&spec.backend.as_str())) {
        (Isolation::None, _) => return Ok(false),
        (Isolation::Process, true) if !spec.is_on_gpu() => return Ok(true),
        (Isolation::Process, true) => "which is not for instances on GPUs: give its groups KIND_CPU",
        (Isolation::Process, false) => {
            "which is for models of ONNX, OpenVINO, PyTorch and TensorFlow, and for backends of Triton's"
        }
    };
    if let Some(value) = named {
        return refused(value, why_not);
    }
    if spec.is_on_gpu() {
        log::warning(&format!("'{}' has instances on GPUs and runs in the server (--model-isolation)", spec.name));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::config::{CompletionRules, ConfigDraft};

    #[test]
    fn the_parameter_goes_before_the_flag_and_what_cannot_be_is_refused_by_name() {
        let spec = |text: &str| {
            let text = format!(
                "{text} input {{ name: 'x' data_type: TYPE_FP32 dims: 1 }}
                 output {{ name: 'y' data_type: TYPE_FP32 dims: 1 }}"
            );
            let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
            draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap()
        };
        let parameter = |value: &str| format!("parameters {{ key: 'isolation' value {{ string_value: '{value}' }} }}");
        let check = |flag, text: &str, want: Result<bool, &str>| {
            let settings = Settings { model_isolation: flag, ..Settings::default() };
            let got = is_isolated(&spec(text), &settings).map_err(|error| error.text().to_owned());
            assert_eq!(got, want.map_err(str::to_owned), "{flag:?} {text}");
        };
        let onnx = |value: &str| format!("backend: 'onnxruntime' {}", parameter(value));
        check(Isolation::None, "backend: 'onnxruntime'", Ok(false));
        check(Isolation::Process, "backend: 'onnxruntime'", Ok(true));
        check(Isolation::Process, "backend: 'openvino'", Ok(true));
        check(Isolation::Process, "backend: 'tensorflow'", Ok(true));
        check(Isolation::Process, "backend: 'identity'", Ok(false));
        check(Isolation::Process, &onnx("none"), Ok(false));
        check(Isolation::None, &onnx("process"), Ok(true));
        let refused = "parameter 'isolation' of model 'm' is 'thread', expected 'none' or 'process'";
        check(Isolation::Process, &onnx("thread"), Err(refused));
        let refused = "parameter 'isolation' of model 'm' is 'process', which is for models of ONNX, OpenVINO, PyTorch and \
                       TensorFlow, and for backends of Triton's";
        check(Isolation::None, &format!("backend: 'identity' {}", parameter("process")), Err(refused));
        let mut on_gpu = spec(&onnx("process"));
        on_gpu.instance_groups[0].gpus.push(0);
        let error = is_isolated(&on_gpu, &Settings::default()).unwrap_err();
        let want = "parameter 'isolation' of model 'm' is 'process', which is not for instances on GPUs: give its groups \
                    KIND_CPU";
        assert_eq!(error.text(), want);
        on_gpu.parameters.clear();
        let settings = Settings { model_isolation: Isolation::Process, ..Settings::default() };
        assert_eq!(is_isolated(&on_gpu, &settings), Ok(false));
    }
}
