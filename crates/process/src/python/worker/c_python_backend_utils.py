"""Triton's native half: everything that models use through `triton_python_backend_utils`.

Types and refusals are those of Triton's bindings: a wrong type is a `TypeError`, everything else a
`TritonModelException`. What few models use is imported when it is first asked for.
"""

from __future__ import annotations

import enum
import sys

import deuteron_channel as channel
from deuteron_request import (
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    TritonError,
    refuse,
    whole_number,
)
from deuteron_tensor import Tensor, TritonModelException

__all__ = [
    "InferenceRequest", "InferenceResponse", "InferenceResponseSender", "InferenceTrace", "Logger", "MemoryType", "Metric",
    "MetricFamily", "MetricKind", "PreferredMemory", "ResponseIterator", "Tensor", "TritonError", "TritonModelException",
    "TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU", "is_model_ready", "load_model", "unload_model",
]

# Modules of the other names.
ELSEWHERE = {
    "Metric": "deuteron_metric",
    "MetricFamily": "deuteron_metric",
    "MetricKind": "deuteron_metric",
    "ResponseIterator": "deuteron_call",
    "is_model_ready": "deuteron_control",
    "load_model": "deuteron_control",
    "unload_model": "deuteron_control",
}


def __getattr__(name):
    if name not in ELSEWHERE:
        raise AttributeError("module '" + __name__ + "' has no attribute '" + name + "'")
    value = getattr(__import__(ELSEWHERE[name]), name)
    globals()[name] = value
    return value


class BoundEnum(enum.IntEnum):
    """An enumeration that prints as those of Triton's bindings do."""

    def __str__(self):
        return type(self).__name__ + "." + self.name


class MemoryType(BoundEnum):
    """Kind of memory: of the CPU or of a GPU."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
MemoryType.__module__ = "c_python_backend_utils"


class PreferredMemory:
    """Preferred memory for the outputs of a request to another model. Accepted, but they are always in the CPU's memory."""

    __slots__ = ("_type", "_device")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        signature = (
            "c_python_backend_utils.PreferredMemory(preferred_memory_type: c_python_backend_utils.MemoryType, "
            "preferred_device_id: int = 0)"
        )
        if not isinstance(preferred_memory_type, MemoryType):
            raise refuse("__init__()", signature, preferred_memory_type, preferred_device_id)
        self._type = preferred_memory_type
        self._device = whole_number(preferred_device_id, -(2**63), 2**63 - 1, "__init__()", signature)


class LogLevel(BoundEnum):
    """Levels of the log."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


def _log(message, level, function):
    if isinstance(message, bytes):
        message = message.decode()
    if not isinstance(message, str) or not isinstance(level, LogLevel):
        signature = "(message: str, level: c_python_backend_utils.Logger.LogLevel = <LogLevel.INFO: 0>) -> None"
        raise refuse(function, signature, message, level)
    caller = sys._getframe(2)
    channel.process.log(level, message, caller.f_code.co_filename, caller.f_lineno)


class Logger:
    """Writes to the log of the server. The line names the file and line of the caller."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Logs a message at a level."""
        _log(message, level, "log()")

    @staticmethod
    def log_info(message: str) -> None:
        """Logs a message at level INFO."""
        _log(message, LogLevel.INFO, "log_info()")

    @staticmethod
    def log_warn(message: str) -> None:
        """Logs a message at level WARNING."""
        _log(message, LogLevel.WARNING, "log_warn()")

    @staticmethod
    def log_error(message: str) -> None:
        """Logs a message at level ERROR."""
        _log(message, LogLevel.ERROR, "log_error()")

    @staticmethod
    def log_verbose(message: str) -> None:
        """Logs a message if the server logs verbosely."""
        _log(message, LogLevel.VERBOSE, "log_verbose()")
