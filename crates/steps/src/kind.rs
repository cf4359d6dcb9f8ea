//! The declaration of a kind of step, and the interface of a built step.

use base::error::Error;
use base::tensor::Tensor;

use crate::fields::{Field, StepFields};
use crate::shown_token::ShowsTokens;

/// A kind of step, declared once as data.
pub struct StepKind {
    /// The name in a `steps.json` (`head`).
    pub name: &'static str,
    /// Its work, for the reference: sentences in Markdown.
    pub about: &'static str,
    /// The tensors that it reads. The first one may be given as `"input"`.
    pub inputs: &'static [StepPort],
    /// The tensors that it can write. The first one may be given as `"output"`; those that a list does not name are not
    /// computed.
    pub outputs: &'static [StepPort],
    /// Its parameters.
    pub fields: &'static [Field],
    /// True if a run takes microseconds for inputs of any size that a model gives: a model with such steps alone may run on a
    /// shard.
    pub is_short: bool,
    /// Builds a step from its checked parameters.
    ///
    /// # Errors
    /// If parameters contradict each other, or a file that one names is malformed: made by [`StepFields::error`].
    pub build: fn(&StepFields<'_>) -> Result<Box<dyn Step>, Error>,
}

/// A tensor that a kind of step reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct StepPort {
    /// The name of the port (`mask`). An input whose name ends with `[]` is a list: `"inputs": {"columns": ["a", "b"]}`
    /// connects `columns[]`. Only the last input of a kind can be one.
    pub name: &'static str,
    /// Datatypes, shape and meaning, for the reference.
    pub about: &'static str,
    /// An input that may be left out, or an output that is not there with every set of parameters.
    pub is_optional: bool,
}

impl StepPort {
    /// Returns true if it takes a list of tensors.
    pub fn is_list(&self) -> bool {
        self.name.ends_with(LIST_SUFFIX)
    }

    /// Returns its name in a `steps.json`.
    pub fn member(&self) -> &'static str {
        self.name.strip_suffix(LIST_SUFFIX).unwrap_or(self.name)
    }
}

/// Ends the name of a port that takes a list of tensors.
const LIST_SUFFIX: &str = "[]";

/// A step with its parameters. Pure: the same inputs give the same outputs, on any thread.
pub trait Step: Send + Sync {
    /// Runs on the tensors of its input ports, in the order of [`StepKind::inputs`]; `None` for one that the list
    /// does not connect. The tensors of a list are the last ones, from its port on. Returns a tensor for each
    /// output port that the list connects ([`StepFields::is_wanted`]), at its place in [`StepKind::outputs`]; the
    /// others are ignored.
    ///
    /// Leading dimensions are rows: a step says which trailing ones it needs, and treats rows independently.
    ///
    /// # Errors
    /// `InvalidArgument` if a tensor does not fit: the text names the port, what was expected and what came. Never a
    /// panic: the contents come from clients. Sizes are checked before memory is allocated.
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error>;

    /// The padding of its rows, if it pads those of a request to the longest one: then a model may also run them in other
    /// company. Such a step always writes the lengths.
    fn padding(&self) -> Option<StepPadding> {
        None
    }

    /// The output port with the row of the request that each row of the outputs is from, `[rows]`, if the step makes several rows
    /// of one. Such a step always writes it.
    fn row_sources(&self) -> Option<usize> {
        None
    }

    /// The tokenizer of the step, if it has one, for interfaces that show tokens.
    fn tokenizer(&self) -> Option<&dyn ShowsTokens> {
        None
    }

    /// The names of the classes that the step knows, in the order of their numbers; empty if it knows none.
    fn classes(&self) -> &[String] {
        &[]
    }
}

/// The padding of a step's rows `[rows, length, ..]` to the longest of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPadding {
    /// For each output port, the number that pads it; `None` for one that is not padded.
    pub numbers: Vec<Option<f64>>,
    /// The output port with the length of each row without padding, `[rows]`.
    pub lengths: usize,
    /// The width of a row is a multiple of this.
    pub multiple: u32,
    /// True if padding comes before the row.
    pub is_left: bool,
}
