//! Runs of the model between the steps for the rows of a batch: rows of about the same length together, where that costs less than
//! one by one ([`PaddedRuns`]), whichever requests they are of. A request is answered when its last row has run; the runs of the
//! oldest request come first. All rows of a batch run before the next batch is taken, so that a request waits for at most as many
//! runs as its batch has rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::stepped::assembly::{Assembly, Joining, departed};
use crate::stepped::padding::{PaddedInputs, PaddedRows};
use crate::stepped::proof::{Mixing, PaddingProof};
use crate::{Answer, AnswerSink, Batch, Instance, Request, Ticket, announce_answers};
use base::metrics::{PaddingCells, TeiBatchCells};
use base::tensor::Tensor;
use base::time::Clock;
use model::ModelSpec;
use model::spec::steps::ModelSteps;
use scheduler::{PaddedRuns, RowGroup};

/// A request that is ready for the model between the steps.
pub(super) struct ReadyRequest {
    pub(super) request: Request,
    /// Those of its padded rows, if it has any.
    pub(super) rows: Option<PaddedRows>,
}

/// The padding of a model, for all its instances.
pub(super) struct ModelPadding {
    pub(super) inputs: Arc<PaddedInputs>,
    pub(super) proof: Arc<PaddingProof>,
    pub(super) cells: PaddingCells,
    /// The runs of all text models; `None` if they are not counted.
    pub(super) text_batches: Option<Arc<TeiBatchCells>>,
}

/// The runs of one instance.
pub(super) struct PaddedInstance {
    pub(super) padding: Arc<ModelPadding>,
    costs: PaddedRuns,
}

/// A request whose rows run.
struct DividedRequest {
    inputs: Vec<Tensor>,
    details: Option<Arc<crate::RequestDetails>>,
    rows: PaddedRows,
    way: AnswerWay,
}

/// The way of the answer.
enum AnswerWay {
    /// All rows are in one run, whose outputs are those of the request; `None` once it has run.
    Direct(Option<Box<Request>>),
    Joined(Arc<Assembly>),
}

impl ModelPadding {
    pub(super) fn new(spec: &ModelSpec, steps: &ModelSteps) -> Option<Arc<Self>> {
        let inputs = Arc::new(PaddedInputs::new(spec, steps)?);
        let (proof, cells) = (Arc::default(), PaddingCells::default());
        Some(Arc::new(Self { inputs, proof, cells, text_batches: None }))
    }

    /// Counts the runs of whole requests.
    pub(super) fn count_whole(&self, requests: &[ReadyRequest], rows_max: u32) {
        for rows in requests.iter().filter_map(|ready| ready.rows.as_ref()) {
            self.cells.count(rows.lengths.len() as u64, u64::from(rows.width), filled(&rows.lengths));
        }
        if let Some(batches) = &self.text_batches {
            let runs = whole_runs(requests, rows_max);
            runs.iter().for_each(|run| batches.count(run.rows, run.filled));
        }
    }

    /// Counts a run of some rows.
    fn count(&self, lengths: &[u32], width: u32) {
        let (rows, filled) = (lengths.len() as u64, filled(lengths));
        self.cells.count(rows, u64::from(width), filled);
        if let Some(batches) = &self.text_batches {
            batches.count(rows, filled);
        }
    }
}

impl PaddedInstance {
    pub(super) fn new(padding: Arc<ModelPadding>, rows_max: u32) -> Self {
        Self { padding, costs: PaddedRuns::new(rows_max) }
    }

    /// Returns true if rows run apart from their requests.
    pub(super) fn divides(&self) -> bool {
        self.padding.proof.mixing().1.is_some()
    }

