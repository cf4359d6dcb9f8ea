//! Updates of `instance_group` alone on the server as a process: instances come and go, and the model stays, with its
//! sequences, its waiting requests and its counts. The cases are those of Triton's `L0_model_update`
//! (`instance_update_test.py`).

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::python_models::zoo::{Models, ints, wait_for};
use crate::support::folder::Folder;
use crate::support::gate::Gate;
use crate::support::http::{self, Connection};
use crate::support::over::Over;
use crate::support::server::Server;
use crate::support::wait::wait_until;
use crate::support::{metrics, repository};

const EXPLICIT: [&str; 2] = ["--model-control-mode=explicit", "--load-model=*"];
const TENSORS: &str = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: 1 }
    output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: 1 }";
const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[1.5]}]}"#;

/// An `identity` on workers, with these instance groups.
fn config(groups: &str, more: &str) -> String {
    let placement = "parameters { key: 'placement' value { string_value: 'worker' } }";
    format!("backend: 'identity' {TENSORS} {placement} {more}\ninstance_group [ {groups} ]")
}

fn model(groups: &str, more: &str) -> Folder {
    let folder = Folder::new("instances");
    repository::add(folder.path(), "m", &config(groups, more), None);
    folder
}

fn set(folder: &Folder, config: &str) {
    fs::write(folder.path().join("m/config.pbtxt"), config).unwrap();
}

