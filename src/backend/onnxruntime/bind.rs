//! Holds a configuration against the inputs and outputs that the library found in the model, in
//! the words of Triton's backend. Dimensions that differ are refused by the library at each run;
//! the catalogue has held them against the file already.

use std::collections::BTreeSet;

use ort::value::{Outlet, ValueType};

use crate::backend::text::config_name;
use crate::error::Error;
use crate::model::{ModelSpec, TensorSpec};
use crate::tensor::Datatype;

use super::datatype::{element_type, natural};

/// An input or output: where it is in the configuration, and how it differs from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    /// Its place in the configuration.
    pub(super) index: usize,
    pub(super) datatype: Datatype,
    /// The model's tensor has not the last dimension of the configuration, which is 1: a
    /// configuration cannot express a scalar.
    pub(super) is_squeezed: bool,
}

/// Finds the model's inputs in the configuration, in the model's order: a run takes them so.
pub(super) fn bind_inputs(spec: &ModelSpec, outlets: &[Outlet]) -> Result<Vec<Port>, Error> {
    if let Some(input) = spec.inputs.iter().find(|input| input.is_optional) {
        let (input, model) = (&input.name, &spec.name);
        let text = format!("input '{input}' of model '{model}' is optional, which ONNX Runtime cannot serve");
        return Err(Error::unsupported(text));
    }
    if outlets.len() != spec.inputs.len() {
        let (want, came) = (spec.inputs.len(), outlets.len());
        let text = format!("configuration expects {want} inputs, model provides {came}");
        return Err(Error::invalid(format!("unable to load model '{}', {text}", spec.name)));
    }
    // The name that is not there is of more use than the one that is not configured.
    spec.inputs.iter().try_for_each(|input| find(outlets, "input", &input.name).map(drop))?;
    let bind = |outlet: &Outlet| {
        let index = spec.input_index(outlet.name());
        let (index, input) = index.and_then(|index| Some((index, spec.inputs.get(index)?))).ok_or_else(|| {
            let text = format!("input '{}' of the model is not configured", outlet.name());
            Error::invalid(format!("unable to load model '{}', {text}", spec.name))
        })?;
        port(spec, "input", index, input, outlet)
    };
    outlets.iter().map(bind).collect()
}

/// Finds the configured outputs in the model, which may have more of them.
pub(super) fn bind_outputs(spec: &ModelSpec, outlets: &[Outlet]) -> Result<Vec<Port>, Error> {
    let outputs = spec.outputs.iter().enumerate();
    let bind = |(index, output): (usize, &TensorSpec)| {
        let outlet = find(outlets, "output", &output.name)?;
        port(spec, "output", index, output, outlet)
    };
    outputs.map(bind).collect()
}

fn find<'a>(outlets: &'a [Outlet], side: &str, name: &str) -> Result<&'a Outlet, Error> {
    outlets.iter().find(|outlet| outlet.name() == name).ok_or_else(|| {
        let names: BTreeSet<_> = outlets.iter().map(Outlet::name).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        Error::invalid(format!("unexpected inference {side} '{name}', allowed {side}s are: {names}"))
    })
}

fn port(spec: &ModelSpec, side: &str, index: usize, tensor: &TensorSpec, outlet: &Outlet) -> Result<Port, Error> {
    let (model, name, want) = (&spec.name, &tensor.name, config_name(tensor.datatype));
    let refuse = |text: String| Err(Error::invalid(format!("unable to load model '{model}', {text}")));
    let (ty, shape) = match outlet.dtype() {
        ValueType::Tensor { ty, shape, .. } => (*ty, shape),
        ValueType::Sequence(_) => return refuse(format!("{side} '{name}' is a sequence, not a tensor; leave it out")),
        ValueType::Map { .. } => return refuse(format!("{side} '{name}' is a map, not a tensor; leave it out")),
        ValueType::Optional(_) => return refuse(format!("{side} '{name}' is an optional value, not a tensor")),
    };
    if ty != element_type(tensor.datatype) {
        let came = natural(ty).map_or_else(|| format!("{ty}, which the protocol cannot carry"), config_name);
        return refuse(format!("configuration expects datatype {want} for {side} '{name}', model provides {came}"));
    }
    let is_squeezed = tensor.dims.as_slice() == [1] && shape.len() + 1 == tensor.shape.len();
    Ok(Port { index, datatype: tensor.datatype, is_squeezed })
}
