//! The places of crops in their images.

use base::error::Error;
use base::tensor::Tensor;

use crate::boxes::BoxFormat;
use crate::crop::perspective::{PerspectiveMatrix, QuadCorners, matrix};
use crate::crop::settings::CropSettings;
use crate::image::geometry::Size;
use crate::image::pixels::{Pixels, Window};
use crate::limits::{CROP_PIXELS_MAX, CROPS_MAX, IMAGE_SIDE_MAX};
use crate::tensors::{floats, integers, trailing};

/// The boxes of all images.
pub struct BoxRows {
    boxes: CropBoxes,
    /// Places for boxes in each image.
    width: usize,
    /// The count of boxes of each image.
    counts: Vec<usize>,
}

enum CropBoxes {
    /// With four corners.
    Quads(Vec<QuadCorners>),
    /// Left, top, right, bottom.
    Upright(Vec<[f32; 4]>),
}

/// A part of an image.
pub enum CropRegion {
    /// With four corners.
    Quad {
        /// From the part to the image.
        matrix: PerspectiveMatrix,
        /// The size before it is turned.
        size: Size,
        /// It is turned to the left.
        is_turned: bool,
    },
    /// Upright.
    Window(Window),
}

impl CropRegion {
    /// The size of the crop.
    pub const fn size(&self) -> Size {
        match self {
            Self::Quad { size: Size { width, height }, is_turned: true, .. } => Size { width: *height, height: *width },
            Self::Quad { size, .. } => *size,
            Self::Window(window) => Size { width: window.width, height: window.height },
        }
    }
}

impl BoxRows {
    /// Reads the boxes of `rows` images.
    ///
    /// # Errors
    /// If a tensor has another shape or count of rows, or there are too many boxes: the text names the port.
    pub fn read(boxes: &Tensor, counts: Option<&Tensor>, rows: usize, format: BoxFormat) -> Result<Self, Error> {
        let wrong = || {
            let shape = &boxes.shape[..];
            Error::invalid(format!(
                "'boxes' must have the shape [{rows}, n, 4, 2] or [{rows}, n, 4], with at most {CROPS_MAX} boxes, but its \
                 shape is {shape:?}"
            ))
        };
        let is_quad = boxes.shape.ends_with(&[4, 2]) && boxes.shape.len() != 2;
        let (images, width) = if is_quad {
            let (images, [width, _, _]) = trailing::<3>("boxes", "[n, 4, 2]", boxes)?;
            (images, width)
        } else {
            let (images, [width, four]) = trailing::<2>("boxes", "[n, 4]", boxes)?;
            if four != 4 {
                return Err(wrong());
            }
            (images, width)
        };
        if images != rows || rows.saturating_mul(width) > CROPS_MAX {
            return Err(wrong());
        }
        let values = floats("boxes", boxes)?;
        let boxes = if is_quad {
            let pairs = values.as_chunks::<2>().0;
            CropBoxes::Quads(pairs.as_chunks::<4>().0.to_vec())
        } else {
            let upright = values.as_chunks::<4>().0.iter();
            CropBoxes::Upright(upright.map(|corners| format.to_corner(BoxFormat::Corners, *corners)).collect())
        };
        let counts = match counts {
            Some(counts) => counts_of(counts, rows, width)?,
            None => vec![width; rows],
        };
        Ok(Self { boxes, width, counts })
    }

    /// Returns true if an image has boxes.
    pub fn has(&self, image: usize) -> bool {
        !self.range(image).is_empty()
    }

    fn range(&self, image: usize) -> std::ops::Range<usize> {
        let start = image * self.width;
        start..start + self.counts.get(image).copied().unwrap_or(0)
    }
}

fn counts_of(counts: &Tensor, rows: usize, width: usize) -> Result<Vec<usize>, Error> {
    let values = integers("counts", counts)?;
    let sizes: Option<Vec<_>> =
        values.iter().map(|count| usize::try_from(*count).ok().filter(|count| *count <= width)).collect();
    let shape = &counts.shape[..];
    sizes.filter(|sizes| sizes.len() == rows && counts.has_its_size()).ok_or_else(|| {
        Error::invalid(format!(
            "'counts' must have a number from 0 to {width} for each of {rows} images, but its shape is {shape:?}"
        ))
    })
}

