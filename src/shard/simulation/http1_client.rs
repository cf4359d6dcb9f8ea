//! A client of HTTP/1.1, from its script: it sends groups of requests, reads their answers in
//! order, and knows the allowed outcomes of a request whose connection ends.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::runtime::clock;
use crate::runtime::simulation::{ClientEnd, ReadOutcome, below, note, sleep};
use crate::shard::simulation::ledger::{Ledger, RequestOutcome};
use crate::shard::simulation::plan::{ClientPlan, Manner, ScriptedRequest, Target};
use crate::time::Instant;

/// Longer than any timer of the server: a client that waits so long was forgotten.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A client, and the requests that it waits for.
struct Http1Client {
    plan: ClientPlan,
    ledger: Rc<Ledger>,
    end: ClientEnd,
    /// Its requests without an answer, in order, and the position in the connection at which each
    /// ends.
    waiting: VecDeque<(ScriptedRequest, u64)>,
    sent: u64,
    input: Vec<u8>,
    /// True if the server has said that it closes.
    is_closing: bool,
    /// True if it has done something for which the server may drop it.
    is_at_fault: bool,
}

/// Plays a client to its end.
pub async fn play(plan: ClientPlan, ledger: Rc<Ledger>, end: ClientEnd) {
    let (groups, manner, pause_max) = (plan.groups.clone(), plan.manner, plan.pause_max);
    let mut client = Http1Client {
        plan,
        ledger,
        end,
        waiting: VecDeque::new(),
        sent: 0,
        input: Vec::new(),
        is_closing: false,
        is_at_fault: false,
    };
    let last = groups.len() - 1;
    for (index, group) in groups.into_iter().enumerate() {
        let manner = if index == last { manner } else { Manner::Polite };
        if !client.send(&group, manner == Manner::Partial).await {
            break;
        }
        match manner {
            Manner::HalfClose => client.end.shutdown_write(),
            Manner::HangUp(after) | Manner::Reset(after) => {
                client.read_until(clock::now() + after).await;
                return client.leave(manner);
            }
            Manner::Stall(pause) => {
                client.is_at_fault = true;
                sleep(pause).await;
            }
            Manner::Cancel(_) | Manner::Partial | Manner::Polite => {}
        }
        if !client.read_all().await {
            return;
        }
        if client.is_closing || manner == Manner::HalfClose {
            break;
        }
        sleep(Duration::from_nanos(below(pause_max.as_nanos() as u64))).await;
    }
    client.read_all().await;
    client.lose("its client has left", true);
}

impl Http1Client {
    /// Sends a group, the last request in part only if `is_partial`. Returns true if it was sent.
    async fn send(&mut self, group: &[ScriptedRequest], is_partial: bool) -> bool {
        for (index, ask) in group.iter().enumerate() {
            let bytes = request(ask);
            self.ledger.open(self.plan.number, *ask);
            self.sent += bytes.len() as u64;
            self.waiting.push_back((*ask, self.sent));
            let is_cut = is_partial && index + 1 == group.len();
            let part = if is_cut { &bytes[..bytes.len() / 2] } else { &bytes[..] };
            self.is_at_fault |= is_cut;
            if !self.end.write(part).await {
                note(|| format!("c{} cannot write", self.plan.number));
                return false;
            }
            self.ledger.handle_sent(ask.nonce);
        }
        true
    }

    /// Reads until everything is answered or the connection is over; returns true if it goes on.
    async fn read_all(&mut self) -> bool {
        while !self.waiting.is_empty() {
            match self.end.read(clock::now() + PATIENCE).await {
                Some(ReadOutcome::Bytes(bytes)) => self.handle_input(&bytes),
                Some(ReadOutcome::End) => {
                    self.lose("its connection was closed", false);
                    return false;
                }
                Some(ReadOutcome::Reset) => {
                    self.lose("its connection was reset", false);
                    return false;
                }
                None => {
                    self.lose("silence", false);
                    return false;
                }
            }
        }
        true
    }

