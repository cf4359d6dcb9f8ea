//! Classes of the classification extension as clients read them: `value:index[:label]`. Written where
//! the best of a row are found: on the shard, or by an instance whose device finds them.

use half::{bf16, f16};

use crate::model::labels::Labels;
use crate::tensor::topk;
use crate::wire::json::writer;

/// Bytes of `value:index:label` with its length, roughly.
pub const STRING_SIZE_EXPECTED: usize = 32;

/// A value by which classes are ordered, as clients read it.
pub trait WrittenClasses: topk::Score + bytemuck::Pod {
    /// Appends the shortest text that reads back to the same value.
    fn write(&self, out: &mut Vec<u8>);
}

/// Declares how integers are written.
macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl WrittenClasses for $integer {
            fn write(&self, out: &mut Vec<u8>) {
                writer::integer(*self, out);
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64);

/// Declares how floats are written.
macro_rules! floats {
    ($($float:ty, $short:expr;)*) => {$(
        impl WrittenClasses for $float {
            fn write(&self, out: &mut Vec<u8>) {
                write_float($short(*self), out);
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

/// Writes a float; a whole one without a fraction, the others that are none as Triton does.
fn write_float(value: impl writer::Float, out: &mut Vec<u8>) {
    let wide = value.widen();
    if wide.is_finite() {
        writer::float(value, out);
        let size = out.strip_suffix(b".0").map_or(out.len(), <[u8]>::len);
        out.truncate(size);
    } else if wide.is_nan() {
        out.extend_from_slice(b"nan");
    } else {
        out.extend_from_slice(if wide > 0.0 { b"inf" } else { b"-inf" });
    }
}

/// The float with the shortest text of those that a narrow float reads back from.
fn short(value: f32, reads_back: impl Fn(f32) -> bool) -> f32 {
    /// A half float needs five digits at most.
    const DIGITS_MAX: usize = 5;
    let texts = (0..DIGITS_MAX).map(|digits| format!("{value:.digits$e}"));
    texts.filter_map(|text| text.parse::<f32>().ok()).find(|text| reads_back(*text)).unwrap_or(value)
}

/// Appends a class, behind its length, as an element of a `BYTES` tensor.
pub fn write<T: WrittenClasses>(score: &T, index: u32, labels: Option<&Labels>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    score.write(out);
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

/// Appends classes of which the scores and the indices are known; those of FP32, the datatype of outputs
/// that a device finds the best of.
pub fn write_known(scores: &[u8], indices: &[u8], labels: Option<&Labels>, out: &mut Vec<u8>) {
    let (scores, indices) = (scores.as_chunks().0.iter(), indices.as_chunks().0.iter());
    for (score, index) in scores.zip(indices) {
        write(&f32::from_le_bytes(*score), u32::from_le_bytes(*index), labels, out);
    }
}
