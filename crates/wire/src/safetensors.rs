//! The header of a safetensors file: eight bytes of length, little-endian, then JSON of that length, then the bytes of
//! the tensors without holes. Format: the README of the `safetensors` crate. Reads no tensor; converts the elements of one.

use half::{bf16, f16};

use crate::json::{Document, JsonValue, ValueKind};
pub use crate::limits::SAFETENSORS_COUNT_MAX;
use crate::limits::{SAFETENSORS_HEADER_SIZE_MAX, SAFETENSORS_RANK_MAX};

/// A datatype of weights; files with others are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// BF16.
    BrainFloat,
    /// F32.
    Float,
    /// F16.
    Half,
    /// A datatype that weights do not have, as integers of `position_ids`, with its size in bytes.
    Other(usize),
}

impl WeightType {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::BrainFloat | Self::Half => 2,
            Self::Float => 4,
            Self::Other(size) => size,
        }
    }

    /// Appends elements as FP32, little-endian; returns false for a datatype that weights do not have.
    pub fn append_floats(self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        match self {
            Self::Float => out.extend_from_slice(bytes),
            Self::Half => out.extend(bytes.as_chunks().0.iter().flat_map(float_of_half)),
            Self::BrainFloat => out.extend(bytes.as_chunks().0.iter().flat_map(float_of_brain_float)),
            Self::Other(_) => return false,
        }
        true
    }

    /// The elements as floats; `None` for a datatype that weights do not have.
    pub fn floats(self, bytes: &[u8]) -> Option<Vec<f32>> {
        let mut floats = Vec::new();
        self.append_floats(bytes, &mut floats)
            .then(|| floats.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "BF16" => Self::BrainFloat,
            "F16" => Self::Half,
            "F32" => Self::Float,
            "BOOL" | "F8_E4M3" | "F8_E5M2" | "I8" | "U8" => Self::Other(1),
            "I16" | "U16" => Self::Other(2),
            "I32" | "U32" => Self::Other(4),
            "F64" | "I64" | "U64" => Self::Other(8),
            _ => return None,
        })
    }
}

/// An F16 element as FP32.
pub fn float_of_half(bytes: &[u8; 2]) -> [u8; 4] {
    f16::from_le_bytes(*bytes).to_f32().to_le_bytes()
}

/// A BF16 element as FP32.
pub fn float_of_brain_float(bytes: &[u8; 2]) -> [u8; 4] {
    bf16::from_le_bytes(*bytes).to_f32().to_le_bytes()
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// The datatype of its elements.
    pub element: WeightType,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its first byte, counted from the begin of the file; all are inside it.
    pub begin: usize,
    /// The byte behind its last.
    pub end: usize,
}

/// Reads the header of a file, and checks that each tensor has the bytes that its shape needs, all inside the file,
/// one after the other.
///
/// # Errors
/// The reason why the file is refused.
pub fn read_header(file: &[u8]) -> Result<Vec<TensorEntry>, String> {
    let (length, rest) = file.split_first_chunk::<8>().ok_or("it is shorter than the 8 bytes before its header")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > SAFETENSORS_HEADER_SIZE_MAX {
        return Err(format!("its header has {length} bytes, and at most {SAFETENSORS_HEADER_SIZE_MAX} are read"));
    }
    let Some((header, data)) = rest.split_at_checked(length) else {
        return Err(format!("its header has {length} bytes, and the file ends after {}", rest.len()));
    };
    let document = Document::parse(header, &[]).map_err(|error| format!("its header is not JSON: {error}"))?;
    let mut entries = Vec::new();
    if !matches!(document.root().kind(), ValueKind::Object) {
        return Err("its header is not a JSON object".to_owned());
    }
    for (name, value) in document.root().members().filter(|(name, _)| *name != "__metadata__") {
        if entries.len() == SAFETENSORS_COUNT_MAX {
            return Err(format!("it has more than {SAFETENSORS_COUNT_MAX} tensors"));
        }
        let entry = read_entry(name, value, length + 8).map_err(|reason| format!("tensor '{name}': {reason}"))?;
        entries.push(entry);
    }
    check_places(&mut entries, file.len() - data.len(), file.len())?;
    Ok(entries)
}

