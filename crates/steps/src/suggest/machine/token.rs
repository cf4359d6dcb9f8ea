//! Tokenizers of transformers and of the package tokenizers: their arguments and defaults, and the outputs of a call.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::suggest::library::quoted;
use crate::suggest::machine::Machine;
use crate::suggest::op::{Dim, ExprId, Kind, LoopId, Op, TokensForm};
use crate::suggest::value::{Arguments, ArrayKind, Called, Object, PyValue, Tokenizer, flag_or, integer_or, needed};
use base::tensor::Datatype;

/// The names of outputs: in transformers, in tokenizers, and the port of the step.
const FIELDS: &[(&str, &str, &str)] = &[
    ("input_ids", "ids", "ids"),
    ("attention_mask", "attention_mask", "mask"),
    ("token_type_ids", "type_ids", "type_ids"),
    ("special_tokens_mask", "special_tokens_mask", "special_mask"),
    ("offset_mapping", "offsets", "offsets"),
];

impl Machine<'_> {
    pub fn call_tokenizer(&mut self, path: &str, arguments: &Arguments) -> Called {
        match path {
            "transformers.AutoTokenizer.from_pretrained" => {
                let folder = needed(
                    arguments.positional.first().cloned().or(arguments.named("pretrained_model_name_or_path")),
                    "path",
                )?;
                if let Some((name, _)) = arguments.named.iter().find(|(name, _)| !IGNORED.contains(&name.as_str())) {
                    return Err(format!("its argument '{name}' is not known"));
                }
                if arguments.named("use_fast") == Some(PyValue::Bool(false)) {
                    return Err("a tokenizer that is not fast is another one".to_owned());
                }
                let (file, config) =
                    (self.file_in(&folder, "tokenizer.json")?, self.file_in(&folder, "tokenizer_config.json")?);
                Ok(PyValue::object(Object::Tokenizer(Tokenizer {
                    file,
                    config: Some(config),
                    padding: Vec::new(),
                    truncation: Vec::new(),
                    side: None,
                })))
            }
            "transformers.AutoConfig.from_pretrained" => {
                let folder = needed(arguments.positional.first().cloned(), "path")?;
                self.file_in(&folder, "config.json")?;
                Ok(PyValue::object(Object::Config))
            }
            "transformers.AutoImageProcessor.from_pretrained" => {
                let folder = needed(arguments.positional.first().cloned(), "path")?;
                let file = self.file_in(&folder, "preprocessor_config.json")?;
                if arguments.named("use_fast") != Some(PyValue::Bool(false)) {
                    self.assume("the image processor is the one on numpy and Pillow (use_fast=False), whose numbers the steps give");
                }
                Ok(PyValue::object(Object::ImageProcessor(file)))
            }
            "tokenizers.Tokenizer.from_file" => match arguments.positional.as_slice() {
                [PyValue::Path(path)] => {
                    let file = self.file_name(path);
                    Ok(PyValue::object(Object::Tokenizer(Tokenizer {
                        file,
                        config: None,
                        padding: Vec::new(),
                        truncation: Vec::new(),
                        side: None,
                    })))
                }
                _ => Err("its file is not below the model's directory".to_owned()),
            },
            _ => Err("it is not known".to_owned()),
        }
    }

    /// The name of a file in a folder that a value names. Of a model of the hub, the file must be beside model.py.
    pub fn file_in(&mut self, folder: &PyValue, file: &str) -> Result<String, String> {
        match folder {
            PyValue::Path(path) => {
                let path = self.joined_path(&PyValue::Path(path.clone()), file)?;
                match path {
                    PyValue::Path(path) => Ok(self.file_name(&path)),
                    _ => Err("a path is not known".to_owned()),
                }
            }
            PyValue::Text(name) => {
                self.assume(format!("{file} beside model.py is that of '{name}'"));
                Ok(file.to_owned())
            }
            _ => Err("a path is not known".to_owned()),
        }
    }

    /// A text of transformers' tokenizer: a string, or a list with one for each row.
    fn texts(&mut self, value: &PyValue) -> Result<(ExprId, bool), String> {
        let id = self.as_array(value)?;
        let id = match self.graph.op(id) {
            Op::Decode => self.graph.operand(id).unwrap_or(id),
            _ => id,
        };
        if !matches!(self.graph.kind(id), Kind::Text | Kind::Raw) {
            return Err("its text is no string".to_owned());
        }
        match self.graph.rank(id) {
            0 => Ok((id, false)),
            1 => Ok((id, true)),
            _ => Err("its texts are not in one list".to_owned()),
        }
    }

    /// `tokenizer(text, ...)`.
    pub fn call_a_tokenizer(&mut self, tokenizer: &Tokenizer, arguments: &Arguments) -> Called {
        let Some(config) = &tokenizer.config else { return Err("this tokenizer is not called".to_owned()) };
        let wants = |name: &str| arguments.named(name) == Some(PyValue::Bool(true));
        let [special, offsets] = ["return_special_tokens_mask", "return_offsets_mapping"].map(wants);
        let rest = WITHOUT_EFFECT.iter().fold(arguments.clone(), |rest, name| rest.without(name));
        let [text, pair, add_special, padding, truncation, max_length, multiple, tensors] = rest.bind([
            "text",
            "text_pair",
            "add_special_tokens",
            "padding",
            "truncation",
            "max_length",
            "pad_to_multiple_of",
            "return_tensors",
        ])?;
        let (text, is_list) = self.texts(&needed(text, "text")?)?;
        let pair = match pair.filter(|pair| *pair != PyValue::Nothing) {
            Some(pair) => Some(self.texts(&pair)?.0),
            None => None,
        };
        let mut fields = vec![("file", quoted(&tokenizer.file)), ("config", quoted(config))];
        fields.extend(padding_of(&padding, is_list)?);
        fields.extend(truncation_of(&truncation)?);
        fields.extend(lengths_of(&fields, max_length, multiple)?);
        if !flag_or(&add_special, true)? {
            fields.push(("add_special_tokens", "false".to_owned()));
        }
        let kind = match tensors {
            Some(PyValue::Text(form)) if form == "np" => ArrayKind::Numpy,
            Some(PyValue::Text(form)) if form == "pt" => ArrayKind::Torch,
            None | Some(PyValue::Nothing) => ArrayKind::Python,
            _ => return Err("its return_tensors is not known".to_owned()),
        };
        self.assume(
            "the tokenizer is that of its tokenizer.json: what classes of transformers change later is not read",
        );
        let made = self.tokens(fields, text, pair)?;
        let mut outputs = BTreeMap::new();
        for (name, _, port) in FIELDS {
            if (*port == "special_mask" && !special) || (*port == "offsets" && !offsets) {
                continue;
            }
            let mut id = made.get(port).copied().ok_or("an output is missing")?;
            if !is_list && kind != ArrayKind::Python {
                let shape = std::iter::once(Dim::Known(1)).chain(self.graph.shape(id)).collect();
                id = self.graph.view(id, shape)?;
            }
            outputs.insert((*name).to_owned(), (id, kind));
        }
        Ok(PyValue::object(Object::Encoding(outputs)))
    }

    /// The outputs of a call by the ports of the step.
    fn tokens(
        &mut self,
        fields: Vec<(&'static str, String)>,
        text: ExprId,
        pair: Option<ExprId>,
    ) -> Result<BTreeMap<&'static str, ExprId>, String> {
        self.calls += 1;
        let length = self.graph.open_size(false);
        let mut shape = self.graph.shape(text);
        shape.push(length);
        let mut made = BTreeMap::new();
        for (_, _, port) in FIELDS {
            let form = TokensForm { port, fields: fields.clone(), call: self.calls, has_pair: pair.is_some() };
            let mut shape = shape.clone();
            if *port == "offsets" {
                shape.push(Dim::Known(2));
            }
            let inputs = std::iter::once(text).chain(pair).collect();
            let id = self.graph.add(Op::Tokens(Arc::new(form)), inputs, Kind::Number(Datatype::Int64), shape)?;
            made.insert(*port, id);
        }
        Ok(made)
    }

    pub fn tokenizer_method(&mut self, tokenizer: &Tokenizer, name: &str, arguments: &Arguments) -> Called {
        match (name, tokenizer.config.is_some()) {
            ("__call__", true) => self.call_a_tokenizer(tokenizer, arguments),
            ("encode_batch" | "encode", false) => self.encoded(tokenizer, name, arguments),
            ("batch_decode" | "decode" | "decode_batch", _) => self.detokenized(tokenizer, name, arguments),
            _ => Err("it is not known".to_owned()),
        }
    }

    /// A call of the package tokenizers that changes a tokenizer; `None` for other methods.
    pub fn changed_tokenizer(
        tokenizer: &Tokenizer,
        name: &str,
        arguments: &Arguments,
    ) -> Option<Result<Tokenizer, String>> {
        let mut changed = tokenizer.clone();
        Some(match name {
            "no_padding" => {
                changed.padding = vec![("padding", quoted("off"))];
                Ok(changed)
            }
            "no_truncation" => {
                changed.truncation = vec![("truncation", quoted("off"))];
                Ok(changed)
            }
            "enable_truncation" => truncation_set(arguments).map(|fields| Tokenizer { truncation: fields, ..changed }),
            "enable_padding" => padding_set(arguments).map(|fields| Tokenizer { padding: fields, ..changed }),
            _ => return None,
        })
    }

    /// `encode_batch(texts)` and `encode(text)` of the package tokenizers.
    fn encoded(&mut self, tokenizer: &Tokenizer, name: &str, arguments: &Arguments) -> Called {
        let (text, pair, add_special) = match name {
            "encode" => {
                let [text, pair, is_split, special] =
                    arguments.bind(["sequence", "pair", "is_pretokenized", "add_special_tokens"])?;
                if is_split.is_some_and(|is_split| is_split != PyValue::Bool(false)) {
                    return Err("texts that are split already".to_owned());
                }
                (text, pair, special)
            }
            _ => {
                let [texts, is_split, special] = arguments.bind(["input", "is_pretokenized", "add_special_tokens"])?;
                if is_split.is_some_and(|is_split| is_split != PyValue::Bool(false)) {
                    return Err("texts that are split already".to_owned());
                }
                (texts, None, special)
            }
        };
        let (text, is_list) = self.texts(&needed(text, "sequence")?)?;
        if is_list != (name == "encode_batch") {
            return Err("its text is no string, or its texts no list".to_owned());
        }
        let pair = match pair.filter(|pair| *pair != PyValue::Nothing) {
            Some(pair) => Some(self.texts(&pair)?.0),
            None => None,
        };
        let mut fields = vec![("file", quoted(&tokenizer.file))];
        let is_longest = tokenizer.padding.iter().any(|(name, value)| *name == "padding" && value == "\"longest\"");
        match (tokenizer.padding.is_empty(), is_list || !is_longest) {
            (true, _) => fields.push(("padding", quoted("file"))),
            (false, true) => fields.extend(tokenizer.padding.iter().cloned()),
            // A text by itself is the longest one.
            (false, false) => fields.push(("padding", quoted("off"))),
        }
        match tokenizer.truncation.is_empty() {
            true => fields.push(("truncation", quoted("file"))),
            false => fields.extend(tokenizer.truncation.iter().cloned()),
        }
        if !flag_or(&add_special, true)? {
            fields.push(("add_special_tokens", "false".to_owned()));
        }
        let lengths: Vec<_> =
            fields.iter().filter(|(name, _)| *name == "max_length").map(|(_, value)| value.clone()).collect();
        match lengths.as_slice() {
            [one, two] if one == two => {
                let place = fields.iter().position(|(name, _)| *name == "max_length").unwrap_or(0);
                fields.remove(place);
            }
            [_, _] => return Err("rows are padded to another length than they are shortened to".to_owned()),
            _ => {}
        }
        let made = self.tokens(fields, text, pair)?;
        let outputs = FIELDS
            .iter()
            .filter_map(|(_, name, port)| Some(((*name).to_owned(), (*made.get(port)?, ArrayKind::Python))));
        let outputs: BTreeMap<_, _> = outputs.collect();
        if !is_list {
            return Ok(PyValue::object(Object::Encoding(outputs)));
        }
        let length = self.graph.shape(text).first().copied().unwrap_or(Dim::Known(1));
        let on: LoopId = self.graph.new_loop(length);
        let mut rows = BTreeMap::new();
        for (name, (id, kind)) in outputs {
            rows.insert(name, (self.graph.row(on, id)?, kind));
        }
        Ok(self.new_each(on, PyValue::object(Object::Encoding(rows)), None))
    }

    fn detokenized(&mut self, tokenizer: &Tokenizer, name: &str, arguments: &Arguments) -> Called {
        let default = tokenizer.config.is_none();
        let [ids, skips, cleans] = arguments.bind(["ids", "skip_special_tokens", "clean_up_tokenization_spaces"])?;
        let skips_special = flag_or(&skips, default)?;
        match (tokenizer.config.is_some(), cleans) {
            (true, Some(PyValue::Bool(false))) | (false, None) => {}
            (true, None) => self.assume("clean_up_tokenization_spaces is off, as in transformers 5 for BPE"),
            _ => return Err("its clean_up_tokenization_spaces is not followed".to_owned()),
        }
        let id = self.as_array(&needed(ids, "ids")?)?;
        let rank = if name == "decode" { 1 } else { 2 };
        let mut shape = self.graph.shape(id);
        if shape.len() != rank {
            return Err(format!("its ids have {} axes", shape.len()));
        }
        shape.pop();
        let op = Op::Detokenize { file: tokenizer.file.clone(), skips_special };
        Ok(PyValue::Array(self.graph.add(op, vec![id], Kind::Text, shape)?, ArrayKind::Python))
    }
}

