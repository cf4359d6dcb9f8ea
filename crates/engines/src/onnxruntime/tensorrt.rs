//! TensorRT inside ONNX Runtime: the accelerator `tensorrt` of a model's instances on GPUs, with
//! the parameters of Triton's backend under the library's names. Operators that TensorRT lacks run
//! on the CUDA provider, and those that it lacks too on the CPU.
//!
//! CUDA graphs are not used, for the reason given in [`super::cuda`]; and it loads no plugins,
//! since they would be other people's code inside the server.

use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider, ExecutionProviderDispatch};

use backend::gpu::OpenDevice;
use base::error::Error;
use model::{Accelerator, ModelSpec};

/// The accelerator's name in a configuration.
pub(super) const NAME: &str = "tensorrt";

/// The kind of value that a parameter takes.
#[derive(Clone, Copy, Debug)]
enum ParameterKind {
    /// `0`, `1`, `false` or `true`.
    Switch,
    /// A whole number.
    Number,
    /// Anything.
    Text,
}

use ParameterKind::{Number, Switch, Text};

/// The parameters of Triton's backend whose name in the library is another.
const RENAMED: &[(&str, &str, ParameterKind)] = &[
    ("int8_calibration_table_name", "trt_int8_calibration_table_name", Text),
    ("int8_use_native_calibration_table", "trt_int8_use_native_calibration_table", Switch),
    ("max_workspace_size_bytes", "trt_max_workspace_size", Number),
];

/// Parameters with the library's name.
const SAME: &[(&str, ParameterKind)] = &[
    ("trt_auxiliary_streams", Number),
    ("trt_build_heuristics_enable", Switch),
    ("trt_builder_optimization_level", Number),
    ("trt_context_memory_sharing_enable", Switch),
    ("trt_detailed_build_log", Switch),
    ("trt_dla_core", Number),
    ("trt_dla_enable", Switch),
    ("trt_dump_ep_context_model", Switch),
    ("trt_dump_subgraphs", Switch),
    ("trt_engine_cache_enable", Switch),
    ("trt_engine_cache_path", Text),
    ("trt_engine_cache_prefix", Text),
    ("trt_ep_context_embed_mode", Number),
    ("trt_ep_context_file_path", Text),
    ("trt_force_sequential_engine_build", Switch),
    ("trt_force_timing_cache", Switch),
    ("trt_layer_norm_fp32_fallback", Switch),
    ("trt_max_partition_iterations", Number),
    ("trt_min_subgraph_size", Number),
    ("trt_profile_max_shapes", Text),
    ("trt_profile_min_shapes", Text),
    ("trt_profile_opt_shapes", Text),
    ("trt_sparsity_enable", Switch),
    ("trt_tactic_sources", Text),
    ("trt_timing_cache_enable", Switch),
    ("trt_timing_cache_path", Text),
];

/// Parameters of Triton's backend that are refused unless they are off, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("trt_cuda_graph_enable", "a graph is played again at fixed addresses, and inputs come at others"),
    ("trt_extra_plugin_lib_paths", "plugins are libraries that would run inside the server"),
];

/// The provider's options, checked, by the library's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TensorrtOptions(Vec<(&'static str, String)>);

impl TensorrtOptions {
    /// Reads them from a configuration.
    ///
    /// # Errors
    ///
    /// If a parameter is not known or has a malformed value, or asks for a feature that is not
    /// supported.
    pub(super) fn new(spec: &ModelSpec, accelerator: &Accelerator) -> Result<Self, Error> {
        let mut options = Vec::new();
        for (key, value) in &accelerator.parameters {
            let of = format!("parameter '{key}' of gpu_execution_accelerator '{NAME}' of model '{}'", spec.name);
            options.extend(option(&of, key, value)?);
        }
        Ok(Self(options))
    }

    /// The provider, before that of CUDA.
    pub(super) fn provider(&self, on: &OpenDevice) -> ExecutionProviderDispatch {
        let provider = ep::TensorRT::default().with_arbitrary_config("device_id", on.context().device().index);
        let provider =
            self.0.iter().fold(provider, |provider, (key, value)| provider.with_arbitrary_config(*key, value));
        provider.build().error_on_failure()
    }
}

