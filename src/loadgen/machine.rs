//! Reports for programs: JSON lines and CSV. Pure. Times are in microseconds, memory is in bytes.
//! Values that were not measured are `null` in JSON and empty in CSV.

use std::time::Duration;

use crate::loadgen::report::{BothServers, Comparison, LoadReport, OfferedLoad};
use crate::loadgen::statistics::{RequestTotal, ServerStatistics};
use crate::loadgen::table::PERCENTILES;
use crate::wire::json::writer;

/// The values that all reports of a run have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heading {
    /// The server's address.
    pub url: String,
    /// The model's name.
    pub model: String,
    /// `HTTP` or `gRPC`.
    pub protocol: &'static str,
}

/// One value.
enum MachineValue {
    Flag(bool),
    Integer(u64),
    None,
    Number(f64),
    Text(String),
}

/// The columns of CSV, which are also the members of JSON except `errors`. Users parse these names: do not change them.
fn fields(heading: &Heading, report: &LoadReport) -> Vec<(String, MachineValue)> {
    let window = &report.window;
    let mut fields: Vec<(String, MachineValue)> = Vec::new();
    let mut add = |name: &str, value: MachineValue| fields.push((name.to_owned(), value));
    add("url", MachineValue::Text(heading.url.clone()));
    add("model", MachineValue::Text(heading.model.clone()));
    add("protocol", MachineValue::Text(heading.protocol.to_owned()));
    let (concurrency, rate) = match report.load {
        OfferedLoad::Concurrency(count) => (MachineValue::Integer(count as u64), MachineValue::None),
        OfferedLoad::Rate(rate) => (MachineValue::None, MachineValue::Number(rate)),
    };
    add("concurrency", concurrency);
    add("request_rate", rate);
    add("batch_size", MachineValue::Integer(report.rows as u64));
    add("windows", MachineValue::Integer(report.windows as u64));
    add("stable", report.is_stable.map_or(MachineValue::None, MachineValue::Flag));
    add("seconds", MachineValue::Number(report.duration.as_secs_f64()));
    add("succeeded", MachineValue::Integer(window.succeeded));
    add("failed", MachineValue::Integer(window.failures.total()));
    add("throughput", MachineValue::Number(report.throughput()));
    add("total_succeeded", MachineValue::Integer(report.totals.succeeded));
    add("total_failed", MachineValue::Integer(report.totals.failures.total()));
    add("never_sent", MachineValue::Integer(report.totals.unsent));
    let times = &window.latency;
    let latency = |time: Duration| if times.count() == 0 { MachineValue::None } else { micros(time) };
    add("latency_mean_us", latency(times.mean()));
    add("latency_deviation_us", latency(times.deviation()));
    add("latency_min_us", latency(times.min()));
    for percentile in PERCENTILES {
        add(&format!("latency_p{percentile}_us"), latency(times.percentile(percentile)));
    }
    add("latency_max_us", latency(times.max()));
    let lag = |time: Duration| if window.lag.count() == 0 { MachineValue::None } else { micros(time) };
    add("send_lag_p99_us", lag(window.lag.percentile(99.0)));
    let server = |total: fn(&ServerStatistics) -> RequestTotal| {
        report.server.as_ref().map_or(MachineValue::None, |server| micros(total(server).mean()))
    };
    let count = |count: fn(&ServerStatistics) -> u64| {
        report.server.as_ref().map_or(MachineValue::None, |server| MachineValue::Integer(count(server)))
    };
    add("server_succeeded", count(|server| server.success.count));
    add("server_failed", count(|server| server.fail.count));
    add("server_inferences", count(|server| server.inference_count));
    add("server_executions", count(|server| server.execution_count));
    add("server_request_us", server(|server| server.success));
    add("server_queue_us", server(|server| server.queue));
    add("server_compute_input_us", server(|server| server.compute_input));
    add("server_compute_infer_us", server(|server| server.compute_infer));
    add("server_compute_output_us", server(|server| server.compute_output));
    let each = |time: Option<Duration>| time.and_then(|time| report.each(time)).map_or(MachineValue::None, micros);
    add("cpu_per_request_us", each(report.usage.map(|usage| usage.cpu())));
    add("cpu_user_per_request_us", each(report.usage.map(|usage| usage.user)));
    add("cpu_system_per_request_us", each(report.usage.map(|usage| usage.system)));
    let ended = window.ended_count().max(1) as f64;
    let usage = |value: fn(&crate::loadgen::usage::Usage) -> u64| report.usage.as_ref().map(value);
    let switches = usage(|usage| usage.switches());
    add(
        "switches_per_request",
        switches.map_or(MachineValue::None, |switches| MachineValue::Number(switches as f64 / ended)),
    );
    add("client_cpu_per_request_us", each(report.client.map(|client| client.cpu())));
    add("rss_bytes", usage(|usage| usage.resident_size).map_or(MachineValue::None, MachineValue::Integer));
    add("rss_max_bytes", usage(|usage| usage.resident_size_max).map_or(MachineValue::None, MachineValue::Integer));
    fields
}

