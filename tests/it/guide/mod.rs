//! The guide (`docs/guide`): every command on its pages is run, each page from top to bottom as a person would type it,
//! and the output is as the page shows it.
//!
//! A page is played in a network of its own, where the ports that it names are free and nothing else can be reached, and in
//! a folder that has `examples` and `deploy`. A line `deuteron serve …` runs until the next one, or the end of the page,
//! and must then end with 0; its lines of output are looked for in its log.

mod page;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::guide::page::{Step, is_as_expected, steps};
use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::skipped::skip_unless_ci;

/// Pages that are made from the source, and one about stores, which a plain build has not: `tests/stores` tries its
/// steps.
const WITHOUT_STEPS: [&str; 3] = ["flags.md", "metrics.md", "model-stores.md"];

/// Seconds that a page may take on a busy machine.
const PAGE_SECONDS_MAX: &str = "240";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

/// The pages of a folder of `docs`, by their paths from there.
fn pages(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(docs().join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}{name}")).collect()
}

macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        const PLAYED: &[&str] = &[$($page),*];
        $(#[test] fn $test() { play($page); })*
    };
}

pages! {
    an_ensemble_is_made: "ensembles.md",
    a_model_of_ones_own_is_served: "own-model.md",
    a_newcomers_hour_is_a_script: "first-hour.md",
    a_repository_moves_from_triton: "from-triton.md",
    a_server_is_made_ready_for_production: "production.md",
    a_server_is_watched: "watch.md",
    batches_are_chosen_for_a_latency_target: "batching.md",
    clients_in_five_languages_ask: "clients.md",
    gpus_are_looked_for: "gpus.md",
    hugging_face_folders_are_served: "text-models.md",
    it_is_installed: "install.md",
    kubernetes_places_servers: "kubernetes.md",
    mistakes_are_told: "errors.md",
    models_come_when_they_are_asked_for: "many-models.md",
    python_models_are_served: "python-models.md",
    sequences_are_served: "sequences.md",
    servers_are_counted: "capacity.md",
    servers_are_placed_by_ray: "ray.md",
    several_servers_stand_behind_a_balancer: "balancers.md",
    the_first_page_is_true: "index.md",
    texts_and_images_need_no_python: "without-python.md",
    trees_are_trained_and_served: "tree-models.md",
}

#[test]
fn every_page_of_the_guide_is_played_and_all_pages_are_in_the_table_of_contents() {
    let played: BTreeSet<String> = PLAYED.iter().chain(&WITHOUT_STEPS).map(|page| format!("guide/{page}")).collect();
    assert_eq!(pages("guide/"), played);
    let contents = fs::read_to_string(docs().join("SUMMARY.md")).unwrap();
    let linked: BTreeSet<String> = links(&contents).into_iter().collect();
    let mut all: BTreeSet<_> = ["", "architecture/", "decisions/", "guide/"].into_iter().flat_map(pages).collect();
    assert!(all.remove("SUMMARY.md"));
    assert_eq!(linked, all);
}

#[test]
fn every_link_leads_somewhere() {
    let files: Vec<_> = ["", "architecture/", "decisions/", "guide/"].into_iter().flat_map(pages).collect();
    let at_top = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md", "examples/clients/README.md"];
    for page in files.into_iter().chain(at_top.map(|page| format!("../{page}"))) {
        let text = fs::read_to_string(docs().join(&page)).unwrap();
        for link in links(&text) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let file = docs().join(&page).parent().unwrap().join(path);
            let file = if path.is_empty() { docs().join(&page) } else { file };
            assert!(link.contains("://") || file.exists(), "{page}: {link}");
            let is_heading = || headings(&fs::read_to_string(&file).unwrap()).contains(heading);
            assert!(link.contains("://") || heading.is_empty() || is_heading(), "{page}: {link}");
        }
    }
}

