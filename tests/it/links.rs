//! Symbolic links that lead out of a repository: followed in what the operator names, refused with
//! `--follow-links=false` and in files of a client.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::{http, onnx, repository, server::Server};

const TENSORS: &str = "max_batch_size: 0 input { name: 'x' data_type: TYPE_FP32 dims: 2 }\n\
                       output { name: 'y' data_type: TYPE_FP32 dims: 2 label_filename: 'labels.txt' }\n";

/// Links of a repository into a cache beside it.
struct Linked {
    folder: Folder,
}

impl Linked {
    fn new(name: &str) -> Self {
        let folder = Folder::new(&format!("links-{name}"));
        fs::create_dir_all(folder.path().join("cache")).unwrap();
        fs::create_dir_all(folder.path().join("models")).unwrap();
        Self { folder }
    }

    fn models(&self) -> PathBuf {
        self.folder.path().join("models")
    }

    /// A file in the cache, by the name of its contents, and a link to it.
    fn file(&self, link: &str, blob: &str, contents: &[u8]) {
        let blob = self.folder.path().join("cache").join(blob);
        fs::write(&blob, contents).unwrap();
        let link = self.models().join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(blob, link).unwrap();
    }

    /// A model whose every file is a link, one whose directory is, and one whose version is.
    fn models_of_every_kind(&self) {
        let weights = [10_f32, 20.0].map(f32::to_le_bytes).concat();
        let config = format!("platform: 'onnxruntime_onnx' {TENSORS}");
        self.file("files/config.pbtxt", "c0", config.as_bytes());
        self.file("files/labels.txt", "c1", b"one\ntwo\n");
        self.file("files/1/w.data", "c2", &weights);
        fs::write(self.models().join("files/1/model.onnx"), onnx::add_external("w.data")).unwrap();
        self.file("weights/1/model.onnx", "c3", &twice());
        let elsewhere = self.folder.path().join("elsewhere");
        let config = "backend: 'identity' max_batch_size: 0 input { name: 'x' data_type: TYPE_FP32 dims: 2 } \
                      output { name: 'y' data_type: TYPE_FP32 dims: 2 }";
        repository::add(&elsewhere, "whole", config, None);
        symlink(elsewhere.join("whole"), self.models().join("directory")).unwrap();
        repository::add(&self.models(), "version", config, None);
        fs::remove_dir_all(self.models().join("version/1")).unwrap();
        symlink(elsewhere.join("whole/1"), self.models().join("version/1")).unwrap();
    }
}

/// Adds its input to itself.
fn twice() -> Vec<u8> {
    let graph = onnx::Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    graph.input("x", onnx::FLOAT, &[2]).output("y", onnx::FLOAT, &[2]).into_bytes()
}

fn infer(server: &Server, model: &str) -> (u16, Value) {
    let body = json!({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}]});
    let path = format!("/v2/models/{model}/infer");
    let answer = http::post(server.http(), &path, body.to_string().as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

/// The state and the reason of each model.
fn index(server: &Server) -> Vec<(String, String)> {
    let answer = http::post(server.http(), "/v2/repository/index", b"").unwrap();
    let entries: Vec<Value> = serde_json::from_slice(&answer.body).unwrap();
    let text = |entry: &Value, member: &str| entry[member].as_str().unwrap_or_default().to_owned();
    entries.iter().map(|entry| (text(entry, "name"), text(entry, "reason"))).collect()
}

const LENIENT: [&str; 2] = ["--exit-on-error=false", "--strict-readiness=false"];

#[test]
fn files_versions_and_models_may_be_links_out_of_the_repository() {
    let linked = Linked::new("followed");
    linked.models_of_every_kind();
    fs::write(linked.models().join("README.md"), "x").unwrap();
    fs::create_dir(linked.models().join(".git")).unwrap();
    let server = Server::deuteron(&linked.models(), &[]);
    let same = [1.0, 2.0];
    for (model, want) in [("files", [11.0, 22.0]), ("weights", [2.0, 4.0]), ("directory", same), ("version", same)] {
        let (status, answer) = infer(&server, model);
        assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!(want)), "{model}: {answer}");
    }
    let log = server.log();
    for line in ["'README.md' in '", "is ignored: not a directory", "is ignored: hidden names are not models"] {
        assert!(log.contains(line), "{line}\n{log}");
    }
}

