//! ONNX Runtime's CUDA provider: the check that the library has it and can load it, its options,
//! and the meaning of a failed run for the device. Its sessions run in the primary context of their
//! device, since CUDA's runtime API uses no other.
//!
//! CUDA graphs are not used. A graph is replayed at fixed addresses, so inputs would have to be
//! bound on the device; but some must be on the host, and the oldest interface used here does not
//! name those.

use ort::environment::Environment;
use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider, ExecutionProvider, ExecutionProviderDispatch};
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;

use backend::gpu::OpenDevice;
use backend::gpu::driver::{DriverError, GpuFault, GpuStream};
use base::error::Error;
use model::{Accelerator, ModelSpec};

use super::tensorrt::{self, TensorrtOptions};

/// The accelerator's name in a configuration.
const NAME: &str = "cuda";

/// Options that only this server sets: a model that sets one is refused.
const RESERVED: &[&str] = &[
    "default_memory_arena_cfg",
    "device_id",
    "enable_cuda_graph",
    "gpu_external_alloc",
    "gpu_external_empty_cache",
    "gpu_external_free",
    "has_user_compute_stream",
    "user_compute_stream",
];

/// Model parameters that are also options of the provider, as in Triton's backend, which had them
/// before it had the accelerator `cuda`; each with the names of its numeric values, if it has such
/// names.
const PARAMETERS: &[(&str, &[&str])] = &[
    ("arena_extend_strategy", &["kNextPowerOfTwo", "kSameAsRequested"]),
    ("cudnn_conv_algo_search", &["EXHAUSTIVE", "HEURISTIC", "DEFAULT"]),
    ("do_copy_in_default_stream", &[]),
    ("gpu_mem_limit", &[]),
];

/// The place where the sessions of GPU instances compute. Tests replace CUDA by the CPU here, and
/// only here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionDevice {
    Cuda,
    /// The host: the devices of the fake driver have host memory.
    #[cfg(test)]
    Host,
}

impl SessionDevice {
    /// The first providers of a session on a GPU; operators that they lack fall back to the CPU. `None` has
    /// the library make its own stream.
    pub(super) fn providers(
        self,
        options: &GpuOptions,
        on: &OpenDevice,
        stream: Option<GpuStream>,
    ) -> Vec<ExecutionProviderDispatch> {
        match self {
            Self::Cuda => {
                let tensorrt = options.tensorrt.as_ref().map(|tensorrt| tensorrt.provider(on));
                tensorrt.into_iter().chain([options.cuda.provider(on, stream)]).collect()
            }
            #[cfg(test)]
            Self::Host => vec![ep::CPU::default().build().error_on_failure()],
        }
    }

    /// The library's description of a GPU's memory.
    ///
    /// # Errors
    ///
    /// The library's error.
    pub(super) fn memory(self, index: u32) -> ort::Result<MemoryInfo<'static>> {
        let index = i32::try_from(index).unwrap_or(i32::MAX);
        match self {
            Self::Cuda => MemoryInfo::new(AllocationDevice::CUDA, index, AllocatorType::Device, MemoryType::Default),
            #[cfg(test)]
            Self::Host => MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Device, MemoryType::Default),
        }
    }
}

/// The reason why no session can be on a GPU: the library was built without the provider, or
/// libraries that the provider needs are not installed. `None` if one can.
pub(super) fn why_absent(environment: &Environment, name: &str) -> Option<String> {
    let (is_built_in, provider) = (ep::CUDA::is_available(), ep::CUDA::default().build());
    why_no_provider(environment, name, "CUDA", "CUDA and cuDNN", is_built_in, provider)
}

/// The same for the accelerator `tensorrt`.
pub(super) fn why_no_tensorrt(environment: &Environment, name: &str) -> Option<String> {
    let (is_built_in, provider) = (ep::TensorRT::is_available(), ep::TensorRT::default().build());
    why_no_provider(environment, name, "TensorRT", "TensorRT", is_built_in, provider)
}

