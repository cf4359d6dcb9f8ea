//! Operations of the graph.

use std::sync::Arc;

use base::tensor::Datatype;

/// The elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The text of a JSON value, as an object of Python.
    Json,
    Number(Datatype),
    /// Strings of bytes.
    Raw,
    /// Strings of characters.
    Text,
}

/// The place of an expression in a graph.
pub type ExprId = usize;
/// A loop over rows.
pub type LoopId = usize;

/// The size of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    Known(u64),
    /// Any size; two dimensions with the same number have the same size.
    Open(usize),
}

/// An operation. Axes count from the end, from -1.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    Absolute,
    Argmax(i64),
    Argsort(Order),
    Binary(ArithmeticOp),
    /// An output of another model of the server, on the operands.
    Called(Arc<CallForm>),
    /// A variable that a loop changes, as the row before left it.
    Carried(LoopId),
    Cast,
    Clip(f64, f64),
    Compare(CompareOp),
    Concat(i64),
    Constant(Arc<Vec<f64>>),
    /// The number of the row in a loop.
    Counter(LoopId),
    Ctc(Arc<CtcForm>),
    Decode,
    Detokenize {
        file: String,
        skips_special: bool,
    },
    /// The text of values in a template of JSON; the operands are its tensors.
    Dumps(Arc<JsonTemplate>),
    Encode,
    Exp,
    /// Repeated along axes of size 1.
    Expand,
    /// The first rows of the first operand, as many as the second one says.
    First,
    /// A number that sizes determine.
    Formula(String),
    /// `[..., i]` with indices of each row along the last axis.
    Gather,
    Input(String),
    /// A member of a JSON text.
    Json(String),
    Labels(Arc<Vec<String>>),
    Logical(Logic),
    /// The boxes that a suppression keeps, as indices of its rows.
    Nms(Arc<NmsForm>),
    Norm {
        axis: i64,
        keeps: bool,
    },
    /// Divided by the L2 norm, which is at least this.
    Normalize(f64),
    Parse {
        path: String,
        datatype: Datatype,
    },
    Picture(PictureOp),
    Pool(&'static str),
    /// The numbers of the rows of a loop.
    Positions,
    /// A text before each one.
    Prefix(String),
    Reduce {
        kind: Reduction,
        axis: i64,
        keeps: bool,
    },
    Row(LoopId),
    /// The rows of the first operand at which the second one is true, or that it has the indices of.
    Rows {
        is_mask: bool,
    },
    /// Places along an axis.
    Select {
        axis: i64,
        indices: Arc<Vec<i64>>,
    },
    Sigmoid,
    /// The size of a dimension.
    Size(Dim),
    Sound(SoundOp),
    Slice {
        axis: i64,
        start: Option<i64>,
        stop: Option<i64>,
        step: i64,
    },
    Softmax(i64),
    Sqrt,
    Stack(i64),
    Take {
        axis: i64,
        index: i64,
    },
    Tokens(Arc<TokensForm>),
    /// The highest values, or their indices, along the last axis.
    Top {
        count: u64,
        order: Order,
        is_index: bool,
    },
    Transpose(Vec<usize>),
    View,
    /// The first operand with a column replaced by the second one.
    WithColumn(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArithmeticOp {
    Add,
    Divide,
    Multiply,
    Power,
    Subtract,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOp {
    Equal,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Unequal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logic {
    And,
    Not,
    Or,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Max,
    Mean,
    Min,
    Sum,
}

/// The order of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub is_descending: bool,
    /// False if the library promises no order of equal values.
    pub is_stable: bool,
    /// Of equal values the last one comes first.
    pub is_last_first: bool,
}

/// An output of a tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub struct TokensForm {
    /// The port of the step.
    pub port: &'static str,
    /// Parameters of the step besides the datatype, in JSON.
    pub fields: Vec<(&'static str, String)>,
    /// Distinguishes calls, whose outputs belong to one step.
    pub call: usize,
    /// True if the texts of a list are padded together; otherwise each stands for itself.
    pub has_pair: bool,
}

/// A call of another model.
#[derive(Clone, Debug, PartialEq)]
pub struct CallForm {
    pub model: String,
    pub version: Option<u64>,
    /// The names of the operands.
    pub inputs: Vec<String>,
    pub output: String,
}

/// The texts of CTC decoding.
#[derive(Clone, Debug, PartialEq)]
pub struct CtcForm {
    pub vocabulary: Vec<String>,
    pub blank: i64,
    pub separator: String,
}

/// A suppression of boxes.
#[derive(Clone, Debug, PartialEq)]
pub struct NmsForm {
    pub iou: &'static str,
    pub iou_threshold: f64,
    /// A threshold of the function's own.
    pub score_threshold: Option<f64>,
    pub box_format: &'static str,
    pub nms: &'static str,
    pub class_offset: Option<f64>,
}

/// A JSON text with tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum JsonTemplate {
    /// JSON as it is.
    Literal(String),
    List(Vec<JsonTemplate>),
    Table(Vec<(String, JsonTemplate)>),
    /// The operand at this place, rounded to places after the point.
    Tensor(usize, Option<i64>),
    /// A list over the first dimension of the operands inside, of which the first is at this place.
    Each(usize, Box<JsonTemplate>),
}

/// An operation on images.
#[derive(Clone, Debug, PartialEq)]
pub enum PictureOp {
    /// The bytes of a text in base64.
    Base64,
    Crop {
        height: u64,
        width: u64,
    },
    /// Decodes a file, with the library's name.
    Decode(&'static str),
    /// One channel: `pillow`, `decode`, or OpenCV's from the order `rgb` or `bgr`.
    Grey(&'static str),
    /// One scale into a size, with a colour around.
    Letterbox {
        height: u64,
        width: u64,
        form: LetterboxForm,
    },
    /// A processor of transformers, by its file.
    Preprocessor(String),
    Resize {
        height: u64,
        width: u64,
        filter: &'static str,
    },
    /// To a size that formulas state.
    ResizeTo {
        height: String,
        width: String,
        filter: &'static str,
    },
    /// `convert("RGB")`.
    Rgb,
    /// The shorter side to a length.
    Shortest {
        side: u64,
        filter: &'static str,
    },
    /// Turned upright by EXIF.
    Upright,
}

/// An operation on sounds.
#[derive(Clone, Debug, PartialEq)]
pub enum SoundOp {
    /// The samples of a file, one channel.
    Decode,
    /// Kaldi's filter banks, by the parameters of the step.
    Fbank(Arc<Vec<(&'static str, String)>>),
    /// The features of a Whisper network, by the file of its extractor.
    LogMel(String),
    /// The sample rate of the file of a sound.
    Rate,
    /// From a sample rate, or that of the file, to another one.
    Resample { from: Option<u64>, to: u64, method: &'static str },
}

/// The parameters of a letterbox.
#[derive(Clone, Debug, PartialEq)]
pub struct LetterboxForm {
    pub is_rounded: bool,
    pub is_centred: bool,
    pub enlarges: bool,
    pub colour: u64,
    pub filter: &'static str,
}

impl Op {
    /// Returns true if the operation treats all rows alike, so that it may move out of a loop over them.
    pub fn is_by_row(&self) -> bool {
        !matches!(self, Self::Rows { .. } | Self::First | Self::Nms(_) | Self::Called(_) | Self::Carried(_))
    }

    /// Returns true if operands of fewer dimensions are repeated.
    pub fn broadcasts(&self) -> bool {
        matches!(self, Self::Binary(_) | Self::Compare(_) | Self::Logical(_))
    }

    /// Its name in texts.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Absolute => "an absolute value",
            Self::Argmax(_) => "argmax",
            Self::Argsort(_) => "a sort",
            Self::Binary(_) => "arithmetic",
            Self::Called(_) => "a call of another model",
            Self::Carried(_) => "a value that changes from row to row",
            Self::Cast => "a conversion",
            Self::Clip(..) => "a clip",
            Self::Compare(_) | Self::Logical(_) => "a comparison",
            Self::Concat(_) => "a concatenation",
            Self::Constant(_) => "a constant",
            Self::Counter(_) => "the number of a row",
            Self::Ctc(_) => "CTC decoding",
            Self::Decode => "the decoding of a text",
            Self::Detokenize { .. } => "the decoding of tokens",
            Self::Dumps(_) => "a JSON text",
            Self::Encode => "the encoding of a text",
            Self::Exp => "an exponential",
            Self::Expand => "a repetition",
            Self::First => "the first rows by a count",
            Self::Formula(_) => "a number of sizes",
            Self::Gather => "a selection by indices",
            Self::Input(_) => "an input",
            Self::Json(_) | Self::Parse { .. } => "a JSON value",
            Self::Labels(_) => "a label",
            Self::Nms(_) => "a suppression of boxes",
            Self::Norm { .. } => "a norm",
            Self::Normalize(_) => "a division by the norm",
            Self::Picture(_) => "an image",
            Self::Pool(_) => "a pooling",
            Self::Positions => "the numbers of rows",
            Self::Prefix(_) => "a text before another",
            Self::Reduce { .. } => "a sum, mean, maximum or minimum",
            Self::Row(_) => "a row",
            Self::Rows { .. } => "a selection of rows",
            Self::Sigmoid => "a sigmoid",
            Self::Select { .. } => "a selection of columns",
            Self::Size(_) => "a size",
            Self::Slice { .. } | Self::Take { .. } => "a part of a tensor",
            Self::Softmax(_) => "a softmax",
            Self::Sound(_) => "a sound",
            Self::Sqrt => "a square root",
            Self::Stack(_) => "a stack",
            Self::Tokens(_) => "a tokenizer",
            Self::Top { .. } => "a top-k",
            Self::Transpose(_) => "a transposition",
            Self::View => "a shape",
            Self::WithColumn(_) => "a changed column",
        }
    }
}
