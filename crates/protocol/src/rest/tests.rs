//! Tables: bodies to requests or refusals, results to bodies; round trips of every datatype.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::check::shape_text;
use crate::infer::SequenceParameters;
use crate::infer::{InferRequest, OutputPlan, ResponsePlan};
use crate::shared_memory::RegionSlice;
use crate::testing::{input, output, regions, spec};
use base::budget::ReceiveReservation;
use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor};
use model::labels::Labels;
use model::{CorrelationId, ModelSpec};
use wire::message::Reply;

/// A model that batches up to 8 rows: `IN` INT32 [4] to `OUT` FP32 [4] with labels.
fn model() -> ModelSpec {
    let mut model = spec(8, vec![input("IN", Datatype::Int32, &[4])], vec![output("OUT", Datatype::Fp32, &[4])]);
    model.outputs[0].labels = Some(Arc::new(Labels::from_text("zero\none")));
    model
}

/// A model without a batch axis that has one input and one output of a datatype and any size.
fn any(datatype: Datatype) -> ModelSpec {
    spec(0, vec![input("IN", datatype, &[-1])], vec![output("OUT", datatype, &[-1])])
}

fn json(spec: &ModelSpec, body: &str) -> Result<InferRequest, Error> {
    decode(
        spec,
        HeaderLength::Absent,
        Bytes::copy_from_slice(body.as_bytes()),
        None,
        &mut ReceiveReservation::default(),
    )
}

/// JSON, then binary data.
fn mixed(spec: &ModelSpec, head: &str, binary: &[u8]) -> Result<InferRequest, Error> {
    let body = [head.as_bytes(), binary].concat();
    decode(spec, HeaderLength::Size(head.len() as i32), Bytes::from(body), None, &mut ReceiveReservation::default())
}

fn refusal(result: Result<InferRequest, Error>) -> String {
    match result {
        Ok(request) => format!("{request:?}"),
        Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
    }
}

/// A request for the model with one field of its input or of itself replaced.
fn with_input(fields: &str) -> String {
    format!("{{\"inputs\":[{{{fields}}}]}}")
}

const GOOD: &str = r#""name":"IN","datatype":"INT32","shape":[1,4],"data":[1,2,3,4]"#;

