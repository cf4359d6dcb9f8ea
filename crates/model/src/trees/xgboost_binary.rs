//! XGBoost's old binary format: the default of `save_model` until 2.0, and gone since 3.1. There is no schema; it is the
//! memory of XGBoost's structs, little-endian (`LearnerIO::LoadModel`, `GBTreeModel::Load`, `RegTree::Load` of 0.90, 1.7
//! and 3.0):
//!
//! | field | size |
//! |---|---|
//! | `binf`, absent before 1.1 | 4 |
//! | learner: base score, features, classes, two flags, version (0 before 1.0), targets, reserved | 136 |
//! | objective, booster | a text each |
//! | trees: their number, reserved | 160 |
//! | each tree: roots, nodes, deleted ones, depth, features, values of a leaf, reserved | 148 |
//! | – each node: parent, left, right, feature and default direction, threshold or leaf value | 20 |
//! | – each node: statistics | 16 |
//! | each tree: the output that it belongs to | 4 |
//! | `dart`: an array of the trees' weights | |
//!
//! Attributes and metrics follow, which change no answer. It has no categorical splits and no leaves of several values.

use crate::trees::field_reader::FieldReader;
use crate::trees::xgboost::{BaseMargin, objective_of, output_counts, tree_model, unserved_booster, weighted};
use crate::trees::{
    DecisionTree, SplitTest, TreeFault, TreeFormat, TreeModel, TreeNode, TreeOutput, TreeSplit, features,
};

/// The first bytes of a file since XGBoost 1.1.
const MARK: &[u8] = b"binf";

/// Bytes of a node, and of its statistics.
const NODE_SIZE: usize = 20;
const STATISTICS_SIZE: usize = 16;

/// Bytes of the longest name of an objective or booster, several times over.
const NAME_SIZE_MAX: usize = 64;

/// Returns true if a file begins as this format: by its mark, or where an older one has the names.
pub(super) fn is_file(file: &[u8]) -> bool {
    if file.starts_with(MARK) {
        return true;
    }
    let mut reader = FieldReader::new(file);
    let is_name = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || matches!(byte, b':' | b'_');
        !name.is_empty() && name.len() <= NAME_SIZE_MAX && name.bytes().all(is_plain)
    };
    reader.take(LEARNER_SIZE).is_ok()
        && reader.text().is_ok_and(is_name)
        && reader.text().is_ok_and(|name| matches!(name, "dart" | "gblinear" | "gbtree"))
}

/// Bytes of the learner's fields.
const LEARNER_SIZE: usize = 136;

/// Reads a model.
///
/// # Errors
///
/// If the file is cut off, or has a field of another value, or the model is of a kind that is not served.
pub(super) fn decode(file: &[u8]) -> Result<TreeModel, TreeFault> {
    let mut reader = FieldReader::new(file.strip_prefix(MARK).unwrap_or(file));
    let base_score = reader.float()?;
    let feature_count = features(reader.unsigned()?.into())?;
    let classes = reader.int()?;
    // Flags of the attributes and of the metrics.
    reader.take(8)?;
    let [major, _minor] = [reader.int()?, reader.int()?];
    let targets = reader.int()?;
    reader.take(26 * 4)?;
    let (link, margin) = objective_of(reader.text()?)?;
    let has_weights = match reader.text()? {
        "gbtree" => false,
        "dart" => true,
        other => return Err(unserved_booster(other)),
    };
    let (class_count, target_count) = output_counts(classes.into(), targets.into())?;
    // Before 1.0 the field is the sum already.
    let margin = if major < 1 { BaseMargin::Identity } else { margin };
    let start = vec![margin.of(base_score)?; class_count.max(target_count)];
    let mut trees = decode_trees(&mut reader)?;
    for (index, tree) in trees.iter_mut().enumerate() {
        let owner = reader.int()?;
        let owner = usize::try_from(owner).map_err(|_| format!("tree {index} is for output {owner}"))?;
        tree.output = TreeOutput::single(owner);
    }
    if has_weights && !trees.is_empty() {
        let weights = reader.floats()?;
        if weights.len() != trees.len() {
            return Err(format!("it has {} weights for {} trees", weights.len(), trees.len()).into());
        }
        for (tree, weight) in trees.iter_mut().zip(weights) {
            tree.values.iter_mut().for_each(|value| *value = weighted(*value, weight));
        }
    }
    Ok(tree_model(TreeFormat::XgboostBinary, feature_count, (class_count, target_count), (trees, start, link)))
}

fn decode_trees(reader: &mut FieldReader<'_>) -> Result<Vec<DecisionTree>, TreeFault> {
    let count = reader.int()?;
    let count = usize::try_from(count).map_err(|_| format!("its number of trees is {count}"))?;
    reader.take(39 * 4)?;
    let mut trees = Vec::new();
    for index in 0..count {
        trees.push(decode_tree(reader).map_err(|fault| fault.within(&format!("tree {index}")))?);
    }
    Ok(trees)
}

fn decode_tree(reader: &mut FieldReader<'_>) -> Result<DecisionTree, TreeFault> {
    let [roots, count] = [reader.int()?, reader.int()?];
    // The deleted nodes, the depth and the features.
    reader.take(3 * 4)?;
    let leaf_width = reader.int()?;
    reader.take(31 * 4)?;
    if roots > 1 {
        return Err(TreeFault::Unsupported(format!("it has {roots} roots")));
    }
    if leaf_width > 1 {
        return Err(TreeFault::Unsupported(format!("its leaves have {leaf_width} values")));
    }
    let size = |size| usize::try_from(count).ok().and_then(|count| count.checked_mul(size));
    let sizes = size(NODE_SIZE).zip(size(STATISTICS_SIZE)).filter(|_| count > 0);
    let (nodes, statistics) = sizes.ok_or_else(|| format!("its number of nodes is {count}"))?;
    let (nodes, _) = reader.take(nodes)?.as_chunks::<NODE_SIZE>();
    reader.take(statistics)?;
    let mut tree = DecisionTree::default();
    for (index, node) in nodes.iter().enumerate() {
        let node = decode_node(node, &mut tree.values).map_err(|why| format!("{why} of node {index}"))?;
        tree.nodes.push(node);
    }
    Ok(tree)
}

/// A node. A deleted one is a leaf that is never reached.
fn decode_node(node: &[u8; NODE_SIZE], values: &mut Vec<f64>) -> Result<TreeNode, String> {
    let mut reader = FieldReader::new(node);
    let [_parent, left, right] = [reader.int()?, reader.int()?, reader.int()?];
    let feature = reader.unsigned()?;
    let value = f64::from(reader.float()?);
    if left == -1 {
        let leaf = u32::try_from(values.len()).map_err(|_| "the leaf".to_owned())?;
        values.push(value);
        return Ok(TreeNode::Leaf(leaf));
    }
    let child = |what: &str, node: i32| u32::try_from(node).map_err(|_| format!("{what} {node}"));
    Ok(TreeNode::Split(TreeSplit {
        feature: feature & !DEFAULT_LEFT,
        test: SplitTest::Below(value),
        default_left: feature & DEFAULT_LEFT != 0,
        left: child("left child", left)?,
        right: child("right child", right)?,
    }))
}

/// The bit of a feature's number that sends missing values to the left.
const DEFAULT_LEFT: u32 = 1 << 31;
