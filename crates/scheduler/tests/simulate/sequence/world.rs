//! The world of one schedule. An instance is asked when it becomes idle, when an arrival or the clock wakes it, or when
//! the batcher names it: as in the server. Its model keeps for each slot a sum over its inputs, weighted by order, so
//! that an answer shows the sequence whose state it was made of: the property is that **state never crosses ids**.

use std::collections::{HashMap, VecDeque};

use base::time::Instant;
use scheduler::Claims;
use scheduler::sequence::{
    BrokenRequest, RunId, SequenceBatch, SequenceEnd, SequenceEntry, SlotStrategy, UnstartedRequest,
};

use super::fault::Batcher;
use super::plan::{Arrival, Plan};
use crate::random::Random;
use crate::world::Violation;

const TIMELINE_LINES: usize = 40;

pub struct World<'a> {
    plan: &'a Plan,
    batcher: Batcher,
    requests: Vec<Request>,
    arrived: usize,
    /// News that no instance has heard yet, in order.
    news: VecDeque<News>,
    instances: Vec<Seat>,
    /// Requests whose batch is over, before the model has said whether they run again.
    late: Vec<(Instant, usize, RunId)>,
    /// The state of each slot, by instance.
    states: Vec<HashMap<usize, u64>>,
    /// The current sequence of an id.
    current: HashMap<u64, usize>,
    sequences: Vec<Sequence>,
    now: Instant,
    random: Random,
    counts: Counts,
    timeline: Option<VecDeque<String>>,
}

enum News {
    Arrival(usize),
    Departure { id: u64, since: Instant },
}

struct Request {
    state: State,
    /// Its sequence, and the state that is due after it.
    sequence: Option<usize>,
    want: u64,
    got: u64,
    /// Number of its runs.
    runs: u64,
}

/// The world's knowledge of one sequence, by the clients' side alone.
#[derive(Default)]
struct Sequence {
    /// The sum over its requests so far.
    sum: u64,
    /// Requests that are not answered yet.
    pending: usize,
    active_at: Instant,
    has_ended: bool,
    /// True if a client left it, a request was late, or an instance died: it may end because of that.
    is_hurt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Coming,
    Waiting,
    Running,
    Done(Outcome),
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Broken,
    Cancelled,
    Failed,
    Served,
    Unstarted,
}

impl Outcome {
    pub const ALL: [Self; 5] = [Self::Broken, Self::Cancelled, Self::Failed, Self::Served, Self::Unstarted];
}

enum Seat {
    Dead { until: Instant },
    Idle,
    Running { batch: Vec<(usize, RunId)>, until: Instant, dies: bool },
}

/// Counts of each kind of event.
#[derive(Debug, Default)]
pub struct Counts {
    outcomes: [u64; Outcome::ALL.len()],
    ends: [u64; SequenceEnd::ALL.len()],
    empty_rows: u64,
    repeats: u64,
}

impl Counts {
    pub fn add(&mut self, more: &Self) {
        let pairs = self.outcomes.iter_mut().zip(more.outcomes).chain(self.ends.iter_mut().zip(more.ends));
        pairs.for_each(|(sum, more)| *sum += more);
        self.empty_rows += more.empty_rows;
        self.repeats += more.repeats;
    }

    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    pub fn end(&self, end: SequenceEnd) -> u64 {
        self.ends[end as usize]
    }

    pub fn empty_rows(&self) -> u64 {
        self.empty_rows
    }

    /// Runs that were not the first of their request.
    pub fn repeats(&self) -> u64 {
        self.repeats
    }
}

impl<'a> World<'a> {
    pub fn new(plan: &'a Plan, batcher: Batcher) -> Self {
        let request = |_| Request { state: State::Coming, sequence: None, want: 0, got: 0, runs: 0 };
        Self {
            plan,
            batcher,
            requests: plan.arrivals.iter().map(request).collect(),
            arrived: 0,
            news: VecDeque::new(),
            instances: (0..plan.policy.instances).map(|_| Seat::Idle).collect(),
            late: Vec::new(),
            states: vec![HashMap::new(); plan.policy.instances],
            current: HashMap::new(),
            sequences: Vec::new(),
            now: Instant::ZERO,
            random: Random::new(!plan.seed),
            counts: Counts::default(),
            timeline: None,
        }
    }

