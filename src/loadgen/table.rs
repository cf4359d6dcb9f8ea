//! Reports for people: a block for each load, and a table when there are several. Pure.

use std::fmt::Write;
use std::time::Duration;

use crate::loadgen::report::{BothServers, Comparison, LoadReport, OfferedLoad};
use crate::loadgen::statistics::ServerStatistics;
use crate::loadgen::usage::Usage;
use crate::loadgen::window::LoadWindow;

/// The percentiles of a report; the text has those that enough requests tell.
pub const PERCENTILES: [f64; 6] = [PERCENTILE_LOWEST, 90.0, 95.0, 99.0, 99.9, 99.99];
const PERCENTILE_LOWEST: f64 = 50.0;

/// Formats one report in full.
pub fn block(title: &str, report: &LoadReport) -> String {
    let mut out = format!("{title}{}: {}\n", report.load.name(), report.load);
    let window = &report.window;
    let seconds = report.duration.as_secs_f64();
    let stable = match report.is_stable {
        Some(false) => ", NOT STABLE",
        Some(true) => ", stable",
        None => "",
    };
    let windows = if report.windows == 1 { "window" } else { "windows" };
    let _ = writeln!(out, "  {} {windows}, {seconds:.1} s{stable}", report.windows);
    let _ = writeln!(
        out,
        "  Throughput    {:.1} infer/s    {} requests ok, {} failed",
        report.throughput(),
        window.succeeded,
        window.failures.total()
    );
    let outside = report.totals.failures.total().saturating_sub(window.failures.total());
    if outside > 0 {
        let _ = writeln!(out, "    and {outside} failed outside of these windows; of all");
    }
    for (kind, count, text) in report.totals.failures.iter() {
        let text = if text.is_empty() { String::new() } else { format!(": {text}") };
        let _ = writeln!(out, "    {count} x {kind}{text}");
    }
    if window.latency.count() > 0 {
        out += &latency(window);
    }
    if matches!(report.load, OfferedLoad::Rate(_)) && window.lag.count() > 0 {
        let (p99, max) = (window.lag.percentile(99.0), window.lag.max());
        let _ = writeln!(out, "  Send lag      p99 {}    max {}", format_time(p99), format_time(max));
    }
    if report.totals.unsent > 0 {
        let _ = writeln!(out, "  Never sent    {} requests that were due when the load ended", report.totals.unsent);
    }
    if let Some(server) = &report.server {
        out += &server_line(server);
    }
    if let (Some(usage), Some(cpu)) = (&report.usage, report.cpu_per_request()) {
        let each = |time| report.each(time).unwrap_or_default();
        let switches = usage.switches() as f64 / window.ended_count() as f64;
        let _ = writeln!(
            out,
            "  Process       CPU {} per request (user {}, system {})    {switches:.2} context switches    RSS {:.1} MiB",
            format_time(cpu),
            format_time(each(usage.user)),
            format_time(each(usage.system)),
            usage.resident_size as f64 / f64::from(1 << 20)
        );
    }
    if let Some(client) = &report.client {
        out += &client_line(report, client);
    }
    out
}

/// The line on this program's own CPU time, with a warning when it is so busy that it may be the limit.
fn client_line(report: &LoadReport, client: &Usage) -> String {
    let cores = client.cpu().as_secs_f64() / report.duration.as_secs_f64().max(1e-9);
    let each = format_time(report.each(client.cpu()).unwrap_or_default());
    let is_spinning = matches!(report.load, OfferedLoad::Rate(_));
    let warning = if cores >= CLIENT_CORES_MAX && !is_spinning { "    BUSY: it may be the limit" } else { "" };
    format!("  This client   CPU {each} per request, {cores:.2} of a core{warning}\n")
}

/// Cores in use from which the client counts as busy. Not applied to an open loop, which spins and is always busy.
const CLIENT_CORES_MAX: f64 = 0.95;

fn latency(window: &LoadWindow) -> String {
    let times = &window.latency;
    let mut out = String::from("  Latency     ");
    for percentile in PERCENTILES.into_iter().filter(|percentile| times.tells(*percentile)) {
        let _ = write!(out, "  p{percentile} {}", format_time(times.percentile(percentile)));
    }
    let (mean, deviation) = (format_time(times.mean()), format_time(times.deviation()));
    let (min, max) = (format_time(times.min()), format_time(times.max()));
    if times.tells(PERCENTILE_LOWEST) {
        out += "\n              ";
    }
    let _ = writeln!(out, "  mean {mean} ± {deviation}    min {min}    max {max}");
    out
}

