//! The state that all TLS connections of a port share: the certificate and its key, the authorities
//! for clients, and the protocols to negotiate. Made of the contents of the operator's files, which
//! the control room reads.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{Error, InconsistentKeys, RootCertStore};

use crate::limits::TLS_TICKETS;
use wire::x509;

/// HTTP/2 by its name in TLS (RFC 7301).
pub const ALPN_H2: &[u8] = b"h2";
/// HTTP/1.1 by its name in TLS.
pub const ALPN_HTTP1: &[u8] = b"http/1.1";

/// The contents of the files that a configuration is made of.
pub struct TlsPem<'a> {
    /// The server's certificate, and behind it those that certify it.
    pub certificate: &'a [u8],
    /// The private key of the first.
    pub key: &'a [u8],
    /// The authorities that must have certified a client; `None` if clients need no certificate.
    pub client_roots: Option<&'a [u8]>,
}

/// Makes ring the provider for the clients of stores, which ask for none, as for the server's own
/// TLS.
pub fn install_provider() {
    // A second store finds the provider of the first.
    let _ = ring::default_provider().install_default();
}

/// One of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFile {
    /// The certificate of the server, or of a client.
    Certificate,
    /// Its key.
    Key,
    /// The certificates of the authorities for clients.
    ClientRoots,
    /// The certificates of the authorities for servers, which a client trusts.
    ServerRoots,
}

/// The fault of one of the files; nothing of its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFileFault {
    /// The file.
    pub file: TlsFile,
    /// The fault, as the rest of a sentence about the file.
    pub text: String,
}

/// Seconds since the Unix epoch: tickets and the certificates of clients are valid for a time.
pub type WallSeconds = fn() -> u64;

/// The state that all TLS connections of a port share. An update makes another; connections keep
/// the one they began with.
#[derive(Clone)]
pub struct TlsConfig {
    server: Arc<ServerConfig>,
    expires_at: Option<u64>,
}

impl TlsConfig {
    /// From the contents of the files; `protocols` are those that clients may negotiate (ALPN), the
    /// preferred first.
    ///
    /// # Errors
    /// The fault, and its file.
    pub fn new(pem: &TlsPem<'_>, protocols: &[&[u8]], wall: WallSeconds) -> Result<Self, TlsFileFault> {
        let chain = certificates(TlsFile::Certificate, pem.certificate)?;
        let expires_at = chain.iter().filter_map(|certificate| x509::not_after(certificate)).min();
        let key = PrivateKeyDer::from_pem_slice(pem.key).map_err(|error| key_fault(&error))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_details(Arc::clone(&provider), Arc::new(WallTime(wall)));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| of_key(&error))?;
        let builder = match pem.client_roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let fault = |text: String| TlsFileFault { file: TlsFile::ClientRoots, text };
                let mut store = RootCertStore::empty();
                for root in certificates(TlsFile::ClientRoots, roots)? {
                    store.add(root).map_err(|error| fault(format!("has an invalid certificate: {error}")))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| fault(format!("cannot be used: {error}")))?)
            }
        };
        let mut server = builder.with_single_cert(chain, key).map_err(|error| of_key(&error))?;
        server.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        // Sessions resume by tickets: the client keeps the session's state, so that all shards know
        // it and none remembers it. Each configuration has keys of its own: a client whose
        // certificate is no longer trusted does not resume.
        server.ticketer = ring::Ticketer::new().map_err(|error| of_key(&error))?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = TLS_TICKETS;
        Ok(Self { server: Arc::new(server), expires_at })
    }

    /// Returns the time until which all certificates are valid that the server shows, in seconds
    /// since the Unix epoch, if they state it.
    pub const fn expires_at(&self) -> Option<u64> {
        self.expires_at
    }

    /// For a connection.
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}

/// Without its contents: there is a key in them.
impl fmt::Debug for TlsConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsConfig").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// The clock that rustls asks.
#[derive(Debug)]
pub(super) struct WallTime(pub(super) WallSeconds);

impl TimeProvider for WallTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs((self.0)())))
    }
}

pub(super) fn certificates(file: TlsFile, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFileFault> {
    let fault = |text: &str| TlsFileFault { file, text: text.to_owned() };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let read = read.map_err(|_| fault("is damaged: a section of its PEM has no end, or is not base64"))?;
    if read.is_empty() {
        return Err(fault("has no certificate; expected PEM with '-----BEGIN CERTIFICATE-----'"));
    }
    Ok(read)
}

pub(super) fn key_fault(error: &pem::Error) -> TlsFileFault {
    let text = match error {
        pem::Error::NoItemsFound => {
            "has no private key that can be read; expected PEM with '-----BEGIN PRIVATE KEY-----' (or RSA, or EC), without \
             a passphrase: `openssl pkey` removes one"
        }
        _ => "is damaged: a section of its PEM has no end, or is not base64",
    };
    TlsFileFault { file: TlsFile::Key, text: text.to_owned() }
}

/// Maps rustls' error about a certificate and its key.
pub(super) fn of_key(error: &Error) -> TlsFileFault {
    let (file, text) = match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            (TlsFile::Key, "is not that of the certificate".to_owned())
        }
        Error::InvalidCertificate(error) => (TlsFile::Certificate, format!("has an invalid certificate: {error:?}")),
        // Its text names the algorithm, and nothing of the key.
        _ => (TlsFile::Key, "is of a kind that is not known; expected RSA, ECDSA (P-256, P-384) or Ed25519".to_owned()),
    };
    TlsFileFault { file, text }
}
