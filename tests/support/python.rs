//! A Python virtual environment beneath `target`, made once and kept.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::folder::target;

/// An environment with the asked packages in it.
pub struct Environment {
    path: PathBuf,
}

impl Environment {
    /// Makes `target/venv-NAME` with exactly these packages, unless it is there already. The list must be complete
    /// (`pip freeze`): nothing is resolved, so nothing can change by itself.
    ///
    /// `None` where there is no Python: the test then passes over, with a message. In CI (`CI=true`) that is a failure.
    pub fn create(name: &str, requirements: &Path) -> Option<Self> {
        let wanted = fs::read_to_string(requirements).expect("the list of packages is in the repository");
        let path = target().join(format!("venv-{name}"));
        let environment = Self { path };
        let stamp = environment.path.join("requirements.txt");
        if fs::read_to_string(&stamp).is_ok_and(|present| present == wanted) {
            return Some(environment);
        }
        let made = Command::new("python3").arg("-m").arg("venv").arg("--clear").arg(&environment.path).output();
        if !made.as_ref().is_ok_and(|output| output.status.success()) {
            assert!(env::var_os("CI").is_none_or(|value| value != "true"), "python3 -m venv failed: {made:?}");
            eprintln!("skipped: no Python environment can be made (python3 and python3-venv are needed)");
            return None;
        }
        environment.install(requirements);
        fs::write(stamp, wanted).expect("the environment is ours");
        Some(environment)
    }

    /// Its interpreter.
    pub fn python(&self) -> PathBuf {
        self.path.join("bin/python")
    }

    /// Runs a line of Python and returns what it prints, without the line's end.
    pub fn evaluate(&self, program: &str) -> String {
        let output = Command::new(self.python()).arg("-c").arg(program).output().expect("the interpreter is there");
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// The folder of the installed packages.
    pub fn packages(&self) -> PathBuf {
        self.evaluate("import sysconfig; print(sysconfig.get_path('purelib'))").into()
    }

    fn install(&self, requirements: &Path) {
        let output = Command::new(self.python())
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "-r"])
            .arg(requirements)
            .output()
            .expect("the interpreter is there");
        assert!(output.status.success(), "pip: {}", String::from_utf8_lossy(&output.stderr));
    }
}
