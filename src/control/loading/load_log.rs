//! Log lines of loads: the engine of a version, and its placement. Called by `model_loader`.

use std::time::Duration;

use crate::backend::Backend;
use crate::control::engines::engine::EngineName;
use crate::control::loading::placement::{InstanceSite, PlacementChoice};
use crate::error::Error;
use crate::log;
use crate::model::ModelSpec;
use crate::model::platform::ENGINE_BACKENDS;

/// Says which accelerators are for GPUs, where none of the instances is on one.
pub fn log_unused_accelerators(spec: &ModelSpec) {
    for accelerator in spec.optimization.gpu_accelerators.iter().filter(|_| !spec.is_on_gpu()) {
        let (model, name) = (&spec.name, &accelerator.name);
        log::info(&format!("'{model}': gpu_execution_accelerator '{name}' has no effect: no instance is on a GPU"));
    }
}

/// Warns of the accelerators that the model's engine lacks, each by a text, or refuses them with `--strict-accelerators`.
///
/// # Errors
/// `Unsupported` with the first text.
pub fn check_accelerators(missing: Vec<String>, is_strict: bool) -> Result<(), Error> {
    for text in missing {
        if is_strict {
            return Err(Error::unsupported(text));
        }
        log::warning(&format!("{text}; the model runs without it (--strict-accelerators refuses it)"));
    }
    Ok(())
}

/// Says why a model that may run on a GPU does not.
pub fn log_cpu_fallback(spec: &ModelSpec, why: &Error) {
    log::info(&format!("'{}' runs on the CPU and not on a GPU: {why}", spec.name));
}

/// Returns true if log, configuration and metrics tell the engine of a model.
pub fn has_named_engine(spec: &ModelSpec) -> bool {
    let is_of_engine = ENGINE_BACKENDS.contains(&spec.backend.as_str());
    is_of_engine && spec.library.is_none() && spec.python.is_none()
}

/// The engine of a version, for the log: a library by its file, an engine of ONNX models with its version, or a
/// backend.
pub fn served_with(spec: &ModelSpec, engine: Option<&EngineName>, backend: Option<&dyn Backend>) -> String {
    match (&spec.library, engine, backend) {
        (Some(library), ..) => format!("'{}'", library.file),
        (None, Some(engine), _) => engine.to_string(),
        (None, None, backend) => backend.map_or_else(String::new, |backend| backend.name().to_owned()),
    }
}

/// Tells that a version was loaded, by what, and where it runs.
pub fn log_loaded(spec: &ModelSpec, version: u64, with: &str, took: Duration, choice: &PlacementChoice) {
    let place = match choice.site {
        InstanceSite::Ensemble => "in its steps",
        InstanceSite::Inline => "inline",
        InstanceSite::Worker => "on workers",
    };
    let took = log::duration_text(took);
    let why = if choice.why.is_empty() { String::new() } else { format!(" ({})", choice.why) };
    log::info(&format!("loaded '{}' version {version} with {with} in {took}, runs {place}{why}", spec.name));
    choice.warnings.iter().for_each(|text| log::warning(text));
}
