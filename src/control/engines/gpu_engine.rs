//! The choice of models that run on GPUs, and of their engine. The devices are searched for when
//! the first model may use one, and the log says what was found. A model with a group of
//! `KIND_AUTO`, or without groups, runs on the GPUs if it can, else on the CPU with the reason in
//! the log. A model with a group of `KIND_GPU` that cannot run there is refused.
//!
//! The engine is the native plan if it has every operator of the model, else ONNX Runtime with its CUDA provider. A
//! model that names an engine or an accelerator gets that one or is refused.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backend::gpu::nvml::NvmlSample;
use crate::backend::gpu::{Gpu, Gpus, MemoryLimits, Nvml, cuda};
use crate::backend::{LoadedModel, threads};
use crate::control::engines::engine::{self, Engines};
use crate::control::engines::gpu_check;
use crate::control::machine::spawn::spawn;
use crate::engines::OnnxruntimeOnGpus;
use crate::engines::gpu::{GpuModel, GpuPlan};
use crate::error::Error;
use crate::log;
use crate::metrics::{GpuBoard, GpuCells};
use crate::model::ModelSpec;
use crate::model::config::GpuSupport;
use crate::settings::{Engine, GpuUse, Settings};

/// The GPUs of this machine. Shared by all load threads.
pub struct HostGpus {
    /// `--gpu`.
    usage: GpuUse,
    limits: MemoryLimits,
    /// `--gpu-run-secs-max`.
    run_max: Duration,
    /// Empty until the first search.
    gpus: OnceLock<Gpus>,
    board: Arc<GpuBoard>,
    /// `--metrics-interval-ms`; `None` with `--allow-gpu-metrics=false`.
    watch_interval: Option<Duration>,
}

impl HostGpus {
    /// GPUs that were not searched for yet.
    pub fn new(settings: &Settings) -> Self {
        let limits = MemoryLimits { device: settings.gpu_memory_bytes_max, pinned: settings.pinned_memory_bytes_max };
        let (usage, run_max) = (settings.gpu, settings.gpu_run_max);
        let metrics = &settings.metrics_config;
        let watch_interval = metrics.shows_gpus.then_some(metrics.interval);
        Self { usage, limits, run_max, gpus: OnceLock::new(), board: Arc::default(), watch_interval }
    }

    /// Checks that there is a GPU if one is required.
    ///
    /// # Errors
    /// `Unavailable` with the reason that no GPU was found.
    pub fn check_required(&self) -> Result<(), Error> {
        if self.usage == GpuUse::Require && self.gpus().all().is_empty() {
            let why = self.gpus().why_absent().unwrap_or("there is no GPU");
            return Err(Error::unavailable(format!("--gpu=require: {why}")));
        }
        Ok(())
    }

    /// These devices, without metrics.
    #[cfg(test)]
    pub fn of(gpus: Gpus) -> Self {
        let limits = MemoryLimits { device: 0, pinned: 0 };
        let (run_max, gpus) = (gpus.run_max(), OnceLock::from(gpus));
        Self { usage: GpuUse::Auto, limits, run_max, gpus, board: Arc::default(), watch_interval: None }
    }

    /// Returns the devices. The first call searches for them and starts the metrics thread.
    pub fn gpus(&self) -> &Gpus {
        self.gpus.get_or_init(|| {
            let gpus = match self.usage {
                GpuUse::Off => Gpus::absent("GPUs are switched off by --gpu=off"),
                GpuUse::Auto | GpuUse::Require => find(self.limits),
            };
            let gpus = gpus.with_run_max(self.run_max);
            if let Some(interval) = self.watch_interval.filter(|_| !gpus.all().is_empty()) {
                watch(&gpus, &self.board, interval);
            }
            gpus
        })
    }

    /// Returns the bytes of pinned memory in use; 0 before the devices are searched for.
    pub fn pinned_used(&self) -> usize {
        // All devices have one account.
        let gpu = self.gpus.get().and_then(|gpus| gpus.all().first());
        gpu.map_or(0, |gpu| gpu.pinned_account().used())
    }

    /// Returns the metrics of the devices.
    pub const fn board(&self) -> &Arc<GpuBoard> {
        &self.board
    }

    /// Returns the facts of the devices that the configuration of a model needs. `takes_auto`: true
    /// if `KIND_AUTO` means GPU.
    pub fn support(&self, takes_auto: bool) -> GpuSupport {
        let gpus = self.gpus();
        let devices = gpus.all().iter().map(|gpu| gpu.properties().index).collect();
        let why_absent = gpus.why_absent().unwrap_or_default().to_owned();
        GpuSupport { devices, why_absent, takes_auto, is_for_library: false }
    }

