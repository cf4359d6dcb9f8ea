//! `grid_boxes`: the raw heads of detectors without anchors to boxes. Each cell of some grids has numbers that are relative to its
//! place.

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{CLASSES_MAX, GRID_BINS_MAX, GRIDS_MAX, TENSOR_SIZE_MAX};
use crate::tensors::{floats, of_numbers, rows_and, trailing};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "grid_boxes",
    about: "Turns the raw heads of a detector without anchors into boxes, for the layouts `yolov8_rows` and `yolov5` of \
            `detect`: a cell of a grid has numbers that are relative to its place. A grid has `input_size` / stride rows and \
            columns, rounded up; grids follow each other in the order of `strides`, their cells row by row. Heads in several \
            tensors are joined before by `concat`, with axis -2. Within 1e-5 of the input's size.",
    inputs: &[StepPort {
        name: "cells",
        about: "Numbers [.., cells, n]: those of the box, and behind them any others, such as scores.",
        is_optional: false,
    }],
    outputs: &[StepPort {
        name: "boxes",
        about: "FP32 [.., cells, m]: the four numbers of a box in pixels of the model's input, and the others as they are.",
        is_optional: false,
    }],
    fields: &[
        Field {
            name: "form",
            kind: FieldKind::Choice(&["distribution", "distances", "offsets"]),
            default: FieldDefault::Required,
            about: "`distribution`: for each of left, top, right and bottom `bins` numbers, whose softmax weighs the distances \
                    0, 1, 2, … in strides: PicoDet, NanoDet, GFL. `distances`: four distances in strides: FCOS, SCRFD. \
                    Both make two corners. `offsets`: `(x + column) * stride`, `(y + row) * stride`, `exp(w) * stride`, \
                    `exp(h) * stride`, which are centre and size: YOLOX.",
        },
        Field {
            name: "strides",
            kind: FieldKind::Integers { count: GRIDS_MAX, least: 1, most: 1 << 16 },
            default: FieldDefault::Required,
            about: "Pixels of the model's input from one cell to the next, of each grid: `[8, 16, 32]`.",
        },
        Field {
            name: "input_size",
            kind: FieldKind::Integers { count: 2, least: 1, most: 1 << 24 },
            default: FieldDefault::Required,
            about: "Height and width of the model's input.",
        },
        Field {
            name: "bins",
            kind: FieldKind::Integer(2, GRID_BINS_MAX as i64),
            default: FieldDefault::Json("8"),
            about: "With `distribution`: numbers of each side; `reg_max` + 1.",
        },
        Field {
            name: "centre",
            kind: FieldKind::Number(0.0, 1.0),
            default: FieldDefault::Json("0.5"),
            about: "The point of a cell that distances are from, in strides: 0.5 for its middle, 0 for its upper left corner.",
        },
    ],
    is_short: false,
    build: |fields| Ok(Box::new(GridBoxes::build(fields)?)),
};

/// A step.
struct GridBoxes {
    form: BoxForm,
    /// The stride of each grid, its rows and its columns.
    grids: Vec<Grid>,
    /// The point of a cell, in strides.
    centre: f64,
}

/// The numbers of a box in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BoxForm {
    Distances,
    /// With this many numbers for each side.
    Distribution(usize),
    Offsets,
}

/// A grid over the model's input.
#[derive(Clone, Copy, Debug)]
struct Grid {
    stride: usize,
    rows: usize,
    columns: usize,
}

/// A cell of a grid.
#[derive(Clone, Copy)]
struct Cell {
    row: f64,
    column: f64,
    stride: f64,
}

impl BoxForm {
    /// Numbers of a box.
    const fn width(self) -> usize {
        match self {
            Self::Distances | Self::Offsets => 4,
            Self::Distribution(bins) => bins * 4,
        }
    }
}

