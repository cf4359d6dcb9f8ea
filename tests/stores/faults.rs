//! Faults of a store: incomplete files are never served, nothing is fetched twice, and fetched models serve on.

use std::time::{Duration, Instant};

use crate::proxy::{Fault, Proxy};
use crate::stand_in::StandIn;
use crate::support::folder::Folder;
use crate::{Setup, answers, failures, figure, log, models, status, wait_for};

/// moto behind a proxy, with the model `a`.
struct Scene {
    store: StandIn,
    proxy: Proxy,
    setup: Setup,
    _models: Folder,
}

impl Scene {
    fn new() -> Option<Self> {
        let store = StandIn::moto()?;
        let proxy = Proxy::before(store.address());
        let setup = Setup::s3(&proxy.host());
        let models = models(&["a"]);
        store.put_all("models", models.path());
        Some(Self { store, proxy, setup, _models: models })
    }
}

/// A file of three ranges.
const LARGE: usize = (20 << 20) + 7;

/// Bytes that encode their position.
fn large() -> Vec<u8> {
    (0..LARGE).map(|at| (at / 251 + at) as u8).collect()
}

#[test]
fn a_range_that_is_cut_goes_on_where_it_was_cut() {
    let Some(Scene { store, proxy, setup, .. }) = Scene::new() else { return };
    store.put("models/a/1/large", &large());
    proxy.fault("/a/1/large", Fault::Cut(3 << 20), 2);
    proxy.fault("/a/1/large", Fault::Cut(100), 1);
    let server = setup.serve(&[]);
    assert!(answers(&server, "a"), "{}", server.log());
    let asked = proxy.asked("GET /bucket/models/a/1/large");
    let passed: usize = asked.iter().map(|asked| asked.passed).sum();
    assert_eq!(passed, LARGE, "no byte came twice, and none is missing: {asked:?}");
    assert_eq!(asked.len(), 6, "three ranges, and three that go on");
    let cached = setup.cached();
    assert!(cached.contains(&"a/1/large".to_owned()), "{cached:?}");
    let files = crate::stand_in::files(setup.cache.path());
    let file = files.iter().find(|path| path.ends_with("a/1/large")).unwrap();
    assert!(std::fs::read(file).unwrap() == large(), "the file is the store's");
    assert_eq!(figure(&server, "retries_total"), 3);
}

#[test]
fn a_store_that_throttles_is_asked_again_when_it_says() {
    let Some(Scene { store: _store, proxy, setup, .. }) = Scene::new() else { return };
    proxy.fault("list-type=2", Fault::Refused(503), 1);
    proxy.fault("/a/1/weights", Fault::Refused(429), 2);
    let began = Instant::now();
    let server = setup.serve(&[]);
    assert!(answers(&server, "a") && began.elapsed() > Duration::from_secs(1), "it waited as long as it was asked to");
    assert_eq!(figure(&server, "retries_total"), 3);
    assert_eq!(failures(&server, "throttled"), 0);
}

#[test]
fn a_store_that_is_silent_is_given_up_and_asked_again() {
    let Some(Scene { store: _store, proxy, setup, .. }) = Scene::new() else { return };
    proxy.fault("/a/1/weights", Fault::Silent, 1);
    let server = setup.serve(&["--model-store-timeout-secs=0.5"]);
    assert!(answers(&server, "a"), "{}", server.log());
    assert_eq!(figure(&server, "retries_total"), 1);
}

#[test]
fn a_slow_store_is_waited_for() {
    let Some(Scene { store, proxy, setup, .. }) = Scene::new() else { return };
    store.put("models/a/1/large", &large()[..(1 << 20)]);
    // Three seconds in all, without half a second of silence.
    proxy.fault("/a/1/large", Fault::Slow(Duration::from_millis(200)), 1);
    let server = setup.serve(&["--model-store-timeout-secs=0.5"]);
    assert!(answers(&server, "a"), "{}", server.log());
    assert_eq!(figure(&server, "retries_total"), 0);
}

