//! The REST API of TensorFlow Serving, which KServe's V1 protocol shares: a request has its tensors as rows (`instances`)
//! or as columns (`inputs`), without shapes and datatypes, and its answer has the same form (`predictions`, `outputs`). An
//! object `{"b64": …}` is a string of bytes. Pure; bounded as the body is.
//!
//! Sources: TensorFlow Serving's `docs/api_rest.md`, KServe's `docs/reference/inferencing` for V1.

mod decode;
mod describe;
mod encode;

pub use decode::decode;
pub use describe::{V1Version, metadata_reply, status_reply};
pub use encode::encode;
