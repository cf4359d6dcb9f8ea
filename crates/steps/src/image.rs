//! `image`: files or pixels to tensors of a model.

use base::error::Error;

use crate::limits::{IMAGE_PIXELS_MAX, IMAGE_SIDE_MAX};

pub mod file;
pub mod jpeg;
pub mod opencv;
pub mod pillow;
pub mod pixels;
mod vector;

/// Refuses an image of 0 pixels or too many, by the sides in its header.
pub(crate) fn check_size(format: &str, width: usize, height: usize) -> Result<(), Error> {
    if width == 0 || height == 0 {
        return Err(Error::invalid(format!("{format}: the image has {width} × {height} pixels")));
    }
    if width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX || width.saturating_mul(height) > IMAGE_PIXELS_MAX {
        return Err(Error::invalid(format!(
            "{format}: the image has {width} × {height} pixels, but at most {IMAGE_PIXELS_MAX} are allowed, and {IMAGE_SIDE_MAX} on a side"
        )));
    }
    Ok(())
}
