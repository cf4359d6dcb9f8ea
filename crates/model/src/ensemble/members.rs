//! Checks an ensemble against its composing models: they must be loaded, tensors and batch sizes
//! must fit, and the ensemble must not contain itself. Texts and their order are Triton's
//! (`model_repository_manager.cc`, `CheckNode`; `ensemble_utils.cc`). Bounded by the number of
//! steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;

use crate::datatype;
use crate::name::{qualified, split_qualified};
use crate::parse::json;
use crate::spec::ensemble::{Ensemble, EnsembleStep};
use crate::{ModelSpec, TensorSpec};
use base::error::Error;
use base::limits::ENSEMBLE_DEPTH_MAX;
use base::tensor::{Datatype, Shape};
use wire::proto::inference::{ModelConfig, ModelTransactionPolicy};

/// All models of the server, as far as ensembles need to know them.
#[derive(Clone, Debug, Default)]
pub struct ComposingModels {
    /// The models by name, or with namespaces by [`qualified`] name.
    pub models: BTreeMap<String, ComposingModel>,
}

/// A model that an ensemble may be composed of.
#[derive(Clone, Debug, Default)]
pub struct ComposingModel {
    /// The versions that serve, the highest first.
    pub versions: Vec<(u64, Arc<ModelSpec>)>,
    /// The reason why its last load failed.
    pub failure: Option<String>,
    /// True if it is an ensemble and failed because of its own composing models.
    pub is_invalid: bool,
}

/// The connections of an ensemble's tensors to the models of its steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wiring {
    /// The steps, in the order of the configuration.
    pub steps: Vec<StepWiring>,
    /// True if the ensemble is decoupled, which it is if one of its steps is.
    pub is_decoupled: bool,
}

/// The connections of an ensemble's tensors to the model of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepWiring {
    /// `(input of the model, tensor of the ensemble)`; without optional inputs that are left out.
    pub inputs: Vec<(usize, usize)>,
    /// `(output of the model, tensor of the ensemble)`; without outputs that the step does not map.
    pub outputs: Vec<(usize, usize)>,
}

impl ComposingModels {
    /// Completes an ensemble from its composing models: outputs without labels get those of the composing model's
    /// output, and it is decoupled if a step is. Any other model is returned unchanged.
    ///
    /// # Errors
    /// `InvalidArgument` with Triton's text if a composing model is not loaded, tensors or batch sizes do not fit,
    /// or the ensemble contains itself.
    pub fn resolve(&self, mut spec: ModelSpec) -> Result<ModelSpec, Error> {
        let Some(mut ensemble) = spec.ensemble.clone() else { return Ok(spec) };
        if !spec.namespace.is_empty() {
            for step in &mut Arc::make_mut(&mut ensemble).steps {
                step.namespace = self.namespace_of_step(&spec.namespace, &step.model);
            }
            spec.ensemble = Some(Arc::clone(&ensemble));
        }
        self.check_loaded(&spec.name, &ensemble)?;
        self.check_nesting(&spec, &ensemble)?;
        let steps: Vec<_> =
            ensemble.steps.iter().map(|step| self.model_of_step(&spec.name, step)).collect::<Result<_, _>>()?;
        let specs: Vec<&ModelSpec> = steps.iter().map(|spec| &***spec).collect();
        let wiring = Wiring::new(&spec, &ensemble, &specs)?;
        if spec.is_cached && wiring.is_decoupled {
            return Err(no_response_cache(&spec.name, "'decoupled' transaction policy"));
        }
        let mut resolved = with_policy(spec, wiring.is_decoupled)?;
        let has_own = ensemble.outputs.iter().zip(&ensemble.has_labels);
        for (output, (tensor, _)) in resolved.outputs.iter_mut().zip(has_own).filter(|(_, (_, has_own))| !**has_own) {
            let steps = wiring.steps.iter().zip(&specs);
            let mut labels = steps.flat_map(|(step, spec)| {
                let written = step.outputs.iter().filter(|(_, written)| written == tensor);
                written.filter_map(|(index, _)| spec.outputs.get(*index)?.labels.clone())
            });
            output.labels = labels.next();
        }
        Ok(resolved)
    }