fn why_no_provider(
    environment: &Environment,
    name: &str,
    kind: &str,
    libraries: &str,
    is_built_in: ort::Result<bool>,
    provider: ExecutionProviderDispatch,
) -> Option<String> {
    if !is_built_in.unwrap_or(false) {
        return Some(format!("{name} was built without the {kind} provider (the wheel 'onnxruntime-gpu' has it)"));
    }
    let append = || {
        let providers = [provider.error_on_failure()];
        Session::builder(environment)?.with_execution_providers(providers).map(drop).map_err(ort::Error::from)
    };
    append().err().map(|error: ort::Error| {
        let text = brief(error.message());
        let advice = format!("LD_LIBRARY_PATH says where the libraries of {libraries} are");
        format!("{name} has the {kind} provider, which cannot be loaded: {text} ({advice})")
    })
}

/// The options of sessions on GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GpuOptions {
    cuda: CudaOptions,
    /// The options of TensorRT, if the model has the accelerator `tensorrt`.
    pub(super) tensorrt: Option<TensorrtOptions>,
}

impl GpuOptions {
    /// Reads them from a configuration. If no instance is on a GPU, its accelerators have no
    /// effect, as in Triton.
    ///
    /// # Errors
    ///
    /// If it names another accelerator, or a parameter is not known or has a malformed value.
    pub(super) fn new(spec: &ModelSpec) -> Result<Self, Error> {
        let accelerators = &spec.optimization.gpu_accelerators;
        let cuda = CudaOptions::new(spec)?;
        let named = accelerators.iter().find(|accelerator| accelerator.name == tensorrt::NAME && spec.is_on_gpu());
        Ok(Self { cuda, tensorrt: named.map(|named| TensorrtOptions::new(spec, named)).transpose()? })
    }
}

/// The provider's options in a model's configuration, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CudaOptions(Vec<(String, String)>);

impl CudaOptions {
    /// Reads them from a configuration.
    ///
    /// # Errors
    ///
    /// If it names another accelerator, sets a reserved option or has a malformed value.
    pub(super) fn new(spec: &ModelSpec) -> Result<Self, Error> {
        let mut options = Vec::new();
        for accelerator in spec.optimization.gpu_accelerators.iter().filter(|_| spec.is_on_gpu()) {
            read_accelerator(spec, accelerator, &mut options)?;
        }
        for (key, names) in PARAMETERS {
            let Some(text) = spec.parameters.get(*key) else { continue };
            let value = match text.parse::<usize>().ok().and_then(|number| names.get(number)) {
                Some(name) => (*name).to_owned(),
                None if names.is_empty() => text.clone(),
                None => {
                    let of = format!("parameter '{key}' of model '{}'", spec.name);
                    let most = names.len().saturating_sub(1);
                    return Err(Error::invalid(format!("{of} is '{text}', expected a number from 0 to {most}")));
                }
            };
            options.retain(|(have, _)| have != key);
            options.push(((*key).to_owned(), value));
        }
        // Checked here: the library's own error would name another number.
        let is_unread = |(key, value): &&(String, String)| key == "gpu_mem_limit" && value.parse::<usize>().is_err();
        if let Some((key, value)) = options.iter().find(is_unread) {
            let of = format!("'{key}' of model '{}'", spec.name);
            return Err(Error::invalid(format!("{of} is '{value}', expected a number of bytes")));
        }
        Ok(Self(options))
    }

    fn provider(&self, on: &OpenDevice, stream: Option<GpuStream>) -> ExecutionProviderDispatch {
        let mut provider = ep::CUDA::default().with_arbitrary_config("device_id", on.context().device().index);
        // A session's arena may take up to the server's limit on the device; a configuration can
        // lower it.
        let limit = on.device_account().limit();
        if limit < usize::MAX {
            provider = provider.with_memory_limit(limit);
        }
        for (key, value) in &self.0 {
            let configured = if key == "gpu_mem_limit" { value.parse::<usize>().ok() } else { None };
            provider = match configured {
                Some(size) => provider.with_memory_limit(size.min(limit)),
                None => provider.with_arbitrary_config(key, value),
            };
        }
        if let Some(stream) = stream {
            provider = provider.with_arbitrary_config("has_user_compute_stream", 1);
            provider = provider.with_arbitrary_config("user_compute_stream", stream.as_raw());
        }
        provider.build().error_on_failure()
    }
}

