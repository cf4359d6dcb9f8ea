//! A model's trees as they are run. All nodes are in one array, breadth-first and siblings side by side, 12 bytes each. A
//! step is the same for every node, without a branch on its outcome: a leaf leads to itself, by a feature that is always
//! missing. So several ways are walked at once, and the processor does not wait for each.
//!
//! Inputs are FP32, so that a test against a double is one against a single: `x <= t` holds for the same FP32 values as
//! `x < u`, where `u` is the least FP32 above `t`. All tests become `x < u`; those that cannot are looked up in a table, in
//! trees that have such ones.

use crate::backend::trees::real::Real;
use crate::limits::TREE_STEPS_TOGETHER;
use crate::model::trees::{CategorySet, DecisionTree, SplitTest, TreeModel, TreeNode, TreeOutput, TreeSplit};

/// A node: a test, or a leaf that leads to itself.
#[derive(Clone, Copy, Debug)]
struct ForestNode {
    /// The feature is right of it if it is not below; the bits of a leaf's number; the number of a special test.
    threshold: f32,
    /// The feature, and the flags below.
    feature: u32,
    /// The node that a feature below the threshold leads to. The other is behind it.
    left: u32,
}

/// A missing feature goes right.
const DEFAULT_RIGHT: u32 = 1 << 31;
/// The test is in the table.
const SPECIAL: u32 = 1 << 30;
/// The rest is the feature.
const FEATURE: u32 = SPECIAL - 1;

/// A tree's place in the array of nodes.
#[derive(Clone, Copy, Debug)]
struct ForestTree {
    root: u32,
    /// Steps from the root to the farthest leaf.
    depth: u32,
    is_special: bool,
    output: TreeOutput,
}

/// A test that is no comparison with one number.
#[derive(Debug)]
enum SpecialTest {
    AtMost(f64),
    AtMostUnlessZero(f64),
    Equal(f64),
    In(CategorySet),
}

impl SpecialTest {
    fn goes_left(&self, value: f32, default_left: bool) -> bool {
        let wide = f64::from(value);
        match self {
            _ if value.is_nan() => default_left,
            Self::AtMostUnlessZero(_) if wide.abs() <= ZERO_MAX => default_left,
            Self::AtMost(threshold) | Self::AtMostUnlessZero(threshold) => wide <= *threshold,
            #[expect(clippy::float_cmp, reason = "it is what the model says")]
            Self::Equal(threshold) => wide == *threshold,
            Self::In(set) => set.contains(value),
        }
    }
}

/// LightGBM's `kZeroThreshold`, a float.
const ZERO_MAX: f64 = 1e-35_f32 as f64;

/// The trees of a model, and the sums that their leaves make. `F` is the type of the sums.
#[derive(Debug)]
pub(super) struct Forest<F> {
    nodes: Vec<ForestNode>,
    trees: Vec<ForestTree>,
    specials: Vec<SpecialTest>,
    /// The values of all leaves.
    values: Vec<F>,
    feature_count: usize,
    output_count: usize,
    /// What sums begin with.
    start: Vec<F>,
    /// What each is divided by; empty for nothing.
    divisors: Vec<F>,
    /// What is added at the end; empty for nothing.
    offsets: Vec<f64>,
}

impl<F: Real> Forest<F> {
    /// Lays out a model, which was checked when it was read.
    pub(super) fn new(model: &TreeModel) -> Self {
        let real = |list: &[f64]| list.iter().copied().map(F::from_f64).collect();
        let mut forest = Self {
            nodes: Vec::with_capacity(model.trees.iter().map(|tree| tree.nodes.len()).sum()),
            trees: Vec::with_capacity(model.trees.len()),
            specials: Vec::new(),
            values: Vec::new(),
            feature_count: model.feature_count,
            output_count: model.output_count(),
            start: real(&model.start),
            divisors: real(&model.divisors),
            offsets: model.offsets.clone(),
        };
        model.trees.iter().for_each(|tree| forest.push(tree));
        forest
    }

    /// Steps of a row, at most.
    pub(super) fn steps(&self) -> usize {
        self.trees.iter().map(|tree| tree.depth as usize + 1).sum()
    }

    fn push(&mut self, tree: &DecisionTree) {
        let root = next_index(&self.nodes);
        let first_value = self.values.len();
        let (specials, mut depth) = (self.specials.len(), 0);
        self.values.extend(tree.values.iter().copied().map(F::from_f64));
        let mut level: Vec<u32> = if tree.nodes.is_empty() { Vec::new() } else { vec![0] };
        // Children get their places when the level above is laid out.
        let mut next = root.saturating_add(1);
        while !level.is_empty() {
            let mut below = Vec::new();
            for at in level {
                let laid = match tree.nodes.get(at as usize) {
                    Some(TreeNode::Split(split)) => {
                        let (node, children) = self.split(split, next);
                        next = next.saturating_add(2);
                        below.extend(children);
                        node
                    }
                    Some(TreeNode::Leaf(leaf)) => {
                        let value = first_value.saturating_add(*leaf as usize * tree.output.width);
                        self.leaf(value)
                    }
                    None => self.leaf(first_value),
                };
                self.nodes.push(laid);
            }
            depth += u32::from(!below.is_empty());
            level = below;
        }
        let is_special = self.specials.len() > specials;
        self.trees.push(ForestTree { root, depth, is_special, output: tree.output });
    }

