//! The place of one batch on a device: a stream, its events, and memory for the largest batch on both
//! sides. Made with the instance and used again for every batch; it takes nothing while it works.
//!
//! ```text
//! free ── begin: stage, enqueue upload, program, download, event, wake ──► aloft
//!  ▲                                                                         │
//!  └────────────── land: read results (the event was passed) ────────────────┘
//! ```
//!
//! What is pinned is touched while the slot is free or once its last event was passed: the one reason
//! for each `unsafe` here.

#![expect(unsafe_code, reason = "pinned memory is read and written while the device does not")]

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::backend::Request;
use crate::backend::gpu::device::Opened;
use crate::backend::gpu::driver::{Blas, DevicePointer, DriverError, Event, Stream};
use crate::backend::gpu::memory::{DeviceBuffer, PinnedBuffer};
use crate::backend::gpu::program::{Program, Work};
use crate::limits::GPU_BUFFER_ALIGNMENT;
use crate::tensor::AlignedBuffer;
use crate::time::Instant;

/// How much memory the slots of an instance need: bytes of a row of each tensor, and rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of the largest batch.
    pub rows_max: usize,
    /// Bytes of a row of each input.
    pub inputs: SmallVec<[usize; 2]>,
    /// Bytes of a row of each output.
    pub outputs: SmallVec<[usize; 2]>,
    /// Bytes that the program works in.
    pub scratch: usize,
}

/// What of an output comes back to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing: no request asks for it.
    Nothing,
    /// All of it.
    Whole,
}

/// A batch that is on the device.
pub struct Aloft {
    /// Its requests.
    pub requests: Vec<Request>,
    /// Its rows.
    pub rows: usize,
    /// When it began.
    pub began: Instant,
    /// What of each output comes back.
    pub wanted: SmallVec<[Wanted; 2]>,
    /// Why it fails, where not all of it could be enqueued.
    pub failure: Option<DriverError>,
}

/// How long the parts of a batch took on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The upload.
    pub upload: Duration,
    /// The program.
    pub compute: Duration,
    /// The download.
    pub download: Duration,
}

/// A place for one batch.
pub struct Slot {
    opened: Arc<Opened>,
    stream: Stream,
    marks: Marks,
    blas: Option<Box<dyn Blas>>,
    /// Given up, not given back, where a batch never ends.
    memory: Option<Memory>,
    sizes: Arc<Sizes>,
    aloft: Option<Aloft>,
}

/// The events between the parts of a batch.
struct Marks {
    begun: Event,
    uploaded: Event,
    computed: Event,
    done: Event,
}

struct Memory {
    staged: PinnedBuffer,
    inputs: DeviceBuffer,
    outputs: DeviceBuffer,
    results: PinnedBuffer,
    scratch: DeviceBuffer,
}

impl Slot {
    /// Takes what the largest batch needs. `blas` is none where the program multiplies nothing.
    pub fn new(opened: &Arc<Opened>, sizes: &Arc<Sizes>, blas: Option<Box<dyn Blas>>) -> Result<Self, DriverError> {
        let context = opened.context();
        let total = |rows: &[usize]| layout(rows, sizes.rows_max).last().copied();
        let too_large = || DriverError::transient("the largest batch has more bytes than can be counted");
        let (inputs, outputs) = total(&sizes.inputs).zip(total(&sizes.outputs)).ok_or_else(too_large)?;
        let memory = Memory {
            staged: PinnedBuffer::new(opened, inputs)?,
            inputs: DeviceBuffer::new(opened, inputs)?,
            outputs: DeviceBuffer::new(opened, outputs)?,
            results: PinnedBuffer::new(opened, outputs)?,
            scratch: DeviceBuffer::new(opened, sizes.scratch)?,
        };
        let marks = Marks {
            begun: context.new_event(true)?,
            uploaded: context.new_event(true)?,
            computed: context.new_event(true)?,
            done: context.new_event(true)?,
        };
        let (opened, stream, sizes) = (Arc::clone(opened), context.new_stream()?, Arc::clone(sizes));
        Ok(Self { opened, stream, marks, blas, memory: Some(memory), sizes, aloft: None })
    }

    /// Whether it takes a batch.
    pub const fn is_free(&self) -> bool {
        self.aloft.is_none() && self.memory.is_some()
    }

    /// When the batch in it began, if there is one.
    pub fn began(&self) -> Option<Instant> {
        self.aloft.as_ref().map(|aloft| aloft.began)
    }

    /// Begins a batch: the slot is free. A failure on the way is kept for [`Self::land`], since what
    /// was enqueued before it goes on; one of the end itself is told: it is not known when the batch is
    /// done. `waker` is kept by the context, and called when all is.
    pub fn begin(&mut self, mut aloft: Aloft, program: &dyn Program, waker: &Arc<Waker>) -> Result<(), DriverError> {
        let outcome = self.enqueue(&aloft, program);
        let context = self.opened.context();
        let closed = context.record(self.marks.done, self.stream).and_then(|()| {
            // SAFETY: the context keeps the waker as long as it lives.
            unsafe { context.wake(self.stream, Arc::as_ptr(waker)) }
        });
        aloft.failure = outcome.err();
        self.aloft = Some(aloft);
        closed
    }

