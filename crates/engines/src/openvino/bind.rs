//! Binds the configuration's inputs and outputs to those of a model that was read, reshapes the
//! model for batches, and refuses mismatches in the words of Triton's backends.

use backend::text::{check_shape, config_name, datatype_differs, input_count_differs, unexpected_tensor};
use base::error::Error;
use base::tensor::{Datatype, Shape};
use model::platform::TENSORFLOW_BACKEND;
use model::{ModelSpec, TensorSpec};

use super::library::{OvAsked, OvModel, OvPort, OvSide};
use super::options::OpenvinoOptions;

/// An input of the model, in the configuration's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InputPort {
    /// Its index in the model.
    pub(super) index: usize,
    /// The datatype of the configuration.
    pub(super) datatype: Datatype,
    /// The model's tensor lacks the configuration's last dimension, which is 1.
    pub(super) is_squeezed: bool,
    /// The shapes that the model takes, -1 for any size.
    pub(super) taken: Shape,
}

/// The model's tensors, and what is to be done with the model.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) inputs: Vec<InputPort>,
    /// In the configuration's order.
    pub(super) outputs: Vec<OvAsked>,
    /// The inputs that the configuration has in another datatype than the model.
    pub(super) converted: Vec<(usize, Datatype)>,
    /// The rows of every batch, if the model takes no others.
    pub(super) fixed_rows: Option<i64>,
}

/// The reason why a model cannot be bound.
#[derive(Debug)]
pub(super) enum BindError {
    /// The configuration does not fit it.
    Configuration(Error),
    /// The library refuses it.
    Library(String),
}

impl From<Error> for BindError {
    fn from(error: Error) -> Self {
        Self::Configuration(error)
    }
}

impl From<String> for BindError {
    fn from(why: String) -> Self {
        Self::Library(why)
    }
}

