//! XGBoost's models in JSON or UBJSON (`doc/model.schema` of XGBoost; versions 1.0 to 3.2).
//!
//! Sums are FP32: the base score first, then each tree's leaf, in the order of the trees, as `CPUPredictor` adds them.

use crate::trees::value::{TreeValue, excerpt};
use crate::trees::{
    Arithmetic, CategorySet, DecisionTree, ScoreLink, SplitTest, TreeFault, TreeFormat, TreeModel, TreeNode,
    TreeOutput, TreeSplit, features, outputs,
};
use base::limits::TREE_OUTPUTS_MAX;

/// The upper bound of XGBoost's categories, exclusive (`OutOfRangeCat`): beyond it, FP32 skips
/// integers.
const CATEGORY_MAX: f64 = 16_777_215.0;

/// Reads a model.
///
/// # Errors
///
/// If something is missing, of another type or size, or of a kind that is not served.
pub(super) fn decode(document: &TreeValue<'_>, format: TreeFormat) -> Result<TreeModel, TreeFault> {
    // A checkpoint of a process has the model beside its configuration.
    let document = document.find("Model").unwrap_or(document);
    let learner = document.member("learner")?;
    let parameters = learner.member("learner_model_param")?;
    let objective = learner.member("objective")?.text("name")?;
    let (link, margin) = objective_of(objective)?;
    let feature_count = features(parameters.integer("num_feature")?.ok_or("it has no 'num_feature'".to_owned())?)?;
    let [classes, targets] = [parameters.integer("num_class")?, parameters.integer("num_target")?];
    let (class_count, target_count) = output_counts(classes.unwrap_or(0), targets.unwrap_or(1))?;
    let output_count = class_count.max(target_count);
    let start = base_scores(parameters.text("base_score")?, margin, output_count)?;
    let booster = learner.member("gradient_booster")?;
    let (booster, weights) = match booster.text("name")? {
        "gbtree" => (booster, Vec::new()),
        "dart" => (booster.member("gbtree")?, booster.numbers::<f32>("weight_drop")?),
        other => return Err(unserved_booster(other)),
    };
    let model = booster.member("model")?;
    let owners = model.numbers::<i32>("tree_info")?;
    let mut trees = Vec::new();
    model.each("trees", |tree| {
        let index = trees.len();
        let in_tree = |why: String| format!("tree {index}: {why}");
        let mut tree = decode_tree(tree, output_count).map_err(in_tree)?;
        if tree.output.width == 1 {
            let owner = owners.get(index).copied().unwrap_or(-1);
            let owner = usize::try_from(owner).map_err(|_| in_tree(format!("'tree_info' says output {owner}")))?;
            tree.output = TreeOutput::single(owner);
        }
        if let Some(weight) = weights.get(index) {
            tree.values.iter_mut().for_each(|value| *value = weighted(*value, *weight));
        }
        trees.push(tree);
        Ok(())
    })?;
    if !weights.is_empty() && weights.len() != trees.len() {
        return Err(format!("it has {} weights for {} trees", weights.len(), trees.len()).into());
    }
    Ok(tree_model(format, feature_count, (class_count, target_count), (trees, start, link)))
}

/// A model as all of XGBoost's formats describe it.
pub(super) fn tree_model(
    format: TreeFormat,
    feature_count: usize,
    (class_count, target_count): (usize, usize),
    (trees, start, link): (Vec<DecisionTree>, Vec<f64>, ScoreLink),
) -> TreeModel {
    TreeModel {
        format,
        feature_count,
        target_count,
        class_count,
        arithmetic: Arithmetic::Single,
        trees,
        start,
        divisors: Vec::new(),
        offsets: Vec::new(),
        link,
    }
}

/// The classes and the targets of a model, as its file says.
pub(super) fn output_counts(classes: i64, targets: i64) -> Result<(usize, usize), TreeFault> {
    let class_count = outputs("its number of classes", classes.max(1))?;
    let target_count = outputs("its number of targets", targets.max(1))?;
    if class_count > 1 && target_count > 1 {
        return Err(TreeFault::Unsupported("it has several targets of several classes".to_owned()));
    }
    Ok((class_count, target_count))
}

/// The refusal of a booster that is neither `gbtree` nor `dart`.
pub(super) fn unserved_booster(name: &str) -> TreeFault {
    TreeFault::Unsupported(match name {
        "gblinear" => {
            "booster 'gblinear' is a linear model and no trees; train it with booster 'gbtree' or 'dart'".to_owned()
        }
        other => format!("booster '{}'", excerpt(other)),
    })
}

/// A leaf of a tree with a DART weight: the product is rounded to FP32.
#[expect(clippy::cast_possible_truncation, reason = "the value was FP32")]
pub(super) fn weighted(value: f64, weight: f32) -> f64 {
    (value as f32 * weight).into()
}

/// `kRtEps`: a model of rows that are all alike has a base score of 0 or 1.
const PROBABILITY_MIN: f32 = 1e-6;

