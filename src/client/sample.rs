//! Requests for a comparison, from a model's inputs: numbers, texts of all kinds of characters, and pictures for an image step.
//! The same seed gives the same requests. Pure.

use crate::loadgen::description::InputDescription;
use crate::loadgen::random::Random;
use crate::tensor::{Datatype, strings};
use crate::wire::base64;
use crate::wire::json::{Document, JsonValue, writer};

/// Rows of a request with a batch axis.
const ROWS_MAX: u64 = 3;
/// Size of a dimension that the model leaves open.
const OPEN_SIZE_MAX: u64 = 9;
/// Words of a text.
const WORDS_MAX: u64 = 30;
/// Pixels of a side of a picture.
const SIDE_MAX: u64 = 300;
/// Elements of a generated input.
const ELEMENTS_MAX: i64 = 1 << 22;

/// The body of a request, and the size of its JSON: binary tensors follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleRequest {
    /// The body.
    pub body: Vec<u8>,
    /// Bytes of the JSON at its beginning.
    pub json_size: usize,
}

/// The form of the strings of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureForm {
    /// A file in base64.
    Base64,
    /// A file as it is.
    File,
}

/// Returns the form of the pictures in an input, if an image step of the list reads it.
pub fn picture(list: &[u8], input: &str) -> Option<PictureForm> {
    let document = Document::parse(list, &[]).ok()?;
    let text = |step: &JsonValue<'_, '_>, name: &str| step.get(name).and_then(JsonValue::as_str).map(str::to_owned);
    let steps = document.root().get("steps")?;
    let mut steps = steps.elements().filter(|step| text(step, "step").as_deref() == Some("image"));
    let step = steps.find(|step| {
        let port = step.get("inputs").and_then(|inputs| text(&inputs, "image"));
        text(step, "input").or(port).as_deref() == Some(input)
    })?;
    Some(if text(&step, "encoding").as_deref() == Some("base64") { PictureForm::Base64 } else { PictureForm::File })
}

/// Makes a request. `pictures` has the form of each input's pictures.
pub fn request(inputs: &[InputDescription], pictures: &[Option<PictureForm>], random: &mut Random) -> SampleRequest {
    let rows = 1 + random.next_below(ROWS_MAX);
    // Inputs of one model have open dimensions in common: ids and their mask.
    let open: Vec<i64> = (0..8).map(|_| (1 + random.next_below(OPEN_SIZE_MAX)).cast_signed()).collect();
    let mut json = b"{\"inputs\":[".to_vec();
    let mut binary = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        let sizes = input.shape.iter().enumerate().map(|(axis, size)| match (axis, *size) {
            (0, -1) => rows.cast_signed(),
            (axis, -1) => open.get(axis).copied().unwrap_or(1),
            (_, size) => size,
        });
        let shape: Vec<i64> = sizes.collect();
        let count = shape.iter().try_fold(1_i64, |count, size| count.checked_mul(*size)).unwrap_or(0).min(ELEMENTS_MAX);
        let start = binary.len();
        for _ in 0..count {
            element(input.datatype, pictures.get(index).copied().flatten(), random, &mut binary);
        }
        writer::comma(index, &mut json);
        json.extend_from_slice(b"{\"name\":");
        writer::string(&input.name, &mut json);
        let (datatype, size) = (input.datatype.name(), binary.len() - start);
        let rest = format!(
            ",\"datatype\":\"{datatype}\",\"shape\":{shape:?},\"parameters\":{{\"binary_data_size\":{size}}}}}"
        );
        json.extend_from_slice(rest.as_bytes());
    }
    // FP16 has no JSON, and the numbers of pictures are too many for it.
    json.extend_from_slice(b"],\"parameters\":{\"binary_data_output\":true}}");
    let json_size = json.len();
    json.extend_from_slice(&binary);
    SampleRequest { body: json, json_size }
}

fn element(datatype: Datatype, picture: Option<PictureForm>, random: &mut Random, out: &mut Vec<u8>) {
    match datatype {
        Datatype::Bytes => {
            let bytes = match picture {
                Some(PictureForm::File) => png(random),
                Some(PictureForm::Base64) => base64::encode(&png(random)).into_bytes(),
                None => text(random).into_bytes(),
            };
            strings::encode(&bytes, out);
        }
        Datatype::Bool => out.push(u8::from(random.next_below(2) == 1)),
        Datatype::Fp32 => out.extend_from_slice(&float(random).to_le_bytes()),
        Datatype::Fp64 => out.extend_from_slice(&f64::from(float(random)).to_le_bytes()),
        Datatype::Fp16 => out.extend_from_slice(&half::f16::from_f32(float(random)).to_le_bytes()),
        Datatype::Bf16 => out.extend_from_slice(&half::bf16::from_f32(float(random)).to_le_bytes()),
        Datatype::Uint8 | Datatype::Int8 => out.push(random.next_below(100).to_le_bytes()[0]),
        other => {
            let bytes = random.next_below(100).to_le_bytes();
            out.extend_from_slice(bytes.get(..other.size().unwrap_or(0)).unwrap_or_default());
        }
    }
}

/// From -4 to 4.
#[expect(clippy::cast_possible_truncation, reason = "any value near it does as well")]
fn float(random: &mut Random) -> f32 {
    (random.next_unit() * 8.0 - 4.0) as f32
}

