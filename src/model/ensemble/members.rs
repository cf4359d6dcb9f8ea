//! An ensemble held against the models that it is made of: are they there, do their tensors fit, do
//! their batches, is it part of itself. Triton's texts (`model_repository_manager.cc`, `CheckNode`;
//! `ensemble_utils.cc`), in its order. Bounded by the steps of ensembles.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;

use crate::error::Error;
use crate::limits::ENSEMBLE_DEPTH_MAX;
use crate::model::config::complete;
use crate::model::config::parse::json;
use crate::model::ensemble::{Ensemble, EnsembleStep};
use crate::model::{ModelSpec, TensorSpec};
use crate::tensor::{Datatype, Shape};
use crate::wire::proto::inference::{ModelConfig, ModelTransactionPolicy};

/// The models that there are, for the ensembles that are made of them.
#[derive(Clone, Debug, Default)]
pub struct ComposingModels {
    /// The models by name.
    pub models: BTreeMap<String, ComposingModel>,
}

/// One of them.
#[derive(Clone, Debug, Default)]
pub struct ComposingModel {
    /// The versions that serve, the highest first.
    pub versions: Vec<(u64, Arc<ModelSpec>)>,
    /// Why its last load failed.
    pub failure: Option<String>,
    /// Whether it failed for what it is made of.
    pub is_invalid: bool,
}

/// How the tensors of an ensemble reach the models of its steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wiring {
    /// The steps.
    pub steps: Vec<StepWiring>,
    /// Whether it answers a request any number of times: one of its steps does.
    pub is_decoupled: bool,
}

/// How the tensors of an ensemble reach the model of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepWiring {
    /// The inputs of the model that it is given, each with its tensor.
    pub inputs: Vec<(usize, usize)>,
    /// The outputs of the model that are kept, each with its tensor.
    pub outputs: Vec<(usize, usize)>,
}

impl ComposingModels {
    /// The ensemble as it serves: with the labels of who makes its outputs, and decoupled where a step
    /// is. Fails where it cannot serve, and says why. A model that is no ensemble is left as it is.
    pub fn resolve(&self, spec: ModelSpec) -> Result<ModelSpec, Error> {
        let Some(ensemble) = spec.ensemble.clone() else { return Ok(spec) };
        self.check_there(&spec.name, &ensemble)?;
        self.check_nesting(&spec.name, &ensemble)?;
        let steps: Vec<_> =
            ensemble.steps.iter().map(|step| self.of_step(&spec.name, step)).collect::<Result<_, _>>()?;
        let specs: Vec<&ModelSpec> = steps.iter().map(|spec| &***spec).collect();
        let wiring = Wiring::new(&spec, &ensemble, &specs)?;
        let mut resolved = with_policy(spec, wiring.is_decoupled)?;
        let owns = ensemble.outputs.iter().zip(&ensemble.has_labels);
        for (output, (tensor, _)) in resolved.outputs.iter_mut().zip(owns).filter(|(_, (_, owns))| !**owns) {
            let makers = wiring.steps.iter().zip(&specs);
            let mut labels = makers.flat_map(|(step, spec)| {
                let made = step.outputs.iter().filter(|(_, made)| made == tensor);
                made.filter_map(|(index, _)| spec.outputs.get(*index)?.labels.clone())
            });
            output.labels = labels.next();
        }
        Ok(resolved)
    }

    /// The model of a step, in the version that it asks for.
    fn of_step(&self, ensemble: &str, step: &EnsembleStep) -> Result<&Arc<ModelSpec>, Error> {
        let versions = self.models.get(&step.model).map_or(&[][..], |member| &member.versions);
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

    fn check_there(&self, name: &str, ensemble: &Ensemble) -> Result<(), Error> {
        let models = ensemble.models();
        let missing: Vec<_> = models.iter().copied().filter(|model| !self.models.contains_key(*model)).collect();
        if !missing.is_empty() {
            return Err(Error::invalid(format!(
                "ensemble {name} contains models that are not available or ambiguous: {}",
                missing.join(", ")
            )));
        }
        for model in models {
            let Some(member) = self.models.get(model) else { continue };
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

    /// Refuses an ensemble that is part of itself, or is made of ensembles too many times over.
    fn check_nesting(&self, name: &str, ensemble: &Ensemble) -> Result<(), Error> {
        let names = |ensemble: &Ensemble| ensemble.models().into_iter().map(str::to_owned).collect::<Vec<_>>();
        let steps = |model: &str| -> Vec<String> {
            if model == name {
                return names(ensemble);
            }
            let versions = self.models.get(model).map_or(&[][..], |member| &member.versions);
            versions.iter().filter_map(|(_, spec)| spec.ensemble.as_deref()).flat_map(names).collect()
        };
        if let Some(from) = circle(name, steps) {
            return Err(circular(name, &from));
        }
        let mut level = vec![name.to_owned()];
        for _ in 0..=ENSEMBLE_DEPTH_MAX {
            level = level.iter().flat_map(|model| steps(model)).collect();
            level.sort_unstable();
            level.dedup();
            if level.is_empty() {
                return Ok(());
            }
        }
        Err(Error::invalid(format!(
            "ensemble '{name}' is made of ensembles that are made of others, more than {ENSEMBLE_DEPTH_MAX} deep"
        )))
    }
}

/// The ensembles of a set, each with the models that it is made of, so that those that others are made
/// of come first; where that cannot be, with the refusal.
pub fn order(ensembles: &[(String, Vec<String>)]) -> Vec<(usize, Option<Error>)> {
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
            // What is not part of a circle itself fails for those that are: it comes after them.
            let (circles, others): (Vec<_>, Vec<_>) =
                left.iter().partition(|index| circle(name(index), find).is_some());
            order.extend(
                circles
                    .iter()
                    .map(|index| (*index, circle(name(index), find).map(|from| circular(name(index), &from)))),
            );
            left = others;
            continue;
        }
        order.extend(ready.into_iter().map(|index| (index, None)));
        left = waiting;
    }
    order
}

/// The last model on the way from a model back to itself, if there is one.
pub fn circle(name: &str, steps: impl Fn(&str) -> Vec<String>) -> Option<String> {
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

/// The refusal of an ensemble that is part of itself; `from` is the last on the way back to it.
pub fn circular(name: &str, from: &str) -> Error {
    Error::invalid(format!("circular dependency between ensembles: {name} -> ... -> {from} -> {name}"))
}

/// Triton shows for every ensemble whether it is decoupled, whatever its file says.
fn with_policy(mut spec: ModelSpec, is_decoupled: bool) -> Result<ModelSpec, Error> {
    let decoded = ModelConfig::decode(&*spec.config_message);
    let mut config = decoded.map_err(|error| {
        Error::internal(format!("model '{}': its own configuration does not read: {error}", spec.name))
    })?;
    config.model_transaction_policy = Some(ModelTransactionPolicy { decoupled: is_decoupled });
    spec.is_decoupled = is_decoupled;
    spec.config_json = json::encode(&config).into();
    spec.config_message = config.encode_to_vec().into();
    Ok(spec)
}

/// What is known of a tensor of an ensemble, and which model said so first.
struct TensorOrigin<'a> {
    model: &'a str,
    datatype: Datatype,
    dims: Shape,
    full_dims: Shape,
}

impl<'a> TensorOrigin<'a> {
    fn new(model: &'a str, has_batch_axis: bool, datatype: Datatype, dims: Shape) -> Self {
        let full_dims = has_batch_axis.then_some(-1).into_iter().chain(dims.iter().copied()).collect();
        Self { model, datatype, dims, full_dims }
    }

