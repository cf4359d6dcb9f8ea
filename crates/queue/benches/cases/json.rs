//! JSON: documents, and the elements of tensors from and to their text.

use std::fmt::Write;
use std::hint::black_box;

use wire::json::{Document, Number, ValueKind, read_numbers, writer};

use super::{Random, Work};

/// Nearly the elements of a picture of 224 x 224 in three colours.
const COUNT: usize = 150_000;

/// A request as the documentation has it.
pub const SMALL: &[u8] = br#"{"id":"42","inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"FP32","data":[0.1,-0.25,3.5,100,1e-3,0.30517578,7,8.875,9,10.5,-11.25,12,13.0625,14,15.1,16]}],"outputs":[{"name":"OUTPUT0"}]}"#;

pub fn parse_small() -> (Work, usize) {
    parse::<f32>(SMALL.to_vec(), 16)
}

pub fn parse_floats() -> (Work, usize) {
    parse::<f32>(document(floats().iter(), ","), COUNT)
}

/// FP32 as `json.dumps` writes it after `numpy`: all digits of the double, and a space behind each comma.
pub fn parse_python() -> (Work, usize) {
    parse::<f32>(document(floats().iter().map(|float| f64::from(*float)), ", "), COUNT)
}

pub fn parse_integers() -> (Work, usize) {
    let mut random = Random(7);
    parse::<i32>(document((0..COUNT).map(|_| (random.next() % 100_000) as i32 - 50_000), ","), COUNT)
}

pub fn write_floats() -> (Work, usize) {
    let floats = floats();
    let mut text = Vec::new();
    let write = move |text: &mut Vec<u8>| {
        text.clear();
        for (index, float) in floats.iter().enumerate() {
            writer::comma(index, text);
            writer::float(*float, text);
        }
    };
    write(&mut text);
    let size = text.len();
    let work = move || {
        write(&mut text);
        assert_eq!(black_box(&text).len(), size);
    };
    (Box::new(work), size)
}

fn floats() -> Vec<f32> {
    let mut random = Random(4);
    (0..COUNT).map(|_| random.float()).collect()
}

/// A request of one input.
fn document(elements: impl Iterator<Item: std::fmt::Display>, between: &str) -> Vec<u8> {
    let mut text = format!("{{\"inputs\":[{{\"name\":\"I\",\"shape\":[{COUNT}],\"datatype\":\"FP32\",\"data\":[");
    for (index, element) in elements.enumerate() {
        let _ = write!(text, "{}{element}", if index == 0 { "" } else { between });
    }
    text.push_str("]}]}");
    text.into_bytes()
}

/// Reads a document and the elements of its input into existing memory.
fn parse<T: Number + Default + 'static>(text: Vec<u8>, count: usize) -> (Work, usize) {
    let (mut memory, size) = (vec![T::default(); count], text.len());
    let work = move || {
        let document = Document::parse(&text, &["data"]).expect("it is JSON");
        let inputs = document.root().get("inputs").expect("there is one");
        let input = inputs.elements().next().expect("there is one");
        let Some(ValueKind::Raw(array)) = input.get("data").map(|data| data.kind()) else { unreachable!() };
        read_numbers(array, black_box(&mut memory)).expect("they are numbers");
    };
    (Box::new(work), size)
}
