//! `--backend-config`: settings of the backends, in Triton's form `BACKEND,KEY=VALUE`, or
//! `KEY=VALUE` for all of them. Read by [`super`]; what is not known is refused by name, since a
//! setting that does nothing would be believed.

use std::path::PathBuf;

use crate::flags::parse_bool;

/// The settings of the backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendConfig {
    /// `default-max-batch-size`: of a model that can batch and does not say; `None` for 4.
    pub rows_max_default: Option<u16>,
    /// The backend of ONNX models.
    pub onnxruntime: OnnxruntimeConfig,
}

/// The settings of the backend `onnxruntime`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnnxruntimeConfig {
    /// `library`: the file of ONNX Runtime.
    pub library: Option<PathBuf>,
    /// `engine`: what runs ONNX models that do not choose; `None` for ONNX Runtime where it is
    /// found.
    pub engine: Option<Engine>,
    /// `default-max-batch-size`, for this backend alone.
    pub rows_max_default: Option<u16>,
}

/// What runs ONNX models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The engine that is part of the server.
    Embedded,
    /// ONNX Runtime.
    Onnxruntime,
}

impl Engine {
    /// The engine of a name, as a flag or a model's parameter `engine` gives it.
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
    pub fn apply(&mut self, setting: &str) -> Result<Option<bool>, String> {
        let (scope, value) = setting.split_once('=').ok_or("expected BACKEND,KEY=VALUE or KEY=VALUE")?;
        let (backend, key) = scope.split_once(',').unwrap_or(("", scope));
        match (backend, key) {
            ("", "auto-complete-config") => return parse_bool(value).map(Some),
            ("", "default-max-batch-size") => self.rows_max_default = Some(rows(value)?),
            ("onnxruntime", "default-max-batch-size") => self.onnxruntime.rows_max_default = Some(rows(value)?),
            ("onnxruntime", "engine") => self.onnxruntime.engine = Some(Engine::from_name(value)?),
            ("onnxruntime", "library") if value.is_empty() => return Err("expected the path of a library".to_owned()),
            ("onnxruntime", "library") => self.onnxruntime.library = Some(PathBuf::from(value)),
            ("onnxruntime", _) => {
                return Err(format!(
                    "backend 'onnxruntime' has no setting '{key}'; it has default-max-batch-size, engine and library"
                ));
            }
            ("", _) => {
                return Err(format!(
                    "there is no setting '{key}' of all backends; there are auto-complete-config and \
                     default-max-batch-size"
                ));
            }
            _ => return Err(format!("backend '{backend}' has no settings; 'onnxruntime' has")),
        }
        Ok(None)
    }

    /// `max_batch_size` of a model of a backend that can batch and does not say.
    pub fn rows_max_default(&self, backend: &str) -> Option<u16> {
        let own = if backend == "onnxruntime" { self.onnxruntime.rows_max_default } else { None };
        own.or(self.rows_max_default)
    }
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
    fn the_setting_of_the_server_is_handed_back() {
        assert_eq!(BackendConfig::default().apply("auto-complete-config=false"), Ok(Some(false)));
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
        check("onnxruntime,engine=tract", "expected 'embedded' or 'onnxruntime'");
        check("min-compute-capability=6.0", "no setting 'min-compute-capability' of all backends");
        check("tensorflow,version=2", "backend 'tensorflow' has no settings");
        check("default-max-batch-size=-1", "a whole number from 0 to 65535");
        check("onnxruntime,default-max-batch-size=70000", "a whole number from 0 to 65535");
    }
}
