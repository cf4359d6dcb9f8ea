//! A model's trees in their form for running. All nodes are in one array, breadth-first and
//! siblings side by side, 12 bytes each. A step is the same for every node, without a branch on its
//! outcome: a leaf leads to itself, by a feature that is always missing. So several paths are
//! walked at once, and the processor does not wait for each.
//!
//! Each feature is in a row twice: once for tests that send a missing value left, and once, with
//! infinity for a missing value, for tests that send it right. So no step checks for missing
//! values.
//!
//! Inputs are FP32, so a test against a double equals one against a single: `x <= t` holds for the
//! same FP32 values as `x < u`, where `u` is the least FP32 above `t`. All tests become `x < u`.
//! Those that cannot are looked up in a table, in the trees that have them.

use crate::trees::real::Real;
use model::trees::{DecisionTree, SplitTest, TreeModel, TreeNode, TreeOutput, TreeSplit};

/// Steps down a tree before a check for the end of all parallel ways: it costs about a step.
const TREE_STEPS_TOGETHER: u32 = 4;
/// Bytes of the rows that pass a tree model's trees together: they and a tree stay in the nearest cache.
const TREE_BLOCK_SIZE: usize = 16 * 1024;

/// A node: a test, or a leaf that leads to itself.
#[derive(Clone, Copy, Debug)]
struct ForestNode {
    /// A value that is not below it goes right. Otherwise the bits of a leaf's number, or of a
    /// special test's number.
    threshold: f32,
    /// The index of the feature in a row, and the flag below.
    feature: u32,
    /// The node for a feature below the threshold. The other one is behind it.
    left: u32,
}

/// The test is in the table. The remaining bits are the index of the feature in a row.
const SPECIAL: u32 = 1 << 31;

/// A tree's place in the array of nodes.
#[derive(Clone, Copy, Debug)]
struct ForestTree {
    root: u32,
    /// Steps from the root to the farthest leaf.
    depth: u32,
    is_special: bool,
    output: TreeOutput,
}

/// A test that is not a comparison with one number.
#[derive(Debug)]
struct SpecialTest {
    test: SplitTest,
    default_left: bool,
}

impl SpecialTest {
    /// `value` comes from the feature's copy that keeps a missing value.
    fn goes_left(&self, value: f32) -> bool {
        let wide = f64::from(value);
        match &self.test {
            _ if value.is_nan() => self.default_left,
            SplitTest::AtMostUnlessZero(_) if wide.abs() <= ZERO_MAX => self.default_left,
            SplitTest::AtMost(threshold) | SplitTest::AtMostUnlessZero(threshold) => wide <= *threshold,
            SplitTest::Below(threshold) => wide < *threshold,
            SplitTest::Above(threshold) => wide > *threshold,
            SplitTest::AtLeast(threshold) => wide >= *threshold,
            #[expect(clippy::float_cmp, reason = "it is what the model says")]
            SplitTest::Equal(threshold) => wide == *threshold,
            SplitTest::In(set) => set.contains(value),
        }
    }
}

/// LightGBM's `kZeroThreshold`, a float.
const ZERO_MAX: f64 = 1e-35_f32 as f64;

/// The trees of a model, and the sums of their leaves. `F` is the type of the sums.
#[derive(Debug)]
pub(super) struct Forest<F> {
    nodes: Vec<ForestNode>,
    trees: Vec<ForestTree>,
    specials: Vec<SpecialTest>,
    /// The values of all leaves.
    values: Vec<F>,
    feature_count: usize,
    output_count: usize,
    /// The initial values of the sums.
    start: Vec<F>,
    /// The divisor of each sum; empty for none.
    divisors: Vec<F>,
    /// The offset added at the end; empty for none.
    offsets: Vec<f64>,
}

impl<F: Real> Forest<F> {
    /// Lays out a model that was checked by its reader.
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

    /// Returns the most steps of a row.
    pub(super) fn steps(&self) -> usize {
        self.trees.iter().map(|tree| tree.depth as usize + 1).sum()
    }

