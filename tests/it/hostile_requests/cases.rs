//! The models of hostile requests: one operator each, by a line of text. The first are tried in each run of the tests.

use crate::support::onnx::builder::{self, FLOAT, INT8, INT16, INT32, INT64, Onnx};

pub use builder::{BOOL, UINT8};

/// `TensorProto.DataType` of texts.
pub const STRING: i64 = 8;
/// Unsigned, 4 bytes.
const UINT32: i64 = 12;
/// Unsigned, 8 bytes.
const UINT64: i64 = 13;

/// One model and its inputs.
pub struct Case {
    /// The name of the model.
    pub name: String,
    /// The inputs of a request.
    pub inputs: Vec<Input>,
    /// Its configuration, without a backend.
    pub config: String,
    /// The ONNX file.
    pub file: Vec<u8>,
}

/// One input of a model.
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its datatype.
    pub datatype: i64,
    /// Its shape in the file, -1 for an open axis.
    pub dims: Vec<i64>,
    /// A shape that the operator takes.
    pub good: Vec<i64>,
    /// A value that the operator takes, of integers.
    pub value: i64,
}

/// `MODEL OPERATOR inputs | constants | attributes | outputs | version`. An operator of another domain has `ml:` or `ms:`
/// before it. An input is `name:datatype:dims=good@value`, a constant `name:datatype:dims@value`; the name alone is a
/// constant, `_` an input left out. The first output may be `name:datatype:rank`.
const LINES: &str = "
lstm LSTM x:f:-1,-1,3=2,2,3 | w:f:1,16,3 r:f:1,16,4 | hidden_size=4 | y,h,c | 14
gru GRU x:f:-1,-1,3=2,2,3 | w:f:1,12,3 r:f:1,12,4 | hidden_size=4 | y,h | 14
rnn RNN x:f:-1,-1,3=2,2,3 | w:f:1,4,3 r:f:1,4,4 | hidden_size=4 | y,h | 14
gru_lengths GRU x:f:-1,-1,3=2,2,3 w r _ l:i32:-1=2@2 | w:f:1,12,3 r:f:1,12,4 | hidden_size=4 | y,h | 14
lstm_lengths LSTM x:f:-1,-1,3=2,2,3 w r _ l:i32:-1=2@2 | w:f:1,16,3 r:f:1,16,4 | hidden_size=4 | y,h,c | 14
div Div a:i:-1=1@7 b:i:-1=1@2 | | | y | 13
div_narrow Div a:i32:-1=2@7 b:i32:-1=2@2 | | | y | 13
remainder Mod a:i:-1=2@7 b:i:-1=2@2 | | | y | 13
power Pow a:i:-1=2@2 b:i:-1=2@2 | | | y | 13
stft STFT x:f:1,-1,1=1,64,1 step:i:1=1@8 _ n:i:1=1@16 | | | y | 17
dft DFT x:f:1,-1,1=1,16,1 n:i:1=1@16 | | axis=1 | y | 17
hann HannWindow n:i:1=1@8 | | | y | 17
mel MelWeightMatrix a:i:1=1@4 b:i:1=1@16 c:i:1=1@8000 d:f:1=1 e:f:1=1 | | | y | 17
conv Conv x:f:-1,-1,-1,-1=1,1,8,8 w:f:-1,-1,-1,-1=1,1,3,3 | | | y | 13
conv1 Conv x:f:-1,-1,-1=1,1,8 w:f:-1,-1,-1=1,1,3 | | | y | 13
conv_fixed Conv x:f:-1,1,-1,-1=1,1,8,8 | w:f:1,1,3,3 | | y | 13
deconv ConvTranspose x:f:-1,-1,-1,-1=1,1,8,8 w:f:-1,-1,-1,-1=1,1,3,3 | | | y | 13
conv_integer ConvInteger x:u8:-1,-1,-1,-1=1,1,8,8 w:u8:-1,-1,-1,-1=1,1,3,3 | | | y | 13
matmul_integer MatMulInteger a:u8:-1,-1=2,3 b:u8:-1,-1=3,2 | | | y | 13
dequantize DequantizeLinear x:u8:-1,-1=2,2 s:f:-1=2 z:u8:-1=2 | | axis=0 | y | 13
quantize QuantizeLinear x:f:-1,-1=2,2 s:f:-1=2 z:u8:-1=2 | | axis=0 | y | 13
topk TopK x:f:-1,-1=2,5 k:i:1=1@2 | | | y,i | 13
one_hot OneHot x:i:-1=2@1 d:i:1=1@4 v:f:2=2 | | | y | 13
range Range a:i:=@0 b:i:=@5 c:i:=@1 | | | y | 13
fill ConstantOfShape x:i:2=2@2 | | | y | 13
reshape Reshape x:f:-1,-1=2,6 n:i:2=2@3 | | | y | 13
reshape_zero Reshape x:f:-1,-1=2,6 n:i:2=2@3 | | allowzero=1 | y | 14
expand Expand x:f:-1,-1=2,1 n:i:2=2@2 | | | y | 13
tile Tile x:f:-1,-1=2,2 n:i:2=2@2 | | | y | 13
pad Pad x:f:-1,-1=2,6 p:i:4=4@1 | | | y | 13
slice Slice x:f:-1,-1=4,6 a:i:2=2@0 b:i:2=2@2 | | | y | 13
slice_steps Slice x:f:-1,-1=4,6 a:i:1=1@0 b:i:1=1@2 c:i:1=1@0 d:i:1=1@1 | | | y | 13
gather Gather x:f:-1,-1=4,6 n:i:-1=2@1 | | | y | 13
gather_elements GatherElements x:f:-1,-1=2,2 n:i:-1,-1=1,2@1 | | | y | 13
gather_nd GatherND x:f:-1,-1=2,2 n:i:-1,2=1,2@1 | | | y | 13
scatter_elements ScatterElements x:f:-1,-1=2,2 n:i:-1,-1=1,2@1 u:f:-1,-1=1,2 | | | y | 13
scatter_nd ScatterND x:f:-1,-1=2,2 n:i:-1,2=1,2@1 u:f:-1=1 | | | y | 13
resize Resize x:f:-1,-1,-1,-1=1,1,4,4 _ s:f:4=4 | | | y | 13
resize_sizes Resize x:f:-1,-1,-1,-1=1,1,4,4 _ _ n:i:4=4@1 | | | y | 13
squeeze Squeeze x:f:-1,-1,-1=1,2,1 a:i:1=1@0 | | | y | 13
unsqueeze Unsqueeze x:f:-1=2 a:i:1=1@0 | | | y | 13
cumsum CumSum x:f:-1,-1=2,3 a:i:1=1@1 | | | y | 14
trilu Trilu x:f:-1,-1=3,3 k:i:=@0 | | | y | 14
unpool MaxUnpool x:f:1,1,-1,-1=1,1,2,2 n:i:1,1,-1,-1=1,1,2,2@3 s:i:4=4@4 | | kernel_shape=[2,2] | y | 13
roi_align RoiAlign x:f:-1,-1,-1,-1=1,1,8,8 r:f:-1,4=2,4 b:i:-1=2@0 | | output_height=2 | y | 16
suppress NonMaxSuppression b:f:-1,-1,4=1,3,4 s:f:-1,-1,-1=1,1,3 m:i:1=1@2 | | | y | 13
reverse ReverseSequence x:f:-1,-1=4,2 l:i:-1=2@3 | | | y | 13
split Split x:f:-1=6 s:i:2=2@3 | | axis=0 | y,z | 13
eye EyeLike x:f:-1,-1=3,3 | | | y | 13
bernoulli Bernoulli x:f:-1,-1=3,3 | | | y | 15
compress Compress x:f:-1,-1=3,3 c:b:-1=3 | | axis=0 | y | 13
grid_sample GridSample x:f:-1,-1,-1,-1=1,1,4,4 g:f:-1,-1,-1,2=1,3,3,2 | | | y | 16
affine_grid AffineGrid t:f:-1,2,3=1,2,3 s:i:4=4@1 | | | y | 20
center_crop CenterCropPad x:f:-1,-1=4,4 s:i:2=2@2 | | | y | 18
col2im Col2Im x:f:-1,-1,-1=1,4,4 a:i:2=2@4 b:i:2=2@2 | | strides=[2,2] | y | 18
unique Unique x:f:-1,-1=4,2 | | axis=0 | y | 13
average_pool AveragePool x:f:-1,-1,-1,-1=1,1,8,8 | | kernel_shape=[2,2] | y | 13
max_pool MaxPool x:f:-1,-1,-1,-1=1,1,8,8 | | kernel_shape=[2,2] | y | 13
global_pool GlobalAveragePool x:f:-1,-1,-1,-1=1,1,8,8 | | | y | 13
layer_norm LayerNormalization x:f:-1,-1,4=2,3,4 s:f:-1=4 | | | y | 17
instance_norm InstanceNormalization x:f:-1,3,-1=1,3,4 | s:f:3 b:f:3 | | y | 13
softmax Softmax x:f:-1,-1=2,3 | | | y | 13
arg_max ArgMax x:f:-1,-1=2,3 | | | y | 13
reduce ReduceSum x:f:-1,-1=2,3 a:i:1=1@0 | | | y | 13
reduce_max ReduceMax x:f:-1,-1=2,3 | | | y | 13
matmul MatMul a:f:-1,-1=2,3 b:f:-1,-1=3,2 | | | y | 13
gemm Gemm a:f:-1,-1=2,3 b:f:-1,-1=3,2 | | | y | 13
concat Concat a:f:-1,-1=2,3 b:f:-1,-1=2,3 | | axis=0 | y | 13
nonzero NonZero x:f:-1,-1=2,3 | | | y | 13
depth DepthToSpace x:f:-1,-1,-1,-1=1,4,2,2 | | blocksize=2 | y | 13
multinomial Multinomial x:f:-1,-1=2,3 | | sample_size=4 | y | 13
attention Attention q:f:-1,-1,-1,-1=1,2,2,4 k:f:-1,-1,-1,-1=1,2,2,4 v:f:-1,-1,-1,-1=1,2,2,4 | | | y | 23
";

