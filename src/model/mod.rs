//! The catalogue: what models there are and what their configurations say. It parses text, bytes
//! and listings that it is given.

pub mod classes;
pub mod config;
pub mod ensemble;
pub mod fuzz;
pub mod labels;
pub mod onnx;
pub mod repository;
pub mod sequence;
pub mod spec;

pub use ensemble::Ensemble;
pub use sequence::{
    ControlKind, ControlSpec, CorrelationId, SequenceBatching, SequenceMark, SequenceStrategy, StateSpec,
};
pub use spec::{
    Accelerator, BatchInput, BatchInputKind, Batching, InstanceGroup, ModelSpec, Optimization, QueueRules, RateRules,
    ResourceRules, TensorSpec, VersionPolicy,
};
