//! The choice of a model's engine: a built-in backend, ONNX Runtime if its library is found, or the embedded
//! engine. The library is searched for when the first ONNX model may use it, and the log says what was found. A
//! library named by a flag must load, and one must be found with `--onnx-engine=onnxruntime`, or the server does not
//! start.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::backend::custom_metrics::CustomMetrics;
use crate::backend::gpu::Gpus;
use crate::backend::{Accumulate, Backend, Decoupled, Identity, Iterative, RunMemory, Steps};
use crate::control::engines::config_completion::{PythonEngine, no_host, no_python};
use crate::control::engines::frameworks::Frameworks;
use crate::control::engines::library_search::{LibrarySearch, ONNX_RUNTIME};
use crate::control::engines::pytorch_engine::PytorchEngine;
use crate::engines::{Fil, Onnxruntime, OnnxruntimeOnGpus, Rten};
use crate::error::Error;
use crate::log;
use crate::model::ModelSpec;
use crate::model::platform::{PYTORCH_BACKEND, STEPS_BACKEND};
use crate::process::isolation::{EngineKind, EngineLibrary};
use crate::process::triton::TritonHost;
use crate::settings::{BackendConfig, Engine, OnnxruntimeConfig, PytorchConfig};
use crate::transformer::Operators;

/// The engines of this server. Shared by all load threads.
pub struct Engines {
    config: OnnxruntimeConfig,
    /// Python; `None` if no Python is run.
    python: Option<Arc<dyn PythonEngine>>,
    /// Runs shared libraries written for Triton; `None` if no foreign code is run.
    host: Option<Arc<TritonHost>>,
    /// ONNX Runtime, or the reason that it is missing. Empty until the first search.
    onnxruntime: OnceLock<Result<Onnxruntime, String>>,
    pytorch_config: PytorchConfig,
    /// The engine of PyTorch models, or the reason that it is missing. Empty until the first
    /// search.
    pytorch: OnceLock<Result<PytorchEngine, String>>,
    /// OpenVINO and TensorFlow.
    frameworks: Frameworks,
    embedded: Rten,
    identity: Identity,
    iterative: Iterative,
}

impl Engines {
    /// Opens the library that `--backend-config` names, if it names one, or searches for one if ONNX Runtime is
    /// required.
    ///
    /// # Errors
    /// `InvalidArgument` when the named library cannot be used; `Unavailable` when one is required and none is found.
    pub fn new(backends: &BackendConfig) -> Result<Self, Error> {
        let config = &backends.onnxruntime;
        let frameworks = Frameworks::new(backends.frameworks.clone());
        let engines = Self::of(config.clone(), OnceLock::new(), frameworks);
        match (&config.library, config.engine) {
            (Some(library), _) => {
                let opened = open_named(library).map_err(|why| {
                    Error::invalid(format!("--backend-config=onnxruntime,library={}: {why}", library.display()))
                })?;
                // Cannot fail: the cell was just created.
                let _ = engines.onnxruntime.set(Ok(opened));
            }
            (None, Some(Engine::Onnxruntime)) => {
                engines.onnxruntime().map_err(|why| Error::unavailable(format!("--onnx-engine=onnxruntime: {why}")))?;
            }
            (None, Some(Engine::Embedded) | None) => {}
        }
        Ok(engines)
    }

    /// Engines for a test in which ONNX Runtime is not found, for this reason.
    #[cfg(test)]
    pub fn without(config: OnnxruntimeConfig, why: &str) -> Self {
        let frameworks = Frameworks::without(Default::default(), why);
        Self::of(config, OnceLock::from(Err(why.to_owned())), frameworks)
    }

    fn of(
        config: OnnxruntimeConfig,
        onnxruntime: OnceLock<Result<Onnxruntime, String>>,
        frameworks: Frameworks,
    ) -> Self {
        let (identity, iterative) = (Identity::default(), Iterative::default());
        Self {
            config,
            python: None,
            host: None,
            onnxruntime,
            pytorch_config: PytorchConfig::default(),
            pytorch: OnceLock::new(),
            frameworks,
            embedded: Rten::default(),
            identity,
            iterative,
        }
    }

    /// Returns these engines, with built-in ones that also do what only tests of Triton's look at.
    pub fn as_tritons(self, metrics: &Arc<CustomMetrics>) -> Self {
        Self { identity: Identity::as_tritons(metrics), iterative: Iterative::as_tritons(), ..self }
    }

    /// Returns these engines and one that runs Python models.
    pub fn with_python(self, python: Arc<dyn PythonEngine>) -> Self {
        Self { python: Some(python), ..self }
    }

