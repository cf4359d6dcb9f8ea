//! The loaded model of an ensemble: it has no engine and no instance. The shards run its steps, each on
//! its own model.

use crate::{Instance, LoadedModel, Threads};
use base::error::Error;

/// A loaded ensemble, which makes no instances.
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
