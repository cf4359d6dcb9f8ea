//! The inputs and outputs that a model's file has, as far as a configuration may leave them out: of
//! OpenVINO's and TensorFlow's models. The signature of an ONNX file, which is read here, is
//! `model::onnx::OnnxSignature`.

use base::tensor::{Datatype, Shape};

/// The inputs and outputs of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSignature {
    /// The inputs.
    pub inputs: Vec<SignatureTensor>,
    /// The outputs.
    pub outputs: Vec<SignatureTensor>,
}

/// One input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureTensor {
    /// Its name.
    pub name: String,
    /// Its datatype; `None` if the protocol does not have it.
    pub datatype: Option<Datatype>,
    /// Its dimensions, -1 for a variable size; `None` if the rank is not known.
    pub shape: Option<Shape>,
}

impl ModelSignature {
    /// Returns true if the model can run batches of any size: the first dimension of every tensor
    /// is open.
    pub fn can_batch(&self) -> bool {
        let is_open = |tensor: &SignatureTensor| matches!(tensor.shape.as_deref(), Some([-1, ..]));
        !self.inputs.is_empty() && self.inputs.iter().chain(&self.outputs).all(is_open)
    }

    /// Returns true if strings are among its inputs and outputs.
    pub fn has_strings(&self) -> bool {
        self.inputs.iter().chain(&self.outputs).any(|tensor| tensor.datatype == Some(Datatype::Bytes))
    }
}
