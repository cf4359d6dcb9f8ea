//! LightGBM's text (`GBDT::SaveModelToString`, `Tree::ToString`; versions 2 to 4): lines of `key=value`, first those of the
//! model, then those of each tree behind `Tree=N`.
//!
//! Sums are FP64 from zero, in the order of the trees, as `GBDT::PredictRaw` adds them; inputs are FP32 made doubles.

use crate::trees::value::excerpt;
use crate::trees::{
    Arithmetic, CategoryMembers, CategorySet, DecisionTree, ScoreLink, SplitTest, TreeFault, TreeFormat, TreeModel,
    TreeNode, TreeOutput, TreeSplit, features, outputs,
};

/// Bits of `decision_type`.
const CATEGORICAL: u8 = 1;
const DEFAULT_LEFT: u8 = 2;
/// `decision_type >> 2`: the values that count as missing. A NaN that does not is zero.
const MISSING_ZERO: u8 = 1;
const MISSING_NAN: u8 = 2;

/// Reads a model.
///
/// # Errors
///
/// If something is missing, of another type or size, or of a kind that is not served.
pub(super) fn decode(file: &[u8]) -> Result<TreeModel, TreeFault> {
    let text = std::str::from_utf8(file).map_err(|error| format!("it is not UTF-8 at byte {}", error.valid_up_to()))?;
    let mut sections = text.split("\nTree=");
    let header = TextSection(sections.next().unwrap_or_default());
    let feature_count = header.number::<i64>("max_feature_idx")?.ok_or("it has no 'max_feature_idx'".to_owned())?;
    let feature_count = features(feature_count.saturating_add(1))?;
    let class_count = outputs("'num_class'", header.number("num_class")?.unwrap_or(1))?;
    let per_iteration = outputs("'num_tree_per_iteration'", header.number("num_tree_per_iteration")?.unwrap_or(1))?;
    let objective = header.get("objective").unwrap_or_default();
    // A custom objective has scores of its own for each class, which are not transformed into
    // answers.
    let class_count = if objective.is_empty() { class_count.max(per_iteration) } else { class_count };
    if per_iteration != class_count {
        return Err(format!("it has {per_iteration} trees an iteration for {class_count} classes").into());
    }
    let link = link_of(objective)?;
    if header.0.lines().any(|line| line.trim_end() == "linear_tree=1") {
        return Err(TreeFault::Unsupported(LINEAR.to_owned()));
    }
    let mut trees = Vec::new();
    for section in sections {
        // Text behind the last tree is for people.
        let section = TextSection(section.split("\nend of trees").next().unwrap_or_default());
        let mut tree = decode_tree(section).map_err(|fault| in_tree(fault, trees.len()))?;
        tree.output = TreeOutput::single(trees.len().checked_rem(per_iteration).unwrap_or_default());
        trees.push(tree);
    }
    check_complete(header, text, trees.len())?;
    let is_average = header.0.lines().any(|line| line.trim_end().starts_with("average_output"));
    let iterations = trees.len().checked_div(per_iteration).unwrap_or_default();
    if trees.len().checked_rem(per_iteration) != Some(0) {
        return Err(format!("it has {} trees, which are no whole iterations of {per_iteration}", trees.len()).into());
    }
    #[expect(clippy::cast_precision_loss, reason = "trees are far fewer")]
    let divisors = if is_average && iterations > 0 { vec![iterations as f64; class_count] } else { Vec::new() };
    Ok(TreeModel {
        format: TreeFormat::LightGbm,
        feature_count,
        target_count: 1,
        class_count,
        arithmetic: Arithmetic::Double,
        trees,
        start: Vec::new(),
        divisors,
        offsets: Vec::new(),
        link,
    })
}

const LINEAR: &str = "its leaves are linear models (linear_tree); train it with linear_tree=false";

/// Refuses a truncated file, which would lack its last trees.
fn check_complete(header: TextSection<'_>, text: &str, found: usize) -> Result<(), String> {
    let announced = header.get("tree_sizes").map(|sizes| sizes.split_ascii_whitespace().count());
    if let Some(announced) = announced.filter(|announced| *announced != found) {
        return Err(format!("it announces {announced} trees and has {found}"));
    }
    if announced.is_none() && !text.contains("\nend of trees") {
        return Err("it has neither 'tree_sizes' nor 'end of trees': it is cut off".to_owned());
    }
    Ok(())
}

