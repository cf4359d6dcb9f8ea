//! `deuteron check`: repositories after public patterns, each with the rows that the report must have, and compared with
//! the index of a server on the same files; deployments of tritonserver; the forms of the report.

mod repositories;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::onnx::{FLOAT, Onnx};
use crate::support::server::{Ports, Server};

/// Variables by which a machine's own libraries would be found.
const FOUND_BY: [&str; 5] = ["CONDA_PREFIX", "LD_LIBRARY_PATH", "LIBTORCH", "ORT_DYLIB_PATH", "VIRTUAL_ENV"];
/// Modules that the stand-in for Python has.
const MODULES: &str = "json numpy os PIL scipy sys time";
/// Answers the question of `check` for the places of modules, without Python.
const PYTHON: &str = "#!/bin/sh\nwhile read -r name || [ -n \"$name\" ]; do\n  case \" @MODULES@ \" in\n    \
    *\" $name \"*) case $name in json | os | sys | time) echo \"$name standard\" ;; *) echo \"$name package\" ;; esac ;;\n    \
    *) echo \"$name absent\" ;;\n  esac\ndone\n";

/// A folder with a stand-in for Python and nothing else of a machine.
struct Machine {
    folder: Folder,
}

impl Machine {
    fn new() -> Self {
        let folder = Folder::new("check");
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("python3"), PYTHON.replace("@MODULES@", MODULES)).unwrap();
        fs::set_permissions(bin.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Has a program see this machine alone.
    fn confine(&self, command: &mut Command) {
        for name in FOUND_BY {
            command.env_remove(name);
        }
        command.env("PATH", self.path().join("bin")).env("HOME", self.path()).env("CUDA_VISIBLE_DEVICES", "");
    }

    /// The exit code and the output of `deuteron check`.
    fn check(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        self.confine(&mut command);
        let output = command.arg("check").args(arguments).current_dir(self.path()).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    fn json(&self, arguments: &[&str]) -> (Option<i32>, Value) {
        let (code, text) = self.check(&[arguments, &["--json"]].concat());
        (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    fn write(&self, path: &str, contents: &[u8]) -> PathBuf {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }
}

/// The contents of a file of the table: a text, or one of the files that `@` names.
fn contents(text: &str) -> Vec<u8> {
    let corpus =
        |name: &str| fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/trees").join(name)).unwrap();
    let one = |operator: &str, rows: i64| {
        let onnx = Onnx::default().node(operator, &["x", "x"], &["y"], &[]);
        onnx.input("x", FLOAT, &[rows, 4]).output("y", FLOAT, &[rows, 4]).into_bytes()
    };
    match text {
        "@onnx" => one("Add", -1),
        "@onnx of one row" => one("Add", 1),
        "@onnx of an operator of one's own" => one("own.domain:Own", -1),
        "@onnx cut off" => one("Add", -1).into_iter().take(40).collect(),
        "@xgboost" => corpus("xgboost.json"),
        "@lightgbm" => corpus("lightgbm.txt"),
        text => text.as_bytes().to_vec(),
    }
}

/// Writes the files of a repository. A path that ends with `/` is a folder, and a text `-> TARGET` a link.
fn write_repository(root: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(root).unwrap();
    for (path, text) in files {
        let to = root.join(path);
        if path.ends_with('/') {
            fs::create_dir_all(to).unwrap();
            continue;
        }
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        match text.strip_prefix("-> ") {
            Some(target) => symlink(target, to).unwrap(),
            None => fs::write(to, contents(text)).unwrap(),
        }
    }
}

const EMBEDDED: &str = "--onnx-engine=embedded";

#[test]
fn each_directory_of_a_repository_has_a_row_with_its_verdict_and_its_cure() {
    let machine = Machine::new();
    let mut faults = Vec::new();
    for case in repositories::ALL {
        let root = machine.path().join("repositories").join(case.name);
        write_repository(&root, case.files);
        let path = root.to_str().unwrap();
        let (code, report) = machine.json(&[&[path, EMBEDDED], case.flags].concat());
        let rows: Vec<_> = report["models"].as_array().unwrap().iter().collect();
        let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
        let wanted: Vec<_> = case.rows.iter().map(|row| row.0).collect();
        if names != wanted {
            faults.push(format!("{}: {names:?}, not {wanted:?}: {report}", case.name));
            continue;
        }
        for (row, (name, verdict, part)) in rows.iter().zip(case.rows) {
            let text = row.to_string();
            if row["verdict"] != *verdict || !text.contains(part) {
                faults.push(format!("{}: {name} is not {verdict} with {part:?}: {text}", case.name));
            }
            let has_cure = row["change"].as_str().is_some_and(|change| !change.is_empty() && !change.contains('\n'));
            if has_cure != (*verdict == "refused") {
                faults.push(format!("{}: the cure of {name}: {text}", case.name));
            }
        }
        let is_refused = case.rows.iter().any(|(_, verdict, _)| *verdict == "refused");
        if code != Some(i32::from(is_refused)) {
            faults.push(format!("{}: exit code {code:?}", case.name));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(repositories::ALL.len() >= 30, "{} repositories", repositories::ALL.len());
}

/// The state of each model in the index of a server, and its reason.
fn index(server: &Server) -> Vec<(String, bool, String)> {
    let answer = http::post(server.http(), "/v2/repository/index", b"").unwrap();
    let index: Value = serde_json::from_slice(&answer.body).unwrap();
    let text = |model: &Value, name: &str| model[name].as_str().unwrap_or_default().to_owned();
    let model = |model: &Value| (text(model, "name"), text(model, "state") == "READY", text(model, "reason"));
    index.as_array().unwrap().iter().map(model).collect()
}

#[test]
fn the_verdict_and_the_reason_are_those_of_a_server_on_the_same_files() {
    let machine = Machine::new();
    let mut flags: Vec<&[&str]> = repositories::ALL.iter().map(|case| case.flags).collect();
    flags.sort_unstable();
    flags.dedup();
    let mut compared = 0;
    for flags in flags {
        // Python models of the table have no Python that could run them.
        let cases: Vec<_> = repositories::ALL.iter().filter(|case| case.flags == flags && !case.needs_python).collect();
        if cases.is_empty() {
            continue;
        }
        let paths: Vec<_> = cases.iter().map(|case| machine.path().join("served").join(case.name)).collect();
        cases.iter().zip(&paths).for_each(|(case, path)| write_repository(path, case.files));
        let paths: Vec<_> = paths.iter().map(|path| path.to_str().unwrap()).collect();
        let more: Vec<&str> = [&paths[1..], flags, &["--exit-on-error=false", "--strict-readiness=false"]].concat();
        let ports = Ports::free();
        let mut command = Server::command(Path::new(paths[0]), &more, ports);
        machine.confine(&mut command);
        let server = Server::start(command, ports);
        let (_, report) = machine.json(&[&paths[..], &[EMBEDDED], flags].concat());
        let rows = report["models"].as_array().unwrap();
        let mut index = index(&server);
        // A model of several versions has a row for each.
        index.dedup_by(|one, other| one.0 == other.0);
        let names: Vec<_> = index.iter().map(|(name, ..)| name.as_str()).collect();
        let have: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
        assert_eq!(have, names);
        for (row, (name, is_ready, reason)) in rows.iter().zip(&index) {
            assert_eq!(row["verdict"] != "refused", *is_ready, "{name}: {row}\n{reason}");
            let told = row["reason"].as_str().unwrap_or_default();
            // The index begins with the kind of the error, if a version failed.
            assert!(reason.ends_with(told), "{name}: {told}\n{reason}");
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared} models");
}

#[test]
fn the_table_has_the_cure_beneath_it_and_all_names_are_told() {
    let machine = Machine::new();
    let root = machine.path().join("models");
    let plan = "platform: 'tensorrt_plan' max_batch_size: 8";
    let python = "backend: 'python' input { name: 'x' data_type: TYPE_FP32 dims: 1 } output { name: 'y' data_type: TYPE_FP32 dims: 1 }";
    let model = "import cv2\nclass TritonPythonModel:\n    def execute(self, requests): pass\n";
    let files = [
        ("plan/config.pbtxt", plan),
        ("plan/1/model.plan", "x"),
        ("sum/1/model.onnx", "@onnx"),
        ("sum/3/model.onnx", "@onnx"),
        ("scripted/config.pbtxt", python),
        ("scripted/1/model.py", model),
        ("README.md", "x"),
        (".git/", ""),
    ];
    write_repository(&root, &files);
    let (code, text) = machine.check(&["models", EMBEDDED]);
    assert_eq!(code, Some(1), "{text}");
    for part in [
        "MODEL     BACKEND      ENGINE",
        "plan      tensorrt     -",
        "sum       onnxruntime  the embedded engine (rten ",
        "  change: serve the ONNX file that the plan was built from: put it at 1/model.onnx",
        "  missing: library libtriton_tensorrt.so\n",
        "  refused: model.py needs 'cv2', which '",
        "  change: pip install opencv-python-headless\n  missing: package opencv-python-headless\n",
        "Not models:\n  .git: hidden names are not models\n  README.md: not a directory\n",
        "\n1 of 3 models would be served; 2 refused\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let (_, shown) = {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        let output = command.args(["config", "show"]).arg(&root).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(
        shown.contains("has 3 models (plan, scripted, sum): name one") && shown.contains("deuteron check"),
        "{shown}"
    );
    let (code, text) = machine.check(&["models/sum", EMBEDDED]);
    assert!(code == Some(0) && text.ends_with("\n1 of 1 model would be served\n"), "{text}");
}

#[test]
fn a_path_that_cannot_be_read_has_no_verdict_and_an_empty_one_a_fault() {
    let machine = Machine::new();
    let (code, text) = machine.check(&["/nowhere"]);
    assert!(code == Some(2) && text.starts_with("error: cannot open the model repository '/nowhere': "), "{text}");
    let (code, text) = machine.check(&["--nope"]);
    assert!(code == Some(2) && text.contains("unknown flag '--nope'"), "{text}");
    fs::create_dir(machine.path().join("empty")).unwrap();
    let (code, report) = machine.json(&["empty"]);
    let fault = report["fault"].as_str().unwrap();
    assert!(code == Some(1) && fault.starts_with("there is no model in 'empty'"), "{report}");
    assert_eq!(machine.json(&["empty", "--compat=triton"]).0, Some(0), "as a server");
    let (code, report) = machine.json(&["empty", "--gpu=require"]);
    assert!(code == Some(1) && report["fault"].as_str().unwrap().contains("--gpu=require"), "{report}");
}

#[test]
fn a_member_of_the_json_keeps_its_name() {
    let machine = Machine::new();
    write_repository(&machine.path().join("m"), &[("a/1/model.onnx", "@onnx"), ("b/1/", ""), ("c.onnx", "x")]);
    let (_, report) = machine.json(&["m", EMBEDDED]);
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(names(&report), "deployment fault ignored models ok refused schema served");
    let row = "backend change engine missing name notes reason verdict versions warnings";
    assert_eq!(names(&report["models"][0]), row);
    assert_eq!((&report["schema"], &report["served"], &report["refused"]), (&1.into(), &1.into(), &1.into()));
    assert_eq!(report["models"][0]["versions"], serde_json::json!([1]));
    assert_eq!(names(&report["ignored"][0]), "name reason");
    let (_, text) = machine.check(&["m", EMBEDDED, "--json", "--", "tritonserver --http-thread-count=3"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(names(&report["deployment"]), "command dockerfile flags image notes packages");
    assert_eq!(names(&report["deployment"]["flags"][0]), "flag outcome reason");
}

const DOCKERFILE: &str = "FROM nvcr.io/nvidia/tritonserver:24.08-py3\n\nRUN apt-get update && apt-get install -y libgl1\n\
    RUN pip install --no-cache-dir opencv-python scipy\nCOPY model_repository /models\nEXPOSE 8000\n\
    CMD [\"tritonserver\", \"--model-repository=/models\", \"--http-thread-count=4\", \"--log-verbose=1\"]\n";

#[test]
fn a_dockerfile_is_checked_with_its_packages_and_written_for_deuteron() {
    let machine = Machine::new();
    machine.write("deploy/Dockerfile", DOCKERFILE.as_bytes());
    let python = "backend: 'python' input { name: 'x' data_type: TYPE_FP32 dims: 1 } output { name: 'y' data_type: TYPE_FP32 dims: 1 }";
    let model =
        "import json, numpy, cv2\nimport yaml\nclass TritonPythonModel:\n    def execute(self, requests): pass\n";
    let files = [("a/config.pbtxt", python), ("a/1/model.py", model), ("b/1/model.onnx", "@onnx")];
    write_repository(&machine.path().join("deploy/model_repository"), &files);
    let (code, text) = machine.check(&["deploy/Dockerfile", EMBEDDED]);
    assert_eq!(code, Some(0), "{text}");
    let want = "\n2 flags are taken as they are\n  ignored: --http-thread-count=4: --http-thread-count has no effect here: each \
                shard serves both protocols; --shards says how many there are\n\nThe same with Deuteron:\n  deuteron serve \
                --model-repository=/models --log-verbose=1 --compat=triton\n\nDockerfile:\n  FROM python:3.10-slim\n  COPY \
                --from=localhost/deuteron:0.1.0 /usr/bin/deuteron /usr/bin/deuteron\n  RUN pip install --no-cache-dir numpy \
                onnxruntime pyyaml\n\n  RUN apt-get update && apt-get install -y libgl1\n  RUN pip install --no-cache-dir \
                opencv-python scipy\n  COPY model_repository /models\n  EXPOSE 8000\n  CMD [\"deuteron\", \"serve\", \
                \"--model-repository=/models\", \"--log-verbose=1\", \"--compat=triton\"]\n";
    assert!(text.contains(want), "{text}");
    let warning = "warning: model.py imports 'yaml', which no package of the deployment is known to bring: add pyyaml";
    assert!(text.contains(warning) && !text.contains("'cv2'"), "{text}");
    assert!(text.ends_with("\n2 of 2 models would be served\n"), "{text}");
}

#[test]
fn a_command_line_a_script_and_a_compose_file_name_their_repository() {
    let machine = Machine::new();
    write_repository(&machine.path().join("repo"), &[("a/1/model.onnx", "@onnx")]);
    machine.write("run.sh", b"#!/bin/sh\nexec tritonserver --model-store repo --strict-model-config=false\n");
    let compose = "services:\n  triton:\n    image: nvcr.io/nvidia/tritonserver:25.01-py3\n    volumes:\n      - ./repo:/models\n    \
                   command: tritonserver --model-repository=/models --nope=1\n";
    machine.write("compose.yaml", compose.as_bytes());
    let run = "docker run --rm -v $PWD/repo:/models nvcr.io/nvidia/tritonserver:25.01-py3 tritonserver --model-repository=/models";
    let check = |arguments: &[&str], code: i32, part: &str| {
        let (got, text) = machine.check(&[&[EMBEDDED], arguments].concat());
        assert!(
            got == Some(code) && text.contains(part) && text.contains("1 of 1 model would be served"),
            "{arguments:?}: {text}"
        );
    };
    check(
        &["--", "tritonserver", "--model-repository=repo"],
        0,
        "deuteron serve --model-repository=repo --compat=triton\n",
    );
    check(
        &["run.sh"],
        0,
        "ignored: --strict-model-config=false: Warning: '--strict-model-config' has been deprecated!",
    );
    check(&["--", run], 0, "  FROM python:3.12-slim\n");
    check(&["compose.yaml"], 1, "refused: --nope=1: unknown flag '--nope'; --help lists the flags; remove it");
    let (code, text) = machine.check(&["--", "tritonserver --model-repository=/none"]);
    assert!(
        code == Some(0) && text.contains("note: its repository '/none' is not on this machine: name it too"),
        "{text}"
    );
}
