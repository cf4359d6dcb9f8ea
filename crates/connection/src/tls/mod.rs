//! One TLS connection as a state machine around rustls: bytes of records in, plaintext out;
//! plaintext in, bytes of records out. Called by the shard, which moves the bytes and bounds the
//! handshake in time. It has no socket and does not know the meaning of the plaintext. Bounded:
//! `TLS_INPUT_SIZE_MAX` bytes of records that are not complete, and the plaintext of those that
//! were read at once.
//!
//! ```text
//! new ─► handshake ──poll_handshake──► open ──close_notify of the client──► half closed (still writes)
//!            │                          │                                        │
//!            └── fault, with its alert ─┴─ encode_end: our close_notify ─────────┴─► no further output
//! ```

mod client;
mod config;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
#[cfg(test)]
mod tests;

use std::fmt;
use std::mem;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{Error, HandshakeKind};

use crate::input::InputBuffer;
use crate::limits::TLS_INPUT_SIZE_MAX;
use base::limits::READ_SIZE;

pub use self::client::{TlsClient, TlsClientConfig, TlsClientFault, TlsServerName, TrustedServers};
pub use self::config::{ALPN_H2, ALPN_HTTP1, TlsConfig, TlsFile, TlsFileFault, TlsPem, WallSeconds, install_provider};
#[cfg(any(test, feature = "fuzz"))]
pub use self::fuzz::fuzz_connection;

/// The first byte of every TLS connection: a record of a handshake (RFC 8446 §5.1). No HTTP begins with it.
pub const HANDSHAKE_RECORD: u8 = 0x16;

/// Bytes that a record has beside its plaintext: its head, its protection and, in TLS 1.2, a nonce.
const RECORD_COST: usize = 64;
/// Bytes of plaintext of one record (RFC 8446 §5.1).
const RECORD_SIZE_MAX: usize = 16 * 1024;

/// Bytes that may wait for those that complete them: at this size the buffer always has room for
/// more.
const MESSAGE_SIZE_MAX: usize = TLS_INPUT_SIZE_MAX / 2;

/// Bytes of plaintext whose records have at most [`READ_SIZE`] bytes.
pub const SMALL_PLAIN_SIZE: usize = READ_SIZE - RECORD_COST;

/// The server's side of a connection. Lives on its shard.
pub struct TlsConnection {
    session: UnbufferedServerConnection,
    /// Records that are not read yet.
    input: InputBuffer,
    /// Plaintext that the caller has not taken yet, from `plain_from` on.
    plain: Vec<u8>,
    plain_from: usize,
    /// True if the client has said that it sends nothing further.
    is_input_ended: bool,
    /// True if we have said so.
    is_output_ended: bool,
    has_failed: bool,
}

/// The outcome of [`TlsConnection::poll_plain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsInput {
    /// Bytes of plaintext, by their count.
    Plain(usize),
    /// The client has said that it sends nothing further.
    End,
    /// More input is needed.
    Wait,
}

/// The reason why a connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFault {
    /// The kind of fault.
    pub kind: TlsFaultKind,
    /// The text for a person.
    pub text: String,
}

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFaultKind {
    /// The client ended it by an alert: it does not trust us, or speaks nothing that we do.
    Alert,
    /// The client has no certificate that we trust.
    Certificate,
    /// No version, cipher suite or protocol is common to both.
    Incompatible,
    /// The bytes are not TLS, or not as they were sent.
    Malformed,
}

/// The output besides that of TLS itself.
#[derive(Clone, Copy)]
enum Outgoing<'a> {
    Nothing,
    Plain(&'a [u8]),
    End,
}

/// The reason why [`TlsConnection::advance`] stops.
enum Advance {
    /// All input was read; a handshake or a record is not complete.
    Blocked,
    /// All input was read and nothing prevents plaintext; the outgoing part is encoded.
    Open,
    /// There is plaintext; more records may follow.
    Plain,
}

