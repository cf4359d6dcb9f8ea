//! Traces of inference requests, Triton's trace extension: settings, sampling and records. A shard
//! makes the records and hands them over; a thread writes them to a file or sends them to a
//! collector (`control::outside::trace`). Pure, except for the numbers of traces and the counts of samples,
//! which are atomics.

pub mod record;
pub mod setting;
pub mod table;

pub use record::{ActiveTrace, FrontSpan, FrontStatus, ModelSpan, TraceEvent, TraceFront, TraceRecord, TracedSpan};
pub use setting::{TraceLevel, TraceMode, TraceSetting};
pub use table::{SettingChange, SettingUpdate, TraceTable};
