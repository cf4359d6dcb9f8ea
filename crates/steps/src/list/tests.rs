//! Tests of lists.

use base::tensor::Tensor;

use super::*;
use crate::limits::CALL_TENSORS_MAX;
use crate::tensors::{floats, of_floats};

fn read(text: &str) -> Result<StepList, Error> {
    StepList::read(text, &|_, _| Err("no such file".to_owned()))
}

#[test]
fn steps_run_in_order_on_tensors_by_name() {
    let list = read(
        r#"{"steps": [
            {"step": "cast", "input": "x", "output": "whole", "datatype": "INT64"},
            {"step": "cast", "inputs": {"input": "whole"}, "outputs": {"output": "y"}, "datatype": "FP32"}
        ]}"#,
    );
    let list = list.unwrap();
    assert_eq!(list.inputs().collect::<Vec<_>>(), ["x"]);
    assert_eq!(list.outputs().collect::<Vec<_>>(), ["whole", "y"]);
    let x = of_floats(&[3], vec![1.7, -2.9, 0.0]);
    let got = list.run(|name| (name == "x").then(|| x.clone()), &["y", "x", "z"]).unwrap();
    assert_eq!(floats("y", got[0].as_ref().unwrap()).unwrap()[..], [1.0, -2.0, 0.0]);
    assert_eq!(got[1].as_ref(), Some(&x));
    assert_eq!(got[2], None);
    let error = list.run(|_| None, &["y"]).unwrap_err();
    assert_eq!(error.text(), "step 1 (cast): 'input' needs a tensor, but none came");
}

#[test]
fn steps_behind_the_model_read_what_was_there_before_it() {
    let list = read(
        r#"{"steps": [
            {"step": "cast", "input": "x", "output": "whole", "datatype": "INT64"},
            {"step": "model"},
            {"step": "cast", "input": "whole", "output": "y", "datatype": "FP32"},
            {"step": "cast", "input": "x", "output": "z", "datatype": "FP32"},
            {"step": "cast", "input": "y", "output": "again", "datatype": "INT64"}
        ]}"#,
    );
    let list = list.unwrap();
    assert_eq!(list.inputs().collect::<Vec<_>>(), ["x"]);
    assert_eq!(list.inputs_behind_model().collect::<Vec<_>>(), ["whole", "x"]);
    let (x, whole) = (of_floats(&[1], vec![1.7]), of_floats(&[1], vec![3.0]));
    let named = |name: &str| match name {
        "x" => Some(x.clone()),
        "whole" => Some(whole.clone()),
        _ => None,
    };
    let mut got = list.finish(named).unwrap();
    assert_eq!(floats("y", &got.take("y").unwrap()).unwrap()[..], [3.0]);
    assert_eq!(floats("z", &got.take("z").unwrap()).unwrap()[..], [1.7]);
    // The steps before the model have nothing that those behind it write.
    assert!(list.begin(named).unwrap().get("y").is_none());
}

#[test]
fn a_model_may_stand_between_steps() {
    let list = read(
        r#"{"steps": [
            {"step": "cast", "input": "x", "output": "whole", "datatype": "INT64"},
            {"step": "model"},
            {"step": "cast", "input": "scores", "output": "y", "datatype": "INT64"},
            {"step": "cast", "input": "extra", "output": "z", "datatype": "INT64"}
        ]}"#,
    );
    let list = list.unwrap();
    assert!(list.has_model());
    assert_eq!(list.inputs().collect::<Vec<_>>(), ["x"]);
    assert_eq!(list.outputs().collect::<Vec<_>>(), ["whole"]);
    assert_eq!(list.inputs_behind_model().collect::<Vec<_>>(), ["scores", "extra"]);
    assert_eq!(list.outputs_behind_model().collect::<Vec<_>>(), ["y", "z"]);
    let scores = of_floats(&[1], vec![2.5]);
    let error = list.finish(|name| (name == "scores").then(|| scores.clone())).err().unwrap();
    assert_eq!(error.text(), "step 4 (cast): 'input' needs a tensor, but none came");
}

