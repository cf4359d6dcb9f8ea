//! Boxes that are upright, in the formats of public code.

/// The numbers of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxFormat {
    /// Centre, width, height.
    CentreSize,
    /// Left, top, right, bottom.
    Corners,
    /// Left, top, width, height.
    CornerSize,
    /// Top, left, bottom, right.
    RowsFirst,
}

impl BoxFormat {
    /// The format of this name in a `steps.json`.
    pub fn of(name: &str) -> Self {
        match name {
            "cxcywh" => Self::CentreSize,
            "xywh" => Self::CornerSize,
            "yxyx" => Self::RowsFirst,
            _ => Self::Corners,
        }
    }

    /// Converts a box to [`BoxFormat::Corners`] or [`BoxFormat::CornerSize`], in FP32 as public code does.
    pub fn to_corner(self, target: Self, [a, b, c, d]: [f32; 4]) -> [f32; 4] {
        match (self, target) {
            (Self::CentreSize, Self::CornerSize) => [a - c / 2.0, b - d / 2.0, c, d],
            (Self::CentreSize, _) => [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0],
            (Self::CornerSize, Self::Corners) => [a, b, a + c, b + d],
            (Self::Corners, Self::CornerSize) => [a, b, c - a, d - b],
            (Self::RowsFirst, Self::CornerSize) => [b, a, d - b, c - a],
            (Self::RowsFirst, _) => [b, a, d, c],
            (Self::CornerSize | Self::Corners, _) => [a, b, c, d],
        }
    }

    /// Converts a box of [`BoxFormat::Corners`] or [`BoxFormat::CornerSize`] to this format.
    pub fn of_corner(self, source: Self, [a, b, c, d]: [f32; 4]) -> [f32; 4] {
        let [x1, y1, x2, y2] = if source == Self::CornerSize { [a, b, a + c, b + d] } else { [a, b, c, d] };
        let [width, height] = if source == Self::CornerSize { [c, d] } else { [c - a, d - b] };
        match self {
            Self::CentreSize => [(x1 + x2) / 2.0, (y1 + y2) / 2.0, width, height],
            Self::CornerSize => [x1, y1, width, height],
            Self::Corners => [x1, y1, x2, y2],
            Self::RowsFirst => [y1, x1, y2, x2],
        }
    }
}
