//! The interfaces that clients of text models speak besides KServe's: those of text-embeddings-inference (TEI), of OpenAI's
//! embeddings, and of Cohere's and Jina's rerank. A body becomes an inference request to a model that has the tensors of its
//! task, by name, and the model's outputs become the answer. Pure.
//!
//! | task | inputs | outputs |
//! |---|---|---|
//! | embed | `text` BYTES, `prompt_name` BYTES if it is optional | `embedding` FP32 [rows, size] |
//! | sparse embed | the same | `index` INT64, `value` FP32 [rows, n], `count` INT64: those of a row that count |
//! | rerank | `query`, `text` BYTES | `score` FP32, one for each row |
//! | classify | `text` BYTES | `label` BYTES, `score` FP32 [rows, classes], the best first; or `score` alone |
//!
//! Models of hub folders have these tensors, and so may any other model. Sources: TEI's `docs/openapi.json` and
//! `router/src/http/types.rs` (1.9), OpenAI's and Cohere's references.

mod answer;
mod call;
mod error;
mod task;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests;

pub use answer::{AnswerFacts, encode, models_json};
pub use call::{TextPath, TextRequest};
pub use error::{error_reply, reply};
pub use task::{TextTask, request};
