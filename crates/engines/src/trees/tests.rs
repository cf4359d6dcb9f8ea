//! Tests of the backend: the kept models against the answers of the libraries that made them, and
//! the rules of the FIL backend.

use std::path::PathBuf;

use super::*;
use backend::threads::enter;
use backend::trial::{TrialAnswers, spec, tensor};
use model::trees::{CategorySet, DecisionTree, SplitTest, TreeFormat, TreeNode, TreeOutput, TreeSplit};

/// The files of a directory of this repository.
fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn fil_spec(file: &str, features: usize, outputs: usize, parameters: &[(&str, &str)]) -> ModelSpec {
    let (inputs, outputs) = ([features as i64], [outputs as i64]);
    let (inputs, outputs) =
        ([("input__0", Datatype::Fp32, &inputs[..])], [("output__0", Datatype::Fp32, &outputs[..])]);
    let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    ModelSpec {
        default_model_filename: file.to_owned(),
        parameters: parameters.collect(),
        ..spec(64, &inputs, &outputs)
    }
}

/// Returns a model's answers to requests of `sizes` rows.
fn answers(model: &dyn LoadedModel, rows: &[Vec<f32>], sizes: &[usize]) -> Vec<f32> {
    let sink = TrialAnswers::default();
    let mut left = rows;
    let mut requests = Vec::new();
    for size in sizes {
        let (these, rest) = left.split_at(*size);
        left = rest;
        let input = tensor(&[*size as i64, rows[0].len() as i64], &these.concat());
        requests.push((vec![input], *size as u32));
    }
    let batch = sink.batch(requests);
    enter(1, |threads| model.new_instance(threads).unwrap().run(batch));
    let outputs = sink.outputs(sizes.len() as u32).into_iter().map(|outputs| outputs.unwrap().remove(0));
    outputs.flat_map(|output| bytemuck::cast_slice::<u8, f32>(&output.contents).to_vec()).collect()
}

fn numbers(text: &str) -> Vec<f32> {
    text.split(',').map(|number| number.parse().unwrap()).collect()
}

#[test]
fn kept_models_answer_as_the_libraries_that_made_them_to_the_last_bit() {
    let mut seen = 0;
    for path in files("tests/trees/models").into_iter().filter(|path| path.extension().unwrap() != "csv") {
        let (mut rows, mut want) = (Vec::new(), Vec::new());
        for line in std::fs::read_to_string(path.with_extension("csv")).unwrap().lines() {
            let (row, answer) = line.split_once('=').unwrap();
            rows.push(numbers(row));
            want.extend(numbers(answer));
        }
        let (name, width) = (path.file_name().unwrap().to_str().unwrap(), want.len() / rows.len());
        let spec = Arc::new(fil_spec(name, rows[0].len(), width, &[]));
        let model = Fil.load(&spec, path.parent().unwrap()).unwrap();
        for sizes in [vec![20], vec![1; 20], vec![3, 9, 8]] {
            let got = answers(&*model, &rows, &sizes);
            let differs = |(got, want): (&f32, &f32)| got.to_bits() != want.to_bits() && got != want;
            assert_eq!(got.len(), want.len(), "{name}");
            assert!(!got.iter().zip(&want).any(differs), "{name} {sizes:?}: {got:?} {want:?}");
        }
        assert!(model.may_run_inline());
        seen += 1;
    }
    assert_eq!(seen, 18, "all are there");
}

/// LightGBM's text of trees with one leaf each, one for each class.
fn constants(objective: &str, scores: &[f64]) -> String {
    let count = scores.len();
    let trees: String = scores.iter().map(|score| format!("\nTree=0\nnum_leaves=1\nleaf_value={score}\n")).collect();
    format!(
        "tree\nnum_class={count}\nnum_tree_per_iteration={count}\nmax_feature_idx=1\nobjective={objective}\n{trees}\nend \
         of trees\n"
    )
}

fn load_text(text: &str, outputs: usize, parameters: &[(&str, &str)]) -> Result<Box<dyn LoadedModel>, Error> {
    load(&Arc::new(fil_spec("model.txt", 2, outputs, parameters)), Ok(text.as_bytes().to_vec()))
}

