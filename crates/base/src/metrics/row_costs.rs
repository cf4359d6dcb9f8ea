//! The cost of a row by size of batch, and the size that follows, if the configuration leaves it to
//! measurements.

use std::fmt::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::limits::BATCH_ROWS_MAX;
use crate::metrics::{ModelFigures, head};

/// One for each power of two of rows.
const SIZES: usize = BATCH_ROWS_MAX.next_power_of_two().ilog2() as usize + 1;

/// The costs that the batcher of one model version has learned. Written under its lock and read by
/// any thread; the numbers may be of two moments.
#[derive(Debug, Default)]
pub struct RowCostCells {
    /// Rows that a batch may have; 0 if nothing is learned.
    chosen: AtomicU32,
    /// Nanoseconds for a row in batches of up to each power of two of rows; 0 if no batch ran.
    costs: [AtomicU64; SIZES],
}

/// The same, as read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowCostFigures {
    /// Rows that a batch may have.
    pub chosen: u32,
    /// The largest batch of each size that ran, and the cost of a row in it.
    pub costs: Vec<(u32, Duration)>,
}

impl RowCostCells {
    /// Marks the costs as not, or no longer, learned.
    #[inline]
    pub fn clear(&self) {
        self.chosen.store(0, Ordering::Relaxed);
    }

    /// Sets the chosen size and the known costs; the costs are in order of size.
    pub fn set(&self, chosen: u32, costs: impl Iterator<Item = (u32, Duration)>) {
        for (rows, cost) in costs {
            let size = rows.max(1).next_power_of_two().ilog2() as usize;
            if let Some(cell) = self.costs.get(size) {
                cell.store(u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        }
        self.chosen.store(chosen, Ordering::Relaxed);
    }

    /// Returns the learned costs; `None` if nothing is learned. `rows_max` is the largest batch.
    pub fn read(&self, rows_max: u32) -> Option<RowCostFigures> {
        let chosen = Some(self.chosen.load(Ordering::Relaxed)).filter(|chosen| *chosen > 0)?;
        let cost = |(size, cell): (u32, &AtomicU64)| {
            let nanos = Some(cell.load(Ordering::Relaxed)).filter(|nanos| *nanos > 0)?;
            Some(((1 << size).min(rows_max), Duration::from_nanos(nanos)))
        };
        Some(RowCostFigures { chosen, costs: (0..).zip(&self.costs).filter_map(cost).collect() })
    }
}

/// Appends the series of all models that have learned costs.
pub fn encode_models(out: &mut String, models: &[ModelFigures<'_>]) {
    let known = || models.iter().filter_map(|model| Some((model, model.row_costs.as_ref()?)));
    if known().next().is_none() {
        return;
    }
    let name = "deuteron_batch_rows_chosen";
    head(out, name, "gauge", "Rows that a batch may have, by what rows cost in batches of each size");
    for (ModelFigures { labels, name: model, version, .. }, costs) in known() {
        let _ = writeln!(out, "{name}{{{labels}model=\"{model}\",version=\"{version}\"}} {}", costs.chosen);
    }
    let name = "deuteron_row_seconds";
    head(
        out,
        name,
        "gauge",
        "Time per row in batches of up to the number of rows in the label, median of the last runs",
    );
    for (ModelFigures { labels, name: model, version, .. }, costs) in known() {
        for (rows, cost) in &costs.costs {
            let cost = cost.as_secs_f64();
            let _ =
                writeln!(out, "{name}{{{labels}model=\"{model}\",rows=\"{rows}\",version=\"{version}\"}} {cost:.9}");
        }
    }
}

/// The names of both families.
pub fn names() -> impl Iterator<Item = &'static str> {
    ["deuteron_batch_rows_chosen", "deuteron_row_seconds"].into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learned_is_shown_and_gone_when_it_no_longer_holds() {
        let cells = RowCostCells::default();
        assert_eq!(cells.read(6), None);
        cells.set(1, [(1, Duration::from_micros(6)), (6, Duration::from_micros(7))].into_iter());
        let model = |row_costs| ModelFigures { name: "m", version: 1, row_costs, ..ModelFigures::default() };
        let mut text = String::new();
        encode_models(&mut text, &[model(None), model(cells.read(6))]);
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let want = [
            "deuteron_batch_rows_chosen{model=\"m\",version=\"1\"} 1",
            "deuteron_row_seconds{model=\"m\",rows=\"1\",version=\"1\"} 0.000006000",
            "deuteron_row_seconds{model=\"m\",rows=\"6\",version=\"1\"} 0.000007000",
        ];
        assert_eq!(lines, want);
        cells.clear();
        assert_eq!(cells.read(6), None);
        text.clear();
        encode_models(&mut text, &[model(None)]);
        assert_eq!(text, "");
    }
}