/// Loads the model again: the status, and the error.
fn load(server: &Server, body: &Value) -> (u16, String) {
    let answer = http::post(server.http(), "/v2/repository/models/m/load", body.to_string().as_bytes()).unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

/// Writes a configuration and loads it.
fn update(server: &Server, folder: &Folder, config: &str) {
    set(folder, config);
    assert_eq!(load(server, &json!({})), (200, String::new()), "{}", server.log());
}

fn get(server: &Server, path: &str) -> Value {
    serde_json::from_slice(&http::get(server.http(), path).unwrap().body).unwrap()
}

fn shown_count(server: &Server) -> Value {
    get(server, "/v2/models/m/config")["instance_group"][0]["count"].clone()
}

/// The names of the instances.
fn instances(server: &Server) -> String {
    let text = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
    let named = |line: &str| {
        let rest = line.strip_prefix("deuteron_instance_batches_total{instance=\"")?;
        Some(rest.split('"').next().unwrap_or_default().to_owned())
    };
    text.lines().filter_map(named).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
}

fn count(server: &Server, name: &str) -> u64 {
    metrics::metric(server.metrics(), &format!("{name}{{model=\"m\",version=\"1\"}}"))
}

/// The updates in place so far, as `kept added removed`, and the reasons of loads in their place.
fn updates(server: &Server) -> String {
    let log = server.log();
    let word = |line: &str| {
        let line = line.trim_end().trim_end_matches('"');
        if let Some((_, rest)) = line.split_once("updated the instances of 'm' version 1 in place: ") {
            let numbers = rest.split(", ").map(|part| part.split(' ').next().unwrap_or_default());
            return Some(numbers.collect::<Vec<_>>().join("+"));
        }
        line.split_once("'m' is loaded again for its new instance groups: ").map(|(_, why)| why.to_owned())
    };
    log.lines().filter_map(word).collect::<Vec<_>>().join("; ")
}

#[test]
fn instances_come_and_go_under_clients_that_see_nothing_of_it() {
    let folder = model("{ count: 1 }", "parameters { key: 'execute_delay_ms' value { string_value: '2' } }");
    let of = |count: usize| {
        config(&format!("{{ count: {count} }}"), "parameters { key: 'execute_delay_ms' value { string_value: '2' } }")
    };
    let server = Server::deuteron(folder.path(), &EXPLICIT);
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..6 {
            scope.spawn(|| {
                let request = http::request("POST", "/v2/models/m/infer", &[], BODY);
                let mut connection = Connection::open(server.http()).unwrap();
                while !over.load(Ordering::SeqCst) {
                    connection.send(&request).unwrap();
                    let answer = connection.receive().unwrap();
                    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let goes_on = || {
            let before = answered.load(Ordering::SeqCst);
            wait_until("requests are answered", || answered.load(Ordering::SeqCst) > before + 20);
        };
        for (count, names) in
            [(4, "m_0_0 m_0_1 m_0_2 m_0_3"), (2, "m_0_0 m_0_1"), (1, "m_0_0"), (3, "m_0_0 m_0_1 m_0_2")]
        {
            goes_on();
            update(&server, &folder, &of(count));
            assert_eq!((shown_count(&server), instances(&server).as_str()), (json!(count), names));
        }
        goes_on();
    });
    assert_eq!(updates(&server), "1+3+0; 2+0+2; 1+0+1; 1+2+0");
    let answered = answered.load(Ordering::SeqCst);
    assert_eq!(
        (count(&server, "nv_inference_count"), count(&server, "nv_inference_request_success")),
        (answered, answered),
        "the counts go on"
    );
    assert_eq!(server.log().matches("loaded 'm'").count(), 1, "{}", server.log());
}

#[test]
fn a_changed_file_is_found_by_a_poll_and_what_clients_are_shown_may_come_back_changed() {
    let folder = model("{ count: 1 }", "");
    let flags = ["--model-control-mode=poll", "--repository-poll-secs=0"];
    let server = Server::deuteron(folder.path(), &flags);
    set(&folder, &config("{ count: 2 }", "# a remark\n"));
    server.signal("HUP");
    wait_until("the poll finds it", || shown_count(&server) == json!(2));
    assert_eq!(updates(&server), "1+1+0");
    drop(server);

    let server = Server::deuteron(folder.path(), &EXPLICIT);
    let mut shown = get(&server, "/v2/models/m/config");
    shown["instance_group"][0]["count"] = json!(3);
    let with = |config: &Value| json!({ "parameters": { "config": config.to_string() } });
    assert_eq!(load(&server, &with(&shown)), (200, String::new()));
    assert_eq!((shown_count(&server), updates(&server).as_str()), (json!(3), "2+1+0"));
    // The file's own again, which the request's differed from in its instances alone.
    assert_eq!(load(&server, &json!({})), (200, String::new()));
    assert_eq!((shown_count(&server), updates(&server).as_str()), (json!(2), "2+1+0; 2+0+1"));
    shown["instance_group"][0]["count"] = json!(-1);
    assert_eq!(load(&server, &with(&shown)).0, 400, "{}", server.log());
    assert_eq!((http::get(server.http(), "/v2/models/m/ready").unwrap().status, shown_count(&server)), (200, json!(2)));
    shown["instance_group"][0]["count"] = json!(1);
    shown["parameters"]["a"] = json!({ "string_value": "b" });
    assert_eq!(load(&server, &with(&shown)), (200, String::new()));
    assert_eq!(updates(&server), "2+1+0; 2+0+1", "more has changed: it is loaded");
    assert_eq!(instances(&server), "m_0_0");
}

#[test]
fn a_run_is_not_waited_for_by_an_update_that_adds_and_is_by_one_that_removes() {
    let folder = model("{ count: 1 }", "");
    let gate = Gate::on(folder.path(), "m");
    let backend = gate.flag();
    let gated = |count: usize| config(&format!("{{ count: {count} }}"), "").replace("'identity'", "'gated'");
    let server = Server::deuteron(folder.path(), &[&EXPLICIT[..], &[&backend]].concat());
    let in_flight = || metrics::metric(server.metrics(), "deuteron_requests_in_flight");
    let infer = || http::post(server.http(), "/v2/models/m/infer", BODY).unwrap().status;
    thread::scope(|scope| {
        let first = scope.spawn(infer);
        wait_until("it runs", || metrics::batches_left(server.metrics(), "m") == 1);
        update(&server, &folder, &gated(2));
        let second = scope.spawn(infer);
        wait_until("the new instance takes the next", || metrics::batches_left(server.metrics(), "m") == 2);
        set(&folder, &gated(1));
        let removal = scope.spawn(|| load(&server, &json!({})));
        wait_until("one of them leaves", || updates(&server) == "1+1+0; 1+0+1");
        let third = scope.spawn(infer);
        wait_until("it waits", || in_flight() == 3);
        assert!(!removal.is_finished(), "an instance still runs");
        gate.open();
        for answer in [first, second, third] {
            assert_eq!(answer.join().unwrap(), 200);
        }
        assert_eq!(removal.join().unwrap(), (200, String::new()));
    });
    assert_eq!(instances(&server), "m_0_0");
}

#[test]
fn groups_and_the_version_policy_change_in_any_order_without_a_load() {
    let folder = model("{ count: 1 }", "");
    fs::create_dir(folder.path().join("m/2")).unwrap();
    let with = |count: usize, versions: &str| {
        config(
            &format!("{{ count: {count} }}"),
            &format!("version_policy {{ specific {{ versions: [ {versions} ] }} }}"),
        )
    };
    set(&folder, &with(1, "1, 2"));
    let server = Server::deuteron(folder.path(), &EXPLICIT);
    let loads = || server.log().matches("loaded 'm' version ").count();
    let versions = || get(&server, "/v2/models/m")["versions"].clone();
    assert_eq!((loads(), versions()), (2, json!(["1", "2"])));
    // Zero stands for the default, which is one.
    for (count, selected, serving) in
        [(0, "1, 2", json!(["1", "2"])), (3, "1, 2", json!(["1", "2"])), (3, "2", json!(["2"])), (2, "2", json!(["2"]))]
    {
        update(&server, &folder, &with(count, selected));
        assert_eq!((loads(), versions()), (2, serving), "{count} of {selected}: {}", server.log());
    }
    assert_eq!(instances(&server), "m_0_0 m_0_1");
}

#[test]
fn an_update_is_answered_when_a_later_one_has_the_instance_stay() {
    let folder = model("{ count: 2 }", "");
    let gate = Gate::on(folder.path(), "m");
    let backend = gate.flag();
    let gated = |count: usize| config(&format!("{{ count: {count} }}"), "").replace("'identity'", "'gated'");
    set(&folder, &gated(2));
    let server = Server::deuteron(folder.path(), &[&EXPLICIT[..], &[&backend]].concat());
    let infer = || http::post(server.http(), "/v2/models/m/infer", BODY).unwrap().status;
    thread::scope(|scope| {
        let running = [scope.spawn(infer), scope.spawn(infer)];
        wait_until("both run", || metrics::batches_left(server.metrics(), "m") == 2);
        set(&folder, &gated(1));
        let removal = scope.spawn(|| load(&server, &json!({})));
        wait_until("one of them leaves", || updates(&server) == "1+0+1");
        update(&server, &folder, &gated(2));
        assert_eq!(updates(&server), "1+0+1; 2+0+0");
        assert_eq!(removal.join().unwrap(), (200, String::new()), "nobody leaves");
        gate.open();
        for answer in running {
            assert_eq!(answer.join().unwrap(), 200);
        }
    });
}

/// A model `m` that adds up by id, with these instances of one slot each.
fn sums(instances: usize) -> String {
    format!(
        "backend: 'sequence' max_batch_size: 1 instance_group {{ count: {instances} }}
        input {{ name: 'INPUT' data_type: TYPE_INT32 dims: 1 }} output {{ name: 'OUTPUT' data_type: TYPE_INT32 dims: 1 }}
        sequence_batching {{ control_input [
            {{ name: 'START' control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} }},
            {{ name: 'READY' control {{ kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }} }} ] }}"
    )
}

/// Sends one request of a sequence: `^` begins, `$` ends. Returns the sum.
fn send(server: &Server, id: u64, flags: &str, value: i64) -> Value {
    let (is_start, is_end) = (flags.contains('^'), flags.contains('$'));
    let body = json!({
        "parameters": { "sequence_id": id, "sequence_start": is_start, "sequence_end": is_end },
        "inputs": [{ "name": "INPUT", "shape": [1, 1], "datatype": "INT32", "data": [value] }]
    });
    let answer = http::post(server.http(), "/v2/models/m/infer", body.to_string().as_bytes()).unwrap();
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    answer["outputs"][0]["data"][0].clone()
}

#[test]
fn a_sequence_goes_on_in_an_instance_that_leaves_until_it_ends() {
    let folder = Folder::new("instances");
    repository::add(folder.path(), "m", &sums(3), None);
    let server = Server::deuteron(folder.path(), &EXPLICIT);
    assert_eq!((send(&server, 1, "^", 10), send(&server, 2, "^", 20)), (json!(10), json!(20)));
    update(&server, &folder, &sums(1));
    wait_until("the one without a sequence is gone", || instances(&server) == "m_0_0 m_0_1");
    assert_eq!((send(&server, 1, "", 1), send(&server, 2, "", 2)), (json!(11), json!(22)));
    assert_eq!(instances(&server), "m_0_0 m_0_1");
    // It stays after all: no other is made, and the sequence goes on.
    update(&server, &folder, &sums(2));
    assert_eq!(send(&server, 2, "", 3), json!(25));
    update(&server, &folder, &sums(1));
    assert_eq!(send(&server, 1, "$", 1), json!(12));
    assert_eq!(send(&server, 3, "^", 30), json!(30), "in the instance that stays");
    assert_eq!(send(&server, 2, "$", 4), json!(29));
    wait_until("it is gone", || instances(&server) == "m_0_0");
    assert_eq!(send(&server, 3, "$", 1), json!(31));
    assert_eq!(updates(&server), "1+0+2; 2+0+0; 1+0+1");
    let ended = |reason: &str| {
        let name = format!("deuteron_sequences_ended_total{{model=\"m\",reason=\"{reason}\",version=\"1\"}}");
        metrics::metric(server.metrics(), &name)
    };
    assert_eq!((ended("end"), ended("instance"), ended("unload")), (3, 0, 0));
}

#[test]
fn a_model_is_loaded_where_its_instances_cannot_be_changed_one_by_one() {
    let check = |from: &str, more: &str, to: &str, flags: &[&str], want: &str| {
        let folder = model(from, more);
        let server = Server::deuteron(folder.path(), &[&EXPLICIT[..], flags].concat());
        update(&server, &folder, &config(to, more));
        assert_eq!(updates(&server), want, "{from} to {to}");
        assert_eq!(http::post(server.http(), "/v2/models/m/infer", BODY).unwrap().status, 200);
        assert_eq!(shown_count(&server), json!(2));
    };
    let limit = "its instances are registered with the rate limiter (--rate-limit)";
    check("{ count: 1 }", "", "{ count: 2 }", &["--rate-limit=execution_count"], limit);
    let passive = "{ count: 2 }, { count: 1 passive: true }";
    check("{ count: 1 }", "", passive, &[], "an instance group is passive");

    let folder = Folder::new("instances");
    let inline = |count: usize| format!("backend: 'identity' {TENSORS} instance_group {{ count: {count} }}");
    repository::add(folder.path(), "m", &inline(1), None);
    let server = Server::deuteron(folder.path(), &EXPLICIT);
    update(&server, &folder, &inline(2));
    assert_eq!((updates(&server).as_str(), shown_count(&server)), ("its instances are in the shards", json!(2)));
}

#[test]
fn a_queue_whose_places_are_used_up_is_replaced_with_its_model() {
    // A place is for one name, and each of these groups has another.
    let groups = |index: usize| format!("{{ name: 'g{index}' count: 1 host_policy: 'p{index}' }}");
    let folder = model(&groups(0), "");
    let server = Server::deuteron(folder.path(), &EXPLICIT);
    for index in 1..=65 {
        update(&server, &folder, &config(&groups(index), ""));
        assert_eq!(http::post(server.http(), "/v2/models/m/infer", BODY).unwrap().status, 200, "{index}");
        assert_eq!(instances(&server), format!("g{index}_0"));
    }
    let updates = updates(&server);
    assert!(updates.ends_with("0+1+1; its queue has no more places for instances that are added"), "{updates}");
    assert_eq!(updates.matches("0+1+1").count(), 64);
}

/// Doubles its input. An instance fails at its start if there is the file `.broken`, whose name says that it is not the
/// model's.
const DOUBLE: &str = r#"
import os

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists(os.path.join(args["model_repository"], ".broken")):
            raise RuntimeError("not now, " + args["model_instance_name"])

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2)]) for x in inputs]
"#;

