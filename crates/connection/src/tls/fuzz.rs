//! Checks the properties that must hold for any bytes on a TLS connection. Called by the fuzz
//! target, and by tests that replay its corpus. The same bytes in any pieces give the same
//! plaintext and the same fault. With a real client at the other end, the plaintext comes out as it
//! was sent, up to the place where it was tampered with; memory stays within its bound, and after a
//! fault nothing comes.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore};

use crate::limits::TLS_INPUT_SIZE_MAX;
use crate::tls::config::WallTime;
use crate::tls::{ALPN_H2, ALPN_HTTP1, TlsConfig, TlsConnection, TlsFault, TlsInput, TlsPem};
use base::limits::READ_SIZE;

/// Public with the source: of tests alone.
const CERTIFICATE: &[u8] = include_bytes!("../../../../tests/tls/server.pem");
const KEY: &[u8] = include_bytes!("../../../../tests/tls/server.key");
const AUTHORITY: &[u8] = include_bytes!("../../../../tests/tls/authority.pem");

/// New keys that a client asks for in a connection: as many as rustls allows without data between, and takes more for an attack.
const KEY_UPDATES_MAX: u32 = 32;

/// A time within the validity of the tests' certificates.
const WALL: u64 = 2_000_000_000;

/// Panics if an invariant does not hold for the bytes of a client, or for the acts of one that they
/// describe.
pub fn fuzz_connection(input: &[u8]) {
    let config = server_config();
    let whole = transcript(&config, input, usize::MAX);
    assert_eq!(whole, transcript(&config, input, 1), "byte by byte as in one piece");
    assert_eq!(whole, transcript(&config, input, 61), "in pieces as in one");
    let mut acts = input.iter().copied();
    let mut pair = Pair::new(&config, acts.next().unwrap_or(0));
    while let Some(act) = acts.next() {
        pair.act(act, &mut acts);
    }
    pair.finish();
}

/// The plaintext and the fault that a server makes of raw bytes. Its own output is random.
fn transcript(config: &TlsConfig, mut input: &[u8], piece_size: usize) -> String {
    let mut server = Server::new(config);
    let mut text = String::new();
    while !input.is_empty() && server.fault.is_none() {
        let (piece, rest) = input.split_at(piece_size.min(input.len()));
        input = rest;
        server.receive(piece);
    }
    let _ = write!(text, "{:?} {:?}", server.plain, server.fault);
    text
}

/// The configuration of the server of the tests.
pub(super) fn server_config() -> TlsConfig {
    let pem = TlsPem { certificate: CERTIFICATE, key: KEY, client_roots: None };
    TlsConfig::new(&pem, &[ALPN_H2, ALPN_HTTP1], || WALL).expect("the files of the tests are in order")
}

/// A client that trusts it.
pub(super) fn client_config(version: ProtocolVersion) -> ClientConfig {
    let versions = match version {
        ProtocolVersion::TLSv1_2 => &rustls::version::TLS12,
        _ => &rustls::version::TLS13,
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(AUTHORITY).flatten());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_details(provider, Arc::new(WallTime(|| WALL)));
    let builder = builder.with_protocol_versions(&[versions]);
    builder.expect("the provider has both versions").with_root_certificates(roots).with_no_client_auth()
}

/// The machine and its output.
pub(super) struct Server {
    pub(super) connection: TlsConnection,
    pub(super) out: Vec<u8>,
    pub(super) plain: Vec<u8>,
    pub(super) fault: Option<TlsFault>,
    pub(super) has_ended: bool,
    pub(super) is_open: bool,
}

impl Server {
    pub(super) fn new(config: &TlsConfig) -> Self {
        let connection = TlsConnection::new(config).expect("there are random numbers");
        Self { connection, out: Vec::new(), plain: Vec::new(), fault: None, has_ended: false, is_open: false }
    }

    /// Takes bytes of the client, and all plaintext in them.
    pub(super) fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.fault.is_none() {
            let space = self.connection.input_space();
            assert!(!space.is_empty(), "what was read makes room");
            let (now, later) = bytes.split_at(bytes.len().min(space.len()));
            if let Some(space) = space.get_mut(..now.len()) {
                space.copy_from_slice(now);
            }
            self.connection.handle_input(now.len());
            bytes = later;
            if let Err(fault) = self.read() {
                assert!(self.connection.poll_plain(&mut [0; 8], &mut Vec::new()).is_err(), "a fault is the end");
                assert!(self.connection.encode_plain(b"x", &mut Vec::new()).is_err(), "a fault is the end");
                self.fault = Some(fault);
            }
            let held_size_max = TLS_INPUT_SIZE_MAX + READ_SIZE * 8;
            assert!(self.connection.held_size() <= held_size_max, "{} bytes are held", self.connection.held_size());
        }
    }

    fn read(&mut self) -> Result<(), TlsFault> {
        if !self.is_open {
            self.is_open = self.connection.poll_handshake(&mut self.out)?;
            if !self.is_open {
                return Ok(());
            }
        }
        // Small: records are longer than this.
        let mut space = [0; 7];
        loop {
            match self.connection.poll_plain(&mut space, &mut self.out)? {
                TlsInput::Plain(count) => self.plain.extend_from_slice(space.get(..count).unwrap_or_default()),
                TlsInput::End => {
                    self.has_ended = true;
                    return Ok(());
                }
                TlsInput::Wait => return Ok(()),
            }
        }
    }
}

