//! The pieces of a request's way that are measured one by one, layer by layer: by `codecs` in time, by `instructions`
//! in instructions and allocations. A piece is made with all its inputs and then run again and again; the work of every
//! run is checked.
//!
//! Uses the crate's public interface only; nothing here opens a socket or reads a clock.

#![allow(dead_code, reason = "each of the two uses a part of it")]

mod compression;
mod connections;
#[path = "../../../../tests/support/escape.rs"]
mod escape;
mod json;
mod messages;
#[path = "../../../../tests/support/protobuf.rs"]
#[allow(unused_imports, reason = "it has tests of its own")]
mod protobuf;
mod queues;
mod selection;

/// One piece, ready to be run.
pub type Work = Box<dyn FnMut()>;

/// One piece that can be measured.
pub struct Case {
    /// The part of the crate in which most of it runs.
    pub layer: &'static str,
    /// The operation, as the table shows it.
    pub name: &'static str,
    /// Makes it ready. Returns the number of bytes that a run reads or writes; 0 if that has no meaning.
    pub make: fn() -> (Work, usize),
    /// True if a change of its instructions fails `.ci/run instructions`: one or two cases of each layer.
    pub is_counted: bool,
}

const fn timed(layer: &'static str, name: &'static str, make: fn() -> (Work, usize)) -> Case {
    Case { layer, name, make, is_counted: false }
}

const fn counted(layer: &'static str, name: &'static str, make: fn() -> (Work, usize)) -> Case {
    Case { layer, name, make, is_counted: true }
}

/// All of them.
pub const CASES: &[Case] = &[
    counted("http1", "request head", connections::http1_head),
    timed("hpack", "decode a call's block, indexed", connections::hpack_indexed),
    timed("hpack", "decode a call's block, literal", connections::hpack_literal),
    timed("hpack", "encode a call's block", connections::hpack_encode),
    timed("http2", "frame head", connections::http2_frame),
    counted("http2", "unary call, 1 KiB", connections::http2_call_small),
    timed("http2", "unary call, 1 MiB", connections::http2_call_large),
    counted("http2", "8,192 empty messages of a stream", connections::http2_empty_messages),
    counted("http2", "a message in 256 frames, behind 256 streams", connections::http2_small_frames),
    timed("grpc frame", "gather a message, 1 KiB", connections::grpc_frame),
    counted("json", "parse a small request", json::parse_small),
    counted("json", "parse 150,000 FP32", json::parse_floats),
    timed("json", "parse 150,000 FP32 as Python writes them", json::parse_python),
    timed("json", "parse 150,000 INT32", json::parse_integers),
    counted("json", "write 150,000 FP32", json::write_floats),
    timed("protobuf", "read ModelInferRequest, small", messages::read_small),
    timed("protobuf", "read ModelInferRequest, 1 MiB", messages::read_large),
    counted("rest", "decode and encode JSON, small", messages::rest_json),
    counted("rest", "decode and encode binary, small", messages::rest_binary),
    timed("rest", "decode and encode binary, 1 MiB", messages::rest_binary_large),
    counted("grpc", "decode and encode, small", messages::grpc_small),
    timed("grpc", "decode and encode, 1 MiB", messages::grpc_large),
    counted("classification", "the 5 best of 1,000 FP32", messages::top_5),
    timed("top-k", "5 of 1,000 FP32", selection::top_5),
    timed("top-k", "1,000 FP32 sorted", selection::sorted),
    timed("top-k", "100 of 1,000,000 FP32", selection::top_100_of_a_million),
    counted("scheduler", "64 requests to a batch", queues::scheduler),
    counted("queue", "64 requests to a worker and back", queues::model_queue),
    timed("queue", "64 answers through completions", queues::completions),
    timed("compression", "copy 1 MiB", compression::copy::<{ compression::LARGE }>),
    timed(
        "compression",
        "inflate deflate, 1 MiB",
        compression::inflate::<{ compression::DEFLATE }, { compression::LARGE }>,
    ),
    timed("compression", "inflate gzip, 4 KiB", compression::inflate::<{ compression::GZIP }, { compression::SMALL }>),
    timed("compression", "inflate gzip, 1 MiB", compression::inflate::<{ compression::GZIP }, { compression::LARGE }>),
    timed("compression", "inflate zstd, 4 KiB", compression::inflate::<{ compression::ZSTD }, { compression::SMALL }>),
    timed("compression", "inflate zstd, 1 MiB", compression::inflate::<{ compression::ZSTD }, { compression::LARGE }>),
    timed(
        "compression",
        "compress gzip, low, 4 KiB",
        compression::deflate::<{ compression::GZIP }, { compression::LOW }, { compression::SMALL }>,
    ),
    timed(
        "compression",
        "compress gzip, low, 1 MiB",
        compression::deflate::<{ compression::GZIP }, { compression::LOW }, { compression::LARGE }>,
    ),
    timed(
        "compression",
        "compress zstd, low, 4 KiB",
        compression::deflate::<{ compression::ZSTD }, { compression::LOW }, { compression::SMALL }>,
    ),
    timed(
        "compression",
        "compress zstd, low, 1 MiB",
        compression::deflate::<{ compression::ZSTD }, { compression::LOW }, { compression::LARGE }>,
    ),
    timed(
        "compression",
        "compress gzip, medium, 4 KiB",
        compression::deflate::<{ compression::GZIP }, { compression::MEDIUM }, { compression::SMALL }>,
    ),
    timed(
        "compression",
        "compress gzip, high, 4 KiB",
        compression::deflate::<{ compression::GZIP }, { compression::HIGH }, { compression::SMALL }>,
    ),
];

/// Numbers that look random and are the same in every run (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// The next.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A float between -1 and 1, like a normalised picture or an embedding.
    pub fn float(&mut self) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1_u64 << 24) as f32;
        unit * 2.0 - 1.0
    }
}
