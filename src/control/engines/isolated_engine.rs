//! The process of an isolated model ([`crate::process::isolation`]): limits itself, opens the engine that the server
//! chose, and serves the server on standard input.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::process::{Resource, Rlimit};

use crate::backend::{Backend, LoadedModel, RunMemory};
use crate::control::engines::pytorch_engine;
use crate::engines::{Onnxruntime, Openvino, Pytorch, Rten, Tensorflow};
use crate::error::Error;
use crate::log;
use crate::model::ModelSpec;
use crate::process::isolation::{EngineKind, EngineLibrary, EngineOrder, EngineSocket, worker};
use crate::runtime::clock;
use crate::settings::LogSettings;

/// Serves until the server has gone. Returns the exit status of the process.
pub fn run() -> i32 {
    // Its output goes to the server's log.
    log::start(LogSettings::SILENT);
    // A crash leaves no copy of the model behind.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(Resource::Core, none);
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { return 1 };
    // It ends only by an error, usually because the server has closed its end.
    i32::from(worker::serve(EngineSocket::new(socket), clock::now, load).is_err())
}

fn load(order: &EngineOrder, file: Option<OwnedFd>) -> Result<Box<dyn LoadedModel>, Error> {
    let spec = Arc::new(ModelSpec::of_engine(&order.config, &order.derived)?);
    let run_memory_max = usize::try_from(order.run_memory_max).unwrap_or(usize::MAX);
    let backend: Box<dyn Backend> = match &order.library {
        Some(library) => open(library).map_err(Error::unavailable)?,
        None => Box::new(Rten::new(Arc::new(RunMemory::new(run_memory_max)))),
    };
    let model = match &file {
        Some(file) => backend.load_opened(&spec, &order.directory, file.as_fd())?,
        None => backend.load(&spec, &order.directory)?,
    };
    // An engine's library must stay as long as its models, which is as long as the process.
    std::mem::forget(backend);
    Ok(model)
}

fn open(library: &EngineLibrary) -> Result<Box<dyn Backend>, String> {
    let EngineLibrary { kind, path, extension } = library;
    Ok(match kind {
        EngineKind::Onnxruntime => Box::new(Onnxruntime::open(path)?),
        EngineKind::Openvino => {
            Box::new(Openvino::open(path, Some(extension.as_str()).filter(|extension| !extension.is_empty()))?)
        }
        EngineKind::Pytorch => Box::new(Pytorch::open(path, pytorch_engine::warn)?),
        EngineKind::Tensorflow => Box::new(Tensorflow::open(path)?),
    })
}
