//! Sources of a configuration, on the program itself: three notations, no file at all, one model's own directory or
//! file; and `deuteron config show`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::folder::Folder;
use crate::support::onnx::{FLOAT, Onnx};
use crate::support::{http, repository, server::Server};
use serde_json::{Value, json};

/// `y = x + x`, 4 values a row.
fn twice() -> Vec<u8> {
    let onnx = Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    onnx.input("x", FLOAT, &[-1, 4]).output("y", FLOAT, &[-1, 4]).into_bytes()
}

fn deuteron(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deuteron")).args(arguments).output().unwrap()
}

/// The printed configuration, or the line of the refusal.
fn shown(path: &Path, flags: &[&str]) -> Result<String, String> {
    let output = deuteron(&[&["config", "show", path.to_str().unwrap()], flags].concat());
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    if output.status.success() { Ok(out) } else { Err(error) }
}

/// Doubles a row by the model of this name.
fn doubles(server: &Server, model: &str) {
    let request = json!({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]});
    let path = format!("/v2/models/{model}/infer");
    let answer = http::post(server.http(), &path, request.to_string().as_bytes()).unwrap();
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["outputs"][0]["data"], json!([2.0, 4.0, 6.0, 8.0]), "{model}: {answer}");
}

const IDENTITY: &str = "backend: \"identity\"\nmax_batch_size: 8\n\
    input { name: \"x\" data_type: TYPE_FP32 dims: [ 4 ] }\noutput { name: \"y\" data_type: TYPE_FP32 dims: [ 4 ] }\n";

#[test]
fn one_notation_shown_as_another_is_the_same_configuration() {
    let folder = Folder::new("notations");
    let model = folder.path().join("m");
    fs::create_dir_all(model.join("1")).unwrap();
    fs::write(model.join("config.pbtxt"), IDENTITY).unwrap();
    let text = shown(&model, &[]).unwrap();
    for line in ["name: \"m\"", "max_batch_size: 8", "  dims: [ 4 ]", "  kind: KIND_CPU"] {
        assert!(text.lines().any(|have| have == line), "{line}: {text}");
    }
    let mut before = "config.pbtxt";
    for (file, format) in [("config.json", "--format=json"), ("config.toml", "--format=toml")] {
        let written = shown(&model, &[format]).unwrap();
        fs::write(model.join(file), &written).unwrap();
        let both = shown(&model, &[]).unwrap_err();
        assert_eq!(both, format!("error: model 'm' has {before} and {file}: keep one of them\n"));
        fs::remove_file(model.join(before)).unwrap();
        assert_eq!(shown(&model, &[]), Ok(text.clone()), "{file}: {written}");
        before = file;
    }
    fs::write(model.join("config.toml"), "max_batch_size = 8\n[[input]]\nnme = \"x\"\n").unwrap();
    let wrong = "error: config.toml:3:1: message type \"inference.ModelInput\" has no field named \"nme\"\n";
    assert_eq!(shown(&model, &[]), Err(wrong.to_owned()));
    fs::remove_file(model.join("config.toml")).unwrap();
    fs::write(model.join("config.json"), "{\n \"max_batch_size\": \"x\"\n}").unwrap();
    let wrong = "error: config.json:2:20: expected an integer for \"max_batch_size\", got \"x\"\n";
    assert_eq!(shown(&model, &[]), Err(wrong.to_owned()));
}

#[test]
fn a_python_model_that_was_just_begun_has_a_configuration_that_is_served() {
    let folder = Folder::new("begun");
    let path = folder.path().join("models");
    let init = || deuteron(&["init", "python", "halver", "--path", path.to_str().unwrap()]);
    let output = init();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("/v2/models/halver/infer"), "{text}");
    let text = shown(&path.join("halver"), &[]).unwrap();
    for line in ["name: \"halver\"", "backend: \"python\"", "default_model_filename: \"model.py\""] {
        assert!(text.lines().any(|have| have == line), "{line}: {text}");
    }
    let output = init();
    assert!(!output.status.success() && String::from_utf8(output.stderr).unwrap().contains("nothing is overwritten"));
}

