//! The load of one version by its engine, with its warm-up and what stands around it: steps, or the states of sequences.

use std::path::Path;
use std::sync::Arc;

use crate::backend::gateway::Gateway;
use crate::backend::stateful::begun_inputs;
use crate::backend::{Backend, LoadedModel, StatefulModel, StepCaller, SteppedModel};
use crate::control::engines::model_services::ModelServices;
use crate::control::loading::warm_up;
use crate::control::repository::pinned_files::PinnedFiles;
use crate::error::Error;
use crate::model::ModelSpec;

/// The version that an engine loads.
#[derive(Clone, Copy)]
pub struct EngineLoad<'a> {
    /// The model.
    pub spec: &'a Arc<ModelSpec>,
    /// The number of its version.
    pub version: u64,
    /// The directory of the version.
    pub path: &'a Path,
    /// Its opened files.
    pub files: &'a PinnedFiles,
    /// Sequences keep at most this many bytes of states.
    pub state_bytes_max: usize,
    /// The way of its steps to other models, and the counters of its runs.
    pub services: &'a ModelServices,
}

impl EngineLoad<'_> {
    /// Loads the model with its engine and adds the warm-up. For a model that serves sequences, the engine and the warm-up
    /// see the model with the control inputs and states as plain tensors, and [`StatefulModel`] is put around it.
    ///
    /// # Errors
    /// Those of the engine and of the warm-up.
    pub fn run(
        self,
        backend: &dyn Backend,
        read: impl Fn(&str, usize) -> Result<Vec<u8>, Error>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        let Self { spec, .. } = self;
        let load = |spec: &Arc<ModelSpec>| self.files.load(backend, spec, self.path);
        if let Some(steps) = &spec.steps {
            let engine = steps.engine.as_ref().map(load).transpose()?;
            let model = SteppedModel::new(spec, engine, Some(self.caller()))?
                .with_text_batches(self.services.text_batches.as_ref());
            return warm_up::with_warm_up(Box::new(model), spec, &[], read);
        }
        let Some(sequence) = &spec.sequence else { return warm_up::with_warm_up(load(spec)?, spec, &[], read) };
        let start_inputs = begun_inputs(sequence, spec.has_batch_axis());
        let inner = warm_up::with_warm_up(load(&sequence.engine)?, &sequence.engine, &start_inputs, read)?;
        Ok(Box::new(StatefulModel::new(inner, spec, Arc::clone(sequence), self.state_bytes_max)))
    }

    /// The model, for steps that run others.
    fn caller(&self) -> StepCaller {
        StepCaller {
            gateway: Arc::clone(&self.services.gateway) as Arc<dyn Gateway>,
            model: self.spec.qualified_name().into(),
            version: self.version,
        }
    }
}
