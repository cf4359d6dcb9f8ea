//! A model with instances on GPUs, all or some of them: each is made on the device that its instance
//! group names. All instances of a context share one copy of the weights.

#![expect(clippy::disallowed_types, reason = "taken when an instance is made or replaced, never for a batch")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::gpu::executor::GpuInstance;
use crate::gpu::program::{GpuProgram, ProgramSource};
use backend::gpu::device::{Gpu, Gpus, OpenDevice};
use backend::gpu::driver::DriverError;
use backend::gpu::figures::GpuInstanceFigures;
use backend::{Instance, LoadedModel, ReadyReply, Threads};
use base::error::Error;
use model::{InstanceSeat, ModelSpec};

/// A loaded model version.
pub struct GpuModel {
    spec: Arc<ModelSpec>,
    blueprint: Arc<dyn ProgramSource>,
    gpus: Gpus,
    /// Makes the instances that are on the CPU, if the model has any there.
    on_cpu: Option<Box<dyn LoadedModel>>,
    figures: Arc<GpuInstanceFigures>,
    /// By the index of the device.
    placed: Mutex<BTreeMap<u32, PlacedProgram>>,
}

/// A program on a device. Weak, so that the last instance there frees the weights and the context.
struct PlacedProgram {
    opened: Weak<OpenDevice>,
    program: Weak<dyn GpuProgram>,
}

impl GpuModel {
    /// A model whose instances on GPUs run the blueprint's program; `on_cpu` makes the others.
    pub fn new(
        spec: &Arc<ModelSpec>,
        blueprint: Arc<dyn ProgramSource>,
        gpus: &Gpus,
        on_cpu: Option<Box<dyn LoadedModel>>,
    ) -> Self {
        let (figures, placed) = (Arc::default(), Mutex::default());
        Self { spec: Arc::clone(spec), blueprint, gpus: gpus.clone(), on_cpu, figures, placed }
    }

    fn instance_on(&self, index: u32) -> Result<Box<dyn Instance>, Error> {
        let name = &self.spec.name;
        let gpu = self.gpus.find(index).ok_or_else(|| {
            Error::unavailable(format!("model '{name}' needs GPU {index}, which this machine does not have"))
        })?;
        self.figures.admit_restart(&self.spec)?;
        let make = || {
            let opened = if self.blueprint.is_on_primary() { gpu.open_primary()? } else { gpu.open()? };
            let program = self.program_on(index, &opened)?;
            GpuInstance::new(&self.spec, &*self.blueprint, program, &opened, &self.figures)
                .map(|instance| instance.with_run_max(self.gpus.run_max()))
                .inspect_err(|error| mark_broken(&opened, error))
        };
        let made: Result<_, DriverError> = make();
        let instance = made.map_err(|error| {
            Error::from(error).with_prefix(&format!("an instance of model '{name}' cannot be made on GPU {index}: "))
        })?;
        Ok(Box::new(instance))
    }

    fn program_on(&self, index: u32, opened: &Arc<OpenDevice>) -> Result<Arc<dyn GpuProgram>, DriverError> {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        // A program of a broken context is useless in its successor: the weights are uploaded again.
        if let Some(there) = placed.get(&index)
            && there.opened.upgrade().is_some_and(|there| Arc::ptr_eq(&there, opened))
            && let Some(program) = there.program.upgrade()
        {
            return Ok(program);
        }
        let program = self.blueprint.place(opened).inspect_err(|error| mark_broken(opened, error))?;
        placed.insert(index, PlacedProgram { opened: Arc::downgrade(opened), program: Arc::downgrade(&program) });
        Ok(program)
    }
}

/// Marks a context as broken if the failure broke it, so that the next instance opens another.
fn mark_broken(opened: &OpenDevice, error: &DriverError) {
    if error.is_sticky() {
        opened.set_broken();
    }
}

