//! The step `infer`: another model of the server.

use crate::suggest::library::quoted;
use crate::suggest::lower::{CallNames, MadeTensor, StepDraft, StepLowering};
use crate::suggest::op::{CallForm, ExprId};

impl StepLowering<'_, '_> {
    /// The step of an output of another model.
    pub fn call(&mut self, id: ExprId, form: &CallForm) -> Result<MadeTensor, String> {
        let expression = self.machine.graph.get(id).clone();
        let mut inputs = Vec::with_capacity(expression.inputs.len());
        for input in expression.inputs {
            inputs.push(("", vec![self.lower(input)?]));
        }
        let mut fields = vec![("model", quoted(&form.model))];
        fields.extend(form.version.map(|version| ("version", version.to_string())));
        let name = self.new_name(&form.output);
        let same = self.steps.iter_mut().find(|step| {
            let names = step.call.as_ref().map(|call| &call.inputs);
            step.inputs == inputs && step.fields == fields && names == Some(&form.inputs)
        });
        match same {
            Some(step) => {
                step.outputs.push(("", name.clone()));
                step.lines.extend(expression.lines);
                step.call.iter_mut().for_each(|call| call.outputs.push(form.output.clone()));
            }
            None => {
                let outputs = vec![("", name.clone())];
                let call = Some(CallNames { inputs: form.inputs.clone(), outputs: vec![form.output.clone()] });
                self.steps.push(StepDraft {
                    kind: crate::list::CALL_NAME,
                    inputs,
                    outputs,
                    fields,
                    lines: expression.lines,
                    call,
                    group: 0,
                });
            }
        }
        Ok((name, self.machine.graph.shape(id)))
    }
}
