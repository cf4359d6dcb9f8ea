//! The devices of this machine as the server uses them: found once, each opened by its first
//! instance, and opened again after its context broke. All instances on a device share one context,
//! since several contexts would take turns on it. Instances that run through libraries on CUDA's
//! runtime share the primary context, which is recreated only when all have given it back.

#![expect(clippy::disallowed_types, reason = "taken where an instance is created or recreated, never for a batch")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use crate::gpu::driver::{
    DevicePointer, DeviceProperties, DriverError, GpuContext, GpuDriver, GpuFunction, GpuStream, KernelValue,
    LaunchShape,
};
use crate::gpu::lease_pool::LeasePool;
use crate::gpu::memory_budget::MemoryBudget;
use crate::kernel::{self, BufferRole, KernelArgument, KernelModule, LaunchPlan};
use base::limits::GPU_RUN_MAX;

/// The limits of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Of each device.
    pub device: usize,
    /// Pinned, on the host, for all devices.
    pub pinned: usize,
}

/// The devices, or the reason for having none.
#[derive(Clone)]
pub struct Gpus {
    found: Result<Arc<[Arc<Gpu>]>, String>,
    run_max: Duration,
}

/// One device.
pub struct Gpu {
    driver: Arc<dyn GpuDriver>,
    properties: DeviceProperties,
    device_account: Arc<MemoryBudget>,
    pinned_account: Arc<MemoryBudget>,
    opened: Mutex<Weak<OpenDevice>>,
    primary: Arc<Mutex<PrimaryContext>>,
}

/// The state of a device's primary context.
#[derive(Default)]
struct PrimaryContext {
    opened: Weak<OpenDevice>,
    /// True if an instance has it or is giving it back.
    is_taken: bool,
    /// Work in it never ends: the context is unusable until the process ends.
    hangs: bool,
}

/// A device with a context in which work can be enqueued, until it breaks.
pub struct OpenDevice {
    /// Ended first, but not if it hangs: that would wait for the work.
    context: Option<Arc<dyn GpuContext>>,
    kernels: BTreeMap<&'static str, GpuFunction>,
    leases: LeasePool,
    device_account: Arc<MemoryBudget>,
    pinned_account: Arc<MemoryBudget>,
    state: AtomicU8,
    /// The wakers of its live instances.
    wakers: Mutex<Vec<Weak<Waker>>>,
    /// The state to update at the end of a primary context.
    primary: Option<Arc<Mutex<PrimaryContext>>>,
}

/// The context takes work.
const WORKS: u8 = 0;
/// Every call fails, and nothing runs on the device any longer.
const BROKEN: u8 = 1;
/// Something on the device does not end, and may still write to memory.
const HUNG: u8 = 2;

impl Gpus {
    /// The devices of a driver.
    pub fn of_driver(driver: &Arc<dyn GpuDriver>, limits: MemoryLimits) -> Self {
        let pinned = MemoryBudget::new("pinned memory".to_owned(), "--pinned-memory-pool-byte-size", limits.pinned);
        let gpu = |properties: &DeviceProperties| {
            let what = format!("memory of GPU {}", properties.index);
            Arc::new(Gpu {
                driver: Arc::clone(driver),
                properties: properties.clone(),
                device_account: MemoryBudget::new(what, "--gpu-memory-bytes-max", limits.device),
                pinned_account: Arc::clone(&pinned),
                opened: Mutex::default(),
                primary: Arc::default(),
            })
        };
        Self { found: Ok(driver.devices().iter().map(gpu).collect()), run_max: GPU_RUN_MAX }
    }

    /// No devices, with the reason.
    pub fn absent(why: impl Into<String>) -> Self {
        Self { found: Err(why.into()), run_max: GPU_RUN_MAX }
    }

    /// The same with another limit on the run of a batch.
    pub fn with_run_max(self, run_max: Duration) -> Self {
        Self { run_max, ..self }
    }

    /// Returns the longest run of a batch.
    pub const fn run_max(&self) -> Duration {
        self.run_max
    }

    /// All devices; empty without a GPU.
    pub fn all(&self) -> &[Arc<Gpu>] {
        self.found.as_deref().unwrap_or_default()
    }

    /// Returns the reason why there is no device, or `None` if there are devices.
    pub fn why_absent(&self) -> Option<&str> {
        self.found.as_ref().err().map(String::as_str)
    }

    /// A device by its number.
    pub fn find(&self, index: u32) -> Option<&Arc<Gpu>> {
        self.all().iter().find(|gpu| gpu.properties.index == index)
    }
}

impl Gpu {
    /// Returns its properties.
    pub const fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    /// Returns the account of its memory.
    pub const fn account(&self) -> &Arc<MemoryBudget> {
        &self.device_account
    }

