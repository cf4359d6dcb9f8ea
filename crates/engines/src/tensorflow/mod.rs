//! TensorFlow: runs SavedModels and frozen graphs by the library's C interface (`library`), which
//! is opened when the first model needs it. Most such models run on OpenVINO if that is found,
//! which is smaller and starts sooner (`control::engines::frameworks` chooses); this backend is for models
//! that ask for it, have strings, or that OpenVINO cannot read.
//!
//! A model version is one session, which its instances run at the same time. Inputs are copied into tensors of the
//! library's, since a model may keep them; outputs are its own memory, without a copy.
//!
//! Reasons and design: `docs/decisions/0042-tensorflow.md`.

mod library;
mod parameters;

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::model_file::model_file_or_directory;
use backend::batch::InputConversion;
use backend::bits::bools_to_bits;
use backend::blame;
use backend::engine_run::{BatchedInstance, EngineInputs, EngineInstance};
use backend::text::{
    check_shape, config_name, datatype_differs, input_count_differs, output_differs, unexpected_tensor,
};
use backend::{Backend, Computation, Instance, LoadedModel, Threads};
use base::error::Error;
use base::limits::MODEL_SIZE_MAX;
use base::tensor::{Datatype, Tensor};
use model::platform::GRAPHDEF_PLATFORM;
use model::tensorflow::{ChosenSignature, SAVED_MODEL_FILE, SavedModel, SavedTensor};
use model::{ModelSpec, TensorSpec};

use library::{INVALID_ARGUMENT, OUT_OF_RANGE, TfError, TfLibrary, TfPlace, TfSession, TfTensor, UNIMPLEMENTED};
use parameters::TensorflowParameters;

/// The backend: an opened library.
pub struct Tensorflow {
    library: &'static TfLibrary,
    path: PathBuf,
    name: String,
}

/// A loaded model version.
struct TensorflowModel {
    shared: Arc<TensorflowShared>,
}

/// The state that all instances of a model version share.
struct TensorflowShared {
    spec: Arc<ModelSpec>,
    library: &'static TfLibrary,
    session: TfSession,
    inputs: Vec<BoundPlace>,
    outputs: Vec<BoundPlace>,
}

/// A tensor of the graph, in the configuration's order.
#[derive(Clone, Copy)]
struct BoundPlace {
    place: TfPlace,
    /// It lacks the configuration's last dimension, which is 1.
    is_squeezed: bool,
}

impl Tensorflow {
    /// Opens the library.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be used.
    pub fn open(path: &Path) -> Result<Self, String> {
        let library = TfLibrary::open(path)?;
        let name = format!("TensorFlow {}", library.version);
        Ok(Self { library, path: path.to_owned(), name })
    }

    /// The file that was opened.
    pub fn library(&self) -> &Path {
        &self.path
    }

    /// Its version, as `2.21.0`.
    pub fn version(&self) -> &str {
        &self.library.version
    }

    fn load_model(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<TensorflowModel, Error> {
        let path = model_file_or_directory(spec, directory)?;
        let parameters = TensorflowParameters::read(spec)?;
        let refused = |error: TfError| {
            let why = without_directory(&error.text, directory);
            Error::invalid(format!("unable to load model '{}': TensorFlow: {why}", spec.name))
        };
        let in_model = |error: Error| error.with_prefix(&format!("unable to load model '{}': ", spec.name));
        let read = |path: &Path| std::fs::read(path).map_err(|error| in_model(Error::internal(error.to_string())));
        let (session, signature) = if spec.platform == GRAPHDEF_PLATFORM {
            (TfSession::of_graph(self.library, &read(&path)?, parameters.threads).map_err(refused)?, None)
        } else {
            let model = SavedModel::decode(&read(&path.join(SAVED_MODEL_FILE))?).map_err(in_model)?;
            let chosen = model.choose(parameters.tag, parameters.signature).map_err(in_model)?;
            let session = TfSession::of_saved_model(self.library, &path, &chosen.tag, parameters.threads);
            (session.map_err(refused)?, Some(chosen))
        };
        for operation in init_operations(spec, directory, parameters.init_file)? {
            session.run_operation(&operation).map_err(refused)?;
        }
        let binder = Binder { spec, session: &session, signature: signature.as_ref() };
        let (inputs, outputs) = (binder.inputs()?, binder.outputs()?);
        let (library, spec) = (self.library, Arc::clone(spec));
        Ok(TensorflowModel { shared: Arc::new(TensorflowShared { spec, library, session, inputs, outputs }) })
    }
}

/// The library's text without the path of the version's directory, which clients should not see,
/// and shortened to a readable length.
fn without_directory(text: &str, directory: &Path) -> String {
    let place = format!("{}/", directory.display());
    let text = if place.len() > 1 { text.replace(&place, "") } else { text.to_owned() };
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" ").chars().take(ERROR_CHARS_MAX).collect()
}

