"""Control of other models: `load_model`, `unload_model`, `is_model_ready`."""

from __future__ import annotations

from struct import Struct

import deuteron_channel as channel
from deuteron_channel import U16, str16, str32
from deuteron_request import NO_SPAN, truth
from deuteron_tensor import TritonModelException, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

PLACE = Struct("<QQ")
LOAD, UNLOAD, IS_READY = 0, 1, 2


def ask(kind, *parts):
    """Asks the server, and returns the value of its reply."""
    process = channel.process
    if process.settings.get("mode") == "complete":
        raise TritonModelException("not supported during the 'auto_complete_config' function")
    try:
        is_known, value = process.aux.ask(kind, *parts)
    except channel.ServerGone as error:
        is_known, value = False, (0, str(error))
    if not is_known:
        raise TritonModelException(
            "Failed to process the request for model '" + process.name + "', message: " + value[1]
        )
    return value


def _control(what, operation, model, version="", unload_dependents=False, config="", span=NO_SPAN, files=()):
    if channel.process.stage == "finalizing":
        raise TritonModelException(what + ": not supported during the 'finalize' function")
    parts = [bytes((operation,)), str16(model), str16(version), bytes((unload_dependents,)), str32(config), span]
    try:
        return ask(channel.CONTROL, *parts, U16.pack(len(files)), *files)
    except TritonModelException as error:
        raise TritonModelException(what + ": " + str(error)) from None


def load_model(model_name: str, config: str = "", files: Optional[Dict[str, bytes]] = None) -> None:
    """Loads a model, or loads it again. `config` is JSON that takes the place of its configuration.

    `files` are the contents of files that take the place of its directory, by names such as `file:1/model.onnx`.
    """
    if not isinstance(model_name, str) or not isinstance(config, str):
        raise refuse(
            "load_model()", "(model_name: str, config: str = '', files: object = None) -> None", model_name, config, files
        )
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            "failed to load model '" + model_name
            + "', files should be a dictionary of file paths and file contents"
        )
    copies, parts, offset = [], [], 0
    for path, contents in (files or {}).items():
        if not isinstance(path, str) or not isinstance(contents, bytes):
            raise refuse("load_model()", "files: Dict[str, bytes]", path, type(contents))
        if contents:
            copies.append((offset, len(contents), contents))
        parts.append(str16(path) + PLACE.pack(offset, len(contents)))
        offset += (len(contents) + 63) & -64
    if len(parts) > 1024:
        raise TritonModelException("failed to load model '" + model_name + "', files should be at most 1024")
    span = channel.process.write_span(copies, offset)
    _control("Failed to load model", LOAD, model_name, config=config, span=span, files=parts)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unloads a model, and with `unload_dependents` the models that only it needs."""
    signature = "(model_name: str, unload_dependents: bool = False) -> None"
    if not isinstance(model_name, str):
        raise refuse("unload_model()", signature, model_name, unload_dependents)
    unload_dependents = truth(unload_dependents, "unload_model()", signature)
    _control("Failed to unload model", UNLOAD, model_name, unload_dependents=unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """True if a version of a model, or any, is ready."""
    if not isinstance(model_name, str) or not isinstance(model_version, str):
        raise refuse(
            "is_model_ready()", "(model_name: str, model_version: str = '') -> bool", model_name, model_version
        )
    return bool(_control("Failed to check model readiness", IS_READY, model_name, version=model_version))


for function in (load_model, unload_model, is_model_ready):
    function.__module__ = "c_python_backend_utils"
