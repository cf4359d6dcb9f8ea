//! The TLS of each port, as every shard gets it from the thread that reads the certificates.

use crate::connection::tls::TlsConfig;

/// The configuration of each port; `None` without TLS.
#[derive(Clone, Debug, Default)]
pub struct TlsConfigs {
    /// The HTTP port.
    pub http: Option<TlsConfig>,
    /// The gRPC port.
    pub grpc: Option<TlsConfig>,
    /// The metrics port.
    pub metrics: Option<TlsConfig>,
}