/// Names of headings, as links use them: small letters, digits and hyphens.
fn headings(page: &str) -> BTreeSet<String> {
    let titles = page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    titles.map(|title| title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

/// The targets of the links of a text.
fn links(text: &str) -> Vec<String> {
    let behind = text.split("](").skip(1);
    behind.filter_map(|rest| rest.split_once(')')).map(|(link, _)| link.to_owned()).collect()
}

/// The Python of a page: that of all tests, or for the page that trains tree models one with their libraries.
fn environment(page: &str) -> Option<Environment> {
    match page {
        "tree-models.md" => Environment::create("trees", "tests/trees/requirements.txt", &["python3"]),
        _ => Environment::shared(),
    }
}

/// Plays a page, and compares its output with the page.
fn play(name: &str) {
    let Some(python) = environment(name) else { return };
    if !can_have_a_network() {
        return skip_unless_ci("no network of its own can be made (unshare, ip)");
    }
    let page = fs::read_to_string(docs().join("guide").join(name)).unwrap();
    let steps = steps(&page);
    if let Some(program) = missing_program(&steps) {
        return skip_unless_ci(&format!("docs/guide/{name} needs the program '{program}'"));
    }
    let stage = Stage::new(&python);
    let script = stage.out().join("script");
    fs::write(&script, stage.script(&steps)).unwrap();
    let mut command = in_a_network_of_its_own();
    command.args(["timeout", "--kill-after=5", PAGE_SECONDS_MAX, "bash"]).arg(&script);
    // A test of the whole program: variables that are set for tests are not set for readers of the guide.
    command.env("PATH", stage.path()).env_remove("CI").env_remove("RUST_TEST_THREADS");
    let output = command.stdin(Stdio::null()).output().expect("unshare starts");
    let script_text = String::from_utf8_lossy(&output.stderr).into_owned();
    for (index, step) in steps.iter().enumerate() {
        stage.check(index, step, &format!("docs/guide/{name}:{}", step.line()));
    }
    assert!(output.status.success(), "docs/guide/{name}: {} {script_text}", output.status);
}

/// The first missing program of those that only developers of such a client have.
fn missing_program(steps: &[Step]) -> Option<&'static str> {
    let has = |program: &str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(program).exists())
    };
    let is_used = |program: &str| {
        let begins =
            |step: &Step| matches!(step, Step::Command { text, .. } if text.split(' ').next() == Some(program));
        steps.iter().any(begins)
    };
    ["go", "java", "node", "g++", "openssl"].into_iter().find(|program| is_used(program) && !has(program))
}

fn in_a_network_of_its_own() -> Command {
    let mut command = Command::new("unshare");
    command.arg("--net");
    // A user without root is root within a network of its own.
    if !fs::metadata("/proc/self").is_ok_and(|folder| folder.uid() == 0) {
        command.arg("--map-root-user");
    }
    command.arg("--");
    command
}

