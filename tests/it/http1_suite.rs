//! A suite of raw HTTP/1.1 cases by RFC 9110 and RFC 9112: the bytes of a client, the expected answers, and the fate of
//! the connection. The cases are in `http1/cases.rs`; a transport is a function that opens a stream. The case count is
//! printed as `N/N`.

#[path = "http1/cases.rs"]
mod cases;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

/// Time that the suite waits for an answer, and silence after which a connection counts as waiting.
const ANSWER_MAX: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_millis(100);
/// Asks a connection that should still be open, and is the last on it.
const SENTINEL: &[u8] = b"GET /v2/health/live HTTP/1.1\r\nHost: sentinel\r\nConnection: close\r\n\r\n";

/// A connection over any transport. A read returns an error if nothing comes in the set time.
pub trait RawStream: Read + Write {
    /// Sets how long a read waits.
    fn set_wait(&mut self, wait: Duration);
    /// Closes the sending side.
    fn end_sending(&mut self);
}

impl RawStream for TcpStream {
    fn set_wait(&mut self, wait: Duration) {
        self.set_read_timeout(Some(wait)).unwrap();
    }

    fn end_sending(&mut self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// A connection without TLS.
pub fn plain(address: SocketAddr) -> Box<dyn RawStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    Box::new(stream)
}

/// One case. `want` lists the statuses of the answers, each followed by `h` if it has no body because the method is
/// HEAD, and then the fate of the connection: `open`, `close`, or `waits` for an incomplete request. `!` in a request
/// sends the bytes so far and awaits an interim answer; `$` at its end closes the sending side.
pub struct Case {
    pub clause: &'static str,
    pub name: String,
    pub request: Vec<u8>,
    pub want: String,
}

/// Runs all cases, each sent at once and in small pieces. Returns the names of the failed ones, with the observations,
/// and the number of all.
pub fn run(open: &dyn Fn() -> Box<dyn RawStream>) -> (Vec<String>, usize) {
    let cases = cases::all();
    let mut failures = Vec::new();
    for case in &cases {
        for piece_size in [usize::MAX, 7] {
            if piece_size < case.request.len() && case.request.len() > 4_096 {
                continue;
            }
            let seen = attempt(open(), case, piece_size);
            if seen.as_ref() != Ok(&case.want) {
                let request = case.request.escape_ascii().to_string();
                let request: String = request.chars().take(300).collect();
                let (clause, name, want) = (case.clause, &case.name, &case.want);
                failures.push(format!("{clause}, {name}: wanted {want}, saw {seen:?}\n    {request}"));
                break;
            }
        }
    }
    (failures, cases.len())
}

fn attempt(mut stream: Box<dyn RawStream>, case: &Case, piece_size: usize) -> Result<String, String> {
    let (request, is_ended) = match case.request.strip_suffix(b"$") {
        Some(request) => (request, true),
        None => (&case.request[..], false),
    };
    let mut input = Vec::new();
    stream.set_wait(ANSWER_MAX);
    for (index, part) in request.split(|byte| *byte == b'!').enumerate() {
        if index > 0 {
            read_until(&mut *stream, &mut input, |input| input.ends_with(b"\r\n\r\n"))?;
        }
        for piece in part.chunks(piece_size) {
            // The server may have refused the request and closed already.
            if stream.write_all(piece).and_then(|()| stream.flush()).is_err() {
                break;
            }
        }
    }
    if is_ended {
        stream.end_sending();
    }
    if case.want.ends_with("waits") {
        stream.set_wait(SILENCE);
        let read = stream.read(&mut [0; 100]);
        let is_silent = read.as_ref().err().is_some_and(is_timeout);
        return if is_silent { Ok("waits".to_owned()) } else { Err(format!("it does not wait: {read:?}")) };
    }
    let is_open = case.want.ends_with("open");
    if is_open {
        let _ = stream.write_all(SENTINEL).and_then(|()| stream.flush());
    }
    read_until(&mut *stream, &mut input, |_| false)?;
    let mut answers = parse(&input, &case.want)?;
    if is_open {
        match answers.pop() {
            Some(last) if last.status == 200 && last.says_close => {}
            last => return Err(format!("the connection was not open: {last:?} after {answers:?}")),
        }
    }
    let mut seen = String::new();
    for (index, answer) in answers.iter().enumerate() {
        let is_last = !is_open && index + 1 == answers.len();
        if answer.says_close != is_last && !is_ended {
            return Err(format!("Connection: close is wrong in {answer:?}"));
        }
        if answer.status == 405 && !answer.has_allow {
            return Err("405 without Allow (RFC 9110 §15.5.6)".to_owned());
        }
        seen.push_str(&format!("{}{} ", answer.status, if answer.is_head { "h" } else { "" }));
    }
    Ok(seen + if is_open { "open" } else { "close" })
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Reads until `is_enough` or the end.
fn read_until(
    stream: &mut dyn RawStream,
    input: &mut Vec<u8>,
    is_enough: impl Fn(&[u8]) -> bool,
) -> Result<(), String> {
    let mut piece = [0; 16 * 1024];
    while !is_enough(input) {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => input.extend_from_slice(&piece[..count]),
            // A client that still sends behind the last request may be reset, once it has the answers.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(format!("{error} after {:?}", input.escape_ascii().to_string())),
        }
    }
    Ok(())
}

/// An answer, as far as the suite looks at it.
#[derive(Debug)]
struct Answer {
    status: u16,
    is_head: bool,
    says_close: bool,
    has_allow: bool,
}

/// Takes the input apart; the answers that `want` marks have no body.
fn parse(mut input: &[u8], want: &str) -> Result<Vec<Answer>, String> {
    let heads: Vec<bool> = want.split(' ').map(|token| token.ends_with('h')).collect();
    let mut answers = Vec::new();
    while !input.is_empty() {
        let wrong = |what: &str| format!("{what}: {:?}", input.escape_ascii().to_string());
        let end = input.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(|| wrong("no head"))?;
        let head = str::from_utf8(&input[..end]).map_err(|_| wrong("no text"))?;
        input = &input[end + 4..];
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default();
        let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|text| text.parse().ok());
        let status: u16 = status.ok_or_else(|| wrong(line))?;
        let fields: Vec<(String, &str)> = lines
            .map(|line| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value)).ok_or(line))
            .collect::<Result<_, _>>()?;
        let field = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        let is_head = heads.get(answers.len()).copied().unwrap_or(false);
        let length: Option<usize> = field("content-length").and_then(|value| value.parse().ok());
        if status >= 200 && !is_head {
            let length = length.ok_or_else(|| format!("no Content-Length in {head:?}"))?;
            input = input.get(length..).ok_or("a body is cut off")?;
        }
        let (says_close, has_allow) = (field("connection") == Some("close"), field("allow").is_some());
        answers.push(Answer { status, is_head, says_close, has_allow });
    }
    Ok(answers)
}

#[test]
fn every_case_is_answered_as_the_rfcs_say() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let (failures, count) = run(&|| plain(server.http()));
    println!("{}/{count}", count - failures.len());
    assert!(count >= 150, "{count} cases");
    assert!(failures.is_empty(), "{}/{count}\n{}", count - failures.len(), failures.join("\n"));
}
