//! Tree models of XGBoost, LightGBM and Treelite: their files are read into one form, a
//! [`TreeModel`], which `engines::trees` compiles and runs. Opens no file. Nothing here recurses
//! over a tree, and every number of a file is checked before it is used: after [`decode`] each
//! child is a node of its tree that is reached exactly once, each feature is one that the model
//! has, and each leaf has its values.

mod check;
mod field_reader;
mod lightgbm;
mod treelite;
mod ubjson;
mod value;
mod xgboost;
mod xgboost_binary;

#[cfg(test)]
mod tests;

use std::fmt;

use base::error::Error;
use base::limits::{TREE_FEATURES_MAX, TREE_OUTPUTS_MAX};

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeFormat {
    /// LightGBM's text (`Booster.save_model`).
    LightGbm,
    /// Treelite's checkpoint (`Model.serialize`), also the format of scikit-learn's models.
    Treelite,
    /// XGBoost's binary format, the default until 2.0 and gone since 3.1.
    XgboostBinary,
    /// XGBoost's JSON (`Booster.save_model` with a name that ends in `.json`).
    XgboostJson,
    /// XGBoost's binary JSON.
    XgboostUbjson,
}

impl TreeFormat {
    /// The format that a file's first bytes show; `None` for anything else.
    pub fn of(file: &[u8]) -> Option<Self> {
        let text = file.trim_ascii_start();
        match file {
            // The first of all: it begins with a number, whose bytes may look like any other format.
            _ if xgboost_binary::is_file(file) => Some(Self::XgboostBinary),
            // A Treelite checkpoint begins with its version: the major one as a little-endian word.
            [3 | 4, 0, 0, 0, ..] => Some(Self::Treelite),
            // UBJSON has the length of a name behind the brace, JSON the quotation mark of one.
            [b'{', b'i' | b'U' | b'I' | b'l' | b'L' | b'$' | b'#', ..] => Some(Self::XgboostUbjson),
            _ if text.starts_with(b"{") => Some(Self::XgboostJson),
            _ if text.starts_with(b"tree") => Some(Self::LightGbm),
            _ => None,
        }
    }

    /// Its name in the parameter `model_type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LightGbm => "lightgbm",
            Self::Treelite => "treelite_checkpoint",
            Self::XgboostBinary => "xgboost",
            Self::XgboostJson => "xgboost_json",
            Self::XgboostUbjson => "xgboost_ubj",
        }
    }
}

impl fmt::Display for TreeFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LightGbm => "LightGBM text",
            Self::Treelite => "a Treelite checkpoint",
            Self::XgboostBinary => "XGBoost's old binary format",
            Self::XgboostJson => "XGBoost JSON",
            Self::XgboostUbjson => "XGBoost UBJSON",
        })
    }
}

/// A model as in its file, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeModel {
    /// The format of its file.
    pub format: TreeFormat,
    /// Features of a row.
    pub feature_count: usize,
    /// Values predicted at a time: more than 1 for multi-output regression.
    pub target_count: usize,
    /// Classes of a target; 1 for a score without classes.
    pub class_count: usize,
    /// The precision of the sums.
    pub arithmetic: Arithmetic,
    /// The trees, in the order in which their leaves are added.
    pub trees: Vec<DecisionTree>,
    /// The initial values of the sums; empty for zeros.
    pub start: Vec<f64>,
    /// The divisor of each sum; empty for none.
    pub divisors: Vec<f64>,
    /// The offset added to each sum at the end; empty for none.
    pub offsets: Vec<f64>,
    /// The function from sums to answers.
    pub link: ScoreLink,
}

impl TreeModel {
    /// Scores of a row: one for each class of each target.
    pub const fn output_count(&self) -> usize {
        self.target_count.saturating_mul(self.class_count)
    }

    /// Returns true if a leaf has the scores of all classes.
    pub fn has_vector_leaves(&self) -> bool {
        self.trees.first().is_some_and(|tree| tree.output.width > 1)
    }

    /// The dims of a row's scores.
    pub fn output_dims(&self) -> Vec<i64> {
        let dims: &[usize] = match (self.target_count, self.class_count) {
            (1, classes) => &[classes],
            (targets, 1) => &[targets],
            (targets, classes) => &[targets, classes],
        };
        dims.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX)).collect()
    }
}

