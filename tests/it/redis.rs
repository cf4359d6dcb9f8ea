//! The response cache in Redis, on servers as processes and a real `redis-server`: servers share answers, and a Redis
//! that is gone, silent or full of foreign bytes costs nothing but the hits.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::server::{Ports, Server};
use crate::support::{http, metrics, repository, skipped};
use serde_json::{Value, json};

/// Run time of the model of these tests.
const RUN: Duration = Duration::from_millis(200);
/// Time limit for a change to show.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A `redis-server` that keeps nothing on disk.
struct Redis {
    child: Child,
    port: u16,
    password: &'static str,
    folder: Folder,
}

impl Redis {
    /// A Redis server on this port; `None` if the program is not installed.
    fn start(port: u16, password: &'static str) -> Option<Self> {
        let folder = Folder::new("redis");
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()]);
        command.arg("--dir").arg(folder.path());
        if !password.is_empty() {
            command.args(["--requirepass", password]);
        }
        let child = match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) => {
                skipped::skip_unless_ci(&format!("redis-server does not start: {error}"));
                return None;
            }
        };
        let redis = Self { child, port, password, folder };
        let start = Instant::now();
        while redis.tell(&["PING"], b"") != "PONG" {
            assert!(start.elapsed() < WAIT_MAX, "redis-server does not answer");
            thread::sleep(Duration::from_millis(10));
        }
        Some(redis)
    }

    /// Output of Redis's own client.
    fn tell(&self, words: &[&str], input: &[u8]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port.to_string(), "--no-auth-warning", "--raw"]);
        if !self.password.is_empty() {
            command.args(["-a", self.password]);
        }
        if !input.is_empty() {
            command.arg("-x");
        }
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("redis-cli comes with redis-server");
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn keys(&self) -> Vec<String> {
        self.tell(&["KEYS", "*"], b"").lines().map(str::to_owned).collect()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert!(self.folder.path().exists(), "its folder goes after it");
    }
}

/// An identity model that takes [`RUN`] for a batch.
fn slow(more: &str) -> String {
    format!(
        "backend: 'identity' max_batch_size: 8 {more}
         parameters {{ key: 'execute_delay_ms' value {{ string_value: '200' }} }}
         input {{ name: 'INPUT0' data_type: TYPE_FP32 dims: 2 }} output {{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: 2 }}"
    )
}

/// A repository with the model `kept`, and a file in its version that is `weights`.
fn models(weights: &str) -> Folder {
    let folder = Folder::new("redis-models");
    repository::add(folder.path(), "kept", &slow("response_cache { enable: true }"), None);
    fs::write(folder.path().join("kept/1/weights"), weights).unwrap();
    folder
}

fn command(repository: &Path, port: u16, more: &[&str]) -> (Command, Ports) {
    let ports = Ports::free();
    let port = format!("--cache-config=redis,port={port}");
    // A machine that is busy with other tests may take long: an answer that comes later is a miss, and is not stored.
    let patient = ["--cache-config=redis,socket_timeout=10000", "--cache-config=redis,wait_timeout=10000"];
    let flags = [&["--shards=1", "--cache-config=redis,host=127.0.0.1", &port], &patient[..], more].concat();
    (Server::command(repository, &flags, ports), ports)
}

fn serve(repository: &Folder, port: u16, more: &[&str]) -> Server {
    let (command, ports) = command(repository.path(), port, more);
    Server::start(command, ports)
}