#[test]
fn a_request_in_json_is_decoded() {
    let body = r#"{"id":"42","parameters":{"priority":3,"timeout":1500,"binary_data_output":true,"sequence_id":7,
        "sequence_start":true,"mine":1.5,"text":"x","flag":false},"inputs":[{"name":"IN","shape":[2,4],
        "datatype":"INT32","parameters":{"any":1},"data":[[1,-2,3,4],[5,6,7,8]]}],
        "outputs":[{"name":"OUT","parameters":{"classification":2,"binary_data":false}}],"unknown":[{}]}"#;
    let request = json(&model(), body).unwrap();
    assert_eq!(request.rows, 2);
    assert_eq!(request.priority, 3);
    assert_eq!(request.timeout, Duration::from_micros(1500));
    assert_eq!(request.plan.id, "42");
    assert_eq!(
        request.plan.outputs.as_slice(),
        [OutputPlan { index: 0, is_binary: false, is_base64: false, class_count: 2 }]
    );
    let [tensor] = request.inputs.as_slice() else { panic!() };
    assert_eq!((tensor.datatype, tensor.shape.as_slice()), (Datatype::Int32, &[2_i64, 4][..]));
    assert_eq!(bytemuck::cast_slice::<u8, i32>(&tensor.contents), [1, -2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_sequence_is_named_by_a_number_or_a_string_and_by_neither_zero_nor_nothing() {
    let check = |parameters: &str, want: Option<(CorrelationId, bool, bool)>| {
        let request = json(&model(), &format!("{{\"parameters\":{{{parameters}}},\"inputs\":[{{{GOOD}}}]}}")).unwrap();
        let got = request.sequence.mark().map(|mark| (mark.id, mark.is_start, mark.is_end));
        assert_eq!(got, want, "{parameters}");
    };
    let text = |text: &str| CorrelationId::from_text(text).unwrap();
    let (start, end) = ("\"sequence_start\":true", "\"sequence_end\":true");
    let max = CorrelationId::Number(u64::MAX);
    check("\"sequence_id\":42", Some((CorrelationId::Number(42), false, false)));
    check(&format!("\"sequence_id\":18446744073709551615,{start}"), Some((max, true, false)));
    check(&format!("{end},\"sequence_id\":\"42\""), Some((text("42"), false, true)));
    let longest = "é".repeat(64);
    check(&format!("\"sequence_id\":\"{longest}\",{start},{end}"), Some((text(&longest), true, true)));
    check(&format!("\"sequence_id\":0,{start}"), None);
    check(&format!("\"sequence_id\":\"\",{end}"), None);
    check(start, None);

    let body = format!("{{\"parameters\":{{\"sequence_id\":\"{longest}x\"}},\"inputs\":[]}}");
    let refused = json(&model(), &body).map(|_| ()).unwrap_err();
    assert_eq!(refused, Error::unsupported("string correlation ID cannot be longer than 128 characters"));
}

#[test]
fn outputs_are_binary_as_asked_for_all_or_for_one() {
    let two = || spec(0, vec![], vec![output("A", Datatype::Fp32, &[1]), output("B", Datatype::Fp32, &[1])]);
    let check = |rest: &str, want: &[(usize, bool)]| {
        let request = json(&two(), &format!("{{\"inputs\":[]{rest}}}")).unwrap();
        let got: Vec<_> = request.plan.outputs.iter().map(|plan| (plan.index, plan.is_binary)).collect();
        assert_eq!(got, want, "{rest}");
    };
    check("", &[(0, false), (1, false)]);
    check(r#","outputs":[]"#, &[(0, false), (1, false)]);
    check(r#","parameters":{"binary_data_output":true}"#, &[(0, true), (1, true)]);
    check(r#","parameters":{"binary_data_output":true},"outputs":[{"name":"B"}]"#, &[(1, true)]);
    check(
        r#","parameters":{"binary_data_output":true},"outputs":[{"name":"B","parameters":{"binary_data":false}},{"name":"A"}]"#,
        &[(0, true), (1, false)],
    );
    check(r#","outputs":[{"name":"A","parameters":{"binary_data":true}}]"#, &[(0, true)]);
}

#[test]
fn mistakes_in_the_request_have_tritons_words() {
    let check = |body: &str, want: &str| assert_eq!(refusal(json(&model(), body)), format!("400 {want}"), "{body}");
    let no_inputs = "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'";
    check("{\"inputs\":x}", "failed to parse the request JSON buffer: Invalid value. at 10");
    check("   ", "failed to parse the request JSON buffer: The document is empty. at 3");
    check("{}", no_inputs);
    check("[]", no_inputs);
    check("7", no_inputs);
    check("{\"inputs\":{}}", "Unable to parse 'inputs': attempt to access JSON non-array as array");
    check("{\"id\":7,\"inputs\":[]}", "Unable to parse 'id': attempt to access JSON non-string as string");
    check("{\"inputs\":[7]}", &none_set());
    check("{\"inputs\":[],\"data\":[1,]}", "failed to parse the request JSON buffer: Invalid value. at 23");
    let deep = format!("{{\"x\":{}}}", "[".repeat(100));
    check(&deep, "JSON nesting depth exceeds maximum allowed limit (100)");

    let parameters = |text: &str, want: &str| {
        check(&format!("{{\"parameters\":{text},\"inputs\":[{{{GOOD}}}]}}"), want);
    };
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    let boolean = "attempt to access JSON non-boolean as boolean";
    parameters("[]", "failed to get request params.: attempt to get members for non-object");
    parameters("{\"priority\":-1}", &format!("Unable to parse 'priority': {unsigned}"));
    parameters("{\"timeout\":\"1\"}", &format!("Unable to parse 'timeout': {unsigned}"));
    parameters("{\"sequence_start\":1}", &format!("Unable to parse 'sequence_start': {boolean}"));
    parameters("{\"sequence_end\":0}", &format!("Unable to parse 'sequence_end': {boolean}"));
    parameters("{\"sequence_id\":1.5}", "Unable to parse 'sequence_id': attempt to access JSON non-string as string");
    parameters("{\"binary_data_output\":0}", &format!("Unable to parse 'binary_data_output': {boolean}"));
    parameters(
        "{\"triton_x\":0}",
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    );
    for value in ["null", "[]", "{}"] {
        parameters(
            &format!("{{\"a\":{value}}}"),
            "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
        );
    }
}

fn none_set() -> String {
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
     'shared_memory_region' in 'parameters'. But no field is set"
        .to_owned()
}

#[test]
fn mistakes_in_an_input_have_tritons_words() {
    let check = |fields: &str, want: &str| {
        assert_eq!(refusal(json(&model(), &with_input(fields))), format!("400 {want}"), "{fields}");
    };
    let missing =
        |name: &str| format!("Unable to parse '{name}': attempt to access non-existing object member '{name}'");
    check(r#""name":"IN","datatype":"INT32","shape":[1,4]"#, &none_set());
    check(
        r#""name":"IN","data":[],"parameters":{"binary_data_size":4,"shared_memory_region":"r"}"#,
        &none_set().replace("no field is set", "set 'data' 'binary_data_size' 'shared_memory_region'"),
    );
    check(r#""data":[]"#, &missing("name"));
    check(r#""name":"IN","data":[]"#, &missing("datatype"));
    check(r#""name":"IN","datatype":"INT32","data":[]"#, &missing("shape"));
    check(r#""name":1,"data":[]"#, "Unable to parse 'name': attempt to access JSON non-string as string");
    check(
        r#""name":"IN","datatype":null,"data":[]"#,
        "Unable to parse 'datatype': attempt to access JSON non-string as string",
    );
    check(
        r#""name":"IN","datatype":"INT32","shape":4,"data":[]"#,
        "Unable to parse 'shape': attempt to access JSON non-array as array",
    );
    for dimension in ["-1", "1.0", "\"1\"", "null"] {
        check(
            &format!(r#""name":"IN","datatype":"INT32","shape":[{dimension}],"data":[]"#),
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        );
    }
    check(
        r#""name":"IN","datatype":"INT32","shape":[16,4611686018427387904],"data":[]"#,
        "invalid shape for input 'IN': shape [16,4611686018427387904] causes total element count to exceed maximum \
         size of 9223372036854775807",
    );
    check(
        r#""name":"IN","datatype":"INT32","shape":[9223372036854775808],"data":[]"#,
        "Unable to parse 'shape': dimension 9223372036854775808 of input 'IN' exceeds maximum size of \
         9223372036854775807",
    );
    check(
        &format!(r#""name":"IN","datatype":"INT32","shape":[{}1],"data":[1]"#, "1,".repeat(32)),
        "input 'IN' has more than the maximum of 32 dimensions",
    );
    check(
        r#""name":"IN","datatype":"INT32","shape":[1,4],"data":7"#,
        "Unable to parse 'data': attempt to access JSON non-array as array",
    );
    check(r#""name":"IN","datatype":"INT99","shape":[1,4],"data":[1,2,3,4]"#, "invalid datatype for input IN");
    for (stated, meant) in [("int32", "INT32"), ("float32", "FP32"), ("int64", "INT64"), ("string", "BYTES")] {
        check(
            &format!(r#""name":"IN","datatype":"{stated}","shape":[1,4],"data":[1,2,3,4]"#),
            &format!("invalid datatype for input IN: '{stated}' is no datatype, did you mean {meant}?"),
        );
    }
    check(
        r#""name":"IN","datatype":"BF16","shape":[1,4],"data":[1,2,3,4]"#,
        "receiving BF16 data via JSON is not supported. Please use the binary data format for input IN",
    );
    check(&GOOD.replace("IN\"", "FOO\""), "unexpected inference input 'FOO' for model 'm'");
    let twice = format!("{{\"id\":\"a\",\"inputs\":[{{{GOOD}}},{{{GOOD}}}]}}");
    let want = "400 [request id: a] input 'IN' already exists in request";
    assert_eq!(refusal(json(&model(), &twice)), want);
    let region = r#""name":"IN","datatype":"INT32","shape":[1,4],"parameters":{"shared_memory_region":"r"}"#;
    assert!(refusal(json(&model(), &with_input(region))).starts_with("501 Client shared memory is disabled"));
}

#[test]
fn too_many_inputs_are_refused_however_many_they_are() {
    for count in [1_025, 10_000] {
        let inputs = vec![format!("{{{GOOD}}}"); count].join(",");
        let body = format!("{{\"inputs\":[{inputs}]}}");
        assert_eq!(refusal(json(&model(), &body)), "400 request has more than the maximum of 1024 inputs", "{count}");
        // They are counted before any of them is read.
        for list in ["inputs", "outputs"] {
            let body = format!("{{\"{list}\":[7{}],\"inputs\":[{{{GOOD}}}]}}", ",7".repeat(count - 1));
            let want = format!("400 request has more than the maximum of 1024 {list}");
            assert_eq!(refusal(json(&model(), &body)), want, "{count}");
        }
        // Other lists have bounds of their own, or no bound.
        let unread = format!("{{\"inputs\":[{{{GOOD}}}],\"mine\":[7{}]}}", ",7".repeat(count - 1));
        assert_eq!(json(&model(), &unread).unwrap().rows, 1, "{count}");
        let shape = format!(r#""name":"IN","datatype":"INT32","shape":[1{}],"data":[1]"#, ",1".repeat(count - 1));
        let want = "400 input 'IN' has more than the maximum of 32 dimensions";
        assert_eq!(refusal(json(&model(), &with_input(&shape))), want, "{count}");
    }
}

#[test]
fn data_that_does_not_fit_is_refused() {
    let check = |datatype: &str, data: &str, want: &str| {
        let model = any(Datatype::from_name(datatype).unwrap());
        let body = with_input(&format!(r#""name":"IN","datatype":"{datatype}","shape":[2],"data":{data}"#));
        assert_eq!(refusal(json(&model, &body)), format!("400 {want}"), "{datatype} {data}");
    };
    let few = "Failed to parse 'data' field: shape does not match true shape";
    let many = "Unable to parse 'data': Shape does not match true shape of 'data' field";
    check("INT32", "[1]", few);
    check("INT32", "[]", few);
    check("INT32", "[[1],[2],[3]]", many);
    check("BOOL", "[true]", few);
    check("BOOL", "[true,false,true]", many);
    let signed = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer";
    let unsigned = "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer";
    check("INT8", "[1,\"2\"]", signed);
    check("INT64", "[null,2]", signed);
    check("UINT16", "[true,2]", unsigned);
    check("BOOL", "[1,0]", "Unable to parse 'data': attempt to access JSON non-boolean as boolean");
    check("FP32", "[1,\"2\"]", "Unable to parse 'data': attempt to access JSON non-number as double");
    check("BYTES", "[\"a\",2]", "Unable to parse JSON bytes array: attempt to access JSON non-string as string");
    check(
        "BYTES",
        "[\"a\"]",
        "[request id: <id_unknown>] expected 2 string elements for inference input 'IN' for model 'm', got 1",
    );
    check(
        "UINT8",
        "[1,256]",
        "Unable to parse 'data': element 1 of input 'IN' is 256, which is out of the range of UINT8",
    );
    check(
        "UINT8",
        "[-1,2]",
        "Unable to parse 'data': element 0 of input 'IN' is -1, which is out of the range of UINT8",
    );
    check(
        "INT32",
        "[1,1099511627776]",
        "Unable to parse 'data': element 1 of input 'IN' is 1099511627776, which is out of the range of INT32",
    );
    check(
        "INT32",
        "[1.5,2]",
        "Unable to parse 'data': element 0 of input 'IN' is 1.5, which is not an integer as INT32 requires",
    );
    check(
        "FP32",
        "[1,1e39]",
        "Unable to parse 'data': element 1 of input 'IN' is 1e39, which is out of the range of FP32",
    );
    check("FP32", "[1,1e999]", "failed to parse the request JSON buffer: Number too big to be stored in double. at 64");
    check(
        "FP32",
        "[1,2]]",
        "failed to parse the request JSON buffer: Missing a comma or '}' after an object member. at 66",
    );
}

#[test]
fn a_size_in_bytes_that_overflows_is_told_before_the_elements_are_counted() {
    // NVIDIA's L0_http.
    let check = |datatype: &str, shape: &str, want: &str| {
        let model = any(Datatype::from_name(datatype).unwrap());
        let body = with_input(&format!(r#""name":"IN","datatype":"{datatype}","shape":{shape},"data":[1]"#));
        assert_eq!(refusal(json(&model, &body)), format!("400 {want}"), "{datatype} {shape}");
    };
    check(
        "FP32",
        "[4,1152921504606846978]",
        "byte size overflow for input 'IN': element count (4611686018427387912) * data type size (4) exceeds maximum \
         allowed size (9223372036854775807)",
    );
    let few = "Failed to parse 'data' field: shape does not match true shape";
    check("INT8", "[4,1152921504606846978]", few);
    check("FP32", "[2305843009213693951]", few);
}

#[test]
fn data_that_says_more_or_less_than_it_has_is_refused() {
    let few = "Failed to parse 'data' field: shape does not match true shape";
    let many = "Unable to parse 'data': Shape does not match true shape of 'data' field";
    // The element's length is larger than the data.
    let head = r#"{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":5}}]}"#;
    let want =
        "400 incomplete string data for inference input 'IN', expecting string of length 9 but only 1 bytes available";
    assert_eq!(refusal(mixed(&any(Datatype::Bytes), head, b"\x09\0\0\0a")), want);
    // Without elements, the data does not depend on the datatype, and only the model's check refuses it.
    let body = with_input(r#""name":"IN","datatype":"FP99","shape":[0],"data":[]"#);
    let want = "data-type is '<invalid>', but model 'm' expects 'FP64'";
    assert!(refusal(json(&any(Datatype::Fp64), &body)).contains(want));
    let body = with_input(r#""name":"IN","datatype":"FP64","shape":[0],"data":[1]"#);
    assert_eq!(refusal(json(&any(Datatype::Fp64), &body)), format!("400 {many}"));
    // A large shape alone allocates no memory.
    let body = with_input(r#""name":"IN","datatype":"FP64","shape":[1000000000000],"data":[1]"#);
    assert_eq!(refusal(json(&any(Datatype::Fp64), &body)), format!("400 {few}"));
}

#[test]
fn mistakes_in_an_output_have_tritons_words() {
    let check = |outputs: &str, want: &str| {
        let body = format!("{{\"inputs\":[{{{GOOD}}}],\"outputs\":{outputs}}}");
        assert_eq!(refusal(json(&model(), &body)), want, "{outputs}");
    };
    check("{}", "400 Unable to parse 'outputs': attempt to access JSON non-array as array");
    check("[{}]", "400 Unable to parse 'name': attempt to access non-existing object member 'name'");
    check("[{\"name\":\"NOPE\"}]", "400 unexpected inference output 'NOPE' for model 'm'");
    check(
        "[{\"name\":\"OUT\"},{\"name\":\"OUT\"}]",
        "400 [request id: <id_unknown>] output 'OUT' already exists in request",
    );
    for count in ["-1", "\"a\"", "1.5"] {
        check(
            &format!("[{{\"name\":\"OUT\",\"parameters\":{{\"classification\":{count}}}}}]"),
            "400 Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
        );
    }
    check(
        r#"[{"name":"OUT","parameters":{"classification":1,"shared_memory_region":"r"}}]"#,
        "400 Output can't set both 'shared_memory_region' and 'classification'",
    );
    check(
        r#"[{"name":"OUT","parameters":{"binary_data":1}}]"#,
        "400 Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
    );
    check(
        r#"[{"name":"OUT","parameters":{"shared_memory_region":"r"}}]"#,
        "501 Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
    );
    let bytes = any(Datatype::Bytes);
    let body = r#"{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["a"]}],"outputs":[{"name":"OUT","parameters":{"classification":1}}]}"#;
    let want = "400 class result not available for output due to unsupported type 'BYTES'";
    assert_eq!(refusal(json(&bytes, body)), want);
    let head = r#"{"inputs":[{"name":"IN","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}}]}"#;
    let want = "400 sending FP16 data via JSON is not supported. Please use the binary data format for output";
    assert_eq!(refusal(mixed(&any(Datatype::Fp16), head, &[0; 2])), want);
}

#[test]
fn binary_inputs_are_views_of_the_body_in_the_order_of_the_json() {
    let inputs =
        vec![input("A", Datatype::Uint32, &[2, 2]), input("J", Datatype::Int8, &[1]), input("B", Datatype::Bool, &[3])];
    let model = spec(0, inputs, vec![]);
    let head = r#"{"inputs":[
        {"name":"B","shape":[3],"datatype":"BOOL","parameters":{"binary_data_size":3}},
        {"name":"J","shape":[1],"datatype":"INT8","data":[-7]},
        {"name":"A","shape":[2,2],"datatype":"UINT32","parameters":{"binary_data_size":16}}]}"#;
    let binary: Vec<u8> = (0..19).collect();
    let body = Bytes::from([head.as_bytes(), &binary].concat());
    let request =
        decode(&model, HeaderLength::Size(head.len() as i32), body.clone(), None, &mut ReceiveReservation::default())
            .unwrap();
    let [first, second, third] = request.inputs.as_slice() else { panic!() };
    assert_eq!(first.contents, binary[3..]);
    assert_eq!(second.contents, [249][..]);
    assert_eq!(third.contents, binary[..3]);
    assert_eq!(third.contents.as_ptr(), body[head.len()..].as_ptr());

    let check = |size: usize, want: &str| assert_eq!(refusal(mixed(&model, head, &binary[..size])), want);
    check(15, "400 unexpected size for input 'A', expecting 4 additional bytes for model 'm'");
    check(2, "400 unexpected size for input 'B', expecting 1 additional bytes for model 'm'");
    let long = [&binary[..], b"x"].concat();
    assert_eq!(refusal(mixed(&model, head, &long)), "400 unexpected additional input data for model 'm'");
    let wrong = head.replace("\"binary_data_size\":3", "\"binary_data_size\":2");
    let want = "400 [request id: <id_unknown>] input byte size mismatch for input 'B' for model 'm'. Expected 3, got 2";
    assert_eq!(refusal(mixed(&model, &wrong, &binary[..18])), want);
    let negative = head.replace("\"binary_data_size\":3", "\"binary_data_size\":-3");
    assert!(refusal(mixed(&model, &negative, &binary)).starts_with("400 Unable to parse 'binary_data_size': "));
    // Without the field all of the body is JSON.
    let body = Bytes::from([head.as_bytes(), &binary].concat());
    let got = refusal(decode(&model, HeaderLength::Absent, body, None, &mut ReceiveReservation::default()));
    let want =
        "400 failed to parse the request JSON buffer: The document root must not be followed by other values. at ";
    assert_eq!(got, format!("{want}{}", head.len()));
}

#[test]
fn the_length_of_the_header_is_a_number_within_the_body() {
    let check = |value: &str, want: Result<HeaderLength, &str>| {
        let got = HeaderLength::from_field(Some(value.as_bytes()));
        assert_eq!(got, want.map_err(|text| Error::invalid(text.to_owned())), "{value}");
    };
    assert_eq!(HeaderLength::from_field(None), Ok(HeaderLength::Absent));
    check("0", Ok(HeaderLength::Size(0)));
    check("126", Ok(HeaderLength::Size(126)));
    check("-5", Ok(HeaderLength::Size(-5)));
    check("abc", Err("Unable to parse Inference-Header-Content-Length, got: abc"));
    check("", Err("Unable to parse Inference-Header-Content-Length, got: "));
    check("+1", Err("Unable to parse Inference-Header-Content-Length, got: +1"));
    check("12 ", Err("Unable to parse Inference-Header-Content-Length, got: 12 "));
    check(
        "2147483648",
        Err("Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], \
             got: 2147483648"),
    );
    let outside = |size| {
        refusal(decode(
            &model(),
            HeaderLength::Size(size),
            Bytes::from(vec![b' '; 126]),
            None,
            &mut ReceiveReservation::default(),
        ))
    };
    assert_eq!(outside(-5), "400 inference header size should be in range (0, 126), got: -5");
    assert_eq!(outside(127), "400 inference header size should be in range (0, 126), got: 127");
    assert!(outside(126).contains("The document is empty."));
}

#[test]
fn a_raw_body_is_the_one_input_and_all_outputs_are_binary() {
    let raw = |spec: &ModelSpec, body: &[u8]| {
        decode(spec, HeaderLength::Size(0), Bytes::copy_from_slice(body), None, &mut ReceiveReservation::default())
    };
    let check = |spec: &ModelSpec, size: usize, want: &str| {
        let got = raw(spec, &vec![0; size]).map_or_else(
            |error| error.text().to_owned(),
            |request| {
                assert!(request.plan.outputs.iter().all(|plan| plan.is_binary));
                format!("{} {}", shape_text(&request.inputs[0].shape), request.rows)
            },
        );
        assert_eq!(got.trim_start_matches("[request id: <id_unknown>] "), want);
    };
    let one = |rows_max, datatype, dims: &[i64]| {
        spec(rows_max, vec![input("IN", datatype, dims)], vec![output("OUT", datatype, &[1])])
    };
    check(&model(), 16, "[1,4] 1");
    check(&one(0, Datatype::Fp32, &[2, -1]), 24, "[2,3] 1");
    check(&one(8, Datatype::Fp16, &[-1]), 6, "[1,3] 1");
    check(&one(0, Datatype::Fp32, &[-1]), 0, "[0] 1");
    check(&model(), 0, "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 0");
    check(&model(), 17, "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 17");
    check(
        &one(0, Datatype::Fp32, &[2, -1]),
        20,
        "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 20",
    );
    check(
        &one(0, Datatype::Fp32, &[-1, -1]),
        4,
        "The shape of the raw input 'IN' can not be deduced because there are more than one variable-sized dimension",
    );
    check(&one(0, Datatype::Bytes, &[2]), 4, "For BYTE datatype raw input 'IN', the model must have input shape [1]");
    check(
        &spec(0, vec![input("A", Datatype::Fp32, &[1]), input("B", Datatype::Fp32, &[1])], vec![]),
        4,
        "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model configuration",
    );
    let request = raw(&one(8, Datatype::Bytes, &[1]), b"abc").unwrap();
    assert_eq!(request.inputs[0].contents, b"\x03\0\0\0abc"[..]);
    // Without the field, an empty body is raw too.
    let empty = refusal(decode(&model(), HeaderLength::Absent, Bytes::new(), None, &mut ReceiveReservation::default()));
    assert!(empty.contains("input 'raw_input' for model 'm'. Expected 16, got 0"), "{empty}");
    let body = Bytes::from_static(&[1; 16]);
    let request =
        decode(&model(), HeaderLength::Size(0), body.clone(), None, &mut ReceiveReservation::default()).unwrap();
    assert_eq!(request.inputs[0].contents.as_ptr(), body.as_ptr());
}

#[test]
fn a_model_with_decoupled_answers_is_not_for_http() {
    let mut model = model();
    model.is_decoupled = true;
    let want = "501 HTTP end point doesn't support models with decoupled transaction policy";
    assert_eq!(refusal(json(&model, &with_input(GOOD))), want);
}

fn plan(id: &str, outputs: &[(usize, bool, u32)]) -> ResponsePlan {
    let plan = |&(index, is_binary, class_count)| OutputPlan { index, is_binary, is_base64: false, class_count };
    ResponsePlan { id: id.to_owned(), outputs: outputs.iter().map(plan).collect(), ..ResponsePlan::default() }
}

fn tensor(datatype: Datatype, shape: &[i64], contents: &[u8]) -> Tensor {
    Tensor { datatype, shape: Shape::from_slice(shape), contents: Bytes::copy_from_slice(contents) }
}

fn text(reply: &Reply) -> String {
    let fields: Vec<_> =
        reply.fields.iter().map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value))).collect();
    format!("{} {} {}", reply.status, fields.join(", "), String::from_utf8_lossy(&reply.body.concat()))
}

#[test]
fn what_a_response_repeats_of_its_request_lies_before_its_outputs() {
    let written = |id: Option<CorrelationId>, is_start, is_end| {
        let repeated = Some(Box::new(SequenceParameters { id, is_start, is_end }));
        text(&encode(&model(), 1, &ResponsePlan { repeated, ..plan("7", &[]) }, Vec::new(), None).unwrap())
    };
    let want = |id: &str, start: bool, end: bool| {
        format!(
            "200 Content-Type: application/json {{\"id\":\"7\",\"model_name\":\"m\",\"model_version\":\"1\",\"parameters\":{{\"sequence_id\":{id},\
             \"sequence_start\":{start},\"sequence_end\":{end}}},\"outputs\":[]}}"
        )
    };
    assert_eq!(written(None, false, true), want("0", false, true));
    assert_eq!(written(CorrelationId::from_number(9), true, false), want("9", true, false));
    assert_eq!(written(CorrelationId::from_text("a\"b"), true, true), want(r#""a\"b""#, true, true));
}

#[test]
fn results_are_written_in_tritons_order() {
    let model = model();
    let out = || vec![tensor(Datatype::Fp32, &[1, 4], bytemuck::cast_slice(&[0.1_f32, -1.0, 1e30, f32::NAN]))];
    let check =
        |plan: ResponsePlan, want: &str| assert_eq!(text(&encode(&model, 3, &plan, out(), None).unwrap()), want);
    check(
        plan("a\"b", &[(0, false, 0)]),
        "200 Content-Type: application/json {\"id\":\"a\\\"b\",\"model_name\":\"m\",\"model_version\":\"3\",\
         \"outputs\":[{\"name\":\"OUT\",\"datatype\":\"FP32\",\"shape\":[1,4],\"data\":[0.1,-1.0,1e30,NaN]}]}",
    );
    check(
        plan("", &[(0, false, 2)]),
        "200 Content-Type: application/json {\"model_name\":\"m\",\"model_version\":\"3\",\"outputs\":[{\"name\":\
         \"OUT\",\"datatype\":\"BYTES\",\"shape\":[1,2],\"data\":[\"1e30:2\",\"0.1:0:zero\"]}]}",
    );
    let json = "{\"model_name\":\"m\",\"model_version\":\"3\",\"outputs\":[{\"name\":\"OUT\",\"datatype\":\"BYTES\",\
                \"shape\":[1,1],\"parameters\":{\"binary_data_size\":10}}]}";
    check(
        plan("", &[(0, true, 1)]),
        &format!(
            "200 Content-Type: application/octet-stream, Inference-Header-Content-Length: {} {json}\x06\0\0\01e30:2",
            json.len()
        ),
    );
}

#[test]
fn binary_outputs_follow_the_json_without_a_copy() {
    let outputs = vec![
        output("A", Datatype::Int16, &[2]),
        output("B", Datatype::Uint8, &[0]),
        output("C", Datatype::Uint8, &[1]),
    ];
    let model = spec(0, vec![], outputs);
    let tensors = || {
        vec![
            tensor(Datatype::Int16, &[2], &[1, 0, 255, 255]),
            tensor(Datatype::Uint8, &[0], &[]),
            tensor(Datatype::Uint8, &[1], &[9]),
        ]
    };
    let given = tensors();
    let address = given[0].contents.as_ptr();
    let reply = encode(&model, 1, &plan("", &[(2, true, 0), (1, true, 0), (0, true, 0)]), given, None).unwrap();
    assert_eq!(reply.body.len(), 3);
    assert_eq!((&reply.body[1][..], &reply.body[2][..]), (&[9][..], &[1, 0, 255, 255][..]));
    assert_eq!(reply.body[2].as_ptr(), address);
    let length: usize = std::str::from_utf8(&reply.fields[1].1).unwrap().parse().unwrap();
    assert_eq!(length, reply.body[0].len());
    // No binary bytes, no field.
    let reply = encode(&model, 1, &plan("", &[(1, true, 0), (0, false, 0)]), tensors(), None).unwrap();
    let want = "200 Content-Type: application/json {\"model_name\":\"m\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"B\",\
                \"datatype\":\"UINT8\",\"shape\":[0],\"parameters\":{\"binary_data_size\":0}},{\"name\":\"A\",\"datatype\":\
                \"INT16\",\"shape\":[2],\"data\":[1,-1]}]}";
    assert_eq!(text(&reply), want);
}

#[test]
fn results_that_do_not_fit_are_errors() {
    let check = |tensor: Tensor, want: &str| {
        let model = any(tensor.datatype);
        let got = encode(&model, 1, &plan("", &[(0, false, 0)]), vec![tensor], None).unwrap_err();
        assert_eq!(format!("{} {}", got.code().on_wire().0, got.text()), want);
    };
    let mismatch = "500 output tensor shape does not match size of output for 'OUT'";
    check(tensor(Datatype::Fp32, &[2], &[0; 4]), mismatch);
    check(tensor(Datatype::Bytes, &[2], &[0; 4]), mismatch);
    check(tensor(Datatype::Bytes, &[1], &[9, 0, 0, 0]), mismatch);
    check(
        tensor(Datatype::Bf16, &[1], &[0; 2]),
        "400 sending BF16 data via JSON is not supported. Please use the binary data format for output",
    );
    check(
        tensor(Datatype::Bytes, &[1], b"\x01\0\0\0\xff"),
        "400 element 0 of output 'OUT' is not UTF-8, which JSON requires. Please use the binary data format for output",
    );
    let got = encode(&model(), 1, &plan("", &[(0, false, 0)]), vec![], None).unwrap_err();
    assert_eq!(got.text(), "model 'm' did not produce every output that was asked for");
    assert_eq!(
        text(&error_reply(&Error::unavailable("a \"b\"\n"))),
        "503 Content-Type: application/json, Retry-After: 1 {\"error\":\"a \\\"b\\\"\\n\"}"
    );
}

/// The data of a reply with one output.
fn data_of(reply: &Reply) -> String {
    let body = String::from_utf8(reply.body.concat()).unwrap();
    let start = body.find("\"data\":").unwrap() + 7;
    body[start..body.len() - 3].to_owned()
}

#[test]
fn every_datatype_goes_in_and_comes_out_the_same() {
    for (datatype, data) in [
        (Datatype::Bool, "[true,false,true]"),
        (Datatype::Uint8, "[0,7,255]"),
        (Datatype::Uint16, "[0,7,65535]"),
        (Datatype::Uint32, "[0,7,4294967295]"),
        (Datatype::Uint64, "[0,7,18446744073709551615]"),
        (Datatype::Int8, "[-128,0,127]"),
        (Datatype::Int16, "[-32768,0,32767]"),
        (Datatype::Int32, "[-2147483648,0,2147483647]"),
        (Datatype::Int64, "[-9223372036854775808,0,9223372036854775807]"),
        (Datatype::Fp32, "[0.1,-0.0,3.4028235e38,1e-45,16777216.0,NaN,Infinity,-Infinity]"),
        (Datatype::Fp64, "[0.1,-0.0,1.7976931348623157e308,5e-324,0.30000000000000004,NaN,Infinity,-Infinity]"),
        (Datatype::Bytes, "[\"\",\"a\\\"\\\\\\n\\u0001/é😀\"]"),
    ] {
        let count = if datatype == Datatype::Bytes { 2 } else { data.matches(',').count() + 1 };
        let name = datatype.name();
        let body = with_input(&format!(r#""name":"IN","datatype":"{name}","shape":[{count}],"data":{data}"#));
        let request = json(&any(datatype), &body).unwrap();
        let tensors = request.inputs.clone();
        let reply = encode(&any(datatype), 1, &request.plan, tensors, None).unwrap();
        assert_eq!(data_of(&reply), data, "{name}");
        // Binary in, JSON out.
        let contents = &request.inputs[0].contents;
        let size = contents.len();
        let head = with_input(&format!(
            r#""name":"IN","datatype":"{name}","shape":[{count}],"parameters":{{"binary_data_size":{size}}}"#
        ));
        let again = mixed(&any(datatype), &head, contents).unwrap();
        assert_eq!(again.inputs, request.inputs, "{name}");
    }
    for datatype in [Datatype::Fp16, Datatype::Bf16] {
        let head = format!(
            r#"{{"parameters":{{"binary_data_output":true}},"inputs":[{{"name":"IN","datatype":"{}","shape":[2],"parameters":{{"binary_data_size":4}}}}]}}"#,
            datatype.name()
        );
        let request = mixed(&any(datatype), &head, &[1, 2, 3, 4]).unwrap();
        let reply = encode(&any(datatype), 1, &request.plan, request.inputs, None).unwrap();
        assert_eq!(reply.body[1], [1, 2, 3, 4][..]);
    }
}

#[test]
fn data_read_from_json_begins_on_a_boundary() {
    let body = with_input(&format!(r#""name":"IN","datatype":"INT32","shape":[1000],"data":[{}1]"#, "1,".repeat(999)));
    let request = json(&any(Datatype::Int32), &body).unwrap();
    assert_eq!(request.inputs[0].contents.as_ptr() as usize % base::limits::TENSOR_ALIGNMENT, 0);
}

#[test]
fn tensors_in_shared_memory_are_found_where_a_request_says_or_refused_in_tritons_words() {
    let registry = regions();
    let model = model();
    let outcome = |parameters: &str, outputs: &str| {
        let input = format!(r#"{{"name":"IN","datatype":"INT32","shape":[1,4],"parameters":{{{parameters}}}}}"#);
        let body = format!(r#"{{"id":"7","inputs":[{input}]{outputs}}}"#);
        match decode(
            &model,
            HeaderLength::Absent,
            Bytes::from(body),
            Some(registry.regions()),
            &mut ReceiveReservation::default(),
        ) {
            Ok(request) => {
                assert!(request.inputs[0].contents.is_empty(), "nothing is read here");
                let text = |tensors: &[(usize, RegionSlice)]| match tensors {
                    [] => "-".to_owned(),
                    [(index, slice)] => format!("{index}:{}:{:?}", slice.size(), slice.kind()),
                    more => format!("{more:?}"),
                };
                let shared = request.plan.shared.unwrap();
                format!("{} {}", text(&shared.sources), text(&shared.destinations))
            }
            Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
        }
    };
    let region = r#""shared_memory_region":"r","shared_memory_byte_size":16"#;
    let input = |parameters: &str, want: &str| assert_eq!(outcome(parameters, ""), want, "{parameters}");
    input(region, "0:16:System -");
    input(r#""shared_memory_region":"g","shared_memory_byte_size":16,"shared_memory_offset":48"#, "0:16:Cuda -");
    let with = |more: &str| format!("{region},{more}");
    input(&with(r#""shared_memory_offset":49"#), "400 Invalid offset + byte size for shared memory region: 'r'");
    input(&with(r#""shared_memory_offset":64"#), "400 Invalid offset for shared memory region: 'r'");
    let number = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    input(&with(r#""shared_memory_offset":-1"#), &format!("400 Unable to parse 'shared_memory_offset': {number}"));
    let size = r#""shared_memory_region":"r","shared_memory_byte_size":"x""#;
    input(size, &format!("400 Unable to parse 'shared_memory_byte_size': {number}"));
    let text = "400 Unable to parse 'shared_memory_region': attempt to access JSON non-string as string";
    input(r#""shared_memory_region":1"#, text);
    input(r#""shared_memory_region":"x","shared_memory_byte_size":16"#, "404 Unable to find shared memory region: 'x'");
    let mismatch = "400 [request id: 7] input byte size mismatch for input 'IN' for model 'm'. Expected 16, got";
    input(r#""shared_memory_region":"r""#, &format!("{mismatch} 0"));
    input(r#""shared_memory_region":"r","shared_memory_byte_size":64"#, &format!("{mismatch} 64"));
    let several = "400 Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                   'shared_memory_region' in 'parameters'. But";
    input(&with(r#""binary_data_size":16"#), &format!("{several} set 'binary_data_size' 'shared_memory_region'"));
    input(r#""shared_memory_byte_size":16"#, &format!("{several} no field is set"));

    let output = |parameters: &str, want: &str| {
        let outputs = format!(r#","outputs":[{{"name":"OUT","parameters":{{{parameters}}}}}]"#);
        assert_eq!(outcome(region, &outputs), want, "{parameters}");
    };
    output(r#""shared_memory_region":"s","shared_memory_byte_size":64"#, "0:16:System 0:64:System");
    // The request of a client that does not want binary data.
    output(&with(r#""binary_data":false"#), "0:16:System 0:16:System");
    output(&with(r#""binary_data":true"#), "400 Output can't set both 'shared_memory_region' and 'binary_data'");
    output(&with(r#""classification":1"#), "400 Output can't set both 'shared_memory_region' and 'classification'");
    output(r#""shared_memory_region":"x""#, "404 Unable to find shared memory region: 'x'");
}

#[test]
fn half_floats_and_strings_may_lie_in_shared_memory_and_are_not_told_in_json() {
    let registry = regions();
    for (datatype, shape, size) in [(Datatype::Fp16, 8, 16), (Datatype::Bytes, 3, 13)] {
        let model = any(datatype);
        let region =
            |name| format!(r#""parameters":{{"shared_memory_region":"{name}","shared_memory_byte_size":{size}}}"#);
        let (from, to, name) = (region("r"), region("s"), datatype.name());
        let input = format!(r#"{{"name":"IN","datatype":"{name}","shape":[{shape}],{from}}}"#);
        let body = format!(r#"{{"inputs":[{input}],"outputs":[{{"name":"OUT",{to}}}]}}"#);
        let request = decode(
            &model,
            HeaderLength::Absent,
            Bytes::from(body),
            Some(registry.regions()),
            &mut ReceiveReservation::default(),
        )
        .unwrap();
        let outputs = request.inputs;
        let reply = encode(&model, 1, &request.plan, outputs, None).unwrap();
        let want = format!(
            r#"{{"model_name":"m","model_version":"1","outputs":[{{"name":"OUT","datatype":"{name}","shape":[{shape}]}}]}}"#
        );
        assert_eq!(String::from_utf8(reply.body.concat()).unwrap(), want);
        assert_eq!(reply.fields.len(), 1, "no length of a header");
    }
}

#[test]
fn json_takes_memory_by_what_it_becomes() {
    use std::rc::Rc;

    use base::budget::{ReceiveBudget, testing};
    let model = spec(0, vec![input("A", Datatype::Fp64, &[100])], vec![output("X", Datatype::Fp32, &[1])]);
    let data = vec!["1"; 100].join(",");
    let body = format!(r#"{{"inputs":[{{"name":"A","datatype":"FP64","shape":[100],"data":[{data}]}}]}}"#);
    for (size_max, fits) in [(800, true), (799, false)] {
        let memory = testing::Bytes::new(size_max);
        let mut reservation = ReceiveReservation::new(Some(Rc::clone(&memory) as Rc<dyn ReceiveBudget>));
        let outcome = decode(&model, HeaderLength::Absent, Bytes::from(body.clone()), None, &mut reservation);
        assert_eq!((outcome.is_ok(), memory.reserved.get()), (fits, if fits { 800 } else { 0 }), "{outcome:?}");
        assert!(outcome.is_ok_and(|request| request.inputs[0].contents.len() == 800) || reservation.is_short());
    }
    // A shape that the text cannot hold claims no memory for it.
    let mut model = model;
    model.inputs[0].dims = vec![-1].into();
    let body = r#"{"inputs":[{"name":"A","datatype":"FP64","shape":[100000000],"data":[1,2]}]}"#;
    let memory = testing::Bytes::new(100);
    let mut reservation = ReceiveReservation::new(Some(Rc::clone(&memory) as Rc<dyn ReceiveBudget>));
    let error = decode(&model, HeaderLength::Absent, Bytes::from(body), None, &mut reservation).unwrap_err();
    assert_eq!(error.text(), "Failed to parse 'data' field: shape does not match true shape");
}
