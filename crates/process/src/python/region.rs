//! The memory that the server shares with a Python process: one region that the server writes inputs to, one that the
//! process writes outputs to. Both are memfds without a name anywhere, of a size that is sealed, so that no access
//! faults.
//!
//! **The process and the bytes.** It may write both regions at any time, also while they are read
//! here. So no value in them decides which memory is read or written: the lengths of BYTES are read
//! from a copy only. Elements of numbers have no invalid values; one that changes while it is sent
//! is the process's own output. Engines are another matter: an operator may check an index and read
//! it again. Tensors that go on to a model are copied.

#![expect(unsafe_code, reason = "memory that is shared with another process")]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use bytes::Bytes;
use crossbeam_queue::SegQueue;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::limits::PYTHON_VIEW_SIZE_MIN;
use crate::python::message::{ClaimedTensor, MessageError, Span, SpanLayout};
use base::limits::TENSOR_ALIGNMENT;
use base::tensor::strings::Strings;
use base::tensor::{AlignedBuffer, Datatype, Tensor, byte_size, element_count};

/// The region that the server writes. One owner writes it at a time.
pub struct RequestRegion {
    mapping: Mapping,
}

impl RequestRegion {
    /// A new region of `size` bytes, all zero.
    ///
    /// # Errors
    ///
    /// If the system has no memory or no descriptor for it, or the size is zero.
    pub fn new(size: usize) -> io::Result<Self> {
        Mapping::new(size, ProtFlags::READ | ProtFlags::WRITE).map(|mapping| Self { mapping })
    }

    /// The region that a process of this program writes: the response region of the server that started it.
    ///
    /// # Errors
    ///
    /// If it cannot be mapped.
    pub fn of_server(file: OwnedFd) -> io::Result<Self> {
        Mapping::of_file(file, ProtFlags::READ | ProtFlags::WRITE).map(|mapping| Self { mapping })
    }

    /// The descriptor that the process maps.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.file.as_fd()
    }

    /// Its bytes.
    pub const fn size(&self) -> usize {
        self.mapping.size
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    ///
    /// [`MessageError::Range`] if they would not fit; nothing is written then.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MessageError> {
        let offset = self.mapping.check(offset, bytes.len() as u64)?;
        // SAFETY: `check` found `offset..offset + len` inside the mapping, which is writeable and
        // lives as long as `self`. `bytes` is other memory, since no reference into this mapping is
        // given out. `&mut self` keeps other threads of the server out; the process may write there
        // too, which affects only its own reads.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.mapping.address.as_ptr().add(offset), bytes.len());
        }
        Ok(())
    }

    /// Writes parts into a span, placed by [`SpanLayout`].
    ///
    /// # Errors
    ///
    /// [`MessageError::Range`] if one would go beyond the span or the region.
    pub fn write_parts<'a>(
        &mut self,
        span: &Span,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), MessageError> {
        let mut layout = SpanLayout::default();
        for part in parts {
            let offset = layout.place(part.len());
            if layout.size() > span.size {
                return Err(MessageError::Range);
            }
            self.write(span.offset.checked_add(offset).ok_or(MessageError::Range)?, part)?;
        }
        Ok(())
    }

    /// Gives the whole pages of a free range back to the system; they read as zeros afterwards.
    ///
    /// # Errors
    ///
    /// If the system refuses. The memory stays as it is then.
    pub fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.punch(range)
    }
}

/// Bytes at the start of the first response region that belong to the protocol, not to a slot.
pub const HEAD_SIZE: usize = 64;

/// The region that the process writes. Tensors may be views into it, so that it lives as long as they do.
pub struct ResponseRegion {
    mapping: Mapping,
}

impl ResponseRegion {
    /// A new region of `size` bytes, all zero.
    ///
    /// # Errors
    ///
    /// If the system has no memory or no descriptor for it, or the size is zero.
    pub fn new(size: usize) -> io::Result<Arc<Self>> {
        Mapping::new(size, ProtFlags::READ).map(|mapping| Arc::new(Self { mapping }))
    }

    /// The region that a process of this program reads: the request region of the server that started it.
    ///
    /// # Errors
    ///
    /// If it cannot be mapped.
    pub fn of_server(file: OwnedFd) -> io::Result<Arc<Self>> {
        Mapping::of_file(file, ProtFlags::READ).map(|mapping| Arc::new(Self { mapping }))
    }

