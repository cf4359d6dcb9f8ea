//! Requests for a comparison, from a model's inputs: numbers, texts of all kinds of characters, and pictures for an image step.
//! The same seed gives the same requests. Pure.

use crate::loadgen::description::InputDescription;
use crate::loadgen::random::Random;
use crate::steps::image::sample;
use crate::tensor::{Datatype, strings};
use crate::wire::base64;
use crate::wire::json::{Document, JsonValue, writer};

/// Rows of a request with a batch axis.
const ROWS_MAX: u64 = 3;
/// Size of a dimension that the model leaves open.
const OPEN_SIZE_MAX: u64 = 9;
/// Words of a text.
const WORDS_MAX: u64 = 30;
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
        let mut shape: Vec<i64> = sizes.collect();
        let start = binary.len();
        let picture = pictures.get(index).copied().flatten();
        if let (Datatype::Uint8, Some(_), [.., -1], [rest @ .., bytes]) =
            (input.datatype, picture, &input.shape[..], &mut shape[..])
        {
            *bytes = files(rest.iter().product(), random, &mut binary);
        } else {
            let count =
                shape.iter().try_fold(1_i64, |count, size| count.checked_mul(*size)).unwrap_or(0).min(ELEMENTS_MAX);
            (0..count).for_each(|_| element(input.datatype, picture, random, &mut binary));
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
                Some(PictureForm::File) => file(random),
                Some(PictureForm::Base64) => base64::encode(&file(random)).into_bytes(),
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

/// Pictures as the bytes of a tensor, a file in each row, with zeros behind the shorter ones. Returns the bytes of a row.
fn files(rows: i64, random: &mut Random, out: &mut Vec<u8>) -> i64 {
    let files: Vec<_> = (0..rows).map(|_| file(random)).collect();
    let longest = files.iter().map(Vec::len).max().unwrap_or(0);
    for file in &files {
        out.extend_from_slice(file);
        out.resize(out.len() + longest - file.len(), 0);
    }
    i64::try_from(longest).unwrap_or(0)
}

/// A picture as a file.
fn file(random: &mut Random) -> Vec<u8> {
    // The encoders write to memory.
    sample::picture(&mut |bound| random.next_below(bound)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::image::file;

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
        assert!(file::is_known(&made.body[made.json_size + 4..]));

        // As bytes, with rows as long as the longest file.
        let input = InputDescription { name: "a".to_owned(), datatype: Datatype::Uint8, shape: vec![-1, -1] };
        let made = request(&[input], &[Some(PictureForm::File)], &mut Random::new(4));
        let document = Document::parse(&made.body[..made.json_size], &[]).unwrap();
        let input = document.root().get("inputs").unwrap().elements().next().unwrap();
        let shape: Vec<_> =
            input.get("shape").unwrap().elements().map(|size| size.as_u64().unwrap() as usize).collect();
        let rows = &made.body[made.json_size..];
        assert_eq!(rows.len(), shape[0] * shape[1]);
        assert!(rows.chunks(shape[1]).all(file::is_known) && shape[0] > 1, "{shape:?}");
    }
}