    /// The namespace that a step's model is taken from, as in Triton: the ensemble's own, if it has
    /// a model of the name that serves or failed to, or the only other one that has. Empty if none
    /// or several have, which names no model.
    fn namespace_of_step(&self, own: &str, model: &str) -> String {
        let is_there = |member: &ComposingModel| !member.versions.is_empty() || member.failure.is_some();
        if self.models.get(&qualified(own, model)).is_some_and(is_there) {
            return own.to_owned();
        }
        let mut others = self.models.iter().filter(|(_, member)| is_there(member));
        let mut others = others.by_ref().map(|(id, _)| split_qualified(id)).filter(|(_, name)| *name == model);
        match (others.next(), others.next()) {
            (Some((namespace, _)), None) => namespace.to_owned(),
            _ => String::new(),
        }
    }

    /// The model of a step, in the version that the step asks for.
    fn model_of_step(&self, ensemble: &str, step: &EnsembleStep) -> Result<&Arc<ModelSpec>, Error> {
        let versions = self.models.get(&step.qualified_model()).map_or(&[][..], |member| &member.versions);
        let found = match step.version {
            None => versions.first(),
            Some(version) => versions.iter().find(|(have, _)| u64::try_from(version) == Ok(*have)),
        };
        found.map(|(_, spec)| spec).ok_or_else(|| {
            let version = step.version.unwrap_or_default();
            Error::invalid(format!(
                "ensemble '{ensemble}' depends on '{}' whose required version {version} is not loaded.",
                step.model
            ))
        })
    }

    fn check_loaded(&self, name: &str, ensemble: &Ensemble) -> Result<(), Error> {
        let models: BTreeSet<_> =
            ensemble.steps.iter().map(|step| (step.model.as_str(), step.qualified_model())).collect();
        let is_missing = |(_, id): &&(&str, String)| !self.models.contains_key(id);
        let missing: Vec<_> = models.iter().filter(is_missing).map(|(model, _)| *model).collect();
        if !missing.is_empty() {
            return Err(Error::invalid(format!(
                "ensemble {name} contains models that are not available or ambiguous: {}",
                missing.join(", ")
            )));
        }
        for (model, id) in models {
            let Some(member) = self.models.get(&id) else { continue };
            if !member.versions.is_empty() {
                continue;
            }
            let depends = format!("ensemble '{name}' depends on '{model}' which");
            return Err(Error::invalid(match &member.failure {
                Some(why) if member.is_invalid => {
                    format!("{depends} is not valid. Model '{model}' failed with error: {why}")
                }
                Some(why) => {
                    format!("{depends} has no loaded version. Model '{model}' loading failed with error: {why}")
                }
                None => format!("{depends} has no loaded version."),
            }));
        }
        Ok(())
    }

    /// Refuses an ensemble that contains itself or is nested too deep.
    fn check_nesting(&self, spec: &ModelSpec, ensemble: &Ensemble) -> Result<(), Error> {
        let name = &*qualified(&spec.namespace, &spec.name);
        let names = |ensemble: &Ensemble| {
            ensemble
                .steps
                .iter()
                .map(EnsembleStep::qualified_model)
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
        };
        let steps = |model: &str| -> Vec<String> {
            if model == name {
                return names(ensemble);
            }
            let versions = self.models.get(model).map_or(&[][..], |member| &member.versions);
            versions.iter().filter_map(|(_, spec)| spec.ensemble.as_deref()).flat_map(names).collect()
        };
        if let Some(from) = find_cycle(name, steps) {
            return Err(cycle_error(&spec.name, split_qualified(&from).1));
        }
        // All models of one level at a time: a walk of each path would be exponential in the depth.
        let mut level = vec![name.to_owned()];
        for _ in 0..=ENSEMBLE_DEPTH_MAX {
            level = level.iter().flat_map(|model| steps(model)).collect();
            level.sort_unstable();
            level.dedup();
            if level.is_empty() {
                return Ok(());
            }
        }
        let name = &spec.name;
        Err(Error::invalid(format!("ensemble '{name}' contains ensembles nested more than {ENSEMBLE_DEPTH_MAX} deep")))
    }
}

