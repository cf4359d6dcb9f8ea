//! The sessions of a model version: what they are opened from, and the one that is kept for the next
//! instance on the CPU. One on a GPU is never kept: who has it has the primary context, which cannot be
//! made anew while anybody does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use ort::environment::Environment;
use ort::session::Session;

use crate::backend::gpu::driver::{GpuFault, GpuStream};
use crate::backend::gpu::{GpuInstanceFigures, Gpus, OpenDevice};
use crate::backend::model_file::ModelFile;
use crate::error::Error;
use crate::model::ModelSpec;

use super::bind::{InputSource, OrtBinding};
use super::cuda::{self, SessionDevice};
use super::options::SessionOptions;
use super::told;
use super::weights::Weights;

/// What all instances of a model version share.
pub(super) struct SharedSession {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) recipe: SessionRecipe,
    pub(super) inputs: Vec<InputSource>,
    /// Inputs that a request may leave out, which the library does not list.
    pub(super) optional: Vec<OrtBinding>,
    pub(super) outputs: Vec<OrtBinding>,
    /// The devices of instances on GPUs, where it has any.
    pub(super) gpus: Option<Gpus>,
    pub(super) figures: Arc<GpuInstanceFigures>,
    /// The session of the load, and that of an instance on the CPU that is gone, with its threads, until
    /// another wants it: a large model takes a second to load.
    spare: ArrayQueue<(usize, Session)>,
}

/// What sessions are opened from.
pub(super) struct SessionRecipe {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) environment: Environment,
    pub(super) file: ModelFile,
    pub(super) options: SessionOptions,
    pub(super) weights: Weights,
    pub(super) device: SessionDevice,
}

/// Where a session computes.
#[derive(Clone, Copy)]
pub(super) enum SessionTarget<'a> {
    /// On so many threads.
    Cpu(usize),
    /// On a device, and on so many threads for what the device lacks; on this stream, if it is not to
    /// make one.
    Gpu(&'a Arc<OpenDevice>, usize, Option<GpuStream>),
}

impl SessionRecipe {
    /// Opens a session.
    pub(super) fn open(&self, seat: SessionTarget<'_>) -> Result<Session, Error> {
        let Self { spec, environment, options, weights, file, device, .. } = self;
        let open = || match seat {
            SessionTarget::Cpu(threads) => {
                weights.share(options.builder(environment, threads, None)?)?.commit_from_file(&file.path)
            }
            SessionTarget::Gpu(on, threads, stream) => {
                let provider = device.provider(&options.cuda, on, stream);
                options.builder(environment, threads, Some(provider))?.commit_from_file(&file.path)
            }
        };
        let outcome = catch_unwind(AssertUnwindSafe(open));
        let outcome = outcome.map_err(|_| Error::internal("ONNX Runtime gave what its interface does not allow"));
        let outcome = outcome.and_then(|session| session.map_err(|error| told(&error)));
        let outcome = match seat {
            SessionTarget::Cpu(_) => outcome,
            SessionTarget::Gpu(on, ..) => {
                on.context().handle_foreign_call();
                outcome.map_err(|error| failed_on(on, &error))
            }
        };
        outcome.map_err(|error| error.with_prefix(&format!("unable to load model '{}': ", spec.name)))
    }
}

/// What a session that could not be opened on a device leaves there, and what is told.
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
    /// With the session of the load, on one thread, and what was found in it.
    pub(super) fn new(
        recipe: SessionRecipe,
        (inputs, optional, outputs): (Vec<InputSource>, Vec<OrtBinding>, Vec<OrtBinding>),
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

    /// A session for an instance.
    pub(super) fn take_session(&self, seat: SessionTarget<'_>) -> Result<Session, Error> {
        let SessionTarget::Cpu(threads) = seat else { return self.recipe.open(seat) };
        match self.spare.pop() {
            Some((count, session)) if count == threads || self.recipe.options.fixes_threads() => Ok(session),
            _ => self.recipe.open(seat),
        }
    }

    /// Keeps the session of an instance on the CPU that is no longer wanted for the next.
    pub(super) fn keep_session(&self, threads: usize, session: Session) {
        // There may be one already; the other is closed.
        drop(self.spare.push((threads, session)));
    }
}
