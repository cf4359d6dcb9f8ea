//! The steps of a model: its `steps.json`, and the model between them.

use std::sync::Arc;

use base::error::Error;
use steps::StepList;
pub use steps::{ShownToken, ShowsTokens};

use crate::spec::{ModelSpec, TensorSpec};

/// The steps of a model. Shared by its instances.
#[derive(Debug)]
pub struct ModelSteps {
    /// The text of the list: that of the file, or as derived.
    pub text: String,
    /// The steps, before and behind the engine's model if there is one.
    pub list: StepList,
    /// The model between the steps, with the inputs and outputs of its file; `None` if the steps are the model.
    pub engine: Option<Arc<ModelSpec>>,
    /// The tensors that are there when the engine has run and that the rest of the list, or the answer, needs.
    pub kept: Vec<String>,
}

impl ModelSteps {
    /// Returns true if a step runs another model of the server.
    pub fn has_calls(&self) -> bool {
        self.list.calls().next().is_some()
    }

    /// Checks that a list fits the model as clients see it, and the engine's.
    ///
    /// # Errors
    /// `InvalidArgument` with the name of a tensor that has no source.
    pub fn new(text: &str, list: StepList, spec: &ModelSpec, engine: Option<Arc<ModelSpec>>) -> Result<Self, Error> {
        let missing = |text: String| Err(Error::invalid(text));
        let is_input = |name: &str| spec.input_index(name).is_some();
        let given = || list_of(&spec.inputs);
        if let Some(name) = list.inputs().find(|name| !is_input(name)) {
            return missing(format!(
                "a step reads '{name}', which is no input of the configuration ({}) and which no step \
                                    before it writes",
                given()
            ));
        }
        let before: Vec<&str> = list.outputs().collect();
        let is_there = |name: &str| is_input(name) || before.contains(&name);
        let engine_inputs = engine.iter().flat_map(|engine| &engine.inputs);
        if let Some(input) = engine_inputs.filter(|input| !input.is_optional).find(|input| !is_there(&input.name)) {
            let name = &input.name;
            return missing(format!(
                "the model's file needs an input '{name}', which no step before the model writes and \
                                    which is no input of the configuration ({})",
                given()
            ));
        }
        let wrong = list.padding().filter(|padding| padding.is_declared()).and_then(|padding| {
            let is_padded = |name: &str| {
                let input = engine.as_ref().and_then(|engine| engine.inputs.iter().find(|input| input.name == name));
                input.is_some_and(|input| input.model_shape.get(1).is_some_and(|size| *size < 0))
            };
            padding.inputs.iter().map(|(name, _)| name).find(|name| !is_padded(name))
        });
        if let Some(name) = wrong {
            return missing(format!(
                "\"padding\" of the step \"model\" names '{name}', which is no input of the model whose second dimension may vary"
            ));
        }
        let is_computed = |name: &str| engine.as_ref().is_some_and(|engine| engine.output_index(name).is_some());
        if let Some(name) = list.inputs_behind_model().find(|name| !is_there(name) && !is_computed(name)) {
            let outputs = engine.as_ref().map_or_else(String::new, |engine| list_of(&engine.outputs));
            return missing(format!(
                "a step behind the model reads '{name}', which is no output of the model ({outputs}), and \
                                    which no step writes"
            ));
        }
        let behind: Vec<&str> = list.outputs_behind_model().collect();
        let is_made = |name: &str| behind.contains(&name) || is_computed(name) || is_there(name);
        if let Some(output) = spec.outputs.iter().find(|output| !is_made(&output.name)) {
            let name = &output.name;
            return missing(format!("no step writes '{name}', which is an output of the configuration"));
        }
        let asked = spec.outputs.iter().map(|output| output.name.as_str()).filter(|name| !behind.contains(name));
        let kept = list.inputs_behind_model().chain(asked).filter(|name| !is_computed(name) && is_there(name));
        let mut kept: Vec<String> = kept.map(str::to_owned).collect();
        kept.sort_unstable();
        kept.dedup();
        Ok(Self { text: text.to_owned(), list, engine, kept })
    }
}

/// The names of tensors, for an error.
fn list_of(tensors: &[TensorSpec]) -> String {
    tensors.iter().map(|tensor| format!("'{}'", tensor.name)).collect::<Vec<_>>().join(", ")
}
