#![no_main]

use std::collections::BTreeMap;
use std::sync::OnceLock;

use deuteron::model::ModelSpec;
use deuteron::model::config::{Completion, Draft};
use deuteron::protocol::rest::exercise_bytes;

const CONFIG: &[u8] = br#"
    name: "m" backend: "identity" max_batch_size: 8
    input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ]
    output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "LABELS" data_type: TYPE_STRING dims: [ -1 ] } ]
"#;

static MODEL: OnceLock<ModelSpec> = OnceLock::new();

fn model() -> ModelSpec {
    let draft = Draft::new("m", Some(CONFIG), &[]).unwrap();
    draft.complete(None, &BTreeMap::new(), Completion::default()).unwrap()
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exercise_bytes(MODEL.get_or_init(model), bytes));
