//! The models of hostile requests: one operator each, by a line of text.

use crate::support::onnx::builder::{self, FLOAT, INT32, INT64, Onnx};

pub use builder::{BOOL, UINT8};

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

/// `MODEL OPERATOR inputs | constants | attributes | outputs | version`. An input is `name:datatype:dims=good@value`, a
/// constant `name:datatype:dims`; the name alone is a constant, `_` an input left out.
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

/// All of them.
pub fn cases() -> Vec<Case> {
    LINES.trim().lines().map(case).collect()
}

fn datatype(name: &str) -> i64 {
    match name {
        "b" => BOOL,
        "f" => FLOAT,
        "i" => INT64,
        "i32" => INT32,
        "u8" => UINT8,
        other => panic!("no datatype {other}"),
    }
}

fn sizes(text: &str) -> Vec<i64> {
    text.split(',').filter(|size| !size.is_empty()).map(|size| size.parse().unwrap()).collect()
}

fn case(line: &str) -> Case {
    let parts: Vec<&str> = line.split('|').map(str::trim).collect();
    let [head, constants, attributes, outputs, version] = parts[..] else { panic!("{line}") };
    let mut words = head.split_whitespace();
    let (name, operator) = (words.next().unwrap(), words.next().unwrap());
    let (mut names, mut inputs, mut onnx) = (Vec::new(), Vec::new(), Onnx::default());
    for word in words {
        let Some((input, rest)) = word.split_once(':') else {
            names.push(word.trim_matches('_'));
            continue;
        };
        names.push(input);
        let (kind, rest) = rest.split_once(':').unwrap();
        let (dims, rest) = rest.split_once('=').unwrap();
        let (good, value) = rest.split_once('@').unwrap_or((rest, "1"));
        let (datatype, dims, good) = (datatype(kind), sizes(dims), sizes(good));
        onnx = onnx.input(input, datatype, &dims);
        // A configuration cannot say that there are no dimensions.
        let (dims, good) = if dims.is_empty() { (vec![1], vec![1]) } else { (dims, good) };
        inputs.push(Input { name: input.to_owned(), datatype, dims, good, value: value.parse().unwrap() });
    }
    for word in constants.split_whitespace() {
        let [constant, _, dims] = word.split(':').collect::<Vec<_>>()[..] else { panic!("{word}") };
        let dims = sizes(dims);
        let ones = vec![1_f32; usize::try_from(dims.iter().product::<i64>()).unwrap()];
        let raw: Vec<u8> = ones.into_iter().flat_map(f32::to_le_bytes).collect();
        onnx = onnx.constant(constant, FLOAT, &dims, &raw);
        if !names.contains(&constant) {
            names.push(constant);
        }
    }
    let outputs: Vec<&str> = outputs.split(',').collect();
    onnx = match attributes.split_once('=') {
        None => onnx.node(operator, &names, &outputs, &[]),
        Some((key, list)) if list.starts_with('[') => {
            onnx.node_listed(operator, &names, &outputs, (key, &sizes(list.trim_matches(['[', ']']))))
        }
        Some((key, value)) => onnx.node(operator, &names, &outputs, &[(key, value.parse().unwrap())]),
    };
    let (datatype, rank) = output(operator, &inputs);
    let open = vec![-1; rank];
    let file = onnx.output(outputs[0], datatype, &open).into_bytes_of(version.parse().unwrap());
    let config = config(&inputs, (outputs[0], datatype, &open));
    Case { name: name.to_owned(), inputs, config, file }
}

/// A configuration without a batch axis.
fn config(inputs: &[Input], (name, datatype, dims): (&str, i64, &[i64])) -> String {
    let tensor = |side: &str, name: &str, datatype: i64, dims: &[i64]| {
        let kind = match datatype {
            BOOL => "BOOL",
            FLOAT => "FP32",
            INT32 => "INT32",
            INT64 => "INT64",
            _ => "UINT8",
        };
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
