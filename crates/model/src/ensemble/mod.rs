//! Ensembles: models composed of other models. A step runs one composing model; tensors of the ensemble, by
//! name, connect the steps. `check` checks the configuration by itself, `read` converts it to an [`Ensemble`],
//! [`ComposingModels::resolve`] checks it against the composing models. Errors have Triton's text if Triton
//! refuses the same. Called by [`super::config`], and by the server before an ensemble serves.

mod check;
mod members;

use std::collections::BTreeMap;

use crate::spec::ensemble::{Ensemble, EnsembleStep};
use wire::proto::inference::ModelConfig;
use wire::proto::inference::model_config::SchedulingChoice;

pub use self::members::{
    ComposingModel, ComposingModels, StepWiring, Wiring, cycle_error, find_cycle, fits, load_order, no_response_cache,
};

pub(super) use self::check::check;

/// Converts the `ensemble_scheduling` of a checked configuration; `None` for any other model.
pub(super) fn read(config: &ModelConfig) -> Option<Ensemble> {
    let Some(SchedulingChoice::EnsembleScheduling(scheduling)) = &config.scheduling_choice else { return None };
    let mut tensors = Tensors::default();
    let inputs = config.input.iter().map(|input| tensors.number(&input.name)).collect();
    let outputs = config.output.iter().map(|output| tensors.number(&output.name)).collect();
    let steps = scheduling.step.iter().map(|step| EnsembleStep {
        namespace: String::new(),
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

/// Assigns a number to each tensor name.
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
