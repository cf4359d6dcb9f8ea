use std::sync::Arc;

use super::*;
use crate::ModelSpec;
use crate::config::{CompletionRules, ConfigDraft};
use crate::labels::Labels;
use base::error::Error;

/// Inputs or outputs `x FP32 4x-1, …`; `?` after the name makes an input optional, a fourth word is a label file.
fn tensors(field: &str, text: &str) -> String {
    let tensor = |text: &str| {
        let words: Vec<_> = text.split_whitespace().collect();
        let (name, optional) = match words[0].strip_suffix('?') {
            Some(name) => (name, " optional: true"),
            None => (words[0], ""),
        };
        let labels = words.get(3).map_or(String::new(), |file| format!(" label_filename: '{file}'"));
        let dims = words[2].replace('x', ", ");
        format!("{field} {{ name: '{name}' data_type: TYPE_{} dims: [ {dims} ]{optional}{labels} }}\n", words[1])
    };
    text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(tensor).collect()
}

fn io(rows_max: u32, text: &str) -> String {
    let (inputs, outputs) = text.split_once('>').unwrap();
    format!("max_batch_size: {rows_max}\n{}{}", tensors("input", inputs), tensors("output", outputs))
}

/// One step `model: INPUT=tensor … > OUTPUT=tensor …`; `model/2` is a version.
fn step(text: &str) -> String {
    let (model, maps) = text.split_once(':').unwrap();
    let (model, version) = model.trim().split_once('/').unwrap_or((model.trim(), "-1"));
    let (inputs, outputs) = maps.split_once('>').unwrap();
    let map = |field: &str, text: &str| -> String {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(key, value)| format!("{field} {{ key: '{key}' value: '{value}' }} ")).collect()
    };
    let (inputs, outputs) = (map("input_map", inputs), map("output_map", outputs));
    format!("step {{ model_name: '{model}' model_version: {version} {inputs}{outputs}}}\n")
}

fn steps(text: &str) -> String {
    let steps: String = text.split(';').map(str::trim).filter(|text| !text.is_empty()).map(step).collect();
    format!("ensemble_scheduling {{ {steps}}}")
}

fn read(name: &str, text: &str) -> Result<ModelSpec, Error> {
    let draft = ConfigDraft::new(name, Some(text.as_bytes()), &[])?;
    let labels = draft.label_filenames().into_iter();
    let labels = labels.map(|file| (file.to_owned(), Arc::new(Labels::from_text(file)))).collect();
    draft.complete(None, &labels, CompletionRules::default())
}

fn ensemble(rows_max: u32, tensors: &str, text: &str) -> Result<ModelSpec, Error> {
    read("e", &format!("platform: 'ensemble' {}{}", io(rows_max, tensors), steps(text)))
}

fn text<T>(outcome: Result<T, Error>) -> String {
    outcome.map_or_else(|error| error.text().to_owned(), |_| "serves".to_owned())
}

#[test]
fn every_step_is_complete_and_every_tensor_is_made_once_and_used() {
    let check = |tensors: &str, steps: &str, want: &str| assert_eq!(text(ensemble(8, tensors, steps)), want, "{steps}");
    let one = "x FP32 4 > y FP32 4";
    check(one, "m: I=x > O=y", "serves");
    check(one, "m: I=x > O=t; m: I=t > O=y", "serves");
    check(one, "m: I=t > O=y; m: I=x > O=t", "serves"); // in any order
    check(one, ": I=x > O=y", "must specify 'model_name' in step 0 of ensemble 'e'");
    check(one, "m: > O=y", "must specify 'input_map' in step 0 of ensemble 'e'");
    check(one, "m: I=x > O=y; m: I=x >", "must specify 'output_map' in step 1 of ensemble 'e'");
    check(one, "", "must specify 'step' for ensemble 'e'");
    check(
        one,
        "m: I=x > O=y; m: I=x > O=y",
        "ensemble tensor 'y' can appear in an output map only once for ensemble 'e' step 1",
    );
    check(one, "m: I=x > O=y P=x", "ensemble input 'x' can not appear in an output map for ensemble 'e' step 0");
    check("x FP32 4, z FP32 4 > y FP32 4", "m: I=x > O=y", "ensemble input 'z' for ensemble e' is not used");
    check("x FP32 4 > y FP32 4, z FP32 4", "m: I=x > O=y", "ensemble output 'z' for ensemble e' is not used");
    check(one, "m: I=x J=t > O=y; m: I=y > O=t", "output 'y' for ensemble 'e' is not written"); // a circle
    check(one, "m: I=x > O=y P=t", "ensemble tensor 't' is unused in ensemble 'e'");
    check(one, "m: I=x > O=y; m: I=t > O=u", "ensemble tensor 't' is unused in ensemble 'e'");
    let many: Vec<_> = (0..=crate::limits::ENSEMBLE_STEPS_MAX).map(|index| format!("m: I=x > O=t{index}")).collect();
    check(one, &many.join(";"), "ensemble 'e' has 257 steps, more than the 256 allowed");
}

