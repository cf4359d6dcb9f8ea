use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::Rten;
use crate::gpu::GpuInstance;
use backend::gpu::fake::Fake;
use backend::trial::{TrialAnswers, spec, tensor};
use backend::{Backend, Instance, OutputNeed, OutputNeeds, run_to_end, threads};
use base::tensor::Tensor;
use base::tensor::strings::Strings;
use model::labels::Labels;
use model::onnx_builder::{FLOAT, INT64, Onnx};

/// A directory with one file, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(file: &[u8]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("deuteron-plan-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("model.onnx"), file).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Numbers from -1 to 1, the same at each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn integers(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn run(instance: &mut dyn Instance, requests: &[Vec<Tensor>]) -> Vec<Vec<Tensor>> {
    let answers = TrialAnswers::default();
    let rows = |inputs: &Vec<Tensor>| inputs[0].shape.first().map_or(1, |rows| *rows as u32);
    run_to_end(instance, answers.batch(requests.iter().map(|inputs| (inputs.clone(), rows(inputs))).collect()));
    answers.outputs(requests.len() as u32).into_iter().map(|outputs| outputs.unwrap()).collect()
}

/// Runs a model on the fake device and on the embedded engine, and compares the results.
fn check_against_engine(name: &str, file: &[u8], spec: &ModelSpec, requests: &[Vec<Tensor>]) -> GpuPlan {
    let spec = Arc::new(spec.clone());
    let plan = GpuPlan::new(file, &spec).unwrap_or_else(|error| panic!("{name}: {error}"));
    let opened = Fake::new(1).gpu(1 << 30, 1 << 30).open().unwrap();
    let program = plan.place(&opened).unwrap();
    let mut instance = GpuInstance::new(&spec, &plan, program, &opened, &Arc::default()).unwrap();
    let got = run(&mut instance, requests);
    let folder = Folder::new(file);
    let want = threads::enter(1, |threads| {
        let loaded = Rten::default().load(&spec, &folder.0).unwrap();
        run(&mut *loaded.new_instance(threads).unwrap(), requests)
    });
    for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
        assert_eq!((got.datatype, &got.shape), (want.datatype, &want.shape), "{name}");
        let floats = |tensor: &Tensor| -> Vec<f32> { bytemuck::cast_slice::<u8, f32>(&tensor.contents).to_vec() };
        for (got, want) in floats(got).into_iter().zip(floats(want)) {
            assert!((got - want).abs() <= 1e-5 + want.abs() * 1e-4, "{name}: {got} for {want}");
        }
    }
    assert_eq!(got.iter().flatten().count(), want.iter().flatten().count());
    plan
}

fn rows(numbers: &mut Numbers, shapes: &[&[i64]]) -> Vec<Vec<Tensor>> {
    let one = |shape: &&[i64]| vec![tensor(shape, &numbers.take(shape.iter().product::<i64>() as usize))];
    shapes.iter().map(one).collect()
}

#[test]
fn the_example_of_digits_gives_what_the_embedded_engine_gives() {
    let file = include_bytes!("../../../../../examples/models/digits/1/model.onnx");
    let spec = spec(64, &[("pixels", Datatype::Fp32, &[64])], &[("probabilities", Datatype::Fp32, &[10])]);
    let mut numbers = Numbers(7);
    let mut requests = rows(&mut numbers, &[&[1, 64], &[5, 64], &[58, 64]]);
    for inputs in &mut requests {
        let values: Vec<f32> =
            bytemuck::cast_slice::<u8, f32>(&inputs[0].contents).iter().map(|x| (x + 1.0) * 8.0).collect();
        inputs[0] = tensor(&inputs[0].shape.clone(), &values);
    }
    let plan = check_against_engine("digits", file, &spec, &requests);
    // Scaling, two products with the operators behind them, softmax.
    assert_eq!(plan.steps.len(), 4);
}

