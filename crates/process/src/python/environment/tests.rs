//! The choice of the interpreter, and the environment of its processes.

use std::fs;

use super::*;
use crate::python::unpack::testing::{archive, directory, file};

/// A directory of one test, removed at its end.
struct TrialDirectory(PathBuf);

impl TrialDirectory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("deuteron-environment-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    /// Makes empty files.
    fn touch(&self, names: &[&str]) {
        for name in names {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }
}

impl Drop for TrialDirectory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn the_first_that_names_an_interpreter_wins() {
    let directory = TrialDirectory::new("choice");
    let root = &directory.0;
    directory.touch(&["env/bin/activate", "env/bin/python", "venv/bin/python", "conda/bin/python3", "bin/python3"]);
    directory.touch(&["empty/x", "model/env/bin/activate", "model/env/bin/python3"]);
    let archives = Archives::new(root.clone());
    let of = |parameter: Option<&str>, configured: Option<&str>, variables: &[(&str, &str)]| {
        let parameter = parameter.map(|parameter| parameter.replace("ROOT", root.to_str().unwrap()));
        let variable = |name: &str| {
            let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
            Some(value.replace("ROOT", root.to_str().unwrap()).into())
        };
        let search = InterpreterSearch {
            execution_environment: parameter.as_deref(),
            model_directory: &root.join("model"),
            configured: configured.map(Path::new),
            variable: &variable,
            archives: &archives,
        };
        let told = search.find().map(|found| format!("{} ({})", found.path.display(), found.source));
        told.unwrap_or_else(|error| error.text().to_owned()).replace(root.to_str().unwrap(), "ROOT")
    };
    let path = ("PATH", "bin:ROOT/empty:ROOT/bin:ROOT/venv/bin");
    let (venv, conda) = (("VIRTUAL_ENV", "ROOT/venv"), ("CONDA_PREFIX", "ROOT/conda"));
    let all = [venv, conda, path];
    assert_eq!(of(Some("ROOT/env"), Some("/opt/python"), &all), "ROOT/env/bin/python (EXECUTION_ENV_PATH)");
    assert_eq!(of(Some("$$TRITON_MODEL_DIRECTORY/env"), None, &all), "ROOT/model/env/bin/python3 (EXECUTION_ENV_PATH)");
    assert_eq!(of(Some(""), Some("/opt/python"), &all), "/opt/python (--backend-config=python,interpreter)");
    let configured =
        |path| of(None, Some(path), &all).replace(std::env::current_dir().unwrap().to_str().unwrap(), "HERE");
    assert_eq!(configured("python3"), "ROOT/bin/python3 (--backend-config=python,interpreter)");
    assert_eq!(configured("./python3"), "HERE/python3 (--backend-config=python,interpreter)");
    assert_eq!(configured("python9"), "HERE/python9 (--backend-config=python,interpreter)");
    assert_eq!(of(None, None, &all), "ROOT/venv/bin/python (VIRTUAL_ENV)");
    assert_eq!(of(None, None, &[conda, path]), "ROOT/conda/bin/python3 (CONDA_PREFIX)");
    assert_eq!(
        of(None, None, &[("VIRTUAL_ENV", ""), ("CONDA_PREFIX", "ROOT/gone"), path]),
        "ROOT/bin/python3 (python3 in PATH)"
    );
    let none = "no Python interpreter was found: no python3 in PATH. Name a Python 3.8 or later that has numpy with \
                --backend-config=python,interpreter=PATH, or for one model with its parameter EXECUTION_ENV_PATH";
    assert_eq!(of(None, None, &[("PATH", "ROOT/empty")]), none);
    assert_eq!(of(None, None, &[]), none);
    // A named interpreter that does not exist is refused: another one would run the model with
    // other libraries.
    assert_eq!(of(Some("ROOT/gone"), None, &all), "Failed to get the canonical path for ROOT/gone.");
    assert_eq!(
        of(Some("ROOT/venv"), None, &all),
        "Path ROOT/venv/bin/activate does not exist. The Python environment should contain an 'activate' script."
    );
    directory.touch(&["bare/bin/activate"]);
    assert_eq!(
        of(Some("ROOT/bare"), None, &all),
        "the Python environment ROOT/bare (EXECUTION_ENV_PATH) has no program bin/python"
    );
}

#[test]
fn a_packed_environment_is_there_as_long_as_its_interpreter() {
    let base = TrialDirectory::new("packed");
    let packed = |name: &str, entries: &[_]| fs::write(base.0.join(name), archive(entries)).unwrap();
    packed("a.tar.gz", &[directory("bin"), file("bin/activate", ""), file("bin/python", "")]);
    packed("deep.tgz", &[file("env/bin/activate", ""), file("env/bin/python", "")]);
    let archives = Archives::new(base.0.clone());
    let find = |name: &str| {
        let search = InterpreterSearch {
            execution_environment: Some(&format!("$$TRITON_MODEL_DIRECTORY/{name}")),
            model_directory: &base.0,
            configured: None,
            variable: &|_| None,
            archives: &archives,
        };
        search.find()
    };
    let interpreter = find("a.tar.gz").unwrap();
    let again = find("a.tar.gz").unwrap();
    assert_eq!(interpreter.path, again.path);
    assert_eq!(interpreter.path.parent().unwrap().parent(), interpreter.environment.as_deref());
    assert!(interpreter.path.starts_with(&base.0) && interpreter.path.is_file());
    // Named by the archive: the temporary directory means nothing to its owner.
    let text = find("deep.tgz").unwrap_err().text().to_owned();
    let want = format!("Path {}/deep.tgz/bin/activate does not exist. ", base.0.display());
    assert!(text.starts_with(&want), "{text}");
    drop(archives);
    assert!(interpreter.path.is_file());
}

#[test]
fn a_process_gets_the_variables_of_the_server_but_not_its_own() {
    let server = |names: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
        names.iter().map(|(name, value)| (name.into(), value.into())).collect()
    };
    let interpreter = |environment: Option<&str>| Interpreter {
        path: "/env/bin/python".into(),
        source: InterpreterSource::Path,
        environment: environment.map(PathBuf::from),
        archive: None,
    };
    let told = |names: &[(&str, &str)], environment: Option<&str>, threads| {
        let variables = child_variables(&server(names), &interpreter(environment), threads);
        let lines = variables.iter().map(|(name, value)| format!("{}={}\n", name.display(), value.display()));
        let is_shown = |line: &String| {
            let is_of_threads = THREAD_VARIABLES.iter().any(|(name, _)| line.starts_with(name));
            !is_of_threads || line.starts_with("OMP_") || line.starts_with("OPENBLAS_")
        };
        lines.filter(is_shown).collect::<String>()
    };
    let names = [
        ("DEUTERON_AUTH_TOKEN", "secret"),
        ("HOME", "/home/u"),
        ("OMP_NUM_THREADS", "7"),
        ("PATH", "/usr/bin"),
        ("PYTHONHOME", "/opt"),
        ("PYTHONPATH", "/lib/mine"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONUNBUFFERED", ""),
    ];
    let same = "HOME=/home/u\nOMP_NUM_THREADS=7\nOPENBLAS_NUM_THREADS=7\nPATH=/usr/bin\nPYTHONDONTWRITEBYTECODE=1\n\
                PYTHONHOME=/opt\nPYTHONPATH=/lib/mine\nPYTHONUNBUFFERED=1\n";
    assert_eq!(told(&names, None, 3), same);
    let within = "HOME=/home/u\nLD_LIBRARY_PATH=/env/lib\nOMP_NUM_THREADS=7\nOPENBLAS_NUM_THREADS=7\nPATH=/env/bin:/usr/bin\n\
                  PYTHONDONTWRITEBYTECODE=1\nPYTHONPATH=/lib/mine\nPYTHONUNBUFFERED=1\nVIRTUAL_ENV=/env\n";
    assert_eq!(told(&names, Some("/env"), 3), within);
    let libraries = told(&[("LD_LIBRARY_PATH", "/cuda/lib"), ("PATH", "")], Some("/env"), 0);
    assert!(libraries.starts_with("LD_LIBRARY_PATH=/env/lib:/cuda/lib\nOMP_NUM_THREADS=1\n"), "{libraries}");
    assert!(libraries.contains("\nPATH=/env/bin\n"), "{libraries}");
    let threads = child_variables(&[], &interpreter(None), 4);
    assert!(THREAD_VARIABLES.iter().all(|(name, _)| threads[OsStr::new(name)] == "4"));
}

#[test]
fn a_variable_of_the_user_goes_before_ours_in_every_library() {
    let told = |set: &[(&str, &str)]| {
        let server: Vec<_> = set.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let ours: BTreeMap<_, _> = thread_variables(&server, 3).collect();
        // The variable that a library reads: its own, then the other name.
        move |name: &str| ours.get(name).cloned().unwrap_or_else(|| "unset".to_owned())
    };
    let all: Vec<_> = THREAD_VARIABLES.iter().map(|(name, _)| *name).collect();
    let check = |set: &[(&str, &str)], changed: &[&str], others: &str| {
        let told = told(set);
        for name in &all {
            let want = if changed.contains(name) { "unset" } else { others };
            assert_eq!(told(name), want, "{name} where {set:?} is set");
        }
    };
    check(&[], &[], "3");
    check(&[("HOME", "/home/u")], &[], "3");
    // torch reads MKL's variable before OpenMP's, and XGBoost, numpy, polars and TensorFlow each another one.
    check(&[("OMP_NUM_THREADS", "1")], &["OMP_NUM_THREADS"], "1");
    check(&[("OMP_NUM_THREADS", "8,2")], &["OMP_NUM_THREADS"], "8");
    check(&[("OMP_NUM_THREADS", " 2 ")], &["OMP_NUM_THREADS"], "2");
    // A value that OpenMP ignores does not count.
    check(&[("OMP_NUM_THREADS", "many")], &["OMP_NUM_THREADS"], "3");
    check(&[("OMP_NUM_THREADS", "0")], &["OMP_NUM_THREADS"], "3");
    check(&[("OMP_NUM_THREADS", "")], &[], "3");
    // One library's variable is that library's.
    check(&[("MKL_NUM_THREADS", "1")], &["MKL_NUM_THREADS"], "3");
    check(&[("GOTO_NUM_THREADS", "1")], &["OPENBLAS_NUM_THREADS"], "3");
    check(&[("NUMEXPR_MAX_THREADS", "1")], &["NUMEXPR_NUM_THREADS"], "3");
    check(&[("RAYON_RS_NUM_CPUS", "1")], &["RAYON_NUM_THREADS"], "3");
    let both = [("OMP_NUM_THREADS", "1"), ("TF_NUM_INTRAOP_THREADS", "4")];
    check(&both, &["OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"], "1");
}

#[test]
fn a_refusal_says_which_interpreter_what_it_lacks_and_how_to_name_another() {
    let interpreter = Interpreter {
        path: "/usr/bin/python3".into(),
        source: InterpreterSource::Path,
        environment: None,
        archive: None,
    };
    let how = "Name a Python 3.8 or later that has numpy with --backend-config=python,interpreter=PATH, or for one model \
               with its parameter EXECUTION_ENV_PATH";
    let lacks =
        "Traceback (most recent call last):\n  File \"<string>\"\nModuleNotFoundError: No module named 'numpy'\n\n";
    assert_eq!(
        refuse_start(&interpreter, ExitReason::Exited(1), lacks).text(),
        format!(
            "the Python interpreter '/usr/bin/python3' (python3 in PATH) did not start: ModuleNotFoundError: No module named \
             'numpy' (exit status 1). {how}"
        )
    );
    assert_eq!(
        refuse_start(&interpreter, ExitReason::Killed(11), "").text(),
        format!(
            "the Python interpreter '/usr/bin/python3' (python3 in PATH) did not start: killed by signal 11 (SIGSEGV). {how}"
        )
    );
    let text = refuse_spawn(&interpreter, &io::Error::from_raw_os_error(2)).text().to_owned();
    assert!(text.contains("could not be started: No such file or directory (os error 2). Name a Python"), "{text}");
}
