//! The choices of a seed: the setup of the server, the events of the run, and the scripts of its
//! clients.

use std::time::Duration;

use crate::loadgen::random::Random;
use crate::runtime::simulation::LinkRules;
use crate::scheduler::{Policy, QueuePolicy, TimeoutAction};

/// One run.
#[derive(Debug)]
pub struct RunPlan {
    pub shards: usize,
    pub connections_max: usize,
    /// Bytes of the receive memory.
    pub receive_size: usize,
    /// Accepts of a hundred that fail.
    pub accept_failures: u64,
    pub policy: Policy,
    /// Requests that may wait for one model.
    pub waiting_max: usize,
    /// Instances of a model that runs on workers.
    pub workers: usize,
    /// The longest run of a batch.
    pub run_max: Duration,
    /// New instances of a hundred that cannot be made, once the server runs.
    pub renew_failures: u64,
    /// The instant at which the server is told to end; `None` if that is after all clients.
    pub drain_at: Option<Duration>,
    /// The instant at which the models on workers are replaced.
    pub reload_at: Option<Duration>,
    pub clients: Vec<ClientPlan>,
    /// True if nothing goes wrong: then every request is answered with its echo.
    pub is_calm: bool,
}

/// One client, with one connection.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    pub number: u16,
    /// The shard that accepts it.
    pub shard: usize,
    pub start: Duration,
    pub protocol: ClientProtocol,
    pub rules: LinkRules,
    /// Its requests, in groups that it sends without waiting for answers in between.
    pub groups: Vec<Vec<ScriptedRequest>>,
    /// The longest pause between two groups.
    pub pause_max: Duration,
    pub manner: Manner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientProtocol {
    Http1,
    /// gRPC, a call for each request.
    Unary,
    /// gRPC, one stream of requests.
    Stream,
}

/// The behaviour of a client beside asking and reading, with its last group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Nothing.
    Polite,
    /// It closes its sending side, and reads.
    HalfClose,
    /// It closes its socket after a while.
    HangUp(Duration),
    /// It resets the connection after a while.
    Reset(Duration),
    /// It cancels its calls after a while (gRPC), and stays.
    Cancel(Duration),
    /// It sends only a part of its last request, and waits.
    Partial,
    /// It reads nothing for a while.
    Stall(Duration),
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptedRequest {
    /// Tells it from all others of the run; its answer echoes it.
    pub nonce: i32,
    pub target: Target,
    pub deed: Deed,
    /// Numbers of its input beside the nonce and the deed.
    pub padding: usize,
    /// The time for which its client waits for the answer (gRPC).
    pub deadline: Option<Duration>,
}

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The server's liveness: answered without a model.
    Live,
    /// A model that is not there.
    Missing,
    /// The model that runs in the shard.
    Inline,
    /// The model that runs on workers.
    Worker,
    /// The model whose batches are in flight beside their worker.
    Flight,
}

/// The deed of the model with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Deed {
    Echo = 0,
    Fail = 1,
    /// It drops the request unanswered.
    Drop = 2,
    Panic = 3,
    /// It answers with a shape that is not the model's.
    WrongShape = 4,
    /// It never answers, until its device is given up.
    Hang = 5,
}

impl Deed {
    const ILL: [Self; 5] = [Self::Fail, Self::Drop, Self::Panic, Self::WrongShape, Self::Hang];

    pub fn from_number(number: i32) -> Self {
        Self::ILL.into_iter().find(|deed| *deed as i32 == number).unwrap_or(Self::Echo)
    }
}

impl Target {
    /// The model's name.
    pub const fn model(self) -> &'static str {
        match self {
            Self::Live | Self::Missing => "missing",
            Self::Inline => "inline",
            Self::Worker => "worker",
            Self::Flight => "flight",
        }
    }
}

/// Draws a plan.
struct Drawing {
    random: Random,
    is_calm: bool,
    nonce: i32,
}

impl RunPlan {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5eed);
        let is_calm = random.next_below(8) == 0;
        let mut drawing = Drawing { random, is_calm, nonce: 0 };
        let shards = if drawing.percent(40) { 2 } else { 1 };
        let count = 1 + drawing.below(4);
        let clients = (0..count).map(|number| drawing.client(u16::try_from(number).unwrap_or(0), shards)).collect();
        Self {
            shards,
            clients,
            connections_max: if drawing.ill(20) { 1 } else { 16 },
            receive_size: if drawing.ill(25) { 6_000 } else { 1 << 20 },
            accept_failures: if drawing.ill(10) { 50 } else { 0 },
            policy: drawing.policy(),
            waiting_max: if drawing.ill(20) { 2 } else { 64 },
            workers: if drawing.percent(30) { 2 } else { 1 },
            run_max: drawing.time(20_000),
            renew_failures: if drawing.ill(50) { 40 } else { 0 },
            drain_at: drawing.ill(35).then(|| drawing.time(1_500_000)),
            reload_at: drawing.percent(25).then(|| drawing.time(1_000_000)),
            is_calm,
        }
    }
}

