//! The memory that the process shares with the server: regions that the server writes inputs to,
//! and regions that this side allocates from and writes outputs to. The server reports the free
//! slots of the latter.

#![expect(clippy::disallowed_types, reason = "threads of a backend write outputs; held for one copy")]

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use smallvec::SmallVec;

use crate::python::message::process_side::{put_region_dropped, put_release, put_space};
use crate::python::message::{ClaimedTensor, MessageError, Span, SpanLayout};
use crate::python::region::{
    HEAD_SIZE, ReleasedSlots, RequestRegion, ResponseRegion, SlotLease, TensorPolicy, take_tensor,
};
use crate::python::written::WrittenRegions;
use crate::triton_process::link::ProcessLink;
use base::error::{Code, Error};
use base::tensor::Tensor;

/// All regions of a process.
pub(super) struct ProcessMemory {
    link: Arc<ProcessLink>,
    inputs: Mutex<HashMap<u16, Arc<ResponseRegion>>>,
    /// Signalled when a region has come.
    has_come: Condvar,
    outputs: Mutex<WrittenRegions>,
    /// Slots of inputs that are no longer referenced.
    released: Arc<ReleasedSlots>,
}

impl ProcessMemory {
    /// The memory with the first region of each side.
    ///
    /// # Errors
    /// If they cannot be mapped.
    pub(super) fn new(link: &Arc<ProcessLink>, inputs: OwnedFd, outputs: OwnedFd) -> io::Result<Arc<Self>> {
        let mut written = WrittenRegions::default();
        written.push(0, RequestRegion::of_server(outputs)?);
        written.reserve(HEAD_SIZE as u64);
        let memory = Arc::new(Self {
            link: Arc::clone(link),
            inputs: Mutex::new(HashMap::from([(0, ResponseRegion::of_server(inputs)?)])),
            has_come: Condvar::new(),
            outputs: Mutex::new(written),
            released: Arc::default(),
        });
        memory.put_number(8, 1);
        let teller = Arc::new(ReleaseTeller { link: Arc::clone(link), released: Arc::clone(&memory.released) });
        memory.released.register(&Waker::from(teller));
        Ok(memory)
    }

    /// Reports to the server that a batch begins: it fails if the process ends from now on.
    pub(super) fn begin(&self, batch: u64) {
        self.put_number(0, batch);
    }

    fn put_number(&self, offset: u64, number: u64) {
        // There is room for it in any region.
        let _ = self.lock().write(0, offset, &number.to_le_bytes());
    }

    /// A region of inputs has come.
    pub(super) fn add_inputs(&self, number: u16, file: OwnedFd) -> io::Result<()> {
        let region = ResponseRegion::of_server(file)?;
        let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        inputs.insert(number, region);
        self.has_come.notify_all();
        Ok(())
    }

    /// A region for outputs has come: all new slots are of it.
    pub(super) fn add_outputs(&self, number: u16, file: OwnedFd) -> io::Result<()> {
        let region = RequestRegion::of_server(file)?;
        let mut outputs = self.lock();
        outputs.push(number, region);
        self.drop_unused(&mut outputs);
        Ok(())
    }

