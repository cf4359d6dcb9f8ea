//! Requests through a whole shard, over models that are written here: the details that their
//! instances get beside the tensors, and the parts of their answers that clients see.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_lite::FutureExt;
use prost::Message as _;

use super::*;
use crate::backend::details::CallChain;
use crate::backend::{Batch, Instance, LoadedModel, OutputNeed, Request, RequestDetails, answering, threads};
use crate::error::{Code, Error};
use crate::limits::MODEL_WAITS_MAX;
use crate::metrics::Departure;
use crate::model::config::{CompletionRules, ConfigDraft};
use crate::model::parameters::{ParameterValue, Parameters};
use crate::model::{CorrelationId, ModelSpec};
use crate::policy::ApiCategory;
use crate::pressure::MemoryPressure;
use crate::protocol::front_end::FrontEnd;
use crate::protocol::grpc;
use crate::queue::model_queue::ModelQueue;
use crate::queue::model_queue::queue_producer::QueueProducer;
use crate::queue::served_model::{Placement, ServedModel};
use crate::queue::sync::SegQueue;
use crate::runtime::executor::{IoPath, Runtime};
use crate::runtime::ring::spin::Spin;
use crate::runtime::socket::{Listener, Socket};
use crate::scheduler::{Policy, QueueBounds};
use crate::shard::connections::listener_kind::ListenerKind;
use crate::shard::connections::receive_budget::ShardReceiveBudget;
use crate::shard::connections::{ConnectionBounds, ConnectionRights, ReservedFor, SlotKind};
use crate::shard::mailbox::ControlSender;
use crate::shard::models::model_table::LocalModel;
use crate::shard::requests::access::AccessEntry;
use crate::shard::requests::infer::Arrival;
use crate::shard::requests::reply_stream::ReplyStream;
use crate::shard::requests::rest;
use crate::shard::requests::tracing::HttpTrace;
use crate::shard::server_context::ShardContext;
use crate::shard::sessions::accept::ACCEPTS_IN_TURN;
use crate::shard::sessions::http1;
use crate::tensor::{Datatype, Shape, Tensor};
use crate::time::Instant;
use crate::wire::message::{Fields, Message, Method, Reply};
use crate::wire::proto::inference::infer_parameter::ParameterChoice;
use crate::wire::proto::inference::{InferParameter, ModelInferRequest, ModelInferResponse};

/// The details that an instance got with each request, in order.
type Told = Arc<SegQueue<(Option<Arc<RequestDetails>>, Vec<OutputNeed>)>>;

/// A model with the outputs `y` and `z`, of which it makes `y` only, with a parameter: the number of its answers so
/// far.
#[derive(Clone, Default)]
struct Teller {
    told: Told,
    count: i64,
}

impl LoadedModel for Teller {
    fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(self.clone()))
    }

    fn may_run_inline(&self) -> bool {
        true
    }
}

impl Instance for Teller {
    fn run(&mut self, batch: Batch) {
        for Request { inputs, mut responder, details, .. } in batch.requests {
            self.told.push((details, responder.output_needs.0.to_vec()));
            self.count += 1;
            responder.set_parameters(Parameters(vec![("count".to_owned(), ParameterValue::Int64(self.count))]));
            let missing = Tensor { datatype: Datatype::Int32, shape: Shape::new(), contents: Bytes::new() };
            responder.send(Ok(inputs.into_iter().chain([missing]).collect()));
        }
    }
}

/// A configuration: `identity` is the backend of its text, `backend` that of the model.
fn spec(name: &str, text: &str, backend: &str) -> Arc<ModelSpec> {
    let draft = ConfigDraft::new(name, Some(text.as_bytes()), &[]).unwrap();
    let spec = draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap();
    Arc::new(spec.run_by(backend))
}

fn teller_spec(backend: &str, more: &str) -> Arc<ModelSpec> {
    let tensor = |side, name| format!("{side} {{ name: '{name}' data_type: TYPE_INT32 dims: 1 }} ");
    let tensors = [tensor("input", "x"), tensor("output", "y"), tensor("output", "z")].concat();
    spec("m", &format!("backend: 'identity' {tensors} {more}"), backend)
}

