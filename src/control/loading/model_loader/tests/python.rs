//! Python models, loaded by an engine that only notes the calls.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::mpsc;

use super::super::*;
use crate::backend::gpu::fake::Fake;
use crate::backend::{Batch, Instance};
use crate::control::engines::config_completion::{PythonDraft, PythonEngine};
use crate::limits::{CONFIG_SIZE_MAX, PYTHON_FILE_SIZE_MAX};
use crate::settings::OnnxruntimeConfig;

const TENSORS: &str =
    "input { name: 'x' data_type: TYPE_FP32 dims: 4 } output { name: 'y' data_type: TYPE_FP32 dims: 4 }";

/// Changes the configuration of each model by `edits`, or fails. Notes the calls.
#[derive(Default)]
struct NotingEngine {
    edits: Vec<(&'static str, &'static str)>,
    failure: Option<&'static str>,
    asked: Option<mpsc::Sender<String>>,
    /// A file that is written while the model loads.
    written: Option<PathBuf>,
}

impl NotingEngine {
    fn note(&self, text: String) {
        self.asked.as_ref().unwrap().send(text).unwrap();
    }
}

impl Backend for NotingEngine {
    fn name(&self) -> &str {
        "noting"
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        let python = spec.python.as_ref().unwrap();
        self.note(format!("load {} at {}", python.file, directory.display()));
        self.written.iter().for_each(|path| fs::write(path, "changed").unwrap());
        Ok(Box::new(NoModel))
    }
}

impl PythonEngine for NotingEngine {
    fn complete_config(&self, model: &PythonDraft<'_>) -> Result<String, Error> {
        let PythonDraft { name, version, version_directory, backend, python, config } = model;
        self.note(format!("complete {name} {version} {} {backend} {}", version_directory.display(), python.file));
        let edited = self.edits.iter().fold(config.clone(), |config, (from, to)| config.replace(from, to));
        self.failure.map_or(Ok(edited), |failure| Err(Error::internal(failure)))
    }
}

/// A model that is never run.
struct NoModel;

impl LoadedModel for NoModel {
    fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(NoInstance))
    }

    fn may_run_inline(&self) -> bool {
        false
    }
}

struct NoInstance;

impl Instance for NoInstance {
    fn run(&mut self, _: Batch) {}
}

/// A repository with one model `m`, whose version 1 is loaded.
struct Repository {
    root: PathBuf,
}