/// The first of them.
pub fn cases() -> Vec<Case> {
    of_lines(LINES)
}

/// The cases of a text.
pub fn of_lines(lines: &str) -> Vec<Case> {
    lines.trim().lines().map(case).collect()
}

/// A case of several operators, which `build` adds; its inputs and its output as in the lines.
pub fn graph(name: &str, inputs: &str, output: &str, version: i64, build: impl FnOnce(Onnx) -> Onnx) -> Case {
    let (mut onnx, mut all) = (Onnx::default(), Vec::new());
    for word in inputs.split_whitespace() {
        let input = input(word);
        onnx = onnx.input(&input.name, input.datatype, &input.dims);
        all.push(input.bounded());
    }
    let (output, datatype, rank) = typed_output(output).expect("a typed output");
    finished(name, build(onnx), all, (output, datatype, rank), version)
}

/// The name of a datatype in a request.
pub fn kind(datatype: i64) -> &'static str {
    match datatype {
        BOOL => "BOOL",
        FLOAT => "FP32",
        INT8 => "INT8",
        INT16 => "INT16",
        INT32 => "INT32",
        INT64 => "INT64",
        STRING => "BYTES",
        UINT32 => "UINT32",
        UINT64 => "UINT64",
        _ => "UINT8",
    }
}

