//! The slot of one batch on a device: a stream, its events, and memory for the largest batch on
//! both sides. Made with the instance and reused for every batch; it allocates nothing while it
//! works.
//!
//! ```text
//! free ── begin: stage, enqueue upload, program, download, event, wake ──► aloft
//!  ▲                                                                         │
//!  └────────────── land: read results (the event was passed) ────────────────┘
//! ```
//!
//! Pinned memory is touched only while the slot is free or after its last event was passed: the one
//! reason for each `unsafe` here. A caller that begins and lands in another order panics, which
//! costs the instance, and leaves the memory to the device.

#![expect(unsafe_code, reason = "pinned memory is read and written while the device does not")]

use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::gpu::program::{GpuProgram, ProgramBatch, StreamProgram};
use crate::gpu::rows::{DeviceMoves, leased_input};
use crate::gpu::slot_sizes::{BEST_SIZE, ELEMENT_SIZE, SlotSizes};
use backend::Request;
use backend::gpu::device::OpenDevice;
use backend::gpu::driver::{Blas, DevicePointer, DriverError, GpuEvent, GpuStream};
use backend::gpu::figures::DeviceTimes;
use backend::gpu::memory::{DeviceBuffer, PinnedBuffer};
use backend::kernel::topk::{TopK, TopKIndex};
use backend::kernel::{BUFFER_ALIGNMENT, BufferRole};
use base::limits::{GPU_BUFFER_ALIGNMENT, GPU_TOPK_COUNT_MAX};
use base::tensor::{AlignedBuffer, Datatype};
use base::time::Instant;

/// The part of an output to download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputTransfer {
    /// This many best of each row.
    Best(usize),
    /// Nothing: no request needs it.
    Nothing,
    /// All of it.
    Whole,
}

/// The downloaded part of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOutput {
    /// This many best of each row: their values, and their indices.
    Best(usize, Bytes, Bytes),
    /// Nothing.
    Nothing,
    /// Its bytes.
    Whole(Bytes),
}

/// A batch that is on the device.
pub struct InFlightBatch {
    /// Its requests.
    pub requests: Vec<Request>,
    /// Its rows.
    pub rows: usize,
    /// The instant at which it began.
    pub began: Instant,
    /// The part of each output to download.
    pub wanted: SmallVec<[OutputTransfer; 2]>,
    /// The reason why it fails, if not all of it could be enqueued.
    pub failure: Option<DriverError>,
}

/// A slot for one batch.
pub struct BatchSlot {
    opened: Arc<OpenDevice>,
    stream: GpuStream,
    marks: SlotEvents,
    blas: Option<Box<dyn Blas>>,
    /// The program of this stream, in place of the one that all slots share.
    own: Option<Box<dyn StreamProgram>>,
    /// Leaked, not freed, if a batch never ends.
    memory: Option<SlotMemory>,
    sizes: Arc<SlotSizes>,
    in_flight: Option<InFlightBatch>,
    /// True if the last event of the batch was seen passed.
    is_passed: bool,
}

/// The events between the parts of a batch.
struct SlotEvents {
    begun: GpuEvent,
    uploaded: GpuEvent,
    computed: GpuEvent,
    done: GpuEvent,
}

struct SlotMemory {
    staged: PinnedBuffer,
    inputs: DeviceBuffer,
    outputs: DeviceBuffer,
    results: PinnedBuffer,
    scratch: DeviceBuffer,
    /// The best of each output use that output's offset in `outputs`: they are less than half of
    /// it.
    best: DeviceBuffer,
    best_scratch: DeviceBuffer,
}

/// The addresses of a batch's tables on the device.
struct TablePlaces {
    program: DevicePointer,
    scattered: DevicePointer,
}

