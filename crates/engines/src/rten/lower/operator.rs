//! The operators that the embedded engine runs correctly, with the versions and datatypes:
//! operators outside this table are refused. `docs/embedded-engine.md` shows it, and a test
//! compares both.

use model::onnx::message::{NodeMessage, element};

use super::{Lowering, decompose, rule};

/// The newest version of ONNX's operators that the table was compared with.
pub(super) const OPSET_MAX: i64 = 28;

/// Appends an operator, or its replacement, to the graph; or returns the reason why the engine
/// cannot run it.
pub(super) type Rule = fn(&mut Lowering<'_>, NodeMessage) -> Result<(), String>;

/// One operator.
pub(super) struct Operator {
    /// Its name, with its domain unless it is ONNX's own.
    pub(super) name: &'static str,
    /// The first version of ONNX's operators in which it runs correctly.
    pub(super) since: i64,
    /// The datatypes of its operands.
    pub(super) takes: OperandType,
    /// The inputs that are of those datatypes.
    pub(super) operands: Operands,
    /// True if its result is of another datatype than its operands.
    pub(super) gives_other: bool,
    /// True if its first result has the shape of its first input.
    pub(super) keeps_shape: bool,
    /// The rule that lowers it.
    pub(super) rule: Rule,
    /// The uses of it that are refused.
    #[cfg_attr(not(test), expect(dead_code, reason = "the documentation shows it"))]
    pub(super) note: &'static str,
}

/// Datatypes of operands. FP16 is computed in FP32, INT64 and BOOL in INT32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperandType {
    /// All datatypes of the engine.
    Any,
    /// INT8 and UINT8.
    Eight,
    /// FP32.
    Float,
    /// FP32, and INT8 and UINT8 converted to it: the operator only moves or compares.
    Moved,
    /// FP32 and INT32, and INT8 and UINT8 converted to INT32.
    Number,
}

/// Inputs of one datatype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operands {
    All,
    First,
    Rest,
}

impl Operator {
    /// The operator of a node in a version of ONNX's operators.
    pub(super) fn find(node: &NodeMessage, version: i64) -> Result<&'static Self, String> {
        let qualified;
        let name = match node.domain.as_str() {
            "" | "ai.onnx" => node.op_type.as_str(),
            domain => {
                qualified = format!("{domain}/{}", node.op_type);
                &qualified
            }
        };
        let found = OPERATORS.iter().find(|operator| operator.name == name);
        let found = found.ok_or("the engine does not have this operator")?;
        if version < found.since {
            return Err(format!(
                "version {version} of ONNX's operators is older than {}, from which on the engine has it",
                found.since
            ));
        }
        Ok(found)
    }
}

impl OperandType {
    /// Refuses a value of another datatype; 0 is unknown.
    pub(super) fn check(self, name: &str, kind: i32) -> Result<(), String> {
        let is_taken = match kind {
            0 => true,
            element::FLOAT | element::FLOAT16 => self != Self::Eight,
            element::INT32 | element::INT64 | element::BOOL => matches!(self, Self::Any | Self::Number),
            element::INT8 | element::UINT8 => matches!(self, Self::Any | Self::Eight),
            _ => false,
        };
        if is_taken {
            Ok(())
        } else {
            Err(format!("'{name}' is {}, for which the engine does not have it", kind_name(kind)))
        }
    }

    /// Its datatypes, for the documentation.
    #[cfg(test)]
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Any => "all",
            Self::Eight => "INT8, UINT8",
            Self::Float => "FP32",
            Self::Moved => "FP32, INT8, UINT8",
            Self::Number => "FP32, INT32, INT64, BOOL, INT8, UINT8",
        }
    }
}

/// KServe's name of an element type.
fn kind_name(kind: i32) -> String {
    let name = match kind {
        element::FLOAT => "FP32",
        element::UINT8 => "UINT8",
        element::INT8 => "INT8",
        element::INT32 => "INT32",
        element::INT64 => "INT64",
        element::BOOL => "BOOL",
        element::FLOAT16 => "FP16",
        element::DOUBLE => "FP64",
        other => return format!("of ONNX's element type {other}"),
    };
    name.to_owned()
}

const fn operator(name: &'static str, takes: OperandType, operands: Operands) -> Operator {
    Operator { name, since: 1, takes, operands, gives_other: false, keeps_shape: false, rule: rule::keep, note: "" }
}