/// The function from a base score, which is an answer, to a sum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BaseMargin {
    Identity,
    Log,
    Logit,
}

impl BaseMargin {
    /// The sum of a base score.
    pub(super) fn of(self, score: f32) -> Result<f64, String> {
        let is_good = match self {
            Self::Identity => score.is_finite(),
            Self::Log => score >= 0.0 && score.is_finite(),
            Self::Logit => (0.0..=1.0).contains(&score),
        };
        if !is_good {
            return Err(format!("'base_score' is {score}, which its objective excludes"));
        }
        Ok(f64::from(match self {
            Self::Identity => score,
            Self::Log => score.ln(),
            Self::Logit => -(1.0 / score.clamp(PROBABILITY_MIN, 1.0 - PROBABILITY_MIN) - 1.0).ln(),
        }))
    }
}

/// The function from sums to answers of an objective, and that from its base score to a sum.
pub(super) fn objective_of(name: &str) -> Result<(ScoreLink, BaseMargin), TreeFault> {
    Ok(match name {
        "binary:logistic" | "reg:logistic" => (ScoreLink::SigmoidBounded, BaseMargin::Logit),
        "binary:hinge" => (ScoreLink::Hinge, BaseMargin::Identity),
        "multi:softmax" | "multi:softprob" => (ScoreLink::Softmax, BaseMargin::Identity),
        "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" => (ScoreLink::Exponential, BaseMargin::Log),
        "survival:aft" => (ScoreLink::ExponentialDouble, BaseMargin::Log),
        // Its base score is not a probability either: it is added as it is.
        "binary:logitraw"
        | "reg:absoluteerror"
        | "reg:expectileerror"
        | "reg:linear"
        | "reg:pseudohubererror"
        | "reg:quantileerror"
        | "reg:squarederror"
        | "reg:squaredlogerror" => (ScoreLink::Identity, BaseMargin::Identity),
        _ if name.starts_with("rank:") => (ScoreLink::Identity, BaseMargin::Identity),
        _ => return Err(TreeFault::Unsupported(format!("objective '{}'", excerpt(name)))),
    })
}

/// The base score of each output: one number, or since XGBoost 3.1 a list of one or of all.
fn base_scores(text: &str, margin: BaseMargin, count: usize) -> Result<Vec<f64>, String> {
    let wrong = || format!("'base_score' is '{}', expected a number or a list of {count}", excerpt(text));
    let list = text.trim().trim_start_matches('[').trim_end_matches(']');
    let mut scores = Vec::new();
    for number in list.split(',').take(TREE_OUTPUTS_MAX.saturating_add(1)) {
        let score: f32 = number.trim().parse().map_err(|_| wrong())?;
        scores.push(margin.of(score)?);
    }
    if let [score] = *scores {
        scores = vec![score; count];
    }
    if scores.len() == count { Ok(scores) } else { Err(wrong()) }
}

/// The arrays of a tree, all of the same length.
struct XgboostTree {
    left: Vec<i32>,
    right: Vec<i32>,
    features: Vec<i32>,
    conditions: Vec<f32>,
    default_left: Vec<bool>,
    /// 1 for a categorical split; empty if there are no such splits.
    kinds: Vec<i32>,
}

fn decode_tree(tree: &TreeValue<'_>, output_count: usize) -> Result<DecisionTree, String> {
    let arrays = XgboostTree {
        left: tree.numbers("left_children")?,
        right: tree.numbers("right_children")?,
        features: tree.numbers("split_indices")?,
        conditions: tree.numbers("split_conditions")?,
        default_left: tree.numbers("default_left")?,
        kinds: tree.numbers("split_type")?,
    };
    let count = arrays.left.len();
    let lengths = [arrays.right.len(), arrays.features.len(), arrays.conditions.len(), arrays.default_left.len()];
    if let Some(length) = lengths.iter().find(|length| **length != count) {
        return Err(format!("it has {count} left children, but another array has {length} elements"));
    }
    if !arrays.kinds.is_empty() && arrays.kinds.len() != count {
        return Err(format!("it has {count} left children, but {} split types", arrays.kinds.len()));
    }
    let width = tree.member("tree_param")?.integer("size_leaf_vector")?.unwrap_or(1).max(1);
    let width = outputs("the size of its leaves", width)?;
    let mut categories = tree_categories(tree)?;
    let vectors = if width > 1 { Some(LeafVectors::read(tree, width, output_count)?) } else { None };
    let mut decoded = DecisionTree { output: TreeOutput { first: 0, stride: 1, width }, ..DecisionTree::default() };
    let XgboostTree { left, right, features, conditions, default_left, kinds } = arrays;
    let children = left.into_iter().zip(right);
    let tests = features.into_iter().zip(conditions).zip(default_left);
    for (index, ((left, right), ((feature, condition), default_left))) in children.zip(tests).enumerate() {
        let node = if left == -1 {
            let values = match &vectors {
                Some(vectors) => vectors.of(index, right)?,
                None => &[condition],
            };
            let leaf = decoded.values.len().checked_div(width).unwrap_or_default();
            // A file that repeats one leaf's values would become much larger in memory.
            if vectors.as_ref().is_some_and(|vectors| decoded.values.len() >= vectors.values.len()) {
                return Err("it has more leaves than values of leaves".to_owned());
            }
            decoded.values.extend(values.iter().map(|value| f64::from(*value)));
            TreeNode::Leaf(u32::try_from(leaf).map_err(|_| "it has too many leaves".to_owned())?)
        } else {
            let test = match kinds.get(index) {
                Some(1) => SplitTest::In(Box::new(take_categories(&mut categories, index)?)),
                _ => SplitTest::Below(condition.into()),
            };
            let at = |what: &str, value: i32| {
                u32::try_from(value).map_err(|_| format!("the {what} of node {index} is {value}"))
            };
            let feature = at("feature", feature)?;
            // A category of the set goes right. So values outside of it go left, missing or not a
            // category.
            let (left, right) = (at("left child", left)?, at("right child", right)?);
            match test {
                SplitTest::In(_) => {
                    TreeNode::Split(TreeSplit { feature, test, default_left: !default_left, left: right, right: left })
                }
                _ => TreeNode::Split(TreeSplit { feature, test, default_left, left, right }),
            }
        };
        decoded.nodes.push(node);
    }
    Ok(decoded)
}

