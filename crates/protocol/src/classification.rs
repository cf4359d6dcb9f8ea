//! The classification extension: the best classes of each row of an output, instead of the output. Called by both
//! encoders, on the shard. Sorted by value, largest first; equal values by index; NaN last. A row has at most
//! [`CLASSES_MAX`] classes.

use std::borrow::Cow;

use bytes::Bytes;
use half::{bf16, f16};

use crate::check::check_classes;
use base::error::Error;
use base::limits::CLASSES_MAX;
use base::tensor::{Datatype, Shape, Tensor, element_count, topk};
use model::classes::{self, ClassForm, STRING_SIZE_EXPECTED, WrittenClasses};
use model::{ModelSpec, TensorSpec};

/// The `count` best classes of each row, as a `BYTES` tensor of `value:index[:label]` with shape `[rows, classes]`, or
/// `[classes]` if the model has no batch axis.
///
/// # Errors
///
/// `InvalidArgument` if the datatype has no classes or a row has too many; `Internal` if contents and shape differ.
pub fn classify(spec: &ModelSpec, output: &TensorSpec, tensor: &Tensor, count: u32) -> Result<Tensor, Error> {
    // The backend has classified it already: a GPU does so to download only the classes.
    if tensor.datatype == Datatype::Bytes && output.datatype != Datatype::Bytes {
        return Ok(tensor.clone());
    }
    check_classes(tensor.datatype)?;
    let mismatch =
        || Error::internal(format!("output tensor shape does not match size of output for '{}'", output.name));
    let (rows, row_shape) = match tensor.shape.split_first() {
        Some((rows, shape)) if spec.has_batch_axis() => (Some(*rows), shape),
        _ => (None, tensor.shape.as_slice()),
    };
    let class_count = element_count(row_shape).map_err(|_| mismatch())?;
    if class_count > CLASSES_MAX {
        return Err(Error::invalid("classification output tensor too large"));
    }
    let best_count = class_count.min(usize::try_from(count).unwrap_or(usize::MAX));
    let row_size = class_count.saturating_mul(tensor.datatype.size().ok_or_else(mismatch)?);
    let row_count = rows.map_or(Some(1), |rows| usize::try_from(rows).ok()).ok_or_else(mismatch)?;
    if row_count.checked_mul(row_size) != Some(tensor.contents.len()) {
        return Err(mismatch());
    }
    let mut contents = Vec::with_capacity(row_count.saturating_mul(best_count).saturating_mul(STRING_SIZE_EXPECTED));
    if row_size > 0 {
        let form = ClassForm { text: spec.score_text(), labels: output.labels.as_deref() };
        for row in tensor.contents.chunks_exact(row_size) {
            write_row(tensor.datatype, row, best_count, form, &mut contents);
        }
    }
    let mut shape: Shape = rows.into_iter().collect();
    shape.push(i64::try_from(best_count).unwrap_or(i64::MAX));
    Ok(Tensor { datatype: Datatype::Bytes, shape, contents: Bytes::from(contents) })
}

/// Writes the best classes of one row.
fn write_row(datatype: Datatype, row: &[u8], count: usize, form: ClassForm<'_>, out: &mut Vec<u8>) {
    match datatype {
        Datatype::Uint8 => write_best::<u8>(row, count, form, out),
        Datatype::Uint16 => write_best::<u16>(row, count, form, out),
        Datatype::Uint32 => write_best::<u32>(row, count, form, out),
        Datatype::Uint64 => write_best::<u64>(row, count, form, out),
        Datatype::Int8 => write_best::<i8>(row, count, form, out),
        Datatype::Int16 => write_best::<i16>(row, count, form, out),
        Datatype::Int32 => write_best::<i32>(row, count, form, out),
        Datatype::Int64 => write_best::<i64>(row, count, form, out),
        Datatype::Fp16 => write_best::<f16>(row, count, form, out),
        Datatype::Bf16 => write_best::<bf16>(row, count, form, out),
        Datatype::Fp32 => write_best::<f32>(row, count, form, out),
        Datatype::Fp64 => write_best::<f64>(row, count, form, out),
        // Refused by `check_classes`.
        Datatype::Bool | Datatype::Bytes => {}
    }
}

