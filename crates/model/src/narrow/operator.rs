//! Effects of operators on integers, by their names in ONNX and in OpenVINO's IR. The arithmetic of OpenVINO 2026.4 was
//! measured for each with numbers around 2^24 to 2^28.

use super::{COUNT_MAX, INT32_END, NumberType, Range};

/// The bounds of an operator's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounds {
    /// The size of its input's.
    Absolute,
    /// A constant's least and greatest.
    Constant(i64, i64),
    /// Its input's, as far as the type has them.
    Convert,
    /// `a - b`.
    Difference,
    /// Its first input's.
    First,
    /// All inputs'.
    Hull,
    /// `-a`.
    Negation,
    /// Sizes and positions in tensors.
    Position,
    /// `a * b`.
    Product,
    /// A sum of products.
    ProductSum,
    /// `a / b`.
    Quotient,
    /// `a % b`.
    Remainder,
    /// -1 to 1.
    Sign,
    /// `a + b`.
    Sum,
    /// A sum of elements.
    SumOfElements,
    /// The first result is the first input's elements, the second their positions.
    Top,
    /// Not known.
    Unknown,
    /// Those of the second and third input.
    Where,
}

/// An operator's effect on integers.
#[derive(Clone, Copy, Debug)]
pub struct IntegerOperator {
    /// The bounds of its results.
    pub bounds: Bounds,
    /// It computes integers in FP32.
    pub is_in_fp32: bool,
    /// Only its first input is computed with; others are shapes, places or ends.
    pub checks_first: bool,
    is_of_shapes: bool,
}

impl IntegerOperator {
    /// A constant with these bounds.
    pub const fn constant(low: i64, high: i64) -> Self {
        Self::exact(Bounds::Constant(low, high))
    }

    const fn exact(bounds: Bounds) -> Self {
        Self { bounds, is_in_fp32: false, checks_first: false, is_of_shapes: false }
    }

    const fn in_fp32(bounds: Bounds) -> Self {
        Self { bounds, is_in_fp32: true, checks_first: false, is_of_shapes: false }
    }

    /// Finds an operator of ONNX or of OpenVINO's IR; `adds` is whether its attributes have it add to what it moves.
    pub fn find(name: &str, adds: bool) -> Self {
        let exact = match name {
            "Shape" | "ShapeOf" | "Size" => return Self { is_of_shapes: true, ..Self::exact(Bounds::Position) },
            "ArgMax" | "ArgMin" | "NonZero" => Bounds::Position,
            "TopK" => Bounds::Top,
            "Broadcast" | "Dropout" | "Expand" | "Flatten" | "Gather" | "GatherElements" | "GatherND" | "Identity"
            | "Reshape" | "Result" | "Roll" | "Slice" | "Split" | "Squeeze" | "StridedSlice" | "Tile" | "Transpose"
            | "Unique" | "Unsqueeze" | "VariadicSplit" => Bounds::First,
            "Concat" | "Max" | "Maximum" | "Min" | "Minimum" | "Pad" | "Range" => Bounds::Hull,
            "ScatterElements" | "ScatterElementsUpdate" | "ScatterND" | "ScatterNDUpdate" | "ScatterUpdate"
                if !adds =>
            {
                Bounds::Hull
            }
            "Add" | "Sum" => Bounds::Sum,
            "Sub" | "Subtract" => Bounds::Difference,
            "Mul" | "Multiply" => Bounds::Product,
            "Neg" | "Negative" => Bounds::Negation,
            "Abs" => Bounds::Absolute,
            "Sign" => Bounds::Sign,
            "CumSum" => Bounds::SumOfElements,
            "Cast" | "CastLike" | "Convert" | "ConvertLike" => Bounds::Convert,
            _ => return Self::find_in_fp32(name),
        };
        Self::exact(exact)
    }

