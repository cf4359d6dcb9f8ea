//! The calls of text models in the metrics of text-embeddings-inference (`--compat=tei`). TEI counts a request once, as single or
//! as a batch, and its texts one by one; texts of a gRPC stream are no request there, and `/tokenize` and `/decode` have failures
//! alone.

use std::cell::Cell;

use smallvec::SmallVec;

use crate::error::{Code, Error};
use crate::metrics::{TeiCells, TeiFailure, TeiMethod, TeiTask, TeiTimes};
use crate::model::ModelSpec;
use crate::protocol::text::{self, TextOutcome, TextPath, TextRequest, TextTask, TextTimes};
use crate::runtime::clock;
use crate::shard::Shard;
use crate::time::Instant;

/// Counts a call from its reading to its answer. Dropped before it is settled, its client has left.
pub struct TeiCount<'a> {
    cells: &'a TeiCells,
    /// `None` for a call that is no request.
    method: Option<TeiMethod>,
    /// The number of its texts.
    texts: u64,
    /// True if the call names its model.
    is_named: bool,
    /// The task of the model, once that has taken the texts.
    task: Cell<Option<TeiTask>>,
    /// The reason of a mistake in the call.
    mistake: Cell<TeiFailure>,
    /// The tokens of each text, if the model counts them, and the stages of the request, once it has run.
    lengths: SmallVec<[u64; 32]>,
    times: TextTimes,
    is_settled: bool,
}

impl<'a> TeiCount<'a> {
    /// A call was read. `is_named` is true if it names its model, `is_streamed` for a text of a stream.
    pub fn open(cells: &'a TeiCells, call: &TextRequest, is_named: bool, is_streamed: bool) -> Self {
        let method = (!is_streamed).then(|| method(call)).flatten();
        if let Some(method) = method {
            cells.count_request(method);
        }
        Self {
            cells,
            method,
            texts: call.texts.len() as u64,
            is_named,
            task: Cell::new(None),
            mistake: Cell::new(TeiFailure::Validation),
            lengths: SmallVec::new(),
            times: TextTimes::default(),
            is_settled: false,
        }
    }

    /// The model was found. `is_taken` is true if it takes the texts.
    pub fn handle_model(&self, call: &TextRequest, spec: &ModelSpec, is_taken: bool) {
        let task = TextTask::of(spec);
        if let Some(task) = task.filter(|_| is_taken) {
            let task = match task {
                TextTask::Classify | TextTask::Rerank => TeiTask::Predict,
                TextTask::Embed | TextTask::SparseEmbed => TeiTask::Embed,
            };
            self.task.set(Some(task));
            self.mistake.set(TeiFailure::Tokenization);
            return self.cells.count_texts(task, self.texts);
        }
        let is_of_tokenizer = call.path.is_of_tokenizer();
        let has_task = if is_of_tokenizer {
            text::tokenizer(spec).is_some()
        } else {
            task.is_some_and(|task| call.path.takes(task))
        };
        self.mistake.set(match has_task {
            false => TeiFailure::ModelType,
            true if self.texts > u64::from(spec.rows_max) => TeiFailure::BatchSize,
            true if is_of_tokenizer => TeiFailure::Tokenization,
            true => TeiFailure::Validation,
        });
    }

    /// The model gave outputs, or its tokenizer an answer; the answer of the call is made of them next.
    pub fn handle_outcome(&mut self, spec: &ModelSpec, outcome: &TextOutcome, times: TextTimes) {
        // A value that does not fit the outputs, such as more dimensions than a vector has.
        self.mistake.set(TeiFailure::Validation);
        if let TextOutcome::Outputs(outputs) = outcome {
            self.lengths = text::token_counts(spec, outputs).unwrap_or_default();
        }
        self.times = times;
    }

    /// The call has its answer, or failed.
    pub fn settle<T>(mut self, answer: &Result<T, Error>) {
        self.is_settled = true;
        if let Err(error) = answer {
            return self.count_failure(error);
        }
        self.lengths.iter().for_each(|tokens| self.cells.count_length(*tokens));
        if let Some(task) = self.task.get() {
            self.cells.count_times(task, self.texts, &stages(&self.times, clock::now()));
        }
        if let Some(method) = self.method {
            self.cells.count_success(method);
        }
    }

    fn count_failure(&self, error: &Error) {
        let is_known = self.is_named || self.task.get().is_some();
        let failure = match error.code() {
            Code::NotFound if !is_known => TeiFailure::ModelType,
            code => failure_of(code, self.mistake.get()),
        };
        let is_of_each = matches!(failure, TeiFailure::Dropped | TeiFailure::Inference);
        self.cells.count_failures(failure, if is_of_each { self.texts } else { 1 });
    }
}

impl Drop for TeiCount<'_> {
    fn drop(&mut self) {
        if !self.is_settled && self.task.get().is_some() {
            self.cells.count_failures(TeiFailure::Dropped, self.texts);
        }
    }
}

/// Counts a call that could not be read. TEI does not count one whose form is wrong.
pub fn count_unread(shard: &Shard, error: &Error) {
    if let Some(cells) = shard.cells.tei.as_deref().filter(|_| error.code() == Code::InvalidArgument) {
        cells.count_failures(TeiFailure::Validation, 1);
    }
}

/// The form of a call; `None` for those that TEI does not count.
fn method(call: &TextRequest) -> Option<TeiMethod> {
    match call.path {
        TextPath::Decode | TextPath::Tokenize => None,
        TextPath::Rerank | TextPath::RerankDocuments | TextPath::Similarity => Some(TeiMethod::Batch),
        _ if call.is_single => Some(TeiMethod::Single),
        _ => Some(TeiMethod::Batch),
    }
}

