//! Isolates an instance on a GPU from a broken device: after a failure that breaks the context, all
//! instances of the device are lost and run nothing more there.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::gpu::executor::lost;
use backend::gpu::driver::{DriverError, GpuFault};
use backend::gpu::figures::{DeviceTimes, GpuInstanceFigures};
use backend::gpu::{Gpu, OpenDevice};
use base::error::Error;

use super::cuda;

/// One instance's reference to a device's context, and its counters.
pub(super) struct DeviceFence {
    opened: Arc<OpenDevice>,
    figures: Arc<GpuInstanceFigures>,
    /// Woken when the device is lost.
    waker: Option<Arc<Waker>>,
    /// The instance knows that its context broke, and has counted it once.
    is_lost: bool,
}

impl DeviceFence {
    /// Takes a reference to a device's primary context.
    ///
    /// # Errors
    ///
    /// If the context cannot be opened, or is broken and not yet released by all instances.
    pub(super) fn new(gpu: &Gpu, figures: &Arc<GpuInstanceFigures>) -> Result<Self, DriverError> {
        Ok(Self { opened: gpu.open_primary()?, figures: Arc::clone(figures), waker: None, is_lost: false })
    }

    /// The context.
    pub(super) const fn opened(&self) -> &Arc<OpenDevice> {
        &self.opened
    }

    /// Sets the waker to call when the device is lost.
    pub(super) fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(self.opened.keep(waker));
    }

    /// The reason why nothing can run; `None` while the context works. Any instance of the device
    /// may have found it broken.
    pub(super) fn poll_lost(&mut self) -> Option<Error> {
        if !self.is_lost && self.opened.is_broken() {
            self.figures.count_failure(GpuFault::Sticky);
            self.is_lost = true;
        }
        self.is_lost.then(|| lost("the context that all share broke"))
    }

    /// A run begins.
    pub(super) fn handle_begin(&self) {
        self.figures.batches_begun.add(1);
        self.figures.flights_peak.raise(1);
    }

    /// A run returned outputs. `took` is the time of the whole run, copies included.
    pub(super) fn handle_success(&self, took: Duration) {
        self.opened.context().handle_foreign_call();
        self.figures.handle_success(&DeviceTimes { compute: took, ..DeviceTimes::default() });
    }

    /// A run failed. Returns the error for its requests: that of the device, if the device is at fault.
    pub(super) fn handle_failure(&mut self, error: Error) -> Error {
        self.opened.context().handle_foreign_call();
        let failure = cuda::failure(error.text(), &self.opened);
        self.figures.count_failure(failure.fault);
        match failure.fault {
            GpuFault::Memory => Error::from(failure),
            GpuFault::Sticky => {
                self.opened.set_broken();
                self.is_lost = true;
                lost(&failure.text)
            }
            GpuFault::Transient => error,
        }
    }

    /// Returns true if this instance must not be used again.
    pub(super) const fn is_lost(&self) -> bool {
        self.is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::gpu::fake::Fake;
    use base::error::Code;

    #[test]
    fn what_breaks_the_device_costs_the_instance_and_the_requests_are_told_to_come_again() {
        let fake = Fake::new(1);
        let (gpu, figures) = (fake.gpu(1 << 20, 1 << 20), Arc::new(GpuInstanceFigures::default()));
        let mut fences = [(); 2].map(|()| DeviceFence::new(&gpu, &figures).unwrap());
        let [first, second] = &mut fences;
        let refused = Error::invalid("onnx runtime error 2: Got invalid dimensions for input: x");
        assert_eq!(first.handle_failure(refused.clone()), refused, "the request's own fault");
        let short =
            first.handle_failure(Error::internal("onnx runtime error 6: Failed to allocate memory for 9 bytes"));
        assert!(short.code() == Code::Unavailable && !first.is_lost(), "{short}");
        assert!(first.poll_lost().is_none() && second.poll_lost().is_none());
        let text = "onnx runtime error 1: CUDA failure 719: unspecified launch failure ; GPU=0 ; hostname=h ; line=1";
        let lost = first.handle_failure(Error::internal(text));
        let want = "its instance on the GPU was lost and is recreated: CUDA failure 719: unspecified launch failure; try again";
        assert_eq!((lost.code(), lost.text()), (Code::Unavailable, want));
        assert!(first.is_lost() && second.poll_lost().is_some() && second.poll_lost().is_some());
        let counted = [&figures.failures_transient, &figures.failures_memory, &figures.failures_sticky];
        assert_eq!(counted.map(|count| count.get()), [1, 1, 2], "both are lost, each once");
    }
}