impl BatchSlot {
    /// Allocates the memory for the largest batch. `blas` is `None` if the program multiplies
    /// nothing.
    pub fn new(
        opened: &Arc<OpenDevice>,
        sizes: &Arc<SlotSizes>,
        blas: Option<Box<dyn Blas>>,
    ) -> Result<Self, DriverError> {
        let context = opened.context();
        let total = |rows: &[usize]| layout(rows, sizes.rows_max).last().copied();
        let too_large = || DriverError::transient("the largest batch has more bytes than can be counted");
        let tables = sizes.table.checked_add(sizes.parts_size_max()).ok_or_else(too_large)?;
        let inputs = total(&sizes.inputs).and_then(|inputs| inputs.checked_add(tables)).ok_or_else(too_large)?;
        let outputs = total(&sizes.outputs).ok_or_else(too_large)?;
        let memory = SlotMemory {
            staged: PinnedBuffer::new(opened, inputs)?,
            inputs: DeviceBuffer::new(opened, if sizes.keeps_staged { 0 } else { inputs })?,
            outputs: DeviceBuffer::new(opened, outputs)?,
            results: PinnedBuffer::new(opened, outputs)?,
            scratch: DeviceBuffer::new(opened, sizes.scratch)?,
            best: DeviceBuffer::new(opened, outputs)?,
            best_scratch: DeviceBuffer::new(opened, best_scratch_size(opened, sizes))?,
        };
        let marks = SlotEvents {
            begun: context.new_event(true)?,
            uploaded: context.new_event(true)?,
            computed: context.new_event(true)?,
            done: context.new_event(true)?,
        };
        let (opened, stream, sizes) = (Arc::clone(opened), context.new_stream()?, Arc::clone(sizes));
        Ok(Self {
            opened,
            stream,
            marks,
            blas,
            own: None,
            memory: Some(memory),
            sizes,
            in_flight: None,
            is_passed: false,
        })
    }

    /// Lets a program prepare for this slot's stream.
    pub fn prepare(&mut self, program: &dyn GpuProgram) -> Result<(), DriverError> {
        self.own = program.on_stream(&self.opened, self.stream)?;
        Ok(())
    }

    /// Returns true if it takes a batch.
    pub const fn is_free(&self) -> bool {
        self.in_flight.is_none() && self.memory.is_some()
    }

    /// Returns the instant at which its batch began, if there is one.
    pub fn began(&self) -> Option<Instant> {
        self.in_flight.as_ref().map(|in_flight| in_flight.began)
    }

    /// Begins a batch in a free slot. An earlier failure is kept for [`Self::land`], since the work
    /// enqueued before it goes on. A failure to enqueue the end is returned, since the end of the
    /// batch is then unknown. `waker` is called when all is done.
    ///
    /// # Panics
    /// If the slot is not free.
    pub fn begin(
        &mut self,
        mut in_flight: InFlightBatch,
        program: &dyn GpuProgram,
        waker: &Arc<Waker>,
    ) -> Result<(), DriverError> {
        assert!(self.is_free(), "a batch begins in a free slot: the device uses the memory of another");
        self.is_passed = false;
        let outcome = self.enqueue(&in_flight, program);
        let context = self.opened.context();
        let closed = context.record(self.marks.done, self.stream);
        let closed = closed.and_then(|()| context.wake(self.stream, waker));
        in_flight.failure = outcome.err();
        self.in_flight = Some(in_flight);
        closed
    }

    fn enqueue(&mut self, in_flight: &InFlightBatch, program: &dyn GpuProgram) -> Result<(), DriverError> {
        let rows = in_flight.rows;
        let (inputs, outputs) = (layout(&self.sizes.inputs, rows), layout(&self.sizes.outputs, rows));
        let moves = DeviceMoves::new(&in_flight.requests, [&inputs, &outputs], &self.sizes);
        let tables = self.enqueue_upload(in_flight, program, &inputs, &moves)?;
        self.enqueue_program(program, rows, [&inputs, &outputs], tables.program)?;
        self.opened.context().record(self.marks.computed, self.stream)?;
        if let Some(memory) = &self.memory {
            let places = [memory.outputs.pointer(), moves.scattered.far, tables.scattered];
            moves.scattered.launch(&self.opened, self.stream, places)?;
        }
        self.enqueue_download(in_flight, &outputs)
    }

