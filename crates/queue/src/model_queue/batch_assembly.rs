//! Turns a batch that the scheduler formed into the one that an instance runs: tensors, responders, and the sinks that
//! keep answers in order.

use std::sync::Arc;

use crate::model_queue::ModelQueue;
use crate::model_queue::batcher::{BatchRow, FormedBatch};
use crate::model_queue::counters::BatchExecution;
use crate::queued_request::QueuedRequest;
use backend::{self, Batch, ExecutionCounter, Request, Responder};
use base::time::{Clock, Stamps};

impl ModelQueue {
    /// Returns sinks that answer the requests of a batch in order (`preserve_ordering`); empty if
    /// the order does not matter. A request that ran before has its sink already. Called under the
    /// lock, so that batches get their places in the order in which they were taken.
    pub(super) fn ordered_sinks(&self, formed: &FormedBatch) -> Vec<Arc<dyn backend::AnswerSink>> {
        let completions = |waiting: &QueuedRequest| Arc::clone(&waiting.completions) as Arc<dyn backend::AnswerSink>;
        let first_runs = || formed.rows.iter().filter_map(|row| row.request.as_ref()).filter(|row| row.again.is_none());
        let sinks =
            self.order.iter().flat_map(|order| first_runs().map(|waiting| order.handle_request(completions(waiting))));
        sinks.collect()
    }

    /// Returns the batch as its instance gets it. `sinks` are those of [`Self::ordered_sinks`], in
    /// the same order.
    pub(super) fn assemble(
        &self,
        formed: FormedBatch,
        sinks: Vec<Arc<dyn backend::AnswerSink>>,
        clock: Clock,
    ) -> Batch {
        let mut sinks = sinks.into_iter();
        let batched = clock();
        let FormedBatch { rows: mut formed, ended, .. } = formed;
        formed.iter_mut().filter_map(|row| row.request.as_mut()).for_each(QueuedRequest::take_inputs);
        let waiting = || formed.iter().filter_map(|row| row.request.as_ref());
        let rows = waiting().fold(0_u32, |sum, waiting| sum.saturating_add(waiting.rows));
        // A slot without a request still is a row of the batch, and the model needs tensors for it. As in Triton it
        // counts in the statistics of batches.
        let empty = formed.iter().filter(|row| row.request.is_none()).count();
        let counted = rows.saturating_add(u32::try_from(empty).unwrap_or(u32::MAX));
        let filler = waiting().next().map(|waiting| waiting.inputs.clone()).unwrap_or_default();
        let batches = Arc::clone(self.counters.batches());
        let executions: Arc<dyn ExecutionCounter> =
            if waiting().nth(1).is_some() { Arc::new(BatchExecution::new(batches)) } else { batches };
        let mut is_first = true;
        let is_iterative = self.sequences.as_ref().is_some_and(|sequences| sequences.is_iterative);
        let requests = formed.into_iter().map(|BatchRow { request, sequence, flight }| {
            let Some(waiting) = request else {
                return Request {
                    inputs: filler.clone(),
                    rows: 1,
                    responder: Responder::nobody(),
                    sequence,
                    details: None,
                };
            };
            let sink = if waiting.again.is_none() { sinks.next() } else { None };
            let mut request = match flight.filter(|_| is_iterative) {
                Some(flight) => self.iterate(waiting, flight, sequence, sink, batched),
                None => {
                    let stamps = Stamps { batched, ..waiting.stamps };
                    let mut responder = Responder::new(sink.unwrap_or(waiting.completions), waiting.ticket, stamps);
                    responder.output_needs = waiting.output_needs;
                    let QueuedRequest { inputs, rows, details, .. } = waiting;
                    Request { inputs, rows, responder, sequence, details }
                }
            };
            request.responder.set_batch(counted, std::mem::take(&mut is_first));
            request.responder.count_in(Arc::clone(&executions));
            request
        });
        let requests = requests.collect();
        debug_assert!(sinks.next().is_none(), "each sink is that of a request");
        Batch { requests, rows, clock, ended }
    }
}
