//! The layers of OpenVINO's own form (IR, the `.xml`) that trust what a request brings. Each graph of the file, that of the
//! model and those inside loops, is read for itself: what flows in from its parameters may have any value, what is made
//! of shapes alone may not.

use std::collections::{BTreeMap, BTreeSet};

use super::HUGE_SIZE;

/// A layer that trusts its inputs at some ports.
struct TrustingLayer {
    /// The begin of its type; some types end with a number.
    kind: &'static str,
    ports: &'static [&'static str],
    /// The value that it does not survive, and the effect.
    reason: &'static str,
}

const fn layer(kind: &'static str, ports: &'static [&'static str], reason: &'static str) -> TrustingLayer {
    TrustingLayer { kind, ports, reason }
}

const INDEX_OUTSIDE: &str = "an index far outside raises SIGSEGV";
const LENGTH_0: &str = "a length of 0 raises SIGFPE";
const NO_ROWS: &str = "with weights of a request, a batch of size 0 raises SIGFPE";

/// The rows of `super::TRUSTING` for OpenVINO, by the names and ports of its own form, and all layers that make as
/// much as an input says.
const TRUSTING_LAYERS: [TrustingLayer; 26] = [
    layer("AdaptiveAvgPool", &["1"], HUGE_SIZE),
    layer("AdaptiveMaxPool", &["1"], HUGE_SIZE),
    layer("BatchToSpace", &["1", "2", "3"], HUGE_SIZE),
    layer("Broadcast", &["1"], HUGE_SIZE),
    layer("Col2Im", &["1", "2"], "a block larger than the image keeps it for ever"),
    layer("ConvolutionBackpropData", &["2"], HUGE_SIZE),
    layer("DFT", &["1", "2"], LENGTH_0),
    layer("Eye", &["0", "1", "3"], HUGE_SIZE),
    layer("GRUSequence", &["3", "4"], NO_ROWS),
    layer("GatherND", &["1"], INDEX_OUTSIDE),
    layer("GroupConvolutionBackpropData", &["2"], HUGE_SIZE),
    layer("IDFT", &["1", "2"], LENGTH_0),
    layer("IRDFT", &["1", "2"], LENGTH_0),
    layer("Interpolate", &["1", "2"], "a size of 2147483647 raises SIGSEGV"),
    layer("LSTMSequence", &["4", "5"], NO_ROWS),
    layer("Multinomial", &["1"], HUGE_SIZE),
    layer("OneHot", &["1"], HUGE_SIZE),
    layer("Pad", &["1", "2"], "a large padding, positive or negative, raises SIGSEGV"),
    layer("RDFT", &["1", "2"], LENGTH_0),
    layer("RNNSequence", &["3", "4"], NO_ROWS),
    layer("RandomUniform", &["0"], HUGE_SIZE),
    layer("Range", &["0", "1", "2"], HUGE_SIZE),
    layer("Scatter", &["1"], INDEX_OUTSIDE),
    layer("SpaceToBatch", &["1", "2", "3"], HUGE_SIZE),
    layer("Tile", &["1"], HUGE_SIZE),
    layer("TopK", &["1"], "a k larger than the axis raises SIGSEGV"),
];

/// An edge: from a layer, to a layer's port.
struct Edge<'a> {
    from: &'a str,
    to: &'a str,
    port: &'a str,
}

/// The types of the layers of one graph, by their ids.
type Layers<'a> = BTreeMap<&'a str, &'a str>;

/// The type of the first layer that trusts what a request brings, and what it does not survive.
pub(super) fn first_trusting(text: &str) -> Option<(String, &'static str)> {
    // The graphs whose layers are being read: that of the model, and those inside it.
    let mut open: Vec<Layers<'_>> = Vec::new();
    let mut read = Layers::new();
    let mut edges = Vec::new();
    for tag in text.split('<') {
        let name = tag.split([' ', '>', '/', '\n', '\t', '\r']).next().unwrap_or_default();
        match name {
            "layers" => open.push(Layers::new()),
            "layer" => {
                if let (Some(layers), Some(id), Some(kind)) =
                    (open.last_mut(), attribute(tag, "id"), attribute(tag, "type"))
                {
                    layers.insert(id, kind);
                }
            }
            "edge" => edges.extend(edge(tag)),
            "" if tag.starts_with("/layers") => (read, edges) = (open.pop().unwrap_or_default(), Vec::new()),
            "" if tag.starts_with("/edges") => {
                if let Some(found) = trusting_of_graph(&read, &edges) {
                    return Some(found);
                }
            }
            _ => {}
        }
    }
    None
}