fn write_best<T: WrittenClasses>(row: &[u8], count: usize, form: ClassForm<'_>, out: &mut Vec<u8>) {
    // Copied only if the bytes are not aligned for `T`: outputs may be views of a request body.
    let read = |_| row.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect::<Vec<T>>();
    let scores = bytemuck::try_cast_slice(row).map_or_else(|error| read(error).into(), Cow::Borrowed);
    for index in topk::best::<T>(&scores, count) {
        if let Some(score) = usize::try_from(index).ok().and_then(|index| scores.get(index)) {
            classes::write(score, index, form, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{self, output};
    use base::tensor::strings::Strings;
    use model::classes::ScoreText;
    use model::labels::Labels;

    /// A model without a batch axis.
    fn plain() -> ModelSpec {
        testing::spec(0, vec![], vec![])
    }

    fn tensor(datatype: Datatype, shape: &[i64], contents: &[u8]) -> Tensor {
        Tensor { datatype, shape: Shape::from_slice(shape), contents: Bytes::copy_from_slice(contents) }
    }

    fn texts(tensor: &Tensor) -> Vec<String> {
        assert_eq!(tensor.datatype, Datatype::Bytes);
        let texts = Strings::new(&tensor.contents).map(|text| String::from_utf8(text.unwrap().to_vec()).unwrap());
        texts.collect()
    }

    fn floats(values: &[f32]) -> Tensor {
        tensor(Datatype::Fp32, &[values.len() as i64], bytemuck::cast_slice(values))
    }

    fn best_of(tensor: &Tensor, count: u32) -> String {
        best_written(tensor, count, false)
    }

    fn best_written(tensor: &Tensor, count: u32, follows_triton: bool) -> String {
        let spec = ModelSpec { follows_triton, ..plain() };
        classify(&spec, &output("OUT", tensor.datatype, &[-1]), tensor, count)
            .map_or_else(|error| error.text().to_owned(), |got| texts(&got).join(" "))
    }

    #[test]
    fn the_examples_of_the_extension_come_out() {
        let ints = tensor(Datatype::Int32, &[4], bytemuck::cast_slice(&[1_i32, 5, 10, 4]));
        assert_eq!(best_of(&ints, 2), "10:2 5:1");
        assert_eq!(best_of(&floats(&[1.1, 3.3, 0.5, 2.4]), 2), "3.3:1 2.4:3");
        let mut spec = output("OUT", Datatype::Int32, &[4]);
        spec.labels = Some(Arc::new(Labels::from_text("a\npickle\napple")));
        let got = classify(&plain(), &spec, &ints, 9).unwrap();
        assert_eq!(got.shape.as_slice(), [4]);
        assert_eq!(texts(&got), ["10:2:apple", "5:1:pickle", "4:3", "1:0:a"]);
    }

    #[test]
    fn equal_scores_keep_their_order_and_no_number_is_last() {
        let nan = f32::NAN;
        let tensor = floats(&[nan, 1.0, 2.0, 1.0, -0.0, 0.0, nan, 2.0, f32::NEG_INFINITY, f32::INFINITY]);
        let want = "inf:9 2:2 2:7 1:1 1:3 -0:4 0:5 -inf:8 nan:0 nan:6";
        assert_eq!(best_of(&tensor, 10), want);
        assert_eq!(best_of(&tensor, 100), want);
        assert_eq!(best_of(&tensor, 3), "inf:9 2:2 2:7");
    }

    #[test]
    fn rows_are_classified_one_by_one() {
        let values = [0.5_f32, 1.5, 2.5, 9.0, 8.0, 7.0];
        let batch = tensor(Datatype::Fp32, &[2, 3], bytemuck::cast_slice(&values));
        let got = classify(&testing::spec(8, vec![], vec![]), &output("OUT", Datatype::Fp32, &[3]), &batch, 2).unwrap();
        assert_eq!(got.shape.as_slice(), [2, 2]);
        assert_eq!(texts(&got), ["2.5:2 1.5:1", "9:0 8:1"].join(" ").split(' ').collect::<Vec<_>>());
        // Without a batch axis all elements are one row.
        let got = classify(&plain(), &output("OUT", Datatype::Fp32, &[2, 3]), &batch, 1).unwrap();
        assert_eq!((got.shape.as_slice(), texts(&got)), (&[1_i64][..], vec!["9:3".to_owned()]));
    }

    #[test]
    fn every_number_has_classes_and_nothing_else_has() {
        for datatype in Datatype::ALL {
            let size = datatype.size().unwrap_or(1);
            let got = best_of(&tensor(datatype, &[2], &vec![0; 2 * size]), 1);
            let want = match datatype {
                Datatype::Bool | Datatype::Bytes => {
                    format!("class result not available for output due to unsupported type '{}'", datatype.name())
                }
                _ => "0:0".to_owned(),
            };
            assert_eq!(got, want);
        }
    }

    #[test]
    fn narrow_floats_have_the_fewest_digits_that_read_back() {
        let halves: Vec<f16> = [0.1, 3.3, 65504.0, 1e-7].map(f16::from_f32).to_vec();
        let tensor = tensor(Datatype::Fp16, &[4], bytemuck::cast_slice(&halves));
        assert_eq!(best_of(&tensor, 4), "65500:2 3.3:1 0.1:0 1e-7:3");
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            let read = |score: &dyn Fn(&mut Vec<u8>)| {
                let mut text = Vec::new();
                score(&mut text);
                String::from_utf8(text).unwrap().parse::<f32>().unwrap()
            };
            if half.is_finite() && bits % 7 == 0 {
                assert_eq!(f16::from_f32(read(&|out| WrittenClasses::write(&half, ScoreText::Shortest, out))), half);
            }
            if brain.is_finite() && bits % 7 == 0 {
                assert_eq!(bf16::from_f32(read(&|out| WrittenClasses::write(&brain, ScoreText::Shortest, out))), brain);
            }
        }
    }

    #[test]
    fn floats_have_six_decimals_where_tritonserver_is_followed_and_integers_none() {
        let tensor_of = |values: &[f64]| tensor(Datatype::Fp64, &[values.len() as i64], bytemuck::cast_slice(values));
        let want = "inf:4 123456789.000000:0 3.300000:1 0.000000:2 nan:3";
        assert_eq!(best_written(&tensor_of(&[123_456_789.0, 3.3, 1e-9, f64::NAN, f64::INFINITY]), 5, true), want);
        assert_eq!(best_written(&floats(&[0.1, -2.5]), 2, true), "0.100000:0 -2.500000:1");
        let ints = tensor(Datatype::Int32, &[2], bytemuck::cast_slice(&[1_i32, 5]));
        assert_eq!(best_written(&ints, 2, true), "5:1 1:0");
    }

    #[test]
    fn a_row_that_is_not_aligned_has_the_same_classes() {
        let bytes: Vec<u8> = [0_u8].into_iter().chain([1.5_f32, 4.5, 2.5].map(f32::to_le_bytes).concat()).collect();
        let contents = Bytes::from(bytes).slice(1..);
        let tensor = Tensor { datatype: Datatype::Fp32, shape: Shape::from_slice(&[3]), contents };
        assert_eq!(best_of(&tensor, 2), "4.5:1 2.5:2");
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        assert_eq!(
            best_of(&tensor(Datatype::Fp32, &[3], &[0; 8]), 1),
            "output tensor shape does not match size of output for 'OUT'"
        );
        let many = tensor(Datatype::Uint8, &[CLASSES_MAX as i64 + 1], &vec![0; CLASSES_MAX + 1]);
        assert_eq!(best_of(&many, 1), "classification output tensor too large");
        assert_eq!(best_of(&tensor(Datatype::Fp32, &[0], &[]), 3), "");
    }
}
