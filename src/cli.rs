//! The flags of `deuteron bench`: each declared once, as data, from which parsing and `--help`
//! come. Names and short forms are perf_analyzer's where it has the flag; what it has and we have
//! not is refused by name.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::loadgen;
use crate::loadgen::report::OfferedLoad;
use crate::loadgen::schedule::Distribution;
use crate::loadgen::search::LatencyGoal;
use crate::loadgen::settings::{BenchSettings, BenchTask, ContentSource, ReportFormat};
use crate::loadgen::target::{Address, Encoding, Protocol, RequestParameter};

/// Loads in one run: a mistyped step must not run for a week.
const LOADS_MAX: usize = 1_000;
/// Requests in flight at once; the system's limit on files comes first.
const CONCURRENCY_MAX: usize = 100_000;

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Measure.
    Bench(Box<BenchSettings>),
    /// Print the help.
    Help,
}

/// What a command line says, before addresses are read: what they may be depends on the protocol.
#[derive(Default)]
struct Draft {
    settings: BenchSettings,
    url: Option<String>,
    compare: Option<String>,
    /// The flags that decide the loads, to refuse two.
    goals: Vec<&'static str>,
    search_range: Option<(f64, f64)>,
}

/// One flag.
struct Flag {
    names: &'static [&'static str],
    short: Option<char>,
    value: &'static str,
    help: &'static str,
    apply: fn(&mut Draft, &str) -> Result<(), String>,
}

/// A heading of the help and the flags beneath it.
struct Group {
    title: &'static str,
    flags: &'static [Flag],
}

/// A flag with one name and no short form.
const fn flag(
    names: &'static [&'static str],
    value: &'static str,
    help: &'static str,
    apply: fn(&mut Draft, &str) -> Result<(), String>,
) -> Flag {
    Flag { names, short: None, value, help, apply }
}

/// The same with a short form.
const fn short(letter: char, flag: Flag) -> Flag {
    Flag { short: Some(letter), ..flag }
}

const GROUPS: &[Group] = &[
    Group { title: "The server and the model", flags: TARGET_FLAGS },
    Group { title: "The load", flags: LOAD_FLAGS },
    Group { title: "When it has been measured long enough", flags: MEASUREMENT_FLAGS },
    Group { title: "What requests bring", flags: INPUT_FLAGS },
    Group { title: "Sequences", flags: SEQUENCE_FLAGS },
    Group { title: "What is printed", flags: OUTPUT_FLAGS },
];

const TARGET_FLAGS: &[Flag] = &[
    short(
        'm',
        flag(&["model-name"], "NAME", "The model; required", |draft, value| {
            draft.settings.model = path_segment(value)?;
            Ok(())
        }),
    ),
    short(
        'x',
        flag(&["model-version"], "VERSION", "Its version [the server chooses]", |draft, value| {
            draft.settings.version = path_segment(value)?;
            Ok(())
        }),
    ),
    short(
        'u',
        flag(&["url"], "HOST:PORT", "The server [localhost:8000, for gRPC localhost:8001]", |draft, value| {
            draft.url = Some(value.to_owned());
            Ok(())
        }),
    ),
    short(
        'i',
        flag(&["protocol"], "PROTOCOL", "http or grpc [http]", |draft, value| {
            draft.settings.protocol = match value.to_ascii_lowercase().as_str() {
                "http" => Protocol::Http,
                "grpc" => Protocol::Grpc,
                _ => return Err("expected http or grpc".to_owned()),
            };
            Ok(())
        }),
    ),
    short(
        'H',
        flag(
            &["header"],
            "NAME:VALUE",
            "A field of every request's head, over gRPC metadata; may be given more than once",
            |draft, value| {
                draft.settings.fields.push(header(value)?);
                Ok(())
            },
        ),
    ),
    flag(
        &["client-timeout"],
        "MS",
        "How long an answer may take; then the request has failed [60000]",
        |draft, value| {
            draft.settings.timeout = milliseconds(value)?;
            Ok(())
        },
    ),
    flag(
        &["pid"],
        "PID,PID",
        "Processes of the server: adds CPU time, context switches and memory per request; children are not counted",
        |draft, value| {
            draft.settings.processes = processes(value)?;
            Ok(())
        },
    ),
    flag(
        &["compare"],
        "HOST:PORT",
        "A second server, measured in turns with the first; prints the ratios with 95 % confidence intervals",
        |draft, value| {
            draft.compare = Some(value.to_owned());
            Ok(())
        },
    ),
    flag(&["pid-b"], "PID,PID", "Processes of the second server", |draft, value| {
        draft.settings.processes_b = processes(value)?;
        Ok(())
    }),
    flag(&["rounds"], "COUNT", "Rounds of a comparison, each A B B A [5]", |draft, value| {
        draft.settings.rounds = positive(value)?;
        Ok(())
    }),
];

