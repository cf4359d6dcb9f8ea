//! A client of gRPC, from its script: its own HTTP/2 on the frames of `wire`, a call for each request or a stream for each
//! group of them.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;

use crate::runtime::clock;
use crate::runtime::simulation::{ClientEnd, ReadOutcome, below, note, sleep};
use crate::shard::simulation::http1_client::PATIENCE;
use crate::shard::simulation::ledger::{Ledger, RequestOutcome};
use crate::shard::simulation::plan::{ClientPlan, ClientProtocol, Manner, ScriptedRequest, Target};
use crate::time::Instant;
use crate::wire::hpack::decoder::Decoder;
use crate::wire::hpack::encoder::{Encoder, Indexing};
use crate::wire::http2::error::ErrorCode;
use crate::wire::http2::frame::{
    ACK, END_HEADERS, END_STREAM, FrameHead, FrameKind, HEAD_SIZE, encode, encode_reset, encode_window_update, number,
};
use crate::wire::http2::settings::INITIAL_WINDOW_SIZE;
use crate::wire::http2::{PREFACE, StreamId};
use crate::wire::proto::inference::model_infer_request::InferInputTensor;
use crate::wire::proto::inference::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

/// The time after its deadline at which an answer may still come, beside the time on the way.
const SLACK: Duration = Duration::from_millis(50);
/// Statuses from here on are error codes of RST_STREAM.
const RESET: u16 = 100;

/// A call that has not ended.
struct Call {
    /// Its requests without an answer.
    asks: Vec<ScriptedRequest>,
    /// The position of its last byte in the connection.
    ends_at: u64,
    deadline: Option<Duration>,
    content: Vec<u8>,
    is_stream: bool,
    /// The instant at which its answer began to come.
    began_at: Option<Instant>,
}

struct GrpcClient {
    plan: ClientPlan,
    ledger: Rc<Ledger>,
    end: ClientEnd,
    encoder: Encoder,
    decoder: Decoder,
    input: Vec<u8>,
    sent: u64,
    next_stream: u32,
    calls: BTreeMap<u32, Call>,
    /// Streams that this side has cancelled: the server may not know yet.
    cancelled: HashSet<u32>,
    /// The last stream that the server takes, once it has announced it.
    last: Option<u32>,
    /// True if it has done something for which the server may drop it or make it wait.
    is_at_fault: bool,
}

/// Plays a client to its end.
pub async fn play(plan: ClientPlan, ledger: Rc<Ledger>, end: ClientEnd) {
    let (groups, manner, pause_max) = (plan.groups.clone(), plan.manner, plan.pause_max);
    let mut client = GrpcClient {
        plan,
        ledger,
        end,
        encoder: Encoder::default(),
        decoder: Decoder::default(),
        input: Vec::new(),
        sent: 0,
        next_stream: 1,
        calls: BTreeMap::new(),
        cancelled: HashSet::new(),
        last: None,
        is_at_fault: false,
    };
    client.greet().await;
    let last = groups.len() - 1;
    for (index, group) in groups.into_iter().enumerate() {
        let manner = if index == last { manner } else { Manner::Polite };
        client.ask(&group, manner == Manner::Partial).await;
        match manner {
            Manner::HalfClose => {
                // The server takes the end of the input for the end of the client.
                client.is_at_fault = true;
                client.end.shutdown_write();
            }
            Manner::HangUp(after) | Manner::Reset(after) => {
                client.read_until(clock::now() + after).await;
                client.lose("its client has left", true);
                if matches!(manner, Manner::Reset(_)) {
                    client.end.reset();
                }
                return;
            }
            Manner::Cancel(after) => {
                client.read_until(clock::now() + after).await;
                client.cancel().await;
            }
            Manner::Stall(pause) => {
                client.is_at_fault = true;
                sleep(pause).await;
            }
            Manner::Partial | Manner::Polite => {}
        }
        if !client.read_all().await || client.last.is_some() || manner == Manner::HalfClose {
            return;
        }
        let pause = Duration::from_nanos(below(pause_max.as_nanos() as u64));
        if !client.read_until(clock::now() + pause).await {
            return;
        }
    }
}

