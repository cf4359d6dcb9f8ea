//! Treelite's checkpoint, version 4 (`docs/serialization/v4.rst` of Treelite): little-endian
//! fields, an array after its length. scikit-learn's models have this format.
//!
//! Sums are FP32 or FP64, as the leaves are, from zero, in the order of the trees; then averages;
//! then the base scores, which are FP64 and are added as such. GTIL, Treelite's own reference and
//! the CPU path of Triton's FIL backend, does the same.

use crate::trees::field_reader::FieldReader;
use crate::trees::value::excerpt;
use crate::trees::{
    Arithmetic, CategorySet, DecisionTree, ScoreLink, SplitTest, TreeFault, TreeFormat, TreeModel, TreeNode,
    TreeOutput, TreeSplit, bounded, features, outputs,
};
use base::limits::TREE_OUTPUTS_MAX;

/// Reads a model.
///
/// # Errors
///
/// If the file is cut off, a field has another size or value, or the model is of a kind that is not
/// served.
pub(super) fn decode(file: &[u8]) -> Result<TreeModel, TreeFault> {
    let mut reader = FieldReader::new(file);
    let [major, minor, patch] = [reader.int()?, reader.int()?, reader.int()?];
    if major != 4 {
        return Err(TreeFault::Unsupported(format!(
            "it is of version {major}.{minor}.{patch}, and only version 4 is read; write it anew with Treelite 4"
        )));
    }
    let arithmetic = match (reader.byte()?, reader.byte()?) {
        (2, 2) => Arithmetic::Single,
        (3, 3) => Arithmetic::Double,
        (threshold, leaf) => {
            return Err(format!(
                "its thresholds are of type {threshold} and its leaves of type {leaf}, expected 2 or 3"
            )
            .into());
        }
    };
    let tree_count = reader.count("its number of trees", 1)?;
    let header = CheckpointHeader::read(&mut reader, tree_count)?;
    reader.skip_optional()?;
    let mut trees = Vec::new();
    for index in 0..tree_count {
        let tree = decode_tree(&mut reader, arithmetic, header.output(index)?);
        trees.push(tree.map_err(|why| format!("tree {index}: {why}"))?);
    }
    if !reader.rest().is_empty() {
        return Err(format!("{} bytes follow its last tree", reader.rest().len()).into());
    }
    header.into_model(arithmetic, trees)
}

/// The fields before the trees.
struct CheckpointHeader {
    feature_count: usize,
    is_average: bool,
    target_count: usize,
    class_count: usize,
    leaf_shape: [usize; 2],
    targets: Vec<i32>,
    classes: Vec<i32>,
    link: ScoreLink,
    offsets: Vec<f64>,
}

impl CheckpointHeader {
    fn read(reader: &mut FieldReader<'_>, tree_count: usize) -> Result<Self, TreeFault> {
        let feature_count = features(reader.int()?.into())?;
        // The kind of task adds nothing to the outputs and their function.
        reader.byte()?;
        let is_average = reader.byte()? != 0;
        let target_count = outputs("its number of targets", reader.int()?.into())?;
        let classes = reader.ints()?;
        if classes.len() != target_count {
            return Err(format!("it has {target_count} targets and {} numbers of classes", classes.len()).into());
        }
        let class_count = outputs("its number of classes", classes.iter().copied().max().unwrap_or(0).into())?;
        if classes.iter().any(|classes| usize::try_from(*classes).ok() != Some(class_count)) {
            return Err(TreeFault::Unsupported("its targets have different numbers of classes".to_owned()));
        }
        bounded("its number of outputs", (target_count.saturating_mul(class_count)) as i64, 1, TREE_OUTPUTS_MAX)?;
        let shape = reader.ints()?;
        let &[rows, columns] = shape.as_slice() else {
            return Err(format!("the shape of its leaves has {} sizes, expected 2", shape.len()).into());
        };
        let leaf_shape =
            [outputs("a size of its leaves", rows.into())?, outputs("a size of its leaves", columns.into())?];
        let [targets, classes] = [reader.ints()?, reader.ints()?];
        if targets.len() != tree_count || classes.len() != tree_count {
            let lengths = format!("{} targets and {} classes", targets.len(), classes.len());
            return Err(format!("it has {tree_count} trees, but {lengths} of trees").into());
        }
        let name = reader.text()?.to_owned();
        let [alpha, ratio] = [reader.float()?, reader.float()?];
        let link = link_of(&name, alpha, ratio)?;
        let offsets = reader.doubles()?;
        reader.text()?;
        Ok(Self { feature_count, is_average, target_count, class_count, leaf_shape, targets, classes, link, offsets })
    }

