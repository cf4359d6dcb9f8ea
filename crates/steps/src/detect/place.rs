//! Boxes from the coordinates of a model's input to those of the image.

use base::error::Error;
use base::tensor::Tensor;

use crate::boxes::BoxFormat;
use crate::original_size::original_sizes;
use crate::tensors::floats;

/// The way from the image to the model's input that boxes go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxMapping {
    /// Scaled by one ratio, with a border.
    Letterbox(Border),
    /// Boxes are those of the image.
    None,
    /// Each side scaled by its own ratio: `x * (image / input)`.
    Stretch,
    /// The same in two operations: `x / input * image`.
    StretchDivided,
    /// Coordinates from 0 to 1.
    Unit,
}

/// The border of a letterboxed image, where it is computed from the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// Half of what is left.
    Exact,
    /// To the right and below: the image begins at 0.
    None,
    /// Half of what is left, less 0.1, rounded to the nearest integer.
    Rounded,
}

/// Rounding of coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// As Python's `round`: halves to the even one.
    Nearest,
    /// Not at all.
    None,
    /// As Python's `int`: towards zero.
    Truncate,
}

/// The mapping of a step, with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Placing {
    /// The way.
    pub mapping: BoxMapping,
    /// Height and width of the model's input.
    pub input_size: [f64; 2],
    /// Keeps coordinates within the image.
    pub clips: bool,
    /// Rounds coordinates.
    pub rounding: Rounding,
}

/// The mapping of the boxes of one image: coordinates become `(x - shift) / divisor * factor`.
#[derive(Clone, Copy, Debug)]
pub struct BoxPlacement {
    shift: [f32; 2],
    divisor: [f32; 2],
    factor: [f32; 2],
    /// Width and height of the image, if boxes are clipped.
    bounds: Option<[f32; 2]>,
    rounding: Rounding,
}

/// The tensors that describe images, a row each.
pub struct Images<'a> {
    /// `ratio`.
    pub ratio: Option<&'a Tensor>,
    /// `pad`.
    pub pad: Option<&'a Tensor>,
    /// `original_size`.
    pub size: Option<&'a Tensor>,
}

/// The scale and the border of an image as a step reported them, each for x and y.
#[derive(Clone, Copy)]
struct GivenBorder {
    ratio: [f32; 2],
    pad: [f32; 2],
}

impl Placing {
    /// Returns the mapping of each image.
    ///
    /// # Errors
    /// If a tensor has another count of rows, or a size or ratio is not above 0: the text names the port.
    pub fn placements(&self, images: &Images<'_>, rows: usize) -> Result<Vec<BoxPlacement>, Error> {
        let sizes = images.size.map(|tensor| original_sizes(tensor, rows)).transpose()?;
        let given = match (images.ratio, images.pad) {
            (Some(ratio), Some(pad)) => Some((pairs("ratio", ratio, rows, true)?, pairs("pad", pad, rows, false)?)),
            _ => None,
        };
        let mut placements = vec![self.unchanged(); rows];
        for (row, placement) in placements.iter_mut().enumerate() {
            let size = sizes.as_ref().and_then(|sizes| sizes.get(row)).map(|size| size.map(|side| side as f64));
            let given = given
                .as_ref()
                .and_then(|(ratios, pads)| Some(GivenBorder { ratio: *ratios.get(row)?, pad: *pads.get(row)? }));
            self.place(placement, size, given);
        }
        Ok(placements)
    }

    fn unchanged(&self) -> BoxPlacement {
        BoxPlacement { shift: [0.0; 2], divisor: [1.0; 2], factor: [1.0; 2], bounds: None, rounding: self.rounding }
    }

