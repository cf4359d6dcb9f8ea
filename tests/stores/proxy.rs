//! A proxy before a stand-in, with faults by a script: each request that fits the next fault of its kind has it.
//! Requests and forwarded bytes are recorded.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::server::Ports;

/// A fault of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is closed after this number of bytes of the body.
    Cut(usize),
    /// One byte of the body is another.
    Flipped,
    /// Another answer, of this status, with an error code as S3 tells it.
    Refused(u16),
    /// No answer, until the client goes away.
    Silent,
    /// The answer has one byte less, with a matching length.
    Short,
    /// The body comes in pieces of 64 KiB, with this time between them.
    Slow(Duration),
}

/// One request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Method and target.
    pub line: String,
    /// The head.
    pub head: String,
    /// Bytes of the body that were passed on.
    pub passed: usize,
}

impl Asked {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.into_iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// The proxy. Its threads end with the process.
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

struct State {
    upstream: SocketAddr,
    /// A part of the request line, the fault of the next request that has it, and a count.
    faults: Mutex<Vec<(String, Fault, usize)>>,
    asked: Mutex<Vec<Asked>>,
}

/// Serves each connection on a thread of its own, until the process ends. Returns the port.
pub fn listen(serve: impl Fn(TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> u16 {
    let (port, serve) = (Ports::free().http, Arc::new(serve));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            // The error of a client that goes away ends its thread.
            thread::spawn(move || drop(serve(client)));
        }
    });
    port
}

impl Proxy {
    /// Before this address.
    pub fn before(upstream: SocketAddr) -> Self {
        let state = Arc::new(State { upstream, faults: Mutex::default(), asked: Mutex::default() });
        let shared = Arc::clone(&state);
        let port = listen(move |client| shared.serve(client));
        Self { port, state }
    }

    /// Its address, as a URL has it.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Gives this fault to the next `count` requests whose line has `part`.
    pub fn fault(&self, part: &str, fault: Fault, count: usize) {
        self.state.faults.lock().unwrap().push((part.to_owned(), fault, count));
    }

    /// Drops all faults that are left.
    pub fn heal(&self) {
        self.state.faults.lock().unwrap().clear();
    }

    /// The requests so far whose line has `part`.
    pub fn asked(&self, part: &str) -> Vec<Asked> {
        let asked = self.state.asked.lock().unwrap();
        asked.iter().filter(|asked| asked.line.contains(part)).cloned().collect()
    }
}

impl State {
    /// One request, on a connection of its own.
    fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        let head = read_head(&mut client)?;
        let line = head.lines().next().unwrap_or_default().to_owned();
        let fault = self.take_fault(&line);
        let at = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(Asked { line: line.clone(), head: head.clone(), passed: 0 });
            asked.len() - 1
        };
        match fault {
            Some(Fault::Refused(status)) => {
                let body = "<Error><Code>AccessDenied</Code><Message>secret-of-the-store</Message></Error>";
                let wait = if status == 503 { "Retry-After: 1\r\n" } else { "" };
                let size = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} No\r\n{wait}Content-Type: application/xml\r\nContent-Length: {size}\r\nConnection: \
                     close\r\n\r\n{body}"
                );
                return client.write_all(answer.as_bytes());
            }
            Some(Fault::Silent) => {
                // Until the client has closed.
                let _ = client.read(&mut [0]);
                return Ok(());
            }
            _ => {}
        }
        let (head, mut body) = self.ask_upstream(&head)?;
        let mut size = body.len();
        match fault {
            Some(Fault::Flipped) if size > 0 => body[size / 2] ^= 1,
            Some(Fault::Short) => {
                body.pop();
                size = body.len();
            }
            Some(Fault::Cut(after)) => body.truncate(after),
            _ => {}
        }
        client.write_all(answer_head(&head, size).as_bytes())?;
        for piece in body.chunks(64 << 10) {
            client.write_all(piece)?;
            self.asked.lock().unwrap()[at].passed += piece.len();
            if let Some(Fault::Slow(pause)) = fault {
                thread::sleep(pause);
            }
        }
        Ok(())
    }

    fn take_fault(&self, line: &str) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let (_, fault, left) = faults.iter_mut().find(|(part, _, left)| *left > 0 && line.contains(part.as_str()))?;
        *left -= 1;
        Some(*fault)
    }

    fn ask_upstream(&self, head: &str) -> std::io::Result<(String, Vec<u8>)> {
        let mut upstream = TcpStream::connect(self.upstream)?;
        let fields = head.trim_end().lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
        let request = fields.map(|line| format!("{line}\r\n")).collect::<String>() + "Connection: close\r\n\r\n";
        upstream.write_all(request.as_bytes())?;
        let head = read_head(&mut upstream)?;
        let mut body = Vec::new();
        upstream.read_to_end(&mut body)?;
        if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            body = unchunked(&body);
        }
        Ok((head, body))
    }
}

/// Without the fields of a body's size, which are set anew.
fn answer_head(head: &str, size: usize) -> String {
    let is_told = |line: &str| {
        let line = line.to_ascii_lowercase();
        ["content-length:", "transfer-encoding:", "connection:"].iter().any(|name| line.starts_with(name))
    };
    let fields: String =
        head.trim_end().lines().filter(|line| !is_told(line)).map(|line| format!("{line}\r\n")).collect();
    format!("{fields}Content-Length: {size}\r\nConnection: close\r\n\r\n")
}

pub fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap().trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 4 + size..];
    }
    whole
}
