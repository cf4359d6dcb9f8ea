//! Compiles `proto/` to Rust, without `protoc`, and keeps the descriptors for reflection and for
//! reading `config.pbtxt`; writes down what the program is made of,
//! and of which commit.

#[path = "build/commit.rs"]
mod commit;
#[path = "build/dependencies.rs"]
mod dependencies;

use std::path::PathBuf;
use std::{env, fs};

const PROTOS: [&str; 5] =
    ["grpc_service.proto", "health.proto", "otlp.proto", "reflection.proto", "reflection_v1.proto"];

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script by the environment alone")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::Compiler::new(["proto"])?.include_imports(true).open_files(PROTOS)?.file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    prost_build::Config::new()
        .btree_map(["."])
        .bytes([".inference.ModelInferRequest.raw_input_contents", ".inference.ModelInferResponse.raw_output_contents"])
        .compile_fds(descriptors)?;
    commit::tell()?;
    dependencies::write(&out)
}