    fn push(&mut self, tree: &DecisionTree) {
        let root = next_index(&self.nodes);
        let first_value = self.values.len();
        let (specials, mut depth) = (self.specials.len(), 0);
        self.values.extend(tree.values.iter().copied().map(F::from_f64));
        let mut level: Vec<u32> = if tree.nodes.is_empty() { Vec::new() } else { vec![0] };
        // Children are placed when the level above is laid out.
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
        let (number, feature) = (u32::try_from(value), u32::try_from(row_width(self.feature_count) - 1));
        ForestNode {
            threshold: f32::from_bits(number.expect("values are bounded by TREE_NODES_MAX and TREE_OUTPUTS_MAX")),
            feature: feature.expect("features are bounded by TREE_FEATURES_MAX"),
            left: next_index(&self.nodes),
        }
    }

    /// Returns a test whose children begin at `left`, and the children of the tree in the order of
    /// their layout.
    fn split(&mut self, split: &TreeSplit, left: u32) -> (ForestNode, [u32; 2]) {
        let (children, swapped) = ([split.left, split.right], [split.right, split.left]);
        let (threshold, default_left, laid) = match split.test {
            SplitTest::Below(t) => (least_not_below(t), split.default_left, children),
            SplitTest::AtMost(t) => (least_above(t), split.default_left, children),
            SplitTest::AtLeast(t) => (least_not_below(t), !split.default_left, swapped),
            SplitTest::Above(t) => (least_above(t), !split.default_left, swapped),
            SplitTest::Equal(_) | SplitTest::AtMostUnlessZero(_) | SplitTest::In(_) => (None, true, children),
        };
        if let Some(threshold) = threshold {
            return (ForestNode { threshold, feature: split.feature * 2 + u32::from(!default_left), left }, laid);
        }
        let number = u32::try_from(self.specials.len()).expect("nodes are bounded by TREE_NODES_MAX");
        self.specials.push(SpecialTest { test: split.test.clone(), default_left: split.default_left });
        (ForestNode { threshold: f32::from_bits(number), feature: (split.feature * 2) | SPECIAL, left }, children)
    }

    /// Adds the leaves of a block of rows to their sums, and finishes the sums.
    pub(super) fn sum(&self, block: &mut RowBlock<F>) {
        let RowBlock { rows, sums, count } = block;
        let (width, outputs) = (row_width(self.feature_count), self.output_count);
        sums.clear();
        for _ in 0..*count {
            sums.extend_from_slice(&self.start);
            sums.resize(sums.len() + outputs - self.start.len(), F::ZERO);
        }
        let grouped = *count / LANES * LANES;
        let (groups, rest) = rows.split_at(grouped * width);
        let (group_sums, rest_sums) = sums.split_at_mut(grouped * outputs);
        // A tree stays in the nearest cache while all rows pass through it.
        for tree in self.trees.iter().filter(|_| grouped > 0) {
            let groups = groups.chunks_exact(LANES * width);
            for (rows, sums) in groups.zip(group_sums.chunks_exact_mut(LANES * outputs)) {
                let ends = self.walk::<false>([tree.root; LANES], rows, tree.depth, tree.is_special);
                for (end, sums) in ends.into_iter().zip(sums.chunks_exact_mut(outputs)) {
                    self.add(tree.output, end, sums);
                }
            }
        }
        for (row, sums) in rest.chunks_exact(width).zip(rest_sums.chunks_exact_mut(outputs)) {
            self.sum_row(row, sums);
        }
        for sums in sums.chunks_exact_mut(outputs) {
            sums.iter_mut().zip(&self.divisors).for_each(|(sum, divisor)| *sum = sum.divided_by(*divisor));
            sums.iter_mut().zip(&self.offsets).for_each(|(sum, offset)| *sum = sum.plus_double(*offset));
        }
    }