#[test]
fn parameters_choose_between_scores_classes_and_probabilities_as_in_triton() {
    let check = |objective: &str, scores: &[f64], parameters: &str, want: &[f32]| {
        let parameters: Vec<_> = parameters.split_whitespace().map(|pair| pair.split_once('=').unwrap()).collect();
        let model = load_text(&constants(objective, scores), want.len(), &parameters).unwrap();
        assert_eq!(answers(&*model, &[vec![0.0, 0.0]], &[1]), want, "{objective} {scores:?} {parameters:?}");
    };
    let binary = "binary sigmoid:1";
    // A probability of exactly a half is not above the threshold.
    check(binary, &[0.0], "", &[0.5]);
    check(binary, &[0.0], "is_classifier=true", &[0.0]);
    check(binary, &[0.0], "is_classifier=true threshold=0.49", &[1.0]);
    check(binary, &[0.0], "output_class=true threshold=0.49", &[1.0]);
    check(binary, &[0.0], "output_class=false is_classifier=true threshold=0.49", &[0.5]);
    check(binary, &[-1.1], "is_classifier=true predict_proba=true", &[0.2497399]);
    check(binary, &[-1.1], "is_classifier=true predict_proba=true", &[1.0 - 0.2497399, 0.2497399]);
    check(binary, &[-1.1], "predict_proba=true", &[0.2497399]);
    let classes = "multiclass num_class:3";
    check(classes, &[1.0, 1.0, 1.0], "", &[1.0 / 3.0; 3]);
    check(classes, &[1.0, 1.0, 1.0], "is_classifier=true predict_proba=true model_type=lightgbm", &[1.0 / 3.0; 3]);
    check(classes, &[0.0, 1.0, 1.0], "is_classifier=true", &[1.0]);
    check(classes, &[0.0, 1.0, 2.0], "is_classifier=TRUE storage_type=AUTO blocks_per_sm=0 algo=ALGO_AUTO", &[2.0]);
    // Scores that are not probabilities: none is above 0.
    check("", &[-3.0, -1.0, -2.0], "is_classifier=1", &[0.0]);
    check("", &[-3.0, -1.0, -2.0], "", &[-3.0, -1.0, -2.0]);
    // Each class by itself; but Triton's `predict_proba` is a softmax.
    let each = "multiclassova num_class:2 sigmoid:1";
    check(each, &[0.0, 0.0], "", &[0.5, 0.5]);
    check(each, &[0.0, 9.0], "is_classifier=true predict_proba=true", &[1.2339458e-4, 0.9998766]);
}

#[test]
fn what_does_not_fit_the_model_is_refused_with_what_was_expected() {
    let refusal = |spec: ModelSpec, text: &str| {
        load(&Arc::new(spec), Ok(text.as_bytes().to_vec()))
            .err()
            .map(|error| error.text().to_owned())
            .unwrap_or_default()
    };
    let binary = constants("binary sigmoid:1", &[0.0]);
    let check = |outputs: usize, parameters: &[(&str, &str)], want: &str| {
        let got = refusal(fil_spec("model.txt", 2, outputs, parameters), &binary);
        assert!(got.contains(want), "{parameters:?}: {got}");
    };
    check(2, &[], "output 'output__0' of model 'm' has dims [2], expected [1]: the scores of a row");
    check(3, &[("is_classifier", "true"), ("predict_proba", "true")], "has dims [3], expected [1]");
    check(2, &[("is_classifier", "true")], "expected [1]: a class is one value; 'predict_proba' gives scores");
    check(1, &[("is_classifier", "yes")], "parameter 'is_classifier' of model 'm' is 'yes', expected true or false");
    check(1, &[("threshold", "half")], "parameter 'threshold' of model 'm' is 'half', expected a number");
    check(1, &[("threshold", "nan")], "expected a number");
    check(1, &[("model_type", "catboost")], "is 'catboost', expected xgboost_json, xgboost_ubj, xgboost, lightgbm or");
    check(
        1,
        &[("model_type", "xgboost_json")],
        "expected XGBoost JSON, as model_type 'xgboost_json' says, and the file is",
    );
    assert_eq!(refusal(fil_spec("model.txt", 2, 1, &[("model_type", "lightgbm")]), &binary), "");
    let got = refusal(fil_spec("model.txt", 3, 1, &[]), &binary);
    assert!(
        got.contains("input 'input__0' of model 'm' has dims [3], expected [2]: the features of its file"),
        "{got}"
    );
    let mut wide = fil_spec("model.txt", 2, 1, &[]);
    wide.inputs[0].datatype = Datatype::Fp64;
    let got = refusal(wide, &binary);
    assert!(got.contains("input 'input__0' of model 'm' has data_type TYPE_FP64, expected TYPE_FP32"), "{got}");
    let mut shap = fil_spec("model.txt", 2, 1, &[]);
    shap.outputs.push(shap.outputs[0].clone());
    assert!(refusal(shap, &binary).contains("1 inputs and 2 outputs"), "SHAP values are not computed");
    let got = refusal(fil_spec("model.txt", 2, 1, &[]), "pickle");
    assert!(got.starts_with("unable to load model 'm': the file is neither XGBoost JSON, UBJSON or its old"), "{got}");
}

