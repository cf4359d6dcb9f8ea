//! What a measurement was asked to be: plain values, read from the command line by `cli` and never
//! changed after.

use std::path::PathBuf;
use std::time::Duration;

use crate::loadgen::report::OfferedLoad;
use crate::loadgen::schedule::Distribution;
use crate::loadgen::search::LatencyGoal;
use crate::loadgen::target::{Address, Encoding, Protocol, RequestParameter};

/// Everything a measurement was asked to be.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchSettings {
    /// The model's name.
    pub model: String,
    /// Its version; empty for the one the server chooses.
    pub version: String,
    /// How requests travel.
    pub protocol: Protocol,
    /// The server; `None` for the usual address of the protocol.
    pub url: Option<Address>,
    /// The server it is compared with.
    pub compare: Option<Address>,
    /// What is to be found out.
    pub goal: BenchTask,
    /// Connections; `None` for as many as requests in flight.
    pub connections: Option<usize>,
    /// Threads that send.
    pub threads: usize,
    /// How the gaps of an open loop are drawn.
    pub distribution: Distribution,
    /// Decides arrivals, contents and lengths of sequences.
    pub seed: u64,
    /// Rows in a request.
    pub rows: usize,
    /// Where contents come from.
    pub source: ContentSource,
    /// Shapes that were given.
    pub shapes: Vec<(String, Vec<i64>)>,
    /// What strings hold; random ones otherwise.
    pub string: Option<String>,
    /// Characters of a random string.
    pub string_length: usize,
    /// How inputs travel over HTTP; as the server's extensions say where it is not given.
    pub input_encoding: Option<Encoding>,
    /// How outputs are asked for over HTTP; likewise.
    pub output_encoding: Option<Encoding>,
    /// Parameters of every request.
    pub parameters: Vec<(String, RequestParameter)>,
    /// Fields of every request's head.
    pub fields: Vec<(String, String)>,
    /// How sequences are made.
    pub sequence: SequenceSettings,
    /// When it has been measured long enough.
    pub measurement: Measurement,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Processes of the server.
    pub processes: Vec<u32>,
    /// Processes of the server it is compared with.
    pub processes_b: Vec<u32>,
    /// Rounds of a comparison.
    pub rounds: usize,
    /// What is printed, and where.
    pub output: OutputSettings,
}

/// What is to be found out.
#[derive(Clone, Debug, PartialEq)]
pub enum BenchTask {
    /// How the server does at each of these loads.
    Loads(Vec<OfferedLoad>),
    /// The highest rate that meets a goal, between two rates.
    Search(LatencyGoal, (f64, f64)),
}

/// Where contents come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentSource {
    /// A JSON file, or a folder with a file for each input.
    Path(PathBuf),
    /// Made up from the seed.
    Random,
    /// Zeros.
    Zero,
}

/// How sequences are made; whether there are any the model decides, or one of these being given.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceSettings {
    /// Whether a flag asked for sequences.
    pub is_asked: bool,
    /// Requests in each.
    pub length: Option<usize>,
    /// Percent by which a length may differ.
    pub length_variation: f64,
    /// Sequences at the same time in an open loop; in a closed one each request in flight is of
    /// another.
    pub count: usize,
    /// The first id, and the last.
    pub ids: (u64, u64),
}

/// When a load has been measured long enough.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Whether a window lasts for requests and not for time.
    pub counts: bool,
    /// How long a window lasts; `None` for what suits the task.
    pub interval: Option<Duration>,
    /// How many requests a window lasts.
    pub requests: u64,
    /// Percent by which windows may differ.
    pub stability: f64,
    /// Windows at most.
    pub trials_max: usize,
    /// The percentile that is to be stable; the mean otherwise.
    pub percentile: Option<f64>,
    /// How long the load runs before it is measured, at least.
    pub warm_up: Duration,
    /// How many requests end before it is measured, at least.
    pub warm_up_requests: u64,
    /// Exactly so many requests instead of windows.
    pub request_count: Option<u64>,
    /// How close a search comes: 0.05 for 5 %.
    pub precision: f64,
}

/// What is printed, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSettings {
    /// In which form.
    pub format: ReportFormat,
    /// Into which file; standard output otherwise.
    pub file: Option<PathBuf>,
    /// The drawing.
    pub plot: Option<PathBuf>,
    /// Whether each window is told.
    pub is_verbose: bool,
}

/// In which form results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    /// Comma-separated, a line for each load.
    Csv,
    /// A JSON object for each load, on a line of its own.
    Json,
    /// For people.
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
