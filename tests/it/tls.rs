//! TLS on the ports of a server, with certificates that `openssl` makes and third-party clients: curl, `openssl
//! s_client`, tritonclient and grpcio. Bytes that no client sends come from rustls' own, one by one where it matters.

mod ask;
mod bench;
pub(crate) mod files;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use self::files::{Files, KeyKind, TlsStream, connect, replace};
use crate::http1_suite::{self, RawStream};
use crate::support::folder::Folder;
use crate::support::http::{self, request};
use crate::support::metrics::metric;
use crate::support::over::Over;
use crate::support::python::Environment;
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};
use crate::support::skipped::skip_unless_ci;

const INFER: &str = "/v2/models/identity_uint8/infer";
const BODY: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[1,3],"data":[1,2,3]}]}"#;
const ANSWERED: &str = r#""data":[1,2,3]"#;

/// A server with TLS on its HTTP and gRPC ports, and without it on its metrics port.
fn server(files: &Files, flags: &[&str]) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    let own = [files.flags("http", false), files.flags("grpc", false)].concat();
    let all: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    let server = Server::deuteron(folder.path(), &all);
    (folder, server)
}

fn handshakes(server: &Server, kind: &str) -> u64 {
    metric(server.metrics(), &format!("deuteron_tls_handshakes_total{{kind=\"{kind}\"}}"))
}

fn failures(server: &Server, reason: &str) -> u64 {
    metric(server.metrics(), &format!("deuteron_tls_handshakes_failed_total{{reason=\"{reason}\"}}"))
}

/// Waits until a figure has its expected value.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// One inference over a connection of its own.
fn infer(files: &Files, address: SocketAddr) -> io::Result<http::Response> {
    let mut connection = files.http(address)?;
    connection.send(&request("POST", INFER, &[], BODY.as_bytes()))?;
    connection.receive()
}

#[test]
fn every_way_of_the_sockets_serves_tls() {
    let Some(files) = Files::new(KeyKind::Rsa) else { return };
    for io in ["auto", "epoll", "glommio"] {
        let (_folder, server) = server(&files, &[&format!("--io={io}")]);
        for address in [server.http(), server.grpc()] {
            let mut connection = files.http(address).unwrap();
            for _ in 0..20 {
                connection.send(&request("POST", INFER, &[], BODY.as_bytes())).unwrap();
                let answer = connection.receive().unwrap();
                assert_eq!(answer.status, 200, "{io}");
                assert!(String::from_utf8_lossy(&answer.body).contains(ANSWERED), "{io}");
            }
            // Larger than any buffer on the way, in both directions, and pipelined.
            let raw: Vec<u8> = (0..3_000_000_u32).map(|index| (index ^ (index >> 9)) as u8).collect();
            let head = r#"{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[1,3000000],"parameters":{"binary_data_size":3000000}}],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}"#;
            let body = [head.as_bytes(), &raw].concat();
            let size = head.len().to_string();
            let large = request("POST", INFER, &[("Inference-Header-Content-Length", &size)], &body);
            for _ in 0..3 {
                connection.send(&large).unwrap();
                let answer = connection.receive().unwrap();
                assert_eq!(answer.status, 200, "{io}");
                assert!(answer.body.ends_with(&raw), "{io}");
            }
        }
        assert_eq!(metric(server.metrics(), "deuteron_panics_total"), 0);
    }
}

/// A connection whose reads send nothing: it reads the server's answer although the server has stopped reading.
struct Apart(TlsStream);

