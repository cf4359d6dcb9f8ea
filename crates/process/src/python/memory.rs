//! The memory that one Python process and its instance share: the request regions, which the
//! instance allocates from and writes, and the response regions, which the process allocates from
//! and writes. Each side frees by slot: the process reports when no array refers to a request slot,
//! the instance when the last view of a response slot is gone.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;

use crate::python::message::{ClaimedFile, ClaimedTensor, MessageError, Span};
use crate::python::region::{
    HEAD_SIZE, ReleasedSlots, RequestRegion, ResponseRegion, SlotLease, TensorPolicy, take_tensor,
};
use crate::python::written::WrittenRegions;
use base::error::{Code, Error};
use base::tensor::Tensor;

/// The request regions. New slots come from the newest; an older region goes with its last slot.
pub struct RequestMemory {
    limit: RegionLimit,
    regions: WrittenRegions,
    next_region: u16,
}

/// The size limit of a region, and the names for the error of one that would be larger.
#[derive(Clone, Copy, Debug)]
pub struct RegionLimit {
    /// The maximum bytes of one region.
    pub size_max: u64,
    /// The flag that sets it.
    pub flag: &'static str,
    /// The kind of process that shares it.
    pub process: &'static str,
}

/// A region that the process must be sent before it is named.
pub struct NewRegion {
    /// Its number.
    pub index: u16,
    /// Its size.
    pub size: u64,
    /// Its memory.
    pub file: OwnedFd,
}

impl RequestMemory {
    /// Request memory with one region.
    ///
    /// # Errors
    /// If the system has no memory for it.
    pub fn new(size: u64, limit: RegionLimit) -> Result<Self, Error> {
        let mut memory = Self { limit, regions: WrittenRegions::default(), next_region: 0 };
        memory.add_region(size.min(limit.size_max))?;
        Ok(memory)
    }

    /// The first region, for the start of the process.
    pub fn first(&self) -> Option<&RequestRegion> {
        self.regions.first()
    }

    /// A slot for `size` bytes; empty if `size` is 0. A region that is too full is replaced by a
    /// larger one.
    ///
    /// # Errors
    /// `Exhausted` if that would be larger than the limit; `Unavailable` if the system has no
    /// memory.
    pub fn allocate(&mut self, size: u64) -> Result<(Span, Option<NewRegion>), Error> {
        if size == 0 {
            return Ok((Span::default(), None));
        }
        if let Some(span) = self.regions.allocate(size) {
            return Ok((span, None));
        }
        let newest = self.regions.newest_size();
        let wanted = newest.saturating_mul(2).max(size.next_power_of_two()).min(self.limit.size_max);
        if size > wanted || wanted <= newest {
            return Err(self.too_large(size));
        }
        let new = self.add_region(wanted)?;
        let span = self.regions.allocate(size).ok_or_else(|| self.too_large(size))?;
        Ok((span, Some(new)))
    }

    fn too_large(&self, size: u64) -> Error {
        let RegionLimit { size_max, flag, process } = self.limit;
        Error::new(
            Code::Exhausted,
            format!(
                "a batch of {size} bytes does not fit into the memory that the server shares with {process}, at most \
                 {size_max} bytes ({flag})"
            ),
        )
    }

    fn add_region(&mut self, size: u64) -> Result<NewRegion, Error> {
        let no_memory = |error: std::io::Error| {
            let process = self.limit.process;
            Error::unavailable(format!("cannot get {size} bytes to share with {process}: {error}"))
        };
        let region = RequestRegion::new(to_size(size)).map_err(no_memory)?;
        let file = region.fd().try_clone_to_owned().map_err(no_memory)?;
        let index = self.next_region;
        self.next_region = self.next_region.wrapping_add(1);
        let size = region.size() as u64;
        self.regions.push(index, region);
        self.drop_unused();
        Ok(NewRegion { index, size, file })
    }

