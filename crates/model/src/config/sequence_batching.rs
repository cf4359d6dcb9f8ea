//! `sequence_batching` of a configuration: checks it, with Triton's texts if Triton refuses the same
//! (`model_config_utils.cc`, `sequence_utils.cc`), converts it, and builds the configuration that the engine sees.
//! Called by [`crate::config`], [`crate::config::validate`] and [`crate::config::complete`].
//! Slots, inputs and state sizes are bounded by the checks here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::ModelSpec;
use crate::datatype;
use crate::limits::{MODEL_TENSORS_MAX, SEQUENCE_SLOTS_MAX};
use crate::name;
use crate::spec::sequence::{ControlKind, ControlSpec, SequenceBatching, SequenceStrategy, StateSpec};
use base::error::Error;
use base::limits::{RANK_MAX, SEQUENCE_STATE_BYTES_MAX};
use base::tensor::{AlignedBuffer, Datatype, Shape, Tensor, byte_size, element_count, strings};
use wire::proto::inference::model_config::SchedulingChoice;
use wire::proto::inference::model_sequence_batching as proto;
use wire::proto::inference::model_sequence_batching::control::Kind;
use wire::proto::inference::model_sequence_batching::initial_state::StateData;
use wire::proto::inference::{DataType, ModelConfig, ModelInput, ModelOutput, ModelSequenceBatching};

/// Checks `sequence_batching` by itself and against the rest of the configuration.
pub(super) fn check(config: &ModelConfig, batching: &ModelSequenceBatching) -> Result<(), Error> {
    let for_model = |text: String| Error::invalid(format!("{text} for {}", config.name));
    check_strategy(config, batching).map_err(for_model)?;
    let (mut kinds, mut names) = (Vec::new(), BTreeSet::new());
    for input in &batching.control_input {
        if !input.name.is_empty() && !names.insert(input.name.as_str()) {
            let text =
                format!("sequence batching control tensor '{}' is specified for multiple control kinds", input.name);
            return Err(for_model(text));
        }
        let kind = check_control(input).map_err(for_model)?;
        if kinds.contains(&kind) {
            return Err(for_model(format!("sequence batching specifies multiple {} tensors", kind.as_str_name())));
        }
        kinds.push(kind);
    }
    for state in &batching.state {
        check_state(config, state).map_err(for_model)?;
        names.insert(state.input_name.as_str());
    }
    let given = batching.control_input.len() + batching.state.len();
    if given > MODEL_TENSORS_MAX {
        return Err(for_model(format!(
            "{given} control inputs and states are more than the {MODEL_TENSORS_MAX} allowed"
        )));
    }
    let computed = config.batch_input.iter().flat_map(|input| input.target_name.iter().map(String::as_str));
    let mut others = config.input.iter().map(|input| input.name.as_str()).chain(computed);
    if names.len() < given || others.any(|name| names.contains(name)) {
        return Err(for_model(
            "sequence batching: each control input and state must name an input of its own".to_owned(),
        ));
    }
    let outputs: BTreeSet<&str> = batching.state.iter().map(|state| state.output_name.as_str()).collect();
    if outputs.len() < batching.state.len() {
        return Err(for_model("sequence batching: each state must name an output of its own".to_owned()));
    }
    Ok(())
}