    fn leaf(&self, value: usize) -> ForestNode {
        let (number, feature) = (u32::try_from(value), u32::try_from(self.feature_count));
        ForestNode {
            threshold: f32::from_bits(number.expect("values are bounded by TREE_NODES_MAX and TREE_OUTPUTS_MAX")),
            feature: feature.expect("features are bounded by TREE_FEATURES_MAX"),
            left: next_index(&self.nodes),
        }
    }

    /// A test whose children begin at `left`, and the children of the tree in the order in which they are laid there.
    fn split(&mut self, split: &TreeSplit, left: u32) -> (ForestNode, [u32; 2]) {
        let children = [split.left, split.right];
        let swapped = [split.right, split.left];
        let (threshold, default_left, children) = match split.test {
            SplitTest::Below(t) => (Some(least_not_below(t)), split.default_left, children),
            SplitTest::AtMost(t) => (least_above(t), split.default_left, children),
            SplitTest::AtLeast(t) => (Some(least_not_below(t)), !split.default_left, swapped),
            SplitTest::Above(t) => (least_above(t), !split.default_left, swapped),
            SplitTest::Equal(_) | SplitTest::AtMostUnlessZero(_) | SplitTest::In(_) => {
                (None, split.default_left, children)
            }
        };
        let mut feature = split.feature | if default_left { 0 } else { DEFAULT_RIGHT };
        let threshold = threshold.unwrap_or_else(|| {
            feature |= SPECIAL;
            let number = u32::try_from(self.specials.len()).expect("nodes are bounded by TREE_NODES_MAX");
            self.specials.push(match &split.test {
                SplitTest::In(set) => SpecialTest::In(set.clone()),
                SplitTest::Equal(t) => SpecialTest::Equal(*t),
                SplitTest::AtMostUnlessZero(t) => SpecialTest::AtMostUnlessZero(*t),
                SplitTest::Below(t) | SplitTest::AtMost(t) | SplitTest::Above(t) | SplitTest::AtLeast(t) => {
                    SpecialTest::AtMost(*t)
                }
            });
            f32::from_bits(number)
        });
        (ForestNode { threshold, feature, left }, children)
    }

    /// Adds the leaves of a block of rows to their sums, and finishes the sums. Each row of `block.rows` is its features and
    /// a NaN behind them.
    pub(super) fn sum(&self, block: &mut RowBlock<F>) {
        let RowBlock { rows, sums, count } = block;
        let width = self.feature_count + 1;
        sums.clear();
        for _ in 0..*count {
            sums.extend_from_slice(&self.start);
            sums.resize(sums.len() + self.output_count - self.start.len(), F::ZERO);
        }
        let (groups, rest) = rows.split_at(*count / LANES * LANES * width);
        let (group_sums, rest_sums) = sums.split_at_mut(*count / LANES * LANES * self.output_count);
        // A tree stays in the nearest cache while all rows pass it.
        for tree in self.trees.iter().filter(|_| !groups.is_empty()) {
            let (rows, sums) =
                (groups.chunks_exact(LANES * width), group_sums.chunks_exact_mut(LANES * self.output_count));
            for (rows, sums) in rows.zip(sums) {
                let mut lanes = rows.chunks_exact(width);
                let lanes: [&[f32]; LANES] = std::array::from_fn(|_| lanes.next().unwrap_or_default());
                let ends = self.walk([tree.root; LANES], lanes, tree.depth, tree.is_special);
                for (end, sums) in ends.into_iter().zip(sums.chunks_exact_mut(self.output_count)) {
                    self.add(tree.output, end, sums);
                }
            }
        }
        for (row, sums) in rest.chunks_exact(width).zip(rest_sums.chunks_exact_mut(self.output_count)) {
            self.sum_row(row, sums);
        }
        for sums in sums.chunks_exact_mut(self.output_count) {
            sums.iter_mut().zip(&self.divisors).for_each(|(sum, divisor)| *sum = sum.divided_by(*divisor));
            sums.iter_mut().zip(&self.offsets).for_each(|(sum, offset)| *sum = sum.plus_double(*offset));
        }
    }

    /// One row, through several trees at once. Their leaves are added in the order of the trees.
    fn sum_row(&self, row: &[f32], sums: &mut [F]) {
        for trees in self.trees.chunks(LANES) {
            let (mut depth, mut is_special, mut roots) = (0, false, [0; LANES]);
            for (root, tree) in roots.iter_mut().zip(trees.iter().chain(std::iter::repeat(&trees[0]))) {
                (*root, depth, is_special) = (tree.root, depth.max(tree.depth), is_special | tree.is_special);
            }
            let ends = self.walk(roots, [row; LANES], depth, is_special);
            for (tree, end) in trees.iter().zip(ends) {
                self.add(tree.output, end, sums);
            }
        }
    }

