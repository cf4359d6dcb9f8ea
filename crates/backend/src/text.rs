//! Shapes, datatypes and load errors as Triton's texts write them, for the errors of the backends.

use std::collections::BTreeSet;
use std::fmt;

use base::error::Error;
use base::tensor::Datatype;
use model::{ModelSpec, TensorSpec};

/// A shape as Triton writes it: `[-1,16]`.
pub struct ShapeText<'a>(pub &'a [i64]);

impl fmt::Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dimension) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{dimension}")?;
        }
        f.write_str("]")
    }
}

/// A datatype as `config.pbtxt` writes it.
pub fn config_name(datatype: Datatype) -> String {
    let name = if datatype == Datatype::Bytes { "STRING" } else { datatype.name() };
    format!("TYPE_{name}")
}

/// The error of a model that has another number of inputs than its configuration.
pub fn input_count_differs(spec: &ModelSpec, want: usize, came: usize) -> Error {
    let text = format!("configuration expects {want} inputs, model provides {came}");
    Error::invalid(format!("unable to load model '{}', {text}", spec.name))
}

/// The error of a configured input or output (`side`) that is not among those of the model.
pub fn unexpected_tensor<'a>(side: &str, name: &str, allowed: impl Iterator<Item = &'a str>) -> Error {
    let allowed = allowed.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ");
    Error::invalid(format!("unexpected inference {side} '{name}', allowed {side}s are: {allowed}"))
}

/// The error of a configured input or output (`side`) whose datatype in the model is another.
pub fn datatype_differs(spec: &ModelSpec, side: &str, name: &str, want: Datatype, came: &str) -> Error {
    let want = config_name(want);
    let text = format!("configuration expects datatype {want} for {side} '{name}', model provides {came}");
    Error::invalid(format!("unable to load model '{}', {text}", spec.name))
}

/// The error of an output that has another datatype than the configured one.
pub fn output_differs(spec: &ModelSpec, index: usize, came: &str) -> Error {
    let (name, want) = spec.outputs.get(index).map_or(("", ""), |output| (&output.name, output.datatype.name()));
    Error::internal(format!("output '{name}' of model '{}' must be {want} but came as {came}", spec.name))
}

/// Refuses a configured shape that the model's does not allow; -1 allows any size on either side.
///
/// # Errors
/// `InvalidArgument`, in Triton's words.
pub fn check_shape(spec: &ModelSpec, tensor: &TensorSpec, model: &[i64], configured: &[i64]) -> Result<(), Error> {
    let fits = |(model, config): (&i64, &i64)| *model == -1 || *config == -1 || model == config;
    if model.len() == configured.len() && model.iter().zip(configured).all(fits) {
        return Ok(());
    }
    let why = if spec.has_batch_axis() {
        "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete \
         shape"
    } else {
        "shape"
    };
    Err(Error::invalid(format!(
        "unable to load model '{}', tensor '{}': the model expects {} dimensions (shape {}) but the model configuration \
         specifies {} dimensions ({why} {})",
        spec.name,
        tensor.name,
        model.len(),
        ShapeText(model),
        tensor.model_shape.len(),
        ShapeText(&tensor.model_shape)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tritons() {
        assert_eq!(ShapeText(&[-1, 16]).to_string(), "[-1,16]");
        assert_eq!(ShapeText(&[]).to_string(), "[]");
        assert_eq!(config_name(Datatype::Fp32), "TYPE_FP32");
        assert_eq!(config_name(Datatype::Bytes), "TYPE_STRING");
    }
}