    /// Records a timeline: slower.
    pub fn with_timeline(mut self) -> Self {
        self.timeline = Some(VecDeque::new());
        self
    }

    /// Runs to the end, or to the first broken promise.
    pub fn run(mut self) -> Result<Counts, Violation> {
        self.run_on()?;
        for end in SequenceEnd::ALL {
            self.counts.ends[end as usize] = self.batcher.ended(end);
        }
        Ok(self.counts)
    }

    /// Runs likewise, and returns the last lines of the timeline.
    pub fn run_to_timeline(mut self) -> String {
        let end = self.run_on().err().unwrap_or_else(|| "all were answered".to_owned());
        self.log(|| end);
        Vec::from(self.timeline.unwrap_or_default()).join("\n")
    }

    fn run_on(&mut self) -> Result<(), Violation> {
        while let Some(wake) = self.wake_at()? {
            self.now = wake;
            let mut asking = self.finish()?;
            let is_released = self.release_late()?;
            self.arrive();
            self.leave();
            let is_due = self.batcher.poll_timeout().is_some_and(|at| at <= self.now);
            if is_due || is_released || !self.news.is_empty() {
                asking.extend(self.idle().take(1));
            }
            while let Some(instance) = asking.pop() {
                if matches!(self.instances[instance], Seat::Idle) {
                    self.ask(instance)?;
                    asking.extend(std::iter::from_fn(|| self.batcher.poll_attention(self.now)));
                }
            }
            if self.batcher.active() > self.plan.policy.instances * self.plan.policy.slots {
                return Err("more sequences than slots".to_owned());
            }
        }
        let silent = self.requests.iter().position(|request| !matches!(request.state, State::Done(_)));
        match silent {
            Some(index) => Err(format!("{index} was never answered: {:?}", self.requests[index].state)),
            None if self.batcher.held() > 0 => Err("something is held after the end".to_owned()),
            None if self.batcher.active() > 0 => Err("a sequence is there after its idle time".to_owned()),
            None => Ok(()),
        }
    }

    fn idle(&self) -> impl Iterator<Item = usize> {
        self.instances.iter().enumerate().filter(|(_, seat)| matches!(seat, Seat::Idle)).map(|(index, _)| index)
    }

    fn wake_at(&self) -> Result<Option<Instant>, Violation> {
        let arrival = self.plan.arrivals.get(self.arrived).map(|arrival| arrival.at);
        let departures = self.plan.arrivals.iter().take(self.arrived);
        let departures = departures.flat_map(|arrival| arrival.cancelled_at.into_iter().chain(arrival.left_at));
        let departures = departures.filter(|at| *at > self.now);
        let ends = self.instances.iter().filter_map(Seat::until);
        let asked = if self.idle().next().is_some() { self.batcher.poll_timeout() } else { None };
        if asked.is_some_and(|at| at <= self.now) {
            return Err("it wants to be asked again at once, for ever".to_owned());
        }
        let late = self.late.iter().map(|(at, ..)| *at);
        Ok(arrival.into_iter().chain(departures).chain(ends).chain(late).chain(asked).min())
    }

    /// Lets batches end. Returns the instances that are idle now.
    fn finish(&mut self) -> Result<Vec<usize>, Violation> {
        let mut asking = Vec::new();
        for index in 0..self.instances.len() {
            if self.instances[index].until().is_none_or(|until| until > self.now) {
                continue;
            }
            match std::mem::replace(&mut self.instances[index], Seat::Idle) {
                Seat::Running { batch, dies, .. } => {
                    let outcome = if dies { Outcome::Failed } else { Outcome::Served };
                    let requests: Vec<usize> = batch.iter().map(|(request, _)| *request).collect();
                    self.log(|| format!("instance {index} ends {requests:?} {outcome:?}"));
                    for request in requests.into_iter().filter(|_| dies || !self.plan.policy.is_iterative) {
                        self.check_answer(request, dies)?;
                        self.answer(request, State::Running, outcome)?;
                    }
                    if dies {
                        self.die(index);
                    } else {
                        self.batcher.handle_done(index, self.now);
                    }
                    for (request, flight) in batch.into_iter().filter(|_| self.plan.policy.is_iterative) {
                        self.land(request, flight)?;
                    }
                }
                Seat::Dead { .. } => {
                    self.log(|| format!("instance {index} is back"));
                    self.batcher.handle_instance_restored(index, self.now);
                }
                Seat::Idle => {}
            }
            asking.push(index);
        }
        Ok(asking)
    }

