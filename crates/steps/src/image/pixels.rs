//! Decoded pixels: rows from top to bottom, three bytes for each pixel.

/// Channels of a pixel.
pub const CHANNELS: usize = 3;

/// An image of three channels, without padding between its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels in a row.
    pub width: usize,
    /// ImageRows.
    pub height: usize,
    /// `height` × `width` × [`CHANNELS`] bytes.
    pub bytes: Vec<u8>,
}

impl Pixels {
    /// An image of one colour. The caller has checked the size.
    pub fn filled(width: usize, height: usize, colour: [u8; CHANNELS]) -> Self {
        let bytes =
            if colour == [0; CHANNELS] { vec![0; width * height * CHANNELS] } else { colour.repeat(width * height) };
        Self { width, height, bytes }
    }

    /// Bytes in a row.
    pub const fn stride(&self) -> usize {
        self.width * CHANNELS
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.stride().max(1))
    }

    /// One row; empty beyond the last one.
    pub fn row(&self, index: usize) -> &[u8] {
        let start = index.saturating_mul(self.stride());
        self.bytes.get(start..start.saturating_add(self.stride())).unwrap_or_default()
    }
}

/// A part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first column.
    pub left: usize,
    /// The first row.
    pub top: usize,
    /// Columns.
    pub width: usize,
    /// ImageRows.
    pub height: usize,
}

impl Window {
    /// The whole of an image.
    pub const fn whole(width: usize, height: usize) -> Self {
        Self { left: 0, top: 0, width, height }
    }
}

/// Copies a part of an image that lies within it.
pub fn cropped(source: &Pixels, window: Window) -> Pixels {
    let start = window.left * CHANNELS;
    let size = window.width * CHANNELS;
    let mut bytes = Vec::with_capacity(size * window.height);
    for row in source.rows().skip(window.top).take(window.height) {
        bytes.extend_from_slice(row.get(start..start + size).unwrap_or_default());
    }
    Pixels { width: window.width, height: window.height, bytes }
}
