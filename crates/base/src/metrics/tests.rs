use super::*;

#[test]
fn an_onnx_model_tells_its_engine_and_no_other_model_does() {
    let model = |engine| ModelFigures { name: "m", version: 1, engine, ..ModelFigures::default() };
    let text = encode(&[model(Some(("onnxruntime", "1.\"31")))], &[], &[], &[]);
    let row = r#"deuteron_model_engine{model="m",engine="onnxruntime",engine_version="1.\"31",version="1"} 1"#;
    assert!(text.lines().any(|line| line == row), "{text}");
    assert!(!encode(&[model(None)], &[], &[], &[]).contains("deuteron_model_engine{"));
}

/// The text of a model with two shards and two instances.
fn text_of_two_shards() -> String {
    let at = Instant::from_micros;
    let stamps = Stamps { received: at(10), batched: at(14), input_end: at(15), infer_end: at(35), output_end: at(36) };
    let (one, two, workers) = (ModelCells::new(8), ModelCells::default(), BatchCells::new(8));
    one.count_success(&stamps, 3, 0);
    one.count_execution();
    one.batches.count(3, &stamps);
    two.count_success(&stamps, 1, 0);
    two.count_failure(FailureReason::Rejected, Duration::ZERO);
    workers.count_shared(1, &stamps);
    workers.count_shared(8, &stamps);
    let shard = ShardCells::default();
    shard.received.add(7);
    shard.succeeded.add(2);
    shard.count_refused(Code::Unavailable);
    let departures = [Departure::StreamReset, Departure::StreamReset, Departure::CallCancelled];
    departures.into_iter().for_each(|departure| shard.count_cancelled(departure));
    let model = ModelFigures {
        name: "m",
        version: 1,
        cells: vec![&one, &two],
        workers: Some(&workers),
        releases: vec![("full", 1), ("idle", 2), ("shape", 0)],
        pending: 5,
        run: Some(Duration::from_nanos(1_500)),
        instances: vec![("m_0_0", 3), ("a\\b\"c\nd_0", 0)],
        wakes: 7,
        restarts: 2,
        pending_max: Some(64),
        late: 6,
        placement: "worker",
        ..ModelFigures::default()
    };
    encode(&[model], &[&shard], &[], &[])
}

#[test]
fn the_text_sums_the_cells_of_all_shards() {
    let text = text_of_two_shards();
    for line in [
        "nv_inference_request_success{model=\"m\",version=\"1\"} 2",
        "nv_inference_request_failure{model=\"m\",reason=\"REJECTED\",version=\"1\"} 1",
        "nv_inference_request_failure{model=\"m\",reason=\"OTHER\",version=\"1\"} 0",
        "nv_inference_count{model=\"m\",version=\"1\"} 4",
        "nv_inference_exec_count{model=\"m\",version=\"1\"} 3",
        "nv_inference_request_duration_us{model=\"m\",version=\"1\"} 52",
        "nv_inference_queue_duration_us{model=\"m\",version=\"1\"} 8",
        "nv_inference_compute_infer_duration_us{model=\"m\",version=\"1\"} 40",
        "nv_inference_pending_request_count{model=\"m\",version=\"1\"} 5",
        "deuteron_batches_total{model=\"m\",reason=\"full\",version=\"1\"} 1",
        "deuteron_batches_total{model=\"m\",reason=\"idle\",version=\"1\"} 2",
        "deuteron_batches_total{model=\"m\",reason=\"shape\",version=\"1\"} 0",
        "# TYPE deuteron_batch_size histogram",
        "deuteron_batch_size_bucket{model=\"m\",version=\"1\",le=\"1\"} 1",
        "deuteron_batch_size_bucket{model=\"m\",version=\"1\",le=\"4\"} 2",
        "deuteron_batch_size_bucket{model=\"m\",version=\"1\",le=\"+Inf\"} 3",
        "deuteron_batch_size_sum{model=\"m\",version=\"1\"} 12",
        "deuteron_batch_size_count{model=\"m\",version=\"1\"} 3",
        "deuteron_queue_duration_seconds_bucket{model=\"m\",version=\"1\",le=\"0.00001\"} 2",
        "deuteron_queue_duration_seconds_sum{model=\"m\",version=\"1\"} 0.000008000",
        "deuteron_run_duration_seconds_sum{model=\"m\",version=\"1\"} 0.000040000",
        "deuteron_model_placement{model=\"m\",placement=\"worker\",version=\"1\"} 1",
        "deuteron_model_run_seconds{model=\"m\",version=\"1\"} 0.000001500",
        "deuteron_instance_batches_total{instance=\"m_0_0\",model=\"m\",version=\"1\"} 3",
        "deuteron_instance_batches_total{instance=\"a\\\\b\\\"c\\nd_0\",model=\"m\",version=\"1\"} 0",
        "deuteron_requests_refused_total{reason=\"unavailable\"} 1",
        "deuteron_requests_cancelled_total{reason=\"call_cancelled\"} 1",
        "deuteron_requests_cancelled_total{reason=\"connection_closed\"} 0",
        "deuteron_requests_cancelled_total{reason=\"stream_reset\"} 2",
        "deuteron_instance_wakes_total{model=\"m\",version=\"1\"} 7",
        "deuteron_instance_restarts_total{model=\"m\",version=\"1\"} 2",
        "deuteron_queue_requests_max{model=\"m\",version=\"1\"} 64",
        "deuteron_requests_late_total{model=\"m\",version=\"1\"} 6",
        "deuteron_requests_in_flight 1",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
}

#[test]
fn sequences_are_shown_by_state_and_by_what_ended_them() {
    let sequences = SequenceFigures { active: 8, backlogged: 9, unknown: 3, ends: vec![("end", 4), ("idle", 0)] };
    let model = ModelFigures { name: "m", version: 1, sequences: Some(sequences), ..ModelFigures::default() };
    let text = encode(&[model], &[], &[], &[]);
    for line in [
        "deuteron_sequences{model=\"m\",state=\"active\",version=\"1\"} 8",
        "deuteron_sequences{model=\"m\",state=\"backlog\",version=\"1\"} 9",
        "deuteron_sequences_ended_total{model=\"m\",reason=\"end\",version=\"1\"} 4",
        "deuteron_sequences_ended_total{model=\"m\",reason=\"idle\",version=\"1\"} 0",
        "deuteron_sequences_unknown_total{model=\"m\",version=\"1\"} 3",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
}

#[test]
fn every_connection_limit_has_a_counter_and_its_line() {
    let shard = ShardCells::default();
    CALMED.iter().for_each(|label| shard.count_calmed(label));
    shard.count_calmed("nothing");
    let text = encode(&[], &[&shard], &[], &[]);
    for label in CALMED {
        assert!(text.contains(&format!("deuteron_http2_calmed_total{{limit=\"{label}\"}} 1\n")), "{text}");
    }
}

#[test]
fn every_code_has_a_counter() {
    let shard = ShardCells::default();
    for code in Code::ALL {
        shard.count_refused(code);
    }
    assert!(shard.refused.iter().all(|counter| counter.get() == 1));
}
