//! A configuration file as text: its three notations, its schema, and which of its fields this server knows.

pub mod json;
pub mod schema;
pub mod supported;
pub mod text;
pub mod token;
