//! Bounds of steps.

/// Steps in one list. Lists of public models have up to six.
pub const STEPS_MAX: usize = 64;

/// Bytes of a file that a parameter names, such as labels: a vocabulary of a million words has 20 MB.
pub const STEP_FILE_SIZE_MAX: usize = 64 << 20;

/// Bytes of the strings in one tensor that a step writes: those of the largest body of a request.
pub const TEXTS_SIZE_MAX: usize = base::limits::BODY_SIZE_MAX;

/// Tensors in the list of one port. Public models stack up to some forty columns.
pub const LIST_TENSORS_MAX: usize = 256;

/// Multiple that the lengths of padded rows are rounded up to: devices want 8 to 128.
pub const PADDING_MULTIPLE_MAX: u32 = 65_536;

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

/// Grids of a detector without anchors: public ones have three to five.
pub const GRIDS_MAX: usize = 64;

/// Numbers of a distribution of distances: public detectors have 8 to 33.
pub const GRID_BINS_MAX: usize = 1024;

/// Boxes of one image that a suppression looks at: Ultralytics' own bound. Each is compared with those that are kept.
pub const DETECT_CANDIDATES_MAX: usize = 30_000;

/// Boxes of text in one image: PaddleOCR looks at 1,000 contours. Each has its score computed, and is sorted among the others.
pub const TEXT_BOXES_MAX: usize = 10_000;

/// Pixels of the map of a text detector: PaddleOCR's own bound of an image is 4,000 × 4,000.
pub const TEXT_MAP_PIXELS_MAX: usize = 1 << 24;

/// Pixels that the scores of the boxes in one map look at. Boxes in boxes count each: those of a page have together a few
/// times its pixels, nested ones as many as there are boxes.
pub const TEXT_SCORED_PIXELS_MAX: usize = 1 << 28;

/// Boxes that one request has cut out of images: those of ten pages of text.
pub const CROPS_MAX: usize = 10_000;

/// Pixels of all parts that one request has cut out of images, before they are resized. Boxes in boxes count each: those of a page
/// have together fewer than the page.
pub const CROP_PIXELS_MAX: usize = 1 << 27;

/// Prototypes of the masks of one image: YOLO-seg networks have 32.
pub const MASK_COEFFICIENTS_MAX: usize = 1024;

/// Products of coefficients and pixels of prototypes in one request: 300 boxes of a YOLO-seg network need 245 million.
pub const MASK_PRODUCTS_MAX: usize = 1 << 33;

/// Scores of pixels that one request has interpolated: 150 classes of ADE20K in an image of 14 million pixels.
pub const CLASS_SCORES_MAX: usize = 1 << 31;

/// Rows of one call of another model: the largest `max_batch_size`.
pub const CALL_ROWS_MAX: u32 = 65_536;

/// Inputs, and outputs, of another model that a step connects. Models have a handful.
pub const CALL_TENSORS_MAX: usize = 64;

/// JSON texts that one request has parsed: each becomes a row of a tensor.
pub const PARSED_TEXTS_MAX: usize = 65_536;

/// Bytes of one text that `tokenize` reads, its prefix included. The tokenizer keeps some hundred bytes for
/// each of them; models read a few thousand.
pub const TEXT_SIZE_MAX: usize = 1 << 20;

/// Prompts of a step `tokenize`: public models have up to some twenty.
pub const PROMPTS_MAX: usize = 256;

/// Labels of a request to `hypotheses`: each is a row of the network.
pub const HYPOTHESES_MAX: usize = 1024;

/// Bytes of the pairs that `hypotheses` makes of a request: a thousand texts of 16 kB.
pub const HYPOTHESES_SIZE_MAX: usize = 16 << 20;

/// Tokens without a vector of a step `tokenize`: late-interaction models have the 32 signs of punctuation.
pub const SKIPPED_TOKENS_MAX: usize = 1024;

/// Tokens of one request, padding included: 4,096 texts of 512 tokens. All outputs together have then up to
/// 170 MB.
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

