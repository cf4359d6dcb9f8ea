//! Python models that complete their configurations.

use std::{fs, path::Path};

use crate::{
    oracle::{
        case::{Case, Table},
        compare::Difference,
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

/// Models by what their function does, and what else it has; the class is left out.
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
    ("loads", "pb_utils.load_model('logs')\n        return config"),
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

const DIFFERENCES: &[Difference] = &[];