const LOAD_FLAGS: &[Flag] = &[
    flag(
        &["concurrency-range", "concurrency"],
        "START:END:STEP",
        "Closed loop: so many requests in flight; a step of x2 doubles [1]",
        |draft, value| {
            draft.goals.push("concurrency-range");
            let loads = range(value)?.into_iter().map(concurrency);
            draft.settings.goal = BenchTask::Loads(loads.collect::<Result<_, _>>()?);
            Ok(())
        },
    ),
    flag(
        &["request-rate-range", "rate"],
        "START:END:STEP",
        "Open loop: so many requests a second, whatever becomes of them; latency counts from when each was due",
        |draft, value| {
            draft.goals.push("request-rate-range");
            draft.settings.goal = BenchTask::Loads(range(value)?.into_iter().map(OfferedLoad::Rate).collect());
            Ok(())
        },
    ),
    flag(&["search-slo"], "p99=10ms", "Find the highest rate of an open loop that meets this", |draft, value| {
        draft.goals.push("search-slo");
        draft.settings.goal = BenchTask::Search(LatencyGoal::parse(value)?, SEARCH_RANGE);
        Ok(())
    }),
    flag(&["search-range"], "START:END", "Rates between which to search [100:10000000]", |draft, value| {
        let (start, end) = value.split_once(':').ok_or("expected START:END")?;
        let (start, end) = (rate(start)?, rate(end)?);
        draft.search_range = Some((start, end));
        if start < end { Ok(()) } else { Err("START must be below END".to_owned()) }
    }),
    flag(&["search-precision"], "PERCENT", "How close the search comes [5]", |draft, value| {
        draft.settings.measurement.precision = percent(value)? / 100.0;
        Ok(())
    }),
    flag(&["request-distribution"], "NAME", "Gaps of an open loop: poisson or constant [poisson]", |draft, value| {
        draft.settings.distribution = match value {
            "poisson" => Distribution::Poisson,
            "constant" => Distribution::Constant,
            _ => return Err("expected poisson or constant".to_owned()),
        };
        Ok(())
    }),
    flag(
        &["connections"],
        "COUNT",
        "Connections [closed loop: one for each request in flight; open loop: 64]; gRPC shares them, HTTP waits for a free one",
        |draft, value| {
            draft.settings.connections = Some(positive(value)?);
            Ok(())
        },
    ),
    flag(&["threads", "max-threads"], "COUNT", "Threads that send [1]", |draft, value| {
        draft.settings.threads = positive(value)?;
        Ok(())
    }),
    flag(&["random-seed"], "SEED", "Decides arrivals, contents and lengths of sequences [1]", |draft, value| {
        draft.settings.seed = whole(value)?;
        Ok(())
    }),
];

