//! Finds the external data files of an ONNX file (`TensorProto.external_data`): of weights, of constants in nodes, and of
//! those in nested graphs; and copies their tensors into the file. Called when a model is loaded, because an engine would
//! open these paths itself. Skips everything else by its length; bounded by `EXTERNAL_FILES_MAX`, `GRAPHS_DEEP_MAX` and
//! `MODEL_SIZE_MAX`.

use std::collections::BTreeSet;

use crate::limits::GRAPHS_DEEP_MAX;
use crate::onnx::initializer::{MessageParts, push_varint};
use crate::onnx::{OnnxField, OnnxFields, find};
use base::error::Error;
use base::limits::MODEL_SIZE_MAX;

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

/// A part of an external data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalPart<'a> {
    /// The path of the file as the ONNX file has it.
    pub location: &'a str,
    /// Its first byte.
    pub offset: u64,
    /// Its bytes; `None` for all that follow.
    pub length: Option<u64>,
}

/// Appends a part of an external data file.
pub type ReadExternal<'a> = dyn Fn(ExternalPart<'_>, &mut Vec<u8>) -> Result<(), String> + 'a;

/// The ONNX file with the tensors of its external data files in it. `read` appends a tensor.
///
/// # Errors
/// `InvalidArgument` if the file is not protobuf, has more than protobuf allows with its tensors, or `read` fails.
pub fn with_external(file: &[u8], read: &ReadExternal<'_>) -> Result<Vec<u8>, Error> {
    // This checks the depth of the graphs, which bounds the recursion.
    external_files(file)?;
    let mut whole = Vec::with_capacity(file.len());
    copy_message(MessageKind::Model, file, read, &mut whole).map_err(Error::invalid)?;
    Ok(whole)
}

/// Appends a message, with the tensors of other files in it.
fn copy_message(kind: MessageKind, message: &[u8], read: &ReadExternal<'_>, whole: &mut Vec<u8>) -> Result<(), String> {
    if let MessageKind::Tensor = kind {
        return copy_tensor(message, read, whole);
    }
    for part in MessageParts::new(message) {
        let (bytes, number, field) = part?;
        if let (Some(message), OnnxField::Bytes(inner)) = (kind.child(number), field) {
            let mut copied = Vec::new();
            copy_message(message, inner, read, &mut copied)?;
            push_field(number, &copied, whole)?;
        } else {
            whole.extend_from_slice(bytes);
        }
    }
    Ok(())
}

/// `TensorProto`: `external_data` (13) counts if `data_location` (14) is 1, and then becomes `raw_data` (9).
fn copy_tensor(tensor: &[u8], read: &ReadExternal<'_>, whole: &mut Vec<u8>) -> Result<(), String> {
    let (mut location, mut offset, mut length, mut is_external) = (None, 0, None, false);
    for field in OnnxFields::new(tensor) {
        match field? {
            (13, OnnxField::Bytes(pair)) => {
                let value = str::from_utf8(find(pair, 2)?.unwrap_or_default());
                let value = value.map_err(|_| "a tensor's external data are not UTF-8".to_owned())?;
                let wrong = |_| format!("a tensor's external data has '{value}', not a number");
                let number = || value.parse::<u64>().map_err(wrong);
                match find(pair, 1)? {
                    Some(b"location") => location = Some(value),
                    Some(b"offset") => offset = number()?,
                    Some(b"length") => length = Some(number()?),
                    _ => {}
                }
            }
            (14, OnnxField::Varint(place)) => is_external = place == 1,
            _ => {}
        }
    }
    let Some(location) = location.filter(|_| is_external) else {
        whole.extend_from_slice(tensor);
        return Ok(());
    };
    for part in MessageParts::new(tensor) {
        let (bytes, number, _) = part?;
        if !matches!(number, 9 | 13 | 14) {
            whole.extend_from_slice(bytes);
        }
    }
    let mut contents = Vec::new();
    read(ExternalPart { location, offset, length }, &mut contents)?;
    push_field(9, &contents, whole)
}

fn push_field(number: u32, value: &[u8], whole: &mut Vec<u8>) -> Result<(), String> {
    push_varint(u64::from(number) << 3 | 2, whole);
    push_varint(value.len() as u64, whole);
    if whole.len().saturating_add(value.len()) >= MODEL_SIZE_MAX {
        return Err(format!("with its tensors it has more than the {MODEL_SIZE_MAX} bytes that protobuf allows"));
    }
    whole.extend_from_slice(value);
    Ok(())
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
    fn tensors_of_other_files_are_copied_in_wherever_they_are() {
        let external = |place: &str, more: &[(&str, &str)]| {
            let pairs = [&[("location", place)], more].concat();
            let pair = |(key, value): &(&str, &str)| {
                field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
            };
            [field(8, b"w"), pairs.iter().flat_map(pair).collect(), vec![14 << 3, 1]].concat()
        };
        let read = |part: ExternalPart<'_>, out: &mut Vec<u8>| {
            let end = part.length.map_or("end".to_owned(), |length| length.to_string());
            out.extend_from_slice(format!("{} {} {end}", part.location, part.offset).as_bytes());
            if part.location == "absent" { Err("it is absent".to_owned()) } else { Ok(()) }
        };
        let copied = |file: &[u8]| with_external(file, &read).map_err(|error| error.text().to_owned());
        for path in [&[7, 5][..], &[7, 15, 1], &[7, 1, 5, 5], &[7, 1, 5, 6, 5], &[25, 7, 5, 5]] {
            let got = copied(&nested(path, external("a", &[("offset", "4"), ("length", "8")]))).unwrap();
            assert!(external_files(&got).unwrap().is_empty(), "{path:?}");
            assert!(got.windows(5).any(|bytes| bytes == b"a 4 8"), "{path:?}");
            assert_eq!(copied(&got).unwrap(), got, "{path:?}");
        }
        let mut want = field(8, b"w");
        push_field(9, b"a 0 end", &mut want).unwrap();
        let mut graph = Vec::new();
        push_field(5, &want, &mut graph).unwrap();
        let mut file = Vec::new();
        push_field(7, &graph, &mut file).unwrap();
        assert_eq!(copied(&nested(&[7, 5], external("a", &[]))).unwrap(), file);
        let here = nested(&[7, 5], tensor("unused"));
        assert!(copied(&here).unwrap().ends_with(b"unused"), "data_location says that its data are here");
        assert_eq!(copied(&nested(&[7, 5], external("absent", &[]))).unwrap_err(), "it is absent");
        let wrong = copied(&nested(&[7, 5], external("a", &[("offset", "-1")]))).unwrap_err();
        assert_eq!(wrong, "a tensor's external data has '-1', not a number");
        assert!(copied(&[0x3a, 0x7f]).is_err());
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