fn read_accelerator(
    spec: &ModelSpec,
    accelerator: &Accelerator,
    options: &mut Vec<(String, String)>,
) -> Result<(), Error> {
    let of = format!("gpu_execution_accelerator '{}' of model '{}'", accelerator.name, spec.name);
    match accelerator.name.as_str() {
        NAME => {}
        tensorrt::NAME => return Ok(()),
        _ => return Err(Error::invalid(format!("{of} is not known; there are '{NAME}' and '{}'", tensorrt::NAME))),
    }
    for (key, value) in &accelerator.parameters {
        let is_off = key == "enable_cuda_graph" && matches!(value.as_str(), "0" | "false" | "False");
        if RESERVED.contains(&key.as_str()) && !is_off {
            return Err(Error::unsupported(format!("parameter '{key}' of {of} is this server's own; remove it")));
        }
        options.push((key.clone(), value.clone()));
    }
    Ok(())
}

/// The device failure behind an error of the library: by the CUDA error number in its text, or else by asking
/// the driver whether the context still works.
pub(super) fn failure(text: &str, opened: &OpenDevice) -> DriverError {
    let error = read_failure(text);
    match error.fault {
        GpuFault::Transient => match opened.context().free_memory() {
            Err(found) if found.is_sticky() => {
                DriverError { fault: GpuFault::Sticky, text: format!("{} ({})", error.text, found.text) }
            }
            _ => error,
        },
        GpuFault::Memory | GpuFault::Sticky => error,
    }
}

/// The part of the library's error text that names the failure: without the source files and
/// functions before it, and the source files and the host's name after it.
pub(super) fn brief(text: &str) -> &str {
    let begin = MARKS.iter().filter_map(|mark| text.rfind(mark)).max();
    let text = begin.and_then(|begin| text.get(begin..)).unwrap_or(text);
    let text = text.split(" ; GPU=").next().unwrap_or(text);
    let text = text.rsplit_once("FAIL : ").map_or(text, |(_, text)| text);
    text.trim().lines().next().unwrap_or_default()
}

/// The prefixes of an error of CUDA or of one of its libraries in the library's texts.
const MARKS: &[&str] =
    &["CUDA failure ", "CUBLAS failure ", "CUDNN failure ", "CUDNN_FE failure ", "CUFFT failure ", "CURAND failure "];

