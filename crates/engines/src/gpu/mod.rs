//! Models on the NVIDIA GPUs of [`backend::gpu`].
//!
//! ```text
//! worker ── run ─► executor ─► slot: stage ─ upload ─ program ─ download ─ event ─ wake
//!   ▲                            │ stream 0   ▒▒▒▒▒▒▒▒█████████████████░░░░░
//!   │ poll_flight                │ stream 1            ▒▒▒▒▒▒▒▒        █████████████████░░░░░
//!   └────────── answers ◄────────┘
//! ```

mod answer;
pub mod executor;
pub mod model;
pub mod plan;
pub mod program;
mod rows;
pub mod slot;
pub mod slot_sizes;

#[cfg(any(test, feature = "testing"))]
pub mod trial;

pub use self::executor::GpuInstance;
pub use self::model::GpuModel;
pub use self::plan::GpuPlan;
