//! NVIDIA GPUs: their memory, their figures, and tensors that lie on them. [`cuda`] loads the CUDA driver at run time, if
//! there is one. Without a driver, all of this is still compiled, and tested with a fake driver behind the same trait
//! ([`driver`]). Models run on them by `engines::gpu`.

pub mod blas;
pub mod cuda;
pub mod device;
pub mod driver;
pub mod figures;
pub mod lease;
mod lease_pool;
pub mod memory;
pub mod memory_budget;
pub mod nvml;
pub mod shared;

#[cfg(any(test, feature = "testing"))]
pub mod fake;
#[cfg(any(test, feature = "testing"))]
mod fake_kernels;

pub use self::device::{Gpu, Gpus, MemoryLimits, OpenDevice};
pub use self::figures::GpuInstanceFigures;
pub use self::lease::{DeviceTensors, TensorLease};
pub use self::nvml::Nvml;
pub use self::shared::{SharedContexts, SharedMemory};
