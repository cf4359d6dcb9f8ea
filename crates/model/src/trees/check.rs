//! The checks that every model must pass before it runs: each tree is a tree, its features and
//! values exist, and sizes are within bounds. Every reader's model passes here. Nothing recurses: a
//! tree may be as deep as its file is long.

use crate::limits::TREE_LEAF_VALUES_MAX;
use crate::trees::{DecisionTree, SplitTest, TreeModel, TreeNode};
use base::limits::TREE_NODES_MAX;

/// Checks a model and measures the depth of its trees.
///
/// # Errors
///
/// The first fault, by tree and node.
pub(super) fn check(mut model: TreeModel) -> Result<TreeModel, String> {
    let nodes: usize = model.trees.iter().map(|tree| tree.nodes.len()).sum();
    check_sizes(nodes, model.trees.iter().map(|tree| tree.values.len()).sum())?;
    let (features, outputs) = (model.feature_count, model.output_count());
    for list in [&model.start, &model.divisors, &model.offsets] {
        if !list.is_empty() && list.len() != outputs {
            return Err(format!("it has {} base scores for {outputs} outputs", list.len()));
        }
    }
    if model.divisors.contains(&0.0) {
        return Err("its outputs are averages, and one of them has no tree".to_owned());
    }
    for (index, tree) in model.trees.iter_mut().enumerate() {
        check_tree(tree, features, outputs).map_err(|why| format!("tree {index}: {why}"))?;
    }
    Ok(model)
}

/// Checks the number of nodes and of leaf values of all trees against their bounds.
pub(super) fn check_sizes(nodes: usize, values: usize) -> Result<(), String> {
    if nodes > TREE_NODES_MAX {
        return Err(format!("it has {nodes} nodes, more than the {TREE_NODES_MAX} that are served"));
    }
    if values > TREE_LEAF_VALUES_MAX {
        return Err(format!("its leaves have {values} values, more than the {TREE_LEAF_VALUES_MAX} that are served"));
    }
    Ok(())
}

fn check_tree(tree: &mut DecisionTree, features: usize, outputs: usize) -> Result<(), String> {
    let DecisionTree { nodes, values, output, depth } = tree;
    let last = output.width.checked_sub(1).and_then(|more| more.checked_mul(output.stride));
    let last = last.and_then(|last| last.checked_add(output.first));
    if last.is_none_or(|last| last >= outputs) {
        return Err(format!("its leaves are for output {}, and there are {outputs}", output.first));
    }
    let mut is_reached = vec![false; nodes.len()];
    let mut level = vec![0_u32];
    *depth = 0;
    while !level.is_empty() {
        let mut below = Vec::new();
        for at in level {
            let (Some(node), Some(reached)) = (nodes.get(at as usize), is_reached.get_mut(at as usize)) else {
                return Err(format!("a child is node {at}, and there are {} nodes", nodes.len()));
            };
            if std::mem::replace(reached, true) {
                return Err(format!("node {at} is reached in two ways, so it is no tree"));
            }
            match node {
                TreeNode::Leaf(leaf) => {
                    let end = (*leaf as usize).checked_add(1).and_then(|end| end.checked_mul(output.width));
                    if end.is_none_or(|end| end > values.len()) {
                        return Err(format!("node {at} is leaf {leaf}, which has no value"));
                    }
                }
                TreeNode::Split(split) => {
                    if split.feature as usize >= features {
                        let feature = split.feature;
                        return Err(format!("node {at} tests feature {feature}, and there are {features} features"));
                    }
                    if threshold(&split.test).is_some_and(f64::is_nan) {
                        return Err(format!("the threshold of node {at} is not a number"));
                    }
                    below.extend([split.left, split.right]);
                }
            }
        }
        *depth = depth.saturating_add(usize::from(!below.is_empty()));
        level = below;
    }
    Ok(())
}

const fn threshold(test: &SplitTest) -> Option<f64> {
    match test {
        SplitTest::Below(t) | SplitTest::AtMost(t) | SplitTest::Above(t) => Some(*t),
        SplitTest::AtLeast(t) | SplitTest::Equal(t) | SplitTest::AtMostUnlessZero(t) => Some(*t),
        SplitTest::In(_) => None,
    }
}
