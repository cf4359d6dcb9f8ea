//! The differential test's parts: the table of cases, both servers' answers as text, the table of intended differences,
//! and the recording of Triton's answers.
//!
//! Used by `recorded` (Deuteron against the recording, everywhere) and by [`live`] (both servers, where `DEUTERON_TESTS` asks for it).
#![allow(dead_code, reason = "the live test and the recorded one each use a part of it")]
#![allow(clippy::indexing_slicing, reason = "the tables slice their own constants")]

pub mod answer;
pub mod case;
pub mod cases;
pub mod compare;
pub mod difference;
mod live;
pub mod recording;
pub mod refusal;
pub mod rewrite;
pub mod script;
pub mod scripts;
pub mod suites;
