//! The platforms and backends that a configuration may name, as in Triton.

/// The backend of ONNX models.
pub const ONNX_BACKEND: &str = "onnxruntime";

/// The platform of ONNX models.
pub const ONNX_PLATFORM: &str = "onnxruntime_onnx";

/// The backend of TensorFlow models, SavedModels and frozen graphs.
pub const TENSORFLOW_BACKEND: &str = "tensorflow";

/// The platforms of TensorFlow models.
pub const SAVEDMODEL_PLATFORM: &str = "tensorflow_savedmodel";

/// The platform of frozen graphs.
pub const GRAPHDEF_PLATFORM: &str = "tensorflow_graphdef";

/// The directory of a SavedModel if the configuration names none.
pub const SAVEDMODEL_FILENAME: &str = "model.savedmodel";

/// The file of a frozen graph if the configuration names none.
pub const GRAPHDEF_FILENAME: &str = "model.graphdef";

/// The backend of OpenVINO's models.
pub const OPENVINO_BACKEND: &str = "openvino";

/// The file of an OpenVINO model if the configuration names none.
pub const OPENVINO_FILENAME: &str = "model.xml";

/// The built-in backend that returns its inputs.
pub const IDENTITY_BACKEND: &str = "identity";

/// The backend of tree models: Triton's Forest Inference Library.
pub const FIL_BACKEND: &str = "fil";

/// The backends that are built in beside those of ONNX and Python: `fil` runs tree models, `steps` lists of steps. The others are those of
/// Triton's tests: `identity` returns its inputs, the `sequence` ones add up the inputs of a sequence, `repeat` and
/// `square` send any number of responses to a request.
pub const BUILT_IN_BACKENDS: [&str; 8] = [
    "dyna_sequence",
    FIL_BACKEND,
    IDENTITY_BACKEND,
    "iterative_sequence",
    "repeat",
    "sequence",
    "square",
    STEPS_BACKEND,
];

/// The backend of models that are lists of steps.
pub const STEPS_BACKEND: &str = "steps";

/// The file of a list of steps in a version's directory.
pub const STEPS_FILENAME: &str = "steps.json";

/// The files of tree models and the `model_type` of each: Triton's names, and after them other
/// common ones.
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

/// Returns true if a file's name has an extension of tree models.
pub fn is_tree_filename(name: &str) -> bool {
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    ["bst", "json", "model", "tl", "txt", "ubj"].iter().any(|known| end.eq_ignore_ascii_case(known))
}

/// The backend of Caffe2 models, which an old PyTorch in Python runs.
pub const CAFFE2_BACKEND: &str = "caffe2";

/// The platform of Caffe2 models.
pub const CAFFE2_PLATFORM: &str = "caffe2_netdef";

/// The file name of a Caffe2 model if the configuration names none; beside it is one with `init_` before the name.
pub const CAFFE2_FILENAME: &str = "model.netdef";

/// The backend of PyTorch models.
pub const PYTORCH_BACKEND: &str = "pytorch";

/// The platform of PyTorch models in TorchScript.
pub const PYTORCH_PLATFORM: &str = "pytorch_libtorch";

/// The platform of PyTorch models that are compiled ahead of time.
pub const TORCH_AOTI_PLATFORM: &str = "torch_aoti";

/// The file name of a PyTorch model in TorchScript if the configuration names none.
pub const PYTORCH_FILENAME: &str = "model.pt";

/// Returns true if a file's name has an extension of TorchScript.
pub fn is_pytorch_filename(name: &str) -> bool {
    backend_of_file(name) == Some(PYTORCH_BACKEND)
}

/// The file name of a PyTorch model that is compiled ahead of time if the configuration names none.
pub const TORCH_AOTI_FILENAME: &str = "model.pt2";

/// The backends of other frameworks, whose libraries are looked for on the machine. A library of
/// Triton's of the same name beneath `--backend-directory` takes precedence: it was put there on
/// purpose.
pub const FRAMEWORK_BACKENDS: [&str; 4] = [CAFFE2_BACKEND, OPENVINO_BACKEND, PYTORCH_BACKEND, TENSORFLOW_BACKEND];

/// The backend of a model that is one file, by the end of its name; `None` if that does not imply
/// one.
pub fn backend_of_file(name: &str) -> Option<&'static str> {
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    let ends_as = |known: &str| end.eq_ignore_ascii_case(known);
    match () {
        () if is_tree_filename(name) => Some(FIL_BACKEND),
        () if ends_as("tflite") || ends_as("xml") => Some(OPENVINO_BACKEND),
        () if ends_as("pt") => Some(PYTORCH_BACKEND),
        () if ends_as("onnx") => Some(ONNX_BACKEND),
        () => None,
    }
}

/// Returns the advice for a pickle, by the end of the file's name; `None` for another file. No server opens pickles: that
/// would run the code in them.
pub fn pickle_advice(name: &str) -> Option<String> {
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    let is_pickle = ["joblib", "pickle", "pkl"].iter().any(|known| end.eq_ignore_ascii_case(known));
    is_pickle.then(|| {
        format!(
            "'{name}' is a pickle, which is not served: export the model of scikit-learn to ONNX (`pip install skl2onnx`; \
             in Python `open('model.onnx', 'wb').write(skl2onnx.to_onnx(model, X[:1]).SerializeToString())`), or load the \
             pickle in a model.py (`deuteron init python NAME`)"
        )
    })
}

/// The file name of an ONNX model if the configuration names none.
pub const ONNX_FILENAME: &str = "model.onnx";

/// The backends of engines of foreign code, which run in processes of their own if asked for.
pub const ENGINE_BACKENDS: [&str; 4] = [ONNX_BACKEND, OPENVINO_BACKEND, PYTORCH_BACKEND, TENSORFLOW_BACKEND];

/// The backend of Python models.
pub const PYTHON_BACKEND: &str = "python";

/// The file of a Python model if the configuration names none, the file of a Python-based backend, and the `runtime`
/// that asks for one.
pub const PYTHON_FILENAME: &str = "model.py";

/// The platforms of Triton's documentation of the model configuration, with their backends.
/// `openvino` is not one of them, but people write it.
const PLATFORMS: [(&str, &str); 9] = [
    (CAFFE2_PLATFORM, CAFFE2_BACKEND),
    ("custom", "custom"),
    (ONNX_PLATFORM, ONNX_BACKEND),
    (OPENVINO_BACKEND, OPENVINO_BACKEND),
    (PYTORCH_PLATFORM, PYTORCH_BACKEND),
    (GRAPHDEF_PLATFORM, TENSORFLOW_BACKEND),
    (SAVEDMODEL_PLATFORM, TENSORFLOW_BACKEND),
    ("tensorrt_plan", "tensorrt"),
    (TORCH_AOTI_PLATFORM, PYTORCH_BACKEND),
];

/// The platform of an ensemble; it has no backend.
pub const ENSEMBLE_PLATFORM: &str = "ensemble";

/// The backend of a platform; `None` for an unknown one.
pub fn backend_of(platform: &str) -> Option<&'static str> {
    PLATFORMS.iter().find(|(known, _)| *known == platform).map(|(_, backend)| *backend)
}