/// Any datatype.
const fn any(name: &'static str) -> Operator {
    operator(name, OperandType::Any, Operands::First)
}

/// A float to a float of the same shape.
const fn curve(name: &'static str) -> Operator {
    Operator { keeps_shape: true, ..operator(name, OperandType::Float, Operands::First) }
}

const fn float(name: &'static str) -> Operator {
    operator(name, OperandType::Float, Operands::First)
}

/// Numbers in all inputs.
const fn numbers(name: &'static str) -> Operator {
    operator(name, OperandType::Number, Operands::All)
}

/// Numbers in the first input.
const fn number(name: &'static str) -> Operator {
    operator(name, OperandType::Number, Operands::First)
}

/// Numbers in all inputs, with a result of another datatype.
const fn compared(name: &'static str) -> Operator {
    Operator { gives_other: true, rule: rule::broadcast, ..numbers(name) }
}

const fn by(operator: Operator, rule: Rule, note: &'static str) -> Operator {
    Operator { rule, note, ..operator }
}

const fn since(version: i64, operator: Operator) -> Operator {
    Operator { since: version, ..operator }
}

const fn same(operator: Operator) -> Operator {
    Operator { keeps_shape: true, ..operator }
}

const fn other(operator: Operator) -> Operator {
    Operator { gives_other: true, ..operator }
}

