//! The backend of tree models, Triton's `fil`: gradient-boosted trees and random forests of
//! XGBoost, LightGBM and scikit-learn, run by this crate's own code. A row takes about a
//! microsecond, so small models run on the shards.
//!
//! Answers equal those of the library that trained the model, bit for bit (FP64 ones rounded once),
//! and those of Triton's FIL backend except for its order of addition: see `docs/trees.md`.

mod forest;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod parameters;
mod real;

#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "fuzz"))]
pub use self::fuzz::exercise;

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use crate::limits::TREE_INLINE_STEPS_MAX;
use crate::model_file::model_path;
use backend::batch::InputConversion;
use backend::engine_run::{BatchedInstance, EngineInputs, EngineInstance};
use backend::text::{ShapeText, config_name};
use backend::{Backend, Instance, LoadedModel, Threads};
use base::error::Error;
use base::limits::MODEL_SIZE_MAX;
use base::tensor::{AlignedBuffer, Datatype, Shape, Tensor};
use model::trees::{self, Arithmetic, ScoreLink, TreeModel};
use model::{ModelSpec, TensorSpec};

use forest::{Forest, RowBlock};
use parameters::{FilParameters, RowAnswer};
use real::Real;

/// The backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fil;

impl Backend for Fil {
    fn name(&self) -> &str {
        "fil"
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        let file = File::open(model_path(spec, directory)?);
        load(spec, file.and_then(read_all))
    }

    fn load_opened(
        &self,
        spec: &Arc<ModelSpec>,
        _directory: &Path,
        file: BorrowedFd<'_>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        load(spec, file.try_clone_to_owned().map(File::from).and_then(read_all))
    }
}

fn read_all(mut file: File) -> std::io::Result<Vec<u8>> {
    let size = file.metadata()?.len();
    if size > MODEL_SIZE_MAX as u64 {
        let text = format!("its file has {size} bytes, more than the {MODEL_SIZE_MAX} that are read");
        return Err(std::io::Error::other(text));
    }
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(MODEL_SIZE_MAX as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn load(spec: &Arc<ModelSpec>, bytes: std::io::Result<Vec<u8>>) -> Result<Box<dyn LoadedModel>, Error> {
    let parameters = FilParameters::read(spec)?;
    let in_model = |error: Error| error.with_prefix(&format!("unable to load model '{}': ", spec.name));
    let bytes = bytes.map_err(|error| in_model(Error::internal(error.to_string())))?;
    let model = trees::decode(&bytes, parameters.format).map_err(in_model)?;
    drop(bytes);
    Ok(match model.arithmetic {
        Arithmetic::Single => Box::new(FilModel::<f32>::new(spec, &model, parameters)?),
        Arithmetic::Double => Box::new(FilModel::<f64>::new(spec, &model, parameters)?),
    })
}

/// A loaded model version.
struct FilModel<F> {
    shared: Arc<SharedForest<F>>,
    why_not_inline: Option<String>,
}

/// The state that all instances of a model version share.
struct SharedForest<F> {
    spec: Arc<ModelSpec>,
    forest: Forest<F>,
    link: ScoreLink,
    answer: RowAnswer,
    feature_count: usize,
    class_count: usize,
    output_count: usize,
    /// The dims of a row's answer.
    answer_dims: Shape,
    /// True if the output has the rows as its first dimension.
    has_rows: bool,
    /// Rows of a block.
    block_rows: usize,
}

impl<F: Real> FilModel<F> {
    fn new(spec: &Arc<ModelSpec>, model: &TreeModel, parameters: FilParameters) -> Result<Self, Error> {
        let name = &spec.name;
        let ([input], [output]) = (spec.inputs.as_slice(), spec.outputs.as_slice()) else {
            let (inputs, outputs) = (spec.inputs.len(), spec.outputs.len());
            return Err(Error::invalid(format!(
                "model '{name}' has {inputs} inputs and {outputs} outputs, but a tree model has one input, 'input__0', and \
                 one output, 'output__0' (SHAP values are not computed)"
            )));
        };
        check_fp32(spec, "input", input)?;
        check_fp32(spec, "output", output)?;
        let row_size = |tensor: &TensorSpec| {
            let mut sizes = row_dims(spec, tensor).iter().map(|size| usize::try_from(*size).ok());
            sizes.try_fold(1_usize, |product, size| product.checked_mul(size?))
        };
        let wrong = |kind: &str, tensor: &TensorSpec, expected: usize, why: &str| {
            let (shape, name) = (ShapeText(&tensor.dims), &tensor.name);
            let model = &spec.name;
            Error::invalid(format!("{kind} '{name}' of model '{model}' has dims {shape}, expected [{expected}]: {why}"))
        };
        if model.feature_count == 0 {
            return Err(Error::invalid(format!("model '{name}' has no features: its trees test nothing")));
        }
        if row_size(input) != Some(model.feature_count) {
            return Err(wrong("input", input, model.feature_count, "the features of its file"));
        }
        let answer = parameters.answer(spec, model, row_size(output))?;
        let width = answer.width(model.output_count());
        if row_size(output) != Some(width) {
            let why = match answer {
                RowAnswer::BestClass | RowAnswer::Threshold(_) => "a class is one value; 'predict_proba' gives scores",
                RowAnswer::BothProbabilities | RowAnswer::Scores => "the scores of a row",
            };
            return Err(wrong("output", output, width, why));
        }
        let forest = Forest::new(model);
        let steps = forest.steps();
        let why_not_inline = (steps > TREE_INLINE_STEPS_MAX)
            .then(|| format!("a row may take {steps} steps through its trees, more than {TREE_INLINE_STEPS_MAX}"));
        let shared = SharedForest {
            spec: Arc::clone(spec),
            forest,
            link: parameters.link(model),
            answer,
            feature_count: model.feature_count,
            class_count: model.class_count,
            output_count: model.output_count(),
            answer_dims: row_dims(spec, output).iter().copied().collect(),
            has_rows: has_rows(spec, output),
            block_rows: forest::block_rows(model.feature_count),
        };
        Ok(Self { shared: Arc::new(shared), why_not_inline })
    }
}

/// Returns true if the first dimension is that of rows: the batch axis, or the first of several in
/// a model without it.
fn has_rows(spec: &ModelSpec, tensor: &TensorSpec) -> bool {
    spec.has_batch_axis() || tensor.model_shape.len() > 1
}

/// The dims of a row.
fn row_dims<'a>(spec: &ModelSpec, tensor: &'a TensorSpec) -> &'a [i64] {
    tensor.model_shape.get(usize::from(has_rows(spec, tensor))..).unwrap_or_default()
}

