//! `suggest`: from the syntax tree of a `model.py` to a list of steps that does the same, as far as the file is understood.
//! Called by `deuteron steps suggest`. Pure: the caller has Python print the tree ([`TREE_SCRIPT`]), which runs nothing of the
//! file, and reads the files that the model reads.
//!
//! The file is gone through as an interpreter would, on values that are not known: inputs become a graph of operations (`graph`),
//! and the graph of each output becomes steps (`lower`). All that is not understood is named with its line; a value that depends
//! on it is never used. Sizes, nesting and work have bounds in `limits`.

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod graph;
mod library;
mod lower;
mod machine;
mod op;
mod report;
mod tree;
mod value;

use std::collections::BTreeMap;

use base::error::Error;
use base::tensor::Datatype;

use crate::fields::ReadStepFile;
use crate::list::StepList;
use crate::suggest::lower::StepLowering;
use crate::suggest::machine::Machine;
use crate::suggest::tree::Tree;

pub use crate::suggest::report::{SuggestedStep, Suggestion};

/// The program that prints the syntax tree of a Python file. Its arguments are [`crate::limits::SUGGEST_NODES_MAX`] and
/// [`crate::limits::SUGGEST_DEPTH_MAX`].
pub const TREE_SCRIPT: &str = include_str!("tree.py");

/// A tensor of the model's configuration, without the axis of rows.
#[derive(Clone, Debug)]
pub struct SuggestTensor {
    /// Its name.
    pub name: String,
    /// Its datatype.
    pub datatype: Datatype,
    /// Its dimensions, as clients see them; -1 is open.
    pub dims: Vec<i64>,
    /// Its dimensions as the model sees them, if the configuration has a `reshape`.
    pub reshape: Option<Vec<i64>>,
    /// True if a request may lack it.
    pub is_optional: bool,
}

impl SuggestTensor {
    /// Its dimensions as the model sees them.
    pub fn model_dims(&self) -> &[i64] {
        self.reshape.as_ref().unwrap_or(&self.dims)
    }
}

/// Another model of the server, as far as its `config.pbtxt` says.
#[derive(Clone, Debug, Default)]
pub struct SuggestOther {
    /// Its `max_batch_size`.
    pub rows_max: u32,
    /// Its inputs.
    pub inputs: Vec<SuggestTensor>,
    /// Its outputs.
    pub outputs: Vec<SuggestTensor>,
}

/// Finds another model of the server by its name; the error is a text.
pub type FindOther<'a> = dyn Fn(&str) -> Result<SuggestOther, String> + 'a;

/// The model of a `model.py`, as far as its `config.pbtxt` and its directory say.
pub struct SuggestModel<'a> {
    /// Its name.
    pub name: &'a str,
    /// The name of the version's directory.
    pub version: &'a str,
    /// Its `max_batch_size`.
    pub rows_max: u32,
    /// Its inputs.
    pub inputs: Vec<SuggestTensor>,
    /// Its outputs.
    pub outputs: Vec<SuggestTensor>,
    /// Its parameters.
    pub parameters: BTreeMap<String, String>,
    /// Reads a file of the version's directory or the model's.
    pub read_file: &'a ReadStepFile<'a>,
    /// Finds the models that the file calls.
    pub find_other: &'a FindOther<'a>,
}

/// A line of a `model.py` and what is to be said about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remark {
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// A sentence without its full stop.
    pub text: String,
}

/// Proposes steps for the model whose syntax tree this is.
///
/// # Errors
/// `InvalidArgument` if the tree is malformed or beyond a bound.
pub fn suggest(tree: &str, model: &SuggestModel<'_>) -> Result<Suggestion, Error> {
    let tree = Tree::read(tree)?;
    let mut machine = Machine::new(&tree, model);
    let mut open = Vec::new();
    let outputs = match machine.outputs() {
        Ok(outputs) => outputs,
        Err(why) => {
            open.push(placed(machine.line(), why));
            Vec::new()
        }
    };
    let mut lowering = StepLowering::new(&mut machine);
    for (name, value, line) in &outputs {
        if let Err(why) = lowering.output(name, value) {
            open.push(match value {
                value::PyValue::Unknown(reason) => {
                    lowering.machine.reasons.get(*reason).cloned().unwrap_or(placed(*line, why))
                }
                _ => match lowering.machine.reason_of(&[value]) {
                    Some(reason) => lowering.machine.reasons.get(reason).cloned().unwrap_or(placed(*line, why)),
                    None => placed(*line, format!("the output '{name}': {why}")),
                },
            });
        }
    }
    if open.is_empty() {
        let missing = model.outputs.iter().filter(|output| !outputs.iter().any(|(name, ..)| *name == output.name));
        open.extend(missing.map(|output| placed(0, format!("model.py writes no output '{}'", output.name))));
    }
    lowering.merge_token_casts();
    let steps = lowering.steps.clone();
    let mut suggestion = Suggestion::new(steps, open, machine.assumptions, machine.effects);
    if suggestion.is_complete()
        && let Err(error) = StepList::read(&suggestion.steps_json(), model.read_file)
    {
        suggestion.refuse(error.text());
    }
    Ok(suggestion)
}

/// A remark, whose text may name a line of its own.
fn placed(line: usize, text: String) -> Remark {
    let own = text.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    match own.and_then(|(line, rest)| Some((line.parse().ok()?, rest.to_owned()))) {
        Some((line, text)) => Remark { line, text },
        None => Remark { line, text },
    }
}
