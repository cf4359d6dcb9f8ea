//! Configurations of batches, queues, instances and ragged inputs: refused with Triton's texts, or shown.

use base::tensor::Tensor;

use super::*;

#[test]
fn any_number_of_rows_that_a_configuration_can_state_is_taken() {
    for rows in [65_537, 882_352, 1_048_576, i32::MAX] {
        let got = spec(&format!("max_batch_size: {rows} dynamic_batching {{ }} {IO}"), MODEL).unwrap();
        assert_eq!(got.rows_max, rows.unsigned_abs());
    }
}

#[test]
fn a_warm_up_of_more_requests_than_a_batch_has_is_refused() {
    let sample = "model_warmup { name: 'w' batch_size: 65537 inputs { key: 'x' value { data_type: TYPE_FP32 dims: 16 \
                  zero_data: true } } }";
    let want = "failed to run warmup sample 'w': its batch size is 65537, more than the 65536 allowed";
    check(&format!("max_batch_size: 1048576 {sample} {IO}"), MODEL, want);
}

#[test]
fn batching_and_versions_are_refused_with_the_exact_text() {
    let with_io = |text: &str| format!("{text} {IO}");
    check(&with_io("max_batch_size: -1"), MODEL, "'max_batch_size' must be non-negative value for m");
    check(
        &with_io(&format!("max_batch_size: {}", i64::from(i32::MIN))),
        MODEL,
        "'max_batch_size' must be non-negative value for m",
    );
    let preferred =
        |sizes: &str| with_io(&format!("max_batch_size: 8 dynamic_batching {{ preferred_batch_size: {sizes} }}"));
    check(&preferred("[ 0 ]"), MODEL, "dynamic batching preferred size must be positive for m");
    check(&preferred("[ 8, 9 ]"), MODEL, "dynamic batching preferred size must be <= max batch size for m");
    check(
        &preferred("[ 1 ]").replace("max_batch_size: 8", "max_batch_size: 0"),
        "x FP32 [16] > y FP32 [4]",
        "dynamic batching preferred size must be <= max batch size for m",
    );
    check(
        "version_policy { specific { versions: [ 1, 0 ] } }",
        MODEL,
        "model 'm': 'version_policy' names version 0; a version is 1 or more",
    );
}

#[test]
fn priorities_and_queue_policies_are_refused_with_the_exact_text() {
    let check = |fields: &str, want: &str| {
        let text = format!("{IO} max_batch_size: 8 dynamic_batching {{ {fields} }}");
        let got = spec(&text, MODEL).map(|spec| spec.name).map_err(|error| error.text().to_owned());
        let want = if want.is_empty() { Ok("m".to_owned()) } else { Err(want.to_owned()) };
        assert_eq!(got, want, "{fields}");
    };
    let default = "default priority level must be in range [1, 2] for m";
    check("priority_levels: 2", default);
    check("priority_levels: 2 default_priority_level: 3", default);
    check("priority_levels: 2 default_priority_level: 2", "");
    check("default_priority_level: 3", "");
    let level = |key: u64| format!("priority_queue_policy {{ key: {key} value {{ max_queue_size: 4 }} }}");
    let two = "priority_levels: 2 default_priority_level: 1";
    let range = "priority queue policy must have priority level in range [1, 2] for m";
    check(&format!("{two} {} {}", level(1), level(0)), range);
    check(&format!("{two} {} {}", level(1), level(3)), range);
    check(&format!("{two} {} {}", level(1), level(2)), "");
    check(&level(7), "");
    let most = "priority_levels: 18446744073709551615 default_priority_level: 18446744073709551615";
    check(&format!("{most} {}", level(u64::MAX)), "");
    check(
        &format!("{most} default_queue_policy {{ max_queue_size: 1 }}"),
        "model 'm': 'max_queue_size' in 'default_queue_policy' with 18446744073709551615 priority levels is not \
         supported: 1024 levels can have a bound of their own; give it in 'priority_queue_policy'",
    );
    check("priority_levels: 1024 default_priority_level: 1 default_queue_policy { max_queue_size: 1 }", "");

    let ordered = |fields: &str| format!("preserve_ordering: true {fields}");
    let one = "Only one priority level is allowed when 'preserve_ordering' is true for m";
    check(&ordered(two), one);
    let delay = "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m";
    let late = "{ timeout_action: DELAY default_timeout_microseconds: 1 }";
    check(&ordered(&format!("default_queue_policy {late}")), delay);
    check(
        &ordered(&format!(
            "priority_levels: 1 default_priority_level: 1 priority_queue_policy {{ key: 1 value {late} }}"
        )),
        delay,
    );
    check(&ordered(""), "");
    check(&ordered("default_queue_policy { timeout_action: DELAY }"), "");
    check("preserve_ordering: false", "");
}