/// Returns true if the answer came without a run. The answer is right in any case.
fn is_hit(server: &Server, model: &str, data: [f32; 2]) -> bool {
    let (input, output) = if model == "kept" { ("INPUT0", "OUTPUT0") } else { ("x", "y") };
    let input = json!({"name": input, "shape": [1, 2], "datatype": "FP32", "data": data});
    let body = json!({"inputs": [input]}).to_string();
    // Of the model, and of the step of an ensemble.
    let runs = || {
        let text = page(server);
        let counts =
            text.lines().filter(|line| line.starts_with("nv_inference_exec_count{") && !line.contains("\"whole\""));
        counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = runs();
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    let value: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((&value["outputs"][0]["name"], &value["outputs"][0]["data"]), (&json!(output), &json!(data)), "{value}");
    runs() == before
}

fn metric(server: &Server, name: &str) -> u64 {
    metrics::metric(server.metrics(), name)
}

fn page(server: &Server) -> String {
    String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap()
}

/// Waits until a metric is at least `least`.
fn wait_for(server: &Server, name: &str, least: u64) {
    let start = Instant::now();
    while metric(server, name) < least {
        assert!(start.elapsed() < WAIT_MAX, "{name} is not {least}:\n{}", page(server));
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for stored answers, which arrive a moment after their request was answered.
fn wait_for_keys(redis: &Redis, count: usize) {
    let start = Instant::now();
    while redis.keys().len() < count {
        assert!(start.elapsed() < WAIT_MAX, "{:?}", redis.keys());
        thread::sleep(Duration::from_millis(5));
    }
}

const FAILED: &str = "deuteron_redis_lookups_failed_total";

#[test]
fn servers_share_answers_and_one_that_starts_again_has_them() {
    let Some(redis) = Redis::start(Ports::free().http, "") else { return };
    let (mine, theirs) = (models("a"), models("a"));
    let mut one = serve(&mine, redis.port, &[]);
    assert!(!is_hit(&one, "kept", [1.0, 2.0]));
    wait_for_keys(&redis, 1);
    assert!(is_hit(&one, "kept", [1.0, 2.0]));
    assert!(!is_hit(&one, "kept", [1.0, 3.0]), "another request");
    let other = serve(&theirs, redis.port, &["--cache-config=redis,pool_size=3"]);
    assert!(is_hit(&other, "kept", [1.0, 2.0]), "another server, with its own copy of the repository");
    wait_for(&other, "deuteron_redis_connections", 3);
    for (name, want) in [("nv_cache_num_hits", 1), ("nv_cache_num_misses", 0), ("nv_cache_num_lookups", 1)] {
        assert_eq!(metric(&other, name), want, "{name}");
    }
    let text = page(&other);
    assert!(text.contains("nv_cache_num_hits_per_model{model=\"kept\",version=\"1\"} 1"), "{text}");
    assert!(!text.contains("nv_cache_util"), "how full it is, Redis tells: {text}");
    one.stop();
    let again = serve(&mine, redis.port, &[]);
    assert!(is_hit(&again, "kept", [1.0, 2.0]), "after a restart");
}

#[test]
fn another_model_never_answers() {
    let Some(redis) = Redis::start(Ports::free().http, "") else { return };
    let before = models("a");
    let server = serve(&before, redis.port, &[]);
    assert!(!is_hit(&server, "kept", [1.0, 2.0]));
    wait_for_keys(&redis, 1);
    let file = models("b");
    let config = models("a");
    repository::add(
        config.path(),
        "kept",
        &slow("response_cache { enable: true } metric_tags { key: 'a' value: 'b' }"),
        None,
    );
    let version = models("a");
    fs::rename(version.path().join("kept/1"), version.path().join("kept/2")).unwrap();
    for (name, repository) in [("file", file), ("config", config), ("version", version)] {
        let other = serve(&repository, redis.port, &[]);
        assert!(!is_hit(&other, "kept", [1.0, 2.0]), "another {name}");
    }
    assert!(is_hit(&server, "kept", [1.0, 2.0]), "the first still has its own");
}

#[test]
fn values_that_are_no_answers_are_misses_and_replaced() {
    let Some(redis) = Redis::start(Ports::free().http, "") else { return };
    let repository = models("a");
    let server = serve(&repository, redis.port, &[]);
    assert!(!is_hit(&server, "kept", [1.0, 2.0]));
    wait_for_keys(&redis, 1);
    let key = redis.keys().remove(0);
    assert!(key.starts_with("deuteron:1:") && key.len() == 75, "{key}");
    let spoil: [(&str, &dyn Fn()); 4] = [
        ("of another program", &|| drop(redis.tell(&["SET", &key], b"{\"outputs\":[]}"))),
        ("changed", &|| drop(redis.tell(&["SETRANGE", &key, "60", "x"], b""))),
        ("cut", &|| drop(redis.tell(&["SET", &key, "deuter"], b""))),
        ("of another kind", &|| drop((redis.tell(&["DEL", &key], b""), redis.tell(&["LPUSH", &key, "x"], b"")))),
    ];
    for (index, (name, spoil)) in spoil.into_iter().enumerate() {
        spoil();
        assert!(!is_hit(&server, "kept", [1.0, 2.0]), "{name}");
        assert_eq!(metric(&server, &format!("{FAILED}{{reason=\"damaged\"}}")), index as u64 + 1, "{name}");
        let start = Instant::now();
        while !is_hit(&server, "kept", [1.0, 2.0]) {
            assert!(start.elapsed() < WAIT_MAX, "{name}: it is stored again");
            // Each miss counts on.
            return_to(&redis, &key);
        }
        // A value of another kind is replaced too: SET takes any key.
        assert_eq!(redis.tell(&["TYPE", &key], b""), "string", "{name}");
    }
}

/// Waits a moment for an answer under way.
fn return_to(redis: &Redis, key: &str) {
    thread::sleep(Duration::from_millis(20));
    assert_eq!(redis.tell(&["EXISTS", key], b""), "1");
}

#[test]
fn a_redis_that_is_gone_costs_hits_and_is_found_again() {
    let port = Ports::free().http;
    let Some(redis) = Redis::start(port, "") else { return };
    let repository = models("a");
    let server = serve(&repository, port, &[]);
    assert!(!is_hit(&server, "kept", [1.0, 2.0]));
    wait_for_keys(&redis, 1);
    assert!(is_hit(&server, "kept", [1.0, 2.0]));
    drop(redis);
    let took = [(); 3].map(|()| {
        let start = Instant::now();
        assert!(!is_hit(&server, "kept", [1.0, 2.0]));
        start.elapsed()
    });
    // Other work on the machine makes some later.
    assert!(took.iter().min() < Some(&(RUN + Duration::from_millis(300))), "{took:?}");
    assert!(metric(&server, &format!("{FAILED}{{reason=\"unconnected\"}}")) >= 2, "{}", page(&server));
    assert_eq!(metric(&server, "deuteron_redis_connections"), 0);
    assert!(server.log().contains("requests run without the response cache: Redis at 127.0.0.1:"), "{}", server.log());
    let redis = Redis::start(port, "").unwrap();
    wait_for(&server, "deuteron_redis_connections", 1);
    assert!(!is_hit(&server, "kept", [1.0, 2.0]), "it begins empty");
    wait_for_keys(&redis, 1);
    assert!(is_hit(&server, "kept", [1.0, 2.0]));
    assert!(server.log().contains("is back: requests look into the response cache again"), "{}", server.log());
}

#[test]
fn a_server_starts_without_redis_and_finds_it_later() {
    let port = Ports::free().http;
    let repository = models("a");
    let server = serve(&repository, port, &[]);
    assert!(!is_hit(&server, "kept", [1.0, 2.0]));
    assert!(server.log().contains("requests run without the response cache"), "{}", server.log());
    let Some(redis) = Redis::start(port, "") else { return };
    wait_for(&server, "deuteron_redis_connections", 1);
    assert!(!is_hit(&server, "kept", [1.0, 2.0]));
    wait_for_keys(&redis, 1);
    assert!(is_hit(&server, "kept", [1.0, 2.0]));
}

/// A peer that takes connections and answers `answers` commands of each with `+PONG`, the others never.
fn silent_after(answers: usize) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut space = [0; 65536];
                for _ in 0..answers {
                    if !matches!(stream.read(&mut space), Ok(1..)) || stream.write_all(b"+PONG\r\n").is_err() {
                        return;
                    }
                }
                while matches!(stream.read(&mut space), Ok(1..)) {}
            });
        }
    });
    port
}