#[test]
fn what_a_file_says_is_shown_and_can_be_switched_off() {
    let folder = Folder::new("generated");
    repository::add(folder.path(), "m", "", Some(&twice()));
    fs::remove_file(folder.path().join("m/config.pbtxt")).unwrap();
    let path = folder.path().join("m");
    let text = shown(&path, &[]).unwrap();
    assert!(text.contains("max_batch_size: 4\n") && text.contains("preferred_batch_size: [ 4 ]"), "{text}");
    let text = shown(&path, &["--backend-config=default-max-batch-size=0"]).unwrap();
    assert!(text.contains("dims: [ -1, 4 ]") && !text.contains("max_batch_size"), "{text}");
    assert_eq!(shown(folder.path(), &[]), shown(&path, &[]), "a repository of one model");
    for flag in ["--disable-auto-complete-config", "--strict-model-config=true"] {
        let refused = shown(&path, &[flag]).unwrap_err();
        let want = "error: failed to open text file for read ./config.pbtxt: No such file or directory\n";
        assert_eq!(refused, want);
        fs::write(path.join("config.pbtxt"), "").unwrap();
        assert_eq!(shown(&path, &[flag]).unwrap_err(), "error: must specify 'platform' or 'backend' for 'm'\n");
        fs::write(path.join("config.pbtxt"), "backend: 'onnxruntime'").unwrap();
        let want = "error: model configuration must contain at least one input, none were specified for m\n";
        assert_eq!(shown(&path, &[flag]).unwrap_err(), want);
        fs::remove_file(path.join("config.pbtxt")).unwrap();
    }
    repository::add(folder.path(), "n", "", Some(&twice()));
    let refused = shown(folder.path(), &[]).unwrap_err();
    assert!(refused.contains("has 2 models (m, n): name one, as in "), "{refused}");
}

#[test]
fn a_file_or_a_models_own_directory_is_served_without_a_configuration() {
    let folder = Folder::new("alone");
    let file = folder.path().join("double\"it.onnx");
    fs::write(&file, twice()).unwrap();
    let refused = deuteron(&["serve", file.to_str().unwrap()]);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("it' cannot be the name of a model") && text.contains("--model-name"), "{text}");
    doubles(&Server::deuteron(&file, &["--model-name=double"]), "double");

    let link = folder.path().join("linked.onnx");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    doubles(&Server::deuteron(&link, &[]), "linked");

    let mounted = folder.path().join("models");
    fs::create_dir(&mounted).unwrap();
    fs::write(mounted.join("model.onnx"), twice()).unwrap();
    doubles(&Server::deuteron(&mounted, &[]), "models");
    doubles(&Server::deuteron(&mounted, &["--model-name=iris"]), "iris");

    fs::write(mounted.join("config.json"), "{\"name\": \"iris\", \"max_batch_size\": 2}").unwrap();
    fs::create_dir(mounted.join("7")).unwrap();
    fs::rename(mounted.join("model.onnx"), mounted.join("7/model.onnx")).unwrap();
    let server = Server::deuteron(&mounted, &[]);
    doubles(&server, "iris");
    let metadata = http::get(server.http(), "/v2/models/iris").unwrap().body;
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    assert_eq!(metadata["versions"], json!(["7"]));
    let server = Server::deuteron(&mounted, &["--model-name=other"]);
    doubles(&server, "other");
    assert!(server.log().contains("the model that config.json calls 'iris' is served as 'other'"), "{}", server.log());
    // The only model of a repository, by another name than its directory and its configuration have.
    let repository = folder.path().join("repository");
    fs::create_dir(&repository).unwrap();
    fs::rename(&mounted, repository.join("iris")).unwrap();
    let server = Server::deuteron(&repository, &["--model-name=other"]);
    doubles(&server, "other");
    assert_eq!(http::get(server.http(), "/v2/models/iris").unwrap().status, 404);
    let pickle = folder.path().join("iris.pkl");
    fs::write(&pickle, "").unwrap();
    let refused = shown(&pickle, &[]).unwrap_err();
    assert!(refused.contains("'iris.pkl' is a pickle") && refused.contains("pip install skl2onnx"), "{refused}");
    let named = folder.path().join("pickled");
    fs::create_dir_all(named.join("1")).unwrap();
    fs::write(named.join("1/model.pkl"), "").unwrap();
    fs::write(named.join("config.pbtxt"), "platform: 'onnxruntime_onnx'").unwrap();
    let refused = shown(&named, &[]).unwrap_err();
    assert!(refused.contains("'model.pkl' is a pickle"), "{refused}");
    let refused = shown(folder.path().join("none.onnx").as_path(), &[]).unwrap_err();
    assert!(refused.contains("cannot open the model repository") && refused.contains("none.onnx"), "{refused}");
}

