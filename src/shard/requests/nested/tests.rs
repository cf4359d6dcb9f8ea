//! Calls between models through a gateway, two shards and real workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::trial::{TrialModel, TrialServer, TrialSite, call, model, multiply, order, until, values, vector};
use super::*;
use crate::backend::Batch;
use crate::backend::details::CallChain;
use crate::limits::{NESTED_CALLS_MAX, NESTED_RESPONSES_UNREAD_MAX};
use crate::model::spec::ensemble::{Ensemble, EnsembleStep};
use crate::shard::gateway::ShardGateway;
use crate::shard::mailbox::{ControlEvent, ShardMailbox};
use crate::shard::nested_queue::{NestedQueue, PushOutcome};

fn start(models: Vec<TrialModel>) -> TrialServer {
    TrialServer::start(&Arc::default(), models, true)
}

fn named(outputs: &[(&str, &[f32])]) -> Vec<(String, Vec<f32>)> {
    outputs.iter().map(|(name, values)| ((*name).to_owned(), values.to_vec())).collect()
}

fn chain(links: &[(&str, u64, &str)]) -> CallChain {
    let link = |chain: CallChain, (model, version, instance): &(&str, u64, &str)| {
        chain.with((*model).into(), *version, (*instance).into())
    };
    links.iter().fold(CallChain::default(), link)
}

fn run(batch: Batch) {
    multiply(batch);
}

#[test]
fn a_call_is_checked_and_run_as_a_request_and_counts_for_the_model_that_it_reaches() {
    let inline = TrialModel { site: TrialSite::Inline, ..model("inline", 0, |_, batch| run(batch)) };
    let server = start(vec![model("w", 1, |_, batch| run(batch)), inline]);
    let gateway = &*server.gateway;
    for name in ["w", "inline"] {
        let all = call(gateway, name, &[1.0, 2.0], |_| {}).answer();
        assert_eq!(all, Ok(named(&[("y", &[2.0, 4.0]), ("z", &[3.0, 6.0])])), "{name}");
        let one = call(gateway, name, &[5.0], |call| {
            (call.outputs, call.version) = (vec!["z".to_owned()], Some(1));
        });
        assert_eq!(one.answer(), Ok(named(&[("z", &[15.0])])), "{name}");
    }
    let check = |name: &str, change: fn(&mut NestedCall), want: &str| {
        let error = call(gateway, name, &[1.0], change).refusal();
        assert_eq!((error.code(), error.text()), (Code::Internal, want));
    };
    let unready = "Model nope - Error when running inference: Failed for execute the inference request. Model 'nope' is \
                   not ready.";
    check("nope", |_| {}, unready);
    check("w", |call| call.version = Some(2), &unready.replace("nope", "w"));
    check(
        "w",
        |call| call.outputs = vec!["q".to_owned()],
        "Model w - Error when running inference: unexpected inference output 'q' for model 'w'",
    );
    check(
        "w",
        |call| (call.inputs[0].0, call.details.id) = ("q".to_owned(), "7".to_owned()),
        "Model w - Error when running inference: unexpected inference input 'q' for model 'w'",
    );
    check(
        "w",
        |call| (call.inputs, call.details.id) = (Vec::new(), "7".to_owned()),
        "Model w - Error when running inference: [request id: 7] expected 1 inputs but got 0 inputs for model 'w'. Got \
         input(s) [], but missing required input(s) ['x']. Please provide all required input(s).",
    );
    for name in ["w", "inline"] {
        let statistics = server.model(name).figures().statistics();
        assert_eq!((statistics.inference_count, statistics.execution_count), (2, 2), "{name}");
    }
    for cells in &server.context.metrics.shard_cells {
        assert_eq!((cells.received.get(), cells.succeeded.get()), (0, 0), "no client asked");
        assert!(cells.refused.iter().all(|count| count.get() == 0));
    }
    server.stop();
}