#[test]
fn random_networks_of_layers_give_what_the_embedded_engine_gives() {
    for seed in 0..20 {
        let mut numbers = Numbers(seed);
        let mut pick = |most: usize| (numbers.next().abs() * most as f32) as usize % most;
        let widths: Vec<usize> = (0..pick(4) + 2).map(|_| pick(40) + 1).collect();
        let choices: Vec<[usize; 3]> = widths.iter().map(|_| [pick(3), pick(4), pick(2)]).collect();
        let mut onnx = Onnx::default().input("v0", FLOAT, &[-1, widths[0] as i64]);
        let mut last = "v0".to_owned();
        for (layer, (sizes, [product, function, residual])) in widths.windows(2).zip(&choices).enumerate() {
            let [from, to] = [sizes[0], sizes[1]];
            let name = |what: &str| format!("{what}{layer}");
            let [weight, bias, plain, sum, active] = ["w", "b", "p", "s", "a"].map(name);
            let shape = if *product == 1 { [to as i64, from as i64] } else { [from as i64, to as i64] };
            onnx = onnx.constant(&weight, FLOAT, &shape, &raw(&numbers.take(from * to)));
            onnx = onnx.constant(&bias, FLOAT, &[to as i64], &raw(&numbers.take(to)));
            onnx = match product {
                0 => onnx.node("Gemm", &[&last, &weight, &bias], &[&sum], &[]),
                1 => onnx.node("Gemm", &[&last, &weight, &bias], &[&sum], &[("transB", 1)]),
                _ => onnx.node("MatMul", &[&last, &weight], &[&plain], &[]).node("Add", &[&plain, &bias], &[&sum], &[]),
            };
            let operator = ["Relu", "Sigmoid", "Tanh", "Identity"][*function];
            onnx = onnx.node(operator, &[&sum], &[&active], &[]);
            last = active.clone();
            if *residual == 1 {
                let both = format!("r{layer}");
                onnx = onnx.node("Mul", &[&active, &sum], &[&both], &[]);
                last = both;
            }
        }
        let width = *widths.last().unwrap() as i64;
        let file =
            onnx.node("Softmax", &[&last], &["y"], &[("axis", -1)]).output("y", FLOAT, &[-1, width]).into_bytes();
        let spec = spec(16, &[("v0", Datatype::Fp32, &[widths[0] as i64])], &[("y", Datatype::Fp32, &[width])]);
        let first = widths[0] as i64;
        let requests = rows(&mut numbers, &[&[3, first], &[1, first], &[12, first]]);
        check_against_engine(&format!("seed {seed}"), &file, &spec, &requests);
    }
}

#[test]
fn shapes_constants_and_several_tensors_give_what_the_embedded_engine_gives() {
    let mut numbers = Numbers(3);
    let file = Onnx::default()
        .constant("column", FLOAT, &[3, 4], &raw(&numbers.take(12)))
        .constant("one", FLOAT, &[], &raw(&[1.5]))
        .constant("row", FLOAT, &[1, 1, 4], &raw(&numbers.take(4)))
        .constant("flat", INT64, &[2], &integers(&[-1, 12]))
        .constant("back", INT64, &[3], &integers(&[0, 2, -1]))
        .constant("weight", FLOAT, &[4, 5], &raw(&numbers.take(20)))
        .constant("bias", FLOAT, &[1, 5], &raw(&numbers.take(5)))
        .node("Add", &["x", "column"], &["shifted"], &[])
        .node("Sub", &["one", "shifted"], &["turned"], &[])
        .node("Div", &["turned", "row"], &["scaled"], &[])
        .node("MatMul", &["scaled", "weight"], &["plain"], &[])
        .node("Add", &["bias", "plain"], &["biased"], &[])
        .node("Relu", &["biased"], &["wide"], &[])
        .node("Sigmoid", &["scaled"], &["soft"], &[])
        .node("Reshape", &["soft", "flat"], &["flattened"], &[])
        .node("Add", &["flattened", "other"], &["sum"], &[])
        .node("Reshape", &["sum", "back"], &["folded"], &[])
        .node("Softmax", &["folded"], &["best"], &[("axis", 2)])
        .node("Flatten", &["best"], &["again"], &[("axis", 1)])
        .node("Identity", &["x"], &["same"], &[])
        .input("x", FLOAT, &[-1, 3, 4])
        .input("other", FLOAT, &[-1, 12])
        .output("wide", FLOAT, &[-1, 3, 5])
        .output("again", FLOAT, &[-1, 12])
        .output("same", FLOAT, &[-1, 3, 4])
        .output("sum", FLOAT, &[-1, 12])
        .into_bytes();
    let inputs = [("x", Datatype::Fp32, &[3, 4][..]), ("other", Datatype::Fp32, &[12][..])];
    let outputs = [("wide", &[3, 5][..]), ("again", &[12]), ("same", &[3, 4]), ("sum", &[12])];
    let outputs = outputs.map(|(name, dims)| (name, Datatype::Fp32, dims));
    let spec = spec(8, &inputs, &outputs);
    let request = |numbers: &mut Numbers, rows: i64| {
        vec![
            tensor(&[rows, 3, 4], &numbers.take(rows as usize * 12)),
            tensor(&[rows, 12], &numbers.take(rows as usize * 12)),
        ]
    };
    let requests = [request(&mut numbers, 2), request(&mut numbers, 5)];
    check_against_engine("shapes", &file, &spec, &requests);
}

