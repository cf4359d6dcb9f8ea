//! The tokens that a request of texts takes from the rate of its client's key: estimated before it runs, so that requests in flight
//! count, and corrected by the model's count. Models without a tokenizer take none.

use std::rc::Rc;
use std::sync::Arc;

use crate::error::Error;
use crate::model::ModelSpec;
use crate::protocol::infer::InferRequest;
use crate::protocol::keys::KeyClient;
use crate::protocol::text;
use crate::shard::Shard;
use crate::tensor::Tensor;

/// Tokens that were taken for a request. Dropped without an outcome, as when its client leaves, the estimate is final.
pub struct TokenCharge {
    client: Arc<KeyClient>,
    estimate: u64,
}

impl TokenCharge {
    /// Takes the tokens of a request; `None` if it has none that count.
    ///
    /// # Errors
    /// `RateLimited` if its client has had too many.
    pub fn take(
        shard: &Rc<Shard>,
        client: Option<Arc<KeyClient>>,
        spec: &ModelSpec,
        request: &InferRequest,
    ) -> Result<Option<Self>, Error> {
        let Some(client) = client.filter(|_| text::tokenizer(spec).is_some()) else { return Ok(None) };
        let estimate = text::token_estimate(spec, &request.inputs);
        shard.requests.admission.take_tokens(&client, estimate)?;
        Ok(Some(Self { client, estimate }))
    }

    /// Corrects the estimate by the outputs of the model. A request without any, which was refused or failed, takes no tokens.
    pub fn settle(self, shard: &Rc<Shard>, spec: &ModelSpec, outputs: Option<&[Tensor]>) {
        let Self { client, estimate } = self;
        let count = outputs.map_or(0, |outputs| text::token_count(spec, outputs).unwrap_or(estimate));
        shard.requests.admission.settle_tokens(&client, estimate, count);
    }
}
