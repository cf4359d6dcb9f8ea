//! Names of libraries: one name for each function, constants, datatypes, and arithmetic on what is known. Pure tables.

use crate::suggest::value::PyValue;
use base::tensor::Datatype;

/// Names that modules have under other names.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("PIL.Image.Resampling", "PIL.Image"),
    ("torch.nn.functional.softmax", "torch.softmax"),
    ("torch.nn.functional.sigmoid", "torch.sigmoid"),
    ("torch.special.softmax", "torch.softmax"),
    ("torch.special.expit", "torch.sigmoid"),
    ("torchvision.transforms.v2", "torchvision.transforms"),
    ("torchvision.transforms.transforms", "torchvision.transforms"),
    ("torchvision.transforms.functional.InterpolationMode", "torchvision.transforms.InterpolationMode"),
    ("torchvision.ops.boxes", "torchvision.ops"),
    ("pathlib.PurePath", "pathlib.Path"),
    ("transformers.AutoFeatureExtractor", "transformers.AutoImageProcessor"),
    ("transformers.ViTImageProcessor", "transformers.AutoImageProcessor"),
    ("transformers.ViTFeatureExtractor", "transformers.AutoImageProcessor"),
    ("transformers.CLIPImageProcessor", "transformers.AutoImageProcessor"),
    ("transformers.ConvNextImageProcessor", "transformers.AutoImageProcessor"),
    ("transformers.BertTokenizerFast", "transformers.AutoTokenizer"),
    ("transformers.DistilBertTokenizerFast", "transformers.AutoTokenizer"),
    ("transformers.RobertaTokenizerFast", "transformers.AutoTokenizer"),
    ("transformers.XLMRobertaTokenizerFast", "transformers.AutoTokenizer"),
    ("transformers.PreTrainedTokenizerFast", "transformers.AutoTokenizer"),
    ("numpy.float_", "numpy.float64"),
    ("numpy.single", "numpy.float32"),
    ("numpy.double", "numpy.float64"),
    ("numpy.half", "numpy.float16"),
    ("numpy.object", "numpy.object_"),
    ("numpy.bool", "numpy.bool_"),
    ("numpy.bytes_", "numpy.bytes_"),
    ("torch.long", "torch.int64"),
    ("torch.int", "torch.int32"),
    ("torch.float", "torch.float32"),
    ("torch.double", "torch.float64"),
    ("torch.half", "torch.float16"),
    ("base64.decodebytes", "base64.b64decode"),
    ("base64.standard_b64decode", "base64.b64decode"),
    ("builtins.open", "builtins.open"),
    ("io.open", "builtins.open"),
    ("scipy.special.expit", "torch.sigmoid"),
];

/// The one name of something in a library.
pub fn canonical(path: &str) -> String {
    let mut path = path.to_owned();
    for (other, name) in OTHER_NAMES {
        if let Some(rest) = path.strip_prefix(other)
            && (rest.is_empty() || rest.starts_with('.'))
        {
            path = format!("{name}{rest}");
            break;
        }
    }
    path
}

/// An attribute of a module: a constant, or a name.
pub fn constant(path: &str, name: &str) -> PyValue {
    let full = canonical(&format!("{path}.{name}"));
    match full.as_str() {
        "numpy.newaxis" => PyValue::Nothing,
        "numpy.inf" | "math.inf" => PyValue::Float(f64::INFINITY),
        "numpy.pi" | "math.pi" => PyValue::Float(std::f64::consts::PI),
        "os.sep" => PyValue::text("/"),
        _ => PyValue::Library(full),
    }
}

const BUILTINS: &[&str] = &[
    "abs",
    "all",
    "any",
    "bool",
    "bytes",
    "dict",
    "enumerate",
    "float",
    "int",
    "isinstance",
    "len",
    "list",
    "map",
    "max",
    "min",
    "object",
    "open",
    "print",
    "range",
    "reversed",
    "round",
    "set",
    "sorted",
    "str",
    "sum",
    "super",
    "tuple",
    "zip",
    "hasattr",
    "getattr",
    "type",
    "ValueError",
    "Exception",
    "RuntimeError",
    "TypeError",
    "KeyError",
];

pub fn is_builtin(name: &str) -> bool {
    BUILTINS.contains(&name)
}

/// The datatypes by their names in numpy and torch.
const DATATYPES: &[(&str, Datatype)] = &[
    ("bool_", Datatype::Bool),
    ("uint8", Datatype::Uint8),
    ("uint16", Datatype::Uint16),
    ("uint32", Datatype::Uint32),
    ("uint64", Datatype::Uint64),
    ("int8", Datatype::Int8),
    ("int16", Datatype::Int16),
    ("int32", Datatype::Int32),
    ("int64", Datatype::Int64),
    ("float16", Datatype::Fp16),
    ("float32", Datatype::Fp32),
    ("float64", Datatype::Fp64),
];

/// The name of a datatype in numpy.
pub fn datatype_name(datatype: Datatype) -> &'static str {
    match datatype {
        Datatype::Bool => "numpy.bool_",
        Datatype::Uint8 => "numpy.uint8",
        Datatype::Uint16 => "numpy.uint16",
        Datatype::Uint32 => "numpy.uint32",
        Datatype::Uint64 => "numpy.uint64",
        Datatype::Int8 => "numpy.int8",
        Datatype::Int16 => "numpy.int16",
        Datatype::Int32 => "numpy.int32",
        Datatype::Int64 => "numpy.int64",
        Datatype::Fp16 => "numpy.float16",
        Datatype::Fp32 => "numpy.float32",
        Datatype::Fp64 => "numpy.float64",
        Datatype::Bytes => "numpy.object_",
        Datatype::Bf16 => "torch.bfloat16",
    }
}

