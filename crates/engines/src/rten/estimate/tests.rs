use super::*;
use backend::trial::spec;
use base::error::Code;
use model::onnx_builder::{BOOL, FLOAT, INT64, Onnx};

/// An input of a run: its name, its shape, and its values if they are numbers of 32 bits.
type Given<'a> = (&'a str, &'a [i64], &'a [i32]);

fn longs(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The facts about the value `y` after a walk, and the needs of the run, as a line.
fn walked(onnx: Onnx, inputs: &[Given<'_>]) -> String {
    let graph = OnnxGraph::outline(&onnx.into_bytes()).unwrap();
    let names: Vec<String> = inputs.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let plan = match GraphPlan::new(&graph, names.iter()) {
        Ok(plan) => plan,
        Err(why) => return why,
    };
    let mut walk = Walk::new(&plan, 1e9);
    for (name, shape, values) in inputs {
        let contents: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        walk.set(plan.inputs[*name], elements::of_contents(shape, Datatype::Int32, &contents));
    }
    let outcome = walk.clone().run();
    let _ = walk.walk(&plan.root);
    let size = |size: &Interval| match size.value() {
        Some(size) => size.to_string(),
        None => format!("{}..{}", size.low, size.high),
    };
    match outcome {
        Ok(bytes) => {
            let sizes = walk.facts(*plan.root.outputs.first().unwrap()).and_then(|facts| facts.sizes.clone());
            let sizes = sizes.map_or("?".to_owned(), |sizes| sizes.iter().map(size).collect::<Vec<_>>().join(","));
            format!("[{sizes}] {bytes}")
        }
        Err(Stop::TooLarge { label, bytes, .. }) => format!("{label} {bytes}"),
        Err(Stop::Fails(why) | Stop::Unbounded(why)) => why,
    }
}

/// A graph of one operator, whose inputs are given but for the constants `k…`, lists of whole numbers.
fn one(operator: &str, inputs: &[&str], attributes: &[(&str, i64)], constants: &[(&str, &[i64])]) -> Onnx {
    let onnx = Onnx::default().node(operator, inputs, &["y"], attributes).output("y", FLOAT, &[]);
    let onnx = constants
        .iter()
        .fold(onnx, |onnx, (name, values)| onnx.constant(name, INT64, &[values.len() as i64], &longs(values)));
    let given = inputs.iter().filter(|name| !name.is_empty() && !name.starts_with('k'));
    given.fold(onnx, |onnx, name| onnx.input(name, FLOAT, &[]))
}

#[test]
fn values_that_set_a_size_are_found_before_the_run() {
    let huge = 2_000_000_000;
    let check = |onnx: Onnx, inputs: &[Given<'_>], want: &str| assert_eq!(walked(onnx, inputs), want);
    let x: Given<'_> = ("x", &[3], &[]);
    let top = || one("TopK", &["x", "n"], &[("axis", 0)], &[]);
    // Room is made for all that are asked for, before the run fails.
    check(top(), &[x, ("n", &[1], &[huge])], "operator 'TopK', which makes 'y', 8000000000");
    let tile = || one("Tile", &["x", "n"], &[], &[]);
    check(tile(), &[x, ("n", &[1], &[5])], "[15] 60");
    check(tile(), &[x, ("n", &[1], &[huge])], "operator 'Tile', which makes 'y', 24000000000");
    // Beyond 32 bits it does not wrap to something small.
    check(tile(), &[("x", &[4], &[]), ("n", &[1], &[1 << 30])], "operator 'Tile', which makes 'y', 17179869184");
    let expand = || one("Expand", &["x", "n"], &[], &[]);
    check(expand(), &[("x", &[1], &[]), ("n", &[2], &[7, 1])], "[7,1] 28");
    check(expand(), &[("x", &[1], &[]), ("n", &[1], &[huge])], "operator 'Expand', which makes 'y', 8000000000");
    let constant = || one("ConstantOfShape", &["n"], &[], &[]);
    check(constant(), &[("n", &[2], &[6, 2])], "[6,2] 48");
    check(
        constant(),
        &[("n", &[2], &[huge, huge])],
        "operator 'ConstantOfShape', which makes 'y', 16000000000000000000",
    );
    let range = || one("Range", &["a", "n", "d"], &[], &[]);
    check(range(), &[("a", &[], &[2]), ("n", &[], &[9]), ("d", &[], &[3])], "[3] 12");
    check(range(), &[("a", &[], &[9]), ("n", &[], &[2]), ("d", &[], &[-3])], "[3] 12");
    check(
        range(),
        &[("a", &[], &[0]), ("n", &[], &[huge]), ("d", &[], &[1])],
        "operator 'Range', which makes 'y', 8000000000",
    );
    let pad = || one("Pad", &["x", "n"], &[], &[]);
    check(pad(), &[x, ("n", &[2], &[1, 2])], "[6] 24");
    check(pad(), &[x, ("n", &[2], &[0, huge])], "operator 'Pad', which makes 'y', 8000000012");
    let hot = || one("OneHot", &["x", "n", "v"], &[], &[]);
    check(hot(), &[x, ("n", &[], &[4]), ("v", &[2], &[])], "[3,4] 48");
    check(hot(), &[x, ("n", &[], &[huge]), ("v", &[2], &[])], "operator 'OneHot', which makes 'y', 24000000000");
    let resize = || one("Resize", &["x", "", "", "n"], &[], &[]);
    check(resize(), &[("x", &[1, 1, 2, 2], &[]), ("n", &[4], &[1, 1, 4, 6])], "[1,1,4,6] 208");
    check(
        resize(),
        &[("x", &[1, 1, 2, 2], &[]), ("n", &[4], &[1, 1, huge, 1])],
        "operator 'Resize', which makes 'y', 8000000016",
    );
}

#[test]
fn sizes_that_are_computed_from_sizes_are_followed() {
    // The shape of x, its second size halved, and -1: an image cut into halves.
    let onnx = Onnx::default()
        .node("Shape", &["x"], &["s"], &[])
        .node("Gather", &["s", "k1"], &["width"], &[])
        .node("Div", &["width", "k2"], &["half"], &[])
        .node("Concat", &["half", "k-1"], &["wanted"], &[("axis", 0)])
        .node("Reshape", &["x", "wanted"], &["parts"], &[])
        .node("MatMul", &["parts", "k8x2"], &["y"], &[])
        .constant("k1", INT64, &[1], &longs(&[1]))
        .constant("k2", INT64, &[1], &longs(&[2]))
        .constant("k-1", INT64, &[1], &longs(&[-1]))
        .constant("k8x2", INT64, &[8, 2], &longs(&[0; 16]))
        .input("x", FLOAT, &[-1, -1])
        .output("y", FLOAT, &[-1, -1]);
    assert_eq!(walked(onnx, &[("x", &[4, 6], &[])]), "[3,2] 300");
    let square = Onnx::default()
        .node("Transpose", &["x"], &["t"], &[])
        .node("MatMul", &["x", "t"], &["y"], &[])
        .input("x", FLOAT, &[-1, 1])
        .output("y", FLOAT, &[-1, -1]);
    assert_eq!(walked(square, &[("x", &[50_000, 1], &[])]), "operator 'MatMul', which makes 'y', 10000000000");
}

#[test]
fn what_is_found_in_a_tensor_is_taken_to_be_all_of_it() {
    let found = || one("NonZero", &["x"], &[], &[]);
    assert_eq!(walked(found(), &[("x", &[3, 4], &[])]), "[2,0..12] 96");
    let boxes = || one("NonMaxSuppression", &["b", "s", "n"], &[], &[]);
    let inputs = |most| [("b", &[1_i64, 9, 4][..], &[][..]), ("s", &[1, 2, 9], &[]), ("n", &[1], most)];
    assert_eq!(walked(boxes(), &inputs(&[5])), "[0..10,3] 120");
    assert_eq!(walked(boxes(), &inputs(&[0])), "[0..18,3] 216");
    // The number of found elements sets a size: at most all.
    let ones = Onnx::default()
        .node("NonZero", &["x"], &["found"], &[])
        .node("Shape", &["found"], &["s"], &[])
        .node("ConstantOfShape", &["s"], &["y"], &[])
        .input("x", FLOAT, &[-1])
        .output("y", FLOAT, &[-1, -1]);
    assert_eq!(walked(ones, &[("x", &[10], &[])]), "[1,0..10] 48");
    // The found elements set a size: it may be anything.
    let tiles = Onnx::default()
        .node("ArgMax", &["x"], &["n"], &[])
        .node("Tile", &["x", "n"], &["y"], &[])
        .input("x", FLOAT, &[-1])
        .output("y", FLOAT, &[-1]);
    let got = walked(tiles, &[("x", &[10], &[])]);
    assert!(got.starts_with("operator 'Tile', which makes 'y', has no bound"), "{got}");
    let unknown = walked(one("Nonsense", &["x"], &[], &[]), &[("x", &[1], &[])]);
    assert!(unknown.ends_with("its rule is not known"), "{unknown}");
}

#[test]
fn buffers_are_used_again_and_none_is_given_back() {
    // Three values of 400 bytes, of which two live at a time, and one of 800.
    let onnx = Onnx::default()
        .node("Relu", &["x"], &["a"], &[])
        .node("Relu", &["a"], &["b"], &[])
        .node("Relu", &["b"], &["c"], &[])
        .node("Concat", &["c", "c"], &["y"], &[("axis", 0)])
        .input("x", FLOAT, &[-1])
        .output("y", FLOAT, &[-1]);
    assert_eq!(walked(onnx, &[("x", &[100], &[])]), "[200] 1600");
    // Constants and values that the engine computes from them when it loads are not part of a run.
    let folded = Onnx::default()
        .node("ConstantOfShape", &["k"], &["weights"], &[])
        .node("Add", &["x", "weights"], &["y"], &[])
        .constant("k", INT64, &[1], &longs(&[100]))
        .input("x", FLOAT, &[-1])
        .output("y", FLOAT, &[-1]);
    assert_eq!(walked(folded, &[("x", &[1], &[])]), "[100] 400");
}

/// `If c: x * 2 else Tile(x, [n])`.
fn branching() -> Onnx {
    let small = Onnx::default().node("Add", &["x", "x"], &["one"], &[]).output("one", FLOAT, &[-1]);
    let large = Onnx::default().node("Tile", &["x", "n"], &["two"], &[]).output("two", FLOAT, &[-1]);
    Onnx::default()
        .node_around("If", &["c"], &["y"], &[], vec![("then_branch", small), ("else_branch", large)])
        .input("c", BOOL, &[])
        .input("n", INT64, &[1])
        .input("x", FLOAT, &[-1])
        .output("y", FLOAT, &[-1])
}

#[test]
fn the_branch_that_is_taken_counts_and_both_where_that_is_not_known() {
    let inputs = |c: &'static [i32], n: &'static [i32]| [("c", &[][..], c), ("n", &[1], n), ("x", &[3], &[])];
    assert_eq!(walked(branching(), &inputs(&[1], &[2_000_000_000])), "[3] 12");
    assert_eq!(walked(branching(), &inputs(&[0], &[2])), "[6] 24");
    assert_eq!(walked(branching(), &inputs(&[0], &[2_000_000_000])), "operator 'Tile', which makes 'two', 24000000000");
    assert_eq!(walked(branching(), &inputs(&[], &[2])), "[3..6] 36");
}

/// A `Loop` that carries `x` through an operator with `one`, and returns each round's value.
fn looping(rounds: &str, operator: &str) -> Onnx {
    let body = Onnx::default()
        .node(operator, &["v", "one"], &["next"], &[("axis", 0)])
        .node("Identity", &["c"], &["again"], &[])
        .input("i", INT64, &[])
        .input("c", BOOL, &[])
        .input("v", FLOAT, &[-1])
        .output("again", BOOL, &[])
        .output("next", FLOAT, &[-1])
        .output("next", FLOAT, &[-1]);
    Onnx::default()
        .node("Size", &["x"], &["size"], &[])
        .node_around("Loop", &[rounds, "", "x"], &["last", "y"], &[], vec![("body", body)])
        .constant("k3", INT64, &[], &longs(&[3]))
        .constant("kmany", INT64, &[], &longs(&[i64::MAX]))
        .constant("one", FLOAT, &[1], &1_f32.to_le_bytes())
        .input("x", FLOAT, &[-1])
        .input("n", INT64, &[])
        .output("y", FLOAT, &[-1, -1])
}

#[test]
fn loops_are_bounded_or_refused() {
    let check = |rounds: &str, operator: &str, want: &str| {
        let got = walked(looping(rounds, operator), &[("x", &[5], &[]), ("n", &[], &[2])]);
        assert!(got.starts_with(want), "{rounds} {operator}: {got}");
    };
    check("k3", "Add", "[3,5] ");
    check("size", "Add", "[5,5] ");
    // The carried value grows in each round: each is walked through.
    check("k3", "Concat", "[3,6..8] ");
    check("n", "Add", "operator 'Loop', which makes 'last', repeats as often as the values of a request say");
    check("", "Add", "operator 'Loop', which makes 'last', repeats as long as a condition holds");
    check(
        "kmany",
        "Add",
        "operator 'Loop', which makes 'last', has no bound that is known before a run: it may repeat",
    );
    let long = walked(looping("size", "Concat"), &[("x", &[65], &[]), ("n", &[], &[2])]);
    assert!(long.ends_with("what one round passes to the next may grow"), "{long}");
}

#[test]
fn an_instance_passes_what_fits_and_refuses_the_rest_with_the_flag_and_counts_it() {
    let graph = OnnxGraph::outline(&one("Tile", &["x", "n"], &[], &[]).into_bytes()).unwrap();
    let model = spec(0, &[("x", Datatype::Fp32, &[-1]), ("n", Datatype::Int64, &[1])], &[]);
    let shapes = [Shape::from_slice(&[-1]), Shape::from_slice(&[1])];
    let memory = Arc::new(RunMemory::new(1_000));
    let estimate = Arc::new(RunEstimate::new(&model, &graph, &shapes, Arc::clone(&memory)).unwrap());
    let mut check = RunCheck::new(estimate);
    let mut run = |repeats: i32| {
        let repeats = repeats.to_le_bytes();
        let x = RunInput { shape: &[10], datatype: Datatype::Fp32, contents: &[0; 40] };
        check.check([x, RunInput { shape: &[1], datatype: Datatype::Int32, contents: &repeats }].into_iter())
    };
    for repeats in [25, 25, 1] {
        assert_eq!(run(repeats), Ok(()), "{repeats}");
    }
    for refused in 1..3 {
        let error = run(26).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(
            error.text(),
            "model 'm': a run on these inputs needs at least 1040 bytes of memory, of which operator 'Tile', which makes \
             'y', takes 1040, and may have 1000; send less, or increase --run-memory-bytes-max"
        );
        assert_eq!(memory.refused(), refused);
    }
    assert_eq!(run(25), Ok(()));
    assert_eq!(check.passed.len(), 2);
}

#[test]
fn a_model_whose_runs_cannot_be_bounded_is_refused_when_it_is_loaded() {
    let graph = OnnxGraph::outline(&looping("n", "Add").into_bytes()).unwrap();
    let model = spec(0, &[("x", Datatype::Fp32, &[-1]), ("n", Datatype::Int64, &[])], &[]);
    let error = RunEstimate::new(&model, &graph, &[], Arc::default()).err().unwrap();
    assert_eq!(error.code(), Code::Unsupported);
    assert_eq!(
        error.text(),
        "the embedded engine cannot run model 'm' within bounds: operator 'Loop', which makes 'last', repeats as often as \
         the values of a request say; serve the model with ONNX Runtime \
         (--backend-config=onnxruntime,library=PATH)"
    );
    let small = Arc::new(RunMemory::new(39));
    let graph = OnnxGraph::outline(&one("Tile", &["x", "k"], &[], &[("k", &[10])]).into_bytes()).unwrap();
    let model = spec(0, &[("x", Datatype::Fp32, &[1])], &[]);
    let error = RunEstimate::new(&model, &graph, &[Shape::from_slice(&[1])], small).err().unwrap();
    assert!(error.text().contains("at least 40 bytes") && error.text().contains("--run-memory-bytes-max"), "{error}");
}