#[test]
fn a_model_calls_one_that_calls_another_and_none_of_them_waits_on_a_shard() {
    let gateway = Arc::new(ShardGateway::default());
    // Each adds one to the result of the next one, and blocks its thread meanwhile, as Python does.
    let caller = |name: &'static str, next: &'static str| {
        let gateway = Arc::clone(&gateway);
        model(name, 1, move |_, batch| {
            for request in batch.requests {
                let x = values(&request.inputs[0]);
                let got = call(&gateway, next, &x, |_| {}).answer();
                let more = |(_, values): (String, Vec<f32>)| {
                    vector(&values.iter().map(|value| value + 1.0).collect::<Vec<_>>())
                };
                request.responder.send(got.map(|outputs| outputs.into_iter().map(more).collect()));
            }
        })
    };
    let inline = TrialModel { site: TrialSite::Inline, ..model("c", 0, |_, batch| run(batch)) };
    let models = vec![caller("a", "b"), caller("b", "c"), inline, caller("lost", "nope")];
    let server = TrialServer::start(&gateway, models, true);
    let calls: Vec<_> = (0..8).map(|index| call(&gateway, "a", &[index as f32], |_| {})).collect();
    for (index, call) in calls.iter().enumerate() {
        let x = index as f32;
        assert_eq!(call.answer(), Ok(named(&[("y", &[2.0 * x + 2.0]), ("z", &[3.0 * x + 2.0])])));
    }
    let error = call(&gateway, "lost", &[1.0], |_| {}).refusal();
    assert!(error.text().ends_with("Model 'nope' is not ready."), "{error}");
    let counted = |name: &str| server.model(name).figures().statistics().inference_count;
    assert_eq!(["a", "b", "c"].map(counted), [8, 8, 8]);
    server.stop();
}

/// Sends `parts` parts, then the end; counts the parts, and stops when the caller has no room.
fn repeat(parts: usize, sent: &Arc<AtomicUsize>) -> impl Fn(usize, Batch) + Send + Sync + use<> {
    let sent = Arc::clone(sent);
    move |_, batch: Batch| {
        for mut request in batch.requests {
            let x = request.inputs[0].clone();
            for _ in 0..parts {
                sent.fetch_add(1, Ordering::SeqCst);
                request.responder.send_more(vec![x.clone(), x.clone()]);
            }
            request.responder.end();
        }
    }
}

#[test]
fn a_decoupled_model_needs_a_caller_who_takes_many_and_waits_until_that_reads() {
    let sent = Arc::new(AtomicUsize::new(0));
    let parts = NESTED_RESPONSES_UNREAD_MAX * 2;
    let decoupled = |mut model: TrialModel| {
        model.spec.is_decoupled = true;
        model
    };
    let none = Arc::new(AtomicUsize::new(0));
    let models = vec![
        decoupled(model("d", 1, repeat(parts, &sent))),
        decoupled(model("none", 1, repeat(0, &none))),
        model("plain", 1, |_, batch| run(batch)),
    ];
    let server = start(models);
    let gateway = &*server.gateway;
    let error = call(gateway, "d", &[1.0], |_| {}).refusal();
    let want = "Model d - Error when running inference: Model d is using the decoupled. The current BLS request call \
                doesn't support models using the decoupled transaction policy. Please use 'decoupled=True' argument to \
                the 'exec' or 'async_exec' calls for decoupled models.'";
    assert_eq!((error.code(), error.text()), (Code::Internal, want));
    let many = call(gateway, "d", &[1.0], |call| call.is_decoupled = true);
    until(|| many.state.unread() == NESTED_RESPONSES_UNREAD_MAX);
    for index in 0..NESTED_RESPONSES_UNREAD_MAX {
        assert!(!many.next().is_final, "{index}");
    }
    assert!(many.poll().is_none(), "the others wait until it reads");
    for index in NESTED_RESPONSES_UNREAD_MAX..parts {
        many.state.handle_read();
        let part = many.next();
        assert_eq!((part.is_final, part.outputs.unwrap().len()), (false, 2), "{index}");
    }
    assert!(many.poll().is_none());
    (0..NESTED_RESPONSES_UNREAD_MAX).for_each(|_| many.state.handle_read());
    assert_eq!((many.answer(), many.state.unread()), (Ok(Vec::new()), 0), "the bare end");
    let figures = server.model("d").figures().statistics().responses;
    let counts = |of: &str| {
        let named =
            figures.iter().map(|figures| figures.by_name().into_iter().find(|(name, _)| *name == of).unwrap().1);
        named.map(|total| total.count).sum::<u64>()
    };
    assert_eq!((figures.len(), counts("success"), counts("empty_response")), (parts + 1, parts as u64, 1));
    let none = call(gateway, "none", &[1.0], |call| call.is_decoupled = true);
    assert_eq!(none.answer(), Ok(Vec::new()));
    let plain = call(gateway, "plain", &[1.0], |call| call.is_decoupled = true);
    assert_eq!(plain.answer().unwrap().len(), 2, "one final response with outputs");
    server.stop();
}