/// The line on the server's own times, per successful request.
fn server_line(server: &ServerStatistics) -> String {
    format!(
        "  Server        {} (queue {}, compute input {}, infer {}, output {})    {} requests    {:.1} rows a batch\n",
        format_time(server.success.mean()),
        format_time(server.queue.mean()),
        format_time(server.compute_input.mean()),
        format_time(server.compute_infer.mean()),
        format_time(server.compute_output.mean()),
        server.success.count,
        server.batch_size()
    )
}

/// Formats all reports as a table, a line each.
pub fn summary(reports: &[LoadReport]) -> String {
    let has_usage = reports.iter().any(|report| report.usage.is_some());
    let name = reports.first().map_or("", |report| report.load.name());
    let mut out = format!(
        "{name:>12} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}",
        "infer/s", "p50", "p90", "p99", "p99.9", "mean", "failed"
    );
    out += if has_usage { "   CPU/req\n" } else { "\n" };
    for report in reports {
        let times = &report.window.latency;
        let _ = write!(out, "{:>12} {:>12.1}", report.load.to_string(), report.throughput());
        for percentile in [50.0, 90.0, 99.0, 99.9] {
            let time = if times.tells(percentile) { format_time(times.percentile(percentile)) } else { "-".to_owned() };
            let _ = write!(out, " {time:>9}");
        }
        let _ = write!(out, " {:>9} {:>8}", format_time(times.mean()), report.window.failures.total());
        if has_usage {
            let _ = write!(out, " {:>9}", report.cpu_per_request().map_or("-".to_owned(), format_time));
        }
        out += if report.is_stable == Some(false) { "  not stable\n" } else { "\n" };
    }
    out
}

/// Formats a comparison, the servers side by side.
pub fn comparison(names: &BothServers<String>, comparison: &Comparison) -> String {
    let (a, b) = (&comparison.a, &comparison.b);
    let rounds = comparison.ratios.iter().map(|(_, ratio)| ratio.rounds).max().unwrap_or(0);
    let mut out = format!("{}: {}\n  A  {}\n  B  {}\n", a.load.name(), a.load, names.a, names.b);
    let _ = writeln!(out, "  {:<18} {:>12} {:>12}   B / A  95 % interval", "", "A", "B");
    let percentile = |name: &str| name.strip_prefix("latency p").and_then(|number| number.parse::<f64>().ok());
    let is_told = |name: &str| {
        percentile(name).is_none_or(|percentile| [a, b].iter().all(|report| report.window.latency.tells(percentile)))
    };
    for (name, ratio) in comparison.ratios.iter().filter(|(name, _)| is_told(name)) {
        let figure = |report: &LoadReport| match name.as_str() {
            "throughput" => format!("{:.1}/s", report.throughput()),
            "latency mean" => format_time(report.window.latency.mean()),
            "CPU per request" => report.cpu_per_request().map_or("-".to_owned(), format_time),
            name => format_time(report.window.latency.percentile(percentile(name).unwrap_or(50.0))),
        };
        let verdict = if ratio.is_significant() { "" } else { "  no difference shown" };
        let (low, high) = (ratio.low, ratio.high);
        let _ = writeln!(
            out,
            "  {name:<18} {:>12} {:>12}  {:>6.3}  {low:.3} to {high:.3}{verdict}",
            figure(a),
            figure(b),
            ratio.mean
        );
    }
    let failed = |report: &LoadReport| report.window.failures.total();
    let _ = writeln!(out, "  {:<18} {:>12} {:>12}", "failed", failed(a), failed(b));
    for (name, report) in [("A", a), ("B", b)] {
        for (kind, count, text) in report.totals.failures.iter() {
            let _ = writeln!(out, "    {name}: {count} x {kind}: {text}");
        }
    }
    let _ =
        writeln!(out, "  {rounds} rounds A B B A; intervals by a paired t test over the logarithms of their ratios");
    out
}

