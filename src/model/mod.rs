//! The catalogue: what models there are and what their configurations say. It parses text and
//! listings that it is given.

pub mod labels;
pub mod spec;

pub use spec::{InstanceGroup, ModelSpec, TensorSpec, VersionPolicy};
