//! A record as text of a trace file, in Triton's form: JSON objects with commas between them. Pure; the file and its
//! brackets are `control::outside::trace`'s.

use crate::rest::encode::{write_elements_of, write_strings_of};
use base::tensor::{Datatype, Tensor};
use base::time::Instant;
use trace::{ModelSpan, TraceEvent, TraceRecord, TracedSpan};
use wire::json::writer;

/// Appends a record. `since_boot` is the monotonic clock's time when the process started, in nanoseconds: Triton's
/// times are that clock's, so that those of several processes can be compared.
pub fn write_record(record: &TraceRecord, since_boot: u64, out: &mut Vec<u8>) {
    let trace = &record.trace;
    let has_timestamps = trace.setting.level.timestamps;
    let begin = out.len();
    match &record.span {
        TracedSpan::Front(front) if has_timestamps => write_events(trace.id, &front.events, since_boot, out),
        TracedSpan::Front(_) => {}
        TracedSpan::Model(model) => {
            if has_timestamps {
                write_head(trace.id, trace.parent_id, model, out);
            }
            let sides = [
                ("TENSOR_QUEUE_INPUT", &model.spec.inputs, &model.inputs),
                ("TENSOR_BACKEND_OUTPUT", &model.spec.outputs, &model.outputs),
            ];
            let [inputs, outputs] = sides.map(|(activity, specs, tensors)| {
                let named = specs.iter().map(|spec| spec.name.as_str()).zip(tensors);
                (activity, named.filter(|(_, tensor)| tensor.is_given()).collect::<Vec<_>>())
            });
            for (activity, named) in [inputs, outputs] {
                named.iter().for_each(|(name, tensor)| write_tensor(trace.id, activity, name, tensor, out));
            }
            if has_timestamps {
                write_events(trace.id, &model.events, since_boot, out);
            }
        }
    }
    // Each object has a comma after it.
    if out.len() > begin {
        out.pop();
    }
}

fn write_id(id: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    writer::integer(id, out);
}

fn write_head(id: u64, parent_id: u64, model: &ModelSpan, out: &mut Vec<u8>) {
    write_id(id, out);
    out.extend_from_slice(b",\"model_name\":");
    writer::string(&model.spec.name, out);
    out.extend_from_slice(b",\"model_version\":");
    writer::integer(model.version, out);
    if !model.request_id.is_empty() {
        out.extend_from_slice(b",\"request_id\":");
        writer::string(&model.request_id, out);
    }
    if parent_id != 0 {
        out.extend_from_slice(b",\"parent_id\":");
        writer::integer(parent_id, out);
    }
    out.extend_from_slice(b"},");
}

fn write_events(id: u64, events: &[TraceEvent], since_boot: u64, out: &mut Vec<u8>) {
    for TraceEvent { name, at } in events {
        write_id(id, out);
        out.extend_from_slice(b",\"timestamps\":[{\"name\":");
        writer::string(name, out);
        out.extend_from_slice(b",\"ns\":");
        writer::integer(boot_nanos(*at, since_boot), out);
        out.extend_from_slice(b"}]},");
    }
}

const fn boot_nanos(at: Instant, since_boot: u64) -> u64 {
    since_boot.saturating_add(at.as_nanos())
}

