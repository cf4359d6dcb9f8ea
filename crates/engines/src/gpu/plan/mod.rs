//! A dense ONNX graph as kernel launches and matrix products, with everything decided at load that does
//! not depend on the batch. `compile` makes it, `run` enqueues it; the same plan runs on the fake driver,
//! which computes by the CPU twins.
//!
//! Every value is FP32 and dense, with the same number of elements for each row of the batch, so each
//! step may view it as a matrix of its own shape. Bounded by the file and the rows of the largest batch.

mod box_move;
mod compile;
mod form;
mod layout;
mod run;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::gpu::plan::box_move::BoxMove;
use crate::gpu::program::{GpuProgram, ProgramSource};
use crate::gpu::slot_sizes::SlotSizes;
use backend::gpu::device::OpenDevice;
use backend::gpu::driver::DriverError;
use backend::gpu::memory::DeviceBuffer;
use backend::kernel::pointwise::{Activation, PointwiseOperation, Strides};
use base::error::Error;
use base::tensor::Datatype;
use model::ModelSpec;
use model::onnx::graph::OnnxGraph;
use model::onnx::{OnnxSignature, OnnxTensor};

/// A graph that can run on a GPU.
#[derive(Debug)]
pub struct GpuPlan {
    steps: Vec<PlanStep<ValueLocation>>,
    /// The constants that steps read, each aligned to `GPU_BUFFER_ALIGNMENT`. They stay on the host
    /// for the next context, if this one breaks.
    weights: Vec<u8>,
    sizes: Arc<SlotSizes>,
}

/// The location of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ValueLocation {
    /// An input of the batch.
    Input(usize),
    /// An output of the batch.
    Output(usize),
    /// An offset in bytes into the scratch memory.
    Scratch(usize),
    /// An offset in bytes into the weights.
    Weight(usize),
}

/// One product, or one launch, on matrices of `columns` columns and `per_row` rows for each row of the
/// batch. `P` is a buffer's name while the graph is planned, and its location afterwards.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PlanStep<P> {
    work: StepWork<P>,
    per_row: usize,
    columns: usize,
    input: P,
    output: P,
}

/// The work of a step on its input.
#[derive(Clone, Copy, Debug, PartialEq)]
enum StepWork<P> {
    /// A function of each element.
    Activate(Activation),
    /// A function of each element and the matching element of another value.
    Combine { right: P, operation: PointwiseOperation, activation: Activation, left: Strides, strides: Strides },
    /// A box of elements goes elsewhere.
    Move(BoxMove),
    /// A product with a weight.
    Multiply { inner: usize, weight: P, is_transposed: bool, bias: Option<P>, has_relu: bool },
    /// A softmax of each row.
    Softmax,
}

impl<P: Copy> PlanStep<P> {
    /// The values that it reads.
    fn reads(&self) -> impl Iterator<Item = P> {
        let others = match self.work {
            StepWork::Activate(_) | StepWork::Move(_) | StepWork::Softmax => [None, None],
            StepWork::Combine { right, .. } => [Some(right), None],
            StepWork::Multiply { weight, bias, .. } => [Some(weight), bias],
        };
        [Some(self.input)].into_iter().chain(others).flatten()
    }

    /// The step with each name mapped.
    fn map<Q>(&self, name: impl Fn(P) -> Q) -> PlanStep<Q> {
        let work = match self.work {
            StepWork::Activate(activation) => StepWork::Activate(activation),
            StepWork::Move(part) => StepWork::Move(part),
            StepWork::Softmax => StepWork::Softmax,
            StepWork::Combine { right, operation, activation, left, strides } => {
                StepWork::Combine { right: name(right), operation, activation, left, strides }
            }
            StepWork::Multiply { inner, weight, is_transposed, bias, has_relu } => {
                StepWork::Multiply { inner, weight: name(weight), is_transposed, bias: bias.map(&name), has_relu }
            }
        };
        PlanStep {
            work,
            per_row: self.per_row,
            columns: self.columns,
            input: name(self.input),
            output: name(self.output),
        }
    }
}

/// A plan with its weights on a device.
struct DevicePlan {
    steps: Arc<[PlanStep<ValueLocation>]>,
    weights: DeviceBuffer,
}

impl GpuPlan {
    /// Plans the graph of an ONNX file for the inputs and outputs of a configuration.
    ///
    /// # Errors
    ///
    /// Unsupported, with the reason, if the plan cannot express the graph; invalid if the file is
    /// broken.
    pub fn new(file: &[u8], spec: &ModelSpec) -> Result<Self, Error> {
        check(&OnnxSignature::decode(file)?, spec).map_err(Error::unsupported)?;
        compile::compile(&OnnxGraph::decode(file)?, spec).map_err(Error::unsupported)
    }
}

/// Refuses models that no graph can run: their tensors are not FP32, or their size depends on the
/// request.
fn check(signature: &OnnxSignature, spec: &ModelSpec) -> Result<(), String> {
    if spec.sequence.is_some() {
        return Err("a model of sequences runs on the CPU".to_owned());
    }
    if !spec.batch_inputs.is_empty() {
        return Err("'batch_input' is made on the CPU".to_owned());
    }
    for (kind, tensors) in [("input", &spec.inputs), ("output", &spec.outputs)] {
        for tensor in tensors {
            let name = &tensor.name;
            let sizes = tensor.model_shape.get(usize::from(spec.has_batch_axis())..).unwrap_or_default();
            if tensor.datatype != Datatype::Fp32 {
                return Err(format!(
                    "{kind} '{name}' is {}, and the GPU's plan computes in FP32",
                    tensor.datatype.name()
                ));
            }
            if tensor.is_ragged || tensor.is_optional || tensor.is_shape_tensor || tensor.scatter_source.is_some() {
                return Err(format!("{kind} '{name}' is ragged, optional or a shape"));
            }
            if sizes.iter().any(|size| *size < 0) {
                return Err(format!("{kind} '{name}' has a dimension of any size besides the batch's"));
            }
        }
    }
    let is_shorter = |tensor: &OnnxTensor| {
        let input = spec.inputs.iter().find(|input| input.name == tensor.name);
        input.zip(tensor.shape.as_ref()).is_some_and(|(input, shape)| input.model_shape.len() != shape.len())
    };
    match signature.inputs.iter().find(|tensor| is_shorter(tensor)) {
        None => Ok(()),
        Some(tensor) => Err(format!("input '{}' has another rank in the file than in the configuration", tensor.name)),
    }
}

impl ProgramSource for GpuPlan {
    fn sizes(&self) -> Arc<SlotSizes> {
        Arc::clone(&self.sizes)
    }

    fn needs_blas(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.work, StepWork::Multiply { .. }))
    }

    fn place(&self, opened: &Arc<OpenDevice>) -> Result<Arc<dyn GpuProgram>, DriverError> {
        let weights = DeviceBuffer::with_contents(opened, &self.weights)?;
        Ok(Arc::new(DevicePlan { steps: self.steps.clone().into(), weights }))
    }
}
