//! The Unix socket of `--admin-socket`: of its own, of a supervisor, or of a server that this one
//! takes over from. Its file is made when the shards listen, so that another server which starts
//! meanwhile does not take a silent one for stale.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::control::outside::local_claim::LocalClaim;
use crate::control::thread::hand_over::PassedSocket;
use crate::error::Error;
use crate::limits::BIND_RETRY_MAX;
use crate::log;
use crate::runtime::clock;
use crate::settings::EndpointKind;
use crate::shard::ListeningSocket;

/// The interval at which a socket in use is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The path, and the socket once there is one.
pub struct AdminSocket {
    path: Option<PathBuf>,
    claim: Option<LocalClaim>,
}

impl AdminSocket {
    /// Checks that the path of the flag is free, unless the socket was passed.
    ///
    /// # Errors
    /// `Unavailable` if a server listens there, or it cannot be used.
    pub fn check(path: Option<&Path>, passed: &BTreeMap<(EndpointKind, bool), Vec<OwnedFd>>) -> Result<Self, Error> {
        let is_passed = passed.keys().any(|(endpoint, _)| *endpoint == EndpointKind::Admin);
        if let Some(path) = path.filter(|_| !is_passed) {
            patiently(|| LocalClaim::check(path)).map_err(|error| refused(path, &error))?;
        }
        Ok(Self { path: path.map(Path::to_owned), claim: None })
    }

    /// Takes the sockets that were passed for it.
    ///
    /// # Errors
    /// `InvalidArgument` if that is not the socket of the flag.
    pub fn take(&mut self, descriptors: Vec<OwnedFd>, is_lent: bool) -> Result<(), Error> {
        let Some(path) = &self.path else {
            log::warning("a socket was passed for admin, which the flags do not ask for (--admin-socket)");
            return Ok(());
        };
        for descriptor in descriptors {
            let claim = LocalClaim::of_passed(descriptor, path, is_lent).map_err(|error| {
                Error::invalid(format!("the socket that was passed for --admin-socket cannot be used: {error}"))
            })?;
            self.claim = Some(claim);
        }
        Ok(())
    }

    /// Returns the socket, which listens from now on, for one shard; `None` without the flag. A
    /// copy joins `copies`.
    ///
    /// # Errors
    /// `Unavailable` if another server was faster, or the file cannot be made.
    pub fn listen(&mut self, copies: &mut Vec<PassedSocket>) -> Result<Option<ListeningSocket>, Error> {
        let Some(path) = &self.path else { return Ok(None) };
        let failed = |error: io::Error| refused(path, &error);
        let claim = match self.claim.take() {
            Some(claim) => claim,
            None => patiently(|| LocalClaim::new(path)).map_err(failed)?,
        };
        let is_lent = claim.is_lent();
        copies.push(PassedSocket { endpoint: EndpointKind::Admin, descriptor: claim.copy().map_err(failed)?, is_lent });
        let descriptor = claim.copy().map_err(failed)?;
        self.claim = Some(claim);
        Ok(Some(ListeningSocket { descriptor, is_lent, group: Arc::new([]) }))
    }

    /// Removes the file, unless another process has the socket.
    pub fn end(self, is_handed_over: bool) {
        if let Some(claim) = self.claim.filter(|claim| !is_handed_over && !claim.is_lent()) {
            claim.remove();
        }
    }

    /// Logs its path.
    pub fn log(&self) {
        if let Some(claim) = &self.claim {
            log::info(&format!("Started admin service at {}", claim.path().display()));
        }
    }
}

/// Retries for a while if the socket is in use: a process that was killed leaves it to a kernel
/// that takes milliseconds to close it.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let give_up_at = clock::now() + BIND_RETRY_MAX;
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && clock::now() < give_up_at => {
                std::thread::park_timeout(RETRY_INTERVAL);
            }
            outcome => return outcome,
        }
    }
}

fn refused(path: &Path, error: &io::Error) -> Error {
    let path = path.display();
    Error::unavailable(match error.kind() {
        ErrorKind::AddrInUse => format!("--admin-socket '{path}' is in use: another server listens there"),
        _ => format!("--admin-socket '{path}' cannot be used: {error}"),
    })
}
