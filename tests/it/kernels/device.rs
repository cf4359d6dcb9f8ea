//! The kernels on a GPU, by the driver that the GPU executor uses: memory with marks before and behind it, launches, and
//! the time between two events.

#![expect(unsafe_code, reason = "host memory is handed to the driver by its address")]

use std::sync::Arc;
use std::time::Duration;

use deuteron::backend::gpu::cuda;
use deuteron::backend::gpu::driver::{
    DevicePointer, DeviceProperties, DriverError, GpuContext, GpuEvent, GpuFunction, GpuStream, KernelValue,
    LaunchShape,
};
use deuteron::backend::kernel::{BufferRole, KernelArgument, KernelLaunch, KernelModule, LaunchPlan};

use super::case::Case;

pub struct Device {
    context: Arc<dyn GpuContext>,
    stream: GpuStream,
    functions: Vec<(&'static str, GpuFunction)>,
}

/// Marked bytes before and behind each buffer; the smallest multiple of the alignment of allocations.
const MARGIN: usize = 256;
const MARK: u8 = 0xee;

impl Device {
    /// The first device; an error without any.
    pub fn open() -> Result<Self, String> {
        let driver = cuda::find()?;
        let device = driver.devices().first().ok_or("there is no device")?.index;
        let context = driver.new_context(device).map_err(|error| error.to_string())?;
        let found = |error: DriverError| error.to_string();
        let stream = context.new_stream().map_err(found)?;
        let mut functions = Vec::new();
        for module in KernelModule::ALL {
            let loaded = context.load_module(module.ptx()).map_err(found)?;
            for entry in backend::kernel::entries().filter(|entry| entry.module == module) {
                functions.push((entry.name, context.function(loaded, entry.name).map_err(found)?));
            }
        }
        Ok(Self { context, stream, functions })
    }

    /// The context.
    pub fn context(&self) -> &dyn GpuContext {
        &*self.context
    }

    pub fn properties(&self) -> &DeviceProperties {
        self.context.device()
    }

    /// The stream, as CUDA has it.
    pub fn stream(&self) -> GpuStream {
        self.stream
    }

    /// Device memory that holds these bytes; given back when the process ends.
    pub fn upload(&self, bytes: &[u8]) -> DevicePointer {
        let pointer = self.context.alloc(bytes.len().max(1)).expect("the device has memory");
        self.context.upload(bytes, pointer).expect("the device takes bytes");
        pointer
    }

    /// Device memory, of anything.
    pub fn alloc(&self, size: usize) -> DevicePointer {
        self.context.alloc(size).expect("the device has memory")
    }

    /// Enqueues a plan.
    pub fn enqueue(&self, plan: &LaunchPlan, place: impl Fn(BufferRole) -> DevicePointer) {
        self.enqueue_on(self.stream, plan, place);
    }

    /// Enqueues a plan on another stream.
    pub fn enqueue_on(&self, stream: GpuStream, plan: &LaunchPlan, place: impl Fn(BufferRole) -> DevicePointer) {
        for launch in &plan.launches {
            self.launch(stream, launch, &place);
        }
    }

    /// Enqueues work between two events, waits for the second, and returns the time.
    pub fn timed(&self, work: impl FnOnce()) -> Duration {
        let [begin, end] = [(); 2].map(|()| self.context.new_event(true).expect("the device makes events"));
        self.context.record(begin, self.stream).expect("the stream takes an event");
        work();
        self.context.record(end, self.stream).expect("the stream takes an event");
        self.wait(end);
        let elapsed = self.context.elapsed(begin, end).expect("both events passed");
        // SAFETY: both were made here, and are no longer used.
        [begin, end].into_iter().for_each(|event| unsafe { self.context.end_event(event) });
        elapsed
    }

    /// Runs a case and compares it with the twin.
    pub fn check(&self, case: &Case) {
        let mark = [MARK; MARGIN];
        let held = |bytes: &[u8]| [&mark, bytes, &mark].concat();
        let places: Vec<DevicePointer> = case.buffers.iter().map(|buffer| self.upload(&held(&buffer.before))).collect();
        self.timed(|| {
            self.enqueue(&case.plan, |role| {
                let place = case.buffers.iter().position(|buffer| buffer.role == role);
                places[place.unwrap_or_else(|| panic!("{}: no {role:?}", case.label))] + MARGIN as u64
            });
        });
        let got: Vec<Vec<u8>> = case
            .buffers
            .iter()
            .zip(&places)
            .map(|(buffer, place)| {
                let mut bytes = self.download(*place, buffer.before.len() + 2 * MARGIN);
                self.context.free(*place);
                let behind = bytes.split_off(MARGIN + buffer.before.len());
                let contents = bytes.split_off(MARGIN);
                assert!(bytes == mark && behind == mark, "{}: a write beside {:?}", case.label, buffer.role);
                contents
            })
            .collect();
        case.check(&got);
    }

    fn launch(&self, stream: GpuStream, launch: &KernelLaunch, place: &impl Fn(BufferRole) -> DevicePointer) {
        let entry = launch.entry;
        let function = self.functions.iter().find(|(name, _)| *name == entry.name).expect("the table is loaded").1;
        let value = |argument: &KernelArgument| match *argument {
            KernelArgument::Buffer(role) => KernelValue::Pointer(place(role)),
            KernelArgument::Nowhere => KernelValue::Pointer(0),
            KernelArgument::U32(number) => KernelValue::U32(number),
            KernelArgument::U64(number) => KernelValue::U64(number),
        };
        let values: Vec<KernelValue> = launch.arguments.iter().map(value).collect();
        let shape = LaunchShape { grid: launch.grid, threads: entry.threads, shared_size: launch.shared_size };
        let launched = self.context.launch(stream, function, shape, &values);
        launched.unwrap_or_else(|error| panic!("{}: {error}", entry.name));
    }

    /// Waits until an event was passed.
    pub fn wait(&self, event: GpuEvent) {
        loop {
            match self.context.is_passed(event) {
                Ok(true) => return,
                Ok(false) => std::thread::yield_now(),
                Err(error) => panic!("a kernel failed: {error}"),
            }
        }
    }

    /// Bytes of device memory.
    pub fn download(&self, from: DevicePointer, size: usize) -> Vec<u8> {
        let pinned = self.context.alloc_pinned(size).expect("the host has memory");
        self.timed(|| {
            // SAFETY: the memory was just made, of that size, and is not touched before the copy was waited for.
            let copied = unsafe { self.context.copy_out(self.stream, from, pinned.as_ptr(), size) };
            copied.expect("the device gives bytes");
        });
        // SAFETY: the copy filled `size` bytes of it, and is over.
        let bytes = unsafe { std::slice::from_raw_parts(pinned.as_ptr(), size) }.to_vec();
        // SAFETY: it came from this context, and the only copy was waited for.
        unsafe { self.context.free_pinned(pinned) };
        bytes
    }
}