#[test]
fn an_ensemble_has_no_instances_and_no_options_of_an_engine() {
    let check = |more: &str, want: &str| {
        let config = format!("{}{}", io(8, "x FP32 4 > y FP32 4"), steps("m: I=x > O=y"));
        assert_eq!(text(read("e", &format!("{more} {config}"))), want, "{more}");
    };
    check("platform: 'ensemble'", "serves");
    check("", "serves");
    let pair = "Ensemble model 'e' must have platform type 'ensemble' and empty backend type";
    check("platform: 'ensemble' backend: 'identity'", pair);
    let other = "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble";
    check("backend: 'identity'", other);
    check("platform: 'onnxruntime_onnx'", other);
    check("platform: 'ensemble' instance_group { }", "instance group should not be specified for ensemble 'e'");
    check("platform: 'ensemble' optimization { }", "optimization should not be specified for ensemble 'e'");
    check(
        "platform: 'ensemble' model_warmup { }",
        "model_warmup can not be specified for ensemble 'e'; give it to the models of its steps, which are warm before the \
         ensemble is ready",
    );
    check(
        "platform: 'ensemble' batch_output { target_name: 'y' kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: 'x' }",
        "batch_input and batch_output can not be specified for ensemble 'e'",
    );
    check("platform: 'ensemble' response_cache { enable: true }", "serves");
    assert_eq!(
        text(read("e", &format!("platform: 'ensemble' {}", io(8, "x FP32 4 > y FP32 4")))),
        "ensemble scheduling must be set for ensemble e whose platform is ensemble"
    );
}

/// Models `name/version rows: inputs > outputs`, one a line; `*` in front makes one decoupled.
fn members(text: &str) -> ComposingModels {
    let mut members = ComposingModels::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (head, tensors) = line.split_once(':').unwrap();
        let (name, rows_max) = head.split_once(' ').unwrap();
        let (name, version) = name.split_once('/').unwrap_or((name, "1"));
        let policy = if name.starts_with('*') { "model_transaction_policy { decoupled: true }" } else { "" };
        let name = name.trim_start_matches('*');
        let spec = read(name, &format!("backend: 'identity' {policy} {}", io(rows_max.parse().unwrap(), tensors)));
        let member = members.models.entry(name.to_owned()).or_default();
        member.versions.push((version.parse().unwrap(), Arc::new(spec.unwrap())));
        member.versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    }
    members
}

fn resolved(models: &str, rows_max: u32, tensors: &str, steps: &str) -> String {
    text(members(models).resolve(ensemble(rows_max, tensors, steps).unwrap()))
}