impl Read for Apart {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let TlsStream { conn, sock } = &mut self.0;
        loop {
            match conn.reader().read(space) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            conn.read_tls(sock)?;
            conn.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

impl Write for Apart {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl RawStream for Apart {
    fn set_wait(&mut self, wait: Duration) {
        self.0.sock.set_read_timeout(Some(wait)).unwrap();
    }

    fn end_sending(&mut self) {
        self.0.conn.send_close_notify();
        let _ = self.0.flush();
    }
}

#[test]
fn every_case_of_http_1_is_answered_over_tls_too() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let (_folder, server) = server(&files, &["--shards=1"]);
    let client = Arc::new(files.client(false));
    let open = || -> Box<dyn RawStream> {
        let mut stream = connect(server.http(), &client).unwrap();
        stream.conn.complete_io(&mut stream.sock).unwrap();
        Box::new(Apart(stream))
    };
    let (failures, count) = http1_suite::run(&open);
    println!("{}/{count}", count - failures.len());
    assert!(failures.is_empty(), "{}/{count}\n{}", count - failures.len(), failures.join("\n"));
}

/// curl's report of an exchange: version of HTTP and status; `None` if it failed.
fn curl(files: &Files, address: SocketAddr, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("curl");
    command.args([
        "-sS",
        "--cacert",
        &files.text("authority.pem"),
        "-o",
        "/dev/null",
        "-w",
        "%{http_version} %{http_code}",
    ]);
    command.args(arguments).args(["-d", BODY, &format!("https://{address}{INFER}")]);
    let Ok(output) = command.output() else {
        skip_unless_ci("there is no curl");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(if output.status.success() { text } else { format!("failed {:?}", output.status.code()) })
}

#[test]
fn curl_negotiates_version_and_protocol() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let (_folder, server) = server(&files, &[]);
    for (arguments, want) in [
        (&["--http1.1"][..], "1.1 200"),
        (&["--http2"], "2 200"),
        (&["--no-alpn"], "1.1 200"),
        (&["--tlsv1.2", "--tls-max", "1.2", "--http2"], "2 200"),
        (&["--tlsv1.2", "--tls-max", "1.2", "--http1.1"], "1.1 200"),
        (&["--tlsv1.3"], "2 200"),
        (&["--tls-max", "1.1"], "failed Some(35)"),
        (&["--http2", "--compressed"], "2 200"),
    ] {
        for address in [server.http(), server.grpc()] {
            let Some(got) = curl(&files, address, arguments) else { return };
            assert_eq!(got, want, "{arguments:?} at {address}");
        }
    }
}

/// Output of `openssl s_client` for a connection.
fn s_client(files: &Files, address: SocketAddr, arguments: &[&str]) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-CAfile", &files.text("authority.pem"), "-connect", &address.to_string()]);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A request, so that tickets of TLS 1.3 have come when it is answered. The write fails if there is no connection.
    let _ =
        child.stdin.take().unwrap().write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_client_that_agreed_on_http2_and_sends_no_preface_is_told_nothing_and_counted() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let (_folder, server) = server(&files, &[]);
    for address in [server.http(), server.grpc()] {
        let faults = || metric(server.metrics(), "deuteron_framing_errors_total");
        let before = faults();
        let text = s_client(&files, address, &["-alpn", "h2", "-ign_eof"]);
        assert!(text.contains("ALPN protocol: h2") && !text.contains("HTTP/1.1 200"), "{text}");
        wait_for("the fault to be counted", || faults() == before + 1);
        let text = s_client(&files, address, &["-alpn", "http/1.1", "-ign_eof"]);
        assert!(text.contains("HTTP/1.1 200"), "{text}");
    }
}

#[test]
fn openssl_resumes_its_sessions_and_finds_no_old_version_or_suite() {
    let Some(files) = Files::new(KeyKind::Rsa) else { return };
    let (_folder, server) = server(&files, &[]);
    for version in ["-tls1_2", "-tls1_3"] {
        let session = files.text("session");
        let first = s_client(&files, server.http(), &[version, "-ign_eof", "-sess_out", &session]);
        assert!(first.contains("HTTP/1.1 200") && first.contains("New, TLSv1"), "{version}: {first}");
        let before = handshakes(&server, "resumed");
        let second = s_client(&files, server.http(), &[version, "-ign_eof", "-sess_in", &session]);
        assert!(second.contains("HTTP/1.1 200") && second.contains("Reused, TLSv1"), "{version}: {second}");
        assert_eq!(handshakes(&server, "resumed"), before + 1, "{version}");
    }
    let refused = |arguments: &[&str]| {
        let before = failures(&server, "incompatible");
        let text = s_client(&files, server.http(), arguments);
        assert!(!text.contains("HTTP/1.1 200"), "{arguments:?}: {text}");
        wait_for(&format!("{arguments:?}: {text}"), || failures(&server, "incompatible") == before + 1);
    };
    refused(&["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]);
    refused(&["-tls1", "-cipher", "ALL:@SECLEVEL=0"]);
    for suite in
        ["AES128-SHA", "AES256-SHA256", "ECDHE-RSA-AES128-SHA256", "DHE-RSA-AES256-GCM-SHA384", "AES128-GCM-SHA256"]
    {
        refused(&["-tls1_2", "-cipher", &format!("{suite}:@SECLEVEL=0")]);
    }
    // Neither compression nor renegotiation is offered.
    let text = s_client(&files, server.http(), &["-tls1_2", "-ign_eof"]);
    assert!(text.contains("Compression: NONE"), "{text}");
}

#[test]
fn a_port_with_mutual_tls_serves_those_alone_who_have_a_certificate() {
    let (Some(files), Some(others)) = (Files::new(KeyKind::Ecdsa), Files::new(KeyKind::Ecdsa)) else { return };
    let folder = repository::write(Flavour::Deuteron);
    let flags = [files.flags("http", true), files.flags("grpc", false), files.flags("metrics", false)].concat();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::deuteron(folder.path(), &flags);
    let ask = |config| {
        let mut connection = http::Connection::over(connect(server.http(), &Arc::new(config))?);
        connection.send(&request("POST", INFER, &[], BODY.as_bytes()))?;
        connection.receive()
    };
    assert_eq!(ask(files.client(true)).unwrap().status, 200);
    assert!(ask(files.client(false)).is_err(), "no certificate");
    // A certificate of another authority, though the client trusts the server.
    std::fs::copy(files.path("authority.pem"), others.path("authority.pem")).unwrap();
    assert!(ask(others.client(true)).is_err(), "somebody else's certificate");
    // The gRPC port needs no certificate.
    assert_eq!(infer(&files, server.grpc()).unwrap().status, 200);
    // The metrics port has TLS, too.
    let mut metrics = files.http(server.metrics()).unwrap();
    metrics.send(&request("GET", "/metrics", &[], b"")).unwrap();
    let text = String::from_utf8(metrics.receive().unwrap().body).unwrap();
    let line = "deuteron_tls_handshakes_failed_total{reason=\"certificate\"} 2";
    assert!(text.lines().any(|have| have == line), "{text}");
    for port in ["http", "grpc", "metrics"] {
        let start = format!("deuteron_tls_certificate_expiry_seconds{{port=\"{port}\"}} ");
        let at = text.lines().find_map(|line| line.strip_prefix(&start)?.parse::<u64>().ok()).unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!((now + 86_400..now + 3 * 86_400).contains(&at), "{at}, and it is {now}");
    }
}

#[test]
fn clients_of_python_are_served_over_tls() {
    let (Some(files), Some(environment)) = (Files::new(KeyKind::Ecdsa), Environment::shared()) else { return };
    let folder = repository::write(Flavour::Deuteron);
    let flags = [files.flags("http", false), files.flags("grpc", true)].concat();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::deuteron(folder.path(), &flags);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/tls_clients.py");
    let output = Command::new(environment.python())
        .arg(script)
        .args([
            "--http",
            &format!("localhost:{}", server.ports.http),
            "--grpc",
            &format!("localhost:{}", server.ports.grpc),
        ])
        .args(["--authority", &files.text("authority.pem")])
        .args(["--certificate", &files.text("client.pem"), "--key", &files.text("client.key")])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.ends_with("all passed\n"), "{text}\n{error}\n{}", server.log());
    assert_eq!(metric(server.metrics(), "deuteron_requests_in_flight"), 0);
}

#[test]
fn plain_clients_at_a_port_with_tls_and_tls_clients_at_one_without_are_told_so() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let (_folder, server) = server(&files, &[]);
    let before = failures(&server, "plain");
    let answer = http::get(server.http(), "/v2").unwrap();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!((answer.status, answer.header("connection")), (400, Some("close")), "{text}");
    assert!(text.contains("this port has TLS: connect with https://"), "{text}");
    let preface = http::exchange(server.grpc(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    assert_eq!(preface.status, 400, "HTTP/2 without TLS is plain text as well");
    assert_eq!(failures(&server, "plain"), before + 2);
    // The metrics port has no TLS; nor has this server.
    assert!(files.connect(server.metrics()).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").is_err());
    let folder = repository::write(Flavour::Deuteron);
    let plain = Server::deuteron(folder.path(), &[]);
    let answer = http::exchange(plain.http(), &[22, 3, 1, 0, 200, 1, 0, 0]).unwrap();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status == 400 && text.contains("this port has no TLS"), "{text}");
    assert!(files.connect(plain.grpc()).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").is_err());
    assert_eq!(infer(&files, server.http()).unwrap().status, 200);
}

#[test]
fn bytes_that_are_no_tls_get_an_alert_and_cost_nothing_else() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let (_folder, server) = server(&files, &[]);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let before = failures(&server, "malformed");
    for round in 0..50 {
        let bytes: Vec<u8> = (0..600)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) as u8
            })
            .collect();
        // Half of them look like a handshake at first.
        let first: &[u8] = if round % 2 == 0 { &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc] } else { &[0x80] };
        let mut socket = TcpStream::connect(server.http()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The connection may be closed before all of it is sent.
        let _ = socket.write_all(&[first, &bytes].concat());
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer[0] == 0x15, "an alert: {answer:?}");
    }
    assert_eq!(failures(&server, "malformed"), before + 50);
    // Within an established connection, in place of a record.
    let mut connection = files.http(server.http()).unwrap();
    connection.send(&request("GET", "/v2", &[], b"")).unwrap();
    assert_eq!(connection.receive().unwrap().status, 200);
    let received = metric(server.metrics(), "deuteron_requests_received_total");
    connection.stream().sock.write_all(&[0x17, 3, 3, 0, 40]).unwrap();
    connection.stream().sock.write_all(&[7; 40]).unwrap();
    assert!(connection.receive().is_err());
    assert_eq!(metric(server.metrics(), "deuteron_requests_received_total"), received);
    assert_eq!(infer(&files, server.http()).unwrap().status, 200);
    let lines = server.log().lines().filter(|line| line.contains("the TLS handshake with")).count();
    assert!((1..=4).contains(&lines), "one line for many failures: {}", server.log());
}

