//! Models whose backend is a shared library of Triton's: their recognition, and the fields that
//! their backend may change. Called by [`crate::config`].

use crate::config::GpuSupport;
use crate::config::python::{self, AnyBackendFile};
use crate::name::is_plain_name;
use crate::parse::json;
use crate::parse::text::{ConfigText, Notation};
use crate::platform::{BUILT_IN_BACKENDS, ENSEMBLE_PLATFORM, ONNX_BACKEND, PYTHON_BACKEND, PYTHON_FILENAME};
use crate::{HostedLibrary, TensorSpec};
use base::error::Error;
use wire::proto::inference::ModelInstanceGroup;
use wire::proto::inference::model_config::SchedulingChoice;
use wire::proto::inference::{ModelConfig, model_instance_group::Kind};

/// An instance group that a backend prefers if the configuration has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreferredInstances {
    /// `KIND_CPU`, `KIND_GPU`, `KIND_MODEL`; `None` for `KIND_AUTO`.
    pub kind: Option<crate::InstanceKind>,
    /// Its instances; 0 for the default.
    pub count: u64,
    /// Its GPUs; empty for all.
    pub gpus: Vec<u64>,
}

/// The file of the library that runs a model; `None` if the server has its own backend for it, or
/// there is no such file. A backend in `forced` is never the server's own.
pub(super) fn library(config: &ModelConfig, has_backend_file: AnyBackendFile<'_>, forced: &[String]) -> Option<String> {
    let ModelConfig { backend, runtime, platform, .. } = config;
    let is_ours =
        [ONNX_BACKEND, PYTHON_BACKEND].contains(&backend.as_str()) || BUILT_IN_BACKENDS.contains(&backend.as_str());
    if platform == ENSEMBLE_PLATFORM || runtime == PYTHON_FILENAME || (is_ours && !forced.contains(backend)) {
        return None;
    }
    let file = if runtime.is_empty() { format!("libtriton_{backend}.so") } else { runtime.clone() };
    let are_plain = is_plain_name(backend) && is_plain_name(&file) && file.ends_with(".so");
    (are_plain && has_backend_file(backend, &file)).then_some(file)
}

/// A library's description for its host, if the model serves sequences: its engine sees states among
/// the outputs.
pub(super) fn of_sequences(config: &ModelConfig, library: &HostedLibrary, outputs: &[TensorSpec]) -> HostedLibrary {
    let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else {
        return library.clone();
    };
    let place = |name: &str| outputs.iter().position(|output| output.name == name);
    HostedLibrary {
        file: library.file.clone(),
        outputs_asked: config.output.len(),
        states: batching.state.iter().filter_map(|state| place(&state.output_name)).collect(),
        is_sequence: true,
        is_iterative: batching.iterative_sequence,
    }
}

/// The configuration of a model, as JSON, after its backend has set one: fields that a backend may not set stay.
///
/// # Errors
/// `InvalidArgument` for JSON that is no configuration, `Internal` if it contradicts the one before.
pub fn completed(config: &str, set: &[u8]) -> Result<String, Error> {
    let decode = |json: &[u8]| {
        let text = ConfigText::decode(Notation::Json, json)?;
        let config = text.message.transcode_to::<ModelConfig>();
        config.map_err(|error| Error::internal(format!("a configuration cannot be decoded: {error}")))
    };
    let mut config = decode(config.as_bytes())?;
    let set = decode(set).map_err(|error| error.with_prefix("what TRITONBACKEND_ModelSetConfig set: "))?;
    python::merge(&mut config, set)?;
    Ok(json::encode(&config))
}

/// Adds the instance groups that a backend prefers, if the configuration has none: those for GPUs
/// if there are GPUs.
pub(super) fn add_preferred(
    config: &mut ModelConfig,
    preferred: &[PreferredInstances],
    gpus: &GpuSupport,
) -> Result<(), Error> {
    if !config.instance_group.is_empty() {
        return Ok(());
    }
    for PreferredInstances { kind, count, gpus: devices } in preferred {
        let kind = match kind {
            None => Kind::Auto,
            Some(crate::InstanceKind::Cpu) => Kind::Cpu,
            Some(crate::InstanceKind::Gpu) => Kind::Gpu,
            Some(crate::InstanceKind::Model) => Kind::Model,
        };
        if kind == Kind::Gpu && gpus.devices.is_empty() {
            continue;
        }
        let name = &config.name;
        let refuse =
            || Error::invalid(format!("the backend of model '{name}' prefers an instance group that cannot be"));
        let gpus = devices.iter().map(|gpu| i32::try_from(*gpu).map_err(|_| refuse())).collect::<Result<_, _>>()?;
        let count = i32::try_from(*count).map_err(|_| refuse())?;
        let mut group = ModelInstanceGroup { count, gpus, ..ModelInstanceGroup::default() };
        group.set_kind(kind);
        config.instance_group.push(group);
    }
    Ok(())
}