/// Characters of a library error that are passed on: it may list a whole graph.
const ERROR_CHARS_MAX: usize = 1000;

/// The operations of `TF_INIT_OPS_FILE`, which lies in the version's directory or in the model's.
fn init_operations(spec: &ModelSpec, directory: &Path, file: Option<&str>) -> Result<Vec<String>, Error> {
    let Some(file) = file else { return Ok(Vec::new()) };
    let refuse = |why: &str| {
        let text = format!("unable to load model '{}': file '{file}' (TF_INIT_OPS_FILE) {why}", spec.name);
        Error::invalid(text)
    };
    if !matches!(Path::new(file).components().collect::<Vec<_>>().as_slice(), [Component::Normal(_)]) {
        return Err(refuse("must lie in the version's or the model's directory"));
    }
    let places = [Some(directory), directory.parent()];
    let found = places.into_iter().flatten().map(|place| place.join(file)).find(|path| path.is_file());
    let path = found.ok_or_else(|| refuse("is not there"))?;
    let size = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
    if size > MODEL_SIZE_MAX as u64 {
        return Err(refuse("is too large"));
    }
    let text = std::fs::read(&path).map_err(|error| refuse(&format!("cannot be read: {error}")))?;
    model::tensorflow::init_operations(&text).ok_or_else(|| refuse("is not JSON of {\"init_ops\": [NAME, …]}"))
}

/// Binds the configuration's inputs and outputs to tensors of the graph.
struct Binder<'a> {
    spec: &'a ModelSpec,
    session: &'a TfSession,
    /// The signature of a SavedModel; `None` for a frozen graph.
    signature: Option<&'a ChosenSignature>,
}

impl Binder<'_> {
    fn inputs(&self) -> Result<Vec<BoundPlace>, Error> {
        let spec = self.spec;
        let tensors = self.signature.map(|chosen| chosen.signature.inputs.as_slice());
        // A graph may have more inputs than the outputs in the configuration depend on.
        if let Some(tensors) = tensors.filter(|tensors| tensors.len() != spec.inputs.len()) {
            return Err(input_count_differs(spec, spec.inputs.len(), tensors.len()));
        }
        if let Some(input) = spec.batch_inputs.first() {
            let (name, model) = (&input.name, &spec.name);
            return Err(Error::invalid(format!(
                "unable to load model '{model}', input '{name}' is a batch input, which TensorFlow's models do not take"
            )));
        }
        spec.inputs.iter().map(|input| self.bind("input", input, tensors)).collect()
    }

    fn outputs(&self) -> Result<Vec<BoundPlace>, Error> {
        let tensors = self.signature.map(|chosen| chosen.signature.outputs.as_slice());
        self.spec.outputs.iter().map(|output| self.bind("output", output, tensors)).collect()
    }

    fn bind(&self, side: &str, tensor: &TensorSpec, tensors: Option<&[SavedTensor]>) -> Result<BoundPlace, Error> {
        let Self { spec, session, .. } = self;
        let name = &tensor.name;
        if tensor.is_optional || tensor.is_shape_tensor || tensor.is_ragged || tensor.scatter_source.is_some() {
            return Err(Error::invalid(format!(
                "unable to load model '{}', {side} '{name}' is optional, ragged or a shape tensor, which TensorFlow's models \
                 do not take",
                spec.name
            )));
        }
        let (place, shape) = match tensors {
            None => (name.as_str(), None),
            Some(tensors) => {
                let found = tensors.iter().find(|have| have.tensor.name == *name);
                let names = tensors.iter().map(|tensor| tensor.tensor.name.as_str());
                let found = found.ok_or_else(|| unexpected_tensor(side, name, names))?;
                (found.place.as_str(), found.tensor.shape.as_ref())
            }
        };
        let place = session.place(place).ok_or_else(|| {
            let text =
                format!("unable to load model '{}', {side} '{name}': the graph has no tensor '{place}'", spec.name);
            Error::invalid(text)
        })?;
        if place.datatype != Some(tensor.datatype) {
            let came = place.datatype.map_or_else(|| "one that the protocol cannot carry".to_owned(), config_name);
            return Err(datatype_differs(spec, side, name, tensor.datatype, &came));
        }
        let Some(shape) = shape else { return Ok(BoundPlace { place, is_squeezed: false }) };
        if spec.has_batch_axis() && shape.first() != Some(&-1) {
            return Err(Error::invalid(format!(
                "unable to load model '{}', tensor '{name}': for the model to support batching the shape should have at least \
                 1 dimension and the first dimension must be -1; but shape expected by the model is {}",
                spec.name,
                backend::text::ShapeText(shape)
            )));
        }
        let is_squeezed = tensor.may_be_scalar() && shape.len() + 1 == tensor.model_shape.len();
        let rank = tensor.model_shape.len() - usize::from(is_squeezed);
        check_shape(spec, tensor, shape, tensor.model_shape.get(..rank).unwrap_or_default())?;
        Ok(BoundPlace { place, is_squeezed })
    }
}

