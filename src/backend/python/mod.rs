//! Python models: `backend: "python"` and Python-based backends. Each instance is a process of the user's own
//! interpreter, which runs `model.py` unmodified. See `docs/architecture/python.md` for the parts and the protocol.

pub mod archive;
pub mod environment;
pub mod exit;
pub mod host;
mod line;
pub mod process;
mod spawn;
mod unpack;

pub use spawn::ProcessCommand;