    /// The outputs that the leaves of a tree are added to; -1 stands for all targets or classes.
    fn output(&self, tree: usize) -> Result<TreeOutput, String> {
        let Self { target_count, class_count, leaf_shape, .. } = self;
        let owner = |list: &[i32]| list.get(tree).copied().unwrap_or(-1);
        let (target, class) = (owner(&self.targets), owner(&self.classes));
        let wrong = || format!("tree {tree} is for target {target} and class {class}");
        let index =
            |value: i32, count: usize| usize::try_from(value).ok().filter(|value| *value < count).ok_or_else(wrong);
        let (output, shape) = match (target, class) {
            (-1, -1) => {
                let width = target_count.saturating_mul(*class_count);
                (TreeOutput { first: 0, stride: 1, width }, [*target_count, *class_count])
            }
            (-1, class) => {
                let first = index(class, *class_count)?;
                (TreeOutput { first, stride: *class_count, width: *target_count }, [*target_count, 1])
            }
            (target, -1) => {
                let first = index(target, *target_count)?.saturating_mul(*class_count);
                (TreeOutput { first, stride: 1, width: *class_count }, [1, *class_count])
            }
            (target, class) => {
                let first = index(target, *target_count)?.saturating_mul(*class_count);
                (TreeOutput::single(first.saturating_add(index(class, *class_count)?)), [1, 1])
            }
        };
        if shape == *leaf_shape {
            Ok(output)
        } else {
            Err(format!("{}, whose leaves have the shape {leaf_shape:?}", wrong()))
        }
    }

    fn into_model(self, arithmetic: Arithmetic, trees: Vec<DecisionTree>) -> Result<TreeModel, TreeFault> {
        let mut divisors = vec![0.0; self.target_count.saturating_mul(self.class_count)];
        for tree in &trees {
            let TreeOutput { first, stride, width } = tree.output;
            for sum in divisors.iter_mut().skip(first).step_by(stride.max(1)).take(width) {
                *sum += 1.0;
            }
        }
        Ok(TreeModel {
            format: TreeFormat::Treelite,
            feature_count: self.feature_count,
            target_count: self.target_count,
            class_count: self.class_count,
            arithmetic,
            trees,
            start: Vec::new(),
            divisors: if self.is_average { divisors } else { Vec::new() },
            offsets: self.offsets,
            link: self.link,
        })
    }
}

fn link_of(name: &str, alpha: f32, ratio: f32) -> Result<ScoreLink, TreeFault> {
    Ok(match name {
        "identity" | "identity_multiclass" => ScoreLink::Identity,
        "signed_square" => ScoreLink::SignedSquare,
        "hinge" => ScoreLink::Hinge,
        "sigmoid" => ScoreLink::Sigmoid(alpha.into()),
        "exponential" => ScoreLink::Exponential,
        "exponential_standard_ratio" => ScoreLink::ExponentialRatio(ratio),
        "logarithm_one_plus_exp" => ScoreLink::LogOnePlusExp,
        "softmax" => ScoreLink::Softmax,
        "multiclass_ova" => ScoreLink::OneVersusAll(alpha.into()),
        _ => return Err(TreeFault::Unsupported(format!("postprocessor '{}'", excerpt(name)))),
    })
}

/// The arrays of a tree.
struct CheckpointTree {
    kinds: Vec<u8>,
    left: Vec<i32>,
    right: Vec<i32>,
    features: Vec<i32>,
    default_left: Vec<u8>,
    values: Vec<f64>,
    thresholds: Vec<f64>,
    operators: Vec<u8>,
    /// 1 for each split whose right child is that of the categories in the list.
    list_right: Vec<u8>,
    vectors: Vec<f64>,
    vector_ranges: [Vec<u64>; 2],
    categories: Vec<u32>,
    category_ranges: [Vec<u64>; 2],
    /// The largest value that is a category.
    category_max: f64,
}

