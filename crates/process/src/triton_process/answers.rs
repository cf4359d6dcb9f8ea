//! The answers to the requests of one batch, and the reports on them, on their way to the server: each goes at once, in a
//! message of its own.

use std::sync::Arc;

use crate::python::message::process_side::{
    SentResponse, put_is_cancelled, put_report, put_responses, put_send, put_times,
};
use crate::python::message::{ReplyValue, RequestTimes, Span, WorkClaim};
use crate::triton_process::link::ProcessLink;
use crate::triton_process::memory::ProcessMemory;
use backend::{Answer, AnswerOfBatch, AnswerPart, AnswerSink, ExecutionCounter, Ticket};
use base::error::Error;
use base::metrics::{RequestReport, WorkReport};
use base::time::Instant;

/// Takes the answers of one batch.
pub(super) struct BatchAnswers {
    link: Arc<ProcessLink>,
    memory: Arc<ProcessMemory>,
    /// The number of its first request; the others follow.
    first: u64,
    /// The number of its requests.
    count: usize,
    began: Instant,
}

impl BatchAnswers {
    pub(super) fn new(
        link: &Arc<ProcessLink>,
        memory: &Arc<ProcessMemory>,
        first: u64,
        count: usize,
        began: Instant,
    ) -> Arc<Self> {
        Arc::new(Self { link: Arc::clone(link), memory: Arc::clone(memory), first, count, began })
    }

    /// The run has returned. Requests without an answer are answered later.
    pub(super) fn handle_run_end(&self, batch: u64, inputs_free: bool) {
        let responses: Vec<_> = (0..self.count).map(|_| SentResponse::None).collect();
        let mut out = Vec::new();
        // Without outputs they always fit.
        let _ = put_responses(batch, inputs_free, &Span::default(), &responses, &mut out);
        self.link.send_main(&out);
    }

    /// Sends one answer.
    fn send(&self, request: u64, answer: &Answer) {
        let mut out = Vec::new();
        put_times(&[self.times(request, answer)], &mut out);
        let response = sent(answer);
        let is_final = answer.part != AnswerPart::More;
        let span = self.memory.write(response.given().map(|(_, output)| &*output.contents));
        let encoded = span.and_then(|span| {
            let put = put_send(request, is_final, &span, &response, &mut out);
            put.map_err(|error| Error::internal(format!("the answer cannot be sent to the server: {error}")))
        });
        if let Err(error) = encoded {
            // An error always fits.
            let _ = put_send(request, is_final, &Span::default(), &SentResponse::Error(&error), &mut out);
        }
        self.link.send_main(&out);
    }

    fn times(&self, request: u64, answer: &Answer) -> RequestTimes {
        let nanos = |at: Instant| u64::try_from(at.since(self.began).as_nanos()).unwrap_or(u64::MAX);
        let (input_end, infer_end) = (nanos(answer.stamps.input_end), nanos(answer.stamps.infer_end));
        RequestTimes { request, input_end, infer_end }
    }
}

fn sent(answer: &Answer) -> SentResponse<'_> {
    match (&answer.outputs, answer.part) {
        (Err(error), _) => SentResponse::Error(error),
        (Ok(_), AnswerPart::End) => SentResponse::None,
        (Ok(outputs), part) => SentResponse::Outputs {
            parameters: answer.parameters.as_deref(),
            outputs,
            is_again: part == AnswerPart::Again,
        },
    }
}

impl AnswerSink for BatchAnswers {
    fn push(&self, ticket: Ticket, answer: Answer) {
        self.send(self.first + u64::from(ticket.index), &answer);
    }

    /// Does nothing: the server sees the messages.
    fn wake(&self) {}

    fn has_left(&self, ticket: Ticket) -> bool {
        let request = self.first + u64::from(ticket.index);
        let reply = self.link.ask(|call, out| {
            put_is_cancelled(call, request, out);
            Ok(())
        });
        matches!(reply, Ok(ReplyValue::Bool(true)))
    }
}

/// Sends the reports on one request and on its batch to the server, which has counted the answers.
pub(super) struct SentReports {
    pub(super) link: Arc<ProcessLink>,
    pub(super) batch: u64,
    pub(super) request: u64,
}

impl ExecutionCounter for SentReports {
    fn handle_answer(&self, _: &AnswerOfBatch<'_>) -> bool {
        false
    }

    fn handle_report(&self, report: &WorkReport) {
        let (batch, request) = (self.batch, self.request);
        let claim = match *report {
            WorkReport::Batch { rows, times, .. } => WorkClaim::Batch { batch, rows, times },
            WorkReport::Request(RequestReport { is_success, times, .. }) => {
                WorkClaim::Request { request, is_success, times }
            }
            WorkReport::Response { index, outcome, infer, output } => {
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                WorkClaim::Response { request, index, outcome, infer, output }
            }
        };
        let mut out = Vec::new();
        put_report(&claim, &mut out);
        self.link.send_main(&out);
    }
}
