#![no_main]

use deuteron::model::config::parse::text::Notation;

libfuzzer_sys::fuzz_target!(|text: &[u8]| deuteron::model::config::check_any_text(Notation::Toml, text));
