//! The TLS of each port, as the thread that reads the certificates hands it to every shard.

use crate::connection::tls::TlsConfig;

/// The configuration of each port; none where it has no TLS.
#[derive(Clone, Debug, Default)]
pub struct TlsConfigs {
    /// The HTTP port.
    pub http: Option<TlsConfig>,
    /// The gRPC port.
    pub grpc: Option<TlsConfig>,
    /// The metrics port.
    pub metrics: Option<TlsConfig>,
}
