//! PyTorch models, served: natively by a shim that the server compiles against the stand-in for torch of
//! `tests/pytorch/stand_in`. `DEUTERON_TESTS=frameworks` does the same with torch itself (Debian's `libtorch-dev` and
//! `python3-torch`), natively and in Python, and holds answers to torch's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::server::{Ports, Server};
use crate::support::skipped::is_asked_for;

/// The headers of torch that the shim names.
const HEADERS: &str = include_str!("../pytorch/stand_in/headers.txt");

/// The configuration of a model of a row of numbers.
const CONFIG: &str = "platform: \"pytorch_libtorch\" max_batch_size: 8
    input { name: \"x\" data_type: TYPE_FP32 dims: -1 } output { name: \"y__0\" data_type: TYPE_FP32 dims: -1 }";

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch").join(name)
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Lays out the stand-in as torch's wheel does.
pub fn stand_in(torch: &Path) {
    let header = format!("#include \"{}\"\n", source("stand_in/torch.h").display());
    HEADERS.lines().for_each(|name| write(&torch.join("include").join(name), &header));
    let version = "#define TORCH_VERSION_MAJOR 9\n#define TORCH_VERSION_MINOR 8\n#define TORCH_VERSION_PATCH 7\n\
                   #define TORCH_VERSION \"9.8.7\"\n";
    write(&torch.join("include/torch/csrc/api/include/torch/version.h"), version);
    let core = torch.join("core.cpp");
    write(&core, "#include <string>\nstd::string name(std::string text) { return text + text; }\n");
    let libraries = [(source("stand_in/torch.cpp"), "libtorch_cpu.so"), (core, "libc10.so")];
    fs::create_dir_all(torch.join("lib")).unwrap();
    for (source, library) in libraries {
        let mut command = Command::new("c++");
        command
            .args(["-std=gnu++17", "-O1", "-fPIC", "-shared", "-o"])
            .arg(torch.join("lib").join(library))
            .arg(source);
        assert!(command.status().unwrap().success(), "{library} is compiled");
    }
}

/// Adds a module of these lines, of a row of numbers.
pub fn add(repository: &Path, name: &str, parameters: &str, lines: &str) {
    write(&repository.join(name).join("config.pbtxt"), &format!("{CONFIG} {parameters}"));
    write(&repository.join(name).join("1/model.pt"), lines);
}

/// A server with these flags, with or without a compiler.
pub fn start(repository: &Path, flags: &[&str], has_compiler: bool) -> Server {
    let ports = Ports::free();
    let mut command = Server::command(repository, flags, ports);
    command.args(["--exit-on-error=false", "--strict-readiness=false"]);
    if !has_compiler {
        command.env("PATH", "/nowhere").env("CXX", "/nowhere/c++");
    }
    // The shim may be compiled first, on a busy machine.
    Server::start_within(Duration::from_secs(400), command, ports)
}

fn get(server: &Server, path: &str) -> String {
    String::from_utf8(http::get(server.http(), path).unwrap().body).unwrap()
}

/// The index of the repository, which has the reasons of failed loads.
fn index(server: &Server) -> String {
    let request = b"POST /v2/repository/index HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
    String::from_utf8(http::exchange(server.http(), request).unwrap().body).unwrap()
}

/// The answer to a row of numbers, or the error.
fn ask(server: &Server, model: &str, numbers: &str) -> String {
    let body = format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1,2],"data":[{numbers}]}}]}}"#);
    let request =
        format!("POST /v2/models/{model}/infer HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let answer = http::exchange(server.http(), request.as_bytes()).unwrap();
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    match answer["error"].as_str() {
        Some(error) => error.to_owned(),
        None => answer["outputs"][0]["data"].to_string(),
    }
}

