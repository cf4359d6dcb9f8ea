//! OpenVINO and TensorFlow: the places searched for their libraries, and the choice between the two
//! for a model. A library is searched for when the first model may use it, and the log says what
//! was found.
//!
//! A model of TensorFlow's runs on OpenVINO if that is found, since it is smaller and starts
//! sooner. It runs on TensorFlow itself if the flag names its library, the model or the flag asks
//! for it, the model has strings or another signature, or OpenVINO refuses it.

use std::path::Path;
use std::sync::OnceLock;

use crate::backend::Backend;
use crate::control::engines::library_search::{LibraryCandidate, LibrarySearch, SoughtLibrary};
use crate::engines::{Openvino, Tensorflow};
use crate::error::Error;
use crate::log;
use crate::model::ModelSpec;
use crate::model::platform::{OPENVINO_BACKEND, TENSORFLOW_BACKEND};
use crate::model::tensorflow::{GRAPH_TAG, SIGNATURE_DEF};
use crate::process::isolation::{EngineKind, EngineLibrary};
use crate::settings::{FrameworkConfig, TensorflowEngine};
use crate::tensor::Datatype;

/// The places searched for OpenVINO's library.
pub static OPENVINO: SoughtLibrary = SoughtLibrary {
    file_names: &["libopenvino_c.so"],
    variable: "INTEL_OPENVINO_DIR",
    wheel_folders: &["openvino/libs"],
    unpacked_folders: &["libs", "openvino/libs", "runtime/lib/intel64"],
};

/// The places searched for TensorFlow's library: that of the wheel, then that of the package for C.
pub static TENSORFLOW: SoughtLibrary = SoughtLibrary {
    file_names: &["libtensorflow_cc.so", "libtensorflow.so"],
    variable: "TF_DYLIB_PATH",
    wheel_folders: &["tensorflow"],
    unpacked_folders: &["tensorflow"],
};

/// The libraries of this server. Shared by all load threads.
pub struct Frameworks {
    config: FrameworkConfig,
    /// OpenVINO, or the reason that it is missing. Empty until the first search.
    openvino: OnceLock<Result<Openvino, String>>,
    /// TensorFlow, likewise.
    tensorflow: OnceLock<Result<Tensorflow, String>>,
}

impl Frameworks {
    /// Creates the libraries; each is opened when a model first needs it.
    pub const fn new(config: FrameworkConfig) -> Self {
        Self { config, openvino: OnceLock::new(), tensorflow: OnceLock::new() }
    }

    /// Libraries for a test in which none is found, for this reason.
    #[cfg(test)]
    pub fn without(config: FrameworkConfig, why: &str) -> Self {
        let (openvino, tensorflow) = (OnceLock::from(Err(why.to_owned())), OnceLock::from(Err(why.to_owned())));
        Self { config, openvino, tensorflow }
    }

    /// Opens the libraries that flags name.
    ///
    /// # Errors
    /// `InvalidArgument` if one cannot be used.
    pub fn open_named(&self) -> Result<(), Error> {
        let refused = |flag: &str, path: &Path, why: &str| {
            Error::invalid(format!("--backend-config={flag}={}: {why}", path.display()))
        };
        if let Some(path) = &self.config.openvino_library {
            self.openvino().map_err(|why| refused("openvino,library", path, why))?;
        }
        if let Some(path) = &self.config.tensorflow_library {
            self.tensorflow().map_err(|why| refused("tensorflow,library", path, why))?;
        }
        Ok(())
    }

    /// Returns OpenVINO. The first call searches for its library.
    ///
    /// # Errors
    /// The reason that it is missing.
    pub fn openvino(&self) -> Result<&Openvino, &str> {
        let open = || {
            let named = self.config.openvino_library.as_deref();
            let extension = self.config.openvino_extension.as_deref();
            let opened = find(&OPENVINO, named, &|path| Openvino::open(path, extension), &Openvino::name);
            opened.map_err(|why| why_none(named, &why, OPENVINO_BACKEND, "openvino", OPENVINO.variable))
        };
        self.openvino.get_or_init(open).as_ref().map_err(String::as_str)
    }

