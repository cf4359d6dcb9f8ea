//! The orientation of an EXIF block (CIPA DC-008, tag 0x0112), and pixels turned by it.

use crate::image::pixels::Pixels;

/// Transformations that bring pixels upright: first a transposition, then the mirrors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orientation {
    /// Rows become columns.
    pub is_transposed: bool,
    /// Columns from right to left.
    pub is_mirrored: bool,
    /// Rows from bottom to top.
    pub is_flipped: bool,
}

impl Orientation {
    /// The orientation of a value of the tag, 1 to 8; that of 1 for any other.
    pub const fn from_tag(tag: u16) -> Self {
        let (is_transposed, is_mirrored, is_flipped) = match tag {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { is_transposed, is_mirrored, is_flipped }
    }
}

/// Reads the orientation from a TIFF block; that of 1 if it has none or is malformed.
pub fn tiff_orientation(tiff: &[u8]) -> Orientation {
    read_tag(tiff).map(Orientation::from_tag).unwrap_or_default()
}

fn read_tag(tiff: &[u8]) -> Option<u16> {
    let is_little = match tiff.first_chunk()? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = *tiff.get(at..)?.first_chunk()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let bytes = *tiff.get(4..)?.first_chunk()?;
    let start = if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) };
    let start = usize::try_from(start).ok()?;
    let count = usize::from(short(start)?);
    (0..count).map(|index| start + 2 + index * 12).find_map(|at| {
        let is_orientation = short(at)? == 0x0112 && short(at + 2)? == 3;
        if is_orientation { short(at + 8) } else { None }
    })
}

/// Returns the pixels upright.
pub fn oriented(pixels: Pixels, orientation: Orientation) -> Pixels {
    if orientation == Orientation::default() {
        return pixels;
    }
    let (width, height) = (pixels.width, pixels.height);
    let (new_width, new_height) = if orientation.is_transposed { (height, width) } else { (width, height) };
    pixels.mapped(new_width, new_height, |from, to| {
        for (row, places) in to.chunks_exact_mut(new_width.max(1)).enumerate() {
            let row = if orientation.is_flipped { new_height - 1 - row } else { row };
            for (column, place) in places.iter_mut().enumerate() {
                let column = if orientation.is_mirrored { new_width - 1 - column } else { column };
                let at = if orientation.is_transposed { column * width + row } else { row * width + column };
                *place = from.get(at).copied().unwrap_or(0);
            }
        }
    })
}
