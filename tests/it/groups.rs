//! Instance groups on the server as a process: the distribution of work, rate limits, and the cores of the threads.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::http::{self, Connection};
use crate::support::onnx::{FLOAT, Onnx};
use crate::support::over::Over;
use crate::support::repository;
use crate::support::server::Server;

/// An `identity` that takes `delay_ms` for each batch, with these instance groups.
fn model(repository: &Folder, name: &str, delay_ms: u64, groups: &str) {
    let folder = repository.path().join(name);
    fs::create_dir_all(folder.join("1")).unwrap();
    let text = format!(
        "backend: \"identity\"\nmax_batch_size: 0\ninput [{{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ 1 ] }}]\n\
         output [{{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ 1 ] }}]\n\
         parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{delay_ms}\" }} }}\n\
         instance_group [ {groups} ]\n"
    );
    fs::write(folder.join("config.pbtxt"), text).unwrap();
}

const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[1.5]}]}"#;

fn infer(server: &Server, name: &str) -> u16 {
    http::post(server.http(), &format!("/v2/models/{name}/infer"), BODY).unwrap().status
}

/// Infers on one connection, one request after the other, while `goes_on` returns true.
fn infer_while(server: &Server, name: &str, goes_on: impl Fn() -> bool) {
    let request = http::request("POST", &format!("/v2/models/{name}/infer"), &[], BODY);
    let mut connection = Connection::open(server.http()).unwrap();
    while goes_on() {
        connection.send(&request).unwrap();
        assert_eq!(connection.receive().unwrap().status, 200);
    }
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
}

fn runs(server: &Server, model: &str) -> u64 {
    metric(server, &format!("nv_inference_exec_count{{model=\"{model}\",version=\"1\"}}"))
}

fn batches(server: &Server, model: &str, instance: &str) -> u64 {
    metric(
        server,
        &format!("deuteron_instance_batches_total{{instance=\"{instance}\",model=\"{model}\",version=\"1\"}}"),
    )
}

/// Time of `each` requests to each of the two models, all sent at once.
fn time_of(server: &Server, models: [&str; 2], each: usize) -> Duration {
    let start = Instant::now();
    thread::scope(|scope| {
        for model in models {
            for _ in 0..each {
                scope.spawn(move || assert_eq!(infer(server, model), 200));
            }
        }
    });
    start.elapsed()
}

/// The times of a few rounds, the shortest first: other work on the machine makes some longer.
fn times_of(server: &Server, models: [&str; 2], each: usize) -> [Duration; 5] {
    let mut times = [(); 5].map(|()| time_of(server, models, each));
    times.sort();
    times
}

const LIMITED: &str = "--rate-limit=execution_count";

#[test]
fn every_instance_of_every_group_gets_its_share_and_a_passive_one_nothing() {
    let repository = Folder::new("shares");
    let groups = "{ count: 2 }, { name: \"idle\" passive: true }, { name: \"one\" kind: KIND_MODEL }";
    model(&repository, "m", 1, groups);
    let server = Server::deuteron(repository.path(), &["--shards=1"]);
    for _ in 0..60 {
        assert_eq!(infer(&server, "m"), 200);
    }
    for instance in ["m_0_0", "m_0_1", "one_0"] {
        let batches = batches(&server, "m", instance);
        assert!((15..=25).contains(&batches), "{instance} took {batches} of 60");
    }
    assert_eq!((batches(&server, "m", "idle_0"), runs(&server, "m")), (0, 60));
}

#[test]
fn two_models_that_share_a_resource_never_run_at_the_same_time() {
    let repository = Folder::new("resource");
    let group = "{ count: 2 rate_limiter { resources [ { name: \"R\" global: true count: 1 } ] } }";
    model(&repository, "a", 60, group);
    model(&repository, "b", 60, group);
    let eight = Duration::from_millis(8 * 60);
    let server = Server::deuteron(repository.path(), &["--shards=1", LIMITED]);
    let took = time_of(&server, ["a", "b"], 4);
    assert!(took >= eight, "{took:?}");
    drop(server);
    // Two batches at a time.
    let server = Server::deuteron(repository.path(), &["--shards=1", LIMITED, "--rate-limit-resource=r:2"]);
    let took = times_of(&server, ["a", "b"], 4);
    assert!(took[0] >= eight / 2 && took[0] < eight, "{took:?}");
    drop(server);
    let server = Server::deuteron(repository.path(), &["--shards=1", "--rate-limit-resource=R:0"]);
    let took = times_of(&server, ["a", "b"], 4);
    assert!(took[0] < eight / 2, "without a rate limit all that is ignored: {took:?}");
}

