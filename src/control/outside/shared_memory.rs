//! The thread that owns the shared memory regions of clients (`--allow-client-shm`), and the thread that copies from and
//! to regions on GPUs, since such a copy blocks. A region in system memory is a file in `/dev/shm`, opened at
//! registration and accessed by `pread` and `pwrite`. It is never mapped: when a client truncates the file, a read fails,
//! while access to a mapping would end this process with SIGBUS (`docs/decisions/0011-shared-memory-by-copies.md`).

use std::any::Any;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;
use rustix::io::{pread, pwrite, retry_on_intr};

use crate::backend::gpu::driver::DriverError;
use crate::backend::gpu::{DeviceTensors, Gpu, Gpus, SharedContexts, SharedMemory, TensorLease};
use crate::control::machine::spawn::spawn;
use crate::error::Error;
use crate::log;
use crate::protocol::shared_memory::{
    MemoryError, Region, RegionDescription, RegionMemory, RegionOrder, RegionPlace, RegionRegistration, RegionRegistry,
    RegionSlice, key_name, without_gpus,
};
use crate::settings::Settings;
use crate::shard::ServerContext;
use crate::shard::mailbox::ShardNews;
use crate::shard::services::shared_memory::{
    CopyRequest, FetchedInput, OrderedRegions, PublishedRegions, RegionReply, SharedMemoryClient,
};

/// The directory of POSIX shared memory on Linux (`shm_open`).
const DIRECTORY: &str = "/dev/shm";

/// The receiving ends of the channels of a [`SharedMemoryClient`].
pub struct SharedMemoryReceivers {
    orders: Receiver<OrderedRegions>,
    copies: (Sender<CopyRequest>, Receiver<CopyRequest>),
    request_size_max: usize,
}

/// Returns the GPUs of this machine. Called for the first region on a GPU, so that a server without such regions does
/// not search for GPUs.
pub type FindGpus = Box<dyn Fn() -> Gpus + Send>;

/// Returns the channels between the shards and the two threads; `None` unless `--allow-client-shm`
/// is on.
pub fn shared_memory_client(settings: &Settings) -> Option<(SharedMemoryClient, SharedMemoryReceivers)> {
    let request_size_max = settings.client_shm.bytes_max;
    settings.client_shm.is_allowed.then(|| {
        let ((orders, ordered), copies) = (channel(), channel());
        let shared_memory_client = SharedMemoryClient::new(orders, copies.0.clone(), request_size_max);
        (shared_memory_client, SharedMemoryReceivers { orders: ordered, copies, request_size_max })
    })
}

/// Starts the two threads.
///
/// # Errors
/// `Unavailable` when a thread cannot be started.
pub fn start(
    receivers: SharedMemoryReceivers,
    server_context: &Arc<ServerContext>,
    gpus: FindGpus,
) -> Result<(), Error> {
    let SharedMemoryReceivers { orders, copies: (copying, copies), request_size_max } = receivers;
    let (registry, contexts) = (RegionRegistry::new(request_size_max), SharedContexts::default());
    let mut owner = RegionOwner { registry, server_context: Arc::downgrade(server_context), gpus, contexts, copying };
    spawn("shared-memory".to_owned(), move || {
        for (order, reply) in orders {
            owner.handle_order(order, reply);
        }
    })?;
    spawn("shared-memory-copies".to_owned(), move || copies.into_iter().for_each(copy))?;
    Ok(())
}

/// The owner of all regions. It runs on one thread, so registrations need no lock.
struct RegionOwner {
    registry: RegionRegistry,
    /// Weak: the context contains the sender of this thread's channel, and the thread ends when that is dropped.
    server_context: Weak<ServerContext>,
    gpus: FindGpus,
    contexts: SharedContexts,
    copying: Sender<CopyRequest>,
}

impl RegionOwner {
    /// Registers, unregisters or describes regions. A change is published to every shard, and the last shard that
    /// applies it drops `published`, which answers the client: then every shard knows the region.
    fn handle_order(&mut self, order: RegionOrder, reply: RegionReply<Vec<RegionDescription>>) {
        let before = Arc::downgrade(self.registry.regions());
        match order {
            RegionOrder::Status(kind, name) => return reply.send(self.registry.status(kind, &name)),
            RegionOrder::Unregister(kind, name) => self.registry.remove(kind, &name),
            RegionOrder::Register(registration) => {
                if let Err(error) = self.register(&registration) {
                    return reply.send(Err(error));
                }
            }
        }
        if before.as_ptr() == Arc::as_ptr(self.registry.regions()) {
            return reply.send(Ok(Vec::new()));
        }
        let published = Arc::new(PublishedRegions::new(Arc::clone(self.registry.regions()), reply));
        for mailbox in
            self.server_context.upgrade().iter().flat_map(|server_context| &server_context.control_link.mailboxes)
        {
            mailbox.push(ShardNews::Regions(Arc::clone(&published)));
        }
    }

