//! The operators that a graph may use.

/// The operators that a graph may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operators {
    /// Those of ONNX 1.12 (operator set 17), and beside them ONNX Runtime's own (`com.microsoft`): attention, the sum with
    /// its normalization, and GELU with its bias are an operator each, computed in one pass.
    OnnxRuntime,
    /// Those of ONNX 1.12 (operator set 17), for the embedded engine and any other.
    #[default]
    Standard,
}

/// The domain of ONNX Runtime's own operators.
pub(crate) const MICROSOFT: &str = "com.microsoft";
