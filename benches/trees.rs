//! Run times of tree models: the backend's instance on batches of one request, as it runs inside a shard.
//!
//! `cargo bench --bench trees -- MODEL...`; `tests/trees/speed.py DIRECTORY` trains forests to ask and measures the
//! libraries on them.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant as Now;

use deuteron::backend::threads::enter;
use deuteron::backend::{Answer, AnswerSink, Backend, Batch, Instance, Request, Responder, Ticket};
use deuteron::engines::Fil;
use deuteron::model::ModelSpec;
use deuteron::model::config::{CompletionRules, ConfigDraft};
use deuteron::model::trees::{TreeModel, decode};
use deuteron::tensor::{AlignedBuffer, Datatype, Tensor};
use deuteron::time::{Instant, Stamps};

/// Different requests of each size: a repeated request would profit from the branch predictor and the caches.
const REQUESTS: usize = 256;

fn main() {
    println!("| model | trees | rows | a request | a row |\n|---|---|---|---|---|");
    for path in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        let path = Path::new(&path);
        let model = decode(&std::fs::read(path).unwrap(), None).unwrap();
        let spec = Arc::new(spec(path, &model));
        let loaded = Fil.load(&spec, path.parent().unwrap()).unwrap();
        enter(1, |threads| {
            let mut instance = loaded.new_instance(threads).unwrap();
            for rows in [1, 8, 64, 256] {
                let best_us = best_us(&mut *instance, model.feature_count, rows);
                let name = path.file_name().unwrap().to_string_lossy();
                let (trees, row_us) = (model.trees.len(), best_us / f64::from(rows));
                println!("| {name} | {trees} | {rows} | {best_us:.2} µs | {row_us:.2} µs |");
            }
        });
    }
}

fn spec(path: &Path, model: &TreeModel) -> ModelSpec {
    let name = path.file_name().unwrap().to_string_lossy();
    let text = format!("backend: 'fil' default_model_filename: '{name}'");
    let draft = ConfigDraft::new("bench", Some(text.as_bytes()), &[]).unwrap();
    let rules = CompletionRules::default();
    draft.with_trees(model, rules).complete(None, &BTreeMap::new(), rules).unwrap()
}

/// The best mean time of a request, of ten.
fn best_us(instance: &mut dyn Instance, features: usize, rows: u32) -> f64 {
    let mut state = 7_u64;
    // Sums of random bits: the shape of a normal distribution.
    let mut value = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (f64::from((state >> 33).count_ones()) - 15.5) as f32 / 2.8
    };
    let mut tensor = || {
        let mut contents = AlignedBuffer::with_capacity(0);
        (0..rows as usize * features).for_each(|_| contents.extend_from_slice(&value().to_le_bytes()));
        let shape = [i64::from(rows), features as i64].into_iter().collect();
        Tensor { datatype: Datatype::Fp32, shape, contents: contents.freeze() }
    };
    let requests: Vec<_> = (0..REQUESTS).map(|_| tensor()).collect();
    let sink: Arc<dyn AnswerSink> = Arc::new(Nobody);
    let means = (0..10).map(|_| {
        let begin = Now::now();
        for input in &requests {
            let ticket = Ticket { index: 0, generation: 0 };
            let mut responder = Responder::new(Arc::clone(&sink), ticket, Stamps::default());
            responder.set_batch(rows, true);
            let request = Request { inputs: vec![input.clone()], rows, responder, sequence: None, details: None };
            instance.run(Batch { requests: vec![request], rows, clock: || Instant::ZERO, ended: Vec::new() });
        }
        begin.elapsed().as_secs_f64() * 1e6 / REQUESTS as f64
    });
    means.fold(f64::INFINITY, f64::min)
}

/// Takes answers and checks that they are outputs.
struct Nobody;

impl AnswerSink for Nobody {
    fn push(&self, _: Ticket, answer: Answer) {
        assert!(answer.outputs.is_ok(), "it answers");
    }

    fn wake(&self) {}
}
