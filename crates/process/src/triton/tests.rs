//! The host with backends in C (`tests/backends`), which are compiled here: every function, every
//! stage of a model's life, and the objects left after it.

#![expect(clippy::disallowed_types, reason = "what a test has seen")]

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::limits::HOSTED_OPEN_REQUESTS_MAX;
use crate::python::message::LogLevel;
use crate::triton::abi;
use crate::triton::cache::HostedCache;
use crate::triton::engine::{HostedDraft, TritonHost};
use crate::triton::services::{BackendSetting, HostOptions, HostServices};
use backend::custom_metrics::CustomMetrics;
use backend::gateway::{Gateway, NestedCall, NestedOrder, NestedReply, OrderKind};
use backend::trial::{TrialAnswers, no_clock, tensor};
use backend::{Answer, AnswerPart, Backend, Instance, LoadedModel, RequestDetails, run_to_end, threads};
use base::error::{Code, Error};
use base::tensor::{Datatype, Tensor};
use model::ModelSpec as Spec;
use model::config::{CompletionRules, ConfigDraft, ConfigSurroundings};
use model::parameters::{ParameterValue, Parameters};
use model::parse::text::Notation;

/// Answers calls of the model `echo` with their inputs, and orders with yes.
struct EchoGateway;

impl Gateway for EchoGateway {
    fn infer(&self, call: NestedCall) {
        let NestedCall { model, inputs, outputs, replies, .. } = call;
        // From another thread, as the server does.
        std::thread::spawn(move || {
            let echoed = outputs.into_iter().zip(inputs).map(|(name, (_, tensor))| (name, tensor)).collect();
            let outputs = if model == "echo" { Ok(echoed) } else { Err(Error::not_found("no such model")) };
            replies.push(NestedReply { outputs, parameters: Parameters::default(), is_final: true });
        });
    }

    fn control(&self, order: NestedOrder) {
        let outcome = match (&*order.model, &order.kind) {
            ("absent", _) => Err(Error::not_found("no such model")),
            (_, OrderKind::Decoupled(_)) => Ok(false),
            _ => Ok(true),
        };
        (order.reply)(outcome);
    }
}

