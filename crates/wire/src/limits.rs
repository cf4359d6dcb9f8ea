//! The bounds that several modules of this crate share, each with its reason.

use base::limits::{BODY_SIZE_MAX, INFLATE_FREE_SIZE, INFLATE_OUTPUT_SLICE};

/// Bytes that are compressed in one turn of a shard at the higher levels: two milliseconds for bytes of four values,
/// which take longest.
pub const DEFLATE_SLICE: usize = 4 * 1024;
/// Members of one gzip body, or frames of one zstd body: tools that compress in parallel write one
/// for each 64 KiB, and the largest body has this many of them.
pub const INFLATE_MEMBERS_MAX: usize = 1_024;
/// Values in one JSON document, tensor data not counted. Each becomes a node in memory, which is much larger than its
/// text.
pub const JSON_NODES_MAX: usize = 262_144;
/// Bytes of the header of a safetensors file: a model of 1,000 tensors has 100 KB.
pub const SAFETENSORS_HEADER_SIZE_MAX: usize = 8 << 20;
/// Tensors of one safetensors file: DeBERTa-v2-xxlarge has 800.
pub const SAFETENSORS_COUNT_MAX: usize = 16_384;
/// Dimensions of a tensor in a safetensors file: text encoders have two, DeBERTa's and old checkpoints' few more.
pub const SAFETENSORS_RANK_MAX: usize = 8;
const _: () = assert!(
    INFLATE_MEMBERS_MAX * 64 * 1024 >= BODY_SIZE_MAX && INFLATE_FREE_SIZE >= INFLATE_OUTPUT_SLICE,
    "a body of members of 64 KiB is taken, and the ratio is not looked at before the first slice"
);
