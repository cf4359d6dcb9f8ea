//! Python models: `backend: "python"` and Python-based backends. Each instance is a process of the user's own
//! interpreter, which runs `model.py` unmodified. See `docs/architecture/python.md` for the parts and the protocol.

pub mod allocator;
pub mod fuzz;
pub mod json;
pub mod message;
pub mod region;