#[test]
fn a_forest_whose_rows_may_take_long_is_not_run_inline() {
    let splits = TREE_INLINE_STEPS_MAX;
    let list = |number: &dyn Fn(usize) -> String| (0..splits).map(number).collect::<Vec<_>>().join(" ");
    // A vine: each split has a leaf at its left.
    let right = |at: usize| if at + 1 < splits { (at + 1).to_string() } else { format!("-{}", splits + 1) };
    let text = format!(
        "tree\nnum_class=1\nmax_feature_idx=1\nobjective=regression\n\nTree=0\nnum_leaves={}\nsplit_feature={}\nthreshold={}\
         \nleft_child={}\nright_child={}\nleaf_value={} 7\n\nend of trees\n",
        splits + 1,
        list(&|_| "0".to_owned()),
        list(&|at| at.to_string()),
        list(&|at| format!("-{}", at + 1)),
        list(&right),
        list(&|at| at.to_string()),
    );
    let model = load_text(&text, 1, &[]).unwrap();
    assert_eq!(model.why_not_inline(), "a row may take 200001 steps through its trees, more than 200000");
    assert!(!model.may_run_inline());
    let rows: Vec<_> = [-1.0, 0.5, 17.0, 1e9].iter().map(|value| vec![*value, 0.0]).collect();
    assert_eq!(answers(&*model, &rows, &[4]), [0.0, 1.0, 17.0, 7.0]);
    assert!(load_text(&constants("regression", &[1.0]), 1, &[]).unwrap().may_run_inline());
}

