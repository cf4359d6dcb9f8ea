//! Which models run on GPUs: the devices are looked for when the first model may use one, and the log
//! tells what came of it. A model whose group says `KIND_AUTO`, or that has none, goes there if it can;
//! what it lacks is told, and it runs on the CPU. One whose group says `KIND_GPU` is refused.

use std::sync::{Arc, OnceLock};

use crate::backend::gpu::{GpuModel, Gpus, MemoryLimits, Plan, cuda};
use crate::backend::{LoadedModel, threads};
use crate::config::Settings;
use crate::error::Error;
use crate::model::ModelSpec;
use crate::model::config::GpuSupport;
use crate::server::log;

/// The GPUs of this machine. Shared by the helpers of the control thread.
pub struct Machine {
    limits: MemoryLimits,
    gpus: OnceLock<Gpus>,
}

impl Machine {
    /// One that was not looked at.
    pub fn new(settings: &Settings) -> Self {
        let limits = MemoryLimits { device: settings.gpu_memory_bytes_max, pinned: settings.pinned_memory_bytes_max };
        Self { limits, gpus: OnceLock::new() }
    }

    /// Its devices.
    pub fn gpus(&self) -> &Gpus {
        self.gpus.get_or_init(|| find(self.limits))
    }

    /// Its devices, if somebody has looked for them.
    pub fn known(&self) -> Option<&Gpus> {
        self.gpus.get()
    }

    /// What a configuration can have of them.
    pub fn support(&self, takes_auto: bool) -> GpuSupport {
        let gpus = self.gpus();
        let devices = gpus.all().iter().map(|gpu| gpu.properties().index).collect();
        GpuSupport { devices, why_absent: gpus.why_absent().unwrap_or_default().to_owned(), takes_auto }
    }

    /// What the instances of a model on GPUs run, if it can be run there; tried once on each GPU.
    pub fn plan(&self, spec: &Arc<ModelSpec>, file: &[u8]) -> Result<Arc<Plan>, Error> {
        if let Some(engine) = spec.parameters.get("engine") {
            return Err(Error::unsupported(format!("its parameter 'engine' is '{engine}', which runs on the CPU")));
        }
        let plan = Arc::new(Plan::new(file, spec)?);
        let trial = GpuModel::new(spec, Arc::clone(&plan) as _, self.gpus(), None);
        let mut gpus: Vec<u32> = spec.instance_groups.iter().flat_map(|group| group.gpus.clone()).collect();
        gpus.sort_unstable();
        gpus.dedup();
        for gpu in gpus {
            threads::enter(1, |threads| trial.new_instance(&threads.on(Some(gpu))).map(drop))?;
        }
        Ok(plan)
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::backend::gpu::fake::Fake;
    use crate::model::config::{Completion, Draft};
    use crate::model::onnx::OnnxSignature;

    const DIGITS: &[u8] = include_bytes!("../../examples/models/digits/1/model.onnx");

    fn machine(fake: &Arc<Fake>, device: usize) -> Machine {
        let limits = MemoryLimits { device, pinned: 1 << 20 };
        Machine { limits, gpus: OnceLock::from(fake.gpus(device, 1 << 20)) }
    }

    fn spec(machine: &Machine, text: &str) -> Arc<ModelSpec> {
        let draft = Draft::new("m", Some(format!("backend: 'onnxruntime' {text}").as_bytes()), &[]).unwrap();
        let draft = draft.with_gpus(machine.support(true));
        let signature = OnnxSignature::decode(DIGITS).unwrap();
        Arc::new(draft.complete(Some(&signature), &BTreeMap::new(), Completion::default()).unwrap())
    }

    #[test]
    fn a_model_is_planned_and_tried_on_each_gpu_and_what_it_lacks_is_told() {
        let fake = Fake::new(2);
        let plenty = machine(&fake, 1 << 20);
        let plain = spec(&plenty, "");
        assert_eq!(plain.instance_groups[0].gpus, [0, 1], "all there are");
        assert!(plenty.plan(&plain, DIGITS).is_ok());
        assert_eq!((fake.contexts(), fake.held()), (2, 0), "tried on both, and nothing is left");
        let check = |machine: &Machine, text: &str, want: &str| {
            let error = machine.plan(&spec(machine, text), DIGITS).unwrap_err();
            assert!(error.text().contains(want), "{error}");
        };
        let engine = "parameters { key: 'engine' value { string_value: 'embedded' } }";
        check(&plenty, engine, "its parameter 'engine' is 'embedded', which runs on the CPU");
        check(&machine(&fake, 1_000), "", "cannot be made on GPU 0: the GPU failed: ");
        check(&machine(&fake, 1_000), "", "--gpu-memory-bytes-max sets how many");
        fake.remove_blas();
        check(&plenty, "", "cuBLASLt is not installed");
    }
}