#[test]
fn a_redis_that_never_answers_delays_no_request_beyond_the_limit() {
    let repository = models("a");
    repository::add(
        repository.path(),
        "fast",
        "backend: 'identity' max_batch_size: 8 response_cache { enable: true }
         input { name: 'x' data_type: TYPE_FP32 dims: 2 } output { name: 'y' data_type: TYPE_FP32 dims: 2 }",
        None,
    );
    for answers in [0, 1] {
        let port = silent_after(answers);
        let limits = ["--cache-config=redis,socket_timeout=100", "--cache-config=redis,wait_timeout=100"];
        let mut server = serve(&repository, port, &limits);
        let mut took = [(); 20].map(|()| {
            let start = Instant::now();
            is_hit(&server, "fast", [1.0, 2.0]);
            start.elapsed()
        });
        // Each is late by the limit, as is counted below; some also by what else the machine does.
        took.sort();
        assert!(took[10] < Duration::from_millis(600), "{took:?}");
        let failed = |reason: &str| metric(&server, &format!("{FAILED}{{reason=\"{reason}\"}}"));
        assert_eq!(failed("late") + failed("unconnected"), 20, "{}", page(&server));
        assert_eq!(metric(&server, "nv_cache_num_misses"), 20);
        assert!(answers == 0 || metric(&server, "deuteron_redis_connects_total") >= 1);
        let start = Instant::now();
        assert!(server.stop().success());
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

#[test]
fn a_login_that_redis_refuses_ends_the_start_and_no_password_is_shown() {
    const RIGHT: &str = "correct-horse";
    const WRONG: &str = "battery-staple";
    let Some(redis) = Redis::start(Ports::free().http, RIGHT) else { return };
    let repository = models("a");
    let check = |password: &str, want: &str| {
        let (mut command, _) = command(repository.path(), redis.port, &["--log-verbose=1"]);
        command.env("TRITONCACHE_REDIS_PASSWORD", password);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success(), "{text}");
        assert!(text.contains(want) && !text.contains(WRONG), "{text}");
    };
    check(WRONG, "refuses this server: WRONGPASS");
    check("", "refuses this server: NOAUTH");
    let (mut right, ports) = command(repository.path(), redis.port, &["--log-verbose=1"]);
    right.env("TRITONCACHE_REDIS_USERNAME", "default").env("TRITONCACHE_REDIS_PASSWORD", RIGHT);
    let server = Server::start(right, ports);
    assert!(!is_hit(&server, "kept", [1.0, 2.0]));
    wait_for_keys(&redis, 1);
    assert!(is_hit(&server, "kept", [1.0, 2.0]));
    let said = ["/v2", "/v2/models/kept", "/v2/models/kept/config", "/v2/models/kept/stats"]
        .map(|path| String::from_utf8(http::get(server.http(), path).unwrap().body).unwrap());
    for text in said.iter().chain([&server.log(), &page(&server)]) {
        assert!(!text.contains(RIGHT), "{text}");
    }
}

#[test]
fn ensembles_are_answered_and_not_with_what_other_steps_gave() {
    let Some(redis) = Redis::start(Ports::free().http, "") else { return };
    let with_step = |delay: &str| {
        let folder = Folder::new("redis-ensemble");
        repository::add(folder.path(), "kept", &slow("").replace("'200'", &format!("'{delay}'")), None);
        let config = "platform: 'ensemble' max_batch_size: 8 response_cache { enable: true }
            input { name: 'x' data_type: TYPE_FP32 dims: 2 } output { name: 'y' data_type: TYPE_FP32 dims: 2 }
            ensemble_scheduling { step { model_name: 'kept' model_version: -1
            input_map { key: 'INPUT0' value: 'x' } output_map { key: 'OUTPUT0' value: 'y' } } }";
        repository::add(folder.path(), "whole", config, None);
        folder
    };
    let (mine, theirs, changed) = (with_step("200"), with_step("200"), with_step("201"));
    let one = serve(&mine, redis.port, &[]);
    assert!(!is_hit(&one, "whole", [1.0, 2.0]));
    wait_for_keys(&redis, 1);
    assert!(is_hit(&one, "whole", [1.0, 2.0]));
    let other = serve(&theirs, redis.port, &[]);
    assert!(is_hit(&other, "whole", [1.0, 2.0]), "another server");
    let third = serve(&changed, redis.port, &[]);
    assert!(!is_hit(&third, "whole", [1.0, 2.0]), "its step is another model");
}