/// The first and the last character of ranges that words are made of: Latin, accents, Greek, Cyrillic, Arabic, combining
/// marks, Chinese, Hangul, symbols, emoji, controls, all planes.
const RANGES: [(u32, u32); 14] = [
    (0x61, 0x7a),
    (0x41, 0x5a),
    (0x30, 0x39),
    (0x21, 0x2f),
    (0xc0, 0x17f),
    (0x370, 0x3ff),
    (0x400, 0x4ff),
    (0x600, 0x6ff),
    (0x300, 0x36f),
    (0x4e00, 0x9fff),
    (0xac00, 0xd7a3),
    (0x1f300, 0x1faff),
    (0, 0x20),
    (0, 0x10_ffff),
];

fn text(random: &mut Random) -> String {
    let mut text = String::new();
    for word in 0..random.next_below(WORDS_MAX) {
        if word > 0 {
            text.push(' ');
        }
        // Most words are of plain letters.
        let range = if random.next_below(2) == 0 { 0 } else { random.next_below(RANGES.len() as u64) };
        let (first, last) =
            usize::try_from(range).ok().and_then(|range| RANGES.get(range)).copied().unwrap_or_default();
        for _ in 0..1 + random.next_below(9) {
            let offset = u32::try_from(random.next_below(u64::from(last - first) + 1)).unwrap_or_default();
            text.extend(char::from_u32(first + offset));
        }
    }
    text
}

/// A picture of grey, RGB or RGBA pixels as a PNG without compression: a gradient with noise.
fn png(random: &mut Random) -> Vec<u8> {
    let [width, height] = [0; 2].map(|_| u32::try_from(1 + random.next_below(SIDE_MAX)).unwrap_or(1));
    let (color_type, channels) = match random.next_below(3) {
        0 => (0_u8, 1_u32),
        1 => (2, 3),
        _ => (6, 4),
    };
    let mut rows = Vec::new();
    for y in 0..height {
        rows.push(0); // The filter of the row: unchanged.
        for x in 0..width * channels {
            let noise = u32::try_from(random.next_below(32)).unwrap_or_default();
            rows.push(((x * 200 / (width * channels) + y * 20 / height + noise) % 256).to_le_bytes()[0]);
        }
    }
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let head = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, color_type, 0, 0, 0]].concat();
    chunk(b"IHDR", &head, &mut out);
    chunk(b"IDAT", &stored(&rows), &mut out);
    chunk(b"IEND", &[], &mut out);
    out
}

/// A zlib stream of blocks without compression (RFC 1950, RFC 1951 §3.2.4).
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 1];
    let blocks = bytes.chunks(usize::from(u16::MAX));
    let last = blocks.len().saturating_sub(1);
    for (index, block) in blocks.enumerate() {
        let size = u16::try_from(block.len()).unwrap_or(u16::MAX);
        out.push(u8::from(index == last));
        out.extend_from_slice(&size.to_le_bytes());
        out.extend_from_slice(&(!size).to_le_bytes());
        out.extend_from_slice(block);
    }
    let sum = |(low, high): (u32, u32), byte: &u8| {
        let low = (low + u32::from(*byte)) % 65_521;
        (low, (high + low) % 65_521)
    };
    let (low, high) = bytes.iter().fold((1, 0), sum);
    out.extend_from_slice(&((high << 16) | low).to_be_bytes());
    out
}

/// A chunk of a PNG, with its checksum (CRC-32).
fn chunk(kind: &[u8; 4], contents: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(contents.len()).unwrap_or(u32::MAX).to_be_bytes());
    let start = out.len();
    out.extend_from_slice(kind);
    out.extend_from_slice(contents);
    let checksum = out.get(start..).unwrap_or_default().iter().fold(u32::MAX, |checksum, byte| {
        (0..8).fold(checksum ^ u32::from(*byte), |value, _| (value >> 1) ^ if value & 1 == 1 { 0xedb8_8320 } else { 0 })
    });
    out.extend_from_slice(&(!checksum).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_sizes_that_it_states_and_comes_again_with_its_seed() {
        let input = |name: &str, datatype, shape: &[i64]| InputDescription {
            name: name.to_owned(),
            datatype,
            shape: shape.to_vec(),
        };
        let inputs = [
            input("text", Datatype::Bytes, &[-1, 1]),
            input("ids", Datatype::Int64, &[-1, -1]),
            input("mask", Datatype::Uint8, &[-1, -1]),
            input("x", Datatype::Fp16, &[2]),
        ];
        for seed in 0..50 {
            let made = request(&inputs, &[], &mut Random::new(seed));
            assert_eq!(made, request(&inputs, &[], &mut Random::new(seed)));
            let document = Document::parse(&made.body[..made.json_size], &[]).unwrap();
            let described: Vec<_> = document.root().get("inputs").unwrap().elements().collect();
            let size = |index: usize| {
                described[index].get("parameters").unwrap().get("binary_data_size").unwrap().as_u64().unwrap()
            };
            assert_eq!((size(1), size(3)), (8 * size(2), 4));
            assert_eq!((0..4).map(size).sum::<u64>(), (made.body.len() - made.json_size) as u64);
        }
    }

    #[test]
    fn an_image_step_gets_pictures() {
        let list = |rest: &str| format!(r#"{{"steps":[{{"step":"cast","input":"b"}},{{"step":"image",{rest}}}]}}"#);
        let check = |rest: &str, want| assert_eq!(picture(list(rest).as_bytes(), "a"), want, "{rest}");
        check(r#""input":"a""#, Some(PictureForm::File));
        check(r#""inputs":{"image":"a"},"encoding":"base64""#, Some(PictureForm::Base64));
        check(r#""input":"b""#, None);
        let input = InputDescription { name: "a".to_owned(), datatype: Datatype::Bytes, shape: vec![1] };
        let made = request(&[input], &[Some(PictureForm::File)], &mut Random::new(3));
        assert_eq!(&made.body[made.json_size + 4..][..8], b"\x89PNG\r\n\x1a\n");
    }
}
