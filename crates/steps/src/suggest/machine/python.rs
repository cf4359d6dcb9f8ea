//! Functions and methods of Python itself and of its standard library.

use std::sync::Arc;

use base::tensor::Datatype;

use crate::limits::{STEP_FILE_SIZE_MAX, SUGGEST_RANGE_MAX, SUGGEST_TEXT_SIZE_MAX};
use crate::suggest::library;
use crate::suggest::machine::Machine;
use crate::suggest::op::{CompareOp, CtcForm, Dim, ExprId, JsonTemplate, Kind, Op, PictureOp};
use crate::suggest::tree::SyntaxNode;
use crate::suggest::value::{Arguments, ArrayKind, Called, Object, PyValue, needed};

impl<'a> Machine<'a> {
    pub fn call_library(&mut self, path: &str, arguments: &Arguments) -> Called {
        let last = path.rsplit('.').next().unwrap_or_default();
        let (module, _) = path.split_once('.').unwrap_or((path, ""));
        match module {
            "builtins" => self.builtin(last, arguments),
            // Of other parts of the libraries functions can have the same name and another meaning.
            "numpy" if path.matches('.').count() == 1 || path == "numpy.linalg.norm" => {
                self.numeric(last, ArrayKind::Numpy, arguments)
            }
            "scipy" if path == "scipy.special.softmax" => self.numeric(last, ArrayKind::Numpy, arguments),
            "torch" => self.torch(path, last, arguments),
            "PIL" | "cv2" | "torchvision" => self.call_picture(path, arguments),
            "soundfile" | "librosa" | "torchaudio" => self.call_sound(path, arguments),
            "kaldi_native_fbank" => self.native_fbank(last, arguments),
            "scipy" if path == "scipy.signal.resample_poly" => self.call_sound(path, arguments),
            "transformers" if path.starts_with("transformers.WhisperFeatureExtractor") => {
                self.call_sound(path, arguments)
            }
            "transformers" | "tokenizers" => self.call_tokenizer(path, arguments),
            "triton_python_backend_utils" => self.call_triton(last, arguments),
            "json" | "os" | "pathlib" | "base64" | "io" | "itertools" | "math" | "copy" => {
                self.standard(path, arguments)
            }
            _ => Err("it is not known".to_owned()),
        }
    }

    fn torch(&mut self, path: &str, last: &str, arguments: &Arguments) -> Called {
        match path {
            "torch.no_grad" | "torch.inference_mode" => Ok(PyValue::Nothing),
            "torch.device" => Ok(PyValue::object(Object::Device)),
            "torch.nn.Softmax" => {
                let [axis] = arguments.bind(["dim"])?;
                let softmax = PyValue::Method(Box::new(PyValue::library("torch")), "softmax".to_owned());
                let _ = softmax;
                match needed(axis, "dim")? {
                    PyValue::Int(axis) => {
                        Ok(PyValue::Method(Box::new(PyValue::Int(axis)), "torch.nn.Softmax".to_owned()))
                    }
                    _ => Err("its axis is not known".to_owned()),
                }
            }
            "torch.nn.Sigmoid" => Ok(PyValue::library("torch.sigmoid")),
            _ if path.matches('.').count() == 1
                || path.starts_with("torch.nn.functional.")
                || path == "torch.linalg.norm" =>
            {
                // scipy's `expit` has the name of torch's sigmoid here, but gives an array of its argument's kind.
                let kind = match (last, arguments.positional.first()) {
                    ("sigmoid", Some(PyValue::Array(_, kind))) => *kind,
                    _ => ArrayKind::Torch,
                };
                self.numeric(last, kind, arguments)
            }
            _ => Err("it is not known".to_owned()),
        }
    }

