//! `/metrics` as numbers.

use std::net::SocketAddr;

use super::http;

/// The value of `name{labels}`.
pub fn metric(address: SocketAddr, name: &str) -> u64 {
    value(&read(address), name).parse().expect("a whole number")
}

/// The value of `name{labels}`, in seconds.
pub fn seconds(address: SocketAddr, name: &str) -> f64 {
    value(&read(address), name).parse().expect("a number of seconds")
}

fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name} is not in\n{text}"))
}

/// Batches of a model that left its queue: the last of them may still run.
pub fn batches_left(address: SocketAddr, model: &str) -> u64 {
    let (text, start) = (read(address), format!("deuteron_batches_total{{model=\"{model}\","));
    let lines = text.lines().filter(|line| line.starts_with(&start));
    lines.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).expect("a whole number")).sum()
}

fn read(address: SocketAddr) -> String {
    let mut answer = http::get(address, "/metrics");
    while answer.is_err() {
        // If connections are few, the previous scrape may still hold one.
        answer = http::get(address, "/metrics");
    }
    String::from_utf8(answer.expect("it was asked until it came").body).expect("metrics are text")
}