fn check_strategy(config: &ModelConfig, batching: &ModelSequenceBatching) -> Result<(), String> {
    let active = config.instance_group.iter().filter(|group| !group.passive);
    let instances: usize =
        active.map(|group| usize::try_from(group.count).unwrap_or(0).saturating_mul(group.gpus.len().max(1))).sum();
    let slots = match &batching.strategy_choice {
        Some(proto::StrategyChoice::Oldest(oldest)) => {
            for size in &oldest.preferred_batch_size {
                if *size <= 0 {
                    return Err("sequence batching preferred batch size must be positive".to_owned());
                }
                if *size > config.max_batch_size {
                    return Err("sequence batching preferred batch size must be <= max batch size".to_owned());
                }
            }
            candidates(config.max_batch_size, oldest.max_candidate_sequences)
                .ok_or("sequence batching 'max_candidate_sequences' must not be negative")?
        }
        Some(proto::StrategyChoice::Direct(direct)) if !(0.0..=1.0).contains(&direct.minimum_slot_utilization) => {
            return Err("sequence batching minimum slot utilization must be in range [0.0, 1.0]".to_owned());
        }
        _ => usize::try_from(config.max_batch_size).unwrap_or(0).max(1),
    };

    match slots.checked_mul(instances).filter(|all| *all <= SEQUENCE_SLOTS_MAX) {
        Some(_) => Ok(()),
        None => Err(format!(
            "sequence batching: {instances} instances of {slots} sequences are more than the {SEQUENCE_SLOTS_MAX} allowed"
        )),
    }
}

fn check_control(input: &proto::ControlInput) -> Result<Kind, String> {
    if input.name.is_empty() {
        return Err("sequence batching control tensor must have a name".to_owned());
    }
    let [control] = input.control.as_slice() else {
        let count = input.control.len();
        return Err(format!("sequence batching control tensor '{}' must have one control, has {count}", input.name));
    };
    let Ok(kind) = Kind::try_from(control.kind) else {
        return Err(format!("sequence batching control tensor '{}' has unknown kind {}", input.name, control.kind));
    };
    let name = kind.as_str_name();
    let sizes = [
        ("int32_false_true", control.int32_false_true.len()),
        ("fp32_false_true", control.fp32_false_true.len()),
        ("bool_false_true", control.bool_false_true.len()),
    ];
    let given: Vec<_> = sizes.into_iter().filter(|(_, size)| *size > 0).collect();
    if kind == Kind::ControlSequenceCorrid {
        if !given.is_empty() {
            return Err(format!(
                "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' \
                 for {name}"
            ));
        }
        return match id_datatype(control.data_type()) {
            Some(_) => Ok(kind),
            None => Err(format!(
                "unexpected data type for control {name}: it is {}, allowed are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, \
                 TYPE_INT32 and TYPE_STRING",
                control.data_type().as_str_name()
            )),
        };
    }
    match given.as_slice() {
        [] => Err(format!(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for {name}"
        )),
        [(_, 2)] => Ok(kind),
        [(field, _)] => Err(format!("sequence batching control '{field}' must have exactly 2 entries for {name}")),
        _ => Err(format!(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and \
             'bool_false_true' for {name}"
        )),
    }
}

