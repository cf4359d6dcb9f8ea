//! Configurations of OpenVINO's and TensorFlow's models: the name of the file by the files in the
//! directory, and inputs, outputs and batching from the model itself.

use crate::config::batch_axis::{BatchAxis, fill_batching};
use crate::config::sequence_batching;
use crate::datatype;
use crate::platform::{
    GRAPHDEF_FILENAME, GRAPHDEF_PLATFORM, ONNX_FILENAME, OPENVINO_BACKEND, OPENVINO_FILENAME, SAVEDMODEL_FILENAME,
    SAVEDMODEL_PLATFORM, TENSORFLOW_BACKEND,
};
use crate::signature::{ModelSignature, SignatureTensor};
use base::error::Error;
use wire::proto::inference::{ModelConfig, ModelInput, ModelOutput, ModelTensorReshape};

/// The files that OpenVINO reads, in the order to look for them.
const OPENVINO_FILES: [&str; 5] =
    [OPENVINO_FILENAME, ONNX_FILENAME, "model.tflite", SAVEDMODEL_FILENAME, GRAPHDEF_FILENAME];

/// Returns true if it is a model of one of these libraries.
pub(super) fn is_framework(config: &ModelConfig) -> bool {
    [OPENVINO_BACKEND, TENSORFLOW_BACKEND].contains(&config.backend.as_str())
}

/// Fills in the platform and the name of the file.
pub(super) fn fill_filename(config: &mut ModelConfig, files: Option<&[String]>) {
    let has = |file: &str| files.unwrap_or_default().iter().any(|have| have == file);
    let is_named = |file: &str| if config.default_model_filename.is_empty() { has(file) } else { false };
    match config.backend.as_str() {
        OPENVINO_BACKEND => {
            let found = OPENVINO_FILES.into_iter().find(|file| is_named(file)).unwrap_or(OPENVINO_FILENAME);
            if config.default_model_filename.is_empty() {
                found.clone_into(&mut config.default_model_filename);
            }
        }
        TENSORFLOW_BACKEND => {
            if config.platform.is_empty() {
                let is_graph = match config.default_model_filename.as_str() {
                    "" => !has(SAVEDMODEL_FILENAME) && has(GRAPHDEF_FILENAME),
                    name => [".graphdef", ".pb"].iter().any(|end| name.ends_with(end)),
                };
                let platform = if is_graph { GRAPHDEF_PLATFORM } else { SAVEDMODEL_PLATFORM };
                platform.clone_into(&mut config.platform);
            }
            if config.default_model_filename.is_empty() {
                let is_graph = config.platform == GRAPHDEF_PLATFORM;
                let file = if is_graph { GRAPHDEF_FILENAME } else { SAVEDMODEL_FILENAME };
                file.clone_into(&mut config.default_model_filename);
            }
        }
        _ => {}
    }
}

/// Returns true if the configuration leaves something to the model's file, which has it: not a
/// frozen graph, whose tensors are those that the configuration lists, as in Triton.
pub(super) fn is_incomplete(config: &ModelConfig) -> bool {
    let lacks = config.input.is_empty() || config.output.is_empty();
    is_framework(config) && config.platform != GRAPHDEF_PLATFORM && lacks
}

/// Fills in inputs or outputs, and batching. Returns true if the outputs are the file's.
///
/// # Errors
/// `InvalidArgument` where the file cannot say what is missing, or contradicts `max_batch_size`.
pub(super) fn fill(config: &mut ModelConfig, signature: &ModelSignature, axis: BatchAxis) -> Result<bool, Error> {
    let (lacks_inputs, lacks_outputs) = (config.input.is_empty(), config.output.is_empty());
    if !lacks_inputs && !lacks_outputs {
        return Ok(false);
    }
    let name = config.name.clone();
    let listed = listed_batching(config, signature)?;
    let can_batch = signature.can_batch() && listed.unwrap_or(true);
    // OpenVINO opens a fixed first dimension itself: a configuration with batches declares it a batch axis.
    if config.max_batch_size > 0 && !can_batch && config.backend != OPENVINO_BACKEND {
        return Err(Error::invalid(format!(
            "autofill failed for model '{name}': model does not support batching while non-zero max_batch_size is \
             specified"
        )));
    }
    fill_batching(config, if can_batch { axis } else { BatchAxis::Stated }, listed == Some(true));
    let is_batching = config.max_batch_size > 0;
    if lacks_inputs {
        let server_inputs = sequence_batching::input_names(config);
        for tensor in signature.inputs.iter().filter(|tensor| !server_inputs.contains(&tensor.name)) {
            let (data_type, dims, reshape) = tensor_config(&name, "input", tensor, is_batching)?;
            config.input.push(ModelInput { name: tensor.name.clone(), data_type, dims, reshape, ..Default::default() });
        }
    }
    if lacks_outputs {
        let states = sequence_batching::output_names(config);
        for tensor in signature.outputs.iter().filter(|tensor| !states.contains(&tensor.name)) {
            let (data_type, dims, reshape) = tensor_config(&name, "output", tensor, is_batching)?;
            config.output.push(ModelOutput {
                name: tensor.name.clone(),
                data_type,
                dims,
                reshape,
                ..Default::default()
            });
        }
    }
    Ok(lacks_outputs)
}

