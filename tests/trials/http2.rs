//! The cases of the HTTP/2 suite, and the client that tries them on a socket; both are those of `tests/it`.

#![allow(dead_code, reason = "the suite uses the rest")]

#[path = "../it/http2/case.rs"]
pub mod case;
#[path = "../it/http2/cases/mod.rs"]
pub mod cases;
#[path = "../it/http2/frame.rs"]
pub mod frame;
#[path = "../it/http2/peer.rs"]
pub mod peer;
