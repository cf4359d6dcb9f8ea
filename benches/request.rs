//! Cost of a request: user and system CPU time of the server for each request, from `/proc/PID/stat`, with the server
//! on core 0 and the client on core 1. Also the start time, the memory of an idle server, and the size of the binary. A
//! bare echo of the same bytes on the same sockets takes turns with it: the difference is the server's cost.
//!
//! `cargo bench --bench request [-- ROUNDS]`; needs `wrk`, `h2load` and `taskset`.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(clippy::indexing_slicing, reason = "a benchmark stops at the first failure")]

#[path = "../tests/support/mod.rs"]
#[allow(unused_imports, reason = "the tests use the rest of it")]
mod support;

#[path = "request/echo.rs"]
mod echo;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use echo::Echo;
use support::folder::Folder;
use support::protobuf::Message;
use support::repository::{self, Flavour};
use support::server::{Ports, Server};

/// Rounds of each case; the cases take turns, so that a slow spell of the machine hits all.
const ROUNDS: usize = 5;
/// Length of one round of HTTP, in seconds.
const SECONDS: u32 = 3;
/// Calls in one round of gRPC.
const CALLS: u32 = 60_000;
/// The same with tensors of 1 MiB.
const LARGE_CALLS: u32 = 2_000;

/// Bytes of the large tensors.
const LARGE: usize = 1024 * 1024;

/// One kind of load.
struct Case {
    name: &'static str,
    target: Target,
    client: fn(&Inputs, &Bench) -> Command,
}

/// Destination of the load.
enum Target {
    Model(&'static str),
    /// The echo of the small request.
    SmallEcho,
    /// The echo of the large one.
    LargeEcho,
}

/// The processes on core 0.
struct Bench {
    server: Server,
    small_echo: Echo,
    large_echo: Echo,
}

const CASES: &[Case] = &[
    Case {
        name: "HTTP binary, 64 connections",
        target: Target::Model("identity_fp32"),
        client: |i, b| wrk(b, "identity_fp32", &i.binary_lua, 64),
    },
    Case {
        name: "the same, a bare echo",
        target: Target::SmallEcho,
        client: |i, b| wrk_to(b.small_echo.address(), "", &i.binary_lua, 64),
    },
    Case {
        name: "HTTP JSON, 64 connections",
        target: Target::Model("identity_fp32"),
        client: |i, b| wrk(b, "identity_fp32", &i.json_lua, 64),
    },
    Case {
        name: "HTTP binary, 64 connections, worker",
        target: Target::Model("worker_fp32"),
        client: |i, b| wrk(b, "worker_fp32", &i.binary_lua, 64),
    },
    Case {
        name: "gRPC, 64 connections",
        target: Target::Model("identity_fp32"),
        client: |i, b| h2load(&b.server, &i.message, 64, 1, CALLS),
    },
    Case {
        name: "gRPC, 8 connections x 16 streams",
        target: Target::Model("identity_fp32"),
        client: |i, b| h2load(&b.server, &i.message, 8, 16, CALLS),
    },
    Case {
        name: "HTTP binary, 1 MiB, 8 connections",
        target: Target::Model("identity_fp32"),
        client: |i, b| wrk(b, "identity_fp32", &i.large_lua, 8),
    },
    Case {
        name: "the same, a bare echo",
        target: Target::LargeEcho,
        client: |i, b| wrk_to(b.large_echo.address(), "", &i.large_lua, 8),
    },
    Case {
        name: "gRPC, 1 MiB, 4 connections x 2 streams",
        target: Target::Model("identity_fp32"),
        client: |i, b| h2load(&b.server, &i.large_message, 4, 2, LARGE_CALLS),
    },
    Case {
        name: "the same, frames of 1 MiB",
        target: Target::Model("identity_fp32"),
        client: |_, b| fills_frames(&b.server),
    },
];

fn main() {
    echo::run_if_asked();
    let rounds = env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(ROUNDS);
    start_and_size(rounds);

    let repository = repository::write(Flavour::Deuteron);
    add_worker(repository.path());
    let inputs = Inputs::write();
    let server = pinned(repository.path(), &["--shards=1", "--log-info=false"]);
    let small_echo = inputs.echo(&server, "binary", 64);
    let large_echo = inputs.echo(&server, "large_binary", LARGE);
    let bench = Bench { server, small_echo, large_echo };
    println!("\nCPU of the server, user + system, us per request: identity FP32 [1,16], one shard, {rounds} rounds");
    println!("{:<36} {:>8} {:>8} {:>8} {:>12}", "", "median", "min", "max", "requests/s");
    let mut results: Vec<Vec<(f64, f64)>> = CASES.iter().map(|_| Vec::new()).collect();
    for _ in 0..=rounds {
        for (case, results) in CASES.iter().zip(&mut results) {
            results.push(round(case, &inputs, &bench));
        }
    }
    for (case, results) in CASES.iter().zip(&mut results) {
        // The first round warms up.
        let mut costs: Vec<f64> = results.iter().skip(1).map(|(cost, _)| *cost).collect();
        let mut rates: Vec<f64> = results.iter().skip(1).map(|(_, rate)| *rate).collect();
        costs.sort_by(f64::total_cmp);
        rates.sort_by(f64::total_cmp);
        let (min, max) = (costs[0], costs[costs.len() - 1]);
        println!("{:<36} {:>8.1} {:>8.1} {:>8.1} {:>12.0}", case.name, median(&costs), min, max, median(&rates));
    }
}

/// CPU microseconds for each request, and requests a second.
fn round(case: &Case, inputs: &Inputs, bench: &Bench) -> (f64, f64) {
    let process = match case.target {
        Target::Model(_) => bench.server.id(),
        Target::SmallEcho => bench.small_echo.id(),
        Target::LargeEcho => bench.large_echo.id(),
    };
    let served = || if let Target::Model(model) = case.target { served(&bench.server, model) } else { 0.0 };
    let before = (cpu_seconds(process), served());
    let started = std::time::Instant::now();
    let output = (case.client)(inputs, bench).output().expect("wrk and h2load are installed");
    let took = started.elapsed().as_secs_f64();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.contains("Non-2xx") && !text.contains("Socket errors"), "{text}");
    let cpu = cpu_seconds(process) - before.0;
    let count = match case.target {
        Target::Model(_) => served() - before.1,
        // An echo keeps no count of answers, so wrk's count of received ones is used.
        _ => {
            let line = text.lines().find_map(|line| line.trim().split_once(" requests in")).expect("wrk tells");
            line.0.parse().expect("a count is a number")
        }
    };
    assert!(count > 1000.0, "{}: {count} requests were served:\n{text}", case.name);
    (cpu * 1e6 / count, count / took)
}