#[test]
fn what_is_not_whole_or_not_the_same_is_never_served() {
    for (fault, want) in [(Fault::Flipped, "its MD5 is"), (Fault::Short, "bytes were listed, and")] {
        let Some(Scene { store, proxy, setup, .. }) = Scene::new() else { return };
        let server = setup.poll(&[]);
        proxy.fault("/a/2/weights", fault, usize::MAX);
        store.put("models/a/2/weights", b"the second version");
        wait_for(&server, "it is refused", || log(&server).contains(want));
        assert_ne!(status(&server, "/v2/models/a/versions/2/ready"), 200, "{fault:?}");
        assert!(answers(&server, "a") && failures(&server, "damaged") > 0, "the old version serves on");
        assert_eq!(setup.cached(), ["a/1/weights", "a/config.pbtxt"], "{fault:?}");
        assert_eq!(figure(&server, "models_refused"), 1);
        proxy.heal();
        wait_for(&server, "version 2 is served", || status(&server, "/v2/models/a/versions/2/ready") == 200);
    }
}

#[test]
fn a_store_that_denies_access_says_which_variable_and_quotes_no_secret() {
    let Some(Scene { store, proxy, setup, .. }) = Scene::new() else { return };
    proxy.fault("GET", Fault::Refused(403), usize::MAX);
    let text = setup.refused(&[]);
    let url = format!("model repository 's3://http://{}/bucket/models'", proxy.host());
    for want in [&*url, "the store denies access (AccessDenied)", "AWS_ACCESS_KEY_ID", "TRITON_CLOUD_CREDENTIAL_PATH"] {
        assert!(text.contains(want), "{want}: {text}");
    }
    proxy.heal();
    // While the server runs, its models go on when access is denied, and fetches resume once it is allowed again.
    let server = setup.poll(&[]);
    proxy.fault("list-type=2", Fault::Refused(403), usize::MAX);
    wait_for(&server, "it is told", || log(&server).contains("the store denies access"));
    assert!(answers(&server, "a") && failures(&server, "denied") > 0);
    assert_eq!(figure(&server, "reachable"), 0);
    store.put("models/a/2/weights", b"more");
    proxy.heal();
    wait_for(&server, "version 2 is served", || status(&server, "/v2/models/a/versions/2/ready") == 200);
    assert_eq!(figure(&server, "reachable"), 1);
}

#[test]
fn a_bucket_that_is_not_there_is_named() {
    let Some(Scene { store, .. }) = Scene::new() else { return };
    let setup = Setup { url: format!("s3://{}/nowhere/models", store.address()), ..Setup::s3("") };
    let text = setup.refused(&[]);
    assert!(text.contains("it does not exist (NoSuchBucket)"), "{text}");
}

#[test]
fn without_the_store_a_server_starts_from_what_was_fetched() {
    let Some(Scene { store, proxy, setup, .. }) = Scene::new() else { return };
    drop(setup.serve(&[]));
    proxy.fault("GET", Fault::Refused(500), usize::MAX);
    let empty = Setup::s3(&proxy.host());
    let text = empty.refused(&[]);
    assert!(text.contains("the store cannot be reached: it answers with status 500"), "{text}");
    for mode in [&[][..], &["--model-control-mode=explicit", "--load-model=a"]] {
        let server = setup.serve(mode);
        assert!(answers(&server, "a"), "{}", server.log());
        assert!(log(&server).contains("earlier"), "it is told: {}", server.log());
        assert_eq!(figure(&server, "reachable"), 0);
    }
    proxy.heal();
    proxy.fault("GET", Fault::Refused(500), 40);
    store.put("models/a/2/weights", b"more");
    let server = setup.poll(&[]);
    wait_for(&server, "version 2 is served", || status(&server, "/v2/models/a/versions/2/ready") == 200);
    assert_eq!(figure(&server, "objects_total"), 1, "only what is new was fetched");
}