#[test]
fn every_order_of_axes_gives_what_the_embedded_engine_gives() {
    let mut numbers = Numbers(11);
    for dims in [&[3, 4][..], &[2, 3, 4], &[2, 1, 3, 2], &[2, 3, 1, 2, 2]] {
        for order in orders(dims.len()) {
            // The rows' axis stays; and as a model without rows, in which all axes may move.
            for rows_max in [5, 0] {
                let lead = usize::from(rows_max > 0);
                let axes: Vec<i64> = (0..lead as i64).chain(order.iter().map(|axis| (axis + lead) as i64)).collect();
                let after: Vec<i64> = order.iter().map(|axis| dims[*axis]).collect();
                let full = |dims: &[i64]| (0..lead).map(|_| -1).chain(dims.iter().copied()).collect::<Vec<_>>();
                let file = Onnx::default()
                    .node_listed("Transpose", &["x"], &["y"], ("perm", &axes))
                    .input("x", FLOAT, &full(dims))
                    .output("y", FLOAT, &full(&after))
                    .into_bytes();
                let spec = spec(rows_max, &[("x", Datatype::Fp32, dims)], &[("y", Datatype::Fp32, &after)]);
                let shape = |rows: i64| (0..lead).map(|_| rows).chain(dims.iter().copied()).collect::<Vec<_>>();
                let shapes = if lead == 0 { vec![shape(1)] } else { vec![shape(2), shape(1), shape(2)] };
                let shapes: Vec<&[i64]> = shapes.iter().map(Vec::as_slice).collect();
                let requests = rows(&mut numbers, &shapes);
                check_against_engine(&format!("{dims:?} by {axes:?}"), &file, &spec, &requests);
            }
        }
    }
}

/// All orders of `count` axes.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1);
    let with = |place: usize| {
        shorter.iter().map(move |order| {
            let mut order = order.clone();
            order.insert(place, count - 1);
            order
        })
    };
    (0..count).flat_map(with).collect()
}

