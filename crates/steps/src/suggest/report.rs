//! The result of [`crate::suggest`], and its texts.

use crate::suggest::Remark;
use crate::suggest::library::quoted;
use crate::suggest::lower::{CallNames, StepDraft};

/// A proposal.
#[derive(Clone, Debug)]
pub struct Suggestion {
    /// The steps, in their order.
    pub steps: Vec<SuggestedStep>,
    /// The lines that are not interpreted and reach an output; empty for a complete proposal.
    pub open: Vec<Remark>,
    /// The assumptions of the proposal.
    pub assumptions: Vec<Remark>,
    /// The effects of model.py that the steps do not have.
    pub effects: Vec<Remark>,
}

/// A step of a proposal.
#[derive(Clone, Debug)]
pub struct SuggestedStep {
    /// The step, as a `steps.json` has it.
    pub json: String,
    /// The lines of model.py that it stands for.
    pub lines: Vec<usize>,
}

impl Suggestion {
    pub(super) fn new(
        drafts: Vec<StepDraft>,
        mut open: Vec<Remark>,
        mut assumptions: Vec<Remark>,
        mut effects: Vec<Remark>,
    ) -> Self {
        for remarks in [&mut open, &mut assumptions, &mut effects] {
            remarks.sort();
            remarks.dedup();
        }
        Self { steps: drafts.iter().map(SuggestedStep::new).collect(), open, assumptions, effects }
    }

    /// Returns true if the steps stand for the whole model.
    pub fn is_complete(&self) -> bool {
        self.open.is_empty() && !self.steps.is_empty()
    }

    /// Adds a reason that the proposal cannot be used.
    pub(super) fn refuse(&mut self, why: &str) {
        self.open.push(Remark { line: 0, text: why.to_owned() });
    }

    /// The text of the `steps.json`, or of the part of it that is known.
    pub fn steps_json(&self) -> String {
        let steps: Vec<_> = self.steps.iter().map(|step| format!("  {}", step.json)).collect();
        format!("{{\"steps\": [\n{}\n]}}\n", steps.join(",\n"))
    }

    /// The report for a person, without the steps themselves.
    pub fn report(&self) -> String {
        let mut out = String::new();
        for (number, step) in self.steps.iter().enumerate() {
            out += &format!("step {}: {} of model.py\n", number + 1, lines_text(&step.lines));
        }
        for (title, remarks) in
            [("assumed", &self.assumptions), ("left out", &self.effects), ("not interpreted", &self.open)]
        {
            for Remark { line, text } in remarks {
                let place = if *line == 0 { String::new() } else { format!("line {line}: ") };
                out += &format!("{title}: {place}{text}\n");
            }
        }
        out
    }
}

impl SuggestedStep {
    fn new(draft: &StepDraft) -> Self {
        let mut members = vec![format!("\"step\": {}", quoted(draft.kind))];
        members.extend(draft.call.iter().flat_map(|call| call_ports(draft, call)));
        match draft.inputs.as_slice() {
            _ if draft.call.is_some() => {}
            [(_, names)] if names.len() == 1 && !is_list(draft) => {
                members.extend(names.first().map(|name| format!("\"input\": {}", quoted(name))));
            }
            several => members.push(format!("\"inputs\": {{{}}}", ports(draft, several))),
        }
        match draft.outputs.as_slice() {
            _ if draft.call.is_some() => {}
            [(port, name)] if is_first(draft.kind, port) => members.push(format!("\"output\": {}", quoted(name))),
            several => {
                let ports: Vec<_> =
                    several.iter().map(|(port, name)| format!("{}: {}", quoted(port), quoted(name))).collect();
                members.push(format!("\"outputs\": {{{}}}", ports.join(", ")));
            }
        }
        members.extend(draft.fields.iter().map(|(name, value)| format!("{}: {value}", quoted(name))));
        Self {
            json: format!("{{{}}}", members.join(", ")),
            lines: draft.lines.iter().copied().filter(|line| *line > 0).collect(),
        }
    }
}

/// The tensors of the step `infer`, by their names in the model that it runs.
fn call_ports(draft: &StepDraft, call: &CallNames) -> [String; 2] {
    let pair = |(of_model, name): (&String, &String)| format!("{}: {}", quoted(of_model), quoted(name));
    let inputs = call.inputs.iter().zip(draft.inputs.iter().flat_map(|(_, names)| names));
    let outputs = call.outputs.iter().zip(draft.outputs.iter().map(|(_, name)| name));
    let [inputs, outputs] = [inputs.map(pair).collect::<Vec<_>>(), outputs.map(pair).collect()];
    [format!("\"inputs\": {{{}}}", inputs.join(", ")), format!("\"outputs\": {{{}}}", outputs.join(", "))]
}

fn kind_of(name: &str) -> Option<&'static crate::StepKind> {
    crate::KINDS.iter().copied().find(|kind| kind.name == name)
}

/// Returns true if the step's first input is a list.
fn is_list(draft: &StepDraft) -> bool {
    kind_of(draft.kind).and_then(|kind| kind.inputs.first()).is_some_and(crate::StepPort::is_list)
}

/// Returns true if `"output"` connects the port.
fn is_first(kind: &str, port: &str) -> bool {
    kind_of(kind).and_then(|kind| kind.outputs.first()).is_some_and(|first| first.name == port)
}

fn ports(draft: &StepDraft, inputs: &[(&'static str, Vec<String>)]) -> String {
    let is_list = is_list(draft);
    let port = |(port, names): &(&str, Vec<String>)| {
        let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
        match is_list {
            true => format!("{}: [{}]", quoted(port), names.join(", ")),
            false => format!("{}: {}", quoted(port), names.join(", ")),
        }
    };
    inputs.iter().map(port).collect::<Vec<_>>().join(", ")
}

/// `line 3`, `lines 3, 5 to 7`.
fn lines_text(lines: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for line in lines {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *line => *last = *line,
            _ => ranges.push((*line, *line)),
        }
    }
    let texts: Vec<_> = ranges
        .iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first}, {last}"),
            _ => format!("{first} to {last}"),
        })
        .collect();
    format!("{} {}", if lines.len() == 1 { "line" } else { "lines" }, texts.join(", "))
}
