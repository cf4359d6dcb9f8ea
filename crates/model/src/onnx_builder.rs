//! ONNX files written by hand: just enough of `onnx.proto` for the models of tests and benchmarks.

use std::collections::BTreeSet;

/// `TensorProto.DataType`: 32-bit float.
pub const FLOAT: i64 = 1;
/// Unsigned byte.
pub const UINT8: i64 = 2;
/// Signed byte.
pub const INT8: i64 = 3;
/// Signed, 2 bytes.
pub const INT16: i64 = 5;
/// Signed, 4 bytes.
pub const INT32: i64 = 6;
/// Signed, 8 bytes.
pub const INT64: i64 = 7;
/// One byte, 0 or 1.
pub const BOOL: i64 = 9;

/// A model under construction. A dimension of -1 is symbolic, and named after its index.
#[derive(Default)]
pub struct Onnx {
    graph: Vec<u8>,
    /// The domains of its operators, beside ONNX's own.
    domains: BTreeSet<String>,
}

impl Onnx {
    /// Adds an operator, with integer attributes.
    pub fn node(self, operator: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, i64)]) -> Self {
        self.node_around(operator, inputs, outputs, attributes, Vec::new())
    }

    /// Adds an operator with an attribute that is a list of integers.
    pub fn node_listed(self, operator: &str, inputs: &[&str], outputs: &[&str], (name, list): (&str, &[i64])) -> Self {
        let mut attribute = Vec::new();
        bytes(1, name, &mut attribute);
        list.iter().for_each(|number| int(8, *number, &mut attribute));
        int(20, 7, &mut attribute);
        self.add_node(operator, inputs, outputs, vec![attribute])
    }

    /// Adds an operator, `DOMAIN:OPERATOR` or ONNX's own, with attributes as text: `axis=1 mode=linear pads=[1,1]`. A
    /// number with a point is a float; a text with blanks is in single quotes.
    pub fn node_of(self, operator: &str, inputs: &[&str], outputs: &[&str], attributes: &str) -> Self {
        self.add_node(operator, inputs, outputs, words(attributes).into_iter().map(attribute).collect())
    }

    /// Adds an operator with graphs inside it, and integer attributes.
    pub fn node_around(
        mut self,
        operator: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[(&str, i64)],
        graphs: Vec<(&str, Self)>,
    ) -> Self {
        let mut encoded = Vec::new();
        for (name, value) in attributes {
            let mut attribute = Vec::new();
            bytes(1, name, &mut attribute);
            int(3, *value, &mut attribute);
            int(20, 2, &mut attribute);
            encoded.push(attribute);
        }
        for (name, mut inner) in graphs {
            let mut attribute = Vec::new();
            bytes(2, name, &mut inner.graph);
            self.domains.append(&mut inner.domains);
            bytes(1, name, &mut attribute);
            bytes(6, inner.graph, &mut attribute);
            int(20, 5, &mut attribute);
            encoded.push(attribute);
        }
        self.add_node(operator, inputs, outputs, encoded)
    }

    fn add_node(mut self, operator: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<Vec<u8>>) -> Self {
        let mut node = Vec::new();
        inputs.iter().for_each(|name| bytes(1, name, &mut node));
        outputs.iter().for_each(|name| bytes(2, name, &mut node));
        bytes(3, outputs.concat(), &mut node);
        let (domain, operator) = operator.rsplit_once(':').unwrap_or(("", operator));
        bytes(4, operator, &mut node);
        if !domain.is_empty() {
            bytes(7, domain, &mut node);
            self.domains.insert(domain.to_owned());
        }
        attributes.into_iter().for_each(|attribute| bytes(5, attribute, &mut node));
        bytes(1, node, &mut self.graph);
        self
    }

    /// Adds an input.
    pub fn input(mut self, name: &str, datatype: i64, dims: &[i64]) -> Self {
        bytes(11, value(name, datatype, dims), &mut self.graph);
        self
    }

    /// Adds an output.
    pub fn output(mut self, name: &str, datatype: i64, dims: &[i64]) -> Self {
        bytes(12, value(name, datatype, dims), &mut self.graph);
        self
    }

    /// Adds a constant.
    pub fn constant(mut self, name: &str, datatype: i64, dims: &[i64], raw: &[u8]) -> Self {
        let mut tensor = Vec::new();
        dims.iter().for_each(|dimension| int(1, *dimension, &mut tensor));
        int(2, datatype, &mut tensor);
        bytes(8, name, &mut tensor);
        bytes(9, raw, &mut tensor);
        bytes(5, tensor, &mut self.graph);
        self
    }

    /// Adds a constant of floats whose bytes are in another file.
    pub fn external(mut self, name: &str, dims: &[i64], place: &str) -> Self {
        let mut tensor = Vec::new();
        dims.iter().for_each(|dimension| int(1, *dimension, &mut tensor));
        int(2, FLOAT, &mut tensor);
        bytes(8, name, &mut tensor);
        // In bytes of FP32. `length` is optional in ONNX, but the embedded engine needs it.
        let length = (4 * dims.iter().product::<i64>()).to_string();
        for (key, value) in [("location", place), ("offset", "0"), ("length", &length)] {
            let mut pair = Vec::new();
            bytes(1, key, &mut pair);
            bytes(2, value, &mut pair);
            bytes(13, pair, &mut tensor);
        }
        int(14, 1, &mut tensor);
        bytes(5, tensor, &mut self.graph);
        self
    }

    /// The file.
    pub fn into_bytes(self) -> Vec<u8> {
        self.into_bytes_of(13)
    }

    /// The file, for this version of ONNX's operators.
    pub fn into_bytes_of(self, version: i64) -> Vec<u8> {
        let mut opset = Vec::new();
        bytes(1, "", &mut opset);
        int(2, version, &mut opset);
        let mut model = Vec::new();
        int(1, 8, &mut model);
        bytes(7, self.graph, &mut model);
        bytes(8, opset, &mut model);
        for domain in self.domains {
            let mut opset = Vec::new();
            bytes(1, &domain, &mut opset);
            int(2, if domain == "ai.onnx.ml" { 3 } else { 1 }, &mut opset);
            bytes(8, opset, &mut model);
        }
        model
    }

    /// Two inputs `[N, 16]`; `OUTPUT0` is their sum, `OUTPUT1` their difference.
    pub fn addsub(datatype: i64) -> Vec<u8> {
        Self::default()
            .node("Add", &["INPUT0", "INPUT1"], &["OUTPUT0"], &[])
            .node("Sub", &["INPUT0", "INPUT1"], &["OUTPUT1"], &[])
            .input("INPUT0", datatype, &[-1, 16])
            .input("INPUT1", datatype, &[-1, 16])
            .output("OUTPUT0", datatype, &[-1, 16])
            .output("OUTPUT1", datatype, &[-1, 16])
            .into_bytes()
    }
}

