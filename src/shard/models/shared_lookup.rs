//! Lookups in the response cache that servers share: each is handed to a thread with a connection, and its reply awaited,
//! with a limit on the time.

use std::rc::Rc;
use std::sync::Arc;

use futures_lite::future;

use crate::protocol::infer::InferRequest;
use crate::queue::cache_link::{CacheFinding, CacheJob, CacheQuestion, LaneRefusal, LookupLease};
use crate::queue::one_shot::one_shot;
use crate::runtime::{clock, executor};
use crate::shard::models::model_table::{LocalModel, ModelTable};
use crate::shard::models::shard_caches::ShardCaches;
use crate::shard::models::shared_cache::{CacheLookup, MissedKey, SharedMiss};
use crate::tensor::Tensor;
use crate::time::Instant;

impl ShardCaches {
    /// A lookup in the shared cache that began at an instant found none.
    fn missed(&self, miss: Option<SharedMiss>, began: Instant) -> CacheLookup {
        CacheLookup::Miss(MissedKey::Shared(miss), self.count_miss(began))
    }

    /// Looks a request up in the shared cache; `None` if the model's answers are not cached there.
    /// Waits for `lookup_timeout` at most, and not beyond the client's deadline.
    pub(in crate::shard) async fn look_up_shared(
        &self,
        table: &ModelTable,
        model: &Rc<LocalModel>,
        request: &InferRequest,
        received: Instant,
        deadline: Option<Instant>,
    ) -> Option<CacheLookup> {
        let shared = self.shared.as_ref()?;
        let (models, outputs) = answering(table, model, request)?;
        let began = clock::now();
        let (reply, awaited) = one_shot(LookupLease);
        let question = CacheQuestion {
            models: models.iter().map(|model| Arc::clone(&model.served().spec)).collect(),
            inputs: request.inputs.clone(),
            parameters: request.parameters.clone(),
            outputs,
        };
        let cells = &self.context.cells.cache;
        let finding = match shared.push(began, CacheJob::Look(question, began + shared.link.wait_timeout, reply)) {
            Err(LaneRefusal::Closed) => CacheFinding::Unknown,
            Err(LaneRefusal::Full) => {
                cells.shared.lookups_full.add(1);
                // Counted here, not as a lookup without a connection.
                return Some(self.missed(None, began));
            }
            Ok(()) => {
                let until = (began + shared.link.lookup_timeout).min(deadline.unwrap_or(Instant::from_nanos(u64::MAX)));
                let late = async {
                    executor::sleep_until(until).await;
                    Ok(CacheFinding::Late)
                };
                // An error is a connection that was lost meanwhile.
                future::or(awaited, late).await.unwrap_or(CacheFinding::Unknown)
            }
        };
        match finding {
            CacheFinding::Found(outputs) => Some(self.hit(model, outputs, received, began)),
            CacheFinding::Missing(key) => Some(self.missed(Some(SharedMiss { key, models }), began)),
            CacheFinding::Late => {
                cells.shared.lookups_late.add(1);
                Some(self.missed(None, began))
            }
            CacheFinding::Unknown => {
                cells.shared.lookups_unconnected.add(1);
                Some(self.missed(None, began))
            }
        }
    }

    /// Hands an answer over to be stored. Not if a step of an ensemble was replaced since the
    /// lookup: the answer may be that of either.
    pub(super) fn store_shared(
        &self,
        table: &ModelTable,
        model: &Rc<LocalModel>,
        miss: SharedMiss,
        outputs: &[Tensor],
    ) {
        let Some(shared) = &self.shared else { return };
        if model.served().spec.ensemble.is_some() {
            let (before, after) = (miss.models.iter(), table.reached(model));
            if !before.map(Rc::as_ptr).eq(after.iter().map(Rc::as_ptr)) {
                return;
            }
        }
        if shared.push(clock::now(), CacheJob::Store(miss.key, outputs.to_vec())).is_err() {
            self.context.cells.cache.shared.stores_dropped.add(1);
        }
    }
}

/// The model versions that answer, and the requested outputs of an ensemble; `None` if they
/// have no identity, or a step may have a state.
fn answering(
    table: &ModelTable,
    model: &Rc<LocalModel>,
    request: &InferRequest,
) -> Option<(Vec<Rc<LocalModel>>, Vec<usize>)> {
    let (mut models, mut outputs) = (vec![Rc::clone(model)], Vec::new());
    if model.served().spec.ensemble.is_some() {
        if request.sequence.mark().is_some() {
            return None;
        }
        models = table.reached(model);
        outputs.extend(request.plan.outputs.iter().map(|output| output.index));
    }
    let has_identity = |model: &Rc<LocalModel>| model.served().spec.identity.is_some();
    (!models.is_empty() && models.iter().all(has_identity)).then_some((models, outputs))
}
