//! Python models that complete their configurations. One that loads another meanwhile is not asked of Triton, which
//! hangs and leaves its stub behind.

use std::{fs, path::Path};

use crate::{
    oracle::{
        case::{Case, Table},
        compare::{Becomes, Difference, On},
        suites::{
            Suite,
            python::{models, one, own_flags},
        },
    },
    support::{
        repository::{self, Flavour},
        triton::COMPLETES,
    },
};

/// The suite.
pub const SUITE: Suite = Suite {
    name: "python_completion",
    flags: &[COMPLETES, "--model-control-mode=explicit"],
    own_flags,
    cases,
    differences: DIFFERENCES,
    write,
};

/// Models by the body of their function, and further code; the class is left out.
const FUNCTIONS: &[(&str, &str)] = &[
    ("returns_nothing", "return None"),
    ("returns_a_dict", "return config.as_dict()"),
    ("raises", "raise ValueError('no configuration')"),
    (
        "adds_a_wrong_key",
        "config.add_input({'name': 'x', 'data_type': 'TYPE_INT32', 'dims': [1], 'y': 1})\n        return config",
    ),
    (
        "adds_no_outputs",
        "config.add_input({'name': 'x', 'data_type': 'TYPE_INT32', 'dims': [1]})\n        return config",
    ),
    ("adds_a_wrong_type", "config.add_input({'name': 'x', 'data_type': 'INT32', 'dims': [1]})\n        return config"),
    ("logs", "pb_utils.Logger.log_info('completing')\n        return config"),
    ("changes_the_dict", "config.as_dict()['parameters'] = {'k': {'string_value': 'v'}}\n        return config"),
    ("decoupled", "config.set_model_transaction_policy({'decoupled': True})\n        return config"),
];

const TENSORS: &str =
    "input { name: 'x' data_type: TYPE_INT32 dims: 1 } output { name: 'y' data_type: TYPE_INT32 dims: 1 }";

fn write(_: Flavour, repository: &Path) {
    repository::copy(&models().join("auto_complete"), &repository.join("auto_complete")).expect("the folder is ours");
    let copied = repository.join("auto_complete");
    let config = |text: &str| format!("backend: \"python\"\n{text}\n");
    for (name, text) in [
        ("in_part", "max_batch_size: 2 input { name: 'INPUT0' data_type: TYPE_FP32 dims: 4 }"),
        ("kept", "input { name: 'INPUT0' data_type: TYPE_INT32 dims: 4 }"),
        ("too_large", "max_batch_size: 8"),
        ("with_sequences", "sequence_batching { }"),
    ] {
        repository::copy(&copied, &repository.join(name)).expect("the folder is ours");
        fs::write(repository.join(name).join("config.pbtxt"), config(text)).expect("the folder is ours");
    }
    for (name, function) in FUNCTIONS {
        let program = format!(
            "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    @staticmethod\n    \
             def auto_complete_config(config):\n        {function}\n\n    def execute(self, requests):\n        pass\n"
        );
        let tensors = if name.starts_with("adds") { "" } else { TENSORS };
        fs::create_dir_all(repository.join(name).join("1")).expect("the folder is ours");
        fs::write(repository.join(name).join("config.pbtxt"), config(tensors)).expect("the folder is ours");
        fs::write(repository.join(name).join("1/model.py"), program).expect("the folder is ours");
    }
}

fn cases() -> Vec<Case> {
    let mut table = Table::new("python_completion");
    let mut names = vec!["auto_complete", "in_part", "kept", "too_large", "with_sequences"];
    names.extend(FUNCTIONS.iter().map(|(name, _)| *name));
    for name in &names {
        table.post(&format!("load {name}"), &format!("/v2/repository/models/{name}/load"), &[], b"");
    }
    for name in ["auto_complete", "in_part", "changes_the_dict", "decoupled"] {
        table.get(&[&format!("/v2/models/{name}/config"), &format!("/v2/models/{name}")]);
    }
    for (name, shape, data) in
        [("auto_complete", "[1,4]", "[1,2,3,4]"), ("auto_complete", "[3,4]", "[1,2,3,4,5,6,7,8,9,10,11,12]")]
    {
        table.infer(&format!("infer {name} {shape}"), name, &one("INPUT0", "FP32", shape, data, ""));
    }
    table.infer(
        "infer auto_complete with four rows",
        "auto_complete",
        &one("INPUT0", "FP32", "[4,4]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", ""),
    );
    table.into_cases()
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        decision: "where a model's function went wrong is told, and not where in the server's own module",
        on: On::Cases(&[
            "python_completion: load too_large",
            "python_completion: load with_sequences",
            "python_completion: load adds_a_wrong_key",
        ]),
        becomes: Becomes::Rewritten(without_utils),
    },
    Difference {
        decision: "a configuration that makes no sense is refused when it is loaded",
        on: On::Cases(&["python_completion: load adds_a_wrong_type"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"load failed for model 'adds_a_wrong_type': version 1 is at UNAVAILABLE state: \
             Invalid argument: what its auto_complete_config returned: config.json:1:192: unknown value \\\\\"INT32\\\\\" for \
             \\\\\"data_type\\\\\", did you mean TYPE_INT32? expected one of TYPE_INVALID, TYPE_BOOL, TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, \
             TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP16, TYPE_FP32, TYPE_FP64, TYPE_STRING, TYPE_BF16;\\\\n\"}",
        ),
    },
    Difference {
        decision: "the effective configuration shows where the model runs",
        on: On::Every(|_, answer| answer.contains("\"parameters\":{}")),
        becomes: Becomes::Replaced("\"parameters\":{}", "\"parameters\":{\"placement\":{\"string_value\":\"worker\"}}"),
    },
];

/// Removes the frames of Triton's own module.
fn without_utils(answer: &str) -> String {
    let mut parts = answer.split("\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    let others = parts.filter(|part| !part.contains("triton_python_backend_utils.py("));
    others.fold(first, |text, part| text + "\\n" + part)
}
