//! `optimization` and `model_operations`: options for the engine, and libraries with operators for ONNX models.

use wire::proto::inference::ModelConfig;
use wire::proto::inference::model_optimization_policy::execution_accelerators as proto;

use crate::platform::ONNX_BACKEND;
use crate::spec::{Accelerator, Optimization};

/// Reads both. `has_library` is true for a model of a hosted backend.
pub(super) fn read(config: &ModelConfig, has_library: bool) -> Optimization {
    let operator_libraries = libraries(config, has_library);
    let Some(policy) = &config.optimization else {
        return Optimization { operator_libraries, ..Optimization::default() };
    };
    let accelerator = |accelerator: &proto::Accelerator| Accelerator {
        name: accelerator.name.clone(),
        parameters: accelerator.parameters.clone().into_iter().collect(),
    };
    let accelerators = |list: &[proto::Accelerator]| list.iter().map(accelerator).collect();
    let lists = policy.execution_accelerators.as_ref();
    Optimization {
        graph_level: policy.graph.as_ref().map_or(0, |graph| graph.level),
        cpu_accelerators: lists.map_or_else(Vec::new, |lists| accelerators(&lists.cpu_execution_accelerator)),
        gpu_accelerators: lists.map_or_else(Vec::new, |lists| accelerators(&lists.gpu_execution_accelerator)),
        operator_libraries,
    }
}

/// The libraries of a model, if it can have some. `has_library` is true for a model of a hosted backend.
pub(super) fn libraries(config: &ModelConfig, has_library: bool) -> Vec<String> {
    let operations = config.model_operations.as_ref().filter(|_| config.backend == ONNX_BACKEND && !has_library);
    operations.map_or_else(Vec::new, |operations| operations.op_library_filename.clone())
}

/// The note for a model that names some in vain.
pub(super) fn note(config: &ModelConfig, has_library: bool) -> Option<String> {
    let names_some = config.model_operations.as_ref().is_some_and(|it| !it.op_library_filename.is_empty());
    let field = "model_operations.op_library_filename";
    (names_some && libraries(config, has_library).is_empty())
        .then(|| format!("'{field}' has no effect here: only ONNX models take operators from a library"))
}
