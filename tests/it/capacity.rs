//! The figures of `docs/guide/capacity.md`: servers behind a balancer, simulated with the scheduler's own code on a
//! simulated clock. `UPDATE_EXPECT=1 cargo test --test it capacity::` writes them into the page.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use deuteron::limits::ADMISSION_SLACK;
use deuteron::policy::AdmissionRule;
use deuteron::scheduler::{Claims, Entry, EntryBatch, Forecast, Policy, Scheduler, ShapeKey};
use deuteron::time::Instant;

/// Requests of one run, of which the first only fill the queues.
const REQUESTS: usize = 60_000;
const FIRST: usize = REQUESTS / 10;
/// Longest wait of a client for its answer.
const LIMIT: Duration = Duration::from_millis(50);
const ROWS_MAX: u32 = 8;

/// A run of the model: a part for each batch and a part for each row.
fn run_time(rows: u32) -> Duration {
    Duration::from_micros(1_000 + 250 * u64::from(rows))
}

/// Requests a second that one instance answers at most: full batches without a pause.
fn most_per_second() -> f64 {
    f64::from(ROWS_MAX) / run_time(ROWS_MAX).as_secs_f64()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Above 0 and below 1.
    fn fraction(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.fraction() * bound as f64) as usize
    }
}

/// The choice of a server for a request.
#[derive(Clone, Copy)]
enum Balancer {
    /// The one with the fewest requests in flight.
    Least,
    /// The better one of two that are drawn.
    TwoChoices,
    RoundRobin,
    Random,
    /// By a key: a thousand of them, the first asked twice as often as the second, and so on.
    Hash,
}

impl Balancer {
    const ALL: [(&'static str, Self); 5] = [
        ("least requests", Self::Least),
        ("better of two", Self::TwoChoices),
        ("round robin", Self::RoundRobin),
        ("random", Self::Random),
        ("hash of a key", Self::Hash),
    ];

    fn choose(self, servers: &[SimulatedServer], request: usize, random: &mut Random) -> usize {
        let load = |index: usize| servers[index].in_flight;
        match self {
            Self::Least => {
                let first = random.below(servers.len());
                // Among equals, the first from a random one on.
                let order = (0..servers.len()).map(|step| (first + step) % servers.len());
                order.min_by_key(|index| load(*index)).unwrap()
            }
            Self::TwoChoices => {
                let (one, two) = (random.below(servers.len()), random.below(servers.len()));
                if load(two) < load(one) { two } else { one }
            }
            Self::RoundRobin => request % servers.len(),
            Self::Random => random.below(servers.len()),
            Self::Hash => {
                let key = (1_000_f64.powf(random.fraction()) - 1.0) as u64;
                Random(key).next() as usize % servers.len()
            }
        }
    }
}

/// A server with `--admission=deadline`: it refuses at once a request that would be late.
struct SimulatedServer {
    scheduler: Scheduler<usize>,
    forecast: Forecast,
    /// Instances without a batch.
    idle: Vec<usize>,
    in_flight: usize,
    /// The instant of its next look at the queue without an event.
    asks_at: Option<Instant>,
}

impl SimulatedServer {
    fn new(instances: usize) -> Self {
        let admission = AdmissionRule::Deadline;
        let policy = Policy { rows_max: ROWS_MAX, is_batched: true, admission, ..Policy::default() };
        Self {
            forecast: Forecast::new(&policy, instances),
            scheduler: Scheduler::new(policy),
            idle: (0..instances).collect(),
            in_flight: 0,
            asks_at: None,
        }
    }

    /// Takes a request, which waits if it can be in time.
    fn handle_request(&mut self, token: usize, now: Instant) {
        let limit = now + LIMIT;
        let is_late = self.forecast.answered_at(0, 1, now).is_some_and(|at| at + ADMISSION_SLACK > limit);
        if is_late && !self.forecast.takes_probe(now) {
            return;
        }
        let shape_key = ShapeKey::new();
        let (rows, timeout, deadline) = (1, Duration::ZERO, Some(limit));
        let entry = Entry { token, rows, shape_key, queued_at: now, priority: 0, timeout, deadline };
        if self.scheduler.handle_request(entry, now).is_ok() {
            self.forecast.handle_request(0, 1);
            self.in_flight += 1;
        }
    }