    /// Copies tensors into a slot, placed as the messages say.
    pub fn write<'a>(&mut self, span: &Span, tensors: impl IntoIterator<Item = &'a Tensor>) {
        // Without bytes there is no slot to write to.
        if span.size > 0 {
            let written = self.regions.write_parts(span, tensors.into_iter().map(|tensor| &*tensor.contents));
            debug_assert!(written.is_ok(), "the slot was made for these tensors");
        }
    }

    /// The process no longer needs a slot; false if there is no such slot, which a sound process
    /// never reports.
    pub fn free(&mut self, slot: u32) -> bool {
        let is_known = self.regions.free(slot);
        self.drop_unused();
        is_known
    }

    /// The process is not told: it drops its mappings of older regions with the first batch in a newer one.
    fn drop_unused(&mut self) {
        self.regions.drop_unused(false, |_| ());
    }
}

/// The response regions.
pub struct ResponseMemory {
    regions: HashMap<u16, Arc<ResponseRegion>>,
    newest: u16,
    limit: RegionLimit,
    released: Arc<ReleasedSlots>,
}

impl ResponseMemory {
    /// Response memory with one region.
    ///
    /// # Errors
    /// If the system has no memory for it.
    pub fn new(size: u64, limit: RegionLimit) -> Result<Self, Error> {
        let mut memory = Self { regions: HashMap::new(), newest: 0, limit, released: Arc::default() };
        memory.insert(0, size.min(limit.size_max))?;
        Ok(memory)
    }

    /// The first region, for the start of the process.
    pub fn first(&self) -> Option<&Arc<ResponseRegion>> {
        self.regions.get(&0)
    }

    /// A new region for messages of `size` bytes, larger than the newest.
    ///
    /// # Errors
    /// `Exhausted` if it would be larger than the limit; `Unavailable` if the system has no memory.
    pub fn grow(&mut self, size: u64) -> Result<NewRegion, Error> {
        let newest = self.regions.get(&self.newest).map_or(0, |region| region.size() as u64);
        // The first lines of the first region are the protocol's: room for them is left in each.
        let wanted = size.saturating_add(HEAD_SIZE as u64).checked_next_power_of_two().unwrap_or(u64::MAX);
        let RegionLimit { size_max, flag, .. } = self.limit;
        let wanted = newest.saturating_mul(2).max(wanted).min(size_max);
        if size > wanted || wanted <= newest {
            return Err(Error::new(
                Code::Exhausted,
                format!("{size} bytes do not fit into the {size_max} bytes that {flag} allows"),
            ));
        }
        let index = self.newest.wrapping_add(1);
        let file = self.insert(index, wanted)?;
        self.newest = index;
        Ok(NewRegion { index, size: wanted, file })
    }

    fn insert(&mut self, index: u16, size: u64) -> Result<OwnedFd, Error> {
        let no_memory = |error: std::io::Error| {
            let process = self.limit.process;
            Error::unavailable(format!("cannot get {size} bytes to share with {process}: {error}"))
        };
        let region = ResponseRegion::new(to_size(size)).map_err(no_memory)?;
        let file = region.fd().try_clone_to_owned().map_err(no_memory)?;
        self.regions.insert(index, region);
        Ok(file)
    }

    /// The process no longer uses an older region. Views of it keep its memory.
    pub fn handle_dropped(&mut self, index: u16) {
        // The first has the number of the batch that was begun.
        if index != self.newest && index != 0 {
            self.regions.remove(&index);
        }
    }

    /// The number of the batch that the process began last.
    pub fn begun_batch(&self) -> u64 {
        self.first().map_or(0, |region| region.begun_batch())
    }

    /// Returns true if the program of the process has begun.
    pub fn has_program(&self) -> bool {
        self.first().is_some_and(|region| region.has_program())
    }

    /// Opens the memory of a message. When it and all views of it are gone, its slot is free.
    ///
    /// # Errors
    /// [`MessageError::Range`] if there is no such region.
    pub fn open(&self, span: Span) -> Result<OpenedSpan, MessageError> {
        // A message without memory may have tensors without elements: any region will do for them.
        let index = if span.size == 0 { self.newest } else { span.region };
        let region = self.regions.get(&index).ok_or(MessageError::Range)?;
        Ok(OpenedSpan { span, region: Arc::clone(region), lease: self.released.lease(&span) })
    }

