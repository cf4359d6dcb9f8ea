//! `--backend-config`: settings of the backends, in Triton's form `BACKEND,KEY=VALUE`, or
//! `KEY=VALUE` for all of them. Read by [`super`]; an unknown setting is refused by name, since a
//! user would believe in a setting that does nothing.

use std::path::PathBuf;

use flags::parse_bool;

/// The settings of the backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendConfig {
    /// `default-max-batch-size`: for a model that can batch and does not say; `None` for 4.
    pub rows_max_default: Option<u16>,
    /// The backend of ONNX models.
    pub onnxruntime: OnnxruntimeConfig,
    /// The backends `openvino` and `tensorflow`.
    pub frameworks: FrameworkConfig,
    /// The backend of Python models, and Python-based backends.
    pub python: PythonConfig,
    /// The backend of PyTorch models.
    pub pytorch: PytorchConfig,
    /// The settings of backends that are shared libraries, which get them as they are.
    pub libraries: Vec<LibrarySetting>,
    /// Backends that are run by their shared library though the server has its own (`host=triton`).
    pub forced: Vec<String>,
}

/// One setting of a backend that is a shared library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibrarySetting {
    /// The backend; empty for all.
    pub backend: String,
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// The settings of the backend `onnxruntime`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnnxruntimeConfig {
    /// `library`: the file of ONNX Runtime, or a directory that has it.
    pub library: Option<PathBuf>,
    /// `--onnx-engine`, or `engine`: the engine of ONNX models that do not choose; `None` for ONNX
    /// Runtime if it is found.
    pub engine: Option<Engine>,
    /// `default-max-batch-size`, for this backend alone.
    pub rows_max_default: Option<u16>,
}

/// The settings of the backends `openvino` and `tensorflow`. Others are handed on to a library of Triton's that runs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameworkConfig {
    /// `openvino,library`: the file of OpenVINO's C interface, or a directory that has it.
    pub openvino_library: Option<PathBuf>,
    /// `openvino,extension`: a library with operators that is opened with it.
    pub openvino_extension: Option<String>,
    /// `openvino,default-max-batch-size`.
    pub openvino_rows_max_default: Option<u16>,
    /// `tensorflow,library`: the file of TensorFlow, or a directory that has it. Its models run on it then.
    pub tensorflow_library: Option<PathBuf>,
    /// `tensorflow,engine`: the engine of its models that do not choose; `None` for OpenVINO if it
    /// is found and can.
    pub tensorflow_engine: Option<TensorflowEngine>,
    /// `tensorflow,default-max-batch-size`.
    pub tensorflow_rows_max_default: Option<u16>,
}

/// The engine of TensorFlow models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorflowEngine {
    /// OpenVINO.
    Openvino,
    /// TensorFlow itself.
    Tensorflow,
}

impl TensorflowEngine {
    /// Returns the engine of a name, as in the flag and in a model's parameter `engine`; `None` for
    /// `auto`.
    pub fn from_name(name: &str) -> Result<Option<Self>, String> {
        match name {
            "auto" => Ok(None),
            "openvino" => Ok(Some(Self::Openvino)),
            "tensorflow" => Ok(Some(Self::Tensorflow)),
            _ => Err("expected 'auto', 'openvino' or 'tensorflow'".to_owned()),
        }
    }
}

