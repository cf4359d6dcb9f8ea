//! The server's statistics of a model (Triton's statistics extension), decoded from JSON or from gRPC messages, and the
//! difference of two readings. Pure.

use std::time::Duration;

use prost::Message;

use crate::wire::json::{Document, JsonValue};
use crate::wire::proto::inference as proto;

/// A number of requests and their total time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTotal {
    /// Number of requests.
    pub count: u64,
    /// Total time in nanoseconds.
    pub nanos: u64,
}

impl RequestTotal {
    /// The mean time of a request; zero without requests.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.nanos.checked_div(self.count).unwrap_or(0))
    }

    const fn since(self, earlier: Self) -> Self {
        Self { count: self.count.saturating_sub(earlier.count), nanos: self.nanos.saturating_sub(earlier.nanos) }
    }

    const fn plus(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), nanos: self.nanos.saturating_add(other.nanos) }
    }
}

/// The server's counters of a model, the sum over the requested versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStatistics {
    /// Rows of successful requests.
    pub inference_count: u64,
    /// Batches that ran.
    pub execution_count: u64,
    /// Requests that succeeded, and their time in the server.
    pub success: RequestTotal,
    /// Requests that failed, and their time in the server.
    pub fail: RequestTotal,
    /// Time in the queue.
    pub queue: RequestTotal,
    /// Time to prepare inputs.
    pub compute_input: RequestTotal,
    /// Time in the engine.
    pub compute_infer: RequestTotal,
    /// Time to prepare outputs.
    pub compute_output: RequestTotal,
}

impl ServerStatistics {
    /// Decodes the statistics of the HTTP protocol. `None` if it is not them.
    pub fn from_json(body: &[u8]) -> Option<Self> {
        let document = Document::parse(body, &[]).ok()?;
        let models = document.root().get("model_stats")?;
        Some(models.elements().map(model_from_json).fold(Self::default(), Self::plus))
    }

    /// Decodes the statistics of the gRPC protocol. `None` if it is not them.
    pub fn from_message(message: &[u8]) -> Option<Self> {
        let response = proto::ModelStatisticsResponse::decode(message).ok()?;
        Some(response.model_stats.iter().map(model_from_message).fold(Self::default(), Self::plus))
    }

    /// The difference to an earlier reading.
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            inference_count: self.inference_count.saturating_sub(earlier.inference_count),
            execution_count: self.execution_count.saturating_sub(earlier.execution_count),
            success: self.success.since(earlier.success),
            fail: self.fail.since(earlier.fail),
            queue: self.queue.since(earlier.queue),
            compute_input: self.compute_input.since(earlier.compute_input),
            compute_infer: self.compute_infer.since(earlier.compute_infer),
            compute_output: self.compute_output.since(earlier.compute_output),
        }
    }

    /// The sum of both.
    pub const fn plus(self, other: Self) -> Self {
        Self {
            inference_count: self.inference_count.saturating_add(other.inference_count),
            execution_count: self.execution_count.saturating_add(other.execution_count),
            success: self.success.plus(other.success),
            fail: self.fail.plus(other.fail),
            queue: self.queue.plus(other.queue),
            compute_input: self.compute_input.plus(other.compute_input),
            compute_infer: self.compute_infer.plus(other.compute_infer),
            compute_output: self.compute_output.plus(other.compute_output),
        }
    }

    /// The mean number of rows in a batch.
    pub fn batch_size(&self) -> f64 {
        if self.execution_count == 0 { 0.0 } else { self.inference_count as f64 / self.execution_count as f64 }
    }
}

