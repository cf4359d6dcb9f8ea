//! The choice of Python for a model: the flag's, the model's own environment as a directory or an archive, and
//! refusals.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::zoo::{CASES, Models};
use crate::support::python::Environment;

const PROGRAM: &str = "import os\nimport sys\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\n\
    class TritonPythonModel:\n    def execute(self, requests):\n        \
    told = [os.environ.get('ZOO_WRAPPED', 'no'), os.environ.get('VIRTUAL_ENV', ''), os.environ['PATH'].split(':')[0], \
    str('PYTHONHOME' in os.environ)]\n        \
    result = pb_utils.Tensor('result', np.array(told, dtype=object))\n        \
    return [pb_utils.InferenceResponse([result]) for _ in requests]\n";

/// An environment with the interpreter of the models, which reports its use.
fn environment(python: &Path, at: &Path) {
    fs::create_dir_all(at.join("bin")).unwrap();
    fs::write(at.join("bin/activate"), "echo this script is not run; exit 1\n").unwrap();
    let wrapper = format!("#!/bin/sh\nZOO_WRAPPED=yes exec '{}' \"$@\"\n", python.display());
    fs::write(at.join("bin/python"), wrapper).unwrap();
    fs::set_permissions(at.join("bin/python"), fs::Permissions::from_mode(0o755)).unwrap();
}

fn parameter(path: &str) -> String {
    format!("{CASES}\nparameters {{ key: 'EXECUTION_ENV_PATH' value {{ string_value: '{path}' }} }}")
}

#[test]
fn a_model_brings_its_own_environment() {
    let Some(models) = Models::new() else { return };
    let models = models
        .add("plain", CASES, PROGRAM)
        .add("directory", &parameter("$$TRITON_MODEL_DIRECTORY/env"), PROGRAM)
        .add("archive", &parameter("$$TRITON_MODEL_DIRECTORY/env.tar.gz"), PROGRAM);
    let own = models.path().join("directory/env");
    environment(&models.python(), &own);
    let archive = models.path().join("archive/env.tar.gz");
    // venv-pack writes this file twice.
    fs::write(own.join("pyvenv.cfg"), "include-system-site-packages = false\n").unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--hard-dereference", "-C"]).arg(&own).arg("-czf").arg(&archive).args([".", "./pyvenv.cfg"]);
    assert!(tar.status().unwrap().success());
    let zoo = models.serve(&[]);
    assert_eq!(zoo.case("plain", "any").unwrap()[0], "no");
    let directory = zoo.case("directory", "any").unwrap();
    let own = own.canonicalize().unwrap().display().to_string();
    assert_eq!(directory, ["yes".to_owned(), own.clone(), format!("{own}/bin"), "False".to_owned()]);
    let archive = zoo.case("archive", "any").unwrap();
    assert_eq!(archive[0], "yes");
    assert_eq!(archive[2], format!("{}/bin", archive[1]), "unpacked somewhere else");
    let unpacked = archive[1].clone();
    assert!(Path::new(&unpacked).join("bin/activate").exists());
    drop(zoo);
    assert!(!Path::new(&unpacked).exists(), "and it goes with the server");
}

/// Returns the package that only the packed environment has, and the environment.
const PACKED: &str = "import sys\nimport numpy as np\nimport six\nimport triton_python_backend_utils as pb_utils\n\n\n\
    class TritonPythonModel:\n    def execute(self, requests):\n        \
    told = [six.__version__, six.__file__, sys.prefix]\n        \
    result = pb_utils.Tensor('result', np.array(told, dtype=object))\n        \
    return [pb_utils.InferenceResponse([result]) for _ in requests]\n";

/// The entry of conda for its Python: that the rest came by `pip` is what conda-pack assumes of files without one.
const CONDA_PYTHON: &str = r#"{"name": "python", "version": "3", "build": "0", "url": "none", "link": {"source": "/none"},
    "files": ["bin/python"], "paths_data": {"paths": [{"_path": "bin/python", "path_type": "softlink"}]}}"#;