    /// A batch of iterative sequences is over: the model decides on a request at once, or later.
    fn land(&mut self, request: usize, flight: RunId) -> Result<(), Violation> {
        if self.requests[request].state == State::Running && self.random.percent(self.plan.late) {
            self.late.push((self.now + self.plan.run, request, flight));
            return Ok(());
        }
        self.release(request, flight)
    }

    fn release_late(&mut self) -> Result<bool, Violation> {
        let now = self.now;
        let due: Vec<_> = self.late.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, request, flight) in &due {
            self.release(*request, *flight)?;
        }
        Ok(!due.is_empty())
    }

    /// The model wants a request again, or releases it.
    fn release(&mut self, index: usize, flight: RunId) -> Result<(), Violation> {
        let arrival = &self.plan.arrivals[index];
        if self.requests[index].state == State::Running && self.requests[index].runs < arrival.runs {
            self.requests[index].state = State::Waiting;
            self.log(|| format!("{index} is to run again"));
            let mut shards = Shards { requests: &mut self.requests, lost: None };
            let Err(UnstartedRequest { token }) = self.batcher.handle_rescheduled(flight, index, self.now, &mut shards)
            else {
                return Ok(());
            };
            // Its client ended it, a client left it, or its instance died.
            let is_hurt = arrival.is_end || self.was_left(arrival.id) || self.plan.deaths > 0;
            if !is_hurt {
                return Err(format!("{index} may not run again though nothing befell it"));
            }
            return self.answer(token, State::Waiting, Outcome::Broken);
        }
        if self.requests[index].state == State::Running {
            self.check_answer(index, false)?;
            self.answer(index, State::Running, Outcome::Served)?;
        }
        let mut shards = Shards { requests: &mut self.requests, lost: None };
        self.batcher.handle_finished(flight, self.now, &mut shards);
        Ok(())
    }

    /// Returns true if a client has left a request under an id so far.
    fn was_left(&self, id: u64) -> bool {
        let of_id = self.plan.arrivals.iter().zip(&self.requests).filter(|(arrival, _)| arrival.id == id);
        let left = |at: Option<Instant>| at.is_some_and(|at| at <= self.now);
        of_id.into_iter().any(|(arrival, request)| {
            left(arrival.cancelled_at) || left(arrival.left_at) || request.state == State::Done(Outcome::Cancelled)
        })
    }

    fn die(&mut self, index: usize) {
        let is_renewed = self.random.percent(self.plan.renewals);
        self.log(|| format!("instance {index} dies, renewed: {is_renewed}"));
        self.states[index].clear();
        self.sequences.iter_mut().for_each(|sequence| sequence.is_hurt = true);
        let mut shards = Shards { requests: &mut self.requests, lost: None };
        self.batcher.handle_instance_lost(index, is_renewed, self.now, &mut shards);
        if !is_renewed {
            self.instances[index] = Seat::Dead { until: self.now + self.plan.death };
        }
    }

    /// Checks that an answer comes from its own state.
    fn check_answer(&mut self, index: usize, dies: bool) -> Result<(), Violation> {
        let request = &self.requests[index];
        if dies || request.got == request.want {
            return Ok(());
        }
        Err(format!("{index} was answered from the state of another sequence"))
    }

    fn arrive(&mut self) {
        while let Some(arrival) = self.plan.arrivals.get(self.arrived).filter(|arrival| arrival.at <= self.now) {
            let index = self.arrived;
            self.arrived += 1;
            self.requests[index].state = State::Waiting;
            self.news.push_back(News::Arrival(index));
            self.log(|| {
                let (start, end) = (if arrival.is_start { "^" } else { "" }, if arrival.is_end { "$" } else { "" });
                format!("{index} arrives: {start}{}{end} {:?}", arrival.id, arrival.timeout)
            });
        }
    }

    fn leave(&mut self) {
        for index in 0..self.arrived {
            let arrival = &self.plan.arrivals[index];
            let (is_cancelled, is_left) = (arrival.cancelled_at == Some(self.now), arrival.left_at == Some(self.now));
            let state = self.requests[index].state;
            let is_waiting = state == State::Waiting;
            if !(is_left || is_cancelled && is_waiting) {
                continue;
            }
            self.log(|| format!("{index} is left"));
            if is_waiting {
                self.cancel(index);
            }
            let since = arrival.at;
            // Its state can no longer be relied on.
            self.current.get(&arrival.id).into_iter().for_each(|at| self.sequences[*at].is_hurt = true);
            self.requests[index].sequence.into_iter().for_each(|at| self.sequences[at].is_hurt = true);
            self.news.push_back(News::Departure { id: arrival.id, since });
        }
    }

    /// An idle instance asks: it hears the news, and runs the batch that it is given.
    fn ask(&mut self, instance: usize) -> Result<(), Violation> {
        while let Some(news) = self.news.pop_front() {
            match news {
                News::Arrival(index) => self.enqueue(index)?,
                News::Departure { id, since } => {
                    let mut shards = Shards { requests: &mut self.requests, lost: None };
                    self.batcher.handle_departure(id, since, self.now, &mut shards);
                }
            }
        }
        self.refuse()?;
        let lost = self.random.percent(self.plan.claims_lost).then(Vec::new);
        let mut shards = Shards { requests: &mut self.requests, lost };
        let batch = self.batcher.poll_batch(instance, self.now, &mut shards);
        for index in shards.lost.unwrap_or_default() {
            self.log(|| format!("{index} is cancelled at the last moment"));
            self.requests[index].state = State::Waiting;
            self.cancel(index);
        }
        self.refuse()?;
        let Some(batch) = batch else {
            self.log(|| format!("instance {instance} asks: nothing"));
            return Ok(());
        };
        self.log(|| format!("instance {instance} asks: {:?} ended {:?}", batch.rows, batch.ended));
        self.check_batch(&batch)?;
        self.launch(instance, &batch)
    }

    fn enqueue(&mut self, index: usize) -> Result<(), Violation> {
        let arrival = &self.plan.arrivals[index];
        let entry = SequenceEntry {
            token: index,
            id: arrival.id,
            is_start: arrival.is_start,
            is_end: arrival.is_end,
            shape_key: [arrival.shape].into_iter().collect(),
            queued_at: arrival.at,
            timeout: arrival.timeout,
        };
        let taken = self.batcher.handle_request(entry, self.now);
        if self.plan.policy.is_iterative {
            return self.check_taken(index, arrival, taken.is_ok());
        }
        let known = self.current.get(&arrival.id).copied();
        let runs = known.map(|at| &self.sequences[at]).filter(|sequence| !sequence.has_ended);
        let idle_at = |sequence: &Sequence| sequence.active_at + self.plan.policy.idle_max;
        match taken {
            Err(UnstartedRequest { token }) => {
                let must_run = runs.is_some_and(|sequence| {
                    !sequence.is_hurt && (sequence.pending > 0 || arrival.at < idle_at(sequence))
                });
                if arrival.is_start || must_run {
                    return Err(format!("{index} is refused though its sequence runs"));
                }
                if self.requests[token].state == State::Waiting {
                    self.answer(token, State::Waiting, Outcome::Unstarted)?;
                }
                Ok(())
            }
            Ok(()) if arrival.is_start => {
                self.begin(index, arrival);
                self.join(index, arrival);
                Ok(())
            }
            Ok(()) => match runs {
                None => Err(format!("{index} goes on with a sequence that has ended")),
                // A broken sequence ends when its turn comes.
                Some(sequence) if !sequence.is_hurt && sequence.pending == 0 && arrival.at > idle_at(sequence) => {
                    Err(format!("{index} goes on with a sequence that was idle"))
                }
                Some(_) => {
                    self.join(index, arrival);
                    Ok(())
                }
            },
        }
    }

    /// An iterative sequence is one request: its state is its own alone.
    fn check_taken(&mut self, index: usize, arrival: &Arrival, is_taken: bool) -> Result<(), Violation> {
        self.requests[index].want = (0..arrival.runs).fold(0, |sum, _| add(sum, arrival.value));
        match (is_taken, arrival.is_start) {
            (false, true) => Err(format!("{index} is refused though it begins")),
            (false, false) if self.requests[index].state == State::Waiting => {
                self.answer(index, State::Waiting, Outcome::Unstarted)
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, index: usize, arrival: &Arrival) {
        self.sequences.push(Sequence { active_at: arrival.at, ..Sequence::default() });
        self.current.insert(self.plan.arrivals[index].id, self.sequences.len() - 1);
    }

    fn join(&mut self, index: usize, arrival: &Arrival) {
        let at = self.current[&arrival.id];
        let sequence = &mut self.sequences[at];
        sequence.sum = add(sequence.sum, arrival.value);
        sequence.has_ended |= arrival.is_end;
        sequence.is_hurt |= !arrival.timeout.is_zero();
        let request = &mut self.requests[index];
        (request.sequence, request.want) = (Some(at), sequence.sum);
        if request.state == State::Waiting {
            sequence.pending += 1;
        } else {
            sequence.is_hurt = true;
        }
    }

    fn refuse(&mut self) -> Result<(), Violation> {
        while let Some(BrokenRequest { token, end }) = self.batcher.poll_broken(self.now) {
            self.log(|| format!("{token} is broken: {end:?}"));
            let sequence = self.requests[token].sequence.map(|at| &self.sequences[at]);
            let Arrival { id, is_start, .. } = self.plan.arrivals[token];
            let is_hurt = match end {
                _ if !self.plan.policy.is_iterative => sequence.is_some_and(|sequence| sequence.is_hurt),
                SequenceEnd::Cancel => self.was_left(id),
                SequenceEnd::Instance => self.plan.deaths > 0,
                SequenceEnd::Timeout => true,
                // A request that continues a sequence may be broken; one that starts it may not.
                _ => !is_start,
            };
            if !is_hurt {
                return Err(format!("{token} is broken though nothing befell its sequence"));
            }
            if self.requests[token].state == State::Waiting {
                self.answer(token, State::Waiting, Outcome::Broken)?;
            }
        }
        Ok(())
    }

    fn check_batch(&self, batch: &SequenceBatch<usize>) -> Result<(), Violation> {
        let tokens: Vec<usize> = batch.rows.iter().filter_map(|row| row.token).collect();
        let shape = |index: &usize| self.plan.arrivals[*index].shape;
        let rows_max = match &self.plan.policy.strategy {
            SlotStrategy::Direct { .. } => self.plan.policy.slots,
            SlotStrategy::Oldest(policy) => policy.rows_max.max(1) as usize,
        };
        if let Some(twice) = (1..tokens.len()).find(|at| tokens[..*at].contains(&tokens[*at])) {
            return Err(format!("{} would be answered twice", tokens[twice]));
        }
        if let Some(token) = tokens.iter().find(|index| self.requests[**index].state != State::Running) {
            return Err(format!("{token} runs unclaimed"));
        }
        let is_direct = matches!(self.plan.policy.strategy, SlotStrategy::Direct { .. });
        let in_place = batch.rows.iter().enumerate().all(|(place, row)| row.slot == place);
        let has_last = batch.rows.last().is_some_and(|row| row.token.is_some());
        if batch.rows.len() > rows_max || !has_last || (is_direct && !in_place) {
            return Err(format!("{:?} are no batch", batch.rows));
        }
        if tokens.iter().any(|index| shape(index) != shape(&tokens[0])) {
            return Err(format!("{tokens:?} differ in shape"));
        }
        let running = self.requests.iter().filter(|request| request.state == State::Running).count();
        let known = self.instances.iter().map(|seat| seat.batch().len()).sum::<usize>() + tokens.len();
        let late = self.late.iter().filter(|(_, index, _)| self.requests[*index].state == State::Running).count();
        let known = known + late;
        if running == known { Ok(()) } else { Err("a request was claimed and is in no batch".to_owned()) }
    }

    /// The model runs: the state of a slot goes on with the row of that slot.
    fn launch(&mut self, instance: usize, batch: &SequenceBatch<usize>) -> Result<(), Violation> {
        self.states[instance].retain(|slot, _| !batch.ended.contains(slot));
        for row in &batch.rows {
            let Some(index) = row.token else {
                self.counts.empty_rows += 1;
                continue;
            };
            let arrival = &self.plan.arrivals[index];
            let runs = self.requests[index].runs;
            let is_first = arrival.is_start && runs == 0;
            let before = if is_first { Some(0) } else { self.states[instance].get(&row.slot).copied() };
            let Some(before) = before else {
                return Err(format!("{index} goes on in a slot without its state"));
            };
            let after = add(before, arrival.value);
            let is_iterative = self.plan.policy.is_iterative;
            let want = match is_iterative {
                true => (0..=runs).fold(0, |sum, _| add(sum, arrival.value)),
                false => self.requests[index].want,
            };
            if after != want {
                return Err(format!("{index} sees the state of another sequence"));
            }
            self.counts.repeats += u64::from(runs > 0);
            (self.requests[index].got, self.requests[index].runs) = (after, runs + 1);
            if arrival.is_end && !is_iterative {
                self.states[instance].remove(&row.slot);
            } else {
                self.states[instance].insert(row.slot, after);
            }
        }
        let dies = self.random.percent(self.plan.deaths);
        let batch = batch.rows.iter().filter_map(|row| row.token.zip(row.flight)).collect();
        self.instances[instance] = Seat::Running { batch, until: self.now + self.plan.run, dies };
        Ok(())
    }

    fn cancel(&mut self, index: usize) {
        if let Some(at) = self.requests[index].sequence {
            self.sequences[at].is_hurt = true;
        }
        self.answer(index, State::Waiting, Outcome::Cancelled).expect("it waits");
    }

    fn answer(&mut self, index: usize, from: State, outcome: Outcome) -> Result<(), Violation> {
        let request = &mut self.requests[index];
        let state = std::mem::replace(&mut request.state, State::Done(outcome));
        self.counts.outcomes[outcome as usize] += 1;
        if let Some(at) = request.sequence {
            let sequence = &mut self.sequences[at];
            sequence.pending = sequence.pending.saturating_sub(1);
            sequence.active_at = self.now;
        }
        match state {
            State::Done(_) => Err(format!("{index} was answered twice: {state:?}, then {outcome:?}")),
            _ if state != from => Err(format!("{index} was {state:?} when it was answered {outcome:?}")),
            _ => Ok(()),
        }
    }

    fn log(&mut self, line: impl FnOnce() -> String) {
        let now = self.now.as_nanos() / 1_000;
        if let Some(timeline) = &mut self.timeline {
            timeline.push_back(format!("{now:>6} | {}", line()));
            timeline.drain(..timeline.len().saturating_sub(TIMELINE_LINES));
        }
    }
}

impl Seat {
    fn until(&self) -> Option<Instant> {
        match self {
            Self::Dead { until } | Self::Running { until, .. } => Some(*until),
            Self::Idle => None,
        }
    }

    fn batch(&self) -> &[(usize, RunId)] {
        match self {
            Self::Running { batch, .. } => batch,
            Self::Dead { .. } | Self::Idle => &[],
        }
    }
}

/// A sum that depends on the order, too.
fn add(sum: u64, value: u64) -> u64 {
    sum.wrapping_mul(31).wrapping_add(value)
}

/// The shards' side of a claim.
struct Shards<'a> {
    requests: &'a mut [Request],
    /// Lost claims, if the next claim is lost.
    lost: Option<Vec<usize>>,
}

impl Claims<usize> for Shards<'_> {
    fn is_waiting(&mut self, index: &usize) -> bool {
        self.requests[*index].state == State::Waiting
    }

    fn claim(&mut self, index: &usize) -> bool {
        let request = &mut self.requests[*index];
        if request.state != State::Waiting {
            return false;
        }
        if let Some(lost) = self.lost.as_mut().filter(|lost| lost.is_empty()) {
            lost.push(*index);
            request.state = State::Done(Outcome::Cancelled);
            return false;
        }
        request.state = State::Running;
        true
    }
}
