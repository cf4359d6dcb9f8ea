//! A `preprocessor_config.json` of a hub folder, as the processors of transformers that work on numpy and
//! Pillow read it ("slow", without `Fast` in their name): ViT, CLIP, ConvNeXT (which ResNet has too) and
//! DETR. Their defaults are here, as files leave members out.

use wire::json::placed;
use wire::placed::{PlacedMember, PlacedValue};

use crate::image::geometry::{Crop, Geometry, Resize, ResizeFilter, Size};
use crate::image::normal::{Normal, PixelArithmetic};
use crate::image::pillow::PillowFilter;
use crate::image::pixels::CHANNELS;
use crate::limits::IMAGE_SIDE_MAX;

/// The work of a processor.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// Sizes.
    pub geometry: Geometry,
    /// Numbers.
    pub normal: Normal,
}

/// A kind of processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processor {
    Clip,
    ConvNext,
    Detr,
    Vit,
}

/// Reads a file; the error is a text.
///
/// # Errors
/// If it is malformed, or of a processor that is not known here.
pub fn read(text: &str) -> Result<Preset, String> {
    let document = placed::read(text).map_err(|error| error.text)?;
    let PlacedValue::Table(members) = &document.value else { return Err("it must be an object".to_owned()) };
    let config = PreprocessorConfig { members };
    let processor = config.processor()?;
    Ok(Preset { geometry: config.geometry(processor)?, normal: config.normal(processor)? })
}

struct PreprocessorConfig<'a> {
    members: &'a [PlacedMember],
}

