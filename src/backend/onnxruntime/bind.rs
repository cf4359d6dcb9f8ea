//! Holds a configuration against the inputs and outputs that the library found in the model, in
//! the words of Triton's backend. Dimensions that differ are refused by the library at each run;
//! the catalogue has held them against the file already.

use ort::value::{Outlet, ValueType};

use crate::backend::text::{config_name, datatype_differs, input_count_differs, unexpected_tensor};
use crate::error::Error;
use crate::model::{ModelSpec, TensorSpec};
use crate::tensor::Datatype;

use super::datatype::{element_type, natural};

/// An input or output: where it is in the configuration, and how it differs from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrtBinding {
    /// Its place in the configuration.
    pub(super) index: usize,
    pub(super) datatype: Datatype,
    /// The model's tensor has not the last dimension of the configuration, which is 1: a
    /// configuration cannot express a scalar.
    pub(super) is_squeezed: bool,
}

/// Where an input of the model comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum InputSource {
    /// It is made of each batch.
    Batch {
        /// Its place among the batch inputs.
        index: usize,
        /// INT32 or FP32.
        datatype: Datatype,
    },
    /// Each request brings it.
    Request(OrtBinding),
}

/// Finds the model's inputs in the configuration, in the model's order: a run takes them so.
pub(super) fn bind_inputs(spec: &ModelSpec, outlets: &[Outlet]) -> Result<Vec<InputSource>, Error> {
    let required = spec.inputs.iter().filter(|input| !input.is_optional);
    let (want, came) = (required.clone().count() + spec.batch_inputs.len(), outlets.len());
    if want != came {
        return Err(input_count_differs(spec, want, came));
    }
    // The name that is not there is of more use than the one that is not configured.
    let mut names = required.map(|input| &input.name).chain(spec.batch_inputs.iter().map(|input| &input.name));
    names.try_for_each(|name| find(outlets, "input", name).map(drop))?;
    outlets.iter().map(|outlet| bind_input(spec, outlet)).collect()
}

fn bind_input(spec: &ModelSpec, outlet: &Outlet) -> Result<InputSource, Error> {
    let name = outlet.name();
    if let Some((index, input)) = spec.input_index(name).and_then(|index| Some((index, spec.inputs.get(index)?))) {
        return port(spec, "input", index, input, outlet).map(InputSource::Request);
    }
    if let Some((index, input)) = spec.batch_inputs.iter().enumerate().find(|(_, input)| input.name == name) {
        check_datatype(spec, "input", name, input.datatype, outlet)?;
        return Ok(InputSource::Batch { index, datatype: input.datatype });
    }
    let text = format!("input '{name}' of the model is not configured");
    Err(Error::invalid(format!("unable to load model '{}', {text}", spec.name)))
}

/// The inputs that a request may leave out, by their places: the library lists none that has an
/// initial value. The catalogue has held them against the file.
pub(super) fn optional_inputs(spec: &ModelSpec) -> Vec<OrtBinding> {
    let inputs = spec.inputs.iter().enumerate().filter(|(_, input)| input.is_optional);
    inputs.map(|(index, input)| OrtBinding { index, datatype: input.datatype, is_squeezed: false }).collect()
}

/// Finds the configured outputs in the model, which may have more of them.
pub(super) fn bind_outputs(spec: &ModelSpec, outlets: &[Outlet]) -> Result<Vec<OrtBinding>, Error> {
    let outputs = spec.outputs.iter().enumerate();
    let bind = |(index, output): (usize, &TensorSpec)| {
        let outlet = find(outlets, "output", &output.name)?;
        port(spec, "output", index, output, outlet)
    };
    outputs.map(bind).collect()
}

fn find<'a>(outlets: &'a [Outlet], side: &str, name: &str) -> Result<&'a Outlet, Error> {
    let found = outlets.iter().find(|outlet| outlet.name() == name);
    found.ok_or_else(|| unexpected_tensor(side, name, outlets.iter().map(Outlet::name)))
}

fn port(spec: &ModelSpec, side: &str, index: usize, tensor: &TensorSpec, outlet: &Outlet) -> Result<OrtBinding, Error> {
    let rank = check_datatype(spec, side, &tensor.name, tensor.datatype, outlet)?;
    let is_whole = tensor.is_ragged || tensor.scatter_source.is_some();
    let is_squeezed = !is_whole && tensor.has_last_one() && rank + 1 == tensor.model_shape.len();
    Ok(OrtBinding { index, datatype: tensor.datatype, is_squeezed })
}

/// The rank of the model's tensor, where its datatype is the configured one.
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
