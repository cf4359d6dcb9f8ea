//! Response caches as shared libraries (`tests/backends/cache.c`), which the server hosts with `--allow-agents`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::infer;
use crate::isolation::until;
use crate::support::folder::Folder;
use crate::support::gate::compile;
use crate::support::server::Server;
use crate::support::{http, metrics, repository};

/// A repository with the model `kept` in `models`, and the library of the cache `list` in `caches`.
fn folder() -> Folder {
    let folder = Folder::new("caches");
    let config = "backend: 'identity' response_cache { enable: true }
        input { name: 'INPUT0' data_type: TYPE_FP32 dims: 2 } output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: 2 }";
    repository::add(&folder.path().join("models"), "kept", config, None);
    compile(&folder.path().join("caches/list/libtritoncache_list.so"), "cache", &[]);
    folder
}

/// The flags for the cache `list` of a folder, with a setting of it.
fn flags(folder: &Folder, setting: &str) -> [String; 4] {
    [
        "--shards=1".to_owned(),
        "--allow-agents=true".to_owned(),
        format!("--cache-directory={}", folder.path().join("caches").display()),
        format!("--cache-config=list,{setting}"),
    ]
}

fn serve(folder: &Folder, setting: &str) -> Server {
    let flags = flags(folder, setting);
    Server::deuteron(&folder.path().join("models"), &flags.each_ref().map(String::as_str))
}

/// The number of runs for a request, whose answer is right in any case.
fn runs(server: &Server, data: [f32; 2]) -> u64 {
    let count = || statistics(server)["execution_count"].as_u64().unwrap();
    let before = count();
    let input = json!({"name": "INPUT0", "shape": [2], "datatype": "FP32", "data": data});
    let (status, answer) = infer(server, "kept", &json!({"inputs": [input]}));
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!(data)), "{answer}");
    count() - before
}

fn statistics(server: &Server) -> Value {
    let answer = http::get(server.http(), "/v2/models/kept/stats").unwrap();
    serde_json::from_slice::<Value>(&answer.body).unwrap()["model_stats"][0].clone()
}

fn metric(server: &Server, name: &str) -> u64 {
    metrics::metric(server.metrics(), name)
}

fn failed(server: &Server, reason: &str) -> u64 {
    metric(server, &format!("deuteron_cache_lookups_failed_total{{reason=\"{reason}\"}}"))
}

#[test]
fn a_library_answers_a_repeated_request_and_reports_metrics_of_its_own() {
    let folder = folder();
    let mut server = serve(&folder, "size=7");
    assert_eq!(runs(&server, [1.0, 2.0]), 1);
    // The library's own metric, which only it can know.
    until("the answer is stored", || metric(&server, "nv_cache_num_entries") == 1);
    assert_eq!(runs(&server, [1.0, 2.0]), 0);
    assert_eq!(runs(&server, [2.0, 1.0]), 1, "another request");
    let kept = statistics(&server);
    let counts = |name: &str| kept["inference_stats"][name]["count"].as_u64().unwrap();
    assert_eq!(["success", "compute_infer", "cache_hit", "cache_miss"].map(counts), [3, 2, 1, 2], "{kept}");
    for (name, want) in [("nv_cache_num_hits", 1), ("nv_cache_num_misses", 2), ("nv_cache_num_lookups", 3)] {
        assert_eq!(metric(&server, name), want, "{name}");
    }
    assert_eq!(["busy", "damaged", "failed", "full"].map(|reason| failed(&server, reason)), [0; 4]);
    assert!(server.stop().success());
    let log = server.log();
    let told = log.find("cache: initialized with");
    let finalized = log.find("cache: finalized");
    assert!(
        told.is_some() && told < finalized && log.contains("the response cache is 'libtritoncache_list.so'"),
        "{log}"
    );
    assert!(log.trim_end().ends_with("\"ended\""), "{log}");
}