thread_local! {
    /// The lines that backends have logged on this thread, which is a test's own: other tests load
    /// the same backends meanwhile.
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn log_line(_: LogLevel, text: &str) {
    LOG.with_borrow_mut(|lines| lines.push(text.to_owned()));
}

fn services() -> HostServices {
    HostServices {
        log: log_line,
        is_verbose: false,
        is_remote: false,
        clock: no_clock,
        metrics: Arc::new(CustomMetrics::new(Vec::new())),
        gateway: Arc::new(EchoGateway),
    }
}

/// A directory with one compiled backend, and a host that looks there.
struct Trial {
    folder: PathBuf,
    host: TritonHost,
}

impl Trial {
    fn new(backend: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("deuteron-backends-{}-{number}", std::process::id()));
        let place = folder.join("backends").join(backend);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::create_dir_all(folder.join("models").join(backend).join("1")).unwrap();
        compile(backend, &place.join(format!("libtriton_{backend}.so")));
        let services = services();
        let setting = BackendSetting { backend: backend.to_owned(), key: "a".to_owned(), value: "b".to_owned() };
        let options = HostOptions {
            backend_directory: folder.join("backends"),
            follows_links: false,
            auto_complete: true,
            finalize_max: std::time::Duration::from_secs(1),
            host_policies: [("cpu".to_owned(), [("cpu-cores".to_owned(), "0".to_owned())].into())].into(),
            settings: vec![setting],
        };
        Self { host: TritonHost::new(&services, options), folder }
    }

    fn version(&self, backend: &str) -> PathBuf {
        self.folder.join("models").join(backend).join("1")
    }

    /// Completes and loads a model of the backend, whose name it has.
    fn load(&self, backend: &str, config: &str) -> Result<(Arc<Spec>, Box<dyn LoadedModel>), Error> {
        let directory = self.version(backend);
        let draft = draft(backend, config)?;
        let changes = self.host.complete(&HostedDraft {
            name: backend,
            qualified_name: backend,
            version: 1,
            version_directory: &directory,
            backend,
            file: draft.library().unwrap(),
            config: &draft.shown(),
        })?;
        let draft = match changes.config {
            Some(config) => draft.with_completion(config.as_bytes())?,
            None => draft,
        };
        let spec = Arc::new(draft.complete(None, &Default::default(), CompletionRules::default())?);
        let loaded = self.host.load(&spec, &directory)?;
        Ok((spec, loaded))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn draft(backend: &str, config: &str) -> Result<ConfigDraft, Error> {
    let text = format!("backend: '{backend}' {config}");
    let surroundings = ConfigSurroundings {
        has_backend_file: &|_, file| file.ends_with(".so"),
        forced_libraries: &["identity".to_owned()],
        ..ConfigSurroundings::of_files(Some(&[]))
    };
    ConfigDraft::read(backend, Notation::Text, text.as_bytes(), surroundings)
}

/// Compiles a backend of the tests. It names the host as real ones do: one whose name is not ours is found by it.
fn compile(name: &str, out: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/backends").join(format!("{name}.c"));
    let folder = out.parent().unwrap();
    let stub = folder.join("libtritonserver-test.so");
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-x", "c", "/dev/null", "-o"])
        .arg(&stub)
        .args(["-Wl,-soname,libtritonserver-test.so"]));
    run(Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"])
        .args(["-pthread", "-o"])
        .arg(out)
        .arg(source)
        .arg("-Wl,--no-as-needed")
        .arg(&stub));
    // The host takes its place.
    std::fs::remove_file(&stub).unwrap();
}

fn run(command: &mut Command) {
    let output = command.output().expect("there is a C compiler, which builds of this crate need");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn instance(loaded: &dyn LoadedModel) -> Box<dyn Instance> {
    threads::enter(1, |threads| loaded.new_instance(threads)).unwrap()
}

/// Runs one request and waits for its last answer.
fn ask(instance: &mut dyn Instance, inputs: Vec<Tensor>) -> Answer {
    let answers = TrialAnswers::default();
    run_to_end(instance, answers.batch(vec![(inputs, 1)]));
    answers.take(1).remove(0)
}

const IDENTITY: &str = "max_batch_size: 8 input { name: 'INPUT0' data_type: TYPE_FP32 dims: -1 } \
                        output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: -1 }";
const PROBE: &str = "input { name: 'INPUT' data_type: TYPE_INT32 dims: 2 } \
                     output { name: 'OUTPUT' data_type: TYPE_INT32 dims: 2 }";

#[test]
fn a_backend_answers_from_the_requests_own_memory() {
    let trial = Trial::new("identity");
    let (spec, loaded) = trial.load("identity", IDENTITY).unwrap();
    assert_eq!(spec.library.as_ref().map(|library| library.file.as_str()), Some("libtriton_identity.so"));
    let mut instance = instance(&*loaded);
    let answers = TrialAnswers::default();
    let input = |value: f32| tensor(&[1, 3], &[value, value + 1.0, value + 2.0]);
    instance.run(answers.batch(vec![(vec![input(1.0)], 1), (vec![input(7.0)], 1)]));
    let got = answers.outputs(2);
    assert_eq!(got, [Ok(vec![input(1.0)]), Ok(vec![input(7.0)])]);
    let is_told = |line: &String| line.contains("backend configuration {\"cmdline\":{") && line.contains("\"a\":\"b\"");
    assert!(LOG.with_borrow(|lines| lines.iter().any(is_told)));
}

#[test]
fn every_function_answers_right_and_wrong_calls_in_any_order() {
    let trial = Trial::new("probe");
    let (_, loaded) = trial.load("probe", PROBE).unwrap();
    let mut instance = instance(&*loaded);
    let input = tensor(&[2], &[5_i32, 6]);
    // The probe's findings after an answer are in the next one.
    for _ in 0..3 {
        let answers = TrialAnswers::default();
        let mut batch = answers.batch(vec![(vec![input.clone()], 1)]);
        let mut parameters = Parameters::default();
        parameters.set("depth", ParameterValue::Int64(3));
        let details = RequestDetails { id: "seven".to_owned(), parameters, ..RequestDetails::default() };
        batch.requests[0].details = Some(Arc::new(details));
        run_to_end(&mut *instance, batch);
        let answer = answers.take(1).remove(0);
        assert_eq!(answer.outputs.map_err(|error| error.text().to_owned()), Ok(vec![input.clone()]));
        let parameters = answer.parameters.map(|parameters| parameters.0);
        assert_eq!(parameters, Some(vec![("int".to_owned(), ParameterValue::Int64(7))]));
    }
}

#[test]
fn every_function_is_called_by_a_backend_of_the_tests_or_refuses() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/backends");
    let is_source = |path: &PathBuf| path.file_name().is_some_and(|name| name != "host.h");
    let files = std::fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path()).filter(is_source);
    let text: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let uncalled: Vec<_> =
        abi::implemented().filter(|function| !text.contains(&format!("{}(", function.name))).collect();
    assert!(uncalled.is_empty(), "{uncalled:?}");
    let mut names: Vec<_> = abi::exports().iter().map(|function| function.name).collect();
    let count = names.len();
    names.dedup();
    assert_eq!((names.len(), count), (283, 283), "as many as tritonserver's own library has");
}

