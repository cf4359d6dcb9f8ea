//! The contents of the regions: the order to load a model, the description of a batch, and replies.
//! Tensors follow a description or a reply. Pure. Data from a process is a claim: an engine may
//! have overwritten anything.

use std::path::PathBuf;

use crate::python::message::{
    ClaimedTensor, MessageError, PieceReader, Span, SpanLayout, put_bytes32, put_count, put_cut_text, put_path,
    put_str32, put_tensor, put_u16, put_u32, put_u64,
};
use backend::{Answer, Request};
use base::error::{Code, Error};
use base::limits::{REQUEST_TENSORS_MAX, TENSOR_ALIGNMENT};
use base::tensor::Tensor;
use base::time::Instant;

/// The library that has an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineLibrary {
    /// The engine that it has.
    pub kind: EngineKind,
    /// Its file.
    pub path: PathBuf,
    /// A library with operators of the user's that is opened with it; empty for none.
    pub extension: String,
}

/// The engines that are libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// ONNX Runtime.
    Onnxruntime,
    /// OpenVINO.
    Openvino,
    /// PyTorch: the shim that is compiled for it.
    Pytorch,
    /// TensorFlow.
    Tensorflow,
}

const ENGINE_KINDS: [EngineKind; 4] =
    [EngineKind::Onnxruntime, EngineKind::Openvino, EngineKind::Pytorch, EngineKind::Tensorflow];

/// The order to load a model in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOrder {
    /// The library of the engine; `None` for the embedded one.
    pub library: Option<EngineLibrary>,
    /// Bytes that one run of the embedded engine may take, and the outputs of a batch of any
    /// engine.
    pub run_memory_max: u64,
    /// The name of the model, for the line of a crash.
    pub model: String,
    /// The effective configuration, an encoded `inference.ModelConfig`.
    pub config: Vec<u8>,
    /// The outputs whose shape was read from the model's file.
    pub derived: Vec<String>,
    /// The version's directory.
    pub directory: PathBuf,
}

impl EngineOrder {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // The number of the kind, from one; 0 for the embedded engine.
        let place = |kind| ENGINE_KINDS.iter().position(|have| *have == kind).map_or(0, |place| place + 1);
        put_count(self.library.as_ref().map_or(0, |library| place(library.kind)), &mut out);
        if let Some(EngineLibrary { path, extension, .. }) = &self.library {
            put_path(path, &mut out);
            put_str32(extension, &mut out);
        }
        put_u64(self.run_memory_max, &mut out);
        put_str32(&self.model, &mut out);
        put_bytes32(&self.config, &mut out);
        put_count(self.derived.len(), &mut out);
        self.derived.iter().for_each(|name| put_str32(name, &mut out));
        put_path(&self.directory, &mut out);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut reader = PieceReader::new(bytes);
        let order = Self {
            library: match reader.count32()?.checked_sub(1) {
                None => None,
                Some(place) => {
                    let kind = ENGINE_KINDS.get(place).copied().ok_or(MessageError::Value("an engine"))?;
                    Some(EngineLibrary { kind, path: reader.path32()?, extension: reader.string32()? })
                }
            },
            run_memory_max: reader.u64()?,
            model: reader.string32()?,
            config: reader.bytes32()?.to_vec(),
            derived: reader.list32(PieceReader::string32)?,
            directory: reader.path32()?,
        };
        reader.finish()?;
        Ok(order)
    }
}

/// A message at the start of a region, and the place of the tensors after it.
pub(super) struct RegionMessage {
    /// The message itself.
    pub(super) head: Vec<u8>,
    /// The tensors.
    pub(super) span: Span,
}

impl RegionMessage {
    fn new(head: Vec<u8>, layout: SpanLayout) -> Self {
        let span = span(head.len() as u64, layout.size());
        Self { head, span }
    }

    /// The bytes of the region that it needs.
    pub(super) const fn size(&self) -> u64 {
        self.span.offset + self.span.size
    }
}

/// The place of `size` bytes of tensors after a message of `head_size` bytes.
pub(super) const fn span(head_size: u64, size: u64) -> Span {
    Span { slot: 1, region: 0, offset: head_size.next_multiple_of(TENSOR_ALIGNMENT as u64), size }
}

/// One request of a batch, as the process sees it.
pub(super) struct ClaimedRequest {
    pub(super) rows: u32,
    /// `None` for an optional input that was left out.
    pub(super) inputs: Vec<Option<ClaimedTensor>>,
}