/// Bytes of a `model.py` that `suggest` reads: those of public repositories have up to 60 KB.
pub const SUGGEST_SOURCE_SIZE_MAX: usize = 1 << 20;

/// Nodes of the syntax tree of a `model.py`: one of a thousand lines has ten thousand. Each has up to a dozen values in JSON, of
/// which a document may have 262,144.
pub const SUGGEST_NODES_MAX: usize = 20_000;

/// Levels of a syntax tree. Each is up to three calls deep when it is gone through.
pub const SUGGEST_DEPTH_MAX: usize = 64;

/// Bytes of the JSON of a syntax tree: that of a source of the greatest size, whose texts have up to six bytes a character.
pub const SUGGEST_TREE_SIZE_MAX: usize = 8 * SUGGEST_SOURCE_SIZE_MAX;

/// Statements and expressions that `suggest` goes through, with each pass of a loop counted: vocabularies are read line by line.
pub const SUGGEST_WORK_MAX: usize = 1 << 20;

/// Statements and expressions inside each other, calls included: each takes some kilobytes of the stack.
pub const SUGGEST_NESTING_MAX: usize = 128;

/// Elements of a list that count as one piece of work.
pub const SUGGEST_ELEMENTS_PER_WORK: usize = 16;

/// Elements of a list of constants: vocabularies have up to a quarter of a million symbols.
pub const SUGGEST_ITEMS_MAX: usize = 1 << 18;

/// Lists inside each other. A list that holds itself ends here.
pub const SUGGEST_LEVELS_MAX: usize = 16;

/// Bytes of a text that constants are joined to. Files are read whole.
pub const SUGGEST_TEXT_SIZE_MAX: usize = 1 << 20;

/// Calls inside each other that `suggest` follows: a recursive function ends here.
pub const SUGGEST_CALLS_MAX: usize = 8;

/// Tensors that `suggest` tells apart in one `model.py`. A loop of a thousand tensors is beyond what steps are for.
pub const SUGGEST_EXPRESSIONS_MAX: usize = 4096;

/// Passes of a loop over numbers that are gone through one by one; longer loops are over the places of a tensor.
pub const SUGGEST_RANGE_MAX: usize = 256;

