//! The targets of `fuzz/`, each once on a few bytes: they compile with all that they call, which only `cargo fuzz` would
//! notice otherwise. Their bodies are tested, and their seeds replayed, in their crates.

#![allow(unused_attributes, unused_qualifications, reason = "the targets are programs of their own")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the programs that they are may wait")]
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a target reports a fault by panicking"
)]

// Stands in for libFuzzer's crate, so that its C++ is not built.
extern crate self as libfuzzer_sys;

/// A test that calls a target.
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: $type:ty| $body:expr) => {
        #[test]
        fn it_runs() {
            let target = |$bytes: $type| {
                $body;
            };
            for bytes in [&b""[..], b"{}", b"\x00\xff", b"GET / HTTP/1.1\r\n\r\n"] {
                target(bytes);
            }
        }
    };
}

#[path = "../fuzz/fuzz_targets/api_keys.rs"]
mod api_keys;
#[path = "../fuzz/fuzz_targets/audio_flac.rs"]
mod audio_flac;
#[path = "../fuzz/fuzz_targets/audio_wav.rs"]
mod audio_wav;
#[path = "../fuzz/fuzz_targets/config.rs"]
mod config;
#[path = "../fuzz/fuzz_targets/config_json.rs"]
mod config_json;
#[path = "../fuzz/fuzz_targets/config_toml.rs"]
mod config_toml;
#[path = "../fuzz/fuzz_targets/crop.rs"]
mod crop;
#[path = "../fuzz/fuzz_targets/grpc.rs"]
mod grpc;
#[path = "../fuzz/fuzz_targets/http1.rs"]
mod http1;
#[path = "../fuzz/fuzz_targets/http2.rs"]
mod http2;
#[path = "../fuzz/fuzz_targets/http2_peer.rs"]
mod http2_peer;
#[path = "../fuzz/fuzz_targets/image_jpeg.rs"]
mod image_jpeg;
#[path = "../fuzz/fuzz_targets/image_png.rs"]
mod image_png;
#[path = "../fuzz/fuzz_targets/image_webp.rs"]
mod image_webp;
#[path = "../fuzz/fuzz_targets/inflate.rs"]
mod inflate;
#[path = "../fuzz/fuzz_targets/json.rs"]
mod json;
#[path = "../fuzz/fuzz_targets/listing.rs"]
mod listing;
#[path = "../fuzz/fuzz_targets/python_message.rs"]
mod python_message;
#[path = "../fuzz/fuzz_targets/resp.rs"]
mod resp;
#[path = "../fuzz/fuzz_targets/rest.rs"]
mod rest;
#[path = "../fuzz/fuzz_targets/safetensors.rs"]
mod safetensors;
#[path = "../fuzz/fuzz_targets/saved_model.rs"]
mod saved_model;
#[path = "../fuzz/fuzz_targets/scheduler.rs"]
mod scheduler;
#[path = "../fuzz/fuzz_targets/sequences.rs"]
mod sequences;
#[path = "../fuzz/fuzz_targets/suggest.rs"]
mod suggest;
#[path = "../fuzz/fuzz_targets/text_boxes.rs"]
mod text_boxes;
#[path = "../fuzz/fuzz_targets/tls.rs"]
mod tls;
#[path = "../fuzz/fuzz_targets/trees.rs"]
mod trees;

#[test]
fn every_target_is_here() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/fuzz_targets");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(include_str!("fuzz_targets.rs").contains(&format!("fuzz_targets/{name}\"]")), "{name}");
    }
}