#[test]
fn a_handshake_in_single_bytes_and_small_records_is_understood() {
    let Some(files) = Files::new(KeyKind::Rsa) else { return };
    let (_folder, server) = server(&files, &[]);
    for fragment in [None, Some(64), Some(600)] {
        let mut config = files.client(false);
        config.max_fragment_size = fragment;
        let mut stream = connect(server.http(), &Arc::new(config)).unwrap();
        while stream.conn.is_handshaking() {
            let mut bytes = Vec::new();
            while stream.conn.wants_write() {
                stream.conn.write_tls(&mut bytes).unwrap();
            }
            for byte in bytes {
                stream.sock.write_all(&[byte]).unwrap();
            }
            if stream.conn.is_handshaking() {
                stream.conn.read_tls(&mut stream.sock).unwrap();
                stream.conn.process_new_packets().unwrap();
            }
        }
        let mut connection = http::Connection::over(stream);
        connection.send(&request("POST", INFER, &[], BODY.as_bytes())).unwrap();
        assert_eq!(connection.receive().unwrap().status, 200, "{fragment:?}");
    }
}

#[test]
fn a_slow_handshake_ends_and_too_many_at_once_are_refused() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let flags = ["--tls-handshake-timeout-secs=1", "--tls-handshakes-max=3", "--shards=1"];
    let (_folder, server) = server(&files, &flags);
    let start = Instant::now();
    let mut slow: Vec<_> = (0..3).map(|_| TcpStream::connect(server.http()).unwrap()).collect();
    for socket in &mut slow {
        socket.write_all(&[22, 3, 1, 1]).unwrap();
    }
    // All three are in progress, so that a fourth is closed at once.
    wait_for("a fourth handshake is refused", || infer(&files, server.http()).is_err());
    assert!(failures(&server, "limit") >= 1);
    for socket in &mut slow {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = socket.read_to_end(&mut Vec::new());
    }
    let took = start.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_secs(10)).contains(&took), "{took:?}");
    assert_eq!(failures(&server, "timeout"), 3);
    wait_for("there is room again", || infer(&files, server.http()).is_ok_and(|answer| answer.status == 200));
}

