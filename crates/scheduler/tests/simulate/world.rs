//! The world of one schedule: it moves time to the next thing that happens, lets it happen, lets
//! the scheduler decide, and checks every decision against the promises.

use std::collections::VecDeque;

use base::time::Instant;
use scheduler::{
    Admission, Claims, Entry, EntryBatch, Ordering, QueueFull, Refused, ReleaseReason, ResponseTurn, TimeoutAction,
};

use super::fault::Former;
use super::plan::{Arrival, Plan};
use super::random::Random;
use super::reference;

/// A broken promise, in words.
pub type Violation = String;

const TIMELINE_LINES: usize = 40;

pub struct World<'a, S> {
    plan: &'a Plan,
    scheduler: S,
    admission: Admission,
    /// Order of responses, if they keep that of their requests.
    ordering: Option<Ordering<usize>>,
    /// The last response that left.
    sent: Option<usize>,
    requests: Vec<Request>,
    arrived: usize,
    instances: Vec<Seat>,
    now: Instant,
    random: Random,
    counts: Counts,
    timeline: Option<VecDeque<String>>,
}

struct Request {
    state: State,
    level: u64,
    timeout_at: Option<Instant>,
    is_delaying: bool,
    turn: Option<ResponseTurn>,
    /// Outcome of its run, before its response left.
    ran: Option<Outcome>,
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
    Cancelled,
    Expired,
    Failed,
    Refused,
    Served,
}

impl Outcome {
    pub const ALL: [Self; 5] = [Self::Cancelled, Self::Expired, Self::Failed, Self::Refused, Self::Served];
}

/// One instance.
enum Seat {
    Dead { until: Instant },
    Idle,
    Running { batch: Vec<usize>, rows: u32, since: Instant, until: Instant, dies: bool },
}

/// Counts of each kind of event.
#[derive(Debug, Default)]
pub struct Counts {
    outcomes: [u64; 5],
    releases: [u64; ReleaseReason::ALL.len()],
    /// Responses that were held until their turn.
    held: u64,
}

impl Counts {
    pub fn add(&mut self, more: &Self) {
        for (sum, more) in self.outcomes.iter_mut().zip(more.outcomes) {
            *sum += more;
        }
        for (sum, more) in self.releases.iter_mut().zip(more.releases) {
            *sum += more;
        }
        self.held += more.held;
    }

    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    pub fn released(&self, released: ReleaseReason) -> u64 {
        self.releases[released as usize]
    }

    pub fn held(&self) -> u64 {
        self.held
    }
}

