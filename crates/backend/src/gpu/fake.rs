//! A driver without a device, for tests: keeps the order of each stream, executes and fails as
//! told, and computes by the CPU twins. Tests read its timeline. Memory is poisoned before it is
//! written; a wrong pointer breaks the context, as on a device.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a fixture of tests, which fail by panicking"
)]
#![expect(unsafe_code, reason = "it is given host memory by its address, as the driver")]
#![expect(clippy::disallowed_types, reason = "tests of several threads share it")]

use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::gpu::device::{Gpu, Gpus, MemoryLimits};
use crate::gpu::driver::{
    Blas, ContextMemory, DevicePointer, DeviceProperties, DriverError, GpuContext, GpuContextHandle, GpuDriver,
    GpuEvent, GpuFault, GpuFunction, GpuModule, GpuStream, KernelValue, LaunchShape, MatrixProduct, SharedHandle,
};
use crate::gpu::fake_kernels::{self, HostMemory};

/// An enqueued step.
#[derive(Debug)]
enum EnqueuedStep {
    CopyIn { from: usize, to: DevicePointer, size: usize },
    CopyOut { from: DevicePointer, to: usize, size: usize },
    Launch { name: String, grid: [u32; 2], values: Vec<KernelValue> },
    Matmul(MatrixProduct),
    Record(GpuEvent),
    Wake(Arc<Waker>),
}

#[derive(Default)]
struct FakeStream {
    context: usize,
    steps: VecDeque<EnqueuedStep>,
}

#[derive(Default)]
struct FakeState {
    memory: HostMemory,
    pinned: BTreeMap<usize, Box<[u8]>>,
    streams: Vec<FakeStream>,
    /// The time at which each event was passed; `None` while it is recorded and not passed.
    events: Vec<Option<u64>>,
    functions: Vec<String>,
    /// Memory of another process, by its handle, and the parts of it that are open.
    shared: BTreeMap<SharedHandle, (DevicePointer, usize)>,
    open: Vec<DevicePointer>,
    contexts_broken: Vec<bool>,
    /// The existing primary contexts by device.
    primaries: BTreeMap<u32, usize>,
    failures: Vec<(&'static str, GpuFault)>,
    /// True if steps are done only by [`Fake::step`].
    is_held: bool,
    loses_wakes: bool,
    has_no_blas: bool,
    now: u64,
    foreign_calls: usize,
    allocations: usize,
    timeline: String,
}

/// The driver.
pub struct Fake {
    state: Mutex<FakeState>,
    devices: Vec<DeviceProperties>,
}

struct FakeContext {
    fake: Arc<Fake>,
    index: usize,
    device: DeviceProperties,
}

impl Drop for FakeContext {
    fn drop(&mut self) {
        self.fake.lock().primaries.retain(|_, index| *index != self.index);
    }
}

struct FakeBlas {
    fake: Arc<Fake>,
    context: usize,
}

/// The driver in the executor's form.
struct FakeHandle(Arc<Fake>);

impl Fake {
    /// A driver of `devices` devices, which executes everything at once.
    pub fn new(devices: u32) -> Arc<Self> {
        let device = |index| DeviceProperties {
            index,
            name: "Fake".to_owned(),
            uuid: format!("GPU-{index}"),
            memory: 1 << 30,
            capability: (9, 0),
            multiprocessors: 4,
        };
        Arc::new(Self { state: Mutex::default(), devices: (0..devices).map(device).collect() })
    }

    /// Its devices, with `device` bytes of their memory and `pinned` bytes of pinned memory.
    pub fn gpus(self: &Arc<Self>, device: usize, pinned: usize) -> Gpus {
        let driver: Arc<dyn GpuDriver> = Arc::new(FakeHandle(Arc::clone(self)));
        Gpus::of_driver(&driver, MemoryLimits { device, pinned })
    }

    /// Its first device.
    pub fn gpu(self: &Arc<Self>, device: usize, pinned: usize) -> Arc<Gpu> {
        Arc::clone(self.gpus(device, pinned).find(0).unwrap())
    }