#[test]
fn parts_of_values_joined_again_give_what_the_embedded_engine_gives() {
    let mut numbers = Numbers(17);
    let file = Onnx::default()
        .constant("starts", INT64, &[2], &integers(&[-1, 1]))
        .constant("ends", INT64, &[2], &integers(&[i64::MIN, i64::MAX]))
        .constant("axes", INT64, &[2], &integers(&[3, -2]))
        .constant("steps", INT64, &[2], &integers(&[-2, 1]))
        .constant("sizes", INT64, &[3], &integers(&[1, 3, 2]))
        .constant("weight", FLOAT, &[6, 4], &raw(&numbers.take(24)))
        .node("Slice", &["x", "starts", "ends", "axes", "steps"], &["back"], &[])
        .node("Split", &["x", "sizes"], &["a", "b", "c"], &[("axis", 2)])
        .node("Split", &["b"], &["left", "right"], &[("axis", -1)])
        .node("Concat", &["c", "a", "c"], &["turned"], &[("axis", -2)])
        .node_listed("Transpose", &["x"], &["crossed"], ("perm", &[0, 1, 3, 2]))
        .node("Relu", &["crossed"], &["above"], &[])
        .node("MatMul", &["above", "weight"], &["product"], &[])
        .node("Concat", &["product", "above"], &["wide"], &[("axis", 3)])
        .node("Concat", &["left", "right"], &["b_again"], &[("axis", 3)])
        .node("Concat", &["a", "b_again", "c"], &["same"], &[("axis", 2)])
        .input("x", FLOAT, &[-1, 2, 6, 4])
        .output("back", FLOAT, &[-1, 2, 5, 2])
        .output("turned", FLOAT, &[-1, 2, 5, 4])
        .output("wide", FLOAT, &[-1, 2, 4, 10])
        .output("same", FLOAT, &[-1, 2, 6, 4])
        .into_bytes();
    let outputs = [("back", &[2_i64, 5, 2][..]), ("turned", &[2, 5, 4]), ("wide", &[2, 4, 10]), ("same", &[2, 6, 4])];
    let outputs = outputs.map(|(name, dims)| (name, Datatype::Fp32, dims));
    let spec = spec(8, &[("x", Datatype::Fp32, &[2, 6, 4])], &outputs);
    let requests = rows(&mut numbers, &[&[3, 2, 6, 4], &[1, 2, 6, 4], &[4, 2, 6, 4]]);
    let plan = check_against_engine("parts", &file, &spec, &requests);
    let moves = plan.steps.iter().filter(|step| matches!(step.work, StepWork::Move(_))).count();
    assert_eq!((moves, plan.sizes.table), (1 + 3 + 2 + 3 + 1 + 2 + 2 + 3, 17 * 136));
}

#[test]
fn an_order_that_moves_no_element_makes_no_step() {
    let mut numbers = Numbers(5);
    let file = Onnx::default()
        .node_listed("Transpose", &["x"], &["t"], ("perm", &[0, 2, 1, 3]))
        .node("Split", &["t"], &["s"], &[("axis", 1)])
        .node("Relu", &["s"], &["y"], &[])
        .input("x", FLOAT, &[-1, 1, 3, 4])
        .output("y", FLOAT, &[-1, 3, 1, 4])
        .into_bytes();
    let spec = spec(4, &[("x", Datatype::Fp32, &[1, 3, 4])], &[("y", Datatype::Fp32, &[3, 1, 4])]);
    let plan = check_against_engine("ones", &file, &spec, &rows(&mut numbers, &[&[3, 1, 3, 4]]));
    assert_eq!((plan.steps.len(), plan.sizes.table), (1, 0));
}