fn check_state(config: &ModelConfig, state: &proto::State) -> Result<(), String> {
    if state.input_name.is_empty() || state.output_name.is_empty() {
        return Err("sequence batching: a state must have 'input_name' and 'output_name'".to_owned());
    }
    let name = &state.input_name;
    let Some(datatype) = datatype::from_config(state.data_type()) else {
        return Err(format!("sequence batching: state '{name}' must specify 'data_type'"));
    };
    let is_dimension = |dimension: &i64| *dimension == -1 || *dimension > 0;
    if state.dims.is_empty() || state.dims.len() > RANK_MAX || !state.dims.iter().all(is_dimension) {
        return Err(format!("sequence batching: 'dims' of state '{name}' must be 1 or more integers >= 1, or -1"));
    }
    if state.use_growable_memory && !state.use_same_buffer_for_input_output {
        return Err(format!(
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name '{name}'."
        ));
    }
    let output = config.output.iter().find(|output| output.name == state.output_name);
    if output
        .is_some_and(|output| datatype::from_config(output.data_type()) != Some(datatype) || output.dims != state.dims)
    {
        return Err(format!("sequence batching: state '{name}' differs from output '{}'", state.output_name));
    }
    let [initial] = state.initial_state.as_slice() else {
        return match state.initial_state.len() {
            0 => initial_size(datatype, config, &initial_dims(state, None)).map(drop),
            count => Err(format!("sequence batching: state '{name}' has {count} initial states, it must have 1")),
        };
    };
    if initial.name.is_empty() {
        return Err(format!("Field 'name' must be set when using initial_state for state input '{name}'"));
    }
    if initial.data_type != state.data_type {
        return Err(format!("sequence batching: the initial state of '{name}' must have the data type of the state"));
    }
    let dims = initial_dims(state, Some(initial));
    let fits = |(given, dimension): (&i64, &i64)| *given > 0 && (*dimension == -1 || dimension == given);
    if dims.len() != state.dims.len() || !dims.iter().zip(&state.dims).all(fits) {
        return Err(format!("sequence batching: 'dims' of the initial state of '{name}' must fit those of the state"));
    }
    match &initial.state_data {
        None => Err(format!("sequence batching: the initial state of '{name}' must be 'zero_data' or 'data_file'")),
        Some(StateData::ZeroData(_)) => initial_size(datatype, config, &dims).map(drop),
        Some(StateData::DataFile(file)) if file.is_empty() => {
            Err(format!("sequence batching: 'data_file' of the initial state of '{name}' names no file"))
        }
        Some(StateData::DataFile(file)) => name::check_filename(&config.name, "data_file", file)
            .map_err(|error| error.text().to_owned())
            .and_then(|()| initial_size(datatype, config, &dims).map(drop)),
    }
}

/// The dims of an initial state: its own, or else the state's. A dimension of variable size becomes 1, as in Triton.
fn initial_dims(state: &proto::State, initial: Option<&proto::InitialState>) -> Vec<i64> {
    let given = initial.map(|initial| initial.dims.as_slice()).filter(|dims| !dims.is_empty());
    given.unwrap_or(&state.dims).iter().map(|dimension| if *dimension == -1 { 1 } else { *dimension }).collect()
}

/// The shape of one sequence's state, and its size in bytes; `None` for strings, whose size is not fixed.
fn initial_size(datatype: Datatype, config: &ModelConfig, dims: &[i64]) -> Result<(Shape, Option<usize>), String> {
    let rows = (config.max_batch_size > 0).then_some(1);
    let shape: Shape = rows.into_iter().chain(dims.iter().copied()).collect();
    let size = byte_size(datatype, &shape).ok();
    let is_small = |size: &Option<usize>| size.is_none_or(|size| size <= SEQUENCE_STATE_BYTES_MAX);
    let size = size.filter(is_small).filter(|_| element_count(&shape).is_ok_and(|n| n <= SEQUENCE_STATE_BYTES_MAX));
    let size = size.ok_or_else(|| {
        format!("sequence batching: an initial state of shape {dims:?} is more than the {SEQUENCE_STATE_BYTES_MAX} bytes allowed")
    })?;
    Ok((shape, size))
}

/// The names of control and state inputs, which requests cannot set.
pub(super) fn input_names(config: &ModelConfig) -> Vec<String> {
    let Some(batching) = batching(config) else { return Vec::new() };
    let controls = batching.control_input.iter().map(|input| input.name.clone());
    controls.chain(batching.state.iter().map(|state| state.input_name.clone())).collect()
}

/// The names of state outputs, which requests can ask for only if the configuration lists them as outputs too.
pub(super) fn output_names(config: &ModelConfig) -> Vec<String> {
    batching(config)
        .map_or_else(Vec::new, |batching| batching.state.iter().map(|state| state.output_name.clone()).collect())
}

