//! What an ensemble is made of, as its configuration says.

/// `ensemble_scheduling` in the server's form: tensors are numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensemble {
    /// The names of the tensors.
    pub tensors: Vec<String>,
    /// The steps in the order of the configuration.
    pub steps: Vec<EnsembleStep>,
    /// The tensor of each input of the ensemble.
    pub inputs: Vec<usize>,
    /// The tensor of each output of the ensemble.
    pub outputs: Vec<usize>,
    /// The outputs with a label file of their own: the others have the labels of who makes them.
    pub has_labels: Vec<bool>,
    /// `max_inflight_requests`: requests that one step has under way at a time, over all requests of
    /// the ensemble; 0 for no such bound.
    pub in_flight_max: u32,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleStep {
    /// The model that it runs.
    pub model: String,
    /// `model_version`: none for the highest that serves (-1).
    pub version: Option<i64>,
    /// Inputs of the model by name, each with the tensor that it takes.
    pub inputs: Vec<(String, usize)>,
    /// Outputs of the model by name, each with the tensor that it gives.
    pub outputs: Vec<(String, usize)>,
}

impl Ensemble {
    /// The models that it is made of, each once, by name.
    pub fn models(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.steps.iter().map(|step| step.model.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