    /// Returns these engines, with these settings for PyTorch models.
    pub fn with_pytorch(self, pytorch_config: PytorchConfig) -> Self {
        Self { pytorch_config, ..self }
    }

    /// Returns these engines and the host of Triton's backends.
    pub fn with_host(self, host: Arc<TritonHost>) -> Self {
        Self { host: Some(host), ..self }
    }

    /// Returns the host of backends that are shared libraries; `None` if no foreign code is run.
    pub fn host(&self) -> Option<&TritonHost> {
        self.host.as_deref()
    }

    /// Returns these engines, with a bound on the memory of the embedded one's runs.
    pub fn with_run_memory(self, memory: Arc<RunMemory>) -> Self {
        Self { embedded: Rten::new(memory), ..self }
    }

    /// Returns the engine of Python models; `None` if no Python is run.
    pub fn python(&self) -> Option<&dyn PythonEngine> {
        self.python.as_deref()
    }

    /// Returns OpenVINO and TensorFlow.
    pub const fn frameworks(&self) -> &Frameworks {
        &self.frameworks
    }

    /// Returns the engine of a model. The model's parameter `engine` overrides the flag.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown engine name; `Unavailable` when the model or the flag
    /// requires ONNX Runtime and it is missing.
    pub fn choose(&self, spec: &ModelSpec) -> Result<&dyn Backend, Error> {
        if spec.library.is_some() {
            return self.host().map(|host| host as &dyn Backend).ok_or_else(|| no_host(&spec.name));
        }
        if spec.python.is_some() {
            return self.python().map(|python| python as &dyn Backend).ok_or_else(|| no_python(&spec.name));
        }
        match spec.backend.as_str() {
            "dyna_sequence" => return Ok(&Accumulate::ById),
            "fil" => return Ok(&Fil),
            "identity" => return Ok(&self.identity),
            "iterative_sequence" => return Ok(&self.iterative),
            PYTORCH_BACKEND => return self.pytorch(spec).map(PytorchEngine::as_backend),
            "repeat" => return Ok(&Decoupled::Repeat),
            "sequence" => return Ok(&Accumulate::ByRow),
            "square" => return Ok(&Decoupled::Square),
            STEPS_BACKEND => return Ok(&Steps),
            _ => {}
        }
        if let Some(framework) = self.frameworks.choose(spec)? {
            return Ok(framework);
        }
        match named_engine(spec)?.or(self.config.engine) {
            Some(Engine::Embedded) => Ok(&self.embedded),
            Some(Engine::Onnxruntime) => match self.onnxruntime() {
                Ok(onnxruntime) => Ok(onnxruntime),
                Err(why) => Err(Error::unavailable(format!("model '{}' needs ONNX Runtime: {why}", spec.name))),
            },
            None => match self.onnxruntime() {
                Ok(onnxruntime) => Ok(onnxruntime),
                Err(_) => Ok(&self.embedded),
            },
        }
    }

    /// Returns a text for each CPU accelerator of an ONNX model that its engine lacks.
    ///
    /// # Errors
    /// As [`Self::choose`].
    pub fn missing_accelerators(&self, spec: &ModelSpec) -> Result<Vec<String>, Error> {
        if spec.optimization.cpu_accelerators.is_empty() || spec.library.is_some() {
            return Ok(Vec::new());
        }
        let is_embedded = self.choose(spec)?.name() == self.embedded.name();
        let (missing, place) = match self.onnxruntime() {
            Ok(onnxruntime) if !is_embedded => (onnxruntime.missing_accelerators(spec), "this ONNX Runtime library"),
            _ => {
                let named = spec.optimization.cpu_accelerators.iter();
                (named.map(|accelerator| accelerator.name.as_str()).collect(), "the embedded engine")
            }
        };
        let text = |name: &str| {
            let advice = match name {
                "openvino" => "install the package onnxruntime-openvino in place of onnxruntime, or remove it",
                _ => "remove it, or name a library that was built with it",
            };
            format!("cpu_execution_accelerator '{name}' of model '{}' is not in {place}; {advice}", spec.name)
        };
        Ok(missing.into_iter().map(text).collect())
    }

    /// Returns the form of a graph that is written for the engine of a model.
    pub fn operators(&self, spec: &ModelSpec) -> Operators {
        match self.choose(spec) {
            Ok(engine) if engine.name() != self.embedded.name() => Operators::OnnxRuntime,
            _ => Operators::Standard,
        }
    }