/// The least and the most of an integer, as far as both fit in 64 bits with a sign.
pub fn bounds(datatype: i64) -> (i64, i64) {
    match datatype {
        INT8 => (i8::MIN.into(), i8::MAX.into()),
        INT16 => (i16::MIN.into(), i16::MAX.into()),
        INT32 => (i32::MIN.into(), i32::MAX.into()),
        INT64 => (i64::MIN, i64::MAX),
        UINT32 => (0, u32::MAX.into()),
        UINT64 => (0, i64::MAX),
        _ => (0, u8::MAX.into()),
    }
}

fn datatype(name: &str) -> i64 {
    match name {
        "b" => BOOL,
        "f" => FLOAT,
        "i" => INT64,
        "i8" => INT8,
        "i16" => INT16,
        "i32" => INT32,
        "s" => STRING,
        "u8" => UINT8,
        "u32" => UINT32,
        "u64" => UINT64,
        other => panic!("no datatype {other}"),
    }
}

fn sizes(text: &str) -> Vec<i64> {
    text.split(',').filter(|size| !size.is_empty()).map(|size| size.parse().unwrap()).collect()
}

/// `name:datatype:dims=good@value`.
fn input(word: &str) -> Input {
    let [name, kind, rest] = word.split(':').collect::<Vec<_>>()[..] else { panic!("{word}") };
    let (dims, rest) = rest.split_once('=').unwrap();
    let (good, value) = rest.split_once('@').unwrap_or((rest, "1"));
    Input {
        name: name.to_owned(),
        datatype: datatype(kind),
        dims: sizes(dims),
        good: sizes(good),
        value: value.parse().unwrap(),
    }
}

impl Input {
    /// A configuration cannot say that there are no dimensions.
    fn bounded(self) -> Self {
        if self.dims.is_empty() { Self { dims: vec![1], good: vec![1], ..self } } else { self }
    }
}

/// `name:datatype:rank`.
fn typed_output(word: &str) -> Option<(&str, i64, usize)> {
    let [name, kind, rank] = word.split(':').collect::<Vec<_>>()[..] else { return None };
    Some((name, datatype(kind), rank.parse().unwrap()))
}

