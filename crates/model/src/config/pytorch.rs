//! Configurations of PyTorch models (`backend: "pytorch"`), and of Caffe2 models, which an old
//! PyTorch runs: platform and file name, and refusals. Nothing is read from the model's file:
//! TorchScript keeps neither datatypes nor shapes, so that inputs and outputs must be listed, as in
//! Triton. Names are bound by `engines::pytorch`.

use crate::platform::{
    CAFFE2_BACKEND, CAFFE2_FILENAME, PYTHON_FILENAME, PYTORCH_BACKEND, PYTORCH_FILENAME, PYTORCH_PLATFORM,
    TORCH_AOTI_FILENAME, TORCH_AOTI_PLATFORM, is_pytorch_filename,
};
use base::error::Error;
use wire::proto::inference::ModelConfig;

/// Returns true if it is a PyTorch model in TorchScript, which the server's own engine runs.
pub(super) fn is_module(config: &ModelConfig) -> bool {
    config.backend == PYTORCH_BACKEND && config.runtime != PYTHON_FILENAME
}

/// Returns true if a file's name has an extension of PyTorch.
pub(super) fn is_filename(name: &str) -> bool {
    is_pytorch_filename(name) || name.ends_with(".pt2")
}

/// Fills in platform and file name, as Triton does.
pub(super) fn fill(config: &mut ModelConfig, files: Option<&[String]>) {
    if config.backend == CAFFE2_BACKEND && config.default_model_filename.is_empty() {
        CAFFE2_FILENAME.clone_into(&mut config.default_model_filename);
    }
    if config.backend != PYTORCH_BACKEND {
        return;
    }
    let is_there = |name: &str| files.unwrap_or_default().iter().any(|file| file == name);
    if config.platform.is_empty() {
        let names_package = config.default_model_filename.ends_with(".pt2");
        let has_package =
            config.default_model_filename.is_empty() && is_there(TORCH_AOTI_FILENAME) && !is_there(PYTORCH_FILENAME);
        let platform = if names_package || has_package { TORCH_AOTI_PLATFORM } else { PYTORCH_PLATFORM };
        platform.clone_into(&mut config.platform);
    }
    if config.default_model_filename.is_empty() && config.runtime != PYTHON_FILENAME {
        let is_package = config.platform == TORCH_AOTI_PLATFORM;
        let name = if is_package { TORCH_AOTI_FILENAME } else { PYTORCH_FILENAME };
        name.clone_into(&mut config.default_model_filename);
    }
}

/// Checks that the server's own engine has the model's kind.
///
/// # Errors
/// `Unsupported` for a model that was compiled ahead of time.
pub(super) fn check(config: &ModelConfig) -> Result<(), Error> {
    if config.platform != TORCH_AOTI_PLATFORM {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "model '{}': platform '{TORCH_AOTI_PLATFORM}' (a package of AOTInductor) needs Triton's libtriton_pytorch.so beneath \
         --backend-directory; else export the model to TorchScript ({PYTORCH_FILENAME}, by torch.jit.trace) or to ONNX, or load \
         the package in a model.py by torch._inductor.aoti_load_package, and give backend: \"python\"",
        config.name
    )))
}

