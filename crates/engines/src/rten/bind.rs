//! Binds the configuration's inputs and outputs to the model's own, and refuses mismatches as Triton's
//! ONNX Runtime backend does and in its words, so that they are found at load and not by a client.

use rten::{DataType, Dimension, Model, NodeId, ValueType};

use backend::text::{ShapeText, config_name, datatype_differs, input_count_differs, unexpected_tensor};
use base::error::Error;
use base::tensor::{Datatype, Shape};
use model::{BatchInput, ModelSpec, TensorSpec};

use super::datatype::{ALTERNATIVE, held_as, natural};

/// An input or output of the configuration and its counterpart in the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct RtenBinding {
    pub(super) node: NodeId,
    pub(super) datatype: Datatype,
    /// The engine's datatype that represents it.
    pub(super) held: DataType,
    /// The model's tensor lacks the configuration's last dimension, which is 1: a configuration
    /// cannot express a scalar.
    pub(super) is_squeezed: bool,
}

/// A batch input in the model: INT32 or FP32, which need no conversion.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchBinding {
    pub(super) node: NodeId,
    pub(super) held: DataType,
}

/// The engine's datatypes of the inputs.
///
/// # Errors
///
/// Unsupported if the engine lacks one.
pub(super) fn held_inputs(spec: &ModelSpec) -> Result<Vec<DataType>, Error> {
    spec.inputs.iter().map(|input| held(spec, "input", input)).collect()
}

/// The engine's datatypes of the outputs.
///
/// # Errors
///
/// Unsupported if the engine lacks one.
pub(super) fn held_outputs(spec: &ModelSpec) -> Result<Vec<DataType>, Error> {
    spec.outputs.iter().map(|output| held(spec, "output", output)).collect()
}

fn held(spec: &ModelSpec, side: &str, tensor: &TensorSpec) -> Result<DataType, Error> {
    held_as(tensor.datatype).ok_or_else(|| {
        Error::unsupported(format!(
            "unable to load model '{}': {side} '{}' is {}, which the embedded engine does not have (it has BOOL, UINT8, \
             INT8, INT32, INT64, FP16 and FP32); {ALTERNATIVE}",
            spec.name,
            tensor.name,
            tensor.datatype.name()
        ))
    })
}

/// Finds the configured inputs in the model.
///
/// # Errors
///
/// If the model has other inputs, or the same of another datatype or shape.
pub(super) fn bind_inputs(spec: &ModelSpec, model: &Model, held: &[DataType]) -> Result<Vec<RtenBinding>, Error> {
    let nodes = model.input_ids();
    let (want, came) = (spec.inputs.len() + spec.batch_inputs.len(), nodes.len());
    if came != want {
        return Err(input_count_differs(spec, want, came));
    }
    let bind = |(input, held)| bind_tensor(spec, model, "input", nodes, None, input, held);
    spec.inputs.iter().zip(held.iter().copied()).map(bind).collect()
}

/// Finds the batch inputs in the model.
///
/// # Errors
///
/// If the model lacks one, or has it in another datatype.
pub(super) fn bind_batch_inputs(spec: &ModelSpec, model: &Model) -> Result<Vec<BatchBinding>, Error> {
    let bind = |input: &BatchInput| {
        let nodes = model.input_ids();
        let node = model.find_node(&input.name).filter(|node| nodes.contains(node));
        let node = node.ok_or_else(|| unexpected(model, "input", nodes, &input.name))?;
        let held = held_as(input.datatype).ok_or_else(|| Error::internal("a batch input is INT32 or FP32"))?;
        let declared = model.node_info(node).and_then(|node| node.dtype());
        check_datatype(spec, "input", &input.name, input.datatype, held, declared)?;
        Ok(BatchBinding { node, held })
    };
    spec.batch_inputs.iter().map(bind).collect()
}

/// Finds the configured outputs in the model, which may have others too.
///
/// # Errors
///
/// If the model lacks one, or declares another datatype or shape.
pub(super) fn bind_outputs(
    spec: &ModelSpec,
    model: &Model,
    graph_outputs: &[(String, i32)],
    held: &[DataType],
) -> Result<Vec<RtenBinding>, Error> {
    let nodes = model.output_ids();
    let bind = |(output, held): (&TensorSpec, DataType)| {
        // The engine may have folded it into a constant without its name.
        let place = graph_outputs.iter().position(|(name, _)| *name == output.name);
        bind_tensor(spec, model, "output", nodes, place.and_then(|place| nodes.get(place)).copied(), output, held)
    };
    spec.outputs.iter().zip(held.iter().copied()).map(bind).collect()
}

fn bind_tensor(
    spec: &ModelSpec,
    model: &Model,
    side: &str,
    nodes: &[NodeId],
    place: Option<NodeId>,
    tensor: &TensorSpec,
    held: DataType,
) -> Result<RtenBinding, Error> {
    let node = place.or_else(|| model.find_node(&tensor.name).filter(|node| nodes.contains(node)));
    let node = node.ok_or_else(|| unexpected(model, side, nodes, &tensor.name))?;
    let node_info = model.node_info(node);
    let declared = node_info.as_ref().and_then(rten::NodeInfo::dtype);
    // A model need not declare an output's datatype: then it is checked after each run. An input without a
    // datatype has one that the engine lacks.
    if side == "input" || declared.is_some() {
        check_datatype(spec, side, &tensor.name, tensor.datatype, held, declared)?;
    }
    let shape = node_info.and_then(|node| node.shape()).map(|shape| shape.iter().map(size).collect::<Shape>());
    let is_squeezed = match &shape {
        Some(shape) if tensor.is_ragged => check_ragged(spec, tensor, shape)?,
        Some(_) if tensor.scatter_source.is_some() => false,
        // The file, which its shape was read from, may be wrong; the engine infers another.
        Some(shape) if tensor.is_derived => tensor.may_be_scalar() && shape.len() + 1 == tensor.model_shape.len(),
        Some(shape) => check_shape(spec, side, tensor, shape)?,
        None => false,
    };
    Ok(RtenBinding { node, datatype: tensor.datatype, held, is_squeezed })
}

