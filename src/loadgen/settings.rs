//! The settings of `deuteron bench`: plain values, made from the command line by `cli` and never changed afterwards.

use std::path::PathBuf;
use std::time::Duration;

use crate::loadgen::report::OfferedLoad;
use crate::loadgen::schedule::Distribution;
use crate::loadgen::search::{LatencyGoal, SearchRange};
use crate::loadgen::target::{Address, Encoding, Protocol, RequestParameter};

/// All settings of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchSettings {
    /// The model's name.
    pub model: String,
    /// The model's version; empty to let the server choose.
    pub version: String,
    /// HTTP or gRPC.
    pub protocol: Protocol,
    /// The server's address; `None` for the protocol's default port on this machine.
    pub url: Option<Address>,
    /// The address of the second server, for a comparison.
    pub compare: Option<Address>,
    /// The files of TLS.
    pub tls: TlsFiles,
    /// The task.
    pub goal: BenchTask,
    /// Number of connections; `None` for one per request in flight, or the default of an open loop.
    pub connections: Option<usize>,
    /// Load threads, at most.
    pub threads: usize,
    /// The distribution of the gaps between arrivals of an open loop.
    pub distribution: Distribution,
    /// The seed of arrivals, random contents and sequence lengths.
    pub seed: u64,
    /// Rows in a request.
    pub rows: usize,
    /// The source of input contents.
    pub source: ContentSource,
    /// The shapes of inputs, by name, without the batch axis.
    pub shapes: Vec<(String, Vec<i64>)>,
    /// The contents of every string; random if `None`.
    pub string: Option<String>,
    /// Characters of a random string.
    pub string_length: usize,
    /// The encoding of inputs over HTTP; `None` for the best that the server offers.
    pub input_encoding: Option<Encoding>,
    /// The encoding requested for outputs over HTTP; `None` for the best that the server offers.
    pub output_encoding: Option<Encoding>,
    /// Parameters of every request.
    pub parameters: Vec<(String, RequestParameter)>,
    /// Additional header fields of every request.
    pub fields: Vec<(String, String)>,
    /// The settings of sequences.
    pub sequence: SequenceSettings,
    /// Windows, warm-up and stability.
    pub measurement: Measurement,
    /// The time that an answer may take.
    pub timeout: Duration,
    /// Process ids of the server.
    pub processes: Vec<u32>,
    /// Process ids of the second server.
    pub processes_b: Vec<u32>,
    /// Rounds of a comparison.
    pub rounds: usize,
    /// The output of a run and its destination.
    pub output: OutputSettings,
}

/// The files of TLS, for servers whose address has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that certify servers, or the certificates of servers; those of the system if `None`.
    pub authorities: Option<PathBuf>,
    /// The certificate of the client, for servers that require one.
    pub certificate: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<PathBuf>,
    /// True if any certificate of a server is accepted.
    pub is_insecure: bool,
}

/// The task of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum BenchTask {
    /// Measure each of these loads.
    Loads(Vec<OfferedLoad>),
    /// Find the highest rate in a range, in requests per second, that meets a goal.
    Search(LatencyGoal, SearchRange),
}

/// The source of input contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentSource {
    /// A JSON file, or a folder with a file for each input.
    Path(PathBuf),
    /// Random, from the seed.
    Random,
    /// Zeros.
    Zero,
}

/// The settings of sequences. Requests belong to sequences if the model serves sequences or a flag
/// of these is given.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceSettings {
    /// True if a flag asked for sequences.
    pub is_asked: bool,
    /// Requests in each.
    pub length: Option<usize>,
    /// Percent by which lengths vary.
    pub length_variation: f64,
    /// Concurrent sequences in an open loop. In a closed loop there is one for each request in
    /// flight.
    pub count: usize,
    /// The first id, and the last.
    pub ids: (u64, u64),
}

/// Windows, warm-up and stability.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// True if a window ends after a number of requests and not after a time.
    pub counts: bool,
    /// The duration of a window; `None` for the default of the task.
    pub interval: Option<Duration>,
    /// The number of requests of a window.
    pub requests: u64,
    /// Percent by which windows may differ.
    pub stability: f64,
    /// The most windows.
    pub trials_max: usize,
    /// The percentile of latency that must be stable; the mean if `None`.
    pub percentile: Option<f64>,
    /// Minimum duration of the warm-up.
    pub warm_up: Duration,
    /// Minimum number of requests that end in the warm-up.
    pub warm_up_requests: u64,
    /// The number of requests to send, instead of windows until the result is stable.
    pub request_count: Option<u64>,
    /// The precision of a search: 0.05 for 5 %.
    pub precision: f64,
}

/// The output of a run and its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSettings {
    /// The format of reports.
    pub format: ReportFormat,
    /// The file for reports; standard output if `None`.
    pub file: Option<PathBuf>,
    /// The file for the plot; no plot if `None`.
    pub plot: Option<PathBuf>,
    /// True if each window is printed.
    pub is_verbose: bool,
}

/// The format of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    /// CSV, a line for each load.
    Csv,
    /// JSON lines, an object for each load.
    Json,
    /// Text for people.
    Table,
}

impl Default for BenchSettings {
    fn default() -> Self {
        Self {
            model: String::new(),
            version: String::new(),
            protocol: Protocol::Http,
            url: None,
            compare: None,
            tls: TlsFiles::default(),
            goal: BenchTask::Loads(vec![OfferedLoad::Concurrency(1)]),
            connections: None,
            threads: 1,
            distribution: Distribution::Poisson,
            seed: 1,
            rows: 1,
            source: ContentSource::Random,
            shapes: Vec::new(),
            string: None,
            string_length: 128,
            input_encoding: None,
            output_encoding: None,
            parameters: Vec::new(),
            fields: Vec::new(),
            sequence: SequenceSettings {
                is_asked: false,
                length: None,
                length_variation: 20.0,
                count: 4,
                ids: (1, u64::from(u32::MAX)),
            },
            measurement: Measurement {
                counts: false,
                interval: None,
                requests: 50,
                stability: 10.0,
                trials_max: 10,
                percentile: None,
                warm_up: Duration::from_secs(1),
                warm_up_requests: 0,
                request_count: None,
                precision: 0.05,
            },
            timeout: Duration::from_secs(60),
            processes: Vec::new(),
            processes_b: Vec::new(),
            rounds: 5,
            output: OutputSettings { format: ReportFormat::Table, file: None, plot: None, is_verbose: false },
        }
    }
}