/// Answered requests, by the server's count.
fn served(server: &Server, model: &str) -> f64 {
    let metrics = support::http::get(server.metrics(), "/metrics").expect("the metrics port answers");
    let text = String::from_utf8(metrics.body).expect("metrics are text");
    let prefix = format!("nv_inference_request_success{{model=\"{model}\",version=\"1\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix)).expect("the model is served");
    line.parse().expect("a count is a number")
}

/// User and system time of a process so far.
fn cpu_seconds(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("the process runs");
    // Behind the name in parentheses, which may hold blanks: utime and stime are fields 14 and 15.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = fields[11..13].iter().map(|ticks| ticks.parse::<f64>().expect("ticks are a number")).sum();
    ticks / 100.0
}

fn start_and_size(rounds: usize) {
    let binary = fs::metadata(env!("CARGO_BIN_EXE_deuteron")).expect("the binary was built").len();
    println!("binary: {:.1} MB", binary as f64 / 1e6);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    let (mut ready, mut loads, mut resident) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut server = unpinned(&examples);
        let log = server.log();
        let line = log.lines().find(|line| line.contains("ready after")).expect("the log tells").to_owned();
        let mut numbers = line
            .split("ready after")
            .nth(1)
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|w| w.parse::<f64>().ok());
        ready.push(numbers.next().expect("ready after how long"));
        loads.push(numbers.next().expect("how long the models took"));
        let status = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("the process runs");
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says the size");
        resident.push(rss.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0);
        server.stop();
    }
    let show = |name: &str, unit: &str, values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        println!(
            "{name}: median {:.1} {unit} (min {:.1}, max {:.1})",
            median(values),
            values[0],
            values[values.len() - 1]
        );
    };
    show("start to ready, example repository", "ms", &mut ready);
    show("  of which the engine's load", "ms", &mut loads);
    show("resident, idle", "MB", &mut resident);
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn unpinned(repository: &Path) -> Server {
    let ports = Ports::free();
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    serve(&mut command, repository, ports);
    Server::start(command, ports)
}

fn pinned(repository: &Path, flags: &[&str]) -> Server {
    let ports = Ports::free();
    let mut command = Command::new("taskset");
    command.args(["-c", "0", env!("CARGO_BIN_EXE_deuteron")]);
    serve(&mut command, repository, ports);
    command.args(flags);
    Server::start(command, ports)
}

fn serve(command: &mut Command, repository: &Path, ports: Ports) {
    command.arg("serve").arg(repository);
    for (flag, port) in [("http", ports.http), ("grpc", ports.grpc), ("metrics", ports.metrics)] {
        command.arg(format!("--{flag}-port={port}"));
    }
}

/// The same model once more, on a worker thread, with batches.
fn add_worker(repository: &Path) {
    let from = fs::read_to_string(repository.join("identity_fp32/config.pbtxt")).expect("the model was written");
    let config = from.replace("identity_fp32", "worker_fp32")
        + "dynamic_batching { }\nparameters { key: \"placement\" value { string_value: \"worker\" } }\n";
    fs::create_dir_all(repository.join("worker_fp32/1")).expect("the folder is ours");
    fs::write(repository.join("worker_fp32/config.pbtxt"), config).expect("the folder is ours");
}

