//! The plot of a run as SVG: latency percentiles and throughput over the load, or for a single load, latency over the
//! percentile. Percentiles beyond which few requests lie are left out. Pure.
//! The file needs no script and no font.

use std::fmt::Write;
use std::time::Duration;

use crate::loadgen::report::{LoadReport, OfferedLoad};

const WIDTH: f64 = 840.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 92.0;
const TOP: f64 = 72.0;
const BOTTOM: f64 = 60.0;
/// Pixels between two labels.
const LABEL_GAP: f64 = 15.0;

/// The colors of the first server's percentiles, from light to dark as percentiles rise; [`ORANGES`] of the second's.
const BLUES: [&str; 4] = ["#8db8ea", "#4a90d9", "#1f5fae", "#0b2f66"];
const ORANGES: [&str; 4] = ["#f5b98a", "#ea8a3c", "#c05f12", "#7a3905"];

/// One server's reports.
#[derive(Clone, Copy, Debug)]
pub struct PlottedServer<'a> {
    /// Its name in the legend.
    pub name: &'a str,
    /// Its reports, in the order of their loads.
    pub reports: &'a [LoadReport],
}

/// One line of the plot.
struct Series {
    label: String,
    color: &'static str,
    is_dashed: bool,
    /// Value on the x axis, and latency in microseconds.
    points: Vec<(f64, f64)>,
}

/// One axis: its range, and its ticks with their labels.
struct Axis {
    min: f64,
    max: f64,
    ticks: Vec<(f64, String)>,
    /// True if the range and the ticks are log10 of the values.
    is_log: bool,
}

/// The texts beside the axes.
#[derive(Clone, Copy)]
struct AxisLabels<'a> {
    x: &'a str,
    y: &'a str,
}

/// Draws the plot of one or two servers.
pub fn svg(title: &str, servers: &[PlottedServer<'_>]) -> String {
    let loads = servers.iter().map(|server| server.reports.len()).max().unwrap_or(0);
    let (x_label, x, series) = if loads > 1 { by_load(servers) } else { by_percentile(servers) };
    let y = time_axis(series.iter().flat_map(|series| series.points.iter().map(|(_, micros)| *micros)));
    let subtitle = match servers {
        [one] if loads == 1 => one.reports.first().map_or(String::new(), |report| {
            format!("{} {}, {:.0} inferences/s", report.load.name().to_lowercase(), report.load, report.throughput())
        }),
        [one] => one.name.to_owned(),
        // The hue is the server, the shade is the percentile.
        many => {
            let names = many.iter().zip(["A", "B"]).map(|(server, letter)| format!("{letter}: {}", server.name));
            names.collect::<Vec<_>>().join(" · ")
        }
    };
    let mut out = String::new();
    let height = if loads > 1 { HEIGHT * 2.0 } else { HEIGHT };
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\" fill=\"#374151\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"30\" font-size=\"17\" font-weight=\"600\" fill=\"#111827\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"50\" fill=\"#6b7280\">{}</text>",
        escaped(title),
        escaped(&subtitle)
    );
    draw(&series, &x, &y, AxisLabels { x: &x_label, y: "latency" }, &mut out);
    if loads > 1 {
        let series = throughput(servers, is_geometric(&all_loads(servers)));
        let most = series.iter().flat_map(|series| series.points.iter().map(|(_, rate)| *rate)).fold(0.0, f64::max);
        let y = load_axis(&[0.0, most]);
        let _ = writeln!(out, "<g transform=\"translate(0 {HEIGHT})\">");
        draw(&series, &x, &y, AxisLabels { x: &x_label, y: "throughput, inferences/s" }, &mut out);
        out += "</g>\n";
    }
    out += "</svg>\n";
    out
}

fn draw(series: &[Series], x: &Axis, y: &Axis, labels: AxisLabels<'_>, out: &mut String) {
    draw_axes(x, y, labels, out);
    series.iter().for_each(|series| draw_line(series, x, y, out));
    draw_labels(series, y, out);
}

/// The throughput of each server; `is_log2` as the axis of the loads.
fn throughput(servers: &[PlottedServer<'_>], is_log2: bool) -> Vec<Series> {
    let one = |(server, (letter, colors)): (&PlottedServer<'_>, (&str, [&'static str; 4]))| {
        let load = |report: &LoadReport| if is_log2 { report.load.value().log2() } else { report.load.value() };
        Series {
            label: if servers.len() > 1 { letter.to_owned() } else { "answered".to_owned() },
            color: colors.get(2).copied().unwrap_or("#000000"),
            is_dashed: letter == "B",
            points: server.reports.iter().map(|report| (load(report), report.throughput())).collect(),
        }
    };
    servers.iter().zip([("A", BLUES), ("B", ORANGES)]).map(one).collect()
}