    /// Drops late requests, and gives an idle instance a batch.
    fn poll(&mut self, now: Instant) -> Option<(usize, EntryBatch<usize>)> {
        while self.scheduler.poll_expired(now).is_some() {
            self.forecast.handle_leave(0, 1);
            self.in_flight -= 1;
        }
        let instance = *self.idle.last()?;
        let batch = self.scheduler.poll_batch(now, &mut Waiting)?;
        self.idle.pop();
        batch.tokens.iter().for_each(|_| self.forecast.handle_leave(0, 1));
        self.forecast.handle_batch(instance, batch.rows, 1, now);
        Some((instance, batch))
    }

    fn handle_done(&mut self, instance: usize, rows: u32) {
        self.idle.push(instance);
        self.in_flight -= rows as usize;
        self.scheduler.handle_run(rows, run_time(rows));
        self.forecast.handle_times(self.scheduler.times(), self.scheduler.rows_full());
        self.forecast.handle_idle(instance);
    }
}

/// Every waiting request waits until it is taken: no client leaves.
struct Waiting;

impl Claims<usize> for Waiting {
    fn is_waiting(&mut self, _: &usize) -> bool {
        true
    }

    fn claim(&mut self, _: &usize) -> bool {
        true
    }
}

/// One setup to simulate.
#[derive(Clone, Copy)]
struct Plan {
    servers: usize,
    instances: usize,
    balancer: Balancer,
    /// Arrival rate, as a share of the instances' capacity.
    load: f64,
}

/// Results of a simulation.
#[derive(Debug, Default)]
struct Figures {
    asked: usize,
    batches: usize,
    rows: usize,
    /// Of those that were answered.
    waits: Vec<Duration>,
}

impl Figures {
    /// The share of all requests that was answered in time.
    fn share(&self) -> f64 {
        self.waits.iter().filter(|wait| **wait <= LIMIT).count() as f64 / self.asked as f64
    }

    fn rows_mean(&self) -> f64 {
        self.rows as f64 / self.batches as f64
    }

