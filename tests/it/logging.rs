//! The log on the server as a process: its forms, its file, its settings that clients may change, the access log; and
//! that an unread or unwritable log stops nothing.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use crate::support::folder::Folder;
use crate::support::grpc;
use crate::support::metrics::metric;
use crate::support::protobuf::Message;
use crate::support::python::Environment;
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};
use crate::support::wait::wait_until;
use crate::support::{escape::escape, http};

const INFER: &str = "/v2/models/identity_fp32/infer";
const SERVICE: &str = "/inference.GRPCInferenceService";
const FAILED: &str = "deuteron_log_lines_dropped_total{reason=\"write_failed\"}";

/// Bytes of a path that makes lines long, and requests with it that fill the queue of the log.
const PATH_SIZE: usize = 10_000;
const REQUESTS: u64 = 2_000;

fn body(id: &str) -> Vec<u8> {
    let id = serde_json::Value::from(id);
    format!(r#"{{"id":{id},"inputs":[{{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[2]}}]}}"#).into_bytes()
}

fn message(model: &str, id: &str) -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    Message::new().bytes(1, model).bytes(3, id).message(5, input).bytes(7, [0; 4]).into_bytes()
}

/// Waits until `count` lines of a log contain a word, and returns them.
fn lines_with(log: &Path, word: &str, count: usize) -> Vec<String> {
    let lines = || {
        let text = fs::read_to_string(log).unwrap_or_default();
        // The last line may be on its way.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().filter(|line| line.contains(word)).map(str::to_owned).collect::<Vec<_>>()
    };
    wait_until(word, || lines().len() >= count);
    lines()
}

/// A repository of one trivial model.
fn one_model() -> Folder {
    let folder = Folder::new("one");
    repository::add(folder.path(), "square", repository::SQUARE, None);
    folder
}

#[test]
fn lines_have_tritons_form_and_say_what_scripts_wait_for() {
    let folder = repository::write(Flavour::Deuteron);
    let config = folder.path().join("identity_fp32/config.pbtxt");
    let warm_up = "model_warmup { name: \"zero sample\" batch_size: 1 count: 2 inputs { key: \"INPUT0\" value { \
                   data_type: TYPE_FP32 dims: 1 zero_data: true } } }\n";
    fs::write(&config, fs::read_to_string(&config).unwrap() + warm_up).unwrap();
    let mut server = Server::deuteron(folder.path(), &["--log-verbose=1"]);
    http::get(server.http(), "/v2/health/live").unwrap();
    grpc::Client::new(server.grpc()).call(&format!("{SERVICE}/ServerLive"), b"").unwrap();
    assert!(server.stop().success());
    let (log, process) = (server.log(), server.id());
    for (severity, text) in [
        ('I', format!("\"Started GRPCInferenceService at 0.0.0.0:{}\"", server.ports.grpc)),
        ('I', format!("\"Started HTTPService at 0.0.0.0:{}\"", server.ports.http)),
        ('I', format!("\"Started Metrics Service at 0.0.0.0:{}\"", server.ports.metrics)),
        ('I', "\"HTTP request: 0 /v2/health/live\"".to_owned()),
        ('I', format!("\"gRPC request: {SERVICE}/ServerLive\"")),
        ('I', "\"ended\"".to_owned()),
    ] {
        let line = log.lines().find(|line| line.ends_with(&text)).unwrap_or_else(|| panic!("{text} is not in {log}"));
        let (head, _) = line.split_once("] ").unwrap();
        let words: Vec<_> = head.split(' ').collect();
        let [date, time, pid, source] = words[..] else { panic!("{line}") };
        assert!(date.starts_with(severity) && date.len() == 5 && time.len() == 15, "{line}");
        assert_eq!(pid, process.to_string());
        assert!(source.split_once(".rs:").is_some_and(|(_, number)| number.parse::<u32>().is_ok()), "{line}");
    }
    let runs = log.lines().filter(|line| {
        line.contains("model 'identity_fp32' instance ") && line.contains(" is running warmup sample 'zero sample'")
    });
    assert!(runs.count() >= 2, "{log}");
    assert!(log.contains("Signal (15) received."), "{log}");
}

#[test]
fn tritonclient_reads_and_changes_what_is_logged() {
    let Some(environment) = Environment::shared() else { return };
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--allow-log-settings=true"]);
    let output = Command::new(environment.python())
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logging/check.py"))
        .args(["--http", &server.http().to_string(), "--grpc", &server.grpc().to_string()])
        .output()
        .expect("the interpreter starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}\nits log:\n{}", server.log());
    assert_eq!(text, "ok http\nok grpc\n");
}