    /// A tensor of a message, from the span of the message or from its own.
    ///
    /// # Errors
    /// [`MessageError`] if it lies outside of the span, or its size is not that of its shape.
    pub fn take(
        &self,
        opened: &OpenedSpan,
        claim: &ClaimedTensor,
        policy: TensorPolicy,
    ) -> Result<Tensor, MessageError> {
        match claim.own_span {
            Some(own_span) => self.open(own_span)?.take(claim, policy),
            None => opened.take(claim, policy),
        }
    }

    /// The next slot that is free.
    pub fn poll_released(&self) -> Option<u32> {
        self.released.poll_released()
    }
}

/// The memory of one message of the process.
pub struct OpenedSpan {
    span: Span,
    region: Arc<ResponseRegion>,
    lease: Arc<SlotLease>,
}

impl OpenedSpan {
    fn take(&self, claim: &ClaimedTensor, policy: TensorPolicy) -> Result<Tensor, MessageError> {
        take_tensor(&self.region, &self.span, &self.lease, claim, policy).map(|(tensor, _)| tensor)
    }

    /// The contents of a file.
    ///
    /// # Errors
    /// [`MessageError::Range`] if they lie outside of the span.
    pub fn take_file(&self, claim: &ClaimedFile) -> Result<Bytes, MessageError> {
        self.region.copy_out(&self.span, claim.offset, claim.size)
    }
}

