//! The table of the flags of `deuteron bench`, by the sections of its help. A new flag is one entry here.

use std::path::PathBuf;
use std::time::Duration;

use crate::flags::Fallback::{Absent, Text, Value};
use crate::flags::Takes::{Many, One, Switch};
use crate::flags::{Flag, Section, parse, set, set_one_of};
use crate::loadgen::flags::value::{
    concurrency, encoding, header, milliseconds, path_segment, percent, positive, processes, range, rate, shape,
};
use crate::loadgen::flags::{Draft, SEARCH_RANGE, tls};
use crate::loadgen::report::OfferedLoad;
use crate::loadgen::schedule::Distribution;
use crate::loadgen::search::{LatencyGoal, SearchRange};
use crate::loadgen::settings::{BenchTask, ContentSource, ReportFormat};
use crate::loadgen::target::{Encoding, Protocol, RequestParameter};

/// All flags of the load generator.
pub(super) const SECTIONS: &[Section<Draft>] = &[
    Section { title: "The server and the model", flags: TARGET_FLAGS },
    Section { title: "The load", flags: LOAD_FLAGS },
    Section { title: "Measurement windows", flags: MEASUREMENT_FLAGS },
    Section { title: "Contents of requests", flags: INPUT_FLAGS },
    Section { title: "Sequences", flags: SEQUENCE_FLAGS },
    Section { title: "Output", flags: OUTPUT_FLAGS },
];