/// Writes a tensor. As in Triton, the elements of FP16 and BF16 are left out. Booleans are 0 and 1.
fn write_tensor(id: u64, activity: &str, name: &str, tensor: &Tensor, out: &mut Vec<u8>) {
    write_id(id, out);
    out.extend_from_slice(b",\"activity\":");
    writer::string(activity, out);
    out.extend_from_slice(b",\"tensor\":{\"name\":");
    writer::string(name, out);
    out.extend_from_slice(b",\"data\":");
    let mut data = Vec::new();
    match tensor.datatype {
        Datatype::Bytes => write_strings_of(&tensor.contents, &mut data),
        Datatype::Bool => write_elements_of(Datatype::Uint8, &tensor.contents, &mut data),
        datatype => write_elements_of(datatype, &tensor.contents, &mut data),
    }
    writer::string(&String::from_utf8_lossy(&data), out);
    out.extend_from_slice(b",\"shape\":\"");
    for (index, dimension) in tensor.shape.iter().enumerate() {
        writer::comma(index, out);
        writer::integer(*dimension, out);
    }
    out.extend_from_slice(b"\",\"dtype\":\"");
    out.extend_from_slice(tensor.datatype.name().as_bytes());
    out.extend_from_slice(b"\"}},");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use smallvec::smallvec;

    use super::*;
    use crate::testing::{input, output, spec};
    use base::tensor::Shape;
    use trace::{ActiveTrace, FrontSpan, TraceLevel, TraceMode, TraceSetting};

    fn trace(level: TraceLevel) -> Arc<ActiveTrace> {
        let setting = Arc::new(TraceSetting::new(level, 1, -1, 0, TraceMode::Triton));
        Arc::new(ActiveTrace { id: 7, parent_id: 3, ..ActiveTrace::root(&setting, None) })
    }

    fn model_span() -> Box<ModelSpan> {
        let inputs = vec![input("A", Datatype::Fp32, &[2]), input("B", Datatype::Bytes, &[1])];
        let spec = Arc::new(spec(8, inputs, vec![output("X", Datatype::Bool, &[2])]));
        let tensor = |datatype, shape: &[i64], contents: &[u8]| Tensor {
            datatype,
            shape: Shape::from_slice(shape),
            contents: contents.to_vec().into(),
        };
        let floats: Vec<u8> = [0.5_f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let at = |name, micros| TraceEvent { name, at: Instant::from_micros(micros) };
        Box::new(ModelSpan {
            spec,
            version: 2,
            request_id: "a\"b".to_owned(),
            events: smallvec![at("REQUEST_START", 1), at("REQUEST_END", 2)],
            inputs: vec![tensor(Datatype::Fp32, &[1, 2], &floats), tensor(Datatype::Bytes, &[1, 1], b"\x02\0\0\0x\"")],
            outputs: vec![tensor(Datatype::Bool, &[1, 2], &[1, 0])],
        })
    }

    fn text(level: TraceLevel, span: TracedSpan) -> String {
        let mut out = Vec::new();
        write_record(&TraceRecord { trace: trace(level), span }, 5, &mut out);
        String::from_utf8(out).unwrap()
    }

    const TIMESTAMPS: TraceLevel = TraceLevel { timestamps: true, tensors: false };
    const TENSORS: TraceLevel = TraceLevel { timestamps: false, tensors: true };

    #[test]
    fn a_record_is_written_in_tritons_form() {
        let model = ModelSpan { inputs: Vec::new(), outputs: Vec::new(), ..*model_span() };
        assert_eq!(
            text(TIMESTAMPS, TracedSpan::Model(Box::new(model))),
            concat!(
                r#"{"id":7,"model_name":"m","model_version":2,"request_id":"a\"b","parent_id":3},"#,
                r#"{"id":7,"timestamps":[{"name":"REQUEST_START","ns":1005}]},"#,
                r#"{"id":7,"timestamps":[{"name":"REQUEST_END","ns":2005}]}"#
            )
        );
        assert_eq!(
            text(TENSORS, TracedSpan::Model(model_span())),
            concat!(
                r#"{"id":7,"activity":"TENSOR_QUEUE_INPUT","tensor":{"name":"A","data":"0.5,2.0","shape":"1,2","dtype":"FP32"}},"#,
                r#"{"id":7,"activity":"TENSOR_QUEUE_INPUT","tensor":{"name":"B","data":"\"x\\\"\"","shape":"1,1","dtype":"BYTES"}},"#,
                r#"{"id":7,"activity":"TENSOR_BACKEND_OUTPUT","tensor":{"name":"X","data":"1,0","shape":"1,2","dtype":"BOOL"}}"#
            )
        );
        let front = || {
            let events = smallvec![TraceEvent { name: "HTTP_RECV_START", at: Instant::ZERO }];
            TracedSpan::Front(FrontSpan { context: None, events, ended: Instant::ZERO, status: None })
        };
        assert_eq!(text(TIMESTAMPS, front()), r#"{"id":7,"timestamps":[{"name":"HTTP_RECV_START","ns":5}]}"#);
        assert_eq!(text(TENSORS, front()), "");
    }
}
