//! The bounds that several modules of this crate share, each with its reason.

use base::limits::{MODEL_ENTRIES_MAX, REQUEST_TENSORS_MAX};

/// Sequence slots of one model version, over all its instances: each takes some hundreds of bytes.
pub const SEQUENCE_SLOTS_MAX: usize = 1024 * 1024;
/// Steps of one ensemble: one request may have all of them in flight at once.
pub const ENSEMBLE_STEPS_MAX: usize = 256;
/// Values of the leaves of a tree model, 8 bytes each.
pub const TREE_LEAF_VALUES_MAX: usize = 1 << 29;
/// Values in a file of XGBoost outside of arrays of numbers: over 20 for each tree, so that 200,000 trees fit. Each becomes
/// much larger in memory than it is in the file.
pub const TREE_VALUES_MAX: usize = 1 << 22;
/// `max_batch_size` of a tree model whose configuration sets none: a request of this many rows
/// takes well below `INLINE_LONGEST_MAX`.
pub const TREE_ROWS_DEFAULT: u16 = 256;
/// Nesting depth of graphs in an ONNX file (the branches of `If`, the bodies of `Loop`).
pub const GRAPHS_DEEP_MAX: usize = 64;
/// Versions of one model.
pub const VERSIONS_MAX: usize = 1_024;
/// Files of one model that its configuration has checksums of: each is read as a whole before every load.
pub const CHECKSUMS_MAX: usize = 1_024;
/// Bytes of a path in a store: the bound of Linux.
pub const STORE_PATH_SIZE_MAX: usize = 4_000;
/// Nesting depth of messages in a configuration: more than twice that of the deepest field of `ModelConfig`.
pub const CONFIG_DEPTH_MAX: usize = 16;
/// Inputs, or outputs, of one model: no request could carry more.
pub const MODEL_TENSORS_MAX: usize = REQUEST_TENSORS_MAX;
const _: () = assert!(VERSIONS_MAX < MODEL_ENTRIES_MAX, "a model with the most versions can be listed");
