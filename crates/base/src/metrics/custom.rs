//! The metrics that models create, in the text format.

use std::fmt::Write;

use crate::metrics::{head, label};

/// One family of models, as `/metrics` shows it.
#[derive(Clone, Debug, Default)]
pub struct CustomFamily<'a> {
    /// Its name.
    pub name: &'a str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'a str,
    /// Its description.
    pub help: &'a str,
    /// Its series.
    pub series: Vec<CustomSeries<'a>>,
}

/// One series of a family.
#[derive(Clone, Debug, Default)]
pub struct CustomSeries<'a> {
    /// Names and values.
    pub labels: &'a [(String, String)],
    /// Its value; the sum of a histogram.
    pub value: f64,
    /// The buckets of a histogram: the upper bound, infinite for the last, and the values in it alone. Empty for
    /// others.
    pub buckets: Vec<(f64, u64)>,
}

/// Appends the families of all models.
pub fn encode_custom(out: &mut String, families: &[CustomFamily<'_>]) {
    for CustomFamily { name, kind, help, series } in families {
        head(out, name, kind, &help.replace('\\', "\\\\").replace('\n', "\\n"));
        for series in series {
            encode_series(out, name, series);
        }
    }
}

fn encode_series(out: &mut String, name: &str, series: &CustomSeries<'_>) {
    let labels: Vec<_> = series.labels.iter().map(|(name, value)| format!("{name}=\"{}\"", label(value))).collect();
    let labels = labels.join(",");
    let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let value = number(series.value);
    if series.buckets.is_empty() {
        let _ = writeln!(out, "{name}{braced} {value}");
        return;
    }
    let comma = if labels.is_empty() { "" } else { "," };
    let mut total = 0;
    for (bound, count) in &series.buckets {
        total += count;
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{}\"}} {total}", number(*bound));
    }
    let _ = writeln!(out, "{name}_sum{braced} {value}\n{name}_count{braced} {total}");
}

/// A number of the text format, which spells infinity in its own way.
fn number(value: f64) -> String {
    if value.is_infinite() { if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_one_head_and_escape_what_models_say() {
        let labels = [("a".to_owned(), "x\"y\\z\nw".to_owned()), ("b".to_owned(), String::new())];
        let counter = CustomFamily {
            name: "requests_total",
            kind: "counter",
            help: "back\\slash and\nline",
            series: vec![
                CustomSeries { labels: &labels, value: 1.5, ..CustomSeries::default() },
                CustomSeries { value: 1e300, ..CustomSeries::default() },
            ],
        };
        let buckets = vec![(0.1, 2), (1.0, 0), (f64::INFINITY, 1)];
        let histogram = CustomFamily {
            name: "h",
            kind: "histogram",
            help: "H",
            series: vec![
                CustomSeries { labels: &labels[1..], value: f64::NAN, buckets: buckets.clone() },
                CustomSeries { labels: &[], value: f64::NEG_INFINITY, buckets },
            ],
        };
        let mut out = String::new();
        encode_custom(&mut out, &[counter, histogram]);
        let large = 1e300.to_string();
        let want = format!(
            "# HELP requests_total back\\\\slash and\\nline\n# TYPE requests_total counter\n\
             requests_total{{a=\"x\\\"y\\\\z\\nw\",b=\"\"}} 1.5\nrequests_total {large}\n\
             # HELP h H\n# TYPE h histogram\n\
             h_bucket{{b=\"\",le=\"0.1\"}} 2\nh_bucket{{b=\"\",le=\"1\"}} 2\nh_bucket{{b=\"\",le=\"+Inf\"}} 3\n\
             h_sum{{b=\"\"}} NaN\nh_count{{b=\"\"}} 3\n\
             h_bucket{{le=\"0.1\"}} 2\nh_bucket{{le=\"1\"}} 2\nh_bucket{{le=\"+Inf\"}} 3\nh_sum -Inf\nh_count 3\n"
        );
        assert_eq!(out, want);
    }
}
