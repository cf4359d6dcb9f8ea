//! Which engine runs a model: a built-in backend, ONNX Runtime where its library is found, or the
//! embedded engine. The library is looked for when the first ONNX model may use it, and the log
//! tells what came of it; a library that a flag names must load.

use std::path::Path;
use std::sync::OnceLock;

use crate::backend::gpu::Gpus;
use crate::backend::{Accumulate, Backend, Decoupled, Identity, Iterative, Onnxruntime, OnnxruntimeOnGpus, Rten};
use crate::control::onnxruntime_library::LibrarySearch;
use crate::error::Error;
use crate::log;
use crate::model::ModelSpec;
use crate::settings::{Engine, OnnxruntimeConfig};

/// The engines of this server. Shared by the helpers of the control thread.
pub struct Engines {
    config: OnnxruntimeConfig,
    /// ONNX Runtime, or why there is none.
    onnxruntime: OnceLock<Result<Onnxruntime, String>>,
}

impl Engines {
    /// Opens the library that a flag names; fails where it cannot be used.
    pub fn new(config: &OnnxruntimeConfig) -> Result<Self, Error> {
        let engines = Self { config: config.clone(), onnxruntime: OnceLock::new() };
        if let Some(library) = &config.library {
            let opened = open(library, "--backend-config").map_err(|why| {
                Error::invalid(format!("--backend-config=onnxruntime,library={}: {why}", library.display()))
            })?;
            // The cell is new.
            let _ = engines.onnxruntime.set(Ok(opened));
        }
        Ok(engines)
    }

    /// Engines of a server that finds no ONNX Runtime.
    #[cfg(test)]
    pub fn without(config: OnnxruntimeConfig, why: &str) -> Self {
        Self { config, onnxruntime: OnceLock::from(Err(why.to_owned())) }
    }

    /// The engine of a model. Its parameter `engine` goes before the flag.
    pub fn choose(&self, spec: &ModelSpec) -> Result<&dyn Backend, Error> {
        match spec.backend.as_str() {
            "dyna_sequence" => return Ok(&Accumulate::ById),
            "identity" => return Ok(&Identity),
            "iterative_sequence" => return Ok(&Iterative),
            "repeat" => return Ok(&Decoupled::Repeat),
            "sequence" => return Ok(&Accumulate::ByRow),
            "square" => return Ok(&Decoupled::Square),
            _ => {}
        }
        match own(spec)?.or(self.config.engine) {
            Some(Engine::Embedded) => Ok(&Rten),
            Some(Engine::Onnxruntime) => match self.onnxruntime() {
                Ok(onnxruntime) => Ok(onnxruntime),
                Err(why) => Err(Error::unavailable(format!("model '{}' needs ONNX Runtime: {why}", spec.name))),
            },
            None => match self.onnxruntime() {
                Ok(onnxruntime) => Ok(onnxruntime),
                Err(_) => Ok(&Rten),
            },
        }
    }

    /// ONNX Runtime for a model with instances on GPUs, or why it cannot run there.
    pub fn on_gpus(&self, spec: &ModelSpec, gpus: &Gpus) -> Result<OnnxruntimeOnGpus<'_>, String> {
        if self.config.engine == Some(Engine::Embedded) && !spec.parameters.contains_key(ENGINE) {
            return Err("--backend-config=onnxruntime,engine=embedded is given".to_owned());
        }
        let onnxruntime = self.onnxruntime()?;
        match onnxruntime.why_no_gpu() {
            Some(why) => Err(why.to_owned()),
            None => Ok(onnxruntime.on_gpus(gpus, spec.sequence.is_none())),
        }
    }

    fn onnxruntime(&self) -> Result<&Onnxruntime, &str> {
        self.onnxruntime.get_or_init(|| find(&LibrarySearch::of_process())).as_ref().map_err(String::as_str)
    }
}

/// The parameter of a model that names its engine.
pub const ENGINE: &str = "engine";

/// The engine that a model names, if it does.
pub fn own(spec: &ModelSpec) -> Result<Option<Engine>, Error> {
    let named = spec.parameters.get(ENGINE).map(|name| {
        Engine::from_name(name)
            .map_err(|why| Error::invalid(format!("parameter '{ENGINE}' of model '{}' is '{name}', {why}", spec.name)))
    });
    named.transpose()
}

/// The first library that can be used.
fn find(surroundings: &LibrarySearch) -> Result<Onnxruntime, String> {
    for candidate in surroundings.candidates() {
        match open(&candidate.path, candidate.source) {
            Ok(onnxruntime) => return Ok(onnxruntime),
            Err(why) => {
                let (path, source) = (candidate.path.display(), candidate.source);
                log::warning(&format!("'{path}' ({source}) is not used as ONNX Runtime: {why}"));
            }
        }
    }
    let why = "no library of it can be used; name one by --backend-config=onnxruntime,library=PATH or ORT_DYLIB_PATH, or \
               activate a Python environment that has the wheel 'onnxruntime'";
    log::info(&format!("ONNX models run on the embedded engine, not on ONNX Runtime: {why}"));
    Err(why.to_owned())
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
        engines.choose(&spec).map(|backend| backend.name().to_owned()).map_err(|error| error.text().to_owned())
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
}
