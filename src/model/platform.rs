//! The platforms and backends that a configuration may name, as in Triton.

/// The backend of ONNX models.
pub const ONNX_BACKEND: &str = "onnxruntime";

/// The platform of ONNX models.
pub const ONNX_PLATFORM: &str = "onnxruntime_onnx";

/// The built-in backend that returns its inputs.
pub const IDENTITY_BACKEND: &str = "identity";

/// The built-in backends, which are those of Triton's tests: `identity` returns its inputs, the `sequence` ones
/// add up the inputs of a sequence, `repeat` and `square` send any number of responses to a request.
pub const BUILT_IN_BACKENDS: [&str; 6] =
    ["dyna_sequence", IDENTITY_BACKEND, "iterative_sequence", "repeat", "sequence", "square"];
/// The file name of an ONNX model if the configuration names none.
pub const ONNX_FILENAME: &str = "model.onnx";

/// The backend of Python models.
pub const PYTHON_BACKEND: &str = "python";

/// The file of a Python model if the configuration names none, the file of a Python-based backend, and the `runtime`
/// that asks for one.
pub const PYTHON_FILENAME: &str = "model.py";

/// The platforms of Triton's documentation of the model configuration, with their backends.
const PLATFORMS: [(&str, &str); 8] = [
    ("caffe2_netdef", "caffe2"),
    ("custom", "custom"),
    (ONNX_PLATFORM, ONNX_BACKEND),
    ("pytorch_libtorch", "pytorch"),
    ("tensorflow_graphdef", "tensorflow"),
    ("tensorflow_savedmodel", "tensorflow"),
    ("tensorrt_plan", "tensorrt"),
    ("torch_aoti", "torch_aoti"),
];

/// The platform of an ensemble; it has no backend.
pub const ENSEMBLE_PLATFORM: &str = "ensemble";

/// The backend of a platform; `None` for an unknown one.
pub fn backend_of(platform: &str) -> Option<&'static str> {
    PLATFORMS.iter().find(|(known, _)| *known == platform).map(|(_, backend)| *backend)
}