fn trusting_of_graph(layers: &Layers<'_>, edges: &[Edge<'_>]) -> Option<(String, &'static str)> {
    let kind = |id: &str| layers.get(id).copied().unwrap_or_default();
    let mut readers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for edge in edges {
        readers.entry(edge.from).or_default().push(edge.to);
    }
    let of_request = |id: &&str| matches!(kind(id), "Parameter" | "ReadValue");
    let mut depending: BTreeSet<&str> = layers.keys().copied().filter(of_request).collect();
    let mut left: Vec<&str> = depending.iter().copied().collect();
    while let Some(id) = left.pop() {
        for reader in readers.get(id).into_iter().flatten() {
            // Its output depends on the shape alone.
            if !kind(reader).starts_with("ShapeOf") && depending.insert(reader) {
                left.push(reader);
            }
        }
    }
    edges.iter().filter(|edge| depending.contains(edge.from)).find_map(|edge| {
        let kind = kind(edge.to);
        let row = TRUSTING_LAYERS.iter().find(|row| kind.starts_with(row.kind) && row.ports.contains(&edge.port))?;
        Some((kind.to_owned(), row.reason))
    })
}

fn edge(tag: &str) -> Option<Edge<'_>> {
    let of = |name| attribute(tag, name);
    Some(Edge { from: of("from-layer")?, to: of("to-layer")?, port: of("to-port")? })
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let rest = tag.match_indices(name).find_map(|(at, _)| {
        let is_begin = tag[..at].ends_with(char::is_whitespace);
        tag[at + name.len()..].strip_prefix("=\"").filter(|_| is_begin)
    })?;
    rest.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph of layers such as `0 Parameter; 1 Const; 2 TopK` and edges such as `0-2:0 1-2:1`.
    fn graph(layers: &str, edges: &str) -> String {
        let layer = |text: &str| {
            let (id, rest) = text.trim().split_once(' ').unwrap();
            let (kind, inner) = rest.split_once('{').unwrap_or((rest, ""));
            format!("<layer id=\"{id}\" name=\"id=\" type=\"{kind}\" version=\"opset1\">{inner}</layer>")
        };
        let edge = |text: &str| {
            let (from, rest) = text.split_once('-').unwrap();
            let (to, port) = rest.split_once(':').unwrap();
            format!("<edge from-layer=\"{from}\" from-port=\"0\" to-layer=\"{to}\" to-port=\"{port}\"/>")
        };
        let layers: String = layers.split(';').map(layer).collect();
        let edges: String = edges.split_whitespace().map(edge).collect();
        format!("<layers>{layers}</layers>\n<edges>{edges}</edges>")
    }

    #[test]
    fn layers_that_trust_what_flows_in_from_a_parameter_are_found_by_the_ports_of_their_edges() {
        let check = |layers: &str, edges: &str, want: &str| {
            let found = first_trusting(&format!("<net>{}</net>", graph(layers, edges)));
            assert_eq!(found.map_or_else(String::new, |(kind, _)| kind), want, "{layers}, {edges}");
        };
        check("0 Parameter; 1 Parameter; 2 TopK", "0-2:0 1-2:1", "TopK");
        check("0 Parameter; 1 Const; 2 TopK", "0-2:0 1-2:1", "");
        check("0 Parameter; 1 ShapeOf; 2 TopK", "0-1:0 0-2:0 1-2:1", "");
        // A size computed from shapes is bounded by them; one computed from values has no bound.
        check("0 Parameter; 1 ShapeOf; 3 Gather; 2 Broadcast", "0-1:0 1-3:0 0-2:0 3-2:1", "");
        check("0 Parameter; 1 Convert; 3 Add; 2 Broadcast", "0-1:0 1-3:0 0-2:0 3-2:1", "Broadcast");
        check("0 Parameter; 2 Range", "0-2:2", "Range");
        check("0 Parameter; 1 Parameter; 2 Interpolate", "0-2:0 1-2:1", "Interpolate");
        check("0 Parameter; 2 ScatterElementsUpdate", "0-2:1", "ScatterElementsUpdate");
        // Its second input is a state, not the weights.
        check("0 Parameter; 1 Parameter; 2 LSTMSequence", "0-2:0 1-2:1", "");
        check("0 Parameter; 1 Parameter; 2 LSTMSequence", "0-2:0 1-2:4", "LSTMSequence");
        check("0 Parameter; 2 Relu", "0-2:0", "");
    }

    #[test]
    fn a_graph_inside_a_layer_has_ids_of_its_own() {
        let inside = |edges: &str| {
            let body = format!("<body>{}</body>", graph("0 Parameter; 1 Const; 2 Tile", edges));
            graph("0 Const; 1 Const; 2 Loop{BODY", "0-2:0 1-2:1").replace("BODY", &body)
        };
        assert_eq!(first_trusting(&inside("0-2:1")), Some(("Tile".to_owned(), HUGE_SIZE)));
        assert_eq!(first_trusting(&inside("0-2:0 1-2:1")), None);
        assert_eq!(first_trusting(""), None);
        assert_eq!(first_trusting("</layers></edges><layer id=\"1"), None);
    }
}
