//! The response of `ModelStatistics`, the statistics extension, with every field that Triton's `grpc_server.cc` sets,
//! zeros included.

use base::metrics::{BatchFigures, DurationTotal, ModelStatistics, ResponseFigures};
use wire::proto::inference as proto;

/// Converts the statistics of model versions to a response message.
#[inline]
pub fn response(all: Vec<ModelStatistics>) -> proto::ModelStatisticsResponse {
    proto::ModelStatisticsResponse { model_stats: all.into_iter().map(model).collect() }
}

fn model(statistics: ModelStatistics) -> proto::ModelStatistics {
    let [success, fail, queue, compute_input, compute_infer, compute_output, cache_hit, cache_miss] =
        statistics.inference.by_name().map(|(_, total)| duration(total));
    proto::ModelStatistics {
        name: statistics.name,
        version: statistics.version.to_string(),
        last_inference: statistics.last_inference,
        inference_count: statistics.inference_count,
        execution_count: statistics.execution_count,
        inference_stats: Some(proto::InferStatistics {
            success,
            fail,
            queue,
            compute_input,
            compute_infer,
            compute_output,
            cache_hit,
            cache_miss,
        }),
        batch_stats: statistics.batches.iter().map(batch).collect(),
        response_stats: statistics
            .responses
            .iter()
            .map(|figures| (figures.index.to_string(), responses(figures)))
            .collect(),
        // `memory_usage` stays empty: no engine here reports it.
        ..Default::default()
    }
}

fn responses(figures: &ResponseFigures) -> proto::InferResponseStatistics {
    let [compute_infer, compute_output, success, fail, empty_response, cancel] =
        figures.by_name().map(|(_, total)| duration(total));
    proto::InferResponseStatistics { compute_infer, compute_output, success, fail, empty_response, cancel }
}

fn batch(figures: &BatchFigures) -> proto::InferBatchStatistics {
    let [compute_input, compute_infer, compute_output] = figures.by_name().map(|(_, total)| duration(total));
    proto::InferBatchStatistics { batch_size: figures.rows, compute_input, compute_infer, compute_output }
}

#[expect(clippy::unnecessary_wraps, reason = "message fields are optional, and all are set")]
const fn duration(total: DurationTotal) -> Option<proto::StatisticDuration> {
    Some(proto::StatisticDuration { count: total.count, ns: total.nanos })
}
