//! The answers to the requests of one batch, on their way to the server: those that the backend gives during its run on
//! the main thread go together, when the run returns; all others go at once.

#![expect(clippy::disallowed_types, reason = "threads of a backend answer requests; held to put one answer away")]

use std::sync::{Arc, Mutex, PoisonError};

use crate::python::message::process_side::{SentResponse, put_is_cancelled, put_responses, put_send, put_times};
use crate::python::message::{ReplyValue, RequestTimes, Span};
use crate::triton_process::link::ProcessLink;
use crate::triton_process::memory::ProcessMemory;
use backend::{Answer, AnswerPart, AnswerSink, Ticket, is_answering};
use base::error::Error;
use base::time::Instant;

/// Takes the answers of one batch.
pub(super) struct BatchAnswers {
    link: Arc<ProcessLink>,
    memory: Arc<ProcessMemory>,
    /// The number of its first request; the others follow.
    first: u64,
    began: Instant,
    /// Answers of the run; `None` once it has returned.
    run: Mutex<Option<Vec<RunAnswer>>>,
}

/// The answer to one request during the run.
#[derive(Default)]
struct RunAnswer {
    last: Option<Answer>,
    /// True if it has others, so that the last follows them.
    has_parts: bool,
}

impl BatchAnswers {
    pub(super) fn new(
        link: &Arc<ProcessLink>,
        memory: &Arc<ProcessMemory>,
        first: u64,
        count: usize,
        began: Instant,
    ) -> Arc<Self> {
        let run = (0..count).map(|_| RunAnswer::default()).collect();
        let (link, memory) = (Arc::clone(link), Arc::clone(memory));
        Arc::new(Self { link, memory, first, began, run: Mutex::new(Some(run)) })
    }

    /// The run has returned: sends its answers.
    pub(super) fn handle_run_end(&self, batch: u64, inputs_free: bool) {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        let answers: Vec<Option<Answer>> = run.into_iter().map(|answer| answer.last).collect();
        let times: Vec<_> =
            (self.first..).zip(&answers).filter_map(|(key, answer)| Some(self.times(key, answer.as_ref()?))).collect();
        let mut out = Vec::new();
        if !times.is_empty() {
            put_times(&times, &mut out);
        }
        let responses: Vec<_> = answers.iter().map(|answer| answer.as_ref().map_or(SentResponse::None, sent)).collect();
        let span = self.write(&responses);
        let encoded = span.and_then(|span| {
            let put = put_responses(batch, inputs_free, &span, &responses, &mut out);
            put.map_err(|error| Error::internal(format!("the answers cannot be sent to the server: {error}")))
        });
        if let Err(error) = encoded {
            let failed = |response: &SentResponse<'_>| match response {
                SentResponse::None => SentResponse::None,
                _ => SentResponse::Error(&error),
            };
            let responses: Vec<_> = responses.iter().map(failed).collect();
            // Errors alone always fit.
            let _ = put_responses(batch, inputs_free, &Span::default(), &responses, &mut out);
        }
        self.link.send_main(&out);
    }

    /// Sends one answer by itself.
    fn send(&self, request: u64, answer: &Answer) {
        let mut out = Vec::new();
        put_times(&[self.times(request, answer)], &mut out);
        let response = sent(answer);
        let is_final = answer.part != AnswerPart::More;
        let span = self.write(std::slice::from_ref(&response));
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

    fn write(&self, responses: &[SentResponse<'_>]) -> Result<Span, Error> {
        self.memory.write(responses.iter().flat_map(SentResponse::given).map(|(_, output)| &*output.contents))
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
        let is_last = matches!(answer.part, AnswerPart::Last | AnswerPart::Again);
        if let Some(run) = &mut *self.run.lock().unwrap_or_else(PoisonError::into_inner)
            && let Some(own) = usize::try_from(ticket.index).ok().and_then(|index| run.get_mut(index))
        {
            if is_last && is_answering() && !own.has_parts {
                own.last = Some(answer);
                return;
            }
            own.has_parts = true;
        }
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