/// An ensemble `e` around `m`, with an output that `m` leaves out.
fn ensemble_spec() -> Arc<ModelSpec> {
    let tensor = |side, name| format!("{side} {{ name: '{name}' data_type: TYPE_INT32 dims: 1 }} ");
    let map = |side, key, value| format!("{side}_map {{ key: '{key}' value: '{value}' }} ");
    let maps = [map("input", "x", "x"), map("output", "y", "a"), map("output", "z", "b")].concat();
    let step = format!("ensemble_scheduling {{ step {{ model_name: 'm' model_version: -1 {maps} }} }}");
    let tensors = [tensor("input", "x"), tensor("output", "a"), tensor("output", "b")].concat();
    spec("e", &format!("platform: 'ensemble' {tensors} {step}"), "")
}

fn no_control() -> ControlSender {
    Arc::new(|_| ())
}

fn server_context(cache_size: usize) -> ServerContext {
    let mut context = trial::server_context(1, no_control());
    Arc::get_mut(&mut context.memory).unwrap().cache_size = cache_size;
    context
}

/// A shard with these models.
fn shard(threads: &Threads, context: ServerContext, models: Vec<(ServedModel, Option<QueueProducer>)>) -> Rc<Shard> {
    let models = models
        .into_iter()
        .map(|(served, producer)| LocalModel::begin(Arc::new(served), producer, threads, &no_control()).unwrap());
    let context = Arc::new(context);
    let own = ShardContext::new(&context, 0);
    let cells = Arc::clone(&own.cells);
    let receive_budget = ShardReceiveBudget::new(Arc::clone(&context.memory.receive), Arc::clone(&cells));
    Rc::new(Shard {
        index: 0,
        connections: Rc::new(Connections::new(ConnectionBounds { count_max: 1, address_count_max: 0 })),
        sessions: ShardSessions::new(&context, receive_budget),
        requests: ShardRequests::new(own.clone()),
        models: ModelTable::new(models, Arc::default(), own.clone()),
        caches: ShardCaches::new(own),
        services: ShardServices::new(None, &context.traces),
        threads: threads.clone(),
        cells,
        server_context: context,
    })
}

fn inline(spec: Arc<ModelSpec>, told: &Told) -> (ServedModel, Option<QueueProducer>) {
    let teller = Teller { told: Arc::clone(told), count: 0 };
    (ServedModel::new(spec, 1, Arc::new(teller), Placement::Inline, 1), None)
}

/// Runs a future on a shard with these models.
fn on_shard<T: Send + 'static, F: Future<Output = T> + 'static>(
    models: Vec<(ServedModel, Option<QueueProducer>)>,
    body: impl FnOnce(Rc<Shard>) -> F + Send,
) -> T {
    on_shard_of(server_context(1 << 16), models, body)
}

/// The same on a shard of a server with this context.
fn on_shard_of<T: Send + 'static, F: Future<Output = T> + 'static>(
    context: ServerContext,
    models: Vec<(ServedModel, Option<QueueProducer>)>,
    body: impl FnOnce(Rc<Shard>) -> F + Send,
) -> T {
    threads::enter(1, |threads| {
        let shard = shard(threads, context, models);
        Runtime::new(IoPath::Auto, Spin::Off).unwrap().run(body(shard)).unwrap()
    })
}

/// The body of the reply to an inference over REST.
async fn post(shard: &Rc<Shard>, model: &str, body: &str) -> String {
    let mut message = Message {
        method: Method::Post,
        path: Bytes::from(format!("/v2/models/{model}/infer")),
        fields: Fields::new(),
        body: Bytes::copy_from_slice(body.as_bytes()),
    };
    let (departure, received) = (Cell::new(Departure::CallCancelled), clock::now());
    let entry = AccessEntry::of_http(shard, &message, received, None);
    let (memory, stream) = (ReceiveReservation::default(), ReplyStream::Http1(Rc::default()));
    let http_trace = &HttpTrace::default();
    let arrival = rest::HttpArrival {
        records: rest::RequestRecords { received, departure: &departure, entry: &entry, http_trace },
        stream,
        rights: ConnectionRights::default(),
        front_end: FrontEnd::Kserve,
    };
    let Reply { body, .. } = rest::handle_message(shard, &mut message, memory, arrival).await.unwrap();
    String::from_utf8(body.concat()).unwrap()
}

