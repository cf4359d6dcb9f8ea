//! The graph of OpenVINO's IR (`model.xml`), as far as integers matter. The reader takes what the library writes: tags with
//! attributes in double quotes, of which each layer names the precision of what it gives.

use std::collections::HashMap;

use super::{Graph, IntegerOperator, Node, NumberType};

/// Reads bytes of the file of weights, at an offset.
pub type WeightsReader<'a> = &'a dyn Fn(u64, usize) -> Option<Vec<u8>>;

/// Bytes of a constant whose bounds are looked for.
const CONSTANT_SIZE_MAX: usize = 8 << 20;

/// Reads a file. Returns `None` if it has no layers, or edges that lead nowhere.
pub fn read(text: &str, weights: WeightsReader<'_>) -> Option<Graph> {
    let mut layers: Vec<Layer<'_>> = Vec::new();
    let mut edges: Vec<[&str; 4]> = Vec::new();
    // Layers lie in the bodies of others, with ids of their own.
    let (mut depth, mut side) = (0_usize, Side::None);
    for tag in tags(text) {
        let (name, is_closed) = (tag.name(), tag.0.ends_with('/'));
        match name {
            "layer" => {
                depth += usize::from(!is_closed);
                if depth == 1 || (depth == 0 && is_closed) {
                    layers.push(Layer { tag, data: "", inputs: Vec::new(), outputs: Vec::new() });
                }
            }
            "/layer" => depth = depth.saturating_sub(1),
            "edge" if depth == 0 => {
                edges.push(["from-layer", "from-port", "to-layer", "to-port"].map(|key| tag.get(key)))
            }
            "data" if depth == 1 => layers.last_mut()?.data = tag.0,
            "input" if depth == 1 => side = Side::Input,
            "output" if depth == 1 => side = Side::Output,
            "/input" | "/output" if depth == 1 => side = Side::None,
            "port" if depth == 1 => {
                let layer = layers.last_mut()?;
                match side {
                    Side::Input => layer.inputs.push(tag.get("id")),
                    Side::Output => layer.outputs.push(tag),
                    Side::None => {}
                }
            }
            _ => {}
        }
    }
    if layers.is_empty() { None } else { assemble(&layers, &edges, weights) }
}

/// The layer by which a model keeps a state from run to run, in its bodies too.
pub fn keeps_state(text: &str) -> Option<String> {
    let kept = tags(text).find(|tag| tag.name() == "layer" && matches!(tag.get("type"), "Assign" | "ReadValue"))?;
    Some(format!("{} '{}'", kept.get("type"), plain(kept.get("name"))))
}

#[derive(Clone, Copy)]
enum Side {
    None,
    Input,
    Output,
}

struct Layer<'a> {
    tag: Tag<'a>,
    data: &'a str,
    inputs: Vec<&'a str>,
    outputs: Vec<Tag<'a>>,
}