    /// Returns true if no GPU is used.
    pub const fn is_off(&self) -> bool {
        matches!(self.usage, GpuUse::Off)
    }

    /// Chooses the engine for the instances of a model on GPUs. A plan must compute the same as the model that `on_cpu`
    /// loads.
    ///
    /// # Errors
    /// `Unsupported` with the reasons of every engine that was tried; `InvalidArgument` for an unknown engine name.
    pub fn choose<'a>(
        &self,
        spec: &Arc<ModelSpec>,
        file: &[u8],
        engines: &'a Engines,
        on_cpu: impl FnOnce() -> Result<Box<dyn LoadedModel>, Error> + Send,
    ) -> Result<GpuEngine<'a>, Error> {
        let by_engine = || engines.on_gpus(spec, self.gpus()).map(GpuEngine::Onnxruntime);
        match engine::named_engine(spec)? {
            Some(Engine::Embedded) => {
                return Err(Error::unsupported("its parameter 'engine' is 'embedded', which runs on the CPU"));
            }
            Some(Engine::Onnxruntime) => return by_engine().map_err(Error::unsupported),
            None => {}
        }
        if let Some(accelerator) = spec.optimization.gpu_accelerators.first() {
            let of = format!("gpu_execution_accelerator '{}' is ONNX Runtime's: ", accelerator.name);
            return by_engine().map_err(|why| Error::unsupported(of + &why));
        }
        let why = match self.plan(spec, file, on_cpu) {
            Ok(plan) => return Ok(GpuEngine::Plan(plan)),
            Err(why) => why,
        };
        by_engine().map_err(|engine| Error::unsupported(format!("the GPU's plan: {why}; ONNX Runtime: {engine}")))
    }

    /// Makes the native plan of a model, and one instance of it on each GPU for the check.
    fn plan(
        &self,
        spec: &Arc<ModelSpec>,
        file: &[u8],
        on_cpu: impl FnOnce() -> Result<Box<dyn LoadedModel>, Error> + Send,
    ) -> Result<Arc<GpuPlan>, Error> {
        let plan = Arc::new(GpuPlan::new(file, spec)?);
        let trial = GpuModel::new(spec, Arc::clone(&plan) as _, self.gpus(), None);
        let mut gpus: Vec<u32> = spec.instance_groups.iter().flat_map(|group| group.gpus.clone()).collect();
        gpus.sort_unstable();
        gpus.dedup();
        // All instances are made before the check: a GPU without room for one is reported before
        // the CPU computes, which can take long.
        let mut instances = Vec::with_capacity(gpus.len());
        for gpu in gpus {
            instances.push((gpu, threads::enter(1, |threads| trial.new_instance(&threads.on(Some(gpu))))?));
        }
        gpu_check::check(spec, instances, on_cpu)?;
        Ok(plan)
    }
}

/// The engine of a model's instances on GPUs.
pub enum GpuEngine<'a> {
    /// Sessions of ONNX Runtime.
    Onnxruntime(OnnxruntimeOnGpus<'a>),
    /// The native plan.
    Plan(Arc<GpuPlan>),
}

fn find(limits: MemoryLimits) -> Gpus {
    match cuda::find() {
        Ok(driver) => {
            let gpus = Gpus::of_driver(&driver, limits);
            for gpu in gpus.all() {
                let found = gpu.properties();
                let ((major, minor), mebibytes) = (found.capability, found.memory >> 20);
                let name = &found.name;
                log::info(&format!("GPU {}: {name}, compute capability {major}.{minor}, {mebibytes} MiB", found.index));
            }
            gpus
        }
        Err(why) => {
            log::info(&format!("no GPU is used, models run on the CPU: {why}"));
            Gpus::absent(why)
        }
    }
}

/// Starts the thread that samples the devices for `/metrics`. It ends when the board has been dropped.
fn watch(gpus: &Gpus, board: &Arc<GpuBoard>, interval: Duration) {
    let cells = |gpu: &Arc<Gpu>| GpuCells { uuid: gpu.properties().uuid.clone(), ..GpuCells::default() };
    // Cannot fail: this is called once, from a `OnceLock`.
    let _ = board.set(gpus.all().iter().map(cells).collect());
    let nvml = Nvml::find().inspect_err(|why| log::info(&format!("/metrics has no rows of NVML: {why}"))).ok();
    let (gpus, board) = (gpus.clone(), Arc::downgrade(board));
    let started = spawn("gpu-watch".to_owned(), move || {
        let handles: Vec<_> =
            gpus.all().iter().map(|gpu| nvml.as_ref().and_then(|nvml| nvml.device(&gpu.properties().uuid))).collect();
        while let Some(board) = board.upgrade() {
            for ((gpu, cells), handle) in gpus.all().iter().zip(board.get().into_iter().flatten()).zip(&handles) {
                let known = nvml.as_ref().zip(*handle).map(|(nvml, handle)| nvml.sample(handle));
                write_sample(cells, known.unwrap_or_default(), gpu.account().used());
            }
            drop(board);
            std::thread::park_timeout(interval);
        }
    });
    if let Err(error) = started {
        log::warning(&format!("/metrics has no rows of GPUs: {error}"));
    }
}

