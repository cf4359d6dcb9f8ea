//! The fuzz target `rest` and the tests over its seeds: arbitrary bytes as a request for a model that batches and
//! has an optional input of strings.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::infer::InferRequest;
use crate::rest::decode::{HeaderLength, decode};
use crate::rest::generate;
use base::budget::ReceiveReservation;
use base::tensor::{Datatype, byte_size};
use model::{Batching, ModelSpec, TensorSpec, VersionPolicy};

/// Decodes arbitrary bytes as a request: the first two are the header length, little-endian and signed (`0xffff`:
/// absent), the rest is the body.
pub fn exercise(bytes: &[u8]) {
    let Some((length, body)) = bytes.split_first_chunk::<2>() else { return };
    let header_length = match i16::from_le_bytes(*length) {
        -1 => HeaderLength::Absent,
        size => HeaderLength::Size(i32::from(size)),
    };
    let spec = model();
    decode_and_check(&spec, header_length, body);
    if let Ok(request) = generate::decode(&spec, &Bytes::copy_from_slice(body), &mut ReceiveReservation::default()) {
        check_request(&spec, &request);
    }
}

/// Decodes a body and asserts the invariants of an accepted request: contents have the size of their shape, rows are
/// within the model's maximum, the binary section is used up.
fn decode_and_check(spec: &ModelSpec, header_length: HeaderLength, body: &[u8]) {
    let body = Bytes::copy_from_slice(body);
    let Ok(request) = decode(spec, header_length, body.clone(), None, &mut ReceiveReservation::default()) else {
        return;
    };
    check_request(spec, &request);
    let views = request.inputs.iter().filter(|input| is_within(&body, &input.contents));
    let used: usize = views.map(|input| input.contents.len()).sum();
    match header_length {
        HeaderLength::Absent => assert_eq!(used, 0, "JSON has no binary section"),
        // A raw string is copied, since its length is put before it.
        HeaderLength::Size(0) => assert!(used == 0 || used == body.len(), "a raw body is one tensor"),
        HeaderLength::Size(size) => {
            let size = usize::try_from(size).expect("an accepted length is a size");
            assert_eq!(used, body.len().saturating_sub(size), "the binary section is used up");
        }
    }
}

/// Asserts the invariants of every accepted request.
fn check_request(spec: &ModelSpec, request: &InferRequest) {
    assert_eq!(request.inputs.len(), spec.inputs.len(), "every input has its place");
    assert!((1..=spec.rows_max.max(1)).contains(&request.rows), "rows are within the model's");
    for (input, expected) in request.inputs.iter().zip(&spec.inputs) {
        let size = byte_size(input.datatype, &input.shape).expect("an accepted shape has a size");
        let is_left_out = expected.is_optional && input.shape.is_empty();
        assert!(is_left_out || size.is_none_or(|size| size == input.contents.len()), "contents fit the shape");
    }
    assert!(request.plan.outputs.iter().all(|plan| plan.index < spec.outputs.len()), "outputs are the model's");
}

/// Returns true if a view points into a body.
fn is_within(body: &Bytes, view: &Bytes) -> bool {
    let start = body.as_ptr() as usize;
    (start..start.saturating_add(body.len())).contains(&(view.as_ptr() as usize)) && !view.is_empty()
}

/// A model that batches, with an optional input of strings.
fn model() -> ModelSpec {
    let tensor = |name: &str, datatype, size, is_optional| TensorSpec {
        is_optional,
        ..TensorSpec::new(name, datatype, &[size], true)
    };
    ModelSpec {
        name: "m".to_owned(),
        platform: "identity".to_owned(),
        backend: "identity".to_owned(),
        rows_max: 8,
        inputs: vec![tensor("IN", Datatype::Fp32, 2, false), tensor("TEXT", Datatype::Bytes, -1, true)],
        outputs: vec![tensor("OUT", Datatype::Fp32, 2, false), tensor("LABELS", Datatype::Bytes, 1, false)],
        batch_inputs: Vec::new(),
        ensemble: None,
        python: None,
        library: None,
        sequence: None,
        steps: None,
        batching: Some(Batching::default()),
        instance_groups: Vec::new(),
        version_policy: VersionPolicy::All,
        default_model_filename: String::new(),
        parameters: BTreeMap::new(),
        optimization: Default::default(),
        warm_ups: Vec::new(),
        metric_labels: String::new(),
        first_response_bounds: None,
        is_cached: false,
        is_batch_axis_derived: false,
        identity: None,
        refused_axes: Vec::new(),
        is_decoupled: false,
        follows_triton: false,
        namespace: String::new(),
        config_json: Arc::from("{}"),
        config_message: Arc::from([]),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_seeds_and_bodies_near_them_decode_without_a_panic() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/rest");
        let mut count = 0;
        for file in fs::read_dir(folder).unwrap() {
            let body = fs::read(file.unwrap().path()).unwrap();
            count += 1;
            exercise(&body);
            for at in 0..body.len() {
                let mut near = body.clone();
                near[at] = near[at].wrapping_add((at as u8) | 1);
                exercise(&near);
                exercise(&body[..at]);
            }
        }
        assert!(count >= 5, "{count}");
    }

    #[test]
    fn the_seeds_that_are_requests_are_accepted() {
        for name in ["json", "binary", "optional"] {
            let path = format!("{}/../../fuzz/corpus/rest/{name}", env!("CARGO_MANIFEST_DIR"));
            let seed = fs::read(path).unwrap();
            let length = i16::from_le_bytes([seed[0], seed[1]]);
            let length = if length == -1 { HeaderLength::Absent } else { HeaderLength::Size(length.into()) };
            let got =
                decode(&model(), length, Bytes::from(seed[2..].to_vec()), None, &mut ReceiveReservation::default());
            assert!(got.is_ok(), "{name}: {got:?}");
        }
        let seed = fs::read(format!("{}/../../fuzz/corpus/rest/generate", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let body = Bytes::from(seed[2..].to_vec());
        let got = generate::decode(&model(), &body, &mut ReceiveReservation::default());
        assert!(got.is_ok(), "generate: {got:?}");
    }
}