    fn register(&mut self, registration: &RegionRegistration) -> Result<(), Error> {
        let description = &registration.description;
        self.registry.check(&description.name)?;
        let memory: Box<dyn RegionMemory> = match &description.place {
            RegionPlace::System { key, offset } => Box::new(SystemMemory::open(description, key, *offset)?),
            RegionPlace::Cuda { device } => Box::new(self.open_cuda(description, *device, &registration.handle)?),
        };
        self.registry.insert(Region::new(description.clone(), memory));
        Ok(())
    }
}

impl RegionOwner {
    fn open_cuda(&mut self, description: &RegionDescription, device: u64, handle: &[u8]) -> Result<CudaMemory, Error> {
        let gpus = (self.gpus)();
        if gpus.all().is_empty() {
            return Err(without_gpus(&description.name));
        }
        let gpu = u32::try_from(device).ok().and_then(|device| gpus.find(device));
        let (Some(gpu), Ok(handle)) = (gpu, handle.try_into()) else { return Err(description.invalid()) };
        // cudarc panics when the driver lacks a function, and an old driver may lack those for shared memory.
        let opened = catch_unwind(AssertUnwindSafe(|| self.contexts.open(gpu, handle)));
        let opened =
            opened.unwrap_or_else(|_| Err(DriverError::transient("the CUDA driver cannot open shared memory")));
        let memory = opened.map_err(|error| {
            log::warning(&format!("shared memory region '{}' on GPU {device}: {error}", description.name));
            description.invalid()
        })?;
        let memory = CudaMemory { memory: Some(memory), copying: self.copying.clone() };
        if memory.size() < description.size { Err(description.invalid()) } else { Ok(memory) }
    }
}

/// A region in a GPU's memory. Reads and writes block on the GPU, so they run on the copy thread ([`copy`]).
#[derive(Debug)]
struct CudaMemory {
    /// `Some` until `drop` takes it.
    memory: Option<SharedMemory>,
    copying: Sender<CopyRequest>,
}

impl CudaMemory {
    fn size(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.size() as u64)
    }

    fn opened(&self, offset: u64) -> Result<(&SharedMemory, usize), MemoryError> {
        let place = self.memory.as_ref().zip(usize::try_from(offset).ok());
        place.ok_or_else(|| MemoryError::Other(Error::internal("it is closed")))
    }
}

impl RegionMemory for CudaMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let (memory, offset) = self.opened(offset)?;
        memory.read(offset, out).map_err(|error| MemoryError::Other(error.into()))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let (memory, offset) = self.opened(offset)?;
        memory.write(offset, bytes).map_err(|error| MemoryError::Other(error.into()))
    }
}

impl Drop for CudaMemory {
    /// The last reference may be a shard's, and closing the memory blocks on the GPU: the copy thread closes it.
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let _ = self.copying.send(CopyRequest::End(Box::new(memory)));
        }
    }
}

/// Makes one copy from or to a GPU, on the copy thread.
fn copy(copy: CopyRequest) {
    match copy {
        CopyRequest::Lease(gpu, size, reply) => reply.send(Ok(lease(&gpu, size))),
        CopyRequest::Read(slice, None, reply) => reply.send(slice.read().map(FetchedInput::Host)),
        CopyRequest::Read(slice, Some(gpu), reply) => reply.send(read_to(&slice, &gpu)),
        CopyRequest::WriteFrom(slice, tensors, index, reply) => reply.send(write_from(&slice, &tensors, index)),
        CopyRequest::Write(slice, bytes, reply) => reply.send(slice.write(&bytes)),
        CopyRequest::End(memory) => drop(memory),
    }
}

/// Returns memory for a tensor in the models' context of a device; `None` if there is no room, or
/// no such context yet.
fn lease(gpu: &Gpu, size: usize) -> Option<TensorLease> {
    TensorLease::new(&gpu.opened()?, size).ok()
}

/// Copies an input to the place from which models take it on the device; over the host if there is
/// no room.
fn read_to(slice: &RegionSlice, gpu: &Gpu) -> Result<FetchedInput, Error> {
    let Some(lease) = lease(gpu, slice.size()) else { return slice.read().map(FetchedInput::Host) };
    slice.copy_by(|memory, offset| {
        let (memory, offset) = cuda_memory(memory)?.opened(offset)?;
        memory.read_to(offset, &lease).map_err(|error| MemoryError::Other(error.into()))
    })?;
    Ok(FetchedInput::Device(lease))
}