const TARGET_FLAGS: &[Flag<Draft>] = &[
    Flag {
        names: &["m", "model-name"],
        takes: One("NAME"),
        default: Absent,
        help: "The model; required",
        apply: |draft, value| set(&mut draft.settings.model, path_segment(value)),
    },
    Flag {
        names: &["x", "model-version"],
        takes: One("VERSION"),
        default: Text("the server chooses"),
        help: "Its version",
        apply: |draft, value| set(&mut draft.settings.version, path_segment(value)),
    },
    Flag {
        names: &["u", "url"],
        takes: One("HOST:PORT"),
        default: Text(
            "localhost:8000, for gRPC localhost:8001, or the port without TLS that the server's variables say",
        ),
        help: "The server; https:// before it, or grpcs://, for TLS",
        apply: |draft, value| {
            draft.url = Some(value.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["i", "protocol"],
        takes: One("http|grpc"),
        default: Value("http"),
        help: "Protocol of the requests",
        apply: |draft, value| {
            set_one_of(
                &mut draft.settings.protocol,
                &value.to_ascii_lowercase(),
                &[("http", Protocol::Http), ("grpc", Protocol::Grpc)],
            )
        },
    },
    tls::authorities(),
    tls::certificate(),
    tls::key(),
    tls::insecure(),
    Flag {
        names: &["H", "header"],
        takes: Many("NAME:VALUE"),
        default: Absent,
        help: "A field of every request's head, over gRPC metadata; may be given more than once",
        apply: |draft, value| {
            draft.settings.fields.push(header(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["client-timeout"],
        takes: One("MS"),
        default: Value("60000"),
        help: "Timeout of a request, after which it has failed",
        apply: |draft, value| set(&mut draft.settings.timeout, milliseconds(value)),
    },
    Flag {
        names: &["pid"],
        takes: One("PID,PID"),
        default: Absent,
        help: "Processes of the server: adds CPU time, context switches and memory per request; children are not \
               counted",
        apply: |draft, value| set(&mut draft.settings.processes, processes(value)),
    },
    Flag {
        names: &["compare"],
        takes: One("HOST:PORT"),
        default: Absent,
        help: "A second server, measured in turns with the first; prints the ratios with 95 % confidence intervals",
        apply: |draft, value| {
            draft.compare = Some(value.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["pid-b"],
        takes: One("PID,PID"),
        default: Absent,
        help: "Processes of the second server",
        apply: |draft, value| set(&mut draft.settings.processes_b, processes(value)),
    },
    Flag {
        names: &["rounds"],
        takes: One("COUNT"),
        default: Value("5"),
        help: "Rounds of a comparison, each A B B A",
        apply: |draft, value| set(&mut draft.settings.rounds, positive(value)),
    },
];

const LOAD_FLAGS: &[Flag<Draft>] = &[
    Flag {
        names: &["concurrency-range", "concurrency"],
        takes: One("START:END:STEP"),
        default: Value("1"),
        help: "Closed loop: number of requests in flight; a step of x2 doubles it",
        apply: |draft, value| {
            draft.goals.push("concurrency-range");
            let loads = range(value)?.into_iter().map(concurrency);
            draft.settings.goal = BenchTask::Loads(loads.collect::<Result<_, _>>()?);
            Ok(())
        },
    },
    Flag {
        names: &["request-rate-range", "rate"],
        takes: One("START:END:STEP"),
        default: Absent,
        help: "Open loop: requests per second, sent whether or not earlier ones are answered; latency counts from when \
               each was due",
        apply: |draft, value| {
            draft.goals.push("request-rate-range");
            draft.settings.goal = BenchTask::Loads(range(value)?.into_iter().map(OfferedLoad::Rate).collect());
            Ok(())
        },
    },
    Flag {
        names: &["search-slo"],
        takes: One("p99=10ms"),
        default: Absent,
        help: "Find the highest rate of an open loop that meets this goal; requests that fail count as late",
        apply: |draft, value| {
            draft.goals.push("search-slo");
            draft.settings.goal = BenchTask::Search(LatencyGoal::parse(value)?, SEARCH_RANGE);
            Ok(())
        },
    },
    Flag {
        names: &["search-range"],
        takes: One("START:END"),
        default: Text("from 100 up to 10000000, or down to 1"),
        help: "Rates between which to search",
        apply: |draft, value| {
            let (start, end) = value.split_once(':').ok_or("expected START:END")?;
            let (start, end) = (rate(start)?, rate(end)?);
            draft.search_range = Some(SearchRange { start, rate_min: start, rate_max: end });
            if start < end { Ok(()) } else { Err("START must be below END".to_owned()) }
        },
    },
    Flag {
        names: &["search-precision"],
        takes: One("PERCENT"),
        default: Value("5"),
        help: "Precision of the search",
        apply: |draft, value| {
            set(&mut draft.settings.measurement.precision, percent(value).map(|percent| percent / 100.0))
        },
    },
    Flag {
        names: &["request-distribution"],
        takes: One("poisson|constant"),
        default: Value("poisson"),
        help: "Gaps of an open loop",
        apply: |draft, value| {
            set_one_of(
                &mut draft.settings.distribution,
                value,
                &[("poisson", Distribution::Poisson), ("constant", Distribution::Constant)],
            )
        },
    },
    Flag {
        names: &["connections"],
        takes: One("COUNT"),
        default: Text("closed loop: one for each request in flight; open loop: 64"),
        help: "Connections; gRPC shares them, HTTP waits for a free one",
        apply: |draft, value| set(&mut draft.settings.connections, positive(value).map(Some)),
    },
    Flag {
        names: &["threads", "max-threads"],
        takes: One("COUNT"),
        default: Value("1"),
        help: "Threads that send",
        apply: |draft, value| set(&mut draft.settings.threads, positive(value)),
    },
    Flag {
        names: &["random-seed"],
        takes: One("SEED"),
        default: Value("1"),
        help: "Seed of arrivals, contents and lengths of sequences",
        apply: |draft, value| set(&mut draft.settings.seed, parse(value)),
    },
];

const MEASUREMENT_FLAGS: &[Flag<Draft>] = &[
    Flag {
        names: &["p", "measurement-interval"],
        takes: One("MS"),
        default: Text("5000; of a search 1000, a turn of a comparison 1000"),
        help: "Length of a window. A step of a search has as many as the percentile needs, for 40 s at most",
        apply: |draft, value| set(&mut draft.settings.measurement.interval, milliseconds(value).map(Some)),
    },
    Flag {
        names: &["measurement-mode"],
        takes: One("time_windows|count_windows"),
        default: Value("time_windows"),
        help: "Windows by time or by number of requests",
        apply: |draft, value| {
            set_one_of(
                &mut draft.settings.measurement.counts,
                value,
                &[("time_windows", false), ("count_windows", true)],
            )
        },
    },
    Flag {
        names: &["count-windows"],
        takes: Switch,
        default: Absent,
        help: "The same as --measurement-mode=count_windows",
        apply: |draft, _| {
            draft.settings.measurement.counts = true;
            Ok(())
        },
    },
    Flag {
        names: &["measurement-request-count"],
        takes: One("COUNT"),
        default: Value("50"),
        help: "Minimum number of requests in a window of count_windows",
        apply: |draft, value| set(&mut draft.settings.measurement.requests, positive(value).map(|count| count as u64)),
    },
    Flag {
        names: &["request-count"],
        takes: One("COUNT"),
        default: Absent,
        help: "Send exactly this many requests at each load, without warm-up, and measure them all",
        apply: |draft, value| {
            set(&mut draft.settings.measurement.request_count, positive(value).map(|count| Some(count as u64)))
        },
    },
    Flag {
        names: &["s", "stability-percentage"],
        takes: One("PERCENT"),
        default: Value("10"),
        help: "Largest difference between the last three windows, in throughput and latency",
        apply: |draft, value| set(&mut draft.settings.measurement.stability, percent(value)),
    },
    Flag {
        names: &["r", "max-trials"],
        takes: One("COUNT"),
        default: Value("10"),
        help: "Maximum number of windows",
        apply: |draft, value| set(&mut draft.settings.measurement.trials_max, positive(value)),
    },
    Flag {
        names: &["percentile"],
        takes: One("PERCENT"),
        default: Text("the mean"),
        help: "The latency that must be stable",
        apply: |draft, value| {
            let percentile = percent(value)?;
            draft.settings.measurement.percentile = Some(percentile);
            if percentile < 100.0 { Ok(()) } else { Err("must be below 100".to_owned()) }
        },
    },
    Flag {
        names: &["warm-up"],
        takes: One("MS"),
        default: Text("1000; a step or a turn at most 300"),
        help: "Length of the warm-up",
        apply: |draft, value| set(&mut draft.settings.measurement.warm_up, parse(value).map(Duration::from_millis)),
    },
    Flag {
        names: &["warmup-request-count"],
        takes: One("COUNT"),
        default: Value("0"),
        help: "Minimum number of requests that end in the warm-up",
        apply: |draft, value| set(&mut draft.settings.measurement.warm_up_requests, parse(value)),
    },
];

const INPUT_FLAGS: &[Flag<Draft>] = &[
    Flag {
        names: &["b", "batch-size"],
        takes: One("COUNT"),
        default: Value("1"),
        help: "Rows in a request",
        apply: |draft, value| set(&mut draft.settings.rows, positive(value)),
    },
    Flag {
        names: &["input-data"],
        takes: One("SOURCE"),
        default: Value("random"),
        help: "random, zero, a JSON file in perf_analyzer's format, any other file as the only input (an image for a BYTES \
               input), or a directory with a file for each input",
        apply: |draft, value| {
            draft.settings.source = match value {
                "random" => ContentSource::Random,
                "zero" => ContentSource::Zero,
                path => ContentSource::Path(PathBuf::from(path)),
            };
            Ok(())
        },
    },
    Flag {
        names: &["z", "zero-input"],
        takes: Switch,
        default: Absent,
        help: "The same as --input-data=zero",
        apply: |draft, _| {
            draft.settings.source = ContentSource::Zero;
            Ok(())
        },
    },
    Flag {
        names: &["shape"],
        takes: Many("NAME:D,D"),
        default: Absent,
        help: "Shape of an input, without the batch axis; may be given more than once",
        apply: |draft, value| {
            draft.settings.shapes.push(shape(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["string-data"],
        takes: One("TEXT"),
        default: Text("random letters"),
        help: "Contents of strings",
        apply: |draft, value| {
            draft.settings.string = Some(value.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["string-length"],
        takes: One("COUNT"),
        default: Value("128"),
        help: "Length of a random string",
        apply: |draft, value| set(&mut draft.settings.string_length, positive(value)),
    },
    Flag {
        names: &["input-tensor-format"],
        takes: One("binary|json"),
        default: Text("binary where the server takes it"),
        help: "Inputs over HTTP",
        apply: |draft, value| set(&mut draft.settings.input_encoding, encoding(value).map(Some)),
    },
    Flag {
        names: &["output-tensor-format"],
        takes: One("binary|json"),
        default: Text("binary where the server sends it"),
        help: "Outputs over HTTP",
        apply: |draft, value| set(&mut draft.settings.output_encoding, encoding(value).map(Some)),
    },
    Flag {
        names: &["binary"],
        takes: Switch,
        default: Absent,
        help: "Inputs and outputs over HTTP as binary data",
        apply: |draft, _| {
            draft.settings.input_encoding = Some(Encoding::Binary);
            draft.settings.output_encoding = Some(Encoding::Binary);
            Ok(())
        },
    },
    Flag {
        names: &["json"],
        takes: Switch,
        default: Absent,
        help: "Inputs and outputs over HTTP as JSON",
        apply: |draft, _| {
            draft.settings.input_encoding = Some(Encoding::Json);
            draft.settings.output_encoding = Some(Encoding::Json);
            Ok(())
        },
    },
    Flag {
        names: &["request-parameter"],
        takes: Many("NAME:VALUE:TYPE"),
        default: Absent,
        help: "A parameter of every request: bool, int, uint, double or string; may be given more than once",
        apply: |draft, value| {
            draft.settings.parameters.push(RequestParameter::parse(value)?);
            Ok(())
        },
    },
];

const SEQUENCE_FLAGS: &[Flag<Draft>] = &[
    Flag {
        names: &["sequence-length"],
        takes: One("COUNT"),
        default: Text("20, or the length of its stream in a JSON file"),
        help: "Requests in a sequence",
        apply: |draft, value| {
            draft.settings.sequence.is_asked = true;
            draft.settings.sequence.length = Some(positive(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["sequence-length-variation"],
        takes: One("PERCENT"),
        default: Value("20"),
        help: "Variation of the lengths of sequences",
        apply: |draft, value| {
            draft.settings.sequence.length_variation =
                value.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).ok_or("expected 0 to 100")?;
            Ok(())
        },
    },
    Flag {
        names: &["num-of-sequences"],
        takes: One("COUNT"),
        default: Value("4"),
        help: "Sequences at the same time in an open loop; in a closed one every request in flight is of another",
        apply: |draft, value| {
            draft.settings.sequence.is_asked = true;
            draft.settings.sequence.count = positive(value)?;
            Ok(())
        },
    },
    Flag {
        names: &["sequence-id-range"],
        takes: One("START:END"),
        default: Value("1:4294967295"),
        help: "Ids of sequences",
        apply: |draft, value| {
            draft.settings.sequence.is_asked = true;
            let (start, end) = value.split_once(':').unwrap_or((value, "4294967295"));
            let ids = (parse(start)?, parse(end)?);
            draft.settings.sequence.ids = ids;
            if ids.0 > 0 && ids.0 <= ids.1 { Ok(()) } else { Err("ids begin at 1 and START comes first".to_owned()) }
        },
    },
];

const OUTPUT_FLAGS: &[Flag<Draft>] = &[
    Flag {
        names: &["format"],
        takes: One("table|json|csv"),
        default: Value("table"),
        help: "Format of the results; json is one object per line. The table has the percentiles beyond which at least ten \
               requests lie",
        apply: |draft, value| {
            set_one_of(
                &mut draft.settings.output.format,
                value,
                &[("csv", ReportFormat::Csv), ("json", ReportFormat::Json), ("table", ReportFormat::Table)],
            )
        },
    },
    Flag {
        names: &["f", "filename"],
        takes: One("FILE"),
        default: Absent,
        help: "File to write the results to",
        apply: |draft, value| {
            draft.settings.output.file = Some(PathBuf::from(value));
            Ok(())
        },
    },
    Flag {
        names: &["plot"],
        takes: One("FILE.svg"),
        default: Absent,
        help: "Draw latency percentiles and throughput against the load; of a single load, latency against the percentile",
        apply: |draft, value| {
            draft.settings.output.plot = Some(PathBuf::from(value));
            Ok(())
        },
    },
    Flag {
        names: &["v", "verbose"],
        takes: Switch,
        default: Absent,
        help: "Print each window",
        apply: |draft, _| {
            draft.settings.output.is_verbose = true;
            Ok(())
        },
    },
];
