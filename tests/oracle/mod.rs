//! The differential test's parts: the table of cases, what both servers answered as text, the table of intended
//! differences, and the recording of what Triton said.
//!
//! Included by `tests/recorded.rs` (Deuteron against the recording, everywhere) and by `tests/oracle.rs` (both live).
#![allow(dead_code, reason = "the live test and the recorded one each use a part of it")]
#![allow(clippy::indexing_slicing, reason = "the tables slice their own constants")]

pub mod answer;
pub mod case;
pub mod cases;
pub mod compare;
pub mod difference;
pub mod recording;
pub mod refusal;
pub mod rewrite;
pub mod script;
pub mod scripts;
pub mod suites;