    /// From now on nothing is executed before [`Self::step`].
    pub fn hold(&self) {
        self.lock().is_held = true;
    }

    /// Executes the next step of a stream; returns true if there was one.
    pub fn step(&self, stream: usize) -> bool {
        let mut state = self.lock();
        let is_broken = state.streams.get(stream).is_none_or(|stream| state.contexts_broken[stream.context]);
        let step = if is_broken { None } else { state.streams[stream].steps.pop_front() };
        let Some(step) = step else { return false };
        let waker = state.run(stream, step);
        drop(state);
        if let Some(waker) = waker {
            waker.wake_by_ref();
        }
        true
    }

    /// Executes all steps that a stream has now. Steps that a woken thread enqueues meanwhile are
    /// left.
    pub fn finish(&self, stream: usize) {
        let count = self.lock().streams.get(stream).map_or(0, |stream| stream.steps.len());
        for _ in 0..count {
            self.step(stream);
        }
    }

    /// Makes the next call of a name fail.
    pub fn fail_next(&self, call: &'static str, fault: GpuFault) {
        self.lock().failures.push((call, fault));
    }

    /// Breaks every context: work that was begun never ends, and no waker is called.
    pub fn break_contexts(&self) {
        self.lock().contexts_broken.iter_mut().for_each(|broken| *broken = true);
    }

    /// From now on no waker is called.
    pub fn lose_wakes(&self) {
        self.lock().loses_wakes = true;
    }

    /// From now on no library multiplies matrices.
    pub fn remove_blas(&self) {
        self.lock().has_no_blas = true;
    }

    /// Makes memory of another process with these bytes; returns its handle.
    pub fn share(&self, contents: &[u8]) -> SharedHandle {
        let mut state = self.lock();
        let pointer = state.memory.alloc(contents.len());
        state.memory.write(pointer, contents).expect("it was taken just now");
        let mut handle = [0; 64];
        handle[..8].copy_from_slice(&pointer.to_le_bytes());
        state.shared.insert(handle, (pointer, contents.len()));
        handle
    }

    /// Returns the contents of memory that another process shares.
    pub fn shared(&self, handle: &SharedHandle) -> Vec<u8> {
        let state = self.lock();
        let (pointer, size) = state.shared[handle];
        state.memory.read(pointer, size).expect("it is there").to_vec()
    }

    /// Memory of another process that is open, counted per opening.
    pub fn open_count(&self) -> usize {
        self.lock().open.len()
    }

    /// Bytes allocated on the devices and pinned.
    pub fn held(&self) -> usize {
        let state = self.lock();
        state.memory.size() + state.pinned.values().map(|bytes| bytes.len()).sum::<usize>()
    }

    /// Allocations of memory, and streams and events made.
    pub fn allocations(&self) -> usize {
        self.lock().allocations
    }

    /// Calls of libraries that may have left another context on their thread.
    pub fn foreign_calls(&self) -> usize {
        self.lock().foreign_calls
    }

    /// Contexts that were made.
    pub fn contexts(&self) -> usize {
        self.lock().contexts_broken.len()
    }