fn read_failure(text: &str) -> DriverError {
    let short = if MARKS.iter().any(|mark| text.contains(mark)) { brief(text) } else { text.trim() };
    let number = text.split_once("CUDA failure ").map_or("", |(_, rest)| rest);
    let number: String = number.chars().take_while(char::is_ascii_digit).collect();
    if let Ok(code) = number.parse() {
        return DriverError::told(code, short);
    }
    let is_memory = ["Failed to allocate memory", "out of memory", "STATUS_ALLOC_FAILED"];
    if is_memory.iter().any(|part| text.contains(part)) {
        return DriverError { fault: GpuFault::Memory, text: short.to_owned() };
    }
    DriverError::transient(short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::gpu::fake::Fake;
    use backend::trial;

    fn spec(accelerators: &[(&str, &[(&str, &str)])], parameters: &[(&str, &str)]) -> ModelSpec {
        let pairs =
            |list: &[(&str, &str)]| list.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let mut spec = trial::spec(4, &[], &[]);
        let accelerator = |(name, parameters): &(&str, &[(&str, &str)])| Accelerator {
            name: name.to_string(),
            parameters: pairs(parameters),
        };
        spec.optimization.gpu_accelerators = accelerators.iter().map(accelerator).collect();
        spec.parameters = pairs(parameters);
        spec.instance_groups = vec![model::InstanceGroup {
            name: "m_0".to_owned(),
            kind: model::InstanceKind::Gpu,
            count: 1,
            gpus: vec![0],
            is_passive: false,
            profiles: Vec::new(),
            host_policy: String::new(),
            rate: Default::default(),
        }];
        spec
    }

    #[test]
    fn options_are_those_of_tritons_backend_and_what_is_ours_or_another_accelerator_is_refused() {
        let options = |spec: &ModelSpec| CudaOptions::new(spec).map(|options| options.0);
        let own = |list: &[(&str, &str)]| -> Result<Vec<(String, String)>, Error> {
            Ok(list.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
        };
        assert_eq!(options(&spec(&[], &[("placement", "worker")])), own(&[]));
        let parameters = [("arena_extend_strategy", "1"), ("cudnn_conv_algo_search", "2"), ("gpu_mem_limit", "4096")];
        let want = [
            ("arena_extend_strategy", "kSameAsRequested"),
            ("cudnn_conv_algo_search", "DEFAULT"),
            ("gpu_mem_limit", "4096"),
        ];
        assert_eq!(options(&spec(&[], &parameters)), own(&want));
        let cuda: &[(&str, &str)] = &[("gpu_mem_limit", "1"), ("use_tf32", "0")];
        let got = options(&spec(&[("cuda", cuda)], &[("gpu_mem_limit", "2")]));
        assert_eq!(got, own(&[("use_tf32", "0"), ("gpu_mem_limit", "2")]), "a parameter goes before the accelerator's");
        let refusal = |spec: &ModelSpec| options(spec).unwrap_err().text().to_owned();
        let of = |key: &str| {
            format!(
                "parameter '{key}' of gpu_execution_accelerator 'cuda' of model 'm' is this server's own; remove it"
            )
        };
        for key in ["device_id", "user_compute_stream", "enable_cuda_graph"] {
            assert_eq!(refusal(&spec(&[("cuda", &[(key, "1")])], &[])), of(key));
        }
        let unknown = "gpu_execution_accelerator 'gpu_io' of model 'm' is not known; there are 'cuda' and 'tensorrt'";
        assert_eq!(refusal(&spec(&[("gpu_io", &[])], &[])), unknown);
        let text = "parameter 'cudnn_conv_algo_search' of model 'm' is '3', expected a number from 0 to 2";
        assert_eq!(refusal(&spec(&[], &[("cudnn_conv_algo_search", "3")])), text);
        let text = "'gpu_mem_limit' of model 'm' is '2 GB', expected a number of bytes";
        assert_eq!(refusal(&spec(&[("cuda", &[("gpu_mem_limit", "2 GB")])], &[])), text);
    }

    #[test]
    fn tensorrt_comes_before_cuda_and_has_no_effect_where_no_instance_is_on_a_gpu() {
        let both: &[(&str, &[(&str, &str)])] =
            &[("tensorrt", &[("precision_mode", "FP8")]), ("cuda", &[("use_tf32", "0")])];
        let mut spec = spec(both, &[]);
        let error = GpuOptions::new(&spec).unwrap_err();
        assert!(error.text().ends_with("is 'FP8', expected FP32, FP16 or INT8"), "{}", error.text());
        spec.optimization.gpu_accelerators[0].parameters.insert("precision_mode".to_owned(), "FP16".to_owned());
        let options = GpuOptions::new(&spec).unwrap();
        assert_eq!(options.cuda, CudaOptions(vec![("use_tf32".to_owned(), "0".to_owned())]));
        assert!(options.tensorrt.is_some());
        spec.instance_groups[0].gpus.clear();
        assert_eq!(GpuOptions::new(&spec), Ok(GpuOptions::default()));
    }

    #[test]
    fn a_failure_is_known_by_cudas_number_or_by_what_the_driver_says_afterwards() {
        let fake = Fake::new(1);
        let opened = fake.gpu(1 << 20, 1 << 20).open_primary().unwrap();
        let fault = |text: &str| failure(text, &opened).fault;
        let line = |number: u32, name: &str| {
            format!(
                "onnx runtime error 1: /a/cuda_call.cc:154 std::conditional_t<THRW, void, S> onnxruntime::CudaCall(E, const char*) [with ERRTYPE = cudaError] CUDA failure {number}: {name} ; GPU=0 ; hostname=h ; file=/a/b.cc ; line=1 ; expr=f(x); "
            )
        };
        assert_eq!(fault(&line(700, "an illegal memory access was encountered")), GpuFault::Sticky);
        assert_eq!(fault(&line(719, "unspecified launch failure")), GpuFault::Sticky);
        assert_eq!(fault(&line(2, "out of memory")), GpuFault::Memory);
        assert_eq!(fault(&line(1, "invalid argument")), GpuFault::Transient);
        assert_eq!(
            fault("onnx runtime error 6: /a/bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 9"),
            GpuFault::Memory
        );
        assert_eq!(fault("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0"), GpuFault::Memory);
        assert_eq!(fault("onnx runtime error 2: Got invalid dimensions for input: x"), GpuFault::Transient);
        let text = failure(&line(700, "an illegal memory access was encountered"), &opened).text;
        assert_eq!(text, "CUDA failure 700: an illegal memory access was encountered");
        let broken = "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0";
        assert_eq!(fault(broken), GpuFault::Transient, "the device works on");
        fake.break_contexts();
        assert_eq!(fault(broken), GpuFault::Sticky);
    }
}
