//! The catalogue: what models there are and what their configurations say. It parses text, bytes
//! and listings that it is given.

mod batch_io;
pub mod changes;
mod check;
pub mod classes;
mod complete;
pub mod config;
mod config_json;
pub mod ensemble;
pub mod external;
pub mod fuzz;
pub mod graph;
pub mod index;
pub mod initial;
pub mod labels;
pub mod onnx;
pub mod repository;
mod schema;
pub mod sequence;
mod sequence_batching;
pub mod spec;
mod supported;
mod tensors;
pub mod text;
mod token;
pub mod warm_up;
pub mod weights;
pub mod write;

pub use ensemble::Ensemble;
pub use sequence::{
    ControlKind, ControlSpec, CorrelationId, SequenceBatching, SequenceMark, SequenceStrategy, StateSpec,
};
pub use spec::{
    Accelerator, BatchInput, BatchInputKind, Batching, InstanceGroup, ModelSpec, Optimization, QueueRules, RateRules,
    ResourceRules, TensorSpec, VersionPolicy,
};