fn can_have_a_network() -> bool {
    let tried = in_a_network_of_its_own().args(["ip", "link", "set", "lo", "up"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// The folders of one page: its working directory, its `PATH`, and the output of its steps.
struct Stage {
    folder: Folder,
    path: String,
}

impl Stage {
    fn new(python: &Environment) -> Self {
        let folder = Folder::new("guide");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for name in ["work", "out", "bin"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        for name in ["examples", "deploy"] {
            let copied = Command::new("cp").arg("-r").arg(root.join(name)).arg(folder.path().join("work")).status();
            assert!(copied.expect("cp starts").success());
        }
        let bin = folder.path().join("bin");
        symlink(env!("CARGO_BIN_EXE_deuteron"), bin.join("deuteron")).unwrap();
        for (name, text) in STAND_INS {
            fs::write(bin.join(name), text).unwrap();
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!(
            "{}:{}:{}",
            bin.display(),
            python.path().join("bin").display(),
            std::env::var("PATH").expect("there is a path")
        );
        Self { folder, path }
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// One script of bash for all steps. The output of each goes to a file of its number.
    fn script(&self, steps: &[Step]) -> String {
        let work = self.folder.path().join("work");
        let mut script = SCRIPT_HEAD.replace("@OUT@", &self.out().display().to_string());
        script += &format!("cd '{}'\n", work.display());
        for (index, step) in steps.iter().enumerate() {
            script += &format!("\n# line {}\nstep={index}\n", step.line());
            let may_fail = !step.output().is_empty();
            match step {
                Step::Command { text, .. } if is_server(text) => script += &format!("serve {text}\n"),
                Step::Command { text, .. } => script += &run(text, may_fail),
                Step::File { path, text, .. } => {
                    let source = self.out().join(format!("{index}.file"));
                    fs::write(&source, text).unwrap();
                    script += &format!("install -D -m 644 '{}' '{path}'\n", source.display());
                }
                Step::Program { text, .. } => {
                    let source = self.out().join(format!("{index}.py"));
                    fs::write(&source, text).unwrap();
                    script += &run(&format!("python3 '{}'", source.display()), may_fail);
                }
            }
        }
        script + "\nstop\n"
    }

    /// Compares the output of a step with the page.
    fn check(&self, index: usize, step: &Step, place: &str) {
        let text = |name: &str| fs::read(self.out().join(name)).ok();
        let Some(got) = text(&index.to_string()) else {
            assert!(matches!(step, Step::File { .. }), "{place}: it was not come to");
            return;
        };
        let got = String::from_utf8_lossy(&got).into_owned();
        if let Some(status) = text(&format!("{index}.failed")) {
            panic!("{place}: it ended with {}:\n{got}", String::from_utf8_lossy(&status).trim());
        }
        let mut expected = step.output().to_vec();
        if expected.is_empty() {
            return;
        }
        // Further lines may come into a log behind those that the page shows.
        if matches!(step, Step::Command { text, .. } if is_server(text)) {
            expected.push("…".to_owned());
        }
        let lines: Vec<&str> = got.lines().collect();
        assert!(is_as_expected(&expected, &lines), "{place}: expected\n{}\n\nwhat came:\n{got}", expected.join("\n"));
    }
}

/// Returns true if a command goes on until it is ended.
fn is_server(command: &str) -> bool {
    command.contains("deuteron serve ") && !command.contains("--help")
}

/// A step that ends by itself. If the page shows its output, its status is its own.
fn run(text: &str, may_fail: bool) -> String {
    let end = if may_fail { "true" } else { "came_to_nothing $?" };
    format!("{{ {text}\n}} >\"$out/$step\" 2>&1 </dev/null || {end}\n")
}

/// `serve` starts a server and returns when it is ready, or has ended; `stop` ends the one before.
const SCRIPT_HEAD: &str = r#"
out='@OUT@' server= started=
ip link set lo up
came_to_nothing() { echo "$1" >"$out/$step.failed"; stop; exit 1; }
stop() {
  [ -n "$server" ] || return 0
  local pid=$server
  server=
  # Not the shell's own: under ThreadSanitizer another one comes first in PATH (`.ci/run sanitize`).
  env kill -TERM "$pid" 2>/dev/null
  wait "$pid" || { echo "$? at its end" >"$out/$started.failed"; exit 1; }
}
serve() {
  stop
  local ready=$out/$step.ready
  # Words before the program are variables, as in a shell.
  DEUTERON_READY_FILE=$ready env "$@" >"$out/$step" 2>&1 </dev/null &
  server=$! started=$step
  until [ -s "$ready" ]; do
    kill -0 "$server" 2>/dev/null || { server=; return 0; }
    sleep 0.02
  done
}
trap 'kill $(jobs -p) 2>/dev/null' EXIT
"#;

/// Commands that install on a person's machine: here a check that such a package exists replaces them.
const STAND_INS: [(&str, &str); 3] = [
    (
        "pip",
        r#"#!/usr/bin/env bash
# Of each package: it is in the environment of the tests, or it is the file of ours, which no index has yet.
[ "$1" = install ] || { echo "pip: only install is expected" >&2; exit 1; }
for word in "${@:2}"; do
  case $word in
    -*) ;;
    dist/deuteron-*.whl | 'dist/deuteron-'*'.whl[ray]') ;;
    *) python3 -c 'import importlib.metadata, re, sys; importlib.metadata.version(re.split(r"[\[<>=]", sys.argv[1])[0])' "$word" || exit 1 ;;
  esac
done
"#,
    ),
    (
        "uvx",
        r#"#!/usr/bin/env bash
[[ "$1 $2" == "--from dist/deuteron-"*.whl ]] || { echo "uvx: only the file of the wheel is expected" >&2; exit 1; }
shift 2
[ "$1" != --with ] || shift 2
[ "$1" = deuteron ] || { echo "uvx: only deuteron is expected" >&2; exit 1; }
exec "$@"
"#,
    ),
    (
        "apt-get",
        r#"#!/usr/bin/env bash
# What the pages ask for is what .ci/run installs, too.
for word in "${@:2}"; do
  case $word in
    -* | update | install | curl | g++ | golang-go | default-jdk-headless | libcurl4-openssl-dev | nodejs | openssl) ;;
    ./deuteron_*.deb | dist/deuteron_*.deb) ;;
    *) echo "apt-get: $word is not expected" >&2; exit 1 ;;
  esac
done
"#,
    ),
];