fn assemble(layers: &[Layer<'_>], edges: &[[&str; 4]], weights: WeightsReader<'_>) -> Option<Graph> {
    let mut graph = Graph::default();
    let mut values: HashMap<(&str, &str), usize> = HashMap::new();
    for layer in layers {
        for port in &layer.outputs {
            values.insert((layer.tag.get("id"), port.get("id")), graph.elements.len());
            graph.elements.push(of_precision(port.get("precision")));
        }
    }
    let mut sources: HashMap<(&str, &str), usize> = HashMap::new();
    for [from, from_port, to, to_port] in edges {
        sources.insert((to, to_port), *values.get(&(*from, *from_port))?);
    }
    // The library writes layers behind those that they read.
    for layer in layers {
        let (id, kind, name) = (layer.tag.get("id"), layer.tag.get("type"), layer.tag.get("name"));
        let outputs: Vec<usize> =
            layer.outputs.iter().filter_map(|port| values.get(&(id, port.get("id"))).copied()).collect();
        if kind == "Parameter" {
            let names = layer.outputs.first().map_or("", |port| port.get("names"));
            let names = names.split(',').chain([name]).map(plain).collect();
            graph.inputs.push((names, *outputs.first()?));
            continue;
        }
        let inputs = layer.inputs.iter().map(|port| sources.get(&(id, *port)).copied()).collect();
        let operator = match kind {
            "Const" => constant(Tag(layer.data), weights),
            kind => {
                let reduction = Tag(layer.data).get("reduction");
                IntegerOperator::find(kind, !matches!(reduction, "" | "none"))
            }
        };
        let described = format!("operator {kind} '{}'", plain(name));
        graph.nodes.push(Node { described, operator, inputs, outputs });
    }
    Some(graph)
}

fn constant(data: Tag<'_>, weights: WeightsReader<'_>) -> IntegerOperator {
    let element = of_precision(&data.get("element_type").to_ascii_uppercase());
    let NumberType::Integer(low, high) = element else { return IntegerOperator::constant(0, 0) };
    let size = data.get("size").parse().unwrap_or(usize::MAX);
    let bytes = data.get("offset").parse().ok().filter(|_| size <= CONSTANT_SIZE_MAX);
    let Some(bytes) = bytes.and_then(|offset| weights(offset, size)) else {
        return IntegerOperator::constant(low, high);
    };
    let numbers: Vec<i64> = match data.get("element_type") {
        "i64" => bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
        "u64" => {
            let numbers = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
            numbers.map(|number| i64::try_from(number).unwrap_or(i64::MAX)).collect()
        }
        "i32" => bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect(),
        "u32" => bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes).into()).collect(),
        _ => vec![low, high],
    };
    let (low, high) = (numbers.iter().min().copied(), numbers.iter().max().copied());
    IntegerOperator::constant(low.unwrap_or_default(), high.unwrap_or_default())
}

fn of_precision(precision: &str) -> NumberType {
    match precision {
        "BF16" | "FP16" | "F16" | "FP32" | "F32" => NumberType::Float,
        "FP64" | "F64" => NumberType::Double,
        "BOOL" | "BOOLEAN" => NumberType::BOOL,
        "I8" => NumberType::Integer(-128, 127),
        "U8" => NumberType::Integer(0, 255),
        "I16" => NumberType::Integer(-32_768, 32_767),
        "U16" => NumberType::Integer(0, 65_535),
        "I32" => NumberType::INT32,
        "U32" => NumberType::UINT32,
        "I64" => NumberType::INT64,
        "U64" => NumberType::UINT64,
        _ => NumberType::Other,
    }
}

/// A tag without its brackets: a name, and attributes.
#[derive(Clone, Copy)]
struct Tag<'a>(&'a str);

impl<'a> Tag<'a> {
    fn name(self) -> &'a str {
        self.0.split(|letter: char| letter.is_ascii_whitespace()).next().unwrap_or_default().trim_end_matches('/')
    }

    /// An attribute's value; empty if it is missing.
    fn get(self, key: &str) -> &'a str {
        let mut rest = self.0;
        while let Some((before, after)) = rest.split_once("=\"") {
            let Some((value, next)) = after.split_once('"') else { return "" };
            if before.rsplit(|letter: char| letter.is_ascii_whitespace()).next() == Some(key) {
                return value;
            }
            rest = next;
        }
        ""
    }
}

/// The tags of a text, comments and declarations among them. A value may have a `>`.
fn tags(text: &str) -> impl Iterator<Item = Tag<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, from) = rest.split_once('<')?;
        let mut is_quoted = false;
        let end = from.find(|letter: char| {
            is_quoted ^= letter == '"';
            letter == '>' && !is_quoted
        })?;
        let (tag, after) = from.split_at_checked(end)?;
        rest = after;
        Some(Tag(tag))
    })
}

/// A name without XML's escapes.
fn plain(text: &str) -> String {
    let pairs = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    pairs.iter().fold(text.to_owned(), |text, (escaped, letter)| text.replace(escaped, letter))
}
