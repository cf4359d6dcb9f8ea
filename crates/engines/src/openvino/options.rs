//! The parameters of Triton's backend in a model's configuration, checked when the model is loaded, and the properties
//! that a model is compiled with. Values are read in any case, as there.

use base::error::Error;
use model::ModelSpec;

/// The parameter that takes what 32 bits give.
pub(super) const NARROW: &str = "NARROW_DATATYPES";

/// The options of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenvinoOptions {
    /// `TARGET_DEVICE`.
    pub(super) device: String,
    /// `HINT_BF16`: compute in BF16 if the CPU has it. Without an option the library does so by
    /// default, which Triton allows.
    is_bf16: bool,
    /// `PERFORMANCE_HINT`.
    hint: Option<&'static str>,
    /// `INFERENCE_NUM_THREADS`.
    threads: Option<u32>,
    /// `COMPILATION_NUM_THREADS`.
    compile_threads: Option<u32>,
    /// `NUM_STREAMS`.
    streams: Option<String>,
    /// `SKIP_OV_DYNAMIC_BATCHSIZE`: leave the model's first dimension as it is.
    pub(super) keeps_batch_size: bool,
    /// `ENABLE_BATCH_PADDING`: fill a batch up to the model's first dimension.
    pub(super) pads: bool,
    /// `RESHAPE_IO_LAYERS`: give the model's inputs the shapes of the configuration.
    pub(super) reshapes: bool,
    /// `NARROW_DATATYPES`, which Triton lacks: take what 32 bits give where the model asks for 64.
    pub(super) is_narrow: bool,
}

const HINTS: [&str; 3] = ["LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"];

impl OpenvinoOptions {
    /// Reads them. `extension` is the library with operators that the server's flag names.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid value, in Triton's words.
    pub(super) fn read(spec: &ModelSpec, extension: Option<&str>) -> Result<Self, Error> {
        let value = |keys: &[&'static str]| {
            let found = keys.iter().find_map(|key| Some((*key, spec.parameters.get(*key)?.trim())));
            found.filter(|(_, value)| !value.is_empty())
        };
        let refuse = |key: &str, expected: &str, value: &str| {
            let value = value.to_ascii_lowercase();
            Error::invalid(format!(
                "unable to load model '{}', expected the parameter '{key}' to be {expected}, got {value}",
                spec.name
            ))
        };
        let switch = |keys: &[&'static str]| match value(keys) {
            None => Ok(false),
            Some((_, value)) if value.eq_ignore_ascii_case("yes") => Ok(true),
            Some((_, value)) if value.eq_ignore_ascii_case("no") => Ok(false),
            Some((key, value)) => Err(refuse(key, "either YES or NO", value)),
        };
        let number = |keys: &[&'static str]| match value(keys) {
            None => Ok(None),
            Some((key, value)) => {
                value.parse::<u32>().map(Some).map_err(|_| refuse(key, "a non-negative number", value))
            }
        };
        if let Some((key, path)) = value(&["CPU_EXTENSION_PATH"]).filter(|(_, path)| extension != Some(*path)) {
            return Err(Error::invalid(format!(
                "unable to load model '{}', the parameter '{key}' names a library, '{path}', and one is opened only where \
                 the server's flag names the same: --backend-config=openvino,extension={path}",
                spec.name
            )));
        }
        let hint = match value(&["PERFORMANCE_HINT"]) {
            None => None,
            Some((key, value)) => {
                let known = HINTS.into_iter().find(|hint| hint.eq_ignore_ascii_case(value));
                Some(known.ok_or_else(|| refuse(key, "LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT", value))?)
            }
        };
        let streams = match value(&["NUM_STREAMS", "CPU_THROUGHPUT_STREAMS"]) {
            None => None,
            Some((_, value)) if ["auto", "numa"].iter().any(|known| value.eq_ignore_ascii_case(known)) => {
                Some(value.to_ascii_uppercase())
            }
            Some((_, value)) if value.parse::<u32>().is_ok() => Some(value.to_owned()),
            Some((key, value)) => return Err(refuse(key, "a non-negative number or AUTO/NUMA", value)),
        };
        Ok(Self {
            device: value(&["TARGET_DEVICE"]).map_or_else(|| CPU.to_owned(), |(_, device)| device.to_ascii_uppercase()),
            is_bf16: switch(&["HINT_BF16", "ENFORCE_BF16"])?,
            hint,
            threads: number(&["INFERENCE_NUM_THREADS", "CPU_THREADS_NUM"])?,
            compile_threads: number(&["COMPILATION_NUM_THREADS"])?,
            streams,
            keeps_batch_size: switch(&["SKIP_OV_DYNAMIC_BATCHSIZE"])?,
            pads: switch(&["ENABLE_BATCH_PADDING"])?,
            reshapes: switch(&["RESHAPE_IO_LAYERS"])?,
            is_narrow: switch(&[NARROW])?,
        })
    }