/// The precision of sums. Inputs are FP32 in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// FP64: LightGBM, and checkpoints of it and of scikit-learn.
    Double,
    /// FP32: XGBoost.
    Single,
}

/// One tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecisionTree {
    /// Its nodes; the first is the root.
    pub nodes: Vec<TreeNode>,
    /// The values of its leaves, one after the other.
    pub values: Vec<f64>,
    /// The scores that a leaf's values are added to.
    pub output: TreeOutput,
    /// The most splits on a path from the root to a leaf.
    pub depth: usize,
}

/// The scores that the values of a leaf are added to: `width` from `first` on, `stride` apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeOutput {
    /// The score of the first value.
    pub first: usize,
    /// The distance between the scores of two values.
    pub stride: usize,
    /// Values of a leaf.
    pub width: usize,
}

impl TreeOutput {
    /// The output of a tree with one value a leaf.
    pub const fn single(score: usize) -> Self {
        Self { first: score, stride: 1, width: 1 }
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub enum TreeNode {
    /// A leaf, by its index in [`DecisionTree::values`].
    Leaf(u32),
    /// A test.
    Split(TreeSplit),
}

/// A test of a feature, and its two branches.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeSplit {
    /// The feature.
    pub feature: u32,
    /// The test.
    pub test: SplitTest,
    /// True if a missing value (NaN) goes left.
    pub default_left: bool,
    /// The node if the test holds.
    pub left: u32,
    /// The node if it does not.
    pub right: u32,
}

/// The test of a split. A feature is FP32; a threshold may be a double, and is compared as one.
#[derive(Clone, Debug, PartialEq)]
pub enum SplitTest {
    /// `x < t`: XGBoost.
    Below(f64),
    /// `x <= t`: LightGBM and scikit-learn.
    AtMost(f64),
    /// `x > t`: only in checkpoints.
    Above(f64),
    /// `x >= t`: only in checkpoints.
    AtLeast(f64),
    /// `x == t`: only in checkpoints.
    Equal(f64),
    /// `x <= t`, with zero as a missing value: LightGBM with `zero_as_missing`.
    AtMostUnlessZero(f64),
    /// A category is in a set.
    In(Box<CategorySet>),
}

/// A set of categories, and the range of values that are categories at all: other values are never
/// in it.
#[derive(Clone, Debug, PartialEq)]
pub struct CategorySet {
    /// Its members.
    pub members: CategoryMembers,
    /// The largest value that is a category.
    pub largest: f64,
    /// True if values between -1 and 0 are category 0: LightGBM truncates a value to an integer
    /// before it checks its sign.
    pub cuts_first: bool,
}

/// The members of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CategoryMembers {
    /// A bit for each category.
    Bits(Vec<u32>),
    /// The sorted categories, if they are too sparse for bits.
    Sorted(Vec<u32>),
}

impl CategorySet {
    /// A set of categories, in which only values from 0 on are truncated.
    pub fn new(mut categories: Vec<u32>, largest: f64) -> Self {
        categories.sort_unstable();
        let top = categories.last().copied().unwrap_or_default() as usize;
        let members = if top / 64 <= categories.len() {
            let mut bits = vec![0; top / 32 + 1];
            for category in &categories {
                if let Some(word) = bits.get_mut(*category as usize / 32) {
                    *word |= 1 << (category % 32);
                }
            }
            CategoryMembers::Bits(if categories.is_empty() { Vec::new() } else { bits })
        } else {
            CategoryMembers::Sorted(categories)
        };
        Self { members, largest, cuts_first: false }
    }

    /// Returns true if a value is in it. NaN is not.
    pub fn contains(&self, value: f32) -> bool {
        let lowest = if self.cuts_first { value.trunc() } else { value };
        if !(lowest >= 0.0 && f64::from(value) <= self.largest) {
            return false;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and cut as it should be"
        )]
        let category = value as u32;
        match &self.members {
            CategoryMembers::Bits(bits) => {
                bits.get(category as usize / 32).is_some_and(|word| (word >> (category % 32)) & 1 == 1)
            }
            CategoryMembers::Sorted(categories) => categories.binary_search(&category).is_ok(),
        }
    }
}