impl PreprocessorConfig<'_> {
    fn processor(&self) -> Result<Processor, String> {
        let named = ["image_processor_type", "feature_extractor_type"].into_iter().find_map(|name| self.value(name));
        let Some(PlacedValue::String(name)) = named else {
            return Err("\"image_processor_type\" is missing".to_owned());
        };
        let bare =
            ["ImageProcessorFast", "ImageProcessor", "FeatureExtractor"].iter().find_map(|end| name.strip_suffix(end));
        match bare {
            Some("ViT") => Ok(Processor::Vit),
            Some("CLIP") => Ok(Processor::Clip),
            Some("ConvNext") => Ok(Processor::ConvNext),
            Some("Detr") => Ok(Processor::Detr),
            _ => Err(format!(
                "the processor \"{name}\" is not supported; known are those of ViT, CLIP, ConvNext and Detr"
            )),
        }
    }

    fn geometry(&self, processor: Processor) -> Result<Geometry, String> {
        let resize = if self.flag("do_resize", true)? { self.resize(processor)? } else { Resize::Never };
        let mut geometry = Geometry { resize, crop: None, filter: ResizeFilter::Pillow(self.filter(processor)?) };
        match (processor, geometry.resize) {
            (Processor::Clip, _) if self.flag("do_center_crop", true)? => {
                let size = self.size("crop_size")?.unwrap_or(GivenSize::Sides(Size { width: 224, height: 224 }));
                let size = match size {
                    GivenSize::Number(side) => Size { width: side, height: side },
                    GivenSize::Sides(size) => size,
                    _ => return Err("\"crop_size\" must be a number, or have height and width".to_owned()),
                };
                geometry.crop = Some(Crop { size, is_rounded: false });
            }
            (Processor::ConvNext, Resize::Shortest(edge)) if edge < 384 => {
                let part = self.number("crop_pct")?.unwrap_or(224.0 / 256.0);
                let whole = (edge as f64 / part) as usize;
                if part <= 0.0 || whole < edge || whole > IMAGE_SIDE_MAX {
                    return Err("\"crop_pct\" must be above 0 and at most 1".to_owned());
                }
                geometry.resize = Resize::Shortest(whole);
                geometry.crop = Some(Crop { size: Size { width: edge, height: edge }, is_rounded: false });
            }
            (Processor::ConvNext, Resize::Shortest(edge)) => {
                geometry.resize = Resize::Exact(Size { width: edge, height: edge });
            }
            _ => {}
        }
        Ok(geometry)
    }

    fn resize(&self, processor: Processor) -> Result<Resize, String> {
        let given = self.size("size")?.unwrap_or(match processor {
            Processor::Clip => GivenSize::Shortest(224),
            Processor::ConvNext => GivenSize::Shortest(384),
            Processor::Detr => GivenSize::ShortestWithin(800, 1333),
            Processor::Vit => GivenSize::Number(224),
        });
        match (processor, given) {
            (Processor::Vit, GivenSize::Number(side)) => Ok(Resize::Exact(Size { width: side, height: side })),
            (Processor::Vit | Processor::Clip | Processor::Detr, GivenSize::Sides(size)) => Ok(Resize::Exact(size)),
            (Processor::Clip | Processor::ConvNext, GivenSize::Number(edge) | GivenSize::Shortest(edge)) => {
                Ok(Resize::Shortest(edge))
            }
            (Processor::Detr, GivenSize::Number(edge)) => {
                let longest =
                    self.value("max_size").map_or(Some(1333), side).ok_or("\"max_size\" must be a number of pixels")?;
                Ok(Resize::ShortestWithin(edge, longest))
            }
            (Processor::Detr, GivenSize::ShortestWithin(edge, longest)) => Ok(Resize::ShortestWithin(edge, longest)),
            _ => Err("\"size\" does not have the members that this processor reads".to_owned()),
        }
    }

    fn filter(&self, processor: Processor) -> Result<PillowFilter, String> {
        let default = match processor {
            Processor::Clip | Processor::ConvNext => 3,
            Processor::Detr | Processor::Vit => 2,
        };
        match self.value("resample").map_or(Some(default), side) {
            Some(1) => Ok(PillowFilter::Lanczos),
            Some(2) => Ok(PillowFilter::Bilinear),
            Some(3) => Ok(PillowFilter::Bicubic),
            Some(4) => Ok(PillowFilter::Box),
            Some(5) => Ok(PillowFilter::Hamming),
            _ if matches!(self.value("resample"), Some(PlacedValue::Number(text)) if text == "0") => {
                Ok(PillowFilter::Nearest)
            }
            _ => Err("\"resample\" must be a number from 0 to 5".to_owned()),
        }
    }

    fn normal(&self, processor: Processor) -> Result<Normal, String> {
        let (mean, deviation) = match processor {
            Processor::Clip => ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_58, 0.275_777_11]),
            Processor::Detr => ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            Processor::ConvNext | Processor::Vit => ([0.5; CHANNELS], [0.5; CHANNELS]),
        };
        let scale =
            if self.flag("do_rescale", true)? { self.number("rescale_factor")?.unwrap_or(1.0 / 255.0) } else { 1.0 };
        let (mean, deviation) = if self.flag("do_normalize", true)? {
            (self.channels("image_mean")?.unwrap_or(mean), self.channels("image_std")?.unwrap_or(deviation))
        } else {
            ([0.0; CHANNELS], [1.0; CHANNELS])
        };
        if deviation.contains(&0.0) {
            return Err("\"image_std\" must not be 0".to_owned());
        }
        Ok(Normal { arithmetic: PixelArithmetic::Transformers, scale, mean, deviation })
    }

    fn size(&self, name: &str) -> Result<Option<GivenSize>, String> {
        let wrong = || {
            format!("\"{name}\" must be a number of pixels from 1 to {IMAGE_SIDE_MAX}, or an object of such numbers")
        };
        let Some(value) = self.value(name) else { return Ok(None) };
        let PlacedValue::Table(members) = value else {
            return side(value).map(GivenSize::Number).map(Some).ok_or_else(wrong);
        };
        let member = |name: &str| members.iter().find(|member| member.name == name).map(|member| &member.value.value);
        let number = |name: &str| member(name).filter(|value| **value != PlacedValue::Null).map(side);
        let given = match [number("height"), number("width"), number("shortest_edge"), number("longest_edge")] {
            [Some(Some(height)), Some(Some(width)), None, None] => GivenSize::Sides(Size { width, height }),
            [None, None, Some(Some(edge)), None] => GivenSize::Shortest(edge),
            [None, None, Some(Some(edge)), Some(Some(longest))] => GivenSize::ShortestWithin(edge, longest),
            _ => return Err(wrong()),
        };
        Ok(Some(given))
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        match self.value(name) {
            None => Ok(default),
            Some(PlacedValue::Bool(value)) => Ok(*value),
            Some(_) => Err(format!("\"{name}\" must be true or false")),
        }
    }

    fn number(&self, name: &str) -> Result<Option<f64>, String> {
        match self.value(name) {
            None => Ok(None),
            Some(value) => number_of(value).map(Some).ok_or_else(|| format!("\"{name}\" must be a number")),
        }
    }

    fn channels(&self, name: &str) -> Result<Option<[f64; CHANNELS]>, String> {
        let numbers = match self.value(name) {
            None => return Ok(None),
            Some(PlacedValue::List(list)) => {
                list.iter().map(|element| number_of(&element.value)).collect::<Option<Vec<_>>>()
            }
            Some(value) => number_of(value).map(|number| vec![number; CHANNELS]),
        };
        let numbers = numbers.and_then(|numbers| <[f64; CHANNELS]>::try_from(numbers).ok());
        numbers.map(Some).ok_or_else(|| format!("\"{name}\" must be {CHANNELS} numbers"))
    }

    /// The value of a member; `null` is as if it were not there.
    fn value(&self, name: &str) -> Option<&PlacedValue> {
        let member = self.members.iter().find(|member| member.name == name)?;
        Some(&member.value.value).filter(|value| **value != PlacedValue::Null)
    }
}