impl GrpcClient {
    /// The preface and settings: a client that takes little at a time has a small window for each stream too.
    async fn greet(&mut self) {
        let mut out = PREFACE.to_vec();
        let mut settings = Vec::new();
        if self.plan.rules.window_size < 10_000 {
            settings.extend_from_slice(&INITIAL_WINDOW_SIZE.to_be_bytes());
            settings.extend_from_slice(&100_u32.to_be_bytes());
        }
        encode(FrameKind::Settings, 0, StreamId::CONNECTION, &settings, &mut out);
        self.write(&out).await;
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.sent += bytes.len() as u64;
        if !self.end.write(bytes).await {
            note(|| format!("c{} cannot write", self.plan.number));
        }
    }

    /// Sends a group of requests; the last in part only if `is_partial`.
    async fn ask(&mut self, group: &[ScriptedRequest], is_partial: bool) {
        self.is_at_fault |= is_partial;
        if self.plan.protocol == ClientProtocol::Stream {
            let asks: Vec<_> = group.iter().copied().filter(|ask| ask.target != Target::Live).collect();
            if !asks.is_empty() {
                self.call("ModelStreamInfer", asks, is_partial).await;
            }
            return;
        }
        for (index, ask) in group.iter().enumerate() {
            let method = if ask.target == Target::Live { "ServerLive" } else { "ModelInfer" };
            self.call(method, vec![*ask], is_partial && index + 1 == group.len()).await;
        }
    }

    async fn call(&mut self, method: &str, asks: Vec<ScriptedRequest>, is_partial: bool) {
        let (stream, deadline) = (StreamId(self.next_stream), asks.first().and_then(|ask| ask.deadline));
        self.next_stream += 2;
        let mut out = Vec::new();
        encode(FrameKind::Headers, END_HEADERS, stream, &self.head(method, deadline), &mut out);
        for (index, ask) in asks.iter().enumerate() {
            self.ledger.open(self.plan.number, *ask);
            let mut message = framed(ask);
            let is_last = index + 1 == asks.len();
            let is_cut = is_last && is_partial;
            if is_cut {
                message.truncate(message.len() / 2);
            }
            let flags = if is_last && !is_cut { END_STREAM } else { 0 };
            encode(FrameKind::Data, flags, stream, &message, &mut out);
        }
        let ends_at = self.sent + out.len() as u64 + u64::from(is_partial);
        let is_stream = method == "ModelStreamInfer";
        let call = Call { asks: asks.clone(), ends_at, deadline, content: Vec::new(), is_stream, began_at: None };
        self.calls.insert(stream.0, call);
        self.write(&out).await;
        asks.iter().for_each(|ask| self.ledger.handle_sent(ask.nonce));
    }

    fn head(&mut self, method: &str, deadline: Option<Duration>) -> Vec<u8> {
        let path = format!("/inference.GRPCInferenceService/{method}");
        let mut block = Vec::new();
        self.encoder.begin_block(&mut block);
        let mut field = |name: &str, value: &str| {
            self.encoder.encode(name.as_bytes(), value.as_bytes(), Indexing::Insert, &mut block);
        };
        let known = [(":method", "POST"), (":scheme", "http"), (":path", &path), (":authority", "s")];
        known.into_iter().for_each(|(name, value)| field(name, value));
        field("content-type", "application/grpc");
        field("te", "trailers");
        if let Some(deadline) = deadline {
            field("grpc-timeout", &format!("{}u", deadline.as_micros()));
        }
        block
    }

    /// Cancels the calls that still wait.
    async fn cancel(&mut self) {
        let mut out = Vec::new();
        for (stream, call) in std::mem::take(&mut self.calls) {
            encode_reset(StreamId(stream), ErrorCode::Cancel, &mut out);
            self.cancelled.insert(stream);
            call.asks.iter().for_each(|ask| self.ledger.settle(ask.nonce, RequestOutcome::Lost, None));
        }
        self.write(&out).await;
    }

    /// Reads until everything is answered or the connection is over; returns true if it goes on.
    async fn read_all(&mut self) -> bool {
        while !self.calls.is_empty() {
            let read = self.end.read(clock::now() + PATIENCE).await;
            if !self.handle_read(read).await {
                return false;
            }
        }
        true
    }