#[test]
fn two_hundred_handshakes_at_once_are_all_done() {
    let Some(files) = Files::new(KeyKind::Rsa) else { return };
    let (_folder, server) = server(&files, &[]);
    let config = Arc::new(files.client(false));
    let mut sockets: Vec<_> = (0..200).map(|_| connect(server.http(), &config).unwrap()).collect();
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        while !sockets.is_empty() {
            let own = sockets.split_off(sockets.len() - 4);
            scope.spawn(|| {
                for stream in own {
                    let mut connection = http::Connection::over(stream);
                    connection.send(&request("POST", INFER, &[], BODY.as_bytes())).unwrap();
                    assert_eq!(connection.receive().unwrap().status, 200);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(answered.load(Ordering::Relaxed), 200);
    assert_eq!(handshakes(&server, "full") + handshakes(&server, "resumed"), 200);
}

#[test]
fn the_end_of_input_is_the_clients_word_and_a_cut_connection_is_none() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let (_folder, server) = server(&files, &[]);
    let whole = request("POST", INFER, &[], BODY.as_bytes());
    // Half closed: the client has ended its sending side, and still reads.
    let mut connection = files.http(server.http()).unwrap();
    connection.send(&whole).unwrap();
    connection.stream().conn.send_close_notify();
    connection.stream().flush().unwrap();
    assert_eq!(connection.receive().unwrap().status, 200);
    assert!(connection.is_closed());
    // The server's end is a close_notify, too.
    let mut connection = files.http(server.http()).unwrap();
    connection.send(&request("GET", "/v2", &[("Connection", "close")], b"")).unwrap();
    assert_eq!(connection.receive().unwrap().status, 200);
    assert_eq!(connection.stream().read(&mut [0; 8]).unwrap(), 0, "close_notify");
    // Cut within a body, though the received part is a whole JSON document to a reader that takes the end for its end.
    let received = metric(server.metrics(), "deuteron_requests_received_total");
    for body in ["Content-Length: 1000\r\n", "Transfer-Encoding: chunked\r\n"] {
        let mut connection = files.http(server.http()).unwrap();
        let head = format!("POST {INFER} HTTP/1.1\r\nHost: a\r\n{body}\r\n");
        let chunk = if body.starts_with('T') { format!("{:x}\r\n{BODY}\r\n", BODY.len()) } else { BODY.to_owned() };
        connection.send(&[head.as_bytes(), chunk.as_bytes()].concat()).unwrap();
        connection.stream().sock.shutdown(Shutdown::Write).unwrap();
        assert!(connection.receive().is_err(), "{body}");
    }
    assert_eq!(metric(server.metrics(), "deuteron_requests_received_total"), received);
    assert_eq!(metric(server.metrics(), "deuteron_requests_in_flight"), 0);
}

#[test]
fn a_client_that_does_not_read_its_answer_is_no_burden_and_gets_it_later() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    for io in ["auto", "glommio"] {
        let (_folder, server) = server(&files, &["--shards=1", &format!("--io={io}")]);
        let count = 8_000_000;
        let head = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"UINT8","shape":[1,{count}],"parameters":{{"binary_data_size":{count}}}}}],"outputs":[{{"name":"OUTPUT0","parameters":{{"binary_data":true}}}}]}}"#
        );
        let body = [head.as_bytes(), &vec![7; count]].concat();
        let size = head.len().to_string();
        let mut connection = files.http(server.http()).unwrap();
        connection.send(&request("POST", INFER, &[("Inference-Header-Content-Length", &size)], &body)).unwrap();
        wait_for("the inference ran", || metric(server.metrics(), "deuteron_requests_succeeded_total") == 1);
        for _ in 0..20 {
            assert_eq!(infer(&files, server.http()).unwrap().status, 200, "{io}");
        }
        let answer = connection.receive().unwrap();
        assert_eq!(answer.status, 200, "{io}");
        assert!(answer.body.ends_with(&vec![7; count]), "{io}");
    }
}

