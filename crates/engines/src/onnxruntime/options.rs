//! The options of ONNX Runtime in a model's configuration: the parameters of Triton's backend and the
//! field `optimization`, checked when the model is loaded and put into each session's options.
//!
//! Defaults: as many threads as the instance's worker has cores, which do not spin; all graph
//! optimisations; and memory patterns only if requests can differ in their rows only, since the
//! library stores a pattern for each shape that it ever ran and never drops one.

use std::path::Path;
use std::str::FromStr;

use ort::environment::Environment;
use ort::ep::{ArbitrarilyConfigurableExecutionProvider, CPU, ExecutionProvider, ExecutionProviderDispatch};
use ort::ep::{OneDNN, OpenVINO, XNNPACK};
use ort::logging::LogLevel;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions, Session};

use base::error::Error;
use model::{Accelerator, ModelSpec};

use super::cuda::GpuOptions;
use super::operator_library::{self, OperatorLibrary};

/// The options of a model's sessions.
#[derive(Debug)]
pub(super) struct SessionOptions {
    /// `intra_op_thread_count`; `None` for the number of the instance's worker.
    intra_threads: Option<usize>,
    /// `inter_op_thread_count`; `None` for the same number.
    inter_threads: Option<usize>,
    /// `execution_mode: 1`.
    is_parallel: bool,
    /// `optimization.graph.level`.
    level: OptimizationLevel,
    /// `enable_mem_arena`.
    has_arena: bool,
    /// `enable_mem_pattern`.
    has_pattern: bool,
    /// `memory.enable_memory_arena_shrinkage`: the devices, as in `cpu:0`.
    shrinkage: Option<String>,
    /// `session.*`, passed to the library as they are.
    entries: Vec<(String, String)>,
    /// `optimization.execution_accelerators`.
    accelerators: Vec<Accelerator>,
    /// `model_operations.op_library_filename`: the names and the paths.
    operator_libraries: Vec<OperatorLibrary>,
    /// The options of sessions on GPUs.
    pub(super) gpu: GpuOptions,
}

/// The degree to which the graph is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptimizationLevel {
    All,
    Basic,
    Extended,
    None,
}

impl SessionOptions {
    /// Reads them from a configuration. Libraries with operators may be in the `directory` of the version.
    ///
    /// # Errors
    ///
    /// Invalid or unsupported if a value is malformed or this library or server lacks a requested
    /// feature.
    pub(super) fn new(spec: &ModelSpec, directory: &Path) -> Result<Self, Error> {
        let mut accelerators = Vec::new();
        for accelerator in &spec.optimization.cpu_accelerators {
            // The server has warned of one that is missing, or refused the model.
            if is_available(spec, accelerator)? {
                accelerators.push(accelerator.clone());
            }
        }
        let is_session = |(key, _): &(&String, &String)| key.starts_with("session.");
        let entries = spec.parameters.iter().filter(is_session);
        Ok(Self {
            intra_threads: threads(spec, "intra_op_thread_count")?,
            inter_threads: threads(spec, "inter_op_thread_count")?,
            is_parallel: switch(spec, "execution_mode")?.unwrap_or(false),
            level: level(spec)?,
            has_arena: switch(spec, "enable_mem_arena")?.unwrap_or(true),
            has_pattern: switch(spec, "enable_mem_pattern")?.unwrap_or_else(|| has_fixed_shapes(spec)),
            shrinkage: spec.parameters.get("memory.enable_memory_arena_shrinkage").cloned(),
            entries: entries.map(|(key, value)| (key.clone(), value.clone())).collect(),
            accelerators,
            operator_libraries: operator_library::find_all(spec, directory)?,
            gpu: GpuOptions::new(spec)?,
        })
    }

    /// Returns true if a run stays on the calling thread, given an instance with one thread.
    pub(super) fn is_single_threaded(&self) -> bool {
        self.intra_threads.unwrap_or(1) == 1 && !self.is_parallel && self.accelerators.is_empty()
    }

    /// Returns true if the configuration sets the number of threads, so that a session fits any
    /// instance.
    pub(super) const fn fixes_threads(&self) -> bool {
        self.intra_threads.is_some() && (self.inter_threads.is_some() || !self.is_parallel)
    }

    /// A builder for a session of an instance whose worker has this many threads. Operators that the
    /// providers support run there, by the first that does; the others on the accelerators or the CPU.
    ///
    /// # Errors
    ///
    /// The library's error.
    pub(super) fn builder(
        &self,
        environment: &Environment,
        threads: usize,
        mut providers: Vec<ExecutionProviderDispatch>,
    ) -> ort::Result<SessionBuilder> {
        let level = match self.level {
            // Not `Level3`, which releases before 1.22 do not know.
            OptimizationLevel::All => GraphOptimizationLevel::All,
            OptimizationLevel::Basic => GraphOptimizationLevel::Level1,
            OptimizationLevel::Extended => GraphOptimizationLevel::Level2,
            OptimizationLevel::None => GraphOptimizationLevel::Disable,
        };
        let mut builder = Session::builder(environment)?
            .with_log_level(LogLevel::Fatal)?
            .with_intra_threads(self.intra_threads.unwrap_or(threads))?
            .with_inter_threads(self.inter_threads.unwrap_or(threads))?
            .with_parallel_execution(self.is_parallel)?
            .with_optimization_level(level)?
            .with_memory_pattern(self.has_pattern && !self.is_parallel)?
            .with_intra_op_spinning(false)?
            .with_inter_op_spinning(false)?;
        for (key, value) in &self.entries {
            builder = builder.with_config_entry(key, value)?;
        }
        for library in &self.operator_libraries {
            builder = library.register(builder)?;
        }
        providers.extend(self.accelerators.iter().filter_map(provider_of));
        providers.push(CPU::default().with_arena_allocator(self.has_arena).build().error_on_failure());
        Ok(builder.with_execution_providers(providers)?)
    }