fn in_tree(fault: TreeFault, index: usize) -> TreeFault {
    match fault {
        TreeFault::Broken(why) => TreeFault::Broken(format!("tree {index}: {why}")),
        TreeFault::Unsupported(what) => TreeFault::Unsupported(what),
    }
}

/// The lines of the model or of a tree.
#[derive(Clone, Copy)]
struct TextSection<'a>(&'a str);

impl<'a> TextSection<'a> {
    fn get(self, key: &str) -> Option<&'a str> {
        let value = |line: &'a str| line.strip_prefix(key).and_then(|rest| rest.strip_prefix('='));
        self.0.lines().find_map(value).map(str::trim)
    }

    fn number<T: std::str::FromStr>(self, key: &str) -> Result<Option<T>, String> {
        let Some(text) = self.get(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("'{key}' is '{}', not an integer in its range", excerpt(text)))
    }

    /// A list of `count` numbers.
    fn numbers<T: std::str::FromStr>(self, key: &str, count: usize) -> Result<Vec<T>, String> {
        let text = self.get(key).ok_or_else(|| format!("it has no '{key}'"))?;
        let read = |word: &str| word.parse().map_err(|_| format!("'{key}' has '{}'", excerpt(word)));
        let numbers: Vec<T> = text.split_ascii_whitespace().map(read).collect::<Result<_, _>>()?;
        if numbers.len() == count {
            return Ok(numbers);
        }
        Err(format!("'{key}' has {} numbers, expected {count}", numbers.len()))
    }
}

/// The function that the objective applies to sums: `GetObjectiveString` of each, `ConvertOutput`.
fn link_of(objective: &str) -> Result<ScoreLink, TreeFault> {
    let mut words = objective.split_ascii_whitespace();
    let name = words.next().unwrap_or_default();
    let setting = |key: &str| {
        let value = |word: &str| word.strip_prefix(key).and_then(|rest| rest.strip_prefix(':')).map(str::to_owned);
        objective.split_ascii_whitespace().find_map(value)
    };
    let sigmoid = || match setting("sigmoid").map(|text| text.parse::<f64>()) {
        Some(Ok(alpha)) if alpha > 0.0 && alpha.is_finite() => Ok(alpha),
        _ => Err(format!("objective '{}' lacks a 'sigmoid:' above 0", excerpt(objective))),
    };
    Ok(match name {
        "" | "custom" | "lambdarank" | "rank_xendcg" => ScoreLink::Identity,
        "binary" => ScoreLink::Sigmoid(sigmoid()?),
        "cross_entropy" => ScoreLink::Sigmoid(1.0),
        "cross_entropy_lambda" => ScoreLink::LogOnePlusExp,
        "multiclass" => ScoreLink::SoftmaxDouble,
        "multiclassova" => ScoreLink::OneVersusAll(sigmoid()?),
        "gamma" | "poisson" | "tweedie" => ScoreLink::Exponential,
        "fair" | "huber" | "mape" | "quantile" | "regression" | "regression_l1" => {
            if words.any(|word| word == "sqrt") {
                ScoreLink::SignedSquare
            } else {
                ScoreLink::Identity
            }
        }
        _ => return Err(TreeFault::Unsupported(format!("objective '{}'", excerpt(name)))),
    })
}

/// The arrays of a tree's splits.
struct SplitArrays {
    features: Vec<u32>,
    thresholds: Vec<f64>,
    decisions: Vec<u8>,
    left: Vec<i32>,
    right: Vec<i32>,
}

