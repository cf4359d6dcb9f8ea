//! The counters of the threads that fetch model repositories from stores, by store.

use std::fmt::Write;

use crate::metrics::gpus::Gauge;
use crate::metrics::{Counter, head};

/// The figures of one store. Only the store's thread adds to the counters.
#[derive(Debug, Default)]
pub struct StoreCells {
    /// The store's URL.
    pub store: String,
    /// Bytes received.
    pub bytes: Counter,
    /// Objects received whole.
    pub objects: Counter,
    /// Requests that were made again.
    pub retries: Counter,
    /// Listings and fetches that failed, by [`StoreCells::REASONS`].
    pub failures: [Counter; StoreCells::REASONS.len()],
    /// 1 if the last listing succeeded, else 0.
    pub reachable: Gauge,
    /// Models that could not be mirrored by the last look at all of them.
    pub models_refused: Gauge,
}

impl StoreCells {
    /// The reasons why a listing or a fetch failed.
    pub const REASONS: [&'static str; 8] =
        ["away", "changed", "damaged", "denied", "disk", "invalid", "missing", "throttled"];
}

const BYTES: &str = "deuteron_store_bytes_total";
const OBJECTS: &str = "deuteron_store_objects_total";
const RETRIES: &str = "deuteron_store_retries_total";
const FAILURES: &str = "deuteron_store_failures_total";
const REACHABLE: &str = "deuteron_store_reachable";
const REFUSED: &str = "deuteron_store_models_refused";

/// One family: name, help, and the figure.
type StoreFamily<F> = (&'static str, &'static str, fn(&StoreCells) -> &F);

/// The names of all families.
pub fn names() -> impl Iterator<Item = &'static str> {
    [BYTES, OBJECTS, RETRIES, FAILURES, REACHABLE, REFUSED].into_iter()
}

/// Appends the metrics of stores; nothing without stores.
pub fn encode_stores<'a>(out: &mut String, stores: impl Iterator<Item = &'a StoreCells> + Clone) {
    if stores.clone().next().is_none() {
        return;
    }
    let name = |cells: &StoreCells| cells.store.replace('\\', "\\\\").replace('"', "\\\"");
    let families: [StoreFamily<Counter>; 3] = [
        (BYTES, "Bytes fetched from a store of models", |cells| &cells.bytes),
        (OBJECTS, "Objects fetched whole from a store of models", |cells| &cells.objects),
        (RETRIES, "Requests to a store of models that were made again", |cells| &cells.retries),
    ];
    for (family, help, counter) in families {
        head(out, family, "counter", help);
        for cells in stores.clone() {
            let _ = writeln!(out, "{family}{{store=\"{}\"}} {}", name(cells), counter(cells).get());
        }
    }
    head(out, FAILURES, "counter", "Listings and fetches of a store of models that failed, by reason");
    for cells in stores.clone() {
        for (reason, counter) in StoreCells::REASONS.iter().zip(&cells.failures) {
            let _ = writeln!(out, "{FAILURES}{{store=\"{}\",reason=\"{reason}\"}} {}", name(cells), counter.get());
        }
    }
    let gauges: [StoreFamily<Gauge>; 2] = [
        (REACHABLE, "Whether the last listing of a store of models succeeded", |cells| &cells.reachable),
        (REFUSED, "Models of a store that could not be mirrored", |cells| &cells.models_refused),
    ];
    for (family, help, gauge) in gauges {
        head(out, family, "gauge", help);
        for cells in stores.clone() {
            if let Some(value) = gauge(cells).get() {
                let _ = writeln!(out, "{family}{{store=\"{}\"}} {value}", name(cells));
            }
        }
    }
}