/// Copies an output from the place in which a model left it on the device.
fn write_from(slice: &RegionSlice, tensors: &DeviceTensors, index: usize) -> Result<(), Error> {
    let lease = tensors.output(index).filter(|lease| lease.is_written() && lease.size() <= slice.size());
    let lease = lease.ok_or_else(|| Error::internal("an output is not where it was to be written"))?;
    slice.copy_by(|memory, offset| {
        let (memory, offset) = cuda_memory(memory)?.opened(offset)?;
        memory.write_from(offset, lease).map_err(|error| MemoryError::Other(error.into()))
    })
}

fn cuda_memory(memory: &dyn Any) -> Result<&CudaMemory, MemoryError> {
    memory.downcast_ref().ok_or_else(|| MemoryError::Other(Error::internal("it is not in a GPU's memory")))
}

/// A region in system memory: a part of a file.
#[derive(Debug)]
struct SystemMemory {
    file: OwnedFd,
    /// Offset of the region in the file, in bytes.
    begin: u64,
}

impl SystemMemory {
    /// Opens the file of a key. The region starts at byte `begin` of it.
    fn open(description: &RegionDescription, key: &str, begin: u64) -> Result<Self, Error> {
        let name = key_name(&description.name, key)?;
        let refused = |_| Error::internal(format!("Unable to open shared memory region: '{key}'"));
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(DIRECTORY, directory, Mode::empty()).map_err(refused)?;
        // Neither a link nor a mount leads out of the directory, and the open of a pipe does not
        // block.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let file = match openat2(&directory, name, flags, Mode::empty(), resolve) {
            // Sandboxes forbid that call. A name without a slash leads nowhere else, and O_NOFOLLOW follows no link.
            Err(Errno::NOSYS | Errno::PERM) if !name.contains('/') => openat(&directory, name, flags, Mode::empty()),
            opened => opened,
        };
        let file = file.map_err(refused)?;
        let memory = Self { file, begin };
        // Decoding the registration has checked that this sum does not overflow.
        let end = begin.saturating_add(description.size);
        match memory.file_size().map_err(refused)? {
            None => Err(refused(Errno::INVAL)),
            Some(size) if end > size || description.size == 0 => Err(description.invalid()),
            Some(_) => Ok(memory),
        }
    }

    /// Returns the size of the file in bytes; `None` if it is not a regular file.
    fn file_size(&self) -> rustix::io::Result<Option<u64>> {
        let status = fstat(&self.file)?;
        let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        Ok(u64::try_from(status.st_size).ok().filter(|_| is_file))
    }
}

impl RegionMemory for SystemMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = self.begin + offset + done as u64;
            match retry_on_intr(|| pread(&self.file, &mut *rest, at)) {
                Ok(0) => return Err(MemoryError::Shrunk),
                Ok(count) => done += count,
                Err(error) => return Err(io_error("read", error)),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        // A write past the end would enlarge the client's file.
        let end = self.begin + offset + bytes.len() as u64;
        let size = self.file_size().map_err(|error| io_error("examined", error))?;
        if size.is_none_or(|size| size < end) {
            return Err(MemoryError::Shrunk);
        }
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let at = self.begin + offset + done as u64;
            match retry_on_intr(|| pwrite(&self.file, rest, at)) {
                Ok(0) => return Err(MemoryError::Shrunk),
                Ok(count) => done += count,
                Err(error) => return Err(io_error("written", error)),
            }
        }
        Ok(())
    }
}