fn all_loads(servers: &[PlottedServer<'_>]) -> Vec<f64> {
    servers.iter().flat_map(|server| server.reports.iter().map(|report| report.load.value())).collect()
}

fn by_load(servers: &[PlottedServer<'_>]) -> (String, Axis, Vec<Series>) {
    // Two percentiles for two servers: eight lines would be unreadable.
    let percentiles: &[(f64, usize)] =
        if servers.len() > 1 { &[(50.0, 1), (99.0, 2)] } else { &[(50.0, 0), (90.0, 1), (99.0, 2), (99.9, 3)] };
    let mut series = Vec::new();
    for (server, (letter, colors)) in servers.iter().zip([("A ", BLUES), ("B ", ORANGES)]) {
        let letter = if servers.len() > 1 { letter } else { "" };
        for (percentile, shade) in percentiles {
            let points = server.reports.iter().filter(|report| report.window.latency.tells(*percentile));
            let point =
                |report: &LoadReport| (report.load.value(), micros(report.window.latency.percentile(*percentile)));
            series.push(Series {
                label: format!("{letter}p{percentile}"),
                color: colors.get(*shade).copied().unwrap_or("#000000"),
                is_dashed: letter == "B ",
                points: points.map(point).collect(),
            });
        }
    }
    let loads = all_loads(servers);
    let first = servers.iter().find_map(|server| server.reports.first());
    let label = match first.map(|report| report.load) {
        Some(OfferedLoad::Rate(_)) => "request rate, requests/s (open loop)",
        _ => "concurrency, requests in flight (closed loop)",
    };
    if is_geometric(&loads) {
        let points = series.iter_mut().flat_map(|series| &mut series.points);
        points.for_each(|(load, _)| *load = load.log2());
        return (label.to_owned(), doubling_axis(&loads), series);
    }
    (label.to_owned(), load_axis(&loads), series)
}

/// Returns true if the loads grow geometrically (1, 2, 4, 8, …): on a linear axis most would crowd
/// at the left.
fn is_geometric(loads: &[f64]) -> bool {
    let most = loads.iter().copied().fold(0.0, f64::max);
    let below = loads.iter().filter(|load| **load <= most / 4.0).count();
    loads.iter().all(|load| *load > 0.0) && below * 2 >= loads.len()
}

/// A logarithmic axis over log2 of the load, with a tick at each load that has room for a label.
fn doubling_axis(loads: &[f64]) -> Axis {
    let mut loads = loads.to_vec();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    let (min, max) = (loads.first().map_or(0.0, |load| load.log2()), loads.last().map_or(1.0, |load| load.log2()));
    let mut ticks: Vec<(f64, String)> = Vec::new();
    for load in loads {
        if ticks.last().is_none_or(|(last, _)| load.log2() - last >= (max - min) / 16.0) {
            ticks.push((load.log2(), thousands(load)));
        }
    }
    Axis { min, max, ticks, is_log: false }
}

fn by_percentile(servers: &[PlottedServer<'_>]) -> (String, Axis, Vec<Series>) {
    // Logarithmic: each further nine (90, 99, 99.9) is one unit to the right.
    let place = |percentile: f64| -(1.0 - percentile / 100.0).log10();
    let mut series = Vec::new();
    for (server, (letter, colors)) in servers.iter().zip([("A", BLUES), ("B", ORANGES)]) {
        let Some(report) = server.reports.first() else { continue };
        let points = (0..=80).map(|step| {
            let at = f64::from(step) / 20.0;
            let percentile = 100.0 * (1.0 - 10.0_f64.powf(-at));
            (at, micros(report.window.latency.percentile(percentile)))
        });
        series.push(Series {
            label: if servers.len() > 1 { letter.to_owned() } else { String::new() },
            color: colors.get(2).copied().unwrap_or("#000000"),
            is_dashed: letter == "B",
            points: points
                .filter(|(at, micros)| *micros > 0.0 && report.window.latency.tells(100.0 * (1.0 - 10.0_f64.powf(-at))))
                .collect(),
        });
    }
    let ticks =
        [0.0, 50.0, 90.0, 99.0, 99.9, 99.99].map(|percentile| (place(percentile), format!("{percentile}%"))).into();
    ("percentile of requests".to_owned(), Axis { min: 0.0, max: 4.0, ticks, is_log: false }, series)
}

/// A linear axis from zero to the largest load, or from the smallest if all loads are far from zero.
fn load_axis(loads: &[f64]) -> Axis {
    let least = loads.iter().copied().fold(f64::INFINITY, f64::min);
    let most = loads.iter().copied().fold(0.0, f64::max);
    let min = if least > 0.5 * most { least } else { 0.0 };
    let (min, max) = if most > min { (min, most) } else { (0.0, most.max(1.0)) };
    let step = nice_step((max - min) / 6.0);
    let first = (min / step).ceil() as i64;
    let last = (max / step + 1e-9).floor() as i64;
    let ticks = (first..=last).map(|count| (count as f64 * step, thousands(count as f64 * step))).collect();
    Axis { min, max, ticks, is_log: false }
}

/// The smallest of 1, 2 or 5 times a power of ten that is at least `rough`.
fn nice_step(rough: f64) -> f64 {
    let power = 10.0_f64.powf(rough.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough).unwrap_or(rough)
}

/// A logarithmic axis over log10 of microseconds: a tail is many times the median.
fn time_axis(micros: impl Iterator<Item = f64>) -> Axis {
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for micros in micros.filter(|micros| *micros > 0.0) {
        (least, most) = (least.min(micros), most.max(micros));
    }
    if most <= 0.0 {
        (least, most) = (1.0, 10.0);
    }
    let (min, max) = ((least * 0.8).log10(), (most * 1.25).log10());
    let factors: &[f64] = if max - min < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let mut ticks = Vec::new();
    for decade in (min.floor() as i32)..=(max.ceil() as i32) {
        for factor in factors {
            let micros = factor * 10.0_f64.powi(decade);
            if (min..=max).contains(&micros.log10()) {
                ticks.push((micros.log10(), time_text(micros)));
            }
        }
    }
    Axis { min, max, ticks, is_log: true }
}

fn time_text(micros: f64) -> String {
    match micros {
        ..1.0 => format!("{micros:.1} µs"),
        ..999.0 => format!("{micros:.0} µs"),
        ..999_000.0 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.0} s", micros / 1e6),
    }
}

fn thousands(number: f64) -> String {
    if number >= 10_000.0 { format!("{}k", number / 1e3) } else { format!("{}", (number * 1e6).round() / 1e6) }
}

fn x_place(axis: &Axis, value: f64) -> f64 {
    LEFT + (value - axis.min) / (axis.max - axis.min) * (WIDTH - LEFT - RIGHT)
}

fn y_place(axis: &Axis, value: f64) -> f64 {
    y_share(axis, if axis.is_log { value.max(1e-3).log10() } else { value })
}

/// The place of a value in the units of the axis.
fn y_share(axis: &Axis, place: f64) -> f64 {
    HEIGHT - BOTTOM - (place - axis.min) / (axis.max - axis.min) * (HEIGHT - TOP - BOTTOM)
}

fn draw_axes(x: &Axis, y: &Axis, labels: AxisLabels<'_>, out: &mut String) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (place, text) in &y.ticks {
        let at = y_share(y, *place);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e5e7eb\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for (place, text) in &x.ticks {
        let at = x_place(x, *place);
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#f3f4f6\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
            bottom + 18.0
        );
    }
    let _ = writeln!(
        out,
        "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#9ca3af\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#6b7280\">{}</text>\n\
         <text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"#6b7280\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 16.0,
        escaped(labels.x),
        (TOP + bottom) / 2.0,
        escaped(labels.y)
    );
}

fn draw_line(series: &Series, x: &Axis, y: &Axis, out: &mut String) {
    let points: Vec<_> =
        series.points.iter().map(|(value, micros)| (x_place(x, *value), y_place(y, *micros))).collect();
    let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let dashes = if series.is_dashed { " stroke-dasharray=\"6 4\"" } else { "" };
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"{dashes}/>",
        path.join(" "),
        series.color
    );
    // Dots mark the measured points, unless the line is dense.
    for (x, y) in points.iter().filter(|_| points.len() <= 40) {
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"/>", series.color);
    }
}