fn write_sample(cells: &GpuCells, sample: NvmlSample, taken: usize) {
    cells.utilization.set(sample.utilization);
    cells.memory_total.set(sample.memory_total);
    cells.memory_used.set(sample.memory_used);
    cells.memory_taken.set(u64::try_from(taken).ok());
    cells.power_usage.set(sample.power_usage);
    cells.power_limit.set(sample.power_limit);
    cells.energy.set(sample.energy);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::backend::Backend;
    use crate::backend::gpu::fake::Fake;
    use crate::engines::Rten;
    use crate::model::config::{CompletionRules, ConfigDraft};
    use crate::model::onnx::OnnxSignature;
    use crate::settings::OnnxruntimeConfig;

    const DIGITS: &[u8] = include_bytes!("../../../examples/models/digits/1/model.onnx");

    fn machine(fake: &Arc<Fake>, device: usize) -> HostGpus {
        HostGpus::of(fake.gpus(device, 1 << 20))
    }

    fn spec(machine: &HostGpus, text: &str) -> Arc<ModelSpec> {
        let draft = ConfigDraft::new("m", Some(format!("backend: 'onnxruntime' {text}").as_bytes()), &[]).unwrap();
        let draft = draft.with_gpus(machine.support(true));
        let signature = OnnxSignature::decode(DIGITS).unwrap();
        Arc::new(draft.complete(Some(&signature), &BTreeMap::new(), CompletionRules::default()).unwrap())
    }

    fn choose<'a>(machine: &HostGpus, spec: &Arc<ModelSpec>, engines: &'a Engines) -> Result<GpuEngine<'a>, Error> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digits/1");
        machine.choose(spec, DIGITS, engines, || Rten::default().load(spec, &folder))
    }

    #[test]
    fn what_is_taken_of_a_device_is_shown_though_nothing_else_be_known() {
        let (fake, board) = (Fake::new(2), Arc::new(GpuBoard::default()));
        watch(&fake.gpus(1 << 20, 1 << 20), &board, crate::limits::METRICS_INTERVAL);
        let text = || crate::metrics::encode(&[], &[], &[], board.get().map_or(&[][..], Vec::as_slice));
        let row = "deuteron_gpu_memory_taken_bytes{gpu_uuid=\"GPU-1\"} 0";
        while !text().contains(row) {
            std::thread::yield_now();
        }
        assert!(!text().contains("nv_gpu_utilization"), "the fake is unknown to NVML");
    }

    #[test]
    fn a_model_is_planned_and_tried_on_each_gpu_and_what_it_lacks_is_told() {
        let fake = Fake::new(2);
        let plenty = machine(&fake, 1 << 20);
        let plain = spec(&plenty, "");
        assert_eq!(plain.instance_groups[0].gpus, [0, 1], "all there are");
        let engines = Engines::without(OnnxruntimeConfig::default(), "it is not here");
        assert!(matches!(choose(&plenty, &plain, &engines), Ok(GpuEngine::Plan(_))));
        assert_eq!((fake.contexts(), fake.held()), (2, 0), "tried on both, and nothing is left");
        let check = |machine: &HostGpus, text: &str, want: &str| {
            let error = choose(machine, &spec(machine, text), &engines).err().unwrap();
            assert!(error.text().contains(want), "{error}");
        };
        let engine = "parameters { key: 'engine' value { string_value: 'embedded' } }";
        check(&plenty, engine, "its parameter 'engine' is 'embedded', which runs on the CPU");
        let engine = "parameters { key: 'engine' value { string_value: 'onnxruntime' } }";
        check(&plenty, engine, "it is not here");
        let accelerator = "optimization { execution_accelerators { gpu_execution_accelerator { name: 'cuda' } } }";
        check(&plenty, accelerator, "gpu_execution_accelerator 'cuda' is ONNX Runtime's: it is not here");
        check(
            &machine(&fake, 1_000),
            "",
            "the GPU's plan: an instance of model 'm' cannot be made on GPU 0: the GPU failed: ",
        );
        check(&machine(&fake, 1_000), "", "; ONNX Runtime: it is not here");
        check(&machine(&fake, 1_000), "", "--gpu-memory-bytes-max sets how many");
        fake.remove_blas();
        check(&plenty, "", "cuBLASLt is not installed");
    }
}