fn io_error(what: &str, error: Errno) -> MemoryError {
    MemoryError::Other(Error::internal(format!("it cannot be {what}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::future::Future;
    use std::path::PathBuf;
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;

    use super::*;
    use crate::backend::gpu::driver::{GpuFault, SharedHandle};
    use crate::backend::gpu::fake::Fake;
    use crate::error::Code;
    use crate::protocol::shared_memory::RegionKind;

    /// A file of shared memory, removed in the end.
    struct File(PathBuf);

    impl File {
        fn new(name: &str, contents: &[u8]) -> Self {
            let name = format!("deuteron-test-{}-{name}", std::process::id());
            let file = Self(PathBuf::from(DIRECTORY).join(name));
            fs::write(&file.0, contents).unwrap();
            file
        }

        fn open(&self, offset: u64, size: u64) -> Result<SystemMemory, Error> {
            let key = format!("/{}", self.0.file_name().unwrap().to_str().unwrap());
            let place = RegionPlace::System { key: key.clone(), offset };
            SystemMemory::open(&RegionDescription { name: "r".to_owned(), size, place }, &key, offset)
        }

        fn resize(&self, size: u64) {
            OpenOptions::new().write(true).open(&self.0).unwrap().set_len(size).unwrap();
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn bytes_are_read_and_written_where_the_region_lies() {
        let file = File::new("bytes", b"0123456789");
        let memory = file.open(2, 8).unwrap();
        let mut out = [0; 3];
        assert_eq!((memory.read(1, &mut out), &out), (Ok(()), b"345"));
        assert_eq!((memory.write(5, b"abc"), fs::read(&file.0).unwrap()), (Ok(()), b"0123456abc".to_vec()));
        assert_eq!((memory.read(8, &mut []), memory.write(8, b"")), (Ok(()), Ok(())));
    }

    #[test]
    fn what_the_file_does_not_hold_is_not_registered() {
        let file = File::new("short", b"0123456789");
        let text = |offset, size| file.open(offset, size).err().map(|error| error.text().to_owned());
        assert_eq!(text(0, 10), None);
        let invalid = Some("failed to register shared memory region 'r': invalid args".to_owned());
        assert_eq!((text(0, 11), text(3, 8), text(0, 0)), (invalid.clone(), invalid.clone(), invalid));
        fs::remove_file(&file.0).unwrap();
        for size in [10, 0] {
            let why = text(0, size).unwrap();
            assert!(why.starts_with("Unable to open shared memory region: '/deuteron-test-"), "{why}");
        }
    }

    #[test]
    fn a_file_that_shrinks_is_told_of_and_stays_as_small() {
        let file = File::new("shrinks", &[7; 8192]);
        let memory = file.open(0, 8192).unwrap();
        file.resize(100);
        let mut out = [0; 64];
        assert_eq!((memory.read(0, &mut out), memory.write(36, &out)), (Ok(()), Ok(())));
        assert_eq!(memory.read(64, &mut out), Err(MemoryError::Shrunk));
        assert_eq!(memory.write(64, &out), Err(MemoryError::Shrunk));
        assert_eq!(fs::metadata(&file.0).unwrap().len(), 100);
        file.resize(8192);
        assert_eq!((memory.read(100, &mut out), out), (Ok(()), [0; 64]), "it came back, as zeros");
    }

    /// An owner with the devices of a driver, and the receiver of the copies that it requests.
    fn owner(gpus: Gpus) -> (RegionOwner, Receiver<CopyRequest>) {
        let (copying, copies) = channel();
        let (registry, contexts) = (RegionRegistry::new(64), SharedContexts::default());
        let owner = RegionOwner {
            registry,
            server_context: Weak::new(),
            gpus: Box::new(move || gpus.clone()),
            contexts,
            copying,
        };
        (owner, copies)
    }

    fn cuda(name: &str, handle: SharedHandle, device: u64, size: u64) -> RegionRegistration {
        RegionRegistration::cuda(name, handle.to_vec(), device, size).unwrap()
    }

    #[test]
    fn memory_of_a_gpu_is_registered_read_written_and_closed_where_it_may_wait() {
        let fake = Fake::new(2);
        let (mut owner, copies) = owner(fake.gpus(1_000, 1_000));
        let handle = fake.share(&[7; 64]);
        assert_eq!(owner.register(&cuda("g", handle, 1, 48)), Ok(()));
        assert_eq!(owner.register(&cuda("g", handle, 1, 48)).unwrap_err().code(), Code::AlreadyExists);
        let find = |owner: &RegionOwner, offset, size| owner.registry.regions().find("g", offset, size);
        let slice = find(&owner, 8, 4).unwrap();
        assert_eq!(slice.write(&[1, 2, 3, 4]), Ok(()));
        assert_eq!(find(&owner, 6, 8).unwrap().read().unwrap()[..], [7, 7, 1, 2, 3, 4, 7, 7]);
        assert_eq!(fake.shared(&handle)[8..12], [1, 2, 3, 4]);
        assert!(find(&owner, 40, 9).is_err(), "the rest is not registered");
        fake.fail_next("download", GpuFault::Sticky);
        let error = slice.read().unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.text().starts_with("shared memory region 'g': the GPU failed: CUDA_ERROR"), "{error}");
        owner.registry.remove(RegionKind::Cuda, "g");
        drop(slice);
        assert_eq!(fake.open_count(), 1, "not closed by whoever dropped it");
        copies.try_iter().for_each(copy);
        assert_eq!(fake.open_count(), 0);
    }

    #[test]
    fn memory_that_a_gpu_does_not_have_is_refused_and_nothing_stays_open() {
        let fake = Fake::new(1);
        let handle = fake.share(&[7; 64]);
        let (mut owner, copies) = owner(fake.gpus(1_000, 1_000));
        let mut refusal =
            |registration: &RegionRegistration| owner.register(registration).unwrap_err().text().to_owned();
        let invalid = "failed to register shared memory region 'g': invalid args";
        assert_eq!(refusal(&cuda("g", handle, 0, 65)), invalid, "too large");
        assert_eq!(refusal(&cuda("g", [9; 64], 0, 64)), invalid, "no such memory");
        assert_eq!(refusal(&cuda("g", handle, 1, 64)), invalid, "no such GPU");
        assert_eq!(refusal(&cuda("g", handle, u64::MAX, 64)), invalid, "no such GPU");
        copies.try_iter().for_each(copy);
        assert_eq!(fake.open_count(), 0);
        let (mut owner, _copies) = self::owner(Gpus::absent("none"));
        let want = "failed to register CUDA shared memory region: 'g', GPUs not supported";
        assert_eq!(owner.register(&cuda("g", handle, 0, 64)).unwrap_err(), Error::invalid(want));
    }

    #[test]
    fn tensors_stay_on_the_device_where_models_have_a_context_and_room() {
        let fake = Fake::new(1);
        let gpus = fake.gpus(1_000, 1_000);
        let (mut owner, _copies) = owner(gpus.clone());
        let handle = fake.share(&[7; 64]);
        owner.register(&cuda("g", handle, 0, 64)).unwrap();
        let gpu = gpus.find(0).unwrap();
        let slice = |offset, size| owner.registry.regions().find("g", offset, size).unwrap();
        let on_host =
            |slice: &RegionSlice| matches!(read_to(slice, gpu), Ok(FetchedInput::Host(bytes)) if bytes[..] == [7; 8]);
        assert!(on_host(&slice(4, 8)) && lease(gpu, 8).is_none(), "no model is there");
        let opened = gpu.open().unwrap();
        let Ok(FetchedInput::Device(input)) = read_to(&slice(4, 8), gpu) else { panic!("there is room") };
        let mut bytes = [0; 8];
        opened.context().download(input.pointer(), &mut bytes).unwrap();
        assert_eq!((bytes, input.size()), ([7; 8], 8));
        let output = lease(gpu, 4).unwrap();
        opened.context().upload(&[1, 2, 3, 4], output.pointer()).unwrap();
        let tensors = DeviceTensors { inputs: Vec::new(), outputs: vec![(2, output)] };
        let error = write_from(&slice(0, 64), &tensors, 2).unwrap_err();
        assert_eq!(error.text(), "an output is not where it was to be written");
        tensors.outputs[0].1.set_written();
        assert!(write_from(&slice(0, 64), &tensors, 1).is_err() && write_from(&slice(0, 3), &tensors, 2).is_err());
        assert_eq!(write_from(&slice(10, 4), &tensors, 2), Ok(()));
        assert_eq!(fake.shared(&handle)[9..15], [7, 1, 2, 3, 4, 7]);
        fake.fail_next("copy_across", GpuFault::Sticky);
        let error = read_to(&slice(4, 8), gpu).err().unwrap();
        assert!(error.text().starts_with("shared memory region 'g': the GPU failed: CUDA_ERROR"), "{error}");
        assert!(!opened.is_broken(), "it was work of the clients' context");
        let taken: Vec<_> = std::iter::from_fn(|| lease(gpu, 256)).collect();
        assert!(!taken.is_empty() && gpu.account().used() <= 1_000);
    }

    #[test]
    fn copies_are_made_in_their_order_and_answered() {
        let fake = Fake::new(1);
        let handle = fake.share(&[7; 8]);
        let (mut owner, _copies) = owner(fake.gpus(1_000, 1_000));
        owner.register(&cuda("g", handle, 0, 8)).unwrap();
        let slice = || owner.registry.regions().find("g", 0, 8).unwrap();
        let (orders, _ordered) = channel();
        let (copying, copies) = channel();
        let shared_memory_client = SharedMemoryClient::new(orders, copying, 8);
        let mut write = std::pin::pin!(shared_memory_client.write(slice(), Bytes::from_static(&[1; 8])));
        let mut read = std::pin::pin!(shared_memory_client.read(slice()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(write.as_mut().poll(&mut context).is_pending() && read.as_mut().poll(&mut context).is_pending());
        copies.try_iter().for_each(copy);
        assert_eq!(write.poll(&mut context), Poll::Ready(Ok(())));
        assert_eq!(read.poll(&mut context), Poll::Ready(Ok(Bytes::from_static(&[1; 8]))));
    }
}
