//! One case: a name, and the exact bytes that both servers get. The tables in `cases/` are written with `Table`.

use crate::support::{
    escape::escape,
    http,
    protobuf::{Message, dump},
};

/// The method of [`Ask::Stream`].
pub const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The request of a case.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ask {
    /// These bytes to the gRPC port, as the message of one unary call.
    Grpc {
        /// `/package.Service/Method`.
        method: &'static str,
        /// The message.
        message: Vec<u8>,
    },
    /// These bytes to the HTTP port, on a connection of their own.
    Http(Vec<u8>),
    /// This one message on a stream of inferences of its own, which is then ended.
    Stream(Vec<u8>),
}

impl Ask {
    /// The bytes as lines that a person can read; two asks are the same exactly when their texts are.
    pub fn text(&self) -> String {
        match self {
            Self::Grpc { method, message } => format!("{method}\n{}", dump(message)).trim_end().to_owned(),
            Self::Stream(message) => format!("{STREAM}\n{}", dump(message)).trim_end().to_owned(),
            Self::Http(bytes) => {
                let (head, body) = match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                    Some(end) => bytes.split_at(end + 4),
                    None => (bytes.as_slice(), [].as_slice()),
                };
                let mut text = escape(head).replace("\\r\\n", "\n").trim_end().to_owned();
                if !body.is_empty() {
                    text.push_str("\n\n");
                    text.push_str(&escape(body));
                }
                text
            }
        }
    }
}

/// One row of the table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Case {
    /// `group: subject`, unlike every other.
    pub name: String,
    /// Its request.
    pub ask: Ask,
}

/// The cases of one group, in the order in which they are played.
pub struct Table {
    group: &'static str,
    cases: Vec<Case>,
}

impl Table {
    /// A group without cases.
    pub fn new(group: &'static str) -> Self {
        Self { group, cases: Vec::new() }
    }

    /// Its cases.
    pub fn into_cases(self) -> Vec<Case> {
        self.cases
    }

    /// Any bytes.
    pub fn raw(&mut self, name: &str, bytes: impl Into<Vec<u8>>) {
        self.push(name, Ask::Http(bytes.into()));
    }

    /// A request without body.
    pub fn verb(&mut self, method: &str, path: &str) {
        self.raw(&format!("{method} {path}"), http::request(method, path, &[], b""));
    }

    /// `GET` of each path.
    pub fn get(&mut self, paths: &[&str]) {
        paths.iter().for_each(|path| self.verb("GET", path));
    }

    /// `POST` with headers and body.
    pub fn post(&mut self, name: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        self.raw(name, http::request("POST", path, headers, body));
    }

    /// An inference whose body is `json`.
    pub fn infer(&mut self, name: &str, model: &str, json: &str) {
        self.post(name, &infer_path(model), &[], json.as_bytes());
    }

    /// An inference with one input, `INPUT0`, whose `data` is given.
    pub fn data(&mut self, name: &str, model: &str, (datatype, shape): (&str, &str), data: &str) {
        self.infer(name, model, &one_input(datatype, shape, &format!(r#""data":{data}"#)));
    }

    /// An inference with a JSON part and bytes behind it, with the header that tells them apart.
    pub fn binary(&mut self, name: &str, model: &str, json: &str, tensors: &[u8]) {
        self.with_header_length(name, model, &json.len().to_string(), &[json.as_bytes(), tensors].concat());
    }

    /// An inference with the `Inference-Header-Content-Length` as given.
    pub fn with_header_length(&mut self, name: &str, model: &str, length: &str, body: &[u8]) {
        self.post(name, &infer_path(model), &[("Inference-Header-Content-Length", length)], body);
    }

    /// A unary call of `inference.GRPCInferenceService`.
    pub fn call(&mut self, name: &str, method: &'static str, message: Message) {
        self.push(name, Ask::Grpc { method, message: message.into_bytes() });
    }

    /// One inference on a stream of its own.
    pub fn stream(&mut self, name: &str, message: Message) {
        self.push(name, Ask::Stream(message.into_bytes()));
    }

    fn push(&mut self, name: &str, ask: Ask) {
        self.cases.push(Case { name: format!("{}: {name}", self.group), ask });
    }
}

/// An inference request as JSON with one input, `INPUT0`, whose last fields are `rest`.
pub fn one_input(datatype: &str, shape: &str, rest: &str) -> String {
    format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"{datatype}","shape":{shape},{rest}}}]}}"#)
}

/// The same with a list of requested outputs.
pub fn one_input_to(datatype: &str, shape: &str, rest: &str, outputs: &str) -> String {
    format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"{datatype}","shape":{shape},{rest}}}],"outputs":{outputs}}}"#)
}

fn infer_path(model: &str) -> String {
    format!("/v2/models/{model}/infer")
}