/// The function from sums to answers. Libraries compute some of them in different ways, each of
/// which has its variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScoreLink {
    /// No change.
    Identity,
    /// `exp(x)`.
    Exponential,
    /// The same, always computed in FP64 and rounded: XGBoost's `survival:aft`.
    ExponentialDouble,
    /// `2^(-x / c)`: isolation forests.
    ExponentialRatio(f32),
    /// 1 above 0, or else 0.
    Hinge,
    /// `log(1 + exp(x))`.
    LogOnePlusExp,
    /// `1 / (1 + exp(-ax))` of each class.
    OneVersusAll(f64),
    /// `1 / (1 + exp(-ax))`.
    Sigmoid(f64),
    /// The same with XGBoost's bound: never below `1 / (1 + exp(88.7))`.
    SigmoidBounded,
    /// `x * |x|`.
    SignedSquare,
    /// Softmax over the classes of a target, with the sum in FP64: XGBoost and Treelite.
    Softmax,
    /// The same, all in FP64: LightGBM.
    SoftmaxDouble,
}

/// Reads a model. `format` is the expected format of the file; `None` to detect it.
///
/// # Errors
///
/// `InvalidArgument` for a broken file or another format, with the expected and the actual content;
/// `Unsupported` for a model of a kind that is not served.
pub fn decode(file: &[u8], format: Option<TreeFormat>) -> Result<TreeModel, Error> {
    let found = TreeFormat::of(file);
    let Some(format) = found.filter(|found| format.is_none_or(|format| format == *found)) else {
        return Err(Error::invalid(no_format(file, format, found)));
    };
    let model = match format {
        TreeFormat::LightGbm => lightgbm::decode(file),
        TreeFormat::Treelite => treelite::decode(file),
        TreeFormat::XgboostBinary => xgboost_binary::decode(file),
        TreeFormat::XgboostJson => value::from_json(file).and_then(|value| xgboost::decode(&value, format)),
        TreeFormat::XgboostUbjson => ubjson::decode(file).and_then(|value| xgboost::decode(&value, format)),
    };
    let model = model.map_err(|fault| match fault {
        TreeFault::Broken(why) => Error::invalid(format!("{format} that cannot be read: {why}")),
        TreeFault::Unsupported(what) => Error::unsupported(format!("{format} that is not served: {what}")),
    })?;
    check::check(model).map_err(|why| Error::invalid(format!("{format} that cannot be read: {why}")))
}

/// The reason why a file is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TreeFault {
    /// The expected and the actual content.
    Broken(String),
    /// A kind of model that is not served, and the alternative.
    Unsupported(String),
}

impl TreeFault {
    /// The fault of a part.
    fn within(self, part: &str) -> Self {
        match self {
            Self::Broken(why) => Self::Broken(format!("{part}: {why}")),
            Self::Unsupported(what) => Self::Unsupported(format!("{part}: {what}")),
        }
    }
}

impl From<String> for TreeFault {
    fn from(why: String) -> Self {
        Self::Broken(why)
    }
}

fn no_format(file: &[u8], wanted: Option<TreeFormat>, found: Option<TreeFormat>) -> String {
    let found = match found {
        Some(found) => found.to_string(),
        None if file.is_empty() => "an empty file".to_owned(),
        None if wanted.is_none() => {
            "neither XGBoost JSON, UBJSON or its old binary format, nor LightGBM text, nor a Treelite checkpoint"
                .to_owned()
        }
        None => "something else".to_owned(),
    };
    match wanted {
        Some(wanted) => format!("expected {wanted}, as model_type '{}' says, and the file is {found}", wanted.name()),
        None => format!("the file is {found}"),
    }
}

/// Converts a count in a file to a size within a bound.
fn bounded(what: &str, count: i64, least: i64, max: usize) -> Result<usize, String> {
    match usize::try_from(count) {
        Ok(size) if count >= least && size <= max => Ok(size),
        _ => Err(format!("{what} is {count}, expected {least} to {max}")),
    }
}

/// The features of a model.
fn features(count: i64) -> Result<usize, String> {
    bounded("its number of features", count, 0, TREE_FEATURES_MAX)
}

/// The scores of a row.
fn outputs(what: &str, count: i64) -> Result<usize, String> {
    bounded(what, count, 1, TREE_OUTPUTS_MAX)
}