    fn find_in_fp32(name: &str) -> Self {
        match name {
            "Clamp" | "Clip" | "Relu" | "ReduceMax" | "ReduceMin" | "ReduceMean" | "ReverseSequence" | "Trilu" => {
                Self { checks_first: true, ..Self::in_fp32(Bounds::First) }
            }
            "ReduceSum" | "ReduceL1" => Self { checks_first: true, ..Self::in_fp32(Bounds::SumOfElements) },
            "Where" | "Select" => Self::in_fp32(Bounds::Where),
            "Div" | "Divide" => Self::in_fp32(Bounds::Quotient),
            "Mod" | "FloorMod" => Self::in_fp32(Bounds::Remainder),
            "MatMul" | "Gemm" => Self::in_fp32(Bounds::ProductSum),
            "OneHot" => Self { checks_first: true, ..Self::in_fp32(Bounds::Where) },
            _ => Self::in_fp32(Bounds::Unknown),
        }
    }

    /// Returns true if its results are about shapes, and not about a request's numbers.
    pub(super) const fn is_of_shapes(&self) -> bool {
        self.is_of_shapes
    }

    pub(super) const fn is_constant(&self) -> bool {
        matches!(self.bounds, Bounds::Constant(..))
    }

    /// Returns true if it computes with its inputs, and does not only move them.
    pub(super) const fn computes(&self) -> bool {
        let moves = matches!(
            self.bounds,
            Bounds::First | Bounds::Hull | Bounds::Top | Bounds::Position | Bounds::Convert | Bounds::Constant(..)
        );
        self.is_in_fp32 || !moves
    }

    /// The bounds of a result; `None` if they are not known.
    pub(super) fn bounds_of(
        &self,
        place: usize,
        element: NumberType,
        inputs: &[Option<(NumberType, Range)>],
    ) -> Option<(i64, i64)> {
        let of = |index: usize| {
            let found = inputs.get(index).copied().flatten();
            found.map_or((i32::MIN.into(), INT32_END), |(_, range)| (range.low, range.high))
        };
        let (a, b) = (of(0), of(1));
        let sum = |a: (i64, i64), b: (i64, i64)| (a.0.saturating_add(b.0), a.1.saturating_add(b.1));
        let size = |a: (i64, i64)| a.1.max(a.0.saturating_neg());
        Some(match self.bounds {
            _ if element == NumberType::BOOL => (0, 1),
            Bounds::Unknown => return None,
            Bounds::Absolute => (0, size(a)),
            Bounds::Constant(low, high) => (low, high),
            Bounds::Convert => {
                let from = inputs.first().copied().flatten().map(|(element, _)| element);
                match (from, element) {
                    (Some(NumberType::Integer(..)), _) => a,
                    // Beyond 32 bits a float has no such number there either.
                    (_, NumberType::Integer(low, high)) if high <= INT32_END => (low, high),
                    _ => return None,
                }
            }
            Bounds::Difference => sum(a, (b.1.saturating_neg(), b.0.saturating_neg())),
            Bounds::First => a,
            Bounds::Hull => hull(inputs),
            Bounds::Negation => (a.1.saturating_neg(), a.0.saturating_neg()),
            Bounds::Position => (0, COUNT_MAX),
            Bounds::Product => products(a, b),
            Bounds::ProductSum => products(products(a, b), (0, COUNT_MAX)),
            Bounds::Quotient => (size(a).saturating_neg(), size(a)),
            Bounds::Remainder => (size(b).saturating_neg(), size(b)),
            Bounds::Sign => (-1, 1),
            Bounds::Sum => inputs.iter().flatten().map(|(_, range)| (range.low, range.high)).fold((0, 0), sum),
            Bounds::SumOfElements => products((a.0.min(0), a.1.max(0)), (1, COUNT_MAX)),
            Bounds::Top => {
                if place == 0 {
                    a
                } else {
                    (0, COUNT_MAX)
                }
            }
            Bounds::Where => hull(inputs.get(1..).unwrap_or_default()),
        })
    }
}

fn products(a: (i64, i64), b: (i64, i64)) -> (i64, i64) {
    let all = [a.0, a.1].map(|x| [b.0, b.1].map(|y| x.saturating_mul(y)));
    let all = all.as_flattened();
    (all.iter().copied().min().unwrap_or_default(), all.iter().copied().max().unwrap_or_default())
}

fn hull(inputs: &[Option<(NumberType, Range)>]) -> (i64, i64) {
    let ranges = inputs.iter().flatten().map(|(_, range)| (range.low, range.high));
    ranges.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((i32::MIN.into(), INT32_END))
}
