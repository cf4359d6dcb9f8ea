//! Values of Python as far as they are known, and the arguments of a call.

use crate::suggest::op::{ExprId, LoopId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A value of Python.
#[derive(Clone, Debug, PartialEq)]
pub enum PyValue {
    Array(ExprId, ArrayKind),
    Bool(bool),
    /// A class of the file.
    Class(usize),
    Dict(usize),
    Ellipsis,
    /// A file that is open, by its path and whether it is read as text.
    File(String, bool),
    Float(f64),
    Function(Closure),
    /// An object of a class of the file.
    Instance(usize),
    Int(i64),
    /// Something of a module, by its full name.
    Library(String),
    List(usize),
    Method(Box<PyValue>, String),
    Nothing,
    Object(Arc<Object>),
    /// A path below the model's directory.
    Path(String),
    Raw(Vec<u8>),
    Slice(Box<[PyValue; 3]>),
    Text(String),
    Tuple(Vec<PyValue>),
    /// Not interpreted, for the reason at this place.
    Unknown(usize),
}

/// The library that an array belongs to: the same operator can have another result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayKind {
    Numpy,
    /// An image of Pillow.
    Pillow,
    /// A number or string of Python.
    Python,
    Torch,
}

/// A function of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Closure {
    /// Its definition.
    pub node: usize,
    /// The object that it is bound to.
    pub own: Option<usize>,
    /// The frame that it was defined in.
    pub frame: Option<usize>,
}

/// A tokenizer, as an object of Python.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokenizer {
    /// The path of the `tokenizer.json`.
    pub file: String,
    /// The path of the `tokenizer_config.json`, for one of transformers.
    pub config: Option<String>,
    /// Parameters that calls of `enable_padding` and `enable_truncation` set, in the package tokenizers.
    pub padding: Vec<(&'static str, String)>,
    pub truncation: Vec<(&'static str, String)>,
    /// Settings of transformers that a call or assignment changed.
    pub side: Option<String>,
}

/// A transform of torchvision.
#[derive(Clone, Debug, PartialEq)]
pub enum Transform {
    Crop(u64, u64),
    Normalize(PyValue, PyValue),
    Resize(u64, u64, &'static str),
    Shortest(u64, &'static str),
    ToTensor,
}

/// An object of a library that is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A request to another model, and the response to it: a tensor for each output that is asked for.
    Call(Vec<(String, ExprId)>),
    /// Fields of a hub folder's config.json.
    Config,
    /// Outputs of a tokenizer by name.
    Encoding(BTreeMap<String, (ExprId, ArrayKind)>),
    /// The extractor of a Whisper network, by the path of its file.
    FeatureExtractor(String),
    /// An image processor of transformers, by the path of its file.
    ImageProcessor(String),
    /// Requests of an execute, and one of them.
    Request,
    Requests,
    /// A response, and the outputs that it has by name.
    Response(Vec<(String, PyValue, usize)>),
    /// An error instead of a response.
    Refusal,
    Tensor(String, Box<PyValue>, usize),
    /// An input tensor.
    InputTensor(ExprId),
    Tokenizer(Tokenizer),
    Transforms(Vec<Transform>),
    /// A device of torch.
    Device,
}

/// A list, or another iterable.
#[derive(Clone, Debug, Default)]
pub struct List {
    pub items: Vec<PyValue>,
    /// Elements that a loop over rows appends.
    pub each: Option<Each>,
    /// The number of loops in which the list was made.
    pub depth: usize,
    /// The number of conditions under which it was made.
    pub conditions: usize,
    /// The reason that it is not known.
    pub broken: Option<usize>,
    /// The levels of lists in it, itself included.
    pub levels: usize,
}

/// A dictionary.
#[derive(Clone, Debug, Default)]
pub struct Dict {
    pub entries: Vec<(PyValue, PyValue)>,
    /// As for a [`List`].
    pub depth: usize,
    pub conditions: usize,
    pub broken: Option<usize>,
    pub levels: usize,
}

/// An element for each row of a loop.
#[derive(Clone, Debug)]
pub struct Each {
    pub on: LoopId,
    pub element: PyValue,
    /// The rows that have an element; all without one.
    pub condition: Option<ExprId>,
}

/// The arguments of a call.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    pub positional: Vec<PyValue>,
    pub named: Vec<(String, PyValue)>,
}

impl Arguments {
    /// Returns the arguments by the names of the parameters; an error for one that is not among them.
    pub fn bind<const COUNT: usize>(&self, names: [&str; COUNT]) -> Result<[Option<PyValue>; COUNT], String> {
        if self.positional.len() > COUNT {
            return Err(format!("it has {} arguments, of which {COUNT} are known", self.positional.len()));
        }
        if let Some((other, _)) = self.named.iter().find(|(name, _)| !names.contains(&name.as_str())) {
            return Err(format!("its argument '{other}' is not known"));
        }
        let mut bound = names.map(|name| self.named(name));
        for (place, value) in bound.iter_mut().zip(&self.positional) {
            *place = Some(value.clone());
        }
        Ok(bound)
    }

    /// An argument by its name.
    pub fn named(&self, name: &str) -> Option<PyValue> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    /// The arguments without one.
    pub fn without(&self, name: &str) -> Self {
        let named = self.named.iter().filter(|(known, _)| known != name).cloned().collect();
        Self { positional: self.positional.clone(), named }
    }
}

impl PyValue {
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    pub fn library(name: &str) -> Self {
        Self::Library(name.to_owned())
    }

    pub fn object(object: Object) -> Self {
        Self::Object(Arc::new(object))
    }

    /// A number of Python.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Int(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            Self::Bool(value) => Some(f64::from(u8::from(*value))),
            _ => None,
        }
    }

    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    pub fn array(&self) -> Option<(ExprId, ArrayKind)> {
        match self {
            Self::Array(id, kind) => Some((*id, *kind)),
            _ => None,
        }
    }
}

/// An optional argument that is an integer; `default` without it or for `None`.
pub fn integer_or(value: &Option<PyValue>, default: i64) -> Result<i64, String> {
    match value {
        None => Ok(default),
        Some(value) => value.integer().ok_or_else(|| "an argument that is no known integer".to_owned()),
    }
}

/// An optional argument that is a flag.
pub fn flag_or(value: &Option<PyValue>, default: bool) -> Result<bool, String> {
    match value {
        None => Ok(default),
        Some(PyValue::Bool(value)) => Ok(*value),
        Some(_) => Err("an argument that is no known flag".to_owned()),
    }
}

/// An argument that must be there.
pub fn needed(value: Option<PyValue>, name: &str) -> Result<PyValue, String> {
    value.ok_or_else(|| format!("it lacks the argument '{name}'"))
}

/// Stands around a template whose text is not ASCII.
pub const NOT_ASCII: &str = "\u{0}ascii";

/// The text that stands for the model's configuration.
pub const MODEL_CONFIG: &str = "\u{0}model_config";

/// The result of a call.
pub type Called = Result<PyValue, String>;