#[test]
fn a_decoupled_backend_answers_from_a_thread_of_its_own() {
    let config = "model_transaction_policy { decoupled: true } input { name: 'IN' data_type: TYPE_INT32 dims: 1 } \
                  output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";
    let trial = Trial::new("decoupled");
    let (_, loaded) = trial.load("decoupled", config).unwrap();
    let mut instance = instance(&*loaded);
    let parts = Arc::new(Parts::default());
    for count in [0, 1, 4] {
        run_to_end(&mut *instance, parts.batch(vec![tensor(&[1], &[count])]));
        let want: Vec<_> = (0..count).map(|value| (AnswerPart::More, Ok(vec![tensor(&[1], &[value])]))).collect();
        let mut got = parts.take();
        assert_eq!(got.pop(), Some((AnswerPart::End, Ok(vec![]))));
        assert_eq!(got, want);
    }
}

/// Keeps all answers of a request.
#[derive(Default)]
struct Parts(Mutex<Vec<PartSeen>>);

/// A part of an answer, and its outputs or error.
type PartSeen = (AnswerPart, Result<Vec<Tensor>, Error>);

impl backend::AnswerSink for Parts {
    fn push(&self, _: backend::Ticket, answer: Answer) {
        self.0.lock().unwrap().push((answer.part, answer.outputs));
    }

    fn wake(&self) {}
}

impl Parts {
    fn batch(self: &Arc<Self>, inputs: Vec<Tensor>) -> backend::Batch {
        let answers = TrialAnswers::default();
        let mut batch = answers.batch(vec![(inputs, 1)]);
        let own = Arc::clone(self) as Arc<dyn backend::AnswerSink>;
        batch.requests[0].responder.answer_through(move |_| own);
        batch
    }

