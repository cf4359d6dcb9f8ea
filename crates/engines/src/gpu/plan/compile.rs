//! Compiles an ONNX graph to the steps of a plan. A change of shape makes no step; operators that
//! only move elements are in `reorder`. A bias and a ReLU are fused into the product before them,
//! other activations into the pointwise operation before them. An unknown operator is refused by
//! name; none is skipped.

mod reorder;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::gpu::plan::form::{PlanShape, StepSize};
use crate::gpu::plan::layout::ValueName;
use crate::gpu::plan::{GpuPlan, PlanStep, StepWork, ValueLocation, layout};
use crate::gpu::slot_sizes::SlotSizes;
use backend::kernel::pointwise::{Activation, PointwiseOperation, Strides};
use backend::kernel::reshape::BoxPart;
use base::limits::{BATCH_ROWS_RESERVED_MAX, GPU_BUFFER_ALIGNMENT};
use base::tensor::{Datatype, Shape, Tensor};
use model::ModelSpec;
use model::onnx::graph::{OnnxGraph, OnnxNode};

/// The shape and the buffer of a value.
#[derive(Clone, Debug)]
struct KnownValue {
    form: PlanShape,
    buffer: usize,
}

/// One operand of a binary operation.
enum Operand<'a> {
    Value(KnownValue),
    Constant(&'a Tensor),
}

struct Compiler<'a> {
    graph: &'a OnnxGraph,
    values: BTreeMap<&'a str, KnownValue>,
    /// Elements of each buffer per row of the batch.
    counts: Vec<usize>,
    /// The step whose output a value is, unless its shape was changed since.
    producers: BTreeMap<&'a str, usize>,
    /// The count of a value's readers: nodes, and the model's outputs.
    uses: BTreeMap<&'a str, usize>,
    steps: Vec<PlanStep<ValueName>>,
    weights: Vec<u8>,
}

/// Plans a graph whose inputs and outputs were checked.
///
/// # Errors
///
/// The reason why the graph cannot be planned, as a text.
pub(super) fn compile(graph: &OnnxGraph, spec: &ModelSpec) -> Result<GpuPlan, String> {
    let mut compiler = Compiler {
        graph,
        values: BTreeMap::new(),
        counts: Vec::new(),
        producers: BTreeMap::new(),
        uses: BTreeMap::new(),
        steps: Vec::new(),
        weights: Vec::new(),
    };
    let has_rows = spec.has_batch_axis();
    for input in &spec.inputs {
        let form =
            PlanShape::of_shape(&input.model_shape, has_rows).ok_or("an input has a dimension that is not known")?;
        let known = compiler.new_value(form)?;
        compiler.values.insert(&input.name, known);
    }
    let read = graph.nodes.iter().flat_map(|node| node.inputs.iter().map(String::as_str));
    for name in read.chain(spec.outputs.iter().map(|output| output.name.as_str())) {
        *compiler.uses.entry(name).or_default() += 1;
    }
    graph.nodes.iter().try_for_each(|node| compiler.add(node))?;
    compiler.into_plan(spec)
}

impl<'a> Compiler<'a> {
    fn into_plan(self, spec: &ModelSpec) -> Result<GpuPlan, String> {
        let mut outputs = Vec::with_capacity(spec.outputs.len());
        for output in &spec.outputs {
            let known = self.values.get(output.name.as_str());
            let known = known.ok_or_else(|| format!("output '{}' is not computed", output.name))?;
            let wanted = PlanShape::of_shape(&output.model_shape, spec.has_batch_axis());
            // A scalar per row is a last dimension of 1 in the configuration, which cannot express a scalar.
            let is_scalar = output.may_be_scalar() && known.form.dims.is_empty();
            if wanted.as_ref() != Some(&known.form) && !(is_scalar && known.form.has_rows == spec.has_batch_axis()) {
                return Err(format!("output '{}' has another shape than its configuration", output.name));
            }
            outputs.push((known.buffer, self.count(known.buffer)));
        }
        // The buffers are for the largest batch.
        if spec.rows_max > BATCH_ROWS_RESERVED_MAX {
            let rows = spec.rows_max;
            return Err(format!(
                "max_batch_size is {rows}, more than the {BATCH_ROWS_RESERVED_MAX} that its buffers can have"
            ));
        }
        let rows_max = usize::try_from(spec.rows_max.max(1)).unwrap_or(usize::MAX);
        let too_large = || "its values are too large for one launch".to_owned();
        let size = |count: &usize| {
            let elements = count.checked_mul(rows_max).filter(|elements| u32::try_from(*elements).is_ok());
            elements.and_then(|elements| elements.checked_mul(FLOAT_SIZE))
        };
        let sizes: Vec<_> = self.counts.iter().map(size).collect::<Option<_>>().ok_or_else(too_large)?;
        let row_size = |count: usize| count * FLOAT_SIZE;
        let input_sizes = self.counts.iter().take(spec.inputs.len()).map(|count| row_size(*count)).collect();
        let output_sizes = outputs.iter().map(|(_, count)| row_size(*count)).collect();
        let (steps, scratch) = layout::place(self.steps, &sizes, spec.inputs.len(), &outputs).ok_or_else(too_large)?;
        let sizes = SlotSizes {
            rows_max,
            inputs: input_sizes,
            datatypes: outputs.iter().map(|_| Datatype::Fp32).collect(),
            outputs: output_sizes,
            scratch,
            table: table_size(&steps),
            keeps_staged: false,
        };
        Ok(GpuPlan { steps, weights: self.weights, sizes: Arc::new(sizes) })
    }

