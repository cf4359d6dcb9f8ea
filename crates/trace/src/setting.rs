//! One trace setting: the requests to trace, and the parts to record. Replaced as a whole when a
//! client changes it, so that traces under way keep the one that they were sampled by, as in Triton
//! (`tracer.cc`).

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// The recorded parts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceLevel {
    /// `TIMESTAMPS`: begin and end of each stage.
    pub timestamps: bool,
    /// `TENSORS`: inputs and outputs.
    pub tensors: bool,
}

impl TraceLevel {
    /// `OFF`.
    pub const OFF: Self = Self { timestamps: false, tensors: false };

    /// Returns true if nothing is recorded.
    pub const fn is_off(self) -> bool {
        !self.timestamps && !self.tensors
    }

    /// The names in the extension.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [(self.is_off(), "OFF"), (self.timestamps, "TIMESTAMPS"), (self.tensors, "TENSORS")];
        all.into_iter().filter_map(|(is_set, name)| is_set.then_some(name))
    }
}

/// The destination of traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceMode {
    /// To a collector, by OTLP.
    OpenTelemetry,
    /// To a file, in Triton's JSON.
    #[default]
    Triton,
}

impl TraceMode {
    /// The name in the extension.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenTelemetry => "opentelemetry",
            Self::Triton => "triton",
        }
    }
}

/// A setting, with its counts. Shared by all shards, so that a rate holds for the server.
#[derive(Debug)]
pub struct TraceSetting {
    /// The recorded parts.
    pub level: TraceLevel,
    /// One request in `rate` is traced; 0 for only those whose client sends `traceparent`.
    pub rate: u32,
    /// Traces in one file; 0 for all in one.
    pub log_frequency: u32,
    /// The destination of traces.
    pub mode: TraceMode,
    /// The number of traces to take when the setting was made; -1 for any number.
    pub count_max: i64,
    /// Traces that are still to be taken; -1 for any number.
    remaining: AtomicI64,
    /// Requests that came.
    sampled: AtomicU64,
    /// Traces that were begun.
    taken: AtomicU64,
    /// Traces that were written.
    collected: AtomicU64,
    /// True if another has taken its place: its last traces go to the file at once.
    is_replaced: AtomicBool,
}

impl TraceSetting {
    /// A setting; `count` is -1 for any number of traces.
    pub const fn new(level: TraceLevel, rate: u32, count: i64, log_frequency: u32, mode: TraceMode) -> Self {
        Self {
            level,
            rate,
            log_frequency,
            mode,
            count_max: count,
            remaining: AtomicI64::new(count),
            sampled: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            collected: AtomicU64::new(0),
            is_replaced: AtomicBool::new(false),
        }
    }

    /// Returns true if a request must be traced, and counts it. `is_forced`: its client has sent a
    /// trace context; such a request is traced regardless of rate and count, as in Triton.
    pub fn sample(&self, is_forced: bool) -> bool {
        let is_sampled = self.is_due(is_forced);
        self.taken.fetch_add(u64::from(is_sampled), Ordering::Relaxed);
        is_sampled
    }

    fn is_due(&self, is_forced: bool) -> bool {
        let is_forced = is_forced && self.mode == TraceMode::OpenTelemetry;
        if self.level.is_off() {
            return false;
        }
        if self.rate == 0 || (self.remaining() == 0 && !is_forced) {
            return is_forced;
        }
        let number = self.sampled.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let is_due = number.is_multiple_of(u64::from(self.rate)) && self.take();
        is_due || is_forced
    }

    /// Takes one of the traces that remain.
    fn take(&self) -> bool {
        let next = |left: i64| match left {
            0 => None,
            left if left < 0 => Some(left),
            left => Some(left.saturating_sub(1)),
        };
        self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// Traces that are still to be taken; -1 for any number. Clients see this as `trace_count`.
    pub fn remaining(&self) -> i64 {
        self.remaining.load(Ordering::Relaxed)
    }

    /// Counts a trace that was written.
    pub fn count_collected(&self) {
        self.collected.fetch_add(1, Ordering::Relaxed);
    }

    /// Traces that were written.
    pub fn collected(&self) -> u64 {
        self.collected.load(Ordering::Relaxed)
    }

    /// Returns true if another has taken its place, and none of its traces is under way.
    pub fn is_over(&self) -> bool {
        self.is_replaced() && self.collected() >= self.taken.load(Ordering::Relaxed)
    }

    /// Returns true if another has taken its place.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Acquire)
    }

    /// Another takes its place.
    pub fn handle_replaced(&self) {
        self.is_replaced.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMESTAMPS: TraceLevel = TraceLevel { timestamps: true, tensors: false };

    #[test]
    fn rate_and_count_choose_the_requests() {
        let check = |rate, count, forced: &str, mode, want: &str| {
            let setting = TraceSetting::new(TIMESTAMPS, rate, count, 0, mode);
            let sampled = forced.chars().map(|one| if setting.sample(one == 'F') { 'T' } else { '.' });
            assert_eq!(sampled.collect::<String>(), want, "{rate} {count} {forced}");
        };
        let triton = TraceMode::Triton;
        check(1, -1, "...", triton, "TTT");
        check(3, -1, ".......", triton, "..T..T.");
        check(2, 2, "........", triton, ".T.T....");
        check(1, 0, "...", triton, "...");
        check(0, -1, ".F.", triton, "...");
        check(3, -1, "F..F", triton, "..T.");
        let otlp = TraceMode::OpenTelemetry;
        check(0, -1, ".F.F", otlp, ".T.T");
        check(3, -1, "F....F", otlp, "T.T..T");
        check(1, 1, "..F.", otlp, "T.T.");
        let off = TraceSetting::new(TraceLevel::OFF, 1, -1, 0, otlp);
        assert!(!off.sample(true) && !off.sample(false));
    }

    #[test]
    fn the_count_that_is_told_is_what_remains() {
        let setting = TraceSetting::new(TIMESTAMPS, 1, 2, 0, TraceMode::Triton);
        assert!(setting.sample(false));
        assert_eq!((setting.remaining(), setting.count_max), (1, 2));
        setting.handle_replaced();
        assert!(!setting.is_over(), "its trace is under way");
        setting.count_collected();
        assert!(setting.is_over());
        assert_eq!(TraceLevel::OFF.names().collect::<Vec<_>>(), ["OFF"]);
        assert_eq!(
            TraceLevel { timestamps: true, tensors: true }.names().collect::<Vec<_>>(),
            ["TIMESTAMPS", "TENSORS"]
        );
    }
}