/// The values of leaves that have several. Since XGBoost 3.1 they are indexed by the number of the
/// leaf, which replaces the right child, before by the node.
struct LeafVectors {
    by_leaf: bool,
    width: usize,
    values: Vec<f32>,
}

impl LeafVectors {
    fn read(tree: &TreeValue<'_>, width: usize, output_count: usize) -> Result<Self, String> {
        if width != output_count {
            return Err(format!("its leaves have {width} values for {output_count} outputs"));
        }
        let by_leaf = tree.find("leaf_weights").is_some();
        let values = tree.numbers(if by_leaf { "leaf_weights" } else { "base_weights" })?;
        Ok(Self { by_leaf, width, values })
    }

    fn of(&self, node: usize, right: i32) -> Result<&[f32], String> {
        let index = if self.by_leaf { usize::try_from(right).unwrap_or(usize::MAX) } else { node };
        let begin = index.checked_mul(self.width);
        let range = begin.and_then(|begin| Some(begin..begin.checked_add(self.width)?));
        range.and_then(|range| self.values.get(range)).ok_or_else(|| format!("leaf {node} has no values"))
    }
}

/// The categorical splits of a tree: their nodes, in order, and their sets.
fn tree_categories(tree: &TreeValue<'_>) -> Result<Vec<(i32, Option<CategorySet>)>, String> {
    let nodes: Vec<i32> = tree.numbers("categories_nodes")?;
    let segments: Vec<i32> = tree.numbers("categories_segments")?;
    let sizes: Vec<i32> = tree.numbers("categories_sizes")?;
    let categories: Vec<i32> = tree.numbers("categories")?;
    if nodes.len() != segments.len() || nodes.len() != sizes.len() {
        let lengths = format!("{}, {} and {}", nodes.len(), segments.len(), sizes.len());
        return Err(format!("the nodes, segments and sizes of its categories are {lengths}"));
    }
    // Each category belongs to one node: sets that overlap would become much larger in memory than
    // in the file.
    let total = sizes.iter().try_fold(0_usize, |sum, size| sum.checked_add(usize::try_from(*size).ok()?));
    if total.is_none_or(|total| total > categories.len()) {
        return Err(format!("its nodes have more categories than the {} of the tree", categories.len()));
    }
    let mut sets = Vec::with_capacity(nodes.len());
    for ((node, begin), size) in nodes.into_iter().zip(segments).zip(sizes) {
        let range = usize::try_from(begin).ok().zip(usize::try_from(size).ok());
        let range = range.and_then(|(begin, size)| categories.get(begin..begin.checked_add(size)?));
        let range = range.ok_or_else(|| format!("the categories of node {node} are {size} from {begin} on"))?;
        let members: Result<Vec<u32>, _> = range.iter().map(|category| u32::try_from(*category)).collect();
        let members = members.map_err(|_| format!("a category of node {node} is negative"))?;
        sets.push((node, Some(CategorySet::new(members, CATEGORY_MAX))));
    }
    sets.sort_by_key(|(node, _)| *node);
    Ok(sets)
}

fn take_categories(sets: &mut [(i32, Option<CategorySet>)], node: usize) -> Result<CategorySet, String> {
    let place = i32::try_from(node).ok().and_then(|node| sets.binary_search_by_key(&node, |(node, _)| *node).ok());
    let set = place.and_then(|place| sets.get_mut(place)).and_then(|(_, set)| set.take());
    set.ok_or_else(|| format!("node {node} is a categorical split without categories"))
}
