//! The flags of `deuteron bench` and the settings made of them. `table` declares each once; names
//! and short forms are perf_analyzer's if it has the flag. Flags that only perf_analyzer has are
//! refused by name.

mod table;
pub mod tls;
mod value;

use clap::{Arg, ArgMatches};

use crate::flags;
use crate::loadgen::flags::table::SECTIONS;
use crate::loadgen::flags::tls::HasTlsFiles;
use crate::loadgen::search::SearchRange;
use crate::loadgen::settings::{BenchSettings, BenchTask, TlsFiles};
use crate::loadgen::target::{Address, Encoding, Protocol};

/// The values of a command line, before addresses are read: their form depends on the protocol.
#[derive(Default)]
struct Draft {
    settings: BenchSettings,
    url: Option<String>,
    compare: Option<String>,
    /// The flags that decide the loads, to refuse two.
    goals: Vec<&'static str>,
    search_range: Option<SearchRange>,
}

/// The default range of a search.
const SEARCH_RANGE: SearchRange = SearchRange { start: 100.0, rate_min: 1.0, rate_max: 10_000_000.0 };

/// perf_analyzer's flags that are not here, with the alternative.
const ABSENT: &[(&[&str], &str)] = &[
    (&["async", "a", "sync"], "requests never wait for each other here; leave it out"),
    (&["bls-composing-models"], "statistics are of the model that is named"),
    (&["binary-search", "latency-threshold", "l"], "use --search-slo=p99=10ms"),
    (&["collect-metrics", "metrics-url", "metrics-interval"], "use --pid for what the server uses"),
    (&["c", "t", "d"], "use --concurrency-range"),
    (&["enable-mpi"], "run several and add up"),
    (&["grpc-compression-algorithm"], "compression is not supported"),
    (&["periodic-concurrency-range", "request-period"], "use --concurrency-range"),
    (&["profile-export-file"], "use --format=json"),
    (&["request-intervals"], "use --request-rate-range with --request-distribution"),
    (&["serial-sequences"], "a sequence has one request in flight at most; leave it out"),
    (
        &["service-kind", "endpoint", "model-signature-name", "model-repository", "triton-server-directory"],
        "only servers of the Open Inference Protocol v2 over HTTP and gRPC",
    ),
    (&["shared-memory", "output-shared-memory-size"], "tensors travel with their requests"),
    (&["ssl-grpc-use-ssl"], "name the server with --url=grpcs://HOST:PORT"),
    (&["ssl-https-client-certificate-type", "ssl-https-private-key-type"], "files are PEM; leave it out"),
    (&["ssl-https-verify-host", "ssl-https-verify-peer"], "a server is verified unless --insecure is given"),
    (&["streaming"], "ModelStreamInfer is not supported"),
    (&["trace-level", "trace-rate", "trace-count", "log-frequency"], "tracing is set at the server"),
    (&["verbose-csv"], "--format=csv has every column"),
];

/// The arguments of the command.
pub fn arguments() -> impl Iterator<Item = Arg> {
    flags::arguments(SECTIONS)
}

/// Returns the settings of a command line. `local` returns the address of a server of this machine, for gRPC or HTTP, if
/// it is not the default one; `variables` are those of the environment. The error is one line for a person.
pub fn read(
    matches: &ArgMatches,
    local: &dyn Fn(Protocol) -> Option<String>,
    variables: flags::Variables<'_>,
) -> Result<BenchSettings, String> {
    let mut draft = Draft::default();
    flags::apply(SECTIONS, matches, &mut draft)?;
    if draft.url.is_none() {
        draft.url = local(draft.settings.protocol);
    }
    let mut settings = check(draft)?;
    tls::add_authorities(&mut settings.tls, variables);
    Ok(settings)
}

/// Returns the alternative to a flag that only perf_analyzer has, given with its dashes.
pub fn explain_absent(dashed: &str) -> Option<String> {
    let name = dashed.trim_start_matches('-');
    let (_, instead) = ABSENT.iter().find(|(names, _)| names.contains(&name))?;
    Some(format!("perf_analyzer's flag '{dashed}' is not supported: {instead}"))
}

fn check(draft: Draft) -> Result<BenchSettings, String> {
    let mut settings = draft.settings;
    if settings.model.is_empty() {
        return Err("no model: name one with -m".to_owned());
    }
    if let [one, .., other] = draft.goals.as_slice() {
        return Err(format!("--{one} and --{other} exclude each other; each may be given once"));
    }
    let read = |flag: &str, text: Option<String>| match text {
        Some(text) => {
            Address::parse(&text, settings.protocol).map(Some).map_err(|why| format!("--{flag}={text}: {why}"))
        }
        None => Ok(None),
    };
    settings.url = read("url", draft.url)?;
    settings.compare = read("compare", draft.compare)?;
    let has_tls = [&settings.url, &settings.compare].into_iter().flatten().any(|address| address.has_tls);
    tls::check(&settings.tls, has_tls)?;
    if let (BenchTask::Search(_, range), Some(given)) = (&mut settings.goal, draft.search_range) {
        *range = given;
    }
    if let (BenchTask::Search(..), Some(_)) = (&settings.goal, &settings.compare) {
        return Err("--search-slo finds the rate of one server; leave --compare out".to_owned());
    }
    if settings.compare.is_none() && !settings.processes_b.is_empty() {
        return Err("--pid-b is of the second server; name it with --compare".to_owned());
    }
    // With only one of the two, some columns would be missing for one server.
    if settings.compare.is_some() && settings.processes.is_empty() != settings.processes_b.is_empty() {
        return Err("a comparison takes --pid and --pid-b, or neither".to_owned());
    }
    let is_json = [settings.input_encoding, settings.output_encoding].contains(&Some(Encoding::Json));
    if settings.protocol == Protocol::Grpc && is_json {
        return Err("JSON tensors are HTTP's; gRPC has raw contents".to_owned());
    }
    Ok(settings)
}

impl HasTlsFiles for Draft {
    fn tls_files(&mut self) -> &mut TlsFiles {
        &mut self.settings.tls
    }
}

#[cfg(test)]
mod tests;
