//! Templates: the instances of a model are forked from a process that has imported it. They are as alone as others, and
//! start as others where the template cannot be forked or is lost.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::python_faults::{Deed, PythonServer, is_alive, kill, until};
use crate::support::folder::Folder;

/// Time limit for anything that takes milliseconds on an idle machine.
const SOON: Duration = Duration::from_secs(30);
/// Three instances.
const THREE: &str = "instance_group { count: 3 kind: KIND_CPU }";
/// Code by which an instance prints some of its own when it starts.
const OWN: &str = "print('own', os.getpid(), sorted(os.sched_getaffinity(0)), np.random.random())";

/// The process between the template and an instance ends at once, and the instance hangs.
const LATE: &str = "calls = []
def hang():
    calls.append(1)
    if len(calls) > 1:
        time.sleep(600)
os.register_at_fork(after_in_child=hang)";

/// The imports of a model: each writes a line into a file.
struct Imports {
    folder: Folder,
}

impl Imports {
    fn new() -> Self {
        Self { folder: Folder::new("imports") }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("imports")
    }

    /// Code that is counted when it is imported.
    fn counted(&self, code: &str) -> String {
        format!("with open('{}', 'a') as lines:\n    print('imported', file=lines)\n{code}", self.file().display())
    }

    fn count(&self) -> usize {
        fs::read_to_string(self.file()).unwrap_or_default().lines().count()
    }
}

/// Lines that the instances of a model have printed by [`OWN`], without their names.
fn own(served: &PythonServer, model: &str) -> Vec<String> {
    let prefix = format!("{model}_0_");
    let log = served.server.log();
    let lines = log.lines().filter(|line| line.contains(&prefix));
    lines.filter_map(|line| Some(line.split_once(": own ")?.1.to_owned())).collect()
}

/// Kills an instance, and waits until another has taken its place.
fn replace(served: &PythonServer, model: &str) {
    let pid = served.pid(model);
    kill(pid, "KILL");
    until("it is served", SOON, || served.run(model, "result = 1").is_ok() && !is_alive(pid));
}

#[test]
fn instances_are_forked_from_one_import_and_so_is_the_next_after_a_crash() {
    let imports = Imports::new();
    let import = imports.counted("print('once', os.getpid())");
    let deed = Deed { config: THREE, import: &import, initialize: OWN, ..Deed::named("m") };
    let Some(served) = PythonServer::start(&[deed], &[]) else { return };
    let [template] = served.templates()[..] else { panic!("{:?}", served.templates()) };
    assert_eq!((imports.count(), served.children().len()), (1, 3), "{}", served.server.log());
    until("its output is in the log", SOON, || own(&served, "m").len() == 3);
    let lines = own(&served, "m");
    let distinct =
        |word: usize| lines.iter().map(|line| line.rsplitn(2, ' ').nth(word).unwrap()).collect::<BTreeSet<_>>();
    assert_eq!(distinct(0).len(), 3, "random numbers of their own: {lines:?}");
    let cores: BTreeSet<_> =
        lines.iter().map(|line| &line[line.find('[').unwrap()..=line.find(']').unwrap()]).collect();
    assert_eq!(cores.len(), 1, "{lines:?}");
    assert_eq!(served.log_count(&["m (template): once", &template.to_string()]), 1, "{}", served.server.log());
    for name in ["m_0_0: own", "m_0_1: own", "m_0_2: own"] {
        assert_eq!(served.log_count(&[name]), 1, "{}", served.server.log());
    }
    for signal in ["KILL", "SEGV"] {
        let pid = served.pid("m");
        kill(pid, signal);
        until("it is replaced", SOON, || !is_alive(pid) && served.children().len() == 3);
    }
    until("both ends are told", SOON, || {
        ["(SIGKILL)", "(SIGSEGV)"].iter().all(|name| served.log_count(&["its Python process has ended", name]) == 1)
    });
    until("all are in the log", SOON, || own(&served, "m").len() == 5);
    assert_eq!((imports.count(), served.templates()), (1, vec![template]));
}

#[test]
fn a_template_that_is_killed_takes_no_instance_with_it_and_they_start_without_it() {
    let imports = Imports::new();
    let import = imports.counted("");
    let Some(served) = PythonServer::start(&[Deed { config: THREE, import: &import, ..Deed::named("m") }], &[]) else {
        return;
    };
    let before = served.children();
    kill(served.templates()[0], "KILL");
    until("it is gone", SOON, || served.templates().is_empty());
    assert_eq!(served.children(), before);
    assert_eq!(served.well("m", "result = 1"), "1");
    for count in [2, 3] {
        replace(&served, "m");
        until("the model is imported again", SOON, || imports.count() == count);
    }
    assert_eq!(served.log_count(&["template of 'm' has ended (killed by signal 9 (SIGKILL))"]), 1);
}