    /// The descriptor that the process maps.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.file.as_fd()
    }

    /// Its bytes.
    pub const fn size(&self) -> usize {
        self.mapping.size
    }

    /// The number at the start of the region: the batch that the process began last. A claim, as
    /// all data of the process.
    pub fn begun_batch(&self) -> u64 {
        self.number(0)
    }

    /// Returns true if the program of the process has begun: before, only the interpreter runs. A
    /// claim, as all data of the process.
    pub fn has_program(&self) -> bool {
        self.number(1) != 0
    }

    /// The bytes of a part of a span, copied out.
    ///
    /// # Errors
    ///
    /// [`MessageError::Range`] if it lies outside the span, or the span outside the region.
    pub fn copy_out(&self, span: &Span, offset: u64, size: u64) -> Result<Bytes, MessageError> {
        let range = self.part(span, offset, size)?;
        let mut buffer = AlignedBuffer::with_capacity(range.len());
        buffer.extend_from_slice(self.mapping.bytes(range));
        Ok(buffer.freeze())
    }

    /// Gives the whole pages of a free range back to the system; they read as zeros afterwards.
    ///
    /// # Errors
    ///
    /// If the system refuses. The memory stays as it is then.
    pub fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.punch(range)
    }

    /// A number of 64 bits at the start of the region, counted from 0.
    fn number(&self, index: usize) -> u64 {
        if self.mapping.size < HEAD_SIZE || index >= HEAD_SIZE / size_of::<u64>() {
            return 0;
        }
        // SAFETY: the mapping is aligned to a page, has the head, and lives as long as `self`. It is read-only here: a
        // relaxed load of 64 bits never writes. The process writes the number at once.
        let number = unsafe { AtomicU64::from_ptr(self.mapping.address.as_ptr().cast::<u64>().add(index)) };
        u64::from_le(number.load(Ordering::Relaxed))
    }

    /// The place of a part of a span in the mapping.
    fn part(&self, span: &Span, offset: u64, size: u64) -> Result<Range<usize>, MessageError> {
        self.mapping.check(span.offset, span.size)?;
        let end = offset.checked_add(size).filter(|end| *end <= span.size).ok_or(MessageError::Range)?;
        let begin = self.mapping.check(span.offset + offset, end - offset)?;
        Ok(begin..begin + usize::try_from(size).map_err(|_| MessageError::Range)?)
    }
}

/// The rule for leaving a tensor in the memory of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorPolicy {
    /// It is copied: an engine will read it, or the process needs its memory back.
    Copy,
    /// It may be a view, if that is worth it: it is only sent.
    View,
}

/// Takes a tensor that the process described. A view keeps `lease` until it is dropped; the second
/// value is true for a view.
///
/// # Errors
///
/// [`MessageError`] if it lies outside its span, the span outside the region, or its size or its
/// elements do not fit datatype and shape.
pub fn take_tensor(
    region: &Arc<ResponseRegion>,
    span: &Span,
    lease: &Arc<SlotLease>,
    claim: &ClaimedTensor,
    policy: TensorPolicy,
) -> Result<(Tensor, bool), MessageError> {
    let range = region.part(span, claim.offset, claim.size)?;
    let expected = byte_size(claim.datatype, &claim.shape).map_err(|_| MessageError::Size)?;
    if expected.is_some_and(|size| size != range.len()) {
        return Err(MessageError::Size);
    }
    let is_view = policy == TensorPolicy::View
        && claim.datatype != Datatype::Bytes
        && range.len() >= PYTHON_VIEW_SIZE_MIN
        // Readers expect aligned numbers. A mapping begins at a page.
        && range.start.is_multiple_of(TENSOR_ALIGNMENT);
    let contents = if is_view {
        Bytes::from_owner(RegionView { region: Arc::clone(region), range, _lease: Arc::clone(lease) })
    } else {
        region.copy_out(span, claim.offset, claim.size)?
    };
    if claim.datatype == Datatype::Bytes {
        // In the copy: the process can still change its own memory after the check.
        check_strings(&contents, &claim.shape)?;
    }
    Ok((Tensor { datatype: claim.datatype, shape: claim.shape.clone(), contents }, is_view))
}

/// The response slots of one process that are no longer referenced, from any thread to the
/// instance's.
#[derive(Default)]
pub struct ReleasedSlots {
    slots: SegQueue<u32>,
    waker: AtomicWaker,
}

