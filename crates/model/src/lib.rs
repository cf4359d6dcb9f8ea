//! The model catalogue: repository listings, model configurations, label files and ONNX files, parsed and
//! checked. It opens no files: callers pass in text, bytes and listings.

pub mod classes;
pub mod config;
pub mod datatype;
pub mod ensemble;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod identity;
pub mod labels;
mod limits;
pub mod name;
pub mod narrow;
pub mod onnx;
#[cfg(any(test, feature = "testing"))]
pub mod onnx_builder;
pub mod parameters;
pub mod parse;
pub mod platform;
pub mod repository;
pub mod signature;
pub mod spec;
pub mod store;
pub mod tensorflow;
pub mod trees;

pub use identity::ModelIdentity;
pub use spec::ensemble::Ensemble;
pub use spec::hosted::HostedLibrary;
pub use spec::instances::{InstanceSeat, InstanceUpdate, KnownInstance};
pub use spec::python::PythonModel;
pub use spec::sequence::{
    ControlKind, ControlSpec, CorrelationId, SequenceBatching, SequenceMark, SequenceStrategy, StateSpec,
};
pub use spec::{
    Accelerator, BatchInput, BatchInputKind, Batching, InstanceGroup, InstanceKind, ModelSpec, Optimization,
    QueueRules, RateRules, ResourceRules, TensorSpec, VersionPolicy,
};