#[test]
fn archives_of_venv_pack_and_conda_pack_are_environments() {
    let Some(environment) = Environment::create("packed", "tests/python_models/packed.txt", &["python3"]) else {
        return;
    };
    let Some(models) = Models::new() else { return };
    let models = ["venv", "conda"]
        .into_iter()
        .fold(models, |models, name| models.add(name, &parameter("$$TRITON_MODEL_DIRECTORY/env.tar.gz"), PACKED));
    let pack = |program: &str, prefix: &Path, model: &str| {
        let mut command = Command::new(environment.python());
        command.arg(environment.path().join("bin").join(program)).args([
            "--quiet",
            "--compress-level",
            "1",
            "--prefix",
        ]);
        command.arg(prefix).arg("--output").arg(models.path().join(model).join("env.tar.gz"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    };
    // It writes `pyvenv.cfg` twice, and conda-pack `bin/activate.fish`.
    pack("venv-pack", environment.path(), "venv");
    let conda = models.path().join("conda/conda");
    assert!(Command::new("cp").arg("-a").args([environment.path(), &conda]).status().unwrap().success());
    fs::create_dir(conda.join("conda-meta")).unwrap();
    fs::write(conda.join("conda-meta/history"), "").unwrap();
    fs::write(conda.join("conda-meta/python-3-0.json"), CONDA_PYTHON).unwrap();
    pack("conda-pack", &conda, "conda");
    fs::remove_dir_all(&conda).unwrap();
    let zoo = models.serve(&[]);
    for name in ["venv", "conda"] {
        let told = zoo.case(name, "any").unwrap();
        let [version, file, prefix] = told.as_slice() else { panic!("{name}: {told:?}") };
        assert_eq!(version, "1.17.0", "{name}");
        assert!(file.starts_with(prefix), "{name}: {told:?}");
        assert!(prefix.contains("deuteron-python-"), "{name}: {told:?}");
    }
}

#[test]
fn an_environment_that_is_none_keeps_its_model_from_loading() {
    let Some(models) = Models::new() else { return };
    let models = models
        .add("missing", &parameter("/nowhere/at/all"), PROGRAM)
        .add("bare", &parameter("$$TRITON_MODEL_DIRECTORY"), PROGRAM)
        .add("no_archive", &parameter("$$TRITON_MODEL_DIRECTORY/config.pbtxt"), PROGRAM)
        .add("outside", &parameter("$$TRITON_MODEL_DIRECTORY/outside.tar.gz"), PROGRAM);
    let outside = models.path().join("outside");
    let env = outside.join("env");
    environment(&models.python(), &env);
    let status = Command::new("tar")
        .args(["--transform", "s,^bin/activate,../../escaped,", "-P", "-C"])
        .arg(&env)
        .arg("-czf")
        .arg(outside.join("outside.tar.gz"))
        .args(["bin/activate", "bin/python"])
        .status();
    assert!(status.unwrap().success());
    let zoo = models.serve(&["--model-control-mode=explicit"]);
    for (name, text) in [
        ("missing", "Failed to get the canonical path for /nowhere/at/all."),
        ("bare", "The Python environment should contain an 'activate' script."),
        ("no_archive", "config.pbtxt"),
        ("outside", ".."),
    ] {
        let (status, answer) = zoo.order(name, "load");
        assert!(status == 400 && answer.contains(text), "{name}: {status} {answer}");
    }
    assert_eq!(zoo.processes().len(), 0);
}

#[test]
fn an_interpreter_that_cannot_run_models_is_named_in_the_refusal() {
    for (program, text) in [
        ("#!/bin/sh\nexec 'PYTHON' -S \"$@\"\n", "No module named 'numpy'"),
        ("#!/nowhere/at/all\n", "could not be started"),
    ] {
        let Some(models) = Models::new() else { return };
        let program = program.replace("PYTHON", &models.python().display().to_string());
        let wrapper = models.path().with_extension("interpreter");
        fs::write(&wrapper, program).unwrap();
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
        let flag = format!("--backend-config=python,interpreter={}", wrapper.display());
        let zoo = models.with("double").serve(&["--model-control-mode=explicit", &flag]);
        let (status, answer) = zoo.order("double", "load");
        assert_eq!(status, 400);
        for part in [text, "interpreter", "numpy", "EXECUTION_ENV_PATH"] {
            assert!(answer.contains(part), "{part}: {answer}");
        }
        drop(zoo);
        fs::remove_file(wrapper).unwrap();
    }
}

#[test]
fn parameters_of_the_backend_that_mean_nothing_keep_a_model_from_loading() {
    let Some(models) = Models::new() else { return };
    let with =
        |key: &str, value: &str| format!("{CASES}\nparameters {{ key: '{key}' value {{ string_value: '{value}' }} }}");
    let zoo = models
        .add("yes", &with("FORCE_CPU_ONLY_INPUT_TENSORS", "yes"), PROGRAM)
        .add("no", &with("FORCE_CPU_ONLY_INPUT_TENSORS", "no"), PROGRAM)
        .add("maybe", &with("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe"), PROGRAM)
        .add("never", &with("execute_timeout_ms", "never"), PROGRAM)
        .serve(&["--model-control-mode=explicit"]);
    assert_eq!((zoo.order("yes", "load").0, zoo.order("no", "load").0), (200, 200));
    for (name, text) in [("maybe", "FORCE_CPU_ONLY_INPUT_TENSORS"), ("never", "execute_timeout_ms")] {
        let (status, answer) = zoo.order(name, "load");
        assert!(status != 200 && answer.contains(text), "{name}: {status} {answer}");
    }
}
