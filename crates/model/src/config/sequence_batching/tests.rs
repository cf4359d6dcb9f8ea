use super::*;
use crate::config::{CompletionRules, ConfigDraft};

fn complete(more: &str, files: &[(&str, &[u8])]) -> Result<ModelSpec, String> {
    let text = format!(
        "backend: 'sequence' max_batch_size: 4 input {{ name: 'x' data_type: TYPE_INT32 dims: 1 }} \
         output {{ name: 'y' data_type: TYPE_INT32 dims: 1 }} sequence_batching {{ {more} }}"
    );
    let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).map_err(|error| error.text().to_owned())?;
    let wanted = draft.state_filenames();
    let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), Arc::from(*bytes)));
    let files: BTreeMap<String, Arc<[u8]>> = files.filter(|(name, _)| wanted.contains(name)).collect();
    let draft = draft.with_state_files(files);
    draft.complete(None, &BTreeMap::new(), CompletionRules::default()).map_err(|error| error.text().to_owned())
}

fn control(name: &str, rest: &str) -> String {
    format!("control_input {{ name: '{name}' control {{ {rest} }} }}")
}

#[test]
fn controls_of_all_kinds_and_datatypes_are_inputs_of_the_engine() {
    let more = [
        control("start", "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 7 ]"),
        control("end", "kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ]"),
        control("ready", "kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ]"),
        control("id", "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING"),
    ];
    let spec = complete(&more.concat(), &[]).unwrap();
    let sequence = spec.sequence.unwrap();
    assert_eq!((spec.inputs.len(), sequence.idle_max), (1, Duration::from_secs(1)));
    let inputs = &sequence.engine.inputs;
    let shown: Vec<_> = inputs.iter().map(|input| (input.name.as_str(), input.datatype, &input.shape[..])).collect();
    let want = [
        ("x", Datatype::Int32, &[-1, 1][..]),
        ("start", Datatype::Int32, &[-1, 1]),
        ("end", Datatype::Fp32, &[-1, 1]),
        ("ready", Datatype::Bool, &[-1, 1]),
        ("id", Datatype::Bytes, &[-1, 1]),
    ];
    assert_eq!(shown, want);
    let values: Vec<_> = sequence.controls.iter().map(|control| control.values.concat()).collect();
    assert_eq!(values[0], [0_i32.to_ne_bytes(), 7_i32.to_ne_bytes()].concat());
    assert_eq!(values[1], [0_f32.to_ne_bytes(), 1_f32.to_ne_bytes()].concat());
    assert_eq!((&values[2][..], &values[3][..]), (&[0, 1][..], &[][..]));
    assert_eq!(sequence.strategy, SequenceStrategy::Direct { queue_delay_max: Duration::ZERO, utilization_min: 0.0 });
    for (name, want) in [
        ("TYPE_UINT64", Datatype::Uint64),
        ("TYPE_INT64", Datatype::Int64),
        ("TYPE_UINT32", Datatype::Uint32),
        ("TYPE_INT32", Datatype::Int32),
    ] {
        let id = control("id", &format!("kind: CONTROL_SEQUENCE_CORRID data_type: {name}"));
        assert_eq!(complete(&id, &[]).unwrap().sequence.unwrap().controls[0].datatype, want);
    }
}

#[test]
fn initial_states_are_zeros_or_from_a_file_and_new_states_are_engine_outputs_only() {
    let state = |rest: &str| format!("state {{ input_name: 's' output_name: 't' data_type: TYPE_FP32 {rest} }}");
    let initial = |more: &str, files: &[(&str, &[u8])]| {
        let spec = complete(&state(more), files)?;
        let sequence = spec.sequence.unwrap();
        assert_eq!((spec.outputs.len(), sequence.states[0].output), (1, 1));
        assert_eq!(sequence.engine.outputs[1].name, "t");
        Ok::<_, String>((sequence.states[0].initial.shape.to_vec(), sequence.states[0].initial.contents.to_vec()))
    };
    assert_eq!(initial("dims: [ 2, -1 ]", &[]), Ok((vec![1, 2, 1], vec![0; 8])));
    let zeros = "dims: [ 2, -1 ] initial_state { name: 'i' data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true }";
    assert_eq!(initial(zeros, &[]), Ok((vec![1, 2, 3], vec![0; 24])));
    let file = "dims: 2 initial_state { name: 'i' data_type: TYPE_FP32 dims: 2 data_file: 'begin' }";
    assert_eq!(initial(file, &[("begin", &[1, 2, 3, 4, 5, 6, 7, 8])]), Ok((vec![1, 2], vec![1, 2, 3, 4, 5, 6, 7, 8])));
    let short = initial(file, &[("begin", &[1, 2, 3])]);
    assert_eq!(
        short,
        Err("model 'm': the initial state of 's' has 3 bytes in 'begin', which do not fit its shape [1, 2]".to_owned())
    );
    let listed = "state { input_name: 's' output_name: 'y' data_type: TYPE_INT32 dims: 1 }";
    let spec = complete(listed, &[]).unwrap();
    let sequence = spec.sequence.unwrap();
    assert_eq!((sequence.states[0].output, sequence.engine.outputs.len()), (0, 1));
}