/// A model that keeps its batch until it is told to go on, and notes if its clients have left by
/// then.
fn held(
    go_on: &Arc<AtomicBool>,
    has_begun: &Arc<AtomicUsize>,
    has_left: &Arc<AtomicBool>,
) -> impl Fn(usize, Batch) + Send + Sync + use<> {
    let (go_on, has_begun, has_left) = (Arc::clone(go_on), Arc::clone(has_begun), Arc::clone(has_left));
    move |_, batch| {
        has_begun.fetch_add(1, Ordering::SeqCst);
        until(|| go_on.load(Ordering::SeqCst));
        has_left.store(batch.requests.iter().all(|request| request.responder.has_left()), Ordering::SeqCst);
        run(batch);
    }
}

#[test]
fn a_cancelled_call_and_a_late_one_leave_the_queue_and_the_model_as_a_client_does() {
    let (go_on, has_begun, has_left) = (Arc::default(), Arc::default(), Arc::default());
    let server = start(vec![model("h", 1, held(&go_on, &has_begun, &has_left))]);
    let gateway = &*server.gateway;
    let runs = call(gateway, "h", &[1.0], |_| {});
    until(|| has_begun.load(Ordering::SeqCst) == 1);
    let waits = call(gateway, "h", &[1.0], |_| {});
    let late = call(gateway, "h", &[1.0], |call| {
        call.details.deadline = Some(clock::now() + Duration::from_millis(20));
    });
    assert_eq!(late.refusal().code(), Code::DeadlineExceeded);
    until(|| server.queue("h").waiting() == 1);
    waits.state.cancel();
    assert_eq!(waits.refusal().code(), Code::Cancelled);
    assert_eq!(server.queue("h").waiting(), 0, "neither waits any more");
    runs.state.cancel();
    assert_eq!(runs.refusal().code(), Code::Cancelled);
    go_on.store(true, Ordering::SeqCst);
    until(|| has_left.load(Ordering::SeqCst));
    let before = call(gateway, "h", &[1.0], |call| call.state.cancel());
    assert_eq!(before.refusal().code(), Code::Cancelled, "cancelled before it began");
    assert!(call(gateway, "h", &[1.0], |_| {}).answer().is_ok(), "the model serves on");
    server.stop();
}

fn ensemble(name: &str, step: &str) -> TrialModel {
    let mut model = TrialModel { site: TrialSite::Ensemble, ..model(name, 0, |_, _| {}) };
    model.spec.ensemble = Some(Arc::new(Ensemble {
        tensors: ["x", "y", "z"].map(str::to_owned).to_vec(),
        steps: vec![EnsembleStep {
            namespace: String::new(),
            model: step.to_owned(),
            version: None,
            inputs: vec![("x".to_owned(), 0)],
            outputs: vec![("y".to_owned(), 1), ("z".to_owned(), 2)],
        }],
        inputs: vec![0],
        outputs: vec![1, 2],
        has_labels: vec![false, false],
        in_flight_max: 0,
    }));
    model
}