/// The answer to one request, as the server sees it.
pub(super) struct ClaimedAnswer {
    pub(super) batch_rows: u32,
    pub(super) is_first: bool,
    /// The times at which the engine had the inputs and was done, in nanoseconds since the process
    /// began the batch.
    pub(super) input_end: u64,
    pub(super) infer_end: u64,
    pub(super) outputs: Result<Vec<ClaimedTensor>, Error>,
}

/// Describes a batch.
pub(super) fn encode_batch(requests: &[Request]) -> Result<RegionMessage, MessageError> {
    let (mut head, mut layout) = (Vec::new(), SpanLayout::default());
    put_count(requests.len(), &mut head);
    for request in requests {
        put_u32(request.rows, &mut head);
        put_u16(u16::try_from(request.inputs.len()).map_err(|_| MessageError::Count)?, &mut head);
        for input in &request.inputs {
            head.push(u8::from(input.is_given()));
            if input.is_given() {
                put_tensor(input, layout.place(input.contents.len()), &mut head)?;
            }
        }
    }
    Ok(RegionMessage::new(head, layout))
}

/// The bytes placed by [`encode_batch`].
pub(super) fn batch_parts(requests: &[Request]) -> impl Iterator<Item = &[u8]> {
    let inputs = requests.iter().flat_map(|request| &request.inputs);
    inputs.filter(|input| input.is_given()).map(|input| &*input.contents)
}

pub(super) fn decode_batch(head: &[u8]) -> Result<Vec<ClaimedRequest>, MessageError> {
    let mut reader = PieceReader::new(head);
    let requests = reader.list32(|reader| {
        let rows = reader.u32()?;
        let inputs = reader.list16(REQUEST_TENSORS_MAX, |reader| match reader.flag()? {
            true => reader.tensor().map(Some),
            false => Ok(None),
        })?;
        Ok(ClaimedRequest { rows, inputs })
    })?;
    reader.finish()?;
    Ok(requests)
}

/// Describes the answers to a batch that the process began at `began`.
pub(super) fn encode_answers(answers: &[Answer], began: Instant) -> Result<RegionMessage, MessageError> {
    let (mut head, mut layout) = (Vec::new(), SpanLayout::default());
    put_count(answers.len(), &mut head);
    for answer in answers {
        put_u32(answer.batch_rows, &mut head);
        head.push(u8::from(answer.is_first));
        for stamp in [answer.stamps.input_end, answer.stamps.infer_end] {
            put_u64(u64::try_from(stamp.since(began).as_nanos()).unwrap_or(u64::MAX), &mut head);
        }
        match &answer.outputs {
            Err(error) => put_outcome(Err(error), &mut head),
            Ok(outputs) => {
                put_outcome(Ok(()), &mut head);
                put_u16(u16::try_from(outputs.len()).map_err(|_| MessageError::Count)?, &mut head);
                for output in outputs {
                    put_tensor(output, layout.place(output.contents.len()), &mut head)?;
                }
            }
        }
    }
    Ok(RegionMessage::new(head, layout))
}

/// The outputs placed by [`encode_answers`].
pub(super) fn answer_parts(answers: &[Answer]) -> impl Iterator<Item = &[u8]> {
    let outputs = answers.iter().filter_map(|answer| answer.outputs.as_ref().ok()).flatten();
    outputs.map(|output: &Tensor| &*output.contents)
}

/// Reads the answers to `requests` requests.
pub(super) fn decode_answers(head: &[u8], requests: usize) -> Result<Vec<ClaimedAnswer>, MessageError> {
    let mut reader = PieceReader::new(head);
    if reader.count32()? != requests {
        return Err(MessageError::Count);
    }
    let answers = reader.list(requests, |reader| {
        Ok(ClaimedAnswer {
            batch_rows: reader.u32()?,
            is_first: reader.flag()?,
            input_end: reader.u64()?,
            infer_end: reader.u64()?,
            outputs: match take_outcome(reader)? {
                Ok(()) => Ok(reader.list16(REQUEST_TENSORS_MAX, PieceReader::tensor)?),
                Err(error) => Err(error),
            },
        })
    })?;
    reader.finish()?;
    Ok(answers)
}

/// The reply to an order or to an instance.
pub(super) fn encode_outcome(outcome: Result<(), &Error>) -> Vec<u8> {
    let mut head = Vec::new();
    put_outcome(outcome, &mut head);
    head
}

pub(super) fn decode_outcome(head: &[u8]) -> Result<Result<(), Error>, MessageError> {
    let mut reader = PieceReader::new(head);
    let outcome = take_outcome(&mut reader)?;
    reader.finish()?;
    Ok(outcome)
}

