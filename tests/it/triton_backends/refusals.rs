//! Backends that refuse: the model is UNAVAILABLE with Triton's text, in the index of both protocols and in the answer to a
//! load.

use std::fs;
use std::path::{Path, PathBuf};

use deuteron::wire::proto::inference as proto;
use prost::Message as _;
use serde_json::Value;

use super::{PLACES, start};
use crate::support::folder::Folder;
use crate::support::gate::{add_backend, compile};
use crate::support::grpc::Client;
use crate::support::server::Server;
use crate::support::{http, repository};

/// Models, each of the backend of its name, and the beginning of the reason that they are not served.
const REFUSALS: [(&str, &str); 6] = [
    (
        "absent",
        "Invalid argument: unable to find backend library for backend 'absent', try specifying runtime on the model \
                configuration; model 'absent': backend 'absent', which this server does not have",
    ),
    ("early", "Unavailable: ModelInitialize"),
    (
        "lacking",
        "Not found: unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in shared library: \
                 libtriton_lacking.so: undefined symbol: TRITONBACKEND_ModelInstanceExecute",
    ),
    ("newer", "Unsupported: triton backend API version does not support this backend"),
    ("text", "Not found: unable to load shared library: libtriton_text.so is no ELF file of 64 bits"),
    ("unlinked", "Not found: unable to load shared library: libtriton_unlinked.so: undefined symbol: nowhere"),
];

/// A repository with these models, and the directory of backends.
fn folders() -> (Folder, PathBuf, PathBuf) {
    let folder = Folder::new("refusals");
    let (models, backends) = (folder.path().join("models"), folder.path().join("backends"));
    let library = |name: &str| backends.join(name).join(format!("libtriton_{name}.so"));
    for (name, _) in REFUSALS {
        let config = format!(
            "backend: '{name}' parameters {{ key: 'stage' value {{ string_value: 'ModelInitialize' }} }}
             input {{ name: 'IN' data_type: TYPE_INT32 dims: 1 }} output {{ name: 'OUT' data_type: TYPE_INT32 dims: 1 }}"
        );
        repository::add(&models, name, &config, None);
    }
    add_backend(&backends, "faulty", "early");
    add_backend(&backends, "newer", "newer");
    compile(&library("lacking"), "newer", &["-DNO_EXECUTE"]);
    compile(&library("unlinked"), "newer", &["-DUNLINKED"]);
    fs::create_dir_all(backends.join("text")).unwrap();
    fs::write(library("text"), "no library").unwrap();
    (folder, models, backends)
}

/// The index over REST: name, version, state and reason.
fn rest_index(server: &Server) -> Vec<[String; 4]> {
    let answer = http::post(server.http(), "/v2/repository/index", b"").unwrap();
    let models: Vec<Value> = serde_json::from_slice(&answer.body).unwrap();
    let text = |model: &Value, key: &str| model[key].as_str().unwrap_or_default().to_owned();
    models.iter().map(|model| ["name", "version", "state", "reason"].map(|key| text(model, key))).collect()
}

/// The same over gRPC.
fn grpc_index(server: &Server) -> Vec<[String; 4]> {
    let answer = Client::new(server.grpc()).call("/inference.GRPCInferenceService/RepositoryIndex", &[]).unwrap();
    let index = proto::RepositoryIndexResponse::decode(answer.as_slice()).unwrap();
    index.models.into_iter().map(|model| [model.name, model.version, model.state, model.reason]).collect()
}

fn check_index(server: &Server, place: &str) {
    for index in [rest_index(server), grpc_index(server)] {
        assert_eq!(index.len(), REFUSALS.len(), "{place} {index:?}");
        for ([name, version, state, reason], (want_name, want)) in index.iter().zip(REFUSALS) {
            assert_eq!([name, version, state], [want_name, "1", "UNAVAILABLE"], "{place} {reason}");
            assert!(reason.starts_with(want), "{place} {reason}");
        }
    }
}

fn refuse(models: &Path, backends: &Path, place: &str) {
    let flags =
        ["--exit-on-error=false", "--strict-readiness=false", "--model-control-mode=explicit", "--load-model=*", place];
    let server = start(models, backends, &flags);
    check_index(&server, place);
    for (name, want) in REFUSALS {
        let answer = http::post(server.http(), &format!("/v2/repository/models/{name}/load"), b"").unwrap();
        let text: Value = serde_json::from_slice(&answer.body).unwrap();
        let beginning = format!("load failed for model '{name}': version 1 is at UNAVAILABLE state: {want}");
        assert!(answer.status == 400 && text["error"].as_str().unwrap().starts_with(&beginning), "{place} {text}");
    }
    check_index(&server, place);
    assert!(!server.log().contains("failed to poll"), "{place} {}", server.log());
}

#[test]
fn a_model_whose_backend_refuses_is_unavailable_with_its_reason_also_after_a_load() {
    let (_folder, models, backends) = folders();
    PLACES.into_iter().for_each(|place| refuse(&models, &backends, place));
}