#[test]
fn a_link_that_is_refused_or_leads_nowhere_is_named() {
    let linked = Linked::new("refused");
    linked.models_of_every_kind();
    symlink("/nowhere/at/all", linked.models().join("dangling")).unwrap();
    repository::add(&linked.models(), "half", "backend: 'identity'", None);
    symlink("/nowhere/2", linked.models().join("half/2")).unwrap();
    let check = |flags: &[&str], wanted: &[(&str, &str)]| {
        let server = Server::deuteron(&linked.models(), &[&LENIENT[..], flags].concat());
        let found = index(&server);
        for (name, why) in wanted {
            let (_, reason) = found.iter().find(|(have, _)| have == name).unwrap();
            assert!(reason.contains(why), "{name}: {reason:?} does not say {why:?}");
            assert_eq!(infer(&server, name).0, 404, "{name}");
        }
    };
    let dangling = [
        ("dangling", "symbolic link 'dangling' leads to a place, which does not exist"),
        ("half", "symbolic link 'half/2' leads to a place, which does not exist"),
    ];
    check(&[], &dangling);
    let refused = ", out of the repository, which --follow-links=false refuses";
    let jailed = ["files", "weights", "directory", "version", "dangling", "half"].map(|name| (name, refused));
    check(&["--follow-links=false"], &jailed);
    // Models that are loaded on request are found by their names alone.
    let server = Server::deuteron(&linked.models(), &["--model-control-mode=explicit"]);
    let load = |name: &str| http::post(server.http(), &format!("/v2/repository/models/{name}/load"), b"").unwrap();
    assert_ne!(load("dangling").status, 200);
    assert_eq!(load("files").status, 200);
    fs::remove_file(linked.folder.path().join("cache/c2")).unwrap();
    assert_ne!(load("files").status, 200);
    let log = server.log();
    for text in ["symbolic link 'dangling' leads to a place", "symbolic link 'files/1/w.data' leads to a place"] {
        assert!(log.contains(text), "{text}\n{log}");
    }
}

#[test]
fn a_trial_process_follows_the_links_that_its_server_follows() {
    let linked = Linked::new("trial");
    linked.models_of_every_kind();
    let server = Server::deuteron(&linked.models(), &["--trial-loads=all"]);
    for model in ["files", "weights"] {
        assert_eq!(infer(&server, model).0, 200, "{}", server.log());
    }
}

/// A place for a model's file and one for its tensors, either of them linked from the version's directory or absent from it.
const LAYOUTS: [(&str, &str, Option<&str>); 5] = [
    ("hub", "hub/blobs/8aa1", Some("hub/blobs/03fe")),
    ("dvc", "md5/8a/a1", Some("md5/03/fe")),
    ("target", "exported/model.onnx", None),
    ("plain_model", "", Some("md5/44/11")),
    ("plain_data", "md5/55/22", Some("")),
];

/// Models of each layout in a repository, and one whose tensors are nowhere.
fn models_in_layouts(folder: &Folder) -> PathBuf {
    let weights = [10_f32, 20.0].map(f32::to_le_bytes).concat();
    let (models, cache) = (folder.path().join("models"), folder.path().join("cache"));
    let put = |place: &str, link: &Path, contents: &[u8]| {
        if place.is_empty() {
            return fs::write(link, contents).unwrap();
        }
        let place = cache.join(place);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(&place, contents).unwrap();
        symlink(place, link).unwrap();
    };
    for (name, model, data) in LAYOUTS {
        let version = models.join(name).join("1");
        fs::create_dir_all(&version).unwrap();
        put(model, &version.join("model.onnx"), &onnx::add_external("w.data"));
        match data {
            Some(place) => put(place, &version.join("w.data"), &weights),
            None => fs::write(cache.join(model).with_file_name("w.data"), &weights).unwrap(),
        }
    }
    fs::create_dir_all(models.join("nowhere/1")).unwrap();
    put("md5/66/33", &models.join("nowhere/1/model.onnx"), &onnx::add_external("w.data"));
    models
}