/// Binds a model, which is reshaped if batches need it.
pub(super) fn bind(spec: &ModelSpec, options: &OpenvinoOptions, model: &mut OvModel) -> Result<Bound, BindError> {
    let ports = model.ports(OvSide::Input)?;
    if ports.len() != spec.inputs.len() || !spec.batch_inputs.is_empty() {
        return Err(input_count_differs(spec, spec.inputs.len() + spec.batch_inputs.len(), ports.len()).into());
    }
    let (mut inputs, mut converted, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
    for input in &spec.inputs {
        check_kind(spec, "input", input)?;
        let index = find(spec, model, OvSide::Input, &ports, &input.name)?;
        if inputs.iter().any(|other: &InputPort| other.index == index) {
            let text = format!("input '{}' is another name of an input that is configured, too", input.name);
            return Err(Error::invalid(format!("unable to load model '{}', {text}", spec.name)).into());
        }
        let port = ports.get(index).ok_or_else(|| "it has no such input".to_owned())?;
        if port.datatype != Some(input.datatype) {
            if port.datatype.is_none() {
                return Err(datatype_differs(spec, "input", &input.name, input.datatype, NO_DATATYPE).into());
            }
            converted.push((index, input.datatype));
        }
        let (shape, is_squeezed) = input_shape(spec, options, input, port)?;
        let taken = shape.clone().or_else(|| port.shape.clone()).unwrap_or_default();
        shapes.extend(shape.map(|shape| (index, shape)));
        inputs.push(InputPort { index, datatype: input.datatype, is_squeezed, taken });
    }
    if !shapes.is_empty() {
        model.reshape(&shapes)?;
    }
    let outputs = bind_outputs(spec, model)?;
    // All inputs of a batch have the same rows, and so have those of the model that fixes them.
    let mut rows = inputs.iter().filter_map(|input| input.taken.first().copied());
    let fixed_rows = rows.find(|rows| spec.has_batch_axis() && *rows > 0);
    Ok(Bound { inputs, outputs, converted, fixed_rows })
}

const NO_DATATYPE: &str = "one that this backend does not take";

/// The shape that an input of the model must get, if its own does not fit, and true if it is a
/// scalar.
fn input_shape(
    spec: &ModelSpec,
    options: &OpenvinoOptions,
    input: &TensorSpec,
    port: &OvPort,
) -> Result<(Option<Shape>, bool), Error> {
    let configured = &input.model_shape;
    // Of an unknown rank: the configuration's is taken.
    let Some(shape) = &port.shape else { return Ok((Some(configured.clone()), false)) };
    if options.reshapes && shape.len() == configured.len() {
        return Ok((Some(configured.clone()), false));
    }
    let is_squeezed = input.may_be_scalar() && shape.len() + 1 == configured.len();
    let wanted = configured.get(..configured.len() - usize::from(is_squeezed)).unwrap_or_default();
    let mut open = shape.clone();
    let first = open.first_mut().filter(|size| spec.has_batch_axis() && **size != -1 && !options.keeps_batch_size);
    let is_reshaped = first.map(|size| *size = -1).is_some();
    check_shape(spec, input, &open, wanted)?;
    Ok((is_reshaped.then_some(open), is_squeezed))
}

fn bind_outputs(spec: &ModelSpec, model: &OvModel) -> Result<Vec<OvAsked>, BindError> {
    let ports = model.ports(OvSide::Output)?;
    let bind = |output: &TensorSpec| {
        check_kind(spec, "output", output)?;
        let index = find(spec, model, OvSide::Output, &ports, &output.name)?;
        let port = ports.get(index).ok_or_else(|| "it has no such output".to_owned())?;
        if port.datatype != Some(output.datatype) {
            let came = port.datatype.map_or_else(|| NO_DATATYPE.to_owned(), config_name);
            return Err(datatype_differs(spec, "output", &output.name, output.datatype, &came).into());
        }
        if let Some(shape) = &port.shape {
            let lacks_one = output.may_be_scalar() && shape.len() + 1 == output.model_shape.len();
            let wanted = output.model_shape.len() - usize::from(lacks_one);
            check_shape(spec, output, shape, output.model_shape.get(..wanted).unwrap_or_default())?;
        }
        // The rank may be open: the run sets it.
        let shape = port.shape.clone().unwrap_or_else(|| Shape::from_slice(&[-1]));
        Ok(OvAsked { name: output.name.clone(), index, datatype: output.datatype, shape })
    };
    spec.outputs.iter().map(bind).collect()
}

fn check_kind(spec: &ModelSpec, side: &str, tensor: &TensorSpec) -> Result<(), Error> {
    let what = match tensor {
        TensorSpec { is_optional: true, .. } => "'optional'",
        TensorSpec { is_ragged: true, .. } => "'allow_ragged_batch'",
        TensorSpec { is_shape_tensor: true, .. } => "'is_shape_tensor'",
        TensorSpec { scatter_source: Some(_), .. } => "'batch_output'",
        TensorSpec { datatype: Datatype::Bytes, .. } => "TYPE_STRING",
        _ => return Ok(()),
    };
    let (name, model) = (&tensor.name, &spec.name);
    Err(Error::invalid(format!(
        "unable to load model '{model}', {side} '{name}' is {what}, which OpenVINO does not take"
    )))
}

/// The index of the input or output of this name.
fn find(spec: &ModelSpec, model: &OvModel, side: OvSide, ports: &[OvPort], name: &str) -> Result<usize, Error> {
    // A frozen graph of TensorFlow's is configured by its operations, and its tensors are their outputs.
    let first_output = (spec.backend == TENSORFLOW_BACKEND).then(|| format!("{name}:0"));
    let any_name = model.any_name(side, name).or_else(|| model.any_name(side, first_output.as_deref()?));
    // A port has several names, of which the library reports one, always the same.
    let index = any_name.and_then(|any| ports.iter().position(|port| port.name.as_ref() == Some(&any)));
    index.ok_or_else(|| {
        let side = if side == OvSide::Input { "input" } else { "output" };
        unexpected_tensor(side, name, ports.iter().filter_map(|port| port.name.as_deref()))
    })
}