    /// An input or output of a member.
    fn of_member(spec: &'a ModelSpec, tensor: &TensorSpec) -> Self {
        Self::new(&spec.name, spec.has_batch_axis(), tensor.datatype, tensor.dims.clone())
    }

    /// An input or output of the ensemble itself, which its steps see reshaped.
    fn of_ensemble(spec: &'a ModelSpec, tensor: &TensorSpec) -> Self {
        let dims = tensor.model_shape.get(usize::from(spec.has_batch_axis())..).unwrap_or_default();
        Self::new(&spec.name, spec.has_batch_axis(), tensor.datatype, Shape::from_slice(dims))
    }

    fn agree(&self, other: &Self, before: &str) -> Result<(), Error> {
        if self.datatype != other.datatype {
            let name = |datatype: Datatype| complete::data_type(datatype).as_str_name();
            return Err(Error::invalid(format!(
                "{before}inconsistent data type: {} is inferred from model {} while {} is inferred from model {}",
                name(self.datatype),
                self.model,
                name(other.datatype),
                other.model
            )));
        }
        // What one gives without a batch axis another may take with one, where it could be its own.
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

/// Whether two shapes may be of one tensor: -1 takes any size.
pub fn fits(one: &[i64], other: &[i64]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one == other || *one == -1 || *other == -1)
}

fn shape_text(shape: &[i64]) -> String {
    let sizes: Vec<_> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", sizes.join(","))
}

impl Wiring {
    /// How tensors go, for members that are given in the order of the steps. Fails where they do not
    /// fit.
    pub fn new(spec: &ModelSpec, ensemble: &Ensemble, members: &[&ModelSpec]) -> Result<Self, Error> {
        let mut nodes: Vec<Option<TensorOrigin<'_>>> = ensemble.tensors.iter().map(|_| None).collect();
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

/// What one step is connected by.
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
                let tensor = self.tensor(*tensor);
                return refuse(format!(
                    "ensemble tensor {tensor} is mapping to non-existing input {input} in model {model}"
                ));
            }
        }
        let mut wiring = StepWiring::default();
        for (index, io) in member.inputs.iter().enumerate() {
            match step.inputs.iter().find(|(input, _)| *input == io.name) {
                Some((_, tensor)) => {
                    self.join(*tensor, io, nodes)?;
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
                let tensor = self.tensor(*tensor);
                return refuse(format!(
                    "ensemble tensor {tensor} is mapped from non-existing output {output} in model {model}"
                ));
            };
            wiring.outputs.push((index, *tensor));
        }
        for (index, tensor) in &wiring.outputs {
            if let Some(io) = member.outputs.get(*index) {
                self.join(*tensor, io, nodes)?;
            }
        }
        Ok(wiring)
    }

    /// Holds an input or output of the member against what is known of its tensor.
    fn join(&self, tensor: usize, io: &TensorSpec, nodes: &mut [Option<TensorOrigin<'a>>]) -> Result<(), Error> {
        let node = TensorOrigin::of_member(self.member, io);
        match nodes.get_mut(tensor) {
            Some(Some(known)) => {
                let before = format!("in ensemble {}, ensemble tensor {}: ", self.name, self.tensor(tensor));
                known.agree(&node, &before)
            }
            Some(unknown) => {
                *unknown = Some(node);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn tensor(&self, number: usize) -> &str {
        self.ensemble.tensors.get(number).map_or("", String::as_str)
    }
}

/// Whether the answers are any number. Refuses steps, and a response, that are made of the answers of
/// different decoupled steps: which of them belong together cannot be told.
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
