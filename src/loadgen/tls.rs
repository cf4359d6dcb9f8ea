//! TLS around the protocol of a connection. Pure: records come in and go out; the handshake is done before the first request is
//! sent. The texts of its failures say what to do.

use crate::connection::tls::{TlsClient, TlsClientConfig, TlsClientFault};
use crate::loadgen::exchange::{Exchange, FinishedRequest};
use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::loadgen::request::OutgoingRequest;
use crate::loadgen::target::Protocol;

/// Bytes of plaintext encoded ahead of the socket: as many as an HTTP/2 connection frames ahead.
const PLAIN_SIZE_MAX: usize = 256 * 1024;

/// A connection with TLS around the one of a protocol.
pub struct TlsExchange {
    inner: Box<dyn Exchange>,
    session: TlsClient,
    /// Buffer for the plaintext of received bytes; empty between calls.
    plain: Vec<u8>,
    /// Records to send.
    output: Vec<u8>,
    /// Bytes of `output` that were sent.
    output_at: usize,
}

impl TlsExchange {
    /// A new connection of that protocol.
    pub fn new(config: &TlsClientConfig, inner: Box<dyn Exchange>) -> Self {
        Self { inner, session: TlsClient::new(config), plain: Vec::new(), output: Vec::new(), output_at: 0 }
    }
}

impl Exchange for TlsExchange {
    fn handle_request(&mut self, token: usize, request: &OutgoingRequest) {
        self.inner.handle_request(token, request);
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), RequestFailure> {
        let was_handshaking = self.session.is_handshaking();
        let outcome = self.session.handle_input(bytes, &mut self.plain);
        if !self.plain.is_empty() {
            let handled = self.inner.handle_bytes(&self.plain);
            self.plain.clear();
            handled?;
        }
        outcome.map_err(|fault| failure(&fault, was_handshaking))
    }

    fn handle_end(&mut self) {
        self.inner.handle_end();
    }

    fn handle_cancel(&mut self, token: usize) -> bool {
        self.inner.handle_cancel(token)
    }

    fn poll_finished(&mut self) -> Option<FinishedRequest> {
        self.inner.poll_finished()
    }

    fn poll_output(&mut self) -> Option<&[u8]> {
        if self.output_at == self.output.len() {
            self.output.clear();
            self.output_at = 0;
            while !self.session.is_handshaking() && self.output.len() < PLAIN_SIZE_MAX {
                let Some(plain) = self.inner.poll_output() else { break };
                let part = plain.get(..PLAIN_SIZE_MAX).unwrap_or(plain);
                self.session.encode_plain(part);
                let size = part.len();
                self.inner.handle_sent(size);
                self.session.take_output(&mut self.output);
            }
            self.session.take_output(&mut self.output);
        }
        self.output.get(self.output_at..).filter(|rest| !rest.is_empty())
    }

    fn handle_sent(&mut self, size: usize) {
        self.output_at = self.output.len().min(self.output_at + size);
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }

    fn is_ready(&self) -> bool {
        !self.session.is_handshaking()
    }
}

/// The failure of a connection by a fault of TLS. A server of TLS 1.3 refuses the client's certificate after the handshake of the
/// client.
fn failure(fault: &TlsClientFault, is_handshaking: bool) -> RequestFailure {
    let text = match fault {
        TlsClientFault::Certificate(why) => {
            format!("the server's certificate is invalid: {why}; --insecure accepts it")
        }
        TlsClientFault::CertificateRequired => {
            "the server requires a client certificate: give it with --cert and --key".to_owned()
        }
        TlsClientFault::CertificateRefused => {
            "the server does not accept the client certificate: give one that it trusts with --cert and --key"
                .to_owned()
        }
        TlsClientFault::Expired => {
            "the server's certificate is expired or not yet valid: renew it; --insecure accepts it".to_owned()
        }
        TlsClientFault::NotTls => "the server does not answer by TLS: use http:// or grpc:// at this port".to_owned(),
        TlsClientFault::Other(why) => format!("TLS: {why}"),
        TlsClientFault::Untrusted => {
            "the server's certificate is not trusted: name its authority with --ca=FILE; --insecure trusts any"
                .to_owned()
        }
        TlsClientFault::WrongName(names) => {
            let names = if names.is_empty() { "another name".to_owned() } else { names.join(", ") };
            format!(
                "the server's certificate has another name: ask it by one of its own; --insecure accepts it. It is for {names}"
            )
        }
        TlsClientFault::WrongProtocol => {
            "the server has neither HTTP/1.1 nor gRPC at this port, as was asked (ALPN): see --protocol".to_owned()
        }
    };
    let is_refused = is_handshaking || !matches!(fault, TlsClientFault::NotTls | TlsClientFault::Other(_));
    RequestFailure::new(if is_refused { FailureKind::Connect } else { FailureKind::Malformed }, text)
}

/// Returns the failure of a connection without TLS whose first bytes show that the server has TLS at this port: an alert (RFC 8446
/// §6), or over gRPC an answer of HTTP/1.1, as servers give it to those without TLS.
pub fn missing_tls(first: &[u8], protocol: Protocol) -> Option<RequestFailure> {
    let text = match protocol {
        _ if first.starts_with(&[ALERT_RECORD, 3]) => "the server has TLS at this port: use https:// or grpcs://",
        Protocol::Grpc if first.starts_with(b"HTTP/1") => {
            "the server answers by HTTP/1.1: use -i http, or grpcs:// if it has TLS at this port"
        }
        _ => return None,
    };
    Some(RequestFailure::new(FailureKind::Connect, text))
}

/// The first byte of an alert of TLS.
const ALERT_RECORD: u8 = 0x15;