fn decode_tree(
    reader: &mut FieldReader<'_>,
    arithmetic: Arithmetic,
    output: TreeOutput,
) -> Result<DecisionTree, String> {
    let count = reader.int()?;
    // The flag for categorical splits, which the nodes repeat.
    reader.byte()?;
    let arrays = CheckpointTree {
        kinds: reader.bytes()?,
        left: reader.ints()?,
        right: reader.ints()?,
        features: reader.ints()?,
        default_left: reader.bytes()?,
        values: reader.reals(arithmetic)?,
        thresholds: reader.reals(arithmetic)?,
        operators: reader.bytes()?,
        list_right: reader.bytes()?,
        vectors: reader.reals(arithmetic)?,
        vector_ranges: [reader.longs()?, reader.longs()?],
        categories: reader.array(|word| u32::from_le_bytes(*word))?,
        category_ranges: [reader.longs()?, reader.longs()?],
        category_max: match arithmetic {
            Arithmetic::Double => f64::from(u32::MAX),
            Arithmetic::Single => CATEGORY_MAX_SINGLE,
        },
    };
    // Counts, Hessians and gains, each with flags of the ones that are present.
    for size in [8, 1, 8, 1, 8, 1] {
        reader.skip_array(size)?;
    }
    reader.skip_optional()?;
    reader.skip_optional()?;
    let count = bounded("its number of nodes", count.into(), 1, arrays.kinds.len())?;
    let mut tree = DecisionTree { output, ..DecisionTree::default() };
    let mut taken = 0_usize;
    for index in 0..count {
        let node = arrays.node(index, &mut tree, &mut taken);
        tree.nodes.push(node.ok_or_else(|| format!("node {index} lacks a field, or has one that is out of range"))?);
    }
    Ok(tree)
}

impl CheckpointTree {
    /// A node; `None` if the file lacks a part of it. `taken` counts the categories of all nodes:
    /// lists that overlap would become much larger in memory than in the file.
    fn node(&self, index: usize, tree: &mut DecisionTree, taken: &mut usize) -> Option<TreeNode> {
        match self.kinds.get(index)? {
            0 => self.leaf(index, tree),
            kind @ (1 | 2) => {
                let child = |list: &[i32]| u32::try_from(*list.get(index)?).ok();
                let (mut left, mut right) = (child(&self.left)?, child(&self.right)?);
                let feature = child(&self.features)?;
                let mut default_left = *self.default_left.get(index)? != 0;
                let test = if *kind == 1 {
                    let threshold = *self.thresholds.get(index)?;
                    match self.operators.get(index)? {
                        1 => SplitTest::Equal(threshold),
                        2 => SplitTest::Below(threshold),
                        3 => SplitTest::AtMost(threshold),
                        4 => SplitTest::Above(threshold),
                        5 => SplitTest::AtLeast(threshold),
                        _ => return None,
                    }
                } else {
                    let list = range(&self.categories, &self.category_ranges, index)?;
                    *taken = taken.checked_add(list.len()).filter(|taken| *taken <= self.categories.len())?;
                    if *self.list_right.get(index)? != 0 {
                        (left, right, default_left) = (right, left, !default_left);
                    }
                    SplitTest::In(Box::new(CategorySet::new(list.to_vec(), self.category_max)))
                };
                Some(TreeNode::Split(TreeSplit { feature, test, default_left, left, right }))
            }
            _ => None,
        }
    }

    fn leaf(&self, index: usize, tree: &mut DecisionTree) -> Option<TreeNode> {
        let width = tree.output.width;
        let leaf = u32::try_from(tree.values.len().checked_div(width)?).ok()?;
        let vector = range(&self.vectors, &self.vector_ranges, index).unwrap_or_default();
        if vector.is_empty() && width == 1 {
            tree.values.push(*self.values.get(index)?);
        } else if vector.len() == width && tree.values.len() < self.vectors.len() {
            tree.values.extend_from_slice(vector);
        } else {
            return None;
        }
        Some(TreeNode::Leaf(leaf))
    }
}

/// The largest category of GTIL in FP32: beyond it, FP32 skips integers.
const CATEGORY_MAX_SINGLE: f64 = 16_777_216.0;

fn range<'a, T>(all: &'a [T], [begin, end]: &[Vec<u64>; 2], index: usize) -> Option<&'a [T]> {
    let at = |bounds: &[u64]| usize::try_from(*bounds.get(index)?).ok();
    all.get(at(begin)?..at(end)?)
}
