use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Steps `a b > c d`, `*` before those that answer any number of times; tensors by letter.
fn graph(steps: &[&str], brought: &str) -> Arc<StepGraph> {
    let number = |name: &str| usize::from(name.as_bytes()[0] - b'a');
    let edges = steps.iter().map(|step| {
        let (inputs, outputs) = step.trim_start_matches('*').split_once('>').unwrap();
        let numbers = |names: &str| names.split_whitespace().map(number).collect();
        StepEdges { inputs: numbers(inputs), outputs: numbers(outputs), is_decoupled: step.starts_with('*') }
    });
    let brought: Vec<_> = brought.split_whitespace().map(number).collect();
    Arc::new(StepGraph::new(edges.collect(), 26, &brought))
}

fn tensors(names: &str) -> Vec<(usize, String)> {
    names.split_whitespace().map(|name| (usize::from(name.as_bytes()[0] - b'a'), name.to_owned())).collect()
}

fn begin(graph: &Arc<StepGraph>, brought: &str, wanted: &str) -> EnsembleRun<String> {
    EnsembleRun::new(
        Arc::clone(graph),
        tensors(brought),
        tensors(wanted).into_iter().map(|(number, _)| number).collect(),
    )
}

/// The steps that can run now: `0@0(a b)` is step 0 in frame 0 with its tensors.
fn launches(run: &mut EnsembleRun<String>) -> String {
    let text = |launch: StepLaunch<String>| format!("{}@{}({})", launch.step, launch.frame, launch.inputs.join(" "));
    std::iter::from_fn(|| run.poll_step()).map(text).collect::<Vec<_>>().join(" ")
}