    /// Returns TensorFlow. The first call searches for its library.
    ///
    /// # Errors
    /// The reason that it is missing.
    pub fn tensorflow(&self) -> Result<&Tensorflow, &str> {
        let open = || {
            let named = self.config.tensorflow_library.as_deref();
            let opened = find(&TENSORFLOW, named, &Tensorflow::open, &Tensorflow::name);
            opened.map_err(|why| why_none(named, &why, TENSORFLOW_BACKEND, "tensorflow-cpu", TENSORFLOW.variable))
        };
        self.tensorflow.get_or_init(open).as_ref().map_err(String::as_str)
    }

    /// Returns the engine of a model of one of these backends; `None` for any other model.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown engine name; `Unavailable` if the library does not exist.
    pub fn choose(&self, spec: &ModelSpec) -> Result<Option<&dyn Backend>, Error> {
        match spec.backend.as_str() {
            OPENVINO_BACKEND => {}
            TENSORFLOW_BACKEND => return self.of_tensorflow(spec).map(Some),
            _ => return Ok(None),
        }
        match self.openvino() {
            Ok(openvino) => Ok(Some(openvino)),
            Err(why) => Err(Error::unavailable(format!("model '{}' needs OpenVINO: {why}", spec.name))),
        }
    }

    fn of_tensorflow(&self, spec: &ModelSpec) -> Result<&dyn Backend, Error> {
        let wanted = self.wanted(spec)?;
        let needs = |what: &str, why: &str| Error::unavailable(format!("model '{}' needs {what}: {why}", spec.name));
        match wanted {
            WantedEngine::Openvino => {
                self.openvino().map(|found| found as &dyn Backend).map_err(|why| needs("OpenVINO", why))
            }
            WantedEngine::Tensorflow(reason) => {
                let what = if reason.is_empty() { "TensorFlow".to_owned() } else { format!("TensorFlow ({reason})") };
                self.tensorflow().map(|found| found as &dyn Backend).map_err(|why| needs(&what, why))
            }
            WantedEngine::Any => match self.openvino() {
                Ok(openvino) => Ok(openvino),
                Err(openvino) => {
                    let both = |why| needs("OpenVINO or TensorFlow", &format!("{openvino}; {why}"));
                    self.tensorflow().map(|found| found as &dyn Backend).map_err(both)
                }
            },
        }
    }

    /// Returns another engine for a model that `failed` refused, if there is one.
    pub fn fallback(&self, spec: &ModelSpec, failed: &dyn Backend) -> Option<&dyn Backend> {
        let may = spec.backend == TENSORFLOW_BACKEND && matches!(self.wanted(spec), Ok(WantedEngine::Any));
        let was_openvino = self.opened_openvino().is_some_and(|openvino| openvino.name() == failed.name());
        self.tensorflow_if(may && was_openvino).map(|found| found as &dyn Backend)
    }

    fn tensorflow_if(&self, may: bool) -> Option<&Tensorflow> {
        if may { self.tensorflow().ok() } else { None }
    }

    /// Returns the library that another process opens to have this backend; `None` for a backend
    /// that is neither of the two.
    pub fn library(&self, backend: &dyn Backend) -> Option<EngineLibrary> {
        let name = backend.name();
        let openvino = self.opened_openvino().filter(|opened| opened.name() == name).map(|opened| EngineLibrary {
            kind: EngineKind::Openvino,
            path: opened.library().to_owned(),
            extension: opened.extension().unwrap_or_default().to_owned(),
        });
        let tensorflow = self.tensorflow.get().and_then(|opened| opened.as_ref().ok());
        let tensorflow = tensorflow.filter(|opened| opened.name() == name).map(|opened| EngineLibrary {
            kind: EngineKind::Tensorflow,
            path: opened.library().to_owned(),
            extension: String::new(),
        });
        openvino.or(tensorflow)
    }

    fn opened_openvino(&self) -> Option<&Openvino> {
        self.openvino.get().and_then(|opened| opened.as_ref().ok())
    }