#[test]
fn a_call_that_could_only_wait_for_itself_is_refused_at_once() {
    let server = start(vec![
        model("one", 1, |_, batch| run(batch)),
        model("two", 2, |_, batch| run(batch)),
        ensemble("of_one", "one"),
        ensemble("nested", "of_one"),
    ]);
    let gateway = &*server.gateway;
    let outcome = |name: &str, links: &[(&str, u64, &str)]| {
        let details = chain(links);
        call(gateway, name, &[1.0], |call| call.details.chain = details).answer().map(|outputs| outputs.len())
    };
    let text = |within: &str, held: &str| {
        Err(Error::unavailable(format!(
            "{within}every instance of model '{held}' version 1 already waits for this call, which would wait for ever; \
             raise 'count' of its instance_group"
        )))
    };
    assert_eq!(outcome("one", &[("one", 1, "0")]), text("", "one"));
    assert_eq!(outcome("one", &[("one", 1, "0"), ("two", 1, "0")]), text("", "one"), "with others between");
    assert_eq!(outcome("one", &[("one", 2, "0"), ("other", 1, "0")]), Ok(2), "another version, another model");
    assert_eq!(outcome("two", &[("two", 1, "0"), ("two", 1, "0")]), Ok(2), "one instance is free");
    assert_eq!(outcome("two", &[("two", 1, "0"), ("one", 1, "0"), ("two", 1, "1")]), text("", "two"));
    assert_eq!(outcome("of_one", &[]), Ok(2));
    assert_eq!(
        outcome("of_one", &[("one", 1, "0")]),
        text("in ensemble 'of_one', step 1 ('one'): ", "one"),
        "a step of an ensemble"
    );
    let within = "in ensemble 'nested', step 1 ('of_one'): in ensemble 'of_one', step 1 ('one'): ";
    assert_eq!(outcome("nested", &[("one", 1, "0")]), text(within, "one"));
    let deep: Vec<_> = (0..=NESTED_CALLS_DEPTH_MAX).map(|_| ("other", 1, "0")).collect();
    assert_eq!(outcome("one", &deep[1..]), Ok(2));
    let error = outcome("one", &deep).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(error.text().contains("the call is 17 calls deep, at most 16 are allowed"), "{error}");
    server.stop();
}

#[test]
fn models_that_call_each_other_without_end_are_stopped_when_no_instance_is_free() {
    let gateway = Arc::new(ShardGateway::default());
    // Each calls the next, as Python models do: with its own name added to the chain of its request.
    let caller = |name: &'static str, workers: usize, next: &'static str| {
        let gateway = Arc::clone(&gateway);
        let mut model = model(name, workers, move |index, batch| {
            for request in batch.requests {
                let chain = request.details.as_ref().map(|details| details.chain.clone()).unwrap_or_default();
                let chain = chain.with(name.into(), 1, index.to_string().as_str().into());
                let x = values(&request.inputs[0]);
                let got = call(&gateway, next, &x, |call| call.details.chain = chain).answer();
                request.responder.send(got.map(|_| Vec::new()));
            }
        });
        // Other backends do not see the callers.
        model.spec = model.spec.run_by("python");
        model
    };
    let models = vec![caller("r", 3, "r"), caller("a", 2, "of_b"), ensemble("of_b", "b"), caller("b", 4, "a")];
    let server = TrialServer::start(&gateway, models, true);
    let counted = |name: &str| {
        let statistics = server.model(name).figures().statistics();
        statistics.inference.fail.count
    };
    let error = call(&gateway, "r", &[1.0], |_| {}).refusal();
    assert!(error.text().starts_with("every instance of model 'r' version 1 already waits"), "{error}");
    assert_eq!((error.code(), counted("r")), (Code::Unavailable, 3), "each instance ran it once");
    let error = call(&gateway, "a", &[1.0], |_| {}).refusal();
    assert!(error.text().contains("every instance of model 'a' version 1 already waits"), "{error}");
    assert_eq!((counted("a"), counted("b")), (2, 2), "through an ensemble too");
    server.stop();
}

#[test]
fn a_drain_waits_for_calls_in_flight_and_refuses_later_ones() {
    let gateway = Arc::new(ShardGateway::default());
    let early = call(&gateway, "h", &[1.0], |_| {}).refusal();
    assert_eq!(early, Error::unavailable("server is starting; BLS calls are refused until it serves"));
    let (go_on, has_begun, has_left) = (Arc::default(), Arc::default(), Arc::default());
    let models = vec![model("h", 1, held(&go_on, &has_begun, &has_left)), model("w", 1, |_, batch| run(batch))];
    let server = TrialServer::start(&gateway, models, true);
    let runs = call(&gateway, "h", &[1.0], |_| {});
    until(|| has_begun.load(Ordering::SeqCst) == 1);
    server.context.lifecycle.drain();
    let nested = |context: &crate::shard::ServerContext| {
        context.control_link.mailboxes.iter().filter(|mailbox| mailbox.nested().is_open()).count()
    };
    // The shard that has nothing in flight ends; the other runs what models still call.
    until(|| nested(&server.context) == 1);
    assert!(call(&gateway, "w", &[1.0], |_| {}).answer().is_ok());
    go_on.store(true, Ordering::SeqCst);
    assert!(runs.answer().is_ok());
    until(|| nested(&server.context) == 0);
    let late = call(&gateway, "w", &[1.0], |_| {}).refusal();
    assert_eq!(late, Error::unavailable("server is stopping; BLS calls are refused"));
    server.stop();
}