impl GridBoxes {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let form = match fields.text("form").as_str() {
            "distribution" => BoxForm::Distribution(fields.count("bins").unwrap_or(2)),
            "distances" => BoxForm::Distances,
            _ => BoxForm::Offsets,
        };
        let is_distribution = matches!(form, BoxForm::Distribution(_));
        if fields.is_given("bins") && !is_distribution {
            return Err(fields.error("bins", "needs \"form\": \"distribution\""));
        }
        if fields.is_given("centre") && form == BoxForm::Offsets {
            return Err(fields.error("centre", "has no meaning for \"form\": \"offsets\""));
        }
        let sides = |name: &str| -> Vec<usize> {
            fields.integers(name).into_iter().filter_map(|side| usize::try_from(side).ok()).collect()
        };
        let [height, width] = sides("input_size")[..] else {
            return Err(fields.error("input_size", "must be the height and width of the model's input"));
        };
        let strides = sides("strides");
        if strides.is_empty() {
            return Err(fields.error("strides", "must have a number"));
        }
        let grids = strides.into_iter().map(|stride| Grid {
            stride,
            rows: height.div_ceil(stride),
            columns: width.div_ceil(stride),
        });
        Ok(Self { form, grids: grids.collect(), centre: fields.number("centre").unwrap_or(0.0) })
    }

    fn cell_count(&self) -> usize {
        self.grids.iter().fold(0, |sum, grid| grid.rows.saturating_mul(grid.columns).saturating_add(sum))
    }

    /// All cells, in their order.
    fn cells(&self) -> impl Iterator<Item = Cell> {
        #[expect(clippy::cast_precision_loss, reason = "sizes of images are small")]
        self.grids.iter().flat_map(|grid| {
            let stride = grid.stride as f64;
            (0..grid.rows).flat_map(move |row| {
                (0..grid.columns).map(move |column| Cell { row: row as f64, column: column as f64, stride })
            })
        })
    }

    /// The four numbers of a box.
    fn placed(&self, cell: Cell, numbers: &[f32]) -> [f64; 4] {
        let Cell { row, column, stride } = cell;
        let [x, y] = [column, row].map(|place| (place + self.centre) * stride);
        let corners = |[left, top, right, bottom]: [f64; 4]| {
            [x - left * stride, y - top * stride, x + right * stride, y + bottom * stride]
        };
        match (self.form, numbers) {
            (BoxForm::Distribution(bins), _) => {
                let mut distances = [0.0; 4];
                for (distance, weights) in distances.iter_mut().zip(numbers.chunks_exact(bins)) {
                    *distance = expected(weights);
                }
                corners(distances)
            }
            (BoxForm::Distances, [left, top, right, bottom, ..]) => {
                corners([left, top, right, bottom].map(|side| f64::from(*side)))
            }
            (BoxForm::Offsets, [x, y, width, height, ..]) => [
                (f64::from(*x) + column) * stride,
                (f64::from(*y) + row) * stride,
                f64::from(*width).exp() * stride,
                f64::from(*height).exp() * stride,
            ],
            _ => [f64::NAN; 4],
        }
    }
}

/// The mean of 0, 1, 2, … by the softmax of their weights.
fn expected(weights: &[f32]) -> f64 {
    let most = weights.iter().fold(f32::NEG_INFINITY, |most, weight| most.max(*weight));
    let (mut sum, mut total, mut place) = (0.0, 0.0, 0.0);
    for weight in weights {
        let power = (f64::from(*weight) - f64::from(most)).exp();
        sum += power;
        total += power * place;
        place += 1.0;
    }
    total / sum
}

impl Step for GridBoxes {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let (rows, [cells, width]) = trailing::<2>("cells", "[cells, numbers]", input)?;
        let (wanted, least) = (self.cell_count(), self.form.width());
        if cells != wanted || !(least..=CLASSES_MAX).contains(&width) {
            let shape = &input.shape[..];
            return Err(Error::invalid(format!(
                "'cells' must have {wanted} cells, as \"strides\" and \"input_size\" make them, and {least} to {CLASSES_MAX} numbers for \
                 each, but its shape is {shape:?}"
            )));
        }
        let out_width = width - least + 4;
        let size = rows.saturating_mul(cells).saturating_mul(out_width);
        if size.saturating_mul(size_of::<f32>()) > TENSOR_SIZE_MAX {
            return Err(Error::invalid(format!("'boxes' would become larger than {TENSOR_SIZE_MAX} bytes")));
        }
        let values = floats("cells", input)?;
        let mut numbers = Vec::with_capacity(size);
        for image in values.chunks_exact(cells.saturating_mul(width).max(1)) {
            for (cell, numbers_of_cell) in self.cells().zip(image.chunks_exact(width)) {
                let (own, others) = numbers_of_cell.split_at_checked(least).unwrap_or_default();
                #[expect(clippy::cast_possible_truncation, reason = "the output is FP32")]
                numbers.extend(self.placed(cell, own).map(|number| number as f32));
                numbers.extend_from_slice(others);
            }
        }
        Ok(vec![Some(Tensor { shape: rows_and(input, 1, &[out_width]), ..of_numbers(Datatype::Fp32, &[], numbers) })])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::of_floats;
    use crate::trial::{fault, run};

