//! Each kind of store, and the checks of all of them: models load, a poll follows changes, names stay in the
//! repository.

use std::fs;

use crate::proxy::Proxy;
use crate::stand_in::{AZURE_ACCOUNT, StandIn, write_index};
use crate::support::folder::Folder;
use crate::support::server::{Ports, Server};
use crate::{MODEL, Setup, answers, figure, load, log, models, status, wait_for};

/// Serves two models, follows a new version and a removed model, and fetches nothing twice.
fn follows(setup: &Setup, store: &StandIn) {
    let repository = models(&["a", "b"]);
    store.put_all("models", repository.path());
    let server = setup.poll(&[]);
    assert!(answers(&server, "a") && answers(&server, "b"), "{}", server.log());
    let objects = figure(&server, "objects_total");
    assert_eq!((objects, figure(&server, "reachable")), (4, 1));
    store.put("models/a/2/weights", b"more weights");
    wait_for(&server, "version 2 is served", || status(&server, "/v2/models/a/versions/2/ready") == 200);
    assert_eq!(status(&server, "/v2/models/b/versions/1/ready"), 200);
    assert_eq!(figure(&server, "objects_total"), objects + 1, "only what is new was fetched");
    store.put("models/b/1/weights", b"other weights");
    wait_for(&server, "it is fetched", || figure(&server, "objects_total") == objects + 2);
    store.remove("models/a/1/weights");
    wait_for(&server, "version 1 is gone", || status(&server, "/v2/models/a/versions/1/ready") != 200);
    store.remove("models/b/1/weights");
    store.remove("models/b/config.pbtxt");
    wait_for(&server, "model b is gone", || status(&server, "/v2/models/b/ready") != 200);
    assert!(answers(&server, "a"), "{}", server.log());
    assert_eq!(setup.cached(), ["a/2/weights", "a/config.pbtxt"]);
    log(&server);
}

#[test]
fn s3_is_served_and_followed() {
    let Some(store) = StandIn::moto() else { return };
    follows(&Setup::s3(&store.address().to_string()), &store);
}

#[test]
fn google_cloud_storage_is_served_and_followed() {
    let Some(store) = StandIn::fake_gcs() else { return };
    let setup = Setup::new("gs://bucket/models".to_owned());
    let setup =
        setup.with("GOOGLE_BASE_URL", &format!("http://{}", store.address())).with("GOOGLE_SKIP_SIGNATURE", "true");
    follows(&setup, &store);
}

#[test]
fn azure_is_served_and_followed() {
    let Some(store) = StandIn::azurite() else { return };
    let setup = Setup::new(format!("as://{AZURE_ACCOUNT}/bucket/models"));
    let url = format!("http://{}", store.address());
    follows(&setup.with("AZURE_STORAGE_USE_EMULATOR", "true").with("AZURITE_BLOB_STORAGE_URL", &url), &store);
}

#[test]
fn an_index_over_http_is_served_and_its_checksums_hold() {
    let repository = models(&["a", "b"]);
    write_index(repository.path());
    let root = Folder::new("stores-http");
    fs::rename(repository.path(), root.path().join("models")).unwrap();
    let models = root.path().join("models");
    let store = StandIn::files(root.path());
    let setup = Setup::new(format!("http://{}/models", store.address()));
    let server = setup.poll(&[]);
    assert!(answers(&server, "a") && answers(&server, "b"), "{}", server.log());
    // Another file of the same size under an unchanged index, and a new version with a wrong sum.
    fs::create_dir(models.join("a/2")).unwrap();
    fs::write(models.join("a/2/weights"), "good").unwrap();
    write_index(&models);
    let index = fs::read_to_string(models.join("index.json")).unwrap();
    fs::write(models.join("a/2/weights"), "evil").unwrap();
    wait_for(&server, "it is refused", || log(&server).contains("its SHA-256 is"));
    assert_ne!(status(&server, "/v2/models/a/versions/2/ready"), 200, "a sum that does not fit is never served");
    assert!(answers(&server, "a") && setup.cached().iter().all(|path| !path.starts_with("a/2")));
    fs::write(models.join("a/2/weights"), "good").unwrap();
    wait_for(&server, "it is served", || status(&server, "/v2/models/a/versions/2/ready") == 200);
    // Names that lead outside fail only their own models.
    let tricks = index.replace("\"a/2/weights\"", "\"b/../../../evil\"").replace("\"a/config.pbtxt\"", "\"/etc/evil\"");
    fs::write(models.join("index.json"), tricks).unwrap();
    wait_for(&server, "they are refused", || log(&server).contains("its path leads elsewhere"));
    assert!(answers(&server, "b"), "{}", server.log());
    assert!(crate::stand_in::files(setup.cache.path()).iter().all(|path| !path.ends_with("evil")));
}

