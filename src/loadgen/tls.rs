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
    protocol: Protocol,
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
    pub fn new(config: &TlsClientConfig, protocol: Protocol, inner: Box<dyn Exchange>) -> Self {
        let session = TlsClient::new(config);
        Self { inner, protocol, session, plain: Vec::new(), output: Vec::new(), output_at: 0 }
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
        outcome.map_err(|fault| failure(&fault, self.protocol, was_handshaking))
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
fn failure(fault: &TlsClientFault, protocol: Protocol, is_handshaking: bool) -> RequestFailure {
    let is_refused = is_handshaking || !matches!(fault, TlsClientFault::NotTls | TlsClientFault::Other(_));
    let kind = if is_refused { FailureKind::Connect } else { FailureKind::Malformed };
    RequestFailure::new(kind, fault_text(fault, protocol))
}

/// A fault of TLS for a person, with the flag or the address that avoids it.
pub fn fault_text(fault: &TlsClientFault, protocol: Protocol) -> String {
    match fault {
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
        TlsClientFault::NotTls => {
            let scheme = if protocol == Protocol::Http { "http" } else { "grpc" };
            format!("the server does not answer by TLS: use {scheme}:// at this port")
        }
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
            let version = if protocol == Protocol::Http { "HTTP/1.1" } else { "HTTP/2" };
            format!("the server does not offer {version} at this port (ALPN): name another port with --url")
        }
    }
}

/// Returns the failure of a connection without TLS whose first bytes show that the server has TLS at this port: an alert (RFC 8446
/// §6), or over gRPC an answer of HTTP/1.1, as servers give it to those without TLS.
pub fn missing_tls(first: &[u8], protocol: Protocol) -> Option<RequestFailure> {
    let text = match protocol {
        Protocol::Http if first.starts_with(&ALERT) => "the server has TLS at this port: use https://",
        Protocol::Grpc if first.starts_with(&ALERT) => "the server has TLS at this port: use grpcs://",
        Protocol::Grpc if first.starts_with(b"HTTP/1") => {
            "the server answers by HTTP/1.1: use -i http, or grpcs:// if it has TLS at this port"
        }
        _ => return None,
    };
    Some(RequestFailure::new(FailureKind::Connect, text))
}

/// The first bytes of an alert of TLS: its kind of record, and the version's first part.
const ALERT: [u8; 2] = [0x15, 3];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_told_with_its_cure() {
        let check = |fault: TlsClientFault, protocol, want: &str| {
            let text = fault_text(&fault, protocol);
            assert!(text.contains(want), "{fault:?}: {text}");
        };
        let names = || vec!["a".to_owned(), "b".to_owned()];
        check(TlsClientFault::Certificate("why".to_owned()), Protocol::Http, "invalid: why; --insecure accepts it");
        check(TlsClientFault::CertificateRequired, Protocol::Http, "give it with --cert and --key");
        check(TlsClientFault::CertificateRefused, Protocol::Http, "one that it trusts with --cert and --key");
        check(TlsClientFault::Expired, Protocol::Http, "renew it; --insecure accepts it");
        check(TlsClientFault::NotTls, Protocol::Http, "use http:// at this port");
        check(TlsClientFault::NotTls, Protocol::Grpc, "use grpc:// at this port");
        check(TlsClientFault::Other("why".to_owned()), Protocol::Http, "TLS: why");
        check(TlsClientFault::Untrusted, Protocol::Http, "name its authority with --ca=FILE; --insecure trusts any");
        check(TlsClientFault::WrongName(names()), Protocol::Http, "It is for a, b");
        check(TlsClientFault::WrongName(Vec::new()), Protocol::Http, "It is for another name");
        check(TlsClientFault::WrongProtocol, Protocol::Http, "does not offer HTTP/1.1 at this port (ALPN)");
        let missing = |first: &[u8], protocol| missing_tls(first, protocol).map(|failure| failure.to_string());
        assert!(missing(&[0x15, 3, 3, 0, 2], Protocol::Http).unwrap().ends_with("at this port: use https://"));
        assert!(missing(&[0x15, 3], Protocol::Grpc).unwrap().ends_with("at this port: use grpcs://"));
        assert!(missing(b"HTTP/1.1 400", Protocol::Grpc).unwrap().contains("or grpcs:// if it has TLS"));
        assert_eq!(missing(b"HTTP/1.1 400", Protocol::Http), None);
        check(TlsClientFault::WrongProtocol, Protocol::Grpc, "does not offer HTTP/2 at this port (ALPN)");
    }
}