/// Checks that inputs and outputs are listed.
///
/// # Errors
/// `InvalidArgument` with an example.
pub(super) fn check_tensors(config: &ModelConfig) -> Result<(), Error> {
    let lacks_input = config.input.is_empty() && config.batch_input.is_empty();
    if config.backend != PYTORCH_BACKEND || !(lacks_input || config.output.is_empty()) {
        return Ok(());
    }
    let side = if config.output.is_empty() { "output" } else { "input" };
    Err(Error::invalid(format!(
        "model '{}' has no {side}: model configuration must contain at least one {side}, none were specified. A file of \
         PyTorch keeps neither datatypes nor shapes, so write them into config.pbtxt, as in: input {{ name: \"INPUT__0\" \
         data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }} output {{ name: \"OUTPUT__0\" data_type: TYPE_FP32 dims: [ 1000 ] }}",
        config.name
    )))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::ModelSpec;
    use crate::config::{CompletionRules, ConfigDraft, ConfigSurroundings};
    use crate::parse::text::Notation;

    const TENSORS: &str =
        "input { name: 'x' data_type: TYPE_FP32 dims: 4 } output { name: 'y__0' data_type: TYPE_FP32 dims: 2 }";

    fn draft(text: &str, files: &[&str]) -> Result<ConfigDraft, String> {
        let files: Vec<_> = files.iter().map(|file| (*file).to_owned()).collect();
        ConfigDraft::new("m", Some(text.as_bytes()), &files).map_err(|error| error.text().to_owned())
    }

    fn complete(text: &str, files: &[&str]) -> Result<ModelSpec, String> {
        let spec = draft(text, files)?.complete(None, &BTreeMap::new(), CompletionRules::default());
        spec.map_err(|error| error.text().to_owned())
    }

    #[test]
    fn platform_and_file_name_are_filled_in_from_each_other_and_from_the_files() {
        let check = |text: &str, files: &[&str], platform: &str, file: &str| {
            let spec = complete(&format!("{text} {TENSORS}"), files).unwrap();
            let got = (spec.backend.as_str(), spec.platform.as_str(), spec.default_model_filename.as_str());
            assert_eq!(got, ("pytorch", platform, file), "{text} {files:?}");
        };
        check("", &["model.pt"], "pytorch_libtorch", "model.pt");
        check("backend: 'pytorch'", &[], "pytorch_libtorch", "model.pt");
        check("platform: 'pytorch_libtorch'", &["model.pt2"], "pytorch_libtorch", "model.pt");
        check("platform: 'pytorch_libtorch' default_model_filename: 'net.pt'", &[], "pytorch_libtorch", "net.pt");
        check("default_model_filename: 'net.pt'", &["net.pt"], "pytorch_libtorch", "net.pt");
        assert_eq!(draft("", &["model.pt"]).unwrap().pytorch_filename(), Some("model.pt"));
        assert_eq!(draft("backend: 'pytorch' runtime: 'model.py'", &[]).unwrap().pytorch_filename(), None);
        assert_eq!(draft("backend: 'fil'", &["model.pt"]).unwrap().pytorch_filename(), None);
    }

    #[test]
    fn a_model_of_caffe2_is_a_python_model_of_the_servers_own() {
        let draft = draft(&format!("platform: 'caffe2_netdef' {TENSORS}"), &["model.netdef"]).unwrap();
        let python = draft.python().unwrap().unwrap();
        assert_eq!((python.file.as_str(), python.is_own()), ("deuteron_caffe2.py", true));
        assert_eq!((draft.model_filename(), draft.backend()), ("model.netdef", "caffe2"));
    }

    #[test]
    fn a_package_that_is_compiled_ahead_of_time_is_refused_with_other_ways() {
        let refused = |text: &str, files: &[&str]| {
            let why = complete(&format!("{text} {TENSORS}"), files).unwrap_err();
            assert!(why.contains("platform 'torch_aoti'") && why.contains("torch.jit.trace"), "{why}");
        };
        refused("", &["model.pt2"]);
        refused("platform: 'torch_aoti'", &[]);
        refused("backend: 'pytorch' default_model_filename: 'net.pt2'", &[]);
    }

    #[test]
    fn tensors_must_be_listed_and_groups_for_gpus_are_refused() {
        let refused = |text: &str, want: &str| {
            let why = complete(&format!("backend: 'pytorch' {text}"), &[]).unwrap_err();
            assert!(why.contains(want), "{why}");
        };
        refused("", "model 'm' has no output: model configuration must contain at least one output");
        let output = TENSORS.split_once("output").unwrap().1;
        refused(&format!("output {output}"), "model 'm' has no input: ");
        refused(&format!("{TENSORS} instance_group {{ kind: KIND_GPU }}"), "kind KIND_GPU");
        assert!(complete(&format!("backend: 'pytorch' {TENSORS} instance_group {{ kind: KIND_MODEL }}"), &[]).is_ok());
    }

    #[test]
    fn a_library_of_tritons_goes_before_the_servers_own_and_the_runtime_of_python_is_the_servers() {
        let surroundings = ConfigSurroundings {
            has_backend_file: &|backend, file| backend == "pytorch" && file == "libtriton_pytorch.so",
            ..ConfigSurroundings::of_files(Some(&[]))
        };
        let read = |text: &str| ConfigDraft::read("m", Notation::Text, text.as_bytes(), surroundings).unwrap();
        assert_eq!(read("platform: 'pytorch_libtorch'").library(), Some("libtriton_pytorch.so"));
        assert_eq!(read("platform: 'torch_aoti'").library(), Some("libtriton_pytorch.so"));
        let own = read("backend: 'pytorch' runtime: 'model.py'");
        assert_eq!(own.library(), None);
        assert!(own.python().unwrap().unwrap().is_own());
    }
}
