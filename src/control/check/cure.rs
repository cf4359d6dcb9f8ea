//! The cure of a refusal, in one line, and the parts that are missing: from its text, which says what is wrong, and the
//! model's backend. Pure.

use std::path::PathBuf;

use crate::model::platform::{OPENVINO_BACKEND, PYTORCH_BACKEND, TENSORFLOW_BACKEND};

/// The kind of a part that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingKind {
    /// A file of the repository.
    File,
    /// A library of the system.
    Library,
    /// A model that an ensemble's step names.
    Model,
    /// A package of Python.
    Package,
}

impl MissingKind {
    /// Returns its name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Library => "library",
            Self::Model => "model",
            Self::Package => "package",
        }
    }
}

/// A part that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingPart {
    /// Its kind.
    pub kind: MissingKind,
    /// Its name, or its path in the repository.
    pub name: String,
}

/// A refusal, and the facts that its cure depends on.
pub struct RefusedModel<'a> {
    /// The reason.
    pub reason: &'a str,
    /// The backend that its configuration names or implies; empty if it is not known.
    pub backend: &'a str,
    /// The directory of models that it is instead of a model.
    pub nested: Option<PathBuf>,
}

impl RefusedModel<'_> {
    /// Returns the cure.
    pub fn change(&self) -> String {
        if let Some(path) = &self.nested {
            return format!("it is a directory of models: serve it too, with --model-repository={}", path.display());
        }
        if self.reason.contains(NO_BACKEND) || self.reason.contains(NO_PYTHON_BACKEND) {
            return self.other_backend();
        }
        let known = CURES.iter().find(|(part, _)| self.reason.contains(part)).map(|(_, cure)| (*cure).to_owned());
        known.unwrap_or_else(|| "correct its configuration as the reason says".to_owned())
    }

    /// The cure of a backend that is not there.
    fn other_backend(&self) -> String {
        let known = BACKENDS.iter().find(|(name, _)| *name == self.backend).map(|(_, cure)| (*cure).to_owned());
        known.unwrap_or_else(|| {
            format!(
                "put {backend}/libtriton_{backend}.so or {backend}/model.py beneath --backend-directory, or export the model to ONNX, or \
                 run it in a model.py",
                backend = self.backend
            )
        })
    }

    /// Returns the parts that the reason names.
    pub fn missing(&self) -> Vec<MissingPart> {
        let part = |kind, name: &str| MissingPart { kind, name: name.to_owned() };
        let reason = self.reason;
        if reason.contains(NO_BACKEND) {
            return vec![part(MissingKind::Library, &format!("libtriton_{}.so", self.backend))];
        }
        if let Some((_, names)) = reason.split_once(NO_STEPS) {
            let names = names.split(';').next().unwrap_or_default();
            return names.split(", ").map(|name| part(MissingKind::Model, name.trim())).collect();
        }
        if let Some((_, rest)) = reason.split_once("has no version directory; expected ") {
            let file = rest.split([':', ';', ' ']).next().filter(|file| file.contains('/'));
            return file.map(|file| part(MissingKind::File, file)).into_iter().collect();
        }
        let library = match self.backend {
            OPENVINO_BACKEND => Some("openvino"),
            PYTORCH_BACKEND => Some("torch"),
            TENSORFLOW_BACKEND => Some("tensorflow-cpu"),
            _ => None,
        };
        if let Some(package) = library.filter(|_| NEEDS.iter().any(|text| reason.contains(text))) {
            return vec![part(MissingKind::Package, package)];
        }
        let quoted =
            |text: &str| reason.split_once(text).and_then(|(_, rest)| rest.split('\'').next().map(str::to_owned));
        let is_absent =
            reason.contains("No such file") || reason.contains("does not exist") || reason.contains("not found in");
        let file = quoted("cannot read '").or_else(|| quoted("Python model file not found in '")).filter(|_| is_absent);
        file.map(|file| part(MissingKind::File, &file)).into_iter().collect()
    }
}

/// The cure without a usable Python.
pub const INSTALL_PYTHON: &str =
    "install Python 3.8 or later with numpy, or name one by --backend-config=python,interpreter=PATH";

const NO_BACKEND: &str = "which this server does not have";
const NO_PYTHON_BACKEND: &str = "unable to find Python backend based backend library";
const NO_STEPS: &str = "contains models that are not available or ambiguous: ";
/// Texts of models whose framework is not there.
const NEEDS: [&str; 3] = ["needs PyTorch", "needs OpenVINO", "needs TensorFlow"];

/// Backends without an engine here, each with its cure.
const BACKENDS: &[(&str, &str)] = &[
    ("dali", "do the same steps in a steps.json (the kind image) or in a model.py with backend: \"python\""),
    (
        "tensorrt",
        "serve the ONNX file that the plan was built from: put it at 1/model.onnx and give platform: \"onnxruntime_onnx\"",
    ),
    ("tensorrtllm", "keep it on a server for LLMs; route its path there"),
    ("vllm", "keep it on a server for LLMs; route its path there"),
];

