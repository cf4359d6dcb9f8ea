//! What stands between an instance on a GPU and a device that fails: an instance whose device broke
//! is lost, and runs nothing more there.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::backend::gpu::driver::{DriverError, Fault};
use crate::backend::gpu::executor::lost;
use crate::backend::gpu::figures::Figures;
use crate::backend::gpu::slot::Times;
use crate::backend::gpu::{Gpu, Opened};
use crate::error::Error;

use super::cuda;

/// One instance's hold of a device, and what it counts.
pub(super) struct Fence {
    opened: Arc<Opened>,
    figures: Arc<Figures>,
    is_lost: bool,
}

impl Fence {
    /// Takes hold of a device's primary context.
    pub(super) fn new(gpu: &Gpu, figures: &Arc<Figures>) -> Result<Self, DriverError> {
        Ok(Self { opened: gpu.open_primary()?, figures: Arc::clone(figures), is_lost: false })
    }

    /// The context.
    pub(super) const fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    /// Has this called when the device is lost.
    pub(super) fn set_waker(&self, waker: Waker) {
        self.opened.keep(waker);
    }

    /// Why nothing can be run any more, where that is so.
    pub(super) fn poll_lost(&mut self) -> Option<Error> {
        if !self.is_lost && self.opened.is_broken() {
            self.figures.count_failure(Fault::Sticky);
            self.is_lost = true;
        }
        self.is_lost.then(|| lost("the context that all share broke"))
    }

    /// A run begins.
    pub(super) fn handle_begin(&self) {
        self.figures.batches_begun.add(1);
        self.figures.flights_peak.raise(1);
    }

    /// A run gave outputs after so long.
    pub(super) fn handle_success(&self, took: Duration) {
        self.opened.context().handle_foreign_call();
        self.figures.handle_success(&Times { compute: took, ..Times::default() });
    }

    /// A run failed: what its requests are told.
    pub(super) fn handle_failure(&mut self, error: Error) -> Error {
        self.opened.context().handle_foreign_call();
        let failure = cuda::failure(error.text(), &self.opened);
        self.figures.count_failure(failure.fault);
        match failure.fault {
            Fault::Memory => Error::from(failure),
            Fault::Sticky => {
                self.opened.set_broken();
                self.is_lost = true;
                lost(&failure.text)
            }
            Fault::Transient => error,
        }
    }

    /// Whether an instance must not be used again.
    pub(super) const fn is_lost(&self) -> bool {
        self.is_lost
    }
}
