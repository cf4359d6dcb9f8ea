//! OpenVINO: runs its own IR (`model.xml` beside `model.bin`), and ONNX, TensorFlow and TensorFlow Lite files as they are.
//! A shared library that the server opens when the first model needs it (`library` has its C interface).
//!
//! A model version is read and compiled once; its instances have a request each, and a stream each inside the library, so
//! that they run side by side. It computes in FP32 unless a model asks for BF16: the library's own choice, BF16 where the
//! CPU has it, is some tenths of a percent off. Each run writes its outputs
//! to new memory, which the answers share; inputs are read in place.
//!
//! Reasons and design: `docs/decisions/0041-openvino.md`.

mod bind;
mod instance;
mod integers;
mod library;
mod options;

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use crossbeam_queue::ArrayQueue;

use crate::model_file::model_file_or_directory;
use backend::engine_run::BatchedInstance;
use backend::{Backend, Computation, Instance, LoadedModel, Threads};
use base::error::Error;
use model::narrow::{Graph, ir, onnx};
use model::platform::{GRAPHDEF_PLATFORM, TENSORFLOW_BACKEND};
use model::signature::{ModelSignature, SignatureTensor};
use model::tensorflow::state::{changed_by_graph, changed_by_signature};
use model::tensorflow::{GRAPH_TAG, SAVED_MODEL_FILE, SIGNATURE_DEF, SavedModel};
use model::{InstanceGroup, ModelSpec};

use bind::InputPort;
use instance::OpenvinoInstance;
use integers::IntegerLimits;
use library::{OvAsked, OvCompiled, OvCore, OvLibrary, OvModel, OvPort, OvSide};
use options::OpenvinoOptions;

/// The backend: an opened library.
pub struct Openvino {
    library: &'static OvLibrary,
    core: Arc<OvCore>,
    path: PathBuf,
    name: String,
    extension: Option<String>,
}

/// A loaded model version.
struct OpenvinoModel {
    shared: Arc<SharedModel>,
    /// The compiled model for the next instance, with its number of threads.
    compiled: ArrayQueue<(usize, Arc<OvCompiled>)>,
}

/// The state that all instances of a model version share.
struct SharedModel {
    spec: Arc<ModelSpec>,
    core: Arc<OvCore>,
    model: OvModel,
    options: OpenvinoOptions,
    inputs: Vec<InputPort>,
    outputs: Vec<OvAsked>,
    limits: IntegerLimits,
    /// Each instance compiles the model for itself, and again after a run that failed.
    keeps_failures: bool,
    /// The rows of every batch, where the model takes no others.
    fixed_rows: Option<i64>,
    instances: usize,
}

impl Openvino {
    /// Opens the library, and in it one with operators of the user's.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be used.
    pub fn open(path: &Path, extension: Option<&str>) -> Result<Self, String> {
        let library = OvLibrary::open(path)?;
        let core = OvCore::new(library)?;
        if let Some(extension) = extension {
            core.add_extension(extension)
                .map_err(|why| format!("its extension '{extension}' cannot be opened: {why}"))?;
        }
        let name = format!("OpenVINO {}", library.version);
        let (path, extension) = (path.to_owned(), extension.map(str::to_owned));
        Ok(Self { library, core: Arc::new(core), path, name, extension })
    }

    /// The file that was opened.
    pub fn library(&self) -> &Path {
        &self.path
    }

    /// Its version, as `2026.4.1`.
    pub fn version(&self) -> &str {
        &self.library.version
    }

    /// The library with operators that was opened with it.
    pub fn extension(&self) -> Option<&str> {
        self.extension.as_deref()
    }

