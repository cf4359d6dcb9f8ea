//! Certificates made by `openssl`, and a client that trusts them.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::folder::Folder;
use crate::support::http::Connection;
use crate::support::skipped::skip_unless_ci;

/// A connection of a test over TLS.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// The files of a server and of a client, and the authority of both.
pub struct Files(Folder);

/// Kind of a key.
#[derive(Clone, Copy)]
pub enum KeyKind {
    /// ECDSA with P-256.
    Ecdsa,
    /// RSA with 2048 bits.
    Rsa,
}

impl Files {
    /// Makes them; `None` without `openssl`.
    pub fn new(kind: KeyKind) -> Option<Self> {
        if Command::new("openssl").arg("version").output().is_err() {
            skip_unless_ci("there is no openssl");
            return None;
        }
        let files = Self(Folder::new("tls"));
        files.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout authority.key -out authority.pem -days 2 \
             -subj /CN=authority -addext basicConstraints=critical,CA:TRUE",
        );
        files.certify("server", kind);
        files.certify("client", KeyKind::Ecdsa);
        Some(files)
    }

    /// Makes a key and a certificate of the authority, in place of those before.
    pub fn certify(&self, name: &str, kind: KeyKind) {
        let key = match kind {
            KeyKind::Ecdsa => "-newkey ec -pkeyopt ec_paramgen_curve:P-256",
            KeyKind::Rsa => "-newkey rsa:2048",
        };
        let extensions = "basicConstraints=CA:FALSE\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n";
        fs::write(self.path("extensions"), extensions).unwrap();
        self.openssl(&format!("req {key} -nodes -keyout new.key -out new.csr -subj /CN={name}"));
        self.openssl(
            "x509 -req -in new.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 -extfile extensions \
             -out new.pem",
        );
        fs::rename(self.path("new.key"), self.path(&format!("{name}.key"))).unwrap();
        fs::rename(self.path("new.pem"), self.path(&format!("{name}.pem"))).unwrap();
    }

    /// Runs `openssl` with these arguments in the folder.
    pub fn openssl(&self, words: &str) {
        let words_of: Vec<&str> = words.split(' ').filter(|word| !word.is_empty()).collect();
        let output = Command::new("openssl").args(words_of).current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The same as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The flags that give a port TLS; those of mutual TLS with `is_mutual`.
    pub fn flags(&self, port: &str, is_mutual: bool) -> Vec<String> {
        let mutual = if is_mutual { "-mutual" } else { "" };
        let file = |flag: &str, name: &str| format!("--{port}-{flag}={}", self.text(name));
        let mut flags = vec![format!("--{port}-use-ssl{mutual}=true")];
        flags.extend([file("server-cert", "server.pem"), file("server-key", "server.key")]);
        flags.extend(is_mutual.then(|| file("root-cert", "authority.pem")));
        flags
    }

    /// A client's configuration: the authority, and its own certificate if it shows one.
    pub fn client(&self, has_certificate: bool) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let authority = fs::read(self.path("authority.pem")).unwrap();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&authority).flatten());
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        if !has_certificate {
            return builder.with_no_client_auth();
        }
        let chain = CertificateDer::pem_file_iter(self.path("client.pem")).unwrap().flatten().collect();
        builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(self.path("client.key")).unwrap()).unwrap()
    }

    /// Connects, without a handshake yet.
    pub fn connect(&self, address: SocketAddr) -> io::Result<TlsStream> {
        connect(address, &Arc::new(self.client(false)))
    }

    /// An HTTP/1.1 connection.
    pub fn http(&self, address: SocketAddr) -> io::Result<Connection<TlsStream>> {
        self.connect(address).map(Connection::over)
    }
}

/// Connects, without a handshake yet.
pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<TlsStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    socket.set_write_timeout(Some(Duration::from_secs(20)))?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").unwrap();
    Ok(StreamOwned::new(ClientConnection::new(Arc::clone(config), name).unwrap(), socket))
}

/// A file's contents, replaced by others in one step.
pub fn replace(path: &Path, contents: &[u8]) {
    let beside = path.with_extension("beside");
    fs::write(&beside, contents).unwrap();
    fs::rename(beside, path).unwrap();
}
