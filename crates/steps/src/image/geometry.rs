//! Sizes: the part of an image that is kept, its size, and its place in the result. Each rule is that of a
//! public library, to the rounding.

use base::error::Error;

use crate::image::opencv::{self, OpencvFilter};
use crate::image::pillow::{self, PillowFilter};
use crate::image::pixels::{Pixels, Window, cropped};
use crate::limits::{IMAGE_PIXELS_MAX, IMAGE_SIDE_MAX};

/// From the size of an image to that of the result.
#[derive(Clone, Debug, PartialEq)]
pub struct Geometry {
    /// The rule for the size.
    pub resize: Resize,
    /// A part from the middle of the resized image.
    pub crop: Option<Crop>,
    /// The library and its filter.
    pub filter: ResizeFilter,
}

/// A rule for the size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resize {
    /// This size, whatever the sides were to each other.
    Exact(Size),
    /// Both sides by one scale, to fit into a canvas.
    Letterbox(Letterbox),
    /// Both sides by one scale to a bound, and then each to a multiple, as PaddleOCR's detectors need it.
    Multiple(SideMultiple),
    /// The size of the file.
    Never,
    /// Both sides by one scale, so that the shorter one has this many pixels, as torchvision and transformers
    /// round it.
    Shortest(usize),
    /// Likewise, but the longer one has at most the second count, as transformers' DETR rounds it.
    ShortestWithin(usize, usize),
}

/// Sides that are multiples of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SideMultiple {
    /// The bound.
    pub bound: usize,
    /// The use of the bound.
    pub kind: SideBound,
    /// The number.
    pub multiple: usize,
}

/// The use of a bound of sides, `limit_type` of PaddleOCR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideBound {
    /// The longer side is at most the bound.
    Longest,
    /// The longer side is the bound.
    LongestExact,
    /// The shorter side is at least the bound.
    Shortest,
}

/// A fit into a canvas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Letterbox {
    /// The canvas.
    pub canvas: Size,
    /// Sides are rounded, half to even; otherwise truncated.
    pub is_rounded: bool,
    /// The image is in the middle; otherwise in the upper left corner.
    pub is_centred: bool,
    /// Images that are smaller than the canvas grow.
    pub is_enlarged: bool,
    /// The value of all channels around the image.
    pub colour: u8,
}

/// A part from the middle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crop {
    /// Its size.
    pub size: Size,
    /// Half a pixel is rounded to even, as torchvision does; otherwise down.
    pub is_rounded: bool,
}

/// Sides in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// A library and its filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeFilter {
    /// Of OpenCV.
    Opencv(OpencvFilter),
    /// Of Pillow.
    Pillow(PillowFilter),
}

/// The places of one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImagePlan {
    /// The image is resized to this.
    pub resized: Size,
    /// This part of it is kept.
    pub window: Window,
    /// The size of the result.
    pub canvas: Size,
    /// The place of the part in the result.
    pub left: usize,
    /// Likewise.
    pub top: usize,
    /// Around the part.
    pub colour: u8,
    /// Pixels of the result for one of the image, for a letterbox; otherwise 1.
    pub ratio: f64,
}

impl Geometry {
    /// The places of an image of a size.
    ///
    /// # Errors
    /// If the resized image is too large or has no pixels, or is smaller than the part.
    pub fn plan(&self, from: Size) -> Result<ImagePlan, Error> {
        let (resized, ratio) = match self.resize {
            Resize::Exact(size) => (size, 1.0),
            Resize::Letterbox(letterbox) => letterbox.fitted(from),
            Resize::Multiple(multiple) => (multiple.of(from), 1.0),
            Resize::Never => (from, 1.0),
            Resize::Shortest(edge) => (shortest(from, edge), 1.0),
            Resize::ShortestWithin(shortest, longest) => (shortest_within(from, shortest, longest), 1.0),
        };
        check_resized(from, resized)?;
        let mut plan = ImagePlan {
            resized,
            window: Window::whole(resized.width, resized.height),
            canvas: resized,
            left: 0,
            top: 0,
            colour: 0,
            ratio,
        };
        if let Some(crop) = self.crop {
            plan.window = crop.window(resized)?;
            plan.canvas = crop.size;
        }
        if let Resize::Letterbox(letterbox) = self.resize {
            plan.canvas = letterbox.canvas;
            plan.colour = letterbox.colour;
            if letterbox.is_centred {
                plan.left = half_padding(letterbox.canvas.width, resized.width);
                plan.top = half_padding(letterbox.canvas.height, resized.height);
            }
        }
        Ok(plan)
    }