/// The reason of a failure; `mistake` is that of a mistake in the call.
const fn failure_of(code: Code, mistake: TeiFailure) -> TeiFailure {
    match code {
        Code::InvalidArgument | Code::NotFound | Code::Unsupported => mistake,
        Code::Cancelled | Code::DeadlineExceeded => TeiFailure::Dropped,
        Code::Exhausted | Code::OutOfMemory | Code::RateLimited | Code::Unavailable => TeiFailure::Overloaded,
        _ => TeiFailure::Inference,
    }
}

/// The durations of a request that was answered `now`.
fn stages(times: &TextTimes, now: Instant) -> TeiTimes {
    let TextTimes { stamps, has_tokenizer, received, .. } = times;
    TeiTimes {
        total: now.since(*received),
        tokenization: stamps.filter(|_| *has_tokenizer).map(|stamps| stamps.compute_input_duration()),
        queue: stamps.map(|stamps| stamps.queue_duration()),
        inference: stamps.map(|stamps| stamps.compute_infer_duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{TeiBatchCells, encode_tei};
    use crate::time::Stamps;

    #[test]
    fn a_request_is_single_or_a_batch_as_its_path_and_its_form_say() {
        let check = |path, is_single, want| {
            assert_eq!(method(&TextRequest { path, is_single, ..TextRequest::default() }), want, "{path:?}");
        };
        for path in [TextPath::Embed, TextPath::EmbedAll, TextPath::Embeddings, TextPath::Predict, TextPath::Own] {
            check(path, true, Some(TeiMethod::Single));
            check(path, false, Some(TeiMethod::Batch));
        }
        for path in [TextPath::Rerank, TextPath::RerankDocuments, TextPath::Similarity] {
            check(path, true, Some(TeiMethod::Batch));
        }
        check(TextPath::Tokenize, true, None);
        check(TextPath::Decode, false, None);
    }

    /// A call of three texts that ended in `outcome`, or whose client left; `is_taken` is true if a model had taken it.
    fn ended(is_named: bool, is_taken: bool, outcome: Option<Code>) -> Vec<String> {
        let cells = TeiCells::default();
        let call = TextRequest { texts: vec![String::new(); 3], ..TextRequest::default() };
        let count = TeiCount::open(&cells, &call, is_named, false);
        if is_taken {
            count.task.set(Some(TeiTask::Embed));
            count.mistake.set(TeiFailure::Tokenization);
        }
        match outcome {
            Some(code) => count.settle(&Err::<(), _>(Error::new(code, String::new()))),
            None => drop(count),
        }
        let mut page = String::new();
        encode_tei(&mut page, &[&cells], &TeiBatchCells::default(), 0);
        assert!(page.contains("te_request_count{method=\"batch\"} 1\n") && page.contains("te_embed_success 0\n"));
        let failures = page.lines().filter_map(|line| line.strip_prefix("te_request_failure{err="));
        failures.filter(|line| !line.ends_with(" 0")).map(str::to_owned).collect()
    }

    #[test]
    fn failures_of_texts_count_for_each_and_those_of_requests_once() {
        assert_eq!(ended(false, true, Some(Code::Internal)), ["\"inference\"} 3"]);
        assert_eq!(ended(false, true, Some(Code::InvalidArgument)), ["\"tokenization\"} 1"]);
        assert_eq!(ended(false, true, Some(Code::Unavailable)), ["\"overloaded\"} 1"]);
        assert_eq!(ended(false, true, Some(Code::DeadlineExceeded)), ["\"dropped\"} 3"]);
        assert_eq!(ended(false, true, None), ["\"dropped\"} 3"]);
        assert!(ended(false, false, None).is_empty(), "no text was in a queue");
        assert_eq!(ended(false, false, Some(Code::NotFound)), ["\"model_type\"} 1"], "no model is for the path");
        assert_eq!(ended(true, false, Some(Code::NotFound)), ["\"validation\"} 1"], "no model has the name");
    }

    #[test]
    fn the_reason_of_a_failure_is_that_of_its_code() {
        let of = |code| failure_of(code, TeiFailure::BatchSize);
        assert_eq!(of(Code::InvalidArgument), TeiFailure::BatchSize);
        assert_eq!(of(Code::DeadlineExceeded), TeiFailure::Dropped);
        assert_eq!(of(Code::Exhausted), TeiFailure::Overloaded);
        assert_eq!(of(Code::Unavailable), TeiFailure::Overloaded);
        assert_eq!(of(Code::RateLimited), TeiFailure::Overloaded);
        assert_eq!(of(Code::Internal), TeiFailure::Inference);
    }

    #[test]
    fn durations_that_are_not_known_are_left_out() {
        let at = Instant::from_micros;
        let times = TextTimes { received: at(10), ..TextTimes::default() };
        let micros = std::time::Duration::from_micros;
        assert_eq!(stages(&times, at(40)), TeiTimes { total: micros(30), ..TeiTimes::default() });
        let stamps =
            Stamps { received: at(10), batched: at(14), input_end: at(15), infer_end: at(35), output_end: at(36) };
        let ran = TextTimes { stamps: Some(stamps), ..times };
        let want =
            TeiTimes { total: micros(30), tokenization: None, queue: Some(micros(4)), inference: Some(micros(20)) };
        assert_eq!(stages(&ran, at(40)), want);
        let with_tokens = TextTimes { has_tokenizer: true, ..ran };
        assert_eq!(stages(&with_tokens, at(40)), TeiTimes { tokenization: Some(micros(1)), ..want });
    }
}