/// The shapes of all inputs, as the model declares them, in the order of the configuration; -1 for
/// a size that a request sets.
pub(super) fn input_shapes(
    spec: &ModelSpec,
    model: &Model,
    inputs: &[RtenBinding],
    batch_inputs: &[BatchBinding],
) -> Vec<Shape> {
    let declared = |node: NodeId| Some(model.node_info(node)?.shape()?.iter().map(size).collect::<Shape>());
    let configured = |index: usize, is_squeezed: bool| {
        let shape = spec.inputs.get(index).map_or(&[][..], |input| &input.model_shape);
        Shape::from_slice(shape.get(..shape.len() - usize::from(is_squeezed)).unwrap_or_default())
    };
    let ports = inputs.iter().enumerate();
    let ports = ports.map(|(index, port)| declared(port.node).unwrap_or_else(|| configured(index, port.is_squeezed)));
    let made = batch_inputs.iter().map(|port| declared(port.node).unwrap_or_else(|| Shape::from_slice(&[-1])));
    ports.chain(made).collect()
}

fn size(dimension: &Dimension) -> i64 {
    match dimension {
        Dimension::Fixed(size) => i64::try_from(*size).unwrap_or(i64::MAX),
        Dimension::Symbolic(_) => -1,
    }
}

fn unexpected(model: &Model, side: &str, nodes: &[NodeId], name: &str) -> Error {
    let infos: Vec<_> = nodes.iter().filter_map(|node| model.node_info(*node)).collect();
    unexpected_tensor(side, name, infos.iter().filter_map(rten::NodeInfo::name))
}

/// Checks the declared datatype. The engine reports INT64 and BOOL as INT32, and FP16 and FP64 as FP32, so these
/// cannot be told apart here.
fn check_datatype(
    spec: &ModelSpec,
    side: &str,
    name: &str,
    datatype: Datatype,
    held: DataType,
    declared: Option<ValueType>,
) -> Result<(), Error> {
    let came = match declared {
        Some(ValueType::Tensor(came)) if came == held => return Ok(()),
        Some(ValueType::Tensor(came)) => natural(came).map(config_name),
        _ => None,
    };
    Err(match came {
        Some(came) => datatype_differs(spec, side, name, datatype, &came),
        None => {
            let text =
                format!("{side} '{name}' is of a datatype that the embedded engine does not have; {ALTERNATIVE}");
            Error::invalid(format!("unable to load model '{}', {text}", spec.name))
        }
    })
}

/// Checks that a ragged input has one dimension of any size, for the elements of all requests.
fn check_ragged(spec: &ModelSpec, tensor: &TensorSpec, shape: &[i64]) -> Result<bool, Error> {
    if shape == [-1] {
        return Ok(false);
    }
    Err(Error::invalid(format!(
        "unable to load model '{}', configuration expects model provides input with shape [-1]  for ragged input '{}', \
         model provides {}",
        spec.name,
        tensor.name,
        ShapeText(shape)
    )))
}

/// Checks the model's shape against the configured one, and returns true if it lacks its last
/// dimension of 1.
fn check_shape(spec: &ModelSpec, side: &str, tensor: &TensorSpec, shape: &[i64]) -> Result<bool, Error> {
    let text = |detail: String| Error::invalid(format!("model '{}', tensor '{}': {detail}", spec.name, tensor.name));
    // The engine infers output shapes that the file leaves open. A configuration may leave the same
    // dimensions open, so only inputs must match exactly.
    let is_strict = side == "input";
    let has_axis = spec.has_batch_axis() && !tensor.is_shape_tensor;
    if is_strict && has_axis && shape.first() != Some(&-1) {
        return Err(text(format!(
            "for the model to support batching the shape should have at least 1 dimension and the first dimension must \
             be -1; but shape expected by the model is {}",
            ShapeText(shape)
        )));
    }
    let is_squeezed = tensor.may_be_scalar() && shape.len() + 1 == tensor.model_shape.len();
    let wanted = tensor.model_shape.as_slice();
    let configured = if is_squeezed { wanted.get(..shape.len()).unwrap_or_default() } else { wanted };
    let fits = |(model, config): (&i64, &i64)| *model == -1 || model == config || (!is_strict && *config == -1);
    if shape.len() == configured.len() && shape.iter().zip(configured).all(fits) {
        return Ok(is_squeezed);
    }
    let why = if spec.has_batch_axis() {
        "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete \
         shape"
    } else {
        "shape"
    };
    Err(text(format!(
        "the model expects {} dimensions (shape {}) but the model configuration specifies {} dimensions ({why} {})",
        shape.len(),
        ShapeText(shape),
        wanted.len(),
        ShapeText(wanted)
    )))
}