#[test]
fn a_name_in_s3_that_leads_elsewhere_writes_nothing_there() {
    let Some(store) = StandIn::moto() else { return };
    let repository = models(&["a"]);
    store.put_all("models", repository.path());
    let setup = Setup::s3(&store.address().to_string());
    let server = setup.poll(&[]);
    store.put("models/a/%2E%2E/%2E%2E/%2E%2E/evil", b"x");
    store.put("models/a/2/weights", b"x");
    wait_for(&server, "it is refused", || log(&server).contains("it has an object whose name is no path of a file"));
    assert!(answers(&server, "a"), "what was fetched earlier is served");
    assert!(crate::stand_in::files(setup.cache.path()).iter().all(|path| !path.ends_with("evil")));
    store.remove("models/a/%2E%2E/%2E%2E/%2E%2E/evil");
    wait_for(&server, "version 2 is served", || status(&server, "/v2/models/a/versions/2/ready") == 200);
}

#[test]
fn explicit_mode_fetches_what_is_asked_for_and_lists_all() {
    let Some(store) = StandIn::moto() else { return };
    let repository = models(&["a", "b", "c"]);
    store.put_all("models", repository.path());
    let setup = Setup::s3(&store.address().to_string());
    let server = setup.serve(&["--model-control-mode=explicit", "--load-model=a"]);
    assert!(answers(&server, "a"));
    assert_eq!(setup.cached(), ["a/1/weights", "a/config.pbtxt"]);
    let index = crate::support::http::post(server.http(), "/v2/repository/index", b"").unwrap();
    let index = String::from_utf8(index.body).unwrap();
    assert!(["a", "b", "c"].iter().all(|name| index.contains(&format!("\"name\":\"{name}\""))), "{index}");
    assert_eq!(load(&server, "b").0, 200);
    assert!(answers(&server, "b") && setup.cached().iter().all(|path| !path.starts_with("c/")));
    // A load fetches the current files.
    store.put("models/b/2/weights", b"more");
    assert_eq!(load(&server, "b").0, 200);
    assert_eq!(status(&server, "/v2/models/b/versions/2/ready"), 200);
    let (status, text) = load(&server, "d");
    assert!(
        status >= 400 && text.contains("failed to load 'd', failed to poll from model repository"),
        "{status} {text}"
    );
}

#[test]
fn a_single_model_is_served_under_the_name_of_its_directory() {
    let Some(store) = StandIn::moto() else { return };
    let repository = models(&["only"]);
    store.put_all("models", repository.path());
    let setup = Setup { url: format!("s3://{}/bucket/models/only", store.address()), ..Setup::s3("") };
    let server = setup.serve(&[]);
    assert!(answers(&server, "only"), "{}", server.log());
}

#[test]
fn the_file_of_credentials_gives_each_url_its_key() {
    let Some(store) = StandIn::moto() else { return };
    let proxy = Proxy::before(store.address());
    let repository = models(&["a"]);
    store.put_all("models", repository.path());
    let folder = Folder::new("stores-credentials");
    let file = folder.path().join("credentials.json");
    // Triton's form of the URL is without the scheme of the server.
    let url = format!("s3://http://{}/bucket", proxy.host());
    let text = format!(
        r#"{{"s3": {{"": {{"key_id": "AKIAANY", "secret_key": "{0}"}}, "{url}": {{"key_id": "AKIALONG", "secret_key": "{0}"}}}}}}"#,
        crate::SECRET
    );
    fs::write(&file, text).unwrap();
    let setup = Setup::s3(&proxy.host()).with("TRITON_CLOUD_CREDENTIAL_PATH", file.to_str().unwrap());
    let server = setup.serve(&[]);
    assert!(answers(&server, "a"));
    let asked = proxy.asked("GET");
    assert!(!asked.is_empty());
    for asked in asked {
        assert!(asked.field("authorization").unwrap().contains("Credential=AKIALONG/"), "{}", asked.head);
    }
    log(&server);
    drop(server);
    fs::write(&file, "{").unwrap();
    let text = setup.refused(&[]);
    assert!(text.contains("the file of TRITON_CLOUD_CREDENTIAL_PATH cannot be read: it is not JSON"), "{text}");
}

