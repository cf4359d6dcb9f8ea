//! What stands in an engine's place for an ensemble: nothing. The shards run its steps, each on the model
//! of its own.

use crate::backend::{Instance, LoadedModel, Threads};
use crate::error::Error;

/// An ensemble, which has no instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnsembleModel;

impl LoadedModel for EnsembleModel {
    fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
        Err(Error::internal("an ensemble has no instance: its steps are those of other models"))
    }

    fn may_run_inline(&self) -> bool {
        false
    }
}