impl TlsConnection {
    /// A connection that has just been accepted.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(config: &TlsConfig) -> Result<Self, TlsFault> {
        Ok(Self {
            session: UnbufferedServerConnection::new(config.server()).map_err(|error| TlsFault::from_error(&error))?,
            input: InputBuffer::default(),
            plain: Vec::new(),
            plain_from: 0,
            is_input_ended: false,
            is_output_ended: false,
            has_failed: false,
        })
    }

    /// Returns the space for the next bytes of the client; never empty.
    pub fn input_space(&mut self) -> &mut [u8] {
        self.input.spare(TLS_INPUT_SIZE_MAX)
    }

    /// `count` bytes were written to the front of `input_space`.
    pub fn handle_input(&mut self, count: usize) {
        self.input.commit(count);
    }

    /// The first byte that is not read yet.
    pub fn first_input(&self) -> Option<u8> {
        self.input.pending().first().copied()
    }

    /// Goes on with the handshake as far as the input reaches, and appends its output; returns true
    /// once it is done.
    ///
    /// # Errors
    /// The fault; its alert is appended.
    pub fn poll_handshake(&mut self, out: &mut Vec<u8>) -> Result<bool, TlsFault> {
        while matches!(self.advance(Outgoing::Nothing, out, &mut [])?.0, Advance::Plain) {}
        self.input.shrink();
        Ok(!self.session.is_handshaking())
    }

    /// Takes plaintext into `space`, and appends the output of TLS meanwhile.
    ///
    /// # Errors
    /// The fault; its alert is appended.
    pub fn poll_plain(&mut self, space: &mut [u8], out: &mut Vec<u8>) -> Result<TlsInput, TlsFault> {
        loop {
            let count = self.take_plain(space);
            if count > 0 {
                return Ok(TlsInput::Plain(count));
            }
            if self.is_input_ended {
                return Ok(TlsInput::End);
            }
            let (advance, count) = self.advance(Outgoing::Nothing, out, space)?;
            if count > 0 {
                return Ok(TlsInput::Plain(count));
            }
            if !matches!(advance, Advance::Plain) && !self.is_input_ended {
                self.input.shrink();
                return Ok(TlsInput::Wait);
            }
        }
    }

    /// Appends the records of some plaintext.
    ///
    /// # Errors
    /// If the connection has failed, or its keys are used up.
    pub fn encode_plain(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsFault> {
        if plain.is_empty() {
            return Ok(());
        }
        self.encode(Outgoing::Plain(plain), out)
    }

    /// Appends the end of our output (close_notify), once. All plaintext to send must be encoded
    /// before.
    pub fn encode_end(&mut self, out: &mut Vec<u8>) {
        if !mem::replace(&mut self.is_output_ended, true) && !self.has_failed {
            // If this fails, no client would read it.
            let _ = self.encode(Outgoing::End, out);
        }
    }

    /// Returns true if the handshake resumed an earlier session.
    pub fn is_resumed(&self) -> bool {
        self.session.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Returns true if client and server agreed on HTTP/2 by ALPN.
    pub fn has_negotiated_h2(&self) -> bool {
        self.session.alpn_protocol() == Some(ALPN_H2)
    }

    /// Returns the bytes of memory held for input.
    pub fn held_size(&self) -> usize {
        self.input.held_size().saturating_add(self.plain.capacity())
    }

    fn encode(&mut self, outgoing: Outgoing<'_>, out: &mut Vec<u8>) -> Result<(), TlsFault> {
        loop {
            match self.advance(outgoing, out, &mut [])?.0 {
                Advance::Open => return Ok(()),
                Advance::Plain => {}
                Advance::Blocked => return Err(TlsFault::malformed("the handshake is not done")),
            }
        }
    }

    /// Lets rustls read its input up to the next plaintext or the end, and send. The plaintext goes
    /// into `space`, the part without room there into `self.plain`. Returns the number of bytes
    /// that went into `space`.
    fn advance(
        &mut self,
        outgoing: Outgoing<'_>,
        out: &mut Vec<u8>,
        space: &mut [u8],
    ) -> Result<(Advance, usize), TlsFault> {
        let mut filled = 0;
        while !self.has_failed {
            let UnbufferedStatus { mut discard, state } = self.session.process_tls_records(self.input.pending_mut());
            let mut stop = None;
            match state {
                Ok(ConnectionState::EncodeTlsData(mut said)) => append(out, 0, |space| match said.encode(space) {
                    Err(EncodeError::InsufficientSize(needed)) => Err(needed.required_size),
                    outcome => Ok(outcome.unwrap_or(0)),
                }),
                Ok(ConnectionState::TransmitTlsData(said)) => said.done(),
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        discard += record.discard;
                        filled += deliver(record.payload, space.get_mut(filled..).unwrap_or_default(), &mut self.plain);
                    }
                    stop = Some(Ok(Advance::Plain));
                }
                Ok(ConnectionState::PeerClosed) => self.is_input_ended = true,
                Ok(ConnectionState::WriteTraffic(mut writer)) => {
                    stop = Some(write(outgoing, &mut writer, out).map(|()| Advance::Open));
                }
                Ok(ConnectionState::Closed | ConnectionState::BlockedHandshake) => stop = Some(Ok(Advance::Blocked)),
                // Early data is not offered.
                Ok(_) => stop = Some(Err(TlsFault::malformed("the client sent early data"))),
                Err(error) => stop = Some(Err(TlsFault::from_error(&error))),
            }
            self.input.consume(discard);
            let is_plain = matches!(stop, Some(Ok(Advance::Plain)));
            if stop.is_some() && !is_plain && self.input.pending().len() > MESSAGE_SIZE_MAX {
                stop = Some(Err(TlsFault::malformed("the client sent a message that is too large")));
            }
            match stop {
                None => {}
                Some(Ok(advance)) => return Ok((advance, filled)),
                Some(Err(fault)) => {
                    self.fail(out);
                    return Err(fault);
                }
            }
        }
        Err(TlsFault::malformed("the connection has failed before"))
    }

    /// Appends the alert; nothing is read or sent from now on.
    fn fail(&mut self, out: &mut Vec<u8>) {
        // Only while it has output: after that rustls would read on, find the same fault and send
        // its alert once more.
        while self.session.wants_write()
            && let Ok(state) = self.session.process_tls_records(self.input.pending_mut()).state
        {
            match state {
                ConnectionState::EncodeTlsData(mut said) => append(out, 0, |space| match said.encode(space) {
                    Err(EncodeError::InsufficientSize(needed)) => Err(needed.required_size),
                    outcome => Ok(outcome.unwrap_or(0)),
                }),
                ConnectionState::TransmitTlsData(said) => said.done(),
                _ => break,
            }
        }
        self.has_failed = true;
        self.input = InputBuffer::default();
        (self.plain, self.plain_from) = (Vec::new(), 0);
    }

    fn take_plain(&mut self, space: &mut [u8]) -> usize {
        let rest = self.plain.get(self.plain_from..).unwrap_or_default();
        let count = rest.len().min(space.len());
        if let (Some(space), Some(rest)) = (space.get_mut(..count), rest.get(..count)) {
            space.copy_from_slice(rest);
        }
        self.plain_from += count;
        if self.plain_from == self.plain.len() && self.plain_from > 0 {
            (self.plain, self.plain_from) = (Vec::new(), 0);
        }
        count
    }
}