impl RunPlan {
    /// A text for a person: a line for the server and one for each client.
    pub fn describe(&self) -> String {
        let clients = self.clients.iter().map(|client| {
            let ClientPlan { number, shard, rules, pause_max, manner, .. } = client;
            format!("c{number} at shard {shard}, {manner:?}, pauses up to {pause_max:?}: {rules:?}\n")
        });
        let server = format!("{:?}\n", Self { clients: Vec::new(), policy: self.policy.clone(), ..*self });
        std::iter::once(server).chain(clients).collect()
    }
}

impl Drawing {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_below(bound)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Something that goes wrong, in runs that are not calm.
    fn ill(&mut self, percent: u64) -> bool {
        self.percent(percent) && !self.is_calm
    }

    fn time(&mut self, micros_max: u64) -> Duration {
        Duration::from_micros(self.below(micros_max))
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    fn policy(&mut self) -> Policy {
        let is_batched = self.percent(70);
        let delay = self.one_of(&[0, 500, 20_000]);
        let timeout = if self.ill(20) { self.time(60_000) } else { Duration::ZERO };
        let action = if self.percent(70) { TimeoutAction::Reject } else { TimeoutAction::Delay };
        Policy {
            rows_max: 4,
            is_batched,
            rows_preferred: if self.percent(30) { vec![2] } else { Vec::new() },
            queue_delay_max: Duration::from_micros(delay),
            preserves_order: self.percent(20),
            queue_default: QueuePolicy { timeout_action: action, timeout_default: timeout, ..QueuePolicy::default() },
            ..Policy::default()
        }
    }

    fn client(&mut self, number: u16, shards: usize) -> ClientPlan {
        let protocol = self.one_of(&[
            ClientProtocol::Http1,
            ClientProtocol::Http1,
            ClientProtocol::Unary,
            ClientProtocol::Unary,
            ClientProtocol::Stream,
        ]);
        let groups = (0..1 + self.below(2)).map(|_| (0..1 + self.below(3)).map(|_| self.ask()).collect()).collect();
        ClientPlan {
            number,
            shard: self.below(shards as u64) as usize,
            start: self.time(400_000),
            protocol,
            rules: self.rules(),
            groups,
            // Now and then longer than an idle connection may stay.
            pause_max: if self.ill(15) { Duration::from_secs(9) } else { Duration::from_millis(300) },
            manner: self.manner(protocol),
        }
    }

    fn rules(&mut self) -> LinkRules {
        LinkRules {
            cut_max: self.one_of(&[1_000_000, 1_000_000, 200, 17]),
            delay_max: self.one_of(&[0, 100, 30_000].map(Duration::from_micros)),
            send_size: self.one_of(&[64_000, 2_500]),
            window_size: self.one_of(&[64_000, 1_500]),
        }
    }

    fn manner(&mut self, protocol: ClientProtocol) -> Manner {
        if !self.ill(50) {
            return Manner::Polite;
        }
        let after = self.time(30_000);
        match self.below(6) {
            0 => Manner::HalfClose,
            1 => Manner::HangUp(after),
            2 => Manner::Reset(after),
            3 => Manner::Partial,
            4 if protocol != ClientProtocol::Http1 => Manner::Cancel(after),
            _ => Manner::Stall(self.time(9_000_000)),
        }
    }

    fn ask(&mut self) -> ScriptedRequest {
        self.nonce += 1;
        let target = match self.below(20) {
            0 => Target::Live,
            1 if !self.is_calm => Target::Missing,
            2..=5 => Target::Inline,
            6..=9 => Target::Flight,
            _ => Target::Worker,
        };
        ScriptedRequest {
            nonce: self.nonce,
            target,
            deed: if self.ill(20) { self.one_of(&Deed::ILL) } else { Deed::Echo },
            padding: if self.percent(15) { self.below(900) as usize } else { 0 },
            deadline: self.ill(25).then(|| Duration::from_millis(1) + self.time(60_000)),
        }
    }
}