    /// Resizes an image, and returns the part that is kept.
    pub fn applied(&self, source: Pixels, plan: &ImagePlan) -> Pixels {
        let Size { width, height } = plan.resized;
        let is_whole = plan.window == Window::whole(width, height);
        if is_whole && (width, height) == (source.width, source.height) {
            return source;
        }
        match self.filter {
            ResizeFilter::Pillow(filter) => pillow::resized(&source, width, height, plan.window, filter),
            ResizeFilter::Opencv(filter) => {
                let resized = opencv::resized(&source, width, height, filter);
                if is_whole { resized } else { cropped(&resized, plan.window) }
            }
        }
    }
}

impl SideMultiple {
    /// PaddleOCR's `DetResizeForTest`.
    fn of(&self, from: Size) -> Size {
        let (least, most) = (from.width.min(from.height), from.width.max(from.height));
        let side = match self.kind {
            SideBound::Longest if most > self.bound => Some(most),
            SideBound::LongestExact => Some(most),
            SideBound::Shortest if least < self.bound => Some(least),
            SideBound::Longest | SideBound::Shortest => None,
        };
        let ratio = side.map_or(1.0, |side| self.bound as f64 / side as f64);
        let multiple = |side: usize| {
            let scaled = (side as f64 * ratio).floor();
            ((scaled / self.multiple as f64).round_ties_even() as usize).max(1).saturating_mul(self.multiple)
        };
        Size { width: multiple(from.width), height: multiple(from.height) }
    }
}

impl Letterbox {
    fn fitted(&self, from: Size) -> (Size, f64) {
        let Size { width, height } = self.canvas;
        let mut ratio = (height as f64 / from.height as f64).min(width as f64 / from.width as f64);
        if !self.is_enlarged {
            ratio = ratio.min(1.0);
        }
        let side = |side: usize| {
            let side = side as f64 * ratio;
            (if self.is_rounded { side.round_ties_even() } else { side }) as usize
        };
        (Size { width: side(from.width), height: side(from.height) }, ratio)
    }
}

impl Crop {
    fn window(&self, from: Size) -> Result<Window, Error> {
        let Size { width, height } = self.size;
        if width > from.width || height > from.height {
            return Err(Error::invalid(format!(
                "a part of {width} × {height} pixels does not fit into the resized image of {} × {}",
                from.width, from.height
            )));
        }
        let half = |rest: usize| {
            if self.is_rounded { (rest as f64 / 2.0).round_ties_even() as usize } else { rest / 2 }
        };
        Ok(Window { left: half(from.width - width), top: half(from.height - height), width, height })
    }
}

/// torchvision's and transformers' `size, int(size * long / short)`.
fn shortest(from: Size, edge: usize) -> Size {
    let other = |long: usize, short: usize| (edge as f64 * long as f64 / short as f64) as usize;
    if from.width <= from.height {
        Size { width: edge, height: other(from.height, from.width) }
    } else {
        Size { width: other(from.width, from.height), height: edge }
    }
}

/// transformers' `get_size_with_aspect_ratio`.
fn shortest_within(from: Size, edge: usize, longest: usize) -> Size {
    let (least, most) = (from.width.min(from.height) as f64, from.width.max(from.height) as f64);
    let raw = (most / least * edge as f64 > longest as f64).then(|| longest as f64 * least / most);
    let edge = raw.map_or(edge, |raw| raw.round_ties_even() as usize);
    let exact = raw.unwrap_or(edge as f64);
    if from.width.min(from.height) == edge {
        from
    } else if from.width < from.height {
        Size { width: edge, height: (exact * from.height as f64 / from.width as f64) as usize }
    } else {
        Size { width: (exact * from.width as f64 / from.height as f64) as usize, height: edge }
    }
}