#[test]
fn a_latency_target_is_a_number_of_microseconds_and_needs_batching() {
    let target = |value: &str| format!("parameters {{ key: 'target_latency_us' value {{ string_value: '{value}' }} }}");
    for value in ["", "0", "-5", "1.5", "5ms", "99999999999999999999"] {
        let want = format!("parameter 'target_latency_us' of model 'm' is '{value}', expected microseconds, 1 or more");
        check(&format!("{IO} max_batch_size: 8 {} dynamic_batching {{ }}", target(value)), MODEL, &want);
    }
    let alone = "parameter 'target_latency_us' of model 'm' needs 'dynamic_batching { }' in the configuration";
    check(&format!("{IO} max_batch_size: 8 {}", target("500")), MODEL, alone);
    let spec = spec(&format!("{IO} max_batch_size: 8 {} dynamic_batching {{ }}", target("500")), MODEL).unwrap();
    assert_eq!(spec.batching.unwrap().latency_target, Some(Duration::from_micros(500)));
}

#[test]
fn instance_groups_are_refused_with_the_exact_text() {
    let group = |text: &str| format!("instance_group [ {{ name: 'g' {text} }} ]");
    let gpu = "instance group g of model m has kind KIND_GPU but server does not support GPUs";
    check(&group("kind: KIND_GPU"), MODEL, gpu);
    check(&group("kind: KIND_GPU gpus: [ 1, 2 ] count: 2"), MODEL, gpu);
    let gpus =
        "instance group g of model m has kind KIND_CPU but specifies one or more GPUs; --gpu=off serves it on the CPU";
    check(&group("kind: KIND_CPU gpus: [ 0 ]"), MODEL, gpus);
    check(&group("gpus: [ 0 ]"), MODEL, gpus);
    check(
        &group("kind: KIND_MODEL gpus: [ 0 ]"),
        MODEL,
        "instance group g of model m has kind KIND_MODEL but specifies one or more GPUs",
    );
    check(
        &group("profile: '1'"),
        MODEL,
        "instance group g of model m and platform onnxruntime_onnxspecifies profile field which is only supported for \
         TensorRT models",
    );
    check(&group("count: -1"), MODEL, "instance group g of model m has a count of -1; it must be 1 or more");
    check(
        &group(&format!("count: {}", INSTANCES_MAX + 1)),
        MODEL,
        "model 'm' has 257 instances, more than the 256 allowed",
    );
    check(
        "instance_group [ { count: 2147483647 }, { count: 2147483647 } ]",
        MODEL,
        "model 'm' has 4294967294 instances, more than the 256 allowed",
    );
    let passive = "model 'm': every instance group is passive, so no request would ever run";
    check(&group("passive: true"), MODEL, passive);
    check("instance_group [ { passive: true }, { passive: true } ]", MODEL, passive);
    let twice = |name: &str| format!("model 'm': two instance groups are named '{name}'; give each a name of its own");
    check("instance_group [ { name: 'g' }, { }, { name: 'g' } ]", MODEL, &twice("g"));
    check("instance_group [ { name: 'm_1' }, { } ]", MODEL, &twice("m_1"));
}

