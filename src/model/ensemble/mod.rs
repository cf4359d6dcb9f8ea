//! Ensembles: models that are made of others. A step runs one model on tensors of the ensemble, by
//! name, and gives tensors that later steps take. `check` holds the configuration against itself,
//! `read` puts it into the server's form, [`ComposingModels::resolve`] holds it against the models that it
//! is made of. What is refused has Triton's text where Triton refuses it. Called by
//! [`super::config`], and by the server before an ensemble serves.

mod check;
mod members;

use std::collections::BTreeMap;

use crate::wire::proto::inference::ModelConfig;
use crate::wire::proto::inference::model_config::SchedulingChoice;

pub use self::members::{ComposingModel, ComposingModels, Wiring, circle, circular, fits, order};

pub(super) use self::check::check;

/// The platform of an ensemble; it has no backend.
pub const PLATFORM: &str = "ensemble";

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

/// The ensemble that a configuration is; none where it is another model. It was checked.
pub(super) fn read(config: &ModelConfig) -> Option<Ensemble> {
    let Some(SchedulingChoice::EnsembleScheduling(scheduling)) = &config.scheduling_choice else { return None };
    let mut tensors = Tensors::default();
    let inputs = config.input.iter().map(|input| tensors.number(&input.name)).collect();
    let outputs = config.output.iter().map(|output| tensors.number(&output.name)).collect();
    let steps = scheduling.step.iter().map(|step| EnsembleStep {
        model: step.model_name.clone(),
        version: (step.model_version != -1).then_some(step.model_version),
        inputs: step.input_map.iter().map(|(name, tensor)| (name.clone(), tensors.number(tensor))).collect(),
        outputs: step.output_map.iter().map(|(name, tensor)| (name.clone(), tensors.number(tensor))).collect(),
    });
    let steps = steps.collect();
    Some(Ensemble {
        steps,
        inputs,
        outputs,
        has_labels: config.output.iter().map(|output| !output.label_filename.is_empty()).collect(),
        in_flight_max: scheduling.max_inflight_requests,
        tensors: tensors.names,
    })
}

/// Numbers the tensors of an ensemble by their names.
#[derive(Default)]
struct Tensors {
    names: Vec<String>,
    by_name: BTreeMap<String, usize>,
}

impl Tensors {
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        let number = self.names.len();
        self.names.push(name.to_owned());
        self.by_name.insert(name.to_owned(), number);
        number
    }
}

#[cfg(test)]
mod tests;
