"""The module that Python models import: `import triton_python_backend_utils as pb_utils`.

Everything that Triton's module of this name has. The classes are in `c_python_backend_utils`, as in Triton.
"""

from __future__ import annotations

import json
import struct

import numpy as np

import c_python_backend_utils as _native
import deuteron_channel as _channel
import deuteron_tensor as _tensor
from c_python_backend_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    Logger,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Union

    from c_python_backend_utils import MetricFamily, is_model_ready, load_model, unload_model
    from deuteron_config import ModelConfig

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

TRITON_STRING_TO_NUMPY = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}

__all__ = [
    "InferenceRequest", "InferenceResponse", "InferenceResponseSender", "Logger", "MetricFamily", "ModelConfig",
    "PreferredMemory", "TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU", "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START", "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", "TRITONSERVER_RESPONSE_COMPLETE_FINAL", "TRITON_STRING_TO_NUMPY", "Tensor",
    "TritonError", "TritonModelException", "deserialize_bytes_tensor", "get_input_config_by_name",
    "get_input_tensor_by_name", "get_model_dir", "get_output_config_by_name", "get_output_tensor_by_name",
    "is_model_ready", "json", "load_model", "np", "numpy_to_triton_type", "serialize_byte_tensor", "struct",
    "triton_string_to_numpy", "triton_to_numpy_type", "unload_model", "using_decoupled_model_transaction_policy",
]


def __getattr__(name):
    # Names that few models use are imported on first use.
    if name == "ModelConfig":
        from deuteron_config import ModelConfig as value
    elif name in ("Metric", "MetricFamily", "is_model_ready", "load_model", "unload_model"):
        value = getattr(_native, name)
    else:
        raise AttributeError("module '" + __name__ + "' has no attribute '" + name + "'")
    globals()[name] = value
    return value


def serialize_byte_tensor(input_tensor: np.ndarray) -> Union[bytes, tuple, None]:
    """The wire form of a BYTES tensor: each element behind its 32-bit length, in C order.

    Elements of an object array that are not `bytes` become text in UTF-8. An empty array gives `()`, one of another
    datatype None.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype == np.object_ or input_tensor.dtype.type == np.bytes_:
        return _tensor.join_strings(input_tensor)
    return None


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray:
    """The elements of the wire form of a BYTES tensor: an array of `bytes` with one dimension."""
    items = _tensor.split_strings(encoded_tensor)
    array = np.empty(len(items), np.object_)
    array[:] = items
    return array


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Optional[Tensor]:
    """The input of this name; None if the request has none."""
    for tensor in inference_request._inputs or inference_request.inputs():
        if tensor._name == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Optional[Tensor]:
    """The output of this name; None if the response has none."""
    for tensor in inference_response.output_tensors():
        if tensor._name == name:
            return tensor
    return None


def get_input_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """The configuration of the input of this name; None if it has no such input."""
    return _config_by_name(model_config, "input", name)


def get_output_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """The configuration of the output of this name; None if it has no such output."""
    return _config_by_name(model_config, "output", name)


def _config_by_name(model_config, side, name):
    for properties in model_config.get(side, ()):
        if properties["name"] == name:
            return properties
    return None


def using_decoupled_model_transaction_policy(model_config: Dict[str, Any]) -> bool:
    """True if the model may answer a request any number of times."""
    if "model_transaction_policy" in model_config:
        return model_config["model_transaction_policy"]["decoupled"]
    return False


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of a datatype's code; None if it has none."""
    return _tensor.NUMPY_TYPES.get(data_type)


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """The code of a numpy type; None if it is no datatype."""
    for code, kind in _tensor.NUMPY_TYPES.items():
        if data_type == kind:
            return code
    return 13 if data_type == np.bytes_ else None


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a datatype in a configuration, such as `TYPE_FP32`. KeyError if it has none."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def get_model_dir() -> str:
    """The directory of the version of the model."""
    return _channel.process.settings["version_directory"]