    /// Reads until an instant; returns true if the connection goes on.
    async fn read_until(&mut self, until: Instant) -> bool {
        loop {
            match self.end.read(until).await {
                None => return true,
                read => {
                    if !self.handle_read(read).await {
                        return false;
                    }
                }
            }
        }
    }

    async fn handle_read(&mut self, read: Option<ReadOutcome>) -> bool {
        let why = match read {
            Some(ReadOutcome::Bytes(bytes)) => {
                self.input.extend_from_slice(&bytes);
                while let Some((head, payload)) = self.take_frame() {
                    self.handle_frame(head, &payload).await;
                }
                return true;
            }
            Some(ReadOutcome::End) => "its connection was closed",
            Some(ReadOutcome::Reset) => "its connection was reset",
            None => "silence",
        };
        self.lose(why, false);
        false
    }

    /// The connection is over for the calls that still wait.
    fn lose(&mut self, why: &str, has_left: bool) {
        let taken = self.end.taken();
        for (stream, call) in std::mem::take(&mut self.calls) {
            let is_refused = self.last.is_some_and(|last| stream > last);
            let is_excused = has_left || self.is_at_fault || is_refused;
            for ask in call.asks {
                if !is_excused && (taken >= call.ends_at || why == "silence") {
                    let (number, nonce) = (self.plan.number, ask.nonce);
                    self.ledger.broke(format!("request {nonce} of c{number} was read and has no answer: {why}"));
                }
                self.ledger.settle(ask.nonce, RequestOutcome::Lost, None);
            }
        }
    }

    fn take_frame(&mut self) -> Option<(FrameHead, Vec<u8>)> {
        let head = FrameHead::decode(&self.input)?;
        let whole = HEAD_SIZE + head.size;
        if self.input.len() < whole {
            return None;
        }
        let rest = self.input.split_off(whole);
        let payload = std::mem::replace(&mut self.input, rest).split_off(HEAD_SIZE);
        Some((head, payload))
    }

    async fn handle_frame(&mut self, head: FrameHead, payload: &[u8]) {
        let mut out = Vec::new();
        match head.kind {
            FrameKind::Settings if !head.has(ACK) => {
                encode(FrameKind::Settings, ACK, StreamId::CONNECTION, &[], &mut out);
            }
            FrameKind::Ping if !head.has(ACK) => {
                encode(FrameKind::Ping, ACK, StreamId::CONNECTION, payload, &mut out);
            }
            FrameKind::GoAway => {
                self.last = Some(number(payload));
                let code = payload.get(4..).map_or(0, number);
                let last = number(payload);
                note(|| format!("c{} is told to go away after stream {last}, code {code}", self.plan.number));
            }
            FrameKind::RstStream => self.handle_status(head.stream.0, RESET + number(payload) as u16),
            FrameKind::Data => {
                if !payload.is_empty() {
                    let count = payload.len() as u32;
                    encode_window_update(StreamId::CONNECTION, count, &mut out);
                    encode_window_update(head.stream, count, &mut out);
                }
                self.handle_content(head.stream.0, payload);
            }
            FrameKind::Headers => self.handle_fields(head, payload),
            _ => {}
        }
        if !out.is_empty() {
            self.write(&out).await;
        }
    }

    fn handle_fields(&mut self, head: FrameHead, payload: &[u8]) {
        let mut status = None;
        let decoded = self.decoder.decode(payload, |field| {
            if field.name_text == b"grpc-status" {
                status = std::str::from_utf8(field.value).ok().and_then(|text| text.parse::<u16>().ok());
            }
        });
        if decoded.is_err() || !head.has(END_HEADERS) {
            self.ledger.broke(format!("c{} cannot read a field block", self.plan.number));
        }
        if !self.is_expected(head.stream.0) {
            return self
                .ledger
                .broke(format!("c{}: fields on stream {}, which has ended", self.plan.number, head.stream.0));
        }
        if let Some(call) = self.calls.get_mut(&head.stream.0) {
            call.began_at.get_or_insert_with(clock::now);
        }
        if head.has(END_STREAM) {
            self.handle_status(head.stream.0, status.unwrap_or(999));
        }
    }

