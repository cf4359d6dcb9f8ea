//! Python virtual environments beneath `target`, made once and kept: one for all tests, and some for packages that
//! conflict with it. Each has a list of packages that is complete (`pip freeze`): nothing is resolved, so nothing
//! changes by itself.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{folder::target, skipped::skip_unless_ci};

/// An environment with the requested packages in it.
pub struct Environment {
    path: PathBuf,
}

impl Environment {
    /// The environment of all tests, `tests/python/requirements.txt`. `None` as [`Environment::create`] says.
    pub fn shared() -> Option<Self> {
        Self::create("tests", "tests/python/requirements.txt", &["python3"])
    }

    /// The environment of Python models, `tests/python_models/requirements.txt`.
    pub fn of_models() -> Option<Self> {
        Self::create("models", "tests/python_models/requirements.txt", &["python3"])
    }

    /// Makes `target/venv-NAME` with exactly the packages of a list of this repository, unless it is there already, by
    /// the first of the `interpreters` that can.
    ///
    /// `None` if no interpreter can: the test is then skipped. In CI (`CI=true`) that is a failure.
    pub fn create(name: &str, requirements: &str, interpreters: &[&str]) -> Option<Self> {
        // A test beside its crate's source has a folder further down.
        let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let mut lists = folders.map(|folder| folder.join(requirements));
        let requirements = lists.find(|file| file.is_file()).expect("the list of packages is in the repository");
        let wanted = fs::read_to_string(&requirements).expect("the list of packages is in the repository");
        let environment = Self { path: target().join(format!("venv-{name}")) };
        let stamp = environment.path.join("requirements.txt");
        // Several tests or processes may want it at once: one of them makes it.
        let lock = fs::File::create(environment.path.with_extension("lock")).expect("the folder is ours");
        lock.lock().expect("nobody holds it for ever");
        if fs::read_to_string(&stamp).is_ok_and(|present| present == wanted) {
            return Some(environment);
        }
        if !interpreters.iter().any(|interpreter| environment.make(interpreter)) {
            let why = format!("no Python environment can be made: one of {interpreters:?} with its venv is needed");
            skip_unless_ci(&why);
            return None;
        }
        environment.install(&requirements);
        fs::write(stamp, wanted).expect("the environment is ours");
        Some(environment)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its interpreter.
    pub fn python(&self) -> PathBuf {
        self.path.join("bin/python")
    }

    /// Runs a line of Python and returns its output, without the line's end.
    pub fn evaluate(&self, program: &str) -> String {
        let output = Command::new(self.python()).arg("-c").arg(program).output().expect("the interpreter is there");
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// The folder of the installed packages.
    pub fn packages(&self) -> PathBuf {
        self.evaluate("import sysconfig; print(sysconfig.get_path('purelib'))").into()
    }

    fn make(&self, interpreter: &str) -> bool {
        let made = Command::new(interpreter).args(["-m", "venv", "--clear"]).arg(&self.path).output();
        made.is_ok_and(|output| output.status.success())
    }

    /// Modules are not compiled here: Python compiles the few that a test imports.
    fn install(&self, requirements: &Path) {
        let output = Command::new(self.python())
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check", "-r"])
            .arg(requirements)
            .output()
            .expect("the interpreter is there");
        assert!(output.status.success(), "pip: {}", String::from_utf8_lossy(&output.stderr));
    }
}