#[test]
fn instance_groups_give_their_instances_names_and_resources() {
    let text = "instance_group [ { count: 2 host_policy: 'far' }, { kind: KIND_MODEL name: 'b' passive: true }, {\n\
                rate_limiter { priority: 3 resources [ { name: 'r' count: 4 }, { name: 's' global: true count: 1 } ] } } ]";
    let [first, second, third] = spec(text, MODEL).unwrap().instance_groups.try_into().unwrap();
    assert_eq!(first.instances().map(|(name, _)| name).collect::<Vec<_>>(), ["m_0_0", "m_0_1"]);
    assert_eq!((first.host_policy.as_str(), first.is_passive, first.rate), ("far", false, RateRules::default()));
    assert_eq!((second.host_policy.as_str(), second.is_passive, second.count), ("model", true, 1));
    let resource = |name: &str, is_global, count| ResourceRules { name: name.to_owned(), is_global, count };
    let resources = vec![resource("r", false, 4), resource("s", true, 1)];
    assert_eq!((third.name.as_str(), third.host_policy.as_str(), third.count), ("m_2", "cpu", 2));
    assert_eq!(third.rate, RateRules { priority: 3, resources });
    check_effective(
        text,
        MODEL,
        &[
            r#"{"name":"m_0","kind":"KIND_CPU","count":2,"gpus":[],"secondary_devices":[],"profile":[],"passive":false,"host_policy":"far"}"#,
            r#"{"name":"b","kind":"KIND_MODEL","count":1,"#,
            r#""rate_limiter":{"resources":[{"name":"r","global":false,"count":4},{"name":"s","global":true,"count":1}],"priority":3}"#,
        ],
    );
}

#[test]
fn decisions_of_the_server_are_shown_and_stay_the_same() {
    let spec = spec("parameters { key: 'k' value { string_value: 'v' } }", MODEL).unwrap();
    let decided = spec.with_parameters(&[("placement", "inline")]).unwrap();
    let want = r#""parameters":{"k":{"string_value":"v"},"placement":{"string_value":"inline"}}"#;
    assert!(decided.config_json.contains(want), "{}", decided.config_json);
    assert_eq!(decided.parameters.get("placement").map(String::as_str), Some("inline"));
    let message = ModelConfig::decode(&*decided.config_message).unwrap();
    assert_eq!(json::encode(&message), *decided.config_json);
    let again = decided.with_parameters(&[("placement", "inline")]).unwrap();
    assert_eq!(again.config_json, decided.config_json);
}

/// A model that batches, with a ragged input `x` and an input `n` that is computed from each batch.
const RAGGED: &str = "max_batch_size: 8\n\
                      input { name: 'x' data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }\n\
                      output { name: 'y' data_type: TYPE_FP32 dims: [ 4 ] }\n";
const RAGGED_MODEL: &str = "x FP32 [-1], n INT32 [-1] > y FP32 [-1x4]";

#[test]
fn batch_inputs_and_outputs_are_refused_with_the_exact_text() {
    let input = |text: &str, want: &str| check(&format!("{RAGGED} batch_input {{ {text} }}"), RAGGED_MODEL, want);
    input("", "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for m");
    for kind in [
        "BATCH_ELEMENT_COUNT",
        "BATCH_ACCUMULATED_ELEMENT_COUNT",
        "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
        "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
        "BATCH_ITEM_SHAPE",
        "BATCH_ITEM_SHAPE_FLATTEN",
    ] {
        let want = format!("batch input kind '{kind}' expects 1 source input, got 2 for m");
        input(&format!("kind: {kind} source_input: [ 'x', 'x' ]"), &want);
    }
    input("source_input: 'x'", "batch input data type must be TYPE_INT32 or TYPE_FP32 for m");
    input(
        "source_input: 'x' data_type: TYPE_INT64 target_name: 'n'",
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
    );
    let int32 = "data_type: TYPE_INT32";
    input(&format!("source_input: 'z' {int32}"), "unknown source input name 'z' for m");
    input(
        &format!("source_input: 'x' {int32}"),
        "batch input kind 'BATCH_ELEMENT_COUNT' must specify 'target_name' for m",
    );
    for target in ["'x'", "''", "'n', 'n'"] {
        let last = target.split(' ').next_back().unwrap();
        input(
            &format!("source_input: 'x' {int32} target_name: [ {target} ]"),
            &format!("target input name {last} of a batch input must name an input of its own for m"),
        );
    }
    check(
        "input { name: 'x' data_type: TYPE_FP32 dims: [ -1 ] } output { name: 'y' data_type: TYPE_FP32 dims: [ 4 ] }\n\
         batch_input { kind: BATCH_ITEM_SHAPE source_input: 'x' data_type: TYPE_INT32 target_name: 'n' }",
        "x FP32 [-1], n INT32 [-1x1] > y FP32 [4]",
        "batch input kind 'BATCH_ITEM_SHAPE' needs a batch axis, and 'max_batch_size' is 0 for m",
    );

    let output = |text: &str, want: &str| check(&format!("{RAGGED} batch_output {{ {text} }}"), RAGGED_MODEL, want);
    let kind = "BATCH_SCATTER_WITH_INPUT_SHAPE";
    output("target_name: 'y'", &format!("batch output kind '{kind}' expects 1 source input, got 0 for m"));
    output("target_name: 'y' source_input: 'z'", "unknown source input name 'z' for m");
    output("target_name: 'z' source_input: 'x'", "unknown target output name 'z' for m");
    output("target_name: [ 'y', 'y' ] source_input: 'x'", "target output name 'y' can only be specified once for m");
    output("source_input: 'x'", &format!("batch output kind '{kind}' must specify 'target_name' for m"));
    check(
        &format!("{RAGGED} batch_output {{ target_name: 'y' source_input: 'x' }}").replace("[ 4 ]", "[ 4, -1 ]"),
        "x FP32 [-1] > y FP32 [-1]",
        "target output name 'y' has a variable-size dimension that its source input has not for m",
    );
    check(
        &format!("{RAGGED} batch_output {{ target_name: 'y' source_input: 'x' }}")
            .replace("'y' data_type: TYPE_FP32", "'y' data_type: TYPE_STRING"),
        "x FP32 [-1] > y BYTES [-1]",
        "target output name 'y' is TYPE_STRING, whose elements have no fixed size for m",
    );
}