/// The library's option for a parameter; `None` if it asks for the default.
fn option(of: &str, key: &str, value: &str) -> Result<Option<(&'static str, String)>, Error> {
    if key == "precision_mode" {
        return match value {
            "FP32" => Ok(None),
            "FP16" => Ok(Some(("trt_fp16_enable", "1".to_owned()))),
            "INT8" => Ok(Some(("trt_int8_enable", "1".to_owned()))),
            _ => Err(Error::invalid(format!("{of} is '{value}', expected FP32, FP16 or INT8"))),
        };
    }
    if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == key) {
        let is_off = value.is_empty() || switch(value) == Some(false);
        return if is_off { Ok(None) } else { Err(Error::unsupported(format!("{of} is refused: {why}; remove it"))) };
    }
    let renamed = RENAMED.iter().find(|(name, ..)| *name == key).map(|(_, name, kind)| (*name, *kind));
    let same = || SAME.iter().find(|(name, _)| *name == key).copied();
    let Some((name, kind)) = renamed.or_else(same) else {
        return Err(Error::invalid(format!("{of} is not known; remove it")));
    };
    let value = match kind {
        Text => value.to_owned(),
        Switch => match switch(value) {
            Some(is_on) => u8::from(is_on).to_string(),
            None => return Err(Error::invalid(format!("{of} is '{value}', expected 0, 1, false or true"))),
        },
        Number if value.parse::<i64>().is_ok() => value.to_owned(),
        Number => return Err(Error::invalid(format!("{of} is '{value}', expected a whole number"))),
    };
    Ok(Some((name, value)))
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ if value.eq_ignore_ascii_case("false") => Some(false),
        _ if value.eq_ignore_ascii_case("true") => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::trial;

    fn options(parameters: &[(&str, &str)]) -> Result<Vec<(&'static str, String)>, String> {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let accelerator = Accelerator { name: NAME.to_owned(), parameters };
        let options = TensorrtOptions::new(&trial::spec(4, &[], &[]), &accelerator);
        options.map(|options| options.0).map_err(|error| error.text().to_owned())
    }

    #[test]
    fn parameters_are_tritons_and_options_the_librarys() {
        let tables = SAME.iter().map(|(name, _)| *name);
        assert!(tables.is_sorted() && RENAMED.iter().map(|(name, ..)| *name).is_sorted());
        for (parameters, want) in [
            (&[][..], &[][..]),
            (&[("precision_mode", "FP32")], &[]),
            (&[("precision_mode", "FP16")], &[("trt_fp16_enable", "1")]),
            (&[("precision_mode", "INT8")], &[("trt_int8_enable", "1")]),
            (&[("max_workspace_size_bytes", "1073741824")], &[("trt_max_workspace_size", "1073741824")]),
            (&[("int8_use_native_calibration_table", "False")], &[("trt_int8_use_native_calibration_table", "0")]),
            (
                &[("trt_engine_cache_enable", "true"), ("trt_engine_cache_path", "/cache")],
                &[("trt_engine_cache_enable", "1"), ("trt_engine_cache_path", "/cache")],
            ),
            (&[("trt_auxiliary_streams", "-1")], &[("trt_auxiliary_streams", "-1")]),
            (&[("trt_cuda_graph_enable", "0"), ("trt_extra_plugin_lib_paths", "")], &[]),
        ] {
            let want: Vec<_> = want.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
            assert_eq!(options(parameters), Ok(want), "{parameters:?}");
        }
    }

    #[test]
    fn what_is_malformed_unknown_or_not_here_is_refused_by_name() {
        for (key, value, want) in [
            ("precision_mode", "FP8", "is 'FP8', expected FP32, FP16 or INT8"),
            ("max_workspace_size_bytes", "abc", "is 'abc', expected a whole number"),
            ("trt_sparsity_enable", "2", "is '2', expected 0, 1, false or true"),
            ("segment_size", "1", "is not known; remove it"),
            ("device_id", "1", "is not known; remove it"),
            (
                "trt_cuda_graph_enable",
                "1",
                "is refused: a graph is played again at fixed addresses, and inputs come at others; remove it",
            ),
            (
                "trt_extra_plugin_lib_paths",
                "a.so",
                "is refused: plugins are libraries that would run inside the server; remove it",
            ),
        ] {
            let want = format!("parameter '{key}' of gpu_execution_accelerator 'tensorrt' of model 'm' {want}");
            assert_eq!(options(&[(key, value)]), Err(want));
        }
    }
}
