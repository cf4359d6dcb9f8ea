//! `docs/protocol.md`: its lines of a shell work, one for each endpoint, and the tests that
//! `docs/architecture/protocol-tests.md` names are there; the OpenAPI document is valid by an independent judge; the
//! Python client of `examples` works.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::server::Server;
use crate::support::{http, skipped::skip_unless_ci};
use serde_json::Value;

/// Endpoints that no line of a shell can ask: they need memory of a GPU.
const WITHOUT_LINE: [&str; 2] =
    ["/v2/cudasharedmemory/region/{region}/register", "/v2/cudasharedmemory/region/{region}/status"];

/// Ends the paths of text models, none of which the examples have: `text_interfaces` and `text_folders` ask them.
const TEXT_PATHS: [&str; 13] = [
    "/classify",
    "/decode",
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/embeddings",
    "/health",
    "/info",
    "/predict",
    "/rerank",
    "/similarity",
    "/tokenize",
    "/vertex",
];
/// The same: a text for a model by its own task.
const OWN_TASK: &str = "/models/{model}";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    fs::read_to_string(root().join("docs/protocol.md")).unwrap()
}

/// A server of the example models.
pub fn server() -> Server {
    let flags = [
        "--shards=1",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--allow-client-shm=true",
        "--allow-log-settings=true",
    ];
    Server::deuteron(&root().join("examples/models"), &flags)
}

fn document(server: &Server) -> Vec<u8> {
    http::get(server.http(), "/v2/docs/openapi.json").unwrap().body
}

/// The file of a module: of `tests/it`, or of a crate if its path begins with `src`.
fn module_file(path: &str) -> PathBuf {
    let (base, path) = match path.strip_prefix("src::").map(|path| path.split_once("::").unwrap_or((path, "lib"))) {
        Some((package, path)) if root().join("crates").join(package).is_dir() => {
            (root().join("crates").join(package).join("src"), path)
        }
        Some(_) => (root(), path),
        None => (root().join("tests/it"), path),
    };
    let relative = path.replace("::", "/");
    let file = base.join(&relative).with_extension("rs");
    if file.exists() { file } else { base.join(relative).join("mod.rs") }
}

#[test]
fn the_tests_of_the_protocol_are_there() {
    let page = fs::read_to_string(root().join("docs/architecture/protocol-tests.md")).unwrap();
    let cells = page.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|'));
    let names: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let tests: Vec<_> = names.iter().filter_map(|name| name.rsplit_once("::")).collect();
    assert!(tests.len() > 60, "the page names {} tests", tests.len());
    for (module, test) in tests {
        let file = module_file(module);
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{module}: {}: {error}", file.display()));
        assert!(text.contains(&format!("#[test]\n    fn {test}()")) || text.contains(&format!("#[test]\nfn {test}()")));
    }
}

/// Returns true if a path is one of a template with names in braces.
fn is_of(template: &str, path: &str) -> bool {
    let (template, path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    let same = |(want, have): (&&str, &&str)| want.starts_with('{') || want == have;
    template.len() == path.len() && template.iter().zip(&path).all(same)
}

#[test]
fn every_line_of_the_page_works_and_every_endpoint_has_one() {
    let server = server();
    let document: Value = serde_json::from_slice(&document(&server)).unwrap();
    let mut templates: Vec<_> = document["paths"].as_object().unwrap().keys().cloned().collect();
    let page = page();
    let lines: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let place = server.http().to_string();
    for line in &lines {
        let path = line.split("localhost:8000").nth(1).and_then(|rest| rest.split(' ').next());
        templates.retain(|template| path.is_none_or(|path| !is_of(template, path)));
        let line = line.replace("curl -s", "curl --fail-with-body -s").replace("localhost:8000", &place);
        let output = Command::new("bash").args(["-c", &line]).current_dir(root()).output();
        let Ok(output) = output else { return skip_unless_ci("bash and curl are needed") };
        assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stdout));
    }
    templates.retain(|template| template != OWN_TASK && !TEXT_PATHS.iter().any(|path| template.ends_with(path)));
    assert_eq!(templates, WITHOUT_LINE, "endpoints without a line");
}