#[test]
fn certificates_are_read_again_without_a_lost_connection_and_broken_ones_are_not_used() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let (_folder, server) = server(&files, &[]);
    let shown = |address: SocketAddr| {
        let mut stream = files.connect(address).unwrap();
        stream.write_all(b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        stream.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let mut kept = files.http(server.http()).unwrap();
    kept.send(&request("GET", "/v2", &[], b"")).unwrap();
    assert_eq!(kept.receive().unwrap().status, 200);
    let first = shown(server.http());
    let (is_over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let reloads =
        |result: &str| metric(server.metrics(), &format!("deuteron_tls_reloads_total{{result=\"{result}\"}}"));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let answer = infer(&files, server.http());
                    assert!(answer.as_ref().is_ok_and(|answer| answer.status == 200), "{answer:?}");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 1..=3 {
            files.certify("server", if round % 2 == 0 { KeyKind::Ecdsa } else { KeyKind::Rsa });
            server.signal("HUP");
            wait_for("the new certificate is in use", || reloads("succeeded") == round);
        }
        let last = shown(server.http());
        assert_ne!(last, first);
        assert_eq!(shown(server.grpc()), last, "on every port");
        // A key of another certificate, and a file that is not a key.
        let key = std::fs::read(files.path("server.key")).unwrap();
        replace(&files.path("server.key"), &std::fs::read(files.path("client.key")).unwrap());
        server.signal("HUP");
        wait_for("it is told that it is wrong", || reloads("failed") == 1);
        replace(&files.path("server.key"), b"nothing");
        wait_for("it is told without a signal as well", || reloads("failed") == 2);
        assert_eq!(shown(server.http()), last, "that before stays in use");
        replace(&files.path("server.key"), &key);
        wait_for("it is used again", || reloads("succeeded") == 4);
    });
    assert!(served.load(Ordering::Relaxed) > 50, "{served:?}");
    kept.send(&request("POST", INFER, &[], BODY.as_bytes())).unwrap();
    assert_eq!(kept.receive().unwrap().status, 200, "a connection outlives the certificate that it began with");
    let log = server.log();
    assert!(log.contains("is not that of the certificate; the previous ones stay in use"), "{log}");
    assert!(!log.contains("PRIVATE KEY-----\n"), "{log}");
}