    /// The properties of a model with `instances` instances, whose workers have `threads` cores
    /// each. A stream for each instance, since requests of one stream wait for each other.
    pub(super) fn properties(&self, threads: usize, instances: usize) -> Vec<(&'static str, String)> {
        let mut properties = vec![("INFERENCE_PRECISION_HINT", if self.is_bf16 { "bf16" } else { "f32" }.to_owned())];
        if let Some(hint) = self.hint {
            properties.push(("PERFORMANCE_HINT", hint.to_owned()));
        }
        if let Some(count) = self.compile_threads {
            properties.push(("COMPILATION_NUM_THREADS", count.to_string()));
        }
        if self.device != CPU {
            return properties;
        }
        // The library would pin its threads to the first cores of the machine, not to the worker's.
        properties.push(("ENABLE_CPU_PINNING", "NO".to_owned()));
        let streams = self.streams.clone().or_else(|| self.hint.is_none().then(|| instances.max(1).to_string()));
        properties.extend(streams.map(|streams| ("NUM_STREAMS", streams)));
        let all = || u32::try_from(threads.max(1).saturating_mul(instances.max(1))).unwrap_or(u32::MAX);
        properties.push(("INFERENCE_NUM_THREADS", self.threads.unwrap_or_else(all).to_string()));
        properties
    }
}

/// The device of a model that names none, as in Triton.
const CPU: &str = "CPU";

#[cfg(test)]
mod tests {
    use super::*;
    use backend::trial::spec;

    fn read(parameters: &[(&str, &str)]) -> Result<OpenvinoOptions, String> {
        let mut spec = spec(0, &[], &[]);
        let owned = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        spec.parameters = owned.collect();
        OpenvinoOptions::read(&spec, Some("/own/lib.so")).map_err(|error| error.text().to_owned())
    }

    #[test]
    fn a_model_computes_in_fp32_on_its_workers_cores_unless_its_parameters_say_otherwise() {
        let properties = |parameters: &[(&str, &str)]| {
            let properties = read(parameters).unwrap().properties(2, 3);
            properties.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        };
        let rest = "ENABLE_CPU_PINNING=NO NUM_STREAMS=3 INFERENCE_NUM_THREADS=6";
        assert_eq!(properties(&[]), format!("INFERENCE_PRECISION_HINT=f32 {rest}"));
        assert_eq!(properties(&[("HINT_BF16", "yes")]), format!("INFERENCE_PRECISION_HINT=bf16 {rest}"));
        assert_eq!(
            properties(&[("PERFORMANCE_HINT", "throughput"), ("INFERENCE_NUM_THREADS", "4")]),
            "INFERENCE_PRECISION_HINT=f32 PERFORMANCE_HINT=THROUGHPUT ENABLE_CPU_PINNING=NO INFERENCE_NUM_THREADS=4"
        );
        assert_eq!(
            properties(&[("NUM_STREAMS", "auto"), ("COMPILATION_NUM_THREADS", "1")]),
            "INFERENCE_PRECISION_HINT=f32 COMPILATION_NUM_THREADS=1 ENABLE_CPU_PINNING=NO NUM_STREAMS=AUTO \
             INFERENCE_NUM_THREADS=6"
        );
        assert_eq!(properties(&[("TARGET_DEVICE", "gpu")]), "INFERENCE_PRECISION_HINT=f32");
    }

    #[test]
    fn a_value_that_is_none_is_refused_in_tritons_words() {
        let check = |key: &str, value: &str, expected: &str| {
            let want = format!("unable to load model 'm', expected the parameter '{key}' to be {expected}, got x");
            assert_eq!(read(&[(key, value)]).unwrap_err(), want);
        };
        check("PERFORMANCE_HINT", "X", "LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT");
        for key in ["HINT_BF16", "SKIP_OV_DYNAMIC_BATCHSIZE", "ENABLE_BATCH_PADDING", "RESHAPE_IO_LAYERS", NARROW] {
            check(key, "X", "either YES or NO");
        }
        for key in ["INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS"] {
            check(key, "x", "a non-negative number");
        }
        check("NUM_STREAMS", "x", "a non-negative number or AUTO/NUMA");
        assert!(read(&[("CPU_EXTENSION_PATH", "/own/lib.so")]).is_ok());
        let why = read(&[("CPU_EXTENSION_PATH", "/tmp/evil.so")]).unwrap_err();
        assert!(why.contains("--backend-config=openvino,extension=/tmp/evil.so"), "{why}");
    }
}
