//! Bounds of steps.

/// Steps in one list. Lists of public models have up to six.
pub const STEPS_MAX: usize = 64;

/// Bytes of a file that a parameter names, such as labels: a vocabulary of a million words has 20 MB.
pub const STEP_FILE_SIZE_MAX: usize = 64 << 20;

/// Bytes of the strings in one tensor that a step writes: a label of 100 bytes for each of a million rows fits.
pub const TEXTS_SIZE_MAX: usize = 256 << 20;