fn wrk(bench: &Bench, model: &str, script: &Path, connections: usize) -> Command {
    wrk_to(bench.server.http(), &format!("v2/models/{model}/infer"), script, connections)
}

fn wrk_to(address: SocketAddr, path: &str, script: &Path, connections: usize) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "1", "wrk", "-t1", &format!("-c{connections}"), &format!("-d{SECONDS}s"), "-s"]).arg(script);
    command.arg(format!("http://{address}/{path}"));
    command
}

fn h2load(server: &Server, message: &Path, connections: u32, streams: u32, calls: u32) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "1", "h2load", "-t1", &format!("-n{calls}"), &format!("-c{connections}")]);
    // Windows of the client's: 16 MiB for a stream, 64 MiB for a connection.
    command.args(["-w24", "-W26"]);
    command.args([&format!("-m{streams}"), "-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]);
    command.arg(message);
    command.arg(format!("http://{}/inference.GRPCInferenceService/ModelInfer", server.grpc()));
    command
}

/// A client with frames as large as the server allows, as gRPC's C core has; h2load and others keep to 16 KiB.
fn fills_frames(server: &Server) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "1", env!("CARGO_BIN_EXE_deuteron"), "bench", "-m", "identity_fp32", "-i", "grpc"]);
    command.args(["--concurrency=8", "--connections=4", "--shape=INPUT0:262144", "-r", "1"]);
    command.args(["-p", &format!("{}", 1000 * SECONDS), "-u", &server.grpc().to_string()]);
    command
}

/// Inputs that the clients send: sixteen floats.
struct Inputs {
    folder: Folder,
    binary_lua: PathBuf,
    json_lua: PathBuf,
    large_lua: PathBuf,
    message: PathBuf,
    large_message: PathBuf,
}

impl Inputs {
    /// An echo that answers a binary request with the server's own answer.
    fn echo(&self, server: &Server, body: &str, tail: usize) -> Echo {
        let path = self.folder.path().join(body);
        let body = fs::read(&path).expect("the file is ours");
        let head_size = body.len() - tail;
        let head = format!(
            "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\
             Inference-Header-Content-Length: {head_size}\r\n\r\n",
            server.http(),
            body.len()
        );
        let answer = echo::head_of(server.http(), &[head.as_bytes(), &body].concat(), tail);
        let path = path.with_extension("answer");
        fs::write(&path, answer).expect("the folder is ours");
        Echo::start(Ports::free().http, &path, tail)
    }

    fn write() -> Self {
        let folder = Folder::new("bench");
        let values: Vec<f32> = (0..16_u8).map(|index| f32::from(index) + 0.5).collect();
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).expect("the folder is ours");
            path
        };

        let head = |count: usize| {
            format!(
                r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{count}],"datatype":"FP32","parameters":{{"binary_data_size":{}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
                4 * count
            )
        };
        let header = |head: &str| format!("wrk.headers[\"Inference-Header-Content-Length\"] = \"{}\"\n", head.len());
        let lua = |body: &Path, headers: &str| {
            format!(
                "wrk.method = \"POST\"\nlocal file = io.open(\"{}\", \"rb\")\nwrk.body = file:read(\"*a\")\nfile:close()\n{headers}",
                body.display()
            )
        };
        let binary = |name: &str, raw: &[u8]| {
            let head = head(raw.len() / 4);
            let body = write(name, &[head.as_bytes(), raw].concat());
            write(&format!("{name}.lua"), lua(&body, &header(&head)).as_bytes())
        };
        let binary_lua = binary("binary", &raw);
        let large_lua = binary("large_binary", &raw.repeat(LARGE / raw.len()));

        let texts: Vec<String> = values.iter().map(f32::to_string).collect();
        let json = format!(
            r#"{{"inputs":[{{"name":"INPUT0","shape":[1,16],"datatype":"FP32","data":[{}]}}]}}"#,
            texts.join(",")
        );
        let body = write("json", json.as_bytes());
        let json_lua =
            write("json.lua", lua(&body, "wrk.headers[\"Content-Type\"] = \"application/json\"\n").as_bytes());

        let framed = |count: i64, raw: &[u8]| {
            let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, count]);
            let request = Message::new().bytes(1, "identity_fp32").message(5, input).bytes(7, raw).into_bytes();
            let size = u32::try_from(request.len()).expect("a message of a few bytes or one MiB").to_be_bytes();
            [&[0], &size[..], &request].concat()
        };
        let message = write("message", &framed(16, &raw));
        let large_message = write("large", &framed(262_144, &raw.repeat(16_384)));
        Self { folder, binary_lua, json_lua, large_lua, message, large_message }
    }
}