#[test]
fn a_shard_takes_so_many_and_what_it_drops_is_answered() {
    let (sender, replies) = channel();
    struct Sink(std::sync::mpsc::Sender<NestedReply>);
    impl ReplySink for Sink {
        fn push(&self, reply: NestedReply) {
            self.0.send(reply).unwrap();
        }
    }
    let work = || {
        NestedWork::call(NestedCall {
            model: "m".to_owned(),
            version: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            is_decoupled: false,
            allows_no_rows: false,
            details: RequestDetails::default(),
            replies: Arc::new(Sink(sender.clone())),
            state: Arc::default(),
        })
    };
    let queue = NestedQueue::default();
    assert!(matches!(queue.push(work()), PushOutcome::Back(_)), "it does not run yet");
    assert!(replies.try_recv().is_ok());
    queue.open();
    for _ in 0..NESTED_CALLS_MAX {
        assert!(matches!(queue.push(work()), PushOutcome::Pushed));
    }
    assert!(matches!(queue.push(work()), PushOutcome::Full(_)));
    assert!(replies.try_recv().is_ok());
    drop(queue.poll());
    assert_eq!(replies.try_recv().unwrap().outputs.unwrap_err().text(), "server is stopping; BLS calls are refused");
    assert!(matches!(queue.push(work()), PushOutcome::Pushed), "there is room again");
    queue.close();
    drop(queue);
    assert_eq!(replies.try_iter().count(), NESTED_CALLS_MAX);
    // A shard whose thread ends without having drained.
    let mailbox = ShardMailbox::default();
    mailbox.nested().open();
    assert!(matches!(mailbox.push_nested(work()), PushOutcome::Pushed));
    mailbox.close();
    assert_eq!(replies.try_recv().unwrap().outputs.unwrap_err().text(), "server is stopping; BLS calls are refused");
    assert_eq!((mailbox.nested().in_flight(), mailbox.nested().is_open()), (0, false));
}

#[test]
fn threads_that_push_while_a_shard_closes_lose_nothing() {
    for _ in 0..200 {
        let queue = NestedQueue::default();
        queue.open();
        let answered = AtomicUsize::new(0);
        let orders = |count: usize| {
            (0..count).map(|_| {
                let (sender, outcome) = channel();
                let reply = Box::new(move |got: Result<bool, Error>| drop(sender.send(got)));
                let details = RequestDetails::default();
                (
                    NestedWork::order(NestedOrder {
                        kind: OrderKind::Ready(None),
                        model: String::new(),
                        details,
                        reply,
                    }),
                    outcome,
                )
            })
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut outcomes = Vec::new();
                    for (work, outcome) in orders(20) {
                        outcomes.push(outcome);
                        match queue.push(work) {
                            PushOutcome::Pushed => {}
                            PushOutcome::Back(work) | PushOutcome::Full(work) => work.refuse(Error::internal("back")),
                        }
                    }
                    outcomes.into_iter().for_each(|outcome| {
                        assert!(outcome.recv_timeout(Duration::from_secs(20)).is_ok());
                        answered.fetch_add(1, Ordering::SeqCst);
                    });
                });
            }
            while let Some(work) = queue.poll() {
                work.refuse(Error::internal("ran"));
            }
            queue.close();
            while let Some(work) = queue.poll() {
                work.refuse(Error::internal("ran at last"));
            }
        });
        assert_eq!((answered.load(Ordering::SeqCst), queue.in_flight()), (40, 0));
    }
}

