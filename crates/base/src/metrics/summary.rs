//! Quantiles of a duration over a sliding window: the summaries of `--metrics-config=summary_latencies=true`. As in
//! Prometheus' clients the window is a ring of slots, the oldest of which is emptied when its turn comes again. One
//! shard writes, any thread may read. Bounded: values share cells by size, so a window has a fixed number of them.

use std::sync::OnceLock;

use crate::limits::{SUMMARY_SLOT_MILLIS, SUMMARY_SLOTS};
use crate::metrics::Counter;

/// Cells of one octave: values differ from that of their cell by 1/128 at most, which is finer than the rank errors that
/// Triton's quantiles have by default.
const CELLS: usize = 64;
/// Octaves: the last ends at 2^37 microseconds, 38 hours. Longer values count there.
const OCTAVES: usize = 32;

/// The values of the last minute.
#[derive(Debug, Default)]
pub struct SummaryWindow {
    slots: [WindowSlot; SUMMARY_SLOTS],
}

/// The values of a part of the window. An octave is allocated when its first value is counted: a model's durations are
/// mostly in three or four of them.
#[derive(Debug, Default)]
struct WindowSlot {
    /// The number of the part since the epoch, from 1; 0 before the first value.
    turn: Counter,
    octaves: [OnceLock<Box<[Counter]>>; OCTAVES],
}

impl SummaryWindow {
    /// Counts a value at `epoch_millis` since the Unix epoch. Only the shard that owns the window may call this.
    pub fn count(&self, micros: u64, epoch_millis: u64) {
        let turn = turn(epoch_millis);
        let Some(slot) = self.slot(turn) else { return };
        if slot.turn.get() != turn {
            slot.octaves.iter().filter_map(OnceLock::get).flatten().for_each(|cell| cell.set(0));
            slot.turn.set(turn);
        }
        let (octave, cell) = place(micros);
        let Some(octave) = slot.octaves.get(octave) else { return };
        let cells = octave.get_or_init(|| (0..CELLS).map(|_| Counter::default()).collect());
        if let Some(cell) = cells.get(cell) {
            cell.add(1);
        }
    }

    fn slot(&self, turn: u64) -> Option<&WindowSlot> {
        self.slots.get(usize::try_from(turn % SUMMARY_SLOTS as u64).ok()?)
    }
}

/// The values at these quantiles, in millionths, over several windows together; `None` if they have
/// no value.
pub fn quantiles(windows: &[&SummaryWindow], quantiles: &[u32], epoch_millis: u64) -> Vec<Option<u64>> {
    let now = turn(epoch_millis);
    let is_recent =
        |slot: &&WindowSlot| (now.saturating_sub(SUMMARY_SLOTS as u64 - 1).max(1)..=now).contains(&slot.turn.get());
    let slots: Vec<_> = windows.iter().flat_map(|window| &window.slots).filter(is_recent).collect();
    let mut counts = Vec::new();
    for octave in 0..OCTAVES {
        for cell in 0..CELLS {
            let of_slot = |slot: &&WindowSlot| Some(slot.octaves.get(octave)?.get()?.get(cell)?.get());
            let count: u64 = slots.iter().filter_map(of_slot).sum();
            if count > 0 {
                counts.push((value(octave, cell), count));
            }
        }
    }
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    let at = |quantile: &u32| {
        let rank = (u128::from(total) * u128::from(*quantile)).div_ceil(1_000_000).max(1);
        let mut below = 0;
        counts.iter().find_map(|(value, count)| {
            below += u128::from(*count);
            (below >= rank).then_some(*value)
        })
    };
    quantiles.iter().map(at).collect()
}

const fn turn(epoch_millis: u64) -> u64 {
    epoch_millis / SUMMARY_SLOT_MILLIS + 1
}

/// The octave and the cell of a value: the first octave has values below [`CELLS`], each later one twice as many.
fn place(micros: u64) -> (usize, usize) {
    let micros = micros.min((1 << (OCTAVES + 5)) - 1);
    // Below 64 the value is its own cell; above, its six bits after the first are.
    let octave = (u64::BITS - (micros >> 6).leading_zeros()) as usize;
    let shift = octave.saturating_sub(1);
    (octave, usize::try_from((micros >> shift) & (CELLS as u64 - 1)).unwrap_or(0))
}

/// The middle of a cell.
const fn value(octave: usize, cell: usize) -> u64 {
    if octave == 0 {
        return cell as u64;
    }
    let width = 1 << (octave - 1);
    ((CELLS + cell) as u64) * width + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u32; 5] = [500_000, 900_000, 950_000, 990_000, 999_000];

    /// Values as different as durations are, from a fixed seed.
    fn values(count: u64) -> Vec<u64> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..count).map(|_| next() >> (30 + next() % 30)).collect()
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values_to_one_part_in_128() {
        for count in [1, 2, 3, 10, 99, 100, 101, 5_000] {
            let mut values = values(count);
            let (one, two) = (SummaryWindow::default(), SummaryWindow::default());
            for (index, value) in values.iter().enumerate() {
                [&one, &two][index % 2].count(*value, 1_000);
            }
            values.sort_unstable();
            for (got, quantile) in quantiles(&[&one, &two], &ALL, 1_000).into_iter().zip(ALL) {
                let rank = (count * u64::from(quantile)).div_ceil(1_000_000).max(1);
                let (want, got) = (values[rank as usize - 1], got.unwrap());
                assert!(got.abs_diff(want) <= want / 128, "{count} {quantile}: {got} for {want}");
            }
        }
    }

    #[test]
    fn every_value_has_the_cell_that_holds_it_and_cells_follow_each_other() {
        for micros in (0..70_000).chain([1 << 20, (1 << 37) - 1]) {
            let (octave, cell) = place(micros);
            let (got, most) = (value(octave, cell), micros / 128);
            assert!(got.abs_diff(micros) <= most, "{micros}: {got}");
        }
        assert_eq!((place(63), place(64), place(127), place(128)), ((0, 63), (1, 0), (1, 63), (2, 0)));
        assert_eq!(place(u64::MAX), (OCTAVES - 1, CELLS - 1));
    }

    #[test]
    fn values_leave_with_the_slot_that_they_came_in() {
        let window = SummaryWindow::default();
        let slot = SUMMARY_SLOT_MILLIS;
        let median = |at: u64| quantiles(&[&window], &[500_000], at)[0];
        assert_eq!(median(0), None, "nothing was counted");
        window.count(10, 0);
        window.count(20, slot);
        window.count(20, slot);
        assert_eq!(median(slot), Some(20));
        window.count(30, 4 * slot);
        assert_eq!(quantiles(&[&window], &[1, 1_000_000], 5 * slot - 1), [Some(10), Some(30)], "a minute");
        assert_eq!(quantiles(&[&window], &[1, 1_000_000], 5 * slot), [Some(20), Some(30)], "10 is too old");
        assert_eq!(median(9 * slot), None);
        window.count(40, 5 * slot);
        assert_eq!(quantiles(&[&window], &[1, 1_000_000], 5 * slot), [Some(20), Some(40)], "its slot was emptied");
    }
}