    /// The options of a run that computes these outputs, in this order.
    ///
    /// # Errors
    ///
    /// The library's error.
    pub(super) fn run_options<'a>(
        &self,
        outputs: impl Iterator<Item = &'a str>,
    ) -> ort::Result<RunOptions<HasSelectedOutputs>> {
        let mut options = RunOptions::new()?;
        if let Some(devices) = &self.shrinkage {
            options.set("memory.enable_memory_arena_shrinkage", devices)?;
        }
        Ok(options.with_outputs(outputs.fold(OutputSelector::no_default(), OutputSelector::with)))
    }
}

/// Triton's numbers: -1 is basic, 1 extended, 2 none, and 0, the default, all.
fn level(spec: &ModelSpec) -> Result<OptimizationLevel, Error> {
    match spec.optimization.graph_level {
        0 => Ok(OptimizationLevel::All),
        -1 => Ok(OptimizationLevel::Basic),
        1 => Ok(OptimizationLevel::Extended),
        2 => Ok(OptimizationLevel::None),
        other => Err(Error::invalid(format!(
            "'optimization.graph.level' of model '{}' is {other}, expected -1 (basic), 1 (extended) or 2 (none)",
            spec.name
        ))),
    }
}

fn has_fixed_shapes(spec: &ModelSpec) -> bool {
    spec.inputs.iter().all(|input| input.dims.iter().all(|size| *size >= 0))
}

/// 0 means the default, as in Triton.
fn threads(spec: &ModelSpec, key: &str) -> Result<Option<usize>, Error> {
    let count: Option<u16> = parameter(spec, key, "a whole number")?;
    Ok(count.map(usize::from).filter(|count| *count > 0))
}

fn switch(spec: &ModelSpec, key: &str) -> Result<Option<bool>, Error> {
    match parameter::<u8>(spec, key, "0 or 1")? {
        None => Ok(None),
        Some(0) => Ok(Some(false)),
        Some(1) => Ok(Some(true)),
        Some(_) => Err(unexpected(spec, key, "0 or 1")),
    }
}

fn parameter<T: FromStr>(spec: &ModelSpec, key: &str, expected: &str) -> Result<Option<T>, Error> {
    let Some(text) = spec.parameters.get(key) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| unexpected(spec, key, expected))
}

fn unexpected(spec: &ModelSpec, key: &str, expected: &str) -> Error {
    let text = spec.parameters.get(key).map_or("", String::as_str);
    Error::invalid(format!("parameter '{key}' of model '{}' is '{text}', expected {expected}", spec.name))
}

/// Returns the names of the accelerators that this library lacks; one that is not known at all fails the load later.
pub(super) fn missing_accelerators(spec: &ModelSpec) -> Vec<&str> {
    let accelerators = spec.optimization.cpu_accelerators.iter();
    let is_missing =
        |accelerator: &&Accelerator| is_available(spec, accelerator).is_ok_and(|is_available| !is_available);
    accelerators.filter(is_missing).map(|accelerator| accelerator.name.as_str()).collect()
}

/// Returns true if the library has an accelerator. The library must be open.
fn is_available(spec: &ModelSpec, accelerator: &Accelerator) -> Result<bool, Error> {
    let is_available = match accelerator.name.as_str() {
        "dnnl" => OneDNN::is_available(),
        "openvino" => OpenVINO::is_available(),
        "xnnpack" => XNNPACK::is_available(),
        name => {
            return Err(Error::invalid(format!(
                "cpu_execution_accelerator '{name}' of model '{}' is not known; there are 'dnnl', 'openvino' and \
                 'xnnpack'",
                spec.name
            )));
        }
    };
    Ok(is_available.unwrap_or(false))
}

fn provider_of(accelerator: &Accelerator) -> Option<ExecutionProviderDispatch> {
    let provider = match accelerator.name.as_str() {
        "dnnl" => OneDNN::default().with_arena_allocator(true).build(),
        "openvino" => configured(OpenVINO::default(), accelerator).build(),
        "xnnpack" => configured(XNNPACK::default(), accelerator).build(),
        _ => return None,
    };
    Some(provider.error_on_failure())
}

fn configured<P: ArbitrarilyConfigurableExecutionProvider>(provider: P, accelerator: &Accelerator) -> P {
    let parameters = accelerator.parameters.iter();
    parameters.fold(provider, |provider, (key, value)| provider.with_arbitrary_config(key, value))
}