#[test]
fn ragged_batch_and_optional_inputs_agree_with_the_model_or_are_refused() {
    let count = "batch_input { source_input: 'x' data_type: TYPE_INT32 target_name: 'n' }";
    let cannot = "unable to load model 'm', ";
    let ragged = |model: &str, want: &str| check(&format!("{RAGGED} {count}"), model, &format!("{cannot}{want}"));
    ragged("x FP32 [-1] > y FP32 [-1x4]", "configuration expects 2 inputs, model provides 1");
    ragged(
        "x FP32 [-1x-1], n INT32 [-1] > y FP32 [-1x4]",
        "configuration expects model provides input with shape [-1]  for ragged input 'x', model provides [-1,-1]",
    );
    ragged(
        "x FP32 [-1], n FP32 [-1] > y FP32 [-1x4]",
        "configuration expects datatype TYPE_INT32 for input 'n', model provides TYPE_FP32",
    );
    ragged(
        "x FP32 [-1], n INT32 [-1x1] > y FP32 [-1x4]",
        "batch input 'n' of kind 'BATCH_ELEMENT_COUNT' is [-1], model provides [-1,1]",
    );
    check(
        &format!("{RAGGED} {count}"),
        "x FP32 [-1], o INT32 [-1] > y FP32 [-1x4]",
        "unexpected inference input 'n', allowed inputs are: o, x",
    );
    let spec = spec(&format!("{RAGGED} {count}"), RAGGED_MODEL).unwrap();
    let name = "n".to_owned();
    let want = BatchInput { name, datatype: Datatype::Int32, kind: BatchInputKind::ElementCount, source: 0 };
    assert_eq!((spec.inputs[0].is_ragged, spec.batch_inputs), (true, vec![want]));

    let optional = |batching: &str, x: &str, inputs: [&str; 2]| {
        let text = format!(
            "{batching} input {{ name: 'x' data_type: TYPE_FP32 dims: [ 2 ] {x} }}\n\
             input {{ name: 'b' data_type: TYPE_FP32 dims: [ 2 ] optional: true }}\n\
             output {{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }}"
        );
        let signature = onnx(&format!("{} > y FP32 [2]", inputs[0]));
        let signature = OnnxSignature { initialized: onnx(&format!("{} >", inputs[1])).inputs, ..signature };
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &["model.onnx".to_owned()]).unwrap();
        let got = draft.complete(Some(&signature), &BTreeMap::new(), CompletionRules::default());
        got.map(|spec| spec.inputs.iter().map(|input| input.is_optional).collect::<Vec<_>>())
    };
    let refused = |batching: &str, x: &str, inputs: [&str; 2], want: &str| {
        let got = optional(batching, x, inputs).unwrap_err();
        assert_eq!(got.text(), format!("{cannot}{want}"), "{batching} {x} {inputs:?}");
    };
    assert_eq!(optional("", "", ["x FP32 [2]", "b FP32 [2]"]), Ok(vec![false, true]));
    let text = "optional input 'b' is not supported for models that support batching";
    refused("max_batch_size: 8", "", ["x FP32 [2]", "b FP32 [2]"], text);
    let text = "input 'b' is optional but has no initial value in the model, which cannot run without it";
    refused("", "", ["x FP32 [2], b FP32 [2]", ""], text);
    let text = "configuration expects 1 inputs, model provides 0";
    refused("", "", ["", "x FP32 [2], b FP32 [2]"], text);
    let text = "configuration expects model provides input with shape [-1] for ragged input 'x', which is not supported \
                for optional input";
    refused("", "optional: true allow_ragged_batch: true", ["", "x FP32 [2], b FP32 [2]"], text);
}

