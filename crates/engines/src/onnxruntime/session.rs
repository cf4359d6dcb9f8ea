//! The sessions of a model version: the recipe for opening them, and a spare one for the next
//! instance on the CPU. A session on a GPU is never a spare: it holds a reference to the primary
//! context, which cannot be reset before all references are gone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use ort::environment::Environment;
use ort::session::Session;

use crate::model_file::ModelFile;
use backend::gpu::driver::{GpuFault, GpuStream};
use backend::gpu::{GpuInstanceFigures, Gpus, OpenDevice};
use base::error::Error;
use model::ModelSpec;

use super::bind::{InputSource, OrtBinding};
use super::cuda::{self, SessionDevice};
use super::options::SessionOptions;
use super::told;
use super::weights::Weights;

/// The state that all instances of a model version share.
pub(super) struct SharedSession {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) recipe: SessionRecipe,
    pub(super) inputs: Vec<InputSource>,
    /// Inputs that a request may leave out: those with an initial value, which the library does not list.
    pub(super) optional: Vec<OrtBinding>,
    pub(super) outputs: Vec<OrtBinding>,
    /// The devices, if the model has instances on GPUs.
    pub(super) gpus: Option<Gpus>,
    pub(super) figures: Arc<GpuInstanceFigures>,
    /// A session for the next instance on the CPU, with its number of threads: that of the load, or that
    /// of a dropped instance. Opening one takes a second for a large model.
    spare: ArrayQueue<(usize, Session)>,
}

/// All that is needed to open another session.
pub(super) struct SessionRecipe {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) environment: Environment,
    pub(super) file: ModelFile,
    pub(super) options: SessionOptions,
    pub(super) weights: Weights,
    pub(super) device: SessionDevice,
}

/// The place where a session computes.
#[derive(Clone, Copy)]
pub(super) enum SessionTarget<'a> {
    /// On this many threads.
    Cpu(usize),
    /// On a device, with this many threads for the operators that run on the CPU. `None` has the library
    /// make its own stream.
    Gpu(&'a Arc<OpenDevice>, usize, Option<GpuStream>),
}

impl SessionRecipe {
    /// Opens a session.
    ///
    /// # Errors
    ///
    /// The library's error, in Triton's words; unavailable if the device lacks memory or is lost.
    pub(super) fn open(&self, target: SessionTarget<'_>) -> Result<Session, Error> {
        let Self { spec, environment, options, weights, file, device, .. } = self;
        let open = || match target {
            SessionTarget::Cpu(threads) => {
                weights.share(options.builder(environment, threads, Vec::new())?)?.commit_from_file(&file.path)
            }
            SessionTarget::Gpu(on, threads, stream) => {
                let providers = device.providers(&options.gpu, on, stream);
                options.builder(environment, threads, providers)?.commit_from_file(&file.path)
            }
        };
        let outcome = catch_unwind(AssertUnwindSafe(open));
        let outcome = outcome.map_err(|_| Error::internal("ONNX Runtime returned what its interface does not allow"));
        let outcome = outcome.and_then(|session| session.map_err(|error| told(&error)));
        let outcome = match target {
            SessionTarget::Cpu(_) => outcome,
            SessionTarget::Gpu(on, ..) => {
                on.context().handle_foreign_call();
                outcome.map_err(|error| failed_on(on, &error))
            }
        };
        outcome.map_err(|error| error.with_prefix(&format!("unable to load model '{}': ", spec.name)))
    }
}

/// The error of a session that could not be opened on a device. Marks the context as broken if the failure
/// broke it.
fn failed_on(opened: &OpenDevice, error: &Error) -> Error {
    let failure = cuda::failure(error.text(), opened);
    if failure.is_sticky() {
        opened.set_broken();
    }
    match failure.fault {
        GpuFault::Memory | GpuFault::Sticky => Error::from(failure),
        GpuFault::Transient => Error::new(error.code(), cuda::brief(&failure.text).to_owned()),
    }
}

impl SharedSession {
    /// Makes the state from the session of the load, which has one thread, and the bindings found
    /// in it.
    pub(super) fn new(
        recipe: SessionRecipe,
        inputs: Vec<InputSource>,
        optional: Vec<OrtBinding>,
        outputs: Vec<OrtBinding>,
        gpus: Option<Gpus>,
        session: Session,
    ) -> Self {
        let spare = ArrayQueue::new(1);
        if recipe.spec.is_on_cpu() {
            spare.force_push((1, session));
        }
        let spec = Arc::clone(&recipe.spec);
        Self { spec, recipe, inputs, optional, outputs, gpus, figures: Arc::default(), spare }
    }

    /// Takes the spare session if it fits, or opens one.
    ///
    /// # Errors
    ///
    /// As [`SessionRecipe::open`].
    pub(super) fn take_session(&self, target: SessionTarget<'_>) -> Result<Session, Error> {
        let SessionTarget::Cpu(threads) = target else { return self.recipe.open(target) };
        match self.spare.pop() {
            Some((count, session)) if count == threads || self.recipe.options.fixes_threads() => Ok(session),
            _ => self.recipe.open(target),
        }
    }

    /// Makes the session of a dropped instance on the CPU the spare.
    pub(super) fn keep_session(&self, threads: usize, session: Session) {
        // If there is a spare already, this session is closed.
        drop(self.spare.push((threads, session)));
    }
}
