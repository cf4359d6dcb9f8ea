//! A model whose new instances are checked before they serve: by their warm-up samples, and by the
//! checksums of their files.

use std::ops::Deref;
use std::sync::Arc;

use crate::backend::gpu::{Gpu, GpuInstanceFigures};
use crate::backend::{Computation, Instance, LoadedModel, ReadyReply, Threads};
use crate::error::Error;
use crate::metrics::{Gauge, PaddingCells};
use crate::model::{InstanceSeat, ModelSpec};

/// A check of each new instance; it runs on the thread that made the instance.
pub trait InstanceCheck: Send + Sync {
    /// Checks an instance.
    ///
    /// # Errors
    /// The reason that it may not serve.
    fn check(&self, instance: &mut dyn Instance, threads: &Threads) -> Result<(), Error>;
}

/// A model and the check of its instances. All else is the model's.
pub struct VettedModel<C, M = Box<dyn LoadedModel>> {
    /// The model. Dropped before the check.
    pub model: M,
    /// The check that each new instance must pass.
    pub check: C,
}

impl<C: InstanceCheck, M: Deref<Target = dyn LoadedModel> + Send + Sync> LoadedModel for VettedModel<C, M> {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let mut instance = self.model.new_instance(threads)?;
        self.check.check(&mut *instance, threads)?;
        Ok(instance)
    }

    fn prepare_instances(&self, spec: &ModelSpec, seats: &[InstanceSeat]) -> Result<(), Error> {
        self.model.prepare_instances(spec, seats)
    }

    fn may_run_inline(&self) -> bool {
        self.model.may_run_inline()
    }

    fn why_not_inline(&self) -> &str {
        self.model.why_not_inline()
    }

    fn computation(&self) -> Computation {
        self.model.computation()
    }

    fn between_steps(&self) -> Option<(&Arc<ModelSpec>, &dyn LoadedModel)> {
        self.model.between_steps()
    }

    fn padding(&self) -> Option<&PaddingCells> {
        self.model.padding()
    }

    fn process_memory(&self) -> Option<&Gauge> {
        self.model.process_memory()
    }

    fn gpu_figures(&self) -> Option<Arc<GpuInstanceFigures>> {
        self.model.gpu_figures()
    }

    fn tensor_device(&self) -> Option<&Arc<Gpu>> {
        self.model.tensor_device()
    }

    fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
        self.model.ask_ready(reply)
    }

    fn handle_unload(&self) {
        self.model.handle_unload();
    }

    fn process_size(&self) -> u64 {
        self.model.process_size()
    }

    fn refuses_while_lost(&self) -> bool {
        self.model.refuses_while_lost()
    }
}
