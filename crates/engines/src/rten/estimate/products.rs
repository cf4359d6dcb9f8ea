//! Rules of operators that multiply matrices: products, recurrent cells, attention.

use std::collections::BTreeMap;

use model::onnx::graph::OnnxNode;

use super::facts::{Interval, Sizes, TensorFacts, count};
use super::operands::{Made, OperatorInputs, RuleError, broadcast, dimension, require, sizes};

/// Applies the rule of an operator; `None` for one of another kind.
pub(super) fn apply(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Option<Result<Made, RuleError>> {
    Some(match node.operator.as_str() {
        "MatMul" | "MatMulInteger" => product_of_matrices(inputs),
        "MatMulNBits" => product_of_bits(node, inputs),
        "Gemm" => gemm(node, inputs),
        "Einsum" => einsum(node, inputs),
        "DynamicQuantizeLSTM" | "LSTM" => recurrent(node, inputs, 4.0),
        "GRU" => recurrent(node, inputs, 3.0),
        "Attention" | "GroupQueryAttention" | "MultiHeadAttention" => attention(node, inputs),
        _ => return None,
    })
}

/// The elements of two inputs, which may be copied into another layout.
fn copies(inputs: &OperatorInputs<'_>) -> f64 {
    inputs.iter().take(2).flatten().map(|input| input.count_max).sum()
}

fn product_of_matrices(inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let (one, two) = (sizes(inputs, 0)?, sizes(inputs, 1)?);
    let outer = |sizes: &Sizes| sizes.len().saturating_sub(2);
    let (batch_one, rows) = one.split_at_checked(outer(one)).unwrap_or_default();
    let (batch_two, columns) = two.split_at_checked(outer(two)).unwrap_or_default();
    let mut made = broadcast(batch_one, batch_two);
    // A vector has no rows, or no columns.
    made.extend(rows.first().filter(|_| rows.len() == 2).copied());
    made.extend(columns.last().filter(|_| columns.len() == 2).copied());
    Ok(Made { outputs: vec![TensorFacts::of(made)], workspace: copies(inputs) })
}

fn product_of_bits(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let mut made = sizes(inputs, 0)?.clone();
    if let Some(last) = made.last_mut() {
        *last = Interval::exact(node.integer("N", 0) as f64);
    }
    let (inner, columns) = (node.integer("K", 0) as f64, node.integer("N", 0) as f64);
    Ok(Made { outputs: vec![TensorFacts::of(made)], workspace: inner * columns + copies(inputs) })
}

fn gemm(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let (one, two) = (require(inputs, 0)?, require(inputs, 1)?);
    let rows = dimension(one, usize::from(node.integer("transA", 0) != 0))?;
    let columns = dimension(two, usize::from(node.integer("transB", 0) == 0))?;
    let output = TensorFacts::of(Sizes::from_slice(&[rows, columns]));
    Ok(Made { outputs: vec![output], workspace: copies(inputs) })
}

fn einsum(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let equation: String =
        node.text("equation").unwrap_or_default().chars().filter(|letter| !letter.is_whitespace()).collect();
    // Dimensions without names get them, as many as the first input that has such leaves.
    let terms = equation.split_once("->").map_or(&equation[..], |(terms, _)| terms);
    let unnamed = terms.split(',').zip(inputs).find_map(|(term, input)| {
        let named = term.strip_suffix("...").or_else(|| term.contains("...").then_some(term))?;
        (*input)?.rank()?.checked_sub(named.replace("...", "").chars().count())
    });
    let names: String = ('\u{e000}'..).take(unnamed.unwrap_or(0)).collect();
    let equation = equation.replace("...", &names);
    let (terms, wanted) = match equation.split_once("->") {
        Some((terms, wanted)) => (terms, Some(wanted)),
        None => (&equation[..], None),
    };
    let mut letters: BTreeMap<char, (Interval, usize)> = BTreeMap::new();
    for (index, term) in terms.split(',').enumerate() {
        let sizes = sizes(inputs, index)?;
        if term.chars().count() != sizes.len() {
            return Err("its equation does not name all dimensions of its inputs".into());
        }
        for (letter, size) in term.chars().zip(sizes) {
            let known = letters.entry(letter).or_insert((Interval::ONE, 0));
            *known = (known.0.max(*size), known.1 + 1);
        }
    }
    // Without an output, it is the letters that occur once, in their order.
    let wanted: Vec<char> = match wanted {
        Some(wanted) => wanted.chars().collect(),
        None => letters.iter().filter(|(_, (_, times))| *times == 1).map(|(letter, _)| *letter).collect(),
    };
    let size = |letter| letters.get(&letter).map_or(Interval::ONE, |(size, _)| *size);
    let output = TensorFacts::of(wanted.into_iter().map(size).collect());
    // Two terms are multiplied as matrices; more of them pass through products of any of their letters.
    let copied: f64 = inputs.iter().flatten().map(|input| input.count_max).sum();
    let all: Vec<_> = letters.values().map(|(size, _)| *size).collect();
    let workspace = if inputs.len() <= 2 { 2.0 * copied } else { copied + count(&all).high };
    Ok(Made { outputs: vec![output], workspace })
}

/// A cell of `gates` gates: its states in all steps, and the last ones.
fn recurrent(node: &OnnxNode, inputs: &OperatorInputs<'_>, gates: f64) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let (steps, batch) = (dimension(input, 0)?, dimension(input, 1)?);
    let directions = dimension(require(inputs, 1)?, 0)?;
    let hidden = Interval::exact(node.integer("hidden_size", 0) as f64);
    let all = TensorFacts::of(Sizes::from_slice(&[steps, directions, batch, hidden]));
    let last = TensorFacts::of(Sizes::from_slice(&[directions, batch, hidden]));
    let workspace = gates * count(&[steps, batch, hidden]).high + input.count_max;
    Ok(Made { outputs: vec![all, last.clone(), last], workspace })
}

/// Attention of queries to keys and values, and to those of earlier runs. The matrix of scores is the largest.
fn attention(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let query = require(inputs, 0)?;
    // With one input that has all three, each of them is at most as large.
    let or_query = |index: usize| inputs.get(index).copied().flatten().unwrap_or(query);
    let (key, value) = (or_query(1), or_query(2));
    // Beside them a bias, a mask and the keys and values of earlier runs, none of which is larger
    // than its addend.
    let others: f64 = inputs.iter().skip(3).flatten().map(|input| input.count_max).sum();
    let present = TensorFacts::unranked(key.count_max + value.count_max + others);
    let heads = ["num_heads", "q_num_heads"].into_iter().map(|name| node.integer(name, 0)).max().unwrap_or(0) as f64;
    let (batch, length) = (dimension(query, 0)?, |facts: &TensorFacts| match facts.rank() {
        Some(4) => dimension(facts, 2),
        _ => dimension(facts, 1),
    });
    let heads = if query.rank() == Some(4) { dimension(query, 1)? } else { Interval::exact(heads.max(1.0)) };
    let keys = length(key)?.plus(Interval::exact(others));
    let scores = count(&[batch, heads, length(query)?, keys]).high;
    let output = match (&query.sizes, value.sizes.as_ref().and_then(|sizes| sizes.last())) {
        (Some(sizes), Some(last)) => {
            let mut sizes = sizes.clone();
            let of_heads = |name| Interval::exact(node.integer(name, 1).max(1) as f64);
            let groups = of_heads("q_num_heads").over(of_heads("kv_num_heads"));
            let made = match (node.operator.as_str(), sizes.len()) {
                ("Attention", 3) => last.times(groups),
                ("Attention", _) => *last,
                _ => Interval::up_to(sizes.last().map_or(0.0, |size| size.high).max(last.high)),
            };
            sizes.last_mut().into_iter().for_each(|size| *size = made);
            TensorFacts::of(sizes)
        }
        _ => present.clone(),
    };
    let workspace = scores + 2.0 * present.count_max + query.count_max;
    let mut outputs = vec![present; node.outputs.len().max(1)];
    outputs.first_mut().into_iter().for_each(|first| *first = output.clone());
    Ok(Made { outputs, workspace })
}
