//! Starts named threads.

use std::thread::JoinHandle;

use crate::error::Error;

/// Starts a thread with a name, of which Linux shows the first 15 bytes.
///
/// # Errors
/// `Unavailable` when the system refuses another thread.
pub fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name).spawn(body);
    thread.map_err(|error| Error::unavailable(format!("cannot start a thread: {error}")))
}
