//! Text of the classes of the classification extension: `value:index[:label]`. Written where the top-k of a
//! row is selected: on the shard, or by an instance whose device selects it.

use half::{bf16, f16};

use crate::labels::Labels;
use base::tensor::topk;
use wire::json::writer;

/// Estimated bytes of one `value:index:label` with its length, to reserve memory.
pub const STRING_SIZE_EXPECTED: usize = 32;

/// The text form of a score that is not an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreText {
    /// By the shortest text that reads back to the same value.
    Shortest,
    /// With six decimals, as C++ and so tritonserver write it.
    SixDecimals,
}

/// The form in which the classes of an output are written.
#[derive(Clone, Copy, Debug)]
pub struct ClassForm<'a> {
    /// The text of a score.
    pub text: ScoreText,
    /// The names of the classes, if the model has some.
    pub labels: Option<&'a Labels>,
}

/// A score that can be written as clients read it.
pub trait WrittenClasses: topk::Score + bytemuck::Pod {
    /// Appends its text.
    fn write(&self, text: ScoreText, out: &mut Vec<u8>);
}

/// Integers are written in decimal.
macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl WrittenClasses for $integer {
            fn write(&self, _: ScoreText, out: &mut Vec<u8>) {
                writer::integer(*self, out);
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64);

/// Floats are written by `write_float`; the 16-bit ones are first rounded to a short text.
macro_rules! floats {
    ($($float:ty, $short:expr;)*) => {$(
        impl WrittenClasses for $float {
            fn write(&self, text: ScoreText, out: &mut Vec<u8>) {
                write_float($short(*self), text, out);
            }
        }
    )*};
}

floats! {
    f32, std::convert::identity;
    f64, std::convert::identity;
    f16, |value: f16| short(value.to_f32(), |text| f16::from_f32(text) == value);
    bf16, |value: bf16| short(value.to_f32(), |text| bf16::from_f32(text) == value);
}

/// Writes a float: a whole number without a fraction unless six decimals are asked for, and `nan`, `inf` or `-inf` as
/// Triton does.
fn write_float(value: impl writer::Float, text: ScoreText, out: &mut Vec<u8>) {
    let wide = value.widen();
    if wide.is_finite() && text == ScoreText::SixDecimals {
        out.extend_from_slice(format!("{wide:.6}").as_bytes());
    } else if wide.is_finite() {
        writer::float(value, out);
        let size = out.strip_suffix(b".0").map_or(out.len(), <[u8]>::len);
        out.truncate(size);
    } else if wide.is_nan() {
        out.extend_from_slice(b"nan");
    } else {
        out.extend_from_slice(if wide > 0.0 { b"inf" } else { b"-inf" });
    }
}

/// The FP32 value with the shortest text that still rounds to the same 16-bit float.
fn short(value: f32, reads_back: impl Fn(f32) -> bool) -> f32 {
    /// Significant digits after which every 16-bit float reads back.
    const DIGITS_MAX: usize = 5;
    let texts = (0..DIGITS_MAX).map(|digits| format!("{value:.digits$e}"));
    texts.filter_map(|text| text.parse::<f32>().ok()).find(|text| reads_back(*text)).unwrap_or(value)
}

/// Appends a class as an element of a `BYTES` tensor: its length, then its text.
pub fn write<T: WrittenClasses>(score: &T, index: u32, form: ClassForm<'_>, out: &mut Vec<u8>) {
    let ClassForm { text, labels } = form;
    let start = out.len();
    // The length is filled in when the text is written: formatting into a second buffer would copy it.
    out.extend_from_slice(&[0; 4]);
    score.write(text, out);
    out.push(b':');
    writer::integer(index, out);
    if let Some(label) = usize::try_from(index).ok().and_then(|index| labels?.get(index)) {
        out.push(b':');
        out.extend_from_slice(label.as_bytes());
    }
    // A label file is much smaller than 4 GiB.
    let size = u32::try_from(out.len().saturating_sub(start).saturating_sub(4)).unwrap_or(u32::MAX);
    if let Some(field) = out.get_mut(start..).and_then(|bytes| bytes.first_chunk_mut::<4>()) {
        *field = size.to_le_bytes();
    }
}

/// Appends the classes that a device selected, from their scores and indices as it wrote them: little-endian FP32,
/// the only datatype that devices select from, and 32-bit integers.
pub fn write_selected(scores: &[u8], indices: &[u8], form: ClassForm<'_>, out: &mut Vec<u8>) {
    let (scores, indices) = (scores.as_chunks().0.iter(), indices.as_chunks().0.iter());
    for (score, index) in scores.zip(indices) {
        write(&f32::from_le_bytes(*score), u32::from_le_bytes(*index), form, out);
    }
}
