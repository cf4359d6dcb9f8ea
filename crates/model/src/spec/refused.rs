//! Requests that a model's engine does not survive, as its trial at load found: an axis of size 0, in some inputs at once.
//! Checked for every request that reaches the model, a client's and a step's alike.

use crate::ModelSpec;
use base::error::Error;
use base::tensor::Tensor;

/// Axes of inputs that must not all be 0 in one request: the index of the input and the axis in its full shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedAxes(pub Vec<(usize, usize)>);

impl RefusedAxes {
    fn are_empty(&self, inputs: &[Tensor]) -> bool {
        let is_empty = |(input, axis): &(usize, usize)| {
            inputs.get(*input).and_then(|tensor| tensor.shape.get(*axis)).is_some_and(|size| *size == 0)
        };
        !self.0.is_empty() && self.0.iter().all(is_empty)
    }

    /// The axes by the names of their inputs, for people.
    pub fn text(&self, spec: &ModelSpec) -> String {
        let name = |input: usize| spec.inputs.get(input).map_or("", |input| input.name.as_str());
        let axes: Vec<_> =
            self.0.iter().map(|(input, axis)| format!("axis {axis} of input '{}'", name(*input))).collect();
        axes.join(" and ")
    }
}

impl ModelSpec {
    /// Refuses a request that the model's engine does not survive.
    ///
    /// # Errors
    /// `InvalidArgument` that names the axes, the model, and the way out.
    pub fn check_axes(&self, inputs: &[Tensor]) -> Result<(), Error> {
        match self.refused_axes.iter().find(|axes| axes.are_empty(inputs)) {
            None => Ok(()),
            Some(axes) => Err(self.refusal(axes)),
        }
    }

    #[cold]
    fn refusal(&self, axes: &RefusedAxes) -> Error {
        let (text, name) = (axes.text(self), &self.name);
        let are = if axes.0.len() > 1 { "are" } else { "is" };
        Error::invalid(format!(
            "{text} {are} of size 0 in a request to model '{name}', which its engine does not survive, as its load showed: \
             send at least one element, or have the model served with the parameter 'isolation' set to 'process'"
        ))
    }
}
