//! The padding of a model's runs: rows of different lengths that share a run are padded to its longest.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::{ModelFigures, head};

/// The padding of all runs of one model version. Its instances write them, any thread may read them; the numbers may be of two
/// moments.
#[derive(Debug, Default)]
pub struct PaddingCells {
    places: AtomicU64,
    padding: AtomicU64,
}

/// The same, as read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaddingFigures {
    /// Rows times the longest row, over all runs.
    pub places: u64,
    /// Those of them that were padding.
    pub padding: u64,
}

impl PaddingCells {
    /// Counts a run of `rows` rows that was padded to `longest`; `filled` is the sum of the rows' lengths.
    pub fn count(&self, rows: u64, longest: u64, filled: u64) {
        let places = rows.saturating_mul(longest);
        self.places.fetch_add(places, Ordering::Relaxed);
        self.padding.fetch_add(places.saturating_sub(filled), Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub fn read(&self) -> PaddingFigures {
        let [places, padding] = [&self.places, &self.padding].map(|cell| cell.load(Ordering::Relaxed));
        PaddingFigures { places, padding }
    }
}

/// A family: its name, its help, and its value.
type PaddingFamily = (&'static str, &'static str, fn(&PaddingFigures) -> u64);

const PADDING_FAMILIES: [PaddingFamily; 2] = [
    ("deuteron_padded_tokens_total", "Tokens that runs computed: rows times the longest row of the run", |figures| {
        figures.places
    }),
    ("deuteron_padding_tokens_total", "Those of deuteron_padded_tokens_total that were padding", |figures| {
        figures.padding
    }),
];

/// Appends the series of all models with padded inputs.
pub fn encode_models(out: &mut String, models: &[ModelFigures<'_>]) {
    let known = || models.iter().filter_map(|model| Some((model, model.padding.as_ref()?)));
    if known().next().is_none() {
        return;
    }
    for (family, help, value) in &PADDING_FAMILIES {
        head(out, family, "counter", help);
        for (ModelFigures { labels, name, version, .. }, figures) in known() {
            let value = value(figures);
            let _ = writeln!(out, "{family}{{{labels}model=\"{name}\",version=\"{version}\"}} {value}");
        }
    }
}

/// The names of both families.
pub fn names() -> impl Iterator<Item = &'static str> {
    PADDING_FAMILIES.iter().map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_with_their_padding_and_shown_for_models_that_pad() {
        let cells = PaddingCells::default();
        cells.count(2, 10, 13);
        cells.count(1, 7, 7);
        assert_eq!(cells.read(), PaddingFigures { places: 27, padding: 7 });
        let model = |padding| ModelFigures { name: "m", version: 1, padding, ..ModelFigures::default() };
        let mut text = String::new();
        encode_models(&mut text, &[model(None), model(Some(cells.read()))]);
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let want = [
            "deuteron_padded_tokens_total{model=\"m\",version=\"1\"} 27",
            "deuteron_padding_tokens_total{model=\"m\",version=\"1\"} 7",
        ];
        assert_eq!(lines, want);
        text.clear();
        encode_models(&mut text, &[model(None)]);
        assert_eq!(text, "");
    }
}