fn decode_tree(section: TextSection<'_>) -> Result<DecisionTree, TreeFault> {
    if section.get("is_linear").is_some_and(|flag| flag != "0") {
        return Err(TreeFault::Unsupported(LINEAR.to_owned()));
    }
    let leaves: u32 = section.number("num_leaves")?.ok_or("it has no 'num_leaves'".to_owned())?;
    let splits = leaves.checked_sub(1).ok_or("'num_leaves' is 0".to_owned())? as usize;
    // The length of a line bounds the numbers read; nothing is allocated for numbers that are only
    // announced.
    let values = section.numbers("leaf_value", leaves as usize)?;
    let mut tree = DecisionTree { values, ..DecisionTree::default() };
    if splits == 0 {
        tree.nodes = vec![TreeNode::Leaf(0)];
        return Ok(tree);
    }
    let arrays = SplitArrays {
        features: section.numbers("split_feature", splits)?,
        thresholds: section.numbers("threshold", splits)?,
        decisions: match section.get("decision_type") {
            Some(_) => section.numbers("decision_type", splits)?,
            None => vec![0; splits],
        },
        left: section.numbers("left_child", splits)?,
        right: section.numbers("right_child", splits)?,
    };
    let mut categories = decode_categories(section)?;
    let SplitArrays { features, thresholds, decisions, left, right } = arrays;
    let tests = features.into_iter().zip(thresholds).zip(decisions);
    for (index, (((feature, threshold), decision), (left, right))) in tests.zip(left.into_iter().zip(right)).enumerate()
    {
        let (test, default_left) = match decision & CATEGORICAL {
            0 => numerical(threshold, decision),
            _ => (SplitTest::In(Box::new(take_categories(&mut categories, threshold, index)?)), false),
        };
        // A negative child is a leaf, counted from -1 down: leaves are behind the splits.
        let child = |child: i32| match u32::try_from(child) {
            Ok(split) if (split as usize) < splits => Ok(split),
            Ok(split) => Err(format!("a child of split {index} is split {split} of {splits}")),
            Err(_) => Ok(leaves.saturating_sub(1).saturating_add((!child).unsigned_abs())),
        };
        let (left, right) = (child(left)?, child(right)?);
        tree.nodes.push(TreeNode::Split(TreeSplit { feature, test, default_left, left, right }));
    }
    tree.nodes.extend((0..leaves).map(TreeNode::Leaf));
    Ok(tree)
}

/// `NumericalDecision`: NaN is zero unless it counts as missing.
fn numerical(threshold: f64, decision: u8) -> (SplitTest, bool) {
    let default_left = decision & DEFAULT_LEFT != 0;
    match (decision >> 2) & 3 {
        MISSING_NAN => (SplitTest::AtMost(threshold), default_left),
        MISSING_ZERO => (SplitTest::AtMostUnlessZero(threshold), default_left),
        _ => (SplitTest::AtMost(threshold), 0.0 <= threshold),
    }
}

/// The sets of a tree's categorical splits, by the numbers in place of their thresholds.
fn decode_categories(section: TextSection<'_>) -> Result<Vec<Option<CategorySet>>, String> {
    let count = section.number::<u32>("num_cat")?.unwrap_or(0) as usize;
    if count == 0 {
        return Ok(Vec::new());
    }
    let bounds: Vec<usize> = section.numbers("cat_boundaries", count.saturating_add(1))?;
    let words = bounds.last().copied().unwrap_or_default();
    let words: Vec<u32> = section.numbers("cat_threshold", words)?;
    let set = |(begin, end): (&usize, &usize)| {
        let bits = words.get(*begin..*end).map(<[u32]>::to_vec);
        let bits = bits.ok_or_else(|| format!("'cat_boundaries' goes from {begin} to {end}"))?;
        let members = CategoryMembers::Bits(bits);
        // `static_cast<int>`, then the sign, then the bits.
        Ok(Some(CategorySet { members, largest: f64::from(i32::MAX), cuts_first: true }))
    };
    bounds.iter().zip(bounds.iter().skip(1)).map(set).collect()
}

fn take_categories(sets: &mut [Option<CategorySet>], number: f64, split: usize) -> Result<CategorySet, String> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float saturates, and NaN is 0")]
    let set = sets.get_mut(number as usize).and_then(Option::take);
    set.ok_or_else(|| format!("split {split} is categorical, and its set {number} is not there or another split's"))
}