/// The padding before the image, if it is in the middle: YOLO's `round(d - 0.1)`.
fn half_padding(canvas: usize, side: usize) -> usize {
    (canvas.saturating_sub(side) as f64 / 2.0 - 0.1).round_ties_even().max(0.0) as usize
}

fn check_resized(from: Size, to: Size) -> Result<(), Error> {
    let is_large = to.width > IMAGE_SIDE_MAX || to.height > IMAGE_SIDE_MAX || to.width * to.height > IMAGE_PIXELS_MAX;
    if to.width == 0 || to.height == 0 || is_large {
        return Err(Error::invalid(format!(
            "an image of {} × {} pixels would be resized to {} × {}, but 1 to {IMAGE_PIXELS_MAX} pixels are \
             allowed, and {IMAGE_SIDE_MAX} on a side",
            from.width, from.height, to.width, to.height
        )));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn size(width: usize, height: usize) -> Size {
        Size { width, height }
    }

    fn plan(resize: Resize, crop: Option<Crop>, from: Size) -> Result<ImagePlan, String> {
        let geometry = Geometry { resize, crop, filter: ResizeFilter::Pillow(PillowFilter::Bilinear) };
        geometry.plan(from).map_err(|error| error.text().to_owned())
    }

    #[test]
    fn sides_are_rounded_as_in_python() {
        let check = |resize, from, want| assert_eq!(plan(resize, None, from).unwrap().resized, want, "{resize:?}");
        check(Resize::Shortest(224), size(640, 480), size(298, 224));
        check(Resize::Shortest(224), size(480, 641), size(224, 299));
        check(Resize::ShortestWithin(800, 1333), size(640, 480), size(1066, 800));
        let multiple = |bound, kind| Resize::Multiple(SideMultiple { bound, kind, multiple: 32 });
        check(multiple(960, SideBound::Longest), size(1920, 1000), size(960, 512));
        check(multiple(960, SideBound::Longest), size(100, 9), size(96, 32));
        check(multiple(736, SideBound::Shortest), size(640, 480), size(992, 736));
        check(multiple(960, SideBound::LongestExact), size(100, 80), size(960, 768));
        check(Resize::ShortestWithin(800, 1333), size(2000, 500), size(1333, 333));
        check(Resize::ShortestWithin(480, 1333), size(640, 480), size(640, 480));
    }

    #[test]
    fn a_letterbox_says_where_the_image_is() {
        let letterbox =
            Letterbox { canvas: size(640, 640), is_rounded: true, is_centred: true, is_enlarged: true, colour: 114 };
        let places = |letterbox, from| {
            let plan = plan(Resize::Letterbox(letterbox), None, from).unwrap();
            (plan.resized, plan.left, plan.top)
        };
        assert_eq!(places(letterbox, size(1280, 721)), (size(640, 360), 0, 140));
        assert_eq!(places(letterbox, size(333, 500)), (size(426, 640), 107, 0));
        assert_eq!(places(Letterbox { is_rounded: false, ..letterbox }, size(333, 501)), (size(425, 640), 107, 0));
        assert_eq!(places(Letterbox { is_enlarged: false, ..letterbox }, size(99, 100)), (size(99, 100), 270, 270));
        assert_eq!(places(Letterbox { is_centred: false, ..letterbox }, size(320, 100)), (size(640, 200), 0, 0));
    }

    #[test]
    fn a_crop_is_in_the_middle() {
        let left = |is_rounded, width| {
            let crop = Crop { size: size(224, 224), is_rounded };
            plan(Resize::Never, Some(crop), size(width, 224)).unwrap().window.left
        };
        assert_eq!([left(true, 227), left(true, 229), left(false, 227), left(false, 229)], [2, 2, 1, 2]);
    }

    #[test]
    fn sizes_out_of_bounds_are_refused() {
        let crop = Some(Crop { size: size(224, 225), is_rounded: true });
        let error = plan(Resize::Never, crop, size(224, 224)).unwrap_err();
        assert_eq!(error, "a part of 224 × 225 pixels does not fit into the resized image of 224 × 224");
        let error = plan(Resize::Shortest(224), None, size(1, 300)).unwrap_err();
        let want = "an image of 1 × 300 pixels would be resized to 224 × 67200, but 1 to 67108864 pixels are \
                    allowed, and 32768 on a side";
        assert_eq!(error, want);
    }
}