impl FrameworkConfig {
    /// Takes in one setting of one of these backends. Returns true if it is theirs: others are for
    /// a library of Triton's.
    fn apply(&mut self, backend: &str, key: &str, value: &str) -> Result<bool, String> {
        if ["openvino", "tensorflow"].contains(&backend) && key == "library" && value.is_empty() {
            return Err("expected the path of a library".to_owned());
        }
        match (backend, key) {
            ("openvino", "library") => self.openvino_library = Some(PathBuf::from(value)),
            ("openvino", "extension") => {
                self.openvino_extension = Some(value.to_owned()).filter(|path| !path.is_empty())
            }
            ("openvino", "default-max-batch-size") => self.openvino_rows_max_default = Some(rows(value)?),
            ("tensorflow", "library") => self.tensorflow_library = Some(PathBuf::from(value)),
            ("tensorflow", "engine") => self.tensorflow_engine = TensorflowEngine::from_name(value)?,
            ("tensorflow", "default-max-batch-size") => self.tensorflow_rows_max_default = Some(rows(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The settings of the backend `python`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PythonConfig {
    /// `interpreter`: the Python of models without an environment of their own; `None` to look for one.
    pub interpreter: Option<PathBuf>,
    /// `shm-default-byte-size`: bytes of a region between server and process at first.
    pub region_size: Option<usize>,
    /// `fork`: true for `on`, false for `off`, `None` for `auto`: instances are forked from one process if there are
    /// several.
    pub forks: Option<bool>,
}

/// The settings of the backend `pytorch`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PytorchConfig {
    /// `library`: the file `libtorch_cpu.so`, or a directory that has it: an environment, an unpacked wheel or libtorch.
    pub library: Option<PathBuf>,
    /// `cache`: the folder that compiled shims are kept in.
    pub cache: Option<PathBuf>,
    /// `runner`: the runner of modules; `None` for the native engine if it is available, else
    /// Python.
    pub runner: Option<PytorchRunner>,
}

/// The runner of modules of PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PytorchRunner {
    /// This process, by torch's own library.
    Native,
    /// Processes of Python.
    Python,
}

/// The effect of a setting of `--backend-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppliedSetting {
    /// `auto-complete-config`, which is the server's own.
    AutoComplete(bool),
    /// It is applied.
    Held,
    /// It is accepted for Triton's sake and changes nothing; the text of a warning.
    Inert(String),
}

/// The engine of ONNX models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The engine that is part of the server.
    Embedded,
    /// ONNX Runtime.
    Onnxruntime,
}

impl Engine {
    /// Returns the engine of `--onnx-engine` and of `engine` of `--backend-config`, which mean the
    /// same; `None` for `auto`.
    pub fn from_flag(value: &str) -> Result<Option<Self>, String> {
        if value == "auto" {
            return Ok(None);
        }
        Self::from_name(value).map(Some).map_err(|_| "expected 'auto', 'embedded' or 'onnxruntime'".to_owned())
    }

    /// Returns the engine of a name, as in a model's parameter `engine`.
    pub fn from_name(name: &str) -> Result<Self, String> {
        match name {
            "embedded" => Ok(Self::Embedded),
            "onnxruntime" => Ok(Self::Onnxruntime),
            _ => Err("expected 'embedded' or 'onnxruntime'".to_owned()),
        }
    }
}

impl BackendConfig {
    /// Takes in one value of the flag. `auto-complete-config` is the server's own and is handed
    /// back.
    pub fn apply(&mut self, setting: &str) -> Result<AppliedSetting, String> {
        let (scope, value) = setting.split_once('=').ok_or("expected BACKEND,KEY=VALUE or KEY=VALUE")?;
        let (backend, key) = scope.split_once(',').unwrap_or(("", scope));
        let is_name = |name: &str| !name.is_empty() && !name.contains('/') && name != "." && name != "..";
        match (backend, key) {
            (name, "host") if is_name(name) => return self.set_host(name, value),
            ("pytorch", "cache" | "library" | "runner") => self.pytorch.apply(key, value)?,
            (name, _) if is_name(name) && (self.is_forced(name) || !["onnxruntime", "python"].contains(&name)) => {
                if !self.frameworks.apply(name, key, value)? {
                    self.hand_on(name, key, value);
                }
                return Ok(AppliedSetting::Held);
            }
            ("", "auto-complete-config") => return parse_bool(value).map(AppliedSetting::AutoComplete),
            ("", "default-max-batch-size") => {
                self.rows_max_default = Some(rows(value)?);
                self.hand_on("", key, value);
            }
            ("onnxruntime", "default-max-batch-size") => self.onnxruntime.rows_max_default = Some(rows(value)?),
            ("onnxruntime", "engine") => self.onnxruntime.engine = Engine::from_flag(value)?,
            ("onnxruntime", "library") if value.is_empty() => return Err("expected the path of a library".to_owned()),
            ("onnxruntime", "library") => self.onnxruntime.library = Some(PathBuf::from(value)),
            ("onnxruntime", _) => {
                return Err(format!(
                    "backend 'onnxruntime' has no setting '{key}'; it has default-max-batch-size, engine and library"
                ));
            }
            ("python", _) => return self.python.apply(key, value),
            ("", _) => {
                return Err(format!(
                    "there is no setting '{key}' of all backends; there are auto-complete-config and \
                     default-max-batch-size"
                ));
            }
            _ => return Err(format!("'{backend}' is no name of a backend")),
        }
        Ok(AppliedSetting::Held)
    }