    /// Returns the account of pinned memory, for all devices.
    pub const fn pinned_account(&self) -> &Arc<MemoryBudget> {
        &self.pinned_account
    }

    /// Makes a context that its instances do not share.
    pub fn new_context(&self) -> Result<Arc<dyn GpuContext>, DriverError> {
        self.driver.new_context(self.properties.index)
    }

    /// Returns the context that its instances share, if it works.
    pub fn opened(&self) -> Option<Arc<OpenDevice>> {
        locked(&self.opened).upgrade().filter(|opened| !opened.is_broken())
    }

    /// Returns the context that its instances share, or a new one if that is missing or broken.
    pub fn open(&self) -> Result<Arc<OpenDevice>, DriverError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = opened.upgrade().filter(|opened| !opened.is_broken()) {
            return Ok(opened);
        }
        let new = self.opened_in(self.driver.new_context(self.properties.index)?, None)?;
        *opened = Arc::downgrade(&new);
        Ok(new)
    }

    /// Returns the primary context, which everything on CUDA's runtime shares. A broken one is
    /// refused until all have given it back: an old user would free another's memory in the next
    /// one.
    pub fn open_primary(&self) -> Result<Arc<OpenDevice>, DriverError> {
        let mut primary = locked(&self.primary);
        let (there, hangs) = (primary.opened.upgrade(), primary.hangs);
        if there.is_none() && !primary.is_taken && !hangs {
            let context = self.driver.primary_context(self.properties.index)?;
            let new = self.opened_in(context, Some(Arc::clone(&self.primary)))?;
            *primary = PrimaryContext { opened: Arc::downgrade(&new), is_taken: true, hangs };
            return Ok(new);
        }
        // The last user to give it back locks again.
        drop(primary);
        let index = self.properties.index;
        match there {
            _ if hangs => Err(DriverError::transient(format!(
                "work that never ended holds the primary context of GPU {index}; start the server anew"
            ))),
            Some(there) if !there.is_broken() => Ok(there),
            _ => Err(DriverError::transient(format!(
                "the primary context of GPU {index} broke, and not all have given it back"
            ))),
        }
    }

    fn opened_in(
        &self,
        context: Arc<dyn GpuContext>,
        primary: Option<Arc<Mutex<PrimaryContext>>>,
    ) -> Result<Arc<OpenDevice>, DriverError> {
        Ok(Arc::new(OpenDevice {
            kernels: load_kernels(&*context)?,
            leases: LeasePool::default(),
            context: Some(context),
            device_account: Arc::clone(&self.device_account),
            pinned_account: Arc::clone(&self.pinned_account),
            state: AtomicU8::new(WORKS),
            wakers: Mutex::default(),
            primary,
        }))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenDevice {
    /// The context in which work is enqueued.
    pub fn context(&self) -> &dyn GpuContext {
        self.context.as_deref().expect("it is taken when `self` is dropped")
    }

    /// A kernel by the name of its entry.
    pub fn kernel(&self, name: &str) -> Result<GpuFunction, DriverError> {
        let found = self.kernels.get(name).copied();
        found.ok_or_else(|| DriverError::transient(format!("there is no kernel '{name}'")))
    }

    /// Enqueues launches, with the buffers at the addresses that `place` returns.
    pub fn launch(
        &self,
        stream: GpuStream,
        plan: &LaunchPlan,
        place: impl Fn(BufferRole) -> Option<DevicePointer>,
    ) -> Result<(), DriverError> {
        for launch in &plan.launches {
            let entry = launch.entry;
            let value = |argument: &KernelArgument| match argument {
                KernelArgument::Buffer(role) => place(*role).map(KernelValue::Pointer),
                KernelArgument::Nowhere => Some(KernelValue::Pointer(0)),
                KernelArgument::U32(number) => Some(KernelValue::U32(*number)),
                KernelArgument::U64(number) => Some(KernelValue::U64(*number)),
            };
            let values: Option<SmallVec<[KernelValue; 12]>> = launch.arguments.iter().map(value).collect();
            let values = values.ok_or_else(|| DriverError::transient(format!("'{}' lacks a buffer", entry.name)))?;
            let shape = LaunchShape { grid: launch.grid, threads: entry.threads, shared_size: launch.shared_size };
            self.context().launch(stream, self.kernel(entry.name)?, shape, &values)?;
        }
        Ok(())
    }

    /// Its memory for tensors of requests.
    pub(super) const fn leases(&self) -> &LeasePool {
        &self.leases
    }

    /// Returns the account of its device's memory.
    pub fn device_account(&self) -> &MemoryBudget {
        &self.device_account
    }

    /// Returns the account of pinned memory.
    pub fn pinned_account(&self) -> &MemoryBudget {
        &self.pinned_account
    }

    /// Registers a waker to call when the context is left, for as long as its instance keeps it.
    pub fn keep(&self, waker: Waker) -> Arc<Waker> {
        let waker = Arc::new(waker);
        let mut wakers = locked(&self.wakers);
        // A context outlives its instances if models are reloaded.
        wakers.retain(|waker| waker.strong_count() > 0);
        wakers.push(Arc::downgrade(&waker));
        waker
    }

    /// A call failed and none will succeed again: the sharers of the context open another.
    pub fn set_broken(&self) {
        self.leave(BROKEN);
    }

    /// Work does not end: the context is left, with all memory in it, and its sharers open another.
    pub fn set_hung(&self) {
        self.leave(HUNG);
    }

    /// The sharers are woken: it is given back only when the idle ones do so too.
    fn leave(&self, state: u8) {
        if self.state.compare_exchange(WORKS, state, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            locked(&self.wakers).iter().filter_map(Weak::upgrade).for_each(|waker| waker.wake_by_ref());
        }
    }

    /// Returns true if it no longer takes work.
    pub fn is_broken(&self) -> bool {
        self.state.load(Ordering::SeqCst) != WORKS
    }

    /// Returns true if the device may still use the memory it was given.
    pub fn is_hung(&self) -> bool {
        self.state.load(Ordering::SeqCst) == HUNG
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        let mut primary = self.primary.as_deref().map(locked);
        if self.is_hung() {
            std::mem::forget(self.context.take());
            if let Some(primary) = &mut primary {
                primary.hangs = true;
            }
        }
        // If it hangs the memory stays counted, like everything that is left to the device.
        if let Some(context) = &self.context {
            self.leases.end(&**context, &self.device_account);
        }
        // Under the lock, so that it cannot be taken again meanwhile.
        drop(self.context.take());
        if let Some(primary) = &mut primary {
            primary.is_taken = false;
        }
    }
}

/// Loads every kernel, so that a driver that does not support them fails before a model does.
fn load_kernels(context: &dyn GpuContext) -> Result<BTreeMap<&'static str, GpuFunction>, DriverError> {
    let mut kernels = BTreeMap::new();
    for kernel in KernelModule::ALL {
        let module = context.load_module(kernel.ptx())?;
        for entry in kernel::entries().filter(|entry| entry.module == kernel) {
            kernels.insert(entry.name, context.function(module, entry.name)?);
        }
    }
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;
    use crate::gpu::fake::Fake;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_primary_context_that_broke_wakes_all_and_is_made_anew_when_all_have_given_it_back() {
        let fake = Fake::new(1);
        let gpu = fake.gpu(1 << 20, 1 << 20);
        let own = gpu.open().unwrap();
        let (first, second) = (gpu.open_primary().unwrap(), gpu.open_primary().unwrap());
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &own));
        assert_eq!(fake.contexts(), 2);
        let calls = Arc::new(Calls::default());
        let kept = [&first, &second].map(|opened| opened.keep(Waker::from(Arc::clone(&calls))));
        first.set_broken();
        first.set_broken();
        assert_eq!((calls.0.load(Ordering::SeqCst), kept.len()), (2, 2), "each once");
        assert!(!own.is_broken(), "our own goes on");
        drop(first);
        let error = gpu.open_primary().err().unwrap();
        assert_eq!(error.text, "the primary context of GPU 0 broke, and not all have given it back");
        drop(second);
        assert!(!gpu.open_primary().unwrap().is_broken());
        assert_eq!(fake.contexts(), 3);
    }

    #[test]
    fn a_waker_is_kept_no_longer_than_its_instance_keeps_it() {
        let fake = Fake::new(1);
        let opened = fake.gpu(1 << 20, 1 << 20).open().unwrap();
        let calls = Arc::new(Calls::default());
        for _ in 0..1_000 {
            drop(opened.keep(Waker::from(Arc::clone(&calls))));
        }
        assert_eq!((Arc::strong_count(&calls), locked(&opened.wakers).len()), (1, 1));
    }

    #[test]
    fn a_primary_context_that_hangs_is_not_taken_again() {
        let fake = Fake::new(2);
        let gpus = fake.gpus(1 << 20, 1 << 20);
        let [first, second] = [0, 1].map(|index| gpus.find(index).unwrap());
        first.open_primary().unwrap().set_hung();
        let want = "work that never ended holds the primary context of GPU 0; start the server anew";
        assert_eq!(first.open_primary().err().unwrap().text, want);
        assert!(first.open().is_ok() && second.open_primary().is_ok());
    }
}
