//! The rows of a model's requests: whether each is a computation of its own, and the outputs of none.

use base::tensor::{Shape, Tensor};

use crate::spec::{Batching, ModelSpec};

/// The parameter of a configuration that keeps the rows of each request together (`off`).
pub const SPLIT_ROWS: &str = "split_rows";

impl ModelSpec {
    /// Returns true if the rows of one request may run apart and their outputs be joined: engines whose models batch along
    /// the first axis of each tensor. Code of the user (Python, libraries of backends, models that steps run) may look at a request as
    /// a whole, and so does a sequence; a configuration that sets sizes or the order of batches means them. Tritonserver never
    /// splits.
    pub fn has_separate_rows(&self) -> bool {
        let has_calls = self.steps.as_ref().is_some_and(|steps| steps.has_calls());
        let is_users_code = self.python.is_some() || self.library.is_some() || self.ensemble.is_some() || has_calls;
        let is_whole = self.sequence.is_some() || self.is_decoupled || self.follows_triton || self.is_on_gpu();
        self.rows_max > 1
            && !is_users_code
            && !is_whole
            && self.batch_inputs.is_empty()
            && !self.inputs.iter().any(|input| input.is_ragged || input.is_shape_tensor)
            && !self.outputs.iter().any(|output| output.scatter_source.is_some() || output.is_shape_tensor)
            && self.batching.as_ref().is_none_or(|batching| !batching.is_shaped(self.rows_max))
            && self.parameters.get(SPLIT_ROWS).is_none_or(|value| value != "off")
    }
}

impl ModelSpec {
    /// The model's outputs for inputs without a row, such as the crops of a picture in which nothing was found: engines refuse
    /// such inputs, or do worse. `None` where an input has rows, or an output has a fixed number of them.
    pub fn outputs_without_rows(&self, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
        if inputs.is_empty() || !inputs.iter().all(|input| input.shape.first() == Some(&0)) {
            return None;
        }
        let outputs = self.outputs.iter().map(|output| {
            let shape: Shape = output.model_shape.iter().map(|size| (*size).max(0)).collect();
            let is_empty = shape.first() == Some(&0);
            is_empty.then(|| Tensor { datatype: output.datatype, shape, contents: bytes::Bytes::new() })
        });
        outputs.collect()
    }
}

impl Batching {
    /// Returns true if it says more of batches than that there are some. A preference for the largest batch alone says
    /// nothing: it is what completion fills in.
    fn is_shaped(&self, rows_max: u32) -> bool {
        let has_sizes = self.rows_preferred.iter().any(|rows| *rows != rows_max) || self.latency_target.is_some();
        has_sizes || !self.queue_delay_max.is_zero() || self.preserves_order
    }
}