    fn add(&self, output: TreeOutput, end: u32, sums: &mut [F]) {
        let leaf = self.nodes.get(end as usize).map_or(0, |node| node.threshold.to_bits() as usize);
        if output.width == 1 {
            if let (Some(sum), Some(value)) = (sums.get_mut(output.first), self.values.get(leaf)) {
                *sum = sum.plus(*value);
            }
            return;
        }
        let values = self.values.get(leaf..).unwrap_or_default().iter().take(output.width);
        let sums = sums.iter_mut().skip(output.first).step_by(output.stride);
        sums.zip(values).for_each(|(sum, value)| *sum = sum.plus(*value));
    }

    fn walk(&self, at: [u32; LANES], rows: [&[f32]; LANES], depth: u32, is_special: bool) -> [u32; LANES] {
        if is_special { self.walk_any::<true>(at, rows, depth) } else { self.walk_any::<false>(at, rows, depth) }
    }

    /// Walks from nodes to leaves. Where trees are deep, looks now and then whether all lanes have arrived.
    fn walk_any<const HAS_SPECIAL: bool>(
        &self,
        mut at: [u32; LANES],
        rows: [&[f32]; LANES],
        depth: u32,
    ) -> [u32; LANES] {
        let mut left = depth;
        while left > 0 {
            let before = at;
            for _ in 0..left.min(TREE_STEPS_TOGETHER) {
                for (at, row) in at.iter_mut().zip(rows) {
                    *at = self.step::<HAS_SPECIAL>(*at, row);
                }
            }
            left = left.saturating_sub(TREE_STEPS_TOGETHER);
            if left > 0 && before == at {
                break;
            }
        }
        at
    }

    #[inline(always)]
    fn step<const HAS_SPECIAL: bool>(&self, at: u32, row: &[f32]) -> u32 {
        // Neither index is ever out of range; the checks are cheaper than what the processor waits for anyway.
        let Some(node) = self.nodes.get(at as usize) else { return at };
        let Some(value) = row.get((node.feature & FEATURE) as usize) else { return at };
        let goes_right = if HAS_SPECIAL && node.feature & SPECIAL != 0 {
            let special = self.specials.get(node.threshold.to_bits() as usize);
            !special.is_some_and(|special| special.goes_left(*value, node.feature & DEFAULT_RIGHT == 0))
        } else {
            (*value >= node.threshold) | (value.is_nan() & (node.feature & DEFAULT_RIGHT != 0))
        };
        node.left.wrapping_add(goes_right.into())
    }
}

/// How many ways are walked at once.
const LANES: usize = 8;

/// Rows in the order of a batch, and what they sum up to.
#[derive(Debug)]
pub(super) struct RowBlock<F> {
    /// The features of each row, and a NaN.
    rows: Vec<f32>,
    /// The sums of each row.
    pub(super) sums: Vec<F>,
    count: usize,
}

impl<F> RowBlock<F> {
    pub(super) const fn new() -> Self {
        Self { rows: Vec::new(), sums: Vec::new(), count: 0 }
    }

    /// Takes in rows of features that lie one behind the other.
    pub(super) fn fill<'r>(&mut self, rows: impl Iterator<Item = &'r [f32]>) {
        (self.count, _) = (0, self.rows.clear());
        for row in rows {
            self.rows.extend_from_slice(row);
            self.rows.push(f32::NAN);
            self.count += 1;
        }
    }
}

/// Rows of a block, of which a number of bytes has so many: whole groups of ways, and one at least.
pub(super) const fn whole_groups(rows: usize) -> usize {
    if rows < LANES { LANES } else { rows / LANES * LANES }
}

fn next_index(nodes: &[ForestNode]) -> u32 {
    u32::try_from(nodes.len()).expect("nodes are bounded by TREE_NODES_MAX")
}

/// The least FP32 that is not below a double: `x < t` and `x < u` hold for the same FP32 values.
#[expect(clippy::cast_possible_truncation, reason = "rounded, then corrected")]
fn least_not_below(threshold: f64) -> f32 {
    let rounded = threshold as f32;
    if f64::from(rounded) < threshold { rounded.next_up() } else { rounded }
}

/// The least FP32 above a double: `x <= t` and `x < u` hold for the same FP32 values. None for infinity, above which
/// nothing is.
#[expect(clippy::cast_possible_truncation, reason = "rounded, then corrected")]
fn least_above(threshold: f64) -> Option<f32> {
    if threshold == f64::INFINITY {
        return None;
    }
    let rounded = threshold as f32;
    Some(if f64::from(rounded) <= threshold { rounded.next_up() } else { rounded })
}
