//! Triton's backends in processes of their own (`--backend-isolation=process`, the parameter
//! `isolation`): a backend that crashes or hangs costs the requests of its process, and not the
//! server. Each instance is a process of this program with the host of `process::triton` in it. The
//! server's side is that of Python models (`process::python`): sockets, regions, messages and
//! starts are the same; this is the side of the process, and the server's messages to it.
//!
//! ```text
//! instance's thread (PythonInstance) ── main socket: EXECUTE ─►  `worker`: host, backend ── answers: `answers` ─┐
//!        ▲────────── RESPONSES, SEND ◄────────────────────────────────────────────────────────────────────────┘
//!        └────────── aux socket: memory, calls, metrics, log ◄─►  `link`, `calls`, from any thread of the backend
//! ```

mod answers;
mod calls;
mod isolated;
mod link;
mod memory;
mod order;
pub mod worker;

pub use self::isolated::IsolatedLibraries;