const MEASUREMENT_FLAGS: &[Flag] = &[
    short(
        'p',
        flag(
            &["measurement-interval"],
            "MS",
            "How long a window lasts [5000; a step of a search 2000, a turn of a comparison 1000]",
            |draft, value| {
                draft.settings.measurement.interval = Some(milliseconds(value)?);
                Ok(())
            },
        ),
    ),
    flag(&["measurement-mode"], "MODE", "time_windows or count_windows [time_windows]", |draft, value| {
        draft.settings.measurement.counts = match value {
            "time_windows" => false,
            "count_windows" => true,
            _ => return Err("expected time_windows or count_windows".to_owned()),
        };
        Ok(())
    }),
    flag(&["count-windows"], "", "The same as --measurement-mode=count_windows", |draft, _| {
        draft.settings.measurement.counts = true;
        Ok(())
    }),
    flag(
        &["measurement-request-count"],
        "COUNT",
        "Requests in a window of count_windows, at least [50]",
        |draft, value| {
            draft.settings.measurement.requests = positive(value)? as u64;
            Ok(())
        },
    ),
    flag(
        &["request-count"],
        "COUNT",
        "Send exactly so many requests at each load, without warm-up, and measure them all",
        |draft, value| {
            draft.settings.measurement.request_count = Some(positive(value)? as u64);
            Ok(())
        },
    ),
    short(
        's',
        flag(
            &["stability-percentage"],
            "PERCENT",
            "By how much the last three windows may differ, in throughput and latency [10]",
            |draft, value| {
                draft.settings.measurement.stability = percent(value)?;
                Ok(())
            },
        ),
    ),
    short(
        'r',
        flag(&["max-trials"], "COUNT", "Windows at most [10]", |draft, value| {
            draft.settings.measurement.trials_max = positive(value)?;
            Ok(())
        }),
    ),
    flag(&["percentile"], "PERCENT", "The latency that must be stable [the mean]", |draft, value| {
        let percentile = percent(value)?;
        draft.settings.measurement.percentile = Some(percentile);
        if percentile < 100.0 { Ok(()) } else { Err("must be below 100".to_owned()) }
    }),
    flag(
        &["warm-up"],
        "MS",
        "How long the load runs before it is measured [1000; a step or a turn at most 300]",
        |draft, value| {
            draft.settings.measurement.warm_up = Duration::from_millis(whole(value)?);
            Ok(())
        },
    ),
    flag(
        &["warmup-request-count"],
        "COUNT",
        "How many requests end before it is measured, at least [0]",
        |draft, value| {
            draft.settings.measurement.warm_up_requests = whole(value)?;
            Ok(())
        },
    ),
];

const INPUT_FLAGS: &[Flag] = &[
    short(
        'b',
        flag(&["batch-size"], "COUNT", "Rows in a request [1]", |draft, value| {
            draft.settings.rows = positive(value)?;
            Ok(())
        }),
    ),
    flag(
        &["input-data"],
        "SOURCE",
        "random, zero, a JSON file in perf_analyzer's format, or a directory with a file for each input [random]",
        |draft, value| {
            draft.settings.source = match value {
                "random" => ContentSource::Random,
                "zero" => ContentSource::Zero,
                path => ContentSource::Path(PathBuf::from(path)),
            };
            Ok(())
        },
    ),
    short(
        'z',
        flag(&["zero-input"], "", "The same as --input-data=zero", |draft, _| {
            draft.settings.source = ContentSource::Zero;
            Ok(())
        }),
    ),
    flag(
        &["shape"],
        "NAME:D,D",
        "Shape of an input, without the batch axis; may be given more than once",
        |draft, value| {
            draft.settings.shapes.push(shape(value)?);
            Ok(())
        },
    ),
    flag(&["string-data"], "TEXT", "What strings hold [random letters]", |draft, value| {
        draft.settings.string = Some(value.to_owned());
        Ok(())
    }),
    flag(&["string-length"], "COUNT", "Letters of a random string [128]", |draft, value| {
        draft.settings.string_length = positive(value)?;
        Ok(())
    }),
    flag(
        &["input-tensor-format"],
        "FORMAT",
        "Inputs over HTTP: binary or json [binary where the server takes it]",
        |draft, value| {
            draft.settings.input_encoding = Some(encoding(value)?);
            Ok(())
        },
    ),
    flag(
        &["output-tensor-format"],
        "FORMAT",
        "Outputs over HTTP: binary or json [binary where the server sends it]",
        |draft, value| {
            draft.settings.output_encoding = Some(encoding(value)?);
            Ok(())
        },
    ),
    flag(&["binary"], "", "Inputs and outputs over HTTP as binary data", |draft, _| {
        draft.settings.input_encoding = Some(Encoding::Binary);
        draft.settings.output_encoding = Some(Encoding::Binary);
        Ok(())
    }),
    flag(&["json"], "", "Inputs and outputs over HTTP as JSON", |draft, _| {
        draft.settings.input_encoding = Some(Encoding::Json);
        draft.settings.output_encoding = Some(Encoding::Json);
        Ok(())
    }),
    flag(
        &["request-parameter"],
        "NAME:VALUE:TYPE",
        "A parameter of every request: bool, int, uint, double or string; may be given more than once",
        |draft, value| {
            draft.settings.parameters.push(RequestParameter::parse(value)?);
            Ok(())
        },
    ),
];

