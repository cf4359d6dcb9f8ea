//! A whole run of `deuteron bench`: describes the model, encodes the requests, measures each load and prints the results.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::loadgen::control::ControlClient;
use crate::loadgen::description::ModelDescription;
use crate::loadgen::input::{InputFill, InputLayout, InputPlan, Inputs};
use crate::loadgen::load_thread::WindowEnd;
use crate::loadgen::machine::{self, Heading};
use crate::loadgen::measure::{MeasureMethod, MeasuredServer, measure};
use crate::loadgen::plot;
use crate::loadgen::report::{BothServers, Comparison, LoadReport, OfferedLoad};
use crate::loadgen::request::{RequestPlan, Requests};
use crate::loadgen::search::{GoalMiss, LatencyGoal, RateSearch, SearchRange, reported_rate};
use crate::loadgen::sequence::SequencePlan;
use crate::loadgen::settings::{BenchSettings, BenchTask, ContentSource, ReportFormat};
use crate::loadgen::table;
use crate::loadgen::target::{Address, Encoding, Protocol};
use crate::loadgen::trust;

/// Default duration of a window.
const INTERVAL: Duration = Duration::from_secs(5);
/// Default duration of the windows of one step of a search.
const INTERVAL_SEARCH: Duration = Duration::from_secs(1);
/// Default duration of the window of one turn of a comparison.
const INTERVAL_COMPARISON: Duration = Duration::from_secs(1);
/// The longest warm-up of one step of a search or one turn of a comparison: only the connections are new, the server is
/// warm already.
const WARM_UP_TURN: Duration = Duration::from_millis(300);
/// Default number of requests of a sequence, if no file gives it.
const SEQUENCE_LENGTH: usize = 20;

/// The requests of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BenchOutcome {
    succeeded: u64,
    failed: u64,
}

impl BenchOutcome {
    fn of(reports: &[LoadReport]) -> Self {
        let succeeded = reports.iter().map(|report| report.totals.succeeded).sum();
        Self { succeeded, failed: reports.iter().map(|report| report.totals.failures.total()).sum() }
    }

    /// Returns the reason that the run counts as failed; `None` if it does not.
    fn fault(self) -> Option<String> {
        match self {
            Self { succeeded: 0, .. } => Some("no request succeeded".to_owned()),
            Self { failed: 0, .. } => None,
            Self { succeeded, failed } => {
                let all = succeeded + failed;
                Some(format!("{failed} of {all} requests failed, with the time before and after the windows"))
            }
        }
    }
}

/// Runs the task of the settings and prints the results. Returns the exit code: failure on an error, or if a request
/// failed.
pub fn run(settings: &BenchSettings) -> ExitCode {
    let fault = match run_to_end(settings) {
        Ok(outcome) => outcome.fault(),
        Err(why) => Some(why),
    };
    fault.map_or(ExitCode::SUCCESS, |why| {
        eprintln!("error: {why}");
        ExitCode::FAILURE
    })
}

fn run_to_end(settings: &BenchSettings) -> Result<BenchOutcome, String> {
    let mut target = open_server(settings, settings.url.as_ref(), &settings.processes)?;
    let mut output = ResultWriter::new(settings)?;
    match (&settings.goal, &settings.compare) {
        (BenchTask::Loads(loads), None) => {
            output.write(&heading_text(settings, &target))?;
            let method = method(settings, None, false);
            for load in loads {
                let report = measure(&mut target, *load, &method)?;
                output.write_report(&target.name, report)?;
            }
            output.finish_loads(&target.name)
        }
        (BenchTask::Loads(loads), Some(address)) => {
            let mut other = open_server(settings, Some(address), &settings.processes_b)?;
            output.write(&heading_text(settings, &target))?;
            let names = BothServers { a: target.name.clone(), b: other.name.clone() };
            for load in loads {
                let comparison = compare(&mut target, &mut other, *load, settings)?;
                output.write_comparison(&names, comparison)?;
            }
            output.finish_comparisons(&names)
        }
        (BenchTask::Search(goal, range), _) => {
            output.write(&heading_text(settings, &target))?;
            search(&mut target, *goal, *range, settings, &mut output)
        }
    }
}

fn heading_text(settings: &BenchSettings, target: &MeasuredServer) -> String {
    let plan = target.requests.plan();
    let version = if plan.version.is_empty() { String::new() } else { format!(" version {}", plan.version) };
    format!(
        "{}{version} over {}{} at {}: batch size {}, {} bytes a request\n\n",
        settings.model,
        settings.protocol.name(),
        if plan.input_encoding == Encoding::Json { " as JSON" } else { "" },
        target.name,
        settings.rows,
        target.requests.request_size()
    )
}