    pub fn call_method(&mut self, receiver: &PyValue, name: &str, arguments: &Arguments) -> Called {
        let with_receiver = || {
            let positional = std::iter::once(receiver.clone()).chain(arguments.positional.iter().cloned()).collect();
            Arguments { positional, named: arguments.named.clone() }
        };
        match receiver {
            PyValue::Int(axis) if name == "torch.nn.Softmax" => {
                let [x] = arguments.bind(["input"])?;
                let id = self.as_array(&needed(x, "input")?)?;
                Ok(PyValue::Array(self.softmax(id, *axis)?, ArrayKind::Torch))
            }
            PyValue::Array(id, ArrayKind::Pillow) => self.picture_method(*id, name, arguments),
            PyValue::Array(id, kind) => self.array_method(*id, *kind, name, &with_receiver()),
            PyValue::List(list) => self.list_method(*list, name, arguments),
            PyValue::Dict(dict) => self.dict_method(*dict, name, arguments),
            PyValue::Text(text) => self.text_method(text, name, arguments),
            PyValue::Raw(bytes) if name == "decode" => {
                String::from_utf8(bytes.clone()).map(PyValue::Text).map_err(|_| "it is not UTF-8".to_owned())
            }
            PyValue::File(path, is_text) => self.file_method(path, *is_text, name),
            PyValue::Path(path) => self.path_method(path, name, arguments),
            PyValue::Object(object) => self.object_method(&Arc::clone(object), name, arguments),
            PyValue::Instance(own) => self.native_fbank_method(*own, name, arguments),
            PyValue::Tuple(_) if name == "index" => Err("it is not followed".to_owned()),
            _ => Err("a method of a value that is not known".to_owned()),
        }
    }

    fn array_method(&mut self, id: ExprId, kind: ArrayKind, name: &str, arguments: &Arguments) -> Called {
        let element = self.graph.kind(id);
        match (name, element) {
            ("decode", Kind::Raw) => {
                let encoding = arguments.positional.get(1).cloned().or(arguments.named("encoding"));
                match encoding {
                    None => {}
                    Some(PyValue::Text(text)) if ["utf-8", "utf8"].contains(&text.to_lowercase().as_str()) => {}
                    _ => return Err("another encoding than UTF-8".to_owned()),
                }
                if arguments.named("errors").is_some() || arguments.positional.len() > 2 {
                    return Err("errors of UTF-8 are not passed over by the steps".to_owned());
                }
                Ok(PyValue::Array(self.each(Op::Decode, id, Kind::Text)?, ArrayKind::Python))
            }
            ("encode", Kind::Text) => Ok(PyValue::Array(self.each(Op::Encode, id, Kind::Raw)?, ArrayKind::Python)),
            ("item" | "tolist", Kind::Raw | Kind::Text) if self.graph.rank(id) == 0 => {
                Ok(PyValue::Array(id, ArrayKind::Python))
            }
            ("get", Kind::Json) => match arguments.positional.get(1..) {
                Some([key]) => self.subscript(&PyValue::Array(id, kind), key),
                _ => Err("a default of a JSON member is not followed".to_owned()),
            },
            ("strip" | "lower" | "upper" | "replace" | "split", Kind::Text) => {
                Err("texts of requests are changed, which has no step".to_owned())
            }
            _ => self.numeric(name, kind, arguments),
        }
    }

    fn list_method(&mut self, list: usize, name: &str, arguments: &Arguments) -> Called {
        match (name, arguments.positional.as_slice()) {
            ("append", [value]) => {
                self.append(list, value.clone());
                Ok(PyValue::Nothing)
            }
            ("extend", [other]) => {
                let other = other.clone();
                self.extend(list, &other);
                Ok(PyValue::Nothing)
            }
            ("copy", []) => {
                let copy = self.list(list);
                self.charge(copy.items.len());
                self.lists.push(copy);
                Ok(PyValue::List(self.lists.len() - 1))
            }
            ("index", [value]) => {
                let place = self.items(&PyValue::List(list))?.iter().position(|item| item == value);
                place.map(|place| PyValue::Int(place as i64)).ok_or_else(|| "it is not in the list".to_owned())
            }
            // An array of strings or numbers that are known.
            ("tolist" | "astype" | "flatten", _) => Ok(PyValue::List(list)),
            ("insert", [PyValue::Int(place), value]) => {
                let (items, value) = (self.items(&PyValue::List(list))?, value.clone());
                let place = usize::try_from(*place).unwrap_or(0).min(items.len());
                if self.list(list).depth != self.loops.len() || self.list(list).conditions != self.conditions.len() {
                    return Err("it is not followed in a loop or under a condition".to_owned());
                }
                self.append(list, value);
                self.lists
                    .get_mut(list)
                    .and_then(|list| list.items.get_mut(place..))
                    .into_iter()
                    .for_each(|rest| rest.rotate_right(1));
                Ok(PyValue::Nothing)
            }
            _ => {
                let array = PyValue::Array(self.as_array(&PyValue::List(list))?, ArrayKind::Numpy);
                self.call_method(&array, name, arguments)
            }
        }
    }

