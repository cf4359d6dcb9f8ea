//! The statistics extension over REST, in the layout of Triton's `http_server.cc`.

use crate::rest::encode::JSON;
use crate::rest::server::write_list;
use base::metrics::{DurationTotal, ModelStatistics};
use wire::json::writer;
use wire::message::Reply;

/// The reply with the statistics of model versions.
pub fn statistics_reply(all: &[ModelStatistics]) -> Reply {
    let mut json = Vec::from(b"{\"model_stats\":");
    write_list(all.iter(), &mut json, write_model);
    json.push(b'}');
    Reply::new(200, JSON, json)
}

fn write_model(statistics: &ModelStatistics, json: &mut Vec<u8>) {
    json.extend_from_slice(b"{\"name\":");
    writer::string(&statistics.name, json);
    json.extend_from_slice(b",\"version\":\"");
    writer::integer(statistics.version, json);
    json.extend_from_slice(b"\",\"last_inference\":");
    writer::integer(statistics.last_inference, json);
    json.extend_from_slice(b",\"inference_count\":");
    writer::integer(statistics.inference_count, json);
    json.extend_from_slice(b",\"execution_count\":");
    writer::integer(statistics.execution_count, json);
    json.extend_from_slice(b",\"inference_stats\":{");
    write_totals(&statistics.inference.by_name(), json);
    json.extend_from_slice(b"},\"response_stats\":{");
    for (index, response) in statistics.responses.iter().enumerate() {
        writer::comma(index, json);
        json.push(b'"');
        writer::integer(response.index as u64, json);
        json.extend_from_slice(b"\":{");
        write_totals(&response.by_name(), json);
        json.push(b'}');
    }
    // `memory_usage` stays empty: no engine here reports it.
    json.extend_from_slice(b"},\"batch_stats\":");
    write_list(statistics.batches.iter(), json, |batch, json| {
        json.extend_from_slice(b"{\"batch_size\":");
        writer::integer(batch.rows, json);
        json.push(b',');
        write_totals(&batch.by_name(), json);
        json.push(b'}');
    });
    json.extend_from_slice(b",\"memory_usage\":[]}");
}

fn write_totals(totals: &[(&str, DurationTotal)], json: &mut Vec<u8>) {
    for (index, (name, total)) in totals.iter().enumerate() {
        writer::comma(index, json);
        writer::string(name, json);
        json.extend_from_slice(b":{\"count\":");
        writer::integer(total.count, json);
        json.extend_from_slice(b",\"ns\":");
        writer::integer(total.nanos, json);
        json.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::statistics;

    fn text(all: &[ModelStatistics]) -> String {
        let reply = statistics_reply(all);
        assert_eq!(reply.status, 200);
        String::from_utf8(reply.body.concat()).unwrap()
    }

    #[test]
    fn statistics_have_tritons_keys_in_its_order() {
        assert_eq!(text(&[]), r#"{"model_stats":[]}"#);
        let want = concat!(
            r#"{"model_stats":[{"name":"m","version":"3","last_inference":1700,"inference_count":9,"#,
            r#""execution_count":2,"inference_stats":{"success":{"count":4,"ns":100},"fail":{"count":1,"ns":7},"#,
            r#""queue":{"count":4,"ns":10},"compute_input":{"count":4,"ns":20},"compute_infer":{"count":4,"ns":60},"#,
            r#""compute_output":{"count":4,"ns":10},"cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},"#,
            r#""response_stats":{},"batch_stats":[{"batch_size":1,"compute_input":{"count":1,"ns":5},"#,
            r#""compute_infer":{"count":1,"ns":20},"compute_output":{"count":1,"ns":2}},{"batch_size":8,"#,
            r#""compute_input":{"count":1,"ns":6},"compute_infer":{"count":1,"ns":30},"#,
            r#""compute_output":{"count":1,"ns":3}}],"memory_usage":[]}]}"#
        );
        assert_eq!(text(&[statistics()]), want);
        let idle = ModelStatistics { name: "\"".to_owned(), version: 1, ..ModelStatistics::default() };
        let both = text(&[idle, statistics()]);
        assert!(both.starts_with(r#"{"model_stats":[{"name":"\"","version":"1","last_inference":0,"#), "{both}");
        assert!(both.contains(r#""batch_stats":[],"memory_usage":[]},{"name":"m","#), "{both}");
    }
}