#[test]
fn an_order_goes_to_the_control_thread_as_a_clients_would() {
    let gateway = Arc::new(ShardGateway::default());
    let unload = |with_dependents| OrderKind::Unload { with_dependents };
    let load = |files: &[&str]| OrderKind::Load {
        config: Some("{}".to_owned()),
        files: files.iter().map(|path| ((*path).to_owned(), bytes::Bytes::from_static(b"1"))).collect(),
    };
    let early = order(&gateway, "w", unload(false), RequestDetails::default()).recv().unwrap();
    assert_eq!(early.unwrap_err().text(), "server is starting; BLS calls are refused until it serves");
    let server = TrialServer::start(&gateway, vec![model("w", 1, |_, batch| run(batch))], true);
    let taken = || match server.events.recv().unwrap() {
        ControlEvent::Ordered(order, reply) => (order, reply),
        _ => panic!("only orders come"),
    };
    let outcome = order(&gateway, "w", unload(true), RequestDetails::default());
    let (got, reply) = taken();
    assert_eq!(got, RepositoryOrder::Unload { name: "w".to_owned(), with_dependents: true });
    reply.send(Ok(Vec::new()));
    assert_eq!(outcome.recv().unwrap(), Ok(true));
    let outcome = order(&gateway, "w", load(&["file:1/model.py"]), RequestDetails::default());
    let (got, reply) = taken();
    let files = vec![("1/model.py".to_owned(), bytes::Bytes::from_static(b"1"))];
    assert_eq!(
        got,
        RepositoryOrder::Load(LoadOrder {
            name: "w".to_owned(),
            config: Some("{}".to_owned()),
            files,
            ..LoadOrder::default()
        })
    );
    reply.send(Err(Error::invalid("it is broken")));
    assert_eq!(outcome.recv().unwrap(), Err(Error::invalid("it is broken")));
    let refusal = |name: &str, kind, links: &[(&str, u64, &str)]| {
        let details = RequestDetails { chain: chain(links), ..RequestDetails::default() };
        order(&gateway, name, kind, details).recv().unwrap().unwrap_err().text().to_owned()
    };
    assert!(refusal("../w", unload(false), &[]).contains("must not contain path traversal characters"));
    assert_eq!(refusal("w", load(&["1/model.py"]), &[]), "unrecognized load parameter '1/model.py'.");
    let too_many: Vec<_> = (0..ORDER_PARAMETERS_MAX).map(|_| "file:1/a").collect();
    assert_eq!(refusal("w", load(&too_many), &[]), "a load has at most 1024 parameters");
    let own = "model 'w' waits for this call itself, and is neither loaded nor unloaded until it has answered";
    assert_eq!(refusal("w", unload(false), &[("w", 1, "w_0_0"), ("other", 1, "o_0_0")]), own);
    assert_eq!(refusal("w", load(&[]), &[("w", 7, "w_0_0")]), own);
    let outcome = order(&gateway, "w", unload(false), RequestDetails::default());
    drop(taken());
    assert!(outcome.recv().unwrap().unwrap_err().text().starts_with("server is stopping"));
    server.stop();
}

#[test]
fn a_question_is_answered_by_the_shard_and_the_models_own_code_without_the_control_thread() {
    let gateway = Arc::new(ShardGateway::default());
    let said = |name: &str, is_ready| TrialModel { is_ready: Some(is_ready), ..model(name, 1, |_, batch| run(batch)) };
    let models = vec![
        model("w", 1, |_, batch| run(batch)),
        said("yes", true),
        said("no", false),
        ensemble("of_yes", "yes"),
        ensemble("of_no", "no"),
    ];
    let server = TrialServer::start(&gateway, models, false);
    let ready = |name: &str, version| {
        let outcome = order(&gateway, name, OrderKind::Ready(version), RequestDetails::default());
        outcome.recv_timeout(Duration::from_secs(20)).unwrap().unwrap()
    };
    for (name, want) in [("w", true), ("yes", true), ("no", false), ("of_yes", true), ("of_no", false), ("x", false)] {
        assert_eq!((ready(name, None), ready(name, Some(1)), ready(name, Some(2))), (want, want, false), "{name}");
    }
    let outcome = order(&gateway, "w", OrderKind::Unload { with_dependents: false }, RequestDetails::default());
    assert_eq!(outcome.recv().unwrap(), Err(not_explicit()), "the control mode is not explicit");
    assert!(server.events.try_recv().is_err());
    server.stop();
}
