//! Repository agents as shared libraries (`tests/backends/agent.c`), which the server hosts with `--allow-agents`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{infer, start};
use crate::isolation::until;
use crate::support::folder::Folder;
use crate::support::gate::compile;
use crate::support::server::Server;
use crate::support::{http, repository};

/// The key of the encrypted library, for the agent.
const KEY: u8 = 0x5a;

/// A repository with models in the care of the agent, whose backend is encrypted beside them; and the directory of agents.
fn folders(models: &[(&str, &str)]) -> (Folder, PathBuf, PathBuf) {
    let folder = Folder::new("agents");
    let (repository, agents) = (folder.path().join("models"), folder.path().join("agents"));
    compile(&agents.join("decrypting").join("libtritonrepoagent_decrypting.so"), "agent", &[]);
    let plain = folder.path().join("plain.so");
    compile(&plain, "identity", &[]);
    let encrypted: Vec<u8> = fs::read(plain).unwrap().into_iter().map(|byte| byte ^ KEY).collect();
    for (name, parameters) in models {
        let config = format!(
            "backend: 'secret' model_repository_agents {{ agents {{ name: 'decrypting' {parameters} }} }}
             input {{ name: 'INPUT0' data_type: TYPE_FP32 dims: -1 }}
             output {{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: -1 }}"
        );
        repository::add(&repository, name, &config, None);
        fs::write(repository.join(name).join("1").join("backend.enc"), &encrypted).unwrap();
    }
    (folder, repository, agents)
}

fn parameter(name: &str, value: &str) -> String {
    format!("parameters {{ key: '{name}' value: '{value}' }}")
}

fn serve(repository: &Path, agents: &Path, flags: &[&str]) -> Server {
    let directory = format!("--repoagent-directory={}", agents.display());
    let own = ["--exit-on-error=false", "--strict-readiness=false", "--model-control-mode=explicit", "--load-model=*"];
    start(repository, Path::new("/nowhere"), &[&own[..], &[&directory], flags].concat())
}

/// The texts that the agent has logged.
fn said(server: &Server) -> Vec<String> {
    let log = server.log();
    let text = |line: &str| Some(line.split_once("agent: ")?.1.trim_end_matches('"').to_owned());
    log.lines().filter(|line| line.contains("agent.c:")).filter_map(text).collect()
}

/// The reason in the index for a model that is not served.
fn reason(server: &Server, name: &str) -> String {
    let index = http::post(server.http(), "/v2/repository/index", b"").unwrap();
    let index: Vec<Value> = serde_json::from_slice(&index.body).unwrap();
    let model = index.iter().find(|model| model["name"] == name).unwrap();
    assert_eq!(model["state"], "UNAVAILABLE", "{model}");
    model["reason"].as_str().unwrap().to_owned()
}

#[test]
fn an_agent_decrypts_a_model_into_a_directory_of_its_own_until_the_model_is_unloaded() {
    let (_folder, repository, agents) = folders(&[("plain", &parameter("key", &KEY.to_string()))]);
    let server = serve(&repository, &agents, &["--allow-agents=true"]);
    let input = json!({"name": "INPUT0", "shape": [3], "datatype": "FP32", "data": [1.0, 2.5, -3.0]});
    let (status, answer) = infer(&server, "plain", &json!({"inputs": [input]}));
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([1.0, 2.5, -3.0])), "{answer}");
    let told = said(&server);
    let place = told.iter().find_map(|text| text.strip_prefix("it is loaded from ")).unwrap().to_owned();
    assert_eq!(told, ["initialized", "LOAD", &format!("it is loaded from {place}"), "LOAD_COMPLETE"]);
    assert!(Path::new(&place).join("1/libtriton_secret.so").is_file() && !Path::new(&place).starts_with(&repository));
    assert_eq!(http::post(server.http(), "/v2/repository/models/plain/unload", b"").unwrap().status, 200);
    until("the agent hears of the end", || said(&server).last().is_some_and(|text| text == "finalized"));
    assert_eq!(said(&server)[4..], ["UNLOAD", "UNLOAD_COMPLETE", "the model is finalized", "finalized"]);
    assert!(!Path::new(&place).exists(), "{place}");
    // It comes again with the model.
    assert_eq!(http::post(server.http(), "/v2/repository/models/plain/load", b"").unwrap().status, 200);
    assert_eq!(said(&server)[8..10], ["initialized", "LOAD"]);
}

#[test]
fn an_agent_hears_of_a_load_that_failed_and_its_own_error_fails_the_load() {
    let wrong = parameter("key", "1");
    let (fails, late) = (parameter("fail", "LOAD"), parameter("fail", "LOAD_COMPLETE"));
    let late = format!("{late} {}", parameter("key", &KEY.to_string()));
    let (_folder, repository, agents) = folders(&[("wrong", &wrong), ("fails", &fails), ("late", &late)]);
    let server = serve(&repository, &agents, &["--allow-agents=true", "--model-load-thread-count=1"]);
    let want = "Not found: unable to load shared library: libtriton_secret.so is no ELF file of 64 bits";
    assert_eq!(reason(&server, "wrong"), want);
    assert_eq!(reason(&server, "fails"), "the agent fails on purpose");
    let told = said(&server);
    assert_eq!(told.iter().filter(|text| *text == "LOAD_FAIL").count(), 2, "{told:?}");
    // An error after the load is logged, and the model serves.
    let log = server.log();
    let logged =
        "a repository agent returned an error on TRITONREPOAGENT_ACTION_LOAD_COMPLETE: the agent fails on purpose";
    assert!(log.contains(logged), "{log}");
    assert_eq!(http::get(server.http(), "/v2/models/late/ready").unwrap().status, 200, "{log}");
}

#[test]
fn without_the_flag_no_agent_is_opened_and_with_it_a_missing_one_is_named() {
    let (_folder, repository, agents) = folders(&[("plain", &parameter("key", &KEY.to_string()))]);
    let server = serve(&repository, &agents, &[]);
    let want = "unable to find 'libtritonrepoagent_decrypting.so' for repo agent 'decrypting': this server has the agent \
                'checksum' and loads no others without --allow-agents";
    assert_eq!((reason(&server, "plain").as_str(), said(&server).len()), (want, 0));
    fs::remove_dir_all(&agents).unwrap();
    let server = serve(&repository, &agents, &["--allow-agents=true"]);
    let want = "unable to find 'libtritonrepoagent_decrypting.so' for repo agent 'decrypting', searched: 'decrypting' beneath \
                --repoagent-directory";
    assert_eq!(reason(&server, "plain"), want);
}
