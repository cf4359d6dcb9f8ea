//! Our readers compared with `prost` on generated, damaged and stored messages.

use std::fs;

use bytes::Bytes;
use prost::Message;

use crate::grpc::differential::{Agreement, compare, fuzz};
use crate::grpc::message::{InferMessage, RAW_INPUT_CONTENTS};
use base::limits::TENSOR_ALIGNMENT;
use base::tensor::AlignedBuffer;
use wire::grpc::{Gatherer, prefix};
use wire::message::BodyBuffer;
use wire::proto::inference as proto;
use wire::proto::inference::infer_parameter::ParameterChoice;
use wire::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use wire::protobuf::{put_bytes_head, put_varint};

/// A small random generator (xorshift64*): a seed identifies a case.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Mostly small, sometimes any 64-bit number.
    fn number(&mut self) -> u64 {
        let shift = self.below(64);
        self.next() >> shift
    }

    fn list<T>(&mut self, max: u64, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(max + 1)).map(|_| item(self)).collect()
    }

    fn text(&mut self) -> String {
        let texts = ["", "a", "INPUT0", "INT32", "FP32", "priority", "é", "triton_x"];
        texts[self.below(texts.len() as u64) as usize].to_owned()
    }

    fn parameter(&mut self) -> proto::InferParameter {
        let parameter_choice = match self.below(6) {
            0 => Some(ParameterChoice::BoolParam(self.below(2) == 1)),
            1 => Some(ParameterChoice::Int64Param(self.number().cast_signed())),
            2 => Some(ParameterChoice::StringParam(self.text())),
            3 => Some(ParameterChoice::DoubleParam(f64::from_bits(self.next()))),
            4 => Some(ParameterChoice::Uint64Param(self.number())),
            _ => None,
        };
        proto::InferParameter { parameter_choice }
    }

    fn parameters(&mut self) -> std::collections::BTreeMap<String, proto::InferParameter> {
        self.list(3, |random| (random.text(), random.parameter())).into_iter().collect()
    }

    fn contents(&mut self) -> proto::InferTensorContents {
        let mut contents = proto::InferTensorContents::default();
        match self.below(9) {
            0 => contents.bool_contents = self.list(4, |random| random.below(2) == 1),
            1 => contents.int_contents = self.list(4, |random| random.number() as i32),
            2 => contents.int64_contents = self.list(4, |random| random.number().cast_signed()),
            3 => contents.uint_contents = self.list(4, |random| random.number() as u32),
            4 => contents.uint64_contents = self.list(4, Self::number),
            5 => contents.fp32_contents = self.list(4, |random| f32::from_bits(random.next() as u32)),
            6 => contents.fp64_contents = self.list(4, |random| f64::from_bits(random.next())),
            7 => contents.bytes_contents = self.list(4, |random| random.text().into_bytes()),
            _ => {}
        }
        contents
    }

    fn request(&mut self) -> proto::ModelInferRequest {
        let input = |random: &mut Self| InferInputTensor {
            name: random.text(),
            datatype: random.text(),
            shape: random.list(4, |random| random.number().cast_signed()),
            parameters: random.parameters(),
            contents: (random.below(2) == 0).then(|| random.contents()),
        };
        let output =
            |random: &mut Self| InferRequestedOutputTensor { name: random.text(), parameters: random.parameters() };
        proto::ModelInferRequest {
            model_name: self.text(),
            model_version: self.text(),
            id: self.text(),
            parameters: self.parameters(),
            inputs: self.list(3, input),
            outputs: self.list(3, output),
            raw_input_contents: self.list(2, |random| random.text().into()),
        }
    }

    /// Fields of random number and wire type, nested, as no encoder would write them.
    fn fields(&mut self, depth: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..self.below(5) {
            let number = self.below(9) as u32 + u32::from(self.below(50) > 0);
            let inner = if depth > 0 && self.below(2) == 0 { self.fields(depth - 1) } else { self.text().into_bytes() };
            match self.below(8) {
                0 | 1 => {
                    put_varint(u64::from(number << 3), &mut out);
                    let value = self.number();
                    put_varint(value, &mut out);
                }
                2 => out.extend([(number << 3 | 5) as u8, 1, 2, 3, 4]),
                3 => out.extend([(number << 3 | 1) as u8, 1, 2, 3, 4, 5, 6, 7, 8]),
                4 if number > 7 => {
                    put_varint(u64::from(number << 3 | 3), &mut out);
                    out.extend(inner);
                    put_varint(u64::from(number << 3 | 4), &mut out);
                }
                _ => {
                    put_bytes_head(number, inner.len(), &mut out);
                    out.extend(inner);
                }
            }
        }
        out
    }

    /// Changes, removes or adds a few bytes.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len() as u64 + 1) as usize;
            match self.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.next() as u8),
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                _ => {}
            }
        }
    }
}

