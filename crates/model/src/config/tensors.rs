//! Inputs and outputs of a configuration: their common fields, their checks with Triton's texts
//! (`model_config_utils.cc`, `ValidateIOShape`), and the shapes that the model sees. Called by
//! [`crate::config::validate`] and [`crate::config`].

use std::collections::BTreeSet;

use crate::limits::MODEL_TENSORS_MAX;
use crate::platform::PYTHON_BACKEND;
use base::error::Error;
use base::limits::RANK_MAX;
use wire::proto::inference::model_input::Format;
use wire::proto::inference::{DataType, ModelConfig, ModelInput, ModelOutput, ModelTensorReshape};

/// The common fields of `ModelInput` and `ModelOutput`.
#[derive(Clone, Copy)]
pub struct TensorIo<'a> {
    kind: &'static str,
    /// The name.
    pub name: &'a str,
    /// The datatype.
    pub data_type: DataType,
    /// The dims that clients see.
    pub dims: &'a [i64],
    reshape: Option<&'a ModelTensorReshape>,
    /// True if the values of the tensor are a shape.
    pub is_shape_tensor: bool,
    is_non_linear: bool,
}

impl<'a> TensorIo<'a> {
    /// The fields of an input.
    pub fn of_input(input: &'a ModelInput) -> Self {
        Self {
            kind: "input",
            name: &input.name,
            data_type: input.data_type(),
            dims: &input.dims,
            reshape: input.reshape.as_ref(),
            is_shape_tensor: input.is_shape_tensor,
            is_non_linear: input.is_non_linear_format_io,
        }
    }

    /// The fields of an output.
    pub fn of_output(output: &'a ModelOutput) -> Self {
        Self {
            kind: "output",
            name: &output.name,
            data_type: output.data_type(),
            dims: &output.dims,
            reshape: output.reshape.as_ref(),
            is_shape_tensor: output.is_shape_tensor,
            is_non_linear: output.is_non_linear_format_io,
        }
    }

    /// The dims that the model sees, without the batch axis.
    pub fn model_dims(&self) -> &'a [i64] {
        self.reshape.map_or(self.dims, |reshape| &reshape.shape)
    }

    /// The full shape that the model sees: with the batch axis in front if the model batches. A shape tensor has no
    /// batch axis but one value more: the number of rows in the batch.
    pub fn model_shape(&self, max_batch_size: i32) -> Vec<i64> {
        let dims = self.model_dims();
        match (max_batch_size > 0, self.is_shape_tensor) {
            (false, _) => dims.to_vec(),
            (true, false) => std::iter::once(-1).chain(dims.iter().copied()).collect(),
            (true, true) => dims.iter().map(|size| size.saturating_add(1)).collect(),
        }
    }
}