#[test]
fn modules_run_by_a_shim_that_is_compiled_once_in_the_server_and_in_processes_of_their_own() {
    let folder = Folder::new("pytorch");
    let (repository, torch, cache) =
        (folder.path().join("models"), folder.path().join("torch"), folder.path().join("cache"));
    stand_in(&torch);
    let double = "stand-in\nargument x Tensor\ndouble x";
    add(&repository, "double", "", double);
    add(&repository, "apart", "parameters { key: \"isolation\" value { string_value: \"process\" } }", double);
    add(&repository, "fails", "", "stand-in\nargument x Tensor\nopen\nfail_if_negative x");
    add(&repository, "none", "", "no TorchScript");
    // Cargo's own folder may be open to a group.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let library = format!("--backend-config=pytorch,library={}", torch.display());
    let kept = format!("--backend-config=pytorch,cache={}", cache.display());
    let server = start(&repository, &[&library, &kept, "--trial-loads=all"], true);
    assert_eq!(ask(&server, "double", "1,-2.5"), "[2.0,-5.0]");
    assert_eq!(ask(&server, "apart", "3,4"), "[6.0,8.0]");
    let why = "PyTorch execute failure: RuntimeError: negative";
    assert_eq!(ask(&server, "fails", "-1,0"), why);
    assert_eq!(ask(&server, "fails", "1,0"), "[1.0,0.0]");
    let config: Value = serde_json::from_str(&get(&server, "/v2/models/double/config")).unwrap();
    let parameter = |key: &str| config["parameters"][key]["string_value"].as_str().unwrap().to_owned();
    assert_eq!((parameter("served_engine"), parameter("served_engine_version")), ("pytorch".into(), "9.8.7".into()));
    assert!(index(&server).contains("failed to load model 'none': PytorchStreamReader failed"), "{}", index(&server));
    drop(server);
    let shims = || -> Vec<_> { fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
    assert_eq!(shims().len(), 1, "{:?}", shims());
    // A single file, with the configuration beside it.
    let file = folder.path().join("file/net.pt");
    write(&file, double);
    write(&folder.path().join("file/config.pbtxt"), CONFIG);
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    let shown = command.args(["config", "show"]).arg(&file).args([&library, &kept]).output().unwrap();
    let shown = String::from_utf8([shown.stdout, shown.stderr].concat()).unwrap();
    assert!(shown.contains("default_model_filename: \"net.pt\"") && shown.contains("\"pytorch\""), "{shown}");
    // A server without a compiler opens the kept shim; without that, it names the missing part.
    let lone = folder.path().join("lone");
    add(&lone, "double", "", double);
    let flags = [library.as_str(), kept.as_str(), "--backend-config=pytorch,runner=native"];
    let server = start(&lone, &flags, false);
    assert_eq!(ask(&server, "double", "1,2"), "[2.0,4.0]");
    drop(server);
    fs::remove_dir_all(&cache).unwrap();
    let server = start(&lone, &flags, false);
    let index = index(&server);
    assert!(index.contains("model 'double' needs PyTorch") && index.contains("install g++"), "{index}");
}

#[test]
fn one_file_is_served_with_the_configuration_beside_it_and_its_absence_says_what_to_write() {
    let folder = Folder::new("pytorch-file");
    let file = folder.path().join("net.pt");
    write(&file, "stand-in\nargument x Tensor\ndouble x");
    let show = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        let output = command.args(["config", "show"]).arg(&file).args(arguments).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let lacking = show(&[]);
    assert!(
        lacking.contains("model 'net' has no output") && lacking.contains("data_type: TYPE_FP32 dims: ["),
        "{lacking}"
    );
    let library = format!("--backend-config=pytorch,library={}", folder.path().display());
    let named = show(&[&library]);
    assert!(named.contains("there is no libtorch_cpu.so in this directory"), "{named}");
}

/// Debian's Python, whose torch has headers, and its torch.
const PYTHON: &str = "/usr/bin/python3";

fn check(verb: &str, arguments: &[&str]) -> String {
    let output = Command::new(PYTHON).arg(source("check.py")).arg(verb).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn real_torch_answers_as_in_python_natively_and_in_processes_of_python() {
    if !is_asked_for("frameworks") {
        return;
    }
    let folder = Folder::new("torch");
    let repository = folder.path().join("models");
    let repository = repository.to_str().unwrap();
    check("export", &[repository]);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let cache = format!("--backend-config=pytorch,cache={}/cache", folder.path().display());
    let python = format!("--backend-config=python,interpreter={PYTHON}");
    for runner in ["native", "python"] {
        let runner = format!("--backend-config=pytorch,runner={runner}");
        let server = start(Path::new(repository), &[&runner, &cache, &python], true);
        assert!(!index(&server).contains("UNAVAILABLE"), "{runner}\n{}", index(&server));
        let results = check("check", &[&server.http().to_string(), repository]);
        println!("{runner}\n{results}");
        assert!(results.lines().count() >= 16 && !results.contains("WRONG"), "{runner}\n{results}");
        println!("{}", check("time", &[&server.http().to_string(), repository]));
    }
}