#[test]
fn a_move_between_rows_of_the_batch_is_refused_with_the_reason() {
    let check = |file: Onnx, dims: &[i64], want: &str| {
        let full: Vec<i64> = [-1].iter().chain(dims).copied().collect();
        let file = file.input("x", FLOAT, &full).output("y", FLOAT, &full).into_bytes();
        let spec = spec(4, &[("x", Datatype::Fp32, dims)], &[("y", Datatype::Fp32, dims)]);
        let error = GpuPlan::new(&file, &spec).unwrap_err();
        assert!(error.text().contains(want), "{error} and not {want}");
    };
    let rows = "moves or cuts the batch axis: rows of different requests would mix";
    let one = |operator: &str, axis: i64| {
        let constant = |onnx: Onnx, name: &str, value: i64| onnx.constant(name, INT64, &[1], &integers(&[value]));
        let onnx = constant(constant(constant(Onnx::default(), "zero", 0), "one", 1), "axis", axis);
        match operator {
            "Slice" => onnx.node("Slice", &["x", "zero", "one", "axis"], &["y"], &[]),
            "Concat" => onnx.node("Concat", &["x", "x"], &["y"], &[("axis", axis)]),
            _ => onnx.node("Split", &["x"], &["y", "z"], &[("axis", axis)]),
        }
    };
    for axis in [0, -3] {
        ["Slice", "Concat", "Split"].iter().for_each(|operator| check(one(operator, axis), &[2, 3], rows));
    }
    check(one("Split", 3), &[2, 3], "has an axis that its input does not have");
    check(Onnx::default().node_listed("Transpose", &["x"], &["y"], ("perm", &[1, 0, 2])), &[2, 3], rows);
    check(Onnx::default().node("Transpose", &["x"], &["y"], &[]), &[2, 3], rows);
    let twice = Onnx::default().node_listed("Transpose", &["x"], &["y"], ("perm", &[0, 1, 1]));
    check(twice, &[2, 3], "has axes that are no permutation of its input's");
    let many = Onnx::default().node_listed("Transpose", &["x"], &["y"], ("perm", &[0, 2, 1, 3, 4, 5, 6]));
    check(many, &[2; 6], "has more than 6 dimensions, the batch's counted");
    let listed = Onnx::default().constant("k", INT64, &[2], &integers(&[1, 1]));
    check(listed.node("Split", &["x", "k"], &["y", "z"], &[("axis", 2)]), &[2, 3], "are not all of it");
    let other = Onnx::default().node_listed("Transpose", &["x"], &["t"], ("perm", &[0, 2, 1]));
    check(other.node("Concat", &["x", "t"], &["y"], &[("axis", 1)]), &[2, 3], "joins shapes that do not go together");
}

#[test]
fn a_model_without_a_batch_axis_runs_as_it_is() {
    let mut numbers = Numbers(9);
    let file = Onnx::default()
        .constant("w", FLOAT, &[4, 3], &raw(&numbers.take(12)))
        .node("MatMul", &["x", "w"], &["p"], &[])
        .node("Tanh", &["p"], &["y"], &[])
        .input("x", FLOAT, &[2, 4])
        .output("y", FLOAT, &[2, 3])
        .into_bytes();
    let spec = spec(0, &[("x", Datatype::Fp32, &[2, 4])], &[("y", Datatype::Fp32, &[2, 3])]);
    check_against_engine("alone", &file, &spec, &rows(&mut numbers, &[&[2, 4]]));
}

#[test]
fn scratch_is_used_again_when_nobody_reads_what_is_in_it() {
    let mut onnx = Onnx::default().input("v0", FLOAT, &[-1, 64]).output("y", FLOAT, &[-1, 64]);
    for layer in 0..10 {
        let (from, to) = (format!("v{layer}"), format!("v{}", layer + 1));
        onnx = onnx.node("Softmax", &[&from], &[&to], &[("axis", -1)]);
    }
    let file = onnx.node("Softmax", &["v10"], &["y"], &[("axis", -1)]).into_bytes();
    let spec = spec(4, &[("v0", Datatype::Fp32, &[64])], &[("y", Datatype::Fp32, &[64])]);
    let plan = check_against_engine("chain", &file, &spec, &rows(&mut Numbers(1), &[&[4, 64]]));
    assert_eq!((plan.steps.len(), plan.sizes.scratch), (11, 2 * 4 * 64 * 4));
}

