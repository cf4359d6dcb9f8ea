//! The settings of traces. `--trace-config` goes before the flags that it has replaced, in any
//! order of the line, as in tritonserver; so both are kept apart until all are read.

use std::time::Duration;

use base::limits;
use flags::parse;

/// The requests that are traced, and the destination of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// True if the beginnings and ends of a request's stages are recorded.
    pub timestamps: bool,
    /// True if inputs and outputs are recorded.
    pub tensors: bool,
    /// One of `rate` requests is traced; 0 for only those whose client sends a trace context.
    pub rate: u32,
    /// The number of traces taken; -1 for any number.
    pub count: i64,
    /// True if traces go to a collector by OTLP, and not to a file.
    pub is_opentelemetry: bool,
    /// The file; empty without one.
    pub file: String,
    /// Traces in one file; 0 for all in one.
    pub log_frequency: u32,
    /// The address of the collector: host, port and path.
    pub collector: (String, u16, String),
    /// The attributes of this server for the collector.
    pub resource: Vec<(String, String)>,
    /// Records that may wait for the collector.
    pub records_max: u32,
    /// Spans that are sent at once.
    pub batch_spans: u32,
    /// The time that they wait for more.
    pub batch_delay: Duration,
    /// The settings given for the mode `opentelemetry`, as clients see them.
    pub options: Vec<(String, String)>,
    /// The values of the replaced flags.
    pub(super) old: OldTraceFlags,
    levels: Vec<LevelFlag>,
    is_given: GivenFields,
}

/// The deprecated flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OldTraceFlags {
    pub(super) file: Option<String>,
    pub(super) levels: Vec<LevelFlag>,
    pub(super) rate: Option<i64>,
    pub(super) count: Option<i64>,
    pub(super) log_frequency: Option<i64>,
}

/// The fields that `--trace-config` has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GivenFields {
    rate: bool,
    count: bool,
    file: bool,
    log_frequency: bool,
    bsp: [bool; 3],
}

/// One word of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LevelFlag {
    Off,
    Tensors,
    Timestamps,
}

/// The attribute with the name of the service.
const SERVICE_KEY: &str = "service.name";
/// Its value if neither a flag nor a variable has one: Triton's.
const SERVICE_NAME: &str = "triton-inference-server";

impl Default for TraceSettings {
    fn default() -> Self {
        Self {
            timestamps: false,
            tensors: false,
            rate: 1_000,
            count: -1,
            is_opentelemetry: false,
            file: String::new(),
            log_frequency: 0,
            collector: ("localhost".to_owned(), 4318, "/v1/traces".to_owned()),
            resource: vec![(SERVICE_KEY.to_owned(), SERVICE_NAME.to_owned())],
            records_max: limits::TRACE_RECORDS_MAX,
            batch_spans: limits::TRACE_BATCH_SPANS,
            batch_delay: limits::TRACE_BATCH_DELAY,
            options: Vec::new(),
            old: OldTraceFlags::default(),
            levels: Vec::new(),
            is_given: GivenFields::default(),
        }
    }
}

/// Reads a level like tritonserver, which takes the words of its former levels too.
pub(super) fn parse_level(value: &str) -> Result<LevelFlag, String> {
    match value.to_ascii_lowercase().as_str() {
        "false" | "off" => Ok(LevelFlag::Off),
        "true" | "on" | "min" | "max" | "timestamps" => Ok(LevelFlag::Timestamps),
        "tensors" => Ok(LevelFlag::Tensors),
        _ => Err("expected OFF, TIMESTAMPS or TENSORS".to_owned()),
    }
}

/// Reads the value of a deprecated flag; `None` if it is the default.
pub(super) fn read_old(place: &mut Option<i64>, value: &str, default: i64) -> Result<(), String> {
    let value: i64 = parse(value)?;
    *place = Some(value).filter(|value| *value != default);
    Ok(())
}

