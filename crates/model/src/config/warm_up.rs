//! `model_warmup`: sample requests that every instance answers before it serves. Checks them, with Triton's texts
//! (`backend_model_instance.cc`, `GenerateWarmupData`), and converts them. Called by [`crate::config`] when
//! the inputs are known.

use crate::config::sequence_batching;
use crate::datatype;
use crate::name;
use crate::spec::TensorSpec;
use crate::spec::WarmUp;
use crate::spec::WarmUpInput;
use crate::spec::WarmUpSource;
use base::error::Error;
use base::limits::{BATCH_ROWS_RESERVED_MAX, WARM_UP_RUNS_MAX, WARM_UP_SIZE_MAX};
use base::tensor::{Datatype, Shape, byte_size, element_count};
use wire::proto::inference::ModelConfig;
use wire::proto::inference::model_warmup::Input;
use wire::proto::inference::model_warmup::input::InputDataType;

/// The directory of the sample files, in the model's directory.
pub const DIRECTORY: &str = "warmup";

/// The samples of a configuration. Its inputs were checked.
pub(super) fn samples(config: &ModelConfig, inputs: &[TensorSpec]) -> Result<Vec<WarmUp>, Error> {
    let mut samples = Vec::new();
    // A sample does not pass the sequence batcher, so it may set control and state inputs itself.
    let sequence_inputs = sequence_batching::input_names(config);
    for sample in &config.model_warmup {
        // Skipped as in Triton, which only mentions it in its log.
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
        // A sample's requests have one row each.
        if sample.batch_size > BATCH_ROWS_RESERVED_MAX {
            let rows = sample.batch_size;
            return refuse(format!("its batch size is {rows}, more than the {BATCH_ROWS_RESERVED_MAX} allowed"));
        }
        let runs = sample.count.max(1);
        if runs > WARM_UP_RUNS_MAX {
            return refuse(format!("its count is {runs}, more than the {WARM_UP_RUNS_MAX} allowed"));
        }
        let mut names: Vec<_> = sample.inputs.keys().collect();
        names.sort_unstable();
        let is_input = |name: &str| {
            inputs.iter().any(|input| input.name == name) || sequence_inputs.iter().any(|have| have == name)
        };
        if let Some(name) = names.into_iter().find(|name| !is_input(name)) {
            return refuse(format!("unexpected inference input '{name}' for model '{}'", config.name));
        }
        let mut given = Vec::with_capacity(inputs.len());
        for input in inputs {
            given.push(match sample.inputs.get(&input.name) {
                Some(sample) => Some(sample_input(config, input, sample)?),
                None if input.is_optional || sequence_inputs.contains(&input.name) => None,
                None => return refuse(format!("it lacks input '{}', which the model requires", input.name)),
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
    if datatype::from_config(sample.data_type()) != Some(input.datatype) {
        let (given, model) = (sample.data_type().as_str_name(), &config.name);
        let want = datatype::to_config(input.datatype).as_str_name();
        return Err(Error::invalid(format!(
            "warmup setting gives input '{name}' of model '{model}' as {given}, expected {want}"
        )));
    }
    // For control and state inputs Triton takes the dims as the full shape, with the batch axis.
    let is_full = sample.dims.len() == input.shape.len() && sequence_batching::input_names(config).contains(name);
    let axis = (config.max_batch_size > 0 && !input.is_shape_tensor && !is_full).then_some(1);
    let shape: Shape = axis.into_iter().chain(sample.dims.iter().copied()).collect();
    if input.to_model(&shape).is_none() && !(input.is_shape_tensor && shape == input.shape) {
        return Err(Error::invalid(format!(
            "warmup setting gives input '{name}' dims {:?}, which do not fit the dims {:?} of its configuration",
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
            name::check_filename(&config.name, "input_data_file", file)?;
            WarmUpSource::File(file.clone())
        }
    };
    Ok(WarmUpInput { shape, source })
}

/// The size of a tensor of zeros, or of empty strings, which are four bytes of length each; `None` on overflow.
pub fn size(datatype: Datatype, shape: &[i64]) -> Option<usize> {
    match byte_size(datatype, shape).ok()? {
        Some(size) => Some(size),
        None => element_count(shape).ok()?.checked_mul(4),
    }
}
