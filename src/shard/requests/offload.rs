//! Work that takes long, done by another thread while the shard serves its other clients.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use crate::budget::ReceiveReservation;
use crate::error::Error;
use crate::limits::TYPED_INLINE_MAX;
use crate::model::ModelSpec;
use crate::protocol::grpc::InferMessage;
use crate::protocol::grpc::message::{InferOutline, UNREADABLE};
use crate::protocol::infer::InferRequest;
use crate::protocol::route::{ModelPath, version_of};
use crate::protocol::shared_memory::Regions;
use crate::shard::connections::receive_budget::JobReservation;
use crate::shard::models::model_table::LocalModel;
use crate::shard::{ServerContext, Shard};

impl ServerContext {
    /// Awaits work that one of the pool's threads does.
    ///
    /// # Errors
    /// Those of the work; `Internal` if it panics; `Unavailable` if the server ends.
    pub async fn offload<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.jobs.run(work).await
    }

    /// The same for work that reserves memory for its request, which then holds it.
    ///
    /// # Errors
    /// Likewise.
    pub async fn offload_reserving<T: Send + 'static>(
        &self,
        memory: &mut ReceiveReservation,
        work: impl FnOnce(&mut ReceiveReservation) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (process, size) = (Arc::clone(&self.memory.receive), memory.size());
        let (outcome, taken) = self.offload(move || Ok(JobReservation::during(&process, size, work))).await?;
        taken.hand_over(memory);
        outcome
    }
}

/// A request that was decoded before its stages run, with the model that it was decoded for; `None`
/// if the shard decodes it itself.
pub type DecodedAhead = Option<Box<(Rc<LocalModel>, InferRequest)>>;

/// Has a large message decoded by one of the pool's threads; once more if another version of the
/// model takes its place meanwhile.
///
/// # Errors
/// Those of `decode`, and the error if the model is not served.
pub async fn decode_ahead<D>(
    shard: &Shard,
    path: ModelPath<'_>,
    memory: &mut ReceiveReservation,
    decode: D,
) -> Result<DecodedAhead, Error>
where
    D: FnOnce(&ModelSpec, Option<&Regions>, &mut ReceiveReservation) -> Result<InferRequest, Error>,
    D: Clone + Send + 'static,
{
    loop {
        let model = shard.models.find(path.name, path.version)?;
        let (served, regions, decode) =
            (Arc::clone(model.served()), shard.services.regions.borrow().clone(), decode.clone());
        let work = move |memory: &mut ReceiveReservation| decode(&served.spec, regions.as_deref(), memory);
        let request =
            shard.server_context.offload_reserving(memory, work).await.inspect_err(|_| shard.count_shortage(memory))?;
        if shard.models.find(path.name, path.version).is_ok_and(|found| Rc::ptr_eq(&found, &model)) {
            return Ok(Some(Box::new((model, request))));
        }
    }
}

/// The decoder of a gRPC message: as a call's only one, or as one of a stream.
pub type DecodeMessage =
    fn(&ModelSpec, &InferMessage<'_>, Option<&Regions>, &mut ReceiveReservation) -> Result<InferRequest, Error>;

/// The outline of a message whose typed contents are so large that the shard does not read them
/// itself.
pub fn large_typed(message: &Bytes) -> Option<InferOutline<'_>> {
    let outline = (message.len() > TYPED_INLINE_MAX).then(|| InferOutline::read(message))?.ok()?;
    (outline.inputs_size > TYPED_INLINE_MAX).then_some(outline)
}

/// Has such a message decoded ahead; any other is left to the shard.
///
/// # Errors
/// As [`decode_ahead`].
pub async fn decode_typed_ahead(
    shard: &Shard,
    message: &Bytes,
    memory: &mut ReceiveReservation,
    decode: DecodeMessage,
) -> Result<DecodedAhead, Error> {
    let Some(outline) = large_typed(message) else { return Ok(None) };
    let path = ModelPath { name: outline.model_name, version: version_of(outline.model_version)? };
    let message = message.clone();
    let read = move |spec: &ModelSpec, regions: Option<&Regions>, memory: &mut ReceiveReservation| {
        let message = InferMessage::read(&message).map_err(|_| Error::internal(UNREADABLE))?;
        decode(spec, &message, regions, memory)
    };
    decode_ahead(shard, path, memory, read).await
}
