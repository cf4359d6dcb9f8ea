//! The operator's files for access control: the certificates of TLS and the API keys. They are read
//! at start, where a fault in them ends the server, and again when they change.

use std::sync::Arc;

use crate::control::outside::api_keys::ApiKeys;
use crate::control::outside::certificates::Certificates;
use crate::control::outside::watched_files::{self, FileWaker, WatchedFiles};
use crate::error::Error;
use crate::settings::Settings;
use crate::shard::ServerContext;

/// The files of a server.
pub struct AccessFiles {
    /// The files of TLS.
    pub certificates: Certificates,
    /// The API keys, if clients need one.
    pub keys: Option<ApiKeys>,
}

impl AccessFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// `InvalidArgument` when one of them cannot be read, or is not what its flag requires.
    pub fn load(settings: &Settings) -> Result<Self, Error> {
        let certificates = Certificates::load(&settings.tls)?;
        let keys = settings.api_keys_file.as_deref().map(ApiKeys::load).transpose()?;
        Ok(Self { certificates, keys })
    }

    /// Starts the thread that reads the files again, if there are any.
    pub fn watch(self, server_context: &Arc<ServerContext>, waker: &FileWaker) {
        let mut all: Vec<Box<dyn WatchedFiles>> = Vec::new();
        if self.certificates.is_any() {
            all.push(Box::new(self.certificates));
        }
        if let Some(keys) = self.keys {
            all.push(Box::new(keys));
        }
        watched_files::watch(all, server_context, waker);
    }
}