fn micros(time: Duration) -> MachineValue {
    // With three decimals: nanoseconds.
    MachineValue::Number((time.as_nanos() as f64) / 1e3)
}

/// Encodes a report as a JSON object on one line.
pub fn json(heading: &Heading, report: &LoadReport) -> String {
    let mut out = Vec::new();
    write_json(heading, report, &mut out);
    out.push(b'\n');
    String::from_utf8_lossy(&out).into_owned()
}

fn write_json(heading: &Heading, report: &LoadReport, out: &mut Vec<u8>) {
    out.push(b'{');
    for (name, value) in fields(heading, report) {
        writer::string(&name, out);
        out.push(b':');
        match value {
            MachineValue::Flag(flag) => writer::boolean(flag, out),
            MachineValue::Integer(count) => writer::integer(count, out),
            MachineValue::Number(number) if number.is_finite() => writer::float(number, out),
            MachineValue::None | MachineValue::Number(_) => out.extend_from_slice(b"null"),
            MachineValue::Text(text) => writer::string(&text, out),
        }
        out.push(b',');
    }
    out.extend_from_slice(b"\"errors\":[");
    for (index, (kind, count, text)) in report.totals.failures.iter().enumerate() {
        writer::comma(index, out);
        out.extend_from_slice(b"{\"kind\":");
        writer::string(&kind.to_string(), out);
        out.extend_from_slice(b",\"count\":");
        writer::integer(count, out);
        out.extend_from_slice(b",\"text\":");
        writer::string(text, out);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}

/// Encodes a comparison as a JSON object on one line: both reports and the ratios of B to A.
pub fn comparison_json(headings: &BothServers<Heading>, comparison: &Comparison) -> String {
    let mut out = b"{\"a\":".to_vec();
    write_json(&headings.a, &comparison.a, &mut out);
    out.extend_from_slice(b",\"b\":");
    write_json(&headings.b, &comparison.b, &mut out);
    out.extend_from_slice(b",\"ratios\":{");
    for (index, (name, ratio)) in comparison.ratios.iter().enumerate() {
        writer::comma(index, &mut out);
        writer::string(&name.replace(' ', "_"), &mut out);
        for (member, number) in [(":{\"mean\":", ratio.mean), (",\"low\":", ratio.low), (",\"high\":", ratio.high)] {
            out.extend_from_slice(member.as_bytes());
            if number.is_finite() { writer::float(number, &mut out) } else { out.extend_from_slice(b"null") }
        }
        out.extend_from_slice(b",\"rounds\":");
        writer::integer(ratio.rounds, &mut out);
        out.push(b'}');
    }
    out.extend_from_slice(b"}}\n");
    String::from_utf8_lossy(&out).into_owned()
}

/// Encodes reports as CSV (RFC 4180) with a header line. The last column has the failures of the whole load, by kind.
pub fn csv(reports: &[(&Heading, &LoadReport)]) -> String {
    let mut out = String::new();
    for (index, (heading, report)) in reports.iter().enumerate() {
        let fields = fields(heading, report);
        if index == 0 {
            let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
            out += &format!("{},errors\r\n", names.join(","));
        }
        let failures = report.totals.failures.iter().map(|(kind, count, _)| format!("{count} x {kind}"));
        let errors = MachineValue::Text(failures.collect::<Vec<_>>().join("; "));
        let cells: Vec<_> =
            fields.into_iter().map(|(_, value)| value).chain([errors]).map(|value| cell(&value)).collect();
        out += &format!("{}\r\n", cells.join(","));
    }
    out
}

fn cell(value: &MachineValue) -> String {
    match value {
        MachineValue::Flag(flag) => flag.to_string(),
        MachineValue::Integer(count) => count.to_string(),
        MachineValue::None => String::new(),
        MachineValue::Number(number) => number.to_string(),
        MachineValue::Text(text) if text.contains([',', '"', '\r', '\n']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        MachineValue::Text(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::report::tests::sample;

    fn heading() -> Heading {
        Heading { url: "localhost:8000".to_owned(), model: "a,\"b\"".to_owned(), protocol: "HTTP" }
    }

    #[test]
    fn json_reads_back_to_what_was_measured() {
        let text = json(&heading(), &sample(OfferedLoad::Rate(100.0), 1.0));
        assert!(text.ends_with("}\n") && text.lines().count() == 1);
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["model"], "a,\"b\"");
        assert_eq!((&read["request_rate"], &read["concurrency"]), (&100.0.into(), &serde_json::Value::Null));
        assert_eq!((&read["succeeded"], &read["failed"]), (&1000.into(), &4.into()));
        assert_eq!(read["errors"][0]["kind"], "HTTP 503");
        assert_eq!(read["cpu_per_request_us"], 500.0);
        assert_eq!(read["server_queue_us"], 100.0);
        let p50 = read["latency_p50_us"].as_f64().unwrap();
        assert!((p50 - 1500.0).abs() < 2.0, "{p50}");
        assert!(read["latency_p99.99_us"].as_f64().unwrap() <= read["latency_max_us"].as_f64().unwrap());
    }

    #[test]
    fn what_was_not_measured_is_null() {
        let mut report = sample(OfferedLoad::Concurrency(1), 1.0);
        (report.server, report.usage, report.is_stable) = (None, None, None);
        report.window = crate::loadgen::window::LoadWindow::default();
        let read: serde_json::Value = serde_json::from_str(&json(&heading(), &report)).unwrap();
        for name in
            ["server_queue_us", "cpu_per_request_us", "latency_p50_us", "stable", "rss_bytes", "send_lag_p99_us"]
        {
            assert!(read[name].is_null(), "{name}");
        }
    }

    #[test]
    fn csv_has_as_many_cells_in_each_line_as_names() {
        let reports = [sample(OfferedLoad::Concurrency(1), 1.0), sample(OfferedLoad::Concurrency(2), 1.0)];
        let heading = heading();
        let text = csv(&[(&heading, &reports[0]), (&heading, &reports[1])]);
        let lines: Vec<_> = text.split("\r\n").filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 3);
        let names: Vec<_> = lines[0].split(',').collect();
        assert!(lines[1].contains("\"a,\"\"b\"\"\""), "{}", lines[1]);
        let cells: Vec<_> = lines[2].replace("\"a,\"\"b\"\"\"", "m").split(',').map(str::to_owned).collect();
        assert_eq!(cells.len(), names.len());
        let cell = |name: &str| cells[names.iter().position(|have| *have == name).unwrap()].clone();
        assert_eq!(
            (cell("concurrency"), cell("succeeded"), cell("errors")),
            ("2".into(), "1000".into(), "4 x HTTP 503".into())
        );
    }

    #[test]
    fn a_comparison_is_one_object() {
        let rounds = vec![(sample(OfferedLoad::Concurrency(1), 1.0), sample(OfferedLoad::Concurrency(1), 2.0)); 2];
        let text =
            comparison_json(&BothServers { a: heading(), b: heading() }, &Comparison::from_rounds(rounds).unwrap());
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&read["a"]["succeeded"], &read["b"]["windows"]), (&2000.into(), &6.into()));
        assert_eq!(read["ratios"]["latency_p50"]["rounds"], 2);
        let mean = read["ratios"]["latency_mean"]["mean"].as_f64().unwrap();
        assert!((mean - 2.0).abs() < 0.01, "{mean}");
    }
}