/// The order in which to load ensembles, given with their composing models: composing models first. Returns
/// indices into `ensembles`; those in a cycle have an error.
pub fn load_order(ensembles: &[(String, Vec<String>)]) -> Vec<(usize, Option<Error>)> {
    let mut left: Vec<usize> = (0..ensembles.len()).collect();
    let mut order = Vec::with_capacity(left.len());
    let steps = |index: &usize| ensembles.get(*index).map_or(&[][..], |(_, steps)| steps.as_slice());
    let name = |index: &usize| ensembles.get(*index).map_or("", |(name, _)| name.as_str());
    while !left.is_empty() {
        let waits_for = |index: &usize| left.iter().any(|other| steps(index).iter().any(|step| step == name(other)));
        let (waiting, ready): (Vec<_>, Vec<_>) = left.iter().partition(|index| waits_for(index));
        if ready.is_empty() {
            let find = |wanted: &str| {
                left.iter().find(|index| name(index) == wanted).map_or(Vec::new(), |index| steps(index).to_vec())
            };
            // Ensembles that only depend on a cycle come after it: their own load reports that it failed.
            let (cycles, others): (Vec<_>, Vec<_>) =
                left.iter().partition(|index| find_cycle(name(index), find).is_some());
            order.extend(
                cycles
                    .iter()
                    .map(|index| (*index, find_cycle(name(index), find).map(|from| cycle_error(name(index), &from)))),
            );
            left = others;
            continue;
        }
        order.extend(ready.into_iter().map(|index| (index, None)));
        left = waiting;
    }
    order
}

/// Looks for a cycle from `name` back to itself; returns the last model before it closes.
pub fn find_cycle(name: &str, steps: impl Fn(&str) -> Vec<String>) -> Option<String> {
    let (mut seen, mut waiting) = (Vec::new(), vec![name.to_owned()]);
    while let Some(model) = waiting.pop() {
        for step in steps(&model) {
            if step == name {
                return Some(model);
            }
            if !seen.contains(&step) {
                seen.push(step.clone());
                waiting.push(step);
            }
        }
    }
    None
}

/// The error for an ensemble that contains itself; `from` is the last model of the cycle.
pub fn cycle_error(name: &str, from: &str) -> Error {
    Error::invalid(format!("circular dependency between ensembles: {name} -> ... -> {from} -> {name}"))
}

/// Triton's error for a model whose answers cannot be cached.
pub fn no_response_cache(name: &str, with: &str) -> Error {
    Error::invalid(format!(
        "Response Cache does not currently support model {name} with {with}. Please disable the response cache."
    ))
}

/// Marks an ensemble as decoupled or not, also in the configuration shown: as in Triton the
/// composing models decide, not the configuration file.
fn with_policy(mut spec: ModelSpec, is_decoupled: bool) -> Result<ModelSpec, Error> {
    let decoded = ModelConfig::decode(&*spec.config_message);
    let mut config = decoded.map_err(|error| {
        Error::internal(format!("model '{}': its effective configuration cannot be decoded: {error}", spec.name))
    })?;
    config.model_transaction_policy = Some(ModelTransactionPolicy { decoupled: is_decoupled });
    spec.is_decoupled = is_decoupled;
    spec.config_json = json::encode(&config).into();
    spec.config_message = config.encode_to_vec().into();
    Ok(spec)
}

/// Datatype and shape of a tensor of an ensemble, and the model that they were first inferred from.
struct TensorOrigin<'a> {
    model: &'a str,
    datatype: Datatype,
    /// Without the batch axis.
    dims: Shape,
    /// With the batch axis (-1), if the model has one.
    full_dims: Shape,
}

impl<'a> TensorOrigin<'a> {
    fn new(model: &'a str, has_batch_axis: bool, datatype: Datatype, dims: Shape) -> Self {
        let full_dims = has_batch_axis.then_some(-1).into_iter().chain(dims.iter().copied()).collect();
        Self { model, datatype, dims, full_dims }
    }