    /// Returns the engine that a model of TensorFlow's wants.
    fn wanted(&self, spec: &ModelSpec) -> Result<WantedEngine, Error> {
        let named = spec.parameters.get(ENGINE).map(|name| {
            TensorflowEngine::from_name(name).map_err(|why| {
                Error::invalid(format!("parameter '{ENGINE}' of model '{}' is '{name}', {why}", spec.name))
            })
        });
        match named.transpose()?.unwrap_or(self.config.tensorflow_engine) {
            Some(TensorflowEngine::Openvino) => return Ok(WantedEngine::Openvino),
            Some(TensorflowEngine::Tensorflow) => return Ok(WantedEngine::Tensorflow("")),
            None if self.config.tensorflow_library.is_some() => return Ok(WantedEngine::Tensorflow("")),
            None => {}
        }
        let is_other = |(key, usual): (&str, &str)| {
            spec.parameters.get(key).is_some_and(|value| !value.is_empty() && value != usual)
        };
        let has_strings = spec.inputs.iter().chain(&spec.outputs).any(|tensor| tensor.datatype == Datatype::Bytes);
        let has_init = spec.parameters.get("TF_INIT_OPS_FILE").is_some_and(|file| !file.is_empty());
        Ok(match (has_strings, is_other(GRAPH_TAG) || is_other(SIGNATURE_DEF), has_init) {
            (true, ..) => WantedEngine::Tensorflow("it has strings"),
            (_, true, _) => {
                WantedEngine::Tensorflow("its parameters choose a signature that OpenVINO does not look at")
            }
            (.., true) => WantedEngine::Tensorflow("its parameter TF_INIT_OPS_FILE names operations to run first"),
            _ => WantedEngine::Any,
        })
    }
}

/// The parameter of a model that names its engine.
const ENGINE: &str = "engine";