/// Draws the name of each line at its end. Labels that would overlap are moved apart.
fn draw_labels(series: &[Series], y: &Axis, out: &mut String) {
    let mut labels: Vec<(f64, &Series)> = series
        .iter()
        .filter_map(|series| series.points.last().map(|(_, micros)| (y_place(y, *micros) + 4.0, series)))
        .collect();
    labels.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let mut below = f64::INFINITY;
    for (at, _) in &mut labels {
        *at = at.min(below - LABEL_GAP);
        below = *at;
    }
    // Labels that this moved beyond the top are moved back down.
    let mut above = TOP + 4.0 - LABEL_GAP;
    for (at, _) in labels.iter_mut().rev() {
        *at = at.max(above + LABEL_GAP);
        above = *at;
    }
    for (at, series) in labels {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{at:.1}\" fill=\"{}\" font-weight=\"600\">{}</text>",
            WIDTH - RIGHT + 10.0,
            series.color,
            escaped(&series.label)
        );
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::report::tests::sample;

    fn ticks(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// Checks that tags are balanced, and that all points are inside the plot.
    fn check_well_formed(svg: &str) {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1).map(|part| part.split('>').next().unwrap()) {
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "{svg}");
            } else if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().unwrap());
            }
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!svg.contains("NaN") && !svg.contains("\"inf") && !svg.contains(",inf"), "{svg}");
        for points in svg.split("points=\"").skip(1).map(|part| part.split('"').next().unwrap()) {
            for point in points.split(' ').filter(|point| !point.is_empty()) {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y), "{point}");
            }
        }
    }

    #[test]
    fn several_loads_are_drawn_as_percentiles_against_the_load() {
        let reports: Vec<_> =
            [1, 2, 4, 8, 16].map(|count| sample(OfferedLoad::Concurrency(count), 1.0 + count as f64 / 4.0)).into();
        let drawing = svg("m <1> & co", &[PlottedServer { name: "localhost:8000", reports: &reports }]);
        check_well_formed(&drawing);
        assert_eq!(drawing.matches("<polyline").count(), 5, "four percentiles, and the throughput");
        // p99.9 of 1,000 requests is chance.
        assert_eq!(drawing.matches("<circle").count(), 20);
        assert!(drawing.contains(">throughput, inferences/s<") && drawing.contains(">answered<"), "{drawing}");
        for text in ["m &lt;1&gt; &amp; co", ">p50<", ">p99<", "concurrency", ">latency<", ">2 ms<"] {
            assert!(drawing.contains(text), "{text}");
        }
    }

    #[test]
    fn two_servers_and_a_single_load_are_drawn_too() {
        let reports =
            |stretch| vec![sample(OfferedLoad::Rate(100.0), stretch), sample(OfferedLoad::Rate(1000.0), stretch * 3.0)];
        let (a, b) = (reports(1.0), reports(2.0));
        let both = svg("m", &[PlottedServer { name: "one", reports: &a }, PlottedServer { name: "two", reports: &b }]);
        check_well_formed(&both);
        assert!(both.contains("A: one · B: two") && both.contains(">B p99<") && both.contains("dasharray"));
        let single = svg("m", &[PlottedServer { name: "one", reports: &a[..1] }]);
        check_well_formed(&single);
        assert!(single.contains("99.99%") && single.matches("<polyline").count() == 1);
    }

    #[test]
    fn nothing_measured_is_still_a_drawing() {
        let mut empty = sample(OfferedLoad::Concurrency(1), 1.0);
        empty.window = crate::loadgen::window::LoadWindow::default();
        check_well_formed(&svg("m", &[PlottedServer { name: "one", reports: &[empty.clone()] }]));
        check_well_formed(&svg("m", &[PlottedServer { name: "one", reports: &[empty.clone(), empty] }]));
        check_well_formed(&svg("m", &[]));
    }

    #[test]
    fn loads_that_double_are_spread_evenly() {
        let loads = [1.0, 4.0, 16.0, 64.0];
        assert!(is_geometric(&loads) && !is_geometric(&[10.0, 20.0, 30.0, 40.0]) && !is_geometric(&[0.0, 1.0, 100.0]));
        let axis = doubling_axis(&loads);
        assert_eq!(ticks(&axis), ["1", "4", "16", "64"]);
        let places: Vec<_> = loads.iter().map(|load| x_place(&axis, load.log2()).round()).collect();
        assert_eq!(places, [76.0, 300.0, 524.0, 748.0]);
        let many: Vec<f64> = (0..40).map(|step| 1.5_f64.powi(step)).collect();
        assert!(doubling_axis(&many).ticks.len() <= 17);
    }

    #[test]
    fn labels_stay_within_the_drawing_and_apart() {
        let reports: Vec<_> = [1, 2].map(|count| sample(OfferedLoad::Concurrency(count), 1.0)).into();
        let drawing = svg("m", &[PlottedServer { name: "a", reports: &reports }]);
        let mut places: Vec<f64> = drawing
            .lines()
            .filter(|line| line.contains("font-weight=\"600\"") && line.contains(">p"))
            .map(|line| line.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        places.sort_by(f64::total_cmp);
        assert_eq!(places.len(), 3);
        assert!(places[0] >= TOP && places.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_GAP - 0.2), "{places:?}");
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks(&load_axis(&[1.0, 16.0, 64.0])), ["0", "20", "40", "60"]);
        assert_eq!(ticks(&load_axis(&[1000.0, 60_000.0])), ["0", "10k", "20k", "30k", "40k", "50k", "60k"]);
        assert_eq!(ticks(&load_axis(&[900.0, 1000.0])), ["900", "920", "940", "960", "980", "1000"]);
        assert_eq!(ticks(&time_axis([80.0, 900.0].into_iter())), ["100 µs", "200 µs", "500 µs", "1 ms"]);
        assert_eq!(ticks(&time_axis([80.0, 900_000.0].into_iter())), ["100 µs", "1 ms", "10 ms", "100 ms", "1 s"]);
    }
}