    fn is_expected(&self, stream: u32) -> bool {
        self.calls.contains_key(&stream) || self.cancelled.contains(&stream)
    }

    fn handle_content(&mut self, stream: u32, payload: &[u8]) {
        if !self.is_expected(stream) {
            self.ledger.broke(format!("c{}: data on stream {stream}, which has ended", self.plan.number));
        }
        let Some(call) = self.calls.get_mut(&stream) else { return };
        call.content.extend_from_slice(payload);
        if !call.is_stream {
            return;
        }
        let mut answers = Vec::new();
        while let Some(message) = take_message(&mut call.content) {
            answers.push(ModelStreamInferResponse::decode(message).unwrap_or_default());
        }
        for answer in answers {
            let response = answer.infer_response.unwrap_or_default();
            let nonce: i32 = response.id.parse().unwrap_or(-1);
            self.take_ask(stream, nonce);
            if answer.error_message.is_empty() {
                self.settle(nonce, RequestOutcome::Answered, echo(&response));
            } else {
                self.settle(nonce, RequestOutcome::Refused(2), None);
            }
        }
    }

    fn take_ask(&mut self, stream: u32, nonce: i32) {
        if let Some(call) = self.calls.get_mut(&stream) {
            call.asks.retain(|ask| ask.nonce != nonce);
        }
    }

    /// A call has ended.
    fn handle_status(&mut self, stream: u32, status: u16) {
        let Some(mut call) = self.calls.remove(&stream) else { return };
        let number = self.plan.number;
        if call.is_stream && status == 0 && !call.asks.is_empty() {
            self.ledger.broke(format!("c{number}: stream {stream} has ended well without all of its answers"));
        }
        let late = self.plan.rules.delay_max * 2 + SLACK;
        for ask in std::mem::take(&mut call.asks) {
            let began_at = call.began_at.unwrap_or_else(clock::now);
            let age = self.ledger.age(ask.nonce, self.end.accepted_at(), began_at);
            if call.deadline.is_some_and(|deadline| age > deadline + late) && !self.is_at_fault && status < RESET {
                self.ledger.broke(format!("request {} of c{number} was answered after {age:?}", ask.nonce));
            }
            if status > 0 {
                self.settle(ask.nonce, RequestOutcome::Refused(status), None);
                continue;
            }
            let message = take_message(&mut call.content);
            let response = message.and_then(|message| ModelInferResponse::decode(message).ok());
            self.settle(ask.nonce, RequestOutcome::Answered, response.as_ref().and_then(echo));
        }
        if !call.content.is_empty() && status == 0 {
            self.ledger.broke(format!("c{number}: stream {stream} has {} bytes too many", call.content.len()));
        }
    }

    fn settle(&self, nonce: i32, outcome: RequestOutcome, echo: Option<i32>) {
        self.ledger.settle(nonce, outcome, echo);
    }
}

/// The message of a request, with its prefix.
fn framed(ask: &ScriptedRequest) -> Vec<u8> {
    let mut numbers = vec![0_i32; ask.padding + 2];
    (numbers[0], numbers[1]) = (ask.nonce, ask.deed as i32);
    let message = ModelInferRequest {
        model_name: ask.target.model().to_owned(),
        id: ask.nonce.to_string(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![1, numbers.len() as i64],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![Bytes::from(
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>(),
        )],
        ..ModelInferRequest::default()
    };
    let message = if ask.target == Target::Live { Vec::new() } else { message.encode_to_vec() };
    let mut framed = vec![0];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(&message);
    framed
}

/// Takes a whole message from the content of a call.
fn take_message(content: &mut Vec<u8>) -> Option<Bytes> {
    let size = number(content.get(1..5)?) as usize;
    if content.len() < size + 5 {
        return None;
    }
    let rest = content.split_off(size + 5);
    Some(Bytes::from(std::mem::replace(content, rest)).slice(5..))
}

/// The nonce in the id and the data of a response, if both are the same.
fn echo(response: &ModelInferResponse) -> Option<i32> {
    let contents = response.raw_output_contents.first()?;
    let nonce = i32::from_le_bytes(*contents.first_chunk::<4>()?);
    (response.id == nonce.to_string()).then_some(nonce)
}
