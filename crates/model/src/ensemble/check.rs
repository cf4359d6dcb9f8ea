//! Checks `ensemble_scheduling` by itself: every step is complete, and every tensor is written once and used.
//! Texts and their order are Triton's (`model_config_utils.cc`, `ValidateEnsembleSchedulingConfig`).

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::ENSEMBLE_STEPS_MAX;
use crate::platform::ENSEMBLE_PLATFORM;
use base::error::Error;
use wire::proto::inference::model_config::SchedulingChoice;
use wire::proto::inference::{ModelConfig, ModelEnsembling};

/// Checks the configuration of an ensemble; any other model must not have `ensemble_scheduling`.
pub fn check(config: &ModelConfig) -> Result<(), Error> {
    let name = &config.name;
    let refuse = |text: String| Err(Error::invalid(text));
    let scheduling = match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(scheduling)) => scheduling,
        _ if config.platform == ENSEMBLE_PLATFORM => {
            return refuse(format!(
                "ensemble scheduling must be set for ensemble {name} whose platform is {ENSEMBLE_PLATFORM}"
            ));
        }
        _ => return Ok(()),
    };
    if config.platform != ENSEMBLE_PLATFORM {
        let text =
            format!("ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE_PLATFORM}");
        return refuse(text);
    }
    let for_ensemble = |text: &str| refuse(format!("{text} for ensemble '{name}'"));
    if !config.instance_group.is_empty() {
        return for_ensemble("instance group should not be specified");
    }
    if config.optimization.is_some() {
        return for_ensemble("optimization should not be specified");
    }
    if !config.model_warmup.is_empty() {
        // Triton's words, and the place for it.
        return refuse(format!(
            "model_warmup can not be specified for ensemble '{name}'; give it to the models of its steps, which are warm \
             before the ensemble is ready"
        ));
    }
    if !config.batch_input.is_empty() || !config.batch_output.is_empty() {
        return for_ensemble("batch_input and batch_output can not be specified");
    }
    let mut shape_tensors = config.input.iter().map(|input| input.is_shape_tensor);
    if shape_tensors.any(|is_shape_tensor| is_shape_tensor) || config.output.iter().any(|output| output.is_shape_tensor)
    {
        return for_ensemble("is_shape_tensor can not be specified");
    }
    match scheduling.step.len() {
        0 => return for_ensemble("must specify 'step'"),
        count if count > ENSEMBLE_STEPS_MAX => {
            return refuse(format!("ensemble '{name}' has {count} steps, more than the {ENSEMBLE_STEPS_MAX} allowed"));
        }
        _ => {}
    }
    TensorGraph::build(config, scheduling)?.check(config)
}

/// The tensors of an ensemble by name, and the steps that connect them.
#[derive(Default)]
struct TensorGraph<'a> {
    nodes: BTreeMap<&'a str, TensorUse>,
    /// The tensors that each step reads, and those that it writes.
    steps: Vec<(Vec<&'a str>, Vec<&'a str>)>,
}

#[derive(Default)]
struct TensorUse {
    /// True if a step writes it.
    is_output: bool,
    /// True if a step reads it.
    is_used: bool,
    /// True if it can be computed from the inputs of the ensemble.
    is_ready: bool,
}