    fn take(&self) -> Vec<(AnswerPart, Result<Vec<Tensor>, Error>)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn a_backend_completes_its_configuration_and_prefers_instances() {
    let trial = Trial::new("completing");
    let (spec, loaded) = trial.load("completing", "").unwrap();
    assert_eq!((spec.rows_max, spec.inputs[0].name.as_str(), spec.inputs[0].datatype), (8, "INPUT0", Datatype::Int32));
    let mut instance = instance(&*loaded);
    let answer = ask(&mut *instance, vec![tensor(&[1, 2], &[1_i32, 2])]);
    assert_eq!(answer.outputs, Ok(vec![tensor(&[1, 1], &[1_i32])]));
}

#[test]
fn a_strategy_cuts_a_batch_in_order() {
    let trial = Trial::new("completing");
    let strategy = trial.version("completing").join("batchstrategy.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/backends/strategy.c");
    run(Command::new("cc").args(["-shared", "-fPIC", "-fvisibility=hidden", "-o"]).arg(&strategy).arg(source));
    let (_, loaded) = trial.load("completing", "").unwrap();
    let mut instance = instance(&*loaded);
    let answers = TrialAnswers::default();
    let request = || (vec![tensor(&[1, 1], &[0_i32])], 1);
    instance.run(answers.batch((0..5).map(|_| request()).collect()));
    let sizes: Vec<_> = answers.outputs(5).into_iter().map(|outputs| outputs.unwrap()[0].contents[0]).collect();
    assert_eq!(sizes, [2, 2, 2, 2, 1]);
}

#[test]
fn a_failure_of_any_stage_is_the_backends_own_and_undoes_what_was_done() {
    let config = |stage: &str| format!("{PROBE} parameters {{ key: 'stage' value {{ string_value: '{stage}' }} }}");
    let trial = Trial::new("faulty");
    let failed = |stage: &str| {
        let error = trial.load("faulty", &config(stage)).map(drop).unwrap_err();
        assert_eq!((error.code(), error.text()), (Code::Unavailable, stage));
    };
    failed("ModelInitialize");
    failed("ModelInstanceInitialize");
    let (_, loaded) = trial.load("faulty", &config("ModelInstanceExecute")).unwrap();
    let mut instance = instance(&*loaded);
    let input = || vec![tensor(&[2], &[5_i32, 6])];
    let error = ask(&mut *instance, input()).outputs.unwrap_err();
    assert_eq!((error.code(), error.text()), (Code::Unavailable, "ModelInstanceExecute"));
    drop((instance, loaded));
    // A backend that forgets its requests answers them with an error.
    let (_, loaded) = trial.load("faulty", &config("none")).unwrap();
    let mut instance = threads::enter(1, |threads| loaded.new_instance(threads)).unwrap();
    let error = ask(&mut *instance, input()).outputs.unwrap_err();
    assert_eq!((error.code(), error.text()), (Code::Internal, "the model gave no answer to this request"));
    drop((instance, loaded));
    let lines = LOG.take();
    let count =
        |stage: &str| lines.iter().filter_map(|line| line.split_once(") ")).filter(|line| line.1 == stage).count();
    assert_eq!((count("ModelInitialize"), count("ModelFinalize")), (4, 4), "also of those that failed");
    assert_eq!((count("ModelInstanceInitialize"), count("ModelInstanceFinalize")), (3, 3));
}

#[test]
fn a_model_is_ready_where_its_instances_say_so() {
    let trial = Trial::new("faulty");
    for (stage, want) in [("none", true), ("ModelInstanceReady", false)] {
        let config = format!("{PROBE} parameters {{ key: 'stage' value {{ string_value: '{stage}' }} }}");
        let (_, loaded) = trial.load("faulty", &config).unwrap();
        let (sender, answer) = std::sync::mpsc::channel();
        assert!(loaded.ask_ready(Box::new(move |is_ready| sender.send(is_ready).unwrap())).is_none());
        assert_eq!(answer.recv(), Ok(want), "{stage}");
    }
}

#[test]
fn a_library_is_found_beside_the_model_first_and_not_through_a_link_out_of_the_repository() {
    let trial = Trial::new("identity");
    let shared = trial.folder.join("backends/identity/libtriton_identity.so");
    let beside = trial.version("identity").parent().unwrap().join("libtriton_identity.so");
    std::fs::copy(&shared, &beside).unwrap();
    std::fs::remove_file(&shared).unwrap();
    assert!(trial.load("identity", IDENTITY).is_ok());
    let elsewhere = trial.folder.join("elsewhere.so");
    std::fs::rename(&beside, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &beside).unwrap();
    let error = trial.load("identity", IDENTITY).map(drop).unwrap_err();
    assert!(error.text().contains("leads out of the repository"), "{error}");
    std::fs::remove_file(&beside).unwrap();
    let error = trial.load("identity", IDENTITY).map(drop).unwrap_err();
    assert!(error.text().starts_with("unable to find backend library 'libtriton_identity.so': searched "), "{error}");
    // An opened library stays, so this is another file.
    let trial = Trial::new("identity");
    let beside = trial.version("identity").join("libtriton_identity.so");
    std::fs::write(&beside, "no library").unwrap();
    let error = trial.load("identity", IDENTITY).map(drop).unwrap_err();
    assert_eq!(error.text(), "unable to load shared library: libtriton_identity.so is no ELF file of 64 bits");
}

#[test]
fn an_instance_with_as_many_open_requests_as_it_may_have_gets_no_other_batch() {
    const HOLD: i32 = 109;
    const RELEASE: i32 = 110;
    const ROWS: u32 = 64;
    let config = "max_batch_size: 64 input { name: 'IN' data_type: TYPE_INT32 dims: 1 } \
                  output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";
    let trial = Trial::new("unruly");
    let (_, loaded) = trial.load("unruly", config).unwrap();
    let mut instance = instance(&*loaded);
    let requests = |value: i32, count: u32| (0..count).map(|_| (vec![tensor(&[1, 1], &[value])], 1)).collect();
    let (mut held, released) = (Vec::new(), TrialAnswers::default());
    let limit = u32::try_from(HOSTED_OPEN_REQUESTS_MAX).unwrap();
    for open in (0..limit).step_by(ROWS as usize) {
        let flight = instance.poll_flight(no_clock);
        assert!(flight.has_room && flight.batches == usize::from(open > 0), "{open}");
        let answers = TrialAnswers::default();
        instance.run(answers.batch(requests(HOLD, ROWS)));
        held.push(answers);
    }
    assert!(!instance.poll_flight(no_clock).has_room, "{limit} requests are open");
    // Nothing is answered yet; what frees them runs as any request.
    run_to_end(&mut *instance, released.batch(requests(RELEASE, 1)));
    assert!(instance.poll_flight(no_clock).has_room && released.outputs(1)[0].is_ok());
    assert!(held.iter().all(|answers| answers.outputs(ROWS).iter().all(Result::is_ok)));
}

#[test]
fn a_thousand_loads_leave_nothing_behind() {
    let trial = Trial::new("identity");
    let life = || {
        let (_, loaded) = trial.load("identity", IDENTITY).unwrap();
        let mut instance = instance(&*loaded);
        assert!(ask(&mut *instance, vec![tensor(&[1, 1], &[1.0_f32])]).outputs.is_ok());
    };
    let count: fn() -> usize = || crate::triton::object::alive();
    life();
    let before = count();
    (0..1_000).for_each(|_| life());
    // Other tests make and drop objects meanwhile.
    let is_back = (0..200).any(|_| {
        std::thread::park_timeout(std::time::Duration::from_millis(20));
        count() <= before + 200
    });
    assert!(is_back, "{} objects more", count() - before);
}

#[test]
fn the_host_costs_a_request_little() {
    let trial = Trial::new("identity");
    let (spec, loaded) = trial.load("identity", IDENTITY).unwrap();
    let own = backend::Identity::default().load(&spec, Path::new("/1")).unwrap();
    for rows in [1, 8] {
        let measure = |loaded: &dyn LoadedModel| {
            let mut instance = instance(loaded);
            let answers = TrialAnswers::default();
            let input = tensor(&[1, 64], &[1.0_f32; 64]);
            let mut best = std::time::Duration::MAX;
            for _ in 0..2_000 {
                let batch = answers.batch((0..rows).map(|_| (vec![input.clone()], 1)).collect());
                #[expect(clippy::disallowed_methods, reason = "a measurement")]
                let began = std::time::Instant::now();
                backend::answering(|| instance.run(batch));
                best = best.min(began.elapsed());
                drop(answers.take(rows));
            }
            best / rows
        };
        let (hosted, own) = (measure(&*loaded), measure(&*own));
        println!("batches of {rows}: hosted {hosted:?}, our own {own:?} a request");
        // On an idle machine it is eight to ten times, which is a microsecond.
        assert!(hosted < own * 100, "{hosted:?} and {own:?}");
    }
}

#[test]
fn a_cache_gives_back_what_it_took_and_its_mistakes_are_errors() {
    let folder = std::env::temp_dir().join(format!("deuteron-caches-{}", std::process::id()));
    let place = folder.join("list");
    std::fs::create_dir_all(&place).unwrap();
    compile("cache", &place.join("libtritoncache_list.so"));
    let open = |config: &str| HostedCache::open(&services(), &folder, "list", config);
    // The outcome of storing an answer, of storing it again, and of a lookup.
    let check = |config: &str, stored: &str, found: &str| {
        let cache = open(config).unwrap();
        let shown = |outcome: Result<(), Error>| outcome.err().map_or("stored".to_owned(), |error| error.to_string());
        assert_eq!(cache.look_up("key", 100).map_err(|error| error.to_string()), Ok(None), "{config}");
        for _ in 0..2 {
            assert_eq!(shown(cache.store("key", "an answer".into())), stored, "{config}");
        }
        let text = match cache.look_up("key", 100) {
            Ok(found) => found.map_or("nothing".to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => error.to_string(),
        };
        assert_eq!(text, found, "{config}");
    };
    check("{}", "stored", "an answer");
    check(r#"{"take":"attributes"}"#, "stored", "an answer");
    check(r#"{"fail":"finalize"}"#, "stored", "an answer");
    check(r#"{"fail":"insert"}"#, "the insertion fails on purpose", "nothing");
    check(r#"{"take":"null"}"#, "buffer was nullptr", "nothing");
    let size = "Serialized buffer size does not match. Expected: 9, received: 8";
    check(r#"{"take":"less"}"#, size, "nothing");
    check(r#"{"give":"changed"}"#, "stored", "xn answer");
    check(r#"{"give":"less"}"#, "stored", "an answe");
    check(r#"{"give":"null"}"#, "stored", "buffer was nullptr");
    check(r#"{"give":"uncopied"}"#, "stored", "the cache found an entry and has not copied it");
    check(r#"{"give":"huge"}"#, "stored", &format!("the entry has {} bytes, and an answer at most 100", 1_u64 << 40));
    let count = "Expected number of responses in cache does not match. Expected: 1, received: 2";
    check(r#"{"give":"twice"}"#, "stored", count);
    let deleted = "invalid cache entry handle: it was released already, or is another object";
    check(r#"{"give":"deleted"}"#, "stored", deleted);
    let lookup = open(r#"{"fail":"lookup"}"#).unwrap().look_up("key", 100).unwrap_err();
    assert_eq!((lookup.code(), lookup.text()), (Code::Unavailable, "the lookup fails on purpose"));
    let refused = |config: &str| open(config).map(drop).unwrap_err().text().to_owned();
    assert_eq!(refused(r#"{"fail":"initialize"}"#), "the cache refuses its settings on purpose");
    assert_eq!(refused(r#"{"give":"nothing"}"#), "Failed to initialize cache implementation");
    let absent = HostedCache::open(&services(), &folder, "../list", "{}").map(drop).unwrap_err();
    assert!(absent.text().ends_with("searched: '../list' beneath --cache-directory"), "{absent}");
    let is_told = |line: &String| line.contains("a response cache failed to finalize: the cache fails on purpose");
    assert!(LOG.with_borrow(|lines| lines.iter().any(is_told)));
    std::fs::remove_dir_all(&folder).unwrap();
}