#[test]
fn a_model_that_must_not_be_forked_starts_as_others_do() {
    let deeds = [
        ("thread", "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "has started a thread"),
        ("socket", "kept = socket.socket()", "left a descriptor open"),
        (
            "child",
            "import subprocess; kept = subprocess.Popen(['cat'], stdin=subprocess.PIPE)",
            "left a descriptor open",
        ),
    ];
    let imports = deeds.map(|_| Imports::new());
    let codes: Vec<_> = deeds.iter().zip(&imports).map(|((_, code, _), imports)| imports.counted(code)).collect();
    let models: Vec<_> = deeds
        .iter()
        .zip(&codes)
        .map(|((name, ..), import)| Deed { config: THREE, import, initialize: OWN, ..Deed::named(name) })
        .collect();
    let Some(served) = PythonServer::start(&models, &[]) else { return };
    assert!(served.templates().is_empty());
    for ((name, _, reason), imports) in deeds.iter().zip(&imports) {
        assert_eq!(imports.count(), 3, "{name}");
        until("all are in the log", SOON, || own(&served, name).len() == 3);
        let why = format!("the instances of '{name}' are not forked from one process: its import");
        assert_eq!(served.log_count(&[&why, reason]), 1, "{}", served.server.log());
        replace(&served, name);
        until("another has started", SOON, || imports.count() == 4);
    }
    assert_eq!(served.children().len(), 9);
}

#[test]
fn what_goes_wrong_in_a_fork_costs_the_template_alone() {
    let deeds = [
        ("middle", "os.register_at_fork(after_in_child=lambda: os._exit(7))", "refused to fork"),
        // Its end may come before or after that of its first fork.
        ("parent", "os.register_at_fork(after_in_parent=lambda: os._exit(7))", ""),
        ("hangs", "os.register_at_fork(after_in_child=lambda: time.sleep(600))", "refused to fork"),
        ("crashes", "os.register_at_fork(before=crash)", "refused to fork"),
        ("late", LATE, "has forked nothing in 5s"),
    ];
    let models = deeds.map(|(name, import, _)| Deed { import, ..Deed::named(name) });
    let Some(served) = PythonServer::start(&models, &[]) else { return };
    for (name, _, why) in deeds {
        replace(&served, name);
        let text = format!("the template of '{name}' {why}");
        assert_eq!(served.log_count(&[&text]), 1, "{}", served.server.log());
    }
    until("the templates are gone", SOON, || served.templates().is_empty());
    until("what they had forked is gone", SOON, || {
        served.children().into_iter().filter(|id| is_alive(*id)).count() == models.len()
    });
}

#[test]
fn an_import_that_hangs_keeps_neither_others_nor_the_end_of_the_server() {
    let hangs = Deed { import: "time.sleep(600)", ..Deed::named("hangs") };
    let flags = ["--model-control-mode=explicit", "--load-model=well", "--exit-timeout-secs=2"];
    let Some(mut served) = PythonServer::start(&[Deed::named("well"), hangs], &flags) else { return };
    let address = served.server.http();
    let load = thread::spawn(move || {
        // The server may close the connection before it answers.
        let _ = crate::support::http::post(address, "/v2/repository/models/hangs/load", b"");
    });
    until("it starts", SOON, || served.templates().len() == 2);
    replace(&served, "well");
    let processes = [served.children(), served.templates()].concat();
    assert!(served.server.stop().success(), "{}", served.server.log());
    until("the processes are gone", SOON, || !processes.iter().any(|id| is_alive(*id)));
    load.join().unwrap();
}

#[test]
fn a_template_ends_with_its_model_and_a_reload_imports_anew() {
    let code = |word: &str| format!("WORD = '{word}'");
    let write = |path: &Path, word: &str| {
        let initialize = "globals()['seen'] = WORD";
        Deed { import: &code(word), initialize, config: THREE, ..Deed::named("m") }.write(path);
    };
    let folder = Folder::new("faults");
    write(folder.path(), "first");
    let Some(served) = PythonServer::on(folder, &["--model-control-mode=explicit", "--load-model=*"]) else { return };
    let first = served.templates();
    assert_eq!(served.well("m", "result = WORD"), "first");
    write(served.folder.path(), "second");
    // The instances of the loaded version keep its code.
    replace(&served, "m");
    for _ in 0..6 {
        assert_eq!(served.well("m", "result = WORD"), "first");
    }
    assert_eq!(served.load("m").0, 200);
    until("the old processes are gone", SOON, || served.children().len() == 3 && !is_alive(first[0]));
    assert_eq!((served.well("m", "result = WORD").as_str(), served.templates().len()), ("second", 1));
    assert_eq!(served.unload("m").0, 200);
    until("all are gone", SOON, || served.children().is_empty() && served.templates().is_empty());
}

#[test]
fn flags_and_parameters_say_which_models_have_a_template() {
    let off = format!("{THREE} parameters {{ key: 'fork_instances' value {{ string_value: 'off' }} }}");
    let on = "parameters { key: 'fork_instances' value { string_value: 'on' } }";
    let deeds = [
        Deed::named("one"),
        Deed { config: THREE, ..Deed::named("three") },
        Deed { config: on, ..Deed::named("one_on") },
        Deed { config: &off, ..Deed::named("three_off") },
    ];
    for (flag, want) in
        [("auto", vec!["one_on", "three"]), ("off", vec!["one_on"]), ("on", vec!["one", "one_on", "three"])]
    {
        let flag = format!("--backend-config=python,fork={flag}");
        let Some(served) = PythonServer::start(&deeds, &[&flag]) else { return };
        let line = |id: u32| fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap();
        let name =
            |line: String| line.strip_prefix("deuteron: ")?.split_once(" (template)").map(|(name, _)| name.to_owned());
        let mut names: Vec<_> = served.templates().into_iter().filter_map(|id| name(line(id))).collect();
        names.sort();
        assert_eq!((names, served.children().len()), (want.into_iter().map(str::to_owned).collect(), 8), "{flag}");
    }
}

#[test]
fn a_server_that_is_killed_leaves_neither_templates_nor_what_they_forked() {
    let busy = "import threading; threading.Thread(target=lambda: [x for x in iter(int, 1)], daemon=True).start()";
    let deeds = [Deed { config: THREE, ..Deed::named("idle") }, Deed { initialize: busy, ..Deed::named("busy") }];
    let Some(served) = PythonServer::start(&deeds, &[]) else { return };
    let processes = [served.children(), served.templates()].concat();
    assert_eq!(processes.len(), 6);
    served.server.signal("KILL");
    until("all are gone", SOON, || !processes.iter().any(|id| is_alive(*id)));
}
