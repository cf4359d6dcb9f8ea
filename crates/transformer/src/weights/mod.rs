//! The tensors of a model's safetensors files, as views of the bytes that the caller has mapped, and their conversion
//! to FP32.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use base::error::Error;
use wire::json::Document;

use crate::limits::{CONFIG_SIZE_MAX, FILES_MAX, TENSORS_MAX};
pub(crate) use wire::safetensors::WeightType;
use wire::safetensors::{TensorEntry, float_of_brain_float, float_of_half, read_header};

/// The tensors of a model by name, over all its files.
#[derive(Clone, Debug, Default)]
pub struct SafeTensors<'a> {
    tensors: BTreeMap<String, WeightTensor<'a>>,
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct WeightTensor<'a> {
    pub(crate) file: &'a str,
    pub(crate) shape: Vec<usize>,
    pub(crate) view: WeightView<'a>,
}

/// The elements of a tensor, or of some of its rows, in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightView<'a> {
    pub(crate) element: WeightType,
    bytes: &'a [u8],
}

impl<'a> SafeTensors<'a> {
    /// Reads the headers of safetensors files, given by name and bytes. Takes memory for names and shapes; the tensors
    /// stay where they are.
    ///
    /// # Errors
    /// `InvalidArgument`, with the file, if a header is malformed or two files have a tensor of one name.
    ///
    /// ```
    /// let header = br#"{"bias":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    /// let file = [&(header.len() as u64).to_le_bytes(), &header[..], &[0; 4]].concat();
    /// assert!(transformer::SafeTensors::read(&[("model.safetensors", &file)]).is_ok());
    /// assert!(transformer::SafeTensors::read(&[("model.safetensors", &file[..20])]).is_err());
    /// ```
    pub fn read(files: &[(&'a str, &'a [u8])]) -> Result<Self, Error> {
        if files.len() > FILES_MAX {
            return Err(Error::invalid(format!("{} files of weights; at most {FILES_MAX} are read", files.len())));
        }
        let mut weights = Self::default();
        for (file, bytes) in files {
            let entries = read_header(bytes).map_err(|reason| Error::invalid(format!("{file}: {reason}")))?;
            for entry in entries {
                weights.add(file, bytes, entry)?;
            }
        }
        Ok(weights)
    }

