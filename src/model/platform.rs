//! The platforms and backends that a configuration may name, as Triton knows them.

/// The backend of ONNX files.
pub const ONNX_BACKEND: &str = "onnxruntime";

/// The platform of ONNX files.
pub const ONNX_PLATFORM: &str = "onnxruntime_onnx";

/// The built-in backend that returns its inputs.
pub const IDENTITY_BACKEND: &str = "identity";

/// The built-in backends of Triton's tests: one that returns its inputs, those that add up what a
/// sequence brings, and those that answer a request any number of times.
pub const BUILT_IN_BACKENDS: [&str; 6] =
    ["dyna_sequence", IDENTITY_BACKEND, "iterative_sequence", "repeat", "sequence", "square"];
/// The file of an ONNX model where the configuration names none.
pub const ONNX_FILENAME: &str = "model.onnx";

/// Platforms of the model configuration's documents, with their backends; empty where Triton has
/// none any more.
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

/// The backend of a platform.
pub fn backend_of(platform: &str) -> Option<&'static str> {
    PLATFORMS.iter().find(|(known, _)| *known == platform).map(|(_, backend)| *backend)
}