    fn enqueue(&mut self, aloft: &Aloft, program: &dyn Program) -> Result<(), DriverError> {
        let context = self.opened.context();
        let (stream, marks, rows) = (self.stream, &self.marks, aloft.rows);
        let Some(memory) = &mut self.memory else { return Err(DriverError::transient("a slot without memory")) };
        let (inputs, outputs) = (layout(&self.sizes.inputs, rows), layout(&self.sizes.outputs, rows));
        stage(memory, &inputs, &aloft.requests);
        context.record(marks.begun, stream)?;
        let size = inputs.last().copied().unwrap_or_default();
        if size > 0 {
            // SAFETY: the staging memory is not touched again until `done` was passed.
            unsafe { context.copy_in(stream, memory.staged.as_ptr(), memory.inputs.pointer(), size)? };
        }
        context.record(marks.uploaded, stream)?;
        let at = |base: DevicePointer, offsets: &[usize]| -> SmallVec<[DevicePointer; 4]> {
            let (_, begins) = offsets.split_last().unwrap_or((&0, &[]));
            begins.iter().map(|offset| base + *offset as u64).collect()
        };
        program.enqueue(&mut Work {
            opened: &self.opened,
            stream,
            blas: self.blas.as_deref_mut(),
            rows,
            inputs: &at(memory.inputs.pointer(), &inputs),
            outputs: &at(memory.outputs.pointer(), &outputs),
            scratch: memory.scratch.pointer(),
        })?;
        context.record(marks.computed, stream)?;
        for ((offset, row), wanted) in outputs.iter().zip(&self.sizes.outputs).zip(&aloft.wanted) {
            let size = row * rows;
            if *wanted == Wanted::Whole && size > 0 {
                let from = memory.outputs.pointer() + *offset as u64;
                // SAFETY: the layout of so many rows lies within that of the most, which the memory has; the
                // results are not touched until `done` was passed.
                unsafe { context.copy_out(stream, from, memory.results.as_ptr().add(*offset), size)? };
            }
        }
        Ok(())
    }

    /// Whether the batch in it is done; it may have failed.
    pub fn is_done(&self) -> Result<bool, DriverError> {
        self.opened.context().is_passed(self.marks.done)
    }

    /// Takes the batch out, whose last event was passed, with the bytes of the outputs that came back.
    pub fn land(&mut self) -> Option<(Aloft, SmallVec<[Bytes; 2]>)> {
        let aloft = self.aloft.take()?;
        let memory = self.memory.as_ref()?;
        // SAFETY: `done` was passed, which comes after every copy.
        let results = unsafe { memory.results.as_slice() };
        let offsets = layout(&self.sizes.outputs, aloft.rows);
        let parts = offsets.iter().zip(&self.sizes.outputs).zip(&aloft.wanted);
        let outputs = parts.map(|((offset, row), wanted)| match wanted {
            Wanted::Nothing => Bytes::new(),
            Wanted::Whole => {
                let bytes = results.get(*offset..offset + row * aloft.rows).unwrap_or_default();
                let mut buffer = AlignedBuffer::with_capacity(bytes.len());
                buffer.extend_from_slice(bytes);
                buffer.freeze()
            }
        });
        let outputs = outputs.collect();
        Some((aloft, outputs))
    }

    /// How long the parts of the last batch took; nothing is known where it failed.
    pub fn times(&self) -> Times {
        let elapsed = |begin, end| self.opened.context().elapsed(begin, end).unwrap_or_default();
        let Marks { begun, uploaded, computed, done } = self.marks;
        Times {
            upload: elapsed(begun, uploaded),
            compute: elapsed(uploaded, computed),
            download: elapsed(computed, done),
        }
    }

    /// Gives up a batch that will not end: its requests, and for good the memory that the device may
    /// still write to, unless nothing writes in a broken context any more.
    pub fn abandon(&mut self) -> Vec<Request> {
        let Some(aloft) = self.aloft.take() else { return Vec::new() };
        if !self.opened.is_broken() {
            std::mem::forget(self.memory.take());
        }
        aloft.requests
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.abandon());
        let context = self.opened.context();
        context.end_stream(self.stream);
        for mark in [self.marks.begun, self.marks.uploaded, self.marks.computed, self.marks.done] {
            context.end_event(mark);
        }
    }
}

/// Puts the rows of all requests behind one another, input by input.
fn stage(memory: &mut Memory, offsets: &[usize], requests: &[Request]) {
    // SAFETY: the slot is free: the stream has passed every copy.
    let staged = unsafe { memory.staged.as_mut_slice() };
    for (index, offset) in offsets.split_last().map_or(&[][..], |(_, begins)| begins).iter().enumerate() {
        let mut at = *offset;
        for tensor in requests.iter().filter_map(|request| request.inputs.get(index)) {
            let end = at.saturating_add(tensor.contents.len());
            if let Some(place) = staged.get_mut(at..end) {
                place.copy_from_slice(&tensor.contents);
            }
            at = end;
        }
    }
}

/// Where each tensor of so many rows begins, and where the last ends; nothing where that cannot be
/// counted.
fn layout(row_sizes: &[usize], rows: usize) -> SmallVec<[usize; 4]> {
    let mut offsets = SmallVec::new();
    let mut at = 0_usize;
    offsets.push(at);
    for size in row_sizes {
        let end = size.checked_mul(rows).and_then(|size| at.checked_add(size));
        let Some(next) = end.and_then(|end| end.checked_next_multiple_of(GPU_BUFFER_ALIGNMENT)) else {
            return SmallVec::new();
        };
        at = next;
        offsets.push(at);
    }
    offsets
}
