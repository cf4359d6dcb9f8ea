//! The bounds of this crate: a folder comes from anywhere, so each size is checked before memory is taken for it.

/// Bytes of a `config.json`: one with the labels of 21,000 classes has 1.5 MB.
pub const CONFIG_SIZE_MAX: usize = 4 << 20;
/// Tensors of one model, over all its files: as many as one file may have.
pub const TENSORS_MAX: usize = wire::safetensors::SAFETENSORS_COUNT_MAX;
/// Files of one model.
pub const FILES_MAX: usize = 64;
/// Layers of an encoder: the deepest in use has 48.
pub const LAYERS_MAX: usize = 256;
/// Attention heads of a layer.
pub const HEADS_MAX: usize = 1_024;
/// Width of hidden states and of feed-forward layers.
pub const WIDTH_MAX: usize = 65_536;
/// Rows of a table of embeddings: vocabularies of encoders end at 256,000.
pub const VOCABULARY_MAX: usize = 4 << 20;
/// Positions of a model, which bound the tables that are computed for it.
pub const POSITIONS_MAX: usize = 131_072;
/// Elements of a table that is computed from a few numbers: those of `ModernBERT` and MPNet have 262,144 at most.
pub const TABLE_ELEMENTS_MAX: usize = 16 << 20;
/// Classes of a head.
pub const LABELS_MAX: usize = 1 << 20;
/// Bytes of an ONNX file: protobuf's own limit.
pub const MODEL_SIZE_MAX: usize = (1 << 31) - 1;

const _: () = assert!(CONFIG_SIZE_MAX < MODEL_SIZE_MAX, "texts are small");