#[test]
fn the_models_it_is_made_of_are_there() {
    let mut members = members("m/2 8: I FP32 4 > O FP32 4\nm/1 8: I FP32 4 > O FP32 4");
    let member = |failure: Option<&str>, is_invalid| ComposingModel {
        failure: failure.map(str::to_owned),
        is_invalid,
        ..ComposingModel::default()
    };
    members.models.insert("bad".to_owned(), member(Some("Internal: no file"), false));
    members.models.insert("broken".to_owned(), member(Some("ensemble broken contains models"), true));
    members.models.insert("idle".to_owned(), member(None, false));
    let check = |steps: &str, want: &str| {
        let spec = ensemble(8, "x FP32 4 > y FP32 4", steps).unwrap();
        assert_eq!(text(members.resolve(spec)), want, "{steps}");
    };
    check("m: I=x > O=y", "serves");
    check("m/1: I=x > O=y", "serves");
    check("m/3: I=x > O=y", "ensemble 'e' depends on 'm' whose required version 3 is not loaded.");
    check("m/0: I=x > O=y", "ensemble 'e' depends on 'm' whose required version 0 is not loaded.");
    check(
        "q: I=x > O=t; m: I=t > O=u; p: I=u > O=y",
        "ensemble e contains models that are not available or ambiguous: p, q",
    );
    check("idle: I=x > O=y", "ensemble 'e' depends on 'idle' which has no loaded version.");
    check(
        "bad: I=x > O=y",
        "ensemble 'e' depends on 'bad' which has no loaded version. Model 'bad' loading failed with error: Internal: \
         no file",
    );
    check(
        "broken: I=x > O=y",
        "ensemble 'e' depends on 'broken' which is not valid. Model 'broken' failed with error: ensemble broken \
         contains models",
    );
}

#[test]
fn tensors_and_batches_fit_between_steps() {
    let models = "
        m 8: I FP32 4 > O FP32 4
        wide 8: I FP32 16 > O FP32 16
        any 8: I FP32 -1 > O FP32 -1
        int 8: I INT32 4 > O INT32 4
        small 4: I FP32 4 > O FP32 4
        plain 0: I FP32 -1x4 > O FP32 -1x4
        single 0: I FP32 4 > O FP32 4
        two 8: I FP32 4, J? FP32 4 > O FP32 4, P FP32 4";
    let check = |steps: &str, want: &str| {
        assert_eq!(resolved(models, 8, "x FP32 4 > y FP32 4", steps), want, "{steps}");
    };
    check("m: I=x > O=t; any: I=t > O=y", "serves");
    check("two: I=x > O=y", "serves"); // what is optional may be left out
    check("plain: I=x > O=y", "serves"); // its first dimension is the rows of the others
    check("single: I=x > O=y", "serves");
    check(
        "m: I=x > O=t; wide: I=t > O=y",
        "in ensemble e, ensemble tensor t: inconsistent shape: [-1,4] is inferred from model m while [-1,16] is inferred \
         from model wide",
    );
    check(
        "wide: I=x > O=y",
        "in ensemble e, ensemble tensor x: inconsistent shape: [-1,4] is inferred from model e while [-1,16] is inferred \
         from model wide",
    );
    check(
        "m: I=x > O=t; int: I=t > O=y",
        "in ensemble e, ensemble tensor t: inconsistent data type: TYPE_FP32 is inferred from model m while TYPE_INT32 \
         is inferred from model int",
    );
    check(
        "small: I=x > O=y",
        "ensemble e allows maximum batch size 8, but it contains model small which only allows maximum batch size to be \
         4",
    );
    check("m: J=x > O=y", "in ensemble e, ensemble tensor x is mapping to non-existing input J in model m");
    check("m: I=x > P=y", "in ensemble e, ensemble tensor y is mapped from non-existing output P in model m");
    check("two: J=x > O=y", "in ensemble e, input I in model two is not mapped to any ensemble tensors");
    assert_eq!(resolved(models, 0, "x FP32 4 > y FP32 4", "small: I=x > O=y"), "serves", "it brings one row");
}

