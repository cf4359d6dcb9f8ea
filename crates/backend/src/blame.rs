//! Decides whether an engine's run failed because of its request, by the engine's own words: the shapes of two tensors
//! do not fit each other, an index is out of bounds, a string is in no table. Such a request gets 400 with the model's
//! inputs and their shapes. Everything else is the model's or the server's fault and stays 500.
//!
//! Called by the engines where a run fails and by `engine_run`. No engine has a code for it: ONNX Runtime reports a
//! broadcast that does not fit as FAIL, like a kernel that is broken, so that the text decides. A text that says nothing
//! of shapes or values, or that also speaks of memory or of a device, blames no request.

use std::fmt::Write as _;

use crate::Request;
use crate::text::ShapeText;
use base::error::{Code, Error};
use model::ModelSpec;

/// The fault of the machine or of the engine, whatever else the text says. In lower case.
const OWN_FAULTS: [&str; 14] = [
    "alloc",
    "cublas",
    "cuda",
    "cudnn",
    "doesn't support",
    "does not support",
    "internal error",
    "no kernel",
    "not implemented",
    "not supported",
    "no such file",
    "out of memory",
    "thread",
    "unsupported",
];

/// Words of a text that blames shapes or values. In lower case.
const REQUEST_FAULTS: [&str; 26] = [
    "axes",
    "axis",
    "batch size",
    "broadcast",
    "could not convert",
    "dimension",
    " dim ",
    " dims ",
    "divisible",
    "divide by zero",
    "division by zero",
    "features",
    "greater than",
    "incompatible",
    "indices",
    "index",
    "invalid value",
    "less than",
    "mismatch",
    "must match",
    "out of bound",
    "out of data bounds",
    "out of range",
    "rank",
    "shape",
    "unknown categor",
];

/// The messages of `std::stod` and its kind for a string that is not a number: their own names.
const NUMBER_READERS: [&str; 8] = ["stod", "stof", "stoi", "stol", "stold", "stoll", "stoul", "stoull"];

/// Inputs that a refusal lists. A model with more is named with their number.
const INPUTS_TOLD: usize = 16;

/// Returns whether an engine's message blames the shapes or the values of the request.
pub fn blames_request(message: &str) -> bool {
    let lower = message.to_lowercase();
    let has_word = REQUEST_FAULTS.iter().any(|word| lower.contains(word));
    NUMBER_READERS.contains(&lower.trim()) || (has_word && !speaks_of_itself(message))
}

/// Returns whether a message speaks of memory, of a device, or of what the engine lacks.
fn speaks_of_itself(message: &str) -> bool {
    let lower = message.to_lowercase();
    OWN_FAULTS.iter().any(|word| lower.contains(word))
}

/// Adds the inputs of the request with their shapes to an error that blames it; other errors stay as they are.
pub fn with_inputs(error: Error, spec: &ModelSpec, request: &Request) -> Error {
    // An error that names an input already says what is wrong with it.
    if error.code() != Code::InvalidArgument || error.text().contains("input '") {
        return error;
    }
    let given = spec.inputs.iter().zip(&request.inputs).filter(|(_, tensor)| tensor.is_given());
    let mut text = String::new();
    for (index, (input, tensor)) in given.clone().take(INPUTS_TOLD).enumerate() {
        let separator = if index == 0 { "; the inputs were " } else { ", " };
        let _ = write!(text, "{separator}'{}' {}", input.name, ShapeText(&tensor.shape));
    }
    match given.count().saturating_sub(INPUTS_TOLD) {
        0 => {}
        more => {
            let _ = write!(text, " and {more} more");
        }
    }
    error.with_suffix(&text)
}

/// Returns the reason in a message of ONNX Runtime that blames the request, without the place in its sources: `Add node 'join':
/// Attempting to broadcast an axis …`.
pub fn onnxruntime(message: &str) -> Option<String> {
    const RUNNING: &str = "Non-zero status code returned while running ";
    const NAME: &str = " node. Name:'";
    const STATUS: &str = "' Status Message: ";
    // The innermost node: Loop, If and Scan put the message of their bodies into their own.
    let failed = message.rsplit_once(RUNNING).and_then(|(_, failed)| failed.split_once(NAME));
    let failed = failed.and_then(|(operator, rest)| Some((operator, rest.split_once(STATUS)?)));
    let Some((operator, (name, why))) = failed else {
        return blames_request(message).then(|| one_line(message));
    };
    let why = one_line(why);
    let why = without_source(&why);
    blames_request(why).then(|| format!("{operator} node '{name}': {why}"))
}

/// Returns the last line of a message of OpenVINO that blames the request. The lines before are places in its sources.
pub fn openvino(message: &str) -> Option<String> {
    last_line(message).filter(|why| blames_request(why) && !speaks_of_itself(message))
}

/// Returns the last line of a message of torch that blames the request. The lines before are the trace of the interpreter.
/// The shim's own messages, on outputs of the module, blame no request.
pub fn torch(message: &str) -> Option<String> {
    last_line(message).filter(|why| !why.starts_with("output ") && blames_request(why))
}