/// The words of a text, those in single quotes whole.
fn words(text: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let is_end = |letter: char| {
        is_quoted ^= letter == '\'';
        letter == ' ' && !is_quoted
    };
    text.split(is_end).filter(|word| !word.is_empty()).collect()
}

/// An attribute such as `axis=1`.
fn attribute(text: &str) -> Vec<u8> {
    let (name, value) = text.split_once('=').expect("a name and a value");
    let mut out = Vec::new();
    bytes(1, name, &mut out);
    let list = value.strip_prefix('[').map(|list| list.trim_end_matches(']').split(',').collect::<Vec<_>>());
    let is_list = list.is_some();
    let values = list.unwrap_or_else(|| vec![value]);
    // `AttributeProto`: the fields and types of a single value and of a list.
    if let Ok(integers) = values.iter().map(|value| value.parse::<i64>()).collect::<Result<Vec<_>, _>>() {
        integers.into_iter().for_each(|value| int(if is_list { 8 } else { 3 }, value, &mut out));
        int(20, if is_list { 7 } else { 2 }, &mut out);
    } else if let Ok(floats) = values.iter().map(|value| value.parse::<f32>()).collect::<Result<Vec<_>, _>>() {
        for value in floats {
            let field = if is_list { 7 } else { 2 };
            varint(field << 3 | 5, &mut out);
            out.extend_from_slice(&value.to_le_bytes());
        }
        int(20, if is_list { 6 } else { 1 }, &mut out);
    } else {
        values.into_iter().for_each(|value| bytes(if is_list { 9 } else { 4 }, value.trim_matches('\''), &mut out));
        int(20, if is_list { 8 } else { 3 }, &mut out);
    }
    out
}

fn value(name: &str, datatype: i64, dims: &[i64]) -> Vec<u8> {
    let mut shape = Vec::new();
    for (index, size) in dims.iter().enumerate() {
        let mut dimension = Vec::new();
        match size {
            -1 => bytes(2, format!("d{index}"), &mut dimension),
            size => int(1, *size, &mut dimension),
        }
        bytes(1, dimension, &mut shape);
    }
    let mut tensor = Vec::new();
    int(1, datatype, &mut tensor);
    bytes(2, shape, &mut tensor);
    let mut kind = Vec::new();
    bytes(1, tensor, &mut kind);
    let mut value = Vec::new();
    bytes(1, name, &mut value);
    bytes(2, kind, &mut value);
    value
}

fn bytes(field: u64, value: impl AsRef<[u8]>, out: &mut Vec<u8>) {
    varint(field << 3 | 2, out);
    varint(value.as_ref().len() as u64, out);
    out.extend_from_slice(value.as_ref());
}

fn int(field: u64, value: i64, out: &mut Vec<u8>) {
    varint(field << 3, out);
    varint(value.cast_unsigned(), out);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