    /// Stages the inputs on the host, uploads them with the tables in one copy, and gathers those
    /// on the device.
    fn enqueue_upload(
        &mut self,
        in_flight: &InFlightBatch,
        program: &dyn GpuProgram,
        inputs: &[usize],
        moves: &DeviceMoves,
    ) -> Result<TablePlaces, DriverError> {
        let context = self.opened.context();
        let Some(memory) = &mut self.memory else { return Err(DriverError::transient("a slot without memory")) };
        // SAFETY: the slot is free, as `begin` has checked: the stream has passed every copy.
        let staged = unsafe { memory.staged.as_mut_slice() };
        stage(staged, inputs, &in_flight.requests);
        let table = inputs.last().copied().unwrap_or_default();
        let gathered = table + self.sizes.table;
        if let Some(table) = staged.get_mut(table..gathered) {
            program.write_table(in_flight.rows, table);
        }
        let parts = [&moves.gathered, &moves.scattered].map(|parts| bytemuck::cast_slice::<_, u8>(&parts.parts));
        let [scattered, size] = [gathered + parts[0].len(), gathered + parts[0].len() + parts[1].len()];
        let too_many = || DriverError::transient("a batch has more tensors on the device than rows");
        staged.get_mut(gathered..size).ok_or_else(too_many)?.copy_from_slice(&parts.concat());
        context.record(self.marks.begun, self.stream)?;
        let begin = if moves.has_host_inputs { 0 } else { table };
        let base = memory.inputs.pointer();
        if size > begin && !self.sizes.keeps_staged {
            // SAFETY: `begin` is within the staging memory, which is not touched again until `done` was passed.
            unsafe {
                let from = memory.staged.as_ptr().add(begin);
                context.copy_in(self.stream, from, base + begin as u64, size - begin)?;
            }
        }
        let at = |offset: usize| base + offset as u64;
        // Behind the upload, which leaves arbitrary bytes in the places of these rows.
        moves.gathered.launch(&self.opened, self.stream, [moves.gathered.far, base, at(gathered)])?;
        context.record(self.marks.uploaded, self.stream)?;
        Ok(TablePlaces { program: at(table), scattered: at(scattered) })
    }

    fn enqueue_program(
        &mut self,
        program: &dyn GpuProgram,
        rows: usize,
        [inputs, outputs]: [&[usize]; 2],
        table: DevicePointer,
    ) -> Result<(), DriverError> {
        let Some(memory) = &self.memory else { return Err(DriverError::transient("a slot without memory")) };
        let at = |base: DevicePointer, offsets: &[usize]| -> SmallVec<[DevicePointer; 4]> {
            let (_, begins) = offsets.split_last().unwrap_or((&0, &[]));
            begins.iter().map(|offset| base + *offset as u64).collect()
        };
        // SAFETY: the staging memory is not written again until `done` was passed.
        let staged = unsafe { memory.staged.as_slice() };
        let parts = inputs.iter().zip(&self.sizes.inputs);
        let staged: SmallVec<[&[u8]; 4]> =
            parts.map(|(begin, row)| staged.get(*begin..begin + row * rows).unwrap_or_default()).collect();
        let on_device = if self.sizes.keeps_staged { SmallVec::new() } else { at(memory.inputs.pointer(), inputs) };
        let mut work = ProgramBatch {
            opened: &self.opened,
            stream: self.stream,
            blas: self.blas.as_deref_mut(),
            rows,
            inputs: &on_device,
            staged: &staged,
            outputs: &at(memory.outputs.pointer(), outputs),
            table,
            scratch: memory.scratch.pointer(),
        };
        match &mut self.own {
            Some(own) => own.enqueue(&mut work),
            None => program.enqueue(&mut work),
        }
    }

    /// Enqueues the search for the best, if only they are downloaded, and the downloads.
    fn enqueue_download(&self, in_flight: &InFlightBatch, outputs: &[usize]) -> Result<(), DriverError> {
        let context = self.opened.context();
        let (stream, rows) = (self.stream, in_flight.rows);
        let Some(memory) = &self.memory else { return Ok(()) };
        for ((offset, row), wanted) in outputs.iter().zip(&self.sizes.outputs).zip(&in_flight.wanted) {
            let (source, size) = match *wanted {
                OutputTransfer::Nothing => continue,
                OutputTransfer::Whole => (&memory.outputs, row * rows),
                OutputTransfer::Best(count) => {
                    let top = top_k(rows, row / ELEMENT_SIZE, count);
                    let plan = top.plan(context.device().multiprocessors);
                    let plan = plan.map_err(|error| DriverError::transient(error.text().to_owned()))?;
                    let (values, indices) = best_layout(rows, count);
                    let at = |buffer: &DeviceBuffer, behind: usize| Some(buffer.pointer() + (*offset + behind) as u64);
                    self.opened.launch(stream, &plan, |role| match role {
                        BufferRole::Input => at(&memory.outputs, 0),
                        BufferRole::Output => at(&memory.best, 0),
                        BufferRole::Indices => at(&memory.best, indices),
                        BufferRole::Scratch => Some(memory.best_scratch.pointer()),
                        BufferRole::Right | BufferRole::Parts => None,
                    })?;
                    (&memory.best, indices + values)
                }
            };
            if size > 0 {
                let from = source.pointer() + *offset as u64;
                // SAFETY: the layout of `rows` rows lies within that of the most, which the memory
                // has; the results are not touched until `done` was passed.
                unsafe { context.copy_out(stream, from, memory.results.as_ptr().add(*offset), size)? };
            }
        }
        Ok(())
    }

