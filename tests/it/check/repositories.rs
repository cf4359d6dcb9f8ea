//! Repositories as people keep them, each with the rows of `deuteron check`. Names of models are unlike those of all other
//! repositories, so that one server can have them all.

/// A repository.
pub struct Case {
    pub name: &'static str,
    /// Its files and their contents, as [`super::write_repository`] reads them.
    pub files: &'static [(&'static str, &'static str)],
    pub flags: &'static [&'static str],
    /// True if a server would need Python for it.
    pub needs_python: bool,
    /// Each model with its verdict and a part of its row in JSON.
    pub rows: &'static [(&'static str, &'static str, &'static str)],
}

const fn case(
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    rows: &'static [(&'static str, &'static str, &'static str)],
) -> Case {
    Case { name, files, flags: &[], needs_python: false, rows }
}

const fn python(
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    rows: &'static [(&'static str, &'static str, &'static str)],
) -> Case {
    Case { needs_python: true, ..case(name, files, rows) }
}

macro_rules! tensors {
    () => {
        "input { name: 'x' data_type: TYPE_FP32 dims: 4 } output { name: 'y' data_type: TYPE_FP32 dims: 4 }"
    };
}

macro_rules! onnx {
    ($more:literal) => {
        concat!("platform: 'onnxruntime_onnx' max_batch_size: 8 ", tensors!(), $more)
    };
}

macro_rules! in_python {
    ($more:literal) => {
        concat!("backend: 'python' max_batch_size: 8 ", tensors!(), $more)
    };
}

macro_rules! ensemble {
    ($first:literal, $second:literal) => {
        concat!(
            "platform: 'ensemble' max_batch_size: 4 ",
            tensors!(),
            "ensemble_scheduling { step { model_name: '",
            $first,
            "' model_version: -1 input_map { key: 'x' value: 'x' } output_map { key: 'y' value: 'between' } } step { model_name: '",
            $second,
            "' model_version: -1 input_map { key: 'x' value: 'between' } output_map { key: 'y' value: 'y' } } }"
        )
    };
}

const MODEL_PY: &str = "import json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\nclass TritonPythonModel:\n    def execute(self, requests):\n        return []\n";