#[test]
fn responses_of_different_decoupled_steps_do_not_meet() {
    let models = "
        m 0: I FP32 4, J? FP32 4 > O FP32 4
        *d 0: I FP32 4 > O FP32 4, P FP32 4";
    let check = |steps: &str, want: &str| {
        let got = members(models).resolve(ensemble(0, "x FP32 4 > y FP32 4", steps).unwrap());
        let got = got.map_or_else(|error| error.text().to_owned(), |spec| format!("decoupled {}", spec.is_decoupled));
        assert_eq!(got, want, "{steps}");
    };
    check("m: I=x > O=y", "decoupled false");
    check("d: I=x > O=y", "decoupled true");
    check("d: I=x > O=t P=u; m: I=t J=u > O=y", "decoupled true");
    let cached = |steps: &str| ModelSpec { is_cached: true, ..ensemble(0, "x FP32 4 > y FP32 4", steps).unwrap() };
    assert!(members(models).resolve(cached("m: I=x > O=y")).is_ok());
    assert_eq!(
        text(members(models).resolve(cached("d: I=x > O=y"))),
        "Response Cache does not currently support model e with 'decoupled' transaction policy. Please disable the \
         response cache."
    );
    check("d: I=x > O=t; m: I=t > O=u; d: I=u > O=y", "decoupled true");
    let mixed = |model: &str| {
        format!("in ensemble e, step of model '{model}' receives inputs originated from different decoupled models")
    };
    check("d: I=x > O=t; m: I=t J=x > O=y", &mixed("m"));
    check("d: I=x > O=t; d: I=x > O=u; m: I=t J=u > O=y", &mixed("m"));
    let got = ensemble(0, "x FP32 4 > y FP32 4, z FP32 4", "d: I=x > O=y; m: I=x > O=z").unwrap();
    assert_eq!(text(members(models).resolve(got)), mixed("e"), "a response is of one answer");
    let spec = members(models).resolve(ensemble(0, "x FP32 4 > y FP32 4", "d: I=x > O=y").unwrap()).unwrap();
    assert!(spec.config_json.contains(r#""model_transaction_policy":{"decoupled":true}"#), "{}", spec.config_json);
}

#[test]
fn outputs_have_their_own_labels_or_those_of_the_composing_model() {
    let models = members("m 8: I FP32 4 > O FP32 4 apple, P FP32 4");
    let spec = ensemble(
        8,
        "x FP32 4 > y FP32 4, z FP32 4, w FP32 4 pear",
        "m: I=x > O=y P=z; m: I=x > O=w P=t; m: I=t > O=u; m: I=u > O=v; m: I=v > O=q; m: I=q > O=r",
    );
    assert_eq!(text(spec), "ensemble tensor 'r' is unused in ensemble 'e'");
    let spec = ensemble(8, "x FP32 4 > y FP32 4, z FP32 4, w FP32 4 pear", "m: I=x > O=y P=z; m: I=x > O=w").unwrap();
    let check = |spec: &ModelSpec| {
        let label =
            |index: usize| spec.outputs[index].labels.as_ref().and_then(|labels| labels.get(0)).map(str::to_owned);
        assert_eq!([label(0), label(1), label(2)], [Some("apple".to_owned()), None, Some("pear".to_owned())]);
    };
    let spec = models.resolve(spec).unwrap();
    check(&spec);
    // Resolved again when one of its models changes.
    check(&models.resolve(spec).unwrap());
}

#[test]
fn an_ensemble_does_not_contain_itself() {
    let serving = |name: &str, steps_text: &str| {
        let tensors = io(8, "x FP32 4 > y FP32 4");
        Arc::new(read(name, &format!("platform: 'ensemble' {tensors}{}", steps(steps_text))).unwrap())
    };
    let mut members = members("m 8: I FP32 4 > O FP32 4");
    let mut add = |name: &str, steps: &str| {
        members.models.insert(
            name.to_owned(),
            ComposingModel { versions: vec![(1, serving(name, steps))], ..ComposingModel::default() },
        );
    };
    add("f", "m: I=x > O=y");
    add("g", "e: x=x > y=y");
    add("e", "f: x=x > y=y"); // as it serves now
    for depth in 1..=9 {
        let inner = if depth == 1 { "m: I=x > O=y".to_owned() } else { format!("n{}: x=x > y=y", depth - 1) };
        add(&format!("n{depth}"), &inner);
    }
    let check = |steps: &str, want: &str| {
        let spec = ensemble(8, "x FP32 4 > y FP32 4", steps).unwrap();
        assert_eq!(text(members.resolve(spec)), want, "{steps}");
    };
    check("f: x=x > y=t; f: x=t > y=y", "serves");
    check("e: x=x > y=y", "circular dependency between ensembles: e -> ... -> e -> e");
    check("g: x=x > y=y", "circular dependency between ensembles: e -> ... -> g -> e");
    check("n7: x=x > y=y", "serves");
    check("n8: x=x > y=y", "ensemble 'e' contains ensembles nested more than 8 deep");
}

#[test]
fn ensembles_load_after_their_composing_models() {
    let check = |text: &str, want: &str| {
        let ensembles: Vec<_> = text
            .split_whitespace()
            .map(|word| {
                let (name, steps) = word.split_once(':').unwrap();
                (name.to_owned(), steps.split(',').map(str::to_owned).collect())
            })
            .collect();
        let order = load_order(&ensembles).into_iter().map(|(index, refusal)| {
            let why = refusal.map_or(String::new(), |error| format!("!{}", error.text().split_once(": ").unwrap().1));
            format!("{}{why}", ensembles[index].0)
        });
        assert_eq!(order.collect::<Vec<_>>().join("; "), want, "{text}");
    };
    check("", "");
    check("a:m b:m", "a; b");
    check("a:b b:c,m c:m", "c; b; a");
    check("a:a", "a!a -> ... -> a -> a");
    check("a:b b:a c:a d:m", "d; a!a -> ... -> b -> a; b!b -> ... -> a -> b; c");
}

#[test]
fn an_output_that_is_not_written_names_the_tensor_that_it_waits_for() {
    let check = |steps: &str, source: &str| {
        let got = text(ensemble(8, "x FP32 4 > y FP32 4", steps));
        let why = if source.is_empty() {
            String::new()
        } else {
            format!(": at least one of its depending tensors, '{source}', is not connected")
        };
        assert_eq!(got, format!("output 'y' for ensemble 'e' is not written{why}"), "{steps}");
    };
    // NVIDIA's unreachable_output_3, and longer ways.
    check("m: I=x > O=t; m: I=absent > O=y", "absent");
    check("m: I=x > O=t; m: I=u J=t > O=y; m: I=w > O=u", "w");
    check("m: I=x > O=t; m: I=u J=t > O=y; m: I=u > O=v; m: I=v > O=u", "v");
    check("m: I=x J=y > O=y", "");
}

#[test]
fn a_step_is_resolved_in_the_ensembles_own_namespace_or_in_the_only_other_one() {
    let one = "x FP32 4 > y FP32 4";
    let resolved = |known: &[(&str, &str)]| {
        let member = |(id, state): &(&str, &str)| {
            let (namespace, name) = crate::name::split_qualified(id);
            let mut spec = read(name, &format!("backend: 'identity' {}", io(8, one))).unwrap();
            spec.namespace = namespace.to_owned();
            let versions = if *state == "serves" { vec![(1, Arc::new(spec))] } else { Vec::new() };
            let failure = (*state == "failed").then(|| "no file".to_owned());
            ((*id).to_owned(), ComposingModel { versions, failure, is_invalid: false })
        };
        let models = ComposingModels { models: known.iter().map(member).collect() };
        let spec = ModelSpec { namespace: "/a".to_owned(), ..ensemble(8, one, "m: x=x > y=y").unwrap() };
        let resolved = models.resolve(spec).map_err(|error| error.text().to_owned())?;
        Ok::<_, String>(resolved.ensemble.unwrap().steps[0].qualified_model())
    };
    let check = |known: &[(&str, &str)], want: Result<&str, &str>| {
        assert_eq!(resolved(known), want.map(str::to_owned).map_err(str::to_owned), "{known:?}");
    };
    let none = "ensemble e contains models that are not available or ambiguous: m";
    check(&[("/a/m", "serves"), ("/b/m", "serves")], Ok("/a/m"));
    check(&[("/b/m", "serves")], Ok("/b/m"));
    check(&[("/a/m", "unloaded"), ("/b/m", "serves"), ("/c/n", "serves")], Ok("/b/m"));
    check(&[("/a/m", "unloaded"), ("m", "serves")], Ok("m"));
    check(&[("/b/m", "serves"), ("/c/m", "serves")], Err(none));
    check(&[("/b/m", "serves"), ("/c/m", "failed")], Err(none));
    check(&[("/b/n", "serves")], Err(none));
    let failed =
        "ensemble 'e' depends on 'm' which has no loaded version. Model 'm' loading failed with error: no file";
    check(&[("/a/m", "failed"), ("/b/m", "serves")], Err(failed));
}