fn to_size(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RegionLimit =
        RegionLimit { size_max: 8192, flag: "--python-memory-bytes-max", process: "a Python process" };

    fn first_size(memory: &RequestMemory) -> Option<usize> {
        memory.first().map(RequestRegion::size)
    }

    #[test]
    fn a_full_region_gives_way_to_a_larger_one_and_goes_with_its_last_slot() {
        let mut memory = RequestMemory::new(1024, LIMIT).unwrap();
        assert_eq!(memory.allocate(0).unwrap().0, Span::default(), "no bytes, no slot");
        let (first, new) = memory.allocate(512).unwrap();
        assert_eq!((first, new.is_none()), (Span { slot: 1, region: 0, offset: 0, size: 512 }, true));
        let (second, new) = memory.allocate(500).unwrap();
        assert_eq!((second, new.is_none()), (Span { slot: 2, region: 0, offset: 512, size: 500 }, true));
        // Twice the last; the third is as large as its message.
        let (third, new) = memory.allocate(1).unwrap();
        assert_eq!(third, Span { slot: 3, region: 1, offset: 0, size: 1 });
        assert_eq!(new.map(|new| (new.index, new.size)), Some((1, 2048)));
        let (fourth, new) = memory.allocate(8000).unwrap();
        assert_eq!(fourth, Span { slot: 4, region: 2, offset: 0, size: 8000 });
        let new = new.unwrap();
        let size = rustix::fs::fstat(&new.file).unwrap().st_size;
        assert_eq!((new.index, new.size, size), (2, 8192, 8192));
        assert!(memory.free(first.slot));
        assert_eq!(first_size(&memory), Some(1024), "it has another slot");
        assert!(memory.free(second.slot));
        assert_eq!(first_size(&memory), Some(2048));
        assert!(memory.free(third.slot));
        assert_eq!(first_size(&memory), Some(8192));
        assert!(memory.free(fourth.slot));
        assert_eq!(first_size(&memory), Some(8192), "the newest stays without a slot");
        assert_eq!(memory.allocate(8192).unwrap().0, Span { slot: 5, region: 2, offset: 0, size: 8192 });
    }

    #[test]
    fn a_region_without_slots_is_replaced_at_once() {
        let mut memory = RequestMemory::new(1024, LIMIT).unwrap();
        let (span, _) = memory.allocate(1024).unwrap();
        assert!(memory.free(span.slot));
        assert_eq!(memory.allocate(1025).unwrap().0.region, 1);
        assert_eq!(first_size(&memory), Some(2048));
    }

    #[test]
    fn beyond_the_limit_a_batch_is_refused_and_the_slots_stay() {
        let mut memory = RequestMemory::new(u64::MAX, LIMIT).unwrap();
        assert_eq!(first_size(&memory), Some(8192), "the first has the limit too");
        let refused = |memory: &mut RequestMemory, size| memory.allocate(size).err().unwrap();
        let error = refused(&mut memory, 8193);
        assert_eq!(error.code(), Code::Exhausted);
        assert!(error.text().contains("8193 bytes") && error.text().contains(LIMIT.flag), "{}", error.text());
        let (span, _) = memory.allocate(8192).unwrap();
        assert_eq!(refused(&mut memory, 1).code(), Code::Exhausted, "there is no larger one");
        assert_eq!(refused(&mut memory, 1 << 40).code(), Code::Exhausted);
        assert!(memory.free(span.slot));
        assert_eq!(memory.allocate(1).unwrap().0, Span { slot: 2, region: 0, offset: 0, size: 1 });
    }

    #[test]
    fn without_memory_for_a_larger_region_the_newest_stays() {
        let mut memory = RequestMemory::new(1024, RegionLimit { size_max: u64::MAX, ..LIMIT }).unwrap();
        assert_eq!(memory.allocate(1 << 62).err().unwrap().code(), Code::Unavailable);
        assert_eq!(memory.allocate(1024).unwrap().0, Span { slot: 1, region: 0, offset: 0, size: 1024 });
    }

    #[test]
    fn a_slot_that_is_not_in_use_is_false() {
        let mut memory = RequestMemory::new(1024, LIMIT).unwrap();
        let (span, _) = memory.allocate(64).unwrap();
        assert!(!memory.free(0) && !memory.free(span.slot + 1));
        assert!(memory.free(span.slot) && !memory.free(span.slot), "only once");
    }

    #[test]
    fn a_tensor_may_have_a_span_of_its_own_whose_slot_is_released_by_itself() {
        let memory = ResponseMemory::new(8192, LIMIT).unwrap();
        let message = Span { slot: 1, region: 0, offset: 64, size: 64 };
        let own = Span { slot: 2, region: 0, offset: 4096, size: 8 };
        let claim = |own_span, size: u64| ClaimedTensor {
            datatype: base::tensor::Datatype::Uint8,
            shape: base::tensor::Shape::from_slice(&[size as i64]),
            offset: 0,
            size,
            own_span,
        };
        let opened = memory.open(message).unwrap();
        rustix::io::pwrite(memory.first().unwrap().fd(), b"elements", 4096).unwrap();
        let taken = memory.take(&opened, &claim(Some(own), 8), TensorPolicy::View).unwrap();
        assert_eq!((&*taken.contents, memory.poll_released()), (&b"elements"[..], Some(2)), "a small one is copied");
        let elsewhere = Span { region: 1, ..own };
        for (own_span, size) in [(elsewhere, 8), (Span { offset: 8190, ..own }, 8), (own, 9)] {
            let refused = memory.take(&opened, &claim(Some(own_span), size), TensorPolicy::View).err();
            assert_eq!(refused, Some(MessageError::Range), "{own_span:?} {size}");
        }
        while memory.poll_released().is_some() {}
        assert_eq!(&*memory.take(&opened, &claim(None, 8), TensorPolicy::View).unwrap().contents, [0; 8]);
        assert_eq!(memory.poll_released(), None);
        drop(opened);
        assert_eq!(memory.poll_released(), Some(1), "that of the message");
    }

    #[test]
    fn tensors_lie_where_their_span_says() {
        let mut memory = RequestMemory::new(1024, LIMIT).unwrap();
        memory.allocate(64).unwrap();
        let tensor = |contents: &'static [u8]| Tensor {
            datatype: base::tensor::Datatype::Uint8,
            shape: base::tensor::Shape::from_slice(&[contents.len() as i64]),
            contents: Bytes::from_static(contents),
        };
        let (span, _) = memory.allocate(67).unwrap();
        memory.write(&span, &[tensor(b"ab"), tensor(b""), tensor(b"cde")]);
        let mut bytes = [0; 256];
        rustix::io::pread(memory.first().unwrap().fd(), &mut bytes, 0).unwrap();
        assert_eq!((&bytes[64..66], &bytes[128..131]), (&b"ab"[..], &b"cde"[..]));
        // Without elements there is no span, and its region may be gone.
        memory.write(&Span { region: 7, ..Span::default() }, &[tensor(b"")]);
    }
}
