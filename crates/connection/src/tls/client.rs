//! The client's side of a TLS connection: bytes of records in, plaintext out; plaintext in, bytes of records out. For the commands
//! that ask servers; it has no socket, and the caller bounds its input and the time of the handshake.

use std::io::Read;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::tls::config::{TlsFile, TlsFileFault, WallSeconds, WallTime, certificates, key_fault, of_key};
use wire::x509;

/// The servers that a client trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustedServers<'a> {
    /// Any server, whatever its certificate: only for tests of a server that is known otherwise.
    Any,
    /// Servers that an authority of this PEM has certified for the name that is asked, and servers with one of these
    /// certificates.
    Of(&'a [u8]),
}

/// The name or the IP address of a server, which its certificate must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsServerName(ServerName<'static>);

/// The state that all connections of a client to one server share.
#[derive(Clone, Debug)]
pub struct TlsClientConfig {
    client: Arc<ClientConfig>,
    server: TlsServerName,
}

/// One connection, from the client's side.
#[derive(Debug)]
pub struct TlsClient(ClientConnection);

/// The reason why a connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsClientFault {
    /// The server has a certificate that is invalid for another reason than the ones below.
    Certificate(String),
    /// The server requires a certificate of the client, and got none.
    CertificateRequired,
    /// The server does not trust the certificate of the client.
    CertificateRefused,
    /// The server's certificate is no longer valid, or not yet.
    Expired,
    /// The bytes of the server are not TLS.
    NotTls,
    /// Another fault.
    Other(String),
    /// No authority that the client knows has certified the server.
    Untrusted,
    /// The server speaks none of the client's protocols (ALPN).
    WrongProtocol,
    /// The certificate is for these names and not for the one that was asked.
    WrongName(Vec<String>),
}

impl TlsServerName {
    /// Reads the host of an address, without brackets; `None` if it is neither a name nor an IP address.
    pub fn parse(host: &str) -> Option<Self> {
        ServerName::try_from(host.to_owned()).ok().map(Self)
    }
}

impl TlsClientConfig {
    /// For a server, from the contents of files: the trusted servers, and the client's certificate with its key, if it has one.
    /// `protocols` are those to negotiate (ALPN), the preferred first.
    ///
    /// # Errors
    /// The fault, and its file.
    pub fn new(
        server: TlsServerName,
        trusted: TrustedServers<'_>,
        own: Option<(&[u8], &[u8])>,
        protocols: &[&[u8]],
        wall: WallSeconds,
    ) -> Result<Self, TlsFileFault> {
        let provider = Arc::new(ring::default_provider());
        let verifier = TrustVerifier::new(trusted, &provider, wall)?;
        let builder = ClientConfig::builder_with_details(provider, Arc::new(WallTime(wall)));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| of_key(&error))?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(TlsFile::Certificate, certificate)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| key_fault(&error))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| of_key(&error))?
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Self { client: Arc::new(config), server })
    }
}

/// Two are equal if they are the same.
impl PartialEq for TlsClientConfig {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.client, &other.client)
    }
}

impl TlsClient {
    /// A connection that has sent nothing yet.
    pub fn new(config: &TlsClientConfig) -> Self {
        let session = ClientConnection::new(Arc::clone(&config.client), config.server.0.clone());
        let mut session = session.expect("the system has random numbers, and the versions are those of the provider");
        // The caller encodes only what it is about to send.
        session.set_buffer_limit(None);
        Self(session)
    }

    /// Reads bytes of the server and appends their plaintext.
    ///
    /// # Errors
    /// The fault; the plaintext before it is appended, and the output has its alert.
    pub fn handle_input(&mut self, mut bytes: &[u8], plain: &mut Vec<u8>) -> Result<(), TlsClientFault> {
        while !bytes.is_empty() {
            let size = self.0.read_tls(&mut bytes).map_err(|error| TlsClientFault::Other(error.to_string()))?;
            let outcome = self.0.process_new_packets();
            // It ends with an error that says that nothing further has come yet.
            let _ = self.0.reader().read_to_end(plain);
            outcome.map_err(|error| TlsClientFault::of(&error))?;
            if size == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Encodes plaintext, which is sent once the handshake is done.
    pub fn encode_plain(&mut self, plain: &[u8]) {
        // Without a limit of its buffer, all is taken.
        let _ = std::io::Write::write_all(&mut self.0.writer(), plain);
    }

    /// Appends the bytes to send.
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        while self.0.wants_write() {
            // A vector takes all bytes.
            if self.0.write_tls(out).is_err() {
                return;
            }
        }
    }

    /// Returns true until the handshake is done.
    pub fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }
}

impl TlsClientFault {
    fn of(error: &Error) -> Self {
        match error {
            Error::InvalidMessage(_) => Self::NotTls,
            Error::InvalidCertificate(error) => match error {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::Untrusted,
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Self::Expired,
                CertificateError::NotValidForNameContext { presented, .. } => {
                    Self::WrongName(presented.iter().map(|name| plain_name(name)).collect())
                }
                CertificateError::NotValidForName => Self::WrongName(Vec::new()),
                other => Self::Certificate(other.to_string()),
            },
            Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Self::WrongProtocol
            }
            Error::AlertReceived(AlertDescription::CertificateRequired) => Self::CertificateRequired,
            Error::AlertReceived(
                AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::DecryptError,
            ) => Self::CertificateRefused,
            other => Self::Other(other.to_string()),
        }
    }
}

/// The name in `DnsName("a")` or `IpAddress(1.2.3.4)`, as rustls writes those of a certificate.
fn plain_name(text: &str) -> String {
    let inner = text.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(text).trim_matches('"').to_owned()
}

/// Checks the certificate of a server.
#[derive(Debug)]
struct TrustVerifier {
    /// `None` if any is trusted.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    /// Certificates that are trusted by themselves: one that is its own authority is not certified by any.
    named: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
    wall: WallSeconds,
}

impl TrustVerifier {
    fn new(
        trusted: TrustedServers<'_>,
        provider: &Arc<CryptoProvider>,
        wall: WallSeconds,
    ) -> Result<Self, TlsFileFault> {
        let provider = Arc::clone(provider);
        let TrustedServers::Of(pem) = trusted else {
            return Ok(Self { authorities: None, named: Vec::new(), provider, wall });
        };
        let named = certificates(TlsFile::ServerRoots, pem)?;
        let mut store = RootCertStore::empty();
        // A system's file may have some that are too old for us.
        let (valid, _) = store.add_parsable_certificates(named.iter().cloned());
        let fault = |text: String| TlsFileFault { file: TlsFile::ServerRoots, text };
        if valid == 0 {
            return Err(fault("has no valid certificate".to_owned()));
        }
        let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(&provider)).build();
        let authorities = authorities.map_err(|error| fault(format!("cannot be used: {error}")))?;
        Ok(Self { authorities: Some(authorities), named, provider, wall })
    }

    /// A certificate that is trusted by itself is valid for its names and until its end.
    fn verify_named(&self, certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        let is_valid = x509::not_after(certificate).is_none_or(|end| (self.wall)() <= end);
        if is_valid { Ok(()) } else { Err(Error::InvalidCertificate(CertificateError::Expired)) }
    }
}

impl ServerCertVerifier for TrustVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else { return Ok(ServerCertVerified::assertion()) };
        if self.named.iter().any(|named| named.as_ref() == end_entity.as_ref()) {
            return self.verify_named(end_entity, server_name).map(|()| ServerCertVerified::assertion());
        }
        authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