    fn p99(&self) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits.get(waits.len() * 99 / 100).copied().unwrap_or_default()
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Arrival,
    /// A batch of a server and its instance is done.
    Done(usize, usize, Vec<usize>),
    Ask(usize),
}

fn simulate(plan: Plan) -> Figures {
    let mut servers: Vec<_> = (0..plan.servers).map(|_| SimulatedServer::new(plan.instances)).collect();
    let (mut random, mut figures) = (Random(7), Figures { asked: REQUESTS - FIRST, ..Figures::default() });
    let rate = plan.load * most_per_second() * (plan.servers * plan.instances) as f64;
    let mut came: Vec<Instant> = Vec::with_capacity(REQUESTS);
    let (mut events, mut number) = (BinaryHeap::new(), 0_u64);
    let mut push = |events: &mut BinaryHeap<_>, at: Instant, what: Happening| {
        number += 1;
        events.push(Reverse((at, number, what)));
    };
    push(&mut events, Instant::ZERO, Happening::Arrival);
    while let Some(Reverse((now, _, what))) = events.pop() {
        let index = match what {
            Happening::Arrival => {
                let token = came.len();
                came.push(now);
                if came.len() < REQUESTS {
                    let gap = Duration::from_secs_f64(-random.fraction().ln() / rate);
                    push(&mut events, now + gap, Happening::Arrival);
                }
                let index = plan.balancer.choose(&servers, token, &mut random);
                servers[index].handle_request(token, now);
                index
            }
            Happening::Done(index, instance, tokens) => {
                servers[index].handle_done(instance, tokens.len() as u32);
                let waits = tokens.into_iter().filter(|token| *token >= FIRST).map(|token| now.since(came[token]));
                figures.waits.extend(waits);
                index
            }
            Happening::Ask(index) => {
                servers[index].asks_at = None;
                index
            }
        };
        while let Some((instance, EntryBatch { tokens, rows, .. })) = servers[index].poll(now) {
            (figures.batches, figures.rows) = (figures.batches + 1, figures.rows + rows as usize);
            push(&mut events, now + run_time(rows), Happening::Done(index, instance, tokens));
        }
        // If all instances are busy, a timer of the queue may be due before one is done.
        let server = &mut servers[index];
        let due = server.scheduler.poll_expired_timeout().filter(|_| server.idle.is_empty());
        if let Some(at) = due.filter(|at| server.asks_at.is_none_or(|asks_at| *at < asks_at)) {
            server.asks_at = Some(at);
            push(&mut events, at, Happening::Ask(index));
        }
    }
    figures
}

/// A line of a table.
fn line(name: &str, plans: &[Plan]) -> String {
    let mut line = format!("| {name} |");
    for plan in plans {
        let figures = simulate(*plan);
        let (share, rows) = (figures.share() * 100.0, figures.rows_mean());
        let p99 = figures.p99().as_secs_f64() * 1e3;
        let _ = write!(line, " {share:.1} %, {p99:.0} ms, {rows:.1} |");
    }
    line
}

fn balancers_table() -> String {
    let loads = [0.7, 0.9, 1.0, 2.0, 3.0];
    let mut table = "| load | 0.7 | 0.9 | 1 | 2 | 3 |\n|---|---|---|---|---|---|\n".to_owned();
    for (name, balancer) in Balancer::ALL {
        let plans = loads.map(|load| Plan { servers: 8, instances: 1, balancer, load });
        let _ = writeln!(table, "{}", line(name, &plans));
    }
    table
}

fn sizes_table() -> String {
    let loads = [0.3, 0.7, 0.9, 1.0];
    let mut table = "| servers × instances | 0.3 | 0.7 | 0.9 | 1 |\n|---|---|---|---|---|\n".to_owned();
    for (servers, instances) in [(1, 8), (2, 4), (4, 2), (8, 1)] {
        let plans = loads.map(|load| Plan { servers, instances, balancer: Balancer::TwoChoices, load });
        let _ = writeln!(table, "{}", line(&format!("{servers} × {instances}"), &plans));
    }
    table
}

#[test]
fn the_figures_of_the_page_are_those_of_the_simulation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/capacity.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let mut new = page.clone();
    for (name, table) in [("balancers", balancers_table()), ("sizes", sizes_table())] {
        let (begin, end) = (format!("<!-- table: {name} -->\n"), "<!-- end -->");
        let from = new.find(&begin).expect("the page has its tables") + begin.len();
        let to = from + new[from..].find(end).expect("a table has its end");
        new.replace_range(from..to, &table);
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, new).unwrap();
    } else {
        assert_eq!(new, page, "UPDATE_EXPECT=1 writes the figures anew");
    }
}

#[test]
fn the_simulation_agrees_with_what_can_be_calculated() {
    let plan = |balancer, load| Plan { servers: 8, instances: 1, balancer, load };
    // Far below its bounds nothing is lost, and batches have few rows.
    let calm = simulate(plan(Balancer::Least, 0.1));
    assert!(calm.share() == 1.0 && calm.rows_mean() < 1.5 && calm.p99() < Duration::from_millis(4), "{}", calm.share());
    // Far beyond, full batches: the answered share is the capacity of the instances.
    let beyond = simulate(plan(Balancer::RoundRobin, 3.0));
    assert!((beyond.rows_mean() - 8.0).abs() < 0.1, "{}", beyond.rows_mean());
    assert!((beyond.waits.len() as f64 / beyond.asked as f64 - 1.0 / 3.0).abs() < 0.01, "{}", beyond.waits.len());
    // A balancer that looks at the queues does better than one that does not.
    let [least, two, random] =
        [Balancer::Least, Balancer::TwoChoices, Balancer::Random].map(|balancer| simulate(plan(balancer, 0.9)).p99());
    assert!(least <= two && two < random, "{least:?} {two:?} {random:?}");
}
