//! A small HTTP/1.1 client of the commands that ask a server: one connection, one request at a time, blocking.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use crate::limits::HEALTH_TIMEOUT;
use crate::loadgen::tls_socket::{CommandSocket, CommandTls};

/// The longest wait for an answer, or for a part of it: a model on one core may take minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Fields of the head of an answer that are read.
const FIELDS_MAX: usize = 64;
/// Bytes of the head of an answer.
const HEAD_SIZE_MAX: usize = 64 * 1024;
/// Bytes of a read.
const READ_SIZE: usize = 64 * 1024;

/// A connection to a server.
pub struct HttpClient {
    authority: String,
    stream: CommandSocket,
    received: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status (200).
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// The bytes of the body that are JSON; the data of tensors follows (`Inference-Header-Content-Length`).
    pub json_size: usize,
}

impl HttpAnswer {
    /// The JSON of the body, and the data of tensors behind it.
    pub fn parts(&self) -> (&[u8], &[u8]) {
        self.body.split_at_checked(self.json_size).unwrap_or((&self.body, &[]))
    }
}

/// The sizes of an answer and its parts.
struct AnswerHead {
    status: u16,
    size: usize,
    body_size: usize,
    json_size: usize,
}

impl HttpClient {
    /// Connects to `HOST:PORT`.
    ///
    /// # Errors
    /// That of the last address that was tried, or of the handshake of TLS.
    pub fn connect(authority: &str, tls: &CommandTls) -> io::Result<Self> {
        let stream = CommandSocket::connect(authority, tls, HEALTH_TIMEOUT, ANSWER_TIMEOUT)?;
        Ok(Self { authority: authority.to_owned(), stream, received: Vec::new() })
    }

    /// Sends a request without a body.
    ///
    /// # Errors
    /// That of the connection, or `InvalidData` if the answer is not HTTP/1.1 with the length of its body.
    pub fn get(&mut self, path: &str, fields: &[String]) -> io::Result<HttpAnswer> {
        self.exchange(&format!("GET {path} HTTP/1.1\r\n"), fields, &[])
    }

    /// Sends a request with a body of a content type.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn post(&mut self, path: &str, kind: &str, fields: &[String], body: &[u8]) -> io::Result<HttpAnswer> {
        let size = body.len();
        let start = format!("POST {path} HTTP/1.1\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n");
        self.exchange(&start, fields, body)
    }

    fn exchange(&mut self, start: &str, fields: &[String], body: &[u8]) -> io::Result<HttpAnswer> {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        self.stream.write_all(format!("{start}Host: {}\r\n{fields}\r\n", self.authority).as_bytes())?;
        self.stream.write_all(body)?;
        loop {
            if let Some(AnswerHead { status, size, body_size, json_size }) = head(&self.received)? {
                let end = size.saturating_add(body_size);
                while self.received.len() < end {
                    self.receive()?;
                }
                let body = self.received.get(size..end).unwrap_or_default().to_vec();
                self.received.drain(..end);
                return Ok(HttpAnswer { status, body, json_size });
            }
            if self.received.len() > HEAD_SIZE_MAX {
                return Err(io::Error::new(ErrorKind::InvalidData, "the head of its answer is too long"));
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        let start = self.received.len();
        self.received.resize(start + READ_SIZE, 0);
        let read = self.stream.read(self.received.get_mut(start..).unwrap_or_default());
        self.received.truncate(start + *read.as_ref().unwrap_or(&0));
        match read? {
            0 => Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection before it answered")),
            _ => Ok(()),
        }
    }
}

/// The head of an answer; `None` before it is whole.
fn head(received: &[u8]) -> io::Result<Option<AnswerHead>> {
    let wrong = |why: &str| io::Error::new(ErrorKind::InvalidData, why.to_owned());
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    match parsed.parse(received) {
        Ok(httparse::Status::Partial) => Ok(None),
        Ok(httparse::Status::Complete(size)) => {
            let length = |name: &str| -> Option<usize> {
                let field = parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
                std::str::from_utf8(field.value).ok()?.trim().parse().ok()
            };
            let body_size = length("content-length").ok_or_else(|| wrong("its answer does not say how long it is"))?;
            let json_size = length("inference-header-content-length").unwrap_or(body_size);
            let status = parsed.code.unwrap_or_default();
            Ok(Some(AnswerHead { status, size, body_size, json_size }))
        }
        Err(_) => Err(wrong("it does not answer by HTTP/1.1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// The answer that a client reads from a server that sends this and closes.
    fn answered(text: &'static str) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut space = [0; 256];
                let size = stream.read(&mut space).unwrap();
                request.extend_from_slice(&space[..size]);
            }
            stream.write_all(text.as_bytes()).unwrap();
            request
        });
        let answer = HttpClient::connect(&authority, &CommandTls::default()).unwrap().get("/x", &["A: b".to_owned()]);
        let request = String::from_utf8(server.join().unwrap()).unwrap();
        assert_eq!(request, format!("GET /x HTTP/1.1\r\nHost: {authority}\r\nA: b\r\n\r\n"));
        answer
            .map(|got| format!("{} {}", got.status, String::from_utf8_lossy(&got.body)))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_data_of_tensors_follows_the_json() {
        let check = |json_size, want: (&str, &str)| {
            let answer = HttpAnswer { status: 200, body: b"{}data".to_vec(), json_size };
            assert_eq!(answer.parts(), (want.0.as_bytes(), want.1.as_bytes()));
        };
        check(2, ("{}", "data"));
        check(6, ("{}data", ""));
        check(7, ("{}data", ""));
        let head = |text: &str| head(text.as_bytes()).unwrap().map(|head| (head.body_size, head.json_size));
        assert_eq!(head("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"), Some((9, 9)));
        let binary = "HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 2\r\nContent-Length: 9\r\n\r\n";
        assert_eq!(head(binary), Some((9, 2)));
    }

    #[test]
    fn an_answer_is_read_to_its_length() {
        assert_eq!(answered("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok and more"), Ok("200 ok".to_owned()));
        let early = "it closed the connection before it answered".to_owned();
        assert_eq!(answered("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"), Err(early.clone()));
        assert_eq!(answered("HTTP/1.1 200 OK\r\n"), Err(early));
        assert_eq!(answered("HTTP/1.1 200 OK\r\n\r\n"), Err("its answer does not say how long it is".to_owned()));
        assert_eq!(answered("SSH-2.0\r\n\r\n"), Err("it does not answer by HTTP/1.1".to_owned()));
    }
}