/// Copies plaintext into `space`, and the part without room there into `plain`; returns the bytes
/// in `space`.
fn deliver(payload: &[u8], space: &mut [u8], plain: &mut Vec<u8>) -> usize {
    // Keeps the order: waiting plaintext is before new plaintext.
    let count = if plain.is_empty() { payload.len().min(space.len()) } else { 0 };
    let (now, later) = payload.split_at(count);
    if let Some(space) = space.get_mut(..count) {
        space.copy_from_slice(now);
    }
    plain.extend_from_slice(later);
    count
}

fn write<D>(
    outgoing: Outgoing<'_>,
    writer: &mut rustls::unbuffered::WriteTraffic<'_, D>,
    out: &mut Vec<u8>,
) -> Result<(), TlsFault> {
    let mut is_exhausted = false;
    let mut sized = |outcome: Result<usize, EncryptError>| match outcome {
        Ok(count) => Ok(count),
        Err(EncryptError::InsufficientSize(needed)) => Err(needed.required_size),
        Err(EncryptError::EncryptExhausted) => {
            is_exhausted = true;
            Ok(0)
        }
    };
    match outgoing {
        Outgoing::Nothing => {}
        Outgoing::Plain(plain) => {
            let records = plain.len() / RECORD_SIZE_MAX + 1;
            append(out, plain.len() + records * RECORD_COST, |space| sized(writer.encrypt(plain, space)));
        }
        Outgoing::End => append(out, RECORD_COST, |space| sized(writer.queue_close_notify(space))),
    }
    if is_exhausted { Err(TlsFault::malformed("the keys of the connection are used up")) } else { Ok(()) }
}

/// Appends the output of `encode`, which returns the number of bytes, or the number that it needs.
fn append(out: &mut Vec<u8>, guess: usize, mut encode: impl FnMut(&mut [u8]) -> Result<usize, usize>) {
    let (from, mut size) = (out.len(), guess);
    loop {
        out.resize(from + size, 0);
        match encode(out.get_mut(from..).unwrap_or_default()) {
            Ok(count) => return out.truncate(from + count),
            Err(needed) => size = needed.max(size + 1),
        }
    }
}

impl TlsFault {
    fn malformed(text: &str) -> Self {
        Self { kind: TlsFaultKind::Malformed, text: text.to_owned() }
    }

    fn from_error(error: &Error) -> Self {
        let kind = match error {
            Error::AlertReceived(_) => TlsFaultKind::Alert,
            Error::NoCertificatesPresented | Error::InvalidCertificate(_) => TlsFaultKind::Certificate,
            Error::NoApplicationProtocol | Error::PeerIncompatible(_) => TlsFaultKind::Incompatible,
            _ => TlsFaultKind::Malformed,
        };
        Self { kind, text: error.to_string() }
    }
}

impl fmt::Display for TlsFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}