/// Returns the first line of TensorFlow's message, or the last one where the first only announces a trace.
pub fn tensorflow(message: &str) -> String {
    let first = message.lines().map(str::trim).find(|line| !line.is_empty()).filter(|line| !line.ends_with(':'));
    first.map(str::to_owned).or_else(|| last_line(message)).unwrap_or_default()
}

/// The last line that is not empty.
fn last_line(message: &str) -> Option<String> {
    message.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned)
}

/// The text in one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A message without what `ORT_ENFORCE` and `ORT_THROW` put before it: the file and line, the signature of the function,
/// and the condition that was false.
fn without_source(text: &str) -> &str {
    if let Some((_, why)) = text.rsplit_once(" was false. ") {
        return why;
    }
    let has_place = |word: &str| [".cc:", ".h:", ".cpp:", ".hpp:"].iter().any(|end| word.contains(end));
    let Some((_, after)) = text.split_once(' ').filter(|(first, _)| has_place(first)) else { return text };
    // `… f(int) const [with T = long int] message`, or the name of the function alone: `Compute message`.
    let after_template = after.split_once(" [with ").and_then(|(_, rest)| rest.split_once("] "));
    let after_arguments = || after.rsplit_once(") const ").or_else(|| after.split_once(") "));
    let signed =
        after_template.or_else(|| after_arguments().filter(|(head, _)| head.contains('(') && head.contains("::")));
    signed.or_else(|| after.split_once(' ')).map_or(after, |(_, why)| why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{TrialAnswers, spec, tensor};
    use base::tensor::Datatype;

    /// Messages of ONNX Runtime 1.31.
    const RUNNING: &str = "Non-zero status code returned while running ";

    #[test]
    fn what_onnx_runtime_says_of_shapes_and_values_blames_the_request_without_its_sources() {
        let check = |message: &str, want: &str| {
            assert_eq!(onnxruntime(&format!("{RUNNING}{message}")).as_deref(), Some(want));
        };
        check(
            "Add node. Name:'join' Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/math/element_wise_ops.h:563 \
             void onnxruntime::BroadcastIterator::Init(ptrdiff_t, ptrdiff_t) axis == 1 || axis == largest was false. \
             Attempting to broadcast an axis by a dimension other than 1. 2 by 3\n",
            "Add node 'join': Attempting to broadcast an axis by a dimension other than 1. 2 by 3",
        );
        check(
            "MatMul node. Name:'' Status Message: matmul_helper.h:59 Compute MatMul dimension mismatch",
            "MatMul node '': MatMul dimension mismatch",
        );
        check(
            "Gather node. Name:'g' Status Message: indices element out of data bounds, idx=9 must be within the inclusive \
             range [-1,0]",
            "Gather node 'g': indices element out of data bounds, idx=9 must be within the inclusive range [-1,0]",
        );
        check(
            "GatherElements node. Name:'' Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/tensor/gather_elements.cc:150 \
             void onnxruntime::core_impl(const Tensor*, const Tensor*, Tensor*, int64_t, concurrency::ThreadPool*) [with Tin \
             = long int; int64_t = long int] GatherElements op: Out of range value in index tensor\n",
            "GatherElements node '': GatherElements op: Out of range value in index tensor",
        );
        check(
            "Loop node. Name:'loop' Status Message: Non-zero status code returned while running Concat node. Name:'in' \
             Status Message: concatbase.h:133 PrepareForComputeImpl Non concat axis dimensions must match: Axis 0 has \
             mismatched dimensions of 2 and 1",
            "Concat node 'in': Non concat axis dimensions must match: Axis 0 has mismatched dimensions of 2 and 1",
        );
        check(
            "OneHotEncoder node. Name:'' Status Message: Unknown Category and zeros = 0.",
            "OneHotEncoder node '': Unknown Category and zeros = 0.",
        );
        check("Cast node. Name:'' Status Message: stod", "Cast node '': stod");
        check(
            "TopK node. Name:'' Status Message: k argument [9] should not be greater than specified axis dim value [3]",
            "TopK node '': k argument [9] should not be greater than specified axis dim value [3]",
        );
        check(
            "MaxPool node. Name:'' Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/nn/pool_attributes.h:236 \
             int64_t onnxruntime::PoolAttributes::ComputeOutputSize(int64_t, int64_t) const out_size >= 0 was false. \
             Calculated output dimension is negative. Check kernel_shape, pads, strides and dilations.\n",
            "MaxPool node '': Calculated output dimension is negative. Check kernel_shape, pads, strides and dilations.",
        );
        check(
            "TreeEnsembleRegressor node. Name:'' Status Message: /a/tree_ensemble_common.h:624 void \
             onnxruntime::ml::detail::TreeEnsembleCommon<InputType>::ComputeAgg(onnxruntime::concurrency::ThreadPool*, const \
             AGG&) const [with AGG = onnxruntime::ml::detail::TreeAggregatorSum<float, float, float>; InputType = float] One \
             path in the graph requests feature 5 but input tensor has 3 features.\n",
            "TreeEnsembleRegressor node '': One path in the graph requests feature 5 but input tensor has 3 features.",
        );
    }

    #[test]
    fn what_an_engine_says_of_itself_blames_no_request() {
        for message in [
            // The name of an operator does not count as the engine's words on shapes.
            "Reshape node. Name:'shape' Status Message: std::bad_function_call",
            "Expand node. Name:'' Status Message: /a/bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, \
             bool, onnxruntime::Stream*) Failed to allocate memory for requested buffer of size 70368744177664\n",
            "Conv node. Name:'' Status Message: CUDNN failure 4: CUDNN_STATUS_INTERNAL_ERROR ; shape mismatch",
            "If node. Name:'' Status Message: the file of weights is not there",
        ] {
            assert_eq!(onnxruntime(&format!("{RUNNING}{message}")), None);
        }
        assert_eq!(openvino("Check 'x' failed:\nCPU plug-in doesn't support Reshape with dynamic rank\n"), None);
        assert_eq!(openvino("Failed to allocate 9 bytes:\nthe shape is known\n"), None);
        assert_eq!(torch("RuntimeError: DefaultCPUAllocator: can't allocate memory for shape [9]"), None);
        assert!(!blames_request("std::bad_alloc") && !blames_request(""));
    }

    #[test]
    fn frameworks_in_python_are_read_by_the_same_words() {
        let program = include_str!("../../process/src/python/worker/deuteron_framework.py");
        let words = |name: &str| -> Vec<&str> {
            let list = program.split_once(&format!("\n{name} = (")).unwrap().1.split_once("\n)").unwrap().0;
            list.split('"').skip(1).step_by(2).collect()
        };
        assert_eq!(words("OWN_FAULTS"), OWN_FAULTS);
        assert_eq!(words("REQUEST_FAULTS"), REQUEST_FAULTS);
    }

    #[test]
    fn of_a_message_of_several_lines_the_last_says_why() {
        let openvino = "Exception from src/inference/src/cpp/infer_request.cpp:224:\nException from \
            src/plugins/intel_cpu/src/node.cpp:794:\n[CPU] MatMul node with name 'm' Check 'k_lhs == k_rhs' failed at \
            src/plugins/intel_cpu/src/shape_inference/custom/matmul.cpp:45:\nMatmul input shapes are incompatible shape A: \
            (1.3) shape B: (2.2)\n\n\n";
        let want = "Matmul input shapes are incompatible shape A: (1.3) shape B: (2.2)";
        assert_eq!(super::openvino(openvino).as_deref(), Some(want));
        let torch = "RuntimeError: The following operation failed in the TorchScript interpreter.\nTraceback of \
            TorchScript (most recent call last):\n  File \"/home/me/model.py\", line 7, in forward\n    return a + b\n           \
            ~~~~~ <--- HERE\nRuntimeError: The size of tensor a (3) must match the size of tensor b (2) at non-singleton \
            dimension 1\n";
        let want =
            "RuntimeError: The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 1";
        assert_eq!(super::torch(torch).as_deref(), Some(want));
        assert_eq!(super::torch("output at index 1 must be of type Tensor or List[str], received List[int]"), None);
        let tensorflow = "Incompatible shapes: [1,3] vs. [1,2]\n\t [[{{node add}}]]";
        assert_eq!(super::tensorflow(tensorflow), "Incompatible shapes: [1,3] vs. [1,2]");
        let tensorflow =
            "Graph execution error:\n\nDetected at node 'a' defined at:\n  File \"/home/me/a.py\"\nno shape\n";
        assert_eq!(super::tensorflow(tensorflow), "no shape");
    }

    #[test]
    fn a_refusal_names_the_inputs_that_came_with_their_shapes() {
        let model = spec(0, &[("ids", Datatype::Uint8, &[-1, -1]), ("mask", Datatype::Uint8, &[-1, -1])], &[]);
        let answers = TrialAnswers::default();
        let batch = answers.batch(vec![(vec![tensor(&[1, 3], &[1, 2, 3]), tensor(&[1, 2], &[1, 2])], 1)]);
        let request = &batch.requests[0];
        let told = with_inputs(Error::invalid("model 'm': a"), &model, request);
        assert_eq!(
            (told.code(), told.text()),
            (Code::InvalidArgument, "model 'm': a; the inputs were 'ids' [1,3], 'mask' [1,2]")
        );
        let own = Error::internal("model 'm': a");
        assert_eq!(with_inputs(own.clone(), &model, request), own);
        let many: Vec<_> = (0..20).map(|index| (format!("i{index}"), Datatype::Uint8, [1_i64])).collect();
        let many: Vec<_> = many.iter().map(|(name, datatype, dims)| (name.as_str(), *datatype, &dims[..])).collect();
        let batch = answers.batch(vec![((0..20).map(|_| tensor(&[1], &[1])).collect(), 1)]);
        let told = with_inputs(Error::invalid("a"), &spec(0, &many, &[]), &batch.requests[0]);
        assert!(told.text().ends_with("'i15' [1] and 4 more"), "{told}");
    }
}
