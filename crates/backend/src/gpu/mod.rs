//! Models on NVIDIA GPUs. [`cuda`] loads the CUDA driver at run time, if there is one. Without a
//! driver, all of this is still compiled, and tested with a fake driver behind the same trait
//! ([`driver`]).
//!
//! ```text
//! worker ── run ─► executor ─► slot: stage ─ upload ─ program ─ download ─ event ─ wake
//!   ▲                            │ stream 0   ▒▒▒▒▒▒▒▒█████████████████░░░░░
//!   │ poll_flight                │ stream 1            ▒▒▒▒▒▒▒▒        █████████████████░░░░░
//!   └────────── answers ◄────────┘
//! ```

mod answer;
pub mod blas;
pub mod cuda;
pub mod device;
pub mod driver;
pub mod executor;
pub mod figures;
pub mod lease;
mod lease_pool;
pub mod memory;
pub mod memory_budget;
pub mod model;
pub mod nvml;
pub mod plan;
pub mod program;
mod rows;
pub mod shared;
pub mod slot;
pub mod slot_sizes;

#[cfg(any(test, feature = "testing"))]
pub mod fake;
#[cfg(any(test, feature = "testing"))]
mod fake_kernels;
#[cfg(any(test, feature = "testing"))]
pub mod trial;

pub use self::device::{Gpu, Gpus, MemoryLimits, OpenDevice};
pub use self::executor::GpuInstance;
pub use self::figures::GpuInstanceFigures;
pub use self::lease::{DeviceTensors, TensorLease};
pub use self::model::GpuModel;
pub use self::nvml::Nvml;
pub use self::plan::GpuPlan;
pub use self::shared::{SharedContexts, SharedMemory};