fn outputs(names: &str) -> Vec<String> {
    names.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_step_runs_as_soon_as_its_tensors_are_there_and_once() {
    let graph = graph(&["a > c", "b > d", "c d > e", "c > f"], "a b");
    let mut run = begin(&graph, "a b", "e f");
    assert_eq!(launches(&mut run), "0@0(a) 1@0(b)");
    run.handle_outputs(0, 0, outputs("c"));
    assert_eq!(launches(&mut run), "3@0(c)");
    run.handle_outputs(0, 3, outputs("f"));
    assert_eq!((launches(&mut run), run.poll_response()), (String::new(), None));
    run.handle_outputs(0, 1, outputs("d"));
    assert_eq!(launches(&mut run), "2@0(c d)");
    assert!(!run.is_over());
    run.handle_outputs(0, 2, outputs("e"));
    assert!(!run.is_over(), "its response was not taken");
    assert_eq!(run.poll_response(), Some(outputs("e f")));
    assert_eq!((run.is_over(), run.frames(), run.responses(), run.poll_response()), (true, 0, 1, None));
}

#[test]
fn what_nobody_asked_for_does_not_run() {
    let graph = graph(&["a > b c", "b > d", "c > e", "e > f"], "a");
    let mut run = begin(&graph, "a", "d");
    assert_eq!(launches(&mut run), "0@0(a)");
    run.handle_outputs(0, 0, outputs("b c"));
    assert_eq!(launches(&mut run), "1@0(b)");
    run.handle_outputs(0, 1, outputs("d"));
    assert_eq!((run.poll_response(), run.is_over()), (Some(outputs("d")), true));
}

#[test]
fn a_tensor_may_pass_through_and_may_be_taken_twice_by_one_step() {
    let graph = graph(&["a a > b"], "a");
    let mut run = begin(&graph, "a", "a b");
    assert_eq!(launches(&mut run), "0@0(a a)");
    run.handle_outputs(0, 0, outputs("b"));
    assert_eq!((run.poll_response(), run.is_over()), (Some(outputs("a b")), true));
    let mut run = begin(&graph, "a", "a");
    assert_eq!((launches(&mut run), run.poll_response(), run.is_over()), (String::new(), Some(outputs("a")), true));
}

#[test]
fn a_tensor_is_held_no_longer_than_somebody_takes_it() {
    let graph = graph(&["a > b", "a b > c"], "a");
    let tensor: Arc<str> = Arc::from("a");
    let mut run = EnsembleRun::new(Arc::clone(&graph), [(0, Arc::clone(&tensor))], vec![2]);
    let first = run.poll_step().unwrap();
    assert_eq!(Arc::strong_count(&tensor), 3, "here, in the step and for the other");
    drop(first);
    run.handle_outputs(0, 0, [Arc::from("b")]);
    let second = run.poll_step().unwrap();
    assert_eq!(Arc::strong_count(&tensor), 2, "here and in the last step that takes it");
    drop(second);
    assert_eq!(Arc::strong_count(&tensor), 1);
}

#[test]
fn each_answer_of_a_decoupled_step_goes_its_own_way_and_responses_keep_their_order() {
    let graph = graph(&["*a > b c", "b > d", "c d > e"], "a");
    let mut run = begin(&graph, "a", "e");
    assert_eq!(launches(&mut run), "0@0(a)");
    run.handle_part(0, outputs("b1 c1"));
    run.handle_part(0, outputs("b2 c2"));
    assert_eq!(launches(&mut run), "1@1(b1) 1@2(b2)");
    assert_eq!(run.frames(), 3);
    run.handle_outputs(2, 1, outputs("d2"));
    assert_eq!(launches(&mut run), "2@2(c2 d2)");
    run.handle_outputs(2, 2, outputs("e2"));
    assert_eq!(run.poll_response(), None, "the first answer is on its way");
    run.handle_outputs(1, 1, outputs("d1"));
    run.handle_end(0);
    assert_eq!(launches(&mut run), "2@1(c1 d1)");
    run.handle_outputs(1, 2, outputs("e1"));
    assert!(!run.is_over());
    assert_eq!((run.poll_response(), run.poll_response()), (Some(outputs("e1")), Some(outputs("e2"))));
    assert_eq!((run.is_over(), run.frames(), run.responses()), (true, 0, 2));
}

#[test]
fn decoupled_steps_follow_each_other_and_may_answer_nothing() {
    let graph = graph(&["*a > b", "*b > c"], "a");
    let mut run = begin(&graph, "a", "c");
    assert_eq!(launches(&mut run), "0@0(a)");
    run.handle_part(0, outputs("b1"));
    run.handle_part(0, outputs("b2"));
    run.handle_end(0);
    assert_eq!(launches(&mut run), "1@1(b1) 1@2(b2)");
    run.handle_end(1);
    run.handle_part(1, outputs("c1"));
    run.handle_part(1, outputs("c2"));
    run.handle_end(2);
    let responses: Vec<_> = std::iter::from_fn(|| run.poll_response()).collect();
    assert_eq!((responses, run.is_over(), run.frames()), (vec![outputs("c1"), outputs("c2")], true, 0));
    let mut run = begin(&graph, "a", "c");
    assert_eq!(launches(&mut run), "0@0(a)");
    run.handle_end(0);
    assert_eq!((run.is_over(), run.responses()), (true, 0));
}

/// Numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// A graph of up to twelve steps, each on tensors that come before it, of which one kind is decoupled.
struct Plan {
    edges: Vec<StepEdges>,
    tensors: usize,
    brought: Vec<usize>,
    wanted: Vec<usize>,
}

impl Plan {
    fn new(random: &mut Random) -> Self {
        let brought: Vec<_> = (0..=random.below(3)).collect();
        // Tensors that a step may take: all of one kind, which a decoupled step begins anew.
        let mut there = brought.clone();
        let (mut edges, mut tensors) = (Vec::new(), brought.len());
        for _ in 0..=random.below(12) {
            let is_decoupled = random.below(6) == 0;
            let inputs: Vec<_> = (0..=random.below(3)).map(|_| there[random.below(there.len())]).collect();
            let outputs: Vec<_> = (tensors..=tensors + random.below(3)).collect();
            tensors += outputs.len();
            if is_decoupled {
                there.clear();
            }
            there.extend(&outputs);
            edges.push(StepEdges { inputs, outputs, is_decoupled });
        }
        let wanted: BTreeSet<_> = (0..=random.below(3)).map(|_| there[random.below(there.len())]).collect();
        Self { edges, tensors, brought, wanted: wanted.into_iter().collect() }
    }

    /// The value of a tensor: its inputs, the step that made it, and the answer.
    fn made(&self, step: usize, output: usize, inputs: &[String], answer: usize) -> String {
        format!("{step}.{output}#{answer}({})", inputs.join(","))
    }
}

/// The expected responses, made without a state machine: every answer of every decoupled step, one
/// by one.
fn expected(plan: &Plan, answers: &BTreeMap<(usize, String), usize>) -> Vec<Vec<String>> {
    fn go(
        plan: &Plan,
        answers: &BTreeMap<(usize, String), usize>,
        at: usize,
        values: &BTreeMap<usize, String>,
    ) -> Vec<Vec<String>> {
        let Some(edges) = plan.edges.get(at) else {
            let response: Option<Vec<_>> = plan.wanted.iter().map(|tensor| values.get(tensor).cloned()).collect();
            return response.into_iter().collect();
        };
        let Some(inputs) = edges.inputs.iter().map(|tensor| values.get(tensor).cloned()).collect::<Option<Vec<_>>>()
        else {
            return go(plan, answers, at + 1, values);
        };
        let count = if edges.is_decoupled { answers.get(&(at, inputs.join(","))).copied().unwrap_or(0) } else { 1 };
        let mut responses = Vec::new();
        for answer in 0..count {
            let mut values = if edges.is_decoupled { BTreeMap::new() } else { values.clone() };
            for (index, tensor) in edges.outputs.iter().enumerate() {
                values.insert(*tensor, plan.made(at, index, &inputs, answer));
            }
            responses.extend(go(plan, answers, at + 1, &values));
        }
        responses
    }
    let values = plan.brought.iter().map(|tensor| (*tensor, format!("in{tensor}"))).collect();
    go(plan, answers, 0, &values)
}

#[test]
fn any_graph_in_any_order_runs_each_step_once_and_ends_with_the_responses_that_it_must() {
    let (mut steps, mut parts, mut cancelled) = (0, 0, 0);
    for seed in 1..=20_000_u64 {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let plan = Plan::new(random);
        let graph = Arc::new(StepGraph::new(plan.edges.clone(), plan.tensors, &plan.brought));
        let brought = plan.brought.iter().map(|tensor| (*tensor, format!("in{tensor}")));
        let mut run = EnsembleRun::new(graph, brought, plan.wanted.clone());
        let mut running: Vec<(StepLaunch<String>, usize)> = Vec::new();
        let mut begun = BTreeSet::new();
        let (mut answers, mut got) = (BTreeMap::new(), Vec::new());
        let cancel_at = if random.below(10) == 0 { random.below(10) } else { usize::MAX };
        let mut moves = 0;
        while !run.is_over() {
            moves += 1;
            if moves > cancel_at {
                break;
            }
            assert!(moves < 100_000, "seed {seed} never ends");
            while let Some(launch) = run.poll_step() {
                let key = (launch.step, launch.inputs.join(","));
                assert!(begun.insert((launch.frame, key.clone(), moves)), "seed {seed}: {key:?}");
                let count = if plan.edges[launch.step].is_decoupled { random.below(4) } else { 1 };
                answers.insert(key, count);
                running.push((launch, 0));
                steps += 1;
            }
            if random.below(3) == 0 {
                got.extend(run.poll_response());
            }
            if running.is_empty() {
                got.extend(run.poll_response());
                continue;
            }
            let at = random.below(running.len());
            let edges = &plan.edges[running[at].0.step];
            let key = (running[at].0.step, running[at].0.inputs.join(","));
            let values = |answer: usize, launch: &StepLaunch<String>| -> Vec<String> {
                (0..edges.outputs.len()).map(|index| plan.made(launch.step, index, &launch.inputs, answer)).collect()
            };
            if !edges.is_decoupled {
                let (launch, _) = running.swap_remove(at);
                run.handle_outputs(launch.frame, launch.step, values(0, &launch));
            } else if running[at].1 < answers[&key] {
                let (launch, given) = &mut running[at];
                run.handle_part(launch.step, values(*given, launch));
                *given += 1;
                parts += 1;
            } else {
                let (launch, _) = running.swap_remove(at);
                run.handle_end(launch.frame);
            }
        }
        if moves > cancel_at {
            cancelled += 1;
            continue;
        }
        let mut want = expected(&plan, &answers);
        want.sort();
        got.sort();
        assert_eq!(got, want, "seed {seed}");
        assert!(running.is_empty() && run.frames() == 0, "seed {seed}: something is left");
    }
    assert!(steps > 50_000 && parts > 5_000 && cancelled > 500, "{steps} steps, {parts} parts, {cancelled} cancelled");
}

#[test]
fn a_step_that_ends_twice_is_noticed() {
    let graph = graph(&["a > b"], "a");
    let mut run = begin(&graph, "a", "b");
    assert_eq!(launches(&mut run), "0@0(a)");
    run.handle_outputs(0, 0, outputs("b"));
    assert!(crate::tests::tripped(|| run.handle_end(0)).contains("a step that ends was running"));
    let mut run = begin(&graph, "a", "b");
    assert_eq!(launches(&mut run), "0@0(a)");
    run.running = 2;
    let told = crate::tests::tripped(|| run.handle_end(0));
    assert!(told.contains("is ready or runs"), "{told}");
}