#[test]
fn variables_stand_in_for_flags_and_those_of_kubernetes_for_none() {
    let folder = Folder::new("environment");
    let model = folder.path().join("m");
    fs::create_dir_all(model.join("1")).unwrap();
    fs::write(model.join("config.pbtxt"), IDENTITY.replace("max_batch_size: 8\n", "")).unwrap();
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        let output = command.args(arguments).envs(variables.iter().copied()).output().unwrap();
        let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, error)
    };
    let repository = ("DEUTERON_MODEL_REPOSITORY", model.to_str().unwrap());
    let links = [
        ("DEUTERON_SERVICE_HOST", "10.0.0.1"),
        ("DEUTERON_SERVICE_PORT", "8000"),
        ("DEUTERON_PORT", "tcp://10.0.0.1:8000"),
        ("DEUTERON_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("DEUTERON_HTTP_PORT", "tcp://10.0.0.2:8000"),
    ];
    let (code, out, error) = run(&["config", "show"], &[&links[..], &[repository]].concat());
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(out.contains("name: \"m\""), "{out}");
    let (code, _, error) = run(&["config", "show"], &[repository, ("DEUTERON_HTTP_PORT", "http")]);
    let want = "error: DEUTERON_HTTP_PORT=http: expected a port from 0 to 65535\n";
    assert_eq!((code, error.as_str()), (Some(2), want));
    let (code, _, error) = run(&["config", "show", "--http-port=1"], &[repository, ("DEUTERON_HTTP_PORT", "http")]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "the flag goes first");
}

#[test]
fn every_command_answers_and_a_wrong_command_line_ends_with_2() {
    let check = |arguments: &[&str], code: i32, out: &str, error: &str| {
        let output = deuteron(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        for (text, want) in [(output.stdout, out), (output.stderr, error)] {
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains(want) && text.is_empty() == want.is_empty(), "{arguments:?}: {text}");
        }
    };
    let version = concat!("deuteron ", env!("CARGO_PKG_VERSION"));
    check(&["version"], 0, version, "");
    check(&["--version"], 0, version, "");
    check(&["help"], 0, "\nModels:\n", "");
    check(&["--help"], 0, "DEUTERON_HTTP_PORT", "");
    check(&["config", "--help"], 0, "Usage: deuteron config", "");
    check(&["bench", "--help"], 0, "Usage: deuteron bench", "");
    check(&["completions", "bash"], 0, "complete -F _deuteron", "");
    check(&["man"], 0, ".TH deuteron", "");
    check(&[], 2, "", "\n  deuteron serve DIRECTORY ");
    check(&["serve"], 2, "", "error: no model repository");
    check(&["config", "check", "Cargo.toml"], 1, "", "Cargo.toml: line 1: unknown key 'workspace'");
    check(&["config", "check", "none.toml"], 1, "", "--config=none.toml: cannot be read");
    check(&["--config=Cargo.toml"], 2, "", "--config=Cargo.toml: line 1: unknown key 'workspace'");
    check(&["srve"], 2, "", "did you mean 'serve'?");
    check(&["m", "--htp-port=1"], 2, "", "error: unknown flag '--htp-port': did you mean '--http-port'?");
    check(&["infer"], 2, "", "`deuteron serve ./infer` would serve");
    check(&["serve", "no-such-folder", "--http-port=0"], 1, "", "no-such-folder");
    check(&["-h"], 0, "--help lists all.", "");
    check(&["bench", "--nope"], 2, "", "error: unknown flag '--nope'");
}