impl Repository {
    fn new(name: &str, config: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("deuteron-load-python-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let repository = Self { root };
        repository.write("models/m/config.pbtxt", config);
        fs::create_dir_all(repository.root.join("models/m/1")).unwrap();
        files.iter().for_each(|(path, text)| repository.write(path, text));
        repository
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn directory(&self) -> (ModelSource, ModelDirectory) {
        let source = ModelSource::of_directory(self.root.join("models")).unwrap();
        let directory = ModelDirectory::from_entry(&source.repository.list_model("m")).unwrap();
        (source, directory)
    }

    /// Loads the model; the paths of the answers begin at the repository.
    fn load(&self, engine: NotingEngine, settings: Settings) -> (Result<LoadedVersion, String>, Vec<String>) {
        let (sender, asked) = mpsc::channel();
        let engine = Arc::new(NotingEngine { asked: Some(sender), ..engine });
        let engines = Engines::without(OnnxruntimeConfig::default(), "it is not here");
        let loader = ModelLoader {
            runs_python: true,
            engine_processes: None,
            library_isolation: None,
            agents: None,
            run_memory: Arc::default(),
            services: ModelServices::new(),
            run_watcher: RunWatcher::default(),
            trials: None,
            has_started: AtomicBool::new(false),
            settings: Arc::new(Settings { backend_directory: self.root.join("backends"), ..settings }),
            engines: engines.with_python(engine),
            host_gpus: HostGpus::of(Fake::new(2).gpus(1 << 20, 1 << 20)),
        };
        let outcome = self.load_with(&loader);
        drop(loader);
        let models = format!("{}/", self.root.join("models").display());
        (outcome, asked.iter().map(|text| text.replace(&models, "")).collect())
    }

    fn load_with(&self, loader: &ModelLoader) -> Result<LoadedVersion, String> {
        let (source, directory) = self.directory();
        let location = ModelLocation { source: &source, directory: &directory };
        let opened = loader.open(location).map_err(|failure| failure.error().text().to_owned())?;
        loader.load_version(location, &opened, 1).map_err(|error| error.text().to_owned())
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn plain() -> (NotingEngine, Settings) {
    (NotingEngine::default(), Settings::default())
}

#[test]
fn a_python_model_is_loaded_by_its_directory_and_asked_only_where_it_has_the_function() {
    let config = format!("backend: 'python' {TENSORS}");
    let repository = Repository::new("plain", &config, &[("models/m/1/model.py", "class TritonPythonModel: ...")]);
    let (engine, settings) = plain();
    let (loaded, asked) = repository.load(engine, settings);
    assert_eq!(asked, ["load model.py at m/1"]);
    assert_eq!(loaded.unwrap().choice.site, InstanceSite::Worker);
    repository.write("models/m/1/model.py", "def auto_complete_config(config): return config");
    let edits = vec![(r#""max_batch_size":0"#, r#""max_batch_size":7"#)];
    let (loaded, asked) = repository.load(NotingEngine { edits, ..NotingEngine::default() }, Settings::default());
    assert_eq!(asked, ["complete m 1 m/1 python model.py", "load model.py at m/1"]);
    assert_eq!(loaded.unwrap().spec.rows_max, 7);
    for elsewhere in ["from served import TritonPythonModel", "class TritonPythonModel(served.Base): ..."] {
        repository.write("models/m/1/model.py", elsewhere);
        let (engine, settings) = plain();
        assert_eq!(repository.load(engine, settings).1.len(), 2, "{elsewhere}");
    }
    let settings = Settings { auto_complete: false, ..Settings::default() };
    let (loaded, asked) = repository.load(NotingEngine::default(), settings);
    assert_eq!((loaded.unwrap().spec.rows_max, asked.len()), (0, 1), "--disable-auto-complete-config");
    // A file of which only the beginning is read may have the function further down.
    repository.write("models/m/1/model.py", &"#".repeat(usize::try_from(PYTHON_FILE_SIZE_MAX).unwrap() + 1));
    let (engine, settings) = plain();
    assert_eq!(repository.load(engine, settings).1.len(), 2);
}

#[test]
fn what_auto_complete_config_fails_with_fails_the_load() {
    let repository = Repository::new("failing", "", &[("models/m/1/model.py", "auto_complete_config")]);
    let failure = Some("ValueError: no such tensor\n\nAt:\n  model.py(3): auto_complete_config");
    let (loaded, asked) = repository.load(NotingEngine { failure, ..NotingEngine::default() }, Settings::default());
    assert_eq!((loaded.err().as_deref(), asked.len()), (failure, 1));
    let (engine, settings) = plain();
    let text = repository.load(engine, settings).0.err().unwrap();
    assert_eq!(text, "model configuration must contain at least one input, none were specified for m");
    let long: &'static str = Box::leak(format!("\"name\":{:?}", "x".repeat(CONFIG_SIZE_MAX)).into_boxed_str());
    let edits = vec![("\"name\":\"m\"", long)];
    let text = repository.load(NotingEngine { edits, ..NotingEngine::default() }, Settings::default()).0.err().unwrap();
    assert!(text.ends_with("bytes, more than the 1048576 allowed"), "{text}");
}

#[test]
fn labels_that_auto_complete_config_adds_are_read() {
    let config = "backend: 'python' input { name: 'x' data_type: TYPE_FP32 dims: 4 }";
    let files = [("models/m/1/model.py", "auto_complete_config"), ("models/m/labels.txt", "cat\ndog\n")];
    let repository = Repository::new("labels", config, &files);
    let output = r#""output":[{"name":"y","data_type":"TYPE_FP32","dims":[2],"label_filename":"labels.txt"}]"#;
    let edits = vec![(r#""output":[]"#, output)];
    let loaded = repository.load(NotingEngine { edits, ..NotingEngine::default() }, Settings::default()).0.unwrap();
    assert_eq!(loaded.spec.outputs[0].labels.as_ref().and_then(|labels| labels.get(1)), Some("dog"));
}

#[test]
fn a_python_file_that_is_absent_or_outside_the_repository_is_refused() {
    let config = format!("backend: 'python' {TENSORS}");
    let repository = Repository::new("absent", &config, &[("outside.py", ""), ("models/m/model.py", "")]);
    for auto_complete in [true, false] {
        let load = || repository.load(NotingEngine::default(), Settings { auto_complete, ..Settings::default() });
        let (loaded, asked) = load();
        assert_eq!(loaded.err().unwrap(), "Python model file not found in 'm/1/model.py'");
        assert!(asked.is_empty());
        symlink(repository.root.join("outside.py"), repository.root.join("models/m/1/model.py")).unwrap();
        let text = load().0.err().unwrap();
        assert!(text.starts_with("cannot read 'm/1/model.py': ") && !text.contains("outside"), "{text}");
        fs::remove_file(repository.root.join("models/m/1/model.py")).unwrap();
    }
    symlink("../model.py", repository.root.join("models/m/1/model.py")).unwrap();
    let (engine, settings) = plain();
    assert!(repository.load(engine, settings).0.is_ok(), "a link within the repository");
}

#[test]
fn a_python_file_that_changes_while_it_is_loaded_is_refused() {
    let config = format!("backend: 'python' {TENSORS}");
    let repository = Repository::new("changing", &config, &[("models/m/1/model.py", "")]);
    let written = Some(repository.root.join("models/m/1/model.py"));
    let (loaded, _) = repository.load(NotingEngine { written, ..NotingEngine::default() }, Settings::default());
    assert_eq!(loaded.err().unwrap(), "'m/1/model.py' was changed while it was loaded; load it again");
}

#[test]
fn a_python_based_backend_has_the_code_and_the_model_the_data() {
    let config = format!("backend: 'vllm' {TENSORS}");
    let files = [("backends/vllm/model.py", "auto_complete_config"), ("models/m/1/model.json", "{}")];
    let repository = Repository::new("backend", &config, &files);
    let (engine, settings) = plain();
    let (loaded, asked) = repository.load(engine, settings);
    assert_eq!(asked, ["complete m 1 m/1 vllm model.py", "load model.py at m/1"]);
    let spec = loaded.unwrap().spec;
    assert_eq!((&*spec.backend, spec.python.as_ref().unwrap().is_backend), ("vllm", true));
    fs::remove_dir_all(repository.root.join("backends")).unwrap();
    let (engine, settings) = plain();
    assert!(
        repository.load(engine, settings).0.err().unwrap().contains("backend 'vllm', which this server does not have")
    );
}

#[test]
fn an_instance_of_kind_gpu_is_the_models_own_affair() {
    let config = format!("backend: 'python' instance_group {{ kind: KIND_GPU }} {TENSORS}");
    let repository = Repository::new("gpu", &config, &[("models/m/1/model.py", "auto_complete_config")]);
    let (engine, settings) = plain();
    let (loaded, asked) = repository.load(engine, settings);
    assert_eq!(asked.len(), 2, "one completion: {asked:?}");
    assert_eq!(loaded.unwrap().spec.instance_groups[0].gpus, [0, 1]);
}

#[test]
fn a_server_that_runs_no_python_says_so() {
    let config = format!("backend: 'python' {TENSORS}");
    let repository = Repository::new("none", &config, &[("models/m/1/model.py", "")]);
    let loader = ModelLoader {
        runs_python: true,
        engine_processes: None,
        library_isolation: None,
        agents: None,
        run_memory: Arc::default(),
        services: ModelServices::new(),
        run_watcher: RunWatcher::default(),
        trials: None,
        has_started: AtomicBool::new(false),
        settings: Arc::default(),
        engines: Engines::without(OnnxruntimeConfig::default(), "it is not here"),
        host_gpus: HostGpus::of(Fake::new(0).gpus(0, 0)),
    };
    let want = "model 'm' is a Python model, and this server runs no Python";
    assert_eq!(repository.load_with(&loader).err().unwrap(), want);
    repository.write("models/m/1/model.py", "auto_complete_config");
    assert_eq!(repository.load_with(&loader).err().unwrap(), want);
}

#[test]
fn any_file_of_a_python_model_is_a_change_but_what_python_compiled() {
    let files = [("models/m/1/model.py", ""), ("models/m/helper.py", ""), ("models/m/1/sub/x.py", "")];
    let repository = Repository::new("marks", "backend: 'python'", &files);
    let mark = || repository.directory().1.mark;
    let first = mark();
    assert_eq!(mark(), first);
    for path in [
        "models/m/1/__pycache__/model.cpython-312.pyc",
        "models/m/1/sub/__pycache__/x.pyc",
        "models/m/__pycache__/h.pyc",
    ] {
        repository.write(path, "compiled");
        assert_eq!(mark(), first, "{path}");
    }
    repository.write("models/m/1/sub/x.py", "changed");
    let second = mark();
    assert!(second.shared == first.shared && second.versions != first.versions);
    repository.write("models/m/helper.py", "changed");
    let third = mark();
    assert!(third.shared != second.shared && third.versions == second.versions);
    repository.write("models/m/1/new.py", "");
    assert_ne!(mark().versions, third.versions);
}
