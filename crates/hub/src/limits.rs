//! Bounds of what is read of a hub folder.

/// Bytes of a JSON file that is derived from: the 21,841 labels of ImageNet-21k take 3 MB.
pub const HUB_JSON_SIZE_MAX: usize = 8 << 20;

/// Classes of a classifier: ImageNet-21k has 21,841.
pub const HUB_LABELS_MAX: usize = 65_536;

/// Modules of a pipeline of sentence-transformers: those in use have two to five.
pub const HUB_MODULES_MAX: usize = 16;

/// Prompts of a model: those in use have up to some twenty.
pub const HUB_PROMPTS_MAX: usize = 256;

/// Tokens without a vector in a pipeline of pylate: as many as the step `tokenize` takes.
pub const HUB_SKIPPED_MAX: usize = 1024;

/// Tokens of a text: as many as the step `tokenize` makes of a request.
pub const HUB_TOKENS_MAX: usize = 1 << 21;

/// Numbers of a vector, and classes of a vocabulary.
pub const HUB_DIMENSIONS_MAX: usize = 1 << 20;

/// Rows of a request, and of a batch.
pub const HUB_ROWS_MAX: usize = 32;