/// Runs one case per seed. The readers must agree on each, and enough cases must be accepted and refused.
fn check(seeds: u64, accepted_min: usize, refused_min: usize, case: impl Fn(&mut Random) -> Vec<u8>) {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 1..=seeds {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let bytes = Bytes::from(case(&mut random));
        match compare(&bytes) {
            Ok(Agreement::Accepted) => accepted += 1,
            Ok(Agreement::Refused) => refused += 1,
            Ok(Agreement::Limited) => {}
            Err(text) => panic!("seed {seed}: {bytes:?}\n{text}"),
        }
        assert_eq!(fuzz(&bytes), Ok(()), "seed {seed}");
    }
    assert!(accepted >= accepted_min && refused >= refused_min, "{accepted} accepted, {refused} refused");
}

#[test]
fn what_prost_writes_is_read_alike() {
    check(5_000, 5_000, 0, |random| random.request().encode_to_vec());
}

#[test]
fn messages_one_after_the_other_merge_as_prosts_do() {
    check(5_000, 5_000, 0, |random| {
        // Two inputs concatenated into one field: their contents merge.
        let mut bytes = random.request().encode_to_vec();
        let mut input = random.request().inputs.pop().unwrap_or_default().encode_to_vec();
        input.extend(random.request().inputs.pop().unwrap_or_default().encode_to_vec());
        put_bytes_head(5, input.len(), &mut bytes);
        bytes.extend(input);
        bytes.extend(random.request().encode_to_vec());
        bytes
    });
}

#[test]
fn damaged_messages_are_accepted_or_refused_alike() {
    check(40_000, 3_000, 10_000, |random| {
        let mut bytes = random.request().encode_to_vec();
        random.damage(&mut bytes);
        bytes
    });
}

#[test]
fn fields_of_any_kind_are_accepted_or_refused_alike() {
    check(60_000, 3_000, 3_000, |random| random.fields(4));
}

#[test]
fn stored_inputs_of_the_fuzzer_pass() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/grpc");
    let files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty());
    for file in files {
        assert_eq!(fuzz(&fs::read(&file).unwrap()), Ok(()), "{}", file.display());
    }
}

/// A buffer that really is aligned.
struct Aligned(AlignedBuffer);

impl BodyBuffer for Aligned {
    fn announced(aligned_at: usize, size: usize) -> Self {
        Self(AlignedBuffer::announced(aligned_at, size))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        self.0.as_mut_slice()
    }

    fn resize(&mut self, size: usize) {
        self.0.resize(size);
    }

    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn freeze(self) -> Bytes {
        self.0.freeze()
    }
}

#[test]
fn the_first_raw_contents_of_a_gathered_request_are_aligned() {
    let mut random = Random(7);
    for size in [0, 1, 300, 5_000_000] {
        let mut request = random.request();
        request.raw_input_contents = vec![vec![7; size].into(), Bytes::from_static(b"second")];
        let message = request.encode_to_vec();
        let framed = Bytes::from([&prefix(message.len()).unwrap()[..], &message].concat());
        for cut in [1, 5, 6, 20, framed.len()] {
            let mut gatherer: Gatherer<Aligned> = Gatherer::new(1 << 23, RAW_INPUT_CONTENTS);
            let (mut first, mut second) = framed.split_at(cut);
            let gathered = gatherer.handle_chunk(&mut first).unwrap();
            let gathered = gathered.or_else(|| gatherer.handle_chunk(&mut second).unwrap()).unwrap();
            assert_eq!(gathered, message);
            let raw = InferMessage::read(&gathered).unwrap().raw(0).unwrap();
            assert_eq!(raw.len(), size);
            assert!(size == 0 || raw.as_ptr().addr().is_multiple_of(TENSOR_ALIGNMENT), "{size} {cut}");
        }
    }
}
