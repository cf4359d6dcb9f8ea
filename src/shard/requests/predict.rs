//! The protocol V1 of KServe, which is TensorFlow Serving's: predictions take the way of inferences with another form, and a
//! model is described.

use bytes::Bytes;

use crate::budget::ReceiveReservation;
use crate::error::Error;
use crate::model::ModelSpec;
use crate::model::parameters::Parameters;
use crate::model::repository::index::{VersionOverview, VersionState};
use crate::protocol::infer::{InferRequest, ResponsePlan};
use crate::protocol::rest::predict::{self, V1Version};
use crate::protocol::rest::{self, HeaderLength};
use crate::protocol::route::ModelPath;
use crate::protocol::shared_memory::Regions;
use crate::queue::served_model::ServedModel;
use crate::shard::Shard;
use crate::tensor::Tensor;
use crate::wire::message::Reply;

/// The form of an inference and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InferForm {
    /// V1: rows or columns.
    Predict,
    /// V2: tensors with their shapes and datatypes.
    V2,
}

impl InferForm {
    /// Decodes the body of a request; `place` is the memory that it may use, shared and own.
    ///
    /// # Errors
    /// Those of its form.
    pub fn decode(
        self,
        spec: &ModelSpec,
        length: HeaderLength,
        body: Bytes,
        place: (Option<&Regions>, &mut ReceiveReservation),
    ) -> Result<InferRequest, Error> {
        let (regions, memory) = place;
        match self {
            Self::Predict => predict::decode(spec, &body, memory),
            Self::V2 => rest::decode(spec, length, body, regions, memory),
        }
    }

    /// Encodes the outputs of a model.
    ///
    /// # Errors
    /// Those of its form.
    pub fn encode(
        self,
        served: &ServedModel,
        plan: &ResponsePlan,
        outputs: Vec<Tensor>,
        parameters: Option<&Parameters>,
    ) -> Result<Reply, Error> {
        match self {
            Self::Predict => predict::encode(&served.spec, plan, outputs),
            Self::V2 => rest::encode(&served.spec, served.version, plan, outputs, parameters),
        }
    }
}

/// The state of a model and of its versions.
///
/// # Errors
/// `NotFound` for an unknown model or version.
pub async fn status(shard: &Shard, path: ModelPath<'_>) -> Result<Reply, Error> {
    let is_ready = shard.models.readiness(path.name, path.version).await?;
    let overview = shard.models.overview();
    let all = overview.find(path.name).map_or(&[][..], |model| &model.versions);
    let asked = all.iter().filter(|have| path.version.is_none_or(|version| have.version == version));
    let versions: Vec<_> = asked.map(version_state).collect();
    Ok(predict::status_reply(path.name, is_ready, &versions))
}

fn version_state(have: &VersionOverview) -> V1Version {
    let has_failed = have.state == VersionState::Unavailable && !have.is_unloaded();
    V1Version { version: have.version, state: have.state, has_failed }
}

/// The tensors of a model.
///
/// # Errors
/// As the metadata of V2.
pub fn metadata(shard: &Shard, path: ModelPath<'_>) -> Result<Reply, Error> {
    let model = shard.models.find(path.name, path.version)?;
    let served = model.served();
    Ok(predict::metadata_reply(served.shown_spec().as_ref(), served.version))
}