    /// Returns the events since the last call: `+` for an enqueued step, `-` for an executed one.
    pub fn take_timeline(&self) -> String {
        std::mem::take(&mut self.lock().timeline)
    }

    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if the next call of this name is to fail, or the context is broken.
    fn check(&self, context: usize, call: &'static str) -> Result<MutexGuard<'_, FakeState>, DriverError> {
        let mut state = self.lock();
        if state.contexts_broken[context] {
            return Err(DriverError::from_code(700, "CUDA_ERROR_ILLEGAL_ADDRESS", call));
        }
        let Some(place) = state.failures.iter().position(|(failing, _)| *failing == call) else { return Ok(state) };
        let (_, fault) = state.failures.remove(place);
        if fault == GpuFault::Sticky {
            state.contexts_broken[context] = true;
        }
        let (code, name) = match fault {
            GpuFault::Memory => (2, "CUDA_ERROR_OUT_OF_MEMORY"),
            GpuFault::Transient => (1, "CUDA_ERROR_INVALID_VALUE"),
            GpuFault::Sticky => (719, "CUDA_ERROR_LAUNCH_FAILED"),
        };
        Err(DriverError::from_code(code, name, call))
    }

    fn enqueue(
        &self,
        context: usize,
        call: &'static str,
        stream: GpuStream,
        step: EnqueuedStep,
    ) -> Result<(), DriverError> {
        let mut state = self.check(context, call)?;
        state.tell('+', stream.as_raw(), &step);
        if let EnqueuedStep::Record(event) = step {
            state.events[event.as_raw()] = None;
        }
        state.streams[stream.as_raw()].steps.push_back(step);
        let is_held = state.is_held;
        drop(state);
        if !is_held {
            self.finish(stream.as_raw());
        }
        Ok(())
    }
}

impl FakeState {
    fn tell(&mut self, sign: char, stream: usize, step: &EnqueuedStep) {
        let what = match step {
            EnqueuedStep::CopyIn { size, .. } => format!("in {size}"),
            EnqueuedStep::CopyOut { size, .. } => format!("out {size}"),
            EnqueuedStep::Launch { name, .. } => name.clone(),
            EnqueuedStep::Matmul(matmul) => format!("matmul {}x{}x{}", matmul.rows, matmul.inner, matmul.columns),
            EnqueuedStep::Record(_) => return,
            EnqueuedStep::Wake(_) => "wake".to_owned(),
        };
        self.timeline.push_str(&format!("{sign}s{stream} {what}\n"));
    }

    /// Executes a step; returns the waker to call.
    fn run(&mut self, stream: usize, step: EnqueuedStep) -> Option<Arc<Waker>> {
        self.now += 1;
        self.tell('-', stream, &step);
        let is_sound = match step {
            EnqueuedStep::CopyIn { from, to, size } => {
                // SAFETY: its enqueuer keeps the pinned memory unchanged until now.
                let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, size) };
                self.memory.write(to, bytes)
            }
            EnqueuedStep::CopyOut { from, to, size } => self.memory.read(from, size).map(<[u8]>::to_vec).map(|bytes| {
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, size) }
            }),
            EnqueuedStep::Launch { name, grid, values } => fake_kernels::launch(&mut self.memory, &name, grid, &values),
            EnqueuedStep::Matmul(matmul) => fake_kernels::multiply(&mut self.memory, &matmul),
            EnqueuedStep::Record(event) => {
                self.events[event.as_raw()] = Some(self.now);
                Some(())
            }
            EnqueuedStep::Wake(waker) if !self.loses_wakes => return Some(waker),
            EnqueuedStep::Wake(_) => Some(()),
        };
        if is_sound.is_none() {
            let context = self.streams[stream].context;
            self.contexts_broken[context] = true;
        }
        None
    }
}

impl GpuDriver for FakeHandle {
    fn devices(&self) -> &[DeviceProperties] {
        &self.0.devices
    }

    fn new_context(&self, device: u32) -> Result<Arc<dyn GpuContext>, DriverError> {
        let mut state = self.0.lock();
        state.contexts_broken.push(false);
        let index = state.contexts_broken.len() - 1;
        let device = self.0.devices[device as usize].clone();
        drop(state);
        Ok(Arc::new(FakeContext { fake: Arc::clone(&self.0), index, device }))
    }

    fn primary_context(&self, device: u32) -> Result<Arc<dyn GpuContext>, DriverError> {
        assert!(!self.0.lock().primaries.contains_key(&device), "it is taken by one for all");
        let context = self.new_context(device)?;
        let mut state = self.0.lock();
        let index = state.contexts_broken.len() - 1;
        state.primaries.insert(device, index);
        Ok(context)
    }
}

impl GpuContext for FakeContext {
    fn device(&self) -> &DeviceProperties {
        &self.device
    }