#[test]
fn what_the_plan_does_not_have_is_refused_by_name() {
    let one = |operator: &str, attributes: &[(&str, i64)]| {
        Onnx::default()
            .constant("w", FLOAT, &[4, 4], &raw(&[0.5; 16]))
            .constant("k", INT64, &[4], &integers(&[1; 4]))
            .node(operator, &["x", "w"], &["y"], attributes)
            .input("x", FLOAT, &[-1, 4])
            .output("y", FLOAT, &[-1, 4])
            .into_bytes()
    };
    let plain = spec(4, &[("x", Datatype::Fp32, &[4])], &[("y", Datatype::Fp32, &[4])]);
    let check = |file: &[u8], spec: &ModelSpec, want: &str| {
        let error = GpuPlan::new(file, spec).unwrap_err();
        assert!(error.text().contains(want), "{error}");
        assert_eq!(error.code(), base::error::Code::Unsupported);
    };
    check(&one("Conv", &[]), &plain, "operator 'Conv', which gives 'y', is not among those that the GPU's plan has");
    check(&one("Gemm", &[("transA", 1)]), &plain, "takes another matrix");
    check(&one("Softmax", &[("axis", 0)]), &plain, "over another axis than the last");
    check(&one("Add", &[]), &plain, "shapes that do not go together");
    let other = |inputs: &[&str], operator: &str| {
        Onnx::default()
            .constant("k", INT64, &[4], &integers(&[1; 4]))
            .node(operator, inputs, &["y"], &[])
            .input("x", FLOAT, &[-1, 4])
            .output("y", FLOAT, &[-1, 4])
            .into_bytes()
    };
    check(&other(&["x", "k"], "Add"), &plain, "a weight that is no constant of FP32");
    check(&other(&["x", "x"], "MatMul"), &plain, "a weight that is no constant of FP32");
    check(&other(&["x"], "Flatten"), &spec(4, &plain_io("x", 4), &plain_io("y", 5)), "another shape than");
    check(&other(&["x"], "Identity"), &spec(4, &[("x", Datatype::Fp16, &[4])], &plain_io("y", 4)), "'x' is FP16");
    check(&other(&["x"], "Identity"), &spec(4, &[("x", Datatype::Fp32, &[-1])], &plain_io("y", 4)), "any size");
    check(&other(&["x"], "Identity"), &spec(4, &plain_io("x", 4), &plain_io("z", 4)), "output 'z' is not computed");
    let mut ragged = plain.clone();
    ragged.inputs[0].is_ragged = true;
    check(&other(&["x"], "Identity"), &ragged, "ragged");
    let wide: &[i64] = &[70_000];
    let huge = spec(65_536, &[("x", Datatype::Fp32, wide)], &[("y", Datatype::Fp32, wide)]);
    check(&other(&["x"], "Relu"), &huge, "too large for one launch");
    let long = spec(65_537, &plain_io("x", 4), &plain_io("y", 4));
    check(&other(&["x"], "Relu"), &long, "max_batch_size is 65537, more than the 65536 that its buffers can have");
}

fn plain_io(name: &str, size: i64) -> [backend::trial::TrialTensor<'_>; 1] {
    let sizes: &[i64] = if size == 4 { &[4] } else { &[5] };
    [(name, Datatype::Fp32, sizes)]
}

/// A model whose 20 outputs are its inputs if they are above 0, on a device of its own.
struct Classifier {
    fake: Arc<Fake>,
    instance: GpuInstance,
}

impl Classifier {
    fn new() -> Self {
        let file = Onnx::default()
            .node("Relu", &["x"], &["y"], &[])
            .node("Identity", &["x"], &["z"], &[])
            .input("x", FLOAT, &[-1, 20])
            .output("y", FLOAT, &[-1, 20])
            .output("z", FLOAT, &[-1, 20])
            .into_bytes();
        let io = |name| (name, Datatype::Fp32, &[20_i64][..]);
        let mut spec = spec(8, &[io("x")], &[io("y"), io("z")]);
        spec.outputs[0].labels = Some(Arc::new(Labels::from_text("zero\none")));
        let (fake, spec) = (Fake::new(1), Arc::new(spec));
        let plan = GpuPlan::new(&file, &spec).unwrap();
        let opened = fake.gpu(1 << 30, 1 << 30).open().unwrap();
        let program = plan.place(&opened).unwrap();
        let instance = GpuInstance::new(&spec, &plan, program, &opened, &Arc::default()).unwrap();
        fake.take_timeline();
        Self { fake, instance }
    }