    /// Adds the steps of an operator.
    fn add(&mut self, node: &'a OnnxNode) -> Result<(), String> {
        if !matches!(node.domain.as_str(), "" | "ai.onnx") {
            return Err(refused(node, "is not one of ONNX's own operators"));
        }
        match node.operator.as_str() {
            "Add" => self.add_binary(node, PointwiseOperation::Add),
            "Sub" => self.add_binary(node, PointwiseOperation::Subtract),
            "Mul" => self.add_binary(node, PointwiseOperation::Multiply),
            "Div" => self.add_binary(node, PointwiseOperation::Divide),
            "Concat" => self.add_concat(node),
            "Gemm" => self.add_gemm(node),
            "MatMul" => self.add_matmul(node),
            "Relu" => self.add_activation(node, Activation::Relu),
            "Sigmoid" => self.add_activation(node, Activation::Sigmoid),
            "Tanh" => self.add_activation(node, Activation::Tanh),
            "Gelu" if node.text("approximate") == Some("tanh") => self.add_activation(node, Activation::GeluTanh),
            "Gelu" => self.add_activation(node, Activation::Gelu),
            "Slice" => self.add_slice(node),
            "Softmax" => self.add_softmax(node),
            "Split" => self.add_split(node),
            "Transpose" => self.add_transpose(node),
            "Dropout" | "Flatten" | "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" => self.add_view(node),
            _ => Err(refused(node, "is not among those that the GPU's plan has")),
        }
    }

    /// An operator that changes only the shape: its output is the same buffer.
    fn add_view(&mut self, node: &'a OnnxNode) -> Result<(), String> {
        let known = self.value(node, 0)?;
        let axes = || -> Option<Vec<i64>> {
            node.integers("axes").map(<[i64]>::to_vec).or_else(|| self.integers(node.input(1)?))
        };
        let form = match node.operator.as_str() {
            "Flatten" => known.form.flatten(node.integer("axis", 1)),
            "Reshape" => node
                .input(1)
                .and_then(|name| self.integers(name))
                .and_then(|wanted| known.form.reshape(&wanted, node.integer("allowzero", 0) != 0)),
            "Squeeze" => axes().and_then(|axes| known.form.squeeze(&axes)),
            "Unsqueeze" => axes().and_then(|axes| known.form.unsqueeze(&axes)),
            // Dropout does nothing at inference. Its mask output is BOOL, which a plan has no values of.
            "Dropout" if node.outputs.len() > 1 => None,
            _ => Some(known.form.clone()),
        };
        let form =
            form.ok_or_else(|| refused(node, "makes a shape that is not known at load, or moves the batch axis"))?;
        self.values.insert(output_name(node)?, KnownValue { form, buffer: known.buffer });
        Ok(())
    }

