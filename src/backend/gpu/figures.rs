//! What the GPU executor counts of one model version: written by its instances, read by `/metrics`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::backend::gpu::driver::GpuFault;
use crate::backend::gpu::slot::DeviceTimes;
use crate::error::Error;
use crate::limits::GPU_RESTARTS_MAX;
use crate::model::{InstanceGroup, ModelSpec};

/// A count with several writers.
#[derive(Debug, Default)]
pub struct SharedCount(AtomicU64);

impl SharedCount {
    /// Adds to it.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Raises it to a value that is above.
    pub fn raise(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }
}

/// The counts of one model version, over its instances on all devices.
#[derive(Debug, Default)]
pub struct GpuInstanceFigures {
    /// Batches that were enqueued.
    pub batches_begun: SharedCount,
    /// Those that gave outputs.
    pub batches_done: SharedCount,
    /// The most that one instance had on its device at a time.
    pub flights_peak: SharedCount,
    /// Microseconds that the device took to upload inputs.
    pub upload_us: SharedCount,
    /// To compute.
    pub compute_us: SharedCount,
    /// To bring results back.
    pub download_us: SharedCount,
    /// Batches for which memory was short.
    pub failures_memory: SharedCount,
    /// Batches that failed and left all as it was.
    pub failures_transient: SharedCount,
    /// Instances whose context broke.
    pub failures_sticky: SharedCount,
    /// Instances of which a batch never ended.
    pub hangs: SharedCount,
    /// Instances that were made anew.
    pub restarts: SharedCount,
    /// Those since the last batch that gave outputs.
    restarts_in_a_row: AtomicU32,
}

impl GpuInstanceFigures {
    /// A batch gave outputs.
    pub fn handle_success(&self, times: &DeviceTimes) {
        self.batches_done.add(1);
        self.upload_us.add_time(times.upload);
        self.compute_us.add_time(times.compute);
        self.download_us.add_time(times.download);
        self.restarts_in_a_row.store(0, Ordering::Relaxed);
    }

    /// A batch, or an instance with all that it had, failed.
    pub fn count_failure(&self, fault: GpuFault) {
        match fault {
            GpuFault::Memory => self.failures_memory.add(1),
            GpuFault::Transient => self.failures_transient.add(1),
            GpuFault::Sticky => self.failures_sticky.add(1),
        }
    }

    /// Counts an instance that is made for one that was lost; refuses it where too many were lost
    /// without a batch that gave outputs.
    pub fn admit_restart(&self, spec: &ModelSpec) -> Result<(), Error> {
        if self.losses() <= self.restarts.get() {
            return Ok(());
        }
        let on_gpu = spec.instance_groups.iter().filter(|group| !group.gpus.is_empty());
        let instances: u64 = on_gpu.map(InstanceGroup::instance_count).sum();
        let most = instances.max(1).saturating_mul(GPU_RESTARTS_MAX.into());
        if u64::from(self.restarts_in_a_row.load(Ordering::Relaxed)) >= most {
            return Err(Error::unavailable(format!(
                "instances of model '{}' on GPUs were lost {most} times and no batch gave outputs between; load it again",
                spec.name
            )));
        }
        self.restarts.add(1);
        self.restarts_in_a_row.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Instances that were lost.
    pub fn losses(&self) -> u64 {
        self.failures_sticky.get() + self.hangs.get()
    }
}