pub const ALL: &[Case] = &[
    case("completed", &[("resnet/1/model.onnx", "@onnx")], &[("resnet", "ok", "\"backend\":\"onnxruntime\"")]),
    case(
        "configured",
        &[
            ("detector/config.pbtxt", onnx!("dynamic_batching { preferred_batch_size: [ 4, 8 ] }")),
            ("detector/1/model.onnx", "@onnx"),
        ],
        &[("detector", "ok", "the embedded engine")],
    ),
    case(
        "one_model_alone",
        &[("config.pbtxt", "name: 'alone' platform: 'onnxruntime_onnx'"), ("1/model.onnx", "@onnx")],
        &[("alone", "ok", "[1]")],
    ),
    case(
        "files_at_the_top",
        &[
            ("README.md", "x"),
            ("labels.txt", "x"),
            ("extra.onnx", "@onnx"),
            (".dvc/", ""),
            ("kept/1/model.onnx", "@onnx"),
        ],
        &[("kept", "ok", "onnxruntime")],
    ),
    case(
        "nested",
        &[
            ("vision/config_notes.txt", "x"),
            ("vision/crop_a/1/model.onnx", "@onnx"),
            ("vision/crop_b/1/model.onnx", "@onnx"),
        ],
        &[("vision", "refused", "--model-repository=")],
    ),
    case(
        "flat_model",
        &[("flat/config.pbtxt", onnx!("")), ("flat/model.onnx", "@onnx")],
        &[("flat", "refused", "move flat/model.onnx there")],
    ),
    case(
        "version_named_v1",
        &[("v_one/config.pbtxt", onnx!("")), ("v_one/v1/model.onnx", "@onnx")],
        &[("v_one", "refused", "must be a number")],
    ),
    case(
        "no_model_file",
        &[("hollow/config.pbtxt", onnx!("")), ("hollow/1/", "")],
        &[("hollow", "refused", "{\"kind\":\"file\",\"name\":\"hollow/1/model.onnx\"}")],
    ),
    case("empty_directory", &[("bare/", "")], &[("bare", "refused", "has no version directory")]),
    case("empty_version", &[("bare_version/1/", "")], &[("bare_version", "refused", "nothing tells the backend")]),
    case(
        "wrong_file_name",
        &[("yolo/config.pbtxt", onnx!("")), ("yolo/1/yolov8n.onnx", "@onnx")],
        &[("yolo", "refused", "default_model_filename")],
    ),
    case(
        "broken_config",
        &[("unclosed/config.pbtxt", "platform: 'onnxruntime_onnx' input {"), ("unclosed/1/model.onnx", "@onnx")],
        &[("unclosed", "refused", "config.pbtxt:1:")],
    ),
    case(
        "unknown_field",
        &[("misspelt/config.pbtxt", "platform: 'onnxruntime_onnx' max_batch: 8"), ("misspelt/1/model.onnx", "@onnx")],
        &[("misspelt", "refused", "correct its name")],
    ),
    case(
        "wrong_dims",
        &[
            (
                "widened/config.pbtxt",
                "platform: 'onnxruntime_onnx' max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 5 } output { name: 'y' data_type: TYPE_FP32 dims: 4 }",
            ),
            ("widened/1/model.onnx", "@onnx"),
        ],
        &[("widened", "refused", "the model expects 2 dimensions")],
    ),
    case(
        "wrong_names",
        &[
            (
                "renamed/config.pbtxt",
                "platform: 'onnxruntime_onnx' max_batch_size: 8 input { name: 'input' data_type: TYPE_FP32 dims: 4 } output { name: 'y' data_type: TYPE_FP32 dims: 4 }",
            ),
            ("renamed/1/model.onnx", "@onnx"),
        ],
        &[("renamed", "refused", "input")],
    ),
    case(
        "fixed_rows",
        &[("of_one/config.pbtxt", onnx!("")), ("of_one/1/model.onnx", "@onnx of one row")],
        &[("of_one", "refused", "max_batch_size")],
    ),
    case(
        "own_operator",
        &[("exotic/config.pbtxt", onnx!("")), ("exotic/1/model.onnx", "@onnx of an operator of one's own")],
        &[("exotic", "refused", "Own")],
    ),
    case("cut_off", &[("torn/1/model.onnx", "@onnx cut off")], &[("torn", "refused", "torn")]),
    case(
        "huge_batch",
        &[
            ("huge/config.pbtxt", concat!("platform: 'onnxruntime_onnx' max_batch_size: 1048576 ", tensors!())),
            ("huge/1/model.onnx", "@onnx"),
        ],
        &[("huge", "ok", "onnxruntime")],
    ),
    case(
        "renamed_directory",
        &[
            (
                "copied/config.pbtxt",
                concat!("name: 'original' platform: 'onnxruntime_onnx' max_batch_size: 8 ", tensors!()),
            ),
            ("copied/1/model.onnx", "@onnx"),
        ],
        &[("copied", "refused", "directory name must equal model name")],
    ),
    case("spaces", &[("a model/1/model.onnx", "@onnx")], &[("a model", "ok", "onnxruntime")]),
    case(
        "tensorrt",
        &[
            ("engine/config.pbtxt", concat!("platform: 'tensorrt_plan' max_batch_size: 8 ", tensors!())),
            ("engine/1/model.plan", "x"),
        ],
        &[("engine", "refused", "serve the ONNX file")],
    ),
    case(
        "dali",
        &[
            ("preprocess_dali/config.pbtxt", concat!("backend: 'dali' max_batch_size: 8 ", tensors!())),
            ("preprocess_dali/1/model.dali", "x"),
        ],
        &[("preprocess_dali", "refused", "libtriton_dali.so")],
    ),
    case(
        "language_models",
        &[
            ("llama/config.pbtxt", "backend: 'vllm'"),
            ("llama/1/model.json", "{}"),
            ("trt_llm/config.pbtxt", "backend: 'tensorrtllm' max_batch_size: 8"),
            ("trt_llm/1/", ""),
        ],
        &[("llama", "refused", "server for LLMs"), ("trt_llm", "refused", "server for LLMs")],
    ),
    case(
        "own_backend_absent",
        &[("of_mine/config.pbtxt", concat!("backend: 'mine' max_batch_size: 8 ", tensors!())), ("of_mine/1/", "")],
        &[("of_mine", "refused", "libtriton_mine.so")],
    ),
    python(
        "own_backend_there",
        &[
            ("of_library/config.pbtxt", concat!("backend: 'mine2' max_batch_size: 8 ", tensors!())),
            ("of_library/1/", ""),
            ("of_library/libtriton_mine2.so", "x"),
        ],
        &[("of_library", "warning", "is not opened here")],
    ),
    case(
        "tensorflow",
        &[
            ("saved/config.pbtxt", concat!("platform: 'tensorflow_savedmodel' max_batch_size: 8 ", tensors!())),
            ("saved/1/model.savedmodel/saved_model.pb", "x"),
        ],
        &[("saved", "refused", "saved")],
    ),
    case(
        "openvino",
        &[
            ("intel/config.pbtxt", concat!("backend: 'openvino' max_batch_size: 8 ", tensors!())),
            ("intel/1/model.xml", "<net/>"),
            ("intel/1/model.bin", "x"),
        ],
        &[("intel", "refused", "pip install openvino")],
    ),
    python(
        "torchscript",
        &[
            (
                "scripted_net/config.pbtxt",
                "platform: 'pytorch_libtorch' max_batch_size: 8 input { name: 'INPUT__0' data_type: TYPE_FP32 dims: 4 } output { name: 'OUTPUT__0' data_type: TYPE_FP32 dims: 4 }",
            ),
            ("scripted_net/1/model.pt", "x"),
        ],
        &[("scripted_net", "refused", "{\"kind\":\"package\",\"name\":\"torch\"}")],
    ),
    case(
        "xgboost",
        &[
            (
                "fraud/config.pbtxt",
                "backend: 'fil' max_batch_size: 32768 parameters { key: 'model_type' value { string_value: 'xgboost_json' } } parameters { key: 'output_class' value { string_value: 'false' } }",
            ),
            ("fraud/1/xgboost.json", "@xgboost"),
        ],
        &[("fraud", "ok", "\"backend\":\"fil\"")],
    ),
    case(
        "lightgbm",
        &[
            (
                "ranker/config.pbtxt",
                "backend: 'fil' max_batch_size: 1024 parameters { key: 'model_type' value { string_value: 'lightgbm' } }",
            ),
            ("ranker/1/model.txt", "@lightgbm"),
        ],
        &[("ranker", "ok", "\"backend\":\"fil\"")],
    ),
    case("pickled", &[("forest/1/model.pkl", "x")], &[("forest", "refused", "export")]),
    case(
        "pipeline",
        &[
            ("pipeline/config.pbtxt", ensemble!("pipe_first", "pipe_second")),
            ("pipeline/1/", ""),
            ("pipe_first/1/model.onnx", "@onnx"),
            ("pipe_second/1/model.onnx", "@onnx"),
        ],
        &[
            ("pipe_first", "ok", ""),
            ("pipe_second", "ok", ""),
            ("pipeline", "ok", "an ensemble of pipe_first, pipe_second"),
        ],
    ),
    case(
        "missing_step",
        &[
            ("half_pipe/config.pbtxt", ensemble!("half_first", "half_second")),
            ("half_pipe/1/", ""),
            ("half_first/1/model.onnx", "@onnx"),
        ],
        &[("half_first", "ok", ""), ("half_pipe", "refused", "{\"kind\":\"model\",\"name\":\"half_second\"}")],
    ),
    case(
        "refused_step",
        &[
            ("trt_pipe/config.pbtxt", ensemble!("trt_first", "trt_second")),
            ("trt_pipe/1/", ""),
            ("trt_first/1/model.onnx", "@onnx"),
            ("trt_second/config.pbtxt", concat!("platform: 'tensorrt_plan' max_batch_size: 8 ", tensors!())),
            ("trt_second/1/model.plan", "x"),
        ],
        &[
            ("trt_first", "ok", ""),
            ("trt_pipe", "refused", "trt_second"),
            ("trt_second", "refused", "libtriton_tensorrt.so"),
        ],
    ),
    case(
        "ensemble_without_version",
        &[("no_version_pipe/config.pbtxt", ensemble!("nv_first", "nv_first")), ("nv_first/1/model.onnx", "@onnx")],
        &[("no_version_pipe", "refused", "which may be empty"), ("nv_first", "ok", "")],
    ),
    case(
        "versions",
        &[
            ("kept_two/config.pbtxt", onnx!("version_policy { latest { num_versions: 2 } }")),
            ("kept_two/1/model.onnx", "@onnx"),
            ("kept_two/2/model.onnx", "@onnx"),
            ("kept_two/10/model.onnx", "@onnx"),
        ],
        &[("kept_two", "ok", "\"versions\":[10,2]")],
    ),
    case(
        "versions_missing",
        &[
            ("picked/config.pbtxt", onnx!("version_policy { specific { versions: [ 1, 7 ] } }")),
            ("picked/1/model.onnx", "@onnx"),
        ],
        &[("picked", "warning", "names version 7, which is not there")],
    ),
    case(
        "no_version_of_the_policy",
        &[
            ("unpicked/config.pbtxt", onnx!("version_policy { specific { versions: [ 7 ] } }")),
            ("unpicked/1/model.onnx", "@onnx"),
        ],
        &[("unpicked", "refused", "version_policy")],
    ),
    case(
        "on_gpus",
        &[
            ("of_gpus/config.pbtxt", onnx!("instance_group { kind: KIND_GPU count: 2 gpus: [ 0 ] }")),
            ("of_gpus/1/model.onnx", "@onnx"),
        ],
        &[("of_gpus", "refused", "--gpu=off")],
    ),
    Case {
        flags: &["--gpu=off"],
        ..case(
            "on_gpus_switched_off",
            &[
                ("of_no_gpus/config.pbtxt", onnx!("instance_group { kind: KIND_GPU count: 2 gpus: [ 0 ] }")),
                ("of_no_gpus/1/model.onnx", "@onnx"),
            ],
            &[("of_no_gpus", "warning", "served on the CPU")],
        )
    },
    case(
        "sequences",
        &[
            (
                "sums/config.pbtxt",
                "backend: 'sequence' max_batch_size: 4 input { name: 'INPUT' data_type: TYPE_INT32 dims: 1 } output { name: 'OUTPUT' data_type: TYPE_INT32 dims: 1 } sequence_batching { control_input [ { name: 'START' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }, { name: 'READY' control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } } ] }",
            ),
            ("sums/1/", ""),
        ],
        &[("sums", "ok", "\"backend\":\"sequence\"")],
    ),
    case(
        "decoupled",
        &[
            (
                "squares/config.pbtxt",
                "backend: 'square' model_transaction_policy { decoupled: true } input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }",
            ),
            ("squares/1/", ""),
        ],
        &[("squares", "ok", "\"backend\":\"square\"")],
    ),
    case(
        "warm_up_without_its_file",
        &[
            (
                "warmed/config.pbtxt",
                onnx!(
                    "model_warmup { name: 'w' batch_size: 1 inputs { key: 'x' value { data_type: TYPE_FP32 dims: 4 input_data_file: 'absent' } } }"
                ),
            ),
            ("warmed/1/model.onnx", "@onnx"),
        ],
        &[("warmed", "refused", "absent")],
    ),
    case(
        "labels_without_their_file",
        &[
            (
                "labelled_net/config.pbtxt",
                "platform: 'onnxruntime_onnx' max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 4 } output { name: 'y' data_type: TYPE_FP32 dims: 4 label_filename: 'labels.txt' }",
            ),
            ("labelled_net/1/model.onnx", "@onnx"),
        ],
        &[("labelled_net", "refused", "{\"kind\":\"file\",\"name\":\"labelled_net/labels.txt\"}")],
    ),
    case(
        "operator_library",
        &[
            ("custom_ops/config.pbtxt", onnx!("model_operations { op_library_filename: 'libops.so' }")),
            ("custom_ops/1/model.onnx", "@onnx"),
        ],
        &[("custom_ops", "refused", "op_library_filename")],
    ),
    case(
        "of_triton_alone",
        &[("tuned/config.pbtxt", onnx!("optimization { cuda { graphs: true } }")), ("tuned/1/model.onnx", "@onnx")],
        &[("tuned", "ok", "optimization.cuda.graphs")],
    ),
    case(
        "dangling_link",
        &[("lost", "-> ../elsewhere/lost"), ("there/1/model.onnx", "@onnx")],
        &[("lost", "refused", "symbolic link"), ("there", "ok", "")],
    ),
    case(
        "links",
        &[
            ("store/model.bin", "@onnx"),
            ("store/config.pbtxt", onnx!("")),
            ("linked/config.pbtxt", "-> ../store/linked.pbtxt"),
            ("store/linked.pbtxt", "platform: 'onnxruntime_onnx'"),
            ("linked/1/model.onnx", "-> ../../store/model.bin"),
        ],
        &[("linked", "ok", "onnxruntime"), ("store", "refused", "has no version directory")],
    ),
    case(
        "two_configurations",
        &[
            ("twice_told/config.pbtxt", onnx!("")),
            ("twice_told/config.toml", "max_batch_size = 8"),
            ("twice_told/1/model.onnx", "@onnx"),
        ],
        &[("twice_told", "refused", "keep one of them")],
    ),
    case(
        "cached_and_decoupled",
        &[
            (
                "cached_squares/config.pbtxt",
                "backend: 'square' response_cache { enable: true } model_transaction_policy { decoupled: true } input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }",
            ),
            ("cached_squares/1/", ""),
        ],
        &[("cached_squares", "refused", "decoupled")],
    ),
    python(
        "scripted",
        &[("tokenizer/config.pbtxt", in_python!("")), ("tokenizer/1/model.py", MODEL_PY)],
        &[("tokenizer", "ok", "\"backend\":\"python\"")],
    ),
    python(
        "scripted_with_packages",
        &[
            ("whisper/config.pbtxt", in_python!("")),
            (
                "whisper/1/model.py",
                "import torch\nfrom transformers import AutoModel\nfrom PIL import Image\nfrom .tools import f\nimport beside\nclass TritonPythonModel:\n    pass\n",
            ),
            ("whisper/1/beside.py", ""),
        ],
        &[("whisper", "refused", "pip install torch transformers")],
    ),
    python(
        "scripted_with_later_imports",
        &[
            ("lazy/config.pbtxt", in_python!("")),
            (
                "lazy/1/model.py",
                "import numpy\nclass TritonPythonModel:\n    def initialize(self, args):\n        import torch\n",
            ),
        ],
        &[("lazy", "warning", "when it is needed")],
    ),
    python(
        "scripted_without_its_file",
        &[("unwritten/config.pbtxt", in_python!("")), ("unwritten/1/", "")],
        &[("unwritten", "refused", "{\"kind\":\"file\",\"name\":\"unwritten/1/model.py\"}")],
    ),
    python(
        "calls_others",
        &[
            ("bls/config.pbtxt", in_python!("model_transaction_policy { decoupled: true }")),
            ("bls/1/model.py", "import asyncio_like\nimport triton_python_backend_utils as pb_utils\n"),
            ("bls_pipe/config.pbtxt", ensemble!("bls", "bls_net")),
            ("bls_pipe/1/", ""),
            ("bls_net/1/model.onnx", "@onnx"),
        ],
        &[("bls", "refused", "asyncio-like"), ("bls_net", "ok", ""), ("bls_pipe", "refused", "depends on 'bls'")],
    ),
    python(
        "environment_that_is_not_there",
        &[
            (
                "packed/config.pbtxt",
                in_python!(
                    "parameters { key: 'EXECUTION_ENV_PATH' value { string_value: '$$TRITON_MODEL_DIRECTORY/env.tar.gz' } }"
                ),
            ),
            ("packed/1/model.py", MODEL_PY),
        ],
        &[("packed", "refused", "EXECUTION_ENV_PATH")],
    ),
    python(
        "environment_in_an_archive",
        &[
            (
                "boxed/config.pbtxt",
                in_python!(
                    "parameters { key: 'EXECUTION_ENV_PATH' value { string_value: '$$TRITON_MODEL_DIRECTORY/env.tar.gz' } }"
                ),
            ),
            ("boxed/1/model.py", MODEL_PY),
            ("boxed/env.tar.gz", "x"),
        ],
        &[("boxed", "ok", "which is not unpacked here")],
    ),
];