/// The table, by name.
pub(super) const OPERATORS: &[Operator] = &[
    same(number("Abs")),
    curve("Acos"),
    curve("Acosh"),
    by(numbers("Add"), rule::broadcast, "before version 7 no broadcast along an axis"),
    compared("And"),
    other(by(number("ArgMax"), decompose::arg, "")),
    other(by(number("ArgMin"), decompose::arg, "")),
    curve("Asin"),
    curve("Asinh"),
    curve("Atan"),
    curve("Atanh"),
    by(float("Attention"), rule::attention, "no output of the product, no mask beside padding lengths"),
    by(float("AveragePool"), rule::pool, "one or two dimensions"),
    same(by(float("BatchNormalization"), rule::batch_normalization, "not in training")),
    by(any("BitCast"), rule::bit_cast, "between FP32 and INT32, or 8 bits and 8 bits"),
    same(since(6, by(any("Cast"), rule::cast, "not from or to FP64, except of constants"))),
    same(by(any("CastLike"), rule::cast, "as Cast")),
    curve("Ceil"),
    curve_by("Celu", decompose::celu),
    same(numbers("Clip")),
    numbers("Concat"),
    operator("ConcatFromSequence", OperandType::Any, Operands::First),
    any("Constant"),
    any("ConstantOfShape"),
    by(float("Conv"), rule::convolution, "one or two dimensions"),
    other(by(operator("ConvInteger", OperandType::Eight, Operands::First), rule::convolution, "one or two dimensions")),
    by(float("ConvTranspose"), rule::convolution, "one or two dimensions, no output_shape"),
    curve("Cos"),
    curve("Cosh"),
    same(number("CumSum")),
    operator("DepthToSpace", OperandType::Moved, Operands::First),
    operator("DequantizeLinear", OperandType::Any, Operands::First),
    by(numbers("Div"), rule::divide, "before version 7 no broadcast along an axis"),
    same(by(float("Dropout"), rule::dropout, "not in training")),
    other(by(float("DynamicQuantizeLinear"), decompose::dynamic_quantize, "")),
    float("Einsum"),
    curve("Elu"),
    compared("Equal"),
    curve("Erf"),
    curve("Exp"),
    any("Expand"),
    any("EyeLike"),
    any("Flatten"),
    curve("Floor"),
    by(float("GRU"), rule::gru, "with linear_before_reset"),
    any("Gather"),
    any("GatherElements"),
    any("GatherND"),
    curve("Gelu"),
    by(float("Gemm"), rule::gemm, ""),
    float("GlobalAveragePool"),
    float("GlobalMaxPool"),
    compared("Greater"),
    compared("GreaterOrEqual"),
    by(float("GridSample"), rule::grid_sample, "two dimensions, bilinear, padding with zeros"),
    curve("HardSigmoid"),
    curve("HardSwish"),
    curve_by("Hardmax", decompose::hardmax),
    same(any("Identity")),
    any("If"),
    curve("InstanceNormalization"),
    other(curve_by("IsInf", decompose::is_inf)),
    other(curve("IsNaN")),
    curve_by("LRN", decompose::lrn),
    float("LSTM"),
    same(by(float("LayerNormalization"), decompose::layer_normalization, "")),
    curve("LeakyRelu"),
    compared("Less"),
    compared("LessOrEqual"),
    curve("Log"),
    curve_by("LogSoftmax", decompose::softmax),
    any("Loop"),
    curve("LpNormalization"),
    by(float("MatMul"), rule::matrix_product, ""),
    other(by(operator("MatMulInteger", OperandType::Eight, Operands::First), rule::matrix_product_of_integers, "")),
    numbers("Max"),
    by(operator("MaxPool", OperandType::Moved, Operands::First), rule::pool, "one or two dimensions, no indices"),
    float("Mean"),
    numbers("Min"),
    curve_by("Mish", decompose::mish),
    numbers("Mod"),
    by(numbers("Mul"), rule::broadcast, "before version 7 no broadcast along an axis"),
    same(number("Neg")),
    other(number("NonZero")),
    same(any("Not")),
    by(any("OneHot"), rule::one_hot, ""),
    compared("Or"),
    curve_by("PRelu", rule::prelu),
    by(any("Pad"), rule::pad, ""),
    by(number("Pow"), rule::pow, "no integer to a power of FP32"),
    other(by(float("QuantizeLinear"), decompose::quantize, "to INT8 and UINT8, no blocks")),
    curve("RMSNormalization"),
    by(any("RandomNormal"), rule::random, "no seed"),
    by(any("RandomNormalLike"), rule::random, "no seed"),
    by(any("RandomUniform"), rule::random, "no seed"),
    by(any("RandomUniformLike"), rule::random, "no seed"),
    numbers("Range"),
    curve("Reciprocal"),
    number("ReduceL1"),
    float("ReduceL2"),
    float("ReduceLogSum"),
    float("ReduceLogSumExp"),
    number("ReduceMax"),
    float("ReduceMean"),
    number("ReduceMin"),
    number("ReduceProd"),
    number("ReduceSum"),
    number("ReduceSumSquare"),
    curve("Relu"),
    any("Reshape"),
    since(11, by(float("Resize"), rule::resize, "nearest and linear")),
    same(any("ReverseSequence")),
    curve("RotaryEmbedding"),
    curve("Round"),
    same(any("Scatter")),
    same(any("ScatterElements")),
    same(any("ScatterND")),
    curve_by("Selu", decompose::selu),
    any("SequenceAt"),
    any("SequenceConstruct"),
    any("SequenceEmpty"),
    by(any("SequenceErase"), rule::sequence_position, "no position from the end"),
    by(any("SequenceInsert"), rule::sequence_position, "no position from the end"),
    any("SequenceLength"),
    other(any("Shape")),
    curve_by("Shrink", decompose::shrink),
    curve("Sigmoid"),
    same(by(number("Sign"), decompose::sign, "")),
    curve("SimplifiedLayerNormalization"),
    curve("Sin"),
    curve("Sinh"),
    other(any("Size")),
    any("Slice"),
    curve_by("Softmax", decompose::softmax),
    curve("Softplus"),
    curve("Softsign"),
    any("Split"),
    any("SplitToSequence"),
    curve("Sqrt"),
    by(any("Squeeze"), rule::axes, ""),
    by(numbers("Sub"), rule::broadcast, "before version 7 no broadcast along an axis"),
    numbers("Sum"),
    curve("Swish"),
    curve("Tan"),
    curve("Tanh"),
    curve_by("ThresholdedRelu", decompose::thresholded_relu),
    since(6, any("Tile")),
    number("TopK"),
    any("Transpose"),
    same(any("Trilu")),
    by(any("Unsqueeze"), rule::axes, ""),
    float("Upsample"),
    operator("Where", OperandType::Number, Operands::Rest),
    compared("Xor"),
    curve("com.microsoft/BiasGelu"),
    curve("com.microsoft/FastGelu"),
    curve("com.microsoft/Gelu"),
    curve("com.microsoft/QuickGelu"),
    curve("com.microsoft/SkipLayerNormalization"),
    curve("com.microsoft/SkipSimplifiedLayerNormalization"),
];

/// A curve with a rule.
const fn curve_by(name: &'static str, rule: Rule) -> Operator {
    by(curve(name), rule, "")
}
