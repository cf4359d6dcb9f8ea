//! Operators from a library (`model_operations.op_library_filename`): those of the package onnxruntime-extensions, for texts
//! and for pictures, in the server and in a process of the model's own; and libraries that are not there or not allowed.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{assert_refuses, command, environment, flag, run, start};
use crate::support::folder::Folder;
use crate::support::http;
use crate::support::python::Environment;
use crate::support::server::{Ports, Server};

/// The models of `operators.py`, and the library. Each model names it by its own `name`.
fn repository(environment: &Environment, names: &[(&str, &str)]) -> (Folder, PathBuf) {
    let folder = Folder::new("operators");
    let library = run(environment, "onnxruntime/operators.py", "write", &folder.path().display().to_string());
    let library = PathBuf::from(library.trim());
    for (model, more) in names {
        let config = format!(
            "backend: \"onnxruntime\" max_batch_size: 0\n{}\n",
            more.replace("LIBRARY", &library.display().to_string())
        );
        fs::write(folder.path().join(model).join("config.pbtxt"), config).unwrap();
    }
    (folder, library)
}

/// The library of the package is a module of Python too: this defines Python's symbols, which it never uses as a library
/// of operators. A user preloads the real `libpython`.
fn python_symbols(folder: &Folder, library: &Path) -> PathBuf {
    let output = Command::new("nm").args(["-D", "--undefined-only"]).arg(library).output().unwrap();
    let symbols = String::from_utf8(output.stdout).unwrap();
    let mut source = String::new();
    for name in symbols.split_whitespace().filter(|name| name.starts_with("Py") || name.starts_with("_Py")) {
        writeln!(source, "char {name}[4096];").unwrap();
    }
    let [source_file, stand_in] = ["python.c", "python.so"].map(|name| folder.path().join(name));
    fs::write(&source_file, source).unwrap();
    let compiler = Command::new("cc").args(["-shared", "-o"]).arg(&stand_in).arg(&source_file).status().unwrap();
    assert!(compiler.success());
    stand_in
}

fn ask(server: &Server, model: &str, tensor: &str) -> String {
    let body = format!("{{\"inputs\":[{{\"name\":\"x\",{tensor}}}]}}");
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    format!("{} {}", answer.status, String::from_utf8(answer.body).unwrap())
}

/// A picture of 4 × 3 red pixels.
const PNG: &[u8] = include_bytes!("red.png");

const NAMED: &str = "model_operations { op_library_filename: \"LIBRARY\" }";

#[test]
fn texts_and_pictures_are_computed_by_operators_from_a_library() {
    let Some(environment) = environment() else { return };
    let isolated = format!("{NAMED} parameters {{ key: \"isolation\" value {{ string_value: \"process\" }} }}");
    for config in [NAMED, &isolated] {
        let (folder, library) = repository(environment, &[("upper", config), ("decode", config)]);
        let symbols = python_symbols(&folder, &library);
        let server = start(&folder, &[&flag(environment)], &[("LD_PRELOAD", &symbols)]);
        let text = ask(&server, "upper", r#""shape":[2],"datatype":"BYTES","data":["abc","x-y"]"#);
        assert!(text.starts_with("200 ") && text.contains(r#""data":["ABC","X-Y"]"#), "{config}: {text}");
        let bytes: Vec<_> = PNG.iter().map(u8::to_string).collect();
        let picture = format!(r#""shape":[{}],"datatype":"UINT8","data":[{}]"#, PNG.len(), bytes.join(","));
        let text = ask(&server, "decode", &picture);
        assert!(text.starts_with("200 ") && text.contains(r#""shape":[3,4,3]"#), "{config}: {text}");
    }
}

#[test]
fn a_library_beside_the_model_is_found_and_its_faults_are_named_without_a_path() {
    let Some(environment) = environment() else { return };
    let beside = "model_operations { op_library_filename: \"operators.so\" }";
    let (folder, library) = repository(environment, &[("upper", beside), ("decode", "")]);
    fs::remove_dir_all(folder.path().join("decode")).unwrap();
    let symbols = python_symbols(&folder, &library);
    let place = folder.path().join("upper/operators.so");
    fs::copy(&library, &place).unwrap();
    let server = start(&folder, &[&flag(environment)], &[("LD_PRELOAD", &symbols)]);
    let text = ask(&server, "upper", r#""shape":[1],"datatype":"BYTES","data":["abc"]"#);
    assert!(text.contains(r#""data":["ABC"]"#), "{text}");
    // Python's symbols are missing, then the library, then ONNX Runtime.
    let refuses = |flags: &[&str], want: &str| assert_refuses(command(&folder, flags, Ports::free()), want);
    let named = "model_operations.op_library_filename 'operators.so': Failed to load library operators.so with error: ";
    refuses(&[&flag(environment)], named);
    fs::write(&place, "not a library").unwrap();
    refuses(&[&flag(environment)], named);
    refuses(
        &["--onnx-engine=embedded"],
        "'upper' names libraries with operators (model_operations.op_library_filename)",
    );
    let elsewhere = "backend: \"onnxruntime\" model_operations { op_library_filename: \"/nowhere/x.so\" }";
    fs::write(folder.path().join("upper/config.pbtxt"), elsewhere).unwrap();
    refuses(&[&flag(environment)], "names '/nowhere/x.so', which is not there: give an absolute path, or put");
}
