//! The outputs of a model as the values that answers are made of, checked against the rows of the call.

use std::borrow::Cow;

use base::error::Error;
use base::tensor::strings::Strings;
use base::tensor::{Datatype, Tensor};
use model::ModelSpec;

use super::call::TextRequest;
use super::path::TextTask;
use super::task::{self, TOKEN_MASK, TOKEN_VECTORS, output};

/// The vectors of a request: the first dimensions of each, if it asks for fewer than the model has, and with the length 1 unless it
/// asks for them as they are.
pub struct Vectors {
    values: Vec<f32>,
    size: usize,
}

impl Vectors {
    /// Reads them.
    ///
    /// # Errors
    /// `Internal` if the output does not have the rows of the call; `InvalidArgument` for more dimensions than there are.
    pub fn read(call: &TextRequest, spec: &ModelSpec, outputs: &[Tensor]) -> Result<Self, Error> {
        let (tensor, rows) = (output(spec, outputs, task::vector_output(call, spec))?, call.texts.len());
        let values = floats(tensor, rows)?;
        let size = values.len().checked_div(rows).unwrap_or_default();
        let wanted = call.dimensions.unwrap_or(size);
        if wanted > size {
            return Err(Error::invalid(format!(
                "'dimensions' is {wanted}, but the vectors of model '{}' have {size}",
                spec.name
            )));
        }
        // The model has done so itself if it gives the vectors from before as well.
        let is_done = call.dimensions.is_none() && spec.output_index(task::RAW_EMBEDDING).is_some();
        if is_done || (call.has_raw_vectors && wanted == size) {
            return Ok(Self { values, size });
        }
        let row = |row: &[f32]| {
            let first = row.get(..wanted).unwrap_or_default();
            if call.has_raw_vectors { first.to_vec() } else { normalised(first) }
        };
        Ok(Self { values: values.chunks(size.max(1)).flat_map(row).collect(), size: wanted })
    }

    /// The vector of a row.
    ///
    /// # Errors
    /// `Internal` if the model did not give it.
    pub fn row(&self, row: usize) -> Result<&[f32], Error> {
        let begin = row.checked_mul(self.size);
        let part = begin.and_then(|begin| self.values.get(begin..begin.checked_add(self.size)?));
        part.ok_or_else(|| Error::internal("the model gave fewer vectors than texts"))
    }

    /// The cosines of the first row and each other.
    ///
    /// # Errors
    /// As [`Self::row`].
    pub fn similarities(&self, rows: usize) -> Result<Vec<f32>, Error> {
        let source = self.row(0)?;
        (1..rows).map(|row| Ok(cosine(source, self.row(row)?))).collect()
    }
}

/// The vectors of the tokens of each row, without those of padding.
///
/// # Errors
/// `Internal` if the outputs do not fit the call.
pub fn token_vectors(call: &TextRequest, spec: &ModelSpec, outputs: &[Tensor]) -> Result<Vec<Vec<Vec<f32>>>, Error> {
    let rows = call.texts.len();
    let values = floats(output(spec, outputs, TOKEN_VECTORS)?, rows)?;
    let mask = integers(output(spec, outputs, TOKEN_MASK)?)?;
    let (width, size) = match (mask.len().checked_div(rows), values.len().checked_div(mask.len())) {
        (Some(width), Some(size)) if width * rows == mask.len() && size * mask.len() == values.len() => (width, size),
        _ => return Err(different_sizes(spec)),
    };
    let row = |(values, mask): (&[f32], &[i64])| {
        let tokens = values.chunks(size.max(1)).zip(mask).filter(|(_, mask)| **mask != 0);
        tokens.map(|(values, _)| values.to_vec()).collect()
    };
    let values = values.chunks((width * size).max(1));
    Ok(values.zip(mask.chunks(width.max(1))).map(row).collect())
}

/// The numbers that are not zero of each row, with their dimensions.
///
/// # Errors
/// `Internal` if the outputs do not fit the call.
pub fn sparse_rows(call: &TextRequest, spec: &ModelSpec, outputs: &[Tensor]) -> Result<Vec<Vec<(i64, f32)>>, Error> {
    let rows = call.texts.len();
    let values = floats(output(spec, outputs, "value")?, rows)?;
    let (indices, counts) = (integers(output(spec, outputs, "index")?)?, integers(output(spec, outputs, "count")?)?);
    let width = values.len().checked_div(rows).unwrap_or_default();
    if indices.len() != values.len() || counts.len() != rows {
        return Err(different_sizes(spec));
    }
    let row = |(row, count): (usize, &i64)| {
        let count = usize::try_from(*count).unwrap_or_default().min(width);
        let own = indices.iter().copied().zip(values.iter().copied());
        own.skip(row * width).take(count).collect()
    };
    Ok(counts.iter().enumerate().map(row).collect())
}

/// The scores of a row, each with its label.
pub type ScoredLabels<'t> = Vec<(f32, Cow<'t, str>)>;