#[test]
fn the_openapi_document_is_valid() {
    let Some(environment) = Environment::create("openapi", "tests/openapi/requirements.txt", &["python3"]) else {
        return;
    };
    let folder = Folder::new("openapi");
    let judge = |name: &str, text: &[u8]| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        let output = Command::new(environment.python()).args(["-m", "openapi_spec_validator"]).arg(&file).output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    };
    let text = document(&server());
    let (is_valid, said) = judge("served.json", &text);
    assert!(is_valid, "{said}");
    // A document without one of its parameters is refused, which shows that the validator works.
    let broken = String::from_utf8(text).unwrap().replacen(r#""in":"path""#, r#""in":"nowhere""#, 1);
    let (is_valid, said) = judge("broken.json", broken.as_bytes());
    assert!(!is_valid, "{said}");
}

#[test]
fn the_root_leads_to_the_interface() {
    let server = server();
    let ask = |path: &str, accept: &str| {
        http::exchange(server.http(), &http::request("GET", path, &[("Accept", accept)], b"")).unwrap()
    };
    let links: Value = serde_json::from_slice(&ask("/", "*/*").body).unwrap();
    for name in ["server", "docs", "openapi"] {
        assert_eq!(ask(links[name].as_str().unwrap(), "*/*").status, 200, "{name}");
    }
    let page = ask("/", "text/html,*/*;q=0.8");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let docs = ask("/v2/docs", "text/html");
    assert!(docs.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    let text = String::from_utf8(docs.body).unwrap();
    assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("innerHTML"), "{text}");
    let unknown = ask("/v2/models/none/docs/openapi.json", "*/*");
    assert_eq!(unknown.status, 404, "{}", String::from_utf8_lossy(&unknown.body));
}

#[test]
fn generated_clients_run_a_model() {
    let Some(environment) = Environment::create("openapi", "tests/openapi/requirements.txt", &["python3"]) else {
        return;
    };
    let (server, folder) = (server(), Folder::new("openapi-clients"));
    for (name, path) in [("server", "/v2/docs/openapi.json"), ("model", "/v2/models/digits/docs/openapi.json")] {
        let file = folder.path().join(name).with_extension("json");
        fs::write(&file, http::get(server.http(), path).unwrap().body).unwrap();
        let generator = ["-m", "openapi_python_client", "generate", "--meta=none", "--fail-on-warning"];
        let output = Command::new(environment.python())
            .args(generator)
            .arg(format!("--config={}", root().join("tests/openapi/generator.yaml").display()))
            .arg(format!("--path={}", file.display()))
            .arg(format!("--output-path={}", folder.path().join(format!("{name}_client")).display()))
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&said));
    }
    let output = Command::new(environment.python())
        .arg(root().join("tests/openapi/generated.py"))
        .arg(format!("http://{}", server.http()))
        .arg(root().join("examples/models/digits/request.json"))
        .env("PYTHONPATH", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.lines().filter(|line| line.starts_with("ok ")).count(), 7, "{said}");
}

#[test]
fn the_client_in_plain_python_is_right_as_often_as_the_model() {
    let server = server();
    let client = Path::new("examples/client.py");
    let mut command = Command::new("python3");
    // Without the packages and the variables of this machine.
    command.args(["-I", "-S"]).arg(client).arg(server.http().to_string()).current_dir(root());
    let Ok(output) = command.output() else { return skip_unless_ci("python3 is needed") };
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "right on 525 of 540 scans\n", "{}", String::from_utf8_lossy(&output.stderr));
    let lines = fs::read_to_string(root().join(client)).unwrap().lines().count();
    assert!(lines < 100, "it has {lines} lines");
}
