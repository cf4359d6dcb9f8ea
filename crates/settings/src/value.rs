//! The values of flags: read from their text, or refused with a reason.

use std::net::IpAddr;
use std::time::Duration;

use crate::RateResource;
use base::limits;
use flags::{parse, parse_bool};

type Endpoint = Option<(IpAddr, u16)>;

/// Reads `2-5,8`, each core once, in order.
pub(super) fn parse_cores(value: &str) -> Result<Vec<usize>, String> {
    let wrong = || "expected cores, as in 2-5,8".to_owned();
    let mut cores = std::collections::BTreeSet::new();
    for range in value.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let core = |text: &str| text.parse::<usize>().ok().filter(|core| *core < limits::CORES_MAX).ok_or_else(wrong);
        let (first, last) = (core(first)?, core(last)?);
        if first > last {
            return Err(wrong());
        }
        cores.extend(first..=last);
    }
    Ok(cores.into_iter().collect())
}

/// Reads `NAME,SETTING=VALUE` (`command_line_parser.cc`).
pub(super) fn parse_host_policy(value: &str) -> Result<[&str; 3], String> {
    let parts = value.split_once(',').and_then(|(name, setting)| Some((name, setting.split_once('=')?)));
    match parts {
        Some((name, (setting, value))) if !name.is_empty() && !setting.is_empty() => Ok([name, setting, value]),
        _ => Err("option format is '<policy name>,<setting>=<value>'".to_owned()),
    }
}

/// Reads `off`, or a part of one, as parts of a million.
pub(super) fn parse_rate(value: &str) -> Result<u32, String> {
    let rate = if value == "off" { Some(0.0) } else { value.parse::<f64>().ok() };
    let rate = rate.filter(|rate| (0.0..=1.0).contains(rate));
    let rate = rate.ok_or("expected off, or a part of all requests up to 1, as 0.01 for every hundredth")?;
    // A part above zero gives at least one.
    let parts = (rate * 1e6).ceil();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to a million")]
    Ok(parts as u32)
}

/// Reads seconds, of which parts are taken too.
pub(super) fn parse_timeout(value: &str) -> Result<Duration, String> {
    let seconds = value.parse::<f64>().ok().filter(|seconds| (0.001..=1e9).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0.001 to 1e9, as 10 or 0.5".to_owned())
}

/// Reads `NAME:COUNT` or `NAME:COUNT:DEVICE`.
pub(super) fn parse_resource(value: &str) -> Result<RateResource, String> {
    let mut parts = value.split(':');
    let name = parts.next().filter(|name| !name.is_empty());
    let count = parts.next().and_then(|count| count.parse().ok());
    let device = parts.next().map(|device| device.parse().ok());
    match (name, count, device, parts.next()) {
        (Some(name), Some(count), None, None) => Ok(RateResource { name: name.to_owned(), count, device: None }),
        (Some(name), Some(count), Some(Some(device)), None) => {
            Ok(RateResource { name: name.to_owned(), count, device: Some(device) })
        }
        _ => Err("option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'".to_owned()),
    }
}

pub(super) fn set_count<T: std::str::FromStr + Default + PartialEq>(place: &mut T, value: &str) -> Result<(), String> {
    let count = parse(value)?;
    if count == T::default() {
        return Err("must be greater than 0.".to_owned());
    }
    *place = count;
    Ok(())
}

pub(super) fn parse_port(value: &str) -> Result<u16, String> {
    value.parse().map_err(|_| "expected a port from 0 to 65535".to_owned())
}

pub(super) fn parse_address(value: &str) -> Result<IpAddr, String> {
    let name = if value == "localhost" { "127.0.0.1" } else { value };
    name.parse().map_err(|_| "expected an IP address".to_owned())
}

/// Reads the number of times that a load is tried again.
pub(super) fn parse_retries(value: &str) -> Result<usize, String> {
    let count = parse(value)?;
    if count > limits::LOAD_RETRIES_MAX {
        return Err(format!(
            "expected up to {}: each may take as long as --load-timeout-secs",
            limits::LOAD_RETRIES_MAX
        ));
    }
    Ok(count)
}

pub(super) fn set_port(place: &mut Endpoint, value: &str) -> Result<(), String> {
    let port = parse_port(value)?;
    if let Some((_, have)) = place {
        *have = port;
    }
    Ok(())
}

pub(super) fn set_address(place: &mut Endpoint, value: &str) -> Result<(), String> {
    let address = parse_address(value)?;
    if let Some((have, _)) = place {
        *have = address;
    }
    Ok(())
}

pub(super) fn allow(place: &mut Endpoint, value: &str) -> Result<(), String> {
    if !parse_bool(value)? {
        *place = None;
    }
    Ok(())
}