#[test]
fn the_process_of_an_instance_that_stays_stays_and_a_new_one_that_fails_changes_nothing() {
    let Some(models) = Models::new() else { return };
    let of = |count: usize| {
        format!(
            "backend: 'python' instance_group {{ kind: KIND_CPU count: {count} }}
            input {{ name: 'x' data_type: TYPE_INT32 dims: 1 }} output {{ name: 'y' data_type: TYPE_INT32 dims: 1 }}"
        )
    };
    let zoo = models.add("m", &of(1), DOUBLE).serve(&EXPLICIT);
    let path = zoo.models.path().join("m");
    let configure = |count: usize| {
        fs::write(path.join("config.pbtxt"), of(count)).unwrap();
        load(&zoo.server, &json!({}))
    };
    let ask = || assert_eq!(zoo.ask("m", &[ints("x", &[4])]), Ok(json!([8])));
    let processes = || zoo.processes().into_iter().collect::<BTreeSet<_>>();
    let first = processes();
    ask();
    assert_eq!(configure(3), (200, String::new()), "{}", zoo.server.log());
    let three = processes();
    assert!(first.is_subset(&three) && three.len() == first.len() + 2, "{first:?} {three:?}");
    ask();
    fs::write(path.join(".broken"), "").unwrap();
    let (status, error) = configure(4);
    fs::remove_file(path.join(".broken")).unwrap();
    assert!(status != 200 && error.contains("not now, m_0_"), "{status} {error}");
    wait_for("what was begun is gone", || processes() == three);
    assert_eq!(http::get(zoo.server.http(), "/v2/models/m/ready").unwrap().status, 200);
    ask();
    assert_eq!(configure(2), (200, String::new()));
    // A process ends a little after its instance has gone.
    wait_for("one of them ends", || processes().len() == three.len() - 1);
    let two = processes();
    assert!(first.is_subset(&two) && two.is_subset(&three), "{three:?} {two:?}");
    ask();
    assert_eq!(count(&zoo.server, "nv_inference_count"), 4);
}