    async fn read_until(&mut self, until: Instant) {
        while let Some(ReadOutcome::Bytes(bytes)) = self.end.read(until).await {
            self.handle_input(&bytes);
        }
    }

    fn leave(mut self, manner: Manner) {
        self.lose("its client has left", true);
        if matches!(manner, Manner::Reset(_)) {
            self.end.reset();
        }
    }

    /// The connection is over for the requests that still wait. The server may leave a request
    /// unanswered that it has not read, or after it said that it closes.
    fn lose(&mut self, why: &str, has_left: bool) {
        let taken = self.end.taken();
        let (number, is_excused) = (self.plan.number, has_left || self.is_closing || self.is_at_fault);
        for (ask, ends_at) in std::mem::take(&mut self.waiting) {
            if !is_excused && (taken >= ends_at || why == "silence") {
                let nonce = ask.nonce;
                self.ledger.broke(format!("request {nonce} of c{number} was read and has no answer: {why}"));
            }
            self.ledger.settle(ask.nonce, RequestOutcome::Lost, None);
        }
    }

    fn handle_input(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while let Some(answer) = self.take_answer() {
            // Refusals that belong to no complete request are answers to bytes that the client
            // still sends.
            let Some((ask, _)) = self.waiting.pop_front() else {
                return self.ledger.broke(format!("c{} has an answer too many: {answer:?}", self.plan.number));
            };
            let outcome = match answer.status {
                200 => RequestOutcome::Answered,
                status => RequestOutcome::Refused(status),
            };
            self.is_closing |= answer.closes;
            self.ledger.settle(ask.nonce, outcome, answer.echo);
        }
    }

    /// The next whole answer that is not interim.
    fn take_answer(&mut self) -> Option<Http1Answer> {
        loop {
            let head_size = self.input.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
            let head = String::from_utf8_lossy(&self.input[..head_size]).to_ascii_lowercase();
            let field = |name: &str| {
                let line = head.lines().find(|line| line.starts_with(name));
                line.and_then(|line| line.get(name.len()..)).map(str::trim)
            };
            let status: u16 = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
            if !head.starts_with("http/1.1 ") || status < 100 {
                self.ledger.broke(format!("c{} cannot read {head:?}", self.plan.number));
                self.input.clear();
                return None;
            }
            let size = field("content-length:").and_then(|size| size.parse().ok()).unwrap_or(0);
            let whole = head_size + if status < 200 { 0 } else { size };
            if self.input.len() < whole {
                return None;
            }
            let closes = field("connection:") == Some("close");
            let rest = self.input.split_off(whole);
            let body = std::mem::replace(&mut self.input, rest).split_off(head_size);
            if status >= 200 {
                return Some(Http1Answer { status, closes, echo: echo(&String::from_utf8_lossy(&body)) });
            }
        }
    }
}

#[derive(Debug)]
struct Http1Answer {
    status: u16,
    closes: bool,
    /// The nonce in its id and its data, if both are the same.
    echo: Option<i32>,
}

fn request(ask: &ScriptedRequest) -> Vec<u8> {
    if ask.target == Target::Live {
        return b"GET /v2/health/live HTTP/1.1\r\nhost: s\r\n\r\n".to_vec();
    }
    let (nonce, deed, model) = (ask.nonce, ask.deed as i32, ask.target.model());
    let numbers = format!("{nonce},{deed}{}", ",0".repeat(ask.padding));
    let count = ask.padding + 2;
    let body = format!(
        r#"{{"id":"{nonce}","inputs":[{{"name":"x","datatype":"INT32","shape":[1,{count}],"data":[{numbers}]}}]}}"#
    );
    let size = body.len();
    format!("POST /v2/models/{model}/infer HTTP/1.1\r\nhost: s\r\ncontent-length: {size}\r\n\r\n{body}").into_bytes()
}

fn echo(body: &str) -> Option<i32> {
    let number = |before: &str| {
        let rest = body.split(before).nth(1)?;
        rest.split(['"', ',', ']']).next()?.parse::<i32>().ok()
    };
    number(r#""id":""#).filter(|id| Some(*id) == number(r#""data":["#))
}