#[test]
fn clients_read_the_settings_and_change_them_where_a_flag_lets_them() {
    let folder = one_model();
    for (flags, is_allowed) in [
        (&[][..], false),
        (&["--allow-log-settings=true"], true),
        (&["--compat=triton"], true),
        (&["--compat=triton", "--allow-log-settings=false"], false),
    ] {
        let server = Server::deuteron(folder.path(), flags);
        let ask = |body: &[u8]| {
            let response = http::post(server.http(), "/v2/logging", body).unwrap();
            (response.status, String::from_utf8(response.body).unwrap())
        };
        let read = String::from_utf8(http::get(server.http(), "/v2/logging").unwrap().body).unwrap();
        assert_eq!(
            read,
            r#"{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,"log_format":"default"}"#
        );
        assert_eq!(ask(b"{}"), (200, read));
        let (status, text) = ask(br#"{"log_verbose_level":1,"log_format":"json","log_info":false}"#);
        if !is_allowed {
            assert!(status == 501 && text.contains("--allow-log-settings=true"), "{status} {text}");
            let update = Message::new().bytes(1, "log_info").message(2, Message::new().int(1, 0));
            let update = Message::new().message(1, update).into_bytes();
            let refused = grpc::Client::new(server.grpc()).call(&format!("{SERVICE}/LogSettings"), &update);
            assert_eq!(refused.unwrap_err().code() as i32, 12);
            continue;
        }
        assert_eq!(
            (status, text.as_str()),
            (
                200,
                r#"{"log_file":"","log_info":false,"log_warning":true,"log_error":true,"log_verbose_level":1,"log_format":"json"}"#
            )
        );
        http::get(server.http(), "/v2").unwrap();
        wait_until("a line", || server.log().contains(",\"message\":\"HTTP request: 0 /v2\"}\n"));
        assert_eq!(ask(br#"{"log_verbose_level":0}"#).0, 200);
        http::get(server.http(), "/v2?silent").unwrap();
        assert!(!server.log().contains("silent"), "{}", server.log());
    }
}

#[test]
fn every_line_is_json_whatever_clients_send() {
    let folder = repository::write(Flavour::Deuteron);
    let logs = Folder::new("logs");
    let log = logs.path().join("log.json");
    let flag = format!("--log-file={}", log.display());
    let flags = ["--log-format=json", "--log-verbose=1", "--access-log=1", &flag];
    let mut server = Server::deuteron(folder.path(), &flags);
    let ids =
        ["a\"b\\c", "\n{\"level\":\"error\"}", "\u{1b}[31m\u{9b}0m", "\u{2028}\u{202e}", "日本", "\0\u{7f}\u{85}"];
    for id in ids {
        assert_eq!(http::post(server.http(), INFER, &body(id)).unwrap().status, 200);
    }
    for path in ["/v2/models/\"\\n}/infer", "/v2/models/\u{1f980}/infer", "/v2/%0a%22"] {
        let _ = http::get(server.http(), path);
    }
    let long = "x".repeat(100_000);
    assert_eq!(http::post(server.http(), INFER, &body(&long)).unwrap().status, 200);
    assert!(server.stop().success());
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}", escape(line.as_bytes()))))
        .collect();
    for line in &lines {
        for key in ["time", "level", "process", "source", "message"] {
            assert!(line.get(key).is_some(), "{key} is not in {line}");
        }
    }
    let told: Vec<_> = lines.iter().filter(|line| line["model"] == "identity_fp32").collect();
    let told_ids: Vec<_> = told.iter().filter_map(|line| line["id"].as_str()).collect();
    assert_eq!(told_ids[..ids.len()], ids);
    assert!(told_ids[ids.len()].len() < 300 && told_ids[ids.len()].ends_with("x…"));
    for line in told {
        assert_eq!((&line["protocol"], &line["status"], &line["version"]), (&"http".into(), &200.into(), &1.into()));
        assert!(line["bytes_in"].as_u64() > Some(50) && line["bytes_out"].as_u64() > Some(50), "{line}");
        assert!(line["duration_us"].is_u64() && line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
}

#[test]
fn the_access_log_has_a_line_for_every_request_of_every_protocol() {
    let folder = repository::write(Flavour::Deuteron);
    let logs = Folder::new("logs");
    let log = logs.path().join("log");
    let flag = format!("--log-file={}", log.display());
    let server = Server::deuteron(folder.path(), &["--access-log=1", &flag]);
    http::post(server.http(), INFER, &body("over http")).unwrap();
    http::post(server.http(), "/v2/models/nope/versions/3/infer", &body("unknown")).unwrap();
    let client = grpc::Client::new(server.grpc());
    client.call(&format!("{SERVICE}/ModelInfer"), &message("identity_fp32", "over grpc")).unwrap();
    let _ = client.call(&format!("{SERVICE}/ModelInfer"), &message("nope", "unknown to grpc"));
    let messages = [("identity_fp32", "first"), ("nope", "second"), ("nope", "second"), ("slow", "third")];
    let messages = messages.map(|(model, id)| message(model, id)).to_vec();
    let (answers, end) = client.stream(&format!("{SERVICE}/ModelStreamInfer"), &[], messages);
    assert!(answers.len() == 4 && end.is_ok());
    let leaver = http::request("POST", "/v2/models/slow/infer", &[], &body("leaver"));
    let mut connection = http::Connection::open(server.http()).unwrap();
    connection.send(&leaver).unwrap();
    wait_until("it runs", || metric(server.metrics(), "deuteron_requests_in_flight") == 1);
    drop(connection);
    // One line each: its words.
    for (id, count, words) in [
        (
            "over http",
            1,
            "protocol=http request=\"POST /v2/models/identity_fp32/infer\" model=\"identity_fp32\" version=1 status=200",
        ),
        ("", 1, "protocol=http request=\"POST /v2/models/nope/versions/3/infer\" model=\"nope\" version=3 status=404"),
        (
            "over grpc",
            1,
            "protocol=grpc request=\"/inference.GRPCInferenceService/ModelInfer\" model=\"identity_fp32\" version=1 status=0",
        ),
        (
            "unknown to grpc",
            1,
            "protocol=grpc request=\"/inference.GRPCInferenceService/ModelInfer\" model=\"nope\" status=5",
        ),
        (
            "first",
            1,
            "protocol=grpc request=\"/inference.GRPCInferenceService/ModelStreamInfer\" model=\"identity_fp32\" version=1 status=0",
        ),
        (
            "second",
            2,
            "protocol=grpc request=\"/inference.GRPCInferenceService/ModelStreamInfer\" model=\"nope\" status=5",
        ),
        (
            "third",
            1,
            "protocol=grpc request=\"/inference.GRPCInferenceService/ModelStreamInfer\" model=\"slow\" version=1 status=0",
        ),
        ("leaver", 1, "protocol=http request=\"POST /v2/models/slow/infer\" model=\"slow\" version=1 status=499"),
    ] {
        let id = if id.is_empty() { String::new() } else { format!("id=\"{id}\" ") };
        let words = words.replace("status=", &format!("{id}status="));
        let lines = lines_with(&log, &words, count);
        assert_eq!(lines.len(), count, "{lines:?}");
        for line in lines {
            assert!(line.contains(" access] request ") && line.contains(" duration_us="), "{line}");
            assert!(line.contains(" bytes_in=") && line.contains(" peer=127.0.0.1:"), "{line}");
        }
    }
}

#[test]
fn the_access_log_is_off_unless_it_is_asked_for() {
    let folder = repository::write(Flavour::Deuteron);
    let mut server = Server::deuteron(folder.path(), &[]);
    assert_eq!(http::post(server.http(), INFER, &body("unseen")).unwrap().status, 200);
    assert!(server.stop().success());
    assert!(!server.log().contains("access]") && !server.log().contains("unseen"), "{}", server.log());
}

#[test]
fn a_log_file_is_appended_to_and_opened_again_on_sighup() {
    let folder = one_model();
    let logs = Folder::new("logs");
    let (log, old) = (logs.path().join("log"), logs.path().join("log.1"));
    fs::write(&log, "what was there\n").unwrap();
    let flag = format!("--log-file={}", log.display());
    let mut server = Server::deuteron(folder.path(), &["--access-log=1", &flag]);
    let settings = String::from_utf8(http::get(server.http(), "/v2/logging").unwrap().body).unwrap();
    assert!(settings.contains(log.to_str().unwrap()), "{settings}");
    http::get(server.http(), "/v2/one").unwrap();
    lines_with(&log, "/v2/one", 1);
    assert!(fs::read_to_string(&log).unwrap().starts_with("what was there\nI"));
    assert!(!server.log().contains("Started"), "it goes to the file: {}", server.log());
    fs::rename(&log, &old).unwrap();
    http::get(server.http(), "/v2/two").unwrap();
    lines_with(&old, "/v2/two", 1);
    server.signal("HUP");
    wait_until("the new file", || log.exists());
    http::get(server.http(), "/v2/three").unwrap();
    lines_with(&log, "/v2/three", 1);
    assert!(!fs::read_to_string(&old).unwrap().contains("/v2/three"));
    // If the file can no longer be opened, the log stays where it is.
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    server.signal("HUP");
    http::get(server.http(), "/v2/four").unwrap();
    assert!(server.stop().success());
}

#[test]
fn a_log_file_that_cannot_be_opened_ends_the_start() {
    let folder = one_model();
    let command = Server::command(folder.path(), &["--log-file=/nonexistent/log"], Ports::free()).output().unwrap();
    let text = String::from_utf8_lossy(&command.stderr).into_owned();
    assert!(!command.status.success() && text.contains("cannot open --log-file '/nonexistent/log'"), "{text}");
}

#[test]
fn a_full_disk_stops_nothing_and_is_counted() {
    let folder = repository::write(Flavour::Deuteron);
    let mut server = Server::deuteron(folder.path(), &["--log-file=/dev/full", "--access-log=1"]);
    for _ in 0..100 {
        assert_eq!(http::post(server.http(), INFER, &body("x")).unwrap().status, 200);
    }
    wait_until("the loss is counted", || metric(server.metrics(), FAILED) >= 100);
    assert!(server.stop().success());
}

/// A server with outputs that the test controls.
struct Unread {
    child: Child,
    ports: Ports,
}

impl Unread {
    fn start(mut command: Command, ports: Ports) -> Self {
        let child = command.stdin(Stdio::null()).spawn().expect("the server starts");
        let server = Self { child, ports };
        let ready = || http::get(server.http(), "/v2/health/ready").is_ok_and(|response| response.status == 200);
        wait_until("it is ready", ready);
        server
    }

    fn http(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.ports.http).into()
    }

    /// Sends SIGTERM. Returns true if it ended well.
    fn stop(&mut self) -> bool {
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        let mut status = None;
        wait_until("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.is_some_and(|status| status.success())
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends `count` inferences on one connection.
fn infer_often(server: &Unread, count: usize) {
    let request = http::request("POST", INFER, &[], &body(&"i".repeat(200)));
    let mut connection = http::Connection::open(server.http()).unwrap();
    for _ in 0..count {
        connection.send(&request).unwrap();
        assert_eq!(connection.receive().unwrap().status, 200);
    }
}

#[test]
fn a_log_that_nobody_reads_stops_neither_requests_nor_loads_nor_the_end() {
    let folder = repository::write(Flavour::Deuteron);
    let ports = Ports::free();
    let flags = ["--access-log=1", "--log-verbose=1", "--model-control-mode=explicit", "--load-model=identity_fp32"];
    let mut command = Server::command(folder.path(), &flags, ports);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Unread::start(command, ports);
    // A pipe holds 64 KiB, and each of these has a line of 400 bytes and one of 100.
    thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| infer_often(&server, 1_000))));
    });
    for order in ["load", "unload", "load"] {
        let path = format!("/v2/repository/models/classify/{order}");
        assert_eq!(http::post(server.http(), &path, b"").unwrap().status, 200);
    }
    assert!(server.stop());
    let mut text = String::new();
    server.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("access] request ") && !text.contains("\"ended\""), "it was full, and not read: {text}");
}

