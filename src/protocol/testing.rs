//! Models for the tests of this folder.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{Batching, ModelSpec, TensorSpec, VersionPolicy};
use crate::tensor::{Datatype, Shape};

/// A model named `m`; its inputs' and outputs' full shapes follow `rows_max`.
pub(crate) fn spec(rows_max: u32, inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>) -> ModelSpec {
    let batched = |mut tensor: TensorSpec| {
        if rows_max > 0 {
            tensor.shape.insert(0, -1);
        }
        tensor
    };
    ModelSpec {
        name: "m".to_owned(),
        platform: "identity".to_owned(),
        backend: "identity".to_owned(),
        rows_max,
        inputs: inputs.into_iter().map(batched).collect(),
        outputs: outputs.into_iter().map(batched).collect(),
        batching: (rows_max > 0).then(Batching::default),
        instance_groups: Vec::new(),
        version_policy: VersionPolicy::Latest(1),
        default_model_filename: String::new(),
        parameters: BTreeMap::new(),
        is_decoupled: false,
        config_json: Arc::from("{}"),
        config_message: Arc::from([]),
    }
}

/// An input with `dims`.
pub(crate) fn input(name: &str, datatype: Datatype, dims: &[i64]) -> TensorSpec {
    let dims = Shape::from_slice(dims);
    TensorSpec { name: name.to_owned(), datatype, shape: dims.clone(), dims, labels: None, is_optional: false }
}

/// An output with `dims`.
pub(crate) fn output(name: &str, datatype: Datatype, dims: &[i64]) -> TensorSpec {
    input(name, datatype, dims)
}
