//! The metrics in OpenMetrics 1.0 (`application/openmetrics-text`), rewritten from the plain format. Samples keep their
//! names: a counter without `_total` at its end, as Triton's are, is of an unknown type there, since OpenMetrics would have
//! its samples named otherwise. Pure.

use std::fmt::Write;

/// The units that a family may have at the end of its name.
const UNITS: [&str; 4] = ["bytes", "joules", "ratio", "seconds"];

/// Rewrites a page of the plain format.
pub fn to_open_metrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len().saturating_add(text.len() / 8));
    let mut help = None;
    let mut has_bounds = false;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            has_bounds = matches!(kind, "histogram" | "summary");
            write_head(name, kind, help.take(), &mut out);
        } else if has_bounds {
            write_bounded(line, &mut out);
        } else if !line.is_empty() && !line.starts_with('#') {
            let _ = writeln!(out, "{line}");
        }
    }
    out.push_str("# EOF\n");
    out
}

fn write_head(name: &str, kind: &str, help: Option<&str>, out: &mut String) {
    let (family, kind) = match (kind, name.strip_suffix("_total")) {
        ("counter", Some(family)) => (family, "counter"),
        ("counter" | "untyped", _) => (name, "unknown"),
        _ => (name, kind),
    };
    let _ = writeln!(out, "# TYPE {family} {kind}");
    if let Some(unit) = UNITS.iter().find(|unit| family.strip_suffix(**unit).is_some_and(|rest| rest.ends_with('_'))) {
        let _ = writeln!(out, "# UNIT {family} {unit}");
    }
    if let Some(help) = help {
        let _ = writeln!(out, "# HELP {family} {}", help.replace('"', "\\\""));
    }
}

/// Writes a sample whose label `le` or `quantile` is a number in canonical form: with a point.
fn write_bounded(line: &str, out: &mut String) {
    // Quotation marks within other labels are escaped, so these texts are in none.
    let bound = ["le=\"", "quantile=\""].iter().find_map(|label| {
        let (before, rest) = line.split_once(label)?;
        let (value, after) = rest.split_once('"')?;
        (before.ends_with(['{', ',']) && value.bytes().all(|byte| byte.is_ascii_digit()))
            .then_some((before, *label, value, after))
    });
    let _ = match bound {
        Some((before, label, value, after)) => writeln!(out, "{before}{label}{value}.0\"{after}"),
        None => writeln!(out, "{line}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_and_heads_bounds_and_the_end_are_those_of_the_format() {
        let text = "# HELP nv_inference_request_success Number of \"good\" requests\n\
                    # TYPE nv_inference_request_success counter\n\
                    nv_inference_request_success{model=\"m\",version=\"1\"} 3\n\
                    # HELP deuteron_x_bytes_total Bytes\n# TYPE deuteron_x_bytes_total counter\n\
                    deuteron_x_bytes_total 7\n\
                    # HELP h_seconds H\n# TYPE h_seconds histogram\n\
                    h_seconds_bucket{model=\"a,le=\\\"1\\\"\",le=\"10\"} 1\nh_seconds_bucket{le=\"+Inf\"} 1\n\
                    h_seconds_sum{} 2.5\nh_seconds_count{} 1\n\
                    # HELP s S\n# TYPE s summary\ns{quantile=\"0.5\"} 1\n# TYPE g untyped\ng{le=\"1\"} 1\n";
        let want = "# TYPE nv_inference_request_success unknown\n\
                    # HELP nv_inference_request_success Number of \\\"good\\\" requests\n\
                    nv_inference_request_success{model=\"m\",version=\"1\"} 3\n\
                    # TYPE deuteron_x_bytes counter\n# UNIT deuteron_x_bytes bytes\n# HELP deuteron_x_bytes Bytes\n\
                    deuteron_x_bytes_total 7\n\
                    # TYPE h_seconds histogram\n# UNIT h_seconds seconds\n# HELP h_seconds H\n\
                    h_seconds_bucket{model=\"a,le=\\\"1\\\"\",le=\"10.0\"} 1\nh_seconds_bucket{le=\"+Inf\"} 1\n\
                    h_seconds_sum{} 2.5\nh_seconds_count{} 1\n\
                    # TYPE s summary\n# HELP s S\ns{quantile=\"0.5\"} 1\n# TYPE g unknown\ng{le=\"1\"} 1\n# EOF\n";
        assert_eq!(to_open_metrics(text), want);
    }
}