impl ReleasedSlots {
    /// Takes a slot that is free.
    pub fn poll_released(&self) -> Option<u32> {
        self.slots.pop()
    }

    /// Sets the waker to call once, when the next slot is free. Slots that are free already do not
    /// count: look for them afterwards.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Lends the slot of a span, until the last clone of the lease is dropped.
    pub fn lease(self: &Arc<Self>, span: &Span) -> Arc<SlotLease> {
        let slot = (span.size > 0).then_some(span.slot);
        Arc::new(SlotLease { slot, released: Arc::clone(self) })
    }
}

/// Keeps a slot of a response region in use. Dropped at the end of a message, and with the last view of it.
pub struct SlotLease {
    /// `None` if the message has no memory.
    slot: Option<u32>,
    released: Arc<ReleasedSlots>,
}

impl SlotLease {
    /// Takes the lease back if it has no other holder: then the slot is not reported as free.
    /// Otherwise the last holder reports it.
    pub fn take_back(lease: Arc<Self>) -> bool {
        Arc::into_inner(lease).map(|mut own| own.slot = None).is_some()
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.released.slots.push(slot);
            // After the push: the woken thread finds the slot.
            self.released.waker.wake();
        }
    }
}

/// A part of a response region.
struct RegionView {
    region: Arc<ResponseRegion>,
    range: Range<usize>,
    _lease: Arc<SlotLease>,
}

impl AsRef<[u8]> for RegionView {
    fn as_ref(&self) -> &[u8] {
        self.region.mapping.bytes(self.range.clone())
    }
}

/// A sealed memfd, mapped whole and shared.
struct Mapping {
    file: OwnedFd,
    address: NonNull<u8>,
    size: usize,
}

// SAFETY: the address is that of memory which belongs to no thread, and `Mapping` alone unmaps it.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(size: usize, protection: ProtFlags) -> io::Result<Self> {
        let file = new_memfd()?;
        rustix::fs::ftruncate(&file, size as u64)?;
        // Afterwards it cannot be shrunk, so that no page of the mapping is ever missing, and the
        // seals cannot be undone.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::of_file(file, protection)
    }

    /// All of a memfd whose size is sealed.
    fn of_file(file: OwnedFd, protection: ProtFlags) -> io::Result<Self> {
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let size = usize::try_from(rustix::fs::fstat(&file)?.st_size).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice, which nothing else refers to.
        let address = unsafe { rustix::mm::mmap(ptr::null_mut(), size, protection, MapFlags::SHARED, &file, 0)? };
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, address, size })
    }

    /// Checks that a range lies inside; returns its start.
    fn check(&self, offset: u64, size: u64) -> Result<usize, MessageError> {
        let end = offset.checked_add(size).filter(|end| *end <= self.size as u64).ok_or(MessageError::Range)?;
        usize::try_from(end - size).map_err(|_| MessageError::Range)
    }

    /// The bytes of a range; empty for one that is not inside.
    fn bytes(&self, range: Range<usize>) -> &[u8] {
        if range.start > range.end || range.end > self.size {
            return &[];
        }
        // SAFETY: the range is inside the mapping, which is readable, initialised by the kernel, and lives as long as
        // `self`; no thread of the server writes a mapping that is lent out (`RequestRegion` lends nothing). The
        // process may write it meanwhile: every value is a valid byte, and the callers either copy before they look, or
        // pass numbers on that nothing here depends on.
        unsafe { slice::from_raw_parts(self.address.as_ptr().add(range.start), range.len()) }
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let page = rustix::param::page_size() as u64;
        let end = range.end.min(self.size as u64);
        let (begin, end) = (range.start.next_multiple_of(page), end - end % page);
        if begin >= end {
            return Ok(());
        }
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, mode, begin, end - begin)?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this, and all references to it borrow `self`. It fails only
        // for arguments that are not a mapping.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.size) };
    }
}

/// Not executable, if the kernel supports that (6.3): some systems allow no other
/// (`vm.memfd_noexec`).
fn new_memfd() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(MEMFD_LABEL, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => Ok(rustix::fs::memfd_create(MEMFD_LABEL, flags)?),
        other => Ok(other?),
    }
}

