//! Keys and values of a cache that servers share, such as Redis. A key identifies a request by its
//! contents; a value holds the answer as bytes, which are checked when they come back. Pure.
//!
//! A key is the SHA-256 of the model versions that answer, the inputs, the client's parameters and
//! the requested outputs: no client can construct two requests with the same key. A value begins
//! with a format version and a digest of its key and body, so that bytes that another program
//! wrote, or that were cut, changed or stored under another key, are not taken for an answer. A
//! program that may write to the cache can still write answers: the digest is not a signature.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use base::tensor::strings::Strings;
use base::tensor::{self, Datatype, Shape, Tensor};
use model::ModelSpec;
use model::parameters::{ParameterValue, Parameters};

/// The key of a cached answer.
pub type SharedKey = [u8; 32];

/// The first bytes of every value: they differ for another format, and so do those of keys (see
/// [`text`]).
const FORMAT: &[u8; 8] = b"deuter\x00\x01";
/// Bytes of the digest after them.
const DIGEST_SIZE: usize = 16;
/// The maximum number of dimensions of an output: the largest number in one byte.
const RANK_MAX: usize = u8::MAX as usize;

/// Returns the key of the answer to a request. `models` are those that answer: the requested one,
/// and the steps of an ensemble. `None` if the identity of one is not known.
pub fn key<'a>(
    models: impl Iterator<Item = &'a ModelSpec>,
    inputs: &[Tensor],
    parameters: &Parameters,
    outputs: &[usize],
) -> Option<SharedKey> {
    let mut hasher = Sha256::new_with_prefix(FORMAT);
    for model in models {
        hasher.update([1]);
        hasher.update(model.identity?.0);
    }
    // Each part has its size in front: no two lists of parts have the same bytes.
    for input in inputs {
        hasher.update([2, u8::from(input.is_given()), datatype_number(input.datatype)]);
        hash_count(&mut hasher, input.shape.len());
        input.shape.iter().for_each(|size| hasher.update(size.to_le_bytes()));
        hash_bytes(&mut hasher, &input.contents);
    }
    for (name, value) in &parameters.0 {
        hasher.update([3]);
        hash_bytes(&mut hasher, name.as_bytes());
        hash_parameter(&mut hasher, value);
    }
    for output in outputs {
        hasher.update([4]);
        hash_count(&mut hasher, *output);
    }
    Some(hasher.finalize().into())
}

fn hash_parameter(hasher: &mut Sha256, value: &ParameterValue) {
    let (kind, number) = match value {
        ParameterValue::Bool(value) => (0, u64::from(*value)),
        ParameterValue::Double(value) => (1, value.to_bits()),
        ParameterValue::Int64(value) => (2, value.cast_unsigned()),
        ParameterValue::Text(value) => {
            hash_bytes(hasher, value.as_bytes());
            (3, 0)
        }
        ParameterValue::Uint64(value) => (4, *value),
    };
    hasher.update([kind]);
    hasher.update(number.to_le_bytes());
}

fn hash_bytes(hasher: &mut Sha256, bytes: &[u8]) {
    hash_count(hasher, bytes.len());
    hasher.update(bytes);
}

fn hash_count(hasher: &mut Sha256, count: usize) {
    hasher.update((count as u64).to_le_bytes());
}