const SEQUENCE_FLAGS: &[Flag] = &[
    flag(
        &["sequence-length"],
        "COUNT",
        "Requests in a sequence [20, or the length of its stream in a JSON file]",
        |draft, value| {
            draft.settings.sequence.is_asked = true;
            draft.settings.sequence.length = Some(positive(value)?);
            Ok(())
        },
    ),
    flag(&["sequence-length-variation"], "PERCENT", "By how much lengths differ [20]", |draft, value| {
        draft.settings.sequence.length_variation =
            value.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).ok_or("expected 0 to 100")?;
        Ok(())
    }),
    flag(
        &["num-of-sequences"],
        "COUNT",
        "Sequences at the same time in an open loop [4]; in a closed one every request in flight is of another",
        |draft, value| {
            draft.settings.sequence.is_asked = true;
            draft.settings.sequence.count = positive(value)?;
            Ok(())
        },
    ),
    flag(&["sequence-id-range"], "START:END", "Ids of sequences [1:4294967295]", |draft, value| {
        draft.settings.sequence.is_asked = true;
        let (start, end) = value.split_once(':').unwrap_or((value, "4294967295"));
        let ids = (whole(start)?, whole(end)?);
        draft.settings.sequence.ids = ids;
        if ids.0 > 0 && ids.0 <= ids.1 { Ok(()) } else { Err("ids begin at 1 and START comes first".to_owned()) }
    }),
];

const OUTPUT_FLAGS: &[Flag] = &[
    flag(&["format"], "FORMAT", "table, json (an object on each line) or csv [table]", |draft, value| {
        draft.settings.output.format = match value {
            "csv" => ReportFormat::Csv,
            "json" => ReportFormat::Json,
            "table" => ReportFormat::Table,
            _ => return Err("expected table, json or csv".to_owned()),
        };
        Ok(())
    }),
    short(
        'f',
        flag(&["filename"], "FILE", "Write the results into a file", |draft, value| {
            draft.settings.output.file = Some(PathBuf::from(value));
            Ok(())
        }),
    ),
    flag(
        &["plot"],
        "FILE.svg",
        "Draw latency percentiles against the load; of a single load, latency against the percentile",
        |draft, value| {
            draft.settings.output.plot = Some(PathBuf::from(value));
            Ok(())
        },
    ),
    short(
        'v',
        flag(&["verbose"], "", "Tell each window", |draft, _| {
            draft.settings.output.is_verbose = true;
            Ok(())
        }),
    ),
];

/// Where a search begins and ends where nobody says.
const SEARCH_RANGE: (f64, f64) = (100.0, 10_000_000.0);

/// perf_analyzer's flags that are not here, with the way out.
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
    (&["ssl-grpc-use-ssl", "ssl-https-verify-peer"], "TLS is not supported"),
    (&["streaming"], "ModelStreamInfer is not supported"),
    (&["trace-level", "trace-rate", "trace-count", "log-frequency"], "tracing is set at the server"),
    (&["verbose-csv"], "--format=csv has every column"),
];