/// Asks a server to describe the model, and encodes the requests for it.
fn open_server(
    settings: &BenchSettings,
    address: Option<&Address>,
    processes: &[u32],
) -> Result<MeasuredServer, String> {
    let default = Address::parse("localhost", settings.protocol);
    let address = address.cloned().map_or(default, Ok)?;
    let mut plan = RequestPlan {
        address: address.clone(),
        protocol: settings.protocol,
        model: settings.model.clone(),
        version: settings.version.clone(),
        input_encoding: Encoding::Binary,
        output_encoding: Encoding::Binary,
        rows: settings.rows,
        parameters: settings.parameters.clone(),
        fields: settings.fields.clone(),
        tls: if address.has_tls { Some(trust::open(&settings.tls, &address.host, settings.protocol)?) } else { None },
    };
    let name = address.to_string();
    let socket = resolve(&address).map_err(|why| format!("{name}: {why}"))?;
    let mut control = ControlClient::new(socket, plan.clone());
    let model = control.describe().map_err(|why| format!("{name}: {why}"))?;
    if settings.protocol == Protocol::Http {
        let default = control.encoding();
        plan.input_encoding = settings.input_encoding.unwrap_or(default);
        plan.output_encoding = settings.output_encoding.unwrap_or(default);
    }
    if model.config.as_ref().is_some_and(|config| config.is_decoupled) && settings.protocol == Protocol::Grpc {
        return Err(format!("{name}: the model is decoupled, which needs ModelStreamInfer; it is not supported"));
    }
    let inputs = inputs(settings, &model)?;
    let names: Vec<String> = model.inputs.iter().map(|input| input.name.clone()).collect();
    let requests = Requests::new(plan, &names, &inputs)?;
    let is_sequence = settings.sequence.is_asked || model.config.is_some_and(|config| config.is_sequence);
    Ok(MeasuredServer {
        name,
        address: socket,
        control,
        requests: Arc::new(requests),
        sequences: is_sequence.then(|| sequence_plan(settings)),
        processes: processes.to_vec(),
    })
}

fn sequence_plan(settings: &BenchSettings) -> SequencePlan {
    let is_file = matches!(&settings.source, ContentSource::Path(path) if path.is_file());
    let sequence = &settings.sequence;
    // Without a flag, each stream of a file is one sequence, with the stream's length.
    let length = sequence.length.or(if is_file { None } else { Some(SEQUENCE_LENGTH) });
    SequencePlan {
        count: sequence.count,
        length,
        length_variation: if length.is_some() { sequence.length_variation } else { 0.0 },
        id_first: sequence.ids.0,
        id_last: sequence.ids.1,
    }
}

fn resolve(address: &Address) -> Result<SocketAddr, String> {
    let mut addresses = (address.host.as_str(), address.port).to_socket_addrs().map_err(|error| error.to_string())?;
    // IPv4 if the name has both: most servers listen on it.
    let first = addresses.next().ok_or("the name has no address")?;
    Ok(if first.is_ipv4() { first } else { addresses.find(SocketAddr::is_ipv4).unwrap_or(first) })
}

fn inputs(settings: &BenchSettings, model: &ModelDescription) -> Result<Inputs, String> {
    let plan = InputPlan {
        rows: settings.rows,
        shapes: settings.shapes.clone(),
        string: settings.string.clone(),
        string_length: settings.string_length,
        seed: settings.seed,
    };
    let layout = InputLayout::new(model, &plan)?;
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    match &settings.source {
        ContentSource::Random => layout.fill(InputFill::Random, &plan),
        ContentSource::Zero => layout.fill(InputFill::Zero, &plan),
        ContentSource::Path(path) if path.is_dir() => layout.from_files(|name| read(&path.join(name))),
        ContentSource::Path(path) => {
            let bytes = read(path)?;
            let inputs = if is_json(&bytes) { layout.from_json(&bytes) } else { layout.from_binary(bytes) };
            inputs.map_err(|why| format!("{}: {why}", path.display()))
        }
    }
}

/// Returns true if the contents of a file are an object or an array of JSON, and not an image or another input.
fn is_json(bytes: &[u8]) -> bool {
    matches!(bytes.trim_ascii_start().first(), Some(b'{' | b'['))
}