/// The name in `/proc`; it names no file that could be opened.
const MEMFD_LABEL: &str = "deuteron-python";

fn check_strings(contents: &[u8], shape: &[i64]) -> Result<(), MessageError> {
    let expected = element_count(shape).map_err(|_| MessageError::Size)?;
    let mut count = 0_usize;
    for element in Strings::new(contents) {
        element.map_err(|_| MessageError::Strings)?;
        count += 1;
    }
    if count == expected { Ok(()) } else { Err(MessageError::Strings) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::thread;

    use super::*;
    use base::tensor::Shape;

    const SIZE: usize = 4 * PYTHON_VIEW_SIZE_MIN;

    /// Writes as the process does.
    fn write(region: &ResponseRegion, offset: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(region.fd(), bytes, offset), Ok(bytes.len()));
    }

    fn claim(datatype: Datatype, offset: u64, size: u64, shape: &[i64]) -> ClaimedTensor {
        ClaimedTensor { datatype, shape: Shape::from_slice(shape), offset, size, own_span: None }
    }

    fn span(offset: u64, size: u64) -> Span {
        Span { slot: 7, region: 0, offset, size }
    }

    /// Takes a tensor; returns whether it is a view, and whether its slot is free while it lives.
    fn take(
        region: &Arc<ResponseRegion>,
        span: &Span,
        claim: &ClaimedTensor,
        policy: TensorPolicy,
    ) -> Result<(Tensor, bool), MessageError> {
        let released = Arc::new(ReleasedSlots::default());
        let lease = released.lease(span);
        let taken = take_tensor(region, span, &lease, claim, policy);
        drop(lease);
        let is_view = matches!(taken, Ok((_, true)));
        assert_eq!(released.poll_released(), (!is_view && span.size > 0).then_some(span.slot));
        taken
    }

    #[test]
    fn the_process_reads_what_was_written_and_nothing_goes_beyond() {
        let mut region = RequestRegion::new(4096).unwrap();
        let read = |region: &RequestRegion| {
            let mut bytes = [0; 4096];
            assert_eq!(rustix::io::pread(region.fd(), &mut bytes, 0), Ok(4096));
            bytes
        };
        region.write(10, b"inputs").unwrap();
        region.write(4095, b"x").unwrap();
        region.write(4096, b"").unwrap();
        let mut want = [0; 4096];
        want[10..16].copy_from_slice(b"inputs");
        want[4095] = b'x';
        for (offset, bytes) in [(4096, &b"x"[..]), (4095, b"xx"), (u64::MAX, b"xx"), (u64::MAX, b""), (4097, b"")] {
            assert_eq!(region.write(offset, bytes), Err(MessageError::Range), "{offset}");
        }
        assert_eq!(read(&region), want, "what was refused left nothing");
        region.write_parts(&span(64, 67), [&b"ab"[..], b"", b"cde"]).unwrap();
        want[64..66].copy_from_slice(b"ab");
        want[128..131].copy_from_slice(b"cde");
        assert_eq!(read(&region), want);
        assert_eq!(region.write_parts(&span(64, 66), [&b"ab"[..], b"", b"cde"]), Err(MessageError::Range));
        assert_eq!(region.write_parts(&span(4032, 128), [&b"ab"[..], b"cde"]), Err(MessageError::Range));
        assert_eq!(region.write_parts(&span(u64::MAX, 128), [&b"ab"[..], b"cde"]), Err(MessageError::Range));
    }

    #[test]
    fn nobody_changes_the_size_of_a_region_and_no_region_is_empty() {
        let region = ResponseRegion::new(SIZE).unwrap();
        for size in [0, 4096, 1 << 20] {
            assert_eq!(rustix::fs::ftruncate(region.fd(), size), Err(rustix::io::Errno::PERM), "{size}");
        }
        let seals = rustix::fs::fcntl_get_seals(region.fd()).unwrap();
        assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
        assert_eq!((region.size(), RequestRegion::new(100).unwrap().size()), (SIZE, 100));
        assert!(RequestRegion::new(0).is_err() && ResponseRegion::new(usize::MAX).is_err());
    }

    #[test]
    fn large_tensors_of_numbers_are_views_and_all_others_copies() {
        let region = ResponseRegion::new(SIZE).unwrap();
        let bytes: Vec<u8> = (0..SIZE).map(|at| (at % 253) as u8).collect();
        write(&region, 0, &bytes);
        let large = PYTHON_VIEW_SIZE_MIN;
        let check = |offset: usize, size: usize, policy, want| {
            let claim = claim(Datatype::Uint16, offset as u64, size as u64, &[size as i64 / 2]);
            let (tensor, is_view) = take(&region, &span(64, (SIZE - 64) as u64), &claim, policy).unwrap();
            assert_eq!(tensor.contents, bytes[64 + offset..64 + offset + size], "{offset} {size}");
            assert_eq!(
                (is_view, tensor.shape, tensor.datatype),
                (want, claim.shape, claim.datatype),
                "{offset} {size}"
            );
            assert_eq!(tensor.contents.as_ptr() as usize % TENSOR_ALIGNMENT, 0, "{offset} {size}");
        };
        check(0, large, TensorPolicy::View, true);
        check(128, SIZE - 64 - 128, TensorPolicy::View, true);
        check(0, large, TensorPolicy::Copy, false);
        check(0, large - 2, TensorPolicy::View, false);
        check(32, large, TensorPolicy::View, false);
        check(1, 14, TensorPolicy::View, false);
    }

    #[test]
    fn tensors_that_are_not_where_they_say_or_not_what_they_say_are_refused() {
        let region = ResponseRegion::new(SIZE).unwrap();
        let end = SIZE as u64;
        let check = |span: Span, claim: ClaimedTensor, want: MessageError| {
            for policy in [TensorPolicy::Copy, TensorPolicy::View] {
                let got = take(&region, &span, &claim, policy).map(drop);
                assert_eq!(got, Err(want), "{span:?} {claim:?}");
            }
        };
        let bytes = |offset, size: u64| claim(Datatype::Uint8, offset, size, &[size as i64]);
        check(span(0, end + 1), bytes(0, 1), MessageError::Range);
        check(span(end, 1), bytes(0, 1), MessageError::Range);
        check(span(u64::MAX, 1), bytes(0, 0), MessageError::Range);
        check(span(1, u64::MAX), bytes(0, 0), MessageError::Range);
        check(span(0, 64), bytes(0, 65), MessageError::Range);
        check(span(0, 64), bytes(64, 1), MessageError::Range);
        check(span(0, 64), bytes(65, 0), MessageError::Range);
        check(span(0, 64), bytes(u64::MAX, 1), MessageError::Range);
        check(span(64, 64), bytes(u64::MAX - 63, 64), MessageError::Range);
        check(span(0, 0), bytes(0, 1), MessageError::Range);
        let fp32 = |size, shape: &[i64]| claim(Datatype::Fp32, 0, size, shape);
        check(span(0, 64), fp32(20, &[2, 3]), MessageError::Size);
        check(span(0, 64), fp32(28, &[2, 3]), MessageError::Size);
        check(span(0, 64), fp32(24, &[-2, -3]), MessageError::Size);
        check(span(0, 64), fp32(0, &[i64::MAX, i64::MAX]), MessageError::Size);
        check(span(0, 64), fp32(0, &[1 << 62]), MessageError::Size);
        check(span(0, 64), fp32(4, &[0]), MessageError::Size);
        check(span(0, 64), claim(Datatype::Bytes, 0, 8, &[-1]), MessageError::Size);
        let (tensor, _) = take(&region, &span(0, 0), &bytes(0, 0), TensorPolicy::View).unwrap();
        assert!(tensor.contents.is_empty());
        take(&region, &span(end, 0), &bytes(0, 0), TensorPolicy::View).unwrap();
        take(&region, &span(end - 4, 4), &fp32(4, &[]), TensorPolicy::View).unwrap();
    }

    #[test]
    fn the_elements_of_a_tensor_of_bytes_are_counted_in_a_copy() {
        let region = ResponseRegion::new(SIZE).unwrap();
        write(&region, 64, b"\x03\0\0\0one\0\0\0\0\x02\0\0\0\xff\0rest");
        let check = |size, shape: &[i64], want: Result<(), MessageError>| {
            let claim = claim(Datatype::Bytes, 0, size, shape);
            let got = take(&region, &span(64, 64), &claim, TensorPolicy::View);
            assert_eq!(got.as_ref().map(|(_, is_view)| *is_view).map_err(|error| *error), want.map(|()| false));
        };
        check(17, &[3], Ok(()));
        check(17, &[3, 1], Ok(()));
        check(11, &[2], Ok(()));
        check(0, &[0], Ok(()));
        check(17, &[2], Err(MessageError::Strings));
        check(17, &[4], Err(MessageError::Strings));
        check(17, &[], Err(MessageError::Strings));
        check(16, &[3], Err(MessageError::Strings));
        check(18, &[3], Err(MessageError::Strings));
        check(2, &[1], Err(MessageError::Strings));
        check(0, &[i64::MAX], Err(MessageError::Strings));
        // Zeros: as many empty elements as fit. However large, it is a copy, which the process cannot change.
        let (size, count) = (2 * PYTHON_VIEW_SIZE_MIN as u64, PYTHON_VIEW_SIZE_MIN as i64 / 2);
        let many = claim(Datatype::Bytes, 0, size, &[count]);
        let (tensor, is_view) = take(&region, &span(4096, size), &many, TensorPolicy::View).unwrap();
        write(&region, 4096, &[0xff; 100]);
        assert!(!is_view && tensor.contents.iter().all(|byte| *byte == 0));
    }

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_slot_is_free_when_its_last_view_is_gone_from_whatever_thread() {
        let region = ResponseRegion::new(SIZE).unwrap();
        let released = Arc::new(ReleasedSlots::default());
        let count = Arc::new(WakeCount::default());
        let (size, span) = (PYTHON_VIEW_SIZE_MIN as u64, span(0, SIZE as u64));
        let lease = released.lease(&span);
        let views: Vec<_> = [0, 1, 2]
            .map(|index| claim(Datatype::Uint8, index * size, size, &[size as i64]))
            .iter()
            .map(|claim| take_tensor(&region, &span, &lease, claim, TensorPolicy::View).unwrap().0)
            .collect();
        write(&region, size, b"still there");
        drop((lease, region));
        released.register(&Waker::from(Arc::clone(&count)));
        let part = views[1].contents.slice(6..11);
        thread::spawn(move || drop(views)).join().unwrap();
        assert_eq!((released.poll_released(), count.0.load(Ordering::SeqCst)), (None, 0));
        assert_eq!(part, b"there"[..], "a part of a view keeps all of it, and the region");
        thread::spawn(move || drop(part)).join().unwrap();
        assert_eq!((released.poll_released(), released.poll_released()), (Some(7), None));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        drop(released.lease(&span));
        assert_eq!((released.poll_released(), count.0.load(Ordering::SeqCst)), (Some(7), 1), "woken once");
        drop(released.lease(&Span::default()));
        assert_eq!(released.poll_released(), None, "no memory, no slot");
    }

    #[test]
    fn whole_pages_of_what_is_free_are_given_back() {
        let region = ResponseRegion::new(SIZE).unwrap();
        write(&region, 0, &vec![1; SIZE]);
        let blocks = || rustix::fs::fstat(region.fd()).unwrap().st_blocks;
        let (page, before) = (rustix::param::page_size() as u64, blocks());
        region.punch(1..page).unwrap();
        region.punch(page - 1..2 * page - 1).unwrap();
        assert_eq!(blocks(), before, "no page is free as a whole");
        region.punch(page - 1..3 * page + 1).unwrap();
        assert_eq!(blocks(), before - 2 * page as i64 / 512);
        region.punch(SIZE as u64 - page..u64::MAX).unwrap();
        assert_eq!(blocks(), before - 3 * page as i64 / 512);
        let all = region.copy_out(&span(0, SIZE as u64), 0, SIZE as u64).unwrap();
        let zeros = |range: Range<u64>| all[range.start as usize..range.end as usize].iter().all(|byte| *byte == 0);
        assert!(zeros(page..3 * page) && zeros(SIZE as u64 - page..SIZE as u64));
        assert_eq!(all.iter().filter(|byte| **byte == 0).count() as u64, 3 * page);
    }

    #[test]
    fn the_batch_that_a_process_began_last_is_read() {
        let region = ResponseRegion::new(64).unwrap();
        assert_eq!(region.begun_batch(), 0);
        write(&region, 0, &0x0102_0304_0506_0708_u64.to_le_bytes());
        assert_eq!(region.begun_batch(), 0x0102_0304_0506_0708);
        assert_eq!(ResponseRegion::new(7).unwrap().begun_batch(), 0, "there is no room for a number");
    }
}