/// A zero, or the number of an error's code from one and its text.
fn put_outcome(outcome: Result<(), &Error>, out: &mut Vec<u8>) {
    let Err(error) = outcome else { return out.push(0) };
    out.push(error.code().number());
    put_cut_text(error.text(), out);
}

fn take_outcome(reader: &mut PieceReader<'_>) -> Result<Result<(), Error>, MessageError> {
    let number = reader.u8()?;
    if number == 0 {
        return Ok(Ok(()));
    }
    let code = Code::of_number(number).ok_or(MessageError::Value("a code"))?;
    Ok(Err(Error::new(code, reader.string32()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::trial::{TrialAnswers, tensor};
    use base::tensor::{Datatype, Shape};

    #[test]
    fn an_order_comes_as_it_was_sent_and_no_part_of_it_is_one() {
        let order = EngineOrder {
            library: Some(EngineLibrary {
                kind: EngineKind::Tensorflow,
                path: "/a b/lib\u{e9}.so".into(),
                extension: "/own.so".to_owned(),
            }),
            model: "m".to_owned(),
            run_memory_max: 1 << 40,
            config: vec![0, 1, 2],
            derived: vec!["y".to_owned(), String::new()],
            directory: "/models/m/1".into(),
        };
        let embedded = EngineOrder { library: None, derived: Vec::new(), ..order.clone() };
        for order in [order, embedded] {
            let bytes = order.encode();
            assert_eq!(EngineOrder::decode(&bytes), Ok(order));
            (0..bytes.len()).for_each(|size| assert!(EngineOrder::decode(&bytes[..size]).is_err(), "{size}"));
        }
    }

    #[test]
    fn every_code_comes_back_and_others_are_refused() {
        for code in Code::ALL {
            let error = Error::new(code, "a \u{e9}\ntext");
            assert_eq!(decode_outcome(&encode_outcome(Err(&error))), Ok(Err(error)));
        }
        assert_eq!(decode_outcome(&encode_outcome(Ok(()))), Ok(Ok(())));
        assert_eq!(decode_outcome(&[99, 0, 0, 0, 0]), Err(MessageError::Value("a code")));
        assert_eq!(decode_outcome(&[0, 0]), Err(MessageError::Trailing));
    }

    #[test]
    fn a_batch_and_its_answers_come_with_the_places_of_their_tensors() {
        let answers = TrialAnswers::default();
        let left_out = Tensor { datatype: Datatype::Fp32, shape: Shape::new(), contents: bytes::Bytes::new() };
        let first = (vec![tensor(&[1, 3], &[1_u8, 2, 3]), left_out], 1);
        let second = (vec![tensor(&[2, 3], &[0_u8; 6]), tensor(&[2], &[0.5_f32, 1.0])], 2);
        let batch = answers.batch(vec![first, second]);
        let RegionMessage { head, span } = encode_batch(&batch.requests).unwrap();
        assert!(span.offset >= head.len() as u64 && span.offset.is_multiple_of(64));
        assert_eq!((span.size, batch_parts(&batch.requests).count()), (64 + 64 + 8, 3));
        let requests = decode_batch(&head).unwrap();
        let places = |request: &ClaimedRequest| -> Vec<_> {
            request.inputs.iter().map(|input| input.as_ref().map(|input| (input.offset, input.size))).collect()
        };
        assert_eq!(places(&requests[0]), [Some((0, 3)), None]);
        assert_eq!((places(&requests[1]), requests[1].rows), (vec![Some((64, 6)), Some((128, 8))], 2));
        (0..head.len()).for_each(|size| assert!(decode_batch(&head[..size]).is_err(), "{size}"));
        let mut requests = batch.requests.into_iter();
        requests.next().unwrap().responder.send(Ok(vec![tensor(&[1], &[7_i64])]));
        requests.next().unwrap().responder.send(Err(Error::invalid("no")));
        let answers = answers.take(2);
        let RegionMessage { head, span } = encode_answers(&answers, Instant::ZERO).unwrap();
        assert_eq!((span.size, answer_parts(&answers).count()), (8, 1));
        assert!(decode_answers(&head, 3).is_err(), "one for each request");
        let got = decode_answers(&head, 2).unwrap();
        assert_eq!((got[0].batch_rows, got[0].is_first, got[1].is_first), (3, true, false));
        assert_eq!(got[0].outputs.as_ref().unwrap()[0].datatype, Datatype::Int64);
        assert_eq!(got[1].outputs, Err(Error::invalid("no")));
        (0..head.len()).for_each(|size| assert!(decode_answers(&head[..size], 2).is_err(), "{size}"));
    }
}
