//! Runs a case, on a server at an address. It needs nothing of the crate: `tests/trials` tries the cases on any server.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant as Now};

use super::case::{Case, Seen, Want};
use super::frame::{ACK, PREFACE, SETTINGS, frame, parse, ping, settings};

/// A server as the suite sees it.
pub trait Peer {
    /// Sends it bytes. Returns false if it has closed.
    fn send(&mut self, bytes: &[u8]) -> bool;

    /// Bytes that it sent meanwhile; `None` when it has closed.
    fn receive(&mut self) -> Option<Vec<u8>>;
}

/// Time limit for an answer of this server, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// Time after which an answer counts as absent.
const A_LITTLE: Duration = Duration::from_millis(100);

/// Tries a case on a new connection.
pub fn run(case: &Case, peer: &mut dyn Peer, patience: Duration) -> Seen {
    let mut session = Session { peer, seen: Seen::default(), rest: Vec::new(), patience };
    let opening = if case.opening.is_empty() { settings(&[]) } else { case.opening.clone() };
    session.send(&[PREFACE, &opening].concat());
    session.wait(0, |seen| seen.settings().is_some());
    session.send(&frame(SETTINGS, ACK, 0, &[]));
    for (index, part) in case.parts.iter().enumerate() {
        let mark = *b"part...0";
        let mark = [mark[0], mark[1], mark[2], mark[3], mark[4], mark[5], mark[6], b'0' + index as u8];
        session.send(&[part.clone(), ping(&mark)].concat());
        session.wait(index, |seen| seen.has_pong(&mark));
    }
    let last = case.parts.len().saturating_sub(1);
    match &case.want {
        Want::Answers(streams) => session.wait(last, |seen| streams.iter().all(|stream| seen.is_answered(*stream))),
        Want::Stream(stream, _) => session.wait(last, |seen| seen.reset(*stream).is_some() || seen.goaway().is_some()),
        Want::Check(_) => session.wait_a_little(last),
        Want::Connection(_) => {}
    }
    if session.seen.goaway().is_some() && !session.seen.is_closed {
        session.wait(last, |_| false);
    }
    session.seen
}

struct Session<'a> {
    peer: &'a mut dyn Peer,
    seen: Seen,
    rest: Vec<u8>,
    patience: Duration,
}

impl Session<'_> {
    fn send(&mut self, bytes: &[u8]) {
        if !self.seen.is_closed {
            self.peer.send(bytes);
        }
    }

    fn wait(&mut self, part: usize, is_enough: impl Fn(&Seen) -> bool) {
        let start = Now::now();
        while !self.seen.is_closed && !is_enough(&self.seen) && self.may_wait(start, self.patience) {
            if !self.look(part) {
                return;
            }
        }
    }

    /// Waits for events that should not come.
    fn wait_a_little(&mut self, part: usize) {
        let start = Now::now();
        while !self.seen.is_closed && self.may_wait(start, A_LITTLE) {
            if !self.look(part) {
                return;
            }
        }
    }

    /// The state machine answers at once, and is not waited for.
    fn may_wait(&self, start: Now, limit: Duration) -> bool {
        self.patience == Duration::ZERO || start.elapsed() < limit
    }

    /// Returns false if nothing more can come.
    fn look(&mut self, part: usize) -> bool {
        match self.peer.receive() {
            None => self.seen.is_closed = true,
            Some(bytes) if bytes.is_empty() && self.patience == Duration::ZERO => return false,
            Some(bytes) => self.rest.extend_from_slice(&bytes),
        }
        while let Some((frame, size)) = parse(&self.rest) {
            self.rest.drain(..size);
            self.seen.frames.push((part, frame));
        }
        true
    }
}

/// A server at an address, or at the other side of a stream whose reads wait for 20 ms.
pub struct Socket<S = TcpStream>(pub S);

impl Socket {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }
}

impl<S: Read + Write> Socket<S> {
    /// Tries a case.
    pub fn run(mut self, case: &Case, patience: Duration) -> Seen {
        run(case, &mut self, patience)
    }
}

impl<S: Read + Write> Peer for Socket<S> {
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 65_536];
        match self.0.read(&mut bytes) {
            Ok(0) => None,
            Ok(count) => Some(bytes[..count].to_vec()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Some(Vec::new()),
            Err(_) => None,
        }
    }
}
