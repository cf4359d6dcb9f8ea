//! The regions that one side of a process allocates from and writes: in the server those for requests, in a process of
//! this program those for outputs. The other side reports the slots that it no longer needs.

use std::collections::HashMap;
use std::ops::Range;

use crate::limits::{ENGINE_REGION_KEPT, ENGINE_REGION_SMALL_USES};
use crate::python::allocator::RegionAllocator;
use crate::python::message::{MessageError, Span};
use crate::python::region::RequestRegion;

/// Regions with slots. New slots come from the newest region.
#[derive(Default)]
pub struct WrittenRegions {
    /// The newest is the last.
    regions: Vec<WrittenRegion>,
    /// The slots in use: the number of their region, and their range in it.
    slots: HashMap<u32, (u16, Range<u64>)>,
    last_slot: u32,
}

struct WrittenRegion {
    number: u16,
    region: RequestRegion,
    allocator: RegionAllocator,
    slot_count: usize,
    /// The end of the highest slot since its pages were given back last.
    used_end: u64,
    /// The same since no slot was in use.
    busy_end: u64,
    /// The times in a row that all slots were freed and none had been beyond the pages that are kept.
    small_uses: u32,
}

impl WrittenRegions {
    /// Adds a region, which is the newest from now on.
    pub fn push(&mut self, number: u16, region: RequestRegion) {
        let allocator = RegionAllocator::new(region.size() as u64);
        self.regions.push(WrittenRegion {
            number,
            region,
            allocator,
            slot_count: 0,
            used_end: 0,
            busy_end: 0,
            small_uses: 0,
        });
    }

    /// Keeps the first `size` bytes of the newest region, which has no slots yet, for the protocol.
    pub fn reserve(&mut self, size: u64) {
        if let Some(newest) = self.regions.last_mut() {
            let reserved = newest.allocator.allocate(size);
            debug_assert!(reserved.is_none_or(|range| range.start == 0), "the region has slots already");
        }
    }

    /// A slot of `size` bytes in the newest region; `None` if it has no room.
    pub fn allocate(&mut self, size: u64) -> Option<Span> {
        let newest = self.regions.last_mut()?;
        let range = newest.allocator.allocate(size)?;
        newest.slot_count += 1;
        newest.used_end = newest.used_end.max(range.end);
        newest.busy_end = newest.busy_end.max(range.end);
        // A slot in use is never named twice: the numbers come round after four billion messages.
        let mut slot = self.last_slot.wrapping_add(1);
        while slot == 0 || self.slots.contains_key(&slot) {
            slot = slot.wrapping_add(1);
        }
        self.last_slot = slot;
        let span = Span { slot, region: newest.number, offset: range.start, size };
        self.slots.insert(slot, (newest.number, range));
        Some(span)
    }

    /// Writes parts into a span, placed by [`SpanLayout`](crate::python::message::SpanLayout).
    ///
    /// # Errors
    /// [`MessageError::Range`] if one would go beyond the span, or there is no such region.
    pub fn write_parts<'a>(
        &mut self,
        span: &Span,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), MessageError> {
        self.find(span.region)?.region.write_parts(span, parts)
    }

    /// Writes bytes at an offset of a region.
    ///
    /// # Errors
    /// [`MessageError::Range`] if they would not fit, or there is no such region.
    pub fn write(&mut self, number: u16, offset: u64, bytes: &[u8]) -> Result<(), MessageError> {
        self.find(number)?.region.write(offset, bytes)
    }

    /// The other side no longer needs a slot; false if there is no such slot. Gives memory back that only large batches
    /// need, once none has come for a while.
    pub fn free(&mut self, slot: u32) -> bool {
        let Some((number, range)) = self.slots.remove(&slot) else { return false };
        if let Ok(region) = self.find(number) {
            region.allocator.free(range);
            region.slot_count -= 1;
            region.give_back();
        }
        true
    }

    /// The bytes of the newest region; 0 without a region.
    pub fn newest_size(&self) -> u64 {
        self.regions.last().map_or(0, |newest| newest.region.size() as u64)
    }

    /// The oldest region.
    pub fn first(&self) -> Option<&RequestRegion> {
        self.regions.first().map(|oldest| &oldest.region)
    }

    /// Drops the older regions without slots and reports their numbers. `keeps_first` keeps region 0, whose first bytes
    /// are the protocol's.
    pub fn drop_unused(&mut self, keeps_first: bool, mut handle_dropped: impl FnMut(u16)) {
        let newest = self.regions.last().map(|newest| newest.number);
        self.regions.retain(|region| {
            let WrittenRegion { number, slot_count, .. } = *region;
            let is_kept = slot_count > 0 || Some(number) == newest || (keeps_first && number == 0);
            if !is_kept {
                handle_dropped(number);
            }
            is_kept
        });
    }

    /// From the newest: most messages are in it.
    fn find(&mut self, number: u16) -> Result<&mut WrittenRegion, MessageError> {
        self.regions.iter_mut().rev().find(|region| region.number == number).ok_or(MessageError::Range)
    }
}