    fn free_memory(&self) -> Result<usize, DriverError> {
        Ok(self.device.memory - self.fake.check(self.index, "free_memory")?.memory.size())
    }

    fn handle_foreign_call(&self) {
        self.fake.lock().foreign_calls += 1;
    }

    fn alloc(&self, size: usize) -> Result<DevicePointer, DriverError> {
        let mut state = self.fake.check(self.index, "alloc")?;
        state.allocations += 1;
        Ok(state.memory.alloc(size))
    }

    fn free(&self, pointer: DevicePointer) {
        assert!(self.fake.lock().memory.free(pointer), "freed twice");
    }

    fn alloc_pinned(&self, size: usize) -> Result<NonNull<u8>, DriverError> {
        let mut state = self.fake.check(self.index, "alloc_pinned")?;
        state.allocations += 1;
        let mut bytes = vec![0xa5; size].into_boxed_slice();
        let pointer = NonNull::new(bytes.as_mut_ptr()).unwrap();
        state.pinned.insert(pointer.as_ptr() as usize, bytes);
        Ok(pointer)
    }

    // SAFETY: the callers uphold the conditions of the trait.
    unsafe fn free_pinned(&self, pointer: NonNull<u8>) {
        assert!(self.fake.lock().pinned.remove(&(pointer.as_ptr() as usize)).is_some(), "freed twice");
    }

    fn new_stream(&self) -> Result<GpuStream, DriverError> {
        let mut state = self.fake.check(self.index, "new_stream")?;
        state.allocations += 1;
        state.streams.push(FakeStream { context: self.index, ..FakeStream::default() });
        // SAFETY: it is the index of the stream here.
        Ok(unsafe { GpuStream::from_raw(state.streams.len() - 1) })
    }

    // SAFETY: the callers uphold the conditions of the trait.
    unsafe fn end_stream(&self, _: GpuStream) {}

    fn new_event(&self, _: bool) -> Result<GpuEvent, DriverError> {
        let mut state = self.fake.check(self.index, "new_event")?;
        state.allocations += 1;
        state.events.push(Some(0));
        // SAFETY: as above.
        Ok(unsafe { GpuEvent::from_raw(state.events.len() - 1) })
    }

    // SAFETY: the callers uphold the conditions of the trait.
    unsafe fn end_event(&self, _: GpuEvent) {}

    fn load_module(&self, ptx: &str) -> Result<GpuModule, DriverError> {
        assert!(ptx.contains(".entry"), "it is PTX");
        self.fake.check(self.index, "load_module").map(|_| {
            // SAFETY: a module has no state here.
            unsafe { GpuModule::from_raw(0) }
        })
    }

    fn function(&self, _: GpuModule, name: &str) -> Result<GpuFunction, DriverError> {
        let mut state = self.fake.check(self.index, "function")?;
        state.functions.push(name.to_owned());
        // SAFETY: it is the index of its name here.
        Ok(unsafe { GpuFunction::from_raw(state.functions.len() - 1) })
    }

    fn new_blas(&self) -> Result<Box<dyn Blas>, DriverError> {
        if self.fake.check(self.index, "new_blas")?.has_no_blas {
            return Err(DriverError::transient("cuBLASLt is not installed"));
        }
        Ok(Box::new(FakeBlas { fake: Arc::clone(&self.fake), context: self.index }))
    }

    // SAFETY: the callers uphold the conditions of the trait.
    unsafe fn copy_in(
        &self,
        stream: GpuStream,
        from: *const u8,
        to: DevicePointer,
        size: usize,
    ) -> Result<(), DriverError> {
        self.fake.enqueue(self.index, "copy_in", stream, EnqueuedStep::CopyIn { from: from as usize, to, size })
    }

    // SAFETY: the callers uphold the conditions of the trait.
    unsafe fn copy_out(
        &self,
        stream: GpuStream,
        from: DevicePointer,
        to: *mut u8,
        size: usize,
    ) -> Result<(), DriverError> {
        self.fake.enqueue(self.index, "copy_out", stream, EnqueuedStep::CopyOut { from, to: to as usize, size })
    }