const INPUTS: &str = r#""inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[7]}]"#;

/// A request with all optional members.
fn full() -> String {
    format!(
        r#"{{"id":"i","parameters":{{"sequence_id":9,"sequence_end":true,"timeout":5000000,"priority":2,"a":1,"b":"t"}},
            {INPUTS}}}"#
    )
}

/// The details that an instance gets of it.
fn full_details() -> RequestDetails {
    let parameters = [("a", ParameterValue::Int64(1)), ("b", ParameterValue::Text("t".to_owned()))];
    RequestDetails {
        id: "i".to_owned(),
        correlation_id: CorrelationId::from_number(9),
        flags: 2,
        timeout: Duration::from_secs(5),
        priority: 2,
        parameters: Parameters(parameters.map(|(name, value)| (name.to_owned(), value)).into()),
        ..RequestDetails::default()
    }
}

fn took(told: &Told) -> Vec<Option<RequestDetails>> {
    std::iter::from_fn(|| told.pop()).map(|(details, _)| details.map(Arc::unwrap_or_clone)).collect()
}

#[test]
fn a_python_model_is_told_all_and_its_parameters_and_fewer_outputs_reach_the_client() {
    let told = Told::default();
    let models = vec![inline(teller_spec("python", ""), &told)];
    let [first, second] = on_shard(models, |shard| async move {
        let first = post(&shard, "m", &full()).await;
        [first, post(&shard, "m", &format!("{{{INPUTS}}}")).await]
    });
    let y = r#"{"name":"y","datatype":"INT32","shape":[1],"data":[7]}"#;
    let head = r#""model_name":"m","model_version":"1","parameters""#;
    assert_eq!(first, format!(r#"{{"id":"i",{head}:{{"count":1}},"outputs":[{y}]}}"#));
    assert_eq!(second, format!(r#"{{{head}:{{"count":2}},"outputs":[{y}]}}"#));
    assert_eq!(took(&told), [Some(full_details()), None], "what says nothing has no details");
}

#[test]
fn other_models_are_told_the_id_alone_and_must_make_every_output() {
    let told = Told::default();
    let models = vec![inline(teller_spec("identity", ""), &told)];
    let reply = on_shard(models, |shard| async move { post(&shard, "m", &full()).await });
    assert_eq!(reply, r#"{"error":"model 'm' did not produce every output that was asked for"}"#);
    let id = RequestDetails { id: "i".to_owned(), ..RequestDetails::default() };
    assert_eq!(took(&told), [Some(id)], "for the line of a crash");
}

#[test]
fn a_grpc_response_has_the_parameters_and_a_called_model_its_callers() {
    let told = Told::default();
    let models = vec![inline(teller_spec("python", ""), &told)];
    let chain = CallChain::default().with("caller".into(), 1, "caller_0_0".into());
    let deadline = Some(clock::now() + Duration::from_secs(60));
    let sent = chain.clone();
    let response = on_shard(models, move |shard| async move {
        let value = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
        let input = wire::proto::inference::model_infer_request::InferInputTensor {
            name: "x".to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![1],
            ..Default::default()
        };
        let message = ModelInferRequest {
            model_name: "m".to_owned(),
            parameters: [("own".to_owned(), value)].into(),
            inputs: vec![input],
            raw_input_contents: vec![Bytes::from_static(&[7, 0, 0, 0])],
            ..ModelInferRequest::default()
        };
        let bytes = Bytes::from(message.encode_to_vec());
        let model = shard.models.find("m", None).unwrap();
        let served = Arc::clone(model.served());
        let message = grpc::InferMessage::read(&bytes).unwrap();
        let request = grpc::decode::decode(&served.spec, &message, None, &mut ReceiveReservation::default()).unwrap();
        let arrival = Arrival {
            received: clock::now(),
            deadline,
            depth: 0,
            chain: sent,
            trace: None,
            on_device: None,
            payer: None,
        };
        let has_run = Cell::new(false);
        let (inferred, _) = shard.infer(&model, request, arrival, None, &has_run).await.unwrap();
        let parameters = inferred.parameters.as_deref();
        grpc::encode(&served.spec, 1, &inferred.plan, inferred.outputs, parameters).unwrap().concat()
    });
    let response = ModelInferResponse::decode(&response[5..]).unwrap();
    assert_eq!(response.parameters["count"].parameter_choice, Some(ParameterChoice::Int64Param(1)));
    assert_eq!((response.outputs.len(), response.outputs[0].name.as_str()), (1, "y"));
    let parameters = Parameters(vec![("own".to_owned(), ParameterValue::Bool(true))]);
    assert_eq!(took(&told), [Some(RequestDetails { parameters, deadline, chain, ..RequestDetails::default() })]);
}

#[test]
fn the_details_of_a_queued_request_wait_with_it_and_come_with_what_its_client_asked_for() {
    let told = Told::default();
    let policy = Policy { rows_max: 1, ..Policy::default() };
    let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 8, bytes: 1_000 }, 1, 1);
    let teller = Teller { told: Arc::clone(&told), count: 0 };
    let placement = Placement::Worker(Arc::clone(&model_queue));
    let served = ServedModel::new(teller_spec("python", ""), 1, Arc::new(teller.clone()), placement, 1);
    let models = vec![(served, producers.pop())];
    let worker_queue = Arc::clone(&model_queue);
    let worker = std::thread::spawn(move || {
        let mut teller = teller;
        while let Some(batch) = worker_queue.next_batch(0, clock::now) {
            answering(|| teller.run(batch));
        }
    });
    let body = full().replace(r#""inputs""#, r#""outputs":[{"name":"z"}],"inputs""#);
    let queue = Arc::clone(&model_queue);
    let replies = on_shard(models, move |shard| async move {
        let large = format!(r#"{{"parameters":{{"a":"{}"}},{INPUTS}}}"#, "x".repeat(1_000));
        let both = async { [post(&shard, "m", &body).await, post(&shard, "m", &large).await] };
        let turn = async {
            loop {
                queue.wake();
                shard.requests.slots.drain();
                executor::sleep(Duration::from_millis(1)).await;
            }
        };
        both.or(turn).await
    });
    model_queue.stop();
    worker.join().unwrap();
    let [answered, refused] = replies;
    let want = r#"{"id":"i","model_name":"m","model_version":"1","parameters":{"count":1},"outputs":[]}"#;
    assert_eq!(answered, want);
    assert_eq!(refused, r#"{"error":"[request id: <id_unknown>] Exceeds maximum queue size"}"#, "parameters count too");
    let (details, needs) = told.pop().unwrap();
    assert_eq!(details.as_deref(), Some(&full_details()));
    assert_eq!(needs, [OutputNeed::Nothing, OutputNeed::Whole]);
}

#[test]
fn the_steps_of_an_ensemble_are_told_what_its_request_says_and_their_parameters_end_there() {
    let told = Told::default();
    let ensemble =
        ServedModel::new(ensemble_spec(), 1, Arc::new(backend::EnsembleModel), Placement::Ensemble(Arc::from([])), 1);
    let models = vec![inline(teller_spec("python", ""), &told), (ensemble, None)];
    let reply = on_shard(models, |shard| async move { post(&shard, "e", &full()).await });
    let a = r#"{"name":"a","datatype":"INT32","shape":[1],"data":[7]}"#;
    let repeated = r#"{"sequence_id":9,"sequence_start":false,"sequence_end":true}"#;
    let head = r#""id":"i","model_name":"e","model_version":"1""#;
    assert_eq!(reply, format!(r#"{{{head},"parameters":{repeated},"outputs":[{a}]}}"#), "as in Triton");
    assert_eq!(took(&told), [Some(RequestDetails { is_step: true, ..full_details() })]);
}

#[test]
fn answers_with_parameters_are_not_cached() {
    let told = Told::default();
    let models = vec![inline(teller_spec("python", "response_cache { enable: true }"), &told)];
    let replies = on_shard(models, |shard| async move {
        let body = format!("{{{INPUTS}}}");
        [post(&shard, "m", &body).await, post(&shard, "m", &body).await]
    });
    assert!(replies[0].contains(r#""count":1"#) && replies[1].contains(r#""count":2"#), "{replies:?}");
}

#[test]
fn inference_is_refused_from_the_third_step_on_and_in_slots_for_all_but_it() {
    let told = Told::default();
    let got = on_shard(vec![inline(teller_spec("identity", ""), &told)], |shard| async move {
        let board = &shard.server_context.memory.board;
        // 84, 88, 92 and 96 percent of the limit are the thresholds.
        let limit = 1 << 30;
        let mut out = Vec::new();
        for percent in [80, 85, 89, 93, 97] {
            let mut pressure = MemoryPressure::new(limit);
            pressure.handle_look(limit / 100 * percent, Instant::ZERO);
            board.show(&pressure);
            let answer = post(&shard, "m", &format!("{{{INPUTS}}}")).await;
            let of_slot = |slot| {
                shard
                    .requests
                    .admission
                    .check_capacity(slot, Some(ApiCategory::Inference))
                    .err()
                    .map(|error| error.code())
            };
            let (count, memory) = (of_slot(Some(ReservedFor::Count)), of_slot(Some(ReservedFor::Memory)));
            assert_eq!((count, memory), (Some(Code::Unavailable), Some(Code::Exhausted)));
            assert_eq!(
                shard.requests.admission.check_capacity(Some(ReservedFor::Memory), Some(ApiCategory::Health)),
                Ok(())
            );
            out.push((board.step().label(), answer.contains("--memory-limit")));
        }
        out
    });
    let want =
        [("nothing", false), ("keep_alive", false), ("connections", false), ("requests", true), ("heaviest", true)];
    assert_eq!(got, want);
}

#[test]
fn so_many_requests_wait_for_models_and_the_next_is_refused_and_counted() {
    let mut context = trial::server_context(1, no_control());
    context.control_link.model_wait = Some(Duration::from_secs(1));
    let (text, refused, ended) = on_shard_of(context, Vec::new(), |shard| async move {
        let waits = &shard.server_context.control_link.waits;
        let held: Vec<_> = (0..MODEL_WAITS_MAX).map_while(|_| waits.admit_wait(MODEL_WAITS_MAX)).collect();
        assert_eq!(held.len(), MODEL_WAITS_MAX);
        let text = shard.models.want("absent", None).await.unwrap_err().text().to_owned();
        drop(held);
        // There is room now, but no thread that loads: the reply is dropped.
        let ended = shard.models.want("absent", None).await.is_err();
        (text, shard.cells.model_waits.refused.get(), ended)
    });
    assert_eq!(text, "4096 requests wait for models to be loaded (the limit); try again later");
    assert_eq!((refused, ended), (1, true));
}

#[test]
fn of_many_that_connect_at_once_some_are_accepted_before_others_have_their_turn() {
    const COUNT: usize = 100;
    let steps = on_shard(Vec::new(), |mut shard| async move {
        let bounds = ConnectionBounds { count_max: COUNT, address_count_max: 0 };
        Rc::get_mut(&mut shard).unwrap().connections = Rc::new(Connections::new(bounds));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let clients: Vec<_> = (0..COUNT).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let listener = Rc::new(Listener::new(OwnedFd::from(socket), false, Duration::from_secs(5)).unwrap());
        let accepting = executor::spawn(accept(Rc::clone(&shard), listener, ListenerKind::Http));
        let (mut seen, mut steps) = (0, Vec::new());
        while seen < COUNT {
            futures_lite::future::yield_now().await;
            let opened = usize::try_from(shard.cells.connections_opened.get()).unwrap();
            steps.extend(Some(opened - seen).filter(|step| *step > 0));
            seen = opened;
        }
        accepting.cancel().await;
        drop(clients);
        steps
    });
    assert!(steps.iter().all(|step| *step <= ACCEPTS_IN_TURN) && steps.len() >= 4, "{steps:?}");
}

/// The trial of slow clients lets a held connection take 16 KiB. Buffers take the rest.
#[test]
fn the_future_of_a_connection_fits_the_allocators_class_of_seven_kibibytes() {
    let size = on_shard(Vec::new(), |shard| async move {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Socket::from_descriptor(OwnedFd::from(client)).unwrap();
        let (guard, _) = shard.connections.enter(SlotKind::Client, || None, false, clock::now()).unwrap();
        size_of_val(&http1::run(&shard, socket, Vec::new(), &guard, FrontEnd::Kserve))
    });
    assert!(size <= 7 * 1024, "{size} bytes");
}
