//! A malicious repository: each of its models fails alone, with a reason, and the server and the good models go on. No
//! file outside the repository is read with `--follow-links=false`, and nothing large is taken into memory.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::server::Server;
use crate::support::{http, onnx};
use serde_json::Value;

const TENSORS: &str = "max_batch_size: 8\ninput [{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }]\n\
                       output [{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }]\n";
const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1.5]}]}"#;

/// Makes a model's directory and its first version.
fn model(repository: &Path, name: &str, config: &str) -> std::path::PathBuf {
    let path = repository.join(name);
    fs::create_dir_all(path.join("1")).unwrap();
    if !config.is_empty() {
        fs::write(path.join("config.pbtxt"), config).unwrap();
    }
    path
}

fn identity() -> String {
    format!("backend: \"identity\"\n{TENSORS}")
}

fn sparse(path: &Path, size: u64) {
    File::create(path).unwrap().set_len(size).unwrap();
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn index(server: &Server) -> Vec<Value> {
    let answer = http::post(server.http(), "/v2/repository/index", b"").unwrap();
    serde_json::from_slice(&answer.body).unwrap()
}

fn resident_kib(server: &Server, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The models, and a part of the reason for each failure.
fn write(repository: &Path, outside: &Path) -> Vec<(&'static str, &'static str)> {
    fs::write(outside.join("secret"), "apple\nbanana\n").unwrap();
    fs::write(outside.join("model.onnx"), onnx::addsub()).unwrap();
    fs::create_dir_all(outside.join("1")).unwrap();
    let onnx_config = "platform: \"onnxruntime_onnx\"\n";
    model(repository, "good", &identity());

    symlink(outside.join("model.onnx"), model(repository, "weights_out", onnx_config).join("1/model.onnx")).unwrap();
    symlink(outside.join("secret"), model(repository, "config_out", "").join("config.pbtxt")).unwrap();
    let labelled = identity().replace("dims: [ -1 ] }]\noutput", "dims: [ 4 ] }]\noutput");
    let labelled = labelled.replace(
        "OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ]",
        "OUTPUT0\" data_type: TYPE_FP32 dims: [ 4 ] label_filename: \"labels.txt\"",
    );
    symlink(outside.join("secret"), model(repository, "labels_out", &labelled).join("labels.txt")).unwrap();
    model(repository, "labels_up", &labelled.replace("labels.txt", "../../secret"));
    let version_out = model(repository, "version_out", &identity());
    fs::remove_dir(version_out.join("1")).unwrap();
    symlink(outside.join("1"), version_out.join("1")).unwrap();

    // 8 bytes: weights that a model could add to its input, and so tell.
    fs::write(outside.join("weights"), "apple123").unwrap();
    let absolute = outside.join("weights").display().to_string();
    for (name, place) in [("external_up", "../../../weights"), ("external_full", &absolute), ("external_link", "w")] {
        let path = model(repository, name, onnx_config).join("1");
        fs::write(path.join("model.onnx"), onnx::add_external(place)).unwrap();
        symlink(outside.join("weights"), path.join("w")).unwrap();
    }

    sparse(&model(repository, "sparse", onnx_config).join("1/model.onnx"), 10 << 30);
    sparse(&model(repository, "sparse_config", "").join("config.pbtxt"), 10 << 30);
    sparse(&model(repository, "zeros", onnx_config).join("1/model.onnx"), 64 << 20);
    fifo(&model(repository, "fifo", onnx_config).join("1/model.onnx"));
    fifo(&model(repository, "fifo_config", "").join("config.pbtxt"));

    let many = model(repository, "many", &identity());
    (1..=100_000).for_each(|version| fs::create_dir_all(many.join(version.to_string())).unwrap());
    let some = model(repository, "some", &identity());
    (1..=1_025).for_each(|version| fs::create_dir_all(some.join(version.to_string())).unwrap());

    let cyclic = model(repository, "cyclic", "");
    symlink("config.pbtxt", cyclic.join("config.pbtxt")).unwrap();
    symlink("..", cyclic.join("1/up")).unwrap();
    symlink(".", cyclic.join("around")).unwrap();

    let bytes = model(repository, "no_text", "");
    fs::write(bytes.join("config.pbtxt"), b"name: \"\xff\xfe\"\n").unwrap();
    let nested = format!("parameters {}", "{ value ".repeat(50_000));
    model(repository, "nested", &nested);
    let wide: String =
        (0..20_000).map(|index| format!("input {{ name: 'i{index}' data_type: TYPE_FP32 dims: 1 }}\n")).collect();
    model(repository, "wide", wide[..1 << 19].rsplit_once('\n').unwrap().0);
    model(repository, "huge", &format!("name: \"{}\"", "n".repeat(2 << 20)));
    fs::write(model(repository, "garbage", onnx_config).join("1/model.onnx"), b"\x08\x08\x3a\xff\xff\xff\xff\x0fx")
        .unwrap();

    // Names that are not text, and a directory of such.
    fs::create_dir_all(repository.join(OsStr::from_bytes(b"bad\xff")).join("1")).unwrap();
    fs::create_dir_all(repository.join("good").join(OsStr::from_bytes(b"\xff1"))).unwrap();
    symlink(outside, repository.join("linked_out")).unwrap();
    symlink("nowhere", repository.join("dangling")).unwrap();
    symlink("loop", repository.join("loop")).unwrap();
    vec![
        ("config_out", "cannot be read"),
        ("cyclic", ""),
        ("dangling", "symbolic link 'dangling' leads to 'nowhere', which does not exist"),
        ("external_full", "which does not lie beside it or below"),
        ("external_link", "keeps tensors in 'w', which cannot be read beneath the repository"),
        ("external_up", "keeps tensors in '../../../weights', which does not lie beside it or below"),
        ("fifo", "not a regular file"),
        ("fifo_config", "not a regular file"),
        ("garbage", ""),
        ("huge", "larger than"),
        ("labels_out", "cannot read 'labels_out/labels.txt'"),
        ("labels_up", "label_filename"),
        ("linked_out", "out of the repository, which --follow-links=false refuses"),
        ("loop", "symbolic link 'loop' leads to 'loop': it leads in a circle"),
        ("many", "more names than are listed"),
        ("nested", ""),
        ("no_text", ""),
        ("some", "has 1025 versions"),
        ("sparse", "larger than"),
        ("sparse_config", "larger than"),
        ("version_out", "symbolic link 'version_out/1' leads to"),
        ("weights_out", "cannot read 'weights_out/1/model.onnx'"),
        ("wide", ""),
        ("zeros", ""),
    ]
}

/// A folder in memory where there is such a place: a disk takes a minute for a hundred thousand directories.
struct Memory(std::path::PathBuf);

impl Memory {
    fn new() -> Self {
        let shared = Path::new("/dev/shm");
        let base = if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() };
        let path = base.join(format!("deuteron-hostile-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_means_harm_fails_alone() {
    let (repository, outside) = (Memory::new(), Folder::new("outside"));
    let bad = write(repository.path(), outside.path());
    let flags = [
        "--exit-on-error=false",
        "--strict-readiness=false",
        "--model-control-mode=poll",
        "--repository-poll-secs=1",
        "--follow-links=false",
    ];
    let start = Instant::now();
    let server = Server::deuteron(repository.path(), &flags);
    let took = start.elapsed();
    let entries = index(&server);
    let names: Vec<&str> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    let mut want: Vec<&str> = bad.iter().map(|(name, _)| *name).chain(["good"]).collect();
    want.sort_unstable();
    assert_eq!(names, want);
    for (name, why) in &bad {
        let entry = entries.iter().find(|entry| entry["name"] == *name).unwrap();
        let reason = entry["reason"].as_str().unwrap_or_default();
        assert!(entry["state"] == "UNAVAILABLE" && !reason.is_empty(), "{entry}");
        // The target of `config.pbtxt` is refused in the words of the file system.
        let is_told = reason.contains(why) || (*name == "config_out" && reason.contains("config"));
        assert!(is_told, "{name}: {reason:?} does not say {why:?}");
        assert!(!reason.contains("apple"), "{name} tells what lies outside: {reason}");
        let answer = http::post(server.http(), &format!("/v2/models/{name}/infer"), BODY).unwrap();
        assert_eq!(answer.status, 404, "{name}");
    }
    let answers = || http::post(server.http(), "/v2/models/good/infer", BODY).unwrap().status;
    assert_eq!(answers(), 200);
    println!("ready after {took:?}, {} KiB at most", resident_kib(&server, "VmHWM:"));
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(resident_kib(&server, "VmHWM:") < 400 * 1024, "{} KiB", resident_kib(&server, "VmHWM:"));

    // Some polls later memory has not grown, and a repaired model loads.
    let before = resident_kib(&server, "VmRSS:");
    thread::sleep(Duration::from_secs(3));
    fs::remove_file(repository.path().join("fifo_config/config.pbtxt")).unwrap();
    fs::write(repository.path().join("fifo_config/config.pbtxt"), identity()).unwrap();
    let start = Instant::now();
    while http::post(server.http(), "/v2/models/fifo_config/infer", BODY).unwrap().status != 200 {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", server.log());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(answers(), 200);
    let after = resident_kib(&server, "VmRSS:");
    assert!(after < before + 16 * 1024, "{before} KiB before, {after} KiB after");
    let log = server.log();
    let told = log.lines().filter(|line| line.contains("'sparse'")).count();
    assert_eq!(told, 1, "it is told once, not at each look:\n{log}");
}