/// Returns the method of measurement. `turn` is the default duration of a short measurement, a step
/// of a search or a turn of a comparison: one window without the test of stability, which a
/// comparison replaces by the spread of its rounds.
fn method(settings: &BenchSettings, turn: Option<Duration>, is_quiet: bool) -> MeasureMethod {
    let measurement = &settings.measurement;
    let interval = measurement.interval.or(turn).unwrap_or(INTERVAL);
    let warm_up = turn.map_or(measurement.warm_up, |_| measurement.warm_up.min(WARM_UP_TURN));
    let has_count = measurement.request_count.is_some();
    MeasureMethod {
        connections: settings.connections,
        threads: settings.threads,
        distribution: settings.distribution,
        seed: settings.seed,
        timeout: settings.timeout,
        warm_up: if has_count { Duration::ZERO } else { warm_up },
        warm_up_requests: if has_count { 0 } else { measurement.warm_up_requests },
        window: if measurement.counts && turn.is_none() {
            WindowEnd::Count(measurement.requests)
        } else {
            WindowEnd::Time(interval)
        },
        request_count: measurement.request_count,
        trials_max: if turn.is_some() { 1 } else { measurement.trials_max },
        stability: measurement.stability,
        percentile: measurement.percentile,
        is_verbose: settings.output.is_verbose && !is_quiet,
        step: None,
    }
}

/// Compares two servers in rounds of A B B A: a drift of the machine then affects both alike.
fn compare(
    a: &mut MeasuredServer,
    b: &mut MeasuredServer,
    load: OfferedLoad,
    settings: &BenchSettings,
) -> Result<Comparison, String> {
    let method = method(settings, Some(INTERVAL_COMPARISON), true);
    let mut rounds = Vec::new();
    for _ in 0..settings.rounds {
        let mut of_a = measure(a, load, &method)?;
        let mut of_b = measure(b, load, &method)?;
        of_b.merge(&measure(b, load, &method)?);
        of_a.merge(&measure(a, load, &method)?);
        rounds.push((of_a, of_b));
    }
    Comparison::from_rounds(rounds).ok_or_else(|| "--rounds must be greater than 0".to_owned())
}

/// Searches for the highest rate that meets a goal, and prints each step. Failures of steps do not count: the search goes
/// to the rate that the server refuses.
fn search(
    target: &mut MeasuredServer,
    goal: LatencyGoal,
    range: SearchRange,
    settings: &BenchSettings,
    output: &mut ResultWriter<'_>,
) -> Result<BenchOutcome, String> {
    let base = method(settings, Some(INTERVAL_SEARCH), false);
    let mut search = RateSearch::new(goal, range, settings.measurement.precision);
    let mut best: Option<LoadReport> = None;
    let mut outcome_of_all = BenchOutcome::default();
    while let Some(step) = search.poll_step() {
        let rate = step.rate;
        let method = MeasureMethod { step: Some(step), ..base.clone() };
        let report = measure(target, OfferedLoad::Rate(rate), &method)?;
        let outcome = report.outcome.unwrap_or(Err(GoalMiss::Throughput));
        search.handle_outcome(&step, outcome.is_ok());
        outcome_of_all.succeeded += report.totals.succeeded;
        let latency = report.window.latency.percentile(goal.percentile);
        output.write(&format!(
            "{rate:>12.1} requests/s   {:>10.1} answered/s   p{} {:>9}   {} failed   {}\n",
            report.request_rate(),
            goal.percentile,
            table::format_time(latency),
            report.window.failures.total(),
            outcome.map_or_else(|miss| format!("missed: {}", miss.text()), |()| "met".to_owned())
        ))?;
        if outcome.is_ok() {
            best = Some(report);
        } else if best.as_ref().is_some_and(|best| best.load.value() >= rate) {
            // Met early, and missed in full.
            best = None;
        }
    }
    output.write("\n")?;
    let name = target.name.clone();
    match best {
        Some(report) => {
            let found = reported_rate(report.load.value(), report.request_rate());
            output.write(&format!("The highest rate that meets the goal: {found:.1} requests/s\n"))?;
            if search.has_reached_top() {
                output.write(&format!(
                    "It is the top of the range: the server may do more, see --search-range={}:{}\n",
                    range.start,
                    range.rate_max * 10.0
                ))?;
            }
            output.write("\n")?;
            output.write_report(&name, report)?;
            output.finish_loads(&name)?;
        }
        None => {
            output.write(&format!(
                "No rate from {} requests/s on meets the goal; --search-range sets a lower start\n",
                range.rate_min
            ))?;
        }
    }
    Ok(outcome_of_all)
}