    /// Reads the inputs and outputs of the model in a file or directory.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it cannot be read.
    pub fn signature(&self, model: &str, path: &Path) -> Result<ModelSignature, Error> {
        let in_model = |why: String| refused(model, path, &why);
        let read = self.core.read(path).map_err(in_model)?;
        let tensors = |side| {
            let ports = read.ports(side).map_err(in_model)?;
            let tensor = |OvPort { name, datatype, shape }: OvPort| {
                let name = name.ok_or_else(|| in_model("an input or output of it has no name".to_owned()))?;
                Ok(SignatureTensor { name, datatype, shape })
            };
            ports.into_iter().map(tensor).collect::<Result<_, Error>>()
        };
        Ok(ModelSignature { inputs: tensors(OvSide::Input)?, outputs: tensors(OvSide::Output)? })
    }

    fn load_model(&self, spec: &Arc<ModelSpec>, path: &Path) -> Result<OpenvinoModel, Error> {
        let options = OpenvinoOptions::read(spec, self.extension())?;
        check_tensorflow(spec, path)?;
        check_state(spec, path)?;
        let in_model = |why: String| refused(&spec.name, path, &why);
        let mut model = self.core.read(path).map_err(in_model)?;
        let bound = bind::bind(spec, &options, &mut model).map_err(|error| match error {
            bind::BindError::Configuration(error) => error,
            bind::BindError::Library(why) => in_model(why),
        })?;
        let limits = integers::limits(&model, &bound.inputs, options.is_narrow, || graph(path));
        let limits = limits.map_err(|why| Error::unsupported(refused(&spec.name, path, &why).text().to_owned()))?;
        let model = match bound.converted.as_slice() {
            [] => model,
            converted => model.converting(converted).map_err(in_model)?,
        };
        let instances = spec.instance_groups.iter().map(InstanceGroup::instance_count).sum::<u64>();
        let shared = SharedModel {
            spec: Arc::clone(spec),
            core: Arc::clone(&self.core),
            model,
            options,
            inputs: bound.inputs,
            outputs: bound.outputs,
            limits,
            keeps_failures: self.library.keeps_failures(),
            fixed_rows: bound.fixed_rows,
            instances: usize::try_from(instances).unwrap_or(usize::MAX).max(1),
        };
        let model = OpenvinoModel { shared: Arc::new(shared), compiled: ArrayQueue::new(1) };
        // A model that cannot be compiled fails the load and not a worker. Most workers have one
        // thread.
        let compiled = model.shared.compile(1).map_err(in_model)?;
        let _ = model.compiled.push((1, compiled));
        Ok(model)
    }
}

impl SharedModel {
    fn compile(&self, threads: usize) -> Result<Arc<OvCompiled>, String> {
        let Self { core, model, options, instances, keeps_failures, .. } = self;
        let instances = if *keeps_failures { 1 } else { *instances };
        core.compile(model, &options.device, &options.properties(threads, instances)).map(Arc::new)
    }
}

/// Refuses an IR that keeps a state from run to run: the next run may be another client's, and the C interface cannot
/// reset it.
fn check_state(spec: &ModelSpec, path: &Path) -> Result<(), Error> {
    if path.extension().is_none_or(|end| end != "xml") {
        return Ok(());
    }
    let text = std::fs::read(path).map_err(|error| Error::internal(error.to_string()))?;
    let kept = ir::keeps_state(&String::from_utf8_lossy(&text));
    kept.map_or(Ok(()), |layer| {
        Err(Error::unsupported(format!(
            "unable to load model '{}': it keeps a state from run to run ({layer}), which would go from one request to the \
             next; make the state an input and an output",
            spec.name
        )))
    })
}

/// Reads the graph of an ONNX file or of an IR, whose constants lie beside it; `None` for another file.
fn graph(path: &Path) -> Result<Option<Graph>, String> {
    let read = || std::fs::read(path).map_err(|error| error.to_string());
    Ok(match path.extension().and_then(|end| end.to_str()) {
        Some("onnx") => onnx::read(Bytes::from(read()?)).ok(),
        Some("xml") => {
            let file = std::fs::File::open(path.with_extension("bin")).ok();
            let weights = |offset: u64, size: usize| {
                let mut bytes = vec![0; size];
                file.as_ref()?.read_exact_at(&mut bytes, offset).ok()?;
                Some(bytes)
            };
            ir::read(&String::from_utf8_lossy(&read()?), &weights)
        }
        _ => None,
    })
}

