//! The kinds of listeners of a shard, and of the connections that they accept.

use crate::connection::tls::TlsConfig;
use crate::protocol::front_end::FrontEnd;
use crate::shard::connections::SlotKind;
use crate::shard::connections::tls_configs::TlsConfigs;

/// The kind of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// The Unix socket of `--admin-socket`.
    Admin,
    /// HTTP first; gRPC is understood too.
    Http,
    /// gRPC first; HTTP is understood too.
    Grpc,
    /// Metrics alone.
    Metrics,
    /// A hosting service's own paths, over HTTP/1.1 alone: its port serves nothing else.
    Hosting(FrontEnd),
}

impl ListenerKind {
    /// The slots that its connections take.
    pub const fn slot(self) -> SlotKind {
        match self {
            Self::Admin => SlotKind::Admin,
            Self::Grpc | Self::Hosting(_) | Self::Http => SlotKind::Client,
            Self::Metrics => SlotKind::Metrics,
        }
    }

    /// The TLS of its port. Hosting services connect without it, from a proxy in front, and a Unix
    /// socket needs none.
    pub const fn tls(self, configs: &TlsConfigs) -> &Option<TlsConfig> {
        match self {
            Self::Http => &configs.http,
            Self::Grpc => &configs.grpc,
            Self::Metrics => &configs.metrics,
            Self::Admin | Self::Hosting(_) => &None,
        }
    }
}