    /// Runs requests with their rows and needs; a row counts down from 9, its own number added to
    /// the second. Returns the answers and the copies from the device.
    fn run(&mut self, requests: &[(i64, &[OutputNeed])]) -> (Vec<String>, Vec<String>) {
        let mut row = 0.0;
        let tensors = requests.iter().map(|(rows, _)| {
            let values: Vec<f32> = (0..*rows)
                .flat_map(|_| {
                    row += 1.0;
                    (0..20).map(move |index| if index == 1 { 9.0 + row } else { 9.0 - index as f32 })
                })
                .collect();
            (vec![tensor(&[*rows, 20], &values)], *rows as u32)
        });
        let answers = TrialAnswers::default();
        let mut batch = answers.batch(tensors.collect());
        for (request, (_, output_needs)) in batch.requests.iter_mut().zip(requests) {
            request.responder.output_needs = OutputNeeds(output_needs.iter().copied().collect());
        }
        run_to_end(&mut self.instance, batch);
        let shown = |tensor: Tensor| match tensor.datatype {
            Datatype::Bytes => {
                let texts =
                    Strings::new(&tensor.contents).map(|text| String::from_utf8(text.unwrap().to_vec()).unwrap());
                format!("{:?} {}", tensor.shape.as_slice(), texts.collect::<Vec<_>>().join(" "))
            }
            other => format!("{:?} {} of {}", tensor.shape.as_slice(), tensor.contents.len(), other.name()),
        };
        let answers = answers
            .outputs(requests.len() as u32)
            .into_iter()
            .map(|outputs| outputs.unwrap().into_iter().map(shown).collect::<Vec<_>>().join(" | "));
        let timeline = self.fake.take_timeline();
        let copies = timeline.lines().filter(|line| line.starts_with('-')).filter_map(|line| line.split_once(' '));
        let copies =
            copies.map(|(_, what)| what.to_owned()).filter(|what| what.starts_with("out") || what.starts_with("topk"));
        (answers.collect(), copies.collect())
    }
}

#[test]
fn where_classes_are_all_that_is_asked_for_only_they_leave_the_device() {
    use OutputNeed::{Classes, Nothing, Whole};
    let mut classifier = Classifier::new();
    let mut check = |requests: &[(i64, &[OutputNeed])], answers: &[&str], copies: &[&str]| {
        let (got, moved) = classifier.run(requests);
        assert_eq!(got, answers);
        assert_eq!(moved, copies);
    };
    check(
        &[(2, &[Classes(2), Nothing]), (1, &[Classes(1), Nothing])],
        &["[2, 2] 10:1:one 9:0:zero 11:1:one 9:0:zero | [2, 20] 0 of FP32", "[1, 1] 12:1:one | [1, 20] 0 of FP32"],
        // Values of three rows, padded to 32 bytes, and their indices.
        &["topk_warp_32", "out 56"],
    );
    check(
        &[(1, &[Nothing, Classes(3)]), (1, &[Classes(1), Nothing])],
        &["[1, 0]  | [1, 3] 10:1 9:0 7:2", "[1, 1] 11:1:one | [1, 0] "],
        &["topk_warp_32", "out 24", "topk_warp_32", "out 56"],
    );
    check(
        &[(1, &[Classes(1), Nothing]), (1, &[Whole, Nothing])],
        &["[1, 20] 80 of FP32 | [1, 20] 0 of FP32", "[1, 20] 80 of FP32 | [1, 20] 0 of FP32"],
        &["out 160"],
    );
    check(&[(1, &[Classes(6), Nothing])], &["[1, 20] 80 of FP32 | [1, 20] 0 of FP32"], &["out 80"]);
    check(&[(1, &[])], &["[1, 20] 80 of FP32 | [1, 20] 80 of FP32"], &["out 80", "out 80"]);
}
