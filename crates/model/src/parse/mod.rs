//! Reads a configuration file in its three notations, against its schema, and checks which of its fields this server
//! supports.

pub mod json;
pub mod schema;
pub mod supported;
pub mod text;
pub mod token;
