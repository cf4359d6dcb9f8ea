//! `deuteron health`: asks a server whether it is ready, for the health checks of containers, which need a program that
//! exits with 0 or 1.

use std::io::{self, ErrorKind, Read, Write};
use std::process::ExitCode;

use clap::ArgMatches;

use crate::limits::HEALTH_TIMEOUT;
use crate::loadgen::flags::tls::{self, Variables};
use crate::loadgen::settings::TlsFiles;
use crate::loadgen::tls_socket::{CommandSocket, CommandTls};
use crate::settings::{HealthQuestion, ReadFile};

/// The bytes of an answer that are read: its first line.
const STATUS_SIZE_MAX: usize = 64;

/// The question, and the files of the server's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    question: HealthQuestion,
    tls: TlsFiles,
}

impl HealthCheck {
    /// Reads the arguments. The error is one line for a person.
    pub fn read(matches: &ArgMatches, variables: Variables<'_>, read_file: ReadFile<'_>) -> Result<Self, String> {
        let question = HealthQuestion::read(matches, variables, read_file)?;
        let tls = tls::read(matches, question.server.has_tls, variables)?;
        Ok(Self { question, tls })
    }
}

/// Asks, and prints the answer in one line. Returns the exit code for `main`.
pub fn run(check: &HealthCheck) -> ExitCode {
    let HealthQuestion { server, path, is_live } = &check.question;
    let what = if *is_live { "live" } else { "ready" };
    let tls = if server.has_tls { CommandTls::open(&check.tls, &server.authority) } else { Ok(CommandTls::default()) };
    let line = match tls.map(|tls| ask(&check.question, &tls)) {
        Ok(Ok(200)) => {
            // The caller may have closed the output, which changes nothing.
            let _ = writeln!(io::stdout(), "{what}");
            return ExitCode::SUCCESS;
        }
        Ok(Ok(status)) => {
            let cure = match (status, server.has_tls) {
                (400, false) => format!("; if it has TLS at this port, use --url=https://{}", server.authority),
                _ => String::new(),
            };
            format!("not {what}: {}{path} answers {status}{cure}", server.authority)
        }
        Ok(Err(error)) => format!("not {what}: {} cannot be asked: {error}", server.authority),
        Err(why) => format!("not {what}: {why}"),
    };
    let _ = writeln!(io::stderr(), "{line}");
    ExitCode::FAILURE
}

/// Returns the HTTP status of the answer.
fn ask(question: &HealthQuestion, tls: &CommandTls) -> io::Result<u16> {
    let authority = &question.server.authority;
    let mut stream = CommandSocket::connect(authority, tls, HEALTH_TIMEOUT, HEALTH_TIMEOUT)?;
    let path = &question.path;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::with_capacity(STATUS_SIZE_MAX);
    // One read may bring less than the line.
    while answer.len() < STATUS_SIZE_MAX && !answer.contains(&b'\n') {
        let mut space = [0; STATUS_SIZE_MAX];
        match stream.read(&mut space)? {
            0 => break,
            size => answer.extend_from_slice(space.get(..size).unwrap_or_default()),
        }
    }
    let line = String::from_utf8_lossy(&answer);
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it does not answer by HTTP/1.1"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use crate::settings::AskedServer;

    use super::*;

    fn question(authority: String, is_live: bool) -> HealthQuestion {
        HealthQuestion { server: AskedServer { authority, has_tls: false }, path: "/".to_owned(), is_live }
    }

    /// Returns the result for a server that answers with these parts.
    fn answered(parts: &'static [&'static [u8]]) -> io::Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1_000]).unwrap();
            parts.iter().for_each(|part| stream.write_all(part).unwrap());
        });
        let outcome = ask(&question(authority, false), &CommandTls::default());
        server.join().unwrap();
        outcome
    }

    #[test]
    fn the_status_is_read_whatever_pieces_it_comes_in() {
        assert_eq!(answered(&[b"HTTP/1.1 200 OK\r\n\r\n"]).unwrap(), 200);
        assert_eq!(answered(&[b"HTT", b"P/1.1 50", b"3 Service Unavailable\r\n"]).unwrap(), 503);
        assert_eq!(answered(&[b"HTTP/1.1 404"]).unwrap(), 404);
    }

    #[test]
    fn what_is_no_http_is_no_answer() {
        const ANSWERS: [&[&[u8]]; 4] = [&[], &[b"SSH-2.0-x\r\n"], &[b"HTTP/1.1 ok\r\n"], &[&[0; 100]]];
        for parts in ANSWERS {
            assert_eq!(answered(parts).unwrap_err().kind(), ErrorKind::InvalidData, "{parts:?}");
        }
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let refused = ask(&question(closed, true), &CommandTls::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