#[test]
fn a_model_with_priority_2_runs_half_as_often_as_one_with_1() {
    let repository = Folder::new("priority");
    let group = |priority| {
        format!("{{ count: 1 rate_limiter {{ priority: {priority} resources [ {{ name: \"R\" count: 1 }} ] }} }}")
    };
    model(&repository, "first", 4, &group(1));
    model(&repository, "second", 4, &group(2));
    let server = Server::deuteron(repository.path(), &["--shards=1", LIMITED]);
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for model in ["first", "second"].repeat(4) {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || infer_while(server, model, || !is_over.load(Ordering::SeqCst)));
        }
        while runs(&server, "first") + runs(&server, "second") < 240 {
            assert!(start.elapsed() < Duration::from_secs(60), "its clients have ended");
            thread::sleep(Duration::from_millis(20));
        }
    });
    let (first, second) = (runs(&server, "first") as f64, runs(&server, "second") as f64);
    assert!((1.7..2.4).contains(&(first / second)), "{first} and {second}");
}

#[test]
fn a_request_that_waits_for_resources_is_cancelled_and_drained_like_any_other() {
    let repository = Folder::new("drain");
    let group = "{ rate_limiter { resources [ { name: \"R\" count: 1 } ] } }";
    model(&repository, "a", 1000, group);
    model(&repository, "b", 1, group);
    let mut server = Server::deuteron(repository.path(), &["--shards=1", LIMITED]);
    let waiting = "nv_inference_pending_request_count{model=\"b\",version=\"1\"}";
    let wait_for = |server: &Server, name: &str, want: u64| {
        while metric(server, name) != want {
            thread::yield_now();
        }
    };
    let address = server.metrics();
    let wait_for_batches = |count: u64| {
        while crate::support::metrics::batches_left(address, "a") != count {
            thread::yield_now();
        }
    };
    let request = |name: &str| http::request("POST", &format!("/v2/models/{name}/infer"), &[], BODY);
    let mut busy = Connection::open(server.http()).unwrap();
    busy.send(&request("a")).unwrap();
    wait_for_batches(1);
    let mut gone = Connection::open(server.http()).unwrap();
    gone.send(&request("b")).unwrap();
    wait_for(&server, waiting, 1);
    drop(gone);
    wait_for(&server, waiting, 0);
    assert_eq!(busy.receive().unwrap().status, 200);
    busy.send(&request("a")).unwrap();
    wait_for_batches(2);
    let mut behind = Connection::open(server.http()).unwrap();
    behind.send(&request("b")).unwrap();
    wait_for(&server, waiting, 1);
    assert!(server.stop().success());
    assert_eq!((busy.receive().unwrap().status, behind.receive().unwrap().status), (200, 200));
}

/// Loads or unloads a model. Returns the server's answer.
fn order(server: &Server, model: &str, verb: &str) -> (u16, String) {
    let answer = http::post(server.http(), &format!("/v2/repository/models/{model}/{verb}"), b"").unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

fn wait_until(server: &Server, what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} did not come\n{}", server.log());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn models_that_come_and_go_share_resources_with_those_that_serve() {
    let repository = Folder::new("come-and-go");
    let group = |count: u32, need: u32| {
        format!("{{ count: {count} rate_limiter {{ resources [ {{ name: \"R\" global: true count: {need} }} ] }} }}")
    };
    model(&repository, "a", 40, &group(2, 1));
    model(&repository, "b", 40, &group(2, 1));
    model(&repository, "large", 1, &group(1, 2));
    let flags = ["--shards=1", LIMITED, "--model-control-mode=explicit", "--load-model=a"];
    let server = Server::deuteron(repository.path(), &flags);
    let eight = Duration::from_millis(8 * 40);
    let time_of_a = || time_of(&server, ["a", "a"], 4);
    assert!(time_of_a() >= eight, "one at a time");
    // A model that needs more of the resource adds to its limit, for all models.
    assert_eq!(order(&server, "large", "load"), (200, String::new()));
    let took = times_of(&server, ["a", "a"], 4);
    assert!(took[0] >= eight / 2 && took[0] < eight, "two at a time: {took:?}");
    // Under load models come, share and go; what waits for its turn then is served.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for model in ["a", "a", "large"] {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || infer_while(server, model, || !is_over.load(Ordering::SeqCst)));
        }
        for _ in 0..5 {
            assert_eq!(order(&server, "b", "load"), (200, String::new()));
            let request = http::request("POST", "/v2/models/b/infer", &[], BODY);
            let mut waiting: Vec<_> = (0..6).map(|_| Connection::open(server.http()).unwrap()).collect();
            waiting.iter_mut().for_each(|connection| connection.send(&request).unwrap());
            wait_until(&server, "its requests", || metric(&server, "deuteron_requests_in_flight") >= 6);
            assert_eq!(order(&server, "b", "unload"), (200, String::new()));
            let statuses: Vec<_> = waiting.iter_mut().map(|connection| connection.receive().unwrap().status).collect();
            assert_eq!(statuses, [200; 6], "{}", server.log());
        }
    });
    // And its part of the limit is gone with it.
    assert_eq!(order(&server, "large", "unload"), (200, String::new()));
    wait_until(&server, "the end of it", || server.log().contains("freed 'large' version 1"));
    wait_until(&server, "one at a time again", || time_of_a() >= eight);
    // Shared by all devices, and a device's own: not at once, but one after the other.
    model(&repository, "own", 1, "{ rate_limiter { resources [ { name: \"R\" count: 3 } ] } }");
    let (status, text) = order(&server, "own", "load");
    let both = "Resource \\\"R\\\" is present as both global and device-specific resource in the model configuration.";
    assert!(status == 400 && text.contains(both), "{status} {text}");
    assert_eq!(order(&server, "a", "unload").0, 200);
    wait_until(&server, "room for it", || order(&server, "own", "load").0 == 200);
    assert_eq!(infer(&server, "own"), 200);
}

