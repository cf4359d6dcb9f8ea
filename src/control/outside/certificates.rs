//! The files of TLS. A fault in them at start ends the server; later the files that were in use
//! before stay, and the log reports it. Shards get the new ones by their mailboxes, and connections
//! keep those that they began with.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::connection::tls::{ALPN_H2, ALPN_HTTP1, TlsConfig, TlsFile, TlsFileFault, TlsPem};
use crate::control::outside::watched_files::{WatchedFiles, read_file};
use crate::error::Error;
use crate::limits::TLS_FILE_SIZE_MAX;
use crate::log;
use crate::metrics::{PortExpiry, TlsBoard};
use crate::runtime::clock;
use crate::settings::{PortTls, TlsSettings};
use crate::shard::ServerContext;
use crate::shard::connections::tls_configs::TlsConfigs;
use crate::shard::mailbox::ShardNews;

/// The certificates of a server.
pub struct Certificates {
    settings: TlsSettings,
    configs: Arc<TlsConfigs>,
    board: Arc<TlsBoard>,
    /// The files that were read last.
    files: Result<Vec<Option<PortFiles>>, String>,
    hasher: RandomState,
}

/// The contents of the files of a port.
struct PortFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_roots: Option<Vec<u8>>,
}

impl Certificates {
    /// Reads the files of the ports that have TLS.
    ///
    /// # Errors
    /// `InvalidArgument` when one of them cannot be read, or is not what its flag says.
    pub fn load(settings: &TlsSettings) -> Result<Self, Error> {
        let files = read(settings).map_err(Error::invalid)?;
        let hasher = RandomState::new();
        let configs = configs(settings, &files).map_err(Error::invalid)?;
        let ports = settings.ports().into_iter().filter(|(_, port)| port.has_tls());
        let ports = ports.map(|(port, _)| PortExpiry { port, at: Default::default() }).collect();
        let board = Arc::new(TlsBoard { ports, ..TlsBoard::default() });
        let (settings, configs, files) = (settings.clone(), Arc::new(configs), Ok(files));
        let certificates = Self { settings, configs, board, files, hasher };
        certificates.show();
        Ok(certificates)
    }

    /// Returns the configurations of the ports.
    pub const fn configs(&self) -> &Arc<TlsConfigs> {
        &self.configs
    }

    /// Returns the certificates that the metrics show.
    pub const fn board(&self) -> &Arc<TlsBoard> {
        &self.board
    }

    /// Returns true if any port has TLS.
    pub fn is_any(&self) -> bool {
        self.settings.is_any_on()
    }

    /// Shows the end of the certificates' validity, and warns of those that have expired.
    fn show(&self) {
        let now = clock::epoch_millis(clock::now()) / 1_000;
        let of_port = |name: &str| match name {
            "http" => &self.configs.http,
            "grpc" => &self.configs.grpc,
            _ => &self.configs.metrics,
        };
        for PortExpiry { port, at } in &self.board.ports {
            let expires_at = of_port(port).as_ref().and_then(TlsConfig::expires_at);
            at.set(expires_at);
            if expires_at.is_some_and(|at| at <= now) {
                log::warning(&format!("the certificate in --{port}-server-cert has expired: clients will refuse it"));
            }
        }
    }
}

impl WatchedFiles for Certificates {
    fn read(&mut self) {
        self.files = read(&self.settings);
    }

    fn fingerprint(&self) -> u64 {
        self.files.as_ref().map_or(UNREADABLE, |files| fingerprint(&self.hasher, files))
    }

    fn apply(&mut self, server_context: &ServerContext) {
        match self.files.as_deref().map_err(Clone::clone).and_then(|files| configs(&self.settings, files)) {
            Ok(configs) => {
                self.configs = Arc::new(configs);
                for mailbox in &server_context.control_link.mailboxes {
                    mailbox.push(ShardNews::Tls(Arc::clone(&self.configs)));
                }
                self.board.reloads.succeeded.add(1);
                log::info("the files of TLS have changed; new connections get the new certificates");
                self.show();
            }
            Err(text) => {
                self.board.reloads.failed.add(1);
                log::error(&format!(
                    "the files of TLS have changed, and are refused: {text}; the previous ones stay in use"
                ));
            }
        }
    }
}

/// The stamp of files that cannot be read, so that this is logged once.
const UNREADABLE: u64 = 0;

/// Reads the files of each port, in the order of [`TlsSettings::ports`]. An error names the flag.
fn read(settings: &TlsSettings) -> Result<Vec<Option<PortFiles>>, String> {
    let of_port = |(name, port): (&str, &PortTls)| {
        if !port.has_tls() {
            return Ok(None);
        }
        let file = |flag: &str, path: &Option<PathBuf>| {
            let path = path.as_deref().unwrap_or(Path::new(""));
            read_file(path, TLS_FILE_SIZE_MAX).map_err(|why| format!("--{name}-{flag} '{}' {why}", path.display()))
        };
        Ok(Some(PortFiles {
            certificate: file("server-cert", &port.certificate)?,
            key: file("server-key", &port.key)?,
            client_roots: port.is_mutual.then(|| file("root-cert", &port.client_roots)).transpose()?,
        }))
    };
    settings.ports().into_iter().map(of_port).collect()
}

fn configs(settings: &TlsSettings, files: &[Option<PortFiles>]) -> Result<TlsConfigs, String> {
    let mut made = Vec::new();
    for ((name, port), files) in settings.ports().into_iter().zip(files) {
        // No HTTP/2 on the metrics port.
        let protocols: &[&[u8]] = match name {
            "grpc" | "http" => &[ALPN_H2, ALPN_HTTP1],
            _ => &[ALPN_HTTP1],
        };
        let config = |files: &PortFiles| {
            let PortFiles { certificate, key, client_roots } = files;
            let pem = TlsPem { certificate, key, client_roots: client_roots.as_deref() };
            TlsConfig::new(&pem, protocols, wall_seconds).map_err(|fault| describe(name, port, &fault))
        };
        made.push(files.as_ref().map(config).transpose()?);
    }
    let mut made = made.into_iter();
    let mut next = || made.next().flatten();
    Ok(TlsConfigs { http: next(), grpc: next(), metrics: next() })
}

fn describe(name: &str, port: &PortTls, fault: &TlsFileFault) -> String {
    let (flag, path) = match fault.file {
        TlsFile::Certificate => ("server-cert", &port.certificate),
        TlsFile::Key => ("server-key", &port.key),
        // The second is a client's.
        TlsFile::ClientRoots | TlsFile::ServerRoots => ("root-cert", &port.client_roots),
    };
    let path = path.as_deref().unwrap_or(Path::new(""));
    format!("--{name}-{flag} '{}' {}", path.display(), fault.text)
}

fn fingerprint(hasher: &RandomState, files: &[Option<PortFiles>]) -> u64 {
    let parts: Vec<_> = files
        .iter()
        .map(|files| files.as_ref().map(|files| (&files.certificate, &files.key, &files.client_roots)))
        .collect();
    hasher.hash_one(parts).max(UNREADABLE + 1)
}

fn wall_seconds() -> u64 {
    clock::epoch_millis(clock::now()) / 1_000
}