    /// Runs the rows of requests, which all have lengths.
    pub(super) fn run(
        &mut self,
        engine: &mut dyn Instance,
        requests: Vec<ReadyRequest>,
        ended: &mut Vec<usize>,
        clock: Clock,
    ) {
        let mut rows: Vec<(usize, usize)> = Vec::new();
        let mut widths = Vec::new();
        for (index, of) in requests.iter().enumerate() {
            let of = of.rows.iter().flat_map(|rows| &rows.widths).enumerate();
            of.for_each(|(row, width)| {
                rows.push((index, row));
                widths.push(*width);
            });
        }
        let may_pad = self.padding.proof.mixing().0 == Mixing::Any;
        let groups = oldest_first(self.costs.poll_groups(&widths, may_pad));
        let mut running = self.begin(requests, &groups, &rows, &widths);
        for group in groups {
            let group = group.iter().filter_map(|row| rows.get(*row).copied());
            self.run_group(engine, &mut running, group, std::mem::take(ended), clock);
            announce_answers();
        }
    }

    /// Chooses the way of each answer.
    fn begin(
        &self,
        requests: Vec<ReadyRequest>,
        groups: &[RowGroup],
        rows: &[(usize, usize)],
        widths: &[u32],
    ) -> Vec<DividedRequest> {
        // For each request its runs, and the places of the longest.
        let mut runs = vec![(0_usize, 0_u32); requests.len()];
        for group in groups {
            let longest = group.iter().filter_map(|row| widths.get(*row)).max().copied().unwrap_or_default();
            let mut last = None;
            // Rows of one request lie beside each other.
            for (request, _) in group.iter().filter_map(|row| rows.get(*row)) {
                if last.replace(*request) != Some(*request)
                    && let Some((count, width)) = runs.get_mut(*request)
                {
                    *count += 1;
                    *width = longest.max(*width);
                }
            }
        }
        let axes = self.padding.proof.mixing().1.cloned().unwrap_or_default();
        let follows = axes.iter().any(Option::is_some);
        let begin = |(ready, (count, width)): (ReadyRequest, (usize, u32))| {
            let ReadyRequest { mut request, rows } = ready;
            let rows = rows?;
            let (inputs, details) = (std::mem::take(&mut request.inputs), request.details.clone());
            let way = match count == 1 && (!follows || width == rows.width) {
                true => AnswerWay::Direct(Some(Box::new(request))),
                false => {
                    let inputs = Arc::clone(&self.padding.inputs);
                    let joining = Joining::Padded { inputs, axes: axes.clone(), rows: rows.clone() };
                    AnswerWay::Joined(Assembly::new(joining, request.responder, count))
                }
            };
            Some(DividedRequest { inputs, details, rows, way })
        };
        requests.into_iter().zip(runs).filter_map(begin).collect()
    }

    /// Runs some rows together: pairs of a request and a row, in order.
    fn run_group(
        &mut self,
        engine: &mut dyn Instance,
        running: &mut [DividedRequest],
        group: impl Iterator<Item = (usize, usize)>,
        ended: Vec<usize>,
        clock: Clock,
    ) {
        let mut shares: Vec<(usize, Vec<usize>)> = Vec::new();
        for (request, row) in group {
            match shares.last_mut() {
                Some((last, rows)) if *last == request => rows.push(row),
                _ => shares.push((request, vec![row])),
            }
        }
        shares.retain(|(request, _)| running.get_mut(*request).is_some_and(|running| !running.is_over()));
        let of = |(request, rows): &(usize, Vec<usize>)| {
            let known = running.get(*request).map(|running| &running.rows);
            let pairs = rows.iter().filter_map(|row| {
                let known = known?;
                Some((*known.lengths.get(*row)?, *known.widths.get(*row)?))
            });
            pairs.collect::<Vec<_>>()
        };
        let (lengths, widths): (Vec<u32>, Vec<u32>) = shares.iter().flat_map(of).unzip();
        let Some(width) = widths.iter().max().copied() else { return };
        let count = u32::try_from(lengths.len()).unwrap_or(u32::MAX);
        let meter = Arc::new(AtomicUsize::new(shares.len()));
        let began = clock();
        let mut requests = Vec::with_capacity(shares.len());
        for (request, rows) in shares {
            let share = running.get_mut(request).and_then(|running| running.share(&self.padding.inputs, rows, width));
            let Some(mut share) = share else { continue };
            share.responder.set_batch(count, requests.is_empty());
            let meter = Arc::clone(&meter);
            share.responder.answer_through(|inner| Arc::new(MeteredSink { inner, meter }));
            requests.push(share);
        }
        self.padding.count(&lengths, width);
        engine.run(Batch { requests, rows: count, clock, ended });
        match meter.load(Ordering::Acquire) {
            0 => {
                let took = clock().since(began);
                // A clock that stands still says nothing.
                if !took.is_zero() {
                    self.costs.handle_run(count, width, took);
                }
            }
            // It answers later, beside other runs.
            _ => self.costs.handle_overlap(),
        }
    }
}

