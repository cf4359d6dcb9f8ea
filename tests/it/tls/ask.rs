//! `deuteron ask` and `deuteron health` against servers with TLS, with certificates of the repository: they are answered, and each
//! reason for which they are not is told with its cure.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use super::bench::{file, server};
use crate::support::folder::Folder;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

const ASK: [&str; 4] = ["ask", "identity_uint8", "-i", "INPUT0=[[1, 2, 3]]"];
const HEALTH: [&str; 1] = ["health"];

/// The exit code and the text of all outputs, for authorities of the system that are these.
fn run(system: &str, command: &[&str], arguments: &[&str]) -> (Option<i32>, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    let output = program.args(command).args(arguments).env("SSL_CERT_FILE", file(system)).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn a_model_is_asked_and_health_is_checked_over_tls() {
    let folder = repository::write(Flavour::Deuteron);
    let server = server(&folder);
    let (http, grpc) = (server.http().port(), server.grpc().port());
    let ca = format!("--ca={}", file("authority.pem"));
    let own = [format!("--cert={}", file("client.pem")), format!("--key={}", file("client.key"))];
    let check = |system: &str, url: &str, more: &[&str]| {
        let url = format!("--url={url}");
        for (command, want) in [(&ASK[..], "[1,2,3]"), (&HEALTH, "ready\n")] {
            let (code, text) = run(system, command, &[&[url.as_str()], more].concat());
            assert!(code == Some(0) && text.contains(want), "{command:?} {url}: {text}");
        }
    };
    check("client.pem", &format!("https://localhost:{http}"), &[&ca]);
    check("client.pem", &format!("https://localhost:{http}/"), &["--ca", &file("server.pem")]);
    check("authority.pem", &format!("https://127.0.0.1:{http}"), &[]);
    check("client.pem", &format!("https://127.0.0.2:{http}"), &["--insecure"]);
    // Both ports serve HTTP; this one asks for a certificate.
    check("client.pem", &format!("https://localhost:{grpc}"), &[&ca, &own[0], &own[1]]);
    let live = ["--live", "--url", &format!("https://localhost:{http}")].map(str::to_owned);
    let live: Vec<_> = live.iter().map(String::as_str).collect();
    assert_eq!(run("authority.pem", &HEALTH, &live), (Some(0), "live\n".to_owned()));
}

#[test]
fn a_body_and_an_answer_larger_than_any_record_go_over_tls() {
    let folder = repository::write(Flavour::Deuteron);
    let server = server(&folder);
    let values: Vec<String> = (0..30_000).map(|index| (index % 251).to_string()).collect();
    let values = values.join(",");
    let given = folder.path().join("values.json");
    std::fs::write(&given, format!("[[{values}]]")).unwrap();
    let input = format!("INPUT0={}", given.display());
    let url = format!("--url=https://localhost:{}", server.http().port());
    let (code, text) = run("authority.pem", &["ask", "identity_uint8", "-i", &input], &[&url]);
    let start = text.get(..text.len().min(300));
    assert!(code == Some(0) && text.contains(&values), "{code:?} {start:?}");
}

#[test]
fn a_server_that_cannot_be_asked_over_tls_is_told_with_the_flag_and_the_cure() {
    let folder = repository::write(Flavour::Deuteron);
    let (server, plain) = (server(&folder), Server::deuteron(folder.path(), &[]));
    let (http, grpc) = (server.http().port(), server.grpc().port());
    let ca = format!("--ca={}", file("authority.pem"));
    let check = |arguments: &[&str], exit: i32, want: &str| {
        for command in [&ASK[..], &HEALTH] {
            let (code, text) = run("client.pem", command, arguments);
            assert!(
                code == Some(exit) && text.contains(want),
                "{command:?} {arguments:?}: {want:?} is not in {text:?}"
            );
        }
    };
    let at = |scheme: &str, host: &str, port: u16| format!("--url={scheme}://{host}:{port}");
    let here = at("https", "localhost", http);
    check(&[&here], 1, "is not trusted: name its authority with --ca=FILE; --insecure trusts any");
    let other = "has another name: ask it by one of its own; --insecure accepts it. It is for localhost";
    check(&[&at("https", "127.0.0.2", http), &ca], 1, other);
    let not_tls = "cannot be asked: the server does not answer by TLS: use http:// at this port";
    check(&[&at("https", "localhost", plain.http().port()), &ca], 1, not_tls);
    check(&[&at("http", "localhost", http)], 1, &format!("use --url=https://localhost:{http}"));
    let required = "the server requires a client certificate: give it with --cert and --key";
    check(&[&at("https", "localhost", grpc), &ca], 1, required);
    check(&[&here, "--ca=/nowhere"], 1, "--ca=/nowhere cannot be read: ");
    check(&[&at("https", "a_b..c", http), &ca], 1, "is neither a name nor an IP address");
    // Mistakes of the command line.
    check(&["--url=localhost", &ca], 2, "--ca is for TLS: name the server as --url=https://HOST:PORT");
    check(&["--insecure"], 2, "--insecure is for TLS: name the server as --url=https://HOST:PORT");
    check(&[&here, "--cert=c"], 2, "a client's certificate has a key: --cert and --key belong together");
    check(&[&here, &ca, "--insecure"], 2, "--insecure trusts any server; leave --ca out");
}

#[test]
fn servers_of_other_kinds_are_understood_too() {
    let answered = |scheme: &str, answer: &'static [u8], more: &[&str]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("--url={scheme}://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(answer).unwrap();
        });
        let (_, text) = run("client.pem", &ASK, &[&[url.as_str()], more].concat());
        server.join().unwrap();
        text
    };
    // An alert without a word in plain text.
    let text = answered("http", &[0x15, 3, 3, 0, 2, 2, 10], &[]);
    assert!(text.contains("the server has TLS at this port: use https://"), "{text}");
    let nginx =
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 52\r\n\r\n400 The plain HTTP request was sent to HTTPS port   ";
    let text = answered("http", nginx, &[]);
    assert!(text.contains("answers 400: ") && text.contains("\nuse --url=https://127.0.0.1:"), "{text}");
    let text = answered("https", b"", &["--insecure"]);
    assert!(text.contains("the server closed the connection in the handshake of TLS"), "{text}");
}

/// Nothing of TLS is read without it.
#[test]
fn a_folder_without_authorities_is_no_hindrance_over_plain_http() {
    let folder: Folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let url = format!("--url=http://{}", server.http());
    assert_eq!(run("absent.pem", &HEALTH, &[&url]), (Some(0), "ready\n".to_owned()));
}