/// The initial state files, which are in `initial_state/` in the model's directory.
pub(super) fn state_filenames(config: &ModelConfig) -> Vec<String> {
    let states = batching(config).into_iter().flat_map(|batching| &batching.state);
    let files = states.flat_map(|state| &state.initial_state).filter_map(|initial| match &initial.state_data {
        // A path that leads elsewhere is refused by `check_state`, and must not be read before.
        Some(StateData::DataFile(file)) if name::check_filename(&config.name, "data_file", file).is_ok() => {
            Some(file.clone())
        }
        _ => None,
    });
    files.filter(|file| !file.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The configuration of the model as its engine sees it: controls and states are inputs, new states are outputs.
/// `None` if the model does not serve sequences.
pub(super) fn engine_config(config: &ModelConfig) -> Option<ModelConfig> {
    let batching = batching(config)?;
    let mut engine = config.clone();
    for control in &batching.control_input {
        let (_, datatype) = control.control.first().and_then(control_type)?;
        let data_type = datatype::to_config(datatype).into();
        engine.input.push(ModelInput { name: control.name.clone(), data_type, dims: vec![1], ..ModelInput::default() });
    }
    for state in &batching.state {
        let (data_type, dims) = (state.data_type, state.dims.clone());
        let (input, output) = (state.input_name.clone(), state.output_name.clone());
        engine.input.push(ModelInput { name: input, data_type, dims: dims.clone(), ..ModelInput::default() });
        if !engine.output.iter().any(|known| known.name == output) {
            engine.output.push(ModelOutput { name: output, data_type, dims, ..ModelOutput::default() });
        }
    }
    Some(engine)
}

/// Converts `sequence_batching`. The configuration was checked; `files` has the initial state files.
pub(super) fn sequence(
    config: &ModelConfig,
    engine: Arc<ModelSpec>,
    files: &BTreeMap<String, Arc<[u8]>>,
) -> Result<SequenceBatching, Error> {
    let Some(batching) = batching(config) else {
        return Err(Error::internal(format!("model '{}' has no sequence batching", config.name)));
    };
    let controls = batching.control_input.iter().filter_map(|input| {
        let control = input.control.first()?;
        let (kind, datatype) = control_type(control)?;
        Some(ControlSpec { name: input.name.clone(), kind, datatype, values: control_values(control) })
    });
    let states = batching.state.iter().map(|state| {
        let output = engine.output_index(&state.output_name);
        let output = output.ok_or_else(|| Error::internal("a state has no output in the engine's configuration"))?;
        Ok(StateSpec { input_name: state.input_name.clone(), output, initial: initial(config, state, files)? })
    });
    Ok(SequenceBatching {
        strategy: strategy(config.max_batch_size, batching),
        idle_max: Duration::from_micros(batching.max_sequence_idle_microseconds),
        is_iterative: batching.iterative_sequence,
        controls: controls.collect(),
        states: states.collect::<Result<_, Error>>()?,
        outputs_asked: config.output.len(),
        engine,
    })
}

/// The sequences that an instance of the oldest strategy works on; 0 means as many as its batches
/// have rows, while Triton accepts it and serves none. `None` for a negative number.
fn candidates(max_batch_size: i32, max_candidate_sequences: i32) -> Option<usize> {
    match usize::try_from(max_candidate_sequences).ok()? {
        0 => Some(usize::try_from(max_batch_size).unwrap_or(0).max(1)),
        given => Some(given),
    }
}

fn strategy(max_batch_size: i32, batching: &ModelSequenceBatching) -> SequenceStrategy {
    match &batching.strategy_choice {
        Some(proto::StrategyChoice::Oldest(oldest)) => {
            let mut rows_preferred: Vec<u32> = oldest.preferred_batch_size.iter().map(|n| n.unsigned_abs()).collect();
            rows_preferred.sort_unstable();
            rows_preferred.dedup();
            SequenceStrategy::Oldest {
                candidates_max: candidates(max_batch_size, oldest.max_candidate_sequences)
                    .and_then(|count| u32::try_from(count).ok())
                    .unwrap_or(1),
                rows_preferred,
                queue_delay_max: Duration::from_micros(oldest.max_queue_delay_microseconds),
            }
        }
        Some(proto::StrategyChoice::Direct(direct)) => SequenceStrategy::Direct {
            queue_delay_max: Duration::from_micros(direct.max_queue_delay_microseconds),
            utilization_min: direct.minimum_slot_utilization,
        },
        None => SequenceStrategy::Direct { queue_delay_max: Duration::ZERO, utilization_min: 0.0 },
    }
}

fn initial(config: &ModelConfig, state: &proto::State, files: &BTreeMap<String, Arc<[u8]>>) -> Result<Tensor, Error> {
    let (model, name) = (&config.name, &state.input_name);
    let fault = |text: String| Error::invalid(format!("model '{model}': the initial state of '{name}' {text}"));
    let datatype = datatype::from_config(state.data_type()).ok_or_else(|| fault("has no datatype".to_owned()))?;
    let given = state.initial_state.first();
    let (shape, size) = initial_size(datatype, config, &initial_dims(state, given)).map_err(Error::invalid)?;
    let count = element_count(&shape).unwrap_or(0);
    let file = given.and_then(|initial| match &initial.state_data {
        Some(StateData::DataFile(file)) => Some(file),
        _ => None,
    });
    let contents = match (file, size) {
        (None, Some(size)) => AlignedBuffer::zeroed(size),
        // Empty strings: a length of zero for each, in four bytes.
        (None, None) => AlignedBuffer::zeroed(count.saturating_mul(4)),
        (Some(file), size) => {
            let bytes = files.get(file).ok_or_else(|| fault(format!("is in '{file}', which was not read")))?;
            let fits = match size {
                Some(size) => size == bytes.len(),
                None => {
                    let elements: Result<Vec<_>, _> = strings::Strings::new(bytes).collect();
                    elements.is_ok_and(|elements| elements.len() == count)
                }
            };
            if !fits {
                let size = bytes.len();
                return Err(fault(format!(
                    "has {size} bytes in '{file}', which do not fit its shape {:?}",
                    &shape[..]
                )));
            }
            let mut contents = AlignedBuffer::with_capacity(bytes.len());
            contents.extend_from_slice(bytes);
            contents
        }
    };
    Ok(Tensor { datatype, shape, contents: contents.freeze() })
}

fn control_type(control: &proto::Control) -> Option<(ControlKind, Datatype)> {
    let kind = match control.kind() {
        Kind::ControlSequenceStart => ControlKind::Start,
        Kind::ControlSequenceReady => ControlKind::Ready,
        Kind::ControlSequenceEnd => ControlKind::End,
        Kind::ControlSequenceCorrid => return Some((ControlKind::CorrelationId, id_datatype(control.data_type())?)),
    };
    let datatype = match control {
        _ if !control.int32_false_true.is_empty() => Datatype::Int32,
        _ if !control.fp32_false_true.is_empty() => Datatype::Fp32,
        _ => Datatype::Bool,
    };
    Some((kind, datatype))
}

fn id_datatype(data_type: DataType) -> Option<Datatype> {
    let allowed = [Datatype::Uint64, Datatype::Int64, Datatype::Uint32, Datatype::Int32, Datatype::Bytes];
    datatype::from_config(data_type).filter(|datatype| allowed.contains(datatype))
}

fn control_values(control: &proto::Control) -> [Vec<u8>; 2] {
    let value = |index: usize| {
        let int32 = control.int32_false_true.get(index).map(|value| value.to_ne_bytes().to_vec());
        let fp32 = control.fp32_false_true.get(index).map(|value| value.to_ne_bytes().to_vec());
        let bool = control.bool_false_true.get(index).map(|value| vec![u8::from(*value)]);
        int32.or(fp32).or(bool).unwrap_or_default()
    };
    [value(0), value(1)]
}

fn batching(config: &ModelConfig) -> Option<&ModelSequenceBatching> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(batching)) => Some(batching),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