#[test]
fn a_queue_that_is_full_drops_lines_counts_them_and_says_so_when_somebody_reads() {
    let folder = one_model();
    let ports = Ports::free();
    let mut command = Server::command(folder.path(), &["--log-verbose=1"], ports);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = Unread::start(command, ports);
    // Each has a line of that length, and the queue is full with 12 MiB of them.
    let request = http::request("GET", &format!("/v2/{}", "x".repeat(PATH_SIZE)), &[], b"");
    let mut connection = http::Connection::open(server.http()).unwrap();
    for _ in 0..REQUESTS {
        connection.send(&request).unwrap();
        assert_eq!(connection.receive().unwrap().status, 404);
    }
    let metrics = ([127, 0, 0, 1], server.ports.metrics).into();
    let dropped = || metric(metrics, "deuteron_log_lines_dropped_total{reason=\"queue_full\"}");
    let unread = dropped();
    assert!(unread > 0, "the queue was never full");
    let (sender, lines) = mpsc::channel();
    let pipe = BufReader::new(server.child.stderr.take().unwrap());
    thread::spawn(move || pipe.lines().for_each(|line| sender.send(line.unwrap()).unwrap()));
    let mut text = String::new();
    wait_until("what waited is written", || {
        http::get(server.http(), "/v2/last").unwrap();
        lines.try_iter().for_each(|line| text = std::mem::take(&mut text) + &line + "\n");
        text.contains("/v2/last")
    });
    let last = dropped();
    assert!(server.stop());
    lines.iter().for_each(|line| text = std::mem::take(&mut text) + &line + "\n");
    let told = text.lines().filter_map(|line| line.split_once(" log] \"")?.1.strip_suffix(" lines were dropped\""));
    let told: u64 = told.map(|count| count.replace(',', "").parse::<u64>().unwrap()).sum();
    assert_eq!(told, last);
    let written = text.lines().filter(|line| line.contains("/v2/xxx")).count();
    assert_eq!(written as u64 + unread, REQUESTS, "none is lost unsaid");
    assert!(text.ends_with("\"ended\"\n"), "{}", &text[text.len() - 200..]);
}