/// Refuses a model of TensorFlow's that the library would read as another: a SavedModel of which it might run another
/// signature than the one to serve, with the same names and other numbers, and a graph that changes its variables, which
/// the library leaves out.
fn check_tensorflow(spec: &ModelSpec, path: &Path) -> Result<(), Error> {
    let in_model = |error: Error| error.with_prefix(&format!("unable to load model '{}': ", spec.name));
    let read = |path: &Path| std::fs::read(path).map_err(|error| in_model(Error::internal(error.to_string())));
    let is_tensorflow = spec.backend == TENSORFLOW_BACKEND;
    let is_graph = path.extension().is_some_and(|end| ["graphdef", "pb"].iter().any(|known| end == *known));
    let changed = if path.is_dir() {
        let file = read(&path.join(SAVED_MODEL_FILE))?;
        let model = SavedModel::decode(&file).map_err(in_model)?;
        let parameter = |key: &str| spec.parameters.get(key).filter(|_| is_tensorflow).map(String::as_str);
        let chosen = model.choose(parameter(GRAPH_TAG.0), parameter(SIGNATURE_DEF.0)).map_err(in_model)?;
        if let Some(why) = model.why_not_alone(&chosen).filter(|_| is_tensorflow) {
            return Err(in_model(Error::unsupported(format!(
                "OpenVINO runs a SavedModel of one graph by its signature '{}', and {why}",
                SIGNATURE_DEF.1
            ))));
        }
        changed_by_signature(&file, &chosen).map_err(in_model)?
    } else if is_graph || spec.platform == GRAPHDEF_PLATFORM {
        changed_by_graph(&read(path)?).map_err(in_model)?
    } else {
        None
    };
    match changed {
        None => Ok(()),
        Some(operation) => Err(in_model(Error::unsupported(format!(
            "it changes its own state ({operation}), which OpenVINO leaves out; TensorFlow runs it"
        )))),
    }
}

/// The library's refusal of a model, without the path of its directory, which clients should not
/// see.
fn refused(model: &str, path: &Path, why: &str) -> Error {
    let directory = path.parent().map(|directory| format!("{}/", directory.display())).unwrap_or_default();
    let why = if directory.len() > 1 { why.replace(&directory, "") } else { why.to_owned() };
    Error::invalid(format!("unable to load model '{model}': OpenVINO: {why}"))
}

impl Backend for Openvino {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        Ok(Box::new(self.load_model(spec, &model_file_or_directory(spec, directory)?)?))
    }
}

impl LoadedModel for OpenvinoModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let shared = &self.shared;
        let refused =
            |why: String| Error::internal(format!("an instance of model '{}' cannot be made: {why}", shared.spec.name));
        let count = threads.count();
        let compiled = match self.compiled.pop() {
            Some((have, compiled)) if have == count => compiled,
            _ => shared.compile(count).map_err(refused)?,
        };
        let request = compiled.request().map_err(refused)?;
        if !shared.keeps_failures {
            self.compiled.force_push((count, Arc::clone(&compiled)));
        }
        Ok(Box::new(BatchedInstance::new(OpenvinoInstance::new(Arc::clone(shared), count, compiled, request))))
    }

    /// A new shape makes the library compile kernels within a run: its time does not follow from
    /// the shapes.
    fn may_run_inline(&self) -> bool {
        false
    }

    fn computation(&self) -> Computation {
        Computation::OfAnyLength
    }

    fn why_not_inline(&self) -> &str {
        "OpenVINO compiles kernels for each new shape while it runs"
    }
}
