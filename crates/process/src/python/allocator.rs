//! The parts of a region that are in use. Pure: it never sees the memory.

use std::ops::Range;

use base::limits::TENSOR_ALIGNMENT;

/// The free parts of a region. First fit, the lowest offset first: the part that is seldom needed
/// stays untouched at the end, and its pages can be given back. Sizes are rounded up to
/// [`TENSOR_ALIGNMENT`], and so all offsets are aligned.
#[derive(Clone, Debug)]
pub struct RegionAllocator {
    /// Not empty, sorted, and never side by side.
    free: Vec<Range<u64>>,
    size: u64,
    used: u64,
}

impl RegionAllocator {
    /// All of a region is free. Bytes beyond the last whole line are never used.
    pub fn new(size: u64) -> Self {
        let size = size - size % ALIGNMENT;
        let free = Some(0..size).filter(|range| !range.is_empty()).into_iter().collect();
        Self { free, size, used: 0 }
    }

    /// Takes `size` bytes, at least one line. `None` if there is no such free range.
    pub fn allocate(&mut self, size: u64) -> Option<Range<u64>> {
        let size = size.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let index = self.free.iter().position(|range| range.end - range.start >= size)?;
        let found = self.free.get_mut(index)?;
        let taken = found.start..found.start + size;
        found.start = taken.end;
        if found.is_empty() {
            self.free.remove(index);
        }
        self.used += size;
        self.check();
        Some(taken)
    }

    /// Frees a range that [`Self::allocate`] returned. One that is not in use stays as it is.
    pub fn free(&mut self, range: Range<u64>) {
        let index = self.free.partition_point(|free| free.end < range.start);
        let is_free = self.free.iter().skip(index).take(2).any(|free| free.start < range.end && range.start < free.end);
        debug_assert!(!is_free && range.end <= self.size, "a range was freed that was not in use");
        if is_free || range.end > self.size || range.is_empty() {
            return;
        }
        self.used = self.used.saturating_sub(range.end - range.start);
        match self.free.get_mut(index) {
            Some(before) if before.end == range.start => {
                before.end = range.end;
                let end = range.end;
                let joined = self.free.get(index + 1).filter(|after| after.start == end).map(|after| after.end);
                if let (Some(end), Some(before)) = (joined, self.free.get_mut(index)) {
                    before.end = end;
                    self.free.remove(index + 1);
                }
            }
            Some(after) if after.start == range.end => after.start = range.start,
            _ => self.free.insert(index, range),
        }
        self.check();
    }

    fn check(&self) {
        debug_assert!(self.free.iter().all(|range| range.start < range.end && range.end <= self.size));
        debug_assert!(self.free.iter().all(|range| range.start.is_multiple_of(ALIGNMENT)));
        debug_assert!(self.free.is_sorted_by(|one, other| one.end < other.start), "{:?}", self.free);
        let free: u64 = self.free.iter().map(|range| range.end - range.start).sum();
        debug_assert_eq!(free + self.used, self.size);
    }
}

const ALIGNMENT: u64 = TENSOR_ALIGNMENT as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_part_that_fits_is_taken_and_neighbours_join() {
        let mut allocator = RegionAllocator::new(1000);
        assert_eq!(allocator.size, 960);
        let ranges: Vec<_> = [1, 64, 65, 700].map(|size| allocator.allocate(size).unwrap()).into();
        assert_eq!(ranges, [0..64, 64..128, 128..256, 256..960]);
        assert_eq!((allocator.allocate(1), allocator.used), (None, 960));
        allocator.free(128..256);
        allocator.free(0..64);
        assert_eq!(allocator.free, [0..64, 128..256]);
        assert_eq!(allocator.allocate(128), Some(128..256), "first fit");
        assert_eq!(allocator.allocate(0), Some(0..64), "nothing takes a line too");
        for range in [64..128, 256..960, 128..256, 0..64] {
            allocator.free(range);
        }
        assert_eq!((allocator.free.as_slice(), allocator.used), (std::slice::from_ref(&(0..960)), 0));
        assert_eq!((allocator.allocate(u64::MAX), allocator.allocate(961)), (None, None));
        assert_eq!(RegionAllocator::new(63).allocate(1), None);
    }

    /// One flag for each line.
    struct NaiveAllocator(Vec<bool>);

    impl NaiveAllocator {
        fn allocate(&mut self, size: u64) -> Option<Range<u64>> {
            let count = size.max(1).div_ceil(64) as usize;
            let at = (0..=self.0.len().checked_sub(count)?).find(|at| self.0[*at..at + count].iter().all(|used| !used));
            at.map(|at| {
                self.0[at..at + count].fill(true);
                at as u64 * 64..(at + count) as u64 * 64
            })
        }

        fn free(&mut self, range: &Range<u64>) {
            self.0[range.start as usize / 64..range.end as usize / 64].fill(false);
        }
    }

    #[test]
    fn any_order_of_taking_and_freeing_is_that_of_a_naive_model() {
        for seed in 1..200_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut random = |bound: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % bound
            };
            let lines = 1 + random(40);
            let mut allocator = RegionAllocator::new(lines * 64 + random(64));
            let mut naive = NaiveAllocator(vec![false; lines as usize]);
            let mut taken: Vec<Range<u64>> = Vec::new();
            for _ in 0..200 {
                if random(2) == 0 && !taken.is_empty() {
                    let range = taken.swap_remove(random(taken.len() as u64) as usize);
                    naive.free(&range);
                    allocator.free(range);
                } else {
                    let size = random(400);
                    let got = allocator.allocate(size);
                    assert_eq!(got, naive.allocate(size), "seed {seed}");
                    taken.extend(got);
                }
                let used = naive.0.iter().filter(|used| **used).count() as u64 * 64;
                assert_eq!(allocator.used, used, "seed {seed}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "a range was freed that was not in use")]
    fn a_range_that_is_freed_twice_is_found() {
        let mut allocator = RegionAllocator::new(640);
        let first = allocator.allocate(64).unwrap();
        allocator.allocate(64).unwrap();
        allocator.allocate(64).unwrap();
        allocator.free(first.clone());
        allocator.free(first);
    }
}
