//! A conformance suite for HTTP/2 servers: a table of cases, one for each requirement of RFC 9113 sections 3 to 8 and of
//! RFC 7541 that a server can be seen to break, in frames of its own making. It runs on the state machine, in one piece
//! and byte by byte; on this server over a socket; and on other servers, whose score shows that the suite can fail.

mod case;
mod cases;
mod frame;
mod machine;
mod peer;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::repository::{self, Flavour};
use crate::support::server::Server;
use crate::support::skipped::skip_unless_ci;
use crate::tls::files::{Files, KeyKind, connect};
use case::{Case, Seen};
use machine::Machine;
use peer::{PATIENCE, Socket};

/// Tries all cases, a few at a time. Returns their number, and the failed ones by name.
fn try_all(run: impl Fn(&Case) -> Seen + Sync, is_strict: bool) -> (usize, Vec<String>) {
    let cases = cases::all();
    let next = AtomicUsize::new(0);
    let mut failed: Vec<(usize, String)> = std::thread::scope(|scope| {
        let work = || {
            let mut failed = Vec::new();
            while let Some((index, case)) = cases.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(why) = case.want.judge(&run(case), is_strict) {
                    failed.push((index, format!("{} {}: {why}", case.clause, case.name)));
                }
            }
            failed
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    failed.sort();
    let lines = failed.into_iter().map(|(_, line)| line).collect();
    (cases.len(), lines)
}

#[test]
fn the_state_machine_passes_every_case_however_its_input_is_cut() {
    for piece_size in [usize::MAX, 1, 10] {
        let run = |case: &Case| peer::run(case, &mut Machine::new(piece_size), Duration::ZERO);
        let (count, failed) = try_all(run, true);
        assert!(count >= 140, "{count} cases");
        assert!(failed.is_empty(), "pieces of {piece_size}: {} of {count} failed\n{}", failed.len(), failed.join("\n"));
        println!("state machine, pieces of {piece_size}: {count}/{count}");
    }
}

#[test]
fn the_server_passes_every_case() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    for (port, address) in [("gRPC", server.grpc()), ("HTTP", server.http())] {
        let (count, failed) = try_all(|case| Socket::connect(address).run(case, PATIENCE), true);
        assert!(failed.is_empty(), "{port}: {} of {count} failed\n{}", failed.len(), failed.join("\n"));
        println!("deuteron, {port}: {count}/{count}");
    }
}

#[test]
fn the_server_passes_every_case_over_tls() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let folder = repository::write(Flavour::Deuteron);
    let flags = files.flags("grpc", false);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--shards=1"]).collect();
    let server = Server::deuteron(folder.path(), &flags);
    let mut client = files.client(false);
    client.alpn_protocols = vec![b"h2".to_vec()];
    let client = Arc::new(client);
    let run = |case: &Case| {
        let mut stream = connect(server.grpc(), &client).unwrap();
        stream.conn.complete_io(&mut stream.sock).unwrap();
        stream.sock.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Socket(stream).run(case, PATIENCE)
    };
    let (count, failed) = try_all(run, true);
    assert!(failed.is_empty(), "{} of {count} failed\n{}", failed.len(), failed.join("\n"));
    println!("deuteron, TLS: {count}/{count}");
}

/// Time limit for an answer of another server. Each case that it fails takes as long.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(2);

/// Prints the score of another server. It must pass some and fail some: else the suite shows nothing.
fn score(name: &str, address: SocketAddr) {
    let (count, failed) = try_all(|case| Socket::connect(address).run(case, PATIENCE_WITH_OTHERS), false);
    println!("{name}: {}/{count}\n{}", count - failed.len(), failed.join("\n"));
    assert!(!failed.is_empty() && failed.len() < count / 2, "{name}: {} of {count} failed", failed.len());
}

#[test]
fn nghttpd_passes_most_cases() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let folder = crate::support::folder::Folder::new("nghttpd");
    let mut command = Command::new("nghttpd");
    command.args(["--no-tls", "-a", "127.0.0.1", "-d"]).arg(folder.path()).arg(port.to_string());
    let Ok(mut child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        return skip_unless_ci("nghttpd (nghttp2-server) is not installed");
    };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    while TcpStream::connect(address).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let outcome = std::panic::catch_unwind(|| score("nghttpd", address));
    child.kill().unwrap();
    child.wait().unwrap();
    outcome.unwrap();
}

/// A real tritonserver, which speaks by `grpc`.
#[test]
fn tritonserver_passes_most_cases() {
    let folder = crate::support::folder::Folder::new("triton");
    let Some(server) = crate::support::triton::start(folder.path()) else { return };
    score("tritonserver", server.grpc());
}

#[test]
fn who_floods_and_reads_late_is_told_why_all_the_same() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    // Most answers are still with the server's kernel when it closes.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.connect(&server.grpc().into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut writer = stream.try_clone().unwrap();
    writer.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    // Until it fails: more than a server reads of a connection that it has ended.
    let writing = std::thread::spawn(move || {
        let pings = frame::ping(b"12345678").repeat(1_000);
        writer.write_all(&[frame::PREFACE, &frame::settings(&[])].concat()).unwrap();
        (0..1_000).find(|_| writer.write_all(&pings).is_err()).is_some()
    });
    std::thread::sleep(Duration::from_millis(300));
    let mut came = Vec::new();
    // The connection may end by a reset, behind all that was sent.
    let _ = stream.read_to_end(&mut came);
    drop(stream);
    assert!(writing.join().unwrap(), "it takes 17 MB of PING");
    let (mut last, mut rest) = (None, came.as_slice());
    while let Some((frame, size)) = frame::parse(rest) {
        (last, rest) = (Some(frame), &rest[size..]);
    }
    let last = last.expect("frames came");
    assert_eq!((last.kind, &last.payload[4..8]), (frame::GOAWAY, &[0, 0, 0, 11][..]), "{} bytes came", came.len());
}
