//! Load reports for balancers (ORCA, `xds.data.orca.v3.OrcaLoadReport`), for REST and gRPC. The figures are looked at by
//! a timer; this only writes them down.

use std::fmt::Write;

use prost::Message;

use wire::base64;

/// The header field, or gRPC metadata, with which a client asks for the load: `text` or `json`.
pub const ASK: &str = "endpoint-load-metrics-format";
/// The header field of the answer.
pub const FIELD: &str = "Endpoint-Load-Metrics";
/// The trailer of a gRPC answer: an encoded `OrcaLoadReport` in base64.
pub const TRAILER: &str = "endpoint-load-metrics-bin";

/// The form of a report in a header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFormat {
    /// As JSON.
    Json,
    /// As pairs.
    Text,
}

impl LoadFormat {
    /// The format that a value of [`ASK`] names; `None` if it names no format.
    pub fn of_value(value: &[u8]) -> Option<Self> {
        match value {
            _ if value.eq_ignore_ascii_case(b"json") => Some(Self::Json),
            _ if value.eq_ignore_ascii_case(b"text") => Some(Self::Text),
            _ => None,
        }
    }
}

/// The load of this server, as shares of its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EndpointLoad {
    /// The load of the busiest instance group.
    pub instances: f64,
    /// The share of the machine's memory in use; `None` if it is not measured.
    pub memory: Option<f64>,
    /// Inference requests that came in a second.
    pub requests_per_second: f64,
    /// The fill of the fullest queue.
    pub queue: f64,
}

/// `xds.data.orca.v3.OrcaLoadReport`, the fields that are sent.
#[derive(Clone, PartialEq, Message)]
struct OrcaLoadReport {
    #[prost(double, tag = "1")]
    cpu_utilization: f64,
    #[prost(double, tag = "2")]
    mem_utilization: f64,
    #[prost(double, tag = "6")]
    rps_fractional: f64,
    #[prost(btree_map = "string, double", tag = "8")]
    named_metrics: std::collections::BTreeMap<String, f64>,
}

/// The name of [`EndpointLoad::queue`].
const QUEUE: &str = "queue";

impl EndpointLoad {
    /// The value of [`FIELD`].
    pub fn text(&self, format: LoadFormat) -> String {
        let Self { instances, memory, requests_per_second, queue } = self;
        let mut text = String::with_capacity(128);
        let _ = match format {
            LoadFormat::Json => write!(text, "JSON {{\"cpu_utilization\":{instances}"),
            LoadFormat::Text => write!(text, "TEXT cpu_utilization={instances}"),
        };
        if let Some(memory) = memory {
            let _ = match format {
                LoadFormat::Json => write!(text, ",\"mem_utilization\":{memory}"),
                LoadFormat::Text => write!(text, ",mem_utilization={memory}"),
            };
        }
        let _ = match format {
            LoadFormat::Json => {
                write!(text, ",\"rps_fractional\":{requests_per_second},\"named_metrics\":{{\"{QUEUE}\":{queue}}}}}")
            }
            LoadFormat::Text => write!(text, ",rps_fractional={requests_per_second},named_metrics.{QUEUE}={queue}"),
        };
        text
    }

    /// The value of [`TRAILER`].
    pub fn base64(&self) -> String {
        let report = OrcaLoadReport {
            cpu_utilization: self.instances,
            mem_utilization: self.memory.unwrap_or(0.0),
            rps_fractional: self.requests_per_second,
            named_metrics: [(QUEUE.to_owned(), self.queue)].into(),
        };
        // gRPC over HTTP/2, "Binary-Header": without padding.
        base64::encode(&report.encode_to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: EndpointLoad =
        EndpointLoad { instances: 0.5, memory: Some(0.25), requests_per_second: 12.5, queue: 0.125 };

    #[test]
    fn reports_are_written_as_envoy_reads_them() {
        let text = "TEXT cpu_utilization=0.5,mem_utilization=0.25,rps_fractional=12.5,named_metrics.queue=0.125";
        assert_eq!(REPORT.text(LoadFormat::Text), text);
        let json = REPORT.text(LoadFormat::Json);
        let value: serde_json::Value = serde_json::from_str(json.strip_prefix("JSON ").unwrap()).unwrap();
        let want = serde_json::json!({"cpu_utilization": 0.5, "mem_utilization": 0.25, "rps_fractional": 12.5,
            "named_metrics": {"queue": 0.125}});
        assert_eq!(value, want);
        let unknown = EndpointLoad { memory: None, ..EndpointLoad::default() };
        assert_eq!(unknown.text(LoadFormat::Text), "TEXT cpu_utilization=0,rps_fractional=0,named_metrics.queue=0");
    }

    #[test]
    fn the_binary_report_is_the_message_of_the_proto() {
        // Tags: 1 and 2 and 6 as fixed64, 8 as a map entry of a string and a fixed64.
        let want = [
            &b"\x09\0\0\0\0\0\0\xe0\x3f\x11\0\0\0\0\0\0\xd0\x3f\x31\0\0\0\0\0\0\x29\x40"[..],
            &b"\x42\x10\x0a\x05queue\x11\0\0\0\0\0\0\xc0\x3f"[..],
        ];
        assert_eq!(base64::decode(&REPORT.base64()), Some(want.concat()));
    }

    #[test]
    fn formats_are_asked_for_by_name() {
        for (value, want) in [("text", Some(LoadFormat::Text)), ("JSON", Some(LoadFormat::Json)), ("bin", None)] {
            assert_eq!(LoadFormat::of_value(value.as_bytes()), want, "{value}");
        }
    }
}
