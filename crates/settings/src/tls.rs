//! The settings of TLS: the ports that have it, and their files. The contents of the files are
//! checked when the server starts.

use std::path::PathBuf;
use std::time::Duration;

use base::limits;

/// The ports that have TLS, and its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The HTTP port.
    pub http: PortTls,
    /// The gRPC port.
    pub grpc: PortTls,
    /// The metrics port.
    pub metrics: PortTls,
    /// The time that a handshake may take.
    pub handshake_timeout: Duration,
    /// Handshakes in progress on one shard.
    pub handshakes_max: usize,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            http: PortTls::default(),
            grpc: PortTls::default(),
            metrics: PortTls::default(),
            handshake_timeout: limits::TLS_HANDSHAKE_TIMEOUT,
            handshakes_max: limits::TLS_HANDSHAKES_MAX,
        }
    }
}

/// The TLS of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortTls {
    /// True if it has TLS (`use-ssl`).
    pub is_on: bool,
    /// True if clients need a certificate (`use-ssl-mutual`); then it has TLS as well.
    pub is_mutual: bool,
    /// The server's certificate, and behind it those that certify it.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// The certificates of the authorities for clients.
    pub client_roots: Option<PathBuf>,
}

impl TlsSettings {
    /// Returns the ports by the first word of their flags.
    pub fn ports(&self) -> [(&'static str, &PortTls); 3] {
        [("http", &self.http), ("grpc", &self.grpc), ("metrics", &self.metrics)]
    }

    /// Returns true if any port has TLS.
    pub fn is_any_on(&self) -> bool {
        self.ports().into_iter().any(|(_, port)| port.has_tls())
    }
}

impl PortTls {
    /// Returns true if the port has TLS.
    pub const fn has_tls(&self) -> bool {
        self.is_on || self.is_mutual
    }
}

/// Checks that each port with TLS has its files, and returns warnings.
pub(super) fn check(settings: &TlsSettings) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();
    for (name, port) in settings.ports() {
        let flags = [("server-cert", &port.certificate), ("server-key", &port.key), ("root-cert", &port.client_roots)];
        let asks = if port.is_mutual { "use-ssl-mutual" } else { "use-ssl" };
        for (flag, file) in flags {
            let is_for_clients = flag == "root-cert";
            let is_needed = if is_for_clients { port.is_mutual } else { port.has_tls() };
            let needs = if is_for_clients { "use-ssl-mutual" } else { "use-ssl" };
            match file {
                None if is_needed => return Err(format!("--{name}-{asks} needs --{name}-{flag}, a file in PEM")),
                Some(_) if !is_needed => {
                    warnings.push(format!("--{name}-{flag} has no effect without --{name}-{needs}"));
                }
                _ => {}
            }
        }
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_with_tls_needs_its_files_and_names_those_that_are_left_out() {
        let file = |name: &str| Some(PathBuf::from(name));
        let of = |grpc| TlsSettings { grpc, ..TlsSettings::default() };
        let port = PortTls { is_on: true, ..PortTls::default() };
        let check = |port: &PortTls| check(&of(port.clone()));
        assert_eq!(check(&port).unwrap_err(), "--grpc-use-ssl needs --grpc-server-cert, a file in PEM");
        let port = PortTls { certificate: file("c"), ..port };
        assert_eq!(check(&port).unwrap_err(), "--grpc-use-ssl needs --grpc-server-key, a file in PEM");
        let port = PortTls { key: file("k"), ..port };
        assert_eq!(check(&port), Ok(vec![]));
        let port = PortTls { is_on: false, is_mutual: true, ..port };
        assert!(port.has_tls() && of(port.clone()).is_any_on());
        assert_eq!(check(&port).unwrap_err(), "--grpc-use-ssl-mutual needs --grpc-root-cert, a file in PEM");
        let port = PortTls { client_roots: file("r"), ..port };
        assert_eq!(check(&port), Ok(vec![]));
        let port = PortTls { is_on: true, is_mutual: false, ..port };
        assert_eq!(check(&port).unwrap(), ["--grpc-root-cert has no effect without --grpc-use-ssl-mutual"]);
        let port = PortTls { is_on: false, ..port };
        assert_eq!(check(&port).unwrap().len(), 3);
        assert!(!of(port).is_any_on());
    }
}