/// A size as files give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenSize {
    Number(usize),
    Shortest(usize),
    ShortestWithin(usize, usize),
    Sides(Size),
}

fn number_of(value: &PlacedValue) -> Option<f64> {
    match value {
        PlacedValue::Number(text) => text.parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    }
}

fn side(value: &PlacedValue) -> Option<usize> {
    match value {
        PlacedValue::Number(text) => text.parse().ok().filter(|side| (1..=IMAGE_SIDE_MAX).contains(side)),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_in_all_forms() {
        let check = |text: &str, resize, crop: Option<usize>| {
            let got = read(text).unwrap().geometry;
            let side = got.crop.map(|crop| crop.size.width);
            assert_eq!((got.resize, side), (resize, crop), "{text}");
        };
        let exact = |side| Resize::Exact(Size { width: side, height: side });
        check(r#"{"image_processor_type": "ViTImageProcessor"}"#, exact(224), None);
        check(r#"{"feature_extractor_type": "ViTFeatureExtractor", "size": 384}"#, exact(384), None);
        check(r#"{"image_processor_type": "ViTImageProcessor", "size": {"height": 96, "width": 96}}"#, exact(96), None);
        check(
            r#"{"feature_extractor_type": "CLIPFeatureExtractor", "size": 336, "crop_size": 336}"#,
            Resize::Shortest(336),
            Some(336),
        );
        check(
            r#"{"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "crop_pct": 0.95}"#,
            Resize::Shortest(235),
            Some(224),
        );
        check(r#"{"image_processor_type": "ConvNextImageProcessor"}"#, exact(384), None);
        check(
            r#"{"feature_extractor_type": "DetrFeatureExtractor", "size": 600, "max_size": 1000}"#,
            Resize::ShortestWithin(600, 1000),
            None,
        );
    }

    #[test]
    fn faults_are_named() {
        let check = |text: &str, want: &str| assert_eq!(read(text).unwrap_err(), want, "{text}");
        check("[]", "it must be an object");
        check("{}", "\"image_processor_type\" is missing");
        let vit = |rest: &str| format!("{{\"image_processor_type\": \"ViTImageProcessor\", {rest}}}");
        check(&vit(r#""do_resize": 1"#), "\"do_resize\" must be true or false");
        check(&vit(r#""size": {"shortest_edge": 8}"#), "\"size\" does not have the members that this processor reads");
        check(
            &vit(r#""size": -1"#),
            "\"size\" must be a number of pixels from 1 to 32768, or an object of such numbers",
        );
        check(&vit(r#""resample": 6"#), "\"resample\" must be a number from 0 to 5");
        check(&vit(r#""image_mean": [1]"#), "\"image_mean\" must be 3 numbers");
        check(&vit(r#""image_std": 0"#), "\"image_std\" must not be 0");
        check(
            r#"{"image_processor_type": "BitImageProcessor"}"#,
            "the processor \"BitImageProcessor\" is not supported; known are those of ViT, CLIP, ConvNext and Detr",
        );
    }
}