/// Reads `[MODE,]SETTING=VALUE`. Returns a warning if the setting is not known.
pub(super) fn read_config(trace: &mut TraceSettings, value: &str) -> Result<Option<String>, String> {
    const FORM: &str = "option format is '<trace mode>,<setting>=<value>' or '<setting>=<value>'";
    let (name, value) = value.split_once('=').ok_or(FORM)?;
    let (mode, name) = match name.split_once(',') {
        Some(("", _)) => return Err(FORM.to_owned()),
        Some((mode, name)) => (mode, name),
        None => ("", name),
    };
    if name.is_empty() || value.is_empty() {
        return Err(FORM.to_owned());
    }
    let is_known = match mode.to_ascii_lowercase().as_str() {
        "" => read_global(trace, name, value)?,
        "triton" => read_triton(trace, name, value)?,
        "opentelemetry" => read_opentelemetry(trace, name, value)?,
        _ => return Err("expected the mode 'triton' or 'opentelemetry', or none".to_owned()),
    };
    Ok((!is_known).then(|| format!("'--trace-config' has no setting '{name}' here; it has no effect")))
}

fn read_global(trace: &mut TraceSettings, name: &str, value: &str) -> Result<bool, String> {
    match name {
        "level" => trace.levels.push(parse_level(value)?),
        "rate" => (trace.rate, trace.is_given.rate) = (parse(value)?, true),
        "count" => (trace.count, trace.is_given.count) = (parse_count(value)?, true),
        "mode" => {
            trace.is_opentelemetry = match value.to_ascii_lowercase().as_str() {
                "triton" => false,
                "opentelemetry" => true,
                _ => return Err("expected the mode 'triton' or 'opentelemetry'".to_owned()),
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn read_triton(trace: &mut TraceSettings, name: &str, value: &str) -> Result<bool, String> {
    match name {
        "file" => (trace.file, trace.is_given.file) = (value.to_owned(), true),
        "log-frequency" => (trace.log_frequency, trace.is_given.log_frequency) = (parse(value)?, true),
        _ => return Ok(false),
    }
    Ok(true)
}

fn read_opentelemetry(trace: &mut TraceSettings, name: &str, value: &str) -> Result<bool, String> {
    match name {
        "url" => trace.collector = parse_url(value)?,
        "resource" => {
            let (key, value) = value.split_once('=').ok_or("expected 'resource=<key>=<value>'")?;
            trace.resource.retain(|(have, _)| have != key);
            trace.resource.push((key.to_owned(), value.to_owned()));
        }
        "bsp_max_queue_size" => (trace.records_max, trace.is_given.bsp[0]) = (positive(value)?, true),
        "bsp_schedule_delay" => {
            trace.batch_delay = Duration::from_millis(u64::from(parse::<u32>(value)?));
            trace.is_given.bsp[1] = true;
        }
        "bsp_max_export_batch_size" => (trace.batch_spans, trace.is_given.bsp[2]) = (positive(value)?, true),
        _ => return Ok(false),
    }
    trace.options.push((name.to_owned(), value.to_owned()));
    Ok(true)
}

impl TraceSettings {
    /// Reads OpenTelemetry's variables of a collector: the size of the queue, the delay and the
    /// size of a batch, unless a flag says otherwise.
    pub(super) fn apply_variables(
        &mut self,
        records: Option<u32>,
        delay: Option<Duration>,
        spans: Option<u32>,
    ) -> Result<(), String> {
        let positive =
            |name: &str, value: u32| positive(&value.to_string()).map_err(|why| format!("{name}={value}: {why}"));
        if let Some(records) = records.filter(|_| !self.is_given.bsp[0]) {
            self.records_max = positive("OTEL_BSP_MAX_QUEUE_SIZE", records)?;
        }
        if let Some(delay) = delay.filter(|_| !self.is_given.bsp[1]) {
            self.batch_delay = delay;
        }
        if let Some(spans) = spans.filter(|_| !self.is_given.bsp[2]) {
            self.batch_spans = positive("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", spans)?;
        }
        Ok(())
    }

    /// Takes the name of `OTEL_SERVICE_NAME`, unless a flag has named the service.
    pub(super) fn name_service(&mut self, name: &str) {
        if let Some((_, value)) =
            self.resource.iter_mut().find(|(key, value)| key == SERVICE_KEY && value == SERVICE_NAME)
        {
            name.clone_into(value);
        }
    }

    /// Adds the attributes of `OTEL_RESOURCE_ATTRIBUTES`, `KEY=VALUE,…` with percent-encoded
    /// values, for keys that are not there; it may name the service too.
    pub(super) fn add_resource(&mut self, text: &str) {
        for (key, value) in text.split(',').filter_map(|pair| pair.trim().split_once('=')) {
            let value = percent_decoded(value);
            if key == SERVICE_KEY {
                self.name_service(&value);
            } else if !key.is_empty() && !self.resource.iter().any(|(have, _)| have == key) {
                self.resource.push((key.to_owned(), value));
            }
        }
    }
}

/// Decodes escapes such as `%2C` to their bytes; other text stays.
fn percent_decoded(text: &str) -> String {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|digits| str::from_utf8(digits).ok());
        let byte =
            digits.filter(|digits| !digits.starts_with('+')).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn parse_count(value: &str) -> Result<i64, String> {
    let count = parse::<i32>(value)?;
    if count < -1 { Err("expected -1 or more".to_owned()) } else { Ok(i64::from(count)) }
}

/// Reads a size of the queue or of a batch: they are buffers that are made at the start.
fn positive(value: &str) -> Result<u32, String> {
    const MOST: u32 = 1_000_000;
    match parse(value)? {
        count @ 1..=MOST => Ok(count),
        _ => Err(format!("expected a number from 1 to {MOST}")),
    }
}

/// Reads `[http://]HOST[:PORT][/PATH]`.
fn parse_url(value: &str) -> Result<(String, u16, String), String> {
    let rest = match value.split_once("://") {
        None => value,
        Some(("http", rest)) => rest,
        Some(_) => return Err("expected 'http://…': this server speaks no TLS to a collector".to_owned()),
    };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    // The brackets of an address of IPv6 have colons between them.
    let colon = authority.rfind(':').filter(|at| authority.rfind(']').is_none_or(|end| *at > end));
    let (host, port) = match colon {
        None => (authority, Ok(80)),
        Some(at) => (authority.get(..at).unwrap_or_default(), parse(authority.get(at + 1..).unwrap_or_default())),
    };
    let is_clean = |byte: u8| byte.is_ascii_graphic();
    if host.is_empty() || !rest.bytes().all(is_clean) {
        return Err("expected 'http://<host>:<port>/<path>'".to_owned());
    }
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok((host, port?, if path.is_empty() { "/".to_owned() } else { path.to_owned() }))
}

/// Brings both kinds of flags together. Returns warnings.
pub(super) fn check(trace: &mut TraceSettings) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();
    let old = std::mem::take(&mut trace.old);
    let mut warn = |flag: &str, instead: &str, is_overridden: bool| {
        warnings.push(format!("'--{flag}' has been deprecated; use '--trace-config {instead}' instead"));
        if is_overridden {
            warnings.push(format!("Overriding deprecated '--{flag}' in favor of --trace-config"));
        }
    };
    if let Some(rate) = old.rate {
        warn("trace-rate", "rate=<rate value>", trace.is_given.rate);
        if !trace.is_given.rate {
            trace.rate = u32::try_from(rate).map_err(|_| format!("--trace-rate={rate}: expected a whole number"))?;
        }
    }
    if let Some(count) = old.count {
        warn("trace-count", "count=<count value>", trace.is_given.count);
        if !trace.is_given.count {
            trace.count = parse_count(&count.to_string()).map_err(|why| format!("--trace-count={count}: {why}"))?;
        }
    }
    if let Some(file) = old.file {
        warn("trace-file", "triton,file=<path>", trace.is_given.file);
        if !trace.is_given.file {
            trace.file = file;
        }
    }
    if let Some(every) = old.log_frequency {
        warn("trace-log-frequency", "triton,log-frequency=<count>", trace.is_given.log_frequency);
        if !trace.is_given.log_frequency {
            let wrong = |_| format!("--trace-log-frequency={every}: expected a whole number");
            trace.log_frequency = u32::try_from(every).map_err(wrong)?;
        }
    }
    if !old.levels.is_empty() {
        warn("trace-level", "level=<level>", false);
    }
    // As in tritonserver, all levels count, and OFF goes before any other.
    let levels = || old.levels.iter().chain(&trace.levels);
    let is_on = |level| levels().any(|have| *have == level) && !levels().any(|have| *have == LevelFlag::Off);
    (trace.timestamps, trace.tensors) = (is_on(LevelFlag::Timestamps), is_on(LevelFlag::Tensors));
    if trace.is_opentelemetry {
        let defaults = [
            ("bsp_max_queue_size", trace.records_max.to_string()),
            ("bsp_schedule_delay", trace.batch_delay.as_millis().to_string()),
            ("bsp_max_export_batch_size", trace.batch_spans.to_string()),
        ];
        let missing = defaults.into_iter().zip(trace.is_given.bsp).filter(|(_, is_given)| !is_given);
        trace.options.extend(missing.map(|((name, value), _)| (name.to_owned(), value)));
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the settings and the warnings.
    fn read(line: &str) -> Result<(TraceSettings, Vec<String>), String> {
        let (mut trace, mut warnings) = (TraceSettings::default(), Vec::new());
        for value in line.split_whitespace() {
            warnings.extend(read_config(&mut trace, value)?);
        }
        warnings.extend(check(&mut trace)?);
        Ok((trace, warnings))
    }

    #[test]
    fn settings_of_all_kinds_are_read() {
        let line = "level=TIMESTAMPS level=tensors rate=7 count=9 triton,file=f,=g triton,log-frequency=3";
        let trace = read(line).unwrap().0;
        assert_eq!((trace.timestamps, trace.tensors, trace.rate, trace.count), (true, true, 7, 9));
        assert_eq!((trace.file.as_str(), trace.log_frequency, trace.is_opentelemetry), ("f,=g", 3, false));
        let line = "mode=opentelemetry rate=0 opentelemetry,url=http://h:1/p opentelemetry,resource=service.name=x \
                    opentelemetry,resource=a=b=c opentelemetry,bsp_schedule_delay=50";
        let trace = read(line).unwrap().0;
        assert_eq!(trace.collector, ("h".to_owned(), 1, "/p".to_owned()));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(trace.resource, [pair("service.name", "x"), pair("a", "b=c")]);
        assert_eq!(trace.batch_delay, Duration::from_millis(50));
        let told: Vec<_> = trace.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            told.join(" "),
            "url=http://h:1/p resource=service.name=x resource=a=b=c bsp_schedule_delay=50 bsp_max_queue_size=2048 \
             bsp_max_export_batch_size=512"
        );
        let off = read("level=TIMESTAMPS level=OFF").unwrap().0;
        assert!(!off.timestamps, "OFF goes before any other");
        let unknown = read("triton,colour=red").unwrap();
        assert_eq!(unknown.1, ["'--trace-config' has no setting 'colour' here; it has no effect"]);
    }

    #[test]
    fn urls_name_a_collector_or_are_refused() {
        let check = |url: &str, want: &str| {
            let got = parse_url(url).map(|(host, port, path)| format!("{host} {port} {path}"));
            assert_eq!(got.unwrap_or_default(), want, "{url}");
        };
        check("http://localhost:4318/v1/traces", "localhost 4318 /v1/traces");
        check("localhost:4318/v1/traces", "localhost 4318 /v1/traces");
        check("http://h", "h 80 /");
        check("http://[::1]:9/x", "::1 9 /x");
        check("http://[::1]/x", "::1 80 /x");
        for wrong in ["https://h:1/", "", "http://", "http://:1/", "h:99999", "h:1/a b", "h:1/a\r\nX: y"] {
            check(wrong, "");
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for wrong in ["rate", "rate=", ",rate=1", "other,rate=1", "level=LOUD", "mode=file", "rate=-1", "count=-2"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        for wrong in ["url=https://h", "resource=a", "bsp_max_queue_size=0", "bsp_max_export_batch_size=9999999"] {
            assert!(read(&format!("opentelemetry,{wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_former_flags_give_way_to_their_successor() {
        let mut trace = TraceSettings::default();
        trace.old.rate = Some(5);
        trace.old.count = Some(6);
        trace.old.file = Some("old".to_owned());
        trace.old.levels = vec![LevelFlag::Tensors];
        read_config(&mut trace, "rate=7").unwrap();
        let warnings = check(&mut trace).unwrap();
        assert_eq!((trace.rate, trace.count, trace.file.as_str()), (7, 6, "old"));
        assert!(trace.tensors && !trace.timestamps);
        assert_eq!(warnings.len(), 5, "{warnings:?}");
    }
}