fn model_from_json(model: JsonValue<'_, '_>) -> ServerStatistics {
    let number = |value: Option<JsonValue<'_, '_>>| value.and_then(JsonValue::as_u64).unwrap_or(0);
    let durations = model.get("inference_stats");
    let total = |name: &str| {
        let of = durations.and_then(|durations| durations.get(name));
        RequestTotal { count: number(of.and_then(|of| of.get("count"))), nanos: number(of.and_then(|of| of.get("ns"))) }
    };
    ServerStatistics {
        inference_count: number(model.get("inference_count")),
        execution_count: number(model.get("execution_count")),
        success: total("success"),
        fail: total("fail"),
        queue: total("queue"),
        compute_input: total("compute_input"),
        compute_infer: total("compute_infer"),
        compute_output: total("compute_output"),
    }
}

fn model_from_message(model: &proto::ModelStatistics) -> ServerStatistics {
    let total = |of: Option<proto::StatisticDuration>| {
        of.map_or_else(RequestTotal::default, |of| RequestTotal { count: of.count, nanos: of.ns })
    };
    let durations = model.inference_stats.unwrap_or_default();
    ServerStatistics {
        inference_count: model.inference_count,
        execution_count: model.execution_count,
        success: total(durations.success),
        fail: total(durations.fail),
        queue: total(durations.queue),
        compute_input: total(durations.compute_input),
        compute_infer: total(durations.compute_infer),
        compute_output: total(durations.compute_output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"model_stats":[
        {"name":"m","version":"1","last_inference":3,"inference_count":8,"execution_count":2,"inference_stats":{
          "success":{"count":4,"ns":4000},"fail":{"count":1,"ns":7},"queue":{"count":4,"ns":400},
          "compute_input":{"count":4,"ns":40},"compute_infer":{"count":4,"ns":2000},
          "compute_output":{"count":4,"ns":80}}},
        {"name":"m","version":"2","inference_count":1,"execution_count":1,
         "inference_stats":{"success":{"count":1,"ns":10}}}]}"#;

    #[test]
    fn versions_are_added_up_and_both_protocols_say_the_same() {
        let rest = ServerStatistics::from_json(TEXT.as_bytes()).unwrap();
        let total = |count, nanos| RequestTotal { count, nanos };
        let want = ServerStatistics {
            inference_count: 9,
            execution_count: 3,
            success: total(5, 4010),
            fail: total(1, 7),
            queue: total(4, 400),
            compute_input: total(4, 40),
            compute_infer: total(4, 2000),
            compute_output: total(4, 80),
        };
        assert_eq!(rest, want);
        let duration = |total: RequestTotal| Some(proto::StatisticDuration { count: total.count, ns: total.nanos });
        let model = proto::ModelStatistics {
            inference_count: want.inference_count,
            execution_count: want.execution_count,
            inference_stats: Some(proto::InferStatistics {
                success: duration(want.success),
                fail: duration(want.fail),
                queue: duration(want.queue),
                compute_input: duration(want.compute_input),
                compute_infer: duration(want.compute_infer),
                compute_output: duration(want.compute_output),
                ..Default::default()
            }),
            ..Default::default()
        };
        let message = proto::ModelStatisticsResponse { model_stats: vec![model] }.encode_to_vec();
        assert_eq!(ServerStatistics::from_message(&message), Some(want));
    }

    #[test]
    fn the_difference_of_two_readings_is_what_happened_between() {
        let later = ServerStatistics::from_json(TEXT.as_bytes()).unwrap();
        let mut earlier = later;
        earlier.queue = RequestTotal { count: 2, nanos: 100 };
        earlier.inference_count = 1;
        let between = later.since(&earlier);
        assert_eq!((between.queue.mean(), between.inference_count), (Duration::from_nanos(150), 8));
        assert_eq!((between.success, between.success.mean()), (RequestTotal::default(), Duration::ZERO));
        assert!((later.batch_size() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_statistics_is_none() {
        for text in ["", "{}", r#"{"error":"not found"}"#] {
            assert_eq!(ServerStatistics::from_json(text.as_bytes()), None, "{text}");
        }
        assert_eq!(ServerStatistics::from_message(b"\xff"), None);
    }
}