#[test]
fn a_model_that_asks_for_more_than_there_is_stays_as_it_was() {
    let repository = Folder::new("more-than-there-is");
    let group = |need: u32| format!("{{ rate_limiter {{ resources [ {{ name: \"R\" count: {need} }} ] }} }}");
    model(&repository, "a", 1, &group(2));
    let short = "Resource count for \\\"R\\\" is limited to 2 which will prevent scheduling of one or more model instances, \
                 the minimum required count is 3";
    for (mode, more) in [("explicit", "--load-model=a"), ("poll", "--repository-poll-secs=1")] {
        let flags = ["--shards=1", LIMITED, "--rate-limit-resource=R:2", &format!("--model-control-mode={mode}"), more];
        let server = Server::deuteron(repository.path(), &flags);
        assert_eq!(infer(&server, "a"), 200);
        model(&repository, "a", 1, &group(3));
        if mode == "explicit" {
            let (status, text) = order(&server, "a", "load");
            assert!(status == 400 && text.contains(short), "{status} {text}");
        }
        // As in JSON, quotes are escaped.
        wait_until(&server, "the refusal", || server.log().contains(short));
        assert_eq!(infer(&server, "a"), 200, "{mode}: the old one serves");
        model(&repository, "a", 1, &group(1));
        if mode == "explicit" {
            assert_eq!(order(&server, "a", "load"), (200, String::new()));
        }
        wait_until(&server, "the new one", || server.log().contains("freed 'a' version 1"));
        assert_eq!(infer(&server, "a"), 200);
        model(&repository, "a", 1, &group(2));
    }
}

#[test]
fn what_cannot_be_had_is_refused_at_load() {
    let repository = Folder::new("short");
    let group = |resource: &str| format!("{{ rate_limiter {{ resources [ {{ {resource} }} ] }} }}");
    model(&repository, "a", 1, &group("name: \"R\" count: 4"));
    let check = |flags: &[&str], want: &str| {
        let ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        let output = command.arg("serve").arg(repository.path()).args(ports).args(flags).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && text.contains(want), "{want:?} is not in\n{text}");
    };
    let short = "Resource count for \\\"R\\\" is limited to 3 which will prevent scheduling of one or more model instances, \
                 the minimum required count is 4";
    check(&[LIMITED, "--rate-limit-resource=R:3"], short);
    check(&["--worker-cores=1000"], "--worker-cores names core 1000, which this process may not use");
    model(&repository, "b", 1, &group("name: \"R\" count: 1 global: true"));
    let both = "Resource \\\"R\\\" is present as both global and device-specific resource in the model configuration.";
    check(&[LIMITED], both);
}

/// The cores of the threads of a process whose names begin with `name`.
fn cores_of(server: &Server, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().flatten();
    let mut cores = Vec::new();
    for task in tasks {
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim();
        if field("Name:").starts_with(name) {
            cores.push(field("Cpus_allowed_list:").to_owned());
        }
    }
    cores.sort();
    assert!(!cores.is_empty(), "no thread is called {name}");
    cores
}