    /// From an input or output of a composing model.
    fn of_member(spec: &'a ModelSpec, tensor: &TensorSpec) -> Self {
        Self::new(&spec.name, spec.has_batch_axis(), tensor.datatype, tensor.dims.clone())
    }

    /// From an input or output of the ensemble itself; its steps see the reshaped shape.
    fn of_ensemble(spec: &'a ModelSpec, tensor: &TensorSpec) -> Self {
        let dims = tensor.model_shape.get(usize::from(spec.has_batch_axis())..).unwrap_or_default();
        Self::new(&spec.name, spec.has_batch_axis(), tensor.datatype, Shape::from_slice(dims))
    }

    fn agree(&self, other: &Self, before: &str) -> Result<(), Error> {
        if self.datatype != other.datatype {
            let name = |datatype: Datatype| datatype::to_config(datatype).as_str_name();
            return Err(Error::invalid(format!(
                "{before}inconsistent data type: {} is inferred from model {} while {} is inferred from model {}",
                name(self.datatype),
                self.model,
                name(other.datatype),
                other.model
            )));
        }
        // A model without a batch axis may have the same axis as an ordinary first dimension.
        if fits(&self.dims, &other.dims) || fits(&self.full_dims, &other.full_dims) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{before}inconsistent shape: {} is inferred from model {} while {} is inferred from model {}",
            shape_text(&self.full_dims),
            self.model,
            shape_text(&other.full_dims),
            other.model
        )))
    }
}

/// Returns true if two shape patterns can describe the same tensor; -1 fits any size.
pub fn fits(one: &[i64], other: &[i64]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one == other || *one == -1 || *other == -1)
}

fn shape_text(shape: &[i64]) -> String {
    let sizes: Vec<_> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", sizes.join(","))
}

impl Wiring {
    /// Connects the steps; `members` are their models, in the order of the steps.
    ///
    /// # Errors
    /// `InvalidArgument` with Triton's text if names, tensors or batch sizes do not fit, or if responses of
    /// different decoupled steps meet.
    pub fn new(spec: &ModelSpec, ensemble: &Ensemble, members: &[&ModelSpec]) -> Result<Self, Error> {
        let mut nodes: Vec<Option<TensorOrigin<'_>>> = ensemble.tensors.iter().map(|_| None).collect();
        // The ensemble's own inputs and outputs come first, so that errors name the ensemble as the origin.
        let own = ensemble.inputs.iter().zip(&spec.inputs).chain(ensemble.outputs.iter().zip(&spec.outputs));
        for (tensor, io) in own {
            if let Some(node) = nodes.get_mut(*tensor) {
                node.get_or_insert_with(|| TensorOrigin::of_ensemble(spec, io));
            }
        }
        let mut wiring = Self::default();
        for (step, member) in ensemble.steps.iter().zip(members) {
            if member.has_batch_axis() && member.rows_max < spec.rows_max {
                return Err(Error::invalid(format!(
                    "ensemble {} allows maximum batch size {}, but it contains model {} which only allows maximum \
                     batch size to be {}",
                    spec.name, spec.rows_max, member.name, member.rows_max
                )));
            }
            let wires = WireEnds { name: &spec.name, ensemble, member };
            wiring.steps.push(wires.connect(step, &mut nodes)?);
        }
        wiring.is_decoupled = decoupling(spec, ensemble, members)?;
        Ok(wiring)
    }
}

/// Connects one step: the ensemble on one end, the composing model on the other.
struct WireEnds<'a> {
    name: &'a str,
    ensemble: &'a Ensemble,
    member: &'a ModelSpec,
}