    /// Returns the library that another process opens to have this engine; `None` for the embedded
    /// one.
    pub fn library(&self, engine: &dyn Backend) -> Option<EngineLibrary> {
        let opened = self.onnxruntime.get().and_then(|opened| opened.as_ref().ok());
        let onnxruntime = opened.filter(|opened| opened.name() == engine.name()).map(|opened| EngineLibrary {
            kind: EngineKind::Onnxruntime,
            path: opened.library().to_owned(),
            extension: String::new(),
        });
        onnxruntime.or_else(|| self.pytorch_library(engine)).or_else(|| self.frameworks.library(engine))
    }

    fn pytorch_library(&self, engine: &dyn Backend) -> Option<EngineLibrary> {
        let Ok(PytorchEngine::Native(native)) = self.pytorch.get()? else { return None };
        (native.name() == engine.name()).then(|| EngineLibrary {
            kind: EngineKind::Pytorch,
            path: native.library().to_owned(),
            extension: String::new(),
        })
    }

    /// Returns the engine of a PyTorch model. The first call searches for it, and may compile for
    /// half a minute.
    ///
    /// # Errors
    /// `Unavailable` if it is missing.
    pub fn pytorch(&self, spec: &ModelSpec) -> Result<&PytorchEngine, Error> {
        let find = || PytorchEngine::find(&self.pytorch_config, self.python.as_ref());
        let found = self.pytorch.get_or_init(find).as_ref();
        found.map_err(|why| Error::unavailable(format!("model '{}' needs PyTorch: {why}", spec.name)))
    }

    /// Returns ONNX Runtime for a model with instances on GPUs.
    ///
    /// # Errors
    /// The reason that it cannot run there: the flag chooses the embedded engine, there is no
    /// library, or the library has no CUDA provider.
    pub fn on_gpus(&self, spec: &ModelSpec, gpus: &Gpus) -> Result<OnnxruntimeOnGpus<'_>, String> {
        if self.config.engine == Some(Engine::Embedded) && !spec.parameters.contains_key(ENGINE) {
            return Err("--onnx-engine=embedded is given".to_owned());
        }
        let onnxruntime = self.onnxruntime()?;
        match onnxruntime.why_no_gpu() {
            Some(why) => Err(why.to_owned()),
            None => Ok(onnxruntime.on_gpus(gpus, spec.sequence.is_none())),
        }
    }

    /// Returns ONNX Runtime. The first call searches for its library.
    ///
    /// # Errors
    /// The reason that it is missing.
    pub fn onnxruntime(&self) -> Result<&Onnxruntime, &str> {
        self.onnxruntime
            .get_or_init(|| find(&LibrarySearch::of_process(&ONNX_RUNTIME)))
            .as_ref()
            .map_err(String::as_str)
    }
}

/// The engine that runs a model of ONNX or of a framework, and its version, as its log line, configuration and metrics name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineName {
    /// The engine.
    pub engine: &'static str,
    /// Its version.
    pub version: String,
}

impl EngineName {
    /// Returns the name of the embedded engine.
    pub fn embedded() -> Self {
        Self { engine: "embedded", version: format!("rten {RTEN_VERSION}") }
    }

    /// Returns the name of a backend of ONNX models; `None` is the GPU's plan, which is part of
    /// this program.
    pub fn of(backend: Option<&dyn Backend>) -> Self {
        let Some(backend) = backend else {
            return Self { engine: "gpu-plan", version: env!("CARGO_PKG_VERSION").to_owned() };
        };
        let engines = [
            ("ONNX Runtime ", "onnxruntime"),
            ("OpenVINO ", "openvino"),
            ("PyTorch ", "pytorch"),
            ("TensorFlow ", "tensorflow"),
        ];
        let found = engines.into_iter().find_map(|(begin, engine)| Some((engine, backend.name().strip_prefix(begin)?)));
        match found {
            // Runs in processes of Python.
            Some(("pytorch", version)) => Self { engine: "pytorch", version: version.to_owned() },
            // On GPUs the version has more words.
            Some((engine, version)) => Self { engine, version: version.split(' ').take(1).collect() },
            None => Self::embedded(),
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, version } = self;
        match *engine {
            "embedded" => write!(f, "the embedded engine ({version})"),
            "onnxruntime" => write!(f, "ONNX Runtime {version}"),
            "openvino" => write!(f, "OpenVINO {version}"),
            "pytorch" => write!(f, "PyTorch {version}"),
            "tensorflow" => write!(f, "TensorFlow {version}"),
            _ => write!(f, "the GPU's plan ({version})"),
        }
    }
}

/// The version of the crate `rten`.
const RTEN_VERSION: &str = "0.27.0";

/// The parameter of a model that names its engine.
pub const ENGINE: &str = "engine";

