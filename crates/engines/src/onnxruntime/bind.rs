//! Binds the configuration's inputs and outputs to those that the library found in the model, and
//! refuses mismatches in the words of Triton's backend. Dimensions are not compared here:
//! `model::config::validate` has checked them against the file, and the library refuses others at each run.

use ort::value::{Outlet, ValueType};

use backend::text::{config_name, datatype_differs, input_count_differs, unexpected_tensor};
use base::error::Error;
use base::tensor::Datatype;
use model::{ModelSpec, TensorSpec};

use super::datatype::{element_type, natural};

/// An input or output of the model and its counterpart in the configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrtBinding {
    /// Its index in the configuration's inputs or outputs.
    pub(super) index: usize,
    pub(super) datatype: Datatype,
    /// The model's tensor lacks the configuration's last dimension, which is 1: a configuration
    /// cannot express a scalar.
    pub(super) is_squeezed: bool,
}

/// The source of an input of the model.
#[derive(Clone, Copy, Debug)]
pub(super) enum InputSource {
    /// A batch input, which the server makes.
    Batch {
        /// Its index in the configuration's batch inputs.
        index: usize,
        /// INT32 or FP32.
        datatype: Datatype,
    },
    /// Each request brings it.
    Request(OrtBinding),
}

/// Finds the model's inputs in the configuration, in the model's order, which is that of a run.
///
/// # Errors
///
/// If the model and the configuration have other inputs, or the same of another datatype.
pub(super) fn bind_inputs(spec: &ModelSpec, outlets: &[Outlet]) -> Result<Vec<InputSource>, Error> {
    let required = spec.inputs.iter().filter(|input| !input.is_optional);
    let (want, came) = (required.clone().count() + spec.batch_inputs.len(), outlets.len());
    if want != came {
        return Err(input_count_differs(spec, want, came));
    }
    // A configured name that the model lacks is the more helpful error, so it is looked for first.
    let mut names = required.map(|input| &input.name).chain(spec.batch_inputs.iter().map(|input| &input.name));
    names.try_for_each(|name| find(outlets, "input", name).map(drop))?;
    outlets.iter().map(|outlet| bind_input(spec, outlet)).collect()
}

fn bind_input(spec: &ModelSpec, outlet: &Outlet) -> Result<InputSource, Error> {
    let name = outlet.name();
    if let Some((index, input)) = spec.input_index(name).and_then(|index| Some((index, spec.inputs.get(index)?))) {
        return bind_tensor(spec, "input", index, input, outlet).map(InputSource::Request);
    }
    if let Some((index, input)) = spec.batch_inputs.iter().enumerate().find(|(_, input)| input.name == name) {
        check_datatype(spec, "input", name, input.datatype, outlet)?;
        return Ok(InputSource::Batch { index, datatype: input.datatype });
    }
    let text = format!("input '{name}' of the model is not configured");
    Err(Error::invalid(format!("unable to load model '{}', {text}", spec.name)))
}

/// The inputs that a request may leave out. The library does not list inputs with an initial value, so
/// they are not checked here; `model::config::validate` has checked them against the file.
pub(super) fn optional_inputs(spec: &ModelSpec) -> Vec<OrtBinding> {
    let inputs = spec.inputs.iter().enumerate().filter(|(_, input)| input.is_optional);
    inputs.map(|(index, input)| OrtBinding { index, datatype: input.datatype, is_squeezed: false }).collect()
}

/// Finds the configured outputs in the model, which may have others too.
///
/// # Errors
///
/// If the model lacks one, or has it in another datatype.
pub(super) fn bind_outputs(spec: &ModelSpec, outlets: &[Outlet]) -> Result<Vec<OrtBinding>, Error> {
    let outputs = spec.outputs.iter().enumerate();
    let bind = |(index, output): (usize, &TensorSpec)| {
        let outlet = find(outlets, "output", &output.name)?;
        bind_tensor(spec, "output", index, output, outlet)
    };
    outputs.map(bind).collect()
}

fn find<'a>(outlets: &'a [Outlet], side: &str, name: &str) -> Result<&'a Outlet, Error> {
    let found = outlets.iter().find(|outlet| outlet.name() == name);
    found.ok_or_else(|| unexpected_tensor(side, name, outlets.iter().map(Outlet::name)))
}

fn bind_tensor(
    spec: &ModelSpec,
    side: &str,
    index: usize,
    tensor: &TensorSpec,
    outlet: &Outlet,
) -> Result<OrtBinding, Error> {
    let rank = check_datatype(spec, side, &tensor.name, tensor.datatype, outlet)?;
    let is_whole = tensor.is_ragged || tensor.scatter_source.is_some();
    let is_squeezed = !is_whole && tensor.may_be_scalar() && rank + 1 == tensor.model_shape.len();
    Ok(OrtBinding { index, datatype: tensor.datatype, is_squeezed })
}

/// Checks the datatype of the model's tensor, and returns its rank.
fn check_datatype(
    spec: &ModelSpec,
    side: &str,
    name: &str,
    datatype: Datatype,
    outlet: &Outlet,
) -> Result<usize, Error> {
    let refuse = |text: String| Err(Error::invalid(format!("unable to load model '{}', {text}", spec.name)));
    let (ty, shape) = match outlet.dtype() {
        ValueType::Tensor { ty, shape, .. } => (*ty, shape),
        ValueType::Sequence(_) => return refuse(format!("{side} '{name}' is a sequence, not a tensor; leave it out")),
        ValueType::Map { .. } => return refuse(format!("{side} '{name}' is a map, not a tensor; leave it out")),
        ValueType::Optional(_) => return refuse(format!("{side} '{name}' is an optional value, not a tensor")),
    };
    if ty != element_type(datatype) {
        let came = natural(ty).map_or_else(|| format!("{ty}, which the protocol cannot carry"), config_name);
        return Err(datatype_differs(spec, side, name, datatype, &came));
    }
    Ok(shape.len())
}