    /// Returns true if a backend is run by its shared library though the server has its own.
    fn is_forced(&self, backend: &str) -> bool {
        self.forced.iter().any(|forced| forced == backend)
    }

    fn set_host(&mut self, backend: &str, value: &str) -> Result<AppliedSetting, String> {
        self.forced.retain(|forced| forced != backend);
        match value {
            "own" => {}
            "triton" => self.forced.push(backend.to_owned()),
            _ => return Err("expected 'own' or 'triton'".to_owned()),
        }
        Ok(AppliedSetting::Held)
    }

    fn hand_on(&mut self, backend: &str, key: &str, value: &str) {
        let (backend, key, value) = (backend.to_owned(), key.to_owned(), value.to_owned());
        self.libraries.retain(|setting| setting.backend != backend || setting.key != key);
        self.libraries.push(LibrarySetting { backend, key, value });
    }

    /// Returns `max_batch_size` for a model of a backend that can batch and does not say.
    pub fn rows_max_default(&self, backend: &str) -> Option<u16> {
        let own = match backend {
            "onnxruntime" => self.onnxruntime.rows_max_default,
            "openvino" => self.frameworks.openvino_rows_max_default,
            "tensorflow" => self.frameworks.tensorflow_rows_max_default,
            _ => None,
        };
        own.or(self.rows_max_default)
    }
}

impl PytorchConfig {
    /// Takes in one of our settings. Others are for a library of Triton's.
    fn apply(&mut self, key: &str, value: &str) -> Result<(), String> {
        match (key, value) {
            ("cache" | "library", "") => return Err("expected a path".to_owned()),
            ("cache", path) => self.cache = Some(PathBuf::from(path)),
            ("library", path) => self.library = Some(PathBuf::from(path)),
            (_, "auto") => self.runner = None,
            (_, "native") => self.runner = Some(PytorchRunner::Native),
            (_, "python") => self.runner = Some(PytorchRunner::Python),
            _ => return Err("expected 'auto', 'native' or 'python'".to_owned()),
        }
        Ok(())
    }
}

impl PythonConfig {
    /// Takes in one setting. Triton's are all accepted, and refused as it refuses them (`python_be.cc`).
    fn apply(&mut self, key: &str, value: &str) -> Result<AppliedSetting, String> {
        let whole = || value.parse::<i64>().map_err(|_| "expected a whole number".to_owned());
        let size = |least: i64, refusal: &str| match whole()? {
            size if size < least => Err(format!("{key} {refusal}")),
            size => usize::try_from(size).map(Some).map_err(|_| "expected a smaller number".to_owned()),
        };
        match key {
            "interpreter" if value.is_empty() => return Err("expected the path of a Python".to_owned()),
            "interpreter" => self.interpreter = Some(PathBuf::from(value)),
            "fork" => {
                self.forks = match value {
                    "auto" => None,
                    "on" => Some(true),
                    "off" => Some(false),
                    _ => return Err("expected 'auto', 'on' or 'off'".to_owned()),
                };
            }
            // Triton's text says 4 MiB for a bound of 1 MiB.
            "shm-default-byte-size" => self.region_size = size(1024 * 1024, "can't be smaller than 1 MiB")?,
            _ => {
                match key {
                    "default-max-batch-size" => rows(value).map(drop)?,
                    "shm-region-prefix-name" if value.is_empty() => {
                        return Err(format!("{key} must at least contain one character."));
                    }
                    "shm-region-prefix-name" => {}
                    "shm_message_queue_size" => whole().map(drop)?,
                    "shm-growth-byte-size" | "stub-timeout-seconds" => {
                        size(1, "can't be smaller than or equal to zero.").map(drop)?
                    }
                    "thread-pool-size" => size(1, "can't be less than 1.").map(drop)?,
                    _ => return Err(unknown_of_python(key)),
                }
                return Ok(AppliedSetting::Inert(format!("--backend-config=python,{key} has no effect here")));
            }
        }
        Ok(AppliedSetting::Held)
    }
}

fn unknown_of_python(key: &str) -> String {
    format!(
        "backend 'python' has no setting '{key}'; it has fork, interpreter, shm-default-byte-size, \
         shm-growth-byte-size, shm-region-prefix-name, shm_message_queue_size, stub-timeout-seconds and thread-pool-size"
    )
}

fn rows(value: &str) -> Result<u16, String> {
    value.parse().map_err(|_| format!("expected a whole number from 0 to {}", u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[&str]) -> Result<BackendConfig, String> {
        let mut config = BackendConfig::default();
        settings.iter().try_for_each(|setting| config.apply(setting).map(drop))?;
        Ok(config)
    }

    #[test]
    fn a_backends_own_setting_goes_before_that_of_all() {
        let check = |settings: &[&str], want: [Option<u16>; 2]| {
            let config = config(settings).unwrap();
            let got = ["onnxruntime", "identity"].map(|backend| config.rows_max_default(backend));
            assert_eq!(got, want, "{settings:?}");
        };
        check(&[], [None, None]);
        check(&["default-max-batch-size=8"], [Some(8), Some(8)]);
        check(&["onnxruntime,default-max-batch-size=0", "default-max-batch-size=8"], [Some(0), Some(8)]);
    }

    #[test]
    fn a_path_may_hold_what_separates_elsewhere() {
        let config = config(&["onnxruntime,library=/a,b=c/lib.so", "onnxruntime,engine=embedded"]).unwrap();
        assert_eq!(config.onnxruntime.library, Some("/a,b=c/lib.so".into()));
        assert_eq!(config.onnxruntime.engine, Some(Engine::Embedded));
    }

    #[test]
    fn libraries_and_engines_of_frameworks_are_read_and_handed_on() {
        let config = config(&["openvino,library=/ov", "tensorflow,engine=tensorflow", "tensorflow,version=2"]).unwrap();
        assert_eq!(config.frameworks.openvino_library, Some("/ov".into()));
        assert_eq!(config.frameworks.tensorflow_engine, Some(TensorflowEngine::Tensorflow));
        let handed: Vec<_> = config.libraries.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(handed, ["version"]);
        let config = BackendConfig::default().apply("tensorflow,engine=tract");
        assert_eq!(config, Err("expected 'auto', 'openvino' or 'tensorflow'".to_owned()));
        assert!(BackendConfig::default().apply("openvino,library=").is_err());
    }

    #[test]
    fn the_setting_of_the_server_is_handed_back() {
        let applied = BackendConfig::default().apply("auto-complete-config=false");
        assert_eq!(applied, Ok(AppliedSetting::AutoComplete(false)));
    }

    #[test]
    fn settings_of_the_python_backend_are_those_of_triton_and_an_interpreter() {
        let applied = |setting: &str| {
            let mut config = BackendConfig::default();
            let applied = config.apply(&format!("python,{setting}"))?;
            Ok::<_, String>((applied, config.python))
        };
        let held = |setting: &str| applied(setting).map(|(_, python)| python);
        let python = |interpreter: Option<&str>, region_size| {
            Ok(PythonConfig { interpreter: interpreter.map(PathBuf::from), region_size, forks: None })
        };
        for (value, forks) in [("auto", None), ("on", Some(true)), ("off", Some(false))] {
            assert_eq!(held(&format!("fork={value}")), Ok(PythonConfig { forks, ..PythonConfig::default() }));
        }
        assert_eq!(held("interpreter=/opt/venv/bin/python"), python(Some("/opt/venv/bin/python"), None));
        assert_eq!(held("shm-default-byte-size=1048576"), python(None, Some(1 << 20)));
        let inert = ["shm-region-prefix-name=p", "shm_message_queue_size=-5", "stub-timeout-seconds=1"];
        let more = ["shm-growth-byte-size=1", "thread-pool-size=1", "default-max-batch-size=4"];
        for setting in inert.into_iter().chain(more) {
            let key = setting.split_once('=').unwrap().0;
            let told = AppliedSetting::Inert(format!("--backend-config=python,{key} has no effect here"));
            assert_eq!(applied(setting), Ok((told, PythonConfig::default())));
        }
        let refused = |setting: &str, want: &str| assert_eq!(applied(setting), Err(want.to_owned()), "{setting}");
        refused("shm-default-byte-size=1048575", "shm-default-byte-size can't be smaller than 1 MiB");
        refused("shm-growth-byte-size=0", "shm-growth-byte-size can't be smaller than or equal to zero.");
        refused("thread-pool-size=0", "thread-pool-size can't be less than 1.");
        refused("stub-timeout-seconds=0", "stub-timeout-seconds can't be smaller than or equal to zero.");
        refused("shm-region-prefix-name=", "shm-region-prefix-name must at least contain one character.");
        refused("shm_message_queue_size=x", "expected a whole number");
        refused("shm-growth-byte-size=1M", "expected a whole number");
        refused("interpreter=", "expected the path of a Python");
        refused("fork=1", "expected 'auto', 'on' or 'off'");
        assert!(applied("shm-size=1").unwrap_err().starts_with("backend 'python' has no setting 'shm-size'; it has "));
    }

    #[test]
    fn settings_of_other_backends_are_handed_on_and_those_of_ours_once_a_library_runs_them() {
        let config = config(&[
            "tensorflow,version=2",
            "default-max-batch-size=8",
            "python,host=triton",
            "python,shm-size=1",
            "identity,host=triton",
            "identity,host=own",
            "tensorflow,version=3",
        ]);
        let config = config.unwrap();
        assert_eq!(config.forced, ["python"]);
        let handed: Vec<_> =
            config.libraries.iter().map(|one| format!("{},{}={}", one.backend, one.key, one.value)).collect();
        assert_eq!(handed, [",default-max-batch-size=8", "python,shm-size=1", "tensorflow,version=3"]);
    }

    #[test]
    fn settings_of_pytorch_are_ours_and_others_are_handed_on() {
        let set = ["pytorch,library=/opt/torch", "pytorch,cache=/var/cache/d", "pytorch,runner=python", "pytorch,x=1"];
        let held = config(&set).unwrap();
        let (library, cache) = (Some("/opt/torch".into()), Some("/var/cache/d".into()));
        assert_eq!(held.pytorch, PytorchConfig { library, cache, runner: Some(PytorchRunner::Python) });
        assert_eq!(held.libraries.len(), 1);
        let auto = config(&["pytorch,runner=native", "pytorch,runner=auto"]).unwrap();
        assert_eq!(auto.pytorch, PytorchConfig::default());
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let check = |setting: &str, want: &str| {
            let text = config(&[setting]).unwrap_err();
            assert!(text.contains(want), "{setting}: {text}");
        };
        check("onnxruntime", "expected BACKEND,KEY=VALUE or KEY=VALUE");
        check("onnxruntime,library", "expected BACKEND,KEY=VALUE");
        check("onnxruntime,library=", "the path of a library");
        check("onnxruntime,threads=2", "no setting 'threads'; it has default-max-batch-size, engine and library");
        check("onnxruntime,engine=tract", "expected 'auto', 'embedded' or 'onnxruntime'");
        check("min-compute-capability=6.0", "no setting 'min-compute-capability' of all backends");
        check("pytorch,library=", "expected a path");
        check("pytorch,runner=c++", "expected 'auto', 'native' or 'python'");
        check("../x,version=2", "'../x' is no name of a backend");
        check("python,host=mine", "expected 'own' or 'triton'");
        check("default-max-batch-size=-1", "a whole number from 0 to 65535");
        check("onnxruntime,default-max-batch-size=70000", "a whole number from 0 to 65535");
    }
}
