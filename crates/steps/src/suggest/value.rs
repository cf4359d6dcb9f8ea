//! Values of Python as far as they are known, and the arguments of a call.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::suggest::graph::{ExprId, LoopId};
use crate::suggest::picture::Transform;
use crate::suggest::token::Tokenizer;

/// A value of Python.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
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
    Method(Box<Value>, String),
    Nothing,
    Object(Rc<Object>),
    /// A path below the model's directory.
    Path(String),
    Raw(Vec<u8>),
    Slice(Box<[Value; 3]>),
    Text(String),
    Tuple(Vec<Value>),
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

/// An object of a library that is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// Fields of a hub folder's config.json.
    Config,
    /// Outputs of a tokenizer by name.
    Encoding(BTreeMap<String, (ExprId, ArrayKind)>),
    /// An image processor of transformers, by the path of its file.
    ImageProcessor(String),
    /// Requests of an execute, and one of them.
    Request,
    Requests,
    /// A response, and the outputs that it has by name.
    Response(Vec<(String, Value, usize)>),
    /// An error instead of a response.
    Refusal,
    Tensor(String, Box<Value>, usize),
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
    pub items: Vec<Value>,
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
    pub entries: Vec<(Value, Value)>,
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
    pub element: Value,
    /// The rows that have an element; all without one.
    pub condition: Option<ExprId>,
}

/// The arguments of a call.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    pub positional: Vec<Value>,
    pub named: Vec<(String, Value)>,
}

impl Arguments {
    /// Returns the arguments by the names of the parameters; an error for one that is not among them.
    pub fn bind<const COUNT: usize>(&self, names: [&str; COUNT]) -> Result<[Option<Value>; COUNT], String> {
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
    pub fn named(&self, name: &str) -> Option<Value> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    /// The arguments without one.
    pub fn without(&self, name: &str) -> Self {
        let named = self.named.iter().filter(|(known, _)| known != name).cloned().collect();
        Self { positional: self.positional.clone(), named }
    }
}

impl Value {
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    pub fn library(name: &str) -> Self {
        Self::Library(name.to_owned())
    }

    pub fn object(object: Object) -> Self {
        Self::Object(Rc::new(object))
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
pub fn integer_or(value: &Option<Value>, default: i64) -> Result<i64, String> {
    match value {
        None => Ok(default),
        Some(value) => value.integer().ok_or_else(|| "an argument that is no known integer".to_owned()),
    }
}

/// An optional argument that is a flag.
pub fn flag_or(value: &Option<Value>, default: bool) -> Result<bool, String> {
    match value {
        None => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err("an argument that is no known flag".to_owned()),
    }
}

/// An argument that must be there.
pub fn needed(value: Option<Value>, name: &str) -> Result<Value, String> {
    value.ok_or_else(|| format!("it lacks the argument '{name}'"))
}