    fn boxes(cells: &Tensor, members: &str) -> Vec<f32> {
        let got = run("grid_boxes", &[("cells", cells)], &["boxes"], members).unwrap();
        floats("boxes", &got[0]).unwrap().into_owned()
    }

    #[test]
    fn cells_become_boxes_at_their_places() {
        // A grid of 1 × 2 cells, and one of a single cell that reaches beyond the input.
        let grids = r#""input_size": [8, 16], "strides": [8, 16]"#;
        let cells = of_floats(&[3, 5], [[1.0, 0.5, 0.25, 2.0, 9.0]; 3].concat());
        let want = [-4.0, 0.0, 6.0, 20.0, 9.0, 4.0, 0.0, 14.0, 20.0, 9.0, -8.0, 0.0, 12.0, 40.0, 9.0];
        assert_eq!(boxes(&cells, &format!(r#""form": "distances", {grids}"#)), want);
        let got = boxes(&cells, &format!(r#""form": "distances", "centre": 0, {grids}"#));
        assert_eq!(got[..5], [-8.0, -4.0, 2.0, 16.0, 9.0]);
        let got = boxes(&cells, &format!(r#""form": "offsets", {grids}"#));
        let want = [16.0, 4.0, 8.0 * 0.25_f64.exp() as f32, 8.0 * 2.0_f64.exp() as f32, 9.0];
        assert_eq!(got[5..10], want);
        // The middle of equal weights, and a weight that outweighs the others.
        let cells = of_floats(&[1, 1, 9], vec![0.0, 0.0, 0.0, 50.0, -50.0, 0.0, 3.0, 3.0, 7.0]);
        let got = boxes(&cells, r#""form": "distribution", "bins": 2, "input_size": [4, 4], "strides": [4]"#);
        assert_eq!(got, [0.0, -2.0, 6.0, 4.0, 7.0]);
    }

    #[test]
    fn numbers_that_do_not_fit_the_grids_are_refused() {
        let members = r#""form": "distances", "input_size": [8, 8], "strides": [4]"#;
        let check = |cells: &Tensor, members: &str, want: &str| {
            assert_eq!(fault("grid_boxes", &[("cells", cells)], &["boxes"], members), want);
        };
        let want = "'cells' must have 4 cells, as \"strides\" and \"input_size\" make them, and 4 to 16384 numbers for each, but its \
                    shape is ";
        check(&of_floats(&[5, 4], vec![0.0; 20]), members, &format!("{want}[5, 4]"));
        check(&of_floats(&[4, 3], vec![0.0; 12]), members, &format!("{want}[4, 3]"));
        let cell = of_floats(&[1, 4], vec![0.0; 4]);
        check(
            &cell,
            r#""form": "offsets", "input_size": [8], "strides": [8]"#,
            "step 1: line 1: \"input_size\": must be the height and width of the model's input",
        );
        check(
            &cell,
            r#""form": "offsets", "input_size": [8, 8], "strides": []"#,
            "step 1: line 1: \"strides\": must have a number",
        );
        check(
            &cell,
            r#""form": "offsets", "input_size": [8, 8], "strides": [8], "bins": 4"#,
            "step 1: line 1: \"bins\": needs \"form\": \"distribution\"",
        );
        check(
            &cell,
            r#""form": "offsets", "input_size": [8, 8], "strides": [8], "centre": 0"#,
            "step 1: line 1: \"centre\": has no meaning for \"form\": \"offsets\"",
        );
        let large = TENSOR_SIZE_MAX / 16 + 1;
        let wide = Tensor {
            datatype: Datatype::Uint8,
            shape: [large as i64, 1, 4].into_iter().collect(),
            contents: vec![0; large * 4].into(),
        };
        check(
            &wide,
            r#""form": "distances", "input_size": [8, 8], "strides": [8]"#,
            "'boxes' would become larger than 1073741824 bytes",
        );
    }
}