    /// Returns true if the batch in it is done; it may have failed.
    pub fn is_done(&mut self) -> Result<bool, DriverError> {
        self.is_passed = self.in_flight.is_some() && self.opened.context().is_passed(self.marks.done)?;
        Ok(self.is_passed)
    }

    /// Takes the batch out, if there is one, with the bytes of the downloaded outputs: after
    /// [`Self::is_done`] has returned true.
    ///
    /// # Panics
    /// If it has not.
    pub fn land(&mut self) -> Option<(InFlightBatch, SmallVec<[BatchOutput; 2]>)> {
        assert!(self.is_passed || self.in_flight.is_none(), "a batch lands when the device is done with its memory");
        let in_flight = self.in_flight.take()?;
        let memory = self.memory.as_ref()?;
        // SAFETY: `done` was passed, as was seen just now, and comes after every copy.
        let results = unsafe { memory.results.as_slice() };
        let offsets = layout(&self.sizes.outputs, in_flight.rows);
        let parts = offsets.iter().zip(&self.sizes.outputs).zip(&in_flight.wanted);
        let copied = |begin: usize, size: usize| {
            let bytes = results.get(begin..begin + size).unwrap_or_default();
            let mut buffer = AlignedBuffer::with_capacity(bytes.len());
            buffer.extend_from_slice(bytes);
            buffer.freeze()
        };
        let outputs = parts.map(|((offset, row), wanted)| match *wanted {
            OutputTransfer::Nothing => BatchOutput::Nothing,
            OutputTransfer::Whole => BatchOutput::Whole(copied(*offset, row * in_flight.rows)),
            OutputTransfer::Best(count) => {
                let (size, indices) = best_layout(in_flight.rows, count);
                BatchOutput::Best(count, copied(*offset, size), copied(offset + indices, size))
            }
        });
        let outputs = outputs.collect();
        Some((in_flight, outputs))
    }

    /// Returns the times of the parts of the last batch; zero if it failed.
    pub fn times(&self) -> DeviceTimes {
        let elapsed = |begin, end| self.opened.context().elapsed(begin, end).unwrap_or_default();
        let SlotEvents { begun, uploaded, computed, done } = self.marks;
        DeviceTimes {
            upload: elapsed(begun, uploaded),
            compute: elapsed(uploaded, computed),
            download: elapsed(computed, done),
        }
    }

    /// Gives up a batch that will not end. Returns its requests and leaks the memory that the
    /// device may still write to, unless the context is broken, so that nothing writes any longer.
    pub fn abandon(&mut self) -> Vec<Request> {
        let Some(in_flight) = self.in_flight.take() else { return Vec::new() };
        if !self.opened.is_broken() {
            std::mem::forget(self.memory.take());
        }
        if !self.opened.is_broken() || self.opened.is_hung() {
            // Dropping it would wait for the batch.
            std::mem::forget(self.own.take());
        }
        in_flight.requests
    }
}

impl Drop for BatchSlot {
    fn drop(&mut self) {
        drop(self.abandon());
        // It uses the stream.
        let own = self.own.take();
        if self.opened.is_hung() {
            std::mem::forget(own);
        } else {
            drop(own);
        }
        let context = self.opened.context();
        // SAFETY: it was made in this context by `new`, and its users have ended before.
        unsafe { context.end_stream(self.stream) };
        for mark in [self.marks.begun, self.marks.uploaded, self.marks.computed, self.marks.done] {
            // SAFETY: as the stream.
            unsafe { context.end_event(mark) };
        }
    }
}