/// An image and its boxes.
pub struct CropPlace<'a> {
    /// The parameters.
    pub settings: &'a CropSettings,
    /// The row of the image.
    pub image: usize,
    /// Its size.
    pub size: Size,
}

impl CropPlace<'_> {
    /// The places of the boxes of the image.
    ///
    /// # Errors
    /// If a box has no pixel of the image, or none at all.
    pub fn regions(&self, boxes: &BoxRows) -> Result<Vec<CropRegion>, Error> {
        let range = boxes.range(self.image);
        let prefixed =
            |place: usize, error: Error| error.with_prefix(&format!("'boxes', box {place} of image {}: ", self.image));
        match &boxes.boxes {
            CropBoxes::Quads(quads) => {
                let quads = quads.get(range).unwrap_or_default().iter().enumerate();
                quads.map(|(place, corners)| self.quad(corners).map_err(|error| prefixed(place, error))).collect()
            }
            CropBoxes::Upright(upright) => {
                let upright = upright.get(range).unwrap_or_default().iter().enumerate();
                upright
                    .map(|(place, corners)| window(*corners, self.size).map_err(|error| prefixed(place, error)))
                    .collect()
            }
        }
    }

    /// The place of a box with four corners: `get_rotate_crop_image`.
    fn quad(&self, corners: &QuadCorners) -> Result<CropRegion, Error> {
        if !corners.iter().flatten().all(|side| side.abs() <= IMAGE_SIDE_MAX as f32 * 2.0) {
            return Err(Error::invalid(format!("a corner is further than {} from the image", IMAGE_SIDE_MAX * 2)));
        }
        let [upper_left, upper_right, lower_right, lower_left] = *corners;
        let width = distance(upper_left, upper_right).max(distance(lower_right, lower_left)) as usize;
        let height = distance(upper_left, lower_left).max(distance(upper_right, lower_right)) as usize;
        if width == 0 || height == 0 || width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX {
            return Err(Error::invalid(format!(
                "it has {width} × {height} pixels, but must have 1 to {IMAGE_SIDE_MAX} on a side"
            )));
        }
        let matrix = matrix(corners, width, height)?;
        let ratio = self.settings.turn_ratio;
        let is_turned = ratio > 0.0 && height as f64 / width as f64 >= ratio;
        Ok(CropRegion::Quad { matrix, size: Size { width, height }, is_turned })
    }
}

/// numpy's norm of a difference in FP32, whose sum of squares BLAS computes in FP64.
fn distance([x, y]: [f32; 2], [to_x, to_y]: [f32; 2]) -> f32 {
    let (dx, dy) = (x - to_x, y - to_y);
    ((f64::from(dx * dx) + f64::from(dy * dy)) as f32).sqrt()
}

/// The place of an upright box.
fn window(corners: [f32; 4], size: Size) -> Result<CropRegion, Error> {
    // Conversions keep within the range of the integer.
    let [left, top, right, bottom] = corners.map(|side| side.max(0.0) as usize);
    let (right, bottom) = (right.min(size.width), bottom.min(size.height));
    if left >= right || top >= bottom {
        let Size { width, height } = size;
        return Err(Error::invalid(format!("{corners:?} has no pixel of an image of {width} × {height}")));
    }
    Ok(CropRegion::Window(Window { left, top, width: right - left, height: bottom - top }))
}

/// Refuses crops with too many pixels together: each is computed by itself, however much they overlap.
///
/// # Errors
/// If there are too many.
pub fn check_pixels(mut sizes: impl Iterator<Item = Size>) -> Result<(), Error> {
    let total = sizes.try_fold(0_usize, |total, size| {
        Some(total.saturating_add(size.width * size.height)).filter(|total| *total <= CROP_PIXELS_MAX)
    });
    match total {
        Some(_) => Ok(()),
        None => Err(Error::invalid(format!("'boxes' has boxes with more than {CROP_PIXELS_MAX} pixels together"))),
    }
}

/// Turns an image by 90° to the left: `np.rot90`.
pub fn turned(source: &Pixels) -> Pixels {
    let (width, height) = (source.height, source.width);
    source.mapped(width, height, |from, to| {
        for (column, row) in (0..source.width).rev().zip(to.chunks_exact_mut(width.max(1))) {
            for (place, from) in row.iter_mut().zip(from.chunks_exact(source.width.max(1))) {
                *place = from.get(column).copied().unwrap_or(0);
            }
        }
    })
}
