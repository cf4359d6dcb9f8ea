//! The catalogue: what models there are and what their configurations say. It parses text, bytes
//! and listings that it is given.

mod batch_io;
mod check;
mod complete;
pub mod config;
mod config_json;
pub mod initial;
pub mod labels;
pub mod onnx;
pub mod repository;
mod schema;
pub mod sequence;
mod sequence_batching;
pub mod spec;
mod supported;
pub mod text;
mod token;
pub mod weights;

pub use sequence::{
    ControlKind, ControlSpec, CorrelationId, SequenceBatching, SequenceMark, SequenceStrategy, StateSpec,
};
pub use spec::{
    Accelerator, BatchInput, BatchInputKind, Batching, InstanceGroup, ModelSpec, Optimization, QueueRules, RateRules,
    ResourceRules, TensorSpec, VersionPolicy,
};
