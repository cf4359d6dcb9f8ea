//! Bounds of steps.

/// Steps in one list. Lists of public models have up to six.
pub const STEPS_MAX: usize = 64;

/// Bytes of a file that a parameter names, such as labels: a vocabulary of a million words has 20 MB.
pub const STEP_FILE_SIZE_MAX: usize = 64 << 20;

/// Bytes of the strings in one tensor that a step writes: those of the largest body of a request.
pub const TEXTS_SIZE_MAX: usize = base::limits::BODY_SIZE_MAX;

/// Tensors in the list of one port. Public models stack up to some forty columns.
pub const LIST_TENSORS_MAX: usize = 256;

/// Numbers in a parameter that has one for each column: tables of public models have some hundred columns.
pub const COLUMNS_MAX: usize = 4096;

/// Dimensions of a tensor that a step makes. numpy has up to 64; models have up to six.
pub const RANK_MAX: usize = 16;

/// Bytes of a tensor that a step makes of a smaller one: sixteen times the largest body of a request.
pub const TENSOR_SIZE_MAX: usize = 16 * base::limits::BODY_SIZE_MAX;

/// Images in one tensor of a detector. A tensor of no boxes has no bytes, but a result for each image.
pub const IMAGES_MAX: usize = 4096;

/// Classes of a detector, and numbers of a box: Objects365 has 365 classes, Open Images 601, LVIS 1,203.
pub const CLASSES_MAX: usize = 16_384;

/// Boxes of one image that a suppression looks at: Ultralytics' own bound. Each is compared with those that are kept.
pub const DETECT_CANDIDATES_MAX: usize = 30_000;

/// JSON texts that one request has parsed: each becomes a row of a tensor.
pub const PARSED_TEXTS_MAX: usize = 65_536;

/// Bytes of one text that `tokenize` reads, its prefix included. The tokenizer keeps some hundred bytes for
/// each of them; models read a few thousand.
pub const TEXT_SIZE_MAX: usize = 1 << 20;

/// Tokens of one request, padding included: 4,096 texts of 512 tokens. All outputs together have then up to
/// 100 MB.
pub const TOKENS_MAX: usize = 1 << 21;

/// Bytes of all texts that one request to `detokenize` may produce: two million tokens of English have some
/// 10 MB.
pub const DETOKENIZED_SIZE_MAX: usize = 64 << 20;

/// Pixels of an image in a request: phones take 50 million, and a whole photograph of that size has 200 MB as
/// RGB.
pub const IMAGE_PIXELS_MAX: usize = 1 << 26;

/// Columns or rows of an image.
pub const IMAGE_SIDE_MAX: usize = 1 << 15;

/// Scans of a JPEG file: encoders write 10 for a progressive one, and each passes over the whole image
/// however few bytes it has.
pub const JPEG_SCANS_MAX: usize = 100;

/// Bytes of the pixels that a step makes of one request: small files can ask for large ones. Some 200 rows of
/// FP32 at 640 × 640.
pub const IMAGE_OUTPUT_SIZE_MAX: usize = 1 << 30;

/// Samples of an audio file, those of all channels: 46 minutes of stereo at 48 kHz. A FLAC file of some hundred bytes can ask
/// for millions.
pub const AUDIO_SAMPLES_MAX: usize = 1 << 28;

/// Bytes of the tensor that an audio step makes of one request: four hours of a channel at 16 kHz as FP32.
pub const AUDIO_OUTPUT_SIZE_MAX: usize = 1 << 30;

/// Hertz of a sample rate that a step converts to: the highest one of WAV files in use.
pub const SAMPLE_RATE_MAX: usize = 768_000;

/// Weights of a conversion between two sample rates, of which a file names one: each takes a sine and a cosine. Rates in use
/// need some thousand, 48,001 Hz to 16 kHz a million.
pub const RESAMPLE_WEIGHTS_MAX: usize = 1 << 21;

/// Samples of a frame that is transformed: 340 ms at 48 kHz. Models of speech take 20 to 50 ms.
pub const FRAME_SIZE_MAX: usize = 1 << 14;

/// Mel filters of a bank: public models have 40 to 128.
pub const MEL_FILTERS_MAX: usize = 1024;

/// Rows of samples in one tensor. A row without samples has no bytes, but a count of frames.
pub const AUDIO_ROWS_MAX: usize = 65_536;