/// Runs `deuteron bench` with its arguments.
pub fn bench<I>(arguments: I) -> ExitCode
where
    I: IntoIterator,
    I::Item: Into<std::ffi::OsString>,
{
    match parse(arguments) {
        Ok(Command::Bench(settings)) => loadgen::run(&settings),
        Ok(Command::Help) => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Reads the arguments behind `bench`. The error is one line for a person.
pub fn parse<I>(arguments: I) -> Result<Command, String>
where
    I: IntoIterator,
    I::Item: Into<std::ffi::OsString>,
{
    use lexopt::Arg;

    let mut draft = Draft::default();
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        let (found, name) = match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Command::Help),
            Arg::Value(word) => return Err(format!("unexpected '{}'; --help lists the flags", word.to_string_lossy())),
            Arg::Short(letter) => (flags().find(|flag| flag.short == Some(letter)), letter.to_string()),
            Arg::Long(name) => (flags().find(|flag| flag.names.contains(&name)), name.to_owned()),
        };
        let dashed = if name.chars().count() == 1 { format!("-{name}") } else { format!("--{name}") };
        let Some(flag) = found else { return Err(unknown(&name, &dashed)) };
        let value = if flag.value.is_empty() {
            String::new()
        } else {
            let value = parser.value().map_err(|error| error.to_string())?;
            value.into_string().map_err(|_| format!("{dashed} takes a value in UTF-8"))?
        };
        (flag.apply)(&mut draft, &value).map_err(|why| format!("{dashed}={value}: {why}"))?;
    }
    check(draft).map(|settings| Command::Bench(Box::new(settings)))
}

fn flags() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|group| group.flags)
}

fn unknown(name: &str, dashed: &str) -> String {
    let known = ABSENT.iter().find(|(names, _)| {
        names.contains(&name) || (name.starts_with("ssl-") && names.iter().any(|n| n.starts_with("ssl-")))
    });
    match known {
        Some((_, instead)) => format!("perf_analyzer's flag '{dashed}' is not supported: {instead}"),
        None => format!("unknown flag '{dashed}'; --help lists them"),
    }
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
    if let (BenchTask::Search(_, range), Some(given)) = (&mut settings.goal, draft.search_range) {
        *range = given;
    }
    if settings.compare.is_none() && !settings.processes_b.is_empty() {
        return Err("--pid-b is of the second server; name it with --compare".to_owned());
    }
    // Between the two, some column would be missing where the other has it.
    if settings.compare.is_some() && settings.processes.is_empty() != settings.processes_b.is_empty() {
        return Err("a comparison takes --pid and --pid-b, or neither".to_owned());
    }
    let is_json = [settings.input_encoding, settings.output_encoding].contains(&Some(Encoding::Json));
    if settings.protocol == Protocol::Grpc && is_json {
        return Err("JSON tensors are HTTP's; gRPC has raw contents".to_owned());
    }
    Ok(settings)
}

/// The text of `--help`.
pub fn help() -> String {
    let mut out = String::from(
        "deuteron bench: measures any server of the Open Inference Protocol v2\n\n\
         Usage: deuteron bench -m MODEL [-u HOST:PORT] [-i http|grpc] [FLAGS]\n",
    );
    for group in GROUPS {
        let _ = writeln!(out, "\n{}:", group.title);
        for flag in group.flags {
            let short = flag.short.map_or(String::new(), |letter| format!("-{letter}, "));
            let names: Vec<String> = flag.names.iter().map(|name| format!("--{name}")).collect();
            let value = if flag.value.is_empty() { String::new() } else { format!("={}", flag.value) };
            let _ = writeln!(out, "  {short}{}{value}\n        {}", names.join(", "), flag.help);
        }
    }
    out.push_str("  -h, --help\n        Print this\n");
    out
}

/// A name that becomes part of a path.
fn path_segment(value: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if value.is_empty() {
        return Err("must not be empty".to_owned());
    }
    // RFC 3986 §2.3: what is reserved would end the segment.
    if value.bytes().all(is_plain) {
        Ok(value.to_owned())
    } else {
        Err("expected letters, digits, -, ., _ or ~".to_owned())
    }
}