fn check_fp32(spec: &ModelSpec, kind: &str, tensor: &TensorSpec) -> Result<(), Error> {
    if tensor.datatype == Datatype::Fp32 {
        return Ok(());
    }
    let (name, model, datatype) = (&tensor.name, &spec.name, config_name(tensor.datatype));
    Err(Error::invalid(format!(
        "{kind} '{name}' of model '{model}' has data_type {datatype}, expected TYPE_FP32: tree models take and give no other"
    )))
}

impl<F: Real> LoadedModel for FilModel<F> {
    fn new_instance(&self, _threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(BatchedInstance::new(FilInstance { shared, block: RowBlock::new() })))
    }

    fn may_run_inline(&self) -> bool {
        self.why_not_inline.is_none()
    }

    fn why_not_inline(&self) -> &str {
        self.why_not_inline.as_deref().unwrap_or_default()
    }
}

/// One instance: the shared trees and a block of rows.
struct FilInstance<F> {
    shared: Arc<SharedForest<F>>,
    block: RowBlock<F>,
}

impl<F: Real> EngineInstance for FilInstance<F> {
    type Outputs = Tensor;

    fn conversion(_: Datatype) -> InputConversion {
        InputConversion { alignment: align_of::<f32>(), convert: None }
    }

    fn spec(&self) -> &Arc<ModelSpec> {
        &self.shared.spec
    }

    fn compute(&mut self, inputs: EngineInputs<'_>) -> Result<Tensor, Error> {
        let Self { shared, block } = self;
        let features = bytemuck::try_cast_slice::<u8, f32>(inputs.contents(0)).unwrap_or_default();
        let rows = features.chunks_exact(shared.feature_count);
        let (row_count, width) = (rows.len(), shared.answer.width(shared.output_count));
        let mut contents = AlignedBuffer::with_capacity(row_count * width * size_of::<f32>());
        for rows in features.chunks(shared.block_rows * shared.feature_count) {
            block.fill(rows.chunks_exact(shared.feature_count));
            shared.forest.sum(block);
            for scores in block.sums.chunks_exact_mut(shared.output_count) {
                shared.answer(scores, &mut contents);
            }
        }
        let mut shape = Shape::new();
        if shared.has_rows {
            shape.push(i64::try_from(row_count).unwrap_or(i64::MAX));
        }
        shape.extend_from_slice(&shared.answer_dims);
        Ok(Tensor { datatype: Datatype::Fp32, shape, contents: contents.freeze() })
    }

    fn outputs(&self, output: Tensor, _inputs: EngineInputs<'_>) -> impl Iterator<Item = Result<Tensor, Error>> {
        std::iter::once(Ok(output))
    }
}

impl<F: Real> SharedForest<F> {
    /// Appends the answer of a row to the output.
    fn answer(&self, scores: &mut [F], out: &mut AlignedBuffer) {
        scores.chunks_exact_mut(self.class_count).for_each(|scores| F::link(self.link, scores));
        let mut push = |value: f32| out.extend_from_slice(&value.to_ne_bytes());
        let first = scores.first().map_or(0.0, |score| score.to_f32());
        match self.answer {
            RowAnswer::Scores => scores.iter().for_each(|score| push(score.to_f32())),
            RowAnswer::BothProbabilities => [1.0 - first, first].into_iter().for_each(push),
            RowAnswer::Threshold(threshold) => push(if first > threshold { 1.0 } else { 0.0 }),
            RowAnswer::BestClass => {
                // As in Triton, which starts with class 0 and a score of 0.
                let better = |(class, most): (f32, f32), (index, score): (u16, f32)| {
                    if score > most { (index.into(), score) } else { (class, most) }
                };
                push((0..).zip(scores.iter().map(|score| score.to_f32())).fold((0.0, 0.0), better).0);
            }
        }
    }
}
