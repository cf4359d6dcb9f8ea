//! Threads of the program, by name.

use std::thread::JoinHandle;

use crate::error::Error;

/// Starts a thread.
pub fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name).spawn(body);
    thread.map_err(|error| Error::unavailable(format!("cannot start a thread: {error}")))
}