/// Parts of reasons, each with its cure; the first holds.
const CURES: &[(&str, &str)] = &[
    ("--gpu=off", "serve it on the CPU with --gpu=off"),
    ("KIND_GPU", "serve it on the CPU with --gpu=off, or give it instance_group { kind: KIND_CPU }"),
    (
        NO_STEPS,
        "correct the steps that these models fail for, add the models, or correct model_name in ensemble_scheduling",
    ),
    ("which has no loaded version", "correct that model first: its own row says how"),
    ("allows maximum batch size", "give the ensemble a max_batch_size that all its steps allow"),
    ("has no field named", "correct its name, or remove the field"),
    ("the model expects", "correct dims and max_batch_size in config.pbtxt to those of the model's file"),
    (
        "names code that would run inside the server",
        "start the server with --allow-model-code-upload=true if you trust the store, or remove model_operations",
    ),
    ("which ONNX Runtime alone can load", "pip install onnxruntime"),
    ("is not there: give an absolute path, or put the library", "put the library beside the model, or name its path"),
    (
        "op_library_filename",
        "put the library, and those that it needs, where the loader finds them: LD_LIBRARY_PATH or LD_PRELOAD",
    ),
    (
        "torch_aoti",
        "give TorchScript (torch.jit.trace) or ONNX (torch.onnx.export), or load it in a model.py with import torch",
    ),
    ("needs PyTorch", "pip install torch"),
    ("needs OpenVINO", "pip install openvino"),
    ("needs TensorFlow", "pip install tensorflow-cpu"),
    ("needs ONNX Runtime", "pip install onnxruntime"),
    ("the embedded engine", "pip install onnxruntime, which runs all operators"),
    ("is a pickle", "export it to ONNX, or load it in a model.py"),
    ("symbolic link", "put the target of the link there, or remove the link"),
    ("no version directory", "put the model's files into a version directory, named 1"),
    ("rename the file", "give the file the name that is expected, or name it by default_model_filename"),
    (
        "nothing tells the backend",
        "put model.onnx or model.py into the version directory, or give backend in config.pbtxt",
    ),
    (
        "at least one version must be available",
        "add a version directory that version_policy selects, or correct version_policy",
    ),
    ("directory name must equal model name", "give the directory and name in config.pbtxt the same name"),
    ("cannot be the name", "give the directory another name"),
    ("keep one of them", "remove one of the two configuration files"),
    ("No Python", INSTALL_PYTHON),
    ("no Python interpreter", INSTALL_PYTHON),
    ("Python environment", "correct EXECUTION_ENV_PATH, or remove it and install the packages for the server's Python"),
    (
        "get the canonical path",
        "correct EXECUTION_ENV_PATH, or remove it and install the packages for the server's Python",
    ),
    ("unexpected inference", "correct the names of inputs and outputs in config.pbtxt to those of the model's file"),
    ("unexpected shape", "correct dims and max_batch_size in config.pbtxt to those of the model's file"),
    ("dims", "correct dims and max_batch_size in config.pbtxt to those of the model's file"),
    ("batching", "correct max_batch_size in config.pbtxt: 0 for a model whose first axis is fixed"),
    ("warmup sample", "correct model_warmup, or put its file into the directory warmup of the model"),
    ("cannot read '", "put the file there, or correct the name in config.pbtxt"),
    ("not found in", "put the file there, or correct default_model_filename in config.pbtxt"),
    ("unable to load model", "export the model's file again: it is not what its name says"),
    ("unexpected 'platform' and 'backend' pair", "give one of platform and backend, or those that belong together"),
    ("Resource count", "give the resource with --rate-limit-resource, or remove the rate_limiter"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<'a>(backend: &'a str, reason: &'a str) -> RefusedModel<'a> {
        RefusedModel { reason, backend, nested: None }
    }

    #[test]
    fn each_reason_has_a_cure_and_names_the_missing_part() {
        let check = |backend: &str, reason: &str, cure: &str, missing: &str| {
            let model = refused(backend, reason);
            let parts: Vec<_> =
                model.missing().iter().map(|part| format!("{} {}", part.kind.name(), part.name)).collect();
            assert!(model.change().contains(cure), "{reason}: {}", model.change());
            assert_eq!(parts.join(", "), missing, "{reason}");
        };
        let absent = "model 'm': backend 'x', which this server does not have (it has …)";
        check("tensorrt", absent, "serve the ONNX file", "library libtriton_tensorrt.so");
        check("mine", absent, "put mine/libtriton_mine.so", "library libtriton_mine.so");
        let steps = "ensemble e contains models that are not available or ambiguous: a, b";
        check("", steps, "add the models", "model a, model b");
        let read = "cannot read 'm/1/model.onnx': No such file or directory (os error 2); its directory is empty";
        check("onnxruntime", read, "put the file there", "file m/1/model.onnx");
        let version = "model 'm' has no version directory; expected m/1/model.onnx: move m/model.onnx there";
        check("", version, "named 1", "file m/1/model.onnx");
        check("openvino", "model 'm' needs OpenVINO: not found", "pip install openvino", "package openvino");
        check("onnxruntime", "instance group a has kind KIND_GPU", "--gpu=off", "");
        let names = "model_operations.op_library_filename";
        check(
            "onnxruntime",
            &format!("'{names}' names code that would run inside the server: …"),
            "--allow-model-code",
            "",
        );
        check(
            "onnxruntime",
            &format!("model 'm' names … ({names}), which ONNX Runtime alone can load"),
            "pip install",
            "",
        );
        let absent = format!(
            "{names} of model 'm' names '/x.so', which is not there: give an absolute path, or put the library"
        );
        check("onnxruntime", &absent, "put the library beside the model", "");
        check("onnxruntime", &format!("{names} 'x.so': Failed to load library x.so"), "LD_LIBRARY_PATH", "");
        check(
            "dali",
            "model 'm': backend 'dali', which this server does not have",
            "the kind image",
            "library libtriton_dali.so",
        );
        check("onnxruntime", "something else", "as the reason says", "");
        let nested = RefusedModel { nested: Some("r/group".into()), ..refused("", version) };
        assert!(nested.change().ends_with("--model-repository=r/group"));
    }
}
