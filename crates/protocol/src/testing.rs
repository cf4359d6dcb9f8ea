//! Models, regions and statistics for the tests of this folder.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::shared_memory::{MemoryError, Region, RegionDescription, RegionMemory, RegionPlace, RegionRegistry};
use base::metrics::{BatchFigures, DurationTotal, InferenceStatistics, ModelStatistics};
use base::tensor::Datatype;
use model::{Batching, ModelSpec, TensorSpec, VersionPolicy};

/// A model named `m`; with `rows_max` above 0 its inputs and outputs get a batch axis.
pub fn spec(rows_max: u32, inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>) -> ModelSpec {
    let batched = |mut tensor: TensorSpec| {
        if rows_max > 0 {
            tensor.shape.insert(0, -1);
            tensor.model_shape.insert(0, -1);
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
        batch_inputs: Vec::new(),
        batching: (rows_max > 0).then(Batching::default),
        ensemble: None,
        python: None,
        library: None,
        sequence: None,
        steps: None,
        instance_groups: Vec::new(),
        version_policy: VersionPolicy::Latest(1),
        default_model_filename: String::new(),
        parameters: BTreeMap::new(),
        optimization: Default::default(),
        warm_ups: Vec::new(),
        metric_labels: String::new(),
        first_response_bounds: None,
        is_cached: false,
        is_batch_axis_derived: false,
        identity: None,
        refused_axes: Vec::new(),
        is_decoupled: false,
        follows_triton: false,
        namespace: String::new(),
        config_json: Arc::from("{}"),
        config_message: Arc::from([]),
    }
}

/// An input with `dims`.
pub fn input(name: &str, datatype: Datatype, dims: &[i64]) -> TensorSpec {
    TensorSpec::new(name, datatype, dims, false)
}

/// An output with `dims`.
pub fn output(name: &str, datatype: Datatype, dims: &[i64]) -> TensorSpec {
    input(name, datatype, dims)
}

/// Regions `r` and `s` of 64 bytes of system memory, and `g` of 64 bytes of a GPU's; one request may use 96 bytes.
pub fn regions() -> RegionRegistry {
    let mut registry = RegionRegistry::new(96);
    let system = |key: &str| RegionPlace::System { key: key.to_owned(), offset: 0 };
    for (name, place) in [("r", system("/r")), ("s", system("/s")), ("g", RegionPlace::Cuda { device: 1 })] {
        registry.insert(Region::new(RegionDescription { name: name.to_owned(), size: 64, place }, Box::new(Sevens)));
    }
    registry
}

/// Memory that reads as sevens and ignores writes.
#[derive(Debug)]
pub struct Sevens;

impl RegionMemory for Sevens {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn read(&self, _offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        out.fill(7);
        Ok(())
    }

    fn write(&self, _offset: u64, _bytes: &[u8]) -> Result<(), MemoryError> {
        Ok(())
    }
}

/// Statistics of a model in which all figures differ.
pub fn statistics() -> ModelStatistics {
    let total = |count, nanos| DurationTotal { count, nanos };
    ModelStatistics {
        name: "m".to_owned(),
        version: 3,
        last_inference: 1_700,
        inference_count: 9,
        execution_count: 2,
        inference: InferenceStatistics {
            success: total(4, 100),
            fail: total(1, 7),
            queue: total(4, 10),
            compute_input: total(4, 20),
            compute_infer: total(4, 60),
            compute_output: total(4, 10),
            ..InferenceStatistics::default()
        },
        responses: Vec::new(),
        batches: vec![
            BatchFigures { rows: 1, count: 1, compute_input: 5, compute_infer: 20, compute_output: 2 },
            BatchFigures { rows: 8, count: 1, compute_input: 6, compute_infer: 30, compute_output: 3 },
        ],
    }
}