#[test]
fn a_library_that_fails_or_gives_wrong_bytes_costs_only_the_hit_and_is_told_once() {
    let folder = folder();
    for (setting, reason, logged) in [
        ("fail=lookup", Some("failed"), Some("a lookup in the response cache failed")),
        ("fail=insert", None, Some("an insertion in the response cache failed")),
        ("give=changed", Some("damaged"), None),
    ] {
        let server = serve(&folder, setting);
        assert_eq!(runs(&server, [1.0, 2.0]), 1, "{setting}");
        let is_over = || {
            assert_eq!(runs(&server, [1.0, 2.0]), 1, "{setting}");
            match reason {
                Some(reason) => failed(&server, reason) > 1,
                None => metric(&server, "deuteron_cache_stores_failed_total{reason=\"refused\"}") > 1,
            }
        };
        until(setting, is_over);
        let log = server.log();
        let told = log.matches("on purpose").count();
        assert_eq!(told, usize::from(logged.is_some()), "{setting}: {log}");
        assert!(logged.is_none_or(|text| log.contains(text)), "{setting}: {log}");
    }
}

#[test]
fn a_library_that_does_not_return_holds_up_neither_requests_nor_the_end() {
    let folder = folder();
    let file = folder.path().join("hold");
    fs::write(&file, "").unwrap();
    let setting = format!("hold={}", file.display());
    let server = serve(&folder, &setting);
    let mut count = 0.0;
    until("all threads are stuck", || {
        count += 1.0;
        assert_eq!(runs(&server, [count, 0.0]), 1);
        failed(&server, "busy") > 0
    });
    assert!(failed(&server, "late") > 0);
    let mut other = serve(&folder, &setting);
    assert_eq!(runs(&other, [1.0, 2.0]), 1);
    assert!(other.stop().success());
    assert!(other.log().contains("or the response cache does not return; the server ends"), "{}", other.log());
    fs::remove_file(&file).unwrap();
    until("it answers again", || runs(&server, [0.0, 1.0]) == 0);
}

/// The exit code and the output of a command with these flags.
fn deuteron(command: &str, models: &Path, flags: &[String]) -> (Option<i32>, String) {
    let ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"];
    let output =
        Command::new(env!("CARGO_BIN_EXE_deuteron")).arg(command).arg(models).args(ports).args(flags).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn a_library_that_cannot_be_the_cache_ends_the_start_with_the_reason() {
    let folder = folder();
    let (models, caches) = (folder.path().join("models"), folder.path().join("caches"));
    let library = |name: &str| caches.join(name).join(format!("libtritoncache_{name}.so"));
    compile(&library("lacking"), "cache", &["-DNO_INSERT"]);
    compile(&library("newer"), "cache", &["-DAPI_MINOR=2"]);
    fs::create_dir_all(caches.join("text")).unwrap();
    fs::write(library("text"), "no library").unwrap();
    let check = |cache: &str, want: &str| {
        let flags = [&flags(&folder, "")[1..3], &[format!("--cache-config={cache}")]].concat();
        let (code, text) = deuteron("serve", &models, &flags);
        assert!(code == Some(1) && text.contains(want), "{cache}: {text}");
        assert!(!text.contains(&format!("{}/", caches.display())), "no place of this machine: {text}");
    };
    check(
        "absent,a=b",
        "unable to find 'libtritoncache_absent.so' for cache, searched: 'absent' beneath --cache-directory",
    );
    let text = "unable to load shared library: libtritoncache_text.so is no ELF file of 64 bits";
    check("text,a=b", text);
    let lacking =
        "unable to find required entrypoint 'TRITONCACHE_CacheInsert' in shared library: libtritoncache_lacking.so";
    check("lacking,a=b", lacking);
    check("newer,a=b", "--cache-config=newer: triton cache API version does not support this cache");
    check("list,fail=initialize", "--cache-config=list: the cache refuses its settings on purpose");
    check("list,give=nothing", "--cache-config=list: Failed to initialize cache implementation");
    let (code, text) = deuteron("serve", &models, &flags(&folder, "a=b")[2..]);
    let want = "there is no cache 'list'; expected 'local' or 'redis', or --allow-agents=true for a library";
    assert!(code == Some(2) && text.contains(want), "{code:?} {text}");
    // The doctor looks for the library, and does not open it.
    let (code, text) = deuteron("doctor", &models, &flags(&folder, "fail=initialize"));
    let want = "\nResponse cache\n  the library of the cache 'list': found, not opened\n";
    assert!(code == Some(0) && text.contains(want), "{text}");
    fs::remove_dir_all(&caches).unwrap();
    let (code, text) = deuteron("doctor", &models, &flags(&folder, "a=b"));
    assert!(code == Some(1) && text.contains("install the library there, or correct the name"), "{text}");
}