    fn upload(&self, from: &[u8], to: DevicePointer) -> Result<(), DriverError> {
        let mut state = self.fake.check(self.index, "upload")?;
        state.memory.write(to, from).ok_or_else(|| DriverError::from_code(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "upload"))
    }

    fn download(&self, from: DevicePointer, to: &mut [u8]) -> Result<(), DriverError> {
        let state = self.fake.check(self.index, "download")?;
        let broken = || DriverError::from_code(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "download");
        to.copy_from_slice(state.memory.read(from, to.len()).ok_or_else(broken)?);
        Ok(())
    }

    fn open_shared(&self, handle: &SharedHandle) -> Result<(DevicePointer, usize), DriverError> {
        let mut state = self.fake.check(self.index, "open_shared")?;
        let found = state.shared.get(handle).copied();
        let found = found.ok_or_else(|| DriverError::from_code(1, "CUDA_ERROR_INVALID_VALUE", "open_shared"))?;
        state.open.push(found.0);
        Ok(found)
    }

    fn handle(&self) -> GpuContextHandle {
        // SAFETY: it is the index of the context here.
        unsafe { GpuContextHandle::from_raw(self.index) }
    }

    fn copy_across(&self, from: ContextMemory<'_>, to: ContextMemory<'_>, size: usize) -> Result<(), DriverError> {
        let mut state = self.fake.check(self.index, "copy_across")?;
        assert!(
            [from.context, to.context].iter().any(|context| context.handle().as_raw() == self.index),
            "it is one of both"
        );
        state.timeline.push_str(&format!("across {size}\n"));
        let bytes = state.memory.read(from.pointer, size).map(<[u8]>::to_vec);
        let copied = bytes.and_then(|bytes| state.memory.write(to.pointer, &bytes));
        copied.ok_or_else(|| DriverError::from_code(1, "CUDA_ERROR_INVALID_VALUE", "copy_across"))
    }

    fn close_shared(&self, pointer: DevicePointer) {
        let mut state = self.fake.lock();
        let place = state.open.iter().position(|open| *open == pointer).expect("it is closed once");
        state.open.swap_remove(place);
    }

    fn launch(
        &self,
        stream: GpuStream,
        function: GpuFunction,
        shape: LaunchShape,
        values: &[KernelValue],
    ) -> Result<(), DriverError> {
        assert!(shape.grid.iter().all(|blocks| *blocks > 0) && shape.threads > 0);
        let name = self.fake.lock().functions[function.as_raw()].clone();
        let step = EnqueuedStep::Launch { name, grid: shape.grid, values: values.to_vec() };
        self.fake.enqueue(self.index, "launch", stream, step)
    }

    fn record(&self, event: GpuEvent, stream: GpuStream) -> Result<(), DriverError> {
        self.fake.enqueue(self.index, "record", stream, EnqueuedStep::Record(event))
    }

    fn is_passed(&self, event: GpuEvent) -> Result<bool, DriverError> {
        Ok(self.fake.check(self.index, "is_passed")?.events[event.as_raw()].is_some())
    }

    fn elapsed(&self, begin: GpuEvent, end: GpuEvent) -> Result<Duration, DriverError> {
        let state = self.fake.check(self.index, "elapsed")?;
        let at = |event: GpuEvent| state.events[event.as_raw()].ok_or_else(|| DriverError::transient("not passed"));
        Ok(Duration::from_micros(at(end)? - at(begin)?))
    }

    fn wake(&self, stream: GpuStream, waker: &Arc<Waker>) -> Result<(), DriverError> {
        self.fake.enqueue(self.index, "wake", stream, EnqueuedStep::Wake(Arc::clone(waker)))
    }
}

impl Blas for FakeBlas {
    fn enqueue(&mut self, stream: GpuStream, matmul: &MatrixProduct) -> Result<(), DriverError> {
        self.fake.enqueue(self.context, "matmul", stream, EnqueuedStep::Matmul(*matmul))
    }
}
