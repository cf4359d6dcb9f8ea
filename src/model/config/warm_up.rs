//! `model_warmup`: requests that every instance answers before it serves. Their checks, with
//! Triton's texts (`backend_model_instance.cc`, `GenerateWarmupData`), and their form in the spec.
//! Called by [`crate::model::config`] when the inputs are known.

use crate::error::Error;
use crate::limits::{WARM_UP_RUNS_MAX, WARM_UP_SIZE_MAX};
use crate::model::config::{complete, sequence_batching, validate};
use crate::model::spec::TensorSpec;
use crate::tensor::{Datatype, Shape, byte_size, element_count};
use crate::wire::proto::inference::ModelConfig;
use crate::wire::proto::inference::model_warmup::Input;
use crate::wire::proto::inference::model_warmup::input::InputDataType;

/// The directory of a model's sample files.
pub const DIRECTORY: &str = "warmup";

/// One sample: a batch that is run so many times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmUp {
    /// Its name.
    pub name: String,
    /// Requests of one row in the batch.
    pub requests: u32,
    /// How many times.
    pub runs: u32,
    /// What each request brings, in the order of the model's inputs; `None` for an input left out, or
    /// for one that the server makes of a sequence.
    pub inputs: Vec<Option<WarmUpInput>>,
}

/// What a sample brings of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmUpInput {
    /// The full shape, as a client would give it.
    pub shape: Shape,
    /// Where its bytes come from.
    pub source: WarmUpSource,
}

/// Where the bytes of a sample come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarmUpSource {
    /// A file beneath the model's directory.
    File(String),
    /// Numbers by chance.
    Random,
    /// Zeros; empty strings.
    Zero,
}

/// The samples of a configuration whose inputs were checked.
pub(super) fn samples(config: &ModelConfig, inputs: &[TensorSpec]) -> Result<Vec<WarmUp>, Error> {
    let mut samples = Vec::new();
    // A sample runs past the batcher: it may bring what the server tells the model of a sequence.
    let told = sequence_batching::input_names(config);
    for sample in &config.model_warmup {
        // As in Triton, which says so in its log only.
        if sample.batch_size == 0 {
            continue;
        }
        let refuse =
            |text: String| Err(Error::invalid(format!("failed to run warmup sample '{}': {text}", sample.name)));
        let rows_max = config.max_batch_size.unsigned_abs();
        if sample.batch_size > rows_max.max(1) {
            let (rows, model) = (sample.batch_size, &config.name);
            return refuse(format!("batch size {rows} for '{model}', max allowed is {rows_max}"));
        }
        let runs = sample.count.max(1);
        if runs > WARM_UP_RUNS_MAX {
            return refuse(format!("its count is {runs}, more than the {WARM_UP_RUNS_MAX} allowed"));
        }
        let mut names: Vec<_> = sample.inputs.keys().collect();
        names.sort_unstable();
        let is_input =
            |name: &str| inputs.iter().any(|input| input.name == name) || told.iter().any(|have| have == name);
        if let Some(name) = names.into_iter().find(|name| !is_input(name)) {
            return refuse(format!("unexpected inference input '{name}' for model '{}'", config.name));
        }
        let mut given = Vec::with_capacity(inputs.len());
        for input in inputs {
            given.push(match sample.inputs.get(&input.name) {
                Some(sample) => Some(sample_input(config, input, sample)?),
                None if input.is_optional || told.contains(&input.name) => None,
                None => return refuse(format!("it brings no input '{}', which the model requires", input.name)),
            });
        }
        samples.push(WarmUp { name: sample.name.clone(), requests: sample.batch_size, runs, inputs: given });
    }
    Ok(samples)
}

fn sample_input(config: &ModelConfig, input: &TensorSpec, sample: &Input) -> Result<WarmUpInput, Error> {
    let name = &input.name;
    if sample.dims.contains(&-1) {
        return Err(Error::invalid(format!(
            "warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )));
    }
    let Some(source) = &sample.input_data_type else {
        return Err(Error::invalid(format!("warmup setting expects input '{name}' to have input_data_type set")));
    };
    if complete::datatype(sample.data_type()) != Some(input.datatype) {
        let (given, model) = (sample.data_type().as_str_name(), &config.name);
        let want = complete::data_type(input.datatype).as_str_name();
        return Err(Error::invalid(format!(
            "warmup setting gives input '{name}' of model '{model}' as {given}, which is {want}"
        )));
    }
    // Of what the server tells a model of a sequence Triton takes the full shape.
    let is_full = sample.dims.len() == input.shape.len() && sequence_batching::input_names(config).contains(name);
    let axis = (config.max_batch_size > 0 && !input.is_shape_tensor && !is_full).then_some(1);
    let shape: Shape = axis.into_iter().chain(sample.dims.iter().copied()).collect();
    if input.to_model(&shape).is_none() && !(input.is_shape_tensor && shape == input.shape) {
        return Err(Error::invalid(format!(
            "warmup setting gives input '{name}' dims {:?}, which {:?} of its configuration exclude",
            sample.dims,
            input.dims.as_slice()
        )));
    }
    if size(input.datatype, &shape).is_none_or(|size| size > WARM_UP_SIZE_MAX) {
        let text = format!("warmup setting gives input '{name}' more than the {WARM_UP_SIZE_MAX} bytes allowed");
        return Err(Error::invalid(text));
    }
    let source = match source {
        InputDataType::ZeroData(_) => WarmUpSource::Zero,
        InputDataType::RandomData(_) if input.datatype == Datatype::Bytes => WarmUpSource::Zero,
        InputDataType::RandomData(_) => WarmUpSource::Random,
        InputDataType::InputDataFile(file) => {
            validate::filename(&config.name, "input_data_file", file)?;
            WarmUpSource::File(file.clone())
        }
    };
    Ok(WarmUpInput { shape, source })
}

/// The bytes of zeros: an empty string is its length, four bytes.
pub fn size(datatype: Datatype, shape: &[i64]) -> Option<usize> {
    match byte_size(datatype, shape).ok()? {
        Some(size) => Some(size),
        None => element_count(shape).ok()?.checked_mul(4),
    }
}