#[test]
fn a_reader_that_left_or_never_was_stops_nothing() {
    let folder = repository::write(Flavour::Deuteron);
    let ports = Ports::free();
    let mut command = Server::command(folder.path(), &["--access-log=1"], ports);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Unread::start(command, ports);
    (server.child.stdout, server.child.stderr) = (None, None);
    infer_often(&server, 100);
    let metrics = ([127, 0, 0, 1], server.ports.metrics).into();
    wait_until("the loss is counted", || metric(metrics, FAILED) >= 90);
    assert!(server.stop());

    let ports = Ports::free();
    let command = Server::command(folder.path(), &["--access-log=1"], ports);
    let mut closed = Command::new("sh");
    closed.args(["-c", "exec \"$@\" >&- 2>&-", "sh"]).arg(command.get_program()).args(command.get_args());
    let mut server = Unread::start(closed, ports);
    infer_often(&server, 100);
    assert!(server.stop());
}

/// The lines of a log at info level, each without its head.
fn info_lines(log: &str) -> impl Iterator<Item = &str> {
    let lines = log.lines().filter(|line| line.starts_with('I')).filter_map(|line| line.split_once("] "));
    lines.map(|(_, text)| text.trim_matches('"'))
}

/// All that a user is told unasked in the life of a server: a line more is a decision about this list.
#[test]
fn lines_at_info_level_are_for_users() {
    let folder = Folder::new("info-lines");
    repository::add(folder.path(), "square", repository::SQUARE, None);
    let mut server = Server::deuteron(folder.path(), &["--model-control-mode=explicit", "--load-model=square"]);
    let post = |path: &str, body: &[u8]| http::post(server.http(), path, body).unwrap().status;
    assert_eq!(post("/v2/repository/models/square/load", b"{}"), 200);
    assert_eq!(post("/v2/repository/models/square/unload", b"{}"), 200);
    assert_eq!(post("/v2/repository/models/absent/load", b"{}"), 404);
    assert_eq!(http::get(server.http(), "/v2/unknown").unwrap().status, 404);
    assert!(server.stop().success());
    let log = server.log();
    // Those of machines that pause, that lack io_uring, or where other servers were killed.
    let by_machine = [
        "made the instance of ",
        "returned the memory that loads and unloads had freed",
        "removed the files of ",
        "sockets are served by epoll",
        "other programs use the cores ",
    ];
    let is_by_machine = |line: &&str| by_machine.iter().any(|start| line.starts_with(start));
    let lines: Vec<_> = info_lines(&log).filter(|line| !is_by_machine(line)).collect();
    let wanted = [
        "loaded 'square' version 1 with square in ",
        "memory: the process may have ",
        "Started GRPCInferenceService at 0.0.0.0:",
        "Started HTTPService at 0.0.0.0:",
        "Started Metrics Service at 0.0.0.0:",
        "ready after ",
        "unloading 'square'",
        "freed 'square' version 1",
        "draining after signal 15",
        "ended",
    ];
    let is_as_wanted = lines.iter().zip(wanted).all(|(line, wanted)| line.starts_with(wanted));
    assert!(is_as_wanted && lines.len() == wanted.len(), "{lines:#?}");
}
