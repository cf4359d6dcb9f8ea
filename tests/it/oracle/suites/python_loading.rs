//! Python models that do not load, or fail as they do, and a model that loads and unloads others. A load or unload that
//! fails inside a model is never asked here, since its exception ends tritonserver 2.51.

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
    support::repository::{self, Flavour},
};

/// The suite.
pub const SUITE: Suite = Suite {
    name: "python_loading",
    flags: &["--model-control-mode=explicit"],
    own_flags,
    cases,
    differences: DIFFERENCES,
    write,
};

/// Models by the text of their `model.py`, without indentation.
const PROGRAMS: &[(&str, &str)] = &[
    ("raises_on_import", "raise RuntimeError('while it is imported')"),
    ("no_such_module", "import no_such_module_anywhere"),
    ("syntax_error", "class TritonPythonModel\n    pass"),
    ("no_class", "class Model:\n    pass"),
    ("class_is_a_number", "TritonPythonModel = 7"),
    ("constructor_takes_arguments", "class TritonPythonModel:\n    def __init__(self, name):\n        pass"),
    (
        "raises_in_initialize",
        "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('café: ' + args['model_name'])",
    ),
    (
        "exits_in_initialize",
        "import sys\nclass TritonPythonModel:\n    def initialize(self, args):\n        sys.exit(3)",
    ),
    ("ends_in_initialize", "import os\nclass TritonPythonModel:\n    def initialize(self, args):\n        os._exit(3)"),
    ("initialize_takes_nothing", "class TritonPythonModel:\n    def initialize(self):\n        pass"),
    ("no_execute", "class TritonPythonModel:\n    pass"),
    (
        "raises_in_finalize",
        "class TritonPythonModel:\n    def execute(self, requests):\n        pass\n    def finalize(self):\n        \
         raise ValueError('at the end')",
    ),
    (
        "initialize_returns_a_value",
        "class TritonPythonModel:\n    def initialize(self, args):\n        return 'a value'\n    def execute(self, requests):\n        \
         raise ValueError('it was loaded')",
    ),
];

const TENSORS: &str = "backend: \"python\"\ninstance_group { kind: KIND_CPU }\n\
    input { name: 'x' data_type: TYPE_INT32 dims: 1 }\noutput { name: 'y' data_type: TYPE_INT32 dims: 1 }\n";

fn write(_: Flavour, repository: &Path) {
    for name in ["double", "model_control"] {
        repository::copy(&models().join(name), &repository.join(name)).expect("the folder is ours");
    }
    let add = |name: &str, config: &str, file: &str, program: &str| {
        let version = repository.join(name).join("1");
        fs::create_dir_all(&version).expect("the folder is ours");
        fs::write(repository.join(name).join("config.pbtxt"), config).expect("the folder is ours");
        if !file.is_empty() {
            fs::write(version.join(file), program).expect("the folder is ours");
        }
    };
    for (name, program) in PROGRAMS {
        add(name, TENSORS, "model.py", program);
    }
    let named = |name: &str| format!("{TENSORS}default_model_filename: '{name}'\n");
    let program = "class TritonPythonModel:\n    def execute(self, requests):\n        raise ValueError(__name__)\n";
    add("no_file", TENSORS, "", "");
    add("another_file", &named("other.py"), "other.py", program);
    add("another_file_that_is_missing", &named("other.py"), "model.py", program);
    add("a_file_that_is_no_python", &named("model.txt"), "model.txt", program);
}

fn cases() -> Vec<Case> {
    let mut table = Table::new("python_loading");
    let others = ["no_file", "another_file", "another_file_that_is_missing", "a_file_that_is_no_python"];
    let names: Vec<_> = PROGRAMS.iter().map(|(name, _)| *name).chain(others).collect();
    for name in &names {
        table.post(&format!("load {name}"), &format!("/v2/repository/models/{name}/load"), &[], b"");
    }
    for name in ["no_execute", "raises_in_finalize", "initialize_returns_a_value", "another_file"] {
        table.infer(&format!("infer {name}"), name, &one("x", "INT32", "[1]", "[1]", ""));
    }
    table.post("unload raises_in_finalize", "/v2/repository/models/raises_in_finalize/unload", &[], b"");
    table.post("load model_control", "/v2/repository/models/model_control/load", &[], b"");
    let ask = |table: &mut Table, model: &str, name: &str| {
        let text = format!("[\"{name}\"]");
        table.infer(&format!("model_control, {name}"), model, &one("case", "BYTES", "[1]", &text, ""));
    };
    for name in
        ["load_and_unload", "load_with_a_config", "load_with_files", "ready_unknown", "itself_ready", "wrong_arguments"]
    {
        ask(&mut table, "model_control", name);
    }
    table.into_cases()
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        decision: "an error's body is JSON, and its type says so",
        on: On::Every(|_, answer| answer.contains(" text/plain\n{\"error\":")),
        becomes: Becomes::Replaced("text/plain", "application/json"),
    },
    Difference {
        decision: "a load that cannot be is refused; Triton leaves its client waiting",
        on: On::Cases(&["python_loading: load no_file", "python_loading: load another_file_that_is_missing"]),
        becomes: Becomes::Asked(|case| {
            let (name, file) = match case.name.ends_with("no_file") {
                true => ("no_file", "model.py"),
                false => ("another_file_that_is_missing", "other.py"),
            };
            format!(
                "400 application/json\n{{\"error\":\"load failed for model '{name}': version 1 is at UNAVAILABLE state: \
                 Invalid argument: Python model file not found in '{name}/1/{file}';\\\\n\"}}"
            )
        }),
    },
    Difference {
        decision: "a configuration that names no Python file is the mistake of who wrote it",
        on: On::Cases(&["python_loading: load a_file_that_is_no_python"]),
        becomes: Becomes::Replaced("Internal:", "Invalid argument:"),
    },
    Difference {
        decision: "a request that nobody can answer any more fails; Triton leaves its client waiting for ever",
        on: On::Cases(&["python_loading: infer raises_in_finalize"]),
        becomes: Becomes::Answer(
            "500 application/json\n{\"error\":\"Failed to process the request(s) for model 'raises_in_finalize_0_0', message: \
             the model gave no response: execute returned None for the request, and no response sender is left that could \
             send one\"}",
        ),
    },
];