/// Arguments of `from_pretrained` that change no token.
const IGNORED: &[&str] =
    &["use_fast", "local_files_only", "cache_dir", "trust_remote_code", "pretrained_model_name_or_path"];

/// Arguments of a call that only choose outputs, which are connected if they are used.
const WITHOUT_EFFECT: &[&str] = &[
    "return_attention_mask",
    "return_special_tokens_mask",
    "return_offsets_mapping",
    "return_token_type_ids",
    "verbose",
];

/// `max_length`, which padding to the longest row does not use, and `pad_to_multiple_of`.
fn lengths_of(
    fields: &[(&'static str, String)],
    max_length: Option<PyValue>,
    multiple: Option<PyValue>,
) -> Result<Vec<(&'static str, String)>, String> {
    let mut lengths = Vec::new();
    if let Some(length) = max_length.filter(|length| *length != PyValue::Nothing) {
        let length = length.integer().ok_or("its max_length is not known")?;
        let is_used = fields.iter().any(|(name, value)| {
            ["padding", "truncation"].contains(name) && !value.contains("off") && !value.contains("longest\"")
        });
        if is_used {
            lengths.push(("max_length", length.to_string()));
        }
    }
    if let Some(multiple) = multiple.filter(|multiple| *multiple != PyValue::Nothing) {
        let multiple = multiple.integer().ok_or("its pad_to_multiple_of is not known")?;
        lengths.push(("pad_to_multiple_of", multiple.to_string()));
    }
    Ok(lengths)
}

/// transformers: no padding by default; a text by itself is the longest one.
fn padding_of(padding: &Option<PyValue>, is_list: bool) -> Result<Vec<(&'static str, String)>, String> {
    let kind = match padding {
        None | Some(PyValue::Nothing | PyValue::Bool(false)) => "off",
        Some(PyValue::Text(kind)) if kind == "do_not_pad" => "off",
        Some(PyValue::Text(kind)) if kind == "max_length" => "max_length",
        Some(PyValue::Bool(true)) => {
            if is_list {
                "longest"
            } else {
                "off"
            }
        }
        Some(PyValue::Text(kind)) if kind == "longest" => {
            if is_list {
                "longest"
            } else {
                "off"
            }
        }
        _ => return Err("its padding is not known".to_owned()),
    };
    Ok(vec![("padding", quoted(kind))])
}

/// transformers: no truncation by default.
fn truncation_of(truncation: &Option<PyValue>) -> Result<Vec<(&'static str, String)>, String> {
    let kind = match truncation {
        None | Some(PyValue::Nothing | PyValue::Bool(false)) => "off",
        Some(PyValue::Bool(true)) => "longest_first",
        Some(PyValue::Text(kind)) => match kind.as_str() {
            "longest_first" => "longest_first",
            "only_first" => "only_first",
            "only_second" => "only_second",
            "do_not_truncate" => "off",
            _ => return Err("its truncation is not known".to_owned()),
        },
        _ => return Err("its truncation is not known".to_owned()),
    };
    Ok(vec![("truncation", quoted(kind))])
}

fn truncation_set(arguments: &Arguments) -> Result<Vec<(&'static str, String)>, String> {
    let [length, stride, strategy, direction] = arguments.bind(["max_length", "stride", "strategy", "direction"])?;
    if integer_or(&stride, 0)? != 0 {
        return Err("a stride has no parameter".to_owned());
    }
    let text = |value: Option<PyValue>, default: &str| match value {
        None => Some(default.to_owned()),
        Some(PyValue::Text(text)) => Some(text),
        Some(_) => None,
    };
    let strategy = text(strategy, "longest_first").ok_or("its strategy is not known")?;
    let direction = text(direction, "right").ok_or("its direction is not known")?;
    let length = needed(length, "max_length")?.integer().ok_or("its max_length is not known")?;
    Ok(vec![
        ("truncation", quoted(&strategy)),
        ("max_length", length.to_string()),
        ("truncation_side", quoted(&direction)),
    ])
}

fn padding_set(arguments: &Arguments) -> Result<Vec<(&'static str, String)>, String> {
    let [direction, id, type_id, _token, length, multiple] =
        arguments.bind(["direction", "pad_id", "pad_type_id", "pad_token", "length", "pad_to_multiple_of"])?;
    if integer_or(&type_id, 0)? != 0 {
        return Err("a pad_type_id has no parameter".to_owned());
    }
    let side = match direction {
        None => "right".to_owned(),
        Some(PyValue::Text(side)) => side,
        Some(_) => return Err("its direction is not known".to_owned()),
    };
    let mut fields = match length.filter(|length| *length != PyValue::Nothing) {
        Some(length) => {
            let length = length.integer().ok_or("its length is not known")?;
            vec![("padding", quoted("max_length")), ("max_length", length.to_string())]
        }
        None => vec![("padding", quoted("longest"))],
    };
    fields.push(("padding_side", quoted(&side)));
    fields.push(("pad_id", integer_or(&id, 0)?.to_string()));
    if let Some(multiple) = multiple.filter(|multiple| *multiple != PyValue::Nothing) {
        fields.push(("pad_to_multiple_of", multiple.integer().ok_or("its multiple is not known")?.to_string()));
    }
    Ok(fields)
}