#[test]
fn without_a_number_of_candidates_they_are_as_many_as_a_batch_has_rows() {
    let candidates = |more: &str| match &complete(more, &[]).unwrap().sequence.unwrap().strategy {
        SequenceStrategy::Oldest { candidates_max, .. } => *candidates_max,
        other => panic!("{other:?}"),
    };
    assert_eq!((candidates("oldest { }"), candidates("oldest { max_candidate_sequences: 2 }")), (4, 2));
}

#[test]
fn sequence_batching_that_cannot_be_served_is_refused_by_name() {
    let check = |more: &str, want: &str| {
        let got = complete(more, &[]).map(|_| ()).unwrap_err();
        assert!(got.contains(want), "{more}: {got}");
    };
    let start = "kind: CONTROL_SEQUENCE_START";
    let named = |name: &str| control(name, &format!("{start} int32_false_true: [ 0, 1 ]"));
    check(&named("a").repeat(2), "control tensor 'a' is specified for multiple control kinds for m");
    check(&(named("a") + &named("b")), "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m");
    check(&control("", start), "sequence batching control tensor must have a name for m");
    check(
        &control("a", start),
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
         CONTROL_SEQUENCE_START for m",
    );
    check(
        &control("a", &format!("{start} int32_false_true: [ 0 ]")),
        "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for m",
    );
    check(
        &control("a", &format!("{start} int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]")),
        "sequence batching specifies more than one from 'int32_false_true'",
    );
    check(&control("a", "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"), "unexpected data type for control");
    check(&control("x", &format!("{start} int32_false_true: [ 0, 1 ]")), "must name an input of its own for m");
    check("oldest { max_candidate_sequences: -1 }", "'max_candidate_sequences' must not be negative for m");
    check("oldest { max_candidate_sequences: 2000000 }", "are more than the 1048576 allowed for m");
    check("oldest { max_candidate_sequences: 1 preferred_batch_size: 5 }", "must be <= max batch size for m");
    check("oldest { max_candidate_sequences: 1 preferred_batch_size: 0 }", "must be positive for m");
    check("direct { minimum_slot_utilization: 1.5 }", "must be in range [0.0, 1.0] for m");
    let state = |rest: &str| format!("state {{ input_name: 's' output_name: 't' data_type: TYPE_FP32 {rest} }}");
    check(&state(""), "'dims' of state 's' must be 1 or more integers");
    check(
        &state("dims: 1 use_growable_memory: true"),
        "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 's'. for m",
    );
    let file = "dims: 1 initial_state { name: 'i' data_type: TYPE_FP32 dims: 1 data_file: '../x' }";
    check(&state(file), "name a file beneath the model's directory");
    let twice = "initial_state { name: 'i' data_type: TYPE_FP32 dims: 1 zero_data: true }".repeat(2);
    check(&state(&format!("dims: 1 {twice}")), "state 's' has 2 initial states, it must have 1 for m");
    let other = "dims: 2 initial_state { name: 'i' data_type: TYPE_FP32 dims: 1 zero_data: true }";
    check(&state(other), "'dims' of the initial state of 's' must fit those of the state for m");
}

#[test]
fn the_engine_reads_the_configuration_of_the_user_and_not_the_one_with_controls_as_inputs() {
    let spec = complete(&control("start", "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]"), &[]).unwrap();
    let engine = &spec.sequence.as_ref().unwrap().engine;
    assert_eq!(engine.inputs.len(), 2);
    assert!(engine.config_json.contains("\"sequence_batching\":{"), "{}", engine.config_json);
    assert_eq!((&engine.config_json, &engine.config_message), (&spec.config_json, &spec.config_message));
}