/// A key as it is named in Redis, where other programs may have keys too.
pub fn text(key: &SharedKey) -> String {
    use std::fmt::Write;
    key.iter().fold("deuteron:1:".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Encodes an answer as a value. `None` for an output with more dimensions than the format can
/// count.
pub fn encode(key: &SharedKey, outputs: &[Tensor]) -> Option<Vec<u8>> {
    let size = outputs.iter().fold(64, |size: usize, output| size.saturating_add(output.contents.len() + 64));
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(FORMAT);
    out.extend_from_slice(&[0; DIGEST_SIZE]);
    let begin = out.len();
    out.extend_from_slice(&u16::try_from(outputs.len()).ok()?.to_le_bytes());
    for output in outputs {
        out.extend_from_slice(&[datatype_number(output.datatype), u8::try_from(output.shape.len()).ok()?]);
        output.shape.iter().for_each(|size| out.extend_from_slice(&size.to_le_bytes()));
        out.extend_from_slice(&(output.contents.len() as u64).to_le_bytes());
        out.extend_from_slice(&output.contents);
    }
    let digest = digest(key, out.get(begin..).unwrap_or_default());
    out.get_mut(FORMAT.len()..begin)?.copy_from_slice(&digest);
    Some(out)
}

/// Decodes the answer in a value; `None` if the value is not an answer of this model to the request
/// with this key.
pub fn decode(key: &SharedKey, spec: &ModelSpec, value: &Bytes) -> Option<Vec<Tensor>> {
    let rest = value.strip_prefix(FORMAT)?;
    let (found, body) = rest.split_at_checked(DIGEST_SIZE)?;
    if found != digest(key, body) {
        return None;
    }
    let mut body = value.slice(FORMAT.len() + DIGEST_SIZE..);
    let count = u16::from_le_bytes(take(&mut body)?);
    if usize::from(count) != spec.outputs.len() {
        return None;
    }
    let outputs = spec.outputs.iter().map(|output| take_output(&mut body, output.datatype));
    let outputs: Vec<_> = outputs.collect::<Option<_>>()?;
    body.is_empty().then_some(outputs)
}

fn take_output(body: &mut Bytes, datatype: Datatype) -> Option<Tensor> {
    let [number, rank] = take(body)?;
    let rank = usize::from(rank);
    debug_assert!(rank <= RANK_MAX, "a byte counts them");
    let shape: Shape = (0..rank).map(|_| take(body).map(i64::from_le_bytes)).collect::<Option<_>>()?;
    let size = usize::try_from(u64::from_le_bytes(take(body)?)).ok()?;
    if size > body.len() || number != datatype_number(datatype) {
        return None;
    }
    let output = Tensor { datatype, shape, contents: body.split_to(size) };
    let fits = match tensor::byte_size(datatype, &output.shape) {
        Ok(Some(size)) => output.contents.len() == size,
        Ok(None) => {
            let count = Strings::new(&output.contents).try_fold(0, |count, string| string.map(|_| count + 1));
            count.ok() == tensor::element_count(&output.shape).ok()
        }
        Err(_) => false,
    };
    (fits || output.is_missing()).then_some(output)
}

fn take<const SIZE: usize>(body: &mut Bytes) -> Option<[u8; SIZE]> {
    let first = *body.first_chunk()?;
    let _ = body.split_to(SIZE);
    Some(first)
}

fn digest(key: &SharedKey, body: &[u8]) -> [u8; DIGEST_SIZE] {
    let whole: [u8; 32] = Sha256::new_with_prefix(key).chain_update(body).finalize().into();
    whole.first_chunk().copied().unwrap_or_default()
}

/// The place of a datatype in the protocol's list, which does not change.
fn datatype_number(datatype: Datatype) -> u8 {
    let place = Datatype::ALL.iter().position(|one| *one == datatype);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use model::ModelIdentity;

    const KEY: SharedKey = [7; 32];

    fn model(number: u8, outputs: &[Datatype]) -> ModelSpec {
        let outputs = outputs.iter().map(|datatype| testing::output("y", *datatype, &[-1])).collect();
        ModelSpec { identity: Some(ModelIdentity([number; 32])), ..testing::spec(0, Vec::new(), outputs) }
    }

    fn tensor(datatype: Datatype, shape: &[i64], contents: &[u8]) -> Tensor {
        Tensor { datatype, shape: Shape::from_slice(shape), contents: Bytes::copy_from_slice(contents) }
    }

    fn answer() -> (ModelSpec, Vec<Tensor>) {
        let model = model(1, &[Datatype::Fp32, Datatype::Bytes, Datatype::Int8, Datatype::Bool]);
        let outputs = vec![
            tensor(Datatype::Fp32, &[1, 2], &[0, 0, 128, 63, 0, 0, 0, 64]),
            tensor(Datatype::Bytes, &[2], b"\x01\0\0\0a\0\0\0\0"),
            // Left out by the model, and a scalar.
            tensor(Datatype::Int8, &[], b""),
            tensor(Datatype::Bool, &[], b"\x01"),
        ];
        (model, outputs)
    }

    #[test]
    fn an_answer_comes_back_as_it_was() {
        let (model, outputs) = answer();
        let value = Bytes::from(encode(&KEY, &outputs).unwrap());
        assert_eq!(decode(&KEY, &model, &value), Some(outputs));
        let too_deep = tensor(Datatype::Int8, &[1; 256], b"\0");
        assert_eq!(encode(&KEY, &[too_deep]), None);
    }

    #[test]
    fn what_was_changed_cut_or_is_of_another_is_no_answer() {
        let (model, outputs) = answer();
        let value = encode(&KEY, &outputs).unwrap();
        let found = |value: &[u8]| decode(&KEY, &model, &Bytes::copy_from_slice(value));
        for index in 0..value.len() {
            let mut changed = value.clone();
            changed[index] ^= 1;
            assert_eq!(found(&changed), None, "byte {index}");
            assert_eq!(found(&value[..index]), None, "cut to {index}");
        }
        assert_eq!(found(&[&value[..], b"\0"].concat()), None, "more behind it");
        assert_eq!(found(b"hello"), None);
        let value = Bytes::from(value);
        assert_eq!(decode(&[8; 32], &model, &value), None, "stored under another key");
    }

    #[test]
    fn an_answer_that_is_whole_must_still_fit_the_model() {
        let (_, outputs) = answer();
        let value = Bytes::from(encode(&KEY, &outputs).unwrap());
        let datatypes = [Datatype::Fp32, Datatype::Bytes, Datatype::Int8, Datatype::Uint8];
        assert_eq!(decode(&KEY, &model(1, &datatypes), &value), None, "another datatype");
        assert_eq!(decode(&KEY, &model(1, &datatypes[..3]), &value), None, "fewer outputs");
        let check = |wrong: Tensor| {
            let value = Bytes::from(encode(&KEY, std::slice::from_ref(&wrong)).unwrap());
            assert_eq!(decode(&KEY, &model(1, &[wrong.datatype]), &value), None, "{wrong:?}");
        };
        check(tensor(Datatype::Fp32, &[2], &[0; 4]));
        check(tensor(Datatype::Fp32, &[-1], &[0; 4]));
        check(tensor(Datatype::Fp32, &[i64::MAX, 2], &[0; 4]));
        check(tensor(Datatype::Bytes, &[1], b"\x05\0\0\0a"));
        check(tensor(Datatype::Bytes, &[3], b"\x01\0\0\0a"));
    }

    #[test]
    fn whatever_an_answer_depends_on_is_in_its_key() {
        use ParameterValue::{Bool, Double, Int64, Text, Uint64};
        let of =
            |models: &[&ModelSpec], inputs: &[Tensor], parameters: &[(&str, ParameterValue)], outputs: &[usize]| {
                let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
                key(models.iter().copied(), inputs, &Parameters(parameters), outputs).unwrap()
            };
        let [one, two] = [1, 2].map(|number| model(number, &[]));
        let a = |shape: &[i64], contents: &[u8]| tensor(Datatype::Uint8, shape, contents);
        let word = |word: &str| Text(word.to_owned());
        let keys = [
            of(&[&one], &[], &[], &[]),
            of(&[&two], &[], &[], &[]),
            of(&[&one, &two], &[], &[], &[]),
            of(&[&one], &[], &[], &[0]),
            of(&[&one], &[], &[], &[0, 1]),
            of(&[&one], &[a(&[2], &[1, 2])], &[], &[]),
            of(&[&one], &[a(&[2], &[1, 3])], &[], &[]),
            of(&[&one], &[a(&[1, 2], &[1, 2])], &[], &[]),
            of(&[&one], &[a(&[1], &[1]), a(&[1], &[2])], &[], &[]),
            of(&[&one], &[tensor(Datatype::Int8, &[2], &[1, 2])], &[], &[]),
            of(&[&one], &[a(&[], &[])], &[], &[]),
            of(&[&one], &[], &[("a", Bool(true))], &[]),
            of(&[&one], &[], &[("a", Int64(1))], &[]),
            of(&[&one], &[], &[("a", Uint64(1))], &[]),
            of(&[&one], &[], &[("a", Double(1.0))], &[]),
            of(&[&one], &[], &[("a", word("1"))], &[]),
            of(&[&one], &[], &[("", word("a")), ("b", word(""))], &[]),
            of(&[&one], &[], &[("a", word("")), ("", word("b"))], &[]),
        ];
        for (index, one) in keys.iter().enumerate() {
            assert!(keys.iter().skip(index + 1).all(|other| other != one), "{index}");
        }
        assert_eq!(keys[5], of(&[&one], &[a(&[2], &[1, 2])], &[], &[]), "the same again");
        let unknown = ModelSpec { identity: None, ..model(1, &[]) };
        assert_eq!(key([&one, &unknown].into_iter(), &[], &Parameters::default(), &[]), None);
        assert_eq!(text(&KEY), format!("deuteron:1:{}", "07".repeat(32)));
    }
}