impl Backend for Tensorflow {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        Ok(Box::new(self.load_model(spec, directory)?))
    }
}

impl LoadedModel for TensorflowModel {
    fn new_instance(&self, _threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(BatchedInstance::new(TensorflowInstance { shared: Arc::clone(&self.shared) })))
    }

    fn may_run_inline(&self) -> bool {
        false
    }

    fn computation(&self) -> Computation {
        Computation::Elsewhere
    }

    fn why_not_inline(&self) -> &str {
        "TensorFlow computes on threads of its own"
    }
}

/// One instance: runs the shared session.
struct TensorflowInstance {
    shared: Arc<TensorflowShared>,
}

impl EngineInstance for TensorflowInstance {
    type Outputs = Vec<TfTensor>;

    fn conversion(datatype: Datatype) -> InputConversion {
        let convert = (datatype == Datatype::Bool).then_some(bools_to_bits as _);
        InputConversion { alignment: 1, convert }
    }

    fn spec(&self) -> &Arc<ModelSpec> {
        &self.shared.spec
    }

    fn compute(&mut self, batch: EngineInputs<'_>) -> Result<Vec<TfTensor>, Error> {
        let TensorflowShared { spec, library, session, inputs, outputs } = &*self.shared;
        let feed = |(place, (bound, input)): (usize, (&BoundPlace, &TensorSpec))| {
            let (shape, contents) = (batch.model_shape(place, bound.is_squeezed), batch.contents(place));
            TfTensor::new(library, input.datatype, shape, contents).map(|tensor| (bound.place, tensor))
        };
        let feeds = inputs.iter().zip(&spec.inputs).enumerate().map(feed).collect::<Result<Vec<_>, _>>();
        let fetches: Vec<_> = outputs.iter().map(|bound| bound.place).collect();
        feeds.and_then(|feeds| session.run(&feeds, &fetches)).map_err(|error| failed(spec, &error))
    }

    fn outputs(&self, values: Vec<TfTensor>, _: EngineInputs<'_>) -> impl Iterator<Item = Result<Tensor, Error>> {
        let spec = &self.shared.spec;
        values.into_iter().zip(&spec.outputs).enumerate().map(move |(index, (value, expected))| {
            let Some(datatype) = value.datatype().filter(|datatype| *datatype == expected.datatype) else {
                let came = value.datatype().map_or("a datatype that the protocol lacks", Datatype::name);
                return Err(output_differs(spec, index, came));
            };
            let mut shape = value.shape();
            // A configuration cannot express a scalar: it declares a last dimension of 1.
            if expected.may_be_scalar() && shape.len() + 1 == expected.model_shape.len() {
                shape.push(1);
            }
            let contents = value.contents().map_err(|error| failed(spec, &error))?;
            Ok(Tensor { datatype, shape, contents })
        })
    }
}

/// The error of a run.
fn failed(spec: &ModelSpec, error: &TfError) -> Error {
    let told = |why: &str| format!("model '{}': TensorFlow: {}", spec.name, without_directory(why, Path::new("")));
    let text = told(&error.text);
    match error.code {
        INVALID_ARGUMENT | OUT_OF_RANGE => Error::invalid(told(&blame::tensorflow(&error.text))),
        UNIMPLEMENTED => Error::unsupported(text),
        _ => Error::internal(text),
    }
}