/// A server and rustls' client, with a wire in between that may be tampered with.
struct Pair {
    server: Server,
    client: ClientConnection,
    client_plain: Vec<u8>,
    client_sent: Vec<u8>,
    server_sent: Vec<u8>,
    has_client_ended: bool,
    has_server_ended: bool,
    is_tampered: bool,
    key_updates: u32,
    piece_size: usize,
}

impl Pair {
    fn new(config: &TlsConfig, kind: u8) -> Self {
        let version = if kind & 1 == 0 { ProtocolVersion::TLSv1_3 } else { ProtocolVersion::TLSv1_2 };
        let name = ServerName::try_from("localhost").expect("it is a name");
        let client = ClientConnection::new(Arc::new(client_config(version)), name).expect("there are random numbers");
        Self {
            server: Server::new(config),
            client,
            client_plain: Vec::new(),
            client_sent: Vec::new(),
            server_sent: Vec::new(),
            has_client_ended: false,
            has_server_ended: false,
            is_tampered: false,
            key_updates: 0,
            piece_size: usize::from(kind >> 1).max(1) * 8,
        }
    }

    fn act(&mut self, act: u8, acts: &mut impl Iterator<Item = u8>) {
        let size = usize::from(acts.next().unwrap_or(0));
        match act % 8 {
            0 | 1 if !self.has_client_ended => {
                let bytes: Vec<u8> = (0..size * 97).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
                // It takes as much as its buffer has room for.
                let count = self.client.writer().write(&bytes).unwrap_or(0);
                self.client_sent.extend_from_slice(bytes.get(..count).unwrap_or_default());
            }
            2 | 3 if self.server.is_open && !self.has_server_ended && self.server.fault.is_none() => {
                let bytes: Vec<u8> = (0..size * 97).map(|at| u8::try_from(at % 241).unwrap_or(0)).collect();
                self.server.connection.encode_plain(&bytes, &mut self.server.out).expect("an open connection sends");
                self.server_sent.extend_from_slice(&bytes);
            }
            4 if self.server.is_open => {
                self.client.send_close_notify();
                self.has_client_ended = true;
            }
            5 if self.server.is_open => {
                self.server.connection.encode_end(&mut self.server.out);
                self.has_server_ended = true;
            }
            // TLS 1.3 has new keys whenever one side wants.
            6 if self.key_updates < KEY_UPDATES_MAX => {
                self.key_updates += 1;
                drop(self.client.refresh_traffic_keys());
            }
            7 => return self.deliver(Some(size)),
            _ => {}
        }
        self.deliver(None);
    }

    /// Carries the output of each side to the other; `tamper` changes a byte of the client's.
    fn deliver(&mut self, tamper: Option<usize>) {
        let mut tamper = tamper;
        loop {
            let mut bytes = Vec::new();
            while self.client.wants_write() {
                let _ = self.client.write_tls(&mut bytes);
            }
            if let Some(at) = tamper.take()
                && !bytes.is_empty()
            {
                let at = at % bytes.len();
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1);
                self.is_tampered = true;
            }
            for piece in bytes.chunks(self.piece_size) {
                self.server.receive(piece);
            }
            let out = std::mem::take(&mut self.server.out);
            if bytes.is_empty() && out.is_empty() {
                return;
            }
            let mut rest = &out[..];
            while !rest.is_empty()
                && self.client.read_tls(&mut rest).is_ok()
                && self.client.process_new_packets().is_ok()
            {
                let _ = self.client.reader().read_to_end(&mut self.client_plain);
            }
        }
    }

    fn finish(mut self) {
        self.deliver(None);
        assert!(self.client_sent.starts_with(&self.server.plain), "nothing comes out that was not sent");
        assert!(self.server_sent.starts_with(&self.client_plain), "nothing is sent that was not meant");
        if self.is_tampered {
            return;
        }
        assert_eq!(self.server.fault, None);
        assert_eq!(self.server.plain, self.client_sent);
        assert_eq!(self.client_plain, self.server_sent);
        assert_eq!(self.server.has_ended, self.has_client_ended, "the end is the client's word alone");
    }
}
