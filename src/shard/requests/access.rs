//! The access log of a shard: the choice of the requests that it shows, and the record of one from
//! its bytes to its answer. The line is formatted and written on the log's thread. Off, a request
//! costs two branches.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use crate::limits::ACCESS_TEXT_SIZE_MAX;
use crate::log::{self, AccessLine, Severity};
use crate::protocol::keys::KeyClient;
use crate::runtime::clock;
use crate::runtime::socket::ByteStream;
use crate::shard::Shard;
use crate::shard::models::model_table::LocalModel;
use crate::shard::requests::admission::AdmittedRequest;
use crate::time::Instant;
use crate::wire::message::{Message, Method, Reply};

/// nginx's status for a client that closed its request.
const CLIENT_LEFT: u16 = 499;
/// gRPC's CANCELLED.
const CANCELLED: u16 = 1;

/// Samples requests at random: clients that ask in a rhythm must not be shown always or never.
#[derive(Default)]
pub struct AccessSampler {
    per_million: u64,
    /// The state of a xorshift generator.
    state: Cell<u64>,
}

impl AccessSampler {
    /// A sampler that takes `per_million` requests of a million, for the shard with this index.
    pub fn new(per_million: u32, shard: usize) -> Self {
        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(shard as u64 + 1);
        Self { per_million: u64::from(per_million), state: Cell::new(seed) }
    }

    /// Returns true if any request may be shown.
    pub const fn is_on(&self) -> bool {
        self.per_million > 0
    }

    /// The peer of a socket, if any request may be shown.
    pub fn peer(&self, socket: &impl ByteStream) -> Option<SocketAddr> {
        if self.is_on() { socket.peer() } else { None }
    }

    /// Returns true if the next request is shown.
    fn take(&self) -> bool {
        if !self.is_on() {
            return false;
        }
        let mut state = self.state.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.state.set(state);
        (state >> 32) * 1_000_000 < self.per_million << 32
    }
}

/// The record of one request, without a line if the access log does not show it, and the client that pays for its tokens. The line is written when
/// the last of its clones is dropped; without an answer until then, the client has left.
#[derive(Clone)]
pub struct AccessEntry {
    open: Option<Rc<RefCell<OpenRequest>>>,
    /// The client, if the tokens of its texts have a rate.
    payer: OnceCell<Arc<KeyClient>>,
}

/// The line of a request that is not answered yet.
struct OpenRequest {
    line: AccessLine,
    received: Instant,
    is_settled: bool,
}

impl AccessEntry {
    /// A message over HTTP was received.
    pub fn of_http(shard: &Shard, message: &Message, received: Instant, peer: Option<SocketAddr>) -> Self {
        if log::is_verbose() {
            // tritonserver's words and numbers.
            let number = match message.method {
                Method::Get => 0,
                Method::Head => 1,
                Method::Post => 2,
                Method::Delete => 4,
                Method::Other => 16,
            };
            let path = String::from_utf8_lossy(&message.path);
            log::unlimited(Severity::Verbose, &format!("HTTP request: {number} {path}"));
        }
        let method = match message.method {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Delete => "DELETE",
            Method::Other => "-",
        };
        let request = || format!("{method} {}", text(&message.path));
        Self::new(shard, "http", CLIENT_LEFT, request, message.body.len(), received, peer)
    }

    /// A message of an RPC was received, of `size` bytes; `path` is that of the RPC.
    pub fn of_grpc(
        shard: &Shard,
        path: impl Fn() -> Vec<u8>,
        size: usize,
        received: Instant,
        peer: Option<SocketAddr>,
    ) -> Self {
        if log::is_verbose() {
            log::unlimited(Severity::Verbose, &format!("gRPC request: {}", String::from_utf8_lossy(&path())));
        }
        Self::new(shard, "grpc", CANCELLED, || text(&path()), size, received, peer)
    }