/// Formats a time in microseconds, milliseconds or seconds, by its size.
pub fn format_time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        ..99.95 => format!("{micros:.1}us"),
        ..9_999.5 => format!("{micros:.0}us"),
        ..99_995.0 => format!("{:.2}ms", micros / 1e3),
        ..9_999_500.0 => format!("{:.0}ms", micros / 1e3),
        _ => format!("{:.1}s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::loadgen::report::tests::sample;

    #[test]
    fn a_block_tells_all_that_was_measured() {
        expect![[r#"
            Concurrency: 4
              3 windows, 2.0 s, stable
              Throughput    1000.0 infer/s    1000 requests ok, 4 failed
                4 x HTTP 503: the queue is full
              Latency       p50 1499us  p90 1900us  p95 1950us  p99 1990us
                            mean 1500us ± 289us    min 1000us    max 2000us
              Server        900us (queue 100us, compute input 5.0us, infer 700us, output 7.0us)    1000 requests    4.0 rows a batch
              Process       CPU 500us per request (user 199us, system 301us)    2.10 context switches    RSS 12.0 MiB
              This client   CPU 1902us per request, 0.96 of a core    BUSY: it may be the limit
        "#]].assert_eq(&block("", &sample(OfferedLoad::Concurrency(4), 1.0)));
        let mut open = sample(OfferedLoad::Rate(1000.5), 1.0);
        open.is_stable = Some(false);
        open.server = None;
        open.usage = None;
        open.client = None;
        open.totals.unsent = 7;
        expect![[r#"
            http://b  Request rate: 1000.5
              3 windows, 2.0 s, NOT STABLE
              Throughput    1000.0 infer/s    1000 requests ok, 4 failed
                4 x HTTP 503: the queue is full
              Latency       p50 1499us  p90 1900us  p95 1950us  p99 1990us
                            mean 1500us ± 289us    min 1000us    max 2000us
              Send lag      p99 9.9us    max 10.0us
              Never sent    7 requests that were due when the load ended
        "#]]
        .assert_eq(&block("http://b  ", &open));
    }

    #[test]
    fn a_summary_has_a_line_for_each_load() {
        let reports: Vec<_> =
            [(1, 1.0), (16, 9.0)].map(|(count, stretch)| sample(OfferedLoad::Concurrency(count), stretch)).into();
        // A first line at the margin keeps the blanks of those that follow.
        expect![[r#"
            -
             Concurrency      infer/s       p50       p90       p99     p99.9      mean   failed   CPU/req
                       1       1000.0    1499us    1900us    1990us         -    1500us        4     500us
                      16       1000.0   13.49ms   17.10ms   17.91ms         -   13.50ms        4     500us
        "#]]
        .assert_eq(&format!("-\n{}", summary(&reports)));
    }

    #[test]
    fn a_comparison_tells_the_ratios_and_what_they_are_worth() {
        let round = |b| (sample(OfferedLoad::Concurrency(4), 1.0), sample(OfferedLoad::Concurrency(4), b));
        let names = BothServers { a: "http://a".to_owned(), b: "http://b".to_owned() };
        let compared = Comparison::from_rounds(vec![round(1.9), round(2.0), round(2.1)]).unwrap();
        expect![[r#"
            Concurrency: 4
              A  http://a
              B  http://b
                                            A            B   B / A  95 % interval
              throughput             1000.0/s     1000.0/s   1.000  1.000 to 1.000  no difference shown
              latency mean             1500us       2999us   1.998  1.765 to 2.263
              latency p50              1499us       2994us   1.999  1.764 to 2.264
              latency p90              1900us       3793us   1.998  1.764 to 2.264
              latency p99              1990us       4135us   1.998  1.765 to 2.262
              CPU per request           500us        500us   1.000  1.000 to 1.000  no difference shown
              failed                       12           12
                A: 12 x HTTP 503: the queue is full
                B: 12 x HTTP 503: the queue is full
              3 rounds A B B A; intervals by a paired t test over the logarithms of their ratios
        "#]]
        .assert_eq(&comparison(&names, &compared));
    }

    #[test]
    fn times_have_a_unit_that_suits_them() {
        let got: Vec<_> = [0, 999, 99_940, 123_456, 9_999_400, 12_345_678, 123_456_789, 12_345_678_901]
            .map(|nanos| format_time(Duration::from_nanos(nanos)))
            .into();
        assert_eq!(got, ["0.0us", "1.0us", "99.9us", "123us", "9999us", "12.35ms", "123ms", "12.3s"]);
    }
}
