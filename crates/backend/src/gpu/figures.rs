//! The counters of one model version's instances on GPUs: written by the instances, read by `/metrics`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::gpu::driver::GpuFault;
use base::error::Error;
use base::limits::GPU_RESTARTS_MAX;
use model::{InstanceGroup, ModelSpec};

/// A counter with several writers. Relaxed: each is read on its own, and orders nothing.
#[derive(Debug, Default)]
pub struct SharedCount(AtomicU64);

impl SharedCount {
    /// Adds to it.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Raises it to a value if that is larger.
    pub fn raise(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }
}

/// The times of the parts of a batch on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTimes {
    /// The upload.
    pub upload: Duration,
    /// The program.
    pub compute: Duration,
    /// The download.
    pub download: Duration,
}

/// The counters of one model version, over its instances on all devices.
#[derive(Debug, Default)]
pub struct GpuInstanceFigures {
    /// Batches that were enqueued.
    pub batches_begun: SharedCount,
    /// Batches that returned outputs.
    pub batches_done: SharedCount,
    /// The largest number of batches that one instance had in flight.
    pub flights_peak: SharedCount,
    /// Microseconds that the device took to upload inputs.
    pub upload_us: SharedCount,
    /// Microseconds that the device took to compute.
    pub compute_us: SharedCount,
    /// Microseconds that the device took to download outputs.
    pub download_us: SharedCount,
    /// Batches that failed for lack of memory.
    pub failures_memory: SharedCount,
    /// Batches that failed without damage to the context.
    pub failures_transient: SharedCount,
    /// Instances lost because their context broke.
    pub failures_sticky: SharedCount,
    /// Instances lost because a batch did not end.
    pub hangs: SharedCount,
    /// Instances made to replace lost ones.
    pub restarts: SharedCount,
    /// Restarts since the last batch that returned outputs.
    restarts_in_a_row: AtomicU32,
}

impl GpuInstanceFigures {
    /// A batch returned outputs.
    pub fn handle_success(&self, times: &DeviceTimes) {
        self.batches_done.add(1);
        self.upload_us.add_time(times.upload);
        self.compute_us.add_time(times.compute);
        self.download_us.add_time(times.download);
        self.restarts_in_a_row.store(0, Ordering::Relaxed);
    }

    /// A batch failed, or (sticky) an instance with all its batches.
    pub fn count_failure(&self, fault: GpuFault) {
        match fault {
            GpuFault::Memory => self.failures_memory.add(1),
            GpuFault::Transient => self.failures_transient.add(1),
            GpuFault::Sticky => self.failures_sticky.add(1),
        }
    }

    /// Counts a new instance as a restart if it replaces a lost one. Without a bound a model that
    /// breaks its device with every batch would be restarted without end.
    ///
    /// # Errors
    ///
    /// Unavailable, if `GPU_RESTARTS_MAX` for each instance were lost without a batch that returned
    /// outputs in between.
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