#[test]
fn files_of_tensors_are_found_beside_a_link_and_beside_its_target_by_either_engine() {
    let folder = Folder::new("links-tensors");
    let models = models_in_layouts(&folder);
    let library = crate::onnxruntime::environment().map(crate::onnxruntime::flag);
    for engine in [Some("--onnx-engine=embedded".to_owned()), library].into_iter().flatten() {
        let server = Server::deuteron(&models, &[&LENIENT[..], &[&engine]].concat());
        for (model, ..) in LAYOUTS {
            let (status, answer) = infer(&server, model);
            let want = json!([11.0, 22.0]);
            assert_eq!((status, &answer["outputs"][0]["data"]), (200, &want), "{engine} {model}\n{}", server.log());
        }
        let found = index(&server);
        let (_, reason) = found.iter().find(|(name, _)| name == "nowhere").unwrap();
        let want = "'nowhere/1/model.onnx' keeps tensors in 'w.data', which cannot be read beneath the repository: No such \
                    file or directory (os error 2); nor beside the file that the link 'nowhere/1/model.onnx' leads to: \
                    entity not found";
        assert!(reason.contains(want), "{reason}");
    }
}

#[test]
fn without_links_out_of_the_repository_tensors_beside_a_target_are_refused_by_name() {
    let folder = Folder::new("links-refused-tensors");
    let models = models_in_layouts(&folder);
    let target = models.join("inside");
    fs::create_dir_all(&target).unwrap();
    fs::create_dir_all(models.join("near/1")).unwrap();
    fs::write(target.join("net.onnx"), onnx::add_external("w.data")).unwrap();
    fs::write(target.join("w.data"), [0; 8]).unwrap();
    symlink("../../inside/net.onnx", models.join("near/1/model.onnx")).unwrap();
    let server = Server::deuteron(&models, &[&LENIENT[..], &["--follow-links=false"]].concat());
    let found = index(&server);
    let (_, reason) = found.iter().find(|(name, _)| name == "near").unwrap();
    assert!(reason.contains("'near/1/model.onnx' keeps tensors in 'w.data', which cannot be read"), "{reason}");
    assert!(!reason.contains("leads to"), "{reason}");
}

#[test]
fn a_single_file_that_is_a_link_keeps_its_name() {
    let linked = Linked::new("file");
    linked.file("snapshot/adder.onnx", "9f86d081", &twice());
    let server = Server::deuteron(&linked.models().join("snapshot/adder.onnx"), &[]);
    let (status, answer) = infer(&server, "adder");
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([2.0, 4.0])), "{answer}");
    drop(server);
    // A refused link is resolved once, for the user named it: the name is still that of the link.
    linked.file("snapshot/plain.onnx", "fd61a03a", &onnx::addsub());
    let server = Server::deuteron(&linked.models().join("snapshot/plain.onnx"), &["--follow-links=false"]);
    assert_eq!(http::get(server.http(), "/v2/models/plain/ready").unwrap().status, 200, "{}", server.log());
}

#[test]
fn a_directory_of_a_model_that_is_a_link_has_the_name_of_the_link() {
    let linked = Linked::new("named");
    let elsewhere = linked.folder.path().join("elsewhere");
    repository::add(&elsewhere, "0fa3", "", Some(&onnx::addsub()));
    let link = linked.models().join("sums");
    symlink(elsewhere.join("0fa3"), &link).unwrap();
    let name = |path: &Path| {
        let output = Command::new(env!("CARGO_BIN_EXE_deuteron")).args(["config", "show"]).arg(path).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(name(&link).contains("name: \"sums\""), "{}", name(&link));
}