/// Writes results to standard output or a file, in the format of the settings.
struct ResultWriter<'a> {
    settings: &'a BenchSettings,
    sink: Box<dyn Write>,
    reports: Vec<LoadReport>,
    comparisons: Vec<Comparison>,
}

impl<'a> ResultWriter<'a> {
    fn new(settings: &'a BenchSettings) -> Result<Self, String> {
        let sink: Box<dyn Write> = match &settings.output.file {
            Some(path) => Box::new(fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))?),
            None => Box::new(std::io::stdout()),
        };
        Ok(Self { settings, sink, reports: Vec::new(), comparisons: Vec::new() })
    }

    fn heading(&self, url: &str) -> Heading {
        Heading { url: url.to_owned(), model: self.settings.model.clone(), protocol: self.settings.protocol.name() }
    }

    /// Writes text for people: only in the format `table`.
    fn write(&mut self, text: &str) -> Result<(), String> {
        if self.settings.output.format == ReportFormat::Table { self.write_always(text) } else { Ok(()) }
    }

    fn write_always(&mut self, text: &str) -> Result<(), String> {
        let written = self.sink.write_all(text.as_bytes()).and_then(|()| self.sink.flush());
        written.map_err(|error| format!("the results cannot be written: {error}"))
    }

    fn write_report(&mut self, url: &str, report: LoadReport) -> Result<(), String> {
        match self.settings.output.format {
            ReportFormat::Table => self.write_always(&format!("{}\n", table::block("", &report)))?,
            ReportFormat::Json => self.write_always(&machine::json(&self.heading(url), &report))?,
            ReportFormat::Csv => {}
        }
        self.reports.push(report);
        Ok(())
    }

    fn write_comparison(&mut self, urls: &BothServers<String>, comparison: Comparison) -> Result<(), String> {
        match self.settings.output.format {
            ReportFormat::Table => self.write_always(&format!("{}\n", table::comparison(urls, &comparison)))?,
            ReportFormat::Json => {
                let headings = BothServers { a: self.heading(&urls.a), b: self.heading(&urls.b) };
                self.write_always(&machine::comparison_json(&headings, &comparison))?;
            }
            ReportFormat::Csv => {}
        }
        self.comparisons.push(comparison);
        Ok(())
    }

    /// Writes the parts that need all reports: CSV, the summary, the plot.
    fn finish_loads(&mut self, url: &str) -> Result<BenchOutcome, String> {
        let heading = self.heading(url);
        if self.settings.output.format == ReportFormat::Csv {
            let rows: Vec<_> = self.reports.iter().map(|report| (&heading, report)).collect();
            self.write_always(&machine::csv(&rows))?;
        } else if self.reports.len() > 1 {
            self.write(&table::summary(&self.reports))?;
        }
        self.plot(&[plot::PlottedServer { name: url, reports: &self.reports }])?;
        Ok(BenchOutcome::of(&self.reports))
    }

    /// Writes the parts that need all comparisons: CSV and the plot. No request of one server succeeded if none did of the
    /// outcome.
    fn finish_comparisons(&mut self, urls: &BothServers<String>) -> Result<BenchOutcome, String> {
        let (a, b) = (self.heading(&urls.a), self.heading(&urls.b));
        if self.settings.output.format == ReportFormat::Csv {
            let rows = self.comparisons.iter().flat_map(|both| [(&a, &both.a), (&b, &both.b)]);
            let text = machine::csv(&rows.collect::<Vec<_>>());
            self.write_always(&text)?;
        }
        let a: Vec<_> = self.comparisons.iter().map(|both| both.a.clone()).collect();
        let b: Vec<_> = self.comparisons.iter().map(|both| both.b.clone()).collect();
        self.plot(&[
            plot::PlottedServer { name: &urls.a, reports: &a },
            plot::PlottedServer { name: &urls.b, reports: &b },
        ])?;
        let (a, b) = (BenchOutcome::of(&a), BenchOutcome::of(&b));
        let succeeded = if a.succeeded == 0 || b.succeeded == 0 { 0 } else { a.succeeded + b.succeeded };
        Ok(BenchOutcome { succeeded, failed: a.failed + b.failed })
    }

    fn plot(&self, servers: &[plot::PlottedServer<'_>]) -> Result<(), String> {
        let Some(path) = &self.settings.output.plot else { return Ok(()) };
        let title = format!("{}, {}", self.settings.model, self.settings.protocol.name());
        fs::write(path, plot::svg(&title, servers)).map_err(|error| format!("{}: {error}", path.display()))
    }
}