/// Bytes of the text of a size that depends on others: that of a letterbox has 200.
pub const SUGGEST_FORMULA_SIZE_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use base::tensor::{Datatype, Shape, Tensor};

    use super::*;
    use crate::list::StepList;
    use crate::tensors::{of_floats, of_strings};
    use crate::trial::{built, fault};

    fn zeros(datatype: Datatype, shape: &[i64], size: usize) -> Tensor {
        Tensor { datatype, shape: Shape::from_slice(shape), contents: vec![0; size].into() }
    }

    #[test]
    fn parameters_have_bounds() {
        let check = |kind: &str, members: &str, want: &str| {
            let error = built(kind, &["input"], &["output"], members).err().unwrap();
            assert!(error.contains(want), "{kind}: {error}");
        };
        let many = vec!["0"; COLUMNS_MAX + 1].join(",");
        check("select", &format!("\"indices\": [{many}]"), "must be a list of at most 4096 integers");
        let many = vec!["1"; RANK_MAX + 1].join(",");
        check("shape", &format!("\"reshape\": [{many}]"), "must be a list of at most 16 integers");
        let error = built("detect", &["predictions"], &["boxes"], "\"layout\": \"yolov8\", \"max_candidates\": 30001");
        let error = error.err().unwrap();
        assert!(error.contains("\"max_candidates\": must be an integer from 1 to 30000"), "{error}");
        let names = vec!["\"x\""; LIST_TENSORS_MAX + 1].join(",");
        let text = format!(
            "{{\"steps\": [{{\"step\": \"stack\", \"inputs\": {{\"columns\": [{names}]}}, \"output\": \"y\"}}]}}"
        );
        let error = StepList::read(&text, &|_, _| Err(String::new())).err().unwrap();
        assert!(error.text().ends_with("must be the name of a tensor, or a list of 1 to 256 names"), "{error}");
    }

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let text = r#"{"steps": [{"step": "head", "input": "x", "outputs": {"label": "y"}, "labels_file": "f"}]}"#;
        let error = StepList::read(text, &|_, size_max| Err(format!("the bound is {size_max}"))).err().unwrap();
        assert!(error.text().ends_with("cannot read 'f': the bound is 67108864"), "{error}");
    }

    #[test]
    fn tensors_have_bounds() {
        let check = |kind: &str, port: &str, tensor: &Tensor, output: &str, members: &str, want: &str| {
            let error = fault(kind, &[(port, tensor)], &[output], members);
            assert!(error.contains(want), "{kind}: {error}");
        };
        // As many places as a list can have, of a column that is a little too long for them.
        let places = vec!["0"; COLUMNS_MAX].join(",");
        let rows = TENSOR_SIZE_MAX / COLUMNS_MAX / 4 + 1;
        let column = of_floats(&[rows, 1], vec![0.0; rows]);
        let indices = format!("\"indices\": [{places}]");
        check("select", "input", &column, "output", &indices, "would become larger than 1073741824 bytes");
        let deep = zeros(Datatype::Fp32, &[1; RANK_MAX], 4);
        let error = fault("stack", &[("columns", &deep)], &["output"], "");
        assert!(error.contains("at most 15 dimensions"), "{error}");
        let nested = format!("{}{}", "[".repeat(RANK_MAX + 1), "]".repeat(RANK_MAX + 1));
        let nested = of_strings(&[1], [nested]);
        check("parse", "json", &nested, "value", "\"datatype\": \"FP32\"", "has more than 16 dimensions");
        let texts = of_strings(&[PARSED_TEXTS_MAX + 1], vec!["1"; PARSED_TEXTS_MAX + 1]);
        check("parse", "json", &texts, "value", "\"datatype\": \"FP32\"", "must have 1 to 65536 texts");
        let flags = zeros(Datatype::Bool, &[TEXTS_SIZE_MAX as i64 / 3 + 1], TEXTS_SIZE_MAX / 3 + 1);
        let text = r#"{"steps": [{"step": "template", "input": "x", "output": "y", "template": {"tensor": "x"}}]}"#;
        let list = StepList::read(text, &|_, _| Err(String::new())).unwrap();
        let error = list.run(|_| Some(flags.clone()), &["y"]).err().unwrap();
        assert!(error.text().contains("would be larger than 67108864 bytes"), "{error}");
    }

    #[test]
    fn images_and_detections_have_bounds() {
        let pixels = zeros(Datatype::Uint8, &[2, 1, 1, 3], 6);
        let error = fault("image", &[("image", &pixels)], &["pixels"], "\"size\": [8192, 8192]");
        assert!(error.contains("has 2 rows, which make more than the 1073741824 bytes"), "{error}");
        let side = IMAGE_SIDE_MAX as i64 + 1;
        let long = zeros(Datatype::Uint8, &[1, 1, side, 3], 3 * (IMAGE_SIDE_MAX + 1));
        let error = fault("image", &[("image", &long)], &["pixels"], "\"resize\": \"none\"");
        assert!(error.contains("32768"), "{error}");
        let images = zeros(Datatype::Fp32, &[IMAGES_MAX as i64 + 1, 84, 0], 0);
        let error = fault("detect", &[("predictions", &images)], &["boxes"], "\"layout\": \"yolov8\"");
        assert!(error.contains("must have at most 4096 images"), "{error}");
        let wide = zeros(Datatype::Fp32, &[1, CLASSES_MAX as i64 + 1, 0], 0);
        let error = fault("detect", &[("predictions", &wide)], &["boxes"], "\"layout\": \"yolov8\"");
        assert!(error.contains("to 16384 numbers for each box"), "{error}");
    }
}