#[test]
fn a_file_that_is_larger_than_the_bound_is_not_read() {
    let folder = std::env::temp_dir().join(format!("deuteron-trees-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = File::create(folder.join("model.txt")).unwrap();
    // A sparse file: it takes no room on the disk.
    file.set_len(MODEL_SIZE_MAX as u64 + 1).unwrap();
    let loaded = Fil.load(&Arc::new(fil_spec("model.txt", 2, 1, &[])), &folder);
    std::fs::remove_dir_all(&folder).unwrap();
    let error = loaded.err().unwrap();
    assert_eq!(
        error.text(),
        "unable to load model 'm': its file has 2147483649 bytes, more than the 2147483648 that are read"
    );
}

/// The answer of a tree with one split, whose leaves are 1 at the left and 0 at the right.
fn goes_left(test: &SplitTest, default_left: bool, value: f32) -> bool {
    let split = TreeSplit { feature: 0, test: test.clone(), default_left, left: 1, right: 2 };
    let tree = DecisionTree {
        nodes: vec![TreeNode::Split(split), TreeNode::Leaf(0), TreeNode::Leaf(1)],
        values: vec![1.0, 0.0],
        output: TreeOutput::single(0),
        depth: 1,
    };
    let model = TreeModel {
        format: TreeFormat::Treelite,
        feature_count: 1,
        target_count: 1,
        class_count: 1,
        arithmetic: Arithmetic::Single,
        trees: vec![tree],
        start: Vec::new(),
        divisors: Vec::new(),
        offsets: Vec::new(),
        link: ScoreLink::Identity,
    };
    let mut block = RowBlock::<f32>::new();
    let row = [value];
    block.fill(std::iter::once(&row[..]));
    Forest::new(&model).sum(&mut block);
    block.sums == [1.0]
}

#[test]
fn every_comparison_holds_for_every_single_as_it_does_for_doubles() {
    let edges = [0.0, 1.0, -1.0, 0.1, 1e-45, 1e-46, 1e300, f64::from(f32::MAX), 16_777_217.0, 1e-40, f64::INFINITY];
    let thresholds = edges.iter().flat_map(|edge| [*edge, -*edge, edge.next_up(), edge.next_down()]);
    for threshold in thresholds.filter(|threshold| !threshold.is_nan()) {
        let near = threshold as f32;
        let values = [near, near.next_up(), near.next_down(), 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, 3.0];
        for value in values {
            let wide = f64::from(value);
            let check = |test: SplitTest, want: bool| {
                assert_eq!(goes_left(&test, !want, value), want, "{value:e} {test:?}");
                assert!(goes_left(&test, true, f32::NAN) && !goes_left(&test, false, f32::NAN), "{test:?}");
            };
            check(SplitTest::Below(threshold), wide < threshold);
            check(SplitTest::AtMost(threshold), wide <= threshold);
            check(SplitTest::Above(threshold), wide > threshold);
            check(SplitTest::AtLeast(threshold), wide >= threshold);
            check(SplitTest::Equal(threshold), wide == threshold);
        }
    }
}

#[test]
fn zero_is_missing_only_where_the_model_says_so() {
    let test = SplitTest::AtMostUnlessZero(5.0);
    let check = |value: f32, want: Option<bool>| {
        for default_left in [false, true] {
            assert_eq!(goes_left(&test, default_left, value), want.unwrap_or(default_left), "{value:e}");
        }
    };
    for zero in [0.0, -0.0, 1e-35, -1e-35, 1e-40, f32::NAN] {
        check(zero, None);
    }
    check(1.1e-35, Some(true));
    check(-1.0, Some(true));
    check(5.5, Some(false));
}

#[test]
fn only_whole_categories_in_range_are_in_a_set() {
    let bits = CategorySet::new(vec![0, 3, 40], 16_777_215.0);
    let sparse = CategorySet::new(vec![5, 16_000_000], 16_777_215.0);
    let cut = CategorySet { cuts_first: true, ..bits.clone() };
    let check = |set: &CategorySet, value: f32, want: bool| {
        assert_eq!(goes_left(&SplitTest::In(Box::new(set.clone())), false, value), want, "{value} {set:?}");
    };
    for (value, want) in
        [(0.0, true), (3.0, true), (3.9, true), (4.0, false), (40.0, true), (41.0, false), (1e9, false)]
    {
        [&bits, &cut].iter().for_each(|set| check(set, value, want));
    }
    check(&bits, -0.5, false);
    check(&cut, -0.5, true);
    check(&cut, -1.0, false);
    for (value, want) in [(5.0, true), (16_000_000.0, true), (6.0, false), (f32::INFINITY, false), (f32::NAN, false)] {
        check(&sparse, value, want);
    }
    check(&CategorySet::new(Vec::new(), 9.0), 0.0, false);
}

#[test]
fn the_corpus_and_its_changes_hold() {
    let files = files("fuzz/corpus/trees");
    assert!(files.len() >= 7, "the corpus is there");
    for path in files {
        let file = std::fs::read(&path).unwrap();
        assert!(exercise(&file), "{} is a model", path.display());
        for at in 0..file.len() {
            exercise(&file[..at]);
            for byte in *b"\0\xff-9]" {
                let mut changed = file.clone();
                changed[at] = byte;
                exercise(&changed);
            }
        }
    }
}