/// The type of an array that a value names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedType {
    Number(Datatype),
    /// `object`: strings as they are.
    Object,
    /// `bytes_`, `S`: strings become bytes.
    Bytes,
    /// `str`.
    Text,
}

/// The datatype that a value names.
pub fn datatype(value: &PyValue) -> Option<NamedType> {
    let name = match value {
        PyValue::Library(path) => path.strip_prefix("numpy.").or(path.strip_prefix("torch.")).unwrap_or(path),
        PyValue::Text(text) => text,
        _ => return None,
    };
    let known = DATATYPES.iter().find(|(known, _)| *known == name).map(|(_, datatype)| NamedType::Number(*datatype));
    known.or(match name {
        "builtins.bool" | "bool" => Some(NamedType::Number(Datatype::Bool)),
        "builtins.float" | "float" | "f8" => Some(NamedType::Number(Datatype::Fp64)),
        "builtins.int" | "int" => Some(NamedType::Number(Datatype::Int64)),
        "f4" => Some(NamedType::Number(Datatype::Fp32)),
        "object_" | "builtins.object" | "object" | "O" => Some(NamedType::Object),
        "bytes_" | "builtins.bytes" | "S" => Some(NamedType::Bytes),
        "builtins.str" | "str_" | "str" | "U" => Some(NamedType::Text),
        _ => None,
    })
}

/// ArithmeticOp on numbers and texts that are known.
pub fn constant_arithmetic(operator: &str, left: &PyValue, right: &PyValue) -> Option<PyValue> {
    match (operator, left, right) {
        ("Add", PyValue::Text(left), PyValue::Text(right)) => return Some(PyValue::Text(format!("{left}{right}"))),
        ("Add", PyValue::Raw(left), PyValue::Raw(right)) => {
            return Some(PyValue::Raw([left.as_slice(), right].concat()));
        }
        ("Add", PyValue::Tuple(left), PyValue::Tuple(right)) => {
            return Some(PyValue::Tuple([left.as_slice(), right].concat()));
        }
        _ => {}
    }
    if let (PyValue::Int(left), PyValue::Int(right)) = (left, right) {
        let whole = match operator {
            "Add" => left.checked_add(*right),
            "Sub" => left.checked_sub(*right),
            "Mult" => left.checked_mul(*right),
            "FloorDiv" => left.checked_div_euclid(*right).filter(|_| *right > 0),
            "Mod" => left.checked_rem_euclid(*right).filter(|_| *right > 0),
            "LShift" => {
                u32::try_from(*right).ok().filter(|bits| *bits < 62).and_then(|bits| left.checked_mul(1 << bits))
            }
            "Pow" => u32::try_from(*right).ok().and_then(|power| left.checked_pow(power)),
            _ => None,
        };
        if whole.is_some() {
            return whole.map(PyValue::Int);
        }
    }
    let (left, right) = (left.number()?, right.number()?);
    Some(PyValue::Float(match operator {
        "Add" => left + right,
        "Sub" => left - right,
        "Mult" => left * right,
        "Div" if right != 0.0 => left / right,
        "Pow" => left.powf(right),
        _ => return None,
    }))
}

/// The effect of a call besides its result, by the beginning of its name; `None` if that is not known.
pub fn side_effect(path: &str) -> Option<&'static str> {
    const EFFECTS: &[(&str, &str)] = &[
        ("builtins.print", "prints"),
        ("logging.", "logs"),
        ("loguru.", "logs"),
        ("triton_python_backend_utils.Logger", "logs"),
        ("triton_python_backend_utils.MetricFamily", "counts metrics"),
        ("prometheus_client.", "counts metrics"),
        ("sys.std", "prints"),
        ("warnings.", "sets warnings"),
        ("gc.", "collects garbage"),
        ("time.", "asks the clock"),
        ("requests.", "uses the network"),
        ("httpx.", "uses the network"),
        ("urllib.", "uses the network"),
        ("socket.", "uses the network"),
        ("redis.", "uses the network"),
        ("boto3.", "uses the network"),
        ("os.remove", "changes files"),
        ("os.makedirs", "changes files"),
        ("os.mkdir", "changes files"),
        ("shutil.", "changes files"),
        ("os.environ", "sets the environment"),
        ("os.putenv", "sets the environment"),
        ("os.system", "starts processes"),
        ("subprocess.", "starts processes"),
        ("torch.set_num_threads", "sets threads"),
        ("torch.cuda", "asks the GPU"),
        ("torch.set_grad_enabled", "sets torch up"),
        ("torch.backends", "sets torch up"),
        ("cv2.setNumThreads", "sets threads"),
        ("sys.path", "sets the search path of modules"),
    ];
    EFFECTS.iter().find(|(start, _)| path.starts_with(start)).map(|(_, effect)| *effect)
}

/// A JSON string.
pub fn quoted(text: &str) -> String {
    let mut out = Vec::new();
    wire::json::writer::string(text, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}
