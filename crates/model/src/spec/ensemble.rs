//! The steps and tensors of an ensemble, as its configuration lists them.

use crate::name::qualified;

/// `ensemble_scheduling` with its tensors numbered: a tensor is an index into `tensors`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensemble {
    /// The names of the tensors, by number.
    pub tensors: Vec<String>,
    /// The steps in the order of the configuration.
    pub steps: Vec<EnsembleStep>,
    /// The tensor of each input of the ensemble.
    pub inputs: Vec<usize>,
    /// The tensor of each output of the ensemble.
    pub outputs: Vec<usize>,
    /// For each output of the ensemble whether it has a label file of its own; if not, it has the labels of the
    /// composing model's output.
    pub has_labels: Vec<bool>,
    /// `max_inflight_requests`: requests that each step may have in flight, over all requests of the ensemble;
    /// 0 for no limit.
    pub in_flight_max: u32,
}

/// One step of an ensemble: a run of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleStep {
    /// The model that it runs.
    pub model: String,
    /// The namespace of that model, from which it was resolved; empty without one.
    pub namespace: String,
    /// `model_version`: `None` for the highest version that serves (-1).
    pub version: Option<i64>,
    /// Inputs of the model by name, each with the tensor that it reads.
    pub inputs: Vec<(String, usize)>,
    /// Outputs of the model by name, each with the tensor that it writes.
    pub outputs: Vec<(String, usize)>,
}

impl EnsembleStep {
    /// The model's name in its namespace.
    #[inline]
    pub fn qualified_model(&self) -> String {
        qualified(&self.namespace, &self.model)
    }
}

impl Ensemble {
    /// The composing models, each once, sorted by name.
    pub fn models(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.steps.iter().map(|step| step.model.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