    /// Lends the inputs of a message. Waits for its region, which may still be on its way.
    pub(super) fn inputs(&self, span: Span) -> LentInputs {
        let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        if span.size > 0 {
            let waited = self.has_come.wait_while(inputs, |inputs| !inputs.contains_key(&span.region));
            inputs = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let region = inputs.get(&span.region).or_else(|| inputs.values().next()).map(Arc::clone);
        LentInputs { span, region, lease: self.released.lease(&span) }
    }

    /// A batch has come in this region: older ones are no longer named. Replies to calls came
    /// before the region did, and earlier batches before this one; views keep theirs.
    pub(super) fn forget_before(&self, region: u16) {
        let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        inputs.retain(|number, _| *number >= region);
    }

    /// The server no longer needs these slots.
    pub(super) fn release(&self, slots: &[u32]) {
        let mut outputs = self.lock();
        for slot in slots {
            outputs.free(*slot);
        }
        self.drop_unused(&mut outputs);
    }

    /// Writes parts one after the other, in the span that is returned to the server. Waits for
    /// memory.
    ///
    /// # Errors
    /// `Exhausted` if the server gives no further memory.
    pub(super) fn write<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> Result<Span, Error> {
        let parts: SmallVec<[&[u8]; 8]> = parts.collect();
        let size = SpanLayout::of(parts.iter().map(|part| part.len())).size();
        if size == 0 {
            return Ok(Span::default());
        }
        for must_grow in [None, Some(false), Some(true)] {
            if let Some(must_grow) = must_grow {
                let asked = self.link.ask_space(|call, out| put_space(call, size, must_grow, out));
                asked.map_err(|text| Error::new(Code::Exhausted, text))?;
            }
            if let Some(span) = self.try_write(size, &parts) {
                return Ok(span);
            }
        }
        Err(Error::new(Code::Exhausted, format!("{size} bytes do not fit into the memory that the process shares")))
    }

    /// Allocates and writes under one lock: no release and no new region comes in between.
    fn try_write(&self, size: u64, parts: &[&[u8]]) -> Option<Span> {
        let mut outputs = self.lock();
        let span = outputs.allocate(size)?;
        // The span was made for these parts.
        outputs.write_parts(&span, parts.iter().copied()).ok()?;
        Some(span)
    }

    /// Region 0 stays: it has the number of the batch.
    fn drop_unused(&self, outputs: &mut WrittenRegions) {
        outputs.drop_unused(true, |number| self.link.send_aux(|out| put_region_dropped(number, out)));
    }

    fn lock(&self) -> MutexGuard<'_, WrittenRegions> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The inputs of one message.
pub(super) struct LentInputs {
    span: Span,
    region: Option<Arc<ResponseRegion>>,
    lease: Arc<SlotLease>,
}

impl LentInputs {
    /// A tensor of the message.
    pub(super) fn take(&self, claim: &ClaimedTensor, policy: TensorPolicy) -> Result<Tensor, MessageError> {
        let region = self.region.as_ref().ok_or(MessageError::Range)?;
        take_tensor(region, &self.span, &self.lease, claim, policy).map(|(tensor, _)| tensor)
    }

    /// Gives the slot back. Returns true if nothing refers to the inputs any longer: the answer
    /// then frees the slot. Else the slot is reported when its last reference is dropped.
    pub(super) fn give_back(self) -> bool {
        SlotLease::take_back(self.lease)
    }
}

/// Reports free slots to the server, from the thread that frees the last reference.
struct ReleaseTeller {
    link: Arc<ProcessLink>,
    released: Arc<ReleasedSlots>,
}

impl Wake for ReleaseTeller {
    fn wake(self: Arc<Self>) {
        // Before the check: slots freed later wake again.
        self.released.register(&Waker::from(Arc::clone(&self)));
        let slots: Vec<u32> = std::iter::from_fn(|| self.released.poll_released()).collect();
        if !slots.is_empty() {
            self.link.send_aux(|out| put_release(&slots, out));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::limits::PYTHON_VIEW_SIZE_MIN;
    use crate::python::message::{AuxMessage, FrameBuffer, decode_aux};
    use crate::triton_process::link::Waiting;
    use base::tensor::{Datatype, Shape};

    const SIZE: usize = 4 * PYTHON_VIEW_SIZE_MIN;

    /// The memory of a process, and the server's side of it.
    struct Shared {
        memory: Arc<ProcessMemory>,
        link: Arc<ProcessLink>,
        aux: UnixStream,
        inputs: RequestRegion,
        outputs: Arc<ResponseRegion>,
    }

    fn owned(region: impl AsFd) -> OwnedFd {
        region.as_fd().try_clone_to_owned().unwrap()
    }

    impl Shared {
        fn new() -> Self {
            let (inputs, outputs) = (RequestRegion::new(SIZE).unwrap(), ResponseRegion::new(SIZE).unwrap());
            let (main, _) = UnixStream::pair().unwrap();
            let (process, aux) = UnixStream::pair().unwrap();
            let link = Arc::new(ProcessLink::new(main.into(), process.into()));
            let memory = ProcessMemory::new(&link, owned(inputs.fd()), owned(outputs.fd())).unwrap();
            Self { memory, link, aux, inputs, outputs }
        }

        /// The next message of the process.
        fn hear(&mut self) -> AuxMessage {
            let mut buffer = FrameBuffer::default();
            loop {
                if let Some(frame) = buffer.poll_frame().unwrap() {
                    return decode_aux(frame).unwrap();
                }
                self.aux.read_exact(buffer.space(1)).unwrap();
                buffer.commit(1);
            }
        }

        fn answer_space(&mut self, want_grow: bool, outcome: Result<(), String>) {
            let AuxMessage::Space { call, must_grow, .. } = self.hear() else { panic!("another message") };
            assert_eq!(must_grow, want_grow);
            let Some(Waiting::Space(waiting)) = self.link.take_waiting(call) else { panic!("nobody waits") };
            waiting.send(outcome).unwrap();
        }
    }

    #[test]
    fn outputs_lie_where_their_span_says_and_a_full_region_gives_way_to_a_larger_one() {
        let mut shared = Shared::new();
        shared.memory.begin(7);
        assert!(shared.outputs.begun_batch() == 7 && shared.outputs.has_program());
        let write = |memory: &ProcessMemory, size: usize| memory.write([&b"abc"[..], &vec![5; size]].into_iter());
        let span = write(&shared.memory, 2).unwrap();
        let read = |offset, size| shared.outputs.copy_out(&span, offset, size).unwrap();
        assert_eq!((span.region, span.slot, &*read(0, 3), &*read(64, 2)), (0, 1, &b"abc"[..], &[5, 5][..]));
        assert!(span.offset >= HEAD_SIZE as u64, "the first bytes are the protocol's");
        assert_eq!(shared.memory.write(std::iter::empty()).unwrap(), Span::default());
        // All but the whole region: slots that are free now do not help, a larger region does.
        let memory = Arc::clone(&shared.memory);
        let writer = thread::spawn(move || write(&memory, SIZE));
        shared.answer_space(false, Ok(()));
        let larger = ResponseRegion::new(4 * SIZE).unwrap();
        let AuxMessage::Space { call, must_grow: true, size } = shared.hear() else { panic!("another message") };
        assert_eq!(size, (SIZE + 64) as u64);
        shared.memory.add_outputs(1, owned(larger.fd())).unwrap();
        let Some(Waiting::Space(waiting)) = shared.link.take_waiting(call) else { panic!("nobody waits") };
        waiting.send(Ok(())).unwrap();
        let span = writer.join().unwrap().unwrap();
        assert_eq!((span.region, &*larger.copy_out(&span, 0, 3).unwrap()), (1, &b"abc"[..]));
        // Out of memory: the server's own words.
        let memory = Arc::clone(&shared.memory);
        let writer = thread::spawn(move || write(&memory, 8 * SIZE));
        shared.answer_space(false, Ok(()));
        shared.answer_space(true, Err("--run-memory-bytes-max".to_owned()));
        let error = writer.join().unwrap().unwrap_err();
        assert_eq!((error.code(), error.text()), (Code::Exhausted, "--run-memory-bytes-max"));
        // A newer region takes the place of one that is unused.
        shared.memory.release(&[span.slot, 99]);
        shared.memory.add_outputs(2, owned(larger.fd())).unwrap();
        assert_eq!(shared.hear(), AuxMessage::RegionDropped(1));
    }

    #[test]
    fn inputs_are_given_back_with_their_batch_or_told_when_the_last_is_gone() {
        let mut shared = Shared::new();
        let size = PYTHON_VIEW_SIZE_MIN as u64;
        shared.inputs.write(size, &[9; PYTHON_VIEW_SIZE_MIN]).unwrap();
        let span = Span { slot: 3, region: 0, offset: size, size };
        let shape = Shape::from_slice(&[size as i64]);
        let claim = ClaimedTensor { datatype: Datatype::Uint8, shape, offset: 0, size, own_span: None };
        let take = |inputs: &LentInputs| inputs.take(&claim, TensorPolicy::View).unwrap();
        let inputs = shared.memory.inputs(span);
        assert!(take(&inputs).contents.iter().all(|byte| *byte == 9));
        assert!(inputs.give_back(), "nothing has them");
        for slot in [4, 5] {
            let inputs = shared.memory.inputs(Span { slot, ..span });
            let kept = take(&inputs);
            assert!(!inputs.give_back());
            thread::spawn(move || drop(kept)).join().unwrap();
            assert_eq!(shared.hear(), AuxMessage::Release(vec![slot]));
        }
        // A region that is on its way is waited for; an older one stays until a batch comes in a newer.
        let memory = Arc::clone(&shared.memory);
        let waiting =
            thread::spawn(move || memory.inputs(Span { slot: 6, region: 1, offset: 0, size: 64 }).give_back());
        let newer = RequestRegion::new(SIZE).unwrap();
        shared.memory.add_inputs(1, owned(newer.fd())).unwrap();
        assert!(waiting.join().unwrap());
        assert!(take(&shared.memory.inputs(span)).has_its_size(), "the older one is there");
        shared.memory.forget_before(1);
        assert_eq!(shared.memory.inputs.lock().unwrap().len(), 1);
    }
}
