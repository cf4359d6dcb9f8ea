//! The generated messages of `proto/`: the only file of this layer that knows about inference. Frequent messages have
//! hand-written readers and writers in `protocol/grpc/`.

#![allow(missing_docs, reason = "generated; the documentation is in the .proto files' sources")]
#![allow(clippy::all, clippy::pedantic, reason = "generated")]

/// `grpc_service.proto` and `model_config.proto`.
pub mod inference {
    include!("../generated/inference.rs");
}

/// `health.proto`.
pub mod health {
    include!("../generated/grpc.health.v1.rs");
}

/// `otlp.proto`: the messages to a collector of traces.
pub mod otlp {
    include!("../generated/otlp.rs");
}

/// `reflection_v1.proto`.
pub mod reflection {
    include!("../generated/grpc.reflection.v1.rs");
}

/// `reflection.proto`: the same messages under the older name, which clients still ask for.
pub mod reflection_v1alpha {
    include!("../generated/grpc.reflection.v1alpha.rs");
}

/// `tei.proto`.
pub mod tei {
    include!("../generated/tei.v1.rs");
}

/// An encoded `google.protobuf.FileDescriptorSet` of all of `proto/`, imports first.
pub static DESCRIPTORS: &[u8] = include_bytes!("../generated/descriptors.bin");
