//! Models of ONNX, OpenVINO and TensorFlow whose instances run in processes of their own (the
//! parameter `isolation`, `--model-isolation`): a crash, a hang or a lack of memory in an engine
//! costs its batch and its instance. Each process is this program once more, with the same engine.
//! Processes are started, ended and read as those of Python models are, and shares regions with the
//! server as they do; the messages are fewer, because a process does one thing at a time.
//!
//! ```text
//! instance's thread ── EngineFrame: 16 bytes ─► socket ─► process: `worker`
//!        └── inputs ─► request region ─► engine ─► response region ── outputs ─┘
//! ```

mod engine_process;
mod instance;
mod message;
mod model;
mod run_limit;
mod shared;
mod socket;
pub mod worker;

pub use self::message::{EngineKind, EngineLibrary, EngineOrder};
pub use self::model::IsolatedBackend;
pub use self::shared::{FilesCheck, IsolationOptions};
pub use self::socket::EngineSocket;