    fn add(&mut self, file: &'a str, bytes: &'a [u8], entry: TensorEntry) -> Result<(), Error> {
        let TensorEntry { name, element, shape, begin, end } = entry;
        let bytes = bytes.get(begin..end).unwrap_or_default();
        if self.tensors.len() == TENSORS_MAX {
            return Err(Error::invalid(format!("{file}: the model has more than {TENSORS_MAX} tensors")));
        }
        match self.tensors.entry(name) {
            Entry::Occupied(other) => Err(Error::invalid(format!(
                "{file}: tensor '{}' is also in {}; each tensor is in one file",
                other.key(),
                other.get().file
            ))),
            Entry::Vacant(place) => {
                place.insert(WeightTensor { file, shape, view: WeightView { element, bytes } });
                Ok(())
            }
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<(&str, &WeightTensor<'a>)> {
        self.tensors.get_key_value(name).map(|(name, tensor)| (name.as_str(), tensor))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &WeightTensor<'a>)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The names of the files, for errors about tensors that are in none of them.
    pub(crate) fn files(&self) -> String {
        let mut files: Vec<_> = self.tensors.values().map(|tensor| tensor.file).collect();
        files.sort_unstable();
        files.dedup();
        if files.is_empty() { "the files of weights".to_owned() } else { files.join(", ") }
    }
}

/// Returns the names of the files that a `model.safetensors.index.json` refers to, each once, sorted. They are names
/// and not paths, so that no index leads out of its folder.
///
/// # Errors
/// `InvalidArgument` if it is not such an index, or names a path or too many files.
///
/// ```
/// let index = br#"{"weight_map":{"a":"model-00001-of-00001.safetensors"}}"#;
/// assert_eq!(transformer::indexed_files(index).unwrap(), ["model-00001-of-00001.safetensors"]);
/// assert!(transformer::indexed_files(br#"{"weight_map":{"a":"../model.safetensors"}}"#).is_err());
/// ```
pub fn indexed_files(index: &[u8]) -> Result<Vec<String>, Error> {
    let invalid = |reason: String| Error::invalid(format!("model.safetensors.index.json: {reason}"));
    if index.len() > CONFIG_SIZE_MAX {
        return Err(invalid(format!("it has {} bytes; at most {CONFIG_SIZE_MAX} are read", index.len())));
    }
    let document = Document::parse(index, &[]).map_err(|error| invalid(format!("not JSON: {error}")))?;
    let map = document.root().get("weight_map").ok_or_else(|| invalid("it has no 'weight_map'".to_owned()))?;
    let mut files = std::collections::BTreeSet::new();
    for (tensor, file) in map.members() {
        let file = file.as_str().filter(|file| is_file_name(file));
        let file = file.ok_or_else(|| {
            invalid(format!("tensor '{tensor}' is not in a file NAME.safetensors of the same folder"))
        })?;
        files.insert(file.to_owned());
        if files.len() > FILES_MAX {
            return Err(invalid(format!("it names more than {FILES_MAX} files")));
        }
    }
    if files.is_empty() {
        return Err(invalid("it names no file".to_owned()));
    }
    Ok(files.into_iter().collect())
}

fn is_file_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

/// Input rows that a transposition writes at a time: their cache lines stay in the first level.
const ROWS_AT_ONCE: usize = 16;

impl<'a> WeightView<'a> {
    /// Number of elements.
    pub(crate) const fn len(self) -> usize {
        self.bytes.len() / self.element.size()
    }

    /// Some of the rows of a matrix; empty if they are not inside it.
    pub(crate) fn rows(self, first: usize, count: usize, width: usize) -> Self {
        let size = width * self.element.size();
        let bytes = self.bytes.get(first * size..(first + count) * size).unwrap_or_default();
        Self { bytes, ..self }
    }

    /// Returns true if the other has the same elements.
    pub(crate) fn is_same(self, other: Self) -> bool {
        self.element == other.element && self.bytes == other.bytes
    }

    /// The elements as floats.
    pub(crate) fn floats(self) -> Vec<f32> {
        let mut bytes = Vec::with_capacity(4 * self.len());
        self.write(&mut bytes);
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// Appends the elements as FP32, little-endian.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        // `OnnxDraft` takes no view of another datatype.
        self.element.append_floats(self.bytes, out);
    }

    /// Writes a matrix `[outputs, inputs]`, transposed, in FP32.
    pub(crate) fn write_columns(self, inputs: usize, out: &mut [[u8; 4]]) {
        match self.element {
            WeightType::Float => transpose(self.bytes.as_chunks().0, |bytes| *bytes, inputs, out),
            WeightType::Half => transpose(self.bytes.as_chunks().0, float_of_half, inputs, out),
            WeightType::BrainFloat => transpose(self.bytes.as_chunks().0, float_of_brain_float, inputs, out),
            WeightType::Other(_) => {}
        }
    }
}

fn transpose<const N: usize>(
    elements: &[[u8; N]],
    convert: impl Fn(&[u8; N]) -> [u8; 4],
    inputs: usize,
    out: &mut [[u8; 4]],
) {
    let outputs = elements.len() / inputs;
    for (block, lines) in out.chunks_mut(ROWS_AT_ONCE * outputs).enumerate() {
        for (output, row) in elements.chunks_exact(inputs).enumerate() {
            let row = row.iter().skip(ROWS_AT_ONCE * block).take(ROWS_AT_ONCE);
            for (element, place) in row.zip(lines.iter_mut().skip(output).step_by(outputs)) {
                *place = convert(element);
            }
        }
    }
}

#[cfg(test)]
mod tests;