#[test]
fn a_server_that_cannot_have_tls_says_which_file_is_wrong() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    files.openssl("pkey -in server.key -aes128 -passout pass:a -out encrypted.key");
    let folder = repository::write(Flavour::Deuteron);
    let start = |flags: &[String]| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let output = Server::command(folder.path(), &flags, Ports::free()).output().unwrap();
        assert!(!output.status.success(), "{flags:?}");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let with = |certificate: &str, key: &str| {
        let file = |name: &str, flag: &str| format!("--grpc-{flag}={}", files.text(name));
        vec!["--grpc-use-ssl=true".to_owned(), file(certificate, "server-cert"), file(key, "server-key")]
    };
    let check = |flags: &[String], want: &str| {
        let text = start(flags);
        assert!(text.contains(want), "{flags:?}: {text}");
    };
    check(&["--grpc-use-ssl=true".to_owned()], "--grpc-use-ssl needs --grpc-server-cert, a file in PEM");
    check(&with("nowhere.pem", "server.key"), "nowhere.pem' cannot be read: No such file or directory");
    check(&with("server.pem", "nowhere.key"), "nowhere.key' cannot be read: No such file or directory");
    check(&with("server.key", "server.key"), "server.key' has no certificate; expected PEM");
    check(&with("server.pem", "server.pem"), "server.pem' has no private key that can be read");
    check(&with("server.pem", "encrypted.key"), "without a passphrase");
    check(&with("server.pem", "client.key"), "client.key' is not that of the certificate");
    let mutual = [with("server.pem", "server.key"), vec!["--grpc-use-ssl-mutual=true".to_owned()]].concat();
    check(&mutual, "--grpc-use-ssl-mutual needs --grpc-root-cert");
    let empty = format!("--grpc-root-cert={}", files.text("extensions"));
    check(&[mutual, vec![empty]].concat(), "extensions' has no certificate");
}

#[test]
fn a_drain_ends_connections_with_tls_as_it_ends_others() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let folder = repository::write(Flavour::Deuteron);
    let config = "backend: \"identity\"\nmax_batch_size: 4\n\
                  input { name: \"INPUT0\" data_type: TYPE_UINT8 dims: [-1] }\n\
                  output { name: \"OUTPUT0\" data_type: TYPE_UINT8 dims: [-1] }\n\
                  parameters { key: \"execute_delay_ms\" value { string_value: \"700\" } }\n";
    repository::add(folder.path(), "slow", config, None);
    let flags = files.flags("http", false);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut server = Server::deuteron(folder.path(), &flags);
    let mut idle = files.http(server.http()).unwrap();
    idle.send(&request("GET", "/v2", &[], b"")).unwrap();
    assert_eq!(idle.receive().unwrap().status, 200);
    let mut busy = files.http(server.http()).unwrap();
    busy.send(&request("POST", "/v2/models/slow/infer", &[], BODY.as_bytes())).unwrap();
    wait_for("the request is there", || metric(server.metrics(), "deuteron_requests_received_total") == 1);
    server.signal("TERM");
    let answer = busy.receive().unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert_eq!(busy.stream().read(&mut [0; 8]).unwrap(), 0, "close_notify");
    assert_eq!(idle.stream().read(&mut [0; 8]).unwrap(), 0, "close_notify");
    assert!(server.wait().success());
}