    fn new(
        shard: &Shard,
        protocol: &'static str,
        status: u16,
        request: impl FnOnce() -> String,
        bytes_in: usize,
        received: Instant,
        peer: Option<SocketAddr>,
    ) -> Self {
        let open = || {
            let line = AccessLine { protocol, request: request(), status, bytes_in, peer, ..AccessLine::default() };
            Rc::new(RefCell::new(OpenRequest { line, received, is_settled: false }))
        };
        Self { open: shard.requests.access.take().then(open), payer: OnceCell::new() }
    }

    /// Returns true if the access log shows the request.
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The model and version that the client asks for, and the request's id as far as it is known.
    pub fn note_asked(&self, model: &str, version: Option<u64>, id: &str) {
        if let Some(open) = &self.open {
            let line = &mut open.borrow_mut().line;
            line.version = version;
            line.model = text(model.as_bytes());
            line.id = text(id.as_bytes());
        }
    }

    /// The model version that runs the request, and the request's id.
    pub fn note_model(&self, model: &LocalModel, id: &str) {
        let served = model.served();
        self.note_asked(&served.spec.name, Some(served.version), id);
    }

    /// The client of the request, if clients have keys.
    pub fn note_client(&self, admission: &AdmittedRequest) {
        if let Some(payer) = admission.payer() {
            self.payer.get_or_init(|| Arc::clone(payer));
        }
        if let (Some(open), Some(name)) = (&self.open, admission.client_name()) {
            name.clone_into(&mut open.borrow_mut().line.client);
        }
    }

    /// The client of the request, if the tokens of its texts have a rate.
    pub fn payer(&self) -> Option<Arc<KeyClient>> {
        self.payer.get().cloned()
    }

    /// A response of `size` bytes was sent.
    pub fn note_sent(&self, size: usize) {
        if let Some(open) = &self.open {
            open.borrow_mut().line.bytes_out += size;
        }
    }

    /// The request was answered with this status.
    pub fn settle(&self, status: u16) {
        if let Some(open) = &self.open {
            let mut open = open.borrow_mut();
            open.line.status = status;
            open.settle();
        }
    }

    /// The request was answered with this reply.
    pub fn settle_http(&self, reply: Option<&Reply>) {
        if let Some(reply) = reply {
            self.note_sent(reply.body.iter().map(bytes::Bytes::len).sum());
            self.settle(reply.status);
        }
    }
}

impl OpenRequest {
    fn settle(&mut self) {
        self.is_settled = true;
        self.line.duration = clock::now().since(self.received);
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if !self.is_settled {
            self.settle();
        }
        log::access(Box::new(std::mem::take(&mut self.line)));
    }
}

/// A client's text, cut to the space that a line has for it.
fn text(bytes: &[u8]) -> String {
    let cut = bytes.get(..ACCESS_TEXT_SIZE_MAX);
    let mut text = String::from_utf8_lossy(cut.unwrap_or(bytes)).into_owned();
    if cut.is_some_and(|cut| cut.len() < bytes.len()) {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_requests_are_shown_as_asked_for_in_no_rhythm() {
        for (per_million, least, most) in
            [(0, 0, 0), (1_000_000, 100_000, 100_000), (10_000, 800, 1_200), (500_000, 49_000, 51_000)]
        {
            let sampler = AccessSampler::new(per_million, 3);
            let taken: Vec<_> = (0..100_000).map(|_| sampler.take()).collect();
            let count = taken.iter().filter(|taken| **taken).count();
            assert!((least..=most).contains(&count), "{per_million}: {count}");
            let even = taken.iter().step_by(2).filter(|taken| **taken).count();
            assert!(even.abs_diff(count / 2) <= most / 20, "{per_million}: {even} of {count}");
        }
    }

    #[test]
    fn a_clients_text_is_cut() {
        assert_eq!(text(b"abc"), "abc");
        assert_eq!(text(&[b'a'; ACCESS_TEXT_SIZE_MAX]).len(), ACCESS_TEXT_SIZE_MAX);
        let long = text(&[b'a'; ACCESS_TEXT_SIZE_MAX + 1]);
        assert!(long.starts_with("aaa") && long.ends_with("a…"), "{long}");
        assert_eq!(text(b"\xff"), "\u{fffd}");
    }
}
