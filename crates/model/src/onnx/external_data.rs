//! Finds the external data files of an ONNX file (`TensorProto.external_data`): of weights, of constants in nodes, and of
//! those in nested graphs. Called when a model is loaded, because an engine would open these paths itself. Skips
//! everything else by its length; bounded by `EXTERNAL_FILES_MAX` and `GRAPHS_DEEP_MAX`.

use std::collections::BTreeSet;

use crate::limits::GRAPHS_DEEP_MAX;
use crate::onnx::{OnnxField, OnnxFields, find};
use base::error::Error;

/// External data files of one ONNX model: exporters write one in all, or one for each layer.
const EXTERNAL_FILES_MAX: usize = 16_384;

/// The paths of external data files as the ONNX file has them, each once, sorted.
///
/// # Errors
/// `InvalidArgument` if the file is not protobuf, has too many external files, or nests graphs too deep.
pub fn external_files(file: &[u8]) -> Result<Vec<String>, Error> {
    let found = ExternalSearch::default().run(file);
    found.map_err(|reason| Error::invalid(format!("not an ONNX file that can be used: {reason}")))
}

/// The type of a message, for messages that may contain tensors.
#[derive(Clone, Copy)]
enum MessageKind {
    Attribute,
    Function,
    Graph,
    Model,
    Node,
    SparseTensor,
    Tensor,
}

#[derive(Default)]
struct ExternalSearch {
    locations: BTreeSet<String>,
}

impl ExternalSearch {
    /// Walks nested messages with a stack of its own and not by recursion: the file sets their
    /// depth.
    fn run(mut self, file: &[u8]) -> Result<Vec<String>, String> {
        let mut left = vec![(MessageKind::Model, file, 0)];
        while let Some((kind, bytes, depth)) = left.pop() {
            if let MessageKind::Tensor = kind {
                self.read_tensor(bytes)?;
                continue;
            }
            let depth = depth + usize::from(matches!(kind, MessageKind::Graph));
            if depth > GRAPHS_DEEP_MAX {
                return Err(format!("its graphs are nested more than {GRAPHS_DEEP_MAX} deep"));
            }
            for field in OnnxFields::new(bytes) {
                if let (number, OnnxField::Bytes(inner)) = field?
                    && let Some(message) = kind.child(number)
                {
                    left.push((message, inner, depth));
                }
            }
        }
        Ok(self.locations.into_iter().collect())
    }

    /// `TensorProto`: one pair of `external_data` (13) is the `location`. `data_location` (14) says
    /// if it counts, but is ignored here: an engine that ignores it too must not open a file that
    /// was not checked.
    fn read_tensor(&mut self, tensor: &[u8]) -> Result<(), String> {
        for field in OnnxFields::new(tensor) {
            let (13, OnnxField::Bytes(pair)) = field? else { continue };
            if find(pair, 1)? != Some(b"location") {
                continue;
            }
            let location = find(pair, 2)?.unwrap_or_default();
            let location = str::from_utf8(location).map_err(|_| "the location of a tensor is not UTF-8".to_owned())?;
            self.locations.insert(location.to_owned());
            if self.locations.len() > EXTERNAL_FILES_MAX {
                return Err(format!("it keeps tensors in more than {EXTERNAL_FILES_MAX} other files"));
            }
        }
        Ok(())
    }
}

impl MessageKind {
    /// The type of the message in a field; `None` if it cannot contain tensors (`onnx.proto`).
    const fn child(self, field: u32) -> Option<Self> {
        Some(match (self, field) {
            (Self::Model, 7) | (Self::Attribute, 6 | 11) => Self::Graph,
            (Self::Model, 25) => Self::Function,
            (Self::Graph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::SparseTensor, 1 | 2) => Self::Tensor,
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Self::SparseTensor,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of bytes.
    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        let size = u16::try_from(value.len()).unwrap();
        let [low, high] = [size as u8 & 0x7f | 0x80, (size >> 7) as u8];
        let key = if number < 16 { vec![number << 3 | 2] } else { vec![(number << 3 | 2) | 0x80, number >> 4] };
        [&key[..], &[low, high], value].concat()
    }

    fn nested(path: &[u8], value: Vec<u8>) -> Vec<u8> {
        path.iter().rev().fold(value, |value, number| field(*number, &value))
    }

    fn tensor(place: &str) -> Vec<u8> {
        let offset = field(13, &[field(1, b"offset"), field(2, b"0")].concat());
        let location = field(13, &[field(1, b"location"), field(2, place.as_bytes())].concat());
        [field(8, b"w"), offset, location].concat()
    }

    #[test]
    fn tensors_are_found_wherever_a_file_may_have_them() {
        for path in [
            &[7, 5][..],             // initializer
            &[7, 15, 1],             // sparse_initializer, its values
            &[7, 1, 5, 5],           // a node's attribute
            &[7, 1, 5, 10],          // one of many
            &[7, 1, 5, 22, 2],       // a sparse one, its indices
            &[7, 1, 5, 6, 5],        // the graph of a branch
            &[7, 1, 5, 11, 1, 5, 5], // a node there
            &[25, 7, 5, 5],          // a function
        ] {
            assert_eq!(external_files(&nested(path, tensor("w.bin"))).unwrap(), ["w.bin"], "{path:?}");
        }
        let two =
            [nested(&[7, 5], tensor("b")), nested(&[7, 5], tensor("../a")), nested(&[7, 5], tensor("b"))].concat();
        assert_eq!(external_files(&two).unwrap(), ["../a", "b"]);
        let none = [nested(&[7, 5], field(8, b"w")), nested(&[7, 2], tensor("no")), field(6, b"location")].concat();
        assert!(external_files(&none).unwrap().is_empty());
    }

    #[test]
    fn graphs_too_deep_files_too_many_and_broken_messages_are_refused() {
        let refusal = |file: &[u8]| external_files(file).unwrap_err().text().to_owned();
        let deep = |count: usize| {
            let path: Vec<u8> = [7].into_iter().chain([1, 5, 6].into_iter().cycle().take(3 * count)).collect();
            nested(&[&path[..], &[5]].concat(), tensor("w"))
        };
        assert_eq!(external_files(&deep(GRAPHS_DEEP_MAX - 1)).unwrap(), ["w"]);
        assert!(refusal(&deep(GRAPHS_DEEP_MAX)).contains("nested more than"));
        let many: Vec<u8> =
            (0..=EXTERNAL_FILES_MAX).flat_map(|index| nested(&[7, 5], tensor(&index.to_string()))).collect();
        assert!(refusal(&many).contains("other files"));
        assert!(refusal(&nested(&[7, 5], vec![0x6a, 0x7f])).contains("cut short"));
    }
}