impl<'a> WireEnds<'a> {
    fn connect(&self, step: &EnsembleStep, nodes: &mut [Option<TensorOrigin<'a>>]) -> Result<StepWiring, Error> {
        let Self { name, member, .. } = self;
        let model = &member.name;
        let refuse = |text: String| Err(Error::invalid(format!("in ensemble {name}, {text}")));
        for (input, tensor) in &step.inputs {
            if member.input_index(input).is_none() {
                let tensor = self.tensor_name(*tensor);
                return refuse(format!(
                    "ensemble tensor {tensor} is mapping to non-existing input {input} in model {model}"
                ));
            }
        }
        let mut wiring = StepWiring::default();
        for (index, io) in member.inputs.iter().enumerate() {
            match step.inputs.iter().find(|(input, _)| *input == io.name) {
                Some((_, tensor)) => {
                    self.check_tensor(*tensor, io, nodes)?;
                    wiring.inputs.push((index, *tensor));
                }
                None if io.is_optional => {}
                None => {
                    return refuse(format!("input {} in model {model} is not mapped to any ensemble tensors", io.name));
                }
            }
        }
        for (output, tensor) in &step.outputs {
            let Some(index) = member.output_index(output) else {
                let tensor = self.tensor_name(*tensor);
                return refuse(format!(
                    "ensemble tensor {tensor} is mapped from non-existing output {output} in model {model}"
                ));
            };
            wiring.outputs.push((index, *tensor));
        }
        for (index, tensor) in &wiring.outputs {
            if let Some(io) = member.outputs.get(*index) {
                self.check_tensor(*tensor, io, nodes)?;
            }
        }
        Ok(wiring)
    }

    /// Checks an input or output of the composing model against its tensor; the first one to use it defines it.
    fn check_tensor(
        &self,
        tensor: usize,
        io: &TensorSpec,
        nodes: &mut [Option<TensorOrigin<'a>>],
    ) -> Result<(), Error> {
        let node = TensorOrigin::of_member(self.member, io);
        match nodes.get_mut(tensor) {
            Some(Some(known)) => {
                let before = format!("in ensemble {}, ensemble tensor {}: ", self.name, self.tensor_name(tensor));
                known.agree(&node, &before)
            }
            Some(unknown) => {
                *unknown = Some(node);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn tensor_name(&self, number: usize) -> &str {
        self.ensemble.tensors.get(number).map_or("", String::as_str)
    }
}

/// Returns true if the ensemble is decoupled. Refuses a step, and a response, that combines
/// responses of different decoupled steps: nothing tells which of them belong together.
///
/// Each tensor has a label: 0 if it comes from the request, or the number of the decoupled step that it depends on.
/// Inputs of one step must have the same label.
fn decoupling(spec: &ModelSpec, ensemble: &Ensemble, members: &[&ModelSpec]) -> Result<bool, Error> {
    let mut labels: Vec<Option<usize>> = ensemble.tensors.iter().map(|_| None).collect();
    for tensor in &ensemble.inputs {
        if let Some(label) = labels.get_mut(*tensor) {
            *label = Some(0);
        }
    }
    let mut count = 0;
    let mixed = |model: &str| {
        Error::invalid(format!(
            "in ensemble {}, step of model '{model}' receives inputs originated from different decoupled models",
            spec.name
        ))
    };
    let common = |tensors: &mut dyn Iterator<Item = usize>, labels: &[Option<usize>], model: &str| {
        let mut label = None;
        for tensor in tensors {
            let Some(own) = labels.get(tensor).copied().flatten() else { return Ok(None) };
            if label.is_some_and(|label| label != own) {
                return Err(mixed(model));
            }
            label = Some(own);
        }
        Ok(label)
    };
    let mut left: Vec<_> = ensemble.steps.iter().zip(members).collect();
    loop {
        let before = left.len();
        let mut waiting = Vec::new();
        for (step, member) in left {
            let Some(label) = common(&mut step.inputs.iter().map(|(_, tensor)| *tensor), &labels, &member.name)? else {
                waiting.push((step, member));
                continue;
            };
            // Every decoupled step starts a label of its own.
            count += usize::from(member.is_decoupled);
            for (_, tensor) in &step.outputs {
                if let Some(known) = labels.get_mut(*tensor) {
                    *known = Some(if member.is_decoupled { count } else { label });
                }
            }
        }
        left = waiting;
        if left.is_empty() || left.len() == before {
            break;
        }
    }
    common(&mut ensemble.outputs.iter().copied(), &labels, &spec.name)?;
    Ok(count > 0)
}
