//! One step in a test: built from its parameters as JSON, with each port connected to a tensor of its own name.

use base::tensor::Tensor;

use crate::list::StepList;

/// Builds the step `kind` with these members, without a file.
pub fn built(kind: &str, inputs: &[&str], outputs: &[&str], members: &str) -> Result<StepList, String> {
    let ports = |prefix: &str, names: &[&str]| {
        names.iter().map(|name| format!("\"{name}\": \"{prefix}{name}\"")).collect::<Vec<_>>().join(", ")
    };
    let (inputs, outputs) = (ports("", inputs), ports("out_", outputs));
    let separator = if members.is_empty() { "" } else { ", " };
    let text = format!(
        "{{\"steps\": [{{\"step\": \"{kind}\", \"inputs\": {{{inputs}}}, \"outputs\": {{{outputs}}}{separator}\
         {members}}}]}}"
    );
    StepList::read(&text, &|_, _| Err("no such file".to_owned())).map_err(|error| error.text().to_owned())
}

/// Runs the step and returns these outputs, or the text of the error without its prefix.
pub fn run(kind: &str, inputs: &[(&str, &Tensor)], outputs: &[&str], members: &str) -> Result<Vec<Tensor>, String> {
    let names: Vec<_> = inputs.iter().map(|(name, _)| *name).collect();
    let list = built(kind, &names, outputs, members)?;
    let named: Vec<_> = outputs.iter().map(|name| format!("out_{name}")).collect();
    let named: Vec<_> = named.iter().map(String::as_str).collect();
    let tensor = |name: &str| inputs.iter().find(|(known, _)| *known == name).map(|(_, tensor)| (*tensor).clone());
    let prefix = format!("step 1 ({kind}): ");
    let got = list.run(tensor, &named);
    let got = got.map_err(|error| error.text().strip_prefix(&prefix).unwrap_or(error.text()).to_owned())?;
    Ok(got.into_iter().map(|tensor| tensor.expect("the step wrote it")).collect())
}

/// The text of the error that the step gives, built or run.
pub fn fault(kind: &str, inputs: &[(&str, &Tensor)], outputs: &[&str], members: &str) -> String {
    run(kind, inputs, outputs, members).expect_err("the step fails")
}
