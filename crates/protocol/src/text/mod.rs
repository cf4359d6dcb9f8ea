//! The interfaces that clients of text models speak besides KServe's: those of text-embeddings-inference (TEI), of OpenAI's
//! embeddings, and of Cohere's and Jina's rerank. A body becomes an inference request to a model that has the tensors of its
//! task, by name, and the model's outputs become the answer. Pure.
//!
//! | task | inputs | outputs |
//! |---|---|---|
//! | embed | `text` BYTES, `prompt_name` BYTES if it is optional | `embedding` FP32 [rows, size] |
//! | sparse embed | the same | `index` INT64, `value` FP32 [rows, n], `count` INT64: those of a row that count |
//! | rerank | `query`, `text` BYTES | `score` FP32, one for each row |
//! | tokens of embed | the same, and `token_ids` INT64 [rows, n] in place of texts | `token_embedding` FP32 [rows, n, size], `token_mask` INT64 |
//! | classify | `text` BYTES | `label` BYTES, `score` FP32 [rows, classes], the best first; or `score` alone |
//!
//! The optional input `truncation` BYTES says how texts are cut off, the optional output `token_count` counts tokens, and the
//! step `tokenize` of a model shows them.
//!
//! Models of hub folders have these tensors, and so may any other model. Sources: TEI's `docs/openapi.json` and
//! `router/src/http/types.rs` (1.9), OpenAI's and Cohere's references.

mod answer;
mod call;
mod error;
mod model_facts;
mod path;
mod task;
mod tei;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests;
mod times;
mod tokens;
mod values;
mod vertex;

pub use answer::{AnswerFacts, TextOutcome, encode, models_json};
pub use call::{TextRequest, TextTruncation};
pub use error::{error_reply, health_reply, reply, shown_text};
pub use model_facts::TextModelFacts;
pub use path::{TextPath, TextTask};
pub use task::{request, token_count, token_counts, token_estimate, tokenizer};
pub use tei::{RerankTexts, TeiRpc};
pub use times::TextTimes;
pub use tokens::tokens;
pub use vertex::{instances, named_model, predictions};