fn header(value: &str) -> Result<(String, String), String> {
    let (name, value) = value.split_once(':').ok_or("expected NAME:VALUE")?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let value = value.trim();
    // RFC 9110 §5.5: no control characters, which could begin a field of their own.
    if name.is_empty() || !name.bytes().all(is_token) || value.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err("expected NAME:VALUE".to_owned());
    }
    let framing =
        ["connection", "content-length", "content-type", "transfer-encoding", "inference-header-content-length"];
    if framing.contains(&name.to_ascii_lowercase().as_str()) {
        return Err("it says where requests end, which is not yours to say".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn shape(value: &str) -> Result<(String, Vec<i64>), String> {
    let (name, dimensions) = value.rsplit_once(':').ok_or("expected NAME:D,D")?;
    let dimension = |text: &str| text.parse().ok().filter(|dimension: &i64| *dimension >= 0);
    let shape: Option<Vec<i64>> = dimensions.split(',').map(dimension).collect();
    Ok((name.to_owned(), shape.ok_or("dimensions are whole numbers")?))
}

fn encoding(value: &str) -> Result<Encoding, String> {
    match value {
        "binary" => Ok(Encoding::Binary),
        "json" => Ok(Encoding::Json),
        _ => Err("expected binary or json".to_owned()),
    }
}

fn processes(value: &str) -> Result<Vec<u32>, String> {
    value.split(',').map(|text| text.parse().map_err(|_| "expected process ids".to_owned())).collect()
}

fn whole(value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| "expected a whole number".to_owned())
}

fn positive(value: &str) -> Result<usize, String> {
    let count = usize::try_from(whole(value)?).map_err(|_| "expected a whole number".to_owned())?;
    if count > 0 { Ok(count) } else { Err("must be greater than 0".to_owned()) }
}

fn milliseconds(value: &str) -> Result<Duration, String> {
    positive(value).map(|millis| Duration::from_millis(millis as u64))
}

fn percent(value: &str) -> Result<f64, String> {
    let percent = value.parse().ok().filter(|percent: &f64| *percent > 0.0 && percent.is_finite());
    percent.ok_or_else(|| "expected a number greater than 0".to_owned())
}

fn rate(value: &str) -> Result<f64, String> {
    percent(value)
}

fn concurrency(value: f64) -> Result<OfferedLoad, String> {
    if value.fract() == 0.0 && value <= CONCURRENCY_MAX as f64 {
        Ok(OfferedLoad::Concurrency(value as usize))
    } else {
        Err(format!("expected whole numbers up to {CONCURRENCY_MAX}"))
    }
}

/// `START`, `START:END`, `START:END:STEP` or `START:END:xFACTOR`: all the values, the end included.
fn range(value: &str) -> Result<Vec<f64>, String> {
    let mut parts = value.split(':');
    let start = rate(parts.next().unwrap_or_default())?;
    let end = parts.next().map_or(Ok(start), rate)?;
    let step = parts.next().unwrap_or("1");
    if parts.next().is_some() || end < start {
        return Err("expected START:END:STEP, START not above END".to_owned());
    }
    let next: Box<dyn Fn(f64) -> f64> = match step.strip_prefix('x') {
        Some(factor) => {
            let factor = percent(factor)?;
            if factor <= 1.0 {
                return Err("a factor must be greater than 1".to_owned());
            }
            Box::new(move |value| value * factor)
        }
        None => {
            let step = percent(step)?;
            Box::new(move |value| value + step)
        }
    };
    let values = std::iter::successors(Some(start), |value| Some(next(*value)).filter(|next| *next <= end));
    let values: Vec<f64> = values.take(LOADS_MAX + 1).collect();
    if values.len() > LOADS_MAX { Err(format!("more than {LOADS_MAX} loads")) } else { Ok(values) }
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;

    fn read(line: &str) -> Result<BenchSettings, String> {
        match parse(line.split_whitespace().map(str::to_owned))? {
            Command::Bench(settings) => Ok(*settings),
            Command::Help => panic!("help"),
        }
    }

    #[test]
    fn every_flag_changes_what_it_says() {
        let values = [
            ("NAME", "poisson"),
            ("HOST:PORT", "a:1"),
            ("PROTOCOL", "grpc"),
            ("NAME:VALUE", "a:b"),
            ("START:END:STEP", "2:8:2"),
            ("START:END", "7:9"),
            ("p99=10ms", "p99=10ms"),
            ("MODE", "count_windows"),
            ("SOURCE", "zero"),
            ("NAME:D,D", "A:1,2"),
            ("NAME:VALUE:TYPE", "a:1:int"),
            ("FORMAT", "json"),
        ];
        for flag in flags() {
            let name = flag.names[0];
            let value = match name {
                "request-distribution" => "constant",
                _ => values.iter().find(|(kind, _)| *kind == flag.value).map_or("7", |(_, value)| value),
            };
            let base = match name {
                "pid" => "-m m --compare=a --pid-b=1",
                "pid-b" => "-m m --compare=a --pid=1",
                "search-range" => "-m m --search-slo=p99=1ms",
                "binary" => "-m m --json",
                _ => "-m m",
            };
            let line =
                if flag.value.is_empty() { format!("{base} --{name}") } else { format!("{base} --{name}={value}") };
            let base = match name {
                "pid" | "pid-b" => "-m m --compare=a",
                _ => base,
            };
            assert_ne!(read(&line).unwrap(), read(base).unwrap(), "{line}");
        }
    }

    #[test]
    fn short_forms_and_other_names_mean_the_same() {
        let long = "--model-name m --url h:1 --protocol grpc --batch-size 2 --model-version 3 --measurement-interval 4 --filename f --verbose";
        assert_eq!(read("-m m -u h:1 -i gRPC -b 2 -x 3 -p 4 -f f -v"), read(long));
        assert_eq!(read("-m m --rate 5"), read("-m m --request-rate-range 5"));
        assert_eq!(read("-m m --concurrency 5"), read("-m m --concurrency-range 5:5"));
    }

    #[test]
    fn no_two_flags_share_a_name() {
        let mut names: Vec<String> =
            flags().flat_map(|flag| flag.names.iter().map(|name| (*name).to_owned())).collect();
        names.extend(flags().filter_map(|flag| flag.short.map(String::from)));
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn ranges_are_all_their_values() {
        let check = |text, want: &[f64]| assert_eq!(range(text).as_deref(), Ok(want), "{text}");
        check("4", &[4.0]);
        check("1:4", &[1.0, 2.0, 3.0, 4.0]);
        check("1:10:4", &[1.0, 5.0, 9.0]);
        check("1:64:x4", &[1.0, 4.0, 16.0, 64.0]);
        check("0.5:1:0.25", &[0.5, 0.75, 1.0]);
        for text in ["", "0", "4:1", "1:2:0", "1:2:x1", "1:2:3:4", "a", "1:100000", "1:inf"] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let check = |line: &str, want: &str| assert_eq!(read(line).unwrap_err(), want, "{line}");
        check("", "no model: name one with -m");
        check("-m a/b", "-m=a/b: expected letters, digits, -, ., _ or ~");
        check("-m m --nope", "unknown flag '--nope'; --help lists them");
        check("-m m extra", "unexpected 'extra'; --help lists the flags");
        check(
            "-m m --streaming",
            "perf_analyzer's flag '--streaming' is not supported: ModelStreamInfer is not supported",
        );
        check("-m m -l 5", "perf_analyzer's flag '-l' is not supported: use --search-slo=p99=10ms");
        check(
            "-m m --ssl-grpc-root-certifications-file x",
            "perf_analyzer's flag '--ssl-grpc-root-certifications-file' is not supported: TLS is not supported",
        );
        check("-m m --concurrency 1.5", "--concurrency=1.5: expected whole numbers up to 100000");
        check(
            "-m m --rate 5 --concurrency 5",
            "--request-rate-range and --concurrency-range exclude each other; each may be given once",
        );
        check("-m m -i grpc -u a/b", "--url=a/b: a gRPC server has no path");
        check("-m m -i grpc --json", "JSON tensors are HTTP's; gRPC has raw contents");
        check("-m m --pid-b 5", "--pid-b is of the second server; name it with --compare");
        check("-m m --compare a --pid 5", "a comparison takes --pid and --pid-b, or neither");
        check("-m m -H Content-Length:5", "-H=Content-Length:5: it says where requests end, which is not yours to say");
        check("-m m --shape A", "--shape=A: expected NAME:D,D");
        check("-m m -b 0", "-b=0: must be greater than 0");
        check("-m m --sequence-id-range 0:5", "--sequence-id-range=0:5: ids begin at 1 and START comes first");
        check("-m m --percentile 100", "--percentile=100: must be below 100");
    }

    #[test]
    fn the_help_is_the_table() {
        expect_file!["../tests/snapshots/bench_help.txt"].assert_eq(&help());
    }
}