#[test]
fn rows_run_apart_unless_a_configuration_says_more_of_batches_or_keeps_them_together() {
    let parameter = |value: &str| format!("parameters {{ key: 'split_rows' value {{ string_value: '{value}' }} }}");
    let text = "parameter 'split_rows' of model 'm' is 'no', expected 'on' or 'off'";
    check(&format!("max_batch_size: 8 {} {IO}", parameter("no")), MODEL, text);
    let separate = |fields: &str| spec(&format!("{IO} {fields}"), MODEL).unwrap().has_separate_rows();
    for fields in ["", "dynamic_batching { }", &parameter("on")] {
        assert!(separate(&format!("max_batch_size: 8 {fields}")), "{fields}");
    }
    for fields in [
        "max_batch_size: 1",
        &format!("max_batch_size: 8 {}", parameter("off")),
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }",
        "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1 }",
        "max_batch_size: 8 dynamic_batching { preserve_ordering: true }",
    ] {
        assert!(!separate(fields), "{fields}");
    }
    let mut apart = spec(&format!("{IO} max_batch_size: 8"), MODEL).unwrap();
    apart.follows_triton = true;
    assert!(!apart.has_separate_rows(), "as in tritonserver");
    apart.follows_triton = false;
    apart.is_decoupled = true;
    assert!(!apart.has_separate_rows());
    apart.is_decoupled = false;
    apart.inputs[0].is_ragged = true;
    assert!(!apart.has_separate_rows());
}

#[test]
fn inputs_without_rows_have_outputs_without_rows() {
    let shapes = |batch: u32, rows: i64, outputs: &str| {
        let fields = format!(
            "backend: 'identity' max_batch_size: {batch} input {{ name: 'x' data_type: TYPE_FP32 dims: [ {} ] }} {outputs}",
            if batch == 0 { "-1, 3" } else { "3" }
        );
        let spec = spec_of("m", &fields, "model.onnx", "").unwrap();
        let (shape, contents) = ([rows, 3].into_iter().collect(), vec![0; 12 * rows as usize].into());
        let x = Tensor { datatype: Datatype::Fp32, shape, contents };
        let outputs = spec.outputs_without_rows(&[x])?;
        assert!(spec.outputs_without_rows(&[]).is_none());
        Some(outputs.into_iter().map(|output| (output.datatype, output.shape.to_vec())).collect::<Vec<_>>())
    };
    let two = "output { name: 'y' data_type: TYPE_FP32 dims: [ -1, -1, 9 ] } output { name: 'n' data_type: TYPE_INT64 dims: -1 }";
    let want = vec![(Datatype::Fp32, vec![0, 0, 9]), (Datatype::Int64, vec![0])];
    assert_eq!(shapes(0, 0, two), Some(want));
    assert_eq!(shapes(0, 1, two), None);
    let fixed = "output { name: 'y' data_type: TYPE_FP32 dims: 2 }";
    assert_eq!(shapes(0, 0, fixed), None, "the model has to say what they are");
    assert_eq!(shapes(8, 0, fixed), Some(vec![(Datatype::Fp32, vec![0, 2])]), "a batch axis has no fixed length");
}