/// The cores that this process, and so its server, may use.
fn available() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let cores = list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    });
    cores.collect()
}

#[test]
fn workers_and_the_threads_of_their_engines_stay_on_their_cores() {
    let available = available();
    let [one, two, ..] = available[..] else { return }; // one core cannot show a difference
    let repository = Folder::new("cores");
    model(&repository, "m", 1, "{ name: \"a\" }, { name: \"b\" host_policy: \"far\" }");
    let flags = [format!("--worker-cores={two}"), format!("--host-policy=far,cpu-cores={one},{two}")];
    let server = Server::deuteron(repository.path(), &flags.each_ref().map(String::as_str));
    let both = if two == one + 1 { format!("{one}-{two}") } else { format!("{one},{two}") };
    // Each worker has a thread that waits and one that computes; the second worker has one more core to compute on.
    assert_eq!(
        (cores_of(&server, "w0-m"), cores_of(&server, "w1-m")),
        (vec![two.to_string(); 2], vec![both.clone(); 2])
    );
    let engine = cores_of(&server, "rten-");
    assert_eq!(engine.iter().filter(|cores| **cores == both).count(), 1, "{engine:?}");
    assert!(server.log().contains(&format!("2 workers on cores {both}")), "{}", server.log());
    drop(server);

    model(&repository, "m", 1, "{ }");
    let server = Server::deuteron(repository.path(), &[&format!("--worker-cores={one}")]);
    assert_eq!(cores_of(&server, "w0-m"), vec![one.to_string(); 2]);
    let shards = cores_of(&server, "shard-");
    assert!(available.iter().skip(1).all(|core| shards.contains(&core.to_string())), "{shards:?}");
    let log = server.log();
    assert!(log.contains(&format!("shards on cores {two}")) && log.contains(&format!("1 workers on cores {one}")));
}

#[test]
fn the_kernel_places_all_threads_if_the_flag_says_so() {
    let available = available();
    let repository = Folder::new("pin");
    model(&repository, "m", 1, "{ }");
    let of = |pin: &str| {
        let server = Server::deuteron(repository.path(), &["--shards=1", pin]);
        assert_eq!(server.log().contains("1 shards, not pinned: --pin, 1 workers"), pin == "--pin=off");
        cores_of(&server, "shard-").iter().chain(&cores_of(&server, "w0-m")).cloned().collect::<Vec<_>>()
    };
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let all = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    assert!(of("--pin=off").iter().all(|cores| cores == all));
    let pinned = of("--pin=on");
    assert!(available.len() == 1 || pinned[0] == available[0].to_string(), "{pinned:?}");
    let output = Command::new(env!("CARGO_BIN_EXE_deuteron")).args(["m", "--pin=sometimes"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("--pin=sometimes: expected"), "{text}");
}

#[test]
fn workers_of_a_heavy_model_have_the_cores_of_the_shards_too_unless_a_flag_says_which() {
    let available = available();
    let [_, _, ..] = available[..] else { return };
    let repository = Folder::new("heavy");
    model(&repository, "light", 1, "{ }");
    let size = 768;
    let begin = Onnx::default().constant("w", FLOAT, &[size, size], &vec![0; 4 * (size * size) as usize]);
    let chain = (0..400).fold(begin, |onnx, index| {
        onnx.node("MatMul", &[&format!("y{index}"), "w"], &[&format!("y{}", index + 1)], &[])
    });
    let file = chain.input("y0", FLOAT, &[1, size]).output("y400", FLOAT, &[1, size]).into_bytes();
    repository::add(repository.path(), "heavy", "instance_group { kind: KIND_CPU count: 1 }", Some(&file));
    // Other tests use these cores, too, and threads would leave them.
    let server = Server::deuteron(repository.path(), &["--shards=1", "--pin=on"]);
    let count = |cores: &str| {
        let ends = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            last.parse::<usize>().unwrap() - first.parse::<usize>().unwrap() + 1
        };
        cores.split(',').map(ends).sum::<usize>()
    };
    let [light, heavy] = ["w0-light", "w0-heavy"].map(|name| count(&cores_of(&server, name)[0]));
    assert_eq!((light, heavy), (available.len() - 1, available.len()), "{}", server.log());
    drop(server);
    let flags = [format!("--worker-cores={}", available[1])];
    let server = Server::deuteron(repository.path(), &flags.each_ref().map(String::as_str));
    assert_eq!(cores_of(&server, "w0-heavy"), vec![available[1].to_string(); 2]);
}