impl DividedRequest {
    /// Returns true if none of its rows needs to run; answers it if its client has left.
    fn is_over(&mut self) -> bool {
        match &mut self.way {
            AnswerWay::Joined(assembly) => assembly.is_over(),
            AnswerWay::Direct(request) => match request.take_if(|request| request.responder.has_left()) {
                Some(mut left) => {
                    left.responder.set_batch(0, false);
                    left.responder.send(Err(departed()));
                    true
                }
                None => request.is_none(),
            },
        }
    }

    /// Some of its rows as a request of the model.
    fn share(&mut self, inputs: &PaddedInputs, rows: Vec<usize>, width: u32) -> Option<Request> {
        let tensors = inputs.take(&self.inputs, &self.rows, &rows, width);
        match &mut self.way {
            AnswerWay::Direct(request) => request.take().map(|request| Request { inputs: tensors, ..*request }),
            AnswerWay::Joined(assembly) => {
                let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
                let responder = assembly.responder(rows, width);
                let details = self.details.clone();
                Some(Request { inputs: tensors, rows: count, responder, sequence: None, details })
            }
        }
    }
}

/// A run of whole requests.
struct WholeRun {
    width: u32,
    rows: u64,
    /// The sum of the rows' lengths.
    filled: u64,
}

/// The runs of whole requests: those of one width share one, as far as there is room. Other inputs of text models have no shapes of
/// their own.
fn whole_runs(requests: &[ReadyRequest], rows_max: u32) -> Vec<WholeRun> {
    let mut runs: Vec<WholeRun> = Vec::new();
    for of in requests.iter().filter_map(|ready| ready.rows.as_ref()) {
        let (width, rows, filled) = (of.width, of.lengths.len() as u64, filled(&of.lengths));
        let fits = |run: &WholeRun| run.width == width && run.rows + rows <= u64::from(rows_max.max(1));
        match runs.iter_mut().find(|run| fits(run)) {
            Some(run) => (run.rows, run.filled) = (run.rows + rows, run.filled + filled),
            None => runs.push(WholeRun { width, rows, filled }),
        }
    }
    runs
}

fn filled(lengths: &[u32]) -> u64 {
    lengths.iter().map(|length| u64::from(*length)).sum()
}

/// Groups in the order in which the oldest request is answered first, then the next. Rows are in the order of their requests.
fn oldest_first(mut groups: Vec<RowGroup>) -> Vec<RowGroup> {
    groups.sort_by_key(|group| group.first().copied());
    groups
}

/// Notes that a request of a run was answered.
struct MeteredSink {
    inner: Arc<dyn AnswerSink>,
    meter: Arc<AtomicUsize>,
}

impl AnswerSink for MeteredSink {
    fn push(&self, ticket: Ticket, answer: Answer) {
        self.inner.push(ticket, answer);
        self.meter.fetch_sub(1, Ordering::Release);
    }

    fn wake(&self) {
        self.inner.wake();
    }

    fn has_room(&self, ticket: Ticket) -> bool {
        self.inner.has_room(ticket)
    }

    fn has_left(&self, ticket: Ticket) -> bool {
        self.inner.has_left(ticket)
    }
}