/// Triton's words for a backend that was not found.
pub(super) fn not_found(config: &ModelConfig) -> String {
    let ModelConfig { name, backend, runtime, .. } = config;
    let (backend, runtime) = (backend.escape_debug(), runtime.escape_debug());
    match config.runtime.as_str() {
        "" => {
            format!(
                "unable to find backend library for backend '{backend}', try specifying runtime on the model configuration"
            )
        }
        _ => format!("unable to find backend library '{runtime}' for model '{name}'"),
    }
}

/// The places where a library was looked for, for the refusal of a model whose backend was not
/// found.
pub(super) fn places(config: &ModelConfig) -> String {
    let ModelConfig { backend, runtime, .. } = config;
    let shown = backend.escape_debug();
    let file = if runtime.is_empty() { format!("libtriton_{shown}.so") } else { runtime.escape_debug().to_string() };
    format!(
        "'{file}' is neither in the version's directory, nor in the model's, nor in '{shown}' beneath --backend-directory"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InstanceKind;

    #[test]
    fn a_library_runs_what_the_server_has_no_backend_for_or_is_told_to_leave_to_it() {
        let check = |backend: &str, runtime: &str, forced: &[&str], want: Option<&str>| {
            let (backend, runtime) = (backend.to_owned(), runtime.to_owned());
            let config = ModelConfig { backend, runtime, ..ModelConfig::default() };
            let has = |_: &str, file: &str| file != "libtriton_absent.so";
            let forced: Vec<_> = forced.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(library(&config, &has, &forced).as_deref(), want, "{config:?}");
        };
        check("dali", "", &[], Some("libtriton_dali.so"));
        check("fil", "", &[], None);
        check("fil", "", &["fil"], Some("libtriton_fil.so"));
        check("dali", "libother.so", &[], Some("libother.so"));
        check("dali", "model.py", &[], None);
        check("absent", "", &[], None);
        check("python", "", &[], None);
        check("identity", "libtriton_identity.so", &[], None);
        check("python", "", &["python"], Some("libtriton_python.so"));
        check("onnxruntime", "", &["python", "onnxruntime"], Some("libtriton_onnxruntime.so"));
        check("../dali", "", &[], None);
        check("dali", "../libtriton_dali.so", &[], None);
        check("dali", "a/b.so", &[], None);
        check("dali", "library", &[], None);
        check("", "", &[], None);
    }

    #[test]
    fn what_a_backend_sets_is_merged_into_the_configuration_that_it_sees_and_refused_if_it_contradicts() {
        let config = r#"{"name":"m","backend":"b","dynamic_batching":{},"parameters":{"a":{"string_value":"1"}}}"#;
        let set = |json: &str| completed(config, json.as_bytes()).map_err(|error| error.text().to_owned());
        let input = r#""input":[{"name":"x","data_type":"TYPE_INT32","dims":["-1"]}]"#;
        let merged = set(&format!(r#"{{"name":"n","max_batch_size":8,"dynamic_batching":{{}},{input}}}"#)).unwrap();
        for part in [r#""name":"m""#, r#""max_batch_size":8"#, r#""string_value":"1""#, r#""name":"x""#] {
            assert!(merged.contains(part), "{part} {merged}");
        }
        assert_eq!(completed(&merged, merged.as_bytes()), Ok(merged.clone()), "once more changes nothing");
        assert!(set("{\"max_batch_size\":8}").unwrap_err().starts_with("Cannot update scheduling choice from 11 to 0"));
        assert!(set("{").unwrap_err().starts_with("what TRITONBACKEND_ModelSetConfig set: "));
    }

    #[test]
    fn preferred_groups_are_taken_where_there_are_none_and_those_for_gpus_where_there_are_gpus() {
        let group = |kind, count, gpus: &[u64]| PreferredInstances { kind, count, gpus: gpus.to_vec() };
        let preferred = [group(Some(InstanceKind::Gpu), 1, &[0]), group(Some(InstanceKind::Model), 3, &[])];
        let added = |devices: &[u32], given: usize| {
            let instance_group = vec![ModelInstanceGroup::default(); given];
            let mut config = ModelConfig { instance_group, ..ModelConfig::default() };
            let gpus = GpuSupport { devices: devices.to_vec(), ..GpuSupport::default() };
            add_preferred(&mut config, &preferred, &gpus).unwrap();
            config.instance_group.iter().map(|group| (group.kind(), group.count)).collect::<Vec<_>>()
        };
        assert_eq!(added(&[], 0), [(Kind::Model, 3)]);
        assert_eq!(added(&[0], 0), [(Kind::Gpu, 1), (Kind::Model, 3)]);
        assert_eq!(added(&[0], 1), [(Kind::Auto, 0)]);
        let mut config = ModelConfig::default();
        let too_many = [group(None, u64::MAX, &[])];
        assert!(add_preferred(&mut config, &too_many, &GpuSupport::default()).is_err());
    }
}
