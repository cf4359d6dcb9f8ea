//! `batch_input` and `batch_output` of a configuration: inputs that the server computes from a batch, and outputs
//! that are split among the requests by the shape of an input. Checks them, with Triton's texts
//! (`model_config_utils.cc`, `ValidateBatchIO`), and converts them. Called by [`crate::config`] and
//! [`crate::config::validate`].

use std::collections::BTreeSet;

use crate::config::tensors::TensorIo;
use crate::datatype;
use crate::limits::MODEL_TENSORS_MAX;
use crate::spec::{BatchInput, BatchInputKind};
use base::error::Error;
use wire::proto::inference::batch_input::Kind;
use wire::proto::inference::{self as proto, DataType, ModelConfig, batch_output};

/// Checks both lists against the inputs and outputs, which were checked before.
pub(super) fn check(config: &ModelConfig) -> Result<(), Error> {
    let for_model = |text: String| Error::invalid(format!("{text} for {}", config.name));
    let mut targets = BTreeSet::new();
    for batch in &config.batch_input {
        check_input(config, batch, &mut targets).map_err(for_model)?;
    }
    let given = targets.len();
    if given > MODEL_TENSORS_MAX {
        let text = format!("more than the {MODEL_TENSORS_MAX} allowed");
        return Err(Error::invalid(format!("model '{}' has {given} batch inputs, {text}", config.name)));
    }
    let mut targets = BTreeSet::new();
    for batch in &config.batch_output {
        check_output(config, batch, &mut targets).map_err(for_model)?;
    }
    Ok(())
}

/// The inputs computed from a batch, one for each target name. The configuration was checked.
pub(super) fn inputs(config: &ModelConfig) -> Vec<BatchInput> {
    let mut inputs = Vec::new();
    for batch in &config.batch_input {
        let source = batch.source_input.first().and_then(|name| position(config, name));
        let (Some(datatype), Some(source)) = (datatype::from_config(batch.data_type()), source) else { continue };
        let input = |name: &String| BatchInput { name: name.clone(), datatype, kind: kind(batch.kind()), source };
        inputs.extend(batch.target_name.iter().map(input));
    }
    inputs
}

/// The index of the input whose shape splits this output; `None` for an output that is not a
/// `batch_output`.
pub(super) fn scatter_source(config: &ModelConfig, output: &str) -> Option<usize> {
    let batch = config.batch_output.iter().find(|batch| batch.target_name.iter().any(|name| name == output))?;
    position(config, batch.source_input.first()?)
}

/// The shape that the model's input for a `batch_input` must have; -1 for any size.
pub(super) fn model_shape(config: &ModelConfig, batch: &proto::BatchInput) -> Vec<i64> {
    let source = batch.source_input.first().and_then(|name| position(config, name));
    let rank = source
        .and_then(|source| config.input.get(source))
        .map_or(0, |input| TensorIo::of_input(input).model_dims().len());
    match batch.kind() {
        Kind::BatchItemShape => vec![-1, i64::try_from(rank).unwrap_or(i64::MAX)],
        _ => vec![-1],
    }
}

fn check_input<'a>(
    config: &ModelConfig,
    batch: &'a proto::BatchInput,
    targets: &mut BTreeSet<&'a str>,
) -> Result<(), String> {
    let Ok(kind) = Kind::try_from(batch.kind) else {
        return Err(format!("unknown batch input kind '{}'", batch.kind));
    };
    let (name, count) = (kind.as_str_name(), batch.source_input.len());
    if count != 1 {
        return Err(format!("batch input kind '{name}' expects 1 source input, got {count}"));
    }
    if !matches!(batch.data_type(), DataType::TypeInt32 | DataType::TypeFp32) {
        return Err("batch input data type must be TYPE_INT32 or TYPE_FP32".to_owned());
    }
    check_sources(config, &batch.source_input)?;
    // Triton treats the first dimension as the batch axis here even if the model has none.
    if matches!(kind, Kind::BatchItemShape | Kind::BatchItemShapeFlatten) && config.max_batch_size == 0 {
        return Err(format!("batch input kind '{name}' needs a batch axis, and 'max_batch_size' is 0"));
    }
    if batch.target_name.is_empty() {
        return Err(format!("batch input kind '{name}' must specify 'target_name'"));
    }
    for target in &batch.target_name {
        if target.is_empty() || position(config, target).is_some() || !targets.insert(target) {
            return Err(format!("target input name '{target}' of a batch input must name an input of its own"));
        }
    }
    Ok(())
}

fn check_output<'a>(
    config: &ModelConfig,
    batch: &'a proto::BatchOutput,
    targets: &mut BTreeSet<&'a str>,
) -> Result<(), String> {
    let Ok(kind) = batch_output::Kind::try_from(batch.kind) else {
        return Err(format!("unknown batch output kind '{}'", batch.kind));
    };
    let (name, count) = (kind.as_str_name(), batch.source_input.len());
    if count != 1 {
        return Err(format!("batch output kind '{name}' expects 1 source input, got {count}"));
    }
    check_sources(config, &batch.source_input)?;
    if batch.target_name.is_empty() {
        return Err(format!("batch output kind '{name}' must specify 'target_name'"));
    }
    for target in &batch.target_name {
        let Some(output) = config.output.iter().find(|output| output.name == *target) else {
            return Err(format!("unknown target output name '{target}'"));
        };
        if !targets.insert(target) {
            return Err(format!("target output name '{target}' can only be specified once"));
        }
        if output.data_type() == DataType::TypeString {
            return Err(format!("target output name '{target}' is TYPE_STRING, whose elements have no fixed size"));
        }
        let source = batch.source_input.first().and_then(|name| config.input.iter().find(|input| input.name == *name));
        let rank = source.map_or(0, |input| TensorIo::of_input(input).model_dims().len());
        if TensorIo::of_output(output)
            .model_dims()
            .iter()
            .rposition(|dimension| *dimension == -1)
            .is_some_and(|last| last >= rank)
        {
            return Err(format!(
                "target output name '{target}' has a variable-size dimension that its source input has not"
            ));
        }
    }
    Ok(())
}

fn check_sources(config: &ModelConfig, names: &[String]) -> Result<(), String> {
    match names.iter().find(|name| position(config, name).is_none()) {
        None => Ok(()),
        Some(name) => Err(format!("unknown source input name '{name}'")),
    }
}

fn position(config: &ModelConfig, name: &str) -> Option<usize> {
    config.input.iter().position(|input| input.name == name)
}

const fn kind(kind: Kind) -> BatchInputKind {
    match kind {
        Kind::BatchElementCount => BatchInputKind::ElementCount,
        Kind::BatchAccumulatedElementCount => BatchInputKind::AccumulatedElementCount,
        Kind::BatchAccumulatedElementCountWithZero => BatchInputKind::AccumulatedElementCountWithZero,
        Kind::BatchMaxElementCountAsShape => BatchInputKind::MaxElementCountAsShape,
        Kind::BatchItemShape => BatchInputKind::ItemShape,
        Kind::BatchItemShapeFlatten => BatchInputKind::ItemShapeFlatten,
    }
}
