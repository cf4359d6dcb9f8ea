//! A model whose runs wait until the test lets them through, so that a test need not guess how long one takes.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::folder::Folder;

/// The gate of one model, closed at first. Its runs are those of `tests/backends/identity.c`, which answers inputs as outputs.
pub struct Gate {
    backends: Folder,
    file: PathBuf,
    passed: Cell<u64>,
}

impl Gate {
    /// Has the backend with a gate serve a model of `identity` that was written already.
    pub fn on(repository: &Path, model: &str) -> Self {
        let backends = Folder::new("gate");
        add_backend(backends.path(), "identity", "gated");
        let path = repository.join(model).join("config.pbtxt");
        let config = fs::read_to_string(&path).expect("the model was written");
        let gated = config.replace("backend: \"identity\"", "backend: 'gated'");
        let gated = gated.replace("backend: 'identity'", "backend: 'gated'");
        assert_ne!(config, gated, "{model} is one of identity");
        fs::write(path, gated).expect("the folder is ours");
        let gate = Self { backends, file: repository.join(model).join("gate"), passed: Cell::new(0) };
        gate.pass(0);
        gate
    }

    /// The flag with which a server finds the backend.
    pub fn flag(&self) -> String {
        format!("--backend-directory={}", self.backends.path().display())
    }

    /// Lets `runs` further runs through, in the order in which they began, or will.
    pub fn pass(&self, runs: u64) {
        self.limit(self.passed.get() + runs);
    }

    /// Lets this number of runs through, counted from the start of the server, over all models with a gate.
    pub fn limit(&self, runs: u64) {
        self.passed.set(runs);
        let new = self.file.with_extension("new");
        fs::write(&new, runs.to_string()).expect("the folder is ours");
        fs::rename(new, &self.file).expect("the folder is ours");
    }

    /// Lets all runs through, from now on.
    pub fn open(&self) {
        let _ = fs::remove_file(&self.file);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // A test that fails must not keep its server from its end.
        self.open();
    }
}

/// Compiles a backend of the tests into a directory of backends, under this name.
pub fn add_backend(backends: &Path, source: &str, name: &str) {
    let folder = backends.join(name);
    compile(&folder.join(format!("libtriton_{name}.so")), source, &[]);
}

/// Compiles a library of `tests/backends`, with these arguments of the compiler.
pub fn compile(library: &Path, source: &str, arguments: &[&str]) {
    fs::create_dir_all(library.parent().expect("it is in a folder")).expect("the folder is ours");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/backends").join(format!("{source}.c"));
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-o"]);
    let output = command.arg(library).arg(source).args(arguments).output();
    let output = output.expect("there is a C compiler, which builds of this crate need");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