impl<'a> TensorGraph<'a> {
    fn build(config: &ModelConfig, scheduling: &'a ModelEnsembling) -> Result<Self, Error> {
        let name = &config.name;
        let mut graph = Self::default();
        for (index, step) in scheduling.step.iter().enumerate() {
            let missing = |field: &str| {
                Err(Error::invalid(format!("must specify '{field}' in step {index} of ensemble '{name}'")))
            };
            if step.model_name.is_empty() {
                return missing("model_name");
            }
            if step.input_map.is_empty() {
                return missing("input_map");
            }
            if step.output_map.is_empty() {
                return missing("output_map");
            }
            for tensor in step.output_map.values() {
                let node = graph.nodes.entry(tensor).or_default();
                if std::mem::replace(&mut node.is_output, true) {
                    return Err(Error::invalid(format!(
                        "ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' \
                         step {index}"
                    )));
                }
                // Triton accepts this and then has two tensors with the same name.
                if config.input.iter().any(|input| input.name == *tensor) {
                    return Err(Error::invalid(format!(
                        "ensemble input '{tensor}' can not appear in an output map for ensemble '{name}' step {index}"
                    )));
                }
            }
            for tensor in step.input_map.values() {
                graph.nodes.entry(tensor).or_default().is_used = true;
            }
            let names = |map: &'a BTreeMap<String, String>| map.values().map(String::as_str).collect();
            graph.steps.push((names(&step.input_map), names(&step.output_map)));
        }
        Ok(graph)
    }

    fn check(&mut self, config: &ModelConfig) -> Result<(), Error> {
        let name = &config.name;
        let refuse = |text: String| Err(Error::invalid(text));
        for input in &config.input {
            let Some(node) = self.nodes.get_mut(input.name.as_str()) else {
                return refuse(format!("ensemble input '{}' for ensemble {name}' is not used", input.name));
            };
            node.is_ready = true;
        }
        self.mark_ready();
        let mut outputs = BTreeSet::new();
        for output in &config.output {
            let tensor = output.name.as_str();
            match self.nodes.get(tensor) {
                None => return refuse(format!("ensemble output '{tensor}' for ensemble {name}' is not used")),
                Some(node) if !node.is_ready => {
                    let why = match self.missing_beneath(tensor) {
                        Some(source) => {
                            format!(": at least one of its depending tensors, '{source}', is not connected")
                        }
                        None => String::new(),
                    };
                    return refuse(format!("output '{tensor}' for ensemble '{name}' is not written{why}"));
                }
                Some(_) => outputs.insert(tensor),
            };
        }
        let is_unused =
            |(tensor, node): &(&&str, &TensorUse)| !outputs.contains(**tensor) && (!node.is_ready || !node.is_used);
        match self.nodes.iter().find(is_unused) {
            Some((tensor, _)) => refuse(format!("ensemble tensor '{tensor}' is unused in ensemble '{name}'")),
            None => Ok(()),
        }
    }

    /// The tensor, if any, whose absence keeps this one from being written: the first one not ready
    /// of those that it depends on, then again the first of those that this one depends on, and so
    /// on to the last.
    fn missing_beneath(&self, tensor: &str) -> Option<&'a str> {
        let (mut last, mut seen) = (tensor, BTreeSet::new());
        let mut found = None;
        loop {
            let writers = self.steps.iter().filter(|(_, outputs)| outputs.contains(&last));
            let mut inputs = writers.flat_map(|(inputs, _)| inputs.iter().copied());
            let is_missing =
                |input: &&str| !seen.contains(*input) && self.nodes.get(*input).is_some_and(|node| !node.is_ready);
            let Some(next) = inputs.find(is_missing) else { break };
            seen.insert(next);
            (last, found) = (next, Some(next));
        }
        found.filter(|found| *found != tensor)
    }

    /// Marks the tensors that exist after all runnable steps have run. Steps in a cycle cannot run:
    /// their tensors stay unmarked and are refused.
    fn mark_ready(&mut self) {
        let mut left: Vec<_> = self.steps.iter().collect();
        loop {
            let is_ready = |name: &&str| self.nodes.get(*name).is_some_and(|node| node.is_ready);
            let (ready, waiting): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|(inputs, _)| inputs.iter().all(is_ready));
            if ready.is_empty() {
                return;
            }
            for output in ready.iter().flat_map(|(_, outputs)| outputs) {
                if let Some(node) = self.nodes.get_mut(output) {
                    node.is_ready = true;
                }
            }
            left = waiting;
        }
    }
}