    fn add_gemm(&mut self, node: &'a OnnxNode) -> Result<(), String> {
        let known = self.value(node, 0)?;
        let weight = self.weight(node, 1)?;
        let [first, second] = matrix(weight).ok_or_else(|| refused(node, "has a weight that is no matrix"))?;
        let is_transposed = node.integer("transB", 0) != 0;
        let (inner, columns) = if is_transposed { (second, first) } else { (first, second) };
        if node.integer("transA", 0) != 0 || known.form.rank() != 2 || known.form.dims.last() != Some(&inner) {
            return Err(refused(node, "takes another matrix than its weight fits"));
        }
        let bias = match node.input(2) {
            None => None,
            Some(_) => {
                let bias = self.weight(node, 2)?;
                let bias =
                    repeated(bias, columns).ok_or_else(|| refused(node, "adds a bias that is more than one row"))?;
                Some(self.add_weights(&bias, node.float("beta", 1.0)))
            }
        };
        let weight = self.add_weights(&floats(&weight.contents), node.float("alpha", 1.0));
        let work = StepWork::Multiply { inner, weight, is_transposed, bias, has_relu: false };
        let StepSize { per_row, .. } = known.form.as_matrix(1).ok_or_else(|| refused(node, TOO_LARGE))?;
        let size = StepSize { per_row, columns };
        self.push(node, work, size, ValueName::Buffer(known.buffer), known.form.with_columns(columns))
    }

    fn add_matmul(&mut self, node: &'a OnnxNode) -> Result<(), String> {
        let known = self.value(node, 0)?;
        let weight = self.weight(node, 1)?;
        let [inner, columns] = matrix(weight).ok_or_else(|| refused(node, "has a weight that is no matrix"))?;
        if known.form.rank() < 2 || known.form.dims.last() != Some(&inner) {
            return Err(refused(node, "takes another matrix than its weight fits"));
        }
        let weight = self.add_weights(&floats(&weight.contents), 1.0);
        let work = StepWork::Multiply { inner, weight, is_transposed: false, bias: None, has_relu: false };
        let StepSize { per_row, .. } = known.form.as_matrix(1).ok_or_else(|| refused(node, TOO_LARGE))?;
        let size = StepSize { per_row, columns };
        self.push(node, work, size, ValueName::Buffer(known.buffer), known.form.with_columns(columns))
    }

