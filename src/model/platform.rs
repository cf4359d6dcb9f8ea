//! The platforms and backends that a configuration may name, as in Triton.

/// The backend of ONNX models.
pub const ONNX_BACKEND: &str = "onnxruntime";

/// The platform of ONNX models.
pub const ONNX_PLATFORM: &str = "onnxruntime_onnx";

/// The built-in backend that returns its inputs.
pub const IDENTITY_BACKEND: &str = "identity";

/// The backend of tree models: Triton's Forest Inference Library.
pub const FIL_BACKEND: &str = "fil";

/// The backends that are built in beside those of ONNX and Python: `fil` runs tree models. The others are those of
/// Triton's tests: `identity` returns its inputs, the `sequence` ones add up the inputs of a sequence, `repeat` and
/// `square` send any number of responses to a request.
pub const BUILT_IN_BACKENDS: [&str; 7] =
    ["dyna_sequence", FIL_BACKEND, IDENTITY_BACKEND, "iterative_sequence", "repeat", "sequence", "square"];

/// The files of tree models and the `model_type` of each: Triton's names, and behind them those that people give.
pub const TREE_FILES: [(&str, &str); 8] = [
    ("xgboost.json", "xgboost_json"),
    ("xgboost.ubj", "xgboost_ubj"),
    ("xgboost.model", "xgboost"),
    ("model.txt", "lightgbm"),
    ("checkpoint.tl", "treelite_checkpoint"),
    ("model.ubj", "xgboost_ubj"),
    ("model.json", "xgboost_json"),
    ("model.bst", "xgboost"),
];

/// Whether a file's name ends as those of tree models do.
pub fn is_tree_filename(name: &str) -> bool {
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    ["bst", "json", "model", "tl", "txt", "ubj"].iter().any(|known| end.eq_ignore_ascii_case(known))
}

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