    /// Sums one row, through several trees at once. Their leaves are added in the order of the
    /// trees.
    fn sum_row(&self, row: &[f32], sums: &mut [F]) {
        for trees in self.trees.chunks(LANES) {
            let (mut depth, mut is_special, mut roots) = (0, false, [trees.first().map_or(0, |tree| tree.root); LANES]);
            for (root, tree) in roots.iter_mut().zip(trees) {
                (*root, depth, is_special) = (tree.root, depth.max(tree.depth), is_special | tree.is_special);
            }
            let ends = self.walk::<true>(roots, row, depth, is_special);
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

    /// Walks from nodes to leaves: several trees for one row, or one tree for `LANES` rows.
    fn walk<const ONE_ROW: bool>(&self, at: [u32; LANES], rows: &[f32], depth: u32, is_special: bool) -> [u32; LANES] {
        match is_special {
            true => self.walk_any::<ONE_ROW, true>(at, rows, depth),
            false => self.walk_any::<ONE_ROW, false>(at, rows, depth),
        }
    }

    /// In deep trees, checks from time to time if all paths have ended.
    fn walk_any<const ONE_ROW: bool, const HAS_SPECIAL: bool>(
        &self,
        mut at: [u32; LANES],
        rows: &[f32],
        depth: u32,
    ) -> [u32; LANES] {
        let mut left = depth;
        let stride = if ONE_ROW { 0 } else { row_width(self.feature_count) };
        while left > 0 {
            let before = at;
            for _ in 0..left.min(TREE_STEPS_TOGETHER) {
                let mut first = 0;
                for at in &mut at {
                    *at = self.step::<HAS_SPECIAL>(*at, rows, first);
                    first += stride;
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
    fn step<const HAS_SPECIAL: bool>(&self, at: u32, rows: &[f32], first: usize) -> u32 {
        // Neither index is ever out of range; the checks cost less than the processor's waits.
        let Some(node) = self.nodes.get(at as usize) else { return at };
        let feature = if HAS_SPECIAL { node.feature & !SPECIAL } else { node.feature };
        let Some(value) = rows.get(first.wrapping_add(feature as usize)) else { return at };
        let goes_right = if HAS_SPECIAL && node.feature & SPECIAL != 0 {
            let special = self.specials.get(node.threshold.to_bits() as usize);
            !special.is_some_and(|special| special.goes_left(*value))
        } else {
            // False for a missing value.
            *value >= node.threshold
        };
        node.left.wrapping_add(goes_right.into())
    }
}

/// The paths that are walked at once.
const LANES: usize = 8;

/// Rows in the order of a batch, and their sums.
#[derive(Debug)]
pub(super) struct RowBlock<F> {
    /// Each row: its features, each twice, and a NaN.
    rows: Vec<f32>,
    /// The sums of each row.
    pub(super) sums: Vec<F>,
    count: usize,
}

impl<F> RowBlock<F> {
    pub(super) const fn new() -> Self {
        Self { rows: Vec::new(), sums: Vec::new(), count: 0 }
    }

    /// Stores rows of features.
    pub(super) fn fill<'r>(&mut self, rows: impl Iterator<Item = &'r [f32]>) {
        self.rows.clear();
        self.count = 0;
        for row in rows {
            self.rows
                .extend(row.iter().flat_map(|value| [*value, if value.is_nan() { f32::INFINITY } else { *value }]));
            self.rows.push(f32::NAN);
            self.count += 1;
        }
    }
}

/// Values of a row in a block.
const fn row_width(features: usize) -> usize {
    features * 2 + 1
}

/// Rows of a block for a model with `features` features: a multiple of `LANES`, at least one.
pub(super) const fn block_rows(features: usize) -> usize {
    let rows = TREE_BLOCK_SIZE / (size_of::<f32>() * row_width(features));
    if rows < LANES { LANES } else { rows / LANES * LANES }
}

fn next_index(nodes: &[ForestNode]) -> u32 {
    u32::try_from(nodes.len()).expect("nodes are bounded by TREE_NODES_MAX")
}

/// The least FP32 that is not below a double: `x < t` and `x < u` hold for the same FP32 values.
/// `None` for the least double: nothing is below it, not even a missing value that goes left.
#[expect(clippy::cast_possible_truncation, reason = "rounded, then corrected")]
fn least_not_below(threshold: f64) -> Option<f32> {
    let rounded = threshold as f32;
    let least = if f64::from(rounded) < threshold { rounded.next_up() } else { rounded };
    (threshold > f64::NEG_INFINITY).then_some(least)
}

/// The least FP32 above a double: `x <= t` and `x < u` hold for the same FP32 values. `None` for
/// infinity, which has nothing above it.
#[expect(clippy::cast_possible_truncation, reason = "rounded, then corrected")]
fn least_above(threshold: f64) -> Option<f32> {
    let rounded = threshold as f32;
    let least = if f64::from(rounded) <= threshold { rounded.next_up() } else { rounded };
    (threshold < f64::INFINITY).then_some(least)
}