/// The batching that listed dims imply, as Triton reads them: dims of the model's rank mean no,
/// with one fewer yes; `None` if no dims are listed.
fn listed_batching(config: &ModelConfig, signature: &ModelSignature) -> Result<Option<bool>, Error> {
    if config.max_batch_size > 0 {
        return Ok(None);
    }
    let inputs = config.input.iter().map(|input| (&input.name, input.dims.len(), &signature.inputs));
    let outputs = config.output.iter().map(|output| (&output.name, output.dims.len(), &signature.outputs));
    let mut says = None;
    for (name, listed, tensors) in inputs.chain(outputs) {
        let shape = tensors.iter().find(|tensor| tensor.name == *name).and_then(|tensor| tensor.shape.as_ref());
        let Some(shape) = shape else { continue };
        let yes = listed + 1 == shape.len();
        if says.is_some_and(|before| before != yes) {
            return Err(Error::invalid(format!(
                "autofill failed for model '{}': some dims that are listed leave room for a batch dimension and others do \
                 not",
                config.name
            )));
        }
        says = Some(yes);
    }
    Ok(says)
}

type TensorConfig = (i32, Vec<i64>, Option<ModelTensorReshape>);

fn tensor_config(model: &str, kind: &str, tensor: &SignatureTensor, is_batching: bool) -> Result<TensorConfig, Error> {
    let name = &tensor.name;
    let refuse = |why: &str| {
        Error::invalid(format!(
            "autofill failed for model '{model}': {kind} '{name}' has {why}; list the {kind}s with their dims in \
             config.pbtxt"
        ))
    };
    let datatype = tensor.datatype.ok_or_else(|| refuse("a datatype that the protocol cannot carry"))?;
    let shape = tensor.shape.as_ref().ok_or_else(|| refuse("no shape in the model"))?;
    let dims = shape.get(usize::from(is_batching)..).unwrap_or_default();
    let data_type = datatype::to_config(datatype).into();
    Ok(match dims {
        // Dims cannot be empty. As with ONNX, a scalar is shown as dims [1], one value a row with a reshape to no dims.
        [] => (data_type, vec![1], is_batching.then(ModelTensorReshape::default)),
        dims => (data_type, dims.to_vec(), None),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::{CompletionRules, ConfigDraft};
    use base::tensor::{Datatype, Shape};

    fn draft(text: &str, files: &[&str]) -> Result<ConfigDraft, String> {
        let files: Vec<_> = files.iter().map(|file| (*file).to_owned()).collect();
        ConfigDraft::new("m", Some(text.as_bytes()), &files).map_err(|error| error.text().to_owned())
    }

    #[test]
    fn platform_and_file_follow_from_what_is_there_or_configured() {
        let check = |text: &str, files: &[&str], want: &str| {
            let draft = draft(text, files).unwrap();
            assert_eq!(draft.framework_filename(), Some(want), "{text} {files:?}");
        };
        check("", &["model.bin", "model.xml"], "model.xml");
        check("backend: 'openvino'", &["model.onnx"], "model.onnx");
        check("backend: 'openvino'", &["model.tflite"], "model.tflite");
        check("platform: 'openvino'", &[], "model.xml");
        check("backend: 'openvino' default_model_filename: 'net.onnx'", &["model.xml"], "net.onnx");
        check("", &["model.savedmodel"], "model.savedmodel");
        check("", &["model.graphdef"], "model.graphdef");
        check("platform: 'tensorflow_graphdef'", &[], "model.graphdef");
        check("platform: 'tensorflow_savedmodel'", &[], "model.savedmodel");
        check("backend: 'tensorflow'", &["model.graphdef"], "model.graphdef");
        check("backend: 'tensorflow'", &[], "model.savedmodel");
        check("platform: 'tensorflow_graphdef' default_model_filename: 'f.pb'", &[], "f.pb");
        check("backend: 'tensorflow' default_model_filename: 'f.pb'", &[], "f.pb");
        let other = draft("platform: 'openvino' backend: 'tensorflow'", &[]).unwrap_err();
        assert_eq!(other, "unexpected 'platform' and 'backend' pair, got:openvino, tensorflow");
        assert_eq!(draft("backend: 'identity'", &["model.xml"]).unwrap().framework_filename(), None);
        assert_eq!(draft("", &["model.onnx"]).unwrap().framework_filename(), None);
    }

    fn tensor(name: &str, datatype: Option<Datatype>, shape: Option<&[i64]>) -> SignatureTensor {
        SignatureTensor { name: name.to_owned(), datatype, shape: shape.map(Shape::from_slice) }
    }

    fn filled(text: &str, input: SignatureTensor, output: SignatureTensor) -> Result<String, String> {
        let signature = ModelSignature { inputs: vec![input], outputs: vec![output] };
        let rules = CompletionRules::default();
        let complete = |text: &str| {
            let draft = draft(text, &["model.savedmodel"]).unwrap().with_signature(&signature, rules)?;
            draft.complete(None, &BTreeMap::new(), rules)
        };
        let spec = complete(text).map_err(|error| error.text().to_owned())?;
        let tensors = spec.inputs.iter().chain(&spec.outputs);
        let tensors = tensors.map(|tensor| format!(" {} {} {:?}", tensor.name, tensor.datatype.name(), tensor.dims));
        Ok(format!("{} {}:{}", spec.rows_max, spec.batching.is_some(), tensors.collect::<String>()))
    }

    #[test]
    fn what_is_left_out_is_filled_in_from_the_signature() {
        let check = |text: &str, input: &[i64], output: &[i64], want: Result<&str, &str>| {
            let (input, output) = (Some(input), Some(output));
            let got =
                filled(text, tensor("x", Some(Datatype::Fp32), input), tensor("y", Some(Datatype::Int64), output));
            assert_eq!(got, want.map(str::to_owned).map_err(str::to_owned), "{text}");
        };
        check("", &[-1, 16], &[-1, 4], Ok("4 true: x FP32 [16] y INT64 [4]"));
        check("", &[-1], &[-1], Ok("4 true: x FP32 [1] y INT64 [1]"));
        check("max_batch_size: 8", &[-1, 16], &[-1, 4], Ok("8 true: x FP32 [16] y INT64 [4]"));
        check("", &[1, 16], &[1, 4], Ok("0 false: x FP32 [1, 16] y INT64 [1, 4]"));
        check("", &[-1, 16], &[4], Ok("0 false: x FP32 [-1, 16] y INT64 [4]"));
        let refused = "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is \
                       specified";
        check("max_batch_size: 8", &[1, 16], &[1, 4], Err(refused));
        check("backend: 'openvino' max_batch_size: 8", &[1, 16], &[1, 4], Ok("8 true: x FP32 [16] y INT64 [4]"));
        let input = |dims: &str| format!("input {{ name: 'x' data_type: TYPE_FP32 dims: [ {dims} ] }}");
        check(&input("16"), &[-1, 16], &[-1, 4], Ok("4 true: x FP32 [16] y INT64 [4]"));
        check(&input("-1, 16"), &[-1, 16], &[-1, 4], Ok("0 false: x FP32 [-1, 16] y INT64 [-1, 4]"));
        let mixed = format!("{} input {{ name: 'z' data_type: TYPE_FP32 dims: 1 }}", input("16"));
        check(&mixed, &[-1, 16], &[-1, 4], Ok("4 true: x FP32 [16] z FP32 [1] y INT64 [4]"));
    }

    #[test]
    fn what_the_signature_does_not_say_is_asked_for() {
        let known = tensor("x", Some(Datatype::Fp32), Some(&[1]));
        let check = |output, want: &str| {
            let why = filled("", known.clone(), output).unwrap_err();
            assert!(why.contains(want) && why.ends_with("list the outputs with their dims in config.pbtxt"), "{why}");
        };
        check(tensor("y", None, Some(&[1])), "output 'y' has a datatype that the protocol cannot carry");
        check(tensor("y", Some(Datatype::Fp32), None), "output 'y' has no shape in the model");
    }
}