impl<'a, S: Former> World<'a, S> {
    pub fn new(plan: &'a Plan, scheduler: S) -> Self {
        let request = |arrival: &Arrival| {
            let level = plan.policy.level(arrival.priority);
            let queue = plan.policy.queue(level);
            let timeout_at = queue.timeout(arrival.timeout).map(|timeout| arrival.at + timeout);
            let is_delaying = queue.timeout_action == TimeoutAction::Delay;
            Request { state: State::Coming, level, timeout_at, is_delaying, turn: None, ran: None }
        };
        Self {
            plan,
            scheduler,
            admission: Admission::new(&plan.policy, plan.bounds),
            ordering: plan.policy.preserves_order.then(|| Ordering::new(plan.arrivals.len())),
            sent: None,
            requests: plan.arrivals.iter().map(request).collect(),
            arrived: 0,
            instances: (0..plan.instance_count).map(|_| Seat::Idle).collect(),
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
        Ok(self.counts)
    }

    /// Runs likewise, and returns the last lines of the timeline.
    pub fn run_to_timeline(mut self) -> String {
        let end = self.run_on().err().unwrap_or_else(|| "all were answered".to_owned());
        self.log(&end, String::new);
        Vec::from(self.timeline.unwrap_or_default()).join("\n")
    }

    fn run_on(&mut self) -> Result<(), Violation> {
        while let Some(wake) = self.wake_at()? {
            self.now = wake;
            self.finish()?;
            self.arrive()?;
            self.cancel()?;
            self.expire()?;
            self.start()?;
            self.check_bounds()?;
        }
        let silent = self.requests.iter().position(|request| !matches!(request.state, State::Done(_)));
        match silent {
            Some(index) => Err(format!("{index} was never answered: {:?}", self.requests[index].state)),
            None => Ok(()),
        }
    }

    /// Instant of the next event; an error if a timer that is due would be missed.
    fn wake_at(&self) -> Result<Option<Instant>, Violation> {
        let plan = self.plan;
        let arrival = plan.arrivals.get(self.arrived).map(|arrival| arrival.at);
        let waiting = || self.waiting().map(|index| (&plan.arrivals[index], &self.requests[index]));
        let cancels = waiting().filter_map(|(arrival, _)| arrival.cancelled_at);
        let timers =
            waiting().filter(|_| plan.is_timed_by_shards).filter_map(|(arrival, request)| request.over_at(arrival));
        let ends = self.instances.iter().filter_map(Seat::until);
        let is_idle = self.instances.iter().any(|seat| matches!(seat, Seat::Idle));
        let asked = if is_idle { self.scheduler.poll_timeout() } else { None };
        if asked.is_some_and(|at| at <= self.now) {
            return Err("it wants to be asked again at once, for ever".to_owned());
        }
        let expired = self.scheduler.poll_expired_timeout().filter(|_| !plan.is_timed_by_shards);
        let wake = arrival.into_iter().chain(cancels).chain(timers).chain(ends).chain(asked).chain(expired).min();
        let over = waiting().filter_map(|(arrival, request)| request.over_at(arrival));
        let delays = waiting().filter(|_| is_idle).map(|(arrival, _)| arrival.at + plan.policy.queue_delay_max);
        let closes =
            reference::close_at(&plan.policy, &self.shown(&self.queue()), &|rows| self.scheduler.run_bound(rows));
        match over.chain(delays).chain(closes.filter(|_| is_idle)).min() {
            Some(due) if wake.is_none_or(|wake| wake > due) => Err(format!("nobody wakes at {}", micros(due))),
            _ => Ok(wake),
        }
    }

    fn finish(&mut self) -> Result<(), Violation> {
        for index in 0..self.instances.len() {
            let seat = &mut self.instances[index];
            if seat.until().is_none_or(|until| until > self.now) {
                continue;
            }
            match std::mem::replace(seat, Seat::Idle) {
                Seat::Running { batch, rows, since, dies, .. } => {
                    let outcome = if dies { Outcome::Failed } else { Outcome::Served };
                    if dies {
                        *seat = Seat::Dead { until: self.now + self.plan.death };
                    } else {
                        self.scheduler.handle_run(rows, self.now.since(since));
                    }
                    self.log(&format!("instance {index} ends"), || format!("{batch:?} {outcome:?}"));
                    for request in batch {
                        self.respond(request, outcome)?;
                    }
                }
                Seat::Dead { .. } => self.log(&format!("instance {index} is back"), String::new),
                Seat::Idle => {}
            }
        }
        Ok(())
    }

    /// A run has ended: its response leaves, at once or in its turn.
    fn respond(&mut self, index: usize, outcome: Outcome) -> Result<(), Violation> {
        let (Some(ordering), Some(turn)) = (&mut self.ordering, self.requests[index].turn) else {
            return self.answer(index, State::Running, outcome);
        };
        self.requests[index].ran = Some(outcome);
        ordering.handle_response(turn, index).map_err(|index| format!("the response of {index} is refused"))?;
        ordering.handle_finished(turn);
        self.counts.held += 1;
        while let Some(index) = self.ordering.as_mut().and_then(|ordering| self.scheduler.poll_response(ordering)) {
            self.counts.held -= u64::from(self.requests[index].turn == Some(turn));
            if let Some(later) = self.sent.replace(index).filter(|sent| *sent > index) {
                return Err(format!("the response of {later} left before that of {index}"));
            }
            let Some(outcome) = self.requests[index].ran else { return Err(format!("{index} has no response")) };
            self.answer(index, State::Running, outcome)?;
        }
        let running = || self.requests.iter().filter(|request| request.state == State::Running);
        match running().next().map(|first| first.ran) {
            Some(Some(_)) => Err("a response is held though it is its turn".to_owned()),
            _ => Ok(()),
        }
    }

    fn arrive(&mut self) -> Result<(), Violation> {
        while let Some(arrival) = self.plan.arrivals.get(self.arrived).filter(|arrival| arrival.at <= self.now) {
            let index = self.arrived;
            self.arrived += 1;
            let admitted = self.admission.enter(self.requests[index].level, arrival.size);
            self.check_admission(index, admitted)?;
            if admitted.is_err() {
                self.log(&format!("{index} arrives"), || format!("refused: {admitted:?}"));
                self.answer(index, State::Coming, Outcome::Refused)?;
                continue;
            }
            self.requests[index].state = State::Waiting;
            self.log(
                &format!("{index} arrives, {} rows, level {}", arrival.rows, self.requests[index].level),
                String::new,
            );
            self.enqueue(index, arrival)?;
        }
        Ok(())
    }

    fn enqueue(&mut self, index: usize, arrival: &Arrival) -> Result<(), Violation> {
        let entry = Entry {
            token: index,
            rows: arrival.rows,
            shape_key: [arrival.shape].into_iter().collect(),
            queued_at: arrival.at,
            priority: arrival.priority,
            timeout: arrival.timeout,
            deadline: arrival.deadline,
        };
        let Err(Refused(entry)) = self.scheduler.handle_request(entry, self.now) else { return Ok(()) };
        self.scheduler.evict_cancelled(&mut Shards { requests: &mut self.requests, lost: None });
        let full = |_| "the queue is full of requests that have gone".to_owned();
        self.scheduler.handle_request(entry, self.now).map_err(full)
    }

    fn cancel(&mut self) -> Result<(), Violation> {
        for index in self.waiting().collect::<Vec<_>>() {
            if self.plan.arrivals[index].cancelled_at.is_some_and(|at| at <= self.now) {
                self.log(&format!("{index} is cancelled"), String::new);
                self.leave(index, Outcome::Cancelled)?;
            }
        }
        Ok(())
    }

    fn expire(&mut self) -> Result<(), Violation> {
        if self.plan.is_timed_by_shards {
            for index in self.waiting().filter(|index| self.is_over(*index)).collect::<Vec<_>>() {
                self.log(&format!("{index} is over"), String::new);
                self.leave(index, Outcome::Expired)?;
            }
        }
        while let Some(expired) = self.scheduler.poll_expired(self.now) {
            let index = expired.token;
            if self.requests[index].state != State::Waiting {
                continue;
            }
            self.log("poll_expired", || format!("{index} {:?}", expired.cause));
            if !self.is_over(index) {
                return Err(format!("{index} expired too early"));
            }
            self.leave(index, Outcome::Expired)?;
        }
        match self.waiting().find(|index| self.is_over(*index)) {
            Some(index) => Err(format!("{index} waits on though its time was over")),
            None => Ok(()),
        }
    }

    fn start(&mut self) -> Result<(), Violation> {
        for seat in 0..self.instances.len() {
            if !matches!(self.instances[seat], Seat::Idle) {
                continue;
            }
            let queue = self.queue();
            let plan = self.plan;
            let want =
                reference::release(&plan.policy, &self.shown(&queue), &|rows| self.scheduler.run_bound(rows), self.now);
            let lost = self.random.percent(plan.claims_lost).then(Vec::new);
            let mut shards = Shards { requests: &mut self.requests, lost };
            let batch = self.scheduler.poll_batch(self.now, &mut shards);
            let lost = shards.lost.unwrap_or_default();
            for index in &lost {
                self.log(&format!("{index} is cancelled at the last moment"), String::new);
                self.requests[*index].state = State::Waiting;
                self.leave(*index, Outcome::Cancelled)?;
            }
            let Some(batch) = batch else {
                self.log(&format!("instance {seat} asks"), || "nothing yet".to_owned());
                if want.is_some() && lost.is_empty() {
                    return Err(format!("{} waits while an instance idles", queue[0]));
                }
                return Ok(());
            };
            self.log(&format!("instance {seat} asks"), || format!("{:?} {}", batch.tokens, batch.released.as_str()));
            self.check_batch(&batch, &queue)?;
            if lost.is_empty() && want != Some(batch.tokens.len()) {
                return Err(format!("{:?} left, it should have been {want:?} of {queue:?}", batch.tokens));
            }
            self.launch(seat, batch);
        }
        Ok(())
    }

    fn launch(&mut self, seat: usize, batch: EntryBatch<usize>) {
        let until = self.now + self.plan.run + self.plan.run_row * batch.rows + std::time::Duration::from_micros(1);
        let dies = self.random.percent(self.plan.deaths);
        for index in &batch.tokens {
            for _ in 0..self.scheduler.leaves() {
                self.admission.leave(self.requests[*index].level, self.plan.arrivals[*index].size);
            }
            self.requests[*index].turn = self.ordering.as_mut().map(Ordering::handle_request);
        }
        self.counts.releases[batch.released as usize] += 1;
        self.instances[seat] = Seat::Running { batch: batch.tokens, rows: batch.rows, since: self.now, until, dies };
    }

    /// A waiting request is answered by its shard.
    fn leave(&mut self, index: usize, outcome: Outcome) -> Result<(), Violation> {
        self.admission.leave(self.requests[index].level, self.plan.arrivals[index].size);
        self.answer(index, State::Waiting, outcome)
    }

    fn answer(&mut self, index: usize, from: State, outcome: Outcome) -> Result<(), Violation> {
        let state = std::mem::replace(&mut self.requests[index].state, State::Done(outcome));
        self.counts.outcomes[outcome as usize] += 1;
        match state {
            State::Done(_) => Err(format!("{index} was answered twice: {state:?}, then {outcome:?}")),
            _ if state != from => Err(format!("{index} was {state:?} when it was answered {outcome:?}")),
            _ => Ok(()),
        }
    }

    /// Checks a batch that left: it has requests, they may run, and they come from the front of the
    /// queue.
    fn check_batch(&self, batch: &EntryBatch<usize>, queue: &[usize]) -> Result<(), Violation> {
        let policy = &self.plan.policy;
        let arrivals = || batch.tokens.iter().map(|index| &self.plan.arrivals[*index]);
        let rows: u32 = arrivals().map(|arrival| arrival.rows).sum();
        let is_alone = batch.tokens.len() == 1;
        let alike = arrivals().all(|arrival| arrival.shape == self.plan.arrivals[batch.tokens[0]].shape);
        if let Some(twice) = (1..batch.tokens.len()).find(|at| batch.tokens[..*at].contains(&batch.tokens[*at])) {
            return Err(format!("{} would be answered twice", batch.tokens[twice]));
        }
        if let Some(index) = batch.tokens.iter().find(|index| self.is_over(**index)) {
            return Err(format!("{index} runs though its time was over"));
        }
        if !(is_alone || policy.is_batched && alike && rows <= policy.rows_max) {
            return Err(format!("{:?} are {rows} rows and no one batch", batch.tokens));
        }
        let front = queue.iter().filter(|index| self.requests[**index].state != State::Done(Outcome::Cancelled));
        if let Some((first, taken)) = front.zip(&batch.tokens).find(|(first, taken)| first != taken) {
            return Err(format!("{taken} passed {first}: higher priority, or earlier in its level"));
        }
        let running = |index: &&usize| self.requests[**index].state == State::Running;
        if let Some(index) = queue.iter().filter(running).find(|index| !batch.tokens.contains(index)) {
            return Err(format!("{index} was claimed and is in no batch"));
        }
        if rows == batch.rows { Ok(()) } else { Err(format!("{:?} has {rows} rows, not {}", batch.tokens, batch.rows)) }
    }

    fn check_admission(&self, index: usize, admitted: Result<(), QueueFull>) -> Result<(), Violation> {
        let (level, size) = (self.requests[index].level, self.plan.arrivals[index].size);
        let own = self.plan.policy.queue(level).entries_max;
        let is_same = |other: &usize| {
            let other = self.requests[*other].level;
            if own > 0 { other == level } else { self.plan.policy.queue(other).entries_max == 0 }
        };
        let count = self.waiting().filter(is_same).count();
        let bytes: usize = self.waiting().map(|index| self.plan.arrivals[index].size).sum();
        let want = match if own > 0 { own } else { self.plan.bounds.requests } {
            max if count >= max => Err(QueueFull::Requests),
            _ if bytes + size > self.plan.bounds.bytes => Err(QueueFull::Bytes),
            _ => Ok(()),
        };
        if admitted == want { Ok(()) } else { Err(format!("{index} should be admitted {want:?}, not {admitted:?}")) }
    }

    fn check_bounds(&self) -> Result<(), Violation> {
        let waiting = self.waiting().count();
        if self.admission.waiting() != waiting {
            return Err(format!("{waiting} wait, not {}", self.admission.waiting()));
        }
        if self.scheduler.len() > self.plan.policy.entries_max {
            return Err(format!("{} entries are held", self.scheduler.len()));
        }
        Ok(())
    }

    fn waiting(&self) -> impl Iterator<Item = usize> {
        let arrived = self.requests[..self.arrived].iter().enumerate();
        arrived.filter(|(_, request)| request.state == State::Waiting).map(|(index, _)| index)
    }

    fn is_over(&self, index: usize) -> bool {
        self.requests[index].over_at(&self.plan.arrivals[index]).is_some_and(|at| at <= self.now)
    }

    /// The waiting requests, in the order in which they should leave.
    fn queue(&self) -> Vec<usize> {
        let mut queue: Vec<_> = self.waiting().collect();
        queue.sort_by_key(|index| {
            let request = &self.requests[*index];
            let delayed = request.timeout_at.filter(|at| *at <= self.now);
            (request.level, delayed, *index)
        });
        queue
    }

    fn shown(&self, queue: &[usize]) -> Vec<reference::Waiting> {
        let shown = |index: &usize| {
            let arrival = &self.plan.arrivals[*index];
            reference::Waiting {
                rows: arrival.rows,
                shape: arrival.shape,
                queued_at: arrival.at,
                deadline: arrival.deadline,
            }
        };
        queue.iter().map(shown).collect()
    }

    fn log(&mut self, event: &str, decision: impl FnOnce() -> String) {
        if self.timeline.is_none() {
            return;
        }
        let line = format!("{:>6} | {event} | {:?} | {}", micros(self.now), self.queue(), decision());
        if let Some(timeline) = &mut self.timeline {
            timeline.push_back(line);
            timeline.drain(..timeline.len().saturating_sub(TIMELINE_LINES));
        }
    }
}

impl Request {
    /// The instant by which it must be answered if it still waits.
    fn over_at(&self, arrival: &Arrival) -> Option<Instant> {
        let timeout_at = self.timeout_at.filter(|_| !self.is_delaying);
        timeout_at.into_iter().chain(arrival.deadline).min()
    }
}

impl Seat {
    fn until(&self) -> Option<Instant> {
        match self {
            Self::Dead { until } | Self::Running { until, .. } => Some(*until),
            Self::Idle => None,
        }
    }
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

fn micros(at: Instant) -> u64 {
    at.as_nanos() / 1_000
}