#[test]
fn a_fault_in_a_list_is_named_with_its_line() {
    let check = |text: &str, want: &str| assert_eq!(read(text).err().unwrap().text(), want, "{text}");
    let known = KINDS.iter().map(|kind| kind.name).chain(["infer", "model"]).collect::<Vec<_>>();
    check(
        r#"{"steps": [{"step": "model", "x": 1}]}"#,
        "step 1: line 1: \"x\": the step \"model\" has no ports, and the parameter \"padding\"",
    );
    let twice = r#"{"steps": [{"step": "model"}, {"step": "model"}]}"#;
    check(twice, "step 2: line 1: the step \"model\" may be there once");
    check("{\n\"steps\": [}", "line 2: Invalid value.");
    check("[]", "line 1: the file must be {\"steps\": [...]}");
    check("{\"steps\": []}", "line 1: \"steps\" must have 1 to 64 elements");
    let many = |count: usize| format!("{{\"steps\": [{}]}}", vec![r#"{"step": "model"}"#; count].join(","));
    check(&many(STEPS_MAX + 1), "line 1: \"steps\" must have 1 to 64 elements");
    check(&many(STEPS_MAX), "step 2: line 1: the step \"model\" may be there once");
    check("{\"steps\": [1],\n\"more\": 1}", "line 2: unknown member \"more\": the file must be {\"steps\": [...]}");
    check("{\"steps\": [1]}", "step 1: line 1: a step must be an object");
    check("{\"steps\": [\n{}]}", "step 1: line 2: \"step\" must name the kind of the step");
    let unknown = format!("step 1: line 1: \"step\": unknown kind \"x\"; known are {}", quoted(&known));
    check(r#"{"steps": [{"step": "x"}]}"#, &unknown);
    let cast = |rest: &str| format!("{{\"steps\": [{{\"step\": \"cast\",\n{rest}}}]}}");
    let bad = |rest: &str, want: &str| check(&cast(rest), want);
    bad(r#""output": "y""#, "step 1: line 1: \"inputs\": the tensor of \"input\" is missing");
    bad(r#""input": "x""#, "step 1: line 1: \"outputs\": the step must write a tensor");
    bad(r#""input": 1"#, "step 1: line 2: \"input\" must be the name of a tensor");
    bad(r#""inputs": {"in": "x"}"#, "step 1: line 2: \"inputs\": unknown port \"in\"; known are \"input\"");
    bad(r#""input": "x", "inputs": {"input": "x"}"#, "step 1: line 2: \"inputs\": \"input\" is connected twice");
    bad(
        r#""input": "x", "output": "y", "datatype": "FP8""#,
        "step 1: line 2: \"datatype\": must be one of \"BOOL\", \"UINT8\", \"UINT16\", \"UINT32\", \"UINT64\", \"INT8\", \"INT16\", \
         \"INT32\", \"INT64\", \"FP16\", \"BF16\", \"FP32\", \"FP64\"",
    );
    bad(
        r#""input": "x", "output": "y", "type": "FP32""#,
        "step 1: line 2: \"type\": unknown parameter; known are \"datatype\"",
    );
    bad(
        r#""input": "x", "output": "y", "datatype": "FP32", "datatype": "FP32""#,
        "step 1: line 2: \"datatype\": is given twice",
    );
}

/// A list that finds, has another model look at each find, and names the result.
const CALLING: &str = r#"{"steps": [
    {"step": "cast", "input": "x", "output": "crops", "datatype": "FP16"},
    {"step": "infer", "model": "reader", "version": 2, "rows": 1,
     "inputs": {"image": "crops", "scale": "x"}, "outputs": {"text": "read", "score": "sure"}},
    {"step": "cast", "input": "sure", "output": "y", "datatype": "FP32"}
]}"#;

#[test]
fn a_run_stops_where_another_model_runs_and_goes_on_with_its_outputs() {
    let list = read(CALLING).unwrap();
    assert_eq!(list.inputs().collect::<Vec<_>>(), ["x"]);
    assert_eq!(list.outputs().collect::<Vec<_>>(), ["crops", "read", "sure", "y"]);
    assert!(!list.is_short() && !list.has_calls_behind_model());
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let call = StepCall {
        model: "reader".to_owned(),
        version: Some(2),
        rows: Some(1),
        inputs: names(&["image", "scale"]),
        outputs: names(&["text", "score"]),
    };
    assert_eq!(list.calls().collect::<Vec<_>>(), [&call]);
    let x = of_floats(&[2], vec![1.5, 2.5]);
    let given = |name: &str| (name == "x").then(|| x.clone());
    let start = || -> StepRun {
        let mut run = list.start(given);
        let pending = list.advance(&mut run).unwrap().unwrap();
        assert_eq!(pending.call, &call);
        assert_eq!(pending.inputs[1], x);
        assert_eq!(pending.inputs[0].datatype, base::tensor::Datatype::Fp16);
        run
    };
    let mut run = start();
    // Until the outputs are there, it stays where it is.
    assert!(list.advance(&mut run).unwrap().is_some());
    let outputs: Vec<Option<Tensor>> = vec![Some(x.clone()), Some(of_floats(&[1], vec![7.0]))];
    list.resume(&mut run, outputs).unwrap();
    assert!(list.advance(&mut run).unwrap().is_none());
    let mut tensors = list.tensors(run);
    assert_eq!(tensors.take("read"), Some(x.clone()));
    assert_eq!(floats("y", &tensors.take("y").unwrap()).unwrap()[..], [7.0]);

    let missing = list.resume(&mut start(), vec![Some(x.clone()), None]).unwrap_err();
    assert_eq!(missing.text(), "step 2 (infer): the model 'reader' gave no output 'score'");
    let failed = list.fail(&start(), Error::invalid("no"));
    assert_eq!(failed.text(), "step 2 (infer): no");
    let error = list.run(given, &["y"]).unwrap_err();
    assert_eq!(error.text(), "step 2 (infer): the step runs the model 'reader', which only a server can");
    let mut run = list.start(|_| None);
    let error = list.advance(&mut run).unwrap_err();
    assert_eq!(error.text(), "step 1 (cast): 'input' needs a tensor, but none came");
}

#[test]
fn a_model_may_run_another_behind_it() {
    let list = read(
        r#"{"steps": [
            {"step": "model"},
            {"step": "infer", "model": "reader", "inputs": {"image": "found"}, "outputs": {"text": "read"}}
        ]}"#,
    );
    let list = list.unwrap();
    assert!(list.has_calls_behind_model());
    assert_eq!(list.inputs_behind_model().collect::<Vec<_>>(), ["found"]);
    assert_eq!(list.outputs_behind_model().collect::<Vec<_>>(), ["read"]);
    let mut run = list.start(|_| None);
    assert!(list.advance(&mut run).unwrap().is_none(), "nothing is before the model");
    let mut run = list.start_behind_model(|_| None);
    let error = list.advance(&mut run).unwrap_err();
    assert_eq!(error.text(), "step 2 (infer): 'image' needs a tensor, but none came");
}

#[test]
fn a_fault_in_a_call_is_named_with_its_line() {
    let check = |rest: &str, want: &str| {
        let text = format!("{{\"steps\": [{{\"step\": \"infer\",\n{rest}}}]}}");
        assert_eq!(read(&text).err().unwrap().text(), format!("step 1: {want}"), "{rest}");
    };
    let tensors = r#""inputs": {"a": "x"}, "outputs": {"b": "y"}"#;
    check(tensors, "line 1: \"model\": must be given: a string");
    check(&format!(r#""model": "", {tensors}"#), "line 2: \"model\": must be the name of a model");
    check(&format!(r#""model": "m", "rows": 0, {tensors}"#), "line 2: \"rows\": must be an integer from 1 to 65536");
    check(
        &format!(r#""model": "m", "row": 1, {tensors}"#),
        "line 2: \"row\": unknown parameter; known are \"model\", \"version\", \"rows\"",
    );
    check(
        r#""model": "m", "input": "x", "outputs": {"b": "y"}"#,
        "line 2: \"input\": the step \"infer\" has \"inputs\", an object from tensors of the model to those of the list",
    );
    let reads = "\"inputs\" must be an object from 1 to 64 tensors of the model to those that the step reads";
    check(r#""model": "m", "outputs": {"b": "y"}"#, &format!("line 1: {reads}"));
    check(r#""model": "m", "inputs": "x", "outputs": {"b": "y"}"#, &format!("line 2: {reads}"));
    check(r#""model": "m", "inputs": {}, "outputs": {"b": "y"}"#, &format!("line 2: {reads}"));
    let many: Vec<_> = (0..=CALL_TENSORS_MAX).map(|index| format!("\"{index}\": \"x\"")).collect();
    let many = many.join(", ");
    check(&format!(r#""model": "m", "inputs": {{{many}}}, "outputs": {{"b": "y"}}"#), &format!("line 2: {reads}"));
    check(
        r#""model": "m", "inputs": {"a": "x"}"#,
        "line 1: \"outputs\" must be an object from 1 to 64 tensors of the model to those that the step writes",
    );
    check(
        r#""model": "m", "inputs": {"a": 1}, "outputs": {"b": "y"}"#,
        "line 2: \"inputs\" has \"a\", which must be the name of a tensor",
    );
    check(
        r#""model": "m", "inputs": {"a": "x", "a": "y"}, "outputs": {"b": "y"}"#,
        "line 2: \"inputs\" connects \"a\" twice",
    );
}

#[test]
fn a_list_names_its_model_even_if_it_is_faulty() {
    assert!(names_model(r#"{"steps": [{"step": "heads"}, {"step": "model"}]}"#));
    for text in [r#"{"steps": [{"step": "cast"}]}"#, r#"{"steps": "model"}"#, r#"{"steps": ["model"]}"#, "{"] {
        assert!(!names_model(text), "{text}");
    }
}