impl WrittenRegion {
    /// The other side has released all slots, so nothing refers to the pages. Those at the front stay: they have the
    /// protocol's bytes, and the next batches use them again. So do all of them while large batches come now and then:
    /// to take 64 MiB anew costs several times what the copy does.
    fn give_back(&mut self) {
        if self.slot_count > 0 {
            return;
        }
        let is_small = std::mem::take(&mut self.busy_end) <= ENGINE_REGION_KEPT;
        self.small_uses = if is_small { self.small_uses.saturating_add(1) } else { 0 };
        if self.used_end <= ENGINE_REGION_KEPT || self.small_uses < ENGINE_REGION_SMALL_USES {
            return;
        }
        // If the system refuses, the memory stays as it is, and the next last slot tries again.
        if self.region.punch(ENGINE_REGION_KEPT..self.region.size() as u64).is_ok() {
            self.used_end = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(sizes: &[usize]) -> WrittenRegions {
        let mut regions = WrittenRegions::default();
        for (number, size) in (0..).zip(sizes) {
            regions.push(number, RequestRegion::new(*size).unwrap());
        }
        regions
    }

    #[test]
    fn numbers_of_slots_come_round_without_0_and_those_in_use() {
        let mut regions = regions(&[1024]);
        let mut slot = || regions.allocate(64).unwrap().slot;
        assert_eq!((slot(), slot()), (1, 2));
        regions.last_slot = u32::MAX - 1;
        let mut slot = || regions.allocate(64).unwrap().slot;
        assert_eq!((slot(), slot()), (u32::MAX, 3));
    }

    #[test]
    fn slots_are_of_the_newest_region_and_end_once() {
        let mut regions = regions(&[1024]);
        regions.reserve(64);
        let old = regions.allocate(960).unwrap();
        assert_eq!((old, regions.allocate(1)), (Span { slot: 1, region: 0, offset: 64, size: 960 }, None));
        regions.push(1, RequestRegion::new(2048).unwrap());
        let new = regions.allocate(1).unwrap();
        assert_eq!((new, regions.newest_size()), (Span { slot: 2, region: 1, offset: 0, size: 1 }, 2048));
        assert!(!regions.free(0) && !regions.free(3));
        assert!(regions.free(old.slot) && !regions.free(old.slot), "only once");
        assert_eq!(regions.allocate(1).unwrap().region, 1, "room in an older region is not used");
    }

    #[test]
    fn parts_and_bytes_lie_in_the_region_that_is_named() {
        let mut regions = regions(&[1024]);
        let span = regions.allocate(67).unwrap();
        regions.push(1, RequestRegion::new(1024).unwrap());
        regions.write_parts(&span, [&b"ab"[..], b"cde"]).unwrap();
        regions.write(0, 8, b"f").unwrap();
        let mut bytes = [0; 128];
        rustix::io::pread(regions.first().unwrap().fd(), &mut bytes, 0).unwrap();
        assert_eq!((&bytes[..2], &bytes[64..67], bytes[8]), (&b"ab"[..], &b"cde"[..], b'f'));
        assert_eq!(regions.write_parts(&span, [&[0; 68][..]]), Err(MessageError::Range));
        assert_eq!(regions.write(2, 0, b"f"), Err(MessageError::Range), "there is no such region");
    }

    #[test]
    fn pages_beyond_those_kept_are_given_back_when_only_small_batches_come() {
        let kept = ENGINE_REGION_KEPT as usize;
        let mut regions = regions(&[2 * kept]);
        regions.reserve(64);
        regions.write(0, 0, b"head").unwrap();
        let fill = |regions: &mut WrittenRegions, size: usize| {
            let span = regions.allocate(size as u64).unwrap();
            regions.write_parts(&span, [&vec![1; size][..]]).unwrap();
            span.slot
        };
        let blocks = |regions: &WrittenRegions| {
            rustix::fs::fstat(regions.first().unwrap().fd()).unwrap().st_blocks as usize * 512
        };
        let small = fill(&mut regions, kept - 64);
        assert!(regions.free(small));
        assert_eq!(blocks(&regions), kept, "as many pages as may stay");
        let slots = [kept, kept / 2].map(|size| fill(&mut regions, size));
        let held = blocks(&regions);
        assert!(held > kept + kept / 2, "{held}");
        assert!(regions.free(slots[0]));
        assert_eq!(blocks(&regions), held, "the other slot is in use");
        assert!(regions.free(slots[1]));
        for _ in 0..ENGINE_REGION_SMALL_USES {
            assert_eq!(blocks(&regions), held, "a large one may come again");
            let small = fill(&mut regions, 64);
            assert!(regions.free(small));
        }
        assert_eq!(blocks(&regions), kept);
        let mut head = [0; 4];
        rustix::io::pread(regions.first().unwrap().fd(), &mut head, 0).unwrap();
        assert_eq!(&head, b"head", "the front stays");
    }

    #[test]
    fn an_older_region_is_dropped_without_slots_and_the_first_only_if_it_is_not_kept() {
        let mut regions = regions(&[64, 64]);
        let span = regions.allocate(1).unwrap();
        regions.push(2, RequestRegion::new(64).unwrap());
        let dropped = |regions: &mut WrittenRegions, keeps_first| {
            let mut numbers = Vec::new();
            regions.drop_unused(keeps_first, |number| numbers.push(number));
            numbers
        };
        assert_eq!(dropped(&mut regions, true), [0; 0]);
        assert!(regions.free(span.slot));
        assert_eq!(dropped(&mut regions, true), [1]);
        assert_eq!(dropped(&mut regions, false), [0]);
        assert_eq!(dropped(&mut regions, false), [0; 0], "the newest stays");
    }
}