#[test]
fn the_identity_of_a_pod_is_taken_where_there_is_no_key() {
    let Some(store) = StandIn::moto() else { return };
    let proxy = Proxy::before(store.address());
    let repository = models(&["a"]);
    store.put_all("models", repository.path());
    let folder = Folder::new("stores-identity");
    let identity =
        r#"{"AccessKeyId": "ASIAPOD", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}"#;
    fs::write(folder.path().join("identity"), identity).unwrap();
    fs::write(folder.path().join("token"), "t").unwrap();
    let agent = StandIn::files(folder.path());
    let setup = Setup::new(format!("s3://{}/bucket/models", proxy.host()))
        .with("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("http://{}/identity", agent.address()))
        .with("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", folder.path().join("token").to_str().unwrap());
    let server = setup.serve(&[]);
    assert!(answers(&server, "a"));
    for asked in proxy.asked("GET") {
        assert!(asked.field("authorization").unwrap().contains("Credential=ASIAPOD/"), "{}", asked.head);
    }
}

#[test]
fn the_service_account_of_a_machine_is_taken_where_there_is_no_key() {
    let Some(store) = StandIn::fake_gcs() else { return };
    let repository = models(&["a"]);
    store.put_all("models", repository.path());
    let folder = Folder::new("stores-identity");
    let account = folder.path().join("computeMetadata/v1/instance/service-accounts/default");
    fs::create_dir_all(&account).unwrap();
    let token = r#"{"access_token": "of-the-machine", "expires_in": 3600, "token_type": "Bearer"}"#;
    fs::write(account.join("token"), token).unwrap();
    let metadata = StandIn::files(folder.path());
    // The stand-in for the store answers by its own name alone: only the request for the token is seen.
    let proxy = Proxy::before(metadata.address());
    let setup = Setup::new("gs://bucket/models".to_owned())
        .with("GOOGLE_BASE_URL", &format!("http://{}", store.address()))
        .with("GCE_METADATA_HOST", &proxy.host());
    let server = setup.serve(&[]);
    assert!(answers(&server, "a"), "{}", server.log());
    let asked = proxy.asked("GET /computeMetadata/v1/instance/service-accounts/default/token");
    assert!(!asked.is_empty(), "{}", server.log());
    assert!(asked.iter().all(|asked| asked.field("metadata-flavor") == Some("Google")));
}

#[test]
fn two_servers_that_start_at_once_share_a_cache() {
    let Some(store) = StandIn::moto() else { return };
    let proxy = Proxy::before(store.address());
    let repository = models(&["a", "b"]);
    store.put_all("models", repository.path());
    store.put("models/a/1/large", &vec![7; 3 << 20]);
    let setup = Setup::s3(&proxy.host());
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let start = || scope.spawn(|| setup.poll(&[]));
        let started = [start(), start()];
        started.into_iter().map(|server| server.join().unwrap()).collect()
    });
    assert!(servers.iter().all(|server| answers(server, "a") && answers(server, "b")));
    for path in ["a/1/large", "a/1/weights", "a/config.pbtxt", "b/1/weights", "b/config.pbtxt"] {
        assert_eq!(proxy.asked(&format!("GET /bucket/models/{path}")).len(), 1, "{path} is fetched once");
    }
    store.put("models/b/2/weights", b"more");
    for server in &servers {
        wait_for(server, "version 2 is served", || status(server, "/v2/models/b/versions/2/ready") == 200);
    }
    assert_eq!(proxy.asked("GET /bucket/models/b/2/weights").len(), 1);
}

#[test]
fn what_is_beyond_the_bytes_of_the_cache_is_refused_by_name() {
    let Some(store) = StandIn::moto() else { return };
    store.put("models/a/config.pbtxt", MODEL.as_bytes());
    store.put("models/a/1/weights", b"small");
    store.put("models/b/config.pbtxt", MODEL.as_bytes());
    store.put("models/b/1/weights", &vec![7; 100_000]);
    let setup = Setup::s3(&store.address().to_string());
    let server = setup.poll(&["--model-store-bytes-max=50000", "--exit-on-error=false", "--strict-readiness=false"]);
    assert!(answers(&server, "a"));
    let index = crate::support::http::post(server.http(), "/v2/repository/index", b"").unwrap();
    let index = String::from_utf8(index.body).unwrap();
    assert!(index.contains("--model-store-bytes-max"), "{index}");
    assert_eq!(figure(&server, "models_refused"), 1);
}

#[test]
fn a_store_is_named_where_a_directory_was_with_the_variable_too() {
    let Some(store) = StandIn::moto() else { return };
    let repository = models(&["a"]);
    store.put_all("models", repository.path());
    let setup = Setup::s3("").with("AWS_ENDPOINT_URL", &format!("http://{}", store.address()));
    let setup = Setup { url: "s3://bucket/models".to_owned(), ..setup };
    let ports = Ports::free();
    let mut command = setup.command(&[], ports);
    command.env("AWS_ENDPOINT_URL", format!("http://{}", store.address()));
    let server = Server::start(command, ports);
    assert!(answers(&server, "a"), "{}", server.log());
}