impl LoadedModel for GpuModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        match (threads.gpu(), &self.on_cpu) {
            (Some(index), _) => self.instance_on(index),
            (None, Some(on_cpu)) => on_cpu.new_instance(threads),
            (None, None) => Err(Error::internal(format!(
                "model '{}' has no instances on the CPU, and one was asked for",
                self.spec.name
            ))),
        }
    }

    fn prepare_instances(&self, spec: &ModelSpec, seats: &[InstanceSeat]) -> Result<(), Error> {
        self.on_cpu.as_ref().map_or(Ok(()), |on_cpu| on_cpu.prepare_instances(spec, seats))
    }

    fn may_run_inline(&self) -> bool {
        false
    }

    fn gpu_figures(&self) -> Option<Arc<GpuInstanceFigures>> {
        Some(Arc::clone(&self.figures))
    }

    fn tensor_device(&self) -> Option<&Arc<Gpu>> {
        let mut devices = self.spec.instance_groups.iter().flat_map(|group| &group.gpus);
        let first = devices.next()?;
        let is_one = devices.all(|device| device == first) && self.on_cpu.is_none();
        // A library that takes tensors on the host, in another context.
        let takes_them = !self.blueprint.is_on_primary() && !self.blueprint.sizes().keeps_staged;
        if is_one && takes_them { self.gpus.find(*first) } else { None }
    }

    fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
        match &self.on_cpu {
            Some(on_cpu) => on_cpu.ask_ready(reply),
            None => Some(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::trial::{Product, product, row, spec};
    use backend::gpu::driver::GpuFault;
    use backend::gpu::fake::Fake;
    use backend::trial::TrialAnswers;
    use backend::{run_to_end, threads};
    use base::limits::GPU_RESTARTS_MAX;
    use model::InstanceGroup;

    fn model(fake: &Arc<Fake>, count: u32, gpus: &[u32]) -> GpuModel {
        let mut spec = (*spec(4)).clone();
        spec.instance_groups = vec![InstanceGroup {
            name: "m_0".to_owned(),
            kind: model::InstanceKind::Gpu,
            count,
            gpus: gpus.to_vec(),
            is_passive: false,
            profiles: Vec::new(),
            host_policy: String::new(),
            rate: Default::default(),
        }];
        GpuModel::new(&Arc::new(spec), Arc::new(Product { rows_max: 4 }), &fake.gpus(1 << 20, 1 << 20), None)
    }

    fn make(model: &GpuModel, gpu: Option<u32>) -> Result<Box<dyn Instance>, Error> {
        threads::enter(1, |threads| model.new_instance(&threads.on(gpu)))
    }

    fn run(instance: &mut dyn Instance) -> bool {
        let answers = TrialAnswers::default();
        run_to_end(instance, answers.batch(vec![(vec![row(1.0, 2.0)], 1)]));
        answers.outputs(1).remove(0).is_ok_and(|outputs| outputs == [product(1.0, 2.0)])
    }

    #[test]
    fn instances_of_a_device_share_its_context_and_weights_and_those_of_another_do_not() {
        let fake = Fake::new(2);
        let model = model(&fake, 2, &[0, 1]);
        let first = make(&model, Some(0)).unwrap();
        let held = fake.held();
        let mut others = [0, 1, 1].map(|gpu| make(&model, Some(gpu)).unwrap());
        assert_eq!(fake.contexts(), 2);
        assert!(others.iter_mut().all(|instance| run(&mut **instance)));
        assert_eq!(fake.held(), 4 * held - 2 * 24, "the weights, 24 bytes, are on each device once");
        drop((first, others));
        assert_eq!(fake.held(), 0);
        let text = |outcome: Result<Box<dyn Instance>, Error>| outcome.err().unwrap().text().to_owned();
        assert_eq!(text(make(&model, Some(2))), "model 'm' needs GPU 2, which this machine does not have");
        assert!(text(make(&model, None)).contains("no instances on the CPU"));
    }

    #[test]
    fn an_instance_that_is_lost_is_made_anew_so_often_as_batches_give_outputs_between() {
        let fake = Fake::new(1);
        let model = model(&fake, 1, &[0]);
        let mut instance = make(&model, Some(0)).unwrap();
        for _ in 0..3 * GPU_RESTARTS_MAX {
            fake.fail_next("matmul", GpuFault::Sticky);
            assert!(!run(&mut *instance));
            drop(instance);
            instance = make(&model, Some(0)).unwrap();
            assert!(run(&mut *instance), "a batch between gives outputs");
        }
        for _ in 0..GPU_RESTARTS_MAX {
            fake.fail_next("matmul", GpuFault::Sticky);
            assert!(!run(&mut *instance));
            drop(instance);
            instance = make(&model, Some(0)).unwrap();
        }
        fake.fail_next("matmul", GpuFault::Sticky);
        assert!(!run(&mut *instance));
        let error = make(&model, Some(0)).err().unwrap();
        assert!(error.text().contains("were lost 5 times"), "{error}");
        let figures = model.gpu_figures().unwrap();
        assert_eq!((figures.losses(), figures.restarts.get()), (4 * 5 + 1, 4 * 5));
    }

    #[test]
    fn a_context_that_breaks_while_an_instance_is_made_is_not_used_again() {
        let fake = Fake::new(1);
        let model = model(&fake, 1, &[0]);
        let _other = make(&model, Some(0)).unwrap();
        fake.fail_next("new_stream", GpuFault::Sticky);
        assert!(make(&model, Some(0)).is_err());
        assert!(run(&mut *make(&model, Some(0)).unwrap()));
        assert_eq!(fake.contexts(), 2);
    }
}