    fn add_softmax(&mut self, node: &'a OnnxNode) -> Result<(), String> {
        let known = self.value(node, 0)?;
        let rank = known.form.rank();
        // Before opset 13 all dimensions from the axis on form one row (ONNX operator Softmax).
        let is_old = self.graph.version < 13;
        let axis = node.integer("axis", if is_old { 1 } else { -1 });
        let axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).unwrap_or(usize::MAX);
        let axes = rank.checked_sub(axis).filter(|axes| *axes <= known.form.dims.len() && (is_old || *axes == 1));
        let size = axes.filter(|axes| *axes > 0).and_then(|axes| known.form.as_matrix(axes));
        let size = size.ok_or_else(|| refused(node, "is over another axis than the last"))?;
        self.push(node, StepWork::Softmax, size, ValueName::Buffer(known.buffer), known.form)
    }

    fn add_activation(&mut self, node: &'a OnnxNode, function: Activation) -> Result<(), String> {
        let known = self.value(node, 0)?;
        let producer = node.input(0).and_then(|name| self.sole_producer(name));
        if let Some((index, step)) = producer.and_then(|index| Some((index, self.steps.get_mut(index)?))) {
            let is_fused = match &mut step.work {
                StepWork::Multiply { has_relu, .. } if function == Activation::Relu && !*has_relu => {
                    *has_relu = true;
                    true
                }
                StepWork::Combine { activation, .. } if *activation == Activation::None => {
                    *activation = function;
                    true
                }
                _ => false,
            };
            if is_fused {
                return self.set_producer(node, known, index);
            }
        }
        let count = known.form.count().ok_or_else(|| refused(node, TOO_LARGE))?;
        let size = StepSize { per_row: 1, columns: count };
        self.push(node, StepWork::Activate(function), size, ValueName::Buffer(known.buffer), known.form)
    }

    fn add_binary(&mut self, node: &'a OnnxNode, operation: PointwiseOperation) -> Result<(), String> {
        let unequal = || refused(node, "has operands of shapes that do not go together here");
        match (self.operand(node, 0)?, self.operand(node, 1)?) {
            (Operand::Value(left), Operand::Value(right)) => {
                if left.form != right.form {
                    return Err(unequal());
                }
                let count = left.form.count().ok_or_else(|| refused(node, TOO_LARGE))?;
                let strides = along(count, 1).ok_or_else(|| refused(node, TOO_LARGE))?;
                let work = combine(ValueName::Buffer(right.buffer), operation, strides, strides);
                let size = StepSize { per_row: 1, columns: count };
                self.push(node, work, size, ValueName::Buffer(left.buffer), left.form)
            }
            (Operand::Value(value), Operand::Constant(constant)) => {
                if operation == PointwiseOperation::Add && self.add_bias(node, &value, constant)? {
                    return Ok(());
                }
                let (size, of_value, of_constant) = strides(&value.form, constant).ok_or_else(unequal)?;
                let constant = self.add_weights(&floats(&constant.contents), 1.0);
                let work = combine(constant, operation, of_value, of_constant);
                self.push(node, work, size, ValueName::Buffer(value.buffer), value.form)
            }
            (Operand::Constant(constant), Operand::Value(value)) => {
                if operation == PointwiseOperation::Add && self.add_bias(node, &value, constant)? {
                    return Ok(());
                }
                let (size, of_value, of_constant) = strides(&value.form, constant).ok_or_else(unequal)?;
                let constant = self.add_weights(&floats(&constant.contents), 1.0);
                let work = combine(ValueName::Buffer(value.buffer), operation, of_constant, of_value);
                self.push(node, work, size, constant, value.form)
            }
            (Operand::Constant(_), Operand::Constant(_)) => Err(refused(node, "has two constants")),
        }
    }

    /// Fuses a constant row into the product before it as its bias, if there is a product without
    /// one. Returns true if it did.
    fn add_bias(&mut self, node: &'a OnnxNode, value: &KnownValue, constant: &Tensor) -> Result<bool, String> {
        let of_value = node.inputs.iter().find(|name| !self.graph.constants.contains_key(*name));
        let producer = of_value.and_then(|name| self.sole_producer(name));
        let columns = value.form.dims.last().copied().unwrap_or_default();
        if value.form.repeated(&constant.shape).is_none_or(|axes| axes > 1) {
            return Ok(false);
        }
        let (Some(index), Some(row)) = (producer, repeated(constant, columns)) else { return Ok(false) };
        let is_open =
            |step: &PlanStep<ValueName>| matches!(step.work, StepWork::Multiply { bias: None, has_relu: false, .. });
        if !self.steps.get(index).is_some_and(is_open) {
            return Ok(false);
        }
        let added = self.add_weights(&row, 1.0);
        if let Some(PlanStep { work: StepWork::Multiply { bias, .. }, .. }) = self.steps.get_mut(index) {
            *bias = Some(added);
        }
        self.set_producer(node, value.clone(), index)?;
        Ok(true)
    }

    /// The step that produces a value, if the value has one reader only: fusing changes it for all readers.
    fn sole_producer(&self, name: &str) -> Option<usize> {
        self.producers.get(name).copied().filter(|_| self.uses.get(name) == Some(&1))
    }

    /// Makes a node's output the output of this step.
    fn set_producer(&mut self, node: &'a OnnxNode, known: KnownValue, step: usize) -> Result<(), String> {
        let name = output_name(node)?;
        self.values.insert(name, known);
        self.producers.insert(name, step);
        Ok(())
    }

    /// Adds a step.
    fn push(
        &mut self,
        node: &'a OnnxNode,
        work: StepWork<ValueName>,
        size: StepSize,
        input: ValueName,
        form: PlanShape,
    ) -> Result<(), String> {
        let known = self.new_value(form)?;
        let StepSize { per_row, columns } = size;
        self.steps.push(PlanStep { work, per_row, columns, input, output: ValueName::Buffer(known.buffer) });
        self.set_producer(node, known, self.steps.len() - 1)
    }

    fn new_value(&mut self, form: PlanShape) -> Result<KnownValue, String> {
        self.counts.push(form.count().ok_or("a value has more elements than can be counted")?);
        Ok(KnownValue { form, buffer: self.counts.len() - 1 })
    }

    fn count(&self, buffer: usize) -> usize {
        self.counts.get(buffer).copied().unwrap_or_default()
    }

    fn value(&self, node: &OnnxNode, index: usize) -> Result<KnownValue, String> {
        let known = node.input(index).and_then(|name| self.values.get(name));
        known.cloned().ok_or_else(|| {
            refused(
                node,
                "takes a constant where the plan needs a computed value, or a value that no operator computes",
            )
        })
    }

    fn weight(&self, node: &OnnxNode, index: usize) -> Result<&'a Tensor, String> {
        let found = node.input(index).and_then(|name| self.graph.constants.get(name));
        let is_read = |tensor: &&Tensor| tensor.datatype == Datatype::Fp32;
        found.filter(is_read).ok_or_else(|| refused(node, "takes a weight that is no constant of FP32"))
    }

    fn operand(&self, node: &OnnxNode, index: usize) -> Result<Operand<'a>, String> {
        let is_constant = node.input(index).is_some_and(|name| self.graph.constants.contains_key(name));
        if is_constant {
            self.weight(node, index).map(Operand::Constant)
        } else {
            self.value(node, index).map(Operand::Value)
        }
    }

    fn integers(&self, name: &str) -> Option<Vec<i64>> {
        let tensor = self.graph.constants.get(name).filter(|tensor| tensor.datatype == Datatype::Int64)?;
        Some(tensor.contents.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// Appends a constant to the weights, each element multiplied by a factor.
    fn add_weights(&mut self, values: &[f32], factor: f32) -> ValueName {
        let offset = self.weights.len().next_multiple_of(GPU_BUFFER_ALIGNMENT);
        self.weights.resize(offset, 0);
        self.weights.extend(values.iter().flat_map(|value| (value * factor).to_le_bytes()));
        ValueName::Weight(offset)
    }
}

/// Bytes of the table of boxes that steps move.
fn table_size(steps: &[PlanStep<ValueLocation>]) -> usize {
    steps.iter().filter(|step| matches!(step.work, StepWork::Move(_))).count() * size_of::<BoxPart>()
}

const FLOAT_SIZE: usize = 4;
const TOO_LARGE: &str = "has more elements than one launch takes";

fn refused(node: &OnnxNode, why: &str) -> String {
    let output = node.outputs.first().map_or("", String::as_str);
    format!("operator '{}', which gives '{output}', {why}", node.operator)
}

fn output_name(node: &OnnxNode) -> Result<&str, String> {
    node.outputs.first().map(String::as_str).ok_or_else(|| refused(node, "has no output"))
}

fn combine(right: ValueName, operation: PointwiseOperation, left: Strides, strides: Strides) -> StepWork<ValueName> {
    StepWork::Combine { right, operation, activation: Activation::None, left, strides }
}

/// The strides of a dense matrix of this many columns, or, if `rows` is 0, of one row that is repeated.
fn along(columns: usize, rows: usize) -> Option<Strides> {
    let row = if rows == 0 { 0 } else { u32::try_from(columns).ok()? };
    Some(Strides { row, column: 1 })
}

/// Returns the broadcast of a constant over a value: the size of the step, and the strides of the value and of the
/// constant. `None` if it does not broadcast.
fn strides(form: &PlanShape, constant: &Tensor) -> Option<(StepSize, Strides, Strides)> {
    let axes = form.repeated(&constant.shape)?;
    if axes == 0 {
        let count = form.count()?;
        let size = StepSize { per_row: 1, columns: count };
        return Some((size, along(count, 1)?, Strides { row: 0, column: 0 }));
    }
    let size = form.as_matrix(axes)?;
    Some((size, along(size.columns, 1)?, along(size.columns, 0)?))
}

/// The dimensions of a constant that is a matrix.
fn matrix(tensor: &Tensor) -> Option<[usize; 2]> {
    let sizes: SmallVec<[usize; 2]> =
        tensor.shape.iter().map(|size| usize::try_from(*size).ok()).collect::<Option<_>>()?;
    sizes.as_slice().try_into().ok()
}

/// A constant as a row of this many columns: a row as it is, or a scalar repeated.
fn repeated(tensor: &Tensor, columns: usize) -> Option<Vec<f32>> {
    let shape: Shape = tensor.shape.iter().copied().filter(|size| *size != 1).collect();
    let values = floats(&tensor.contents);
    match (shape.len(), values.as_slice()) {
        (0, [value]) => Some(vec![*value; columns]),
        (1, values) if values.len() == columns && tensor.shape.last() == Some(&(columns as i64)) => {
            Some(values.to_vec())
        }
        _ => None,
    }
}

fn floats(contents: &Bytes) -> Vec<f32> {
    contents.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