    fn dict_method(&mut self, dict: usize, name: &str, arguments: &Arguments) -> Called {
        let entries = self.dict(dict).to_vec();
        match (name, arguments.positional.as_slice()) {
            ("get", [key]) | ("get", [key, _]) => {
                if let PyValue::Array(..) = key {
                    return self.subscript(&PyValue::Dict(dict), key);
                }
                let found = entries.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone());
                Ok(found.or_else(|| arguments.positional.get(1).cloned()).unwrap_or(PyValue::Nothing))
            }
            ("keys", []) => Ok(self.new_list(entries.into_iter().map(|(key, _)| key).collect())),
            ("values", []) => Ok(self.new_list(entries.into_iter().map(|(_, value)| value).collect())),
            ("items", []) => {
                let pairs = entries.into_iter().map(|(key, value)| PyValue::Tuple(vec![key, value])).collect();
                Ok(self.new_list(pairs))
            }
            _ => Err("it is not followed".to_owned()),
        }
    }

    fn text_method(&mut self, text: &str, name: &str, arguments: &Arguments) -> Called {
        let given = arguments.positional.as_slice();
        self.charge(text.len());
        Ok(match (name, given) {
            ("strip", []) => PyValue::text(text.trim()),
            ("rstrip", []) => PyValue::text(text.trim_end()),
            ("lstrip", []) => PyValue::text(text.trim_start()),
            ("strip", [PyValue::Text(letters)]) => PyValue::text(text.trim_matches(|letter| letters.contains(letter))),
            ("rstrip", [PyValue::Text(letters)]) => {
                PyValue::text(text.trim_end_matches(|letter| letters.contains(letter)))
            }
            ("lower", []) => PyValue::Text(text.to_lowercase()),
            ("upper", []) => PyValue::Text(text.to_uppercase()),
            ("split", []) => self.new_list(text.split_whitespace().map(PyValue::text).collect()),
            ("split", [PyValue::Text(separator)]) if !separator.is_empty() => {
                self.new_list(text.split(separator.as_str()).map(PyValue::text).collect())
            }
            ("splitlines", []) => {
                if text.contains(['\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}']) {
                    return Err("an unusual end of a line".to_owned());
                }
                let text = text.replace("\r\n", "\n").replace('\r', "\n");
                let text = text.strip_suffix('\n').unwrap_or(&text).to_owned();
                let lines = if text.is_empty() { Vec::new() } else { text.split('\n').map(PyValue::text).collect() };
                self.new_list(lines)
            }
            ("replace", [PyValue::Text(old), PyValue::Text(new)]) if new.len() <= old.len() => {
                PyValue::Text(text.replace(old, new))
            }
            ("startswith", [PyValue::Text(start)]) => PyValue::Bool(text.starts_with(start)),
            ("endswith", [PyValue::Text(end)]) => PyValue::Bool(text.ends_with(end)),
            ("encode", _) => PyValue::Raw(text.as_bytes().to_vec()),
            ("join", [list]) => return self.joined_list(text, list),
            ("isdigit", []) => PyValue::Bool(!text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit())),
            _ => return Err("it is not followed".to_owned()),
        })
    }

    /// `separator.join(list)`: of texts that are known, or of the symbols that CTC keeps.
    fn joined_list(&mut self, separator: &str, list: &PyValue) -> Called {
        if let Ok(items) = self.items(list) {
            let texts = items.into_iter().map(|item| match item {
                PyValue::Text(text) => Ok(text),
                _ => Err("a text that is not known is joined".to_owned()),
            });
            let texts = texts.collect::<Result<Vec<_>, String>>()?;
            let size: usize = texts.iter().map(|text| text.len() + separator.len()).sum();
            if size > SUGGEST_TEXT_SIZE_MAX {
                return Err("a text becomes too long".to_owned());
            }
            return Ok(PyValue::Text(texts.join(separator)));
        }
        let PyValue::List(list) = list else { return Err("a list that is not known".to_owned()) };
        let each = self.list(*list).each.ok_or("a list that is not known")?;
        let (PyValue::Array(symbol, _), Some(condition)) = (&each.element, each.condition) else {
            return Err("texts of rows are joined".to_owned());
        };
        let form = self.as_ctc(*symbol, condition)?.ok_or("texts of rows are joined in another way than CTC's")?;
        let (logits, want, form) = form;
        let form = CtcForm { separator: separator.to_owned(), ..form };
        let mut shape = self.graph.shape(logits);
        shape.truncate(shape.len().saturating_sub(2));
        let text = self.graph.add(Op::Ctc(Arc::new(form)), vec![logits], Kind::Text, shape)?;
        self.graph.absorb(text, &[*symbol, condition]);
        let text = self.graph.view(text, want)?;
        Ok(PyValue::Array(text, ArrayKind::Python))
    }

    fn file_method(&mut self, path: &str, is_text: bool, name: &str) -> Called {
        let text = self.read_text(path)?;
        Ok(match (name, is_text) {
            ("read", true) => PyValue::Text(text),
            ("readlines", true) => self.new_list(text.split_inclusive('\n').map(PyValue::text).collect()),
            ("close", _) => PyValue::Nothing,
            _ => return Err("it is not followed".to_owned()),
        })
    }

    fn path_method(&mut self, path: &str, name: &str, arguments: &Arguments) -> Called {
        match (name, arguments.positional.as_slice()) {
            ("joinpath", [PyValue::Text(part)]) => self.joined_path(&PyValue::Path(path.to_owned()), part),
            ("resolve" | "absolute" | "as_posix", []) => Ok(PyValue::Path(path.to_owned())),
            ("read_text", _) => self.read_text(path).map(PyValue::Text),
            ("open", _) => Ok(PyValue::File(path.to_owned(), true)),
            ("exists" | "is_file", []) => Ok(PyValue::Bool(self.read_text(path).is_ok())),
            _ => Err("it is not followed".to_owned()),
        }
    }

    /// The text of a file of the model.
    pub fn read_text(&mut self, path: &str) -> Result<String, String> {
        let name = self.file_name(path);
        if let Some(text) = self.files.get(&name) {
            return Ok(text.clone());
        }
        let bytes = (self.model.read_file)(&name, STEP_FILE_SIZE_MAX)
            .map_err(|why| format!("'{name}' cannot be read: {why}"))?;
        let text = String::from_utf8(bytes).map_err(|_| format!("'{name}' is not UTF-8"))?;
        self.files.insert(name, text.clone());
        Ok(text)
    }

    /// The name of a file, as a step has it, of its path below the model's directory.
    pub fn file_name(&self, path: &str) -> String {
        let path = path.trim_matches('/');
        path.strip_prefix(&format!("{}/", self.model.version)).unwrap_or(path).to_owned()
    }

    fn standard(&mut self, path: &str, arguments: &Arguments) -> Called {
        let first = arguments.positional.first();
        match path {
            "json.loads" => self.loads(&needed(first.cloned(), "s")?),
            "json.load" => match first {
                Some(PyValue::File(path, _)) => {
                    let text = self.read_text(&path.clone())?;
                    self.json_value(&text)
                }
                _ => Err("a file that is not known".to_owned()),
            },
            "json.dumps" => self.dumps(arguments),
            "os.path.join" | "pathlib.Path.joinpath" => {
                let (mut path, rest) =
                    arguments.positional.split_first().map(|(first, rest)| (first.clone(), rest)).ok_or("no path")?;
                for part in rest {
                    path = match part {
                        PyValue::Text(part) => self.joined_path(&path, part)?,
                        PyValue::Path(_) => part.clone(),
                        _ => return Err("a part of a path is not known".to_owned()),
                    };
                }
                Ok(path)
            }
            "os.path.dirname" => match first {
                Some(PyValue::Path(path)) => Ok(PyValue::Path(parent(path))),
                _ => Err("a path that is not known".to_owned()),
            },
            "os.path.abspath" | "os.path.realpath" | "pathlib.Path" | "os.fspath" => match first {
                Some(path @ (PyValue::Path(_) | PyValue::Text(_))) => Ok(path.clone()),
                _ => Err("a path that is not known".to_owned()),
            },
            "os.path.exists" | "os.path.isfile" => match first {
                Some(PyValue::Path(path)) => {
                    let path = path.clone();
                    Ok(PyValue::Bool(self.read_text(&path).is_ok()))
                }
                _ => Err("a path that is not known".to_owned()),
            },
            "base64.b64decode" => {
                let [data, _] = arguments.bind(["s", "validate"])?;
                let id = self.as_array(&needed(data, "s")?)?;
                match self.graph.kind(id) {
                    Kind::Raw | Kind::Text => {
                        Ok(PyValue::Array(self.each(Op::Picture(PictureOp::Base64), id, Kind::Raw)?, ArrayKind::Python))
                    }
                    _ => Err("it decodes no text".to_owned()),
                }
            }
            "io.BytesIO" => match first {
                Some(PyValue::Array(id, _)) if self.graph.kind(*id) == Kind::Raw => {
                    Ok(PyValue::Array(*id, ArrayKind::Python))
                }
                _ => Err("its bytes are not known".to_owned()),
            },
            "itertools.groupby" => match first {
                Some(value @ (PyValue::Array(..) | PyValue::List(_)))
                    if arguments.positional.len() == 1 && arguments.named.is_empty() =>
                {
                    self.grouped(&value.clone())
                }
                _ => Err("it is not followed".to_owned()),
            },
            "copy.copy" | "copy.deepcopy" => needed(first.cloned(), "x"),
            _ => Err("it is not known".to_owned()),
        }
    }

    /// The pairs of `groupby`, of which only the key can be used: a row that differs from the one before.
    fn grouped(&mut self, value: &PyValue) -> Called {
        let id = self.as_array(value)?;
        let length = self.graph.shape(id).first().copied().ok_or("a number is grouped")?;
        let on = self.graph.new_loop(length);
        let row = self.graph.row(on, id)?;
        let int = Kind::Number(Datatype::Int64);
        let before = self.graph.add(Op::Carried(on), Vec::new(), int, Vec::new())?;
        self.carried.insert(before, PyValue::Array(row, ArrayKind::Python));
        let differs = Op::Compare(CompareOp::Unequal);
        let condition = self.graph.add(differs, vec![row, before], Kind::Number(Datatype::Bool), Vec::new())?;
        let group = PyValue::object(Object::Refusal);
        Ok(self.new_each(on, PyValue::Tuple(vec![PyValue::Array(row, ArrayKind::Python), group]), Some(condition)))
    }

    fn builtin(&mut self, name: &str, arguments: &Arguments) -> Called {
        let first = arguments.positional.first().cloned();
        match name {
            "len" => self.length(&needed(first, "obj")?),
            "range" => self.range(&arguments.positional),
            "enumerate" | "zip" => self.zipped(name, arguments),
            "list" | "tuple" | "reversed" | "sorted" | "set" => match (name, first) {
                ("list", None) => Ok(self.new_list(Vec::new())),
                ("list" | "tuple", Some(value @ (PyValue::List(_) | PyValue::Tuple(_) | PyValue::Array(..)))) => {
                    Ok(value)
                }
                ("list", Some(value)) => {
                    let items = self.items(&value)?;
                    Ok(self.new_list(items))
                }
                ("reversed", Some(value)) => {
                    let items = self.items(&value)?;
                    Ok(self.new_list(items.into_iter().rev().collect()))
                }
                _ => Err("it is not followed".to_owned()),
            },
            "dict" if arguments.positional.is_empty() => {
                let entries =
                    arguments.named.iter().map(|(name, value)| (PyValue::text(name), value.clone())).collect();
                Ok(self.new_dict(entries))
            }
            "dict" => match first {
                Some(PyValue::Dict(dict)) => {
                    let entries = self.dict(dict).to_vec();
                    Ok(self.new_dict(entries))
                }
                _ => Err("it is not followed".to_owned()),
            },
            "int" | "float" | "bool" => self.converted_number(name, &needed(first, "x")?),
            "str" | "bytes" => self.converted_text(name, arguments),
            "round" => self.rounded(arguments),
            "isinstance" => self.isinstance(arguments),
            "hasattr" => Err("it is not followed".to_owned()),
            "open" => match first {
                Some(PyValue::Path(path)) => {
                    let mode = arguments.positional.get(1).cloned().or(arguments.named("mode"));
                    match mode {
                        None => Ok(PyValue::File(path, true)),
                        Some(PyValue::Text(mode)) if mode.contains('r') => Ok(PyValue::File(path, !mode.contains('b'))),
                        _ => Err("a file is written".to_owned()),
                    }
                }
                _ => Err("a path that is not below the model's directory".to_owned()),
            },
            "max" | "min"
                if arguments.positional.len() == 2
                    && arguments.positional.iter().any(|value| value.array().is_some()) =>
            {
                let texts: Option<Vec<_>> = arguments.positional.iter().map(|value| self.formula(value)).collect();
                let texts = texts.ok_or("its arguments are not known")?;
                self.new_formula(format!("{name}({})", texts.join(",")))
            }
            "abs" | "max" | "min" | "sum" => match first {
                Some(PyValue::Array(..)) if arguments.positional.len() == 1 => {
                    self.numeric(name, ArrayKind::Python, arguments)
                }
                _ => self.constant_function(name, arguments),
            },
            "ValueError" | "Exception" | "RuntimeError" | "TypeError" | "KeyError" => {
                Ok(PyValue::object(Object::Refusal))
            }
            _ => Err("it is not followed".to_owned()),
        }
    }

    fn constant_function(&self, name: &str, arguments: &Arguments) -> Called {
        let numbers: Option<Vec<i64>> = arguments.positional.iter().map(PyValue::integer).collect();
        let numbers = numbers.filter(|numbers| !numbers.is_empty()).ok_or("its arguments are not known")?;
        Ok(PyValue::Int(match name {
            "abs" => numbers.first().map_or(0, |number| number.saturating_abs()),
            "max" => numbers.into_iter().max().unwrap_or(0),
            "min" => numbers.into_iter().min().unwrap_or(0),
            _ => return Err("its arguments are not known".to_owned()),
        }))
    }

    fn length(&mut self, value: &PyValue) -> Called {
        match value {
            PyValue::Array(id, _) => {
                let first = self.graph.shape(*id).first().copied().ok_or("the length of a text or number")?;
                self.size(first)
            }
            PyValue::Object(object) if **object == Object::Requests => {
                let length = self.graph.loop_length(self.requests);
                self.size(length)
            }
            PyValue::List(list) if self.list(*list).each.is_some() => {
                let each = self.list(*list).each.ok_or("a list is not known")?;
                if each.condition.is_some() {
                    return Err("the length of a list that a condition fills".to_owned());
                }
                let length = self.graph.loop_length(each.on);
                self.size(length)
            }
            other => self.items(other).map(|items| PyValue::Int(items.len() as i64)),
        }
    }

    fn range(&mut self, bounds: &[PyValue]) -> Called {
        if let [PyValue::Array(id, _)] = bounds
            && let Op::Size(dim) = *self.graph.op(*id)
        {
            // The loop over requests is one; others of the same length are each a loop of their own.
            let on = match dim == self.graph.loop_length(self.requests) {
                true => self.requests,
                false => self.graph.new_loop(dim),
            };
            let int = Kind::Number(Datatype::Int64);
            let counter = self.graph.add(Op::Counter(on), Vec::new(), int, Vec::new())?;
            return Ok(self.new_each(on, PyValue::Array(counter, ArrayKind::Python), None));
        }
        let bounds: Option<Vec<_>> = bounds.iter().map(PyValue::integer).collect();
        let (start, stop, step) = match bounds.as_deref() {
            Some([stop]) => (0, *stop, 1),
            Some([start, stop]) => (*start, *stop, 1),
            Some([start, stop, step]) if *step > 0 => (*start, *stop, *step),
            _ => return Err("its bounds are not known".to_owned()),
        };
        let count = usize::try_from(stop.saturating_sub(start).max(0) / step).unwrap_or(usize::MAX);
        if count > SUGGEST_RANGE_MAX {
            // Long loops are over the places of a tensor.
            let on = self.graph.new_loop(Dim::Known(stop.saturating_sub(start).unsigned_abs()));
            if (start, step) != (0, 1) {
                return Err("a long loop that does not begin at 0".to_owned());
            }
            let int = Kind::Number(Datatype::Int64);
            let counter = self.graph.add(Op::Counter(on), Vec::new(), int, Vec::new())?;
            return Ok(self.new_each(on, PyValue::Array(counter, ArrayKind::Python), None));
        }
        let numbers = (start..stop).step_by(usize::try_from(step).unwrap_or(1)).map(PyValue::Int).collect();
        Ok(self.new_list(numbers))
    }

    /// `enumerate` and `zip`.
    fn zipped(&mut self, name: &str, arguments: &Arguments) -> Called {
        if !arguments.named.is_empty() || (name == "enumerate" && arguments.positional.len() != 1) {
            return Err("its arguments are not followed".to_owned());
        }
        let lists: Vec<_> = arguments.positional.iter().map(|list| self.items(list)).collect();
        if lists.iter().all(Result::is_ok) {
            let lists: Vec<_> = lists.into_iter().flatten().collect();
            let count = lists.iter().map(Vec::len).min().unwrap_or(0);
            let tuples = (0..count).map(|place| {
                let own = (name == "enumerate").then_some(PyValue::Int(place as i64));
                PyValue::Tuple(
                    own.into_iter().chain(lists.iter().filter_map(|list| list.get(place).cloned())).collect(),
                )
            });
            let tuples = tuples.collect();
            return Ok(self.new_list(tuples));
        }
        let mut on = None;
        let mut parts = Vec::new();
        // A list that a loop filled brings its loop; arrays follow it.
        for value in &arguments.positional {
            if let PyValue::List(list) = value
                && let Some(each) = self.list(*list).each
            {
                if each.condition.is_some() || on.is_some_and(|on| on != each.on) {
                    return Err("lists of different loops are joined".to_owned());
                }
                on = Some(each.on);
            }
        }
        for value in &arguments.positional {
            parts.push(match value {
                PyValue::List(list) => self.list(*list).each.map(|each| each.element).ok_or("a list is not known")?,
                PyValue::Array(id, kind) => {
                    let length = self.graph.shape(*id).first().copied().ok_or("a number is iterated")?;
                    let on = *on.get_or_insert_with(|| self.graph.new_loop(length));
                    if self.graph.loop_length(on) != length {
                        return Err("arrays of different lengths are iterated together".to_owned());
                    }
                    PyValue::Array(self.graph.row(on, *id)?, *kind)
                }
                PyValue::Object(object) if **object == Object::Requests => {
                    on = Some(self.requests);
                    PyValue::object(Object::Request)
                }
                _ => return Err("a value is iterated that is not known".to_owned()),
            });
        }
        let on = on.ok_or("nothing is iterated")?;
        if name == "enumerate" {
            let counter = self.graph.add(Op::Counter(on), Vec::new(), Kind::Number(Datatype::Int64), Vec::new())?;
            parts.insert(0, PyValue::Array(counter, ArrayKind::Python));
        }
        Ok(self.new_each(on, PyValue::Tuple(parts), None))
    }

    fn converted_number(&mut self, name: &str, value: &PyValue) -> Called {
        match value {
            PyValue::Array(id, _) if matches!(self.graph.op(*id), Op::Formula(_) | Op::Size(_)) => {
                let text = self.formula(value).ok_or("its argument is not known")?;
                match (name, text.starts_with("round(") || matches!(self.graph.op(*id), Op::Size(_))) {
                    ("int", false) => self.new_formula(format!("int({text})")),
                    ("int" | "float", _) => Ok(value.clone()),
                    _ => Err("a condition on a size".to_owned()),
                }
            }
            PyValue::Array(id, _)
                if self.graph.rank(*id) == 0 || self.graph.shape(*id).iter().all(|dim| self.graph.is_one(*dim)) =>
            {
                let id = self.graph.view(*id, Vec::new())?;
                let datatype = match (name, self.graph.kind(id)) {
                    (_, Kind::Json) => {
                        let parsed = if name == "int" { Datatype::Int64 } else { Datatype::Fp64 };
                        return Ok(PyValue::Array(self.parsed(id, parsed)?, ArrayKind::Python));
                    }
                    ("int", Kind::Number(Datatype::Fp32 | Datatype::Fp64 | Datatype::Fp16)) => Datatype::Int64,
                    // FP32 is exact in a float of Python.
                    (_, Kind::Number(_)) => return Ok(PyValue::Array(id, ArrayKind::Python)),
                    _ => return Err("a text becomes a number".to_owned()),
                };
                Ok(PyValue::Array(self.cast(id, datatype)?, ArrayKind::Python))
            }
            PyValue::Text(text) if name == "int" => {
                text.trim().parse().map(PyValue::Int).map_err(|_| "it is no integer".to_owned())
            }
            PyValue::Text(text) if name == "float" => {
                text.trim().parse().map(PyValue::Float).map_err(|_| "it is no number".to_owned())
            }
            value => {
                let number = value.number().ok_or("its argument is not known")?;
                Ok(match name {
                    "int" => PyValue::Int(number as i64),
                    "float" => PyValue::Float(number),
                    _ => PyValue::Bool(number != 0.0),
                })
            }
        }
    }

    fn converted_text(&mut self, name: &str, arguments: &Arguments) -> Called {
        match arguments.positional.as_slice() {
            [value @ (PyValue::Text(_) | PyValue::Path(_))] if name == "str" => Ok(value.clone()),
            [PyValue::Int(number)] if name == "str" => Ok(PyValue::Text(number.to_string())),
            [PyValue::Array(id, kind), rest @ ..] => match (self.graph.kind(*id), name, rest) {
                (Kind::Text, "str", []) | (Kind::Raw, "bytes", []) => Ok(PyValue::Array(*id, *kind)),
                (Kind::Raw, "str", [PyValue::Text(encoding)]) if encoding.to_lowercase().starts_with("utf") => {
                    Ok(PyValue::Array(self.each(Op::Decode, *id, Kind::Text)?, ArrayKind::Python))
                }
                (Kind::Text, "bytes", [PyValue::Text(encoding)]) if encoding.to_lowercase().starts_with("utf") => {
                    Ok(PyValue::Array(self.each(Op::Encode, *id, Kind::Raw)?, ArrayKind::Python))
                }
                // The key of a dictionary.
                (Kind::Number(Datatype::Int64 | Datatype::Int32), "str", []) => {
                    Ok(PyValue::Array(self.each(Op::Cast, *id, Kind::Text)?, ArrayKind::Python))
                }
                _ => Err("it is not followed".to_owned()),
            },
            _ => Err("it is not followed".to_owned()),
        }
    }

    /// `round(x, places)`, which a JSON text can have.
    fn rounded(&mut self, arguments: &Arguments) -> Called {
        match arguments.positional.as_slice() {
            [value @ PyValue::Array(id, _)] if matches!(self.graph.op(*id), Op::Formula(_)) => {
                let text = self.formula(value).ok_or("its argument is not known")?;
                self.new_formula(format!("round({text})"))
            }
            [PyValue::Array(id, kind), PyValue::Int(places)] if self.graph.rank(*id) == 0 => {
                let template = JsonTemplate::Tensor(0, Some(*places));
                let rounded = self.graph.add(Op::Dumps(Arc::new(template)), vec![*id], Kind::Json, Vec::new())?;
                Ok(PyValue::Array(rounded, *kind))
            }
            _ => Err("it is not followed".to_owned()),
        }
    }

    fn isinstance(&mut self, arguments: &Arguments) -> Called {
        let [Some(value), Some(class)] = arguments.bind(["obj", "class"])? else {
            return Err("it lacks an argument".to_owned());
        };
        let classes = match class {
            PyValue::Tuple(classes) => classes,
            one => vec![one],
        };
        let own: &[&str] = match &value {
            PyValue::Array(id, ArrayKind::Numpy) if self.graph.rank(*id) > 0 => &["numpy.ndarray"],
            PyValue::Array(id, _) if self.graph.rank(*id) == 0 => match self.graph.kind(*id) {
                Kind::Raw => &["builtins.bytes"],
                Kind::Text => &["builtins.str"],
                _ => return Err("the class of a number is not known".to_owned()),
            },
            PyValue::Text(_) => &["builtins.str"],
            PyValue::List(_) => &["builtins.list"],
            PyValue::Tuple(_) => &["builtins.tuple"],
            PyValue::Dict(_) => &["builtins.dict"],
            PyValue::Int(_) => &["builtins.int"],
            PyValue::Float(_) => &["builtins.float"],
            PyValue::Nothing => &["NoneType"],
            _ => return Err("the class of a value is not known".to_owned()),
        };
        Ok(PyValue::Bool(
            classes.iter().any(|class| matches!(class, PyValue::Library(path) if own.contains(&path.as_str()))),
        ))
    }

    /// Notes a call that has an effect besides its result; false for other calls.
    pub fn note_effect(&mut self, call: SyntaxNode<'a>) -> bool {
        let Some(path) = self.called_path(call) else { return false };
        match library::side_effect(&path) {
            Some(effect) => {
                self.effect(format!("'{path}' {effect}"));
                true
            }
            None => false,
        }
    }

    /// The full name of what a call calls; `None` if it is no function of a library, or a method of one's object that logs.
    fn called_path(&mut self, call: SyntaxNode<'a>) -> Option<String> {
        let mut names = Vec::new();
        let mut node = call.child("func")?;
        while node.kind() == "Attribute" {
            names.push(node.text("attr"));
            node = node.child("value")?;
            if node.kind() == "Call" {
                node = node.child("func")?;
            }
        }
        if node.kind() != "Name" {
            return None;
        }
        names.reverse();
        let is_log = names.iter().any(|name| ["logger", "log", "_logger"].contains(name))
            || ["logger", "log", "LOGGER"].contains(&node.text("id"));
        let last = names.last().copied().unwrap_or_default();
        if is_log
            && (last.starts_with("log") || ["info", "debug", "warning", "warn", "error", "exception"].contains(&last))
        {
            return Some(format!("logging.{last}"));
        }
        let start = match self.lookup(node.text("id")) {
            Some(PyValue::Library(path)) => path,
            Some(_) => return None,
            None => format!("builtins.{}", node.text("id")),
        };
        Some(std::iter::once(start.as_str()).chain(names).collect::<Vec<_>>().join("."))
    }
}

fn parent(path: &str) -> String {
    path.trim_end_matches('/').rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned())
}