/// Returns the bytes of the values of the `count` best of rows, which are also those of the
/// indices; and the offset of the indices behind the values.
fn best_layout(rows: usize, count: usize) -> (usize, usize) {
    let size = rows * count * ELEMENT_SIZE;
    (size, size.next_multiple_of(BUFFER_ALIGNMENT))
}

const fn top_k(rows: usize, classes: usize, count: usize) -> TopK {
    TopK { datatype: Datatype::Fp32, rows, classes, count, has_values: true, index: TopKIndex::U32 }
}

/// Returns the scratch bytes for the search for the best of any output, in a batch of any rows.
fn best_scratch_size(opened: &OpenDevice, sizes: &SlotSizes) -> usize {
    let multiprocessors = opened.context().device().multiprocessors;
    let of_output = |(index, row): (usize, &usize)| {
        let classes = row / ELEMENT_SIZE;
        let asked = u32::try_from(classes / (2 * BEST_SIZE / ELEMENT_SIZE)).unwrap_or(u32::MAX);
        let most = asked.min(u32::try_from(GPU_TOPK_COUNT_MAX).unwrap_or(u32::MAX));
        let count = sizes.best_count(index, most)?;
        let scratch = |rows| top_k(rows, classes, count).plan(multiprocessors).map_or(0, |plan| plan.scratch_size);
        (1..=sizes.rows_max).map(scratch).max()
    };
    sizes.outputs.iter().enumerate().filter_map(of_output).max().unwrap_or(0)
}

/// Copies the rows of all requests behind one another, input by input, except those on the device.
fn stage(staged: &mut [u8], offsets: &[usize], requests: &[Request]) {
    for (index, offset) in offsets.split_last().map_or(&[][..], |(_, begins)| begins).iter().enumerate() {
        let mut at = *offset;
        for request in requests {
            if let Some(lease) = leased_input(request, index) {
                // The device copies it there.
                at = at.saturating_add(lease.size());
                continue;
            }
            let Some(tensor) = request.inputs.get(index) else { continue };
            let end = at.saturating_add(tensor.contents.len());
            if let Some(place) = staged.get_mut(at..end) {
                place.copy_from_slice(&tensor.contents);
            }
            at = end;
        }
    }
}

/// Returns the offset of each tensor of `rows` rows, and the end of the last; empty on overflow.
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::gpu::program::ProgramSource;
    use crate::gpu::trial::Product;
    use backend::gpu::fake::Fake;

    fn in_flight() -> InFlightBatch {
        let wanted = [OutputTransfer::Whole].into_iter().collect();
        InFlightBatch { requests: Vec::new(), rows: 1, began: Instant::ZERO, wanted, failure: None }
    }

    #[test]
    fn a_slot_that_is_used_in_another_order_panics_before_it_touches_memory() {
        let fake = Fake::new(1);
        let opened = fake.gpu(1 << 20, 1 << 20).open().unwrap();
        let product = Product { rows_max: 1 };
        let (program, sizes) = (product.place(&opened).unwrap(), product.sizes());
        let blas = Some(opened.context().new_blas().unwrap());
        let mut slot = BatchSlot::new(&opened, &sizes, blas).unwrap();
        let waker = Arc::new(Waker::noop().clone());
        assert!(slot.land().is_none() && !slot.is_done().unwrap(), "it is free");
        fake.hold();
        slot.begin(in_flight(), &*program, &waker).unwrap();
        let mut panics = |act: &mut dyn FnMut(&mut BatchSlot)| {
            fake.take_timeline();
            let payload = catch_unwind(AssertUnwindSafe(|| act(&mut slot))).unwrap_err();
            assert_eq!(fake.take_timeline(), "");
            *payload.downcast::<&str>().unwrap()
        };
        let begun = panics(&mut |slot| drop(slot.begin(in_flight(), &*program, &waker)));
        assert!(begun.starts_with("a batch begins in a free slot"), "{begun}");
        let batch_output = panics(&mut |slot| drop(slot.land()));
        assert!(batch_output.starts_with("a batch lands when the device is done"), "{batch_output}");
        fake.finish(0);
        assert!(slot.is_done().unwrap() && slot.land().is_some() && slot.is_free());
    }
}
