//! The known facts about a value before anything runs.

use base::limits::RANK_MAX;
use model::onnx::message::{TensorMessage, element};

/// The known facts about one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GraphValue {
    /// ONNX's element type; 0 if it is not known.
    pub(super) element: i32,
    /// Its dimensions, -1 for any size; `None` if not even their number is known.
    pub(super) dims: Option<Vec<i64>>,
    /// The least number that it may hold, if they are integers.
    pub(super) low: i64,
    /// The greatest.
    pub(super) high: i64,
    /// True if it depends on the numbers of a request, and not only on shapes and constants.
    pub(super) is_requested: bool,
    /// True if each run must check that it is within 32 bits.
    pub(super) is_guarded: bool,
    /// Its elements, if it is a small constant of whole numbers.
    pub(super) integers: Option<Vec<i64>>,
}

/// Elements of a constant that are kept: axes, shapes, splits.
const INTEGERS_KEPT: usize = 64;

impl Default for GraphValue {
    fn default() -> Self {
        let (low, high) = (i32::MIN.into(), i32::MAX.into());
        Self { element: 0, dims: None, low, high, is_requested: false, is_guarded: false, integers: None }
    }
}

impl GraphValue {
    /// A value that the file declares.
    pub(super) fn declared(element: i32, dims: Option<Vec<i64>>) -> Self {
        // Shapes of more dimensions than the engine takes are not copied from value to value.
        let dims = dims.filter(|dims| dims.len() <= RANK_MAX);
        let value = Self { element, dims, ..Self::default() };
        match element {
            element::BOOL => value.within(0, 1),
            element::UINT8 => value.within(0, 255),
            element::INT8 => value.within(-128, 127),
            _ => value,
        }
    }

    /// A constant, and its elements if they are INT64.
    pub(super) fn constant(tensor: &TensorMessage, longs: &[i64]) -> Self {
        let mut value = Self::declared(tensor.data_type, Some(tensor.dims.clone()));
        if tensor.data_type == element::INT64 {
            value = value.within(longs.iter().copied().min().unwrap_or(0), longs.iter().copied().max().unwrap_or(0));
            value.integers = (longs.len() <= INTEGERS_KEPT).then(|| longs.to_vec());
        }
        if tensor.data_type == element::FLOAT {
            let floats = tensor.floats(INTEGERS_KEPT);
            #[expect(clippy::cast_possible_truncation, reason = "what is not whole after it is left out")]
            let whole: Vec<i64> = floats.iter().map(|value| *value as i64).collect();
            #[expect(clippy::cast_precision_loss, reason = "compared with what it was made of")]
            let is_whole = whole.iter().zip(&floats).all(|(whole, value)| *whole as f32 == *value);
            value.integers = (is_whole && !whole.is_empty()).then_some(whole);
        }
        value
    }

    /// The same within bounds.
    pub(super) fn within(self, low: i64, high: i64) -> Self {
        Self { low, high, ..self }
    }

    /// Returns true if it may hold integers beyond 32 bits.
    pub(super) fn is_beyond(&self) -> bool {
        self.element == element::INT64 && (self.low < i32::MIN.into() || self.high > i32::MAX.into())
    }
}