/// Checks all inputs and outputs.
///
/// # Errors
/// `InvalidArgument` for the first that is not valid, with Triton's text if Triton refuses the same.
pub fn check(config: &ModelConfig) -> Result<(), Error> {
    let model = &config.name;
    let with_model = |text: String| Error::invalid(format!("{text} for {model}"));
    let inputs = config.input.iter().map(TensorIo::of_input);
    let outputs = config.output.iter().map(TensorIo::of_output);
    let mut names = BTreeSet::new();
    for io in inputs.chain(outputs) {
        check_one(&io, config.max_batch_size).map_err(with_model)?;
        if !names.insert((io.kind, io.name)) {
            return Err(Error::invalid(format!("model '{model}': {} '{}' is listed twice", io.kind, io.name)));
        }
    }
    if config.input.iter().any(|input| input.format() != Format::None && input.dims.len() != 3) {
        return Err(with_model("model input NHWC/NCHW require 3 dims".to_owned()));
    }
    check_shape_tensors(config).map_err(with_model)?;
    // As in Triton, a model.py may make its outputs of nothing, or only take inputs.
    let may_lack_some = config.backend == PYTHON_BACKEND && !(config.input.is_empty() && config.output.is_empty());
    for (kind, count) in [("input", config.input.len()), ("output", config.output.len())] {
        // Rows are counted by inputs.
        let may_lack = may_lack_some && (kind == "output" || config.max_batch_size == 0);
        if count == 0 && !may_lack {
            return Err(Error::invalid(format!(
                "model configuration must contain at least one {kind}, none were specified for {model}"
            )));
        }
        if count > MODEL_TENSORS_MAX {
            let text = format!("model '{model}' has {count} {kind}s, more than the {MODEL_TENSORS_MAX} allowed");
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}

fn check_one(io: &TensorIo<'_>, max_batch_size: i32) -> Result<(), String> {
    let TensorIo { kind, name, data_type, dims, .. } = io;
    if name.is_empty() {
        return Err(format!("model {kind} must specify 'name'"));
    }
    if *data_type == DataType::TypeInvalid {
        return Err(format!("model {kind} '{name}' must specify 'data_type'"));
    }
    if dims.is_empty() {
        return Err(format!("model {kind} '{name}' must specify 'dims'"));
    }
    let is_empty = io.reshape.is_some_and(|reshape| reshape.shape.is_empty());
    if is_empty && max_batch_size == 0 {
        return Err(format!(
            "model {kind} '{name}' cannot have empty reshape for non-batching model as scalar tensors are not supported"
        ));
    }
    if !dims.iter().all(is_valid_dimension) {
        return Err(format!("model {kind} '{name}' dimension {VALID_DIMENSION}"));
    }
    if dims.len() >= RANK_MAX {
        let most = RANK_MAX - 1;
        return Err(format!("model {kind} '{name}' has {} dims, more than the {most} allowed", dims.len()));
    }
    if let Some(reshape) = io.reshape {
        check_reshape(dims, &reshape.shape).map_err(|text| format!("model {kind} '{name}' {text}"))?;
    }
    if io.is_non_linear {
        return Err("Non-linear IO format is only supported for the TensorRT platform".to_owned());
    }
    if io.is_shape_tensor { check_shape_tensor(io) } else { Ok(()) }
}

fn is_valid_dimension(dimension: &i64) -> bool {
    *dimension >= 1 || *dimension == -1
}

const VALID_DIMENSION: &str = "must be integer >= 1, or -1 to indicate a variable-size dimension";

/// Checks that both have the same number of elements for all sizes of the variable dimensions:
/// those keep their order, and the products of the fixed dimensions between them are equal.
fn check_reshape(dims: &[i64], shape: &[i64]) -> Result<(), String> {
    if !shape.iter().all(is_valid_dimension) {
        return Err(format!("reshape dimensions {VALID_DIMENSION}"));
    }
    if shape.len() >= RANK_MAX {
        return Err(format!("has {} dims in its reshape, more than the {} allowed", shape.len(), RANK_MAX - 1));
    }
    let differs = || Err("has different size for dims and reshape".to_owned());
    let (Some(want), Some(have)) = (fixed_products(dims), fixed_products(shape)) else {
        return Err("has more elements than a tensor can have".to_owned());
    };
    if (want.len() == 1) != (have.len() == 1) {
        return differs();
    }
    if want.len() != have.len() {
        return Err("has different number of variable-size dimensions for dims and reshape".to_owned());
    }
    if want == have { Ok(()) } else { differs() }
}

/// The products of the fixed dimensions between the variable-size ones; `None` on overflow.
fn fixed_products(dims: &[i64]) -> Option<Vec<i64>> {
    let product = |chunk: &[i64]| chunk.iter().try_fold(1_i64, |product, size| product.checked_mul(*size));
    dims.split(|size| *size == -1).map(product).collect()
}

/// The values of a shape tensor are the dimensions of another tensor: integers, and at most `RANK_MAX - 1` of them.
fn check_shape_tensor(io: &TensorIo<'_>) -> Result<(), String> {
    let TensorIo { kind, name, .. } = io;
    let has_values = matches!(io.dims, [count] if (1..RANK_MAX as i64).contains(count));
    if has_values && io.reshape.is_none() && matches!(io.data_type, DataType::TypeInt32 | DataType::TypeInt64) {
        return Ok(());
    }
    Err(format!(
        "model {kind} '{name}' is a shape tensor, which must be TYPE_INT32 or TYPE_INT64 with one dimension of 1 to {} and \
         without 'reshape'",
        RANK_MAX - 1
    ))
}

/// A shape tensor has no batch axis, so it cannot be used with features that work along that axis.
fn check_shape_tensors(config: &ModelConfig) -> Result<(), String> {
    for input in config.input.iter().filter(|input| input.is_shape_tensor) {
        let name = &input.name;
        let other = if input.optional {
            "be 'optional'"
        } else if input.allow_ragged_batch {
            "have 'allow_ragged_batch'"
        } else if config.batch_input.iter().any(|batch| batch.source_input.contains(name)) {
            "be the source of a 'batch_input'"
        } else if config.batch_output.iter().any(|batch| batch.source_input.contains(name)) {
            "be the source of a 'batch_output'"
        } else {
            continue;
        };
        return Err(format!("model input '{name}' is a shape tensor, which cannot {other}"));
    }
    let targets = config.batch_output.iter().flat_map(|batch| &batch.target_name);
    let mut outputs = config.output.iter().filter(|output| output.is_shape_tensor);
    if let Some(output) = outputs.find(|output| targets.clone().any(|target| *target == output.name)) {
        return Err(format!("model output '{}' is a shape tensor, which cannot be a 'batch_output'", output.name));
    }
    if config.max_batch_size > 0 && !config.input.is_empty() && config.input.iter().all(|input| input.is_shape_tensor) {
        return Err(
            "model batches but has only shape tensors as inputs, which do not say the rows of a request".to_owned()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reshape_has_the_elements_of_the_dims_between_variable_dimensions() {
        let check = |dims: &[i64], shape: &[i64], want: &str| {
            let got = check_reshape(dims, shape).err().unwrap_or_default();
            assert_eq!(got, want, "{dims:?} {shape:?}");
        };
        let size = "has different size for dims and reshape";
        let number = "has different number of variable-size dimensions for dims and reshape";
        check(&[1], &[], "");
        check(&[1, 1], &[], "");
        check(&[2], &[], size);
        check(&[4, 4], &[16], "");
        check(&[4, 4], &[2, 2, 2, 2], "");
        check(&[4, 4], &[15], size);
        check(&[2, 4, -1, 6], &[8, -1, 1, 6], "");
        check(&[2, 4, -1, 6], &[8, -1, 5], size);
        check(&[-1, 2], &[2, -1], size);
        check(&[-1, -1], &[-1, 1, -1], "");
        check(&[-1, -1], &[-1], number);
        check(&[-1], &[4], size);
        check(&[4], &[-1], size);
        check(&[-1], &[], size);
        check(&[4], &[0], "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension");
        check(&[4], &[-2], "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension");
        check(&[i64::MAX, 2], &[2, i64::MAX], "has more elements than a tensor can have");
        check(&[1], &[1; RANK_MAX], "has 32 dims in its reshape, more than the 31 allowed");
    }
}
