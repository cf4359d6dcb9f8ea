//! The values of the flags of `deuteron bench`: the parsing of their text, and the errors for
//! invalid ones.

use std::time::Duration;

use crate::flags::parse;
use crate::loadgen::report::OfferedLoad;
use crate::loadgen::target::Encoding;

/// Loads in one run: a mistyped step must not run for a week.
const LOADS_MAX: usize = 1_000;
/// Requests in flight at once; the system's limit on files comes first.
const CONCURRENCY_MAX: usize = 100_000;

/// A name that becomes part of a path.
pub(super) fn path_segment(value: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if value.is_empty() {
        return Err("must not be empty".to_owned());
    }
    // RFC 3986 §2.3: a reserved character would end the segment.
    if value.bytes().all(is_plain) {
        Ok(value.to_owned())
    } else {
        Err("expected letters, digits, -, ., _ or ~".to_owned())
    }
}

pub(super) fn header(value: &str) -> Result<(String, String), String> {
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
        return Err("it frames the request and cannot be set".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

pub(super) fn shape(value: &str) -> Result<(String, Vec<i64>), String> {
    let (name, dimensions) = value.rsplit_once(':').ok_or("expected NAME:D,D")?;
    let dimension = |text: &str| text.parse().ok().filter(|dimension: &i64| *dimension >= 0);
    let shape: Option<Vec<i64>> = dimensions.split(',').map(dimension).collect();
    Ok((name.to_owned(), shape.ok_or("dimensions are whole numbers")?))
}

pub(super) fn encoding(value: &str) -> Result<Encoding, String> {
    match value {
        "binary" => Ok(Encoding::Binary),
        "json" => Ok(Encoding::Json),
        _ => Err("expected binary or json".to_owned()),
    }
}

pub(super) fn processes(value: &str) -> Result<Vec<u32>, String> {
    value.split(',').map(|text| text.parse().map_err(|_| "expected process ids".to_owned())).collect()
}

pub(super) fn positive(value: &str) -> Result<usize, String> {
    let count = parse(value)?;
    if count > 0 { Ok(count) } else { Err("must be greater than 0".to_owned()) }
}

pub(super) fn milliseconds(value: &str) -> Result<Duration, String> {
    positive(value).map(|millis| Duration::from_millis(millis as u64))
}

pub(super) fn percent(value: &str) -> Result<f64, String> {
    let percent = value.parse().ok().filter(|percent: &f64| *percent > 0.0 && percent.is_finite());
    percent.ok_or_else(|| "expected a number greater than 0".to_owned())
}

pub(super) fn rate(value: &str) -> Result<f64, String> {
    percent(value)
}

pub(super) fn concurrency(value: f64) -> Result<OfferedLoad, String> {
    if value.fract() == 0.0 && value <= CONCURRENCY_MAX as f64 {
        Ok(OfferedLoad::Concurrency(value as usize))
    } else {
        Err(format!("expected whole numbers up to {CONCURRENCY_MAX}"))
    }
}

/// `START`, `START:END`, `START:END:STEP` or `START:END:xFACTOR`: all the values, the end included.
pub(super) fn range(value: &str) -> Result<Vec<f64>, String> {
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
