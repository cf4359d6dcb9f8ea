//! Writes the two texts: a step on each line, and a tensor on each line.

use wire::json::writer;

use crate::limits::HUB_ROWS_MAX;

/// A list of steps that grows.
#[derive(Debug, Default)]
pub struct StepsText {
    lines: Vec<String>,
}

impl StepsText {
    /// Appends a step.
    pub fn push(&mut self, step: StepText) {
        self.lines.push(format!("  {}}}", step.text));
    }

    /// Appends the step that stands for the network.
    pub fn push_model(&mut self) {
        self.push(StepText::new("model"));
    }

    /// The text of a `steps.json`.
    pub fn into_text(self) -> String {
        format!("{{\"steps\": [\n{}\n]}}\n", self.lines.join(",\n"))
    }
}

/// A step in the making.
#[derive(Debug)]
pub struct StepText {
    text: String,
}

impl StepText {
    /// A step of this kind without parameters.
    pub fn new(kind: &str) -> Self {
        Self { text: format!("{{\"step\": {}", quoted(kind)) }
    }

    /// Connects the first input and the first output.
    pub fn between(self, input: &str, output: &str) -> Self {
        self.with("input", input).with("output", output)
    }

    /// Connects ports, each with the name of a tensor.
    pub fn ports(mut self, member: &str, ports: &[(&str, &str)]) -> Self {
        let ports: Vec<_> = ports.iter().map(|(port, name)| format!("{}: {}", quoted(port), quoted(name))).collect();
        self.text.push_str(&format!(", {}: {{{}}}", quoted(member), ports.join(", ")));
        self
    }

    /// Adds a parameter that is a string.
    pub fn with(self, name: &str, value: &str) -> Self {
        let value = quoted(value);
        self.raw(name, &value)
    }

    /// Adds a parameter that is a number or a JSON text.
    pub fn raw(mut self, name: &str, value: &str) -> Self {
        self.text.push_str(&format!(", {}: {value}", quoted(name)));
        self
    }
}

/// A string in JSON.
pub fn quoted(text: &str) -> String {
    let mut out = Vec::new();
    writer::string(text, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// A tensor that clients see.
#[derive(Clone, Debug)]
pub struct IoText {
    name: &'static str,
    datatype: &'static str,
    /// `None` for one element.
    dims: Option<Vec<i64>>,
    is_optional: bool,
}

impl IoText {
    /// One element a row.
    pub const fn scalar(name: &'static str, datatype: &'static str) -> Self {
        Self { name, datatype, dims: None, is_optional: false }
    }

    /// A list of `size` elements a row; `None` for a variable count.
    pub fn list(name: &'static str, datatype: &'static str, size: Option<usize>) -> Self {
        Self { name, datatype, dims: Some(vec![dimension(size)]), is_optional: false }
    }

    /// A table of any count of rows with `size` elements each.
    pub fn table(name: &'static str, datatype: &'static str, size: Option<usize>) -> Self {
        Self { name, datatype, dims: Some(vec![-1, dimension(size)]), is_optional: false }
    }

    /// The same as an input that a request may leave out.
    pub fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }

    fn line(&self, side: &str) -> String {
        let Self { name, datatype, dims, is_optional } = self;
        let shape = match dims {
            Some(sizes) => {
                let sizes: Vec<_> = sizes.iter().map(i64::to_string).collect();
                format!("dims: [ {} ]", sizes.join(", "))
            }
            None => "dims: [ 1 ] reshape { shape: [ ] }".to_owned(),
        };
        let optional = if *is_optional { " optional: true" } else { "" };
        format!("{side} {{ name: \"{name}\" data_type: TYPE_{datatype} {shape}{optional} }}\n")
    }
}

fn dimension(size: Option<usize>) -> i64 {
    size.and_then(|size| i64::try_from(size).ok()).unwrap_or(-1)
}

/// The text of a `config.pbtxt` for a graph in a file.
pub fn config(file: &str, inputs: &[IoText], outputs: &[IoText]) -> String {
    let mut text = skeleton(file, true);
    inputs.iter().for_each(|tensor| text.push_str(&tensor.line("input")));
    outputs.iter().for_each(|tensor| text.push_str(&tensor.line("output")));
    text.push_str("dynamic_batching { }\n");
    text
}

/// The same for a model whose requests have no rows: the steps make those of the graph.
pub fn config_without_rows(file: &str, inputs: &[IoText], outputs: &[IoText]) -> String {
    let mut text = skeleton(file, false) + "max_batch_size: 0\n";
    inputs.iter().for_each(|tensor| text.push_str(&tensor.line("input")));
    outputs.iter().for_each(|tensor| text.push_str(&tensor.line("output")));
    text
}

/// The part of a configuration that names outputs which requests without a list of outputs do not get; empty without any.
pub fn on_request(names: &[&str]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let names = names.join(",");
    format!("parameters {{ key: \"outputs_on_request\" value {{ string_value: \"{names}\" }} }}\n")
}

/// The part of a configuration that does not depend on the graph: its file, and with `has_rows` the most rows of a request.
pub fn skeleton(file: &str, has_rows: bool) -> String {
    // Every byte that could end the string is escaped.
    let mut escaped = String::new();
    for byte in file.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => escaped.push(char::from(byte)),
            byte => escaped.push_str(&format!("\\x{byte:02x}")),
        }
    }
    let rows = if has_rows { format!("max_batch_size: {HUB_ROWS_MAX}\n") } else { String::new() };
    format!("backend: \"onnxruntime\"\ndefault_model_filename: \"{escaped}\"\n{rows}")
}