/// Returns the engine that a model's parameter names, if it has one.
///
/// # Errors
/// `InvalidArgument` for a name that is not an engine.
pub fn named_engine(spec: &ModelSpec) -> Result<Option<Engine>, Error> {
    let named = spec.parameters.get(ENGINE).map(|name| {
        Engine::from_name(name)
            .map_err(|why| Error::invalid(format!("parameter '{ENGINE}' of model '{}' is '{name}', {why}", spec.name)))
    });
    named.transpose()
}

/// Opens the first usable candidate. Unusable ones are logged.
fn find(search: &LibrarySearch) -> Result<Onnxruntime, String> {
    for candidate in search.candidates() {
        match open(&candidate.path, candidate.source) {
            Ok(onnxruntime) => return Ok(onnxruntime),
            Err(why) => {
                let (path, source) = (candidate.path.display(), candidate.source);
                log::warning(&format!("'{path}' ({source}) is not used as ONNX Runtime: {why}"));
            }
        }
    }
    let why = "no library of it can be used; name one by --backend-config=onnxruntime,library=PATH or ORT_DYLIB_PATH, or \
               activate a Python environment that has the wheel 'onnxruntime' (`deuteron doctor` shows where it was looked \
               for)";
    log::info(&format!("ONNX models fall back to the embedded engine: {why}"));
    Err(why.to_owned())
}

/// Opens the library at a path, or the first usable one in a directory.
fn open_named(path: &Path) -> Result<Onnxruntime, String> {
    let mut why = "there is no libonnxruntime.so in this directory, its lib or a wheel beneath it".to_owned();
    for library in ONNX_RUNTIME.in_named(path) {
        match open(&library, "--backend-config") {
            Ok(opened) => return Ok(opened),
            Err(refusal) => why = refusal,
        }
    }
    Err(why)
}

fn open(library: &Path, source: &str) -> Result<Onnxruntime, String> {
    let opened = Onnxruntime::open(library)?;
    log::info(&format!("opened {} from '{}' ({source})", opened.name(), library.display()));
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{CompletionRules, ConfigDraft};

    fn engine(config: OnnxruntimeConfig, text: &str) -> Result<String, String> {
        let tensors =
            "input { name: 'x' data_type: TYPE_FP32 dims: 1 } output { name: 'y' data_type: TYPE_FP32 dims: 1 }";
        let draft = ConfigDraft::new("m", Some(format!("{text} {tensors}").as_bytes()), &[]).unwrap();
        let spec = draft.complete(None, &Default::default(), CompletionRules::default()).unwrap();
        let engines = Engines::without(config, "it is not here");
        let chosen = engines.choose(&spec).map(|backend| backend.name().to_owned());
        // A graph that is written for the embedded engine has its form, by whichever way that was chosen.
        assert!(chosen.as_deref() != Ok("rten") || engines.operators(&spec) == Operators::Standard);
        chosen.map_err(|error| error.text().to_owned())
    }

    #[test]
    fn a_model_chooses_before_the_flag_and_who_needs_what_is_not_there_is_refused() {
        let parameter = |value: &str| {
            format!("backend: 'onnxruntime' parameters {{ key: 'engine' value {{ string_value: '{value}' }} }}")
        };
        let flag = |engine| OnnxruntimeConfig { engine, ..OnnxruntimeConfig::default() };
        let check = |flag_engine, text: &str, want: Result<&str, &str>| {
            let got = engine(flag(flag_engine), text);
            assert_eq!(got, want.map(str::to_owned).map_err(str::to_owned), "{flag_engine:?} {text}");
        };
        let absent = "model 'm' needs ONNX Runtime: it is not here";
        check(None, "backend: 'identity'", Ok("identity"));
        check(None, "platform: 'onnxruntime_onnx'", Ok("rten"));
        check(None, &parameter("embedded"), Ok("rten"));
        check(None, &parameter("onnxruntime"), Err(absent));
        check(Some(Engine::Onnxruntime), "backend: 'onnxruntime'", Err(absent));
        check(Some(Engine::Onnxruntime), &parameter("embedded"), Ok("rten"));
        check(Some(Engine::Embedded), &parameter("onnxruntime"), Err(absent));
        check(
            None,
            &parameter("tract"),
            Err("parameter 'engine' of model 'm' is 'tract', expected 'embedded' or 'onnxruntime'"),
        );
    }

    #[test]
    fn the_embedded_engine_is_shown_with_the_version_that_is_linked() {
        let lock = include_str!("../../../Cargo.lock");
        assert!(lock.contains(&format!("name = \"rten\"\nversion = \"{RTEN_VERSION}\"\n")), "RTEN_VERSION is old");
        assert_eq!(EngineName::of(Some(&Rten::default())), EngineName::embedded());
        assert_eq!(EngineName::of(None).engine, "gpu-plan");
    }
}
