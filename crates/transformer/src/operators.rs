//! The form in which a graph is written: both are ONNX 1.12 (operator set 17) and compute the same.

/// The form in which a graph is written: both are ONNX 1.12 (operator set 17) and compute the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operators {
    /// For ONNX Runtime: the tokens of a batch are one matrix, and a linear layer is a `Gemm`, which adds its bias in the
    /// same pass. Two to four per cent faster there; its own `Attention` and `SkipLayerNormalization` were slower.
    OnnxRuntime,
    /// For the embedded engine and any other: a linear layer is a `MatMul` and an `Add`, which the embedded engine joins.
    #[default]
    Standard,
}