fn read_entry(name: &str, value: JsonValue<'_, '_>, base: usize) -> Result<TensorEntry, String> {
    let element = value.get("dtype").and_then(JsonValue::as_str).ok_or("it has no 'dtype'")?;
    let element = WeightType::named(element).ok_or_else(|| format!("its dtype '{element}' is unknown"))?;
    let shape = numbers(value.get("shape"), SAFETENSORS_RANK_MAX).ok_or("its 'shape' is not a short list of sizes")?;
    let offsets = numbers(value.get("data_offsets"), 2).unwrap_or_default();
    let [begin, end] = offsets.as_slice() else {
        return Err("its 'data_offsets' are not two numbers".to_owned());
    };
    let size = shape.iter().try_fold(element.size(), |size, dimension| size.checked_mul(*dimension));
    let size = size.ok_or_else(|| format!("its shape {shape:?} overflows"))?;
    if end.checked_sub(*begin) != Some(size) {
        return Err(format!("its data_offsets {begin} to {end} are not the {size} bytes that shape {shape:?} needs"));
    }
    let overflow = || format!("its data_offsets {begin} to {end} overflow");
    let begin = begin.checked_add(base).ok_or_else(overflow)?;
    let end = end.checked_add(base).ok_or_else(overflow)?;
    Ok(TensorEntry { name: name.to_owned(), element, shape, begin, end })
}

/// The numbers of a list with at most `count_max` elements.
fn numbers(value: Option<JsonValue<'_, '_>>, count_max: usize) -> Option<Vec<usize>> {
    let value = value.filter(|value| matches!(value.kind(), ValueKind::Array))?;
    if value.elements().take(count_max + 1).count() > count_max {
        return None;
    }
    value.elements().map(|element| usize::try_from(element.as_u64()?).ok()).collect()
}

/// Checks that the tensors cover the data without overlap or hole, as the format demands: else two names could share
/// bytes, or bytes hide in the file.
fn check_places(entries: &mut [TensorEntry], base: usize, file_size: usize) -> Result<(), String> {
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    if let Some([one, _]) = entries.array_windows().find(|[one, other]| one.name == other.name) {
        return Err(format!("tensor '{}' is there twice", one.name));
    }
    let mut places: Vec<_> = entries.iter().map(|entry| (entry.begin, entry.end, entry.name.as_str())).collect();
    places.sort_unstable();
    let mut expected = base;
    for (begin, end, name) in places {
        if begin != expected {
            let [begin, expected] = [begin, expected].map(|place| place - base);
            return Err(format!("tensor '{name}' begins at {begin}, expected {expected}: no overlap, no hole"));
        }
        if end > file_size {
            return Err(format!("tensor '{name}' ends at {}, the data at {}", end - base, file_size - base));
        }
        expected = end;
    }
    if expected != file_size {
        return Err(format!("{} bytes after the last tensor belong to no tensor", file_size - expected));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_and_elements_of_three_datatypes_are_floats() {
        let header = br#"{"a":{"dtype":"F16","shape":[2],"data_offsets":[4,8]},"b":{"dtype":"I32","shape":[],"data_offsets":[0,4]}}"#;
        let data = [0, 0, 0, 0, 0, 0x3e, 0, 0xc0];
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &data].concat();
        let entries = read_header(&file).unwrap();
        let a = entries.iter().find(|entry| entry.name == "a").unwrap();
        assert_eq!((a.element, a.shape.as_slice()), (WeightType::Half, &[2][..]));
        assert_eq!(a.element.floats(&file[a.begin..a.end]), Some(vec![1.5, -2.0]));
        assert_eq!(WeightType::BrainFloat.floats(&[0xc0, 0x3f]), Some(vec![1.5]));
        assert_eq!(WeightType::Float.floats(&1.5_f32.to_le_bytes()), Some(vec![1.5]));
        assert_eq!(WeightType::Other(4).floats(&[0; 4]), None);
        assert!(read_header(&file[..file.len() - 1]).is_err());
    }
}