    /// `size` is height and width.
    #[expect(clippy::cast_possible_truncation, reason = "numpy applies a Python float to an FP32 array in FP32")]
    fn place(&self, placement: &mut BoxPlacement, size: Option<[f64; 2]>, given: Option<GivenBorder>) {
        let [input_height, input_width] = self.input_size;
        if let Some([height, width]) = size {
            placement.bounds = self.clips.then_some([width as f32, height as f32]);
            match self.mapping {
                BoxMapping::Letterbox(border) => {
                    let gain = (input_height / height).min(input_width / width);
                    let half = |input: f64, image: f64| match border {
                        Border::Exact => (input - image * gain) / 2.0,
                        Border::None => 0.0,
                        // Python's `round` gives an integer, which has no -0.
                        Border::Rounded => ((input - image * gain) / 2.0 - 0.1).round_ties_even() + 0.0,
                    };
                    placement.shift = [half(input_width, width) as f32, half(input_height, height) as f32];
                    placement.divisor = [gain as f32; 2];
                }
                BoxMapping::Stretch => {
                    placement.factor = [(width / input_width) as f32, (height / input_height) as f32]
                }
                BoxMapping::StretchDivided => {
                    placement.divisor = [input_width as f32, input_height as f32];
                    placement.factor = [width as f32, height as f32];
                }
                BoxMapping::Unit => placement.factor = [width as f32, height as f32],
                BoxMapping::None => {}
            }
        }
        if let (BoxMapping::Letterbox(_), Some(GivenBorder { ratio, pad })) = (self.mapping, given) {
            (placement.divisor, placement.shift) = (ratio, pad);
        }
    }
}

impl BoxPlacement {
    /// Maps a box. Its size, if the format has one, has no border.
    pub fn apply(&self, format: BoxFormat, corners: [f32; 4]) -> [f32; 4] {
        let [x_shift, y_shift] = self.shift;
        let [x_end, y_end] = if format == BoxFormat::Corners { self.shift } else { [0.0; 2] };
        let [x_divisor, y_divisor] = self.divisor;
        let [x_factor, y_factor] = self.factor;
        let [a, b, c, d] = corners;
        let mut placed = [
            (a - x_shift) / x_divisor * x_factor,
            (b - y_shift) / y_divisor * y_factor,
            (c - x_end) / x_divisor * x_factor,
            (d - y_end) / y_divisor * y_factor,
        ];
        if let Some([width, height]) = self.bounds {
            let clip = |value: f32, most: f32| {
                let value = if value < 0.0 { 0.0 } else { value };
                if value > most { most } else { value }
            };
            let [a, b, c, d] = placed;
            placed = [clip(a, width), clip(b, height), clip(c, width), clip(d, height)];
        }
        match self.rounding {
            Rounding::None => placed,
            // Adding 0 turns -0 into 0, as an integer is.
            Rounding::Nearest => placed.map(|value| value.round_ties_even() + 0.0),
            Rounding::Truncate => placed.map(|value| value.trunc() + 0.0),
        }
    }
}

/// Two numbers for each image, x and y; or one for both if `is_one_enough`.
fn pairs(port: &str, tensor: &Tensor, rows: usize, is_one_enough: bool) -> Result<Vec<[f32; 2]>, Error> {
    let values = floats(port, tensor)?;
    let (pairs, rest) = values.as_chunks::<2>();
    let is_one = is_one_enough && values.len() == rows;
    let has_rows = is_one || (pairs.len() == rows && rest.is_empty());
    let pairs = if is_one { values.iter().map(|value| [*value; 2]).collect() } else { pairs.to_vec() };
    if !has_rows || !tensor.has_its_size() {
        return Err(wrong_rows(port, rows, if is_one_enough { "1 or 2" } else { "2" }, tensor));
    }
    if let Some(pair) = pairs.iter().find(|pair| is_one_enough && !pair.iter().all(|ratio| *ratio > 0.0)) {
        return Err(Error::invalid(format!("'{port}' must be above 0, but one is {pair:?}")));
    }
    Ok(pairs)
}

fn wrong_rows(port: &str, rows: usize, numbers: &str, tensor: &Tensor) -> Error {
    let shape = &tensor.shape[..];
    Error::invalid(format!(
        "'{port}' must have {numbers} numbers for each of {rows} images, but its shape is {shape:?}"
    ))
}
