//! The Rust of `proto/` that is checked in is what its files say: a build needs no compiler for them.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and the environment says whether it writes"
)]

use std::fs;
use std::path::Path;

const PROTOS: [&str; 6] =
    ["grpc_service.proto", "health.proto", "otlp.proto", "reflection.proto", "reflection_v1.proto", "tei.proto"];

/// `UPDATE_EXPECT=1` writes them anew.
#[test]
fn what_is_checked_in_is_generated_from_the_proto_files() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (made, kept) = (Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated"), package.join("generated"));
    let _ = fs::remove_dir_all(&made);
    fs::create_dir_all(&made).unwrap();
    let protos = package.join("../../proto");
    let descriptors = protox::Compiler::new([protos])
        .unwrap()
        .include_imports(true)
        .open_files(PROTOS)
        .unwrap()
        .file_descriptor_set();
    fs::write(made.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors)).unwrap();
    prost_build::Config::new()
        .btree_map(["."])
        .bytes([".inference.ModelInferRequest.raw_input_contents", ".inference.ModelInferResponse.raw_output_contents"])
        .out_dir(&made)
        .compile_fds(descriptors)
        .unwrap();

    let list = |folder: &Path| {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let names = list(&made);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::remove_dir_all(&kept).unwrap();
        fs::create_dir_all(&kept).unwrap();
        for name in &names {
            fs::copy(made.join(name), kept.join(name)).unwrap();
        }
    }
    assert_eq!(list(&kept), names);
    for name in names {
        let is_same = fs::read(made.join(&name)).unwrap() == fs::read(kept.join(&name)).unwrap();
        assert!(is_same, "{}: UPDATE_EXPECT=1 cargo test -p wire --test generated", name.display());
    }
}
