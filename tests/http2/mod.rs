//! A conformance suite for HTTP/2 servers: a table of cases, one for each requirement of RFC 9113
//! sections 3 to 8 and of RFC 7541 that a server can be seen to break. It speaks frames of its own
//! making, to the state machine of this crate or to any server at an address.

pub mod case;
pub mod cases;
pub mod frame;
pub mod peer;