/// `name:datatype:dims@value`: all elements have that value.
fn constant(onnx: Onnx, word: &str) -> (Onnx, &str) {
    let [name, kind, rest] = word.split(':').collect::<Vec<_>>()[..] else { panic!("{word}") };
    let (dims, value) = rest.split_once('@').unwrap_or((rest, "1"));
    let (dims, value) = (sizes(dims), value.parse::<i16>().unwrap());
    let element = match datatype(kind) {
        FLOAT => f32::from(value).to_le_bytes().to_vec(),
        INT32 => i32::from(value).to_le_bytes().to_vec(),
        INT64 => i64::from(value).to_le_bytes().to_vec(),
        UINT8 => vec![u8::try_from(value).unwrap()],
        other => panic!("no constants of {other}"),
    };
    let raw = element.repeat(usize::try_from(dims.iter().product::<i64>()).unwrap());
    (onnx.constant(name, datatype(kind), &dims, &raw), name)
}

fn case(line: &str) -> Case {
    let parts: Vec<&str> = line.split('|').map(str::trim).collect();
    let [head, constants, attributes, outputs, version] = parts[..] else { panic!("{line}") };
    let mut words = head.split_whitespace();
    let (name, operator) = (words.next().unwrap(), words.next().unwrap());
    let (mut names, mut inputs, mut onnx) = (Vec::new(), Vec::new(), Onnx::default());
    for word in words {
        let (name, rest) = word.split_once(':').unwrap_or((word, ""));
        names.push(name.trim_matches('_'));
        if !rest.is_empty() {
            let input = input(word);
            onnx = onnx.input(&input.name, input.datatype, &input.dims);
            inputs.push(input.bounded());
        }
    }
    for word in constants.split_whitespace() {
        let (with, constant) = constant(onnx, word);
        onnx = with;
        if !names.contains(&constant) {
            names.push(constant);
        }
    }
    let mut outputs: Vec<&str> = outputs.split(',').collect();
    let (first, kind, rank) = typed_output(outputs[0]).unwrap_or_else(|| {
        let (datatype, rank) = output(operator, &inputs);
        (outputs[0], datatype, rank)
    });
    outputs[0] = first;
    let domains = [("ml:", "ai.onnx.ml:"), ("ms:", "com.microsoft:")];
    let domain = domains.iter().find_map(|(short, long)| Some(format!("{long}{}", operator.strip_prefix(short)?)));
    let onnx = onnx.node_of(domain.as_deref().unwrap_or(operator), &names, &outputs, attributes);
    finished(name, onnx, inputs, (first, kind, rank), version.parse().unwrap())
}

fn finished(
    name: &str,
    onnx: Onnx,
    inputs: Vec<Input>,
    (output, datatype, rank): (&str, i64, usize),
    version: i64,
) -> Case {
    let open = vec![-1; rank];
    let file = onnx.output(output, datatype, &open).into_bytes_of(version);
    let config = config(&inputs, (output, datatype, &open));
    Case { name: name.to_owned(), inputs, config, file }
}

/// A configuration without a batch axis.
fn config(inputs: &[Input], (name, datatype, dims): (&str, i64, &[i64])) -> String {
    let tensor = |side: &str, name: &str, datatype: i64, dims: &[i64]| {
        let kind = if datatype == STRING { "STRING" } else { kind(datatype) };
        format!("{side} {{ name: '{name}' data_type: TYPE_{kind} dims: {dims:?} }}\n")
    };
    let inputs: String = inputs.iter().map(|input| tensor("input", &input.name, input.datatype, &input.dims)).collect();
    format!("max_batch_size: 0\n{inputs}{}", tensor("output", name, datatype, dims))
}

/// The datatype and the rank of an operator's first output.
fn output(operator: &str, inputs: &[Input]) -> (i64, usize) {
    let datatype = match operator {
        "ArgMax" | "NonMaxSuppression" | "NonZero" => INT64,
        "ConvInteger" | "MatMulInteger" | "Multinomial" => INT32,
        "Div" | "Mod" | "Pow" | "Range" => inputs[0].datatype,
        "QuantizeLinear" => UINT8,
        _ => FLOAT,
    };
    let rank = match operator {
        "GatherND" | "HannWindow" | "Range" => 1,
        "ConstantOfShape" | "MelWeightMatrix" | "NonMaxSuppression" | "OneHot" | "Squeeze" | "Unsqueeze" => 2,
        "AffineGrid" | "Col2Im" | "GRU" | "LSTM" | "RNN" | "STFT" => 4,
        _ => inputs[0].dims.len(),
    };
    (datatype, rank)
}
