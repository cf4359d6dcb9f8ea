//! The model versions that a request to a model reaches: itself, and those of the steps if it is an ensemble.

use std::rc::Rc;
use std::sync::Arc;

use crate::error::Error;
use crate::model::spec::ensemble::{Ensemble, EnsembleStep};
use crate::queue::model_queue::ModelQueue;
use crate::queue::served_model::Placement;
use crate::shard::models::model_table::{LocalModel, ModelTable};

impl ModelTable {
    /// The model versions of the steps, in the order of the steps.
    pub(in crate::shard) fn step_models(&self, ensemble: &Ensemble) -> Result<Vec<Rc<LocalModel>>, Error> {
        let find = |step: &EnsembleStep| {
            let version = step.version.map(|version| u64::try_from(version).unwrap_or_default());
            self.find_in(&step.namespace, &step.model, version)
        };
        ensemble.steps.iter().map(find).collect()
    }

    /// Returns true if a model can serve: all its instances work, and for an ensemble those of all
    /// its steps.
    pub fn is_model_ready(&self, model: &Rc<LocalModel>) -> bool {
        self.models_within(model).is_ok_and(|models| models.iter().all(|model| model.served().is_ready()))
    }

    /// The queues with sequences that a request to the model reaches: its own, or those of its steps.
    pub fn sequence_queues(&self, model: &Rc<LocalModel>) -> Vec<Arc<ModelQueue>> {
        let model_queue = |model: &Rc<LocalModel>| match &model.served().placement {
            Placement::Worker(model_queue) => model.served().spec.sequence.is_some().then(|| Arc::clone(model_queue)),
            _ => None,
        };
        self.models_within(model).unwrap_or_default().iter().filter_map(model_queue).collect()
    }

    /// The model versions that a request to the model may reach: itself, and those of its steps if
    /// it is an ensemble whose steps can all run.
    pub fn reached(&self, model: &Rc<LocalModel>) -> Vec<Rc<LocalModel>> {
        self.models_within(model).unwrap_or_default()
    }

    /// The model and all models below it, each once, however often and deep it is a step.
    fn models_within(&self, model: &Rc<LocalModel>) -> Result<Vec<Rc<LocalModel>>, Error> {
        let (mut models, mut index) = (vec![Rc::clone(model)], 0);
        while let Some(model) = models.get(index) {
            let steps = model.served().spec.ensemble.as_ref().map(|ensemble| self.step_models(ensemble));
            for model in steps.transpose()?.into_iter().flatten() {
                if !models.iter().any(|have| Rc::ptr_eq(have, &model)) {
                    models.push(model);
                }
            }
            index += 1;
        }
        Ok(models)
    }
}
