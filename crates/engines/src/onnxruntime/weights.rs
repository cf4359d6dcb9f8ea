//! The weights that the sessions of a model version share. By default each session has its own copy of
//! all weights, in the layout that its kernels need. Weights that only matrix products use are handed to
//! every session instead: the library then prepares them once, but needs the originals to stay, so
//! this saves memory from the third instance on.

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ort::session::builder::{PrepackedWeights, SessionBuilder};
use ort::value::{DynValue, Tensor};

use base::error::Error;
use model::onnx::weights::{WeightMatrix, matrix_weights};
use model::{InstanceGroup, ModelSpec};

use super::told;

/// The number of instances from which sharing saves memory: the originals and one prepared copy are as large as
/// two sessions' copies.
const INSTANCES_MIN: u64 = 3;

/// Shared weights; empty while sharing saves nothing.
#[derive(Default)]
pub(super) struct Weights(OnceLock<SharedWeights>);

#[derive(Default)]
struct SharedWeights {
    values: Vec<(String, Arc<DynValue>)>,
    prepared: Option<PrepackedWeights>,
}

impl Weights {
    /// Reads them from a model's file.
    ///
    /// # Errors
    ///
    /// Invalid if the file cannot be read or has a malformed weight.
    pub(super) fn new(spec: &ModelSpec, path: &Path) -> Result<Self, Error> {
        let instances: u64 =
            spec.instance_groups.iter().filter(|group| group.gpus.is_empty()).map(InstanceGroup::instance_count).sum();
        let weights = Self::default();
        weights.share_among(instances, path)?;
        Ok(weights)
    }

    /// Reads them, unless they were or so few instances that are still to be made save nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub(super) fn share_among(&self, instances: u64, path: &Path) -> Result<(), Error> {
        if instances < INSTANCES_MIN || self.0.get().is_some() {
            return Ok(());
        }
        let file = fs::read(path).map_err(|error| Error::invalid(format!("cannot read the model: {error}")))?;
        let values: Vec<_> = matrix_weights(&file).iter().map(value).collect::<Result<_, _>>()?;
        let prepared = (!values.is_empty()).then(PrepackedWeights::new);
        self.0.get_or_init(|| SharedWeights { values, prepared });
        Ok(())
    }

    /// Hands them to a session that is being opened.
    ///
    /// # Errors
    ///
    /// The library's error.
    pub(super) fn share(&self, mut builder: SessionBuilder) -> ort::Result<SessionBuilder> {
        let Some(SharedWeights { values, prepared: Some(prepared) }) = self.0.get() else { return Ok(builder) };
        for (name, value) in values {
            builder = builder.with_initializer(name, Arc::clone(value))?;
        }
        Ok(builder.with_prepacked_weights(prepared)?)
    }
}

fn value(weight: &WeightMatrix<'_>) -> Result<(String, Arc<DynValue>), Error> {
    let elements: Vec<_> = weight.contents.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let tensor = Tensor::from_array((weight.shape.to_vec(), elements)).map_err(|error| told(&error))?;
    Ok((weight.name.to_owned(), Arc::new(tensor.into_dyn())))
}