/// The classes of each row with their scores, in the order of the model's output.
///
/// # Errors
/// `Internal` if the outputs do not fit the call.
pub fn class_rows<'t>(
    call: &TextRequest,
    spec: &ModelSpec,
    outputs: &'t [Tensor],
) -> Result<Vec<ScoredLabels<'t>>, Error> {
    let rows = call.texts.len();
    let [score, label] = task::class_outputs(call);
    let scores = match TextTask::of(spec) {
        Some(TextTask::Rerank) => ranked_scores(call, spec, outputs)?,
        _ => floats(output(spec, outputs, score)?, rows)?,
    };
    let classes = scores.len().checked_div(rows).unwrap_or_default();
    let labels: Vec<Cow<'_, str>> = match spec.output_index(label) {
        Some(_) => texts(output(spec, outputs, label)?)?.into_iter().map(Cow::Borrowed).collect(),
        // The names that transformers gives to the classes of a model without names.
        None => (0..scores.len()).map(|index| format!("LABEL_{}", index % classes.max(1)).into()).collect(),
    };
    if labels.len() != scores.len() {
        return Err(Error::internal(format!(
            "model '{}' gave {} labels and {} scores",
            spec.name,
            labels.len(),
            scores.len()
        )));
    }
    let all: Vec<_> = scores.into_iter().zip(labels).collect();
    Ok(all.chunks(classes.max(1)).map(<[_]>::to_vec).collect())
}

/// The scores of the classes of each row in the order of their numbers.
///
/// # Errors
/// `Internal` if the outputs do not fit the call; `Unsupported` if the order is not known.
pub fn class_probabilities(spec: &ModelSpec, rows: &[Vec<(f32, Cow<'_, str>)>]) -> Result<Vec<Vec<f32>>, Error> {
    let names = spec.steps.as_ref().map(|steps| steps.list.classes()).unwrap_or_default();
    let is_ordered = spec.output_index("label").is_none();
    let row = |row: &Vec<(f32, Cow<'_, str>)>| {
        let scores: Option<Vec<f32>> = if is_ordered {
            Some(row.iter().map(|(score, _)| *score).collect())
        } else {
            let score = |name: &String| row.iter().find(|(_, label)| label == name).map(|(score, _)| *score);
            Some(names).filter(|names| names.len() == row.len()).and_then(|names| names.iter().map(score).collect())
        };
        scores.ok_or_else(|| {
            Error::unsupported(format!(
                "the order of the classes of model '{}' is not known, which 'probs' have: /predict gives each score with its label",
                spec.name
            ))
        })
    };
    rows.iter().map(row).collect()
}

/// The texts with their scores, the highest first.
///
/// # Errors
/// `Internal` if the output does not fit the call.
pub fn ranking(call: &TextRequest, spec: &ModelSpec, outputs: &[Tensor]) -> Result<Vec<(usize, f32)>, Error> {
    let mut order: Vec<_> = ranked_scores(call, spec, outputs)?.into_iter().enumerate().collect();
    order.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    order.truncate(call.top_n.unwrap_or(usize::MAX));
    Ok(order)
}

/// The scores of a reranker: as in text-embeddings-inference by the sigmoid, whatever function the files of the model name.
fn ranked_scores(call: &TextRequest, spec: &ModelSpec, outputs: &[Tensor]) -> Result<Vec<f32>, Error> {
    let name = task::rank_output(spec);
    let scores = floats(output(spec, outputs, name)?, call.texts.len())?;
    if name == task::SCORE || call.has_raw_scores { Ok(scores) } else { Ok(scores.into_iter().map(sigmoid).collect()) }
}

fn sigmoid(value: f32) -> f32 {
    1.0 / (1.0 + (-value).exp())
}

fn different_sizes(spec: &ModelSpec) -> Error {
    Error::internal(format!("the outputs of model '{}' have different sizes", spec.name))
}

/// The elements of an FP32 tensor with the same number for each row.
fn floats(tensor: &Tensor, rows: usize) -> Result<Vec<f32>, Error> {
    let elements = tensor.contents.as_chunks().0.iter();
    let values: Vec<f32> = elements.map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let has_rows = rows > 0 && values.len().is_multiple_of(rows);
    if tensor.datatype != Datatype::Fp32 || !tensor.has_its_size() || !has_rows {
        return Err(Error::internal("an output of the model does not have its rows"));
    }
    // JSON has no numbers for them.
    if values.iter().any(|value| !value.is_finite()) {
        return Err(Error::internal("an output of the model has a number that is not finite"));
    }
    Ok(values)
}

fn integers(tensor: &Tensor) -> Result<Vec<i64>, Error> {
    match tensor.datatype == Datatype::Int64 && tensor.has_its_size() {
        true => Ok(tensor.contents.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()),
        false => Err(Error::internal("an output of the model does not have its size")),
    }
}

fn texts(tensor: &Tensor) -> Result<Vec<&str>, Error> {
    let wrong = || Error::internal("the labels of the model are not texts");
    let read = Strings::new(&tensor.contents).map(|text| std::str::from_utf8(text.ok()?).ok());
    read.collect::<Option<Vec<_>>>().ok_or_else(wrong)
}

fn normalised(values: &[f32]) -> Vec<f32> {
    let square = |value: &f32| f64::from(*value) * f64::from(*value);
    let length = (values.iter().map(square).sum::<f64>().sqrt() as f32).max(LENGTH_MIN);
    values.iter().map(|value| value / length).collect()
}

/// The length that a vector of zeros counts as, as in torch's `normalize`.
const LENGTH_MIN: f32 = 1e-12;

fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let product = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(one, other)| one * other).sum::<f32>();
    product(one, other) / (product(one, one).sqrt() * product(other, other).sqrt()).max(LENGTH_MIN)
}