/// The engine that a model of TensorFlow's wants.
enum WantedEngine {
    /// Any that is found: OpenVINO first.
    Any,
    Openvino,
    /// TensorFlow, and the reason against OpenVINO.
    Tensorflow(&'static str),
}

/// Opens the library that a flag names, or the first usable one of the search. Unusable ones are
/// logged. The error says why the last one cannot be used, and is empty if none was found.
fn find<T>(
    sought: &'static SoughtLibrary,
    named: Option<&Path>,
    open: &dyn Fn(&Path) -> Result<T, String>,
    name: &dyn Fn(&T) -> &str,
) -> Result<T, String> {
    let candidates = match named {
        None => LibrarySearch::of_process(sought).candidates(),
        Some(path) => {
            let source = "--backend-config";
            sought.in_named(path).into_iter().map(|path| LibraryCandidate { path, source }).collect()
        }
    };
    let mut why = named.map_or_else(String::new, |_| {
        let file = sought.file_names.first().copied().unwrap_or_default();
        format!("there is no {file} in this directory, its lib or a wheel beneath it")
    });
    for LibraryCandidate { path, source } in candidates {
        match open(&path) {
            Ok(opened) => {
                log::info(&format!("opened {} from '{}' ({source})", name(&opened), path.display()));
                return Ok(opened);
            }
            Err(refusal) => {
                log::warning(&format!("'{}' ({source}) is not used: {refusal}", path.display()));
                // Clients see this text, so it does not show the path on this machine.
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                why = format!("{file}: {}", refusal.replace(&path.display().to_string(), &file));
            }
        }
    }
    Err(why)
}

/// Returns the reason that there is no library: the fault of the one that a flag names, or the
/// remedy if none was found.
fn why_none(named: Option<&Path>, fault: &str, backend: &str, package: &str, variable: &str) -> String {
    if named.is_some() {
        return fault.to_owned();
    }
    let fault = if fault.is_empty() { String::new() } else { format!(" ({fault})") };
    format!(
        "no library of it can be used{fault}; install the Python package '{package}' into the active environment (pip install \
         {package}), name the library by --backend-config={backend},library=PATH or {variable}, or copy Triton's \
         libtriton_{backend}.so to {backend} beneath --backend-directory (`deuteron doctor` shows where it was looked for)"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::config::{CompletionRules, ConfigDraft};

    fn spec(text: &str, datatype: &str) -> ModelSpec {
        let tensors = format!(
            "input {{ name: 'x' data_type: {datatype} dims: 1 }} output {{ name: 'y' data_type: TYPE_FP32 dims: 1 }}"
        );
        let draft = ConfigDraft::new("m", Some(format!("{text} {tensors}").as_bytes()), &[]).unwrap();
        draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap()
    }

    #[test]
    fn the_engine_of_a_tensorflow_model_is_what_it_or_the_flag_asks_for_and_what_it_needs() {
        let parameter =
            |key: &str, value: &str| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}");
        let wanted = |config: &FrameworkConfig, parameters: &str, datatype: &str| {
            let frameworks = Frameworks::without(config.clone(), "it is not here");
            let spec = spec(&format!("platform: 'tensorflow_savedmodel' {parameters}"), datatype);
            frameworks.choose(&spec).err().unwrap().text().to_owned()
        };
        let check = |config: &FrameworkConfig, parameters: &str, datatype: &str, want: &str| {
            let want = format!("model 'm' needs {want}: it is not here");
            assert_eq!(wanted(config, parameters, datatype), want, "{parameters}");
        };
        let free = FrameworkConfig::default();
        assert_eq!(
            wanted(&free, "", "TYPE_FP32"),
            "model 'm' needs OpenVINO or TensorFlow: it is not here; it is not here"
        );
        check(&free, &parameter("engine", "openvino"), "TYPE_STRING", "OpenVINO");
        check(&free, &parameter("engine", "tensorflow"), "TYPE_FP32", "TensorFlow");
        check(&free, "", "TYPE_STRING", "TensorFlow (it has strings)");
        let signature = "TensorFlow (its parameters choose a signature that OpenVINO does not look at)";
        check(&free, &parameter("TF_SIGNATURE_DEF", "other"), "TYPE_FP32", signature);
        check(&free, &parameter("TF_GRAPH_TAG", "gpu"), "TYPE_FP32", signature);
        let init = "TensorFlow (its parameter TF_INIT_OPS_FILE names operations to run first)";
        check(&free, &parameter("TF_INIT_OPS_FILE", "init.json"), "TYPE_FP32", init);
        let named = FrameworkConfig { tensorflow_library: Some("/tf".into()), ..free.clone() };
        check(&named, "", "TYPE_FP32", "TensorFlow");
        check(&named, &parameter("engine", "openvino"), "TYPE_FP32", "OpenVINO");
        let flag = FrameworkConfig { tensorflow_engine: Some(TensorflowEngine::Openvino), ..named };
        check(&flag, "", "TYPE_FP32", "OpenVINO");
        check(&flag, &parameter("engine", "tensorflow"), "TYPE_FP32", "TensorFlow");
        assert_eq!(
            wanted(&free, &parameter("engine", "tract"), "TYPE_FP32"),
            "parameter 'engine' of model 'm' is 'tract', expected 'auto', 'openvino' or 'tensorflow'"
        );
        let frameworks = Frameworks::without(free, "it is not here");
        let why = frameworks.choose(&spec("platform: 'openvino'", "TYPE_FP32")).err().unwrap();
        assert_eq!(why.text(), "model 'm' needs OpenVINO: it is not here");
        assert!(frameworks.choose(&spec("backend: 'identity'", "TYPE_FP32")).is_ok_and(|found| found.is_none()));
    }

    #[test]
    fn a_library_that_is_missing_is_told_with_its_package_and_flag_and_a_named_one_with_its_fault() {
        let folder = std::env::temp_dir().join(format!("deuteron-frameworks-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let named = |path: &Path| FrameworkConfig { openvino_library: Some(path.to_owned()), ..Default::default() };
        let why = Frameworks::new(named(&folder)).open_named().unwrap_err();
        let want = format!(
            "--backend-config=openvino,library={}: there is no libopenvino_c.so in this directory, its lib or a wheel beneath \
             it",
            folder.display()
        );
        assert_eq!(why.text(), want);
        let file = folder.join("libopenvino_c.so.1");
        std::fs::write(&file, "text").unwrap();
        let why = Frameworks::new(named(&folder)).open_named().unwrap_err();
        assert!(why.text().contains(": it cannot be loaded: "), "{why}");
        std::fs::remove_dir_all(&folder).unwrap();
        let text = why_none(None, "", "openvino", "openvino", OPENVINO.variable);
        for part in ["pip install openvino", "--backend-config=openvino,library=PATH", "libtriton_openvino.so"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
