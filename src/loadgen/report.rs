//! The measurement of one server at one load. Pure. Printed by [`table`](super::table), [`machine`](super::machine) and
//! [`plot`](super::plot).

use std::fmt;
use std::time::Duration;

use crate::loadgen::comparison::Ratio;
use crate::loadgen::failure::FailureCounts;
use crate::loadgen::search::GoalMiss;
use crate::loadgen::statistics::ServerStatistics;
use crate::loadgen::usage::Usage;
use crate::loadgen::window::LoadWindow;

/// The load put on a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OfferedLoad {
    /// A closed loop with this number of requests in flight.
    Concurrency(usize),
    /// An open loop with this number of requests per second.
    Rate(f64),
}

impl OfferedLoad {
    /// The number of requests, in flight or per second.
    pub const fn value(self) -> f64 {
        match self {
            Self::Concurrency(count) => count as f64,
            Self::Rate(rate) => rate,
        }
    }

    /// The name of [`OfferedLoad::value`], for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Concurrency(_) => "Concurrency",
            Self::Rate(_) => "Request rate",
        }
    }
}

impl fmt::Display for OfferedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Concurrency(count) => write!(f, "{count}"),
            Self::Rate(rate) if rate.fract() == 0.0 => write!(f, "{rate:.0}"),
            Self::Rate(rate) => write!(f, "{rate:.1}"),
        }
    }
}

/// The requests of a whole load, with warm-up and drain: the numbers that the server's own counts must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that succeeded.
    pub succeeded: u64,
    /// Requests that failed, by kind.
    pub failures: FailureCounts,
    /// Requests that were due when the load ended and were never sent.
    pub unsent: u64,
}

/// The measurement of one server at one load.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// The load.
    pub load: OfferedLoad,
    /// Rows in a request.
    pub rows: usize,
    /// The reported windows, merged.
    pub window: LoadWindow,
    /// The sum of their durations.
    pub duration: Duration,
    /// Their number.
    pub windows: usize,
    /// True if they agree; `None` if stability was not required.
    pub is_stable: Option<bool>,
    /// The outcome of a step of a search; `None` for another measurement.
    pub outcome: Option<Result<(), GoalMiss>>,
    /// The server's counts during these windows.
    pub server: Option<ServerStatistics>,
    /// The usage of the server's processes during these windows.
    pub usage: Option<Usage>,
    /// The usage of this program during these windows. If its threads were busy all the time, the
    /// client was the limit and not the server.
    pub client: Option<Usage>,
    /// The whole load.
    pub totals: Totals,
}

impl LoadReport {
    /// Inferences per second: rows of successful requests.
    pub fn throughput(&self) -> f64 {
        self.request_rate() * self.rows as f64
    }

    /// Successful requests per second.
    pub fn request_rate(&self) -> f64 {
        per_second(self.window.succeeded, self.duration)
    }

    /// CPU time of the server's processes per request that ended.
    pub fn cpu_per_request(&self) -> Option<Duration> {
        self.each(self.usage?.cpu())
    }

    /// A time divided by the number of requests that ended.
    pub fn each(&self, time: Duration) -> Option<Duration> {
        let count = self.window.ended_count();
        (count > 0).then(|| Duration::from_secs_f64(time.as_secs_f64() / count as f64))
    }

    /// The share of failures among the requests that ended, from 0 to 1; 1 if none ended.
    pub fn failed_share(&self) -> f64 {
        let ended = self.window.ended_count();
        if ended == 0 { 1.0 } else { self.window.failures.total() as f64 / ended as f64 }
    }

    /// Adds another measurement of the same load.
    pub fn merge(&mut self, other: &Self) {
        self.window.merge_counts(&other.window);
        self.duration += other.duration;
        self.windows += other.windows;
        self.server = self.server.zip(other.server).map(|(one, two)| one.plus(two));
        self.usage = self.usage.zip(other.usage).map(|(one, two)| one.followed_by(&two));
        self.client = self.client.zip(other.client).map(|(one, two)| one.followed_by(&two));
        self.totals.succeeded += other.totals.succeeded;
        self.totals.failures.merge(&other.totals.failures);
        self.totals.unsent += other.totals.unsent;
    }
}

/// A value for each of two servers that are compared.
#[derive(Clone, Copy, Debug)]
pub struct BothServers<T> {
    /// That of the first server.
    pub a: T,
    /// That of the second server.
    pub b: T,
}

/// The comparison of two servers at one load.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The first server, all rounds merged.
    pub a: LoadReport,
    /// The second server, all rounds merged.
    pub b: LoadReport,
    /// The ratio B / A of each figure, by name.
    pub ratios: Vec<(String, Ratio)>,
}

/// A figure to compare: its name, and its value in a report.
type Figure = (String, Box<dyn Fn(&LoadReport) -> f64>);

impl Comparison {
    /// Merges the rounds of a comparison, each with a report of A and of B. `None` without rounds.
    pub fn from_rounds(rounds: Vec<(LoadReport, LoadReport)>) -> Option<Self> {
        let ratio = |figure: &dyn Fn(&LoadReport) -> f64| {
            let pairs: Vec<_> = rounds.iter().map(|(a, b)| (figure(a), figure(b))).collect();
            Ratio::from_pairs(&pairs)
        };
        let ratios = figures();
        let ratios = ratios.into_iter().filter_map(|(name, figure)| Some((name, ratio(&*figure)?))).collect();
        let mut rounds = rounds.into_iter();
        let (mut a, mut b) = rounds.next()?;
        for (other_a, other_b) in rounds {
            a.merge(&other_a);
            b.merge(&other_b);
        }
        Some(Self { a, b, ratios })
    }
}

fn figures() -> Vec<Figure> {
    let mut figures: Vec<Figure> = vec![
        ("throughput".to_owned(), Box::new(LoadReport::throughput)),
        ("latency mean".to_owned(), Box::new(|report| report.window.latency.mean().as_secs_f64())),
    ];
    for percentile in [50.0, 90.0, 99.0] {
        let figure = move |report: &LoadReport| report.window.latency.percentile(percentile).as_secs_f64();
        figures.push((format!("latency p{percentile}"), Box::new(figure)));
    }
    let cpu = |report: &LoadReport| report.cpu_per_request().unwrap_or_default().as_secs_f64();
    figures.push(("CPU per request".to_owned(), Box::new(cpu)));
    figures
}

/// A count per second; 0 for no time.
pub fn per_second(count: u64, duration: Duration) -> f64 {
    let seconds = duration.as_secs_f64();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
#[expect(missing_docs, reason = "other tests use the sample")]
pub mod tests {
    use super::*;
    use crate::loadgen::failure::{FailureKind, RequestFailure};
    use crate::loadgen::statistics::RequestTotal;
    use crate::time::Instant;

    /// A report with every field set: 1000 requests of 1 ms to 2 ms in 2 s, 4 failures.
    pub fn sample(load: OfferedLoad, stretch: f64) -> LoadReport {
        let mut window = LoadWindow::new(Instant::ZERO);
        for index in 0..1000_u32 {
            let latency = Duration::from_secs_f64((1000.0 + f64::from(index)) * stretch / 1e6);
            window.handle_outcome(latency, Ok(()));
            window.lag.record(Duration::from_nanos(u64::from(index) * 10));
        }
        for _ in 0..4 {
            window
                .handle_outcome(Duration::ZERO, Err(RequestFailure::new(FailureKind::Http(503), "the queue is full")));
        }
        window.sent = 1004;
        let failures = window.failures.clone();
        let total = |nanos: u64| RequestTotal { count: 1000, nanos: nanos * 1000 };
        let server = ServerStatistics {
            inference_count: 2000,
            execution_count: 500,
            success: total(900_000),
            fail: RequestTotal::default(),
            queue: total(100_000),
            compute_input: total(5_000),
            compute_infer: total(700_000),
            compute_output: total(7_000),
        };
        let usage = Usage {
            user: Duration::from_millis(200),
            system: Duration::from_millis(302),
            switches_voluntary: 2008,
            switches_involuntary: 100,
            resident_size: 12 << 20,
            resident_size_max: 14 << 20,
        };
        LoadReport {
            load,
            rows: 2,
            window,
            duration: Duration::from_secs(2),
            windows: 3,
            is_stable: Some(true),
            outcome: None,
            server: Some(server),
            usage: Some(usage),
            client: Some(Usage { user: Duration::from_millis(700), system: Duration::from_millis(1210), ..usage }),
            totals: Totals { succeeded: 1300, failures, unsent: 0 },
        }
    }

    #[test]
    fn rates_count_successes_and_costs_count_all() {
        let report = sample(OfferedLoad::Concurrency(4), 1.0);
        assert!((report.request_rate() - 500.0).abs() < 1e-9 && (report.throughput() - 1000.0).abs() < 1e-9);
        assert_eq!(report.cpu_per_request(), Some(Duration::from_micros(500)));
        assert!((report.failed_share() - 4.0 / 1004.0).abs() < 1e-12);
    }

    #[test]
    fn rounds_of_two_servers_become_ratios() {
        let round = || (sample(OfferedLoad::Rate(10.0), 1.0), sample(OfferedLoad::Rate(10.0), 2.0));
        let comparison = Comparison::from_rounds(vec![round(), round(), round()]).unwrap();
        assert_eq!((comparison.a.window.succeeded, comparison.b.windows), (3000, 9));
        assert_eq!(comparison.a.cpu_per_request(), Some(Duration::from_micros(500)));
        for (name, ratio) in &comparison.ratios {
            let want = if name.starts_with("latency") { 2.0 } else { 1.0 };
            assert!((ratio.mean - want).abs() < 0.01, "{name} {ratio:?}");
        }
        assert_eq!(comparison.ratios.len(), 6);
        assert!(Comparison::from_rounds(vec![]).is_none());
    }
}
